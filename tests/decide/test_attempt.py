"""The script of a delivery: every path through it, walked with every reply a runner can give.

The walk is a tree: at each step it tries each reply. The grammar that every path must follow is written down as the steps'
names; which replies lead where is a table by hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product

import pytest
from msgspec.structs import replace

from onefold.contracts import store
from onefold.contracts.queue import Ack, Leave, MoveTo, RetryIn
from onefold.record import delivery as outcomes
from onefold.record.attempt import Call, Claim, Commit, Facts, Probe, Start, Step, attempt
from onefold.record.decisions import ProbeAnswer
from onefold.record.delivery import Backoff, Decision, Failed, LeaseGone, NotStarted, Outcome, Policy, Unstorable

KEY = store.RecordKey("", "ship", "o-1")
HOLD = store.Hold(KEY, "me", 4)
FACTS = Facts(key=KEY, fingerprint="ab" * 16, message_id="m-1", sent_at_ms=1, receive_count=2)
POLICY = Policy(
    job="ship",
    queue="orders",
    effect="external",
    attempts_max=3,
    crashes_max=3,
    backoff=Backoff(jitter="none"),
    on_unknown="rerun",
    after_failure="stop",
    timeout_ms=60_000,
    keep_ms=90_000,
)
FRESH = store.Claimed(hold=HOLD, found="absent", doubt=False, started=True, attempts=1, crashes=0, first_at_ms=0)
DOUBTED = store.Claimed(
    hold=HOLD,
    found="in_progress",
    doubt=True,
    started=False,
    attempts=1,
    crashes=1,
    first_at_ms=0,
    previous_owner="other",
)
ANSWERS: dict[str, store.Answer] = {
    "fresh": FRESH,
    "in doubt": DOUBTED,
    "in doubt, last attempt used": replace(DOUBTED, attempts=3),
    "in doubt, crashed too often": replace(DOUBTED, crashes=3),
    "taken over before it started": replace(FRESH, found="in_progress", previous_owner="other", started=False),
    "completed": store.Completed(result=b"1", completed_at_ms=5, hold=HOLD, outbox=[]),
    "completed, outbox pending": store.Completed(
        result=b"1", completed_at_ms=5, hold=HOLD, outbox=[store.OutboxItem(queue="q", body="{}")]
    ),
    "running": store.Running(until_ms=2_000, owner="other", fence=3),
    "held": store.Held(since_ms=1),
    "conflict": store.Conflict(fingerprint="cd" * 16, status="completed"),
    "unreadable": store.Unreadable(what="not a record", meaning="another program's", todo="move it"),
}
PROBED = {
    "done": ProbeAnswer(verdict="done", result=b'"L-1"'),
    "not done": ProbeAnswer(verdict="not-done"),
    "still unknown": ProbeAnswer(verdict="unknown", summary="the partner is down"),
}
OUTCOMES: dict[str, Outcome] = {
    "success": outcomes.Success(result=b"1"),
    "transient": Failed(kind="transient", error="E", summary="s"),
    "permanent": Failed(kind="permanent", error="E", summary="s"),
    "unknown": Failed(kind="unknown", error="E", summary="s"),
    "down": Failed(kind="dependency-down", error="E", summary="s"),
    "not started": NotStarted("drain"),
    "unstorable": Unstorable(summary="s"),
    "lease gone": LeaseGone(),
}


def replies(step: Step) -> list[str]:
    """Everything a runner can answer to a step."""
    match step:
        case Claim():
            return list(ANSWERS)
        case Probe():
            return list(PROBED)
        case Start():
            return ["held", "lost"]
        case Call():
            return list(OUTCOMES)
        case _:
            return []


def fill(step: Step, reply: str, now_ms: int) -> None:
    step.now_ms = now_ms
    match step:
        case Claim():
            step.found = ANSWERS[reply]
        case Probe():
            step.answer = PROBED[reply]
        case Start():
            step.held = reply == "held"
        case Call():
            step.outcome = OUTCOMES[reply]


def play(facts: Facts, policy: Policy, answers: tuple[str, ...]) -> list[Step]:
    """The steps that a script yields when it is told these answers, in order."""
    script = attempt(facts, policy)
    steps = [next(script)]
    for number, reply in enumerate(answers, start=1):
        fill(steps[-1], reply, 1_000 * number)
        steps.append(next(script))
    return steps


def paths(facts: Facts, policy: Policy, answers: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[Step]]]:
    """Every complete path: the answers and the steps."""
    steps = play(facts, policy, answers)
    following = replies(steps[-1])
    if not following:
        yield answers, steps
    for reply in following:
        yield from paths(facts, policy, (*answers, reply))


def names(steps: list[Step]) -> str:
    return " ".join(type(step).__name__ for step in steps)


GRAMMAR = {
    "Claim Commit",
    "Claim Call Commit",
    "Claim Start Commit",
    "Claim Start Call Commit",
    "Claim Probe Commit",
    "Claim Probe Start Commit",
    "Claim Probe Start Call Commit",
}
POLICIES = [
    replace(POLICY, effect=effect, on_unknown=on_unknown)
    for effect, on_unknown in product(("external", "repeatable", "transactional"), ("rerun", "hold", "probe"))
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{policy.effect}-{policy.on_unknown}")
def test_exactly_one_commit_and_it_is_the_last_step(policy: Policy) -> None:
    seen: Counter[str] = Counter()
    for answers, steps in paths(FACTS, policy):
        assert names(steps) in GRAMMAR, answers
        commit = steps[-1]
        assert isinstance(commit, Commit)
        assert commit.decision is not None
        # A record is written only under the hold of the claim.
        claimed = isinstance(ANSWERS[answers[0]], store.Claimed)
        assert (commit.hold == HOLD) if claimed else (commit.hold is None), answers
        assert commit.decision.write is None or claimed, answers
        script = attempt(FACTS, policy)
        for step, reply in zip(script, answers, strict=False):
            fill(step, reply, 1_000)
        assert list(script) == [], "the script goes on after its Commit"
        seen[names(steps)] += 1
    assert seen["Claim Commit"] >= 5
    assert seen["Claim Call Commit"] == len(OUTCOMES)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{policy.effect}-{policy.on_unknown}")
def test_what_is_in_doubt_is_never_called_before_the_policy_and_the_start(policy: Policy) -> None:
    for answers, steps in paths(FACTS, policy):
        called = any(isinstance(step, Call) for step in steps)
        if called and answers[0] != "fresh":
            assert any(isinstance(step, Start) and step.held for step in steps), answers
        if called and answers[0].startswith("in doubt") and policy.effect != "transactional":
            assert policy.on_unknown != "hold", answers
            if policy.on_unknown == "probe":
                assert "not done" in answers, answers
        if any(isinstance(step, Probe) for step in steps):
            assert policy.on_unknown == "probe", answers
            assert policy.effect != "transactional", answers


# -- which path, by hand -----------------------------------------------------------------------------------

HELD = replace(POLICY, on_unknown="hold")
ASKED = replace(POLICY, on_unknown="probe")
ROWS = replace(POLICY, effect="transactional", on_unknown="hold")
PATHS = [
    (POLICY, ("fresh", "success"), "Claim Call Commit", Ack, ["completed"]),
    (POLICY, ("fresh", "transient"), "Claim Call Commit", RetryIn, ["retry"]),
    (POLICY, ("completed",), "Claim Commit", Ack, ["duplicate"]),
    (POLICY, ("completed, outbox pending",), "Claim Commit", Ack, ["duplicate"]),
    (POLICY, ("running",), "Claim Commit", RetryIn, ["running-elsewhere"]),
    (POLICY, ("held",), "Claim Commit", MoveTo, ["held"]),
    (POLICY, ("conflict",), "Claim Commit", MoveTo, ["conflict"]),
    (
        POLICY,
        ("in doubt", "held", "success"),
        "Claim Start Call Commit",
        Ack,
        ["completed"],
    ),
    (POLICY, ("in doubt", "lost"), "Claim Start Commit", Leave, ["lease-lost"]),
    (POLICY, ("in doubt, last attempt used",), "Claim Commit", MoveTo, ["dead-letter"]),
    (POLICY, ("in doubt, crashed too often",), "Claim Commit", MoveTo, ["quarantine"]),
    (
        POLICY,
        ("taken over before it started", "held", "success"),
        "Claim Start Call Commit",
        Ack,
        ["completed"],
    ),
    (HELD, ("in doubt",), "Claim Commit", MoveTo, ["held"]),
    (HELD, ("in doubt, crashed too often",), "Claim Commit", MoveTo, ["held"]),
    (HELD, ("fresh", "unknown"), "Claim Call Commit", MoveTo, ["unknown", "held"]),
    (ASKED, ("in doubt", "done"), "Claim Probe Commit", Ack, ["probe", "completed"]),
    (
        ASKED,
        ("in doubt", "not done", "held", "success"),
        "Claim Probe Start Call Commit",
        Ack,
        ["probe", "completed"],
    ),
    (
        ASKED,
        ("in doubt", "not done", "lost"),
        "Claim Probe Start Commit",
        Leave,
        ["probe", "lease-lost"],
    ),
    (
        ASKED,
        ("in doubt", "still unknown"),
        "Claim Probe Commit",
        MoveTo,
        ["probe", "unknown", "held"],
    ),
    (
        ASKED,
        ("in doubt, last attempt used", "not done"),
        "Claim Probe Commit",
        MoveTo,
        ["probe", "dead-letter"],
    ),
    (
        ASKED,
        ("in doubt, last attempt used", "done"),
        "Claim Probe Commit",
        Ack,
        ["probe", "completed"],
    ),
    (ASKED, ("in doubt, crashed too often",), "Claim Commit", MoveTo, ["quarantine"]),
    (ROWS, ("in doubt", "held", "success"), "Claim Start Call Commit", Ack, ["completed"]),
]


@pytest.mark.parametrize(("policy", "answers", "steps", "settle", "notes"), PATHS)
def test_paths(policy: Policy, answers: tuple[str, ...], steps: str, settle: type, notes: list[str]) -> None:
    played = play(FACTS, policy, answers)
    commit = played[-1]
    assert names(played) == steps
    assert isinstance(commit, Commit)
    assert commit.decision is not None
    assert type(commit.decision.settle) is settle
    assert [note.event for note in commit.decision.notes] == notes


@pytest.mark.parametrize(
    ("answers", "number"),
    [
        (("fresh",), 1),  # the claim has counted this run
        (("in doubt", "held"), 2),  # the start counts it
        (("taken over before it started", "held"), 2),
    ],
)
def test_the_handler_is_told_which_run_it_is(answers: tuple[str, ...], number: int) -> None:
    call = play(FACTS, POLICY, answers)[-1]
    assert isinstance(call, Call)
    assert call.attempt == number
    assert isinstance(call.claimed, store.Claimed)


def test_the_probe_gives_the_result_that_answers_duplicates() -> None:
    commit = play(FACTS, ASKED, ("in doubt", "done"))[-1]
    assert isinstance(commit, Commit)
    assert commit.decision is not None
    assert commit.decision.write == store.Complete(result=b'"L-1"', expires_at_ms=2_000 + 90_000)


def test_a_probe_that_cannot_tell_parks_with_its_words() -> None:
    decision = _decided(play(FACTS, ASKED, ("in doubt", "still unknown")))
    assert isinstance(decision.write, store.Unknown)
    assert (decision.write.parked, decision.write.crashed) == (True, False)
    assert isinstance(decision.settle, MoveTo)
    assert (decision.settle.to, decision.settle.reason.summary) == ("held", "the partner is down")


def _decided(steps: list[Step]) -> Decision:
    commit = steps[-1]
    assert isinstance(commit, Commit)
    assert commit.decision is not None
    return commit.decision


# -- what ends before the claim ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "facts",
    [
        Facts(key=None, malformed="order_id is missing", message_id="m-1"),
        Facts(key=KEY, malformed="order_id is missing", message_id="m-1"),
        Facts(key=None, malformed="order_id is missing", stopped="m-0"),
    ],
)
def test_a_malformed_message_is_never_claimed(facts: Facts) -> None:
    for policy in POLICIES:
        steps = list(attempt(facts, policy))
        assert names(steps) == "Commit"
        decision = _decided(steps)
        assert decision.write is None
        assert isinstance(decision.settle, MoveTo)
        assert (decision.settle.to, decision.settle.reason.kind) == ("dead-letter", "malformed")
        assert "order_id is missing" in decision.settle.reason.summary


@pytest.mark.parametrize("stopped", [None, "m-0"])
def test_what_is_no_job_at_all_is_deleted(stopped: str | None) -> None:
    facts = Facts(key=None, discard="an S3 test event", message_id="m-1", stopped=stopped)
    for policy in POLICIES:
        steps = list(attempt(facts, policy))
        assert names(steps) == "Commit"
        decision = _decided(steps)
        assert (decision.write, decision.settle) == (None, Ack())
        assert [note.event for note in decision.notes] == ["discarded"]


def test_a_message_of_a_stopped_group_follows_without_being_claimed() -> None:
    for policy in POLICIES:
        steps = list(attempt(replace(FACTS, stopped="m-0"), policy))
        assert names(steps) == "Commit"
        decision = _decided(steps)
        assert decision.write is None
        assert isinstance(decision.settle, MoveTo)
        reason = decision.settle.reason
        assert (decision.settle.to, reason.kind, reason.key) == ("dead-letter", "group-stopped", "o-1")
        assert "m-0" in reason.summary


def test_a_step_that_was_not_performed_is_noticed() -> None:
    for answers in ((), ("fresh",)):
        script = attempt(FACTS, POLICY)
        step = next(script)
        for reply in answers:
            fill(step, reply, 1)
            step = next(script)
        with pytest.raises(AssertionError):
            next(script)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{policy.effect}-{policy.on_unknown}")
def test_every_step_before_the_commit_can_be_refused(policy: Policy) -> None:
    """A limit, a busy backend, no time left: the message comes back, and a claim is released without an attempt."""
    refused: Counter[str] = Counter()
    for answers, steps in paths(FACTS, policy):
        for number, step in enumerate(steps[:-1]):
            script = attempt(FACTS, policy)
            at = next(script)
            for place, reply in enumerate(answers[:number], start=1):
                fill(at, reply, 1_000 * place)
                at = next(script)
            at.now_ms, at.refused = 7_000, NotStarted("no time", 250)
            commit = next(script)
            assert isinstance(commit, Commit)
            assert commit.decision is not None
            assert commit.decision.settle == RetryIn(250, uncounted=policy.uncounted)
            note = commit.decision.notes[-1]
            assert (note.event, note.detail["why"]) == ("released", "no time")
            if isinstance(step, Claim):
                assert (commit.hold, commit.decision.write) == (None, None)
            else:
                assert commit.hold == HOLD
                assert commit.decision.write == store.Release(expires_at_ms=7_000 + policy.keep_ms, refund=True)
            assert list(script) == []
            refused[type(step).__name__] += 1
    assert {"Claim", "Call"} <= set(refused)


def test_a_settlement_that_can_never_be_carried_out_is_decided_again() -> None:
    """Whatever it comes to instead, the script says it; and what was noted before the call is not lost."""
    policy = replace(POLICY, on_unknown="probe")
    found = [
        (answers, steps) for answers, steps in paths(FACTS, policy) if names(steps) == "Claim Probe Start Call Commit"
    ]
    assert found
    for answers, _ in found:
        script = attempt(FACTS, policy)
        step = next(script)
        for place, reply in enumerate(answers, start=1):
            fill(step, reply, 1_000 * place)
            step = next(script)
        for outcome, settle in ((Unstorable(summary="no such queue"), MoveTo), (LeaseGone(), Leave)):
            assert isinstance(step, Commit)
            step.now_ms, step.instead = 9_000, outcome
            step = next(script)
            assert isinstance(step, Commit)
            assert step.decision is not None
            assert isinstance(step.decision.settle, settle)
            assert step.decision.notes[0].event == "probe"
        assert list(script) == []
