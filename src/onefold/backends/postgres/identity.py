r"""An operation as one value (`contracts/identity.py`), and texts of users in a form that PostgreSQL takes.

Why not a primary key of three texts: an index entry has at most 2,704 bytes, a key alone may have 2,048, and the order of
texts changes with the server's collation library, which breaks indexes.

PostgreSQL's text cannot hold NUL. `packed` writes it as `\0` and a backslash as `\\`; all other texts stay as they are.
Never here: SQL. Invariant: `unpacked(packed(text)) == text`, and equal idents mean equal operations.
"""

from __future__ import annotations

from typing import Final, overload

from onefold.contracts.identity import ident_of
from onefold.contracts.store import RecordKey

_FAMILY_BYTES: Final = 16  # in every database that there is


def ident(key: RecordKey) -> bytes:
    """The operation's value in the primary key, 17 to 65 bytes."""
    return ident_of(key, _FAMILY_BYTES)


@overload
def packed(text: str) -> str: ...
@overload
def packed(text: None) -> None: ...
@overload
def packed(text: str | None) -> str | None: ...
def packed(text: str | None) -> str | None:
    """A user's text as it is stored."""
    if text is None or ("\\" not in text and "\x00" not in text):
        return text
    return text.replace("\\", "\\\\").replace("\x00", "\\0")


@overload
def unpacked(text: str) -> str: ...
@overload
def unpacked(text: None) -> None: ...
@overload
def unpacked(text: str | None) -> str | None: ...
def unpacked(text: str | None) -> str | None:
    """A stored text as the user had it."""
    if text is None or "\\" not in text:
        return text
    return "\\".join(part.replace("\\0", "\x00") for part in text.split("\\\\"))
