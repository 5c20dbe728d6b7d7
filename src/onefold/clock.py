"""Time comes in through here and nowhere else: two readings and one wait.

A `Clock` gives wall time (`now_ms`, for what others read: records, messages, logs) and monotonic time
(`monotonic_ms`, for what we hold ourselves: deadlines, rates), and it performs every wait. `SystemClock` is the real
one; the `ManualClock` of `manual_clock.py` does not move until a test or an inline run moves it. No other module may read a
clock or sleep.
Private: may change with any release.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onefold.outside import Waiter


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Monotonic time in milliseconds."""
        return time.monotonic_ns() // 1_000_000

    def wait(self, waiter: Waiter, timeout_ms: float) -> bool:
        """Wait on `waiter` for at most `timeout_ms` milliseconds of real time."""
        return waiter.wait(max(timeout_ms, 0) / 1000)


class Never:
    """A waiter that nobody wakes: a pause through the clock.

    A lock that stays locked: an event's own lock could be left taken by an exception out of a signal's handler, and by a
    fork while another thread waits.
    """

    def __init__(self) -> None:
        self._locked = threading.Lock()
        self._locked.acquire()

    def wait(self, timeout_s: float) -> bool:
        """Wait the whole time."""
        return self._locked.acquire(timeout=min(max(timeout_s, 0), threading.TIMEOUT_MAX))
