"""Messages as they are sent to SQS: entries of a batch request, their sizes, and the pointer to a body in S3.

What onefold adds to a message goes into attributes named `onefold-...` (`messages.py` names them and reads them back). With
more than ten attributes in all, the user's go into one of ours; text that a String may not hold goes as bytes.

Never here: calls, S3, rules of what SQS accepts (`contracts/rules.py`). Invariant: what is written here,
`messages.received` reads back equal.

Sources: SQS API reference, SendMessageBatchRequestEntry; SQS developer guide, "Amazon SQS message quotas"; the large-payload
form is that of AWS's extended client libraries for Java and Python.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import msgspec

from onefold import limits
from onefold.backends.aws.messages import (
    KEY,
    PACKED,
    POINTER_CLASS,
    REASON,
    SIGNATURE,
    SOURCE,
    STORED_BYTES,
    TOKEN,
    Form,
)
from onefold.contracts.queue import Attribute


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
    """The size SQS counts: body and attributes, ours included (SQS developer guide, message quotas)."""
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
    """Any text: what a String may not hold travels as bytes."""
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
    """The body of a message whose payload lies in S3."""
    return json.dumps([POINTER_CLASS, {"s3BucketName": bucket, "s3Key": key}], separators=(",", ":"))


def burial_token(queue_on_aws: str, message_id: str) -> str:
    """Id of burying one message of one queue, the same however often it is tried: 32 hexadecimal digits."""
    return hashlib.sha256(f"{queue_on_aws}{message_id}".encode()).hexdigest()[:32]
