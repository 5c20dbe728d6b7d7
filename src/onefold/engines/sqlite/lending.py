"""The writer's connection, and what it refuses while a handler has it.

A transactional handler gets the engine's own connection inside an open transaction (level 4). `lend` marks the time in
which the handler has it: until `take_back`, statements that would end or nest the transaction, attach files, set pragmas
or touch onefold's own tables are refused when they are prepared. Statements of the engine are prepared at other times, or
inside `engine_time`. SQLite asks the authorizer only when it prepares a statement, so nothing is paid per execution.

Never here: transactions themselves. Invariant: what a handler can do ends with its savepoint. It guards against
mistakes, not against a handler that wants to do harm.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from onefold import errors
from onefold.contracts.admin import Transferred
from onefold.engines.sqlite.closing import FileConnection

_TRANSACTIONS: Final = frozenset(
    {sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH}
)
_PRAGMAS_THAT_READ: Final = frozenset(
    {"foreign_key_list", "index_info", "index_list", "index_xinfo", "table_info", "table_list", "table_xinfo"}
)
_TOLD_MAX: Final = 1_000
# For these actions SQLite names the table second.
_TABLE_IS_SECOND: Final = frozenset(
    {
        sqlite3.SQLITE_ALTER_TABLE,
        sqlite3.SQLITE_CREATE_INDEX,
        sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
        sqlite3.SQLITE_CREATE_TRIGGER,
        sqlite3.SQLITE_DROP_INDEX,
        sqlite3.SQLITE_DROP_TRIGGER,
    }
)


class LentConnection(FileConnection):
    """A connection that can be lent to a handler and taken back. Opened by `connection.Database`, never by hand."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lent = False
        self._kept_away: Collection[str] = ()
        self.transferred: list[Transferred] = []  # to other queues, in the transaction that is open
        self.told: list[Transferred] = []  # in those that were committed; nobody has asked about them yet
        self._has_authorizer = False

    def tell(self, one: Transferred) -> None:
        """Remember for whoever asks that a message went to another queue, once that is committed."""
        if len(self.transferred) < _TOLD_MAX:
            self.transferred.append(one)

    def note_transfers(self) -> None:
        """After a commit; a process that never asks forgets what is too much."""
        if self.transferred:
            self.told += self.transferred[: max(_TOLD_MAX - len(self.told), 0)]
            self.transferred = []

    def lend(self, own_tables: Collection[str]) -> None:
        """From now on a handler uses the connection.

        Args:
            own_tables: tables it must not touch.
        """
        if not self._has_authorizer:
            # Once: setting one makes SQLite prepare every statement again. Not before a handler comes: an exception out of
            # a signal's handler that falls into it is swallowed, and the statement refused.
            super().set_authorizer(self._allows)
            self._has_authorizer = True
        self._kept_away = own_tables
        self._lent = True

    def take_back(self) -> None:
        """From now on the engine uses the connection, as it was before it was lent. Twice is harmless."""
        self._lent = False
        self.row_factory = None
        self.text_factory = str

    @contextmanager
    def engine_time(self) -> Iterator[None]:
        """Use the connection for the engine for a moment, whoever has it."""
        lent, row_factory, text_factory = self._lent, self.row_factory, self.text_factory
        self.take_back()
        try:
            yield
        finally:
            self._lent, self.row_factory, self.text_factory = lent, row_factory, text_factory

    def _allows(
        self, action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None
    ) -> int:
        if not self._lent:
            return sqlite3.SQLITE_OK
        if (
            action in _TRANSACTIONS or not self.in_transaction
        ):  # SQLite itself may have ended it (OR ROLLBACK, full disk)
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_PRAGMA:
            return sqlite3.SQLITE_OK if first in _PRAGMAS_THAT_READ else sqlite3.SQLITE_DENY
        table = second if action in _TABLE_IS_SECOND else first
        return sqlite3.SQLITE_DENY if table in self._kept_away else sqlite3.SQLITE_OK

    # What handlers do from habit gets an error that says what to do; the rest is "not authorized" by the authorizer.

    def __enter__(self) -> sqlite3.Connection:  # type: ignore[override]  # itself, but mypy wants the method's own type
        """Refused while lent: leaving the block would commit."""
        self._refuse("with connection: ... (it commits at the end)")
        return super().__enter__()

    def commit(self) -> None:
        """Refused while lent."""
        self._refuse("connection.commit()")
        super().commit()

    def rollback(self) -> None:
        """Refused while lent."""
        self._refuse("connection.rollback()")
        super().rollback()

    def executescript(self, sql_script: str, /) -> sqlite3.Cursor:
        """Refused while lent."""
        self._refuse("connection.executescript() (it commits first)")
        return super().executescript(sql_script)

    def close(self) -> None:
        """Refused while lent."""
        self._refuse("connection.close()")
        super().close()

    def set_authorizer(self, *_args: object, **_options: object) -> NoReturn:
        """Refused always: this connection has its own."""
        raise errors.UsageError(
            "set_authorizer() was called on the engine's connection.",
            meaning="It would lift the guard that keeps a handler inside its transaction.",
            todo="Open a connection of your own for that.",
        )

    def _refuse(self, what: str) -> None:
        if self._lent:
            raise errors.UsageError(
                f"A handler called {what} on ctx.connection.",
                meaning="Its rows are committed together with the record of its run; nothing was changed by this call.",
                todo="Leave it out: return from the handler to keep the rows, raise an exception to take them back.",
            )
