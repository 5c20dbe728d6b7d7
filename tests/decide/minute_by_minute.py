"""A cron that asks each minute whether it is meant: the judge of `schedules/fire_times.py`, and no line of it is shared.

It reads expressions with sets and days by walking them; it knows a zone's clocks only by asking them every minute, so a
local time that was shown before is one it has seen, and one that was jumped over lies between two minutes.
"""

from __future__ import annotations

import calendar
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
MINUTE = timedelta(minutes=1)


class Reading:
    """An expression as sets and a test of days."""

    def __init__(self, text: str) -> None:
        fields = text.removeprefix("cron(").removesuffix(")").split(" ")
        self.minutes = values(fields[0], 0, 59)
        self.hours = values(fields[1], 0, 23)
        self.months = values(fields[3], 1, 12, MONTHS)
        self.years = values(fields[5], 1970, 2199)
        self.day: Callable[[date], bool] = by_week(fields[4]) if fields[2] == "?" else by_date(fields[2])

    def has_day(self, day: date) -> bool:
        return day.year in self.years and day.month in self.months and self.day(day)

    def has(self, wall: datetime) -> bool:
        return wall.minute in self.minutes and wall.hour in self.hours and self.has_day(wall.date())


def values(field: str, least: int, most: int, names: Sequence[str] = ()) -> set[int]:
    found: set[int] = set()
    for item in field.split(","):
        span, _, step = item.partition("/")
        first, _, last = span.partition("-")
        if first == "*":
            first, last = str(least), str(most)
        elif not last:
            last = str(most) if step else first
        at, end, count = number(first, least, names), number(last, least, names), 0
        while True:
            if count % int(step or 1) == 0:
                found.add(at)
            if at == end:
                break
            at, count = (least if at == most else at + 1), count + 1
    return found


def number(word: str, least: int, names: Sequence[str]) -> int:
    return names.index(word) + least if word in names else int(word)


def sunday_first(day: date) -> int:
    """1 for Sunday, 7 for Saturday."""
    return (day.weekday() + 1) % 7 + 1


def month_of(day: date) -> list[date]:
    return [day.replace(day=at + 1) for at in range(calendar.monthrange(day.year, day.month)[1])]


def is_work(day: date) -> bool:
    return day.weekday() < 5


def by_date(field: str) -> Callable[[date], bool]:
    if field == "L":
        return lambda day: day == month_of(day)[-1]
    if field == "LW":
        return lambda day: day == [one for one in month_of(day) if is_work(one)][-1]
    if field.endswith("W"):
        return lambda day: day == nearest(day, int(field[:-1]))
    wanted = values(field, 1, 31)
    return lambda day: day.day in wanted


def nearest(month: date, wanted: int) -> date | None:
    """The work day nearest a day of the month, in the same month."""
    days = month_of(month)
    if wanted > len(days):
        return None
    return min((one for one in days if is_work(one)), key=lambda one: abs(one.day - wanted))


def by_week(field: str) -> Callable[[date], bool]:
    if field == "L":
        return lambda day: sunday_first(day) == 7
    if "#" in field:
        name, nth = field.split("#")
        weekday = number(name, 1, WEEKDAYS)

        def is_nth(day: date) -> bool:
            same = [one for one in month_of(day) if sunday_first(one) == weekday]
            return day in same[int(nth) - 1 : int(nth)]

        return is_nth
    if field.endswith("L"):
        last = number(field[:-1], 1, WEEKDAYS)
        return lambda day: day == [one for one in month_of(day) if sunday_first(one) == last][-1]
    wanted = values(field, 1, 7, WEEKDAYS)
    return lambda day: sunday_first(day) in wanted


@cache
def clock(zone: str, start: datetime, days: int) -> list[tuple[int, datetime, bool, tuple[datetime, ...]]]:
    """Each minute from `start` on: its instant in ms, what the clocks show, whether for the first time, what they left out.

    One day before is watched too, so that the first minutes know whether they are shown again.
    """
    place, seen, found = ZoneInfo(zone), set(), []
    before = (start - timedelta(days=1, minutes=1)).astimezone(place).replace(tzinfo=None)
    for at in range(-1_440, days * 1_440):
        instant = start + at * MINUTE
        wall = instant.astimezone(place).replace(tzinfo=None, fold=0)
        left_out = []
        while before + MINUTE < wall:
            before += MINUTE
            left_out.append(before)
        if at >= 0:
            found.append((int(instant.timestamp()) * 1000, wall, wall not in seen, tuple(left_out)))
        seen.add(wall)
        before = wall
    return found


def fires(text: str, zone: str, start: datetime, days: int, *, at_jump: bool) -> list[int]:
    """Every instant in `days` days from `start` (a whole minute, UTC) on, in ms."""
    assert start.tzinfo is UTC
    reading = Reading(text)
    has_day = cache(reading.has_day)
    found = []
    for at_ms, wall, is_first, left_out in clock(zone, start, days):
        meant = is_first and wall.minute in reading.minutes and wall.hour in reading.hours and has_day(wall.date())
        if meant or (at_jump and any(reading.has(lost) for lost in left_out)):
            found.append(at_ms)
    return found
