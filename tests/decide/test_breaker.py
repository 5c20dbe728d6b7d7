"""The circuit breaker: each transition, and any sequence of deliveries against its promises."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold import limits
from onefold.errors import UsageError
from onefold.record.breaker import (
    CLOSED,
    Answer,
    Breaker,
    BreakerPolicy,
    BreakerRuling,
    BreakerUpdate,
    admit,
    after_run,
    is_to_blame,
    resume,
)

POLICY = BreakerPolicy(pause_ms=1_000, pause_ms_max=8_000, probe_ms=500)
COUNTING = BreakerPolicy(in_a_row=3, pause_ms=1_000, pause_ms_max=8_000, probe_ms=500)


def opened(policy: BreakerPolicy = POLICY, at_ms: int = 0, **more: Any) -> Breaker:
    return after_run(CLOSED, policy, "first", "down", at_ms, **more).breaker


def test_a_closed_breaker_admits_everything_and_changes_nothing() -> None:
    assert admit(CLOSED, POLICY, "a", 0) == BreakerRuling(True, CLOSED)
    for answer in ("answered", "failing", "none"):
        assert after_run(CLOSED, POLICY, "a", answer, 0).breaker is CLOSED  # type: ignore[arg-type]
    assert after_run(CLOSED, COUNTING, "a", "none", 0).breaker is CLOSED


def test_a_dependency_that_is_down_opens_it_at_once() -> None:
    found = after_run(CLOSED, POLICY, "first", "down", 100, summary="HTTP 401")
    assert found == BreakerUpdate(Breaker(pauses=1, until_ms=1_100, suspects=("first",), summary="HTTP 401"), "paused")
    assert admit(found.breaker, POLICY, "b", 100) == BreakerRuling(False, found.breaker, 1_000)
    assert admit(found.breaker, POLICY, "b", 1_099) == BreakerRuling(False, found.breaker, 1)


def test_failures_in_a_row_open_it_and_any_answer_ends_the_row() -> None:
    one = after_run(CLOSED, COUNTING, "a", "failing", 0).breaker
    two = after_run(one, COUNTING, "b", "failing", 0).breaker
    assert (one.failures, two.failures, two.is_open) == (1, 2, False)
    assert after_run(two, COUNTING, "c", "answered", 0).breaker == CLOSED
    assert after_run(two, COUNTING, "c", "none", 0).breaker is two
    three = after_run(two, COUNTING, "c", "failing", 0)
    assert (three.event, three.breaker.is_open) == ("paused", True)


def test_after_the_pause_one_delivery_is_the_probe() -> None:
    paused = opened()
    probing = admit(paused, POLICY, "b", 1_000)
    assert (probing.admitted, probing.event, probing.breaker.probe) == (True, "probing", "b")
    assert admit(probing.breaker, POLICY, "c", 1_001) == BreakerRuling(False, probing.breaker, 499)
    assert admit(probing.breaker, POLICY, "b", 1_001).admitted  # its own redelivery
    instead = admit(probing.breaker, POLICY, "c", 1_500)  # the probe's worker has died
    assert (instead.admitted, instead.breaker.probe, instead.breaker.probe_until_ms) == (True, "c", 2_000)


def test_who_was_refused_before_lets_another_probe_first() -> None:
    paused = opened()
    assert admit(paused, POLICY, "first", 1_000) == BreakerRuling(False, paused, 500)
    assert admit(paused, POLICY, "first", 1_500).event == "probing"


def test_a_probe_that_is_answered_closes_it() -> None:
    probing = admit(opened(), POLICY, "b", 1_000).breaker
    closed = after_run(probing, POLICY, "b", "answered", 1_100)
    assert closed == BreakerUpdate(Breaker(suspects=("first",)), "resumed")
    assert admit(closed.breaker, POLICY, "c", 1_100).admitted


@pytest.mark.parametrize("answer", ["down", "failing"])
def test_a_probe_that_fails_pauses_for_longer_up_to_the_cap(answer: Answer) -> None:
    breaker, now_ms, pauses_ms = opened(), 1_000, []
    for _ in range(6):
        breaker = admit(breaker, POLICY, "b", now_ms + 500).breaker
        breaker = after_run(breaker, POLICY, "b", answer, now_ms + 500).breaker
        pauses_ms.append(breaker.until_ms - now_ms - 500)
        now_ms = breaker.until_ms
    assert pauses_ms == [2_000, 4_000, 8_000, 8_000, 8_000, 8_000]
    assert breaker.suspects == ("first", "b")


def test_a_probe_that_was_given_back_frees_its_place() -> None:
    probing = admit(opened(), POLICY, "b", 1_000).breaker
    free = after_run(probing, POLICY, "b", "none", 1_001)
    assert (free.breaker.probe, free.event) == ("", None)
    assert admit(free.breaker, POLICY, "c", 1_002).event == "probing"


@pytest.mark.parametrize("answer", ["answered", "failing", "down", "none"])
def test_runs_that_began_before_the_pause_decide_nothing(answer: Answer) -> None:
    paused = opened()
    assert after_run(paused, POLICY, "late", answer, 10) == BreakerUpdate(paused)
    probing = admit(paused, POLICY, "b", 1_000).breaker
    assert after_run(probing, POLICY, "late", answer, 1_010) == BreakerUpdate(probing)


def test_the_dependencys_own_wish_is_a_lower_bound() -> None:
    assert opened(retry_in_ms=5_000).until_ms == 5_000
    assert opened(retry_in_ms=10).until_ms == 1_000
    assert opened(retry_in_ms=60_000).until_ms == 60_000  # also above the cap
    assert opened(retry_in_ms=10**12).until_ms == limits.VISIBILITY_MS_MAX


def test_a_message_that_alone_is_refused_is_to_blame_itself() -> None:
    """One forbidden item must not pause its job for ever."""
    probing = admit(opened(), POLICY, "b", 1_000).breaker
    closed = after_run(probing, POLICY, "b", "answered", 1_100).breaker
    assert is_to_blame(closed, "first")
    assert not is_to_blame(closed, "c")
    assert not is_to_blame(opened(), "first")  # while it is open nobody knows yet
    healed = after_run(closed, POLICY, "first", "answered", 1_200).breaker
    assert not is_to_blame(healed, "first")
    assert healed == CLOSED
    probed_itself = after_run(
        admit(opened(), POLICY, "first", 1_500).breaker, POLICY, "first", "answered", 1_600
    ).breaker
    assert not is_to_blame(probed_itself, "first")


def test_a_person_may_close_it() -> None:
    assert resume(opened()) == BreakerUpdate(CLOSED, "resumed")
    assert resume(CLOSED).event is None


@pytest.mark.parametrize(
    "settings",
    [
        {"in_a_row": 1},
        {"pause_ms": 0},
        {"pause_ms": 2_000, "pause_ms_max": 1_000},
        {"pause_ms_max": limits.VISIBILITY_MS_MAX + 1},
        {"probe_ms": 0},
    ],
)
def test_what_cannot_be_a_policy_is_refused(settings: dict[str, int]) -> None:
    with pytest.raises(UsageError) as caught:
        BreakerPolicy(**settings)
    assert caught.value.todo


def test_the_state_is_small_json() -> None:
    breaker = opened(summary="x" * 999)
    for number in range(100):
        now_ms = breaker.until_ms + 500
        breaker = after_run(
            admit(breaker, POLICY, f"op{number}", now_ms).breaker, POLICY, f"op{number}", "down", now_ms
        ).breaker
    assert len(breaker.suspects) == 16
    text = msgspec.json.encode(breaker)
    assert len(text) < 1_000
    assert msgspec.json.decode(text, type=Breaker) == breaker
    assert msgspec.json.encode(CLOSED) == b"{}"


@given(
    st.sampled_from([POLICY, COUNTING]),
    st.lists(
        st.tuples(
            st.integers(0, 3_000),
            st.sampled_from("abc"),
            st.sampled_from(["answered", "failing", "down", "none"]),
        ),
        max_size=80,
    ),
)
def test_an_open_breaker_admits_one_at_a_time_and_only_after_its_pause(
    policy: BreakerPolicy, turns: list[tuple[int, str, Answer]]
) -> None:
    breaker, now_ms, running = CLOSED, 0, {}
    for step_ms, operation, answer in turns:
        now_ms += step_ms
        if operation in running:
            found = after_run(breaker, policy, operation, answer, now_ms)
            del running[operation]
            assert (found.event == "paused") == (found.breaker.pauses == breaker.pauses + 1)
            assert (found.event == "resumed") == (breaker.is_open and not found.breaker.is_open)
            breaker = found.breaker
            continue
        asked = admit(breaker, policy, operation, now_ms)
        if asked.admitted:
            assert asked.wait_ms == 0
            running[operation] = now_ms
            if breaker.is_open:
                assert now_ms >= breaker.until_ms
                assert not breaker.probe or now_ms >= breaker.probe_until_ms or breaker.probe == operation
        else:
            assert breaker.is_open
            assert asked.breaker is breaker
            assert 0 < asked.wait_ms <= limits.VISIBILITY_MS_MAX
            waited = admit(breaker, policy, operation, max(now_ms + asked.wait_ms, breaker.probe_until_ms))
            assert waited.admitted  # who waits as told gets in, unless another became the probe meanwhile
        breaker = asked.breaker
