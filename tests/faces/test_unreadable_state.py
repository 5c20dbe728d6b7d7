"""A value of the engine's state that this version cannot read stops what it is about, and nothing else."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from tests.faces.conftest import Shell

VALUES = [b"[]", b"\xff", b'{"suspects": [true], "name": 1, "until_ms": "x"}']
LOOKS = [("status", "shop:app"), ("stuck", "shop:app"), ("why", "h-1", "shop:app"), ("dlq", "list", "shop:app"),
         ("runs", "list", "shop:app"), ("map", "list", "shop:app"), ("queue", "list", "shop:app")]  # fmt: skip


def store(shell: Shell, name: str, value: bytes) -> None:
    with closing(sqlite3.connect(shell.folder / ".onefold" / "shop.db")) as file, file:
        file.execute("INSERT OR REPLACE INTO onefold_state (name, version, value) VALUES (?, 1, ?)", (name, value))


NAMES = ["breaker/book", "stopped/x", "stopped/orders/g", "run/nightly", "map/nightly", "open-run/x", "reconciled/x"]


@pytest.mark.parametrize("value", VALUES)
def test_looks_go_on(shell: Shell, value: bytes) -> None:
    shell.send("h-1")
    for name in NAMES:
        store(shell, name, value)
        for words in LOOKS:
            shell(*words)


def test_the_work_goes_on(shell: Shell) -> None:
    shell.send("h-1")
    for name in NAMES:
        store(shell, name, b"[]")
    shell.work()
    assert "completed" in shell("why", "h-1", "shop:app")


@pytest.mark.parametrize("value", VALUES)
def test_a_breaker_that_cannot_be_read_is_none(shell: Shell, value: bytes) -> None:
    shell.send("h-1")
    store(shell, "breaker/book", value)
    assert "was not paused" in shell("resume", "book", "shop:app")


@pytest.mark.parametrize(("words", "name"), [("runs", "run/nightly/1"), ("map", "map/nightly/1")])
def test_who_asks_for_what_cannot_be_read_is_shown_which_document_it_is(shell: Shell, words: str, name: str) -> None:
    shell.send("h-1")
    store(shell, name, b"[]")
    said = shell.fails(words, "show", "nightly/1", "shop:app")
    assert f"The document '{name}' in the engine's state cannot be read" in said
    assert "restore it" in said
    assert "defect" not in said


@pytest.mark.parametrize("field", ["by_ms", "at_ms", "wall_ms"])
def test_a_clock_row_beyond_all_time_counts_as_none(shell: Shell, field: str) -> None:
    shell.send("h-1")
    row = {"boot": '"x"', "by_ms": "1", "at_ms": "1", "wall_ms": "1", field: str(10**30)}
    store(shell, "onefold/clock", ("{" + ",".join(f'"{key}":{value}' for key, value in row.items()) + "}").encode())
    shell.send("h-2")
    shell.work()
    assert "completed" in shell("why", "h-2", "shop:app")
