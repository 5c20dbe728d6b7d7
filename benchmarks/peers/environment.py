"""Installs the other queues and runs a Redis for them: `.venv-peers` with pinned versions, a server on a private port.

Never here: anything that touches the project's own environment. Invariant: what is started here ends here; Redis listens
on 127.0.0.1 only, on a free port, with a directory of its own, and no system service is ever installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from benchmarks.trials import ROOT, TrialFailed, wait_until

VENV = ROOT / ".venv-peers"
PYTHON = str(VENV / "bin" / "python")
CONSTRAINTS = ROOT / "benchmarks" / "peers-constraints.txt"
PACKAGES = ROOT / "benchmarks" / "peers.in"  # boto3 because Powertools' idempotency module imports it
IN_MEMORY = ("--save", "", "--appendonly", "no")
EVERY_WRITE_SYNCED = ("--save", "", "--appendonly", "yes", "--appendfsync", "always")


def installed() -> bool:
    mark = VENV / "installed"
    return mark.exists() and mark.read_text() == wanted()


def wanted() -> str:
    return hashlib.sha256(CONSTRAINTS.read_bytes()).hexdigest()


def install() -> None:
    """Makes `.venv-peers` and, when no Redis server program is found, installs Debian's; does nothing when all is there."""
    if not installed():
        say(f"installing {', '.join(PACKAGES.read_text().split())} into {VENV.name}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
        pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        locked = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "--requirement", str(CONSTRAINTS)]
        subprocess.run([*pip, *locked], check=True)
        (VENV / "installed").write_text(wanted())
    if redis_program() is None:
        install_redis()


def install_redis() -> None:
    """Installs Debian's `redis-tools`, which holds the server program but no service that would start with the machine."""
    say("installing Debian's redis-tools")
    prefix = [] if os.geteuid() == 0 else ["sudo", "--non-interactive"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-q"],
        ["apt-get", "install", "-q", "-y", "--no-install-recommends", "redis-tools"],
    ):
        ended = subprocess.run([*prefix, *command], check=False, env=environment, stdout=sys.stderr)
        if ended.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed: install redis-server yourself, then run this again")


def redis_program() -> str | None:
    """Returns the server program; Debian's is one binary that is also called redis-check-rdb and asks for its name."""
    return shutil.which("redis-server") or shutil.which("redis-check-rdb")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


@contextmanager
def redis_in_memory() -> Iterator[Mapping[str, str]]:
    """Runs a Redis that writes nothing to disk: its fastest, and everything is lost with the machine."""
    with redis(IN_MEMORY) as environment:
        yield environment


@contextmanager
def redis_synced() -> Iterator[Mapping[str, str]]:
    """Runs a Redis that syncs every write to disk: what "accepted" must mean to be compared with a durable queue."""
    with redis(EVERY_WRITE_SYNCED) as environment:
        yield environment


@contextmanager
def redis(arguments: tuple[str, ...]) -> Iterator[Mapping[str, str]]:
    program = redis_program()
    if program is None:
        raise TrialFailed("no redis-server: run python -m benchmarks.peers --install")
    port = free_port()
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as directory:
        server = subprocess.Popen(
            ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", directory, *arguments],
            executable=program, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            wait_until(lambda: answers(port), 10, "Redis to answer")
            yield {"BENCH_REDIS_URL": f"redis://127.0.0.1:{port}/0"}
        finally:
            server.kill()
            server.wait()
