"""Sending, the second half of the Queue contract: a message to be sent, its rules, and the queue's answers.

The rules are SQS's, with its codes and texts, from the AWS documentation and from AWS's observed behaviour; every queue
checks its entries with `check_entry`, so senders need not. An outbox item for an EventBridge bus has
`bus_queue_name(name)` as its queue: on AWS a put is a send to that name, and each entry's body is one PutEvents entry, as
JSON. The embedded engine does not use such names: its buses are rules of the app (`events/bus.py`). No queue can have such
a name.
Never here: what was received, when and where to send.
Invariant: a message that was `Sent` is durable; of one that was `Refused` nothing was stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from onefold import limits
from onefold.contracts.queue import Attribute
from onefold.contracts.settings import QueueSettings

if TYPE_CHECKING:
    from onefold.contracts.store import OutboxItem


DERIVED_DEDUP: Final = "onefold."
"""Prefix of the deduplication ids that onefold derives from an operation; an id from elsewhere never counts as one."""


class Entry(Struct, frozen=True, kw_only=True, gc=False):
    """A message to be sent.

    Args:
        body: the text, 1 byte to the queue's maximum in UTF-8, of the characters SQS allows.
        attributes: at most 10, by name.
        delay_ms: hidden for this long after sending, 0 to 900,000; None takes the queue's delay. Not on FIFO queues.
        run_at_ms: wall-clock instant before which the message does not enter the queue, however far ahead. Its retention and
            its FIFO position count from that instant, as if it were sent then.
        wait_ms: as `run_at_ms`, but counted from when it is accepted, whatever the wall clock is set to meanwhile.
        wait_until_ms: with `wait_ms`, the steady instant at which the wait ends if it began before this send: it is the same
            when the message is sent again, after a crash.
        group: message group id. Required on FIFO; on a standard queue the tenant (fair queues).
        dedup_id: deduplication id, FIFO only; None derives it from the body where the queue allows that.
        key: the business key, stored with the message so that people and tools can find it; it has no effect.
        trace: the system attribute AWSTraceHeader; not counted in the message size.
        trusted: False where another program sends through onefold (`onefold serve`), so its attributes are not onefold's
            own.
    """

    body: str
    attributes: Mapping[str, Attribute] = {}
    delay_ms: int | None = None
    run_at_ms: int | None = None
    wait_ms: int | None = None
    wait_until_ms: int | None = None
    group: str | None = None
    dedup_id: str | None = None
    key: str | None = None
    trace: str | None = None
    trusted: bool = True


class Sent(Struct, frozen=True, gc=False):
    """A message was accepted: it is durable.

    Args:
        message_id: stable for the life of the message, also across the automatic move to a dead-letter queue.
        sequence: FIFO only: decimal number, larger for each later message of a group.
        duplicate: FIFO only: accepted but not delivered, because the same deduplication id was seen within 5 minutes;
            message_id and sequence are the first one's.
    """

    message_id: str
    sequence: str | None = None
    duplicate: bool = False


class Refused(Struct, frozen=True, gc=False):
    """A message was not accepted; no part of it was stored.

    Args:
        code: SQS's error code, for example `InvalidParameterValue`.
        message: what is wrong with which value, and the rule.
    """

    code: str
    message: str


NOT_SENT: Final = Refused("NotSent", "Another message of the same call was refused, and all were to be sent or none.")
"""The answer of `send(..., whole=True)` for a valid message, when another one is refused."""


def from_outbox(item: OutboxItem, now_ms: int) -> Entry:
    """An item of a run's outbox as a message to be sent at the steady instant `now_ms`."""
    return Entry(
        body=item.body,
        attributes={name: Attribute(value) for name, value in item.attributes.items()},
        delay_ms=item.delay_ms,
        run_at_ms=item.run_at_ms if item.wait_ms is None else None,
        wait_ms=left_ms(item.run_at_ms, item.wait_ms, now_ms),
        wait_until_ms=None if item.wait_ms is None else item.run_at_ms,
        group=item.group,
        dedup_id=item.dedup_id,
        key=item.key,
    )


def left_ms(until_ms: int | None, wait_ms: int | None, now_ms: int) -> int | None:
    """The rest of a wait of `wait_ms` that was to end at `until_ms`; never more than all of it. None: there is none."""
    return None if wait_ms is None else min(max((until_ms or now_ms) - now_ms, 0), wait_ms)


_PLACE: Final = "bus:"  # no queue's name has a colon


def bus_queue_name(name: str) -> str:
    """The queue name of an outbox item that is to be put on this bus."""
    return f"{_PLACE}{name}"


def bus_of(queue_name: str) -> str | None:
    """The bus that a name made by `bus_queue_name` stands for; None for the name of a real queue."""
    return queue_name.removeprefix(_PLACE) if queue_name.startswith(_PLACE) else None


INSTANT_MS_MAX: Final = 253_402_300_799_999  # ours: the end of the year 9999, as far as datetime goes
ATTRIBUTE_TYPE_CHARS_MAX: Final = 256  # SQS API, MessageAttributeValue
NUMBER_DIGITS_MAX: Final = 38  # SQS developer guide, message metadata: precision of a Number
NUMBER_CHARS_MAX: Final = 1_024  # ours: the longest number within the bounds below has 170, plus leading zeros
NUMBER_EXPONENT_MIN: Final = -128  # same: from 10^-128
NUMBER_EXPONENT_MAX: Final = 126  # same: to 10^+126

# Patterns are compiled at their first use (`re` caches them), so that importing costs nothing. _FORBIDDEN spells out the
# complement of _ALLOWED: written as a negated set, the pattern would take ten times as long to compile.
_FORBIDDEN = "[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]"
_ALLOWED = "#x9 | #xA | #xD | [#x20-#xD7FF] | [#xE000-#xFFFD] | [#x10000-#x10FFFF]"
_ID = r"[!-~]{1,128}"  # ASCII letters, digits and all its punctuation; no space
_ATTRIBUTE_NAME = r"[\w.\-]+"  # letters of any alphabet: AWS accepts them, although its documentation says A-Z a-z
_NUMBER = r"[+-]?([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?"

_INVALID = "InvalidParameterValue"


def check_entry(entry: Entry, settings: QueueSettings) -> Refused | None:
    """Why a queue with these settings would not accept `entry`; None when it would."""
    body = entry.body
    if type(body) is not str:
        return Refused(_INVALID, f"The message body must be text, not {type(body).__name__}.")
    if not body:
        return Refused("MissingParameter", "The request must contain the parameter MessageBody.")
    if body.isascii():
        size = len(body)
        clean = body.isprintable() or re.search(_FORBIDDEN, body) is None
    else:
        clean = re.search(_FORBIDDEN, body) is None
        size = len(body.encode()) if clean else 0
    if not clean:
        return Refused("InvalidMessageContents", _bad_character(body, "message body"))
    if entry.attributes:
        wrong = check_attributes(entry.attributes)
        if wrong is not None:
            return wrong
        size += _attribute_bytes(entry.attributes)
    if size > settings.message_bytes_max:
        return Refused(
            _INVALID,
            "One or more parameters are invalid. Reason: Message must be shorter than "
            f"{settings.message_bytes_max} bytes.",
        )
    if entry.delay_ms is not None or entry.run_at_ms is not None or entry.wait_ms is not None:
        wrong = _check_times(entry, settings.fifo)
        if wrong is not None:
            return wrong
    return _check_ids(entry, settings)


def too_many_attributes(count: int) -> str:
    """SQS's error text for a message with more than 10 user attributes."""
    return f"Number of message attributes [{count}] exceeds the allowed maximum [{limits.ATTRIBUTES_MAX}]."


def check_attributes(attributes: Mapping[str, Attribute]) -> Refused | None:
    """Why SQS would not accept these user attributes; None when it would."""
    if len(attributes) > limits.ATTRIBUTES_MAX:
        return Refused(_INVALID, too_many_attributes(len(attributes)))
    for name, attribute in attributes.items():
        wrong, value = _name_problem(name), attribute.value
        if wrong is None:
            if attribute.type == "String" and type(value) is str and value and value.isprintable():
                continue  # nearly all texts
            wrong = _value_problem(name, attribute)
        if wrong is not None:
            return Refused(_INVALID, wrong)
    return None


def _bad_character(text: str, where: str) -> str:
    found = re.search(_FORBIDDEN, text)
    code = f"#x{ord(found.group()):X}" if found else "?"
    return f"Invalid binary character '{code}' was found in the {where}, the set of allowed characters is {_ALLOWED}."


def _attribute_bytes(attributes: Mapping[str, Attribute]) -> int:
    """What SQS counts in addition to the body: UTF-8 bytes of every attribute's name, type and value."""
    size = 0
    for name, attribute in attributes.items():
        value, kind = attribute.value, attribute.type
        size += len(name) if name.isascii() else len(name.encode())
        size += len(kind) if kind.isascii() else len(kind.encode())
        size += len(value.encode()) if isinstance(value, str) and not value.isascii() else len(value)
    return size


@lru_cache(maxsize=256)  # senders use the same few names repeatedly
def _name_problem(name: str) -> str | None:
    if not name:
        return "The message attribute '' must contain non-empty message attribute name."
    if len(name) > limits.ATTRIBUTE_NAME_CHARS_MAX:
        return "Message (user) attribute names must be shorter than 256 Bytes"
    if not re.fullmatch(_ATTRIBUTE_NAME, name) or ".." in name:
        return (
            f"The message attribute name '{name}' is invalid. Attribute name can contain A-Z, a-z, 0-9, "
            "underscore (_), hyphen (-), and period (.) characters, no two periods in a row."
        )
    if name.lower().startswith(("aws.", "amazon.", ".")) or name.endswith("."):
        return (
            "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. These strings are reserved "
            "for internal use. Additionally, they cannot start or end with '.'."
        )
    return None


def _value_problem(name: str, attribute: Attribute) -> str | None:
    kind = attribute.type.partition(".")[0]
    value = attribute.value
    if (
        kind not in ("String", "Number", "Binary")
        or len(attribute.type) > ATTRIBUTE_TYPE_CHARS_MAX
        or (not attribute.type.isprintable() and re.search(_FORBIDDEN, attribute.type))
    ):
        return (
            f"The message attribute '{name}' has an invalid message attribute type, the set of supported type "
            "prefixes is Binary, Number, and String."
        )
    if not isinstance(value, bytes if kind == "Binary" else str):
        field = "Binary" if kind == "Binary" else "String"
        return f"The message attribute '{name}' with type '{attribute.type}' must use field '{field}'."
    if not value:
        return f"Message (user) attribute '{name}' must contain a non-empty value of type '{attribute.type}'."
    if isinstance(value, str):
        if not value.isprintable() and re.search(_FORBIDDEN, value):
            return _bad_character(value, f"message attribute '{name}'")
        if kind == "Number" and not _is_number(value):
            return f"Can't cast the value of message (user) attribute '{name}' to a number."
    return None


def _is_number(text: str) -> bool:
    if len(text) > NUMBER_CHARS_MAX or not re.fullmatch(_NUMBER, text):
        return False
    from decimal import Decimal

    number = Decimal(text)
    if not number:
        return True
    digits = "".join(map(str, number.as_tuple().digits)).strip("0")
    exponent = number.adjusted()
    in_range = NUMBER_EXPONENT_MIN <= exponent < NUMBER_EXPONENT_MAX
    return len(digits) <= NUMBER_DIGITS_MAX and (in_range or (exponent == NUMBER_EXPONENT_MAX and digits == "1"))


def _check_times(entry: Entry, fifo: bool) -> Refused | None:
    delay_ms, run_at_ms = entry.delay_ms, entry.run_at_ms
    if (delay_ms, run_at_ms, entry.wait_ms).count(None) < 2:
        given = f"delay_ms ({delay_ms}), run_at_ms ({run_at_ms}) and wait_ms ({entry.wait_ms})"
        return Refused(_INVALID, f"{given} exclude each other: give one.")
    if run_at_ms is not None and (type(run_at_ms) is not int or abs(run_at_ms) > INSTANT_MS_MAX):
        return Refused(
            _INVALID, f"run_at_ms must be whole milliseconds since the epoch, to the year 9999, not {run_at_ms!r:.80}."
        )
    if entry.wait_ms is not None and (type(entry.wait_ms) is not int or not 0 <= entry.wait_ms <= INSTANT_MS_MAX):
        return Refused(
            _INVALID, f"wait_ms must be whole milliseconds, 0 to {INSTANT_MS_MAX}, not {entry.wait_ms!r:.80}."
        )
    if delay_ms is None:
        return None
    if type(delay_ms) is not int or not 0 <= delay_ms <= limits.DELAY_MS_MAX:
        return Refused(
            _INVALID,
            f"Value {_seconds(delay_ms)} for parameter DelaySeconds is invalid. Reason: Must be >= 0 and <= 900, "
            "if provided.",
        )
    if fifo and delay_ms:
        return Refused(_INVALID, _not_for_type(_seconds(delay_ms), "DelaySeconds"))
    return None


def _check_ids(entry: Entry, settings: QueueSettings) -> Refused | None:
    group, dedup_id = entry.group, entry.dedup_id
    if group is not None and not re.fullmatch(_ID, group):
        return Refused(_INVALID, _bad_id(group, "MessageGroupId"))
    if dedup_id is not None:
        if not settings.fifo:
            return Refused(_INVALID, _not_for_type(dedup_id, "MessageDeduplicationId"))
        if not re.fullmatch(_ID, dedup_id):
            return Refused(_INVALID, _bad_id(dedup_id, "MessageDeduplicationId"))
    if settings.fifo:
        if group is None:
            return Refused("MissingParameter", "The request must contain the parameter MessageGroupId.")
        if dedup_id is None and not settings.content_dedup:
            return Refused(
                _INVALID,
                "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided "
                "explicitly",
            )
    return None


def _not_for_type(value: object, parameter: str) -> str:
    return (
        f"Value {value} for parameter {parameter} is invalid. Reason: The request include parameter that is not "
        "valid for this queue type."
    )


def _bad_id(value: str, parameter: str) -> str:
    return (
        f"Value {value} for parameter {parameter} is invalid. Reason: {parameter} can only include alphanumeric "
        "and punctuation characters. 1 to 128 in length."
    )


def _seconds(duration_ms: object) -> object:
    return f"{duration_ms / 1000:g}" if isinstance(duration_ms, int) else duration_ms
