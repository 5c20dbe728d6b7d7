"""Receivers that wait for a message, in the order they came: one line per queue, no busy loop, no herd.

A line is looked at when something changed in its queue, and at the next instant at which time makes a message visible. Then
the first in line receives, and the next, until a receive comes back empty. So a thousand receivers cost nothing while
nothing happens, and one message wakes one of them.
Never here: how a receive is made (it is handed in). Invariant: a message received for somebody who has left is given back.
Used on the loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from onefold import errors
from onefold.contracts.queue import Delivery
from onefold.local.timers import Timer, Timers

_AFTER_END_MS = 50  # not 0: who asks again and again must not keep the loop busy


class WaitingReceiver:
    """One receiver in a line.

    Args:
        answer: what it gets.
        count_max, visible_ms: what it asked for.
        via: who it is, for the history.
        gone: whether it has left without saying so; None: it says so.
    """

    __slots__ = ("answer", "count_max", "ends", "gone", "via", "visible_ms")

    def __init__(
        self,
        answer: asyncio.Future[list[Delivery]],
        count_max: int,
        visible_ms: int | None,
        via: str,
        gone: Callable[[], bool] | None,
    ) -> None:
        self.answer = answer
        self.count_max = count_max
        self.visible_ms = visible_ms
        self.via = via
        self.gone = gone
        self.ends: tuple[Timer | asyncio.TimerHandle, ...] = ()


class _QueueOfWaiters:
    """The receivers of one queue, and when it is looked at again."""

    __slots__ = ("again", "alarm", "task", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[WaitingReceiver, None] = {}
        self.task: asyncio.Task[None] | None = None
        self.again = False
        self.alarm: Timer | None = None


class Waiters:
    """All lines of one engine.

    Args:
        pace: time.
        receive: makes one receive for a place, without waiting.
        next_ready_ms: the next instant at which time alone makes something receivable in a queue.
        give_back: makes messages visible again that were received for somebody who has left.
    """

    def __init__(
        self,
        timers: Timers,
        receive: Callable[[str, WaitingReceiver], Awaitable[list[Delivery]]],
        next_ready_ms: Callable[[str], int | None],
        give_back: Callable[[str, list[Delivery]], None],
    ) -> None:
        self._timers = timers
        self._receive = receive
        self._next_ready_ms = next_ready_ms
        self._release = give_back
        self._waiters: dict[str, _QueueOfWaiters] = {}
        self._ended = False

    def waiting(self) -> dict[str, int]:
        """How many wait, by queue; queues without a receiver are left out."""
        return {queue: len(line.waiters) for queue, line in self._waiters.items()}

    def has(self, queue: str) -> bool:
        """Whether somebody waits there."""
        return queue in self._waiters

    async def join(self, queue: str, waiter: WaitingReceiver, wait_ms: int) -> list[Delivery]:
        """Stand in line until there is a message, or until the time is over: then an empty answer.

        `wait_ms` is real time. On a manual clock it also ends after as much of that clock, whichever is first: a client that
        waits for its own answer before it moves the clock cannot hang.

        Raises:
            NotFoundError: the queue was dropped meanwhile.
        """
        if self._ended:
            wait_ms = min(wait_ms, _AFTER_END_MS)
        line = self._waiters.setdefault(queue, _QueueOfWaiters())
        line.waiters[waiter] = None
        over = partial(self._over, queue, waiter)
        waiter.ends = (self._timers.loop.call_later(wait_ms / 1000, over),)
        if self._timers.is_manual:
            waiter.ends += (self._timers.call_at(self._timers.now_ms() + wait_ms, over),)
        self.look(queue)
        try:
            return await waiter.answer
        except asyncio.CancelledError:
            answer = waiter.answer
            if answer.done() and not answer.cancelled() and answer.exception() is None and answer.result():
                self._release(queue, answer.result())
            raise
        finally:
            self._leave(queue, waiter)

    def _over(self, queue: str, waiter: WaitingReceiver) -> None:
        self._answer(queue, waiter, [])

    def _answer(self, queue: str, waiter: WaitingReceiver, answer: list[Delivery] | Exception) -> None:
        """Give the answer, and the place up."""
        self._leave(queue, waiter)
        if waiter.answer.done():
            return
        if isinstance(answer, Exception):
            waiter.answer.set_exception(answer)
        else:
            waiter.answer.set_result(answer)

    def _leave(self, queue: str, waiter: WaitingReceiver) -> None:
        line = self._waiters.get(queue)
        if line is None or waiter not in line.waiters:
            return
        del line.waiters[waiter]
        for end in waiter.ends:
            end.cancel()
        if not line.waiters:
            if line.alarm is not None:
                line.alarm.cancel()
            del self._waiters[queue]

    def look(self, queue: str) -> None:
        """Something may be receivable: let those in line receive."""
        line = self._waiters.get(queue)
        if line is None:
            return
        line.again = True
        if line.task is None:
            line.task = self._timers.loop.create_task(self._serve(queue, line))

    def look_by(self, queue: str, at_ms: int) -> None:
        """Something becomes receivable at an instant, perhaps sooner than was known: look then."""
        line = self._waiters.get(queue)
        if line is None:
            return
        if at_ms <= self._timers.now_ms():
            self.look(queue)
        elif line.alarm is None or line.alarm.cancelled or line.alarm.at_ms > at_ms:
            self._set_alarm(queue, line, at_ms)

    def look_everywhere(self) -> None:
        """Somebody else changed something: look at every line."""
        for queue in list(self._waiters):
            self.look(queue)

    def fail(self, queue: str, error: Exception) -> None:
        """Answer everybody in line with an error: the queue is gone."""
        line = self._waiters.get(queue)
        for waiter in list(line.waiters) if line is not None else ():
            self._answer(queue, waiter, error)

    def end(self) -> None:
        """Answer everybody with nothing: the server stops. Who comes later waits a moment only."""
        self._ended = True
        for queue, line in list(self._waiters.items()):
            for waiter in list(line.waiters):
                self._answer(queue, waiter, [])

    async def _serve(self, queue: str, line: _QueueOfWaiters) -> None:
        try:
            while line.again:
                line.again = False
                await self._serve_once(queue, line)
        except Exception as error:  # noqa: BLE001 - the queue or the file is gone: it is the answer of all who wait
            self.fail(queue, error)
        finally:
            line.task = None

    async def _serve_once(self, queue: str, line: _QueueOfWaiters) -> None:
        while line.waiters:
            waiter = next(iter(line.waiters))
            if waiter.answer.done() or (waiter.gone is not None and waiter.gone()):
                self._answer(queue, waiter, [])
                continue
            try:
                deliveries = await self._receive(queue, waiter)
            except errors.UsageError as error:
                if isinstance(error, (errors.NotFoundError, errors.StorageError)):
                    raise
                self._answer(queue, waiter, error)  # it asked for what cannot be; the others did not
                continue
            if not deliveries:
                self._arm(queue, line)
                return
            if waiter.answer.done():  # left while the receive was under way
                self._release(queue, deliveries)
            self._answer(queue, waiter, deliveries)

    def _arm(self, queue: str, line: _QueueOfWaiters) -> None:
        """Look again when time brings something; only while somebody waits."""
        at_ms = self._next_ready_ms(queue) if line.waiters else None
        if line.alarm is None or line.alarm.cancelled or line.alarm.at_ms != at_ms:
            self._set_alarm(queue, line, at_ms)

    def _set_alarm(self, queue: str, line: _QueueOfWaiters, at_ms: int | None) -> None:
        if line.alarm is not None:
            line.alarm.cancel()
            line.alarm = None
        if at_ms is not None:
            line.alarm = self._timers.call_at(at_ms, partial(self.look, queue))
