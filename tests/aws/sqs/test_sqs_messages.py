"""Messages on the wire: what is written is read back equal, whoever wrote it; receipts carry what a delete needs."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold import errors
from onefold.contracts.queue import Attribute, Reason
from onefold.engines.aws import messages
from onefold.engines.aws.messages import Form, SqsReceipt, dead_letter_token, entry_of, pointer

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
ATTRIBUTES = st.dictionaries(
    st.from_regex(r"[a-z]{1,8}", fullmatch=True),
    st.one_of(TEXTS.map(Attribute), st.binary(min_size=1, max_size=9).map(lambda value: Attribute(value, "Binary.x"))),
    max_size=10,
)
FORMS = st.builds(
    Form,
    body=TEXTS,
    attributes=ATTRIBUTES,
    key=st.none() | st.text(min_size=1, max_size=12),
    reason=st.none()
    | st.builds(Reason, kind=st.just("permanent"), summary=st.text(st.characters(exclude_categories=["Cs"]))),
    source=st.none() | st.just("app-orders"),
    token=st.none() | st.just("0" * 32),
    stored_bytes=st.none() | st.integers(1, 2**40),
)


def as_received(entry: dict[str, Any]) -> dict[str, Any]:
    """The answer to a receive of what was sent."""
    return {
        "MessageId": "m-1",
        "ReceiptHandle": "h",
        "Body": entry["MessageBody"],
        "MessageAttributes": entry.get("MessageAttributes", {}),
        "Attributes": {"SentTimestamp": "5", "ApproximateReceiveCount": "2", "ApproximateFirstReceiveTimestamp": "7"},
    }


def as_record(entry: dict[str, Any]) -> dict[str, Any]:
    """The same as Lambda's event shows it."""
    attributes = {}
    for name, one in entry.get("MessageAttributes", {}).items():
        shown: dict[str, Any] = {"dataType": one["DataType"], "stringListValues": [], "binaryListValues": []}
        if "BinaryValue" in one:
            shown["binaryValue"] = b64encode(one["BinaryValue"]).decode()
        else:
            shown["stringValue"] = one["StringValue"]
        attributes[name] = shown
    system = {"SentTimestamp": "5", "ApproximateReceiveCount": "2", "ApproximateFirstReceiveTimestamp": "7"}
    return {
        "messageId": "m-1",
        "receiptHandle": "h",
        "body": entry["MessageBody"],
        "attributes": system,
        "messageAttributes": attributes,
    }


@given(FORMS)
def test_what_is_written_is_read_back(form: Form) -> None:
    entry = entry_of(form, "0")
    assert len(entry.get("MessageAttributes", {})) <= 10
    got = messages.received(as_received(entry))
    assert got.form == form
    assert (got.message_id, got.handle, got.receive_count) == ("m-1", "h", 2)
    assert (got.sent_at_ms, got.first_received_at_ms) == (5, 7)
    assert messages.of_lambda(as_record(entry)) == got


def test_more_than_ten_attributes_travel_in_one_of_ours() -> None:
    attributes = {f"a{number}": Attribute(bytes([number]), "Binary") for number in range(10)}
    entry = entry_of(Form(body="b", attributes=attributes, key="k"), "0")
    assert set(entry["MessageAttributes"]) == {messages.KEY, messages.PACKED}


@pytest.mark.parametrize("name", [messages.REASON, messages.PACKED, messages.KEY, messages.STORED_BYTES])
@pytest.mark.parametrize("value", [{"StringValue": "{nonsense"}, {"BinaryValue": b"\xff\xfe"}])
def test_a_message_that_imitates_ours_is_read(name: str, value: dict[str, Any]) -> None:
    message = as_received({"MessageBody": "b", "MessageAttributes": {name: {"DataType": "String", **value}}})
    got = messages.received(message)
    assert got.form.body == "b"
    assert got.form.reason is None
    assert messages.read_pointer(got.form) is None


@pytest.mark.parametrize(
    "packed",
    [
        {"AWS.evil": ["String", "x"]}, {"": ["String", "x"]}, {"a": ["String", ""]}, {"a": ["Nope", "x"]},
        {"a": ["String", "\0"]}, {"a b": ["String", "x"]}, {"n": ["Number", "abc"]}, {"a" * 300: ["String", "x"]},
        {"b": ["Binary", ""]},
        {f"a{number}": ["String", "x"] for number in range(10)},
    ],
)  # fmt: skip
def test_what_no_queue_takes_stays_packed_and_can_be_copied(packed: dict[str, list[str]]) -> None:
    value = json.dumps(packed)
    attributes = {
        messages.PACKED: {"DataType": "String", "StringValue": value},
        "own": {"DataType": "String", "StringValue": "x"},
    }
    form = messages.received(as_received({"MessageBody": "b", "MessageAttributes": attributes})).form
    assert form.attributes == {messages.PACKED: Attribute(value), "own": Attribute("x")}
    copied = entry_of(form, "0")["MessageAttributes"]
    assert {name: one["StringValue"] for name, one in copied.items()} == {messages.PACKED: value, "own": "x"}


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '["a"]', '["a","",null]', '["","h"]', '["a","h","s","x"]', "null", "\ud800"]
)
def test_a_receipt_that_is_none(text: str) -> None:
    with pytest.raises(errors.UsageError, match="is not a valid receipt handle"):
        messages.parse_receipt(text)


def test_a_receipt_carries_what_a_delete_needs() -> None:
    receipt = SqsReceipt("m", 'handle"with:all/of+it', "p/orders/1")
    assert messages.parse_receipt(receipt.text()) == receipt
    assert messages.parse_receipt(SqsReceipt("m", "h").text()) == SqsReceipt("m", "h")


@pytest.mark.parametrize("record", [{}, {"messageId": "m"}, {"eventSource": "aws:s3", "s3": {}}, {"attributes": None}])
def test_a_record_that_is_none(record: dict[str, Any]) -> None:
    with pytest.raises(errors.PayloadError, match="not a record of an SQS event"):
        messages.of_lambda(record)


def test_a_pointer_is_that_of_aws_own_clients() -> None:
    body = pointer("bucket", "p/k")
    assert body == '["software.amazon.payloadoffloading.PayloadS3Pointer",{"s3BucketName":"bucket","s3Key":"p/k"}]'
    assert messages.read_pointer(Form(body=body, stored_bytes=5)) == ("bucket", "p/k")
    assert messages.read_pointer(Form(body=body)) is None  # its sender did not say that it is one


def test_one_burial_has_one_id() -> None:
    assert dead_letter_token("orders", "m") == dead_letter_token("orders", "m")
    assert len({dead_letter_token(queue, one) for queue in ("a", "b") for one in ("1", "2")}) == 4
