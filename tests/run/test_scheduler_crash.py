"""A scheduler that ends at any of its writes, before or after it: the next one sends each tick, under its one key.

On an engine with transactions once; on one without them at least once. First as an exception that nobody catches, which
rolls back as SQLite does after a kill; then with kill -9, in a process of its own on a file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from onefold.runner import runs
from onefold.runtime.events import Sinks
from onefold.schedules.scheduler import Scheduler
from tests.run.ticking import MINUTE_MS, Crash, Loose, Perilous, Place, at, clock_at, places

EVERY = "cron(0/20 * * * ? *)"
DUE = [f"2026-06-01T{hour:02}:{minute:02}:00Z" for hour in (2, 3) for minute in (0, 20, 40)]


def on(place: Place, engine: Any) -> Any:
    """The runtime of the app, on an engine that ends the process."""
    runtime: Any = place.app.runtime()
    runtime._opened.engine = engine
    return runtime


def crash() -> None:
    raise Crash


def history(path: Path, ends_at: int | None, *, after: bool, loose: bool) -> tuple[int, Counter[str]]:
    """Two hours with a scheduler that ends at a write, and another one that goes on; how many writes, and what was sent."""
    with places(Place(path, clock_at("2026-06-01T01:50:00"), EVERY, missed="all")) as (one,):
        inner = one.app.runtime().engine
        engine = Perilous(Loose(inner) if loose else inner, ends_at, after=after, end=crash)
        runtime = on(one, engine)
        end_ms = at("2026-06-01T03:59:00")
        one.scheduler = Scheduler(runtime, Sinks())
        while one.clock.now_ms() < end_ms:
            try:
                one.step(MINUTE_MS)
            except Crash:
                one.scheduler = Scheduler(runtime, Sinks())
        found = runs.read_all(inner.state, runs.names(inner.state, "nightly/"))
        assert [one.run.name.partition("/")[2] for one in found if one is not None] == DUE
        return engine.calls, Counter(one.ticks())


@pytest.mark.parametrize("loose", [False, True], ids=["embedded", "no transactions"])
def test_a_crash_at_any_write_loses_no_tick(tmp_path: Path, loose: bool) -> None:
    calls, sent = history(tmp_path / "calm.db", None, after=False, loose=loose)
    assert sent == Counter(DUE)
    assert calls > 20
    twice = 0
    for after in (False, True):
        for ends_at in range(calls):
            _, sent = history(tmp_path / f"{after}-{ends_at}.db", ends_at, after=after, loose=loose)
            assert sorted(sent) == DUE, f"ended at write {ends_at}"
            twice += sum(sent.values()) - len(DUE)
    assert (twice > 0) is loose, "without transactions a message may be sent twice, which its key makes one effect"


VICTIM = """
import os, signal, sys
from pathlib import Path
from onefold.runtime.events import Sinks
from onefold.schedules.scheduler import Scheduler
from tests.run.test_scheduler_crash import EVERY, on
from tests.run.ticking import MINUTE_MS, Perilous, Place, clock_at

def end():
    os.kill(os.getpid(), signal.SIGKILL)

path, ends_at, after, now_ms = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "after", int(sys.argv[4])
clock = clock_at("1970-01-01T00:00:00")
clock.jump(now_ms)
one = Place(path, clock, EVERY, missed="all")
engine = Perilous(one.app.runtime().engine, ends_at, after=after, end=end)
scheduler = Scheduler(on(one, engine), Sinks())
scheduler.catch_up()
for _ in range(3):
    clock.advance(20 * MINUTE_MS)
    scheduler.catch_up()
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", ["before", "after"])
def test_kill_9_at_any_write_loses_no_tick_and_sends_none_twice(tmp_path: Path, after: str) -> None:
    start_ms = at("2026-06-01T01:59:00")
    for ends_at in range(12):
        path = tmp_path / f"{ends_at}.db"
        victim = [sys.executable, "-c", VICTIM, str(path), str(ends_at), after, str(start_ms)]
        done = subprocess.run(victim, cwd=Path(__file__).parents[2], env=os.environ, capture_output=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        clock = clock_at("1970-01-01T00:00:00")
        clock.jump(start_ms)
        with places(Place(path, clock, EVERY, missed="all")) as (one,):
            one.step()
            for _ in range(3):
                one.step(20 * MINUTE_MS)
            assert one.ticks() == DUE[:3], f"killed {after} write {ends_at}"
