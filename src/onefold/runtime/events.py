"""The events that runners and workers emit: one frozen type, one table of names, one `Sink` protocol to receive them.

An event is a fact that others may log, count, graph or alarm on. It never holds a payload. The same events, as rows of
the ledger, are the history behind `why`; `EVENTS` lists the severity of each and the history level that keeps it. The
text of an exception gets into records, dead letters, logs and events only through `kept_text` and `is_kept`: one line,
cut and masked, or nothing where the user switched it off.
Never here: decisions, formatting, or anything that depends on which sinks there are. Invariant: a sink that fails does not
fail the job (`Sinks` catches, counts and logs), and where texts of exceptions are switched off, none is emitted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from msgspec import Struct

from onefold import limits, redact
from onefold.contracts.ledger import OUTCOME_EVENTS, History, Row
from onefold.contracts.store import RecordKey
from onefold.errors import UsageError
from onefold.record.error_text import summary_of, text_of, trace_of

if TYPE_CHECKING:
    from onefold.runtime.tracing import Tracing

Severity = Literal["debug", "info", "warning", "error", "critical"]


class Meaning(Struct, frozen=True):
    """What an event's name means.

    Args:
        severity: its level in logs.
        kept: the lowest history level at which the ledger keeps it.
        text: one line for people.
    """

    severity: Severity
    kept: History
    text: str


EVENTS: Final[Mapping[str, Meaning]] = {
    "received": Meaning("debug", "full", "a worker received the message"),
    "started": Meaning("debug", "full", "the handler was called"),
    "completed": Meaning("info", "full", "the effect happened and its record is kept"),
    "duplicate": Meaning("info", "brief", "answered from the record; the handler did not run"),
    "running-elsewhere": Meaning("debug", "full", "another run of the same key is under way; waits"),
    "takeover": Meaning(
        "warning", "off", "an earlier run ended, or lost its lease, without reporting an outcome; this run takes over"
    ),
    "unknown": Meaning(
        "warning", "off", "the previous run died or lost its answer; it is unknown whether it took effect"
    ),
    "probe": Meaning("warning", "brief", "the job's probe was asked whether the effect happened"),
    "held": Meaning("error", "brief", "waiting for a person: its outcome is unknown"),
    "failed": Meaning("warning", "brief", "the call raised; its key is free, and the next call runs it"),
    "retry": Meaning("warning", "brief", "failed for now; will be delivered again"),
    "dead-letter": Meaning("error", "brief", "moved to the dead-letter queue"),
    "quarantine": Meaning("error", "brief", "it ended its worker too often; moved to the dead-letter queue"),
    "conflict": Meaning("error", "brief", "the key came with another payload; moved to the dead-letter queue"),
    "malformed": Meaning("error", "brief", "cannot be read as the job's payload; moved to the dead-letter queue"),
    "untrusted": Meaning(
        "error", "brief", "its attributes claim what only the app's own onefold may set; moved to the dead-letter queue"
    ),
    "no-job": Meaning("error", "brief", "its job is not declared on its queue; moved to the dead-letter queue"),
    "dead-letters-expire": Meaning(
        "warning", "brief", "the first messages of a dead-letter or held queue expire within a day"
    ),
    "waits-for-job": Meaning("warning", "brief", "messages wait for a worker that declares their job"),
    "discarded": Meaning("info", "brief", "not meant for a job (a test event of its sender); deleted"),
    "group-stopped": Meaning("warning", "brief", "its group is stopped; followed to the dead-letter queue"),
    "group-resumed": Meaning("info", "brief", "a stopped group runs again: none of its dead letters was left"),
    "released": Meaning("info", "brief", "returned to its queue without having been started"),
    "dependency-down": Meaning("error", "brief", "the dependency refuses everything; no attempt was used"),
    "paused": Meaning("error", "brief", "the job is paused by its circuit breaker"),
    "name-given": Meaning("info", "brief", "a person transferred the name of an operation to another app"),
    "resumed": Meaning("info", "brief", "the job's circuit breaker closed again"),
    "overrun": Meaning(
        "error", "brief", "the handler passed its timeout; in a thread it keeps running, and keeps its key"
    ),
    "lease-lost": Meaning("error", "brief", "the run lost its lease; none of it was recorded"),
    "record-gone": Meaning(
        "error",
        "off",
        "the record of a run under way was gone from the store (flushed, evicted, deleted); it was put back",
    ),
    "record-unreadable": Meaning(
        "error", "brief", "what is stored under its key is not a record that can be read; nothing ran, and it waits"
    ),
    "unsettled": Meaning("error", "brief", "what was decided could not be written; the message is delivered again"),
    "completion-failed": Meaning("critical", "brief", "THE EFFECT HAPPENED BUT ITS RECORD COULD NOT BE WRITTEN"),
    "owner-dead": Meaning("warning", "brief", "a worker process died; its work was released"),
    "worker-started": Meaning("info", "brief", "a worker process started"),
    "worker-draining": Meaning("info", "brief", "a worker stopped receiving and finishes what it has"),
    "worker-stopped": Meaning("info", "brief", "a worker process ended"),
    "engine-busy": Meaning("error", "brief", "the engine could not be written for now; the worker goes on when it can"),
    "engine-unreachable": Meaning(
        "critical",
        "brief",
        "every call of the engine has failed for a minute or longer: nothing is received or recorded",
    ),
    "answer-ignored": Meaning(
        "critical",
        "brief",
        "messages that the Lambda handler named as failed were deleted: ReportBatchItemFailures is not set",
    ),
    "relay-failed": Meaning(
        "error", "brief", "for now the relay cannot pass on messages of the outbox; nothing is lost, it tries again"
    ),
    "outbox-refused": Meaning(
        "error", "brief", "its queue refused a message of the outbox; the row was put aside, and waits for a person"
    ),
    "thread-failed": Meaning(
        "critical",
        "brief",
        "a background thread of the worker raised an error; it is tried again, or the worker drains and ends",
    ),
    "dispatched": Meaning("debug", "full", "a message of a run was accepted"),
    "dispatch-restarted": Meaning(
        "warning",
        "off",
        "the dispatcher yielded different messages than before its interruption; all are sent again, under their keys",
    ),
    "ticked": Meaning("info", "brief", "a schedule's tick was sent to its queue"),
    "ticks-missed": Meaning("warning", "brief", "ticks whose time passed while no scheduler ran were skipped"),
    "tick-refused": Meaning("warning", "brief", "its queue did not take the tick; it is sent again"),
    "tick-dropped": Meaning(
        "critical", "brief", "A TICK WAS GIVEN UP: neither its queue nor a dead-letter queue took it"
    ),
    "ticks-orphaned": Meaning(
        "warning",
        "full",
        "unsent ticks wait for a schedule that is not declared any more; declare it again to send them",
    ),
    "map-empty": Meaning("warning", "brief", "a map run was started, but its source has no items"),
    "schedule-changed": Meaning("info", "brief", "the schedule has other times from now on"),
    "schedule-superseded": Meaning("warning", "brief", "a scheduler that started later has other times; those count"),
    "schedule-unreadable": Meaning(
        "critical", "brief", "the stored state of a schedule cannot be read: it sends no ticks"
    ),
    "tick-unreadable": Meaning(
        "critical", "brief", "a stored tick that is to be sent again cannot be read: it is not sent"
    ),
    "schedule-ended": Meaning("info", "brief", "the schedule has sent its last tick and is forgotten"),
    "clock-set": Meaning("warning", "brief", "the machine's clock was set forward or back"),
    "scheduler-started": Meaning("info", "full", "a scheduler started"),
    "scheduler-stopped": Meaning("info", "full", "a scheduler ended"),
    "sent": Meaning("debug", "full", "a message was accepted"),
    "reconciled": Meaning("info", "brief", "a run was checked afterwards: everything exists, once"),
    "reconcile-failed": Meaning("error", "brief", "A RUN IS NOT AS IT SHOULD BE: missing, twice, or not done in time"),
    "look-refused": Meaning(
        "error", "brief", "A RUN WILL NOT BE CHECKED: its reconciliation's queue does not take the message"
    ),
    "missing": Meaning(
        "error", "brief", "a reconciliation found that it was dispatched, is not done, and has no message"
    ),
    "resent": Meaning("warning", "off", "a repair sent it again, under its own key: no message or result was left"),
    "redrive": Meaning("warning", "off", "an operator sent a dead letter back"),
    "edit": Meaning("warning", "off", "an operator changed a dead letter's payload"),
    "removed": Meaning("warning", "off", "an operator deleted a message"),
    "purge": Meaning("warning", "off", "an operator emptied a queue"),
    "settled": Meaning("warning", "off", "an operator settled an unknown outcome"),
    "settings": Meaning("warning", "off", "an operator changed a queue's settings"),
    "schedule-paused": Meaning("warning", "off", "an operator paused the schedule: it sends no ticks"),
    "schedule-resumed": Meaning("warning", "off", "an operator resumed the schedule"),
    "tick-by-hand": Meaning("warning", "off", "an operator had a tick sent, under its own key"),
    "drain-asked": Meaning("warning", "off", "an operator asked a worker to finish what it runs and end"),
    "alarm-silenced": Meaning("warning", "off", "an operator silenced an alarm for a while"),
}
_RANK: Final[Mapping[str, int]] = {"off": 0, "brief": 1, "full": 2}


class Event(Struct, frozen=True, kw_only=True, dict=True):
    """One event. The exception is not a field, so that no encoder, comparison or `repr` of an event includes it.

    Args:
        at_ms: wall time.
        name: a key of EVENTS.
        key: the operation, where there is one.
        queue, message_id, group, receive_count: the message, where there is one.
        run: the tick or map run that its message belongs to.
        actor: owner id of the process, or `person:<login>`.
        detail: the numbers and rules that decided.
        took_ms: how long the handler ran, where it was called.
        wait_ms: from the send of the message until its handler was first called; negative where clocks differ.
        trace_id, span_id: while tracing is on, the span in which it happened: OpenTelemetry's ids, in hexadecimal.
        request_id: Lambda's request id of the invocation.
    """

    at_ms: int
    name: str
    key: RecordKey | None = None
    queue: str | None = None
    message_id: str | None = None
    group: str | None = None
    receive_count: int | None = None
    run: str | None = None
    actor: str | None = None
    detail: Mapping[str, str | int | bool | None] = {}
    took_ms: int | None = None
    wait_ms: int | None = None
    trace_id: str | None = None
    span_id: str | None = None
    request_id: str | None = None

    @property
    def exception(self) -> BaseException | None:
        """The exception, for sinks in the process that raised it; keeping it keeps the values of its frames alive."""
        found: BaseException | None = self.__dict__.get("exception_")
        return found

    @property
    def traceback(self) -> str:
        """Frames without locals, at most 4,000 characters, as Python prints them; empty if nothing was raised.

        It ends with the exceptions' own texts, bounded and masked, unless ONEFOLD_ERROR_TEXT is `off`.
        """
        kept_trace = self.detail.get("trace")
        if isinstance(kept_trace, str) or self.exception is None:
            return kept_trace if isinstance(kept_trace, str) else ""
        return trace_of(self.exception, text_of if is_kept() else _nothing_of).text

    def carrying(self, error: BaseException | None) -> Event:
        """The same event, with its exception for sinks in this process."""
        if error is not None:
            self.__dict__["exception_"] = error
        return self

    def quietly(self) -> Event:
        """The same event, at level debug: one like it has just been reported."""
        self.__dict__["quiet_"] = True
        return self

    @property
    def severity(self) -> Severity:
        """Its level in logs."""
        return "debug" if "quiet_" in self.__dict__ else EVENTS[self.name].severity

    def row(self) -> Row:
        """The same fact as a row of the ledger."""
        detail = self.detail
        if self.receive_count is not None and "receive_count" not in detail:
            detail = {**detail, "receive_count": self.receive_count}
        return Row(
            at_ms=self.at_ms,
            event=self.name,
            key=self.key,
            queue=self.queue,
            message_id=self.message_id,
            run=self.run,
            actor=self.actor,
            detail=detail,
        )


def kept(name: str, history: History, *, run: str | None = None) -> bool:
    """Whether the ledger keeps events of this name at this history level; outcomes in a run are always kept."""
    return _RANK[EVENTS[name].kept] <= _RANK[history] or (run is not None and name in OUTCOME_EVENTS)


class Sink(Protocol):
    """Receives events; must return quickly and may be called from any thread.

    Beside `emit` a sink may have `takes(name)`, which returns whether it does anything with events of this name, and
    `emit_all(events)`, which takes several at once. A subclass that has an `emit` of its own has its own of these too.
    """

    def emit(self, event: Event) -> None:
        """Take one event."""
        ...


def tracing_of(sinks: Iterable[object]) -> Tracing | None:
    """The tracing that one of the sinks provides; None if none does."""
    return next((found for sink in sinks if (found := getattr(sink, "tracing", None)) is not None), None)


def _beside_emit(sink: object, method: str) -> Any:
    """A sink's `takes` or `emit_all`; None if it has none, or only that of a base class whose `emit` it replaces."""
    for cls in type(sink).__mro__:
        if method in vars(cls):
            return getattr(sink, method)
        if "emit" in vars(cls):
            return None
    return None


def _does_take(takes: Callable[[str], bool] | None, name: str) -> bool:
    """The answer of a sink's `takes`; True where it has none, or where that raises: `emit` may do better."""
    try:
        return takes is None or takes(name)
    except Exception:  # noqa: BLE001 - a sink must never fail the job whose events it receives
        return True


class Sinks:
    """Several sinks as one. A sink's exception is counted and logged, never passed on to the job.

    Args:
        sinks: called in this order.
    """

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self._sinks = tuple(sinks)
        self._takes: list[Callable[[str], bool] | None] = [_beside_emit(sink, "takes") for sink in self._sinks]
        self._emit_all: list[Callable[[Sequence[Event]], None] | None] = [
            _beside_emit(sink, "emit_all") for sink in self._sinks
        ]
        self.tracing: Tracing | None = tracing_of(self._sinks)
        self._logged: dict[
            int, tuple[int, int]
        ] = {}  # for each sink: when its failure was last logged, and how many failures since
        self.failures: int = 0

    def __bool__(self) -> bool:
        return bool(self._sinks)

    def takes(self, name: str) -> bool:
        """Whether a sink does anything with events of this name; one that does not say so takes them all."""
        return any(_does_take(takes, name) for takes in self._takes)

    def emit(self, event: Event) -> None:
        """Pass the event to every sink that takes it."""
        self.emit_all((event,))

    def emit_all(self, events: Sequence[Event]) -> None:
        """Pass events to every sink that takes them; each gets them in this order."""
        if self.tracing is not None:
            stamped = self.tracing.stamped
            events = [event if event.trace_id is not None else stamped(event) for event in events]
        for index, takes in enumerate(self._takes):
            taken = [event for event in events if _does_take(takes, event.name)]
            if taken:
                self._pass_on(index, taken)

    def _pass_on(self, index: int, events: Sequence[Event]) -> None:
        """Pass events to one sink."""
        self._deliver(index, events)

    def flush(self, timeout_s: float = 0.0) -> bool:  # noqa: ARG002 - of sinks that queue
        """Wait until emitted events are delivered, at most `timeout_s` for all sinks together; True when they are.

        A fast sink that collects what it writes has a method `flush`, which is called here.
        """
        for sink in self._sinks:
            if getattr(sink, "is_quick", False) and callable(write := getattr(sink, "flush", None)):
                with suppress(Exception):
                    write()
        return True

    def end(self) -> None:
        """End emitting."""

    def _deliver(self, index: int, events: Sequence[Event]) -> None:
        emit_all = self._emit_all[index]
        if emit_all is None:
            for event in events:
                try:
                    self._sinks[index].emit(event)
                except Exception as error:  # noqa: BLE001 - a sink must never fail the job whose events it receives
                    self._lost(index, (event,), error)
            return
        try:
            emit_all(events)
        except Exception as error:  # noqa: BLE001 - as above
            self._lost(index, events, error)

    def _lost(self, index: int, events: Sequence[Event], error: Exception) -> None:
        for event in events:
            with suppress(Exception):  # logging its error must not fail the job either
                self._failed(index, event, error)

    def _failed(self, index: int, event: Event, error: Exception) -> None:
        """Count a sink's failure; log the first of each sink, and then at most one a minute."""
        self.failures += 1
        last_ms, unlogged = self._logged.get(index, (None, 0))
        if last_ms is not None and abs(event.at_ms - last_ms) < limits.MINUTE_MS:
            self._logged[index] = last_ms, unlogged + 1
            return
        self._logged[index] = event.at_ms, 0
        import logging  # 11 ms to import

        sink = self._sinks[index]
        more = f" {unlogged} more failed since the last such line." if unlogged else ""
        logging.getLogger("onefold").error(
            "The sink %s raised %s: %s. It lost the event %s; the work goes on.%s",
            (sink if isinstance(sink, type) else type(sink)).__qualname__,
            type(error).__qualname__,
            kept_text(error),
            event.name,
            more,
        )


def checked_sinks(sinks: object, app: str | None = None) -> tuple[Sink, ...]:
    """The value of `sinks=`, as a tuple.

    Args:
        app: the name of their app, which is passed to sinks with a method `for_app`.

    Raises:
        UsageError: not a list, or one of its items is not a sink.
    """
    if not isinstance(sinks, Iterable) or isinstance(sinks, str):
        raise UsageError(f"sinks={sinks!r:.80} is not a list.", todo="Write for example sinks=[onefold.LogSink()].")
    found = tuple(sinks)
    for sink in found:
        if isinstance(sink, type) or not callable(getattr(sink, "emit", None)):
            called = f" Write {sink.__qualname__}()." if isinstance(sink, type) else ""
            raise UsageError(
                f"sinks= has {sink!r:.80}, which is not a sink.",
                todo=f"A sink is an object with a method emit(event).{called}",
            )
    for sink in found:
        if app is not None and callable(for_app := getattr(sink, "for_app", None)):
            for_app(app)
    return found


ERROR_TEXT: Final = "ONEFOLD_ERROR_TEXT"  # `off`: texts of exceptions are kept nowhere; child processes inherit it
SWITCHED_OFF: Final = "(its text is switched off)"


def is_kept() -> bool:
    """Whether texts of exceptions may be kept."""
    return os.environ.get(ERROR_TEXT, "on") != "off"


def _nothing_of(_: BaseException) -> str:
    return ""


def masked_line(text: str) -> str:
    """A text of the user's as one line without secrets, at most 500 characters."""
    return redact.printable(redact.masked(text[:8_192]))[:500]


def kept_text(error: BaseException) -> str:
    """One line about an exception, at most 500 characters, as `failures.summary_of` writes it."""
    return summary_of(error) if is_kept() else SWITCHED_OFF
