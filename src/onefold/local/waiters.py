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
from onefold.local.timers import Pace, Timer

_AFTER_END_MS = 50  # not 0: who asks again and again must not keep the loop busy


class Place:
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


class _Line:
    """The receivers of one queue, and when it is looked at again."""

    __slots__ = ("again", "alarm", "places", "task")

    def __init__(self) -> None:
        self.places: dict[Place, None] = {}
        self.task: asyncio.Task[None] | None = None
        self.again = False
        self.alarm: Timer | None = None


class Lines:
    """All lines of one engine.

    Args:
        pace: time.
        receive: makes one receive for a place, without waiting.
        next_ready_ms: the next instant at which time alone makes something receivable in a queue.
        give_back: makes messages visible again that were received for somebody who has left.
    """

    def __init__(
        self,
        pace: Pace,
        receive: Callable[[str, Place], Awaitable[list[Delivery]]],
        next_ready_ms: Callable[[str], int | None],
        give_back: Callable[[str, list[Delivery]], None],
    ) -> None:
        self._pace = pace
        self._receive = receive
        self._next_ready_ms = next_ready_ms
        self._give_back = give_back
        self._lines: dict[str, _Line] = {}
        self._ended = False

    def waiting(self) -> dict[str, int]:
        """How many wait, by queue; queues without a receiver are left out."""
        return {queue: len(line.places) for queue, line in self._lines.items()}

    def has(self, queue: str) -> bool:
        """Whether somebody waits there."""
        return queue in self._lines

    async def join(self, queue: str, place: Place, wait_ms: int) -> list[Delivery]:
        """Stand in line until there is a message, or until the time is over: then an empty answer.

        `wait_ms` is real time. On a manual clock it also ends after as much of that clock, whichever is first: a client that
        waits for its own answer before it moves the clock cannot hang.

        Raises:
            NotFoundError: the queue was dropped meanwhile.
        """
        if self._ended:
            wait_ms = min(wait_ms, _AFTER_END_MS)
        line = self._lines.setdefault(queue, _Line())
        line.places[place] = None
        over = partial(self._over, queue, place)
        place.ends = (self._pace.loop.call_later(wait_ms / 1000, over),)
        if self._pace.is_manual:
            place.ends += (self._pace.call_at(self._pace.now_ms() + wait_ms, over),)
        self.look(queue)
        try:
            return await place.answer
        except asyncio.CancelledError:
            answer = place.answer
            if answer.done() and not answer.cancelled() and answer.exception() is None and answer.result():
                self._give_back(queue, answer.result())
            raise
        finally:
            self._leave(queue, place)

    def _over(self, queue: str, place: Place) -> None:
        self._answer(queue, place, [])

    def _answer(self, queue: str, place: Place, answer: list[Delivery] | Exception) -> None:
        """Give the answer, and the place up."""
        self._leave(queue, place)
        if place.answer.done():
            return
        if isinstance(answer, Exception):
            place.answer.set_exception(answer)
        else:
            place.answer.set_result(answer)

    def _leave(self, queue: str, place: Place) -> None:
        line = self._lines.get(queue)
        if line is None or place not in line.places:
            return
        del line.places[place]
        for end in place.ends:
            end.cancel()
        if not line.places:
            if line.alarm is not None:
                line.alarm.cancel()
            del self._lines[queue]

    def look(self, queue: str) -> None:
        """Something may be receivable: let those in line receive."""
        line = self._lines.get(queue)
        if line is None:
            return
        line.again = True
        if line.task is None:
            line.task = self._pace.loop.create_task(self._serve(queue, line))

    def look_by(self, queue: str, at_ms: int) -> None:
        """Something becomes receivable at an instant, perhaps sooner than was known: look then."""
        line = self._lines.get(queue)
        if line is None:
            return
        if at_ms <= self._pace.now_ms():
            self.look(queue)
        elif line.alarm is None or line.alarm.cancelled or line.alarm.at_ms > at_ms:
            self._set_alarm(queue, line, at_ms)

    def look_everywhere(self) -> None:
        """Somebody else changed something: look at every line."""
        for queue in list(self._lines):
            self.look(queue)

    def fail(self, queue: str, error: Exception) -> None:
        """Answer everybody in line with an error: the queue is gone."""
        line = self._lines.get(queue)
        for place in list(line.places) if line is not None else ():
            self._answer(queue, place, error)

    def end(self) -> None:
        """Answer everybody with nothing: the server stops. Who comes later waits a moment only."""
        self._ended = True
        for queue, line in list(self._lines.items()):
            for place in list(line.places):
                self._answer(queue, place, [])

    async def _serve(self, queue: str, line: _Line) -> None:
        try:
            while line.again:
                line.again = False
                await self._serve_once(queue, line)
        except Exception as error:  # noqa: BLE001 - the queue or the file is gone: it is the answer of all who wait
            self.fail(queue, error)
        finally:
            line.task = None

    async def _serve_once(self, queue: str, line: _Line) -> None:
        while line.places:
            place = next(iter(line.places))
            if place.answer.done() or (place.gone is not None and place.gone()):
                self._answer(queue, place, [])
                continue
            try:
                deliveries = await self._receive(queue, place)
            except errors.UsageError as error:
                if isinstance(error, (errors.NotFoundError, errors.StorageError)):
                    raise
                self._answer(queue, place, error)  # it asked for what cannot be; the others did not
                continue
            if not deliveries:
                self._arm(queue, line)
                return
            if place.answer.done():  # left while the receive was under way
                self._give_back(queue, deliveries)
            self._answer(queue, place, deliveries)

    def _arm(self, queue: str, line: _Line) -> None:
        """Look again when time brings something; only while somebody waits."""
        at_ms = self._next_ready_ms(queue) if line.places else None
        if line.alarm is None or line.alarm.cancelled or line.alarm.at_ms != at_ms:
            self._set_alarm(queue, line, at_ms)

    def _set_alarm(self, queue: str, line: _Line, at_ms: int | None) -> None:
        if line.alarm is not None:
            line.alarm.cancel()
            line.alarm = None
        if at_ms is not None:
            line.alarm = self._pace.call_at(at_ms, partial(self.look, queue))
