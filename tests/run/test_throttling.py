"""Limits of a job over all processes: what is held back waits without an attempt, and what was taken is given back."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import onefold
from onefold import limits
from onefold.clock import HOLD_MS
from onefold.contracts.queue import Delivery
from onefold.contracts.state import Change
from onefold.observe.sinks import LogSink
from onefold.record.rate import CONCURRENCY_MAX
from onefold.runner import worker_setup
from tests.run.bench import Bench, Process, opened

Order = dict[str, str]


def mill(throttle: onefold.Throttle, work: Callable[[Order], object] = lambda order: None) -> onefold.App:
    app = onefold.App("mill")

    @app.job(app.queue("orders"), key="{id}", throttle=throttle)
    def grind(order: Order) -> None:
        work(order)

    return app


def send(app: onefold.App, *orders: Order) -> None:
    app.jobs["grind"].send_many(list(orders))


def one_each(bench: Bench, count: int) -> list[Delivery]:
    return list(bench.backend.open_queue("orders").receive(count))


def held(bench: Bench) -> dict[str, dict[str, int]]:
    """Who has which slots, as every process sees it."""
    state = bench.runtime.engine.state
    names = state.names("slots/")
    return {
        name: msgspec.json.decode(one.value)
        for name, one in zip(names, state.get(names), strict=True)
        if one is not None
    }


def done(process: Process) -> int:
    return process.names().count("completed")


def test_no_more_run_at_once_than_is_allowed_whatever_process_they_are_in() -> None:
    app = mill(onefold.Throttle(concurrency=2))
    with opened(app) as bench:
        send(app, *({"id": str(number)} for number in range(4)))
        one, other = bench.process(), bench.process()
        first = one.begin(one_each(bench, 1))
        second = other.begin(one_each(bench, 3))
        assert [len(first), len(second)] == [1, 1]
        why = [event.detail["why"] for event in other.events if event.name == "released"]
        assert why == ["2 runs are under way, which is the limit"] * 2
        assert sum(map(len, held(bench).values())) == 2
        one.perform(first)
        other.perform(second)
        assert sum(map(len, held(bench).values())) == 0
        bench.clock.advance(1_000)
        one.run()
        assert done(one) + done(other) == 4
        for key in "0123":
            record = bench.record(key, job="grind")
            assert record is not None
            assert record.attempts_total == 1, "who waits uses up no attempt"


def test_a_limit_per_key_holds_each_key_by_itself_and_keeps_nothing_of_those_that_are_over() -> None:
    app = mill(onefold.Throttle(concurrency=1, per="{customer}"))
    with opened(app) as bench:
        send(app, *({"id": f"{customer}{number}", "customer": customer} for customer in "ab" for number in (1, 2)))
        process = bench.process()
        ready = process.begin(one_each(bench, 4))
        assert [run.payload["id"] for run in ready] == ["a1", "b1"]
        gates: Any = process.runner.admission
        assert len(gates._slots) == 2
        process.perform(ready)
        assert len(gates._slots) == 0
        bench.clock.advance(1_000)
        process.run()
        assert done(process) == 4
        assert held(bench) == {}


def test_a_slot_is_free_again_whatever_the_handler_does_to_its_payload() -> None:
    app = onefold.App("mill")
    done_by: list[str] = []

    @app.job(app.queue("q"), key="{id}", throttle=onefold.Throttle(concurrency=1, per="{customer}"))
    def book(order: dict[str, str]) -> None:
        customer = order.pop("customer")
        if order["id"] == "1":
            order["customer"] = customer.upper()
        done_by.append(order["id"])

    with onefold.testing.inline(app) as world:
        book.send_many([{"id": str(number), "customer": "ada"} for number in range(3)])
        world.run_for(3_000)
        assert sorted(done_by) == ["0", "1", "2"]


@pytest.mark.parametrize("throttle", [{"concurrency": 1}, {"rate": "1/s"}])
@pytest.mark.parametrize("letter", ["x", "\u00e9", "\U0001f600"])
def test_a_limit_by_a_long_value_counts_it_as_any_other(throttle: dict[str, Any], letter: str) -> None:
    app = mill(onefold.Throttle(**throttle, per="{customer}"))
    with opened(app) as bench:
        ends = ("", "1", "1", "2")
        send(app, *({"id": str(place), "customer": letter * 400 + end} for place, end in enumerate(ends)))
        process = bench.process()
        ready = process.begin(one_each(bench, 4))
        assert [run.payload["id"] for run in ready] == ["0", "1", "3"]
        names = bench.runtime.engine.state.names("")
        assert all(len(name) <= 300 and len(name.encode()) <= 1_024 for name in names)
        process.perform(ready)
        bench.clock.advance(2_000)
        process.run()
        assert done(process) == 4


def test_as_many_slots_as_may_be_declared_fit_in_one_value() -> None:
    app = mill(onefold.Throttle(concurrency=CONCURRENCY_MAX))
    with opened(app) as bench:
        send(app, *({"id": str(number)} for number in range(CONCURRENCY_MAX + 1)))
        process, running, queue = bench.process(), 0, bench.backend.open_queue("orders")
        while batch := queue.receive(10):
            long = [replace(one, receipt=one.receipt + "r" * 400) for one in batch]  # as those of SQS are
            running += len(process.begin(long))
        assert running == CONCURRENCY_MAX
        assert sum(map(len, held(bench).values())) == CONCURRENCY_MAX


def test_what_limits_by_a_value_have_left_is_swept() -> None:
    app = mill(onefold.Throttle(rate="1/s", concurrency=1, per="{customer}"))
    with opened(app) as bench:
        send(app, *({"id": str(place), "customer": str(place)} for place in range(250)))
        process, state = bench.process(), bench.runtime.engine.state
        process.run()
        assert done(process) == 250
        state.put([Change("slots/grind/old", b"{}", 0), Change("slots/grinder/1", b"{}", 0)])
        assert len(state.names("rate/grind/")) == 250
        sweep = process.runner.admission.sweep
        bench.clock.advance(1_000)
        send(app, {"id": "later", "customer": "1"})
        (running,) = process.begin(one_each(bench, 1))
        bench.clock.advance(999)
        sweep(app.jobs.values())
        assert (len(state.names("rate/grind/")), state.names("slots/")) == (1, ["slots/grind/1", "slots/grinder/1"])
        process.perform([running])
        bench.clock.advance(1)
        sweep(app.jobs.values())
        assert (state.names("rate/"), state.names("slots/")) == ([], ["slots/grinder/1"])


def test_a_rate_holds_back_what_comes_too_soon_and_the_slot_with_it() -> None:
    app = mill(onefold.Throttle(rate="2/s", concurrency=3))
    with opened(app) as bench:
        send(app, *({"id": str(number)} for number in range(3)))
        process = bench.process()
        ready = process.begin(one_each(bench, 3))
        assert len(ready) == 1, "a burst is what a tenth of a second lets through, at least one"
        refused = [event.detail for event in process.events if event.name == "released"]
        assert [one["why"] for one in refused] == ["the rate of 2/s is used up"] * 2
        assert sum(map(len, held(bench).values())) == 1
        process.perform(ready)
        process.run_for(2_000, step_ms=500)
        assert done(process) == 3


def test_the_next_of_a_customer_begins_when_the_one_before_it_ends_and_others_are_not_held_up() -> None:
    app = mill(onefold.Throttle(concurrency=1, per="{customer}"))
    with opened(app) as bench:
        send(app, *({"id": f"a{number}", "customer": "a"} for number in range(8)), {"id": "b", "customer": "b"})
        process = bench.process()
        ready = process.begin(one_each(bench, 9))
        assert [run.payload["id"] for run in ready] == ["a0", "b"]
        delayed = [event for event in process.events if event.name == "released"]
        assert [event.key.key for event in delayed if event.key] == ["a5", "a6", "a7"]
        for number in range(5):
            assert sum(map(len, held(bench).values())) == len(ready)
            process.runner.perform(ready[0])
            ready = [*process.runner.finish(ready[:1]), *ready[1:]]
            assert [run.payload["id"] for run in ready][:1] == ([f"a{number + 1}"] if number < 4 else ["b"])
            ready.sort(key=lambda run: run.payload["id"])
        process.perform(ready)
        assert done(process) == 6
        bench.clock.advance(1_000)
        process.run()
        assert (done(process), held(bench)) == (9, {})


def test_deliveries_behind_one_that_finds_no_slot_are_put_back_together(monkeypatch: pytest.MonkeyPatch) -> None:
    app = mill(onefold.Throttle(concurrency=1))
    with opened(app) as bench:
        send(app, *({"id": str(number)} for number in range(11)))
        other, process = bench.process(), bench.process()
        other.begin(one_each(bench, 1))
        sizes: list[int] = []
        settle = process.runner.settle

        def counted(runs: list[Any]) -> Any:
            sizes.append(len(runs))
            return settle(runs)

        monkeypatch.setattr(process.runner, "settle", counted)
        assert process.begin(one_each(bench, 10)) == []
        assert [size for size in sizes if size] == [6, 4]
        assert process.names().count("released") == 10


def test_a_free_slot_does_not_wait_for_a_run_that_a_delivery_with_that_slot_waits_for() -> None:
    app = onefold.App("mill")
    orders = app.queue("orders.fifo", fifo=True)

    @app.job(orders, key="{id}", group="{batch}", throttle=onefold.Throttle(concurrency=1, per="{part}"))
    def grind(order: Order) -> None: ...

    with opened(app) as bench:
        send(app, {"id": "1", "batch": "a", "part": "x"}, {"id": "2", "batch": "a", "part": "y"})
        send(app, {"id": "3", "batch": "b", "part": "y"})
        process = bench.process()
        ready = process.begin(list(bench.backend.open_queue("orders.fifo").receive(10)))
        assert [run.payload["id"] for run in ready] == ["1", "3"], "2 waits for 1 by its group, and no run has its slot"
        process.perform(ready)
        process.run_for(5_000, step_ms=500)
        assert done(process) == 3


def test_a_delivery_without_a_slot_tries_again_after_about_the_time_that_runs_take() -> None:
    clocks: list[Any] = []
    app = mill(onefold.Throttle(concurrency=2), lambda order: clocks[0].advance(120))
    with opened(app) as bench:
        clocks.append(bench.clock)
        send(app, *({"id": str(number)} for number in range(7)))
        process, other = bench.process(), bench.process()
        process.perform(process.begin(one_each(bench, 1)))
        process.begin(one_each(bench, 2))
        process.begin(one_each(bench, 2))
        other.begin(one_each(bench, 2))
        for each, delay_ms in ((process, 120), (other, 1_000)):
            assert [e.detail["delay_ms"] for e in each.events if e.name == "released"] == [delay_ms] * 2


def test_a_delay_by_a_limit_is_in_the_log_once_a_minute() -> None:
    app = mill(onefold.Throttle(rate="1/m"))
    with opened(app) as bench:
        send(app, {"id": "1"}, {"id": "2"}, {"id": "3"})
        process = bench.process()
        process.run_for(59_000, step_ms=500)
        delays = [event for event in process.events if event.name == "released"]
        assert [one.severity for one in delays].count("info") == 1
        text = io.StringIO()
        logger = logging.getLogger("test.mill")
        logger.addHandler(logging.StreamHandler(text))
        logger.setLevel(logging.INFO)
        LogSink(logger).emit_all(delays)
        assert text.getvalue().count("the rate of 1/m is used up") == 1
        first = len(process.events)
        bench.clock.advance(120_000)
        process.run_for(120_000, step_ms=500)
        later = [event for event in process.events[first:] if event.name == "released"]
        assert [one.severity for one in later].count("info") == 1
        assert done(process) == 3


def test_slots_hold_as_long_as_they_are_renewed_and_not_after_their_process_died() -> None:
    app = mill(onefold.Throttle(concurrency=1))
    with opened(app) as bench:
        send(app, {"id": "1"}, {"id": "2"})
        slow, other = bench.process(), bench.process()
        assert len(slow.begin(one_each(bench, 1))) == 1
        waiting = one_each(bench, 1)
        bench.clock.advance(20_000)
        slow.runner.admission.renew()
        bench.clock.advance(20_000)
        assert other.begin(waiting) == []
        bench.clock.advance(10_000)  # 30 s after it was renewed last
        assert len(other.begin(one_each(bench, 10))) == 1


def test_the_slots_of_a_dead_worker_are_freed_though_its_document_cannot_be_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dead owner is reported once, so that what is not done then waits for the end of a lease."""
    app = mill(onefold.Throttle(concurrency=1))
    with opened(app) as bench:
        send(app, {"id": "1"})
        dead, other = bench.process(), bench.process()
        assert len(dead.begin(one_each(bench, 1))) == 1
        engine: Any = bench.runtime.engine
        monkeypatch.setattr(engine, "maintain", lambda report: report(dead.runner.admission._owner))

        def busy(*_: object) -> None:
            raise onefold.errors.StorageBusy("another process writes")

        monkeypatch.setattr(worker_setup, "forget", busy)
        roster: Any = SimpleNamespace(check=lambda: None)
        worker_setup.Maintenance(bench.runtime, other.runner, ["orders"], list(app.jobs.values()), roster).check()
        assert held(bench) == {}


def test_a_job_that_is_paused_gives_its_messages_back_until_its_dependency_answers() -> None:
    down = [True]

    def work(order: Order) -> None:
        if down:
            raise onefold.DependencyDown("the key was rotated", retry_in_ms=60_000)

    app = mill(onefold.Throttle(concurrency=5), work)
    with opened(app) as bench:
        send(app, *({"id": str(number)} for number in range(3)))
        process = bench.process()
        process.perform(process.begin(one_each(bench, 1)))
        assert process.begin(one_each(bench, 2)) == []
        why = [event.detail["why"] for event in process.events if event.name == "released"]
        assert why == ["the job is paused: the key was rotated"] * 2
        down.clear()
        process.run_for(180_000, step_ms=5_000)
        assert done(process) == 3
        assert "resumed" in process.names()
        assert sum(map(len, held(bench).values())) == 0


def test_a_slot_that_is_taken_just_before_the_clock_follows_a_step_is_not_free_then() -> None:
    app = mill(onefold.Throttle(concurrency=1))
    with opened(app) as bench:
        send(app, {"id": "0"}, {"id": "1"})
        one, other = bench.process(), bench.process()
        bench.clock.jump(limits.HOUR_MS)
        bench.runtime.steady.now_ms()
        bench.clock.advance(HOLD_MS - 1_000)
        (first,) = one.begin(one_each(bench, 1))
        bench.clock.advance(2_000)
        assert other.begin(one_each(bench, 1)) == []
        one.perform([first])
