"""Sends in transactions of SQLAlchemy's, on the engine's own file: what its commit commits, its rollback rolls back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, String, create_engine, event, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

import onefold
from onefold import errors
from tests.run.outbox_shop import nothing


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """A row of the program's own."""

    __tablename__ = "shop_order"
    id: Mapped[str] = mapped_column(String, primary_key=True)


class Books:
    """An app on a file, and SQLAlchemy's engine on the same file."""

    def __init__(self, folder: Path, name: str = "shop.db") -> None:
        self.app = onefold.App("shop", url=f"sqlite:///{folder / name}")
        orders = self.app.queue("orders")
        self.ship = self.app.job(orders, key="{id}", name="ship")(nothing)
        self.invoice = self.app.job(orders, key="{id}", name="invoice", unique=True)(nothing)
        self.app.runtime()
        self.engine = create_engine(f"sqlite:///{folder / name}")
        Base.metadata.create_all(self.engine)

    def there(self) -> tuple[list[str], list[str]]:
        """Orders, and keys of messages."""
        with Session(self.engine) as session:
            orders = list(session.scalars(select(Order.id).order_by(Order.id)))
        return orders, [str(one.key) for one in self.app.runtime().engine.queues.peek("orders")]

    def close(self) -> None:
        self.engine.dispose()
        self.app.close()


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    one = Books(tmp_path)
    yield one
    one.close()


def savepoints_work(engine: Engine) -> None:
    """SQLAlchemy's own advice for SQLite: the driver begins nothing, SQLAlchemy says BEGIN."""

    @event.listens_for(engine, "connect")
    def connected(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    engine.dispose()


def test_a_session_commits_and_rolls_back_both(books: Books) -> None:
    with Session(books.engine) as session:
        session.add(Order(id="o-1"))
        assert books.ship.send({"id": "o-1"}, connection=session).found == "new"
        assert books.there() == ([], [])
        session.commit()
        session.add(Order(id="o-2"))
        books.ship.send({"id": "o-2"}, connection=session)
        session.rollback()
        books.ship.send_many([{"id": "o-3"}, {"id": "o-4"}], connection=session)
    assert books.there() == (["o-1"], ["o-1"])
    with sessionmaker(books.engine).begin() as session:
        books.invoice.send({"id": "o-5"}, connection=session)
        session.add(Order(id="o-5"))
    with suppress(IntegrityError), sessionmaker(books.engine).begin() as session:
        books.invoice.send({"id": "o-6"}, connection=session)
        session.add(Order(id="o-5"))
    assert books.there() == (["o-1", "o-5"], ["o-1", "o-5"])


def test_a_scoped_session(books: Books) -> None:
    session = scoped_session(sessionmaker(books.engine))
    session.add(Order(id="o-1"))
    books.ship.send({"id": "o-1"}, connection=session)
    session.commit()
    session.remove()
    assert books.there() == (["o-1"], ["o-1"])


def test_a_connection_commits_what_was_sent_before_its_first_statement(books: Books) -> None:
    with books.engine.connect() as connection:
        books.ship.send({"id": "o-1"}, connection=connection)
        connection.commit()
        books.ship.send({"id": "o-2"}, connection=connection)
        connection.rollback()
        with connection.begin():
            books.ship.send({"id": "o-3"}, connection=connection)
        books.ship.send({"id": "o-4"}, connection=connection)
    assert books.there() == ([], ["o-1", "o-3"])


@pytest.mark.parametrize("advised", [False, True])
def test_a_savepoint_that_is_rolled_back_takes_its_messages_along(books: Books, advised: bool) -> None:
    if advised:
        savepoints_work(books.engine)
    with Session(books.engine) as session, session.begin():
        session.add(Order(id="o-1"))
        books.ship.send({"id": "o-1"}, connection=session)
        with suppress(KeyError), session.begin_nested():
            session.add(Order(id="o-2"))
            books.ship.send({"id": "o-2"}, connection=session)
            raise KeyError
        with session.begin_nested():
            session.add(Order(id="o-3"))
            books.ship.send({"id": "o-3"}, connection=session)
    assert books.there() == (["o-1", "o-3"], ["o-1", "o-3"])


def test_a_savepoint_before_anything_else(books: Books) -> None:
    """What the outer transaction rolls back is gone, where SQLAlchemy is set up as it says itself."""
    savepoints_work(books.engine)
    with suppress(KeyError), Session(books.engine) as session, session.begin():
        with session.begin_nested():
            session.add(Order(id="o-1"))
            books.ship.send({"id": "o-1"}, connection=session)
        raise KeyError
    assert books.there() == ([], [])


# -- what is refused ---------------------------------------------------------------------------------------------------


def refused(books: Books, connection: Any, match: str) -> None:
    with pytest.raises(errors.UsageError, match=match) as caught:
        books.ship.send({"id": "o-9"}, connection=connection)
    assert "Nothing was sent" in caught.value.meaning
    assert caught.value.todo


def test_a_session_whose_transaction_is_over(books: Books) -> None:
    with Session(books.engine) as session:
        session.add_all([Order(id="o-1"), Order(id="o-1")])
        with pytest.raises(IntegrityError):
            session.flush()
        refused(books, session, "PendingRollbackError")
    with Session(books.engine) as session, session.begin() as begun:
        begun.rollback()
        refused(books, session, "Can't operate on closed transaction")
    with books.engine.connect() as connection, connection.begin() as begun:
        begun.rollback()
        refused(books, connection, "Can't operate on closed transaction")
    assert books.there() == ([], [])


def test_connections_that_are_closed_or_commit_by_themselves(books: Books, tmp_path: Path) -> None:
    connection = books.engine.connect()
    connection.close()
    refused(books, connection, "This Connection is closed")
    with books.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        refused(books, connection, "autocommit mode")
    refused(books, books.engine, "leads to no connection")
    refused(books, AsyncSession(), "whose calls must be awaited")
    with Session(create_engine(f"sqlite:///{tmp_path / 'other.db'}")) as session:
        refused(books, session, "the engine's file is")
    assert books.there() == ([], [])
