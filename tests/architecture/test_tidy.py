"""Sizes, words and loose ends that a reviewer would otherwise have to look for.

Docstrings of public functions are ruff's (rules D), layers are test_layers.py's.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, code_lines, functions, mentions, modules, reached, tree

FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 600
MODULE_DOCSTRING_LINES_MIN = 3

UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")
SLEEP = re.compile(r"\bsleep\(")
WRITTEN = {".cfg", ".md", ".py", ".sql", ".toml", ".txt", ".yml", ""}


def written_by_people() -> list[Path]:
    """Every text file of the repository that people wrote, but for this one, which names the words it looks for."""
    found = [path for path in ROOT.iterdir() if path.name != "LICENSE"]
    for part in (".ci", "benchmarks", "docs", "src", "tests"):
        found += (ROOT / part).rglob("*")
    return sorted(path for path in found if path.is_file() and path.suffix in WRITTEN and path != Path(__file__))


def test_there_is_something_to_look_at() -> None:
    assert {"onefold.errors", "onefold.contracts", "onefold.contracts.queue"} <= modules().keys()
    assert ROOT / "Makefile" in written_by_people()


def test_modules_say_what_lives_in_them() -> None:
    short = [
        name
        for name, path in modules().items()
        if path.name != "__init__.py"
        and len((ast.get_docstring(tree(path)) or "").splitlines()) < MODULE_DOCSTRING_LINES_MIN
    ]
    assert not short, f"module docstrings of at least {MODULE_DOCSTRING_LINES_MIN} lines are missing in {short}"


def test_modules_are_short() -> None:
    lines = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    long = {name: count for name, count in lines.items() if count > MODULE_LINES_MAX}
    assert not long, f"split by noun: {long}"


def test_functions_are_short() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}: {code_lines(function)} lines"
        for path in modules().values()
        for function in functions(path)
        if code_lines(function) > FUNCTION_LINES_MAX
    ]
    assert not long, f"more than {FUNCTION_LINES_MAX} lines without the docstring: {long}"


def test_nothing_is_left_for_later() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in written_by_people()
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if UNFINISHED.search(line)
    ]
    assert not found, "\n".join(found)


def test_no_test_sleeps() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path != Path(__file__) and path.name != "test_layers.py"  # its samples show what the linter refuses
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if SLEEP.search(line)
    ]
    assert not found, "wait for an event, or advance a ManualClock:\n" + "\n".join(found)


def test_no_module_is_dead() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"].values()
    roots = {"onefold", *(script.partition(":")[0] for script in scripts)}
    roots |= {name for name in modules() if name.endswith(".__main__")}
    # Django loads the modules of an application by their names.
    roots |= {name for name in modules() if name.startswith("onefold.django")}
    # onefold.testing is for the tests of others and for ours; nothing else may live by its tests alone.
    for path in (ROOT / "tests").rglob("*.py"):
        roots |= {name for name in mentions(path, modules()) if name.startswith("onefold.testing.")}
    dead = sorted(modules().keys() - reached(roots, modules()))
    assert not dead, f"nothing leads to {dead} from {sorted(roots)}"


@pytest.mark.parametrize(
    ("text", "mentioned"),
    [
        ("import onefold.app", {"onefold.app"}),
        ("from onefold import app, errors", {"onefold.app", "onefold.errors"}),
        ("def f():\n    from onefold.cli.commands.dlq import show", {"onefold.cli.commands.dlq"}),
        ("TABLE = {'App': 'onefold.app'}", {"onefold.app"}),
        ("main = 'onefold.cli.commands.why:main'", {"onefold.cli.commands.why"}),
        (
            "import_module(f'onefold.cli.commands.{name}')",
            {"onefold.cli.commands.dlq", "onefold.cli.commands.why"},
        ),
        ("name = f'onefold.{x}'", set()),
        ("'''Mentions app and onefold-app in prose.'''", set()),
    ],
)
def test_mentions_are_found(tmp_path: Path, text: str, mentioned: set[str]) -> None:
    known = {"onefold.app", "onefold.errors", "onefold.cli.commands.dlq", "onefold.cli.commands.why"}
    (tmp_path / "sample.py").write_text(text)
    assert mentions(tmp_path / "sample.py", known) == mentioned


def test_dead_modules_that_keep_each_other_are_found(tmp_path: Path) -> None:
    texts = {
        "onefold": "from onefold import a",
        "onefold.a": "",
        "onefold.b": "import onefold.c",
        "onefold.c": "import onefold.b",
    }
    files = {}
    for name, text in texts.items():
        files[name] = tmp_path / f"{name}.py"
        files[name].write_text(text)
    assert reached({"onefold"}, files) == {"onefold", "onefold.a"}
