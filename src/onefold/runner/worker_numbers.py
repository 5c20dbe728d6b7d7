"""What a worker counts: its numbers while it runs, and its report when it has ended.

Never here: events and history (`reports.py`), metrics. Invariant: reading the numbers changes nothing and waits for nobody.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onefold.outside import Clock
    from onefold.runner.execution import InFlight
    from onefold.runtime.outage import Outage

RATE_MS = 5_000  # `per_second` covers this much time
_POINTS = 20  # number of points in that time
_DEAD_LETTERED = ("dead-letter", "quarantine", "conflict", "malformed", "untrusted", "no-job", "group-stopped")


class WorkerSnapshot(Struct, frozen=True, kw_only=True):
    """A worker's numbers since it started.

    Args:
        received: deliveries received. started: handlers (and probes) passed to a lane.
        completed, duplicates, retried: settled that way. dead_lettered: moved to a dead-letter queue, for whatever reason.
        held: moved to a held queue. given_back: returned without being started. lost: leases lost.
        in_hand: received, not yet settled. running: passed to a lane, not yet settled.
        per_second: completed per second, over the last 5 s. sink_failures: events for which a sink raised or was too
            slow.
        progress_age_ms: time since the worker last made progress, or had nothing to do.
        engine_failing_ms: for how long every call of the engine has failed; 0: they do not fail. engine_failure: the
            code of the last error.
    """

    received: int
    started: int
    completed: int
    duplicates: int
    retried: int
    dead_lettered: int = field(name="buried")  # the name in JSON
    held: int
    given_back: int
    lost: int
    in_hand: int
    running: int
    per_second: float
    sink_failures: int = 0
    progress_age_ms: int = 0
    engine_failing_ms: int = 0
    engine_failure: str = ""


class ExitReport(Struct, frozen=True, kw_only=True):
    """How a worker ended.

    Args:
        code: 0 drained; 3 stopped at once, or after the grace time, with work in progress.
        left: what was still running, as `job key`; the worker that takes it over decides by the job's policy.
        counts: the final numbers.
        not_taken: with `until_empty`, by queue: messages that were left because no job here takes them, and on a FIFO
            queue those behind them that were received.
    """

    code: Literal[0, 3]
    left: tuple[str, ...]
    counts: WorkerSnapshot
    not_taken: Mapping[str, int] = {}


class Numbers:
    """Counts what a worker does, and how fast it is. Written by one thread, read by any.

    Attributes:
        started: handlers (and probes) passed to a lane.
    """

    def __init__(self, in_flight: InFlight, outage: Outage, clock: Clock) -> None:
        self._in_flight = in_flight
        self._outage = outage
        self._clock = clock
        self._points: deque[tuple[int, int]] = deque()
        self.started = 0
        self._progress_ms = clock.monotonic_ms()

    def progressed(self) -> None:
        """Note that the worker made progress, or had nothing to do."""
        self._progress_ms = self._clock.monotonic_ms()

    def note(self, now_ms: int) -> None:
        """Note how many runs are completed at a monotonic instant; calls in too short a time do nothing."""
        if self._points and now_ms - self._points[-1][0] < RATE_MS // _POINTS:
            return
        self._points.append((now_ms, self._in_flight.counts().get("completed", 0)))
        while now_ms - self._points[0][0] > RATE_MS:
            self._points.popleft()

    def snapshot(self, running: int, sink_failures: int) -> WorkerSnapshot:
        """The current numbers."""
        counts = self._in_flight.counts()
        now_ms, completed = self._clock.monotonic_ms(), counts.get("completed", 0)
        since_ms, before = next(iter(self._points.copy()), (now_ms, completed))
        return WorkerSnapshot(
            received=counts.get("received", 0),
            started=self.started,
            completed=completed,
            duplicates=counts.get("duplicate", 0),
            retried=counts.get("retry", 0),
            dead_lettered=sum(counts.get(name, 0) for name in _DEAD_LETTERED),
            held=counts.get("held", 0),
            given_back=counts.get("released", 0),
            lost=counts.get("lease-lost", 0),
            in_hand=len(self._in_flight),
            running=running,
            per_second=(completed - before) * 1000 / max(now_ms - since_ms, 1),
            sink_failures=sink_failures,
            progress_age_ms=max(now_ms - self._progress_ms, 0),
            engine_failing_ms=self._outage.age_ms(),
            engine_failure=self._outage.code,
        )
