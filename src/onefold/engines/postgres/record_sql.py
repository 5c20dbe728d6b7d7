r"""Records in SQL: operations as single values, records as rows, and the statements that change records.

An operation is one value, `ident` (`contracts/store.py`). The primary key is not three texts, because an index entry
has at most 2,704 bytes, a key alone may have 2,048, and the order of texts changes with the server's collation library,
which breaks indexes. PostgreSQL's text cannot contain NUL: `packed` writes it as `\0` and a backslash as `\\`; all
other characters stay as they are.

Many rows travel in one statement as one array per column (`unnest`), so a batch of any size is one prepared statement.
A row is read together with its version, PostgreSQL's `xmin`: the id of the transaction that wrote it, which differs after
every change.

No statement of ours waits for a lock while it holds another: statements for many rows skip locked rows (SKIP LOCKED),
and the skipped rows follow one by one. So no order of keys is needed, and we cannot cause a deadlock, not even together
with a handler's transaction, which locks its records in the order in which its runs finish. The only exception is the
INSERT of a claim, or of a record that is restored: it may wait for another first claim of the same key, so it takes
keys in order. It leaves existing rows alone: ON CONFLICT would wait for a transaction that changes such a row.

    CLAIM     insert what is absent, read what exists: a first claim and a duplicate are one round trip
    START, RENEW, COMPLETE, CLEAR    the frequent transitions under an owner and a fence, as conditions
    CHANGE    any other transition, decided by contracts/transitions.py: compare-and-set on the version that was read

Written for the schema `onefold`; `PostgresServer.sql` inserts the chosen one. Never here: which statement is used when
(`records.py`). Invariant: a statement changes a row only under a condition that it checks on the locked row;
`record_of` returns what `values_of` was given, and `unpacked(packed(text)) == text`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, overload

import msgspec

from onefold.contracts.store import Failure, OutboxItem, Record, RecordKey, ident_of, unreadable_row

_FAMILY_BYTES: Final = 16  # never changes: existing databases use it


def ident(key: RecordKey) -> bytes:
    """The operation's value in the primary key, 17 to 65 bytes."""
    return ident_of(key, _FAMILY_BYTES)


@overload
def packed(text: str) -> str: ...
@overload
def packed(text: None) -> None: ...
@overload
def packed(text: str | None) -> str | None: ...
def packed(text: str | None) -> str | None:
    """A user's text in stored form (None stays None)."""
    if text is None or ("\\" not in text and "\x00" not in text):
        return text
    return text.replace("\\", "\\\\").replace("\x00", "\\0")


@overload
def unpacked(text: str) -> str: ...
@overload
def unpacked(text: None) -> None: ...
@overload
def unpacked(text: str | None) -> str | None: ...
def unpacked(text: str | None) -> str | None:
    """The user's text for a stored text."""
    if text is None or "\\" not in text:
        return text
    return "\\".join(part.replace("\\0", "\x00") for part in text.split("\\\\"))


# In the order of `values_of` and `record_of`. All but the last three can change.
TYPES: Final = {
    "fence": "bigint",
    "lease_until_ms": "bigint",
    "started_fence": "bigint",
    "created_at_ms": "bigint",
    "started_at_ms": "bigint",
    "updated_at_ms": "bigint",
    "expires_at_ms": "bigint",
    "sent_at_ms": "bigint",
    "attempts": "integer",
    "attempts_total": "integer",
    "crashes": "integer",
    "crashes_total": "integer",
    "parked": "boolean",
    "doubt": "boolean",
    "budget_closed": "boolean",
    "status": "text",
    "owner": "text",
    "fingerprint": "text",
    "message_id": "text",
    "result": "bytea",
    "failure": "text",
    "outbox": "text",
    "scope": "text",
    "job": "text",
    "key": "text",
}
CHANGING: Final = [name for name in TYPES if name not in ("scope", "job", "key")]
COLUMNS: Final = ", ".join(f"r.{name}" for name in TYPES)

_OUTBOX: Final = msgspec.json.Decoder(list[OutboxItem])
_FAILURE: Final = msgspec.json.Decoder(Failure)


def values_of(record: Record) -> tuple[object, ...]:
    """A record in the order of `TYPES`."""
    return (
        record.fence,
        record.lease_until_ms,
        record.started_fence,
        record.created_at_ms,
        record.started_at_ms,
        record.updated_at_ms,
        record.expires_at_ms,
        record.sent_at_ms,
        record.attempts,
        record.attempts_total,
        record.crashes,
        record.crashes_total,
        record.parked,
        record.doubt,
        record.budget_closed,
        record.status,
        packed(record.owner),
        packed(record.fingerprint),
        packed(record.message_id),
        record.result,
        None if record.failure is None else msgspec.json.encode(record.failure).decode(),
        outbox_text(record.outbox),
        packed(record.key.scope),
        packed(record.key.job),
        packed(record.key.key),
    )


def outbox_text(outbox: Sequence[OutboxItem]) -> str | None:
    """An outbox in stored form; None if it is empty."""
    return msgspec.json.encode(outbox).decode() if outbox else None


def record_of(row: Sequence[Any]) -> Record:
    """The record of a row in the order of `TYPES`."""
    return Record(
        fence=row[0],
        lease_until_ms=row[1],
        started_fence=row[2],
        created_at_ms=row[3],
        started_at_ms=row[4],
        updated_at_ms=row[5],
        expires_at_ms=row[6],
        sent_at_ms=row[7],
        attempts=row[8],
        attempts_total=row[9],
        crashes=row[10],
        crashes_total=row[11],
        parked=row[12],
        doubt=row[13],
        budget_closed=row[14],
        status=row[15],
        owner=unpacked(row[16]),
        fingerprint=unpacked(row[17]),
        message_id=unpacked(row[18]),
        result=row[19],
        failure=None if row[20] is None else _FAILURE.decode(row[20]),
        outbox=[] if row[21] is None else _OUTBOX.decode(row[21]),
        key=RecordKey(unpacked(row[22]), unpacked(row[23]), unpacked(row[24])),
    )


def readable(row: Sequence[Any]) -> Record:
    """Like `record_of`.

    Raises:
        StorageError: the row is not a record that this version can read.
    """
    problem, cause = "it is completed and has no result", None
    if row[15] != "completed" or row[19] is not None:
        try:
            return record_of(row)
        except (msgspec.MsgspecError, IndexError, TypeError, ValueError) as error:
            problem, cause = str(error), error
    raise unreadable_row(row[23], row[24], problem, "onefold.record") from cause


def arrays(rows: Iterable[Sequence[object]]) -> tuple[list[object], ...]:
    """Rows turned into one list per column; at least one row."""
    return tuple(map(list, zip(*rows, strict=True)))


CLAIM: Final = """
WITH asked AS (
    SELECT * FROM unnest(%s::bytea[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[], %s::bigint[],
        %s::integer[], %s::text[], %s::bigint[])
    AS a (ident, scope, job, key, owner, fingerprint, lease_until_ms, expires_at_ms, started, message_id, sent_at_ms)
), fresh AS (
    INSERT INTO onefold.record (ident, fence, lease_until_ms, started_fence, created_at_ms, started_at_ms, updated_at_ms,
        expires_at_ms, sent_at_ms, attempts, attempts_total, crashes, crashes_total, parked, doubt, budget_closed, status,
        owner, fingerprint, scope, job, key, message_id)
    SELECT ident, 1, lease_until_ms, started, now_ms, CASE started WHEN 1 THEN now_ms END, now_ms,
        expires_at_ms, sent_at_ms, started, started, 0, 0, false, false, false, 'in_progress',
        owner, fingerprint, scope, job, key, message_id
    FROM asked a, (SELECT %s::bigint AS now_ms) AS present
    WHERE NOT EXISTS (SELECT FROM onefold.record r WHERE r.ident = a.ident)
    ORDER BY ident
    ON CONFLICT (ident) DO NOTHING
    RETURNING ident
)
SELECT a.ident, f.ident IS NOT NULL, r.xmin::text, COLUMNS
FROM asked a LEFT JOIN fresh f ON f.ident = a.ident LEFT JOIN onefold.record r ON r.ident = a.ident
""".replace("COLUMNS", COLUMNS)

RESTORE: Final = """
INSERT INTO onefold.record (ident, NAMES)
SELECT * FROM unnest(%s::bytea[], ARRAYS) AS g (ident, NAMES)
WHERE NOT EXISTS (SELECT FROM onefold.record r WHERE r.ident = g.ident)
ORDER BY ident
ON CONFLICT (ident) DO NOTHING
RETURNING ident
""".replace("ARRAYS", ", ".join(f"%s::{kind}[]" for kind in TYPES.values())).replace("NAMES", ", ".join(TYPES))

READ: Final = """
SELECT r.ident, r.xmin::text, COLUMNS FROM onefold.record r WHERE r.ident = ANY(%s::bytea[])
""".replace("COLUMNS", COLUMNS)

_HELD: Final = """
WITH held AS MATERIALIZED (
    SELECT r.ident FROM onefold.record r
    JOIN unnest(%s::bytea[], %s::text[], %s::bigint[]) AS h (ident, owner, fence) ON r.ident = h.ident
    WHERE r.owner = h.owner AND r.fence = h.fence AND CONDITION
    FOR UPDATE OF r SKIP LOCKED
)
"""

START: Final = (
    _HELD.replace("CONDITION", "r.status = 'in_progress' AND r.started_fence <> r.fence")
    + """
UPDATE onefold.record r SET attempts = attempts + 1, attempts_total = attempts_total + 1, started_fence = fence,
    doubt = false, started_at_ms = now_ms, updated_at_ms = now_ms
FROM held, (SELECT %s::bigint AS now_ms) AS present WHERE r.ident = held.ident
RETURNING r.ident
"""
)

RENEW: Final = (
    _HELD.replace("CONDITION", "r.status = 'in_progress'")
    + """
UPDATE onefold.record r SET lease_until_ms = %s FROM held WHERE r.ident = held.ident
RETURNING r.ident
"""
)

CLEAR: Final = (
    _HELD.replace("CONDITION", "r.status = 'completed' AND r.outbox IS NOT NULL")
    + """
UPDATE onefold.record r SET outbox = NULL FROM held WHERE r.ident = held.ident
RETURNING r.ident
"""
)

# Counts the runs that it completed, or that a change reports. By `backend`, so that no two connections count in one
# row.
_COUNTED: Final = """
, counted AS (
    INSERT INTO onefold.completed AS c (second, job, backend, count)
    SELECT %s, job, pg_backend_pid(), sum(count) FROM done GROUP BY job HAVING sum(count) > 0
    ON CONFLICT (second, job, backend) DO UPDATE SET count = c.count + excluded.count
)
SELECT ident FROM done
"""

COMPLETE: Final = """
WITH given AS (
    SELECT * FROM unnest(%s::bytea[], %s::text[], %s::bigint[], %s::bytea[], %s::text[], %s::bigint[])
    AS g (ident, owner, fence, result, outbox, expires_at_ms)
), held AS MATERIALIZED (
    SELECT r.ident, g.result, g.outbox, g.expires_at_ms FROM onefold.record r JOIN given g ON r.ident = g.ident
    WHERE r.owner = g.owner AND r.fence = g.fence AND r.status = 'in_progress'
    FOR UPDATE OF r SKIP LOCKED
), done AS (
    UPDATE onefold.record r SET status = 'completed', result = held.result, outbox = held.outbox,
        expires_at_ms = held.expires_at_ms, updated_at_ms = %s, doubt = false, failure = NULL
    FROM held WHERE r.ident = held.ident
    RETURNING r.ident, r.job, 1 AS count
)COUNTED""".replace("COUNTED", _COUNTED)

_CHANGE: Final = (
    """
WITH given AS (
    SELECT * FROM unnest(%s::bytea[], %s::text[]::xid[], %s::integer[], ARRAYS) AS g (ident, version, counts, NAMES)
), done AS (
    UPDATE onefold.record r SET (NAMES) = (GIVEN) FROM given g WHERE r.ident = g.ident AND r.xmin = g.version AND LOCKS
    RETURNING r.ident, r.job, g.counts AS count
)""".replace("ARRAYS", ", ".join(f"%s::{TYPES[name]}[]" for name in CHANGING))
    .replace("NAMES", ", ".join(CHANGING))
    .replace("GIVEN", ", ".join(f"g.{name}" for name in CHANGING))
    + _COUNTED
)
# For one row: waits for a lock on it. For several rows: skips locked ones.
CHANGE_ONE: Final = _CHANGE.replace("AND LOCKS", "")
# The same with rows of history, which are written if and only if the record is.
CHANGE_NOTED: Final = CHANGE_ONE.replace(
    "SELECT ident FROM done",
    """, noted AS (
    INSERT INTO onefold.ledger (at_ms, event, ident, scope, job, key, queue, message_id, run, actor, detail)
    SELECT n.at_ms, n.event, n.ident, n.scope, n.job, n.key, n.queue, n.message_id, n.run, n.actor, n.detail
    FROM done, unnest(%s::bigint[], %s::text[], %s::bytea[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
        %s::text[], %s::text[], %s::text[]) WITH ORDINALITY
    AS n (at_ms, event, ident, scope, job, key, queue, message_id, run, actor, detail, place)
    ORDER BY n.place
)
SELECT ident FROM done""",
)
CHANGE_MANY: Final = _CHANGE.replace("AND LOCKS", "AND r.ident IN (SELECT ident FROM free)").replace(
    "), done AS (",
    """), free AS MATERIALIZED (
    SELECT r.ident FROM onefold.record r JOIN given g ON r.ident = g.ident AND r.xmin = g.version
    FOR UPDATE OF r SKIP LOCKED
), done AS (""",
)


def waiting(statement: bytes) -> bytes:
    """The same statement for one row: it waits for a lock on the row, and then reads the row again.

    So others cannot get ahead of a renewal or an outcome again and again, as can happen to a compare-and-set.
    """
    return statement.replace(b" SKIP LOCKED", b"")
