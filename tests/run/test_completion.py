"""Joins: a job that starts once when a run is complete, whoever settles its last operation, and however many look."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold import errors, limits
from onefold.contracts.ledger import Row
from onefold.contracts.state import Change
from onefold.contracts.store import RecordKey
from onefold.runner import completion, runs
from onefold.runner.completion import Closer, CompleteRun
from onefold.runner.dispatcher import Dispatch
from onefold.runner.late_closer import LateCloser
from onefold.runner.runs import RunState
from onefold.testing import World, inline
from tests.run.billing import NOMINAL_MS, RUN, Billing, Tick, customers
from tests.run.mapped import REGION, mapped


@pytest.fixture
def billing() -> Billing:
    return Billing()


@pytest.fixture
def world(billing: Billing) -> Iterator[World]:
    with inline(billing.app) as opened:
        yield opened


def closer_of(billing: Billing) -> Closer:
    return Closer(billing.runtime.engine, billing.app.jobs, billing.runtime.clock)


def dispatched(billing: Billing, count: int) -> None:
    """A run of so many operations, all sent and none begun."""
    dispatch = Dispatch(billing.app.runtime(), runs.of_tick(RUN, "billing", NOMINAL_MS, 1, dispatches=True))
    for customer in customers(count):
        dispatch.add(billing.charge.message({"customer": customer}))
    dispatch.end()


def test_it_starts_once_when_everything_is_done(billing: Billing, world: World) -> None:
    billing.customers = customers(25)
    billing.tick.send(Tick())
    world.run()
    begun = billing.run()
    assert billing.closed == [
        CompleteRun(
            run=RUN, schedule="billing", nominal_at_ms=NOMINAL_MS, started_at_ms=begun.started_at_ms, expected=25
        )
    ]
    assert begun.ended_at_ms == world.clock.now_ms()
    assert runs.open_names(billing.runtime.engine.state) == []


def test_a_run_with_nothing_in_it_starts_it_too(billing: Billing, world: World) -> None:
    billing.tick.send(Tick())
    world.run()
    assert [one.expected for one in billing.closed] == [0]


def test_what_is_dead_or_held_does_not_hold_it_up_but_a_retry_does(billing: Billing, world: World) -> None:
    billing.customers = customers(4)
    billing.ill = {
        "c-00000": onefold.PermanentError("no card"),
        "c-00001": onefold.OutcomeUnknown("the bank is silent"),
        "c-00002": onefold.TransientError("later"),
    }
    billing.tick.send(Tick())
    world.run()
    assert billing.counts() == runs.Counts(expected=4, done=1, failed=1, dead=1, unknown=1)
    assert billing.closed == []
    del billing.ill["c-00002"]
    world.run_for(1_000)
    assert billing.counts() == runs.Counts(expected=4, done=2, dead=1, unknown=1)
    assert len(billing.closed) == 1


def test_it_does_not_start_while_the_generator_still_yields(billing: Billing, world: World) -> None:
    dispatch = Dispatch(billing.app.runtime(), runs.of_tick(RUN, "billing", NOMINAL_MS, 1, dispatches=True))
    dispatch.add(billing.charge.message({"customer": "a"}))
    dispatch.flush()
    world.run_for(completion.ALL_MS)
    assert billing.charged == ["a"]
    assert billing.closed == []
    dispatch.add(billing.charge.message({"customer": "b"}))
    dispatch.end()
    world.run()
    assert [one.expected for one in billing.closed] == [2]


def test_it_starts_at_once_when_everything_was_done_before_the_dispatch_ended(billing: Billing, world: World) -> None:
    dispatch = Dispatch(billing.app.runtime(), runs.of_tick(RUN, "billing", NOMINAL_MS, 1, dispatches=True))
    dispatch.add(billing.charge.message({"customer": "a"}))
    dispatch.flush()
    world.run()
    assert billing.charged == ["a"]
    dispatch.end()  # nothing of it is settled from now on
    world.run()
    assert [one.expected for one in billing.closed] == [1]


def test_a_process_that_is_about_to_end_looks_at_all_open_runs(billing: Billing, world: World) -> None:
    dispatched(billing, 0)
    other = closer_of(billing)
    assert other.check() == 0
    assert other.check(turns=False) == 1


def test_a_function_closes_runs_as_a_worker_does(billing: Billing, world: World) -> None:
    dispatched(billing, 0)
    late = LateCloser(billing.runtime.engine, billing.app.jobs, billing.runtime.clock)
    assert not late.in_use
    world.clock.advance(completion.ALL_MS)
    late.touch("another")
    assert late.in_use
    assert late.check() == 1  # the container is older than its interest in runs: it looks at all of them
    assert billing.run().ended_at_ms == world.clock.now_ms()


def test_a_dispatch_that_stopped_is_left_alone_until_it_goes_on(
    billing: Billing, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.begin(billing.runtime.engine.state, runs.of_tick(RUN, "billing", NOMINAL_MS, 1, dispatches=True))
    closer, reads = closer_of(billing), 0
    read = runs.read

    def counted(*asked: Any) -> Any:
        nonlocal reads
        reads += 1
        return read(*asked)

    monkeypatch.setattr(completion.runs, "read", counted)
    closer.touch(RUN)
    for _ in range(3):
        assert closer.check() == 0
    assert reads == 3  # it may end at any moment
    runs.note(billing.runtime.engine.state, RUN, failure="away")
    before = reads
    closer.check()
    assert reads == before + 1
    closer.check()
    assert reads == before + 1


def test_a_message_that_comes_after_the_end_starts_nothing_again(billing: Billing, world: World) -> None:
    billing.customers = customers(2)
    billing.tick.send(Tick())
    world.run()
    straggler = billing.charge.message({"customer": "c-00000"})
    billing.app.runtime().send([straggler])
    billing.tick.send(Tick())
    world.run_for(completion.ALL_MS)
    assert len(billing.closed) == 1
    assert billing.charged == customers(2)


def test_a_run_that_is_gone_on_with_after_its_end_starts_nothing_again(billing: Billing, world: World) -> None:
    dispatched(billing, 1)
    world.run()
    assert len(billing.closed) == 1
    runs.note(billing.runtime.engine.state, RUN, expected=None, ended_at_ms=None)
    dispatch = Dispatch(billing.app.runtime(), runs.of_tick(RUN, "billing", NOMINAL_MS, 1, dispatches=True))
    dispatch.add(billing.charge.message({"customer": "c-00000"}))
    dispatch.add(billing.charge.message({"customer": "one more"}))
    dispatch.end()
    world.run()
    assert billing.charged == ["c-00000", "one more"]
    assert billing.run().ended_at_ms is not None
    assert len(billing.closed) == 1


def test_of_many_that_look_at_once_one_closes_and_one_message_is_sent(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/billing.db"
    billing = Billing(url)
    dispatched(billing, 3)
    engine = billing.runtime.engine
    rows = [Row(at_ms=2, event="completed", key=key, run=RUN) for key in map(_key, customers(3))]
    engine.ledger.append(rows)
    apps = [Billing(url) for _ in range(6)]
    closers = [closer_of(one) for one in apps]
    closed: list[bool] = []
    start = threading.Barrier(len(closers))

    def close(closer: Closer) -> None:
        start.wait(60)
        closed.append(closer.close(RUN))

    threads = [threading.Thread(target=close, args=(closer,)) for closer in closers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(closed) == [False] * 5 + [True]
    assert engine.queues.depth("reports").visible == 1
    for one in (billing, *apps):
        one.app.close()


def _key(customer: str) -> RecordKey:
    return RecordKey("", "charge", customer)


def test_who_closes_second_rolls_its_message_back(
    billing: Billing, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched(billing, 0)
    first, second = closer_of(billing), closer_of(billing)
    start = second._start

    def late(run: RunState) -> None:
        monkeypatch.setattr(second, "_start", start)
        runs.note(billing.runtime.engine.state, RUN, ended_at_ms=7)  # as if `first` had come in between
        start(run)

    monkeypatch.setattr(second, "_start", late)
    assert not second.close(RUN)
    assert billing.runtime.engine.queues.depth("reports").visible == 0
    assert first.close(RUN)


def test_a_process_that_dies_before_it_looks_leaves_the_run_to_the_others(billing: Billing, world: World) -> None:
    dispatched(billing, 2)
    billing.runtime.engine.ledger.append(
        [Row(at_ms=2, event="completed", key=_key(one), run=RUN) for one in customers(2)]
    )
    other = closer_of(billing)  # it has settled nothing of this run
    assert other.check() == 0
    world.clock.advance(completion.ALL_MS)
    assert other.check() == 1
    assert other.check() == 0


def test_a_tally_that_takes_long_is_taken_in_turns(
    billing: Billing, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched(billing, 2)
    tallies: list[str] = []
    count = runs.count

    def slow(ledger: object, run: RunState) -> runs.Counts:
        tallies.append(run.name)
        world.clock.advance(400)
        return count(billing.runtime.engine.ledger, run)

    monkeypatch.setattr(completion.runs, "count", slow)
    first, second = closer_of(billing), closer_of(billing)
    for one in (first, second):
        one.touch(RUN)
    assert (first.check(), second.check()) == (0, 0)
    assert len(tallies) == 2  # nobody knew yet how long it takes
    for one in (first, second):
        one.touch(RUN)
    first.check()
    before = len(tallies)
    second.check()
    assert len(tallies) == before  # 10 times 400 ms are not over
    second.check(turns=False)
    assert len(tallies) == before + 1  # about to end
    world.clock.advance(4_000)
    first.touch(RUN)
    first.check()
    assert len(tallies) == before + 2


def test_who_loses_the_turn_looks_again(billing: Billing, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatched(billing, 0)
    closer, state = closer_of(billing), billing.runtime.engine.state
    closer.touch(RUN)
    put, lost = state.put, [True]

    def slower(changes: list[Change]) -> list[bool]:
        if lost and changes[0].name == runs.OPEN_PREFIX + RUN:
            lost.clear()
            return [False]
        return put(changes)

    monkeypatch.setattr(state, "put", slower)
    assert closer.check() == 0
    assert closer.check() == 1


def test_a_failing_engine_keeps_what_was_touched(
    billing: Billing, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched(billing, 0)
    closer, ledger = closer_of(billing), billing.runtime.engine.ledger
    closer.touch(RUN)

    def busy(run: str) -> dict[str, int]:
        raise errors.StorageBusy("busy", todo="wait")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "tally", busy)
        with pytest.raises(errors.StorageBusy):
            closer.check()
    assert closer.check() == 1


def test_a_list_entry_that_outlived_its_run_is_removed(billing: Billing, world: World) -> None:
    dispatched(billing, 0)
    closer, state = closer_of(billing), billing.runtime.engine.state
    assert closer.close(RUN)
    state.put([Change(runs.OPEN_PREFIX + RUN, b"{}", 0)])
    closer.touch(RUN)
    assert closer.check() == 0
    assert runs.open_names(state) == []


def test_runs_of_another_app_on_the_same_engine_are_left_to_it(billing: Billing, world: World) -> None:
    dispatched(billing, 0)
    stranger = Closer(billing.runtime.engine, {}, billing.runtime.clock)
    stranger.touch(RUN)
    assert stranger.check() == 0
    assert closer_of(billing).close(RUN)


def test_old_runs_are_swept_once_an_hour(billing: Billing, world: World) -> None:
    state, clock = billing.runtime.engine.state, billing.runtime.clock
    closer = closer_of(billing)
    runs.begin(state, RunState(name="billing/1", kind="dispatch", title="billing", started_at_ms=clock.now_ms()))
    world.clock.advance(runs.KEPT_MS + 1)
    runs.begin(state, RunState(name="billing/2", kind="dispatch", title="billing", started_at_ms=clock.now_ms()))
    closer.check()
    assert runs.names(state) == ["billing/2"]
    assert runs.open_names(state) == ["billing/2"]
    world.clock.advance(limits.MINUTE_MS)
    assert closer.check() == 0


def test_lambda_closes_the_run_whose_last_message_was_in_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", REGION)
    billing = Billing()
    billing.customers = customers(13)
    with mapped(billing.app) as world:
        billing.tick.send(Tick())
        assert world.poll("ticks") == []  # a dispatcher in a function
        ended = []
        while world.peek("bills"):
            assert world.poll("bills") == []
            ended.append(billing.run().ended_at_ms is not None)
        assert ended == [False] * (len(ended) - 1) + [True]
        assert len(world.peek("reports")) == 1
        assert world.poll("reports") == []
    assert [one.expected for one in billing.closed] == [13]


def test_lambda_looks_at_no_run_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", REGION)
    billing = Billing()

    def check(closer: Closer) -> int:
        raise AssertionError("a call of State for nothing")

    monkeypatch.setattr(Closer, "check", check)
    with mapped(billing.app) as world:
        billing.charge.send({"customer": "a"})
        assert world.poll("bills") == []
    assert billing.charged == ["a"]


# -- declaring -------------------------------------------------------------------------------------------------------


def test_a_schedule_a_job_or_a_name_can_be_waited_for() -> None:
    app = onefold.App("waits")
    queue = app.queue("work")

    @app.schedule("rate(5 minutes)", name="nightly")
    def nightly(tick: object) -> None: ...

    @app.job(queue, key="{id}", name="items")
    def items(item: dict[str, str]) -> None: ...

    for place, what in enumerate((nightly, items, "nightly")):

        @app.job(queue, key="{run}", name=f"after-{place}", when_complete=what)
        def after(run: CompleteRun) -> None: ...

    waits = {job.name: job.starts_after for job in app.jobs.values() if job.name.startswith("after")}
    assert waits == {"after-0": "nightly", "after-1": "items", "after-2": "nightly"}


def test_a_tick_with_a_plain_function_completes_its_run() -> None:
    app = onefold.App("plain")
    told: list[CompleteRun] = []

    @app.schedule("cron(0 3 1 * ? *)", name="nightly")
    def nightly(tick: object) -> None: ...

    @app.job(app.queue("work"), key="{run}", when_complete=nightly)
    def after(run: CompleteRun) -> None:
        told.append(run)

    with inline(app) as world:
        runtime = app.runtime()
        name = "nightly/2026-06-01T03:00:00Z"
        runs.begin(runtime.engine.state, runs.of_tick(name, "nightly", NOMINAL_MS, 1, dispatches=False))
        app.runtime().send([nightly.outgoing_at("2026-06-01T03:00:00Z")])
        world.run()
    assert [one.run for one in told] == [name]


@pytest.mark.parametrize(("waits_for", "said"), [(7, "neither a schedule"), ("", "neither a schedule")])
def test_something_else_cannot_be_waited_for(waits_for: object, said: str) -> None:
    app = onefold.App("waits")
    with pytest.raises(errors.UsageError, match=said):
        app.job(app.queue("work"), key="{run}", when_complete=waits_for)(lambda run: None)  # type: ignore[arg-type]
    assert app.jobs == {}


def test_a_job_that_takes_something_else_cannot_wait() -> None:
    app = onefold.App("waits")

    def after(order: dict[str, str]) -> None: ...

    with pytest.raises(errors.UsageError, match="takes dict"):
        app.job(app.queue("work"), key="{id}", when_complete="nightly")(after)
    assert app.jobs == {}


def test_a_job_that_cannot_be_sent_keeps_no_other_run_and_no_worker() -> None:
    app = onefold.App("shop")
    queue, well = app.queue("after"), [False]

    def key(done: CompleteRun) -> str:
        if not well[0]:
            raise KeyError(done.run)
        return done.run

    @app.schedule("rate(1 hour)", name="nightly")
    def nightly(tick: onefold.Tick) -> None: ...

    @app.job(queue, key=key, when_complete=nightly)
    def after(done: CompleteRun) -> None: ...

    with inline(app) as world:
        world.tick()
        world.run()
        state = app.runtime().engine.state
        (name,) = runs.open_names(state)
        standing = runs.read(state, name)
        assert standing is not None
        assert "What waits for it cannot be sent" in (standing.run.failure or "")
        assert standing.run.ended_at_ms is None
        well[0] = True
        world.clock.advance(completion.ALL_MS)
        world.run()
        standing = runs.read(state, name)
        assert standing is not None
        assert (standing.run.failure, standing.run.joined) == (None, True)
        assert runs.open_names(state) == []
