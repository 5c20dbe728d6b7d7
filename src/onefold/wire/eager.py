"""Beginning a coroutine without a task, and making it one only if it has to wait.

Most requests are answered without waiting for anything; making, scheduling and ending a task for each took a seventh of a
send in memory. Until it waits, what is begun here runs inside its caller, and `asyncio.current_task` is not its own.
Never here: what is run. Invariant: a coroutine that was begun here is finished, whoever cancels its task in a later turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any


def begin(run: Coroutine[Any, None, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
    """Run until the end, or until it waits: then the task that goes on with it, which must not be cancelled in this turn.

    Raises:
        Exception: whatever `run` raised before it waited.
    """
    try:
        waits_for = run.send(None)
    except StopIteration:
        return None
    return loop.create_task(_go_on(run, waits_for))


async def _go_on(run: Coroutine[Any, None, None], waits_for: Any) -> None:
    await _rest(run, waits_for)  # a task is made of a coroutine; since Python 3.12 a generator is none


@coroutine
def _rest(run: Coroutine[Any, None, None], waits_for: Any) -> Generator[Any, None, None]:
    """What is left of a coroutine that waits for something."""
    try:
        while True:
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - a cancel, or the error of what was waited for: it is the coroutine's
                waits_for = run.throw(error)
            else:
                waits_for = run.send(None)
    except StopIteration:
        return
