"""The queues of one engine for one event loop, as the SQS operations and the Lambda mappings use them.

`LocalQueues` has the methods of the Queue contract as coroutines. Engine calls go through `GroupCommit`: the calls of one
iteration of the loop share one transaction and one fsync. While a commit waits for the disk, requests arrive, and the next
iteration makes all their calls in one commit; so a single client waits for one fsync per call, and a hundred clients
share one. A call is made at once if the engine is in memory, or if no other call is waiting.

Long polls wait in `Waiters`, every event is recorded in the history, and the `FaultInjector` may change what happens;
while no fault is set, that costs one check of a flag. `Upkeep` runs the engine's maintenance by the server's clock: it
carries a move task forward every 50 ms and looks for expired messages every second. For other processes on the same
file, one thread waits for their wake-ups and passes them to the loop; changes without a wake-up (a release, a delete)
are noticed within a second.

Never here: HTTP, AWS's shapes, functions. Invariants: what a method reports has happened and is as durable as requested
(unless an injected fault says otherwise); a message received for a caller that has disconnected is released without
counting the receive; a change made by another process is seen within a second. Used on the loop's thread only, except
for the thread that waits for wake-ups.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from onefold import errors
from onefold.contracts.admin import Peeked, Transferred
from onefold.contracts.engine import Engine
from onefold.contracts.entries import Entry, Refused, Sent
from onefold.contracts.queue import Delivery, RetryIn
from onefold.contracts.state import group_flag
from onefold.local.fault_rules import OnSend
from onefold.local.faults import FaultInjector
from onefold.local.history import MessageHistory
from onefold.local.timers import Timer, Timers
from onefold.local.waiters import Waiters, WaitingReceiver
from onefold.runtime.outgoing import transaction

if TYPE_CHECKING:
    from onefold.contracts.verbs import Queue


T = TypeVar("T")
UPKEEP_MS = 1_000  # how often to look for expired messages and for changes by other processes
UPKEEP_MANUAL_MS = (
    60_000  # the same on a manual clock, which may jump by weeks; code that moves it ends with `maintain_now`
)
MOVING_MS = 50  # the same while a move task runs
NOTIFY_S = 0.002  # other processes are woken once for everything sent within this time
_FOREIGN_WAIT_S = 3_600.0
_JOIN_S = 5.0
_FIFO = ".fifo"  # how the names of FIFO queues end, and no other


class GroupCommit:
    """Makes the engine calls of one loop; the calls of one turn of the loop share a transaction.

    Args:
        engine: an opened engine, used by this process on this loop's thread only.
        loop: the loop.

    Attributes:
        is_alone: whether no other request can be about to make a call; always False unless the server replaces it.
    """

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._at_once = not engine.shared
        self.is_alone: Callable[[], bool] = lambda: False
        self._waiting: list[tuple[Callable[[], Any], bool, asyncio.Future[Any]]] = []

    async def run(self, call: Callable[[], T], *, synced: bool = True, undo: Callable[[T], None] | None = None) -> T:
        """Make one call, in this turn's transaction.

        Args:
            call: calls the engine, and does not wait for anything.
            synced: False for a change that a power cut may undo without harm (a receive).
            undo: called with the result if the caller was cancelled after the call was made.

        Raises:
            StorageBusy, StorageError: nothing in this turn was written.
            Exception: whatever `call` raised; no part of the call was written.
        """
        if self._at_once or (not self._waiting and self.is_alone()):
            return call()
        future: asyncio.Future[T] = self._loop.create_future()
        if not self._waiting:
            self._loop.call_soon(self._commit)
        self._waiting.append((call, synced, future))
        try:
            return await future
        except asyncio.CancelledError:
            if undo is not None and future.done() and not future.cancelled() and future.exception() is None:
                undo(future.result())
            raise

    def _commit(self) -> None:
        batch = [each for each in self._waiting if not each[2].cancelled()]
        self._waiting = []
        if not batch:
            return
        try:
            if len(batch) == 1:
                answers: list[object] = [batch[0][0]()]
            else:
                synced = any(each[1] for each in batch)
                answers = self._engine.together([each[0] for each in batch], synced=synced)
        except Exception as error:  # noqa: BLE001 - it is raised where the result is awaited
            answers = [error] * len(batch)
        for (_, _, future), answer in zip(batch, answers, strict=True):
            if future.cancelled():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)


class Upkeep:
    """Runs the maintenance of one engine on one loop.

    Args:
        engine: the engine to maintain.
        timers: give the time and the loop.
        changed: called after a change that no call of this process made.
    """

    def __init__(self, engine: Engine, timers: Timers, changed: Callable[[], None]) -> None:
        self._engine = engine
        self._timers = timers
        self._changed = changed
        self._next: Timer | None = None
        self._bridge: _Bridge | None = None
        self._bundle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start, with the first piece of maintenance at once."""
        if self._engine.shared:
            self._bridge = _Bridge(self._engine, self._timers.loop, self._changed)
        self._keep_up()

    def stop(self) -> None:
        """Stop; harmless if it never started, or has stopped."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._bundle is not None:
            self._bundle.cancel()
            self._notify()
        if self._bridge is not None:
            self._bridge.stop()
            self._bridge = None

    def maintain_now(self) -> None:
        """Do the next piece of maintenance now."""
        if self._next is not None:
            self._next.cancel()
            self._keep_up()

    def notify(self) -> None:
        """Wake the workers of other processes because messages were sent, once for everything sent within 2 ms."""
        if self._bridge is not None and self._bundle is None:
            self._bundle = self._timers.loop.call_later(NOTIFY_S, self._notify)

    def _notify(self) -> None:
        self._bundle = None
        self._engine.notify()

    def _keep_up(self) -> None:
        pause_ms = UPKEEP_MANUAL_MS if self._timers.is_manual else UPKEEP_MS
        try:
            done = self._engine.maintain(lambda _: None)
            if self._engine.queues.moving():
                pause_ms = MOVING_MS
            if done or (self._engine.shared and self._engine.changed_elsewhere()):
                self._changed()
        except (errors.StorageBusy, errors.StorageError):
            pass  # another process holds the file, or the disk is full: try again later; a request reports it
        self._next = self._timers.call_at(self._timers.now_ms() + pause_ms, self._keep_up)


class _Bridge:
    """A thread that waits for wake-ups from other processes and passes them to the loop."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, woken: Callable[[], None]) -> None:
        self._waiter = engine.waiter(foreign=True)
        self._loop = loop
        self._woken = woken
        self._stopped = False
        self._thread = threading.Thread(target=self._listen, name="onefold-wake-up", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._stopped:
            if self._waiter.wait(_FOREIGN_WAIT_S) and not self._stopped:
                try:
                    self._loop.call_soon_threadsafe(self._woken)
                except RuntimeError:
                    return  # the loop was closed without a stop

    def stop(self) -> None:
        self._stopped = True
        self._waiter.wake()
        self._thread.join(timeout=_JOIN_S)


class LocalQueues:
    """The queues of one engine for one loop.

    Args:
        engine: must not be used by anything else in this process.
        timers: give the time on the loop on which everything here runs.
        history: records what happens.
        faults: asked around every verb.
    """

    def __init__(self, engine: Engine, timers: Timers, history: MessageHistory, faults: FaultInjector) -> None:
        self.engine = engine
        self.timers = timers
        self.history = history
        self.faults = faults
        self.group_commit: GroupCommit = GroupCommit(engine, timers.loop)
        self._open: dict[str, Queue] = {}
        self._full: set[str] = set()  # standard queues at the in-flight limit, whose receivers wait for room
        self._waiters = Waiters(timers, self._receive_for, engine.queues.next_ready_ms, self._release)
        self._upkeep = Upkeep(engine, timers, self._changed_elsewhere)
        self._releases: set[asyncio.Task[None]] = set()

    # -- verbs -------------------------------------------------------------------------------------------------------

    async def send(self, queue: str, entries: Sequence[Entry], *, via: str = "") -> list[Sent | Refused]:
        """Accept messages, like `Queue.send`.

        Args:
            via: the caller, for the history.

        Raises:
            NotFoundError: the queue does not exist. StorageBusy: nothing was accepted.
        """
        plans: list[OnSend | None] = []
        if self.faults.active:
            entries, plans = self.faults.sending(queue, entries, self.engine.queues.setting(queue).delay_ms)
        answers = await self.group_commit.run(lambda: self._queue(queue).send(entries))
        if self._record_sent(queue, entries, answers, plans, via):
            self.changed(queue)
            self._upkeep.notify()
        return answers

    def _record_sent(
        self,
        queue: str,
        entries: Sequence[Entry],
        answers: Sequence[Sent | Refused],
        plans: Sequence[OnSend | None],
        via: str,
    ) -> bool:
        """Record what happened to each entry; return whether one was accepted."""
        now_ms, record = self.timers.now_ms(), self.history.record
        plain = [
            answer.message_id
            for entry, answer in zip(entries, answers, strict=True)
            if not isinstance(answer, Refused)
            and not answer.duplicate
            and entry.delay_ms is None
            and entry.group is None
        ]
        if plain and len(plain) == len(entries) and not plans:
            self.history.record_each(queue, plain, "sent", at_ms=now_ms, via=via)
            return True
        accepted = False
        for index, (entry, answer) in enumerate(zip(entries, answers, strict=True)):
            if isinstance(answer, Refused):
                continue
            if answer.duplicate:
                record(queue, answer.message_id, "deduplicated", at_ms=now_ms, via=via)
                continue
            accepted = True
            if entry.delay_ms is None and entry.group is None:
                record(queue, answer.message_id, "sent", at_ms=now_ms, via=via)
            else:
                record(
                    queue, answer.message_id, "sent", at_ms=now_ms, via=via, delay_ms=entry.delay_ms, group=entry.group
                )
            if plans and (plan := plans[index]) is not None:
                record(queue, answer.message_id, "fault", at_ms=now_ms, why=plan.why)
        return accepted

    async def receive(
        self,
        queue: str,
        count_max: int,
        *,
        visible_ms: int | None = None,
        wait_ms: int = 0,
        via: str = "",
        gone: Callable[[], bool] | None = None,
    ) -> list[Delivery]:
        """Receive up to `count_max` messages, waiting up to `wait_ms` for the first one.

        Receivers are served in the order in which they came. Cancelling loses nothing: received messages are released.

        Args:
            visible_ms: how long the messages are hidden; None: the queue's setting.
            wait_ms: 0 does not wait.
            via: the caller, for the history.
            gone: whether the caller has left; checked before a message is received for it, and before it is returned.

        Raises:
            NotFoundError: the queue does not exist, or is deleted while the caller waits.
            OverLimitError: a standard queue is at its in-flight limit, and `wait_ms` is 0; otherwise the receive waits.
            UsageError: `count_max` or `visible_ms` is out of range.
        """
        answer: asyncio.Future[list[Delivery]] = self.timers.loop.create_future()
        waiter = WaitingReceiver(answer, count_max, visible_ms, via, gone)
        found: list[Delivery] = []
        if not wait_ms:
            found = await self._receive_once(queue, waiter)
        elif not self._waiters.has(queue):
            found = await self._receive_for(queue, waiter)
        if wait_ms and not found:
            found = await self._waiters.wait(queue, waiter, wait_ms)
        if found and gone is not None and gone():  # it left before the answer was returned
            self._release(queue, found)
            return []
        return found

    async def delete(self, queue: str, receipts: Sequence[str], *, via: str = "") -> list[bool]:
        """Delete each receipt's message, like `Queue.delete`.

        Raises:
            NotFoundError: the queue does not exist. UsageError: a malformed receipt; nothing was deleted.
        """
        ids = self.engine.queues.message_ids(receipts)
        plans = self.faults.deleting(queue, receipts) if self.faults.active else []

        def call() -> list[bool]:
            opened = self._queue(queue)
            if not any(plans):
                return opened.delete(receipts)
            answers = [True] * len(receipts)
            indexes = [index for index, plan in enumerate(plans) if plan is None]
            for index, done in zip(indexes, opened.delete([receipts[index] for index in indexes]), strict=True):
                answers[index] = done
            again = [
                (receipts[index], RetryIn(0))
                for index, plan in enumerate(plans)
                if plan is not None and plan.how == "repeat"
            ]
            opened.set_visible_in(again)
            return answers

        answers = await self.group_commit.run(call)
        now_ms = self.timers.now_ms()
        for index, (message_id, done) in enumerate(zip(ids, answers, strict=True)):
            plan = plans[index] if plans else None
            if plan is not None:
                self.history.record(queue, message_id, "fault", at_ms=now_ms, why=plan.why)
            elif done:
                self.history.record(queue, message_id, "deleted", at_ms=now_ms, via=via)
            else:
                standing = self._queue(queue).receipt_states([receipts[index]])[0]
                self.history.record(queue, message_id, "delete-refused", at_ms=now_ms, via=via, standing=standing)
        if queue.endswith(_FIFO) or queue in self._full or any(plans):
            self.changed(queue)  # a group's next message, room under the limit, or a fault's message
        return answers

    async def set_visible_in(self, queue: str, changes: Sequence[tuple[str, RetryIn]], *, via: str = "") -> list[bool]:
        """Hide each receipt's message for a new time from now, like `Queue.set_visible_in`.

        Raises:
            NotFoundError: the queue does not exist. UsageError: a malformed receipt or a time out of range; nothing was
                changed.
        """
        ids = self.engine.queues.message_ids([receipt for receipt, _ in changes])
        answers = await self.group_commit.run(lambda: self._queue(queue).set_visible_in(changes), synced=False)
        now_ms = self.timers.now_ms()
        for message_id, (receipt, change), done in zip(ids, changes, answers, strict=True):
            if not done:
                continue
            if not change.delay_ms:
                self.history.record(queue, message_id, "released", at_ms=now_ms, via=via)
            elif queue.endswith(_FIFO) or self._queue(queue).receipt_states([receipt]) != [
                "visible"
            ]:  # else: no effect
                self.history.record(queue, message_id, "hidden", at_ms=now_ms, via=via, visible_ms=change.delay_ms)
            self._waiters.retry_at(queue, now_ms + change.delay_ms)
        return answers

    async def call(self, run: Callable[[], T], *, synced: bool = True) -> T:
        """Make any other engine calls in this turn's transaction, all or none; raises what `run` raises."""

        def whole() -> T:
            (answer,) = self.engine.together([run], synced=synced)
            if isinstance(answer, Exception):
                raise answer
            return answer  # type: ignore[return-value]  # what `run` returned

        answer = await self.group_commit.run(whole, synced=synced)
        self._record_transfers()
        return answer

    # -- receiving ---------------------------------------------------------------------------------------------------

    async def _receive_for(self, queue: str, waiter: WaitingReceiver) -> list[Delivery]:
        """One receive for a receiver that can wait; it also waits at the in-flight limit, as on SQS."""
        try:
            found = await self._receive_once(queue, waiter)
        except errors.OverLimitError:
            self._full.add(queue)
            return []
        self._full.discard(queue)
        return found

    async def _receive_once(self, queue: str, waiter: WaitingReceiver) -> list[Delivery]:
        copies: list[Delivery] = []
        now_ms = self.timers.now_ms()
        if self.faults.active:
            copies = self.faults.copies(queue, waiter.count_max, now_ms)
            for copy in copies:
                self._record_received(queue, copy, waiter.via, now_ms, copy=1)
            if len(copies) == waiter.count_max:
                return copies
        count_max = waiter.count_max - len(copies)
        try:
            found = await self.group_commit.run(
                lambda: self._queue(queue).receive(count_max, waiter.visible_ms),
                synced=False,
                undo=lambda late: self._release(queue, late),
            )
        except errors.OverLimitError:
            if not copies:
                raise
            found = []
        now_ms = self.timers.now_ms()
        for delivery in found:
            self._record_received(queue, delivery, waiter.via, now_ms)
        self._record_transfers()
        if self.faults.active and found:
            try:
                await self._expire_early(queue, found, now_ms)
            except asyncio.CancelledError:
                self._release(queue, found)
                raise
        return copies + found if copies else found

    def _record_received(self, queue: str, delivery: Delivery, via: str, now_ms: int, copy: int | None = None) -> None:
        self.history.record(
            queue, delivery.message_id, "received", at_ms=now_ms, via=via,
            receive_count=delivery.receive_count, visible_ms=delivery.visible_ms, copy=copy,
        )  # fmt: skip

    async def _expire_early(self, queue: str, found: Sequence[Delivery], now_ms: int) -> None:
        """Let faults end visibilities early; copies for further deliveries are kept."""
        changes = []
        for delivery, plan in zip(found, self.faults.received(queue, found), strict=False):
            if plan is None:
                continue
            self.history.record(queue, delivery.message_id, "fault", at_ms=now_ms, why=plan.why)
            if plan.expires_in_ms is not None:
                changes.append((delivery.receipt, RetryIn(plan.expires_in_ms)))
        if changes:
            await self.group_commit.run(lambda: self._queue(queue).set_visible_in(changes), synced=False)
        self.changed(queue)

    def _release(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        """Release messages whose receiver has left, without counting the receive."""

        async def release() -> None:
            with suppress(
                errors.OnefoldError
            ):  # the queue is gone or the file cannot be written: then their visibility ends by itself
                changes = [(delivery.receipt, RetryIn(0, uncounted=True)) for delivery in deliveries]
                await self.set_visible_in(queue, changes, via="left before the answer")

        task = self.timers.loop.create_task(release())
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    def _record_transfers(self) -> None:
        """Record the messages that changed queues since the last call: dead letters, and moved messages."""
        for moved in self.engine.queues.take_transfers():
            now_ms = self.timers.now_ms()
            if moved.new_message_id is None:
                self.history.record(
                    moved.source, moved.message_id, "dead-lettered", at_ms=now_ms,
                    to=moved.target, receive_count=moved.receive_count, receives_max=moved.receive_count,
                )  # fmt: skip
                self._perhaps_redrive(moved, now_ms)
            else:
                self.history.record(
                    moved.source, moved.message_id, "moved", at_ms=now_ms,
                    to=moved.target, new_message_id=moved.new_message_id,
                )  # fmt: skip
                self.history.record(
                    moved.target, moved.new_message_id, "moved", at_ms=now_ms,
                    source=moved.source, old_message_id=moved.message_id,
                )  # fmt: skip
            self.changed(moved.target)

    def _perhaps_redrive(self, dead: Transferred, now_ms: int) -> None:
        plan = self.faults.dead_lettered(dead.target) if self.faults.active else None
        if plan is not None:
            self.history.record(dead.target, dead.message_id, "fault", at_ms=now_ms, why=plan.why)
            self.timers.call_at(now_ms + plan.redrive_in_ms, partial(self._send_back, dead.message_id))

    def _send_back(self, message_id: str) -> None:
        """Redrive one dead letter for a fault. Like a move task, skip one of a stopped group: it would lose its place."""

        def send() -> Peeked | None:
            (message,) = self.engine.queues.find([message_id])
            if message is not None and message.source is not None and message.group is not None:
                (flag,) = self.engine.state.get([group_flag(message.source, message.group)])
                if flag is not None:
                    return message
            self.engine.queues.move([(message_id, None, None)])
            return None

        with suppress(errors.OnefoldError):  # the message was received or is gone, or its source is gone
            if (left := transaction(self.engine, send)) is not None:
                why = "not sent back after all: its group is stopped, and goes back as a whole"
                self.history.record(left.queue, message_id, "fault", at_ms=self.timers.now_ms(), why=why)
        self._record_transfers()

    # -- what changes ------------------------------------------------------------------------------------------------

    def changed(self, queue: str) -> None:
        """Let waiting receivers try again, because something may be receivable sooner.

        The verbs here call it themselves; call it after a change of settings, and after other calls of the engine.
        """
        self._waiters.retry(queue)

    def _changed_elsewhere(self) -> None:
        self._record_transfers()
        self._waiters.retry_all()

    def dropped(self, queue: str) -> None:
        """Raise NotFoundError in waiting and later receivers, because the queue was deleted."""
        self._open.pop(queue, None)
        self._full.discard(queue)
        self.faults.forget(queue)
        gone = errors.NotFoundError(
            f"Queue {queue!r} was deleted while a receive waited.", todo="Create it again, or stop polling it."
        )
        self._waiters.fail_all(queue, gone)

    def waiting(self) -> Mapping[str, int]:
        """How many receivers wait, by queue."""
        return self._waiters.waiting()

    def _queue(self, queue: str) -> Queue:
        found = self._open.get(queue)
        if found is None:
            found = self._open[queue] = self.engine.queues.open(queue)
        return found

    # -- upkeep and other processes ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start upkeep, and listen to other processes that use the same file."""
        self._upkeep.start()

    async def stop(self) -> None:
        """Stop upkeep; waiting receivers get an empty answer. The engine stays open."""
        self._waiters.close()
        while self._releases:
            await asyncio.wait(self._releases)
        self._upkeep.stop()

    def maintain_now(self) -> None:
        """Run the engine's maintenance now, for instance because a move task was started."""
        self._upkeep.maintain_now()
