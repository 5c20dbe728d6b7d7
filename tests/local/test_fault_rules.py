"""Faults: every option reads back, wrong ones say what is wrong, and each happens at its rate and only where it may."""

from __future__ import annotations

import json

import pytest

from onefold.entropy import SeededEntropy
from onefold.errors import UsageError
from onefold.local import fault_rules as faults
from onefold.local.fault_rules import KINDS, NO_FAULTS, Chance, Fault, Faults, parse_faults

ROUNDS = 20_000
VISIBLE_MS = 30_000

OPTIONS = [
    "deliver=3",
    "repeat-deleted=0.1",
    "reorder=500ms",
    "delay=100ms-2s",
    "lose-ack=10%",
    "lose-answer=0.1",
    "hold=0.1:70s",
    "error=0.1,operation=Send*",
    "error-after=0.1",
    "throttle=0.1",
    "kill-before=0.1",
    "kill-during=0.1",
    "kill-after=0.1",
    "expire-early=0.1,queue=orders*,times=3",
    "redrive=0.1:1m",
]


def no_chance() -> float:
    raise AssertionError("chance was drawn")


def armed(option: str, seed: int = 7) -> list[tuple[Fault, Chance]]:
    return [(fault, SeededEntropy(seed).fraction) for fault in parse_faults([option]).faults]


def draw(option: str, queue: str = "orders", chance: Chance | None = None) -> object:
    """One draw of one fault at its moment."""
    (fault,) = parse_faults([option]).faults
    return draw_armed([(fault, chance or SeededEntropy(7).fraction)], queue)


def draw_armed(live: list[tuple[Fault, Chance]], queue: str = "orders") -> object:
    match KINDS[live[0][0].kind].at:
        case "send":
            return faults.on_send(live, queue)
        case "receive":
            return faults.on_receive(live, queue, VISIBLE_MS)
        case "delete":
            return faults.on_delete(live, queue)
        case "request":
            return faults.on_request(live, "SendMessage", queue)
        case "invoke":
            return faults.on_invoke(live, queue)
        case "dead-letter":
            return faults.on_dead_letter(live, queue)


# ------------------------------------------------------------------------------------------------------------ parsing


def test_every_kind_has_its_option() -> None:
    assert [fault.kind for fault in parse_faults(OPTIONS).faults] == list(KINDS)


def test_options_read_back_as_they_were_written() -> None:
    written = parse_faults([*OPTIONS, "seed=7"])
    assert [fault.text for fault in written.faults] == OPTIONS
    assert Faults.from_json(json.loads(json.dumps(written.to_json()))) == written


def test_an_object_of_options_is_the_same() -> None:
    assert Faults.from_json({"deliver": 2, "lose-ack": 0.1, "queue": "orders*", "seed": 7}) == parse_faults(
        ["deliver=2", "lose-ack=0.1", "queue=orders*", "seed=7"]
    )
    assert Faults.from_json(["deliver=2"]) == parse_faults(["deliver=2"])
    assert Faults.from_json({}) == Faults.from_json({"faults": [], "seed": None}) == NO_FAULTS


def test_a_limit_alone_holds_for_faults_that_name_none() -> None:
    first, second = parse_faults(["times=5", "lose-ack=0.1", "deliver=2,times=1", "queue=a*"]).faults
    assert (first.times, first.queue) == (5, "a*")
    assert (second.times, second.queue) == (1, "a*")


def test_values_carry_their_meaning() -> None:
    by_kind = {fault.kind: fault for fault in parse_faults(OPTIONS).faults}
    assert by_kind["deliver"].count == 3
    assert by_kind["lose-ack"].rate == 0.1
    assert (by_kind["delay"].least_ms, by_kind["delay"].most_ms) == (100, 2_000)
    assert (by_kind["reorder"].least_ms, by_kind["reorder"].most_ms) == (0, 500)
    assert by_kind["hold"].most_ms == 70_000
    assert parse_faults(["hold=1"]).faults[0].most_ms == faults.HOLD_MS_DEFAULT
    assert parse_faults(["delay=2s"]).faults[0].most_ms == 2_000


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("lose-acks=0.1", "Did you mean lose-ack?"),
        ("delivers=2", "Did you mean deliver?"),
        ("lose-ack=0.1,queues=a", "Did you mean queue?"),
        ("zzz=1", "There are deliver, repeat-deleted"),
        ("lose-ack", "'lose-ack' is not KEY=VALUE"),
        ("", "'' is not KEY=VALUE"),
        ("lose-ack=", "is not KEY=VALUE"),
        ("lose-ack=2", "lose-ack='2' is not a rate"),
        ("lose-ack=nan", "lose-ack='nan' is not a rate"),
        ("lose-ack=often", "lose-ack='often' is not a rate"),
        ("lose-ack=101%", "lose-ack='101%' is not a rate"),
        ("lose-ack=0.1:5s", "lose-ack='0.1:5s' takes no time"),
        ("hold=0.1:", "hold='' is not a duration"),
        ("hold=0.1:5", "hold='5' is not a duration"),
        ("deliver=1", "a whole number, 2 to 100"),
        ("deliver=two", "a whole number, 2 to 100"),
        ("deliver=\u0663", "a whole number, 2 to 100"),
        ("reorder=1h", "out of range"),
        ("delay=2s-1s", "out of range"),
        ("delay=2s-", "Write delay=100ms-2s"),
        ("lose-ack=0.1,times=0", "a whole number, 1 to"),
        ("lose-ack=0.1,deliver=2", "Repeat --fault"),
        ("lose-ack=0.1,queue=a,queue=b", "Repeat --fault"),
        ("lose-ack=0.1,operation=DeleteMessage", "It limits lose-answer, hold, error, error-after, throttle"),
        ("seed=-1", "a whole number"),
        ("queue=a", "limits no fault"),
    ],
)
def test_a_wrong_option_says_what_is_wrong(option: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_faults([option])
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "value", [None, 5, "deliver=2", [1], {"faults": [], "more": 1}, {"faults": [1]}, {"deliver": {}}]
)
def test_json_of_another_form_is_refused(value: object) -> None:
    with pytest.raises(UsageError):
        Faults.from_json(value)


def test_too_many_faults_are_refused() -> None:
    with pytest.raises(UsageError, match="101 faults"):
        parse_faults(["error=0.1"] * 101)


# -------------------------------------------------------------------------------------------------------------- draws

RATED = [name for name, kind in KINDS.items() if kind.form.startswith("rate")]


@pytest.mark.parametrize("kind", RATED)
@pytest.mark.parametrize("rate", [0.03, 0.5])
def test_a_rate_is_kept(kind: str, rate: float) -> None:
    live = armed(f"{kind}={rate}")
    hits = sum(draw_armed(live) is not None for _ in range(ROUNDS))
    assert hits / ROUNDS == pytest.approx(rate, abs=0.012)


@pytest.mark.parametrize("kind", RATED)
def test_rates_of_none_and_of_all(kind: str) -> None:
    never, always = armed(f"{kind}=0"), armed(f"{kind}=1")
    assert not any(draw_armed(never) for _ in range(100))
    assert all(draw_armed(always) for _ in range(100))


@pytest.mark.parametrize("option", OPTIONS)
def test_nothing_is_drawn_for_a_queue_it_is_not_limited_to(option: str) -> None:
    plain = option.partition(",")[0]
    assert draw(f"{plain},queue=invoices*", "orders", no_chance) is None
    assert draw(f"{plain},queue=Orders", "orders", no_chance) is None


def test_nothing_is_drawn_without_faults() -> None:
    assert faults.on_send([], "orders") is None
    assert faults.on_receive([], "orders", VISIBLE_MS) is None
    assert faults.on_delete([], "orders") is None
    assert faults.on_request([], "SendMessage", "orders") is None
    assert faults.on_invoke([], "orders") is None
    assert faults.on_dead_letter([], "orders") is None


@pytest.mark.parametrize("kind", KINDS)
def test_on_a_fifo_queue_only_what_aws_shows_there(kind: str) -> None:
    value = {"count": "2", "time": "1s", "times": "1s-2s"}.get(KINDS[kind].form, "1")
    applies = draw(f"{kind}={value}", "orders.fifo") is not None
    assert applies == (kind not in {"deliver", "repeat-deleted", "reorder", "delay", "lose-ack"})


def test_operations_limit_requests() -> None:
    live = armed("throttle=1,operation=DeleteMessage*")
    assert faults.on_request(live, "SendMessage", "orders") is None
    plan = faults.on_request(live, "DeleteMessageBatch", "orders")
    assert plan is not None
    assert plan.before == "throttle"


def test_a_request_that_names_no_queue_meets_faults_of_all_queues_only() -> None:
    assert faults.on_request(armed("error=1"), "ListQueues", "") is not None
    assert faults.on_request(armed("error=1,queue=orders*"), "ListQueues", "") is None


def test_delays_stay_within_their_bounds_and_use_them() -> None:
    live = armed("delay=100ms-200ms")
    plans = [faults.on_send(live, "orders") for _ in range(5_000)]
    seen = {plan.delay_ms for plan in plans if plan is not None}
    assert seen == set(range(100, 201))


def test_delays_add_up_to_what_sqs_allows() -> None:
    live = [*armed("delay=10m-15m"), *armed("reorder=15m"), *armed("delay=15m-15m")]
    plan = faults.on_send(live, "orders")
    assert plan is not None
    assert plan.delay_ms == 900_000


def test_an_early_expiry_comes_at_any_moment_before_its_time() -> None:
    live = armed("expire-early=1")
    plans = [faults.on_receive(live, "orders", VISIBLE_MS) for _ in range(2_000)]
    at_ms = [plan.expires_in_ms for plan in plans if plan is not None and plan.expires_in_ms is not None]
    assert len(at_ms) == 2_000
    assert 0 <= min(at_ms) < 1_000
    assert 29_000 < max(at_ms) < VISIBLE_MS
    assert faults.on_receive(live, "orders", 0) is None


def test_a_receive_can_be_copied_and_expire() -> None:
    plan = faults.on_receive([*armed("deliver=3"), *armed("expire-early=1")], "orders", VISIBLE_MS)
    assert plan is not None
    assert plan.copies == 2
    assert plan.expires_in_ms is not None
    assert "it will be given 3 times, and its visibility ends after" in plan.why


def test_a_refused_request_is_not_done_and_a_done_one_not_refused() -> None:
    everything = [*armed("hold=1:5s"), *armed("error-after=1"), *armed("error=1"), *armed("lose-answer=1")]
    plan = faults.on_request(everything, "SendMessage", "orders")
    assert plan is not None
    assert (plan.before, plan.hold_ms, plan.after) == ("error", 0, None)
    assert [fault.kind for fault in plan.by] == ["error"]
    plan = faults.on_request([*everything[:2], everything[3]], "SendMessage", "orders")
    assert plan is not None
    assert (plan.before, plan.hold_ms, plan.after) == (None, 5_000, "drop")


def test_a_container_is_killed_at_the_point_that_was_asked_for() -> None:
    for point in ("before", "during", "after"):
        plan = faults.on_invoke(armed(f"kill-{point}=1"), "orders")
        assert plan is not None
        assert plan.kill == point


def test_a_delete_is_lost_or_repeated() -> None:
    lost, repeated = (
        faults.on_delete(armed("lose-ack=1"), "orders"),
        faults.on_delete(armed("repeat-deleted=1"), "orders"),
    )
    assert lost is not None
    assert repeated is not None
    assert (lost.how, repeated.how) == ("lose", "repeat")
    assert lost.why == "fault: the delete was answered and not done"
