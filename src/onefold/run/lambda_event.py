"""The event of an SQS event source mapping: is it one, whose is it, and the records of each queue.

What a record holds is read by the queue's own backend, which knows how it writes messages. Here is only what must be
right before anything is done: that the event comes from SQS, and from queues that this app has jobs on.
Never here: deliveries, settling. Invariant: an event that is refused was not begun; Lambda then keeps all its messages.

Source: Lambda developer guide, "Using Lambda with Amazon SQS" (example events for standard and FIFO queues).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from onefold import errors

Record = Mapping[str, Any]

EVENT_SOURCE: Final = "aws:sqs"
_CONNECT = (
    "Connect the function to a queue by an event source mapping (`onefold synth` writes it); pass its event unchanged."
)
_OTHERS: Final = {  # what people connect by mistake, and the way that leads through a queue
    "aws:s3": "Let S3 notify a queue, and declare the job with source='s3'.",
    "aws:sns": "Subscribe the queue to the topic, and declare the job with source='sns'.",
    "aws:dynamodb": "A handler of onefold takes queues only; an EventBridge pipe can carry a stream to one.",
    "aws:kinesis": "A handler of onefold takes queues only; an EventBridge pipe can carry a stream to one.",
}
_TEXTS: Final = ("messageId", "receiptHandle", "body")


def records_by_queue(event: object, queue_of: Callable[[str, str], str]) -> dict[str, list[Record]]:
    """The records of an event by the app's name of their queue, in their order.

    Args:
        queue_of: the app's queue, of an ARN and a region; raises UsageError when it has none.

    Raises:
        UsageError: no event of SQS, a record that is not whole, a queue the app has no job on. Nothing was begun.
    """
    records = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(records, Sequence) or isinstance(records, str | bytes):
        raise errors.UsageError(
            f"The event is no batch of SQS messages: it is {_shape(event)}.",
            meaning="Nothing was begun.",
            todo=_CONNECT,
        )
    found: dict[str, list[Record]] = {}
    known: dict[str, str] = {}
    for place, record in enumerate(records):
        arn = _arn_of(record, place)
        if arn not in known:
            known[arn] = queue_of(arn, str(record.get("awsRegion") or ""))
        found.setdefault(known[arn], []).append(record)
    return found


def _arn_of(record: object, place: int) -> str:
    """The queue of a record that is whole."""
    if not isinstance(record, Mapping):
        raise _broken(place, f"is {_shape(record)}")
    source = record.get("eventSource", record.get("EventSource"))  # SNS writes its own with capitals
    if source != EVENT_SOURCE:
        raise errors.UsageError(
            f"Record {place} of the event comes from {str(source)[:40]!r}, not from {EVENT_SOURCE!r}.",
            meaning="Nothing was begun.",
            todo=_OTHERS.get(str(source), _CONNECT),
        )
    for name in _TEXTS:
        if not isinstance(record.get(name), str) or not record[name]:
            raise _broken(place, f"has no text in {name!r}")
    for name in ("attributes", "messageAttributes"):
        if not isinstance(record.get(name, {}), Mapping):
            raise _broken(place, f"has no object in {name!r}")
    arn = record.get("eventSourceARN")
    if not isinstance(arn, str) or arn.count(":") < 5:
        raise _broken(place, f"has the eventSourceARN {str(arn)[:100]!r}")
    return arn


def _broken(place: int, what: str) -> errors.UsageError:
    return errors.UsageError(
        f"Record {place} of the event {what}.",
        meaning="It is no record as Lambda makes it of an SQS message; nothing was begun.",
        todo=_CONNECT,
    )


def _shape(value: object) -> str:
    """What a value is, without what it holds."""
    if isinstance(value, Mapping):
        names = ", ".join(sorted(str(name)[:30] for name in value)[:8])
        return f"an object with {names}" if names else "an empty object"
    return "null" if value is None else f"a {type(value).__name__}"
