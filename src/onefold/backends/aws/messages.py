"""Messages as SQS carries them: answers and Lambda records to contract values, and our receipts.

What onefold adds travels in attributes named `onefold-...`; a message with more than ten attributes in all carries the
user's in one of ours. `entries.py` writes them. A receipt of ours is a JSON array of message id, SQS's handle and, where
the body lies in S3, its place: everything a delete needs, in any process.

Never here: calls, S3, rules of what SQS accepts (`contracts/rules.py`). Invariant: what `entries.entry_of` writes,
`received` reads back equal; a message that somebody else wrote is read without an error, whatever it holds.

Sources: SQS API reference, Message; Lambda developer guide, "Using Lambda with Amazon SQS" (the event); the large-payload
form is that of AWS's extended client libraries for Java and Python.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from onefold import errors
from onefold.contracts.queue import Attribute, Reason

OURS: Final = "onefold-"
KEY: Final = "onefold-key"
REASON: Final = "onefold-reason"
SOURCE: Final = "onefold-source"
SIGNATURE: Final = "onefold-signature"  # of what the attributes claim (`signing.py`)
TOKEN: Final = "onefold-id"  # noqa: S105 - an attribute's name
PACKED: Final = "onefold-attributes"
STORED_BYTES: Final = "ExtendedPayloadSize"  # AWS's extended clients: the body is a pointer to so many bytes in S3
POINTER_CLASS: Final = "software.amazon.payloadoffloading.PayloadS3Pointer"


class Form(Struct, frozen=True, kw_only=True):
    """A message as it travels.

    Args:
        body: as SQS holds it; a pointer when `stored_bytes` is set.
        attributes: the user's own.
        key, group, dedup_id, trace: as in `Entry`.
        reason: why it was buried. source: the queue it was buried from, by its name on AWS.
        token: id of the burial, the same for every try of it (`burial_token`).
        stored_bytes: size of the body in S3.
        delay_s: 0 to 900.
        signature: of app, job, claims and body.
    """

    body: str
    attributes: Mapping[str, Attribute] = {}
    key: str | None = None
    group: str | None = None
    dedup_id: str | None = None
    trace: str | None = None
    reason: Reason | None = None
    source: str | None = None
    token: str | None = None
    stored_bytes: int | None = None
    delay_s: int | None = None
    signature: str | None = None


class Received(Struct, frozen=True, kw_only=True):
    """One message of a receive; `handle` is SQS's, `source` the queue SQS itself dead-lettered it from (its ARN)."""

    message_id: str
    handle: str
    form: Form
    receive_count: int
    sent_at_ms: int
    first_received_at_ms: int
    sequence: str | None
    moved_from_arn: str | None


class Receipt(Struct, frozen=True, array_like=True):
    """What a receipt says: the message, SQS's handle of this receive, and where its body lies."""

    message_id: str
    handle: str
    stored: str | None = None

    def text(self) -> str:
        """The receipt as it travels through the Queue contract."""
        return msgspec.json.encode(self).decode()


def parse_receipt(text: str) -> Receipt:
    """A receipt that `Receipt.text` wrote.

    Raises:
        UsageError: it is none.
    """
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        found = None
    match found:  # a typed decoder takes longer to make than a first batch takes to read its receipts
        case [str(message_id), str(handle), None | str() as stored] if message_id and handle:
            return Receipt(message_id, handle, stored)
    raise errors.UsageError(
        f'The input receipt handle "{text[:100]}" is not a valid receipt handle.',
        meaning="Nothing was changed.",
        todo="Pass the `receipt` of a delivery of this queue.",
    )


# -- reading -----------------------------------------------------------------------------------------------------------


def received(message: Mapping[str, Any]) -> Received:
    """A message of ReceiveMessage's answer."""
    attributes = {
        name: Attribute(one["BinaryValue"] if "BinaryValue" in one else one.get("StringValue", ""), one["DataType"])
        for name, one in message.get("MessageAttributes", {}).items()
    }
    return _received(
        message["MessageId"], message["ReceiptHandle"], message["Body"], message.get("Attributes", {}), attributes
    )


def of_lambda(record: Mapping[str, Any]) -> Received:
    """A record of the event that Lambda's event source mapping passes; its binary values are base64.

    Raises:
        PayloadError: it is no SQS record.
    """
    try:
        attributes = {}
        for name, one in (record.get("messageAttributes") or {}).items():
            kind = one["dataType"]
            value = b64decode(one["binaryValue"]) if kind.startswith("Binary") else one["stringValue"]
            attributes[name] = Attribute(value, kind)
        system = record["attributes"]
        return _received(record["messageId"], record["receiptHandle"], record["body"], system, attributes)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise errors.PayloadError(
            f"This is not a record of an SQS event: {type(error).__name__} at {error}.",
            todo="Subscribe the function to an SQS queue by an event source mapping, and pass its event unchanged.",
        ) from error


def _received(
    message_id: str, handle: str, body: str, system: Mapping[str, str], attributes: dict[str, Attribute]
) -> Received:
    key = attributes.pop(KEY, None)
    reason = attributes.pop(REASON, None)
    source = _string(attributes.pop(SOURCE, None))
    token = _string(attributes.pop(TOKEN, None))
    size = _string(attributes.pop(STORED_BYTES, None))
    signature = _string(attributes.pop(SIGNATURE, None))
    packed = attributes.pop(PACKED, None)
    sent_at_ms = int(system.get("SentTimestamp", 0))
    return Received(
        message_id=message_id,
        handle=handle,
        form=Form(
            body=body,
            attributes=attributes if packed is None else attributes | _unpacked(packed, attributes),
            key=None if key is None else _plain(key),
            group=system.get("MessageGroupId"),
            dedup_id=system.get("MessageDeduplicationId"),
            trace=system.get("AWSTraceHeader"),
            reason=None if reason is None else _reason(reason),
            source=source,
            token=token,
            stored_bytes=int(size) if size is not None and size.isdecimal() and len(size) < 16 else None,
            signature=signature,
        ),
        receive_count=int(system.get("ApproximateReceiveCount", 1)),
        sent_at_ms=sent_at_ms,
        first_received_at_ms=int(system.get("ApproximateFirstReceiveTimestamp", sent_at_ms)),
        sequence=system.get("SequenceNumber"),
        moved_from_arn=system.get("DeadLetterQueueSourceArn"),
    )


def _string(attribute: Attribute | None) -> str | None:
    return attribute.value if attribute is not None and isinstance(attribute.value, str) else None


def _plain(attribute: Attribute) -> str | None:
    if isinstance(attribute.value, str):
        return attribute.value
    try:
        return attribute.value.decode(errors="surrogatepass")
    except UnicodeError:
        return None


def _reason(attribute: Attribute) -> Reason | None:
    try:
        return msgspec.json.decode(attribute.value, type=Reason)
    except msgspec.MsgspecError:
        return None


def _unpacked(attribute: Attribute, others: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """What is packed; the attribute itself where it is none of ours, which no queue would take unpacked."""
    from onefold.contracts.rules import check_attributes  # few messages have so many

    try:
        found = msgspec.json.decode(attribute.value, type=dict[str, tuple[str, str]])
        unpacked = {
            name: Attribute(b64decode(value) if kind.startswith("Binary") else value, kind)
            for name, (kind, value) in found.items()
        }
    except (msgspec.MsgspecError, ValueError):
        return {PACKED: attribute}
    return unpacked if check_attributes({**others, **unpacked}) is None else {PACKED: attribute}


# -- bodies in S3 ------------------------------------------------------------------------------------------------------


def read_pointer(form: Form) -> tuple[str, str] | None:
    """Bucket and key of a message's payload; None when the message carries its own body."""
    if form.stored_bytes is None:
        return None
    try:
        kind, place = msgspec.json.decode(form.body, type=tuple[str, dict[str, str]])
        return (place["s3BucketName"], place["s3Key"]) if kind == POINTER_CLASS else None
    except (msgspec.MsgspecError, KeyError):
        return None
