"""Receives from a queue whose server makes a receive wait, without making the control loop wait (SQS's long polling).

A `LongPoll` is between a worker and such a queue. `receive` returns at once with the messages that have arrived, and
requests more in its own threads: while handlers run and settle, the next receive is in progress. It never requests more than
the worker has room for, so an idle worker costs one call per `WAIT_MS`, and a busy one never has more than its buffer
waiting. While no messages come there is one poll at a time; polls are short while messages come. When the worker is
about to end, nothing more is requested, and a poll that brings nothing is not waited for; messages that arrive later
are returned to their queue. A message that was not taken within part of its visibility timeout is extended before it is
passed on.

Never here: processing messages. Invariant: every message that arrived is passed on once, or returned to its queue.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from onefold import errors, limits
from onefold.contracts.queue import Delivery, MoveTo, RetryIn

if TYPE_CHECKING:
    from onefold.contracts.verbs import WaitingQueue
    from onefold.outside import Clock

WAIT_MS: Final = 10_000  # length of one long poll while the queue is idle; SQS: at most 20 s
WAIT_FIRST_MS: Final = 1_000  # length of the first poll that finds nothing; then twice as long each time
CALLS_MAX: Final = 4  # receives in progress at one time, 10 messages each
_FRESH_PART: Final = 6  # messages older than a sixth of their visibility are extended before they are passed on


class LongPoll:
    """A receiver that returns the messages that have arrived. The other methods are the queue's own.

    Args:
        queue: the queue whose receives wait.
        clock: for the age of the messages.
        wake: called, from a thread, when something has arrived.

    Attributes:
        is_failing: the last receive failed. `receive` raises its error once; until a receive succeeds, an empty answer
            does not mean that the queue is empty.
    """

    def __init__(self, queue: WaitingQueue, *, clock: Clock, wake: Callable[[], None]) -> None:
        self.name = queue.name
        self.capabilities = queue.capabilities
        self._queue = queue
        self._clock = clock
        self._wake = wake
        self._changed = threading.Condition()
        self._arrived: deque[tuple[int, Delivery]] = deque()
        self._wanted = 0
        self._under_way = 0
        self._wait_ms = WAIT_FIRST_MS
        self._visible_ms: int | None = None
        self._is_fifo = queue.name.endswith(".fifo")
        self._failure: Exception | None = None
        self.is_failing = False
        self._ended = False
        self._threads: list[threading.Thread] = []

    # -- the worker's side -------------------------------------------------------------------------------------------

    def receive(self, count_max: int, visible_ms: int | None = None) -> list[Delivery]:
        """The messages that have arrived, at most `count_max`; more are requested in the background. Never waits.

        Messages of a FIFO queue are returned all at once, even if they are more than `count_max`: if part of a group were
        left here while the rest of it is returned to the queue, that part would be passed on first, out of order.

        Raises:
            TransientError: the last receive failed; the next call tries again.
            Exception: a defect that ended a receive thread; the worker must not continue without it.
        """
        with self._changed:
            failure, self._failure = self._failure, None
            if failure is not None:
                self._wanted = 0
                raise failure
            count = len(self._arrived) if self._is_fifo else min(count_max, len(self._arrived))
            taken = [self._arrived.popleft() for _ in range(count)]
            self._visible_ms = visible_ms
            self._wanted = 0 if self._ended else max(count_max - len(taken), 0)
            self._staff()
            self._changed.notify_all()
        return self._still_ours(taken)

    def _staff(self) -> None:
        calls = min(-(-self._wanted // limits.BATCH_ENTRIES_MAX), CALLS_MAX)
        while len(self._threads) < calls:
            thread = threading.Thread(target=self._ask, name=f"onefold-receive-{self.name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _still_ours(self, taken: Sequence[tuple[int, Delivery]]) -> list[Delivery]:
        """The deliveries to return: those that have waited long are extended first, or dropped.

        Messages behind a dropped one in its FIFO group are returned to the queue. Raises as `receive` does, and then
        keeps all of them.
        """
        now_ms = self._clock.monotonic_ms()
        old = [one for at_ms, one in taken if (now_ms - at_ms) * _FRESH_PART >= one.visible_ms]
        if not old:
            return [one for _, one in taken]
        try:
            kept = self._queue.set_visible_in([(one.receipt, RetryIn(one.visible_ms)) for one in old])
        except errors.TransientError:
            with self._changed:
                self._arrived.extendleft(reversed(taken))
            raise
        gone = {one.receipt for one, ok in zip(old, kept, strict=True) if not ok}
        if not self._is_fifo:
            return [one for _, one in taken if one.receipt not in gone]
        ours, behind = list[Delivery](), list[Delivery]()
        stopped: set[str | None] = set()
        for _, one in taken:
            if one.receipt in gone:
                stopped.add(one.group)
            else:
                (behind if one.group in stopped else ours).append(one)
        self._give_back(behind)
        return ours

    def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Return deliveries to the queue, last first, so that a group keeps its order."""
        if deliveries:
            with suppress(errors.TransientError):  # then they become visible when their visibility timeout ends
                self._queue.set_visible_in([(one.receipt, RetryIn(0)) for one in reversed(deliveries)])

    # -- the threads' side -------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        while (count := self._next()) > 0:
            arrived = list[Delivery]()
            failure: Exception | None = None
            try:
                arrived = self._queue.receive_within(count, self._visible_ms, self._wait_ms)
            except errors.UsageError as error:  # the queue or a permission is gone: the error is raised every time
                failure = errors.TransientError(error.what, meaning=error.meaning, todo=error.todo)
            except Exception as error:  # noqa: BLE001 - `receive` raises it: a thread must not end without a report
                failure = error
            with self._changed:
                self._under_way -= count
                self.is_failing = failure is not None
                ended = self._ended
                self._wait_ms = WAIT_FIRST_MS if arrived else min(2 * self._wait_ms, WAIT_MS)
                self._wanted = max(self._wanted - len(arrived), 0)
                if self._failure is None or isinstance(self._failure, errors.TransientError):  # a defect is kept
                    self._failure = failure or self._failure
                now_ms = self._clock.monotonic_ms()
                if not ended:
                    self._arrived.extend((now_ms, one) for one in arrived)
                if failure is not None or ended:
                    self._wanted = 0
                self._changed.notify_all()
            if ended:
                self._give_back(arrived)
            elif arrived or failure is not None:
                self._wake()

    def _next(self) -> int:
        """Wait until there is room for messages, and return how many to request; 0: the thread ends."""
        with self._changed:
            while not self._ended:
                room = self._wanted - self._under_way
                idle = self._wait_ms > WAIT_FIRST_MS  # the last poll found nothing: poll one at a time
                if room > 0 and not (idle and self._under_way):
                    count = min(room, limits.BATCH_ENTRIES_MAX)
                    self._under_way += count
                    return count
                self._changed.wait()
            return 0

    # -- the end -----------------------------------------------------------------------------------------------------

    def stop(self, *, give_back: bool = True) -> None:
        """Request nothing more; messages that arrive from now on are returned by their thread.

        Args:
            give_back: also return what has arrived already, instead of leaving it until its lease ends.
        """
        with self._changed:
            self._ended = True
            self._wanted = 0
            left = [one for _, one in self._arrived]
            self._arrived.clear()
            self._changed.notify_all()
        if give_back:
            self._give_back(left)

    def end(self, until_ms: int) -> None:
        """Wait, but not beyond `until_ms`, until the receives in progress have ended and returned their messages.

        If a receive takes longer, its messages are returned if the process still exists then; otherwise they become
        visible after their lease.

        Args:
            until_ms: monotonic instant at which the wait ends.
        """
        for thread in self._threads:
            thread.join(max(until_ms - self._clock.monotonic_ms(), 0) / 1000)

    # -- the queue's own verbs ---------------------------------------------------------------------------------------

    def set_visible_in(self, changes: Sequence[tuple[str, RetryIn]]) -> list[bool]:
        """Pass the call on to the queue."""
        return self._queue.set_visible_in(changes)

    def delete(self, receipts: Sequence[str]) -> list[bool]:
        """Pass the call on to the queue."""
        return self._queue.delete(receipts)

    def move_aside(self, moves: Sequence[tuple[str, MoveTo]]) -> list[bool]:
        """Pass the call on to the queue."""
        return self._queue.move_aside(moves)
