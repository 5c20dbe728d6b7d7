"""Reports what a runner does: to the sinks at once, and to the history if its level keeps it.

Rows that belong to a settlement are only built here; they are written with it. All others are appended at once. If the
history cannot be written, the work goes on, because the sinks have received the event.
Never here: what the events mean (`events.py`), decisions. Invariant: a lost lease is reported once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from onefold import errors
from onefold.contracts.ledger import counts_of
from onefold.interrupts import ignored, let_through
from onefold.limits import MINUTE_MS
from onefold.record import attempt as script
from onefold.record.error_text import error_name, trace_of
from onefold.runner.handlers import run_of
from onefold.runtime.events import EVENTS, Event, kept, kept_text
from onefold.runtime.outage import Outage

_KEPT: Final = frozenset(
    {"failed", "unknown", "held", "lease-lost", "record-gone", "takeover", "probe", "completion-failed"}
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onefold.contracts.ledger import History, Row
    from onefold.contracts.queue import Delivery
    from onefold.contracts.verbs import Ledger
    from onefold.outside import Clock
    from onefold.record.delivery import Detail
    from onefold.runner.execution import Execution
    from onefold.runtime.events import Sinks


class Reports:
    """Reports the events of one owner to sinks and ledger.

    Args:
        ledger: the history. history: what it keeps.
        owner: id of the process, which is in each event.
    """

    def __init__(self, sinks: Sinks, ledger: Ledger, *, history: History, clock: Clock, owner: str) -> None:
        self._sinks = sinks
        self._tracing = sinks.tracing
        self._ledger = ledger
        self._history = history
        self._clock = clock
        self._owner = owner
        self._limited_ms: dict[str, int] = {}  # monotonic instant from which a delay by a job's limit is reported again
        self.request_id: str | None = None  # of the current invocation, on Lambda

    def of_decision(self, run: Execution) -> tuple[list[Event], list[Row]]:
        """The events of a run's decision, to be emitted once it is written, and the rows to be written with it."""
        events, rows = [], []
        for note in run.decided().notes:
            if note.event == "lease-lost":
                continue  # `lease_lost` reports it, at once and only once
            keep = kept(note.event, self._history, run=run.facts.run) or (
                len(note.detail) > 1 and bool(counts_of(note.detail))  # without counters, a completion has its attempt
            )
            if keep or self._sinks.takes(note.event):
                event = self.event(note.event, run.delivery, run, note.detail)
                events.append(event.quietly() if run.is_limited and not self._is_due(run.job.name) else event)
                if keep:
                    rows.append(event.row())
        return events, rows

    def _is_due(self, job: str) -> bool:
        """Whether to report a delivery that this job's limit delays at the usual level: one a minute is."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._limited_ms.get(job, now_ms):
            return False
        self._limited_ms[job] = now_ms + MINUTE_MS
        return True

    def released(self, deliveries: Sequence[Delivery], why: str) -> None:
        """Report that deliveries were returned without being begun."""
        if self._sinks.takes("released"):
            self._sinks.emit_all([self.event("released", one, None, {"why": why}) for one in deliveries])

    def event(self, name: str, delivery: Delivery, run: Execution | None, detail: Detail) -> Event:
        """An event about a delivery."""
        now_ms, took_ms, wait_ms = self._clock.now_ms(), None, None
        trace_id, span_id = (None, None) if self._tracing is None else self._tracing.ids(run, delivery)
        if run is not None and run.ctx is not None and isinstance(run.step, script.Commit):
            took_ms = run.took_ms
            if run.attempt == 1 and delivery.message_id:
                wait_ms = now_ms - took_ms - delivery.sent_at_ms
        return Event(
            at_ms=now_ms,
            name=name,
            key=run.facts.key if run is not None else None,
            queue=delivery.queue or None,  # a call has no queue
            message_id=delivery.message_id or None,
            group=delivery.group,
            receive_count=delivery.receive_count or None,
            run=run.facts.run if run is not None else run_of(delivery),
            actor=self._owner,
            detail=detail,
            took_ms=took_ms,
            wait_ms=wait_ms,
            request_id=self.request_id,
            trace_id=trace_id,
            span_id=span_id,
        ).carrying(run.raised if run is not None and EVENTS[name].severity not in ("debug", "info") else None)

    def unwritten(self, name: str, run: Execution) -> Event:
        """The event that a run's decision could not be written, with the backend's last error."""
        detail: Detail = {"attempt": run.attempt}
        if run.error is not None:
            detail = {**detail, "error": error_name(run.error), "summary": kept_text(run.error)}
        return self.event(name, run.delivery, run, detail)

    def emit(self, event: Event) -> None:
        """Send the event to the sinks; a lost lease or record also goes to the history, because no settlement writes it."""
        self._sinks.emit(event)
        if event.name in ("lease-lost", "record-gone"):
            self.append([event.row()])

    def emit_all(self, events: Sequence[Event]) -> None:
        """Send the events of settled runs to the sinks; their rows were written with the settlements."""
        self._sinks.emit_all(events)

    def append(self, rows: Sequence[Row]) -> None:
        """Add rows to the history, if one is kept and can be written to."""
        if rows and self._history != "off":
            with ignored(errors.OnefoldError):  # the store has failed, but the sinks have received the event
                self._ledger.append(rows)

    def lease_lost(self, run: Execution) -> None:
        """Mark a run's lease as lost, so that its handler can see it, and report it once."""
        if run.ctx is not None:
            run.ctx.lease_lost = True
        if not run.lost:
            run.lost = True
            self.emit(self.event("lease-lost", run.delivery, run, {"attempt": run.attempt}))

    def record_gone(self, run: Execution) -> None:
        """Report that a run's record had disappeared from the store and was restored."""
        detail: Detail = {"attempt": run.attempt, "fence": run.hold.fence}
        self.emit(self.event("record-gone", run.delivery, run, detail))

    def begun(self, runs: Sequence[Execution]) -> None:
        """At history level `full`: report which messages were received, and which handlers are called now."""
        if not kept("started", self._history):
            return
        events = []
        for run in runs:
            events.append(self.event("received", run.delivery, run, {}))
            if run.claimed is not None and run.claimed.started:
                detail: Detail = {"attempt": run.attempt, "fence": run.claimed.hold.fence}
                events.append(self.event("started", run.delivery, run, detail))
        self._sinks.emit_all(events)
        with ignored(errors.OnefoldError):  # as below
            self._ledger.append([event.row() for event in events])

    def of_run(self, name: str, run: Execution, detail: Detail) -> None:
        """Report an event of a run that is not part of its settlement; events of level `full` only at that level."""
        if EVENTS[name].kept == "full" and not kept(name, self._history):
            return
        self._keep(self.event(name, run.delivery, run, detail))

    def waits_for_job(self, delivery: Delivery, detail: Detail) -> None:
        """Report that a message waits for a worker that has its job."""
        self._keep(self.event("waits-for-job", delivery, None, detail))

    @property
    def sink_failures(self) -> int:
        """How many times a sink raised."""
        return self._sinks.failures

    def end_sinks(self) -> None:
        """End reporting: wait briefly for sinks that are behind."""
        self._sinks.end()

    def of_process(self, name: str, detail: Detail, error: BaseException | None = None) -> None:
        """Report an event of this process."""
        at_ms = self._clock.now_ms()
        event = Event(at_ms=at_ms, name=name, actor=self._owner, detail=detail, request_id=self.request_id)
        self._keep(event.carrying(error))

    def overrun(self, run: Execution) -> None:
        """Report that a handler still runs after its timeout."""
        timeout_ms, now_ms = run.job.policy.timeout_ms, self._clock.monotonic_ms()
        running_ms = now_ms + timeout_ms - (run.deadline_ms if run.deadline_ms is not None else now_ms)
        self.of_run("overrun", run, {"timeout_ms": timeout_ms, "running_ms": running_ms})

    def thread_failed(self, name: str, error: Exception) -> None:
        """Report that a background thread raised an error."""
        kept_trace = trace_of(error, kept_text)
        detail: Detail = {"thread": name, "error": type(error).__name__, "summary": kept_text(error)}
        self.of_process("thread-failed", {**detail, "where": kept_trace.at or None, "trace": kept_trace.text}, error)

    def outage(self) -> Outage:
        """An `Outage` that reports here when calls of the engine fail."""
        return Outage(self._clock, self.of_process)

    def busy(self, error: errors.OnefoldError, **where: str | int) -> None:
        """Report that the backend could not do something for now."""
        self.of_process("engine-busy", {**where, "error": error.code, "summary": str(error)[:500]}, error)

    def _keep(self, event: Event) -> None:
        self._sinks.emit(event)
        if kept(event.name, self._history):
            with ignored(errors.OnefoldError):  # the sinks have received the event; a full disk must not stop the work
                self._ledger.append([event.row()])


class CallReports(Reports):
    """Reports of calls of one guarded function: outcomes except plain completion go to the history, if there is one."""

    def __init__(self, name: str, sinks: Sinks, ledger: Ledger | None, clock: Clock, owner: str) -> None:
        super().__init__(sinks, cast("Ledger", ledger), history="off", clock=clock, owner=owner)
        self._name = name
        self._sink_events = sinks
        self.has_ledger = ledger is not None
        self._warned = False
        self.is_followed = bool(sinks)

    def of_decision(self, run: Execution) -> tuple[list[Event], list[Row]]:
        """Like `Reports.of_decision`, but the rows are appended when the events are emitted."""
        notes = run.decided().notes if self.is_followed or self.has_ledger else ()
        return [
            self.event(note.event, run.delivery, run, note.detail) for note in notes if note.event != "lease-lost"
        ], []

    def emit(self, event: Event) -> None:
        """Send the event to the sinks and, if the history keeps such events, to the history."""
        self._sink_events.emit(event)
        if self.has_ledger and event.name in _KEPT:
            self.append([event.row()])

    def emit_all(self, events: Sequence[Event]) -> None:
        """Like `emit`: rows of a call are not written with its settlement."""
        for event in events:
            self.emit(event)

    def record_gone(self, run: Execution) -> None:
        """Like `Reports.record_gone`; it is also logged, since most calls have no sink."""
        super().record_gone(run)
        import logging  # as below

        logging.getLogger("onefold").warning(
            "%s %r: its record disappeared from the store while it ran (a flush, eviction, delete or restored backup). "
            "It was written again, and the call counts. Records of other keys may be lost too, and calls with them would "
            "run again: configure the store so that it keeps its records.",
            self._name,
            run.hold.key.key,
        )

    def append(self, rows: Sequence[Row]) -> None:
        """Add rows to the history, if it can be written to; a refused row does not fail the call."""
        if rows and self.has_ledger:
            try:
                self._ledger.append(rows)
            except errors.OnefoldError as error:
                let_through(error)
                self.warn(error)

    def warn(self, error: errors.OnefoldError) -> None:
        """Warn, once, that the history refuses rows permanently."""
        if not self._warned and not isinstance(error, errors.TransientError):
            self._warned = True
            import logging  # 8 ms to import, and most stores accept their rows

            logging.getLogger("onefold").warning(
                "The history of %s is not kept: %s %s Its calls continue, but a call whose process died cannot be repeated "
                "until the store accepts the row that records this.",
                self._name,
                error.what,
                error.todo,
            )


def thread_fault(error: Exception) -> errors.InvariantBroken:
    """The error with which a worker ends when one of its background threads could not continue."""
    fault = errors.InvariantBroken(
        f"A background thread of the worker failed repeatedly: {type(error).__name__}: {kept_text(error)}",
        meaning="Without it, leases are not extended, deadlines not enforced, or dead owners not noticed. So the worker"
        " drained and ended; nothing is lost, and other workers continue.",
        todo="Read the `thread-failed` events before this one, fix what they name, and start the worker again.",
    )
    fault.__cause__ = error
    return fault
