"""ReceiveMessage, and what becomes of received messages: delete, change of visibility, alone and in batches.

Never here: waiting, order, counts (the engine's and `local/`'s). Invariant: an answer names only attributes that were asked
for, and its attribute digest covers exactly those.

Sources: SQS API reference, the operation of the function's name; late and wrong handles: recorded from AWS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from onefold import limits
from onefold.contracts.queue import Attribute, Delivery, RetryIn
from onefold.wire import digests, errors
from onefold.wire.addresses import handle_of, message_uuid, receipt_of, sequence_number
from onefold.wire.attributes import WAIT_S_MAX
from onefold.wire.desk import Caller, Desk
from onefold.wire.errors import AwsError
from onefold.wire.operations.batches import check_entries

VISIBILITY_S_MAX: Final = limits.VISIBILITY_MS_MAX // limits.SECOND_MS
_EVERY: Final = frozenset({"All", ".*", "*"})  # `*` alone works too (recorded)
_FIFO = ".fifo"


async def receive_message(desk: Desk, ask: Any, caller: Caller) -> dict[str, Any]:
    """ReceiveMessage."""
    queue = desk.queue(ask.QueueUrl)
    count_max = _within(ask.MaxNumberOfMessages, "MaxNumberOfMessages", 1, limits.BATCH_ENTRIES_MAX) or 1
    wait_s = _within(ask.WaitTimeSeconds, "WaitTimeSeconds", 0, WAIT_S_MAX)
    visible_s = _within(ask.VisibilityTimeout, "VisibilityTimeout", 0, VISIBILITY_S_MAX)
    wait_ms = desk.card(queue).wait_ms if wait_s is None else wait_s * limits.SECOND_MS
    visible_ms = None if visible_s is None else visible_s * limits.SECOND_MS
    attempt_id = ask.ReceiveRequestAttemptId
    if attempt_id is not None and queue.endswith(_FIFO):
        found = await _attempt(desk, ask, queue, attempt_id, count_max, visible_ms, wait_ms, caller)
    else:
        found = await desk.queues.receive(
            queue, count_max, visible_ms=visible_ms, wait_ms=wait_ms, via="sqs", gone=caller.gone
        )
    if not found:
        return {}
    system = frozenset((*(ask.AttributeNames or ()), *(ask.MessageSystemAttributeNames or ())))
    chosen = ask.MessageAttributeNames or ()
    return {"Messages": [_message(desk, delivery, system, chosen) for delivery in found]}


async def _attempt(
    desk: Desk,
    ask: Any,
    queue: str,
    attempt_id: str,
    count_max: int,
    visible_ms: int | None,
    wait_ms: int,
    caller: Caller,
) -> list[Delivery]:
    """A receive that may be repeated: the same messages, hidden anew, while nothing happened to them."""
    if not (1 <= len(attempt_id) <= limits.ID_CHARS_MAX and all("!" <= char <= "~" for char in attempt_id)):
        raise errors.invalid_value(
            attempt_id,
            "ReceiveRequestAttemptId",
            "ReceiveRequestAttemptId can only include alphanumeric and punctuation characters. 1 to 128 in length.",
        )
    hidden_ms = desk.settings(ask.QueueUrl).visibility_ms if visible_ms is None else visible_ms
    known = desk.attempts.recall(queue, attempt_id, desk.queues.pace.now_ms())
    if known is not None:
        await desk.queues.set_visible_in(queue, [(one.receipt, RetryIn(hidden_ms)) for one in known], via="sqs")
        found = known
    else:
        found = await desk.queues.receive(
            queue, count_max, visible_ms=visible_ms, wait_ms=wait_ms, via="sqs", gone=caller.gone
        )
    if found:
        desk.attempts.keep(queue, attempt_id, found, hidden_ms, desk.queues.pace.now_ms())
    return found


def _within(value: int | None, parameter: str, least: int, most: int) -> int | None:
    if value is None or least <= value <= most:
        return value
    bounds = f"between {least} and {most}" if least else f">= {least} and <= {most}"
    raise errors.invalid_value(value, parameter, f"Must be {bounds}, if provided.")


# -- a message on the wire ---------------------------------------------------------------------------------------------


def _message(desk: Desk, delivery: Delivery, system: frozenset[str], chosen: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "MessageId": message_uuid(delivery.message_id),
        "ReceiptHandle": handle_of(delivery.queue, delivery.receipt),
        "MD5OfBody": digests.body_md5(delivery.body),
        "Body": delivery.body,
    }
    if system:
        everything = system_attributes(desk, delivery)
        if "All" not in system:
            everything = {name: value for name, value in everything.items() if name in system}
        if everything:
            found["Attributes"] = everything
    if chosen and delivery.attributes:
        picked = {name: one for name, one in delivery.attributes.items() if _is_chosen(name, chosen)}
        if picked:
            found["MD5OfMessageAttributes"] = digests.attributes_md5(picked)
            found["MessageAttributes"] = shown_attributes(picked)
    return found


def system_attributes(desk: Desk, delivery: Delivery) -> dict[str, str]:
    """Everything SQS says of a message beside its contents; all values are text, times in milliseconds."""
    found = {
        "SenderId": desk.sender_id,
        "SentTimestamp": str(delivery.sent_at_ms),
        "ApproximateReceiveCount": str(delivery.receive_count),
        "ApproximateFirstReceiveTimestamp": str(delivery.first_received_at_ms),
    }
    more = {
        "SequenceNumber": sequence_number(delivery.sequence),
        # On the way to a FIFO dead-letter queue the message's own id takes its place.
        "MessageDeduplicationId": message_uuid(delivery.message_id)
        if delivery.dedup_id == delivery.message_id
        else delivery.dedup_id,
        "MessageGroupId": delivery.group,
        "AWSTraceHeader": delivery.trace,
        "DeadLetterQueueSourceArn": None if delivery.source is None else desk.addresses.arn(delivery.source),
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


def _is_chosen(name: str, chosen: Sequence[str]) -> bool:
    return any(
        pattern == name or pattern in _EVERY or (pattern.endswith(".*") and name.startswith(pattern[:-2]))
        for pattern in chosen
    )


# -- delete ------------------------------------------------------------------------------------------------------------


async def delete_message(desk: Desk, ask: Any, caller: Caller) -> None:  # noqa: ARG001 - as every operation
    """DeleteMessage."""
    queue, handle = desk.queue(ask.QueueUrl), ask.ReceiptHandle
    receipt = _receipt(desk, ask.QueueUrl, handle)
    (done,) = await desk.queues.delete(queue, (receipt,), via="sqs")
    desk.attempts.touched(queue, receipt)
    if not done:
        raise errors.invalid_value(handle, "ReceiptHandle", "The receipt handle has expired.")


async def delete_message_batch(desk: Desk, ask: Any, caller: Caller) -> dict[str, Any]:  # noqa: ARG001
    """DeleteMessageBatch."""
    queue = desk.queue(ask.QueueUrl)
    check_entries(ask.Entries)
    good, failed = _receipts(desk, ask, lambda entry: entry.ReceiptHandle)
    answers = await desk.queues.delete(queue, [receipt for _, receipt in good], via="sqs") if good else []
    successful = []
    for (entry, receipt), done in zip(good, answers, strict=True):
        desk.attempts.touched(queue, receipt)
        if done:
            successful.append({"Id": entry.Id})
        else:
            failed.append(errors.receipt_handle_expired().entry(entry.Id))
    return _answer(successful, failed)


def _receipt(desk: Desk, url: str, handle: str) -> str:
    try:
        return receipt_of(handle, desk.queue(url))
    except AwsError:
        desk.settings(url)  # a queue that is not there is the greater mistake
        raise


def _receipts(
    desk: Desk, ask: Any, handle_in: Callable[[Any], str]
) -> tuple[list[tuple[Any, str]], list[dict[str, Any]]]:
    """The entries whose handle is one of this queue, with the receipt, and the others as failures."""
    good: list[tuple[Any, str]] = []
    failed: list[dict[str, Any]] = []
    for entry in ask.Entries:
        try:
            good.append((entry, _receipt(desk, ask.QueueUrl, handle_in(entry))))
        except AwsError as error:
            failed.append(error.entry(entry.Id))
    if not good:
        desk.settings(ask.QueueUrl)
    return good, failed


def _answer(successful: list[dict[str, Any]], failed: list[dict[str, Any]]) -> dict[str, Any]:
    """Empty lists are left out, as AWS does in JSON (recorded)."""
    parts = {"Successful": successful, "Failed": failed}
    return {name: entries for name, entries in parts.items() if entries}


# -- visibility --------------------------------------------------------------------------------------------------------


async def change_message_visibility(desk: Desk, ask: Any, caller: Caller) -> None:  # noqa: ARG001
    """ChangeMessageVisibility."""
    queue, handle, seconds = desk.queue(ask.QueueUrl), ask.ReceiptHandle, ask.VisibilityTimeout
    receipt = _receipt(desk, ask.QueueUrl, handle)
    _within(seconds, "VisibilityTimeout", 0, VISIBILITY_S_MAX)
    (done,) = await desk.queues.set_visible_in(queue, [(receipt, RetryIn(seconds * limits.SECOND_MS))], via="sqs")
    desk.attempts.touched(queue, receipt)
    if not done:
        raise await _why_not(desk, queue, handle, receipt, seconds)


async def change_message_visibility_batch(desk: Desk, ask: Any, caller: Caller) -> dict[str, Any]:  # noqa: ARG001
    """ChangeMessageVisibilityBatch."""
    queue = desk.queue(ask.QueueUrl)
    check_entries(ask.Entries)
    good, failed = _receipts(desk, ask, lambda entry: entry.ReceiptHandle)
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
    answers = await desk.queues.set_visible_in(queue, changes, via="sqs") if changes else []
    successful = []
    for (entry, receipt, seconds), done in zip(ready, answers, strict=True):
        desk.attempts.touched(queue, receipt)
        if done:
            successful.append({"Id": entry.Id})
        else:
            why = await _why_not(desk, queue, entry.ReceiptHandle, receipt, seconds)
            failed.append(why.entry(entry.Id))
    return _answer(successful, failed)


async def _why_not(desk: Desk, queue: str, handle: str, receipt: str, seconds: int) -> AwsError:
    """Why a visibility was not changed."""
    admin = desk.queues.engine.queues
    (standing,) = await desk.queues.call(lambda: admin.open(queue).standing([receipt]), synced=False)
    if standing == "in-flight" or (standing == "superseded" and not queue.endswith(_FIFO)):
        return errors.invalid_value(
            seconds,
            "VisibilityTimeout",
            f"Total VisibilityTimeout for the message is beyond the limit [{VISIBILITY_S_MAX} seconds]",
        )
    return errors.invalid_value(
        handle,
        "ReceiptHandle",
        "Message does not exist or is not available for visibility timeout change.",
    )
