"""Looking into queues of SQS, which has no operation for that: messages are received for a short time and then released.

This has effects. A reading counts one receive of each message that it sees and hides the message from consumers until
it is released (for `SHOWN_S` if this process dies). On a FIFO queue it sees only the first ten messages of each group,
and on a queue with a maximum receive count it brings messages nearer to that maximum. So by default only dead-letter
and held queues are searched; any other queue is read only when somebody names it.

A reading stops after `count_max` messages, or when a receive returns nothing new. The messages that it found are cached
for `FRESH_MS`, so that paging and repeated questions need only one reading. Copies that dead-lettering one message has
made (with the same `onefold-id`) are shown as one message.

Never here: moving, deleting for people. Invariant: a reading releases the messages that it received before it returns,
unless it was asked to hold them.

Sources: SQS API reference, ReceiveMessage; developer guide, "Using the message group ID", on locked groups.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from onefold import limits
from onefold.contracts.admin import Peeked
from onefold.engines.aws import batches, messages
from onefold.engines.aws.catalogue import QueueCatalogue
from onefold.engines.aws.messages import Form, Received
from onefold.engines.aws.payloads import Payloads

if TYPE_CHECKING:
    from onefold.outside import Clock

SHOWN_S: Final = 60  # the longest time for which a reading hides a message
FRESH_MS: Final = 5 * limits.SECOND_MS
COUNT_MAX: Final = 10_000  # messages in one reading
_AT_ONCE: Final = 8  # queues read by one search
_REMEMBERED_MAX: Final = 100_000


class SeenMessage(Struct, frozen=True):
    """A message that a reading received: `copies` are all its receives, by message id and `onefold-id`."""

    queue: str
    first: Received
    copies: tuple[Received, ...]


class QueueSnapshot(Struct, frozen=True):
    """The messages that a reading found in one queue, oldest first; `ended`: there were no more."""

    at_ms: int
    seen: tuple[SeenMessage, ...]
    ended: bool


class QueueInspector:
    """Reads the queues of one catalogue, and remembers in which queue it saw each message.

    Args:
        wait_s: seconds of long polling for each receive; with 0, messages may be missed.
    """

    def __init__(
        self,
        catalogue: QueueCatalogue,
        *,
        clock: Clock,
        payloads: Payloads | None,
        wait_s: int,
        trusts: Callable[[Form, str, int], bool],
    ) -> None:
        self._catalogue = catalogue
        self._trusts = trusts
        self._clock = clock
        self._payloads = payloads
        self._wait_s = wait_s
        self._kept: dict[str, QueueSnapshot] = {}
        self._queue_by_id: dict[str, str] = {}
        self._lock = threading.Lock()
        self._inspecting: dict[str, threading.Lock] = {}

    # -- one reading ----------------------------------------------------------------------------------------------------

    def inspect(self, queue: str, count_max: int | None = None, *, fresh: bool = False) -> QueueSnapshot:
        """The messages of a queue: all of them, up to `COUNT_MAX`, or about `count_max`.

        Args:
            fresh: read again even if the queue was read a moment ago.

        Raises:
            NotFoundError: the queue does not exist. UsageError: not allowed. TransientError: SQS did not answer.
        """
        with self._lock:
            looking = self._inspecting.setdefault(queue, threading.Lock())
        with looking:
            kept = self._kept.get(queue)
            old = kept is None or self._clock.monotonic_ms() - kept.at_ms >= FRESH_MS
            if kept is None or old or fresh or (count_max is None and not kept.ended):
                most = COUNT_MAX if count_max is None else min(count_max, COUNT_MAX)
                found = self.take(queue, lambda _: True, most)
                self.release(queue, [copy for one in found for copy in one.copies])
                ended = count_max is None or sum(len(one.copies) for one in found) < most
                kept = self._kept[queue] = QueueSnapshot(self._clock.monotonic_ms(), tuple(found), ended)
            return kept

    def inspect_all(self, queues: Sequence[str], *, fresh: bool = False) -> list[QueueSnapshot]:
        """Read several queues, a few at a time, because each reading ends with a receive that waits and finds nothing.

        Raises:
            as `inspect`.
        """
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="onefold-look") as pool:
            return list(pool.map(lambda queue: self.inspect(queue, fresh=fresh), queues))

    def kept(self, queue: str) -> QueueSnapshot | None:
        """The last reading of a queue, however old."""
        return self._kept.get(queue)

    def take(self, queue: str, wanted: Callable[[Received], bool], count_max: int) -> list[SeenMessage]:
        """Receive until `count_max` wanted messages are held or nothing new comes; the others are released.

        Raises:
            as `inspect`.
        """
        held: dict[str, list[Received]] = {}
        others: list[Received] = []
        known: set[str] = set()
        count = 0
        while count < count_max and len(known) < COUNT_MAX:
            got = self.receive(queue, wait_s=self._wait_s)
            new = [one for one in got if one.message_id not in known]
            for one in new:
                known.add(one.message_id)
                if wanted(one):
                    held.setdefault(one.form.token or one.message_id, []).append(one)
                    count += 1
                else:
                    others.append(one)
            if not new:
                break
        self.release(queue, others)
        found = [SeenMessage(queue, copies[0], tuple(copies)) for copies in held.values()]
        self._remember(found)
        return sorted(found, key=lambda one: (one.first.sent_at_ms, one.first.sequence or "", one.first.message_id))

    def receive(self, queue: str, *, wait_s: int = 0, count_max: int = limits.BATCH_ENTRIES_MAX) -> list[Received]:
        """Receive once; the messages are hidden for `SHOWN_S`."""
        url = self._catalogue.url(queue)
        with self._catalogue.calling("ReceiveMessage", queue) as client:
            answer = client.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=count_max,
                VisibilityTimeout=SHOWN_S,
                WaitTimeSeconds=wait_s,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
            )
        return [messages.received(one) for one in answer.get("Messages", ())]

    def release(self, queue: str, taken: Sequence[Received]) -> None:
        """Make messages visible again at once."""
        self._batched(queue, "ChangeMessageVisibility", taken, {"VisibilityTimeout": 0})

    def delete(self, queue: str, taken: Sequence[Received]) -> set[str]:
        """Delete messages that this process holds; returns the ids of the deleted ones."""
        deleted = self._batched(queue, "DeleteMessage", taken, {})
        self.forget(queue)
        return deleted

    def _batched(self, queue: str, action: str, taken: Sequence[Received], extra: dict[str, Any]) -> set[str]:
        url = self._catalogue.url(queue)

        def call(some: list[dict[str, Any]]) -> Any:
            with self._catalogue.calling(action, queue) as client:
                if action == "DeleteMessage":
                    return client.delete_message_batch(QueueUrl=url, Entries=some)
                return client.change_message_visibility_batch(QueueUrl=url, Entries=some)

        done: set[str] = set()
        for indexes in batches.cut([0] * len(taken)):
            answers = batches.carry_out(call, [{"ReceiptHandle": taken[index].handle, **extra} for index in indexes])
            done |= {
                taken[index].message_id
                for index, one in zip(indexes, answers, strict=True)
                if not isinstance(one, batches.FailedEntry)
            }
        return done

    # -- what is remembered --------------------------------------------------------------------------------------------

    def forget(self, queue: str) -> None:
        """Note that this process changed the queue: the next call reads it again."""
        with self._lock:
            self._kept.pop(queue, None)

    def queue_of(self, message_id: str) -> str | None:
        """The queue where a reading last saw a message."""
        return self._queue_by_id.get(message_id)

    def is_at(self, message_id: str, queue: str) -> None:
        """Note that a message was sent to a queue that may be searched."""
        with self._lock:
            self._queue_by_id[message_id] = queue

    def _remember(self, found: Sequence[SeenMessage]) -> None:
        with self._lock:
            for one in found:
                for copy in one.copies:
                    self._queue_by_id[copy.message_id] = one.queue
            while len(self._queue_by_id) > _REMEMBERED_MAX:
                del self._queue_by_id[next(iter(self._queue_by_id))]

    # -- as the contract shows messages
    # ----------------------------------------------------------------------------------

    def peeked(self, one: SeenMessage) -> Peeked:
        """A message as an operator sees it. Its receive count includes this reading."""
        got, form, queue = one.first, one.first.form, one.queue
        body, _ = messages.body_of(form, self._payloads)
        source, reason = self.origin(one)
        return Peeked(
            queue=queue,
            message_id=got.message_id,
            state="visible",
            body=body,
            attributes=form.attributes,
            receive_count=got.receive_count,
            sent_at_ms=got.sent_at_ms,
            visible_at_ms=got.sent_at_ms,
            expires_at_ms=got.sent_at_ms + self._catalogue.settings(queue).retention_ms,
            first_received_at_ms=got.first_received_at_ms,
            group=form.group,
            dedup_id=form.dedup_id,
            sequence=got.sequence,
            key=form.key,
            source=source,
            reason=reason,
            trusted=self._trusts(form, body, got.sent_at_ms),
        )

    def origin(self, one: SeenMessage) -> tuple[str | None, Any]:
        """The queue from which a message was dead-lettered, and the reason that is stored with it."""
        form, moved_from = one.first.form, one.first.moved_from_arn
        if moved_from is not None:  # set by SQS itself; an attribute of the sender does not count
            return self._catalogue.name_of_arn(moved_from), None
        if form.source is not None and form.source != self._catalogue.on_aws(one.queue):
            source = self._catalogue.local(form.source)
            if self._catalogue.dead_letters_to(source, one.queue):
                return source, form.reason
        return None, None
