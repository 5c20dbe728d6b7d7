"""Durations as people write them: `"30m"`, `"1h30m"`, `"250ms"`, or a `timedelta`, never a bare number. Also instants.

A number without a unit is refused, because that is how seconds and milliseconds get mixed up. Inside onefold all
durations are integer milliseconds; they are converted here and nowhere else. Never here: dates as text, cron, time
zones. Private: may change with any release.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from onefold import errors

Duration = str | timedelta

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DIGITS = "0123456789"
_DIGITS_MAX = 30  # longer numbers are out of every range


def to_ms(value: Duration, what: str, *, least_ms: int = 0, most_ms: int | None = None) -> int:
    """A duration in milliseconds.

    Args:
        value: text of whole numbers with units ms, s, m, h, d, for example `"1h30m"`; or a timedelta.
        what: the name of the setting, for the error.
        least_ms, most_ms: bounds, inclusive; `most_ms` None for none.

    Raises:
        UsageError: the value is a bare number, has another form, or is out of bounds; the error names the setting, the
            value and the rule.
    """
    if isinstance(value, timedelta):
        found_ms = round(value.total_seconds() * 1000)
    elif (read_ms := _read_ms(str(value))) is not None:
        found_ms = read_ms
    else:
        raise errors.UsageError(
            f"{what}={value!r} is not a duration.", todo='Write a number with a unit, for example "30s", "5m", "1h30m".'
        )
    if found_ms < least_ms or (most_ms is not None and found_ms > most_ms):
        most = "no upper bound" if most_ms is None else to_text(most_ms)
        raise errors.UsageError(f"{what}={value!r} is out of range.", todo=f"It may be {to_text(least_ms)} to {most}.")
    return found_ms


def _read_ms(text: str) -> int | None:
    """The sum of whole numbers with units; None for another form. Compiling a pattern would slow each cold start."""
    total_ms, rest = 0, text
    while rest:
        behind = rest.lstrip(_DIGITS)
        number = rest.removesuffix(behind)
        rest = behind.lstrip("dhms")
        unit = behind.removesuffix(rest)
        if not number or unit not in _UNITS_MS:
            return None
        total_ms += (
            int(number[-_DIGITS_MAX:] if len(number.lstrip("0")) <= _DIGITS_MAX else "9" * _DIGITS_MAX)
            * _UNITS_MS[unit]
        )
    return total_ms if text else None


def to_text(ms: int) -> str:
    """Milliseconds as a person would write them, in at most two units: 5400000 -> "1h30m"."""
    if ms == 0:
        return "0s"
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, ms = divmod(ms, _UNITS_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])


def seconds_up(ms: int) -> int:
    """Whole seconds of a duration in milliseconds, rounded up; for AWS's fields that count seconds."""
    return -(-ms // _UNITS_MS["s"])


def instant_ms(at: Any, what: str) -> int:
    """An aware datetime in UTC milliseconds.

    Args:
        at: as the user gave it. what: the name of the setting, for the error.

    Raises:
        UsageError: the value is not a datetime, or has no zone.
    """
    if not isinstance(at, datetime) or at.tzinfo is None:
        which = f"{at.isoformat()} without a time zone" if isinstance(at, datetime) else repr(at)
        raise errors.UsageError(
            f"{what}={which} is not a valid instant.",
            todo="Use an aware datetime, for example datetime(2026, 6, 1, tzinfo=UTC).",
        )
    return round(at.timestamp() * 1000)
