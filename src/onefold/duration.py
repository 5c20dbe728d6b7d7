"""Durations as people write them: `"30m"`, `"1h30m"`, `"250ms"`, or a `timedelta`. Never a bare number.

A number without a unit is how seconds and milliseconds get mixed up, so it is refused. Everything inside onefold is
integer milliseconds; this is the one door. Never here: dates, cron, time zones.
"""

from __future__ import annotations

import re
from datetime import timedelta

from onefold import errors

Duration = str | timedelta

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d+)(ms|s|m|h|d)")


def to_ms(value: Duration, what: str, *, least_ms: int = 0, most_ms: int | None = None) -> int:
    """A duration in milliseconds.

    Args:
        value: text of whole numbers with units ms, s, m, h, d, for example `"1h30m"`; or a timedelta.
        what: the name of the setting, for the error.
        least_ms, most_ms: bounds, inclusive; `most_ms` None for none.

    Raises:
        UsageError: a bare number, another form, or out of bounds; names the setting, the value and the rule.
    """
    if isinstance(value, timedelta):
        found_ms = round(value.total_seconds() * 1000)
    elif (parts := _PART.findall(str(value))) and _PART.sub("", value) == "":
        found_ms = sum(int(number) * _UNITS_MS[unit] for number, unit in parts)
    else:
        raise errors.UsageError(
            f"{what}={value!r} is not a duration.", todo='Write a number with a unit, for example "30s", "5m", "1h30m".'
        )
    if found_ms < least_ms or (most_ms is not None and found_ms > most_ms):
        most = "no upper bound" if most_ms is None else to_text(most_ms)
        raise errors.UsageError(f"{what}={value!r} is out of range.", todo=f"It may be {to_text(least_ms)} to {most}.")
    return found_ms


def to_text(ms: int) -> str:
    """Milliseconds as a person would say them, at most two units: 5400000 -> "1h30m"."""
    if ms == 0:
        return "0s"
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, ms = divmod(ms, _UNITS_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])
