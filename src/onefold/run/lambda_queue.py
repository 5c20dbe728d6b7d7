"""A queue whose messages Lambda holds: what is done is noted for the answer, and Lambda deletes it.

The driver settles here as everywhere: it deletes, hides and buries. Deleting costs no call, because Lambda deletes whatever
the answer does not name; hiding changes the visibility, which no mapping ever does by itself; burying moves the message,
and then it is done too. What cannot be hidden or moved now stays, and comes back when its visibility ends.
How it is hidden and moved is in `lambda_staying.py`.
Never here: what becomes of a message. Invariant: a receipt is among the done ones only when its message may be deleted.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from onefold.run import lambda_staying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from onefold import errors
    from onefold.contracts.entries import Entry, Refused, Sent
    from onefold.contracts.queue import Bury, Delivery, Depth, RetryIn
    from onefold.contracts.verbs import Queue, Standing
    from onefold.outside import Clock


class Answered:
    """What the answer of the invocation under way will say. Safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._done: dict[str, str] = {}  # receipt -> queue
        self._gone: set[str] = set()  # of these, what is in its queue no more
        self._hidden: dict[str, int] = {}  # receipt -> monotonic instant until which it was hidden for a retry
        self._deliveries: dict[str, Delivery] = {}
        self._unstarted: set[str] = set()

    def begin(self, deliveries: Iterable[Delivery]) -> None:
        """Another invocation, with these."""
        with self._lock:
            self._done.clear()
            self._gone.clear()
            self._hidden.clear()
            self._unstarted.clear()
            self._deliveries = {one.receipt: one for one in deliveries}

    def note_unstarted(self, deliveries: Iterable[Delivery]) -> None:
        """These are about to be given back, and only wait."""
        self._unstarted.update(one.receipt for one in deliveries)

    def waiting(self, receipt: str, change: RetryIn, receives_max: int | None) -> Delivery | None:
        """The message, when it only waits and its queue would give it up soon; else None."""
        one = self._deliveries.get(receipt)
        waits = change.uncounted or receipt in self._unstarted
        if one is None or not waits or one.sequence is not None or receives_max is None:
            return None
        return one if one.receive_count >= receives_max - 1 else None

    def is_done(self, receipt: str) -> bool:
        """Whether Lambda may delete this message."""
        return receipt in self._done

    def hidden_until_ms(self, receipt: str) -> int | None:
        """The monotonic instant until which a message that stays was hidden; None when it was not."""
        return self._hidden.get(receipt)

    def note_done(self, queue: str, receipts: Iterable[str], *, gone: bool = False) -> None:
        """These may be deleted. `gone`: they are in another queue now, and in this one no more."""
        with self._lock:
            for receipt in receipts:
                self._done[receipt] = queue
                if gone:
                    self._gone.add(receipt)

    def note_hidden(self, receipt: str, delay_ms: int) -> None:
        """It stays, and was hidden."""
        self._hidden[receipt] = self._clock.monotonic_ms() + delay_ms

    def to_delete(self) -> dict[str, list[str]]:
        """The receipts that are to be deleted, by queue, for one who deletes them before Lambda can. Answers each once."""
        found: dict[str, list[str]] = {}
        with self._lock:
            for receipt, queue in self._done.items():
                if receipt not in self._gone:
                    found.setdefault(queue, []).append(receipt)
            self._gone.update(self._done)
        return found


class MappedQueue:
    """The Queue contract over a real queue, for messages that a mapping received.

    Args:
        queue: the real one. answered: where it is noted what is done.
        receives_max: how many receives its dead-letter policy allows; None: it has none, or waiting costs no receive.
        failed: is told the queue, how many messages could not be hidden or moved, and why.
    """

    def __init__(
        self,
        queue: Queue,
        answered: Answered,
        failed: Callable[[str, int, errors.OnefoldError], None],
        *,
        receives_max: int | None = None,
    ) -> None:
        self.name = queue.name
        self.capabilities = queue.capabilities
        self._queue = queue
        self._answered = answered
        self._failed = failed
        self._receives_max = receives_max

    def send(self, entries: Sequence[Entry]) -> list[Sent | Refused]:
        """As the real queue's."""
        return self._queue.send(entries)

    def receive(self, count_max: int, visible_ms: int | None = None) -> list[Delivery]:  # noqa: ARG002 - the contract's
        """Nothing: the mapping receives."""
        return []

    def set_visible_in(self, changes: Sequence[tuple[str, RetryIn]]) -> list[bool]:
        """As the real queue's. What it cannot change now becomes visible when its receive ends."""
        return lambda_staying.hide(self._queue, self._answered, self._failed, changes, self._receives_max)

    def delete(self, receipts: Sequence[str]) -> list[bool]:
        """Note them as done; Lambda deletes."""
        self._answered.note_done(self.name, receipts)
        return [True] * len(receipts)

    def bury(self, burials: Sequence[tuple[str, Bury]]) -> list[bool]:
        """Move them; what was moved is done. What cannot be moved stays."""
        return lambda_staying.bury(self._queue, self._answered, self._failed, burials)

    def standing(self, receipts: Sequence[str]) -> list[Standing]:
        """As the real queue's."""
        return self._queue.standing(receipts)

    def depth(self) -> Depth:
        """As the real queue's."""
        return self._queue.depth()
