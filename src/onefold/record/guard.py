"""Decides what follows from the answer to a claim: run, answer, wait, park, refuse.

One pure function, `answer`, from what the store found to either a `Decision` (the delivery is finished) or a `Go` (the
handler may run, perhaps after asking a probe or marking the start). Never here: the conditions of the state machine, which
each store implements and `testing/store_contract.py` tests.
Invariant: a run in doubt is never started unless the job's policy allows it.
"""

from __future__ import annotations

from typing import Final, Literal, assert_never

from msgspec import Struct

from onefold import limits
from onefold.contracts import store
from onefold.contracts.queue import Ack, MoveTo, Reason, RetryIn
from onefold.record.decisions import conflict, dead_letter_failed, park
from onefold.record.delivery import WAIT_MS_MAX, Decision, Detail, Failed, Note, Policy

_STOPPED_MS: Final = 5 * limits.SECOND_MS  # a stopped process usually stays stopped for longer
_UNREADABLE_MS: Final = 5 * limits.MINUTE_MS  # a person, or the end of an upgrade, makes the record readable


class Go(Struct, frozen=True, gc=False):
    """The handler may run.

    Args:
        how: `call` (already marked as started), `start` (mark it first) or `probe` (ask first whether it happened).
    """

    how: Literal["call", "start", "probe"]


def answer(
    found: store.Answer, policy: Policy, now_ms: int, key: str | None = None, fingerprint: str = ""
) -> Decision | Go:
    """What to do with a delivery, given what its claim found; its own `key` and `fingerprint` are for people."""
    match found:
        case store.Claimed():
            return _claimed(found, policy, now_ms)
        case store.Completed():
            pending = tuple(found.outbox)
            return Decision(
                write=None,
                settle=Ack(),
                notes=(Note("duplicate", {"of": found.message_id, "completed_at_ms": found.completed_at_ms}),),
                clear=found.hold if pending else None,
                outbox=pending,
            )
        case store.Running():
            left_ms = max(found.until_ms - now_ms, 0) + 1
            # After a clock was set, a lease may end later than the longest time a queue can hide a message.
            wait_ms = min(left_ms, WAIT_MS_MAX if policy.uncounted else limits.VISIBILITY_MS_MAX)
            detail: Detail = {"owner": found.owner, "lease_left_ms": left_ms, "delay_ms": wait_ms}
            if found.stopped is not None:
                wait_ms = _STOPPED_MS
                detail = {"owner": found.owner, "delay_ms": wait_ms, "stopped_process": found.stopped}
            return Decision(
                write=None,
                settle=RetryIn(wait_ms, uncounted=policy.uncounted),
                notes=(Note("running-elsewhere", detail),),
            )
        case store.Held():
            reason = Reason(
                kind="unknown",
                summary="Waits for a person to settle an earlier run of the same key, whose outcome is unknown.",
                job=policy.job,
                key=key,
                owner=policy.owner,
                first_at_ms=found.since_ms,
                last_at_ms=now_ms,
            )
            return Decision(
                write=None,
                settle=MoveTo("held", reason),
                notes=(Note("held", {"since_ms": found.since_ms, "summary": "behind an unsettled run"}),),
            )
        case store.Unreadable():
            return Decision(
                write=None,
                settle=RetryIn(_UNREADABLE_MS, uncounted=policy.uncounted),
                notes=(Note("record-unreadable", {"summary": found.what[:500], "delay_ms": _UNREADABLE_MS}),),
            )
        case store.Conflict():
            return conflict(found, policy, now_ms, key, fingerprint)
        case _:
            assert_never(found)


def _claimed(found: store.Claimed, policy: Policy, now_ms: int) -> Decision | Go:
    if found.started:
        return Go("call")
    in_doubt = found.doubt and policy.effect != "transactional"
    if policy.is_call:
        died_too_often = found.crashes >= policy.crashes_max
        if in_doubt and (policy.on_unknown == "hold" or died_too_often):
            why = "on_unknown is hold" if policy.on_unknown == "hold" else f"crashes is {policy.crashes_max}"
            calls = "1 earlier call" if found.crashes == 1 else f"{found.crashes} earlier calls"
            summary = f"{calls} ended without a recorded outcome, and {why}."
            return park("NotRecorded", summary, policy, found, found.attempts, now_ms, crashed=False)
        return Go("probe" if in_doubt and policy.on_unknown == "probe" else "start")
    if in_doubt and policy.on_unknown == "hold":
        return park("WorkerDied", _DIED, policy, found, found.attempts, now_ms, crashed=False)
    if found.crashes >= policy.crashes_max:
        died = Failed(kind="permanent", error="WorkerDied", summary=f"{found.crashes} runs ended with their process.")
        return dead_letter_failed(died, "quarantine", policy, found, found.attempts, now_ms)
    if in_doubt and policy.on_unknown == "probe":
        return Go("probe")
    if found.attempts >= policy.attempts_max:
        last = found.failure or store.Failure(kind="unknown", error="WorkerDied", summary=_DIED)
        used = Failed(kind="transient", error=last.error, summary=last.summary)
        return dead_letter_failed(used, "attempts", policy, found, found.attempts, now_ms)
    return Go("start")


_DIED = "The run ended, or lost its lease, before it could say whether the effect happened."


def noticed(found: store.Answer, policy: Policy) -> tuple[Note, ...]:
    """What a claim reveals about the previous run, to be written with the claim and before any handler is called.

    A `takeover` for each process that ended without reporting an outcome. An `unknown` where that leaves a run in doubt
    and the policy is to run it again or to hold it: once for each crash, by the claim that counts it. Nothing for a
    record that is `unknown` already, because the run that wrote it has reported that itself.
    """
    if not isinstance(found, store.Claimed):
        return ()
    notes: tuple[Note, ...] = ()
    if found.found == "in_progress":
        detail = {"from": found.previous_owner, "fence": found.hold.fence, "crashes": found.crashes}
        notes = (Note("takeover", detail | {"doubt": found.doubt, "started": found.crashed}),)
        if found.crashed:
            notes += _in_doubt(found, policy)
    return notes


def unreported(found: store.Claimed, policy: Policy) -> tuple[Note, ...]:
    """Like `noticed`, for a record that the end of a run left `unknown` and whose history row was lost."""
    return _in_doubt(found, policy) if found.found == "unknown" else ()


def _in_doubt(found: store.Claimed, policy: Policy) -> tuple[Note, ...]:
    again = found.crashes < policy.crashes_max and found.attempts < policy.attempts_max
    if found.started or not found.doubt or policy.effect == "transactional":
        return ()
    if policy.on_unknown == "hold" or (policy.on_unknown == "rerun" and again):
        return (Note("unknown", {"policy": policy.on_unknown, "crashes": found.crashes, "fence": found.hold.fence}),)
    return ()
