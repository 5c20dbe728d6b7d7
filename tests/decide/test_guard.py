"""Every answer a claim can get, against every policy: what the guard makes of it.

The table of claims is written by hand, with None for "whatever it is". A test holds that each combination matches exactly
one of its rows, so that no case is left out and none is decided twice.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from onefold.contracts import store
from onefold.contracts.queue import Ack, MoveTo, Reason, RetryIn
from onefold.record import guard
from onefold.record.delivery import Backoff, Decision, Note, Policy
from onefold.record.guard import Go

NOW_MS = 1_000_000
KEEP_MS = 90_000
KEY = store.RecordKey("tenant", "ship", "o-1")
HOLD = store.Hold(KEY, "me", 7)
POLICY = Policy(
    job="ship",
    queue="orders",
    effect="external",
    attempts_max=3,
    crashes_max=2,
    backoff=Backoff(jitter="none"),
    on_unknown="rerun",
    after_failure="stop",
    timeout_ms=60_000,
    keep_ms=KEEP_MS,
    owner="fulfilment",
)


def claimed(**changes: object) -> store.Claimed:
    fresh = store.Claimed(
        hold=HOLD, found="absent", doubt=False, started=True, attempts=1, crashes=0, first_at_ms=900_000
    )
    return replace(fresh, **changes)


def notes_of(found: Decision) -> list[str]:
    return [note.event for note in found.notes]


# -- claims that succeeded ---------------------------------------------------------------------------------


class Row(NamedTuple):
    """One line of the table; None stands for any value. Counts are 'below' or 'reached' (at the bound or above)."""

    started: bool | None
    doubt: bool | None
    effect: str | None
    on_unknown: str | None
    crashes: str | None
    attempts: str | None
    then: str


CLAIMED = [
    #   started doubt  effect           on_unknown crashes   attempts
    Row(True, None, None, None, None, None, "call"),  # fresh work, marked as started by the claim itself
    # Its effects are rows that went with the crash: there is no doubt, only budgets.
    Row(False, None, "transactional", None, "reached", None, "quarantine"),
    Row(False, None, "transactional", None, "below", "reached", "used up"),
    Row(False, None, "transactional", None, "below", "below", "start"),
    # The run before may have had its effect: the policy decides before anything runs.
    Row(False, True, "external", "hold", None, None, "hold"),
    Row(False, True, "external", "probe", "reached", None, "quarantine"),
    Row(False, True, "external", "probe", "below", None, "probe"),  # it may have happened: ask, budget or not
    Row(False, True, "external", "rerun", "reached", None, "quarantine"),
    Row(False, True, "external", "rerun", "below", "reached", "used up"),
    Row(False, True, "external", "rerun", "below", "below", "start in doubt"),
    Row(False, True, "repeatable", "hold", None, None, "hold"),
    Row(False, True, "repeatable", "probe", "reached", None, "quarantine"),
    Row(False, True, "repeatable", "probe", "below", None, "probe"),
    Row(False, True, "repeatable", "rerun", "reached", None, "quarantine"),
    Row(False, True, "repeatable", "rerun", "below", "reached", "used up"),
    Row(False, True, "repeatable", "rerun", "below", "below", "start in doubt"),
    # Claimed without being started, and nothing in doubt (a claim that did not ask to start).
    Row(False, False, "external", None, "reached", None, "quarantine"),
    Row(False, False, "external", None, "below", "reached", "used up"),
    Row(False, False, "external", None, "below", "below", "start"),
    Row(False, False, "repeatable", None, "reached", None, "quarantine"),
    Row(False, False, "repeatable", None, "below", "reached", "used up"),
    Row(False, False, "repeatable", None, "below", "below", "start"),
]
COUNTS = {"below": (0, 1), "reached": (2, 3)}  # of crashes, at most 2
ATTEMPTS = {"below": (0, 2), "reached": (3, 4)}  # of attempts, at most 3
FOUND = ("absent", "released", "failed", "unknown", "in_progress")
COMBINATIONS = list(
    product(
        (True, False),
        (True, False),
        ("external", "repeatable", "transactional"),
        ("rerun", "hold", "probe"),
        COUNTS,
        ATTEMPTS,
    )
)


def shape(found: Decision | Go, claim: store.Claimed, policy: Policy) -> str:
    """What a decision comes down to, in the table's words."""
    match found:
        case Go("call"):
            return "call"
        case Go("probe"):
            return "probe"
        case Go("start"):
            crashed = replace(claim, found="in_progress", crashed=True)
            in_doubt = any(note.event == "unknown" for note in guard.noticed(crashed, policy))
            return "start in doubt" if in_doubt else "start"
        case Decision(write=store.Unknown(parked=True), settle=MoveTo("held")):
            return "hold"
        case Decision(write=store.Fail(closes_budget=True), settle=MoveTo("dead-letter", Reason(kind=kind))):
            return {"attempts": "used up"}.get(kind, kind)
        case _:
            return f"something else: {found}"


def test_every_combination_has_exactly_one_row() -> None:
    for combination in COMBINATIONS:
        rows = [row for row in CLAIMED if all(a is None or a == b for a, b in zip(row, combination, strict=False))]
        assert len(rows) == 1, (combination, rows)
    assert len(COMBINATIONS) == 144


@pytest.mark.parametrize("row", CLAIMED, ids=str)
def test_claims(row: Row) -> None:
    seen = 0
    for combination in COMBINATIONS:
        if not all(a is None or a == b for a, b in zip(row, combination, strict=False)):
            continue
        started, doubt, effect, on_unknown, crash_range, attempt_range = combination
        policy = replace(POLICY, effect=effect, on_unknown=on_unknown)
        for crashes, attempts, found in product(COUNTS[crash_range], ATTEMPTS[attempt_range], FOUND):
            previous = "other" if found in ("unknown", "in_progress") else None
            claim = claimed(
                started=started,
                doubt=doubt,
                crashes=crashes,
                attempts=attempts,
                found=found,
                previous_owner=previous,
            )
            answer = guard.answer(claim, policy, NOW_MS)
            assert shape(answer, claim, policy) == row.then, claim
            # A run that ended without a word is always told, whatever is decided; and nothing else is called that.
            noticed = [note.event for note in guard.noticed(claim, policy)]
            assert ("takeover" in noticed) == (found == "in_progress"), claim
            assert isinstance(answer, Go) or "takeover" not in notes_of(answer), claim  # and not twice
            seen += 1
    assert seen


TAKEN = {"found": "in_progress", "doubt": True, "started": False, "previous_owner": "other"}


def test_a_takeover_says_from_whom_and_how_often() -> None:
    taken = claimed(**TAKEN, crashes=1, crashed=True)
    assert guard.answer(taken, POLICY, NOW_MS) == Go("start")
    assert guard.noticed(taken, POLICY) == (
        Note("takeover", {"from": "other", "fence": 7, "crashes": 1, "doubt": True, "started": True}),
        Note("unknown", {"policy": "rerun", "crashes": 1, "fence": 7}),
    )


def test_a_crash_is_noticed_once_however_many_claims_follow_it() -> None:
    again = claimed(**TAKEN, crashes=1, crashed=False)  # whoever noticed the crash ended before its start
    assert guard.noticed(again, POLICY) == (
        Note("takeover", {"from": "other", "fence": 7, "crashes": 1, "doubt": True, "started": False}),
    )


@pytest.mark.parametrize(
    ("changes", "counts", "events"),
    [
        ({"on_unknown": "hold"}, {"crashes": 1}, ["takeover", "unknown"]),
        ({"on_unknown": "hold"}, {"crashes": 9}, ["takeover", "unknown"]),
        ({"on_unknown": "probe"}, {"crashes": 1}, ["takeover"]),
        ({"on_unknown": "rerun"}, {"crashes": 9}, ["takeover"]),
        ({"on_unknown": "rerun"}, {"crashes": 1, "attempts": 9}, ["takeover"]),
        ({"effect": "transactional"}, {"crashes": 1}, ["takeover"]),
    ],
    ids=["held", "held before it is quarantined", "asked", "quarantined", "attempts used up", "own rows"],
)
def test_what_a_crash_comes_to_decides_what_is_noticed(
    changes: dict[str, Any], counts: dict[str, int], events: list[str]
) -> None:
    taken = claimed(**(TAKEN | counts), crashed=True)
    assert [note.event for note in guard.noticed(taken, replace(POLICY, **changes))] == events


def test_an_unstarted_claim_that_is_taken_over_is_fresh_work() -> None:
    taken = claimed(found="in_progress", doubt=False, started=True, previous_owner="other")
    policy = replace(POLICY, on_unknown="hold")
    assert guard.answer(taken, policy, NOW_MS) == Go("call")
    assert guard.noticed(taken, policy) == (
        Note("takeover", {"from": "other", "fence": 7, "crashes": 0, "doubt": False, "started": False}),
    )


def test_hold_parks_with_the_whole_story() -> None:
    taken = claimed(found="in_progress", doubt=True, started=False, attempts=2, crashes=1, previous_owner="other")
    summary = "The run ended, or lost its lease, before it could say whether the effect happened."
    assert guard.answer(taken, replace(POLICY, on_unknown="hold"), NOW_MS) == Decision(
        write=store.Unknown(
            failure=store.Failure(kind="unknown", error="WorkerDied", summary=summary),
            expires_at_ms=1_090_000,
            parked=True,
            crashed=False,  # the claim has counted this crash already
        ),
        settle=MoveTo(
            "held",
            Reason(
                kind="unknown",
                error="WorkerDied",
                summary=summary,
                job="ship",
                key="o-1",
                attempts=2,
                crashes=1,
                first_at_ms=900_000,
                last_at_ms=1_000_000,
                owner="fulfilment",
            ),
        ),
        notes=(Note("held", {"summary": summary}),),  # the rest was noticed with the claim
    )


def test_quarantine_carries_its_evidence() -> None:
    taken = claimed(found="in_progress", doubt=True, started=False, attempts=2, crashes=2, previous_owner="other")
    decision = guard.answer(taken, POLICY, NOW_MS)
    assert isinstance(decision, Decision)
    assert decision.write == store.Fail(
        failure=store.Failure(kind="quarantine", error="WorkerDied", summary="2 runs ended with their process."),
        expires_at_ms=1_090_000,
        closes_budget=True,
    )
    assert decision.settle == MoveTo(
        "dead-letter",
        Reason(
            kind="quarantine",
            error="WorkerDied",
            summary="2 runs ended with their process.",
            job="ship",
            key="o-1",
            attempts=2,
            crashes=2,
            first_at_ms=900_000,
            last_at_ms=1_000_000,
            owner="fulfilment",
        ),
    )
    assert notes_of(decision) == ["quarantine"]


@pytest.mark.parametrize(
    ("failure", "error", "summary"),
    [
        (
            store.Failure(kind="transient", error="TimeoutError", summary="no answer"),
            "TimeoutError",
            "no answer",
        ),
        (
            None,
            "WorkerDied",
            "The run ended, or lost its lease, before it could say whether the effect happened.",
        ),
    ],
)
def test_a_used_up_budget_names_the_last_failure(failure: store.Failure | None, error: str, summary: str) -> None:
    spent = claimed(found="unknown", doubt=True, started=False, attempts=3, failure=failure)
    decision = guard.answer(spent, POLICY, NOW_MS)
    assert isinstance(decision, Decision)
    assert isinstance(decision.settle, MoveTo)
    reason = decision.settle.reason
    assert (reason.kind, reason.error, reason.summary, reason.attempts) == ("attempts", error, summary, 3)


# -- claims that did not succeed ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left_ms", "uncounted", "delay_ms"),
    [
        (-5, True, 1),
        (0, True, 1),
        (1, True, 2),
        (998, True, 999),
        (999, True, 1_000),
        (1_000, True, 1_000),  # looks again: the run may end long before its lease
        (29_999, True, 1_000),
        (-5, False, 1),
        (0, False, 1),
        (999, False, 1_000),
        (1_000, False, 1_001),  # a look costs a receive there: waits for the whole lease
        (29_999, False, 30_000),
    ],
)
def test_running_elsewhere_waits(left_ms: int, uncounted: bool, delay_ms: int) -> None:
    found = store.Running(until_ms=NOW_MS + left_ms, owner="other", fence=3)
    assert guard.answer(found, replace(POLICY, uncounted=uncounted), NOW_MS) == Decision(
        write=None,
        settle=RetryIn(delay_ms, uncounted=uncounted),
        notes=(
            Note(
                "running-elsewhere",
                {"owner": "other", "lease_left_ms": max(left_ms, 0) + 1, "delay_ms": delay_ms},
            ),
        ),
    )


OTHERS = store.Hold(KEY, "other", 3)
LETTER = store.OutboxItem(queue="letters", body="{}", key="o-1")


@pytest.mark.parametrize(("outbox", "clear", "leaves"), [([], None, ()), ([LETTER, LETTER], OTHERS, (LETTER, LETTER))])
def test_a_duplicate_is_answered_and_its_pending_outbox_leaves_first(
    outbox: list[store.OutboxItem], clear: store.Hold | None, leaves: tuple[store.OutboxItem, ...]
) -> None:
    found = store.Completed(result=b'"L-1"', completed_at_ms=950_000, hold=OTHERS, outbox=outbox, message_id="m-1")
    for effect, on_unknown in product(("external", "repeatable", "transactional"), ("rerun", "hold", "probe")):
        policy = replace(POLICY, effect=effect, on_unknown=on_unknown)
        assert guard.answer(found, policy, NOW_MS) == Decision(
            write=None,
            settle=Ack(),
            notes=(Note("duplicate", {"of": "m-1", "completed_at_ms": 950_000}),),
            clear=clear,
            outbox=leaves,
        )


@pytest.mark.parametrize("on_unknown", ["rerun", "hold", "probe"])
def test_behind_a_parked_run_everything_is_parked(on_unknown: str) -> None:
    policy = replace(POLICY, on_unknown=on_unknown)
    decision = guard.answer(store.Held(since_ms=800_000), policy, NOW_MS, "o-1")
    assert isinstance(decision, Decision)
    assert decision.write is None
    assert isinstance(decision.settle, MoveTo)
    assert decision.settle.to == "held"
    reason = decision.settle.reason
    assert (reason.kind, reason.job, reason.key, reason.owner) == ("unknown", "ship", "o-1", "fulfilment")
    assert (reason.first_at_ms, reason.last_at_ms) == (800_000, NOW_MS)
    assert notes_of(decision) == ["held"]


def test_what_cannot_be_read_is_left_alone_and_its_message_waits() -> None:
    found = store.Unreadable(
        what="The value is not a record.", meaning="Another program writes there.", todo="Move it."
    )
    assert guard.answer(found, POLICY, NOW_MS) == Decision(
        write=None,
        settle=RetryIn(300_000, uncounted=POLICY.uncounted),
        notes=(Note("record-unreadable", {"summary": "The value is not a record.", "delay_ms": 300_000}),),
    )


@pytest.mark.parametrize("status", ["in_progress", "completed", "failed", "unknown", "released"])
def test_a_conflict_is_dead_lettered_at_once_and_leaves_the_record_alone(status: store.Status) -> None:
    found = store.Conflict(fingerprint="f1" * 16, status=status, message_id="m-1")
    decision = guard.answer(found, POLICY, NOW_MS, "o-1", "a2" * 16)
    assert isinstance(decision, Decision)
    assert decision.write is None
    assert isinstance(decision.settle, MoveTo)
    assert decision.settle.to == "dead-letter"
    reason = decision.settle.reason
    assert (reason.kind, reason.error, reason.job, reason.key) == ("conflict", "ConflictError", "ship", "o-1")
    assert reason.summary == (
        f"The key was used before with another payload (first by message m-1, fingerprint f1f1f1f1f1f1, now {status}; "
        "the first payload itself is not kept). This payload, fingerprint a2a2a2a2a2a2, was not run."
    )
    assert decision.notes == (Note("conflict", {"of": "m-1", "status": status}),)
