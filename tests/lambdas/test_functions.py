"""The pool of a function: warm reuse, limits, new code, faults, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from onefold.local.containers import Kill
from onefold.local.functions import LOOK_MS, FunctionStats
from onefold.local.outcomes import Answered, Crashed, FunctionError, Throttled, TimedOut, error_payload, summary
from onefold.manual_clock import ManualClock
from tests.lambdas.rig import Rig, is_gone, rig, run, until

GATED = """
import os

started = os.getpid()


def handler(event, context):
    with open(event["gate"]) as gate:
        gate.read()
    return os.getpid()
"""


class Gate:
    """Holds invocations of GATED until it is opened: a named pipe that they read to its end."""

    def __init__(self, folder: Path) -> None:
        (folder / "gated.py").write_text(GATED)
        self.path = folder / "gate"
        os.mkfifo(self.path)

    async def hold(self, made: Rig, count: int) -> list[asyncio.Task[Any]]:
        """Begin `count` invocations, and wait until each has a container."""
        tasks = [asyncio.ensure_future(made.invoke({"gate": str(self.path)})) for _ in range(count)]
        await until(lambda: len([line for line in made.lines if line.text.startswith("START")]) >= count)
        return tasks

    async def open(self, tasks: list[asyncio.Task[Any]]) -> list[Any]:
        """Let them end; each may come to read after another has."""
        while not all(task.done() for task in tasks):
            with suppress(OSError):  # nobody reads yet
                os.close(os.open(self.path, os.O_WRONLY | os.O_NONBLOCK))
            await asyncio.wait(tasks, timeout=0.01)
        return [task.result() for task in tasks]


def test_a_container_is_started_once_and_used_again() -> None:
    async def body() -> None:
        async with rig("plain:count") as made:
            found = [await made.answer() for _ in range(5)]
            assert [one["calls"] for one in found] == [1, 2, 3, 4, 5]
            assert len({one["pid"] for one in found}) == 1
            assert made.function.stats() == FunctionStats(
                running=0, idle=1, invocations=5, errors=0, throttled=0, cold_starts=1
            )

    run(body())


def test_invocations_at_a_time_have_a_container_each_and_the_last_used_is_taken_first(tmp_path: Path) -> None:
    gate = Gate(tmp_path)

    async def body() -> None:
        async with rig("gated:handler", code_dir=tmp_path, timeout_ms=20_000) as made:
            tasks = await gate.hold(made, 3)
            assert made.function.running == 3
            pids = [outcome.payload for outcome in await gate.open(tasks)]
            assert len(set(pids)) == 3
            assert made.function.stats().idle == 3
            last = made.function._idle[-1].container._pid
            (again,) = await gate.open(await gate.hold(made, 1))
            assert again == Answered(str(last).encode())
            assert made.function.stats().cold_starts == 3

    run(body())


def test_above_the_reserved_concurrency_invocations_are_throttled(tmp_path: Path) -> None:
    gate = Gate(tmp_path)

    async def body() -> None:
        async with rig("gated:handler", code_dir=tmp_path, timeout_ms=20_000, reserved_concurrency=2) as made:
            assert made.function.capacity == 2
            tasks = await gate.hold(made, 2)
            refused = await made.invoke({"gate": "-"})
            assert refused == Throttled(2)
            assert summary(refused) == "throttled: 2 invocations were running"
            assert b"TooManyRequestsException" in (error_payload(refused, "r") or b"")
            assert all(isinstance(one, Answered) for one in await gate.open(tasks))
            (after,) = await gate.open(await gate.hold(made, 1))
            assert isinstance(after, Answered)
            assert made.function.stats().throttled == 1

    run(body())


def test_no_concurrency_at_all_throttles_everything() -> None:
    async def body() -> None:
        async with rig("plain:echo", reserved_concurrency=0) as made:
            assert await made.invoke() == Throttled(0)

    run(body())


def test_above_what_the_machine_carries_invocations_wait(tmp_path: Path) -> None:
    gate = Gate(tmp_path)

    async def body() -> None:
        async with rig("gated:handler", code_dir=tmp_path, timeout_ms=20_000, machine_max=1) as made:
            first = await gate.hold(made, 1)
            second = asyncio.ensure_future(made.invoke({"gate": str(gate.path)}))
            await until(lambda: made.function.running == 2)
            assert len(made.function._generations) == made.function.capacity == 1
            outcomes = await gate.open([*first, second])
            assert outcomes[0] == outcomes[1]
            assert made.function.stats().cold_starts == 1

    run(body())


def test_idle_containers_are_let_go_and_busy_ones_stay() -> None:
    async def body() -> None:
        async with rig("plain:count", clock=ManualClock(), idle_ms=1_000) as made:
            pid = (await made.answer())["pid"]
            made.manual().advance(999)
            made.timers.moved()
            assert (await made.answer())["calls"] == 2
            made.manual().advance(999)
            made.timers.moved()
            assert made.function.stats().idle == 1
            made.manual().advance(1)
            made.timers.moved()
            assert made.function.stats().idle == 0
            await until(lambda: is_gone(pid))
            assert (await made.answer())["calls"] == 1

    run(body())


def test_reload_takes_effect_at_the_next_invocation_while_running_ones_finish(tmp_path: Path) -> None:
    gate = Gate(tmp_path)

    async def body() -> None:
        async with rig("gated:handler", code_dir=tmp_path, timeout_ms=20_000) as made:
            old = await gate.hold(made, 1)
            (tmp_path / "gated.py").write_text("def handler(event, context):\n    return 'new'\n")
            made.function.reload()
            assert await made.answer({}) == "new"
            (outcome,) = await gate.open(old)
            assert isinstance(outcome, Answered)
            await until(lambda: len(made.function._generations) == 1)

    run(body())


def test_changed_code_is_noticed_and_said(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text("def handler(event, context):\n    return 1\n")
    (tmp_path / ".hidden").mkdir()

    async def body() -> None:
        async with rig("code:handler", code_dir=tmp_path, clock=ManualClock()) as made:
            made.function.reload_on_change()
            assert await made.answer() == 1
            (tmp_path / ".hidden" / "other.py").write_text("")
            code.write_text("def handler(event, context):\n    return 2\n")
            os.utime(code, ns=(1, 1))
            made.manual().advance(LOOK_MS)
            made.timers.moved()
            line = await made.heard(lambda line: "changed" in line.text)
            assert line.text == "code.py changed: the next invocations run the new code"
            assert await made.answer() == 2

    run(body())


def test_other_settings_hold_from_the_next_invocation_on() -> None:
    async def body() -> None:
        async with rig("plain:echo") as made:
            await made.answer()
            made.function.replace(structs.replace(made.function.settings, handler="plain:about", memory_mib=512))
            assert (await made.answer())["context"]["memory_limit_in_mb"] == "512"

    run(body())


@pytest.mark.parametrize("kill", ["before", "during", "after"])
def test_a_container_is_killed_where_it_is_asked_for(kill: Kill, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    (tmp_path / "marking.py").write_text(
        "import threading\n"
        "def handler(event, context):\n"
        "    with open(event['marks'], 'a') as file: file.write('began ')\n"
        "    if event['waits']: threading.Event().wait(0.2)\n"
        "    with open(event['marks'], 'a') as file: file.write('ended ')\n"
    )

    async def body() -> None:
        async with rig("marking:handler", code_dir=tmp_path) as made:
            event = {"marks": str(marks), "waits": kill == "during"}
            outcome = await made.invoke(event, kill=kill)
            assert outcome == Crashed("signal: killed", "a fault that was injected on request")
            wrote = marks.read_text() if marks.exists() else ""
            assert wrote in {"before": ("",), "during": ("", "began "), "after": ("began ended ",)}[kill]
            assert isinstance(await made.invoke(event), Answered)
            assert made.function.stats().cold_starts == 2

    run(body())


def test_a_handler_that_cannot_be_imported_is_tried_again(tmp_path: Path) -> None:
    async def body() -> None:
        async with rig("later:handler", code_dir=tmp_path) as made:
            assert not isinstance(await made.invoke(), Answered)
            (tmp_path / "later.py").write_text("def handler(event, context):\n    return 'there'\n")
            assert await made.answer() == "there"

    run(body())


def test_a_function_can_be_warmed() -> None:
    async def body() -> None:
        async with rig("plain:count") as made:
            assert await made.function.warm() is None
            assert (await made.answer())["calls"] == 1
            assert made.function.stats().cold_starts == 1
        async with rig("plain:nothing") as made:
            assert await made.function.warm() == FunctionError(
                "Runtime.HandlerNotFound", "Handler 'nothing' missing on module 'plain'"
            )

    run(body())


def test_a_process_that_cannot_be_started_is_an_outcome(tmp_path: Path) -> None:
    async def body() -> None:
        async with rig("plain:echo", code_dir=tmp_path / "nowhere") as made:
            outcome = await made.invoke()
            assert isinstance(outcome, Crashed)
            assert "No such file or directory" in outcome.reason
            assert made.function.running == 0

    run(body())


def test_closing_ends_what_runs() -> None:
    async def body() -> None:
        async with rig("naughty:waits", timeout_ms=60_000) as made:
            task = asyncio.ensure_future(made.invoke())
            await made.heard(lambda line: line.text.startswith("START"))
            await made.function.close()
            await made.function.close()
            assert await task == Crashed("signal: killed")

    run(body())


def test_closing_ends_what_waits_for_its_turn() -> None:
    async def body() -> None:
        async with rig("naughty:waits", timeout_ms=60_000, machine_max=1) as made:
            tasks = [asyncio.ensure_future(made.invoke()) for _ in range(2)]
            await made.heard(lambda line: line.text.startswith("START"))
            await made.function.close()
            await asyncio.wait(tasks)
            assert tasks[1].result() == Crashed("signal: killed", "the function was closed before it began")
            assert made.function.stats().cold_starts == 1

    run(body())


def test_request_ids_repeat_with_their_seed() -> None:
    async def body() -> list[str]:
        async with rig("plain:echo") as made:
            return [made.function.new_request_id() for _ in range(2)]

    first = run(body())
    assert first == run(body())
    assert len(set(first)) == 2


def test_misbehaviour_of_all_kinds_at_a_time_ends_in_one_outcome_each() -> None:
    kinds: dict[str, type] = {
        "binary": Answered,
        "closes_all": Crashed,
        "crashes": Crashed,
        "forks": Answered,
        "leaves_a_child": Answered,
        "long_line": Answered,
        "raises_the_unprintable": FunctionError,
        "recurses": FunctionError,
        "spins": TimedOut,
        "sys_exits": Crashed,
        "thread_goes_on": Answered,
    }

    async def body() -> None:
        async with rig("naughty:any_of", timeout_ms=5_000, machine_max=4) as made:
            names = list(kinds) * 2
            outcomes = await asyncio.gather(*(made.invoke({"how": name}) for name in names))
            assert [type(outcome) for outcome in outcomes] == [kinds[name] for name in names]
            reports = [line for line in made.lines if line.text.startswith("REPORT")]
            assert len({line.request_id for line in reports}) == len(reports) == len(names)
            assert made.function.running == 0
            assert isinstance(await made.invoke({"how": "binary"}), Answered)

    run(body())
