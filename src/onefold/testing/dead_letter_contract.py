"""What every queue must do with messages that are given up: by their receive count, or buried with a reason.

Each rule names its source, as in `queue_contract`, which runs these tests. Never here: FIFO queues.
Invariant: a message is in one of the two queues, never in both and never in none.
"""

from __future__ import annotations

from onefold import errors
from onefold.contracts.queue import Attribute, Bury, Reason
from onefold.testing.queues import DAY, VISIBLE, WRONG, QueueHarness


class DeadLetterContract(QueueHarness):
    """Dead-letter and held queues."""

    def test_a_worn_out_message_moves_on_the_next_receive(self) -> None:
        """ISS localstack#8234: not before; REC test_dead_letter_queue_message_attributes: what it keeps."""
        queue, dead = self.pair(receives_max=2)
        attributes = {"a": Attribute("v")}
        (sent,) = self.send(queue, "a", attributes=attributes, key="k")
        sent_at_ms = self.clock.now_ms()
        for count in (1, 2):
            assert self.one(queue).receive_count == count
            self.later(VISIBLE)
        assert self.counts(queue) == (1, 0, 0)
        assert self.counts(dead) == (0, 0, 0)
        assert self.receive(queue) == []
        assert self.counts(dead) == (1, 0, 0)
        letter = self.one(dead)
        assert (letter.message_id, letter.body, letter.attributes) == (sent.message_id, "a", attributes)
        assert (letter.receive_count, letter.source, letter.key) == (3, queue.name, "k")
        assert letter.sent_at_ms == sent_at_ms

    def test_a_standard_dead_letter_keeps_its_age(self) -> None:
        """DG sqs-dead-letter-queues: retention there counts from the first send."""
        queue, dead = self.pair(receives_max=1)
        self.send(queue, "a")
        self.one(queue)
        self.later(3 * DAY)
        assert self.receive(queue) == []
        self.later(11 * DAY - 1)
        assert self.counts(dead) == (1, 0, 0)
        self.later(1)
        assert self.counts(dead) == (0, 0, 0)

    def test_a_receive_looks_past_what_it_moves_away(self) -> None:
        """The receive returns without it, but not without others."""
        queue, dead = self.pair(receives_max=1)
        self.send(queue, "old-1", "old-2")
        self.receive(queue)
        self.later(VISIBLE)
        self.send(queue, "new")
        assert self.bodies(queue, 2) == ["new"]
        assert self.counts(dead) == (2, 0, 0)

    def test_burying_moves_with_the_reason(self) -> None:
        """A rule of onefold: the reason travels with the message; a new retention starts."""
        queue, dead = self.pair()
        self.send(queue, "a", "b", key="k")
        self.later(DAY)
        first, second = self.receive(queue)
        assert self.bury(queue, first)
        assert self.counts(queue) == (0, 1, 0)
        letter = self.one(dead)
        assert (letter.body, letter.reason, letter.source, letter.key) == (first.body, WRONG, queue.name, "k")
        if dead.capabilities.atomic_bury:
            assert letter.message_id == first.message_id
            assert letter.receive_count == 2
        assert self.bury(queue, second)
        self.later(14 * DAY - 1)
        assert self.counts(dead) == (2, 0, 0)
        self.later(1)
        assert self.counts(dead) == (0, 0, 0)

    def test_burying_in_the_held_queue(self) -> None:
        """A rule of onefold: unknown outcomes are parked with their reason."""
        self.queue("orders-held", retention_ms=14 * DAY)
        queue = self.queue("orders", held="orders-held")
        self.send(queue, "a")
        unknown = Reason(kind="unknown", summary="it is not known whether the parcel was booked", crashes=1)
        assert queue.bury([(self.one(queue).receipt, Bury("held", unknown))]) == [True]
        assert self.one(self.queues.open("orders-held")).reason == unknown

    def test_burying_without_a_queue_for_it(self) -> None:
        """Bad input changes nothing."""
        queue = self.queue()
        self.send(queue, "a")
        delivery = self.one(queue)
        text = self.raises(errors.UsageError, lambda: self.bury(queue, delivery))
        assert "no dead-letter queue" in text
        assert self.counts(queue) == (0, 1, 0)

    def test_burying_twice_is_true_twice(self) -> None:
        """As for delete."""
        queue, dead = self.pair()
        self.send(queue, "a")
        delivery = self.one(queue)
        assert self.bury(queue, delivery)
        assert self.bury(queue, delivery)
        assert self.delete(queue, delivery) == [True]
        assert self.counts(dead) == (1, 0, 0)
