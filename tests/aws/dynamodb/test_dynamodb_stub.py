"""The stub answers what ministack answers, where ministack is right; and refuses what it does not know."""

from __future__ import annotations

from typing import Any

import botocore.exceptions
import pytest

from onefold.engines.aws.dynamodb.backend import DynamoBackend
from tests.aws.dynamodb.tables import OpenBooks
from tests.emulators import dynamodb_stub

# As Powertools for AWS Lambda sends them (idempotency/persistence/dynamodb.py, 3.37.0).
PUT: dict[str, Any] = {
    "ConditionExpression": "(attribute_not_exists(#id) OR #expiry < :now OR (#status = :inprogress AND"
    " attribute_exists(#in_progress_expiry) AND #in_progress_expiry < :now_in_millis))",
    "ExpressionAttributeNames": {
        "#id": "id", "#expiry": "expiration", "#in_progress_expiry": "in_progress_expiration", "#status": "status",
    },
    "ExpressionAttributeValues": {
        ":now": {"N": "100"}, ":now_in_millis": {"N": "100000"}, ":inprogress": {"S": "INPROGRESS"},
    },
    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
}  # fmt: skip
UPDATE: dict[str, Any] = {
    "UpdateExpression": "SET #response_data = :response_data, #expiry = :expiry, #status = :status",
    "ExpressionAttributeValues": {
        ":expiry": {"N": "3700"}, ":response_data": {"S": "{}"}, ":status": {"S": "COMPLETED"},
    },
    "ExpressionAttributeNames": {"#expiry": "expiration", "#response_data": "data", "#status": "status"},
}  # fmt: skip


class Place:
    """A table as Powertools has it: one text key `id`."""

    def __init__(self, books: DynamoBackend) -> None:
        self.client = books.table.client
        self.table = f"{books.table.name}-powertools"
        self.client.create_table(
            TableName=self.table,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )


@pytest.fixture(params=["ministack", "stub"])
def place(request: pytest.FixtureRequest, open_books: OpenBooks) -> Place:
    server = request.getfixturevalue(request.param)
    return Place(open_books(server if isinstance(server, str) else server.url))


def test_powertools_claims_and_completes(place: Place) -> None:
    client, table = place.client, place.table

    def claim(expiration: int, running_until: int | None = None) -> dict[str, Any] | None:
        item = {"id": {"S": "a"}, "expiration": {"N": str(expiration)}, "status": {"S": "INPROGRESS"}}
        if running_until is not None:
            item["in_progress_expiration"] = {"N": str(running_until)}
        try:
            client.put_item(TableName=table, Item=item, **PUT)
        except client.exceptions.ConditionalCheckFailedException as error:
            old: dict[str, Any] = error.response["Item"]
            return old
        return None

    assert claim(200, 99_999) is None
    assert claim(200, 100_000) is None  # the first had run out of time
    running = claim(200)
    assert running is not None
    assert running["in_progress_expiration"] == {"N": "100000"}
    client.update_item(TableName=table, Key={"id": {"S": "a"}}, **UPDATE)
    done = claim(200)
    assert done is not None
    assert (done["status"], done["data"]) == ({"S": "COMPLETED"}, {"S": "{}"})
    client.delete_item(TableName=table, Key={"id": {"S": "a"}})
    assert "Item" not in client.get_item(TableName=table, Key={"id": {"S": "a"}})
    assert claim(99) is None
    assert claim(200) is None  # the last had expired


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("n = :five", True),
        ("n <> :five", False),
        ("n < :six AND n <= :five AND :five >= n AND NOT n > :five", True),
        ("n = :text OR (s = :text AND attribute_exists(s))", True),
        ("attribute_not_exists(s)", False),
        ("nothing = :five", False),
        ("s < :five", False),
    ],
)
def test_conditions(place: Place, condition: str, holds: bool) -> None:
    client, table = place.client, place.table
    item = {"id": {"S": "a"}, "n": {"N": "5.0"}, "s": {"S": "x"}}
    client.put_item(TableName=table, Item=item)
    known = {":five": {"N": "5"}, ":six": {"N": "6"}, ":text": {"S": "x"}}
    values = {name: value for name, value in known.items() if name in condition}
    change: dict[str, Any] = {
        "UpdateExpression": "SET m = if_not_exists(m, :zero) + :one REMOVE s",
        "ConditionExpression": condition,
        "ExpressionAttributeValues": {**values, ":zero": {"N": "0"}, ":one": {"N": "1"}},
    }
    if not values:
        del change["ExpressionAttributeValues"]
        change["UpdateExpression"] = "REMOVE s"
    try:
        client.update_item(TableName=table, Key={"id": {"S": "a"}}, **change)
        took = True
    except client.exceptions.ConditionalCheckFailedException:
        took = False
    assert took == holds
    found = client.get_item(TableName=table, Key={"id": {"S": "a"}})["Item"]
    assert ("s" in found) != holds
    assert found.get("m") == ({"N": "1"} if holds and values else None)


def test_what_the_stub_does_not_know_it_refuses(stub: dynamodb_stub.Stub, open_books: OpenBooks) -> None:
    table = open_books(stub.url).table
    with pytest.raises(botocore.exceptions.ClientError, match="UnknownOperationException"):
        table.client.query(TableName=table.name)
    with pytest.raises(botocore.exceptions.ClientError, match="ValidationException"):
        table.client.scan(TableName=table.name)
    key = {"pk": {"S": "a"}, "sk": {"S": "b"}}
    for request in (
        {"UpdateExpression": "ADD n :one", "ExpressionAttributeValues": {":one": {"N": "1"}}},
        {"UpdateExpression": "SET n = list_append(n, n)"},
    ):
        with pytest.raises(botocore.exceptions.ClientError, match="ValidationException"):
            table.client.update_item(TableName=table.name, Key=key, **request)
    condition = {"ConditionExpression": "begins_with(n, :x)", "ExpressionAttributeValues": {":x": {"S": "x"}}}
    with pytest.raises(botocore.exceptions.ClientError, match="ValidationException"):
        table.client.put_item(TableName=table.name, Item=key, **condition)


def test_as_a_process_it_adds_latency_and_counts_calls(open_books: OpenBooks) -> None:
    with dynamodb_stub.process(latency_ms=1) as url:
        books = open_books(url, create=False)
        books.create()
        assert books.check() == []
        assert dynamodb_stub.calls_of(url)["DescribeTable"] == 2
        dynamodb_stub.forget_calls(url)
        assert dynamodb_stub.calls_of(url) == {}
