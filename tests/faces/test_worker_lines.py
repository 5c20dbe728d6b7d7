"""What a worker writes on standard error without a terminal, when no log was asked for: its start, and each failure."""

from __future__ import annotations

import re
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
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


def test_the_start_and_each_failure(commands: Commands) -> None:
    for name in ("good", "late", "bad"):
        assert commands.run("send", "shop:app", "ship", f'{{"name": "{name}"}}').returncode == 0
    lines = commands.run("worker", "shop:app", "--until-empty").stderr.splitlines()
    assert re.fullmatch(r"worker started: process \d+, owner [0-9a-f-]+", lines[0]), lines
    failures = [line for line in lines if line.startswith(("retry", "dead-letter"))]
    assert sorted(failures) == [
        "dead-letter: ship bad: PermanentError: no such address",
        "dead-letter: ship late: TimeoutError: no answer",
        "retry: ship late: TimeoutError: no answer; again in 1s",
    ]


def test_no_progress_says_none_of_it(commands: Commands) -> None:
    assert commands.run("send", "shop:app", "ship", '{"name": "bad"}').returncode == 0
    assert "dead-letter" not in commands.run("worker", "shop:app", "--until-empty", "--no-progress").stderr
