"""The operator's view of the records: scan, find, settle, count. See `contracts.admin.RecordAdmin`.

Failed and unknown records are found by an index; a scan for others reads the table. Never here: what a worker needs per
message. Invariant: only a parked record is settled.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from onefold.backends.postgres.amend import Amender, Step
from onefold.backends.postgres.connection import Link, Server, ask
from onefold.backends.postgres.identity import ident, packed, unpacked
from onefold.backends.postgres.rows import COLUMNS, record_of
from onefold.contracts import transitions
from onefold.contracts.identity import key_range
from onefold.contracts.store import Record, RecordKey, Status

_SCAN: Final = """
SELECT COLUMNS FROM onefold.record r WHERE CONDITION ORDER BY r.updated_at_ms DESC, r.created_at_ms DESC LIMIT %s
""".replace("COLUMNS", COLUMNS)
_FIND: Final = _SCAN.replace("CONDITION", "r.ident >= %s AND r.ident < %s AND r.key = %s")
_COUNT: Final = """
SELECT job, sum(count)::bigint FROM onefold.completed WHERE second BETWEEN %s AND %s GROUP BY job
"""


def _settle_step(
    record: Record | None, *, done: bool, result: bytes, now_ms: int, expires_at_ms: int, corrects: bytes | None
) -> tuple[bool, Record | None]:
    after = transitions.settle(
        record, done=done, result=result, now_ms=now_ms, expires_at_ms=expires_at_ms, corrects=corrects
    )
    return after is not None, after


class PostgresRecords:
    """The RecordAdmin contract on one database.

    Args:
        server: a database whose tables are there.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._amender = Amender(server)

    def scan(self, *, status: Status | None = None, parked: bool | None = None, limit: int = 100) -> list[Record]:
        """Records, newest change first; failed and unknown ones by index, others by reading the table."""
        conditions: list[str] = ["true"]
        if status is not None:
            conditions.append(f"r.status = '{status}'")  # in the text: the planner must see that the partial index fits
        if parked is not None:
            conditions.append("r.status = 'unknown' AND r.parked" if parked else "NOT r.parked")
        statement = self._server.sql(_SCAN.replace("CONDITION", " AND ".join(conditions)))
        rows = self._server.run(lambda link: ask(link, statement, (limit,)))
        return [record_of(row) for row in rows]

    def find(self, key: str, limit: int = 20) -> list[Record]:
        """Records whose business key is exactly `key`, newest change first."""
        values = (*key_range(key), packed(key), limit)
        rows = self._server.run(lambda link: ask(link, self._server.sql(_FIND), values))
        return [record_of(row) for row in rows]

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
        step = partial(
            _settle_step, done=done, result=result, now_ms=now_ms, expires_at_ms=expires_at_ms, corrects=corrects
        )
        place = ident(key)

        def run(link: Link) -> bool:
            steps: dict[bytes, list[Step[bool]]] = {place: [step]}
            (settled,) = self._amender.amend(link, steps, now_ms)[place]
            return settled

        return self._server.run(run)

    def count_completed(self, since_ms: int, now_ms: int) -> dict[str, int]:
        """Runs completed in [since_ms, now_ms) per job; the seconds that both ends fall in count as a whole."""
        values = (since_ms // 1000, (now_ms - 1) // 1000)
        rows = self._server.run(lambda link: ask(link, self._server.sql(_COUNT), values))
        return {unpacked(job): count for job, count in rows}
