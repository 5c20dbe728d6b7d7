"""The embedded queue passes the whole Queue contract, in a file and in memory, and what is its own beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.engines.sqlite.admin import SqliteQueues
from onefold.engines.sqlite.database import Database
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.testing.queue_contract import QueueContract


class TestInAFile(QueueContract):
    @pytest.fixture(autouse=True)
    def open_queues(self, tmp_path: Path) -> Iterator[None]:
        self.clock = ManualClock()
        engine = Database(str(tmp_path / "queues.db"), self.clock)
        self.queues = SqliteQueues(engine, owner="me", entropy=SeededEntropy(1))
        yield
        engine.close()


class TestInMemory(QueueContract):
    @pytest.fixture(autouse=True)
    def open_queues(self) -> Iterator[None]:
        self.clock = ManualClock()
        engine = Database(":memory:", self.clock)
        self.queues = SqliteQueues(engine, owner="me", entropy=SeededEntropy(1))
        yield
        engine.close()
