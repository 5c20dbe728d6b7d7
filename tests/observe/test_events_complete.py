"""Events carry what was raised, for sinks in this process only; and no sink slows what it listens to, wherever that runs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import onefold
from onefold import errors
from onefold.aws import lambda_function
from onefold.manual_clock import ManualClock
from onefold.observe.log_fields import fields_of, json_line, plain_line
from onefold.runner import sink_queues
from onefold.runner.sink_queues import QueuedSinks
from onefold.runtime.events import ERROR_TEXT, EVENTS, Event
from onefold.schedules.scheduler import make_scheduler
from onefold.testing import inline
from tests.faces.office import Office, Order
from tests.run.bench import Fault, opened
from tests.run.test_settling import shop

MARKER = "marker-9e1c"


class Kept:
    """A sink that keeps events, in the thread in which they come."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.threads: set[int] = set()

    def emit(self, event: Event) -> None:
        self.threads.add(threading.get_ident())
        self.events.append(event)


class Stuck(Kept):
    """A sink that takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def emit(self, event: Event) -> None:
        self.go.wait(30)
        super().emit(event)


def failures() -> list[Event]:
    """The warnings and errors of one job that fails in each way that has an exception."""
    office = Office()
    ways = {
        "odd": ValueError("odd"),
        "lost": onefold.OutcomeUnknown("no answer"),
        "down": onefold.DependencyDown("401"),
    }
    office.ill |= ways
    with office.opened(history="full") as there:
        office.book.send_many([Order("odd"), Order("down")])
        office.pay.send(Order("lost"))
        there.send_foreign("orders", '{"order_id": 5}')
        there.world.run_for(3_000)
        return [one for one in there.world.events if EVENTS[one.name].severity in ("warning", "error", "critical")]


# -- what was raised -------------------------------------------------------------------------------------------------


def test_each_failure_carries_what_was_raised_and_where() -> None:
    found = {one.name: one for one in failures()}
    assert {name: type(one.exception).__name__ for name, one in found.items()} == {
        "retry": "ValueError",
        "unknown": "OutcomeUnknown",
        "held": "OutcomeUnknown",
        "dependency-down": "DependencyDown",
        "malformed": "PayloadError",
        "paused": "DependencyDown",
    }
    for name in ("retry", "unknown", "held", "dependency-down"):
        assert "office.py" in found[name].traceback, name
        assert "Traceback (most recent call last):" in found[name].traceback
    assert "PayloadError" in found["malformed"].traceback


def test_what_was_raised_is_in_no_text_of_the_event() -> None:
    held_up = Event(at_ms=0, name="held").carrying(ValueError(MARKER))
    assert isinstance(held_up.exception, ValueError)
    for text in (
        json_line(fields_of(held_up)),
        plain_line(fields_of(held_up)),
        repr(held_up),
        msgspec.json.encode(held_up).decode(),
    ):
        assert MARKER not in text
    assert held_up == Event(at_ms=0, name="held")


def test_a_traceback_has_no_locals_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def deep(left: int, secret: str) -> None:
        if left:
            deep(left - 1, secret)
        raise ValueError("odd " * 10_000)

    with pytest.raises(ValueError, match="odd") as caught:
        deep(100, MARKER)
    raised = caught.value
    event = Event(at_ms=0, name="held").carrying(raised)
    assert 'test_events_complete.py", line' in event.traceback
    assert "odd" in event.traceback
    assert MARKER not in event.traceback
    assert len(event.traceback) <= 4_000
    monkeypatch.setenv(ERROR_TEXT, "off")
    assert "odd" not in event.traceback
    assert "ValueError" in event.traceback


def test_a_run_forgets_what_was_raised_when_it_is_settled() -> None:
    office = Office()
    office.ill["a"] = ValueError("odd")
    with office.opened() as there:
        office.book.send(Order("a"))
        runner = there.world._runner
        (run,) = runner.begin(runner.source.receive(["orders"], 1))
        runner.perform(run)
        assert run.ctx is not None
        assert isinstance(run.ctx.raised, ValueError)
        runner.finish([run])
        assert [run.ctx.raised, run.raised] == [None, None]


def test_a_record_that_could_not_be_written_says_why() -> None:
    app, ship, _ = shop()
    with opened(app) as bench:
        ship.send({"id": "o-1", "act": "write"})
        process = bench.process(one_transaction=False, fault=Fault("queue.send", times=6))
        process.run()
        (event,) = process.events
    assert event.name == "completion-failed"
    assert isinstance(event.exception, errors.TransientError)
    assert event.detail["error"] == type(event.exception).__name__
    assert str(event.detail["summary"]) in str(event.exception)


def test_a_guarded_call_carries_what_it_raised() -> None:
    sink = Kept()
    sink.is_quick = True  # type: ignore[attr-defined]

    @onefold.once(key="{order}", name="charge", store=onefold.memory_store(), sinks=[sink])
    def charge(order: str) -> None:
        raise ValueError("odd")

    with pytest.raises(ValueError, match="odd") as caught:
        charge("o-1")
    (event,) = sink.events
    assert (event.name, event.exception) == ("failed", caught.value)


# -- a slow sink -----------------------------------------------------------------------------------------------------


def test_a_stuck_sink_holds_up_no_guarded_call() -> None:
    stuck = Stuck()

    @onefold.once(key="{order}", name="charge", store=onefold.memory_store(), sinks=[stuck])
    def charge(order: str) -> str:
        return order

    assert charge("o-1") == "o-1"
    assert stuck.events == []
    stuck.go.set()


def test_a_stuck_sink_holds_up_no_test_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_queues.QueuedSinks.flush, "__defaults__", (0.01,))
    monkeypatch.setattr(sink_queues.QueuedSinks.end, "__defaults__", (0.01,))
    stuck = Stuck()
    app = onefold.App("shop", sinks=[stuck])

    @app.job(app.queue("orders"), key="{order_id}")
    def work(order: Order) -> None: ...

    with inline(app) as world:
        work.send(Order("a"))
        world.run()
        assert "completed" in world.names()
        assert stuck.events == []
    stuck.go.set()


def test_what_a_test_runs_is_in_its_sinks_when_it_returns() -> None:
    sink = Kept()
    app = onefold.App("shop", sinks=[sink])

    @app.job(app.queue("orders"), key="{order_id}")
    def work(order: Order) -> None: ...

    with inline(app) as world:
        work.send(Order("a"))
        world.run()
        assert [one.name for one in sink.events] == world.names()
        assert threading.get_ident() not in sink.threads


def test_a_stuck_sink_holds_up_no_scheduler(tmp_path: Path) -> None:
    stuck = Stuck()
    clock = ManualClock(1_700_000_000_000)
    app = onefold.App("shop", url=f"sqlite:///{tmp_path}/s.db", clock=clock)

    @app.schedule("rate(1 minute)", queue=app.queue("orders"))
    def nightly(tick: onefold.Tick) -> None: ...

    scheduler = make_scheduler(app.runtime(), sinks=[stuck])
    scheduler.start()
    clock.advance(600_000)
    assert scheduler.catch_up() > 0
    assert stuck.events == []
    stuck.go.set()
    scheduler.stop()
    scheduler.run()  # its end waits for the sink
    assert "ticked" in [one.name for one in stuck.events]
    app.close()


@pytest.mark.parametrize("is_stuck", [False, True])
def test_a_function_lets_its_sinks_have_everything_before_it_answers_for_a_moment(
    is_stuck: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lambda_function, "FLUSH_MS_MAX", 10 if is_stuck else 20_000)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    sink = Stuck() if is_stuck else Kept()
    app = onefold.App("shop", url=f"sqlite:///{tmp_path}/s.db", sinks=[sink])

    @app.job(app.queue("orders"), key="{order_id}")
    def work(order: Order) -> None: ...

    opened_for_good = app.runtime()  # what is open stays: no queues of SQS
    handler = app.lambda_handler()
    handler({"Records": []})
    assert opened_for_good.sinks is not None
    opened_for_good.sinks.emit(Event(at_ms=0, name="completed"))
    assert handler({"Records": []}) == {"batchItemFailures": []}
    assert [one.name for one in sink.events] == ([] if is_stuck else ["completed"])
    if isinstance(sink, Stuck):
        sink.go.set()
    app.close()


# -- ends and forks --------------------------------------------------------------------------------------------------


def test_a_program_that_ends_waits_a_moment_for_its_sinks(tmp_path: Path) -> None:
    (tmp_path / "calls.py").write_text(
        "import threading\n"
        "import onefold\n"
        "class Slow:\n"
        "    def emit(self, event):\n"
        "        threading.Event().wait(0.2)\n"
        "        print(event.name, flush=True)\n"
        "@onefold.once(key='{order}', name='charge', store=onefold.memory_store(), sinks=[Slow()])\n"
        "def charge(order):\n"
        "    return order\n"
        "charge('o-1'); charge('o-1')\n"
    )
    ran = subprocess.run(
        [sys.executable, "calls.py"], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (ran.stdout.split(), ran.stderr) == (["completed", "duplicate"], "")


def test_a_forked_child_has_a_thread_of_its_own_for_its_sinks() -> None:
    sink = Kept()
    sinks = QueuedSinks([sink])
    sinks.emit(Event(at_ms=0, name="completed"))
    assert sinks.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            sinks.emit(Event(at_ms=0, name="retry"))
            code = 0 if sinks.flush(20) and [one.name for one in sink.events] == ["completed", "retry"] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [one.name for one in sink.events] == ["completed"]
    sinks.end()


def test_many_threads_start_one_thread_for_a_sink() -> None:
    sink = Kept()
    sinks = QueuedSinks([sink])
    gate = threading.Barrier(8)

    def emit() -> None:
        gate.wait()
        for _ in range(50):
            sinks.emit(Event(at_ms=0, name="completed"))

    threads: list[Any] = [threading.Thread(target=emit) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sinks.flush(20)
    assert (len(sink.events), len(sink.threads)) == (400, 1)
    sinks.end()
