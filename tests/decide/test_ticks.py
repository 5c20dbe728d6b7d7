"""What a schedule owes: on time, late, in its window, after a time down, with a clock that jumps, with other times.

Single cases first; then drawn histories of a scheduler that stops, starts and has its clock changed, held against a list of
all instants and of what was sent.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold import limits
from onefold.schedules import ticks
from onefold.schedules.fire_times import Timing, between, parse
from onefold.schedules.ticks import Missed, Plan, Standing

MINUTE_MS, HOUR_MS, DAY_MS = limits.MINUTE_MS, limits.HOUR_MS, limits.DAY_MS
NIGHTLY = Timing(parse("cron(0 3 * * ? *)"))
HOURLY = Timing(parse("cron(0 * * * ? *)"))


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000)


def texts(plan: Plan) -> list[str]:
    return [datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%m-%d %H:%M") for at_ms in plan.ticks]


NOON_MS = ms("2026-11-20 12:00")


def first(timing: Timing, now_ms: int = NOON_MS) -> Standing:
    return ticks.first("shop", "v1", timing, now_ms)


def advance(standing: Standing, timing: Timing, now_ms: int, missed: Missed = "last", missed_max: int = 100) -> Plan:
    return ticks.advance("nightly", standing, timing, now_ms, missed=missed, missed_max=missed_max)


# -- the first time --------------------------------------------------------------------------------------------------


def test_a_schedule_begins_when_it_is_first_seen() -> None:
    standing = first(NIGHTLY)
    assert standing.next_ms == ms("2026-11-21 03:00")
    assert not advance(standing, NIGHTLY, NOON_MS).ticks
    assert not advance(standing, NIGHTLY, ms("2026-11-21 02:59:59")).ticks
    assert texts(advance(standing, NIGHTLY, ms("2026-11-21 03:00"))) == ["11-21 03:00"]


def test_a_schedule_that_is_first_seen_at_its_time_fires() -> None:
    now_ms = ms("2026-11-21 03:00") + 400
    assert texts(advance(first(NIGHTLY, now_ms), NIGHTLY, now_ms)) == ["11-21 03:00"]


def test_a_rate_without_a_start_has_its_first_tick_at_once() -> None:
    rate = Timing(parse("rate(6 hours)"))
    plan = advance(first(rate, NOON_MS + 700), rate, NOON_MS + 700)
    assert plan.ticks == [NOON_MS]
    assert plan.standing.next_ms == NOON_MS + 6 * HOUR_MS


def test_a_rate_with_a_start_waits_for_it() -> None:
    rate = Timing(parse("rate(6 hours)"), start_ms=NOON_MS + HOUR_MS)
    assert first(rate).next_ms == NOON_MS + HOUR_MS
    began = Timing(parse("rate(6 hours)"), start_ms=NOON_MS - HOUR_MS)
    assert first(began).next_ms == NOON_MS + 5 * HOUR_MS


def test_a_one_time_schedule_in_the_past_fires_at_once() -> None:
    once = Timing(parse("at(2026-11-19T08:00:00)"))
    plan = advance(first(once), once, NOON_MS)
    assert texts(plan) == ["11-19 08:00"]
    assert (plan.standing.next_ms, ticks.wakes_at("nightly", plan.standing, once)) == (None, None)
    assert not advance(plan.standing, once, NOON_MS + DAY_MS).ticks


# -- on time and late ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missed", get_args(Missed))
@pytest.mark.parametrize("late_ms", [0, 1, MINUTE_MS - 1])
def test_a_tick_within_its_minute_is_always_sent(missed: Missed, late_ms: int) -> None:
    plan = advance(first(NIGHTLY), NIGHTLY, ms("2026-11-21 03:00") + late_ms, missed)
    assert texts(plan) == ["11-21 03:00"]
    assert (plan.passed, plan.standing.sent, plan.standing.sent_ms) == (0, 1, ms("2026-11-21 03:00"))
    assert plan.standing.next_ms == ms("2026-11-22 03:00")


@pytest.mark.parametrize(
    ("missed", "sent", "passed"),
    [
        ("skip", [], 3),
        ("last", ["11-23 03:00"], 2),
        ("all", ["11-21 03:00", "11-22 03:00", "11-23 03:00"], 0),
    ],
)
def test_after_days_down(missed: Missed, sent: list[str], passed: int) -> None:
    plan = advance(first(NIGHTLY), NIGHTLY, ms("2026-11-23 09:00"), missed)
    assert (texts(plan), plan.passed) == (sent, passed)
    if passed:
        last = "2026-11-23 03:00" if missed == "skip" else "2026-11-22 03:00"
        assert (plan.passed_from_ms, plan.passed_to_ms) == (ms("2026-11-21 03:00"), ms(last))
    assert plan.standing.next_ms == ms("2026-11-24 03:00")
    assert not advance(plan.standing, NIGHTLY, ms("2026-11-23 09:00"), missed).ticks
    assert texts(advance(plan.standing, NIGHTLY, ms("2026-11-24 03:00"), missed)) == ["11-24 03:00"]


def test_one_that_is_on_time_is_the_last_one_missed() -> None:
    plan = advance(first(NIGHTLY), NIGHTLY, ms("2026-11-23 03:00") + 5, "last")
    assert (texts(plan), plan.passed) == (["11-23 03:00"], 2)
    plan = advance(first(NIGHTLY), NIGHTLY, ms("2026-11-23 03:00") + 5, "skip")
    assert (texts(plan), plan.passed) == (["11-23 03:00"], 2)


def test_all_that_were_missed_up_to_a_number_are_the_latest() -> None:
    plan = advance(first(HOURLY), HOURLY, NOON_MS + 10 * HOUR_MS + HOUR_MS // 2, "all", missed_max=3)
    assert texts(plan) == ["11-20 20:00", "11-20 21:00", "11-20 22:00"]
    assert plan.passed == 8  # noon itself is one: the schedule was seen at its time
    assert (plan.passed_from_ms, plan.passed_to_ms) == (NOON_MS, NOON_MS + 7 * HOUR_MS)


def test_a_long_time_down_is_counted_up_to_a_bound() -> None:
    each = Timing(parse("rate(1 minute)"))
    plan = advance(first(each), each, NOON_MS + 400 * DAY_MS, "all", missed_max=2)
    assert plan.ticks[-1] == NOON_MS + 400 * DAY_MS
    assert len(plan.ticks) == 3  # two that were missed, and the one that is on time
    assert plan.passed == ticks.COUNTED_MAX


# -- windows ---------------------------------------------------------------------------------------------------------


def test_in_a_window_one_tick_always_has_the_same_time() -> None:
    hour = msgspec.structs.replace(NIGHTLY, window_ms=HOUR_MS)
    standing, fired = first(hour), list[int]()
    for _ in range(200):
        at_ms, nominal_ms = ticks.wakes_at("nightly", standing, hour), standing.next_ms
        assert at_ms is not None
        assert nominal_ms is not None
        assert 0 <= at_ms - nominal_ms < HOUR_MS
        assert ticks.wakes_at("nightly", standing, hour) == at_ms
        assert not advance(standing, hour, at_ms - 1, "skip").ticks
        plan = advance(standing, hour, at_ms, "skip")
        assert plan.ticks == [nominal_ms]
        fired.append(at_ms - nominal_ms)
        standing = plan.standing
    assert len(set(fired)) > 190
    assert 0.4 < sum(fired) / len(fired) / HOUR_MS < 0.6
    other = ticks.wakes_at("weekly", first(hour), hour)
    assert other != ticks.wakes_at("nightly", first(hour), hour)  # schedules of one time are spread


def test_a_tick_is_late_only_after_its_window() -> None:
    hour = msgspec.structs.replace(NIGHTLY, window_ms=HOUR_MS)
    end_ms = ms("2026-11-21 03:00") + HOUR_MS + MINUTE_MS
    assert texts(advance(first(hour), hour, end_ms - 1, "skip")) == ["11-21 03:00"]
    late = advance(first(hour), hour, end_ms, "skip")
    assert (list(late.ticks), late.passed) == ([], 1)


def test_ticks_keep_their_order_where_windows_overlap() -> None:
    wide = Timing(parse("rate(1 minute)"), window_ms=30 * MINUTE_MS)
    standing, sent = first(wide), list[int]()
    for minute in range(120):
        plan = advance(standing, wide, NOON_MS + minute * MINUTE_MS, "skip")
        sent += plan.ticks
        standing = plan.standing
        assert plan.passed == 0
    assert sent == [NOON_MS + at * MINUTE_MS for at in range(len(sent))]
    assert len(sent) >= 90


# -- clocks ----------------------------------------------------------------------------------------------------------


def test_a_clock_that_goes_back_a_little_is_waited_for() -> None:
    plan = advance(first(NIGHTLY), NIGHTLY, ms("2026-11-21 03:00"))
    back_ms = ms("2026-11-21 03:00") - MINUTE_MS
    assert not ticks.is_ahead(plan.standing, back_ms)
    assert not advance(plan.standing, NIGHTLY, back_ms).ticks
    assert ticks.is_ahead(plan.standing, back_ms - 1)


def test_a_clock_set_back_an_hour_repeats_nothing_and_loses_nothing() -> None:
    quarter = Timing(parse("cron(0/15 * * * ? *)"))
    standing = advance(first(quarter), quarter, NOON_MS).standing
    for at_ms in (NOON_MS + 15 * MINUTE_MS, NOON_MS + 30 * MINUTE_MS):
        standing = advance(standing, quarter, at_ms).standing
    now_ms = NOON_MS - 30 * MINUTE_MS
    assert ticks.is_ahead(standing, now_ms)
    standing, sent = ticks.rewound(standing, quarter, now_ms), list[str]()
    for minute in range(120):
        plan = advance(standing, quarter, now_ms + minute * MINUTE_MS)
        sent += texts(plan)
        standing = plan.standing
    # 12:00 to 12:30 were sent by the clock that was ahead
    assert sent == ["11-20 11:45", "11-20 12:45", "11-20 13:00", "11-20 13:15"]
    assert standing.high_ms == 0


def test_what_a_jump_forward_passed_over_comes_at_its_time_when_the_clock_is_set_back() -> None:
    standing = first(NIGHTLY)
    ahead = advance(standing, NIGHTLY, ms("2026-11-25 12:00"))
    assert (texts(ahead), ahead.passed) == (["11-25 03:00"], 4)
    now_ms = ms("2026-11-21 02:00")
    standing = ticks.rewound(ahead.standing, NIGHTLY, now_ms)
    sent = []
    for hour in range(7 * 24):
        plan = advance(standing, NIGHTLY, now_ms + hour * HOUR_MS)
        sent += texts(plan)
        standing = plan.standing
    assert sent == ["11-21 03:00", "11-22 03:00", "11-23 03:00", "11-24 03:00", "11-26 03:00", "11-27 03:00"]


def test_a_rate_that_was_first_seen_by_a_wrong_clock_keeps_its_steps() -> None:
    rate = Timing(parse("rate(1 hour)"))
    standing = advance(first(rate, NOON_MS + 900 * DAY_MS), rate, NOON_MS + 900 * DAY_MS).standing
    standing = ticks.rewound(standing, rate, NOON_MS - 20 * MINUTE_MS)
    assert (standing.anchor_ms, standing.next_ms) == (NOON_MS, NOON_MS)
    assert advance(standing, rate, NOON_MS).ticks == [NOON_MS]


def test_a_tick_that_was_passed_over_to_the_millisecond_comes_when_the_clock_is_set_back() -> None:
    plan = advance(first(NIGHTLY), NIGHTLY, ms("2026-11-21 03:01"), "skip")
    assert (plan.passed, plan.standing.last_ms) == (1, ms("2026-11-21 03:00"))
    standing = ticks.rewound(plan.standing, NIGHTLY, ms("2026-11-21 02:00"))
    assert texts(advance(standing, NIGHTLY, ms("2026-11-21 03:00"), "skip")) == ["11-21 03:00"]


def test_a_schedule_that_was_first_seen_by_a_clock_a_year_ahead_loses_nothing() -> None:
    year_ms = NOON_MS + 365 * DAY_MS
    standing = advance(first(NIGHTLY, year_ms), NIGHTLY, year_ms + 16 * HOUR_MS).standing
    assert standing.sent == 1
    standing, sent = ticks.rewound(standing, NIGHTLY, NOON_MS), list[str]()
    for hour in range(49):
        plan = advance(standing, NIGHTLY, NOON_MS + hour * HOUR_MS)
        sent += texts(plan)
        standing = plan.standing
    assert sent == ["11-21 03:00", "11-22 03:00"]


# -- other times -----------------------------------------------------------------------------------------------------


def test_changed_times_count_from_now_and_repeat_nothing() -> None:
    standing = advance(first(HOURLY), HOURLY, NOON_MS + HOUR_MS).standing
    half = Timing(parse("cron(0/30 * * * ? *)"))
    now_ms = NOON_MS + HOUR_MS + 45 * MINUTE_MS
    after = ticks.changed(standing, "shop", "v2", half, now_ms)
    assert (after.digest, after.next_ms, after.sent) == ("v2", NOON_MS + 2 * HOUR_MS, standing.sent)
    assert not advance(after, half, now_ms).ticks  # 13:30 was no time of it when it passed


def test_changed_times_repeat_no_tick_of_this_second_nor_of_a_clock_a_little_ahead() -> None:
    standing = advance(first(HOURLY), HOURLY, NOON_MS).standing
    assert standing.sent_ms == NOON_MS
    half = Timing(parse("cron(0/30 * * * ? *)"))
    for now_ms in (NOON_MS, NOON_MS + 400, NOON_MS - 30_000):
        after = ticks.changed(standing, "shop", "v2", half, now_ms)
        assert after.next_ms == NOON_MS + HOUR_MS // 2
        assert not advance(after, half, now_ms).ticks
        assert not advance(after, half, NOON_MS + 800).ticks


def test_times_that_were_changed_by_a_clock_a_day_ahead_are_kept_when_it_is_set_back() -> None:
    standing = advance(first(HOURLY), HOURLY, NOON_MS).standing
    standing = ticks.changed(standing, "shop", "v2", NIGHTLY, NOON_MS + 3 * DAY_MS)
    standing = ticks.rewound(standing, NIGHTLY, NOON_MS + 1_000)
    assert texts(advance(standing, NIGHTLY, ms("2026-11-21 03:00"))) == ["11-21 03:00"]


def test_two_versions_that_take_turns_send_no_tick_twice() -> None:
    versions = [("v1", HOURLY), ("v2", Timing(parse("cron(0 0/2 * * ? *)")))]
    standing, sent = first(HOURLY, NOON_MS + 1_000), list[int]()
    for minute in range(600):
        now_ms = NOON_MS + minute * MINUTE_MS
        digest, timing = versions[minute % 2]
        if standing.digest != digest:
            standing = ticks.changed(standing, "shop", digest, timing, now_ms)
        plan = advance(standing, timing, now_ms)
        standing = plan.standing
        sent += plan.ticks
    assert len(sent) == len(set(sent))


# -- drawn histories -------------------------------------------------------------------------------------------------

timings = st.builds(
    Timing,
    expression=st.sampled_from(
        ["rate(7 minutes)", "cron(0/15 * * * ? *)", "cron(0 3 * * ? *)", "cron(30 1-3 * * ? *)", "rate(2 days)"]
    ).map(parse),
    zone=st.just("Europe/London"),
    window_ms=st.sampled_from([0, 0, MINUTE_MS, 20 * MINUTE_MS]),
    dst=st.sampled_from(["eventbridge", "next-valid"]),
)
BEGIN_MS = ms("2026-10-24 21:17:23")  # the night before clocks go back
short, long = st.integers(0, 10 * MINUTE_MS), st.integers(0, 3 * DAY_MS)
HISTORIES = settings(max_examples=4_000 if os.environ.get("ONEFOLD_SOAK") == "1" else 300)


def owed(timing: Timing, standing: Standing, until_ms: int) -> list[int]:
    return list(between(timing, BEGIN_MS - 1_000, until_ms + 1, anchor_ms=standing.anchor_ms))


@given(timing=timings, missed=st.sampled_from(get_args(Missed)), waits=st.lists(short | long, max_size=30))
@HISTORIES
def test_while_time_goes_on_each_tick_is_sent_once_or_told(timing: Timing, missed: Missed, waits: list[int]) -> None:
    standing, now_ms, sent, passed = first(timing, BEGIN_MS), BEGIN_MS, list[int](), 0
    for wait_ms in [0, *waits]:
        now_ms += wait_ms
        assert not ticks.is_ahead(standing, now_ms)
        plan = advance(standing, timing, now_ms, missed, missed_max=10_000)
        on_time = [at_ms for at_ms in plan.ticks if at_ms > now_ms - MINUTE_MS - timing.window_ms]
        if missed == "skip":
            assert list(plan.ticks) == on_time
        if missed == "last":
            assert len(plan.ticks) == max(len(on_time), min(len(plan.ticks), 1))
        sent += plan.ticks
        passed += plan.passed
        standing = plan.standing
        waiting = owed(timing, standing, now_ms)[len(sent) + passed :]
        assert len(waiting) == 0 or timing.window_ms  # what is left, waits in its window
        assert all(at_ms > now_ms - MINUTE_MS - timing.window_ms for at_ms in waiting)
    assert sent == sorted(set(sent))
    assert set(sent) <= set(owed(timing, standing, now_ms))
    assert standing.sent == len(sent)
    if missed == "all":
        assert passed == 0
    text = msgspec.json.encode(standing)
    assert msgspec.json.decode(text, type=Standing) == standing


dense = st.sampled_from(["cron(* * * * ? *)", "rate(7 minutes)", "cron(0/15 * * * ? *)"])
minutes = st.sampled_from([-1_000, -180, -60, -15, -5, 1, 1, 5, 5, 14, 45, 45, 120, 600, 2_000])  # back: a clock is set
moves = st.lists(
    st.tuples(minutes, st.sampled_from([0, 0, 1, 20_000, 60_000])).map(lambda move: move[0] * MINUTE_MS + move[1]),
    min_size=4,
    max_size=ticks.GAPS_MAX - 2,
)


@given(text=dense, missed=st.sampled_from(get_args(Missed)), moves=moves)
@pytest.mark.slow
@settings(max_examples=3_000 if os.environ.get("ONEFOLD_SOAK") == "1" else 800)
def test_whatever_the_clock_does_no_tick_comes_twice_and_each_that_is_on_time_comes(
    text: str, missed: Missed, moves: list[int]
) -> None:
    timing = Timing(parse(text))
    standing, now_ms, sent = first(timing, BEGIN_MS), BEGIN_MS, set[int]()
    for move_ms in [0, *moves]:
        now_ms += move_ms
        if ticks.is_ahead(standing, now_ms):
            standing = ticks.rewound(standing, timing, now_ms)
        plan = advance(standing, timing, now_ms, missed, missed_max=1_000)
        assert not sent & set(plan.ticks)
        assert list(plan.ticks) == sorted(set(plan.ticks))
        after_ms = max(now_ms - MINUTE_MS, standing.last_ms)
        on_time = set(between(timing, after_ms + 1, now_ms + 1, anchor_ms=standing.anchor_ms))
        assert on_time <= sent | set(plan.ticks)
        sent |= set(plan.ticks)
        dealt_with = between(timing, standing.last_ms + 1, plan.standing.last_ms + 1, anchor_ms=standing.anchor_ms)
        assert plan.passed == min(len(set(dealt_with) - sent), ticks.COUNTED_MAX)
        standing = plan.standing
        assert len(standing.gaps) <= ticks.GAPS_MAX
        assert standing.last_ms <= now_ms + ticks.SET_BACK_MS
        assert standing.next_ms is None or standing.next_ms > standing.last_ms


@given(
    timing=timings.filter(lambda one: not one.window_ms),
    jump_ms=st.integers(2 * MINUTE_MS, 12 * HOUR_MS),
    before_ms=st.integers(0, 6 * HOUR_MS),
    wrong_ms=st.integers(0, 3 * HOUR_MS),
)
@settings(max_examples=50)
def test_a_clock_that_jumps_forward_and_back_costs_no_tick_of_the_time_it_was_right(
    timing: Timing, jump_ms: int, before_ms: int, wrong_ms: int
) -> None:
    standing, sent = first(timing, BEGIN_MS), list[int]()
    wrong = (BEGIN_MS + before_ms, BEGIN_MS + before_ms + wrong_ms)
    end_ms = BEGIN_MS + DAY_MS
    for true_ms in range(BEGIN_MS, end_ms, MINUTE_MS - 1_000):
        now_ms = true_ms + (jump_ms if wrong[0] <= true_ms < wrong[1] else 0)
        if ticks.is_ahead(standing, now_ms):
            standing = ticks.rewound(standing, timing, now_ms)
        plan = advance(standing, timing, now_ms, "skip")
        sent += plan.ticks
        standing = plan.standing
    assert len(sent) == len(set(sent))
    right = [
        at_ms
        for at_ms in owed(timing, standing, end_ms - MINUTE_MS)
        if not wrong[0] - MINUTE_MS <= at_ms <= wrong[1] + MINUTE_MS
    ]
    assert set(right) <= set(sent)


def test_a_new_schedule_that_wants_all_begins_at_its_start_in_the_past() -> None:
    since = Timing(NIGHTLY.expression, start_ms=NOON_MS - 3 * DAY_MS)
    standing = ticks.first("shop", "v1", since, NOON_MS, "all")
    assert texts(advance(standing, since, NOON_MS, "all")) == ["11-18 03:00", "11-19 03:00", "11-20 03:00"]
    assert advance(ticks.first("shop", "v1", since, NOON_MS, "last"), since, NOON_MS, "last").ticks == ()
    ahead = Timing(NIGHTLY.expression, start_ms=NOON_MS + 3 * DAY_MS)
    assert ticks.first("shop", "v1", ahead, NOON_MS, "all").next_ms == ms("2026-11-24 03:00")
