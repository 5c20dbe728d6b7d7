"""`@onefold.once` around an `async def`: whatever a call asks of the store is asked in a thread, and ends without the task.

A task can be cancelled wherever it waits; its loop can be closed, its coroutine thrown away, an exception out of a signal's
handler come between any two steps. So nothing that has begun needs somebody who waits for it:

    claiming     what nobody waits for any more is given back, by the thread that claimed it
    running      what the function returned or raised, its cancellation too, is recorded before the call ends
    recording    a call that is cancelled meanwhile waits for its record, `_CANCELLED_WAITS_S` at most; its thread goes on,
                 and where none has begun by then, the record is written here

The threads are the module's own: neither the program's work in the threads of the loop nor claims that wait for the store
are in the way of a record, and calls that wait are not in the way of the program's. They are waited for when the interpreter
ends. The thread of a loop and these share no lock that is written in Python, as a `concurrent.futures.Future` has one: an
exception of a signal's handler in there would leave it taken for ever.
Never here: what a claim or a record is: that is `guarded.GuardedFunction`, which is handed in.
Invariant: a function that was called has its record written, by a thread or by whoever ends its call, unless the process
dies.
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

if TYPE_CHECKING:
    from onefold.runner.guarded import Begun, GuardedFunction

A = ParamSpec("A")
R = TypeVar("R")

_CANCELLED_WAITS_S: Final = 5.0  # a record that a store refuses is tried again for 1.6 s
_LOOK_S: Final = 1.0
_log = logging.getLogger("onefold")


class _Call(Generic[R]):
    """A call that a thread makes, unless whoever asked for it takes it back first.

    Each step is one operation in C: it has happened or not, whatever comes in between.

    Attributes:
        ending: what it returned, or None, and what it raised, once it has ended.
        refused: why no thread will make it.
        wakes: called in the thread when it has ended.
        left: called then, too, when nobody waits for it any more; perhaps twice.
        is_let_go: what it returned is given back.
    """

    def __init__(self) -> None:
        self._taken: dict[str, str] = {}
        self.ending: list[tuple[R | None, BaseException | None]] = []
        self.refused: Exception | None = None
        self.wakes: list[Callable[[_Call[R]], None]] = []
        self.left: Callable[[_Call[R]], None] | None = None
        self.is_let_go = False

    def take(self, by: str = "caller") -> bool:
        """Whether it is this one's to make: who comes first. May be asked again."""
        return self._taken.setdefault("by", by) == by

    def is_over(self) -> bool:
        """Whether a thread has made it, or none will."""
        return bool(self.ending) or self.refused is not None

    def perform(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """In a thread: make it, unless it was taken back."""
        if self.take("thread"):
            try:
                self.ending.append((function(*args), None))
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                self.ending.append((None, error))
            self._tell()

    def refuse(self, error: Exception) -> None:
        """No thread will make it, unless one has begun."""
        if self.take():
            self.refused = error
            self._tell()

    def leave(self, left: Callable[[_Call[R]], None]) -> None:
        """Nobody waits for it any more."""
        self.left = left
        if self.ending:
            left(self)

    def result(self) -> R:
        """What it returned.

        Raises:
            what it raised, or why it was not made.
        """
        value, error = self.ending[0] if self.ending else (None, self.refused)
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def _tell(self) -> None:
        for wake in list(self.wakes):
            wake(self)
        if self.left is not None:
            self.left(self)


class _Threads:
    """Threads of this process, started when they are needed, and by a thread: an executor has locks written in Python."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.start_anew()
        forks.in_child(self.start_anew)

    def start_anew(self) -> None:
        """In a forked child the parent's are not here."""
        self._pool = ThreadPoolExecutor(thread_name_prefix=self._name)  # as many as a loop has: 4 more than processors
        self._asked: SimpleQueue[tuple[_Call[Any], Callable[..., Any], tuple[Any, ...]]] = SimpleQueue()
        self._feeder: dict[str, int] = {}

    def submit(self, call: _Call[Any], function: Callable[..., Any], *args: object) -> None:
        """Have a call made in one of them; it is refused when no thread can be started, or the interpreter ends."""
        self._asked.put((call, contextvars.copy_context().run, (function, *args)))
        if not self._feeder:
            try:
                _thread.start_new_thread(self._feed, ())
            except RuntimeError as error:
                call.refuse(error)

    def _feed(self) -> None:
        """In a thread that nobody waits for: pass on what was asked for."""
        if self._feeder.setdefault("thread", _thread.get_ident()) != _thread.get_ident():
            return
        while True:
            call, function, args = self._asked.get()
            try:
                self._pool.submit(call.perform, function, args)
            except Exception as error:  # noqa: BLE001 - mostly RuntimeError; the caller's, and others are to be fed
                call.refuse(error)
            del call, function, args


_claims: Final = _Threads("onefold-once-claim")
_records: Final = _Threads("onefold-once-record")


async def _until_over(
    call: _Call[Any], at_most_s: float = math.inf, nobody_waits: Callable[[_Call[Any]], None] | None = None
) -> None:
    """Wait until `call` is over; `nobody_waits` is called with it in its thread when the loop is closed by then.

    A loop forgets whom it was about to wake when an exception of a signal's handler comes there: this looks now and then.
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
    """Waits of duplicates until they look again: all that wait share one thread, which nobody waits for."""

    def __init__(self, guard: GuardedFunction) -> None:
        self._guard = guard
        self._pause: _Call[bool] | None = None
        forks.in_child(self._start_anew)

    def _start_anew(self) -> None:
        self._pause = None

    async def wait(self) -> None:
        """Wait until the pause is over that somebody is making, or one of one's own."""
        pause, guard = self._pause, self._guard
        if pause is None or pause.is_over():
            pause = _Call()
            _thread.start_new_thread(pause.perform, (guard.clock.wait, (guard.never, guard.look_again_ms)))
            self._pause = pause  # after its start: an exception of a signal may come between
        await _until_over(pause)
        pause.result()


async def _claim(guard: GuardedFunction, args: Any, kwargs: Any) -> Begun | Completed | Running:
    """As `GuardedFunction.claim`, in a thread."""

    def let_go(call: _Call[Begun | Completed | Running]) -> None:
        if call.ending and not call.is_let_go:
            with suppress(errors.OnefoldError):  # then it is free when its lease is over
                guard.give_back(call.ending[0][0])
            call.is_let_go = True

    call: _Call[Begun | Completed | Running] = _Call()
    try:
        _claims.submit(call, guard.claim, args, kwargs)
        await _until_over(call, nobody_waits=let_go)
        return call.result()
    except BaseException:
        call.take()  # no thread begins any more
        call.leave(let_go)
        raise


async def _write(
    call: _Call[None],
    write: Callable[[Begun, Any], None],
    found: Begun,
    ending: Any,
    cancelled: asyncio.CancelledError | None = None,
) -> None:
    """As `GuardedFunction.finished` or `failed`, in a thread; returns or raises when the record is written.

    Args:
        call: noted here when it was asked for. ending: what the function returned or raised.
        cancelled: the call is being cancelled already.

    Raises:
        as `write`; CancelledError: the call was cancelled, and the record is written or takes too long.
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
    """The caller hears of its cancellation; what went wrong with the record is said here."""
    if (error := call.ending[0][1]) is not None:
        _log.error("A call that was cancelled: %s", error)


def asynchronous(function: Callable[A, Any], guard: GuardedFunction) -> Callable[A, Any]:
    """The function under its guard."""
    pauses = _Pauses(guard)

    @functools.wraps(function)
    async def guarded(*args: A.args, **kwargs: A.kwargs) -> Any:
        found: Begun | Completed | Running | None = None
        values: list[Any] = []
        since_ms: int | None = None
        late = 0
        generation = guard.generation
        inside = guard.inside
        outside, within = inside.get(), None
        writing: _Call[None] = _Call()
        try:
            found = await _claim(guard, args, kwargs)
            while isinstance(found, Running) or guard.is_late(found):
                if isinstance(found, Running):
                    since_ms = guard.wait_from(found, since_ms, args, kwargs)
                    await pauses.wait()
                else:  # rare, and one write: this process stood still
                    late, found = guard.given_back(found, late), None
                found = await _claim(guard, args, kwargs)
            if isinstance(found, Completed):
                return guard.stored(found)
            within = (*outside, found.hold)
            inside.set(within)
            try:
                given = guard.with_context(found, args, kwargs)
                values.append(await function(*args, **given))  # no exception of a signal before it is kept
            except (Exception, asyncio.CancelledError) as error:
                if not values and guard.generation == generation:
                    cancelled = error if isinstance(error, asyncio.CancelledError) else None
                    with suppress(errors.OnefoldError):  # the function's own error counts
                        await _write(writing, guard.failed, found, error, cancelled)
                raise
            if guard.generation == generation:  # else the function forked, and both came back: the parent records it
                await _write(writing, guard.finished, found, values[0])
            return values[0]
        except BaseException as error:
            # No thread has begun to write: for too long, or an exception of a signal came, or the coroutine is thrown away.
            is_unwritten = not writing.ending and writing.take()
            if is_unwritten and isinstance(found, Claimed | Execution) and guard.generation == generation:
                guard.ended(found, values, error, runs=within is not None)
            raise
        finally:
            if inside.get() is within:  # else the garbage collector throws it away, in somebody else's context
                inside.set(outside)

    return guarded
