"""Idempotency records on SQLite: the Store contract, and the operator's view of it.

Each operation is a function on an open transaction (`claim_in`, `write_in`, ...), so that `commit.py` can combine it with
settling the message; `SqliteStore` wraps each in its own transaction. Rare transitions read the record, call
`contracts/transitions.py` and write the whole row; the frequent ones (start, renew, Complete) are one conditional UPDATE per
record with the same effect. SQLite has one writer at a time, so what was read stays valid until the commit.

Never here: policy, messages, clocks. Invariant: every write names its owner and fence, and reports whether it was
applied.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, get_args

import msgspec
from msgspec.structs import replace

from onefold import errors
from onefold.clock import NO_JUMPS, Jumps
from onefold.contracts import transitions
from onefold.contracts.store import (
    Answer,
    Ask,
    Claimed,
    Complete,
    Completed,
    Failure,
    Hold,
    ManualDecision,
    OutboxItem,
    Outcome,
    Record,
    RecordKey,
    Release,
    Status,
    StoreCapabilities,
    Unreadable,
    key_range,
    unreadable_row,
)
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.file import ident
from onefold.engines.sqlite.ledger import append_in
from onefold.engines.sqlite.log import NotOnDisk
from onefold.engines.sqlite.processes import file_of, stopped_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from onefold.contracts.engine import RenewalMark
    from onefold.contracts.ledger import Row as LedgerRow
    from onefold.contracts.transitions import Written
    from onefold.contracts.verbs import Ledger, RowsOf, State

_STATUSES: Final[tuple[Status, ...]] = get_args(Status)
_CODES: Final = {status: code for code, status in enumerate(_STATUSES)}
_COLUMNS: Final = (
    "ident, status, fence, owner, lease_until_ms, parked, doubt, started_fence, attempts, attempts_total, crashes,"
    " crashes_total, budget_closed, created_at_ms, started_at_ms, updated_at_ms, expires_at_ms, fingerprint, scope, job,"
    " key, message_id, sent_at_ms, result, failure, outbox"
)
_SELECT: Final = f"SELECT {_COLUMNS} FROM onefold_record"
_SELECT_MANY: Final = {
    size: f"{_SELECT} WHERE ident IN ({','.join('?' * size)})" for size in (1, 10, 100)
}  # three statements that stay prepared, instead of one for each number of claims
_MARKS: Final = ",".join("?" * (_COLUMNS.count(",") + 1))
_INSERT: Final = f"INSERT INTO onefold_record ({_COLUMNS}) VALUES ({_MARKS})"
# All columns except the ident: SQLite rewrites the index entry of a column that is set, even to the same value.
_REPLACE: Final = f"""
UPDATE onefold_record SET ({_COLUMNS.removeprefix("ident, ")}) = ({_MARKS.removeprefix("?,")}) WHERE ident = ?
"""
_HELD: Final = "WHERE ident = ? AND owner = ? AND fence = ? AND status = 0"
_START: Final = f"""
UPDATE onefold_record SET attempts = attempts + 1, attempts_total = attempts_total + 1, started_fence = fence, doubt = 0,
    started_at_ms = ?, updated_at_ms = ?
{_HELD} AND started_fence <> fence
"""
_RENEW: Final = f"UPDATE onefold_record SET lease_until_ms = ? {_HELD}"
_COMPLETE: Final = f"""
UPDATE onefold_record SET status = 1, result = ?, outbox = ?, expires_at_ms = ?, updated_at_ms = ?, doubt = 0, failure = NULL
{_HELD}
"""
_COUNT: Final = """
INSERT INTO onefold_completed (second, job, count) VALUES (?, ?, ?)
ON CONFLICT (second, job) DO UPDATE SET count = count + excluded.count
"""
_COMPLETED: Final = _CODES["completed"]
_OUTBOX = msgspec.json.Decoder(list[OutboxItem])
_FAILURE = msgspec.json.Decoder(Failure)
_Row = tuple[object, ...]


def _row(key: bytes, record: Record) -> _Row:
    """A record in the order of `_COLUMNS`."""
    return (
        key,
        _CODES[record.status],
        record.fence,
        record.owner,
        record.lease_until_ms,
        record.parked,
        record.doubt,
        record.started_fence,
        record.attempts,
        record.attempts_total,
        record.crashes,
        record.crashes_total,
        record.budget_closed,
        record.created_at_ms,
        record.started_at_ms,
        record.updated_at_ms,
        record.expires_at_ms,
        record.fingerprint,
        record.key.scope,
        record.key.job,
        record.key.key,
        record.message_id,
        record.sent_at_ms,
        record.result,
        None if record.failure is None else msgspec.json.encode(record.failure).decode(),
        _outbox_json(record.outbox),
    )


def _outbox_json(outbox: Sequence[OutboxItem]) -> str | None:
    return msgspec.json.encode(outbox).decode() if outbox else None


def _record(row: tuple) -> Record:  # type: ignore[type-arg]  # one type per column, as the schema has them
    return Record(
        status=_STATUSES[row[1]],
        fence=row[2],
        owner=row[3],
        lease_until_ms=row[4],
        parked=bool(row[5]),
        doubt=bool(row[6]),
        started_fence=row[7],
        attempts=row[8],
        attempts_total=row[9],
        crashes=row[10],
        crashes_total=row[11],
        budget_closed=bool(row[12]),
        created_at_ms=row[13],
        started_at_ms=row[14],
        updated_at_ms=row[15],
        expires_at_ms=row[16],
        fingerprint=row[17],
        key=RecordKey(row[18], row[19], row[20]),
        message_id=row[21],
        sent_at_ms=row[22],
        result=row[23],
        failure=None if row[24] is None else _FAILURE.decode(row[24]),
        outbox=[] if row[25] is None else _OUTBOX.decode(row[25]),
    )


def _readable(row: tuple) -> Record:  # type: ignore[type-arg]  # as for `_record`
    """Like `_record`.

    Raises:
        StorageError: the row is not a record that this version can read.
    """
    problem, cause = "it is completed and has no result", None
    if row[1] != _COMPLETED or row[23] is not None:
        try:
            return _record(row)
        except (msgspec.MsgspecError, IndexError, TypeError, ValueError) as error:
            problem, cause = str(error), error
    raise unreadable_row(row[19], row[20], problem, "onefold_record") from cause


def _find(
    connection: sqlite3.Connection,
    idents: Iterable[bytes],
    jumps: Jumps = NO_JUMPS,
    unreadable: dict[bytes, errors.StorageError] | None = None,
) -> dict[bytes, Record]:
    """The stored records, expired ones included; with `jumps` they expire that much later.

    Args:
        unreadable: takes the errors of those that cannot be read; without it, the first of them is raised.
    """
    wanted = list(dict.fromkeys(idents))
    found: dict[bytes, Record] = {}
    while wanted:
        size = 100 if len(wanted) > 10 else 10 if len(wanted) > 1 else 1
        chunk, wanted = wanted[:size], wanted[size:]
        chunk += [chunk[0]] * (size - len(chunk))
        for row in connection.execute(_SELECT_MANY[size], chunk):
            try:
                found[row[0]] = _readable(row)
            except errors.StorageError as error:
                if unreadable is None:
                    raise
                unreadable[row[0]] = error
    if jumps.noted:
        return {key: _kept_longer(record, jumps) for key, record in found.items()}
    return found


def _kept_longer(record: Record, jumps: Jumps) -> Record:
    if record.expires_at_ms is None:
        return record
    return replace(record, expires_at_ms=record.expires_at_ms + jumps.longer_ms(record.updated_at_ms))


def claim_in(
    connection: sqlite3.Connection,
    asks: Sequence[Ask],
    now_ms: int,
    rows_of: RowsOf | None = None,
    stopped: Callable[[Record], int | None] = lambda _: None,
    jumps: Jumps = NO_JUMPS,
) -> list[Answer]:
    """Like `Store.claim`, inside the caller's transaction; for `stopped` see `SqliteStore.stopped_process`."""
    idents = [ident(ask.key) for ask in asks]
    unreadable: dict[bytes, errors.StorageError] = {}
    records: dict[bytes, Record | None] = {**_find(connection, idents, jumps, unreadable)}
    stored = set(records)
    dead = dead_owners(connection) if any(map(_is_leased, records.values())) else frozenset()
    if dead:
        dead |= {record.owner for record in records.values() if record is not None and file_of(record.owner) in dead}
    changed: dict[bytes, Record] = {}
    answers: list[Answer] = []
    rows: list[LedgerRow] = []
    for index, (key, ask) in enumerate(zip(idents, asks, strict=True)):
        if key in unreadable:
            answers.append(Unreadable.of(unreadable[key]))
            continue
        answer, after = transitions.claim(records.get(key), ask, now_ms, dead, stopped)
        if after is not None:
            records[key] = changed[key] = after
            if rows_of is not None and isinstance(answer, Claimed) and answer.found != "absent":
                rows += rows_of(index, answer)
        answers.append(answer)
    connection.executemany(_INSERT, [_row(key, record) for key, record in changed.items() if key not in stored])
    for key, record in changed.items():
        if key in stored:
            _replace(connection, key, record)
    if rows:
        append_in(connection, rows)
    return answers


def _replace(connection: sqlite3.Connection, key: bytes, record: Record) -> None:
    _, *values = _row(key, record)
    connection.execute(_REPLACE, (*values, key))


def _is_leased(record: Record | None) -> bool:
    return record is not None and record.status == "in_progress"


def dead_owners(connection: sqlite3.Connection) -> frozenset[str]:
    """Owners that were found dead, whose leases are therefore over."""
    return frozenset(owner for (owner,) in connection.execute("SELECT owner FROM onefold_dead_owner"))


def start_in(connection: sqlite3.Connection, holds: Sequence[Hold], now_ms: int) -> list[bool]:
    """Like `Store.start`, inside the caller's transaction."""
    return [_start(connection, hold, now_ms) for hold in holds]


def _start(connection: sqlite3.Connection, hold: Hold, now_ms: int) -> bool:
    key = ident(hold.key)
    if connection.execute(_START, (now_ms, now_ms, key, hold.owner, hold.fence)).rowcount == 1:
        return True
    return transitions.start(_find(connection, [key]).get(key), hold, now_ms) is not None


def renew_in(connection: sqlite3.Connection, holds: Sequence[Hold], lease_until_ms: int) -> list[bool]:
    """Like `Store.renew`, inside the caller's transaction."""
    return [
        connection.execute(_RENEW, (lease_until_ms, ident(hold.key), hold.owner, hold.fence)).rowcount == 1
        for hold in holds
    ]


def write_in(connection: sqlite3.Connection, writes: Sequence[tuple[Hold, Outcome]], now_ms: int) -> list[Written]:
    """Like `Store.write`, inside the caller's transaction; distinguishes a repeated Complete from a first one."""
    completed: Counter[str] = Counter()
    if len(writes) > 1 and _complete_all(connection, writes, now_ms):
        completed.update([hold.key.job for hold, _ in writes])
        _count(connection, completed, now_ms)
        return ["new"] * len(writes)
    written: list[Written] = []
    for hold, outcome in writes:
        became = _write(connection, ident(hold.key), hold, outcome, now_ms)
        written.append(became)
        if became == "new" and isinstance(outcome, Complete):
            completed[hold.key.job] += 1
    _count(connection, completed, now_ms)
    return written


def _complete_all(connection: sqlite3.Connection, writes: Sequence[tuple[Hold, Outcome]], now_ms: int) -> bool:
    """Complete many runs in one statement, in half of the time; False: one cannot be completed, so none was."""
    values = []
    for hold, outcome in writes:
        if type(outcome) is not Complete:
            return False
        own = (outcome.result, _outbox_json(outcome.outbox), outcome.expires_at_ms, now_ms)
        values.append((*own, ident(hold.key), hold.owner, hold.fence))
    connection.execute("SAVEPOINT onefold_complete")
    if connection.executemany(_COMPLETE, values).rowcount == len(writes):
        connection.execute("RELEASE onefold_complete")
        return True
    connection.execute("ROLLBACK TO onefold_complete")
    connection.execute("RELEASE onefold_complete")
    return False


def _write(connection: sqlite3.Connection, key: bytes, hold: Hold, outcome: Outcome, now_ms: int) -> Written:
    if isinstance(outcome, Complete):
        values = (outcome.result, _outbox_json(outcome.outbox), outcome.expires_at_ms, now_ms)
        if connection.execute(_COMPLETE, (*values, key, hold.owner, hold.fence)).rowcount == 1:
            return "new"
    record = _find(connection, [key]).get(key)
    after = transitions.write(record, hold, outcome, now_ms)
    if after is None:
        return "lost"
    if after is record:
        return "again"
    _replace(connection, key, after)
    return "new"


def _count(connection: sqlite3.Connection, completed: Counter[str], now_ms: int) -> None:
    connection.executemany(_COUNT, [(now_ms // 1000, job, count) for job, count in completed.items()])


def restore_in(connection: sqlite3.Connection, records: Sequence[Record]) -> list[bool]:
    """Like `Store.restore`, inside the caller's transaction."""
    return [_restore(connection, record) for record in records]


def _restore(connection: sqlite3.Connection, record: Record) -> bool:
    key = ident(record.key)
    stored = _find(connection, [key]).get(key)
    after = transitions.restore(stored, record)
    if after is not None and after is not stored:
        connection.execute(_INSERT, _row(key, after))
    return after is not None


def clear_outbox_in(connection: sqlite3.Connection, holds: Sequence[Hold]) -> list[Written]:
    """Like `Store.clear_outbox`, inside the caller's transaction; distinguishes an outbox that was empty before."""
    return [_clear_outbox(connection, hold) for hold in holds]


def _clear_outbox(connection: sqlite3.Connection, hold: Hold) -> Written:
    key = ident(hold.key)
    record = _find(connection, [key]).get(key)
    after = transitions.clear_outbox(record, hold)
    if after is None:
        return "lost"
    if after is record:
        return "again"
    connection.execute("UPDATE onefold_record SET outbox = NULL WHERE ident = ?", (key,))
    return "new"


def read_in(
    connection: sqlite3.Connection, keys: Sequence[RecordKey], now_ms: int, jumps: Jumps = NO_JUMPS
) -> list[Record | None]:
    """Like `Store.read`, inside the caller's transaction."""
    idents = [ident(key) for key in keys]
    records = _find(connection, idents, jumps)
    found = [records.get(key) for key in idents]
    return [None if record is None or transitions.is_expired(record, now_ms) else record for record in found]


class SqliteStore:
    """The Store contract on one engine; also its `RecordAdmin`.

    Args:
        engine: an open engine whose file has been migrated.
    """

    ledger: Ledger | None = None  # in the same file; `once` notes the outcome of calls there
    state: State | None = None  # in the same file; has the owners of operation names
    process: str | None = None  # ids of calls in this process end with a dot and this
    # Called before the first call is claimed; see `Engine.renewal_mark`.
    appear: Callable[[], RenewalMark | None] | None = None

    def __init__(self, engine: Database) -> None:
        self._engine = engine
        self.clock = engine.clock  # shared by everything that uses the file, and the default for `@once`
        lasting = not engine.in_memory
        self.capabilities = StoreCapabilities(durable=lasting, proves_death=lasting, notes_claims=True)

    def stopped_process(self, record: Record, now_ms: int) -> int | None:
        """See `Engine.stopped_process`."""
        return self._stopped_process(record) if transitions.may_stand(record, now_ms) else None

    def _stopped_process(self, record: Record) -> int | None:
        if self._engine.in_memory:
            return None
        return stopped_process(self._engine.real_path, record.owner, record.lease_until_ms)

    # -- Store ---------------------------------------------------------------------------------------------------------

    def claim(self, asks: Sequence[Ask], now_ms: int, rows_of: RowsOf | None = None) -> list[Answer]:
        """Like `Store.claim`, all asks and their rows in one transaction; a repeated call may be answered without one.

        Raises:
            NotOnDisk: a sync failed; the claims were released.
        """
        if len(asks) == 1 and asks[0].message_id is None and (known := self._completed(asks[0], now_ms)) is not None:
            return [known]
        answers: list[Answer] = []

        def run(connection: sqlite3.Connection) -> list[Answer]:
            answers[:] = claim_in(connection, asks, now_ms, rows_of, self._stopped_process, self.clock.jumps)
            return answers

        try:
            # A call's claim only takes space, as a send does; a message's claim is part of finishing the message.
            return self._engine.write(run, early=True, adds=any(ask.message_id is None for ask in asks))
        except NotOnDisk:  # the work will not run here; others can run it, and this must not count as a crash
            taken = [
                (answer.hold, Release(expires_at_ms=ask.expires_at_ms, refund=True))
                for ask, answer in zip(asks, answers, strict=True)
                if isinstance(answer, Claimed)
            ]
            self._engine.take_back(lambda connection: write_in(connection, taken, now_ms))
            raise

    def _completed(self, ask: Ask, now_ms: int) -> Completed | None:
        """The answer to a duplicate call, from a snapshot: it takes no turn to write. None if the call must be claimed.

        A completion is on disk before others can see it, and it stays until it expires.
        """
        if self._engine.in_memory or not self._engine.check_file():  # as every write does: it may have been replaced
            return None
        key = ident(ask.key)
        record = self._engine.read(lambda connection: _find(connection, (key,), self.clock.jumps).get(key))
        if record is None or record.status != "completed":
            return None
        answer, after = transitions.claim(record, ask, now_ms)
        return answer if after is None and isinstance(answer, Completed) else None

    def start(self, holds: Sequence[Hold], now_ms: int) -> list[bool]:
        """Like `Store.start`, in one transaction."""
        return self._engine.write(lambda connection: start_in(connection, holds, now_ms))

    def renew(self, holds: Sequence[Hold], lease_until_ms: int) -> list[bool]:
        """Like `Store.renew`, in one transaction."""
        return self._engine.write(lambda connection: renew_in(connection, holds, lease_until_ms), synced=False)

    def write(self, writes: Sequence[tuple[Hold, Outcome]], now_ms: int) -> list[bool]:
        """Like `Store.write`, in one transaction."""
        written = self._engine.write(lambda connection: write_in(connection, writes, now_ms))
        return [became != "lost" for became in written]

    def restore(self, records: Sequence[Record]) -> list[bool]:
        """Like `Store.restore`, in one transaction."""
        return self._engine.write(lambda connection: restore_in(connection, records))

    def clear_outbox(self, holds: Sequence[Hold]) -> list[bool]:
        """Like `Store.clear_outbox`, in one transaction."""
        cleared = self._engine.write(lambda connection: clear_outbox_in(connection, holds))
        return [became != "lost" for became in cleared]

    def read(self, keys: Sequence[RecordKey], now_ms: int) -> list[Record | None]:
        """Like `Store.read`, from a snapshot; it does not wait for writers."""
        return self._engine.read(lambda connection: read_in(connection, keys, now_ms, self.clock.jumps))

    # -- RecordAdmin ---------------------------------------------------------------------------------------------------

    def scan(self, *, status: Status | None = None, parked: bool | None = None, limit: int = 100) -> list[Record]:
        """Records, newest change first; an index finds failed and unknown ones, all others need a scan of the table."""
        conditions, values = ["1"], []
        if status is not None:
            conditions.append(f"status = {_CODES[status]}")  # a literal, so that SQLite can use the partial index
        if parked is not None:
            conditions.append("status = 3 AND parked" if parked else "NOT parked")
        values.append(limit)
        query = f"{_SELECT} WHERE {' AND '.join(conditions)} ORDER BY updated_at_ms DESC, id DESC LIMIT ?"
        return self._engine.read(lambda connection: [_readable(row) for row in connection.execute(query, values)])

    def find(self, key: str, limit: int = 20) -> list[Record]:
        """Records whose business key is exactly `key`, newest change first."""
        query = f"{_SELECT} WHERE ident >= ? AND ident < ? AND key = ? ORDER BY updated_at_ms DESC LIMIT ?"
        values = (*key_range(key), key, limit)
        return self._engine.read(lambda connection: [_readable(row) for row in connection.execute(query, values)])

    def settle(self, key: RecordKey, decision: ManualDecision, now_ms: int) -> bool:
        """Settle a parked record as a person decided, or correct a result; False if neither is possible (any more)."""

        def run(connection: sqlite3.Connection) -> bool:
            record_id = ident(key)
            _, after = transitions.settle(_find(connection, [record_id]).get(record_id), decision, now_ms)
            if after is None:
                return False
            _replace(connection, record_id, after)
            _count(connection, Counter({key.job: 1} if decision.done and decision.corrects is None else {}), now_ms)
            return True

        return self._engine.write(run)

    def count_completed(self, since_ms: int, now_ms: int) -> dict[str, int]:
        """Runs completed in [since_ms, now_ms) per job; the seconds at both ends are counted in full."""
        query = "SELECT job, sum(count) FROM onefold_completed WHERE second >= ? AND second <= ? GROUP BY job"
        values = (since_ms // 1000, (now_ms - 1) // 1000)
        return self._engine.read(lambda connection: dict(connection.execute(query, values)))
