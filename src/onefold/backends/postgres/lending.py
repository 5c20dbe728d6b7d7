"""The connection that a handler gets, and what it refuses while a handler has it.

A transactional handler shares the transaction in which its record will be completed (level 4). What handlers do from
habit (commit, rollback, close, `with connection:`) is refused here with an error that says what to do instead. A COMMIT in
SQL is stopped by the server: as long as the transaction is lent it holds a row in `lent` that breaks a deferred rule, so a
commit by anybody but onefold fails and takes everything back. A ROLLBACK is found out when the handler ends. Not stopped:
what a handler commits after a ROLLBACK of its own, and the use of onefold's tables, which SQLite refuses.

Never here: the transaction's own life (`effects.py`). Invariant: what a handler can do ends with its transaction. It guards
against mistakes, not against a handler that wants to do harm.
"""

from __future__ import annotations

from typing import Any, Self

import psycopg
from psycopg.rows import tuple_row

from onefold import errors


class LentConnection(psycopg.Connection[Any]):
    """A connection that can be lent to a handler and taken back. Opened by a `Pool`, never by hand."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lent = False

    def lend(self) -> None:
        """From now on a handler uses the connection."""
        self._lent = True

    def take_back(self) -> None:
        """From now on the engine uses the connection, as it was before it was lent. Twice is harmless."""
        self._lent = False
        self.row_factory = tuple_row
        self.cursor_factory = psycopg.Cursor

    def is_stuck(self) -> bool:
        """Whether the handler left something running on it: a `stream` or a `copy` that was not read to its end."""
        free = self.lock.acquire(blocking=False)
        if free:
            self.lock.release()
        return not free

    def __enter__(self) -> Self:
        """Refused while lent: leaving the block would commit and close."""
        self._refuse("with connection: ... (it commits and closes at the end)")
        return super().__enter__()

    def commit(self) -> None:
        """Refused while lent."""
        self._refuse("connection.commit()")
        super().commit()

    def rollback(self) -> None:
        """Refused while lent."""
        self._refuse("connection.rollback()")
        super().rollback()

    def close(self) -> None:
        """Refused while lent."""
        self._refuse("connection.close()")
        super().close()

    def _refuse(self, what: str) -> None:
        if self._lent:
            raise errors.UsageError(
                f"A handler called {what} on ctx.connection.",
                meaning="Its rows are committed together with the record of its run; nothing was changed by this call.",
                todo="Leave it out: return from the handler to keep the rows, raise an exception to take them back. For a"
                " part that may fail, use `with ctx.connection.transaction():` (a savepoint).",
            )
