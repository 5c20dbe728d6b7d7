"""What the plans of faults rely on, carried out on the real engine: redelivery as told, order kept, nothing lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onefold.contracts.entries import Entry
from onefold.contracts.queue import Delivery, RetryIn
from onefold.contracts.settings import QueueSettings
from onefold.contracts.verbs import Queue
from onefold.engines.sqlite.admin import SqliteQueues
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.migrations import migrate
from onefold.entropy import SeededEntropy
from onefold.local.fault_rules import parse_faults
from onefold.local.faults import FaultInjector
from onefold.manual_clock import ManualClock

VISIBLE_MS = 30_000


class Desk:
    """The four verbs with faults around them, as the local queues carry them out."""

    def __init__(self, *options: str) -> None:
        self.clock = ManualClock()
        self.engine = Database(":memory:", self.clock)
        migrate(self.engine)
        self.queues = SqliteQueues(self.engine, entropy=SeededEntropy(1))
        self.faults = FaultInjector(parse_faults([*options, "seed=11"]), SeededEntropy(1))

    def create(self, name: str, **settings: object) -> Queue:
        self.queues.create(QueueSettings(name=name, fifo=name.endswith(".fifo"), **settings))  # type: ignore[arg-type]
        return self.queues.open(name)

    def send(self, queue: Queue, *bodies: str, group: str | None = None) -> None:
        entries = [Entry(body=body, group=group, dedup_id=body if group else None) for body in bodies]
        queue.send(self.faults.sending(queue.name, entries)[0])

    def receive(self, queue: Queue, count_max: int = 10) -> list[Delivery]:
        copies = self.faults.copies(queue.name, count_max, self.clock.now_ms())
        if len(copies) == count_max:
            return copies
        fresh = queue.receive(count_max - len(copies))
        for delivery, plan in zip(fresh, self.faults.received(queue.name, fresh), strict=False):
            if plan is not None and plan.expires_in_ms is not None:
                assert queue.set_visible_in([(delivery.receipt, RetryIn(plan.expires_in_ms))]) == [True]
        return copies + fresh

    def delete(self, queue: Queue, delivery: Delivery) -> bool:
        (plan,) = self.faults.deleting(queue.name, [delivery.receipt]) or [None]
        if plan is None:
            return queue.delete([delivery.receipt])[0]
        if plan.how == "repeat":
            queue.set_visible_in([(delivery.receipt, RetryIn(0))])
        return True

    def drain(self, queue: Queue, steps: int = 2_000) -> list[str]:
        """Receive and delete until nothing is left, time passing; the bodies in the order they were given."""
        given = []
        for _ in range(steps):
            for delivery in self.receive(queue):
                given.append(delivery.body)
                self.delete(queue, delivery)
            self.clock.advance(500)
        depth = queue.depth()
        assert (depth.visible, depth.in_flight, depth.delayed) == (0, 0, 0)
        return given


@pytest.fixture
def desks() -> Iterator[list[Desk]]:
    made: list[Desk] = []
    yield made
    for desk in made:
        desk.engine.close()


BODIES = [f"b-{number}" for number in range(60)]


@pytest.mark.parametrize(
    ("option", "share"),
    [("lose-ack=0.25", 0.25 / 0.75), ("repeat-deleted=0.25", 0.25 / 0.75), ("deliver=3", 2.0), ("delay=1s-5s", 0.0)],
)
def test_every_message_comes_and_duplicates_come_at_their_rate(desks: list[Desk], option: str, share: float) -> None:
    desks.append(desk := Desk(option))
    queue = desk.create("orders")
    desk.send(queue, *BODIES)
    given = desk.drain(queue)
    assert set(given) == set(BODIES)
    assert len(given) / len(BODIES) - 1 == pytest.approx(share, abs=0.2)


def test_reordered_messages_all_come_in_another_order(desks: list[Desk]) -> None:
    desks.append(desk := Desk("reorder=20s"))
    queue = desk.create("orders")
    desk.send(queue, *BODIES)
    given = desk.drain(queue)
    assert sorted(given) == sorted(BODIES)
    assert given != BODIES


def test_the_receipt_of_a_copy_deletes_and_deleting_again_is_harmless(desks: list[Desk]) -> None:
    desks.append(desk := Desk("deliver=2"))
    queue = desk.create("orders")
    desk.send(queue, "b")
    (first,), (copy,) = desk.receive(queue), desk.receive(queue)
    assert (copy.message_id, copy.receipt, copy.receive_count) == (first.message_id, first.receipt, 2)
    assert desk.delete(queue, copy)
    assert desk.delete(queue, first)
    assert desk.drain(queue) == []


def test_a_lost_delete_comes_back_when_its_visibility_ends(desks: list[Desk]) -> None:
    desks.append(desk := Desk("lose-ack=1,times=1"))
    queue = desk.create("orders")
    desk.send(queue, "b")
    (first,) = desk.receive(queue)
    assert desk.delete(queue, first)
    desk.clock.advance(VISIBLE_MS - 1)
    assert desk.receive(queue) == []
    desk.clock.advance(1)
    (again,) = desk.receive(queue)
    assert again.receive_count == 2


def test_a_repeated_delete_comes_back_at_once(desks: list[Desk]) -> None:
    desks.append(desk := Desk("repeat-deleted=1,times=1"))
    queue = desk.create("orders")
    desk.send(queue, "b")
    (first,) = desk.receive(queue)
    assert desk.delete(queue, first)
    (again,) = desk.receive(queue)
    assert again.message_id == first.message_id


def test_an_early_expiry_ends_before_its_time_and_a_heartbeat_mends_it(desks: list[Desk]) -> None:
    desks.append(desk := Desk("expire-early=1,times=2"))
    queue = desk.create("orders")
    desk.send(queue, "b")
    (first,) = desk.receive(queue)
    assert first.visible_ms == VISIBLE_MS
    desk.clock.advance(VISIBLE_MS - 1)
    (again,) = desk.receive(queue)
    assert queue.set_visible_in([(again.receipt, RetryIn(VISIBLE_MS))]) == [True]
    desk.clock.advance(VISIBLE_MS - 1)
    assert desk.receive(queue) == []


def test_a_fifo_group_keeps_its_order_whatever_is_set(desks: list[Desk]) -> None:
    desks.append(
        desk := Desk("deliver=3", "repeat-deleted=0.5", "reorder=9s", "delay=1s-9s", "lose-ack=0.5", "expire-early=0.5")
    )
    queue = desk.create("orders.fifo")
    for body in BODIES:
        desk.send(queue, body, group="g")
    assert desk.drain(queue) == BODIES


def test_an_early_expiry_on_fifo_gives_the_same_message_again_not_a_later_one(desks: list[Desk]) -> None:
    desks.append(desk := Desk("expire-early=1,times=3"))
    queue = desk.create("orders.fifo")
    desk.send(queue, "b-0", group="g")
    desk.send(queue, "b-1", group="g")
    for _ in range(3):
        (delivery,) = desk.receive(queue, count_max=1)
        assert delivery.body == "b-0"
        desk.clock.advance(VISIBLE_MS - 1)


def test_a_dead_letter_goes_back_to_where_it_came_from(desks: list[Desk]) -> None:
    desks.append(desk := Desk("redrive=1:5s"))
    desk.create("orders-dead", retention_ms=1_209_600_000)
    queue = desk.create("orders", dead_letter="orders-dead", receives_max=1)
    desk.send(queue, "b")
    (first,) = desk.receive(queue)
    desk.clock.advance(VISIBLE_MS)
    assert desk.receive(queue) == []
    plan = desk.faults.dead_lettered("orders-dead")
    assert plan is not None
    assert 0 <= plan.redrive_in_ms < 5_000
    (moved,) = desk.queues.move([(first.message_id, None, None)])
    assert moved is not None
    (again,) = desk.receive(queue)
    assert (again.body, again.message_id, again.receive_count) == ("b", moved.new_message_id, 1)
