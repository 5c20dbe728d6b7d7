"""What may hold a delivery back before it is claimed: rate limits, concurrency limits, circuit breakers.

All of them live in `State`, so every process on the engine shares them. A delivery that is held back is hidden for as long
as the limit says and uses up neither an attempt nor (where the queue can) a receive.
Never here: the arithmetic (`decide/rate.py`, `decide/breaker.py`). Invariant: a slot that was taken is given back when its
run is settled, or ends by itself with the lease.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from onefold.decide.delivery import Decision, Detail
from onefold.run.passage import Run

Tell = Callable[[str, Run, Detail], None]


class Gates(Protocol):
    """Decides which deliveries may be claimed now."""

    def admit(self, runs: Sequence[Run]) -> tuple[list[Run], list[tuple[Run, int, str]]]:
        """The runs that may go on, and the others with how long to wait (ms) and why."""
        ...

    def is_to_blame(self, run: Run) -> bool:
        """Whether a dependency-down is this operation's own doing, so that it counts as a plain failure."""
        ...

    def forget(self, runs: Sequence[Run]) -> None:
        """Runs could not be claimed because the backend failed: hold nothing for them any more."""
        ...

    def renew(self) -> None:
        """Extend what this process holds by another lease; called with the heartbeat."""
        ...

    def told(self, run: Run, decision: Decision, tell: Tell) -> None:
        """A run was settled: give slots back, feed the breaker."""
        ...
