"""The script of one delivery: a generator that yields steps, is told the answers, and never performs anything.

    Claim -> [Probe] -> [Start] -> Call -> Commit

`run/driver.py` performs a step, fills in its reply and resumes the script; the worker, the guard alone and inline runs
are loops around the same script. Every step, before and after, is a place to crash: the crash test walks them all.
Scripts are flat: what is decided is in `guard.py` and `fates.py`, what is done is in the driver.
Invariant: exactly one Commit is the last step, whatever was found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from onefold.contracts import store
from onefold.contracts.queue import Ack
from onefold.decide import delivery, fates, guard
from onefold.decide.delivery import Decision, Note, Policy
from onefold.decide.fates import decision_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onefold.decide.delivery import Outcome
    from onefold.decide.fates import ProbeAnswer


MalformedKind = Literal["malformed", "untrusted", "no-job"]


class Facts(Struct, frozen=True, kw_only=True, gc=False):
    """What is known of a delivery before anything is done.

    Args:
        key: the operation; None when the message is malformed.
        fingerprint: digest of the payload.
        malformed: why the message cannot be run as it is; None when it can.
        kind: of that: it cannot be read, it claims what only onefold may say, or nobody declares its job.
        run: that it belongs to; None for none.
        discard: why the message is no job at all and may go (S3's test event); None for a job.
        amends: fingerprint of the payload that an operator replaced by this one.
        message_id, sent_at_ms, receive_count: of the message; None and 0 for the guard alone.
        stopped: its FIFO group is stopped by this earlier message, so it follows it to the dead-letter queue.
    """

    key: store.RecordKey | None
    fingerprint: str = ""
    malformed: str | None = None
    kind: MalformedKind = "malformed"
    run: str | None = None
    discard: str | None = None
    amends: str | None = None
    message_id: str | None = None
    sent_at_ms: int | None = None
    receive_count: int = 0
    stopped: str | None = None


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
    outcome: Outcome | None = None
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
        yield Commit(decision=fates.malformed(facts.malformed or "The message has no key.", policy, facts.kind))
        return
    if facts.stopped is not None:
        yield Commit(decision=fates.stopped(facts.stopped, facts.key.key, policy))
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
    claimed = claim.found
    notes: tuple[Note, ...] = ()
    if go.how == "probe":
        probe = Probe(claimed=claimed)
        yield probe
        assert probe.answer is not None
        known = decision_of(probe.answer, policy, claimed, probe.now_ms)
        notes = (Note("probe", {"answer": probe.answer.verdict}),)
        if known is not None:
            yield Commit(hold=claimed.hold, decision=_told(known, notes))
            return
    if go.how != "call":
        start = Start(hold=claimed.hold)
        yield start
        if not start.held:
            yield Commit(hold=claimed.hold, decision=_told(delivery.lease_lost(claimed.attempts), notes))
            return
    number = claimed.attempts if claimed.started else claimed.attempts + 1
    call = Call(claimed=claimed, attempt=number)
    yield call
    assert call.outcome is not None
    if isinstance(call.outcome, delivery.Success):
        decision = delivery.completed(call.outcome, policy, number, call.now_ms)
    else:
        decision = fates.settle(call.outcome, policy, claimed, number, facts.receive_count, call.now_ms, call.fraction)
    yield Commit(hold=claimed.hold, decision=_told(decision, notes))


def _told(decision: Decision, notes: tuple[Note, ...]) -> Decision:
    if not notes:
        return decision
    return Decision(write=decision.write, settle=decision.settle, notes=(*notes, *decision.notes))
