"""The script of one delivery: a generator that yields steps, receives their replies, and performs nothing itself.

    Claim -> [Probe] -> [Start] -> Call -> Commit

`runner/runner.py` performs a step, fills in its reply and resumes the script; the worker, the guard alone and inline runs
are loops around the same script. Every decision about a delivery is made here, even when a step is refused (a limit, a busy
backend, no time left), or when a settlement turns out to be impossible and another one replaces it. The crash test crashes
before and after every step. Scripts are flat: the rules are in `guard.py` and `decisions.py`, the actions in the runner.
Invariant: the last step is always a Commit; a second Commit follows only if the first can never be carried out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from onefold.contracts import store
from onefold.contracts.queue import Ack
from onefold.record import decisions, delivery, guard
from onefold.record.decisions import decision_of
from onefold.record.delivery import Decision, Note, NotStarted, Policy

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from onefold.record.decisions import ProbeAnswer
    from onefold.record.delivery import Outcome


MalformedKind = Literal["malformed", "untrusted", "no-job"]


class Facts(Struct, frozen=True, kw_only=True, gc=False):
    """What is known about a delivery before anything is done.

    Args:
        key: the operation; None when the message is malformed.
        fingerprint: digest of the payload.
        malformed: why the message cannot be run as it is; None when it can.
        kind: why it is malformed: it cannot be read, its attributes claim what only onefold may set, or no job is
            declared for it.
        run: the run that it belongs to; None for none.
        discard: why the message is not meant for a job and may be deleted (S3's test event); None for a job.
        amends: fingerprint of the payload that an operator replaced by this one.
        message_id, sent_at_ms, receive_count: those of the message; None and 0 for the guard alone.
        stopped: id of an earlier message that stopped its FIFO group; this one follows it to the dead-letter queue.
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
    """One thing for the runner to do, with fields for its replies.

    Attributes:
        now_ms: when it was done.
        refused: set if it was not done because the handler cannot be started now: why, and when the message comes back.
    """

    now_ms: int = 0
    refused: NotStarted | None = None


class Claim(Step):
    """Claim the operation and mark a fresh run as started, because the call follows at once; reply `found`."""

    found: store.Answer | None = None


class Probe(Step):
    """Ask the job's probe; reply `answer`."""

    claimed: store.Claimed | None = None
    answer: ProbeAnswer | None = None


class Start(Step):
    """Mark the run as started, durably; reply `held`: False when the lease was lost."""

    hold: store.Hold | None = None
    held: bool = False


class Call(Step):
    """Call the handler; replies `outcome` and `fraction` (a random number for the jitter)."""

    claimed: store.Claimed | None = None
    attempt: int = 1
    outcome: Outcome | None = None
    fraction: float = 0.0


class Commit(Step):
    """Settle: record, outbox, history and message together, or in that order.

    If the decision can never be carried out, the reply is `instead` (the run's outcome then) and `fraction`, and another
    Commit follows. Otherwise the script is not resumed.
    """

    hold: store.Hold | None = None
    decision: Decision | None = None
    instead: Outcome | None = None
    fraction: float = 0.0


class Decided(Struct, frozen=True, gc=False):
    """What a script decided: the decision, its claim (None: without one), the run's number, and notes to add."""

    decision: Decision
    claimed: store.Claimed | None = None
    number: int = 0
    notes: tuple[Note, ...] = ()


def attempt(facts: Facts, policy: Policy) -> Iterator[Step]:
    """The steps of one delivery, in order; the last is a Commit."""
    decided = yield from _decide(facts, policy)
    claimed, decision = decided.claimed, decided.decision
    while True:
        commit = Commit(hold=claimed.hold if claimed is not None else None, decision=_with(decided.notes, decision))
        yield commit
        if commit.instead is None:
            return
        assert claimed is not None
        decision = decisions.settle(
            commit.instead, policy, claimed, decided.number, facts.receive_count, commit.now_ms, commit.fraction
        )


def _decide(facts: Facts, policy: Policy) -> Generator[Step, None, Decided]:
    """The steps up to the decision."""
    never_run = _unread(facts, policy)
    if never_run is not None:
        return Decided(never_run)
    assert facts.key is not None
    claim = Claim()
    yield claim
    if claim.refused is not None:
        return Decided(decisions.not_admitted(claim.refused, policy))
    assert claim.found is not None
    go = guard.answer(claim.found, policy, claim.now_ms, facts.key.key, facts.fingerprint)
    if not isinstance(claim.found, store.Claimed):
        assert isinstance(go, Decision)
        return Decided(go)
    claimed = claim.found
    notes: tuple[Note, ...] = ()
    if isinstance(go, Decision):
        return Decided(go, claimed, claimed.attempts)
    if go.how == "probe":
        probe = Probe(claimed=claimed)
        yield probe
        if probe.refused is not None:
            return Decided(decisions.not_started(probe.refused, policy, probe.now_ms), claimed, claimed.attempts)
        assert probe.answer is not None
        known = decision_of(probe.answer, policy, claimed, probe.now_ms)
        notes = (Note("probe", {"answer": probe.answer.verdict}),)
        if known is not None:
            return Decided(known, claimed, claimed.attempts, notes)
    if go.how != "call":
        start = Start(hold=claimed.hold)
        yield start
        if start.refused is not None:
            return Decided(decisions.not_started(start.refused, policy, start.now_ms), claimed, claimed.attempts, notes)
        if not start.held:
            return Decided(delivery.lease_lost(claimed.attempts), claimed, claimed.attempts, notes)
    number = claimed.attempts if claimed.started else claimed.attempts + 1
    call = Call(claimed=claimed, attempt=number)
    yield call
    outcome = call.refused or call.outcome
    assert outcome is not None
    decision = decisions.settle(outcome, policy, claimed, number, facts.receive_count, call.now_ms, call.fraction)
    return Decided(decision, claimed, number, notes)


def _unread(facts: Facts, policy: Policy) -> Decision | None:
    """The decision about a message that must not be claimed, whatever its record is; None if it may be claimed."""
    if facts.discard is not None:
        return Decision(write=None, settle=Ack(), notes=(Note("discarded", {"why": facts.discard}),))
    if facts.malformed is not None or facts.key is None:
        return decisions.malformed(facts.malformed or "The message has no key.", policy, facts.kind)
    if facts.stopped is not None:
        return decisions.stopped(facts.stopped, facts.key.key, policy)
    return None


def _with(notes: tuple[Note, ...], decision: Decision) -> Decision:
    if not notes:
        return decision
    return Decision(
        write=decision.write,
        settle=decision.settle,
        notes=(*notes, *decision.notes),
        clear=decision.clear,
        outbox=decision.outbox,
    )
