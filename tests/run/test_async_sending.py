"""Sends from coroutines: as `send`, and the loop goes on while a file is held by somebody else."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import coroutine
from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.runtime import asynchronous

Order = dict[str, Any]
TURNS = 1_000
PATIENCE_S = 60.0


class Shop:
    """An app on a file, and a way to hold that file as another process would."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shop.db"
        self.app = onefold.App("shop", url=f"sqlite:///{self.path}")
        orders = self.app.queue("orders")

        @self.app.job(orders, key="{id}")
        def ship(order: Order) -> None: ...

        @self.app.job(orders, key="{id}", unique=True)
        def invoice(order: Order) -> None: ...

        self.ship, self.invoice = ship, invoice
        self.bus = self.app.bus()
        self.bus.rule("all", {"source": ["shop"]}, orders)

    def waiting(self) -> list[str]:
        return sorted(str(one.key) for one in self.app.runtime().engine.queues.peek("orders", limit=10_000))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    one = Shop(tmp_path)
    yield one
    one.app.close()


@coroutine
def one_turn() -> Iterator[None]:
    """Let the loop go round once."""
    yield


async def turns_go_by(shop: Shop, begin: Callable[[], Awaitable[Any]]) -> Any:
    """Begin something while the file is held: the loop turns a thousand times before the file is free; then its answer."""
    with closing(sqlite3.connect(shop.path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        task = asyncio.ensure_future(begin())
        for _ in range(TURNS):
            await one_turn()
        assert not task.done()
        holder.execute("ROLLBACK")
        return await task


def test_the_loop_goes_on_while_a_send_waits_for_the_file(shop: Shop) -> None:
    async def serve() -> None:
        await shop.app.aruntime()
        receipt = await turns_go_by(shop, lambda: shop.ship.asend({"id": "o-1"}))
        assert (receipt.key, receipt.found) == ("o-1", "new")
        many = await turns_go_by(shop, lambda: shop.ship.asend_many([{"id": "o-2"}, {"id": "o-3"}]))
        assert [one.key for one in many] == ["o-2", "o-3"]
        unique = await turns_go_by(shop, lambda: shop.invoice.asend({"id": "o-4"}))
        assert unique.found == "new"
        await turns_go_by(shop, lambda: shop.ship.adeliver([shop.ship.message({"id": "o-5"})]))
        entry = onefold.events.EventEntry(source="shop", detail_type="x", detail={})
        (answer,) = await turns_go_by(shop, lambda: shop.bus.aput([entry]))
        assert answer.error_code is None

    asyncio.run(serve())
    assert len(shop.waiting()) == 6
    assert (shop.ship.name, shop.invoice.name) == ("ship", "invoice")


def test_the_loop_goes_on_while_an_app_is_opened(shop: Shop) -> None:
    sqlite3.connect(shop.path).close()

    async def serve() -> None:
        runtime = await turns_go_by(shop, shop.app.aruntime)
        assert runtime.engine.queues.depth("orders").visible == 0
        await shop.app.aclose()
        await shop.ship.asend({"id": "o-1"})  # which opens it again
        await shop.app.aclose()

    asyncio.run(serve())
    assert shop.waiting() == ["o-1"]


def test_a_thousand_at_once(shop: Shop) -> None:
    async def serve() -> None:
        receipts = await asyncio.gather(*[shop.ship.asend({"id": f"o-{number}"}) for number in range(1_000)])
        assert {one.found for one in receipts} == {"new"}
        ours = [one for one in threading.enumerate() if one.name.startswith("onefold-async")]
        assert len(ours) <= 8

    asyncio.run(serve())
    assert len(shop.waiting()) == 1_000


def test_errors_come_out_as_they_are(shop: Shop) -> None:
    async def serve() -> None:
        with pytest.raises(errors.PayloadError):
            await shop.ship.asend({"id": ""})
        with pytest.raises(errors.PayloadError, match="does not take the message"):
            await shop.ship.asend({"id": "o-1", "text": "x" * 2_000_000})
        await shop.invoice.asend({"id": "o-1"})
        with pytest.raises(errors.ConflictError):
            await shop.invoice.asend({"id": "o-1", "pence": 5})
        with pytest.raises(errors.UsageError, match="not a list of payloads"):
            await shop.ship.asend_many({"id": "o-1"})  # type: ignore[dict-item]

    asyncio.run(serve())
    assert shop.waiting() == ["o-1"]


def test_in_a_handler_it_is_the_runs_outbox(tmp_path: Path) -> None:
    app = onefold.App("shop")
    orders, letters = app.queue("orders"), app.queue("letters")

    @app.job(letters, key="{id}")
    def write(letter: Order) -> None: ...

    @app.job(orders, key="{id}", retry=onefold.Retry(attempts=1))
    async def ship(order: Order) -> None:
        first = await write.asend({"id": order["id"]})
        (second,) = await write.asend_many([{"id": order["id"] + ".2"}])
        assert first.message_id is second.message_id is None
        if order["id"] == "bad":
            raise onefold.PermanentError("no")

    with onefold.testing.inline(app) as world:
        ship.send_many([{"id": "good"}, {"id": "bad"}])
        world.run(queues=["orders"])
        assert [one.key for one in app.runtime().engine.queues.peek("letters")] == ["good", "good.2"]


def test_a_connection_that_blocks_is_refused(shop: Shop) -> None:
    async def serve(connection: object) -> None:
        with pytest.raises(errors.UsageError, match="no asynchronous connection") as caught:
            await shop.ship.asend({"id": "o-1"}, connection=connection)
        assert "Nothing was sent" in caught.value.meaning

    with closing(sqlite3.connect(shop.path)) as mine:
        asyncio.run(serve(mine))
    asyncio.run(serve(object()))


def test_a_task_that_is_cancelled_leaves_a_call_that_ends(shop: Shop) -> None:
    async def serve() -> None:
        await shop.app.aruntime()
        with closing(sqlite3.connect(shop.path, isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            task = asyncio.ensure_future(shop.ship.asend({"id": "o-1"}))
            for _ in range(TURNS):
                await one_turn()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            holder.execute("ROLLBACK")
        await shop.ship.asend({"id": "o-2"})

    asyncio.run(serve())
    assert "o-2" in shop.waiting()


def test_a_pause_ends_while_all_threads_have_calls() -> None:
    threads, over = asynchronous.LoopThreads(), threading.Event()

    async def busy() -> None:
        calls = [asyncio.ensure_future(threads.run(lambda: over.wait(PATIENCE_S))) for _ in range(20)]
        await one_turn()
        await asyncio.wait_for(threads.pause(lambda: None), PATIENCE_S / 2)
        over.set()
        assert await asyncio.gather(*calls) == [True] * 20

    try:
        asyncio.run(busy())
    finally:
        over.set()
        threads.close()
