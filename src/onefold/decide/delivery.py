"""What a job wants to happen (`Policy`), what its handler did (`Outcome`), and what becomes of the message.

`settle` is the table of design section 4 for a run that was started: one pure function from outcome, attempts and policy
to a `Decision`. What is decided before the handler runs (duplicates, takeovers) is in `guard.py`; the order of the steps
is in `attempt.py`. Never here: clocks, chance (a fraction comes in), storage.
Invariant: onefold decides before the queue's own maximum receive count does, so that it can say why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from onefold.contracts import store
from onefold.contracts.queue import Ack, Bury, Leave, Reason, RetryIn, Settle
from onefold.decide.backoff import Backoff, delay_ms

OnUnknown = Literal["rerun", "hold", "probe"]
Effect = Literal["external", "repeatable", "transactional"]
AfterFailure = Literal["stop", "skip"]
Detail = Mapping[str, str | int | bool | None]

WAIT_MS_MAX = 1_000  # a duplicate of a running job looks again after at most this, where looking costs no receive


class Policy(Struct, frozen=True, kw_only=True):
    """How a job's deliveries are treated. Immutable; made once from the declaration.

    Args:
        job: its name.
        effect: `external` (calls something outside: started and recorded one by one), `repeatable` (running twice is
            harmless: may be started and recorded in groups) or `transactional` (all its effects are rows written through
            `ctx.connection`: they commit with the record or not at all).
        attempts_max: runs per budget, 1 or more; the first one counts.
        crashes_max: runs that may end with their process before the operation is quarantined, 1 or more.
        backoff: pauses between deliveries after transient failures.
        on_unknown: what to do when an earlier run's outcome is not known.
        after_failure: FIFO: whether a dead-lettered or parked message stops its group.
        timeout_ms: how long one run may take.
        keep_ms: how long a finished record answers duplicates.
        queue: where its messages come from.
        uncounted: the queue can hide a message without the receive having counted.
        fifo: the queue has message groups.
        owner: the team that owns the fix.
    """

    job: str
    queue: str
    effect: Effect
    attempts_max: int
    crashes_max: int
    backoff: Backoff
    on_unknown: OnUnknown
    after_failure: AfterFailure
    timeout_ms: int
    keep_ms: int
    uncounted: bool = True
    fifo: bool = False
    owner: str | None = None


class Success(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """The handler returned; its result as JSON, and the messages it sent."""

    result: bytes
    outbox: list[store.OutboxItem] = []


class Failed(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """The handler raised.

    Args:
        kind: what the failure means (see `decide/failures.py`).
        error: class name of the exception.
        summary: one line without the payload.
        retry_in_ms: how long the dependency asked us to wait; None leaves it to the policy.
        crashed: the run was ended with its process (hard timeout, signal).
    """

    kind: Literal["transient", "permanent", "dependency-down", "unknown"]
    error: str
    summary: str
    retry_in_ms: int | None = None
    crashed: bool = False


class NotStarted(Struct, frozen=True, gc=False, tag=True):
    """The handler was not called after all (drain, deadline near, rate limit); `why` for people."""

    why: str
    delay_ms: int = 0


class Unstorable(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """The handler returned something that cannot be stored: the effect happened, its result is lost."""

    summary: str


class LeaseGone(Struct, frozen=True, gc=False, tag=True):
    """The run lost its lease: someone else owns the operation now."""


Outcome = Success | Failed | NotStarted | Unstorable | LeaseGone


class Note(Struct, frozen=True, gc=False):
    """Something to be told: an event's name and the numbers that decided."""

    event: str
    detail: Detail = {}


class Decision(Struct, frozen=True, kw_only=True, gc=False):
    """What becomes of one delivery.

    Args:
        write: the record's transition; None leaves it as it is.
        settle: the message's fate.
        notes: what to tell.
        clear: hold of a completed run whose outbox leaves with this settlement.
        outbox: messages of that completed run, to be sent before it is cleared.
    """

    write: store.Outcome | None
    settle: Settle
    notes: tuple[Note, ...] = ()
    clear: store.Hold | None = None
    outbox: tuple[store.OutboxItem, ...] = ()


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
        outcome: what the handler did.
        attempt: which run of the budget this was, 1 or more.
        receive_count: of the message, for people.
        now_ms: wall time.
        fraction: chance from [0, 1) for the jitter.
    """
    expires_at_ms = now_ms + policy.keep_ms
    match outcome:
        case Success():
            write = store.Complete(result=outcome.result, expires_at_ms=expires_at_ms, outbox=outcome.outbox)
            return Decision(write=write, settle=Ack(), notes=(Note("completed", {"attempt": attempt}),))
        case NotStarted():
            return Decision(
                write=store.Release(expires_at_ms=expires_at_ms, refund=True),
                settle=RetryIn(outcome.delay_ms, uncounted=policy.uncounted),
                notes=(Note("released", {"why": outcome.why}),),
            )
        case LeaseGone():
            return Decision(write=None, settle=Leave(), notes=(Note("lease-lost", {"attempt": attempt}),))
        case Unstorable():
            return _unstorable(outcome, policy, claimed, attempt, now_ms)
        case Failed(kind="dependency-down"):
            from onefold.decide.breaker import BreakerPolicy  # while nothing is down, nobody needs it

            pause_ms = outcome.retry_in_ms if outcome.retry_in_ms is not None else BreakerPolicy().pause_ms
            return Decision(
                write=store.Release(expires_at_ms=expires_at_ms, refund=True, failure=_failure(outcome)),
                settle=RetryIn(pause_ms, uncounted=policy.uncounted),
                notes=(Note("dependency-down", {"error": outcome.error, "summary": outcome.summary}),),
            )
        case Failed(kind="permanent"):
            return bury_failed(outcome, "permanent", policy, claimed, attempt, now_ms)
        case Failed(kind="unknown") if policy.effect != "transactional":
            return _unknown(outcome, policy, claimed, attempt, now_ms, fraction)
        case Failed():
            return _transient(outcome, policy, claimed, attempt, receive_count, now_ms, fraction)


def _unstorable(outcome: Unstorable, policy: Policy, claimed: store.Claimed, attempt: int, now_ms: int) -> Decision:
    # Its own rows are rolled back, so nothing happened; an external effect did happen, and only a person can say so.
    if policy.effect == "transactional":
        failed = Failed(kind="permanent", error="PayloadError", summary=outcome.summary)
        return bury_failed(failed, "permanent", policy, claimed, attempt, now_ms)
    told = Note("unknown", {"attempt": attempt, "error": "PayloadError", "policy": "hold"})
    return park("PayloadError", outcome.summary, policy, claimed, attempt, now_ms, crashed=False, told=told)


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
        return bury_failed(outcome, "attempts", policy, claimed, attempt, now_ms)
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
                },
            ),
        ),
    )


def _unknown(
    outcome: Failed, policy: Policy, claimed: store.Claimed, attempt: int, now_ms: int, fraction: float
) -> Decision:
    told = Note("unknown", {"attempt": attempt, "error": outcome.error, "policy": policy.on_unknown})
    if policy.on_unknown == "hold":
        return park(
            outcome.error, outcome.summary, policy, claimed, attempt, now_ms, crashed=outcome.crashed, told=told
        )
    if policy.on_unknown == "rerun" and attempt >= policy.attempts_max:
        return bury_failed(outcome, "attempts", policy, claimed, attempt, now_ms)
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
    return Decision(write=write, settle=RetryIn(wait_ms), notes=(told, again))


def bury_failed(
    outcome: Failed, kind: str, policy: Policy, claimed: store.Claimed, attempt: int, now_ms: int
) -> Decision:
    """To the dead-letter queue with the reason; the record is failed and its budget closed."""
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
    )
    failure = store.Failure(kind=kind, error=outcome.error, summary=outcome.summary)
    return Decision(
        write=store.Fail(failure=failure, expires_at_ms=now_ms + policy.keep_ms, closes_budget=True),
        settle=Bury("dead-letter", reason),
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
    told: Note,
) -> Decision:
    """Into the held queue, where a person settles it; the record is unknown and does not expire."""
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
    )
    write = store.Unknown(
        failure=store.Failure(kind="unknown", error=error, summary=summary),
        expires_at_ms=now_ms + policy.keep_ms,
        parked=True,
        crashed=crashed,
    )
    return Decision(write=write, settle=Bury("held", reason), notes=(told, Note("held", {"summary": summary})))


def _failure(outcome: Failed) -> store.Failure:
    return store.Failure(kind=outcome.kind, error=outcome.error, summary=outcome.summary)
