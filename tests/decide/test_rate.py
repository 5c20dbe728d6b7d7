"""Token buckets and slots against slow, obvious models; rates as people write them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold import limits
from onefold.errors import UsageError
from onefold.record.rate import Bucket, Rate, TakenTokens, occupy, parse_rate, take, vacate

RATES = st.builds(
    Rate,
    st.integers(1, 1_000),
    st.sampled_from([limits.SECOND_MS, limits.MINUTE_MS, limits.HOUR_MS]),
    st.none() | st.integers(1, 50),
)


@pytest.mark.parametrize(
    ("text", "rate", "burst"),
    [
        ("100/s", Rate(100, 1_000), 10),
        ("5/m", Rate(5, 60_000), 1),
        ("1000/h", Rate(1_000, 3_600_000), 1),
        ("20/d", Rate(20, 86_400_000), 1),
        (" 9 / s ", Rate(9, 1_000), 1),
        ("1000000/s", Rate(1_000_000, 1_000), 100_000),
        ("600000/m", Rate(600_000, 60_000), 1_000),
    ],
)
def test_rates_as_people_write_them(text: str, rate: Rate, burst: int) -> None:
    assert parse_rate(text) == rate
    assert rate.burst_max == burst


def test_a_burst_can_be_set() -> None:
    assert parse_rate("5/m", burst=3).burst_max == 3


@pytest.mark.parametrize(
    "text", ["", "100", "100/", "/s", "1.5/s", "-1/s", "10/w", "10 per s", "10/ss", "1e3/s", 5, None]
)
def test_other_forms_are_refused(text: Any) -> None:
    with pytest.raises(UsageError, match="is not a rate") as caught:
        parse_rate(text)
    assert "100/s" in caught.value.todo


@pytest.mark.parametrize("text", ["0/s", "1000001/s"])
def test_numbers_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is out of range"):
        parse_rate(text)


def test_a_burst_out_of_range_is_refused() -> None:
    with pytest.raises(UsageError, match="burst=0"):
        parse_rate("5/s", burst=0)


def test_a_new_bucket_is_full_and_then_refills_evenly() -> None:
    rate = Rate(10, 1_000, burst=3)
    first = take(None, rate, 5, 1_000)
    assert (first.granted, first.wait_ms) == (3, 100)
    assert take(first.bucket, rate, 1, 1_099) == TakenTokens(0, Bucket(990, 1_099), 1)
    later = take(first.bucket, rate, 1, 1_100)
    assert (later.granted, later.wait_ms) == (1, 0)
    assert take(later.bucket, rate, 9, 99_000).granted == 3  # never more than the burst


def test_a_refill_that_is_no_whole_number_loses_nothing() -> None:
    rate = Rate(7, 60_000, burst=2)
    bucket = take(None, rate, 2, 0).bucket
    granted = 0
    for now_ms in range(1, 600_001):
        taken = take(bucket, rate, 1, now_ms)
        bucket = taken.bucket
        granted += taken.granted
    assert granted == 70


@given(RATES, st.lists(st.tuples(st.integers(-2_000, 20_000), st.integers(1, 20)), max_size=60))
def test_no_more_than_burst_and_rate_allow_even_when_clocks_disagree(rate: Rate, asks: list[tuple[int, int]]) -> None:
    """Instants come from several hosts, so they go back and forth by up to two seconds."""
    bucket: Bucket | None = None
    now_ms = first_ms = latest_ms = 1_000_000
    granted = 0
    for step_ms, wanted in asks:
        now_ms += step_ms
        taken = take(bucket, rate, wanted, now_ms)
        bucket = taken.bucket
        granted += taken.granted
        first_ms, latest_ms = min(first_ms, now_ms), max(latest_ms, now_ms)
        assert 0 <= taken.granted <= wanted
        assert (taken.wait_ms == 0) == (taken.granted == wanted)
        assert 0 <= bucket.level <= rate.burst_max * rate.per_ms
        assert granted * rate.per_ms <= rate.burst_max * rate.per_ms + (latest_ms - first_ms) * rate.count


@given(RATES, st.integers(1, 100), st.integers(0, 10**13), st.integers(0, 10**6))
def test_who_waits_as_told_gets_one(rate: Rate, wanted: int, now_ms: int, later_ms: int) -> None:
    taken = take(take(None, rate, wanted, now_ms).bucket, rate, wanted, now_ms + later_ms)
    if taken.granted == wanted:
        return
    at_ms = now_ms + later_ms + taken.wait_ms
    assert take(taken.bucket, rate, 1, at_ms).granted == 1
    assert take(taken.bucket, rate, 1, at_ms - 1).granted == 0


def test_a_clock_that_was_far_ahead_does_not_stop_the_job_for_ever() -> None:
    rate = Rate(1, 1_000, burst=1)
    ahead = take(None, rate, 1, limits.DAY_MS).bucket
    assert take(ahead, rate, 1, 5_000).wait_ms == 1_000
    near = Bucket(0, 5_000 + limits.MINUTE_MS)
    assert take(near, rate, 1, 5_000).wait_ms == limits.MINUTE_MS + 1_000


def test_a_lower_rate_holds_the_old_level_within_its_burst() -> None:
    full = take(None, Rate(100, 1_000, burst=50), 1, 0).bucket
    assert take(full, Rate(100, 1_000, burst=2), 9, 0).granted == 2


def test_the_state_is_json() -> None:
    bucket = Bucket(990, 1_099)
    assert msgspec.json.decode(msgspec.json.encode(bucket), type=Bucket) == bucket


# ------------------------------------------------------------------------------------------------------------- slots


def test_slots_are_taken_renewed_given_back_and_end_by_themselves() -> None:
    first = occupy({}, "a", 2, until_ms=100, now_ms=0)
    second = occupy(first.slots, "b", 2, until_ms=50, now_ms=0)
    assert (first.granted, second.granted, second.wait_ms) == (True, True, 0)
    third = occupy(second.slots, "c", 2, until_ms=90, now_ms=10)
    assert (third.granted, third.wait_ms, third.slots) == (False, 40, second.slots)
    assert occupy(third.slots, "a", 2, until_ms=200, now_ms=10).slots == {"a": 200, "b": 50}
    assert occupy(third.slots, "c", 2, until_ms=90, now_ms=49).granted is False
    assert occupy(third.slots, "c", 2, until_ms=90, now_ms=50).slots == {"a": 100, "c": 90}
    assert vacate(second.slots, "a", now_ms=0) == {"b": 50}
    assert vacate(second.slots, "nobody", now_ms=0) == second.slots
    assert vacate(second.slots, "a", now_ms=50) == {}


def test_fewer_slots_than_holders_after_a_change_of_the_setting() -> None:
    slots = {"a": 100, "b": 100}
    assert occupy(slots, "c", 1, until_ms=200, now_ms=0).granted is False
    assert occupy(slots, "a", 1, until_ms=200, now_ms=0).granted is True  # who has one keeps it


@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(
            st.sampled_from(["occupy", "vacate"]),
            st.sampled_from("abcde"),
            st.integers(0, 30),
            st.integers(1, 60),
        ),
        max_size=60,
    ),
)
def test_never_more_holders_than_slots(count_max: int, turns: list[tuple[str, str, int, int]]) -> None:
    slots: dict[str, int] = {}
    held: dict[str, int] = {}  # the model
    now_ms = 0
    for verb, holder, step_ms, hold_ms in turns:
        now_ms += step_ms
        held = {name: end_ms for name, end_ms in held.items() if end_ms > now_ms}
        if verb == "vacate":
            slots = vacate(slots, holder, now_ms)
            held.pop(holder, None)
        else:
            answer = occupy(slots, holder, count_max, now_ms + hold_ms, now_ms)
            slots = answer.slots
            assert answer.granted == (holder in held or len(held) < count_max)
            if answer.granted:
                held[holder] = now_ms + hold_ms
            else:
                assert answer.wait_ms == min(held.values()) - now_ms > 0
        assert slots == held
        assert len(slots) <= count_max
