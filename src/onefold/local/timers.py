"""Timers of one event loop, at instants of a real or a manual clock.

With the system clock, they are timers of the event loop. With a manual clock, time does not pass by itself: once the clock
has been advanced, `moved` fires the timers that are due, earliest first; `next_at_ms` says how far the next step may go.
Never here: what a timer does. Invariant: a timer fires at its instant or later, once, and never after it was cancelled.
Used on the loop's thread only.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

from onefold.manual_clock import ManualClock

if TYPE_CHECKING:
    from onefold.outside import Clock


_LOOK_AGAIN_MS = 60_000  # a wall clock can be set while a timer waits; this is how late that is noticed

_TIDY_AT_LEAST = 1_024  # timers of a manual clock: cancelled ones are removed when the number has doubled


class Timer:
    """One call in the future; `cancel` forgets it."""

    __slots__ = ("_call", "at_ms", "real")

    def __init__(self, at_ms: int, call: Callable[[], None]) -> None:
        self.at_ms: int = at_ms
        self._call: Callable[[], None] | None = call
        self.real: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        """Forget the call; harmless if it was already made."""
        self._call = None
        if self.real is not None:
            self.real.cancel()
            self.real = None

    @property
    def cancelled(self) -> bool:
        """Whether the call was made or cancelled."""
        return self._call is None

    def fire(self) -> None:
        """Make the call now, and never again."""
        call, self._call, self.real = self._call, None, None
        if call is not None:
            call()


class Timers:
    """The timers of one loop.

    Args:
        clock: a `ManualClock` moves the timers only when `moved` is called.
        loop: the loop on which they fire.
    """

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.clock = clock
        self.loop = loop
        self.is_manual: bool = isinstance(clock, ManualClock)
        self._due: list[tuple[int, int, Timer]] = []
        self._count = 0
        self._tidy_at = _TIDY_AT_LEAST

    def now_ms(self) -> int:
        """The clock's wall time in milliseconds since the epoch."""
        return self.clock.now_ms()

    def call_at(self, at_ms: int, call: Callable[[], None]) -> Timer:
        """Call `call()` on the loop once the clock shows `at_ms`, or soon if it already does."""
        timer = Timer(at_ms, call)
        if self.is_manual and at_ms > self.now_ms():
            self._count += 1
            heapq.heappush(self._due, (at_ms, self._count, timer))
            if len(self._due) >= self._tidy_at:
                self._due = [due for due in self._due if not due[2].cancelled]
                heapq.heapify(self._due)
                self._tidy_at = max(_TIDY_AT_LEAST, 2 * len(self._due))
        else:
            self._arm(timer)
        return timer

    def _arm(self, timer: Timer) -> None:
        left_ms = timer.at_ms - self.now_ms()
        if left_ms <= 0:
            timer.real = self.loop.call_later(0, timer.fire)
            return
        # One more, because the loop's clock has fractions and may be early by less than a millisecond.
        timer.real = self.loop.call_later((min(left_ms, _LOOK_AGAIN_MS) + 1) / 1000, self._reached, timer)

    def _reached(self, timer: Timer) -> None:
        if timer.at_ms <= self.now_ms():
            timer.fire()
        elif not timer.cancelled:
            self._arm(timer)

    async def sleep_until(self, at_ms: int) -> None:
        """Wait until the clock shows `at_ms`."""
        reached: asyncio.Future[None] = self.loop.create_future()
        timer = self.call_at(at_ms, lambda: None if reached.done() else reached.set_result(None))
        try:
            await reached
        finally:
            timer.cancel()

    def next_at_ms(self) -> int | None:
        """When the next timer of a manual clock is due; None if there is none."""
        while self._due and self._due[0][2].cancelled:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def moved(self) -> None:
        """Fire the timers that are due, earliest first, after the manual clock was advanced."""
        now_ms = self.now_ms()
        while (next_ms := self.next_at_ms()) is not None and next_ms <= now_ms:
            heapq.heappop(self._due)[2].fire()
