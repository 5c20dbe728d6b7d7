"""The connections to a file: opened for writing or reading, lent to handlers, and closed or left open.

Opening sets the pragmas, and refuses files of other programs without changing them.

A connection is closed only while the file, its log and the log's index are still the ones that it opened
(`FileConnection`). The last connection to close writes its log into the file and removes the log by name. If the log
was moved or removed and other processes have begun a new log, old pages would overwrite what they have written, and
their log would be removed. So such a connection stays open until the process ends, as if the process had been killed,
and this process does not open the file again, because SQLite would share the old index between the two connections. If
no new log was begun, closing saves what was accepted. SQLite itself notices a file that is gone or was replaced.

A transactional handler uses the writer's own connection inside an open transaction (level 4; `LentConnection`), through
a `loan.Loan`. The loan begins with `lend`: until `take_back`, statements that would end or nest the transaction, attach
files, set pragmas or touch onefold's own tables are refused when they are prepared. The engine prepares its own
statements at other times, or inside `engine_time`. Handlers may set their own savepoints. SQLite calls the authorizer
only when it prepares a statement, so it costs nothing per execution. It guards against mistakes, not against malicious
handlers.

Never here: transactions and waiting (`database.py`), which thread reads with which connection (`readers.py`). Invariants:
a file whose log is no longer ours is not written when a connection ends; what a handler can do is limited to its savepoint.
"""

from __future__ import annotations

import atexit
import gc
import os
import sqlite3
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Final, Self, TypeVar

from onefold import errors, forks, private_files
from onefold.contracts.admin import Transferred
from onefold.engines.sqlite.file import APPLICATION_ID, FileSettings, inode, refuse_no_folder
from onefold.engines.sqlite.loan import Loan
from onefold.engines.sqlite.refusals import translate
from onefold.interrupts import ignored, let_through

Files = tuple[tuple[int, int] | None, ...]

_open: Final[dict[int, weakref.ref[FileConnection]]] = {}
_before_end: Final = [True]  # empty, or gone, when the interpreter ends
_left: Final[set[tuple[int, int] | None]] = set()  # files to which a connection of this process stays open


class FileConnection(sqlite3.Connection):
    """A connection that records with `note` which file it has opened; before that it closes like any other."""

    _real_path = ""
    _files: Files | None = None
    _process = 0
    _is_left = False

    def __new__(cls, *_args: Any, **_options: Any) -> Self:
        """Register the connection before it opens anything: a signal handler may raise while no variable refers to it."""
        one = super().__new__(cls)
        # A callback in C, because an exception that a signal handler raises inside a Python callback would be
        # swallowed.
        _open[id(one)] = weakref.ref(one, partial(_open.pop, id(one)))
        return one

    def note(self, real_path: str) -> None:
        """Remember the file and its log; called as soon as both are open.

        Args:
            real_path: the file.
        """
        self._real_path, self._files, self._process = real_path, _files_at(real_path), os.getpid()

    def note_memory(self) -> None:
        """Note that this connection is to a database in memory, which has no file."""
        _open.pop(id(self), None)

    def is_of_this_process(self) -> bool:
        """Whether it was opened in this process or is not open yet, and was not left open for ever."""
        return self._process in (0, os.getpid()) and not self._is_left

    def is_stale(self, files: Files) -> bool:
        """Whether this connection of this process is to that file, but with another log, or with one that is gone.

        Args:
            files: the files that exist now.
        """
        ours = self._files
        return ours is not None and self._process == os.getpid() and ours[0] == files[0] and ours != files

    def close(self) -> None:
        """Close it, or leave it open for ever."""
        if self._is_left or self._leave_stale():
            return
        # The last connection to close removes the log, which must not look like another one's.
        noted, self._files = self._files, None
        try:
            super().close()
        except BaseException:
            self._files = noted
            raise
        _open.pop(id(self), None)

    def __del__(self) -> None:
        """Garbage-collected without having been closed: SQLite would close it now, so leave it open if it is stale."""
        if _before_end:
            self._leave_stale()

    def _leave_stale(self) -> bool:
        if self._files is None or self._process != os.getpid():
            return False
        with ignored(OSError):  # a process that may not read the file cannot remove it either
            files = _files_at(self._real_path)
            is_begun = any(now not in (None, seen) for now, seen in zip(files[1:], self._files[1:], strict=True))
            if files[0] == self._files[0] and (is_begun or not os.path.getsize(self._real_path)):
                self._is_left = True
                _left.add(self._files[0])
                forks.keep_for_ever(self)
                with ignored(sqlite3.Error):
                    self.rollback()
        return self._is_left


def refuse_stale(path: str, real_path: str) -> None:
    """Refuse a file if this process has connections to it with another log.

    Args:
        path: as the user wrote it. real_path: the file.

    Raises:
        StorageError: this process has such a connection.
    """
    if not _open and not _left:
        return
    files = _files_at(real_path)
    if files[0] is None:
        return
    connections = [one() for one in list(_open.values())]
    if files[0] in _left or any(one is not None and one.is_stale(files) for one in connections):
        raise errors.StorageError(
            f"{path} or its log was moved or removed, and put back or begun anew, while this process had it open.",
            meaning="Nothing was written: the files that this process has open are not the ones on disk now.",
            todo="Restart this process. Stop every process that uses a database before you restore or move its file.",
        )


def _files_at(real_path: str) -> Files:
    return inode(real_path), inode(f"{real_path}-wal"), inode(f"{real_path}-shm")


def _leave_all_stale() -> None:
    """Run when the interpreter ends, which would close every connection that is still open."""
    for one in list(_open.values()):
        connection = one()
        if connection is not None:
            connection._leave_stale()  # noqa: SLF001 - the same module
    _before_end.clear()


atexit.register(_leave_all_stale)


def _free_torn() -> None:
    """Garbage-collect unreferenced connections, which closes them: each is in a cycle with its statement cache."""
    if any(map(_may_bar_children, list(_open.values()))):
        gc.collect()


def _may_bar_children(known: weakref.ref[FileConnection]) -> bool:
    """Whether a child that is forked now could not use the file, because this connection was not closed."""
    one = known()
    return one is not None and one.is_of_this_process()


forks.when_held(_free_torn)


_TRANSACTIONS: Final = frozenset({sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})
_PRAGMAS_THAT_READ: Final = frozenset(
    {
        "database_list",
        "foreign_key_list",
        "index_info",
        "index_list",
        "index_xinfo",
        "table_info",
        "table_list",
        "table_xinfo",
    }
)
_PRAGMAS_THAT_ANSWER: Final = frozenset({"foreign_keys", "read_uncommitted"})  # if without a value; SQLAlchemy asks
_COMMITTED_MAX: Final = 1_000
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
    """A connection that can be lent to a handler and taken back. Opened by `database.Database`, never by hand.

    Attributes:
        is_mine: returns whether the calling thread is using it.
    """

    is_mine: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(self, *args: Any, **options: Any) -> None:
        self._lent = False
        self._loan: Loan | None = None
        self._kept_away: Collection[str] = ()
        self.transferred: list[Transferred] = []  # messages moved to other queues in the open transaction
        self.committed: list[Transferred] = []  # the same in committed transactions, not fetched yet
        self._has_authorizer = False
        super().__init__(*args, **options)  # must come last: it opens the file

    @property
    def is_lent(self) -> bool:
        """Whether a handler has it."""
        return self._lent

    def writes(self, file: tuple[int, int] | None) -> bool:
        """Whether a transaction of this process is open on it, and that is its file."""
        if self._files is None or self._files[0] != file or self._process != os.getpid():
            return False
        try:
            return self.in_transaction
        except sqlite3.ProgrammingError:  # another thread has just closed it
            return False

    def note_transferred(self, one: Transferred) -> None:
        """Remember that a message moved to another queue, to be reported after the commit."""
        if len(self.transferred) < _COMMITTED_MAX:
            self.transferred.append(one)

    def note_transfers(self) -> None:
        """After a commit: keep the moves, up to a fixed number of them."""
        if self.transferred:
            self.committed += self.transferred[: max(_COMMITTED_MAX - len(self.committed), 0)]
            self.transferred = []

    def lend(self, own_tables: Collection[str]) -> Loan:
        """Lend the connection to a handler; returns what the handler uses.

        Args:
            own_tables: tables it must not touch.
        """
        self._loan = Loan(self)
        if not self._has_authorizer:
            # Set only once, because setting an authorizer makes SQLite prepare every statement again; and not before a
            # handler uses the connection, because an exception that a signal handler raises inside the authorizer is
            # swallowed, and the statement is refused.
            self.set_authorizer(self._allows)
            self._has_authorizer = True
        self._kept_away = own_tables
        self._lent = True
        return self._loan

    def take_back(self) -> None:
        """End the loan: the engine uses the connection again. Idempotent."""
        if self._loan is not None:
            self._loan.end()
            self._loan = None
        self._for_engine()

    def _for_engine(self) -> None:
        self._lent = False
        self.row_factory = None
        self.text_factory = str

    @contextmanager
    def engine_time(self) -> Iterator[None]:
        """Let the engine use the connection inside the block, even while it is lent."""
        with nullcontext() if self._loan is None else self._loan.lock:
            lent, row_factory, text_factory = self._lent, self.row_factory, self.text_factory
            self._for_engine()
            if self._loan is not None:
                self._loan.pause()
            try:
                yield
            finally:
                self._lent, self.row_factory, self.text_factory = lent, row_factory, text_factory
                if self._loan is not None:
                    self._loan.resume()

    def _allows(
        self, action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None
    ) -> int:
        if not self._lent:
            return sqlite3.SQLITE_OK
        # SQLite itself may have ended the transaction (OR ROLLBACK, full disk).
        if action in _TRANSACTIONS or not self.in_transaction:
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_SAVEPOINT:  # the handler's own are allowed; ours enclose them
            return sqlite3.SQLITE_DENY if str(second).lower().startswith("onefold_") else sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_PRAGMA:
            reads = first in _PRAGMAS_THAT_READ or (first in _PRAGMAS_THAT_ANSWER and second is None)
            return sqlite3.SQLITE_OK if reads else sqlite3.SQLITE_DENY
        table = second if action in _TABLE_IS_SECOND else first
        return sqlite3.SQLITE_DENY if table in self._kept_away else sqlite3.SQLITE_OK


def writers_of(real_path: str) -> list[LentConnection]:
    """The engine's connections in this process that have a transaction open on the file."""
    file = inode(real_path)
    return [one for known in list(_open.values()) if isinstance(one := known(), LentConnection) and one.writes(file)]


C = TypeVar("C", bound=sqlite3.Connection)

_CACHE_KIB: Final = 64 * 1024  # for the single writer
_READER_CACHE_KIB: Final = 2 * 1024  # for each reader, of which a busy process has many; larger sorts use a file


def connect_writer(path: str, real_path: str | None, settings: FileSettings) -> LentConnection:
    """Open the one connection that writes; create the file if it does not exist.

    Args:
        path: as the user wrote it, for error texts.
        real_path: the file; None for a private database in memory.

    Raises:
        StorageError: it is not one of our databases, or cannot be opened or written. StorageBusy: another process holds
            it.
    """
    try:
        if real_path is not None:
            forks.refuse_inherited(path, real_path)
            refuse_stale(path, real_path)
            private_files.refuse_strangers(os.path.realpath(real_path))
            refuse_no_folder(path, real_path)
            private_files.make_file(real_path)  # SQLite gives its log the same mode
        made: list[LentConnection] = []  # or a traceback keeps it alive, and a forked child cannot use the file
        try:
            made.append(_connect(real_path or ":memory:", settings, LentConnection))
            _prepare_writer(made[0], path, real_path, settings)
        except BaseException:
            for one in made:
                one.close()
            raise
    except (sqlite3.Error, OSError) as error:
        let_through(error)
        raise translate(error, path) from error
    return made.pop()


def _prepare_writer(connection: FileConnection, path: str, real_path: str | None, settings: FileSettings) -> None:
    connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
    connection.execute("PRAGMA temp_store=MEMORY")
    if real_path is not None:
        refuse_foreign(
            path, *identity(connection), adopts=settings.adopts
        )  # before the switch, which writes to the file
        connection.execute(f"PRAGMA page_size={settings.page_bytes}")
        if not connection.execute("PRAGMA page_count").fetchone()[0]:
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # an older file keeps its setting
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise errors.StorageError(
                f"{path} could not be switched to write-ahead logging (SQLite answered {mode!r}).",
                meaning="Several processes could not use it at once.",
                todo="Put the file on a local disk; network file systems cannot hold it.",
            )
    connection.execute("PRAGMA synchronous=FULL")
    # Some builds of SQLite (Debian's) overwrite every page of a deleted body: on a full disk there would be no space to
    # delete anything.
    connection.execute("PRAGMA secure_delete=FAST")
    connection.execute("PRAGMA busy_timeout=0")
    if real_path is not None:
        _note(connection, real_path)
    else:
        connection.note_memory()


def connect_reader(path: str, real_path: str, settings: FileSettings) -> sqlite3.Connection:
    """Open a connection that only reads; arguments and errors as for `connect_writer`."""
    forks.refuse_inherited(path, real_path)
    refuse_stale(path, real_path)
    try:
        made: list[FileConnection] = []
        try:
            made.append(_connect(real_path, settings, FileConnection))
            made[0].execute(f"PRAGMA cache_size=-{_READER_CACHE_KIB}")
            made[0].execute("PRAGMA temp_store=FILE")
            made[0].execute("PRAGMA query_only=ON")
            made[0].execute("PRAGMA trusted_schema=OFF")
            _note(made[0], real_path)
        except BaseException:
            for one in made:
                one.close()
            raise
    except (sqlite3.Error, OSError) as error:
        let_through(error)
        raise translate(error, path) from error
    return made.pop()


def _connect(real_path: str, settings: FileSettings, kind: type[C]) -> C:
    return sqlite3.connect(
        real_path,
        timeout=settings.busy_ms / 1000,  # for the first statement too: another process may be recovering the file
        isolation_level=None,
        check_same_thread=False,
        cached_statements=512,
        factory=kind,
    )


def _note(connection: FileConnection, real_path: str) -> None:
    data_version(connection)  # this opens the log
    connection.note(real_path)


def identity(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """The file's identity: application id, schema version, number of tables and indexes.

    In an adopted file, both numbers in the header remain those of the program that owns it; ours are in a table.
    """
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    adopted = is_adopted(connection)
    return APPLICATION_ID if adopted else application, version_in(connection, adopted=adopted), tables


def is_adopted(connection: sqlite3.Connection) -> bool:
    """Whether the file is another program's, with onefold's tables in it."""
    return bool(connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'onefold_adopted'").fetchone()[0])


def version_in(connection: sqlite3.Connection, *, adopted: bool) -> int:
    """The version of the schema. `adopted`: the answer of `is_adopted`."""
    query = "SELECT ifnull(max(version), 0) FROM onefold_adopted" if adopted else "PRAGMA user_version"
    found: int = connection.execute(query).fetchone()[0]
    return found


def data_version(connection: sqlite3.Connection) -> int:
    """A number that changes when other connections commit."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def refuse_foreign(path: str, application: int, version: int, tables: int, *, adopts: bool) -> None:
    """Refuse a file that another program made.

    Raises:
        StorageError: it is neither empty nor ours, and the URL does not allow adopting it.
    """
    if not adopts and application != APPLICATION_ID and (application or version or tables):
        raise errors.StorageError(
            f"{path} is a database of another program (application id {application:#x}, {tables} tables).",
            meaning="Nothing was changed.",
            todo="Give onefold a file of its own. Or, to have it add its tables to this one, make a copy first"
            f' (sqlite3 {path} ".backup copy.db"), and write ?adopt=yes after the file in the URL.',
        )
