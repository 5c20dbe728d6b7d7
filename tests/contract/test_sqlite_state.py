"""The SQLite state passes the whole State contract, on a file and in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.engines.sqlite.state import SqliteState
from onefold.testing.state_contract import StateContract
from tests.contract.sqlite_engine import open_engine


class TestSqliteFile(StateContract):
    @pytest.fixture(autouse=True)
    def open_state(self, tmp_path: Path) -> Iterator[None]:
        engine = open_engine(tmp_path / "state.db")
        self.state = SqliteState(engine)
        yield
        engine.close()


class TestSqliteMemory(StateContract):
    @pytest.fixture(autouse=True)
    def open_state(self) -> Iterator[None]:
        engine = open_engine(":memory:")
        self.state = SqliteState(engine)
        yield
        engine.close()
