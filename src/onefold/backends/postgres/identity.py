r"""An operation as one value, and texts of users in a form that PostgreSQL takes.

    key of at most 48 bytes   key, 00, 16 bytes for (scope, job)
    longer                    its first 16 bytes, 16 bytes that stand for all of it, 01, 16 bytes for (scope, job)

Why not a primary key of three texts: an index entry has at most 2,704 bytes, a key alone may have 2,048, and the order of
texts changes with the server's collation library, which breaks indexes. The key comes first and in clear: keys that grow
land on neighbouring pages, and all operations with one business key lie in one range.

PostgreSQL's text cannot hold NUL. `packed` writes it as `\0` and a backslash as `\\`; all other texts stay as they are.
Never here: SQL. Invariant: `unpacked(packed(text)) == text`, and equal idents mean equal operations.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import overload

from onefold.contracts.store import RecordKey

_CLEAR_BYTES_MAX = 48


def ident(key: RecordKey) -> bytes:
    """The operation's value in the primary key, 17 to 65 bytes."""
    return _key_part(key.key) + _family(key.scope, key.job)


def key_range(text: str) -> tuple[bytes, bytes]:
    """The first value, and the first one after, of all operations whose business key is `text`."""
    start = _key_part(text)
    return start, start[:-1] + bytes([start[-1] + 1])


def _key_part(text: str) -> bytes:
    key = text.encode()
    if len(key) <= _CLEAR_BYTES_MAX:
        return key + b"\x00"
    return key[:16] + blake2b(key, digest_size=16).digest() + b"\x01"


@lru_cache(maxsize=4096)
def _family(scope: str, job: str) -> bytes:
    # The length keeps ("a", "bc") and ("ab", "c") apart.
    return blake2b(f"{len(scope)}:{scope}{job}".encode(), digest_size=16).digest()


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
