"""A look is sent with every run, whoever begins it: the scheduler, a tick from elsewhere, a dispatcher."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import structs

import onefold
from onefold.contracts.store import RecordKey
from onefold.engines.sqlite.queue import CAPABILITIES, SqliteQueue
from onefold.reconcile import findings
from onefold.reconcile import reconciler as reconciling
from onefold.runner import runs
from onefold.runtime.events import Sinks
from onefold.runtime.outgoing import Outgoing
from onefold.schedules.schedule import Schedule, Tick
from onefold.schedules.scheduler import Scheduler
from onefold.testing.inline import World, inline

START_MS = 1_780_275_600_000  # 2026-06-01T01:00:00Z
DUE_MS = 1_780_279_200_000  # 2026-06-01T02:00:00Z, which is 03:00 in London
RUN = "billing/2026-06-01T02:00:00Z"
MONTHLY = "cron(0 3 1 * ? *)"


@dataclass
class Bill:
    customer: str


class Shop:
    """An app whose schedule `billing` is of a kind."""

    def __init__(self, kind: str) -> None:
        self.app = onefold.App("shop")
        self.done: list[str] = []
        self.seen: list[reconciling.Reconciliation] = []
        bills = self.app.queue("bills")
        done = self.done

        @self.app.job(bills, key="{customer}", name="charge")
        def charge(bill: Bill) -> None:
            done.append(bill.customer)

        def dispatch(tick: Tick) -> Iterator[Outgoing]:
            for customer in ("a", "b", "c"):
                yield charge.message(Bill(customer))

        async def dispatch_async(tick: Tick) -> AsyncIterator[Outgoing]:
            for customer in ("a", "b", "c"):
                yield charge.message(Bill(customer))

        def plain(tick: Tick) -> None:
            done.append(tick.run)

        async def plain_async(tick: Tick) -> None:
            done.append(tick.run)

        functions: dict[str, Callable[..., Any]] = {
            "dispatcher": dispatch, "async dispatcher": dispatch_async, "plain": plain, "coroutine": plain_async,
        }  # fmt: skip
        self.billing: Schedule = self.app.schedule(MONTHLY, tz="Europe/London", name="billing")(functions[kind])

        @self.app.reconcile(self.billing, after="30m")
        def look(check: reconciling.Reconciliation) -> onefold.reconcile.Totals:
            self.seen.append(check)
            return onefold.reconcile.Totals(expected=check.dispatched, found=len(done))


KINDS = [("dispatcher", 3), ("async dispatcher", 3), ("plain", 1), ("coroutine", 1)]


def outcome(world: World) -> findings.ReconcileOutcome:
    found = findings.read(world.app.runtime().engine.state, RUN)
    assert found is not None
    return found


@pytest.mark.parametrize(("kind", "count"), KINDS)
def test_the_scheduler_sends_a_look_with_the_tick(kind: str, count: int) -> None:
    shop = Shop(kind)
    with inline(shop.app, start_ms=START_MS) as world:
        scheduler = Scheduler(shop.app.runtime(), Sinks())
        assert scheduler.catch_up() == 0
        world.clock.advance(DUE_MS - START_MS)
        assert scheduler.catch_up() == 1
        assert world.depth("onefold-reconcile").delayed == 1
        world.run()
        assert (len(shop.done), shop.seen) == (count, [])
        world.clock.advance(30 * 60_000)
        world.run()
        (seen,) = shop.seen
        assert (seen.run, seen.dispatched, seen.done) == (RUN, count, count)
        assert f"{seen.local:%H:%M %Z}" == "03:00 BST"
        assert (outcome(world).verdict, outcome(world).name) == ("agrees", "reconcile-billing")


@pytest.mark.parametrize(("kind", "count"), KINDS)
def test_a_tick_from_elsewhere_begins_its_run_with_a_look(kind: str, count: int) -> None:
    shop = Shop(kind)
    with inline(shop.app, start_ms=DUE_MS) as world:
        shop.app.runtime().send([shop.billing.outgoing(DUE_MS)])  # as EventBridge Scheduler does
        shop.app.runtime().send([shop.billing.outgoing(DUE_MS)])  # and may do twice
        world.run()
        assert world.depth("onefold-reconcile").delayed == 1
        standing = runs.read(world.app.runtime().engine.state, RUN)
        assert standing is not None
        assert (standing.run.expected, standing.run.started_at_ms) == (count, DUE_MS)
        world.clock.advance(30 * 60_000)
        world.run()
        assert [one.dispatched for one in shop.seen] == [count]
        assert outcome(world).verdict == "agrees"


def test_a_plain_tick_that_failed_is_the_operation_that_is_not_done() -> None:
    shop = Shop("plain")
    app = shop.app
    broken = app.schedule(MONTHLY, name="broken", owner="finance")(_fails)
    app.reconcile(broken, after="1m", name="look-at-broken")
    with inline(app, start_ms=DUE_MS) as world:
        app.runtime().send([broken.outgoing(DUE_MS)])
        world.run()
        world.clock.advance(60_000)
        world.run()
        found = findings.read(world.app.runtime().engine.state, "broken/2026-06-01T02:00:00Z")
        assert found is not None
        assert (found.verdict, found.dead, found.dispatched) == ("disagrees", 1, 1)
        (example,) = found.examples
        assert (example.job, example.owner, example.queue) == ("broken", "finance", "shop-schedules-dead")


def _fails(tick: Tick) -> None:
    raise onefold.PermanentError("no ledger for this month")


def test_a_look_does_not_depend_on_the_tick_being_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop("dispatcher")
    with inline(shop.app, start_ms=START_MS) as world:
        scheduler = Scheduler(shop.app.runtime(), Sinks())
        scheduler.catch_up()
        world.clock.advance(DUE_MS - START_MS)
        scheduler.catch_up()
        queues = world.app.runtime().engine.queues
        queues.remove([one.message_id for one in queues.peek("shop-schedules")])
        world.clock.advance(30 * 60_000)
        world.run()
        found = outcome(world)
        assert found.findings == ("It is still being dispatched: 0 so far.",)
        assert found.verdict == "late"
        world.run_for(4 * 30 * 60_000, 30 * 60_000)
        assert (outcome(world).look, outcome(world).verdict) == (4, "late")


@pytest.mark.parametrize("after_ms", [60_000, 15 * 60_000, 50 * 60_000])
def test_where_a_queue_cannot_wait_so_long_a_look_sends_itself_on(
    after_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteQueue, "capabilities", structs.replace(CAPABILITIES, run_at=False))
    shop = Shop("dispatcher")
    looks: list[int] = []
    shop.app.reconcile(shop.billing, after=f"{after_ms}ms", name="again")(
        lambda check: looks.append(world.clock.now_ms()) or onefold.reconcile.Totals(expected=0, found=0)
    )
    with inline(shop.app, start_ms=DUE_MS) as world:
        shop.app.runtime().send([shop.billing.outgoing(DUE_MS)])
        shop.app.runtime().send([shop.billing.outgoing(DUE_MS)])
        world.run_for(2 * 60 * 60_000, 60_000)
        assert looks == [DUE_MS + after_ms]
        hops = [record for record in world.app.runtime().engine.records.scan(limit=100) if record.key.job == "again"]
        assert len(hops) == 1 + (after_ms - 1) // (15 * 60_000)
        assert {record.status for record in hops} == {"completed"}


def test_a_run_does_not_stand_before_its_look_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop("dispatcher")
    with inline(shop.app, start_ms=DUE_MS) as world:
        state = world.app.runtime().engine.state
        run = runs.of_tick(RUN, "billing", DUE_MS, DUE_MS, dispatches=True)
        runtime = shop.app.runtime()
        send = runtime.send
        monkeypatch.setattr(runtime, "send", _is_away)
        with pytest.raises(onefold.errors.StorageBusy):
            runs.begin_followed(runtime, run)
        assert runs.read(state, RUN) is None
        monkeypatch.setattr(runtime, "send", send)
        monkeypatch.setattr(runs, "begin", _is_away)  # killed between the two
        with pytest.raises(onefold.errors.StorageBusy):
            runs.begin_followed(runtime, run)
        monkeypatch.undo()
        runs.begin_followed(runtime, run)
        runs.begin_followed(runtime, run)
        assert world.depth("onefold-reconcile").delayed == 2  # one for each try that sent it, under one key
        world.clock.advance(30 * 60_000)
        world.run()
        assert len(shop.seen) == 1


def _is_away(*_: Any) -> None:
    raise onefold.errors.StorageBusy("The disk is full.", todo="Make room.")


def test_a_reconciliation_on_a_fifo_queue_is_refused() -> None:
    shop = Shop("plain")
    lines = shop.app.queue("lines", fifo=True)
    with pytest.raises(onefold.errors.UsageError, match=r"is on the FIFO queue lines\.fifo"):
        shop.app.reconcile("other", queue=lines)
    assert "reconcile-other" not in shop.app.reconcilers
    assert RecordKey("", "reconcile-other", RUN).job not in shop.app.jobs
