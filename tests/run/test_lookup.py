"""Asking a job about an operation, cancelling what has not started, and waiting for it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import onefold
from onefold import errors
from onefold.admin.session import AdminSession, jobs_of
from onefold.admin.why import explain
from onefold.options import WorkerSettings
from onefold.runner import lookup
from onefold.runner.lookup import Known
from onefold.runner.worker_setup import make_worker
from tests.run.shop import Shop
from tests.run.workshop import working


def test_an_operation_from_its_send_to_its_end() -> None:
    seen: list[Any] = []

    def acting(order: Any, ctx: onefold.Context) -> str:
        seen.append(shop.ship.look("o-1").state)
        return f"shipped in run {ctx.attempt}"

    shop = Shop(onefold.TransientError("not now"), acting)
    with onefold.testing.inline(shop.app) as world:
        assert shop.ship.look("o-1").state == "absent"
        shop.ship.send({"id": "o-1"})
        waiting = shop.ship.look("o-1")
        assert (waiting.state, waiting.attempts, waiting.result, waiting.why) == ("waiting", 0, None, None)
        world.run()
        again = shop.ship.look("o-1")
        assert (again.state, again.attempts, again.why) == ("waiting", 1, "TransientError: not now")
        world.clock.advance(60_000)
        world.run()
        done = shop.ship.look("o-1")
        assert seen == ["running"]
        assert (done.state, done.result, done.attempts, done.why) == ("done", "shipped in run 2", 2, None)
        assert done.changed_at_ms == world.clock.now_ms()
        assert done.expires_at_ms is not None
        assert asyncio.run(shop.ship.alook("o-1")) == done


@pytest.mark.parametrize(
    ("act", "state", "why"),
    [
        (onefold.PermanentError("never"), "dead", "PermanentError: never"),
        (onefold.OutcomeUnknown("sent?"), "held", "OutcomeUnknown: sent?"),
    ],
)
def test_operations_that_need_a_person(act: Exception, state: str, why: str) -> None:
    shop = Shop(act, on_unknown="hold")
    with onefold.testing.inline(shop.app) as world:
        shop.ship.send({"id": "o-1"})
        world.run()
        known = shop.ship.look("o-1")
        assert known.state == state
        assert why in (known.why or "")
        assert shop.ship.wait("o-1", "1s") == known
        assert asyncio.run(shop.ship.await_end("o-1", "1s")) == known
        assert not shop.ship.cancel("o-1")


class Parcel(msgspec.Struct):
    number: str


def test_an_operation_is_named_by_its_key_and_not_by_its_payload() -> None:
    shop = Shop()
    with onefold.testing.inline(shop.app):
        for ask in (shop.ship.look, shop.ship.cancel, shop.ship.wait):
            with pytest.raises(errors.UsageError, match=r"is not a key: it is a dict\..*job\.send\(payload\)\.key"):
                ask({"id": "o-1"})  # type: ignore[arg-type]
    absent = Known[Any](job="ship", key="nosuch", state="absent")
    with pytest.raises(errors.TransientError, match=r"nothing is known of it\. It was not sent"):
        lookup._has_ended(absent, 0, "1s")


def test_the_result_is_of_the_type_that_the_handler_returns() -> None:
    app = onefold.App("shop")

    @app.job(app.queue("orders"), key="{id}", tenant="{shop}")
    def ship(order: dict[str, str]) -> Parcel:
        return Parcel(order["id"])

    with onefold.testing.inline(app) as world:
        ship.send({"id": "o-1", "shop": "a"})
        world.run()
        assert ship.look("o-1", tenant="a").result == Parcel("o-1")
        assert ship.look("o-1").state == "absent"


def test_what_has_not_started_is_cancelled() -> None:
    shop = Shop("shipped")
    with onefold.testing.inline(shop.app) as world:
        shop.ship.send({"id": "o-1"}, delay="1h")
        shop.ship.send({"id": "o-2"})
        assert asyncio.run(shop.ship.acancel("o-1"))
        assert shop.ship.look("o-1").state == "absent"
        assert not shop.ship.cancel("o-1")
        world.run()
        assert not shop.ship.cancel("o-2")
        world.clock.advance(3_600_000)
        world.run()
        assert [name for name, _ in shop.calls] == ["o-2"]
        rows = app_rows(shop)
        assert [(row.event, row.key.key) for row in rows if row.event == "removed"] == [("removed", "o-1")]
        (story,) = explain(AdminSession(shop.app.runtime(), actor="person:ann", jobs=jobs_of(shop.app)), "o-1").stories
        assert "cancelled it at" in story.text
        assert [line.text for line in story.lines if line.event == "removed"] == ["message cancelled by the program"]


@pytest.mark.parametrize("unique", [False, True])
def test_what_was_cancelled_on_a_fifo_queue_can_be_sent_again_at_once(unique: bool) -> None:
    app = onefold.App("shop")
    ran: list[str] = []

    @app.job(app.queue("accounts", fifo=True), key="{id}", group="{account}", unique=unique)
    def post(order: dict[str, str]) -> None:
        ran.append(order["id"])

    with onefold.testing.inline(app) as world:
        payload = {"id": "o-1", "account": "a"}
        post.send(payload)
        assert post.send(payload).duplicate
        assert post.cancel("o-1")
        again = post.send(payload)
        assert (again.found, again.duplicate, post.look("o-1").state) == ("new", False, "waiting")
        world.run()
        assert ran == ["o-1"]


@pytest.mark.parametrize("how", ["cancelled", "purged", "expired"])
def test_a_unique_operation_without_a_message_is_absent(how: str) -> None:
    app = onefold.App("shop")
    ran: list[str] = []

    @app.job(app.queue("orders", retention="1d"), key="{id}", unique=True)
    def ship(order: dict[str, str]) -> None:
        ran.append(order["id"])

    with onefold.testing.inline(app) as world:
        ship.send({"id": "o-1"}, delay="1h" if how == "cancelled" else None)
        ship.send({"id": "o-2"})
        assert ship.look("o-1").state == "waiting"
        if how == "cancelled":
            assert ship.cancel("o-1")
        elif how == "purged":
            app.runtime().engine.queues.purge("orders")
        else:
            world.clock.advance(25 * 3_600_000)
        assert ship.look("o-1").state == "absent"
        with pytest.raises(errors.TransientError, match="no message of it is left"):
            ship.wait("o-1", "0s")
        assert ship.send({"id": "o-1"}).found == "new"
        assert ship.look("o-1").state == "waiting"
        world.run()
        assert ran.count("o-1") == 1
        assert ship.look("o-1").state == "done"


def test_what_was_cancelled_before_it_ran_can_be_sent_with_another_payload() -> None:
    app = onefold.App("shop")
    ran: list[int] = []

    @app.job(app.queue("orders"), key="{id}", unique=True)
    def ship(order: dict[str, Any]) -> None:
        ran.append(order["version"])
        if order["version"] == 2:
            raise errors.PermanentError("no such street")

    with onefold.testing.inline(app) as world:
        ship.send({"id": "o-1", "version": 1}, delay="1h")
        with pytest.raises(errors.ConflictError):
            ship.send({"id": "o-1", "version": 2})
        assert ship.cancel("o-1")
        assert ship.send({"id": "o-1", "version": 2}).found == "new"
        world.run()
        assert ran == [2]
        app.runtime().engine.queues.purge("orders-dead")
        with pytest.raises(errors.ConflictError, match="its message is gone"):  # this one has run
            ship.send({"id": "o-1", "version": 3})


def test_a_dead_letter_that_was_deleted_can_be_sent_again_at_once() -> None:
    app = onefold.App("shop")
    ran: list[str] = []

    @app.job(app.queue("accounts", fifo=True), key="{id}", group="{account}")
    def post(order: dict[str, str]) -> None:
        ran.append(order["id"])
        if len(ran) == 1:
            raise errors.PermanentError("no such account")

    with onefold.testing.inline(app) as world:
        payloads = [{"id": f"o-{number}", "account": "a"} for number in (1, 2)]
        post.send_many(payloads)
        world.run()
        queues = app.runtime().engine.queues
        dead = queues.peek("accounts-dead.fifo")  # the second one was stopped with its group
        assert [one.key for one in dead] == ["o-1", "o-2"]
        assert queues.remove([one.message_id for one in dead]) == [True, True]
        app.runtime().engine.queues.remove([])
        assert [one.found for one in post.send_many(payloads)] == ["new", "new"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_cancel_in_a_transactional_handler_belongs_to_its_run(tmp_path: Path, *, fails: bool) -> None:
    app = onefold.App("shop", url=f"sqlite:///{tmp_path / 'shop.db'}")

    @app.job(app.queue("reminders"), key="{id}")
    def remind(order: dict[str, str]) -> None: ...

    @app.job(app.queue("payments"), key="{id}", effect="transactional")
    def pay(order: dict[str, str], ctx: onefold.Context) -> bool:
        ctx.connection.execute("CREATE TABLE paid (id)")
        cancelled = remind.cancel(order["id"])
        ctx.connection.execute("INSERT INTO paid VALUES (?)", (order["id"],))
        if fails:
            raise errors.PermanentError("the card was refused")
        return cancelled

    remind.send({"id": "o-1"}, delay="1h")
    pay.send({"id": "o-1"})
    with working(app, until_empty=True, wait_for_delayed=False) as worker:
        worker.end()
    assert (pay.look("o-1").state, pay.look("o-1").result) == (("dead", None) if fails else ("done", True))
    assert remind.look("o-1").state == ("waiting" if fails else "absent")
    app.close()


def app_rows(shop: Shop) -> list[Any]:
    return shop.app.runtime().engine.ledger.between(0, 2**50)


def test_another_tenants_message_with_the_same_key_stays() -> None:
    app = onefold.App("shop")

    @app.job(app.queue("orders"), key="{id}", tenant="{shop}")
    def ship(order: dict[str, str]) -> None: ...

    with onefold.testing.inline(app):
        ship.send({"id": "o-1", "shop": "b"})
        assert [ship.look("o-1", tenant=one).state for one in "ab"] == ["absent", "waiting"]
        ship.send({"id": "o-1", "shop": "a"})
        assert ship.cancel("o-1", tenant="a")
        assert [ship.look("o-1", tenant=one).state for one in "ab"] == ["absent", "waiting"]
        (left,) = app.runtime().engine.queues.peek("orders")
        assert '"b"' in left.body


def test_what_a_worker_has_in_hand_is_not_cancelled() -> None:
    shop = Shop("shipped")
    with onefold.testing.inline(shop.app):
        shop.ship.send({"id": "o-1"})
        shop.app.runtime().engine.queues.open("orders").receive(1)
        assert not shop.ship.cancel("o-1")


def test_a_wait_ends_when_the_work_does(tmp_path: Path) -> None:
    """The handler ends once the other thread has begun to wait; the wait looks every 50 ms."""
    shop = Shop("shipped")
    shop.app.url = f"sqlite:///{tmp_path / 'shop.db'}"
    shop.ship.send({"id": "o-1"})
    with pytest.raises(errors.TransientError, match="it is waiting") as caught:
        shop.ship.wait("o-1", "0s")
    assert "worker" in caught.value.todo
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(shop.ship.wait("o-1", "60s")))
    waiting.start()
    settings = WorkerSettings(until_empty=True)
    runtime = shop.app.runtime()
    make_worker(runtime, shop.app.jobs, shop.app.registry.job_of, settings=settings).run()
    waiting.join(60)
    assert [one.state for one in found] == ["done"]
    shop.app.close()


def test_coroutines_wait_while_the_loop_and_each_other_go_on(tmp_path: Path) -> None:
    """Twenty wait, more than there are threads; the worker begins when all of them have looked."""
    shop = Shop(*["shipped"] * 20)
    shop.app.url = f"sqlite:///{tmp_path / 'shop.db'}"
    names = [f"o-{number}" for number in range(20)]

    async def serve() -> list[Any]:
        await shop.ship.asend_many([{"id": name} for name in names])
        with pytest.raises(errors.TransientError, match="it is waiting"):
            await shop.ship.await_end("o-1", "0s")
        tasks = [asyncio.ensure_future(shop.ship.await_end(name, "60s")) for name in names]
        cancelled = asyncio.ensure_future(shop.ship.await_end("o-1", "60s"))
        for name in names:
            await shop.ship.alook(name)
        cancelled.cancel()
        runtime = shop.app.runtime()
        worker = make_worker(
            runtime, shop.app.jobs, shop.app.registry.job_of, settings=WorkerSettings(until_empty=True)
        )
        await asyncio.to_thread(worker.run)
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        return list(await asyncio.gather(*tasks))

    found = asyncio.run(serve())
    assert [(one.key, one.state, one.result) for one in found] == [(name, "done", "shipped") for name in names]
    shop.app.close()


# -- guarded calls -----------------------------------------------------------------------------------------------------


class Till:
    """Guarded functions and a method, on one store."""

    def __init__(self, path: Path) -> None:
        store = onefold.store(f"sqlite:///{path / 'records.db'}")
        seen: list[str] = []
        self.seen = seen

        @onefold.once(key="{order}", store=store, name="charge", tenant="{shop}", on_unknown="hold")
        def charge(order: str, shop: str = "south") -> Parcel:
            seen.append(onefold.observe.look(charge, order, tenant=shop).state)
            if order == "bad":
                raise onefold.OutcomeUnknown("charged?")
            return Parcel(order)

        @onefold.once(key="{order}", store=store, name="refund")
        async def refund(order: str) -> Parcel:
            seen.append((await onefold.observe.alook(refund, order)).state)
            return Parcel(order)

        self.charge, self.refund = charge, refund


def test_a_guarded_call(tmp_path: Path) -> None:
    till = Till(tmp_path)
    assert onefold.observe.look(till.charge, "o-1", tenant="south").state == "absent"
    till.charge("o-1")
    known = onefold.observe.look(till.charge, "o-1", tenant="south")
    assert (known.job, known.state, known.result, known.attempts) == ("charge", "done", Parcel("o-1"), 1)
    assert known.expires_at_ms is not None
    assert asyncio.run(onefold.observe.alook(till.charge, "o-1", tenant="south")) == known
    till.charge("o-2", "north")
    assert onefold.observe.look(till.charge, "o-2", tenant="south").state == "absent"
    assert onefold.observe.look(till.charge, "o-2", tenant="north").state == "done"
    with pytest.raises(onefold.OutcomeUnknown):
        till.charge("bad")
    held = onefold.observe.look(till.charge, "bad", tenant="south")
    assert (held.state, held.why, held.result) == ("held", "OutcomeUnknown: charged?", None)
    asyncio.run(till.refund("o-1"))
    assert onefold.observe.look(till.refund, "o-1").result == Parcel("o-1")
    assert till.seen == ["running"] * 4


def test_a_function_that_is_not_guarded() -> None:
    with pytest.raises(errors.UsageError, match="is not guarded by") as caught:
        onefold.observe.look(len, "o-1")
    assert "job.look" in caught.value.todo
