"""Idempotency records on PostgreSQL: the Store contract.

    claim                  one round trip for first claims and for duplicates, whatever their number; two or three more
                           for those that take over, follow a failure, or met another claim in the middle
    start, renew, clear    one; what the condition refused, or another transaction has locked, is looked at again
    write                  one for runs that complete; two for other outcomes: read, write where nothing has changed

All of that runs on a given connection (`claim_on`, `write_on`), so that `effects.py` can complete a record inside a
handler's transaction. Never here: policy, messages, clocks. Invariant: every write names owner and fence, and says whether
it took.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from onefold.backends.postgres import statements
from onefold.backends.postgres.amend import ROUNDS, Amender, Change, Step, crowded, fold
from onefold.backends.postgres.connection import Link, Server, ask
from onefold.backends.postgres.identity import ident, packed
from onefold.backends.postgres.rows import arrays, outbox_text, record_of
from onefold.contracts import transitions
from onefold.contracts.store import (
    Answer,
    Ask,
    Claimed,
    Complete,
    Hold,
    Outcome,
    Record,
    RecordKey,
    StoreCapabilities,
)

if TYPE_CHECKING:
    from onefold.contracts.ledger import Row
    from onefold.contracts.transitions import Written
    from onefold.contracts.verbs import Ledger, RowsOf, State

_PLACE: Final = 0  # in a row that CLAIM answers: the ident, whether it was inserted, the version, the record
_FRESH: Final = 1
_VERSION: Final = 2
_RECORD: Final = 3


def _claim_step(asked: Ask, now_ms: int, record: Record | None) -> tuple[Answer, Record | None]:
    return transitions.claim(record, asked, now_ms)


def _noted(places: Sequence[int], answers: Sequence[Answer], rows_of: RowsOf | None) -> list[Row]:
    """The rows of history of one operation's claims."""
    if rows_of is None:
        return []
    found = [(place, one) for place, one in zip(places, answers, strict=True) if isinstance(one, Claimed)]
    return [row for place, one in found if one.found != "absent" for row in rows_of(place, one)]


def _start_step(hold: Hold, now_ms: int, record: Record | None) -> tuple[bool, Record | None]:
    after = transitions.start(record, hold, now_ms)
    return after is not None, None if after is record else after


def _renew_step(hold: Hold, lease_until_ms: int, record: Record | None) -> tuple[bool, Record | None]:
    after = transitions.renew(record, hold, lease_until_ms)
    return after is not None, after


def _write_step(hold: Hold, outcome: Outcome, now_ms: int, record: Record | None) -> tuple[Written, Record | None]:
    after = transitions.write(record, hold, outcome, now_ms)
    if after is None:
        return "lost", None
    return ("again", None) if after is record else ("new", after)


def _clear_step(hold: Hold, record: Record | None) -> tuple[bool, Record | None]:
    after = transitions.clear_outbox(record, hold)
    return after is not None, None if after is record else after


class PostgresStore:
    """The Store contract on one database.

    Args:
        server: a database whose tables are there.
    """

    ledger: Ledger | None = None  # of the same place: where `once` notes what became of calls
    state: State | None = None  # of the same place: whose the names of operations are

    def __init__(self, server: Server) -> None:
        self._server = server
        self.amender = Amender(server)
        self._claim = server.sql(statements.CLAIM)
        self._start = server.sql(statements.START)
        self._renew = server.sql(statements.RENEW)
        self._complete = server.sql(statements.COMPLETE)
        self._clear = server.sql(statements.CLEAR)
        self.capabilities = StoreCapabilities(durable=True, proves_death=False, notes_claims=True)

    # -- claim ---------------------------------------------------------------------------------------------------------

    def claim(self, asks: Sequence[Ask], now_ms: int, rows_of: RowsOf | None = None) -> list[Answer]:
        """As the contract says, each operation by a conditional write of its own.

        Raises:
            TransientError: the connection was lost; some of the asks may have been granted to their owner.
            StorageBusy: another transaction held a record for too long; others of the asks may have been granted.
        """
        return self._server.run(lambda link: self.claim_on(link, asks, now_ms, rows_of)) if asks else []

    def claim_on(self, link: Link, asks: Sequence[Ask], now_ms: int, rows_of: RowsOf | None = None) -> list[Answer]:
        """As `claim`, on this connection."""
        answers: dict[int, Answer] = {}
        waiting: dict[bytes, list[int]] = defaultdict(list)
        for place, one in enumerate(asks):
            waiting[ident(one.key)].append(place)
        for _ in range(ROUNDS):
            changes: dict[bytes, Change[Answer]] = {}
            for row in self._look(link, {key: asks[places[0]] for key, places in waiting.items()}, now_ms):
                key, places = row[_PLACE], waiting[row[_PLACE]]
                record = record_of(row[_RECORD:]) if row[_VERSION] is not None else None
                if row[_FRESH]:
                    answers[places[0]], record = transitions.claim(None, asks[places[0]], now_ms)
                    places = places[1:]
                elif record is None:
                    continue  # another claim came between the look and the insert
                steps: list[Step[Answer]] = [partial(_claim_step, asks[place], now_ms) for place in places]
                said, after, _ = fold(record, steps)
                if after is None:
                    answers.update(zip(places, said, strict=True))
                elif not row[_FRESH]:
                    changes[key] = Change(row[_VERSION], after, 0, said, _noted(places, said, rows_of))
            for key in self.amender.change(link, changes, now_ms):
                answers.update(zip(waiting[key], changes[key].answers, strict=True))
            waiting = {
                key: rest for key, places in waiting.items() if (rest := [one for one in places if one not in answers])
            }
            if not waiting:
                return [answers[place] for place in range(len(asks))]
        raise crowded(len(waiting))

    def _look(self, link: Link, asked: dict[bytes, Ask], now_ms: int) -> list[tuple]:  # type: ignore[type-arg]
        """Insert what is absent, in the order of the keys; one row for each key, see `_PLACE`."""
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

    # -- what becomes of a claim ---------------------------------------------------------------------------------------

    def start(self, holds: Sequence[Hold], now_ms: int) -> list[bool]:
        """As the contract says.

        Raises:
            TransientError, StorageBusy: some may have been started; a second start under the same hold counts nothing.
        """

        def run(link: Link) -> list[bool]:
            steps: list[Step[bool]] = [partial(_start_step, hold, now_ms) for hold in holds]
            return self._each(link, holds, steps, self._start, (now_ms,))

        return self._server.run(run) if holds else []

    def renew(self, holds: Sequence[Hold], lease_until_ms: int) -> list[bool]:
        """As the contract says; a record that somebody has locked keeps no other one waiting.

        Raises:
            TransientError, StorageBusy: some may have been renewed.
        """

        def run(link: Link) -> list[bool]:
            steps: list[Step[bool]] = [partial(_renew_step, hold, lease_until_ms) for hold in holds]
            return self._each(link, holds, steps, self._renew, (lease_until_ms,))

        return self._server.run(run) if holds else []

    def clear_outbox(self, holds: Sequence[Hold]) -> list[bool]:
        """As the contract says.

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
        """One statement for all; what it passed over or refused is decided by the rules."""
        keys = [ident(hold.key) for hold in holds]
        given = arrays((key, packed(hold.owner), hold.fence) for key, hold in zip(keys, holds, strict=True))
        rows = ask(link, statement, (*given, *values))
        if len(rows) == len(holds):
            return [True] * len(holds)
        done = {key for (key,) in rows}
        for key, hold in zip(keys, holds, strict=True):
            if key not in done:  # locked by somebody, whose end is waited for here; or not held
                one = arrays([(key, packed(hold.owner), hold.fence)])
                done |= {key for (key,) in ask(link, statements.waiting(statement), (*one, *values))}
        # A key may stand here twice, with another hold: of those the statement does not say which one it took.
        sure = {key for key, count in Counter(keys).items() if count == 1} & done
        left: dict[bytes, list[Step[bool]]] = defaultdict(list)
        for key, step in zip(keys, steps, strict=True):
            if key not in sure:
                left[key].append(step)
        said = {key: iter(answers) for key, answers in self.amender.amend(link, left, 0).items()}
        return [key in sure or next(said[key]) for key in keys]

    def write(self, writes: Sequence[tuple[Hold, Outcome]], now_ms: int) -> list[bool]:
        """As the contract says.

        Raises:
            TransientError, StorageBusy: some may have been written. A Complete may be repeated; after another outcome
                a repetition answers False where the first one took.
        """
        if not writes:
            return []
        written = self._server.run(lambda link: self.write_on(link, writes, now_ms))
        return [became != "lost" for became in written]

    def write_on(self, link: Link, writes: Sequence[tuple[Hold, Outcome]], now_ms: int) -> list[Written]:
        """As `write`, on this connection; tells a repeated Complete from one that took."""
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
                    waited = ask(link, statements.waiting(self._complete), (*arrays([row]), *times))
                    completed |= {key for (key,) in waited}
        left: dict[bytes, list[Step[Written]]] = defaultdict(list)
        for key, (hold, outcome) in zip(keys, writes, strict=True):
            if key not in completed:
                left[key].append(partial(_write_step, hold, outcome, now_ms))
        said = {key: iter(answers) for key, answers in self.amender.amend(link, left, now_ms).items()}
        return ["new" if key in completed else next(said[key]) for key in keys]

    def standing(self, holds: Sequence[Hold]) -> list[bool]:
        """Whether each record stands under this hold and has an outcome; after a write whose answer was lost."""
        keys = [ident(hold.key) for hold in holds]
        found = self._server.run(lambda link: self.amender.read(link, keys)) if keys else {}
        return [
            key in found and transitions.holds(found[key].record, hold) and found[key].record.status != "in_progress"
            for key, hold in zip(keys, holds, strict=True)
        ]

    # -- read ----------------------------------------------------------------------------------------------------------

    def read(self, keys: Sequence[RecordKey], now_ms: int) -> list[Record | None]:
        """As the contract says, from a snapshot; waits for nobody."""
        idents = [ident(key) for key in keys]
        standing = self._server.run(lambda link: self.amender.read(link, idents)) if keys else {}
        found = [standing.get(key) for key in idents]
        return [None if one is None or transitions.is_expired(one.record, now_ms) else one.record for one in found]
