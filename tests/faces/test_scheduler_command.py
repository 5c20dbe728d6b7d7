"""`onefold scheduler` and `onefold worker --schedules`, as processes: what they say, what they answer, how they end."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.faces.processes import PATIENCE_S, Commands

pytestmark = pytest.mark.slow

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


def test_once_sends_what_is_due_and_says_what_comes_next(commands: Commands) -> None:
    first = commands.run("scheduler", "books:app", "--once")
    assert first.returncode == 0, first.stderr
    assert "ended: 1 tick sent" in first.stdout
    assert "next: late at Tue 2199-01-01 03:00:00 GMT" in first.stdout
    (sent,) = [line for line in first.stderr.splitlines() if "sent daily/" in line]
    assert sent.rpartition("sent ")[2] not in first.stdout, "a tick is said once"

    second = commands.run("scheduler", "books:app", "--once", "--json")
    answer = json.loads(second.stdout)
    assert (answer["sent"], answer["runs"]) == (0, [])
    assert [one["schedule"] for one in answer["next"]] == ["daily", "late"]
    assert answer["next"][1]["at"] == "2199-01-01T03:00:00Z"
    assert second.stderr == ""


def test_schedules_without_a_further_tick_are_named(folder: Path, commands: Commands) -> None:
    past = BOOKS.replace("cron(0 3 1 1 ? 2199)", "cron(0 3 1 1 ? 2020)")
    (folder / "books.py").write_text(past)
    said = "no further tick: late, cron(0 3 1 1 ? 2020)\n"
    assert said in commands.run("scheduler", "books:app", "--once").stdout
    answer = json.loads(commands.run("scheduler", "books:app", "--once", "--json").stdout)
    assert answer["ended"] == [{"schedule": "late", "expression": "cron(0 3 1 1 ? 2020)"}]
    one = commands.start("scheduler", "books:app")
    assert one.stderr is not None
    for line in iter(one.stderr.readline, ""):
        if line == said:
            break
    else:
        pytest.fail("it was not said")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(commands: Commands, number: signal.Signals) -> None:
    one = commands.start("scheduler", "books:app")
    assert one.stderr is not None
    said: list[str] = []
    while not (said and said[-1].startswith("next: late")):
        said.append(one.stderr.readline())
        assert said[-1], said
    assert any(f"2 schedules on sqlite:///{commands.folder}/.onefold/books.db" in line for line in said)
    one.send_signal(number)
    output, rest = one.communicate(timeout=PATIENCE_S)
    assert one.returncode == 0, rest
    assert "scheduler-stopped" in rest
    assert output.startswith("ended: 1 tick sent")


def test_events_as_log_lines_name_the_run(commands: Commands) -> None:
    done = commands.run("scheduler", "books:app", "--once", "--log", "json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    (ticked,) = [line for line in lines if line["event"] == "ticked"]
    assert ticked["run"].startswith("daily/")
    assert ticked["queue"] == "books-schedules"
    assert ticked["schedule"] == "daily"


def test_a_worker_can_be_a_scheduler_too(commands: Commands) -> None:
    one = commands.start("worker", "books:app", "--schedules", "--no-progress")
    assert one.stdout is not None
    assert one.stdout.readline().startswith("worked daily/")
    one.terminate()
    output, rest = one.communicate(timeout=PATIENCE_S)
    assert one.returncode == 0, rest
    assert "ended: done 1" in output


@pytest.mark.parametrize(
    "words", [["scheduler", "books:empty"], ["worker", "books:app", "--schedules", "--queues", "x"]]
)
def test_an_app_that_cannot_be_scheduled_is_said(commands: Commands, words: list[str]) -> None:
    done = commands.run(*words)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_another_app_with_the_same_name_on_the_file_is_refused_by_the_worker_too(
    folder: Path, commands: Commands
) -> None:
    assert commands.run("scheduler", "books:app", "--once").returncode == 0
    (folder / "other.py").write_text(BOOKS.replace('App("books")', 'App("other", url="sqlite:///.onefold/books.db")'))
    done = commands.run("worker", "other:app", "--schedules", "--no-progress")
    assert done.returncode == 1
    assert "The job 'daily' of the app 'other' has the name of a job of the app 'books'" in done.stderr
