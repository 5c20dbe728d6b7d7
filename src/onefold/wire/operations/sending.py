"""SendMessage and SendMessageBatch.

What a message may be is said by `contracts/rules`, when the engine is asked to accept it; here asks become entries and
answers become AWS's. The digest is of what the client sent, so that it can compare; a Number is stored without its zeros.
Never here: the rules. Invariant: a request that is refused as a whole has sent nothing.

Sources: SQS API reference, SendMessage and SendMessageBatch; what is refused as a whole: recorded from AWS.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from onefold import limits
from onefold.contracts.entries import DERIVED_DEDUP, Entry, Refused, Sent
from onefold.contracts.queue import Attribute
from onefold.wire import digests, errors
from onefold.wire.addresses import message_uuid, sequence_number
from onefold.wire.desk import Caller, Desk
from onefold.wire.errors import AwsError
from onefold.wire.operations.batches import check_entries

BATCH_BYTES_MAX: Final = limits.MESSAGE_BYTES_MAX  # SQS SendMessageBatch: the sum of all entries
_CHAR_BYTES_MAX: Final = 4  # of a character in UTF-8
_TRACE = "AWSTraceHeader"
_DECIMAL = re.compile(r"([+-]?)0*+([0-9]*)(?:\.([0-9]*))?")
_DERIVED = re.compile(r"[0-9a-f]{32}")  # after the prefix
_FIFO = ".fifo"


async def send_message(desk: Desk, ask: Any, caller: Caller) -> dict[str, Any]:
    """SendMessage."""
    entry, sent_attributes = _entry(ask, caller.trace)
    (answer,) = await desk.queues.send(desk.queue(ask.QueueUrl), (entry,), via="sqs")
    if isinstance(answer, Refused):
        raise refusal(answer)
    return _accepted(ask, entry, sent_attributes, answer, {})


async def send_message_batch(desk: Desk, ask: Any, caller: Caller) -> dict[str, Any]:
    """SendMessageBatch."""
    asks: Sequence[Any] = ask.Entries
    queue = desk.queue(ask.QueueUrl)
    check_entries(asks)
    failed: list[dict[str, Any]] = []
    made: list[tuple[Any, Entry, Mapping[str, Attribute]]] = []
    for each in asks:
        try:
            made.append((each, *_entry(each, caller.trace)))
        except AwsError as error:
            failed.append(error.entry(each.Id))
    _check_size(desk, ask, made)
    if queue.endswith(_FIFO):
        _check_fifo(desk, ask, [entry for _, entry, _ in made])
    answers = await desk.queues.send(queue, [entry for _, entry, _ in made], via="sqs")
    successful = []
    for (each, entry, attributes), answer in zip(made, answers, strict=True):
        if isinstance(answer, Refused):
            refused = refusal(answer)
            refused.message = refused.message.replace(
                "are invalid", "cannot be validated"
            )  # AWS's text in a batch (recorded)
            failed.append(refused.entry(each.Id))
        else:
            successful.append(_accepted(each, entry, attributes, answer, {"Id": each.Id}))
    return {"Successful": successful, "Failed": failed} if failed else {"Successful": successful}


def _check_size(desk: Desk, ask: Any, made: Sequence[tuple[Any, Entry, Mapping[str, Attribute]]]) -> None:
    chars = sum([len(entry.body) for _, entry, _ in made])
    if chars * _CHAR_BYTES_MAX <= BATCH_BYTES_MAX and not any(attributes for _, _, attributes in made):
        return
    size = sum(_bytes(entry, attributes) for _, entry, attributes in made)
    if size > BATCH_BYTES_MAX:
        desk.settings(ask.QueueUrl)
        raise errors.batch_request_too_long(size, BATCH_BYTES_MAX)


def _check_fifo(desk: Desk, ask: Any, entries: Sequence[Entry]) -> None:
    """A missing group or deduplication id refuses the whole batch."""
    content_dedup = desk.settings(ask.QueueUrl).content_dedup
    for entry in entries:
        if entry.group is None:
            raise errors.invalid_parameter_value("The request must contain the parameter MessageGroupId.")
        if entry.dedup_id is None and not content_dedup:
            raise errors.invalid_parameter_value(
                "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided "
                "explicitly"
            )


def _entry(ask: Any, trace: str | None) -> tuple[Entry, Mapping[str, Attribute]]:
    """The entry an ask describes, and its attributes as the client wrote them.

    Args:
        trace: of the request; a message that names its own has that.
    """
    given = ask.MessageAttributes
    system = ask.MessageSystemAttributes
    delay_s = ask.DelaySeconds
    if given is None and system is None and delay_s is None:
        plain = Entry(
            body=ask.MessageBody,
            group=ask.MessageGroupId,
            dedup_id=_dedup_id(ask.MessageDeduplicationId),
            trace=trace,
            trusted=False,
        )
        return plain, {}
    attributes = {name: _attribute(name, value) for name, value in (given or {}).items()}
    entry = Entry(
        body=ask.MessageBody,
        attributes={name: _stored(attribute) for name, attribute in attributes.items()},
        # A FIFO queue takes zero only, and its own delay holds all the same (recorded).
        delay_ms=None if delay_s is None else delay_s * limits.SECOND_MS,
        group=ask.MessageGroupId,
        dedup_id=_dedup_id(ask.MessageDeduplicationId),
        trace=_trace(system or {}) or trace,
        trusted=False,
    )
    return entry, attributes


def _dedup_id(given: str | None) -> str | None:
    """A stranger's deduplication id: never one of those that onefold derives on the file itself."""
    if given is not None and given.startswith(DERIVED_DEDUP) and _DERIVED.fullmatch(given, len(DERIVED_DEDUP)):
        return f"strangers.{given}"
    return given


def _attribute(name: str, given: Any) -> Attribute:
    if given.StringListValues or given.BinaryListValues:
        raise errors.unsupported_operation("Message attribute list values in SendMessage operation are not supported.")
    kind = given.DataType
    if not kind:
        raise errors.invalid_parameter_value(
            f"The message attribute '{name}' must contain non-empty message attribute type."
        )
    value = given.StringValue if given.StringValue is not None else given.BinaryValue
    if value is None:
        raise errors.invalid_parameter_value(
            f"The message attribute '{name}' must contain non-empty message attribute value for message attribute type "
            f"'{kind}'."
        )
    return Attribute(value, kind)


def _stored(attribute: Attribute) -> Attribute:
    """A Number without leading and trailing zeros, as SQS keeps it; everything else as it is."""
    value = attribute.value
    if not attribute.type.startswith("Number") or not isinstance(value, str):
        return attribute
    found = _DECIMAL.fullmatch(value)
    if found is None or not any(char.isdigit() for char in value):
        return attribute
    whole, fraction = found[2] or "0", (found[3] or "").rstrip("0")
    sign = "-" if found[1] == "-" and (whole != "0" or fraction) else ""
    return Attribute(sign + whole + (f".{fraction}" if fraction else ""), attribute.type)


def _trace(system: Mapping[str, Any]) -> str | None:
    for name, given in system.items():
        if name != _TRACE:
            raise errors.invalid_parameter_value(f"Message system attribute name '{name}' is invalid.")
        if given.DataType != "String" or not given.StringValue:
            raise errors.invalid_parameter_value(f"Message system attribute '{_TRACE}' must be a non-empty String.")
        return str(given.StringValue)
    return None


def _bytes(entry: Entry, attributes: Mapping[str, Attribute]) -> int:
    size = len(entry.body.encode(errors="surrogatepass"))
    for name, attribute in attributes.items():
        value = attribute.value
        size += len(name.encode()) + len(attribute.type.encode())
        size += len(value.encode(errors="surrogatepass") if isinstance(value, str) else value)
    return size


def _accepted(
    ask: Any, entry: Entry, attributes: Mapping[str, Attribute], answer: Sent, found: dict[str, Any]
) -> dict[str, Any]:
    """The answer to one accepted message, added to what it begins with."""
    found["MessageId"] = message_uuid(answer.message_id)
    found["MD5OfMessageBody"] = digests.body_md5(entry.body)
    if attributes:
        found["MD5OfMessageAttributes"] = digests.attributes_md5(attributes) or ""
    if ask.MessageSystemAttributes and entry.trace is not None:  # not for a trace of the request
        found["MD5OfMessageSystemAttributes"] = digests.trace_md5(entry.trace) or ""
    if answer.sequence is not None:
        found["SequenceNumber"] = sequence_number(answer.sequence)
    return found


def refusal(refused: Refused) -> AwsError:
    """Why a message was not accepted, as AWS's error."""
    if refused.code == "MissingParameter":
        return errors.missing_parameter(refused.message.rstrip(".").rpartition(" ")[2])
    if refused.code == "InvalidMessageContents":
        return errors.invalid_message_contents(refused.message)
    return errors.invalid_parameter_value(refused.message)
