"""Commit on SQLite: the whole contract on a file and in memory, and what a handler may not do with the connection."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold import errors
from onefold.contracts.entries import Entry
from onefold.contracts.queue import RetryIn
from onefold.engines.sqlite.admin import SqliteQueues
from onefold.engines.sqlite.commit import SqliteCommit
from onefold.engines.sqlite.ledger import SqliteLedger
from onefold.engines.sqlite.migrations import own_tables
from onefold.engines.sqlite.state import SqliteState
from onefold.engines.sqlite.store import SqliteStore
from onefold.manual_clock import ManualClock
from onefold.testing.commit_contract import BOTH, LIMIT_MS, NEXT, CommitContract, EffectContract
from onefold.testing.records import NOW, complete, fail
from tests.contract.sqlite_engine import open_engine


class OnSqlite(EffectContract):
    def open_parts(self, path: Path | str) -> None:
        self.clock = ManualClock(NOW)
        self.engine = open_engine(path, self.clock)
        self.woken = 0
        self.queues = SqliteQueues(self.engine, owner="A")
        self.store = self.records = SqliteStore(self.engine)
        self.ledger = SqliteLedger(self.engine)
        self.state = SqliteState(self.engine)
        self.commit = SqliteCommit(self.engine, self.queues, self._wake)
        self.engine.write(lambda connection: connection.execute("CREATE TABLE booking (text TEXT PRIMARY KEY)"))
        self.create_queues()

    def _wake(self) -> None:
        self.woken += 1

    def insert(self, connection, text: str) -> None:
        connection.execute("INSERT INTO booking (text) VALUES (?)", (text,))

    def rows(self) -> list[str]:
        query = "SELECT text FROM booking ORDER BY text"
        return self.engine.read(lambda connection: [text for (text,) in connection.execute(query)])


class TestSqliteFile(OnSqlite, CommitContract):
    @pytest.fixture(autouse=True)
    def open_backend(self, tmp_path: Path) -> Iterator[None]:
        self.open_parts(tmp_path / "shop.db")
        yield
        self.engine.close()


class TestSqliteMemory(OnSqlite, CommitContract):
    @pytest.fixture(autouse=True)
    def open_backend(self) -> Iterator[None]:
        self.open_parts(":memory:")
        yield
        self.engine.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[OnSqlite]:
    shop = OnSqlite()
    shop.open_parts(tmp_path / "shop.db")
    yield shop
    shop.engine.close()


# -- what a handler may and may not do -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "END",
        "ROLLBACK",
        "BEGIN",
        "SAVEPOINT onefold_mine",
        "PRAGMA foreign_keys = OFF",
        "RELEASE onefold_handler",
        "ROLLBACK TO onefold_handler",
        "ATTACH ':memory:' AS other",
        "DETACH main",
        "PRAGMA synchronous = OFF",
        "PRAGMA user_version = 7",
        "PRAGMA wal_checkpoint",
        "SELECT * FROM onefold_record",
        "SELECT count(*) FROM onefold_record",
        "SELECT * FROM booking, onefold_ledger",
        "INSERT INTO onefold_state (name, version) VALUES ('a', 1)",
        "UPDATE onefold_record SET fence = 9",
        "UPDATE ONEFOLD_RECORD SET fence = 9",
        "DELETE FROM onefold_message",
        "DROP TABLE onefold_record",
        "ALTER TABLE onefold_record RENAME TO mine",
        "ALTER TABLE onefold_record ADD COLUMN mine",
        "CREATE INDEX mine ON onefold_record (key)",
        "CREATE TRIGGER mine AFTER INSERT ON onefold_record BEGIN DELETE FROM booking; END",
        "CREATE TEMP TABLE onefold_record (id)",
        "DROP INDEX onefold_record_trouble",
    ],
)
def test_what_a_handler_may_not_do_is_refused_and_changes_nothing(shop: OnSqlite, statement: str) -> None:
    delivery, hold = shop.begin("a")
    effects = shop.commit.effects(LIMIT_MS)
    connection = effects.open()
    shop.insert(connection, "a")
    with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|prohibited") as refused:
        connection.execute(statement)
    assert isinstance(refused.value, errors.UsageError)  # permanent: the same statement is refused again
    assert f"A handler's {statement.split(maxsplit=1)[0]} on ctx.connection" in refused.value.what
    with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|prohibited"):
        connection.cursor().execute(statement)
    assert effects.finish(shop.settlement(delivery, hold, complete()), NOW) == BOTH
    effects.commit()
    assert (shop.rows(), shop.statuses([hold])) == (["a"], ["completed"])


def test_savepoints_of_the_handlers_own_are_allowed(shop: OnSqlite) -> None:
    delivery, hold = shop.begin("a")
    effects = shop.commit.effects(LIMIT_MS)
    connection = effects.open()
    for name, end in (("mine", "RELEASE mine"), ("gone", "ROLLBACK TO gone"), ("open", "SELECT 1")):
        connection.execute(f"SAVEPOINT {name}")
        shop.insert(connection, name)
        connection.execute(end)
    with pytest.raises(sqlite3.OperationalError, match="no such savepoint"):
        connection.execute("RELEASE mine")
    assert effects.finish(shop.settlement(delivery, hold, complete()), NOW) == BOTH
    effects.commit()
    assert (shop.rows(), shop.statuses([hold])) == (["mine", "open"], ["completed"])


def test_a_trigger_of_the_user_cannot_reach_own_tables_either(shop: OnSqlite) -> None:
    trigger = "CREATE TRIGGER sly AFTER INSERT ON booking BEGIN DELETE FROM onefold_message; END"
    shop.engine.write(lambda connection: connection.execute(trigger))
    effects = shop.commit.effects(LIMIT_MS)
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        shop.insert(effects.open(), "a")
    effects.rollback()


@pytest.mark.parametrize("call", ["commit", "rollback", "close", "executescript", "__enter__", "set_authorizer"])
def test_calls_that_would_end_the_transaction_say_what_to_do(shop: OnSqlite, call: str) -> None:
    effects = shop.commit.effects(LIMIT_MS)
    connection = effects.open()
    arguments = ["SELECT 1"] if call == "executescript" else []
    with pytest.raises(errors.UsageError, match=r"ctx\.connection") as raised:
        getattr(connection, call)(*arguments)
    assert raised.value.todo
    shop.insert(effects.open(), "a")  # the transaction is still there
    effects.rollback()


def test_a_handler_may_read_and_write_tables_of_its_own_and_make_them(shop: OnSqlite) -> None:
    delivery, hold = shop.begin("a")
    effects = shop.commit.effects(LIMIT_MS)
    connection = effects.open()
    connection.row_factory = sqlite3.Row
    connection.text_factory = bytes
    connection.execute("CREATE TABLE mine (queue TEXT, message TEXT, received INTEGER)")
    connection.execute("CREATE INDEX mine_queue ON mine (queue)")
    connection.executemany("INSERT INTO mine VALUES (?, ?, ?)", [("q", "m", number) for number in range(3)])
    assert connection.execute("SELECT queue, message FROM mine").fetchone()["queue"] == b"q"
    assert len(connection.execute("PRAGMA table_info(mine)").fetchall()) == 3
    assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'mine'").fetchone()[0] == 1
    assert effects.finish(shop.settlement(delivery, hold, complete()), NOW) == BOTH
    effects.commit()
    assert shop.engine.write(lambda connection: connection.execute("SELECT queue FROM mine").fetchone()) == ("q",)


def test_own_tables_are_all_tables_of_a_new_file(shop: OnSqlite) -> None:
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    found = shop.engine.read(lambda connection: {name for (name,) in connection.execute(query)})
    assert found - {"booking"} == own_tables() - {"onefold_adopted"}


def test_own_statements_pass_before_while_and_after_a_handler_has_the_connection(shop: OnSqlite) -> None:
    effects = shop.commit.effects(LIMIT_MS)
    begun = [shop.begin(name) for name in "abc"]
    for name, (delivery, hold) in zip("abc", begun, strict=True):
        connection = effects.open()
        connection.row_factory = sqlite3.Row
        assert shop.statuses([hold]) == ["in_progress"]  # a read in the handler's own thread
        shop.queues.open(NEXT).send([Entry(body=f"from {name}")])  # and a write: joins the transaction
        shop.insert(connection, name)
        with pytest.raises(sqlite3.DatabaseError, match="prohibited"):
            connection.execute("SELECT * FROM onefold_record")
        if name == "b":
            effects.undo()
        else:
            assert effects.finish(shop.settlement(delivery, hold, complete()), NOW) == BOTH
    effects.commit()
    assert (shop.rows(), shop.messages(NEXT)) == (["a", "c"], ["from a", "from c"])


def test_others_see_nothing_before_the_commit(shop: OnSqlite) -> None:
    other = sqlite3.connect(shop.engine.path)
    effects = shop.commit.effects(LIMIT_MS)
    assert shop.finish(effects, shop.run(effects, "a")) == BOTH
    query = "SELECT (SELECT count(*) FROM booking), (SELECT count(*) FROM onefold_record WHERE status = 1)"
    assert other.execute(query).fetchone() == (0, 0)
    effects.commit()
    assert other.execute(query).fetchone() == (1, 1)
    other.close()


def test_an_open_cursor_of_the_handler_is_closed_and_its_rows_are_kept(shop: OnSqlite) -> None:
    (first, second) = (shop.begin(name) for name in "ab")
    effects = shop.commit.effects(LIMIT_MS)
    cursor = effects.open().execute("INSERT INTO booking VALUES ('x'), ('y') RETURNING text")
    assert cursor.fetchone() == ("x",)
    assert effects.finish(shop.settlement(*first, complete()), NOW) == BOTH
    cursor = effects.open().execute("INSERT INTO booking VALUES ('z'), ('w') RETURNING text")
    assert cursor.fetchone() == ("z",)
    effects.undo()
    assert shop.finish(effects, shop.perform(effects, "b", *second)) == BOTH
    effects.commit()
    assert shop.rows() == ["b", "x", "y"]


def test_a_transaction_that_sqlite_rolled_back_is_told_to_all_who_were_in_it(shop: OnSqlite) -> None:
    (first, second, third) = (shop.begin(name) for name in "abc")
    effects = shop.commit.effects(LIMIT_MS)
    assert shop.finish(effects, shop.perform(effects, "a", *first)) == BOTH
    connection = effects.open()
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("INSERT OR ROLLBACK INTO booking VALUES ('x'), ('x')")
    for text in ("'outside of any transaction'", "'x'), ('x'"):  # new, and prepared before
        with pytest.raises(errors.StorageBusy, match="rolled back the transaction"):
            connection.execute(f"INSERT OR ROLLBACK INTO booking VALUES ({text})")
    with pytest.raises(errors.StorageBusy, match="rolled back"):
        effects.finish(shop.settlement(*second, complete()), NOW)
    assert shop.finish(effects, shop.perform(effects, "c", *third)) == BOTH
    with pytest.raises(errors.StorageBusy, match="1 handlers"):
        effects.commit()
    effects.commit()
    assert (shop.rows(), shop.statuses([first[1], second[1], third[1]])) == ([], ["in_progress"] * 3)


def test_a_statement_that_was_prepared_before_sqlite_rolled_back_is_refused(shop: OnSqlite) -> None:
    hold = shop.begin("a")[1]
    effects = shop.commit.effects(LIMIT_MS)
    connection = effects.open()
    cursor = connection.cursor()
    insert = "INSERT INTO booking VALUES (?)"
    shop.insert(connection, "a")
    cursor.execute(insert, ("b",))
    with pytest.raises(sqlite3.IntegrityError):
        cursor.execute("INSERT OR ROLLBACK INTO booking VALUES (?)", ("a",))
    assert not connection.in_transaction
    for again in (
        lambda: shop.insert(connection, "a"),
        lambda: cursor.execute(insert, ("b",)),
        lambda: cursor.executemany(insert, [("b",), ("c",)]),
        lambda: connection.executemany(insert, [("b",), ("c",)]),
    ):
        with pytest.raises(errors.StorageBusy, match="rolled back the transaction"):
            again()
    effects.undo()
    effects.rollback()
    assert (shop.rows(), shop.statuses([hold])) == ([], ["in_progress"])


class Counted(sqlite3.Cursor):
    """A program's own kind of cursors, as Django's."""

    def execute(self, query: str, parameters: Any = ()) -> sqlite3.Cursor:
        return super().execute(query.replace("%s", "?"), parameters)


@pytest.mark.parametrize("end", ["finish", "undo"])
def test_what_outlives_its_run_is_refused(shop: OnSqlite, end: str) -> None:
    delivery, hold = shop.begin("a")
    effects = shop.commit.effects(LIMIT_MS)
    connection = effects.open()
    cursor = connection.cursor()
    own = connection.cursor(Counted)
    assert own.execute("INSERT INTO booking VALUES (%s)", ("a",)).connection is connection
    assert isinstance(own, Counted)
    open_rows = connection.execute("SELECT 1 UNION SELECT 2")
    assert next(open_rows) == (1,)
    if end == "finish":
        assert effects.finish(shop.settlement(delivery, hold, complete()), NOW) == BOTH
    else:
        effects.undo()
    other = effects.open()  # that of the next handler
    for late in (
        connection.commit,
        connection.rollback,
        connection.close,
        connection.cursor,
        connection.iterdump,
        connection.__enter__,
        cursor.fetchone,
        own.fetchall,
        lambda: next(open_rows),
        lambda: connection.total_changes,
        lambda: connection.executescript("DELETE FROM booking"),
        lambda: connection.execute("DELETE FROM booking"),
        lambda: cursor.execute("DELETE FROM booking"),
        lambda: own.execute("DELETE FROM booking"),
        lambda: cursor.executescript("DELETE FROM booking"),
        lambda: setattr(connection, "row_factory", sqlite3.Row),
    ):
        with pytest.raises(errors.UsageError, match="after the run that it belongs to had ended"):
            late()
    assert not connection.in_transaction
    connection.interrupt()
    shop.insert(other, "b")
    assert [tuple(row) for row in other.execute("SELECT text FROM booking WHERE text = 'b'")] == [("b",)]
    effects.undo()
    effects.commit()
    assert shop.rows() == (["a"] if end == "finish" else [])


def test_a_dump_is_read_at_once_so_that_none_of_it_is_read_after_the_run(shop: OnSqlite) -> None:
    effects = shop.commit.effects(LIMIT_MS)
    connection = effects.open()
    with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|prohibited"):  # it reaches onefold's own tables
        connection.iterdump()
    effects.rollback()


def test_what_watches_a_handlers_statements_ends_with_its_run(shop: OnSqlite) -> None:
    delivery, hold = shop.begin("a")
    effects = shop.commit.effects(LIMIT_MS)
    connection = effects.open()
    seen: list[str] = []
    connection.set_trace_callback(seen.append)
    connection.set_progress_handler(lambda: True, 1)  # interrupts everything
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        connection.execute("SELECT 1").fetchall()
    shop.engine.write(lambda connection: shop.insert(connection, "by the engine, meanwhile"))
    connection.set_progress_handler(None, 0)
    shop.insert(connection, "a")
    assert [text for text in seen if "meanwhile" in text or "onefold" in text] == []
    assert any("booking" in text for text in seen)
    connection.set_progress_handler(lambda: True, 1)
    assert effects.finish(shop.settlement(delivery, hold, complete()), NOW) == BOTH
    effects.commit()
    count = len(seen)
    shop.engine.write(lambda connection: shop.insert(connection, "b"))
    assert (shop.rows(), len(seen)) == (["a", "b", "by the engine, meanwhile"], count)


def test_a_handler_may_make_functions_but_not_in_place_of_the_engines(shop: OnSqlite) -> None:
    effects = shop.commit.effects(LIMIT_MS)
    connection = effects.open()
    connection.create_function("twice", 1, lambda number: 2 * number)
    assert connection.execute("SELECT twice(4)").fetchone() == (8,)
    for refused in (
        lambda: connection.create_function("IfNull", 2, lambda *_: None),
        lambda: connection.create_collation("NOCASE", lambda *_: 0),
        lambda: connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 10),
        lambda: connection.enable_load_extension(True),
    ):
        with pytest.raises(errors.UsageError, match="everything else is written"):
            refused()
    effects.rollback()


def test_a_cursor_with_rows_left_does_not_keep_the_engine_from_writing(shop: OnSqlite, tmp_path: Path) -> None:
    """It would keep the snapshot of the one connection that writes, which another process's commit then makes useless."""
    for text in ("a", "b", "c"):
        shop.engine.write(lambda connection, text=text: shop.insert(connection, text))
    delivery, hold = shop.begin("a")
    effects = shop.commit.effects(LIMIT_MS)
    rows = effects.open().execute("SELECT text FROM booking")
    assert rows.fetchone() is not None
    assert effects.finish(shop.settlement(delivery, hold, complete()), NOW) == BOTH
    effects.commit()
    other = sqlite3.connect(tmp_path / "shop.db")
    with other:
        other.execute("INSERT INTO booking VALUES ('of another process')")
    other.close()
    shop.engine.write(lambda connection: shop.insert(connection, "d"))
    assert len(shop.rows()) == 5


def test_a_thread_that_outlives_its_run_hurts_no_other_run(shop: OnSqlite) -> None:
    """It rolls back, again and again, while other runs begin and end on the same connection."""
    stop = threading.Event()
    raised: set[type[Exception]] = set()

    def tidy(connection: Any) -> None:
        while not stop.is_set():
            try:
                connection.rollback()
            except (errors.OnefoldError, sqlite3.Error) as error:
                raised.add(type(error))

    effects = shop.commit.effects(LIMIT_MS)
    delivery, hold = shop.begin("a")
    thread = threading.Thread(target=tidy, args=(effects.open(),))
    thread.start()
    try:
        assert effects.finish(shop.settlement(delivery, hold, complete()), NOW) == BOTH
        effects.commit()
        for number in range(200):
            shop.engine.write(lambda connection, number=number: shop.insert(connection, str(number)))
    finally:
        stop.set()
        thread.join()
    assert raised == {errors.UsageError}
    assert len(shop.rows()) == 200


def test_the_first_use_in_another_thread_is_refused_and_locks_nothing(shop: OnSqlite) -> None:
    effects = shop.commit.effects(LIMIT_MS)
    raised: list[Exception] = []

    def use() -> None:
        try:
            shop.insert(effects.open(), "a")
        except errors.OnefoldError as error:
            raised.append(error)

    def in_thread() -> None:
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()

    in_thread()
    assert "another thread than the handler's own" in str(raised.pop())
    effects.undo()
    shop.engine.write(lambda connection: shop.insert(connection, "b"))
    connection = effects.open()  # from here on threads may use it
    in_thread()
    assert raised == []
    shop.clock.advance(LIMIT_MS + 1)
    in_thread()
    assert "the limit is" in str(raised.pop())
    with pytest.raises(errors.UsageError, match="had ended"):
        connection.execute("SELECT 1")
    with pytest.raises(errors.TransientError, match="the limit is"):
        effects.open()
    effects.undo()
    shop.engine.write(lambda connection: shop.insert(connection, "c"))
    assert shop.rows() == ["b", "c"]


def test_another_thread_writes_when_the_transaction_is_over(shop: OnSqlite) -> None:
    effects = shop.commit.effects(LIMIT_MS)
    settlement = shop.run(effects, "a")
    seen: list[list[str]] = []

    def look() -> None:
        query = "SELECT text FROM booking"
        seen.append(shop.engine.write(lambda connection: [text for (text,) in connection.execute(query)]))

    thread = threading.Thread(target=look)
    thread.start()
    assert shop.finish(effects, settlement) == BOTH
    effects.commit()
    thread.join()
    assert seen == [["a"]]


def test_idle_workers_are_woken_when_something_may_have_become_visible(shop: OnSqlite) -> None:
    for outcome, fate, woken in (
        (complete(), None, 0),
        (fail(), RetryIn(1), 0),
        (fail(), RetryIn(0), 1),
    ):
        before = shop.woken
        shop.settle(shop.settlement(*shop.begin(f"{woken}{fate}"), outcome, fate))
        assert shop.woken - before == woken
    effects = shop.commit.effects(LIMIT_MS)
    before = shop.woken
    assert shop.finish(effects, shop.run(effects, "with outbox")) == BOTH
    assert shop.woken == before
    effects.commit()
    assert shop.woken == before + 1


# -- kill -9 -------------------------------------------------------------------------------------------------------------

CHILD = """
import sys
from onefold.testing.commit_contract import LIMIT_MS
from tests.contract.test_sqlite_commit import OnSqlite
shop = OnSqlite()
shop.open_parts(sys.argv[1])
effects = shop.commit.effects(LIMIT_MS)
settlement = shop.run(effects, "a")
if sys.argv[2] in ("finished", "committed"):
    shop.finish(effects, settlement)
if sys.argv[2] == "committed":
    effects.commit()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("until", ["inserted", "finished", "committed"])
def test_a_process_killed_in_the_middle_leaves_rows_and_record_or_neither(tmp_path: Path, until: str) -> None:
    path = tmp_path / "shop.db"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), until],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.kill()
    shop = OnSqlite()
    shop.clock = ManualClock(NOW)
    shop.engine = open_engine(path, shop.clock)
    shop.queues = SqliteQueues(shop.engine, owner="B")
    statuses = shop.engine.read(lambda connection: connection.execute("SELECT status FROM onefold_record").fetchall())
    standing = (shop.rows(), statuses, shop.messages("work"), shop.messages(NEXT))
    everything, nothing = (["a"], [(1,)], [], ["{}"]), ([], [(0,)], ["a"], [])
    assert standing == (everything if until == "committed" else nothing)
    shop.engine.close()
