"""A database file on its disk: which file a URL names, whether it is still there, and how much space it may take.

    sqlite:///relative/path.db    sqlite:////absolute/path.db    sqlite://:memory:    sqlite:///db.sqlite3?adopt=yes

Waiting times, page size and the log's length are chosen by the code that opens the file. The only option of such a URL,
`adopt=yes`, lets onefold add its tables to another program's file. If a file is removed or replaced while a process has
it open, no other process sees what that process writes, and its log, which others find by name, would be applied to the
file that now has the name. `OpenFile` detects that.

SQLite writes everything to the log first, even deletions. When the log has filled the disk, it can neither grow nor be
written into the file, which would have to grow too: nothing can be accepted, finished or removed any more. So, while there
is little space (`Space`), the log is limited to a share of it, and work that only takes space (a send, a guarded call) is
refused while there is still room to finish accepted work: one record of average size for each message in the file, plus a
share of the disk. With plenty of space nothing is limited, and nothing is counted.

Never here: connections, transactions. Invariants: a path is `:memory:` or consists of printable characters; a page size
applies to new files, and existing files keep theirs; the content of the log fits into the file.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, TypeVar
from urllib.parse import quote

from msgspec import Struct

from onefold import errors
from onefold.clock import SystemClock
from onefold.contracts.store import RecordKey, ident_of
from onefold.engines.sqlite.refusals import DiskFull, is_damage, primary, translate
from onefold.engines.sqlite.turn import Run
from onefold.interrupts import ignored, let_through

if TYPE_CHECKING:
    import sqlite3


class FileSettings(Struct, frozen=True, kw_only=True):
    """The defaults are those of workers.

    Args:
        busy_ms: how long a write waits for other processes, and for an open transaction of its own process, before it
            raises `StorageBusy`; milliseconds, 0 or more.
        log_bytes: length of the write-ahead log at which it is written into the file and overwritten from its
            beginning. Until it has reached that length, a sync also has to store its new length (80 us more on ext4).
            40 MB: 10-30 % more jobs than with SQLite's 4 MB, measured.
        page_bytes: page size of a new file: a power of 2, 512 to 65,536
            (https://www.sqlite.org/pragma.html#pragma_page_size). A commit writes whole pages: small pages make small
            changes cheaper; large pages, large messages and long scans.
        adopts: add onefold's tables to another program's file instead of refusing it.
    """

    busy_ms: int = 10_000
    log_bytes: int = 40_960_000
    page_bytes: int = 4_096
    adopts: bool = False


APPLICATION_ID: Final = 0x6F6E6566  # the letters "onef", in SQLite's header field for the file type


@cache
def latest() -> int:
    """The version of the schema that this onefold uses."""
    return len(list((Path(__file__).parent / "sql").glob("[0-9]*.sql")))


FOR_WORKERS: Final = FileSettings()


_DEFAULT_FOLDER: Final = ".onefold"  # of an app that names no URL; it is made if it does not exist
_ADOPTS: Final = "?adopt=yes"


def adopts(url: str) -> bool:
    """Whether a URL allows onefold to add its tables to another program's file."""
    return url.endswith(_ADOPTS)


def path_of(url: str, rest: str) -> str:
    """The file that `url` names; `rest` is the part of `url` after `sqlite://`.

    Raises:
        UsageError: it does not name a file, or has more than a path.
    """
    rest = rest.removesuffix(_ADOPTS)
    if rest == ":memory:":
        return rest
    if not rest.startswith("/") or rest == "/":
        raise errors.UsageError(
            f"{url!r} names no file.",
            todo="A relative file has three slashes (sqlite:///shop.db), an absolute one four (sqlite:////var/shop.db).",
        )
    if not rest.isprintable() or "?" in rest:
        raise errors.UsageError(
            f"{url!r} is more than a path.",
            meaning="A sqlite URL has no option but adopt=yes, and a path no control characters.",
            todo="Write the plain path of the file, for example sqlite:///.onefold/shop.db.",
        )
    return rest[1:]


def refuse_no_folder(path: str, real_path: str) -> None:
    """Refuse to make a file in a folder that does not exist, except for the default's own folder.

    Raises:
        StorageError: the folder does not exist.
    """
    folder = os.path.dirname(os.path.realpath(real_path))
    own = os.path.dirname(folder) if os.path.basename(folder) == _DEFAULT_FOLDER else folder
    try:
        os.stat(own)
    except FileNotFoundError as error:
        let_through(error)
        raise errors.StorageError(
            f"There is no folder {own}, in which {os.path.abspath(path)} would be made.",
            meaning="Perhaps the path is misspelt, or a volume is not mounted: a new file has no record of what was done "
            "before. Nothing was made.",
            todo="~ is not expanded in a URL: write the folder's whole path."
            if "~" in path.split("/")
            else f"Correct the URL, or make the folder: mkdir -p {shlex.quote(own)}",
        ) from None


class OpenFile:
    """The file that a path named when it was opened, and its log.

    Args:
        path: as the user wrote it. Errors show it as an absolute path; it may be a link that is changed later.
    """

    def __init__(self, path: str) -> None:
        self._path = self._name = os.path.abspath(path)  # this process may change its working directory
        self.real_path = os.path.realpath(path)
        self.log = f"{self.real_path}-wal"
        self._index = f"{self.real_path}-shm"
        self._seen: list[tuple[int, int] | None] = []
        self._damage: str | None = None

    def note(self) -> None:
        """Remember which file and log this process has opened; called as soon as both are open."""
        self._seen = [inode(self._name), inode(self.log), inode(self._index)]

    def is_itself(self) -> bool:
        """Whether the path still names the file that was opened, whatever its log; for a file that was closed since."""
        return inode(self._name) == self._seen[0]

    def is_there(self) -> bool:
        """Whether file, log and index are still those that this process has open, and the file is not empty.

        Called at every write; takes 4 us.

        Two processes with different indexes on one log would each overwrite what the other has accepted.

        Raises:
            StorageError: it was found damaged before.
        """
        self._check_whole()
        try:
            main, log, index = os.stat(self._name), os.stat(self.log), os.stat(self._index)
        except OSError as error:
            let_through(error)
            if isinstance(error, PermissionError):  # this process has dropped privileges since it opened them
                return True
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise
            return False
        seen = [(main.st_dev, main.st_ino), (log.st_dev, log.st_ino), (index.st_dev, index.st_ino)]
        return seen == self._seen and main.st_size > 0

    def as_ours(self, error: BaseException) -> BaseException:
        """Like `refusals.translate`. An error that shows damage to the file is remembered: see `is_there`."""
        if is_damage(error):
            self._damage = self._damage or str(error)
        # SQLITE_ERROR: a table or column is not there.
        if isinstance(error, sqlite3.Error) and primary(error) == sqlite3.SQLITE_ERROR:
            version = self._version()
            if version > latest():
                return errors.StorageError(
                    f"{self._path} has schema version {version} now; this process knows versions up to {latest()}.",
                    meaning="A newer onefold has changed the file meanwhile. No part of this call was stored.",
                    todo="Restart this process, with the version of onefold that the other processes on this file use.",
                )
        return translate(error, self._path)

    def _version(self) -> int:
        """The schema version that is in the file now; 0 if it cannot be read, or the file is another program's."""
        try:
            with closing(sqlite3.connect(f"file:{quote(self.real_path)}?mode=ro", uri=True, timeout=1)) as link:
                is_ours = link.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
                return int(link.execute("PRAGMA user_version").fetchone()[0]) if is_ours else 0
        except sqlite3.Error:
            return 0

    def _check_whole(self) -> None:
        """Refuse to write after the file was found damaged: cached pages would hide the damage and make it worse.

        Raises:
            StorageError: it was found damaged.
        """
        if self._damage is not None:
            raise errors.StorageError(
                f"{self._path} or its log was found damaged by an earlier call of this process: {self._damage}.",
                meaning="No part of this call was stored.",
                todo="Stop every process that uses it and restore a copy; `sqlite3 FILE .recover` may save what is in it.",
            )

    def is_log_gone(self) -> bool:
        """Whether the log or its index was removed and not replaced, while the file itself still exists."""
        now = [inode(self.real_path), inode(self.log), inode(self._index)]
        return (
            now[0] == self._seen[0]
            and None in now
            and all(one in (None, seen) for one, seen in zip(now, self._seen, strict=True))
        )

    def move_old_log(self) -> str | None:
        """Rename the log of a file that is gone, so that it is not applied to the current file.

        Returns:
            The log's new path; None if there was nothing to move.
        """
        if inode(self.real_path) == self._seen[0]:
            return None
        if inode(self._index) == self._seen[2]:
            with ignored(OSError):
                os.unlink(self._index)
        if inode(self.log) != self._seen[1]:
            return None
        target = f"{self.log}-of-replaced-{os.getpid()}"
        try:
            os.rename(self.log, target)
        except OSError as error:  # another process that used the old file has done it
            let_through(error)
            return None
        return target

    def give_up(self, writer: sqlite3.Connection) -> NoReturn:
        """Refuse to write, because no other process would find it; what can be saved is written into the file.

        Args:
            writer: the file's writer, outside a transaction.

        Raises:
            StorageError: always.
        """
        is_saved = False
        if self.is_log_gone():  # no new log was begun: this process still has all of the log's content
            _, held, written = writer.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
            is_saved = held == written
        raise self.refusal(is_saved=is_saved, log=self.move_old_log())

    def refusal(self, *, is_saved: bool, log: str | None) -> errors.StorageError:
        """The error that says why nothing can be written any more.

        Args:
            is_saved: the content of the removed log was written into the file first.
            log: where `move_old_log` has moved the log.
        """
        if inode(self.real_path) == self._seen[0] == inode(self._name) and os.stat(self.real_path).st_size:
            saved = "what was accepted before is in the file" if is_saved else "what was accepted last may be lost"
            return errors.StorageError(
                f"The log of {self._path} ({self.log}, {self._index}) was removed or replaced while this process used it.",
                meaning=f"Nothing was written; {saved}. Other processes would not have seen it.",
                todo="Restart every process that uses the file, and keep its -wal and -shm files while one does.",
            )
        how = "was removed" if inode(self._name) is None else "is another file now"
        if inode(self._name) == self._seen[0]:
            how = "was emptied"
        moved = f" Its log was moved to {log}, so that it is not applied to the new file." if log else ""
        return errors.StorageError(
            f"{self._path} {how}: it is not the one that this process opened.",
            meaning=f"Nothing was written: it would have been lost.{moved}",
            todo="Restart this process. Stop every process that uses a database before you restore or move its file.",
        )


def inode(path: str) -> tuple[int, int] | None:
    """Device and inode of a file; None if it does not exist."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        let_through(error)
        return None
    return found.st_dev, found.st_ino


_FAMILY_BYTES: Final = 8  # never changes: existing files use it


def ident(key: RecordKey) -> bytes:
    """The operation's value in the unique index, 9 to 57 bytes."""
    return ident_of(key, _FAMILY_BYTES)


T = TypeVar("T")

_SHARE: Final = 8  # the log may take this fraction (1/n) of the space for itself and the file's growth
_PLENTY: Final = 16  # nothing is limited while there is room for this many times the log's limit
_LOG_BYTES_LEAST: Final = 256 * 1024  # the changes of about ten jobs
_RESERVE_BYTES: Final = (256 * 1024, 64 * 1024 * 1024)
_LOOK_EVERY: Final = 32  # transactions
_LOOK_EVERY_WHEN_TIGHT: Final = 8
# With this little left to grow, the log is written into the file before each job.
_SCARCE_BYTES: Final = 4 * 1024 * 1024
_LIKE: Final = 64  # limits that differ by less than this fraction (1/n) are not set again
_INCREMENTAL: Final = 2  # SQLite's number for this mode of auto_vacuum
_FREE_PAGES_LEAST: Final = 256  # fewer pages are not worth moving
_PAGES_GIVEN_BACK: Final = 512  # in one transaction, some milliseconds
PAGES_MAX: Final = 4_294_967_294  # SQLite's own limit

_RECORD_BYTES_LEAST: Final = 512  # a record without a result takes 200, a small message that a handler sends 300
_RECORDS_MEASURED: Final = 256  # the newest records
_ROWS_MAX: Final = 8  # rows of history that count per record, at most; the average is measured
_CALLS: Final = 16  # guarded calls in progress at one time, each counted with the average record
_COUNT_EVERY: Final = 256  # sizes are measured again after this many sends plus an eighth of the waiting messages
_COUNT_SHARE: Final = 20  # while sends are refused, counting messages takes at most this fraction (1/n) of the time
# Every message has a row in one of two narrow tables, whatever the size of its body.
_COUNT: Final = "SELECT (SELECT count(*) FROM onefold_waiting) + (SELECT count(*) FROM onefold_received)"
_LAST_ID: Final = "SELECT last_id FROM onefold_file"
# 110 and the second ident are the rest of a row and its index entry, measured with dbstat; 300 is a row of history.
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
    """How far the file and its log may grow.

    Args:
        log_bytes: length of the log at which it is written into the file.
        pages: size of the file in pages. spare_bytes: the part of it that sends always leave for other work.
        growth_bytes: how much larger the file may become.
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
        """Whether these limits are too close to the others to be worth setting."""
        return all(abs(one - was) * _LIKE <= was for one, was in zip(self[:2], other[:2], strict=True))


def limits(real_path: str, page_bytes: int, log_bytes: int) -> Limits:
    """The limits for the space that is free now.

    Args:
        real_path: the file. page_bytes: size of its pages. log_bytes: the log's limit where there is plenty of space.

    Raises:
        OSError: the free space cannot be read.
    """
    disk = os.statvfs(real_path)
    shared = disk.f_bavail * disk.f_frsize + _size(f"{real_path}-wal")
    if shared >= _PLENTY * log_bytes:
        return Limits(log_bytes, PAGES_MAX)
    file_bytes = _size(real_path)
    log = min(max(shared // _SHARE, _LOG_BYTES_LEAST), log_bytes)
    least, most = _RESERVE_BYTES
    # Half of the rest: one transaction may use all of it, and its pages are written to the log before they are to the
    # file.
    growth = (shared - 2 * log) // 2
    return Limits(
        log,
        max((file_bytes + growth) // page_bytes, 1),
        min(max((file_bytes + shared) // 16, least), most),
        max(growth, 0),
    )


class Waiting(NamedTuple):
    """The messages still to be finished, as last counted.

    Args:
        messages: how many. last_id: the last id that was assigned then. each_bytes: space reserved for each.
    """

    messages: int
    last_id: int
    each_bytes: int


class Space:
    """Applies these limits to a writer's connection.

    Args:
        writer: the file's writer, with its pragmas set. path: as the user wrote it. real_path: the file.
        log_bytes: the log's limit where there is plenty of space.
        may_checkpoint: returns whether the log belongs to the file; called before the log is written into the file.
    """

    def __init__(
        self, writer: sqlite3.Connection, path: str, real_path: str, log_bytes: int, may_checkpoint: Callable[[], bool]
    ) -> None:
        self._writer = writer
        self._path = os.path.abspath(path)
        self._real_path = real_path
        self._log_bytes = log_bytes
        self._may_checkpoint = may_checkpoint
        self._page_bytes = _asked(writer, "page_size")  # an older file keeps its own
        self._limits = self._set = Limits(log_bytes, PAGES_MAX)
        self._until_check = 0
        self._clock = SystemClock()
        self._waiting: Waiting | None = None
        self._count_again_ms = 0
        self._limit()

    @property
    def is_tight(self) -> bool:
        """Whether there was little space at the last check."""
        return self._limits.is_tight

    def watch(self, *, reserved: bool) -> None:
        """Check the space from time to time; call it before each transaction.

        Args:
            reserved: the work is not repeated if the disk is full, so there must be room in the log for it.
        """
        self._until_check -= 1
        if self._until_check < 0:
            self._check()
        if reserved and self._limits.is_tight and self._limits.growth_bytes < _SCARCE_BYTES:
            self.make_room()

    def make_room(self) -> None:
        """Write the log into the file as far as readers allow, free its space, and check again."""
        if not self._may_checkpoint():
            return  # the next write is refused
        with ignored(sqlite3.Error):  # the disk is full: as much as fits is written
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._check()
        if self._limits != self._set:
            self._limit()
        if self._clock.monotonic_ms() >= self._count_again_ms:
            self._waiting = None

    def leaving_room(self, run: Run[T]) -> Run[T]:
        """Wrap work that only takes space: it raises DiskFull if too little would be left to finish all waiting messages.

        Work that changed nothing (the answer to a duplicate) needs no space.
        """

        def checked(writer: sqlite3.Connection) -> T:
            changes = writer.total_changes
            value = run(writer)
            if writer.total_changes != changes:
                self._check_room(writer)
            return value

        return checked

    def _check_room(self, writer: sqlite3.Connection) -> None:
        """Refuse if space is short. Messages are counted rarely; in between, sends are added and deletions ignored."""
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
        # Guarded calls in progress are not counted: the spare space is for them, and for the call that begins.
        needed = max(found.spare_bytes, _CALLS * waiting.each_bytes) + messages * waiting.each_bytes
        if room < needed:
            raise DiskFull(
                f"{self._path} takes no more messages or guarded calls: {room // 1024:,} KiB are left for it.",
                meaning=f"No part of this call was stored. {needed // 1024:,} KiB are kept for finishing the {messages:,} "
                "messages that are there.",
                todo="Free space on the disk or enlarge it; or let workers finish what is in the file. The records "
                "that they write for it stay until they expire.",
            )

    def shorten_log(self) -> None:
        """Check the space, and shorten a log that is too long; call it outside a transaction."""
        self._check()
        if _size(f"{self._real_path}-wal") > 2 * self._limits.log_bytes and self._may_checkpoint():
            self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)")  # does most of the work while others can write
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # does nothing while a reader still needs the log

    @staticmethod
    def has_many_free_pages(connection: sqlite3.Connection) -> bool:
        """Whether half of the file is empty and can be returned to the disk."""
        pages, free, mode = (_asked(connection, name) for name in ("page_count", "freelist_count", "auto_vacuum"))
        return bool(mode == _INCREMENTAL and free >= max(_FREE_PAGES_LEAST, pages // 2))

    @staticmethod
    def give_back_in(connection: sqlite3.Connection) -> None:
        """Free some pages, inside a transaction; the disk gets them once the log was written into the file."""
        for _ in range(_PAGES_GIVEN_BACK):  # Python's sqlite3 takes one step of a statement without columns: one page
            connection.execute("PRAGMA incremental_vacuum(1)")

    def _count(self, writer: sqlite3.Connection, last_id: int) -> Waiting:
        since_ms = self._clock.monotonic_ms()
        messages: int = writer.execute(_COUNT).fetchone()[0]
        mean: float = writer.execute(_RECORD_BYTES).fetchone()[0]
        now_ms = self._clock.monotonic_ms()
        self._count_again_ms = now_ms + (now_ms - since_ms) * _COUNT_SHARE
        return Waiting(messages, last_id, max(int(mean) + _RECORD_BYTES_LEAST // 2, _RECORD_BYTES_LEAST))

    def _check(self) -> None:
        self._until_check = _LOOK_EVERY
        try:
            self._limits = limits(self._real_path, self._page_bytes, self._log_bytes)
        except OSError as error:
            let_through(error)
            return  # the file is gone, which `OpenFile` notices
        if self._limits.is_tight:
            self._until_check = _LOOK_EVERY_WHEN_TIGHT
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
