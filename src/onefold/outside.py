"""What is passed in from outside, as protocols: time, something to wait for, and random numbers.

Code that needs one of them takes it as an argument and names these types in its annotations; they are imported for type
checking only. `clock.py`, `manual_clock.py` and `entropy.py` have the real implementations and those for tests.
Never here: classes with code. Invariant: code that takes a `Clock` or an `Entropy` reads no other clock and draws no other
random numbers.
Private: may change with any release.
"""

from __future__ import annotations

from typing import Protocol


class Waiter(Protocol):
    """Something that can be waited for: an event, a wake-up socket, a queue of finished work."""

    def wait(self, timeout_s: float) -> bool:
        """Block for at most `timeout_s` seconds; True when woken, False when time ran out."""
        ...


class Clock(Protocol):
    """Two readings and a wait. Instants are integer milliseconds since the epoch, UTC."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since the epoch; may jump when the machine's clock is set."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds from an arbitrary start that never go back."""
        ...

    def wait(self, waiter: Waiter, timeout_ms: int) -> bool:
        """Wait until `waiter` is woken or `timeout_ms` have passed; True when woken."""
        ...


class Entropy(Protocol):
    """A source of ids and of fractions."""

    def token(self) -> str:
        """A new identifier: 16 lower-case hexadecimal characters (64 bits)."""
        ...

    def fraction(self) -> float:
        """A number drawn evenly from [0, 1)."""
        ...
