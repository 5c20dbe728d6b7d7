"""The queues of a file by name, remembered until anybody changes one.

Every change of settings gives the file a new version token, so one short read shows whether what is remembered still
holds, also when another process made the change. Tokens are never used twice: a change that was rolled back cannot be
mistaken for a later one. Never here: checking settings, messages.
Invariant: a row that was looked up is the queue as the open transaction sees it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from onefold import errors
from onefold.contracts.settings import QueueSettings
from onefold.engines.sqlite.connection import Database
from onefold.engines.sqlite.rows import QueueRow

if TYPE_CHECKING:
    from onefold.outside import Entropy

_NAMED_MAX: Final = 30  # queues that an error names


class Catalogue:
    """The queues of one file. Safe to use from any thread, each inside its own transaction.

    Args:
        engine: the file; its schema is up to date.
        entropy: where the file's token and versions come from.
    """

    def __init__(self, engine: Database, entropy: Entropy) -> None:
        self._entropy = entropy
        self._known: tuple[str, dict[str, QueueRow]] = ("", {})
        self._flag_of: Callable[[str, str, str | None], str | None] = lambda *_: None
        if engine.read(lambda connection: connection.execute("SELECT 1 FROM onefold_file").fetchone()) is None:
            engine.write(self._begin_file)

    def _begin_file(self, connection: sqlite3.Connection) -> None:
        connection.execute(
            "INSERT OR IGNORE INTO onefold_file (one, token, last_id, settings_version) VALUES (1, ?, 0, ?)",
            (self._entropy.token(), self._entropy.token()),
        )

    def row_in(self, connection: sqlite3.Connection, name: str) -> QueueRow:
        """The queue of that name.

        Raises:
            NotFoundError: there is none; names those that there are.
        """
        version, token = connection.execute("SELECT settings_version, token FROM onefold_file").fetchone()
        known = self._known
        if known[0] != version:
            known = self._known = (version, {})
        row = known[1].get(name)
        if row is None:
            found = _load(connection, name, token)
            row = known[1][name] = replace(found, flag_of=self._flag_of)
        return row

    def stop_groups(self, flag_of: Callable[[str, str, str | None], str | None]) -> None:
        """As `Engine.stop_groups`."""
        self._flag_of = flag_of
        self._known = ("", {})

    def known(self, name: str) -> QueueRow | None:
        """The queue as it was when anybody in this process last looked it up; None when nobody has."""
        return self._known[1].get(name)

    def row_of(self, connection: sqlite3.Connection, number: int) -> QueueRow:
        """The queue of that number in the file."""
        name = connection.execute("SELECT name FROM onefold_queue WHERE id = ?", (number,)).fetchone()[0]
        return self.row_in(connection, name)

    def token_in(self, connection: sqlite3.Connection) -> str:
        """How the ids of this file's messages start."""
        token: str = connection.execute("SELECT token FROM onefold_file").fetchone()[0]
        return token

    def changed_in(self, connection: sqlite3.Connection) -> None:
        """Announce that settings changed in this transaction."""
        connection.execute("UPDATE onefold_file SET settings_version = ?", (self._entropy.token(),))
        self._known = ("", {})


def names_in(connection: sqlite3.Connection, *, after: str = "", limit: int = -1) -> list[str]:
    """Queues' names, sorted: those after `after`, at most `limit` (-1: all)."""
    found = connection.execute("SELECT name FROM onefold_queue WHERE name > ? ORDER BY name LIMIT ?", (after, limit))
    return [name for (name,) in found]


def stored_in(connection: sqlite3.Connection) -> list[QueueSettings]:
    """All queues' settings, by name."""
    return [
        msgspec.json.decode(text, type=QueueSettings)
        for (text,) in connection.execute("SELECT settings FROM onefold_queue ORDER BY name")
    ]


def is_there(connection: sqlite3.Connection, name: str) -> bool:
    """Whether there is a queue of that name."""
    return connection.execute("SELECT 1 FROM onefold_queue WHERE name = ?", (name,)).fetchone() is not None


def _load(connection: sqlite3.Connection, name: str, token: str, *, alone: bool = False) -> QueueRow:
    found = connection.execute("SELECT id, settings FROM onefold_queue WHERE name = ?", (name,)).fetchone()
    if found is None:
        there = names_in(connection, limit=_NAMED_MAX + 1)
        named = ", ".join(there[:_NAMED_MAX]) + (", and more" if len(there) > _NAMED_MAX else "")
        raise errors.NotFoundError(
            f"There is no queue {name!r}.",
            meaning=f"The queues of this file are: {named}." if there else "This file has no queue.",
            todo="Check the name, or create the queue.",
        )
    settings = msgspec.json.decode(found[1], type=QueueSettings)
    targets: dict[str, QueueRow] = {}
    if not alone:
        for role in ("dead_letter", "held"):
            target = getattr(settings, role)
            if target is not None and is_there(connection, target):  # dropped though it was named: leads nowhere
                targets[role] = _load(connection, target, token, alone=True)
    return QueueRow(
        id=found[0], settings=settings, token=token, dead_letter=targets.get("dead_letter"), held=targets.get("held")
    )
