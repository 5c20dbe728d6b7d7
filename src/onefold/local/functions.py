"""A Lambda function: its containers, which of them runs an invocation, and how many may run at one time.

A warm container is used before a new one is started, and of several the one that was used last, so that unneeded ones
become idle and are ended. Invocations beyond the reserved concurrency are throttled, as on Lambda; those beyond what
this machine is allowed to run wait. New code or settings mean new containers from the next invocation, while the old
ones finish what they run.
Never here: who invokes (`mapping.py`), a container's insides (`containers.py`).
Invariants: `invoke` has exactly one outcome and never raises because of a handler; `close` leaves no container behind.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from onefold import limits
from onefold.local.containers import Container, Kill
from onefold.local.outcomes import Answered, Crashed, LogLine, Outcome, Throttled, message_of
from onefold.local.settings import CONCURRENCY_DEFAULT, FunctionSettings
from onefold.local.timers import Timer, Timers

if TYPE_CHECKING:
    from onefold.outside import Clock, Entropy


MACHINE_MAX: Final = 32
IDLE_MS: Final = 5 * limits.MINUTE_MS  # Lambda documents no number; its containers are seen to stay for 5 to 15 minutes
_TYPICAL_MS = 10.0  # assumed duration of an invocation until one has been measured


class FunctionStats(Struct, frozen=True, kw_only=True):
    """The state of a function.

    Args:
        running: present invocations. idle: warm containers.
        invocations: begun so far; errors: those of them without an answer; throttled: those not begun.
        cold_starts: containers started so far.
    """

    running: int
    idle: int
    invocations: int
    errors: int
    throttled: int
    cold_starts: int


class _Warm(Struct):
    """A container that waits for its next invocation."""

    container: Container
    idle_from_ms: int


class ServedFunction:
    """A function that can be invoked. Used on the loop's thread only.

    Args:
        settings: checked settings.
        pace: timers that may follow a manual clock: for ending idle containers and looking for new code.
        clock: the real clock, for deadlines and durations.
        entropy: for request ids.
        on_line: gets the log, line by line; must be quick.
        machine_max: the most containers that run at one time here, 1 or more.
        idle_ms: how long a container is kept without an invocation.
    """

    def __init__(
        self,
        settings: FunctionSettings,
        *,
        timers: Timers,
        clock: Clock,
        entropy: Entropy,
        on_line: Callable[[LogLine], None],
        machine_max: int = MACHINE_MAX,
        idle_ms: int = IDLE_MS,
    ) -> None:
        self.settings = settings
        self.running = 0
        self._timers = timers
        self._clock = clock
        self._entropy = entropy
        self._on_line = on_line
        self._machine_max = machine_max
        self._idle_ms = idle_ms
        self._turn = asyncio.Semaphore(machine_max)
        self._generation = 0
        self._generations: dict[Container, int] = {}  # of every container that still exists
        self._idle: list[_Warm] = []
        self._leaving: set[asyncio.Task[None]] = set()
        self._sweep: Timer | None = None
        self._watch: CodeWatch | None = None
        self._typical_ms = _TYPICAL_MS
        self._invocations = self._errors = self._throttled = self._cold_starts = 0
        self._closed = False

    # -- invoking ----------------------------------------------------------------------------------------------------

    @property
    def limit(self) -> int:
        """The most invocations at one time; further ones are throttled."""
        reserved = self.settings.reserved_concurrency
        return CONCURRENCY_DEFAULT if reserved is None else reserved

    @property
    def capacity(self) -> int:
        """The most invocations that run at one time on this machine; further ones are throttled, or wait."""
        return min(self.limit, self._machine_max)

    def new_request_id(self) -> str:
        """An id for an invocation: a random UUID, from this function's entropy."""
        return str(uuid.UUID(hex=self._entropy.token() + self._entropy.token(), version=4))

    async def invoke(self, event: bytes, *, request_id: str | None = None, kill: Kill | None = None) -> Outcome:
        """Call the handler with one event. If the call is cancelled, its container is killed.

        Args:
            event: JSON, at most `settings.EVENT_BYTES_MAX`.
            request_id: from `new_request_id`; None makes one.
            kill: a fault: kill the container before the handler has the event, while it runs, or after it returned.
        """
        assert not self._closed, "a closed function is not invoked"
        if self.running >= self.limit:
            self._throttled += 1
            return Throttled(self.limit)
        self.running += 1
        try:
            async with self._turn:
                outcome = await self._invoke(event, request_id or self.new_request_id(), kill)
        finally:
            self.running -= 1
        if not isinstance(outcome, Answered):
            self._errors += 1
        return outcome

    async def _invoke(self, event: bytes, request_id: str, kill: Kill | None) -> Outcome:
        if self._closed:  # while it waited for its turn
            return Crashed("signal: killed", "the function was closed before it began")
        self._invocations += 1
        container = self._warm() or await self._fresh(request_id)
        if not isinstance(container, Container):
            return container
        try:
            kill_in_ms = int(self._typical_ms * self._entropy.fraction()) if kill == "during" else 0
            outcome = await container.invoke(event, request_id, kill=kill, kill_in_ms=kill_in_ms)
        finally:
            self._give_back(container)
        if isinstance(outcome, Answered):
            self._typical_ms += (container.took_ms - self._typical_ms) / 8
        return outcome

    async def warm(self) -> Outcome | None:
        """Start a container before the first event; None if there is one, otherwise why there cannot be."""
        made = await self._fresh(self.new_request_id(), reports=False)
        if not isinstance(made, Container):
            return made
        self._give_back(made)
        return None

    async def _fresh(self, request_id: str, *, reports: bool = True) -> Container | Outcome:
        """A new container with the handler imported, or how the import failed."""
        try:
            container = self._start()
        except OSError as error:
            return self._not_started(error, request_id)
        failed: Outcome | None = None
        try:
            failed = await container.init(request_id, reports=reports)
        finally:
            if not container.alive:  # failed, or cancelled
                self._let_go(container)
        return container if failed is None else failed

    def _not_started(self, error: OSError, request_id: str) -> Outcome:
        outcome = Crashed(f"fork/exec {sys.executable}: {error.strerror}", "the system gave no process")
        self._log(f"RequestId: {request_id} Error: {message_of(outcome)}", request_id)
        return outcome

    # -- containers --------------------------------------------------------------------------------------------------

    def _warm(self) -> Container | None:
        """The container that was used last and can be used again; None if there is none."""
        while self._idle:
            container = self._idle.pop().container
            if container.alive:
                return container
            self._let_go(container)
        return None

    def _start(self) -> Container:
        """A new container.

        Raises:
            OSError: the system cannot provide a process.
        """
        day = datetime.fromtimestamp(self._clock.now_ms() / 1000, tz=UTC).strftime("%Y/%m/%d")
        container = Container(
            self.settings,
            loop=self._timers.loop,
            clock=self._clock,
            on_line=self._on_line,
            log_stream=f"{day}/[$LATEST]{self._entropy.token()}{self._entropy.token()}",
        )
        self._generations[container] = self._generation
        self._cold_starts += 1
        return container

    def _give_back(self, container: Container) -> None:
        if not container.alive or self._closed or self._generations[container] != self._generation:
            self._let_go(container)
            return
        self._idle.append(_Warm(container, self._timers.now_ms()))
        if self._sweep is None:
            self._sweep = self._timers.call_at(self._timers.now_ms() + self._idle_ms, self._let_idle_go)

    def _let_idle_go(self) -> None:
        now_ms = self._timers.now_ms()
        self._sweep = None
        while self._idle and self._idle[0].idle_from_ms + self._idle_ms <= now_ms:
            self._let_go(self._idle.pop(0).container)
        if self._idle:
            self._sweep = self._timers.call_at(self._idle[0].idle_from_ms + self._idle_ms, self._let_idle_go)

    def _let_go(self, container: Container) -> None:
        container.kill()
        leaving = self._timers.loop.create_task(self._see_off(container))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def _see_off(self, container: Container) -> None:
        await container.close()
        self._generations.pop(container, None)

    # -- what changes ------------------------------------------------------------------------------------------------

    def reload(self) -> None:
        """Use new containers from the next invocation, because the code has changed; running ones finish."""
        self._generation += 1
        idle, self._idle = self._idle, []
        for warm in idle:
            self._let_go(warm.container)

    def replace(self, settings: FunctionSettings) -> None:
        """Use other, checked settings from the next invocation."""
        self.settings = settings
        self.reload()
        if self._watch is not None:
            self._watch.close()
            self._watch = None
            self.reload_on_change()

    def reload_on_change(self) -> None:
        """Reload whenever a `.py` file below the code's folder changes, and log it."""

        def changed(paths: list[str]) -> None:
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            self._log(f"{paths[0]}{more} changed: the next invocations run the new code", "")
            self.reload()

        if self._watch is None:
            self._watch = CodeWatch(self.settings.code_dir, self._timers, changed)

    def stats(self) -> FunctionStats:
        """Its state now."""
        return FunctionStats(
            running=self.running,
            idle=sum(warm.container.alive for warm in self._idle),
            invocations=self._invocations,
            errors=self._errors,
            throttled=self._throttled,
            cold_starts=self._cold_starts,
        )

    async def close(self) -> None:
        """Kill all containers, even those that run, and wait until they are gone; can be called twice."""
        self._closed = True
        if self._watch is not None:
            self._watch.close()
        if self._sweep is not None:
            self._sweep.cancel()
        self._idle.clear()
        await asyncio.gather(*(container.close() for container in list(self._generations)))
        while self._leaving:
            await asyncio.gather(*self._leaving)
        self._generations.clear()

    def _log(self, text: str, request_id: str) -> None:
        self._on_line(LogLine(self.settings.name, request_id, "platform", text))


LOOK_MS: Final = 500
_FILES_MAX = 20_000
_NO_CODE = frozenset(("__pycache__", "node_modules", "site-packages", "venv"))

Seen = Mapping[str, tuple[int, int]]


class CodeWatch:
    """Watches one folder and everything below it.

    Args:
        folder: its hidden folders, installed packages and caches are left out; at most 20,000 files are checked.
        changed: called with the sorted paths, relative to the folder, of files that changed, appeared or disappeared.
    """

    def __init__(self, folder: str, timers: Timers, changed: Callable[[list[str]], None]) -> None:
        self._folder = folder
        self._timers = timers
        self._changed = changed
        self._seen = scan(folder)
        self._timer: Timer | None = None
        self._scan: asyncio.Future[Seen] | None = None
        self._closed = False
        self._arm()

    def _arm(self) -> None:
        self._timer = self._timers.call_at(self._timers.now_ms() + LOOK_MS, self._begin)

    def _begin(self) -> None:
        self._scan = self._timers.loop.run_in_executor(None, scan, self._folder)
        self._scan.add_done_callback(self._compare)

    def _compare(self, look: asyncio.Future[Seen]) -> None:
        if self._closed or look.cancelled():
            return
        now, before = look.result(), self._seen
        self._seen = now
        different = sorted(path for path in now.keys() | before.keys() if now.get(path) != before.get(path))
        if different:
            self._changed(different)
        self._arm()

    def close(self) -> None:
        """Stop watching; can be called twice."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()


def scan(folder: str) -> Seen:
    """Modification time in nanoseconds and size of each `.py` file, by its path relative to `folder`."""
    found: dict[str, tuple[int, int]] = {}
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _NO_CODE]
        for name in files:
            if name.endswith(".py") and len(found) < _FILES_MAX:
                path = os.path.join(parent, name)
                try:
                    state = os.stat(path)
                except OSError:  # gone since it was listed
                    continue
                found[os.path.relpath(path, folder)] = (state.st_mtime_ns, state.st_size)
    return found
