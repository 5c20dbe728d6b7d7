"""One server to a data file: a lock beside the file, which the operating system gives back when the process dies.

Workers and commands do not take it: they may use the file at the same time. Never here: what is served.
Invariant: nobody deletes the lock file, so two servers can never hold locks on two files of one name.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from onefold import errors, private_files


class Claim:
    """The claim of one server on a data file, kept until `release` or the end of the process.

    Args:
        data: the data file; its folder is made.

    Raises:
        ConflictError: another server has it; names its process and address.
        StorageError: the folder or the lock file cannot be written.
    """

    def __init__(self, data: str) -> None:
        self._path = Path(f"{data}.serve.lock")
        try:
            private_files.make_folder(self._path.parent)
            mode = private_files.mode_beside(data)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        except OSError as error:
            raise errors.StorageError(
                f"{self._path} cannot be written: {error.strerror}.", todo="Check the path and its permissions."
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._file, 200).decode(errors="replace").strip() or "another process"
            os.close(self._file)
            raise errors.ConflictError(
                f"{data} is being served already, by {holder}.",
                meaning="One server answers for a file: receivers that wait at one would not see what the other takes.",
                todo="Use that server, or give this one a file of its own with --data FILE.",
            ) from None

    def say(self, url: str) -> None:
        """Write down who serves the file and where, for the error of the next one."""
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"process {os.getpid()} at {url}\n".encode(), 0)

    def release(self) -> None:
        """Let others have the file."""
        os.close(self._file)
