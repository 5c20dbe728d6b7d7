"""Tables lose nothing: every head and every cell of each command's table is there at 60 and 80 columns and in a pipe."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import onefold
from onefold.cli import render
from onefold.cli.render import Column
from onefold.observe.timeline import Line

COMMANDS = Path(onefold.__file__).parent / "cli"
ID = "9f86d081884c7d65-12345"  # as the embedded engine makes them
UUID = "3f0c9b52-7a0e-4a63-9a0d-5c7b7f1d2e44"  # as SQS makes them


def drawn(columns: list[Column], rows: list[list[str]], width: int | None) -> str:
    """What a table looks like at a width; None: in a pipe, where nobody says one."""
    out = io.StringIO()
    console = render.console()
    console.file = out
    if width is not None:
        console.width = width
    console.print(render.table(columns, rows))
    return out.getvalue()


def squeezed(text: str) -> str:
    return "".join(text.split())


def declared_tables() -> Iterator[tuple[str, list[Column]]]:
    """The columns of every table that a command draws, read from its source."""
    for path in sorted(COMMANDS.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and path.name != "render.py":
                found = list(columns_in(function))
                if len(found) > 1:
                    yield f"{path.stem}.{function.name}", found


def columns_in(function: ast.FunctionDef) -> Iterator[Column]:
    for node in ast.walk(function):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Column"):
            continue
        settings = {
            one.arg: one.value.value for one in node.keywords if one.arg and isinstance(one.value, ast.Constant)
        }
        heads = [node.args[0].value] if isinstance(node.args[0], ast.Constant) else heads_of(function, node)
        for head in heads:
            yield Column(head, right=settings.get("right", False), folds=settings.get("folds", False))


def heads_of(function: ast.FunctionDef, call: ast.Call) -> list[str]:
    """The heads of `[Column(head) for head in (...)]`."""
    for node in ast.walk(function):
        if isinstance(node, ast.GeneratorExp | ast.ListComp) and node.elt is call:
            over = node.generators[0].iter
            if isinstance(over, ast.Tuple):
                return [one.value for one in over.elts if isinstance(one, ast.Constant)]
    return ["head"]


TABLES = dict(declared_tables())


def test_the_tables_of_the_commands_are_found() -> None:
    assert len(TABLES) >= 15
    assert [column.head for column in TABLES["queue._draw_tasks"]][:3] == ["handle", "from", "to"]


@pytest.mark.usefixtures("_fresh_console")
@pytest.mark.parametrize("width", [60, 80, None])
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("filled", ["short", "ids", "long"])
def test_no_column_is_lost(name: str, width: int | None, filled: str) -> None:
    columns = TABLES[name]
    cells = {"short": "7", "ids": ID, "long": f"{UUID} {UUID}"}
    rows = [
        [f"{chr(65 + place)}{row}{'1,234' if one.right else cells[filled]}" for place, one in enumerate(columns)]
        for row in range(3)
    ]
    text = drawn(columns, rows, width)
    assert width is None or max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    if width is None:
        heads, *lines = text.splitlines()
        assert all(column.head in heads for column in columns)
        assert all(cell in line for row, line in zip(rows, lines, strict=True) for cell in row)
    else:
        check(text, columns, rows)


def check(text: str, columns: list[Column], rows: list[list[str]]) -> None:
    """Every head and every cell can be read, folded or not."""
    if "─" not in text:  # blocks: each cell in its own lines
        flat = squeezed(text)
        for row in rows:
            for column, cell in zip(columns, row, strict=True):
                assert squeezed(f"{column.head}: {cell}" if column.head else cell) in flat
        return
    lines = text.split("\n")
    rule = next(place for place, line in enumerate(lines) if "─" in line)
    # Folded text lies in several lines, with other columns between: that no letter is lost says that all is there.
    heads, body = squeezed("".join(lines[:rule])), squeezed("".join(lines[rule + 1 :]))
    assert sorted(heads) == sorted(squeezed("".join(column.head for column in columns)))
    assert sorted(body) == sorted(squeezed("".join(cell for row in rows for cell in row)))


texts = st.text("abcXYZ019-", min_size=1, max_size=60)


@given(st.lists(st.tuples(texts, texts, st.booleans(), st.booleans()), min_size=1, max_size=12), st.integers(20, 120))
def test_no_letter_is_lost_at_any_width(made: list[tuple[str, str, bool, bool]], width: int) -> None:
    columns = [Column(head, right=right, folds=folds) for head, _, right, folds in made]
    text = drawn(columns, [[cell for _, cell, _, _ in made]], width)
    shown = sorted(letter for letter in squeezed(text) if letter != "─")
    expected = sorted(squeezed("".join(head + cell for head, cell, _, _ in made)))
    colons = [":"] * len(columns)
    assert shown in (expected, sorted([*expected, *colons]))
    assert max(len(line) for line in text.splitlines()) <= width


LONG_KEY = "customer-4711/parcel-2026-11-22/0000000000000000000001"


@pytest.fixture
def _fresh_console(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No width that another test has set, and none from outside."""
    monkeypatch.delenv("COLUMNS", raising=False)
    render.console.cache_clear()
    yield
    render.console.cache_clear()


@pytest.mark.usefixtures("_fresh_console")
@pytest.mark.parametrize("width", [60, 80, None])
def test_a_key_is_never_broken(width: int | None) -> None:
    columns = [Column("message"), *(Column(head, folds=True) for head in ("key", "job", "error"))]
    row = [UUID, LONG_KEY, "book_international_parcel_with_customs_declaration", "ValueError"]
    text = drawn(columns, [row, row], width)
    assert all(text.count(cell) == 2 for cell in row)
    if width is None:
        (first, second) = [line for line in text.splitlines() if LONG_KEY in line]
        assert first == second
        assert all(cell in first for cell in row), "in a pipe a row is a line"
        assert not any(line.endswith("  ") for line in text.splitlines())


@pytest.mark.parametrize("is_terminal", [True, False])
def test_steps_hang_under_their_times_on_a_terminal_and_are_lines_in_a_pipe(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    console = Console(file=out, width=60, force_terminal=is_terminal, color_system=None)
    monkeypatch.setattr(render, "console", lambda: console)
    text = "run 1 failed: PermanentError: account closed (at payments.py:27 in pay_out); moved to the dead-letter queue"
    step = Line(
        at_ms=0,
        at="",
        event="dead-letter",
        text=text,
        rule="attempt 1 of 5",
        message_id=None,
        actor=None,
        source="ledger",
    )
    render.draw_steps([step])
    _, first, *rest = out.getvalue().splitlines()
    assert first.startswith("  ")
    assert "dead-letter" in first
    if is_terminal:
        assert len(rest) > 2
        assert all(line.startswith(" " * 30) and len(line) <= 60 for line in rest)
    else:
        assert first.endswith(text)
        assert len(rest) == 1
