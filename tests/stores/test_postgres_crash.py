"""PostgreSQL and its clients killed in the middle: nothing acknowledged is lost; rows and records exist both or not.

Every commit is synced here. A killed process does not lose what it has passed to the kernel, so this proves nothing
about power cuts; that fsync is called is the server's promise, and `check` warns where it was switched off.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from onefold import errors
from onefold.contracts.commit import Settlement
from onefold.contracts.ledger import Row
from onefold.contracts.queue import Leave
from onefold.contracts.state import Change
from onefold.contracts.store import Claimed, Hold
from onefold.engines.postgres.backend import PostgresBackend
from onefold.manual_clock import ManualClock
from onefold.testing.records import LEASE_MS, NOW, ask, complete
from tests.emulators.servers import ServerFailedError, free_port, postgres_folder, postgres_server, postgres_url
from tests.stores.postgres_books import books

pytestmark = pytest.mark.slow

SIGNALS = [signal.SIGQUIT, signal.SIGKILL]


class Mortal:
    """A server that can be killed and started again on the same files."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = postgres_url(self.port)
        self._folder = folder
        self._life = ExitStack()
        self.start()

    def start(self) -> None:
        for tries_left in range(50, -1, -1):
            try:
                self._process = self._life.enter_context(postgres_server(self._folder, self.port))
            except ServerFailedError as error:  # a process of the server that was killed is not quite gone
                if "pre-existing shared memory block" not in str(error) or not tries_left:
                    raise
                select.select([], [], [], 0.1)
            else:
                return

    def kill(self, how: signal.Signals) -> None:
        """SIGQUIT: it stops at once without writing anything. SIGKILL: each of its processes, whatever it is doing."""
        if how == signal.SIGKILL:
            self._process.send_signal(signal.SIGSTOP)  # or it would notice that its children die, and react
            for pid in children(self._process.pid):
                os.kill(pid, how)
        self._process.send_signal(how)
        self._process.wait(30)
        self._life.close()

    def close(self) -> None:
        self._life.close()


def children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found


@pytest.fixture
def mortal() -> Iterator[Mortal]:
    with postgres_folder() as folder:
        server = Mortal(folder)
        yield server
        server.close()


@pytest.fixture
def opened(mortal: Mortal) -> Iterator[PostgresBackend]:
    with books(mortal.url, ManualClock(NOW)) as opened:
        opened._server.run(lambda link: link.execute("CREATE TABLE booking (text text PRIMARY KEY)"))
        yield opened


def rows(opened: PostgresBackend) -> list[str]:
    query = "SELECT text FROM booking ORDER BY text"
    return [text for (text,) in opened._server.run(lambda link: link.execute(query).fetchall())]


def claim(opened: PostgresBackend, key: str) -> Hold:
    (answer,) = opened.store.claim([ask(key)], NOW)
    assert isinstance(answer, Claimed), answer
    return answer.hold


def until_killed(mortal: Mortal, how: signal.Signals, turn: Callable[[int, int], None], turns: int) -> None:
    """Three threads take turns until the server dies, which it does after so many turns of all."""
    counted = threading.Semaphore(0)

    def work(thread: int) -> int:
        number = 0
        try:
            while True:
                turn(thread, number)
                number += 1
                counted.release()
        except errors.TransientError:
            return number

    with ThreadPoolExecutor(3) as pool:
        threads = [pool.submit(work, thread) for thread in range(3)]
        for _ in range(turns):
            assert counted.acquire(timeout=60)
        mortal.kill(how)
        assert sum(thread.result(60) for thread in threads) >= turns


@pytest.mark.parametrize("how", SIGNALS, ids=lambda how: how.name)
def test_nothing_that_was_answered_is_lost_when_the_server_dies(
    mortal: Mortal, opened: PostgresBackend, how: signal.Signals
) -> None:
    held: list[Hold] = []
    completed: list[Hold] = []
    told: list[str] = []
    put: list[str] = []

    def turn(thread: int, number: int) -> None:
        names = [f"{thread}-{number}-{place}" for place in range(4)]
        answers = opened.store.claim([ask(name) for name in names], NOW)
        holds = [answer.hold for answer in answers if isinstance(answer, Claimed)]
        held.extend(holds)
        assert opened.store.write([(hold, complete()) for hold in holds[:2]], NOW) == [True, True]
        completed.extend(holds[:2])
        opened.ledger.append([Row(at_ms=NOW, event=names[0])])
        told.append(names[0])
        assert opened.state.put([Change(names[0], b"1", 0)]) == [True]
        put.append(names[0])

    until_killed(mortal, how, turn, 100)
    with pytest.raises(errors.TransientError):
        opened.store.read([held[0].key], NOW)
    mortal.start()
    found = opened.store.read([hold.key for hold in held], NOW)  # the same store goes on
    assert [record and (record.owner, record.fence) for record in found] == [("A", 1)] * len(held)
    statuses = {hold.key: record.status for hold, record in zip(held, found, strict=True) if record}
    assert {statuses[hold.key] for hold in completed} == {"completed"}
    assert {row.event for row in opened.ledger.between(0, 2 * NOW, limit=100_000)} >= set(told)
    assert set(opened.state.names("")) >= set(put)
    assert opened.store.write([(held[-1], complete())], NOW) == [True]


@pytest.mark.parametrize("how", SIGNALS, ids=lambda how: how.name)
def test_rows_and_records_stand_together_when_the_server_dies_anywhere(
    mortal: Mortal, opened: PostgresBackend, how: signal.Signals
) -> None:
    begun: list[Hold] = []
    committed: list[str] = []

    def turn(thread: int, number: int) -> None:
        effects = opened.effects(1000)
        names = [f"{thread}-{number}-{place}" for place in range(3)]
        try:
            for name in names:
                hold = claim(opened, name)
                begun.append(hold)
                perform(effects, name)
                assert finish(effects, hold)
            effects.commit()
        except errors.TransientError:
            effects.rollback()
            raise
        committed.extend(names)

    until_killed(mortal, how, turn, 60)
    mortal.start()
    records = opened.store.read([hold.key for hold in begun], NOW)
    standing = {record.key.key for record in records if record and record.status == "completed"}
    assert set(rows(opened)) == standing
    assert standing >= set(committed)


def perform(effects, name: str) -> None:
    try:
        effects.open().execute("INSERT INTO booking VALUES (%s)", (name,))
    except errors.OnefoldError:
        raise
    except Exception as error:  # psycopg's own, as a handler sees it
        raise errors.TransientError(str(error)) from error


def finish(effects, hold: Hold) -> bool:
    settlement = Settlement(
        write=(hold, complete()), queue=None, receipt=None, settle=Leave(), rows=(Row(at_ms=NOW, event="told"),)
    )
    return effects.finish(settlement, NOW).written


STEPS = ["opened", "inserted", "finished", "committed"]


def go_to(opened: PostgresBackend, step: str, name: str = "a"):
    """A transactional run up to a step."""
    hold = claim(opened, name)
    effects = opened.effects(1000)
    effects.open()
    if step != "opened":
        perform(effects, name)
    if step in ("finished", "committed"):
        assert finish(effects, hold)
    if step == "committed":
        effects.commit()
    return effects, hold


def standing(opened: PostgresBackend, hold: Hold) -> tuple[list[str], str | None, int, dict[str, int]]:
    """The handler's rows, the record's status, history, and the count of what completed."""
    (record,) = opened.store.read([hold.key], NOW)
    return (
        rows(opened),
        record and record.status,
        len(opened.ledger.between(0, 2 * NOW)),
        opened.records.count_completed(NOW, NOW + 1000),
    )


EVERYTHING = (["a"], "completed", 1, {"job": 1})
NOTHING = ([], "in_progress", 0, {})


@pytest.mark.parametrize("how", SIGNALS, ids=lambda how: how.name)
@pytest.mark.parametrize("step", STEPS)
def test_a_server_killed_at_any_step_has_all_of_a_run_or_nothing(
    mortal: Mortal, opened: PostgresBackend, step: str, how: signal.Signals
) -> None:
    effects, hold = go_to(opened, step)
    mortal.kill(how)
    if step != "committed":
        with pytest.raises(errors.TransientError):
            effects.commit() if step == "finished" else finish(effects, hold)
        effects.rollback()
    mortal.start()
    assert standing(opened, hold) == (EVERYTHING if step == "committed" else NOTHING)


CHILD = """
import sys
from onefold.engines.postgres.backend import PostgresBackend
from tests.stores.test_postgres_crash import go_to
store = PostgresBackend(sys.argv[1])
effects = go_to(store, sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_client_killed_at_any_step_leaves_all_of_its_run_or_nothing_and_no_lock(
    mortal: Mortal, opened: PostgresBackend
) -> None:
    for step in STEPS:
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, mortal.url, step],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        with child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            child.kill()
        hold = Hold(ask("a").key, "A", 1)
        assert standing(opened, hold) == (EVERYTHING if step == "committed" else NOTHING)
        if step != "committed":  # the next process need not wait for anybody
            (answer,) = opened.store.claim([ask("a", "B", at_ms=NOW + LEASE_MS)], NOW + LEASE_MS)
            assert isinstance(answer, Claimed)
            assert answer.doubt
            opened._server.run(lambda link: link.execute("TRUNCATE onefold.record"))
