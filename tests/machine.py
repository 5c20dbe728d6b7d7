"""The clock of a machine on which several processes run, for tests that set it."""

from __future__ import annotations

from onefold.clock import SystemClock


class Machine(SystemClock):
    """A machine's clock that a test sets and lets pass; all its processes read it.

    It begins with the real time: a file that is opened has a modification time.

    Attributes:
        at_ms: the monotonic time. set_ms: what the wall clock is ahead of it.
    """

    def __init__(self) -> None:
        self.at_ms, self.set_ms = super().monotonic_ms(), super().now_ms() - super().monotonic_ms()

    def now_ms(self) -> int:
        """Wall time."""
        return self.at_ms + self.set_ms

    def monotonic_ms(self) -> int:
        """Monotonic time."""
        return self.at_ms

    def advance(self, by_ms: int) -> None:
        """Let time pass."""
        self.at_ms += by_ms

    def jump(self, by_ms: int) -> None:
        """Set the wall clock forward or back."""
        self.set_ms += by_ms
