"""What a worker says of itself: its numbers while it works, and how it ended.

Values for faces to print and tests to assert; nothing here changes what a worker does.
Never here: formatting, events. Invariant: a number counts what has been settled, never what is hoped for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

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

    @classmethod
    def of(
        cls,
        counts: Mapping[str, int],
        *,
        started: int,
        in_hand: int,
        running: int,
        per_second: float,
        sink_failures: int = 0,
    ) -> Snapshot:
        """From how often each event was told (`Hand.counts`)."""
        return cls(
            received=counts.get("received", 0),
            started=started,
            completed=counts.get("completed", 0),
            duplicates=counts.get("duplicate", 0),
            retried=counts.get("retry", 0),
            buried=sum(counts.get(name, 0) for name in _BURIED),
            held=counts.get("held", 0),
            given_back=counts.get("released", 0),
            lost=counts.get("lease-lost", 0),
            in_hand=in_hand,
            running=running,
            per_second=per_second,
            sink_failures=sink_failures,
        )


class ExitReport(Struct, frozen=True, kw_only=True):
    """How a worker ended.

    Args:
        code: 0 drained; 3 stopped at once, or after the grace time, with work in hand.
        left: what still ran then, as `job key`; whoever takes over decides by the job's policy.
        counts: the last numbers.
    """

    code: Literal[0, 3]
    left: tuple[str, ...]
    counts: Snapshot


class Rate:
    """How fast a count grows. Noted by one thread, read by any."""

    def __init__(self) -> None:
        self._points: deque[tuple[int, int]] = deque()

    def due(self, now_ms: int) -> bool:
        """Whether the count should be noted again."""
        return not self._points or now_ms - self._points[-1][0] >= RATE_MS // _POINTS

    def note(self, now_ms: int, count: int) -> None:
        """The count at a monotonic instant."""
        self._points.append((now_ms, count))
        while now_ms - self._points[0][0] > RATE_MS:
            self._points.popleft()

    def per_second(self, now_ms: int, count: int) -> float:
        """Growth per second since the oldest point that is kept."""
        since_ms, before = next(iter(self._points.copy()), (now_ms, count))
        return (count - before) * 1000 / max(now_ms - since_ms, 1)
