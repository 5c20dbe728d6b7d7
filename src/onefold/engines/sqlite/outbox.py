"""The outbox tables in the program's own SQLite file: writing to them in its transaction, and reading for a relay.

For a program whose tables are in a different file than the engine's. Only `SQL`, which a person runs, makes the tables.
Never here: queues. Invariant: only the program ends its transaction.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from onefold import errors
from onefold.contracts.outbox import VERSION, Backlog, OutboxRow, RowId
from onefold.engines.sqlite import callers
from onefold.engines.sqlite.connection import data_version
from onefold.engines.sqlite.file import inode, path_of
from onefold.engines.sqlite.loan import Loan
from onefold.engines.sqlite.refusals import translate
from onefold.interrupts import ignored

_NOW_MS: Final = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
SQL: Final = f"""\
CREATE TABLE IF NOT EXISTS onefold_outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    token TEXT NOT NULL DEFAULT (lower(hex(randomblob(16)))),
    app TEXT NOT NULL,
    queue TEXT NOT NULL,
    message TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL DEFAULT ({_NOW_MS}),
    refused TEXT
);
CREATE INDEX IF NOT EXISTS onefold_outbox_waiting ON onefold_outbox (app, id) WHERE refused IS NULL;
CREATE TABLE IF NOT EXISTS onefold_outbox_version (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL,
    token TEXT NOT NULL
);
INSERT OR IGNORE INTO onefold_outbox_version VALUES (1, 1, lower(hex(randomblob(16))));
"""
_PUT: Final = "INSERT INTO onefold_outbox (app, queue, message) VALUES (?, ?, ?)"
_BUSY_S: Final = 10.0
_LOOK_MS: Final = 200


def takes(connection: sqlite3.Connection, engine_url: str) -> bool:
    """Whether the connection's file has outbox tables and is not the engine's own file."""
    query = "SELECT count(*) FROM main.sqlite_master WHERE name IN ('onefold_outbox', 'onefold_outbox_version')"
    scheme, _, rest = engine_url.partition("://")
    if isinstance(connection, Loan):  # of a run that has ended; the engine refuses it
        return False
    with callers.plain(connection):
        try:
            file = callers.file_of(connection)
            if file is None or (scheme == "sqlite" and inode(file) == inode(path_of(engine_url, rest))):
                return False
            return bool(connection.execute(query).fetchone()[0] == 2)
        except sqlite3.Error as error:
            raise callers.unusable(error) from error


def is_in(connection: sqlite3.Connection, outbox_url: str) -> tuple[bool, str]:
    """Whether the connection's file is the one with the outbox of that URL; and the connection's file."""
    with callers.plain(connection):
        file = callers.file_of(connection) or ""
    found = inode(file)
    return found is not None and found == inode(path_of(outbox_url, outbox_url.partition("://")[2])), file


def put(connection: sqlite3.Connection, app: str, messages: Sequence[tuple[str, str]]) -> None:
    """Write messages, in order, inside the transaction that is open on the connection; all or none.

    Args:
        messages: for each, its queue and the `OutboxMessage` as JSON.

    Raises:
        UsageError: the connection is in autocommit mode without a transaction.
        StorageError: the tables are another version's.
        StorageBusy: another process holds the file.
    """
    with callers.plain(connection):
        file = callers.file_of(connection) or ""
        callers.begin_on(connection)
        try:
            connection.execute("SAVEPOINT onefold_outbox")
            try:
                connection.executemany(_PUT, [(app, *one) for one in messages])
                _check_version(connection, file)
            except BaseException:
                with ignored(sqlite3.Error):  # SQLite itself has rolled back everything
                    connection.execute("ROLLBACK TO onefold_outbox")
                    connection.execute("RELEASE onefold_outbox")
                raise
            connection.execute("RELEASE onefold_outbox")
        except sqlite3.Error as error:
            raise translate(error, file) from error


def _check_version(connection: sqlite3.Connection, file: str) -> None:
    if connection.execute("SELECT version FROM onefold_outbox_version").fetchone() != (VERSION,):
        raise other_version(file)


def other_version(file: str) -> errors.StorageError:
    """The error when the tables are another version's."""
    return errors.StorageError(
        f"The outbox tables of {file} do not have version {VERSION}, which this onefold uses.",
        meaning="Nothing was sent.",
        todo="Use the version of onefold that made them, or run: onefold outbox create URL",
    )


class SqliteOutbox:
    """The OutboxTable contract on one file.

    Args:
        path: the file, which must exist.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._link: sqlite3.Connection | None = None
        self._token: str | None = None
        self._seen = 0

    def create(self) -> None:
        """Create the tables that do not exist."""
        for statement in SQL.split(";\n"):
            if statement.strip():
                self._ask(statement)
        self._token = None

    @property
    def token(self) -> str:
        """See `OutboxTable.token`."""
        if self._token is None:
            names = self._ask("SELECT name FROM sqlite_master WHERE name = 'onefold_outbox_version'")
            if not names:
                raise errors.StorageError(
                    f"{self._path} has no table onefold_outbox.",
                    meaning="Nothing waits to be sent from it.",
                    todo="Create it once: onefold outbox create URL",
                )
            found = self._ask("SELECT version, token FROM onefold_outbox_version")
            if not found or found[0][0] != VERSION:
                raise other_version(self._path)
            self._token = found[0][1]
        return self._token

    def waiting(self, app: str, queues: Collection[str], limit: int) -> list[OutboxRow]:
        """See `OutboxTable.waiting`."""
        if self._link is not None:
            self._seen = data_version(self._link)  # before reading, so that nothing is missed
        marks = ", ".join("?" * len(queues))
        rows = self._ask(
            "SELECT id, token, queue, message FROM onefold_outbox "
            f"WHERE app = ? AND refused IS NULL AND queue IN ({marks}) ORDER BY id LIMIT ?",
            (app, *queues, limit),
        )
        return [OutboxRow(RowId(number, token), queue, message) for number, token, queue, message in rows]

    def remove(self, ids: Sequence[RowId]) -> None:
        """See `OutboxTable.remove`."""
        for start in range(0, len(ids), 500):
            numbers, tokens = zip(*ids[start : start + 500], strict=True)
            marks = ", ".join("?" * len(numbers))
            self._ask(f"DELETE FROM onefold_outbox WHERE id IN ({marks}) AND token IN ({marks})", (*numbers, *tokens))

    def refuse(self, row: RowId, why: str) -> None:
        """See `OutboxTable.refuse`."""
        self._ask("UPDATE onefold_outbox SET refused = ? WHERE id = ? AND token = ?", (why, *row))

    def backlog(self, app: str) -> Backlog:
        """See `OutboxTable.backlog`."""
        ((waiting, oldest, refused),) = self._ask(
            f"SELECT count(*) - count(refused), {_NOW_MS} - min(CASE WHEN refused IS NULL THEN created_at_ms END), "
            "count(refused) FROM onefold_outbox WHERE app = ?",
            (app,),
        )
        return Backlog(waiting=waiting, oldest_age_ms=None if oldest is None else max(oldest, 0), refused=refused)

    def wait(self, rest: Callable[[int], bool], at_most_ms: int) -> None:
        """Like `OutboxTable.wait`; a commit is noticed within 200 ms."""
        for _ in range(0, at_most_ms, _LOOK_MS):
            if self._link is not None and data_version(self._link) != self._seen:
                return
            if rest(_LOOK_MS):
                return

    def close(self) -> None:
        """See `OutboxTable.close`."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _ask(self, statement: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            if self._link is None:
                if not os.path.exists(self._path):
                    raise errors.StorageError(
                        f"There is no file {os.path.abspath(self._path)}.", todo="Check the URL of the outbox."
                    )
                self._link = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            return self._link.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            self.close()
            found = translate(error, self._path)
            if found is error:
                found = errors.StorageError(
                    f"The outbox tables in {os.path.abspath(self._path)} cannot be used: {error}.",
                    meaning="The messages in them stay there.",
                    todo="Create them once: onefold outbox create URL",
                )
            raise found from error
