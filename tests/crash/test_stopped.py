"""SIGSTOP of real processes in a handler, for longer than their lease: nothing runs at the same time, and it goes on.

The processes report through a pipe that a handler has begun, and it ends when it can read a byte from another pipe. The
log of the other process, which goes on working, shows that the lease of a stopped process is over and was not taken
over.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0  # a test that waits this long has failed
CLI = [sys.executable, "-c", "from onefold.cli.main import main; main()"]
APP = "tests.crash.stopped_app:app"
Process = subprocess.Popen[str]


class Field:
    """Processes on one file, and the two pipes between them and the test."""

    def __init__(self, folder: Path) -> None:
        self.path, self.effects = folder / "stopped.db", folder / "effects"
        pipes = {name: str(folder / name.lower()) for name in ("BEGUN", "GATE")}
        for path in pipes.values():
            os.mkfifo(path)
        self._begun, self._gate = (
            os.open(path, os.O_RDWR) for path in pipes.values()
        )  # so that neither ever reaches its end
        self.begins: list[str] = []
        self.environment = {
            **os.environ,
            "ONEFOLD_URL": f"sqlite:///{self.path}",
            "EFFECTS": str(self.effects),
            **pipes,
        }
        self._started: list[Process] = []

    def start(self, *command: str) -> Process:
        """Start a process in a process group of its own, whose log is read."""
        process = subprocess.Popen(
            command, cwd=ROOT, env=self.environment, start_new_session=True, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._started.append(process)
        return process

    def worker(self, *options: str) -> Process:
        return self.start(*CLI, "worker", APP, "--lease", "1s", "--threads", "2", "--log", "json", *options)

    def caller(self, key: str) -> Process:
        return self.start(sys.executable, "-m", "tests.crash.stopped_app", key)

    def run(self, *command: str) -> str:
        options: dict[str, Any] = {"cwd": ROOT, "env": self.environment, "text": True, "timeout": PATIENCE_S}
        ran = subprocess.run(command, **options, check=False, capture_output=True)
        return f"{ran.stdout}{ran.stderr}"

    def send(self, job: str, *keys: str) -> None:
        calls = "; ".join(f"one.{job}.send({{'id': {key!r}, 'lane': 'one'}})" for key in keys)
        assert not self.run(sys.executable, "-c", f"import tests.crash.stopped_app as one; {calls}")

    def begun(self) -> tuple[str, int]:
        """Wait until another handler has begun; returns its key and its process."""
        while not self.begins:
            ready, _, _ = select.select([self._begun], [], [], PATIENCE_S)
            assert ready, "nobody works"
            self.begins += os.read(self._begun, 4_096).decode().splitlines()
        key, process = self.begins.pop(0).split()
        return key, int(process)

    def is_working(self) -> bool:
        """Whether another handler has begun."""
        return bool(self.begins or select.select([self._begun], [], [], 0)[0])

    def let_go(self, handlers: int = 1) -> None:
        os.write(self._gate, b"." * handlers)

    def done(self) -> list[str]:
        return self.effects.read_text().splitlines() if self.effects.exists() else []

    def events(self) -> Counter[str]:
        with closing(sqlite3.connect(self.path)) as connection:
            return Counter(event for (event,) in connection.execute("SELECT event FROM onefold_ledger"))

    def statuses(self) -> list[int]:
        with closing(sqlite3.connect(self.path)) as connection:
            return [status for (status,) in connection.execute("SELECT status FROM onefold_record")]

    def messages(self) -> int:
        query = "SELECT count(*) FROM onefold_message m JOIN onefold_queue q ON q.id = m.queue WHERE q.name LIKE ?"
        with closing(sqlite3.connect(self.path)) as connection:
            found: int = connection.execute(query, ("last%",)).fetchone()[0]
            return found

    def received(self) -> list[tuple[int, int, str | None]]:
        """For each message that was received: how often, until when it is hidden, and who holds it."""
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute("SELECT delivery, visible_at_ms, owner FROM onefold_received").fetchall()

    def stop(self, *processes: int) -> None:
        """Stop processes at a moment when they do not hold the file's lock: whoever writes would wait for them."""
        for _ in range(100):
            for process in processes:
                os.kill(process, signal.SIGSTOP)
            asked = sqlite3.connect(self.path, timeout=1.0, isolation_level=None)
            with closing(asked), suppress(sqlite3.OperationalError):
                asked.execute("BEGIN IMMEDIATE")
                return
            for process in processes:
                os.kill(process, signal.SIGCONT)
            select.select([], [], [], 0.05)
        raise AssertionError("whenever they are stopped, they hold the file")

    def was_met(self) -> None:
        """Wait until a worker has received another worker's message, and has released it or begun its run."""
        wait_until(lambda: self.is_working() or any(one[0] > 1 and one[2] is None for one in self.received()))

    def lease_is_over(self) -> None:
        """Wait until the lease of the running operation has been over for a second."""
        now = "(julianday('now') - 2440587.5) * 86400000"
        query = f"SELECT 1 FROM onefold_record WHERE status = 0 AND lease_until_ms < {now} - 1000"
        with closing(sqlite3.connect(self.path)) as connection:
            wait_until(lambda: connection.execute(query).fetchone() is not None)

    def close(self) -> None:
        for process in self._started:
            with_group = process.poll() is None
            if with_group:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_S)
            for stream in (process.stdout, process.stderr):
                assert stream is not None
                if not stream.closed:
                    os.set_blocking(stream.fileno(), False)  # a child may have it open
                    with suppress(BlockingIOError):
                        said = os.read(stream.fileno(), 100_000).decode()  # shown if the test failed
                        sys.stdout.write(f"{process.args!r:.200}, {process.returncode}: {said}\n")
                stream.close()
        for one in (self._begun, self._gate):
            os.close(one)


def wait_until(is_so: Callable[[], bool]) -> None:
    """Check again and again until it is so."""
    for _ in range(int(PATIENCE_S * 20)):
        if is_so():
            return
        select.select([], [], [], 0.05)
    raise AssertionError("that never came")


def has_ended(process: int) -> bool:
    """Whether a process that is not a child of this one has ended; it may still be a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def logged(process: Process, *events: str) -> dict[str, Any]:
    """Read a worker's log up to one of these events."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("{") and (found := json.loads(line))["event"] in events:
            return found  # type: ignore[no-any-return]
    raise AssertionError(f"{process.args!r:.200} ended without any of {events}")


def answer(process: Process) -> str:
    """The result that a call printed."""
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    return out.strip()


@pytest.fixture
def field(tmp_path: Path) -> Iterator[Field]:
    one = Field(tmp_path)
    yield one
    one.close()


@pytest.mark.parametrize("job", ["ship", "follow"])
@pytest.mark.parametrize("how", ["threads", "child", "parent"])
def test_a_handler_whose_process_was_stopped_goes_on_alone(field: Field, job: str, how: str) -> None:
    """`child`: it runs in a child process, and all processes are stopped. `parent`: the child goes on meanwhile."""
    keys = ["a"] if job == "ship" else ["a", "b"]
    field.send(job, *keys)
    first = field.worker(*(["--processes", "1"] if how != "threads" else []))
    key, child = field.begun()
    assert (key, child != first.pid) == ("a", how != "threads")
    stopped = {first.pid} if how == "parent" else {first.pid, child}
    field.stop(*stopped)
    second = field.worker("--until-empty")
    field.was_met()
    assert not field.is_working()  # nor has its group gone on
    if how == "parent":
        field.let_go()
        wait_until(lambda: field.done() == ["a"])
    for process in stopped:
        os.kill(process, signal.SIGCONT)
    field.let_go(len(keys))
    assert second.wait(PATIENCE_S) == 0
    assert field.done() == keys
    events = field.events()
    assert (events["takeover"], events["unknown"], events["lease-lost"]) == (0, 0, 0)
    assert field.statuses() == [1] * len(keys)


@pytest.mark.parametrize(("job", "queue"), [("ship_last", "last"), ("follow_last", "last-chain.fifo")])
def test_the_last_receive_of_a_stopped_process_is_not_dead_lettered(field: Field, job: str, queue: str) -> None:
    field.send(job, "a")
    first = field.worker()
    assert field.begun()[0] == "a"
    field.stop(first.pid)
    before = field.received()
    second = field.worker("--queues", queue)
    wait_until(lambda: field.received() != before)
    assert field.messages() == 1
    assert not field.is_working()
    os.killpg(first.pid, signal.SIGCONT)
    field.let_go(2)
    logged(first, "completed")
    second.send_signal(signal.SIGTERM)
    first.send_signal(signal.SIGTERM)
    assert (first.wait(PATIENCE_S), second.wait(PATIENCE_S)) == (0, 0)
    assert field.done() == ["a"]
    assert field.messages() == 0  # nor its dead letters


def test_a_stopped_process_that_is_killed_is_taken_over(field: Field) -> None:
    def states() -> dict[int, str]:
        listed = json.loads(field.run(*CLI, "workers", "list", APP, "--json"))["workers"]
        return {one["pid"]: one["state"] for one in listed}

    field.send("ship", "a")
    first = field.worker()
    field.begun()
    wait_until(lambda: first.pid in states())  # it enters the list from a thread of its own
    field.stop(first.pid)
    second = field.worker("--until-empty")
    field.was_met()
    why, stuck = field.run(*CLI, "why", APP, "a"), field.run(*CLI, "stuck", APP)
    for said in (why, stuck):
        text = " ".join(said.split())  # a table breaks lines
        assert f"process {first.pid} is stopped" in text
        assert f"kill -CONT {first.pid}" in text
    assert states()[first.pid] == "stopped"
    os.killpg(first.pid, signal.SIGKILL)
    assert logged(second, "takeover")["event"] == "takeover"
    assert field.begun()[1] == second.pid
    field.let_go()
    assert second.wait(PATIENCE_S) == 0
    assert field.done() == ["a"]


@pytest.mark.parametrize("how", ["sleeps", "hangs in C", "is stopped"])
def test_a_child_whose_parent_was_killed_ends_and_its_run_is_taken_over(field: Field, how: str) -> None:
    """Otherwise it would keep its key for 12 hours, since it shares its parent's lock, and hold up its group."""
    field.send("hang" if how == "hangs in C" else "ship", "a")
    first = field.worker("--processes", "1")
    _, child = field.begun()
    assert child != first.pid
    if how == "is stopped":
        field.stop(child)
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: has_ended(child))
    second = field.worker("--until-empty")
    assert field.begun()[1] == second.pid
    field.let_go()
    assert second.wait(PATIENCE_S) == 0
    assert field.done() == ["a"]
    assert field.events()["takeover"] == 1


def test_a_call_whose_process_was_stopped_goes_on_alone(field: Field) -> None:
    first = field.caller("a")
    assert field.begun() == ("a", first.pid)
    field.stop(first.pid)
    field.lease_is_over()
    second = field.caller("a")
    select.select([], [], [], 1.5)  # fifteen checks by the second call, which must not begin
    assert second.poll() is None
    assert not field.is_working()
    os.killpg(first.pid, signal.SIGCONT)
    field.let_go()
    assert (answer(first), answer(second)) == ("a", "a")
    assert field.done() == ["a"]
    assert field.events()["takeover"] == 0
    assert os.listdir(f"{field.path}.owners") == []


def test_a_call_whose_process_is_killed_while_it_is_stopped_is_taken_over(field: Field) -> None:
    first = field.caller("a")
    assert field.begun() == ("a", first.pid)
    field.stop(first.pid)
    field.lease_is_over()
    os.killpg(first.pid, signal.SIGKILL)
    first.wait(PATIENCE_S)
    second = field.caller("a")
    assert field.begun() == ("a", second.pid)
    field.let_go()
    assert answer(second) == "a"
    assert field.done() == ["a"]
    assert field.events()["takeover"] == 1
