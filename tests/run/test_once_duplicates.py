"""A duplicate call on a file is answered from a snapshot: it waits for no writer, and is held to the same checks."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import onefold
from onefold import errors


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "records.db"


def guarded(place: Path) -> tuple[Callable[[str, int], int], list[str]]:
    made: list[str] = []

    @onefold.once(key="{order}", name="charge", store=onefold.store(f"sqlite:///{place}"))
    def charge(order: str, pence: int) -> int:
        made.append(order)
        return pence

    return charge, made


def test_a_duplicate_is_answered_while_another_process_writes(place: Path) -> None:
    charge, made = guarded(place)
    assert charge("o-1", 5) == 5
    with closing(sqlite3.connect(place, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert charge("o-1", 5) == 5
        other.execute("ROLLBACK")
    assert made == ["o-1"]


def test_other_arguments_are_a_conflict_all_the_same(place: Path) -> None:
    charge, made = guarded(place)
    assert charge("o-1", 5) == 5
    with pytest.raises(errors.ConflictError):
        charge("o-1", 6)
    assert made == ["o-1"]


def test_a_record_that_expires_is_no_answer(place: Path) -> None:
    charge, made = guarded(place)
    assert charge("o-1", 5) == 5
    with closing(sqlite3.connect(place, isolation_level=None)) as other:
        other.execute("UPDATE onefold_record SET expires_at_ms = 1")
    assert charge("o-1", 6) == 6
    assert made == ["o-1", "o-1"]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_removed_answers_nothing(place: Path, replaced: bool) -> None:
    charge, made = guarded(place)
    assert charge("o-1", 5) == 5
    for name in (place, Path(f"{place}-wal"), Path(f"{place}-shm")):
        name.unlink()
    if replaced:
        guarded(place)[0]("o-2", 7)
    with pytest.raises(errors.StorageError):
        charge("o-1", 5)
    assert made == ["o-1"]
