"""What processes on one file know of the machine's clock: a step is seen by who opens the file next, whoever noticed it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from onefold.clock import HOLD_MS, Jump, SteadyClock, SystemClock
from onefold.contracts.archive import Archived
from onefold.contracts.entries import Entry
from onefold.contracts.queue import RetryIn
from onefold.contracts.settings import QueueSettings
from onefold.contracts.store import Ask, Claimed, Complete, Completed, RecordKey
from onefold.engines.sqlite import filetime
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from tests.machine import Machine

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Set(SystemClock):
    """The machine's clock, set by so much."""

    def __init__(self, by_ms: int = 0) -> None:
        self.by_ms = by_ms

    def now_ms(self) -> int:
        return super().now_ms() + self.by_ms


def opened(path: Path, clock: SystemClock | SteadyClock) -> SqliteEngine:
    return SqliteEngine(str(path), clock=clock, entropy=SeededEntropy(1), owner="me", url=f"sqlite:///{path}")


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
def test_a_step_that_nobody_noticed_is_seen_by_who_comes_next(tmp_path: Path, by_ms: int) -> None:
    opened(tmp_path / "a.db", Set()).close()
    wall = Set(by_ms)
    came = opened(tmp_path / "a.db", wall)
    assert came.database.clock.steps == [pytest.approx(by_ms, abs=100)]
    assert abs(came.database.clock.now_ms() - SystemClock().now_ms()) < 1_000, "it goes on as if there had been no step"
    came.close()
    again = opened(tmp_path / "a.db", Set(by_ms))
    assert again.database.clock.steps == [], "it is noted: the next one takes over how far beside the wall they are"
    assert abs(again.database.clock.now_ms() - SystemClock().now_ms()) < 1_000
    again.close()


@pytest.mark.parametrize("second_ms", [2_000, -2_000, 70_000, -70_000, 2 * HOUR_MS, -2 * HOUR_MS])
@pytest.mark.parametrize("first_ms", [HOUR_MS, -HOUR_MS])
@pytest.mark.parametrize("row_age_ms", [30_000, HOUR_MS])
@pytest.mark.parametrize("has_looked", [False, True])
def test_a_step_while_a_process_opens_the_file_leaves_the_time_of_the_others(
    tmp_path: Path, first_ms: int, second_ms: int, row_age_ms: int, has_looked: bool
) -> None:
    machine = Machine()
    other = opened(tmp_path / "a.db", SteadyClock(machine))
    machine.set_ms += first_ms
    other.database.write(lambda connection: None)
    machine.at_ms += row_age_ms
    other.database.write(lambda connection: None)
    clock = SteadyClock(machine)
    machine.set_ms += second_ms
    if has_looked:
        clock.now_ms()
    before_ms = other.database.clock.now_ms()
    engines = [other, opened(tmp_path / "a.db", clock), opened(tmp_path / "a.db", SteadyClock(machine))]
    assert clock.now_ms() == pytest.approx(before_ms, abs=10)
    for _ in range(4):
        times_ms = [engine.database.clock.now_ms() for engine in engines]
        assert max(times_ms) - min(times_ms) <= 1_000
        machine.at_ms += 30_000
        for engine in engines:
            engine.database.write(lambda connection: None)
    machine.at_ms += HOLD_MS
    engines.append(opened(tmp_path / "a.db", SteadyClock(machine)))
    times_ms = [engine.database.clock.now_ms() for engine in engines]
    assert max(times_ms) - min(times_ms) <= 1_000
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("seen_ms", [-2_000, 2_000])
def test_who_notices_two_steps_as_one_goes_on_as_those_that_noticed_both(tmp_path: Path, seen_ms: int) -> None:
    """The idle process is the first to notice the second step."""
    machine = Machine()
    worker, idle = (opened(tmp_path / "a.db", SteadyClock(machine)) for _ in range(2))
    machine.set_ms -= HOUR_MS
    worker.database.write(lambda connection: None)
    machine.at_ms += HOUR_MS // 2
    before_ms = worker.database.clock.now_ms()
    machine.set_ms += seen_ms
    for engine in (idle, worker):
        engine.database.write(lambda connection: None)
        assert engine.database.clock.now_ms() == pytest.approx(before_ms, abs=1_000)
        engine.close()


def test_who_did_not_notice_two_steps_that_undo_each_other_goes_on_as_those_that_did(tmp_path: Path) -> None:
    machine = Machine()
    worker, idle = (opened(tmp_path / "a.db", SteadyClock(machine)) for _ in range(2))
    for by_ms in (DAY_MS, -DAY_MS):
        machine.set_ms += by_ms
        worker.database.write(lambda connection: None)
        machine.at_ms += HOLD_MS
        worker.database.write(lambda connection: None)
    idle.database.write(lambda connection: None)
    assert idle.database.clock.now_ms() == worker.database.clock.now_ms() > machine.now_ms() + DAY_MS // 2
    worker.close()
    idle.close()


@pytest.mark.parametrize("by_ms", [100, -400])
def test_a_row_that_disagrees_by_a_drift_is_written_again_and_its_time_goes_on(tmp_path: Path, by_ms: int) -> None:
    machine = Machine()
    first = opened(tmp_path / "a.db", SteadyClock(machine))
    machine.set_ms -= HOUR_MS
    first.database.write(lambda connection: None)
    for _ in range(8):  # slewed by less than a step at a time, in all by more
        machine.at_ms += 600_000
        machine.set_ms += by_ms
        first.maintain(lambda _: None)
        came = opened(tmp_path / "a.db", SteadyClock(machine))
        assert came.database.clock.steps == []
        assert came.database.clock.now_ms() == pytest.approx(first.database.clock.now_ms(), abs=10)
        came.close()
    assert first.database.clock.steps == [-HOUR_MS]
    first.close()


@pytest.mark.parametrize("off_ms", [0, 600_000, -600_000])
@pytest.mark.parametrize("wrong_ms", [HOUR_MS, 10 * DAY_MS])
def test_what_was_sent_by_a_wrong_time_is_received_after_a_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong_ms: int, off_ms: int
) -> None:
    """The clock was set right before the boot; the one of the hardware may differ."""
    machine = Machine()
    first = opened(tmp_path / "a.db", SteadyClock(machine))
    first.queues.create(QueueSettings(name="orders"))
    machine.set_ms += wrong_ms
    first.database.write(lambda connection: None)
    machine.at_ms += HOLD_MS
    first.queues.open("orders").send([Entry(body="1")])
    machine.set_ms -= wrong_ms
    first.database.write(lambda connection: None)
    shared_ms = first.database.clock.now_ms()
    jumps = first.database.clock.jumps
    first.close()
    monkeypatch.setattr(filetime, "_boot", lambda: "another")
    wall_ms = machine.now_ms() + off_ms
    machine.at_ms = 5_000
    machine.set_ms = wall_ms - machine.at_ms
    came = opened(tmp_path / "a.db", SteadyClock(machine))
    assert shared_ms <= came.database.clock.now_ms() <= shared_ms + max(off_ms, 0) + HOLD_MS
    assert [one.body for one in came.queues.open("orders").receive(1)] == ["1"]
    assert came.database.clock.jumps.noted == jumps.noted
    machine.at_ms += filetime.HEALS_IN * (wrong_ms + HOUR_MS)
    assert came.database.clock.now_ms() == machine.now_ms()
    assert came.database.clock.jumps.noted == ()
    came.close()


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
def test_a_step_before_the_first_look_after_a_boot_is_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_ms: int
) -> None:
    """NTP sets the clock while the first process after the boot opens the file, which was written ten minutes later."""
    machine = Machine()
    first = opened(tmp_path / "a.db", SteadyClock(machine))
    first.database.clock.jumps.noted = (Jump(HOUR_MS, machine.now_ms() - DAY_MS),)
    first.database.write(first.time.note_in)
    first.close()
    monkeypatch.setattr(filetime, "_boot", lambda: "another")
    machine.set_ms -= 600_000
    machine.at_ms = 5_000
    machine.set_ms = SystemClock().now_ms() - 605_000
    clock = SteadyClock(machine)
    machine.set_ms += step_ms
    clock.now_ms()
    came = opened(tmp_path / "a.db", clock)
    assert clock.now_ms() == pytest.approx(SystemClock().now_ms(), abs=5_000), "the time at which the file was written"
    assert Jump(HOUR_MS, first.database.clock.jumps.noted[0].at_ms) in clock.jumps.noted
    came.close()


@pytest.mark.parametrize("value", [b'{"boot":1}', b"no JSON", b"\xff", "text", 7])
def test_a_row_that_another_version_wrote_keeps_no_file_from_being_opened(tmp_path: Path, value: object) -> None:
    opened(tmp_path / "a.db", Set()).close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection, connection:
        connection.execute("UPDATE onefold_state SET value = ? WHERE name = 'onefold/clock'", (value,))
        assert connection.total_changes == 1
    came = opened(tmp_path / "a.db", Set())
    assert abs(came.database.clock.now_ms() - SystemClock().now_ms()) < 1_000
    came.close()


def test_a_small_difference_is_followed(tmp_path: Path) -> None:
    opened(tmp_path / "a.db", Set()).close()
    came = opened(tmp_path / "a.db", Set(900))
    assert came.database.clock.steps == []
    came.close()
    came = opened(tmp_path / "a.db", Set(1_800))  # the note is renewed, so that what NTP slews never adds up to a step
    assert came.database.clock.steps == []
    came.close()


def test_a_clock_that_was_set_before_the_file_is_made_opens_it(tmp_path: Path) -> None:
    wall = Set()
    clock = SteadyClock(wall)
    wall.by_ms = HOUR_MS
    clock.now_ms()
    assert len(clock.steps) == 1
    made = opened(tmp_path / "a.db", clock)
    made.close()
    later = opened(tmp_path / "a.db", Set(HOUR_MS))
    assert abs(later.database.clock.now_ms() - SystemClock().now_ms()) < 1_000
    later.close()


def test_a_note_whose_transaction_failed_is_written_with_the_next(tmp_path: Path) -> None:
    wall = Set()
    engine = opened(tmp_path / "a.db", wall)
    wall.by_ms = HOUR_MS

    def fails(connection: object) -> None:
        raise ValueError("the caller's own")

    with pytest.raises(ValueError, match="own"):
        engine.database.write(fails)
    engine.database.write(lambda connection: None)
    engine.close()
    later = opened(tmp_path / "a.db", wall)
    assert later.database.clock.steps == []
    assert abs(later.database.clock.now_ms() - SystemClock().now_ms()) < 1_000
    later.close()


def test_a_store_on_a_file_gives_guards_the_files_time(tmp_path: Path) -> None:
    opened(tmp_path / "a.db", Set()).close()
    came = opened(tmp_path / "a.db", Set(HOUR_MS))
    assert came.store.clock is came.database.clock
    came.close()


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("step_ms", [HOUR_MS, 11 * HOUR_MS])
@pytest.mark.parametrize("received", ["before", "since"])
def test_what_is_in_hand_when_the_clock_is_set_forward_can_be_extended(fifo: bool, step_ms: int, received: str) -> None:
    clock = ManualClock(1_700_000_000_000)
    engine = SqliteEngine(":memory:", clock=clock, entropy=SeededEntropy(1), owner="me", url="sqlite://:memory:")
    name = "q.fifo" if fifo else "q"
    engine.queues.create(QueueSettings(name=name, fifo=fifo))
    queue = engine.queues.open(name)
    queue.send([Entry(body="1", group="g" if fifo else None, dedup_id="1" if fifo else None)])
    if received == "since":
        clock.jump(step_ms)
    (message,) = queue.receive(1, 30_000)
    if received == "before":
        clock.jump(step_ms)
    for _ in range(3 * HOLD_MS // 10_000):  # beyond the moment at which the clock follows
        clock.advance(10_000)
        assert queue.set_visible_in([(message.receipt, RetryIn(30_000))]) == [True]
        assert queue.receive(1, 30_000) == []
    assert queue.delete([message.receipt]) == [True]
    engine.close()


@pytest.mark.parametrize("back", [RetryIn(0), RetryIn(1_000, uncounted=True)])
def test_what_is_given_back_while_the_clock_is_behind_does_not_wait_for_it(back: RetryIn) -> None:
    clock = ManualClock(1_700_000_000_000)
    engine = SqliteEngine(":memory:", clock=clock, entropy=SeededEntropy(1), owner="me", url="sqlite://:memory:")
    engine.queues.create(QueueSettings(name="q"))
    queue = engine.queues.open("q")
    queue.send([Entry(body="1")])
    (message,) = queue.receive(1, 30_000)
    clock.jump(HOUR_MS)
    assert queue.set_visible_in([(message.receipt, back)]) == [True]
    clock.advance(back.delay_ms)
    assert len(queue.receive(1, 30_000)) == 1
    engine.close()


def ask(key: RecordKey, now_ms: int) -> Ask:
    return Ask(
        key=key, fingerprint="f", owner="me", lease_until_ms=now_ms + HOUR_MS, start=True, expires_at_ms=now_ms + DAY_MS
    )


@pytest.mark.parametrize("fifo", [False, True])
def test_nothing_expires_because_the_clock_was_set_forward(tmp_path: Path, fifo: bool) -> None:
    """A machine that starts with an old clock, which NTP then sets."""
    clock = ManualClock(1_700_000_000_000)
    steady = SteadyClock(clock)
    engine = opened(tmp_path / "a.db", steady)
    name = "orders.fifo" if fifo else "orders"
    for one in (f"dead{'.fifo' * fifo}", name):
        engine.queues.create(QueueSettings(name=one, fifo=fifo, retention_ms=4 * DAY_MS))
    queue = engine.queues.open(name)
    group = "g" if fifo else None
    queue.send([Entry(body="waits", group=group, dedup_id="1" if fifo else None)])
    queue.send([Entry(body="late", group="h" if fifo else None, dedup_id="2" if fifo else None)])
    key = RecordKey("", "ship", "o-1")
    (claimed,) = engine.store.claim([ask(key, steady.now_ms())], steady.now_ms())
    assert isinstance(claimed, Claimed)
    expires_at_ms = steady.now_ms() + 90 * DAY_MS
    assert engine.store.write(
        [(claimed.hold, Complete(result=b"1", outbox=[], expires_at_ms=expires_at_ms))], steady.now_ms()
    ) == [True]

    def swept() -> None:
        clock.advance(HOLD_MS + HOUR_MS)
        steady.now_ms()
        engine.maintain(lambda _: None)

    clock.jump(3_000 * DAY_MS)
    steady.now_ms()
    swept()
    queue.send([Entry(body="new", group="i" if fifo else None, dedup_id="3" if fifo else None)])
    assert [one.body for one in queue.receive(10, visible_ms=0)] == ["waits", "late", "new"]
    (found,) = engine.queues.peek(name, limit=1)
    assert 0 < found.expires_at_ms - steady.now_ms() <= 4 * DAY_MS
    assert isinstance(engine.store.claim([ask(key, steady.now_ms())], steady.now_ms())[0], Completed)
    assert engine.store.read([key], steady.now_ms()) != [None]

    engine.close()
    engine = opened(tmp_path / "a.db", steady := SteadyClock(clock))  # a process that has seen no step
    queue = engine.queues.open(name)
    swept()
    assert engine.queues.depth(name).visible == 3
    clock.advance(4 * DAY_MS - 3 * HOUR_MS)
    swept()
    assert [one.body for one in queue.receive(10, visible_ms=0)] == ["new"]
    clock.advance(87 * DAY_MS)
    swept()
    assert engine.store.read([key], steady.now_ms()) == [None]
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        assert connection.execute("SELECT count(*) FROM onefold_record").fetchone() == (0,)
    engine.close()


def test_archived_events_from_before_a_jump_are_kept_longer_and_later_ones_are_not(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000_000)  # a machine without a battery begins in 1970
    steady = SteadyClock(clock)
    engine = opened(tmp_path / "a.db", steady)

    def keep(name: str) -> None:
        now_ms = steady.now_ms()
        engine.archive.keep("all", [Archived(0, name, now_ms, "{}", now_ms + 4 * DAY_MS)])

    def found() -> tuple[list[str], int]:
        steady.now_ms()
        engine.maintain(lambda _: None)
        read = [one.event_id for one in engine.archive.read("all", 0, 2**62, last=2**62, limit=10)]
        assert engine.archive.holdings("all").count == len(read)
        with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
            return read, connection.execute("SELECT count(*) FROM onefold_archive").fetchone()[0]

    keep("before")
    clock.jump(20_000 * DAY_MS)
    steady.now_ms()
    clock.advance(HOLD_MS + HOUR_MS)
    assert found() == (["before"], 1)
    keep("after")
    clock.advance(4 * DAY_MS - HOUR_MS)
    assert found() == (["after"], 1)
    clock.advance(2 * HOUR_MS)
    assert found() == ([], 0)
    engine.close()


def test_a_clock_that_was_set_back_and_then_right_again_keeps_nothing_longer(tmp_path: Path) -> None:
    """A machine without a battery that is started again: its clock begins in 1970 until NTP sets it."""
    clock = ManualClock(1_700_000_000_000)
    steady = SteadyClock(clock)
    engine = opened(tmp_path / "a.db", steady)
    engine.queues.create(QueueSettings(name="orders", retention_ms=4 * DAY_MS))
    engine.queues.open("orders").send([Entry(body="1")])
    key = RecordKey("", "ship", "o-1")
    (claimed,) = engine.store.claim([ask(key, steady.now_ms())], steady.now_ms())
    assert isinstance(claimed, Claimed)
    done = Complete(result=b"1", outbox=[], expires_at_ms=steady.now_ms() + 2 * DAY_MS)
    assert engine.store.write([(claimed.hold, done)], steady.now_ms()) == [True]
    sent_at_ms = steady.now_ms()
    clock.jump(-19_000 * DAY_MS)
    steady.now_ms()
    clock.advance(HOUR_MS)
    clock.jump(19_000 * DAY_MS)
    steady.now_ms()
    clock.advance(HOLD_MS + DAY_MS)
    assert engine.store.read([key], steady.now_ms()) != [None]
    (found,) = engine.queues.peek("orders", limit=1)
    assert found.expires_at_ms == pytest.approx(sent_at_ms + 4 * DAY_MS, abs=HOUR_MS)
    clock.advance(DAY_MS)
    assert engine.store.read([key], steady.now_ms()) == [None]
    engine.close()


@pytest.mark.parametrize("wrong_ms", [HOUR_MS, 30 * DAY_MS])
def test_a_step_counts_for_what_is_from_before_it_however_the_clock_was_set_back_then(wrong_ms: int) -> None:
    clock = ManualClock(1_700_000_000_000)
    steady = SteadyClock(clock)
    first_ms = steady.now_ms()
    clock.jump(-10 * DAY_MS)
    steady.now_ms()
    clock.advance(wrong_ms)
    last_ms = steady.now_ms()
    clock.jump(10 * DAY_MS)
    steady.now_ms()
    assert steady.jumps.longer_ms(first_ms) <= wrong_ms, "it was right then"
    clock.advance(HOLD_MS)
    clock.jump(3_650 * DAY_MS)
    steady.now_ms()
    for stamp_ms in (first_ms, last_ms):
        assert steady.jumps.longer_ms(stamp_ms) == pytest.approx(3_650 * DAY_MS, abs=10 * DAY_MS)


def test_nothing_from_before_a_jump_is_lost_if_the_clock_had_just_been_set_back() -> None:
    clock = ManualClock(1_700_000_000_000)
    steady = SteadyClock(clock)
    clock.jump(-DAY_MS)
    steady.now_ms()
    clock.advance(HOUR_MS)
    sent_ms = steady.now_ms()
    clock.jump(3_650 * DAY_MS)
    steady.now_ms()
    clock.advance(HOLD_MS)
    assert steady.jumps.longer_ms(sent_ms) > 3_648 * DAY_MS
    assert steady.jumps.expired_at_ms(steady.now_ms(), HOUR_MS) < sent_ms


def test_a_clock_that_is_set_forward_and_back_leaves_retention_as_it_was() -> None:
    clock = ManualClock(1_700_000_000_000)
    steady = SteadyClock(clock)
    clock.jump(3_650 * DAY_MS)
    steady.now_ms()
    (jump,) = steady.jumps.noted
    assert jump.by_ms == 3_650 * DAY_MS
    assert steady.jumps.longer_ms(jump.at_ms) == 0
    assert steady.jumps.longer_ms(jump.before_ms) == 0
    assert steady.jumps.longer_ms(jump.before_ms - 1) == jump.by_ms
    clock.jump(-3_650 * DAY_MS)
    steady.now_ms()
    assert steady.jumps.noted == ()
    for _ in range(40):
        clock.advance(DAY_MS)
        steady.now_ms()
        clock.jump(HOUR_MS)
        steady.now_ms()
    assert len(steady.jumps.noted) == 16
    assert steady.jumps.longer_ms(0) == 40 * HOUR_MS
    now_ms = steady.wall.now_ms()
    assert steady.jumps.expired_at_ms(now_ms, 3 * DAY_MS - HOLD_MS) == now_ms - 3 * DAY_MS + HOLD_MS - 3 * HOUR_MS
