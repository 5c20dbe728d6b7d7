"""EventBridge's events: the entries of a put, their validation, and their envelopes.

An entry is what a sender puts: source, detail-type, detail, resources, time. The bus makes it an envelope: it adds id,
account and region. The envelope's text is matched with patterns, kept in archives and sent to queues. A replayed event
is the same text, with the same id, time and detail, and `replay-name` added.
Never here: rules, queues, generating ids. Invariant: the detail in an envelope is the sender's text, with its numbers
unchanged.

Sources: EventBridge user guide, "Events", "PutEvents"; API reference, PutEventsRequestEntry, PutEventsResultEntry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from onefold import codec, limits
from onefold.errors import PayloadError, UsageError

ENTRY_BYTES_MAX: Final = 1024 * 1024  # user guide, PutEvents: a request is smaller than 1 MB
DETAIL_TYPE_CHARS_MAX: Final = 128  # API reference, PutEventsRequestEntry
_TIME_BYTES: Final = 14  # user guide, "Calculating PutEvents event entry size"
_OF_AN_ENVELOPE: Final = frozenset(
    {"version", "id", "detail-type", "source", "account", "time", "region", "resources", "detail"}
)
_FIELDS: Final = ("Source", "DetailType", "Detail", "Resources", "Time", "EventBusName", "TraceHeader")


class EventEntry(Struct, frozen=True, kw_only=True):
    """An event to be put on a bus.

    Args:
        source: the sender, for example `shop.orders`; must not begin with `aws.`.
        detail_type: what happened, for example `Order placed`; 1 to 128 characters.
        detail: the facts: anything whose JSON is an object, or the text of such JSON.
        resources: names of the things it is about, often ARNs.
        time_ms: when it happened, UTC; None: when it is put. Envelopes keep whole seconds.
    """

    source: str
    detail_type: str
    detail: Any
    resources: Sequence[str] = ()
    time_ms: int | None = None


class EntryFault(Struct, frozen=True, gc=False):
    """Why an entry is refused: the code of PutEvents and a sentence. The same entry must not be put again."""

    code: str
    message: str


class Envelope(Struct, frozen=True, gc=False):
    """An event as it is sent, kept and matched.

    Args:
        id: a UUID. time_ms: when it happened, whole seconds.
        text: its JSON. value: the same, decoded.
    """

    id: str
    time_ms: int
    text: str
    value: Mapping[str, Any]


class Origin(Struct, frozen=True, gc=False):
    """The fields of an envelope that come from the bus: an account of 12 digits and a region."""

    account: str
    region: str


def sealed(entry: EventEntry, origin: Origin, event_id: str, now_ms: int) -> Envelope | EntryFault:
    """The envelope of an entry, or what is wrong with the entry.

    Args:
        event_id: a new UUID. now_ms: when it is put, UTC.
    """
    given: tuple[tuple[str, object], ...] = (("Source", entry.source), ("DetailType", entry.detail_type))
    for name, value in given:
        if not isinstance(value, str) or not value:
            return EntryFault(
                "InvalidArgument", f"Parameter {name} is not valid. Reason: {name} is a required argument."
            )
    if len(entry.detail_type) > DETAIL_TYPE_CHARS_MAX:
        return EntryFault(
            "InvalidArgument",
            f"Parameter DetailType is not valid. Reason: it has {len(entry.detail_type)} characters, at most "
            f"{DETAIL_TYPE_CHARS_MAX} are allowed.",
        )
    if entry.source.startswith("aws."):
        return EntryFault("NotAuthorizedForSourceException", f"Not authorized for the source {entry.source!r}.")
    if not all(isinstance(one, str) for one in entry.resources):
        return EntryFault("InvalidArgument", "Parameter Resources is not valid. Reason: it is a list of strings.")
    text = _detail(entry.detail)
    if isinstance(text, EntryFault):
        return text
    sizes = map(len, map(str.encode, (entry.source, entry.detail_type, text, *entry.resources)))
    size = sum(sizes) + (_TIME_BYTES if entry.time_ms is not None else 0)
    if size >= ENTRY_BYTES_MAX:
        return EntryFault(
            "InvalidArgument", f"The entry has {size:,} bytes. Reason: it must have fewer than 1,048,576."
        )
    at_ms = now_ms if entry.time_ms is None else entry.time_ms
    try:
        time = time_text(at_ms)
    except (ValueError, OverflowError, OSError, TypeError):
        return EntryFault(
            "InvalidArgument", f"Parameter Time is not valid. Reason: {entry.time_ms!r} is not a valid instant."
        )
    envelope = {
        "version": "0",
        "id": event_id,
        "detail-type": entry.detail_type,
        "source": entry.source,
        "account": origin.account,
        "time": time,
        "region": origin.region,
        "resources": list(entry.resources),
        "detail": Raw(text.encode()),
    }
    return opened(msgspec.json.encode(envelope).decode())


def request_of(event: Envelope) -> str:
    """An event as an entry of PutEvents, as JSON, without its id: EventBridge assigns one."""
    fields = msgspec.json.decode(event.text, type=dict[str, Raw])
    request = {
        "Source": fields["source"],
        "DetailType": fields["detail-type"],
        "Detail": bytes(fields["detail"]).decode(),
        "Resources": fields["resources"],
        "Time": fields["time"],
    }
    return msgspec.json.encode(request).decode()


def opened(text: str) -> Envelope:
    """An envelope from its text, as archives keep it."""
    value = msgspec.json.decode(text)
    return Envelope(value["id"], instant(value["time"]), text, value)


def replayed(text: str, replay: str) -> Envelope:
    """The envelope of a replayed event: the same, with `replay-name` before the detail."""
    fields = msgspec.json.decode(text, type=dict[str, Raw])
    detail = fields.pop("detail")
    fields["replay-name"] = Raw(msgspec.json.encode(replay))
    return opened(msgspec.json.encode({**fields, "detail": detail}).decode())


def unmarked(text: str) -> str:
    """A replayed event without its `replay-name`; any other text unchanged."""
    try:
        fields = msgspec.json.decode(text, type=dict[str, Raw])
    except (msgspec.DecodeError, UnicodeError):
        return text
    if not fields.keys() >= _OF_AN_ENVELOPE:
        return text
    fields.pop("replay-name", None)
    return msgspec.json.encode(fields).decode()


def event_id(*tokens: str) -> str:
    """A UUID from two tokens of 16 hexadecimal digits."""
    digits = "".join(tokens)[:32]
    variant = "89ab"[int(digits[16], 16) % 4]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def time_text(at_ms: int) -> str:
    """An instant as envelopes write it: `2026-06-01T02:00:00Z`, the fraction of a second cut off."""
    return f"{datetime.fromtimestamp(at_ms // limits.SECOND_MS, tz=UTC).replace(tzinfo=None).isoformat()}Z"


def instant(text: str) -> int:
    """The instant of an ISO 8601 text with a zone, UTC ms.

    Raises:
        ValueError: another form, or no zone.
    """
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return int(found.replace(microsecond=0).timestamp()) * limits.SECOND_MS + found.microsecond // 1000


def entry_of(fields: Mapping[str, Any]) -> EventEntry:
    """An entry in the form of PutEvents: `{"Source": ..., "DetailType": ..., "Detail": "{...}", "Resources": [...]}`.

    `Detail` may be an object as well as its text; `Time` is ISO 8601 or seconds since the epoch. `EventBusName` and
    `TraceHeader` are ignored. Missing fields are left to `sealed`, which answers as PutEvents does.

    Raises:
        UsageError: it is not an object, has other fields, or a time that cannot be read.
    """
    if not isinstance(fields, Mapping):
        raise UsageError("An entry is an object.", todo='Write {"Source": ..., "DetailType": ..., "Detail": {...}}.')
    unknown = [name for name in fields if name not in _FIELDS]
    if unknown:
        raise UsageError(
            f"An entry has no field {unknown[0]!r}.",
            todo=f"The fields are {', '.join(_FIELDS)}; they begin with a capital, as PutEvents has them.",
        )
    resources = fields.get("Resources", ())
    return EventEntry(
        source=fields.get("Source", ""),
        detail_type=fields.get("DetailType", ""),
        detail=fields.get("Detail"),
        resources=tuple(resources) if isinstance(resources, list | tuple) else (None,),  # type: ignore[arg-type]  # refused by `sealed`
        time_ms=_read_time(fields.get("Time")),
    )


def _read_time(time: object) -> int | None:
    try:
        if time is None:
            return None
        if isinstance(time, int | float) and not isinstance(time, bool):
            return round(time * limits.SECOND_MS)
        return instant(str(time))
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"The Time {time!r} cannot be read: {error}.", todo="Write for example 2026-06-01T02:00:00Z."
        ) from None


def _detail(detail: Any) -> str | EntryFault:
    """The text of a detail; its numbers as the sender wrote them."""
    if detail is None or detail == "":
        return EntryFault("InvalidArgument", "Parameter Detail is not valid. Reason: Detail is a required argument.")
    if isinstance(detail, str):
        text = detail
    else:
        try:
            text = codec.encode(detail).decode()
        except PayloadError as error:
            return EntryFault("MalformedDetail", f"Detail is malformed. {error.what}")
    try:
        is_object = isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        return EntryFault("MalformedDetail", f"Detail is malformed. It is not JSON: {error}.")
    return text if is_object else EntryFault("MalformedDetail", "Detail is malformed. It is not a JSON object.")
