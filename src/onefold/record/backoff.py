"""How long to wait before the next try: between deliveries (a job's `Backoff`), and inside a call (`IN_CALL`).

Pure arithmetic on milliseconds; chance comes in as a fraction. The pause grows by a factor up to a cap and is spread by
jitter, so that what failed together does not come back together. No pause is longer than the cap, jitter included, nor than
the 12 hours that SQS can hide a message. The value itself is part of a job's policy (`delivery.py`); only what failed waits.

Never here: whether to try again (`fates.py`), what the dependency itself asked for (`failures.py`), waiting.
Invariant: 0 <= delay_ms <= cap_ms for every run and every fraction.
"""

from __future__ import annotations

from msgspec import Struct

from onefold.record.delivery import Backoff

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
    """The pauses of a budget of `runs` runs, for people; empty without a retry."""
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
