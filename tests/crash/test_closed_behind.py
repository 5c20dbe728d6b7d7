"""A program that turns into a daemon closes all files by number; its own files then get the numbers of onefold's.

They must not be closed, replaced or written by onefold at the next fork, or when the app is closed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from onefold import forks
from onefold.engines.sqlite.log import Log
from onefold.engines.sqlite.processes import Presence, Wakeup
from onefold.entropy import SystemEntropy

PATIENCE_S = 60

DAEMON = """
import os, sys
import onefold

folder, forks_before = sys.argv[1], int(sys.argv[2])
app = onefold.App("shop", url=f"sqlite:///{folder}/shop.db")

@app.job(app.queue("orders"), key="{id}")
def book(order: dict) -> str:
    return "L-1"

book.send({"id": "first"})
for _ in range(forks_before):
    if pid := os.fork():
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
os.setsid()
os.closerange(3, 256)
files = [open(f"{folder}/own{number}", "w", buffering=1) for number in range(20)]

def write(who):
    for number, file in enumerate(files):
        try:
            file.write(f"{who}\\n")
        except OSError as error:
            print(f"{who}: own file {number}: {error}", flush=True)

book.send({"id": "second"})
if (pid := os.fork()) == 0:
    write("child")
    book.send({"id": "third"})
    app.close()
    write("child after close")
    os._exit(0)
os.waitpid(pid, 0)
write("daemon")
book.send({"id": "fourth"})
app.close()
write("daemon after close")
"""


@pytest.mark.parametrize("forks_before", [1, 2])
def test_a_daemon_and_its_children_keep_their_own_files(tmp_path: Path, forks_before: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", DAEMON, str(tmp_path), str(forks_before)],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    for number in range(20):
        said = (tmp_path / f"own{number}").read_text().splitlines()
        assert said == ["child", "child after close", "daemon", "daemon after close"]


def test_a_daemon_whose_numbers_are_free_forks_in_silence(tmp_path: Path) -> None:
    silent = DAEMON.replace("range(20)", "range(0)")
    ran = subprocess.run(
        [sys.executable, "-c", silent, str(tmp_path), "1"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


class Program:
    """The rest of the program: it closes a file by its number, and has one of its own under that number at once."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "own"
        self.path.write_bytes(b"mine")
        self.numbers: list[int] = []

    def takes(self, *numbers: int) -> None:
        for number in numbers:
            own = os.open(self.path, os.O_RDWR)
            os.dup2(own, number)
            os.close(own)
            self.numbers.append(number)

    def has_all(self) -> bool:
        itself = os.stat(self.path)
        return (
            self.path.read_bytes() == b"mine"
            and all(os.path.sameopenfile(one, self.numbers[0]) for one in self.numbers)
            and os.fstat(self.numbers[0]).st_ino == itself.st_ino
        )


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    one = Program(tmp_path)
    yield one
    for number in one.numbers:
        with suppress(OSError):
            os.close(number)


def number_of(found: object) -> int:
    return found.number if isinstance(found, forks.OwnFile) else found.fileno()  # type: ignore[attr-defined]


@pytest.mark.parametrize("end", [Presence.close, Presence.abandon])
def test_the_presence_lock_closes_and_writes_only_its_own_file(
    tmp_path: Path, program: Program, end: Callable[[Presence], None]
) -> None:
    presence = Presence(str(tmp_path / "q.db"), "me")
    mark = presence.mark(1)
    program.takes(number_of(presence._file))
    mark.renewed(2)
    end(presence)
    assert program.has_all()


@pytest.mark.parametrize("end", ["close", "abandon"])
def test_waiters_and_senders_close_only_their_own_sockets(tmp_path: Path, program: Program, end: str) -> None:
    wakeup = Wakeup(str(tmp_path / "q.db"), SystemEntropy())
    waiter = wakeup.waiter()
    sockets = [one for one in (wakeup._sender, *vars(waiter).values()) if isinstance(one, socket.socket)]
    assert len(sockets) == 4
    program.takes(*map(number_of, sockets))
    for one in (waiter, wakeup):
        getattr(one, end)()
    assert program.has_all()


def test_the_log_closes_only_its_own_file(tmp_path: Path, program: Program) -> None:
    path = tmp_path / "q.db-wal"
    path.touch()
    for is_closed in (True, False):
        log = Log(str(path))
        program.takes(number_of(log._file))
        if is_closed:
            log.close()
        del log
        assert program.has_all()


def test_what_is_still_onefolds_is_closed(tmp_path: Path) -> None:
    presence = Presence(str(tmp_path / "q.db"), "me")
    wakeup = Wakeup(str(tmp_path / "q.db"), SystemEntropy())
    log = Log(str(presence.lock_file))
    numbers = [number_of(one) for one in (presence._file, wakeup._sender, log._file)]
    presence.close()
    wakeup.close()
    log.close()
    for number in numbers:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)


HANDLER = """
import os, sys
from onefold.local.bootstrap import _Control

reading, writing = os.pipe()
control = _Control(writing)
own = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
if sys.argv[2] == "taken":
    os.dup2(own, control._fd)  # the handler has closed all files, and its own has this number
if (pid := os.fork()) == 0:
    os.write(control._fd, b"from the child")
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.parametrize("number", ["taken", "kept"])
def test_a_child_of_a_local_function_closes_the_servers_channel_and_no_file_of_its_own(
    tmp_path: Path, number: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", HANDLER, str(tmp_path / "own"), number],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    if number == "taken":
        assert (ran.returncode, ran.stderr, (tmp_path / "own").read_text()) == (0, "", "from the child")
    else:
        assert "Bad file descriptor" in ran.stderr
