"""Blocking calls made from a coroutine: they run in a few threads of the runtime, so that the event loop goes on.

A call may have to wait for its turn to write, for a sync or for a server, and it occupies a thread for as long as that
takes. There are only a few threads: of a thousand sends at once, eight wait for the disk together, in one commit, and
the others wait for these. The loop's own executor is not used, because the program may fill it.
Never here: what is called. Invariant: a call that has begun runs to its end, whatever happens to the task that waits
for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

T = TypeVar("T")

_THREADS: Final = 8
_REST_S: Final = 0.05  # a program that ends waits at most this long for an idle thread


class _Call:
    """A call that waits for a thread, and the future of the task that waits for its answer."""

    __slots__ = ("_loop", "_made", "answer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any], made: Callable[[], object]
    ) -> None:
        self._loop = loop
        self._made = made
        self.answer = answer

    def make(self) -> None:
        """Make the call, and pass its answer to the loop."""
        value: object = None
        error: BaseException | None = None
        try:
            value = self._made()
        except BaseException as raised:  # noqa: BLE001 - it is raised in the task
            error = raised
        with suppress(RuntimeError):  # the loop was closed meanwhile, and nobody waits any more
            self._loop.call_soon_threadsafe(self._answered, value, error)
        error = None  # its traceback has this frame

    def _answered(self, value: object, error: BaseException | None) -> None:
        if self.answer.done():  # its task was cancelled
            return
        if error is None:
            self.answer.set_result(value)
        else:
            self.answer.set_exception(error)


class LoopThreads:
    """The threads of one runtime, started on demand.

    A thread takes call after call from one queue, and gives itself back to the pool when it had none for `_REST_S`. That
    takes less than half of what the pool and its futures take for each call; the pool ends with the program. One more
    thread is for pauses, which must end also while there is always another call.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS + 1, thread_name_prefix="onefold-async")
        self._pause: Future[object] | None = None
        self._lock = threading.Lock()
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._unanswered = 0  # calls that wait or run
        self._serving = 0  # threads that take calls

    async def run(self, call: Callable[[], T]) -> T:
        """Make a call in a thread, with the task's context variables; returns or raises what the call does.

        A call that has not begun when its task is cancelled is not made.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        with self._lock:
            if self._unanswered >= self._serving < _THREADS or not self._serving:
                self._pool.submit(self._serve)
                self._serving += 1
            self._unanswered += 1
            self._calls.put(_Call(loop, answer, partial(copy_context().run, call)))
        return await answer

    def _serve(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=_REST_S)
            except Empty:
                with self._lock:
                    if self._calls.empty():
                        self._serving -= 1
                        return
                continue
            if not call.answer.cancelled():
                call.make()
            del call  # it keeps the values of the caller's task alive
            with self._lock:
                self._unanswered -= 1

    async def pause(self, wait: Callable[[], object]) -> None:
        """Wait for the end of the pause in progress, or begin one: all tasks that pause share a thread.

        Args:
            wait: the blocking call that waits; made in the thread.
        """
        pause = self._pause
        if pause is None or pause.done():
            pause = self._pause = self._pool.submit(wait)
        await asyncio.shield(asyncio.wrap_future(pause))  # cancelling one task does not end the others' pause

    def close(self) -> None:
        """Let the threads end after the calls they have already been given."""
        self._pool.shutdown(wait=False)
