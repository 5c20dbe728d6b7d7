"""AWS JSON 1.0: decodes a request's body into a request struct, and encodes a result or an error as a body.

The operation is named in a header (`X-Amz-Target: AmazonSQS.SendMessage`), everything else in one JSON object. Blobs
are base64 text. A success without a result has an empty body; an error carries its older, query-protocol name in
`x-amzn-query-error`, which is what `err.response["Error"]["Code"]` shows in Python.

Never here: HTTP beyond the headers of one answer, what an operation does.
Invariant: whatever the bytes are, `decode` returns a struct with all required members or raises AwsError.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

from onefold.local import aws_errors
from onefold.local.aws_errors import AwsError
from onefold.local.sqs_model import SqsModel, SqsOperation

CONTENT_TYPE = b"application/x-amz-json-1.0"

Headers = list[tuple[bytes, bytes]]

_TARGET = "AmazonSQS."
_ENCODER = msgspec.json.Encoder()  # bytes become base64 text, as blobs are in AWS JSON
_MISMATCH = re.compile(r"^Expected `(?P<wanted>\w++)[^`]*`, got `(?P<got>\w+)`")
_PATH = re.compile(r" - at `(?:key` in `)?\$\.?(?P<path>[^`]*)`$")
_STARTS = {"object": "structure or map", "array": "list"}
_VALUES = {"str": "STRING_VALUE", "int": "NUMBER_VALUE", "float": "DECIMAL_VALUE", "bool": "BOOLEAN_VALUE"}
_WANTED = {"str": "a String", "int": "an Integer", "bytes": "a Blob", "array": "a List", "object": "a Structure"}


def operation_of(model: SqsModel, target: str) -> SqsOperation:
    """The operation that the header `X-Amz-Target` names.

    Raises:
        AwsError: UnknownOperationException: it names another service or an unknown operation, or is missing ("").
    """
    operation = model.get(target.removeprefix(_TARGET)) if target.startswith(_TARGET) else None
    if operation is None:
        raise aws_errors.unknown_operation(target.removeprefix(_TARGET))
    return operation


def decode(operation: SqsOperation, body: bytes) -> Any:
    """The parameters in a request's body: a struct with the operation's members, None if absent.

    Unknown members are ignored; the last of a repeated member counts.

    Raises:
        AwsError: SerializationException: it is not JSON, or a member has another type; names the member.
            MissingParameter, EmptyBatchRequest: a required member is absent or null.
    """
    try:
        params: Struct = operation.decoder.decode(body)
    except msgspec.ValidationError as error:
        raise aws_errors.malformed_input(_mismatch(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise aws_errors.malformed_input("The request body is not valid JSON.") from None
    operation.check(params)
    return params


def _mismatch(text: str) -> str:
    """AWS's text for a value of the wrong type, followed by the member, which AWS does not name."""
    found = _PATH.search(text)
    where = f" ({found['path']})" if found and found["path"] else ""
    said = _MISMATCH.match(text)
    if said is None:
        return ("Invalid base64 encoded string" if "base64" in text else "NUMBER_VALUE is out of range") + where
    got, wanted = said["got"], said["wanted"]
    if got in _STARTS:
        return f"Start of {_STARTS[got]} found where not expected.{where}"
    return f"{_VALUES.get(got, 'NULL_VALUE')} can not be converted to {_WANTED.get(wanted, wanted)}{where}"


def encode(result: dict[str, Any] | None) -> bytes:
    """The body of a success: a JSON object without None values, or empty if there is no result.

    An empty dict is `{}`: the answer of an operation that has an output, such as a receive that found nothing.
    """
    if result is None:
        return b""
    body = _ENCODER.encode(result)
    # Rare: results are built without None. A text that only contains the word is encoded twice, to the same bytes.
    return _ENCODER.encode(_without_none(result)) if b"null" in body else body


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(member) for name, member in value.items() if member is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value]
    return value


def headers(request_id: str) -> Headers:
    """The headers of every answer; their names in lower case, as ASGI requires."""
    return [(b"content-type", CONTENT_TYPE), (b"x-amzn-requestid", request_id.encode("ascii"))]


def encode_error(error: AwsError, request_id: str) -> tuple[int, Headers, bytes]:
    """Status, headers and body of an error."""
    query_error = f"{error.code};{error.fault}".encode("ascii")
    body = {"__type": error.type, "message": error.message}
    return (
        error.status,
        [*headers(request_id), (b"x-amzn-query-error", query_error)],
        _ENCODER.encode(body),
    )
