"""Reads one file within a bound: a template, a plan, a Python file, a baseline, a configuration.

Never here: what the bytes mean. Invariant: of a file that is too large, no more than the bound is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onefold.errors import StorageError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


def contents(path: Path, bytes_max: int, *, todo: str, meaning: str = "") -> bytes:
    """The bytes of a file.

    Args:
        bytes_max: the size of the largest file that is read. meaning, todo: for the error about a larger one.

    Raises:
        StorageError: it cannot be read.
        UsageError: it is larger.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(bytes_max + 1)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}.", todo="Make it readable.") from error
    if len(raw) > bytes_max:
        raise UsageError(f"{path} is larger than {bytes_max:,} bytes.", meaning=meaning, todo=todo)
    return raw
