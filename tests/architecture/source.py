"""The package's own text, read once: its modules, and which of them mention which."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"

Function = ast.FunctionDef | ast.AsyncFunctionDef

_DOTTED = re.compile(r"onefold(?:\.\w+)*\.?")


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name; a package stands for its __init__."""
    found = {}
    for path in sorted((SRC / "onefold").rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of one file."""
    return ast.parse(path.read_text(), filename=str(path))


def functions(path: Path) -> Iterator[Function]:
    """Every function of one file, methods and inner ones included."""
    return (node for node in ast.walk(tree(path)) if isinstance(node, Function))


def code_lines(function: Function) -> int:
    """Lines from `def` to the end, the docstring not counted."""
    first = function.body[0]
    assert function.end_lineno is not None
    assert first.end_lineno is not None
    docstring = first.end_lineno - first.lineno + 1 if ast.get_docstring(function) is not None else 0
    return function.end_lineno - function.lineno + 1 - docstring


def mentions(path: Path, known: Iterable[str]) -> set[str]:
    """The modules of `known` that one file imports or names in a string.

    A string counts because what is loaded at first use is named in tables (`"onefold.app"`, `"onefold.cli.main:main"`)
    or put together (`f"onefold.cli.commands.{name}"`, which mentions every module of that package).
    """
    names: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = _DOTTED.match(node.value)
            names.update([match.group()] if match else [])
    families = tuple(name for name in names if name.endswith(".") and name != "onefold.")
    return {name for name in known if name in names or name.startswith(families)}


def reached(roots: Iterable[str], files: dict[str, Path]) -> set[str]:
    """Every module that `roots` lead to; whoever loads a module loads the packages above it too."""
    seen: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in seen or name not in files:
            continue
        seen.add(name)
        waiting.extend(mentions(files[name], files))
        waiting.append(name.rpartition(".")[0])
    return seen
