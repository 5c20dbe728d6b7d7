"""Files that another program has changed: refused, or named as damaged, and never run or called a defect of onefold."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

import onefold
from onefold.cli import main
from onefold.errors import StorageError

ENDLESS = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT "


def made(folder: Path) -> Path:
    path = folder / "made.db"
    app = onefold.App("made", url=f"sqlite:///{path}")
    app.job(app.queue("q"), key="{id}", name="run")(run).send({"id": "a"})
    app.close()
    return path


def run(order: dict[str, str]) -> None: ...


def change(path: Path, by: Callable[[sqlite3.Connection], object]) -> None:
    connection = sqlite3.connect(path)
    with connection:
        by(connection)
    connection.close()


def as_view(table: str) -> Callable[[sqlite3.Connection], object]:
    def by(connection: sqlite3.Connection) -> None:
        names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        connection.execute("PRAGMA foreign_keys=OFF")
        connection.execute(f"DROP TABLE {table}")
        connection.execute(f"CREATE VIEW {table} AS {ENDLESS}{', '.join(f'x AS {name}' for name in names)} FROM r")

    return by


def opened(path: Path) -> None:
    app = onefold.App("made", url=f"sqlite:///{path}")
    try:
        app.job(app.queue("q"), key="{id}", name="run")(run).send({"id": "b"})
    finally:
        app.close()


@pytest.mark.parametrize("table", ["onefold_record", "onefold_queue", "onefold_state", "onefold_completed"])
def test_a_view_in_the_place_of_a_table_is_refused(tmp_path: Path, table: str) -> None:
    path = made(tmp_path)
    change(path, as_view(table))
    with pytest.raises(StorageError, match=f"has a view '{table}', which is not onefold's"):
        opened(path)


def test_a_trigger_on_a_table_of_ours_is_refused_and_one_of_a_jobs_own_is_not(tmp_path: Path) -> None:
    path = made(tmp_path)
    change(path, lambda file: file.execute("CREATE TABLE mine (id)"))
    change(path, lambda file: file.execute("CREATE VIEW ours AS SELECT id FROM mine"))
    change(path, lambda file: file.execute("CREATE TRIGGER own AFTER INSERT ON mine BEGIN DELETE FROM mine; END"))
    opened(path)
    change(path, lambda file: file.execute("CREATE TRIGGER t AFTER INSERT ON onefold_message BEGIN SELECT 1; END"))
    with pytest.raises(StorageError, match=r"has a trigger 't' on onefold_message, which is not onefold's"):
        opened(path)


@pytest.mark.parametrize(
    ("table", "column", "value", "words"),
    [
        ("onefold_queue", "settings", b"\0", ("status",)),
        ("onefold_queue", "settings", 7, ("queue", "peek", "q")),
        ("onefold_message", "sent_at_ms", "x", ("why", "a")),
        ("onefold_waiting", "sent_at_ms", "x", ("status",)),
    ],
)
def test_a_value_that_cannot_be_read_is_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str, column: str, value: object, words: tuple[str, ...]
) -> None:
    path = made(tmp_path)
    change(path, lambda file: file.execute(f"UPDATE {table} SET {column} = ?", (value,)))
    assert main.run([*words, "--url", f"sqlite:///{path}"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: The database holds a value that cannot be read: ")
    assert "It is damaged, or another program has written into it." in said


def test_an_instant_beyond_all_dates_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = made(tmp_path)
    change(path, lambda file: file.execute("UPDATE onefold_message SET sent_at_ms = ?", (2**63 - 1,)))
    assert main.run(["why", "a", "--url", f"sqlite:///{path}"]) == 0
    assert "sent to q" in capsys.readouterr().out
