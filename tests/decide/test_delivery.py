"""Every outcome of a run, against every policy: what becomes of record and message (design section 4, row by row).

Expected values are written by hand; the numbers are worked out in the comments.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from onefold.contracts import store
from onefold.contracts.queue import Ack, Leave, MoveTo, Reason, RetryIn
from onefold.record import decisions
from onefold.record import delivery as outcomes
from onefold.record.delivery import Backoff, Decision, Failed, LeaseGone, Note, NotStarted, Outcome, Policy, Unstorable

NOW_MS = 1_000_000
KEEP_MS = 90_000
EXPIRES_AT_MS = 1_090_000
KEY = store.RecordKey("", "ship", "o-1")
CLAIMED = store.Claimed(
    hold=store.Hold(KEY, "me", 1),
    found="absent",
    doubt=False,
    started=True,
    attempts=1,
    crashes=1,
    first_at_ms=900_000,
)
POLICY = Policy(
    job="ship",
    queue="orders",
    effect="external",
    attempts_max=3,
    crashes_max=2,
    backoff=Backoff(base_ms=1_000, factor=2.0, cap_ms=60_000, jitter="none"),
    on_unknown="rerun",
    after_failure="stop",
    timeout_ms=60_000,
    keep_ms=KEEP_MS,
    owner="fulfilment",
)
LETTER = store.OutboxItem(queue="letters", body="{}", key="o-1")
DONE = outcomes.Success(result=b'"L-1"', outbox=[LETTER])
TRANSIENT = Failed(kind="transient", error="TimeoutError", summary="no answer")
PERMANENT = Failed(kind="permanent", error="ValueError", summary="no such street")
DOWN = Failed(kind="dependency-down", error="AuthError", summary="401", retry_in_ms=7_000)
LOST_ANSWER = Failed(kind="unknown", error="ReadTimeout", summary="sent, no answer")
KILLED = Failed(kind="unknown", error="HandlerTimeout", summary="killed at 60 s", crashed=True)
LATER = NotStarted("drain")
NO_JSON = Unstorable(summary="a result of type set has no JSON form")
LOST_LEASE = LeaseGone()


def settle(outcome: Outcome, policy: Policy = POLICY, attempt: int = 1, *, fraction: float = 0.0) -> Decision:
    return decisions.settle(outcome, policy, CLAIMED, attempt, 4, NOW_MS, fraction)


def shape(decision: Decision) -> tuple[str, str]:
    """Record and message, in the words of the table below."""
    match decision.write:
        case None:
            record = "as it is"
        case store.Complete():
            record = "completed"
        case store.Fail(closes_budget=True):
            record = "failed, budget closed"
        case store.Fail():
            record = "failed"
        case store.Unknown(parked=True, crashed=crashed):
            record = "unknown, parked, crash" if crashed else "unknown, parked"
        case store.Unknown(crashed=crashed):
            record = "unknown, crash" if crashed else "unknown"
        case store.Release(refund=True):
            record = "released, refunded"
        case _:
            record = f"something else: {decision.write}"
    match decision.settle:
        case Ack():
            message = "deleted"
        case Leave():
            message = "left alone"
        case RetryIn(delay_ms=delay_ms, uncounted=uncounted):
            message = f"hidden {delay_ms}{' uncounted' if uncounted else ''}"
        case MoveTo(to=to, reason=reason):
            message = f"{to}: {reason.kind}"
    return record, message


# -- the table ---------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """What one outcome means; None stands for any value. The attempt is the one that just ended, of at most 3."""

    outcome: Outcome
    effect: str | None
    on_unknown: str | None
    attempt: int | None
    record: str
    message: str


NOT_A_ROW = ("external", "repeatable")  # effects that the outside may have seen
TABLE = [
    # success
    Row(DONE, None, None, None, "completed", "deleted"),
    # transient error: pauses 1000 x 2^(attempt-1); the third run is the last one
    Row(TRANSIENT, None, None, 1, "failed", "hidden 1000"),
    Row(TRANSIENT, None, None, 2, "failed", "hidden 2000"),
    Row(TRANSIENT, None, None, 3, "failed, budget closed", "dead-letter: attempts"),
    Row(TRANSIENT, None, None, 4, "failed, budget closed", "dead-letter: attempts"),
    # permanent error: at once
    Row(PERMANENT, None, None, None, "failed, budget closed", "dead-letter: permanent"),
    # the dependency as a whole: no attempt, no receive
    Row(DOWN, None, None, None, "released, refunded", "hidden 7000 uncounted"),
    # not started for any reason
    Row(LATER, None, None, None, "released, refunded", "hidden 0 uncounted"),
    # lost lease
    Row(LOST_LEASE, None, None, None, "as it is", "left alone"),
    # the effect may have happened
    *(
        row
        for effect in NOT_A_ROW
        for row in (
            Row(LOST_ANSWER, effect, "rerun", 1, "unknown", "hidden 1000"),
            Row(LOST_ANSWER, effect, "rerun", 2, "unknown", "hidden 2000"),
            Row(LOST_ANSWER, effect, "rerun", 3, "failed, budget closed", "dead-letter: attempts"),
            Row(LOST_ANSWER, effect, "rerun", 4, "failed, budget closed", "dead-letter: attempts"),
            Row(LOST_ANSWER, effect, "hold", None, "unknown, parked", "held: unknown"),
            # A probe is asked before the budget counts: it may have happened.
            Row(LOST_ANSWER, effect, "probe", 1, "unknown", "hidden 1000"),
            Row(LOST_ANSWER, effect, "probe", 2, "unknown", "hidden 2000"),
            Row(LOST_ANSWER, effect, "probe", 3, "unknown", "hidden 4000"),
            Row(LOST_ANSWER, effect, "probe", 4, "unknown", "hidden 8000"),
            Row(KILLED, effect, "rerun", 1, "unknown, crash", "hidden 1000"),
            Row(KILLED, effect, "rerun", 2, "unknown, crash", "hidden 2000"),
            Row(KILLED, effect, "rerun", 3, "failed, budget closed", "dead-letter: attempts"),
            Row(KILLED, effect, "rerun", 4, "failed, budget closed", "dead-letter: attempts"),
            Row(KILLED, effect, "hold", None, "unknown, parked, crash", "held: unknown"),
            Row(KILLED, effect, "probe", 1, "unknown, crash", "hidden 1000"),
            Row(KILLED, effect, "probe", 2, "unknown, crash", "hidden 2000"),
            Row(KILLED, effect, "probe", 3, "unknown, crash", "hidden 4000"),
            Row(KILLED, effect, "probe", 4, "unknown, crash", "hidden 8000"),
            # It did happen, and cannot be recorded: only a person can say what the result was.
            Row(NO_JSON, effect, None, None, "unknown, parked", "held: unknown"),
        )
    ),
    # rows that were rolled back: nothing of it is anywhere, so nothing is unknown
    *(
        row
        for outcome in (LOST_ANSWER, KILLED)
        for row in (
            Row(outcome, "transactional", None, 1, "failed", "hidden 1000"),
            Row(outcome, "transactional", None, 2, "failed", "hidden 2000"),
            Row(outcome, "transactional", None, 3, "failed, budget closed", "dead-letter: attempts"),
            Row(outcome, "transactional", None, 4, "failed, budget closed", "dead-letter: attempts"),
        )
    ),
    Row(NO_JSON, "transactional", None, None, "failed, budget closed", "dead-letter: permanent"),
]
OUTCOMES = (DONE, TRANSIENT, PERMANENT, DOWN, LATER, LOST_LEASE, LOST_ANSWER, KILLED, NO_JSON)
COMBINATIONS = list(
    product(OUTCOMES, ("external", "repeatable", "transactional"), ("rerun", "hold", "probe"), (1, 2, 3, 4))
)


def matches(row: Row, combination: tuple[object, ...]) -> bool:
    return all(a is None or a == b for a, b in zip(row, combination, strict=False))


def test_every_combination_has_exactly_one_row() -> None:
    for combination in COMBINATIONS:
        assert sum(matches(row, combination) for row in TABLE) == 1, combination
    assert len(COMBINATIONS) == 324


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.outcome}-{row.effect}-{row.on_unknown}-{row.attempt}")
def test_table(row: Row) -> None:
    seen = 0
    for combination in COMBINATIONS:
        if matches(row, combination):
            outcome, effect, on_unknown, attempt = combination
            policy = replace(POLICY, effect=effect, on_unknown=on_unknown)
            assert shape(settle(outcome, policy, attempt)) == (row.record, row.message), combination
            seen += 1
    assert seen


# -- whole decisions ---------------------------------------------------------------------------------------


def test_success_takes_result_and_outbox_into_the_record() -> None:
    assert settle(DONE, attempt=2) == Decision(
        write=store.Complete(result=b'"L-1"', expires_at_ms=EXPIRES_AT_MS, outbox=[LETTER]),
        settle=Ack(),
        notes=(Note("completed", {"attempt": 2}),),
    )


def test_a_retry_says_which_run_it_was_and_when_the_next_is() -> None:
    assert settle(TRANSIENT, attempt=2) == Decision(
        write=store.Fail(
            failure=store.Failure(kind="transient", error="TimeoutError", summary="no answer"),
            expires_at_ms=EXPIRES_AT_MS,
        ),
        settle=RetryIn(2_000),
        notes=(
            Note(
                "retry",
                {
                    "attempt": 2,
                    "of": 3,
                    "delay_ms": 2_000,
                    "receive_count": 4,
                    "error": "TimeoutError",
                    "summary": "no answer",
                },
            ),
        ),
    )


def test_a_dead_letter_carries_class_summary_attempts_times_and_owner() -> None:
    assert settle(PERMANENT, attempt=2) == Decision(
        write=store.Fail(
            failure=store.Failure(kind="permanent", error="ValueError", summary="no such street"),
            expires_at_ms=EXPIRES_AT_MS,
            closes_budget=True,
        ),
        settle=MoveTo(
            "dead-letter",
            Reason(
                kind="permanent",
                error="ValueError",
                summary="no such street",
                job="ship",
                key="o-1",
                attempts=2,
                crashes=1,
                first_at_ms=900_000,
                last_at_ms=NOW_MS,
                owner="fulfilment",
            ),
        ),
        notes=(
            Note(
                "dead-letter",
                {
                    "reason": "permanent",
                    "error": "ValueError",
                    "summary": "no such street",
                    "attempt": 2,
                    "of": 3,
                    "crashes": 1,
                },
            ),
        ),
    )


def test_a_run_whose_result_has_no_place_is_known_to_have_taken_effect() -> None:
    for outcome, known in ((NO_JSON, True), (KILLED, False)):
        write = settle(outcome, replace(POLICY, on_unknown="hold")).write
        assert isinstance(write, store.Unknown)
        assert write.failure.took_effect is known


def test_a_parked_run_says_what_is_not_known() -> None:
    assert settle(KILLED, replace(POLICY, on_unknown="hold"), attempt=1) == Decision(
        write=store.Unknown(
            failure=store.Failure(kind="unknown", error="HandlerTimeout", summary="killed at 60 s"),
            expires_at_ms=EXPIRES_AT_MS,
            parked=True,
            crashed=True,
        ),
        settle=MoveTo(
            "held",
            Reason(
                kind="unknown",
                error="HandlerTimeout",
                summary="killed at 60 s",
                job="ship",
                key="o-1",
                attempts=1,
                crashes=2,  # the one before, and this one
                first_at_ms=900_000,
                last_at_ms=NOW_MS,
                owner="fulfilment",
            ),
        ),
        notes=(
            Note("unknown", {"attempt": 1, "fence": 1, "error": "HandlerTimeout", "policy": "hold"}),
            Note("held", {"summary": "killed at 60 s"}),
        ),
    )


def test_a_handed_back_run_keeps_no_failure_and_a_refused_dependency_does() -> None:
    assert settle(LATER) == Decision(
        write=store.Release(expires_at_ms=EXPIRES_AT_MS, refund=True),
        settle=RetryIn(0, uncounted=True),
        notes=(Note("released", {"why": "drain"}),),
    )
    assert settle(DOWN).write == store.Release(
        expires_at_ms=EXPIRES_AT_MS,
        refund=True,
        failure=store.Failure(kind="dependency-down", error="AuthError", summary="401"),
    )


# -- pauses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked_ms", "delay_ms"),
    [(None, 2_000), (0, 2_000), (1_999, 2_000), (2_000, 2_000), (2_001, 2_001), (90_000, 90_000)],
)
def test_a_pause_the_dependency_asked_for_is_the_least(asked_ms: int | None, delay_ms: int) -> None:
    for kind in ("transient", "unknown"):
        assert settle(replace(TRANSIENT, kind=kind, retry_in_ms=asked_ms), attempt=2).settle == RetryIn(delay_ms)


@pytest.mark.parametrize(("fraction", "delay_ms"), [(0.0, 0), (0.5, 1_000), (0.999, 1_998)])
def test_jitter_comes_from_the_fraction(fraction: float, delay_ms: int) -> None:
    policy = replace(POLICY, backoff=Backoff(base_ms=1_000, factor=2.0, cap_ms=60_000, jitter="full"))
    assert settle(TRANSIENT, policy, attempt=2, fraction=fraction).settle == RetryIn(delay_ms)


def test_a_pause_nobody_gave_is_that_of_the_circuit_breaker() -> None:
    assert settle(replace(DOWN, retry_in_ms=None)).settle == RetryIn(30_000, uncounted=True)
    assert settle(replace(DOWN, retry_in_ms=0)).settle == RetryIn(0, uncounted=True)


def test_where_receives_cannot_be_taken_back_waiting_costs_one() -> None:
    counted = replace(POLICY, uncounted=False)
    assert settle(LATER, counted).settle == RetryIn(0, uncounted=False)
    assert settle(DOWN, counted).settle == RetryIn(7_000, uncounted=False)


def test_a_failed_attempt_is_a_receive_too() -> None:
    assert settle(TRANSIENT).settle == RetryIn(1_000, uncounted=False)
    assert settle(LOST_ANSWER).settle == RetryIn(1_000, uncounted=False)


def test_one_attempt_means_no_retry() -> None:
    once = replace(POLICY, attempts_max=1)
    assert shape(settle(TRANSIENT, once)) == ("failed, budget closed", "dead-letter: attempts")
    assert shape(settle(LOST_ANSWER, once)) == ("failed, budget closed", "dead-letter: attempts")
