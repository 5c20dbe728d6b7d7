"""A signal's exception in the middle of a shared transaction: what other threads are told is what is in the file."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

from onefold import errors
from onefold.clock import SystemClock
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.turn import Work

PATIENCE_S = 60


@pytest.mark.parametrize("raised", [KeyboardInterrupt, errors.TransientError])
def test_what_others_are_told_of_a_shared_transaction_is_so(tmp_path: Path, raised: type[BaseException]) -> None:
    """The signal comes at every entry of a Python function in the thread that performs the batch, one after the other."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise raised("time is over")

    before = signal.signal(signal.SIGALRM, interrupt)
    engine = Database(str(tmp_path / "a.db"), SystemClock())
    engine.write(lambda connection: connection.execute("CREATE TABLE t (who, n)"))
    try:
        number = 0
        while interrupted_at(engine, number):
            number += 1
        assert number > 10, "there were places where a signal could come"
    finally:
        signal.signal(signal.SIGALRM, before)
        engine.close()


def interrupted_at(engine: Database, number: int) -> bool:
    """One batch of two threads, with a signal at the entry of that function; False: there are not so many."""
    told: list[str] = []

    def other() -> None:
        engine.write(lambda connection: connection.execute("INSERT INTO t VALUES ('other', ?)", (number,)))
        told.append("stored")

    left = [number]

    def trace(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code.co_filename == __file__ or code.co_flags & inspect.CO_GENERATOR:
            return  # an exception where a generator is closed goes nowhere
        if is_below(frame, Database._run_waiting.__code__):
            left[0] -= 1
            if left[0] == -1:
                os.kill(os.getpid(), signal.SIGALRM)

    companion = threading.Thread(target=other)
    work = Work[object](lambda connection: connection.execute("INSERT INTO t VALUES ('main', ?)", (number,)), True)
    with engine._turn.lock:
        companion.start()
        while not engine._waiting:
            pass
        with work.wanted:
            engine._waiting.append(work)
            sys.setprofile(trace)
            try:
                engine._run_waiting(work)
            except (KeyboardInterrupt, errors.TransientError):
                pass
            finally:
                sys.setprofile(None)
    companion.join(PATIENCE_S)
    assert told == ["stored"]
    rows = engine.read(lambda c: c.execute("SELECT who FROM t WHERE n = ?", (number,)).fetchall())
    assert rows.count(("other",)) == 1, f"entry {number}: another thread was told that its row is stored: {rows}"
    assert work.done == (("main",) in rows), f"entry {number}"
    return left[0] < 0


def is_below(frame: FrameType | None, code: object) -> bool:
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
