"""The DynamoDB backend passes the suites of all its contracts, in batches and record by record, in both layouts."""

from __future__ import annotations

import pytest

from onefold.testing.ledger_contract import LedgerContract
from onefold.testing.state_contract import StateContract
from onefold.testing.store_contract import RecordAdminContract, StoreContract
from tests.aws.dynamodb.tables import OpenBooks
from tests.emulators.dynamodb_stub import Stub


class TestBatchesOnMinistack(StoreContract, RecordAdminContract):
    @pytest.fixture(autouse=True)
    def open_store(self, ministack: str, open_books: OpenBooks) -> None:
        books = open_books(ministack)
        self.store, self.records = books.store, books.records


class TestRecordByRecordOnMinistack(StoreContract, RecordAdminContract):
    @pytest.fixture(autouse=True)
    def open_store(self, ministack: str, open_books: OpenBooks) -> None:
        books = open_books(ministack, batched=False)
        self.store, self.records = books.store, books.records


class TestRecordByRecordOnMoto(StoreContract, RecordAdminContract):
    @pytest.fixture(autouse=True)
    def open_store(self, moto: str, open_books: OpenBooks) -> None:
        books = open_books(moto, batched=False)
        self.store, self.records = books.store, books.records


class TestBatchesOnStub(StoreContract):
    """Batch errors with the old item, as AWS documents them."""

    @pytest.fixture(autouse=True)
    def open_store(self, stub: Stub, open_books: OpenBooks) -> None:
        self.store = open_books(stub.url).store


class TestBatchesWithoutOldItemsOnStub(StoreContract):
    @pytest.fixture(autouse=True)
    def open_store(self, stub: Stub, open_books: OpenBooks) -> None:
        stub.store.old_items = False
        self.store = open_books(stub.url).store


class TestRecordByRecordOnStub(StoreContract):
    @pytest.fixture(autouse=True)
    def open_store(self, stub: Stub, open_books: OpenBooks) -> None:
        self.store = open_books(stub.url, batched=False).store


class TestLedgerOnMinistack(LedgerContract):
    @pytest.fixture(autouse=True)
    def open_ledger(self, ministack: str, open_books: OpenBooks) -> None:
        self.ledger = open_books(ministack).ledger


class TestLedgerOnMoto(LedgerContract):
    @pytest.fixture(autouse=True)
    def open_ledger(self, moto: str, open_books: OpenBooks) -> None:
        self.ledger = open_books(moto).ledger


class TestStateOnMinistack(StateContract):
    @pytest.fixture(autouse=True)
    def open_state(self, ministack: str, open_books: OpenBooks) -> None:
        self.state = open_books(ministack).state


class TestStateOnMoto(StateContract):
    @pytest.fixture(autouse=True)
    def open_state(self, moto: str, open_books: OpenBooks) -> None:
        self.state = open_books(moto).state


class TestSpreadInBatchesOnMinistack(StoreContract, RecordAdminContract):
    @pytest.fixture(autouse=True)
    def open_store(self, ministack: str, open_books: OpenBooks) -> None:
        books = open_books(ministack, layout=2)
        self.store, self.records = books.store, books.records


class TestSpreadOnMoto(StoreContract, RecordAdminContract):
    @pytest.fixture(autouse=True)
    def open_store(self, moto: str, open_books: OpenBooks) -> None:
        books = open_books(moto, batched=False, layout=2)
        self.store, self.records = books.store, books.records


class TestSpreadInBatchesOnStub(StoreContract):
    @pytest.fixture(autouse=True)
    def open_store(self, stub: Stub, open_books: OpenBooks) -> None:
        self.store = open_books(stub.url, layout=2).store


class TestSpreadLedgerOnMinistack(LedgerContract):
    @pytest.fixture(autouse=True)
    def open_ledger(self, ministack: str, open_books: OpenBooks) -> None:
        self.ledger = open_books(ministack, layout=2).ledger


class TestSpreadLedgerOnMoto(LedgerContract):
    @pytest.fixture(autouse=True)
    def open_ledger(self, moto: str, open_books: OpenBooks) -> None:
        self.ledger = open_books(moto, layout=2).ledger


class TestSpreadStateOnMoto(StateContract):
    @pytest.fixture(autouse=True)
    def open_state(self, moto: str, open_books: OpenBooks) -> None:
        self.state = open_books(moto, layout=2).state
