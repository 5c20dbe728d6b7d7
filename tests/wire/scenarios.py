"""Tests that are coroutines: each on a fresh loop of the kind that servers run on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import uvloop


def scenario(story: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """A test that is a coroutine, on the loop that servers run on."""

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(story())  # type: ignore[arg-type]  # a coroutine function

    run.__name__ = story.__name__  # type: ignore[attr-defined]
    return run
