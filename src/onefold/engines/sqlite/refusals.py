"""Translates SQLite's errors into onefold's: by code, never by text.

Never here: handling errors. Invariant: an error that comes neither from SQLite nor from the system is returned
unchanged.
"""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
from typing import Final

from onefold import errors
from onefold.interrupts import let_through

_SCARCE: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}
)  # transient: other processes release what they hold
_NOT_WRITABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class DiskFull(errors.StorageBusy):
    """The disk is full. The engine makes room and tries again once; after that it is a StorageBusy like any other."""


def primary(error: sqlite3.Error) -> int:
    """SQLite's primary result code (the low byte of an extended code); 0 when there is none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_damage(error: BaseException) -> bool:
    """Whether the error means that the file or its log is damaged (and not only that a virtual table reports an error)."""
    if not isinstance(error, sqlite3.Error) or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_CORRUPT_VTAB:
        return False
    is_short = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHORT_READ
    return is_short or primary(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def kept_turn(path: str, waited_ms: int) -> errors.StorageBusy:
    """The error when this process itself does not release the file. `waited_ms` is 0 if waiting cannot help."""
    waited = f" for {waited_ms:,} ms" if waited_ms else ""
    return errors.StorageBusy(
        f"A transaction of this process has kept {path} from being written{waited}.",
        meaning="Nothing was written. It belongs to a transactional job's handler that has not returned, or whose work "
        "is about to be committed; a fork of this process that waits for it keeps others out, too.",
        todo="Give the handler's own calls timeouts, and do what takes long before its first statement.",
    )


def inside_transaction(path: str) -> errors.UsageError:
    """The error when a transactional handler's own thread writes to its file through another connection."""
    return errors.UsageError(
        f"A transactional handler called something that writes to {path} through a connection of its own.",
        meaning="The handler's transaction has the file until it returns, so the call would wait for itself. No part "
        "of the call was written.",
        todo="In the handler write with ctx.connection and send with ctx.send. What uses another app or store (a function "
        "under @onefold.once, too) needs a file of its own there, or a handler that is not transactional.",
    )


def translate(error: BaseException, path: str) -> BaseException:
    """An error of SQLite as an error of onefold, chosen by its code, never by its text; any other error unchanged.

    The new error's text has the absolute path: a relative path means different files under cron, systemd and a shell.
    """
    path = path if path == ":memory:" else os.path.abspath(path)
    if isinstance(error, OSError):
        if error.errno in _SCARCE:
            return _without_room(path, error)
        if error.errno in _NOT_WRITABLE:
            return _not_writable(path, error.strerror)
        return errors.StorageError(
            f"{path} cannot be opened: {error.strerror or error}.", todo="Check the path and its permissions."
        )
    if not isinstance(error, sqlite3.Error):
        return error
    code = primary(error)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return errors.StorageBusy(
            f"{path} is locked by another process, or by a connection that this program has opened itself ({error}).",
            meaning="Nothing was written.",
            todo="Look for a program that holds a transaction open on this file (`fuser` names it), then try again.",
        )
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHORT_READ:
        return errors.StorageError(
            f"{path} or its log is shorter than it was: {error}.",
            meaning="Another program has cut or overwritten it. No part of this call was stored.",
            todo="Stop every process that uses the file and restore a copy; `sqlite3 FILE .recover` may save what is in it.",
        )
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return DiskFull(
            f"{path} could not be written: {error}.",
            meaning="No part of this call was stored; what was accepted before is safe.",
            todo="Free space on the disk or enlarge it. Workers continue while they can; their records of finished "
            "work stay until they expire, and may take more space than the messages gave back.",
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return errors.StorageError(
            f"{path} is not a usable database: {error}.",
            meaning="It is damaged, or it is another kind of file. Nothing was changed.",
            todo="Move it away and restore a copy; `sqlite3 FILE .recover` may save what is in it.",
        )
    if code == sqlite3.SQLITE_CANTOPEN and os.path.isdir(path):
        return errors.StorageError(f"{path} cannot be opened: it is a folder.", todo="Name a file.")
    if code == sqlite3.SQLITE_CANTOPEN and (scarce := _scarcity()) is not None:
        return _without_room(path, scarce)
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return _not_writable(path, error)
    return error


def _not_writable(path: str, why: object) -> errors.StorageError:
    return errors.StorageError(
        f"{path} cannot be opened for writing: {why}.", todo="Check that this user may write the file and its folder."
    )


def _without_room(path: str, error: OSError) -> errors.StorageBusy:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return errors.StorageBusy(
        f"{path} could not be opened: {error.strerror}.",
        meaning="This process, or the machine, has no file descriptor or no memory left. Nothing was written.",
        todo=f"Close what handlers open, run fewer at once, or raise the limit (`ulimit -n`, now {limit:,}).",
    )


def _scarcity() -> OSError | None:
    """The system's reason why this process cannot open any file now; SQLite does not report it."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        let_through(error)
        return error if error.errno in _SCARCE else None
    return None
