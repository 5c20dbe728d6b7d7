"""Rows of a source that repeat an earlier row, found while the results of a run are written.

A repeated row is a child of its own with the key of an earlier one, so it is answered from that one's record: its effect
happens once. In batches each batch is one effect, and the handler gets every row of it, a repeated one too.

Never here: deciding outcomes; a row with the key of another and other contents, which has failed. Invariant: memory does
not grow with the source.
"""

from __future__ import annotations

import hashlib
import sqlite3
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from onefold.maps.state import Repeats

if TYPE_CHECKING:
    from onefold.maps.children import MapChild

_LINES_MAX: Final = 10
_DIGEST_BYTES: Final = 16


class RowsMet:
    """The rows met so far, as digests in a private database, which SQLite moves to a temporary file as it grows."""

    def __init__(self) -> None:
        self._answered = self._given_again = 0
        self._lines: list[int] = []

    def __enter__(self) -> Self:
        self._met = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._met.execute("PRAGMA journal_mode = OFF")
        self._met.execute("CREATE TABLE met (digest BLOB PRIMARY KEY) WITHOUT ROWID")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._met.close()

    @property
    def repeats(self) -> Repeats:
        """Those of the rows that were met before."""
        return Repeats(answered=self._answered, given_again=self._given_again, lines=tuple(self._lines))

    def add(self, child: MapChild, *, batched: bool) -> None:
        """Add the rows of a child that is done.

        Raises:
            OSError: there is no room for the temporary file.
        """
        assert child.outgoing is not None
        try:
            if self._is_known("child", child.record.key, child.outgoing.fingerprint):
                self._answered += child.items
                self._note([line for line, _ in child.rows])
            elif batched:
                again = [line for line, key in child.rows if self._is_known("row", key)]
                self._given_again += len(again)
                self._note(again)
        except sqlite3.Error as error:
            raise OSError(f"temporary file of the rows that were met: {error}") from error

    def _is_known(self, *parts: str) -> bool:
        """Whether this was met before; it is from now on."""
        digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=_DIGEST_BYTES).digest()
        return self._met.execute("INSERT OR IGNORE INTO met VALUES (?)", (digest,)).rowcount == 0

    def _note(self, lines: list[int]) -> None:
        self._lines += lines[: _LINES_MAX - len(self._lines)]
