"""Forks of real processes with an engine open: nothing that was accepted is lost, nothing runs twice, nobody is locked out.

A daemon whose parent ends, a server that preloads, a multiprocessing pool while other threads write, a handler that
forks. SQLite's notes about locks are inherited and the locks are not, so a child is checked against the kernel's own
list.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import onefold
from onefold import forks
from onefold.clock import SystemClock
from onefold.contracts.store import RecordKey
from onefold.engines.memory import MemoryStore
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.engines.sqlite.file import FileSettings
from onefold.engines.sqlite.migrations import migrate
from onefold.entropy import SystemEntropy

ROOT = Path(__file__).parents[2]


def told(path: Path) -> Iterator[dict[str, object]]:
    return map(json.loads, Path(f"{path}.told").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("scene", ["daemon", "preload", "pool", "handler"])
def test_nothing_is_lost_and_nothing_is_twice(tmp_path: Path, scene: str) -> None:
    path = tmp_path / "forked.db"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.crash.forked", scene, str(path)], cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        out, err = process.communicate(timeout=100)  # also its children's output: they close their ends when they end
    assert (process.returncode, out, err) == (0, "", "")
    rows = list(told(path))
    accepted = Counter(name for row in rows if row["what"] == "accepted" for name in row["names"])
    ran = Counter(name for row in rows if row["what"] == "ran" for name in row["names"])
    with closing(sqlite3.connect(path)) as file:
        stored = Counter(name for (name,) in file.execute("SELECT json_extract(body, '$.order') FROM onefold_message"))
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert max(accepted.values()) == 1
    assert Counter(accepted) - (stored + ran) == Counter(), "lost"
    assert [name for name, count in (stored + ran).items() if count > 1] == [], "twice"
    if scene == "handler":
        assert sum(name.startswith("fork-") for name in ran) == 5
        assert len(accepted) == 25
    elif scene == "daemon":
        assert len(accepted) == 6 * 40


def in_child(work: Callable[[], object]) -> str:
    """What `work` returns or raises in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = str(work())
        except BaseException as error:  # noqa: BLE001 - reported
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        answer = file.read()
    assert os.waitpid(child, 0)[1] == 0
    return answer


def kernel_locks(path: Path) -> set[tuple[str, str]]:
    """The locks of this process according to the kernel: which file, and what kind."""
    names = {os.stat(f"{path}{end}").st_ino: end for end in ("", "-shm")}
    found = set()
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.replace(" -> ", " ").split()
        inode = int(words[5].rpartition(":")[2])
        if int(words[4]) == os.getpid() and inode in names:
            found.add((names[inode], words[3]))
    return found


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Database]:
    engine = Database(str(tmp_path / "one.db"), SystemClock())
    migrate(engine)
    engine.write(lambda connection: connection.execute("CREATE TABLE row (at)"))
    yield engine
    engine.close()


def count(engine: Database) -> int:
    return engine.read(lambda connection: connection.execute("SELECT count(*) FROM row").fetchone()[0])  # type: ignore[no-any-return]


def add(engine: Database) -> None:
    engine.write(lambda connection: connection.execute("INSERT INTO row VALUES (1)"))


def test_a_child_has_the_locks_that_sqlite_believes_it_has(engine: Database) -> None:
    path = Path(engine.path)
    add(engine)
    count(engine)
    mine = kernel_locks(path)
    assert mine == {("", "READ"), ("-shm", "READ")}

    def look() -> object:
        add(engine)
        count(engine)
        return sorted(kernel_locks(path))

    assert in_child(look) == str(sorted(mine))
    add(engine)
    assert kernel_locks(path) == mine
    assert count(engine) == 3


def test_parent_and_child_exclude_each_other(engine: Database) -> None:
    """While the child has a transaction open, the parent's write waits; the child's connection is one of its own."""
    ready, go_on = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        engine.begin_exclusive()
        os.write(ready[1], b"!")
        os.read(go_on[0], 1)
        engine.end_exclusive(commit=True)
        os._exit(0)
    os.read(ready[0], 1)
    with closing(sqlite3.connect(engine.path, timeout=0, isolation_level=None)) as third:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            third.execute("BEGIN IMMEDIATE")
        os.write(go_on[1], b"!")
        assert os.waitpid(child, 0)[1] == 0
        third.execute("BEGIN IMMEDIATE")
        third.execute("ROLLBACK")
    add(engine)
    assert count(engine) == 1
    for one in (*ready, *go_on):
        os.close(one)


def test_a_child_of_an_open_transaction_refuses_the_file_and_the_parent_goes_on(engine: Database) -> None:
    connection = engine.begin_exclusive()
    connection.execute("INSERT INTO row VALUES ('mine')")

    def use() -> str:
        answers = []
        for call in (lambda: add(engine), lambda: count(engine), lambda: Database(engine.path, SystemClock())):
            with pytest.raises(
                onefold.errors.StorageError, match="was in use at the moment when this process was forked"
            ):
                call()
            answers.append("refused")
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            connection.execute("INSERT INTO row VALUES ('theirs')")
        return " ".join(answers)

    assert in_child(use) == "refused refused refused"
    engine.end_exclusive(commit=True)
    assert count(engine) == 1


def test_a_connection_of_the_programs_own_makes_the_file_unusable_in_the_child(engine: Database) -> None:
    with closing(sqlite3.connect(engine.path)) as own:
        own.execute("SELECT count(*) FROM row").fetchall()
        assert "was in use at the moment" in in_child(lambda: add(engine))
    assert in_child(lambda: add(engine)) == "None"
    assert count(engine) == 1


def test_a_child_can_write_while_threads_of_the_parent_do(engine: Database) -> None:
    over = threading.Event()
    written = [0, 0]

    def write(number: int) -> None:
        while not over.is_set():
            add(engine)
            count(engine)
            written[number] += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    answers = [in_child(lambda: add(engine)) for _ in range(24)]
    over.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert answers == ["None"] * 24
    assert count(engine) == 24 + sum(written)


def test_a_child_has_no_part_in_a_database_in_memory() -> None:
    engine = Database(":memory:", SystemClock())
    engine.write(lambda connection: connection.execute("CREATE TABLE row (at)"))
    assert in_child(lambda: add(engine)).startswith(
        "UsageError: :memory: is in the memory of the process that opened it"
    )
    assert count(engine) == 0
    engine.close()


def test_the_parents_sign_of_life_ends_with_the_parent_and_not_with_its_child(tmp_path: Path) -> None:
    path = str(tmp_path / "life.db")
    watching = SqliteEngine(path, clock=SystemClock(), entropy=SystemEntropy(), owner="watching", url="")
    watching.appear()
    ready, go_on = os.pipe(), os.pipe()
    parent = os.fork()
    if parent == 0:
        engine = SqliteEngine(path, clock=SystemClock(), entropy=SystemEntropy(), owner="parent", url="")
        engine.appear()
        engine.waiter()
        if os.fork() == 0:
            os.write(ready[1], b"!")
            os.read(go_on[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
        os.write(ready[1], b"!")
        os._exit(0)
    assert os.waitpid(parent, 0)[1] == 0
    os.read(ready[0], 1)
    dead: list[str] = []
    watching.maintain(dead.append)
    os.write(go_on[1], b"!")
    assert dead == ["parent"]
    watching.close()
    for one in (*ready, *go_on):
        os.close(one)


class Renewed(MemoryStore):
    """A store that signals when a lease was renewed."""

    def __init__(self) -> None:
        super().__init__()
        self.renewed = threading.Event()

    def renew(self, holds, lease_until_ms):  # type: ignore[no-untyped-def]
        self.renewed.set()
        return super().renew(holds, lease_until_ms)


def test_the_lease_of_a_long_call_in_a_child_is_renewed(tmp_path: Path) -> None:
    store = Renewed()
    long = threading.Event()

    @onefold.once(key="{key}", store=store, lease="1s")
    def call(key: str, wait: bool) -> str:
        return str(store.renewed.wait(30)) if wait else key

    assert call("mine", wait=False) == "mine"
    assert call("long", wait=True) == "True"  # the parent's lease thread runs
    store.renewed.clear()
    assert in_child(lambda: call("theirs", wait=True)) == "True"
    assert not long.is_set()


def test_a_function_that_forks_is_recorded_by_the_parent_alone() -> None:
    store = MemoryStore()

    class Ended(Exception):
        pass

    written: list[str] = []

    @onefold.once(key="{key}", store=store)
    def call(key: str) -> str:
        child = os.fork()
        if child == 0:
            raise Ended(key)  # as `sys.exit()` in a child does
        os.waitpid(child, 0)
        return key

    here = os.getpid()
    write = store.write
    store.write = lambda writes, now_ms: (written.append("write"), write(writes, now_ms))[1]  # type: ignore[method-assign]
    try:
        assert call("one") == "one"
    except Ended:
        os._exit(len(written))
    assert os.getpid() == here
    assert written == ["write"]
    (record,) = store.read([RecordKey("", f"{call.__module__}.{call.__qualname__}", "one")], SystemClock().now_ms())
    assert record is not None
    assert record.status == "completed"


def test_a_program_that_ends_with_everything_open_says_nothing(tmp_path: Path) -> None:
    code = (
        "import onefold\n"
        f"app = onefold.App('ends', url='sqlite:///{tmp_path}/ends.db')\n"
        "job = app.job(app.queue('orders'), key='{order}')(lambda payload: None)\n"
        f"once = onefold.once(key='{{key}}', name='call', store=onefold.memory_store())(lambda key: key)\n"
        "app.runtime()\n"
        "once('one')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(autouse=True)
def only_engines_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork waits for every engine of its process, and another test may have left one in a transaction."""
    monkeypatch.setattr(forks._here, "owners", {})


def engine_on(path: Path, busy_ms: int = 10_000) -> Database:
    engine = Database(str(path), SystemClock(), settings=FileSettings(busy_ms=busy_ms))
    migrate(engine)
    engine.write(lambda connection: connection.execute("CREATE TABLE t (word)"))
    return engine


def fork(in_child: Callable[[], object] = lambda: None) -> int:
    """Fork, and wait for the child; 0 if it did what it should."""
    child = os.fork()
    if child == 0:
        try:
            in_child()
        except BaseException:  # noqa: BLE001 - the parent sees it by the code
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def insert(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO t VALUES ('here')")


def test_a_reading_thread_that_ends_beside_a_fork_does_not_undo_it(tmp_path: Path) -> None:
    """Its connection is closed after the fork has listed all connections and before it comes to this one."""
    engine, other = engine_on(tmp_path / "a.db"), engine_on(tmp_path / "b.db")
    end = threading.Event()

    def read_and_end() -> None:
        engine.read(lambda connection: connection.execute("SELECT 1").fetchone())
        assert end.wait(30)

    before = set(engine._readers._open)
    reader = threading.Thread(target=read_and_end)
    reader.start()
    while engine._readers._open == before:
        pass
    (lent,) = engine._readers._open - before
    with lent.busy:
        pass  # it has opened its connection
    hold = engine._readers.hold

    def late(*wait_s: float) -> bool:
        end.set()
        reader.join()
        lent.hold(*wait_s)  # listed before
        return hold(*wait_s)

    engine._readers.hold = late  # type: ignore[method-assign]
    assert fork(lambda: [one.write(insert) for one in (engine, other)]) == 0
    engine._readers.hold = hold  # type: ignore[method-assign]
    for one in (engine, other):
        one.write(insert)
        assert one.read(lambda connection: connection.execute("SELECT count(*) FROM t").fetchone()) == (2,)
        one.close()


def test_a_fork_lets_a_transaction_that_wants_to_fork_itself_go_first(tmp_path: Path) -> None:
    engine = engine_on(tmp_path / "a.db", 60_000)
    begun, codes = threading.Event(), list[int]()

    def in_a_transaction() -> None:
        engine.begin_exclusive()
        begun.set()
        while not forks._here.held:
            pass  # until the other fork is under way
        codes.append(fork())
        engine.end_exclusive(commit=True)

    thread = threading.Thread(target=in_a_transaction, daemon=True)
    thread.start()
    assert begun.wait(30)
    other = threading.Thread(target=lambda: codes.append(fork(lambda: engine.write(insert))), daemon=True)
    other.start()
    thread.join(80)  # it waited for 120 s: twice `busy_ms`
    assert not thread.is_alive()
    other.join(80)
    assert codes == [0, 0]
    engine.close()


WAITING_FOR_ONE_THAT_FORKS = """
import os, sys, threading
from onefold import forks
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.file import FileSettings
from onefold.clock import SystemClock

if sys.argv[2] == "before":
    import concurrent.futures.thread, logging
engine = Database(sys.argv[1], SystemClock(), settings=FileSettings(busy_ms=600_000))
import concurrent.futures.thread, logging
begun, codes = threading.Event(), []

def fork():
    child = os.fork()
    if child == 0:
        os._exit(forks.generation())
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

def in_a_transaction():
    if sys.argv[3] == "lent":
        engine.begin_exclusive()
        body()
        engine.end_exclusive(commit=True)
    else:
        engine.together([body])

def body():
    begun.set()
    while not forks._here.held:
        pass  # until the other fork is under way
    with concurrent.futures.ThreadPoolExecutor() as pool:
        codes.append(pool.submit(logging.getLogger, "another").result().name)
    fork()

threads = [threading.Thread(target=one, daemon=True) for one in (in_a_transaction, fork)]
threads[0].start()
begun.wait()
threads[1].start()
for one in threads:
    one.join(60)
fork()
print(codes, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("imported", ["before", "after"])
@pytest.mark.parametrize("how", ["lent", "together"])
def test_a_fork_that_waits_for_a_transaction_has_no_lock_of_pythons_own_modules(
    tmp_path: Path, imported: str, how: str
) -> None:
    """If imported after ours, their hooks were called first: the handler waited for the fork, and the fork for it.

    Also if they are imported after the engine was opened, for example by the program's first `logging.getLogger`.
    """
    command = [sys.executable, "-c", WAITING_FOR_ONE_THAT_FORKS, str(tmp_path / "a.db"), imported, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.stdout == "['another', 1, 1, 1]\n", done.stderr


def test_a_fork_waits_once_for_several_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them delays it by one slice per round, so the slices of all count."""
    engines = [engine_on(tmp_path / f"{name}.db", 500) for name in "abcd"]
    begun, end = threading.Barrier(5), threading.Event()

    def in_a_transaction(engine: Database) -> None:
        engine.begin_exclusive()
        begun.wait(30)
        assert end.wait(60)
        engine.end_exclusive(commit=True)

    threads = [threading.Thread(target=in_a_transaction, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    begun.wait(30)
    waits = list[float]()
    hold = Database.hold
    monkeypatch.setattr(Database, "hold", lambda engine, wait_s: waits.append(wait_s) or hold(engine, wait_s))
    assert fork() == 0
    assert 1.0 <= sum(waits) < 1.5  # twice `busy_ms`; it was that for each of the four
    end.set()
    for thread in threads:
        thread.join()
    for engine in engines:
        engine.close()


def test_a_fork_holds_nothing_while_it_waits_for_a_transaction(tmp_path: Path) -> None:
    """Otherwise the transaction's thread, which also writes to another file, waits for the fork that waits for it."""
    first, second = engine_on(tmp_path / "a.db", 1_000), engine_on(tmp_path / "b.db", 1_000)
    begun, done = threading.Event(), list[str]()

    def in_a_transaction() -> None:
        first.begin_exclusive()
        begun.set()
        while not forks._here.held:
            pass
        for _ in range(20):
            second.write(insert)
        first.end_exclusive(commit=True)
        done.append("both")

    thread = threading.Thread(target=in_a_transaction)
    thread.start()
    assert begun.wait(30)
    assert fork(lambda: [one.write(insert) for one in (second, first)]) == 0
    thread.join(30)
    assert done == ["both"]
    for one in (first, second):
        one.close()


@pytest.mark.slow
def test_a_fork_under_alarms_that_raise_harms_nobody_and_loses_no_alarm(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.crash.forked_alarmed", str(tmp_path / "a.db")],
        cwd=ROOT, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    seen = json.loads(ran.stdout)
    assert seen["wrong"] == {}
    assert seen["rung"] >= 50
    # A signal at the first line of a hook is printed by Python; for one in the few lines until all are noted, the
    # handler is called again after the fork.
    assert seen["heard"] >= seen["rung"] // 2


def test_signals_that_come_while_the_main_thread_forks_come_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = list[int]()
    engine = engine_on(tmp_path / "a.db")
    hold = Database.hold

    def interrupted(engine: Database, wait_s: float) -> bool:
        signal.raise_signal(signal.SIGUSR1)
        return hold(engine, wait_s)

    monkeypatch.setattr(Database, "hold", interrupted)
    handler = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        assert fork(lambda: assert_is(signal.getsignal(signal.SIGUSR1).__name__, "<lambda>")) == 0  # type: ignore[union-attr]
        while not heard:
            pass
        assert heard == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, handler)
    engine.close()


def assert_is(found: object, wanted: object) -> None:
    assert found == wanted
