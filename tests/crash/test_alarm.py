"""Exceptions from signal handlers at random instants of `send` and `@once`: nothing stays open, nothing is half done.

A real process gets real alarms. Afterwards, while it is still alive, its other threads and another process write; what
it accepted is there exactly once, and every guarded key can be called again.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import onefold
from onefold.clock import SystemClock
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.turn import Work
from onefold.interrupts import is_of_a_signal

SOAK = os.environ.get("ONEFOLD_SOAK") == "1"
ROOT = Path(__file__).parents[2]
IN_MEMORY = Path("/dev/shm")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as name:
        yield Path(name)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10 if SOAK else 1))
def test_ten_thousand_alarms_leave_nothing_open_and_nothing_half_done(folder: Path, seed: int) -> None:
    path = folder / "alarmed.db"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.crash.alarmed", str(path), "10000", str(seed)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        with closing(sqlite3.connect(path, timeout=2, isolation_level=None)) as other:  # while that one is still alive
            other.execute("BEGIN IMMEDIATE")
            rows = other.execute("SELECT json_extract(body, '$.order') FROM onefold_message").fetchall()
            other.execute("ROLLBACK")
        process.stdin.write("\n")
    assert told["wrong"] == []
    assert told["alarms"] > 3_000
    stored = Counter(name for (name,) in rows)
    del stored["first"]  # once in each queue
    accepted = {name for name in told["accepted"] if name != "first"}
    assert {name for name, count in stored.items() if count > 1} == set(), "sent twice"
    assert accepted - set(stored) == set(), "accepted, and not there"
    assert set(stored) - accepted - set(told["interrupted"]) == set(), "sent by nobody"
    assert told["twice"] == []


def test_a_call_from_a_signal_handler_inside_a_call_is_refused_and_harms_nothing(folder: Path) -> None:
    engine = Database(str(folder / "within.db"), SystemClock())
    engine.write(lambda connection: connection.execute("CREATE TABLE row (at)"))
    refused: list[BaseException] = []

    def ring(_number: int, _frame: FrameType | None) -> None:
        try:
            engine.write(lambda connection: connection.execute("INSERT INTO row VALUES ('inner')"))
        except onefold.errors.UsageError as error:
            refused.append(error)

    def run(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO row VALUES ('first')")
        os.kill(os.getpid(), signal.SIGUSR1)
        connection.execute("INSERT INTO row VALUES ('second')")

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        engine.write(run)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert "by the handler of a signal" in str(refused[0])
    assert engine.read(lambda connection: connection.execute("SELECT at FROM row").fetchall()) == [
        ("first",),
        ("second",),
    ]
    engine.close()


def test_an_exception_of_a_signal_is_not_given_to_another_threads_work(folder: Path) -> None:
    """The main thread leads a batch of two; the alarm fires while it runs the other thread's part."""
    engine = Database(str(folder / "batch.db"), SystemClock())
    engine.write(lambda connection: connection.execute("CREATE TABLE row (at)"))

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError("the soft limit")

    def alarmed(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO row VALUES ('theirs')")
        os.kill(os.getpid(), signal.SIGUSR1)

    theirs = Work(alarmed, synced=True)
    engine._waiting.append(theirs)
    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with theirs.wanted, pytest.raises(TimeoutError, match="soft limit"):
            engine.write(lambda connection: connection.execute("INSERT INTO row VALUES ('mine')"))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (theirs.done, theirs.error) == (False, None), "its own thread runs it when the turn comes to it"
    assert engine.read(lambda connection: connection.execute("SELECT at FROM row").fetchall()) == []
    engine.close()


def test_work_whose_caller_has_gone_is_not_done(folder: Path) -> None:
    engine = Database(str(folder / "gone.db"), SystemClock())
    engine.write(lambda connection: connection.execute("CREATE TABLE row (at)"))
    engine._waiting.append(Work(lambda connection: connection.execute("INSERT INTO row VALUES ('gone')"), synced=True))
    engine.write(lambda connection: connection.execute("INSERT INTO row VALUES ('mine')"))
    assert engine.read(lambda connection: connection.execute("SELECT at FROM row").fetchall()) == [("mine",)]
    engine.close()


def test_only_the_exceptions_of_installed_handlers_are_of_a_signal() -> None:
    def ring(_number: int, _frame: FrameType | None) -> None:
        raise LookupError("of a signal")

    def plain() -> None:
        raise LookupError("plain")

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with pytest.raises(LookupError) as caught:
            os.kill(os.getpid(), signal.SIGUSR1)
        assert is_of_a_signal(caught.value)
        with pytest.raises(LookupError) as caught:
            plain()
        assert not is_of_a_signal(caught.value)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert is_of_a_signal(KeyboardInterrupt())


def test_handlers_are_seen_through_partials_and_decorators() -> None:
    def ring(what: str, *_: object) -> None:
        raise LookupError(what)

    class Bell:
        def __call__(self, *_: object) -> None:
            raise LookupError("bell")

        def method(self, *_: object) -> None:
            raise LookupError("method")

    class Inner:  # like decorators in C: it has no code of its own
        def __init__(self) -> None:
            self.__wrapped__ = functools.partial(ring, "wrapped")
            self.call = self.__wrapped__

        __call__ = functools.partialmethod(lambda self, *given: self.call(*given))

    handlers: list[Any] = [
        functools.partial(ring, "job 1"),
        functools.partial(functools.partial(ring, "job"), 2),
        Bell(),
        functools.partial(Bell()),
        Bell().method,
        functools.partial(Bell().method),
        Inner(),
        functools.lru_cache(functools.partial(ring, "cached")),
    ]
    for handler in handlers:
        before = signal.signal(signal.SIGUSR1, handler)
        try:
            with pytest.raises(LookupError) as caught:
                signal.raise_signal(signal.SIGUSR1)
            assert is_of_a_signal(caught.value), handler
        finally:
            signal.signal(signal.SIGUSR1, before)
