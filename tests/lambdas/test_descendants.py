"""What a handler starts ends with its container, wherever in the tree of processes it went."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from onefold.local.outcomes import Answered, Crashed, Outcome, TimedOut
from tests.lambdas.handlers.escaping import KINDS
from tests.lambdas.rig import is_gone, rig, run

WITHIN_S = 60.0


def started(folder: Path) -> dict[str, int]:
    """The processes the handler has started, by kind."""
    return {kind: int((folder / kind).read_text()) for kind in KINDS}


def alive(folder: Path) -> list[str]:
    return [kind for kind, pid in started(folder).items() if not is_gone(pid)]


def ended(folder: Path, **changes: Any) -> tuple[Outcome, list[str]]:
    """How the invocation ended, and what of its processes lived when that was told."""

    async def body() -> tuple[Outcome, list[str]]:
        then, count = changes.pop("then", "waits"), changes.pop("count", 0)
        async with rig("escaping:starts", **changes) as made:
            outcome = await made.invoke({"folder": str(folder), "then": then, "bytes": count})
            return outcome, alive(folder)

    return run(body())


def test_the_timeout_kills_them(tmp_path: Path) -> None:
    assert ended(tmp_path, timeout_ms=2_000) == (TimedOut(2_000), [])


def test_they_count_for_the_memory_and_end_with_it(tmp_path: Path) -> None:
    outcome, left = ended(tmp_path, count=60_000_000, timeout_ms=20_000)
    assert isinstance(outcome, Crashed)
    assert "it may use 128 MB" in outcome.detail
    assert left == []


def test_they_end_with_a_handler_that_ends_its_process(tmp_path: Path) -> None:
    assert ended(tmp_path, then="exits", timeout_ms=20_000) == (Crashed("exit status 3"), [])


def test_they_live_on_in_a_warm_container_and_end_with_the_function(tmp_path: Path) -> None:
    outcome, left = ended(tmp_path, then="returns", timeout_ms=20_000)
    assert (outcome, left) == (Answered(b'"done"'), list(KINDS))
    assert alive(tmp_path) == []


def test_a_handler_that_stops_its_supervisor_gains_nothing(tmp_path: Path) -> None:
    assert ended(tmp_path, then="stops", timeout_ms=2_000) == (TimedOut(2_000), [])


def test_a_handler_that_kills_its_supervisor_ends_with_the_children_it_still_has(tmp_path: Path) -> None:
    outcome, _ = ended(tmp_path, then="kills", timeout_ms=20_000)
    assert outcome == Crashed("signal: killed")
    daemon = started(tmp_path)["daemon"]
    try:
        until(lambda: set(alive(tmp_path)) <= {"daemon"})
    finally:
        if not is_gone(daemon):  # nobody knows any more whose it was
            os.kill(daemon, signal.SIGKILL)


def test_a_daemon_is_not_the_handlers_to_wait_for() -> None:
    async def body() -> None:
        async with rig("escaping:adopts") as made:
            assert await made.answer() == ["True", "none"]

    run(body())


@pytest.mark.parametrize("stops", ["kill", "terminate"])
def test_they_end_with_the_server_however_it_ends(tmp_path: Path, stops: str) -> None:
    event = {"folder": str(tmp_path), "then": "waits", "bytes": 0}
    program = textwrap.dedent(f"""
        import asyncio
        from tests.lambdas.rig import Rig

        async def main():
            await Rig("escaping:starts", timeout_ms=60_000).invoke({event!r})

        asyncio.run(main())
    """)
    server = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2])
    try:
        until(lambda: all((tmp_path / kind).exists() for kind in KINDS))
        assert alive(tmp_path) == list(KINDS)
    finally:
        getattr(server, stops)()
        server.wait(WITHIN_S)
    until(lambda: alive(tmp_path) == [])


def until(true: Any) -> None:
    for _ in range(int(WITHIN_S * 100)):
        if true():
            return
        select.poll().poll(10)
    raise AssertionError(f"not within {WITHIN_S} s, in process {os.getpid()}")
