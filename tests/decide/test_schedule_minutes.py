"""Schedules against a matcher that asks every minute (`minute_by_minute.py`), on expressions and zones that are drawn.

Most drawn stretches hold a clock change of the zone; the zones were chosen for the odd ones: half an hour, ten minutes
past midnight, a whole day that was left out, changes for Ramadan, rules that end in 2037.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onefold import limits
from onefold.schedules.fire_times import Dst, Timing, between, next_after, parse, skipped
from tests.decide import minute_by_minute as judge

DAYS = 28
# zone, and where stretches of it begin: mostly a week or so before a clock change
STRETCHES = [
    ("UTC", datetime(2026, 2, 14, tzinfo=UTC)),
    ("UTC", datetime(2199, 12, 10, tzinfo=UTC)),
    ("America/New_York", datetime(2027, 3, 1, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 10, 25, tzinfo=UTC)),
    ("America/Los_Angeles", datetime(2090, 3, 4, tzinfo=UTC)),
    ("America/Sao_Paulo", datetime(2018, 10, 27, tzinfo=UTC)),  # midnight was left out
    ("America/Havana", datetime(2026, 10, 20, tzinfo=UTC)),  # midnight came twice
    ("Europe/London", datetime(2027, 3, 20, tzinfo=UTC)),
    ("Europe/Amsterdam", datetime(2026, 10, 11, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 9, 25, tzinfo=UTC)),  # by half an hour
    ("Australia/Lord_Howe", datetime(2027, 3, 25, tzinfo=UTC)),
    ("Africa/Casablanca", datetime(2026, 2, 1, tzinfo=UTC)),  # around Ramadan
    ("Antarctica/Troll", datetime(2027, 3, 20, tzinfo=UTC)),  # by two hours
    ("Asia/Kolkata", datetime(2028, 2, 20, tzinfo=UTC)),
    ("Asia/Kathmandu", datetime(1985, 12, 20, tzinfo=UTC)),  # from 5:30 to 5:45 at new year
    ("Asia/Pyongyang", datetime(2018, 4, 25, tzinfo=UTC)),  # half an hour, at 23:30
    ("Pacific/Apia", datetime(2011, 12, 20, tzinfo=UTC)),  # without 30 December
    ("Pacific/Kwajalein", datetime(1993, 8, 10, tzinfo=UTC)),  # without 21 August
    ("Pacific/Chatham", datetime(2027, 3, 28, tzinfo=UTC)),
]


def number(least: int, most: int, names: list[str] | None = None) -> st.SearchStrategy[str]:
    numbers = st.integers(least, most).map(str)
    return numbers | st.sampled_from(names) if names else numbers


def item(
    least: int, most: int, names: list[str] | None = None, *, steps: bool = True, wraps: bool = True
) -> st.SearchStrategy[str]:
    """A value, a range, and either with a step."""
    one = number(least, most, names)
    ranges = st.tuples(st.integers(least, most), st.integers(least, most))
    if not wraps:
        ranges = ranges.map(lambda pair: (min(pair), max(pair)))
    span = ranges.map(lambda pair: f"{pair[0]}-{pair[1]}")
    plain = one | span
    if not steps:
        return plain
    stepped = st.tuples(st.just("*") | plain, st.integers(1, most - least)).map(lambda pair: f"{pair[0]}/{pair[1]}")
    return plain | stepped


def field(least: int, most: int, names: list[str] | None = None, **kinds: bool) -> st.SearchStrategy[str]:
    return st.just("*") | st.lists(item(least, most, names, **kinds), min_size=1, max_size=3).map(",".join)


dates = field(1, 31) | st.sampled_from(["L", "LW"]) | st.integers(1, 31).map(lambda day: f"{day}W")
weekday = number(1, 7, judge.WEEKDAYS)
weeks = (
    field(1, 7, judge.WEEKDAYS, steps=False)
    | st.just("L")
    | weekday.map(lambda day: f"{day}L")
    | st.tuples(weekday, st.integers(1, 5)).map(lambda pair: f"{pair[0]}#{pair[1]}")
)
years = st.just("*") | field(2010, 2030, wraps=False)
days = dates.map(lambda day: (day, "?")) | weeks.map(lambda day: ("?", day))
crons = st.builds(
    lambda minute, hour, day, month, year: f"cron({minute} {hour} {day[0]} {month} {day[1]} {year})",
    field(0, 59),
    field(0, 23),
    days,
    st.just("*") | field(1, 12, judge.MONTHS),
    years,
)


@given(
    text=crons,
    stretch=st.sampled_from(STRETCHES),
    skip_minutes=st.integers(0, DAYS * 1_440),
    dst=st.sampled_from(["eventbridge", "next-valid"]),
)
@example(
    text="cron(30 2 * * ? *)",
    stretch=("America/Los_Angeles", datetime(2027, 3, 10, tzinfo=UTC)),
    skip_minutes=0,
    dst="eventbridge",
)
@example(
    text="cron(0 * * * ? *)",
    stretch=("America/Los_Angeles", datetime(2026, 10, 30, tzinfo=UTC)),
    skip_minutes=0,
    dst="next-valid",
)
@pytest.mark.slow
@settings(max_examples=3_000 if os.environ.get("ONEFOLD_SOAK") == "1" else 2_000)
def test_it_fires_when_a_matcher_that_asks_every_minute_does(
    text: str, stretch: tuple[str, datetime], skip_minutes: int, dst: Dst
) -> None:
    zone, start = stretch
    expected = judge.fires(text, zone, start, DAYS, at_jump=dst == "next-valid")
    from_ms = judge.clock(zone, start, DAYS)[0][0] + skip_minutes * limits.MINUTE_MS
    to_ms = judge.clock(zone, start, DAYS)[-1][0] + limits.MINUTE_MS
    timing = Timing(parse(text), zone=zone, dst=dst)
    found = between(timing, from_ms, to_ms, anchor_ms=0)
    wanted = [at_ms for at_ms in expected if at_ms >= from_ms]
    assert [at_ms for at_ms, _ in zip(found, range(100), strict=False)] == wanted[:100]
    if wanted:  # any instant in between leads to the same ones
        middle = len(wanted) // 2
        assert next_after(timing, wanted[middle] - 1, anchor_ms=0) == wanted[middle]
        later = next_after(timing, wanted[-1], anchor_ms=0)
        assert later is None or later >= to_ms


@pytest.mark.parametrize(("zone", "start"), [one for one in STRETCHES if one[0] != "UTC"])
@pytest.mark.parametrize("dst", ["eventbridge", "next-valid"])
@pytest.mark.parametrize(
    "text", ["cron(* * * * ? *)", "cron(*/15 * * * ? *)", "cron(0,30 0-4 * * ? *)", "cron(59 23 L * ? *)"]
)
def test_around_every_clock_change(zone: str, start: datetime, dst: Dst, text: str) -> None:
    expected = judge.fires(text, zone, start, DAYS, at_jump=dst == "next-valid")
    minutes = judge.clock(zone, start, DAYS)
    timing = Timing(parse(text), zone=zone, dst=dst)
    from_ms, to_ms = minutes[0][0], minutes[-1][0] + 1
    for at, (at_ms, _, is_first, left_out) in enumerate(minutes):
        if left_out or (not is_first and minutes[at - 1][2]):
            around = at_ms - 8 * limits.HOUR_MS, at_ms + 30 * limits.HOUR_MS
            wanted = [one for one in expected if around[0] <= one < around[1]]
            assert list(between(timing, *around, anchor_ms=0)) == wanted
    lost = [
        (at_ms, wall.strftime("%Y-%m-%dT%H:%M"))
        for at_ms, _, _, walls in minutes
        for wall in walls
        if judge.Reading(text).has(wall)
    ]
    assert list(skipped(timing, from_ms, to_ms)) == lost


RULES = [
    *[(f"{day}W", "?") for day in range(1, 32)],
    *[(f"{day}", "?") for day in range(28, 32)],
    ("L", "?"), ("LW", "?"), ("31-2", "?"), ("*/7", "?"), ("28/1", "?"),
    ("?", "L"), ("?", "SAT-SUN"), ("?", "6-2"), ("?", "MON,WED-FRI"),
    *[("?", f"{day}L") for day in range(1, 8)],
    *[("?", f"{day}#{nth}") for day in judge.WEEKDAYS for nth in range(1, 6)],
]  # fmt: skip


# Each weekday that a year begins with, with leap day and without; and a century that has none.
YEARS = (1996, 1998, 1999, 2000, 2001, 2002, 2003, 2004, 2005, 2006, 2008, 2012, 2016, 2020, 2100)


@pytest.mark.parametrize(("date_field", "week_field"), RULES)
def test_every_rule_for_days_in_every_kind_of_year(date_field: str, week_field: str) -> None:
    text = f"cron(30 4 {date_field} * {week_field} *)"
    reading = judge.Reading(text)
    for year in YEARS:
        begin, end = datetime(year, 1, 1, 4, 30, tzinfo=UTC), datetime(year + 1, 1, 1, 4, 30, tzinfo=UTC)
        every = (begin + timedelta(days=at) for at in range((end - begin).days))
        wanted = [round(at.timestamp()) * 1_000 for at in every if reading.has_day(at.date())]
        from_ms, to_ms = (round(at.timestamp()) * 1_000 for at in (begin, end))
        assert list(between(Timing(parse(text)), from_ms, to_ms, anchor_ms=0)) == wanted
