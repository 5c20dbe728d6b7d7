"""Topics of a local SNS: what is published to one is put into each queue that is subscribed to it and whose filter fits.

A subscription puts SNS's envelope into its queue, or the bare message (raw delivery). A message that a queue refuses goes to
the subscription's dead-letter queue, or is lost for that subscriber, with a warning: SNS does not try such a message again.
Topics and subscriptions come from a template; they are kept in memory, and made again at each start.

Never here: HTTP and how parameters are written (`sns_api.py`), the filter language (`events/patterns.py`). Invariants: a
message that SNS would refuse is put into no queue; no subscriber's failure keeps a message from another.

Sources: SNS API reference, Publish, PublishBatch; SNS developer guide, "Message attributes", "Message filtering", "Raw
message delivery", "Message deduplication for FIFO topics", "Parsing message formats"; quotas: 256 KB for a message.
"""

from __future__ import annotations

import json
import logging
import math
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final, Literal

from msgspec import Struct

from onefold import errors, limits
from onefold.contracts.entries import Entry, Refused, check_attributes
from onefold.contracts.queue import Attribute
from onefold.events.patterns import Pattern, matches, view_of
from onefold.local.aws_errors import AwsError
from onefold.local.sqs_service import SqsService

MESSAGE_BYTES_MAX: Final = 262_144
SUBJECT_CHARS_MAX: Final = 100
DEDUP_MS: Final = 5 * limits.MINUTE_MS
RAW_ATTRIBUTES_MAX: Final = 10  # of a raw message; SNS discards one that has more
_TYPES: Final = ("String", "String.Array", "Number", "Binary")
_log = logging.getLogger("onefold")


class Subscription(Struct, frozen=True, kw_only=True):
    """A queue that is subscribed to a topic.

    Args:
        arn: its own. queue: the queue's name.
        raw: whether the queue gets the bare message. dead_letter: name of the queue for what this one refuses.
        pattern: its filter policy; None takes everything. scope: what the policy is about.
    """

    arn: str
    queue: str
    raw: bool = False
    dead_letter: str | None = None
    pattern: Pattern | None = None
    scope: Literal["MessageAttributes", "MessageBody"] = "MessageAttributes"


class Topic(Struct, kw_only=True):
    """A topic. `content_dedup`: of a FIFO topic; the message itself is the deduplication id where none is given."""

    arn: str
    fifo: bool = False
    content_dedup: bool = False
    subscriptions: list[Subscription] = []

    @property
    def name(self) -> str:
        """The last part of its ARN."""
        return self.arn.rpartition(":")[2]


class Publication(Struct, frozen=True, kw_only=True):
    """A message to be published.

    Args:
        message: its text. for_queues: the text for subscribers of protocol sqs, where it differs.
        subject: None if there is none. attributes: by name. group, dedup_id: as for SQS.
    """

    message: str
    for_queues: str | None = None
    subject: str | None = None
    attributes: Mapping[str, Attribute] = {}
    group: str | None = None
    dedup_id: str | None = None


class Published(Struct, frozen=True):
    """A message was accepted; `sequence` is its number on a FIFO topic."""

    message_id: str
    sequence: str | None = None


class Topics:
    """The topics of one server.

    Args:
        sqs: takes what is put into queues. make_id: returns a new message id.
    """

    def __init__(self, sqs: SqsService, make_id: Callable[[], str]) -> None:
        self._sqs = sqs
        self._make_id = make_id
        self._topics: dict[str, Topic] = {}
        self._seen: dict[tuple[str, str], tuple[int, Published]] = {}
        self._count = 0

    def add(self, topic: Topic) -> None:
        """Make a topic."""
        self._topics[topic.arn] = topic

    def listed(self) -> list[Topic]:
        """All topics, in the order in which they were made."""
        return list(self._topics.values())

    def topic(self, arn: str) -> Topic:
        """The topic with this ARN.

        Raises:
            AwsError: NotFound.
        """
        found = self._topics.get(arn)
        if found is None:
            raise AwsError("NotFound", "Topic does not exist", status=404)
        return found

    async def publish(self, topic: Topic, publication: Publication) -> Published:
        """Put a message into the queues of a topic's subscribers.

        Raises:
            AwsError: InvalidParameter: SNS would refuse it; nothing was put anywhere.
        """
        check(topic, publication)
        dedup_id = dedup_id_of(topic, publication)
        now_ms = self._sqs.queues.timers.now_ms()
        if dedup_id is not None:
            self._forget(now_ms)
            seen = self._seen.get((topic.arn, dedup_id))
            if seen is not None and now_ms < seen[0] + DEDUP_MS:
                return seen[1]
        self._count += 1
        published = Published(self._make_id(), f"{10**19 + self._count}" if topic.fifo else None)
        if dedup_id is not None:
            self._seen[topic.arn, dedup_id] = (now_ms, published)
        for subscription in list(topic.subscriptions):
            if _fits(subscription, publication):
                await self._deliver(topic, subscription, publication, published, now_ms)
        return published

    def _forget(self, now_ms: int) -> None:
        """Drop what is too old to be a duplicate's original; the oldest come first."""
        while self._seen:
            key = next(iter(self._seen))
            if now_ms < self._seen[key][0] + DEDUP_MS:
                return
            del self._seen[key]

    async def _deliver(
        self, topic: Topic, to: Subscription, publication: Publication, published: Published, now_ms: int
    ) -> None:
        entry = _entry(topic, to, publication, _envelope(topic, to, publication, published, now_ms))
        why = await self._put(to.queue, entry)
        if why is None:
            return
        if to.dead_letter is not None:
            also = await self._put(to.dead_letter, entry)
            if also is None:
                return
            why = f"{why} And its dead-letter queue {to.dead_letter} refused it, too: {also}"
        text = "SNS message %s of topic %s was not put into queue %s: %s"
        _log.warning(text, published.message_id, topic.name, to.queue, why)

    async def _put(self, queue: str, entry: Entry) -> str | None:
        """Put a message into a queue; returns why that was refused, or None."""
        if len(entry.attributes) > RAW_ATTRIBUTES_MAX:
            return (
                f"A raw message has at most {RAW_ATTRIBUTES_MAX} attributes, and this one has {len(entry.attributes)}."
            )
        try:
            (answer,) = await self._sqs.queues.send(queue, (entry,), via="sns")
        except errors.OnefoldError as error:
            return error.what
        return answer.message if isinstance(answer, Refused) else None


# -- what is refused ---------------------------------------------------------------------------------------------------


def invalid(text: str) -> AwsError:
    """The error for a parameter that SNS would refuse."""
    return AwsError("InvalidParameter", f"Invalid parameter: {text}")


def check(topic: Topic, publication: Publication) -> None:
    """Refuse a message that SNS would refuse.

    Raises:
        AwsError: InvalidParameter, ParameterValueInvalid.
    """
    if not publication.message:
        raise invalid("Empty message")
    if bytes_of(publication) > MESSAGE_BYTES_MAX:
        raise invalid("Message too long")
    subject = publication.subject
    if subject is not None and not (0 < len(subject) <= SUBJECT_CHARS_MAX and subject.isprintable()):
        raise invalid("Subject")
    for name, attribute in publication.attributes.items():
        if attribute.type not in _TYPES:
            raise AwsError(
                "ParameterValueInvalid",
                f"The message attribute '{name}' has an invalid message attribute type, the set of supported type "
                f"prefixes is {', '.join(_TYPES)}.",
            )
        if (refused := check_attributes({name: attribute})) is not None:
            raise AwsError("ParameterValueInvalid", refused.message)
        if attribute.type == "String.Array" and not isinstance(_value(attribute), list):
            raise AwsError("ParameterValueInvalid", f"The message attribute '{name}' is not a list in JSON.")
    if not topic.fifo:
        if publication.dedup_id is not None:
            raise invalid("MessageDeduplicationId Reason: The request includes MessageDeduplicationId parameter that is "
                          "not valid for this topic type")  # fmt: skip
        return
    if publication.group is None:
        raise invalid("The MessageGroupId parameter is required for FIFO topics")
    if publication.dedup_id is None and not topic.content_dedup:
        raise invalid(
            "The topic should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
        )


def bytes_of(publication: Publication) -> int:
    """The size that counts: the text and the attributes with names and types."""
    size = len(publication.message.encode(errors="surrogatepass"))
    for name, one in publication.attributes.items():
        value = one.value.encode(errors="surrogatepass") if isinstance(one.value, str) else one.value
        size += len(name.encode(errors="surrogatepass")) + len(one.type) + len(value)
    return size


def dedup_id_of(topic: Topic, publication: Publication) -> str | None:
    """The deduplication id of a message; None on a standard topic."""
    if not topic.fifo:
        return None
    given = publication.dedup_id
    return given if given is not None else sha256(publication.message.encode(errors="surrogatepass")).hexdigest()


# -- what a subscriber gets --------------------------------------------------------------------------------------------


def _fits(subscription: Subscription, publication: Publication) -> bool:
    if subscription.pattern is None:
        return True
    if subscription.scope == "MessageAttributes":
        values = {name: _value(one) for name, one in publication.attributes.items() if one.type != "Binary"}
        return matches(subscription.pattern, view_of(values))
    try:
        body = json.loads(publication.message)
    except (ValueError, RecursionError):
        return False
    return isinstance(body, dict) and matches(subscription.pattern, view_of(body))


def _value(attribute: Attribute) -> Any:
    """An attribute as a filter policy sees it."""
    if attribute.type == "String" or not isinstance(attribute.value, str):
        return attribute.value
    try:
        found = json.loads(attribute.value)
    except (ValueError, RecursionError):
        return attribute.value
    return attribute.value if isinstance(found, float) and not math.isfinite(found) else found


def _envelope(topic: Topic, to: Subscription, publication: Publication, published: Published, now_ms: int) -> str:
    """The message as the queue gets it."""
    message = publication.message if publication.for_queues is None else publication.for_queues
    if to.raw:
        return message
    at = datetime.fromtimestamp(now_ms / limits.SECOND_MS, tz=UTC).isoformat(timespec="milliseconds")
    envelope: dict[str, Any] = {
        "Type": "Notification",
        "MessageId": published.message_id,
        "SequenceNumber": published.sequence,
        "TopicArn": topic.arn,
        "Subject": publication.subject,
        "Message": message,
        "Timestamp": at.replace("+00:00", "Z"),
        "UnsubscribeURL": f"https://sns.invalid/?Action=Unsubscribe&SubscriptionArn={to.arn}",
        "MessageAttributes": {
            name: {
                "Type": one.type,
                "Value": one.value if isinstance(one.value, str) else b64encode(one.value).decode("ascii"),
            }
            for name, one in publication.attributes.items()
        }
        or None,
    }
    present = {name: value for name, value in envelope.items() if value is not None}
    return json.dumps(present, indent=2, separators=(",", " : "), ensure_ascii=False)


def _entry(topic: Topic, to: Subscription, publication: Publication, body: str) -> Entry:
    fifo = to.queue.endswith(".fifo")
    return Entry(
        body=body,
        attributes=dict(publication.attributes) if to.raw else {},
        group=publication.group,
        dedup_id=dedup_id_of(topic, publication) if fifo else None,
        trusted=False,
    )


def entries_of(topics: Sequence[Topic]) -> list[str]:
    """`topic -> queue` of each subscription, for people."""
    return [f"{topic.name} -> {one.queue}" for topic in topics for one in topic.subscriptions]
