"""Several processes and threads write to one file: nothing is lost or doubled, and nobody waits for ever.

What was accepted is on disk, although others had their turn meanwhile.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from onefold import errors
from onefold.contracts.entries import Entry
from onefold.contracts.settings import QueueSettings
from onefold.contracts.store import Claimed, Complete, Completed, Running
from onefold.engines.sqlite import log
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.engines.sqlite.file import APPLICATION_ID, FileSettings
from onefold.entropy import SystemEntropy
from onefold.manual_clock import ManualClock
from onefold.testing.records import KEPT_MS, NOW, ask

PATIENCE_S = 60
BUSY_MS = 20_000
OURS = f"PRAGMA application_id={APPLICATION_ID}"
NOTED = "CREATE TABLE IF NOT EXISTS noted (name TEXT, thread INTEGER, number INTEGER)"

WRITER = f"""
import sqlite3, sys
from threading import Thread
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.file import FileSettings
from onefold.clock import SystemClock

path, name, threads, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
engine = Database(path, SystemClock(), settings=FileSettings(busy_ms={BUSY_MS}))

def write_all(thread):
    for number in range(count):
        row = (name, thread, number)
        engine.write(
            lambda connection: connection.execute("INSERT INTO noted VALUES (?, ?, ?)", row),
            synced=number % 3 != 0, early=number % 3 == 1,
        )

print("ready", flush=True)
sys.stdin.readline()
running = [Thread(target=write_all, args=(thread,)) for thread in range(threads)]
for one in running:
    one.start()
for one in running:
    one.join()
print("done", flush=True)
"""


def opened(path: Path, busy_ms: int = BUSY_MS) -> Database:
    return Database(str(path), ManualClock(), settings=FileSettings(busy_ms=busy_ms))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Database]:
    engine = opened(tmp_path / "q.db")
    engine.write(lambda connection: connection.execute(OURS))
    engine.write(lambda connection: connection.execute(NOTED))
    yield engine
    engine.close()


def note(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO noted VALUES ('here', 0, 0)")


def rows_of(engine: Database, name: str) -> list[tuple[int, int]]:
    query = "SELECT thread, number FROM noted WHERE name = ? ORDER BY 1, 2"
    return engine.read(lambda connection: connection.execute(query, (name,)).fetchall())


# -- processes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def begin(name: str, threads: int = 1, count: int = 1) -> subprocess.Popen[str]:
        program = [sys.executable, "-c", WRITER, str(tmp_path / "q.db"), name, str(threads), str(count)]
        process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert said(process) == "ready"
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def test_processes_and_their_threads_lose_and_double_nothing(
    engine: Database, start: Callable[..., subprocess.Popen[str]]
) -> None:
    processes = {name: start(name, threads=4, count=40) for name in ("a", "b", "c")}
    for process in processes.values():
        go(process)
    for _ in range(40):
        engine.write(note)  # as a process that does not know of `early`
    for name, process in processes.items():
        assert said(process) == "done"
        assert rows_of(engine, name) == [(thread, number) for thread in range(4) for number in range(40)]
    assert len(rows_of(engine, "here")) == 40


@pytest.mark.parametrize("deadly", [signal.SIGSTOP, signal.SIGKILL])
def test_who_is_stopped_or_killed_while_it_waits_for_its_turn_keeps_nobody_waiting(
    engine: Database, start: Callable[..., subprocess.Popen[str]], deadly: signal.Signals
) -> None:
    waits = [start(name) for name in ("a", "b")]
    engine.begin_exclusive()
    for process in waits:
        go(process)
    engine.end_exclusive(commit=False)
    engine.begin_exclusive()  # at least one of them is asking for its turn by now, or has had it
    waits[0].send_signal(deadly)
    engine.end_exclusive(commit=False)
    engine.write(note)
    assert said(waits[1]) == "done"
    assert rows_of(engine, "b") == [(0, 0)]
    if deadly == signal.SIGSTOP:
        waits[0].send_signal(signal.SIGCONT)
        assert said(waits[0]) == "done"
        assert rows_of(engine, "a") == [(0, 0)]


def test_who_is_killed_with_the_turn_gives_it_back(
    engine: Database, start: Callable[..., subprocess.Popen[str]]
) -> None:
    busy = start("a", threads=2, count=1_000_000)
    go(busy)
    engine.write(note)
    busy.kill()
    busy.wait()
    for _ in range(10):
        engine.write(note)
    kept = rows_of(engine, "a")
    for thread in (0, 1):  # a beginning of each thread's rows, without a gap
        mine = [number for one, number in kept if one == thread]
        assert mine == list(range(len(mine)))


# -- what is seen before it is on disk -------------------------------------------------------------------------------


class Disk:
    """A disk that takes its time: a sync begins, and ends when the test lets it."""

    def __init__(self) -> None:
        self.syncs = 0
        self.inodes: set[int] = set()
        self.begun, self.over = threading.Semaphore(0), threading.Event()
        self.error: OSError | None = None

    def sync(self, file: int) -> None:
        self.syncs += 1
        self.inodes.add(os.fstat(file).st_ino)
        self.begun.release()
        assert self.over.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(log, "_SYNC", disk.sync)
    yield disk
    disk.over.set()


def in_threads(count: int, call: Callable[[], object]) -> tuple[list[threading.Thread], list[Any]]:
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(call())) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, answers


def test_an_early_write_is_seen_by_others_and_leaves_them_the_turn_but_answers_only_from_the_disk(
    engine: Database, disk: Disk
) -> None:
    other = opened(Path(engine.path), busy_ms=2_000)
    (thread,), answers = in_threads(1, lambda: engine.write(note, early=True))
    assert disk.begun.acquire(timeout=PATIENCE_S)
    assert len(rows_of(other, "here")) == 1
    other.write(note)
    engine.write(note)
    assert answers == []
    assert thread.is_alive()
    disk.over.set()
    thread.join(PATIENCE_S)
    assert answers == [None]
    assert disk.inodes == {os.stat(f"{engine.path}-wal").st_ino}
    other.close()


class AskedLock:
    """A lock that counts who asked for it."""

    def __init__(self, lock: threading.RLock) -> None:
        self.lock, self.asked = lock, threading.Semaphore(0)

    def __enter__(self) -> None:
        self.asked.release()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_early_writes_of_many_threads_share_syncs(
    engine: Database, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = in_threads(1, lambda: engine.write(note, early=True))
    assert disk.begun.acquire(timeout=PATIENCE_S)
    lock = AskedLock(engine._log._lock)
    monkeypatch.setattr(engine._log, "_lock", lock)
    others, answers = in_threads(20, lambda: engine.write(note, early=True))
    for _ in others:  # not only committed: who asks for a sync when the next one has begun needs another
        assert lock.asked.acquire(timeout=PATIENCE_S)
    assert len(rows_of(engine, "here")) == 21
    assert answers == []
    disk.over.set()
    for thread in first + others:
        thread.join(PATIENCE_S)
    assert answers == [None] * 20
    assert disk.syncs == 2


def test_after_a_sync_that_failed_nothing_more_is_answered_from_that_log(engine: Database, disk: Disk) -> None:
    """The kernel says it once, and takes the pages for written: the next sync would succeed over a gap."""
    disk.error = OSError(5, "Input/output error")
    first, seen = in_threads(1, lambda: outcome_of(lambda: engine.write(note, early=True)))
    assert disk.begun.acquire(timeout=PATIENCE_S)
    second, others = in_threads(1, lambda: outcome_of(lambda: engine.write(note, early=True)))
    while len(rows_of(engine, "here")) < 2:
        assert others == []
    disk.over.set()
    for thread in first + second:
        thread.join(PATIENCE_S)
    assert "a power cut may take it back" in seen[0]
    assert "a power cut may take it back" in others[0]
    disk.error = None
    calls: list[Callable[[], object]] = [
        lambda: engine.write(note, early=True),
        lambda: engine.write(note),
        lambda: engine.together([lambda: None]),
        engine.begin_exclusive,
        engine.check_file,
    ]
    for call in calls:
        assert "Input/output error" in outcome_of(call)
    assert disk.syncs == 1
    assert len(rows_of(engine, "here")) == 2, "nothing came behind the gap"


def outcome_of(call: Callable[[], object]) -> str:
    try:
        return str(call())
    except errors.StorageError as error:
        return str(error)


def test_closing_leaves_the_sync_that_is_under_way_its_file(engine: Database, disk: Disk) -> None:
    (thread,), answers = in_threads(1, lambda: engine.write(note, early=True))
    assert disk.begun.acquire(timeout=PATIENCE_S)
    closing = threading.Thread(target=engine.close)
    closing.start()
    disk.over.set()
    for one in (thread, closing):
        one.join(PATIENCE_S)
    assert answers == [None]
    again = opened(Path(engine.path))
    assert len(rows_of(again, "here")) == 1
    again.close()


def test_a_child_forked_in_the_middle_of_a_sync_can_close(engine: Database, disk: Disk) -> None:
    (thread,), _ = in_threads(1, lambda: engine.write(note, early=True))
    assert disk.begun.acquire(timeout=PATIENCE_S)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends it where it hangs
        engine.close()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    disk.over.set()
    thread.join(PATIENCE_S)


def test_a_fork_does_not_forget_a_sync_that_failed(engine: Database, disk: Disk) -> None:
    disk.error = OSError(5, "Input/output error")
    disk.over.set()
    outcome_of(lambda: engine.write(note, early=True))
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends it where it hangs
        os._exit("would come behind" not in outcome_of(lambda: engine.write(note)))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert "would come behind" in outcome_of(lambda: engine.write(note))


def open_files(folder: Path) -> list[str]:
    """The files of a folder that this process has open, whatever earlier tests have left to the garbage collector."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the listing's own
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [one for one in found if one.startswith(f"{folder.resolve()}{os.sep}")]


def test_no_file_is_left_open(tmp_path: Path) -> None:
    def opened_and_closed() -> None:
        one = opened(tmp_path / "files.db")
        one.write(lambda connection: connection.execute(OURS))
        one.write(lambda connection: connection.execute(NOTED))
        one.write(note, early=True)
        one.close()

    for _ in range(5):
        opened_and_closed()
    assert open_files(tmp_path) == []


# -- which writes are early ------------------------------------------------------------------------------------------


def opened_wired(path: str) -> SqliteEngine:
    return SqliteEngine(path, clock=ManualClock(), entropy=SystemEntropy(), owner="me", url=path)


def claimed(engine: SqliteEngine, *keys: str) -> list[Claimed]:
    answers = engine.store.claim([ask(key) for key in keys], NOW)
    assert all(isinstance(answer, Claimed) for answer in answers), answers
    return answers  # type: ignore[return-value]  # as asserted


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[SqliteEngine]:
    path = str(tmp_path / "wired.db")
    wired = opened_wired(path)
    wired.queues.create(QueueSettings(name="q"))
    wired.queues.create(QueueSettings(name="q.fifo", fifo=True))
    yield wired
    wired.close()


def test_sends_and_claims_are_early_and_what_they_did_not_change_needs_no_sync(wired: SqliteEngine, disk: Disk) -> None:
    disk.over.set()
    wired.queues.open("q").send([Entry(body="a")])
    assert disk.syncs == 1
    (claimed,) = wired.store.claim([ask("one")], NOW)
    assert isinstance(claimed, Claimed)
    assert disk.syncs == 2
    wired.store.claim([ask("one")], NOW)  # runs
    wired.store.write([(claimed.hold, Complete(result=b"7", expires_at_ms=NOW + KEPT_MS))], NOW)  # synced by its commit
    (answer,) = wired.store.claim([ask("one")], NOW)
    assert isinstance(answer, Completed)
    assert disk.syncs == 2
    wired.queues.open("q").receive(1)
    assert disk.syncs == 2


def test_claims_whose_sync_failed_are_given_back(wired: SqliteEngine, disk: Disk) -> None:
    """Nobody runs them; left to their leases they would count as crashed, and be held for a person."""
    disk.over.set()
    claimed(wired, "before")
    disk.error = OSError(5, "Input/output error")
    with pytest.raises(errors.StorageError, match="Input/output error"):
        wired.store.claim([ask("one"), ask("before"), ask("two")], NOW)
    disk.error = None
    other = opened_wired(wired.database.path)
    seen = [(one.found, one.doubt, one.started, one.attempts) for one in claimed(other, "one", "two")]
    assert seen == [("released", False, True, 1)] * 2
    assert isinstance(other.store.claim([ask("before")], NOW)[0], Running)
    other.close()


def test_claims_that_wait_for_a_sync_that_fails_are_given_back(wired: SqliteEngine, disk: Disk) -> None:
    disk.error = OSError(5, "Input/output error")
    first, said = in_threads(1, lambda: outcome_of(lambda: wired.store.claim([ask("one")], NOW)))
    assert disk.begun.acquire(timeout=PATIENCE_S)
    second, said_too = in_threads(1, lambda: outcome_of(lambda: wired.store.claim([ask("two")], NOW)))
    while wired.store.read([ask("two").key], NOW) == [None]:
        assert said_too == []
    disk.over.set()
    for thread in first + second:
        thread.join(PATIENCE_S)
    assert ["Input/output error" in one for one in said + said_too] == [True, True]
    disk.error = None
    other = opened_wired(wired.database.path)
    assert [one.found for one in claimed(other, "one", "two")] == ["released"] * 2
    other.close()


def test_where_claims_cannot_be_given_back_the_error_is_that_of_the_disk(
    wired: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    locking = sqlite3.connect(wired.database.path, isolation_level=None)

    def fail(_file: int) -> None:
        locking.execute("BEGIN IMMEDIATE")
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(log, "_SYNC", fail)
    wired.hurry(0)  # it waits for others for no longer than a moment
    with pytest.raises(errors.StorageError, match="Input/output error"):
        wired.store.claim([ask("one")], NOW)
    locking.close()
    assert wired.store.read([ask("one").key], NOW)[0].status == "in_progress"  # type: ignore[union-attr]
    with pytest.raises(errors.StorageError, match="would come behind what is not on the disk"):
        wired.store.claim([ask("two")], NOW)


def test_a_fifo_send_is_on_disk_before_its_duplicate_can_be_answered(wired: SqliteEngine, disk: Disk) -> None:
    disk.over.set()
    for _ in range(2):
        wired.queues.open("q.fifo").send([Entry(body="a", group="g", dedup_id="d")])
    assert disk.syncs == 0


def test_a_transaction_that_only_read_what_others_sent_waits_until_that_is_on_disk(
    wired: SqliteEngine, disk: Disk
) -> None:
    disk.over.set()
    wired.together([lambda: None])
    assert disk.syncs == 1
    wired.together([lambda: None], synced=False)
    wired.together([lambda: wired.queues.open("q").send([Entry(body="a")])])  # its commit is a synced one
    assert disk.syncs == 1
