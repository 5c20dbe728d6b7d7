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
from onefold.schedules.ticks import Missed, ScheduleState, TickPlan

MINUTE_MS, HOUR_MS, DAY_MS = limits.MINUTE_MS, limits.HOUR_MS, limits.DAY_MS
NIGHTLY = Timing(parse("cron(0 3 * * ? *)"))
HOURLY = Timing(parse("cron(0 * * * ? *)"))


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000)


def texts(plan: TickPlan) -> list[str]:
    return [datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%m-%d %H:%M") for at_ms in plan.ticks]


NOON_MS = ms("2026-11-20 12:00")


def first(timing: Timing, now_ms: int = NOON_MS) -> ScheduleState:
    return ticks.first("shop", "v1", timing, now_ms)


def advance(
    state: ScheduleState, timing: Timing, now_ms: int, missed: Missed = "last", missed_max: int = 100
) -> TickPlan:
    return ticks.advance("nightly", state, timing, now_ms, missed=missed, missed_max=missed_max)


# -- the first time --------------------------------------------------------------------------------------------------


def test_a_schedule_begins_when_it_is_first_seen() -> None:
    state = first(NIGHTLY)
    assert state.next_ms == ms("2026-11-21 03:00")
    assert not advance(state, NIGHTLY, NOON_MS).ticks
    assert not advance(state, NIGHTLY, ms("2026-11-21 02:59:59")).ticks
    assert texts(advance(state, NIGHTLY, ms("2026-11-21 03:00"))) == ["11-21 03:00"]


def test_a_schedule_that_is_first_seen_at_its_time_fires() -> None:
    now_ms = ms("2026-11-21 03:00") + 400
    assert texts(advance(first(NIGHTLY, now_ms), NIGHTLY, now_ms)) == ["11-21 03:00"]


def test_a_rate_without_a_start_has_its_first_tick_at_once() -> None:
    rate = Timing(parse("rate(6 hours)"))
    plan = advance(first(rate, NOON_MS + 700), rate, NOON_MS + 700)
    assert plan.ticks == [NOON_MS]
    assert plan.state.next_ms == NOON_MS + 6 * HOUR_MS


def test_a_rate_with_a_start_waits_for_it() -> None:
    rate = Timing(parse("rate(6 hours)"), start_ms=NOON_MS + HOUR_MS)
    assert first(rate).next_ms == NOON_MS + HOUR_MS
    began = Timing(parse("rate(6 hours)"), start_ms=NOON_MS - HOUR_MS)
    assert first(began).next_ms == NOON_MS + 5 * HOUR_MS


def test_a_one_time_schedule_in_the_past_fires_at_once() -> None:
    once = Timing(parse("at(2026-11-19T08:00:00)"))
    plan = advance(first(once), once, NOON_MS)
    assert texts(plan) == ["11-19 08:00"]
    assert (plan.state.next_ms, ticks.wakes_at("nightly", plan.state, once)) == (None, None)
    assert not advance(plan.state, once, NOON_MS + DAY_MS).ticks


# -- on time and late ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missed", get_args(Missed))
@pytest.mark.parametrize("late_ms", [0, 1, MINUTE_MS - 1])
def test_a_tick_within_its_minute_is_always_sent(missed: Missed, late_ms: int) -> None:
    plan = advance(first(NIGHTLY), NIGHTLY, ms("2026-11-21 03:00") + late_ms, missed)
    assert texts(plan) == ["11-21 03:00"]
    assert (plan.passed, plan.state.sent, plan.state.sent_ms) == (0, 1, ms("2026-11-21 03:00"))
    assert plan.state.next_ms == ms("2026-11-22 03:00")


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
    assert plan.state.next_ms == ms("2026-11-24 03:00")
    assert not advance(plan.state, NIGHTLY, ms("2026-11-23 09:00"), missed).ticks
    assert texts(advance(plan.state, NIGHTLY, ms("2026-11-24 03:00"), missed)) == ["11-24 03:00"]


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
    state, fired = first(hour), list[int]()
    for _ in range(200):
        at_ms, nominal_ms = ticks.wakes_at("nightly", state, hour), state.next_ms
        assert at_ms is not None
        assert nominal_ms is not None
        assert 0 <= at_ms - nominal_ms < HOUR_MS
        assert ticks.wakes_at("nightly", state, hour) == at_ms
        assert not advance(state, hour, at_ms - 1, "skip").ticks
        plan = advance(state, hour, at_ms, "skip")
        assert plan.ticks == [nominal_ms]
        fired.append(at_ms - nominal_ms)
        state = plan.state
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
    state, sent = first(wide), list[int]()
    for minute in range(120):
        plan = advance(state, wide, NOON_MS + minute * MINUTE_MS, "skip")
        sent += plan.ticks
        state = plan.state
        assert plan.passed == 0
    assert sent == [NOON_MS + at * MINUTE_MS for at in range(len(sent))]
    assert len(sent) >= 90


# -- clocks ----------------------------------------------------------------------------------------------------------


def test_a_clock_that_goes_back_a_little_is_waited_for() -> None:
    plan = advance(first(NIGHTLY), NIGHTLY, ms("2026-11-21 03:00"))
    back_ms = ms("2026-11-21 03:00") - MINUTE_MS
    assert not ticks.is_ahead(plan.state, back_ms)
    assert not advance(plan.state, NIGHTLY, back_ms).ticks
    assert ticks.is_ahead(plan.state, back_ms - 1)


def test_a_clock_set_back_an_hour_repeats_nothing_and_loses_nothing() -> None:
    quarter = Timing(parse("cron(0/15 * * * ? *)"))
    state = advance(first(quarter), quarter, NOON_MS).state
    for at_ms in (NOON_MS + 15 * MINUTE_MS, NOON_MS + 30 * MINUTE_MS):
        state = advance(state, quarter, at_ms).state
    now_ms = NOON_MS - 30 * MINUTE_MS
    assert ticks.is_ahead(state, now_ms)
    state, sent = ticks.rewound(state, quarter, now_ms), list[str]()
    for minute in range(120):
        plan = advance(state, quarter, now_ms + minute * MINUTE_MS)
        sent += texts(plan)
        state = plan.state
    # 12:00 to 12:30 were sent by the clock that was ahead
    assert sent == ["11-20 11:45", "11-20 12:45", "11-20 13:00", "11-20 13:15"]
    assert state.high_ms == 0


def test_what_a_jump_forward_passed_over_comes_at_its_time_when_the_clock_is_set_back() -> None:
    state = first(NIGHTLY)
    ahead = advance(state, NIGHTLY, ms("2026-11-25 12:00"))
    assert (texts(ahead), ahead.passed) == (["11-25 03:00"], 4)
    now_ms = ms("2026-11-21 02:00")
    state = ticks.rewound(ahead.state, NIGHTLY, now_ms)
    sent = []
    for hour in range(7 * 24):
        plan = advance(state, NIGHTLY, now_ms + hour * HOUR_MS)
        sent += texts(plan)
        state = plan.state
    assert sent == ["11-21 03:00", "11-22 03:00", "11-23 03:00", "11-24 03:00", "11-26 03:00", "11-27 03:00"]


def test_a_rate_that_was_first_seen_by_a_wrong_clock_keeps_its_steps() -> None:
    rate = Timing(parse("rate(1 hour)"))
    state = advance(first(rate, NOON_MS + 900 * DAY_MS), rate, NOON_MS + 900 * DAY_MS).state
    state = ticks.rewound(state, rate, NOON_MS - 20 * MINUTE_MS)
    assert (state.anchor_ms, state.next_ms) == (NOON_MS, NOON_MS)
    assert advance(state, rate, NOON_MS).ticks == [NOON_MS]


def test_a_tick_that_was_passed_over_to_the_millisecond_comes_when_the_clock_is_set_back() -> None:
    plan = advance(first(NIGHTLY), NIGHTLY, ms("2026-11-21 03:01"), "skip")
    assert (plan.passed, plan.state.last_ms) == (1, ms("2026-11-21 03:00"))
    state = ticks.rewound(plan.state, NIGHTLY, ms("2026-11-21 02:00"))
    assert texts(advance(state, NIGHTLY, ms("2026-11-21 03:00"), "skip")) == ["11-21 03:00"]


def test_a_schedule_that_was_first_seen_by_a_clock_a_year_ahead_loses_nothing() -> None:
    year_ms = NOON_MS + 365 * DAY_MS
    state = advance(first(NIGHTLY, year_ms), NIGHTLY, year_ms + 16 * HOUR_MS).state
    assert state.sent == 1
    state, sent = ticks.rewound(state, NIGHTLY, NOON_MS), list[str]()
    for hour in range(49):
        plan = advance(state, NIGHTLY, NOON_MS + hour * HOUR_MS)
        sent += texts(plan)
        state = plan.state
    assert sent == ["11-21 03:00", "11-22 03:00"]


# -- other times -----------------------------------------------------------------------------------------------------


def test_changed_times_count_from_now_and_repeat_nothing() -> None:
    state = advance(first(HOURLY), HOURLY, NOON_MS + HOUR_MS).state
    half = Timing(parse("cron(0/30 * * * ? *)"))
    now_ms = NOON_MS + HOUR_MS + 45 * MINUTE_MS
    after = ticks.changed(state, "shop", "v2", half, now_ms)
    assert (after.digest, after.next_ms, after.sent) == ("v2", NOON_MS + 2 * HOUR_MS, state.sent)
    assert not advance(after, half, now_ms).ticks  # 13:30 was no time of it when it passed


def test_changed_times_repeat_no_tick_of_this_second_nor_of_a_clock_a_little_ahead() -> None:
    state = advance(first(HOURLY), HOURLY, NOON_MS).state
    assert state.sent_ms == NOON_MS
    half = Timing(parse("cron(0/30 * * * ? *)"))
    for now_ms in (NOON_MS, NOON_MS + 400, NOON_MS - 30_000):
        after = ticks.changed(state, "shop", "v2", half, now_ms)
        assert after.next_ms == NOON_MS + HOUR_MS // 2
        assert not advance(after, half, now_ms).ticks
        assert not advance(after, half, NOON_MS + 800).ticks


def test_times_that_were_changed_by_a_clock_a_day_ahead_are_kept_when_it_is_set_back() -> None:
    state = advance(first(HOURLY), HOURLY, NOON_MS).state
    state = ticks.changed(state, "shop", "v2", NIGHTLY, NOON_MS + 3 * DAY_MS)
    state = ticks.rewound(state, NIGHTLY, NOON_MS + 1_000)
    assert texts(advance(state, NIGHTLY, ms("2026-11-21 03:00"))) == ["11-21 03:00"]


def test_two_versions_that_take_turns_send_no_tick_twice() -> None:
    versions = [("v1", HOURLY), ("v2", Timing(parse("cron(0 0/2 * * ? *)")))]
    state, sent = first(HOURLY, NOON_MS + 1_000), list[int]()
    for minute in range(600):
        now_ms = NOON_MS + minute * MINUTE_MS
        digest, timing = versions[minute % 2]
        if state.digest != digest:
            state = ticks.changed(state, "shop", digest, timing, now_ms)
        plan = advance(state, timing, now_ms)
        state = plan.state
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


def owed(timing: Timing, state: ScheduleState, until_ms: int) -> list[int]:
    return list(between(timing, BEGIN_MS - 1_000, until_ms + 1, anchor_ms=state.anchor_ms))


@given(timing=timings, missed=st.sampled_from(get_args(Missed)), waits=st.lists(short | long, max_size=30))
@HISTORIES
def test_while_time_goes_on_each_tick_is_sent_once_or_told(timing: Timing, missed: Missed, waits: list[int]) -> None:
    state, now_ms, sent, passed = first(timing, BEGIN_MS), BEGIN_MS, list[int](), 0
    for wait_ms in [0, *waits]:
        now_ms += wait_ms
        assert not ticks.is_ahead(state, now_ms)
        plan = advance(state, timing, now_ms, missed, missed_max=10_000)
        on_time = [at_ms for at_ms in plan.ticks if at_ms > now_ms - MINUTE_MS - timing.window_ms]
        if missed == "skip":
            assert list(plan.ticks) == on_time
        if missed == "last":
            assert len(plan.ticks) == max(len(on_time), min(len(plan.ticks), 1))
        sent += plan.ticks
        passed += plan.passed
        state = plan.state
        waiting = owed(timing, state, now_ms)[len(sent) + passed :]
        assert len(waiting) == 0 or timing.window_ms  # what is left, waits in its window
        assert all(at_ms > now_ms - MINUTE_MS - timing.window_ms for at_ms in waiting)
    assert sent == sorted(set(sent))
    assert set(sent) <= set(owed(timing, state, now_ms))
    assert state.sent == len(sent)
    if missed == "all":
        assert passed == 0
    text = msgspec.json.encode(state)
    assert msgspec.json.decode(text, type=ScheduleState) == state


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
    state, now_ms, sent = first(timing, BEGIN_MS), BEGIN_MS, set[int]()
    for move_ms in [0, *moves]:
        now_ms += move_ms
        if ticks.is_ahead(state, now_ms):
            state = ticks.rewound(state, timing, now_ms)
        plan = advance(state, timing, now_ms, missed, missed_max=1_000)
        assert not sent & set(plan.ticks)
        assert list(plan.ticks) == sorted(set(plan.ticks))
        after_ms = max(now_ms - MINUTE_MS, state.last_ms)
        on_time = set(between(timing, after_ms + 1, now_ms + 1, anchor_ms=state.anchor_ms))
        assert on_time <= sent | set(plan.ticks)
        sent |= set(plan.ticks)
        dealt_with = between(timing, state.last_ms + 1, plan.state.last_ms + 1, anchor_ms=state.anchor_ms)
        assert plan.passed == min(len(set(dealt_with) - sent), ticks.COUNTED_MAX)
        state = plan.state
        assert len(state.gaps) <= ticks.GAPS_MAX
        assert state.last_ms <= now_ms + ticks.SET_BACK_MS
        assert state.next_ms is None or state.next_ms > state.last_ms


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
    state, sent = first(timing, BEGIN_MS), list[int]()
    wrong = (BEGIN_MS + before_ms, BEGIN_MS + before_ms + wrong_ms)
    end_ms = BEGIN_MS + DAY_MS
    for true_ms in range(BEGIN_MS, end_ms, MINUTE_MS - 1_000):
        now_ms = true_ms + (jump_ms if wrong[0] <= true_ms < wrong[1] else 0)
        if ticks.is_ahead(state, now_ms):
            state = ticks.rewound(state, timing, now_ms)
        plan = advance(state, timing, now_ms, "skip")
        sent += plan.ticks
        state = plan.state
    assert len(sent) == len(set(sent))
    right = [
        at_ms
        for at_ms in owed(timing, state, end_ms - MINUTE_MS)
        if not wrong[0] - MINUTE_MS <= at_ms <= wrong[1] + MINUTE_MS
    ]
    assert set(right) <= set(sent)


def test_a_new_schedule_that_wants_all_begins_at_its_start_in_the_past() -> None:
    since = Timing(NIGHTLY.expression, start_ms=NOON_MS - 3 * DAY_MS)
    state = ticks.first("shop", "v1", since, NOON_MS, "all")
    assert texts(advance(state, since, NOON_MS, "all")) == ["11-18 03:00", "11-19 03:00", "11-20 03:00"]
    assert advance(ticks.first("shop", "v1", since, NOON_MS, "last"), since, NOON_MS, "last").ticks == ()
    ahead = Timing(NIGHTLY.expression, start_ms=NOON_MS + 3 * DAY_MS)
    assert ticks.first("shop", "v1", ahead, NOON_MS, "all").next_ms == ms("2026-11-24 03:00")
