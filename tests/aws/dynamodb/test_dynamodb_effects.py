"""Level 4 on DynamoDB: the handler's own writes and its record in one transaction. On ministack, which has real ones.

moto knows TransactWriteItems but no client tokens; where tokens do not matter, both run.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from onefold import errors
from onefold.contracts.commit import Settlement, Verdict
from onefold.contracts.ledger import Row
from onefold.contracts.queue import Leave
from onefold.contracts.state import Change
from onefold.contracts.store import Claimed, Completed, Hold
from onefold.engines.aws.dynamodb.backend import DynamoBackend
from onefold.engines.aws.dynamodb.items import item_key_of
from onefold.runner.context import Context
from onefold.testing.records import KEY, LEASE_MS, NOW, ask, complete
from tests.aws.dynamodb.tables import OpenBooks

ROW = Row(at_ms=NOW, event="completed", key=KEY, run="r")


@pytest.fixture(params=[("ministack", 1), ("moto", 1), ("ministack", 2)], ids=["ministack", "moto", "spread"])
def books(request: pytest.FixtureRequest, open_books: OpenBooks) -> DynamoBackend:
    server, layout = request.param
    return prepared(open_books(request.getfixturevalue(server), batched=server != "moto", layout=layout))


def prepared(books: DynamoBackend) -> DynamoBackend:
    """The backend with a table of the job's own beside it."""
    books.table.client.create_table(
        TableName=own(books),
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    return books


def own(books: DynamoBackend) -> str:
    return f"{books.table.name}-own"


def claim(books: DynamoBackend, owner: str = "A", at_ms: int = NOW) -> Hold:
    (answer,) = books.store.claim([ask(KEY, owner, at_ms=at_ms)], at_ms)
    assert isinstance(answer, Claimed)
    return answer.hold


def settlement(hold: Hold, **parts: Any) -> Settlement:
    return Settlement(write=(hold, complete()), queue=None, receipt=None, settle=Leave(), **parts)


def put(books: DynamoBackend, **attributes: Any) -> dict[str, Any]:
    return {"Put": {"TableName": own(books), "Item": attributes}}


def stored(books: DynamoBackend, name: str) -> dict[str, Any] | None:
    answer = books.table.client.get_item(TableName=own(books), Key={"id": {"S": name}}, ConsistentRead=True)
    found: dict[str, Any] | None = answer.get("Item")
    return found


def test_own_writes_record_and_history_are_written_together(books: DynamoBackend) -> None:
    hold = claim(books)
    effects = books.effects(1_000)
    collector = effects.open()
    assert effects.open() is collector
    collector.transact(
        put(books, id="i-1", total=Decimal("9.25"), tags=["a", None], paid=True, raw={"S": "own form"}),
        {
            "Update": {
                "TableName": own(books),
                "Key": {"id": "sum"},
                "UpdateExpression": "ADD amount :one",
                "ExpressionAttributeValues": {":one": 1},
            }
        },
    )
    assert stored(books, "i-1") is None
    changes = (Change("breaker", b"1", 0), Change("breaker", b"2", 7))
    assert effects.finish(settlement(hold, rows=(ROW,), changes=changes), NOW) == Verdict(True, True)
    effects.commit()
    assert stored(books, "i-1") == {
        "id": {"S": "i-1"},
        "total": {"N": "9.25"},
        "tags": {"L": [{"S": "a"}, {"NULL": True}]},
        "paid": {"BOOL": True},
        "raw": {"S": "own form"},
    }
    assert stored(books, "sum") == {"id": {"S": "sum"}, "amount": {"N": "1"}}
    assert isinstance(books.store.claim([ask(KEY, "B")], NOW)[0], Completed)
    assert books.ledger.of_key(KEY) == books.ledger.of_run("r") == books.ledger.between(NOW, NOW + 1) == [ROW]
    (value,) = books.state.get(["breaker"])
    assert value is not None
    assert value.value == b"1"


def test_a_lost_lease_takes_the_own_writes_with_it(books: DynamoBackend) -> None:
    late = claim(books)
    claim(books, "B", NOW + LEASE_MS)
    effects = books.effects(1_000)
    effects.open().transact(put(books, id="i-1"))
    assert effects.finish(settlement(late, rows=(ROW,)), NOW) == Verdict(False, False)
    assert stored(books, "i-1") is None
    assert books.ledger.of_key(KEY) == []


def test_a_condition_of_the_handlers_own_is_named_and_takes_the_record_with_it(books: DynamoBackend) -> None:
    hold = claim(books)
    effects = books.effects(1_000)
    once = {"ConditionExpression": "attribute_not_exists(id)"}
    books.table.client.put_item(TableName=own(books), Item={"id": {"S": "i-2"}})
    effects.open().transact(put(books, id="i-1"), {"Put": {"TableName": own(books), "Item": {"id": "i-2"}, **once}})
    with pytest.raises(
        errors.PermanentError, match=r"action 2 \(Put in table .*-own\) did not hold: attribute_not_exists"
    ):
        effects.finish(settlement(hold), NOW)
    assert stored(books, "i-1") is None
    (record,) = books.store.read([KEY], NOW)
    assert record is not None
    assert record.status == "in_progress"


def test_what_was_undone_is_not_written(books: DynamoBackend) -> None:
    hold = claim(books)
    effects = books.effects(1_000)
    effects.open().transact(put(books, id="i-1"))
    effects.undo()
    effects.open().transact(put(books, id="i-2"))
    assert effects.finish(settlement(hold), NOW).written
    effects.open().transact(put(books, id="i-3"))
    effects.rollback()
    effects.commit()
    assert [stored(books, name) is not None for name in ("i-1", "i-2", "i-3")] == [False, True, False]


def test_finishing_again_finds_that_it_was_done(books: DynamoBackend) -> None:
    hold = claim(books)
    effects = books.effects(1_000)
    for at_ms in (NOW, NOW + 5):  # the second time has other instants: to AWS a mismatch of the token's parameters
        effects.open().transact(put(books, id="i-1"))
        assert effects.finish(settlement(hold, rows=(ROW,)), at_ms).written
    assert books.ledger.of_key(KEY) == [ROW]


def test_a_token_of_a_record_that_was_deleted_by_hand_stops_nobody(ministack: str, open_books: OpenBooks) -> None:
    books = prepared(open_books(ministack))
    for number in (1, 2):
        hold = claim(books)
        assert hold.fence == 1
        effects = books.effects(1_000)
        effects.open().transact(put(books, id=f"i-{number}"))
        assert effects.finish(settlement(hold), NOW + number).written
        books.table.client.delete_item(TableName=books.table.name, Key=item_key_of(KEY, books.table.layout))
    assert stored(books, "i-2") is not None


def test_a_transaction_whose_answer_was_lost_is_sent_again_with_its_token(
    ministack: str, open_books: OpenBooks
) -> None:
    books = prepared(open_books(ministack))
    hold = claim(books)
    client = books.table.client
    effects = books.effects(1_000)
    effects.open().transact(
        {
            "Update": {
                "TableName": own(books),
                "Key": {"id": "sum"},
                "UpdateExpression": "ADD amount :one",
                "ExpressionAttributeValues": {":one": 1},
            }
        }
    )
    plain = client.transact_write_items

    def twice(**request: Any) -> Any:
        plain(**request)
        return plain(**request)

    client.transact_write_items = twice
    assert effects.finish(settlement(hold), NOW).written
    assert stored(books, "sum") == {"id": {"S": "sum"}, "amount": {"N": "1"}}


def test_what_cannot_be_an_action_is_refused_and_nothing_added(books: DynamoBackend) -> None:
    collector = books.effects(1_000).open()
    good = put(books, id="i-1")
    for bad, said in (
        ({"Insert": {}}, "with the names ['Insert']"),
        ({**good, "Delete": {}}, "with the names ['Delete', 'Put']"),
        (put(books, id="i-2", total=1.5), "Float types are not supported"),
        (put(books, id="i-2", total=object()), "Unsupported type"),
        ({"Put": {"TableName": books.table.name, "Item": {"pk": "a", "sk": "b"}}}, "the table of onefold itself"),
    ):
        with pytest.raises(errors.UsageError) as caught:
            collector.transact(good, bad)
        assert said in str(caught.value)
    assert collector.actions == []
    collector.transact(*[put(books, id=f"i-{number}") for number in range(80)])
    with pytest.raises(errors.UsageError, match="81 actions in one run"):
        collector.transact(good)


def test_a_denied_transaction_names_every_permission(books: DynamoBackend) -> None:
    hold = claim(books)
    client = books.table.client

    def deny(**_: Any) -> None:
        raise client.exceptions.ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "X")

    client.transact_write_items = deny
    effects = books.effects(1_000)
    effects.open().transact({"Delete": {"TableName": own(books), "Key": {"id": "a"}}})
    with pytest.raises(errors.UsageError) as caught:
        effects.finish(settlement(hold, rows=(ROW,)), NOW)
    wanted = "Add the action dynamodb:DeleteItem and dynamodb:PutItem and dynamodb:UpdateItem on the tables"
    assert caught.value.todo.startswith(f"{wanted} {books.table.name}, {own(books)}")


def test_history_that_has_no_room_in_the_transaction_follows_it(books: DynamoBackend) -> None:
    hold = claim(books)
    effects = books.effects(1_000)
    effects.open().transact(*[put(books, id=f"i-{number}") for number in range(80)])
    rows = tuple(Row(at_ms=NOW + number, event=f"{number}", key=KEY, run="r") for number in range(10))
    assert effects.finish(settlement(hold, rows=rows), NOW).written
    assert books.ledger.of_key(KEY) == list(rows)
    assert books.ledger.of_run("r") == list(rows)


def test_a_table_that_is_not_there_is_said(books: DynamoBackend) -> None:
    hold = claim(books)
    effects = books.effects(1_000)
    effects.open().transact({"Put": {"TableName": "no-such-table", "Item": {"id": "i-1"}}})
    with pytest.raises(errors.UsageError):
        effects.finish(settlement(hold), NOW)
    (record,) = books.store.read([KEY], NOW)
    assert record is not None
    assert record.status == "in_progress"


def test_a_transaction_that_meets_another_is_tried_again(ministack: str, open_books: OpenBooks) -> None:
    books = prepared(open_books(ministack))
    hold = claim(books)
    client = books.table.client
    plain, met = client.transact_write_items, []

    def meets_others(**request: Any) -> Any:
        met.append(request["ClientRequestToken"])
        if len(met) < 3:
            answer = {
                "Error": {"Code": "TransactionCanceledException", "Message": "..."},
                "CancellationReasons": [{"Code": "None"}, {"Code": "TransactionConflict"}],
            }
            raise client.exceptions.TransactionCanceledException(answer, "TransactWriteItems")
        return plain(**request)

    client.transact_write_items = meets_others
    effects = books.effects(1_000)
    effects.open().transact(put(books, id="i-1"))
    assert effects.finish(settlement(hold), NOW).written
    assert (len(met), len(set(met)), len(met[0])) == (3, 1, 36)
    assert stored(books, "i-1") is not None


# -- the handler's side ------------------------------------------------------------------------------------------------


def context(effects: Any) -> Context:
    return Context(
        Hold(KEY, "A", 1), attempt=1, attempts_max=3, message=None, clock=None, entropy=None,  # type: ignore[arg-type]
        deadline_ms=None, effects=effects,
    )  # fmt: skip


def test_a_handler_collects_through_its_context(books: DynamoBackend) -> None:
    effects = books.effects(1_000)
    ctx = context(effects)
    assert not ctx.used_connection
    ctx.transact(put(books, id="i-1"), put(books, id="i-2"))
    ctx.transact(put(books, id="i-3"))
    assert ctx.used_connection
    assert len(effects.open().actions) == 3


def test_transact_without_a_dynamodb_transaction_is_refused(books: DynamoBackend) -> None:
    with pytest.raises(errors.UsageError, match="has no DynamoDB transaction"):
        context(None).transact(put(books, id="i-1"))
    with pytest.raises(errors.UsageError, match=r"to ctx\.transact"):
        _ = context(books.effects(1_000)).connection
