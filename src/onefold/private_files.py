"""Files and folders that only one user may read: created with 0600 and 0700, and never changed afterwards.

A database holds payloads, results and failures, and anyone who can read the file can read all of them. An administrator
who wants a group to share it changes the mode of the file, and companion files are created with the same mode
(`mode_beside`).
Never here: changing the mode of an existing file. Invariant: no file is readable by others even for a moment, and this
module opens no file that SQLite may have open, because closing it would release every lock that this process has on it
(fcntl(2), POSIX locks).
Private: may change with any release.
"""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from onefold import errors
from onefold.interrupts import ignored, let_through

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700


def make_folder(path: Path, mode: int = FOLDER_MODE) -> None:
    """Make a folder and its missing parents, for this user only; existing folders keep their mode.

    Raises:
        OSError: the folder cannot be made, or a file is in its place.
    """
    if path.is_dir():
        return
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(mode=mode, exist_ok=True)


def make_file(path: str) -> None:
    """Make an empty file and its folder, for this user only, unless they exist; the file is not opened.

    Raises:
        OSError: the file cannot be made.
    """
    target = Path(os.path.realpath(path))
    if target.exists():
        return
    make_folder(target.parent)
    try:
        os.mknod(target, FILE_MODE | stat.S_IFREG)
    except (AttributeError, OSError) as error:
        let_through(error)
        if isinstance(error, FileExistsError):
            return  # another process was faster
        if not isinstance(error, AttributeError | PermissionError):
            raise
        # On a system where only root may call mknod, it is made (and opened) under another name.
        file, name = tempfile.mkstemp(dir=target.parent, prefix=".new-")  # 0600
        os.close(file)
        try:
            os.link(name, target)
        except FileExistsError as exists:
            let_through(exists)
        finally:
            os.unlink(name)


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """Write a file for this user only that replaces the target when it is complete; its folder is made if missing.

    If somebody has put a symbolic or hard link in the place of the unfinished file, nothing is written through it. Two
    processes that write one target do not interfere.

    Raises:
        OSError: the file cannot be made or written; the target is unchanged.
    """
    make_folder(target.parent)
    part = target.parent / f".{target.name}.{os.getpid()}-{threading.get_ident()}.unfinished"
    part.unlink(missing_ok=True)  # left by a process that was killed
    try:
        with open(part, "x+b", opener=_opener) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, FILE_MODE)


def strangers(paths: Iterable[str], database: str) -> list[str]:
    """Which of a database's companion files were made by somebody whom the database does not trust.

    It trusts this user, root and its own owner, and everyone if its mode lets others write it.

    Args:
        paths: files, folders or symbolic links; missing ones are ignored.
        database: the file, or where it will be.
    """
    trusted = {0, os.geteuid()}
    with ignored(OSError):
        own = os.stat(database)
        if own.st_mode & 0o022:
            return []
        trusted.add(own.st_uid)
    found = []
    for path in paths:
        with ignored(OSError):
            if os.lstat(path).st_uid not in trusted:
                found.append(path)
    return found


def refuse_strangers(database: str) -> None:
    """Refuse a database if another user has put a file next to it that would be used with it.

    Raises:
        StorageError: there is such a file: its owner could read and write a log, or forge a sign of life.
    """
    found = strangers([f"{database}{end}" for end in ("-wal", "-shm", "-journal", ".owners", ".serve.lock")], database)
    if found:
        raise errors.StorageError(
            f"{', '.join(found)} belongs to another user of this machine.",
            meaning="It existed before the database's owner made one; that user could read and change its contents.",
            todo="Find out who made it, remove it, and keep the database in a folder in which only you can make files.",
        )


def mode_beside(path: str) -> int:
    """The mode of a database's companion file: for its owner, and for those whom the database's own mode allows."""
    try:
        shared = stat.S_IMODE(os.stat(path).st_mode) & 0o066
    except OSError as error:
        let_through(error)
        return FILE_MODE
    return FILE_MODE | shared


def as_folder(mode: int) -> int:
    """The mode of a folder with files of `mode`: everyone who can read them can enter it."""
    return mode | (mode & 0o444) >> 2


def warning_of(path: str) -> str | None:
    """A warning about a file that every user of the machine can read or write; None if it is not one, or is missing."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError as error:
        let_through(error)
        return None
    if not mode & 0o006:
        return None
    return (
        f"{path} can be {'written' if mode & 0o002 else 'read'} by every user of this machine (mode {mode:04o}). It holds "
        f"payloads, results and failures. Stop what uses it, then: chmod 600 {path}*"
    )
