"""Sends in transactions of asyncpg's and SQLAlchemy's connections: sent if, and only if, their own commit commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from onefold import errors
from onefold.engines.urls import open_outbox
from tests.run.outbox_shop import OutboxShop
from tests.stores.postgres_books import sql

pytestmark = pytest.mark.slow


@pytest.fixture
def shop(url: str, tmp_path: Path) -> Iterator[OutboxShop]:
    """An app whose outbox is in a new database, with a table of orders."""
    table = open_outbox(url)
    table.create()
    table.close()
    sql(url, "CREATE TABLE shop_order (id text PRIMARY KEY)")
    one = OutboxShop(f"sqlite:///{tmp_path / 'engine.db'}", url)
    yield one
    one.app.close()


def passed_on(shop: OutboxShop) -> list[str]:
    """The keys of the messages that a relay finds committed; checks that the same orders exist."""
    relay = shop.relay()
    relay.check()
    relay.close()
    keys = shop.waiting()
    assert sorted(keys) == [name for (name,) in sql(shop.outbox_url, "SELECT id FROM shop_order ORDER BY id")]
    return keys


ORDER = "INSERT INTO shop_order VALUES ('{}')"


# -- asyncpg -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


def test_a_connection_of_asyncpg(shop: OutboxShop, url: str) -> None:
    async def sell() -> None:
        async with connected(url) as connection:
            async with connection.transaction():
                await connection.execute(ORDER.format("o-1"))
                receipt = await shop.ship.asend({"id": "o-1"}, connection=connection)
                assert (receipt.key, receipt.message_id) == ("o-1", None)
                with suppress(asyncpg.UniqueViolationError):
                    async with connection.transaction():
                        await shop.ship.asend({"id": "o-2"}, connection=connection)
                        await connection.execute(ORDER.format("o-1"))
                async with connection.transaction():
                    await connection.execute(ORDER.format("o-3"))
                    await shop.ship.asend_many([{"id": "o-3"}], connection=connection)
            with suppress(KeyError):
                async with connection.transaction():
                    await connection.execute(ORDER.format("o-4"))
                    await shop.ship.asend({"id": "o-4"}, connection=connection)
                    raise KeyError
        async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
            async with pool.acquire() as lent, lent.transaction():
                await lent.execute(ORDER.format("o-5"))
                await shop.ship.asend({"id": "o-5"}, connection=lent)
            await refused(shop, lent, "released back to the pool")
            await refused(shop, pool, "leads to no asynchronous connection")

    asyncio.run(sell())
    assert passed_on(shop) == ["o-1", "o-3", "o-5"]


async def refused(
    shop: OutboxShop, connection: Any, match: str, kind: type[errors.OnefoldError] = errors.UsageError
) -> None:
    with pytest.raises(kind, match=match) as caught:
        await shop.ship.asend({"id": "o-9"}, connection=connection)
    assert "Nothing was sent" in caught.value.meaning
    assert caught.value.todo


def test_connections_of_asyncpg_that_cannot_carry_a_message(shop: OutboxShop, url: str) -> None:
    async def sell() -> None:
        async with connected(url) as connection:
            await refused(shop, connection, "autocommit mode")
            with pytest.raises(errors.UsageError, match="whose calls must be awaited") as caught:
                shop.ship.send({"id": "o-9"}, connection=connection)
            assert "asend" in caught.value.todo
            failed = connection.transaction()
            await failed.start()
            with pytest.raises(asyncpg.DivisionByZeroError):
                await connection.execute("SELECT 1 / 0")
            await refused(shop, connection, "has failed and can only be rolled back")
            await failed.rollback()
        await refused(shop, connection, "closed")

    asyncio.run(sell())
    assert passed_on(shop) == []


def test_outbox_tables_that_asyncpg_cannot_use(shop: OutboxShop, url: str, postgres: str) -> None:
    async def sell() -> None:
        async with connected(postgres) as connection, connection.transaction():
            await refused(shop, connection, "No table onefold_outbox", errors.StorageError)
            assert await connection.fetchval("SELECT 1") == 1  # the transaction goes on
        sql(url, "UPDATE onefold_outbox_version SET version = 2")
        async with connected(url) as connection, connection.transaction():
            await refused(shop, connection, "not have version 1", errors.StorageError)
        sql(url, "UPDATE onefold_outbox_version SET version = 1")
        async with connected(url) as connection:
            reading = connection.transaction(readonly=True)
            await reading.start()
            with pytest.raises(errors.StorageError, match="is read-only"):
                await shop.ship.asend({"id": "o-9"}, connection=connection)
            await reading.rollback()
            async with connection.transaction():
                sql(url, "SELECT pg_terminate_backend(%s)", connection.get_server_pid())
                with pytest.raises((errors.TransientError, errors.UsageError)):
                    await shop.ship.asend({"id": "o-9"}, connection=connection)

    with pytest.raises((asyncpg.InterfaceError, asyncpg.PostgresConnectionError)):  # its end fails without a connection
        asyncio.run(sell())
    assert passed_on(shop) == []


# -- SQLAlchemy --------------------------------------------------------------------------------------------------------


def test_sessions_and_connections_of_sqlalchemy(shop: OutboxShop, url: str) -> None:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session:
        shop.ship.send({"id": "o-1"}, connection=session)
        session.execute(text(ORDER.format("o-1")))
        session.commit()
        shop.ship.send({"id": "o-2"}, connection=session)
        session.rollback()
        with session.begin():
            session.execute(text(ORDER.format("o-3")))
            shop.ship.send({"id": "o-3"}, connection=session)
            with suppress(IntegrityError), session.begin_nested():
                shop.ship.send({"id": "o-4"}, connection=session)
                session.execute(text(ORDER.format("o-1")))
    with engine.connect() as connection:
        shop.ship.send({"id": "o-5"}, connection=connection)  # before its first statement
        connection.execute(text(ORDER.format("o-5")))
        connection.commit()
        shop.ship.send({"id": "o-6"}, connection=connection)
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(errors.UsageError, match="autocommit mode"),
    ):
        shop.ship.send({"id": "o-7"}, connection=connection)
    engine.dispose()
    assert passed_on(shop) == ["o-1", "o-3", "o-5"]


Act = Callable[[OutboxShop, AsyncEngine], Coroutine[Any, Any, None]]


async def in_sessions(shop: OutboxShop, engine: AsyncEngine) -> None:
    async with AsyncSession(engine) as session:
        await shop.ship.asend({"id": "o-1"}, connection=session)  # before its first statement
        await session.execute(text(ORDER.format("o-1")))
        await session.commit()
        await shop.ship.asend({"id": "o-2"}, connection=session)
        await session.rollback()
        async with session.begin():
            await session.execute(text(ORDER.format("o-3")))
            await shop.ship.asend({"id": "o-3"}, connection=session)
            with suppress(IntegrityError):
                async with session.begin_nested():
                    await shop.ship.asend({"id": "o-4"}, connection=session)
                    await session.execute(text(ORDER.format("o-1")))


async def in_connections(shop: OutboxShop, engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        await shop.ship.asend({"id": "o-1"}, connection=connection)  # before its first statement
        await connection.execute(text(ORDER.format("o-1")))
        await connection.commit()
        await shop.ship.asend({"id": "o-2"}, connection=connection)
        await connection.rollback()
    async with engine.begin() as connection:
        await shop.ship.asend({"id": "o-3"}, connection=connection)
        await connection.execute(text(ORDER.format("o-3")))


async def refused_ones(shop: OutboxShop, engine: AsyncEngine) -> None:
    alone = engine.execution_options(isolation_level="AUTOCOMMIT")
    async with alone.connect() as connection:
        await refused(shop, connection, "autocommit mode")
    await refused(shop, connection, "closed")
    async with engine.connect() as connection, connection.begin() as begun:
        await begun.rollback()
        await refused(shop, connection, "Can't operate on closed transaction")
    async with AsyncSession(engine) as session:
        with pytest.raises(errors.UsageError, match="whose calls must be awaited"):
            shop.ship.send({"id": "o-9"}, connection=session)
        async with session.begin():
            await session.execute(text(ORDER.format("o-1")))
            await shop.ship.asend({"id": "o-1"}, connection=session)
        with pytest.raises(IntegrityError):
            await session.execute(text(ORDER.format("o-1")))
        await refused(shop, session, "has failed and can only be rolled back")
        await session.rollback()
    async with AsyncSession(engine) as session, session.begin():
        await session.execute(text(ORDER.format("o-3")))
        await shop.ship.asend({"id": "o-3"}, connection=session)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("act", [in_sessions, in_connections, refused_ones])
def test_asynchronous_sessions_and_connections(shop: OutboxShop, url: str, driver: str, act: Act) -> None:
    async def main() -> None:
        engine = create_async_engine(url.replace("postgresql://", f"postgresql+{driver}://"))
        await act(shop, engine)
        await engine.dispose()

    asyncio.run(main())
    assert passed_on(shop) == ["o-1", "o-3"]
