"""Names in declarations that match nothing: a worker and a scheduler say so when they start."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import onefold
from onefold.admin.jobs import unmatched
from tests.faces.conftest import Shell


class Declined(Exception): ...


HERE = __name__
Decoding = json.JSONDecodeError


def warned(**classes: list[str]) -> list[str]:
    app = onefold.App("shop")
    app.job(app.queue("q"), key="{id}", name="pay", **classes)(takes)  # type: ignore[arg-type]
    return unmatched(app)


def takes(order: dict[str, str]) -> None: ...


@pytest.mark.parametrize(
    "named",
    [
        f"{HERE}.Declined",
        "json.JSONDecodeError",
        "json.decoder.JSONDecodeError",
        "ValueError",
        "antigravity.NotLoaded",
    ],
)
def test_what_matches_or_may_match_is_not_warned_of(named: str) -> None:
    assert warned(permanent=[named]) == []


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        (f"{HERE}.Declind", f"{HERE} has no exception class Declind. Did you mean 'Declined'?"),
        ("json.JSONDecodeErr", "json has no exception class JSONDecodeErr. Did you mean 'JSONDecodeError'?"),
        (f"{HERE}.Decoding", "it is json.decoder.JSONDecodeError; name that."),
        ("nosuchmodule.X", "there is no module nosuchmodule here."),
        ("json.nosuch.X", "there is no module json.nosuch here."),
    ],
)
def test_a_class_that_does_not_exist_is_warned_of(named: str, problem: str) -> None:
    assert warned(transient=[named]) == [f"transient= of pay has {named!r}, which matches no exception: {problem}"]


APP = """\
import onefold
app = onefold.App("n", url="sqlite:///n.db")
@app.schedule("rate(1 day)")
def t1(tick: onefold.Tick) -> None: ...
app.reconcile("t2", after="30m")
app.reconcile("t1", after="40m")
app.reconcile("t1/2026-01-01", after="50m")
"""
SAID = "warning: reconcile-t2 is for 't2', which is neither a schedule nor a map of the app n: it only checks a map run"


@pytest.mark.slow
def test_a_reconciliation_of_nothing_is_warned_of_at_the_start(shell: Shell) -> None:
    (shell.folder / "n.py").write_text(APP)
    for words in (["worker", "n:app", "--until-empty", "--no-progress"], ["scheduler", "n:app", "--once"]):
        done = subprocess.run(
            [sys.executable, "-m", "onefold", *words],
            cwd=shell.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stderr.count("warning: ") == 1
        assert SAID in done.stderr
        assert "under exactly this name. There are: t1." in done.stderr
