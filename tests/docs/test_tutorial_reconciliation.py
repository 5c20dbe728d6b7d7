"""The tutorial about reconciliation, as a reader would: its file, its commands in their order, its test."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from onefold.admin.reconcile import MISSING_MAX
from onefold.reconcile.findings import ReconcileOutcome
from onefold.reconcile.reconciler import LOOKS_MAX
from tests.docs.test_pages import ROOT, environment, shell

PAGE = "docs/tutorial-reconciliation.md"
_BLOCK = re.compile(r'^```(python|sh)(?: title="([^"]+)"| (fails))?\n(.*?)^```', re.MULTILINE | re.DOTALL)


def run(script: str, folder: Path, *, fails: bool) -> str:
    """A block; one that is marked ends with exit code 1, as the page says."""
    if not fails:
        return shell(script, folder)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder, env=environment(), text=True, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    said: list[str] = []
    for language, title, fails, text in _BLOCK.findall((ROOT / PAGE).read_text(encoding="utf-8")):
        if title:
            (tmp_path / title).write_text(text, encoding="utf-8")
        elif language == "sh":
            said.append(" ".join(run(text, tmp_path, fails=bool(fails)).split()))
    dispatched, purged, lost, planned, sent, story, night, mended, doubled, twice, tested = said
    assert "ended: 1 tick sent" in dispatched
    assert "4 messages" in purged
    assert "NOT AS IT SHOULD BE" in lost
    assert "4 dispatched: 4 missing" in lost
    assert "4 messages would be sent again. Nothing was sent." in planned
    assert "4 messages sent again, each under its own key." in sent
    assert "resent" in story
    assert "reason given: queue was purged" in story
    assert re.search(r"fired \S+ \S+ UTC, once", night)
    assert "dispatched 4 operations once 3 took effect once otherwise 1 dead-lettered" in night
    for told in ("dead", "PermanentError:", "statements-dead", "accounts", "onefold dlq show"):
        assert told in night
    assert "everything that was dispatched is done, and exists once" in mended
    assert doubled == ""
    assert "Your own check expected 4 keys and found 5: 1 too many." in twice
    assert re.search(r"/bob: your own check found 2, expected 1", twice)
    assert "1 passed" in tested


def test_the_numbers_are_those_of_the_code() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert f"at most {LOOKS_MAX} times in all" in re.sub(r"\s+", " ", text)
    assert f"{MISSING_MAX:,} missing operations at a time" in text
    for place in ("running", "waiting", "stuck", "dead", "held", "missing"):
        assert place in ReconcileOutcome.__struct_fields__
        assert f"*{place}*" in text


HEARING = """
from pathlib import Path

import onefold


class Hearing:
    def emit(self, event):
        if event.name.startswith("reconcile"):
            with Path("heard.txt").open("a") as file:
                file.write(event.name)


app = onefold.App("nightly", sinks=[Hearing()])


@app.schedule("rate(1 day)")
def tidy(tick: onefold.Tick) -> None:
    pass


app.reconcile(tidy, after="1s")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("option", "logged"), [("", 1), ("--processes 1", 0)])
def test_looks_in_child_processes_are_heard_by_sinks_and_not_by_the_log(
    tmp_path: Path, option: str, logged: int
) -> None:
    (tmp_path / "nightly.py").write_text(HEARING, encoding="utf-8")
    shell("onefold scheduler nightly:app --once", tmp_path)
    said = shell(f"onefold worker nightly:app --until-empty --no-progress {option} --log json 2>&1", tmp_path)
    assert said.count('"event":"reconciled"') == logged
    assert (tmp_path / "heard.txt").read_text(encoding="utf-8") == "reconciled"
