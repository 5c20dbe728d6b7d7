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


def test_a_tally_sorts_in_a_temporary_file_and_leaves_the_connection_as_it_was(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "ledger.db")
    ledger = SqliteLedger(engine)
    asked: list[str] = []
    settings = "SELECT (SELECT temp_store FROM pragma_temp_store), (SELECT cache_size FROM pragma_cache_size)"
    before = engine.read(lambda connection: connection.execute(settings).fetchone())
    engine.read(lambda connection: connection.set_trace_callback(asked.append))
    assert ledger.tally("r") == {}
    tallied = next(place for place, one in enumerate(asked) if "GROUP BY ident" in one)
    assert "PRAGMA temp_store=FILE" in asked[:tallied]
    assert "BEGIN" not in asked[asked.index("PRAGMA temp_store=FILE") - 2 : tallied]
    engine.read(lambda connection: connection.set_trace_callback(None))
    assert engine.read(lambda connection: connection.execute(settings).fetchone()) == before
    engine.close()
