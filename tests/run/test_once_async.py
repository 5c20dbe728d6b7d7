"""`@onefold.once` around coroutines: cancelled, thrown away, or outlived by their loop, at each place where they wait."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import linecache
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, _base, thread
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold.contracts.store import RecordKey
from onefold.contracts.verbs import Store
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.runner import once_async
from tests.run.bench import Faulty
from tests.run.test_once import PATIENCE_S, Watched, standing


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "memory":
        yield onefold.memory_store()
        return
    engine = SqliteEngine(
        ":memory:", clock=ManualClock(), entropy=SeededEntropy(0), owner="test", url="sqlite://:memory:"
    )
    yield engine.store
    engine.close()


@pytest.fixture
def clock() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.over.set()


@types.coroutine
def turn() -> Generator[None, None, None]:
    """Let the loop turn."""
    yield


class Gate:
    """A verb of a store that says when it was come to, and goes on when it is told to; once."""

    def __init__(self, verb: str, side: str) -> None:
        self._place = (verb, side)
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, verb: str, side: str) -> None:
        if (verb, side) == self._place and not self.reached.is_set():
            self.reached.set()
            assert self.open.wait(PATIENCE_S)


class Charge:
    """A guarded coroutine function on a store with a gate."""

    def __init__(self, store: Store, clock: ManualClock, gate: Callable[[str, str], None]) -> None:
        self.calls: list[str] = []
        self.act: Callable[[], Any] = turn
        faulty: Any = Faulty(store, "store", gate, [])

        async def charge(order: str) -> str:
            self.calls.append(order)
            await self.act()
            return "charged"

        self.call: Any = onefold.once(
            key="{order}", name="charge", store=faulty, clock=clock, entropy=SeededEntropy(1), on_running="raise"
        )(charge)

    def again(self) -> str:
        """A call afterwards, in a loop of its own."""
        answer: str = asyncio.run(self.call("o-1"))
        return answer


async def reached(event: threading.Event) -> None:
    """Wait for it, beside the loop's own threads."""
    while not event.is_set():
        await turn()


def until(store: Store, clock: ManualClock, status: str) -> None:
    """Wait until the record stands so."""
    pause = threading.Event()
    for _ in range(10_000):
        found = standing(store, clock)
        if found is not None and found.status == status:
            return
        pause.wait(0.002)
    raise AssertionError(f"{standing(store, clock)} is not {status}")


# -- claiming ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_call_given_up_at_the_end_of_its_loop_while_it_claims_gives_back(
    store: Store, clock: Watched, side: str
) -> None:
    gate = Gate("store.claim", side)
    charge = Charge(store, clock, gate)

    async def main() -> None:
        task = asyncio.ensure_future(charge.call("o-1"))
        await reached(gate.reached)
        task.cancel()
        raise LookupError("main has ended")  # and asyncio.run cancels whatever there is

    with pytest.raises(LookupError):
        asyncio.run(main())
    gate.open.set()
    until(store, clock, "released")
    assert charge.calls == []
    assert charge.again() == "charged"
    assert standing(store, clock).attempts == 1


def test_a_call_whose_loop_is_closed_while_it_claims_gives_back(store: Store, clock: Watched) -> None:
    gate = Gate("store.claim", "after")
    charge = Charge(store, clock, gate)
    loop = asyncio.new_event_loop()
    task = loop.create_task(charge.call("o-1"))
    loop.run_until_complete(reached(gate.reached))
    loop.close()
    gate.open.set()
    until(store, clock, "released")  # although the task is still held
    assert charge.again() == "charged"
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_claim_that_waits_for_a_thread_is_not_made_once_it_is_cancelled(
    store: Store, clock: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, free = ThreadPoolExecutor(1), threading.Event()
    pool.submit(free.wait, PATIENCE_S)
    monkeypatch.setattr(once_async._claims, "_pool", pool)
    charge = Charge(store, clock, lambda verb, side: None)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(charge.call("o-1"), 0.01)

    asyncio.run(main())
    free.set()
    pool.shutdown()
    assert standing(store, clock) is None


def test_a_claim_is_let_go_whose_answer_comes_with_the_cancellation(
    store: Store, clock: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge = Charge(store, clock, lambda verb, side: None)
    answered, perform = threading.Event(), once_async._Call.perform

    def performed(*args: Any) -> None:
        perform(*args)
        answered.set()

    monkeypatch.setattr(once_async._Call, "perform", performed)

    async def main() -> None:
        task = asyncio.ensure_future(charge.call("o-1"))
        await turn()
        assert answered.wait(PATIENCE_S)  # the loop does not turn meanwhile
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    until(store, clock, "released")  # in the thread of the claim, if the cancellation came first
    assert charge.calls == []


def test_calls_that_wait_for_another_leave_the_threads_of_the_loop_to_the_program(store: Store, clock: Watched) -> None:
    entered, leave = threading.Event(), threading.Event()
    calls: list[str] = []

    async def charge(order: str) -> str:
        calls.append(order)
        entered.set()
        await reached(leave)
        return "charged"

    guarded = onefold.once(key="{order}", name="charge", store=store, clock=clock, entropy=SeededEntropy(1))(charge)

    async def main() -> list[str]:
        first = asyncio.ensure_future(guarded("o-1"))
        await reached(entered)
        others = [asyncio.ensure_future(guarded("o-1")) for _ in range(60)]
        await reached(clock.waited[100])
        for number in range(60):
            assert await asyncio.wait_for(asyncio.to_thread(abs, -number), PATIENCE_S) == number
        leave.set()
        clock.jumps = True
        clock.advance(100)
        return list(await asyncio.gather(first, *others))

    assert asyncio.run(main()) == ["charged"] * 61
    assert calls == ["o-1"]


# -- running -----------------------------------------------------------------------------------------------


def test_a_call_that_is_thrown_away_while_it_runs_is_recorded_as_unknown(store: Store, clock: Watched) -> None:
    charge = Charge(store, clock, lambda verb, side: None)
    entered = threading.Event()

    async def act() -> None:
        entered.set()
        await asyncio.Event().wait()

    charge.act = act
    loop = asyncio.new_event_loop()
    task = loop.create_task(charge.call("o-1"))
    loop.run_until_complete(reached(entered))
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    del task, loop
    gc.collect()
    assert (standing(store, clock).status, standing(store, clock).doubt) == ("unknown", True)


def test_a_call_that_is_cancelled_while_it_runs_ends_when_that_is_recorded(store: Store, clock: Watched) -> None:
    gate = Gate("store.write", "before")
    charge = Charge(store, clock, gate)
    entered = threading.Event()

    async def act() -> None:
        entered.set()
        await asyncio.Event().wait()

    charge.act = act

    async def main() -> None:
        task = asyncio.ensure_future(charge.call("o-1"))
        await reached(entered)
        task.cancel()
        await reached(gate.reached)  # the loop is not held up by the write
        task.cancel()
        await turn()
        assert not task.done()
        gate.open.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert standing(store, clock).status == "unknown"

    asyncio.run(main())


# -- recording ---------------------------------------------------------------------------------------------


def cancel(task: asyncio.Task[str]) -> None:
    task.cancel()


def cancel_three_times(task: asyncio.Task[str]) -> None:
    for _ in range(3):
        task.cancel()


@pytest.mark.parametrize("way", [cancel, cancel_three_times])
@pytest.mark.parametrize("side", ["before", "after"])
def test_a_call_that_is_cancelled_after_its_function_has_returned_waits_for_its_record(
    store: Store, clock: Watched, side: str, way: Callable[[asyncio.Task[str]], None]
) -> None:
    gate = Gate("store.write", side)
    charge = Charge(store, clock, gate)

    async def main() -> None:
        task = asyncio.ensure_future(charge.call("o-1"))
        await reached(gate.reached)
        for _ in range(2):
            way(task)
            await turn()
            await turn()
        assert not task.done()
        gate.open.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert standing(store, clock).status == "completed"

    asyncio.run(main())
    assert charge.again() == "charged"
    assert charge.calls == ["o-1"]


def test_a_record_that_no_thread_comes_to_is_written_by_the_call_that_is_cancelled(
    store: Store, clock: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, free = ThreadPoolExecutor(1), threading.Event()
    pool.submit(free.wait, PATIENCE_S)
    monkeypatch.setattr(once_async._records, "_pool", pool)
    monkeypatch.setattr(once_async, "_CANCELLED_WAITS_S", 0.05)
    charge = Charge(store, clock, lambda verb, side: None)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):  # long after the function was called
                await charge.call("o-1")

    asyncio.run(main())
    assert standing(store, clock).status == "completed"
    free.set()
    pool.shutdown()
    assert charge.again() == "charged"
    assert charge.calls == ["o-1"]


def test_a_call_that_is_cancelled_does_not_wait_for_ever_for_its_record(
    store: Store, clock: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(once_async, "_CANCELLED_WAITS_S", 0.05)
    gate = Gate("store.write", "before")
    charge = Charge(store, clock, gate)

    async def main() -> None:
        task = asyncio.ensure_future(charge.call("o-1"))
        await reached(gate.reached)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert standing(store, clock).status == "in_progress"
    gate.open.set()
    until(store, clock, "completed")  # its thread has gone on
    assert charge.calls == ["o-1"]


def test_a_sibling_that_fails_does_not_tear_a_call_from_its_record(store: Store, clock: Watched) -> None:
    gate = Gate("store.write", "before")
    charge = Charge(store, clock, gate)

    async def fails() -> None:
        await reached(gate.reached)
        asyncio.get_running_loop().call_later(0.02, gate.open.set)
        raise LookupError("the sibling")

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(charge.call("o-1"))
            group.create_task(fails())

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(main())
    assert [type(one) for one in caught.value.exceptions] == [LookupError]
    assert standing(store, clock).status == "completed"


def test_the_threads_of_the_loop_are_neither_waited_for_nor_needed(store: Store, clock: Watched) -> None:
    charge = Charge(store, clock, lambda verb, side: None)

    async def act() -> None:
        await asyncio.get_running_loop().shutdown_default_executor()

    charge.act = act
    assert charge.again() == "charged"
    assert standing(store, clock).status == "completed"


def test_a_call_whose_loop_is_closed_while_its_record_is_written_is_recorded(store: Store, clock: Watched) -> None:
    gate = Gate("store.write", "before")
    charge = Charge(store, clock, gate)
    loop = asyncio.new_event_loop()
    task = loop.create_task(charge.call("o-1"))
    loop.run_until_complete(reached(gate.reached))
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    del task, loop
    gc.collect()
    gate.open.set()
    until(store, clock, "completed")
    assert charge.again() == "charged"
    assert charge.calls == ["o-1"]


@pytest.mark.parametrize("fails", [False, True])
def test_where_no_thread_can_be_started_the_record_is_written_here(
    store: Store, clock: Watched, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    charge = Charge(store, clock, lambda verb, side: None)

    def none(*_args: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    async def act() -> None:
        monkeypatch.setattr(once_async._records._pool, "submit", none)
        if fails:
            raise ValueError("no")

    charge.act = act
    if fails:
        with pytest.raises(ValueError, match="no"):
            charge.again()
    else:
        assert charge.again() == "charged"
    assert standing(store, clock).status == ("failed" if fails else "completed")


def test_an_error_of_the_record_of_a_cancelled_call_is_logged(
    store: Store, clock: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate("store.write", "before")
    charge = Charge(store, clock, gate)

    async def main() -> None:
        task = asyncio.ensure_future(charge.call("o-1"))
        await reached(gate.reached)
        task.cancel()
        clock.jump(60_000)
        assert await asyncio.to_thread(
            onefold.once(key="{order}", name="charge", store=store, clock=clock)(other), "o-1"
        )
        gate.open.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    def other(order: str) -> str:
        return "taken over"

    asyncio.run(main())
    assert "A call that was cancelled: charge 'o-1' finished, but its lease had been taken over." in caplog.text


# -- signals and processes ---------------------------------------------------------------------------------


class Alarmed(Exception):
    """Out of a signal's handler."""


def below(frame: types.FrameType | None) -> bool:
    """Whether a frame is the module's, or of what it calls in the libraries of threads, whose locks both sides may need."""
    while frame is not None and frame.f_code.co_filename in (threading.__file__, _base.__file__, thread.__file__):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == once_async.__file__


@pytest.mark.parametrize("kind", [Alarmed, KeyboardInterrupt])
@pytest.mark.parametrize("event", ["line", "return"])
def test_an_exception_of_a_signal_at_any_line_leaves_the_key_free_or_its_effect_recorded(
    clock: Watched, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException], event: str
) -> None:
    store = onefold.memory_store()
    monkeypatch.setattr(once_async, "_LOOK_S", 0.01)
    monkeypatch.setattr(once_async._claims, "_pool", ThreadPoolExecutor(1))
    monkeypatch.setattr(once_async._records, "_pool", ThreadPoolExecutor(1))
    pools = [once_async._claims._pool, once_async._records._pool]
    charge = Charge(store, clock, lambda verb, side: None)
    left, where = 0, ""

    def trace(frame: types.FrameType, now: str, _arg: object) -> Any:
        nonlocal left, where
        if not below(frame):
            return None
        file, line = frame.f_code.co_filename, linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        is_step = line != "try:"  # a NOP
        if event == "return":  # out of what is not a coroutine: with what it has taken
            is_step = not frame.f_code.co_flags & inspect.CO_COROUTINE
        if now == event and is_step:
            left -= 1
            if left == 0:
                where = f"{file}, {frame.f_code.co_name}, line {frame.f_lineno}"
                raise kind
        return trace

    places: set[str] = set()
    for number in range(1, 1_000):
        left, where, order, before = number, "", f"o-{number}", sys.gettrace()
        sys.settrace(trace)
        try:
            asyncio.run(charge.call(order))
        except (Alarmed, KeyboardInterrupt):
            pass
        finally:
            sys.settrace(before)
        for pool in pools:
            assert pool is not None
            pool.submit(int).result(PATIENCE_S)  # what its thread was given before is done
        found = standing(store, clock, RecordKey("", "charge", order))
        if charge.calls:
            assert found.status == "completed", where
        else:
            # A Ctrl-C in the last line before the function counts as one in the function.
            free = ("released", "failed", "unknown") if kind is KeyboardInterrupt else ("released", "failed")
            assert found is None or found.status in free, where
        assert asyncio.run(charge.call(order)) == "charged", where
        assert charge.calls == [order], where
        charge.calls.clear()
        if left > 0:
            break
        places.add(where)
    assert len(places) > (30 if event == "line" else 4)


CTRL_C = """
import asyncio, json, os, random, signal, sys, threading, time, types
import onefold

effects, wrong, interrupts = {}, [], 0

@types.coroutine
def turn():
    yield

random.seed(1)

@onefold.once(key="{n}", name="charge", store=onefold.store("sqlite:///" + sys.argv[1]), lease="60s", on_running="raise")
async def charge(n):
    await turn()
    effects[n] = effects.get(n, 0) + 1  # the last step: a cancellation that comes to the function comes before it
    return "ok"

async def main(i):
    await asyncio.gather(*[charge(f"{i}-{j}") for j in range(10)])

def press(delay_s):
    threading.Event().wait(delay_s)
    os.kill(os.getpid(), signal.SIGINT)

rounds = 60
asyncio.run(main("first"))
began = time.monotonic()
asyncio.run(main("second"))
took_s = time.monotonic() - began
for i in range(rounds):
    presses = threading.Thread(target=press, args=[random.uniform(0.0005, 1.2 * took_s)])
    try:
        presses.start()
        asyncio.run(main(i))
        presses.join()
    except KeyboardInterrupt:
        interrupts += 1

async def again():
    for i in range(rounds):
        for j in range(10):
            for _ in range(3_000):
                try:
                    await charge(f"{i}-{j}")
                    break
                except onefold.TransientError as error:  # a claim that was left is given back by its thread
                    said = str(error)
                    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.01)
            else:
                wrong.append(said)

asyncio.run(again())
print(json.dumps([interrupts, wrong, [n for n, count in effects.items() if count > 1]]))
"""


@pytest.mark.slow
def test_ctrl_c_at_any_instant_leaves_no_key_held_and_no_effect_without_its_record(tmp_path: Path) -> None:
    (tmp_path / "pressed.py").write_text(CTRL_C)
    ended = subprocess.run(
        [sys.executable, "pressed.py", str(tmp_path / "r.db")],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    interrupts, wrong, twice = json.loads(ended.stdout)
    assert interrupts > 20
    assert (wrong, twice) == ([], [])


def test_a_forked_child_has_threads_of_its_own(clock: Watched) -> None:
    charge = Charge(onefold.memory_store(), clock, lambda verb, side: None)
    assert charge.again() == "charged"
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(charge.call("o-2"))
        finally:
            os._exit(0 if charge.calls == ["o-1", "o-2"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
