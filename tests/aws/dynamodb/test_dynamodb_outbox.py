"""The outbox in DynamoDB: an item of the program's own TransactWriteItems, passed on once, whatever is killed."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

import onefold
from onefold import errors
from onefold.admin.outbox import create
from onefold.cli import main
from onefold.engines.urls import open_outbox
from tests.run.outbox_shop import OutboxShop, nothing

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
_NUMBERS = itertools.count()
_ORDERS: Any = {
    "TableName": "shop_order",
    "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
    "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
    "BillingMode": "PAY_PER_REQUEST",
}


@pytest.fixture(params=["ministack", "moto"])
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The endpoint, with an empty table of orders."""
    url: str = request.getfixturevalue(request.param)
    with closing(boto3.client("dynamodb", endpoint_url=url)) as client:
        client.create_table(**_ORDERS)
        yield url
        client.delete_table(TableName="shop_order")


@pytest.fixture
def url(server: str) -> str:
    made = f"dynamodb://eu-west-1/outbox-{next(_NUMBERS)}?endpoint={server}"
    assert main.run(["outbox", "create", made]) == 0
    return made


@pytest.fixture
def shop(url: str, tmp_path: Path) -> Iterator[OutboxShop]:
    one = OutboxShop(f"sqlite:///{tmp_path / 'engine.db'}", url)
    yield one
    one.app.close()


@pytest.fixture
def client(server: str) -> Iterator[Any]:
    with closing(boto3.client("dynamodb", endpoint_url=server)) as one:
        yield one


def order(name: str) -> Any:
    put = {"TableName": "shop_order", "Item": {"id": {"S": name}}, "ConditionExpression": "attribute_not_exists(id)"}
    return {"Put": put}


def orders(client: Any) -> list[str]:
    return sorted(item["id"]["S"] for item in client.scan(TableName="shop_order", ConsistentRead=True)["Items"])


def pass_on(shop: OutboxShop) -> int:
    relay = shop.relay()
    try:
        return relay.check()
    finally:
        relay.close()


def test_both_or_neither(shop: OutboxShop, client: Any) -> None:
    client.transact_write_items(TransactItems=[order("o-1"), shop.ship.outbox_item({"id": "o-1"})])
    with pytest.raises(ClientError, match="ConditionalCheckFailed"):
        client.transact_write_items(TransactItems=[order("o-1"), shop.ship.outbox_item({"id": "o-2"})])
    again = [shop.ship.outbox_item({"id": "o-3"})]
    for _ in range(2):  # one whose answer was lost, made again
        client.transact_write_items(TransactItems=again)
    assert pass_on(shop) == 2
    assert (shop.waiting(), orders(client)) == (["o-1", "o-3"], ["o-1"])
    assert pass_on(shop) == 0


def test_a_group_keeps_its_order(shop: OutboxShop, client: Any) -> None:
    ids = [f"o-{number}" for number in range(60)]
    for start in range(0, 60, 20):
        client.transact_write_items(
            TransactItems=[shop.pack.outbox_item({"id": one, "customer": "c"}) for one in ids[start : start + 20]]
        )
    client.transact_write_items(TransactItems=[shop.ship.outbox_item({"id": one}) for one in ids[:20]])
    table = open_outbox(shop.outbox_url)
    assert table.backlog("shop").waiting == 80
    assert [one.queue for one in table.waiting("shop", ["groups.fifo"], 3)] == ["groups.fifo"] * 3
    table.close()
    assert pass_on(shop) == 80
    assert shop.waiting("groups.fifo") == ids
    assert sorted(shop.waiting()) == sorted(ids[:20])


def test_what_a_queue_refuses_is_put_aside(shop: OutboxShop, client: Any) -> None:
    shop.invoice.send({"id": "o-1", "pence": 5})
    items = [shop.invoice.outbox_item({"id": "o-1", "pence": 6}), shop.ship.outbox_item({"id": "o-2"})]
    client.transact_write_items(TransactItems=items)
    assert pass_on(shop) == 1
    assert "outbox-refused" in shop.heard.names()
    table = open_outbox(shop.outbox_url)
    found = table.backlog("shop")
    table.close()
    assert (found.waiting, found.oldest_age_ms, found.refused) == (0, None, 1)
    assert pass_on(shop) == 0


def test_a_table_that_is_not_there_or_another(
    shop: OutboxShop, client: Any, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create(shop.outbox_url, run=True)  # twice does no harm
    marker = {"pk": {"S": "~outbox"}, "sk": {"S": "~outbox"}, "version": {"N": "2"}, "token": {"S": "t"}}
    client.put_item(TableName=shop.outbox_url.partition("1/")[2].partition("?")[0], Item=marker)
    with pytest.raises(errors.StorageError, match="not have version 1"):
        pass_on(shop)
    missing = open_outbox(f"dynamodb://eu-west-1/nothing?endpoint={server}")
    with pytest.raises(errors.StorageError, match="does not exist, or is not an outbox") as caught:
        _ = missing.token
    assert "onefold outbox create" in caught.value.todo
    missing.close()
    capsys.readouterr()
    assert main.run(["outbox", "create", "dynamodb://eu-west-1/nothing", "--print"]) == 0
    assert json.loads(capsys.readouterr().out)["TableName"] == "nothing"


def test_what_cannot_be_an_item(shop: OutboxShop, tmp_path: Path) -> None:
    with pytest.raises(errors.PayloadError, match="an item in DynamoDB"):
        shop.ship.outbox_item({"id": "o-1", "text": "x" * 400_000})
    other = onefold.App("shop", url=f"sqlite:///{tmp_path / 'engine.db'}", outbox="postgresql://localhost/shop")
    ship = other.job(other.queue("orders"), key="{id}", name="ship")(nothing)
    with pytest.raises(errors.UsageError, match="accepts rows, not items"):
        ship.outbox_item({"id": "o-1"})


def test_a_program_and_its_relay_killed_anywhere_lose_nothing_and_repeat_nothing(
    url: str, server: str, client: Any, tmp_path: Path
) -> None:
    """The victim sells in one transaction and relays; it is killed before each call to DynamoDB in turn."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.crash.outbox_victim", "dynamodb", url, str(tmp_path / "engine.db")],
        cwd=ROOT, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    *killed, last = [json.loads(line) for line in told.stdout.splitlines()]
    assert not last["died"]
    assert {"sell TransactWriteItems", "relay Query", "relay BatchWriteItem"} <= {one["at"] for one in killed}
    sold = sorted(orders(client), key=lambda name: int(name[2:]))
    assert any(one["name"] not in sold for one in killed)
    shop = OutboxShop(f"sqlite:///{tmp_path / 'engine.db'}", url)
    pass_on(shop)
    assert sorted(shop.waiting()) == sorted(sold)
    assert shop.waiting("groups.fifo") == sold
    table = open_outbox(url)
    assert table.backlog("shop").waiting == 0
    table.close()
    shop.app.close()
