"""How many calls each verb costs, and that many who write at once agree. On the stub, whose batch errors hold old items."""

from __future__ import annotations

import threading

import pytest

from onefold.contracts.store import Claimed, Completed, Hold, Outcome, Record, Running
from onefold.testing.records import BROKEN, F2, KEPT_MS, KEY, LEASE_MS, NOW, ask, complete, fail, release, unknown
from tests.aws.dynamodb.tables import OpenBooks
from tests.emulators.dynamodb_stub import Stub

NAMES = [f"key-{number}" for number in range(10)]


class Counted:
    """A store on the stub, and its calls since they were last asked for."""

    def __init__(self, stub: Stub, open_books: OpenBooks, *, batched: bool = True) -> None:
        self.stub = stub
        self.books = open_books(stub.url, batched=batched)
        self.store = self.books.store
        self.claim(["before"])  # a process's first claim brings a note of the job's name along
        stub.calls.clear()

    def calls(self) -> dict[str, int]:
        counted = dict(self.stub.calls)
        self.stub.calls.clear()
        return counted

    def claim(self, names: list[str] = NAMES, owner: str = "A", at_ms: int = NOW) -> list[Hold]:
        answers = self.store.claim([ask(name, owner, at_ms=at_ms) for name in names], at_ms)
        assert {type(answer) for answer in answers} == {Claimed}
        return [answer.hold for answer in answers if isinstance(answer, Claimed)]

    def record(self, hold: Hold, at_ms: int = NOW) -> Record:
        (record,) = self.store.read([hold.key], at_ms)
        assert record is not None
        return record


@pytest.fixture
def counted(stub: Stub, open_books: OpenBooks) -> Counted:
    return Counted(stub, open_books)


def test_ten_fresh_records_cost_one_call_to_claim_and_one_to_settle(counted: Counted) -> None:
    holds = counted.claim()
    assert counted.calls() == {"BatchExecuteStatement": 1}
    assert counted.store.write([(hold, complete()) for hold in holds], NOW) == [True] * 10
    assert counted.calls() == {"BatchExecuteStatement": 1}


@pytest.mark.parametrize(("old_items", "reads"), [(True, {}), (False, {"BatchGetItem": 1})])
def test_ten_duplicates_cost_one_call_or_two(counted: Counted, old_items: bool, reads: dict[str, int]) -> None:
    counted.stub.store.old_items = old_items
    counted.store.write([(hold, complete()) for hold in counted.claim()], NOW)
    counted.calls()
    answers = counted.store.claim([ask(name, "B") for name in NAMES], NOW)
    assert {type(answer) for answer in answers} == {Completed}
    assert counted.calls() == {"BatchExecuteStatement": 1, **reads}


def test_ten_failed_ones_are_claimed_again_with_one_call_more(counted: Counted) -> None:
    counted.store.write([(hold, fail()) for hold in counted.claim()], NOW)
    counted.calls()
    assert [hold.fence for hold in counted.claim(owner="B")] == [2] * 10
    assert counted.calls() == {"BatchExecuteStatement": 2}


def test_every_outcome_of_a_started_run_is_one_call(counted: Counted) -> None:
    outcomes: list[Outcome] = [
        complete(), fail(), fail(closes_budget=True), unknown(), release(), release(failure=BROKEN),
        release(refund=True),
    ]  # fmt: skip
    holds = counted.claim(NAMES[: len(outcomes)])
    counted.calls()
    assert counted.store.write(list(zip(holds, outcomes, strict=True)), NOW) == [True] * len(outcomes)
    assert counted.calls() == {"BatchExecuteStatement": 1}


def test_parking_notes_it_first(counted: Counted) -> None:
    holds = counted.claim()
    counted.calls()
    assert counted.store.write([(hold, unknown(parked=True)) for hold in holds], NOW) == [True] * 10
    assert counted.calls() == {"BatchWriteItem": 1, "BatchExecuteStatement": 1}


def test_a_crash_is_read_before_it_is_counted(counted: Counted) -> None:
    holds = counted.claim()
    counted.calls()
    assert counted.store.write([(hold, unknown(crashed=True)) for hold in holds], NOW) == [True] * 10
    assert counted.calls() == {"BatchGetItem": 1, "BatchExecuteStatement": 1}


def test_start_renew_and_clear_are_one_call_each(counted: Counted) -> None:
    asks = [ask(name, start=False) for name in NAMES]
    holds = [answer.hold for answer in counted.store.claim(asks, NOW) if isinstance(answer, Claimed)]
    counted.calls()
    assert counted.store.start(holds, NOW) == [True] * 10
    assert counted.store.renew(holds, NOW + 2 * LEASE_MS) == [True] * 10
    counted.store.write([(hold, complete()) for hold in holds], NOW)
    assert counted.store.clear_outbox(holds) == [True] * 10
    assert counted.calls() == {"BatchExecuteStatement": 4}


def test_a_record_alone_goes_by_put_item_and_update_item(counted: Counted) -> None:
    (hold,) = counted.claim(["one"])
    assert counted.store.write([(hold, complete())], NOW) == [True]
    assert isinstance(counted.store.claim([ask("one", "B")], NOW)[0], Completed)
    assert counted.calls() == {"PutItem": 2, "UpdateItem": 1}


def test_without_batches_every_record_is_one_call(stub: Stub, open_books: OpenBooks) -> None:
    counted = Counted(stub, open_books, batched=False)
    holds = counted.claim()
    counted.store.write([(hold, complete()) for hold in holds], NOW)
    assert counted.calls() == {"PutItem": 10, "UpdateItem": 10}


def test_a_batch_holds_25_statements(counted: Counted) -> None:
    counted.claim([f"{number}" for number in range(60)])
    assert counted.calls() == {"BatchExecuteStatement": 3}


def test_large_results_are_split_over_calls(counted: Counted) -> None:
    holds = counted.claim([f"{number}" for number in range(20)])
    counted.calls()
    large = b'"' + b"x" * 380_000 + b'"'
    assert counted.store.write([(hold, complete(large)) for hold in holds], NOW) == [True] * 20
    assert counted.calls() == {"BatchExecuteStatement": 2}


def test_of_sixteen_threads_one_claims_each_key(counted: Counted) -> None:
    answers: dict[str, list[object]] = {}
    ready = threading.Barrier(16)

    def work(owner: str) -> None:
        ready.wait()
        answers[owner] = list(counted.store.claim([ask(name, owner) for name in NAMES], NOW))

    threads = [threading.Thread(target=work, args=(f"owner-{number}",)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in zip(*answers.values(), strict=True):
        assert sorted(type(one).__name__ for one in each) == ["Claimed"] + ["Running"] * 15


def test_of_sixteen_threads_one_takes_over(counted: Counted) -> None:
    counted.claim([KEY.key])
    answers: list[object] = []
    ready = threading.Barrier(16)

    def work(owner: str) -> None:
        ready.wait()
        answers.extend(counted.store.claim([ask(KEY, owner, at_ms=NOW + LEASE_MS)], NOW + LEASE_MS))

    threads = [threading.Thread(target=work, args=(f"owner-{number}",)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (won,) = [answer for answer in answers if isinstance(answer, Claimed)]
    assert (won.hold.fence, won.doubt, won.crashes) == (2, True, 1)
    assert answers.count(Running(until_ms=NOW + 2 * LEASE_MS, owner=won.hold.owner, fence=2)) == 15


def test_a_renewal_beats_a_takeover_that_had_read_before_it(counted: Counted) -> None:
    (hold,) = counted.claim(["one"])
    late_ms = NOW + LEASE_MS

    def renew_in_between(operation: str, request: dict, carry_out):  # type: ignore[no-untyped-def,type-arg]
        if operation == "UpdateItem" and counted.stub.interfere is not None:
            counted.stub.interfere = None
            key = {"pk": {"S": "tenant"}, "sk": {"S": "job#one"}}
            values = {":until": {"N": str(late_ms + LEASE_MS)}, ":stamp": {"S": "other"}}
            update = {
                "UpdateExpression": "SET lease_until = :until, stamp = :stamp",
                "ExpressionAttributeValues": values,
            }
            counted.stub.store.operate("UpdateItem", {"TableName": counted.books.table.name, "Key": key, **update})
        return carry_out()

    counted.stub.interfere = renew_in_between
    (answer,) = counted.store.claim([ask("one", "B", at_ms=late_ms)], late_ms)
    assert answer == Running(until_ms=late_ms + LEASE_MS, owner="A", fence=hold.fence)


def test_an_expired_record_that_is_still_there_is_absent(counted: Counted) -> None:
    counted.store.write([(hold, complete()) for hold in counted.claim()], NOW)
    at_ms = NOW + KEPT_MS
    answers = counted.store.claim([ask(name, "B", at_ms=at_ms, fingerprint=F2) for name in NAMES], at_ms)
    assert {answer.found for answer in answers if isinstance(answer, Claimed)} == {"absent"}
    assert len(answers) == 10
    assert counted.record(Hold(answers[0].hold.key, "B", 2), at_ms).result is None  # type: ignore[union-attr]


def test_leases_are_safe_while_clocks_differ_by_less_than_the_margin(counted: Counted) -> None:
    """A holder stops a tenth of the lease before its end (record/lease.py); another host's clock may be that far ahead."""
    (hold,) = counted.claim(["one"])
    margin_ms = LEASE_MS // 10
    trusted_until_ms = NOW + LEASE_MS - margin_ms
    (answer,) = counted.store.claim(
        [ask("one", "B", at_ms=trusted_until_ms + margin_ms - 1)], trusted_until_ms + margin_ms - 1
    )
    assert isinstance(answer, Running)
    (answer,) = counted.store.claim([ask("one", "B", at_ms=trusted_until_ms + margin_ms)], trusted_until_ms + margin_ms)
    assert isinstance(answer, Claimed)
    # Beyond the bound the other takes over too early: the fence still refuses what the first one writes.
    assert counted.store.write([(hold, complete())], NOW) == [False]
