"""Local queues on one loop for tests: in memory or on a file, on a clock that is moved by hand or on the machine's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from onefold.clock import SystemClock
from onefold.contracts.entries import Entry, Sent
from onefold.contracts.queue import Delivery
from onefold.contracts.settings import QueueSettings
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.entropy import SeededEntropy, SystemEntropy
from onefold.local.fault_rules import NO_FAULTS
from onefold.local.faults import FaultInjector
from onefold.local.history import MessageHistory
from onefold.local.queues import LocalQueues
from onefold.local.timers import Timers
from onefold.manual_clock import ManualClock
from onefold.outside import Clock

WAIT_MS = 20_000  # SQS's longest poll
TEST_S = 60


def opened(path: str, clock: Clock) -> SqliteEngine:
    """An engine as a process of its own would have it."""
    return SqliteEngine(path, clock=clock, entropy=SystemEntropy(), owner="test", url=f"sqlite:///{path}")


class House:
    """Local queues with `orders` (dead letters in `orders-dead`) and `steps.fifo`.

    Args:
        path: a file, or None for memory.
        clock: a manual one unless told otherwise.
    """

    def __init__(self, path: Path | None = None, clock: Clock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.path = ":memory:" if path is None else str(path)
        self.engine = opened(self.path, self.clock)
        admin = self.engine.queues
        admin.create(QueueSettings(name="orders-dead", retention_ms=1_209_600_000))
        admin.create(QueueSettings(name="orders", dead_letter="orders-dead", receives_max=2))
        admin.create(QueueSettings(name="steps.fifo", fifo=True, content_dedup=True))
        self.timers = Timers(self.clock, asyncio.get_running_loop())
        self.history = MessageHistory()
        self.queues = LocalQueues(self.engine, self.timers, self.history, FaultInjector(NO_FAULTS, SeededEntropy(1)))

    def advance(self, ms: int) -> None:
        """Move the manual clock and fire what came due."""
        assert isinstance(self.clock, ManualClock)
        self.clock.advance(ms)
        self.timers.moved()

    async def send(self, *bodies: str, queue: str = "orders", group: str | None = None) -> list[str]:
        """Send; the messages' ids."""
        sent = await self.queues.send(queue, [Entry(body=body, group=group) for body in bodies])
        return [one.message_id for one in sent if isinstance(one, Sent)]

    async def poll(self, count_max: int = 1, *, queue: str = "orders", **options: Any) -> asyncio.Task[list[Delivery]]:
        """A long poll that stands in line when this returns."""
        task = asyncio.ensure_future(
            self.queues.receive(queue, count_max, **{"wait_ms": WAIT_MS, **options})  # type: ignore[arg-type]
        )
        await turns()
        return task

    async def bodies(self, queue: str = "orders", count_max: int = 10) -> list[str]:
        """What a short poll gives."""
        return [delivery.body for delivery in await self.queues.receive(queue, count_max)]

    def whats(self, message_id: str) -> list[str]:
        """What the history says of a message."""
        return [event.what for event in self.history.of(message_id)]


async def turns(count: int = 12) -> None:
    """Let the loop turn a few times, so that what was begun gets as far as it can without time or others."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        turned: asyncio.Future[None] = loop.create_future()
        loop.call_soon(turned.set_result, None)
        await turned


async def until(is_so: Callable[[], bool]) -> None:
    """Let the loop turn, in real time, until something is so."""
    waiting = asyncio.Event()
    loop = asyncio.get_running_loop()
    while not is_so():
        loop.call_later(0.002, waiting.set)
        await waiting.wait()
        waiting.clear()


def play(
    script: Callable[[House], Coroutine[Any, Any, None]], path: Path | None = None, *, system: bool = False
) -> None:
    """Run a script in a house of its own; a task that fails unseen fails the test."""
    unseen: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        house = House(path, SystemClock() if system else None)
        try:
            await asyncio.wait_for(script(house), TEST_S)
        finally:
            await house.queues.stop()
            house.engine.close()

    asyncio.run(run())
    assert unseen == []


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and see them end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
