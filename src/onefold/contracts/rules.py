"""SQS's rules for messages and queue settings, in SQS's own codes and words; shared by every backend and the wire.

`check_entry` says why one message would not be accepted; `check_settings` and `check_target` refuse a queue that cannot
be. Pure: values in, an answer or a UsageError out. Never here: storage, policy of jobs, or how an error is put on a
wire. Sources: the AWS documentation for the numbers, answers recorded from AWS for the texts.
Invariant: what these rules accept, SQS accepts.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from onefold import errors, limits
from onefold.contracts.queue import Attribute, Entry, Refused
from onefold.contracts.settings import QueueSettings

ATTRIBUTE_TYPE_CHARS_MAX: Final = 256  # SQS API, MessageAttributeValue
NUMBER_DIGITS_MAX: Final = 38  # SQS developer guide, message metadata: precision of a Number
NUMBER_EXPONENT_MIN: Final = -128  # same: from 10^-128
NUMBER_EXPONENT_MAX: Final = 126  # same: to 10^+126
REDRIVE_SOURCES_MAX: Final = 10  # SQS CreateQueue, RedriveAllowPolicy.sourceQueueArns

# Patterns are compiled at their first use (`re` keeps them), so that importing costs nothing. _FORBIDDEN is what is not in
# _ALLOWED, spelt out: as a complement of it the pattern would take ten times as long to compile.
_FORBIDDEN = "[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]"
_ALLOWED = "#x9 | #xA | #xD | [#x20-#xD7FF] | [#xE000-#xFFFD] | [#x10000-#x10FFFF]"
_ID = r"[!-~]{1,128}"  # ASCII letters, digits and all its punctuation; no space
_ATTRIBUTE_NAME = r"[\w.\-]+"  # letters of any alphabet: AWS was seen to accept them, though it says A-Z a-z
_NUMBER = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?"

_QUEUE_NAME_SIGNS = frozenset(string.ascii_letters + string.digits + "-_")

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
    if entry.delay_ms is not None or entry.run_at_ms is not None:
        wrong = _check_times(entry, settings.fifo)
        if wrong is not None:
            return wrong
    return _check_ids(entry, settings)


def check_attributes(attributes: Mapping[str, Attribute]) -> Refused | None:
    """Why SQS would not accept these user attributes; None when it would."""
    if len(attributes) > limits.ATTRIBUTES_MAX:
        return Refused(
            _INVALID,
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [{limits.ATTRIBUTES_MAX}].",
        )
    for name, attribute in attributes.items():
        wrong = _name_problem(name) or _value_problem(name, attribute)
        if wrong is not None:
            return Refused(_INVALID, wrong)
    return None


def _bad_character(text: str, where: str) -> str:
    found = re.search(_FORBIDDEN, text)
    code = f"#x{ord(found.group()):X}" if found else "?"
    return f"Invalid binary character '{code}' was found in the {where}, the set of allowed characters is {_ALLOWED}."


def _attribute_bytes(attributes: Mapping[str, Attribute]) -> int:
    """What SQS counts beside the body: UTF-8 bytes of every attribute's name, type and value."""
    return sum(
        len(name.encode())
        + len(attribute.type.encode())
        + len(attribute.value.encode() if isinstance(attribute.value, str) else attribute.value)
        for name, attribute in attributes.items()
    )


@lru_cache(maxsize=256)  # senders use the same few names again and again
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
    if not re.fullmatch(_NUMBER, text):
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
    if delay_ms is not None and run_at_ms is not None:
        return Refused(_INVALID, f"delay_ms ({delay_ms}) and run_at_ms ({run_at_ms}) exclude each other: give one.")
    if run_at_ms is not None and type(run_at_ms) is not int:
        return Refused(_INVALID, f"run_at_ms must be whole milliseconds since the epoch, not {run_at_ms!r}.")
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


# -- queue settings ----------------------------------------------------------------------------------------


def check_settings(settings: QueueSettings) -> None:
    """Refuse settings that SQS would refuse, looking at this queue alone.

    Raises:
        UsageError: names the setting, its value and its range.
    """
    name = settings.name
    stem = name.removesuffix(".fifo")
    if not stem or len(name) > limits.QUEUE_NAME_CHARS_MAX or not _QUEUE_NAME_SIGNS.issuperset(stem):
        raise errors.UsageError(
            f"{name!r} cannot be the name of a queue.",
            meaning="A name has 1 to 80 of A-Z a-z 0-9 - _; that of a FIFO queue ends in .fifo, which counts too.",
            todo="Choose another name.",
        )
    if settings.fifo != name.endswith(".fifo"):
        raise errors.UsageError(
            f"Queue {name!r} has fifo={settings.fifo}.",
            meaning="The names of FIFO queues end in .fifo, and no other queue's name does.",
            todo="Change the name or the type.",
        )
    for setting, lowest, highest in (
        ("visibility_ms", 0, limits.VISIBILITY_MS_MAX),
        ("retention_ms", limits.RETENTION_MS_MIN, limits.RETENTION_MS_MAX),
        ("delay_ms", 0, limits.DELAY_MS_MAX),
        ("message_bytes_max", limits.MESSAGE_BYTES_MIN, limits.MESSAGE_BYTES_MAX),
        ("in_flight_max", 1, limits.IN_FLIGHT_MAX),
        ("receives_max", 1, limits.RECEIVES_MAX),
    ):
        value = getattr(settings, setting)
        if value is None and setting == "receives_max":
            continue
        if type(value) is not int or not lowest <= value <= highest:
            raise errors.UsageError(
                f"Queue {name!r} has {setting}={value!r}.",
                meaning=f"It is a whole number from {lowest:,} to {highest:,}.",
                todo="Choose a value in that range.",
            )
    _check_fifo_only(settings)
    _check_redrive(settings)


def _check_fifo_only(settings: QueueSettings) -> None:
    if settings.dedup_scope not in ("queue", "messageGroup"):
        raise errors.UsageError(
            f"Queue {settings.name!r} has dedup_scope={settings.dedup_scope!r}.",
            todo="Use 'queue' or 'messageGroup'.",
        )
    if not settings.fifo and (settings.content_dedup or settings.dedup_scope != "queue"):
        raise errors.UsageError(
            f"Queue {settings.name!r} is a standard queue with content_dedup={settings.content_dedup} and "
            f"dedup_scope={settings.dedup_scope!r}.",
            meaning="Only FIFO queues deduplicate.",
            todo="Make it a FIFO queue or leave both settings out.",
        )


def _check_redrive(settings: QueueSettings) -> None:
    name = settings.name
    if (settings.dead_letter is None) != (settings.receives_max is None):
        raise errors.UsageError(
            f"Queue {name!r} has dead_letter={settings.dead_letter!r} and receives_max={settings.receives_max}.",
            meaning="A redrive policy needs both: where to, and after how many receives.",
            todo="Give both or neither.",
        )
    if name in (settings.dead_letter, settings.held):
        raise errors.UsageError(
            f"Queue {name!r} names itself as its dead-letter or held queue.", todo="Name another queue."
        )
    if settings.redrive_allow not in ("allowAll", "denyAll", "byQueue"):
        raise errors.UsageError(
            f"Queue {name!r} has redrive_allow={settings.redrive_allow!r}.",
            todo="Use 'allowAll', 'denyAll' or 'byQueue'.",
        )
    by_queue = settings.redrive_allow == "byQueue"
    if by_queue != bool(settings.redrive_sources) or len(settings.redrive_sources) > REDRIVE_SOURCES_MAX:
        raise errors.UsageError(
            f"Queue {name!r} has redrive_allow={settings.redrive_allow!r} and "
            f"{len(settings.redrive_sources)} redrive_sources.",
            meaning=f"Sources, 1 to {REDRIVE_SOURCES_MAX} of them, go with byQueue and with nothing else.",
            todo="Name the sources with byQueue, or leave them out.",
        )


def check_target(source: QueueSettings, target: QueueSettings, *, advised: bool = True) -> None:
    """Refuse `target` as the dead-letter or held queue of `source`.

    A dead-letter queue must be of the same type, allow the source, and keep messages longer than the source does (at
    SQS's maximum of 14 days, as long): a standard queue's dead letter keeps the time it was sent, so what is short of
    the source's retention may be gone before anybody looks. SQS only advises this; here it is an error.

    Args:
        advised: False leaves the retention alone, as SQS does.

    Raises:
        UsageError: with the two settings that do not fit, and the arithmetic.
    """
    role = "dead-letter" if source.dead_letter == target.name else "held"
    if source.fifo != target.fifo:
        kinds = {True: "FIFO", False: "standard"}
        raise errors.UsageError(
            f"Queue {source.name!r} is {kinds[source.fifo]}, its {role} queue {target.name!r} is {kinds[target.fifo]}.",
            meaning="Both must be of one type.",
            todo=f"Name a {kinds[source.fifo]} queue.",
        )
    if role == "held":
        return
    if advised and target.retention_ms <= source.retention_ms and target.retention_ms < limits.RETENTION_MS_MAX:
        raise errors.UsageError(
            f"Dead-letter queue {target.name!r} keeps messages for {_days(target.retention_ms)}, its source "
            f"{source.name!r} for {_days(source.retention_ms)}.",
            meaning="A dead letter keeps the time it was sent: one that spent "
            f"{_days(source.retention_ms)} in the source has "
            f"{_days(max(0, target.retention_ms - source.retention_ms))} left to be looked at.",
            todo=f"Keep dead letters for longer than {_days(source.retention_ms)}, best for 14 days.",
        )
    if target.redrive_allow == "denyAll" or (
        target.redrive_allow == "byQueue" and source.name not in target.redrive_sources
    ):
        raise errors.UsageError(
            f"Queue {target.name!r} does not take dead letters of {source.name!r} "
            f"(redrive_allow={target.redrive_allow!r}, redrive_sources={list(target.redrive_sources)}).",
            todo=f"Add {source.name!r} to its redrive_sources, or name another dead-letter queue.",
        )


def differences(stored: QueueSettings, asked: QueueSettings) -> list[str]:
    """Each setting in which the two differ, as `name is X, asked for Y`."""
    return [
        f"{name} is {getattr(stored, name)!r}, asked for {getattr(asked, name)!r}"
        for name in QueueSettings.__struct_fields__
        if getattr(stored, name) != getattr(asked, name)
    ]


def _days(duration_ms: int) -> str:
    days = duration_ms / limits.DAY_MS
    if days >= 1:
        return f"{days:g} days"
    return f"{duration_ms / limits.HOUR_MS:g} hours" if duration_ms >= limits.HOUR_MS else f"{duration_ms // 1000} s"
