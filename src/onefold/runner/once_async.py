"""`@onefold.once` around an `async def`: store calls run in threads, and finish even if the task does not wait for them.

A task can be cancelled wherever it waits; its loop can be closed, its coroutine discarded, and a signal handler can raise
between any two steps. So whatever has begun must complete even if nothing waits for it:

    claiming     a claim that nothing waits for any more is released, by the thread that made it
    running      what the function returned or raised (its cancellation too) is recorded before the call ends
    recording    a call that is cancelled meanwhile waits for its record, `_CANCELLED_WAITS_S` at most; its thread
                 continues, and if no thread has begun by then, the record is written here

The module has its own threads: neither the program's work in the threads of the loop nor claims that wait for the store can
delay the write of a record, and waiting calls do not delay the program's work. The interpreter waits for these threads when
it ends. They share no lock that is written in Python with the thread of a loop (a `concurrent.futures.Future` has such
a lock): if a signal handler raised inside it, it would stay locked forever.
Never here: what a claim or a record is (`guarded.GuardedFunction`, which is passed in).
Invariant: the record of a function that was called is written, by a thread or by the code that ends its call, unless the
process dies.
"""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import functools
import logging
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

from onefold import errors, forks
from onefold.contracts.store import Claimed, Completed, Running
from onefold.runner.execution import Execution
from onefold.runner.guarded import inside

if TYPE_CHECKING:
    from onefold.runner.guarded import Begun, GuardedFunction

A = ParamSpec("A")
R = TypeVar("R")

_CANCELLED_WAITS_S: Final = 5.0  # a record that a store refuses is retried for 1.6 s
_LOOK_S: Final = 1.0
_log = logging.getLogger("onefold")


class _Call(Generic[R]):
    """A call to be made in a thread, unless its caller withdraws it first.

    Each step is one operation in C: it has happened or not, even if a signal handler raises.

    Attributes:
        ending: once the call has ended, what it returned, or None, and what it raised.
        refused: why no thread will make it.
        wakes: called in the thread when the call has ended.
        left: called then as well, perhaps twice, if nothing waits for the call any more.
        is_let_go: whether what it returned has been released.
    """

    def __init__(self) -> None:
        self._taken: dict[str, str] = {}
        self.ending: list[tuple[R | None, BaseException | None]] = []
        self.refused: Exception | None = None
        self.wakes: list[Callable[[_Call[R]], None]] = []
        self.left: Callable[[_Call[R]], None] | None = None
        self.is_let_go = False

    def take(self, by: str = "caller") -> bool:
        """Whether `by` may make the call: only the first that asks may. It may ask again."""
        return self._taken.setdefault("by", by) == by

    def is_over(self) -> bool:
        """Whether a thread has made it, or no thread will."""
        return bool(self.ending) or self.refused is not None

    def perform(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Make the call, in a thread, unless it was withdrawn."""
        if self.take("thread"):
            try:
                self.ending.append((function(*args), None))
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                self.ending.append((None, error))
            self._wake_all()

    def refuse(self, error: Exception) -> None:
        """Note that no thread will make the call, unless one has begun."""
        if self.take():
            self.refused = error
            self._wake_all()

    def leave(self, left: Callable[[_Call[R]], None]) -> None:
        """Note that nothing waits for the call any more."""
        self.left = left
        if self.ending:
            left(self)

    def result(self) -> R:
        """What the call returned.

        Raises:
            what the call raised, or the reason why it was not made.
        """
        value, error = self.ending[0] if self.ending else (None, self.refused)
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def _wake_all(self) -> None:
        for wake in list(self.wakes):
            wake(self)
        if self.left is not None:
            self.left(self)


class _Threads:
    """Threads of this process, started on demand. A thread submits to the executor, which has locks written in Python."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.start_anew()
        forks.in_child(self.start_anew)

    def start_anew(self) -> None:
        """Start again without threads in a forked child, where the parent's threads do not exist."""
        self._pool = ThreadPoolExecutor(thread_name_prefix=self._name)  # as many as a loop has: 4 more than processors
        self._asked: SimpleQueue[tuple[_Call[Any], Callable[..., Any], tuple[Any, ...]]] = SimpleQueue()
        self._feeder: dict[str, int] = {}

    def submit(self, call: _Call[Any], function: Callable[..., Any], *args: object) -> None:
        """Make a call in one of the threads; it is refused if no thread can be started or the interpreter is ending."""
        self._asked.put((call, contextvars.copy_context().run, (function, *args)))
        if not self._feeder:
            try:
                _thread.start_new_thread(self._feed, ())
            except RuntimeError as error:
                call.refuse(error)

    def _feed(self) -> None:
        """Pass the submitted calls on to the executor; runs in a daemon thread."""
        if self._feeder.setdefault("thread", _thread.get_ident()) != _thread.get_ident():
            return
        while True:
            call, function, args = self._asked.get()
            try:
                self._pool.submit(call.perform, function, args)
            except Exception as error:  # noqa: BLE001 - mostly RuntimeError; the caller gets it, and other calls go on
                call.refuse(error)
            del call, function, args


_claims: Final = _Threads("onefold-once-claim")
_records: Final = _Threads("onefold-once-record")


async def _until_over(
    call: _Call[Any], at_most_s: float = math.inf, nobody_waits: Callable[[_Call[Any]], None] | None = None
) -> None:
    """Wait until `call` is over; if the loop is closed by then, the call's thread calls `nobody_waits` with it.

    When a signal handler raises inside a loop, the loop may lose a wake-up, so this also checks from time to time.
    """
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    def in_thread(call: _Call[Any]) -> None:
        try:
            loop.call_soon_threadsafe(wake)
        except RuntimeError:
            if nobody_waits is not None:
                nobody_waits(call)

    call.wakes.append(in_thread)
    until_s = loop.time() + at_most_s
    while not call.is_over() and (left_s := until_s - loop.time()) > 0:
        await asyncio.wait([woken], timeout=min(left_s, _LOOK_S))


class _Pauses:
    """The pauses of duplicates between two checks: all of them share one daemon thread."""

    def __init__(self, guard: GuardedFunction) -> None:
        self._guard = guard
        self._pause: _Call[bool] | None = None
        forks.in_child(self._start_anew)

    def _start_anew(self) -> None:
        self._pause = None

    async def wait(self) -> None:
        """Wait for the end of the pause in progress, or start one."""
        pause, guard = self._pause, self._guard
        if pause is None or pause.is_over():
            pause = _Call()
            _thread.start_new_thread(pause.perform, (guard.clock.wait, (guard.never, guard.check_again_ms)))
            self._pause = pause  # set only after its start, because a signal handler may raise in between
        await _until_over(pause)
        pause.result()


async def _claim(guard: GuardedFunction, args: Any, kwargs: Any) -> Begun | Completed | Running:
    """Like `GuardedFunction.claim`, in a thread."""

    def let_go(call: _Call[Begun | Completed | Running]) -> None:
        if call.ending and not call.is_let_go:
            with suppress(errors.OnefoldError):  # if this fails, the key is free when its lease ends
                guard.give_back(call.ending[0][0])
            call.is_let_go = True

    call: _Call[Begun | Completed | Running] = _Call()
    try:
        _claims.submit(call, guard.claim, args, kwargs)
        await _until_over(call, nobody_waits=let_go)
        return call.result()
    except BaseException:
        call.take()  # no thread can be started any more
        call.leave(let_go)
        raise


async def in_thread(call: Callable[[], R]) -> R:
    """Make a call that may wait for a store, in one of the threads for claims; returns or raises what the call does."""
    made: _Call[R] = _Call()
    _claims.submit(made, call)
    await _until_over(made)
    return made.result()


async def _write(
    call: _Call[None],
    write: Callable[[Begun, Any], None],
    found: Begun,
    ending: Any,
    cancelled: asyncio.CancelledError | None = None,
) -> None:
    """Like `GuardedFunction.finished` or `failed`, in a thread; returns or raises once the record is written.

    Args:
        call: set to the thread's call once it is submitted. ending: what the function returned or raised.
        cancelled: the call is being cancelled already.

    Raises:
        what `write` raises; CancelledError: the call was cancelled, and the record is written or takes too long.
    """
    _records.submit(call, write, found, ending)
    if cancelled is None:
        try:
            await _until_over(call)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _CANCELLED_WAITS_S
        while not call.is_over() and (left_s := until_s - loop.time()) > 0:
            with suppress(asyncio.CancelledError):
                await _until_over(call, left_s)
    if call.refused is not None:
        try:
            write(found, ending)
        except errors.OnefoldError as error:
            call.ending.append((None, error))
        else:
            call.ending.append((None, None))
    if cancelled is None:
        return call.result()
    call.leave(_log_error)
    raise cancelled


def _log_error(call: _Call[None]) -> None:
    """Log the error of a record's write, because the caller only gets its cancellation."""
    if (error := call.ending[0][1]) is not None:
        _log.error("A call that was cancelled: %s", error)


def asynchronous(function: Callable[A, Any], guard: GuardedFunction) -> Callable[A, Any]:
    """Call the function under the guard."""
    pauses = _Pauses(guard)

    @functools.wraps(function)
    async def guarded(*args: A.args, **kwargs: A.kwargs) -> Any:
        found: Begun | Completed | Running | None = None
        values: list[Any] = []
        since_ms: int | None = None
        late = 0
        generation = guard.generation
        outside, within = inside.get(), None
        writing: _Call[None] = _Call()
        try:
            found = await _claim(guard, args, kwargs)
            while isinstance(found, Running) or guard.is_late(found):
                if isinstance(found, Running):
                    since_ms = guard.wait_from(found, since_ms, args, kwargs)
                    await pauses.wait()
                else:  # rare: this process was stopped for a while; this costs one write
                    late, found = guard.given_back(found, late), None
                found = await _claim(guard, args, kwargs)
            if isinstance(found, Completed):
                return guard.stored(found)
            within = (*outside, found.hold)
            inside.set(within)
            try:
                given = guard.with_context(found, args, kwargs)
                call: Callable[..., Any] = functools.partial(function, **given)
                call = guard.within_hooks(found, call, is_async=True) if guard.hooks.has_any else call
                values.append(await call(*args))  # no signal handler can raise before it is kept
            except (Exception, asyncio.CancelledError) as error:
                if not values and guard.generation == generation:
                    cancelled = error if isinstance(error, asyncio.CancelledError) else None
                    with suppress(errors.OnefoldError):  # the function's own error counts
                        await _write(writing, guard.failed, found, error, cancelled)
                raise
            if guard.generation == generation:  # otherwise it forked, and both returned: the parent records it
                await _write(writing, guard.finished, found, values[0])
            return values[0]
        except BaseException as error:
            # No thread has begun to write: it took too long, a signal handler raised, or the coroutine is being
            # discarded.
            guard.quote_key(error, found, (args, kwargs))
            is_unwritten = not writing.ending and writing.take()
            if is_unwritten and isinstance(found, Claimed | Execution) and guard.generation == generation:
                guard.ended(found, values, error, runs=within is not None)
            raise
        finally:
            if inside.get() is within:  # otherwise the garbage collector would discard it, in another context
                inside.set(outside)

    return guarded
