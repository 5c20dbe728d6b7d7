"""When a schedule fires: nominal instants of cron, rate and one-time expressions in a time zone, as EventBridge fires.

Cron and at follow the zone's clocks. A local time that does not exist because the clocks are set forward is skipped (or,
with dst="next-valid", fires at the instant of the change); one that occurs twice fires only the first time, also for
hourly schedules. Rates count elapsed time. The search goes from field to field by bit masks, so an instant years ahead
costs no more to find than one minutes ahead. Instants are integer milliseconds UTC, and nominal ones whole seconds.
Never here: which ticks are sent after downtime or within a window (`ticks.py`), what a tick does, the present time.
Invariant: instants of one timing are strictly ascending, and are the same wherever and whenever they are computed, given the
same version of the time zone database.

Sources: EventBridge Scheduler user guide, "Schedule types"; API CreateSchedule. What they leave open: docs/decisions/0012.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, tzinfo
from typing import Final, Literal, assert_never, get_args

from msgspec import Struct

from onefold import limits
from onefold.errors import UsageError
from onefold.schedules.expressions import (
    YEAR_MAX,
    YEAR_MIN,
    AtExpression,
    CronExpression,
    Expression,
    RateExpression,
    parse,
)
from onefold.zones import DAY_S, EPOCH_DAY, instant_s, jump_s, offset_at_s, zone_of

__all__ = [
    "Dst",
    "Expression",
    "Timing",
    "between",
    "next_after",
    "parse",
    "run_name",
    "skipped",
    "zone_of",
]

Dst = Literal["eventbridge", "next-valid"]

WINDOW_MS_MAX: Final = limits.DAY_MS  # CreateSchedule, FlexibleTimeWindow: 1 to 1,440 minutes
_EARLIEST_S: Final = -DAY_S  # before local 1970 begins anywhere
_HORIZON_S: Final = (date(YEAR_MAX + 1, 1, 2).toordinal() - EPOCH_DAY) * DAY_S  # after local 2199 has ended everywhere

_LENGTHS: Final = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)  # of months, outside leap years
_BACK: Final = {6: 1, 0: 2}  # from Saturday and Sunday to the Friday before


class Timing(Struct, frozen=True):
    """When a schedule fires.

    Args:
        expression: from `parse`.
        zone: IANA name, 1 to 50 characters; for cron and at. Rates do not use it.
        start_ms, end_ms: the first and last instant that can fire, inclusive, UTC ms; None for no bound. A rate counts
            from `start_ms` if it is set. One-time expressions ignore both, as EventBridge does.
        window_ms: the flexible window: a tick fires up to this long after its nominal instant; 0, or 1 to 1,440 minutes.
        dst: for a local time that the clocks jump over: "eventbridge" skips it, "next-valid" fires at the
            instant of the jump. With both, a time that the clocks show twice fires only the first time.

    Raises:
        UsageError: an unknown zone or policy, an end before the start, a window out of range, a one-time expression whose
            local time does not exist in the zone.
    """

    expression: Expression
    zone: str = "UTC"
    start_ms: int | None = None
    end_ms: int | None = None
    window_ms: int = 0
    dst: Dst = "eventbridge"

    def __post_init__(self) -> None:
        zone = zone_of(self.zone)
        if self.dst not in get_args(Dst):
            raise UsageError(f"dst={self.dst!r} is not known.", todo=f"It may be {' or '.join(get_args(Dst))}.")
        if self.start_ms is not None and self.end_ms is not None and self.end_ms < self.start_ms:
            raise UsageError(
                f"The end {utc_text(self.end_ms)} is before the start {utc_text(self.start_ms)}.",
                meaning="The schedule would never fire.",
                todo="Put the end after the start.",
            )
        if self.window_ms and not (
            limits.MINUTE_MS <= self.window_ms <= WINDOW_MS_MAX and self.window_ms % limits.MINUTE_MS == 0
        ):
            raise UsageError(
                f"A flexible window of {self.window_ms} ms is out of range.",
                todo="It is 0 for none, or whole minutes, 1 to 1,440.",
            )
        if (
            isinstance(self.expression, AtExpression)
            and instant_s(zone, self.expression.local, at_jump=self.dst == "next-valid") is None
        ):
            raise UsageError(
                f"{self.expression.text} does not exist in {self.zone}.",
                meaning="The clocks go forward over that time.",
                todo='Choose a time before or after, or dst="next-valid" for the instant they go forward.',
            )


# -- instants --------------------------------------------------------------------------------------------------------


def next_after(timing: Timing, after_ms: int, *, anchor_ms: int) -> int | None:
    """The first nominal instant strictly later than `after_ms`; None if there is none before the end of 2199.

    Args:
        timing: when it fires. after_ms: UTC ms.
        anchor_ms: from where a rate without `start_ms` counts: when the schedule was created; its first instant is the
            anchor itself, rounded up to the second. Cron and at do not use it.
    """
    expression = timing.expression
    after_s = after_ms // 1_000
    at_jump = timing.dst == "next-valid"
    if isinstance(expression, AtExpression):
        at_s = instant_s(zone_of(timing.zone), expression.local, at_jump=at_jump)
        return at_s * 1_000 if at_s is not None and at_s > after_s else None
    if timing.start_ms is not None:
        after_s = max(after_s, -(-timing.start_ms // 1_000) - 1)
    if isinstance(expression, CronExpression):
        found_s = _cron_after(expression, zone_of(timing.zone), after_s, at_jump=at_jump)
    else:
        found_s = _rate_after(expression, anchor_ms if timing.start_ms is None else timing.start_ms, after_s)
    if found_s is None or (timing.end_ms is not None and found_s * 1_000 > timing.end_ms):
        return None
    return found_s * 1_000


def _rate_after(rate: RateExpression, anchor_ms: int, after_s: int) -> int | None:
    first_s, period_s = -(-anchor_ms // 1_000), rate.period_ms // 1_000
    found_s = max(first_s, first_s + ((after_s - first_s) // period_s + 1) * period_s)
    return found_s if found_s < _HORIZON_S else None


def _cron_after(cron: CronExpression, zone: tzinfo, after_s: int, *, at_jump: bool) -> int | None:
    if after_s >= _HORIZON_S:
        return None
    wall = datetime.fromtimestamp(max(after_s, _EARLIEST_S), zone)
    found = (
        (wall.year, wall.month, wall.day, wall.hour, wall.minute) if wall.year >= YEAR_MIN else (YEAR_MIN, 1, 1, 0, 0)
    )
    # Local times and their instants ascend together, so the first match that is later is the answer. Matches that are not
    # later, or have no instant: the current minute, a time that the clocks jump over, and an hour that they show again.
    while (match := _match(cron, *found)) is not None:
        year, month, day, hour, minute = match
        at_s = instant_s(zone, (year, month, day, hour, minute, 0), at_jump=at_jump)
        if at_s is not None and at_s > after_s:
            return at_s
        found = (year, month, day, hour, minute + 1)
    return None


def _match(
    cron: CronExpression, year: int, month: int, day: int, hour: int, minute: int
) -> tuple[int, int, int, int, int] | None:
    """The first local minute at or after the given one that matches; fields may be one past their end."""
    while years := cron.years >> (year - YEAR_MIN):
        if not years & 1:
            year, month, day, hour, minute = year + _zeros(years), 1, 1, 0, 0
        if not (months := cron.months >> (month - 1)):
            year, month, day, hour, minute = year + 1, 1, 1, 0, 0
            continue
        if not months & 1:
            month, day, hour, minute = month + _zeros(months), 1, 0, 0
        if not (days := _days_of(cron, year, month) >> (day - 1)):
            month, day, hour, minute = month + 1, 1, 0, 0
            continue
        if not days & 1:
            day, hour, minute = day + _zeros(days), 0, 0
        if not (hours := cron.hours >> hour):
            day, hour, minute = day + 1, 0, 0
            continue
        if not hours & 1:
            hour, minute = hour + _zeros(hours), 0
        if minutes := cron.minutes >> minute:
            return year, month, day, hour, minute + _zeros(minutes)
        hour, minute = hour + 1, 0
    return None


def _zeros(mask: int) -> int:
    """How many bits are below the lowest bit that is set."""
    return (mask & -mask).bit_length() - 1


def _days_of(cron: CronExpression, year: int, month: int) -> int:
    """Which days of a month match: bit d-1 is day d."""
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    length = 29 if month == 2 and leap else _LENGTHS[month]
    first = date(year, month, 1).isoweekday() % 7  # 0 is Sunday
    end = (first + length - 1) % 7
    match cron.rule:
        case "dates":
            return cron.days & ((1 << length) - 1)
        case "weekdays":
            return cron.days >> first & ((1 << length) - 1)
        case "last":
            day = length
        case "last-weekday":
            day = length - _BACK.get(end, 0)
        case "nearest":
            day = _nearest(cron.days, length, (first + cron.days - 1) % 7)
        case "nth":
            day = 1 + (cron.days - first) % 7 + 7 * (cron.nth - 1)
        case "last-of":
            day = length - (end - cron.days) % 7
        case _:
            assert_never(cron.rule)
    return 1 << (day - 1) if day <= length else 0


def _nearest(day: int, length: int, weekday: int) -> int:
    """The weekday nearest to a day, in the same month; the day itself if the month does not have that day."""
    if day > length:
        return day
    if weekday == 6:
        return day - 1 if day > 1 else day + 2
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


def between(timing: Timing, from_ms: int, to_ms: int, *, anchor_ms: int) -> Iterator[int]:
    """All nominal instants from `from_ms` up to but not including `to_ms`, ascending; `anchor_ms` as in `next_after`."""
    at_ms = next_after(timing, from_ms - 1, anchor_ms=anchor_ms)
    while at_ms is not None and at_ms < to_ms:
        yield at_ms
        at_ms = next_after(timing, at_ms, anchor_ms=anchor_ms)


def skipped(timing: Timing, from_ms: int, to_ms: int) -> Iterator[tuple[int, str]]:
    """The local times of a cron expression that the clocks jump over, from `from_ms` up to but not including `to_ms`.

    Yields:
        The instant of the jump, UTC ms, and the local time, for example `2027-03-14T02:30`; with dst="next-valid" these
        are the times that fire at the jump.
    """
    zone, cron = zone_of(timing.zone), timing.expression
    from_s, to_s = max(-(-from_ms // 1_000), _EARLIEST_S), min(-(-to_ms // 1_000), _HORIZON_S)
    if zone is UTC or not isinstance(cron, CronExpression):
        return
    for day_s in range(from_s - 1, to_s, DAY_S):
        end_s = min(day_s + DAY_S, to_s - 1)
        before, after = offset_at_s(zone, day_s), offset_at_s(zone, end_s)
        if after <= before:
            continue
        at_s = jump_s(zone, day_s, end_s)
        wall, end = datetime.fromtimestamp(at_s + before, UTC), datetime.fromtimestamp(at_s + after, UTC)
        found = _match(cron, wall.year, wall.month, wall.day, wall.hour, wall.minute)
        while found is not None and (lost := datetime(*found, tzinfo=UTC)) < end:
            yield at_s * 1_000, lost.strftime("%Y-%m-%dT%H:%M")
            found = _match(cron, *found[:4], found[4] + 1)


def run_name(schedule: str, nominal_ms: int) -> str:
    """The name of a tick's run, which is also the tick's key: "monthly-billing/2026-06-01T02:00:00Z".

    The instant is written as EventBridge writes `<aws.scheduler.scheduled-time>`: UTC, to the second.
    """
    return f"{schedule}/{utc_text(nominal_ms)}"


def utc_text(at_ms: int) -> str:
    """An instant to the second: `2026-03-01T03:00:00Z`."""
    return datetime.fromtimestamp(at_ms // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
