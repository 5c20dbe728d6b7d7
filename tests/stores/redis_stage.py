"""The stage of the walk of interleavings with its records on Redis, written by two processes in turn.

The queue, the history and the judge are those of `tests/crash`. Does not contain: what a history may do.
Invariant: each operation goes through a different process than the one before, so that no cached record is fresh.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

from onefold.contracts.store import Record, Status
from onefold.engines.redis.backend import RedisBackend
from tests.crash.plants import Plant
from tests.crash.stage import Stage
from tests.crash.world import World
from tests.stores.redis_books import client, opened


class ByTurns(Plant):
    """One store as several processes see it; each operation is done by the next process."""

    def __init__(self, processes: list[RedisBackend]) -> None:
        super().__init__(processes[0].store)
        self._turns = itertools.cycle([process.store for process in processes])

    @property
    def _store(self) -> Any:
        return next(self._turns)

    @_store.setter
    def _store(self, store: Any) -> None:
        """Ignore the store that Plant sets: the processes in turn are used instead."""


class Row(tuple[object, ...]):
    """A record as the walk reads it: by position and by name."""

    NAMES = (
        "status", "fence", "owner", "parked", "doubt", "started_fence", "attempts", "crashes", "budget_closed", "result",
        "owner_dead", "lease_until_ms",
    )  # fmt: skip
    __slots__ = ()

    @classmethod
    def of(cls, record: Record) -> Row:
        fields = {name: getattr(record, name, 0) for name in cls.NAMES}
        return cls((fields | {"status": get_args(Status).index(record.status)}).values())

    def __getitem__(self, place: Any) -> Any:
        return super().__getitem__(self.NAMES.index(place) if isinstance(place, str) else place)


class RedisStage(Stage):
    """As `Stage`, with the records on Redis."""

    def __init__(self, url: str, on_unknown: str, processes: list[RedisBackend]) -> None:
        super().__init__(on_unknown)
        self._url = url
        self._records = processes[0].records
        self.store = ByTurns(processes)

    def clear(self, world: World) -> None:
        super().clear(world)
        with client(self._url) as direct:
            direct.flushall()

    def row(self) -> Any:
        """The record as it is on the server."""
        records = self._records.scan(limit=2)
        assert len(records) < 2
        return Row.of(records[0]) if records else None

    def end_owner(self, owner: str, now_ms: int) -> None:
        """Do nothing: Redis does not learn of dead processes, whose leases run out."""


@contextmanager
def staged(url: str, on_unknown: str) -> Iterator[RedisStage]:
    """A stage that is closed at the end."""
    with opened(url) as one, opened(url) as other:
        stage = RedisStage(url, on_unknown, [one, other])
        try:
            yield stage
        finally:
            stage.close()
