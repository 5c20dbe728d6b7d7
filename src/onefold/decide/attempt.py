"""The script of one delivery: a generator that yields steps, is told the answers, and never performs anything.

    Claim -> [Probe] -> [Start] -> Call -> Commit

`run/driver.py` performs a step, fills in its reply and resumes the script; the worker, the guard alone and the simulator
are loops around the same script. Every step, before and after, is a place to crash: the crash test walks them all.
Scripts are flat: what is decided is in `guard.py` and `delivery.py`, what is done is in the driver.
Invariant: exactly one Commit is the last step, whatever was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from onefold.contracts import store
from onefold.contracts.queue import Ack, Bury, Reason, RetryIn
from onefold.decide import delivery, guard
from onefold.decide.backoff import bounds_ms
from onefold.decide.delivery import Decision, Note, Policy


class Facts(Struct, frozen=True, kw_only=True, gc=False):
    """What is known of a delivery before anything is done.

    Args:
        key: the operation; None when the message is malformed.
        fingerprint: digest of the payload.
        malformed: why the message cannot be read; None when it can.
        discard: why the message is no job at all and may go (S3's test event); None for a job.
        amends: fingerprint of the payload that an operator replaced by this one.
        message_id, sent_at_ms, receive_count: of the message; None and 0 for the guard alone.
        stopped: its FIFO group is stopped by this earlier message, so it follows it to the dead-letter queue.
    """

    key: store.RecordKey | None
    fingerprint: str = ""
    malformed: str | None = None
    discard: str | None = None
    amends: str | None = None
    message_id: str | None = None
    sent_at_ms: int | None = None
    receive_count: int = 0
    stopped: str | None = None


class ProbeAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """What a probe found: the effect happened (with its result as JSON), did not, or is still unknown.

    Args:
        verdict: `later`: the probe itself failed for now; ask again after the job's pause, or `retry_in_ms` when longer.
    """

    verdict: Literal["done", "not-done", "unknown", "later"]
    result: bytes = b"null"
    summary: str = ""
    retry_in_ms: int | None = None


class Step(Struct):
    """One thing for the driver to do. `now_ms` is set by the driver when it is done."""

    now_ms: int = 0


class Claim(Step):
    """Claim the operation and mark a fresh run as started, because the call follows at once; reply `found`."""

    found: store.Answer | None = None


class Probe(Step):
    """Ask the job's probe; reply `answer`."""

    claimed: store.Claimed | None = None
    answer: ProbeAnswer | None = None


class Start(Step):
    """Mark the run as started, durably; reply `held`."""

    hold: store.Hold | None = None
    held: bool = False


class Call(Step):
    """Call the handler; replies `outcome` and `fraction` (chance for the jitter)."""

    claimed: store.Claimed | None = None
    attempt: int = 1
    outcome: delivery.Outcome | None = None
    fraction: float = 0.0


class Commit(Step):
    """Settle: record, outbox, history and message together, or in that order."""

    hold: store.Hold | None = None
    decision: Decision | None = None


def attempt(facts: Facts, policy: Policy) -> Iterator[Step]:
    """The steps of one delivery, in order; the last is a Commit."""
    if facts.discard is not None:
        yield Commit(decision=Decision(write=None, settle=Ack(), notes=(Note("discarded", {"why": facts.discard}),)))
        return
    if facts.malformed is not None or facts.key is None:
        yield Commit(decision=_malformed(facts, policy))
        return
    if facts.stopped is not None:
        yield Commit(decision=_stopped(facts, policy))
        return
    claim = Claim()
    yield claim
    assert claim.found is not None
    go = guard.answer(claim.found, policy, claim.now_ms, facts.key.key, facts.fingerprint)
    if isinstance(go, Decision):
        hold = claim.found.hold if isinstance(claim.found, store.Claimed) else None
        yield Commit(hold=hold, decision=go)
        return
    assert isinstance(claim.found, store.Claimed)
    claimed, notes = claim.found, go.notes
    if go.how == "probe":
        probe = Probe(claimed=claimed)
        yield probe
        assert probe.answer is not None
        known = _probed(probe.answer, policy, claimed, probe.now_ms)
        notes = (*notes, Note("probe", {"answer": probe.answer.verdict}))
        if known is not None:
            yield Commit(hold=claimed.hold, decision=_told(known, notes))
            return
    if go.how != "call":
        start = Start(hold=claimed.hold)
        yield start
        if not start.held:
            lost = delivery.settle(delivery.LeaseGone(), policy, claimed, claimed.attempts, 0, start.now_ms, 0.0)
            yield Commit(hold=claimed.hold, decision=_told(lost, notes))
            return
    number = claimed.attempts if claimed.started else claimed.attempts + 1
    call = Call(claimed=claimed, attempt=number)
    yield call
    assert call.outcome is not None
    decision = delivery.settle(call.outcome, policy, claimed, number, facts.receive_count, call.now_ms, call.fraction)
    yield Commit(hold=claimed.hold, decision=_told(decision, notes))


def _probed(found: ProbeAnswer, policy: Policy, claimed: store.Claimed, now_ms: int) -> Decision | None:
    """The decision when the probe knows, or cannot know; None when the handler may run again."""
    match found.verdict:
        case "done":
            return delivery.settle(
                delivery.Success(result=found.result), policy, claimed, claimed.attempts, 0, now_ms, 0.0
            )
        case "unknown":
            told = Note("unknown", {"policy": "probe", "crashes": claimed.crashes})
            summary = found.summary or "The probe could not tell whether the effect happened."
            return delivery.park(
                "OutcomeUnknown", summary, policy, claimed, claimed.attempts, now_ms, crashed=False, told=told
            )
        case "later":
            return _probe_later(found, policy, claimed, now_ms)
        case "not-done":
            if claimed.attempts < policy.attempts_max:
                return None
            last = claimed.failure
            used = delivery.Failed(
                kind="transient",
                error=last.error if last else "WorkerDied",
                summary=last.summary if last else "Every run ended with its process; the probe says: not done.",
            )
            return delivery.bury_failed(used, "attempts", policy, claimed, claimed.attempts, now_ms)


def _probe_later(found: ProbeAnswer, policy: Policy, claimed: store.Claimed, now_ms: int) -> Decision:
    """Still in doubt, and nothing was run: no attempt is used. The queue's own maximum of receives bounds it."""
    pause_ms = bounds_ms(policy.backoff, max(claimed.attempts, 1))[1]
    wait_ms = max(pause_ms, found.retry_in_ms or 0)
    failure = store.Failure(kind="unknown", error="ProbeFailed", summary=found.summary)
    return Decision(
        write=store.Unknown(failure=failure, expires_at_ms=now_ms + policy.keep_ms),
        settle=RetryIn(wait_ms),
        notes=(Note("retry", {"delay_ms": wait_ms, "summary": found.summary, "error": "ProbeFailed"}),),
    )


def _malformed(facts: Facts, policy: Policy) -> Decision:
    summary = facts.malformed or "The message has no key."
    reason = Reason(kind="malformed", error="PayloadError", summary=summary, job=policy.job, owner=policy.owner)
    return Decision(write=None, settle=Bury("dead-letter", reason), notes=(Note("malformed", {"summary": summary}),))


def _stopped(facts: Facts, policy: Policy) -> Decision:
    summary = f"Its message group is stopped by message {facts.stopped}; it follows so that the order is kept."
    reason = Reason(
        kind="group-stopped",
        summary=summary,
        job=policy.job,
        key=facts.key.key if facts.key else None,
        owner=policy.owner,
    )
    return Decision(
        write=None, settle=Bury("dead-letter", reason), notes=(Note("group-stopped", {"by": facts.stopped}),)
    )


def _told(decision: Decision, notes: tuple[Note, ...]) -> Decision:
    if not notes:
        return decision
    return Decision(write=decision.write, settle=decision.settle, notes=(*notes, *decision.notes))
