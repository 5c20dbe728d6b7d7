"""History on PostgreSQL: rows that are appended in order, and found by operation, run or time.

`append_on` works on a given connection, so that history is committed or rolled back with a handler's transaction. Rows of
one instant keep the order in which they were appended. Never here: what a row means, or which code may write it.
Invariant: no row is changed; only the sweep removes rows, oldest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from onefold.contracts.ledger import DONE, OUTCOME_EVENTS, Row
from onefold.contracts.store import RecordKey, key_range
from onefold.engines.postgres.connection import Link, PostgresServer, ask
from onefold.engines.postgres.record_sql import arrays, ident, packed, unpacked

_APPEND: Final = """
INSERT INTO onefold.ledger (at_ms, event, ident, scope, job, key, queue, message_id, run, actor, detail)
SELECT at_ms, event, ident, scope, job, key, queue, message_id, run, actor, detail
FROM unnest(%s::bigint[], %s::text[], %s::bytea[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
    %s::text[], %s::text[]) WITH ORDINALITY
AS a (at_ms, event, ident, scope, job, key, queue, message_id, run, actor, detail, place)
ORDER BY place
"""
_SELECT: Final = """
SELECT at_ms, event, scope, job, key, queue, message_id, run, actor, detail FROM onefold.ledger WHERE CONDITION
"""
_WALK: Final = """
SELECT id, at_ms, event, scope, job, key, queue, message_id, run, actor, detail FROM onefold.ledger
WHERE run = %s AND (at_ms, id) > (%s, %s) ORDER BY at_ms, id LIMIT %s
"""
_FIND: Final = """
SELECT DISTINCT scope COLLATE "C", job COLLATE "C", key FROM onefold.ledger WHERE ident >= %s AND ident < %s AND key = %s
ORDER BY 1, 2 LIMIT %s
"""
_TALLY: Final = """
SELECT event, count(*) FROM (
    SELECT DISTINCT ON (ident) event FROM onefold.ledger WHERE run = %s AND ident IS NOT NULL
    ORDER BY ident, event = ANY (%s) DESC, event = ANY (%s) DESC, at_ms DESC, id DESC
) AS decided GROUP BY event
"""
_Detail = dict[str, str | int | bool | None]
_DETAIL: Final = msgspec.json.Decoder(_Detail)


def row_values(row: Row) -> tuple[object, ...]:
    """A row in the order of the table's columns."""
    key = row.key
    key_columns = (
        (None, None, None, None) if key is None else (ident(key), packed(key.scope), packed(key.job), packed(key.key))
    )
    return (
        row.at_ms,
        packed(row.event),
        *key_columns,
        packed(row.queue),
        packed(row.message_id),
        packed(row.run),
        packed(row.actor),
        msgspec.json.encode(row.detail).decode() if row.detail else None,
    )


def _row(values: Sequence[Any]) -> Row:
    at_ms, event, scope, job, key, queue, message_id, run, actor, detail = values
    return Row(
        at_ms=at_ms,
        event=unpacked(event),
        key=None if key is None else RecordKey(unpacked(scope), unpacked(job), unpacked(key)),
        queue=unpacked(queue),
        message_id=unpacked(message_id),
        run=unpacked(run),
        actor=unpacked(actor),
        detail={} if detail is None else _DETAIL.decode(detail),
    )


class PostgresLedger:
    """The Ledger contract on one database.

    Args:
        server: a database that has the tables.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._append = server.sql(_APPEND)

    def append(self, rows: Sequence[Row]) -> None:
        """Write rows durably, in order, all or none."""
        if rows:
            self._server.run(lambda link: self.append_on(link, rows))

    def append_on(self, link: Link, rows: Sequence[Row]) -> None:
        """Like `append`, on this connection; at least one row."""
        link.execute(self._append, arrays(map(row_values, rows)))

    def of_key(self, key: RecordKey, limit: int = 1000) -> list[Row]:
        """The rows of one operation, oldest first."""
        return self._rows("ident = %s ORDER BY at_ms, id LIMIT %s", ident(key), limit)

    def of_run(self, run: str, limit: int = 1000, after: int = 0) -> list[Row]:
        """The rows of one run, oldest first; `after` skips that many."""
        return self._rows("run = %s ORDER BY at_ms, id LIMIT %s OFFSET %s", packed(run), limit, after)

    def walk_run(self, run: str, page: int = 1000) -> Iterator[list[Row]]:
        """All rows of one run, oldest first, page by page, in the order of the index."""
        statement, last = self._server.sql(_WALK), (-(2**63), 0)
        while found := self._server.run(lambda link, last=last: ask(link, statement, (packed(run), *last, page))):  # type: ignore[misc]
            yield [_row(row[1:]) for row in found]
            last = (found[-1][1], found[-1][0])

    def tally(self, run: str) -> Mapping[str, int]:
        """How many operations of a run have each outcome."""
        values = (packed(run), sorted(DONE), sorted(OUTCOME_EVENTS))
        rows = self._server.run(lambda link: ask(link, self._server.sql(_TALLY), values))
        return {unpacked(event): count for event, count in rows}

    def between(self, from_ms: int, to_ms: int, limit: int = 1000) -> list[Row]:
        """Rows with from_ms <= at_ms < to_ms, oldest first."""
        return self._rows("at_ms >= %s AND at_ms < %s ORDER BY at_ms, id LIMIT %s", from_ms, to_ms, limit)

    def find_keys(self, text: str, limit: int = 20) -> list[RecordKey]:
        """Operations whose business key is exactly `text`, by scope and job."""
        values = (*key_range(text), packed(text), limit)
        rows = self._server.run(lambda link: ask(link, self._server.sql(_FIND), values))
        return [RecordKey(unpacked(scope), unpacked(job), unpacked(key)) for scope, job, key in rows]

    def _rows(self, condition: str, *values: object) -> list[Row]:
        statement = self._server.sql(_SELECT.replace("CONDITION", condition))
        return [_row(row) for row in self._server.run(lambda link: ask(link, statement, values))]
