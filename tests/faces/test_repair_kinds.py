"""What a repair makes messages from: plain ticks, async dispatchers, those that send besides; FIFO queues."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import onefold
from onefold.admin import reconcile
from onefold.admin.session import AdminSession, SessionJobs
from onefold.contracts.store import RecordKey
from onefold.runtime.outgoing import Outgoing
from onefold.schedules.schedule import Tick
from onefold.testing.inline import World, inline

DUE_MS = 1_780_279_200_000  # 2026-06-01T02:00:00Z
RUN = "monthly/2026-06-01T02:00:00Z"


class Shop:
    """An app with a job on a standard queue, one on a FIFO queue, and whatever schedule a test gives it."""

    def __init__(self) -> None:
        self.app = onefold.App("shop")
        self.done: list[str] = []
        self.keys: list[str] = []

        @self.app.job(self.app.queue("bills"), key="{id}", name="charge")
        def charge(bill: dict[str, str]) -> None:
            self.done.append(bill["id"])

        @self.app.job(self.app.queue("lines", fifo=True), key="{id}", group="{id}", name="step")
        def step(bill: dict[str, str]) -> None:
            self.done.append(bill["id"])

        self.charge, self.step = charge, step

    def monthly(self, function: Callable[..., Any]) -> None:
        self.schedule = self.app.schedule("cron(0 2 1 * ? *)", name="monthly")(function)

    def session(self) -> AdminSession:
        jobs = SessionJobs(named=self.app.jobs, of=self.app.registry.job_of, history="brief")
        return AdminSession(self.app.runtime(), actor="person:ada", jobs=jobs)


@pytest.fixture
def shop() -> Shop:
    return Shop()


def lost(shop: Shop, world: World, *keys: str) -> AdminSession:
    """The tick is handled, and then messages with these keys are lost."""
    shop.app.runtime().send([shop.schedule.outgoing(DUE_MS)])
    if shop.schedule.dispatches:
        queue = world._runtime.engine.queues.open("shop-schedules")
        world._perform(world._runner.begin(queue.receive(10)))
    session = shop.session()
    for key in keys:
        session.engine.queues.remove([one.message_id for one in session.engine.queues.find_key(key)])
    world.run()
    return session


def ids(count: int) -> list[dict[str, str]]:
    return [{"id": f"c{number}"} for number in range(count)]


def test_an_async_dispatcher_is_asked_again(shop: Shop) -> None:
    closed: list[bool] = []

    async def dispatch(tick: Tick) -> AsyncIterator[Outgoing]:
        try:
            for one in ids(4):
                yield shop.charge.message(one)
        finally:
            closed.append(True)

    shop.monthly(dispatch)
    with inline(shop.app, start_ms=DUE_MS) as world:
        session = lost(shop, world, "c1")
        work = reconcile.Repair(session, shop.app, RUN)
        assert [one.key for one in work.plan.resend] == ["c1"]
        assert len(closed) == 2  # also where it is left early
        work.send()
        world.run()
        assert sorted(shop.done) == ["c0", "c1", "c2", "c3"]


def test_what_a_dispatcher_sends_besides_is_not_sent_again(shop: Shop) -> None:
    def dispatch(tick: Tick, ctx: onefold.Context) -> Iterator[Outgoing]:
        shop.keys.append(ctx.idempotency_key)
        shop.charge.send({"id": "besides"})
        yield from (shop.charge.message(one) for one in ids(2))

    shop.monthly(dispatch)
    with inline(shop.app, start_ms=DUE_MS) as world:
        session = lost(shop, world, "c0")
        assert reconcile.Repair(session, shop.app, RUN).send().sent == 1
        assert [one.key for one in session.engine.queues.peek("bills")] == ["c0"]
        world.run()
        assert shop.done.count("besides") == 1
        assert len(set(shop.keys)) == 1  # the same key for partners as in the run itself


def test_a_plain_tick_is_its_own_message(shop: Shop) -> None:
    def report(tick: Tick) -> None:
        shop.done.append(tick.run)

    shop.monthly(report)
    with inline(shop.app, start_ms=DUE_MS - 1_000) as world:
        world.clock.advance(1_000)
        world.tick()
        session = shop.session()
        session.engine.queues.remove([one.message_id for one in session.engine.queues.peek("shop-schedules")])
        (found,) = reconcile.reconcile(session, shop.app, RUN)
        assert (found.missing, found.dispatched) == (1, 1)
        work = reconcile.Repair(session, shop.app, RUN)
        assert [(one.job, one.queue) for one in work.plan.resend] == [("monthly", "shop-schedules")]
        assert work.send().whole
        world.run()
        assert shop.done == [RUN]
        assert reconcile.reconcile(session, shop.app, RUN)[0].verdict == "agrees"


def test_a_fifo_queue_takes_it_although_it_remembers_the_first(shop: Shop) -> None:
    def dispatch(tick: Tick) -> Iterator[Outgoing]:
        yield from (shop.step.message(one) for one in ids(3))

    shop.monthly(dispatch)
    with inline(shop.app, start_ms=DUE_MS) as world:
        session = lost(shop, world, "c1")
        reconcile.Repair(session, shop.app, RUN).send()
        assert world.depth("lines.fifo").visible == 1  # within the five minutes of deduplication
        world.run()
        assert sorted(shop.done) == ["c0", "c1", "c2"]


def test_a_run_whose_schedule_is_not_declared_any_more_is_refused(shop: Shop) -> None:
    def dispatch(tick: Tick) -> Iterator[Outgoing]:
        yield shop.charge.message({"id": "c0"})

    shop.monthly(dispatch)
    with inline(shop.app, start_ms=DUE_MS) as world:
        session = lost(shop, world, "c0")
        del shop.app.schedules["monthly"]
        plan = reconcile.Repair(session, shop.app, RUN).plan
        assert [(one.key, one.why) for one in plan.refused] == [
            ("c0", "what made its message is not declared here: the app has no schedule or map monthly")
        ]


def test_a_batch_that_cannot_be_sent_leaves_no_row(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def dispatch(tick: Tick) -> Iterator[Outgoing]:
        yield from (shop.charge.message(one) for one in ids(3))

    shop.monthly(dispatch)
    with inline(shop.app, start_ms=DUE_MS) as world:
        session = lost(shop, world, "c0", "c1", "c2")
        monkeypatch.setattr(reconcile, "_BATCH", 2)
        runtime = shop.app.runtime()
        send, calls = runtime.send, []

        def fails_then(outgoing: Any) -> Any:
            calls.append(len(outgoing))
            if len(calls) == 2:
                raise onefold.errors.StorageBusy("The disk is full.", todo="Make room.")
            return send(outgoing)

        monkeypatch.setattr(runtime, "send", fails_then)
        work = reconcile.Repair(session, shop.app, RUN)
        with pytest.raises(onefold.errors.StorageBusy):
            work.send()
        rows = [session.engine.ledger.of_key(RecordKey("", "charge", key))[-1].event for key in ("c0", "c1", "c2")]
        assert rows == ["resent", "resent", "dispatched"]
        assert [one.key for one in reconcile.Repair(session, shop.app, RUN).plan.resend] == ["c2"]
