"""The operator's view of the records: scan, find, settle, count.

DynamoDB finds records by their primary key only. Parked records, records by key alone and counts are found by notes
(`finding.py`), at a cost that grows with what is asked for. Any other scan reads the whole table, page by page, keeping no
more than what is answered: one read unit for each 4 KB of it, some 20 ms for each MB. A table beyond `PAGES_MAX` MB is
refused.

Never here: what a worker needs for a message. Invariant: what was not named is not touched.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Final

from onefold import errors
from onefold.backends.aws.dynamodb import finding
from onefold.backends.aws.dynamodb.items import RECORD_SORT_KEY, place_of, record_of
from onefold.backends.aws.dynamodb.moves import Move, make
from onefold.backends.aws.dynamodb.notes import Notes
from onefold.backends.aws.dynamodb.table import Table
from onefold.contracts import transitions
from onefold.contracts.store import Record, RecordKey, Status

PAGES_MAX: Final = 5_000  # of 1 MB (API Scan: 1 MB of data a call)


class DynamoRecords:
    """The RecordAdmin contract on one table.

    Args:
        table: where the records are.
        notes: beside them.
    """

    def __init__(self, table: Table, notes: Notes) -> None:
        self._table = table
        self._notes = notes

    def scan(self, *, status: Status | None = None, parked: bool | None = None, limit: int = 100) -> list[Record]:
        """Records, newest change first; reads the whole table unless only parked ones are asked for.

        Raises:
            UsageError: the table has more than 5,000 MB.
        """
        if not parked:
            return _newest(self._scan(status, plain=parked is False), limit)
        found = map(
            record_of, self._table.get_all([place_of(key, self._table.layout) for key in finding.parked(self._table)])
        )
        return _newest((one for one in found if one.parked and status in (None, one.status)), limit)

    def _scan(self, status: Status | None, *, plain: bool) -> Iterator[Record]:
        # A record of this layout, and nothing else in the table: a migration leaves those of the other one (`migrating.py`).
        conditions = ["attribute_exists(fence)", "sk = :record" if self._table.layout == 2 else "sk <> :record"]
        arguments: dict[str, Any] = {"ExpressionAttributeValues": {":record": {"S": RECORD_SORT_KEY}}}
        if status is not None:
            conditions.append("#status = :status")
            arguments["ExpressionAttributeNames"] = {"#status": "status"}
            arguments["ExpressionAttributeValues"][":status"] = {"S": status}
        if plain:
            conditions.append("attribute_not_exists(parked)")
        return map(record_of, self._table.scan(PAGES_MAX, FilterExpression=" AND ".join(conditions), **arguments))

    def find(self, key: str, limit: int = 20) -> list[Record]:
        """Records whose business key is exactly `key`, newest change first; looks in each tenant's each job.

        Raises:
            UsageError: there are more than 20,000 pairs of tenant and job.
        """
        return _newest(map(record_of, self._table.get_all(finding.places_of(self._table, key))), limit)

    def settle(
        self,
        key: RecordKey,
        *,
        done: bool,
        result: bytes,
        now_ms: int,
        expires_at_ms: int,
        corrects: bytes | None = None,
    ) -> bool:
        """End a parked record by a person's word, or correct a result; False when it is neither (any more)."""

        def decide(record: Record | None) -> tuple[bool, Record | None]:
            after = transitions.settle(
                record, done=done, result=result, now_ms=now_ms, expires_at_ms=expires_at_ms, corrects=corrects
            )
            return after is not None, after

        (answer,) = make(self._table, [Move(key, self._table.layout, None, won=True, decide=decide)])
        if isinstance(answer, errors.OnefoldError):
            raise answer
        if answer:
            self._notes.unpark(key)
            self._notes.completed([key.job] if done and corrects is None else [], now_ms)
            self._notes.flush()
        return answer

    def count_completed(self, since_ms: int, now_ms: int) -> dict[str, int]:
        """Runs completed in [since_ms, now_ms) per job; the seconds that both ends fall in count as a whole.

        Counted as processes tell, along with claims: ten runs or ten seconds later, at the earliest; the last ones before a
        quiet time when work comes again or the process closes its engine; those of one that does not, or was killed, never.
        """
        self._notes.flush()
        return dict(finding.done(self._table, since_ms, now_ms))


def _newest(records: Iterator[Record], limit: int) -> list[Record]:
    return heapq.nlargest(limit, records, key=lambda record: record.updated_at_ms)
