"""What the queue contract suites share: creating queues, sending messages, moving the clock.

Before each test, a subclass sets `queues`, the backend's QueueAdmin without any queue, and `clock`, the manual clock
that the backend uses. Never here: assertions. Invariant: nothing here depends on the kind of backend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from unittest import SkipTest

from onefold import limits
from onefold.contracts.admin import QueueAdmin
from onefold.contracts.entries import Entry, Refused, Sent
from onefold.contracts.queue import Ack, Delivery, MoveTo, Reason, RetryIn, Settle
from onefold.contracts.settings import QueueSettings
from onefold.manual_clock import ManualClock

if TYPE_CHECKING:
    from onefold.contracts.verbs import Queue

SECOND = limits.SECOND_MS
MINUTE = limits.MINUTE_MS
HOUR = limits.HOUR_MS
DAY = limits.DAY_MS
VISIBLE = limits.VISIBILITY_MS_DEFAULT
RETENTION = limits.RETENTION_MS_DEFAULT

WRONG = Reason(kind="permanent", summary="the address does not exist", error="AddressError", attempts=3)


class QueueHarness:
    """Shortcuts for tests of queues."""

    queues: QueueAdmin
    clock: ManualClock

    def queue(self, name: str = "orders", **settings: Any) -> Queue:
        """A new standard queue, or a FIFO queue if its name says so (the test is skipped if the engine has none)."""
        fifo = name.endswith(".fifo")
        if fifo:
            self.needs(self.queue("probe").capabilities.fifo, "fifo")
        self.queues.create(QueueSettings(name=name, fifo=fifo, **settings))
        return self.queues.open(name)

    def pair(self, name: str = "orders", **settings: Any) -> tuple[Queue, Queue]:
        """A new queue and its dead-letter queue, which keeps messages for 14 days."""
        stem, _, suffix = name.partition(".")
        dead = self.queue(f"{stem}-dead" + (f".{suffix}" if suffix else ""), retention_ms=14 * DAY)
        return self.queue(name, **{"dead_letter": dead.name, "receives_max": 2, **settings}), dead

    def send(self, queue: Queue, *bodies: str, **options: Any) -> list[Sent]:
        """Send one message for each body in one call; all are accepted."""
        answers = queue.send([Entry(body=body, **options) for body in bodies])
        assert not [answer for answer in answers if isinstance(answer, Refused)], answers
        return [answer for answer in answers if isinstance(answer, Sent)]

    def refused(self, queue: Queue, **entry: Any) -> Refused:
        """The refusal of one message."""
        (answer,) = queue.send([Entry(**{"body": "b", **entry})])
        assert isinstance(answer, Refused), answer
        assert queue.receive(10) == []
        return answer

    def receive(self, queue: Queue, count_max: int = 10, visible_ms: int | None = None) -> list[Delivery]:
        """The deliveries of one receive."""
        return queue.receive(count_max, visible_ms)

    def one(self, queue: Queue, visible_ms: int | None = None) -> Delivery:
        """The single message that a receive returns."""
        deliveries = queue.receive(1, visible_ms)
        assert len(deliveries) == 1, deliveries
        return deliveries[0]

    def bodies(self, queue: Queue, count_max: int = 10) -> list[str]:
        """The bodies that one receive returns."""
        return [delivery.body for delivery in queue.receive(count_max)]

    def hide(self, queue: Queue, delivery: Delivery, delay_ms: int, *, uncounted: bool = False) -> bool:
        """Change one visibility."""
        (answer,) = queue.set_visible_in([(delivery.receipt, RetryIn(delay_ms, uncounted))])
        return answer

    def delete(self, queue: Queue, *deliveries: Delivery) -> list[bool]:
        """Delete messages by their receipts."""
        return queue.delete([delivery.receipt for delivery in deliveries])

    def move_aside(self, queue: Queue, delivery: Delivery, to: Any = "dead-letter") -> bool:
        """Dead-letter one message."""
        (answer,) = queue.move_aside([(delivery.receipt, MoveTo(to, WRONG))])
        return answer

    def later(self, by_ms: int) -> None:
        """Let time pass."""
        self.clock.advance(by_ms)

    def counts(self, queue: Queue) -> tuple[int, int, int]:
        """How many messages are visible, in flight and delayed."""
        depth = queue.depth()
        return depth.visible, depth.in_flight, depth.delayed

    def is_duplicate(self, queue: Queue, sent: Sent, first: Sent) -> bool:
        """Whether a send was accepted as a duplicate of `first`; if the queue does not say so, their ids decide."""
        if queue.capabilities.inspectable:
            return sent.duplicate
        return sent.message_id == first.message_id

    def needs(self, has: bool, what: str) -> None:
        """Skip the test for a backend that declares that it cannot do this."""
        if not has:
            raise SkipTest(f"the queue declares that it does not support: {what}")

    def raises(self, kind: type[Exception], call: Callable[[], object]) -> str:
        """The text of the error that `call` raises, which must be of this class."""
        try:
            answer = call()
        except kind as error:
            return str(error)
        raise AssertionError(f"{kind.__name__} was expected, but the call returned {answer!r}")


def sorted_bodies(deliveries: Sequence[Delivery]) -> list[str]:
    """The bodies, sorted, since a standard queue does not promise an order."""
    return sorted(delivery.body for delivery in deliveries)


__all__ = [
    "DAY",
    "HOUR",
    "MINUTE",
    "RETENTION",
    "SECOND",
    "VISIBLE",
    "WRONG",
    "Ack",
    "QueueHarness",
    "Settle",
    "sorted_bodies",
]
