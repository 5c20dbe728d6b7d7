"""Runs one function on one queue of a data file in this process, for `onefold lambda`.

It opens the file itself, while a server or worker may have it open in other processes; SQLite's locks keep them apart, and
each wakes the others. The mapping is not stored: it ends with the process.
Never here: how the log is drawn (`cli/`), polling (`local/mapping.py`), the server's functions (`local/serving.py`).
Invariants: nothing is received before queue, settings and handler have been checked; a drain leaves nothing in flight.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from onefold import errors, limits, private_files
from onefold.contracts.engine import Engine
from onefold.contracts.settings import QueueSettings
from onefold.engines import urls
from onefold.local import identifiers
from onefold.local import mapping as mappings
from onefold.local.fault_rules import NO_FAULTS, Faults
from onefold.local.faults import FaultInjector
from onefold.local.functions import FunctionStats, ServedFunction
from onefold.local.history import MessageHistory
from onefold.local.outcomes import Crashed, FunctionError, LogLine, Outcome, kind_of, message_of
from onefold.local.queues import LocalQueues
from onefold.local.settings import VISIBILITY_FACTOR, FunctionSettings, MappingSettings, check_function, check_mapping
from onefold.local.timers import Timers

if TYPE_CHECKING:
    from onefold.outside import Clock, Entropy

_LOOK_MS = 100  # how often a run that ends with an empty queue checks the queue
LEFT: Final = 3  # exit code, as a worker's: ended while invocations were in flight


class RunSettings(Struct, frozen=True, kw_only=True):
    """What to run.

    Args:
        data: the file that holds the queue.
        function, mapping: the settings of both; they name each other.
        create_queue: create a missing queue, with six times the function's timeout as its visibility.
        reload: load changed code as soon as it is saved.
        once: end when the queue is empty.
        faults: the faults to inject.
    """

    data: str
    function: FunctionSettings
    mapping: MappingSettings
    create_queue: bool = False
    reload: bool = False
    once: bool = False
    faults: Faults = NO_FAULTS


class RunReport(Struct, frozen=True, kw_only=True):
    """How a run ended.

    Args:
        messages: how many were received, deleted, failed, filtered and dropped, as in `MappingStats`.
        invocations, errors, cold_starts: as in `FunctionStats`.
        code: exit code: 0, or 3 if invocations were cut off.
    """

    messages: dict[str, int]
    invocations: int
    errors: int
    cold_starts: int
    code: int


def read_env_file(path: str) -> dict[str, str]:
    """Environment variables from a file of `KEY=VALUE` lines; `#` begins a comment, quotes around a value are removed.

    Raises:
        NotFoundError: the file does not exist. UsageError: it cannot be read, or a line has another form.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise errors.NotFoundError(f"There is no file {path}.", todo="Give --env-file the file's path.") from None
    except OSError as error:
        raise errors.UsageError(
            f"{path} cannot be read: {error.strerror}.", todo="Give --env-file a text file that you may read."
        ) from None
    except UnicodeDecodeError:
        raise errors.UsageError(f"{path} cannot be read: it is not UTF-8 text.", todo="Save it as UTF-8.") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip().removeprefix("export ").strip()
        if text and not text.startswith("#"):
            name, value = pair(text, f"{path}, line {number}")
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
            found[name] = value[1:-1] if quoted else value
    return found


def pair(text: str, where: str) -> tuple[str, str]:
    """The name and the value of `KEY=VALUE`.

    Raises:
        UsageError: the text has another form; the error says `where`.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise errors.UsageError(f"{where}: it is not KEY=VALUE.", todo="Write for example TABLE=orders.")
    return name.strip(), value.strip()


# -- building --------------------------------------------------------------------------------------------------------


def _check_files(settings: RunSettings) -> None:
    if not Path(settings.function.code_dir).is_dir():
        raise errors.NotFoundError(
            f"There is no folder {settings.function.code_dir}.",
            meaning="The handler is looked for in it.",
            todo="Name the folder of its module with --code-dir.",
        )
    if not Path(settings.data).exists() and not settings.create_queue:
        raise errors.NotFoundError(
            f"There is no data file {settings.data}.",
            meaning="The queue is expected in the database of `onefold serve`.",
            todo="Start the server once, name its file with --data, or create both with --create-queue.",
        )


def _open(settings: RunSettings, clock: Clock, entropy: Entropy) -> Engine:
    try:
        private_files.make_folder(Path(settings.data).parent)
    except OSError as error:
        raise errors.StorageError(
            f"The folder of {settings.data} cannot be made: {error.strerror}.",
            todo="Check the path and its permissions.",
        ) from None
    return urls.open_engine(f"sqlite:///{settings.data}", clock=clock, entropy=entropy, owner=entropy.token())


def _queue(engine: Engine, settings: RunSettings) -> QueueSettings:
    """The mapping's queue, or the one to be created.

    Raises:
        NotFoundError: the queue does not exist; the error has Lambda's text.
    """
    name = settings.mapping.queue
    found = next((one for one in engine.queues.settings() if one.name == name), None)
    if found is not None:
        return found
    if not settings.create_queue:
        raise errors.NotFoundError(
            "Error occurred while ReceiveMessage. SQS Error Code: AWS.SimpleQueueService.NonExistentQueue. "
            "SQS Error Message: The specified queue does not exist for this wsdl version.",
            meaning=f"{settings.data} has no queue {name!r}.",
            todo="Create it first, or add --create-queue.",
        )
    visibility_ms = VISIBILITY_FACTOR * settings.function.timeout_ms + settings.mapping.window_ms
    visibility_ms = min(max(visibility_ms, limits.VISIBILITY_MS_DEFAULT), limits.VISIBILITY_MS_MAX)
    return QueueSettings(name=name, fifo=name.endswith(".fifo"), visibility_ms=visibility_ms)


def _no_handler(settings: FunctionSettings, outcome: Outcome) -> errors.UsageError:
    trace = "".join(outcome.trace).rstrip() if isinstance(outcome, FunctionError) else ""
    detail = f" ({outcome.detail})" if isinstance(outcome, Crashed) and outcome.detail else ""
    return errors.UsageError(
        f"{kind_of(outcome)}: {message_of(outcome)}{detail}",
        meaning=trace or f"The handler {settings.handler} was looked for in {settings.code_dir}. Nothing was received.",
        todo="Correct it, or name the handler as module:function and its folder with --code-dir.",
    )


# -- running ---------------------------------------------------------------------------------------------------------


class FunctionRun:
    """A function that works on a queue, on the loop on which it was started."""

    def __init__(
        self, settings: RunSettings, *, clock: Clock, entropy: Entropy, on_line: Callable[[LogLine], None]
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._on_line = on_line
        self._engine: Engine | None = None
        self._queues: LocalQueues | None = None
        self._function: ServedFunction | None = None
        self._mapping: mappings.Mapping | None = None

    async def start(self) -> QueueSettings:
        """Check everything, start a container, begin to poll, and return the queue.

        Raises:
            UsageError: Lambda would refuse a setting, or the handler cannot be imported. NotFoundError: the file,
                folder or queue does not exist. StorageError: the file cannot be used.
        """
        settings, loop = self._settings, asyncio.get_running_loop()
        check_function(settings.function)
        _check_files(settings)
        timers = Timers(self._clock, loop)
        function = ServedFunction(
            settings.function, timers=timers, clock=self._clock, entropy=self._entropy, on_line=self._on_line
        )
        self._function = function
        refused = await function.warm()
        if refused is not None:
            raise _no_handler(settings.function, refused)
        self._engine = _open(settings, self._clock, self._entropy)
        queue = _queue(self._engine, settings)
        check_mapping(
            settings.mapping,
            fifo=queue.fifo,
            visibility_ms=queue.visibility_ms,
            timeout_ms=settings.function.timeout_ms,
        )
        queues = LocalQueues(self._engine, timers, MessageHistory(0), FaultInjector(settings.faults, self._entropy))
        if settings.reload:
            function.reload_on_change()
        address = identifiers.QueueAddresses(settings.function.account, settings.function.region, "127.0.0.1")
        mapping = mappings.Mapping(settings.mapping, queues, function, addresses=address, entropy=self._entropy)
        self._engine.queues.create(queue)  # does nothing if the queue exists
        await queues.start()
        self._queues, self._mapping = queues, mapping
        mapping.start()
        return queue

    async def until_empty(self) -> None:
        """Return once the queue has no messages left: visible, in flight or delayed."""
        assert self._queues is not None
        assert self._mapping is not None
        queues, name = self._queues, self._settings.mapping.queue
        while True:
            depth = await queues.call(lambda: queues.engine.queues.depth(name))
            if self._mapping.is_idle and not (depth.visible or depth.in_flight or depth.delayed):
                return
            await queues.timers.sleep_until(queues.timers.now_ms() + _LOOK_MS)

    async def stop(self, *, drain: bool) -> None:
        """Stop polling; with `drain`, finish the invocations in flight, otherwise cut them off."""
        if self._mapping is not None:
            await self._mapping.stop(drain=drain)

    async def close(self) -> None:
        """Close what was opened; can be called twice."""
        if self._function is not None:
            await self._function.close()
        if self._queues is not None:
            await self._queues.stop()
            self._queues = None
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def counts(self) -> tuple[dict[str, int], FunctionStats]:
        """The counts of messages, by the mapping's names for them, and the state of the function."""
        assert self._function is not None
        assert self._mapping is not None
        stats = self._mapping.stats()
        counts = {name: getattr(stats, name) for name in ("received", "deleted", "failed", "filtered", "dropped")}
        return counts, self._function.stats()


def run(
    settings: RunSettings,
    *,
    clock: Clock,
    entropy: Entropy,
    on_line: Callable[[LogLine], None],
    ready: Callable[[QueueSettings], None],
    note: Callable[[str], None],
) -> RunReport:
    """Run in this thread, the main one, until SIGTERM or SIGINT, or until the queue is empty.

    The first signal drains: running invocations are finished. The second cuts them off; their messages come back.

    Args:
        on_line: gets the lines of the log. ready: called once it polls. note: gets one line when a signal comes.

    Raises:
        the errors of `FunctionRun.start`.
    """

    async def main() -> RunReport:
        loop = asyncio.get_running_loop()
        first, second = asyncio.Event(), asyncio.Event()

        def signalled() -> None:
            again = first.is_set()
            (second if again else first).set()
            note(
                "Stopping now. Their messages come back"
                if again
                else "Draining. Press Ctrl-C or send SIGTERM again to stop now."
            )

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signalled)
        running = FunctionRun(settings, clock=clock, entropy=entropy, on_line=on_line)
        try:
            ready(await running.start())
            waits = [first.wait(), *([running.until_empty()] if settings.once else [])]
            await _first_of(*waits)
            finished = await _first_of(running.stop(drain=True), second.wait()) == 0
            if not finished:
                await running.stop(drain=False)
            messages, stats = running.counts()
            return RunReport(
                messages=messages,
                invocations=stats.invocations,
                errors=stats.errors,
                cold_starts=stats.cold_starts,
                code=0 if finished else LEFT,
            )
        finally:
            await running.close()

    with asyncio.Runner() as runner:
        return runner.run(main())


async def _first_of(*waits: Coroutine[Any, Any, object]) -> int:
    """Wait until one of them has ended, cancel the others, and return the index of the first."""
    tasks = [asyncio.ensure_future(one) for one in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    index = next(index for index, task in enumerate(tasks) if not task.cancelled())
    tasks[index].result()
    return index
