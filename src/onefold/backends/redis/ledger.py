"""History on Redis: sorted sets by instant, one of all rows, one per operation and one per run.

A row is written to each set it belongs to: rows are few (a clean first run leaves none) and a read is one call then. Rows
of one instant keep the order in which they were appended, by a sequence the server counts. They are kept for 90 days by
their own instants: an operation's or a run's set goes that long after its last row, the set of all rows loses its oldest
as new ones come, a hundred at a time.

Never here: what a row means. Invariant: no row is changed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import Final

import msgspec

from onefold import limits
from onefold.backends.redis.names import Names, job_place, key_at
from onefold.backends.redis.scripts import APPEND
from onefold.backends.redis.server import Server
from onefold.contracts.ledger import Row, tally_of
from onefold.contracts.store import RecordKey

KEPT_MS: Final = 90 * limits.DAY_MS  # as long as records of completed work by default
_SEQUENCE_DIGITS: Final = 16
_ROWS_PER_CALL: Final = 200
_PAGE: Final = 500
_ROWS_PER_READ: Final = 1_000
_ROW: Final = msgspec.json.Decoder(Row)


class RedisLedger:
    """The Ledger contract on one server.

    Args:
        server, names: where.
    """

    def __init__(self, server: Server, names: Names) -> None:
        self._server = server
        self._names = names

    def append(self, rows: Sequence[Row]) -> None:
        """Write rows in order, 200 in one call.

        Raises:
            TransientError: not answered; rows may have been written. Appending them again may double them.
        """
        for first in range(0, len(rows), _ROWS_PER_CALL):
            self._append(rows[first : first + _ROWS_PER_CALL])

    def _append(self, rows: Sequence[Row]) -> None:
        names = self._names
        keys = [names.ledger, names.ledger_sequence, names.ledger_jobs]
        arguments: list[object] = [KEPT_MS, min(row.at_ms for row in rows)]
        for row in rows:
            keys.append(names.ledger if row.key is None else names.history(row.key))
            keys.append(names.ledger if row.run is None else names.run(row.run))
            arguments += [row.at_ms, msgspec.json.encode(row), "" if row.key is None else job_place(row.key)]
        self._server.run(APPEND, keys, arguments)

    def of_key(self, key: RecordKey, limit: int = 1000) -> list[Row]:
        """The rows of one operation, oldest first."""
        return self._rows(self._names.history(key), "-inf", "+inf", limit)

    def of_run(self, run: str, limit: int = 1000, after: int = 0) -> list[Row]:
        """The rows of one run, oldest first; `after` skips that many."""
        return self._rows(self._names.run(run), "-inf", "+inf", limit, after)

    def walk_run(self, run: str, page: int = 1000) -> Iterator[list[Row]]:
        """All rows of one run, oldest first, page by page: each begins at the last instant, whatever came late before it."""
        name, at_ms = self._names.run(run), -math.inf
        passed = 0  # rows of that instant, which have come already
        while stored := self._from(name, at_ms, passed, page):
            yield [_ROW.decode(row[_SEQUENCE_DIGITS:]) for row, _ in stored]
            last_ms = stored[-1][1]
            passed = sum(at == last_ms for _, at in stored) + (passed if last_ms == at_ms else 0)
            at_ms = last_ms

    def _from(self, name: str, at_ms: float, passed: int, count: int) -> list[tuple[bytes, float]]:
        found: list[tuple[bytes, float]] = self._server.ask(
            lambda client: client.zrangebyscore(name, at_ms, "+inf", start=passed, num=count, withscores=True),
            repeatable=True,
        )
        return found

    def tally(self, run: str) -> Mapping[str, int]:
        """How many operations of a run stand where; reads all its rows, 1,000 in one call."""
        return tally_of(itertools.chain.from_iterable(self.walk_run(run, _ROWS_PER_READ)))

    def between(self, from_ms: int, to_ms: int, limit: int = 1000) -> list[Row]:
        """Rows with from_ms <= at_ms < to_ms, oldest first."""
        return self._rows(self._names.ledger, from_ms, f"({to_ms}", limit)

    def _rows(self, name: str, first: int | str, last: str, limit: int, after: int = 0) -> list[Row]:
        stored = self._server.ask(
            lambda client: client.zrangebyscore(name, first, last, start=after, num=limit), repeatable=True
        )
        return [_ROW.decode(row[_SEQUENCE_DIGITS:]) for row in stored]

    def find_keys(self, text: str, limit: int = 20) -> list[RecordKey]:
        """Operations whose business key is exactly `text`, by scope and job: one look per job and scope ever seen."""
        found: list[RecordKey] = []
        for jobs in self._server.members(self._names.ledger_jobs, _PAGE):
            keys = [key_at(f"{job.decode()}|{text}") for job in jobs]
            exist = self._server.each("EXISTS", [self._names.history(key) for key in keys])
            known = {*found, *(key for key, exists in zip(keys, exist, strict=True) if exists)}
            found = nsmallest(limit, known, key=lambda key: (key.scope, key.job))
        return found
