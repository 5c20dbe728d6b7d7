"""What a handler gets as `ctx.connection`: the writer's connection, for the length of its run.

SQLite asks the authorizer (`connection.LentConnection`) only when it prepares a statement, and Python keeps prepared
statements, so a check at each call is needed too: that the run has not ended, and that SQLite has not rolled its
transaction back. Threads, sessions and caches of a handler can keep a loan or a cursor for longer; these are refused, or
they would use the connection on which everything else is written.
Never here: which statements are allowed (`connection.py`), when a loan begins and ends (`commit.py`). Invariant: no call
of a handler reaches the connection outside of its run's transaction.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Generator
from functools import cache
from threading import RLock
from typing import Any, Final, NoReturn
from weakref import WeakSet

from onefold import errors
from onefold.contracts.commit import ends_transaction
from onefold.engines.sqlite.refusals import primary

_NO_WATCHER: Final[dict[str, tuple[Any, ...]]] = {"set_progress_handler": (None, 0), "set_trace_callback": (None,)}
_ENGINES_OWN: Final = frozenset(  # functions and collations of SQLite that the engine's statements use
    {
        "abs", "binary", "changes", "coalesce", "count", "glob", "hex", "ifnull", "iif", "instr", "json", "json_each",
        "json_extract", "json_set", "length", "like", "lower", "max", "min", "nocase", "nullif", "quote", "randomblob",
        "replace", "rtrim", "substr", "sum", "total", "typeof", "upper",
    }
)  # fmt: skip


class Loan(sqlite3.Connection):
    """The connection as its handler sees it. The base class opens nothing: each call goes to the lender.

    Args:
        lender: whose transaction is open.
    """

    def __init__(self, lender: sqlite3.Connection) -> None:
        self._lender: sqlite3.Connection | None = lender
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()
        self.lock = RLock()  # a thread of the handler may be in the middle of a call when its run ends
        self._watchers: dict[str, tuple[Any, ...]] = {}

    def end(self) -> None:
        """End the loan, as soon as no other thread is in the middle of a call. Idempotent.

        Cursors are closed: one with rows left keeps SQLite's snapshot, and after another process's next commit the
        connection could write no more.
        """
        with self.lock:
            for cursor in self._cursors:
                sqlite3.Cursor.close(cursor)
            self.pause()
            self._watchers = {}
            self._lender = None

    def pause(self) -> None:
        """Take what the handler watches statements with from the connection, for statements of the engine."""
        for name in self._watchers:
            getattr(self._lender, name)(*_NO_WATCHER[name])

    def resume(self) -> None:
        """End the pause."""
        for name, given in self._watchers.items():
            getattr(self._lender, name)(*given)

    def lender(self) -> sqlite3.Connection:
        """The connection; to be asked for, and used, under `lock`.

        Raises:
            UsageError: the run has ended. StorageBusy: SQLite rolled its transaction back.
        """
        if self._lender is None:
            raise errors.UsageError(
                "ctx.connection, or a cursor of it, was used after the run that it belongs to had ended.",
                meaning="Nothing was read or written by this call.",
                todo="Use ctx.connection in each run anew, and wait in the handler for threads that use it.",
            )
        if not self._lender.in_transaction:  # OR ROLLBACK, RAISE(ROLLBACK), full disk
            raise rolled_back_by_sqlite()
        return self._lender

    def cursor(self, factory: Any = sqlite3.Cursor) -> Any:
        """A cursor, which is refused in the same cases as this connection."""
        with self.lock:
            made: Any = self.lender().cursor(_kind(factory))
            made.loan = self
            self._cursors.add(made)
        return made

    def execute(self, *args: Any) -> sqlite3.Cursor:
        """See `sqlite3.Connection.execute`."""
        made: sqlite3.Cursor = self.cursor().execute(*args)
        return made

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        """See `sqlite3.Connection.executemany`."""
        made: sqlite3.Cursor = self.cursor().executemany(*args)
        return made

    def _passed_on(name: str) -> Any:  # type: ignore[misc]  # noqa: N805 - makes methods of this class
        def method(self: Loan, /, *args: Any, **options: Any) -> Any:
            with self.lock:
                return getattr(self.lender(), name)(*args, **options)

        method.__name__, method.__doc__ = name, f"See `sqlite3.Connection.{name}`."
        return method

    __call__ = _passed_on("__call__")
    backup = _passed_on("backup")
    getlimit = _passed_on("getlimit")
    serialize = _passed_on("serialize")

    def iterdump(self, **options: Any) -> Generator[str, None, None]:
        """See `sqlite3.Connection.iterdump`; all of it is read at once, because the rest must not be read after the run."""
        with self.lock:
            lines = list(self.lender().iterdump(**options))
        return (line for line in lines)

    def _made(call: str) -> Any:  # type: ignore[misc]  # noqa: N805 - makes methods of this class
        def method(self: Loan, name: str, /, *args: Any, **options: Any) -> Any:
            with self.lock:
                if str(name).lower() in _ENGINES_OWN:
                    raise _stays(f"{call}({name!r:.40}, ...)")
                return getattr(self.lender(), call)(name, *args, **options)

        method.__name__ = call
        method.__doc__ = f"See `sqlite3.Connection.{call}`; not in place of what SQLite has and the engine uses."
        return method

    create_aggregate = _made("create_aggregate")
    create_collation = _made("create_collation")
    create_function = _made("create_function")
    create_window_function = _made("create_window_function")

    def set_progress_handler(self, progress_handler: Any, n: int) -> None:
        """Like that of `sqlite3.Connection`, until the run ends."""
        self._watch("set_progress_handler", progress_handler, n)

    def set_trace_callback(self, trace_callback: Any) -> None:
        """Like that of `sqlite3.Connection`, until the run ends."""
        self._watch("set_trace_callback", trace_callback)

    def _watch(self, name: str, *given: Any) -> None:
        with self.lock:
            getattr(self.lender(), name)(*given)
            self._watchers[name] = given

    def _unsuited(call: str) -> Any:  # type: ignore[misc]  # noqa: N805 - makes methods of this class
        def method(self: Loan, /, *_args: object, **_options: object) -> NoReturn:
            with self.lock:
                self.lender()
            raise _stays(f"{call}()")

        method.__doc__ = "Refused."
        return method

    enable_load_extension = _unsuited("enable_load_extension")
    load_extension = _unsuited("load_extension")
    set_authorizer = _unsuited("set_authorizer")
    setconfig = _unsuited("setconfig")
    setlimit = _unsuited("setlimit")

    def interrupt(self) -> None:
        """See `sqlite3.Connection.interrupt`; it does not wait for the call that it interrupts."""
        lender = self._lender
        if lender is not None:
            lender.interrupt()

    def _refused(call: str) -> Any:  # type: ignore[misc]  # noqa: N805 - makes methods of this class
        def method(self: Loan, /, *_args: object, **_options: object) -> NoReturn:
            with self.lock:
                self.lender()
            raise ends_transaction(call)

        method.__doc__ = "Refused."
        return method

    __enter__ = _refused("with connection: ... (it commits at the end)")
    blobopen = _refused("connection.blobopen() (it reaches every table; read and write the value with SQL)")
    close = _refused("connection.close()")
    commit = _refused("connection.commit()")
    deserialize = _refused("connection.deserialize()")
    executescript = _refused("connection.executescript() (it commits first)")
    rollback = _refused("connection.rollback()")

    def _attribute(name: str) -> Any:  # type: ignore[misc]  # noqa: N805 - makes attributes of this class
        def get(self: Loan) -> Any:
            with self.lock:
                return getattr(self.lender(), name)

        def put(self: Loan, value: Any) -> None:
            with self.lock:
                setattr(self.lender(), name, value)

        return property(get, put, doc=f"See `sqlite3.Connection.{name}`.")

    row_factory = _attribute("row_factory")
    text_factory = _attribute("text_factory")
    total_changes = _attribute("total_changes")

    @property
    def autocommit(self) -> Any:
        """See `sqlite3.Connection.autocommit`, from Python 3.12 on; it cannot be set."""
        with self.lock:
            return getattr(self.lender(), "autocommit")  # noqa: B009 - AttributeError on Python 3.11

    @property
    def in_transaction(self) -> bool:
        """Whether the transaction of the run is open."""
        lender = self._lender
        return lender is not None and lender.in_transaction

    @property
    def isolation_level(self) -> None:  # it cannot be set
        """None: Python begins and commits nothing."""
        return

    @isolation_level.setter
    def isolation_level(self, value: str | None) -> None:
        raise ends_transaction(f"connection.isolation_level = {value!r:.40}")


class NotAllowedError(errors.UsageError, sqlite3.DatabaseError):
    """A statement of a handler that the authorizer refused; also SQLite's own error, which frameworks catch."""


class _Cursor(sqlite3.Cursor):
    """A cursor of a loan."""

    loan: Loan

    @property
    def connection(self) -> Loan:  # the base class has a plain attribute
        """The loan."""
        return self.loan

    def _checked(name: str) -> Any:  # type: ignore[misc]  # noqa: N805 - makes methods of this class
        def method(self: _Cursor, /, *args: Any, **options: Any) -> Any:
            loan = self.loan
            with loan.lock:
                loan.lender()
                try:
                    return getattr(super(_Cursor, self), name)(*args, **options)
                except sqlite3.DatabaseError as error:
                    if primary(error) == sqlite3.SQLITE_AUTH and args:
                        raise _not_allowed(str(args[0]), error) from error
                    raise

        method.__name__, method.__doc__ = name, f"See `sqlite3.Cursor.{name}`."
        return method

    execute = _checked("execute")
    executemany = _checked("executemany")
    fetchall = _checked("fetchall")
    fetchmany = _checked("fetchmany")
    fetchone = _checked("fetchone")
    __next__ = _checked("__next__")

    def executescript(self, sql_script: str, /) -> sqlite3.Cursor:
        """Refused."""
        made: sqlite3.Cursor = self.loan.executescript(sql_script)
        return made


@cache
def _kind(factory: Any) -> Any:
    """A class of cursors, also of a program's own, that knows its loan."""
    if factory is sqlite3.Cursor:
        return _Cursor
    return type(factory.__name__, (_Cursor, factory), {})


def _not_allowed(statement: str, said: sqlite3.DatabaseError) -> NotAllowedError:
    word = re.match(r"\s*([A-Za-z]{1,20})", statement)  # not more: the rest may hold values
    refused = NotAllowedError(
        f"A handler's {word[1] if word else 'statement'} on ctx.connection was refused: {said}.",
        meaning="Its rows are committed together with the record of its run. Statements that end the transaction, attach "
        "files, set pragmas or touch onefold's own tables are not allowed there; nothing was changed by it.",
        todo="Return from the handler to keep the rows, raise an exception to take them back. Do the rest on a connection "
        "of your own, outside of handlers.",
    )
    refused.sqlite_errorcode, refused.sqlite_errorname = said.sqlite_errorcode, said.sqlite_errorname
    return refused


def _stays(call: str) -> errors.UsageError:
    return errors.UsageError(
        f"A handler called {call} on ctx.connection.",
        meaning="It would stay on the connection on which everything else is written. Nothing was changed.",
        todo="Leave it out, choose another name, or do it on a connection of your own.",
    )


def rolled_back_by_sqlite() -> errors.StorageBusy:
    """The error for a handler whose transaction SQLite itself has ended."""
    return errors.StorageBusy(
        "SQLite rolled back the transaction while a handler was using it.",
        meaning="Its rows are gone; so are those of handlers that waited for the same commit, and their runs fail.",
        todo="Look for a full disk, or for OR ROLLBACK and RAISE(ROLLBACK) in the handler's statements.",
    )
