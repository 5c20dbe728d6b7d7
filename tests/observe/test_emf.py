"""Lines for CloudWatch: AWS's format, bounded dimensions, one line for a job and queue, and nothing of a message in them."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import onefold
from onefold.contracts.ledger import Row
from onefold.contracts.store import RecordKey
from onefold.observe.emf import EVERY_MS, EmfSink, emf_name
from onefold.observe.metrics import METRICS, OUTCOMES, OUTCOMES_MAX, Sample, gauge, gauges
from onefold.observe.readings import Reader, Readings, RunReading, _days
from onefold.runtime.events import Event
from tests.deploy.test_templates import TOOLS
from tests.docs.test_pages import environment
from tests.faces.office import START_MS, Office, Order

SCHEMA = Path(__file__).with_name("emf_schema.json")
VALIDATE = """
import json, sys
import jsonschema
checked = jsonschema.Draft202012Validator(json.load(open(sys.argv[1])))
lines = [json.loads(line) for line in sys.stdin]
print(json.dumps([f"{error.json_path}: {error.message:.200}" for line in lines for error in checked.iter_errors(line)]))
"""
STATES = {
    "onefold.schedule.ticks": ("sent", "missed", "refused", "dropped"),
    "onefold.queue.depth": ("visible", "in_flight", "delayed", "dead", "held"),
    "onefold.messages.settled": tuple(dict.fromkeys(OUTCOMES.values())),
    "onefold.run.items": ("expected", "completed", "missing", "duplicate", "failed", "dead", "held", "unfinished"),
    "onefold.day.items": ("expected", "completed", "missing", "duplicate", "failed", "dead", "held"),
    "onefold.queue.companion.age": ("dead", "held"),
    "onefold.runs": ("stopped", "disagrees"),
    "onefold.outcomes": ("invoices_issued",),
}
EVENT = Event(
    at_ms=START_MS, name="completed", key=RecordKey("acme", "book", "secret-key"), queue="orders", message_id="m-1",
    group="secret-group", receive_count=1, took_ms=250, wait_ms=1_500, detail={"attempt": 1, "count.invoices": 2},
)  # fmt: skip


class Written:
    """A sink and its lines."""

    def __init__(self, **settings: Any) -> None:
        self.stream = io.StringIO()
        self.sink = EmfSink(self.stream, **settings)
        self.sink.for_app("shop")

    def lines(self) -> list[dict[str, Any]]:
        """What was written until now."""
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


def valid(lines: Sequence[object]) -> None:
    done = subprocess.run(
        [TOOLS / "python", "-c", VALIDATE, SCHEMA],
        input="\n".join(map(json.dumps, lines)), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == []


def test_a_line_has_what_was_counted_of_a_job_and_nothing_of_its_messages() -> None:
    written = Written()
    written.sink.emit(EVENT)
    written.sink.emit(structs.replace(EVENT, took_ms=50, at_ms=START_MS + 10))
    written.sink.emit(structs.replace(EVENT, name="retry", took_ms=None, wait_ms=-5, detail={"summary": "secret text"}))
    assert written.lines() == []
    written.sink.flush()
    negative, line = sorted(written.lines(), key=len)
    assert negative.pop("_aws")["CloudWatchMetrics"][0]["Dimensions"] == [[]]
    assert negative == {"NegativeTimes": 1}
    metadata = line.pop("_aws")
    assert metadata["Timestamp"] == START_MS
    (directive,) = metadata["CloudWatchMetrics"]
    assert (directive["Namespace"], directive["Dimensions"]) == ("onefold/shop", [["job"], ["job", "queue"]])
    assert line == {
        "job": "book", "queue": "orders", "MessagesCompleted": 2, "MessagesFailed": 1, "Counted.invoices": 4,
        "ReceiveCount": [1, 1, 1], "Duration": [250, 50], "Wait": [1500, 1500, 0],
    }  # fmt: skip
    assert {one["Name"]: one["Unit"] for one in directive["Metrics"]} == {
        "MessagesCompleted": "Count", "MessagesFailed": "Count", "Counted.invoices": "Count", "ReceiveCount": "Count",
        "Duration": "Milliseconds", "Wait": "Milliseconds",
    }  # fmt: skip
    assert "secret" not in written.stream.getvalue()
    written.sink.flush()
    assert len(written.lines()) == 2, "nothing was counted since"


def test_a_line_is_written_when_a_minute_is_over() -> None:
    written = Written(namespace="Shop")
    written.sink.emit(EVENT)
    written.sink.emit(structs.replace(EVENT, at_ms=START_MS + EVERY_MS - 1))
    assert written.lines() == []
    written.sink.emit(structs.replace(EVENT, at_ms=START_MS + EVERY_MS))
    (line,) = written.lines()
    assert (line["MessagesCompleted"], line["_aws"]["CloudWatchMetrics"][0]["Namespace"]) == (3, "Shop")


@pytest.mark.slow
def test_lines_are_valid_whatever_is_counted() -> None:
    written = Written()
    for number in range(250):  # more values than a line takes
        written.sink.emit(structs.replace(EVENT, took_ms=number))
    for number in range(20):
        detail = {f"count.c{number}_{more}": 1 for more in range(16)}
        written.sink.emit(structs.replace(EVENT, key=RecordKey("", f"job{number}", "k"), queue=None, detail=detail))
        written.sink.emit(structs.replace(EVENT, key=None, queue=f"queue{number}", name="malformed"))
    written.sink.emit(Event(at_ms=START_MS, name="ticked", detail={"schedule": "nightly", "late_ms": 20}))
    everything = [
        Sample(metric, tuple((name, state if name in ("state", "outcome") else "x") for name in metric.labels), 1)
        for metric in METRICS.values()
        if metric.instrument != "histogram"
        for state in STATES.get(metric.name, ("",))
    ]
    many = [gauge("onefold.day.items", 1, job="book", state=f"state{number}") for number in range(150)]
    written.sink.flush([*everything, *many])
    lines = written.lines()
    valid(lines)
    durations = [line["Duration"] for line in lines if "Duration" in line]
    assert sum(len(one) if isinstance(one, list) else 1 for one in durations) == 270
    assert sum("TicksSent" in line for line in lines) == 2
    assert max(len(line["_aws"]["CloudWatchMetrics"][0]["Metrics"]) for line in lines) == 100
    with pytest.raises(AssertionError):
        valid([{**lines[0], "Duration": list(range(101))}])


def test_no_two_metrics_have_one_name() -> None:
    names = [
        emf_name(metric, (("state", state),)) for metric in METRICS.values() for state in STATES.get(metric.name, ("",))
    ]
    assert len(set(names)) == len(names)
    assert not any("*" in name for name in names)
    assert {
        "QueueInFlight",
        "TicksSent",
        "Expected",
        "Completed",
        "Missing",
        "Duplicates",
        "OldestAge",
        "LeaseLost",
    } <= {*names}


def test_counters_of_the_user_are_bounded() -> None:
    written = Written()
    for number in range(OUTCOMES_MAX * 2):
        written.sink.emit(structs.replace(EVENT, detail={f"count.c{number}": 1}))
    written.sink.flush()
    counted: dict[str, float] = {}
    for line in written.lines():
        for name, value in line.items():
            if name.startswith("Counted."):
                counted[name] = counted.get(name, 0) + value
    assert len(counted) == OUTCOMES_MAX + 1
    assert counted["Counted.other"] == OUTCOMES_MAX


def test_a_day_of_a_job_is_counted_from_records_and_history() -> None:
    office = Office()
    with office.opened() as there:
        reader = Reader(there.session.engine, there.clock)
        office.ill["bad"] = ValueError("odd")
        office.book.send_many([Order("a"), Order("b"), Order("bad"), Order("a")])
        there.world.run_for(10_000)
        day = {one.job: dict(one.counts) for one in reader.read().days}
        assert day == {"book": {"completed": 2, "duplicate": 1, "failed": 1, "dead": 1, "held": 0}}
        office.book.send(Order("c"))
        there.world.run_for(600_000)
        found = list(gauges(reader.read()))
        said = {dict(one.labels)["state"]: one.value for one in found if one.metric.name == "onefold.day.items"}
        assert (said["completed"], said["duplicate"]) == (3, 1)
        there.clock.advance(86_400_000)
        assert reader.read().days == ()


def test_a_row_that_comes_late_is_counted_once() -> None:
    office = Office()
    with office.opened() as there:
        reader = Reader(there.session.engine, there.clock)
        for number in range(5):
            at_ms = there.clock.now_ms()
            there.session.engine.ledger.append([Row(at_ms=at_ms, event="held", key=RecordKey("", "pay", str(number)))])
            reader.read()
            there.clock.advance(1_700)
        there.clock.advance(600_000)
        (day,) = reader.read().days
        assert (day.job, day.counts["held"]) == ("pay", 5)


def test_a_day_of_a_schedule_is_that_of_its_runs() -> None:
    run = RunReading(
        run="nightly/2023-11-14T03:00:00Z", title="nightly", owner=None, started_at_ms=START_MS - 1_000, is_open=False,
        failure=None, expected=10, completed=7, failed=1, dead=1, held=0, unfinished=1, reconciled_at_ms=START_MS,
        agrees=False, missing=1, duplicates=0,
    )  # fmt: skip
    old = structs.replace(run, run="nightly/old", started_at_ms=START_MS - 86_400_000 * 2)
    later = structs.replace(run, run="nightly/2023-11-14T05:00:00Z", missing=None, duplicates=None)
    (day,) = _days([run, old, later], {}, START_MS)
    assert day.counts == {
        "expected": 20, "completed": 14, "failed": 2, "dead": 2, "held": 0, "missing": 1, "duplicate": 0,
    }  # fmt: skip
    said = list(gauges(Readings(at_ms=START_MS, days=(day,))))
    assert {emf_name(one.metric, one.labels): one.value for one in said}["DayMissing"] == 1


@pytest.mark.slow
def test_a_worker_writes_lines_on_request(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        'import onefold\napp = onefold.App("shop")\norders = app.queue("orders")\n\n'
        '@app.job(orders, key="{id}")\ndef ship(payload: dict, ctx: onefold.Context) -> None:\n    ctx.count("parcels", 2)\n'
        "    if payload['id'] == 'bad':\n        raise onefold.PermanentError('no')\n"
    )
    send = 'for id in a b bad; do onefold send shop:app ship "{\\"id\\": \\"$id\\"}" >/dev/null; done'
    for more in ("--until-empty --emf", "--until-empty"):
        done = subprocess.run(
            ["bash", "-c", f"{send}; onefold worker shop:app {more}"],
            cwd=tmp_path, env=environment(), text=True, capture_output=True, check=True, timeout=60,
        )  # fmt: skip
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if "--emf" not in more:
            assert lines == []
            return
        valid(lines)
        (ship,) = [line for line in lines if line.get("job") == "ship" and "MessagesCompleted" in line]
        assert (ship["queue"], ship["MessagesCompleted"], ship["MessagesDead"]) == ("orders", 2, 1)
        assert ship["Counted.parcels"] == 4
        (orders,) = [line for line in lines if line.get("queue") == "orders" and "job" not in line]
        assert (orders["QueueVisible"], orders["QueueDead"]) == (0, 1)
        assert orders["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["queue"]]


@pytest.mark.parametrize("named", [False, True])
def test_a_function_writes_one_line_for_a_batch(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("ONEFOLD_EMF", "off" if named else "on")
    sinks = [EmfSink()] if named else []
    app = onefold.App("shop", url=f"sqlite:///{tmp_path}/s.db", sinks=sinks)

    @app.job(app.queue("orders"), key="{order_id}", name="book")
    def work(order: Order) -> None: ...

    opened = app.runtime()  # what is open stays: no queues of SQS
    handler = app.lambda_handler()
    handler({"Records": []})
    assert capsys.readouterr().out == ""
    assert opened.sinks is not None
    for _ in range(10):
        opened.sinks.emit(EVENT)
    handler({"Records": []})
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["MessagesCompleted"] == 10
    assert json.loads(line)["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "onefold/shop"
    handler({"Records": []})
    assert capsys.readouterr().out == ""
    app.close()
