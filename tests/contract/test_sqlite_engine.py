"""The embedded engine makes calls together, in a file and in memory, and sees what other processes write to its file."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from onefold import errors
from onefold.contracts.entries import Entry
from onefold.contracts.ledger import Row
from onefold.contracts.queue import JOB_ATTRIBUTE, RUN_ATTRIBUTE, Attribute
from onefold.contracts.settings import QueueSettings
from onefold.contracts.store import Claimed, RecordKey
from onefold.engines.sqlite import engine as engine_module
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.engine import SqliteEngine, SweepStep, sweep_in
from onefold.engines.sqlite.file import FileSettings
from onefold.entropy import SystemEntropy
from onefold.limits import VISIBILITY_MS_MAX
from onefold.manual_clock import ManualClock
from onefold.testing.engine_contract import EngineContract, OwnersContract
from onefold.testing.records import KEPT_MS, NOW, ask, complete


def opened(path: str, clock: ManualClock | None = None) -> SqliteEngine:
    return SqliteEngine(path, clock=clock or ManualClock(), entropy=SystemEntropy(), owner="me", url=path)


class TestInAFile(EngineContract):
    @pytest.fixture(autouse=True)
    def open_engine(self, tmp_path: Path) -> Iterator[None]:
        self.engine = opened(str(tmp_path / "engine.db"))
        yield
        self.engine.close()


class TestInMemory(EngineContract):
    @pytest.fixture(autouse=True)
    def open_engine(self) -> Iterator[None]:
        self.engine = opened(":memory:")
        yield
        self.engine.close()


class TestOwnersInAFile(OwnersContract):
    owner = "me"

    @pytest.fixture(autouse=True)
    def open_engine(self, tmp_path: Path) -> Iterator[None]:
        self.path = str(tmp_path / "engine.db")
        self.engine = opened(self.path)
        yield
        self.engine.close()

    def ended(self) -> str:
        program = (
            "import os, sys\n"
            "from onefold.engines.sqlite.engine import SqliteEngine\n"
            "from onefold.clock import SystemClock\n"
            "from onefold.entropy import SystemEntropy\n"
            "path = sys.argv[1]\n"
            "SqliteEngine(path, clock=SystemClock(), entropy=SystemEntropy(), owner='another', url=path).appear()\n"
            "os._exit(1)\n"
        )
        assert subprocess.run([sys.executable, "-c", program, self.path], check=False, timeout=60).returncode == 1
        return "another"


class TestOwnersInMemory(OwnersContract):
    owner = "me"

    @pytest.fixture(autouse=True)
    def open_engine(self) -> Iterator[None]:
        self.engine = opened(":memory:")
        yield
        self.engine.close()

    def ended(self) -> None:
        """Nobody else can have it open."""


def test_what_another_process_writes_is_seen_once(tmp_path: Path) -> None:
    here, there = opened(str(tmp_path / "q.db")), opened(str(tmp_path / "q.db"))
    here.queues.create(QueueSettings(name="q"))
    assert not here.changed_elsewhere()
    there.queues.open("q").send([Entry(body="a")])
    assert here.changed_elsewhere()
    assert not here.changed_elsewhere()
    assert there.queues.depth("q").visible == 1
    assert not here.changed_elsewhere()
    here.close()
    there.close()


def test_a_full_disk_takes_the_whole_turn_back(tmp_path: Path) -> None:
    engine = opened(str(tmp_path / "q.db"))
    engine.queues.create(QueueSettings(name="q"))
    engine.queues.open("q").send([Entry(body="before")])
    pages = engine.database.read(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0])
    engine.database._writer.execute(f"PRAGMA max_page_count={pages + 2}")
    queue = engine.queues.open("q")
    with pytest.raises(errors.StorageBusy):
        engine.together([lambda: queue.send([Entry(body="small")]), lambda: queue.send([Entry(body="x" * 900_000)])])
    engine.database._writer.execute("PRAGMA max_page_count=1000000")
    assert [one.body for one in engine.queues.peek("q")] == ["before"]
    assert engine.together([lambda: len(queue.send([Entry(body="after")]))]) == [1]
    engine.close()


def test_a_sweep_goes_through_many_queues_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    engine = opened(":memory:", clock)
    monkeypatch.setattr("onefold.engines.sqlite.admin._QUEUES_SWEPT", 4)
    for number in range(10):
        engine.queues.create(QueueSettings(name=f"q{number}", retention_ms=60_000))
        engine.queues.open(f"q{number}").send([Entry(body="old")])
    clock.advance(60_000)
    assert [engine.queues.sweep() for _ in range(4)] == [4, 4, 2, 0]
    engine.close()


def test_an_unknown_queue_s_error_names_some_of_many() -> None:
    engine = opened(":memory:")
    for number in range(31):
        engine.queues.create(QueueSettings(name=f"q{number:02d}"))
    with pytest.raises(errors.NotFoundError, match=r"q00, .*q29, and more\."):
        engine.queues.open("nobody")
    engine.close()


def test_a_read_of_several_statements_sees_one_moment(tmp_path: Path) -> None:
    here, there = opened(str(tmp_path / "q.db")), opened(str(tmp_path / "q.db"))
    here.queues.create(QueueSettings(name="q"))

    def counted(connection: sqlite3.Connection) -> list[int]:
        counts = [connection.execute("SELECT count(*) FROM onefold_message").fetchone()[0]]
        there.queues.open("q").send([Entry(body="meanwhile")])
        return [*counts, connection.execute("SELECT count(*) FROM onefold_message").fetchone()[0]]

    assert here.database.read(counted) == [0, 0]
    assert here.queues.depth("q").visible == 1
    here.close()
    there.close()


def test_the_reader_of_a_thread_that_has_ended_is_closed(tmp_path: Path) -> None:
    engine = opened(str(tmp_path / "engine.db"))
    engine.queues.settings()
    open_files = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        thread = threading.Thread(target=engine.queues.settings)
        thread.start()
        thread.join()
    assert (
        len(os.listdir("/proc/self/fd")) <= open_files + 1
    )  # SQLite keeps one descriptor for the next to open the file
    engine.close()


CLOSED_UNDER_READERS = """
import sys, threading
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.contracts.store import RecordKey
from onefold.entropy import SystemEntropy
from onefold.manual_clock import ManualClock

keys, ends = [RecordKey("", "book", str(number)) for number in range(50)], []
for _ in range(10):
    engine = SqliteEngine(sys.argv[1], clock=ManualClock(), entropy=SystemEntropy(), owner="me", url=sys.argv[1])
    reading = threading.Semaphore(0)

    def read(store):
        try:
            while True:
                store.read(keys, 0)
                reading.release()
        except Exception as error:
            ends.append(type(error).__name__)

    threads = [threading.Thread(target=read, args=(engine.store,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        reading.acquire()
    engine.close()
    for thread in threads:
        thread.join()
print(*set(ends))
"""


def test_closing_waits_for_the_queries_of_other_threads(tmp_path: Path) -> None:
    """A connection that is closed under a query takes the whole process down."""
    program = [sys.executable, "-c", CLOSED_UNDER_READERS, str(tmp_path / "engine.db")]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout.split()) == (0, ["UsageError"]), ran.stderr


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[Database]:
    """An engine on which a thread keeps a transaction open until the end of the test, as a handler that hangs does."""
    engine = Database(str(tmp_path / "engine.db"), ManualClock(), settings=FileSettings(busy_ms=50))
    engine.write(lambda connection: connection.execute("CREATE TABLE told (what TEXT)"))
    begun, over = threading.Event(), threading.Event()

    def hang() -> None:
        engine.begin_exclusive()
        begun.set()
        over.wait(30)
        engine.end_exclusive(commit=False)

    thread = threading.Thread(target=hang)
    thread.start()
    assert begun.wait(30)
    engine.let_go = lambda: (over.set(), thread.join())  # type: ignore[attr-defined]
    yield engine
    over.set()
    thread.join()
    engine.close()


def test_who_waits_for_a_transaction_of_this_process_is_told_so_and_has_written_nothing(stuck: Database) -> None:
    def tell(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO told VALUES ('late')")

    with pytest.raises(errors.StorageBusy, match=r"kept .* from being written for 50 ms"):
        stuck.write(tell)
    with pytest.raises(errors.StorageBusy):
        stuck.together([lambda: None])
    with pytest.raises(errors.StorageBusy):
        stuck.changed_elsewhere()
    stuck.let_go()  # type: ignore[attr-defined]
    stuck.write(lambda connection: connection.execute("INSERT INTO told VALUES ('then')"))
    assert stuck.read(lambda connection: connection.execute("SELECT what FROM told").fetchall()) == [("then",)]


def test_who_waits_in_a_process_that_is_to_end_gives_up_soon(tmp_path: Path) -> None:
    """Who waits already, too; and a program that goes on after its worker has ended waits as long as before."""
    engine = Database(str(tmp_path / "engine.db"), ManualClock(), settings=FileSettings(busy_ms=60_000))
    other = Database(str(tmp_path / "engine.db"), ManualClock(), settings=FileSettings(busy_ms=60_000))
    for holder in (engine, other):  # a handler of this process, and of another one
        holder.begin_exclusive()
        found: SimpleQueue[errors.StorageBusy | None] = SimpleQueue()

        def wait(found: SimpleQueue[errors.StorageBusy | None] = found) -> None:
            try:
                engine.write(lambda connection: None)
                found.put(None)
            except errors.StorageBusy as error:
                found.put(error)

        early, late = threading.Thread(target=wait), threading.Thread(target=wait)
        early.start()
        engine.patience.hurry(0)
        assert found.get(timeout=60) is not None
        engine.patience.hurry(None)
        late.start()
        with pytest.raises(Empty):
            found.get(timeout=0.3)
        holder.end_exclusive(commit=False)
        assert found.get(timeout=60) is None
        early.join()
        late.join()
    engine.close()
    other.close()


@pytest.mark.parametrize("unfinished", [False, True])
def test_closing_does_not_wait_for_ever_for_a_transaction(stuck: Database, unfinished: bool) -> None:
    stuck.close(unfinished=unfinished)
    with pytest.raises(errors.UsageError, match="was closed"):
        stuck.read(lambda connection: None)


@pytest.mark.parametrize("fifo", [False, True])
def test_what_the_queue_itself_dead_letters_is_told_to_its_run(fifo: bool) -> None:
    clock = ManualClock()
    engine = opened(":memory:", clock)
    name, dead = ("q.fifo", "dead.fifo") if fifo else ("q", "dead")
    engine.queues.create(QueueSettings(name=dead, fifo=fifo, retention_ms=1_209_600_000))
    engine.queues.create(QueueSettings(name=name, fifo=fifo, dead_letter=dead, receives_max=2))
    keys = [RecordKey("tenant", "job", key) for key in ("a", "b")]
    engine.ledger.append([Row(at_ms=clock.now_ms(), event="dispatched", key=key, run="r") for key in keys])
    of_run = {JOB_ATTRIBUTE: Attribute("job"), RUN_ATTRIBUTE: Attribute("r")}
    group = {"group": "g", "dedup_id": "1"} if fifo else {}
    queue = engine.queues.open(name)
    queue.send([Entry(body="{}", key="a", attributes=of_run, **group)])  # type: ignore[arg-type]
    for _ in range(2):
        assert len(queue.receive(1, 1_000)) == 1
        clock.advance(1_000)
    assert queue.receive(1, 1_000) == []
    assert engine.queues.depth(dead).visible == 1
    assert engine.ledger.tally("r") == {"dead-letter": 1, "dispatched": 1}
    (told,) = [row for row in engine.ledger.of_run("r") if row.event == "dead-letter"]
    assert told.key == keys[0]
    assert told.detail == {"reason": "receives", "receives": 2, "of": 2}
    engine.close()


def test_a_short_log_is_used_from_its_beginning_again(tmp_path: Path) -> None:
    path = str(tmp_path / "q.db")
    short = FileSettings(log_bytes=50 * 4_096)
    engine = SqliteEngine(path, clock=ManualClock(), entropy=SystemEntropy(), owner="me", url=path, settings=short)
    engine.queues.create(QueueSettings(name="q"))
    queue = engine.queues.open("q")
    for _ in range(100):
        queue.send([Entry(body="x")])
    assert os.stat(f"{path}-wal").st_size < 100 * 4_120, "without it each send adds three pages"
    engine.close()


def test_a_page_size_is_that_of_a_new_file_and_an_older_one_keeps_its_own(tmp_path: Path) -> None:
    path = str(tmp_path / "q.db")
    for asked in (1_024, 4_096):
        settings = FileSettings(page_bytes=asked, log_bytes=102_400)
        engine = SqliteEngine(
            path, clock=ManualClock(), entropy=SystemEntropy(), owner="me", url=path, settings=settings
        )
        if asked == 1_024:
            engine.queues.create(QueueSettings(name="q"))
        engine.queues.open("q").send([Entry(body="x" * 100_000)])
        engine.close()
        database = sqlite3.connect(path)
        assert database.execute("PRAGMA page_size").fetchone() == (1_024,)
        database.close()


def test_a_sweep_that_finds_much_goes_on_at_once_and_sweeps_more_than_a_worker_completes() -> None:
    clock = ManualClock(NOW)
    engine = opened(":memory:", clock)
    rows = 10 * sweep_rows()
    engine.store.claim([ask(f"key-{number}", start=True) for number in range(rows)], NOW)
    kept = engine.store.claim([ask(f"old-{number}", start=True) for number in range(10)], NOW)
    assert len(kept) == 10
    clock.advance(VISIBILITY_MS_MAX)
    engine.maintain(lambda _: None)
    assert engine.records.scan(limit=100) == []
    engine.close()


def test_the_pass_goes_on_behind_oldest_records_that_stay() -> None:
    """They are in progress, perhaps in a process that stands still; what is newer and expired is removed all the same."""
    clock = ManualClock(NOW)
    engine = opened(":memory:", clock)
    engine.store.claim([ask(f"key-{number}") for number in range(3 * sweep_rows())], NOW)
    (claimed,) = engine.store.claim([ask("done")], NOW)
    assert isinstance(claimed, Claimed)
    engine.store.write([(claimed.hold, complete())], NOW)
    clock.advance(KEPT_MS)
    engine.maintain(lambda _: None)
    assert not [record for record in engine.records.scan(limit=10_000) if record.key == claimed.hold.key]
    engine.close()


def test_a_sweep_takes_its_share_of_the_time_and_the_next_call_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(NOW)
    engine = opened(":memory:", clock)
    engine.store.claim([ask(f"key-{number}") for number in range(5 * sweep_rows())], NOW)
    clock.advance(VISIBILITY_MS_MAX)
    step = engine_module.sweep_in

    def slow_step(*args: Any, **options: Any) -> SweepStep:
        clock.advance(60)
        return step(*args, **options)

    monkeypatch.setattr(engine_module, "sweep_in", slow_step)
    calls = [engine.maintain(lambda _: None) for _ in range(4)]  # half a second apart in a worker: 4,000 in a second
    assert calls == [2 * sweep_rows(), 2 * sweep_rows(), sweep_rows(), 0]
    engine.close()


def test_the_oldest_records_go_first_wherever_the_walk_has_come_to() -> None:
    clock = ManualClock(NOW)
    engine = opened(":memory:", clock)
    engine.store.claim([ask(f"old-{number}") for number in range(100)], NOW)
    late = [ask(f"new-{number}", at_ms=NOW + KEPT_MS) for number in range(sweep_rows())]
    engine.store.claim(late, NOW + 1)
    engine.database.write(lambda connection: connection.execute("UPDATE onefold_sweep SET record_id = 500"))
    clock.advance(VISIBILITY_MS_MAX)
    assert engine.database.write(lambda connection: sweep_in(connection, clock.now_ms(), limit=100)).removed == 100
    engine.close()


def sweep_rows() -> int:
    return engine_module._SWEEP_ROWS


def test_processes_that_open_one_file_by_several_names_see_each_other_live_and_die(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "q.db").touch()
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "q.db")
    (tmp_path / "folder").symlink_to(tmp_path / "real")
    by_name, by_link, by_folder = (
        SqliteEngine(str(tmp_path / name), clock=ManualClock(), entropy=SystemEntropy(), owner=owner, url="")
        for name, owner in (("real/q.db", "first"), ("link.db", "second"), ("folder/q.db", "third"))
    )
    for one in (by_name, by_link, by_folder):
        one.appear()
    heard: list[str] = []
    by_folder.maintain(heard.append)
    assert heard == []
    by_name.close(unfinished=True)  # its lock goes as it does when a process dies
    assert by_name._presence is not None
    assert by_name._presence._file is not None
    os.close(by_name._presence._file.number)
    by_link.maintain(heard.append)
    assert heard == ["first"]
    by_link.close()
    by_folder.close()
    assert os.listdir(tmp_path / "real" / "q.db.owners") == []
    assert sorted(os.listdir(tmp_path)) == ["folder", "link.db", "real"]


def log_bytes(engine: SqliteEngine) -> int:
    return Path(f"{engine.database.path}-wal").stat().st_size


def test_a_log_shrinks_once_a_long_reader_has_gone(tmp_path: Path) -> None:
    settings = FileSettings(log_bytes=200_000)
    path = str(tmp_path / "q.db")
    engine = SqliteEngine(path, clock=ManualClock(), entropy=SystemEntropy(), owner="me", url=path, settings=settings)
    engine.queues.create(QueueSettings(name="q"))
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM onefold_message").fetchone()
    queue = engine.queues.open("q")
    for _ in range(20):
        queue.send([Entry(body="x" * 100_000)])
    engine.maintain(lambda _: None)
    assert log_bytes(engine) > 2_000_000
    assert reader.execute("SELECT count(*) FROM onefold_message").fetchone() == (0,)
    reader.execute("COMMIT")
    engine.maintain(lambda _: None)
    assert log_bytes(engine) <= 200_000
    assert engine.queues.depth("q").visible == 20
    reader.close()
    engine.close()


def test_what_a_drained_queue_took_is_given_back_to_the_disk(tmp_path: Path) -> None:
    engine = opened(str(tmp_path / "q.db"))
    engine.queues.create(QueueSettings(name="q"))
    queue = engine.queues.open("q")
    for _ in range(40):
        queue.send([Entry(body="x" * 100_000)] * 5)
    while deliveries := queue.receive(10):
        assert all(queue.delete([one.receipt for one in deliveries]))
    pages = engine.database.read(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0])
    assert pages > 4_000
    for _ in range(20):  # ten seconds of a worker
        engine.maintain(lambda _: None)
    pages = engine.database.read(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0])
    assert pages < 600
    engine.close()
    assert (tmp_path / "q.db").stat().st_size < 600 * 4_096
