"""Waiting for another's run must not carry a message into the dead-letter queue by its receive count (design 11.4)."""

from __future__ import annotations

import pytest

from onefold import errors
from onefold.contracts.entries import Entry, Sent
from onefold.contracts.queue import RetryIn
from onefold.contracts.settings import QueueSettings
from onefold.contracts.verbs import Queue
from onefold.engines.aws.sqs_admin import SqsQueues
from onefold.manual_clock import ManualClock


@pytest.fixture
def orders(queues: SqsQueues) -> Queue:
    queues.create(QueueSettings(name="orders-dead", retention_ms=14 * 86_400_000))
    queues.create(QueueSettings(name="orders", dead_letter="orders-dead", receives_max=3))
    return queues.open("orders")


def wait(orders: Queue, clock: ManualClock, *, uncounted: bool = True) -> str | None:
    """Receive the message, let it wait a minute, and say which id it had."""
    found = orders.receive(1)
    if not found:
        return None
    assert orders.set_visible_in([(found[0].receipt, RetryIn(60_000, uncounted=uncounted))]) == [True]
    clock.advance(61_000)
    return found[0].message_id


def test_what_only_waits_never_dies(orders: Queue, queues: SqsQueues, clock: ManualClock) -> None:
    (sent,) = orders.send([Entry(body="o-1", key="k-1", group="tenant-7")])
    assert isinstance(sent, Sent)
    ids = [wait(orders, clock) for _ in range(7)]
    assert None not in ids
    assert ids[:2] == [sent.message_id] * 2
    assert len(set(ids)) > 2  # copies: each with a receive count of its own
    (last,) = orders.receive(1)
    assert (last.body, last.key, last.group) == ("o-1", "k-1", "tenant-7")
    assert orders.depth().visible == orders.depth().delayed == 0
    assert queues.depth("orders-dead").visible == 0


def test_what_was_tried_is_counted(orders: Queue, queues: SqsQueues, clock: ManualClock) -> None:
    orders.send([Entry(body="o-1")])
    assert [wait(orders, clock, uncounted=False) for _ in range(4)][3] is None
    assert queues.depth("orders-dead").visible == 1


def test_without_a_dead_letter_queue_nothing_is_copied(queues: SqsQueues, clock: ManualClock) -> None:
    queues.create(QueueSettings(name="plain"))
    plain = queues.open("plain")
    plain.send([Entry(body="o-1")])
    assert len({wait(plain, clock) for _ in range(5)}) == 1


def test_a_message_of_a_fifo_queue_keeps_its_place(queues: SqsQueues, clock: ManualClock) -> None:
    queues.create(QueueSettings(name="dead.fifo", fifo=True, retention_ms=14 * 86_400_000))
    queues.create(QueueSettings(name="orders.fifo", fifo=True, dead_letter="dead.fifo", receives_max=3))
    fifo = queues.open("orders.fifo")
    fifo.send([Entry(body="o-1", group="a", dedup_id="1"), Entry(body="o-2", group="a", dedup_id="2")])
    ids = {wait(fifo, clock) for _ in range(2)}
    assert len(ids) == 1


def test_a_malformed_receipt_beside_it_changes_nothing(orders: Queue) -> None:
    orders.send([Entry(body="o-1")])
    for _ in range(2):
        (found,) = orders.receive(1)
        orders.set_visible_in([(found.receipt, RetryIn(0))])
    (found,) = orders.receive(1)
    with pytest.raises(errors.UsageError, match="Nothing was changed"):
        orders.set_visible_in([(found.receipt, RetryIn(60_000, uncounted=True)), ("malformed", RetryIn(0))])
    assert (orders.depth().delayed, orders.delete([found.receipt])) == (0, [True])


def test_one_that_is_named_twice_is_replaced_once(orders: Queue, clock: ManualClock) -> None:
    orders.send([Entry(body="o-1")])
    assert wait(orders, clock) is not None
    (found,) = orders.receive(1)
    assert orders.set_visible_in([(found.receipt, RetryIn(60_000, uncounted=True))] * 2) == [True, True]
    assert (orders.depth().delayed, orders.depth().in_flight) == (1, 0)
