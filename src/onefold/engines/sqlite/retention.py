"""What time alone does to a file: messages expire, scheduled ones come due, deduplication ids are forgotten.

None of it has to happen on time: receives, depth and peek look past what has expired, and a receive lets in what is
due. Sweeping only gives the space back, a bounded piece per transaction, so that no other writer waits long.
Invariant: only messages older than their queue's retention are deleted here.
"""

from __future__ import annotations

import sqlite3

from onefold import limits
from onefold.engines.sqlite import fifo, groups
from onefold.engines.sqlite.rows import QueueRow, erase


def anything_to_sweep(connection: sqlite3.Connection, row: QueueRow, now_ms: int) -> bool:
    """Whether `sweep_in` would find something."""
    expired_at_ms = row.expired_at_ms(now_ms)
    found = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM onefold_waiting WHERE queue = ? AND visible_at_ms <= ? AND sent_at_ms <= ?) "
        "OR EXISTS (SELECT 1 FROM onefold_received WHERE queue = ? AND sent_at_ms <= ?) "
        "OR EXISTS (SELECT 1 FROM onefold_scheduled WHERE queue = ? AND due_at_ms <= ?)",
        (row.id, expired_at_ms + limits.DELAY_MS_MAX, expired_at_ms, row.id, expired_at_ms, row.id, now_ms),
    ).fetchone()[0]
    return bool(found)


def sweep_in(connection: sqlite3.Connection, row: QueueRow, now_ms: int, count_max: int) -> int:
    """Delete up to `count_max` expired messages of a queue and let in as many due ones; how many were found."""
    found = expire_in(connection, row, now_ms, count_max)
    if row.settings.fifo:
        found += fifo.promote_in(connection, row, now_ms, count_max)
    return found


def expire_in(connection: sqlite3.Connection, row: QueueRow, now_ms: int, count_max: int) -> int:
    """Delete up to `count_max` (-1: all) messages whose retention is over, in flight or not; how many."""
    expired_at_ms = row.expired_at_ms(now_ms)
    found = connection.execute(
        "SELECT id FROM onefold_waiting WHERE queue = ? AND visible_at_ms <= ? AND sent_at_ms <= ? "
        "UNION ALL SELECT id FROM onefold_received WHERE queue = ? AND sent_at_ms <= ? LIMIT ?",
        (row.id, expired_at_ms + limits.DELAY_MS_MAX, expired_at_ms, row.id, expired_at_ms, count_max),
    ).fetchall()
    if not found:
        return 0
    touched = set()
    if row.settings.fifo:
        for message in found:
            grp = connection.execute("SELECT grp FROM onefold_message WHERE id = ?", message).fetchone()[0]
            touched.add(grp)
    erase(connection, [message for (message,) in found])
    groups.refresh_in(connection, row, touched - {None}, now_ms)
    return len(found)
