"""Settlements carried out: the order of their parts, and what a backend that fails for a moment makes of them.

The traces are written by hand: which verbs are called, in which order, where records and messages are two systems.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import onefold
from onefold.contracts import store as records
from onefold.contracts.commit import Settlement, Verdict
from onefold.contracts.queue import Ack, Leave, MoveTo, Reason, RetryIn
from onefold.contracts.state import Change
from onefold.runner import settlement as settlements
from tests.run.bench import Bench, Fault, Process, opened

BOTH = pytest.mark.parametrize("one_transaction", [True, False], ids=["one transaction", "part by part"])
Order = dict[str, Any]
QUICK = onefold.Retry(attempts=3, base="1s", jitter="none")


def shop(*, fifo: bool = False, on_unknown: Any = "rerun") -> tuple[onefold.App, Any, list[str]]:
    """An app whose handler does what the payload says; what it booked."""
    app = onefold.App("shop")
    orders, letters = app.queue("orders", fifo=fifo), app.queue("letters")
    booked: list[str] = []
    tries: dict[str, int] = {}

    @app.job(letters, key="{id}")
    def write(letter: Order) -> None:
        booked.append(letter["id"])

    @app.job(orders, key="{id}", group="{customer}" if fifo else None, on_unknown=on_unknown, retry=QUICK)
    def ship(order: Order) -> Any:
        key, act = order["id"], order.get("act", "book")
        tries[key] = tries.get(key, 0) + 1
        if act == "fail once" and tries[key] == 1:
            raise onefold.TransientError("not now")
        if act == "never":
            raise onefold.PermanentError("never")
        if act == "down" and tries[key] == 1:
            raise onefold.DependencyDown("the key was rotated", retry_in_ms=2_000)
        booked.append(key)
        if act == "lose the answer" and tries[key] == 1:
            raise onefold.OutcomeUnknown("sent")
        if act == "write":
            write.send({"id": f"{key}.1"})
            write.send({"id": f"{key}.2"})
        return "shipped"

    return app, ship, booked


def walk_of(bench: Bench, process: Process) -> list[str]:
    """The verbs that settling what is visible now calls, after the claim."""
    ready = process.begin()
    for run in ready:
        process.runner.perform(run)
    if ready:
        del process.calls[:]
        process.runner.finish(ready)
    elif "store.claim" in process.calls:
        del process.calls[: process.calls.index("store.claim") + 1]
    return [verb for verb in process.calls if verb != "state.get"]  # gates look, and settle nothing


WRITE, ROWS, DELETE = "store.write", "ledger.append", "queue.delete"


@pytest.mark.parametrize(
    ("act", "trace"),
    [
        ("book", [WRITE, ROWS, DELETE]),
        ("write", [WRITE, "queue.send", "store.clear_outbox", ROWS, DELETE]),
        ("fail once", [WRITE, ROWS, "queue.set_visible_in"]),
        ("never", [WRITE, ROWS, "queue.move_aside"]),
        ("lose the answer", [WRITE, ROWS, "queue.set_visible_in"]),
    ],
)
def test_the_order_of_the_walk(act: str, trace: list[str]) -> None:
    app, ship, _ = shop()
    with opened(app) as bench:
        ship.send({"id": "o-1", "act": act})
        process = bench.process(one_transaction=False, history="full")
        assert walk_of(bench, process) == trace


def test_a_group_is_stopped_before_its_message_goes() -> None:
    app, ship, _ = shop(fifo=True)
    with opened(app) as bench:
        ship.send({"id": "o-1", "customer": "c", "act": "never"})
        process = bench.process(one_transaction=False)
        assert walk_of(bench, process) == [WRITE, ROWS, "state.put", "queue.move_aside"]


def test_a_duplicate_sends_what_is_still_in_the_outbox_first() -> None:
    app, ship, booked = shop()
    with opened(app) as bench:
        ship.send({"id": "o-1", "act": "write"})
        broken = bench.process(one_transaction=False, fault=Fault("queue.send", times=6))
        broken.run()  # the record stands, its messages are in it
        stored = bench.record("o-1")
        assert stored is not None
        assert (stored.status, len(stored.outbox)) == ("completed", 2)
        assert broken.names() == ["completion-failed"]
        bench.clock.advance(30_000)
        second = bench.process(one_transaction=False)
        assert walk_of(bench, second) == ["queue.send", "store.clear_outbox", ROWS, DELETE]
        second.run()
        assert booked == ["o-1", "o-1.1", "o-1.2"]
        stored = bench.record("o-1")
        assert stored is not None
        assert stored.outbox == []


def test_a_lost_lease_ends_its_settlement_and_no_other() -> None:
    app, ship, _ = shop()
    with opened(app) as bench:
        ship.send_many([{"id": "o-1"}, {"id": "o-2", "act": "write"}])
        slow = bench.process(one_transaction=False)
        runs = slow.begin()
        for run in runs:
            slow.runner.perform(run)
        bench.write("UPDATE onefold_record SET fence = fence + 1 WHERE key = 'o-2'")
        slow.runner.finish(runs)
        assert slow.names() == ["completed", "lease-lost"]
        assert bench.backend.open_queue("letters").depth().visible == 0
        assert [message.key for message in bench.messages("orders")] == ["o-2"]


@pytest.mark.parametrize("one_transaction", [True, False])
@pytest.mark.parametrize("act", ["write", "fail once"])
def test_a_run_whose_record_is_gone_is_settled_all_the_same(act: str, *, one_transaction: bool) -> None:
    """The store was flushed meanwhile: nobody has taken it over, and left alone it would run again."""
    app, ship, _ = shop()
    with opened(app) as bench:
        ship.send_many([{"id": "o-1"}, {"id": "o-2", "act": act}])
        process = bench.process(one_transaction=one_transaction)
        runs = process.begin()
        for run in runs:
            process.runner.perform(run)
        bench.write("DELETE FROM onefold_record WHERE key = 'o-2'")
        process.runner.finish(runs)
        assert process.names() == ["record-gone", "completed", "completed" if act == "write" else "retry"]
        stored = bench.record("o-2")
        assert stored is not None
        assert (stored.status, stored.message_id, stored.attempts) == (
            "completed" if act == "write" else "failed", runs[1].delivery.message_id, 1,
        )  # fmt: skip
        assert bench.backend.open_queue("letters").depth().visible == (2 if act == "write" else 0)
        assert bench.history("o-2")[0].event == "record-gone"
        assert [message.key for message in bench.messages("orders")] == ([] if act == "write" else ["o-2"])


def test_a_run_whose_key_another_has_claimed_since_its_record_was_gone_is_left_alone() -> None:
    app, ship, _ = shop()
    with opened(app) as bench:
        ship.send({"id": "o-1"})
        slow, quick = bench.process(), bench.process()
        (run,) = slow.begin()
        slow.runner.perform(run)
        bench.write("DELETE FROM onefold_record")
        bench.clock.advance(30_000)
        (other,) = quick.begin()
        slow.runner.finish([run])
        assert slow.names() == ["lease-lost"]
        stored = bench.record("o-1")
        assert stored is not None
        assert (stored.status, stored.owner) == ("in_progress", other.hold.owner)


# -- a backend that fails for a moment ---------------------------------------------------------------------

SCENARIOS: list[tuple[str, Order, Callable[[Bench, list[str]], None]]] = []


def expects(act: str, **payload: Any) -> Any:
    def declare(check: Callable[[Bench, list[str]], None]) -> Any:
        SCENARIOS.append((act, {"id": "o-1", "act": act, **payload}, check))
        return check

    return declare


@expects("book")
def once(bench: Bench, booked: list[str]) -> None:
    assert booked == ["o-1"]
    assert bench.record("o-1").status == "completed"  # type: ignore[union-attr]  # it must be there


@expects("write")
def once_with_letters(bench: Bench, booked: list[str]) -> None:
    assert booked == ["o-1", "o-1.1", "o-1.2"]


@expects("fail once")
def once_after_a_retry(bench: Bench, booked: list[str]) -> None:
    once(bench, booked)
    assert [row.event for row in bench.history("o-1") if row.event == "retry"] != []


@expects("down")
def once_after_a_pause(bench: Bench, booked: list[str]) -> None:
    once(bench, booked)


@expects("never")
def a_dead_letter(bench: Bench, booked: list[str]) -> None:
    assert booked == []
    (letter,) = bench.messages("orders-dead")
    assert letter.key == "o-1"
    assert bench.record("o-1").status == "failed"  # type: ignore[union-attr]  # as above


@expects("lose the answer")
def parked(bench: Bench, booked: list[str]) -> None:
    assert booked == ["o-1"]
    assert len(bench.messages("orders-held")) == 1
    assert bench.record("o-1").parked  # type: ignore[union-attr]  # as above


VERBS = [
    "commit.commit",
    "store.write",
    "queue.send",
    "store.clear_outbox",
    "ledger.append",
    "queue.delete",
    "queue.set_visible_in",
    "queue.move_aside",
]


@BOTH
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize(("act", "payload", "check"), SCENARIOS, ids=[one[0] for one in SCENARIOS])
def test_one_failure_is_tried_again(
    act: str,
    payload: Order,
    check: Callable[[Bench, list[str]], None],
    side: str,
    one_transaction: bool,
) -> None:
    hit = 0
    for verb in VERBS:
        app, ship, booked = shop(on_unknown="hold")
        with opened(app) as bench:
            ship.send(payload)
            fault = Fault(verb, times=1, side=side)
            process = bench.process(one_transaction=one_transaction, fault=fault, history="full")
            process.run_for(60_000, step_ms=5_000)
            assert not {"lease-lost", "completion-failed", "unsettled"} & set(process.names()), (
                verb,
                process.names(),
            )
            check(bench, booked)
            hit += fault.left == 0
    assert hit >= (1 if one_transaction else 3)


def test_a_settlement_that_can_never_be_written_does_not_stop_its_neighbours() -> None:
    app, ship, _ = shop()
    with opened(app) as bench:
        ship.send_many([{"id": "o-1"}, {"id": "o-2", "act": "write"}, {"id": "o-3", "act": "never"}])
        process = bench.process()
        runs = process.begin()
        for run in runs:
            process.runner.perform(run)
        bench.runtime.engine.queues.drop("letters")
        process.runner.finish(runs)
        # o-2 had its effect, and where its letters go is gone: only a person can say what now.
        assert process.names() == ["completed", "unknown", "held", "dead-letter"]
        assert process.events[1].detail["error"] == "PayloadError"
        assert bench.record("o-2").parked  # type: ignore[union-attr]  # it must be there
        assert [one.key for one in bench.messages("orders-held")] == ["o-2"]
        assert [one.key for one in bench.messages("orders-dead")] == ["o-3"]
        assert bench.messages("orders") == []


def test_part_by_part_its_record_stands_and_its_messages_wait_in_it() -> None:
    app, ship, _ = shop()
    with opened(app) as bench:
        ship.send_many([{"id": "o-1"}, {"id": "o-2", "act": "write"}])
        process = bench.process(one_transaction=False)
        runs = process.begin()
        for run in runs:
            process.runner.perform(run)
        bench.runtime.engine.queues.drop("letters")
        process.runner.finish(runs)
        assert process.names() == ["completed", "completion-failed"]
        stored = bench.record("o-2")
        assert stored is not None
        assert (stored.status, len(stored.outbox)) == ("completed", 2)
        assert [one.key for one in bench.messages("orders")] == ["o-2"]  # it comes back, and tries again


def test_the_ledger_may_fail_to_hear_of_the_loudest_event() -> None:
    app, ship, _ = shop()
    with opened(app) as bench:
        ship.send({"id": "o-1"})

        def everything(verb: str, side: str) -> None:
            if verb in ("commit.commit", "ledger.append"):
                raise onefold.errors.StorageBusy("the disk is full")

        process = bench.process(fault=everything)
        process.run()
        assert process.names() == ["completion-failed"]


# -- the pieces --------------------------------------------------------------------------------------------

REASON = Reason(kind="permanent", summary="never")


def settlement(receipt: str, settle: Any, **parts: Any) -> Settlement:
    return Settlement(write=None, queue="orders", receipt=receipt, settle=settle, **parts)


@BOTH
def test_verdicts_come_in_the_order_of_the_settlements(one_transaction: bool) -> None:
    app, ship, _ = shop()
    with opened(app) as bench:
        ship.send_many([{"id": f"o-{number}"} for number in range(5)])
        receipts = [one.receipt for one in bench.receive()]
        lost = records.Hold(records.RecordKey("", "ship", "o-3"), "nobody", 9)
        never = records.Complete(result=b"1", expires_at_ms=bench.clock.now_ms() + 1)
        backend = bench.process(one_transaction=one_transaction).backend
        verdicts = settlements.settle(
            backend,
            [
                settlement(receipts[0], Ack()),
                settlement(receipts[1], RetryIn(5_000)),
                settlement(receipts[2], MoveTo("dead-letter", REASON)),
                Settlement(write=(lost, never), queue="orders", receipt=receipts[3], settle=Ack()),
                settlement(receipts[4], Leave()),
                Settlement(write=None, queue=None, receipt=None, settle=Ack()),
            ],
            bench.clock.now_ms(),
        )
        done = Verdict(True, True)
        assert verdicts == [done, done, done, Verdict(False, False), done, done]
        assert sorted(message.key or "" for message in bench.messages("orders")) == ["o-1", "o-3", "o-4"]


@BOTH
def test_a_change_of_state_rides_along(one_transaction: bool) -> None:
    app, ship, _ = shop()
    with opened(app) as bench:
        ship.send({"id": "o-1"})
        (delivery,) = bench.receive()
        backend = bench.process(one_transaction=one_transaction).backend
        changes = (Change("flag", b"1", 0), Change("flag", b"2", 0))  # the second comes too late
        verdicts = settlements.settle(
            backend, [settlement(delivery.receipt, Ack(), changes=changes)], bench.clock.now_ms()
        )
        assert verdicts == [Verdict(True, True)]
        (flag,) = bench.backend.state.get(["flag"])
        assert flag is not None
        assert flag.value == b"1"


@BOTH
def test_a_refused_write_takes_its_change_of_state_with_it(one_transaction: bool) -> None:
    app, ship, _ = shop()
    with opened(app) as bench:
        ship.send({"id": "o-1"})
        (delivery,) = bench.receive()
        lost = records.Hold(records.RecordKey("", "ship", "o-1"), "nobody", 9)
        fail = records.Fail(
            failure=records.Failure(kind="permanent", error="E", summary="s"),
            expires_at_ms=1,
            closes_budget=True,
        )
        backend = bench.process(one_transaction=one_transaction).backend
        refused = Settlement(
            write=(lost, fail),
            queue="orders",
            receipt=delivery.receipt,
            settle=MoveTo("dead-letter", REASON),
            changes=(Change("flag", b"1", 0),),
        )
        assert settlements.settle(backend, [refused], bench.clock.now_ms()) == [Verdict(False, False)]
        assert bench.backend.state.get(["flag"]) == [None]
        assert bench.messages("orders-dead") == []
