"""A signal takes a caller away while another thread performs its work: what was performed can be read at once."""

from __future__ import annotations

import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import onefold
from onefold.clock import SystemClock
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.engines.sqlite.file import FileSettings
from onefold.engines.sqlite.turn import Work
from onefold.entropy import SystemEntropy

PATIENCE_S = 60
MOMENT_S = 0.2  # in which a caller that does not wait comes back


class TimeLimit(Exception):
    """What a soft limit raises."""


@contextmanager
def performed_by_another(engine: Database) -> Iterator[Callable[[], None]]:
    """What the main thread writes inside is performed by another thread, and an alarm comes in the middle of it.

    The answer says that the main thread is back.
    """
    came, back, ready = threading.Event(), threading.Event(), threading.Event()

    def ring(_number: int, _frame: FrameType | None) -> None:
        if not came.is_set():
            came.set()
            raise TimeLimit

    def tear(connection: sqlite3.Connection) -> None:
        connection.execute("SELECT 1")
        while not came.is_set():  # one that comes just before the lock is waited for does not end the wait
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            came.wait(MOMENT_S / 10)
        back.wait(MOMENT_S)

    def perform() -> None:
        own = Work(tear, synced=True)
        with engine._turn.lock:
            ready.set()
            while not engine._waiting:
                pass
            engine._run_waiting(own)

    before = signal.signal(signal.SIGUSR1, ring)
    thread = threading.Thread(target=perform)
    thread.start()
    ready.wait(PATIENCE_S)
    try:
        yield back.set
    finally:
        signal.signal(signal.SIGUSR1, before)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_what_was_written_for_who_was_torn_away_can_be_read(tmp_path: Path) -> None:
    engine = Database(str(tmp_path / "a.db"), SystemClock())
    engine.write(lambda connection: connection.execute("CREATE TABLE t (who)"))
    with performed_by_another(engine) as back:
        with pytest.raises(TimeLimit):
            engine.write(lambda connection: connection.execute("INSERT INTO t VALUES ('main')"))
        rows = engine.read(lambda connection: connection.execute("SELECT who FROM t").fetchall())
        back()
    assert rows == [("main",)], "it is stored, so it can be seen when the exception is"
    engine.close()


def test_a_claim_that_another_thread_made_for_a_torn_call_is_given_back(tmp_path: Path) -> None:
    called: list[str] = []
    path = str(tmp_path / "r.db")
    engines = SqliteEngine(path, clock=SystemClock(), entropy=SystemEntropy(), owner="o", url=f"sqlite:///{path}")
    store = engines.store
    charge = onefold.once(key="{object}", name="charge", store=store, on_unknown="hold")(called.append)
    charge("first")
    engine: Database = store._engine  # type: ignore[attr-defined]
    with performed_by_another(engine) as back:
        with pytest.raises(TimeLimit):
            charge("torn")
        back()
    charge("torn")
    assert called == ["first", "torn"], "nobody's process ended: nothing is held, and no lease has to end"
    engines.close()


def test_an_answer_does_not_wait_for_the_turn_of_whoever_comes_next(tmp_path: Path) -> None:
    """Another thread performs the work for longer than the turn is waited for, and keeps the turn afterwards."""
    engine = Database(str(tmp_path / "a.db"), SystemClock(), settings=FileSettings(busy_ms=50))
    engine.write(lambda connection: connection.execute("CREATE TABLE t (who)"))
    ready, asked, back = threading.Event(), threading.Event(), threading.Event()
    in_time: list[bool] = []

    class Asked(Work[object]):
        def take(self) -> bool:
            if threading.current_thread() is threading.main_thread():
                asked.set()  # the main thread has waited in vain for the turn
            return super().take()

    def perform() -> None:
        with engine._turn.lock:
            ready.set()
            while not engine._waiting:
                pass
            engine._run_waiting(Work(lambda _: asked.wait(PATIENCE_S), synced=True))
            in_time.append(back.wait(PATIENCE_S / 3))

    thread = threading.Thread(target=perform)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onefold.engines.sqlite.database.Work", Asked)
        thread.start()
        ready.wait(PATIENCE_S)
        engine.write(lambda connection: connection.execute("INSERT INTO t VALUES ('main')"))
        back.set()
    thread.join(PATIENCE_S)
    assert in_time == [True]
    engine.close()
