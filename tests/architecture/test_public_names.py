"""The exported names and their signatures are a promise: a change is made on purpose, and seen in review."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

import onefold
import onefold.aws
from onefold import MOVED
from tests.architecture import public_names
from tests.architecture.source import ROOT, modules, tree


def test_the_surface_is_as_frozen() -> None:
    frozen, found = public_names.FROZEN.read_text(), public_names.surface()
    difference = difflib.unified_diff(frozen.splitlines(), found.splitlines(), "frozen", "found", lineterm="", n=0)
    assert frozen == found, "\n".join(
        ["If this is meant, run: .venv/bin/python -m tests.architecture.public_names", *difference]
    )


@pytest.mark.parametrize("name", public_names.PUBLIC_MODULES)
def test_every_public_name_is_listed_once_found_and_documented(name: str) -> None:
    module = import_module(name)
    assert len(set(module.__all__)) == len(module.__all__)
    things = [getattr(module, each) for each in module.__all__]
    assert [each for each in things if (inspect.isclass(each) or inspect.isfunction(each)) and not each.__doc__] == []
    if name not in ("onefold", "onefold.errors"):
        with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
            _ = module.nothing


def test_people_start_with_about_twenty_names() -> None:
    assert len(onefold.__all__) <= 24
    assert set(onefold.__all__) <= set(dir(onefold)), "dir(onefold) and editors must show every exported name"


def test_import_onefold_finds_every_public_module() -> None:
    rooms = [name.partition(".")[2] for name in public_names.PUBLIC_MODULES if name != "onefold"]
    program = f"import onefold; [getattr(onefold, room) for room in {rooms}]; print(onefold.maps.ItemRetry().backoff)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "2.0\n"


def test_names_that_moved_are_found_with_a_warning_and_in_upgrading() -> None:
    upgrading = (ROOT / "UPGRADING.md").read_text()
    assert len(MOVED) == 22
    for name, module in MOVED.items():
        with pytest.warns(DeprecationWarning, match=f"^onefold.{name} is {module}.{name} now; "):
            assert getattr(onefold, name) is getattr(import_module(module), name)
        assert name not in onefold.__all__
        assert f"`{name}`" in upgrading, f"UPGRADING.md does not say where onefold.{name} is now"


def test_a_warning_about_a_name_that_moved_points_at_the_line_that_uses_it(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("import onefold\n\nretry = onefold.ItemRetry()\n")
    said = subprocess.run(
        [sys.executable, "-W", "default", "old.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stderr
    assert "old.py:3: DeprecationWarning: onefold.ItemRetry is onefold.maps.ItemRetry now" in said


def test_what_is_private_says_so() -> None:
    rooms = [name for name in modules() if name.count(".") == 1 and name not in public_names.PUBLIC_MODULES]
    assert {"onefold.runner", "onefold.record", "onefold.engines", "onefold.clock"} <= set(rooms)
    silent = [name for name in rooms if "Private" not in (ast.get_docstring(tree(modules()[name])) or "")]
    assert silent == [], "neither public nor said to be private"


def hinted() -> Iterator[tuple[str, Callable[..., object]]]:
    """Every public function and class, and what is public on each class."""
    for module in map(import_module, public_names.PUBLIC_MODULES):
        for name in module.__all__:
            thing = getattr(module, name)
            if callable(thing):
                yield f"{module.__name__}.{name}", thing
            for attribute in inspect.classify_class_attrs(thing) if inspect.isclass(thing) else ():
                held = attribute.object
                found = held.fget if isinstance(held, property) else getattr(thing, attribute.name)
                ours = attribute.defining_class.__module__.partition(".")[0] == "onefold"
                if ours and (attribute.name == "__init__" or not attribute.name.startswith("_")) and callable(found):
                    yield f"{module.__name__}.{name}.{attribute.name}", found


def test_type_hints_of_everything_public_can_be_resolved() -> None:
    """What frameworks for dependency injection and documentation ask for; annotations alone are text here."""
    names = []
    for name, thing in hinted():
        names.append(name)
        try:
            typing.get_type_hints(thing)
        except NameError as error:
            raise AssertionError(f"typing.get_type_hints({name}): {error}") from error
    assert {"onefold.App.map", "onefold.App.lambda_handler", "onefold.Context.send", "onefold.observe.LogSink"} <= set(
        names
    )
    assert typing.get_type_hints(onefold.App.bus)["return"] is onefold.events.Bus
    assert typing.get_type_hints(onefold.App.lambda_handler)["return"] is onefold.aws.LambdaHandler


@pytest.mark.parametrize("page", ["README.md", *(str(one.relative_to(ROOT)) for one in (ROOT / "docs").rglob("*.md"))])
def test_pages_import_public_names_only(page: str) -> None:
    """A reader who copies a block must not depend on what may change with any release."""
    text = (ROOT / page).read_text(encoding="utf-8")
    private = [
        line
        for block in re.findall(r"^```python.*?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
        if (found := re.match(r"(?:from|import) (onefold[\w.]*)(?: import (.+))?", line))
        and (found[1] not in public_names.PUBLIC_MODULES or not _are_public(found[1], found[2]))
    ]
    assert private == []


def _are_public(module: str, names: str | None) -> bool:
    return names is None or set(re.findall(r"\w+", names.partition("#")[0])) <= {
        *import_module(module).__all__,
        "onefold",
    }


def test_a_change_would_be_seen() -> None:
    class Planted:
        """A sample."""

        def hold(self, lease_ms: int = 5) -> bool:
            return lease_ms > 0

    Planted.__module__ = "onefold.planted"
    assert list(public_names.members(Planted)) == ["hold(self, lease_ms: int = 5) -> bool"]
