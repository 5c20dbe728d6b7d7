"""Who is alive on this host: a lock on a file per process, which the operating system gives back when the process dies.

A process that runs handlers holds a shared lock on `<database>.owners/<owner id>`; its child processes that run handlers
share it (`join`). Whoever gets the exclusive lock knows that all of them are gone, and buries the owner: in one
transaction its leases count as over (`onefold_dead_owner`, read by every claim) and its messages become visible. Owners
without a file (`@once` in other programs, other hosts) are never judged: their leases decide.

Never here: guesses about time. Invariant: an owner's file is locked before its id can be seen in a claim, and an owner
that was buried never lives again, because ids are not used twice.
"""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from onefold import errors, private_files
from onefold.contracts.ledger import Row
from onefold.engines.sqlite.connection import Database
from onefold.engines.sqlite.ledger import append_in
from onefold.engines.sqlite.queue import end_visibilities_in
from onefold.engines.sqlite.refusals import translate
from onefold.interrupts import ignored, let_through

_OWNER: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")  # the name of a file; a record may name anything
_UNNAMED: Final = ".new-"  # the file of a process that has not locked it yet; it belongs to no owner


class Presence:
    """This process's sign of life beside one database file.

    Args:
        path: the database file.
        owner: id of this process, never used before; letters, digits, `-` and `_`.

    Raises:
        StorageError: the folder cannot be made or written.
    """

    def __init__(self, path: str, owner: str) -> None:
        assert owner.replace("-", "").replace("_", "").isalnum(), owner
        self.owner = owner
        self.directory = Path(f"{path}.owners")
        self.lock_file = self.directory / owner
        try:
            mode = private_files.mode_beside(path)
            private_files.make_folder(self.directory, private_files.as_folder(mode))
            self._file: int | None = self._appear(mode)
        except OSError as error:
            let_through(error)
            raise translate(error, str(self.directory)) from error

    def _appear(self, mode: int) -> int:
        """Make the file under another name, lock it, and only then give it the owner's name."""
        unnamed = self.directory / f"{_UNNAMED}{self.owner}"
        file = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        fcntl.flock(file, fcntl.LOCK_SH)
        with ignored(OSError):  # for people only; a full disk has no block for it, and the lock needs none
            os.write(file, f"{os.getpid()}\n".encode())
        unnamed.rename(self.lock_file)
        return file

    def find_dead(self) -> list[str]:
        """Ids of owners whose processes are all gone. Cheap: one open and one lock for each other process."""
        return [name for name in self._others() if self._is_dead(name)]

    def _others(self) -> list[str]:
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError as error:
            let_through(error)
            return []  # with the folder went every sign of life; leases decide
        return sorted(name for name in names if name != self.owner and not name.startswith(_UNNAMED))

    def _is_dead(self, owner: str) -> bool:
        with _grave(self.directory / owner) as is_dead:
            return is_dead

    def bury_dead(self, engine: Database, owner: str, now_ms: int) -> bool:
        """End everything that a dead owner held; False when it is alive, or someone else has buried it.

        In one transaction its leases are over, its messages visible, and the ledger has a row `owner-dead`.

        Raises:
            StorageBusy: nothing was done; the next call tries again.
        """
        with _grave(self.directory / owner) as is_dead:
            if not is_dead:
                return False
            buried = engine.write(lambda connection: bury_in(connection, owner, self.owner, now_ms))
            (self.directory / owner).unlink(missing_ok=True)
            return buried

    def close(self) -> None:
        """Leave in good order; only when nothing of this owner is leased or in flight. Twice is harmless.

        A process that ends without it, on purpose or not, is found dead, and what it held is given to others at once.
        """
        if self._file is not None:
            self.lock_file.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None

    def abandon(self) -> None:
        """In a child of the process: give up this end of its sign of life, which stays the parent's."""
        if self._file is not None:
            with ignored(OSError):  # a program that becomes a daemon may have closed all files
                os.close(self._file)
            self._file = None


def are_dead(path: str, owners: Iterable[str]) -> frozenset[str]:
    """Those of these owners of a file whose signs of life are there and held by nobody any more.

    Args:
        path: the database file.
    """
    found = set()
    for owner in owners:
        if _OWNER.fullmatch(owner):
            with _grave(Path(f"{path}.owners") / owner) as is_dead:
                if is_dead:
                    found.add(owner)
    return frozenset(found)


def bury_in(connection: sqlite3.Connection, owner: str, actor: str, now_ms: int) -> bool:
    """End what a dead owner held, inside the caller's transaction; False when that was done before."""
    query = "INSERT OR IGNORE INTO onefold_dead_owner (owner, at_ms) VALUES (?, ?)"
    if connection.execute(query, (owner, now_ms)).rowcount == 0:
        return False
    ended = end_visibilities_in(connection, owner, now_ms)
    detail: dict[str, str | int | bool | None] = {"owner": owner, "messages": ended}
    append_in(connection, [Row(at_ms=now_ms, event="owner-dead", actor=actor, detail=detail)])
    return True


def join(lock_file: str) -> int:
    """Share the life of the owner whose file this is; for child processes, before they run a handler.

    Args:
        lock_file: `Presence.lock_file` of the parent.

    Returns:
        The open file; the lock lasts until it is closed or this process ends.

    Raises:
        LeaseLost: the owner was buried already; this process must not run anything for it.
    """
    try:
        file = os.open(lock_file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        let_through(error)
        raise _buried(lock_file) from None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(file)
        let_through(error)
        raise _buried(lock_file) from None
    if os.fstat(file).st_nlink == 0:  # buried between the two lines above
        os.close(file)
        raise _buried(lock_file)
    return file


def _buried(lock_file: str) -> errors.LeaseLost:
    return errors.LeaseLost(
        f"The process {Path(lock_file).name} ended before its child could start.",
        meaning="Others have taken over what it held.",
        todo="End this process.",
    )


@contextmanager
def _grave(path: Path) -> Iterator[bool]:
    """Hold an owner's file exclusively if all its processes are gone; says whether they are."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:  # buried, or not ours to judge: its lease decides
        let_through(error)
        yield False
        return
    try:
        if private_files.strangers([str(path), str(path.parent)], str(path.parent).removesuffix(".owners")):
            yield False  # nobody who may not write the database says who is dead
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            let_through(error)
            yield False
        else:
            yield True
    finally:
        os.close(file)
