"""A worker process that is killed in its handler, twice: what is known when the handler is called again, and afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faces.processes import Commands

pytestmark = pytest.mark.slow

DYING = '''
import json
import os
import signal
import sqlite3
import onefold

app = onefold.App("dying", history="off")
queue = app.queue("queue")


@app.job(queue, key="{name}", retry=onefold.Retry(attempts=10, crashes=9))
def die(payload: dict[str, str], ctx: onefold.Context) -> None:
    """Write down what the history says now; be killed, twice."""
    with sqlite3.connect(".onefold/dying.db") as file:
        rows = file.execute("SELECT event FROM onefold_ledger WHERE key IS NOT NULL ORDER BY id").fetchall()
    with open("seen", "a") as seen:
        seen.write(json.dumps([event for (event,) in rows]) + "\\n")
    if ctx.attempt < 3:
        os.kill(os.getpid(), signal.SIGKILL)
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "dying.py").write_text(DYING)
    return tmp_path


def test_each_kill_is_in_the_history_before_the_handler_runs_again(folder: Path, commands: Commands) -> None:
    assert commands.run("send", "dying:app", "die", '{"name": "a"}').returncode == 0
    worker = ("worker", "dying:app", "--until-empty", "--no-progress")
    assert [commands.run(*worker).returncode for _ in range(3)] == [-9, -9, 0]
    noticed = ["takeover", "unknown"]
    assert [json.loads(line) for line in (folder / "seen").read_text().splitlines()] == [[], noticed, 2 * noticed]
    (story,) = json.loads(commands.run("why", "a", "dying:app", "--json").stdout)["stories"]
    takeovers = [line for line in story["lines"] if line["event"] == "takeover"]
    assert len(takeovers) == 2
    assert takeovers[0]["at_ms"] < takeovers[1]["at_ms"]
