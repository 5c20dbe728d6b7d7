"""FIFO deduplication: ids seen within 5 minutes, whatever became of their messages.

An id is remembered from the moment its message was accepted, for 5 minutes, also after the message was received and
deleted; a second copy after that is accepted even while the first still waits. The scope is the queue or the group.
Rows are in the order of time, found by a 16-byte digest: a random key costs least that way.
Invariant: within one scope and window one id delivers one message.
"""

from __future__ import annotations

import hashlib
import sqlite3

from onefold import limits
from onefold.contracts.admin import Remembered
from onefold.engines.sqlite.rows import QueueRow, sequence_text


class Memory:
    """The deduplication memory of one queue during one transaction.

    Args:
        connection: with a transaction open.
        row: the queue.
    """

    def __init__(self, connection: sqlite3.Connection, row: QueueRow) -> None:
        self._connection = connection
        self._queue = row.id
        self._by_group = row.settings.dedup_scope == "messageGroup"
        self._new: dict[bytes, tuple[int, int, int]] = {}  # digest -> message, position, accepted_at_ms

    def first_of(
        self, group: str | None, dedup_id: str | None, body: str, message: int, position: int, at_ms: int
    ) -> tuple[int, int] | None:
        """Message and position of the one this is a duplicate of; None when it is new, and remembered from now on.

        Args:
            dedup_id: None derives it from the body.
            message, position: of the message that asks.
            at_ms: when it is accepted.
        """
        scope = group if self._by_group else ""
        text = f"{self._queue}\0{scope}\0{dedup_id or body_digest(body)}"
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        known = (
            self._new.get(digest)
            or self._connection.execute(
                "SELECT message, position, accepted_at_ms FROM onefold_dedup WHERE digest = ?", (digest,)
            ).fetchone()
        )
        if known is not None and at_ms < known[2] + limits.DEDUP_WINDOW_MS:
            return known[0], known[1]
        self._new[digest] = (message, position, at_ms)
        return None

    def write(self) -> None:
        """Store what was new."""
        self._connection.executemany(
            "INSERT OR REPLACE INTO onefold_dedup (position, queue, digest, message, accepted_at_ms) VALUES (?, ?, ?, ?, ?)",
            [
                (position, self._queue, digest, message, at_ms)
                for digest, (message, position, at_ms) in self._new.items()
            ],
        )


def body_digest(body: str) -> str:
    """The deduplication id SQS derives from a body: its SHA-256 (that it is in hexadecimal, SQS does not say)."""
    return hashlib.sha256(body.encode()).hexdigest()


def remembered_in(connection: sqlite3.Connection, row: QueueRow, limit: int, now_ms: int) -> list[Remembered]:
    """The newest ids of a queue whose window is not over."""
    rows = connection.execute(
        "SELECT d.position, d.message, d.accepted_at_ms, m.dedup_id, m.body, g.name FROM onefold_dedup d "
        "LEFT JOIN onefold_message m ON m.id = d.message LEFT JOIN onefold_group g ON g.id = m.grp "
        "WHERE d.queue = ? AND d.accepted_at_ms > ? ORDER BY d.position DESC LIMIT ?",
        (row.id, now_ms - limits.DEDUP_WINDOW_MS, limit),
    )
    return [
        Remembered(
            message_id=f"{row.token}-{message}",
            sequence=sequence_text(position) or "",
            accepted_at_ms=at_ms,
            until_ms=at_ms + limits.DEDUP_WINDOW_MS,
            dedup_id=None if body is None else dedup_id or body_digest(body),
            group=group,
        )
        for position, message, at_ms, dedup_id, body, group in rows
    ]


def forget_in(connection: sqlite3.Connection, now_ms: int, count_max: int) -> int:
    """Drop up to `count_max` ids whose window is over, oldest first; how many."""
    return connection.execute(
        "DELETE FROM onefold_dedup WHERE position IN (SELECT position FROM onefold_dedup ORDER BY position LIMIT ?) "
        "AND accepted_at_ms <= ?",
        (count_max, now_ms - limits.DEDUP_WINDOW_MS),
    ).rowcount
