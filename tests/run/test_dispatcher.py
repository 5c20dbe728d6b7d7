"""Dispatchers: batches, checkpoints, what happens when the generator raises, changes its mind, or yields something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

import onefold
from onefold import errors
from onefold.contracts.state import Change
from onefold.contracts.verbs import State
from onefold.runner import dispatcher, runs
from onefold.runner.dispatcher import Dispatch, as_handler
from onefold.testing import World, inline
from tests.run.bench import opened
from tests.run.billing import NOMINAL_MS, RUN, Billing, Tick, customers, of_run


@pytest.fixture(params=["function", "task"])
def billing(request: pytest.FixtureRequest) -> Billing:
    return Billing(tasks=request.param == "task")


@pytest.fixture
def world(billing: Billing) -> Iterator[World]:
    with inline(billing.app) as opened:
        yield opened


def test_everything_that_is_yielded_is_done_once_and_the_run_says_so(billing: Billing, world: World) -> None:
    billing.customers = customers(35)
    billing.tick.send(Tick())
    world.run()
    assert billing.charged == customers(35)
    run = billing.run()
    assert (run.kind, run.title, run.nominal_at_ms, run.owner) == ("dispatch", "billing", NOMINAL_MS, "money")
    assert (run.expected, run.dispatched, run.failure) == (35, 35, None)
    assert billing.counts() == runs.Counts(expected=35, done=35)


def test_messages_carry_the_run_and_each_has_a_row(billing: Billing, world: World) -> None:
    billing.customers = customers(12)
    seen: list[list[str | None]] = []
    billing.before = lambda customer: seen.append(billing.waiting())
    billing.tick.send(Tick())
    delivered = world.app.runtime().engine.queues.open("ticks").receive(1)
    world._perform(world._runner.begin(delivered))
    assert [len(waiting) for waiting in seen] == [0] * 10 + [10] * 2  # enqueued while it yields, ten at a time
    messages = billing.runtime.engine.queues.peek("bills", limit=100)
    assert [message.key for message in messages] == billing.told("dispatched") == customers(12)
    assert {of_run(message) for message in messages} == {RUN}
    assert billing.counts() == runs.Counts(expected=12, missing=12)


def test_nothing_to_dispatch_is_a_run_with_nothing_expected(billing: Billing, world: World) -> None:
    billing.tick.send(Tick())
    world.run()
    assert billing.run().expected == 0
    assert runs.is_over(billing.run(), billing.counts())


def test_a_run_that_was_dispatched_is_not_dispatched_again(billing: Billing, world: World) -> None:
    billing.customers = customers(5)
    for _ in range(2):
        billing.tick.send(Tick())
    world.run()
    engine = billing.runtime.engine
    again = Dispatch(billing.app.runtime(), runs.of_tick(RUN, "billing", None, 0, dispatches=True))
    assert again.over
    assert billing.yielded == billing.charged == customers(5)
    assert engine.ledger.tally(RUN) == {"completed": 5}


def test_a_key_that_is_yielded_twice_is_one_operation(billing: Billing, world: World) -> None:
    billing.customers = [*customers(3), *customers(2)]
    billing.tick.send(Tick())
    world.run()
    assert (billing.run().dispatched, billing.run().expected) == (5, 3)
    assert billing.charged == customers(3)
    assert billing.counts() == runs.Counts(expected=3, done=3)


def test_a_generator_that_raises_after_10000_items_goes_on_where_it_stopped() -> None:
    billing = Billing(batch=500)
    billing.customers = customers(10_700)
    failures = [ConnectionError("the database went away")]

    def fail_once(customer: str) -> None:
        if customer == "c-10200" and failures:
            raise failures.pop()

    billing.before = fail_once
    with inline(billing.app) as world:
        billing.tick.send(Tick())
        delivered = world.app.runtime().engine.queues.open("ticks").receive(1)
        world._perform(world._runner.begin(delivered))
        run = billing.run()
        assert (run.dispatched, run.expected) == (10_000, None)
        assert run.failure == "ConnectionError: the database went away"
        assert billing.runtime.engine.queues.depth("bills").visible == 10_000  # what was sent stays
        world.clock.advance(1_000)
        delivered = world.app.runtime().engine.queues.open("ticks").receive(1)
        world._perform(world._runner.begin(delivered))
        run = billing.run()
        assert (run.dispatched, run.expected, run.failure) == (10_700, 10_700, None)
        assert billing.told("dispatched") == customers(10_700)  # none twice, none missing, in order
        assert billing.runtime.engine.queues.depth("bills").visible == 10_700


def test_a_dispatch_that_fails_for_good_leaves_its_run_open_and_says_why(billing: Billing, world: World) -> None:
    billing.customers = customers(15)
    billing.before = lambda customer: (_ for _ in ()).throw(ValueError("no price")) if customer == "c-00012" else None
    billing.tick.send(Tick())
    world.run_for(20_000)
    assert len(world.app.runtime().engine.queues.peek("ticks-dead")) == 1
    run = billing.run()
    assert (run.dispatched, run.expected, run.failure) == (10, None, "ValueError: no price")
    assert billing.charged == customers(10)  # what was sent is done meanwhile
    assert runs.open_names(billing.runtime.engine.state) == [RUN]
    assert billing.closed == []


def test_a_tick_whose_run_cannot_be_read_is_buried_all_the_same() -> None:
    app, name = onefold.App("billing"), "billing/2026-06-01T02:00:00Z"
    job = app.job(app.queue("bills"), key="{customer}", name="charge")(lambda bill: None)

    @app.schedule("cron(0 2 1 * ? *)", name="billing", job_retry=onefold.Retry(attempts=2, base="1s", jitter="none"))
    def billing(tick: onefold.Tick) -> Iterator[Any]:
        yield job.message({"customer": "c-1"})

    of_a_newer_version = f'{{"name":"{name}","title":"billing","kind":"stream","started_at_ms":0}}'.encode()
    with inline(app) as world:
        state = app.runtime().engine.state
        assert state.put([Change(runs.state_name(name), of_a_newer_version, 0)]) == [True]
        app.runtime().send([app.schedules["billing"].outgoing_at("2026-06-01T02:00:00Z")])
        world.run_for(60_000)
        assert [event.name for event in world.events][-1] == "dead-letter"
        (found,) = state.get([runs.state_name(name)])
        assert found is not None
        assert found.value == of_a_newer_version


class Killed(KeyboardInterrupt):
    """The process ends in the middle of a dispatch."""


@pytest.mark.parametrize("one_transaction", [True, False])
def test_a_dispatch_that_kills_its_workers_is_seen_to_have_stopped_and_goes_on_after_a_redrive(
    one_transaction: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    noting, busy = runs.stopped, [errors.StorageBusy("once")]

    def stopped(state: State, name: str, why: str) -> tuple[Change, ...]:
        if busy:
            raise busy.pop()
        return noting(state, name, why)

    monkeypatch.setattr(runs, "stopped", stopped)
    app = onefold.App("unlucky")
    bills = app.queue("bills")
    charged: list[str] = []
    deaths = [Killed(), Killed()]

    @app.job(bills, key="{customer}")
    def charge(bill: dict[str, str]) -> None:
        charged.append(bill["customer"])

    @app.schedule("cron(0 2 1 * ? *)", job_retry=onefold.Retry(crashes=2))
    def billing(tick: onefold.Tick) -> Iterator[Any]:
        yield charge.message({"customer": "a"})
        if deaths:
            raise deaths.pop()

    with opened(app) as bench:
        engine = bench.runtime.engine
        app.runtime().send([app.schedules["billing"].outgoing_at("2026-06-01T02:00:00Z")])
        for _ in range(2):
            with pytest.raises(Killed):
                bench.process(one_transaction=one_transaction).run()
            bench.clock.advance(30_000)
        last = bench.process(one_transaction=one_transaction)
        last.run()
        assert last.names()[-2:] == ["takeover", "quarantine"]
        run = runs.read(engine.state, RUN)
        assert run is not None
        assert (run.run.expected, run.run.failure) == (None, "WorkerDied: 2 runs ended with their process.")

        (letter,) = bench.messages("unlucky-schedules-dead")
        engine.queues.move([(letter.message_id, "unlucky-schedules", None)])
        last.run()
        run = runs.read(engine.state, RUN)
        assert run is not None
        assert (run.run.expected, run.run.failure) == (1, None)
        assert charged == ["a"]


def test_another_payload_under_the_key_of_a_tick_does_not_stop_its_run() -> None:
    app = onefold.App("twice")

    @app.schedule("cron(0 2 1 * ? *)")
    def billing(tick: onefold.Tick) -> Iterator[Any]:
        raise onefold.TransientError("away")
        yield

    with opened(app) as bench:
        tick = app.schedules["billing"].outgoing_at("2026-06-01T02:00:00Z")
        body = tick.entry.body.replace("}", ',"more":1}')
        process = bench.process()
        app.runtime().send([tick])
        process.run()
        app.runtime().send([replace(tick, entry=replace(tick.entry, body=body))])
        process.run()
        assert process.names() == ["retry", "conflict"]
        standing = runs.read(bench.runtime.engine.state, RUN)
        assert standing is not None
        assert standing.run.failure == "TransientError: away"


@pytest.mark.parametrize("change", ["order", "fewer", "other"])
def test_a_generator_that_yields_others_than_before_sends_all_again(
    billing: Billing, world: World, change: str
) -> None:
    billing.customers = customers(25)
    failures = [ConnectionError("away")]

    def fail_once(customer: str) -> None:
        if customer == "c-00022" and failures:
            raise failures.pop()

    billing.before = fail_once
    billing.tick.send(Tick())
    world.run()
    assert billing.run().dispatched == 20
    if change == "order":
        billing.customers.reverse()
    elif change == "fewer":
        billing.customers = customers(4)
    else:
        billing.customers[3] = "c-new"
    world.clock.advance(1_000)
    world.run()
    assert billing.told("dispatch-restarted") == [None]
    assert [event.detail for event in world.events if event.name == "dispatch-restarted"] == [{"dispatched": 20}]
    known = {*customers(20), *billing.customers}  # what was sent before the change stays part of the run
    assert sorted(billing.charged) == sorted(known)  # each once, although many were sent twice
    assert billing.run().expected == len(known)
    assert billing.counts() == runs.Counts(expected=len(known), done=len(known))


def test_only_messages_can_be_dispatched(billing: Billing, world: World) -> None:
    billing.charge.message = lambda payload: payload  # type: ignore[method-assign, assignment]
    billing.customers = customers(1)
    billing.tick.send(Tick())
    world.run_for(20_000)
    failure = billing.run().failure
    assert failure is not None
    assert "yielded dict" in failure
    assert "job.message(payload)" in failure


def test_a_message_that_its_queue_refuses_stops_the_dispatch_without_losing_what_was_sent(
    billing: Billing, world: World
) -> None:
    billing.customers = [*customers(10), "x" * 1_000, "y" * 1_048_577]
    billing.tick.send(Tick())
    world.run_for(20_000)
    run = billing.run()
    assert (run.dispatched, run.expected) == (10, None)
    assert run.failure is not None
    assert run.failure.startswith("PayloadError: ")
    assert billing.charged == customers(10)
    assert billing.told("dispatched") == customers(10)  # nothing of the batch that was refused


def test_big_messages_make_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "BATCH_BYTES", 1_000)
    billing = Billing(batch=500)
    with inline(billing.app):
        dispatch = Dispatch(billing.app.runtime(), runs.of_tick(RUN, "billing", None, 0, dispatches=True), batch=500)
        due = [dispatch.add(billing.charge.message({"customer": "x" * 300 + str(number)})) for number in range(4)]
        assert due == [False, False, False, True]


def test_a_slow_generator_is_checkpointed_every_second() -> None:
    billing = Billing(batch=500)
    with inline(billing.app) as world:
        dispatch = Dispatch(billing.app.runtime(), runs.of_tick(RUN, "billing", None, 0, dispatches=True), batch=500)
        due = []
        for number in range(5):
            world.clock.advance(300)
            due.append(dispatch.add(billing.charge.message({"customer": str(number)})))
            if due[-1]:
                dispatch.flush()
        assert due == [False, False, False, True, False]
        assert billing.run().dispatched == 4


def test_of_two_processes_that_dispatch_one_run_one_stops(billing: Billing, world: World) -> None:
    begun = runs.of_tick(RUN, "billing", NOMINAL_MS, 0, dispatches=True)
    first, second = Dispatch(billing.app.runtime(), begun), Dispatch(billing.app.runtime(), begun)
    for number, one in enumerate((first, second)):
        one.add(billing.charge.message({"customer": f"c-{number}"}))
    first.flush()
    with pytest.raises(errors.LeaseLost, match="another process"):
        second.flush()
    assert billing.waiting() == ["c-0"]  # its batch was rolled back with its checkpoint
    assert billing.told("dispatched") == ["c-0"]


def test_a_dispatch_that_has_run_out_of_time_stops_between_batches(billing: Billing, world: World) -> None:
    billing.customers = customers(25)

    def lose(customer: str) -> None:
        if customer == "c-00012":
            world.clock.advance(6 * 60_000)  # longer than the tick's timeout

    billing.before = lose
    billing.tick.send(Tick())
    delivered = world.app.runtime().engine.queues.open("ticks").receive(1)
    world._perform(world._runner.begin(delivered))
    run = billing.run()
    assert run.dispatched == 10
    assert run.failure is not None
    assert "timeout" in run.failure


def test_a_fifo_queue_gets_its_messages_in_the_order_of_the_generator() -> None:
    billing = Billing(fifo=True)
    billing.customers = customers(25)
    with inline(billing.app) as world:
        billing.tick.send(Tick())
        world.run()
        assert sorted(billing.charged) == customers(25)
        assert billing.counts().done == 25


def test_a_unique_job_is_dispatched_as_any_other() -> None:
    app = onefold.App("unique")
    done: list[str] = []
    ticks, bills = app.queue("ticks"), app.queue("bills")

    @app.job(bills, key="{customer}", unique=True)
    def charge(bill: dict[str, str]) -> None:
        done.append(bill["customer"])

    failures = [ConnectionError("away")]

    def dispatch(tick: Tick) -> Iterator[Any]:
        yield charge.message({"customer": "a"})
        if failures:
            raise failures.pop()
        yield charge.message({"customer": "b"})

    app.job(ticks, key="{run}", name="billing")(as_handler(dispatch, app._runtime, batch=1))
    with inline(app) as world:
        app.jobs["billing"].send(Tick())
        world.run_for(60_000)
    assert done == ["a", "b"]


async def coroutine(tick: Tick) -> None: ...


@pytest.mark.parametrize("function", [lambda tick: None, lambda: (yield), 7, coroutine])
def test_what_is_no_generator_of_a_tick_is_no_dispatcher(function: Any) -> None:
    with pytest.raises(errors.UsageError, match="cannot be a dispatcher"):
        as_handler(function, onefold.App("none")._runtime)
