"""What every Queue and QueueAdmin must offer a local server, as tests.

It covers when to receive again, why a receipt is no longer valid, messages that moved to another queue, and queues that
are changed and deleted. Each rule names its source, as in `queue_contract`, which runs these tests.
Never here: how messages are received. Invariant: every boundary in time is tested before and at it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onefold import errors, limits
from onefold.contracts.admin import Transferred
from onefold.contracts.entries import Entry
from onefold.contracts.queue import RetryIn
from onefold.contracts.settings import QueueSettings
from onefold.testing.queues import DAY, HOUR, MINUTE, SECOND, VISIBLE, QueueHarness

if TYPE_CHECKING:
    from onefold.contracts.verbs import Queue


class ServingContract(QueueHarness):
    """Operations that a local server needs in addition to those of a worker."""

    # -- when to receive again --------------------------------------------------------------------------------------

    def ready_in(self, queue: Queue) -> int | None:
        """How many ms from now, according to the queue, until a message becomes visible by the passing of time."""
        at_ms = self.queues.next_ready_ms(queue.name)
        return None if at_ms is None else at_ms - self.clock.now_ms()

    def test_when_time_brings_a_message(self) -> None:
        """A rule of onefold: a long poll sleeps until that time, so it may be too early but never too late."""
        queue = self.queue()
        self.needs(queue.capabilities.inspectable, "inspectable")
        assert self.ready_in(queue) is None
        self.send(queue, "now")
        assert self.ready_in(queue) is None  # it is visible: if a receive does not return it, time is not the reason
        self.send(queue, "soon", delay_ms=10 * SECOND)
        self.send(queue, "later", delay_ms=MINUTE)
        held = self.one(queue, 20 * SECOND)
        assert self.ready_in(queue) == 10 * SECOND
        self.later(10 * SECOND)
        self.delete(queue, self.one(queue))
        assert self.ready_in(queue) == 10 * SECOND
        self.hide(queue, held, 5 * SECOND)
        assert self.ready_in(queue) == 5 * SECOND
        self.delete(queue, held)
        assert self.ready_in(queue) == MINUTE - 10 * SECOND
        self.raises(errors.NotFoundError, lambda: self.queues.next_ready_ms("nobody"))

    def test_when_time_opens_a_group(self) -> None:
        """The same for a group: the head's visibility, the head's retention, or the queue's delay."""
        queue = self.queue("orders.fifo", content_dedup=True, retention_ms=HOUR)
        self.needs(queue.capabilities.inspectable, "inspectable")
        self.send(queue, "a1", "a2", group="a")
        head, tail = self.receive(queue, 2, 10 * SECOND)
        assert self.ready_in(queue) == 10 * SECOND
        self.hide(queue, tail, SECOND)
        assert self.ready_in(queue) == 10 * SECOND  # the tail waits for its head
        self.hide(queue, head, 12 * HOUR)
        assert self.ready_in(queue) == HOUR
        self.delete(queue, head)
        self.later(SECOND)
        self.delete(queue, self.one(queue))
        assert self.ready_in(queue) is None
        if queue.capabilities.run_at:
            self.send(queue, "b1", group="b", run_at_ms=self.clock.now_ms() + 2 * HOUR)
            assert self.ready_in(queue) == 2 * HOUR

    # -- why a receipt is not valid ------------------------------------------------------------------------------

    def test_how_a_message_stands_with_a_receipt_of_a_standard_queue(self) -> None:
        """DG sqs-visibility-timeout; a server answers each of these states with another text."""
        queue = self.queue()
        self.needs(queue.capabilities.inspectable, "inspectable")
        self.send(queue, "a")
        first = self.one(queue)
        assert queue.receipt_states([first.receipt]) == ["in-flight"]
        self.later(VISIBLE)
        assert queue.receipt_states([first.receipt]) == ["visible"]
        second = self.one(queue)
        assert queue.receipt_states([first.receipt, second.receipt]) == ["superseded", "in-flight"]
        self.delete(queue, second)
        assert queue.receipt_states([first.receipt, second.receipt]) == ["gone", "gone"]
        self.raises(errors.UsageError, lambda: queue.receipt_states(["garbage"]))

    def test_how_a_message_stands_with_a_receipt_of_a_fifo_queue(self) -> None:
        """REC test_fifo_delete_after_visibility_timeout."""
        queue = self.queue("orders.fifo", content_dedup=True)
        self.needs(queue.capabilities.inspectable, "inspectable")
        self.send(queue, "a", group="g")
        first = self.one(queue)
        assert queue.receipt_states([first.receipt]) == ["in-flight"]
        self.later(VISIBLE)
        assert queue.receipt_states([first.receipt]) == ["expired"]
        assert self.delete(queue, first) == [False]
        second = self.one(queue)
        assert queue.receipt_states([first.receipt, second.receipt]) == ["superseded", "in-flight"]
        self.delete(queue, second)
        assert queue.receipt_states([second.receipt]) == ["gone"]

    def test_the_twelve_hours_refuse_what_is_in_flight(self) -> None:
        """DG sqs-visibility-timeout: the answer is False, and the message is still in flight."""
        queue = self.queue()
        self.needs(queue.capabilities.inspectable, "inspectable")
        self.send(queue, "a")
        held = self.one(queue)
        self.later(SECOND)
        assert not self.hide(queue, held, 12 * HOUR)
        assert queue.receipt_states([held.receipt]) == ["in-flight"]

    def test_a_message_that_expired_or_moved_is_gone(self) -> None:
        """REC test_message_retention_with_inflight."""
        queue, _ = self.pair(receives_max=1)
        self.needs(queue.capabilities.inspectable, "inspectable")
        self.send(queue, "moves")
        first = self.one(queue)
        self.later(VISIBLE)
        assert self.receive(queue) == []
        assert queue.receipt_states([first.receipt]) == ["gone"]
        self.send(queue, "expires")
        second = self.one(queue, 12 * HOUR)
        self.later(limits.RETENTION_MS_DEFAULT)
        assert queue.receipt_states([second.receipt]) == ["gone"]

    def test_an_old_receipt_hides_what_another_holds_for_longer_too(self) -> None:
        """REC test_terminate_visibility_timeout_after_receive, reversed: any receipt of a message can change it."""
        queue = self.queue()
        self.send(queue, "a")
        old = self.one(queue, 0)
        self.one(queue, SECOND)
        assert self.hide(queue, old, MINUTE)
        self.later(MINUTE - 1)
        assert self.bodies(queue) == []
        self.later(1)
        assert self.bodies(queue) == ["a"]

    def test_which_message_a_receipt_names(self) -> None:
        """A rule of onefold: the history names messages, but a delete has only receipts."""
        queue, fifo = self.queue(), self.queue("orders.fifo", content_dedup=True)
        self.send(queue, "a")
        self.send(fifo, "a", group="g")
        held = [self.one(queue), self.one(fifo)]
        assert self.queues.message_ids([one.receipt for one in held]) == [one.message_id for one in held]
        self.delete(queue, held[0])
        assert self.queues.message_ids([held[0].receipt]) == [held[0].message_id]
        for bad in ("garbage", "", "1", "1:2:3:4", "a:b"):
            self.raises(errors.UsageError, lambda bad=bad: self.queues.message_ids([bad]))  # type: ignore[misc]

    # -- what went to another queue ------------------------------------------------------------------------------

    def test_dead_letters_are_reported_once(self) -> None:
        """ISS localstack#8234: the receive that moves it does not return it, so its destination must be reported."""
        queue, dead = self.pair(receives_max=2)
        self.needs(queue.capabilities.inspectable, "inspectable")
        (sent,) = self.send(queue, "a")
        for _ in range(2):
            self.one(queue)
            self.later(VISIBLE)
        assert self.queues.take_transfers() == []
        assert self.receive(queue) == []
        assert self.queues.take_transfers() == [Transferred(sent.message_id, queue.name, dead.name, 2)]
        assert self.queues.take_transfers() == []
        assert self.one(dead).receive_count == 3

    def test_moved_messages_are_reported_with_their_new_ids(self) -> None:
        """API StartMessageMoveTask: new message ids."""
        queue, dead = self.pair()
        self.needs(queue.capabilities.inspectable, "inspectable")
        (sent,) = self.send(queue, "a")
        self.move_aside(queue, self.one(queue))
        assert self.queues.take_transfers() == []
        (moved,) = self.queues.move([(sent.message_id, None, None)])
        assert moved is not None
        (told,) = self.queues.take_transfers()
        assert told == Transferred(sent.message_id, dead.name, queue.name, 1, moved.new_message_id)

    # -- queues as in SQS ----------------------------------------------------------------------------------------

    def test_one_queue_s_settings(self) -> None:
        """API GetQueueAttributes."""
        queue = self.queue(visibility_ms=SECOND)
        assert self.queues.setting(queue.name) == QueueSettings(name=queue.name, visibility_ms=SECOND)
        self.queues.change(QueueSettings(name=queue.name, visibility_ms=MINUTE))
        assert self.queues.setting(queue.name).visibility_ms == MINUTE
        self.queues.drop(queue.name)
        self.raises(errors.NotFoundError, lambda: self.queues.setting(queue.name))

    def test_short_retention_of_dead_letters_is_only_advised_against(self) -> None:
        """DG sqs-dead-letter-queues: advice, not enforced."""
        self.queue("dead", retention_ms=MINUTE)
        settings = QueueSettings(name="orders", dead_letter="dead", receives_max=3)
        self.raises(errors.UsageError, lambda: self.queues.create(settings))
        self.queues.create(settings, advised=False)
        longer = QueueSettings(name="orders", dead_letter="dead", receives_max=3, retention_ms=14 * DAY)
        self.raises(errors.UsageError, lambda: self.queues.change(longer))
        self.queues.change(longer, advised=False)
        self.queues.change(QueueSettings(name="dead", retention_ms=2 * MINUTE), advised=False)
        assert self.queues.setting("dead").retention_ms == 2 * MINUTE
        other = QueueSettings(name="orders.fifo", fifo=True, dead_letter="dead", receives_max=3)
        self.raises(errors.UsageError, lambda: self.queues.create(other, advised=False))

    def test_a_policy_that_leads_nowhere_keeps_messages_where_they_are(self) -> None:
        """API DeleteQueue: a queue can be deleted while others name it; a rule of onefold: nothing is lost by that."""
        queue, dead = self.pair(receives_max=1)
        self.send(queue, "a")
        self.raises(errors.UsageError, lambda: self.queues.drop(dead.name))
        self.queues.drop(dead.name, referenced=True)
        for count in (1, 2, 3):
            assert self.one(queue).receive_count == count
            self.later(VISIBLE)
        assert self.queues.take_transfers() == []
        assert self.queues.setting(queue.name).dead_letter == dead.name
        self.queues.change(
            QueueSettings(name=queue.name, dead_letter=dead.name, receives_max=1, delay_ms=SECOND), advised=False
        )
        held = self.one(queue)
        assert "no dead-letter queue" in self.raises(errors.UsageError, lambda: self.move_aside(queue, held))
        self.later(VISIBLE)
        again = self.queue(dead.name, retention_ms=14 * DAY)  # a queue of the same name: the policy works again
        assert self.receive(queue) == []
        assert self.bodies(again) == ["a"]

    def test_a_fifo_policy_that_leads_nowhere_keeps_the_group_s_order(self) -> None:
        """The same for FIFO: a head that has used up its receives stays the head."""
        queue, dead = self.pair("orders.fifo", content_dedup=True, receives_max=1)
        self.send(queue, "a1", "a2", group="a")
        self.queues.drop(dead.name, referenced=True)
        self.one(queue)
        self.later(VISIBLE)
        assert self.bodies(queue) == ["a1", "a2"]

    def test_what_a_fifo_queue_remembers(self) -> None:
        """DG FIFO-queues-exactly-once-processing: for 5 minutes, even if the message is gone."""
        queue = self.queue("orders.fifo", content_dedup=True)
        self.needs(queue.capabilities.inspectable, "inspectable")
        first, second = queue.send(
            [Entry(body="a", group="g", dedup_id="one"), Entry(body="b", group="h", dedup_id="two")]
        )
        self.later(SECOND)
        self.send(queue, "again", group="g", dedup_id="one")
        seen = self.queues.dedup_memory(queue.name)
        assert [(one.dedup_id, one.group, one.message_id) for one in seen] == [
            ("two", "h", second.message_id),  # type: ignore[union-attr]
            ("one", "g", first.message_id),  # type: ignore[union-attr]
        ]
        until_ms = self.clock.now_ms() - SECOND + limits.DEDUP_WINDOW_MS
        assert {one.until_ms for one in seen} == {until_ms}
        self.delete(queue, *self.receive(queue))
        gone = self.queues.dedup_memory(queue.name, limit=1)
        assert [(one.message_id, one.dedup_id) for one in gone] == [(second.message_id, None)]  # type: ignore[union-attr]
        self.later(limits.DEDUP_WINDOW_MS - SECOND - 1)
        assert len(self.queues.dedup_memory(queue.name)) == 2
        self.later(1)
        assert self.queues.dedup_memory(queue.name) == []
        assert self.queues.dedup_memory(self.queue().name) == []

    def test_whether_anything_is_being_moved(self) -> None:
        """API ListMessageMoveTasks, RUNNING."""
        queue, dead = self.pair()
        assert not self.queues.moving()
        self.send(queue, "a")
        self.move_aside(queue, self.one(queue))
        task = self.queues.start_move(dead.name)
        self.needs(queue.capabilities.inspectable, "inspectable")  # a separate server may have finished by now
        assert self.queues.moving()
        self.queues.cancel_move(task.handle)
        assert not self.queues.moving()

    def test_giving_back_in_vain_changes_nothing(self) -> None:
        """A rule of onefold: the receive of a consumer that left does not count, unless another has received since."""
        queue = self.queue()
        self.needs(queue.capabilities.uncounted, "uncounted")
        self.send(queue, "a")
        left = self.one(queue)
        assert queue.set_visible_in([(left.receipt, RetryIn(0, uncounted=True))]) == [True]
        assert self.one(queue).receive_count == 1
