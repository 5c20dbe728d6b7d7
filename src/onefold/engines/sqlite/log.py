"""The write-ahead log on its way to the disk, outside the writer's turn.

SQLite syncs the log inside COMMIT, while the turn is held. What may be seen before it is on disk is committed without that
(`Engine.write(early=True)`), the turn goes to whoever waits, and the caller syncs the log here before it answers. So a
sender's sync and a worker's transaction happen at one time, and callers that come together share a sync.
One sync covers every earlier commit of every process, as the log is one file and is read back up to its first gap.

A disk that fails says so once: the kernel takes the pages for written then, and the next sync would succeed over a gap,
behind which nothing is read back. So after one failure nothing is written or answered any more by this process.

Never here: transactions. Invariant: `flush` returns when all that was committed before the call is on disk, or raises.
"""

from __future__ import annotations

import io
import os
import threading
import weakref
from itertools import count
from typing import Final

from onefold import errors
from onefold.interrupts import ignored, let_through

_SYNC: Final = getattr(os, "fdatasync", os.fsync)  # as SQLite does: macOS has no fdatasync


class NotOnDisk(errors.StorageError):
    """A sync failed after the commit: others can see what the call wrote, and a power cut may take it back."""


class Log:
    """The log of one database file.

    Args:
        path: of the log, which SQLite has opened; the same file is opened here. None in memory: nothing is ever synced.
        failure: what the disk said to a sync of this process before; a fork does not make it good.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str | None, failure: str | None = None) -> None:
        self._path = path
        if path is not None:
            self._file = io.FileIO(path)  # not a number, which nobody would close after a signal's exception here
            self._close_file = weakref.finalize(self, self._file.close)
            self._close_file.atexit = False
        self._tickets = count(1)  # of calls, in order; of syncs too
        self._on_disk = 0  # all that was committed before that ticket
        self.failure = failure
        self._lock = threading.RLock()  # the handler of a signal may send while this thread is in here

    def flush(self) -> None:
        """Return once all that was committed before this call is on disk.

        Raises:
            NotOnDisk: the disk did not take it, now or before.
        """
        if self._path is None:
            return
        ticket = next(self._tickets)
        with self._lock:
            if self._on_disk > ticket:
                return  # a sync that began after this call has ended
            self.check(is_seen=True)
            begun = next(self._tickets)
            try:
                self._sync(self._path)
            except OSError as error:
                let_through(error)
                self.failure = str(error.strerror or error)
                self.check(is_seen=True)
            self._on_disk = max(self._on_disk, begun)

    def check(self, *, is_seen: bool = False) -> None:
        """Refuse to go on after a sync that failed.

        Args:
            is_seen: the call that asks has written something that others can see.

        Raises:
            StorageError: one has failed in this process; NotOnDisk where `is_seen`.
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
        # The engine was closed between this commit and now. Who closes a file last writes its log into it and syncs that.
        with ignored(FileNotFoundError):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _SYNC(file)
            finally:
                os.close(file)

    def close(self) -> None:
        """Close the file, after the sync that is under way."""
        if self._path is not None:
            with self._lock:
                self._close_file()
