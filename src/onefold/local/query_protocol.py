"""The older query protocol: decodes a form into a request struct, and encodes a result or an error as XML.

The operation is the parameter `Action`; parameters come in the query string, the body or both, nested by dots and numbered
lists. The queue is named by `QueueUrl` or by the request's path. A list is written as repeated elements with their own
name (`MessageAttributeName.1=...`), a map as repeated pairs (`Attribute.1.Name=...&Attribute.1.Value=...`); the current
service model no longer has these names, so the tables below do. Besides the flattened names that AWS documents, the
forms that SDKs really send are read too: `X.member.1`, `X.entry.1.key`, and a list of one without its number.

An answer is XML, or JSON if the client's Accept header names that first.

Never here: HTTP beyond the headers of one answer, what an operation does.
Invariants: whatever the bytes are, `decode` returns a struct with all required members or raises AwsError; the XML
written here has only characters that XML 1.0 allows; every list and map of the service model is in one of the tables.

Source of the names: SQS API reference, examples of each operation; the service model of SDKs before November 2023.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from binascii import a2b_qp
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from onefold import limits
from onefold.local import aws_errors
from onefold.local.aws_errors import AwsError
from onefold.local.identifiers import region_of_url
from onefold.local.json_protocol import Headers
from onefold.local.sqs_model import Shape, SqsModel, SqsOperation

NAMESPACE: Final = "http://queue.amazonaws.com/doc/2012-11-05/"
LISTS: Final[Mapping[str, str]] = {
    "AWSAccountIdList": "AWSAccountId",
    "ActionNameList": "ActionName",
    "AttributeNameList": "AttributeName",
    "BatchResultErrorEntryList": "BatchResultErrorEntry",
    "BinaryList": "BinaryListValue",
    "ChangeMessageVisibilityBatchRequestEntryList": "ChangeMessageVisibilityBatchRequestEntry",
    "ChangeMessageVisibilityBatchResultEntryList": "ChangeMessageVisibilityBatchResultEntry",
    "DeleteMessageBatchRequestEntryList": "DeleteMessageBatchRequestEntry",
    "DeleteMessageBatchResultEntryList": "DeleteMessageBatchResultEntry",
    "ListMessageMoveTasksResultEntryList": "ListMessageMoveTasksResultEntry",
    "MessageAttributeNameList": "MessageAttributeName",
    "MessageList": "Message",
    "MessageSystemAttributeList": "MessageSystemAttributeName",
    "QueueUrlList": "QueueUrl",
    "SendMessageBatchRequestEntryList": "SendMessageBatchRequestEntry",
    "SendMessageBatchResultEntryList": "SendMessageBatchResultEntry",
    "StringList": "StringListValue",
    "TagKeyList": "TagKey",
}
JSON_LISTS: Final[Mapping[str, str]] = {
    "MessageList": "messages",
    "QueueUrlList": "queueUrls",
}  # recorded; all others are as named
CONTENT_TYPE = b"text/xml"
JSON_TYPE = b"application/json"
_FIELDS_MAX = 4_000  # a full batch has 10 entries with 10 attributes of 3 fields each, about 400
_ESCAPES_MAX = limits.MESSAGE_BYTES_MAX * 5 // 4  # enough for a whole message and its names
_NO_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")  # such a percent sign is kept
_NO_ESCAPES_MAX = 1_000  # clients send none
_DEPTH_MAX = 12  # dots in a name; the deepest real name has 6
_INDEX = re.compile(r"[0-9]{1,9}")
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_BITS = {"integer": 31, "long": 63}
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REPLACEMENT = "\ufffd"
_HEAD = '<?xml version="1.0"?>'
_OF_ACCOUNT = frozenset({"CreateQueue", "ListQueues"})  # actions that a queue's URL does not answer (recorded)
_QUEUE_PATH = re.compile(r"(?:/queue/[a-z0-9-]+)?/[0-9]{12}/[A-Za-z0-9_.-]+/?")
_Tree = dict[str, Any]  # by part of a name: text, or another tree if dots follow


# -- names -------------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """How a map is written: the element around each pair, and the elements for key and value."""

    element: str
    key: str
    value: str


MAPS: Final[Mapping[str, Pair]] = {
    "MessageBodyAttributeMap": Pair("MessageAttribute", "Name", "Value"),
    "MessageBodySystemAttributeMap": Pair("MessageSystemAttribute", "Name", "Value"),
    "MessageSystemAttributeMap": Pair("Attribute", "Name", "Value"),
    "QueueAttributeMap": Pair("Attribute", "Name", "Value"),
    "TagMap": Pair("Tag", "Key", "Value"),
}


def element_of(shape: str) -> str:
    """The name of each element of a list; `member` for a list newer than these tables."""
    return LISTS.get(shape, "member")


def pair_of(shape: str) -> Pair:
    """How a map is written; generic names for a map newer than these tables."""
    return MAPS.get(shape, Pair("entry", "key", "value"))


# ------------------------------------------------------------------------------------------------------ reading


def decode(model: SqsModel, form: bytes, path: str, query_string: bytes) -> tuple[SqsOperation, Any]:
    """The operation and the parameters of a request.

    Args:
        model: the operations of SQS.
        form: the body, form-encoded; empty for GET.
        path: the path, decoded; its last part names the queue if there is no `QueueUrl`.
        query_string: the part after the `?`. Parameters in the body take precedence.

    Raises:
        NoAction: no action is named.
        AwsError: MalformedQueryString: it cannot be read. InvalidAction: there is no such operation. MalformedInput: a
            parameter has another type; names it. MissingParameter and what `SqsOperation.check` raises: a required one
            is absent.
    """
    tree = parameters(form, query_string)
    action = tree.get("Action")
    if not isinstance(action, str) or not action:
        raise NoAction
    operation = model.get(action)
    if operation is None or (action in _OF_ACCOUNT and _QUEUE_PATH.fullmatch(path)):
        raise aws_errors.unknown_operation(action)
    members = _members(operation.input, tree)
    if "QueueUrl" in operation.input.members and "QueueUrl" not in members:
        members["QueueUrl"] = path if region_of_url(path) else path.rstrip("/").rpartition("/")[2] or None
    params = operation.input_type(**members)
    operation.check(params, query=True)
    return operation, params


def parameters(form: bytes, query_string: bytes) -> dict[str, Any]:
    """The parameters of a request, nested by the dots in their names; those in the body take precedence.

    Raises:
        AwsError: MalformedQueryString.
    """
    return _nested([*_fields(query_string), *_fields(form)])


class NoAction(AwsError):
    """A request without an action: AWS answers 404 and one empty element, whatever the client accepts."""

    BODY = b"<UnknownOperationException/>\n"

    def __init__(self) -> None:
        super().__init__("UnknownOperationException", "The request names no action.", status=404, modelled=False)


def wants_json(accept: bytes) -> bool:
    """Whether the value of an `Accept` header names JSON first."""
    return accept.partition(b",")[0].partition(b";")[0].strip().lower() == JSON_TYPE


def _fields(form: bytes) -> list[tuple[str, str]]:
    if form.count(b"%") > _ESCAPES_MAX:
        raise aws_errors.malformed_query_string(f"A request has at most {_ESCAPES_MAX} percent signs.")
    if form.count(b"&") >= _FIELDS_MAX:
        raise aws_errors.malformed_query_string(f"A request has at most {_FIELDS_MAX} parameters.")
    pairs = [pair.partition(b"=") for pair in form.split(b"&") if pair]
    try:
        form.decode("ascii")
        return [(_unquoted(name), _unquoted(value)) for name, _, value in pairs]
    except UnicodeError:
        raise aws_errors.malformed_query_string("The parameters are not percent-encoded UTF-8.") from None


def _unquoted(text: bytes) -> str:
    """Like `urllib.parse.unquote_plus`, which takes 250 MB and 0.5 s for the largest form: an object per percent sign."""
    text = text.replace(b"+", b" ")
    if b"%" in text:
        text, count = _NO_ESCAPE.subn(b"%25", text, _NO_ESCAPES_MAX)
        if count == _NO_ESCAPES_MAX:
            raise aws_errors.malformed_query_string("The parameters are not percent-encoded UTF-8.")
        text = a2b_qp(text.replace(b"=", b"=3D").replace(b"%", b"="))
    return text.decode()


def _nested(fields: list[tuple[str, str]]) -> _Tree:
    """Parameters nested by the dots in their names; the last of a repeated one counts."""
    tree: _Tree = {}
    for name, value in fields:
        *parents, last = name.split(".", _DEPTH_MAX)
        branch = tree
        for part in parents:
            inner = branch.get(part)
            if not isinstance(inner, dict):
                inner = branch[part] = {}
            branch = inner
        branch[last] = value
    return tree


def _members(shape: Shape, tree: _Tree) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, member in shape.members.items():
        found = tree.get(_documented(name, member))
        if found is None:
            found = tree.get(name)
        if found is not None:
            members[name] = _value(name, member, found)
    return members


def _documented(name: str, shape: Shape) -> str:
    """The name a member has in the query protocol."""
    if shape.kind == "list":
        return element_of(shape.name)
    return pair_of(shape.name).element if shape.kind == "map" else name


def _value(name: str, shape: Shape, found: str | _Tree) -> Any:
    if shape.kind == "list":
        assert shape.item is not None
        return [_value(name, shape.item, item) for item in _items(shape, found)]
    if shape.kind == "map":
        return dict(_pair(name, shape, item) for item in _items(shape, found))
    if shape.kind == "structure":
        if isinstance(found, str):
            raise _mismatch("STRING_VALUE can not be converted to a Structure", name)
        return shape.type(**_members(shape, found))
    if not isinstance(found, str):
        raise _mismatch("Start of structure or map found where not expected.", name)
    return _scalar(name, shape, found)


def _items(shape: Shape, found: str | _Tree) -> list[Any]:
    """The elements of a list or pairs of a map, in the order of their numbers; without a number there is only one."""
    if isinstance(found, str):
        return [found] if found else []  # an empty list is sent as an empty text
    for level in ("member", "entry", _documented("", shape)):
        if level in found:
            inner = found[level]
            if isinstance(inner, str):
                return [inner]
            return numbered(inner)
    return numbered(found)


def numbered(tree: dict[str, Any]) -> list[Any]:
    """The elements of a numbered list, in the order of their numbers; without numbers there is one."""
    parts = sorted((part for part in tree if _INDEX.fullmatch(part)), key=int)
    return [tree[part] for part in parts] if parts else [tree]


def _pair(name: str, shape: Shape, found: str | _Tree) -> tuple[str, Any]:
    pair = pair_of(shape.name)
    assert shape.item is not None
    if isinstance(found, str):
        raise _mismatch("STRING_VALUE can not be converted to a Map", name)
    key = found.get(pair.key, found.get("key"))
    value = found.get(pair.value, found.get("value"))
    if key is None:
        raise aws_errors.missing_parameter(f"{pair.element}.{pair.key}")
    if not isinstance(key, str):
        raise _mismatch("Start of structure or map found where not expected.", name)
    if value is None:
        if shape.item.kind != "structure":
            raise aws_errors.missing_parameter(f"{pair.element}.{pair.value}")
        value = {}  # the operation reports that it is empty, with the attribute's name
    return key, _value(name, shape.item, value)


def _scalar(name: str, shape: Shape, text: str) -> Any:
    if shape.kind in _BITS:
        if not _INTEGER.fullmatch(text):
            raise _mismatch("STRING_VALUE can not be converted to an Integer", name)
        number = int(text)
        if not -(2 ** _BITS[shape.kind]) <= number < 2 ** _BITS[shape.kind]:
            raise _mismatch("NUMBER_VALUE is out of range", name)
        return number
    if shape.kind == "boolean":
        if text.lower() not in {"true", "false"}:
            raise _mismatch("STRING_VALUE can not be converted to a Boolean", name)
        return text.lower() == "true"
    if shape.kind == "blob":
        try:
            return b64decode(text, validate=True)
        except ValueError:
            raise _mismatch("Invalid base64 encoded string", name) from None
    return text


def _mismatch(text: str, name: str) -> AwsError:
    return aws_errors.malformed_input(f"{text} ({name})")


# ------------------------------------------------------------------------------------------------------ writing


def encode(operation: SqsOperation, result: Mapping[str, Any] | None, request_id: str) -> bytes:
    """The body of a success. None values are left out; an operation without an output has no result element."""
    name = operation.name
    out = [_HEAD, f'<{name}Response xmlns="{NAMESPACE}">']
    if operation.output is not None:
        out.append(f"<{name}Result>")
        _write_members(operation.output, result or {}, out)
        if out[-1] == f"<{name}Result>":  # nothing was found: AWS writes the element in its short form
            out[-1] = f"<{name}Result/>"
        else:
            out.append(f"</{name}Result>")
    out.append(f"<ResponseMetadata><RequestId>{xml_text(request_id)}</RequestId></ResponseMetadata></{name}Response>")
    return "".join(out).encode()


def encode_json(operation: SqsOperation, result: Mapping[str, Any] | None, request_id: str) -> bytes:
    """The same as JSON in AWS's form for the query protocol: absent members are null, maps are lists of pairs."""
    answer: dict[str, Any] = {"ResponseMetadata": {"RequestId": request_id}}
    if operation.output is not None:
        answer[f"{operation.name}Result"] = _jsonable(operation.output, result or {})
    return json.dumps({f"{operation.name}Response": answer}, separators=(",", ":")).encode()


def _jsonable(shape: Shape, value: Any) -> Any:
    if value is None:
        return None
    if shape.kind == "structure":
        return {
            JSON_LISTS.get(member.name, name): _jsonable(member, value.get(name))
            for name, member in shape.members.items()
        }
    if shape.kind == "list":
        assert shape.item is not None
        return [_jsonable(shape.item, item) for item in value]
    if shape.kind == "map":
        assert shape.item is not None
        pair = pair_of(shape.name)
        return [{pair.key: key, pair.value: _jsonable(shape.item, item)} for key, item in value.items()]
    return b64encode(value).decode("ascii") if isinstance(value, bytes) else value


def headers(request_id: str) -> Headers:
    """The headers of every answer; their names in lower case, as ASGI requires."""
    return [(b"content-type", CONTENT_TYPE), (b"x-amzn-requestid", request_id.encode("ascii"))]


def encode_error(error: AwsError, request_id: str, namespace: str = NAMESPACE) -> tuple[int, Headers, bytes]:
    """Status, headers and body of an error."""
    body = (
        f'{_HEAD}<ErrorResponse xmlns="{namespace}"><Error><Type>{error.fault}</Type>'
        f"<Code>{error.code}</Code><Message>{xml_text(error.message)}</Message><Detail/></Error>"
        f"<RequestId>{xml_text(request_id)}</RequestId></ErrorResponse>"
    )
    return error.status, headers(request_id), body.encode()


def encode_json_error(error: AwsError, request_id: str) -> tuple[int, Headers, bytes]:
    """The same as JSON, for a client that names it first."""
    said = {"Code": error.code, "Message": error.message, "Type": error.fault}
    fields = [(b"content-type", JSON_TYPE), (b"x-amzn-requestid", request_id.encode("ascii"))]
    return error.status, fields, json.dumps({"Error": said, "RequestId": request_id}, separators=(",", ":")).encode()


def _write_members(shape: Shape, value: Mapping[str, Any], out: list[str]) -> None:
    for name, member in shape.members.items():
        found = value.get(name)
        if found is not None:
            _write(name, member, found, out)


def _write(name: str, shape: Shape, value: Any, out: list[str]) -> None:
    if shape.kind == "list":
        assert shape.item is not None
        element = element_of(shape.name)
        for item in value:
            _write(element, shape.item, item, out)
    elif shape.kind == "map":
        assert shape.item is not None
        pair = pair_of(shape.name)
        for key, item in value.items():
            out.append(f"<{pair.element}><{pair.key}>{xml_text(key)}</{pair.key}>")
            _write(pair.value, shape.item, item, out)
            out.append(f"</{pair.element}>")
    elif shape.kind == "structure":
        out.append(f"<{name}>")
        _write_members(shape, value, out)
        out.append(f"</{name}>")
    else:
        out.append(f"<{name}>{_plain(value)}</{name}>")


def _plain(value: str | bytes | bool | int) -> str:
    if isinstance(value, str):
        return xml_text(value)
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def xml_text(text: str) -> str:
    """Text as an element's content. A carriage return would be read as a line feed, so it is written as an escape."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\r", "&#xD;")
    return _NOT_XML.sub(_REPLACEMENT, text)
