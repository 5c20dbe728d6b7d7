"""The examples run, each by its one command; an order and its job are there both or neither, wherever they are killed."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.docs.test_pages import ROOT

SHOP = """\
o-1 202
o-2 202
o-3 {refused}
before the worker: {before}
after it: {after}
orders: ['o-1', 'o-2'] parcels: 2
"""
SAID = {
    "django-shop": SHOP.format(refused=500, before="['READY', 'READY']", after="['SUCCESSFUL', 'SUCCESSFUL']"),
    "fastapi-orders": SHOP.format(
        refused=422, before="['waiting', 'waiting', 'absent']", after="['done', 'done', 'absent']"
    ),
}


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ONEFOLD", "PYTEST"))}
    return kept | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment(), text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", SAID)
def test_an_example_runs_from_end_to_end(tmp_path: Path, name: str) -> None:
    assert run(tmp_path, str(ROOT / "examples" / name / "run.py")) == SAID[name]


def test_each_example_has_its_command_its_page_and_its_test() -> None:
    makefile, names = (
        (ROOT / "Makefile").read_text(),
        {one.name for one in (ROOT / "examples").iterdir() if one.is_dir()},
    )
    assert names == set(SAID)
    for name in names:
        readme = (ROOT / "examples" / name / "README.md").read_text()
        assert f"examples/{name}/run.py" in makefile
        command = next(line for line in readme.splitlines() if line.startswith("make "))
        assert f"\n{command.removeprefix('make ')}: " in makefile
        page = readme.rpartition("`docs/")[2].partition("`")[0]
        assert f"examples/{name}" in (ROOT / "docs" / page).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["django", "fastapi"])
def test_killed_anywhere_it_leaves_an_order_and_its_job_or_neither(tmp_path: Path, name: str) -> None:
    said = run(ROOT, "-W", "ignore", "-m", "tests.examples.killed", name, str(tmp_path))
    *killed, last = [json.loads(line) for line in said.splitlines()]
    assert len(killed) > 8, "a request has fewer statements than it needs"
    assert all(story["died"] and (story["orders"], story["messages"]) == (0, 0) for story in killed), killed
    assert last == {"status": 0, "died": False, "orders": 1, "messages": 1}
    work(tmp_path, name)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as look:
        (parcels,) = look.execute(f"SELECT count(*) FROM {'shop_parcel' if name == 'django' else 'parcels'}").fetchone()
    assert parcels == 1


def work(folder: Path, name: str) -> None:
    """A worker, as the example's page says."""
    more = {"SHOP_DATABASE": f"{folder}/shop.db", "ORDERS_DATABASE": f"{folder}/shop.db"}
    words = ["-m", "onefold", "worker", "orders:jobs"] if name == "fastapi" else ["manage.py", "onefold_worker"]
    done = subprocess.run(
        [sys.executable, *words, "--until-empty", "--no-progress"],
        env=environment() | more, check=False, capture_output=True, text=True,
        cwd=ROOT / "examples" / ("fastapi-orders" if name == "fastapi" else "django-shop"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
