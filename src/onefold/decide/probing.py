"""What a job's probe found out about a run in doubt, and what that decides.

A run is in doubt when an earlier one was started and never said how it ended. The probe looks whether the effect happened;
done is answered from what it found, not done is run again within the budget, and what stays unknown is parked for a person.
Never here: asking (`run/probing.py`), the steps (`attempt.py`).
Invariant: only "not done" lets the handler run again.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from onefold.contracts import store
from onefold.contracts.queue import RetryIn
from onefold.decide import delivery, fates
from onefold.decide.backoff import bounds_ms
from onefold.decide.delivery import Decision, Note, Policy
from onefold.decide.outcomes import Failed


class ProbeAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """What a probe found: the effect happened (with its result as JSON), did not, or is still unknown.

    Args:
        verdict: `later`: the probe itself failed for now; ask again after the job's pause, or `retry_in_ms` when longer.
    """

    verdict: Literal["done", "not-done", "unknown", "later"]
    result: bytes = b"null"
    summary: str = ""
    retry_in_ms: int | None = None


def decision_of(found: ProbeAnswer, policy: Policy, claimed: store.Claimed, now_ms: int) -> Decision | None:
    """The decision when the probe knows, or cannot know; None when the handler may run again."""
    match found.verdict:
        case "done":
            return delivery.completed(delivery.Success(result=found.result), policy, claimed.attempts, now_ms)
        case "unknown":
            told = Note("unknown", {"policy": "probe", "crashes": claimed.crashes})
            summary = found.summary or "The probe could not tell whether the effect happened."
            return fates.park(
                "OutcomeUnknown", summary, policy, claimed, claimed.attempts, now_ms, crashed=False, told=told
            )
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
            return fates.bury_failed(used, "attempts", policy, claimed, claimed.attempts, now_ms)


def _later(found: ProbeAnswer, policy: Policy, claimed: store.Claimed, now_ms: int) -> Decision:
    """Still in doubt, and nothing was run: no attempt is used. The queue's own maximum of receives bounds it."""
    pause_ms = bounds_ms(policy.backoff, max(claimed.attempts, 1))[1]
    wait_ms = max(pause_ms, found.retry_in_ms or 0)
    failure = store.Failure(kind="unknown", error="ProbeFailed", summary=found.summary)
    return Decision(
        write=store.Unknown(failure=failure, expires_at_ms=now_ms + policy.keep_ms),
        settle=RetryIn(wait_ms),
        notes=(Note("retry", {"delay_ms": wait_ms, "summary": found.summary, "error": "ProbeFailed"}),),
    )
