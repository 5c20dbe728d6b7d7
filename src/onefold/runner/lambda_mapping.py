"""Lambda's event source mapping, seen from the handler: its event, the response to it, and the messages that it holds.

An event is checked here only for what must be true before anything begins: that it comes from SQS, and from queues on
which the app has jobs. The content of a record is read by the queue's backend.

`MappedQueue` is the queue on which the runner settles. Deleting costs no call: what is done is noted in `BatchAnswer`,
and Lambda deletes every message that the response does not name. Hiding changes the visibility timeout, which a mapping
itself never does; a message is moved to the dead-letter queue from here, and then it is done. A message that cannot be
hidden or moved is kept, and is delivered again when its visibility timeout ends. Waiting costs receives here: if a
message only waits, and its queue would dead-letter it at one of the next receives, a delayed copy with the same key is
sent and the message is deleted (its attempts are in the record). This is not done on FIFO queues, where the copy would
lose its position.

A mapping without ReportBatchItemFailures deletes the named messages too. Each container checks for that once
(`IgnoredAnswers`): a message that was named and hidden for a retry must still be in the queue at the next invocation. If it
is not, it is moved to the dead-letter queue from memory, and from then on the container raises an error instead of naming
messages, because no mapping ignores an error.
Never here: what runs and when, decisions about a message. Invariant: a receipt is marked as done only when its message may
be deleted: its effect is recorded, or it is in another queue, durably.

Source: Lambda developer guide, "Using Lambda with Amazon SQS" (example events for standard and FIFO queues).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from onefold import errors
from onefold.contracts.entries import Entry, Sent
from onefold.contracts.queue import Delivery, MoveTo, Reason, RetryIn
from onefold.limits import DELAY_MS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from onefold.contracts.verbs import QueueReceiver, QueueSender
    from onefold.outside import Clock
    from onefold.runner.reports import Reports

    Record = Mapping[str, Any]

EVENT_SOURCE: Final = "aws:sqs"
_CONNECT = (
    "Connect the function to a queue by an event source mapping (`onefold synth` writes it); pass its event unchanged."
)
_OTHERS: Final = {  # sources that people connect by mistake, and how to connect them through a queue
    "aws:s3": "Let S3 notify a queue, and declare the job with source='s3'.",
    "aws:sns": "Subscribe the queue to the topic, and declare the job with source='sns'.",
    "aws:dynamodb": "A handler of onefold takes queues only; an EventBridge pipe can carry a stream to one.",
    "aws:kinesis": "A handler of onefold takes queues only; an EventBridge pipe can carry a stream to one.",
}
_TEXTS: Final = ("messageId", "receiptHandle", "body")
LONGEST_INVOCATION_MS: Final = 900_000  # Lambda developer guide, "Configure Lambda function timeout": at most 900 s
_LOOK_LEAST_MS: Final = 2_000  # a retry that is due sooner proves nothing: another consumer may have the message
_LOOK_AFTER_MS: Final = 1_000  # Lambda deletes soon after the response, not at once
_LOOK_MAX: Final = 10  # messages checked per queue, in one call
_LOST: Final = MoveTo(
    "dead-letter",
    Reason(
        kind="mapping",
        summary="Its mapping deleted it although the handler had named it as failed: ReportBatchItemFailures is not set, or"
        " something around the handler changes its answer.",
    ),
)


class BatchAnswer:
    """The content of the present invocation's response. Safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._done: dict[str, str] = {}  # receipt -> queue
        self._gone: set[str] = set()  # those receipts whose messages are no longer in their queue
        self._hidden: dict[str, int] = {}  # receipt -> monotonic instant until which it was hidden for a retry
        self._deliveries: dict[str, Delivery] = {}
        self._unstarted: set[str] = set()

    def begin(self, deliveries: Iterable[Delivery]) -> None:
        """Begin another invocation, with these receipts."""
        with self._lock:
            self._done.clear()
            self._gone.clear()
            self._hidden.clear()
            self._unstarted.clear()
            self._deliveries = {one.receipt: one for one in deliveries}

    def note_unstarted(self, deliveries: Iterable[Delivery]) -> None:
        """Note deliveries that will be hidden without having run: they only wait."""
        self._unstarted.update(one.receipt for one in deliveries)

    def waiting(self, receipt: str, change: RetryIn, receives_max: int | None) -> Delivery | None:
        """The message, if it only waits and its queue would dead-letter it soon; None otherwise."""
        one = self._deliveries.get(receipt)
        waits = change.uncounted or receipt in self._unstarted
        if one is None or not waits or one.sequence is not None or receives_max is None:
            return None
        return one if one.receive_count >= receives_max - 1 else None

    def is_done(self, receipt: str) -> bool:
        """Whether Lambda may delete this message."""
        return receipt in self._done

    def hidden_until_ms(self, receipt: str) -> int | None:
        """The monotonic instant until which a kept message was hidden; None when it was not hidden."""
        return self._hidden.get(receipt)

    def note_done(self, queue: str, receipts: Iterable[str], *, gone: bool = False) -> None:
        """Note that these messages may be deleted. `gone`: they were moved to another queue."""
        with self._lock:
            for receipt in receipts:
                self._done[receipt] = queue
                if gone:
                    self._gone.add(receipt)

    def note_hidden(self, receipt: str, delay_ms: int) -> None:
        """Note that a message is kept and was hidden."""
        self._hidden[receipt] = self._clock.monotonic_ms() + delay_ms

    def to_delete(self) -> dict[str, list[str]]:
        """The receipts to delete, by queue, for a caller that deletes them instead of Lambda; each only once."""
        found: dict[str, list[str]] = {}
        with self._lock:
            for receipt, queue in self._done.items():
                if receipt not in self._gone:
                    found.setdefault(queue, []).append(receipt)
            self._gone.update(self._done)
        return found


class HeldQueue:
    """The receiver of a real queue, for messages that another party received and holds."""

    def __init__(self, queue: QueueReceiver) -> None:
        self.name = queue.name
        self.capabilities = queue.capabilities
        self._queue = queue

    def receive(self, count_max: int, visible_ms: int | None = None) -> list[Delivery]:  # noqa: ARG002 - the contract's
        """Return nothing, because the other party receives."""
        return []

    def set_visible_in(self, changes: Sequence[tuple[str, RetryIn]]) -> list[bool]:
        """Do nothing, because the party that holds the messages waits for them."""
        return [True] * len(changes)

    def delete(self, receipts: Sequence[str]) -> list[bool]:
        """Do nothing, because the party that holds the messages deletes them."""
        return [True] * len(receipts)


class MappedQueue(HeldQueue):
    """A queue whose messages an event source mapping received.

    Args:
        queue: the real queue. sender: the same queue, for sending copies. answered: collects what is done.
        receives_max: how many receives its dead-letter policy allows; None if it has no policy, or waiting costs no receive.
        failed: called with the queue, the number of messages that could not be hidden or moved, and the error.
    """

    def __init__(
        self,
        queue: QueueReceiver,
        sender: QueueSender,
        answered: BatchAnswer,
        failed: Callable[[str, int, errors.OnefoldError], None],
        *,
        receives_max: int | None = None,
    ) -> None:
        super().__init__(queue)
        self._sender = sender
        self._answered = answered
        self._failed = failed
        self._receives_max = receives_max

    def set_visible_in(self, changes: Sequence[tuple[str, RetryIn]]) -> list[bool]:
        """Like the real queue, but a message that only waits and has no receives left is sent again.

        If a message cannot be changed now, it becomes visible when its visibility timeout ends.
        """
        found = [self._answered.waiting(receipt, change, self._receives_max) for receipt, change in changes]
        again = [(one, change) for one, (_, change) in zip(found, changes, strict=True) if one is not None]
        moved = self._send_again(again) if again else set()
        rest = [(receipt, change) for receipt, change in changes if receipt not in moved]
        if not rest:
            return [True] * len(changes)
        try:
            answers = dict(zip((receipt for receipt, _ in rest), self._queue.set_visible_in(rest), strict=True))
        except errors.OnefoldError as error:
            self._failed(self.name, len(rest), error)
            return [True] * len(changes)
        for receipt, change in rest:
            if answers[receipt]:
                self._answered.note_hidden(receipt, change.delay_ms)
        return [answers.get(receipt, True) for receipt, _ in changes]

    def delete(self, receipts: Sequence[str]) -> list[bool]:
        """Note the messages as done, so that Lambda deletes them."""
        self._answered.note_done(self.name, receipts)
        return super().delete(receipts)

    def move_aside(self, moves: Sequence[tuple[str, MoveTo]]) -> list[bool]:
        """Move messages; those that were moved are done, the others are kept."""
        try:
            answers = self._queue.move_aside(moves)
        except errors.OnefoldError as error:
            self._failed(self.name, len(moves), error)
            return [False] * len(moves)
        moved = [receipt for (receipt, _), ok in zip(moves, answers, strict=True) if ok]
        self._answered.note_done(self.name, moved, gone=True)
        return answers

    def _send_again(self, waiting: Sequence[tuple[Delivery, RetryIn]]) -> set[str]:
        """Replace messages by delayed copies; returns the receipts of the replaced messages."""
        entries = [
            Entry(
                body=one.body,
                attributes=one.attributes,
                delay_ms=min(change.delay_ms, DELAY_MS_MAX),
                group=one.group,
                key=one.key,
                trace=one.trace,
                trusted=one.trusted,
            )
            for one, change in waiting
        ]
        try:
            sent = self._sender.send(entries)
            copied = [one.receipt for (one, _), ok in zip(waiting, sent, strict=True) if isinstance(ok, Sent)]
            self._queue.delete(copied)
        except errors.OnefoldError as error:  # both may exist now; they have the same key
            self._failed(self.name, len(waiting), error)
            return set()
        self._answered.note_done(self.name, copied, gone=True)
        return set(copied)


class Named(Struct, frozen=True):
    """A message that was named in a response, when, and until when it was hidden (monotonic)."""

    delivery: Delivery
    named_at_ms: int
    until_ms: int


class IgnoredAnswers:
    """The messages named in this container's responses, and what is known about the mappings of its queues."""

    def __init__(self) -> None:
        self._named: dict[str, list[Named]] = {}  # by queue
        self._respects: dict[str, bool] = {}  # whether a queue's mapping is known to keep named messages

    def ignored(self, queues: Sequence[str]) -> list[str]:
        """The queues whose mapping is known to delete messages that were reported as failed."""
        return sorted({queue for queue in queues if self._respects.get(queue) is False})

    def remember(self, answered: BatchAnswer, staying: Sequence[Delivery], now_ms: int) -> None:
        """Note the messages that the present response names."""
        for one in staying:
            named = self._named.setdefault(one.queue, [])
            until_ms = answered.hidden_until_ms(one.receipt)
            if one.queue not in self._respects and until_ms is not None and len(named) < _LOOK_MAX:
                named.append(Named(one, now_ms, until_ms))

    def look(self, open_queue: Callable[[str], QueueReceiver], reports: Reports, now_ms: int) -> None:
        """Check in the real queues whether named messages still exist; `now_ms` is monotonic."""
        for name, all_named in list(self._named.items()):
            named = [one for one in all_named if one.until_ms - now_ms >= _LOOK_LEAST_MS]
            self._named[name] = named
            if not named or now_ms - named[-1].named_at_ms < _LOOK_AFTER_MS:
                continue
            del self._named[name]
            queue = open_queue(name)
            again = [(one.delivery.receipt, RetryIn(one.until_ms - now_ms)) for one in named]
            try:
                there = queue.set_visible_in(again)
                gone = [one.delivery for one, ok in zip(named, there, strict=True) if not ok]
                self._respects[name] = not gone
                if gone:
                    reports.of_process("answer-ignored", {"queue": name, "messages": len(gone)})
                    queue.move_aside([(one.receipt, _LOST) for one in gone])
            except errors.OnefoldError as error:
                reports.busy(error, queue=name, messages=len(named))


# -- the answer ------------------------------------------------------------------------------------------------------


def failures(receives: Iterable[tuple[str, bool]]) -> list[str]:
    """The message ids that the response names, each once, in the order of the batch.

    Args:
        receives: for each receive, the message id and whether it is done: its effect is recorded, or the message was
            moved to another queue. A standard queue may put one message into a batch twice.
    """
    done: dict[str, bool] = {}
    for message_id, is_done in receives:
        done[message_id] = done.get(message_id, True) and is_done
    return [message_id for message_id, is_done in done.items() if not is_done]


def answer(failed: Iterable[str]) -> dict[str, Any]:
    """The response that makes Lambda keep these messages and delete all others of the batch."""
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


# -- the event -------------------------------------------------------------------------------------------------------


def remaining_ms_of(context: object) -> int:
    """Milliseconds until Lambda kills the function."""
    ask = getattr(context, "get_remaining_time_in_millis", None)
    return int(ask()) if callable(ask) else LONGEST_INVOCATION_MS


def records_by_queue(event: object, queue_of: Callable[[str, str], str]) -> dict[str, list[Record]]:
    """The records of an event, in order, by the app's name of their queue.

    Args:
        queue_of: maps an ARN and a region to the app's queue; raises UsageError if it has none.

    Raises:
        UsageError: not an event from SQS, an incomplete record, or a queue on which the app has no job. Nothing was
            begun.
    """
    records = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(records, Sequence) or isinstance(records, str | bytes):
        raise errors.UsageError(
            f"The event is not a batch of SQS messages: it is {_shape(event)}.",
            meaning="Nothing was begun.",
            todo=_CONNECT,
        )
    found: dict[str, list[Record]] = {}
    known: dict[str, str] = {}
    for index, record in enumerate(records):
        arn = _arn_of(record, index)
        if arn not in known:
            known[arn] = queue_of(arn, str(record.get("awsRegion") or ""))
        found.setdefault(known[arn], []).append(record)
    return found


def _arn_of(record: object, index: int) -> str:
    """The queue of a record, after checking that the record is complete."""
    if not isinstance(record, Mapping):
        raise _broken(index, f"is {_shape(record)}")
    source = record.get("eventSource", record.get("EventSource"))  # SNS capitalises this field
    if source != EVENT_SOURCE:
        raise errors.UsageError(
            f"Record {index} of the event comes from {str(source)[:40]!r}, not from {EVENT_SOURCE!r}.",
            meaning="Nothing was begun.",
            todo=_OTHERS.get(str(source), _CONNECT),
        )
    for name in _TEXTS:
        if not isinstance(record.get(name), str) or not record[name]:
            raise _broken(index, f"has no text in {name!r}")
    for name in ("attributes", "messageAttributes"):
        if not isinstance(record.get(name, {}), Mapping):
            raise _broken(index, f"has no object in {name!r}")
    arn = record.get("eventSourceARN")
    if not isinstance(arn, str) or arn.count(":") < 5:
        raise _broken(index, f"has the eventSourceARN {str(arn)[:100]!r}")
    return arn


def _broken(index: int, what: str) -> errors.UsageError:
    return errors.UsageError(
        f"Record {index} of the event {what}.",
        meaning="Lambda does not make such a record of an SQS message; nothing was begun.",
        todo=_CONNECT,
    )


def _shape(value: object) -> str:
    """The kind of a value, without its content."""
    if isinstance(value, Mapping):
        names = ", ".join(sorted(str(name)[:30] for name in value)[:8])
        return f"an object with {names}" if names else "an empty object"
    return "null" if value is None else f"a {type(value).__name__}"
