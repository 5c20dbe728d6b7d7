"""Jobs with queues on SQS and records in DynamoDB, at level 4: what they write stands if and only if they are done.

On ministack, which has queues and real transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import onefold
from onefold.engines.aws.session import Session
from tests.run.workshop import finished


class Order(msgspec.Struct):
    id: str
    total: int


@pytest.fixture
def client(ministack: str) -> Iterator[Any]:
    session = Session("eu-west-1", {"*": ministack})
    yield session.client("dynamodb")
    session.close()


@pytest.fixture
def app(ministack: str, request: pytest.FixtureRequest) -> Iterator[onefold.App]:
    app = onefold.App(
        "shop", url=f"aws://eu-west-1?table=jobs-{request.node.name[:40]}&create=yes&endpoint={ministack}"
    )
    yield app
    app.close()


def invoices(client: Any, name: str) -> dict[str, int]:
    return {one["id"]["S"]: int(one["total"]["N"]) for one in client.scan(TableName=name)["Items"]}


def test_own_writes_of_jobs_stand_with_their_records(app: onefold.App, client: Any) -> None:
    client.create_table(
        TableName="invoices",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    queue = app.queue("orders")

    @app.job(queue, key="{id}", effect="transactional", retry=onefold.Retry(attempts=1))
    def bill(order: Order, ctx: onefold.Context) -> int:
        item = {"id": order.id, "total": order.total}
        once = {"ConditionExpression": "attribute_not_exists(id)"}
        ctx.transact({"Put": {"TableName": "invoices", "Item": item, **once}})
        if order.total == 3:
            raise onefold.PermanentError("no such customer")
        if order.total == 4:
            ctx.transact({"Put": {"TableName": "invoices", "Item": {"id": "taken", "total": 0}, **once}})
        return order.total

    client.put_item(TableName="invoices", Item={"id": {"S": "taken"}, "total": {"N": "99"}})
    orders = [Order(f"o-{number}", number) for number in range(12)]
    bill.send_many([*orders, *orders[:5]])

    report, told = finished(app)

    assert invoices(client, "invoices") == {
        "taken": 99,
        **{f"o-{number}": number for number in range(12) if number not in (3, 4)},
    }
    assert (report.counts.completed, report.counts.duplicates) == (10, 3)
    reasons = {event.key.key: event.detail["summary"] for event in told.of("dead-letter") if event.key is not None}
    assert set(reasons) == {"o-3", "o-4"}
    assert "action 2 (Put in table invoices) did not hold" in str(reasons["o-4"])
    runtime = app.runtime()
    now_ms = runtime.clock.now_ms()
    assert runtime.engine.records.count_completed(now_ms - 600_000, now_ms) == {"bill": 10}
    (record,) = runtime.engine.records.find("o-7")
    assert (record.status, record.result) == ("completed", b"7")
