"""Opening a connection to a file: pragmas, and the refusal of files that are not ours.

Never here: who uses it, and when. Invariant: a file of another program is not changed.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Final, TypeVar

from onefold import errors, forks, private_files
from onefold.engines.sqlite.closing import FileConnection, refuse_stale
from onefold.engines.sqlite.file import FileSettings
from onefold.engines.sqlite.lending import LentConnection
from onefold.engines.sqlite.refusals import translate
from onefold.interrupts import let_through

C = TypeVar("C", bound=sqlite3.Connection)

APPLICATION_ID: Final = 0x6F6E6566  # the letters "onef", in SQLite's header field for the file type
_CACHE_KIB: Final = 64 * 1024  # of the one writer
_READER_CACHE_KIB: Final = (
    2 * 1024
)  # of each reader, of which a busy process has many; what one sorts beyond is in a file


def connect_writer(path: str, place: str | None, settings: FileSettings) -> LentConnection:
    """The one connection that writes; makes the file where there is none.

    Args:
        path: as the user wrote it, for error texts.
        place: the file; None: a private database in memory.

    Raises:
        StorageError: it is not a database of ours, or cannot be opened or written. StorageBusy: another process holds it.
    """
    try:
        if place is not None:
            forks.refuse_inherited(path, place)
            refuse_stale(path, place)
            private_files.refuse_strangers(os.path.realpath(place))
            private_files.make_file(place)  # SQLite gives its log the same mode
        connection = _connect(place or ":memory:", settings, LentConnection)
        try:  # nothing may come between, and a traceback may not keep it: a child forked meanwhile could not use the file
            _prepare_writer(connection, path, place, settings)
        except BaseException:
            connection.close()
            raise
    except (sqlite3.Error, OSError) as error:
        let_through(error)
        raise translate(error, path) from error
    return connection


def _prepare_writer(connection: FileConnection, path: str, place: str | None, settings: FileSettings) -> None:
    connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
    connection.execute("PRAGMA temp_store=MEMORY")
    if place is not None:
        refuse_foreign(path, *identity(connection))  # before the switch, which writes to the file
        connection.execute(f"PRAGMA page_size={settings.page_bytes}")
        if not connection.execute("PRAGMA page_count").fetchone()[0]:
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # an older file keeps what it has
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise errors.StorageError(
                f"{path} could not be switched to write-ahead logging (SQLite answered {mode!r}).",
                meaning="Several processes could not use it at once.",
                todo="Put the file on a local disk; network file systems cannot hold it.",
            )
    connection.execute("PRAGMA synchronous=FULL")
    # Some builds (Debian's) write every page of a deleted body again: a full disk could not be freed for want of space.
    connection.execute("PRAGMA secure_delete=FAST")
    connection.execute("PRAGMA busy_timeout=0")
    if place is not None:
        _note(connection, place)


def connect_reader(path: str, place: str, settings: FileSettings) -> sqlite3.Connection:
    """A connection that only reads; arguments and errors as for the writer's."""
    forks.refuse_inherited(path, place)
    refuse_stale(path, place)
    try:
        connection = _connect(place, settings, FileConnection)
        try:
            connection.execute(f"PRAGMA cache_size=-{_READER_CACHE_KIB}")
            connection.execute("PRAGMA temp_store=FILE")
            connection.execute("PRAGMA query_only=ON")
            _note(connection, place)
        except BaseException:
            connection.close()
            raise
    except (sqlite3.Error, OSError) as error:
        let_through(error)
        raise translate(error, path) from error
    return connection


def _connect(place: str, settings: FileSettings, kind: type[C]) -> C:
    return sqlite3.connect(
        place,
        timeout=settings.busy_ms / 1000,  # from the first statement on: another may recover the file
        isolation_level=None,
        check_same_thread=False,
        cached_statements=512,
        factory=kind,
    )


def _note(connection: FileConnection, place: str) -> None:
    data_version(connection)  # which opens the log
    connection.note(place)


def identity(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Whose file it is: application id, schema version, how many tables and indexes."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return application, version, tables


def data_version(connection: sqlite3.Connection) -> int:
    """Changes with what other connections commit."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def refuse_foreign(path: str, application: int, version: int, tables: int) -> None:
    """Refuse a file that another program made.

    Raises:
        StorageError: it is neither empty nor ours.
    """
    if application != APPLICATION_ID and (application or version or tables):
        raise errors.StorageError(
            f"{path} is a database of another program (application id {application:#x}, {tables} tables).",
            meaning="Nothing was changed.",
            todo="Give onefold a file of its own.",
        )
