"""Log lines: one per event, with stable fields, at the event's own level, and never a payload."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs

import onefold
from onefold import errors
from onefold.contracts.ledger import Row
from onefold.contracts.store import RecordKey
from onefold.observe import timeline
from onefold.observe.log_fields import failure_class, fields_of, hashed, json_line, plain_line
from onefold.observe.sinks import LogSink
from onefold.observe.timeline import Evidence
from onefold.observe.wording import age, counted, instant, one_line, operation, pause
from onefold.runner.sink_queues import QueuedSinks
from onefold.runtime.events import EVENTS, Event, Sinks
from tests.faces.office import Office, Order

EVENT = Event(
    at_ms=1_700_000_000_123,
    name="dead-letter",
    key=RecordKey("acme", "book", "o-1"),
    queue="orders",
    message_id="m-1",
    group="g",
    receive_count=3,
    actor="w-1",
    detail={"reason": "attempts", "error": "ValueError", "summary": "odd", "attempt": 5, "of": 5},
)


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    made = logging.getLogger("onefold-test-sinks")
    made.setLevel(logging.DEBUG)
    made.propagate = False
    yield made
    made.handlers.clear()


def written(logger: logging.Logger, *events: Event, **settings: object) -> list[logging.LogRecord]:
    records: list[logging.LogRecord] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger.addHandler(Keeper())
    sink = LogSink(logger, **settings)  # type: ignore[arg-type]
    for event in events:
        sink.emit(event)
    return records


def test_a_line_names_what_is_needed_to_find_it_again() -> None:
    assert json.loads(json_line(fields_of(EVENT, {"app": "shop"}, "shown"))) == {
        "ts": "2023-11-14T22:13:20.123Z",
        "level": "error",
        "event": "dead-letter",
        "text": "moved to the dead-letter queue",
        "app": "shop",
        "job": "book",
        "key": "o-1",
        "tenant": "acme",
        "queue": "orders",
        "message_id": "m-1",
        "group": "g",
        "receive_count": 3,
        "owner": "w-1",
        "failure_class": "attempts",
        "rule": "attempts",
        "error": "ValueError",
        "summary": "odd",
        "attempt": 5,
        "of": 5,
    }
    assert plain_line(fields_of(EVENT, keys="shown")) == (
        "2023-11-14T22:13:20.123Z ERROR dead-letter book acme/o-1 on orders message m-1: "
        "attempt=5, of=5, rule=attempts, error=ValueError, summary=odd"
    )


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_is_written_at_its_own_level(name: str, logger: logging.Logger) -> None:
    event = Event(at_ms=0, name=name)
    (record,) = written(logger, event, level="debug")
    assert record.levelname == EVENTS[name].severity.upper()
    assert json.loads(record.getMessage())["event"] == name
    assert not failure_class(event) or EVENTS[name].severity in ("warning", "error", "critical")


def test_the_record_that_could_not_be_written_is_critical(logger: logging.Logger) -> None:
    (record,) = written(logger, Event(at_ms=0, name="completion-failed"), level="critical")
    assert record.levelno == logging.CRITICAL


def test_quieter_events_are_left_out(logger: logging.Logger) -> None:
    events = [Event(at_ms=0, name=name) for name in ("received", "completed", "retry", "held")]
    assert len(written(logger, *events, level="warning")) == 2


def test_a_payload_is_in_no_line() -> None:
    stream = io.StringIO()
    office = Office()
    sink = LogSink(logging.getLogger("test-payload"), level="debug")
    handler = logging.StreamHandler(stream)
    logging.getLogger("test-payload").addHandler(handler)
    logging.getLogger("test-payload").setLevel(logging.DEBUG)
    with office.opened(history="full") as there:
        office.ill["a"] = ValueError("odd")
        office.ill["p"] = onefold.OutcomeUnknown("no answer")
        office.book.send_many([Order("a", "Secretville"), Order("b", "Secretville")])
        office.pay.send(Order("p", "Secretville"))
        there.send_foreign("orders", '{"city": "Secretville"}')
        there.world.run_for(3_000)
        for event in there.world.events:
            sink.emit(event)
    logging.getLogger("test-payload").removeHandler(handler)
    assert "o-1" not in stream.getvalue()
    assert f'"key":"{hashed("a")}"' in stream.getvalue()
    assert "Secretville" not in stream.getvalue()


class _Recorder(logging.Handler):
    """Keeps the messages of the records that reach it."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def own_logger() -> Iterator[logging.Logger]:
    """The logger `onefold`, left as it was found."""
    logger = logging.getLogger("onefold")
    before = logger.level, logger.propagate, list(logger.handlers), list(logger.filters)
    logger.handlers.clear()
    logger.propagate = True  # pytest adds a handler of its own, at the start of the test, to each logger that does not
    yield logger
    logger.level, logger.propagate = before[0], before[1]
    logger.handlers[:], logger.filters[:] = before[2], before[3]


@pytest.mark.parametrize("form", ["json", "plain"])
def test_a_line_is_the_same_with_and_without_a_record(form: Any, own_logger: logging.Logger) -> None:
    stream = io.StringIO()
    sink = LogSink(form=form, stream=stream)
    sink.emit(EVENT)
    recorder = _Recorder()
    own_logger.addHandler(recorder)
    sink.emit(EVENT)
    first, second = stream.getvalue().splitlines()
    assert first == second == recorder.messages[0]


def test_a_handler_that_was_added_later_gets_every_line(own_logger: logging.Logger) -> None:
    sink = LogSink(stream=io.StringIO())
    recorder = _Recorder()
    own_logger.addHandler(recorder)
    sink.emit(EVENT)
    assert [json.loads(line)["message_id"] for line in recorder.messages] == ["m-1"]


def test_filters_levels_and_formatters_of_the_program_apply(own_logger: logging.Logger) -> None:
    stream = io.StringIO()
    sink = LogSink(form="plain", stream=stream)
    (handler,) = own_logger.handlers
    own_logger.addFilter(lambda record: False)
    sink.emit(EVENT)
    own_logger.filters.clear()
    handler.addFilter(lambda record: False)
    sink.emit(EVENT)
    handler.filters.clear()
    handler.setLevel(logging.CRITICAL)
    sink.emit(EVENT)
    assert stream.getvalue() == ""
    handler.setLevel(logging.NOTSET)
    handler.setFormatter(logging.Formatter("mine: %(message)s"))
    sink.emit(EVENT)
    assert stream.getvalue().startswith("mine: ")


def test_without_a_logger_it_writes_to_the_stream() -> None:
    stream = io.StringIO()
    own = logging.getLogger("onefold")
    before = (own.level, own.propagate, list(own.handlers))
    try:
        LogSink(stream=stream, form="plain", level="error", keys="shown").emit(EVENT)
    finally:
        own.setLevel(before[0])
        own.propagate, own.handlers = before[1], before[2]
    assert stream.getvalue().startswith("2023-11-14T22:13:20.123Z ERROR dead-letter book acme/o-1")


@pytest.mark.parametrize("settings", [{"form": "xml"}, {"level": "loud"}, {"keys": "some"}])
def test_an_unknown_setting_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(onefold.errors.UsageError, match="is not known"):
        LogSink(**settings)  # type: ignore[arg-type]


# -- words -----------------------------------------------------------------------------------------------------------

EVIDENCE = Evidence(
    key=RecordKey("", "book", "a"),
    record=None,
    rows=(),
    messages=(),
    policy=None,
    history=None,
    dead=frozenset(),
    held=frozenset(),
    now_ms=0,
)


@pytest.mark.parametrize("name", [*EVENTS, "something-new"])
def test_every_row_is_told_with_and_without_its_numbers(name: str) -> None:
    bare, rule = timeline.described(Row(at_ms=0, event=name), EVIDENCE)
    assert bare
    assert "None" not in bare + rule
    text, rule = timeline.described(Row(at_ms=0, event=name, detail={"attempt": 2, "of": 5, "why": "drain"}), EVIDENCE)
    assert text
    assert (text, rule) != ("", "")


def test_a_row_nobody_foresaw_is_told_with_its_numbers() -> None:
    told = timeline.described(
        Row(at_ms=0, event="something-new", detail={"count": 3, "who": "x", "none": None}), EVIDENCE
    )
    assert told == ("something-new", "count 3, who x")


def test_times_are_said_with_their_unit() -> None:
    assert [age(ms) for ms in (-5, 0, 847, 1_999, 192_400, 7_260_000, 93_600_000, 1_209_600_000)] == [
        "0s",
        "0s",
        "847ms",
        "1s",
        "3m12s",
        "2h1m",
        "1d2h",
        "14d",
    ]
    assert [pause(ms) for ms in (-1, 300, 4_000, 59_940, 60_000)] == [
        "0 ms",
        "300 ms",
        "4.0 s",
        "59.9 s",
        "1m",
    ]
    assert instant(0) == "1970-01-01T00:00:00.000Z"


def test_words_for_few_and_many() -> None:
    assert [counted(count, "message") for count in (0, 1, 2, 1_000)] == [
        "0 messages",
        "1 message",
        "2 messages",
        "1,000 messages",
    ]
    assert operation(RecordKey("acme", "book", "o-1")) == "book acme/o-1"
    assert one_line("a\n  b", 10) == "a b"
    assert one_line("x" * 20, 10) == "xxxxxxx..."


class Broken:
    """A sink that raises at each event."""

    def emit(self, event: Event) -> None:
        raise RuntimeError("sink broken\nat its second line")


def test_a_sink_that_raises_is_counted_and_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []

    class Good:
        def emit(self, event: Event) -> None:
            heard.append(event)

    sinks = Sinks([Broken(), Good()])
    for at_ms in (0, 1, 59_999, 60_000, 60_001):
        sinks.emit(structs.replace(EVENT, at_ms=at_ms))
    assert len(heard) == sinks.failures == 5
    text = (
        "The sink Broken raised RuntimeError: sink broken [+1 line]. It lost the event dead-letter; the work goes on."
    )
    assert [(one.name, one.levelname) for one in caplog.records] == [("onefold", "ERROR")] * 2
    assert caplog.messages == [text, f"{text} 2 more failed since the last such line."]


def test_logging_that_fails_fails_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.Logger, "error", lambda *_: 1 / 0)
    sinks = Sinks([Broken()])
    sinks.emit(EVENT)
    assert sinks.failures == 1


@pytest.mark.parametrize(
    ("sinks", "text"),
    [
        ([LogSink], "Write LogSink()."),
        ([5], "sinks= has 5, which is not a sink."),
        (LogSink(), "is not a list. Write for example sinks=[onefold.LogSink()]."),
        ("LogSink", "sinks='LogSink' is not a list."),
    ],
)
def test_what_is_not_a_sink_is_refused_at_declaration(sinks: Any, text: str) -> None:
    with pytest.raises(errors.UsageError) as caught:
        onefold.App("shop", sinks=sinks)
    assert text in str(caught.value)


# -- what a sink takes -----------------------------------------------------------------------------------------------

COMPLETED, RETRY = (Event(at_ms=0, name=name) for name in ("completed", "retry"))


class Collector:
    """A sink that keeps each call, and takes only what its names allow."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.calls: list[list[str]] = []

    def takes(self, name: str) -> bool:
        return name in self.names

    def emit(self, event: Event) -> None:
        raise AssertionError("it has an emit_all")

    def emit_all(self, events: Any) -> None:
        self.calls.append([event.name for event in events])


@pytest.mark.parametrize("made", [Sinks, QueuedSinks])
def test_a_sink_gets_what_it_takes_in_order_and_together(made: type[Sinks]) -> None:
    some, others = Collector("retry", "held"), Collector()
    sinks = made([some, others])
    assert [sinks.takes(name) for name in ("retry", "completed")] == [True, False]
    sinks.emit_all([RETRY, COMPLETED, Event(at_ms=0, name="held")])
    sinks.flush()
    assert some.calls == [["retry", "held"]]
    assert others.calls == []
    sinks.end()


def test_a_sink_that_says_nothing_or_cannot_say_takes_everything() -> None:
    class Faulty(Collector):
        def takes(self, name: str) -> bool:
            raise RuntimeError(name)

    assert Sinks([Broken()]).takes("completed")
    assert Sinks([Faulty()]).takes("completed")
    assert not Sinks([]).takes("completed")


def test_a_log_takes_what_its_level_and_its_logger_let_through(logger: logging.Logger) -> None:
    sinks = Sinks([LogSink(logger, level="warning")])
    assert [sinks.takes(name) for name in ("completed", "retry", "held")] == [False, True, True]
    logger.setLevel(logging.ERROR)
    assert [sinks.takes(name) for name in ("completed", "retry", "held")] == [False, False, True]


def test_a_subclass_with_an_emit_of_its_own_gets_every_event(logger: logging.Logger) -> None:
    heard: list[str] = []

    class Counting(LogSink):
        def emit(self, event: Event) -> None:
            heard.append(event.name)
            super().emit(event)

    sinks = Sinks([Counting(logger, level="warning")])
    sinks.emit_all([COMPLETED, RETRY])
    assert heard == ["completed", "retry"]


def test_lines_of_one_call_are_written_at_once(own_logger: logging.Logger) -> None:
    class Stream(io.StringIO):
        writes = 0

        def write(self, text: str, /) -> int:
            self.writes += 1
            return super().write(text)

    stream = Stream()
    sinks = QueuedSinks([LogSink(form="json", stream=stream)])
    sinks.emit_all([EVENT, COMPLETED, Event(at_ms=0, name="received"), RETRY])
    sinks.end()
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == [
        "dead-letter",
        "completed",
        "retry",
    ]
    assert stream.writes == 1


def test_every_event_that_a_sink_loses_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    class Full(Collector):
        def emit_all(self, events: Any) -> None:
            raise OSError("no space left")

    sinks = Sinks([Full("retry")])
    sinks.emit_all([RETRY, RETRY, COMPLETED])
    assert sinks.failures == 2
    assert len(caplog.messages) == 1


def test_a_queue_that_is_full_loses_only_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onefold.runner.sink_queues.WAITING_MAX", 3)
    entered, released = threading.Event(), threading.Event()
    heard: list[str] = []

    class Slow:
        def emit(self, event: Event) -> None:
            entered.set()
            released.wait(60)
            heard.append(event.name)

    sinks = QueuedSinks([Slow()])
    sinks.emit(RETRY)
    assert entered.wait(60)
    sinks.emit_all([COMPLETED, RETRY])
    sinks.emit_all([COMPLETED, RETRY, RETRY])
    assert sinks.failures == 2
    released.set()
    sinks.end(10)
    assert heard == ["retry", "completed", "retry", "completed"]
