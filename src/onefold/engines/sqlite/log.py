"""The write-ahead log of a database file on its disk: its syncs, and the space allocated ahead of its content.

SQLite syncs the log inside COMMIT, while the writer's turn is held. Work that may be seen before it is on disk is
committed without a sync (`Database.write(early=True)`); the turn goes to the next thread, and the caller syncs the log
before it returns (`Log`). So a sender's sync and a worker's transaction run at the same time, and callers that arrive
together share a sync. One sync covers every earlier commit of every process, because the log is one file and is read
back up to its first gap. The kernel reports a disk failure only once: afterwards it treats the pages as written, and
the next sync would succeed although there is a gap, after which nothing is read back. So after one failure this process
neither writes nor confirms anything any more.

A sync of a file that has grown also writes its new length into the file system's journal, which takes as long again as
the data (docs/decisions/0031). So the log is extended ahead of SQLite, with zeros and in large steps, as PostgreSQL
does (`wal_init_zero`). SQLite reads a log up to the first frame that lacks the salt of the log's header or has a page
number of 0 (https://www.sqlite.org/fileformat2.html#walformat), and overwrites what comes after that, which is usually
the rest of an older log.

Never here: the content of the log, and how long it may become (`file.Space`). Invariants: `Log.flush` returns when all
that was committed before the call is on disk, or raises; only zeros are written to a log here, after its end, and only
with the file's turn.
"""

from __future__ import annotations

import io
import os
import threading
import weakref
from itertools import count
from typing import Final

from onefold import errors, forks
from onefold.engines.sqlite.refusals import translate
from onefold.interrupts import ignored, let_through

_STEP_BYTES: Final = 256 * 1024
_SYNC: Final = getattr(os, "fdatasync", os.fsync)  # as SQLite does: macOS has no fdatasync


class NotOnDisk(errors.StorageError):
    """A sync failed after the commit: other processes can see what the call wrote, and a power cut may undo it."""


class Log:
    """The log of one database file.

    Args:
        path: path of the log, which SQLite has opened; the same file is opened here. None for a database in memory, for
            which nothing is synced.
        failure: the error of an earlier failed sync of this process, which also holds after a fork.

    Raises:
        StorageError: it cannot be opened for writing. StorageBusy: there is no file descriptor left.
    """

    def __init__(self, path: str | None, failure: str | None = None) -> None:
        self._path = path
        if path is not None:
            try:
                self._file = io.FileIO(path, "r+")  # not a bare descriptor: closed even if a signal handler raises
            except OSError as error:  # SQLite opens a log that this user may only read
                let_through(error)
                raise translate(error, path) from error
            self._close_file = weakref.finalize(self, _close, self._file, forks.OwnFile(self._file.fileno()))
            self._close_file.atexit = False
        self._tickets = count(1)  # numbers calls and syncs in one order
        self._on_disk = 0  # all that was committed before that ticket is on disk
        self.failure = failure
        self._lock = threading.RLock()  # reentrant: a signal handler may send a message while this thread holds it

    def flush(self) -> None:
        """Return once all that was committed before this call is on disk.

        Raises:
            NotOnDisk: a sync failed, now or before.
        """
        if self._path is None:
            return
        ticket = next(self._tickets)
        with self._lock:
            if self._on_disk > ticket:
                return  # a sync that began after this call did has finished
            self.check(is_seen=True)
            begun = next(self._tickets)
            try:
                self._sync(self._path)
            except OSError as error:
                let_through(error)
                self.failure = str(error.strerror or error)
                self.check(is_seen=True)
            self._on_disk = max(self._on_disk, begun)

    def begin(self, *, grows: bool) -> None:
        """Allocate room in the log's file for the next commits; call it after BEGIN, before anything is written.

        A log whose length is not a multiple of the step has grown beyond what was allocated.

        Args:
            grows: False if there is little space.

        Raises:
            StorageError: as for `check`.
        """
        self.check()
        if grows and (length := os.lseek(self._file.fileno(), 0, os.SEEK_END)) % _STEP_BYTES:
            with ignored(OSError):  # SQLite's own write succeeds without it, or raises the error
                os.pwrite(self._file.fileno(), bytes(-length % _STEP_BYTES), length)

    def check(self, *, is_seen: bool = False) -> None:
        """Refuse to continue after a sync that failed.

        Args:
            is_seen: the calling operation has written something that others can see.

        Raises:
            StorageError: a sync has failed in this process; NotOnDisk if `is_seen`.
        """
        if self.failure is not None:
            seen = "What this call wrote can be seen, but a power cut may take it back."
            kind = NotOnDisk if is_seen else errors.StorageError
            raise kind(
                f"{self._path} could not be written to the disk: {self.failure}.",
                meaning=seen if is_seen else "Nothing was written: it would come behind what is not on the disk.",
                todo="Check the disk, restart every process that uses the file, then make the same call again.",
            )

    def _sync(self, path: str) -> None:
        if self._close_file.alive:
            _SYNC(self._file.fileno())
            return
        # The engine was closed between this commit and now. The last process to close a file writes its log into it and
        # syncs it.
        with ignored(FileNotFoundError):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _SYNC(file)
            finally:
                os.close(file)

    def close(self) -> None:
        """Close the file, after the sync in progress."""
        if self._path is not None:
            with self._lock:
                self._close_file()


def _close(file: io.FileIO, own: forks.OwnFile) -> None:
    if own.is_ours():
        file.close()
    else:
        forks.keep_for_ever(file)  # the program has closed it, and its number may be another file's
