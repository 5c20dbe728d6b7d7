"""How much of the disk a database file and its log may take, so that what was accepted can be finished.

SQLite writes everything to the log first, also what deletes. A log that fills the disk can be neither written on nor
written into the file, which would have to grow for it: nothing can be accepted, finished or removed any more. So, while
there is little space, the log is kept to a share of it; and what only takes space (a send, a guarded call) is refused
while there is still room for what the others write: for one record, by a mean of those that are there, of each message in
the file, and a share of the disk besides. With plenty of space nothing is limited, and nothing is counted.
Never here: transactions. Invariant: what the log holds fits into the file.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from onefold.clock import SystemClock
from onefold.engines.sqlite.refusals import DiskFull
from onefold.engines.sqlite.turn import Run
from onefold.interrupts import ignored, let_through

T = TypeVar("T")

_SHARE: Final = 8  # the log's part of the space that it and the file's growth share
_PLENTY: Final = 16  # times the log's limit: with so much space nothing is limited
_LOG_BYTES_LEAST: Final = 256 * 1024  # some ten jobs' worth of changes
_RESERVE_BYTES: Final = (256 * 1024, 64 * 1024 * 1024)
_LOOK_EVERY: Final = 32  # transactions
_LOOK_EVERY_WHEN_TIGHT: Final = 8
_SCARCE_BYTES: Final = (
    4 * 1024 * 1024
)  # with so little left to grow by, the log is written into the file before each job
_LIKE: Final = 64  # limits that differ by less than one part in so many are not set again
_INCREMENTAL: Final = 2  # SQLite's number of that auto_vacuum
_FREE_PAGES_LEAST: Final = 256  # fewer are not worth the moving
_PAGES_GIVEN_BACK: Final = 512  # in one transaction, some milliseconds
PAGES_MAX: Final = 4_294_967_294  # SQLite's own limit

_RECORD_BYTES_LEAST: Final = 512  # a record without a result takes 200, a small message that a handler sends 300
_RECORDS_MEASURED: Final = 256  # the newest
_ROWS_MAX: Final = 8  # of history that a run may leave, by the mean
_CALLS: Final = 16  # guarded calls that may be going on at one time, by the mean of what is recorded
_COUNT_EVERY: Final = 256  # sends, and an eighth of what waits; so that larger records are noticed
_COUNT_SHARE: Final = 20  # where sends are refused, messages are counted for at most one part in so many of the time
# Every message is in one of two narrow tables, whatever its body takes. None where there are no messages yet.
_COUNT: Final = "SELECT (SELECT count(*) FROM onefold_waiting) + (SELECT count(*) FROM onefold_received)"
_LAST_ID: Final = "SELECT last_id FROM onefold_file"
# 110 and the second ident: the rest of a row, and its place in the index, measured with dbstat; 300 for a row of history.
_RECORD_BYTES: Final = f"""
    SELECT ifnull(avg(110 + 2 * length(ident) + length(fingerprint) + length(scope) + length(job) + length(key)
        + ifnull(length(message_id), 0) + ifnull(length(result), 0) + ifnull(length(failure), 0)
        + ifnull(length(outbox), 0)), 0)
    + 300 * min({_ROWS_MAX}, ifnull((
        SELECT ((SELECT max(id) FROM onefold_ledger) - (SELECT min(id) FROM onefold_ledger) + 1.0)
        / ((SELECT max(id) FROM onefold_record) - (SELECT min(id) FROM onefold_record) + 1)
    ), 0))
    FROM (SELECT * FROM onefold_record ORDER BY id DESC LIMIT {_RECORDS_MEASURED}) WHERE status <> 0
"""


class Limits(NamedTuple):
    """What the file and its log may grow to.

    Args:
        log_bytes: of the log, before it is written into the file.
        pages: of the file. spare_bytes: of these, what sends leave to the others in any case.
        growth_bytes: by so much the file may become larger than it is.
    """

    log_bytes: int
    pages: int
    spare_bytes: int = 0
    growth_bytes: int = 0

    @property
    def is_tight(self) -> bool:
        """Whether there is little space."""
        return self.pages < PAGES_MAX

    def is_like(self, other: Limits) -> bool:
        """Whether it is not worth while to set these in place of the others."""
        return all(abs(one - was) * _LIKE <= was for one, was in zip(self[:2], other[:2], strict=True))


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
        return Limits(log_bytes, PAGES_MAX)
    file_bytes = _size(place)
    log = min(max(shared // _SHARE, _LOG_BYTES_LEAST), log_bytes)
    least, most = _RESERVE_BYTES
    # Half of the rest: one transaction may take all of it, and its pages are in the log before they are in the file.
    growth = (shared - 2 * log) // 2
    return Limits(
        log,
        max((file_bytes + growth) // page_bytes, 1),
        min(max((file_bytes + shared) // 16, least), most),
        max(growth, 0),
    )


class Waiting(NamedTuple):
    """What is to be finished, as it was counted.

    Args:
        messages: that many. last_id: the last id that was given out then. each_bytes: kept for each.
    """

    messages: int
    last_id: int
    each_bytes: int


class Space:
    """Holds a writer's connection to these limits.

    Args:
        writer: of the file, prepared. path: as the user wrote it. place: the file.
        log_bytes: the log's limit where there is plenty of space.
        may_checkpoint: whether the log is the file's own; asked before it is written into the file.
    """

    def __init__(
        self, writer: sqlite3.Connection, path: str, place: str, log_bytes: int, may_checkpoint: Callable[[], bool]
    ) -> None:
        self._writer = writer
        self._path = path
        self._place = place
        self._log_bytes = log_bytes
        self._may_checkpoint = may_checkpoint
        self._page_bytes = _asked(writer, "page_size")  # an older file's own
        self._limits = self._set = Limits(log_bytes, PAGES_MAX)
        self._until_look = 0
        self._clock = SystemClock()
        self._waiting: Waiting | None = None
        self._count_again_ms = 0
        self._limit()

    @property
    def is_tight(self) -> bool:
        """Whether there is little space, when it was last looked."""
        return self._limits.is_tight

    def watch(self, *, reserved: bool) -> None:
        """Before a transaction: look now and then.

        Args:
            reserved: it is not called again after it met a full disk; so there is to be room in the log for it.
        """
        self._until_look -= 1
        if self._until_look < 0:
            self._look()
        if reserved and self._limits.is_tight and self._limits.growth_bytes < _SCARCE_BYTES:
            self.make_room()

    def make_room(self) -> None:
        """Write the log into the file as far as readers allow, give its space back, and look again."""
        if not self._may_checkpoint():
            return  # whoever writes next refuses
        with ignored(sqlite3.Error):  # the disk is full: what fitted was written
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._look()
        if self._limits != self._set:
            self._limit()
        if self._clock.monotonic_ms() >= self._count_again_ms:
            self._waiting = None

    def leaving_room(self, run: Run[T]) -> Run[T]:
        """Work that only takes space, which then raises DiskFull where all that waits could not be finished beside it.

        What has changed nothing needs no room: a duplicate's answer.
        """

        def checked(writer: sqlite3.Connection) -> T:
            changes = writer.total_changes
            value = run(writer)
            if writer.total_changes != changes:
                self._check_room(writer)
            return value

        return checked

    def _check_room(self, writer: sqlite3.Connection) -> None:
        """Messages are counted now and then; in between, each that was sent counts, and none that was finished."""
        found = self._limits
        if not found.is_tight:
            return
        free = max(found.pages - _asked(writer, "page_count"), 0) + _asked(writer, "freelist_count")
        room = free * self._page_bytes
        last_id: int = writer.execute(_LAST_ID).fetchone()[0]
        waiting = self._waiting
        if waiting is None or last_id - waiting.last_id > _COUNT_EVERY + waiting.messages // 8:
            waiting = self._waiting = self._count(writer, last_id)
        messages = waiting.messages + last_id - waiting.last_id
        # Guarded calls that are going on are not counted: for these, and the one that begins, is what is spared.
        needed = max(found.spare_bytes, _CALLS * waiting.each_bytes) + messages * waiting.each_bytes
        if room < needed:
            raise DiskFull(
                f"{self._path} takes no more messages or guarded calls: {room // 1024:,} KiB are left for it.",
                meaning=f"Nothing of this call was stored. {needed // 1024:,} KiB are kept for finishing the {messages:,} "
                "messages that are there.",
                todo="Free space on the disk or enlarge it; or let workers finish what is there. What they record of it "
                "stays for its lifetime.",
            )

    def shorten_log(self) -> None:
        """Look, and shorten a log that is longer than it should be; outside transactions."""
        self._look()
        if _size(f"{self._place}-wal") > 2 * self._limits.log_bytes and self._may_checkpoint():
            self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)")  # most of it, while others write
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # does nothing while a reader still needs it

    @staticmethod
    def has_many_free_pages(connection: sqlite3.Connection) -> bool:
        """Whether half of the file holds nothing and can be given back."""
        pages, free, mode = (_asked(connection, name) for name in ("page_count", "freelist_count", "auto_vacuum"))
        return bool(mode == _INCREMENTAL and free >= max(_FREE_PAGES_LEAST, pages // 2))

    @staticmethod
    def give_back_in(connection: sqlite3.Connection) -> None:
        """Give some pages back, inside a transaction; the disk has them once the log was written into the file."""
        for _ in range(_PAGES_GIVEN_BACK):  # Python's sqlite3 takes one step of a statement without columns: one page
            connection.execute("PRAGMA incremental_vacuum(1)")

    def _count(self, writer: sqlite3.Connection, last_id: int) -> Waiting:
        since_ms = self._clock.monotonic_ms()
        messages: int = writer.execute(_COUNT).fetchone()[0]
        mean: float = writer.execute(_RECORD_BYTES).fetchone()[0]
        now_ms = self._clock.monotonic_ms()
        self._count_again_ms = now_ms + (now_ms - since_ms) * _COUNT_SHARE
        return Waiting(messages, last_id, max(int(mean) + _RECORD_BYTES_LEAST // 2, _RECORD_BYTES_LEAST))

    def _look(self) -> None:
        self._until_look = _LOOK_EVERY
        try:
            self._limits = limits(self._place, self._page_bytes, self._log_bytes)
        except OSError as error:
            let_through(error)
            return  # the file is gone, which `OpenFile` notices
        if self._limits.is_tight:
            self._until_look = _LOOK_EVERY_WHEN_TIGHT
        if not self._limits.is_like(self._set):
            self._limit()

    def _limit(self) -> None:
        self._set = self._limits
        log = self._limits.log_bytes
        self._writer.execute(f"PRAGMA max_page_count={self._limits.pages}")
        self._writer.execute(f"PRAGMA wal_autocheckpoint={max(log // self._page_bytes, 1)}")
        self._writer.execute(f"PRAGMA journal_size_limit={log}")


def _asked(connection: sqlite3.Connection, name: str) -> int:
    answer: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return answer


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError as error:
        let_through(error)
        return 0
