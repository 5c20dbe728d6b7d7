"""The schema of the file and its versions: SQL files, applied in order, once, in one transaction.

`sql/NNNN_*.sql` are the steps; the file's `user_version` is the number of steps applied, and its `application_id` marks
it as onefold's. A file of a newer onefold, or of another program, is refused before anything is changed. An adopted
file of another program keeps both numbers, which belong to that program, and has the table `onefold_adopted` instead. A
step that has been released never changes. Invariant: a migration is applied completely or not at all.
"""

from __future__ import annotations

import re
import sqlite3
from functools import cache
from pathlib import Path
from typing import Final

from onefold import errors
from onefold.engines.sqlite.connection import identity, is_adopted, refuse_foreign
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.file import APPLICATION_ID

_STEPS: Final = Path(__file__).parent / "sql"
_ADOPT: Final = "CREATE TABLE onefold_adopted (one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL)"


def migrate(engine: Database, *, adopts: bool = False) -> None:
    """Bring the file up to this version's schema; do nothing if it already has it.

    Args:
        adopts: add onefold's tables to another program's file instead of refusing it.

    Raises:
        StorageError: the file belongs to another program, or to a newer onefold.
        StorageBusy: another process holds the file.
    """
    steps = sorted(_STEPS.glob("[0-9]*.sql"))
    application, version, tables = engine.read(identity)
    if application == APPLICATION_ID:
        engine.read(lambda connection: _refuse_altered(engine.path, connection))
    if application == APPLICATION_ID and version == len(steps):
        return
    refuse_foreign(engine.path, application, version, tables, adopts=adopts)
    if application == APPLICATION_ID and version > len(steps):
        raise errors.StorageError(
            f"{engine.path} has schema version {version}; this onefold knows versions up to {len(steps)}.",
            meaning="A newer onefold has used the file. Nothing was changed.",
            todo="Upgrade onefold here, or use the version that the other processes on this file use.",
        )
    engine.write(lambda connection: _apply(connection, steps, adopts=adopts))


@cache
def own_tables() -> frozenset[str]:
    """Names of all tables that are onefold's own, whatever the file's version."""
    text = "".join(step.read_text(encoding="utf-8") for step in _STEPS.glob("[0-9]*.sql"))
    return frozenset(re.findall(r"^CREATE TABLE (\w+)", text, re.MULTILINE)) | {"onefold_adopted"}


def _refuse_altered(path: str, connection: sqlite3.Connection) -> None:
    """Refuse a file in which one of our tables was made a view or has a trigger, whose statements would run as ours.

    Transactional jobs may have their own tables, views and triggers.

    Raises:
        StorageError: there is such a view or trigger.
    """
    found = connection.execute("SELECT type, name, tbl_name FROM sqlite_master WHERE type IN ('view', 'trigger')")
    for kind, name, table in found.fetchall():
        if table in own_tables():
            raise errors.StorageError(
                f"{path} has a {kind} {name!r:.100}"
                + (f" on {table}" if kind == "trigger" else "")
                + ", which is not onefold's.",
                meaning="Another program has changed the file. Nothing in it was read or changed.",
                todo="Restore a copy, or remove what was added.",
            )


def _apply(connection: sqlite3.Connection, steps: list[Path], *, adopts: bool) -> None:
    # Read again inside the transaction: another process may have migrated in between.
    application, done, _ = identity(connection)
    if adopts and application != APPLICATION_ID:
        connection.execute(_ADOPT)
        connection.execute("INSERT INTO onefold_adopted VALUES (1, 0)")
        done = 0
    for step in steps[done:]:
        for statement in _statements(step.read_text(encoding="utf-8")):
            connection.execute(statement)
    if is_adopted(connection):
        connection.execute("UPDATE onefold_adopted SET version = ?", (len(steps),))
        return
    connection.execute(f"PRAGMA user_version={len(steps)}")
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")


def _statements(script: str) -> list[str]:
    """The statements of a script, one by one: `executescript` would commit the open transaction."""
    statements, buffer = [], ""
    for line in script.splitlines(keepends=True):
        buffer += line
        if sqlite3.complete_statement(buffer):
            statements.append(buffer)
            buffer = ""
    return statements
