"""What lies in the buffers, whose turn it is, and how much goes to a lane at once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

import onefold
from onefold import errors
from onefold.contracts.queue import Delivery
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.options import WorkerSettings
from onefold.runner.execution import InFlight, Unit
from onefold.runner.poll import GATHER_MS, IDLE_POLL_MS, OVER_LIMIT_MS, Feed, Poller
from onefold.runner.setup import make_runner
from onefold.runtime.events import Sinks
from tests.run.workshop import PATIENCE_S, Workshop, working


class Order(msgspec.Struct):
    id: str


class Shelf:
    """A queue that hands out what it was given, and counts how often it was asked."""

    def __init__(self, name: str, count: int = 0) -> None:
        self.name, self.asked = name, list[int]()
        self.faults: list[Exception] = []
        self._stock = [
            Delivery(
                queue=name, message_id=f"{name}-{number}", receipt=f"{name}-{number}", body="{}", attributes={},
                receive_count=1, sent_at_ms=0, first_received_at_ms=0, received_at_ms=0, visible_ms=0,
            )
            for number in range(count)
        ]  # fmt: skip

    def receive(self, count_max: int, _visible_ms: int) -> list[Delivery]:
        self.asked.append(count_max)
        if self.faults:
            raise self.faults.pop(0)
        taken, self._stock = self._stock[:count_max], self._stock[count_max:]
        return taken


def poller(*shelves: Shelf, weights: dict[str, int] | None = None) -> tuple[Poller, InFlight, ManualClock]:
    hand, clock = InFlight(), ManualClock()
    queues: Sequence[Any] = shelves
    return Poller(queues, weights or {}, visible_ms=30_000, in_flight=hand, clock=clock), hand, clock


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    return [one.message_id for one in deliveries]


# -- pace --------------------------------------------------------------------------------------------------------


def test_a_feed_learns_how_many_runs_make_a_group_and_how_many_to_keep_ahead() -> None:
    queue: Any = Shelf("orders")
    feed = Feed(queue, 1)
    assert feed.group_size(100) == 1  # nothing is known yet: nobody is made to wait behind a long one

    feed.took(8, 0)
    assert (feed.group_size(100), feed.ahead(8, 800)) == (100, 800)
    for _ in range(8):
        feed.took(8, 8 * 2)
    assert (feed.group_size(100), feed.ahead(8, 800)) == (2, 80)
    feed.took(8, 8 * 60_000)
    assert (feed.group_size(100), feed.ahead(8, 16)) == (1, 0)  # another worker can have them sooner


# -- receiving ---------------------------------------------------------------------------------------------------


def test_a_buffer_is_refilled_when_it_is_half_empty_and_a_dry_queue_is_left_alone_for_a_while() -> None:
    shelf = Shelf("orders", 7)
    supply, hand, clock = poller(shelf)
    feed = supply.feeds["orders"]

    assert supply.refill(lambda _: 4) == 4
    assert supply.refill(lambda _: 4) == 0  # full
    assert supply.refill(lambda _: 20) == 3
    assert feed.dry
    assert supply.refill(lambda _: 20) == 0
    assert shelf.asked == [4, 16]  # the dry queue was not asked again
    clock.advance(IDLE_POLL_MS)
    supply.refill(lambda _: 20)
    assert shelf.asked == [4, 16, 13]
    assert len(hand) == 7


def test_a_queue_at_its_cap_stops_no_other() -> None:
    full, other = Shelf("full", 5), Shelf("other", 5)
    full.faults = [errors.OverLimitError("120000 in flight")]
    supply, _, clock = poller(full, other)

    assert supply.refill(lambda _: 5) == 5
    assert supply.refill(lambda _: 5) == 0
    clock.advance(OVER_LIMIT_MS)
    assert supply.refill(lambda _: 5) == 5


def test_a_wake_up_makes_every_look_due() -> None:
    class Rung:
        def wait(self, _timeout_s: float) -> bool:
            return True

    shelf = Shelf("orders")
    supply, _, _ = poller(shelf)
    supply.refill(lambda _: 5)
    supply.refill(lambda _: 5)
    assert len(shelf.asked) == 1
    supply.pause(Rung(), 1_000, lambda _: 5)
    supply.refill(lambda _: 5)
    assert len(shelf.asked) == 2


class Stream(Shelf):
    """A queue into which messages come one by one."""

    now_ms = 0

    def comes(self, count: int, *, sequence: str | None = None) -> None:
        sent = {"sent_at_ms": self.now_ms, "sequence": sequence}
        self._stock += [msgspec.structs.replace(one, **sent) for one in Shelf(self.name, count)._stock]

    def receive(self, count_max: int, visible_ms: int) -> list[Delivery]:
        found = super().receive(count_max, visible_ms)
        return [msgspec.structs.replace(one, received_at_ms=self.now_ms) for one in found]


def looks_in(poller: Poller, clock: ManualClock, stream: Stream, ms: int, *more: Poller, **options: Any) -> int:
    """How many looks there are in so many milliseconds, in each of which a message comes and wakes the workers."""
    before = len(stream.asked)
    for _ in range(ms):
        stream.now_ms = clock.monotonic_ms()
        stream.comes(1, **options)
        for one in (poller, *more):
            one.feeds[stream.name].due_at_ms = 0
            one.refill(lambda _: 100)
            one.withdraw()
        clock.advance(1)
    return len(stream.asked) - before


def test_a_steady_stream_is_looked_at_every_five_milliseconds() -> None:
    stream = Stream("orders")
    supply, _, clock = poller(stream)
    assert looks_in(supply, clock, stream, 11) == 11
    assert looks_in(supply, clock, stream, 100) <= 100 / GATHER_MS + 1
    assert len(stream._stock) < GATHER_MS  # all the others were received
    clock.advance(100)
    assert looks_in(supply, clock, stream, 10) == 10  # it had stopped: the next ones are received at once


def test_workers_that_share_a_steady_stream_pause_for_longer() -> None:
    stream, clock = Stream("orders"), ManualClock()
    queues: Sequence[Any] = [stream]
    first, *others = (Poller(queues, {}, visible_ms=30_000, in_flight=InFlight(), clock=clock) for _ in range(4))
    looks_in(first, clock, stream, 200, *others)
    assert looks_in(first, clock, stream, 400, *others) <= 0.6 * 4 * 400 / GATHER_MS
    looks_in(first, clock, stream, 100)  # the others have ended
    assert looks_in(first, clock, stream, 100) == 100 / GATHER_MS
    assert len(stream._stock) < 2 * GATHER_MS


def test_single_messages_bursts_backlogs_and_fifo_queues_are_looked_at_at_once() -> None:
    single = Stream("single")
    supply, _, clock = poller(single)
    for _ in range(20):
        assert looks_in(supply, clock, single, 1) == 1
        clock.advance(4)
    clock.advance(100)
    single.comes(90)  # at once
    assert looks_in(supply, clock, single, 2) == 2

    backlog = Stream("backlog", 10_000)
    supply, _, clock = poller(backlog)
    assert looks_in(supply, clock, backlog, 60) == 60

    fifo = Stream("orders.fifo")
    supply, _, clock = poller(fifo)
    assert looks_in(supply, clock, fifo, 100, sequence="1") == 100


def test_senders_do_not_wake_a_worker_that_gathers_and_has_nothing_in_hand() -> None:
    stream = Stream("orders")
    supply, hand, clock = poller(stream)
    looks_in(supply, clock, stream, 57)
    hand.over(Shelf("orders", 1)._stock)
    waited: list[int] = []

    class Woken:
        def wait(self, _timeout_s: float) -> bool:
            return True

    class Clock(ManualClock):
        def wait(self, waiter: Any, timeout_ms: float) -> bool:
            waited.append(int(timeout_ms))
            return bool(waiter.wait(0))

    supply._clock = quick = Clock()
    quick.advance(clock.monotonic_ms())
    left_ms = supply.feeds["orders"].gathers_until_ms - clock.monotonic_ms()
    assert left_ms > 0
    supply.feeds["orders"].due_at_ms = 1_000
    supply.pause(Woken(), 1_000, lambda _: 100)
    assert waited == [left_ms]
    assert supply.feeds["orders"].due_at_ms == 1_000  # not woken


def test_what_was_lost_in_the_buffer_is_not_begun() -> None:
    supply, hand, _ = poller(Shelf("orders", 3))
    supply.refill(lambda _: 3)
    hand.all()[0].let_go = True
    first = supply.first(supply.feeds["orders"])
    assert first is not None
    assert first.message_id == "orders-1"
    assert len(hand) == 2


def test_what_could_not_be_begun_comes_first_again_in_order() -> None:
    supply, hand, _ = poller(Shelf("a", 3), Shelf("b", 2))
    supply.refill(lambda _: 3)
    taken = [feed.buffer.popleft() for feed in supply.feeds.values() for _ in range(2)]
    hand.drop(taken)
    supply.put_back(hand.dropped())
    assert ids(supply.withdraw()) == ["a-0", "a-1", "a-2", "b-0", "b-1"]


def test_turns_follow_the_weights_and_are_mixed() -> None:
    supply, _, _ = poller(Shelf("a"), Shelf("b"), Shelf("c"), weights={"a": 3, "b": 2})
    feeds = list(supply.feeds.values())
    turns = [supply.turn_of(feeds).queue.name for _ in range(600)]
    assert Counter(turns) == {"a": 300, "b": 200, "c": 100}
    assert max(len(run) for run in "".join(turns).replace("b", " ").replace("c", " ").split()) <= 2


# -- choosing ----------------------------------------------------------------------------------------------------


@pytest.fixture
def app() -> Iterator[onefold.App]:
    app = onefold.App("shop", url="sqlite://:memory:", clock=ManualClock(), entropy=SeededEntropy(1))
    yield app
    app.close()


def test_a_run_whose_earlier_one_ended_with_its_process_is_performed_alone(app: onefold.App) -> None:
    queue, units = app.queue("orders"), list[int]()

    @app.job(queue, key="{id}", effect="repeatable")
    def ship(order: Order) -> None: ...

    ship.send_many([Order(f"o-{number}") for number in range(6)])
    runtime = app.runtime()
    other = make_runner(runtime, app.jobs, app.registry.job_of, lease_ms=1_000, sinks=Sinks(), history="off")
    assert len(other.begin(runtime.engine.queues.open("orders").receive(3, 1_000))) == 3  # and then it dies
    app._runtime.clock.advance(1_000)  # type: ignore[attr-defined]

    shop = Workshop(app, WorkerSettings(until_empty=True))
    submit = shop.worker._executors.plain.submit

    def counted(unit: Unit) -> None:
        units.append(len(unit.runs))
        submit(unit)

    shop.worker._executors.plain.submit = counted  # type: ignore[method-assign]
    for feed in shop.worker._poller.feeds.values():
        feed.took(8, 0)  # as after some quick runs: groups are large
    shop.start()
    assert shop.end().counts.completed == 6
    assert sorted(units) == [1, 1, 1, 3]
    assert len(shop.told.of("takeover")) == 3


def test_no_more_external_runs_are_begun_than_there_are_threads(app: onefold.App) -> None:
    queue = app.queue("orders")
    begun, release = threading.Semaphore(0), threading.Event()

    @app.job(queue, key="{id}")
    def ship(order: Order) -> None:
        begun.release()
        assert release.wait(PATIENCE_S)

    @app.job(queue, key="{id}", effect="repeatable")
    def label(order: Order) -> None: ...

    for number in range(20):  # both kinds on one queue
        ship.send(Order(f"o-{number}"))
        label.send(Order(f"l-{number}"))
    with working(app, threads=3, prefetch=40) as shop:
        for _ in range(3):
            assert begun.acquire(timeout=PATIENCE_S)
        statuses = app.runtime().engine.records.scan(status="in_progress")
        assert len([record for record in statuses if record.key.job == "ship"]) == 3
        release.set()
        shop.told.wait_for("completed", 40)


@pytest.mark.parametrize("name", ["orders", "orders.fifo"])
def test_what_was_purged_while_it_waited_in_a_worker_does_not_run(app: onefold.App, name: str) -> None:
    is_fifo = name.endswith(".fifo")
    queue = app.queue("orders", fifo=is_fifo)
    app._runtime.clock = clock = ManualClock()
    begun, release = threading.Semaphore(0), threading.Event()
    ran: list[str] = []

    @app.job(queue, key="{id}", group=(lambda _: "all") if is_fifo else None)
    def ship(order: Order) -> None:
        ran.append(order.id)
        begun.release()
        assert release.wait(PATIENCE_S)

    for number in range(5):
        ship.send(Order(f"o-{number}"))
    with working(app, threads=1, prefetch=10) as shop:
        assert begun.acquire(timeout=PATIENCE_S)
        while shop.worker._in_flight.counts().get("received") != 5:
            threading.Event().wait(0.002)
        clock.advance(1_000)  # less than until the next heartbeat, which would notice it, too
        assert app.runtime().engine.queues.purge(name) == 5
        ship.send(Order("o-5"))
        release.set()
        shop.told.wait_for("completed", 2)
    assert ran == ["o-0", "o-5"]
