"""A second way to one file inside a handler's transaction: the thread would wait for itself, so it is told at once.

Another thread of the process waits, and is told that this process has the file.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import onefold
from onefold import errors
from onefold.clock import SystemClock
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.engines.sqlite.file import APPLICATION_ID, FileSettings
from onefold.engines.sqlite.turn import Work
from onefold.entropy import SystemEntropy
from onefold.manual_clock import ManualClock
from tests.run.workshop import finished

PATIENCE_S = 60
NOTED = "CREATE TABLE noted (name TEXT)"
FOR_EVER_MS = 1_000 * PATIENCE_S * 10  # a test that waits for it runs into its own time limit


def opened(path: Path, busy_ms: int = FOR_EVER_MS) -> Database:
    return Database(str(path), ManualClock(), settings=FileSettings(busy_ms=busy_ms))


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Database]:
    engine = opened(tmp_path / "q.db")
    engine.write(lambda connection: connection.execute(f"PRAGMA application_id={APPLICATION_ID}"))
    engine.write(lambda connection: connection.execute(NOTED))
    yield engine
    engine._writer.take_back()
    engine.end_exclusive(commit=False)
    engine.close()


def note(connection: sqlite3.Connection, name: str = "here") -> None:
    connection.execute("INSERT INTO noted VALUES (?)", (name,))


def names(engine: Database) -> list[str]:
    return engine.read(lambda connection: [name for (name,) in connection.execute("SELECT name FROM noted ORDER BY 1")])


CALLS: list[Callable[[Database], object]] = [
    lambda second: second.write(note),
    lambda second: second.write(note, early=True),
    lambda second: second.together([lambda: None]),
    Database.begin_exclusive,
]


@pytest.mark.parametrize("call", CALLS, ids=["write", "early", "together", "begin_exclusive"])
def test_a_handlers_thread_is_told_at_once_and_its_transaction_goes_on(
    holder: Database, call: Callable[[Database], object]
) -> None:
    connection = holder.begin_exclusive()
    second = opened(Path(holder.path))
    connection.lend(())
    with pytest.raises(errors.UsageError) as refused:
        call(second)
    text = str(refused.value)
    assert "A transactional handler called something that writes to" in text
    assert "would wait for itself" in text
    assert "ctx.connection" in text
    assert "ctx.send" in text
    note(connection, "the handler's")
    connection.take_back()
    holder.end_exclusive(commit=True)
    second.write(note)  # now it can
    assert names(holder) == ["here", "the handler's"]
    second.close()


def test_where_the_transaction_waits_for_its_group_it_can_be_tried_again_later(holder: Database) -> None:
    holder.begin_exclusive()
    second = opened(Path(holder.path))
    with pytest.raises(errors.StorageBusy, match="A transaction of this process has kept"):
        second.write(note)
    second.close()


def test_another_thread_waits_and_is_told_whose_transaction_it_is(holder: Database) -> None:
    holder.begin_exclusive()
    second, said = opened(Path(holder.path), busy_ms=20), list[str]()

    def write() -> None:
        try:
            second.write(note)
        except errors.StorageBusy as error:
            said.append(str(error))

    thread = threading.Thread(target=write)
    thread.start()
    thread.join(PATIENCE_S)
    assert "A transaction of this process has kept" in said[0]
    holder.end_exclusive(commit=False)
    second.write(note)
    second.close()


def test_the_handler_is_told_too_while_another_thread_waits_for_its_transaction(holder: Database) -> None:
    """The other thread has the second connection's turn, and waits for the file."""
    connection = holder.begin_exclusive()
    connection.lend(())
    second = opened(Path(holder.path))
    thread = threading.Thread(target=second.write, args=(note,))
    thread.start()
    while second._turn.lock.acquire(blocking=False):  # until the thread has it
        second._turn.lock.release()
    with pytest.raises(errors.UsageError, match="transactional handler"):
        second.write(note)
    connection.take_back()
    holder.end_exclusive(commit=False)
    thread.join(PATIENCE_S)
    assert names(holder) == ["here"]
    second.close()


def test_work_of_others_that_waits_with_it_gets_no_error(holder: Database) -> None:
    connection = holder.begin_exclusive()
    connection.lend(())
    second = opened(Path(holder.path))
    work = Work(lambda writer: note(writer, "another thread's"), synced=True)
    with work.wanted:
        second._waiting.append(work)
        with pytest.raises(errors.UsageError, match="transactional handler"):
            second.write(note)
    assert (work.done, work.error) == (False, None)
    second.close()


def test_a_transaction_on_another_file_is_in_nobodys_way(holder: Database, tmp_path: Path) -> None:
    holder.begin_exclusive().lend(())
    other = opened(tmp_path / "other.db", busy_ms=20)
    other.write(lambda connection: connection.execute(NOTED))
    blocker = sqlite3.connect(tmp_path / "other.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(errors.StorageBusy, match="locked by another process"):
        other.write(note)
    blocker.close()
    other.close()


# -- as a user meets it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["once", "another app"])
def test_a_worker_fails_the_run_at_once_and_goes_on_with_others(tmp_path: Path, way: str) -> None:
    path = tmp_path / "shop.db"
    url = f"sqlite:///{path}"
    app, other = onefold.App("shop", url=url), onefold.App("other", url=url)
    second = SqliteEngine(str(path), clock=SystemClock(), entropy=SystemEntropy(), owner="me", url=url)

    @onefold.once(key="{order}", name="charge", store=second.store)
    def charge(order: str) -> str:
        return f"charged {order}"

    other.queue("mails")  # made in the file when the app is first used

    @app.job(app.queue("orders"), key="{id}", effect="transactional")
    def book(order: dict[str, str], ctx: onefold.Context) -> str:
        ctx.connection.execute("CREATE TABLE IF NOT EXISTS booked (id TEXT)")
        if order["id"] == "bad":
            _ = charge("bad") if way == "once" else other.runtime()
        ctx.connection.execute("INSERT INTO booked VALUES (?)", (order["id"],))
        return "booked"

    for name in ("bad", "good"):
        book.send({"id": name})
    _, told = finished(app)
    (failed,) = told.of("dead-letter")
    assert failed.detail["error"] == "UsageError"
    assert "A transactional handler called something that writes to" in str(failed.detail["summary"])
    assert book.look("good").result == "booked"
    assert charge("after") == "charged after"
    assert other.runtime().engine.queues.open("mails").depth().visible == 0
    for one in (app, other, second):
        one.close()
