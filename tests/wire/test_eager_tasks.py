"""A coroutine begun without a task is finished, whatever it waits for and whoever cancels it."""

from __future__ import annotations

import asyncio

import pytest

from onefold.local.connection import start_eagerly
from tests.wire.scenarios import scenario


@scenario
async def test_what_waits_for_nothing_is_done_at_once_and_needs_no_task() -> None:
    loop, done = asyncio.get_running_loop(), []

    async def run() -> None:
        done.append("all")

    tasks = len(asyncio.all_tasks())
    assert start_eagerly(run(), loop) is None
    assert done == ["all"]
    assert len(asyncio.all_tasks()) == tasks


@scenario
async def test_what_waits_goes_on_as_a_task_with_what_it_waited_for() -> None:
    loop, told = asyncio.get_running_loop(), []
    first: asyncio.Future[str] = loop.create_future()
    second: asyncio.Future[str] = loop.create_future()

    async def run() -> None:
        told.append(await first)
        try:
            await second
        except LookupError as error:
            told.append(str(error))
        turned: asyncio.Future[str] = loop.create_future()
        loop.call_soon(turned.set_result, "turned")
        told.append(await turned)

    task = start_eagerly(run(), loop)
    assert task is not None
    assert told == []
    first.set_result("first")
    second.set_exception(LookupError("second"))
    async with asyncio.timeout(60):
        await task
    assert told == ["first", "second", "turned"]


@scenario
async def test_an_error_before_the_first_wait_is_the_callers_and_a_later_one_the_tasks() -> None:
    loop = asyncio.get_running_loop()
    waited: asyncio.Future[None] = loop.create_future()

    async def at_once() -> None:
        raise LookupError("at once")

    async def later() -> None:
        await waited
        raise LookupError("later")

    with pytest.raises(LookupError, match="at once"):
        start_eagerly(at_once(), loop)
    task = start_eagerly(later(), loop)
    waited.set_result(None)
    assert task is not None
    with pytest.raises(LookupError, match="later"):
        await task


@scenario
async def test_a_cancel_reaches_what_waits() -> None:
    loop, told = asyncio.get_running_loop(), []
    never: asyncio.Future[None] = loop.create_future()

    async def run() -> None:
        try:
            await never
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    task = start_eagerly(run(), loop)
    assert task is not None
    loop.call_soon(task.cancel)  # not in this turn
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == ["cancelled"]
    assert task.cancelled()
    assert never.cancelled()
