"""The log of a database file grows in steps ahead of what is in it, and is read back as if it did not."""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from onefold.contracts.entries import Entry
from onefold.contracts.settings import QueueSettings
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.engines.sqlite.log import _STEP_BYTES as STEP_BYTES
from onefold.entropy import SystemEntropy
from onefold.manual_clock import ManualClock

PATIENCE_S = 60


def opened(path: Path) -> SqliteEngine:
    return SqliteEngine(str(path), clock=ManualClock(), entropy=SystemEntropy(), owner="me", url=str(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "q.db"


@pytest.fixture
def engine(path: Path) -> Iterator[SqliteEngine]:
    engine = opened(path)
    engine.queues.create(QueueSettings(name="q"))
    yield engine
    engine.close()


def log_bytes(path: Path) -> int:
    return os.stat(f"{path}-wal").st_size


def sent(engine: SqliteEngine, count: int) -> None:
    for _ in range(count):
        engine.queues.open("q").send([Entry(body="x" * 100)])


def test_most_sends_find_the_log_s_file_long_enough(engine: SqliteEngine, path: Path) -> None:
    lengths = []
    for _ in range(100):
        sent(engine, 1)
        lengths.append(log_bytes(path))
    changes = sum(one != before for before, one in itertools.pairwise(lengths))
    assert 1 <= changes <= 10  # to the next step, and past it; else it were each send
    assert lengths[-1] <= (lengths[0] // STEP_BYTES + 8) * STEP_BYTES


def test_what_lies_behind_the_end_of_the_log_is_not_read_back(engine: SqliteEngine, path: Path, tmp_path: Path) -> None:
    sent(engine, 30)
    assert log_bytes(path) % STEP_BYTES == 0
    with open(f"{path}-wal", "rb") as log:
        log.seek(-4_096, os.SEEK_END)
        assert log.read() == bytes(4_096)
    copy = tmp_path / "copy.db"  # as a power cut leaves it: without the log's index
    shutil.copy(path, copy)
    shutil.copy(f"{path}-wal", f"{copy}-wal")
    plain = sqlite3.connect(copy)
    assert plain.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert plain.execute("SELECT count(*) FROM onefold_message").fetchone() == (30,)
    plain.close()


_SENDER = """
import sys
from onefold.clock import SystemClock
from onefold.contracts.entries import Entry
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.entropy import SystemEntropy

path = sys.argv[1]
engine = SqliteEngine(path, clock=SystemClock(), entropy=SystemEntropy(), owner=sys.argv[2], url=path)
for _ in range(300):
    engine.queues.open("q").send([Entry(body="x" * 100)])
"""


def test_several_processes_grow_one_log(engine: SqliteEngine, path: Path) -> None:
    senders = [subprocess.Popen([sys.executable, "-c", _SENDER, str(path), owner]) for owner in ("a", "b", "c")]
    assert [one.wait(PATIENCE_S) for one in senders] == [0, 0, 0]
    depth = engine.queues.depth("q")
    assert depth.visible + depth.delayed == 900  # by the clock of the test it is another year
    check = engine.database.read(lambda connection: connection.execute("PRAGMA integrity_check").fetchone())
    assert check == ("ok",)
    assert log_bytes(path) < 900 * 4 * 4_120 + STEP_BYTES  # nobody grows what another has grown just now


def test_a_disk_that_has_no_room_for_a_step_takes_what_fits(
    engine: SqliteEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(_file: int, _data: bytes, at: int) -> int:
        asked.append(at)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    sent(engine, 100)
    assert asked
    assert engine.queues.depth("q").visible == 100


def test_with_little_space_the_log_is_as_long_as_what_is_in_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_frsize=1, f_bavail=300 * 1024 * 1024))
    engine = opened(path)
    engine.queues.create(QueueSettings(name="q"))
    sent(engine, 30)
    assert (log_bytes(path) - 32) % (4_096 + 24) == 0  # https://www.sqlite.org/fileformat2.html#walformat
    engine.close()
