"""The SQLite ledger passes the whole Ledger contract, on a file and in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.backends.sqlite.ledger import SqliteLedger
from onefold.testing.ledger_contract import LedgerContract
from tests.contract.sqlite_engine import open_engine


class TestSqliteFile(LedgerContract):
    @pytest.fixture(autouse=True)
    def open_ledger(self, tmp_path: Path) -> Iterator[None]:
        engine = open_engine(tmp_path / "ledger.db")
        self.ledger = SqliteLedger(engine)
        yield
        engine.close()


class TestSqliteMemory(LedgerContract):
    @pytest.fixture(autouse=True)
    def open_ledger(self) -> Iterator[None]:
        engine = open_engine(":memory:")
        self.ledger = SqliteLedger(engine)
        yield
        engine.close()
