"""Leases: when the next extension is due, how long it may be, and when nobody may rely on it any more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold import limits
from onefold.record.lease import (
    CEILING_SLACK_MS,
    Extend,
    Lease,
    Over,
    Rest,
    ceiling_ms,
    due_at_ms,
    failed_from_ms,
    margin_ms,
    next_step,
    trusted_until_ms,
)

HALF_HOUR_MS = 30 * limits.MINUTE_MS
CEILING_MS = limits.VISIBILITY_MS_MAX - CEILING_SLACK_MS


@pytest.mark.parametrize(
    ("lease_ms", "margin"),
    [
        (1, 0),
        (100, 50),
        (200, 100),
        (1_000, 100),
        (2_000, 200),
        (30_000, 3_000),
        (50_000, 5_000),
        (HALF_HOUR_MS, 5_000),
    ],
)
def test_the_margin_is_a_tenth_within_bounds(lease_ms: int, margin: int) -> None:
    assert margin_ms(lease_ms) == margin
    assert trusted_until_ms(7, lease_ms) == 7 + lease_ms - margin


@pytest.mark.parametrize(
    ("now_ms", "step"),
    [
        (0, Rest(10_000)),
        (9_999, Rest(10_000)),
        (10_000, Extend(30_000)),
        (26_999, Extend(30_000)),
        (27_000, Over(ceiling=False)),
        (99_000, Over(ceiling=False)),
    ],
)
def test_a_lease_without_a_message_is_due_after_a_third_and_over_before_its_end(now_ms: int, step: object) -> None:
    assert next_step(Lease(asked_at_ms=0, lease_ms=30_000), now_ms) == step


def test_a_failed_extension_is_tried_again_after_a_twelfth() -> None:
    lease = Lease(asked_at_ms=0, lease_ms=30_000, tried_at_ms=10_000)
    assert due_at_ms(lease) == 12_500
    assert next_step(lease, 12_499) == Rest(12_500)
    assert next_step(lease, 12_500) == Extend(30_000)
    late = Lease(asked_at_ms=0, lease_ms=30_000, tried_at_ms=26_000, tried_from_ms=10_000)
    assert next_step(late, 26_500) == Rest(27_000)  # no later than the end of trust
    assert next_step(late, 27_000) == Over(ceiling=False)


@pytest.mark.parametrize("tried_from_ms", [None, 10_000], ids=["stopped", "stopped between two tries"])
def test_after_a_stop_extending_is_tried_for_as_long_as_before_the_end(tried_from_ms: int | None) -> None:
    def tried(at_ms: int | None, from_ms: int | None) -> Lease:
        return Lease(asked_at_ms=0, lease_ms=30_000, tried_at_ms=at_ms, tried_from_ms=from_ms, is_claimed=True)

    lease, now_ms, tries = tried(tried_from_ms, tried_from_ms), 99_000, []
    while not isinstance(step := next_step(lease, now_ms), Over):
        if isinstance(step, Extend):
            tries.append(now_ms)
            lease = tried(now_ms, failed_from_ms(lease, now_ms))
        now_ms += 500
    assert step == Over(ceiling=False)
    assert tries == list(range(99_000, 116_000, 2_500))  # a twelfth between two
    assert now_ms == 116_000  # 27 s, less the third after which a lease is due
    assert next_step(lease, now_ms + 10_000) == Extend(30_000)  # stopped again


@pytest.mark.parametrize(
    ("asked_at_ms", "now_ms", "step"),
    [
        (0, 10 * limits.MINUTE_MS, Extend(HALF_HOUR_MS)),
        (CEILING_MS - HALF_HOUR_MS - 1, CEILING_MS - HALF_HOUR_MS // 2, Extend(HALF_HOUR_MS // 2)),
        (
            CEILING_MS - HALF_HOUR_MS,
            CEILING_MS - HALF_HOUR_MS // 2,
            Rest(CEILING_MS - 5_000),
        ),  # would move nothing
        (CEILING_MS - HALF_HOUR_MS, CEILING_MS - 5_000, Over(ceiling=True)),
        (CEILING_MS - HALF_HOUR_MS - 1, CEILING_MS, Over(ceiling=False)),
    ],
)
def test_an_extension_never_passes_twelve_hours_from_the_receive(asked_at_ms: int, now_ms: int, step: object) -> None:
    assert next_step(Lease(asked_at_ms=asked_at_ms, lease_ms=HALF_HOUR_MS, received_at_ms=0), now_ms) == step


def test_the_ceiling_counts_from_the_receive() -> None:
    assert ceiling_ms(5) == 5 + CEILING_MS


@given(
    st.integers(1, limits.VISIBILITY_MS_MAX),
    st.lists(st.tuples(st.integers(0, 5_000), st.booleans()), max_size=200),
    st.booleans(),
)
def test_a_holder_that_follows_the_steps_never_trusts_a_lease_that_ended(
    lease_ms: int, turns: list[tuple[int, bool]], with_message: bool
) -> None:
    """Wherever time goes between two looks, and whichever extensions fail."""
    now_ms = ends_ms = 0
    lease = Lease(asked_at_ms=0, lease_ms=lease_ms, received_at_ms=0 if with_message else None)
    ends_ms = lease_ms
    for share, works in turns:
        now_ms += lease_ms * share // 5_000
        step = next_step(lease, now_ms)
        if isinstance(step, Over):
            assert now_ms >= ends_ms - margin_ms(lease.lease_ms)
            return
        assert now_ms < ends_ms  # still trusted, so it must still hold
        if isinstance(step, Rest):
            assert now_ms < step.until_ms <= ends_ms
        elif works:
            assert 0 < step.lease_ms <= lease_ms
            lease = Lease(asked_at_ms=now_ms, lease_ms=step.lease_ms, received_at_ms=lease.received_at_ms)
            assert not with_message or now_ms + step.lease_ms <= limits.VISIBILITY_MS_MAX - CEILING_SLACK_MS
            assert now_ms + step.lease_ms >= ends_ms or with_message
            ends_ms = now_ms + step.lease_ms
        else:
            lease = Lease(
                asked_at_ms=lease.asked_at_ms,
                lease_ms=lease.lease_ms,
                received_at_ms=lease.received_at_ms,
                tried_at_ms=now_ms,
            )
