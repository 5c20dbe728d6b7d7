"""Idempotency records on DynamoDB: the Store contract.

Every verb is one conditional write per record, and for several records one BatchExecuteStatement:

    claim           INSERT, which takes when nothing stands there. Else the old item (or one BatchGetItem where the answer
                    does not hold it) is judged by `contracts/transitions.py`; a takeover is an UPDATE on what was read.
    start, renew,   UPDATE ... WHERE fence, owner and status are those of the hold. A refusal is read: a Complete that
    write, clear    stands there already is True, another hold is False.

So ten fresh records cost one call to claim and one to settle; ten duplicates cost one, or two where batch errors carry no
items. Records that expired are judged like absent ones, whether DynamoDB has deleted them yet or not.
Never here: policy, clocks. Invariant: no write without a condition on fence and owner, or on absence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, assert_never

import msgspec

from onefold import errors
from onefold.backends.aws.dynamodb.items import (
    OUTCOME_BYTES_MAX,
    TTL_ATTRIBUTE,
    item_of,
    json_text,
    number,
    place_of,
    record_of,
    ttl_of,
)
from onefold.backends.aws.dynamodb.moves import Move, make
from onefold.backends.aws.dynamodb.writes import Insert, Update
from onefold.contracts import transitions
from onefold.contracts.store import Claimed, Complete, Fail, Release, StoreCapabilities, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onefold.backends.aws.dynamodb.items import Item, Layout, Value
    from onefold.backends.aws.dynamodb.moves import Rider
    from onefold.backends.aws.dynamodb.notes import Notes
    from onefold.backends.aws.dynamodb.table import Table
    from onefold.backends.aws.dynamodb.writes import Write
    from onefold.contracts.store import Answer, Ask, Hold, Outcome, Record, RecordKey
    from onefold.contracts.transitions import Written
    from onefold.contracts.verbs import Ledger, RowsOf, State

A = TypeVar("A")


class DynamoStore:
    """The Store contract on one table.

    Args:
        table: with the primary key `pk`, `sk` and time to live by `ttl`.
        notes: of that table, for what people want to find later.
    """

    ledger: Ledger | None = None  # of the same place: where `once` notes what became of calls
    state: State | None = None  # of the same place: whose the names of operations are

    def __init__(self, table: Table, notes: Notes) -> None:
        self._table = table
        self._layout = table.layout
        self._notes = notes
        self.capabilities = StoreCapabilities(durable=True, proves_death=False)

    def claim(self, asks: Sequence[Ask], now_ms: int, rows_of: RowsOf | None = None) -> list[Answer]:  # noqa: ARG002 - has no history in its transaction
        """As the contract says: one call when all are fresh, two or three otherwise.

        Raises:
            TransientError: throttled or unreachable; what this call is known to have claimed was given back.
            NotFoundError, UsageError: table, permission or credentials; the same.
        """
        keys = [ask.key for ask in asks]
        riders = self._notes.riders(keys, now_ms)
        answers = self._in_turn(keys, lambda place: _claim(self._layout, asks[place], now_ms), riders)
        self._notes.arrived(riders)
        error = _first_error(answers)
        if error is not None:
            self._give_back(asks, answers, now_ms)
            raise error
        return [answer for answer in answers if not isinstance(answer, errors.OnefoldError)]

    def _give_back(self, asks: Sequence[Ask], answers: Sequence[object], now_ms: int) -> None:
        """Release what was claimed for a caller who will never hear of it; the lease ends what cannot be released."""
        taken = [
            (answer.hold, Release(refund=True, expires_at_ms=ask.expires_at_ms))
            for ask, answer in zip(asks, answers, strict=True)
            if isinstance(answer, Claimed)
        ]
        self._in_turn([hold.key for hold, _ in taken], lambda place: _write(self._layout, *taken[place], now_ms))

    def start(self, holds: Sequence[Hold], now_ms: int) -> list[bool]:
        """As the contract says, in one call; errors as `claim`, after some may have started."""
        return self._all([hold.key for hold in holds], lambda place: _start(self._layout, holds[place], now_ms))

    def renew(self, holds: Sequence[Hold], lease_until_ms: int) -> list[bool]:
        """As the contract says, in one call; errors as `claim`, after some may have been renewed."""
        return self._all([hold.key for hold in holds], lambda place: _renew(self._layout, holds[place], lease_until_ms))

    def write(self, writes: Sequence[tuple[Hold, Outcome]], now_ms: int) -> list[bool]:
        """As the contract says, in one call where no lease was lost.

        Raises:
            UsageError: a result with its outbox has more than 401,408 bytes; nothing was written.
            TransientError, NotFoundError, UsageError: as `claim`, after some may have been written.
        """
        for hold, outcome in writes:
            check_size(hold, outcome)
        self._notes.park([hold.key for hold, outcome in writes if isinstance(outcome, Unknown) and outcome.parked])
        written = self._in_turn(
            [hold.key for hold, _ in writes], lambda place: _write(self._layout, *writes[place], now_ms)
        )
        self._notes.completed(
            (hold.key.job for (hold, one), how in zip(writes, written, strict=True) if is_new(one, how)), now_ms
        )
        return _taken(written)

    def clear_outbox(self, holds: Sequence[Hold]) -> list[bool]:
        """As the contract says, in one call; errors as `claim`, after some may have been cleared."""
        return self._all([hold.key for hold in holds], lambda place: _clear(self._layout, holds[place]))

    def read(self, keys: Sequence[RecordKey], now_ms: int) -> list[Record | None]:
        """As the contract says, strongly consistent, 100 records to a call.

        Raises:
            TransientError, NotFoundError, UsageError: as `claim`.
        """
        records = {record.key: record for record in map(record_of, self._table.get_all(_places(keys, self._layout)))}
        found = [records.get(key) for key in keys]
        return [None if record is None or transitions.is_expired(record, now_ms) else record for record in found]

    # -- moves ---------------------------------------------------------------------------------------------------------

    def _all(self, keys: Sequence[RecordKey], move: Callable[[int], Move[Written]]) -> list[bool]:
        written = self._in_turn(keys, move)
        return _taken(written)

    def _in_turn(
        self, keys: Sequence[RecordKey], move: Callable[[int], Move[A]], riders: Sequence[Rider] = ()
    ) -> list[A | errors.OnefoldError]:
        """Make the moves, those of one operation one after the other."""
        answers: dict[int, A | errors.OnefoldError] = {}
        left = list(range(len(keys)))
        while left:
            turn = {keys[place]: place for place in reversed(left)}  # the first place of each key
            places = sorted(turn.values())
            moves = [move(place) for place in places]
            became = make(self._table, moves, riders)
            riders = ()
            answers |= zip(places, became, strict=True)
            left = [place for place in left if place not in answers]
        return [answers[place] for place in range(len(keys))]


def _first_error(answers: Sequence[object]) -> errors.OnefoldError | None:
    return next((answer for answer in answers if isinstance(answer, errors.OnefoldError)), None)


def _taken(written: Sequence[Written | errors.OnefoldError]) -> list[bool]:
    if (error := _first_error(written)) is not None:
        raise error
    return [how != "lost" for how in written]


def is_new(outcome: Outcome, how: object) -> bool:
    """Whether a run completed by this write, and not by an earlier one."""
    return isinstance(outcome, Complete) and how == "new"


def _places(keys: Sequence[RecordKey], layout: Layout) -> list[Item]:
    return [place_of(key, layout) for key in dict.fromkeys(keys)]


# -- one move of each verb ---------------------------------------------------------------------------------------------


def _claim(layout: Layout, ask: Ask, now_ms: int) -> Move[Answer]:
    fresh, record = transitions.claim(None, ask, now_ms)
    assert record is not None
    return Move(
        ask.key,
        layout,
        lambda stamp: Insert(item_of(record, stamp, layout)),
        fresh,
        lambda standing: transitions.claim(standing, ask, now_ms),
    )


def _verb(
    layout: Layout, hold: Hold, first: Callable[[str], Write] | None, after: Callable[[Record | None], Record | None]
) -> Move[Written]:
    """A move of a verb that needs a hold: `after` is the record it leaves, the same object when nothing changes."""

    def decide(record: Record | None) -> tuple[Written, Record | None]:
        became = after(record)
        if became is None:
            return "lost", None
        return ("again", None) if became is record else ("new", became)

    return Move(hold.key, layout, first, won="new", decide=decide)


def _start(layout: Layout, hold: Hold, now_ms: int) -> Move[Written]:
    def first(stamp: str) -> Update:
        return Update(
            place=place_of(hold.key, layout),
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
        return Update(place=place_of(hold.key, layout), where=_held(hold), sets=sets)

    return _verb(layout, hold, first, lambda record: transitions.renew(record, hold, lease_until_ms))


def _write(layout: Layout, hold: Hold, outcome: Outcome, now_ms: int) -> Move[Written]:
    def after(record: Record | None) -> Record | None:
        return transitions.write(record, hold, outcome, now_ms)

    if isinstance(outcome, Unknown) and outcome.crashed:  # PartiQL cannot add to a count that is not there: read first
        return _verb(layout, hold, None, after)
    return _verb(layout, hold, lambda stamp: as_update(layout, hold, outcome, now_ms, stamp), after)


def _clear(layout: Layout, hold: Hold) -> Move[Written]:
    def first(stamp: str) -> Update:
        where = _held(hold) | {"status": {"S": "completed"}}
        return Update(place=place_of(hold.key, layout), where=where, sets={"stamp": {"S": stamp}}, removes=("outbox",))

    return _verb(layout, hold, first, lambda record: transitions.clear_outbox(record, hold))


def _held(hold: Hold) -> dict[str, Value]:
    return {"fence": number(hold.fence), "owner": {"S": hold.owner}, "status": {"S": "in_progress"}}


def as_update(layout: Layout, hold: Hold, outcome: Outcome, now_ms: int, stamp: str) -> Update:
    """The outcome of a run as an update of its record, on the condition that the hold stands; as `transitions.write`.

    Not for a crash, whose count must be known.
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
            if outcome.refund:  # of a started run, as it nearly always is; the refusal is read when it had not
                where["started_fence"] = number(hold.fence)
                adds = {"attempts": -1, "attempts_total": -1}
        case _:
            assert_never(outcome)
    if TTL_ATTRIBUTE not in removes:
        sets |= {"expires_at": number(outcome.expires_at_ms), TTL_ATTRIBUTE: ttl_of(outcome.expires_at_ms)}
    return Update(place=place_of(hold.key, layout), where=where, sets=sets, adds=adds, removes=removes)


def check_size(hold: Hold, outcome: Outcome) -> None:
    """Refuse what cannot fit into an item of 400 KB.

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
