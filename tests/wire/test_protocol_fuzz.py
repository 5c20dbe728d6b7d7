"""Both protocols against anything: what is sent arrives as it was, and no bytes break them.

Requests are written and answers read by botocore. Whatever else comes in gets an ask or an error that clients understand.
Values are drawn from the service model, so a member that it gains is tested from that day.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.local import json_protocol, query_protocol, sqs_model
from onefold.local.aws_errors import AwsError
from onefold.local.sqs_model import Shape, SqsOperation
from tests.wire import aws_side

MODEL = sqs_model.load()
OPERATIONS = st.sampled_from(sorted(MODEL.values(), key=lambda operation: operation.name))
XML_TEXT = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff")
    | st.sampled_from("\t\n\r&<>\"']"),
    max_size=12,
)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
FUZZ = settings(max_examples=max(250, settings.default.max_examples))


# ----------------------------------------------------------------------------------------- values of the model


def values(shape: Shape, text: st.SearchStrategy[str], *, least: int = 0) -> st.SearchStrategy[Any]:
    """Values of a shape as a client has them; lists and maps of at least `least` items."""
    if shape.kind == "structure":
        return structures(shape, text)
    if shape.kind == "list":
        assert shape.item is not None
        return st.lists(values(shape.item, text), min_size=least, max_size=3)
    if shape.kind == "map":
        assert shape.item is not None
        return st.dictionaries(text, values(shape.item, text), min_size=least, max_size=3)
    return {
        "string": text,
        "integer": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "boolean": st.booleans(),
        "blob": st.binary(max_size=12),
    }[shape.kind]


def structures(shape: Shape, text: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    members = {
        name: values(member, text, least=1 if name in shape.required else 0) for name, member in shape.members.items()
    }
    needed = {name: members.pop(name) for name in shape.required}
    return st.fixed_dictionaries(needed, optional=members)


def said(value: Any) -> Any:
    """An ask as the client's value: without members that are absent."""
    return without(msgspec.to_builtins(value, builtin_types=(bytes,)), lambda member: member is None)


def without(value: Any, dropped: Any) -> Any:
    if isinstance(value, dict):
        return {name: without(member, dropped) for name, member in value.items() if not dropped(member)}
    return [without(item, dropped) for item in value] if isinstance(value, list) else value


def empty_map(value: Any) -> bool:
    return value == {}


def nothing(value: Any) -> bool:
    return value in ({}, [])


# ---------------------------------------------------------------------------------------------- there and back


@FUZZ
@given(st.data(), OPERATIONS)
def test_a_request_in_json_arrives_as_it_was(data: st.DataObject, operation: SqsOperation):
    params = data.draw(structures(operation.input, ANY_TEXT))
    target, body = aws_side.json_request(operation.name, params)
    assert json_protocol.operation_of(MODEL, target) is operation
    assert said(json_protocol.decode(operation, body)) == params


@FUZZ
@given(st.data(), OPERATIONS)
def test_a_request_in_the_query_protocol_arrives_as_it_was(data: st.DataObject, operation: SqsOperation):
    params = data.draw(structures(operation.input, ANY_TEXT))
    found, ask = query_protocol.decode(MODEL, aws_side.query_request(operation.name, params), "/", b"")
    assert found is operation
    assert without(said(ask), empty_map) == without(params, empty_map)  # botocore sends nothing for an empty map


@FUZZ
@given(st.data(), OPERATIONS)
def test_an_answer_in_json_arrives_as_it_was(data: st.DataObject, operation: SqsOperation):
    result = data.draw(structures(operation.output, ANY_TEXT)) if operation.output else None
    assert aws_side.json_answer(operation.name, json_protocol.encode(result)) == (result or {})


@FUZZ
@given(st.data(), OPERATIONS)
def test_an_answer_in_xml_arrives_as_it_was(data: st.DataObject, operation: SqsOperation):
    result = data.draw(structures(operation.output, XML_TEXT)) if operation.output else None
    body = query_protocol.encode(operation, result, "r-1")
    assert _without_empty(aws_side.query_answer(operation.name, body)) == _without_empty(result or {})


def _without_empty(value: Any) -> Any:
    """XML has no empty list or map: nothing stands there. Elements of a list are kept."""
    return {name: without(member, nothing) for name, member in value.items() if not nothing(member)}


# ----------------------------------------------------------------------------------------------- any bytes


def asked(read: Any) -> None:
    """Reading gives an ask whose members have the types of the model, or an error that clients of both kinds read."""
    try:
        operation, ask = read()
    except AwsError as error:
        understood(error)
        return
    assert msgspec.json.decode(msgspec.json.encode(ask), type=operation.input_type) == ask
    operation.check(ask)


def understood(error: AwsError) -> None:
    status, headers, body = json_protocol.encode_error(error, "r-1")
    parsed = aws_side.json_answer("SendMessage", body, status=status, headers=headers)
    assert (parsed["Error"]["Code"], parsed["Error"]["QueryErrorCode"]) == (error.code, error.shape)
    assert parsed["Error"]["Message"] == error.message
    status, headers, body = query_protocol.encode_error(error, "r-1")
    parsed = aws_side.query_answer("SendMessage", body, status=status, headers=headers)
    assert (parsed["Error"]["Code"], status) == (error.code, error.status)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**31, 2**63, 10**40, 1e308, -0.0, float("nan"), float("inf")])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["\ud800", "\x00", "AAA=", "?"])
)
NAMES = st.sampled_from(
    sorted(
        {name for operation in MODEL.values() for name in operation.input.members}
        | {"Id", "MessageBody", "DataType", "StringValue", "BinaryValue", "StringListValues", "BinaryListValues"}
    )
) | st.text(max_size=4)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@FUZZ
@given(OPERATIONS, st.dictionaries(NAMES, ANYTHING, max_size=6) | ANYTHING, st.booleans())
def test_json_of_any_shape(operation: SqsOperation, value: Any, escaped: bool):
    body = json.dumps(value, ensure_ascii=escaped).encode(errors="surrogatepass")
    asked(lambda: (operation, json_protocol.decode(operation, body)))


@FUZZ
@given(OPERATIONS, st.binary(max_size=64))
def test_json_of_any_bytes(operation: SqsOperation, body: bytes):
    asked(lambda: (operation, json_protocol.decode(operation, body)))


@FUZZ
@given(st.data(), OPERATIONS)
def test_requests_in_json_that_were_damaged_on_the_way(data: st.DataObject, operation: SqsOperation):
    _, body = aws_side.json_request(operation.name, data.draw(structures(operation.input, ANY_TEXT)))
    damaged = _damaged(data, body)
    asked(lambda: (operation, json_protocol.decode(operation, damaged)))


@FUZZ
@given(st.text(max_size=30) | OPERATIONS.map(lambda operation: f"AmazonSQS.{operation.name}"))
def test_targets_of_any_text(target: str):
    known = {f"AmazonSQS.{name}" for name in MODEL}
    if target in known:
        assert f"AmazonSQS.{json_protocol.operation_of(MODEL, target).name}" == target
    else:
        with pytest.raises(AwsError, match=r"is not valid for this endpoint|names no operation"):
            json_protocol.operation_of(MODEL, target)


PARTS = st.sampled_from(
    ["1", "2", "01", "0", "-1", "999999999999", "member", "entry", "Name", "Value", "key", "value", "Key", "",
     "Attribute", "AttributeName", "MessageAttribute", "MessageSystemAttribute", "SendMessageBatchRequestEntry",
     "DeleteMessageBatchRequestEntry", "ChangeMessageVisibilityBatchRequestEntry", "Tag", "TagKey", "AWSAccountId",
     "ActionName", "StringListValue", "BinaryListValue", "Action"]
) | NAMES  # fmt: skip
FORM = st.lists(
    st.tuples(
        st.lists(PARTS, min_size=1, max_size=8).map(".".join), st.text(max_size=8) | st.sampled_from(["1", "AA=="])
    ),
    max_size=12,
)


@FUZZ
@given(OPERATIONS, FORM, st.text(max_size=12), st.booleans())
def test_forms_of_any_names(operation: SqsOperation, fields: list[tuple[str, str]], path: str, in_query: bool):
    form = aws_side.form([("Action", operation.name), *fields])
    asked(lambda: query_protocol.decode(MODEL, b"" if in_query else form, path, form if in_query else b""))


@FUZZ
@given(st.binary(max_size=64), st.binary(max_size=64), st.text(max_size=12))
def test_forms_of_any_bytes(form: bytes, query: bytes, path: str):
    asked(lambda: query_protocol.decode(MODEL, form, path, query))


@FUZZ
@given(st.data(), OPERATIONS)
def test_forms_that_were_damaged_on_the_way(data: st.DataObject, operation: SqsOperation):
    form = aws_side.query_request(operation.name, data.draw(structures(operation.input, ANY_TEXT)))
    damaged = _damaged(data, form)
    asked(lambda: query_protocol.decode(MODEL, damaged, "/000000000000/q", b""))


def _damaged(data: st.DataObject, body: bytes) -> bytes:
    start = data.draw(st.integers(0, len(body)))
    end = data.draw(st.integers(start, min(len(body), start + 8)))
    return body[:start] + data.draw(st.binary(max_size=4)) + body[end:]


@FUZZ
@given(st.text(), st.sampled_from([400, 404, 500]))
def test_errors_with_any_text(text: str, status: int):
    error = AwsError("QueueDoesNotExist", text, code="X.Y", status=status)
    _, _, xml = query_protocol.encode_error(error, "r-1")
    assert aws_side.query_answer("SendMessage", xml, status=400)["Error"]["Code"] == "X.Y"
    _, headers, body = json_protocol.encode_error(error, "r-1")
    assert aws_side.json_answer("SendMessage", body, status=400, headers=headers)["Error"]["Message"] == text
