"""The machine's clock is set while workers run: nothing runs twice at once, nothing waits for the length of the step.

Real processes on one file; the clock of each is the machine's plus the step in a file (`stepped_app.py`).
"""

from __future__ import annotations

import os
import select
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from onefold.clock import SystemClock

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
HOUR_MS = 3_600_000
SEND = """
import sys
from tests.crash import stepped_app
getattr(stepped_app, sys.argv[1]).send_many([{"id": one, "group": "one"} for one in sys.argv[2:]])
"""
SEND_LATER = """
import sys
from tests.crash import stepped_app
getattr(stepped_app, sys.argv[1]).send({"id": sys.argv[2], "group": "one"}, delay=sys.argv[3])
"""


class Office:
    """A file, its workers, and the clock."""

    def __init__(self, folder: Path) -> None:
        self.path, self._step, self._started, self.gate = (
            folder / name for name in ("o.db", "step", "started", "gate")
        )
        self.set_clock(0)
        os.mkfifo(self.gate)
        self._reading, self._writing = os.pipe()
        self._told = ""
        self._workers: list[subprocess.Popen[bytes]] = []
        self._options = {
            "cwd": ROOT,
            "pass_fds": [self._writing],
            "env": {
                **os.environ, "ONEFOLD_URL": f"sqlite:///{self.path}", "STEP": str(self._step), "GATE": str(self.gate),
                "STARTED": str(self._started), "PROGRESS": str(self._writing),
            },
        }  # fmt: skip

    def set_clock(self, by_ms: int) -> None:
        """Set the clock of all processes at once."""
        new = self._step.with_suffix(".new")
        new.write_text(str(by_ms))
        new.rename(self._step)

    def send(self, job: str, *ids: str) -> None:
        """Send from a new process, which opens the file now."""
        subprocess.run([sys.executable, "-c", SEND, job, *ids], **self._options, check=True, timeout=PATIENCE_S)  # type: ignore[call-overload]

    def send_later(self, job: str, one: str, delay: str) -> None:
        """Send from a new process, to be run after a delay."""
        subprocess.run(  # type: ignore[call-overload]
            [sys.executable, "-c", SEND_LATER, job, one, delay], **self._options, check=True, timeout=PATIENCE_S
        )

    def start(self) -> None:
        """Start another worker."""
        code = "from onefold.cli.main import main; main()"
        order = [sys.executable, "-c", code, "worker", "tests.crash.stepped_app:app", "--no-progress", "--threads", "4"]
        self._workers.append(
            subprocess.Popen(order, **self._options, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # type: ignore[call-overload]
        )

    def wait_for(self, *ids: str) -> None:
        """Wait until each has started."""
        while not all(f"{one}\n" in self._told for one in ids):
            ready, _, _ = select.select([self._reading], [], [], PATIENCE_S)
            assert ready, f"of {ids} only {self._told.split()} have started"
            self._told += os.read(self._reading, 4096).decode()

    def started(self) -> list[str]:
        return self._started.read_text().split()

    def query(self, query: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(query).fetchall()

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait(PATIENCE_S)
        os.close(self._reading)
        os.close(self._writing)


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    one = Office(tmp_path)
    yield one
    one.close()


@pytest.mark.slow
@pytest.mark.parametrize("newcomer", [False, True], ids=["both-ran", "one-came-later"])
def test_a_clock_set_forward_starts_nothing_again(office: Office, newcomer: bool) -> None:
    office.start()
    office.send("ship", "long-1")
    office.wait_for("long-1")
    if not newcomer:
        office.start()
        office.send("ship", "warm")
        office.wait_for("warm")
    office.set_clock(HOUR_MS)
    if newcomer:  # at once, before anybody can have noticed and noted it
        office.start()
    for number in range(5):  # a message whose lease was over would come first, since it became visible before these
        office.send("ship", f"probe-{number}")
        office.wait_for(f"probe-{number}")
    office.gate.write_bytes(b"")  # lets the long run end
    while office.query("SELECT status FROM onefold_record WHERE key = 'long-1'") != [(1,)]:
        pass
    assert office.started().count("long-1") == 1
    assert office.query("SELECT crashes_total, fence FROM onefold_record WHERE key = 'long-1'") == [(0, 1)]


@pytest.mark.slow
def test_a_clock_set_back_hides_nothing_from_workers_that_run(office: Office) -> None:
    office.start()
    office.send("post", "first")
    office.wait_for("first")
    office.set_clock(-HOUR_MS)
    office.send("post", "second", "third")
    office.send("ship", "fourth")
    office.wait_for("second", "third", "fourth")
    assert [one for one in office.started() if one != "fourth"] == ["first", "second", "third"]


@pytest.mark.slow
def test_a_clock_set_back_hides_nothing_from_workers_that_come_later(office: Office) -> None:
    office.send("post", "first", "second")
    office.send("ship", "third")
    office.set_clock(-HOUR_MS)
    office.send("post", "fourth")
    office.start()
    office.wait_for("first", "second", "third", "fourth")
    assert [one for one in office.started() if one != "third"] == ["first", "second", "fourth"]


@pytest.mark.slow
@pytest.mark.parametrize("job", ["ship", "post"])
@pytest.mark.parametrize(
    "steps_ms", [[-HOUR_MS], [HOUR_MS], [HOUR_MS, 0]], ids=["back", "forward", "forward-and-right"]
)
def test_a_delay_is_counted_by_processes_that_begin_after_the_clock_was_set(
    office: Office, job: str, steps_ms: list[int]
) -> None:
    clock = SystemClock()
    office.start()
    office.send(job, "warm")
    office.wait_for("warm")
    first, *others = steps_ms
    office.set_clock(first)
    sent_ms = clock.monotonic_ms()
    office.send_later(job, "late", "4s")
    for by_ms in others:
        office.set_clock(by_ms)
    office.wait_for("late")
    assert 4_000 <= clock.monotonic_ms() - sent_ms <= 30_000
