"""Random histories on the PostgreSQL store, compared with a simpler store, and the walk of interleavings.

The histories are those of `tests/property`, the walk is that of `tests/crash`, both with the records on PostgreSQL; in
the walk of transactional jobs the handlers' rows are there too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

import onefold
from onefold.contracts.commit import Settlement, Verdict
from onefold.contracts.store import ManualDecision, RecordKey, Status
from onefold.engines.postgres import record_sql
from onefold.engines.postgres.backend import PostgresBackend
from onefold.engines.postgres.effects import PostgresEffects
from tests.crash.judge import Violation
from tests.crash.stage import Stage
from tests.crash.walk import Walk
from tests.crash.world import Bounds, World
from tests.property.test_store_model import KEPT_MS, KEYS, Workers
from tests.stores.postgres_books import books, shared_server

pytestmark = pytest.mark.slow

BOUNDS = [
    Bounds(workers=2, deliveries=2, deaths=1, waits=1, faults=1, renewals=1),
    Bounds(workers=3, deliveries=3, deaths=1, waits=1),
]


@pytest.fixture(scope="module", autouse=True)
def opened() -> Iterator[PostgresBackend]:
    with shared_server() as url, books(url) as opened:
        opened._server.run(lambda link: link.execute("CREATE TABLE effect (fence bigint)"))
        PostgresWorkers.books = opened
        yield opened


def empty(opened: PostgresBackend) -> None:
    opened._server.run(
        lambda link: link.execute("DELETE FROM onefold.record; DELETE FROM onefold.ledger; DELETE FROM effect")
    )


# -- random histories ----------------------------------------------------------------------------------------------------


class PostgresWorkers(Workers):
    """Workers whose records are on PostgreSQL."""

    books: PostgresBackend

    def open_store(self) -> None:
        empty(self.books)
        self.store = self.books.store

    @rule(key=st.sampled_from(KEYS), done=st.booleans())
    def settle(self, key: RecordKey, done: bool) -> None:
        until_ms = self.now_ms + KEPT_MS
        settled = self.books.records.settle(
            key, ManualDecision(done=done, result=b"9", expires_at_ms=until_ms), self.now_ms
        )
        assert settled == self.model.settle(key, b"9" if done else None, self.now_ms, until_ms)


TestPostgresWorkers: Any = PostgresWorkers.TestCase
TestPostgresWorkers.settings = settings(stateful_step_count=40)


# -- the walk ------------------------------------------------------------------------------------------------------------


class Row(tuple[object, ...]):
    """A record as the walk reads it: by position and by name."""

    NAMES = (
        "status", "fence", "owner", "parked", "doubt", "started_fence", "attempts", "crashes", "budget_closed", "result",
        "owner_dead", "lease_until_ms",
    )  # fmt: skip
    __slots__ = ()

    def __getitem__(self, place: Any) -> Any:
        return super().__getitem__(self.NAMES.index(place) if isinstance(place, str) else place)


class RecordCommit:
    """Commits records; the messages belong to the walk."""

    def __init__(self, opened: PostgresBackend) -> None:
        self._books = opened

    def commit(self, settlements: Sequence[Settlement], now_ms: int) -> list[Verdict]:
        writes = [one.write for one in settlements if one.write is not None]
        took = iter(self._books.store.write(writes, now_ms))
        return [Verdict(one.write is None or next(took), True) for one in settlements]

    def effects(self, limit_ms: int) -> PostgresEffects:
        return self._books.effects(limit_ms)


class Parts:
    """An engine of the walk, with its records on PostgreSQL."""

    def __init__(self, opened: PostgresBackend, database: Any) -> None:
        self.database = database  # the walk sets its clock, but keeps nothing in it
        self.commit, self.ledger, self.state = RecordCommit(opened), opened.ledger, opened.state


class PostgresStage(Stage):
    """As `Stage`, with records and handlers' rows on PostgreSQL, where nobody learns of dead processes."""

    def __init__(self, opened: PostgresBackend, on_unknown: str, *, transactional: bool) -> None:
        super().__init__(on_unknown, transactional=transactional)
        self._books = opened
        self._sqlite = self.engine
        self.engine = Parts(opened, self._sqlite.database)  # type: ignore[assignment]
        self.store = opened.store

    def clear(self, world: World) -> None:
        self._world = world
        empty(self._books)

    def row(self) -> Any:
        records = self._books.records.find("o-1")
        assert len(records) < 2
        if not records:
            return None
        fields = {name: getattr(records[0], name, 0) for name in Row.NAMES}
        return Row((fields | {"status": get_args(Status).index(records[0].status)}).values())

    def end_owner(self, owner: str, now_ms: int) -> None:
        """Leases run out."""

    def rows(self) -> int:
        return self._books._server.run(lambda link: link.execute("SELECT count(*) FROM effect").fetchone()[0])

    def close(self) -> None:
        self._sqlite.close()


@contextmanager
def staged(opened: PostgresBackend, on_unknown: str, *, transactional: bool = False) -> Iterator[PostgresStage]:
    stage = PostgresStage(opened, on_unknown, transactional=transactional)
    try:
        yield stage
    finally:
        stage.close()


def insert(world: World, ctx: onefold.Context) -> int:
    """The handler of a transactional job, with this database's SQL."""
    if world.behaviour == "fail":
        raise onefold.TransientError("The partner refused for now.", todo="Try again.")
    ctx.connection.execute("INSERT INTO effect (fence) VALUES (%s)", (ctx.fence,))
    return ctx.fence


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@pytest.mark.parametrize("on_unknown", ["rerun", "hold", "probe", "transactional"])
def test_every_interleaving_of_workers_with_their_records_on_postgresql(
    opened: PostgresBackend, on_unknown: str, bounds: Bounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactional = on_unknown == "transactional"
    if transactional:
        monkeypatch.setattr(World, "handle", insert)
    with staged(opened, "rerun" if transactional else on_unknown, transactional=transactional) as stage:
        walk = Walk(stage, bounds)
    print(f"{walk.interleavings:,} interleavings, {walk.situations:,} situations: {bounds}")  # noqa: T201 - pytest -s
    assert walk.interleavings > (200 if transactional else 1_000)


def test_the_walk_finds_a_condition_that_is_missing(opened: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    condition = "r.owner = g.owner AND r.fence = g.fence AND "
    assert record_sql.COMPLETE.count(condition) == 1
    without = record_sql.COMPLETE.replace(condition, "")
    monkeypatch.setattr(opened.store, "_complete", opened._server.sql(without))
    with staged(opened, "rerun") as stage, pytest.raises(Violation):
        Walk(stage, BOUNDS[0])
