"""The live faults: seeded and repeatable, counted, limited, changed at run time, and their copies given once each."""

from __future__ import annotations

import pytest

from onefold.contracts.entries import Entry
from onefold.contracts.queue import Delivery
from onefold.entropy import SeededEntropy
from onefold.local.fault_rules import NO_FAULTS, Faults, parse_faults
from onefold.local.faults import FaultInjector


class NoEntropy:
    """Chance nobody may ask for."""

    def token(self) -> str:
        raise AssertionError("chance was drawn")

    def fraction(self) -> float:
        raise AssertionError("chance was drawn")


def box(*options: str, seed: int = 7, copies_max: int = 10_000) -> FaultInjector:
    return FaultInjector(parse_faults([*options, f"seed={seed}"]), NoEntropy(), copies_max=copies_max)


def delivery(number: int = 1, queue: str = "orders") -> Delivery:
    return Delivery(
        queue=queue,
        message_id=f"m-{number}",
        receipt=f"{number}:1",
        body="{}",
        attributes={},
        receive_count=1,
        sent_at_ms=1_000,
        first_received_at_ms=2_000,
        received_at_ms=2_000,
        visible_ms=30_000,
    )


def play(faults: FaultInjector, rounds: int = 200) -> list[object]:
    """The same calls in the same order; what was injected."""
    found: list[object] = []
    for number in range(rounds):
        found += faults.sending("orders", [Entry(body="x")])[1]
        found += faults.received("orders", [delivery(number)])
        found += faults.deleting("orders", [f"{number}:1"])
        found += [faults.requested("SendMessage", "orders"), faults.invoking("orders"), faults.dead_lettered("orders")]
    return found


ALL = ("delay=1s-9s", "expire-early=0.2", "lose-ack=0.2", "error=0.2", "kill-during=0.2", "redrive=0.2")


def test_without_faults_nothing_is_drawn_and_nothing_changes() -> None:
    faults = FaultInjector(NO_FAULTS, NoEntropy())
    entries = [Entry(body="x")]
    assert not faults.active
    assert faults.sending("orders", entries) == (entries, [])
    assert faults.sending("orders", entries)[0] is entries
    assert faults.received("orders", [delivery()]) == []
    assert faults.deleting("orders", ["1:1"]) == []
    assert faults.copies("orders", 10, 0) == []
    assert (faults.requested("SendMessage", "orders"), faults.invoking("orders"), faults.dead_lettered("orders")) == (
        None,
        None,
        None,
    )
    assert faults.report() == {"seed": None, "faults": [], "injected": [], "copies": 0}


def test_the_same_seed_and_calls_give_the_same_faults() -> None:
    assert play(box(*ALL)) == play(box(*ALL))
    assert play(box(*ALL)) != play(box(*ALL, seed=8))


def test_what_one_fault_draws_does_not_move_another() -> None:
    quiet, busy = box(*ALL), box(*ALL)
    for _ in range(50):
        busy.requested("ReceiveMessage", "orders")
    assert [quiet.deleting("orders", ["1:1"]) for _ in range(100)] == [
        busy.deleting("orders", ["1:1"]) for _ in range(100)
    ]


def test_a_seed_nobody_chose_is_told_and_repeats_the_run() -> None:
    drawn = FaultInjector(parse_faults(ALL), SeededEntropy(3))
    said = drawn.report()
    again = FaultInjector(Faults.from_json({"seed": said["seed"], "faults": said["faults"]}), NoEntropy())
    assert isinstance(said["seed"], int)
    assert play(drawn) == play(again)


def test_what_is_injected_is_counted() -> None:
    faults = box(*ALL)
    play(faults)
    counts = faults.report()["injected"]
    assert isinstance(counts, list)
    assert counts[0] == 200
    assert all(20 <= count <= 60 for count in counts[1:])


def test_times_ends_a_fault_within_a_batch_too() -> None:
    faults = box("lose-ack=1,times=3")
    plans = faults.deleting("orders", ["1:1", "2:1", "3:1", "4:1", "5:1"])
    assert [plan is not None for plan in plans] == [True, True, True, False, False]
    assert not faults.active
    assert faults.deleting("orders", ["6:1"]) == []
    assert faults.report()["injected"] == [3]


@pytest.mark.parametrize(
    ("asked_ms", "queue_ms", "late_ms"),
    [(None, 0, 1_000), (None, 5_000, 6_000), (2_000, 5_000, 3_000), (900_000, 0, 900_000)],
)
def test_a_delay_comes_on_top_of_the_one_asked_for(asked_ms: int | None, queue_ms: int, late_ms: int) -> None:
    entries, plans = box("delay=1s-1s").sending("orders", [Entry(body="x", delay_ms=asked_ms)], queue_ms)
    assert entries[0].delay_ms == late_ms
    assert plans[0] is not None


def test_a_message_for_a_later_instant_is_not_delayed() -> None:
    entries, plans = box("delay=1s-1s").sending("orders", [Entry(body="x", run_at_ms=5)])
    assert entries == [Entry(body="x", run_at_ms=5)]
    assert plans == [None]


def test_reordered_messages_come_in_another_order() -> None:
    sent = [Entry(body=str(number)) for number in range(20)]
    entries, _ = box("reorder=1s").sending("orders", sent)
    by_instant = sorted(entries, key=lambda entry: entry.delay_ms or 0)
    assert sorted(entry.body for entry in entries) == sorted(entry.body for entry in sent)
    assert [entry.body for entry in by_instant] != [entry.body for entry in sent]


# ------------------------------------------------------------------------------------------------------------- copies


def test_a_message_is_given_as_often_as_asked() -> None:
    faults = box("deliver=3")
    faults.received("orders", [delivery(1), delivery(2)])
    assert faults.has_copies("orders")
    given = faults.copies("orders", 3, 9_000) + faults.copies("orders", 10, 9_500)
    assert sorted((copy.message_id, copy.receive_count) for copy in given) == [
        ("m-1", 2),
        ("m-1", 3),
        ("m-2", 2),
        ("m-2", 3),
    ]
    assert [copy.received_at_ms for copy in given] == [9_000, 9_000, 9_000, 9_500]
    assert {copy.receipt for copy in given} == {"1:1", "2:1"}
    assert not faults.has_copies("orders")
    assert faults.copies("orders", 10, 9_500) == []


def test_copies_outlive_the_last_fault_and_then_nothing_is_active() -> None:
    faults = box("deliver=2,times=1")
    faults.received("orders", [delivery()])
    assert faults.active
    assert len(faults.copies("orders", 10, 0)) == 1
    assert not faults.active


def test_copies_are_bounded() -> None:
    faults = box("deliver=2", copies_max=3)
    faults.received("orders", [delivery(number) for number in range(5)])
    assert [copy.message_id for copy in faults.copies("orders", 10, 0)] == ["m-0", "m-1", "m-2"]
    faults.received("orders", [delivery(9)])
    assert faults.has_copies("orders")


def test_a_purged_queue_has_no_copies() -> None:
    faults = box("deliver=2")
    faults.received("orders", [delivery()])
    faults.received("invoices", [delivery(queue="invoices")])
    faults.forget("orders")
    faults.forget("unknown")
    assert not faults.has_copies("orders")
    assert faults.report()["copies"] == 1


# -------------------------------------------------------------------------------------------------------- at run time


def test_faults_are_replaced_at_run_time() -> None:
    faults = box("deliver=2")
    faults.received("orders", [delivery()])
    faults.set(parse_faults(["throttle=1", "seed=1"]))
    assert not faults.has_copies("orders")
    assert faults.received("orders", [delivery()]) == []
    assert faults.requested("SendMessage", "orders") is not None
    assert faults.report() == {"seed": 1, "faults": ["throttle=1"], "injected": [1], "copies": 0}
    faults.clear()
    assert not faults.active
    assert faults.requested("SendMessage", "orders") is None
