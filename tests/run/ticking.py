"""Schedulers on a manual clock, for tests: apps on one file, an engine without transactions, and one that ends its process.

Never here: what is right. Invariant: every app that was made is closed when the block ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from onefold import App, Tick
from onefold.contracts.queue import Delivery
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.runtime.events import Sinks
from onefold.schedules.scheduler import Scheduler
from tests.run.workshop import BreakerUpdate

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


def at(text: str) -> int:
    """UTC ms of `2026-06-01T02:00:00`."""
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def clock_at(text: str) -> ManualClock:
    return ManualClock(at(text))


class Place:
    """One scheduler of an app with one schedule, on a file that others may share.

    Attributes:
        seen: the run names that its function was called with, in this process. told: its events.
    """

    def __init__(self, path: Path, clock: ManualClock, expression: str, *, app: str = "shop", **options: Any) -> None:
        self.app = App(app, url=f"sqlite:///{path}", clock=clock, entropy=SeededEntropy(id(self) % 2**31))
        self.clock = clock
        self.seen: list[str] = []
        self.told = BreakerUpdate()

        @self.app.schedule(expression, **{"name": "nightly", **options})
        def nightly(tick: Tick) -> None:
            self.seen.append(tick.run)

        self.schedule = nightly
        self.scheduler = Scheduler(self.app.runtime(), Sinks([self.told]))

    def again(self) -> Scheduler:
        """Another scheduler of the same app, as after a restart."""
        self.scheduler = Scheduler(self.app.runtime(), Sinks([self.told]))
        return self.scheduler

    def step(self, by_ms: int = 0) -> int:
        """Move time forward and send what is due; how many ticks."""
        self.clock.advance(by_ms)
        return self.scheduler.catch_up()

    def waiting(self, queue: str = "shop-schedules") -> list[str]:
        """The keys of all messages in a queue, in order of sending."""
        engine = self.app.runtime().engine
        return [str(one.key) for one in engine.queues.peek(queue, limit=500)]

    def ticks(self) -> list[str]:
        """The planned times of all ticks that wait."""
        return [key.partition("/")[2] for key in self.waiting()]

    def take(self, queue: str) -> list[Delivery]:
        return list(self.app.runtime().engine.queues.open(queue).receive(10))


@contextmanager
def places(*made: Place) -> Iterator[Sequence[Place]]:
    try:
        yield made
    finally:
        for one in made:
            one.app.close()


class Loose:
    """An engine without transactions over queues and State, as queues on SQS with records elsewhere are."""

    commit = None

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def together(self, calls: Sequence[Callable[[], object]], *, synced: bool = True) -> list[object]:
        answers: list[object] = []
        for call in calls:
            try:
                answers.append(call())
            except Exception as error:  # noqa: BLE001 - the contract
                answers.append(error)
        return answers


class Crash(BaseException):
    """The process has ended."""


class Perilous:
    """Everything of an engine that a scheduler writes with; the process ends before or after one of the calls.

    Args:
        ends_at: which call, from 0 on; None: none, they are counted. after: it ends after the call.
        end: what ends the process.
    """

    _PARTS = ("state", "ledger", "queues")
    _CALLS = ("put", "append", "send", "notify", "together")

    def __init__(self, inner: Any, ends_at: int | None, *, after: bool, end: Callable[[], None]) -> None:
        self._root, self._inner = self, inner
        self.calls = 0
        self.ends_at, self.after, self.end = ends_at, after, end

    def __getattr__(self, name: str) -> Any:
        return _part(self, self._inner, name)


def _part(root: Perilous, inner: Any, name: str) -> Any:
    found = getattr(inner, name)
    if name in Perilous._PARTS:
        return _Part(root, found)
    if name == "open":
        return lambda queue: _Part(root, found(queue))
    return _watched(root, found) if name in Perilous._CALLS else found


class _Part:
    def __init__(self, root: Perilous, inner: Any) -> None:
        self._root, self._inner = root, inner

    def __getattr__(self, name: str) -> Any:
        return _part(self._root, self._inner, name)


def _watched(root: Perilous, call: Callable[..., Any]) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        mine = root.calls
        root.calls += 1
        if mine == root.ends_at and not root.after:
            root.end()
        answer = call(*args, **kwargs)
        if mine == root.ends_at:
            root.end()
        return answer

    return watched
