"""The model of `onefold cost` against real calls of boto3, counted: SQS adapter, DynamoDB store and Lambda handler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

import onefold
from onefold.observe import cost
from onefold.observe.cost import Path, Traffic, Way
from onefold.runner import executors, lambda_invocation
from tests.emulators import servers
from tests.observe.counting import Counting

REGION = "eu-west-1"
BATCH = 10


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with servers.ministack() as url:
        yield url


class Context:
    """What Lambda tells a handler: plenty of time."""

    def get_remaining_time_in_millis(self) -> int:
        return 60_000


class Mapped:
    """An app whose queue a mapping works on; the mapping is this test, with a client that is not counted."""

    def __init__(self, name: str, endpoint: str, **handler: Any) -> None:
        url = f"aws://{REGION}?table={name}&prefix={name}-&endpoint={endpoint}&create=yes"
        self.app = onefold.App(name, url=url)
        self.fails: set[str] = set()
        orders = self.app.queue("orders", visibility="6m")

        def book(order: dict[str, str]) -> str:
            if order["id"] in self.fails:
                raise onefold.TransientError("not now")
            return "x" * 198

        retry = onefold.Retry(base="1s", jitter="none")
        self.book = self.app.job(orders, key="{id}", effect=handler.pop("effect", "repeatable"), retry=retry)(book)
        self.handler = self.app.lambda_handler(**handler)
        self.app.runtime()
        self._sqs = boto3.client("sqs", REGION, endpoint_url=endpoint)
        self._queue = self._sqs.get_queue_url(QueueName=f"{name}-orders")["QueueUrl"]
        self._arn = f"arn:aws:sqs:{REGION}:000000000000:{name}-orders"

    def send(self, names: str) -> list[str]:
        """Send a batch of messages, one call each; their ids."""
        ids = [f"{names}-{number:0{39 - len(names)}d}" for number in range(BATCH)]
        for one in ids:
            self.book.send({"id": one})
        return ids

    def warm(self) -> None:
        """The first invocation of a container learns how long handlers take; its first row of a day names the day.

        A look for people writes how many runs completed: one item for each second they ended in, and none waits after it.
        """
        for _ in range(2):
            self.book.send({"id": "warm"})
            self.deliver(1)
        self.app.runtime().engine.records.count_completed(0, 1)

    def deliver(self, count: int = BATCH) -> dict[str, Any]:
        """Receive so many messages, hand them to the handler as one event, delete what it does not name."""
        records: list[dict[str, Any]] = []
        while len(records) < count:
            got = self._sqs.receive_message(
                QueueUrl=self._queue, MaxNumberOfMessages=10, WaitTimeSeconds=2,
                MessageSystemAttributeNames=["All"], MessageAttributeNames=["All"],
            ).get("Messages", [])  # fmt: skip
            assert got, f"{len(records)} of {count} messages came"
            records += [self._record(one) for one in got]
        answer = self.handler({"Records": records}, Context())
        failed = {one["itemIdentifier"] for one in answer["batchItemFailures"]}
        for one in records:
            if one["messageId"] not in failed:
                self._sqs.delete_message(QueueUrl=self._queue, ReceiptHandle=one["receiptHandle"])
        return answer

    def _record(self, message: dict[str, Any]) -> dict[str, Any]:
        attributes = {
            name: {
                "stringValue": value["StringValue"],
                "dataType": value["DataType"],
                "stringListValues": [],
                "binaryListValues": [],
            }
            for name, value in message.get("MessageAttributes", {}).items()
        }
        return {
            "messageId": message["MessageId"], "receiptHandle": message["ReceiptHandle"], "body": message["Body"],
            "attributes": message["Attributes"], "messageAttributes": attributes, "md5OfBody": message["MD5OfBody"],
            "eventSource": "aws:sqs", "eventSourceARN": self._arn, "awsRegion": REGION,
        }  # fmt: skip


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    for name, value in servers.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return Counting(monkeypatch)


TRAFFIC = Traffic(batch=BATCH, again_batch=BATCH, key_bytes=40, result_bytes=200)
# Where ministack differs from AWS: errors of its batch statements hold no old item, which costs a read of ten units.
WITHOUT_OLD_ITEMS = Counter({"dynamodb:BatchGetItem": 1})


def modelled(*paths: Path) -> Counter[str]:
    """What the model says a batch makes of calls in the function: without sending and without Lambda's own pollers."""
    way = Way(queue="orders", keep_ms=1)
    sums: Counter[str] = Counter()
    for path in paths:
        for name, count in cost.usage(path, way, TRAFFIC).calls.items():
            if name not in ("sqs:SendMessageBatch", "sqs:ReceiveMessage", "sqs:DeleteMessageBatch"):
                sums[name] += round(count * BATCH)
    return +sums


def is_about(consumed: float, expected: float) -> bool:
    """Runs are counted by an item for ten of them, written a batch later, and one for each second that they end in."""
    counter = BATCH / cost.COUNTED_RUNS
    return expected - counter <= consumed <= expected + counter


def write_units(path: Path) -> float:
    return cost.usage(path, Way(queue="orders"), TRAFFIC).write_units * BATCH


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model counts a batch that is settled at once; on a machine that stalls for 5 ms it is settled in parts."""
    for module, name in (
        (executors, "COMMIT_WITHIN_MS"), (lambda_invocation, "COMMIT_WITHIN_MS"), (lambda_invocation, "GROUP_MS"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 600_000)


@pytest.mark.slow
@pytest.mark.usefixtures("unhurried")
def test_first_delivery_duplicate_and_retry_make_the_calls_of_the_model(endpoint: str, counting: Counting) -> None:
    mapped = Mapped("counted", endpoint, concurrency=1)
    mapped.warm()
    counting.forget()
    mapped.send("one")
    assert counting.calls == {"sqs:SendMessageBatch": BATCH}

    counting.forget()
    assert mapped.deliver() == {"batchItemFailures": []}
    assert counting.calls == modelled("first")
    assert is_about(counting.consumed, write_units("first")), (counting.consumed, counting.calls)

    mapped.send("one")
    counting.forget()
    assert mapped.deliver() == {"batchItemFailures": []}
    assert counting.calls == modelled("duplicate") + WITHOUT_OLD_ITEMS
    refused, read = BATCH, BATCH  # units of refused writes are not reported, those of the read are
    assert is_about(counting.consumed, write_units("duplicate") - refused + read)

    mapped.fails = set(mapped.send("two"))
    counting.forget()
    assert len(mapped.deliver()["batchItemFailures"]) == BATCH
    mapped.fails = set()
    assert mapped.deliver() == {"batchItemFailures": []}
    assert counting.calls == modelled("retry") + WITHOUT_OLD_ITEMS
    assert is_about(counting.consumed, write_units("retry") - refused + read)
    mapped.app.close()


@pytest.mark.slow
def test_effects_outside_are_settled_as_they_end_for_the_same_units(endpoint: str, counting: Counting) -> None:
    """Handlers in threads end one by one: at most one call for each record instead of one for all, and no unit more."""
    mapped = Mapped("outside", endpoint, effect="external")
    mapped.warm()
    mapped.send("one")
    counting.forget()
    assert mapped.deliver() == {"batchItemFailures": []}
    assert set(counting.calls) <= {"dynamodb:BatchExecuteStatement", "dynamodb:UpdateItem"}, counting.calls
    assert modelled("first").total() <= counting.calls.total() <= 1 + BATCH, counting.calls
    assert is_about(counting.consumed, write_units("first")), (counting.consumed, counting.calls)
    mapped.app.close()


@pytest.mark.slow
def test_a_worker_makes_one_call_to_receive_and_one_to_delete_a_batch(endpoint: str, counting: Counting) -> None:
    mapped = Mapped("resident", endpoint, concurrency=1)
    mapped.book.send_many({"id": f"{number}"} for number in range(BATCH))
    assert counting.calls["sqs:SendMessageBatch"] == 1
    queue = mapped.app.runtime().engine.queues.open("orders")
    counting.forget()
    deliveries = queue.receive(BATCH)
    assert len(deliveries) == BATCH
    assert queue.delete([one.receipt for one in deliveries]) == [True] * BATCH
    assert counting.calls == {"sqs:ReceiveMessage": 1, "sqs:DeleteMessageBatch": 1}
    mapped.app.close()
