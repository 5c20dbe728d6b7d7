"""Reporting what a runner does: to the sinks at once, into the history as much of it as its level keeps; a worker's numbers.

Rows that belong to a settlement are only made here; they are written with it. All others are appended at once, and a history
that cannot be written does not stop the work: the sinks have had the event.
Never here: what the events mean (`events.py`), decisions. Invariant: a lost lease is reported once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Literal, cast

from msgspec import Struct

from onefold import errors
from onefold.interrupts import ignored, let_through
from onefold.runner.handlers import run_of
from onefold.runtime.events import EVENTS, Event, kept

_KEPT: Final = frozenset(
    {"failed", "unknown", "held", "lease-lost", "record-gone", "takeover", "probe", "completion-failed"}
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onefold.contracts.ledger import History, Row
    from onefold.contracts.queue import Delivery
    from onefold.contracts.verbs import Ledger
    from onefold.outside import Clock
    from onefold.record.delivery import Detail
    from onefold.runner.execution import Execution, InFlight
    from onefold.runtime.events import Sinks


class Reports:
    """Reports what one owner does to sinks and ledger.

    Args:
        ledger: the history. history: what it keeps.
        owner: id of the process, which each event names.
    """

    def __init__(self, sinks: Sinks, ledger: Ledger, *, history: History, clock: Clock, owner: str) -> None:
        self._sinks = sinks
        self._ledger = ledger
        self._history = history
        self._clock = clock
        self._owner = owner

    def of_decision(self, run: Execution) -> tuple[list[Event], list[Row]]:
        """What a run's decision reports once it is written, and the rows to be written with it."""
        events, rows = [], []
        for note in run.decided().notes:
            if note.event == "lease-lost":
                continue  # reported by `lease_lost`: at once, and once
            keep = kept(note.event, self._history, run=run.facts.run)
            if keep or self._sinks:
                event = self.event(note.event, run.delivery, run, note.detail)
                events.append(event)
                if keep:
                    rows.append(event.row())
        return events, rows

    def released(self, deliveries: Sequence[Delivery], why: str) -> None:
        """Deliveries were returned that were not begun."""
        if self._sinks:
            for one in deliveries:
                self._sinks.emit(self.event("released", one, None, {"why": why}))

    def event(self, name: str, delivery: Delivery, run: Execution | None, detail: Detail) -> Event:
        """One fact about a delivery."""
        return Event(
            at_ms=self._clock.now_ms(),
            name=name,
            key=run.facts.key if run is not None else None,
            queue=delivery.queue or None,  # of a call: none
            message_id=delivery.message_id or None,
            group=delivery.group,
            receive_count=delivery.receive_count or None,
            run=run.facts.run if run is not None else run_of(delivery),
            actor=self._owner,
            detail=detail,
        )

    def emit(self, event: Event) -> None:
        """To the sinks; a lost lease or record also into the history, as no settlement says so."""
        self._sinks.emit(event)
        if event.name in ("lease-lost", "record-gone"):
            self.append([event.row()])

    def append(self, rows: Sequence[Row]) -> None:
        """Into the history, where any is kept and can be written."""
        if rows and self._history != "off":
            with ignored(errors.OnefoldError):  # the store is what failed; the sinks have heard it
                self._ledger.append(rows)

    def lease_lost(self, run: Execution) -> None:
        """A run lost its lease: its handler can see it from now on, which is reported once."""
        if run.ctx is not None:
            run.ctx.lease_lost = True
        if not run.lost:
            run.lost = True
            self.emit(self.event("lease-lost", run.delivery, run, {"attempt": run.attempt}))

    def record_gone(self, run: Execution) -> None:
        """The record of a run was gone from the store, and was put back."""
        detail: Detail = {"attempt": run.attempt, "fence": run.hold.fence}
        self.emit(self.event("record-gone", run.delivery, run, detail))

    def begun(self, runs: Sequence[Execution]) -> None:
        """At history `full`: that messages were received, and which of their handlers are called now."""
        if not kept("started", self._history):
            return
        events = []
        for run in runs:
            events.append(self.event("received", run.delivery, run, {}))
            if run.claimed is not None and run.claimed.started:
                detail: Detail = {"attempt": run.attempt, "fence": run.claimed.hold.fence}
                events.append(self.event("started", run.delivery, run, detail))
        for event in events:
            self._sinks.emit(event)
        with ignored(errors.TransientError):
            self._ledger.append([event.row() for event in events])

    def of_run(self, name: str, run: Execution, detail: Detail) -> None:
        """Report something of a run that is not part of its settlement; what only `full` keeps, only at `full`."""
        if EVENTS[name].kept == "full" and not kept(name, self._history):
            return
        self._keep(self.event(name, run.delivery, run, detail))

    def waits_for_job(self, delivery: Delivery, detail: Detail) -> None:
        """Report that a message waits for somebody who takes it."""
        self._keep(self.event("waits-for-job", delivery, None, detail))

    @property
    def sink_failures(self) -> int:
        """How many times a sink raised."""
        return self._sinks.failures

    def of_process(self, name: str, detail: Detail) -> None:
        """Report something of this process."""
        self._keep(Event(at_ms=self._clock.now_ms(), name=name, actor=self._owner, detail=detail))

    def overrun(self, run: Execution) -> None:
        """Report that a handler still runs after its timeout."""
        timeout_ms, now_ms = run.job.policy.timeout_ms, self._clock.monotonic_ms()
        running_ms = now_ms + timeout_ms - (run.deadline_ms if run.deadline_ms is not None else now_ms)
        self.of_run("overrun", run, {"timeout_ms": timeout_ms, "running_ms": running_ms})

    def busy(self, error: errors.OnefoldError, **where: str | int) -> None:
        """Report that the backend could not do something for now."""
        self.of_process("engine-busy", {**where, "error": error.code, "summary": str(error)[:500]})

    def _keep(self, event: Event) -> None:
        self._sinks.emit(event)
        if kept(event.name, self._history):
            with ignored(errors.TransientError):  # the sinks have heard it; a full disk must not stop the work
                self._ledger.append([event.row()])


class CallReports(Reports):
    """Of calls of one guarded function: what did not simply complete is kept after its record, where there is a history."""

    def __init__(self, name: str, sinks: Sinks, ledger: Ledger | None, clock: Clock, owner: str) -> None:
        super().__init__(sinks, cast("Ledger", ledger), history="off", clock=clock, owner=owner)
        self._name = name
        self._sink_events = sinks
        self.has_ledger = ledger is not None
        self._warned = False
        self.is_followed = bool(sinks)

    def of_decision(self, run: Execution) -> tuple[list[Event], list[Row]]:
        """As `Reports.of_decision`; the rows are appended when the events are emitted."""
        notes = run.decided().notes if self.is_followed or self.has_ledger else ()
        return [
            self.event(note.event, run.delivery, run, note.detail) for note in notes if note.event != "lease-lost"
        ], []

    def emit(self, event: Event) -> None:
        """To the sinks and, if it is one of those, into the history."""
        self._sink_events.emit(event)
        if self.has_ledger and event.name in _KEPT:
            self.append([event.row()])

    def record_gone(self, run: Execution) -> None:
        """As `Reports.record_gone`; it is logged, too, since most calls have no sink."""
        super().record_gone(run)
        import logging  # as below

        logging.getLogger("onefold").warning(
            "%s %r: its record was gone from the store while it ran (flushed, evicted, deleted or restored from a backup). "
            "It was put back, and the call counts. Records of other keys may be lost, too, and calls with these would run "
            "again: have the store keep its records.",
            self._name,
            run.hold.key.key,
        )

    def append(self, rows: Sequence[Row]) -> None:
        """Into the history, where it can be written; a row that is refused does not fail the call."""
        if rows and self.has_ledger:
            try:
                self._ledger.append(rows)
            except errors.OnefoldError as error:
                let_through(error)
                self.warn(error)

    def warn(self, error: errors.OnefoldError) -> None:
        """Once, of a history that refuses rows for good."""
        if not self._warned and not isinstance(error, errors.TransientError):
            self._warned = True
            import logging  # 8 ms to import, and most stores take their rows

            logging.getLogger("onefold").warning(
                "The history of %s is not kept: %s %s Its calls go on, but one whose process has died cannot be made again "
                "until the store takes the row that says so.",
                self._name,
                error.what,
                error.todo,
            )


RATE_MS = 5_000  # `per_second` looks back so far,
_POINTS = 20  # over so many points
_BURIED = ("dead-letter", "quarantine", "conflict", "malformed", "untrusted", "no-job", "group-stopped")


class Snapshot(Struct, frozen=True, kw_only=True):
    """A worker's numbers since it started.

    Args:
        received: deliveries. started: handlers (and probes) handed to a lane.
        completed, duplicates, retried: settled so. buried: to a dead-letter queue, for whatever reason.
        held: to a held queue. given_back: not begun. lost: leases.
        in_hand: received and not settled. running: handed to a lane and not settled.
        per_second: completed, over the last 5 s. sink_failures: how many times a sink of the app raised.
    """

    received: int
    started: int
    completed: int
    duplicates: int
    retried: int
    buried: int
    held: int
    given_back: int
    lost: int
    in_hand: int
    running: int
    per_second: float
    sink_failures: int = 0


class ExitReport(Struct, frozen=True, kw_only=True):
    """How a worker ended.

    Args:
        code: 0 drained; 3 stopped at once, or after the grace time, with work in hand.
        left: what still ran then, as `job key`; whoever takes over decides by the job's policy.
        counts: the last numbers.
        not_taken: with `until_empty`, by queue: messages that were left because no job here takes them, and on a FIFO
            queue those behind them that were received.
    """

    code: Literal[0, 3]
    left: tuple[str, ...]
    counts: Snapshot
    not_taken: Mapping[str, int] = {}


class Numbers:
    """Counts what a worker does, and how fast. Noted by one thread, read by any.

    Attributes:
        started: handlers (and probes) handed to a lane.
    """

    def __init__(self, in_flight: InFlight, clock: Clock) -> None:
        self._in_flight = in_flight
        self._clock = clock
        self._points: deque[tuple[int, int]] = deque()
        self.started = 0

    def note(self, now_ms: int) -> None:
        """Note how much is completed, now and then, at a monotonic instant."""
        if self._points and now_ms - self._points[-1][0] < RATE_MS // _POINTS:
            return
        self._points.append((now_ms, self._in_flight.counts().get("completed", 0)))
        while now_ms - self._points[0][0] > RATE_MS:
            self._points.popleft()

    def snapshot(self, running: int, sink_failures: int) -> Snapshot:
        """The numbers of this moment."""
        counts = self._in_flight.counts()
        now_ms, completed = self._clock.monotonic_ms(), counts.get("completed", 0)
        since_ms, before = next(iter(self._points.copy()), (now_ms, completed))
        return Snapshot(
            received=counts.get("received", 0),
            started=self.started,
            completed=completed,
            duplicates=counts.get("duplicate", 0),
            retried=counts.get("retry", 0),
            buried=sum(counts.get(name, 0) for name in _BURIED),
            held=counts.get("held", 0),
            given_back=counts.get("released", 0),
            lost=counts.get("lease-lost", 0),
            in_hand=len(self._in_flight),
            running=running,
            per_second=(completed - before) * 1000 / max(now_ms - since_ms, 1),
            sink_failures=sink_failures,
        )
