"""Operator verbs on the embedded queues: look, edit, move, purge, move tasks, change, sweep; and the order of a receive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from onefold import errors
from onefold.contracts.admin import Edit, Moved
from onefold.contracts.queue import Ack, Attribute, Leave, MoveTo, Reason, RetryIn
from onefold.contracts.settings import QueueSettings
from onefold.contracts.state import Change, group_flag
from onefold.engines.sqlite.admin import SqliteQueues
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.queue import end_visibilities_in, settle_in
from onefold.engines.sqlite.state import SqliteState
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.testing.queues import DAY, HOUR, MINUTE, SECOND, VISIBLE, WRONG, QueueHarness

GONE = "0000000000000000-1"


class Desk(QueueHarness):
    queues: SqliteQueues

    @pytest.fixture(autouse=True)
    def open_queues(self) -> Iterator[None]:
        self.clock = ManualClock()
        self.engine = Database(":memory:", self.clock)
        self.queues = SqliteQueues(self.engine, owner="me", entropy=SeededEntropy(1))
        yield
        self.engine.close()

    def ids(self, queue: Any, *bodies: str, **options: Any) -> list[str]:
        return [one.message_id for one in self.send(queue, *bodies, **options)]

    def peeked(self, queue: Any, **options: Any) -> list[str]:
        return [one.body for one in self.queues.peek(queue.name, **options)]


class TestLooking(Desk):
    def test_a_peek_is_no_receive(self) -> None:
        queue = self.queue(retention_ms=DAY)
        (first,) = self.ids(queue, "a", key="k", attributes={"x": Attribute(b"\1", "Binary")}, group="tenant")
        self.later(SECOND)
        self.send(queue, "late", delay_ms=MINUTE)
        start = self.clock.now_ms() - SECOND
        seen, late = self.queues.peek(queue.name)
        assert (seen.message_id, seen.state, seen.body, seen.receive_count) == (first, "visible", "a", 0)
        assert (seen.key, seen.group, seen.attributes) == ("k", "tenant", {"x": Attribute(b"\1", "Binary")})
        assert (seen.sent_at_ms, seen.visible_at_ms, seen.expires_at_ms) == (start, start, start + DAY)
        assert (seen.first_received_at_ms, seen.owner) == (None, None)
        assert (late.state, late.visible_at_ms) == ("delayed", start + SECOND + MINUTE)
        delivery = self.one(queue)
        assert delivery.receive_count == 1
        (held, _) = self.queues.peek(queue.name)
        assert (held.state, held.owner, held.receive_count) == ("in_flight", "me", 1)
        assert held.visible_at_ms == delivery.received_at_ms + VISIBLE

    def test_pages_follow_one_another(self) -> None:
        queue, other = self.queue(), self.queue("other")
        ids = []
        for number in range(5):
            ids += self.ids(queue, f"{number}")
            self.send(other, "not this one")
        self.delete(queue, self.one(queue))
        assert self.peeked(queue, limit=2) == ["1", "2"]
        assert self.peeked(queue, limit=2, after=ids[2]) == ["3", "4"]
        assert self.peeked(queue, after=ids[0]) == ["1", "2", "3", "4"]
        assert self.peeked(queue, after=ids[4]) == []
        assert "not a message id" in self.raises(errors.UsageError, lambda: self.queues.peek(queue.name, after=GONE))

    def test_messages_are_found_wherever_they_are(self) -> None:
        queue, dead = self.pair()
        first, second = self.ids(queue, "a", "b", key="k")
        self.move_aside(queue, self.one(queue))
        found = self.queues.find([second, GONE, first, "garbage"])
        assert [one.queue if one else None for one in found] == [queue.name, None, dead.name, None]
        assert found[2] is not None
        assert (found[2].reason, found[2].source) == (WRONG, queue.name)
        assert [one.message_id for one in self.queues.find_key("k")] == [first, second]
        assert len(self.queues.find_key("k", limit=1)) == 1
        assert self.queues.find_key("other") == []

    def test_what_has_expired_is_not_seen(self) -> None:
        queue = self.queue(retention_ms=MINUTE)
        (old,) = self.ids(queue, "a", key="k")
        self.later(MINUTE)
        assert self.peeked(queue) == []
        assert self.queues.find([old]) == [None]
        assert self.queues.find_key("k") == []


class TestEditing(Desk):
    def test_an_edit_changes_the_contents_and_nothing_else(self) -> None:
        queue, dead = self.pair()
        (message,) = self.ids(queue, "wrong", key="k", group="tenant")
        self.move_aside(queue, self.one(queue))
        (before,) = self.queues.peek(dead.name)
        assert self.queues.edit(message, Edit(body="right", attributes={"a": Attribute("v")}))
        (after,) = self.queues.peek(dead.name)
        assert (after.body, after.attributes) == ("right", {"a": Attribute("v")})
        assert (after.message_id, after.reason, after.group, after.sent_at_ms) == (
            before.message_id,
            before.reason,
            before.group,
            before.sent_at_ms,
        )

    def test_what_is_held_or_gone_is_not_edited(self) -> None:
        queue = self.queue()
        (message,) = self.ids(queue, "a")
        delivery = self.one(queue)
        assert not self.queues.edit(message, Edit(body="b", attributes={}))
        self.delete(queue, delivery)
        assert not self.queues.edit(message, Edit(body="b", attributes={}))
        assert not self.queues.edit(GONE, Edit(body="b", attributes={}))

    def test_only_what_was_given_back_until_later_is_woken(self) -> None:
        queue = self.queue()
        back, held = self.ids(queue, "back", "held")
        receipts = {one.message_id: one.receipt for one in queue.receive(2)}
        later = [(receipts[back], RetryIn(HOUR))]
        now_ms = self.clock.now_ms()
        self.engine.write(lambda one: settle_in(one, self.queues.row_in(one, queue.name), later, now_ms))
        (late,) = self.ids(queue, "late", delay_ms=MINUTE)
        assert self.queues.wake([back, held, late, GONE]) == [True, False, False, False]
        assert self.bodies(queue) == ["back"]

    def test_an_edit_the_queue_would_not_accept(self) -> None:
        queue = self.queue(message_bytes_max=1_024)
        (message,) = self.ids(queue, "a")
        text = self.raises(errors.UsageError, lambda: self.queues.edit(message, Edit(body="x" * 1_025, attributes={})))
        assert "shorter than 1024 bytes" in text
        assert self.peeked(queue) == ["a"]

    def test_an_edit_on_a_fifo_queue_keeps_its_deduplication_id(self) -> None:
        queue = self.queue("orders.fifo", content_dedup=True)
        (message,) = self.ids(queue, "a", group="g")
        (before,) = self.queues.peek(queue.name)
        assert self.queues.edit(message, Edit(body="b", attributes={}))
        (after,) = self.queues.peek(queue.name)
        assert (after.body, after.dedup_id) == ("b", before.dedup_id)
        assert self.one(queue).dedup_id == before.dedup_id


class TestMoving(Desk):
    def test_a_move_makes_a_new_message(self) -> None:
        queue, dead = self.pair()
        (old,) = self.ids(queue, "a", key="k", trace="t", attributes={"x": Attribute("v")}, group="tenant")
        self.move_aside(queue, self.one(queue))
        self.later(DAY)
        (moved,) = self.queues.move([(old, None, None)])
        assert moved is not None
        assert (moved.message_id, moved.queue) == (old, queue.name)
        assert moved.new_message_id != old
        delivery = self.one(queue)
        assert (delivery.message_id, delivery.receive_count) == (moved.new_message_id, 1)
        assert (delivery.body, delivery.key, delivery.trace, delivery.group) == ("a", "k", "t", "tenant")
        assert (delivery.source, delivery.reason, delivery.sent_at_ms) == (None, None, self.clock.now_ms())
        assert self.counts(dead) == (0, 0, 0)
        assert self.queues.move([(old, None, None), (GONE, None, None)]) == [None, None]

    def test_the_only_message_of_a_group_goes_to_the_end_of_its_own_queue(self) -> None:
        queue, other = self.queue("orders.fifo", content_dedup=True), self.queue("other.fifo", content_dedup=True)
        (message,) = self.ids(queue, "a", group="g")
        (moved,) = self.queues.move([(message, queue.name, None)])
        assert moved is not None
        self.ids(other, "b", group="h")
        self.ids(queue, "c", group="g")
        assert self.bodies(other) == ["b"]
        first = self.one(queue)
        assert (first.body, first.group, first.message_id) == ("a", "g", moved.new_message_id)
        assert self.bodies(queue) == []
        assert queue.delete([first.receipt]) == [True]
        assert self.bodies(queue) == ["c"]

    def test_an_edited_copy_to_another_queue(self) -> None:
        queue, other = self.queue(), self.queue("other", delay_ms=SECOND)
        (message,) = self.ids(queue, "a")
        (moved,) = self.queues.move([(message, "other", Edit(body="b", attributes={}))])
        assert isinstance(moved, Moved)
        assert self.counts(other) == (0, 0, 1)
        self.later(SECOND)
        assert self.bodies(other) == ["b"]

    def test_what_somebody_holds_is_not_moved(self) -> None:
        queue, _ = self.queue(), self.queue("other")
        (message,) = self.ids(queue, "a")
        self.one(queue)
        assert self.queues.move([(message, "other", None)]) == [None]

    def test_moves_that_cannot_be(self) -> None:
        queue = self.queue()
        self.queue("other.fifo")
        self.queue("small", message_bytes_max=1_024)
        first, second = self.ids(queue, "a", "b")
        big = Edit(body="x" * 1_025, attributes={})
        for kind, move, words in (
            (errors.UsageError, (second, None, None), "nowhere to send it back"),
            (errors.NotFoundError, (second, "nobody", None), "There is no queue 'nobody'"),
            (errors.UsageError, (second, "other.fifo", None), "FIFO"),
            (errors.UsageError, (second, "small", big), "shorter than 1024"),
        ):
            moves = [(first, "small", None), move]
            text = self.raises(kind, lambda moves=moves: self.queues.move(moves))  # type: ignore[misc]
            assert words in text
            assert sorted(self.peeked(queue)) == ["a", "b"]

    def test_a_fifo_redrive_within_five_minutes_is_not_swallowed(self) -> None:
        queue, dead = self.pair("orders.fifo")
        ids = [self.ids(queue, f"a{n}", group="a", dedup_id=f"d{n}")[0] for n in range(3)]
        for _ in ids:
            self.move_aside(queue, self.one(queue))
        assert self.bodies(dead, 1) == ["a0"]
        self.later(VISIBLE)
        moved = self.queues.move([(message, None, None) for message in ids])
        assert None not in moved
        received = self.receive(queue)
        assert [one.body for one in received] == ["a0", "a1", "a2"]
        assert [one.dedup_id for one in received] == ids
        assert self.counts(dead) == (0, 0, 0)

    def test_removing_by_id(self) -> None:
        queue = self.queue("orders.fifo")
        ids = [self.ids(queue, f"a{n}", group="a", dedup_id=f"d{n}")[0] for n in range(3)]
        self.one(queue)
        assert self.queues.remove([ids[0], ids[0], GONE, "garbage"]) == [True, False, False, False]
        assert self.bodies(queue) == ["a1", "a2"]
        assert self.queues.remove(ids[1:]) == [True, True]
        assert self.send(queue, "a", group="a", dedup_id="d9")
        assert self.bodies(queue) == ["a"]


class TestMoveTasks(Desk):
    def letters(self, count: int, name: str = "orders") -> tuple[Any, Any]:
        queue, dead = self.pair(name, receives_max=1)
        for number in range(count):
            fifo = name.endswith(".fifo")
            options = {"group": f"g{number % 2}", "dedup_id": f"d{number}"} if fifo else {}
            self.send(queue, f"{number:03d}", **options)
        while deliveries := self.receive(queue):
            assert queue.move_aside([(one.receipt, MoveTo("dead-letter", WRONG)) for one in deliveries])
        return queue, dead

    def test_a_task_moves_everything_back(self) -> None:
        queue, dead = self.letters(25)
        task = self.queues.start_move(dead.name)
        assert (task.status, task.to_move, task.moved, task.to) == ("RUNNING", 25, 0, None)
        assert self.queues.step_moves() == 25
        (task,) = self.queues.moves(dead.name)
        assert (task.status, task.moved, task.failure) == ("COMPLETED", 25, None)
        assert self.counts(queue) == (25, 0, 0)
        assert self.one(queue).receive_count == 1
        assert self.queues.step_moves() == 0

    def test_each_goes_back_to_its_own_source(self) -> None:
        first, dead = self.letters(2)
        second = self.queue("second", dead_letter=dead.name, receives_max=1)
        self.send(second, "s")
        self.move_aside(second, self.one(second))
        self.queues.start_move(dead.name)
        self.queues.step_moves()
        assert (self.counts(first), self.counts(second)) == ((2, 0, 0), (1, 0, 0))

    def test_the_rate_is_kept(self) -> None:
        queue, dead = self.letters(25)
        self.queues.start_move(dead.name, per_second_max=10)
        moved = [self.queues.step_moves()]
        for _ in range(4):
            self.later(SECOND // 2)
            moved.append(self.queues.step_moves())
            assert self.queues.step_moves() == 0
        assert moved == [1, 5, 5, 5, 5]
        self.later(SECOND)
        assert self.queues.step_moves() == 4
        assert self.queues.moves(dead.name)[0].status == "COMPLETED"
        assert self.counts(queue) == (25, 0, 0)

    def test_cancelling_keeps_what_moved(self) -> None:
        queue, dead = self.letters(25)
        task = self.queues.start_move(dead.name, queue.name, per_second_max=5)
        self.later(SECOND)
        assert self.queues.step_moves() == 6
        assert self.queues.cancel_move(task.handle).status == "CANCELLED"
        self.later(MINUTE)
        assert self.queues.step_moves() == 0
        assert (self.counts(queue), self.counts(dead)) == ((6, 0, 0), (19, 0, 0))
        assert "CANCELLED" in self.raises(errors.UsageError, lambda: self.queues.cancel_move(task.handle))
        assert "Task does not exist." in self.raises(errors.NotFoundError, lambda: self.queues.cancel_move("nothing"))
        again = self.queues.start_move(dead.name)
        assert [one.handle for one in self.queues.moves(dead.name)] == [again.handle, task.handle]

    def test_fifo_groups_come_back_in_order(self) -> None:
        queue, dead = self.letters(9, "orders.fifo")
        self.queues.start_move(dead.name)
        assert self.queues.step_moves() == 9
        received = self.receive(queue)
        for group in ("g0", "g1"):
            bodies = [one.body for one in received if one.group == group]
            assert bodies == sorted(bodies)
        assert len(received) == 9

    def test_what_comes_back_while_it_runs_stays_for_the_next_task(self) -> None:
        queue, dead = self.letters(3)
        self.queues.start_move(dead.name, per_second_max=1)
        self.queues.step_moves()
        self.move_aside(queue, self.one(queue))
        self.later(MINUTE)
        assert self.queues.step_moves() == 2
        assert self.queues.moves(dead.name)[0].status == "COMPLETED"
        assert self.counts(dead) == (1, 0, 0)

    def test_messages_that_are_held_stay(self) -> None:
        _, dead = self.letters(3)
        self.one(dead)
        assert self.queues.start_move(dead.name).to_move == 2
        assert self.queues.step_moves() == 2
        assert self.queues.moves(dead.name)[0].status == "COMPLETED"
        assert self.counts(dead) == (0, 1, 0)

    def test_messages_without_a_source_are_named(self) -> None:
        queue, dead = self.letters(1)
        self.send(dead, "sent here", attributes={"source": Attribute("not this")})
        self.queues.start_move(dead.name)
        assert self.queues.step_moves() == 1
        (task,) = self.queues.moves(dead.name)
        assert task.status == "FAILED"
        assert "1 messages were sent to 'orders-dead' directly" in str(task.failure)
        self.queues.start_move(dead.name, queue.name)
        assert self.queues.step_moves() == 1
        assert self.counts(queue) == (2, 0, 0)

    def test_a_group_that_stops_while_a_task_runs_keeps_its_dead_letters(self) -> None:
        """Whoever began it: a command, or StartMessageMoveTask over the server."""
        queue, dead = self.letters(9, "orders.fifo")  # g0: 000 002 004 006 008
        self.queues.start_move(dead.name, per_second_max=1)
        assert self.queues.step_moves() == 1
        state = SqliteState(self.engine)
        flags = [Change(group_flag(name, group), b"id", 0) for name, group in (("orders.fifo", "g0"), ("other", "g1"))]
        assert state.put(flags) == [True, True]
        self.later(MINUTE)
        assert self.queues.step_moves() == 4
        assert self.bodies(queue) == ["000", "001", "003", "005", "007"]
        (task,) = self.queues.moves(dead.name)
        assert (task.status, task.moved) == ("FAILED", 5)
        assert "4 messages of stopped groups ('g0' of 'orders.fifo')" in str(task.failure)
        assert self.queues.start_move(dead.name).to_move == 0
        assert self.queues.step_moves() == 0
        assert self.queues.moves(dead.name)[0].status == "FAILED"
        assert state.put([Change(flags[0].name, None, 1)]) == [True]
        self.queues.start_move(dead.name)
        assert self.queues.step_moves() == 4
        assert self.queues.moves(dead.name)[0].status == "COMPLETED"

    def test_a_task_to_a_named_queue_goes_by_the_groups_of_that_queue(self) -> None:
        _, dead = self.letters(4, "orders.fifo")
        target = self.queue("target.fifo")
        assert SqliteState(self.engine).put([Change(group_flag(target.name, "g1"), b"id", 0)]) == [True]
        assert self.queues.start_move(dead.name, target.name).to_move == 2
        assert self.queues.step_moves() == 2
        assert self.bodies(target) == ["000", "002"]
        assert "2 messages of stopped groups ('g1' of 'target.fifo')" in str(self.queues.moves(dead.name)[0].failure)

    def test_a_target_that_vanishes(self) -> None:
        _, dead = self.letters(1)
        self.queue("target")
        self.queues.start_move(dead.name, "target")
        self.queues.drop("target")
        assert self.queues.step_moves() == 0
        (task,) = self.queues.moves(dead.name)
        assert (task.status, task.failure) == ("FAILED", "AWS.SimpleQueueService.NonExistentQueue")

    def test_tasks_that_cannot_be(self) -> None:
        queue, dead = self.letters(1)
        self.queue("other.fifo")
        for kind, arguments, words in (
            (errors.UsageError, (queue.name,), "Source queue must be configured as a Dead Letter Queue."),
            (errors.NotFoundError, ("nobody",), "There is no queue"),
            (errors.NotFoundError, (dead.name, "nobody"), "There is no queue"),
            (errors.UsageError, (dead.name, dead.name), "moved to itself"),
            (errors.UsageError, (dead.name, "other.fifo"), "FIFO"),
            (errors.UsageError, (dead.name, None, 0), "1 to 500"),
            (errors.UsageError, (dead.name, None, 501), "1 to 500"),
        ):
            text = self.raises(kind, lambda arguments=arguments: self.queues.start_move(*arguments))  # type: ignore[misc]
            assert words in text
        self.queues.start_move(dead.name)
        text = self.raises(errors.UsageError, lambda: self.queues.start_move(dead.name))
        assert "There is already a task running." in text


class TestWholeQueues(Desk):
    def test_a_purge_deletes_all_and_forgets_deduplication(self) -> None:
        queue = self.queue("orders.fifo", content_dedup=True)
        self.send(queue, "a", "b", group="g")
        self.send(queue, "later", group="g", run_at_ms=self.clock.now_ms() + DAY)
        other = self.queue("other")
        self.send(other, "o")
        self.one(queue)
        assert self.queues.purge(queue.name) == 3
        assert (self.counts(queue), self.counts(other)) == ((0, 0, 0), (1, 0, 0))
        assert not self.send(queue, "a", group="g")[0].duplicate
        self.later(MINUTE - 1)
        text = self.raises(errors.UsageError, lambda: self.queues.purge(queue.name))
        assert "Only one PurgeQueue operation on orders.fifo is allowed every 60 seconds." in text
        self.later(1)
        assert self.queues.purge(queue.name) == 1

    def test_a_dropped_queue_is_gone_with_all_that_was_in_it(self) -> None:
        queue, dead = self.pair()
        self.send(queue, "a")
        text = self.raises(errors.UsageError, lambda: self.queues.drop(dead.name))
        assert "orders would send messages there" in text
        self.queues.drop(queue.name)
        self.queues.drop(dead.name)
        assert self.queues.settings() == []
        again = self.queue()
        assert self.counts(again) == (0, 0, 0)

    def test_changed_settings_apply_at_once(self) -> None:
        queue = self.queue()
        self.send(queue, "a")
        self.queues.change(QueueSettings(name=queue.name, visibility_ms=SECOND, retention_ms=MINUTE))
        assert self.one(queue).visible_ms == SECOND
        self.later(MINUTE)
        assert self.counts(queue) == (0, 0, 0)
        self.queues.change(QueueSettings(name=queue.name, retention_ms=DAY))
        assert self.counts(queue) == (0, 0, 0)
        assert self.queues.settings() == [QueueSettings(name=queue.name, retention_ms=DAY)]

    def test_a_changed_delay_reaches_messages_that_wait_on_fifo_only(self) -> None:
        queue, fifo = (
            self.queue(delay_ms=HOUR // 4),
            self.queue("o.fifo", delay_ms=HOUR // 4, content_dedup=True),
        )
        self.send(queue, "a")
        self.send(fifo, "a", group="g")
        for one in self.queues.settings():
            self.queues.change(QueueSettings(name=one.name, fifo=one.fifo, delay_ms=SECOND, content_dedup=one.fifo))
        self.later(SECOND)
        assert self.bodies(queue) == []
        assert self.bodies(fifo) == ["a"]

    def test_a_shorter_retention_opens_a_group_behind_an_expired_head(self) -> None:
        queue = self.queue("o.fifo", content_dedup=True)
        self.send(queue, "a", group="g")
        self.later(HOUR)
        self.send(queue, "b", group="g")
        self.receive(queue, 1, 12 * HOUR)
        assert self.bodies(queue) == []
        self.queues.change(QueueSettings(name=queue.name, fifo=True, content_dedup=True, retention_ms=HOUR))
        assert self.bodies(queue) == ["b"]

    def test_changes_that_cannot_be(self) -> None:
        queue, dead = self.pair()
        for kind, settings, words in (
            (errors.NotFoundError, QueueSettings(name="nobody"), "There is no queue"),
            (errors.UsageError, QueueSettings(name=queue.name, visibility_ms=-1), "visibility_ms=-1"),
            (
                errors.UsageError,
                QueueSettings(name=dead.name, retention_ms=MINUTE),
                "keeps messages for 60 s",
            ),
            (
                errors.UsageError,
                QueueSettings(name=dead.name, retention_ms=14 * DAY, redrive_allow="denyAll"),
                "take",
            ),
            (errors.NotFoundError, QueueSettings(name=queue.name, held="nobody"), "There is no queue"),
        ):
            text = self.raises(kind, lambda settings=settings: self.queues.change(settings))  # type: ignore[misc]
            assert words in text

    def test_depth_by_name(self) -> None:
        queue = self.queue()
        self.send(queue, "a")
        assert self.queues.depth(queue.name) == queue.depth()


class TestSweeping(Desk):
    def rows(self, table: str) -> int:
        count: int = self.engine.read(
            lambda connection: connection.execute(f"SELECT count(*) FROM onefold_{table}").fetchone()[0]
        )
        return count

    def test_it_gives_back_what_time_took(self) -> None:
        queue = self.queue("o.fifo", retention_ms=MINUTE, content_dedup=True)
        standard = self.queue(retention_ms=MINUTE)
        for place in (queue, standard):
            options = {"group": "g"} if place is queue else {}
            self.send(place, "a", **options)
            self.later(1)
            self.send(place, "b", **options)
        self.one(queue)
        self.one(standard)
        self.send(standard, "delayed", delay_ms=15 * MINUTE)
        self.send(queue, "scheduled", group="h", run_at_ms=self.clock.now_ms() + 5 * MINUTE)
        self.later(MINUTE)
        assert self.queues.sweep() == 5
        assert [self.rows(table) for table in ("message", "waiting", "received", "group", "dedup")] == [
            1,
            1,
            0,
            0,
            2,
        ]
        self.later(4 * MINUTE)
        assert self.queues.sweep() == 3
        assert [self.rows(table) for table in ("message", "scheduled", "group", "dedup")] == [1, 0, 1, 1]
        assert self.queues.sweep() == 0

    def test_it_goes_on_where_there_is_much(self) -> None:
        queue = self.queue(retention_ms=MINUTE)
        for _ in range(5):
            self.send(queue, *["x"] * 500)
        self.later(MINUTE)
        assert self.queues.sweep() == 2_500
        assert self.rows("message") == 0


class TestOrderAndSettling(Desk):
    def test_fresh_messages_come_in_the_order_of_their_sending(self) -> None:
        queue = self.queue()
        self.send(queue, "delayed", delay_ms=SECOND)
        self.send(queue, "a", "b", "c")
        assert self.bodies(queue, 2) == ["a", "b"]
        self.later(SECOND)
        assert self.bodies(queue) == ["c", "delayed"]

    def test_what_comes_back_goes_first_until_the_third_time(self) -> None:
        """DG sqs-dead-letter-queues: received three times and more, a message moves to the back of the queue."""
        queue = self.queue()
        self.send(queue, "again", *"abc")
        for _ in range(3):
            assert self.bodies(queue, 1) == ["again"]
            self.later(VISIBLE)
        assert self.bodies(queue, 2) == ["a", "b"]
        assert self.bodies(queue, 2) == ["c", "again"]

    def test_a_batch_is_settled_each_in_its_way(self) -> None:
        queue, dead = self.pair()
        held = self.queue("orders-held")
        self.queues.change(QueueSettings(name=queue.name, dead_letter=dead.name, receives_max=9, held=held.name))
        self.send(queue, *"abcdef")
        receipts = [one.receipt for one in self.receive(queue)]
        unknown = Reason(kind="unknown", summary="who knows")
        fates = [
            Ack(),
            RetryIn(0),
            MoveTo("dead-letter", WRONG),
            MoveTo("held", unknown),
            Leave(),
            RetryIn(MINUTE),
        ]
        now_ms = self.clock.now_ms()
        answers = self.engine.write(
            lambda connection: settle_in(
                connection,
                self.queues.row_in(connection, queue.name),
                list(zip(receipts, fates, strict=True)),
                now_ms,
            )
        )
        assert answers == [True] * 6
        assert (self.counts(queue), self.counts(dead), self.counts(held)) == ((1, 2, 0), (1, 0, 0), (1, 0, 0))
        assert self.one(held).reason == unknown
        assert self.bodies(queue) == ["b"]

    def test_a_backoff_outlives_its_owner(self) -> None:
        queue = self.queue()
        self.send(queue, "a", "b")
        first, _ = self.receive(queue)
        now_ms = self.clock.now_ms()
        self.engine.write(
            lambda connection: settle_in(
                connection,
                self.queues.row_in(connection, queue.name),
                [(first.receipt, RetryIn(MINUTE))],
                now_ms,
            )
        )
        assert self.engine.write(lambda connection: end_visibilities_in(connection, "me", now_ms)) == 1
        assert self.bodies(queue) == ["b"]
        self.later(MINUTE - 1)
        assert "a" not in self.bodies(queue)
        self.later(1)
        assert "a" in self.bodies(queue)

    def test_a_dead_owner_frees_its_groups(self) -> None:
        queue = self.queue("o.fifo", content_dedup=True)
        self.send(queue, "a1", "a2", group="a")
        first, _ = self.receive(queue)
        now_ms = self.clock.now_ms()
        assert self.engine.write(lambda connection: end_visibilities_in(connection, "other", now_ms)) == 0
        assert self.engine.write(lambda connection: end_visibilities_in(connection, "me", now_ms)) == 2
        assert self.delete(queue, first) == [False]
        assert self.bodies(queue) == ["a1", "a2"]

    def test_ids_are_never_used_twice(self) -> None:
        queue = self.queue()
        seen = set()
        for _ in range(3):
            seen.update(self.ids(queue, "a", "b"))
            self.delete(queue, *self.receive(queue))
        assert len(seen) == 6
