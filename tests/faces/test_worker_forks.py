"""A child that a handler forks is an ordinary process: what ends it by SIGTERM ends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faces.processes import Commands

pytestmark = pytest.mark.slow

SHOP = '''
import multiprocessing
import signal

import onefold

app = onefold.App("shop", url="sqlite:///shop.db")
fork = multiprocessing.get_context("fork")


@app.job(app.queue("orders"), key="{id}")
def book(order: dict[str, str]) -> list[object]:
    """End a child by SIGTERM, directly and as a pool does."""
    child = fork.Process(target=signal.pause)
    child.start()
    child.terminate()
    child.join(45)
    code = child.exitcode
    child.kill()
    with fork.Pool(2) as pool:
        found = pool.map(len, ["a", "bb"])
    return [code, found]
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_handler_can_end_its_children(commands: Commands, processes: str) -> None:
    assert commands.run("send", "shop:app", "book", '{"id": "a"}').returncode == 0
    words = () if processes == "0" else ("--processes", processes)
    worked = commands.run("worker", "shop:app", "--until-empty", *words)
    assert worked.returncode == 0, worked.stderr
    assert "[-15,[1,2]]" in commands.run("why", "a", "shop:app").stdout
