"""Level 4 on PostgreSQL: handlers' rows and records commit together or not at all, whatever handlers and servers do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace
from psycopg.rows import dict_row

from onefold import errors
from onefold.contracts.commit import Settlement, Verdict
from onefold.contracts.state import Change
from onefold.contracts.store import OutboxItem
from onefold.contracts.verbs import EffectTransaction
from onefold.engines.postgres.backend import PostgresBackend
from onefold.engines.sqlite.admin import SqliteQueues
from onefold.manual_clock import ManualClock
from onefold.runner import settlement
from onefold.runner.settlement import JointTransaction
from onefold.testing.commit_contract import BOTH, ITEM, LIMIT_MS, NEITHER, NEXT, EffectContract
from onefold.testing.records import NOW, ask, complete
from tests.contract.sqlite_engine import open_engine
from tests.run.test_sqlalchemy_sessions import write
from tests.stores.postgres_books import books, shared_server

pytestmark = pytest.mark.slow


class Walked:
    """Records on PostgreSQL, messages elsewhere: what the record's transaction leaves is done step by step after it."""

    def __init__(self, backend: settlement.Backend, opened: PostgresBackend) -> None:
        self._backend = backend
        self._opened = opened

    def commit(self, settlements: list[Settlement], now_ms: int) -> list[Verdict]:
        return settlement.settle(self._backend, settlements, now_ms)

    def effects(self, limit_ms: int) -> EffectTransaction:
        return JointTransaction(self._backend, self._opened.effects(limit_ms))


class Shop(EffectContract):
    """A record store on PostgreSQL, queues in memory, and a table for the handlers' rows."""

    def open_parts(self, opened: PostgresBackend, clock: ManualClock) -> None:
        self.clock = clock
        self.books = opened
        self.engine = open_engine(":memory:", clock)
        self.queues = SqliteQueues(self.engine, owner="A")
        self.store, self.records, self.ledger, self.state = opened.store, opened.records, opened.ledger, opened.state
        self.commit = Walked(
            settlement.Backend(
                store=self.store, ledger=self.ledger, state=self.state, commit=None, open_queue=self.queues.open
            ),
            opened,
        )
        self.create_queues()

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows as another connection sees them."""
        return self.books._server.run(
            lambda link: cursor.fetchall() if (cursor := link.execute(statement.encode(), values)).description else []
        )

    def insert(self, connection: Any, text: str) -> None:
        connection.execute("INSERT INTO booking (text) VALUES (%s)", (text,))

    def rows(self) -> list[str]:
        return [text for (text,) in self.sql("SELECT text FROM booking ORDER BY text")]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with shared_server() as url:
        yield url


@contextmanager
def open_shop(url: str, shop: Shop) -> Iterator[None]:
    """Everything empty, and the clock at NOW."""
    clock = ManualClock(NOW)
    with books(url, clock) as opened:
        tables = ", ".join(f"onefold.{name}" for name in ("record", "completed", "ledger", "state", "lent"))
        opened._server.run(
            lambda link: link.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"  # of a test that failed
                " WHERE application_name = 'onefold' AND pid <> pg_backend_pid();"
                f"CREATE TABLE IF NOT EXISTS booking (text text PRIMARY KEY); TRUNCATE booking, {tables}".encode()
            )
        )
        shop.open_parts(opened, clock)
        yield
        shop.engine.close()


@pytest.fixture
def shop(url: str) -> Iterator[Shop]:
    shop = Shop()
    with open_shop(url, shop):
        yield shop


class TestContract(Shop):
    @pytest.fixture(autouse=True)
    def open_backend(self, url: str) -> Iterator[None]:
        with open_shop(url, self):
            yield

    def test_an_outbox_that_cannot_be_sent_undoes_its_rows_and_leaves_the_others(self) -> None:
        """Here the queues are elsewhere: run and rows stay, and the outbox waits in the record for the redelivery."""
        effects = self.commit.effects(LIMIT_MS)
        delivery, hold = self.begin("a")
        self.insert(effects.open(), "a")
        outbox = [OutboxItem(queue="nowhere", body="{}")]
        assert self.finish(effects, self.settlement(delivery, hold, complete(b"1", outbox))) == BOTH
        effects.commit()
        (record,) = self.store.read([hold.key], self.clock.now_ms())
        assert record is not None
        assert (self.rows(), record.status, record.outbox) == (["a"], "completed", outbox)
        assert self.messages("work") == ["a"]


# -- what the transaction holds --------------------------------------------------------------------------------------


def test_others_see_nothing_before_the_commit_and_read_and_claim_meanwhile(shop: Shop) -> None:
    effects = shop.commit.effects(LIMIT_MS)
    settlement = shop.run(effects, "a")
    assert shop.finish(effects, settlement) == BOTH
    assert (shop.rows(), shop.history_rows()) == ([], 0)
    assert settlement.write is not None
    hold = settlement.write[0]
    assert shop.statuses([hold]) == ["in_progress"]
    assert [type(answer).__name__ for answer in shop.store.claim([ask("a"), ask("b")], shop.clock.now_ms())] == [
        "Running",
        "Claimed",
    ]
    effects.commit()
    assert (shop.rows(), shop.history_rows(), shop.statuses([hold])) == (["a"], 1, ["completed"])
    assert shop.records.count_completed(NOW - NOW % 1000, shop.clock.now_ms() + 1000) == {"job": 1}


def test_the_outbox_stays_in_the_record_until_it_was_sent(shop: Shop) -> None:
    inner = shop.books.effects(LIMIT_MS)
    settlement = shop.run(inner, "a")
    assert shop.finish(inner, settlement) == BOTH
    inner.commit()
    assert settlement.write is not None
    (record,) = shop.store.read([settlement.write[0].key], NOW)
    assert record is not None
    assert (record.outbox, shop.messages(NEXT)) == ([ITEM], [])


def test_changes_of_state_stand_or_fall_with_their_settlement(shop: Shop) -> None:
    effects = shop.commit.effects(LIMIT_MS)
    first, second = shop.begin("a"), shop.begin("b")
    changed = replace(shop.perform(effects, "a", *first), changes=(Change("a", b"1", 0), Change("late", b"1", 7)))
    assert shop.finish(effects, changed) == BOTH
    lost = replace(shop.perform(effects, "b", *second), changes=(Change("lost", b"1", 0),))
    shop.clock.advance(30_000)
    shop.claim("B", shop.clock.now_ms(), key="b")
    effects._inner._lent_since_ms = effects._inner._open_since_ms = shop.clock.monotonic_ms()
    assert shop.finish(effects, lost) == NEITHER
    assert shop.state.names("") == []
    effects.commit()
    assert [found and found.value for found in shop.state.get(["a", "late", "lost"])] == [b"1", None, None]


def test_a_run_that_is_finished_twice_under_one_hold_is_kept_once(shop: Shop) -> None:
    effects = shop.commit.effects(LIMIT_MS)
    begun = shop.begin("a")
    changed = replace(shop.perform(effects, "a", *begun), changes=(Change("n", b"1", 0),))
    assert shop.finish(effects, changed) == BOTH
    effects.commit()
    shop.insert(effects.open(), "a second time")
    again = replace(changed, changes=(Change("n", b"2", 1),))
    assert shop.finish(effects, again) == BOTH
    effects.commit()
    assert (shop.rows(), shop.history_rows(), shop.messages(NEXT)) == (["a"], 1, ["{}"] * 2)
    assert shop.state.get(["n"])[0].value == b"1"


def test_a_change_that_no_state_takes_undoes_its_handlers_rows(shop: Shop) -> None:
    effects = shop.commit.effects(LIMIT_MS)
    begun = shop.begin("a")
    settlement = replace(shop.perform(effects, "a", *begun), changes=(Change("n" * 301, b"1", 0),))
    with pytest.raises(errors.UsageError, match="301"):
        shop.finish(effects, settlement)
    effects.commit()
    assert (shop.rows(), shop.statuses([begun[1]])) == ([], ["in_progress"])


# -- what handlers may and may not do --------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["commit", "rollback", "close", "__enter__"])
def test_calls_that_would_end_the_transaction_say_what_to_do(shop: Shop, call: str) -> None:
    effects = shop.commit.effects(LIMIT_MS)
    settlement = shop.run(effects, "a")
    with pytest.raises(errors.UsageError, match=r"ctx\.connection") as raised:
        getattr(effects.open(), call)()
    assert raised.value.todo
    assert shop.finish(effects, settlement) == BOTH
    effects.commit()
    assert shop.rows() == ["a"]


@pytest.mark.parametrize("statement", ["COMMIT", "END", "COMMIT AND CHAIN", "PREPARE TRANSACTION 'mine'"])
def test_a_commit_in_sql_is_refused_by_the_server_and_nothing_of_it_stands(shop: Shop, statement: str) -> None:
    effects = shop.commit.effects(LIMIT_MS)
    first, second = shop.begin("a"), shop.begin("b")
    assert shop.finish(effects, shop.perform(effects, "a", *first)) == BOTH
    settlement = shop.perform(effects, "b", *second)
    with pytest.raises(psycopg.Error) as raised:
        effects.open().execute(statement)
    assert isinstance(raised.value, (psycopg.errors.ForeignKeyViolation, psycopg.errors.ObjectNotInPrerequisiteState))
    with pytest.raises(errors.UsageError):
        shop.finish(effects, settlement)
    with pytest.raises(errors.StorageBusy, match="1 handlers"):
        effects.commit()
    assert (shop.rows(), shop.statuses([first[1], second[1]])) == ([], ["in_progress"] * 2)


@pytest.mark.parametrize("statement", ["ROLLBACK", "RELEASE onefold_handler"])
def test_a_handler_that_ends_the_transaction_or_its_savepoint_is_found_out(shop: Shop, statement: str) -> None:
    effects = shop.commit.effects(LIMIT_MS)
    begun = [shop.begin(name) for name in "abc"]
    assert shop.finish(effects, shop.perform(effects, "a", *begun[0])) == BOTH
    settlement = shop.perform(effects, "b", *begun[1])
    effects.open().execute(statement)
    effects.open().execute("SELECT 1")
    with pytest.raises(errors.UsageError, match="ended the transaction"):
        shop.finish(effects, settlement)
    with pytest.raises(errors.StorageBusy, match="1 handlers"):
        effects.commit()
    assert (shop.rows(), shop.statuses([hold for _, hold in begun])) == ([], ["in_progress"] * 3)
    assert shop.finish(effects, shop.perform(effects, "c", *begun[2])) == BOTH
    effects.commit()
    assert shop.rows() == ["c"]


def test_a_session_of_sqlalchemy_works_in_the_transaction(shop: Shop) -> None:
    delivery, hold = shop.begin("a")
    effects = shop.commit.effects(LIMIT_MS)
    lending: Any = SimpleNamespace(connection=effects.open())
    write(lending, "a")
    assert shop.finish(effects, shop.settlement(delivery, hold, complete())) == BOTH
    effects.commit()
    assert (shop.rows(), shop.statuses([hold])) == (["a", "a-last", "a-part"], ["completed"])


def test_savepoints_of_the_handlers_own_are_allowed(shop: Shop) -> None:
    effects = shop.commit.effects(LIMIT_MS)
    settlement = shop.run(effects, "a")
    connection = effects.open()
    with pytest.raises(psycopg.errors.UniqueViolation), connection.transaction():
        connection.execute("INSERT INTO booking VALUES ('b'), ('a')")
    connection.execute("CREATE TEMP TABLE mine (text text) ON COMMIT DROP")
    assert shop.finish(effects, settlement) == BOTH
    effects.commit()
    assert shop.rows() == ["a"]


def test_a_handler_that_swallows_a_failed_statement_is_told_and_the_others_stay(shop: Shop) -> None:
    effects = shop.commit.effects(LIMIT_MS)
    first, second = shop.begin("a"), shop.begin("b")
    assert shop.finish(effects, shop.perform(effects, "a", *first)) == BOTH
    settlement = shop.perform(effects, "b", *second)
    with pytest.raises(psycopg.errors.UniqueViolation):
        shop.insert(effects.open(), "a")
    with pytest.raises(errors.UsageError, match="A statement of a handler failed"):
        shop.finish(effects, settlement)
    effects.commit()
    assert (shop.rows(), shop.statuses([first[1], second[1]])) == (["a"], ["completed", "in_progress"])


def test_what_a_handler_left_running_is_named(shop: Shop) -> None:
    effects = shop.commit.effects(LIMIT_MS)
    first, second = shop.begin("a"), shop.begin("b")
    assert shop.finish(effects, shop.perform(effects, "a", *first)) == BOTH
    settlement = shop.perform(effects, "b", *second)
    stream = effects.open().cursor().stream("SELECT generate_series(1, 100000)")
    next(stream)
    with pytest.raises(errors.UsageError, match="stream"):
        shop.finish(effects, settlement)
    with pytest.raises(errors.StorageBusy, match="1 handlers"):
        effects.commit()
    with pytest.raises(psycopg.Error):
        list(stream)
    assert shop.finish(effects, shop.perform(effects, "b", *second)) == BOTH
    effects.commit()
    assert shop.rows() == ["b"]


def test_what_a_handler_set_on_the_connection_is_gone_for_the_next(shop: Shop) -> None:
    effects = shop.commit.effects(LIMIT_MS)
    connection = effects.open()
    connection.row_factory = dict_row
    connection.execute("SET LOCAL search_path = nowhere")
    settlement = shop.settlement(*shop.begin("a"), complete())
    assert shop.finish(effects, settlement) == BOTH
    effects.commit()
    assert effects.open().execute("SELECT 1, current_schema()").fetchone() == (1, "public")
    effects.rollback()


def test_a_deferred_rule_of_the_handlers_own_is_told_at_the_commit(shop: Shop) -> None:
    shop.sql("CREATE TABLE parent (id int PRIMARY KEY)")
    shop.sql("CREATE TABLE child (id int REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)")
    try:
        effects = shop.commit.effects(LIMIT_MS)
        settlement = shop.run(effects, "a")
        effects.open().execute("INSERT INTO child VALUES (1)")
        assert shop.finish(effects, settlement) == BOTH
        with pytest.raises(errors.StorageBusy, match="foreign key"):
            effects.commit()
        assert (shop.rows(), shop.statuses([settlement.write[0]])) == ([], ["in_progress"])
        effects.commit()
    finally:
        shop.sql("DROP TABLE child, parent")


# -- limits ----------------------------------------------------------------------------------------------------------


def test_a_statement_that_takes_longer_than_the_limit_is_ended_by_the_server(shop: Shop) -> None:
    effects = shop.commit.effects(100)
    first, second = shop.begin("a"), shop.begin("b")
    assert shop.finish(effects, shop.perform(effects, "a", *first)) == BOTH
    with pytest.raises(psycopg.errors.QueryCanceled):
        effects.open().execute("SELECT pg_sleep(30)")
    effects.undo()
    effects.commit()
    assert (shop.rows(), shop.statuses([first[1], second[1]])) == (["a"], ["completed", "in_progress"])


def test_a_handler_that_hangs_is_cut_off_by_the_server_and_its_locks_go(shop: Shop) -> None:
    effects = shop.commit.effects(100)
    first, second = shop.begin("a"), shop.begin("b")
    assert shop.finish(effects, shop.perform(effects, "a", *first)) == BOTH
    connection = effects.open()
    (pid,) = connection.execute("SELECT pg_backend_pid()").fetchone()
    # Waits in the server until the other connection is gone: there is no sleep here, and its own lock timeout is 3 s.
    assert shop.store.renew([first[1]], NOW + 60_000) == [True]
    for _ in range(200):  # its locks go a moment before its row in this view; the server does the waiting
        if shop.sql("SELECT count(*), pg_sleep(0.02)::text FROM pg_stat_activity WHERE pid = %s", pid)[0][0] == 0:
            break
    else:
        raise AssertionError("the connection is still there")
    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
        shop.insert(connection, "b")
    effects.undo()
    with pytest.raises(errors.StorageBusy, match="1 handlers"):
        effects.commit()
    assert (shop.rows(), shop.statuses([first[1], second[1]])) == ([], ["in_progress"] * 2)


# -- the connection is lost --------------------------------------------------------------------------------------------


def kill(shop: Shop, connection: Any) -> None:
    """End the server's side of a connection, and wait until it has ended."""
    shop.sql("SELECT pg_terminate_backend(%s, 5000)", connection.info.backend_pid)


STEPS: dict[str, Callable[[Shop, EffectTransaction, Settlement], None]] = {
    "opened": lambda shop, effects, settlement: None,
    "inserted": lambda shop, effects, settlement: shop.insert(effects.open(), "b"),
    "finished": lambda shop, effects, settlement: (
        shop.insert(effects.open(), "b"),
        shop.finish(effects, settlement),
    )[0],
}


@pytest.mark.parametrize("step", STEPS)
def test_a_connection_that_is_lost_at_any_step_takes_rows_and_records_with_it(shop: Shop, step: str) -> None:
    effects = shop.commit.effects(LIMIT_MS)
    first, second = shop.begin("a"), shop.begin("b")
    assert shop.finish(effects, shop.perform(effects, "a", *first)) == BOTH
    connection = effects.open()
    settlement = shop.settlement(*second, complete(b"b"))
    STEPS[step](shop, effects, settlement)
    kill(shop, connection)
    if step == "finished":
        with pytest.raises(errors.TransientError):
            effects.commit()
    else:
        with pytest.raises(errors.TransientError):
            shop.finish(effects, settlement)
        with pytest.raises(errors.StorageBusy, match="1 handlers"):
            effects.commit()
    assert (shop.rows(), shop.statuses([first[1], second[1]])) == ([], ["in_progress"] * 2)
    assert shop.finish(effects, shop.perform(effects, "a", *first)) == BOTH
    effects.commit()
    assert (shop.rows(), shop.messages("work")) == (["a"], ["b"])  # a later commit settles nothing of the lost run


def test_a_connection_that_is_lost_before_the_next_handler_is_told_to_both(shop: Shop) -> None:
    effects = shop.commit.effects(LIMIT_MS)
    first, second = shop.begin("a"), shop.begin("b")
    assert shop.finish(effects, shop.perform(effects, "a", *first)) == BOTH
    kill(shop, effects._inner._link)
    shop.clock.advance(LIMIT_MS + 1)
    with pytest.raises(errors.TransientError):
        effects.open()
    effects.undo()
    with pytest.raises(errors.StorageBusy, match="1 handlers"):
        effects.commit()
    assert (shop.rows(), shop.statuses([first[1], second[1]])) == ([], ["in_progress"] * 2)
    kill(shop, effects.open())
    effects.undo()
    assert shop.finish(effects, shop.perform(effects, "b", *second)) == BOTH
    kill(shop, effects._inner._link)
    with pytest.raises(errors.TransientError):  # the savepoint of the next one cannot be set
        effects.open()
    with pytest.raises(errors.StorageBusy, match="1 handlers"):
        effects.commit()
    assert shop.rows() == []


def test_a_commit_whose_answer_is_lost_is_settled_by_looking(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    effects = shop.commit.effects(LIMIT_MS)
    settlement = shop.run(effects, "a")
    assert shop.finish(effects, settlement) == BOTH
    link = effects._inner._link
    plain = type(link).commit

    def commit_and_lose(connection: Any) -> None:
        plain(connection)
        connection._pipeline.sync()
        kill(shop, connection)
        connection.execute("SELECT 1")

    monkeypatch.setattr(type(link), "commit", commit_and_lose)
    effects.commit()  # the server had made it durable
    assert (shop.rows(), shop.messages("work")) == (["a"], [])


def test_a_commit_that_never_arrived_is_told(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    effects = shop.commit.effects(LIMIT_MS)
    settlement = shop.run(effects, "a")
    assert shop.finish(effects, settlement) == BOTH
    link = effects._inner._link
    plain = type(link).commit

    def lose_and_commit(connection: Any) -> None:
        kill(shop, connection)
        plain(connection)

    monkeypatch.setattr(type(link), "commit", lose_and_commit)
    with pytest.raises(errors.TransientError):
        effects.commit()
    assert (shop.rows(), shop.messages("work"), shop.statuses([settlement.write[0]])) == ([], ["a"], ["in_progress"])
