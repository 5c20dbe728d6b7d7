"""A database file: which one a `sqlite://` URL names, what may be chosen about it, and whether it is still there.

    sqlite:///relative/path.db    sqlite:////absolute/path.db    sqlite://:memory:

How long to wait for it, its pages, and how long its log may become are chosen by who opens it: such a URL has no options.
A file that was removed or replaced while a process has it open takes that process's writes to where nobody looks for them,
and its log, which others find by name, would be applied to whatever file has the name now. `OpenFile` notices.
Never here: opening one. Invariant: a path is `:memory:` or of printable characters; a page size is of new files, others keep
their own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NoReturn

from msgspec import Struct

from onefold import errors
from onefold.contracts.store import RecordKey, ident_of
from onefold.engines.sqlite.refusals import is_damage, translate
from onefold.interrupts import ignored, let_through

if TYPE_CHECKING:
    import sqlite3


class FileSettings(Struct, frozen=True, kw_only=True):
    """The defaults are those of workers.

    Args:
        busy_ms: how long a write waits for other processes, and for an open transaction of its own, before `StorageBusy`, in
            milliseconds, 0 or more.
        log_bytes: of the write-ahead log, after which it is written into the file and overwritten from its beginning. Until
            it has grown to that, a sync has to note its new length too (80 us more on ext4). 40 MB: 10-30 % more jobs than
            with SQLite's 4 MB, measured.
        page_bytes: of a new file: a power of 2, 512 to 65,536 (https://www.sqlite.org/pragma.html#pragma_page_size). A
            commit writes whole pages: small ones make small changes cheaper, large ones large messages and long scans.
    """

    busy_ms: int = 10_000
    log_bytes: int = 40_960_000
    page_bytes: int = 4_096


FOR_WORKERS: Final = FileSettings()


def path_of(url: str, rest: str) -> str:
    """The file that `url` names, `rest` being what follows `sqlite://`.

    Raises:
        UsageError: it names none, or says more than a path.
    """
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
            meaning="A sqlite URL has no options, and a path no control characters.",
            todo="Write the plain path of the file, for example sqlite:///.onefold/shop.db.",
        )
    return rest[1:]


class OpenFile:
    """The file at a path as it was when it was opened, and its log.

    Args:
        path: as the user wrote it, for error texts and for a link that may be pointed elsewhere.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._name = os.path.abspath(path)  # this process may change its folder
        self.place = os.path.realpath(path)
        self.log = f"{self.place}-wal"
        self._index = f"{self.place}-shm"
        self._seen: list[tuple[int, int] | None] = []
        self._damage: str | None = None

    def note(self) -> None:
        """Remember which file and log this process has opened; called as soon as it has both."""
        self._seen = [inode(self._name), inode(self.log), inode(self._index)]

    def is_itself(self) -> bool:
        """Whether the file is the one that was opened, whatever its log is: for one that was closed in between."""
        return inode(self._name) == self._seen[0]

    def is_there(self) -> bool:
        """Whether file, log and index are still what this process has open and not emptied. 4 us; asked in every write.

        Two processes with different indexes on one log would each overwrite what the other has accepted.

        Raises:
            StorageError: it was found damaged before.
        """
        self._check_whole()
        try:
            main, log, index = os.stat(self._name), os.stat(self.log), os.stat(self._index)
        except OSError as error:
            let_through(error)
            if isinstance(error, PermissionError):  # this process has given up rights since it opened them
                return True
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise
            return False
        seen = [(main.st_dev, main.st_ino), (log.st_dev, log.st_ino), (index.st_dev, index.st_ino)]
        return seen == self._seen and main.st_size > 0

    def as_ours(self, error: BaseException) -> BaseException:
        """As `refusals.translate`. One that says that the file is not what it was is remembered: see `is_there`."""
        if is_damage(error):
            self._damage = self._damage or str(error)
        return translate(error, self._path)

    def _check_whole(self) -> None:
        """Refuse to write on after the file was found damaged: what is cached of it here hides that, and makes it worse.

        Raises:
            StorageError: it was.
        """
        if self._damage is not None:
            raise errors.StorageError(
                f"{self._path} or its log was found damaged by an earlier call of this process: {self._damage}.",
                meaning="Nothing of this call was stored.",
                todo="Stop every process that uses it and restore a copy; `sqlite3 FILE .recover` may save what is in it.",
            )

    def is_log_gone(self) -> bool:
        """Whether the log or its index was removed, nothing else came in its place, and the file itself is still there."""
        now = [inode(self.place), inode(self.log), inode(self._index)]
        return (
            now[0] == self._seen[0]
            and None in now
            and all(one in (None, seen) for one, seen in zip(now, self._seen, strict=True))
        )

    def move_old_log(self) -> str | None:
        """Take the log of a file that is gone away from its name, so that it is not applied to the file there now.

        Returns:
            Where it is now; None where there was nothing to move.
        """
        if inode(self.place) == self._seen[0]:
            return None
        if inode(self._index) == self._seen[2]:
            with ignored(OSError):
                os.unlink(self._index)
        if inode(self.log) != self._seen[1]:
            return None
        target = f"{self.log}-of-replaced-{os.getpid()}"
        try:
            os.rename(self.log, target)
        except OSError as error:  # another process of the old file has done it
            let_through(error)
            return None
        return target

    def give_up(self, writer: sqlite3.Connection) -> NoReturn:
        """Nobody looks for what would be written any more; what can be saved is written into the file.

        Args:
            writer: of the file, outside transactions.

        Raises:
            StorageError: always.
        """
        is_saved = False
        if self.is_log_gone():  # nobody has begun another: what this process still has of it is all there is
            _, held, written = writer.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
            is_saved = held == written
        raise self.refusal(is_saved=is_saved, log=self.move_old_log())

    def refusal(self, *, is_saved: bool, log: str | None) -> errors.StorageError:
        """Why nothing can be written any more.

        Args:
            is_saved: what the removed log held was written into the file first.
            log: where `move_old_log` has put the log.
        """
        if inode(self.place) == self._seen[0] == inode(self._name) and os.stat(self.place).st_size:
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
            meaning=f"Nothing was written: nobody would have found it again.{moved}",
            todo="Restart this process. Stop every process that uses a database before you restore or move its file.",
        )


def inode(path: str) -> tuple[int, int] | None:
    """Device and inode of a file; None: there is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        let_through(error)
        return None
    return found.st_dev, found.st_ino


_FAMILY_BYTES: Final = 8  # in every file that there is


def ident(key: RecordKey) -> bytes:
    """The operation's value in the unique index, 9 to 57 bytes."""
    return ident_of(key, _FAMILY_BYTES)
