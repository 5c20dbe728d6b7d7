"""How long to wait before the next try: between deliveries (`Backoff`), and inside a call (`IN_CALL`).

Pure arithmetic on milliseconds; chance comes in as a fraction. The pause grows by a factor up to a cap and is spread by
jitter, so that what failed together does not come back together. No pause is longer than the cap, jitter included, nor than
the 12 hours that SQS can hide a message.

Never here: whether to try again (`delivery.py`), what the dependency itself asked for (`failures.py`), waiting.
Invariant: 0 <= delay_ms <= cap_ms for every run and every fraction.
"""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

from onefold import limits
from onefold.errors import UsageError

Jitter = Literal["full", "half", "none"]

FACTOR_MAX = 10.0  # beyond that the second pause is the cap already


class Backoff(Struct, frozen=True, kw_only=True):
    """A pause that grows.

    Args:
        base_ms: before the second run; 0 or more.
        factor: growth per failed run, 1 to 10.
        cap_ms: longest pause, jitter included; `base_ms` to 43,200,000 (12 h).
        jitter: `full` draws from 0 to the pause; `half` from half of it to one and a half; `none` is exact.

    Raises:
        UsageError: a number out of its bounds.
    """

    base_ms: int = 1_000
    factor: float = 2.0
    cap_ms: int = 15 * limits.MINUTE_MS
    jitter: Jitter = "full"

    def __post_init__(self) -> None:
        if self.jitter not in get_args(Jitter):
            raise UsageError(f"jitter={self.jitter!r} is not known.", todo="It is full, half or none.")
        if not 1 <= self.factor <= FACTOR_MAX:
            raise UsageError(f"factor={self.factor} is out of range.", todo=f"It may be 1 to {FACTOR_MAX:g}.")
        if not 0 <= self.base_ms <= self.cap_ms <= limits.VISIBILITY_MS_MAX:
            raise UsageError(
                f"A first pause of {self.base_ms} ms with a longest pause of {self.cap_ms} ms is not possible.",
                meaning="A message can be hidden for 12 hours at most.",
                todo=f"Keep 0 <= base <= cap <= {limits.VISIBILITY_MS_MAX} ms.",
            )


# Inside a call: 50 ms x 2^n, +-50 %, 3 tries (design 11.11); the cap keeps longer series below a lease.
IN_CALL = Backoff(base_ms=50, factor=2.0, cap_ms=5_000, jitter="half")
IN_CALL_TRIES = 3


class Pause(Struct, frozen=True, kw_only=True):
    """One line of a timetable.

    Args:
        run: the run that follows the pause, 2 or more.
        least_ms, most_ms: bounds of the pause.
        since_least_ms, since_most_ms: pauses so far, this one included, counted from the first failure.
    """

    run: int
    least_ms: int
    most_ms: int
    since_least_ms: int
    since_most_ms: int


def bounds_ms(backoff: Backoff, failed_runs: int) -> tuple[int, int]:
    """The shortest and longest pause after `failed_runs` runs (1 or more) have failed."""
    assert failed_runs >= 1, failed_runs
    # The exponent is bounded so that the float cannot overflow: 10^64 ms is far beyond every cap.
    pause_ms = min(backoff.base_ms * backoff.factor ** min(failed_runs - 1, 64), backoff.cap_ms)
    match backoff.jitter:
        case "full":
            return 0, int(pause_ms)
        case "half":
            # The middle is held at two thirds of the cap: clipping at the cap would let a third of all draws coincide.
            pause_ms = min(pause_ms, backoff.cap_ms * 2 / 3)
            return int(pause_ms / 2), int(pause_ms * 1.5)
        case "none":
            return int(pause_ms), int(pause_ms)


def delay_ms(backoff: Backoff, failed_runs: int, fraction: float) -> int:
    """The pause before the next run.

    Args:
        backoff: the policy.
        failed_runs: runs of this budget that failed, 1 or more.
        fraction: chance, from [0, 1).

    Returns:
        Whole milliseconds, 0 to `cap_ms`.
    """
    least_ms, most_ms = bounds_ms(backoff, failed_runs)
    return least_ms + int((most_ms - least_ms) * fraction)


def timetable(backoff: Backoff, runs: int) -> list[Pause]:
    """The pauses of a budget of `runs` runs, for people; empty when there is no retry."""
    table: list[Pause] = []
    since_least_ms = since_most_ms = 0
    for run in range(2, runs + 1):
        least_ms, most_ms = bounds_ms(backoff, run - 1)
        since_least_ms += least_ms
        since_most_ms += most_ms
        table.append(
            Pause(
                run=run,
                least_ms=least_ms,
                most_ms=most_ms,
                since_least_ms=since_least_ms,
                since_most_ms=since_most_ms,
            )
        )
    return table
