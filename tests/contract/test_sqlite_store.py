"""The SQLite store passes the whole Store contract, on a file and in memory; and what only it must do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.contracts.ledger import Row
from onefold.contracts.state import Change
from onefold.contracts.store import Claimed, Hold, RecordKey, Running, key_range
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.engine import (
    COUNTS_KEPT_MS,
    DEAD_OWNERS_KEPT_MS,
    DELETED_NAMES_KEPT_MS,
    LEDGER_KEPT_MS,
    sweep_in,
)
from onefold.engines.sqlite.file import ident
from onefold.engines.sqlite.ledger import SqliteLedger
from onefold.engines.sqlite.state import SqliteState
from onefold.engines.sqlite.store import SqliteStore, claim_in, write_in
from onefold.limits import VISIBILITY_MS_MAX
from onefold.manual_clock import ManualClock
from onefold.testing.records import KEPT_MS, KEY, NOW, ask, complete, fail, unknown
from onefold.testing.store_contract import RecordAdminContract, StoreContract
from tests.contract.sqlite_engine import open_engine


class TestSqliteFile(StoreContract, RecordAdminContract):
    @pytest.fixture(autouse=True)
    def open_store(self, tmp_path: Path) -> Iterator[None]:
        self.engine = open_engine(tmp_path / "records.db")
        self.store = self.records = SqliteStore(self.engine)
        self.ledger = SqliteLedger(self.engine)
        yield
        self.engine.close()

    def end_owner(self, owner: str) -> None:
        query = "INSERT INTO onefold_dead_owner (owner, at_ms) VALUES (?, ?)"
        self.engine.write(lambda connection: connection.execute(query, (owner, NOW)))


class TestSqliteMemory(StoreContract, RecordAdminContract):
    @pytest.fixture(autouse=True)
    def open_store(self) -> Iterator[None]:
        engine = open_engine(":memory:")
        self.store = self.records = SqliteStore(engine)
        self.ledger = SqliteLedger(engine)
        yield
        engine.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Database]:
    engine = open_engine(tmp_path / "records.db")
    yield engine
    engine.close()


def sweep(engine: Database, now_ms: int, limit: int = 1000, ledger_kept_ms: int = LEDGER_KEPT_MS) -> int:
    step = engine.write(
        lambda connection: sweep_in(connection, now_ms, limit=limit, history_until_ms=now_ms - ledger_kept_ms)
    )
    return step.removed


def count(engine: Database, table: str) -> int:
    return engine.read(lambda connection: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


# -- several connections -----------------------------------------------------------------------------------------------


def test_a_claim_is_seen_through_other_connections_and_after_reopening(engine: Database) -> None:
    (first,) = SqliteStore(engine).claim([ask()], NOW)
    other = open_engine(engine.path)
    assert isinstance(SqliteStore(other).claim([ask(owner="B")], NOW)[0], Running)
    other.close()
    engine.close()
    again = open_engine(engine.path)
    assert isinstance(first, Claimed)
    assert SqliteStore(again).write([(first.hold, complete())], NOW) == [True]
    again.close()


def test_what_a_transaction_wrote_is_gone_when_it_fails(engine: Database) -> None:
    def run(connection: sqlite3.Connection) -> None:
        (answer,) = claim_in(connection, [ask()], NOW)
        assert isinstance(answer, Claimed)
        assert write_in(connection, [(answer.hold, complete())], NOW) == ["new"]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        engine.write(run)
    assert SqliteStore(engine).read([KEY], NOW) == [None]
    assert SqliteStore(engine).count_completed(0, NOW + 1000) == {}


def test_a_repeated_complete_is_told_from_one_that_took(engine: Database) -> None:
    def run(connection: sqlite3.Connection) -> None:
        (answer,) = claim_in(connection, [ask()], NOW)
        assert isinstance(answer, Claimed)
        lost = Hold(KEY, "B", answer.hold.fence)
        writes = [(answer.hold, complete()), (lost, complete()), (answer.hold, complete())]
        assert write_in(connection, writes, NOW) == ["new", "lost", "again"]

    engine.write(run)


# -- ident -------------------------------------------------------------------------------------------------------------


def test_idents_differ_wherever_scope_job_or_key_do() -> None:
    texts = ["", "a", "b", "ab", "a\x00", "\x00", "\x01", "x" * 47, "x" * 48, "x" * 49, "x" * 47 + "\x00"]
    keys = [RecordKey(scope, job, key) for scope in texts for job in texts for key in texts]
    assert len({ident(key) for key in keys}) == len(keys)


def test_keys_that_grow_have_idents_that_grow() -> None:
    for width in (4, 42):
        idents = [ident(RecordKey("", "job", f"order-{number:0{width}d}")) for number in range(50)]
        assert idents == sorted(idents)
    long = [ident(RecordKey("", "job", f"order-{number:04d}" + "x" * 50)) for number in range(50)]
    assert long == sorted(long)


def test_all_operations_of_one_key_lie_in_its_range_and_no_others() -> None:
    texts = ["k", "k2", "j", "l", "K", "x" * 60, "x" * 61]
    for text in texts:
        first, after = key_range(text)
        inside = {other for other in texts if first <= ident(RecordKey("s", "j", other)) < after}
        assert inside == {text}


# -- the sweep ---------------------------------------------------------------------------------------------------------


def test_the_sweep_removes_expired_records_and_no_others(engine: Database) -> None:
    store = SqliteStore(engine)
    claimed = store.claim([ask(name) for name in ("running", "done", "failed", "parked")], NOW)
    holds = [answer.hold for answer in claimed if isinstance(answer, Claimed)]
    store.write(list(zip(holds[1:], (complete(), fail(), unknown(parked=True)), strict=True)), NOW)
    store.claim([ask("later", at_ms=NOW + 1)], NOW + 1)
    assert sweep(engine, NOW + KEPT_MS - 1) == 0
    assert sweep(engine, NOW + KEPT_MS) == 2
    assert sorted(record.key.key for record in store.scan()) == ["later", "parked", "running"]
    # The process of a run that was never recorded may be stopped: its record stays as long as a run may be.
    assert sweep(engine, NOW + VISIBILITY_MS_MAX - 1) == 0
    assert sweep(engine, NOW + VISIBILITY_MS_MAX) == 1
    assert sweep(engine, NOW + VISIBILITY_MS_MAX + 1) == 1
    assert sweep(engine, NOW + 2 * VISIBILITY_MS_MAX) == 0


def test_the_sweep_walks_on_where_it_ended_and_starts_again(engine: Database) -> None:
    store = SqliteStore(engine)
    for number in range(10):
        at_ms = NOW + 5 * (number % 2)
        store.claim([ask(f"key-{number}", at_ms=at_ms)], at_ms)
    removed = [sweep(engine, NOW + VISIBILITY_MS_MAX, limit=4) for _ in range(4)]
    assert removed == [2, 1, 1, 0]
    # Records that were not due the first time are met again in the next round.
    assert sum(sweep(engine, NOW + VISIBILITY_MS_MAX + 5, limit=4) for _ in range(5)) == 6
    assert count(engine, "onefold_record") == 0


def test_an_idle_sweep_writes_nothing(engine: Database) -> None:
    store = SqliteStore(engine)
    store.claim([ask()], NOW)
    changes = engine.read(lambda connection: connection.execute("PRAGMA data_version").fetchone()[0])
    sweep(engine, NOW)
    assert engine.read(lambda connection: connection.execute("PRAGMA data_version").fetchone()[0]) == changes


def test_the_sweep_removes_old_history_names_counts_and_graves(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    engine = open_engine(tmp_path / "records.db", clock)
    store = SqliteStore(engine)
    SqliteLedger(engine).append([Row(at_ms=NOW, event="sent"), Row(at_ms=NOW + 1, event="sent")])
    SqliteState(engine).put([Change("kept", b"1", 0), Change("gone", b"1", 0), Change("gone", None, 1)])
    engine.write(lambda connection: connection.execute("INSERT INTO onefold_dead_owner VALUES ('A', ?)", (NOW,)))
    (answer,) = store.claim([ask()], NOW)
    assert isinstance(answer, Claimed)
    store.write([(answer.hold, complete(at_ms=NOW + 10**12))], NOW)

    def sizes() -> list[int]:
        return [count(engine, f"onefold_{name}") for name in ("ledger", "state", "dead_owner", "completed", "record")]

    kept_ms = 2 * DEAD_OWNERS_KEPT_MS
    assert sizes() == [2, 2, 1, 1, 1]
    sweep(engine, NOW + DELETED_NAMES_KEPT_MS, ledger_kept_ms=kept_ms)
    assert sizes() == [2, 2, 1, 1, 1]
    sweep(engine, NOW + DELETED_NAMES_KEPT_MS + 1, ledger_kept_ms=kept_ms)
    assert sizes() == [2, 1, 1, 1, 1]
    sweep(engine, NOW + COUNTS_KEPT_MS + 1000, ledger_kept_ms=kept_ms)
    assert sizes() == [2, 1, 1, 0, 1]
    sweep(engine, NOW + DEAD_OWNERS_KEPT_MS, ledger_kept_ms=kept_ms)
    assert sizes() == [2, 1, 1, 0, 1]
    sweep(engine, NOW + DEAD_OWNERS_KEPT_MS + 1, ledger_kept_ms=kept_ms)
    assert sizes() == [2, 1, 0, 0, 1]
    sweep(engine, NOW + kept_ms + 1, ledger_kept_ms=kept_ms)
    assert sizes() == [1, 1, 0, 0, 1]
    engine.close()
