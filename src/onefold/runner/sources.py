"""Messages that onefold did not send: turns the body as it arrives into the JSON text of the job's payload.

A job declares its source; nothing is guessed, because the author of a body could mislead a guess.

    json          the body is the payload (also SNS with raw message delivery, and most Scheduler inputs)
    text          the body is plain text; the payload is that text
    s3            S3 event notification; the payload is the list of its records
    s3-record     the same, where one record is one job; more than one record is refused
    sns           SNS envelope; the payload is the message inside
    eventbridge   EventBridge event; the payload is its `detail` (a scheduled rule's: its time and resources)
    scheduler     EventBridge Scheduler; the payload is the schedule's input (without one: its time and resources)
    celery        Celery task on kombu's SQS transport; the payload is its name and arguments (`onefold.celery.TaskCall`)
    auto          whichever of these the body resembles, apart from celery

Envelopes nest: `sns>s3`, `sns>eventbridge`, `sns>text`. What differs between two deliveries of the same thing (envelope
ids, send times, signatures) is kept out of the payload and so out of its fingerprint; it is in `meta` for people.
Keys of S3 objects remain URL-encoded, as S3 sends them. An S3 message is one operation although it holds a list,
because one message has one idempotency record and one outcome; S3 puts one of its records into each message.

Never here: types, keys, sending. Invariant: a body that does not fit the declaration is an error that names what it is.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from onefold import codec
from onefold.contracts.queue import Attribute
from onefold.errors import PayloadError, UsageError
from onefold.interrupts import let_through

_TEST_EVENT = "s3:TestEvent"
_SNS_TYPES = ("Notification", "SubscriptionConfirmation", "UnsubscribeConfirmation")
_SCHEDULED = "Scheduled Event"
_SHOWN_FIELDS = 8


class EnvelopeMeta(Struct, frozen=True, kw_only=True):
    """One envelope that was removed; for people and for handlers, never for keys.

    Args:
        source: which envelope it is.
        id: the id of the message or event, as its sender made it.
        kind: SNS subject, EventBridge detail-type, S3 event name.
        origin: topic, event source, bucket, schedule.
        at: when it happened, as the envelope writes it.
        attributes: texts that came with the message.
    """

    source: str
    id: str | None = None
    kind: str | None = None
    origin: str | None = None
    at: str | None = None
    attributes: Mapping[str, str] = {}


class Unwrapped(Struct, frozen=True):
    """A message for the job: the payload's JSON text, and the envelopes, outermost first."""

    payload: str
    meta: tuple[EnvelopeMeta, ...] = ()


class NotAJob(Struct, frozen=True):
    """A message to be discarded (S3's test event when a notification is set up)."""

    why: str


# ------------------------------------------------------------------------------------------- what envelopes look like


class _SnsAttribute(Struct):
    Value: str = ""


class _Sns(Struct):
    Type: str
    Message: str | None = None
    MessageId: str | None = None
    TopicArn: str | None = None
    Subject: str | None = None
    Timestamp: str | None = None
    MessageAttributes: dict[str, _SnsAttribute] = {}


class _Event(Struct, rename={"detail_type": "detail-type"}):
    detail_type: str
    source: str
    detail: Raw
    id: str | None = None
    time: str | None = None
    resources: list[str] = []


class _Bucket(Struct, frozen=True):
    name: str | None = None


class _S3(Struct, frozen=True):
    bucket: _Bucket = _Bucket()


class _S3Record(Struct):
    eventSource: str  # noqa: N815 - the envelope's own spelling
    eventName: str | None = None  # noqa: N815
    eventTime: str | None = None  # noqa: N815
    s3: _S3 = _S3()


class _CeleryHeaders(Struct):
    task: str
    id: str | None = None
    eta: str | None = None
    expires: str | None = None
    compression: str | None = None


class _CeleryProperties(Struct, frozen=True):
    body_encoding: str | None = None


class _Celery(Struct, rename={"content_type": "content-type"}):
    body: str
    content_type: str
    headers: _CeleryHeaders
    properties: _CeleryProperties = _CeleryProperties()


_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_TEXT = msgspec.json.Decoder(str)
_RAW_LIST = msgspec.json.Decoder(list[Raw])

Attributes = Mapping[str, Attribute]
_Step = tuple[str, EnvelopeMeta]  # the text inside, and the envelope around it
_Unwrap = Callable[[str, Attributes], _Step | NotAJob]


# ---------------------------------------------------------------------------------------------------------- the verbs


def unwrap(source: str, body: str, attributes: Attributes) -> Unwrapped | NotAJob:
    """Remove the declared envelopes from a message.

    Args:
        source: as declared, see `check_source`.
        body: the message's body.
        attributes: the message's own attributes.

    Raises:
        PayloadError: the body is something else; the error says what. Whether the payload is JSON is checked later, by
            the codec.
    """
    if source == "json":
        return Unwrapped(body)
    text = body
    metas: list[EnvelopeMeta] = []
    names = source.split(">")
    while names:
        name = names.pop(0)
        if name == "auto":
            name = recognise(text)
            if name == "sns":
                names.insert(0, "auto")  # this ends, because what is inside is always shorter
        found = _UNWRAP[name](text, attributes)
        if isinstance(found, NotAJob):
            return found
        text, meta = found
        metas.append(meta)
        attributes = {}  # the message's attributes belong to the outermost envelope only
    return Unwrapped(text, tuple(metas))


def check_source(source: str, job: str) -> None:
    """Refuse a source that does not exist.

    Raises:
        UsageError: names the nearest one.
    """
    for name in source.split(">"):
        if name not in SOURCES:
            from difflib import get_close_matches

            near = get_close_matches(name.lower(), SOURCES, n=1)
            raise UsageError(
                f"source={source!r} of {job} is not known.",
                todo=f"Did you mean {near[0]!r}?"
                if near
                else f"It is one of {', '.join(SOURCES)}, or two joined by >.",
            )
    if ">" in source and any(name in ("json", "text", "auto") for name in source.split(">")[:-1]):
        raise UsageError(
            f"source={source!r} of {job} has nothing to open.", todo='Write the outer one first: "sns>s3".'
        )


def recognise(body: str) -> str:
    """The source that a body resembles; `json` for any other JSON, `text` otherwise. For error texts and for `auto`."""
    try:
        fields = _OBJECT.decode(body)
    except msgspec.ValidationError:
        return "json"
    except (ValueError, RecursionError) as error:
        let_through(error)
        return "text"
    if _text_of(fields.get("Event")) == _TEST_EVENT or _records_of(fields) == "aws:s3":
        return "s3"
    if _text_of(fields.get("Type")) in _SNS_TYPES and "TopicArn" in fields:
        return "sns"
    if {"detail-type", "source", "detail"} <= fields.keys():
        return "scheduler" if _text_of(fields["source"]) == "aws.scheduler" else "eventbridge"
    return "json"


# ------------------------------------------------------------------------------------------------------ the envelopes


def _json(body: str, attributes: Attributes) -> _Step:
    return body, EnvelopeMeta(source="json", attributes=_texts(attributes))


def _plain_text(body: str, attributes: Attributes) -> _Step:
    return codec.encode(body).decode(), EnvelopeMeta(source="text", attributes=_texts(attributes))


def _s3(body: str, attributes: Attributes) -> _Step | NotAJob:
    fields = _fields(body, "an S3 event notification")
    if _text_of(fields.get("Event")) == _TEST_EVENT:
        return NotAJob("S3 sends a test event when a notification is set up")
    if _records_of(fields) != "aws:s3":
        raise _other(body, "an S3 event notification")
    first = msgspec.json.decode(_RAW_LIST.decode(fields["Records"])[0], type=_S3Record)
    meta = EnvelopeMeta(
        source="s3",
        kind=first.eventName,
        origin=first.s3.bucket.name,
        at=first.eventTime,
        attributes=_texts(attributes),
    )
    return bytes(fields["Records"]).decode(), meta


def _s3_record(body: str, attributes: Attributes) -> _Step | NotAJob:
    found = _s3(body, attributes)
    if isinstance(found, NotAJob):
        return found
    text, meta = found
    records = _RAW_LIST.decode(text)
    if len(records) != 1:
        raise PayloadError(
            f"The S3 notification has {len(records)} records, and the job takes one.",
            meaning="One message has one outcome; with several records a failure of one would run the others again.",
            todo='Declare source="s3" and take the list, or send each record as a message of its own.',
        )
    return bytes(records[0]).decode(), meta


def _sns(body: str, attributes: Attributes) -> _Step:
    _fields(body, "an SNS envelope")
    try:
        envelope = msgspec.json.decode(body, type=_Sns)
    except msgspec.ValidationError:
        raise _other(body, "an SNS envelope", _RAW_DELIVERY) from None
    if envelope.Type in _SNS_TYPES[1:]:
        raise PayloadError(
            f"The message is an SNS {envelope.Type} of {envelope.TopicArn}, not a notification.",
            meaning="The subscription of this queue is not confirmed; nothing will be delivered.",
            todo="Confirm it, with the SubscribeURL in the body, if you know the topic.",
        )
    if envelope.Type != "Notification" or envelope.Message is None:
        raise _other(body, "an SNS envelope", _RAW_DELIVERY)
    meta = EnvelopeMeta(
        source="sns",
        id=envelope.MessageId,
        kind=envelope.Subject,
        origin=envelope.TopicArn,
        at=envelope.Timestamp,
        attributes={name: one.Value for name, one in envelope.MessageAttributes.items()} | _texts(attributes),
    )
    return envelope.Message, meta


_RAW_DELIVERY: Final = (
    'If the subscription has raw message delivery, declare source="json"; otherwise find who sends here.'
)


def _eventbridge(body: str, attributes: Attributes) -> _Step:
    _fields(body, "an EventBridge event")
    try:
        event = msgspec.json.decode(body, type=_Event)
    except msgspec.ValidationError:
        raise _other(
            body,
            "an EventBridge event",
            'If the rule\'s target has an input transformer, declare source="json"; otherwise find who sends here.',
        ) from None
    meta = EnvelopeMeta(
        source="eventbridge",
        id=event.id,
        kind=event.detail_type,
        origin=event.source,
        at=event.time,
        attributes=_texts(attributes),
    )
    if event.detail_type == _SCHEDULED and event.source in ("aws.events", "aws.scheduler"):
        # Its detail is empty; the tick is identified by its nominal time and the rule or schedule.
        return codec.encode({"resources": event.resources, "time": event.time}).decode(), meta
    return bytes(event.detail).decode(), meta


def _scheduler(body: str, attributes: Attributes) -> _Step:
    texts = _texts(attributes)
    if texts.get("IS_PAYLOAD_TRUNCATED", "").lower() == "true":
        raise PayloadError(
            "The scheduler cut this message: its attribute IS_PAYLOAD_TRUNCATED is true.",
            meaning=f"What the job should do is not in it any more. Schedule: {texts.get('SCHEDULE_ARN', 'unknown')}.",
            todo="Send the full input by hand, and keep inputs of schedules small.",
        )
    if recognise(body) in ("scheduler", "eventbridge"):
        text, meta = _eventbridge(body, attributes)
        return text, msgspec.structs.replace(meta, source="scheduler")
    meta = EnvelopeMeta(
        source="scheduler",
        id=texts.get("EXECUTION_ID"),
        origin=texts.get("SCHEDULE_ARN"),
        at=texts.get("SCHEDULED_TIME"),
        attributes=texts,
    )
    return body, meta


def _celery(body: str, attributes: Attributes) -> _Step:
    """A message of Celery's protocol 2, as kombu's SQS transport writes it: in base64, or as JSON."""
    wanted = "a message of Celery's protocol 2"
    text = body if body.lstrip()[:1] == "{" else _from_base64(body, wanted)
    _fields(text, wanted)
    try:
        message = msgspec.json.decode(text, type=_Celery)
    except msgspec.ValidationError:
        raise _other(text, wanted) from None
    task = message.headers.task
    if message.content_type != "application/json" or message.headers.compression is not None:
        form = message.headers.compression or message.content_type
        raise PayloadError(
            f"The arguments of the Celery task {task:.100} are written as {form:.60}, not as plain JSON.",
            todo="Send it with task_serializer='json', which is Celery's default, and without task_compression.",
        )
    inside = message.body
    if message.properties.body_encoding == "base64":
        inside = _from_base64(inside, wanted)
    try:
        args, kwargs, embedded = msgspec.json.decode(inside, type=tuple[list[Raw], dict[str, Raw], dict[str, Any]])
    except msgspec.ValidationError:
        raise PayloadError(
            f"The body of the Celery task {task:.100} is not a list of args, kwargs and options.",
            todo="Send it with Celery's protocol 2, the default since version 4: task_protocol=2.",
        ) from None
    except (ValueError, RecursionError) as error:
        let_through(error)
        codec.canonical(inside)  # raises the codec's error
        raise
    more = [name for name, value in embedded.items() if value]
    more += [name for name in ("eta", "expires") if getattr(message.headers, name)]
    if more:
        raise PayloadError(
            f"The Celery task {task:.100} was sent with {', '.join(f'{name:.40}' for name in more[:_SHOWN_FIELDS])}.",
            meaning="Only Celery's own worker acts on that; here it would be lost, or run too early.",
            todo="Leave this task to Celery, or send it as a job: job.send(payload, delay=...), ctx.send for what follows.",
        )
    meta = EnvelopeMeta(source="celery", id=message.headers.id, kind=task, attributes=_texts(attributes))
    return msgspec.json.encode({"task": task, "args": args, "kwargs": kwargs}).decode(), meta


def _from_base64(text: str, wanted: str) -> str:
    try:
        return base64.b64decode(text.encode(), validate=True).decode()
    except (binascii.Error, UnicodeError):
        raise PayloadError(
            f"The message is not {wanted}: it is neither JSON nor base64 of a text.",
            todo="Declare the source that fits, or find who sends here.",
        ) from None


_UNWRAP: Final[dict[str, _Unwrap]] = {
    "json": _json,
    "text": _plain_text,
    "s3": _s3,
    "s3-record": _s3_record,
    "sns": _sns,
    "eventbridge": _eventbridge,
    "scheduler": _scheduler,
    "celery": _celery,
}
SOURCES: Final = (*_UNWRAP, "auto")


# ------------------------------------------------------------------------------------------------------------- reading


def _fields(body: str, wanted: str) -> dict[str, Raw]:
    try:
        return _OBJECT.decode(body)
    except msgspec.ValidationError:
        raise _other(body, wanted) from None
    except (ValueError, RecursionError) as error:
        let_through(error)
        codec.canonical(body)  # raises the codec's error
        raise


def _text_of(raw: Raw | None) -> str | None:
    if raw is None:
        return None
    try:
        return _TEXT.decode(raw)
    except ValueError as error:
        let_through(error)
        return None


def _records_of(fields: Mapping[str, Raw]) -> str | None:
    """The event source of the first of `Records`; None without such a list."""
    try:
        return msgspec.json.decode(_RAW_LIST.decode(fields["Records"])[0], type=_S3Record).eventSource
    except (LookupError, ValueError) as error:
        let_through(error)
        return None


def _texts(attributes: Attributes) -> dict[str, str]:
    return {name: one.value for name, one in attributes.items() if isinstance(one.value, str)}


_NAMES: Final = {
    "s3": "an S3 event notification",
    "sns": "an SNS envelope",
    "eventbridge": "an EventBridge event",
    "scheduler": "a schedule's default event",
}


def _other(body: str, wanted: str, todo: str = "Declare the source that fits, or find who sends here.") -> PayloadError:
    """The error for a body that is not what was declared."""
    looks = recognise(body)
    if looks in _NAMES and _NAMES[looks] != wanted:
        found = _NAMES[looks]
        todo = f'Declare source="{looks}", or find who sends here.'
    else:
        try:
            names = list(_OBJECT.decode(body))
            more = f" and {len(names) - _SHOWN_FIELDS} more" if len(names) > _SHOWN_FIELDS else ""
            found = (
                f"a JSON object with the fields {', '.join(names[:_SHOWN_FIELDS])}{more}"
                if names
                else "an empty object"
            )
        except ValueError as error:
            let_through(error)
            kinds = {"[": "a JSON list", '"': "a JSON text", "n": "null", "t": "true", "f": "false"}
            found = kinds.get(body.lstrip()[:1], "a number")
    return PayloadError(f"The message is not {wanted}: it is {found}.", todo=todo)
