"""The state machine of records: each operation as a pure function from one record to the next.

For stores that can run Python inside their atomic step (SQLite, memory). Others express the same rules in conditions and
scripts; `testing/store_contract.py` tests all of them.

    claim   absent, expired, released, failed, unknown, or in_progress with an ended lease -> in_progress, fence + 1
    start   in_progress -> the same, attempts + 1, doubt cleared
    write   in_progress -> completed | failed | unknown | released
    restore absent -> in_progress under the caller's claim
    settle  unknown and parked -> completed | released, by a person's decision

Never here: storage, locks, time. Invariant: a function returns a new record or reports no change; the fence of a
record never decreases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from onefold import limits
from onefold.contracts.store import (
    Claimed,
    Complete,
    Completed,
    Conflict,
    Fail,
    Held,
    Hold,
    ManualDecision,
    Record,
    Release,
    Running,
    Unknown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from typing import Literal

    from onefold.contracts.store import Answer, Ask, Outcome

    Written = Literal["new", "again", "lost"]
    """The outcome of a write: made; this Complete was stored already; lease lost."""


def took(before: Record | None, after: Record | None) -> tuple[bool, Record | None]:
    """Whether a transition was made, and the record to store; None if it does not change."""
    return after is not None, None if after is before else after


def written(before: Record | None, after: Record | None) -> tuple[Written, Record | None]:
    """Like `took`, but reports a Complete that was stored already."""
    if after is None:
        return "lost", None
    return ("again", None) if after is before else ("new", after)


def is_expired(record: Record, now_ms: int) -> bool:
    """Whether the record counts as absent; a parked one never does, nor one that runs under a lease."""
    if record.status == "in_progress" and now_ms < record.lease_until_ms:
        return False
    return record.expires_at_ms is not None and now_ms >= record.expires_at_ms


def may_stand(record: Record, now_ms: int) -> bool:
    """Whether a run with an ended lease still belongs to its stopped process: for as long as a handler may run."""
    is_over = record.status == "in_progress" and now_ms >= record.lease_until_ms
    return is_over and now_ms < record.updated_at_ms + limits.VISIBILITY_MS_MAX


def claim(
    record: Record | None,
    ask: Ask,
    now_ms: int,
    dead_owners: Container[str] = (),
    stopped_process: Callable[[Record], int | None] = lambda _: None,
) -> tuple[Answer, Record | None]:
    """The answer to a claim, and the record after it (None: unchanged).

    Args:
        record: what is stored; None when nothing is.
        ask: the claim.
        now_ms: the instant of the claim.
        dead_owners: ids of processes known to be dead; their leases have ended.
        stopped_process: returns the id of a run's process if that is stopped. Called for runs whose lease has ended.
    """
    stopped: int | None = None
    if record is not None and may_stand(record, now_ms) and record.owner not in dead_owners:
        stopped = stopped_process(record)
    if record is None or (is_expired(record, now_ms) and stopped is None):
        return _claim_fresh(ask, now_ms, fence=1 if record is None else record.fence + 1)
    amended = ask.amends == record.fingerprint and record.status != "completed"
    if ask.fingerprint != record.fingerprint and not amended:
        return Conflict(fingerprint=record.fingerprint, status=record.status, message_id=record.message_id), None
    if record.status == "completed":
        return _completed(record), None
    if record.parked:
        return Held(since_ms=record.updated_at_ms), None
    is_leased = record.status == "in_progress" and now_ms < record.lease_until_ms and record.owner not in dead_owners
    if is_leased or stopped is not None:
        until_ms, owner, fence = record.lease_until_ms, record.owner, record.fence
        return Running(until_ms=until_ms, owner=owner, fence=fence, stopped=stopped), None
    return _claim_again(record, ask, now_ms)


def _claim_fresh(ask: Ask, now_ms: int, *, fence: int) -> tuple[Claimed, Record]:
    answer = Claimed(
        hold=Hold(ask.key, ask.owner, fence),
        found="absent",
        doubt=False,
        started=ask.start,
        attempts=1 if ask.start else 0,
        crashes=0,
        first_at_ms=now_ms,
    )
    return answer, claimed(answer, ask, now_ms, started=ask.start, lease_until_ms=ask.lease_until_ms)


def claimed(found: Claimed, ask: Ask, now_ms: int, *, started: bool, lease_until_ms: int) -> Record:
    """The record of a claim: as written by a new claim, or by `Store.restore`.

    Args:
        found: the answer to the claim. ask: the claim.
        started: its run has started, with the claim or since.
    """
    runs = found.attempts + (started and not found.started)
    began_at_ms = found.first_at_ms if found.found == "absent" else now_ms
    return Record(
        key=ask.key,
        status="in_progress",
        fence=found.hold.fence,
        owner=found.hold.owner,
        lease_until_ms=lease_until_ms,
        fingerprint=ask.fingerprint,
        parked=False,
        doubt=found.doubt and not started,
        started_fence=found.hold.fence if started else 0,
        attempts=runs,
        attempts_total=runs,
        crashes=found.crashes,
        crashes_total=found.crashes,
        budget_closed=False,
        created_at_ms=found.first_at_ms,
        started_at_ms=began_at_ms if started else None,
        updated_at_ms=now_ms,
        expires_at_ms=ask.expires_at_ms,
        result=None,
        failure=found.failure,
        outbox=[],
        message_id=ask.message_id,
        sent_at_ms=ask.sent_at_ms,
    )


def _claim_again(record: Record, ask: Ask, now_ms: int) -> tuple[Claimed, Record]:
    assert record.status != "completed", record.key
    crashed = record.status == "in_progress" and record.started_fence == record.fence
    doubt = record.doubt or crashed
    died = crashed or (ask.probes_now and record.status == "in_progress" and record.doubt)
    started = ask.start and not doubt
    fence = record.fence + 1
    after = replace(
        record,
        status="in_progress",
        fence=fence,
        owner=ask.owner,
        lease_until_ms=ask.lease_until_ms,
        fingerprint=ask.fingerprint,
        doubt=doubt,
        started_fence=fence if started else record.started_fence,
        attempts=(0 if record.budget_closed else record.attempts) + started,
        attempts_total=record.attempts_total + started,
        crashes=(0 if record.budget_closed else record.crashes) + died,
        crashes_total=record.crashes_total + died,
        budget_closed=False,
        started_at_ms=now_ms if started else record.started_at_ms,
        updated_at_ms=now_ms,
        expires_at_ms=ask.expires_at_ms,
        message_id=ask.message_id,
        sent_at_ms=ask.sent_at_ms,
    )
    answer = Claimed(
        hold=Hold(ask.key, ask.owner, fence),
        found=record.status,
        doubt=doubt,
        started=started,
        attempts=after.attempts,
        crashes=after.crashes,
        first_at_ms=record.created_at_ms,
        crashed=crashed,
        previous_owner=record.owner if record.status in ("in_progress", "unknown") else None,
        failure=record.failure,
    )
    return answer, after


def _completed(record: Record) -> Completed:
    assert record.result is not None, record.key
    return Completed(
        result=record.result,
        completed_at_ms=record.updated_at_ms,
        hold=Hold(record.key, record.owner, record.fence),
        outbox=record.outbox,
        message_id=record.message_id,
    )


def holds(record: Record | None, hold: Hold) -> bool:
    """Whether the record has this hold, in any state."""
    return record is not None and record.fence == hold.fence and record.owner == hold.owner


def start(record: Record | None, hold: Hold, now_ms: int) -> Record | None:
    """The record with its run marked as started; None: lease lost. A second start under one hold is not counted."""
    if record is None or not holds(record, hold) or record.status != "in_progress":
        return None
    if record.started_fence == record.fence:
        return record
    return replace(
        record,
        started_fence=record.fence,
        attempts=record.attempts + 1,
        attempts_total=record.attempts_total + 1,
        doubt=False,
        started_at_ms=now_ms,
        updated_at_ms=now_ms,
    )


def renew(record: Record | None, hold: Hold, lease_until_ms: int) -> Record | None:
    """The record with another end of its lease; None: lease lost."""
    if record is None or not holds(record, hold) or record.status != "in_progress":
        return None
    return replace(record, lease_until_ms=lease_until_ms)


def write(record: Record | None, hold: Hold, outcome: Outcome, now_ms: int) -> Record | None:
    """The record after an outcome; the same object when this Complete is stored already; None when the lease was lost."""
    if record is None or not holds(record, hold):
        return None
    if record.status == "completed" and isinstance(outcome, Complete) and outcome.result == record.result:
        return record
    if record.status != "in_progress":
        return None
    match outcome:
        case Complete():
            return replace(
                record,
                status="completed",
                result=outcome.result,
                outbox=outcome.outbox,
                doubt=False,
                failure=None,
                updated_at_ms=now_ms,
                expires_at_ms=outcome.expires_at_ms,
            )
        case Fail():
            return replace(
                record,
                status="failed",
                failure=outcome.failure,
                budget_closed=outcome.closes_budget,
                updated_at_ms=now_ms,
                expires_at_ms=outcome.expires_at_ms,
            )
        case Unknown():
            return replace(
                record,
                status="unknown",
                parked=outcome.parked,
                doubt=True,
                failure=outcome.failure,
                crashes=record.crashes + outcome.crashed,
                crashes_total=record.crashes_total + outcome.crashed,
                updated_at_ms=now_ms,
                expires_at_ms=None if outcome.parked else outcome.expires_at_ms,
            )
        case Release():
            refund = int(outcome.refund and record.started_fence == record.fence)
            return replace(
                record,
                status="released",
                failure=outcome.failure or record.failure,
                attempts=record.attempts - refund,
                attempts_total=record.attempts_total - refund,
                updated_at_ms=now_ms,
                expires_at_ms=outcome.expires_at_ms,
            )
        case _:
            assert_never(outcome)


def restore(record: Record | None, gone: Record) -> Record | None:
    """The record of a claim, restored where nothing is stored; the same object when it is stored; None: lease lost."""
    if record is None:
        return gone
    is_there = record.status == "in_progress" and holds(record, Hold(gone.key, gone.owner, gone.fence))
    return record if is_there else None


def clear_outbox(record: Record | None, hold: Hold) -> Record | None:
    """The record without its outbox; the same object when that was empty; None: not the run that completed."""
    if record is None or not holds(record, hold) or record.status != "completed":
        return None
    return replace(record, outbox=[]) if record.outbox else record


def settle(record: Record | None, decision: ManualDecision, now_ms: int) -> tuple[bool, Record | None]:
    """Whether a person's decision applies, and the record after it; only a parked record can be settled.

    "Not done" is like a redrive: nothing is in doubt any more and the next claim counts attempts from 0. With `corrects` it
    applies to a record that is completed with that result, which is then replaced. With `judged` it applies to that hold
    alone: not to a later run's, although that is parked too.
    """
    if record is None:
        return False, None
    if decision.corrects is not None:
        if not (decision.done and record.status == "completed" and record.result == decision.corrects):
            return False, None
        return True, replace(record, result=decision.result, updated_at_ms=now_ms, expires_at_ms=decision.expires_at_ms)
    if not record.parked or decision.judged not in (None, (record.fence, record.updated_at_ms)):
        return False, None
    return True, replace(
        record,
        status="completed" if decision.done else "released",
        result=decision.result if decision.done else None,
        failure=None if decision.done else record.failure,
        parked=False,
        doubt=False,
        budget_closed=not decision.done,
        updated_at_ms=now_ms,
        expires_at_ms=decision.expires_at_ms,
    )
