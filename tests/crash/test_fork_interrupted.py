"""Forks while something is not finished: a first use in another thread, or a time limit whose signal handler raises."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROUNDS = 400 if os.environ.get("ONEFOLD_SOAK") else 80


@pytest.mark.slow
def test_a_fork_beside_another_threads_first_send_leaves_the_child_able_to_send(tmp_path: Path) -> None:
    """That thread imports the engine and opens the file; a child would wait for its locks for ever."""
    for number in range(ROUNDS // 8):
        path = tmp_path / f"{number}.db"
        command = [sys.executable, "-m", "tests.crash.forked_first_use", str(path), str(number / ROUNDS * 2.4)]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
        assert (ended.returncode, ended.stderr) == (0, ""), number
        with closing(sqlite3.connect(path)) as file:
            stored = [name for (name,) in file.execute("SELECT json_extract(body, '$.name') FROM onefold_message")]
        assert sorted(stored) == ["child", "thread"], number


@pytest.mark.slow
@pytest.mark.parametrize("when", ["calls", "forks"])
def test_a_limit_that_raised_leaves_the_next_child_able_to_use_the_file(tmp_path: Path, when: str) -> None:
    command = [sys.executable, "-m", "tests.crash.forked_limited", str(tmp_path / "r.db"), when, "7", str(ROUNDS)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["refused"] == 0, ended.stderr
    assert when == "forks" or found["limits"] > ROUNDS / 4


@pytest.mark.slow
def test_a_refused_child_that_ends_leaves_the_log_of_others_alone(tmp_path: Path) -> None:
    """The program's own connection believes that nobody else has the file: closing it would delete the others' log."""
    path = tmp_path / "r.db"
    command = [sys.executable, "-m", "tests.crash.forked_own", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "refused\n"
        assert program.wait(timeout=100) == 0  # its child goes on
        with subprocess.Popen(
            [*command, "others"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "sent\n"
            other.kill()
        program.stdin.close()
        assert program.stdout.read() == ""  # the child has ended
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT count(*) FROM onefold_message").fetchall() == [(21,)]
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
