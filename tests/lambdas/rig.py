"""A function of the handlers in this folder, on a loop of its own, with its log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from onefold.clock import SystemClock
from onefold.entropy import SeededEntropy
from onefold.local.functions import ServedFunction
from onefold.local.outcomes import Answered, LogLine, Outcome
from onefold.local.settings import FunctionSettings
from onefold.local.timers import Timers
from onefold.manual_clock import ManualClock
from onefold.outside import Clock

T = TypeVar("T")

HANDLERS = Path(__file__).with_name("handlers")
WITHIN_S = 60.0


def run(body: Coroutine[Any, Any, T]) -> T:
    """Run a test's body on a loop; it may take half a minute."""
    return asyncio.run(asyncio.wait_for(body, WITHIN_S))


class Rig:
    """A function, its log, and the time of its pool."""

    def __init__(self, handler: str, *, clock: Clock | None = None, code_dir: Path = HANDLERS, **changes: Any) -> None:
        limits = {name: changes.pop(name) for name in ("machine_max", "idle_ms") if name in changes}
        self.lines: list[LogLine] = []
        self.told = asyncio.Event()
        self.clock = clock or SystemClock()
        self.timers = Timers(self.clock, asyncio.get_running_loop())
        settings = FunctionSettings(name="orders", handler=handler, code_dir=str(code_dir))
        self.function = ServedFunction(
            structs.replace(settings, **changes),
            timers=self.timers,
            clock=SystemClock(),
            entropy=SeededEntropy(7),
            on_line=self._told,
            **limits,
        )

    def _told(self, line: LogLine) -> None:
        self.lines.append(line)
        self.told.set()

    async def heard(self, what: Callable[[LogLine], bool]) -> LogLine:
        """Wait until such a line is in the log."""
        while not (found := [line for line in self.lines if what(line)]):
            self.told.clear()
            await self.told.wait()
        return found[0]

    async def invoke(self, event: Any = None, **more: Any) -> Outcome:
        return await self.function.invoke(msgspec.json.encode(event), **more)

    async def answer(self, event: Any = None) -> Any:
        """What the handler returned."""
        outcome = await self.invoke(event)
        assert isinstance(outcome, Answered), outcome
        return msgspec.json.decode(outcome.payload)

    def text(self, stream: str = "stdout") -> list[str]:
        return [line.text for line in self.lines if line.stream == stream]

    def manual(self) -> ManualClock:
        assert isinstance(self.clock, ManualClock)
        return self.clock


@asynccontextmanager
async def rig(handler: str, **changes: Any) -> AsyncIterator[Rig]:
    """A rig that is closed, and has left neither process nor descriptor, afterwards."""
    before = set(os.listdir("/proc/self/fd"))
    made = Rig(handler, **changes)
    try:
        yield made
    finally:
        await made.function.close()
    assert not made.function._generations
    left = set(os.listdir("/proc/self/fd")) - before
    assert len(left) <= 1, f"descriptors left behind: {left}"  # one is the listing's own


def is_gone(pid: int) -> bool:
    """Whether no process of this number runs any more; one that nobody has buried yet is gone too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return True


async def until(true: Callable[[], bool]) -> None:
    """Wait for something that nobody tells."""
    loop = asyncio.get_running_loop()
    while not true():
        again: asyncio.Future[None] = loop.create_future()
        loop.call_later(0.005, again.set_result, None)
        await again


__all__ = ["HANDLERS", "Awaitable", "Rig", "is_gone", "rig", "run", "until"]
