"""The memory store passes the whole Store contract, and does not grow for ever."""

from __future__ import annotations

import pytest

from onefold.engines.memory import MemoryStore
from onefold.testing.records import KEPT_MS, NOW, ask, complete
from onefold.testing.store_contract import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture(autouse=True)
    def open_store(self) -> None:
        self.store = MemoryStore()


def fill(store: MemoryStore, first: int, count: int, at_ms: int) -> None:
    answers = store.claim([ask(f"key-{number}", at_ms=at_ms) for number in range(first, first + count)], at_ms)
    store.write([(answer.hold, complete(at_ms=at_ms)) for answer in answers], at_ms)


def test_expired_records_are_removed_when_the_store_has_grown() -> None:
    store = MemoryStore()
    fill(store, 0, 1000, NOW)
    fill(store, 1000, 23, NOW + KEPT_MS)
    assert len(store) == 1023
    fill(store, 1023, 1, NOW + KEPT_MS)
    assert len(store) == 24


def test_records_that_live_stay() -> None:
    store = MemoryStore()
    fill(store, 0, 2000, NOW)
    fill(store, 2000, 3000, NOW + KEPT_MS - 1)
    assert len(store) == 5000
