"""The program of a container, spoken to by hand: what it imports, its frames, and when it ends."""

from __future__ import annotations

import ast
import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold.clock import SystemClock
from onefold.local.containers import BOOTSTRAP, environment
from onefold.local.settings import FunctionSettings
from tests.lambdas.rig import HANDLERS, is_gone

WITHIN_S = 60.0


class Talk:
    """A bootstrap and our ends of its descriptors."""

    def __init__(self, handler: str, memory_bytes: int = 1 << 30) -> None:
        self.end, theirs = socket.socketpair()
        self.end.settimeout(WITHIN_S)
        lifeline, self.lifeline = os.pipe()
        settings = FunctionSettings(name="orders", handler=handler, code_dir=str(HANDLERS))
        self.process = subprocess.Popen(
            [sys.executable, "-P", BOOTSTRAP, str(theirs.fileno()), str(lifeline)],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env=environment(settings, "stream"),
            pass_fds=(theirs.fileno(), lifeline),
            start_new_session=True,
        )
        theirs.close()
        os.close(lifeline)
        self.send({"handler": handler, "code_dir": str(HANDLERS), "memory_bytes": memory_bytes})
        begun, _ = self.hear()
        assert begun["kind"] == "begun"
        self.pid = begun["pid"]

    def send(self, head: dict[str, Any], payload: bytes = b"") -> None:
        told = json.dumps(head).encode()
        self.end.sendall(len(told).to_bytes(4, "big") + len(payload).to_bytes(4, "big") + told + payload)

    def invoke(self, event: Any, *, tells_start: bool = False) -> None:
        head = {
            "id": "r-1", "arn": "arn", "trace_id": "t", "tells_start": tells_start,
            "deadline_ms": SystemClock().monotonic_ms() + 3_000,
        }  # fmt: skip
        self.send(head, json.dumps(event).encode())

    def hear(self) -> tuple[dict[str, Any], bytes]:
        sizes = self._exactly(8)
        head = json.loads(self._exactly(int.from_bytes(sizes[:4], "big")))
        return head, self._exactly(int.from_bytes(sizes[4:], "big"))

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            part = self.end.recv(count - len(found))
            assert part, "the bootstrap has closed"
            found += part
        return found

    def close(self) -> None:
        self.end.close()
        if self.lifeline >= 0:
            os.close(self.lifeline)
        self.process.kill()
        self.process.communicate(timeout=WITHIN_S)


@pytest.fixture
def talk() -> Iterator[Talk]:
    made = Talk("plain:echo")
    yield made
    made.close()


def test_it_needs_the_standard_library_only() -> None:
    imported = set()
    for node in ast.walk(ast.parse(BOOTSTRAP.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert "json" in imported
    assert imported <= sys.stdlib_module_names


def test_it_is_ready_and_answers_one_event_after_another(talk: Talk) -> None:
    head, _ = talk.hear()
    assert head["kind"] == "ready"
    assert 4_000 < head["own_kib"] < 40_000
    for number in range(3):
        talk.invoke({"number": number})
        head, payload = talk.hear()
        assert (head["kind"], head["id"], json.loads(payload)) == ("answer", "r-1", {"number": number})
        assert 0 <= head["took_us"] < 1_000_000


def test_it_tells_the_start_where_asked(talk: Talk) -> None:
    talk.hear()
    talk.invoke(1, tells_start=True)
    assert talk.hear() == ({"kind": "started", "id": "r-1"}, b"")
    assert talk.hear()[1] == b"1"


def test_an_event_that_comes_in_pieces_is_one_event(talk: Talk) -> None:
    talk.hear()
    event = {"text": "x" * 3_000_000}
    talk.invoke(event)
    assert json.loads(talk.hear()[1]) == event


def test_it_ends_when_the_conversation_is_closed(talk: Talk) -> None:
    talk.hear()
    talk.end.shutdown(socket.SHUT_WR)
    assert talk.process.wait(WITHIN_S) == 0


def test_it_dies_with_its_lifeline_whatever_it_does() -> None:
    talk = Talk("naughty:spins")
    talk.hear()
    talk.invoke(None, tells_start=True)
    talk.hear()
    os.close(talk.lifeline)
    talk.lifeline = -1
    assert talk.process.wait(WITHIN_S) == -signal.SIGKILL
    talk.close()


def test_what_can_be_allocated_is_bounded_by_the_kernel() -> None:
    talk = Talk("naughty:allocates", memory_bytes=64 << 20)
    talk.hear()
    talk.invoke(None)
    assert talk.hear()[1] == b'"survived"'
    peak_kib = int(Path(f"/proc/{talk.pid}/status").read_text().partition("VmHWM:")[2].split()[0])
    assert 32_000 < peak_kib < 160_000
    talk.close()


def test_a_handler_that_is_not_there_is_told_and_ends_it() -> None:
    talk = Talk("plain:missing")
    head, _ = talk.hear()
    assert (head["kind"], head["type"]) == ("failed", "Runtime.HandlerNotFound")
    assert talk.process.wait(WITHIN_S) == 1
    talk.close()


def test_containers_die_with_a_server_that_is_killed(tmp_path: Path) -> None:
    """Kill -9 of the process that has the function, while its handler runs and has a child."""
    file = tmp_path / "pid"
    program = textwrap.dedent(f"""
        import asyncio
        from tests.lambdas.rig import Rig

        async def main():
            await Rig("naughty:waits_with_a_child", timeout_ms=60_000).invoke({{"file": {str(file)!r}}})

        asyncio.run(main())
    """)
    server = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2])
    try:
        watch = select.poll()
        for _ in range(int(WITHIN_S * 100)):
            if file.exists() and file.read_text():
                break
            watch.poll(10)
        child = int(file.read_text())
        assert not is_gone(child)
    finally:
        server.kill()
        server.wait(WITHIN_S)
    for _ in range(int(WITHIN_S * 100)):
        if is_gone(child):
            break
        watch.poll(10)
    assert is_gone(child)
