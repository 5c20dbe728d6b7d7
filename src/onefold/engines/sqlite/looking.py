"""A file that this user may only read: everything that looks works on it, everything that writes is refused.

SQLite needs a file's log and the log's index (`-wal`, `-shm`) to read it. Where it can neither find nor make them (the last
process has closed the file, and the folder is not ours), a file without a log holds everything itself, and is read as one
that nobody changes: for a look, that is right unless a process begins to write just then.
Never here: files that may be written. Invariant: nothing is made, changed or locked for writing.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import quote

from onefold import errors
from onefold.engines.sqlite.connection import Engine
from onefold.engines.sqlite.readers import Readers
from onefold.engines.sqlite.refusals import primary, translate
from onefold.steady_clock import steady

if TYPE_CHECKING:
    from onefold.outside import Clock

_BUSY_S = 10.0


def is_only_readable(path: str) -> bool:
    """Whether this user may not write a file that is there, or not beside it."""
    place = os.path.realpath(path)
    return os.path.exists(place) and not (os.access(place, os.W_OK) and os.access(os.path.dirname(place), os.W_OK))


class LookingEngine(Engine):
    """A database file, opened for reading alone.

    Args:
        path: file name. clock: as of `Engine`.

    Raises:
        StorageError: it cannot be read.
    """

    def __init__(self, path: str, clock: Clock) -> None:  # no connection that writes, so nothing of Engine's own
        self.path, self.place = path, os.path.realpath(path)
        self.clock = steady(clock)
        self.in_memory, self.notes_time = False, False
        self._closed, self._held_by, self._opened = False, None, None
        self._readers = Readers(self._connect_reader, self._check_open)
        if not os.access(self.place, os.R_OK):
            raise errors.StorageError(
                f"{path} cannot be read: permission denied.",
                todo="Look as its owner, or let this user read it and its -wal and -shm.",
            )

    def _connect_reader(self) -> sqlite3.Connection:
        uri = f"file:{quote(self.place)}?mode=ro"
        try:
            return _connected(uri)
        except sqlite3.Error as error:
            if primary(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise translate(error, self.path) from error
            log = f"{self.place}-wal"
            if os.path.exists(log) and os.path.getsize(log):
                raise errors.StorageError(
                    f"{self.path} cannot be read: the last of what was written is in {log}, and SQLite answered: {error}.",
                    meaning="This user may not read the log, or its index (-shm), or cannot make one in the folder.",
                    todo="Look as the file's owner, or copy the file and its -wal to a folder of your own and look there.",
                ) from error
        return _connected(f"{uri}&immutable=1")

    def _refuse(self) -> NoReturn:
        raise errors.StorageError(
            f"{self.path} cannot be written: this user may only read it.",
            meaning="Nothing was changed.",
            todo="Run the command as the file's owner. A file of an earlier version is brought up to date by the first "
            "worker or send of this one.",
        )

    def write(self, *_: object, **__: object) -> NoReturn:
        """Refuse."""
        self._refuse()

    def together(self, calls: Sequence[Callable[[], object]], *, synced: bool = True) -> NoReturn:  # noqa: ARG002
        """Refuse."""
        self._refuse()

    def begin_exclusive(self, *, synced: bool = True) -> NoReturn:  # noqa: ARG002
        """Refuse."""
        self._refuse()

    def tend(self) -> None:
        """Nothing: that is for who writes."""

    def check_file(self) -> None:
        """Nothing: that is for who writes."""

    def changed_elsewhere(self) -> bool:
        """Always: it is not known."""
        return True

    def close(self, *, unfinished: bool = False) -> None:  # noqa: ARG002 - there is never any
        """Close every connection after the query that is under way; harmless twice."""
        self._closed = True
        self._readers.close()


def _connected(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA query_only=ON")
        connection.execute("PRAGMA temp_store=MEMORY")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
