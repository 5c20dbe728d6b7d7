"""What is passed in from outside, as protocols: time, something to wait for, and random numbers.

Code that needs one of them takes it as an argument and uses these types in its annotations; they are imported only for
type checking. The real implementations and those for tests are in `clock.py`, `manual_clock.py` and `entropy.py`.
Never here: classes with code. Invariant: code that takes a `Clock` or an `Entropy` reads no other clock and draws no other
random numbers.
Private: may change with any release.
"""

from __future__ import annotations

from typing import Protocol


class Waiter(Protocol):
    """Something that can be waited for: an event, a wake-up socket, a queue of finished work."""

    def wait(self, timeout_s: float) -> bool:
        """Block for at most `timeout_s` seconds; returns True if woken, False if the time ran out."""
        ...


class Clock(Protocol):
    """Two readings and a wait. Instants are integer milliseconds since the epoch, UTC."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since the epoch; it can jump when the machine's clock is set."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since an arbitrary start; they never go back."""
        ...

    def wait(self, waiter: Waiter, timeout_ms: int) -> bool:
        """Wait until `waiter` is woken or `timeout_ms` have passed; returns True if woken."""
        ...


class Entropy(Protocol):
    """A source of ids and of fractions."""

    def token(self) -> str:
        """A new identifier: 16 lower-case hexadecimal characters (64 bits)."""
        ...

    def fraction(self) -> float:
        """A random number from [0, 1), uniformly distributed."""
        ...
