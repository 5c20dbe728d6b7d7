"""Timers of one loop: on a clock moved by hand in the order of time, on the machine's never early; cancelled means never."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from onefold.clock import SystemClock
from onefold.local import timers as timers_module
from onefold.local.timers import Timers
from onefold.manual_clock import ManualClock
from onefold.outside import Clock
from tests.local.house import turns

CLOCKS: list[type[Clock]] = [ManualClock, SystemClock]


def run(script: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(script, 10))


def manual() -> tuple[ManualClock, Timers]:
    clock = ManualClock()
    return clock, Timers(clock, asyncio.get_running_loop())


def test_a_manual_clock_fires_in_the_order_of_time_when_it_is_moved() -> None:
    async def script() -> None:
        clock, timers = manual()
        fired: list[str] = []
        start = clock.now_ms()
        for name, after_ms in (("late", 30), ("early", 10), ("never", 41), ("early too", 10)):
            timers.call_at(start + after_ms, lambda name=name: fired.append(name))  # type: ignore[misc]
        assert timers.next_at_ms() == start + 10
        clock.advance(9)
        timers.moved()
        assert fired == []
        clock.advance(31)
        timers.moved()
        assert fired == ["early", "early too", "late"]
        assert timers.next_at_ms() == start + 41
        timers.moved()
        assert len(fired) == 3

    run(script())


def test_what_a_timer_starts_fires_in_the_same_move_when_it_is_due() -> None:
    async def script() -> None:
        clock, timers = manual()
        fired: list[int] = []
        start = clock.now_ms()

        def first() -> None:
            fired.append(1)
            timers.call_at(start + 20, lambda: fired.append(2))

        timers.call_at(start + 10, first)
        clock.advance(20)
        timers.moved()
        await turns()
        assert fired == [1, 2]

    run(script())


@pytest.mark.parametrize("kind", CLOCKS)
def test_an_instant_that_has_passed_fires_soon_without_a_move(kind: type[Clock]) -> None:
    async def script() -> None:
        clock = kind()
        timers = Timers(clock, asyncio.get_running_loop())
        fired = asyncio.Event()
        timers.call_at(clock.now_ms() - 1, fired.set)
        assert not fired.is_set()
        await fired.wait()

    run(script())


@pytest.mark.parametrize("kind", CLOCKS)
def test_a_cancelled_timer_never_fires(kind: type[Clock]) -> None:
    async def script() -> None:
        clock = kind()
        timers = Timers(clock, asyncio.get_running_loop())
        fired: list[str] = []
        done = asyncio.Event()
        for after_ms in (-1, 5):
            timer = timers.call_at(clock.now_ms() + after_ms, lambda: fired.append("cancelled"))
            timer.cancel()
            timer.cancel()
            assert timer.cancelled
        timers.call_at(clock.now_ms() + 10, done.set)
        if isinstance(clock, ManualClock):
            clock.advance(10)
            timers.moved()
        await done.wait()
        assert fired == []

    run(script())


def test_the_machine_s_clock_is_never_early() -> None:
    async def script() -> None:
        clock = SystemClock()
        timers = Timers(clock, asyncio.get_running_loop())
        for after_ms in (1, 3, 7):
            at_ms = clock.now_ms() + after_ms
            await timers.sleep_until(at_ms)
            assert clock.now_ms() >= at_ms
        assert timers.next_at_ms() is None

    run(script())


def test_a_wall_clock_that_is_set_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Skewed(SystemClock):
        behind_ms = 0

        def now_ms(self) -> int:
            return super().now_ms() - self.behind_ms

    async def script() -> None:
        clock = Skewed()
        timers = Timers(clock, asyncio.get_running_loop())
        at_ms = clock.now_ms() + 10
        reached = asyncio.ensure_future(timers.sleep_until(at_ms))
        clock.behind_ms = 40
        await reached
        assert clock.now_ms() >= at_ms

    monkeypatch.setattr(timers_module, "_LOOK_AGAIN_MS", 5)
    run(script())


def test_a_sleeper_that_is_cancelled_leaves_no_timer() -> None:
    async def script() -> None:
        clock, timers = manual()
        sleeper = asyncio.ensure_future(timers.sleep_until(clock.now_ms() + 5))
        await turns(2)
        assert timers.next_at_ms() == clock.now_ms() + 5
        sleeper.cancel()
        await asyncio.gather(sleeper, return_exceptions=True)
        assert timers.next_at_ms() is None

    run(script())


def test_cancelled_timers_of_a_clock_that_stands_still_are_forgotten() -> None:
    async def script() -> None:
        clock, timers = manual()
        timers.call_at(clock.now_ms() + 1, lambda: None)
        for _ in range(20_000):
            timers.call_at(clock.now_ms() + 60_000, lambda: None).cancel()
        assert len(timers._due) < 3_000

    run(script())
