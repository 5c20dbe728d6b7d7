"""`onefold scheduler` and `onefold worker --schedules`, as processes: what they say, what they answer, how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ONEFOLD = [sys.executable, "-m", "onefold"]
PATIENCE_S = 60

BOOKS = '''
import onefold

app = onefold.App("books")


@app.schedule("rate(1 day)", tz="Europe/London")
def daily(tick: onefold.Tick) -> None:
    """Say so."""
    print("worked", tick.run, flush=True)


@app.schedule("cron(0 3 1 1 ? 2199)", tz="Europe/London")
def late(tick: onefold.Tick) -> None:
    """Not in our time."""


empty = onefold.App("empty")
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "books.py").write_text(BOOKS)
    return tmp_path


@pytest.fixture
def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ONEFOLD", "PYTEST"))}
    return kept | {"COLUMNS": "100"}


@pytest.fixture
def started(folder: Path, environment: dict[str, str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are ended when the test is."""
    running: list[subprocess.Popen[str]] = []
    yield running
    for one in running:
        if one.poll() is None:
            one.kill()
        one.communicate()


def run(folder: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [*ONEFOLD, *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_once_sends_what_is_due_and_says_what_comes_next(folder: Path, environment: dict[str, str]) -> None:
    first = run(folder, environment, "scheduler", "books:app", "--once")
    assert first.returncode == 0, first.stderr
    assert "ended: 1 tick sent" in first.stdout
    assert "next: late at Tue 2199-01-01 03:00:00 GMT" in first.stdout
    assert "sent daily/" in first.stderr

    second = run(folder, environment, "scheduler", "books:app", "--once", "--json")
    answer = json.loads(second.stdout)
    assert (answer["sent"], answer["runs"]) == (0, [])
    assert [one["schedule"] for one in answer["next"]] == ["daily", "late"]
    assert answer["next"][1]["at"] == "2199-01-01T03:00:00Z"
    assert second.stderr == ""


def test_schedules_without_a_further_tick_are_named(
    folder: Path, environment: dict[str, str], started: list[subprocess.Popen[str]]
) -> None:
    past = BOOKS.replace("cron(0 3 1 1 ? 2199)", "cron(0 3 1 1 ? 2020)")
    (folder / "books.py").write_text(past)
    said = "no further tick: late, cron(0 3 1 1 ? 2020)\n"
    assert said in run(folder, environment, "scheduler", "books:app", "--once").stdout
    answer = json.loads(run(folder, environment, "scheduler", "books:app", "--once", "--json").stdout)
    assert answer["ended"] == [{"schedule": "late", "expression": "cron(0 3 1 1 ? 2020)"}]
    one = subprocess.Popen(
        [*ONEFOLD, "scheduler", "books:app"], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    started.append(one)
    assert one.stderr is not None
    for line in iter(one.stderr.readline, ""):
        if line == said:
            break
    else:
        pytest.fail("it was not said")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(
    folder: Path, environment: dict[str, str], started: list[subprocess.Popen[str]], number: signal.Signals
) -> None:
    one = subprocess.Popen(
        [*ONEFOLD, "scheduler", "books:app"], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    started.append(one)
    assert one.stderr is not None
    said: list[str] = []
    while not (said and said[-1].startswith("next: late")):
        said.append(one.stderr.readline())
        assert said[-1], said
    assert any("2 schedules on sqlite:///.onefold/books.db" in line for line in said)
    one.send_signal(number)
    output, rest = one.communicate(timeout=PATIENCE_S)
    assert one.returncode == 0, rest
    assert "scheduler-stopped" in rest
    assert output.startswith("ended: 1 tick sent")


def test_events_as_log_lines_name_the_run(
    folder: Path, environment: dict[str, str], started: list[subprocess.Popen[str]]
) -> None:
    done = run(folder, environment, "scheduler", "books:app", "--once", "--log", "json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    (ticked,) = [line for line in lines if line["event"] == "ticked"]
    assert ticked["run"].startswith("daily/")
    assert ticked["queue"] == "books-schedules"
    assert ticked["schedule"] == "daily"


def test_a_worker_can_be_a_scheduler_too(
    folder: Path, environment: dict[str, str], started: list[subprocess.Popen[str]]
) -> None:
    one = subprocess.Popen(
        [*ONEFOLD, "worker", "books:app", "--schedules", "--no-progress"], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    started.append(one)
    assert one.stdout is not None
    assert one.stdout.readline().startswith("worked daily/")
    one.terminate()
    output, rest = one.communicate(timeout=PATIENCE_S)
    assert one.returncode == 0, rest
    assert "ended: done 1" in output


@pytest.mark.parametrize(
    "words", [["scheduler", "books:empty"], ["worker", "books:app", "--schedules", "--queues", "x"]]
)
def test_an_app_that_cannot_be_scheduled_is_said(folder: Path, environment: dict[str, str], words: list[str]) -> None:
    done = run(folder, environment, *words)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_another_app_with_the_same_name_on_the_file_is_refused_by_the_worker_too(
    folder: Path, environment: dict[str, str]
) -> None:
    assert run(folder, environment, "scheduler", "books:app", "--once").returncode == 0
    (folder / "other.py").write_text(BOOKS.replace('App("books")', 'App("other", url="sqlite:///.onefold/books.db")'))
    done = run(folder, environment, "worker", "other:app", "--schedules", "--no-progress")
    assert done.returncode == 1
    assert "daily belongs to app books" in done.stderr
