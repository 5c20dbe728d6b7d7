"""The client's side of the wire: botocore's own serializers and parsers, for JSON and for the query protocol.

botocore speaks JSON to SQS now. Its query serializer and parser still exist for other services; here they are given the
SQS model with the element names it had until November 2023, written the way the model wrote them.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any
from urllib.parse import urlencode

from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.parsers import JSONParser, QueryParser
from botocore.serialize import JSONSerializer, QuerySerializer

_PAIR = {"key": "Name", "value": "Value"}
# Shape of a list: the locationName of its member. Shape of a map: its own, and those of key and value.
_LISTS = {
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
_MAPS: dict[str, tuple[str, dict[str, str]]] = {
    "MessageBodyAttributeMap": ("MessageAttribute", _PAIR),
    "MessageBodySystemAttributeMap": ("MessageSystemAttribute", _PAIR),
    "MessageSystemAttributeMap": ("Attribute", _PAIR),
    "QueueAttributeMap": ("Attribute", _PAIR),
    "TagMap": ("Tag", {"key": "Key", "value": "Value"}),
}


@cache
def raw_model() -> dict[str, Any]:
    """The service model as botocore reads it."""
    return dict(Loader().load_service_model("sqs", "service-2", "2012-11-05"))


@cache
def json_model() -> ServiceModel:
    return ServiceModel(raw_model(), "sqs")


@cache
def query_model() -> ServiceModel:
    """The service model with the traits of the query protocol put back."""
    raw = copy.deepcopy(raw_model())
    raw["metadata"] = {**raw["metadata"], "protocol": "query", "protocols": ["query"]}
    for operation in raw["operations"].values():
        if "output" in operation:
            operation["output"]["resultWrapper"] = operation["output"]["shape"]
    for name, element in _LISTS.items():
        raw["shapes"][name].update(flattened=True)
        raw["shapes"][name]["member"]["locationName"] = element
    for name, (element, pair) in _MAPS.items():
        raw["shapes"][name].update(flattened=True, locationName=element)
        for part, part_name in pair.items():
            raw["shapes"][name][part]["locationName"] = part_name
    for name in ("MessageAttributeValue", "MessageSystemAttributeValue"):
        raw["shapes"][name]["members"]["StringListValues"]["locationName"] = "StringListValue"
        raw["shapes"][name]["members"]["BinaryListValues"]["locationName"] = "BinaryListValue"
    return ServiceModel(raw, "sqs")


def json_request(operation: str, params: dict[str, Any]) -> tuple[str, bytes]:
    """What a client sends: `X-Amz-Target` and the body."""
    sent = JSONSerializer().serialize_to_request(params, json_model().operation_model(operation))
    body = sent["body"]
    return sent["headers"]["X-Amz-Target"], body if isinstance(body, bytes) else body.encode()


def query_request(operation: str, params: dict[str, Any]) -> bytes:
    """What a client of the older protocol sends as a form."""
    sent = QuerySerializer().serialize_to_request(params, query_model().operation_model(operation))
    return form(list(sent["body"].items()))


def form(fields: list[tuple[str, str]]) -> bytes:
    """Parameters as a form; a text that is no UTF-8 is sent as somebody careless would."""
    return urlencode(fields, errors="surrogatepass").encode()


def json_answer(operation: str, body: bytes, *, status: int = 200, headers: Any = ()) -> dict[str, Any]:
    """What a client makes of an answer; without the metadata of a success."""
    return _parsed(JSONParser(), json_model(), operation, body, status, headers)


def query_answer(operation: str, body: bytes, *, status: int = 200, headers: Any = ()) -> dict[str, Any]:
    """The same for the older protocol."""
    return _parsed(QueryParser(), query_model(), operation, body, status, headers)


def _parsed(parser: Any, model: ServiceModel, operation: str, body: bytes, status: int, headers: Any) -> dict[str, Any]:
    answer = {
        "status_code": status,
        "headers": {name.decode(): value.decode() for name, value in headers},
        "body": body,
        "context": {"operation_name": operation},
    }
    parsed: dict[str, Any] = parser.parse(answer, model.operation_model(operation).output_shape)
    if status < 300:
        parsed.pop("ResponseMetadata")
    return parsed
