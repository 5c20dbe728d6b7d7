"""Every documented example of the expression language, and when it fires next; instants, zones, bounds of a timing."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice, pairwise

import pytest

from onefold import limits
from onefold.errors import UsageError
from onefold.schedules.expressions import RateExpression
from onefold.schedules.fire_times import Dst, Timing, between, next_after, parse, run_name, skipped, zone_of


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000)


def texts(instants: list[int]) -> list[str]:
    return [datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M") for at_ms in instants]


def fires(
    text: str, zone: str = "UTC", after: str = "2026-11-20 00:00", count: int = 3, dst: Dst = "eventbridge"
) -> list[str]:
    timing = Timing(parse(text), zone=zone, dst=dst)
    return texts(list(islice(between(timing, ms(after) + 1, ms("2300-01-01 00:00"), anchor_ms=ms(after)), count)))


# Sources, as in the pages: EventBridge Scheduler "Schedule types" and "Getting started", EventBridge "Creating a rule
# that runs on a schedule", Systems Manager "Cron and rate expressions" (without its seconds).
DOCUMENTED = [
    ("cron(15 10 ? * 6L 2022-2023)", []),
    ("cron(15 10 ? * 6L 2019-2022)", []),
    ("cron(15 10 ? * 6L *)", ["2026-11-27 10:15", "2026-12-25 10:15", "2027-01-29 10:15"]),
    ("cron(0 10 * * ? *)", ["2026-11-20 10:00", "2026-11-21 10:00", "2026-11-22 10:00"]),
    ("cron(15 12 * * ? *)", ["2026-11-20 12:15", "2026-11-21 12:15", "2026-11-22 12:15"]),
    ("cron(0 18 ? * MON-FRI *)", ["2026-11-20 18:00", "2026-11-23 18:00", "2026-11-24 18:00"]),
    ("cron(0 8 1 * ? *)", ["2026-12-01 08:00", "2027-01-01 08:00", "2027-02-01 08:00"]),
    ("cron(0/15 * * * ? *)", ["2026-11-20 00:15", "2026-11-20 00:30", "2026-11-20 00:45"]),
    ("cron(0/10 * ? * MON-FRI *)", ["2026-11-20 00:10", "2026-11-20 00:20", "2026-11-20 00:30"]),
    ("cron(0/5 8-17 ? * MON-FRI *)", ["2026-11-20 08:00", "2026-11-20 08:05", "2026-11-20 08:10"]),
    ("cron(0/30 20-2 ? * MON-FRI *)", ["2026-11-20 00:30", "2026-11-20 01:00", "2026-11-20 01:30"]),
    ("cron(0/30 20-23 ? * MON-FRI *)", ["2026-11-20 20:00", "2026-11-20 20:30", "2026-11-20 21:00"]),
    ("cron(0/30 0-2 ? * MON-FRI *)", ["2026-11-20 00:30", "2026-11-20 01:00", "2026-11-20 01:30"]),
    ("cron(0 12 * * ? *)", ["2026-11-20 12:00", "2026-11-21 12:00", "2026-11-22 12:00"]),
    ("cron(5,35 14 * * ? *)", ["2026-11-20 14:05", "2026-11-20 14:35", "2026-11-21 14:05"]),
    ("cron(0 2 ? * SAT *)", ["2026-11-21 02:00", "2026-11-28 02:00", "2026-12-05 02:00"]),
    ("cron(0 2 ? * SAT#3 *)", ["2026-11-21 02:00", "2026-12-19 02:00", "2027-01-16 02:00"]),
    ("cron(* * ? * SAT#3 *)", ["2026-11-21 00:00", "2026-11-21 00:01", "2026-11-21 00:02"]),
    ("cron(0/5 5 ? JAN 1-5 2022)", []),
    ("cron(30 23 ? * TUE#3 *)", ["2026-12-15 23:30", "2027-01-19 23:30", "2027-02-16 23:30"]),
    ("cron(0 0 ? * THU#2 *)", ["2026-12-10 00:00", "2027-01-14 00:00", "2027-02-11 00:00"]),
    ("cron(0 0 ? * 3L *)", ["2026-11-24 00:00", "2026-12-29 00:00", "2027-01-26 00:00"]),
    ("cron(0 2 ? * THU#3 *)", ["2026-12-17 02:00", "2027-01-21 02:00", "2027-02-18 02:00"]),
    ("cron(15 10 ? * * *)", ["2026-11-20 10:15", "2026-11-21 10:15", "2026-11-22 10:15"]),
    ("cron(15 10 ? * MON-FRI *)", ["2026-11-20 10:15", "2026-11-23 10:15", "2026-11-24 10:15"]),
    ("cron(0 2 L * ? *)", ["2026-11-30 02:00", "2026-12-31 02:00", "2027-01-31 02:00"]),
    ("cron(15 13 ? * * *)", ["2026-11-20 13:15", "2026-11-21 13:15", "2026-11-22 13:15"]),
    ("cron(15 13 ? * MON *)", ["2026-11-23 13:15", "2026-11-30 13:15", "2026-12-07 13:15"]),
    ("cron(0 0/4 * * ? *)", ["2026-11-20 04:00", "2026-11-20 08:00", "2026-11-20 12:00"]),
    ("cron(0 0/12 * * ? *)", ["2026-11-20 12:00", "2026-11-21 00:00", "2026-11-21 12:00"]),
    ("cron(0 16 ? * TUE *)", ["2026-11-24 16:00", "2026-12-01 16:00", "2026-12-08 16:00"]),
    ("cron(30 09 ? * * *)", ["2026-11-20 09:30", "2026-11-21 09:30", "2026-11-22 09:30"]),
    ("cron(0 2 ? * SUN *)", ["2026-11-22 02:00", "2026-11-29 02:00", "2026-12-06 02:00"]),
    ("cron(0-15/1 8-8 ? * 2,3,4,5,6,7 *)", ["2026-11-20 08:00", "2026-11-20 08:01", "2026-11-20 08:02"]),
    ("cron(30-30 13-13 ? * 2,4,6 *)", ["2026-11-20 13:30", "2026-11-23 13:30", "2026-11-25 13:30"]),
    ("cron(1-31/30 1-1 ? * 1,7 *)", ["2026-11-21 01:01", "2026-11-21 01:31", "2026-11-22 01:01"]),
    ("cron(*/15 * * * ? *)", ["2026-11-20 00:15", "2026-11-20 00:30", "2026-11-20 00:45"]),
    ("cron(0-59/10 0-23/2 ? * * *)", ["2026-11-20 00:10", "2026-11-20 00:20", "2026-11-20 00:30"]),
    ("cron(1/10 * * * ? *)", ["2026-11-20 00:01", "2026-11-20 00:11", "2026-11-20 00:21"]),
    ("cron(0 0 1 JAN,FEB,MAR ? *)", ["2027-01-01 00:00", "2027-02-01 00:00", "2027-03-01 00:00"]),
    ("cron(0 0 1-15 * ? *)", ["2026-12-01 00:00", "2026-12-02 00:00", "2026-12-03 00:00"]),
    ("cron(0 9 3W * ? *)", ["2026-12-03 09:00", "2027-01-04 09:00", "2027-02-03 09:00"]),
    ("cron(0 0 ? * 3#2 *)", ["2026-12-08 00:00", "2027-01-12 00:00", "2027-02-09 00:00"]),
    ("cron(0 0 29 FEB ? *)", ["2028-02-29 00:00", "2032-02-29 00:00", "2036-02-29 00:00"]),
    ("cron(0 0 31 * ? *)", ["2026-12-31 00:00", "2027-01-31 00:00", "2027-03-31 00:00"]),
    ("at(2020-07-07T15:55:00)", []),
    ("at(2026-12-01T03:00:00)", ["2026-12-01 03:00"]),
]


@pytest.mark.parametrize(("text", "expected"), DOCUMENTED)
def test_what_aws_documents_fires_when_aws_says(text: str, expected: list[str]) -> None:
    assert fires(text) == expected


# zone, after, expression, next instants in UTC
ZONED = [
    ("America/New_York", "2026-11-20 00:00", "cron(30 8 * * ? *)", ["2026-11-20 13:30", "2026-11-21 13:30"]),
    ("America/Los_Angeles", "2027-03-13 00:00", "cron(30 2 * * ? *)", ["2027-03-13 10:30", "2027-03-15 09:30"]),
    ("America/Los_Angeles", "2022-11-01 00:00", "at(2022-11-20T13:00:00)", ["2022-11-20 21:00"]),
    ("Europe/London", "2026-11-20 00:00", "cron(0 3 1 * ? *)", ["2026-12-01 03:00", "2027-01-01 03:00"]),
    ("Europe/London", "2027-03-20 00:00", "cron(0 3 1 * ? *)", ["2027-04-01 02:00", "2027-05-01 02:00"]),
    ("Europe/Amsterdam", "2027-03-28 00:00", "cron(30 3 * * ? *)", ["2027-03-28 01:30", "2027-03-29 01:30"]),
    ("Europe/Amsterdam", "2026-10-24 12:00", "cron(30 2 * * ? *)", ["2026-10-25 00:30", "2026-10-26 01:30"]),
    ("Europe/Amsterdam", "2027-03-27 12:00", "cron(30 2 * * ? *)", ["2027-03-29 00:30", "2027-03-30 00:30"]),
    ("America/Los_Angeles", "2026-11-01 07:59", "cron(0 * * * ? *)", ["2026-11-01 08:00", "2026-11-01 10:00"]),
]  # fmt: skip


@pytest.mark.parametrize(("zone", "after", "text", "expected"), ZONED)
def test_documented_examples_in_zones(zone: str, after: str, text: str, expected: list[str]) -> None:
    assert fires(text, zone, after, count=len(expected)) == expected


def test_the_next_valid_instant_for_what_the_clocks_jump_over() -> None:
    zone = "America/Los_Angeles"
    assert fires("cron(30 2 * * ? *)", zone, "2027-03-13 12:00", 2, "next-valid") == [
        "2027-03-14 10:00",
        "2027-03-15 09:30",
    ]
    # four quarters and three o'clock itself are one instant
    assert fires("cron(*/15 2,3 * * ? *)", zone, "2027-03-14 00:00", 3, "next-valid") == [
        "2027-03-14 10:00",
        "2027-03-14 10:15",
        "2027-03-14 10:30",
    ]
    # what comes twice comes once, with both
    assert fires("cron(30 1 * * ? *)", zone, "2026-11-01 00:00", 2, "next-valid") == [
        "2026-11-01 08:30",
        "2026-11-02 09:30",
    ]


def test_what_is_skipped_can_be_told() -> None:
    timing = Timing(parse("cron(30 2 * * ? *)"), zone="America/Los_Angeles")
    found = list(skipped(timing, ms("2026-01-01"), ms("2028-01-01")))
    assert found == [(ms("2026-03-08 10:00"), "2026-03-08T02:30"), (ms("2027-03-14 10:00"), "2027-03-14T02:30")]
    assert list(skipped(Timing(parse("rate(1 day)"), zone="America/Los_Angeles"), 0, ms("2028-01-01"))) == []


@pytest.mark.parametrize(
    ("text", "period_ms"),
    [
        ("rate(1 minute)", limits.MINUTE_MS),
        ("rate(5 minutes)", 5 * limits.MINUTE_MS),
        ("rate(10 minutes)", 10 * limits.MINUTE_MS),
        ("rate(1 hour)", limits.HOUR_MS),
        ("rate(5 hours)", 5 * limits.HOUR_MS),
        ("rate(1 day)", limits.DAY_MS),
        ("rate(1 days)", limits.DAY_MS),
        ("rate(7 days)", 7 * limits.DAY_MS),
        ("rate(15 days)", 15 * limits.DAY_MS),
        ("rate(25 days)", 25 * limits.DAY_MS),
    ],
)
def test_rates_count_elapsed_time_from_their_start(text: str, period_ms: int) -> None:
    expression = parse(text)
    assert isinstance(expression, RateExpression)
    assert expression.period_ms == period_ms
    anchor_ms = ms("2027-03-13 12:34") + 500  # a day before clocks change: rates do not see it
    timing = Timing(expression, zone="America/Los_Angeles")
    found = list(islice(between(timing, 0, ms("2200-01-01"), anchor_ms=anchor_ms), 4))
    assert found[0] == anchor_ms + 500  # the whole second
    assert {later - before for before, later in pairwise(found)} == {period_ms}
    assert next_after(timing, found[2] - 1, anchor_ms=anchor_ms) == found[2]


def test_a_rate_begins_at_its_start_and_ends_with_its_end() -> None:
    timing = Timing(parse("rate(2 days)"), start_ms=ms("2026-12-01 06:00"), end_ms=ms("2026-12-05 06:00"))
    assert texts(list(between(timing, 0, ms("2030-01-01"), anchor_ms=ms("2026-11-20 00:00")))) == [
        "2026-12-01 06:00",
        "2026-12-03 06:00",
        "2026-12-05 06:00",
    ]


def test_cron_fires_from_start_to_end_both_included() -> None:
    expression = parse("cron(0 10 * * ? *)")
    timing = Timing(expression, start_ms=ms("2026-12-01 10:00"), end_ms=ms("2026-12-02 10:00"))
    assert texts(list(between(timing, 0, ms("2030-01-01"), anchor_ms=0))) == ["2026-12-01 10:00", "2026-12-02 10:00"]
    inside = Timing(expression, start_ms=ms("2026-12-01 10:00") + 1, end_ms=ms("2026-12-02 10:00") - 1)
    assert next_after(inside, 0, anchor_ms=0) is None


def test_a_one_time_expression_ignores_start_and_end_as_aws_does() -> None:
    timing = Timing(parse("at(2026-12-01T03:00:00)"), start_ms=ms("2027-01-01"), end_ms=ms("2027-01-02"))
    assert next_after(timing, 0, anchor_ms=0) == ms("2026-12-01 03:00")
    assert next_after(timing, ms("2026-12-01 03:00"), anchor_ms=0) is None


def test_years_end_with_2199_and_begin_with_1970() -> None:
    every = Timing(parse("cron(* * * * ? *)"), zone="Pacific/Kiritimati")
    assert next_after(every, -(10**15), anchor_ms=0) == 10 * limits.HOUR_MS + 40 * limits.MINUTE_MS
    assert next_after(Timing(parse("cron(59 23 31 12 ? *)")), ms("2199-12-31 23:58"), anchor_ms=0) == ms(
        "2199-12-31 23:59"
    )
    assert next_after(every, ms("2199-12-31 23:59"), anchor_ms=0) is None
    assert next_after(every, 10**17, anchor_ms=0) is None
    assert next_after(Timing(parse("rate(999999999 days)")), ms("2026-01-01"), anchor_ms=ms("2026-01-01")) is None
    assert next_after(Timing(parse("cron(0 0 30 2 ? *)")), 0, anchor_ms=0) is None


def test_a_run_is_named_as_the_scheduled_time_of_eventbridge() -> None:
    assert run_name("monthly-billing", ms("2026-06-01 02:00")) == "monthly-billing/2026-06-01T02:00:00Z"


# -- what is refused -------------------------------------------------------------------------------------------------


def test_an_end_before_the_start_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        Timing(parse("rate(1 day)"), start_ms=ms("2026-12-02"), end_ms=ms("2026-12-01"))
    assert caught.value.what == "The end 2026-12-01T00:00:00Z is before the start 2026-12-02T00:00:00Z."
    same = Timing(parse("rate(1 day)"), start_ms=5_000, end_ms=5_000)
    assert next_after(same, 0, anchor_ms=0) == 5_000


@pytest.mark.parametrize("window_ms", [-60_000, 1, 59_999, 60_001, limits.DAY_MS + limits.MINUTE_MS])
def test_a_window_out_of_range_is_refused(window_ms: int) -> None:
    with pytest.raises(UsageError, match="1 to 1,440"):
        Timing(parse("rate(1 day)"), window_ms=window_ms)
    assert Timing(parse("rate(1 day)"), window_ms=limits.DAY_MS).window_ms == limits.DAY_MS


def test_an_unknown_policy_for_clock_changes_is_refused() -> None:
    with pytest.raises(UsageError, match="eventbridge or next-valid"):
        Timing(parse("rate(1 day)"), dst="both")  # type: ignore[arg-type]  # what a caller without types writes


def test_a_one_time_expression_that_no_clock_shows_is_refused() -> None:
    expression = parse("at(2027-03-14T02:30:00)")
    with pytest.raises(UsageError) as caught:
        Timing(expression, zone="America/Los_Angeles")
    assert caught.value.what == "at(2027-03-14T02:30:00) does not exist in America/Los_Angeles."
    moved = Timing(expression, zone="America/Los_Angeles", dst="next-valid")
    assert next_after(moved, 0, anchor_ms=0) == ms("2027-03-14 10:00")


@pytest.mark.parametrize(
    ("zone", "meant"),
    [
        ("Europe/Lodnon", "Did you mean Europe/London?"),
        ("europe/london", "Did you mean Europe/London?"),
        ("London", "Did you mean Europe/London?"),
        ("new york", "Did you mean America/New_York?"),
        ("", ""),
        ("BST", ""),
        ("../../etc/passwd", ""),
        ("/etc/localtime", ""),
        ("posixrules", ""),
        ("Europe", None),
        ("Europe/London" * 5, None),
        ("\0", ""),
    ],
)
def test_a_zone_that_does_not_exist_is_refused(zone: str, meant: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        Timing(parse("rate(1 day)"), zone=zone)
    assert caught.value.what == f"There is no time zone {zone!r}."
    assert meant is None or caught.value.meaning == meant
    assert "Europe/London" in caught.value.todo


def test_utc_needs_no_database() -> None:
    assert zone_of("UTC") is UTC
    assert fires("cron(0 3 * * ? *)", "Etc/UTC", count=1) == ["2026-11-20 03:00"]


def test_a_machine_without_zones_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoneinfo.available_timezones", set)
    with pytest.raises(UsageError, match="pip install tzdata"):
        zone_of("Atlantis/Sunken")
