"""Random steps of the machine's clock while messages wait: none is early, none is lost, none waits for ever."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from onefold import limits
from onefold.clock import HOLD_MS, STEP_MS, SteadyClock
from onefold.contracts.entries import Entry
from onefold.contracts.settings import QueueSettings
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.engines.sqlite.filetime import HEALS_IN
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from tests.machine import Machine

SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = limits.SECOND_MS, limits.MINUTE_MS, limits.HOUR_MS, limits.DAY_MS
STEPS_MS = (2 * SECOND_MS, 50 * SECOND_MS, 70 * SECOND_MS, 10 * MINUTE_MS, HOUR_MS, 5 * HOUR_MS, DAY_MS, 9 * DAY_MS)
WAITS_MS = (SECOND_MS, MINUTE_MS, 10 * MINUTE_MS, HOUR_MS, 7 * HOUR_MS)
KEPT_MS = 2 * DAY_MS
SLACK_MS = 3 * MINUTE_MS


class Walk:
    """A queue whose messages wait, and one in which a message lies, while the clock is set now and then."""

    def __init__(self, seed: int, *, fifo: bool) -> None:
        self.chance, self.fifo = SeededEntropy(seed).fraction, fifo
        self.wall: ManualClock | Machine = ManualClock()
        self.clock = SteadyClock(self.wall)
        self.engine = SqliteEngine(
            ":memory:", clock=self.clock, entropy=SeededEntropy(seed), owner="me", url="sqlite://:memory:"
        )
        names = ["waits.fifo", "lies.fifo"] if fifo else ["waits", "lies"]
        for name in names:
            self.engine.queues.create(QueueSettings(name=name, fifo=fifo, retention_ms=KEPT_MS))
        self.waits, self.lies = (self.engine.queues.open(name) for name in names)
        self.lies.send([self.entry("lies")])
        self.sent: dict[str, tuple[int, int | None, int]] = {}  # body -> when, how long it waits, run_at
        self.set_at_ms = 0

    def one_of(self, numbers: Sequence[int]) -> int:
        return numbers[int(self.chance() * len(numbers))]

    def entry(self, body: str, wait_ms: int | None = None, run_at_ms: int | None = None) -> Entry:
        group = body if self.fifo else None
        return Entry(body=body, wait_ms=wait_ms, run_at_ms=run_at_ms, group=group, dedup_id=group)

    def send(self) -> None:
        body, for_ms = str(self.wall.monotonic_ms()), self.one_of(WAITS_MS) + int(1_000 * self.chance())
        is_counted, at_ms = self.chance() < 0.5, self.wall.now_ms() + for_ms
        self.waits.send([self.entry(body, for_ms) if is_counted else self.entry(body, run_at_ms=at_ms)])
        self.sent[body] = self.wall.monotonic_ms(), for_ms if is_counted else None, at_ms

    def step(self) -> None:
        self.wall.jump(self.one_of((1, -1)) * self.one_of(STEPS_MS))
        self.clock.now_ms()
        self.set_at_ms = self.wall.monotonic_ms()

    def receive(self) -> None:
        for message in self.waits.receive(10):
            sent_ms, for_ms, at_ms = self.sent.pop(message.body)  # a KeyError: it came twice
            if for_ms is None:
                assert self.wall.now_ms() >= at_ms
            else:
                assert self.wall.monotonic_ms() - sent_ms >= for_ms
            self.waits.delete([message.receipt])

    def check_none_is_late(self) -> None:
        now_ms, wall_ms = self.wall.monotonic_ms(), self.wall.now_ms()
        for sent_ms, for_ms, at_ms in self.sent.values():
            if for_ms is not None:
                assert now_ms - sent_ms <= for_ms * HEALS_IN // (HEALS_IN - 1) + SLACK_MS
            else:
                assert wall_ms <= at_ms + SLACK_MS or now_ms - max(self.set_at_ms, sent_ms) <= HOLD_MS + SLACK_MS


@pytest.mark.slow
@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_waits_are_neither_early_nor_late_and_nothing_expires_early(seed: int, fifo: bool) -> None:
    walk = Walk(seed, fifo=fifo)
    while walk.wall.monotonic_ms() < KEPT_MS:
        chance = walk.chance()
        if chance < 0.003:
            walk.step()
        elif chance < 0.1 and len(walk.sent) < 20:
            walk.send()
        walk.wall.advance(walk.one_of((SECOND_MS, 20 * SECOND_MS, MINUTE_MS)))
        if chance > 0.9:
            walk.engine.maintain(lambda _: None)
        walk.receive()
        walk.check_none_is_late()
        assert walk.wall.monotonic_ms() >= KEPT_MS or walk.lies.depth().visible == 1
    while walk.lies.depth().visible:
        walk.wall.advance(MINUTE_MS)
        assert walk.wall.monotonic_ms() <= 2 * KEPT_MS + SLACK_MS + sum(STEPS_MS)
    walk.engine.close()


class Office(Walk):
    """The same queue in a file that processes open and close, each with a clock of its own, which looks when it is used."""

    def __init__(self, seed: int, path: Path, *, fifo: bool) -> None:
        self.chance, self.fifo = SeededEntropy(seed).fraction, fifo
        self.wall = self.machine = Machine()
        self.path = path
        self.processes: list[SqliteEngine] = []
        self.open()
        name = "waits.fifo" if fifo else "waits"
        self.engine.queues.create(QueueSettings(name=name, fifo=fifo, retention_ms=KEPT_MS))
        self.sent, self.set_at_ms, self.latest_ms = {}, 0, 0
        self.pick()

    def open(self) -> None:
        """Another process, with or without a step between the making of its clock and the look at the file."""
        clock = SteadyClock(self.machine)
        if self.chance() < 0.3:
            self.step()
        if self.chance() < 0.5:
            clock.now_ms()
        self.engine = SqliteEngine(
            str(self.path), clock=clock, entropy=SeededEntropy(1), owner="me", url=f"sqlite:///{self.path}"
        )
        self.processes.append(self.engine)

    def step(self) -> None:
        """Nobody looks at the clock now."""
        self.machine.jump(self.one_of((1, -1)) * self.one_of(STEPS_MS))
        self.set_at_ms = self.machine.monotonic_ms()

    def pick(self) -> None:
        """The process that acts next; no process is behind the time that another has written."""
        self.engine = self.processes[int(self.chance() * len(self.processes))]
        self.engine.database.write(lambda connection: None)
        now_ms = self.engine.database.clock.now_ms()
        assert now_ms >= self.latest_ms - 2 * STEP_MS
        self.latest_ms = max(now_ms, self.latest_ms)
        self.waits = self.engine.queues.open("waits.fifo" if self.fifo else "waits")

    def come_and_go(self) -> None:
        if len(self.processes) < 4:
            self.open()
        else:
            self.processes.pop(int(self.chance() * len(self.processes))).close()
        self.pick()


@pytest.mark.slow
@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_processes_that_come_and_go_share_one_time(seed: int, fifo: bool, tmp_path: Path) -> None:
    office = Office(seed, tmp_path / "a.db", fifo=fifo)
    for _ in range(1_500):
        chance = office.chance()
        if chance < 0.01:
            office.step()
        elif chance < 0.04:
            office.come_and_go()
        elif chance < 0.15 and len(office.sent) < 20:
            office.send()
        office.wall.advance(office.one_of((SECOND_MS, 20 * SECOND_MS, MINUTE_MS)))
        office.pick()
        office.receive()
        office.check_none_is_late()
    for engine in office.processes:
        engine.close()
