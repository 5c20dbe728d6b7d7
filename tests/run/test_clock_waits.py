"""`delay`, `run_at` and retries after the clock was set: never early; late by no more than is said."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import onefold
from onefold import limits
from onefold.clock import HOLD_MS, SteadyClock
from onefold.contracts.entries import Entry
from onefold.contracts.settings import QueueSettings
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.testing import inline
from onefold.testing.inline import World
from tests.machine import Machine

RETRY = onefold.Retry(attempts=3, base="10m", jitter="none")
SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = limits.SECOND_MS, limits.MINUTE_MS, limits.HOUR_MS, limits.DAY_MS


class Shop:
    """A job that notes when it ran, by both clocks."""

    def __init__(self, *, fifo: bool = False) -> None:
        self.app = onefold.App("shop")
        self.ran: list[tuple[str, int, int]] = []
        self.world: World | None = None
        self.fails: list[str] = []
        self.sends: list[Callable[[], object]] = []
        group = "{shop}" if fifo else None

        @self.app.job(self.app.queue("orders", fifo=fifo), key="{id}", group=group, retry=RETRY)
        def remind(order: dict[str, str]) -> None:
            self.ran.append((order["id"], self.clock.monotonic_ms(), self.clock.now_ms()))
            if order["id"] in self.fails:
                self.fails.remove(order["id"])
                raise TimeoutError(order["id"])
            while self.sends and order["id"] == "sends":
                self.sends.pop()()

        self.remind = remind

    @property
    def clock(self) -> ManualClock:
        assert self.world is not None
        return self.world.clock

    def until_ran(self, count: int, within_ms: int = 4 * DAY_MS, step_ms: int = SECOND_MS) -> None:
        """Let the time pass until so many runs have begun."""
        assert self.world is not None
        self.world.run()
        end_ms = self.clock.monotonic_ms() + within_ms
        while len(self.ran) < count and self.clock.monotonic_ms() < end_ms:
            self.clock.advance(step_ms)
            self.world.run()
        assert len(self.ran) == count


def step_of(delay_ms: int) -> int:
    return max(SECOND_MS, delay_ms // 1_000)


@pytest.fixture(params=[False, True], ids=["standard", "fifo"])
def shop(request: pytest.FixtureRequest) -> Shop:
    return Shop(fifo=request.param)


# A step before the send, what it is corrected by a second later, the delay; and how long it may take.
SET_BEFORE = [
    (0, 0, 30 * MINUTE_MS, 30 * MINUTE_MS),
    (-HOUR_MS, 0, 30 * MINUTE_MS, HOUR_MS),  # the steady clock runs at half speed until the wall clock has caught up
    (-2 * HOUR_MS, 0, HOUR_MS, 2 * HOUR_MS),
    (HOUR_MS, 0, 2 * SECOND_MS, 2 * SECOND_MS),
    (HOUR_MS, 0, 10 * MINUTE_MS, 10 * MINUTE_MS),
    (HOUR_MS, 0, 2 * HOUR_MS, 2 * HOUR_MS),
    (HOUR_MS, -HOUR_MS, 2 * SECOND_MS, 2 * SECOND_MS),
    (HOUR_MS, -HOUR_MS, 10 * MINUTE_MS, 10 * MINUTE_MS),
    (24 * HOUR_MS, -24 * HOUR_MS, 2 * SECOND_MS, 2 * SECOND_MS),
    (-HOUR_MS, HOUR_MS, 2 * SECOND_MS, 3 * SECOND_MS),
]


@pytest.mark.parametrize(("step_ms", "back_ms", "delay_ms", "most_ms"), SET_BEFORE)
def test_a_delay_is_counted_from_the_send_whatever_the_clock_was_set_to(
    shop: Shop, step_ms: int, back_ms: int, delay_ms: int, most_ms: int
) -> None:
    with inline(shop.app) as shop.world:
        shop.remind.send({"shop": "all", "id": "warm"})
        shop.world.run()
        shop.clock.jump(step_ms)
        shop.remind.send({"shop": "all", "id": "a"}, delay=timedelta(milliseconds=delay_ms))
        sent_ms = shop.clock.monotonic_ms()
        shop.world.run()
        if back_ms:
            shop.clock.advance(SECOND_MS)
            shop.clock.jump(back_ms)
        shop.until_ran(2, step_ms=step_of(delay_ms))
        assert delay_ms <= shop.ran[1][1] - sent_ms <= most_ms + step_of(delay_ms)


@pytest.mark.parametrize("by_ms", [10 * SECOND_MS, 70 * SECOND_MS, HOUR_MS, 11 * HOUR_MS, 3_650 * DAY_MS])
@pytest.mark.parametrize("left_ms", [SECOND_MS, HOLD_MS + SECOND_MS, 40 * MINUTE_MS, 3 * HOUR_MS])
def test_a_delay_is_not_cut_short_by_a_clock_that_is_set_forward_meanwhile(
    shop: Shop, by_ms: int, left_ms: int
) -> None:
    with inline(shop.app) as shop.world:
        shop.remind.send({"shop": "all", "id": "a"}, delay=timedelta(milliseconds=HOUR_MS + left_ms))
        shop.remind.send({"shop": "all", "id": "b"}, delay=timedelta(milliseconds=HOUR_MS + left_ms))
        shop.world.run()
        shop.clock.advance(HOUR_MS)
        shop.clock.jump(by_ms)
        shop.until_ran(2, step_ms=SECOND_MS if left_ms < HOUR_MS else 10 * SECOND_MS)
        assert [name for name, *_ in shop.ran] == ["a", "b"]
        assert HOUR_MS + left_ms <= shop.ran[0][1] <= HOUR_MS + left_ms + 11 * SECOND_MS


def test_a_second_jump_puts_off_what_the_first_one_has(shop: Shop) -> None:
    with inline(shop.app) as shop.world:
        shop.remind.send({"shop": "all", "id": "a"}, delay="5h")
        for by_ms in (6 * HOUR_MS, 90 * SECOND_MS, 30 * DAY_MS):
            shop.clock.advance(HOUR_MS)
            shop.clock.jump(by_ms)
            shop.world.run()
        shop.until_ran(1, step_ms=10 * SECOND_MS)
        assert 5 * HOUR_MS <= shop.ran[0][1] <= 5 * HOUR_MS + 10 * SECOND_MS


def test_a_second_step_before_the_first_one_is_followed_counts_with_it(shop: Shop) -> None:
    with inline(shop.app) as shop.world:
        for name, by_ms in (("a", DAY_MS), ("b", 50 * SECOND_MS), ("c", HOUR_MS)):
            shop.remind.send({"shop": "all", "id": name}, delay="30m")
            shop.clock.jump(by_ms)
            shop.world.run()
            shop.clock.advance(HOLD_MS * 2 // 3)
        shop.until_ran(3)
        for number, (_, at_ms, _) in enumerate(shop.ran):
            assert at_ms == pytest.approx(30 * MINUTE_MS + number * HOLD_MS * 2 // 3, abs=SECOND_MS)


def test_many_delays_are_put_off_and_hide_nothing_that_is_due(shop: Shop) -> None:
    with inline(shop.app) as shop.world:
        for number in range(300):
            shop.remind.send({"shop": "all", "id": str(number)}, delay="1h")
        shop.clock.jump(DAY_MS)
        shop.world.run()
        shop.clock.advance(HOLD_MS)
        shop.remind.send({"shop": "all", "id": "now"})
        shop.world.run()
        assert [name for name, *_ in shop.ran] == ["now"]
        shop.until_ran(301, step_ms=MINUTE_MS)
        assert [name for name, *_ in shop.ran[1:]] == [str(number) for number in range(300)]
        assert shop.ran[1][1] == HOUR_MS


@pytest.mark.parametrize("by_ms", [0, HOUR_MS, 3_650 * DAY_MS])
@pytest.mark.parametrize("when", ["before", "behind", "after"])
def test_a_retry_waits_as_long_as_it_is_to(shop: Shop, by_ms: int, when: str) -> None:
    shop.fails = ["a"]
    with inline(shop.app) as shop.world:
        if when == "behind":
            shop.world.run()
            shop.clock.jump(by_ms)
        shop.remind.send({"shop": "all", "id": "a"})
        shop.world.run()
        if when == "before":
            shop.clock.jump(by_ms)
        elif when == "after":
            shop.clock.advance(5 * MINUTE_MS)
            shop.clock.jump(by_ms)
        shop.until_ran(2)
        assert 10 * MINUTE_MS <= shop.ran[1][1] - shop.ran[0][1] <= 10 * MINUTE_MS + SECOND_MS


# A step before the send, a correction a second later, minutes until run_at; and how late it may be.
RUN_AT = [
    (0, 0, 30, 0),
    (-HOUR_MS, 0, 30, 0),
    (-HOUR_MS, 0, 90, 0),
    (-HOUR_MS, 0, 5 * 60, 0),
    (-DAY_MS, 0, 1, 0),
    (HOUR_MS, 0, 1, HOLD_MS),
    (HOUR_MS, 0, 30, 0),
    (HOUR_MS, -HOUR_MS, 30, 0),  # the clock that it was computed by was wrong: it means that instant all the same
    (-HOUR_MS, HOUR_MS, 30, 0),  # it is over when the clock is right again
]


@pytest.mark.parametrize(("step_ms", "back_ms", "minutes", "most_ms"), RUN_AT)
def test_run_at_means_the_wall_clock(shop: Shop, step_ms: int, back_ms: int, minutes: int, most_ms: int) -> None:
    with inline(shop.app) as shop.world:
        shop.remind.send({"shop": "all", "id": "warm"})
        shop.world.run()
        shop.clock.jump(step_ms)
        at_ms = shop.clock.now_ms() + minutes * MINUTE_MS
        shop.remind.send({"shop": "all", "id": "a"}, run_at=datetime.fromtimestamp(at_ms / 1000, UTC))
        shop.world.run()
        if back_ms:
            shop.clock.advance(SECOND_MS)
            shop.clock.jump(back_ms)
        shop.until_ran(2)
        if back_ms <= 0:
            assert 0 <= shop.ran[1][2] - at_ms <= most_ms + 2 * SECOND_MS
        else:
            assert shop.ran[1][1] <= 2 * MINUTE_MS


@pytest.mark.parametrize("by_ms", [-HOUR_MS, -DAY_MS, HOUR_MS])
def test_run_at_means_the_wall_clock_that_is_set_meanwhile(shop: Shop, by_ms: int) -> None:
    with inline(shop.app) as shop.world:
        at_ms = shop.clock.now_ms() + 2 * HOUR_MS
        shop.remind.send({"shop": "all", "id": "a"}, run_at=datetime.fromtimestamp(at_ms / 1000, UTC))
        shop.remind.send({"shop": "all", "id": "b"}, run_at=datetime.fromtimestamp(at_ms / 1000, UTC))
        shop.clock.advance(90 * MINUTE_MS)
        shop.clock.jump(by_ms)
        shop.until_ran(2)
        assert [name for name, *_ in shop.ran] == ["a", "b"]
        most_ms = (
            HOUR_MS if by_ms > 0 else 0
        )  # the instant was jumped over; nobody waits longer than two minutes for it
        assert 0 <= shop.ran[0][2] - at_ms <= most_ms + 2 * SECOND_MS
        assert by_ms < 0 or shop.ran[0][1] <= 90 * MINUTE_MS + HOLD_MS + SECOND_MS


@pytest.mark.parametrize("by_ms", [0, -2 * HOUR_MS, 2 * HOUR_MS])
def test_what_a_handler_sends_with_a_delay_waits_from_its_call(shop: Shop, by_ms: int) -> None:
    with inline(shop.app) as shop.world:

        def send() -> None:
            shop.clock.jump(by_ms)
            shop.remind.send({"shop": "all", "id": "late"}, delay="10m")
            shop.clock.advance(MINUTE_MS)

        shop.sends.append(send)
        shop.remind.send({"shop": "all", "id": "sends"})
        shop.until_ran(2)
        most_ms = 10 * MINUTE_MS if by_ms >= 0 else 20 * MINUTE_MS
        assert 10 * MINUTE_MS <= shop.ran[1][1] - shop.ran[0][1] <= most_ms + SECOND_MS


def test_fifo_messages_with_and_without_a_delay_keep_the_order_in_which_they_are_due() -> None:
    shop = Shop(fifo=True)
    with inline(shop.app) as shop.world:
        shop.remind.send({"shop": "all", "id": "second"}, delay="30m")
        shop.clock.jump(-HOUR_MS)
        shop.remind.send({"shop": "all", "id": "third"}, delay="31m")
        shop.remind.send({"shop": "all", "id": "first"})
        shop.until_ran(1)
        shop.clock.jump(3 * HOUR_MS)
        shop.until_ran(3)
        assert [name for name, *_ in shop.ran] == ["first", "second", "third"]


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
@pytest.mark.parametrize("idle_ms", [SECOND_MS, HOLD_MS // 2, HOLD_MS + MINUTE_MS, 30 * MINUTE_MS])
def test_a_process_that_was_idle_when_the_clock_was_set_sends_by_the_time_of_the_others(
    tmp_path: Path, by_ms: int, idle_ms: int
) -> None:
    machine = Machine()

    def process(owner: str) -> SqliteEngine:
        path = tmp_path / "a.db"
        return SqliteEngine(
            str(path), clock=SteadyClock(machine), entropy=SeededEntropy(1), owner=owner, url=f"sqlite:///{path}"
        )

    worker, idle = process("worker"), process("idle")
    worker.queues.create(QueueSettings(name="orders"))
    queue, other = worker.queues.open("orders"), idle.queues.open("orders")
    queue.send([Entry(body="warm")])
    assert queue.delete([one.receipt for one in queue.receive(10, HOUR_MS)]) == [True]
    machine.set_ms += by_ms
    for _ in range(idle_ms // SECOND_MS):
        queue.receive(1)
        machine.at_ms += SECOND_MS
    other.send([Entry(body="delayed", wait_ms=20 * MINUTE_MS), Entry(body="now")])
    assert abs(worker.database.clock.now_ms() - idle.database.clock.now_ms()) < 2 * SECOND_MS
    assert queue.delete([one.receipt for one in queue.receive(10) if one.body == "now"]) == [True]
    waited_ms = 0
    while not queue.receive(1, HOUR_MS):
        machine.at_ms += SECOND_MS
        waited_ms += SECOND_MS
    assert 20 * MINUTE_MS <= waited_ms <= (20 if by_ms > 0 else 22) * MINUTE_MS + SECOND_MS
    worker.close()
    idle.close()


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("unseen_ms", [MINUTE_MS - SECOND_MS, HOLD_MS + SECOND_MS])
def test_a_delay_is_put_off_once_by_each_of_two_steps(unseen_ms: int, fifo: bool) -> None:
    """It is looked at when the clock has followed the first step, and the second one is noted but not followed yet."""
    wall = ManualClock()
    engine = SqliteEngine(":memory:", clock=wall, entropy=SeededEntropy(1), owner="me", url="sqlite://:memory:")
    name, group = ("orders.fifo", "g") if fifo else ("orders", None)
    engine.queues.create(QueueSettings(name=name, fifo=fifo))
    queue = engine.queues.open(name)
    queue.send([Entry(body="late", wait_ms=10 * MINUTE_MS, group=group, dedup_id=group)])
    sent_ms = wall.monotonic_ms()
    wall.jump(5 * HOUR_MS)
    assert queue.receive(1) == []
    wall.advance(MINUTE_MS)
    wall.jump(HOUR_MS)
    wall.advance(unseen_ms)
    while not queue.receive(1):
        wall.advance(SECOND_MS)
    assert 10 * MINUTE_MS <= wall.monotonic_ms() - sent_ms <= 10 * MINUTE_MS + 2 * SECOND_MS
    engine.close()


def test_a_rate_is_kept_though_the_clock_was_set_back() -> None:
    app, ran = onefold.App("shop"), 0

    @app.job(app.queue("orders"), key="{id}", throttle=onefold.Throttle(rate="1/s"))
    def ship(order: dict[str, str]) -> None:
        nonlocal ran
        ran += 1

    counts = []
    with inline(app) as world:
        for name, by_ms in (("before", 0), ("after", -5 * DAY_MS)):
            ship.send_many([{"id": f"{name}-{number}"} for number in range(100)])
            world.clock.jump(by_ms)
            ran = 0
            world.run_for(2 * MINUTE_MS, step_ms=250)
            counts.append(ran)
            world.run_for(10 * MINUTE_MS)
    assert counts[1] >= 0.93 * counts[0] > 60
