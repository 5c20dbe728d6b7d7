"""What every Queue must do, as tests that run against each of onefold's queues and any other implementation.

Subclass `QueueContract` and set `self.clock` (a ManualClock) and `self.queues` (a QueueAdmin on that clock, without any
queue) before each test. Only the clock makes time pass. Each rule names its source: SQS's developer guide (DG) or API
reference (API), or an answer recorded from AWS (REC and the test that recorded it, in LocalStack's public suite,
2024-2025). Tests are skipped only according to a queue's declared capabilities.

    class TestMyQueue(QueueContract):
        @pytest.fixture(autouse=True)
        def open_queues(self):
            self.clock = ManualClock()
            self.queues = MyQueues(clock=self.clock)

Never here: how a queue stores messages. Invariant: a worker can use any queue that passes.
"""

from __future__ import annotations

from onefold import errors
from onefold.contracts.entries import NOT_SENT, Entry, Refused, Sent
from onefold.contracts.queue import Attribute, MoveTo, Reason, RetryIn
from onefold.testing.fifo_contract import FifoContract
from onefold.testing.queues import DAY, HOUR, MINUTE, RETENTION, SECOND, VISIBLE, WRONG, sorted_bodies
from onefold.testing.serving_contract import ServingContract


class QueueContract(FifoContract, ServingContract):
    """The Queue contract: standard queues, dead letters, FIFO queues if the backend has any, and a server's needs."""

    # -- sending -------------------------------------------------------------------------------------------------

    def test_what_is_sent_is_received_as_it_was(self) -> None:
        """API SendMessage, ReceiveMessage."""
        queue = self.queue()
        attributes = {
            "Text": Attribute("Bär"),
            "Count": Attribute("-1.5", "Number.int"),
            "Bytes": Attribute(b"\x00\xff", "Binary.gif"),
        }
        (sent,) = self.send(
            queue, "Größe 😀\n\t", attributes=attributes, key="k-1", group="tenant-7", trace="Root=1-2-3"
        )
        delivery = self.one(queue)
        assert delivery.message_id == sent.message_id
        assert (delivery.body, delivery.attributes) == ("Größe 😀\n\t", attributes)
        assert (delivery.key, delivery.group, delivery.trace) == ("k-1", "tenant-7", "Root=1-2-3")
        assert (delivery.queue, delivery.receive_count) == (queue.name, 1)
        assert delivery.sent_at_ms == delivery.first_received_at_ms == self.clock.now_ms()
        assert (delivery.dedup_id, delivery.sequence, delivery.source, delivery.reason) == (None,) * 4

    def test_answers_come_in_the_order_of_the_entries(self) -> None:
        """API SendMessageBatch: refused entries do not affect the others."""
        queue = self.queue()
        answers = queue.send([Entry(body="a"), Entry(body=""), Entry(body="b")])
        assert [type(answer) for answer in answers] == [Sent, Refused, Sent]
        assert sorted_bodies(self.receive(queue)) == ["a", "b"]
        assert queue.send([]) == []

    def test_a_call_can_be_accepted_as_a_whole_or_not_at_all(self) -> None:
        """A rule of onefold: `send_many` and transactions promise it and rely on this, without a check of their own."""
        queue = self.queue()
        answers = queue.send([Entry(body="a"), Entry(body=""), Entry(body="b")], whole=True)
        assert [answers[0], answers[2]] == [NOT_SENT, NOT_SENT]
        assert answers[1] == self.refused(queue, body="")
        assert self.receive(queue) == []
        assert [type(answer) for answer in queue.send([Entry(body="a"), Entry(body="b")], whole=True)] == [Sent, Sent]
        assert sorted_bodies(self.receive(queue)) == ["a", "b"]

    def test_the_size_counts_bytes_of_body_and_attributes(self) -> None:
        """DG quotas-messages: names, types and values of attributes count too."""
        queue = self.queue(message_bytes_max=1_024)
        self.send(queue, "x" * 1_024)
        self.send(queue, "é" * 512)
        attributes = {"name": Attribute("value")}
        self.send(queue, "x" * (1_024 - len("name" + "String" + "value")), attributes=attributes)
        assert len(self.receive(queue)) == 3
        for body, extra in (("x" * 1_025, {}), ("é" * 513, {}), ("x" * 1_010, attributes)):
            refused = self.refused(queue, body=body, attributes=extra)
            assert refused == Refused(
                "InvalidParameterValue",
                "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes.",
            )

    def test_bodies_have_their_characters(self) -> None:
        """API SendMessage: the characters that are allowed."""
        queue = self.queue()
        assert self.refused(queue, body="") == Refused(
            "MissingParameter", "The request must contain the parameter MessageBody."
        )
        for bad in ("a\x00", "\x0b", "\x1f", "\ufffe", "\uffff", "\ud800", "é\x08"):
            assert self.refused(queue, body=bad).code == "InvalidMessageContents"
        fine = ["\t", "\n", "\r", " ", "\ud7ff", "\ue000", "\ufffd", "\U00010000", "\U0010ffff", "\x7f"]
        self.send(queue, *fine)
        assert sorted_bodies(self.receive(queue)) == sorted(fine)

    def test_attributes_have_their_names_types_and_forms(self) -> None:
        """API MessageAttributeValue; DG sqs-message-metadata."""
        queue = self.queue()
        for name in ("", "a b", "AWS.x", "amazon.x", ".a", "a.", "a..b", "x" * 257):
            assert self.refused(queue, attributes={name: Attribute("v")}).code == "InvalidParameterValue"
        for attribute in (
            Attribute("v", "Text"),
            Attribute("v", "string"),
            Attribute(b"v", "String"),
            Attribute("v", "Binary"),
            Attribute("", "String"),
            Attribute(b"", "Binary"),
            Attribute("one", "Number"),
            Attribute("1" * 39, "Number"),
            Attribute("1e127", "Number"),
            Attribute("1e-129", "Number"),
            Attribute("\x00", "String"),
            Attribute("v", "String." + "x" * 250),
        ):
            assert self.refused(queue, attributes={"a": attribute}).code == "InvalidParameterValue"
        many = {f"a{number}": Attribute("v") for number in range(11)}
        assert self.refused(queue, attributes=many).message == (
            "Number of message attributes [11] exceeds the allowed maximum [10]."
        )
        assert self.refused(queue, attributes={"X": Attribute("")}).message == (
            "Message (user) attribute 'X' must contain a non-empty value of type 'String'."
        )
        for value in ("0", "-1.50", "1e126", "1e-128", "1" * 38, ".5", "000" + "1" * 38 + "000"):
            self.send(queue, "b", attributes={"x" * 256: Attribute(value, "Number")})

    def test_a_standard_queue_knows_no_deduplication_id(self) -> None:
        """API SendMessage."""
        refused = self.refused(self.queue(), dedup_id="d")
        assert refused.message == (
            "Value d for parameter MessageDeduplicationId is invalid. Reason: The request include parameter that is "
            "not valid for this queue type."
        )

    def test_a_group_on_a_standard_queue_locks_nothing(self) -> None:
        """DG sqs-fair-queues."""
        queue = self.queue()
        self.send(queue, "1", "2", "3", group="tenant")
        assert len(self.receive(queue, 1)) == 1
        assert len(self.receive(queue)) == 2

    # -- delay ---------------------------------------------------------------------------------------------------

    def test_a_delayed_message_is_hidden_until_its_time(self) -> None:
        """API SendMessage, DelaySeconds; the message's delay overrides the queue's."""
        queue = self.queue(delay_ms=10 * SECOND)
        self.send(queue, "queue's")
        self.send(queue, "own", delay_ms=15 * MINUTE)
        self.send(queue, "none", delay_ms=0)
        assert self.bodies(queue) == ["none"]
        assert self.counts(queue) == (0, 1, 2)
        self.later(10 * SECOND - 1)
        assert self.bodies(queue) == []
        self.later(1)
        assert self.bodies(queue) == ["queue's"]
        self.later(15 * MINUTE - 10 * SECOND)
        assert "own" in self.bodies(queue)

    def test_a_delay_has_its_range(self) -> None:
        """API SendMessage."""
        queue = self.queue()
        for delay_ms in (-1, 15 * MINUTE + 1):
            assert self.refused(queue, delay_ms=delay_ms).code == "InvalidParameterValue"
        assert self.refused(queue, delay_ms=1_000, run_at_ms=1).code == "InvalidParameterValue"
        assert self.refused(queue, wait_ms=1_000, run_at_ms=1).code == "InvalidParameterValue"
        for beyond in (-1, 10**15, 10**30):
            assert self.refused(queue, wait_ms=beyond).code == "InvalidParameterValue"
        for beyond in (10**15, 10**30, -(10**30)):
            assert self.refused(queue, run_at_ms=beyond).code == "InvalidParameterValue"

    def test_run_at_is_any_time_ahead_and_counts_as_the_send(self) -> None:
        """A rule of onefold: any later time; the message counts as sent at that time."""
        queue = self.queue()
        self.needs(queue.capabilities.run_at, "run_at")
        run_at_ms = self.clock.now_ms() + 400 * DAY
        (sent,) = self.send(queue, "later", run_at_ms=run_at_ms)
        self.send(queue, "past", run_at_ms=self.clock.now_ms() - DAY)
        assert self.bodies(queue) == ["past"]
        self.later(400 * DAY - 1)
        assert self.counts(queue) == (0, 0, 1)
        self.later(1)
        delivery = self.one(queue, 12 * HOUR)
        assert (delivery.message_id, delivery.sent_at_ms) == (sent.message_id, run_at_ms)
        self.later(RETENTION - 1)
        assert self.counts(queue) == (1, 0, 0)
        self.later(1)
        assert self.counts(queue) == (0, 0, 0)

    def test_a_wait_is_counted_from_the_send_and_counts_as_the_send_at_its_end(self) -> None:
        """A rule of onefold, as for `run_at_ms`."""
        queue = self.queue()
        self.needs(queue.capabilities.run_at, "run_at")
        due_ms = self.clock.now_ms() + 400 * DAY
        self.send(queue, "later", wait_ms=400 * DAY)
        self.send(queue, "now", wait_ms=0)
        assert self.bodies(queue) == ["now"]
        self.later(400 * DAY - 1)
        assert self.counts(queue) == (0, 0, 1)
        self.later(1)
        assert self.one(queue, 12 * HOUR).sent_at_ms == due_ms

    # -- receiving -----------------------------------------------------------------------------------------------

    def test_a_received_message_is_hidden_for_its_visibility(self) -> None:
        """DG sqs-visibility-timeout; the request's value overrides the queue's, and is not remembered."""
        queue = self.queue(visibility_ms=10 * SECOND)
        self.send(queue, "a")
        first = self.one(queue, 2 * SECOND)
        assert (first.visible_ms, first.received_at_ms) == (2 * SECOND, self.clock.now_ms())
        self.later(2 * SECOND - 1)
        assert self.bodies(queue) == []
        self.later(1)
        second = self.one(queue)
        assert (second.visible_ms, second.receive_count) == (10 * SECOND, 2)
        assert second.receipt != first.receipt
        assert second.message_id == first.message_id
        assert second.first_received_at_ms == first.received_at_ms
        self.later(10 * SECOND - 1)
        assert self.bodies(queue) == []
        self.later(1)
        assert self.bodies(queue) == ["a"]

    def test_visibility_zero_hides_nothing_and_gives_no_message_twice_in_one_receive(self) -> None:
        """REC test_receive_terminate_visibility_timeout."""
        queue = self.queue()
        self.send(queue, "a", "b")
        assert sorted_bodies(self.receive(queue, 10, 0)) == ["a", "b"]
        again = self.receive(queue, 10)
        assert [delivery.receive_count for delivery in again] == [2, 2]

    def test_a_receive_gives_at_most_what_was_asked(self) -> None:
        """API ReceiveMessage."""
        queue = self.queue()
        self.send(queue, *"abcde")
        assert len(self.receive(queue, 2)) <= 2
        self.raises(errors.UsageError, lambda: queue.receive(0))
        for visible_ms in (-1, 12 * HOUR + 1):
            self.raises(errors.UsageError, lambda ms=visible_ms: queue.receive(1, ms))  # type: ignore[misc]

    def test_an_empty_queue_gives_nothing(self) -> None:
        """REC test_receive_empty_queue (2025-02-10)."""
        queue = self.queue()
        assert self.receive(queue) == []
        self.send(queue, "a")
        assert self.bodies(queue) == ["a"]
        assert self.receive(queue) == []

    def test_the_in_flight_cap(self) -> None:
        """DG sqs-visibility-timeout: a short poll of a standard queue gets OverLimit."""
        self.needs(self.queue("probe").capabilities.in_flight_max, "in_flight_max")
        queue = self.queue(in_flight_max=3)
        self.send(queue, *"abcde")
        in_flight = self.receive(queue, 2) + self.receive(queue, 10)
        assert len(in_flight) == 3
        self.raises(errors.OverLimitError, lambda: queue.receive(1))
        self.delete(queue, in_flight[0])
        assert len(self.receive(queue)) == 1
        self.later(VISIBLE)
        assert len(self.receive(queue)) == 3

    # -- visibility ----------------------------------------------------------------------------------------------

    def test_an_extension_counts_from_now_and_replaces_what_was_left(self) -> None:
        """API ChangeMessageVisibility."""
        queue = self.queue()
        self.send(queue, "a")
        delivery = self.one(queue)
        self.later(20 * SECOND)
        assert self.hide(queue, delivery, 15 * SECOND)
        self.later(15 * SECOND - 1)
        assert self.bodies(queue) == []
        self.later(1)
        assert self.bodies(queue) == ["a"]

    def test_zero_releases_at_once_and_the_receive_counted(self) -> None:
        """API ChangeMessageVisibility."""
        queue = self.queue()
        self.send(queue, "a")
        assert self.hide(queue, self.one(queue), 0)
        assert self.counts(queue) == (1, 0, 0)
        assert self.one(queue).receive_count == 2

    def test_extensions_end_twelve_hours_after_the_receive(self) -> None:
        """DG sqs-visibility-timeout: an error, no clamping; a later receive starts the 12 hours again."""
        queue = self.queue()
        self.send(queue, "a")
        delivery = self.one(queue)
        self.later(SECOND)
        assert not self.hide(queue, delivery, 12 * HOUR)
        assert self.hide(queue, delivery, 12 * HOUR - SECOND)
        step = queue.capabilities.finest_ms
        self.later(12 * HOUR - SECOND - step)
        assert not self.hide(queue, delivery, 2 * step)
        assert self.hide(queue, delivery, step)
        self.later(step)
        assert self.hide(queue, self.one(queue), 12 * HOUR)

    def test_a_change_has_its_range(self) -> None:
        """API ChangeMessageVisibility; bad input changes nothing."""
        queue = self.queue()
        self.send(queue, "a", "b")
        first, second = self.receive(queue)
        for delay_ms in (-1, 12 * HOUR + 1):
            changes = [(first.receipt, RetryIn(0)), (second.receipt, RetryIn(delay_ms))]
            self.raises(errors.UsageError, lambda changes=changes: queue.set_visible_in(changes))  # type: ignore[misc]
        assert self.counts(queue) == (0, 2, 0)

    def test_a_late_change_on_a_standard_queue_changes_nothing(self) -> None:
        """REC test_change_message_visibility_after_visibility_timeout_expiration (2024-04-30): success, no effect."""
        queue = self.queue()
        self.send(queue, "a")
        late = self.one(queue)
        self.later(VISIBLE)
        assert self.hide(queue, late, VISIBLE)
        assert self.bodies(queue) == ["a"]

    def test_an_old_receipt_releases_what_another_holds(self) -> None:
        """REC test_terminate_visibility_timeout_after_receive: a zombie can release another's message."""
        queue = self.queue()
        self.send(queue, "a")
        old = self.one(queue, 0)
        self.one(queue)
        assert self.bodies(queue) == []
        assert self.hide(queue, old, 0)
        assert self.one(queue).receive_count == 3

    def test_a_change_after_a_delete(self) -> None:
        """REC: "Message does not exist or is not available for visibility timeout change."."""
        queue = self.queue()
        self.send(queue, "a")
        delivery = self.one(queue)
        self.delete(queue, delivery)
        assert not self.hide(queue, delivery, 0)

    def test_waiting_can_be_uncounted(self) -> None:
        """A rule of onefold: waiting for another run does not count as a receive; each receive has a new receipt."""
        queue, dead = self.pair(receives_max=1)
        self.needs(queue.capabilities.uncounted, "uncounted")
        self.send(queue, "a")
        receipts = set()
        for _ in range(5):
            delivery = self.one(queue)
            assert delivery.receive_count == 1
            receipts.add(delivery.receipt)
            assert self.hide(queue, delivery, SECOND, uncounted=True)
            assert self.bodies(queue) == []
            self.later(SECOND)
        assert len(receipts) == 5
        assert self.counts(dead) == (0, 0, 0)

    def test_an_old_receipt_uncounts_nothing(self) -> None:
        """A rule of onefold: only the holder of a receive can take it back."""
        queue = self.queue()
        self.needs(queue.capabilities.uncounted, "uncounted")
        self.send(queue, "a")
        old = self.one(queue, 0)
        self.one(queue)
        assert self.hide(queue, old, 0, uncounted=True)
        assert self.one(queue).receive_count == 3

    # -- deleting ------------------------------------------------------------------------------------------------

    def test_a_deleted_message_does_not_come_back(self) -> None:
        """API DeleteMessage."""
        queue = self.queue()
        self.send(queue, *"abc")
        first, *others = self.receive(queue)
        assert self.delete(queue, first) == [True]
        self.later(VISIBLE)
        assert sorted_bodies(self.receive(queue)) == sorted_bodies(others)

    def test_deleting_again_is_true_again(self) -> None:
        """REC test_delete_message_with_deleted_receipt_handle."""
        queue = self.queue()
        self.send(queue, "a", "b")
        first, second = self.receive(queue)
        assert self.delete(queue, first) == [True]
        assert self.delete(queue, first, second, first) == [True, True, True]
        assert self.counts(queue) == (0, 0, 0)

    def test_a_late_delete_deletes(self) -> None:
        """REC test_delete_after_visibility_timeout."""
        queue = self.queue()
        self.send(queue, "a")
        late = self.one(queue)
        self.later(VISIBLE)
        assert self.delete(queue, late) == [True]
        assert self.receive(queue) == []

    def test_an_old_receipt_deletes_what_another_holds(self) -> None:
        """API DeleteMessage: a delete works under someone else's lock."""
        queue = self.queue()
        self.send(queue, "a")
        old = self.one(queue, 0)
        new = self.one(queue)
        assert self.delete(queue, old) == [True]
        self.later(VISIBLE)
        assert self.receive(queue) == []
        assert self.delete(queue, new) == [True]

    def test_a_receipt_that_no_queue_made(self) -> None:
        """REC: ReceiptHandleIsInvalid; no part of the call is done."""
        queue = self.queue()
        self.send(queue, "a")
        good = self.one(queue).receipt
        text = self.raises(errors.UsageError, lambda: queue.delete([good, "garbage"]))
        assert 'The input receipt handle "garbage" is not a valid receipt handle.' in text
        self.raises(errors.UsageError, lambda: queue.set_visible_in([(good, RetryIn(0)), ("", RetryIn(0))]))
        assert self.counts(queue) == (0, 1, 0)

    # -- retention -----------------------------------------------------------------------------------------------

    def test_messages_expire_in_flight_or_not(self) -> None:
        """REC test_message_retention_with_inflight."""
        queue = self.queue(retention_ms=MINUTE)
        self.send(queue, "a", "b")
        held = self.one(queue, HOUR)
        self.later(MINUTE - 1)
        assert self.counts(queue) == (1, 1, 0)
        self.later(1)
        assert self.counts(queue) == (0, 0, 0)
        assert self.receive(queue) == []
        assert self.delete(queue, held) == [True]

    def test_a_delayed_message_can_expire_before_it_is_seen(self) -> None:
        """API CreateQueue: retention counts from the send."""
        queue = self.queue(retention_ms=MINUTE)
        self.send(queue, "a", delay_ms=2 * MINUTE)
        self.later(2 * MINUTE)
        assert self.receive(queue) == []
        assert self.counts(queue) == (0, 0, 0)

    def test_the_oldest_age_counts_what_is_not_delayed(self) -> None:
        """DG sqs-available-cloudwatch-metrics."""
        queue = self.queue()
        self.needs(queue.capabilities.inspectable, "inspectable")
        assert queue.depth().oldest_age_ms is None
        self.send(queue, "delayed", delay_ms=15 * MINUTE)
        assert queue.depth().oldest_age_ms is None
        self.send(queue, "a")
        self.later(SECOND)
        self.send(queue, "b")
        held = self.receive(queue)
        self.later(SECOND)
        assert queue.depth().oldest_age_ms == 2 * SECOND
        self.delete(queue, *[delivery for delivery in held if delivery.body == "a"])
        assert queue.depth().oldest_age_ms == SECOND

    def test_depths_of_many_queues_are_the_depths_of_each(self) -> None:
        """A rule of onefold: reading all depths at once gives the same as reading each."""
        first, second = self.queue(), self.queue("short", retention_ms=MINUTE)
        self.send(first, "a", "b")
        self.send(first, "later", delay_ms=MINUTE)
        self.receive(first, 1)
        self.send(second, "expires")
        names = [first.name, "nowhere", second.name]
        assert self.queues.depths(names) == [first.depth(), None, second.depth()]
        self.later(2 * MINUTE)
        assert self.queues.depths(names) == [first.depth(), None, second.depth()]
        assert self.queues.depths([]) == []

    # -- operating -----------------------------------------------------------------------------------------------

    def test_what_is_in_hand_delayed_visible_or_gone_is_not_woken(self) -> None:
        """A rule of onefold: no message in flight is delivered again, none comes early. See also `commit_contract`."""
        queue = self.queue()
        gone, held = self.send(queue, "gone", "held")
        received = {one.message_id: one for one in self.receive(queue)}
        self.delete(queue, received[gone.message_id])
        self.hide(queue, received[held.message_id], HOUR)  # the process that works on it extends it
        (later,) = self.send(queue, "later", delay_ms=MINUTE)
        (there,) = self.send(queue, "there")
        ids = [held.message_id, later.message_id, there.message_id, gone.message_id, "no such id"]
        before = self.counts(queue)
        assert self.queues.wake(ids) == [False] * 5
        assert self.queues.wake([]) == []
        assert self.counts(queue) == before == (1, 1, 1)
        assert self.bodies(queue) == ["there"]

    def test_a_purge_that_is_only_asked_for_deletes_nothing(self) -> None:
        """A rule of onefold: if the queue supports it, a refusal is known before anything is deleted."""
        queue = self.queue()
        self.send(queue, "a")
        assert self.queues.purge(queue.name, only_ask=True) == 0
        assert self.counts(queue) == (1, 0, 0)
        self.raises(errors.NotFoundError, lambda: self.queues.purge("nowhere", only_ask=True))
        assert self.queues.purge(queue.name) == 1
        if queue.capabilities.inspectable:
            self.raises(errors.UsageError, lambda: self.queues.purge(queue.name, only_ask=True))
        self.later(MINUTE)
        assert self.queues.purge(queue.name, only_ask=True) == 0

    # -- dead letters ------------------------------------------------------------------------------------------------

    def test_a_worn_out_message_moves_on_the_next_receive(self) -> None:
        """ISS localstack#8234: not earlier; REC test_dead_letter_queue_message_attributes: what it keeps."""
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
        """The receive returns the other messages, without the one that it moves."""
        queue, dead = self.pair(receives_max=1)
        self.send(queue, "old-1", "old-2")
        self.receive(queue)
        self.later(VISIBLE)
        self.send(queue, "new")
        assert self.bodies(queue, 2) == ["new"]
        assert self.counts(dead) == (2, 0, 0)

    def test_dead_lettering_moves_with_the_reason(self) -> None:
        """A rule of onefold: the reason travels with the message; a new retention starts."""
        queue, dead = self.pair()
        self.send(queue, "a", "b", key="k")
        self.later(DAY)
        first, second = self.receive(queue)
        assert self.move_aside(queue, first)
        assert self.counts(queue) == (0, 1, 0)
        letter = self.one(dead)
        assert (letter.body, letter.reason, letter.source, letter.key) == (first.body, WRONG, queue.name, "k")
        if dead.capabilities.atomic_move:
            assert letter.message_id == first.message_id
            assert letter.receive_count == 2
        assert self.move_aside(queue, second)
        self.later(14 * DAY - 1)
        assert self.counts(dead) == (2, 0, 0)
        self.later(1)
        assert self.counts(dead) == (0, 0, 0)

    def test_dead_lettering_in_the_held_queue(self) -> None:
        """A rule of onefold: unknown outcomes are parked with their reason."""
        self.queue("orders-held", retention_ms=14 * DAY)
        queue = self.queue("orders", held="orders-held")
        self.send(queue, "a")
        unknown = Reason(kind="unknown", summary="it is not known whether the parcel was booked", crashes=1)
        assert queue.move_aside([(self.one(queue).receipt, MoveTo("held", unknown))]) == [True]
        assert self.one(self.queues.open("orders-held")).reason == unknown

    def test_dead_lettering_without_a_queue_for_it(self) -> None:
        """Bad input changes nothing."""
        queue = self.queue()
        self.send(queue, "a")
        delivery = self.one(queue)
        text = self.raises(errors.UsageError, lambda: self.move_aside(queue, delivery))
        assert "no dead-letter queue" in text
        assert self.counts(queue) == (0, 1, 0)

    def test_dead_lettering_twice_is_true_twice(self) -> None:
        """As for delete."""
        queue, dead = self.pair()
        self.send(queue, "a")
        delivery = self.one(queue)
        assert self.move_aside(queue, delivery)
        assert self.move_aside(queue, delivery)
        assert self.delete(queue, delivery) == [True]
        assert self.counts(dead) == (1, 0, 0)
