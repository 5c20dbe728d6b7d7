"""The project's own files agree with one another: the lock with pyproject.toml, the decisions with their index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tests.architecture.source import ROOT

PINNED = re.compile(r"([A-Za-z0-9._-]+)==[A-Za-z0-9.+!-]+")
DECISION_LINES_MAX = 60
DECISION_PARTS = ["Question", "Choice", "Alternatives", "What we gave up", "How we would notice it was wrong"]


def normal(requirement: str) -> str:
    """The name of a requirement the way package indexes compare names."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0]).lower()


def test_the_lock_is_plain_and_covers_what_is_asked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = [
        *project["project"]["dependencies"],
        *(each for extra in project["project"]["optional-dependencies"].values() for each in extra),
        *project["dependency-groups"]["dev"],
        *project["build-system"]["requires"],
        "pip",
    ]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not PINNED.fullmatch(line)] == []
    locked = {normal(line) for line in lines}
    assert {normal(each) for each in asked} - locked == {"onefold"}, "run `make lock`"


def test_ci_runs_what_the_readme_and_contributing_say() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    assert [line for line in ci.splitlines() if line.startswith("run make")] == [
        "run make test",
        "run make check",
    ]
    assert "make test" in (ROOT / "README.md").read_text()
    assert "make check" in (ROOT / "CONTRIBUTING.md").read_text()


def decisions() -> list[Path]:
    return sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def test_decisions_are_numbered_listed_and_one_page() -> None:
    assert [int(path.name[:4]) for path in decisions()] == list(range(1, len(decisions()) + 1))
    index = (ROOT / "docs" / "decisions" / "index.md").read_text()
    for path in decisions():
        text = path.read_text()
        assert f"({path.name})" in index, f"docs/decisions/index.md does not list {path.name}"
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == DECISION_PARTS, path.name
        assert len(text.splitlines()) <= DECISION_LINES_MAX, f"{path.name}: a decision is one page"
