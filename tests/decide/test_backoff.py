"""Pauses: their bounds for every policy and fraction, the tables of the articles, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold import limits
from onefold.errors import UsageError
from onefold.record.delivery import IN_CALL, IN_CALL_TRIES, Backoff, bounds_ms, delay_ms

POLICIES = st.builds(
    lambda base, factor, more, jitter: Backoff(
        base_ms=base, factor=factor, cap_ms=min(base + more, limits.VISIBILITY_MS_MAX), jitter=jitter
    ),
    st.integers(0, limits.VISIBILITY_MS_MAX),
    st.floats(1, 10),
    st.integers(0, limits.VISIBILITY_MS_MAX),
    st.sampled_from(["full", "half", "none"]),
)
FRACTIONS = st.floats(0, 1, exclude_max=True)


@given(POLICIES, st.integers(1, 10_000), FRACTIONS)
def test_a_pause_stays_within_its_bounds_and_the_cap(backoff: Backoff, failed_runs: int, fraction: float) -> None:
    least_ms, most_ms = bounds_ms(backoff, failed_runs)
    found_ms = delay_ms(backoff, failed_runs, fraction)
    assert type(found_ms) is int
    assert 0 <= least_ms <= found_ms <= most_ms <= backoff.cap_ms <= limits.VISIBILITY_MS_MAX


@given(POLICIES, st.integers(1, 100), FRACTIONS)
def test_pauses_never_shrink_from_run_to_run(backoff: Backoff, failed_runs: int, fraction: float) -> None:
    assert delay_ms(backoff, failed_runs, fraction) <= delay_ms(backoff, failed_runs + 1, fraction)


@given(POLICIES, st.integers(1, 100), FRACTIONS, FRACTIONS)
def test_a_larger_fraction_never_waits_less(backoff: Backoff, failed_runs: int, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert delay_ms(backoff, failed_runs, low) <= delay_ms(backoff, failed_runs, high)


@pytest.mark.parametrize(
    ("jitter", "failed_runs", "bounds"),
    [
        ("none", 1, (1_000, 1_000)),
        ("none", 2, (2_000, 2_000)),
        ("none", 4, (8_000, 8_000)),
        ("none", 5, (9_000, 9_000)),
        ("none", 2_000, (9_000, 9_000)),
        ("full", 1, (0, 1_000)),
        ("full", 3, (0, 4_000)),
        ("full", 9, (0, 9_000)),
        ("half", 1, (500, 1_500)),
        ("half", 3, (2_000, 6_000)),
        ("half", 4, (3_000, 9_000)),  # spread around two thirds of the cap, not heaped on it
        ("half", 9, (3_000, 9_000)),
    ],
)
def test_each_jitter(jitter: Any, failed_runs: int, bounds: tuple[int, int]) -> None:
    assert bounds_ms(Backoff(base_ms=1_000, factor=2.0, cap_ms=9_000, jitter=jitter), failed_runs) == bounds


def test_the_pauses_inside_a_call_are_the_articles() -> None:
    assert IN_CALL_TRIES == 3
    assert [bounds_ms(IN_CALL, number) for number in (1, 2, 3)] == [(25, 75), (50, 150), (100, 300)]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"jitter": "some"}, "jitter='some' is not known"),
        ({"factor": 0.9}, "factor=0.9 is out of range"),
        ({"factor": 10.1}, "factor=10.1 is out of range"),
        ({"factor": float("nan")}, "factor=nan is out of range"),
        ({"base_ms": -1}, "first pause of -1 ms"),
        ({"base_ms": 2_000, "cap_ms": 1_999}, "longest pause of 1s999ms"),
        ({"cap_ms": limits.VISIBILITY_MS_MAX + 1}, "most 12h, for which a message can be hidden"),
    ],
)
def test_what_cannot_be_a_backoff_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        Backoff(**settings)
    assert caught.value.todo


@pytest.mark.parametrize("settings", [{"base_ms": 0}, {"base_ms": 5, "cap_ms": 5}, {"factor": 1}, {"factor": 10}])
def test_the_bounds_themselves_are_allowed(settings: dict[str, Any]) -> None:
    assert delay_ms(Backoff(**settings), 1, 0.5) >= 0
