"""What must hold of every decision, whatever comes in; and of every history, however long.

Three kinds: single decisions on drawn values; budgets over drawn sequences of outcomes, on the pure state machine alone;
and random histories of three workers on the real store, with the judge of the exhaustive walk (which is bounded where
these are long).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from onefold import limits
from onefold.contracts import store, transitions
from onefold.contracts.queue import Ack, Leave, MoveTo, RetryIn
from onefold.record import decisions, guard
from onefold.record import delivery as outcomes
from onefold.record.attempt import Call, Claim, Commit, Facts, Probe, Start, attempt
from onefold.record.decisions import ProbeAnswer
from onefold.record.delivery import Backoff, Decision, Failed, LeaseGone, NotStarted, Outcome, Policy, Unstorable
from onefold.runtime.events import EVENTS
from tests.crash.stage import Stage, staged
from tests.crash.world import Bounds, World

KEY = store.RecordKey("", "ship", "o-1")
NOW_MS = 1_700_000_000_000
counts = st.integers(0, 6)
instants = st.integers(0, 2**45)
waits = st.none() | st.integers(0, limits.VISIBILITY_MS_MAX)
policies = st.builds(
    Policy,
    job=st.just("ship"),
    queue=st.just("orders"),
    effect=st.sampled_from(["external", "repeatable", "transactional"]),
    attempts_max=st.integers(1, 5),
    crashes_max=st.integers(1, 5),
    backoff=st.builds(
        Backoff,
        base_ms=st.integers(0, 60_000),
        factor=st.floats(1, 10),
        cap_ms=st.integers(60_000, limits.VISIBILITY_MS_MAX),
        jitter=st.sampled_from(["full", "half", "none"]),
    ),
    on_unknown=st.sampled_from(["rerun", "hold", "probe"]),
    after_failure=st.sampled_from(["stop", "skip"]),
    timeout_ms=st.integers(1, limits.VISIBILITY_MS_MAX),
    keep_ms=st.integers(1, 2**40),
    uncounted=st.booleans(),
    fifo=st.booleans(),
    owner=st.none() | st.just("fulfilment"),
)
failures = st.builds(store.Failure, kind=st.just("transient"), error=st.just("E"), summary=st.text(max_size=20))
claims = st.builds(
    store.Claimed,
    hold=st.builds(store.Hold, key=st.just(KEY), owner=st.just("me"), fence=st.integers(1, 100)),
    found=st.sampled_from(["absent", "released", "failed", "unknown", "in_progress"]),
    doubt=st.booleans(),
    started=st.booleans(),
    attempts=counts,
    crashes=counts,
    first_at_ms=instants,
    previous_owner=st.none() | st.just("other"),
    failure=st.none() | failures,
)
any_outcome = st.one_of(
    st.builds(outcomes.Success, result=st.just(b"1")),
    st.builds(
        Failed,
        kind=st.sampled_from(["transient", "permanent", "dependency-down", "unknown"]),
        error=st.just("E"),
        summary=st.text(max_size=20),
        retry_in_ms=waits,
        crashed=st.booleans(),
    ),
    st.builds(NotStarted, st.just("drain"), delay_ms=st.integers(0, 60_000)),
    st.builds(Unstorable, summary=st.text(max_size=20)),
    st.just(LeaseGone()),
)


# -- single decisions --------------------------------------------------------------------------------------


def is_sound(decision: Decision, policy: Policy, now_ms: int) -> None:
    """Record and message say the same, nothing is hidden for longer than can be, and everything told has a meaning."""
    match decision.settle:
        case Ack():
            assert decision.write is None or isinstance(decision.write, store.Complete)
        case RetryIn(delay_ms=delay_ms):
            assert 0 <= delay_ms <= limits.VISIBILITY_MS_MAX
            assert isinstance(decision.write, store.Fail | store.Unknown | store.Release | None)
            assert not getattr(decision.write, "closes_budget", False)
            assert not getattr(decision.write, "parked", False)
        case MoveTo(to="dead-letter", reason=reason):
            assert decision.write is None or (isinstance(decision.write, store.Fail) and decision.write.closes_budget)
            assert reason.owner == policy.owner
        case MoveTo(to="held", reason=reason):
            assert decision.write is None or (isinstance(decision.write, store.Unknown) and decision.write.parked)
            assert reason.kind == "unknown"
        case Leave():
            assert decision.write is None
    if decision.write is not None:
        assert decision.write.expires_at_ms == now_ms + policy.keep_ms
    assert decision.notes, "nothing was told"
    assert all(note.event in EVENTS for note in decision.notes)
    assert all(
        value is None or isinstance(value, str | int | bool)
        for note in decision.notes
        for value in note.detail.values()
    )


@given(claims, policies, instants)
def test_claims_are_answered_soundly(found: store.Claimed, policy: Policy, now_ms: int) -> None:
    answer = guard.answer(found, policy, now_ms)
    assert answer == guard.answer(found, policy, now_ms)
    if isinstance(answer, Decision):
        is_sound(answer, policy, now_ms)
        assert not found.started, "a run that was marked as started is run"
        return
    assert (answer.how == "call") == found.started
    in_doubt = found.doubt and not found.started and policy.effect != "transactional"
    if in_doubt:
        assert policy.on_unknown != "hold"
        assert (answer.how == "probe") == (policy.on_unknown == "probe")
    if answer.how == "start":
        assert found.attempts < policy.attempts_max
        assert found.crashes < policy.crashes_max


@given(st.integers(-(2**30), 2**45), policies, instants)
def test_waiting_for_another_is_soundly_bounded(until_ms: int, policy: Policy, now_ms: int) -> None:
    # No lease is longer than a message can be hidden.
    until_ms = min(until_ms, now_ms + limits.VISIBILITY_MS_MAX - 1)
    decision = guard.answer(store.Running(until_ms=until_ms, owner="other", fence=1), policy, now_ms)
    assert isinstance(decision, Decision)
    is_sound(decision, policy, now_ms)
    assert isinstance(decision.settle, RetryIn)
    assert decision.settle.delay_ms >= 1
    if policy.uncounted:
        assert decision.settle.delay_ms <= outcomes.WAIT_MS_MAX


@given(any_outcome, policies, claims, st.integers(1, 6), instants, st.floats(0, 1, exclude_max=True))
def test_outcomes_are_settled_soundly(
    outcome: Outcome, policy: Policy, found: store.Claimed, number: int, now_ms: int, fraction: float
) -> None:
    decision = decisions.settle(outcome, policy, found, number, 1, now_ms, fraction)
    is_sound(decision, policy, now_ms)
    assert isinstance(decision.write, store.Complete) == isinstance(outcome, outcomes.Success)
    if isinstance(outcome, Failed) and outcome.kind == "transient":
        assert isinstance(decision.settle, RetryIn) == (number < policy.attempts_max)
    if policy.effect == "transactional":
        assert not isinstance(decision.write, store.Unknown), "its rows went with it"
    if isinstance(decision.settle, RetryIn) and not decision.settle.uncounted:
        asked_ms = getattr(outcome, "retry_in_ms", None) or 0
        assert decision.settle.delay_ms >= asked_ms


# -- budgets -----------------------------------------------------------------------------------------------

ENDS = ["success", "transient", "permanent", "unknown", "down", "not started", "crash", "killed"]


def outcome_of(end: str) -> Outcome:
    match end:
        case "success":
            return outcomes.Success(result=b"1")
        case "not started":
            return NotStarted("drain")
        case "killed":
            return Failed(kind="unknown", error="HandlerTimeout", summary="s", crashed=True)
        case _:
            kind: Any = {"down": "dependency-down"}.get(end, end)
            return Failed(kind=kind, error="E", summary="s")


def deliver(
    record: store.Record | None, policy: Policy, end: str, probed: str, now_ms: int
) -> tuple[store.Record | None, Decision | None, bool]:
    """One delivery on the state machine alone: the record afterwards, the decision (None: crashed), whether it ran."""
    script = attempt(Facts(key=KEY, fingerprint="f"), policy)
    step = next(script)
    called = False
    while not isinstance(step, Commit):
        step.now_ms = now_ms
        match step:
            case Claim():
                ask = store.Ask(
                    key=KEY,
                    fingerprint="f",
                    owner="me",
                    lease_until_ms=now_ms + 1,
                    start=True,
                    expires_at_ms=2**60,
                )
                step.found, after = transitions.claim(record, ask, now_ms)
                record = after or record
            case Probe():
                verdict: Any = probed
                step.answer = ProbeAnswer(verdict=verdict, summary="s")
            case Start():
                assert step.hold is not None
                record = transitions.start(record, step.hold, now_ms)
                assert record is not None
                step.held = True
            case Call():
                called = True
                if end == "crash":
                    return record, None, True
                step.outcome = outcome_of(end)
        step = next(script)
    assert step.decision is not None
    if step.decision.write is not None:
        assert step.hold is not None
        record = transitions.write(record, step.hold, step.decision.write, now_ms)
        assert record is not None
    return record, step.decision, called


@given(
    policies,
    st.lists(
        st.tuples(st.sampled_from(ENDS), st.sampled_from(["done", "not-done", "unknown"])),
        min_size=1,
        max_size=30,
    ),
)
@settings(max_examples=500)
def test_budgets_are_kept_and_every_operation_comes_to_an_end(policy: Policy, ends: list[tuple[str, str]]) -> None:
    policy = replace(policy, keep_ms=2**40)  # nothing is forgotten meanwhile
    record: store.Record | None = None
    runs = crashes = fence = 0
    parked = completed = False
    for number, (end, probed) in enumerate(ends):
        record, decision, called = deliver(record, policy, end, probed, NOW_MS + 2 * number)
        assert record is not None
        assert record.fence >= fence
        assert not (called and (parked or completed)), "it ran although it was over"
        fence = record.fence
        runs += called and end not in ("down", "not started")
        crashes += called and end == "crash"
        assert runs <= policy.attempts_max, "more runs than the budget has"
        assert crashes <= policy.crashes_max, "more crashes than are allowed"
        assert record.attempts_total >= record.attempts
        parked = parked or record.parked
        completed = completed or record.status == "completed"
        assert not (parked and completed)
        if decision is not None and isinstance(decision.settle, MoveTo) and decision.settle.to == "dead-letter":
            runs = crashes = 0  # the next delivery is a redrive and has a new budget
    if parked:
        assert record is not None
        assert transitions.is_expired(record, 2**62) is False


# -- long histories ----------------------------------------------------------------------------------------

LONG = Bounds(workers=3, deliveries=8, deaths=3, waits=4, faults=3, renewals=3)


@pytest.fixture(scope="module", params=["rerun", "hold", "probe", "transactional"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    transactional = request.param == "transactional"
    with staged("rerun" if transactional else request.param, transactional=transactional) as one:
        yield one


@given(st.data())
def test_long_histories_of_three_workers(stage: Stage, data: st.DataObject) -> None:
    world = World(stage, LONG)
    while choices := world.choices():
        world.happen(data.draw(st.sampled_from(choices), label="next"))
    world.drain()
