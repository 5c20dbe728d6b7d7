"""SNS's API as far as a publisher uses it, over the query protocol: Publish, PublishBatch, and the calls that look.

Topics come from the template that is served, so a call that would make or change one is refused, except CreateTopic for one
that exists, which programs call to learn its ARN.
Never here: who gets a message (`topics.py`). Invariant: whatever the bytes are, the answer is SNS's, or one of its errors.

Source: SNS API reference, the operation of the function's name; the service model of botocore.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterable, Mapping
from typing import Any, Final

from onefold import limits
from onefold.contracts.queue import Attribute
from onefold.local import query_protocol
from onefold.local.aws_errors import AwsError
from onefold.local.connection import HttpRequest, Response
from onefold.local.topics import MESSAGE_BYTES_MAX, Publication, Subscription, Topic, Topics, bytes_of, check, invalid

VERSION: Final = "2010-03-31"
NAMESPACE: Final = f"http://sns.amazonaws.com/doc/{VERSION}/"
_VERSION: Final = f"Version={VERSION}".encode()
_NAMED: Final = re.compile(rb"(?:^|&)" + re.escape(_VERSION) + rb"(?:&|$)")
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_XML: Final = ((b"content-type", query_protocol.CONTENT_TYPE),)
_ATTRIBUTES_MAX: Final = 256  # our limit: an envelope may have more than a queue's message, and 256 KB bound it anyway
_LOOKS: Final = frozenset(
    {"GetTopicAttributes", "ListSubscriptions", "ListSubscriptionsByTopic", "ListTopics", "CreateTopic"}
)

_Form = Mapping[str, Any]


def is_for_sns(request: HttpRequest) -> bool:
    """Whether a request of the query protocol is one of SNS: it names the version of its API."""
    return any(_VERSION in text and _NAMED.search(text) for text in (request.body, request.query.encode("latin-1")))


class SnsApi:
    """Answers SNS's calls. `topics`: those of this server; `owner`: its account."""

    def __init__(self, topics: Topics, owner: str) -> None:
        self._topics = topics
        self._owner = owner

    async def handle(self, request: HttpRequest, request_id: str) -> Response:
        """The answer to a request of SNS's query protocol."""
        try:
            form = query_protocol.parameters(request.body, request.query.encode("latin-1"))
            action = _text(form, "Action") or ""
            body = await self._answer(action, form)
        except AwsError as error:
            status, headers, body_of_error = query_protocol.encode_error(error, request_id, NAMESPACE)
            return Response(status, body_of_error, tuple(headers))
        result = f"<{action}Result>{body}</{action}Result>" if body else f"<{action}Result/>"
        text = (
            f'<{action}Response xmlns="{NAMESPACE}">{result}'
            f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{action}Response>"
        )
        return Response(200, text.encode(), _XML, request_id)

    async def _answer(self, action: str, form: _Form) -> str:
        if action == "Publish":
            return await self._publish(form)
        if action == "PublishBatch":
            return await self._publish_batch(form)
        if action in _LOOKS:
            return self._look(action, form)
        raise AwsError(
            "InvalidAction",
            f"The action {action[:100]} is not served: topics and subscriptions come from the template. Publish, "
            f"PublishBatch, {', '.join(sorted(_LOOKS))} are.",
        )

    # -- publishing ----------------------------------------------------------------------------------------------------

    async def _publish(self, form: _Form) -> str:
        if _text(form, "PhoneNumber") is not None:
            raise invalid("PhoneNumber Reason: only topics are served here")
        arn = _text(form, "TopicArn") or _text(form, "TargetArn")
        if arn is None:
            raise invalid("TopicArn or TargetArn Reason: no value for required parameter")
        published = await self._topics.publish(self._topics.topic(arn), _publication(form))
        return _element("MessageId", published.message_id) + _element("SequenceNumber", published.sequence)

    async def _publish_batch(self, form: _Form) -> str:
        topic = self._topics.topic(_text(form, "TopicArn") or "")
        entries = [one for one in _members(form.get("PublishBatchRequestEntries")) if isinstance(one, dict)]
        ids = [_text(one, "Id") or "" for one in entries]
        if not entries:
            raise AwsError("EmptyBatchRequest", "The batch request doesn't contain any entries.")
        if len(entries) > limits.BATCH_ENTRIES_MAX:
            raise AwsError(
                "TooManyEntriesInBatchRequest",
                f"The batch request contains more entries than permissible: {len(entries)}, and 10 are allowed.",
            )
        if not all(_ID.fullmatch(one) for one in ids):
            raise AwsError(
                "InvalidBatchEntryId", "The Id of a batch entry in a batch request doesn't abide by its rules."
            )
        if len(set(ids)) < len(ids):
            raise AwsError("BatchEntryIdsNotDistinct", "Two or more batch entries in the request have the same Id.")
        good: list[tuple[str, Publication]] = []
        failed: list[str] = []
        for entry_id, one in zip(ids, entries, strict=True):
            try:
                publication = _publication(one)
                check(topic, publication)
                good.append((entry_id, publication))
            except AwsError as error:
                failed.append(
                    _element("Id", entry_id) + _element("Code", error.code) + _element("Message", error.message)
                    + _element("SenderFault", "true")
                )  # fmt: skip
        if sum(bytes_of(one) for _, one in good) > MESSAGE_BYTES_MAX:
            raise AwsError("BatchRequestTooLong", f"The batch is longer than {MESSAGE_BYTES_MAX:,} bytes.")
        done = []
        for entry_id, publication in good:
            published = await self._topics.publish(topic, publication)
            done.append(
                _element("Id", entry_id) + _element("MessageId", published.message_id)
                + _element("SequenceNumber", published.sequence)
            )  # fmt: skip
        return _list("Successful", done) + _list("Failed", failed)

    # -- looking -------------------------------------------------------------------------------------------------------

    def _look(self, action: str, form: _Form) -> str:
        match action:
            case "ListTopics":
                return _list("Topics", [_element("TopicArn", one.arn) for one in self._topics.listed()])
            case "ListSubscriptions":
                return _list("Subscriptions", self._subscriptions(self._topics.listed()))
            case "ListSubscriptionsByTopic":
                topic = self._topics.topic(_text(form, "TopicArn") or "")
                return _list("Subscriptions", self._subscriptions([topic]))
            case "CreateTopic":
                return _element("TopicArn", self._named(_text(form, "Name") or "").arn)
            case _:
                return _pairs(self._topics.topic(_text(form, "TopicArn") or ""), self._owner)

    def _named(self, name: str) -> Topic:
        found = next((one for one in self._topics.listed() if one.name == name), None)
        if found is None:
            raise invalid(f"Name Reason: topics come from the template, which has none that is called {name[:256]}")
        return found

    def _subscriptions(self, topics: Iterable[Topic]) -> list[str]:
        return [self._subscription(topic, one) for topic in topics for one in topic.subscriptions]

    def _subscription(self, topic: Topic, one: Subscription) -> str:
        queue = topic.arn.replace(":sns:", ":sqs:").rpartition(":")[0] + f":{one.queue}"
        return (
            _element("SubscriptionArn", one.arn) + _element("Owner", self._owner) + _element("Protocol", "sqs")
            + _element("Endpoint", queue) + _element("TopicArn", topic.arn)
        )  # fmt: skip


def _pairs(topic: Topic, owner: str) -> str:
    attributes = {
        "TopicArn": topic.arn,
        "Owner": owner,
        "SubscriptionsConfirmed": str(len(topic.subscriptions)),
        **({"FifoTopic": "true", "ContentBasedDeduplication": str(topic.content_dedup).lower()} if topic.fifo else {}),
    }
    pairs = "".join(
        f"<entry>{_element('key', name)}{_element('value', value)}</entry>" for name, value in attributes.items()
    )
    return f"<Attributes>{pairs}</Attributes>"


# -- parameters and XML ------------------------------------------------------------------------------------------------


def _publication(form: _Form) -> Publication:
    """A message out of its parameters.

    Raises:
        AwsError: InvalidParameter, ParameterValueInvalid.
    """
    message = _text(form, "Message")
    if message is None:
        raise invalid("Message Reason: no value for required parameter")
    for_queues = None
    structure = _text(form, "MessageStructure")
    if structure == "json":
        message, for_queues = _per_protocol(message)
    elif structure:
        raise invalid("MessageStructure")
    return Publication(
        message=message,
        for_queues=for_queues,
        subject=_text(form, "Subject"),
        attributes=dict(_attribute(one) for one in _attributes(form)),
        group=_text(form, "MessageGroupId"),
        dedup_id=_text(form, "MessageDeduplicationId"),
    )


def _per_protocol(message: str) -> tuple[str, str | None]:
    try:
        texts = json.loads(message)
    except (ValueError, RecursionError):
        raise invalid("Message Structure - JSON message body failed to parse") from None
    if not isinstance(texts, dict) or not isinstance(texts.get("default"), str):
        raise invalid("Message Structure - No default entry in JSON message body")
    own = texts.get("sqs")
    return texts["default"], own if isinstance(own, str) else None


def _attributes(form: _Form) -> list[_Form]:
    found: list[_Form] = [one for one in _members(form.get("MessageAttributes"), "entry") if isinstance(one, dict)]
    if len(found) > _ATTRIBUTES_MAX:
        raise invalid(f"MessageAttributes Reason: more than {_ATTRIBUTES_MAX}")
    return found


def _attribute(form: _Form) -> tuple[str, Attribute]:
    name, value = _text(form, "Name") or "", form.get("Value")
    fields: _Form = value if isinstance(value, dict) else {}
    text, binary = _text(fields, "StringValue"), _text(fields, "BinaryValue")
    if not text and not binary:
        raise AwsError(
            "ParameterValueInvalid",
            f"The message attribute '{name[:256]}' must contain non-empty message attribute value for message attribute "
            f"type '{(_text(fields, 'DataType') or '')[:256]}'.",
        )
    kind = _text(fields, "DataType") or ""
    if binary is None:
        return name, Attribute(text or "", kind)
    try:
        return name, Attribute(b64decode(binary, validate=True), kind)
    except ValueError:
        raise AwsError("ParameterValueInvalid", f"The value of '{name[:256]}' is not base64.") from None


def _text(form: _Form, name: str) -> str | None:
    found = form.get(name)
    return found if isinstance(found, str) else None


def _members(found: object, name: str = "member") -> list[Any]:
    inner = found.get(name) if isinstance(found, dict) else None
    return query_protocol.numbered(inner) if isinstance(inner, dict) else []


def _element(name: str, value: str | None) -> str:
    return "" if value is None else f"<{name}>{query_protocol.xml_text(value)}</{name}>"


def _list(name: str, items: Iterable[str]) -> str:
    inside = "".join(f"<member>{one}</member>" for one in items)
    return f"<{name}>{inside}</{name}>" if inside else f"<{name}/>"
