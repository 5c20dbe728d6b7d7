"""Rate and concurrency limits: a token bucket, and slots. Pure functions over small JSON-able values.

The values live in `State`, shared by all processes of an engine and changed by compare-and-set; the functions here take a
value and the time and return a new value. Whole numbers only, so that rounding errors cannot add up.

Never here: waiting, State itself, which limit applies to which job. Invariant: in any span of t ms a bucket grants at most
burst + count x t / per_ms, even if the clocks of hosts differ or are set back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from onefold import limits
from onefold.errors import UsageError
from onefold.record.keys import KeyRule

_UNITS_MS = {"s": limits.SECOND_MS, "m": limits.MINUTE_MS, "h": limits.HOUR_MS, "d": limits.DAY_MS}
_FORM = r"\s*([0-9]+)\s*/\s*([smhd])\s*"
CONCURRENCY_MAX = 1_500  # the holder of a slot takes 41 bytes of a value of State, which has 64 KiB
_COUNT_MAX = 1_000_000
_BURST_PER_SECOND = 10  # the default burst is a tenth of a second's tokens
_SET_BACK_MS = limits.MINUTE_MS  # if a stored instant is further ahead than this, some host's clock was wrong


class Rate(Struct, frozen=True):
    """A number of events per time.

    Args:
        count: 1 to 1,000,000.
        per_ms: the time, in milliseconds.
        burst: how many may start at once after a quiet time; None: a tenth of a second's tokens, at least 1.
    """

    count: int
    per_ms: int
    burst: int | None = None

    def __str__(self) -> str:
        """As it is declared: `20/s`."""
        unit = next((unit for unit, unit_ms in _UNITS_MS.items() if unit_ms == self.per_ms), f"{self.per_ms} ms")
        return f"{self.count}/{unit}"

    @property
    def burst_max(self) -> int:
        """How many tokens the bucket holds."""
        return self.burst or max(1, self.count * limits.SECOND_MS // (self.per_ms * _BURST_PER_SECOND))


class Limit(Struct, frozen=True, kw_only=True):
    """The limits of a job, over all processes.

    Args:
        rate: starts per time; None for no limit.
        concurrency: runs at one time; None for no limit.
        key: rule that divides the limit, for example one bucket per customer; None for one bucket for the job.
    """

    rate: Rate | None = None
    concurrency: int | None = None
    key: KeyRule | None = None


class Bucket(Struct, frozen=True):
    """The state of a token bucket.

    Args:
        level: tokens x per_ms, so that a millisecond's refill is a whole number.
        at_ms: the instant of that level, wall time.
    """

    level: int
    at_ms: int


class TakenTokens(Struct, frozen=True):
    """The result of `take`.

    Args:
        granted: how many may start now, 0 to the number asked for.
        bucket: to be stored (by compare-and-set: if another process was faster, take again).
        wait_ms: how long until the next one may start; 0 when all were granted.
    """

    granted: int
    bucket: Bucket
    wait_ms: int


def parse_rate(text: str, *, burst: int | None = None) -> Rate:
    """A rate as people write it: `"100/s"`, `"5/m"`, `"1000/h"`, `"20/d"`.

    Args:
        text: a whole number, 1 to 1,000,000, per s, m, h or d.
        burst: see `Rate`.

    Raises:
        UsageError: another form, or out of range.
    """
    match = re.fullmatch(_FORM, str(text))
    if match is None:
        raise UsageError(f"rate={text!r} is not a rate.", todo='Write a number per s, m, h or d, for example "100/s".')
    count = int(match[1])
    if not 1 <= count <= _COUNT_MAX:
        raise UsageError(
            f"rate={text!r} is out of range.",
            meaning="A rate of 0 would hold every message forever." if count == 0 else "",
            todo=f"The number may be 1 to {_COUNT_MAX}.",
        )
    if burst is not None and burst < 1:
        raise UsageError(f"burst={burst} is out of range.", todo="It is 1 or more; leave it out for the default.")
    return Rate(count, _UNITS_MS[match[2]], burst)


def take(bucket: Bucket | None, rate: Rate, wanted: int, now_ms: int) -> TakenTokens:
    """Take up to `wanted` tokens (1 or more) at `now_ms`.

    Args:
        bucket: as stored; None for a bucket never used, which is full.
        rate: may differ from the rate the bucket was filled by; the level is held within the new burst.
    """
    full = rate.burst_max * rate.per_ms
    if bucket is None:
        level, at_ms = full, now_ms
    elif bucket.at_ms > now_ms + _SET_BACK_MS:
        level, at_ms = min(bucket.level, full), now_ms
    else:
        # Never back in time: otherwise a host whose clock is behind would let the next one refill the same time twice.
        at_ms = max(bucket.at_ms, now_ms)
        level = min(bucket.level + (at_ms - bucket.at_ms) * rate.count, full)
    granted = min(wanted, level // rate.per_ms)
    level -= granted * rate.per_ms
    wait_ms = 0
    if granted < wanted:
        missing = rate.per_ms - level
        wait_ms = -(-missing // rate.count) + (at_ms - now_ms)
    return TakenTokens(granted, Bucket(level, at_ms), wait_ms)


def is_full(bucket: Bucket, rate: Rate, now_ms: int) -> bool:
    """Whether a bucket is full, like one that was never used, so that it need not be kept."""
    return take(bucket, rate, rate.burst_max, now_ms).granted == rate.burst_max


# ------------------------------------------------------------------------------------------------------------- slots

Slots = Mapping[str, int]  # holder -> instant (ms) until which it holds a slot unless it renews it


class Occupied(Struct, frozen=True):
    """The result of `occupy`.

    Args:
        granted: whether the holder has a slot now.
        slots: to be stored; those that have ended are removed.
        wait_ms: when not granted: how long until the first slot expires; one may be released earlier than that.
    """

    granted: bool
    slots: dict[str, int]
    wait_ms: int


def occupy(slots: Slots, holder: str, count_max: int, until_ms: int, now_ms: int) -> Occupied:
    """Take a slot for `holder`, or renew the one it has, until `until_ms`.

    Args:
        slots: as stored; empty when never used.
        holder: names one run, for example owner and fence.
        count_max: how many may hold one at a time, 1 or more.
    """
    live = {name: end_ms for name, end_ms in slots.items() if end_ms > now_ms}
    if holder in live or len(live) < count_max:
        live[holder] = until_ms
        return Occupied(True, live, 0)
    return Occupied(False, live, min(live.values()) - now_ms)


def vacate(slots: Slots, holder: str, now_ms: int) -> dict[str, int]:
    """Release the holder's slot; returns the slots to be stored. Idempotent."""
    return {name: end_ms for name, end_ms in slots.items() if end_ms > now_ms and name != holder}
