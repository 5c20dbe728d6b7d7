"""Messages that a mapping received: adopted from its event, buried from there, and forgotten when Lambda deletes them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import pytest

from onefold import errors
from onefold.contracts.entries import Entry
from onefold.contracts.queue import Attribute, Delivery, MoveTo
from onefold.contracts.settings import QueueSettings
from onefold.engines.aws.payloads import Payloads
from onefold.engines.aws.sqs import Sqs, SqsQueue
from onefold.engines.aws.sqs_admin import SqsQueues
from onefold.entropy import SystemEntropy
from onefold.manual_clock import ManualClock
from onefold.testing.endpoint import Endpoint
from tests.aws.sqs import rig

VISIBLE_MS = 30_000


class Bodies(Payloads):
    """Bodies in a dictionary, where S3 would have them."""

    def __init__(self, session: Any) -> None:
        super().__init__(session, "bodies", "", entropy=SystemEntropy())
        self.kept: dict[str, str] = {}

    def put(self, queue: str, body: str) -> str:
        key = f"{queue}/{len(self.kept):032x}"
        self.kept[key] = body
        return key

    def get(self, key: str) -> str | None:
        return self.kept.get(key)

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.kept.pop(key)


@pytest.fixture
def bodies(session: rig.HookedSession) -> Bodies:
    return Bodies(session)


@pytest.fixture
def queues(session: rig.HookedSession, clock: ManualClock, bodies: Bodies) -> SqsQueues:
    found = Sqs(session, clock=clock, entropy=SystemEntropy(), prefix="app-", payloads=bodies, wait_s=0).admin
    found.create(QueueSettings(name="dead", retention_ms=rig.FOURTEEN_DAYS))
    found.create(QueueSettings(name="orders", dead_letter="dead", receives_max=5))
    return found


def records(session: rig.HookedSession, endpoint: Endpoint) -> list[dict[str, Any]]:
    """What a mapping would hand over of the queue's messages."""
    client = session.client("sqs")
    url = client.get_queue_url(QueueName="app-orders")["QueueUrl"]
    answer = client.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], MessageSystemAttributeNames=["All"]
    )
    return [
        {
            "messageId": one["MessageId"],
            "receiptHandle": one["ReceiptHandle"],
            "body": one["Body"],
            "attributes": one["Attributes"],
            "messageAttributes": {
                name: {
                    "dataType": value["DataType"],
                    **(
                        {"binaryValue": base64.b64encode(value["BinaryValue"]).decode()}
                        if "BinaryValue" in value
                        else {"stringValue": value["StringValue"]}
                    ),
                    "stringListValues": [],
                    "binaryListValues": [],
                }
                for name, value in one.get("MessageAttributes", {}).items()
            },
            "eventSource": "aws:sqs",
            "eventSourceARN": f"arn:aws:sqs:{endpoint.region}:{endpoint.account}:app-orders",
            "awsRegion": endpoint.region,
        }
        for one in answer.get("Messages", ())
    ]


def adopted(queues: SqsQueues, session: rig.HookedSession, endpoint: Endpoint) -> tuple[SqsQueue, list[Delivery]]:
    queue = queues.open("orders")
    assert isinstance(queue, SqsQueue)
    return queue, queue.adopt(records(session, endpoint), VISIBLE_MS)


def test_a_message_comes_through_the_event_as_it_was_sent(
    queues: SqsQueues, session: rig.HookedSession, endpoint: Endpoint
) -> None:
    attributes = {"kind": Attribute("web"), "count": Attribute("7", "Number"), "raw": Attribute(b"\x00\xff", "Binary")}
    queues.open("orders").send(
        [Entry(body="Größe", attributes=attributes, key="k-1", group="tenant", trace="Root=1-2-3")]
    )
    _, [delivery] = adopted(queues, session, endpoint)
    assert dict(delivery.attributes) == attributes
    assert (delivery.queue, delivery.body, delivery.key, delivery.group) == ("orders", "Größe", "k-1", "tenant")
    assert (delivery.trace, delivery.receive_count, delivery.visible_ms) == ("Root=1-2-3", 1, VISIBLE_MS)


def test_what_lambda_deletes_is_forgotten_without_a_call(
    queues: SqsQueues, session: rig.HookedSession, endpoint: Endpoint
) -> None:
    queues.open("orders").send([Entry(body="a")])
    queue, [delivery] = adopted(queues, session, endpoint)
    session.calls.clear()
    queue.disown([delivery.receipt])
    assert session.calls == []
    assert queues.open("orders").move_aside([(delivery.receipt, rig_move_aside())]) == [
        False
    ]  # nothing of it is kept here


def test_a_batch_that_succeeds_asks_nothing_of_sqs(
    queues: SqsQueues, session: rig.HookedSession, clock: ManualClock, endpoint: Endpoint
) -> None:
    queues.open("orders").send([Entry(body="a")])
    event = records(session, endpoint)
    session.calls.clear()
    queue = Sqs(session, clock=clock, entropy=SystemEntropy(), prefix="app-").open("orders")
    assert isinstance(queue, SqsQueue)
    [delivery] = queue.adopt(event, VISIBLE_MS)
    queue.disown([delivery.receipt])
    assert session.calls == []


def test_a_queue_that_is_not_there_is_said_by_its_verbs(session: rig.HookedSession, clock: ManualClock) -> None:
    queue = Sqs(session, clock=clock, entropy=SystemEntropy(), prefix="app-").open("nobody")
    for verb in (lambda: queue.send([Entry(body="a")]), lambda: queue.receive(1), queue.depth):
        with pytest.raises(errors.NotFoundError, match="app-nobody"):
            verb()


def test_a_body_in_s3_goes_with_its_message(
    queues: SqsQueues, session: rig.HookedSession, endpoint: Endpoint, bodies: Bodies
) -> None:
    big = "x" * 1_100_000
    queues.open("orders").send([Entry(body=big), Entry(body="small")])
    queue, deliveries = adopted(queues, session, endpoint)
    assert sorted(len(one.body) for one in deliveries) == [5, len(big)]
    assert len(bodies.kept) == 1
    session.calls.clear()
    queue.disown([one.receipt for one in deliveries])
    assert session.calls == ["delete_message_batch"]  # Lambda would delete the message, and leave its body
    assert bodies.kept == {}


def rig_move_aside() -> MoveTo:
    return MoveTo("dead-letter", rig.WRONG)
