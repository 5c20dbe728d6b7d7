"""A running event source mapping: polls a queue, forms batches, invokes a function, deletes messages that are done.

Each of its pollers handles one batch at a time, from the first receive to the delete, and receives only what it can
pass to an invocation; `batching.py` decides how many pollers there are. As on AWS, the mapping never changes a
visibility: a failed message comes back when the visibility of its receive ends, and one that is throttled for longer
than that has used up that receive.
Never here: rules (`batching.py`), containers. Invariant: a message is deleted only after its function's answer, or
because no filter matches it.

An event is a list of records, one per delivery. A record is made and encoded once, and an event only adds a frame
around its records, so the size of an event is known from the sizes of its records while the batch is formed. Everything
in a record's `attributes` is a string, even numbers. Ids, receipt handles and digests have the SQS API's form
(`identifiers.py`), so a handler sees the same values as a consumer of the queue.

Source: Lambda developer guide, "Using Lambda with Amazon SQS", the example events for standard and FIFO queues.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct, structs

from onefold import errors, limits
from onefold.contracts.queue import Attribute, Delivery
from onefold.events.patterns import compile_filters
from onefold.local import batching as deciding
from onefold.local import identifiers, outcomes
from onefold.local.batching import BatchRule, Scale, Seen
from onefold.local.functions import MACHINE_MAX, ServedFunction
from onefold.local.history import time_of_day
from onefold.local.identifiers import SENDER_ID, QueueAddresses
from onefold.local.outcomes import Answered, Outcome, Throttled
from onefold.local.queues import LocalQueues
from onefold.local.settings import EVENT_BYTES_MAX, MappingSettings
from onefold.local.timers import Timer

if TYPE_CHECKING:
    from onefold.outside import Entropy


EVENT_SOURCE: Final = "aws:sqs"

_HEAD = b'{"Records":['
_TAIL = b"]}"


def record_of(delivery: Delivery, addresses: QueueAddresses) -> dict[str, Any]:
    """One delivery as a record of plain values, in the order of AWS's examples."""
    record: dict[str, Any] = {
        "messageId": identifiers.message_uuid(delivery.message_id),
        "receiptHandle": identifiers.handle_of(delivery.queue, delivery.receipt),
        "body": delivery.body,
        "attributes": _attributes(delivery, addresses),
        "messageAttributes": {name: _message_attribute(one) for name, one in delivery.attributes.items()},
    }
    digest = identifiers.attributes_md5(delivery.attributes)
    if digest is not None:
        record["md5OfMessageAttributes"] = digest
    record["md5OfBody"] = identifiers.body_md5(delivery.body)
    record["eventSource"] = EVENT_SOURCE
    record["eventSourceARN"] = arn = addresses.arn(delivery.queue)
    record["awsRegion"] = arn.split(":", 4)[3]
    return record


def _attributes(delivery: Delivery, addresses: QueueAddresses) -> dict[str, str]:
    found = {
        "ApproximateReceiveCount": str(delivery.receive_count),
        "SentTimestamp": str(delivery.sent_at_ms),
        "SenderId": SENDER_ID,
        "ApproximateFirstReceiveTimestamp": str(delivery.first_received_at_ms),
    }
    if delivery.sequence is not None:
        found["SequenceNumber"] = identifiers.sequence_number(delivery.sequence) or delivery.sequence
    if delivery.group is not None:
        found["MessageGroupId"] = delivery.group
    if delivery.dedup_id is not None:
        found["MessageDeduplicationId"] = delivery.dedup_id
    if delivery.trace is not None:
        found["AWSTraceHeader"] = delivery.trace
    if delivery.source is not None:
        found["DeadLetterQueueSourceArn"] = addresses.arn(delivery.source)
    return found


def _message_attribute(attribute: Attribute) -> dict[str, Any]:
    value = attribute.value
    told = (
        {"stringValue": value} if isinstance(value, str) else {"binaryValue": base64.b64encode(value).decode("ascii")}
    )
    return {**told, "stringListValues": [], "binaryListValues": [], "dataType": attribute.type}


def record_bytes(delivery: Delivery, addresses: QueueAddresses) -> bytes:
    """One record as JSON, to be put into an event."""
    return msgspec.json.encode(record_of(delivery, addresses))


def event_bytes(records: Sequence[bytes]) -> bytes:
    """The event with these records, 1 or more, as JSON, with which a function is invoked."""
    return _HEAD + b",".join(records) + _TAIL


def event_size(record_sizes: Sequence[int]) -> int:
    """The size in bytes of an event with records of these sizes."""
    return len(_HEAD) + sum(record_sizes) + max(len(record_sizes) - 1, 0) + len(_TAIL)


LOOK_MS = limits.SECOND_MS  # how often the concurrency is computed anew
_PAUSE_MS = limits.SECOND_MS  # pause after an error outside invocations: a deleted queue, a locked file


class MappingStats(Struct, frozen=True, kw_only=True):
    """What a mapping has done since it started.

    Args:
        pollers: those running now; busy: those with a batch; concurrency: how many there may be.
        received, invoked, deleted, failed, filtered, dropped: counts of messages. `failed` ones stay until their
            visibility ends, `dropped` ones were throttled until then.
        problem: why it does not poll; empty while it does.
    """

    pollers: int
    busy: int
    concurrency: int
    received: int = 0
    invoked: int = 0
    deleted: int = 0
    failed: int = 0
    filtered: int = 0
    dropped: int = 0
    problem: str = ""


class _Taken(Struct):
    """A received message and its record."""

    delivery: Delivery
    record: bytes


class Mapping:
    """One mapping. Used on the loop's thread only.

    Args:
        settings: checked settings.
        queues: the queues of the server, one of which it polls.
        function: the function that it invokes.
        addresses: the server's, for the URLs and ARNs of its queues.
        entropy: for the pauses after throttling.
    """

    def __init__(
        self,
        settings: MappingSettings,
        queues: LocalQueues,
        function: ServedFunction,
        *,
        addresses: QueueAddresses,
        entropy: Entropy,
    ) -> None:
        self.settings = settings
        self._queues = queues
        self._function = function
        self._addresses = addresses
        self._entropy = entropy
        self._via = f"mapping {settings.uuid}"
        self._fifo = settings.queue.endswith(".fifo")
        self._rule = BatchRule(size=settings.batch_size, window_ms=settings.window_ms, event_bytes_max=EVENT_BYTES_MAX)
        self._filters = compile_filters(settings.filters)
        self._pollers: dict[asyncio.Task[None], bool] = {}  # whether each has a batch
        self._waits: set[asyncio.Future[list[Delivery]]] = set()  # receives for a batch that has begun
        self._scale: Scale | None = None
        self._rescale_timer: Timer | None = None
        self._seen = {"messages": 0, "errors": 0, "throttles": 0}
        self._counts = dict.fromkeys(("received", "invoked", "deleted", "failed", "filtered", "dropped"), 0)
        self._problem = ""
        self._stopping = False

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to poll, if the mapping is enabled."""
        if self.settings.enabled and self._scale is None:
            now_ms = self._queues.timers.now_ms()
            self._scale = deciding.first_scale(now_ms, self.settings.concurrency_max, fifo=self._fifo)
            self._hire()
            self._rescale_later()

    async def stop(self, *, drain: bool = True) -> None:
        """End polling.

        Args:
            drain: finish the batches in progress, including incomplete ones; otherwise they are abandoned, and come back
                when their visibility ends.
        """
        self._stopping = True
        if self._rescale_timer is not None:
            self._rescale_timer.cancel()
        for poller, busy in list(self._pollers.items()):
            if not busy or not drain:
                poller.cancel()
        for wait in self._waits:
            wait.cancel()
        await asyncio.gather(*self._pollers, return_exceptions=True)
        self._scale = None

    @property
    def is_idle(self) -> bool:
        """Whether no poller has a batch."""
        return not any(self._pollers.values())

    def stats(self) -> MappingStats:
        """What it has done so far."""
        concurrency = 0 if self._scale is None else self._allowed(self._scale)
        return MappingStats(
            pollers=len(self._pollers),
            busy=sum(self._pollers.values()),
            concurrency=concurrency,
            problem=self._problem,
            **self._counts,
        )

    def _allowed(self, scale: Scale) -> int:
        """The decided concurrency, but not more than this machine can run.

        Reserved concurrency is not a bound: Lambda polls beyond it too, and a throttled message has used up a receive.
        """
        function = self._function
        machine_max = function.capacity if function.capacity < function.limit else MACHINE_MAX
        return max(1, min(int(scale.concurrency), machine_max))

    def _hire(self) -> None:
        """Start pollers up to the allowed number; surplus ones end after their batch."""
        assert self._scale is not None
        for _ in range(self._allowed(self._scale) - len(self._pollers)):
            poller = self._queues.timers.loop.create_task(self._poll())
            self._pollers[poller] = False
            poller.add_done_callback(self._left)

    def _left(self, poller: asyncio.Task[None]) -> None:
        self._pollers.pop(poller, None)
        if not poller.cancelled() and (error := poller.exception()) is not None:
            raise error  # a bug, which the loop reports

    def _rescale_later(self) -> None:
        self._rescale_timer = self._queues.timers.call_at(self._queues.timers.now_ms() + LOOK_MS, self._rescale)

    def _rescale(self) -> None:
        self._rescale_timer = None
        if self._scale is None or self._stopping:
            return
        before, busy = self._scale, bool(self._pollers) and all(self._pollers.values())
        self._scale = deciding.next_scale(
            self._scale,
            Seen(busy=busy, **self._seen),
            self._queues.timers.now_ms(),
            concurrency_max=self.settings.concurrency_max,
            reports_failures=self.settings.reports_failures,
            fifo=self._fifo,
        )
        quiet = not any(self._seen.values()) and self.is_idle
        self._seen = dict.fromkeys(self._seen, 0)
        surplus = len(self._pollers) - self._allowed(self._scale)
        for poller in [poller for poller, busy in self._pollers.items() if not busy][: max(0, surplus)]:
            poller.cancel()
        self._hire()
        idles = self._scale.at_ms - self._scale.quiet_since_ms >= deciding.IDLE_MS
        if not (quiet and idles and before.concurrency == self._scale.concurrency):  # else a message starts it again
            self._rescale_later()

    def _wake(self) -> None:
        """Compute the concurrency again because a message came, ignoring the time without messages."""
        if self._rescale_timer is None and self._scale is not None and not self._stopping:
            self._scale = structs.replace(self._scale, at_ms=self._queues.timers.now_ms())
            self._rescale_later()

    # -- one poller ------------------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        left: list[_Taken] = []
        while left or not (self._stopping or self._is_surplus()):
            try:
                batch, left = await self._collect(me, left)
                self._problem = ""
            except (errors.NotFoundError, errors.TransientError, errors.StorageError) as error:
                self._problem = error.what
                left = []  # received messages come back when their visibility ends
                self._pollers[me] = False
                await self._pause()
                continue
            if batch:
                await self._perform(batch)
            self._pollers[me] = bool(left)

    def _is_surplus(self) -> bool:
        return self._scale is not None and len(self._pollers) > self._allowed(self._scale)

    async def _pause(self) -> None:
        timers = self._queues.timers
        await timers.sleep_until(timers.now_ms() + _PAUSE_MS)

    async def _collect(self, me: asyncio.Task[None], left: list[_Taken]) -> tuple[list[_Taken], list[_Taken]]:
        """A batch, and the messages that no longer fitted into its event."""
        timers, batch = self._queues.timers, left
        first_at_ms = timers.now_ms() if batch else None
        sizes = [len(one.record) for one in batch]
        while not (batch and self._stopping):
            until_ms = _visible_at_ms(batch)
            ask = deciding.receive_next(self._rule, len(batch), first_at_ms, timers.now_ms(), until_ms)
            if ask is None:
                break
            found = await self._more(*ask, begun=bool(batch))
            if found:
                self._pollers[me] = True
            elif self._stopping or not batch:
                return batch, []
            taken = await self._filtered(found)
            if taken and first_at_ms is None:
                first_at_ms = timers.now_ms()
            for index, one in enumerate(taken):
                if batch and event_size([*sizes, len(one.record)]) > self._rule.event_bytes_max:
                    return batch, taken[index:]
                batch.append(one)
                sizes.append(len(one.record))
            if found and not batch:
                self._pollers[me] = False
        return batch, []

    async def _more(self, count_max: int, wait_ms: int, *, begun: bool) -> list[Delivery]:
        """Receive; a batch that has begun gets nothing more once the mapping stops."""
        receive = self._queues.receive(
            self.settings.queue, count_max, wait_ms=wait_ms, via=self._via, gone=lambda: self._stopping
        )
        if not begun:
            return await receive
        wait = self._queues.timers.loop.create_task(receive)
        self._waits.add(wait)
        try:
            return await wait
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if not self._stopping or me is None or me.cancelling():
                raise
            return []
        finally:
            self._waits.discard(wait)

    async def _filtered(self, found: Sequence[Delivery]) -> list[_Taken]:
        """The messages that a filter matches; the others are deleted, as on Lambda."""
        self._counts["received"] += len(found)
        self._seen["messages"] += len(found)
        if found:
            self._wake()
        taken, others = [], []
        for delivery in found:
            if self._filters.keep(delivery.body):
                taken.append(_Taken(delivery, record_bytes(delivery, self._addresses)))
            else:
                others.append(delivery)
                self._record(
                    delivery, "answered", outcome="done", why="no filter of the mapping matches it: it is deleted"
                )
        if others:
            self._counts["filtered"] += len(others)
            await self._delete(others)
        return taken

    async def _delete(self, deliveries: Sequence[Delivery]) -> None:
        await self._queues.delete(self.settings.queue, [one.receipt for one in deliveries], via=self._via)

    def _record(self, delivery: Delivery, what: str, *, why: str = "", **detail: str | int) -> None:
        self._queues.history.record(
            delivery.queue, delivery.message_id, "invoked" if what == "invoked" else "answered",
            at_ms=self._queues.timers.now_ms(), why=why, via=self._via, function=self.settings.function, **detail,
        )  # fmt: skip

    # -- one batch ---------------------------------------------------------------------------------------------------------

    async def _perform(self, batch: Sequence[_Taken]) -> None:
        deliveries = [one.delivery for one in batch]
        request_id = self._function.new_request_id()
        outcome = await self._invoked(batch, request_id)
        if outcome is None:
            self._counts["dropped"] += len(batch)
            for delivery in deliveries:
                self._record(
                    delivery, "answered", outcome="throttled until its visibility was over", request_id=request_id
                )
            return
        verdict = deciding.BatchVerdict("none")
        why = outcomes.summary(outcome)
        ids = {identifiers.message_uuid(one.message_id): one for one in deliveries}
        if isinstance(outcome, Answered):
            verdict = deciding.read_answer(outcome.payload, ids, reports_failures=self.settings.reports_failures)
            why = verdict.why
        else:
            self._seen["errors"] += 1
        failed = set(ids) if verdict.kind == "none" else verdict.failed
        done = [one for identifier, one in ids.items() if identifier not in failed]
        for identifier, delivery in ids.items():
            self._record(
                delivery,
                "answered",
                outcome=f"failed: {why}; {_stays(delivery)}" if identifier in failed else "done",
                request_id=request_id,
            )
        self._counts["failed"] += len(failed)
        if done:
            await self._delete_done(done)
        self._counts["deleted"] += len(done)

    async def _delete_done(self, done: Sequence[Delivery]) -> None:
        """Delete the messages that are done; after an error they come back, as after a crash at this point."""
        try:
            await self._delete(done)
        except (errors.NotFoundError, errors.TransientError, errors.StorageError) as error:
            self._problem = error.what

    async def _invoked(self, batch: Sequence[_Taken], request_id: str) -> Outcome | None:
        """The function's answer; None if it was throttled until a message of the batch became visible again."""
        event = event_bytes([one.record for one in batch])
        timers, tries = self._queues.timers, 0
        until_ms = _visible_at_ms(batch) or 0
        for one in batch:
            self._record(one.delivery, "invoked", request_id=request_id, messages=len(batch))
        self._counts["invoked"] += len(batch)
        faults = self._queues.faults
        while True:
            plan = faults.invoking(self.settings.queue) if faults.active else None
            if plan is not None:
                for one in batch:
                    self._queues.history.record(
                        one.delivery.queue, one.delivery.message_id, "fault", at_ms=timers.now_ms(), why=plan.why
                    )
            outcome = await self._function.invoke(
                event, request_id=request_id, kill=None if plan is None else plan.kill
            )
            if not isinstance(outcome, Throttled):
                return outcome
            tries += 1
            self._seen["throttles"] += 1
            pause_ms = deciding.throttle_pause_ms(tries, until_ms, timers.now_ms(), self._entropy.fraction())
            if pause_ms is None or self._stopping:
                return None
            await timers.sleep_until(timers.now_ms() + pause_ms)
            if timers.now_ms() >= until_ms:
                return None


def _visible_at_ms(batch: Sequence[_Taken]) -> int | None:
    """When the first message of a batch becomes visible again; None for an empty one."""
    return min((one.delivery.received_at_ms + one.delivery.visible_ms for one in batch), default=None)


def _stays(delivery: Delivery) -> str:
    return f"it stays until its visibility ends at {time_of_day(delivery.received_at_ms + delivery.visible_ms)}"
