"""Idempotency records on PostgreSQL: the Store contract, and the operator's view (RecordAdmin).

    claim                  one round trip for first claims and for duplicates, whatever their number; two or three more
                           for claims that take over, follow a failure, or collide with another claim
    start, renew, clear    one; more for records that the condition refused, or that another transaction has locked
    write                  one for runs that complete; two for other outcomes: a read and a conditional write

All of these can run on a given connection (`claim_on`, `write_on`), so that `effects.py` can complete a record inside a
handler's transaction.

Transitions that are not one conditional statement go through `Amender`: read, decide in Python by
`contracts/transitions.py`, and write only if nothing has changed since (a compare-and-set on the version that was
read). The alternative, SELECT ... FOR UPDATE and a write in one transaction, takes as many round trips, and a process
that vanishes between them leaves rows locked that others wait for. Here no lock outlives a statement. The loser of a
race reads again, and each time that happens another process has made progress.

Operators find failed and unknown records by an index; a scan for others reads the table.

Never here: SQL of records (`record_sql.py`), policy, messages, clocks. Invariant: every write names its owner and
fence, or the version that was read, and reports whether it was applied; only a parked record is settled.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from msgspec import Struct

from onefold import errors
from onefold.contracts import transitions
from onefold.contracts.ledger import Row
from onefold.contracts.store import (
    Answer,
    Ask,
    Claimed,
    Complete,
    Hold,
    ManualDecision,
    Outcome,
    Record,
    RecordKey,
    Status,
    StoreCapabilities,
    Unreadable,
    key_range,
)
from onefold.engines.postgres import record_sql
from onefold.engines.postgres.connection import Link, PostgresServer, ask
from onefold.engines.postgres.ledger import row_values
from onefold.engines.postgres.record_sql import (
    CHANGING,
    COLUMNS,
    arrays,
    ident,
    outbox_text,
    packed,
    readable,
    unpacked,
    values_of,
)

if TYPE_CHECKING:
    from onefold.contracts.transitions import Written
    from onefold.contracts.verbs import Ledger, RowsOf, State
    from onefold.outside import Clock


A = TypeVar("A")
Step = Callable[[Record | None], tuple[A, Record | None]]
"""One verb on one record: its answer, and the record afterwards (None if unchanged)."""

ROUNDS: Final = 20  # rounds of a read and a write; if one is lost, somebody else has changed the same record


class VersionedRecord(Struct, frozen=True, gc=False):
    """A record, and its version when it was read."""

    record: Record
    version: str


class RecordChange(Struct, Generic[A], frozen=True, gc=False):
    """The change to be written to one record.

    Args:
        version: the version that the record must still have.
        after: the record after the change.
        completes: how many runs the change completes, for the count.
        answers: the steps' answers, valid if the change was applied.
        rows: rows of history, written in the same statement.
    """

    version: str
    after: Record
    completes: int
    answers: list[A]
    rows: Sequence[Row] = ()


def fold(record: Record | None, steps: Sequence[Step[A]]) -> tuple[list[A], Record | None, int]:
    """Take steps one after another; returns answers, the record afterwards (None if unchanged), how many completed."""
    answers: list[A] = []
    after: Record | None = None
    completes = 0
    for step in steps:
        answer, changed = step(record)
        answers.append(answer)
        if changed is not None:
            completes += changed.status == "completed" and record is not None and record.status != "completed"
            record = after = changed
    return answers, after, completes


class Amender:
    """Reads and changes records of one database.

    Args:
        server: the database.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._read = server.sql(record_sql.READ)
        self._one = server.sql(record_sql.CHANGE_ONE)
        self._many = server.sql(record_sql.CHANGE_MANY)
        self._noted = server.sql(record_sql.CHANGE_NOTED)

    def read(self, link: Link, idents: Sequence[bytes]) -> dict[bytes, VersionedRecord]:
        """The stored records, expired ones included."""
        found = ask(link, self._read, (list(idents),)) if idents else []
        return {row[0]: VersionedRecord(readable(row[2:]), row[1]) for row in found}

    def amend(self, link: Link, steps: Mapping[bytes, Sequence[Step[A]]], now_ms: int) -> dict[bytes, list[A]]:
        """Take the steps of each operation, all or none of them.

        Raises:
            StorageBusy: others changed the same record in every round; steps of other operations may have been taken.
        """
        answers: dict[bytes, list[A]] = {}
        waiting = dict(steps)
        for _ in range(ROUNDS):
            if not waiting:
                return answers
            stored = self.read(link, list(waiting))
            changes: dict[bytes, RecordChange[A]] = {}
            for key, mine in waiting.items():
                found = stored.get(key)
                said, after, completes = fold(found.record if found else None, mine)
                if after is None or found is None:
                    answers[key] = said
                else:
                    changes[key] = RecordChange(found.version, after, completes, said)
            for key in self.change(link, changes, now_ms):
                answers[key] = changes[key].answers
            waiting = {key: mine for key, mine in waiting.items() if key not in answers}
        raise crowded(len(waiting))

    def change(self, link: Link, changes: Mapping[bytes, RecordChange[A]], now_ms: int) -> set[bytes]:
        """Replace the records that still have their version; returns which were replaced."""
        if not changes:
            return set()
        plain = {key: change for key, change in changes.items() if not change.rows}
        done = self._replace(link, self._many, plain, now_ms) if len(plain) > 1 else set()
        for key, change in changes.items():
            if key not in done:  # changed meanwhile, or locked by somebody for whom this must wait
                statement, noted = (
                    (self._noted, arrays(map(row_values, change.rows))) if change.rows else (self._one, ())
                )
                done |= self._replace(link, statement, {key: change}, now_ms, noted)
        return done

    def _replace(
        self,
        link: Link,
        statement: bytes,
        changes: Mapping[bytes, RecordChange[A]],
        now_ms: int,
        noted: tuple[object, ...] = (),
    ) -> set[bytes]:
        rows = (
            (key, change.version, change.completes, *values_of(change.after)[: len(CHANGING)])
            for key, change in changes.items()
        )
        return {key for (key,) in ask(link, statement, (*arrays(rows), now_ms // 1000, *noted))}


def crowded(count: int) -> errors.StorageBusy:
    """The error for records that others changed first in every round."""
    return errors.StorageBusy(
        f"{count} records were changed by others each time they were about to be written ({ROUNDS} times).",
        meaning="Nothing was written to them by this call.",
        todo="Try again later; look for many workers on one key.",
    )


_PLACE: Final = 0  # columns of a row that CLAIM returns: ident, whether it was inserted, version, the record
_FRESH: Final = 1
_VERSION: Final = 2
_RECORD: Final = 3


def _claim_step(asked: Ask, now_ms: int, record: Record | None) -> tuple[Answer, Record | None]:
    return transitions.claim(record, asked, now_ms)


def _noted(indexes: Sequence[int], answers: Sequence[Answer], rows_of: RowsOf | None) -> list[Row]:
    """The rows of history for the claims of one operation."""
    if rows_of is None:
        return []
    found = [(index, one) for index, one in zip(indexes, answers, strict=True) if isinstance(one, Claimed)]
    return [row for index, one in found if one.found != "absent" for row in rows_of(index, one)]


def _start_step(hold: Hold, now_ms: int, record: Record | None) -> tuple[bool, Record | None]:
    return transitions.took(record, transitions.start(record, hold, now_ms))


def _renew_step(hold: Hold, lease_until_ms: int, record: Record | None) -> tuple[bool, Record | None]:
    return transitions.took(record, transitions.renew(record, hold, lease_until_ms))


def _write_step(hold: Hold, outcome: Outcome, now_ms: int, record: Record | None) -> tuple[Written, Record | None]:
    return transitions.written(record, transitions.write(record, hold, outcome, now_ms))


def _clear_step(hold: Hold, record: Record | None) -> tuple[bool, Record | None]:
    return transitions.took(record, transitions.clear_outbox(record, hold))


class PostgresStore:
    """The Store contract on one database.

    Args:
        server: a database that has the tables.
    """

    ledger: Ledger | None = None  # in the same database; `once` records the outcomes of calls there
    state: State | None = None  # in the same database; names of operations are reserved there
    clock: Clock | None = None  # shared by everything that uses the server, and the default for `@once`

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.amender = Amender(server)
        self._claim = server.sql(record_sql.CLAIM)
        self._start = server.sql(record_sql.START)
        self._renew = server.sql(record_sql.RENEW)
        self._complete = server.sql(record_sql.COMPLETE)
        self._clear = server.sql(record_sql.CLEAR)
        self._restore = server.sql(record_sql.RESTORE)
        self.capabilities = StoreCapabilities(durable=True, proves_death=False, notes_claims=True)

    # -- claim ---------------------------------------------------------------------------------------------------------

    def claim(self, asks: Sequence[Ask], now_ms: int, rows_of: RowsOf | None = None) -> list[Answer]:
        """See `contracts.verbs.Store.claim`; each operation has its own conditional write.

        Raises:
            TransientError: the connection was lost; some of the asks may have been granted to their owner.
            StorageBusy: another transaction held a record for too long; other asks may have been granted.
        """
        return self._server.run(lambda link: self.claim_on(link, asks, now_ms, rows_of)) if asks else []

    def claim_on(self, link: Link, asks: Sequence[Ask], now_ms: int, rows_of: RowsOf | None = None) -> list[Answer]:
        """Like `claim`, on this connection."""
        answers: dict[int, Answer] = {}
        waiting: dict[bytes, list[int]] = defaultdict(list)
        for index, one in enumerate(asks):
            waiting[ident(one.key)].append(index)
        for _ in range(ROUNDS):
            changes: dict[bytes, RecordChange[Answer]] = {}
            for row in self._read_asked(link, {key: asks[indexes[0]] for key, indexes in waiting.items()}, now_ms):
                key, indexes = row[_PLACE], waiting[row[_PLACE]]
                try:
                    record = readable(row[_RECORD:]) if row[_VERSION] is not None else None
                except errors.StorageError as error:
                    answers.update(dict.fromkeys(indexes, Unreadable.of(error)))
                    continue
                if row[_FRESH]:
                    answers[indexes[0]], record = transitions.claim(None, asks[indexes[0]], now_ms)
                    indexes = indexes[1:]
                elif record is None:
                    continue  # another claim was made between the read and the insert
                steps: list[Step[Answer]] = [partial(_claim_step, asks[index], now_ms) for index in indexes]
                said, after, _ = fold(record, steps)
                if after is None:
                    answers.update(zip(indexes, said, strict=True))
                elif not row[_FRESH]:
                    changes[key] = RecordChange(row[_VERSION], after, 0, said, _noted(indexes, said, rows_of))
            for key in self.amender.change(link, changes, now_ms):
                answers.update(zip(waiting[key], changes[key].answers, strict=True))
            waiting = {
                key: rest
                for key, indexes in waiting.items()
                if (rest := [one for one in indexes if one not in answers])
            }
            if not waiting:
                return [answers[index] for index in range(len(asks))]
        raise crowded(len(waiting))

    def _read_asked(self, link: Link, asked: dict[bytes, Ask], now_ms: int) -> list[tuple]:  # type: ignore[type-arg]
        """Insert records that are absent, in the order of the keys; returns one row for each key, see `_PLACE`."""
        rows = (
            (
                key,
                packed(one.key.scope),
                packed(one.key.job),
                packed(one.key.key),
                packed(one.owner),
                packed(one.fingerprint),
                one.lease_until_ms,
                one.expires_at_ms,
                int(one.start),
                packed(one.message_id),
                one.sent_at_ms,
            )
            for key, one in asked.items()
        )
        return ask(link, self._claim, (*arrays(rows), now_ms))

    # -- after a claim ---------------------------------------------------------------------------------------

    def start(self, holds: Sequence[Hold], now_ms: int) -> list[bool]:
        """See `contracts.verbs.Store`.

        Raises:
            TransientError, StorageBusy: some may have been started; a second start under the same hold counts nothing.
        """

        def run(link: Link) -> list[bool]:
            steps: list[Step[bool]] = [partial(_start_step, hold, now_ms) for hold in holds]
            return self._each(link, holds, steps, self._start, (now_ms,))

        return self._server.run(run) if holds else []

    def renew(self, holds: Sequence[Hold], lease_until_ms: int) -> list[bool]:
        """See `contracts.verbs.Store.renew`; a record that somebody has locked does not delay the others.

        Raises:
            TransientError, StorageBusy: some may have been renewed.
        """

        def run(link: Link) -> list[bool]:
            steps: list[Step[bool]] = [partial(_renew_step, hold, lease_until_ms) for hold in holds]
            return self._each(link, holds, steps, self._renew, (lease_until_ms,))

        return self._server.run(run) if holds else []

    def restore(self, records: Sequence[Record]) -> list[bool]:
        """See `contracts.verbs.Store`; a repeated key is inserted once.

        Raises:
            TransientError, StorageBusy: some may have been restored; restoring them again is harmless.
        """
        idents = [ident(gone.key) for gone in records]
        rows = {key: (key, *values_of(gone)) for key, gone in reversed(list(zip(idents, records, strict=True)))}

        def run(link: Link) -> list[bool]:
            ask(link, self._restore, arrays(rows.values()))
            stored = self.amender.read(link, list(rows))
            return [
                key in stored and transitions.restore(stored[key].record, gone) is not None
                for key, gone in zip(idents, records, strict=True)
            ]

        return self._server.run(run) if records else []

    def clear_outbox(self, holds: Sequence[Hold]) -> list[bool]:
        """See `contracts.verbs.Store`.

        Raises:
            TransientError, StorageBusy: some may have been cleared; clearing them again is harmless.
        """

        def run(link: Link) -> list[bool]:
            steps: list[Step[bool]] = [partial(_clear_step, hold) for hold in holds]
            return self._each(link, holds, steps, self._clear, ())

        return self._server.run(run) if holds else []

    def _each(
        self, link: Link, holds: Sequence[Hold], steps: Sequence[Step[bool]], statement: bytes, values: tuple[int, ...]
    ) -> list[bool]:
        """One statement for all; the rules in Python decide about those that it skipped or refused."""
        keys = [ident(hold.key) for hold in holds]
        given = arrays((key, packed(hold.owner), hold.fence) for key, hold in zip(keys, holds, strict=True))
        rows = ask(link, statement, (*given, *values))
        if len(rows) == len(holds):
            return [True] * len(holds)
        done = {key for (key,) in rows}
        for key, hold in zip(keys, holds, strict=True):
            if key not in done:  # locked by somebody, for whom this waits; or not held
                one = arrays([(key, packed(hold.owner), hold.fence)])
                done |= {key for (key,) in ask(link, record_sql.waiting(statement), (*one, *values))}
        # A key may be here twice with different holds: then the statement does not report which of them it applied.
        sure = {key for key, count in Counter(keys).items() if count == 1} & done
        left: dict[bytes, list[Step[bool]]] = defaultdict(list)
        for key, step in zip(keys, steps, strict=True):
            if key not in sure:
                left[key].append(step)
        said = {key: iter(answers) for key, answers in self.amender.amend(link, left, 0).items()}
        return [key in sure or next(said[key]) for key in keys]

    def write(self, writes: Sequence[tuple[Hold, Outcome]], now_ms: int) -> list[bool]:
        """See `contracts.verbs.Store`.

        Raises:
            TransientError, StorageBusy: some may have been written. A Complete may be repeated; another outcome that is
                repeated answers False if it was applied the first time.
        """
        if not writes:
            return []
        written = self._server.run(lambda link: self.write_on(link, writes, now_ms))
        return [became != "lost" for became in written]

    def write_on(self, link: Link, writes: Sequence[tuple[Hold, Outcome]], now_ms: int) -> list[Written]:
        """Like `write`, on this connection; distinguishes a repeated Complete from a first one."""
        keys = [ident(hold.key) for hold, _ in writes]
        once = {key for key, count in Counter(keys).items() if count == 1}
        rows = [
            (key, packed(hold.owner), hold.fence, outcome.result, outbox_text(outcome.outbox), outcome.expires_at_ms)
            for key, (hold, outcome) in zip(keys, writes, strict=True)
            if isinstance(outcome, Complete) and key in once
        ]
        completed: set[bytes] = set()
        if rows:
            times = (now_ms, now_ms // 1000)
            completed = {key for (key,) in ask(link, self._complete, (*arrays(rows), *times))}
            for row in rows:
                if row[0] not in completed:
                    waited = ask(link, record_sql.waiting(self._complete), (*arrays([row]), *times))
                    completed |= {key for (key,) in waited}
        left: dict[bytes, list[Step[Written]]] = defaultdict(list)
        for key, (hold, outcome) in zip(keys, writes, strict=True):
            if key not in completed:
                left[key].append(partial(_write_step, hold, outcome, now_ms))
        said = {key: iter(answers) for key, answers in self.amender.amend(link, left, now_ms).items()}
        return ["new" if key in completed else next(said[key]) for key in keys]

    def is_written(self, holds: Sequence[Hold]) -> list[bool]:
        """Whether each record has an outcome under its hold; for use after a write whose answer was lost."""
        keys = [ident(hold.key) for hold in holds]
        found = self._server.run(lambda link: self.amender.read(link, keys)) if keys else {}
        return [
            key in found and transitions.holds(found[key].record, hold) and found[key].record.status != "in_progress"
            for key, hold in zip(keys, holds, strict=True)
        ]

    # -- read ----------------------------------------------------------------------------------------------------------

    def read(self, keys: Sequence[RecordKey], now_ms: int) -> list[Record | None]:
        """See `contracts.verbs.Store.read`; it reads a snapshot and does not wait for locks."""
        idents = [ident(key) for key in keys]
        stored = self._server.run(lambda link: self.amender.read(link, idents)) if keys else {}
        found = [stored.get(key) for key in idents]
        return [None if one is None or transitions.is_expired(one.record, now_ms) else one.record for one in found]


_SCAN: Final = """
SELECT COLUMNS FROM onefold.record r WHERE CONDITION ORDER BY r.updated_at_ms DESC, r.created_at_ms DESC LIMIT %s
""".replace("COLUMNS", COLUMNS)
_FIND: Final = _SCAN.replace("CONDITION", "r.ident >= %s AND r.ident < %s AND r.key = %s")
_COUNT: Final = """
SELECT job, sum(count)::bigint FROM onefold.completed WHERE second BETWEEN %s AND %s GROUP BY job
"""


class PostgresRecords:
    """The RecordAdmin contract on one database.

    Args:
        server: a database that has the tables.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._amender = Amender(server)

    def scan(self, *, status: Status | None = None, parked: bool | None = None, limit: int = 100) -> list[Record]:
        """Records, newest change first; an index finds failed and unknown ones, all others need a scan of the table."""
        conditions: list[str] = ["true"]
        if status is not None:
            conditions.append(f"r.status = '{status}'")  # a literal, so that the planner can use the partial index
        if parked is not None:
            conditions.append("r.status = 'unknown' AND r.parked" if parked else "NOT r.parked")
        statement = self._server.sql(_SCAN.replace("CONDITION", " AND ".join(conditions)))
        rows = self._server.run(lambda link: ask(link, statement, (limit,)))
        return [readable(row) for row in rows]

    def find(self, key: str, limit: int = 20) -> list[Record]:
        """Records whose business key is exactly `key`, newest change first."""
        values = (*key_range(key), packed(key), limit)
        rows = self._server.run(lambda link: ask(link, self._server.sql(_FIND), values))
        return [readable(row) for row in rows]

    def settle(self, key: RecordKey, decision: ManualDecision, now_ms: int) -> bool:
        """Settle a parked record on a person's decision, or correct a result; False if neither is possible (any more)."""
        step = partial(transitions.settle, decision=decision, now_ms=now_ms)
        index = ident(key)

        def run(link: Link) -> bool:
            steps: dict[bytes, list[Step[bool]]] = {index: [step]}
            (settled,) = self._amender.amend(link, steps, now_ms)[index]
            return settled

        return self._server.run(run)

    def count_completed(self, since_ms: int, now_ms: int) -> dict[str, int]:
        """Runs completed in [since_ms, now_ms) per job; the seconds at both ends are counted in full."""
        values = (since_ms // 1000, (now_ms - 1) // 1000)
        rows = self._server.run(lambda link: ask(link, self._server.sql(_COUNT), values))
        return {unpacked(job): count for job, count in rows}
