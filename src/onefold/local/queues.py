"""The queues of one engine as one event loop sees them: what the wire and the mappings use.

Verbs of the Queue contract, awaited: engine calls go through `Turns`, long polls stand in `Lines`, what happens is told to
the `History`, and the `FaultBox` may change it. No fault set costs one look at a flag.
Never here: HTTP, AWS's shapes, functions. Invariant: what a verb answers has happened (or a fault that says so was
injected), and a message received for a caller who has left is given back uncounted.
Used on the loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from onefold import errors
from onefold.contracts.admin import Transferred
from onefold.contracts.engine import Engine
from onefold.contracts.entries import Entry, Refused, Sent
from onefold.contracts.queue import Delivery, RetryIn
from onefold.decide.faults import OnSend
from onefold.local.faults import FaultBox
from onefold.local.history import History
from onefold.local.lines import Lines, Place
from onefold.local.pace import Pace
from onefold.local.turns import Turns
from onefold.local.upkeep import Upkeep

if TYPE_CHECKING:
    from onefold.contracts.verbs import Queue

T = TypeVar("T")

_FIFO = ".fifo"  # how the names of FIFO queues end, and no other


class LocalQueues:
    """The queues of one engine for one loop.

    Args:
        engine: used by nobody else in this process.
        pace: time, on the loop that everything here runs on.
        history: told what happens.
        faults: asked around every verb.
    """

    def __init__(self, engine: Engine, pace: Pace, history: History, faults: FaultBox) -> None:
        self.engine = engine
        self.pace = pace
        self.history = history
        self.faults = faults
        self.turns = Turns(engine, pace.loop)
        self._open: dict[str, Queue] = {}
        self._full: set[str] = set()  # standard queues whose receivers wait for room under the in-flight cap
        self._lines = Lines(pace, self._receive_for, engine.queues.next_ready_ms, self._give_back)
        self._upkeep = Upkeep(engine, pace, self._look_everywhere)
        self._given_back: set[asyncio.Task[None]] = set()

    # -- verbs -------------------------------------------------------------------------------------------------------

    async def send(self, queue: str, entries: Sequence[Entry], *, via: str = "") -> list[Sent | Refused]:
        """Accept messages; as `Queue.send`.

        Args:
            via: who asks, for the history.

        Raises:
            NotFoundError: no such queue. StorageBusy: nothing was accepted.
        """
        plans: list[OnSend | None] = []
        if self.faults.active:
            entries, plans = self.faults.sending(queue, entries, self._delay_ms(queue))
        answers = await self.turns.run(lambda: self._queue(queue).send(entries))
        if self._tell_sent(queue, entries, answers, plans, via):
            self.changed(queue)
            self._upkeep.notify()
        return answers

    def _tell_sent(
        self,
        queue: str,
        entries: Sequence[Entry],
        answers: Sequence[Sent | Refused],
        plans: Sequence[OnSend | None],
        via: str,
    ) -> bool:
        """Tell what became of entries; whether one was accepted."""
        now_ms, told = self.pace.now_ms(), self.history.told
        plain = [
            answer.message_id
            for entry, answer in zip(entries, answers, strict=True)
            if not isinstance(answer, Refused)
            and not answer.duplicate
            and entry.delay_ms is None
            and entry.group is None
        ]
        if plain and len(plain) == len(entries) and not plans:
            self.history.told_each(queue, plain, "sent", at_ms=now_ms, via=via)
            return True
        accepted = False
        for place, (entry, answer) in enumerate(zip(entries, answers, strict=True)):
            if isinstance(answer, Refused):
                continue
            if answer.duplicate:
                told(queue, answer.message_id, "deduplicated", at_ms=now_ms, via=via)
                continue
            accepted = True
            if entry.delay_ms is None and entry.group is None:
                told(queue, answer.message_id, "sent", at_ms=now_ms, via=via)
            else:
                told(
                    queue, answer.message_id, "sent", at_ms=now_ms, via=via, delay_ms=entry.delay_ms, group=entry.group
                )
            if plans and (plan := plans[place]) is not None:
                told(queue, answer.message_id, "fault", at_ms=now_ms, why=plan.why)
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
        """Receive up to `count_max` messages, waiting up to `wait_ms` for a first one.

        Receivers that wait are served in the order they came. Cancelling loses nothing: what was received is given back.

        Args:
            visible_ms: how long the messages are hidden; None: the queue's setting.
            wait_ms: 0 asks once.
            via: who asks, for the history.
            gone: whether the caller has left; asked before a message is received for it, and before it is handed over.

        Raises:
            NotFoundError: no such queue, also when it is dropped while the caller waits.
            OverLimitError: standard queue at its in-flight cap, with `wait_ms` 0; with a wait it waits.
            UsageError: `count_max` or `visible_ms` out of range.
        """
        answer: asyncio.Future[list[Delivery]] = self.pace.loop.create_future()
        place = Place(answer, count_max, visible_ms, via, gone)
        found: list[Delivery] = []
        if not wait_ms:
            found = await self._receive_once(queue, place)
        elif not self._lines.has(queue):
            found = await self._receive_for(queue, place)
        if wait_ms and not found:
            found = await self._lines.join(queue, place, wait_ms)
        if found and gone is not None and gone():  # it left while the answer was on its way
            self._give_back(queue, found)
            return []
        return found

    async def delete(self, queue: str, receipts: Sequence[str], *, via: str = "") -> list[bool]:
        """Delete each receipt's message; as `Queue.delete`.

        Raises:
            NotFoundError: no such queue. UsageError: a malformed receipt; nothing was deleted.
        """
        ids = self.engine.queues.message_ids(receipts)
        plans = self.faults.deleting(queue, receipts) if self.faults.active else []

        def call() -> list[bool]:
            opened = self._queue(queue)
            if not any(plans):
                return opened.delete(receipts)
            answers = [True] * len(receipts)
            places = [place for place, plan in enumerate(plans) if plan is None]
            for place, done in zip(places, opened.delete([receipts[place] for place in places]), strict=True):
                answers[place] = done
            again = [
                (receipts[place], RetryIn(0))
                for place, plan in enumerate(plans)
                if plan is not None and plan.how == "repeat"
            ]
            opened.set_visible_in(again)
            return answers

        answers = await self.turns.run(call)
        now_ms = self.pace.now_ms()
        for place, (message_id, done) in enumerate(zip(ids, answers, strict=True)):
            plan = plans[place] if plans else None
            if plan is not None:
                self.history.told(queue, message_id, "fault", at_ms=now_ms, why=plan.why)
            elif done:
                self.history.told(queue, message_id, "deleted", at_ms=now_ms, via=via)
            else:
                standing = self._queue(queue).standing([receipts[place]])[0]
                self.history.told(queue, message_id, "delete-refused", at_ms=now_ms, via=via, standing=standing)
        if queue.endswith(_FIFO) or queue in self._full or any(plans):
            self.changed(queue)  # the next of a group, room under the cap, or a message that a fault gave back
        return answers

    async def set_visible_in(self, queue: str, changes: Sequence[tuple[str, RetryIn]], *, via: str = "") -> list[bool]:
        """Hide each receipt's message for a new time from now; as `Queue.set_visible_in`.

        Raises:
            NotFoundError: no such queue. UsageError: a malformed receipt or a time out of range; nothing was changed.
        """
        ids = self.engine.queues.message_ids([receipt for receipt, _ in changes])
        answers = await self.turns.run(lambda: self._queue(queue).set_visible_in(changes), synced=False)
        now_ms = self.pace.now_ms()
        for message_id, (receipt, change), done in zip(ids, changes, answers, strict=True):
            if not done:
                continue
            if not change.delay_ms:
                self.history.told(queue, message_id, "released", at_ms=now_ms, via=via)
            elif queue.endswith(_FIFO) or self._queue(queue).standing([receipt]) != ["visible"]:  # else: no effect
                self.history.told(queue, message_id, "hidden", at_ms=now_ms, via=via, visible_ms=change.delay_ms)
            self._lines.look_by(queue, now_ms + change.delay_ms)
        return answers

    async def call(self, run: Callable[[], T], *, synced: bool = True) -> T:
        """Make any other engine calls, as a whole or not at all, in this turn's transaction; raises what `run` raises."""

        def whole() -> T:
            (answer,) = self.engine.together([run], synced=synced)
            if isinstance(answer, Exception):
                raise answer
            return answer  # type: ignore[return-value]  # what `run` returned

        answer = await self.turns.run(whole, synced=synced)
        self._tell_transfers()
        return answer

    # -- receiving ---------------------------------------------------------------------------------------------------

    async def _receive_for(self, queue: str, place: Place) -> list[Delivery]:
        """A receive for somebody who may wait: the in-flight cap is a reason to wait, as on SQS."""
        try:
            found = await self._receive_once(queue, place)
        except errors.OverLimitError:
            self._full.add(queue)
            return []
        self._full.discard(queue)
        return found

    async def _receive_once(self, queue: str, place: Place) -> list[Delivery]:
        copies: list[Delivery] = []
        now_ms = self.pace.now_ms()
        if self.faults.active:
            copies = self.faults.copies(queue, place.count_max, now_ms)
            for copy in copies:
                self._tell_received(queue, copy, place.via, now_ms, copy=1)
            if len(copies) == place.count_max:
                return copies
        count_max = place.count_max - len(copies)
        try:
            found = await self.turns.run(
                lambda: self._queue(queue).receive(count_max, place.visible_ms),
                synced=False,
                undo=lambda late: self._give_back(queue, late),
            )
        except errors.OverLimitError:
            if not copies:
                raise
            found = []
        now_ms = self.pace.now_ms()
        for delivery in found:
            self._tell_received(queue, delivery, place.via, now_ms)
        self._tell_transfers()
        if self.faults.active and found:
            try:
                await self._expire_early(queue, found, now_ms)
            except asyncio.CancelledError:
                self._give_back(queue, found)
                raise
        return copies + found if copies else found

    def _tell_received(self, queue: str, delivery: Delivery, via: str, now_ms: int, copy: int | None = None) -> None:
        self.history.told(
            queue, delivery.message_id, "received", at_ms=now_ms, via=via,
            receive_count=delivery.receive_count, visible_ms=delivery.visible_ms, copy=copy,
        )  # fmt: skip

    async def _expire_early(self, queue: str, found: Sequence[Delivery], now_ms: int) -> None:
        """Let a fault end visibilities before their time, and keep copies to be given once more."""
        changes = []
        for delivery, plan in zip(found, self.faults.received(queue, found), strict=False):
            if plan is None:
                continue
            self.history.told(queue, delivery.message_id, "fault", at_ms=now_ms, why=plan.why)
            if plan.expires_in_ms is not None:
                changes.append((delivery.receipt, RetryIn(plan.expires_in_ms)))
        if changes:
            await self.turns.run(lambda: self._queue(queue).set_visible_in(changes), synced=False)
        self.changed(queue)

    def _give_back(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        """Nobody is there any more for whom these were received: as if they had not been."""

        async def release() -> None:
            with suppress(
                errors.OnefoldError
            ):  # the queue is gone or the file cannot be written: they come back in time
                changes = [(delivery.receipt, RetryIn(0, uncounted=True)) for delivery in deliveries]
                await self.set_visible_in(queue, changes, via="left before the answer")

        task = self.pace.loop.create_task(release())
        self._given_back.add(task)
        task.add_done_callback(self._given_back.discard)

    def _tell_transfers(self) -> None:
        """What went from queue to queue since last asked: dead letters of receives, and what was moved."""
        for moved in self.engine.queues.take_transfers():
            now_ms = self.pace.now_ms()
            if moved.new_message_id is None:
                self.history.told(
                    moved.source, moved.message_id, "dead-lettered", at_ms=now_ms,
                    to=moved.target, receive_count=moved.receive_count, receives_max=moved.receive_count,
                )  # fmt: skip
                self._perhaps_redrive(moved, now_ms)
            else:
                self.history.told(
                    moved.source, moved.message_id, "moved", at_ms=now_ms,
                    to=moved.target, new_message_id=moved.new_message_id,
                )  # fmt: skip
                self.history.told(
                    moved.target, moved.new_message_id, "moved", at_ms=now_ms,
                    source=moved.source, old_message_id=moved.message_id,
                )  # fmt: skip
            self.changed(moved.target)

    def _perhaps_redrive(self, dead: Transferred, now_ms: int) -> None:
        plan = self.faults.dead_lettered(dead.target) if self.faults.active else None
        if plan is not None:
            self.history.told(dead.target, dead.message_id, "fault", at_ms=now_ms, why=plan.why)
            self.pace.call_at(now_ms + plan.redrive_in_ms, partial(self._send_back, dead.message_id))

    def _send_back(self, message_id: str) -> None:
        """A fault redrives one dead letter."""
        with suppress(errors.OnefoldError):  # received or gone meanwhile, or its source is
            self.engine.queues.move([(message_id, None, None)])
        self._tell_transfers()

    # -- what changes ------------------------------------------------------------------------------------------------

    def changed(self, queue: str) -> None:
        """Something may be receivable sooner: let those who wait look.

        The verbs here do so themselves; call it after a change of settings, and after other verbs of the engine.
        """
        self._lines.look(queue)

    def _look_everywhere(self) -> None:
        self._tell_transfers()
        self._lines.look_everywhere()

    def dropped(self, queue: str) -> None:
        """The queue is gone: those who wait are told, and so is everybody after them."""
        self._open.pop(queue, None)
        self._full.discard(queue)
        self.faults.forget(queue)
        gone = errors.NotFoundError(
            f"Queue {queue!r} was deleted while a receive waited.", todo="Create it again, or stop polling it."
        )
        self._lines.fail(queue, gone)

    def waiting(self) -> Mapping[str, int]:
        """How many receivers wait, by queue."""
        return self._lines.waiting()

    def _queue(self, queue: str) -> Queue:
        found = self._open.get(queue)
        if found is None:
            found = self._open[queue] = self.engine.queues.open(queue)
        return found

    def _delay_ms(self, queue: str) -> int:
        return self.engine.queues.setting(queue).delay_ms

    # -- upkeep and other processes ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin upkeep, and listen to other processes that use the same file."""
        self._upkeep.start()

    async def stop(self) -> None:
        """End upkeep; everybody who waits is answered with nothing. The engine stays open."""
        self._lines.end()
        while self._given_back:
            await asyncio.wait(self._given_back)
        self._upkeep.stop()

    def hurry(self) -> None:
        """A move task was started: carry it forward now."""
        self._upkeep.hurry()
