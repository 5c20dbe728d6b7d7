"""The PostgreSQL record store passes the whole contracts of records, history and shared values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onefold.engines.postgres.backend import PostgresBackend
from onefold.testing.ledger_contract import LedgerContract
from onefold.testing.state_contract import StateContract
from onefold.testing.store_contract import RecordAdminContract, StoreContract
from tests.stores.postgres_books import books, shared_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def opened() -> Iterator[PostgresBackend]:
    with shared_server() as url, books(url) as opened:
        yield opened


@pytest.fixture
def empty(opened: PostgresBackend) -> PostgresBackend:
    tables = ", ".join(f"onefold.{name}" for name in ("record", "completed", "ledger", "state"))
    opened._server.run(lambda link: link.execute(f"TRUNCATE {tables}".encode()))
    return opened


class TestRecords(StoreContract, RecordAdminContract):
    @pytest.fixture(autouse=True)
    def open_store(self, empty: PostgresBackend) -> None:
        self.store, self.records, self.ledger = empty.store, empty.records, empty.ledger


class TestLedger(LedgerContract):
    @pytest.fixture(autouse=True)
    def open_ledger(self, empty: PostgresBackend) -> None:
        self.ledger = empty.ledger


class TestState(StateContract):
    @pytest.fixture(autouse=True)
    def open_state(self, empty: PostgresBackend) -> None:
        self.state = empty.state
