"""`@onefold.once` around an `async def`: whatever a call asks of the store is asked in a thread, and ends without the task.

A task can be cancelled wherever it waits; its loop can be closed, its coroutine thrown away, an exception out of a signal's
handler come between any two steps. So nothing that has begun needs somebody who waits for it:

    claiming     what nobody waits for any more is given back, by the thread that claimed it
    running      what the function returned or raised, its cancellation too, is recorded before the call ends
    recording    a call that is cancelled meanwhile waits for its record, `_CANCELLED_WAITS_S` at most; its thread goes on,
                 and where none has begun by then, the record is written here

The threads are the module's own: neither the program's work in the threads of the loop nor claims that wait for the store
are in the way of a record. They are waited for when the interpreter ends.
Never here: what a claim or a record is: that is `once.Guard`, which is handed in.
Invariant: a function that was called has its record written, by a
thread or by whoever ends its call, unless the process dies.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, ParamSpec

from onefold import errors, forks
from onefold.contracts.store import Claimed, Completed, Running

A = ParamSpec("A")

_CANCELLED_WAITS_S: Final = 5.0  # a record that a store refuses is tried again for 1.6 s
_LOOK_S: Final = 1.0
_log = logging.getLogger("onefold")


class _Threads:
    """Threads of this process, started when they are needed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.start_anew()
        forks.in_child(self.start_anew)

    def start_anew(self) -> None:
        """In a forked child the parent's are not here."""
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, call: Future[Any], function: Callable[..., Any], *args: object) -> None:
        """Make a call in one of them.

        Raises:
            RuntimeError: no thread can be started, or the interpreter ends.
        """
        pool = self._pool
        if pool is None:
            with self._lock:
                pool = self._pool = self._pool or self._opened()
        pool.submit(_perform, call, contextvars.copy_context().run, (function, *args))

    def _opened(self) -> ThreadPoolExecutor:
        """A pool with a thread, which a thread has started: no exception of a signal's handler comes there.

        A thread whose start is torn off works, but its pool does not know it; it would never end, nor the process, if there
        was no other.
        """
        pool = ThreadPoolExecutor(thread_name_prefix=self._name)  # as many as a loop has: 4 more than processors
        starter = threading.Thread(target=pool.submit, args=(int,), name=f"{self._name}-starter", daemon=True)
        starter.start()
        starter.join()
        return pool


_claims: Final = _Threads("onefold-once-claim")
_records: Final = _Threads("onefold-once-record")


def _perform(call: Future[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """In a thread: make the call, unless it was cancelled before."""
    if call.set_running_or_notify_cancel():
        try:
            answer = function(*args)
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            call.set_exception(error)
        else:
            call.set_result(answer)


async def _until_done(
    call: Future[Any], at_most_s: float = math.inf, nobody_waits: Callable[[Future[Any]], None] | None = None
) -> None:
    """Wait until `call` is done; `nobody_waits` is called with it in its thread when the loop is closed by then.

    A loop forgets whom it was about to wake when an exception of a signal's handler comes there: this looks now and then.
    """
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    def in_thread(call: Future[Any]) -> None:
        try:
            loop.call_soon_threadsafe(wake)
        except RuntimeError:
            if nobody_waits is not None:
                nobody_waits(call)

    call.add_done_callback(in_thread)
    until_s = loop.time() + at_most_s
    while not call.done() and (left_s := until_s - loop.time()) > 0:
        await asyncio.wait([woken], timeout=min(left_s, _LOOK_S))


async def _claim(guard: Any, args: Any, kwargs: Any) -> Claimed | Completed | Running:
    """As `Guard.claim`, in a thread."""

    def let_go(call: Future[Any]) -> None:
        if not call.cancelled() and call.exception() is None:
            guard.give_back(call.result())

    call: Future[Claimed | Completed | Running] = Future()
    try:
        _claims.submit(call, guard.claim, args, kwargs)
        await _until_done(call, nobody_waits=let_go)
        return call.result()
    except BaseException:
        call.cancel()
        call.add_done_callback(let_go)
        raise


async def _write(
    call: Future[None],
    write: Callable[[Claimed, Any], None],
    found: Claimed,
    ending: Any,
    cancelled: asyncio.CancelledError | None = None,
) -> None:
    """As `Guard.finished` or `failed`, in a thread; returns or raises when the record is written.

    Args:
        call: noted here when it was asked for. ending: what the function returned or raised.
        cancelled: the call is being cancelled already.

    Raises:
        as `write`; CancelledError: the call was cancelled, and the record is written or takes too long.
    """
    try:
        _records.submit(call, write, found, ending)
    except RuntimeError:  # no thread can be started, or the interpreter ends
        if call.cancel():
            write(found, ending)
            if cancelled is not None:
                raise cancelled from None
            return None
    if cancelled is None:
        try:
            await _until_done(call)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return call.result()
    loop = asyncio.get_running_loop()
    until_s = loop.time() + _CANCELLED_WAITS_S
    while not call.done() and (left_s := until_s - loop.time()) > 0:
        with suppress(asyncio.CancelledError):
            await _until_done(call, left_s)
    call.add_done_callback(_log_error)
    raise cancelled


def _log_error(call: Future[None]) -> None:
    """The caller hears of its cancellation; what went wrong with the record is said here."""
    if not call.cancelled() and (error := call.exception()) is not None:
        _log.error("A call that was cancelled: %s", error)


def asynchronous(function: Callable[A, Any], guard: Any) -> Callable[A, Any]:
    """The function under its guard."""

    @functools.wraps(function)
    async def guarded(*args: A.args, **kwargs: A.kwargs) -> Any:
        found: Claimed | Completed | Running | None = None
        values: list[Any] = []
        since_ms: int | None = None
        generation = guard.generation
        inside = guard.inside
        outside, within = inside.get(), None
        writing: Future[None] = Future()
        try:
            found = await _claim(guard, args, kwargs)
            while isinstance(found, Running):
                since_ms = guard.wait_from(found, since_ms)
                await asyncio.to_thread(guard.clock.wait, guard.never, guard.look_again_ms)
                found = await _claim(guard, args, kwargs)
            if isinstance(found, Completed):
                return guard.stored(found)
            within = (*outside, found.hold)
            inside.set(within)
            try:
                values.append(await function(*args, **kwargs))  # no exception of a signal before it is kept
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
            is_unwritten = not writing.cancelled() and writing.cancel()
            if is_unwritten and isinstance(found, Claimed) and guard.generation == generation:
                guard.ended(found, values, error, runs=within is not None)
            raise
        finally:
            if inside.get() is within:  # else the garbage collector throws it away, in somebody else's context
                inside.set(outside)

    return guarded
