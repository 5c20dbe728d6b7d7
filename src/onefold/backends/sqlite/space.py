"""How much of the disk a database file and its log may take, so that what frees space can always be written.

SQLite writes everything to the log first, also what deletes. A log that fills the disk can be neither written on nor
written into the file, which would have to grow for it: nothing can be accepted, finished or removed any more. So, while
there is little space, the log is kept to a share of it, sends stop while there is still room for what jobs write as they
finish (`RESERVE`), and those may use that room. With plenty of space nothing is limited.
Never here: transactions. Invariant: what the log holds fits into the file.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from typing import Final, NamedTuple

_SHARE: Final = 8  # the log's part of the space that it and the file's growth share
_PLENTY: Final = 16  # times the log's limit: with so much space nothing is limited
_LOG_BYTES_LEAST: Final = 256 * 1024  # some ten jobs' worth of changes
_RESERVE_BYTES: Final = (256 * 1024, 64 * 1024 * 1024)
_LOOK_EVERY: Final = 32  # transactions; while there is little space, at every one
_INCREMENTAL: Final = 2  # SQLite's number of that auto_vacuum
_FREE_PAGES_LEAST: Final = 256  # fewer are not worth the moving
_PAGES_GIVEN_BACK: Final = 512  # in one transaction, some milliseconds
PAGES_MAX: Final = 4_294_967_294  # SQLite's own limit


class Limits(NamedTuple):
    """What the file and its log may grow to.

    Args:
        log_bytes: of the log, before it is written into the file.
        pages: of the file, for sends. pages_reserved: for everything else.
    """

    log_bytes: int
    pages: int
    pages_reserved: int

    @property
    def is_tight(self) -> bool:
        """Whether there is little space."""
        return self.pages < PAGES_MAX


def limits(place: str, page_bytes: int, log_bytes: int) -> Limits:
    """What fits now.

    Args:
        place: the file. page_bytes: its pages. log_bytes: the log's limit where there is plenty of space.

    Raises:
        OSError: the disk cannot be asked.
    """
    disk = os.statvfs(place)
    shared = disk.f_bavail * disk.f_frsize + _size(f"{place}-wal")
    if shared >= _PLENTY * log_bytes:
        return Limits(log_bytes, PAGES_MAX, PAGES_MAX)
    file_bytes = _size(place)
    log = min(max(shared // _SHARE, _LOG_BYTES_LEAST), log_bytes)
    least, most = _RESERVE_BYTES
    reserve = min(max((file_bytes + shared) // 16, least), most)
    # Half of the rest: one transaction may take all of it, and its pages are in the log before they are in the file.
    growth = (shared - 2 * log) // 2
    sends = max(file_bytes + growth - reserve, 0) // page_bytes
    return Limits(log, max(sends, 1), max((file_bytes + growth) // page_bytes, 1))


class Space:
    """Holds a writer's connection to these limits.

    Args:
        writer: of the file, prepared. place: the file. log_bytes: the log's limit where there is plenty of space.
    """

    def __init__(self, writer: sqlite3.Connection, place: str, log_bytes: int) -> None:
        self._writer = writer
        self._place = place
        self._log_bytes = log_bytes
        self._page_bytes: int = writer.execute("PRAGMA page_size").fetchone()[0]  # an older file's own
        self._limits = Limits(log_bytes, PAGES_MAX, PAGES_MAX)
        self._until_look = 0
        self._limit(reserved=False)

    def watch(self, *, reserved: bool) -> None:
        """Before a transaction: look now and then. Make room where there is little, for one that may use the reserve."""
        self._until_look -= 1
        if reserved and self._limits.is_tight:
            self.make_room(reserved=True)
        elif self._until_look < 0:
            self._look(reserved=False)

    def make_room(self, *, reserved: bool) -> None:
        """Write the log into the file as far as readers allow, give its space back, and look again.

        Args:
            reserved: whether the next transaction may use the room that is kept for finishing jobs.
        """
        with suppress(sqlite3.Error):  # the disk is full: what fitted was written
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._look(reserved=reserved)
        self._until_look = max(self._until_look, 1)  # the next transaction has these limits

    def shorten_log(self) -> None:
        """Look, and shorten a log that is longer than it should be; outside transactions."""
        self._look(reserved=False)
        if _size(f"{self._place}-wal") > 2 * self._limits.log_bytes:
            self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)")  # most of it, while others write
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # does nothing while a reader still needs it

    @staticmethod
    def has_many_free_pages(connection: sqlite3.Connection) -> bool:
        """Whether half of the file holds nothing and can be given back."""
        pages, free, mode = (
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "auto_vacuum")
        )
        return bool(mode == _INCREMENTAL and free >= max(_FREE_PAGES_LEAST, pages // 2))

    @staticmethod
    def give_back_in(connection: sqlite3.Connection) -> None:
        """Give some pages back, inside a transaction; the disk has them once the log was written into the file."""
        for _ in range(_PAGES_GIVEN_BACK):  # Python's sqlite3 takes one step of a statement without columns: one page
            connection.execute("PRAGMA incremental_vacuum(1)")

    def _look(self, *, reserved: bool) -> None:
        self._until_look = _LOOK_EVERY
        try:
            found = limits(self._place, self._page_bytes, self._log_bytes)
        except OSError:
            return  # the file is gone, which `OpenFile` notices
        was, self._limits = self._limits, found
        if found.is_tight:
            self._until_look = 0
        if found.is_tight or found != was:
            self._limit(reserved=reserved)

    def _limit(self, *, reserved: bool) -> None:
        log, pages = self._limits.log_bytes, self._limits.pages_reserved if reserved else self._limits.pages
        self._writer.execute(f"PRAGMA max_page_count={pages}")
        self._writer.execute(f"PRAGMA wal_autocheckpoint={max(log // self._page_bytes, 1)}")
        self._writer.execute(f"PRAGMA journal_size_limit={log}")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
