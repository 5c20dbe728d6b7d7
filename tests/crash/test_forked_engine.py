"""An engine that was opened before a fork, used by parent and child: whose presence, whose claims, whose events."""

from __future__ import annotations

import gc
import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from onefold import errors, forks
from onefold.contracts.admin import Transferred
from onefold.contracts.entries import Entry
from onefold.contracts.settings import QueueSettings
from onefold.engines.sqlite.connection import FileConnection, refuse_stale
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.engines.sqlite.processes import are_dead
from onefold.engines.sqlite.readers import Readers
from onefold.entropy import SystemEntropy
from onefold.manual_clock import ManualClock
from tests.crash.test_fork import in_child


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteEngine]:
    monkeypatch.setattr(forks._here, "owners", {})  # another test may have left an engine in a transaction
    engine = SqliteEngine(
        str(tmp_path / "one.db"), clock=ManualClock(), entropy=SystemEntropy(), owner="parent", url="sqlite:///one.db"
    )
    engine.queues.create(QueueSettings(name="dead", retention_ms=1_209_600_000))
    engine.queues.create(QueueSettings(name="orders", dead_letter="dead", receives_max=1))
    yield engine
    engine.close()


def owners(engine: SqliteEngine) -> list[str]:
    """The owners of the messages in flight."""
    return [str(one.owner) for one in engine.queues.peek("orders", limit=10) if one.state == "in_flight"]


def test_a_child_that_appears_leaves_the_parents_sign_of_life_alone(engine: SqliteEngine) -> None:
    engine.appear()
    theirs = in_child(lambda: Path(str(engine.appear())).name)
    assert theirs != "parent"
    real_path = engine.database.real_path
    assert are_dead(real_path, ["parent", theirs]) == {theirs}, "its child has ended, and the parent lives"


def test_what_a_child_receives_is_its_own(engine: SqliteEngine) -> None:
    """Also from a queue opened before the fork: noticing the parent's death must not end the child's claims."""
    queue = engine.queues.open("orders")
    queue.send([Entry(body="1"), Entry(body="2")])
    queue.receive(1)

    def receive() -> str:
        engine.appear()
        queue.receive(1)
        return ",".join(sorted(owners(engine)))

    holders = set(in_child(receive).split(","))
    assert len(holders) == 2
    assert "parent" in holders


def test_a_dead_letter_that_nobody_asked_about_yet_is_said_after_a_fork_by_the_parent_alone(
    engine: SqliteEngine,
) -> None:
    queue = engine.queues.open("orders")
    (sent,) = queue.send([Entry(body="1")])
    queue.receive(1, 0)
    assert queue.receive(1) == []
    assert in_child(lambda: (engine.appear(), engine.queues.take_transfers())[1]) == "[]"
    (told,) = engine.queues.take_transfers()
    assert isinstance(told, Transferred)
    assert (told.message_id, told.source, told.target) == (sent.message_id, "orders", "dead")  # type: ignore[union-attr]


def test_nor_is_it_forgotten_when_another_transaction_fails(engine: SqliteEngine) -> None:
    queue = engine.queues.open("orders")
    queue.send([Entry(body="1")])
    queue.receive(1, 0)
    assert queue.receive(1) == []
    with pytest.raises(LookupError):
        engine.database.write(fails_in)
    assert len(engine.queues.take_transfers()) == 1


def fails_in(_connection: sqlite3.Connection) -> None:
    raise LookupError


def test_the_same_engine_in_a_child_of_a_child(engine: SqliteEngine) -> None:
    engine.appear()
    names = in_child(lambda: f"{Path(str(engine.appear())).name} {in_child(lambda: Path(str(engine.appear())).name)}")
    assert len({"parent", *names.split()}) == 3
    assert os.path.exists(f"{engine.database.real_path}.owners/parent")


def test_one_that_cannot_start_anew_does_not_keep_the_others_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks._here, "owners", {})
    monkeypatch.setattr(forks._here, "anew", {})
    done: list[str] = []

    def fails() -> None:
        raise OSError("no")

    forks.in_child(fails)
    forks.in_child(lambda: done.append("anew"))
    with monkeypatch.context() as patch:
        patch.setattr("sys.unraisablehook", lambda _: done.append("said"))
        assert in_child(lambda: done) == "['anew', 'said']"


def test_a_file_that_a_daemon_has_closed_already_is_no_error(engine: SqliteEngine) -> None:
    real_path = engine.appear()
    presence = engine._presence
    assert presence is not None
    assert presence._file is not None
    copy = os.dup(presence._file.number)  # its lock
    os.close(presence._file.number)
    said: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.unraisablehook", said.append)
        assert in_child(lambda: (str(engine.appear()) != real_path, said)) == "(True, [])"
    os.dup2(copy, presence._file.number)
    os.close(copy)


def test_a_log_that_goes_with_its_last_connection_is_no_other_log(tmp_path: Path) -> None:
    """A fork closes all connections; a thread that opens one when SQLite has just removed the log is not refused."""
    path = str(tmp_path / "shop.db")
    refused: list[BaseException] = []

    def log_is_gone() -> None:
        try:
            refuse_stale(path, path)
        except errors.StorageError as error:
            refused.append(error)

    connection = sqlite3.connect(path, factory=FileConnection)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t (x)")
    connection.note(path)
    seen = sys.getprofile()

    def between(_: FrameType, event: str, argument: object) -> None:
        if event == "c_return" and getattr(argument, "__name__", "") == "close":
            log_is_gone()

    sys.setprofile(between)
    try:
        connection.close()
    finally:
        sys.setprofile(seen)
    assert not os.path.exists(f"{path}-wal")
    assert refused == []


def test_what_the_garbage_collector_forgets_runs_no_code_that_a_signal_could_interrupt(tmp_path: Path) -> None:
    """Python prints and discards what a signal handler raises inside a callback of a weak reference."""

    class Owner(Readers):
        """Like a database: registered for forks, with a method for children."""

        wait_s = 0.0

        def __init__(self) -> None:
            super().__init__(lambda: sqlite3.connect(":memory:"), lambda: None)
            forks.register(self)
            forks.in_child(self.start_anew)

    gc.collect()  # what earlier tests have left
    known = len(forks._here.owners), len(forks._here.anew)
    owner: Owner | None = Owner()
    assert (len(forks._here.owners), len(forks._here.anew)) == (known[0] + 1, known[1] + 1)
    entered: list[str] = []
    sys.setprofile(lambda frame, event, _: entered.append(f"{event} {frame.f_code.co_name}"))
    try:
        owner = None
    finally:
        sys.setprofile(None)
    assert owner is None
    assert [one for one in entered if one.startswith("call ")] == []
    assert (len(forks._here.owners), len(forks._here.anew)) == known
