"""The names of the older query protocol, which the current service model no longer carries.

A list is written as repeated elements with a name of its own (`MessageAttributeName.1=...`), a map as repeated pairs
(`Attribute.1.Name=...&Attribute.1.Value=...`). Requests and answers use the same names.

Only names live here, by the shape that has them. Invariant: every list and map of the service model stands in one table.

Source: SQS API reference, examples of each operation; the service model of SDKs before November 2023.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

NAMESPACE: Final = "http://queue.amazonaws.com/doc/2012-11-05/"


class Pair(NamedTuple):
    """How a map is written: the element around each pair, and the elements of key and value."""

    element: str
    key: str
    value: str


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

MAPS: Final[Mapping[str, Pair]] = {
    "MessageBodyAttributeMap": Pair("MessageAttribute", "Name", "Value"),
    "MessageBodySystemAttributeMap": Pair("MessageSystemAttribute", "Name", "Value"),
    "MessageSystemAttributeMap": Pair("Attribute", "Name", "Value"),
    "QueueAttributeMap": Pair("Attribute", "Name", "Value"),
    "TagMap": Pair("Tag", "Key", "Value"),
}


JSON_LISTS: Final[Mapping[str, str]] = {
    "MessageList": "messages",
    "QueueUrlList": "queueUrls",
}  # recorded; else as named


def element_of(shape: str) -> str:
    """The name of each element of a list; `member` for a list that is newer than these tables."""
    return LISTS.get(shape, "member")


def pair_of(shape: str) -> Pair:
    """How a map is written; generic names for a map that is newer than these tables."""
    return MAPS.get(shape, Pair("entry", "key", "value"))
