"""The servers that are measured, each on a free port of loopback, started for one measurement and ended with it.

Never here: what is asked of them. Invariant: a server that does not answer in time fails the trial, with what it printed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from benchmarks.peers import environment
from benchmarks.trials import TrialFailed, process_environment, wait_until

START_S = 60


@dataclass(frozen=True)
class Running:
    """A server that answers.

    Args:
        url: where; pid: of its process.
        first_answer_ms: from its start until it answered the first request.
    """

    url: str
    pid: int
    first_answer_ms: float


@contextmanager
def onefold(work: Path, *, file: Path | None = None, options: Sequence[str] = ()) -> Iterator[Running]:
    """Runs `onefold serve`, on a data file or in memory."""
    where = ["--memory"] if file is None else ["--data", str(file)]
    port = environment.free_port()
    command = [sys.executable, "-m", "onefold", "serve", "--port", str(port), *where, *options]
    with server(command, port, work, {}) as running:
        yield running


@contextmanager
def ministack(work: Path) -> Iterator[Running]:
    port = environment.free_port()
    with server([peer("ministack")], port, work, {"GATEWAY_PORT": str(port)}) as running:
        yield running


@contextmanager
def moto(work: Path) -> Iterator[Running]:
    port = environment.free_port()
    with server([peer("moto_server"), "-p", str(port)], port, work, {}) as running:
        yield running


def peer(program: str) -> str:
    path = Path(environment.PYTHON).with_name(program)
    if not environment.installed() or not path.exists():
        raise TrialFailed(f"{program} is not installed: make bench-peers installs it")
    return str(path)


@contextmanager
def server(command: Sequence[str], port: int, work: Path, more: Mapping[str, str]) -> Iterator[Running]:
    with TemporaryFile() as said:
        started = time.monotonic()
        process = subprocess.Popen(
            command, cwd=work, env=process_environment(more), stdout=said, stderr=said, start_new_session=True
        )

        def answers() -> bool:
            if process.poll() is not None:
                said.seek(0)
                raise TrialFailed(f"{command[0]} ended: {said.read()[-2_000:].decode(errors='replace')}")
            return list_queues(port)

        try:
            wait_until(answers, START_S, f"{Path(command[0]).name} to answer")
            first_answer_ms = (time.monotonic() - started) * 1e3
            yield Running(f"http://127.0.0.1:{port}", process.pid, first_answer_ms)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def list_queues(port: int) -> bool:
    """Whether the server answers an SQS call."""
    from benchmarks.serving.lean import prepared

    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(prepared(f"127.0.0.1:{port}", "ListQueues", {}))
            return b" 200 " in connection.recv(4096).partition(b"\r\n")[0]
    except OSError:
        return False
