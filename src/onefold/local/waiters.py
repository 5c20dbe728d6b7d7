"""Receivers that wait for a message, in the order of arrival, without a busy loop or a thundering herd.

When something has changed in a queue, and at the next instant at which a message becomes visible, the first receiver of
that queue tries a receive, then the next, until a receive returns nothing. So a thousand receivers cost nothing while
nothing happens, and one message wakes one of them.
Never here: how a receive is made (a function that is passed in). Invariant: a message received for a receiver that has
disconnected is released. Used on the loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from onefold import errors
from onefold.contracts.queue import Delivery
from onefold.local.timers import Timer, Timers

_AFTER_END_MS = 50  # not 0: a client that polls again and again must not keep the loop busy


class WaitingReceiver:
    """One receiver that waits.

    Args:
        answer: the future for its messages.
        count_max, visible_ms: what it requested.
        via: the receiver, for the history.
        gone: whether it has hung up; None if it cancels its wait instead.
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


class _QueueWaiters:
    """The receivers of one queue, and when the first of them tries again."""

    __slots__ = ("again", "alarm", "task", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[WaitingReceiver, None] = {}
        self.task: asyncio.Task[None] | None = None
        self.again = False
        self.alarm: Timer | None = None


class Waiters:
    """The waiting receivers of all queues of one engine.

    Args:
        timers: they tell the time, and call back later.
        receive: makes one receive for a receiver, without waiting.
        next_ready_ms: the next instant at which something in a queue becomes receivable by itself.
        release: makes messages visible again that were received for a receiver that has left.
    """

    def __init__(
        self,
        timers: Timers,
        receive: Callable[[str, WaitingReceiver], Awaitable[list[Delivery]]],
        next_ready_ms: Callable[[str], int | None],
        release: Callable[[str, list[Delivery]], None],
    ) -> None:
        self._timers = timers
        self._receive = receive
        self._next_ready_ms = next_ready_ms
        self._release = release
        self._waiters: dict[str, _QueueWaiters] = {}
        self._ended = False

    def waiting(self) -> dict[str, int]:
        """How many receivers wait, by queue; queues without a receiver are left out."""
        return {queue: len(waiting_here.waiters) for queue, waiting_here in self._waiters.items()}

    def has(self, queue: str) -> bool:
        """Whether a receiver waits for this queue."""
        return queue in self._waiters

    async def wait(self, queue: str, waiter: WaitingReceiver, wait_ms: int) -> list[Delivery]:
        """Wait until there is a message, or return an empty answer when the time is up.

        `wait_ms` is real time. With a manual clock, the wait also ends after that much of its time, whichever comes
        first: so a client that waits for its own answer before it moves the clock cannot hang.

        Raises:
            NotFoundError: the queue was deleted meanwhile.
        """
        if self._ended:
            wait_ms = min(wait_ms, _AFTER_END_MS)
        waiting_here = self._waiters.setdefault(queue, _QueueWaiters())
        waiting_here.waiters[waiter] = None
        over = partial(self._answer, queue, waiter, [])
        waiter.ends = (self._timers.loop.call_later(wait_ms / 1000, over),)
        if self._timers.is_manual:
            waiter.ends += (self._timers.call_at(self._timers.now_ms() + wait_ms, over),)
        self.retry(queue)
        try:
            return await waiter.answer
        except asyncio.CancelledError:
            answer = waiter.answer
            if answer.done() and not answer.cancelled() and answer.exception() is None and answer.result():
                self._release(queue, answer.result())
            raise
        finally:
            self._leave(queue, waiter)

    def _answer(self, queue: str, waiter: WaitingReceiver, answer: list[Delivery] | Exception) -> None:
        """Answer a receiver, which then no longer waits."""
        self._leave(queue, waiter)
        if waiter.answer.done():
            return
        if isinstance(answer, Exception):
            waiter.answer.set_exception(answer)
        else:
            waiter.answer.set_result(answer)

    def _leave(self, queue: str, waiter: WaitingReceiver) -> None:
        waiting_here = self._waiters.get(queue)
        if waiting_here is None or waiter not in waiting_here.waiters:
            return
        del waiting_here.waiters[waiter]
        for end in waiter.ends:
            end.cancel()
        if not waiting_here.waiters:
            if waiting_here.alarm is not None:
                waiting_here.alarm.cancel()
            del self._waiters[queue]

    def retry(self, queue: str) -> None:
        """Let the receivers of this queue try again, because something may be receivable."""
        waiting_here = self._waiters.get(queue)
        if waiting_here is None:
            return
        waiting_here.again = True
        if waiting_here.task is None:
            waiting_here.task = self._timers.loop.create_task(self._serve(queue, waiting_here))

    def retry_at(self, queue: str, at_ms: int) -> None:
        """Try again at an instant at which something becomes receivable, perhaps sooner than was known."""
        waiting_here = self._waiters.get(queue)
        if waiting_here is None:
            return
        if at_ms <= self._timers.now_ms():
            self.retry(queue)
        elif waiting_here.alarm is None or waiting_here.alarm.cancelled or waiting_here.alarm.at_ms > at_ms:
            self._set_alarm(queue, waiting_here, at_ms)

    def retry_all(self) -> None:
        """Let the receivers of every queue try again, because another process changed something."""
        for queue in list(self._waiters):
            self.retry(queue)

    def fail_all(self, queue: str, error: Exception) -> None:
        """Raise an error in every receiver of a queue that was deleted."""
        waiting_here = self._waiters.get(queue)
        for waiter in list(waiting_here.waiters) if waiting_here is not None else ():
            self._answer(queue, waiter, error)

    def close(self) -> None:
        """Give all receivers an empty answer, because the server stops. Later ones wait only a moment."""
        self._ended = True
        for queue, waiting_here in list(self._waiters.items()):
            for waiter in list(waiting_here.waiters):
                self._answer(queue, waiter, [])

    async def _serve(self, queue: str, waiting_here: _QueueWaiters) -> None:
        try:
            while waiting_here.again:
                waiting_here.again = False
                await self._serve_once(queue, waiting_here)
        except Exception as error:  # noqa: BLE001 - the queue or the file is gone: every receiver gets this error
            self.fail_all(queue, error)
        finally:
            waiting_here.task = None

    async def _serve_once(self, queue: str, waiting_here: _QueueWaiters) -> None:
        while waiting_here.waiters:
            waiter = next(iter(waiting_here.waiters))
            if waiter.answer.done() or (waiter.gone is not None and waiter.gone()):
                self._answer(queue, waiter, [])
                continue
            try:
                deliveries = await self._receive(queue, waiter)
            except errors.UsageError as error:
                if isinstance(error, (errors.NotFoundError, errors.StorageError)):
                    raise
                self._answer(queue, waiter, error)  # its own request is invalid; the others are not affected
                continue
            if not deliveries:
                self._arm(queue, waiting_here)
                return
            if waiter.answer.done():  # it left while the receive was running
                self._release(queue, deliveries)
            self._answer(queue, waiter, deliveries)

    def _arm(self, queue: str, waiting_here: _QueueWaiters) -> None:
        """Set a timer for when something becomes visible; only while somebody waits."""
        at_ms = self._next_ready_ms(queue) if waiting_here.waiters else None
        if waiting_here.alarm is None or waiting_here.alarm.cancelled or waiting_here.alarm.at_ms != at_ms:
            self._set_alarm(queue, waiting_here, at_ms)

    def _set_alarm(self, queue: str, waiting_here: _QueueWaiters, at_ms: int | None) -> None:
        if waiting_here.alarm is not None:
            waiting_here.alarm.cancel()
            waiting_here.alarm = None
        if at_ms is not None:
            waiting_here.alarm = self._timers.call_at(at_ms, partial(self.retry, queue))
