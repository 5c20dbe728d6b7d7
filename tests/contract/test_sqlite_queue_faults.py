"""Bad files, a full disk, and queues that cannot be: one clear error each, and nothing changed."""

from __future__ import annotations

import contextlib
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold import errors, limits
from onefold.contracts.entries import Entry
from onefold.contracts.settings import QueueSettings
from onefold.engines.sqlite.admin import SqliteQueues
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.file import FileSettings
from onefold.manual_clock import ManualClock

DAY = limits.DAY_MS
SQLITE_PAGE = 4096


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "queues.db"


@contextlib.contextmanager
def opened(file: Path, **options: Any) -> Iterator[SqliteQueues]:
    engine = Database(str(file), ManualClock(), settings=FileSettings(**options))
    try:
        yield SqliteQueues(engine)
    finally:
        engine.close()


def fill(file: Path, count: int = 3) -> None:
    with opened(file) as queues:
        queues.create(QueueSettings(name="orders"))
        queues.open("orders").send([Entry(body=f"{number}" * 300) for number in range(count)])


def refusal(kind: type[Exception], call: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def try_to_use(file: Path) -> None:
    with opened(file, busy_ms=20) as queues:
        queues.create(QueueSettings(name="orders"))
        queues.open("orders").send([Entry(body="b")])


# -- files -------------------------------------------------------------------------------------------------


def test_a_file_that_is_no_database(file: Path) -> None:
    file.write_bytes(b"Dear diary, today nothing happened. " * 200)
    before = file.read_bytes()
    text = refusal(errors.StorageError, lambda: try_to_use(file))
    assert str(file) in text
    assert "not a usable database" in text
    assert file.read_bytes() == before


def test_a_damaged_file(file: Path) -> None:
    fill(file, 400)
    damaged = bytearray(file.read_bytes())
    damaged[SQLITE_PAGE:] = b"\xa5" * (len(damaged) - SQLITE_PAGE)  # all pages but the first
    file.write_bytes(damaged)
    assert "not a usable database" in refusal(errors.StorageError, lambda: try_to_use(file))
    assert file.read_bytes() == damaged


def test_a_file_of_another_program(file: Path) -> None:
    other = sqlite3.connect(file)
    other.executescript("CREATE TABLE onefold_queue (x); INSERT INTO onefold_queue VALUES (1)")
    other.close()
    before = file.read_bytes()
    text = refusal(errors.StorageError, lambda: try_to_use(file))
    assert "another program" in text
    assert "Give onefold a file of its own." in text
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_file_of_a_newer_onefold(file: Path) -> None:
    fill(file)
    newer = sqlite3.connect(file, isolation_level=None)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    before = file.read_bytes()
    text = refusal(errors.StorageError, lambda: try_to_use(file))
    assert "schema version 99" in text
    assert "Upgrade onefold" in text
    assert file.read_bytes() == before


@contextlib.contextmanager
def not_root() -> Iterator[None]:
    """Permissions do not stop root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_file_that_may_not_be_written() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to other users
        file = Path(folder) / "queues.db"
        fill(file)
        before = file.read_bytes()
        file.chmod(0o444)
        file.parent.chmod(0o555)
        with not_root():
            text = refusal(errors.StorageError, lambda: try_to_use(file))
        assert "cannot be opened for writing" in text
        assert file.read_bytes() == before
        file.parent.chmod(0o755)


def test_a_place_where_no_file_can_be(tmp_path: Path) -> None:
    assert "cannot be opened" in refusal(errors.StorageError, lambda: try_to_use(tmp_path))
    (tmp_path / "plain").write_text("")
    assert "cannot be opened" in refusal(errors.StorageError, lambda: try_to_use(tmp_path / "plain" / "below.db"))


def test_a_file_that_another_program_holds(file: Path) -> None:
    fill(file)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with opened(file, busy_ms=20) as queues:
            queue = queues.open("orders")
            text = refusal(errors.StorageBusy, lambda: queue.send([Entry(body="b")]))
            assert "locked by another process" in text
            assert queue.depth().visible == 3
            other.execute("ROLLBACK")
            queue.send([Entry(body="b")])
            assert queue.depth().visible == 4
    finally:
        other.close()


# -- a full disk -------------------------------------------------------------------------------------------


def limit_pages(queues: SqliteQueues, pages: int) -> None:
    queues._engine.write(lambda connection: connection.execute(f"PRAGMA max_page_count = {pages}").fetchall())


def test_a_full_disk_takes_nothing_back_and_leaves_no_half(file: Path) -> None:
    fill(file)
    with opened(file) as queues:
        queue = queues.open("orders")
        limit_pages(queues, 120)
        accepted = queue.depth().visible
        text = ""
        while not text:
            try:
                accepted += len(queue.send([Entry(body="x" * 1_000)] * 20))
            except errors.StorageBusy as error:
                text = str(error)
        assert "No part of this call was stored" in text
        assert queue.depth().visible == accepted > 20
        limit_pages(queues, 1_000_000)
        assert len(queue.send([Entry(body="again")])) == 1
    with opened(file) as queues:
        assert len(queues.peek("orders", limit=10_000)) == accepted + 1


def test_a_full_disk_while_threads_share_a_commit(file: Path) -> None:
    fill(file)
    with opened(file) as queues:
        queue = queues.open("orders")
        limit_pages(queues, 200)
        accepted: list[str] = []

        def sender() -> None:
            with contextlib.suppress(errors.StorageBusy):
                while True:
                    accepted.extend(one.message_id for one in queue.send([Entry(body="x" * 900)] * 3))

        threads = [threading.Thread(target=sender) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stored = {one.message_id for one in queues.peek("orders", limit=10_000)}
        assert len(accepted) > 10
        assert len(stored) == len(accepted) + 3
        assert stored >= set(accepted)


def test_a_disk_that_is_full_for_real(file: Path) -> None:
    """A process that may write no file larger than 2 MB sends until that stops it."""
    fill(file)
    script = """
import resource, sys
from onefold import errors
from onefold.engines.sqlite.admin import SqliteQueues
from onefold.engines.sqlite.database import Database
from onefold.clock import SystemClock
from onefold.contracts.entries import Entry
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
queue = SqliteQueues(Database(sys.argv[1], SystemClock())).open("orders")
accepted = 0
try:
    while True:
        accepted += len(queue.send([Entry(body="x" * 2_000)] * 10))
except errors.StorageBusy as error:
    print(accepted, error)
"""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    answer = subprocess.run(
        [sys.executable, "-c", script, str(file)], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    accepted, _, text = answer.partition(" ")
    assert "could not be written" in text
    assert int(accepted) > 100
    with opened(file) as queues:
        assert len(queues.peek("orders", limit=100_000)) == int(accepted) + 3
        assert queues.open("orders").send([Entry(body="b")])


# -- queues that cannot be -----------------------------------------------------------------------------------


@pytest.fixture
def queues() -> Iterator[SqliteQueues]:
    engine = Database(":memory:", ManualClock())
    yield SqliteQueues(engine)
    engine.close()


def test_a_redeclared_queue_names_each_difference(queues: SqliteQueues) -> None:
    queues.create(QueueSettings(name="orders"))
    queues.create(QueueSettings(name="orders"))
    text = refusal(
        errors.ConflictError,
        lambda: queues.create(QueueSettings(name="orders", visibility_ms=1_000, delay_ms=5_000)),
    )
    assert "visibility is 30s, declared 1s" in text
    assert "delay is 0s, declared 5s" in text
    assert "retention" not in text
    assert queues.settings() == [QueueSettings(name="orders")]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": ""}, "name"),
        ({"name": "a b"}, "A-Z a-z 0-9"),
        ({"name": "x" * 81}, "80"),
        ({"name": "x" * 76 + ".fifo", "fifo": True}, "80"),
        ({"name": "orders.fifo"}, "not declared as a FIFO queue"),
        ({"fifo": True}, ".fifo"),
        ({"visibility_ms": -1}, "0 to 43,200,000"),
        ({"visibility_ms": 43_200_001}, "visibility_ms=43200001"),
        ({"visibility_ms": 1.5}, "whole number"),
        ({"retention_ms": 59_999}, "60,000 to 1,209,600,000"),
        ({"retention_ms": 14 * DAY + 1}, "retention_ms"),
        ({"delay_ms": 900_001}, "0 to 900,000"),
        ({"message_bytes_max": 1_023}, "1,024 to 1,048,576"),
        ({"message_bytes_max": 1_048_577}, "message_bytes_max"),
        ({"in_flight_max": 0}, "1 to 120,000"),
        ({"content_dedup": True}, "Only FIFO queues deduplicate"),
        ({"dedup_scope": "messageGroup"}, "Only FIFO queues deduplicate"),
        ({"name": "o.fifo", "fifo": True, "dedup_scope": "group"}, "dedup_scope='group'"),
        ({"dead_letter": "dead"}, "needs both"),
        ({"receives_max": 3}, "needs both"),
        ({"dead_letter": "dead", "receives_max": 0}, "1 to 1,000"),
        ({"dead_letter": "dead", "receives_max": 1_001}, "1 to 1,000"),
        ({"dead_letter": "orders", "receives_max": 1}, "names itself"),
        ({"held": "orders"}, "names itself"),
        ({"redrive_allow": "byQueue"}, "redrive_sources"),
        ({"redrive_sources": ("a",)}, "byQueue"),
        ({"redrive_allow": "byQueue", "redrive_sources": tuple("abcdefghijk")}, "1 to 10"),
        ({"redrive_allow": "nobody"}, "redrive_allow='nobody'"),
    ],
)
def test_settings_out_of_their_range(queues: SqliteQueues, settings: dict[str, Any], words: str) -> None:
    queues.create(QueueSettings(name="dead", retention_ms=14 * DAY))
    text = refusal(errors.UsageError, lambda: queues.create(QueueSettings(**{"name": "orders", **settings})))
    assert words in text
    assert [one.name for one in queues.settings()] == ["dead"]


def test_dead_letter_queues_that_do_not_fit(queues: SqliteQueues) -> None:
    def declare(dead_letter: str, **settings: Any) -> Callable[[], None]:
        return lambda: queues.create(
            QueueSettings(**{"name": "orders", "dead_letter": dead_letter, "receives_max": 3, **settings})
        )

    assert "There is no queue 'dead'" in refusal(errors.NotFoundError, declare("dead"))
    queues.create(QueueSettings(name="dead.fifo", fifo=True, retention_ms=14 * DAY))
    text = refusal(errors.UsageError, declare("dead.fifo"))
    assert "'orders' is standard" in text
    assert "'dead.fifo' is FIFO" in text
    queues.create(QueueSettings(name="short", retention_ms=5 * DAY))
    declare("short", name="fits")()
    text = refusal(errors.UsageError, declare("short", retention_ms=5 * DAY))
    assert "'short' keeps messages for 5 days, its source 'orders' for 5 days" in text
    assert "0 s left" in text
    queues.create(QueueSettings(name="full", retention_ms=14 * DAY))
    declare("full", name="full-source", retention_ms=14 * DAY)()
    queues.create(QueueSettings(name="closed", retention_ms=14 * DAY, redrive_allow="denyAll"))
    assert "does not take dead letters" in refusal(errors.UsageError, declare("closed"))
    queues.create(
        QueueSettings(name="some", retention_ms=14 * DAY, redrive_allow="byQueue", redrive_sources=("orders",))
    )
    assert "does not take dead letters" in refusal(errors.UsageError, declare("some", name="others"))
    declare("some")()


def test_a_held_queue_must_exist_and_be_of_the_same_type(queues: SqliteQueues) -> None:
    assert "There is no queue" in refusal(
        errors.NotFoundError, lambda: queues.create(QueueSettings(name="orders", held="orders-held"))
    )
    queues.create(QueueSettings(name="held.fifo", fifo=True))
    assert "its held queue" in refusal(
        errors.UsageError, lambda: queues.create(QueueSettings(name="orders", held="held.fifo"))
    )


def test_an_unknown_queue_names_those_that_there_are(queues: SqliteQueues) -> None:
    assert "This file has no queue" in refusal(errors.NotFoundError, lambda: queues.open("orders"))
    queues.create(QueueSettings(name="orders"))
    queue = queues.open("orders")
    assert "The queues of this file are: orders." in refusal(errors.NotFoundError, lambda: queues.open("order"))
    queues.drop("orders")
    refusal(errors.NotFoundError, lambda: queue.send([Entry(body="b")]))
