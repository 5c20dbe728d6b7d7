"""A clock that moves only when it is moved: for tests, inline runs, and local services whose time a test controls.

It has both readings and the wait of `clock.py`; a wait ends when its waiter is woken or the clock has been advanced far
enough.

Never here: real time, except for the short sleeps between which a wait checks whether it has ended.
Invariant: monotonic time moves only by `advance`, wall time only by `advance` and `jump`.
Private: may change with any release.
"""

from __future__ import annotations

import threading

from onefold.outside import Waiter


class ManualClock:
    """A clock that moves only when asked to; for tests and inline runs. Safe to share between threads.

    Args:
        start_ms: the first reading of `now_ms`, milliseconds since the epoch.
    """

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._lock = threading.Condition()
        self._now_ms = start_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        """The time to which the clock was last moved."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """By how many milliseconds this clock has been advanced since it was made."""
        return self._monotonic_ms

    def advance(self, by_ms: int) -> None:
        """Move time forward by `by_ms` milliseconds (0 or more) and wake everything that waits on this clock.

        Raises:
            ValueError: `by_ms` is negative; use `jump` for a wall clock that was set back. TypeError: it is not a number.
        """
        if not isinstance(by_ms, int | float):
            raise TypeError(f"advance({by_ms!r}): it takes milliseconds; 30 minutes are 30 * 60_000")
        if by_ms < 0:
            raise ValueError(f"advance({by_ms}): a monotonic clock cannot go back; jump() moves the wall clock")
        with self._lock:
            self._now_ms += by_ms
            self._monotonic_ms += by_ms
            self._lock.notify_all()

    def jump(self, by_ms: int) -> None:
        """Set the wall clock forward or back by `by_ms` milliseconds; monotonic time does not change."""
        with self._lock:
            self._now_ms += by_ms

    def wait(self, waiter: Waiter, timeout_ms: int) -> bool:
        """Wait until `waiter` is woken or the clock has been advanced by `timeout_ms`."""
        with self._lock:
            end_ms = self._monotonic_ms + max(timeout_ms, 0)
            while True:
                if waiter.wait(0):
                    return True
                if self._monotonic_ms >= end_ms:
                    return False
                self._lock.wait(0.005)
