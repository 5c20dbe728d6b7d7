"""A record as a row: its columns, their types, and the way there and back.

Many rows travel in one statement as one array per column (`unnest`), so a batch of any size is one prepared statement.
A row read comes with its version, PostgreSQL's own `xmin`: the transaction that wrote it, another one after every change.

Never here: statements, rules. Invariant: `record_of` gives back what `values_of` was given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from onefold.backends.postgres.identity import packed, unpacked
from onefold.contracts.store import Failure, OutboxItem, Record, RecordKey

# In the order of `values_of` and `record_of`. All may change but the last three.
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
    """An outbox as it is stored; None when it is empty."""
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


def arrays(rows: Iterable[Sequence[object]]) -> tuple[list[object], ...]:
    """Rows turned into one list per column; at least one row."""
    return tuple(map(list, zip(*rows, strict=True)))
