"""Receiving from a queue whose server makes a receive wait, without making the control loop wait (SQS's long polling).

A `LongPoll` is between a worker and such a queue. `receive` answers at once with what has arrived, and asks for more
in threads of its own: while handlers run and settle, the next receive is under way. Nothing is asked for that the worker
has no room for, so an idle worker costs one call per `WAIT_MS` and a busy one is never ahead by more than its buffer.
While nothing comes one poll is under way; polls are short while messages come. A worker that is to end asks for nothing
more and does not wait for a poll that nothing comes of: what arrives then goes back to its queue.
What arrived and was not taken within a part of its visibility is extended before it is handed out.

Never here: what is done with a message. Invariant: every message that arrived is handed out once, or given back by `end`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from onefold import errors, limits
from onefold.contracts.queue import Bury, Delivery, RetryIn

if TYPE_CHECKING:
    from onefold.contracts.verbs import WaitingQueue
    from onefold.outside import Clock

WAIT_MS: Final = 10_000  # of one long poll while the queue is idle, SQS: at most 20 s
WAIT_FIRST_MS: Final = 1_000  # of the first one that finds nothing; then twice as long each time
CALLS_MAX: Final = 4  # receives under way at one time, 10 messages each
_FRESH_PART: Final = 6  # older than a sixth of their visibility, messages are extended before they are handed out


class LongPoll:
    """A receiver that answers with what has arrived. The other verbs are the queue's own.

    Args:
        queue: whose receives wait.
        clock: for the age of what arrived.
        wake: called, from a thread, when something arrived.
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
        self._ended = False
        self._threads: list[threading.Thread] = []

    # -- the worker's side -------------------------------------------------------------------------------------------

    def receive(self, count_max: int, visible_ms: int | None = None) -> list[Delivery]:
        """What has arrived, at most `count_max`; more is asked for in the background. Never waits for messages.

        A FIFO queue's are handed out all at once, also when they are more than `count_max`: what is left of a group here
        would not be known to whoever gives the group back, and would be handed out before it.

        Raises:
            TransientError: the last receive failed; the next call asks again.
            Exception: a defect that ended a receive; the worker must not go on without it.
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
        """The deliveries that are handed out: those that have lain for long are extended first, or dropped.

        What is behind a dropped message in its FIFO group goes back to the queue. Raises as `receive`: they are kept then.
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
            with suppress(errors.TransientError):  # then they become visible by themselves, when their receive ends
                self._queue.set_visible_in([(one.receipt, RetryIn(0)) for one in reversed(deliveries)])

    # -- the threads' side -------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        while (count := self._next()) > 0:
            arrived = list[Delivery]()
            failure: Exception | None = None
            try:
                arrived = self._queue.receive_within(count, self._visible_ms, self._wait_ms)
            except errors.UsageError as error:  # a queue or permission that has gone: said again and again
                failure = errors.TransientError(error.what, meaning=error.meaning, todo=error.todo)
            except Exception as error:  # noqa: BLE001 - raised by `receive`: a thread must not vanish with what it knows
                failure = error
            with self._changed:
                self._under_way -= count
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
        """How many to ask for, once there is room for them; 0: the end."""
        with self._changed:
            while not self._ended:
                room = self._wanted - self._under_way
                idle = self._wait_ms > WAIT_FIRST_MS  # the last one found nothing: one at a time, each costs a call
                if room > 0 and not (idle and self._under_way):
                    count = min(room, limits.BATCH_ENTRIES_MAX)
                    self._under_way += count
                    return count
                self._changed.wait()
            return 0

    # -- beside the worker -------------------------------------------------------------------------------------------

    def stop(self, *, give_back: bool = True) -> None:
        """Ask for nothing more; what arrives from now on is given back by its thread.

        Args:
            give_back: give back what has arrived, too, instead of leaving it to its lease.
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
        """Wait until the receives under way have ended and given back what they brought, if that is soon.

        A receive that goes on longer is left alone: what it brings is given back if the process is there still, and is
        visible again after its lease if not.

        Args:
            until_ms: monotonic instant at which the wait is over.
        """
        for thread in self._threads:
            thread.join(max(until_ms - self._clock.monotonic_ms(), 0) / 1000)

    # -- the queue's own verbs ---------------------------------------------------------------------------------------

    def set_visible_in(self, changes: Sequence[tuple[str, RetryIn]]) -> list[bool]:
        """As the queue's."""
        return self._queue.set_visible_in(changes)

    def delete(self, receipts: Sequence[str]) -> list[bool]:
        """As the queue's."""
        return self._queue.delete(receipts)

    def bury(self, burials: Sequence[tuple[str, Bury]]) -> list[bool]:
        """As the queue's."""
        return self._queue.bury(burials)
