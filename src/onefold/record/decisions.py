"""Decides about a delivery that is not simply done: retry, dead-letter, park for a person, release.

`settle` decides for a run that was started: one pure function from outcome, attempts and policy to a `Decision`. Also here:
messages that are never run (malformed, behind a stopped group, a key with another payload); two decisions that the guard
makes too, `dead_letter_failed` and `park`; and what follows from a probe's answer about a run in doubt.

A run is in doubt when an earlier one was started and its outcome was never reported. If the probe answers "done", the
delivery is answered with the probe's result; "not done" runs it again within its attempts; if it stays unknown, it is
parked. Only "not done" lets the handler run again.
Never here: clocks, random numbers (a fraction is passed in), storage, asking a probe.
Invariant: onefold decides before the queue's own maximum receive count does, so that the reason can be recorded.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from onefold import codec
from onefold.contracts import store
from onefold.contracts.queue import Ack, MoveTo, Reason, RetryIn
from onefold.record import delivery
from onefold.record.breaker import BreakerPolicy
from onefold.record.delivery import (
    Decision,
    Detail,
    Failed,
    LeaseGone,
    Note,
    NotStarted,
    Outcome,
    Policy,
    Success,
    Unstorable,
    bounds_ms,
    completed,
    delay_ms,
    lease_lost,
)


def settle(
    outcome: Outcome,
    policy: Policy,
    claimed: store.Claimed,
    attempt: int,
    receive_count: int,
    now_ms: int,
    fraction: float,
) -> Decision:
    """Decide a delivery whose run was claimed.

    Args:
        outcome: the handler's outcome.
        attempt: the number of this run, 1 or more.
        receive_count: the message's receive count, for people.
        now_ms: wall time.
        fraction: a random number from [0, 1) for the jitter.
    """
    expires_at_ms = now_ms + policy.keep_ms
    match outcome:
        case Success():
            return completed(outcome, policy, attempt, now_ms)
        case Failed() if policy.is_call:
            return _failed_call(outcome, policy, claimed, attempt, now_ms)
        case NotStarted():
            return not_started(outcome, policy, now_ms)
        case LeaseGone():
            return lease_lost(attempt)
        case Unstorable():
            return _unstorable(outcome, policy, claimed, attempt, now_ms)
        case Failed(kind="dependency-down"):
            pause_ms = outcome.retry_in_ms if outcome.retry_in_ms is not None else BreakerPolicy().pause_ms
            return Decision(
                write=store.Release(expires_at_ms=expires_at_ms, refund=True, failure=_failure(outcome)),
                settle=RetryIn(pause_ms, uncounted=policy.uncounted),
                notes=(
                    Note("dependency-down", {"error": outcome.error, "summary": outcome.summary, **_where(outcome)}),
                ),
            )
        case Failed(kind="permanent"):
            return dead_letter_failed(outcome, "permanent", policy, claimed, attempt, now_ms)
        case Failed(kind="unknown") if policy.effect != "transactional":
            return _unknown(outcome, policy, claimed, attempt, now_ms, fraction)
        case Failed():
            return _transient(outcome, policy, claimed, attempt, receive_count, now_ms, fraction)


def not_started(outcome: NotStarted, policy: Policy, now_ms: int) -> Decision:
    """Release a claim whose handler is not called after all: no attempt is used."""
    return Decision(
        write=store.Release(expires_at_ms=now_ms + policy.keep_ms, refund=True),
        settle=RetryIn(outcome.delay_ms, uncounted=policy.uncounted),
        notes=(Note("released", {"why": outcome.why}),),
    )


def not_admitted(outcome: NotStarted, policy: Policy) -> Decision:
    """Hide a delivery that cannot be claimed now; its record does not change."""
    return Decision(
        write=None,
        settle=RetryIn(outcome.delay_ms, uncounted=policy.uncounted),
        notes=(Note("released", {"why": outcome.why, "delay_ms": outcome.delay_ms}),),
    )


def _unstorable(outcome: Unstorable, policy: Policy, claimed: store.Claimed, attempt: int, now_ms: int) -> Decision:
    # A transactional job's rows are rolled back, so nothing happened. An external effect did happen: a person must
    # record it.
    if policy.effect == "transactional":
        failed = Failed(kind="permanent", error="PayloadError", summary=outcome.summary)
        return dead_letter_failed(failed, "permanent", policy, claimed, attempt, now_ms)
    note = Note("unknown", {"attempt": attempt, "error": "PayloadError", "policy": "hold", "took_effect": True})
    return park(
        "PayloadError", outcome.summary, policy, claimed, attempt, now_ms, crashed=False, note=note, took_effect=True
    )


def _transient(
    outcome: Failed,
    policy: Policy,
    claimed: store.Claimed,
    attempt: int,
    receive_count: int,
    now_ms: int,
    fraction: float,
) -> Decision:
    if attempt >= policy.attempts_max:
        return dead_letter_failed(outcome, "attempts", policy, claimed, attempt, now_ms)
    wait_ms = max(delay_ms(policy.backoff, attempt, fraction), outcome.retry_in_ms or 0)
    return Decision(
        write=store.Fail(failure=_failure(outcome), expires_at_ms=now_ms + policy.keep_ms),
        settle=RetryIn(wait_ms),
        notes=(
            Note(
                "retry",
                {
                    "attempt": attempt,
                    "of": policy.attempts_max,
                    "delay_ms": wait_ms,
                    "receive_count": receive_count,
                    "error": outcome.error,
                    "summary": outcome.summary,
                    **_where(outcome),
                },
            ),
        ),
    )


def _where(outcome: Failed) -> dict[str, str]:
    """Where the exception was raised, as a detail of an event; empty if nothing was raised."""
    return {name: text for name, text in (("where", outcome.at), ("trace", outcome.trace)) if text}


def _unknown(
    outcome: Failed, policy: Policy, claimed: store.Claimed, attempt: int, now_ms: int, fraction: float
) -> Decision:
    detail: Detail = {
        "attempt": attempt,
        "fence": claimed.hold.fence,
        "error": outcome.error,
        "policy": policy.on_unknown,
    }
    note = Note("unknown", {**detail, **_where(outcome)})
    if policy.on_unknown == "hold":
        return park(
            outcome.error, outcome.summary, policy, claimed, attempt, now_ms, crashed=outcome.crashed, note=note,
            trace=outcome.trace,
        )  # fmt: skip
    if policy.on_unknown == "rerun" and attempt >= policy.attempts_max:
        return dead_letter_failed(outcome, "attempts", policy, claimed, attempt, now_ms)
    wait_ms = max(delay_ms(policy.backoff, attempt, fraction), outcome.retry_in_ms or 0)
    write = store.Unknown(
        failure=_failure(outcome), expires_at_ms=now_ms + policy.keep_ms, parked=False, crashed=outcome.crashed
    )
    again = Note(
        "retry",
        {
            "attempt": attempt,
            "of": policy.attempts_max,
            "delay_ms": wait_ms,
            "error": outcome.error,
            "summary": outcome.summary,
        },
    )
    return Decision(write=write, settle=RetryIn(wait_ms), notes=(note, again))


def _failed_call(outcome: Failed, policy: Policy, claimed: store.Claimed, attempt: int, now_ms: int) -> Decision:
    """Leave the key free for the next call, unless the outcome is unknown and a person has to settle it."""
    failure, expires_at_ms = _failure(outcome), now_ms + policy.keep_ms
    detail: Detail = {
        "attempt": attempt,
        "fence": claimed.hold.fence,
        "error": outcome.error,
        "summary": outcome.summary,
        "kind": outcome.kind,
    }
    if outcome.kind != "unknown":
        write: store.Outcome = store.Fail(failure=failure, expires_at_ms=expires_at_ms)
        return Decision(write=write, settle=Ack(), notes=(Note("failed", {**detail, **_where(outcome)}),))
    is_held = policy.on_unknown == "hold"
    notes = (Note("unknown", {**detail, **_where(outcome), "policy": policy.on_unknown}),)
    write = store.Unknown(failure=failure, expires_at_ms=expires_at_ms, parked=is_held)
    return Decision(write=write, settle=Ack(), notes=(*notes, Note("held", detail)) if is_held else notes)


def dead_letter_failed(
    outcome: Failed, kind: str, policy: Policy, claimed: store.Claimed, attempt: int, now_ms: int
) -> Decision:
    """Move the message to the dead-letter queue with the reason; the record is failed and its budget closed."""
    reason = Reason(
        kind=kind,
        error=outcome.error,
        summary=outcome.summary,
        job=policy.job,
        key=claimed.hold.key.key,
        attempts=attempt,
        crashes=claimed.crashes + (1 if outcome.crashed else 0),
        first_at_ms=claimed.first_at_ms,
        last_at_ms=now_ms,
        owner=policy.owner,
        trace=outcome.trace or None,
    )
    failure = store.Failure(kind=kind, error=outcome.error, summary=outcome.summary)
    return Decision(
        write=store.Fail(failure=failure, expires_at_ms=now_ms + policy.keep_ms, closes_budget=True),
        settle=MoveTo("dead-letter", reason),
        notes=(
            Note(
                "quarantine" if kind == "quarantine" else "dead-letter",
                {
                    "reason": kind,
                    "error": outcome.error,
                    "summary": outcome.summary,
                    "attempt": attempt,
                    "of": policy.attempts_max,
                    "crashes": reason.crashes,
                    **_where(outcome),
                },
            ),
        ),
    )


def park(
    error: str,
    summary: str,
    policy: Policy,
    claimed: store.Claimed,
    attempt: int,
    now_ms: int,
    *,
    crashed: bool,
    note: Note | None = None,
    trace: str = "",
    took_effect: bool = False,
) -> Decision:
    """Move the message to the held queue, where a person settles it; the record is unknown and does not expire.

    Args:
        trace: where the exception was raised; empty if nothing was.
        note: the event with the reason, unless the claim has reported it (`guard.noticed`).
        took_effect: the effect is known to have happened; only the result is missing.
    """
    reason = Reason(
        kind="unknown",
        error=error,
        summary=summary,
        job=policy.job,
        key=claimed.hold.key.key,
        attempts=attempt,
        crashes=claimed.crashes + (1 if crashed else 0),
        first_at_ms=claimed.first_at_ms,
        last_at_ms=now_ms,
        owner=policy.owner,
        trace=trace or None,
    )
    write = store.Unknown(
        failure=store.Failure(kind="unknown", error=error, summary=summary, took_effect=took_effect),
        expires_at_ms=now_ms + policy.keep_ms,
        parked=True,
        crashed=crashed,
    )
    held = Note("held", {"summary": summary})
    return Decision(write=write, settle=MoveTo("held", reason), notes=(held,) if note is None else (note, held))


def _failure(outcome: Failed) -> store.Failure:
    return store.Failure(kind=outcome.kind, error=outcome.error, summary=outcome.summary)


def malformed(summary: str, policy: Policy, kind: str = "malformed") -> Decision:
    """Dead-letter a message that cannot be run; `summary` is the reason.

    Args:
        kind: `malformed`: it cannot be read; or another kind of `attempt.Facts`.
    """
    error = "PayloadError" if kind == "malformed" else None
    reason = Reason(kind=kind, error=error, summary=summary, job=policy.job, owner=policy.owner)
    return Decision(write=None, settle=MoveTo("dead-letter", reason), notes=(Note(kind, {"summary": summary}),))


def stopped(by: str, key: str, policy: Policy) -> Decision:
    """Dead-letter a message whose FIFO group was stopped by an earlier one."""
    summary = f"Its message group is stopped by message {by}; it follows so that the order is kept."
    reason = Reason(kind="group-stopped", summary=summary, job=policy.job, key=key, owner=policy.owner)
    return Decision(write=None, settle=MoveTo("dead-letter", reason), notes=(Note("group-stopped", {"by": by}),))


def conflict(found: store.Conflict, policy: Policy, now_ms: int, key: str | None, fingerprint: str) -> Decision:
    """Dead-letter a message whose key was used before with another payload. Arguments as for `guard.answer`."""
    fields = ", ".join(codec.differing(fingerprint, found.fingerprint))
    summary = (
        f"The key was used before with another payload (first by message {found.message_id or 'unknown'}, fingerprint "
        f"{found.fingerprint[:12]}, now {found.status}; the first payload itself is not kept). This payload, fingerprint "
        f"{fingerprint[:12]}, was not run.{f' They differ in: {fields}.' if fields else ''}"
    )
    reason = Reason(
        kind="conflict",
        error="ConflictError",
        summary=summary,
        job=policy.job,
        key=key,
        first_at_ms=now_ms,
        last_at_ms=now_ms,
        owner=policy.owner,
    )
    return Decision(
        write=None,
        settle=MoveTo("dead-letter", reason),
        notes=(Note("conflict", {"of": found.message_id, "status": found.status}),),
    )


class ProbeAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """A probe's answer: the effect happened (with its result as JSON), did not, or is still unknown.

    Args:
        verdict: `later`: the probe itself failed transiently; ask again after the job's pause, or after `retry_in_ms`
            if that is longer.
        outbox, counts: what the probe sent and counted, for the run that it completes; empty unless `done`.
    """

    verdict: Literal["done", "not-done", "unknown", "later"]
    result: bytes = b"null"
    outbox: list[store.OutboxItem] = []
    counts: dict[str, int] = {}
    summary: str = ""
    retry_in_ms: int | None = None


def decision_of(found: ProbeAnswer, policy: Policy, claimed: store.Claimed, now_ms: int) -> Decision | None:
    """The decision after a probe's answer; None when the handler may run again."""
    match found.verdict:
        case "done":
            outcome = delivery.Success(result=found.result, outbox=found.outbox, counts=found.counts)
            return delivery.completed(outcome, policy, claimed.attempts, now_ms)
        case "unknown":
            note = Note("unknown", {"policy": "probe", "crashes": claimed.crashes})
            summary = found.summary or "The probe could not find out whether the effect happened."
            return park("OutcomeUnknown", summary, policy, claimed, claimed.attempts, now_ms, crashed=False, note=note)
        case "later":
            return _later(found, policy, claimed, now_ms)
        case "not-done":
            if claimed.attempts < policy.attempts_max:
                return None
            last = claimed.failure
            used = Failed(
                kind="transient",
                error=last.error if last else "WorkerDied",
                summary=last.summary if last else "Every run ended with its process; the probe says: not done.",
            )
            return dead_letter_failed(used, "attempts", policy, claimed, claimed.attempts, now_ms)


def _later(found: ProbeAnswer, policy: Policy, claimed: store.Claimed, now_ms: int) -> Decision:
    """Leave the run in doubt and ask again later; no attempt is used. The queue's maximum receive count bounds this."""
    pause_ms = bounds_ms(policy.backoff, max(claimed.attempts, 1))[1]
    wait_ms = max(pause_ms, found.retry_in_ms or 0)
    failure = store.Failure(kind="unknown", error="ProbeFailed", summary=found.summary)
    return Decision(
        write=store.Unknown(failure=failure, expires_at_ms=now_ms + policy.keep_ms),
        settle=RetryIn(wait_ms),
        notes=(Note("retry", {"delay_ms": wait_ms, "summary": found.summary, "error": "ProbeFailed"}),),
    )
