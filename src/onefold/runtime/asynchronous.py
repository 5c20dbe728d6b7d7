"""Blocking calls made from a coroutine: they run in a few threads of the runtime, so that the event loop goes on.

A call may have to wait for its turn to write, for a sync or for a server, and it occupies a thread for as long as that
takes. There are only a few threads: of a thousand sends at once, eight wait for the disk together, in one commit, and
the others wait for these. The loop's own executor is not used, because the program may fill it.
Never here: what is called. Invariant: a call that has begun runs to its end, whatever happens to the task that waits
for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, TypeVar

T = TypeVar("T")

_THREADS: Final = 8


class LoopThreads:
    """The threads of one runtime, started on demand."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="onefold-async")
        self._pause: Future[object] | None = None

    async def run(self, call: Callable[[], T]) -> T:
        """Make a call in a thread, with the task's context variables; returns or raises what the call does."""
        return await asyncio.wrap_future(self._pool.submit(copy_context().run, call))

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
