"""What a worker writes on standard error when no log was asked for: start and failures; without a terminal all events."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faces.processes import Commands

pytestmark = pytest.mark.slow

APP = """
import onefold

app = onefold.App("shop")
orders = app.queue("orders")


@app.job(orders, key="{name}", retry=onefold.Retry(attempts=2, base="1s", jitter="none"))
def ship(payload: dict[str, str]) -> None:
    if payload["name"] == "late":
        raise TimeoutError("no answer")
    if payload["name"] == "bad":
        raise onefold.PermanentError("no such address")
    print("shipped", payload["name"])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


AT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z "
FAILURES = [
    "dead-letter: ship bad: PermanentError: no such address",
    "dead-letter: ship late: TimeoutError: no answer",
    "retry: ship late: TimeoutError: no answer; again in 1s",
]


def test_one_line_for_each_event_without_a_terminal(commands: Commands, folder: Path) -> None:
    for name in ("good", "late", "bad"):
        assert commands.run("send", "shop:app", "ship", f'{{"name": "{name}"}}').returncode == 0
    lines = commands.run("worker", "shop:app", "--until-empty").stderr.splitlines()
    assert all(re.match(AT, line) for line in lines if "waiting for" not in line), lines
    events = [line.split()[1:4] for line in lines if re.match(AT + "[A-Z]+ ", line)]
    assert events[0] == ["INFO", "worker-started", "of"], lines
    place = re.escape(f"{folder}/.onefold/shop.db")
    assert re.search(rf"of app shop: jobs=ship, place={place}, pid=\d+, queues=orders, threads=8, version=\d", lines[0])
    levels = sorted(
        f"{level} {event.rstrip(':')}" for level, event, _ in events if event not in ("unknown", "worker-started")
    )
    assert levels == [
        "ERROR dead-letter", "ERROR dead-letter", "INFO completed", "INFO worker-draining", "INFO worker-stopped",
        "WARNING retry",
    ]  # fmt: skip
    (dead,) = [line for line in lines if "PermanentError" in line]
    assert re.search(r"ship sha256:[0-9a-f]{16} on orders message \S+: ", dead)
    assert dead.endswith(" frames=shop.py:13 in ship")
    assert "summary=no such address, where=shop.py:13 in ship" in dead


def test_keys_are_shown_where_asked(commands: Commands, folder: Path) -> None:
    assert commands.run("send", "shop:app", "ship", '{"name": "bad"}').returncode == 0
    commands.environment["ONEFOLD_LOG_KEYS"] = "shown"
    ended = commands.run("worker", "shop:app", "--until-empty")
    assert "ERROR dead-letter ship bad on orders" in ended.stderr


def test_an_app_that_logs_itself_is_not_logged_twice(commands: Commands, folder: Path) -> None:
    (folder / "shop.py").write_text(
        APP.replace('onefold.App("shop")', 'onefold.App("shop", sinks=[onefold.LogSink()])')
    )
    assert commands.run("send", "shop:app", "ship", '{"name": "bad"}').returncode == 0
    ended = commands.run("worker", "shop:app", "--until-empty")
    assert next(line for line in ended.stderr.splitlines() if "dead-letter" in line).startswith("{")
    assert ended.stderr.count("no such address") == 2  # in one line: as its summary, and at the end of its trace


def test_a_terminal_shows_them_above_the_progress(commands: Commands, folder: Path) -> None:
    long = "x" * 150
    for name in ("good", "late", "bad", long):
        assert commands.run("send", "shop:app", "ship", f'{{"name": "{name}"}}').returncode == 0
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    command = [sys.executable, "-m", "onefold", "worker", "shop:app", "--until-empty"]
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=child, stdout=child, stderr=child) as process:
        os.close(child)
        text = "".join(iter(lambda: _read(parent), ""))
        assert process.wait() == 0
    os.close(parent)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n").splitlines()
    said = [line[9:] for line in lines if re.match(r"\d\d:\d\d:\d\d ", line)]
    assert said[0].startswith(f"worker started: app shop, queue orders, file {folder}/.onefold/shop.db, ")
    unknown = [line for line in said[1:] if line.startswith("unknown: ship late: ")]
    assert (sorted(set(said[1:]) - set(unknown)), len(said)) == (FAILURES, 1 + len(FAILURES) + len(unknown)), said
    assert f"shipped {long}" in lines, "what a handler prints is not broken"
    assert [line for line in lines if line.strip()][-1].startswith("ended: done 2, ")


def _read(parent: int) -> str:
    try:
        return os.read(parent, 65_536).decode()
    except OSError:  # Linux says so when the other side is closed
        return ""


def test_a_worker_says_how_often_a_sink_failed(commands: Commands, folder: Path) -> None:
    app = APP.replace('onefold.App("shop")', 'onefold.App("shop", sinks=[Bad()])')
    bad = "class Bad:\n    def emit(self, event):\n        raise OSError('no collector')\n\n\n"
    (folder / "shop.py").write_text(f"{bad}{app}")
    assert commands.run("send", "shop:app", "ship", '{"name": "good"}').returncode == 0
    ended = commands.run("worker", "shop:app", "--until-empty")
    assert ended.returncode == 0
    assert ended.stderr.count("The sink Bad raised OSError: no collector.") == 1
    assert re.search(r"done 1, .*sink errors \d", ended.stdout), ended.stdout


def test_no_progress_says_none_of_it(commands: Commands) -> None:
    assert commands.run("send", "shop:app", "ship", '{"name": "bad"}').returncode == 0
    assert "dead-letter" not in commands.run("worker", "shop:app", "--until-empty", "--no-progress").stderr
