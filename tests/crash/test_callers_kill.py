"""SIGKILL of a program at every statement of a transaction in which it sends: its rows and its messages, both or neither."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.callers_victim import shop

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "way", ["sqlite3", *(pytest.param(way, marks=pytest.mark.slow) for way in ("sqlalchemy", "django"))]
)
def test_rows_and_messages_are_there_together_or_not_at_all(tmp_path: Path, way: str) -> None:
    path = str(tmp_path / "shop.db")
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.callers_victim", path, way],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=True,
    )
    stories = [json.loads(line) for line in done.stdout.splitlines()]
    *killed, last = stories
    assert len(killed) > 20, "the transaction has fewer statements than it sends messages with"
    for story in killed:
        there = {name: story[name] for name in ("orders", "messages", "waiting", "records", "groups", "history")}
        assert story["died"], story
        assert set(there.values()) == {0}, story
    assert last == {
        "name": last["name"], "died": False, "status": 0,
        "orders": 1, "messages": 3, "waiting": 3, "records": 1, "groups": 1, "history": 3,
    }  # fmt: skip
    app, jobs = shop(path)
    receipts = [job.send({"id": last["name"]}) for job in jobs]
    assert [one.found for one in receipts] == ["new", "waiting", "deduplicated"]
    assert jobs[1].send({"id": killed[-1]["name"]}).found == "new"
    app.close()
