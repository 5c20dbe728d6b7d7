"""Dispatchers: a generator function of messages becomes the handler of a tick, which enqueues them as they are yielded.

Every message is an ordinary one of its job, with its key and the run's name. A batch - its rows in the ledger, its messages
and the checkpoint - is one transaction where the engine supports that; elsewhere they are written in that order, so
that a crash may leave a row without its message, which the next try sends, but never a message without its row.

A generator cannot be stored, so a dispatch that was interrupted runs it again and skips as many messages as the checkpoint
counts. When their keys differ from those of the checkpoint (compared by a digest), the data has changed in between, and
nothing is skipped: all messages are sent again, under their keys, so each still takes effect once.

Never here: schedules, what is done with the messages. Invariant: a checkpoint counts only messages that are in their queue.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, closing
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from onefold import errors
from onefold.contracts.ledger import Row
from onefold.contracts.queue import RUN_ATTRIBUTE, Attribute
from onefold.contracts.state import Change
from onefold.interrupts import ignored
from onefold.runner import runs
from onefold.runner.context import Context
from onefold.runner.handlers import positional
from onefold.runner.runs import RunState
from onefold.runtime.events import Event, kept_text
from onefold.runtime.outgoing import Outgoing, transaction

if TYPE_CHECKING:
    from onefold.runtime.runtime import Runtime

BATCH: Final = 500  # messages of one transaction, which holds the file of an embedded engine for some milliseconds
BATCH_BYTES: Final = 4 * 1024 * 1024  # bytes of bodies that a dispatch keeps in memory
BATCH_MS: Final = 1_000  # how often a slow generator is checkpointed


class Ticked(Protocol):
    """The part of a dispatcher's payload that describes its run."""

    @property
    def schedule(self) -> str:
        """The name of the schedule."""
        ...

    @property
    def nominal_at_ms(self) -> int | None:
        """The instant of the tick."""
        ...

    @property
    def run(self) -> str:
        """The run's name."""
        ...


class _OtherKeysError(Exception):
    """The generator does not yield what it yielded before."""


class Dispatch:
    """Puts one run's messages into their queues, in batches. For one thread at a time.

    Args:
        runtime: the runtime that they are sent with.
        run: the value to create if no run of that name exists.
        batch: how many messages a transaction has, 1 or more.

    Attributes:
        over: everything has been dispatched already; there is nothing to do.
    """

    def __init__(self, runtime: Runtime, run: RunState, *, batch: int = BATCH) -> None:
        self._runtime = runtime
        self._engine, self._clock, self._owner = runtime.engine, runtime.clock, runtime.owner
        self._batch_max = batch
        try:
            self._stored = runs.begin_followed(runtime, run)
        except errors.StorageError as error:
            if not isinstance(error.__cause__, msgspec.MsgspecError | UnicodeDecodeError):
                raise
            # Only this run's value cannot be read, not the whole file: this tick fails, other ticks are not affected.
            raise errors.TransientError(error.what, meaning=error.meaning, todo=error.todo) from error
        self.over = self._stored.run.expected is not None
        if self.over:
            self._ended()
        self._from_start(self._stored.run.dispatched)

    @property
    def run(self) -> RunState:
        """The current value of the run."""
        return self._stored.run

    def _from_start(self, passed_over: int) -> None:
        self._pass_over = passed_over
        self._count, self._digest = 0, b""
        self._batch: list[Outgoing] = []
        self._bytes = 0
        self._flushed_ms = self._clock.monotonic_ms()

    def restart(self) -> None:
        """Begin again without skipping anything, because the generator yields different messages than before."""
        event = Event(
            at_ms=self._clock.now_ms(),
            name="dispatch-restarted",
            run=self.run.name,
            actor=self._owner,
            detail={"dispatched": self.run.dispatched},
        )
        self._engine.ledger.append([event.row()])
        if self._runtime.sinks is not None:
            self._runtime.sinks.emit(event)
        self._from_start(0)

    def add(self, one: object) -> bool:
        """Take the next message; returns whether the batch is to be flushed now.

        Raises:
            UsageError: it is not a message.
        """
        if not isinstance(one, Outgoing):
            raise errors.UsageError(
                f"The dispatcher of {self.run.title} yielded {type(one).__name__}.",
                meaning="Only messages can be dispatched.",
                todo="Yield job.message(payload).",
            )
        self._count += 1
        self._digest = blake2b(self._digest + _identity(one), digest_size=16).digest()
        if self._count <= self._pass_over:
            if self._count == self._pass_over and self._digest.hex() != self.run.digest:
                raise _OtherKeysError
            return False
        self._batch.append(in_run(one, self.run.name))
        self._bytes += len(one.entry.body)
        return (
            len(self._batch) >= self._batch_max
            or self._bytes >= BATCH_BYTES
            or self._clock.monotonic_ms() - self._flushed_ms >= BATCH_MS
        )

    def flush(self) -> None:
        """Enqueue the messages taken so far, with their rows and the checkpoint; without messages it does nothing.

        Raises:
            PayloadError: a queue does not accept one of them. StorageBusy: nothing was enqueued.
            LeaseLost: another process dispatches this run.
        """
        if not self._batch:
            return
        now_ms = self._clock.now_ms()
        rows = [
            Row(at_ms=now_ms, event="dispatched", key=one.record, queue=one.queue, run=self.run.name, actor=self._owner)
            for one in self._batch
        ]
        after = replace(self.run, dispatched=self._count, digest=self._digest.hex(), failure=None)

        def write() -> None:
            self._engine.ledger.append(rows)
            self._runtime.send(self._batch)
            self._put(after)

        self._together(write)
        self._batch, self._bytes = [], 0
        self._flushed_ms = self._clock.monotonic_ms()

    def end(self) -> int:
        """Enqueue the rest, and return how many operations the run has: different keys, not messages.

        Raises:
            As for `flush`.
        """
        if self._count < self._pass_over:
            raise _OtherKeysError
        self.flush()
        expected = sum(self._engine.ledger.tally(self.run.name).values())
        after = replace(self.run, expected=expected, dispatched=self._count, digest=self._digest.hex(), failure=None)
        self._together(lambda: self._put(after))
        self._ended()
        return expected

    def _ended(self) -> None:
        """Have the run checked for completion, as its last operation may be settled already."""
        self._runtime.touch_run(self.run.name)

    def fail(self, error: Exception) -> None:
        """Note why the dispatch stopped; it continues when the tick is delivered again."""
        failure = f"{type(error).__name__}: {kept_text(error)}"[:500]
        with ignored(errors.TransientError):
            runs.note(self._engine.state, self.run.name, failure=failure)

    def _put(self, after: RunState) -> None:
        """Write the run's value, unless another process has written it."""
        value, name, state = runs.encode(after), runs.state_name(after.name), self._engine.state
        if state.put([Change(name, value, self._stored.version)])[0]:
            self._stored = runs.VersionedRun(after, self._stored.version + 1)
            return
        found = state.get([name])[0]
        if found is None or found.value != value:  # otherwise it was written by a try whose answer was lost
            raise errors.LeaseLost(
                f"Run {after.name} is dispatched by another process.", todo="Stop here; the other one goes on."
            )
        self._stored = runs.VersionedRun(after, found.version)

    def _together(self, write: Callable[[], None]) -> None:
        before = self._stored
        try:
            transaction(self._engine, write)
        except BaseException:
            self._stored = before
            raise


def as_handler(
    function: Callable[..., Any],
    runtime: Runtime,
    *,
    payload: Any = None,
    tick_of: Callable[[Any], Ticked] = lambda payload: payload,
    owner: str | None = None,
    batch: int = BATCH,
) -> Callable[[Any, Context], Any]:
    """Make the handler of a tick from a generator function, which yields messages made by `job.message(...)`.

    The handler's result is the number of the run's operations. Between batches it checks whether it still holds its
    lease and has time left (`ctx.check()`).

    Args:
        function: a plain or async generator function of (tick) or (tick, ctx).
        runtime: the app's runtime.
        payload: the type of the handler's payload; by default the annotation of the function's first parameter.
        tick_of: makes the tick from a payload.
        owner: the team that is responsible for fixes.
        batch: messages of one transaction, 1 or more.

    Raises:
        UsageError: not a generator function, or one without a parameter.
    """
    asynchronous = inspect.isasyncgenfunction(function)
    if not (asynchronous or inspect.isgeneratorfunction(function)) or positional(function) == 0:
        raise errors.UsageError(
            f"{getattr(function, '__name__', function)!r} cannot be a dispatcher.",
            todo="Write a function of (tick) that yields job.message(payload).",
        )
    takes_context = positional(function) >= 2

    def opened(tick: Ticked) -> Dispatch:
        now_ms = runtime.now_ms()
        run = runs.of_tick(tick.run, tick.schedule, tick.nominal_at_ms, now_ms, dispatches=True, owner=owner)
        return Dispatch(runtime, run, batch=batch)

    def begun(tick: Ticked, ctx: Context) -> Any:
        return function(tick, ctx) if takes_context else function(tick)

    def handle(message: Any, ctx: Context) -> int:
        tick = tick_of(message)
        return _drive(opened(tick), lambda: begun(tick, ctx), ctx)

    async def handle_in_task(message: Any, ctx: Context) -> int:
        from asyncio import to_thread  # 36 ms to import; only async dispatchers need it

        tick = tick_of(message)
        return await _drive_in_task(await to_thread(opened, tick), lambda: begun(tick, ctx), ctx)

    return _named(handle_in_task if asynchronous else handle, function, payload)


def _drive(dispatch: Dispatch, begin: Callable[[], Iterator[object]], ctx: Context) -> int:
    while not dispatch.over:
        try:
            with closing(begin()) as messages:  # type: ignore[type-var]  # a generator
                for one in messages:
                    if dispatch.add(one):
                        ctx.check()
                        dispatch.flush()
            ctx.check()
            return dispatch.end()
        except _OtherKeysError:
            dispatch.restart()
        except errors.LeaseLost:
            raise
        except Exception as error:
            dispatch.fail(error)
            raise
    return dispatch.run.expected or 0


async def _drive_in_task(dispatch: Dispatch, begin: Callable[[], AsyncIterator[object]], ctx: Context) -> int:
    from asyncio import to_thread

    while not dispatch.over:
        try:
            async with aclosing(begin()) as messages:  # type: ignore[type-var]  # an async generator
                async for one in messages:
                    if dispatch.add(one):
                        ctx.check()
                        await to_thread(dispatch.flush)
            ctx.check()
            return await to_thread(dispatch.end)
        except _OtherKeysError:
            await to_thread(dispatch.restart)
        except errors.LeaseLost:
            raise
        except Exception as error:
            await to_thread(dispatch.fail, error)
            raise
    return dispatch.run.expected or 0


def _named(handler: Callable[..., Any], function: Callable[..., Any], payload: Any) -> Callable[[Any, Context], Any]:
    """The handler under the function's name, with annotations that a declaration can read."""
    if payload is None:
        first = next(iter(inspect.signature(function).parameters))
        payload = typing.get_type_hints(function).get(first, Any)
    handler.__name__, handler.__qualname__ = function.__name__, function.__qualname__
    handler.__module__, handler.__doc__ = function.__module__, function.__doc__
    handler.__annotations__ = {"message": payload, "ctx": Context, "return": int}
    return handler


def _identity(one: Outgoing) -> bytes:
    """Queue and operation of a message, by which two tries of one dispatch are compared."""
    record = one.record
    return f"{one.queue}\0{record.scope}\0{record.job}\0{record.key}".encode()


def in_run(one: Outgoing, run: str) -> Outgoing:
    """The message, marked as part of the run. A `unique` job reserves nothing here, or a second try would be refused."""
    attributes: Mapping[str, Attribute] = {**one.entry.attributes, RUN_ATTRIBUTE: Attribute(run)}
    return replace(one, entry=replace(one.entry, attributes=attributes), unique=False)
