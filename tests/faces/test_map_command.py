"""`onefold map`: start, show, stop, resume, redrive, as a person and as a program see them; and a driver that is killed."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from onefold.admin import maps
from onefold.cli import main, render
from onefold.cli.commands import map_
from onefold.manual_clock import ManualClock

MILL = Path(__file__).with_name("mill.py")
RUN = "nightly/1"


class Shell:
    """Runs commands in one folder, in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run a command that ends with this exit code; what it wrote, on either stream."""
        self._capsys.readouterr()
        found = main.run(words)
        out, said = self._capsys.readouterr()
        assert found == code, f"{words}: {found}\n{out}{said}"
        return out + said

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code))

    def items(self, count: int, name: str = "in.csv") -> None:
        (self.folder / name).write_text("id\n" + "".join(f"{number}\n" for number in range(count)))

    def work(self) -> None:
        """Run a worker until nothing is left, as a process of its own."""
        command = [sys.executable, "-m", "onefold", "worker", "mill:app", "--until-empty", "--no-progress"]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def done(self) -> Counter[str]:
        return Counter((self.folder / "done.txt").read_text().split())


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    for name in ("ONEFOLD_APP", "ONEFOLD_URL", "ONEFOLD_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    shutil.copy(MILL, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "80")
    sys.modules.pop("mill", None)
    yield Shell(tmp_path, capsys)
    sys.modules.pop("mill", None)


def test_from_start_to_redrive(shell: Shell) -> None:
    shell.items(120)
    for number in (3, 4, 5):
        (shell.folder / f"bad-{number}").touch()
    begun = shell.json("map", "start", "grind", "mill:app", "--items", "in.csv", "--name", RUN, "--detach")
    assert (begun["status"], begun["total"]) == ("running", 120)
    shell.work()
    said = shell("map", "show", RUN, "mill:app")
    assert "nightly/1: failed" in said
    assert "ExceedToleratedFailureThreshold" in said
    assert "map-runs/nightly/1" in said.replace("\n", "")
    for file in shell.folder.glob("bad-*"):
        file.unlink()
    shell("map", "redrive", RUN, "mill:app", "--detach")
    shell.work()
    found = shell.json("map", "show", RUN, "mill:app", "--quarantine", "3")
    assert (found["status"], found["done"], found["quarantine"]) == ("succeeded", 120, [])
    assert set(shell.done().values()) == {1}
    assert "succeeded" in shell("runs", "list", "mill:app") or "120" in shell("runs", "list", "mill:app")


def test_watching_ends_with_the_run(shell: Shell) -> None:
    shell.items(10)
    shell("map", "start", "grind", "mill:app", "--items", "in.csv", "--name", RUN, "--detach")
    worker = threading.Thread(target=shell.work)
    worker.start()
    try:
        assert shell.json("map", "resume", RUN, "mill:app")["status"] == "succeeded"
    finally:
        worker.join()


def interrupted_at(look: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send SIGINT when a run is looked at for the n-th time."""
    looks, progress = iter(range(1, 1_000)), maps.progress

    def then(app: Any, run: str) -> Any:
        if next(looks) == look:
            signal.raise_signal(signal.SIGINT)
        return progress(app, run)

    monkeypatch.setattr(maps, "progress", then)


def test_an_interrupt_ends_the_watching_and_not_the_run(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.items(10)
    with monkeypatch.context() as patch:
        interrupted_at(3, patch)
        said = shell("map", "start", "grind", "mill:app", "--items", "in.csv", "--name", RUN, code=130)
    assert said.splitlines() == [
        f"{RUN}: no longer watched. It continues, and workers process its items.",
        f"  onefold map show {RUN} mill:app   (to look again)",
        f"  onefold map stop {RUN} mill:app   (to send no more items)",
    ]
    with monkeypatch.context() as patch:
        patch.setattr(maps, "start", lambda *_, **__: signal.raise_signal(signal.SIGINT))
        said = shell("map", "start", "grind", "mill:app", "--items", "in.csv", "--name", "never", code=130)
        assert said.strip() == "interrupted", "nothing of it has begun"
        interrupted_at(1, patch)
        assert shell.json("map", "resume", RUN, "mill:app", code=130)["ended_at_ms"] is None
    shell.work()
    assert shell.json("map", "show", RUN, "mill:app")["status"] == "succeeded"


def test_an_interrupt_of_who_drives_it_says_how_it_goes_on(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.items(10)
    with monkeypatch.context() as patch:
        patch.setattr(maps, "drive", lambda *_: signal.raise_signal(signal.SIGINT))
        words = ("map", "start", "grind", "mill:app", "--items", "in.csv", "--name", RUN, "--here")
        said = shell(*words, code=130)
    assert f"{RUN}: no longer driven here. Items that were sent are still done; no more are sent." in said
    assert f"  onefold map resume {RUN} mill:app   (to continue)" in said
    shell.work()
    assert not (shell.folder / "done.txt").exists()
    shell("map", "resume", RUN, "mill:app", "--detach")
    shell.work()
    assert shell.json("map", "show", RUN, "mill:app")["status"] == "succeeded"


def test_a_driver_that_is_killed_and_a_file_that_has_changed(shell: Shell) -> None:
    shell.items(3_000)
    command = [sys.executable, "-m", "onefold", "map", "start", "grind", "mill:app", "--items", "in.csv"]
    command += ["--name", RUN, "--here", "--json"]
    with subprocess.Popen(command, cwd=shell.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as driver:
        waits = threading.Event()
        for _ in range(400):
            waits.wait(0.05)
            try:
                if shell.json("map", "show", RUN, "mill:app")["under_way"]:
                    break
            except AssertionError:
                continue  # not begun yet
        driver.kill()
    shell.work()
    shell.items(3_001)
    said = shell("map", "resume", RUN, "mill:app", "--detach", code=1)
    assert "is not the file that run nightly/1 was started with: its size was" in said
    assert "onefold map stop nightly/1" in said
    shell.items(3_000)
    shell("map", "resume", RUN, "mill:app", "--detach")
    shell.work()
    assert shell.json("map", "show", RUN, "mill:app")["done"] == 3_000
    assert len(shell.done()) == 3_000
    assert set(shell.done().values()) == {1}


def test_the_bar_shows_how_many_and_how_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr(render, "console", lambda *, stderr=False: console)
    monkeypatch.setattr(render, "is_quiet", lambda: False)
    now = maps.MapProgress(
        run=RUN, map="grind", source="in.csv", status="running", total=4_000, done=1_000, failed=2, malformed=1,
        under_way=50, pending=2_947, round=0, threshold="none", started_at_ms=0, ended_at_ms=None, failure=None,
        results="",
    )  # fmt: skip
    with map_._bar() as told:
        told(now)
        told(now)
    assert "1,003 of 4,000" in screen.getvalue()
    assert "2 failed, 1 malformed" in screen.getvalue()


def test_a_run_that_is_stopped(shell: Shell) -> None:
    shell.items(100)
    shell("map", "start", "grind", "mill:app", "--items", "in.csv", "--name", RUN, "--detach")
    shell("map", "stop", RUN, "mill:app")
    shell.work()
    found = shell.json("map", "show", RUN, "mill:app")
    assert (found["status"], found["pending"]) == ("aborted", 100)
    assert "has ended: aborted" in shell("map", "stop", RUN, "mill:app", code=1)


def test_a_doubled_row_is_in_the_figures_of_a_run(shell: Shell) -> None:
    (shell.folder / "in.csv").write_text("id\n1\n2\n1\n")
    shell("map", "start", "grind", "mill:app", "--items", "in.csv", "--name", RUN, "--detach")
    shell.work()
    said = shell("map", "show", RUN, "mill:app")
    assert re.search(r"items +done +duplicates +failed", said)
    assert re.search(r"\n +3 +2 +1 +0", said)
    assert "1 row repeats the key of an earlier row (line 4), answered from its record" in " ".join(said.split())
    (listed,) = shell.json("map", "list", "mill:app")  # as text its form depends on the width of the age
    assert (listed["status"], listed["total"], listed["done"], listed["duplicates"]) == ("succeeded", 3, 2, 1)
    assert "1 row of its source repeats an earlier one, and is no operation of its own" in shell(
        "runs", "show", RUN, "mill:app"
    )


def test_what_cannot_be_is_said_with_a_way_out(shell: Shell) -> None:
    shell.items(1)
    assert "no map 'grinf'" in shell("map", "start", "grinf", "mill:app", "--items", "in.csv", "--name", "x", code=1)
    assert "cannot be read" in shell("map", "start", "grind", "mill:app", "--items", "gone", "--name", "x", code=1)
    assert "no map run 'x'" in shell("map", "show", "x", "mill:app", code=1)
    assert "Missing option" in shell("map", "start", "grind", "mill:app", code=2)
    assert "no command 'begin'" in shell("map", "begin", code=2)


def test_a_file_without_the_columns_is_refused_at_once(shell: Shell) -> None:
    (shell.folder / "wrong.csv").write_text("ident;name\n1;a\n")
    said = shell("map", "start", "grind", "mill:app", "--items", "wrong.csv", "--name", RUN, "--detach", code=1)
    assert "has no column id: its header is ident;name; the key {id} needs id." in said
    assert "Is the delimiter ';'?" in said
    assert shell("map", "list", "mill:app").strip() == "No map run."


def test_a_file_with_a_header_alone_is_said_to_have_no_rows(shell: Shell) -> None:
    shell.items(0)
    said = shell("map", "start", "grind", "mill:app", "--items", "in.csv", "--name", RUN, "--detach")
    assert "The file has a header and no rows: 0 items." in said
    shell.work()
    said = shell("map", "show", RUN, "mill:app")
    assert "nightly/1: succeeded" in said
    assert "The file has a header and no rows: 0 items." in said


def test_map_runs_are_listed(shell: Shell) -> None:
    shell.items(3)
    for name in ("b/1", "a/1"):
        shell("map", "start", "grind", "mill:app", "--items", "in.csv", "--name", name, "--detach")
    shell.work()
    rows = [row.split() for row in shell("map", "list", "mill:app").splitlines()[2:]]
    assert [row[:4] for row in rows] == [["a/1", "succeeded", "3", "3"], ["b/1", "succeeded", "3", "3"]]
    assert [one["run"] for one in shell.json("map", "list", "mill:app", "--limit", "1")] == ["a/1"]


def test_a_run_that_failed_says_where_its_dead_letters_belong_and_when_it_began(shell: Shell) -> None:
    shell.items(10)
    for number in (3, 4, 5):
        (shell.folder / f"bad-{number}").touch()
    shell("map", "start", "grind", "mill:app", "--items", "in.csv", "--name", RUN, "--detach")
    shell.work()
    said = shell("map", "show", RUN, "mill:app")
    assert "they are redriven with their run, below, not one by one" in said
    assert re.search(r"began \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+, took", said)
    letter = shell.json("dlq", "list", "mill:app", "--all")["letters"][0]
    for words in (("dlq", "list"), ("dlq", "show", letter["message_id"]), ("why", letter["key"])):
        said = shell(*words, "mill:app")
        assert f"onefold map redrive {RUN} mill:app" in said, words
        assert "onefold dlq redrive" not in said, words


def test_rows_that_are_no_items_are_named_where_runs_are_shown(shell: Shell) -> None:
    (shell.folder / "in.csv").write_text("id\n0\n1,too many\n2\n")
    shell("map", "start", "grind", "mill:app", "--items", "in.csv", "--name", RUN, "--detach")
    shell.work()
    said = shell("runs", "show", RUN, "mill:app")
    assert "1 row of its source is malformed" in said
    assert f"onefold map show {RUN} --quarantine 20 mill:app   (which rows are not items" in said
    assert shell.json("runs", "show", RUN, "mill:app")["malformed"] == 1
    assert "cells" in shell("map", "show", RUN, "mill:app", "--quarantine", "20")


def test_a_run_that_is_stopped_while_it_goes_on_is_stopping(shell: Shell) -> None:
    shell.items(100)
    shell("map", "start", "grind", "mill:app", "--items", "in.csv", "--name", RUN, "--detach")
    said = shell("map", "stop", RUN, "mill:app")
    assert "nightly/1: stopping" in said
    assert "to show it again: onefold map show nightly/1 mill:app" in said


@pytest.mark.parametrize(("moves", "count"), [(False, 1), (True, 0)])
def test_where_nothing_begins_it_is_asked_whether_a_worker_runs(
    moves: bool, count: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock, looks = ManualClock(0), iter(range(10))

    def progress(_app: object, _run: str) -> maps.MapProgress:
        look = next(looks)
        return maps.MapProgress(
            run=RUN, map="grind", source="in.csv", status="succeeded" if look == 9 else "running", total=40,
            done=look if moves else 0, failed=0, malformed=0, under_way=0, pending=0, round=0, threshold="none",
            started_at_ms=0, ended_at_ms=None, failure=None, results="",
        )  # fmt: skip

    class App:
        name = "mill"

        def runtime(self) -> Any:
            return SimpleNamespace(clock=clock, never=lambda: None)

    monkeypatch.setattr(maps, "progress", progress)
    monkeypatch.setattr(clock, "wait", lambda _waiter, _ms: clock.advance(2_000))
    assert map_._followed(App(), RUN, lambda _: None, "mill:app").status == "succeeded"  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert said.count("Nothing has begun yet: is a worker of mill:app running? `onefold worker mill:app`") == count
