"""Connections that are closed only while the file, its log and the log's index are still the ones that they opened.

The last connection that is closed writes its log into the file and removes the log by name. Where others have begun another
log meanwhile, as the first was moved or removed, old pages would overwrite what they have written, and their log would be
removed. So such a connection stays open until the process ends, as if it had been killed, and this process opens the file
no more: SQLite would share the old index between the two. Where nobody has begun another log, closing saves what was
accepted. A file that is gone, or another one at its path, SQLite notices itself.

Never here: who uses a connection. Invariant: a file whose log is not ours any more is not written when a connection ends.
"""

from __future__ import annotations

import atexit
import os
import sqlite3
import weakref
from functools import partial
from typing import Final

from onefold import errors, forks
from onefold.engines.sqlite.file import inode
from onefold.interrupts import ignored

Files = tuple[tuple[int, int] | None, ...]

_open: Final[dict[int, weakref.ref[FileConnection]]] = {}
_before_end: Final = [True]  # empty, or gone, once the interpreter ends
_left: Final[set[tuple[int, int] | None]] = set()  # files with a connection of this process that stays open


class FileConnection(sqlite3.Connection):
    """A connection that gives `note` what it has opened; until then it is closed as any other."""

    _place = ""
    _files: Files | None = None
    _process = 0
    _is_left = False

    def note(self, place: str) -> None:
        """Remember the file and its log; called as soon as both are open.

        Args:
            place: the file.
        """
        self._place, self._files, self._process = place, _files_at(place), os.getpid()
        # In C: an exception out of a signal's handler that falls into a callback of Python's would be swallowed.
        _open[id(self)] = weakref.ref(self, partial(_open.pop, id(self)))

    def is_stale(self, files: Files) -> bool:
        """Whether this is a connection of this process to that file, but with another log, or with one that is gone.

        Args:
            files: that are at some place now.
        """
        ours = self._files
        return ours is not None and self._process == os.getpid() and ours[0] == files[0] and ours != files

    def close(self) -> None:
        """Close it, or leave it open for ever."""
        if self._is_left or self._leave_stale():
            return
        super().close()
        self._files = None
        _open.pop(id(self), None)

    def __del__(self) -> None:
        """It was not closed: SQLite would now."""
        if _before_end:
            self._leave_stale()

    def _leave_stale(self) -> bool:
        if self._files is None or self._process != os.getpid():
            return False
        with ignored(OSError):  # what this process may not look at, it cannot remove either
            files = _files_at(self._place)
            is_begun = any(now not in (None, seen) for now, seen in zip(files[1:], self._files[1:], strict=True))
            if files[0] == self._files[0] and (is_begun or not os.path.getsize(self._place)):
                self._is_left = True
                _left.add(self._files[0])
                forks.keep_for_ever(self)
                with ignored(sqlite3.Error):
                    self.rollback()
        return self._is_left


def refuse_stale(path: str, place: str) -> None:
    """Refuse a file of which this process has connections with another log.

    Args:
        path: as the user wrote it. place: the file.

    Raises:
        StorageError: it is one.
    """
    if not _open and not _left:
        return
    files = _files_at(place)
    if files[0] is None:
        return
    connections = [one() for one in list(_open.values())]
    if files[0] in _left or any(one is not None and one.is_stale(files) for one in connections):
        raise errors.StorageError(
            f"{path} or its log was moved or removed, and put back or begun anew, while this process had it open.",
            meaning="Nothing was written: what this process has open does not belong to what is there now.",
            todo="Restart this process. Stop every process that uses a database before you restore or move its file.",
        )


def _files_at(place: str) -> Files:
    return inode(place), inode(f"{place}-wal"), inode(f"{place}-shm")


def _leave_all_stale() -> None:
    """At the interpreter's end, which closes every connection that nobody has closed."""
    for one in list(_open.values()):
        connection = one()
        if connection is not None:
            connection._leave_stale()  # noqa: SLF001 - its own module
    _before_end.clear()


atexit.register(_leave_all_stale)
