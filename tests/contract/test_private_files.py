"""Files hold payloads and failures: what is made is its owner's alone, what was there keeps its mode and is warned of."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold import private_files
from onefold.contracts.entries import Entry
from onefold.contracts.settings import QueueSettings
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.entropy import SystemEntropy
from onefold.local.serving import DataFileLock
from onefold.manual_clock import ManualClock
from onefold.maps.sources import FolderResults
from onefold.testing.records import NOW


@pytest.fixture(autouse=True)
def lax_umask() -> Iterator[None]:
    before = os.umask(0o000)
    yield
    os.umask(before)


def open_at(path: Path) -> SqliteEngine:
    return SqliteEngine(
        str(path), clock=ManualClock(NOW), entropy=SystemEntropy(), owner="owner-1", url=f"sqlite:///{path}"
    )


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_an_engine_makes_its_files_and_folders_for_its_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / ".onefold"  # the only one that is made
    engine = open_at(folder / "shop.db")
    try:
        engine.appear()
        engine.queues.create(QueueSettings(name="orders"))
        engine.queues.open("orders").send([Entry(body="x")])
        made = sorted(folder.rglob("*"))
        names = {one.name for one in made}
        assert {"shop.db", "shop.db-wal", "shop.db-shm", "shop.db.owners", "owner-1"} <= names
        for one in [folder, *made]:
            assert mode(one) == (0o700 if one.is_dir() else 0o600), one
        assert engine.check() == []
    finally:
        engine.close()


def test_wake_up_sockets_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tempfile.mkdtemp(prefix="o-", dir="/tmp")  # the path of a socket has some hundred characters
    monkeypatch.setattr(tempfile, "tempdir", short)
    engine = open_at(tmp_path / "shop.db")
    try:
        engine.waiter()
        (socket,) = [one for one in Path(short).rglob("*") if one.is_socket()]
        assert mode(socket) == 0o600
        assert {mode(one) for one in Path(short).rglob("*") if one.is_dir()} == {0o700}
    finally:
        engine.close()
        shutil.rmtree(short)


def test_a_folder_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    folder = tmp_path / "var"
    folder.mkdir(mode=0o755)
    open_at(folder / "shop.db").close()
    assert mode(folder) == 0o755
    assert mode(folder / "shop.db") == 0o600


def test_an_existing_file_keeps_its_mode_and_is_warned_of_when_everybody_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    open_at(path).close()
    path.chmod(0o644)
    engine = open_at(path)
    try:
        assert mode(path) == 0o644
        (warning,) = engine.check()
        assert f"chmod 600 {path}" in warning
        assert "0644" in warning
    finally:
        engine.close()


def test_what_stands_beside_a_file_that_a_group_shares_is_shared_with_the_group(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    open_at(path).close()
    path.chmod(0o660)
    engine = open_at(path)
    try:
        engine.appear()
        assert mode(tmp_path / "shop.db.owners") == 0o770
        assert mode(tmp_path / "shop.db.owners" / "owner-1") == 0o660
        assert engine.check() == []
    finally:
        engine.close()


def test_lock_files_and_results_are_private_too(tmp_path: Path) -> None:
    data = str(tmp_path / "made" / "local.db")
    claim = DataFileLock(data)
    claim.release()
    assert mode(tmp_path / "made") == 0o700
    assert mode(Path(f"{data}.serve.lock")) == 0o600
    with FolderResults(str(tmp_path / "results")).writing("a.json") as file:
        file.write(b"{}")
    assert mode(tmp_path / "results") == 0o700
    assert mode(tmp_path / "results" / "a.json") == 0o600


def test_where_only_root_may_make_nodes_a_file_is_made_under_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "mknod", refused)
    private_files.make_file(str(tmp_path / "a" / "shop.db"))
    assert [one.name for one in (tmp_path / "a").iterdir()] == ["shop.db"]
    assert mode(tmp_path / "a" / "shop.db") == 0o600


def test_making_a_file_takes_no_lock_from_an_engine_of_this_process(tmp_path: Path) -> None:
    """Closing any descriptor of a file gives up all POSIX locks of the process on it."""
    path = tmp_path / "shop.db"
    engine = open_at(path)
    try:
        engine.database.begin_exclusive().execute("CREATE TABLE mine (a)")
        try:
            private_files.make_file(str(path))
            look = (
                "import sqlite3, sys\n"
                "one = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)\n"
                "try:\n    one.execute('BEGIN IMMEDIATE')\nexcept sqlite3.OperationalError as error:\n    print(error)\n"
            )
            told = subprocess.run([sys.executable, "-c", look, str(path)], capture_output=True, text=True, check=True)
            assert told.stdout == "database is locked\n"
        finally:
            engine.database.end_exclusive(commit=False)
    finally:
        engine.close()


def test_a_file_that_is_replaced_is_whole_or_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "new" / "report"
    with private_files.replacing(target) as file:
        file.write(b"first")
        assert not target.exists()
    assert (mode(target), mode(target.parent), target.read_bytes()) == (0o600, 0o700, b"first")

    def fail() -> None:
        with private_files.replacing(target) as file:
            file.write(b"second")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert target.read_bytes() == b"first"
    assert [one.name for one in target.parent.iterdir()] == ["report"]
