"""Sends in a transaction of the caller's: sent if and only if it commits, and otherwise exactly as `send` sends."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest

import onefold
from onefold import errors, limits
from onefold.engines.sqlite.migrations import own_tables
from onefold.manual_clock import ManualClock

Order = dict[str, Any]
START_MS = 1_700_000_000_000


def nothing(order: Order) -> None: ...


class Books:
    """An app on a file, and a connection of the program's own to that file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shop.db"
        self.clock = ManualClock(START_MS)
        self.app = onefold.App("shop", url=f"sqlite:///{self.path}", clock=self.clock, history="full")
        orders, groups = self.app.queue("orders"), self.app.queue("groups", fifo=True)

        @self.app.job(orders, key="{id}")
        def ship(order: Order) -> None: ...

        @self.app.job(orders, key="{id}", unique=True)
        def invoice(order: Order) -> None: ...

        @self.app.job(groups, key="{id}", group="{customer}")
        def pack(order: Order) -> None: ...

        self.ship, self.invoice, self.pack = ship, invoice, pack
        self.app.runtime()
        self.mine = self.connect()
        self.mine.execute("CREATE TABLE shop_order (id TEXT PRIMARY KEY)")

    def connect(
        self, timeout: float = 5.0, isolation_level: Literal["DEFERRED"] | None = "DEFERRED"
    ) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=timeout, isolation_level=isolation_level)

    def waiting(self, queue: str = "orders") -> list[str]:
        engine = self.app.runtime().engine
        return [str(one.key) for one in engine.queues.peek(queue)]

    def order(self, name: str, connection: sqlite3.Connection | None = None) -> None:
        (connection or self.mine).execute("INSERT INTO shop_order VALUES (?)", (name,))

    def ordered(self) -> list[str]:
        with closing(self.connect()) as looking:
            return [name for (name,) in looking.execute("SELECT id FROM shop_order ORDER BY id")]


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    one = Books(tmp_path)
    yield one
    one.mine.close()
    one.app.close()


# -- both or neither ---------------------------------------------------------------------------------------------------


def test_a_message_is_sent_when_the_caller_commits_and_not_before(books: Books) -> None:
    with books.mine:
        books.order("o-1")
        receipt = books.ship.send({"id": "o-1"}, connection=books.mine)
        assert (receipt.found, receipt.duplicate) == ("new", False)
        assert books.waiting() == []
    assert (books.waiting(), books.ordered()) == (["o-1"], ["o-1"])
    (message,) = books.app.runtime().engine.queues.peek("orders")
    assert message.message_id == receipt.message_id


def test_a_rolled_back_transaction_has_sent_nothing(books: Books) -> None:
    books.order("o-1")
    books.ship.send({"id": "o-1"}, connection=books.mine)
    books.invoice.send({"id": "o-1"}, connection=books.mine)
    books.pack.send({"id": "o-1", "customer": "c"}, connection=books.mine)
    books.mine.rollback()
    assert (books.waiting(), books.waiting("groups.fifo"), books.ordered()) == ([], [], [])
    with books.mine:  # nothing is remembered of it: no key, no deduplication id, no owner of a name
        assert books.invoice.send({"id": "o-1"}, connection=books.mine).found == "new"
        assert books.pack.send({"id": "o-1", "customer": "c"}, connection=books.mine).found == "new"
    assert (books.waiting(), books.waiting("groups.fifo")) == (["o-1"], ["o-1"])


def test_a_savepoint_that_is_rolled_back_takes_its_messages_along(books: Books) -> None:
    with books.mine:
        books.ship.send({"id": "o-1"}, connection=books.mine)
        books.mine.execute("SAVEPOINT part")
        books.ship.send({"id": "o-2"}, connection=books.mine)
        books.mine.execute("ROLLBACK TO part")
        books.ship.send({"id": "o-3"}, connection=books.mine)
    assert books.waiting() == ["o-1", "o-3"]


def test_a_send_that_is_refused_leaves_the_callers_rows_and_its_transaction(books: Books) -> None:
    with books.mine:
        books.order("o-1")
        with pytest.raises(errors.PayloadError, match="does not take the message"):
            books.ship.send_many([{"id": "small"}, {"id": "large", "text": "x" * 2_000_000}], connection=books.mine)
        with pytest.raises(errors.ConflictError):
            books.invoice.send_many([{"id": "o-1"}, {"id": "o-1", "pence": 2}], connection=books.mine)
        books.ship.send({"id": "o-1"}, connection=books.mine)
    assert (books.waiting(), books.ordered()) == (["o-1"], ["o-1"])


def test_a_first_send_begins_the_transaction_as_an_insert_does(books: Books) -> None:
    books.ship.send({"id": "o-1"}, connection=books.mine)
    assert books.mine.in_transaction
    assert books.waiting() == []
    books.mine.rollback()
    assert books.waiting() == []


# -- exactly as send ---------------------------------------------------------------------------------------------------


def test_groups_keep_their_order_and_duplicates_are_known(books: Books) -> None:
    ids = [f"o-{number}" for number in range(5)]
    with books.mine:
        for name in ids[:2]:
            books.pack.send({"id": name, "customer": "c"}, connection=books.mine)
        books.pack.send_many([{"id": name, "customer": "c"} for name in ids[2:4]], connection=books.mine)
        assert books.pack.send({"id": "o-0", "customer": "c"}, connection=books.mine).found == "deduplicated"
    books.pack.send({"id": "o-4", "customer": "c"})
    received = books.app.runtime().engine.queues.open("groups.fifo").receive(10)
    assert [one.key for one in received] == ids
    assert books.pack.send({"id": "o-1", "customer": "c"}).duplicate


def test_a_unique_job_is_known_inside_the_transaction_and_after_it(books: Books) -> None:
    with books.mine:
        assert books.invoice.send({"id": "o-1"}, connection=books.mine).found == "new"
        assert books.invoice.send({"id": "o-1"}, connection=books.mine).found == "waiting"
        with pytest.raises(errors.ConflictError, match="another payload"):
            books.invoice.send({"id": "o-1", "pence": 5}, connection=books.mine)
    assert books.invoice.send({"id": "o-1"}).found == "waiting"
    assert books.waiting() == ["o-1"]


def test_a_delay_counts_from_the_send(books: Books) -> None:
    with books.mine:
        books.ship.send({"id": "o-1"}, delay="1h", connection=books.mine)
    queue = books.app.runtime().engine.queues.open("orders")
    assert queue.receive(1) == []
    books.clock.advance(limits.HOUR_MS)
    assert [one.key for one in queue.receive(1)] == ["o-1"]


def test_history_is_written_in_the_transaction(books: Books) -> None:
    def sent() -> list[str]:
        rows = books.app.runtime().engine.ledger.between(0, 2 * START_MS)
        return [str(row.key and row.key.key) for row in rows if row.event == "sent"]

    books.ship.send({"id": "o-1"}, connection=books.mine)
    assert sent() == []
    books.mine.rollback()
    assert sent() == []
    with books.mine:
        books.ship.send({"id": "o-2"}, connection=books.mine)
    assert sent() == ["o-2"]


def test_what_the_connection_makes_of_rows_and_text_is_left_as_it_is(books: Books) -> None:
    def factory(cursor: sqlite3.Cursor, row: tuple[object, ...]) -> dict[str, object]:
        return {one[0]: value for one, value in zip(cursor.description, row, strict=True)}

    books.mine.row_factory, books.mine.text_factory = factory, bytes
    with books.mine:
        books.invoice.send({"id": "o-1"}, connection=books.mine)
    assert (books.mine.row_factory, books.mine.text_factory) == (factory, bytes)
    assert books.waiting() == ["o-1"]


def test_a_worker_does_what_was_sent_while_it_was_idle(books: Books) -> None:
    """Nobody wakes it: it looks every 200 ms."""
    program = (
        "import onefold\n"
        f"app = onefold.App('shop', url='sqlite:///{books.path}')\n"
        "@app.job(app.queue('orders'), key='{id}')\n"
        "def ship(order: dict) -> None:\n    print('shipped', order['id'], flush=True)\n"
    )
    folder = books.path.parent
    (folder / "listening.py").write_text(program, encoding="utf-8")
    worker = subprocess.Popen(
        [sys.executable, "-m", "onefold", "worker", "listening:app"], cwd=folder, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert worker.stdout is not None
    try:
        now = onefold.App("shop", url=f"sqlite:///{books.path}")
        ship = now.job(now.queue("orders"), key="{id}", name="ship")(nothing)
        for name in ("o-1", "o-2"):
            with books.mine:
                ship.send({"id": name}, connection=books.mine)
            assert next(line for line in worker.stdout if "shipped" in line) == f"shipped {name}\n"
        now.close()
    finally:
        worker.terminate()
        worker.stdout.close()
        worker.wait(30)


# -- in handlers -------------------------------------------------------------------------------------------------------


def test_a_handlers_own_connection_is_its_outbox(tmp_path: Path) -> None:
    app = onefold.App("shop")
    orders, letters = app.queue("orders"), app.queue("letters")

    @app.job(letters, key="{id}")
    def write(letter: Order) -> None: ...

    @app.job(orders, key="{id}", effect="transactional", retry=onefold.Retry(attempts=1))
    def ship(order: Order, ctx: onefold.Context) -> None:
        assert write.send({"id": order["id"]}, connection=ctx.connection).message_id is None
        if order["id"] == "bad":
            raise onefold.PermanentError("no")

    with onefold.testing.inline(app) as world:
        ship.send_many([{"id": "good"}, {"id": "bad"}])
        world.run(queues=["orders"])
        assert [one.key for one in app.runtime().engine.queues.peek("letters")] == ["good"]


def test_a_handlers_connection_after_its_run_is_refused(tmp_path: Path) -> None:
    app = onefold.App("shop")
    kept: list[Any] = []

    @app.job(app.queue("orders"), key="{id}", effect="transactional")
    def ship(order: Order, ctx: onefold.Context) -> None:
        kept.append(ctx.connection)

    with onefold.testing.inline(app) as world:
        ship.send({"id": "o-1"})
        world.run()
        with pytest.raises(errors.UsageError, match="one of onefold's own, outside of the handler") as caught:
            ship.send({"id": "o-2"}, connection=kept[0])
        assert "Nothing was sent" in caught.value.meaning
        assert app.runtime().engine.queues.peek("orders") == []


# -- what cannot be joined ---------------------------------------------------------------------------------------------


def refused(books: Books, connection: Any, match: str) -> None:
    with pytest.raises(errors.UsageError, match=match) as caught:
        books.ship.send({"id": "o-1"}, connection=connection)
    assert "Nothing was sent" in caught.value.meaning
    assert caught.value.todo
    assert books.waiting() == []


def test_a_closed_connection(books: Books) -> None:
    books.mine.close()
    refused(books, books.mine, "closed database")


def test_a_connection_of_another_thread(books: Books) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(refused, books, books.mine, "same thread").result()


def test_a_connection_to_another_file_or_to_memory(books: Books, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as other, closing(sqlite3.connect(":memory:")) as memory:
        refused(books, other, "other.db; the engine's file is ")
        refused(books, memory, "a database in memory; the engine's file is ")


def test_the_engines_file_attached_to_another(books: Books, tmp_path: Path) -> None:
    """A commit over two files is not one in WAL mode."""
    with closing(sqlite3.connect(tmp_path / "other.db", isolation_level=None)) as other:
        other.execute("ATTACH ? AS shop", (str(books.path),))
        other.execute("BEGIN")
        refused(books, other, "other.db; the engine's file is ")


def test_autocommit_mode_without_a_transaction(books: Books) -> None:
    with closing(books.connect(isolation_level=None)) as mine:
        refused(books, mine, "autocommit mode")
        mine.execute("BEGIN IMMEDIATE")
        books.ship.send({"id": "o-1"}, connection=mine)
        mine.execute("COMMIT")
    assert books.waiting() == ["o-1"]


def test_a_file_that_a_newer_onefold_has_changed(books: Books) -> None:
    version = books.mine.execute("PRAGMA user_version").fetchone()[0]
    books.mine.execute(f"PRAGMA user_version={version + 1}")
    refused(books, books.mine, rf"schema version {version + 1}")
    books.mine.rollback()
    books.mine.execute(f"PRAGMA user_version={version}")


def test_a_transaction_that_has_not_seen_the_newest_state(books: Books) -> None:
    books.mine.execute("BEGIN")
    books.mine.execute("SELECT count(*) FROM shop_order").fetchone()
    books.ship.send({"id": "o-0"})
    with pytest.raises(errors.StorageBusy, match="since the transaction read from it") as caught:
        books.ship.send({"id": "o-1"}, connection=books.mine)
    assert "BEGIN IMMEDIATE" in caught.value.todo
    books.mine.rollback()
    assert books.waiting() == ["o-0"]


def test_a_transaction_that_is_begun_and_has_not_read_yet_waits_its_turn(books: Books) -> None:
    books.mine.execute("BEGIN")
    books.ship.send({"id": "o-0"})
    books.ship.send({"id": "o-1"}, connection=books.mine)
    books.mine.commit()
    assert books.waiting() == ["o-0", "o-1"]


def test_a_file_that_another_process_holds(books: Books) -> None:
    with closing(books.connect(timeout=0)) as mine:
        with books.mine:
            books.order("o-1")
            with pytest.raises(errors.StorageBusy, match="locked"):
                books.ship.send({"id": "o-2"}, connection=mine)
        mine.rollback()
        with mine:
            books.ship.send({"id": "o-3"}, connection=mine)
    assert books.waiting() == ["o-3"]


def test_an_engine_without_transactions_of_a_caller(books: Books) -> None:
    app = onefold.App("shop", url="sqlite://:memory:")
    ship = app.job(app.queue("orders"), key="{id}", name="ship")(nothing)
    with pytest.raises(errors.UsageError, match="the engine's file is :memory:"):
        ship.send({"id": "o-1"}, connection=books.mine)
    app.close()


@pytest.mark.parametrize("thing", [1, "sqlite:///shop.db", object()])
def test_what_is_no_connection(books: Books, thing: object) -> None:
    refused(books, thing, "leads to no connection that onefold knows")


def test_a_first_use_inside_a_transaction_says_to_open_the_app_before(tmp_path: Path) -> None:
    books = Books(tmp_path)
    app = onefold.App("shop", url=f"sqlite:///{books.path}")
    ship = app.job(app.queue("later"), key="{id}", name="later")(nothing)  # a queue that has to be made
    with books.mine:
        books.order("o-1")
        with pytest.raises(errors.UsageError, match="cannot be opened inside your transaction") as caught:
            ship.send({"id": "o-1"}, connection=books.mine)
    assert "app.runtime()" in caught.value.todo
    with books.mine:
        ship.send({"id": "o-1"}, connection=books.mine)
    assert books.waiting("later") == ["o-1"]
    app.close()
    books.mine.close()
    books.app.close()


# -- what frameworks have ----------------------------------------------------------------------------------------------


DJANGO = """
import sys
import django
from django.conf import settings
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1]}}, USE_TZ=True)
django.setup()
from django.db import IntegrityError, connection, models, transaction
import onefold

app = onefold.App("shop", url=f"sqlite:///{sys.argv[1]}")
ship = app.job(app.queue("orders"), key="{id}", name="ship")(lambda order: None)
app.runtime()

def order(name):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO shop_order VALUES (%s)", [name])

with transaction.atomic():
    order("o-1")
    ship.send({"id": "o-1"}, connection=connection)
try:
    with transaction.atomic():
        order("o-2")
        ship.send({"id": "o-2"}, connection=connection)
        raise KeyError
except KeyError:
    pass
with transaction.atomic():
    ship.send({"id": "o-3"}, connection=connection)
    try:
        with transaction.atomic():
            ship.send({"id": "o-4"}, connection=connection)
            order("o-1")
    except IntegrityError:
        pass
    ship.send({"id": "o-5"}, connection=connection)
for wrong in (lambda: ship.send({"id": "o-6"}, connection=connection), ):
    try:
        wrong()
    except onefold.errors.UsageError as error:
        print(error)
with transaction.atomic():
    transaction.set_rollback(True)
    try:
        ship.send({"id": "o-7"}, connection=connection)
    except onefold.errors.UsageError as error:
        print(error)
app.close()
"""


def test_django(books: Books) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DJANGO, str(books.path)], text=True, capture_output=True, check=True
    )  # fmt: skip
    assert books.waiting() == ["o-1", "o-3", "o-5"]
    assert books.ordered() == ["o-1"]
    first, second = done.stdout.splitlines()
    assert "autocommit mode" in first
    assert "transaction.atomic()" in first
    assert "needs_rollback" in second


def test_no_table_of_the_program_is_touched(books: Books) -> None:
    with books.mine:
        books.ship.send({"id": "o-1"}, connection=books.mine)
    tables = {name for (name,) in books.mine.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables - own_tables() == {"shop_order", "sqlite_sequence"}
