"""The examples run, each by its one command; an order and its job are there both or neither, wherever they are killed."""

from __future__ import annotations

import json
import os
import signal
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
OVER_HTTP = SHOP.format(refused=422, before="['waiting', 'waiting', 'absent']", after="['done', 'done', 'absent']")
SAID = {
    "django-shop": SHOP.format(refused=500, before="['READY', 'READY']", after="['SUCCESSFUL', 'SUCCESSFUL']"),
    "fastapi-orders": OVER_HTTP,
    "flask-orders": OVER_HTTP,
    "celery-side-by-side": """\
o-1 receipt-o-1
o-2 receipt-o-2
charged o-1
charged o-2
mailed o-1
mailed o-2
""",
    "powertools": """\
[{'charged': 'o-1'}, {'charged': 'o-1'}, {'charged': 'o-1'}] charged: ['o-1']
the late run: the bank did not answer
[{'charged': 'o-2'}] charged: ['o-1', 'o-2', 'o-2']
""",
}


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ONEFOLD", "PYTEST"))}
    return kept | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


def run(folder: Path, *words: str, **more: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment() | more, text=True, capture_output=True, check=False
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


def stories(folder: Path, name: str, what: str) -> list[dict[str, int]]:
    """What is there after each kill; the last was killed after the commit, or not at all."""
    said = run(ROOT, "-W", "ignore", "-m", "tests.examples.killed", name, what, str(folder))
    return [json.loads(line) for line in said.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["django", "fastapi"])
def test_a_request_that_is_killed_leaves_an_order_and_its_job_or_neither(tmp_path: Path, name: str) -> None:
    *killed, last = stories(tmp_path, name, "request")
    assert len(killed) > 8, "a request has fewer statements than it needs"
    assert {(story["status"], story["orders"], story["messages"]) for story in killed} == {(signal.SIGKILL, 0, 0)}
    assert (last["status"], last["orders"], last["messages"]) == (0, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["django", "fastapi"])
def test_a_worker_that_is_killed_leaves_a_parcel_and_its_record_or_neither_and_one_in_the_end(
    tmp_path: Path, name: str
) -> None:
    *killed, last = stories(tmp_path, name, "worker")
    assert len(killed) > 5, "a run has fewer statements than it needs"
    assert {(story["parcels"], story["records"], story["messages"]) for story in killed} == {(0, 0, 1)}
    assert (last["parcels"], last["records"], last["messages"]) == (1, 1, 0)
    more = {"SHOP_DATABASE": f"{tmp_path}/shop.db", "ORDERS_DATABASE": f"{tmp_path}/shop.db"}
    words = ["-m", "onefold", "worker", "orders:jobs"] if name == "fastapi" else ["manage.py", "onefold_worker"]
    folder = ROOT / "examples" / ("fastapi-orders" if name == "fastapi" else "django-shop")
    run(folder, *words, "--until-empty", "--no-progress", **more)
    query = "SELECT count(*), count(DISTINCT order_id) FROM shop_parcel"
    if name == "fastapi":
        query = "SELECT count(*), count(DISTINCT number) FROM parcels"
    with closing(sqlite3.connect(tmp_path / "shop.db")) as look:
        assert look.execute(query).fetchall() == [(len(killed) + 1, len(killed) + 1)]


@pytest.mark.slow
def test_the_tests_of_the_django_example_pass(tmp_path: Path) -> None:
    run(ROOT / "examples" / "django-shop", "manage.py", "test", SHOP_DATABASE=f"{tmp_path}/shop.db")
