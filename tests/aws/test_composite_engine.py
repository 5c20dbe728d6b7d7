"""The engine made of SQS and a record backend passes the contract on owners: there the lease decides, whoever asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.engines.urls import open_engine
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.testing.engine_contract import OwnersContract


class TestOwnersOnAws(OwnersContract):
    owner = "me"

    @pytest.fixture(autouse=True)
    def open_engine(self, tmp_path: Path) -> Iterator[None]:
        url = f"aws://eu-west-1?records=sqlite:///{tmp_path}/records.db"
        self.engine = open_engine(url, clock=ManualClock(), entropy=SeededEntropy(1), owner=self.owner)
        yield
        self.engine.close()

    def ended(self) -> None:
        """Processes are on any host."""
