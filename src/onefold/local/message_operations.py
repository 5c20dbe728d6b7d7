"""The operations on messages: send, receive, delete and change visibility, and their batch forms.

`contracts/entries.py` checks what a message may contain when the engine is asked to accept it; here requests become
entries, and results become AWS's answers. The digest of a sent message covers what the client sent, so that the client
can compare it; a Number is stored without extra zeros.
Never here: those rules; waiting, order and counts (the engine and `queues.py`). Invariants: a request that is refused as
a whole has sent nothing; an answer names only attributes that were requested, and its attribute digest covers exactly
those.

Sources: SQS API reference, the operation after which a function is named; what is refused as a whole, and the answers
to late and wrong handles, were recorded from AWS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from onefold import limits
from onefold.contracts import entries as rules
from onefold.contracts.entries import DERIVED_DEDUP, Entry, Refused, Sent
from onefold.contracts.queue import Attribute, Delivery, RetryIn
from onefold.local import aws_errors, identifiers
from onefold.local.aws_errors import AwsError
from onefold.local.identifiers import SENDER_ID, handle_of, message_uuid, receipt_of, sequence_number
from onefold.local.queue_attributes import WAIT_S_MAX
from onefold.local.sqs_service import SqsCaller, SqsService

_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
BATCH_BYTES_MAX: Final = limits.MESSAGE_BYTES_MAX  # SQS SendMessageBatch: the sum of all entries
_CHAR_BYTES_MAX: Final = 4  # a character takes at most this in UTF-8
_TRACE = "AWSTraceHeader"
_DECIMAL = re.compile(r"([+-]?)0*+([0-9]*)(?:\.([0-9]*))?")
_DERIVED = re.compile(r"[0-9a-f]{32}")  # follows the prefix
_FIFO = ".fifo"
VISIBILITY_S_MAX: Final = limits.VISIBILITY_MS_MAX // limits.SECOND_MS
_EVERY: Final = frozenset({"All", ".*", "*"})  # `*` alone works too (recorded)


# -- batches -----------------------------------------------------------------------------------------------------------


def check_entries(entries: Sequence[Any]) -> None:
    """Refuse a batch with more than 10 entries, a bad id, or a repeated id.

    Raises:
        AwsError: TooManyEntriesInBatchRequest, InvalidBatchEntryId, BatchEntryIdsNotDistinct.
    """
    if len(entries) > limits.BATCH_ENTRIES_MAX:
        raise aws_errors.too_many_entries(len(entries))
    seen: set[str] = set()
    for entry in entries:
        entry_id: str = entry.Id
        if entry_id in seen:
            raise aws_errors.batch_entry_ids_not_distinct(entry_id)
        if not _ID.fullmatch(entry_id):
            raise aws_errors.invalid_batch_entry_id()
        seen.add(entry_id)


# -- send --------------------------------------------------------------------------------------------------------------


async def send_message(sqs: SqsService, params: Any, caller: SqsCaller) -> dict[str, Any]:
    """SendMessage."""
    entry, sent_attributes = _entry(params, caller.trace)
    (answer,) = await sqs.queues.send(sqs.queue(params.QueueUrl), (entry,), via="sqs")
    if isinstance(answer, Refused):
        raise refusal(answer)
    return _accepted(params, entry, sent_attributes, answer, {})


async def send_message_batch(sqs: SqsService, params: Any, caller: SqsCaller) -> dict[str, Any]:
    """SendMessageBatch."""
    entries_given: Sequence[Any] = params.Entries
    queue = sqs.queue(params.QueueUrl)
    check_entries(entries_given)
    failed: list[dict[str, Any]] = []
    made: list[tuple[Any, Entry, Mapping[str, Attribute]]] = []
    for each in entries_given:
        try:
            made.append((each, *_entry(each, caller.trace)))
        except AwsError as error:
            failed.append(error.entry(each.Id))
    _check_size(sqs, params, made)
    if queue.endswith(_FIFO):
        _check_fifo(sqs, params, [entry for _, entry, _ in made])
    answers = await sqs.queues.send(queue, [entry for _, entry, _ in made], via="sqs")
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


def _check_size(sqs: SqsService, params: Any, made: Sequence[tuple[Any, Entry, Mapping[str, Attribute]]]) -> None:
    chars = sum([len(entry.body) for _, entry, _ in made])
    if chars * _CHAR_BYTES_MAX <= BATCH_BYTES_MAX and not any(attributes for _, _, attributes in made):
        return
    size = sum(_bytes(entry, attributes) for _, entry, attributes in made)
    if size > BATCH_BYTES_MAX:
        sqs.settings(params.QueueUrl)
        raise aws_errors.batch_request_too_long(size, BATCH_BYTES_MAX)


def _check_fifo(sqs: SqsService, params: Any, entries: Sequence[Entry]) -> None:
    """Refuse the whole batch if a group or deduplication id is missing."""
    content_dedup = sqs.settings(params.QueueUrl).content_dedup
    for entry in entries:
        if entry.group is None:
            raise aws_errors.invalid_parameter_value("The request must contain the parameter MessageGroupId.")
        if entry.dedup_id is None and not content_dedup:
            raise aws_errors.invalid_parameter_value(
                "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided "
                "explicitly"
            )


def _entry(params: Any, trace: str | None) -> tuple[Entry, Mapping[str, Attribute]]:
    """The entry that a request describes, and its attributes as the client wrote them.

    Args:
        trace: the request's trace; a message's own takes precedence.
    """
    given = params.MessageAttributes
    if given is not None and len(given) > limits.ATTRIBUTES_MAX:  # before any of them is read
        raise aws_errors.invalid_parameter_value(rules.too_many_attributes(len(given)))
    system = params.MessageSystemAttributes
    delay_s = params.DelaySeconds
    if given is None and system is None and delay_s is None:
        plain = Entry(
            body=params.MessageBody,
            group=params.MessageGroupId,
            dedup_id=_dedup_id(params.MessageDeduplicationId),
            trace=trace,
            trusted=False,
        )
        return plain, {}
    attributes = {name: _attribute(name, value) for name, value in (given or {}).items()}
    entry = Entry(
        body=params.MessageBody,
        attributes={name: _stored(attribute) for name, attribute in attributes.items()},
        # A FIFO queue accepts only zero, and its own delay applies anyway (recorded).
        delay_ms=None if delay_s is None else delay_s * limits.SECOND_MS,
        group=params.MessageGroupId,
        dedup_id=_dedup_id(params.MessageDeduplicationId),
        trace=_trace(system or {}) or trace,
        trusted=False,
    )
    return entry, attributes


def _dedup_id(given: str | None) -> str | None:
    """A client's deduplication id, renamed if it could be one that onefold derives itself."""
    if given is not None and given.startswith(DERIVED_DEDUP) and _DERIVED.fullmatch(given, len(DERIVED_DEDUP)):
        return f"strangers.{given}"
    return given


def _attribute(name: str, given: Any) -> Attribute:
    if given.StringListValues or given.BinaryListValues:
        raise aws_errors.unsupported_operation(
            "Message attribute list values in SendMessage operation are not supported."
        )
    kind = given.DataType
    if not kind:
        raise aws_errors.invalid_parameter_value(
            f"The message attribute '{name}' must contain non-empty message attribute type."
        )
    value = given.StringValue if given.StringValue is not None else given.BinaryValue
    if value is None:
        raise aws_errors.invalid_parameter_value(
            f"The message attribute '{name}' must contain non-empty message attribute value for message attribute type "
            f"'{kind}'."
        )
    return Attribute(value, kind)


def _stored(attribute: Attribute) -> Attribute:
    """A Number without leading and trailing zeros, as SQS stores it; everything else unchanged."""
    value = attribute.value
    if not attribute.type.startswith("Number") or not isinstance(value, str) or len(value) > rules.NUMBER_CHARS_MAX:
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
            raise aws_errors.invalid_parameter_value(f"Message system attribute name '{name}' is invalid.")
        if given.DataType != "String" or not given.StringValue:
            raise aws_errors.invalid_parameter_value(f"Message system attribute '{_TRACE}' must be a non-empty String.")
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
    params: Any, entry: Entry, attributes: Mapping[str, Attribute], answer: Sent, found: dict[str, Any]
) -> dict[str, Any]:
    """Add the answer for one accepted message to `found`."""
    found["MessageId"] = message_uuid(answer.message_id)
    found["MD5OfMessageBody"] = identifiers.body_md5(entry.body)
    if attributes:
        found["MD5OfMessageAttributes"] = identifiers.attributes_md5(attributes) or ""
    if params.MessageSystemAttributes and entry.trace is not None:  # not for a trace of the request
        found["MD5OfMessageSystemAttributes"] = identifiers.trace_md5(entry.trace) or ""
    if answer.sequence is not None:
        found["SequenceNumber"] = sequence_number(answer.sequence)
    return found


def refusal(refused: Refused) -> AwsError:
    """The AWS error for a message that was not accepted."""
    if refused.code == "MissingParameter":
        return aws_errors.missing_parameter(refused.message.rstrip(".").rpartition(" ")[2])
    if refused.code == "InvalidMessageContents":
        return aws_errors.invalid_message_contents(refused.message)
    return aws_errors.invalid_parameter_value(refused.message)


# -- receive -----------------------------------------------------------------------------------------------------------


async def receive_message(sqs: SqsService, params: Any, caller: SqsCaller) -> dict[str, Any]:
    """ReceiveMessage."""
    queue = sqs.queue(params.QueueUrl)
    count_max = _within(params.MaxNumberOfMessages, "MaxNumberOfMessages", 1, limits.BATCH_ENTRIES_MAX) or 1
    wait_s = _within(params.WaitTimeSeconds, "WaitTimeSeconds", 0, WAIT_S_MAX)
    visible_s = _within(params.VisibilityTimeout, "VisibilityTimeout", 0, VISIBILITY_S_MAX)
    wait_ms = sqs.metadata(queue).wait_ms if wait_s is None else wait_s * limits.SECOND_MS
    visible_ms = None if visible_s is None else visible_s * limits.SECOND_MS
    attempt_id = params.ReceiveRequestAttemptId
    if attempt_id is not None and queue.endswith(_FIFO):
        found = await _attempt(sqs, params, queue, attempt_id, count_max, visible_ms, wait_ms, caller)
    else:
        found = await sqs.queues.receive(
            queue, count_max, visible_ms=visible_ms, wait_ms=wait_ms, via="sqs", gone=caller.gone
        )
    if not found:
        return {}
    system = frozenset((*(params.AttributeNames or ()), *(params.MessageSystemAttributeNames or ())))
    chosen = AttributeChoice(params.MessageAttributeNames or ())
    return {"Messages": [_message(sqs, delivery, system, chosen) for delivery in found]}


async def _attempt(
    sqs: SqsService,
    params: Any,
    queue: str,
    attempt_id: str,
    count_max: int,
    visible_ms: int | None,
    wait_ms: int,
    caller: SqsCaller,
) -> list[Delivery]:
    """A repeatable receive: it returns the same messages, hidden again, as long as nothing happened to them."""
    if not (1 <= len(attempt_id) <= limits.ID_CHARS_MAX and all("!" <= char <= "~" for char in attempt_id)):
        raise aws_errors.invalid_value(
            attempt_id,
            "ReceiveRequestAttemptId",
            "ReceiveRequestAttemptId can only include alphanumeric and punctuation characters. 1 to 128 in length.",
        )
    hidden_ms = sqs.settings(params.QueueUrl).visibility_ms if visible_ms is None else visible_ms
    known = sqs.attempts.recall(queue, attempt_id, sqs.queues.timers.now_ms())
    if known is not None and not await _are_in_flight(sqs, queue, known):
        sqs.attempts.forget(queue, attempt_id)
        known = None
    if known is not None:
        await sqs.queues.set_visible_in(queue, [(one.receipt, RetryIn(hidden_ms)) for one in known], via="sqs")
        found = known
    else:
        found = await sqs.queues.receive(
            queue, count_max, visible_ms=visible_ms, wait_ms=wait_ms, via="sqs", gone=caller.gone
        )
    if found:
        sqs.attempts.keep(queue, attempt_id, found, hidden_ms, sqs.queues.timers.now_ms())
    return found


async def _are_in_flight(sqs: SqsService, queue: str, deliveries: Sequence[Delivery]) -> bool:
    """Whether all of them are still received; not, for example, after a purge, or when a mapping deleted one."""
    receipts = [one.receipt for one in deliveries]
    opened = sqs.queues.engine.queues.open
    states = await sqs.queues.call(lambda: opened(queue).receipt_states(receipts), synced=False)
    return all(state == "in-flight" for state in states)


def _within(value: int | None, parameter: str, least: int, most: int) -> int | None:
    if value is None or least <= value <= most:
        return value
    bounds = f"between {least} and {most}" if least else f">= {least} and <= {most}"
    raise aws_errors.invalid_value(value, parameter, f"Must be {bounds}, if provided.")


# -- a message in an answer --------------------------------------------------------------------------------------------


def _message(sqs: SqsService, delivery: Delivery, system: frozenset[str], chosen: AttributeChoice) -> dict[str, Any]:
    found: dict[str, Any] = {
        "MessageId": message_uuid(delivery.message_id),
        "ReceiptHandle": handle_of(delivery.queue, delivery.receipt),
        "MD5OfBody": identifiers.body_md5(delivery.body),
        "Body": delivery.body,
    }
    if system:
        everything = system_attributes(sqs, delivery)
        if "All" not in system:
            everything = {name: value for name, value in everything.items() if name in system}
        if everything:
            found["Attributes"] = everything
    if delivery.attributes:
        picked = {name: one for name, one in delivery.attributes.items() if name in chosen}
        if picked:
            found["MD5OfMessageAttributes"] = identifiers.attributes_md5(picked)
            found["MessageAttributes"] = shown_attributes(picked)
    return found


def system_attributes(sqs: SqsService, delivery: Delivery) -> dict[str, str]:
    """SQS's system attributes of a message; all values are text, times in milliseconds."""
    found = {
        "SenderId": SENDER_ID,
        "SentTimestamp": str(delivery.sent_at_ms),
        "ApproximateReceiveCount": str(delivery.receive_count),
        "ApproximateFirstReceiveTimestamp": str(delivery.first_received_at_ms),
    }
    more = {
        "SequenceNumber": sequence_number(delivery.sequence),
        # A move to a FIFO dead-letter queue replaces it by the message's id.
        "MessageDeduplicationId": message_uuid(delivery.message_id)
        if delivery.dedup_id == delivery.message_id
        else delivery.dedup_id,
        "MessageGroupId": delivery.group,
        "AWSTraceHeader": delivery.trace,
        "DeadLetterQueueSourceArn": None if delivery.source is None else sqs.addresses.arn(delivery.source),
    }
    return found | {name: value for name, value in more.items() if value is not None}


def shown_attributes(attributes: Mapping[str, Attribute]) -> dict[str, dict[str, str | bytes]]:
    """Message attributes as MessageAttributeValue."""
    return {
        name: {
            "StringValue" if isinstance(one.value, str) else "BinaryValue": one.value,
            "DataType": one.type,
        }
        for name, one in attributes.items()
    }


class AttributeChoice:
    """The message attributes that a receive requests: names, `prefix.*`, or all.

    A request can contain a million names: they are read once, and a lookup costs no more than the length of its name.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._names = frozenset(patterns)
        self._all = not self._names.isdisjoint(_EVERY)
        self._prefixes = frozenset(pattern[:-2] for pattern in self._names if pattern.endswith(".*"))

    def __contains__(self, name: str) -> bool:
        if self._all or name in self._names:
            return True
        return bool(self._prefixes) and any(name[:end] in self._prefixes for end in range(len(name) + 1))


# -- delete ------------------------------------------------------------------------------------------------------------


async def delete_message(sqs: SqsService, params: Any, caller: SqsCaller) -> None:  # noqa: ARG001 - all operations have these parameters
    """DeleteMessage."""
    queue, handle = sqs.queue(params.QueueUrl), params.ReceiptHandle
    receipt = _receipt(sqs, params.QueueUrl, handle)
    (done,) = await sqs.queues.delete(queue, (receipt,), via="sqs")
    sqs.attempts.touched(queue, receipt)
    if not done:
        raise aws_errors.invalid_value(handle, "ReceiptHandle", "The receipt handle has expired.")


async def delete_message_batch(sqs: SqsService, params: Any, caller: SqsCaller) -> dict[str, Any]:  # noqa: ARG001
    """DeleteMessageBatch."""
    queue = sqs.queue(params.QueueUrl)
    check_entries(params.Entries)
    good, failed = _receipts(sqs, params, lambda entry: entry.ReceiptHandle)
    answers = await sqs.queues.delete(queue, [receipt for _, receipt in good], via="sqs") if good else []
    successful = []
    for (entry, receipt), done in zip(good, answers, strict=True):
        sqs.attempts.touched(queue, receipt)
        if done:
            successful.append({"Id": entry.Id})
        else:
            failed.append(aws_errors.receipt_handle_expired().entry(entry.Id))
    return _answer(successful, failed)


def _receipt(sqs: SqsService, url: str, handle: str) -> str:
    try:
        return receipt_of(handle, sqs.queue(url))
    except AwsError:
        sqs.settings(url)  # a queue that does not exist is reported first
        raise


def _receipts(
    sqs: SqsService, params: Any, handle_in: Callable[[Any], str]
) -> tuple[list[tuple[Any, str]], list[dict[str, Any]]]:
    """The entries with a handle of this queue, with their receipts, and the others as failures."""
    good: list[tuple[Any, str]] = []
    failed: list[dict[str, Any]] = []
    for entry in params.Entries:
        try:
            good.append((entry, _receipt(sqs, params.QueueUrl, handle_in(entry))))
        except AwsError as error:
            failed.append(error.entry(entry.Id))
    if not good:
        sqs.settings(params.QueueUrl)
    return good, failed


def _answer(successful: list[dict[str, Any]], failed: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer without empty lists, as in AWS's JSON (recorded)."""
    parts = {"Successful": successful, "Failed": failed}
    return {name: entries for name, entries in parts.items() if entries}


# -- visibility --------------------------------------------------------------------------------------------------------


async def change_message_visibility(sqs: SqsService, params: Any, caller: SqsCaller) -> None:  # noqa: ARG001
    """ChangeMessageVisibility."""
    queue, handle, seconds = sqs.queue(params.QueueUrl), params.ReceiptHandle, params.VisibilityTimeout
    receipt = _receipt(sqs, params.QueueUrl, handle)
    _within(seconds, "VisibilityTimeout", 0, VISIBILITY_S_MAX)
    (done,) = await sqs.queues.set_visible_in(queue, [(receipt, RetryIn(seconds * limits.SECOND_MS))], via="sqs")
    sqs.attempts.touched(queue, receipt)
    if not done:
        raise await _why_not(sqs, queue, handle, receipt, seconds)


async def change_message_visibility_batch(sqs: SqsService, params: Any, caller: SqsCaller) -> dict[str, Any]:  # noqa: ARG001
    """ChangeMessageVisibilityBatch."""
    queue = sqs.queue(params.QueueUrl)
    check_entries(params.Entries)
    good, failed = _receipts(sqs, params, lambda entry: entry.ReceiptHandle)
    ready = []
    for entry, receipt in good:
        seconds = 0 if entry.VisibilityTimeout is None else entry.VisibilityTimeout
        try:
            _within(seconds, "VisibilityTimeout", 0, VISIBILITY_S_MAX)
        except AwsError as error:
            failed.append(error.entry(entry.Id))
        else:
            ready.append((entry, receipt, seconds))
    changes = [(receipt, RetryIn(seconds * limits.SECOND_MS)) for _, receipt, seconds in ready]
    answers = await sqs.queues.set_visible_in(queue, changes, via="sqs") if changes else []
    successful = []
    for (entry, receipt, seconds), done in zip(ready, answers, strict=True):
        sqs.attempts.touched(queue, receipt)
        if done:
            successful.append({"Id": entry.Id})
        else:
            why = await _why_not(sqs, queue, entry.ReceiptHandle, receipt, seconds)
            failed.append(why.entry(entry.Id))
    return _answer(successful, failed)


async def _why_not(sqs: SqsService, queue: str, handle: str, receipt: str, seconds: int) -> AwsError:
    """The error with the reason why a visibility was not changed."""
    admin = sqs.queues.engine.queues
    (standing,) = await sqs.queues.call(lambda: admin.open(queue).receipt_states([receipt]), synced=False)
    if standing == "in-flight" or (standing == "superseded" and not queue.endswith(_FIFO)):
        return aws_errors.invalid_value(
            seconds,
            "VisibilityTimeout",
            f"Total VisibilityTimeout for the message is beyond the limit [{VISIBILITY_S_MAX} seconds]",
        )
    return aws_errors.invalid_value(
        handle,
        "ReceiptHandle",
        "Message does not exist or is not available for visibility timeout change.",
    )
