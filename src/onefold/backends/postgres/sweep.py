"""Removing what nobody will ask for again: expired records, old history, and the small tables beside them.

One step removes at most `limit` rows of each kind, by an index, passing over what somebody has locked; it does not matter
when an expired record goes, a claim treats it as absent. Any process may sweep, several at once too.
Never here: parked records, which do not expire. Invariant: a step waits for nobody and keeps nobody waiting for long.
"""

from __future__ import annotations

from typing import Final

from onefold import limits
from onefold.backends.postgres.connection import Server

LEDGER_KEPT_MS: Final = 90 * limits.DAY_MS  # as long as records of completed work by default
COUNTS_KEPT_MS: Final = limits.DAY_MS  # contracts/admin.py
DELETED_NAMES_KEPT_MS: Final = limits.DAY_MS  # no one holds a version that long between reading and writing
SWEEP_ROWS_MAX: Final = 1_000  # some 10 ms
SWEEP_MS: Final = 5_000  # ours: a hundred workers ask the server twenty times a second, and not two hundred times

_RECORDS: Final = """
DELETE FROM onefold.record WHERE ident = ANY(ARRAY(
    SELECT ident FROM onefold.record
    WHERE expires_at_ms <= %s AND (status <> 'in_progress' OR lease_until_ms <= %s)
    ORDER BY expires_at_ms LIMIT %s FOR UPDATE SKIP LOCKED))
"""
_LEDGER: Final = """
DELETE FROM onefold.ledger WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM onefold.ledger WHERE at_ms < %s ORDER BY at_ms LIMIT %s FOR UPDATE SKIP LOCKED))
"""
_COUNTS: Final = """
DELETE FROM onefold.completed WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM onefold.completed WHERE second < %s ORDER BY second LIMIT %s FOR UPDATE SKIP LOCKED))
"""
_NAMES: Final = """
DELETE FROM onefold.state WHERE name = ANY(ARRAY(
    SELECT name FROM onefold.state WHERE deleted_at_ms < %s LIMIT %s FOR UPDATE SKIP LOCKED))
"""


def sweep(server: Server, now_ms: int, *, limit: int = SWEEP_ROWS_MAX) -> int:
    """One step; how many rows it removed.

    Args:
        now_ms: what expired until then goes.
        limit: how many rows of each kind are removed at most.
    """
    steps: list[tuple[str, tuple[int, ...]]] = [
        (_RECORDS, (now_ms, now_ms, limit)),
        (_LEDGER, (now_ms - LEDGER_KEPT_MS, limit)),
        (_COUNTS, ((now_ms - COUNTS_KEPT_MS) // 1000, limit)),
        (_NAMES, (now_ms - DELETED_NAMES_KEPT_MS, limit)),
    ]
    return server.run(lambda link: sum(link.execute(server.sql(text), values).rowcount for text, values in steps))
