"""What expires after the clock was set: nothing early, and nothing is kept longer than by the step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import onefold
from onefold import limits
from onefold.clock import HOLD_MS, Jump, SteadyClock, SystemClock, age_ms, expired_at_ms
from onefold.contracts.archive import Archived
from onefold.contracts.entries import Entry, Sent
from onefold.contracts.ledger import Row
from onefold.contracts.queue import Attribute
from onefold.contracts.settings import QueueSettings
from onefold.contracts.store import Ask, Claimed, Complete, Completed, RecordKey
from onefold.engines.sqlite import filetime
from onefold.engines.sqlite.engine import LEDGER_KEPT_MS, SqliteEngine
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.record.envelopes import EventEntry
from onefold.runner import runs
from onefold.runner.runs import RunState
from onefold.testing import inline
from tests.machine import Machine as MachineClock

HOUR_MS, DAY_MS = limits.HOUR_MS, limits.DAY_MS
YEARS_MS = 3_650 * DAY_MS


class Machine:
    """An engine in memory, on a machine whose clock is set."""

    def __init__(self) -> None:
        self.wall = ManualClock(1_700_000_000_000)
        self.clock = SteadyClock(self.wall)
        self.engine = SqliteEngine(
            ":memory:", clock=self.clock, entropy=SeededEntropy(1), owner="me", url="sqlite://:memory:"
        )

    def set(self, by_ms: int) -> None:
        """Set the clock; the steady clock has followed a step forward when this returns."""
        self.wall.jump(by_ms)
        self.clock.now_ms()
        self.wall.advance(HOLD_MS)
        self.clock.now_ms()

    def sweep(self) -> None:
        self.wall.advance(6_000)
        self.engine.maintain(lambda _: None)


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.engine.close()


@pytest.mark.parametrize("steps", [[HOUR_MS], [YEARS_MS], [YEARS_MS, -YEARS_MS], [-HOUR_MS], [-YEARS_MS, YEARS_MS]])
def test_an_id_is_remembered_for_five_minutes_whatever_the_clock_is_set_to(machine: Machine, steps: list[int]) -> None:
    machine.engine.queues.create(QueueSettings(name="orders.fifo", fifo=True))
    queue = machine.engine.queues.open("orders.fifo")

    def is_duplicate() -> bool:
        (answer,) = queue.send([Entry(body="1", group="g", dedup_id="1")])
        assert isinstance(answer, Sent)
        return answer.duplicate

    assert not is_duplicate()
    for by_ms in steps:
        machine.set(by_ms)
        machine.sweep()
    assert is_duplicate()
    machine.wall.advance(limits.DEDUP_WINDOW_MS * (2 if steps[-1] < 0 else 1))  # at half speed after a step back
    machine.sweep()
    assert not is_duplicate()


def test_completed_calls_are_counted_for_a_day_though_the_clock_was_set_forward(machine: Machine) -> None:
    now_ms = machine.clock.now_ms()
    ask = Ask(
        key=RecordKey("", "ship", "1"), fingerprint="f", owner="me", lease_until_ms=now_ms + HOUR_MS, start=True,
        expires_at_ms=now_ms + YEARS_MS,
    )  # fmt: skip
    (claimed,) = machine.engine.store.claim([ask], now_ms)
    assert isinstance(claimed, Claimed)
    machine.engine.store.write(
        [(claimed.hold, Complete(result=b"1", outbox=[], expires_at_ms=now_ms + YEARS_MS))], now_ms
    )
    machine.set(YEARS_MS)
    machine.sweep()
    assert machine.engine.records.count_completed(now_ms, now_ms + 1_000) == {"ship": 1}
    machine.wall.advance(DAY_MS)
    machine.sweep()
    assert machine.engine.records.count_completed(now_ms, now_ms + 1_000) == {}


@pytest.mark.parametrize("steps", [[YEARS_MS], [YEARS_MS, -YEARS_MS], [-YEARS_MS], [-YEARS_MS, YEARS_MS]])
def test_history_and_runs_are_kept_for_90_days(machine: Machine, steps: list[int]) -> None:
    state, ledger = machine.engine.state, machine.engine.ledger

    def note(name: str) -> None:
        ledger.append([Row(at_ms=machine.clock.now_ms(), event=name)])
        runs.begin(state, RunState(name=name, kind="map", title=name, started_at_ms=machine.clock.now_ms()))

    def found() -> tuple[set[str], set[str]]:
        machine.sweep()
        runs.sweep(state, expired_at_ms(machine.clock, runs.KEPT_MS))
        return {row.event for row in ledger.between(0, 1 << 60)}, set(runs.names(state))

    note("before")
    for by_ms in steps:
        machine.set(by_ms)
        note(f"after {by_ms}")
    names = {"before", *(f"after {by_ms}" for by_ms in steps)}
    assert found() == (names, names)
    machine.wall.advance(LEDGER_KEPT_MS - HOUR_MS)
    assert found() == (names, names)
    machine.wall.advance(2 * HOUR_MS)
    assert found() == ((names, names) if steps[-1] < 0 else (set(), set()))
    machine.wall.advance(LEDGER_KEPT_MS)  # while the steady clock is ahead of a clock that was set back, it is slower
    assert found() == ((names, names) if steps == [-YEARS_MS] else (set(), set()))
    machine.wall.advance(YEARS_MS)  # what has a later time than the wall clock is kept for longer by as much
    assert found() == (set(), set())


def test_a_message_that_nobody_takes_is_not_given_up_because_the_clock_was_set_forward() -> None:
    app = onefold.App("shop")

    @app.job(app.queue("orders"), key="{id}")
    def ship(order: dict[str, str]) -> None:
        raise AssertionError(order)

    with inline(app) as world:
        queue = app.runtime().engine.queues.open("orders")
        queue.send([Entry(body="{}", attributes={"onefold.job": Attribute("invoice")})])
        world.run()
        world.clock.jump(YEARS_MS)
        world.run()
        world.clock.advance(HOLD_MS + HOUR_MS)
        world.run()
        assert not [event for event in world.events if event.name == "no-job"]
        world.run_for(2 * DAY_MS, step_ms=HOUR_MS)
        assert [event for event in world.events if event.name == "no-job"]


@pytest.mark.parametrize("by_ms", [YEARS_MS, -YEARS_MS])
def test_archived_events_are_kept_as_long_as_declared(by_ms: int) -> None:
    app = onefold.App("shop")
    bus = app.bus("orders")
    bus.archive("all", retention="4d")

    with inline(app) as world:
        engine = app.runtime().engine
        assert engine.archive is not None
        world.clock.jump(by_ms)

        def count() -> int:
            assert engine.archive is not None
            world.run()
            engine.maintain(lambda _: None)
            return engine.archive.holdings("orders/all").count

        bus.put([EventEntry(source="shop", detail_type="paid", detail="{}")])
        world.clock.advance(DAY_MS)
        assert count() == 1
        world.clock.advance(2 * 4 * DAY_MS)
        assert count() == 0


def test_a_dead_letter_queue_is_counted_as_it_is_read_however_many_queues_there_are(machine: Machine) -> None:
    names = [f"q{number}" for number in range(30)]
    for name in names:
        machine.engine.queues.create(QueueSettings(name=name))
        machine.engine.queues.open(name).send([Entry(body="1")])
    machine.set(YEARS_MS)
    assert machine.engine.queues.depths(names) == [machine.engine.queues.depth(name) for name in names]
    assert machine.engine.queues.depth("q0").visible == 1


def test_a_group_whose_head_is_kept_longer_is_not_looked_at_again_and_again(machine: Machine) -> None:
    machine.engine.queues.create(QueueSettings(name="orders.fifo", fifo=True))
    queue = machine.engine.queues.open("orders.fifo")
    queue.send([Entry(body="1", group="g", dedup_id="1")])
    machine.set(YEARS_MS)
    assert len(queue.receive(1, HOUR_MS)) == 1
    now_ms = machine.clock.now_ms()
    assert queue.receive(1) == []
    assert machine.engine.queues.next_ready_ms("orders.fifo") == now_ms + HOUR_MS


class Wall(SystemClock):
    """The machine's clock, set by so much."""

    def __init__(self, by_ms: int) -> None:
        self.by_ms = by_ms

    def now_ms(self) -> int:
        return super().now_ms() + self.by_ms


@pytest.mark.parametrize("ran_ms", [0, DAY_MS])
def test_a_jump_that_was_undone_while_the_machine_was_off_keeps_nothing_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran_ms: int
) -> None:
    def opened(by_ms: int, boot: str) -> SqliteEngine:
        monkeypatch.setattr(filetime, "_boot", lambda: boot)
        path = tmp_path / "a.db"
        return SqliteEngine(str(path), clock=Wall(by_ms), entropy=SeededEntropy(1), owner="me", url=f"sqlite:///{path}")

    wrong = opened(YEARS_MS, "one")
    now_ms = Wall(0).now_ms()
    wrong.database.clock.jumps.noted = (Jump(YEARS_MS, now_ms + YEARS_MS - ran_ms),)
    wrong.database.write(wrong.time.note_in)
    wrong.close()
    right = opened(0, "two")
    clock = right.database.clock
    assert age_ms(clock, now_ms - 10 * DAY_MS) >= 10 * DAY_MS - ran_ms
    assert right.database.clock.jumps.expired_at_ms(now_ms, 0) >= now_ms - ran_ms - 60_000
    right.close()


@pytest.mark.parametrize("fifo", [False, True])
def test_nothing_expires_though_a_clock_that_was_set_forward_is_set_right(machine: Machine, fifo: bool) -> None:
    """A wrong answer of a time server sets the clock to a later year; after an hour it is set right."""
    engine, clock = machine.engine, machine.clock
    name, group = ("orders.fifo", "g") if fifo else ("orders", None)
    engine.queues.create(QueueSettings(name=name, fifo=fifo, retention_ms=4 * DAY_MS))
    queue = engine.queues.open(name)
    key = RecordKey("", "ship", "1")

    def ask() -> Ask:
        now_ms = clock.now_ms()
        return Ask(
            key=key, fingerprint="f", owner="me", lease_until_ms=now_ms + HOUR_MS, start=True,
            expires_at_ms=now_ms + 2 * DAY_MS,
        )  # fmt: skip

    queue.send([Entry(body="before", group=group, dedup_id="1" if fifo else None)])
    (claimed,) = engine.store.claim([ask()], clock.now_ms())
    assert isinstance(claimed, Claimed)
    done = Complete(result=b"1", outbox=[], expires_at_ms=clock.now_ms() + 2 * DAY_MS)
    assert engine.store.write([(claimed.hold, done)], clock.now_ms()) == [True]
    assert engine.archive is not None
    engine.archive.keep("all", [Archived(0, "1", clock.now_ms(), "{}", clock.now_ms() + 2 * DAY_MS)])
    machine.set(YEARS_MS)
    machine.wall.advance(HOUR_MS)
    queue.send([Entry(body="wrong", group=group, dedup_id="2" if fifo else None)])
    machine.set(-YEARS_MS)
    queue.send([Entry(body="right", group=group, dedup_id="3" if fifo else None)])
    for days in (1, 1):
        machine.wall.advance(days * DAY_MS - HOUR_MS)
        machine.sweep()
        assert [one.body for one in queue.receive(10, visible_ms=0)] == ["before", "wrong", "right"]
        assert isinstance(engine.store.claim([ask()], clock.now_ms())[0], Completed)
        assert engine.archive.holdings("all").count == 1
    machine.wall.advance(7 * DAY_MS)
    machine.sweep()
    assert engine.queues.depth(name).visible == 0
    assert engine.store.read([key], clock.now_ms()) == [None]
    assert engine.archive.holdings("all").count == 0


@pytest.mark.parametrize("later_ms", [0, DAY_MS, 3 * DAY_MS])
def test_a_process_that_opens_the_file_later_keeps_what_the_others_keep(tmp_path: Path, later_ms: int) -> None:
    machine = MachineClock()

    def process() -> SqliteEngine:
        path = tmp_path / "a.db"
        clock = SteadyClock(machine)
        return SqliteEngine(str(path), clock=clock, entropy=SeededEntropy(1), owner="me", url=f"sqlite:///{path}")

    first = process()
    first_ms = first.database.clock.now_ms()
    for by_ms in (DAY_MS, -DAY_MS):
        machine.set_ms += by_ms
        first.database.write(lambda connection: None)
        machine.at_ms += HOLD_MS
        first.database.clock.now_ms()
    machine.at_ms += later_ms
    first.database.write(lambda connection: None)
    second = process()
    ages_ms = [age_ms(engine.database.clock, first_ms) for engine in (first, second)]
    assert ages_ms[0] == pytest.approx(ages_ms[1], abs=2_000)
    passed_ms = machine.at_ms - (first_ms - machine.set_ms)
    assert passed_ms // 2 <= ages_ms[1] <= passed_ms + limits.MINUTE_MS
    first.close()
    second.close()


def test_what_is_sent_between_two_steps_is_kept_as_long_as_declared(machine: Machine) -> None:
    machine.engine.queues.create(QueueSettings(name="orders", retention_ms=4 * DAY_MS))
    queue = machine.engine.queues.open("orders")
    machine.wall.jump(YEARS_MS)
    machine.clock.now_ms()
    machine.wall.advance(HOLD_MS - 1_000)
    machine.wall.jump(HOUR_MS)  # the steady clock waits for two minutes from this second step
    machine.clock.now_ms()
    machine.wall.advance(HOLD_MS - 1_000)
    queue.send([Entry(body="1")])
    machine.wall.advance(4 * DAY_MS - 10_000)
    machine.sweep()
    assert queue.depth().visible == 1
    machine.wall.advance(20_000)
    machine.sweep()
    assert queue.depth().visible == 0
