"""Answers that are lost, throttled or refused: what was done is found out, and nothing is claimed for nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onefold import errors
from onefold.contracts.state import Change, Versioned
from onefold.contracts.store import Claimed, Hold, Unreadable
from onefold.testing.records import KEPT_MS, LEASE_MS, NOW, ask, complete, fail
from tests.aws.dynamodb.tables import HastyClock, OpenBooks
from tests.emulators.dynamodb_stub import Stub, error_body

CarryOut = Callable[[], tuple[int, bytes]]
NAMES = ["a", "b", "c"]


def lose_answers(stub: Stub, operation: str, count: int = 1) -> None:
    """Carry out the next calls of this operation and drop their connections."""
    left = [count]

    def interfere(called: str, _: dict[str, Any], carry_out: CarryOut) -> tuple[int, bytes] | None:
        answer = carry_out()
        if called == operation and left[0] > 0:
            left[0] -= 1
            return None
        return answer

    stub.interfere = interfere


def fail_statements(stub: Stub, code: str, key: str, count: int, *, applied: bool = False) -> None:
    """Answer statements about this key with an error, so many times."""
    plain, left = stub.store._statement, [count]

    def statement(one: dict[str, Any]) -> dict[str, Any]:
        if left[0] > 0 and {"S": f"job#{key}"} in one["Parameters"]:
            left[0] -= 1
            if applied:
                plain(one)
            return {"Error": {"Code": code, "Message": "for now"}}
        return plain(one)

    stub.store._statement = statement  # type: ignore[method-assign]


def holds(answers: list[Any]) -> list[Hold]:
    assert {type(answer) for answer in answers} == {Claimed}
    return [answer.hold for answer in answers]


def test_a_shared_value_whose_answer_was_lost_is_recognised_as_our_own(stub: Stub, open_books: OpenBooks) -> None:
    state = open_books(stub.url).state
    for change, stands in (
        (Change("lock", b'"A"', 0), Versioned(1, b'"A"')),
        (Change("lock", b'"A"', 1), Versioned(2, b'"A"')),
        (Change("lock", None, 2), None),
        (Change("lock", b'"A"', 0), Versioned(4, b'"A"')),
    ):
        lose_answers(stub, "UpdateItem")
        assert state.put([change]) == [True]
        assert state.get(["lock"]) == [stands]
        assert state.put([change]) == [False]  # a second change with the same words is another one


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("old_items", [True, False])
def test_a_claim_whose_answer_was_lost_is_recognised_as_our_own(
    stub: Stub, open_books: OpenBooks, batched: bool, old_items: bool
) -> None:
    stub.store.old_items = old_items
    store = open_books(stub.url, batched=batched).store
    lose_answers(stub, "BatchExecuteStatement" if batched else "PutItem")
    answers = store.claim([ask(name) for name in NAMES], NOW)
    assert [hold.fence for hold in holds(answers)] == [1, 1, 1]
    assert all(isinstance(answer, Claimed) and answer.started and answer.attempts == 1 for answer in answers)


@pytest.mark.parametrize("batched", [True, False])
def test_a_takeover_whose_answer_was_lost_is_recognised(stub: Stub, open_books: OpenBooks, batched: bool) -> None:
    store = open_books(stub.url, batched=batched).store
    store.claim([ask(name) for name in NAMES], NOW)
    lost = []

    def interfere(called: str, request: dict[str, Any], carry_out: CarryOut) -> tuple[int, bytes] | None:
        answer = carry_out()
        is_update = called == "UpdateItem" or "UPDATE" in str(request.get("Statements", ""))
        if is_update and not lost:
            lost.append(called)
            return None
        return answer

    stub.interfere = interfere
    late_ms = NOW + LEASE_MS
    answers = store.claim([ask(name, "B", at_ms=late_ms) for name in NAMES], late_ms)
    assert lost
    assert [hold.fence for hold in holds(answers)] == [2, 2, 2]
    assert [answer.crashes for answer in answers if isinstance(answer, Claimed)] == [1, 1, 1]


@pytest.mark.parametrize("batched", [True, False])
def test_an_outcome_whose_answer_was_lost_stands(stub: Stub, open_books: OpenBooks, batched: bool) -> None:
    store = open_books(stub.url, batched=batched).store
    ours = holds(store.claim([ask(name) for name in NAMES], NOW))
    for operation in ("BatchExecuteStatement", "UpdateItem"):
        lose_answers(stub, operation)
    assert store.write([(hold, fail()) for hold in ours], NOW) == [True, True, True]
    assert store.write([(hold, fail()) for hold in ours], NOW) == [False, False, False]


@pytest.mark.parametrize("code", ["ThrottlingError", "ProvisionedThroughputExceeded", "TransactionConflict"])
def test_a_statement_that_is_put_off_is_tried_again_alone(stub: Stub, open_books: OpenBooks, code: str) -> None:
    books = open_books(stub.url)
    fail_statements(stub, code, "b", 2)
    stub.calls.clear()
    holds(books.store.claim([ask(name) for name in NAMES], NOW))
    assert stub.calls == {"BatchExecuteStatement": 3}
    clock = books.table.clock
    assert isinstance(clock, HastyClock)
    assert [25 <= clock.waits_ms[0] <= 75, 50 <= clock.waits_ms[1] <= 150, len(clock.waits_ms)] == [True, True, 2]


def test_a_statement_that_is_not_understood_is_made_by_a_call_of_its_own(stub: Stub, open_books: OpenBooks) -> None:
    store = open_books(stub.url).store
    fail_statements(stub, "ValidationError", "b", 2)
    stub.calls.clear()
    ours = holds(store.claim([ask(name) for name in NAMES], NOW))
    assert store.write([(hold, complete()) for hold in ours], NOW) == [True, True, True]
    assert stub.calls == {"BatchExecuteStatement": 2, "PutItem": 1, "UpdateItem": 1}


def test_a_call_that_is_refused_as_a_whole_is_made_write_by_write(stub: Stub, open_books: OpenBooks) -> None:
    store = open_books(stub.url).store

    def interfere(called: str, _: dict[str, Any], carry_out: CarryOut) -> tuple[int, bytes] | None:
        if called == "BatchExecuteStatement":
            return 400, error_body("ValidationException", "a statement is not well formed")
        return carry_out()

    stub.interfere = interfere
    stub.calls.clear()
    ours = holds(store.claim([ask(name) for name in NAMES], NOW))
    assert store.write([(hold, complete()) for hold in ours], NOW) == [True, True, True]
    assert stub.calls == {"BatchExecuteStatement": 2, "PutItem": 4, "UpdateItem": 3}  # one for a note


def test_a_statement_that_failed_after_it_was_applied_is_recognised(stub: Stub, open_books: OpenBooks) -> None:
    store = open_books(stub.url).store
    fail_statements(stub, "InternalServerError", "b", 1, applied=True)
    answers = store.claim([ask(name) for name in NAMES], NOW)
    assert [hold.fence for hold in holds(answers)] == [1, 1, 1]


def test_what_was_claimed_is_given_back_when_a_neighbour_cannot_be(stub: Stub, open_books: OpenBooks) -> None:
    store = open_books(stub.url).store
    fail_statements(stub, "ThrottlingError", "b", 1_000)
    with pytest.raises(errors.TransientError, match="failed for now"):
        store.claim([ask(name) for name in NAMES], NOW)
    del stub.store._statement
    answers = store.claim([ask(name, "B") for name in NAMES], NOW)
    assert [hold.fence for hold in holds(answers)] == [2, 1, 2]
    assert all(
        isinstance(one, Claimed) and (one.doubt, one.started, one.attempts) == (False, True, 1) for one in answers
    )


def test_an_error_of_one_outcome_leaves_its_neighbours_written(stub: Stub, open_books: OpenBooks) -> None:
    store = open_books(stub.url).store
    ours = holds(store.claim([ask(name) for name in NAMES], NOW))
    fail_statements(stub, "ThrottlingError", "b", 1_000)
    with pytest.raises(errors.TransientError):
        store.write([(hold, complete()) for hold in ours], NOW)
    del stub.store._statement
    assert [one and one.status for one in store.read([hold.key for hold in ours], NOW)] == [
        "completed", "in_progress", "completed",
    ]  # fmt: skip
    assert store.write([(hold, complete()) for hold in ours], NOW) == [True, True, True]


def test_a_record_that_others_change_all_the_time_is_given_up_after_ten_rounds(
    stub: Stub, open_books: OpenBooks
) -> None:
    store = open_books(stub.url).store
    store.claim([ask("a")], NOW)
    plain = stub.store.update_item
    rounds = []

    def update_item(request: dict[str, Any]) -> dict[str, Any]:
        rounds.append(1)
        item = next(one for one in stub.store._items[request["TableName"]].values() if "fence" in one)
        item["stamp"] = {"S": f"other-{len(rounds)}"}
        return plain(request)

    stub.store.update_item = update_item  # type: ignore[method-assign]
    with pytest.raises(errors.StorageBusy, match="changed by others 10 times"):
        store.claim([ask("a", "B", at_ms=NOW + LEASE_MS)], NOW + LEASE_MS)
    assert len(rounds) == 9


def test_a_server_that_does_not_answer_is_a_transient_error(open_books: OpenBooks) -> None:
    store = open_books("http://127.0.0.1:9", table="none", create=False, tries=1).store
    with pytest.raises(errors.TransientError):
        store.claim([ask("a"), ask("b")], NOW)
    with pytest.raises(errors.TransientError):
        store.write([(Hold(ask("a").key, "A", 1), complete())], NOW)


@pytest.mark.parametrize("batched", [True, False])
def test_a_denied_action_is_named_with_its_resource(stub: Stub, open_books: OpenBooks, batched: bool) -> None:
    store = open_books(stub.url, batched=batched).store
    ours = holds(store.claim([ask(name) for name in NAMES], NOW))

    def deny(_: str, __: dict[str, Any], ___: CarryOut) -> tuple[int, bytes]:
        return 400, error_body("AccessDeniedException", "User: x is not authorized to perform: dynamodb:Any")

    stub.interfere = deny
    resource = "arn:aws:dynamodb:eu-west-1:*:table/books-"
    for verb, action in (
        (lambda: store.claim([ask("x"), ask("y")], NOW), "dynamodb:PartiQLInsert" if batched else "dynamodb:PutItem"),
        (lambda: store.renew(ours, NOW), "dynamodb:PartiQLUpdate" if batched else "dynamodb:UpdateItem"),
        (lambda: store.read([ours[0].key], NOW), "dynamodb:BatchGetItem"),
    ):
        with pytest.raises(errors.UsageError) as caught:
            verb()
        assert f"Add the action {action} on {resource}" in caught.value.todo


def test_a_denied_statement_is_named_too(stub: Stub, open_books: OpenBooks) -> None:
    store = open_books(stub.url).store
    fail_statements(stub, "AccessDenied", "b", 1_000)
    with pytest.raises(errors.UsageError, match="Add the action dynamodb:PartiQLInsert on arn:aws:dynamodb"):
        store.claim([ask(name) for name in NAMES], NOW)


def test_a_result_that_is_too_large_is_refused_before_anything_is_written(stub: Stub, open_books: OpenBooks) -> None:
    store = open_books(stub.url).store
    ours = holds(store.claim([ask(name) for name in NAMES], NOW))
    most = b'"' + b"x" * (401_408 - 2) + b'"'
    with pytest.raises(errors.UsageError, match="401409 bytes") as caught:
        store.write([(ours[0], complete()), (ours[1], complete(most + b" "))], NOW)
    assert "S3" in caught.value.todo
    assert {one.status for one in store.read([hold.key for hold in ours], NOW) if one} == {"in_progress"}
    assert store.write([(ours[1], complete(most))], NOW) == [True]
    (record,) = store.read([ours[1].key], NOW + KEPT_MS - 1)
    assert record is not None
    assert record.result == most


def test_a_foreign_item_is_named(stub: Stub, open_books: OpenBooks) -> None:
    books = open_books(stub.url)
    item = {"pk": {"S": "tenant"}, "sk": {"S": "job#a"}, "total": {"N": "5"}}
    stub.store.operate("PutItem", {"TableName": books.table.name, "Item": item})
    foreign, taken = books.store.claim([ask("a"), ask("b")], NOW)
    assert isinstance(foreign, Unreadable)
    assert "job#a" in foreign.what
    assert "is not a record of onefold" in foreign.what
    assert isinstance(taken, Claimed)
    with pytest.raises(errors.StorageError, match=r"job#a.* is not a record of onefold"):
        books.store.read([ask("a").key], NOW)


def test_a_tenant_that_is_too_long_is_refused(stub: Stub, open_books: OpenBooks) -> None:
    store = open_books(stub.url).store
    key = ask("a").key.__class__("é" * 1024 + "x", "job", "a")
    with pytest.raises(errors.UsageError, match="2049 bytes"):
        store.claim([ask(key)], NOW)
