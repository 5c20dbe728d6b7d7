"""Idempotency records on DynamoDB: the Store contract, and the operator's view (RecordAdmin).

Every verb is one conditional write per record, and for several records one BatchExecuteStatement:

    claim           INSERT, which succeeds if no item exists. Otherwise `contracts/transitions.py` decides about the
                    old item (from the answer, or one BatchGetItem); a takeover is an UPDATE on what was read.
    start, renew,   UPDATE ... WHERE fence, owner and status match the hold. A refusal is read: a Complete that is
    write, clear    already stored is True, another hold is False.

So ten fresh records cost one call to claim and one to settle; ten duplicates cost one, or two if batch errors do not
contain the items. Expired records are treated like absent ones, whether DynamoDB has deleted them yet or not.

Such a change is a `Move`. It begins with a write that is right in the usual case and needs no read. If that is refused,
the stored item is taken from the refusal (or read), `decide` computes the new item, and that is written on the
condition that nobody has written since: every write leaves its own `stamp`. So a lost answer does no harm either: a
refusal that shows a stamp of this same move means that an earlier try was applied.

Operators (RecordAdmin) find parked records, records by key alone and counts by notes (`notes.py`). Any other scan reads
the whole table, page by page, and keeps only what it returns: one read unit for each 4 KB of the table, some 20 ms for
each MB. A table of more than `PAGES_MAX` MB is refused.

Never here: policy, clocks. Invariant: every write has a condition on fence and owner, or on absence; an
answer that is not an error reports what was, or is now, in the table.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, assert_never

import msgspec

from onefold import errors
from onefold.contracts import transitions
from onefold.contracts.store import (
    Claimed,
    Complete,
    Fail,
    Hold,
    ManualDecision,
    Release,
    Status,
    StoreCapabilities,
    Unknown,
    Unreadable,
)
from onefold.engines.aws.dynamodb.items import (
    OUTCOME_BYTES_MAX,
    RECORD_SORT_KEY,
    TTL_ATTRIBUTE,
    item_key_of,
    item_of,
    json_text,
    number,
    record_of,
    stamp_of,
    ttl_of,
)
from onefold.engines.aws.dynamodb.notes import RecordNotes, completed_runs, parked_keys, possible_item_keys
from onefold.engines.aws.dynamodb.table import STATEMENTS_MAX, ConditionFailed, Insert, Rider, Update, changed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onefold.contracts.store import Answer, Ask, Outcome, Record, RecordKey
    from onefold.contracts.transitions import Written
    from onefold.contracts.verbs import Ledger, RowsOf, State
    from onefold.engines.aws.dynamodb.items import Item, Layout, Value
    from onefold.engines.aws.dynamodb.table import Table, Write


A = TypeVar("A")
ROUNDS_MAX: Final = 10  # for each round that is lost in a row another write must have won in between


class Move(Generic[A]):
    """One operation's change.

    Args:
        key: the operation.
        layout: the table's layout.
        first: makes the usual write for a stamp; None to read first.
        won: the answer if that write is applied.
        decide: gives the answer for the stored record, and the record to store instead (None to leave it).
    """

    __slots__ = ("answer", "decide", "first", "item_key", "key", "layout", "read", "sent", "stored", "write")

    def __init__(
        self,
        key: RecordKey,
        layout: Layout,
        first: Callable[[str], Write] | None,
        won: A,
        decide: Callable[[Record | None], tuple[A, Record | None]],
    ) -> None:
        self.key = key
        self.layout = layout
        self.item_key = item_key_of(key, layout)
        self.first = first
        self.decide = decide
        self.sent: dict[str, A] = {}  # for each stamp, the answer if that write was applied
        self.answer: A = won
        self.write: Write | None = None
        self.stored: Item | None = None  # the item as last seen; empty if there was none
        self.read = first is None

    def begin(self, stamp: str) -> None:
        """Prepare the usual write."""
        if self.first is not None:
            self.write = self.first(stamp)
            self.sent[stamp] = self.answer

    def go_on(self, stamp: str) -> bool:
        """Decide about the stored item; True if another write is needed."""
        item = self.stored
        assert item is not None
        self.write = None
        if (earlier := stamp_of(item)) in self.sent:
            self.answer = self.sent[earlier]
            return False
        self.answer, after = self.decide(record_of(item) if item else None)
        if after is None:
            return False
        target = item_of(after, stamp, self.layout)
        self.write = changed(self.item_key, item, target) if item else Insert(target)
        self.sent[stamp] = self.answer
        return True


def make(table: Table, moves: Sequence[Move[A]], riders: Sequence[Rider] = ()) -> list[A | errors.OnefoldError]:
    """Make moves of different operations; returns the answer or the error of each, and does not raise those errors."""
    token = table.entropy.token()
    failed: dict[int, errors.OnefoldError] = {}
    left = list(range(len(moves)))
    for index in left:
        moves[index].begin(f"{token}.{index}")
    for attempt in range(1, ROUNDS_MAX + 1):
        left = _round(table, moves, left, failed, riders if attempt == 1 else ())
        try:
            _read(table, [moves[index] for index in left])
        except errors.OnefoldError as error:
            failed |= dict.fromkeys(left, error)
            left = []
        going = []
        for index in left:
            try:
                if moves[index].go_on(f"{token}.{index}.{attempt}"):
                    going.append(index)
            except errors.OnefoldError as error:
                failed[index] = error
        left = going
        if not left:
            break
    failed |= {index: _contended(moves[index].key) for index in left}
    return [failed.get(index, move.answer) for index, move in enumerate(moves)]


def _round(
    table: Table,
    moves: Sequence[Move[A]],
    left: Sequence[int],
    failed: dict[int, errors.OnefoldError],
    riders: Sequence[Rider],
) -> list[int]:
    """Make the prepared writes; returns the indexes of writes that need another step."""
    going = [index for index in left if moves[index].write is None]
    writing = [(index, write) for index in left if (write := moves[index].write) is not None]
    if not writing:
        return going
    aboard = riders[: -len(writing) % STATEMENTS_MAX]  # as many as fit into the last call
    answers = table.write([write for _, write in writing], [rider.write for rider in aboard])
    for rider, answer in zip(aboard, answers[len(writing) :], strict=True):
        rider.written = not isinstance(answer, errors.OnefoldError)
    for (index, _), answer in zip(writing, answers[: len(writing)], strict=True):
        if isinstance(answer, errors.OnefoldError):
            failed[index] = answer
        elif isinstance(answer, ConditionFailed):
            moves[index].stored = answer.item
            moves[index].read = answer.item is None
            going.append(index)
    return sorted(going)


def _read(table: Table, moves: Sequence[Move[A]]) -> None:
    """Read the stored items of moves whose refusal did not contain them."""
    unread = [move for move in moves if move.read]
    if not unread:
        return
    found = {(item["pk"]["S"], item["sk"]["S"]): item for item in table.get_all([move.item_key for move in unread])}
    for move in unread:
        move.stored = found.get((move.item_key["pk"]["S"], move.item_key["sk"]["S"]), {})
        move.read = False


def _contended(key: RecordKey) -> errors.StorageBusy:
    return errors.StorageBusy(
        f"The record of {key.job} {key.key!r} was changed by others {ROUNDS_MAX} times while it was to be written.",
        meaning="Nothing was changed by this call.",
        todo="Try again in a moment.",
    )


class DynamoStore:
    """The Store contract on one table.

    Args:
        table: a table with the primary key `pk`, `sk` and time to live by `ttl`.
        notes: the table's notes, for what people look up later.
    """

    ledger: Ledger | None = None  # in the same table; `once` records the outcomes of calls there
    state: State | None = None  # in the same table; names of operations are reserved there

    def __init__(self, table: Table, notes: RecordNotes) -> None:
        self._table = table
        self._layout = table.layout
        self._notes = notes
        self.capabilities = StoreCapabilities(durable=True, proves_death=False)

    def claim(self, asks: Sequence[Ask], now_ms: int, rows_of: RowsOf | None = None) -> list[Answer]:  # noqa: ARG002 - has no history in its transaction
        """See `contracts.verbs.Store.claim`: one call if all are fresh, two or three otherwise.

        Raises:
            TransientError: throttled or unreachable; what this call is known to have claimed was released.
            NotFoundError, UsageError: the table, the permission or the credentials are missing; also released.
        """
        keys = [ask.key for ask in asks]
        riders = self._notes.riders(keys, now_ms)
        claimed = self._in_turn(keys, lambda index: _claim(self._layout, asks[index], now_ms), riders)
        self._notes.arrived(riders)
        answers = [Unreadable.of(answer) if isinstance(answer, errors.StorageError) else answer for answer in claimed]
        error = _first_error(answers)
        if error is not None:
            self._release(asks, answers, now_ms)
            raise error
        return [answer for answer in answers if not isinstance(answer, errors.OnefoldError)]

    def _release(self, asks: Sequence[Ask], answers: Sequence[object], now_ms: int) -> None:
        """Release what was claimed for a caller that gets an error; if that fails, the lease ends it."""
        taken = [
            (answer.hold, Release(refund=True, expires_at_ms=ask.expires_at_ms))
            for ask, answer in zip(asks, answers, strict=True)
            if isinstance(answer, Claimed)
        ]
        self._in_turn([hold.key for hold, _ in taken], lambda item_key: _write(self._layout, *taken[item_key], now_ms))

    def start(self, holds: Sequence[Hold], now_ms: int) -> list[bool]:
        """See `contracts.verbs.Store`; one call; errors as for `claim`, after which some may have started."""
        return self._all([hold.key for hold in holds], lambda index: _start(self._layout, holds[index], now_ms))

    def renew(self, holds: Sequence[Hold], lease_until_ms: int) -> list[bool]:
        """See `contracts.verbs.Store`; one call; errors as for `claim`, after which some may have been renewed."""
        return self._all([hold.key for hold in holds], lambda index: _renew(self._layout, holds[index], lease_until_ms))

    def write(self, writes: Sequence[tuple[Hold, Outcome]], now_ms: int) -> list[bool]:
        """See `contracts.verbs.Store.write`; one call if no lease was lost.

        Raises:
            UsageError: a result with its outbox has more than 401,408 bytes; nothing was written.
            TransientError, NotFoundError, UsageError: as for `claim`, after which some may have been written.
        """
        for hold, outcome in writes:
            check_size(hold, outcome)
        self._notes.park([hold.key for hold, outcome in writes if isinstance(outcome, Unknown) and outcome.parked])
        written = self._in_turn(
            [hold.key for hold, _ in writes], lambda item_key: _write(self._layout, *writes[item_key], now_ms)
        )
        self._notes.completed(
            (hold.key.job for (hold, one), how in zip(writes, written, strict=True) if is_new(one, how)), now_ms
        )
        return _taken(written)

    def restore(self, records: Sequence[Record]) -> list[bool]:
        """See `contracts.verbs.Store`; one call; errors as for `claim`, after which some may have been restored."""
        return self._all([gone.key for gone in records], lambda index: _restore(self._layout, records[index]))

    def clear_outbox(self, holds: Sequence[Hold]) -> list[bool]:
        """See `contracts.verbs.Store`; one call; errors as for `claim`, after which some may have been cleared."""
        return self._all([hold.key for hold in holds], lambda index: _clear(self._layout, holds[index]))

    def read(self, keys: Sequence[RecordKey], now_ms: int) -> list[Record | None]:
        """See `contracts.verbs.Store.read`; strongly consistent, 100 records to a call.

        Raises:
            TransientError, NotFoundError, UsageError: as `claim`.
        """
        records = {record.key: record for record in map(record_of, self._table.get_all(_item_keys(keys, self._layout)))}
        found = [records.get(key) for key in keys]
        return [None if record is None or transitions.is_expired(record, now_ms) else record for record in found]

    # -- moves ---------------------------------------------------------------------------------------------------------

    def _all(self, keys: Sequence[RecordKey], move: Callable[[int], Move[Written]]) -> list[bool]:
        written = self._in_turn(keys, move)
        return _taken(written)

    def _in_turn(
        self, keys: Sequence[RecordKey], move: Callable[[int], Move[A]], riders: Sequence[Rider] = ()
    ) -> list[A | errors.OnefoldError]:
        """Make the moves; those of one operation are made one after the other."""
        answers: dict[int, A | errors.OnefoldError] = {}
        left = list(range(len(keys)))
        while left:
            turn = {keys[index]: index for index in reversed(left)}  # the first index of each key
            firsts = sorted(turn.values())
            moves = [move(index) for index in firsts]
            became = make(self._table, moves, riders)
            riders = ()
            answers |= zip(firsts, became, strict=True)
            left = [index for index in left if index not in answers]
        return [answers[index] for index in range(len(keys))]


def _first_error(answers: Sequence[object]) -> errors.OnefoldError | None:
    return next((answer for answer in answers if isinstance(answer, errors.OnefoldError)), None)


def _taken(written: Sequence[Written | errors.OnefoldError]) -> list[bool]:
    if (error := _first_error(written)) is not None:
        raise error
    return [how != "lost" for how in written]


def is_new(outcome: Outcome, how: object) -> bool:
    """Whether a run was completed by this write, and not by an earlier one."""
    return isinstance(outcome, Complete) and how == "new"


def _item_keys(keys: Sequence[RecordKey], layout: Layout) -> list[Item]:
    return [item_key_of(key, layout) for key in dict.fromkeys(keys)]


# -- one move of each verb ---------------------------------------------------------------------------------------------


def _claim(layout: Layout, ask: Ask, now_ms: int) -> Move[Answer]:
    fresh, record = transitions.claim(None, ask, now_ms)
    assert record is not None
    return Move(
        ask.key,
        layout,
        lambda stamp: Insert(item_of(record, stamp, layout)),
        fresh,
        lambda stored: transitions.claim(stored, ask, now_ms),
    )


def _restore(layout: Layout, gone: Record) -> Move[Written]:
    def first(stamp: str) -> Insert:
        return Insert(item_of(gone, stamp, layout))

    hold = Hold(gone.key, gone.owner, gone.fence)
    return _verb(layout, hold, first, lambda record: transitions.restore(record, gone))


def _verb(
    layout: Layout, hold: Hold, first: Callable[[str], Write] | None, after: Callable[[Record | None], Record | None]
) -> Move[Written]:
    """The move of a verb that needs a hold: `after` gives the record afterwards, the same object if nothing changes."""
    return Move(hold.key, layout, first, won="new", decide=lambda record: transitions.written(record, after(record)))


def _start(layout: Layout, hold: Hold, now_ms: int) -> Move[Written]:
    def first(stamp: str) -> Update:
        return Update(
            item_key=item_key_of(hold.key, layout),
            where=_held(hold),
            differs=("started_fence", number(hold.fence)),
            sets={
                "started_fence": number(hold.fence),
                "started_at": number(now_ms),
                "updated_at": number(now_ms),
                "stamp": {"S": stamp},
            },
            adds={"attempts": 1, "attempts_total": 1},
            removes=("doubt",),
        )

    return _verb(layout, hold, first, lambda record: transitions.start(record, hold, now_ms))


def _renew(layout: Layout, hold: Hold, lease_until_ms: int) -> Move[Written]:
    def first(stamp: str) -> Update:
        sets: dict[str, Value] = {"lease_until": number(lease_until_ms), "stamp": {"S": stamp}}
        return Update(item_key=item_key_of(hold.key, layout), where=_held(hold), sets=sets)

    return _verb(layout, hold, first, lambda record: transitions.renew(record, hold, lease_until_ms))


def _write(layout: Layout, hold: Hold, outcome: Outcome, now_ms: int) -> Move[Written]:
    def after(record: Record | None) -> Record | None:
        return transitions.write(record, hold, outcome, now_ms)

    if isinstance(outcome, Unknown) and outcome.crashed:  # PartiQL cannot add to an absent count, so read first
        return _verb(layout, hold, None, after)
    return _verb(layout, hold, lambda stamp: as_update(layout, hold, outcome, now_ms, stamp), after)


def _clear(layout: Layout, hold: Hold) -> Move[Written]:
    def first(stamp: str) -> Update:
        where = _held(hold) | {"status": {"S": "completed"}}
        return Update(
            item_key=item_key_of(hold.key, layout), where=where, sets={"stamp": {"S": stamp}}, removes=("outbox",)
        )

    return _verb(layout, hold, first, lambda record: transitions.clear_outbox(record, hold))


def _held(hold: Hold) -> dict[str, Value]:
    return {"fence": number(hold.fence), "owner": {"S": hold.owner}, "status": {"S": "in_progress"}}


def as_update(layout: Layout, hold: Hold, outcome: Outcome, now_ms: int, stamp: str) -> Update:
    """The outcome of a run as an update of its record, if the hold is current; see `transitions.write`.

    Not for a crash, for which the old count must be known.
    """
    sets: dict[str, Value] = {"updated_at": number(now_ms), "stamp": {"S": stamp}}
    where = _held(hold)
    adds: dict[str, int] = {}
    removes: tuple[str, ...] = ()
    match outcome:
        case Complete():
            sets |= {"status": {"S": "completed"}, "result": {"S": outcome.result.decode()}}
            removes = ("failure", "doubt")
            if outcome.outbox:
                sets["outbox"] = json_text(outcome.outbox)
        case Fail():
            sets |= {"status": {"S": "failed"}, "failure": json_text(outcome.failure)}
            if outcome.closes_budget:  # the claim has opened it
                sets["budget_closed"] = {"BOOL": True}
        case Unknown():
            sets |= {"status": {"S": "unknown"}, "failure": json_text(outcome.failure), "doubt": {"BOOL": True}}
            if outcome.parked:
                sets["parked"] = {"BOOL": True}
                removes = ("expires_at", TTL_ATTRIBUTE)
        case Release():
            sets["status"] = {"S": "released"}
            if outcome.failure is not None:
                sets["failure"] = json_text(outcome.failure)
            if outcome.refund:  # it nearly always has started; if not, the update is refused and the item read
                where["started_fence"] = number(hold.fence)
                adds = {"attempts": -1, "attempts_total": -1}
        case _:
            assert_never(outcome)
    if TTL_ATTRIBUTE not in removes:
        sets |= {"expires_at": number(outcome.expires_at_ms), TTL_ATTRIBUTE: ttl_of(outcome.expires_at_ms)}
    return Update(item_key=item_key_of(hold.key, layout), where=where, sets=sets, adds=adds, removes=removes)


def check_size(hold: Hold, outcome: Outcome) -> None:
    """Refuse an outcome that does not fit into an item of 400 KB.

    Raises:
        UsageError: result and outbox have more than 401,408 bytes.
    """
    if not isinstance(outcome, Complete):
        return
    outbox = len(msgspec.json.encode(outcome.outbox)) if outcome.outbox else 0
    if len(outcome.result) + outbox > OUTCOME_BYTES_MAX:
        raise errors.UsageError(
            f"The result of {hold.key.job} {hold.key.key!r} has {len(outcome.result)} bytes"
            + (f", and the messages it sends {outbox}." if outbox else "."),
            meaning=f"A record in DynamoDB holds {OUTCOME_BYTES_MAX} bytes of both (400 KB an item). Nothing was written.",
            todo="Return a reference to where the large part lies (an S3 key), or keep records in PostgreSQL.",
        )


# -- for operators -----------------------------------------------------------------------------------------------------

PAGES_MAX: Final = 5_000  # pages of 1 MB (API Scan: 1 MB of data a call)


class DynamoRecords:
    """The RecordAdmin contract on one table.

    Args:
        table: where the records are.
        notes: their notes.
    """

    def __init__(self, table: Table, notes: RecordNotes) -> None:
        self._table = table
        self._notes = notes

    def scan(self, *, status: Status | None = None, parked: bool | None = None, limit: int = 100) -> list[Record]:
        """Records, newest change first; reads the whole table unless only parked records are asked for.

        Raises:
            UsageError: the table has more than 5,000 MB.
        """
        if not parked:
            return _newest(self._scan(status, plain=parked is False), limit)
        found = map(
            record_of, self._table.get_all([item_key_of(key, self._table.layout) for key in parked_keys(self._table)])
        )
        return _newest((one for one in found if one.parked and status in (None, one.status)), limit)

    def _scan(self, status: Status | None, *, plain: bool) -> Iterator[Record]:
        # Only records of this layout, among all items of the table: a migration leaves the old layout's records there
        # (`migration.py`).
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
        """Records whose business key is exactly `key`, newest change first; searches every job of every tenant.

        Raises:
            UsageError: there are more than 20,000 pairs of tenant and job.
        """
        return _newest(map(record_of, self._table.get_all(possible_item_keys(self._table, key))), limit)

    def settle(self, key: RecordKey, decision: ManualDecision, now_ms: int) -> bool:
        """Settle a parked record on a person's decision, or correct a result; False if neither is possible (any more)."""
        decide = partial(transitions.settle, decision=decision, now_ms=now_ms)
        (answer,) = make(self._table, [Move(key, self._table.layout, None, won=True, decide=decide)])
        if isinstance(answer, errors.OnefoldError):
            raise answer
        if answer:
            self._notes.unpark(key)
            self._notes.completed([key.job] if decision.done and decision.corrects is None else [], now_ms)
            self._notes.flush()
        return answer

    def count_completed(self, since_ms: int, now_ms: int) -> dict[str, int]:
        """Runs completed in [since_ms, now_ms) per job; the seconds at both ends are counted in full.

        Processes write their counts along with claims, at the earliest after ten runs or ten seconds. So the last
        counts before a quiet time are written when work comes again or the process closes its engine; those of a
        process that was killed, or does not close it, never are.
        """
        self._notes.flush()
        return dict(completed_runs(self._table, since_ms, now_ms))


def _newest(records: Iterator[Record], limit: int) -> list[Record]:
    return heapq.nlargest(limit, records, key=lambda record: record.updated_at_ms)
