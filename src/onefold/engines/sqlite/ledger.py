"""History on SQLite: rows that are appended in order, and found by operation, run or time.

`append_in` works inside the caller's transaction, so that history is written together with what it reports, or not at all.
Rows of one instant keep the order in which they were appended. Never here: what a row means, or which code may write it.
Invariant: no row is changed; only the sweep removes rows, oldest first.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from onefold.contracts.ledger import DONE, OUTCOME_EVENTS, Row
from onefold.contracts.store import RecordKey, key_range
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.file import ident

_INSERT: Final = """
INSERT INTO onefold_ledger (at_ms, event, ident, scope, job, key, queue, message_id, run, actor, detail)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_SELECT: Final = "SELECT at_ms, event, scope, job, key, queue, message_id, run, actor, detail FROM onefold_ledger"
_WALK: Final = _SELECT.replace("SELECT", "SELECT id,", 1) + " WHERE run = ? AND id > ? ORDER BY id LIMIT ?"
_OUTCOME_EVENTS, _DONE = (", ".join(f"'{event}'" for event in sorted(events)) for events in (OUTCOME_EVENTS, DONE))
_TALLY: Final = f"""
SELECT event, count(*) FROM (
    SELECT event, max((event IN ({_OUTCOME_EVENTS})) + (event IN ({_DONE})) << 61 | id)
    FROM onefold_ledger WHERE run = ? AND ident IS NOT NULL GROUP BY ident
) GROUP BY event
"""  # with max(), a bare column comes from the row that has the maximum
_Detail = dict[str, str | int | bool | None]
_DETAIL = msgspec.json.Decoder(_Detail)


def append_in(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """Like `Ledger.append`, inside the caller's transaction."""
    connection.executemany(_INSERT, map(_values, rows))


def _values(row: Row) -> tuple[object, ...]:
    key = row.key
    key_columns = (None, None, None, None) if key is None else (ident(key), key.scope, key.job, key.key)
    detail = msgspec.json.encode(row.detail).decode() if row.detail else None
    return (row.at_ms, row.event, *key_columns, row.queue, row.message_id, row.run, row.actor, detail)


def _row(values: tuple) -> Row:  # type: ignore[type-arg]  # one type per column, as the schema has them
    at_ms, event, scope, job, key, queue, message_id, run, actor, detail = values
    return Row(
        at_ms=at_ms,
        event=event,
        key=None if key is None else RecordKey(scope, job, key),
        queue=queue,
        message_id=message_id,
        run=run,
        actor=actor,
        detail={} if detail is None else _DETAIL.decode(detail),
    )


class SqliteLedger:
    """The Ledger contract on one engine.

    Args:
        engine: an open engine whose file has been migrated.
    """

    def __init__(self, engine: Database) -> None:
        self._engine = engine

    def append(self, rows: Sequence[Row]) -> None:
        """Write rows durably, in order, in one transaction."""
        self._engine.write(lambda connection: append_in(connection, rows))

    def of_key(self, key: RecordKey, limit: int = 1000) -> list[Row]:
        """The rows of one operation, oldest first."""
        return self._rows("ident = ? ORDER BY at_ms, id LIMIT ?", ident(key), limit)

    def of_run(self, run: str, limit: int = 1000, after: int = 0) -> list[Row]:
        """The rows of one run, oldest first; `after` skips that many."""
        return self._rows("run = ? ORDER BY at_ms, id LIMIT ? OFFSET ?", run, limit, after)

    def walk_run(self, run: str, page: int = 1000) -> Iterator[list[Row]]:
        """All rows of one run, page by page, in the order in which they were written, which is the index's order."""
        last_id = 0
        while found := self._page_of_run(run, last_id, page):
            yield [_row(row[1:]) for row in found]
            last_id = found[-1][0]

    def _page_of_run(self, run: str, after_id: int, page: int) -> list[tuple[Any, ...]]:
        return self._engine.read(lambda connection: connection.execute(_WALK, (run, after_id, page)).fetchall())

    def tally(self, run: str) -> Mapping[str, int]:
        """How many operations of a run are in each state; a run larger than the cache is sorted in a file."""
        return self._engine.read(lambda connection: dict(connection.execute(_TALLY, (run,)).fetchall()))

    def between(self, from_ms: int, to_ms: int, limit: int = 1000) -> list[Row]:
        """Rows with from_ms <= at_ms < to_ms, oldest first."""
        return self._rows("at_ms >= ? AND at_ms < ? ORDER BY at_ms, id LIMIT ?", from_ms, to_ms, limit)

    def find_keys(self, text: str, limit: int = 20) -> list[RecordKey]:
        """Operations whose business key is exactly `text`, by scope and job."""
        query = """
            SELECT DISTINCT scope, job, key FROM onefold_ledger WHERE ident >= ? AND ident < ? AND key = ?
            ORDER BY scope, job LIMIT ?
        """
        values = (*key_range(text), text, limit)
        return self._engine.read(lambda connection: [RecordKey(*row) for row in connection.execute(query, values)])

    def _rows(self, condition: str, *values: object) -> list[Row]:
        query = f"{_SELECT} WHERE {condition}"
        return self._engine.read(lambda connection: [_row(row) for row in connection.execute(query, values)])
