"""Removing what nobody will ask for again: expired records, old history, and the small tables beside them.

The records are walked by id, a few at a time, from where the last step ended and from the start again; so no index on
their expiry has to be kept while jobs run. The oldest are looked at in every step: they usually expire first, and a walk
through a large table takes days. It does not matter when an expired record goes: a claim treats it as absent.
Never here: parked records, which do not expire. Invariant: one step holds the file for milliseconds.
"""

from __future__ import annotations

import sqlite3
from typing import Final, NamedTuple

from onefold import limits

LEDGER_KEPT_MS: Final = 90 * limits.DAY_MS  # as long as records of completed work by default
# Longer than any lease: a lease is renewed by a living process only, and no renewal reaches further than 12 hours.
DEAD_OWNERS_KEPT_MS: Final = 7 * limits.DAY_MS
COUNTS_KEPT_MS: Final = limits.DAY_MS  # contracts/admin.py
DELETED_NAMES_KEPT_MS: Final = limits.DAY_MS  # no one holds a version that long between reading and writing
_ID_MAX: Final = 2**63 - 1  # SQLite's largest row id


class Step(NamedTuple):
    """What one step of the sweep did.

    Args:
        removed: rows.
        is_round: the walk reached the newest record; the next step begins with the oldest.
    """

    removed: int
    is_round: bool


def sweep_in(connection: sqlite3.Connection, now_ms: int, *, limit: int, ledger_kept_ms: int = LEDGER_KEPT_MS) -> Step:
    """One step, inside the caller's transaction.

    Args:
        limit: how many of the oldest records are looked at, how many where the walk has come to, and how many rows of
            history are removed at most.
        ledger_kept_ms: rows of history older than that go.
    """
    (after,) = connection.execute("SELECT record_id FROM onefold_sweep").fetchone()
    removed, last = _sweep_records(connection, 0, now_ms, limit)
    if last < after:
        more, last = _sweep_records(connection, after, now_ms, limit)
        removed += more
    reached = 0 if last == _ID_MAX else last
    connection.execute("UPDATE onefold_sweep SET record_id = ? WHERE record_id <> ?", (reached, reached))
    removed += connection.execute(
        "DELETE FROM onefold_ledger WHERE id IN (SELECT id FROM onefold_ledger WHERE at_ms < ? ORDER BY at_ms LIMIT ?)",
        (now_ms - ledger_kept_ms, limit),
    ).rowcount
    for statement, before in (
        ("DELETE FROM onefold_dead_owner WHERE at_ms < ?", now_ms - DEAD_OWNERS_KEPT_MS),
        ("DELETE FROM onefold_completed WHERE second < ?", (now_ms - COUNTS_KEPT_MS) // 1000),
        ("DELETE FROM onefold_state WHERE deleted_at_ms < ?", now_ms - DELETED_NAMES_KEPT_MS),
    ):
        removed += connection.execute(statement, (before,)).rowcount
    return Step(removed, reached == 0)


def _sweep_records(connection: sqlite3.Connection, after: int, now_ms: int, limit: int) -> tuple[int, int]:
    """Look at `limit` records that come after the id `after`; how many were removed, and the last id looked at."""
    found = connection.execute(
        "SELECT id FROM onefold_record WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?", (after, limit - 1)
    ).fetchone()
    last = _ID_MAX if found is None else found[0]
    removed = connection.execute(
        "DELETE FROM onefold_record WHERE id > ? AND id <= ? AND expires_at_ms <= ?"
        " AND (status <> 0 OR lease_until_ms <= ?)",
        (after, last, now_ms, now_ms),
    ).rowcount
    return removed, last
