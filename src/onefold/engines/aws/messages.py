"""Messages as SQS carries them: contract values as entries of a batch; received messages and Lambda records as values.

What onefold adds to a message goes into attributes named `onefold-...`. With more than ten attributes in all, the
user's are packed into one of ours; text that a String attribute must not contain is sent as bytes. onefold's receipt is
a JSON array of message id, SQS's handle and, if the body is in S3, its key: everything that a delete needs, in any
process.

Never here: calls, S3, rules about what SQS accepts (`contracts/entries.py`). Invariant: `received` reads back exactly
what `entry_of` wrote; a message that somebody else wrote is read without an error, whatever it contains.

Sources: SQS API reference, Message, SendMessageBatchRequestEntry; SQS developer guide, "Amazon SQS message quotas"; Lambda
developer guide, "Using Lambda with Amazon SQS" (the event); the large-payload form is that of AWS's extended client
libraries for Java and Python.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from onefold import errors, limits
from onefold.contracts.entries import check_attributes
from onefold.contracts.queue import Attribute, Reason, reason_of

if TYPE_CHECKING:
    from onefold.engines.aws.payloads import Payloads

OURS: Final = "onefold-"
KEY: Final = "onefold-key"
REASON: Final = "onefold-reason"
SOURCE: Final = "onefold-source"
SIGNATURE: Final = "onefold-signature"  # signs what the attributes claim (`signing.py`)
TOKEN: Final = "onefold-id"  # noqa: S105 - an attribute's name
PACKED: Final = "onefold-attributes"
STORED_BYTES: Final = "ExtendedPayloadSize"  # AWS's extended clients: the body is a pointer to this many bytes in S3
POINTER_CLASS: Final = "software.amazon.payloadoffloading.PayloadS3Pointer"


class Form(Struct, frozen=True, kw_only=True):
    """A message as it travels.

    Args:
        body: as SQS has it; a pointer if `stored_bytes` is set.
        attributes: the user's own.
        key, group, dedup_id, trace: as in `Entry`.
        reason: why it was dead-lettered or held. source: the queue from which it was moved, by its name on AWS.
        token: id of that move, the same for every try of it (`dead_letter_token`).
        stored_bytes: size of the body in S3.
        delay_s: 0 to 900.
        signature: signature over app, job, claims and body.
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
    """One message of a receive; `handle` is SQS's, `source` the ARN of the queue that SQS dead-lettered it from."""

    message_id: str
    handle: str
    form: Form
    receive_count: int
    sent_at_ms: int
    first_received_at_ms: int
    sequence: str | None
    moved_from_arn: str | None


class SqsReceipt(Struct, frozen=True, array_like=True):
    """The contents of a receipt: the message, SQS's handle of this receive, and the key of its body in S3."""

    message_id: str
    handle: str
    stored: str | None = None

    def text(self) -> str:
        """The receipt as it travels through the Queue contract."""
        return msgspec.json.encode(self).decode()


def parse_receipt(text: str) -> SqsReceipt:
    """Parse a receipt that `SqsReceipt.text` wrote.

    Raises:
        UsageError: it is not such a receipt.
    """
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        found = None
    match found:  # making a typed decoder takes longer than reading the receipts of a first batch
        case [str(message_id), str(handle), None | str() as stored] if message_id and handle:
            return SqsReceipt(message_id, handle, stored)
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
    """A record of the event that Lambda's event source mapping passes, whose binary values are base64.

    Raises:
        PayloadError: it is not an SQS record.
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
            reason=None if reason is None else reason_of(reason.value),
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


def _unpacked(attribute: Attribute, others: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """The packed attributes; or the attribute itself if we did not write it: no queue would accept it unpacked."""
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
    """Bucket and key of a message's payload; None if the message has its own body."""
    if form.stored_bytes is None:
        return None
    try:
        kind, pointer = msgspec.json.decode(form.body, type=tuple[str, dict[str, str]])
        return (pointer["s3BucketName"], pointer["s3Key"]) if kind == POINTER_CLASS else None
    except (msgspec.MsgspecError, KeyError):
        return None


def body_of(form: Form, payloads: Payloads | None) -> tuple[str, str | None]:
    """A message's body, and the key of the S3 object that contains it; errors as for `Payloads.get`."""
    pointer = read_pointer(form)
    if pointer is None or payloads is None or not payloads.is_ours(*pointer):
        return form.body, None
    return payloads.get(pointer[1]) or form.body, pointer[1]


def entry_of(form: Form, entry_id: str) -> dict[str, Any]:
    """A SendMessageBatchRequestEntry."""
    entry: dict[str, Any] = {"Id": entry_id, "MessageBody": form.body}
    attributes = _all_attributes(form)
    if attributes:
        entry["MessageAttributes"] = {name: _written(one) for name, one in attributes.items()}
    if form.trace:
        entry["MessageSystemAttributes"] = {"AWSTraceHeader": {"DataType": "String", "StringValue": form.trace}}
    if form.delay_s is not None:
        entry["DelaySeconds"] = form.delay_s
    if form.group is not None:
        entry["MessageGroupId"] = form.group
    if form.dedup_id is not None:
        entry["MessageDeduplicationId"] = form.dedup_id
    return entry


def bytes_of(form: Form) -> int:
    """The size that SQS counts: body and attributes, including ours (SQS developer guide, message quotas)."""
    return len(form.body.encode()) + sum(
        len(name.encode())
        + len(one.type.encode())
        + len(one.value if isinstance(one.value, bytes) else one.value.encode())
        for name, one in _all_attributes(form).items()
    )


def _all_attributes(form: Form) -> Mapping[str, Attribute]:
    ours: dict[str, Attribute] = {}
    if form.key:
        ours[KEY] = _text(form.key)
    if form.reason is not None:
        ours[REASON] = Attribute(json.dumps(msgspec.to_builtins(form.reason), separators=(",", ":")))
    if form.source is not None:
        ours[SOURCE] = Attribute(form.source)
    if form.token is not None:
        ours[TOKEN] = Attribute(form.token)
    if form.signature is not None:
        ours[SIGNATURE] = Attribute(form.signature)
    if form.stored_bytes is not None:
        ours[STORED_BYTES] = Attribute(str(form.stored_bytes), "Number")
    if not ours:
        return form.attributes
    if len(ours) + len(form.attributes) > limits.ATTRIBUTES_MAX:
        return ours | {PACKED: Attribute(_packed(form.attributes))}
    return {**form.attributes, **ours}


def _text(value: str) -> Attribute:
    """An attribute for any text: text that a String must not contain is sent as bytes."""
    if all(" " <= char < "\ud800" or char in "\t\n\r" for char in value):
        return Attribute(value)
    return Attribute(value.encode(errors="surrogatepass"), "Binary.utf-8")


def _written(attribute: Attribute) -> dict[str, Any]:
    field = "BinaryValue" if isinstance(attribute.value, bytes) else "StringValue"
    return {"DataType": attribute.type, field: attribute.value}


def _packed(attributes: Mapping[str, Attribute]) -> str:
    return json.dumps(
        {
            name: [one.type, one.value if isinstance(one.value, str) else b64encode(one.value).decode()]
            for name, one in attributes.items()
        },
        separators=(",", ":"),
    )


def pointer(bucket: str, key: str) -> str:
    """The body of a message whose payload is in S3."""
    return json.dumps([POINTER_CLASS, {"s3BucketName": bucket, "s3Key": key}], separators=(",", ":"))


def dead_letter_token(queue_on_aws: str, message_id: str) -> str:
    """The id of dead-lettering one message of one queue, the same at every try: 32 hexadecimal digits."""
    return hashlib.sha256(f"{queue_on_aws}{message_id}".encode()).hexdigest()[:32]
