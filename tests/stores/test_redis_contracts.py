"""The Redis store passes the whole Store, RecordAdmin, Ledger and State contracts, on one server and on a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onefold.testing.ledger_contract import LedgerContract
from onefold.testing.state_contract import StateContract
from onefold.testing.store_contract import RecordAdminContract, StoreContract
from tests.emulators import servers
from tests.stores.redis_books import opened


@pytest.fixture(scope="module", params=["server", "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "server":
        with servers.redis() as url:
            yield url
    else:
        with servers.redis_cluster() as urls:
            yield f"{urls[0]}?cluster=yes"


class TestRedisStore(StoreContract, RecordAdminContract):
    @pytest.fixture(autouse=True)
    def open_books(self, server: str) -> Iterator[None]:
        with opened(server) as books:
            self.store, self.records = books.store, books.records
            yield


class TestRedisLedger(LedgerContract):
    @pytest.fixture(autouse=True)
    def open_books(self, server: str) -> Iterator[None]:
        with opened(server) as books:
            self.ledger = books.ledger
            yield


class TestRedisState(StateContract):
    @pytest.fixture(autouse=True)
    def open_books(self, server: str) -> Iterator[None]:
        with opened(server) as books:
            self.state = books.state
            yield
