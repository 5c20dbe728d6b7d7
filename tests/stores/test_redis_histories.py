"""Random histories on the Redis store, compared answer by answer with a simpler store; and the walk of interleavings.

In the histories two processes do the operations in turn, each with its own cache of the records, so
that its guesses are wrong as often as right. The walk is that of `tests/crash` with the records on Redis.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from onefold.contracts.store import ManualDecision, RecordKey
from onefold.contracts.verbs import Store
from onefold.engines.redis import records
from onefold.engines.redis.backend import RedisBackend
from onefold.entropy import SystemEntropy
from tests.crash.judge import Violation
from tests.crash.walk import Walk
from tests.crash.world import Bounds
from tests.emulators import servers
from tests.property.test_store_model import KEPT_MS, KEYS, Workers
from tests.stores.redis_books import client
from tests.stores.redis_stage import staged

BOUNDS = [
    Bounds(workers=2, deliveries=2, deaths=1, waits=1, faults=1, renewals=1),
    Bounds(workers=3, deliveries=3, deaths=1, waits=1),
]


class RedisWorkers(Workers):
    """Two processes on one server, in turn."""

    url = ""

    def open_store(self) -> None:
        with client(self.url) as direct:
            direct.flushall()
        self.processes = [RedisBackend.open(self.url, entropy=SystemEntropy()) for _ in range(2)]
        self.turns = itertools.cycle(self.processes)

    @property
    def store(self) -> Store:  # type: ignore[override]
        return next(self.turns).store

    @rule(key=st.sampled_from(KEYS), done=st.booleans())
    def settle(self, key: RecordKey, done: bool) -> None:
        until_ms = self.now_ms + KEPT_MS
        records = next(self.turns).records
        settled = records.settle(key, ManualDecision(done=done, result=b"9", expires_at_ms=until_ms), self.now_ms)
        assert settled == self.model.settle(key, b"9" if done else None, self.now_ms, until_ms)

    @rule()
    def look(self) -> None:
        """Every existing record is on one shelf, and every shelf that names it is the right one."""
        next(self.turns)  # from here on the processes take turns in another order
        records = self.processes[0].records
        scanned = {record.key: record for record in records.scan()}
        standing = self.processes[0].store.read(KEYS, 0)
        assert scanned == {record.key: record for record in standing if record is not None}
        assert sorted(record.key.job for key in {key.key for key in KEYS} for record in records.find(key)) == sorted(
            key.job for key in scanned
        )

    def teardown(self) -> None:
        for process in self.processes:
            process.close()


TestRedisWorkers: Any = RedisWorkers.TestCase
TestRedisWorkers.settings = settings(stateful_step_count=40)


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[str]:
    with servers.redis(appendonly="no") as url:
        RedisWorkers.url = url
        yield url


# -- the walk ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@pytest.mark.parametrize("on_unknown", ["rerun", "hold", "probe"])
def test_every_interleaving_of_workers_with_their_records_on_redis(
    server: str, on_unknown: str, bounds: Bounds
) -> None:
    with staged(server, on_unknown) as stage:
        walk = Walk(stage, bounds)
    print(f"{walk.interleavings:,} interleavings, {walk.situations:,} situations: {bounds}")  # noqa: T201 - pytest -s
    assert walk.interleavings > 1_000


def test_the_walk_finds_a_script_that_does_not_compare(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compares = "(stamp ~= expected and stamp ~= string.sub(value, 1, 16))"
    assert compares in records.CHANGE
    blind = records.CHANGE.replace(compares, "false").replace("if stamp == expected then", "if true then")
    monkeypatch.setattr(records, "CHANGE", blind)
    with staged(server, "rerun") as stage, pytest.raises(Violation):
        Walk(stage, BOUNDS[0])
