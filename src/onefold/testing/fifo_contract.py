"""What every FIFO queue must do: order and locking of message groups, deduplication, receipts that expire.

Each rule names its source: a page of SQS's developer guide (DG) or API reference (API), or an answer recorded
from AWS with the name of the test that recorded it (REC, in LocalStack's public suite, 2024-2025). Run by
`queue_contract.QueueContract`, and skipped for a backend without FIFO queues.

Never here: standard queues. Invariant: every boundary in time is tested before and at it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from onefold import limits
from onefold.contracts.entries import NOT_SENT, Entry, Refused, Sent
from onefold.testing.queues import DAY, HOUR, MINUTE, RETENTION, SECOND, VISIBLE, WRONG, QueueHarness

if TYPE_CHECKING:
    from onefold.contracts.verbs import Queue

WINDOW = limits.DEDUP_WINDOW_MS


class FifoContract(QueueHarness):
    """FIFO queues."""

    def fifo(self, name: str = "orders.fifo", **settings: object) -> Queue:
        """A FIFO queue that derives deduplication ids from bodies."""
        return self.queue(name, **{"content_dedup": True, **settings})

    def fill(self, queue: Queue, text: str) -> None:
        """Send messages with these bodies, for example `a1 b1 a2`, where the letter is the group."""
        for body in text.split():
            self.send(queue, body, group=body[0])

    # -- order and locking -------------------------------------------------------------------------------------

    def test_messages_of_a_group_come_in_order(self) -> None:
        """DG FIFO-queues-understanding-logic."""
        queue = self.fifo()
        self.fill(queue, "a1 a2 a3 a4")
        assert self.bodies(queue) == ["a1", "a2", "a3", "a4"]

    def test_one_receive_takes_a_group_before_the_next(self) -> None:
        """REC test_fifo_receive_message_group_id_ordering."""
        queue = self.fifo()
        self.fill(queue, "a1 b1 a2 a3")
        assert self.bodies(queue) == ["a1", "a2", "a3", "b1"]

    def test_a_group_is_locked_while_one_of_it_is_in_flight(self) -> None:
        """DG FIFO-queue-message-groups."""
        queue = self.fifo()
        self.fill(queue, "a1 a2 b1")
        assert self.bodies(queue, 1) == ["a1"]
        assert self.bodies(queue) == ["b1"]
        assert self.bodies(queue) == []

    def test_a_new_message_of_a_locked_group_waits(self) -> None:
        """REC test_fifo_message_group_visibility."""
        queue = self.fifo()
        self.fill(queue, "a1")
        first = self.one(queue)
        self.fill(queue, "a2")
        assert self.bodies(queue) == []
        self.delete(queue, first)
        assert self.bodies(queue) == ["a2"]

    def test_deleting_one_of_two_in_flight_keeps_the_lock(self) -> None:
        """REC test_fifo_message_group_visibility_after_partial_delete."""
        queue = self.fifo()
        self.fill(queue, "a1 a2 a3 b1")
        first, second = self.receive(queue, 2)
        assert self.delete(queue, first) == [True]
        assert self.bodies(queue) == ["b1"]
        assert self.delete(queue, second) == [True]
        assert self.bodies(queue) == ["a3"]

    def test_a_released_head_comes_back_though_its_sibling_is_in_flight(self) -> None:
        """REC test_fifo_message_group_visibility_after_terminate_visibility_timeout."""
        queue = self.fifo()
        self.fill(queue, "a1 a2 a3 b1")
        first, _ = self.receive(queue, 2)
        assert self.hide(queue, first, 0)
        assert self.bodies(queue, 1) == ["b1"]
        assert self.bodies(queue) == ["a1"]
        assert self.bodies(queue) == []

    def test_a_released_tail_waits_for_the_head(self) -> None:
        """Derived: delivery stops at the first message that cannot be seen."""
        queue = self.fifo()
        self.fill(queue, "a1 a2")
        first, second = self.receive(queue, 2)
        assert self.hide(queue, second, 0)
        assert self.bodies(queue) == []
        self.delete(queue, first)
        assert self.bodies(queue) == ["a2"]

    def test_a_shortened_head_comes_back_alone(self) -> None:
        """REC test_fifo_message_group_visibility_after_change_message_visibility."""
        queue = self.fifo()
        self.fill(queue, "a1 a2")
        first, _ = self.receive(queue, 2)
        assert self.hide(queue, first, SECOND)
        self.later(SECOND - 1)
        assert self.bodies(queue) == []
        self.later(1)
        assert self.bodies(queue) == ["a1"]

    def test_an_extended_message_holds_back_all_after_it(self) -> None:
        """REC test_fifo_group_visibility_extends_with_change_message_visibility (2025-11-19)."""
        for extended, returned in ((0, []), (1, ["a1"]), (2, ["a1", "a2"])):
            queue = self.fifo(f"orders-{extended}.fifo")
            self.fill(queue, "a1 a2 a3 a4")
            in_flight = self.receive(queue, 3)
            assert self.hide(queue, in_flight[extended], 2 * VISIBLE)
            self.later(VISIBLE)
            assert self.bodies(queue) == returned

    def test_after_expiry_the_rest_comes_back_in_order(self) -> None:
        """REC test_fifo_messages_in_order_after_timeout."""
        queue = self.fifo()
        self.fill(queue, "a1 a2 a3")
        self.receive(queue, 2)
        self.later(VISIBLE)
        assert self.bodies(queue) == ["a1", "a2", "a3"]

    def test_a_served_group_goes_behind_the_others(self) -> None:
        """REC test_fifo_receive_message_visibility_timeout_shared_in_group."""
        queue = self.fifo()
        self.fill(queue, "a1 a2 a3 b1 b2")
        served = []
        for _ in range(5):
            delivery = self.one(queue)
            self.delete(queue, delivery)
            served.append(delivery.body)
        assert served == ["a1", "b1", "a2", "b2", "a3"]

    def test_visibility_zero_receives_and_releases(self) -> None:
        """REC test_receive_terminate_visibility_timeout."""
        queue = self.fifo()
        self.fill(queue, "a1 b1")
        assert self.one(queue, 0).body == "a1"
        assert self.one(queue, 0).body == "b1"
        assert self.one(queue).receive_count == 2

    def test_the_queue_delay_applies_and_a_message_has_none_of_its_own(self) -> None:
        """REC test_fifo_queue_send_message_with_zero_delay (2025-07-31); API SendMessage."""
        queue = self.fifo(delay_ms=5 * SECOND)
        self.send(queue, "a1", group="a", delay_ms=0)
        assert self.bodies(queue) == []
        refused = self.refused(queue, group="a", delay_ms=2 * SECOND)
        assert refused == Refused(
            "InvalidParameterValue",
            "Value 2 for parameter DelaySeconds is invalid. Reason: The request include parameter that is not "
            "valid for this queue type.",
        )
        self.later(5 * SECOND)
        assert self.bodies(queue) == ["a1"]

    def test_sequence_numbers_grow(self) -> None:
        """API SendMessageResult."""
        queue = self.fifo()
        sent = self.send(queue, "a1", "a2", "a3", group="a")
        numbers = [one.sequence for one in sent]
        assert None not in numbers
        assert [int(number or 0) for number in numbers] == sorted({int(number or 0) for number in numbers})
        assert [delivery.sequence for delivery in self.receive(queue)] == numbers

    def test_a_head_that_expires_makes_room_for_the_next(self) -> None:
        """Derived from retention and group order; in flight or not."""
        queue = self.fifo(retention_ms=HOUR)
        self.fill(queue, "a1")
        self.later(30 * MINUTE)
        self.fill(queue, "a2")
        self.receive(queue, 1, 12 * HOUR)
        assert self.bodies(queue) == []
        self.later(30 * MINUTE - 1)
        assert self.bodies(queue) == []
        self.later(1)
        assert self.bodies(queue) == ["a2"]

    def test_a_head_that_is_hidden_for_longer_than_it_lives(self) -> None:
        """The same, but the head's visibility was changed after the receive."""
        queue = self.fifo(retention_ms=HOUR)
        self.fill(queue, "a1")
        self.later(30 * MINUTE)
        self.fill(queue, "a2")
        assert self.hide(queue, self.one(queue), 11 * HOUR)
        self.later(30 * MINUTE - 1)
        assert self.bodies(queue) == []
        self.later(1)
        assert self.bodies(queue) == ["a2"]

    def test_a_full_flight_answers_nothing(self) -> None:
        """API ChangeMessageVisibility: FIFO queues return no error at the limit of messages in flight."""
        self.needs(self.queue("probe").capabilities.in_flight_max, "in_flight_max")
        queue = self.fifo(in_flight_max=2)
        self.fill(queue, "a1 b1 c1")
        in_flight = self.receive(queue)
        assert len(in_flight) == 2
        assert self.bodies(queue) == []
        self.delete(queue, in_flight[0])
        assert self.bodies(queue) == ["c1"]

    # -- receipts ------------------------------------------------------------------------------------------------

    def test_an_expired_receipt_deletes_nothing(self) -> None:
        """REC test_fifo_delete_after_visibility_timeout."""
        queue = self.fifo()
        self.fill(queue, "a1")
        late = self.one(queue)
        self.later(VISIBLE)
        assert self.delete(queue, late) == [False]
        again = self.one(queue)
        assert again.body == "a1"
        assert self.delete(queue, late) == [False]
        assert self.delete(queue, again) == [True]
        assert self.counts(queue) == (0, 0, 0)

    def test_a_receipt_counts_until_its_extended_visibility_ends(self) -> None:
        """REC test_fifo_delete_after_visibility_timeout_extended."""
        queue = self.fifo()
        self.fill(queue, "a1")
        delivery = self.one(queue)
        self.later(VISIBLE - 1)
        assert self.hide(queue, delivery, VISIBLE)
        self.later(VISIBLE - 1)
        assert self.bodies(queue) == []
        assert self.delete(queue, delivery) == [True]

    def test_deleting_twice_is_true_twice(self) -> None:
        """API DeleteMessage."""
        queue = self.fifo()
        self.fill(queue, "a1")
        delivery = self.one(queue)
        assert self.delete(queue, delivery) == [True]
        assert self.delete(queue, delivery) == [True]

    def test_an_expired_receipt_changes_no_visibility(self) -> None:
        """API ChangeMessageVisibility."""
        queue = self.fifo()
        self.fill(queue, "a1")
        late = self.one(queue)
        self.later(VISIBLE)
        assert not self.hide(queue, late, VISIBLE)
        again = self.one(queue)
        assert not self.hide(queue, late, 0)
        assert self.bodies(queue) == []
        assert self.hide(queue, again, 0)

    # -- deduplication -------------------------------------------------------------------------------------------

    def test_a_duplicate_is_accepted_and_never_delivered(self) -> None:
        """DG FIFO-queues-exactly-once-processing; the first body survives."""
        queue = self.fifo()
        first, second = queue.send(
            [Entry(body="one", group="a", dedup_id="d"), Entry(body="two", group="a", dedup_id="d")]
        )
        assert isinstance(first, Sent)
        assert second == Sent(first.message_id, first.sequence, duplicate=queue.capabilities.inspectable)
        assert queue.send([Entry(body="three", group="a", dedup_id="d")]) == [second]
        assert self.bodies(queue) == ["one"]

    def test_a_call_that_is_refused_as_a_whole_is_not_remembered(self) -> None:
        """A rule of onefold: the same messages can be sent again without the refused one."""
        queue = self.fifo()
        good = Entry(body="one", group="a", dedup_id="d")
        answers = queue.send([good, Entry(body="two", group="no spaces", dedup_id="e")], whole=True)
        assert answers[0] is NOT_SENT
        assert isinstance(answers[1], Refused)
        assert self.bodies(queue) == []
        (sent,) = queue.send([good], whole=True)
        assert isinstance(sent, Sent)
        assert not sent.duplicate
        assert self.bodies(queue) == ["one"]

    def test_the_window_is_five_minutes_also_after_a_delete(self) -> None:
        """REC test_fifo_deduplication_arrives_once_after_delete."""
        queue = self.fifo()
        (first,) = self.send(queue, "one", group="a", dedup_id="d")
        self.delete(queue, self.one(queue))
        self.later(WINDOW - 1)
        assert self.is_duplicate(queue, self.send(queue, "two", group="a", dedup_id="d")[0], first)
        assert self.bodies(queue) == []
        self.later(1)
        assert not self.is_duplicate(queue, self.send(queue, "three", group="a", dedup_id="d")[0], first)
        assert self.bodies(queue) == ["three"]

    def test_after_the_window_a_second_copy_is_delivered_beside_the_first(self) -> None:
        """REC test_deduplication_interval."""
        queue = self.fifo()
        self.send(queue, "one", group="a", dedup_id="d")
        self.later(WINDOW)
        self.send(queue, "two", group="a", dedup_id="d")
        assert self.bodies(queue) == ["one", "two"]

    def test_the_id_from_the_body_ignores_attributes_and_groups(self) -> None:
        """API CreateQueue, ContentBasedDeduplication: SHA-256 of the body; an explicit id overrides it."""
        queue = self.fifo()
        (first,) = self.send(queue, "same", group="a")
        assert self.is_duplicate(queue, self.send(queue, "same", group="b")[0], first)
        assert not self.is_duplicate(queue, self.send(queue, "same", group="a", dedup_id="other")[0], first)
        digest = hashlib.sha256(b"same").hexdigest()
        assert self.is_duplicate(queue, self.send(queue, "different", group="a", dedup_id=digest)[0], first)
        assert [delivery.dedup_id for delivery in self.receive(queue)] == [digest, "other"]

    def test_scope_message_group(self) -> None:
        """REC test_sqs_fifo_message_group_scope_no_throughput_setting."""
        queue = self.fifo(dedup_scope="messageGroup")
        (first,) = self.send(queue, "same", group="a")
        assert not first.duplicate
        assert not self.is_duplicate(queue, self.send(queue, "same", group="b")[0], first)
        assert self.is_duplicate(queue, self.send(queue, "same", group="a")[0], first)

    def test_without_an_id_and_without_content_deduplication(self) -> None:
        """REC test_sqs: the recorded error text."""
        queue = self.fifo(content_dedup=False)
        assert self.refused(queue, group="a") == Refused(
            "InvalidParameterValue",
            "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided "
            "explicitly",
        )

    def test_a_group_is_required_and_ids_have_their_characters(self) -> None:
        """API SendMessage; REC: no space."""
        queue = self.fifo()
        assert self.refused(queue) == Refused(
            "MissingParameter", "The request must contain the parameter MessageGroupId."
        )
        for bad in ("", "a b", "x" * 129, "é"):
            assert self.refused(queue, group=bad).code == "InvalidParameterValue"
            refused = self.refused(queue, group="a", dedup_id=bad)
            assert refused.message.endswith(
                "MessageDeduplicationId can only include alphanumeric and punctuation characters. 1 to 128 in length."
            )
        self.send(queue, "b", group="!" + "~" * 127, dedup_id="`{|}~" + "x" * 123)

    # -- dead letters --------------------------------------------------------------------------------------------

    def test_a_worn_out_head_goes_to_the_dead_letters_and_the_group_goes_on(self) -> None:
        """REC test_dead_letter_queue_with_fifo_and_content_based_deduplication; DG: new id, timestamps reset."""
        queue, dead = self.pair("orders.fifo", content_dedup=True, receives_max=1)
        sent = self.send(queue, "a1", "a2", group="a")
        self.one(queue)
        self.later(VISIBLE)
        assert self.bodies(queue) == ["a2"]
        letter = self.one(dead)
        assert (letter.body, letter.group, letter.message_id) == ("a1", "a", sent[0].message_id)
        assert letter.dedup_id == sent[0].message_id
        assert letter.receive_count == 2
        assert letter.sent_at_ms == self.clock.now_ms()
        assert letter.source == queue.name

    def test_dead_lettering_a_head_frees_its_group(self) -> None:
        """A rule of onefold: the caller's policy decides whether this is wanted."""
        queue, dead = self.pair("orders.fifo", content_dedup=True)
        self.send(queue, "a1", "a2", group="a")
        head = self.one(queue)
        assert self.move_aside(queue, head)
        assert self.bodies(queue) == ["a2"]
        letter = self.one(dead)
        assert (letter.body, letter.reason, letter.group) == ("a1", WRONG, "a")

    def test_an_expired_receipt_buries_nothing(self) -> None:
        """As for delete."""
        queue, dead = self.pair("orders.fifo", content_dedup=True)
        self.send(queue, "a1", group="a")
        late = self.one(queue)
        self.later(VISIBLE)
        assert not self.move_aside(queue, late)
        assert self.counts(dead) == (0, 0, 0)
        assert self.bodies(queue) == ["a1"]

    def test_dead_letters_of_a_group_keep_their_order(self) -> None:
        """User need: order must survive the dead-letter queue."""
        queue, dead = self.pair("orders.fifo", content_dedup=True, receives_max=1)
        self.send(queue, "a1", "a2", "a3", group="a")
        self.receive(queue)
        self.later(VISIBLE)
        assert self.bodies(queue) == []
        assert self.bodies(dead) == ["a1", "a2", "a3"]

    def test_one_group_is_looked_at_in_its_order(self) -> None:
        """A rule of onefold: messages that are sent back with their group are found this way."""
        queue = self.fifo()
        self.fill(queue, "a1 b1 a2 b2 a3")
        assert [one.body for one in self.queues.of_group("orders.fifo", "a")] == ["a1", "a2", "a3"]
        assert [one.body for one in self.queues.of_group("orders.fifo", "b", limit=1)] == ["b1"]
        assert self.queues.of_group("orders.fifo", "c") == []
        assert self.bodies(queue) == ["a1", "a2", "a3", "b1", "b2"]

    def test_a_fifo_dead_letter_starts_a_new_retention(self) -> None:
        """DG sqs-dead-letter-queues: timestamps are reset on FIFO."""
        queue, dead = self.pair("orders.fifo", content_dedup=True, receives_max=1)
        self.send(queue, "a1", group="a")
        self.receive(queue)
        self.later(RETENTION - 1)
        assert self.bodies(queue) == []
        self.later(14 * DAY - 1)
        assert self.counts(dead) == (1, 0, 0)
        self.later(1)
        assert self.counts(dead) == (0, 0, 0)

    # -- run_at --------------------------------------------------------------------------------------------------

    def test_a_scheduled_message_enters_its_group_when_due(self) -> None:
        """A rule of onefold: as if it were sent when it is due."""
        queue = self.fifo()
        self.needs(queue.capabilities.run_at, "run_at")
        due_at_ms = self.clock.now_ms() + 20 * DAY
        (later,) = self.send(queue, "late", group="a", run_at_ms=due_at_ms)
        assert later.sequence is None
        assert self.counts(queue) == (0, 0, 1)
        self.later(20 * DAY - 1)
        self.send(queue, "early", group="a")
        self.delete(queue, self.one(queue))
        assert self.bodies(queue) == []
        self.later(1)
        assert self.counts(queue) == (1, 0, 0)
        self.send(queue, "after", group="a")
        delivery, after = self.receive(queue)
        assert (delivery.body, delivery.message_id) == ("late", later.message_id)
        assert delivery.sent_at_ms == due_at_ms
        assert int(delivery.sequence or 0) < int(after.sequence or 0)

    def test_a_scheduled_message_stands_before_what_is_sent_after_it_was_due(self) -> None:
        """A rule of onefold: its position depends on when it is due, even if the queue has not been read since then."""
        queue = self.fifo()
        self.needs(queue.capabilities.run_at, "run_at")
        self.send(queue, "late", group="a", run_at_ms=self.clock.now_ms() + HOUR)
        self.later(2 * HOUR)
        self.send(queue, "after", group="a")
        assert self.bodies(queue) == ["late", "after"]

    def test_a_scheduled_message_is_deduplicated_when_due(self) -> None:
        """A rule of onefold: as if it were sent when it is due, its id is looked up and remembered at that time."""
        queue = self.fifo()
        self.needs(queue.capabilities.run_at, "run_at")
        due_at_ms = self.clock.now_ms() + HOUR
        for body in ("first", "second"):
            sent = self.send(queue, body, group="a", dedup_id="d", run_at_ms=due_at_ms)
            assert not sent[0].duplicate
        self.later(HOUR)
        assert self.bodies(queue) == ["first"]
        assert self.counts(queue) == (0, 1, 0)
        assert self.send(queue, "third", group="a", dedup_id="d")[0].duplicate
