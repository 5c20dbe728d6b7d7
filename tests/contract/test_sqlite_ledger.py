"""The SQLite ledger passes the whole Ledger contract, on a file and in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.engines.sqlite.ledger import SqliteLedger
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


def test_a_tally_of_a_long_run_is_sorted_in_a_file_by_a_reader_of_small_memory(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "ledger.db")
    settings = "SELECT (SELECT temp_store FROM pragma_temp_store), (SELECT cache_size FROM pragma_cache_size)"
    in_a_file, kib = engine.read(lambda connection: connection.execute(settings).fetchone())
    assert (in_a_file, kib) == (1, -2 * 1024)
    asked: list[str] = []
    engine.read(lambda connection: connection.set_trace_callback(asked.append))
    assert SqliteLedger(engine).tally("r") == {}
    assert any("GROUP BY ident" in one for one in asked), "the reader is who tallies"
    engine.close()
