"""Outbox tables in a SQLite file of the program's own, and relays: both or neither, once, in order."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.admin import status, why
from onefold.admin.session import AdminSession, jobs_of
from onefold.cli import main
from onefold.contracts.outbox import RowId
from onefold.contracts.state import Change
from onefold.engines.urls import open_outbox
from onefold.manual_clock import ManualClock
from onefold.runtime.relay import BATCH, TURN_MS, beside
from tests.run.outbox_shop import OutboxShop


class Books:
    """The shop, its own file with an outbox, and a connection to that."""

    def __init__(self, folder: Path) -> None:
        self.path, url = folder / "books.db", f"sqlite:///{folder / 'books.db'}"
        self.mine = sqlite3.connect(self.path)
        self.mine.execute("CREATE TABLE shop_order (id TEXT PRIMARY KEY)")
        open_outbox(url).create()
        self.shop = OutboxShop(f"sqlite:///{folder / 'engine.db'}", url)

    def order(self, *ids: str) -> None:
        with self.mine:
            for name in ids:
                self.mine.execute("INSERT INTO shop_order VALUES (?)", (name,))
                self.shop.ship.send({"id": name}, connection=self.mine)

    def rows(self) -> list[int]:
        return [number for (number,) in self.mine.execute("SELECT id FROM onefold_outbox ORDER BY id")]

    def close(self) -> None:
        self.mine.close()
        self.shop.app.close()


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    one = Books(tmp_path)
    yield one
    one.close()


# -- both or neither ---------------------------------------------------------------------------------------------------


def test_what_is_committed_is_passed_on_and_what_is_rolled_back_is_not(books: Books) -> None:
    books.order("o-1")
    receipt = books.shop.ship.send({"id": "o-2"}, connection=books.mine)
    assert (receipt.key, receipt.message_id, receipt.found) == ("o-2", None, "new")
    books.mine.rollback()
    relay = books.shop.relay()
    assert relay.check() == 1
    assert books.shop.waiting() == ["o-1"]
    assert books.rows() == []
    assert relay.check() == 0
    relay.close()


def test_order_is_kept_over_batches_and_relays(books: Books) -> None:
    ids = [f"o-{number}" for number in range(BATCH + 20)]
    with books.mine:
        books.shop.pack.send_many([{"id": name, "customer": "c"} for name in ids[:-1]], connection=books.mine)
        books.shop.pack.send({"id": ids[-1], "customer": "c"}, connection=books.mine)
    relay = books.shop.relay()
    assert relay.check() == len(ids)
    assert books.shop.waiting("groups.fifo") == ids
    relay.close()


def test_a_message_is_passed_on_as_it_was_sent(books: Books) -> None:
    with books.mine:
        books.shop.ship.send(
            {"id": "o-1", "text": 'a "quoted" ☃ \0'.replace("\0", "")}, key="other", connection=books.mine
        )
        books.shop.ship.send({"id": "later"}, delay="1h", connection=books.mine)
    relay = books.shop.relay()
    relay.check()
    relay.close()
    engine = books.shop.app.runtime().engine
    (delivery,) = engine.queues.open("orders").receive(10)
    facts, payload = books.shop.ship.read(delivery)
    assert (facts.key and facts.key.key, payload) == ("other", {"id": "o-1", "text": 'a "quoted" ☃ '})
    assert engine.queues.depth("orders").delayed == 1


def test_a_queue_that_would_not_take_it_is_heard_of_by_the_sender(books: Books) -> None:
    with books.mine:
        with pytest.raises(errors.PayloadError, match="does not take the message"):
            books.shop.ship.send_many([{"id": "o-1"}, {"id": "o-2", "text": "x" * 2_000_000}], connection=books.mine)
        books.mine.execute("INSERT INTO shop_order VALUES ('o-1')")
    assert books.rows() == []
    assert books.mine.execute("SELECT count(*) FROM shop_order").fetchone() == (1,)


@pytest.mark.parametrize(
    "times", [{"run_at_ms": 10**30}, {"run_at_ms": 10**15}, {"run_at_ms": 10**30, "wait_ms": 10**30}, {"wait_ms": -1}]
)
def test_a_row_with_an_impossible_time_is_put_aside_and_those_behind_it_pass(
    books: Books, times: dict[str, int]
) -> None:
    books.order("o-1", "o-2")
    (first,) = books.mine.execute("SELECT message FROM onefold_outbox WHERE id = 1").fetchone()
    with books.mine:
        odd = json.dumps({**json.loads(first), **times})
        books.mine.execute("UPDATE onefold_outbox SET message = ? WHERE id = 1", (odd,))
    relay = books.shop.relay()
    relay.check()
    assert books.shop.waiting() == ["o-2"]
    assert "outbox-refused" in books.shop.heard.names()
    relay.close()


def test_a_relay_goes_on_after_an_error_that_nobody_expected(books: Books) -> None:
    books.order("o-1")
    calls: list[None] = []

    class Odd:
        def __init__(self, table: Any) -> None:
            self._table = table

        def waiting(self, *args: Any) -> Any:
            calls.append(None)
            if len(calls) == 1:
                raise LookupError("what is this?")
            found = self._table.waiting(*args)
            if not found:
                over.set()
            return found

        def __getattr__(self, name: str) -> Any:
            return getattr(self._table, name)

    over = threading.Event()
    with beside(books.shop.relay(Odd)):
        assert over.wait(20)
    assert books.shop.waiting() == ["o-1"]
    assert "relay-failed" in books.shop.heard.names()


# -- relays that die, and two at once ----------------------------------------------------------------------------------


class Dies(BaseException):
    """As if the process ended here."""


class Dying:
    """A table whose relay dies in place of, or right after, a call."""

    def __init__(self, table: Any, at: str, *, after: bool) -> None:
        self._table, self._at, self._after = table, at, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._table, name)
        if name != self._at:
            return found

        def dying(*args: Any) -> Any:
            if self._after:
                found(*args)
            raise Dies

        return dying


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", ["waiting", "remove"])
def test_a_relay_that_dies_leaves_nothing_twice_and_nothing_out(books: Books, at: str, after: bool) -> None:
    books.order("o-1", "o-2")
    first = books.shop.relay(lambda table: Dying(table, at, after=after))
    with pytest.raises(Dies):
        first.check()
    first.close()
    books.order("o-3")
    second = books.shop.relay()
    second.check()
    assert books.shop.waiting() == ["o-1", "o-2", "o-3"]
    assert books.rows() == []
    second.close()


def test_a_relay_whose_transaction_fails_has_sent_nothing(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    books.order("o-1")
    relay = books.shop.relay()
    state = books.shop.app.runtime().engine.state
    with monkeypatch.context() as patch:
        patch.setattr(state, "put", lambda _: (_ for _ in ()).throw(errors.StorageBusy("held", todo="wait")))
        with pytest.raises(errors.StorageBusy):
            relay.check()
    assert books.shop.waiting() == []
    assert books.rows() == [1]
    assert relay.check() == 1
    relay.close()


@pytest.mark.parametrize("stored", [b"[]", b'{"ids":[],"owner":"\xff"}'])
def test_a_relay_whose_state_cannot_be_read_names_it_and_waits(books: Books, stored: bytes) -> None:
    books.order("o-1")
    relay = books.shop.relay()
    relay.check()
    books.order("o-2")
    state = books.shop.app.runtime().engine.state
    (name,) = state.names("relay/")
    (kept,) = state.get([name])
    assert kept is not None
    assert state.put([Change(name, stored, kept.version)]) == [True]
    with pytest.raises(errors.StorageError, match=re.escape(repr(name))):
        relay.check()
    relay.close()
    assert books.shop.waiting() == ["o-1"]
    assert len(books.rows()) == 1


class Meeting:
    """A table between whose calls another relay does all of its work."""

    def __init__(self, table: Any, at: str, other: Callable[[], object]) -> None:
        self._table, self._at, self._other = table, at, other
        self._met = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._table, name)
        if name != self._at:
            return found

        def meeting(*args: Any) -> Any:
            answer = found(*args)
            if not self._met:
                self._met = True
                self._other()
            return answer

        return meeting


@pytest.mark.parametrize("at", ["waiting", "remove"])
def test_two_relays_pass_each_message_on_once(books: Books, at: str) -> None:
    """The second one does its whole work right after the first has read, or removed, its rows."""
    books.order("o-1", "o-2")
    second = books.shop.relay()

    def other() -> None:
        second.check()
        books.order("o-3")
        second.check()

    first = books.shop.relay(lambda table: Meeting(table, at, other))
    first.check()
    assert books.shop.waiting() == ["o-1", "o-2", "o-3"]
    assert books.rows() == []
    first.close()
    second.close()


def test_relays_in_threads_beside_a_sender(books: Books) -> None:
    ids = [f"o-{number}" for number in range(300)]
    with beside(books.shop.relay()), beside(books.shop.relay()):
        for name in ids:
            with books.mine:
                books.shop.pack.send({"id": name, "customer": "c"}, connection=books.mine)
    relay = books.shop.relay()
    relay.check()
    relay.close()
    assert books.shop.waiting("groups.fifo") == ids
    assert books.shop.heard.names() == []


# -- where queues have no transaction of the engine's ------------------------------------------------------------------


class Apart:
    """The engine, as one whose queues and state share no transaction."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.commit = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Books, ManualClock]]:
    clock = ManualClock(1_700_000_000_000)
    books = Books(tmp_path)
    books.shop.app.close()
    books.shop = OutboxShop(books.shop.app.url, books.shop.outbox_url, clock=clock)
    runtime = books.shop.app.runtime()
    monkeypatch.setattr(runtime._opened, "engine", Apart(runtime.engine))
    yield books, clock
    books.close()


@pytest.mark.parametrize(("set_ms", "passed_ms", "left_ms"), [
    (0, 0, 600_000), (0, 60_000, 540_000), (0, 900_000, 0), (-3_600_000, 60_000, 600_000), (-3_600_000, 0, 600_000),
])  # fmt: skip
def test_a_delay_is_counted_from_the_send_also_where_the_clock_is_set_back_meanwhile(
    apart: tuple[Books, ManualClock], set_ms: int, passed_ms: int, left_ms: int
) -> None:
    books, clock = apart
    with books.mine:
        books.shop.ship.send({"id": "o-1"}, delay="10m", connection=books.mine)
    clock.advance(passed_ms)
    clock.jump(set_ms)
    relay = books.shop.relay()
    relay.check()
    relay.close()
    queues, steady = books.shop.app.runtime().engine.queues, books.shop.app.runtime().steady
    (found,) = queues.peek("orders", limit=10)
    assert found.visible_at_ms - steady.now_ms() == left_ms


def test_the_turn_is_taken_and_given_back(apart: tuple[Books, ManualClock]) -> None:
    books, _ = apart
    books.order("o-1")
    first = books.shop.relay()
    first.check()
    books.order("o-2")
    first.check()
    assert books.shop.waiting() == ["o-1", "o-2"]
    first.close()


def test_a_turn_that_was_not_given_back_ends(apart: tuple[Books, ManualClock], monkeypatch: pytest.MonkeyPatch) -> None:
    books, clock = apart
    books.order("o-1")
    first = books.shop.relay(lambda table: Dying(table, "remove", after=False))
    state = books.shop.app.runtime().engine.state
    puts = []

    def put_once(changes: Sequence[Any]) -> list[bool]:
        puts.append(changes)
        if len(puts) > 1:
            raise Dies  # it did not come to giving its turn back
        return type(state).put(state, changes)

    with monkeypatch.context() as patch:
        patch.setattr(state, "put", put_once)
        with pytest.raises(Dies):
            first.check()
    runtime = books.shop.app.runtime()
    monkeypatch.setattr(runtime._opened, "owner", "another")
    second = books.shop.relay()
    assert second.check() == 0
    clock.advance(TURN_MS)
    assert second.check() == 1
    assert books.shop.waiting() == ["o-1", "o-1"]  # sent again: one key, so that it takes effect once
    assert books.rows() == []
    first.close()
    second.close()


def test_a_relay_whose_turn_is_over_sends_no_more(apart: tuple[Books, ManualClock]) -> None:
    """It stood still, and another has passed on what it had; later than five minutes a queue would not know them again."""
    books, clock = apart
    with books.mine:
        books.shop.ship.send({"id": "o-1"}, connection=books.mine)
        books.shop.pack.send({"id": "o-2", "customer": "c"}, connection=books.mine)

    class Stopped(Dying):
        def __getattr__(self, name: str) -> Any:
            if name == "remove" and not stops:
                stops.append(name)
                clock.advance(TURN_MS)
            return getattr(self._table, name)

    stops: list[str] = []
    first = books.shop.relay(lambda table: Stopped(table, "", after=False))
    assert first._step()
    assert (books.shop.waiting(), books.shop.waiting("groups.fifo")) == (["o-1"], [])
    first.check()  # in a turn of its own again
    assert (books.shop.waiting(), books.shop.waiting("groups.fifo")) == (["o-1"], ["o-2"])
    first.close()


# -- what cannot be passed on ------------------------------------------------------------------------------------------


def test_a_message_that_is_refused_is_put_aside_and_the_others_go_on(books: Books) -> None:
    books.shop.invoice.send({"id": "o-1", "pence": 1})
    with books.mine:
        books.shop.ship.send({"id": "o-0"}, connection=books.mine)
        books.shop.invoice.send({"id": "o-1", "pence": 2}, connection=books.mine)
        books.shop.ship.send({"id": "o-2"}, connection=books.mine)
        books.mine.execute("INSERT INTO onefold_outbox (app, queue, message) VALUES ('shop', 'orders', '{}')")
    books.order("o-3")
    relay = books.shop.relay()
    assert relay.check() == 3
    assert books.shop.waiting() == ["o-1", "o-0", "o-2", "o-3"]
    assert books.rows() == [2, 4]
    assert [(one.name, one.detail["row"]) for one in books.shop.heard.events] == [
        ("outbox-refused", 2),
        ("outbox-refused", 4),
    ]
    (why,) = books.mine.execute("SELECT refused FROM onefold_outbox WHERE id = 2").fetchone()
    assert "known with another payload" in why
    books.mine.execute("DELETE FROM onefold_outbox WHERE id = 4")
    books.mine.execute("UPDATE onefold_outbox SET refused = NULL, message = json_set(message, '$.key', 'o-9')")
    books.mine.commit()
    assert relay.check() == 1
    relay.close()


def test_a_queue_that_this_version_does_not_declare_waits_for_another(books: Books) -> None:
    with books.mine:
        books.mine.execute("INSERT INTO onefold_outbox (app, queue, message) VALUES ('shop', 'newer', '{}')")
        books.mine.execute("INSERT INTO onefold_outbox (app, queue, message) VALUES ('other', 'orders', '{}')")
    relay = books.shop.relay()
    assert relay.check() == 0
    assert books.rows() == [1, 2]
    relay.close()


def test_trouble_is_said_once_and_passes(books: Books) -> None:
    """Of a relay that runs: the table is locked away and put back while it looks."""
    books.order("o-1")
    books.mine.execute("ALTER TABLE onefold_outbox RENAME TO away")
    books.mine.commit()
    said, passed = threading.Event(), threading.Event()

    class Telling:
        def emit(self, event: Any) -> None:
            books.shop.heard.emit(event)
            said.set()

    relay = books.shop.relay()
    relay._sinks = Telling()  # type: ignore[assignment]
    remove = relay._table.remove

    def removing(ids: Sequence[RowId]) -> None:
        remove(ids)
        passed.set()

    relay._table.remove = removing  # type: ignore[method-assign]
    with beside(relay):
        assert said.wait(30)
        books.mine.execute("ALTER TABLE away RENAME TO onefold_outbox")
        books.mine.commit()
        assert passed.wait(30)
    assert books.shop.heard.names() == ["relay-failed"]
    assert books.shop.waiting() == ["o-1"]


# -- connections and tables that cannot be used ------------------------------------------------------------------------


def test_a_file_without_the_tables(books: Books, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "bare.db")) as bare:
        with pytest.raises(errors.UsageError, match=r"bare.db; the engine's file is") as caught:
            books.shop.ship.send({"id": "o-1"}, connection=bare)
        assert "onefold outbox create" in caught.value.todo


def test_tables_of_another_version(books: Books) -> None:
    books.mine.execute("UPDATE onefold_outbox_version SET version = 2")
    books.mine.commit()
    books.mine.execute("INSERT INTO shop_order VALUES ('o-1')")
    with pytest.raises(errors.StorageError, match="not have version 1"):
        books.shop.ship.send({"id": "o-1"}, connection=books.mine)
    books.mine.commit()
    assert books.rows() == []
    relay = books.shop.relay()
    with pytest.raises(errors.StorageError, match="not have version 1"):
        relay.check()
    relay.close()


def test_an_app_that_names_no_outbox(books: Books) -> None:
    books.shop.app.outbox = None
    with pytest.raises(errors.UsageError, match="App shop names no outbox") as caught:
        books.shop.ship.send({"id": "o-1"}, connection=books.mine)
    assert "ONEFOLD_OUTBOX" in caught.value.todo
    assert books.rows() == []


def test_a_connection_to_another_kind_of_database_than_the_outbox(books: Books) -> None:
    shop = OutboxShop("sqlite://:memory:", "postgresql://nowhere/shop")
    with pytest.raises(errors.UsageError, match="The connection is to sqlite; the outbox of app shop is") as caught:
        shop.ship.send({"id": "o-1"}, connection=books.mine)
    assert "No worker would look" in caught.value.meaning
    assert books.rows() == []


def test_a_connection_to_another_outbox_than_the_apps(books: Books, tmp_path: Path) -> None:
    """It has the tables too, but no worker of this app reads them."""
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as mine:
        open_outbox(f"sqlite:///{other}").create()
        with pytest.raises(
            errors.UsageError, match=r"The connection is to .*other.db; the outbox of app shop is"
        ) as caught:
            books.shop.ship.send({"id": "o-1"}, connection=mine)
        assert "No worker would look" in caught.value.meaning
        assert not mine.in_transaction
        assert mine.execute("SELECT count(*) FROM onefold_outbox").fetchone() == (0,)


def test_connections_that_are_closed_or_of_another_thread(books: Books) -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(errors.UsageError, match="same thread"):
        pool.submit(books.shop.ship.send, {"id": "o-1"}, connection=books.mine).result()
    closed = sqlite3.connect(books.path)
    closed.close()
    with pytest.raises(errors.UsageError, match="closed database") as caught:
        books.shop.ship.send({"id": "o-1"}, connection=closed)
    assert "Nothing was sent" in caught.value.meaning
    assert books.rows() == []


def test_autocommit_without_a_transaction(books: Books) -> None:
    with closing(sqlite3.connect(books.path, isolation_level=None)) as mine:
        with pytest.raises(errors.UsageError, match="autocommit mode"):
            books.shop.ship.send({"id": "o-1"}, connection=mine)
        mine.execute("BEGIN")
        books.shop.ship.send({"id": "o-1"}, connection=mine)
        mine.execute("ROLLBACK")
    assert books.rows() == []


def test_ids_are_never_given_out_twice(books: Books) -> None:
    books.order("o-1")
    relay = books.shop.relay()
    relay.check()
    books.order("o-2")
    assert books.rows() == [2]
    relay.close()


def test_a_restored_database_gives_out_numbers_again_and_nothing_is_taken_for_what_was_sent(books: Books) -> None:
    """The relay's state names rows 1 and 2; after the restore there are other rows of these numbers."""
    with closing(sqlite3.connect(":memory:")) as backup:
        books.mine.backup(backup)
        books.order("o-1", "o-2")
        relay = books.shop.relay()
        assert relay.check() == 2
        relay.close()
        backup.backup(books.mine)
    books.order("o-3", "o-4")
    assert books.rows() == [1, 2]
    relay = books.shop.relay()
    assert relay.check() == 2
    relay.close()
    assert books.shop.waiting() == ["o-1", "o-2", "o-3", "o-4"]


def test_a_restored_row_that_was_sent_last_is_not_sent_again(books: Books) -> None:
    books.order("o-1")
    with closing(sqlite3.connect(":memory:")) as backup:
        books.mine.backup(backup)
        relay = books.shop.relay()
        assert relay.check() == 1
        relay.close()
        backup.backup(books.mine)
    relay = books.shop.relay()
    assert relay.check() == 0
    relay.close()
    assert (books.rows(), books.shop.waiting()) == ([], ["o-1"])


def test_a_row_reads_as_id_queue_and_message(books: Books) -> None:
    books.order("o-1")
    table = open_outbox(books.shop.outbox_url)
    (row,) = table.waiting("shop", ["orders"], 10)
    assert (row.id.number, len(row.id.token), row.queue) == (1, 32, "orders")
    assert json.loads(row.message)["key"] == "o-1"
    table.close()


# -- status and commands -----------------------------------------------------------------------------------------------


def test_status_says_what_waits_and_what_is_late(books: Books) -> None:
    books.order("o-1", "o-2")
    session = AdminSession(books.shop.app.runtime(), actor="person:ada", jobs=jobs_of(books.shop.app))
    found = status.status(session).outbox
    assert found is not None
    assert (found.waiting, found.refused, found.trouble) == (2, 0, None)
    assert [one.code for one in status.status(session).warnings if one.code.startswith("outbox")] == []
    books.mine.execute("UPDATE onefold_outbox SET created_at_ms = created_at_ms - 60000 WHERE id = 1")
    books.mine.execute("UPDATE onefold_outbox SET refused = 'why' WHERE id = 2")
    books.mine.commit()
    warnings = {one.code: one.text for one in status.status(session).warnings}
    assert "1 message in the outbox" in warnings["outbox-late"]
    assert "1 message in the outbox" in warnings["outbox-refused"]
    books.mine.execute("DROP TABLE onefold_outbox")
    books.mine.commit()
    found = status.status(session).outbox
    assert found is not None
    assert "no such table" in (found.trouble or "")


def test_an_outbox_without_its_table_is_said_with_the_command_that_makes_it(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "books.db").close()
    app = onefold.App("shop", url=f"sqlite:///{tmp_path}/shop.db", outbox=f"sqlite:///{tmp_path}/books.db")
    session = AdminSession(app.runtime(), actor="person:ada", jobs=jobs_of(app))
    (warning,) = [one for one in status.status(session).warnings if one.code == "outbox-late"]
    assert "onefold outbox create" in warning.todo
    meanings = why.explain(session, "o-1").meanings
    assert any("in a transaction that was rolled back" in one for one in meanings)
    app.close()


def test_the_tables_are_made_by_a_command_or_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'books.db'}"
    assert main.run(["outbox", "create", url]) == 1
    assert "There is no file" in capsys.readouterr().err
    sqlite3.connect(tmp_path / "books.db").close()
    assert main.run(["outbox", "create", url]) == 0
    assert main.run(["outbox", "create", url]) == 0
    capsys.readouterr()
    assert main.run(["outbox", "create", url, "--print"]) == 0
    shown = capsys.readouterr().out
    assert main.run(["outbox", "create", "redis://localhost/0"]) == 1
    assert "there is no outbox in redis" in capsys.readouterr().err
    with closing(sqlite3.connect(":memory:")) as one, closing(sqlite3.connect(tmp_path / "books.db")) as other:
        one.executescript(shown)
        query = "SELECT sql FROM sqlite_master ORDER BY name"
        assert one.execute(query).fetchall() == other.execute(query).fetchall()
