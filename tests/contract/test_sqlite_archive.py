"""The SQLite archive passes the whole Archive contract, on a file and in memory, and the sweep removes what expired."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.contracts.archive import Archived
from onefold.engines.sqlite.state import SqliteArchive, keep_in, sweep_archive_in
from onefold.manual_clock import ManualClock
from onefold.testing.archive_contract import ArchiveContract
from tests.contract.sqlite_engine import open_engine


class TestSqliteFile(ArchiveContract):
    @pytest.fixture(autouse=True)
    def open_archive(self, tmp_path: Path) -> Iterator[None]:
        self.clock = ManualClock()
        engine = open_engine(tmp_path / "archive.db", self.clock)
        self.archive = SqliteArchive(engine)
        yield
        engine.close()


class TestSqliteMemory(ArchiveContract):
    @pytest.fixture(autouse=True)
    def open_archive(self) -> Iterator[None]:
        self.clock = ManualClock()
        engine = open_engine(":memory:", self.clock)
        self.archive = SqliteArchive(engine)
        yield
        engine.close()


def test_the_sweep_removes_some_of_what_expired_at_a_time() -> None:
    engine = open_engine(":memory:")
    events = [Archived(0, str(number), 1, "{}", number or None) for number in range(5)]
    engine.write(lambda connection: keep_in(connection, "a", events))
    swept = [engine.write(lambda connection: sweep_archive_in(connection, 3, 2)) for _ in range(3)]
    assert swept == [2, 1, 0]
    left = engine.read(lambda connection: connection.execute("SELECT event_id FROM onefold_archive").fetchall())
    assert sorted(left) == [("0",), ("4",)]
    engine.close()


def test_a_file_from_before_archives_gets_them(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    open_engine(path).close()
    old = sqlite3.connect(path)
    fresh = schema(old)
    old.executescript("DROP TABLE onefold_archive; PRAGMA user_version = 2;")
    old.close()
    engine = open_engine(path)
    SqliteArchive(engine).keep("a", [Archived(0, "x", 1, "{}")])
    assert SqliteArchive(engine).holdings("a").count == 1
    assert engine.read(schema) == fresh
    engine.close()


def schema(connection: sqlite3.Connection) -> set[str]:
    """All statements that made what a file has."""
    return {str(sql) for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE name LIKE '%archive%'")}
