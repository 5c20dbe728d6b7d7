"""The table that onefold needs: made on request, looked at, and every way in which it can be wrong is said clearly."""

from __future__ import annotations

from typing import Any

import pytest

from onefold import errors
from onefold.engines.aws.dynamodb.backend import DynamoBackend
from onefold.engines.aws.session import Session
from onefold.entropy import SeededEntropy
from tests.aws.dynamodb.tables import HastyClock, OpenBooks
from tests.emulators.dynamodb_stub import Stub, error_body


@pytest.fixture(params=["ministack", "moto"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


def test_a_table_is_made_once_with_time_to_live(url: str, open_books: OpenBooks) -> None:
    books = open_books(url, create=False)
    books.create()
    books.create()
    assert books.check() == []
    told = books.table.client.describe_time_to_live(TableName=books.table.name)["TimeToLiveDescription"]
    assert (told["TimeToLiveStatus"], told["AttributeName"]) == ("ENABLED", "ttl")
    table = books.table.client.describe_table(TableName=books.table.name)["Table"]
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"


def test_a_table_without_time_to_live_is_warned_about(url: str, open_books: OpenBooks) -> None:
    books = open_books(url)
    (warning,) = books.check()
    assert "does not remove old items" in warning
    assert "'ttl'" in warning


def test_time_to_live_by_another_attribute_is_warned_about(url: str, open_books: OpenBooks) -> None:
    books = open_books(url)
    other = {"Enabled": True, "AttributeName": "expiration"}
    books.table.client.update_time_to_live(TableName=books.table.name, TimeToLiveSpecification=other)
    (warning,) = books.check()
    assert "by the attribute 'expiration'" in warning


def test_a_missing_table_is_an_error_that_names_it(url: str, open_books: OpenBooks) -> None:
    with pytest.raises(
        errors.NotFoundError, match=r"arn:aws:dynamodb:eu-west-1:\*:table/none does not exist"
    ) as caught:
        open_books(url, table="none", create=False).check()
    assert "region" in caught.value.todo


def test_a_table_of_another_region_is_a_missing_one(moto: str, open_books: OpenBooks) -> None:
    name = open_books(moto).table.name
    elsewhere = Session("us-east-2", {"*": moto})
    books = DynamoBackend(elsewhere, name, HastyClock(), SeededEntropy(0))
    with pytest.raises(errors.NotFoundError, match="us-east-2"):
        books.check()
    elsewhere.close()


@pytest.mark.parametrize(
    ("keys", "types"),
    [
        ([("id", "HASH")], {"id": "S"}),
        ([("pk", "HASH")], {"pk": "S"}),
        ([("sk", "HASH"), ("pk", "RANGE")], {"pk": "S", "sk": "S"}),
        ([("pk", "HASH"), ("sk", "RANGE")], {"pk": "S", "sk": "N"}),
    ],
)
def test_another_primary_key_is_refused(
    url: str, open_books: OpenBooks, keys: list[tuple[str, str]], types: dict[str, str]
) -> None:
    books = open_books(url, create=False)
    books.table.bare().client.create_table(
        TableName=books.table.name,
        KeySchema=[{"AttributeName": name, "KeyType": role} for name, role in keys],
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": kind} for name, kind in types.items()],
        BillingMode="PAY_PER_REQUEST",
    )
    with pytest.raises(errors.StorageError, match=r"has the primary key .*needs pk \(S, HASH\) and sk \(S, RANGE\)"):
        books.check()


def test_a_denied_look_at_time_to_live_is_a_warning(stub: Stub, open_books: OpenBooks) -> None:
    books = open_books(stub.url)

    def deny(operation: str, _: dict[str, Any], carry_out: Any) -> Any:
        if operation == "DescribeTimeToLive":
            return 400, error_body("AccessDeniedException", "no")
        return carry_out()

    stub.interfere = deny
    (warning,) = books.check()
    assert "AWS does not allow dynamodb:DescribeTimeToLive" in warning


def test_a_table_that_is_being_deleted_is_refused(stub: Stub, open_books: OpenBooks) -> None:
    books = open_books(stub.url)
    stub.store.tables[books.table.name]["TableStatus"] = "DELETING"
    with pytest.raises(errors.StorageError, match="is DELETING"):
        books.check()


def test_a_table_that_never_becomes_ready_is_given_up(stub: Stub, open_books: OpenBooks) -> None:
    books = open_books(stub.url)
    stub.store.tables[books.table.name]["TableStatus"] = "CREATING"
    with pytest.raises(errors.TransientError, match="still being created"):
        books.create()


def test_no_credentials_are_said(stub: Stub, open_books: OpenBooks, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(errors.UsageError, match="no AWS credentials for dynamodb:DescribeTable"):
        open_books(stub.url, create=False, boto=None).check()
