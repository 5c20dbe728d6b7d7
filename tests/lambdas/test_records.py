"""Records have the shape of AWS's examples, and their sizes add up to the event's."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from onefold.contracts.queue import Attribute, Delivery
from onefold.local.identifiers import SENDER_ID, QueueAddresses, attributes_md5, handle_of, sequence_number
from onefold.local.mapping import event_bytes, event_size, record_bytes, record_of

ADDRESSES = QueueAddresses("123456789012", "us-east-1", "localhost")


def delivery(**changes: Any) -> Delivery:
    return Delivery(
        **{
            "queue": "my-queue", "message_id": "m-1", "receipt": "r-1", "body": "Test message.", "attributes": {},
            "receive_count": 1, "sent_at_ms": 1545082649183, "first_received_at_ms": 1545082649185,
            "received_at_ms": 1545082649185, "visible_ms": 30_000, **changes,
        }
    )  # fmt: skip


def test_a_record_of_a_standard_queue() -> None:
    assert record_of(delivery(), ADDRESSES) == {
        "messageId": "m-1",
        "receiptHandle": handle_of("my-queue", "r-1"),
        "body": "Test message.",
        "attributes": {
            "ApproximateReceiveCount": "1",
            "SentTimestamp": "1545082649183",
            "SenderId": SENDER_ID,
            "ApproximateFirstReceiveTimestamp": "1545082649185",
        },
        "messageAttributes": {},
        "md5OfBody": "e4e68fb7bd0e697a0ae8f1bb342846b3",
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:my-queue",
        "awsRegion": "us-east-1",
    }


def test_a_record_of_a_fifo_queue_has_three_more_attributes() -> None:
    record = record_of(delivery(queue="q.fifo", sequence="7", group="1", dedup_id="1"), ADDRESSES)
    assert record["attributes"] == {
        "ApproximateReceiveCount": "1",
        "SentTimestamp": "1545082649183",
        "SequenceNumber": sequence_number("7"),
        "MessageGroupId": "1",
        "SenderId": SENDER_ID,
        "MessageDeduplicationId": "1",
        "ApproximateFirstReceiveTimestamp": "1545082649185",
    }


def test_message_attributes_have_their_empty_lists_and_their_digest() -> None:
    attributes = {"Foo": Attribute("Bar"), "Raw": Attribute(b"\x00\xff", "Binary.png"), "N": Attribute("1.5", "Number")}
    record = record_of(delivery(attributes=attributes), ADDRESSES)
    empty = {"stringListValues": [], "binaryListValues": []}
    assert record["messageAttributes"] == {
        "Foo": {"stringValue": "Bar", **empty, "dataType": "String"},
        "Raw": {"binaryValue": "AP8=", **empty, "dataType": "Binary.png"},
        "N": {"stringValue": "1.5", **empty, "dataType": "Number"},
    }
    assert record["md5OfMessageAttributes"] == attributes_md5(attributes)
    assert record_of(delivery(attributes={"Foo": Attribute("Bar")}), ADDRESSES)["md5OfMessageAttributes"] == (
        "ae7155c6026991b6d54b11589678bf9c"  # recorded from AWS
    )


def test_trace_and_origin_are_told_when_there_are_any() -> None:
    attributes = record_of(delivery(trace="Root=1-a", source="origin"), ADDRESSES)["attributes"]
    assert attributes["AWSTraceHeader"] == "Root=1-a"
    assert attributes["DeadLetterQueueSourceArn"] == "arn:aws:sqs:us-east-1:123456789012:origin"


@pytest.mark.parametrize("count", [1, 2, 10])
def test_an_event_is_its_records_in_order_and_its_size_is_known_before(count: int) -> None:
    records = [
        record_bytes(delivery(message_id=f"m-{number}", body="é" * number + "-"), ADDRESSES) for number in range(count)
    ]
    event = event_bytes(records)
    assert event_size([len(record) for record in records]) == len(event)
    found = msgspec.json.decode(event)
    assert list(found) == ["Records"]
    assert [one["messageId"] for one in found["Records"]] == [f"m-{number}" for number in range(count)]
    assert found["Records"][-1] == record_of(
        delivery(message_id=f"m-{count - 1}", body="é" * (count - 1) + "-"), ADDRESSES
    )
