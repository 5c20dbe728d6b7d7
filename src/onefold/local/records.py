"""The event of an SQS mapping: each delivery as the record a handler sees.

A record is made and encoded once; an event is records with a frame around them, so whoever cuts batches knows the size of
the event from the sizes of its records. Everything in a record's `attributes` is a string, numbers included.
Never here: which messages go into a batch. Invariant: what belongs to AWS's wire (ids, receipt handles, digests) is handed
in as `WireForm`, so a handler sees the same values as a consumer of the queue.

Source: Lambda developer guide, "Using Lambda with Amazon SQS", the example events for standard and FIFO queues.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from onefold.contracts.queue import Attribute, Delivery

EVENT_SOURCE: Final = "aws:sqs"

_HEAD = b'{"Records":['
_TAIL = b"]}"


class WireForm(Struct, frozen=True, kw_only=True):
    """How AWS's wire writes what a delivery holds.

    Args:
        queue_arn: of a queue by its name.
        message_id: as the wire has it, of the engine's.
        receipt: the receipt handle of a delivery.
        sequence: the wire's sequence number, of the engine's.
        sender_id: who sent, the same for all.
        body_md5, attributes_md5: the digests; the second None without attributes.
    """

    queue_arn: Callable[[str], str]
    message_id: Callable[[str], str]
    receipt: Callable[[Delivery], str]
    sequence: Callable[[str], str]
    sender_id: str
    body_md5: Callable[[str], str]
    attributes_md5: Callable[[Mapping[str, Attribute]], str | None]


def record_of(delivery: Delivery, form: WireForm) -> dict[str, Any]:
    """One delivery as a record; plain values, in the order of AWS's examples."""
    record: dict[str, Any] = {
        "messageId": form.message_id(delivery.message_id),
        "receiptHandle": form.receipt(delivery),
        "body": delivery.body,
        "attributes": _attributes(delivery, form),
        "messageAttributes": {name: _message_attribute(one) for name, one in delivery.attributes.items()},
    }
    digest = form.attributes_md5(delivery.attributes)
    if digest is not None:
        record["md5OfMessageAttributes"] = digest
    record["md5OfBody"] = form.body_md5(delivery.body)
    record["eventSource"] = EVENT_SOURCE
    record["eventSourceARN"] = arn = form.queue_arn(delivery.queue)
    record["awsRegion"] = arn.split(":", 4)[3]
    return record


def _attributes(delivery: Delivery, form: WireForm) -> dict[str, str]:
    found = {
        "ApproximateReceiveCount": str(delivery.receive_count),
        "SentTimestamp": str(delivery.sent_at_ms),
        "SenderId": form.sender_id,
        "ApproximateFirstReceiveTimestamp": str(delivery.first_received_at_ms),
    }
    if delivery.sequence is not None:
        found["SequenceNumber"] = form.sequence(delivery.sequence)
    if delivery.group is not None:
        found["MessageGroupId"] = delivery.group
    if delivery.dedup_id is not None:
        found["MessageDeduplicationId"] = delivery.dedup_id
    if delivery.trace is not None:
        found["AWSTraceHeader"] = delivery.trace
    if delivery.source is not None:
        found["DeadLetterQueueSourceArn"] = form.queue_arn(delivery.source)
    return found


def _message_attribute(attribute: Attribute) -> dict[str, Any]:
    value = attribute.value
    told = (
        {"stringValue": value} if isinstance(value, str) else {"binaryValue": base64.b64encode(value).decode("ascii")}
    )
    return {**told, "stringListValues": [], "binaryListValues": [], "dataType": attribute.type}


def record_bytes(delivery: Delivery, form: WireForm) -> bytes:
    """One record as JSON, to be put into an event."""
    return msgspec.json.encode(record_of(delivery, form))


def event_bytes(records: Sequence[bytes]) -> bytes:
    """The event of these records, 1 or more, as JSON: what a function is invoked with."""
    return _HEAD + b",".join(records) + _TAIL


def event_size(record_sizes: Sequence[int]) -> int:
    """How many bytes the event of records of these sizes has."""
    return len(_HEAD) + sum(record_sizes) + max(len(record_sizes) - 1, 0) + len(_TAIL)
