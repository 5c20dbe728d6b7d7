"""Idempotency records on Redis: changed by compare-and-set, for the Store contract and for operators (RecordAdmin).

There are two ways to be atomic on Redis: write the rules a second time in Lua, or keep them in `contracts/transitions.py`
and use a generic script that replaces a value only if it is unchanged since it was read. This module does the second, so
that the rules, which are the hard part, exist once. It usually costs no extra round trip: when the script refuses a
change it returns the stored value, so a wrong guess about a record serves as the read, and the usual guesses are right.
A claim guesses that there is no record; later writes guess that the record is as this process left it.

    first delivery: claim 1 call, write 1 call, for one record or for a hundred    duplicate: 1 call    takeover: 2 calls

When several processes race for a record, the server accepts one change; each of the others receives the winner's
record, and most need nothing more. An answer without a change is based only on what the server returned, never on a
guess. If a call has two claims of one key, they are handled one after the other.

For operators, the script that changes a record also moves its name between index sets ("shelves"): one sorted set per
status, newest change first, and one for parked records. The set of a status names its newest 10,000 records, so it
needs no sweep; the set of parked records names all of them. A name whose record is gone, or has another status now, is
skipped. A key is looked up under every job that ever had a record, so there is no list per key.

Never here: rules, connections. Invariant: a record changes only from the value that the step read to the value that the
step computed; every write names its owner and fence, and reports whether it was applied; a list only names records,
whose contents are read from the records themselves.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import merge, nlargest
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from msgspec import Struct

from onefold import errors, forks, limits
from onefold.contracts import transitions
from onefold.contracts.store import (
    Answer,
    Ask,
    Hold,
    ManualDecision,
    Outcome,
    Record,
    RecordKey,
    Status,
    StoreCapabilities,
    Unreadable,
)
from onefold.engines.redis.layout import (
    ABSENT,
    SHELVES,
    Names,
    StoredRecord,
    decode,
    encode,
    key_at,
    shelf,
    text_of_job,
)
from onefold.engines.redis.server import RedisServer

if TYPE_CHECKING:
    from onefold.contracts.verbs import Ledger, RowsOf, State
    from onefold.outside import Clock, Entropy


LISTED_MAX: Final = 10_000  # records per shelf: ten times as many as any command of ours asks for
GRACE_MS: Final = limits.DAY_MS  # as on DynamoDB: far more than any skew between the clocks of hosts and server
COUNTED_MS: Final = limits.DAY_MS + 2 * limits.MINUTE_MS  # contracts/admin.py: a day; whole minutes at both ends
RECORDS_PER_CALL: Final = 100  # about a millisecond of the server's only thread
REFUSALS_MAX: Final = 50  # per step; each refusal means that somebody else's change was accepted meanwhile
_GUESSES_MAX: Final = 4_096  # records that this process is working on


CHANGE: Final = """
-- Replace each record whose stamp has not changed; answer 1, or what is stored instead. Safe to run twice: a call
-- that finds the stamp it came with has run before, and only its answer was lost.
--   KEYS: jobs, runs completed in this minute, the shelves, then the records.
--   ARGV: number of shelves, records listed per shelf, life of the count in ms, length of the records' common prefix; then
--         for each record: stamp expected ('' absent), value ('' just read), life in ms (0: forever), shelf before and
--         after (0: not moved), instant of the change, job when it is new, field to count in when it completed.
local shelves, listed, counted_ms, prefix = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local answers = {}

local function list(place, before, after, at_ms)
    if before > 0 then redis.call('ZREM', KEYS[2 + before], place) end
    local shelf = KEYS[2 + after]
    redis.call('ZADD', shelf, at_ms, place)
    -- The last shelf, of parked records, is never cut: they wait for a person.
    if after < shelves and redis.call('ZCARD', shelf) > listed then
        redis.call('ZREMRANGEBYRANK', shelf, 0, -listed - 1)
    end
end

for i = 1, #KEYS - 2 - shelves do
    local key, at = KEYS[2 + shelves + i], 8 * i - 4
    local expected, value = ARGV[at + 1], ARGV[at + 2]
    local stamp = redis.pcall('GETRANGE', key, 0, 15)
    if type(stamp) == 'table' then -- a list or hash of another program: no value of ours looks like this answer
        answers[i] = 'of type ' .. redis.call('TYPE', key).ok
    elseif value == '' or (stamp ~= expected and stamp ~= string.sub(value, 1, 16))
        or (stamp == '' and redis.call('EXISTS', key) == 1) then -- an empty text of another program
        answers[i] = redis.call('GET', key)
    else
        answers[i] = 1
        if stamp == expected then
            local life_ms, before, after = ARGV[at + 3], tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
            if life_ms == '0' then redis.call('SET', key, value) else redis.call('SET', key, value, 'PX', life_ms) end
            if after > 0 then list(string.sub(key, prefix + 1), before, after, ARGV[at + 6]) end
            if ARGV[at + 7] ~= '' then redis.call('SADD', KEYS[1], ARGV[at + 7]) end
            if ARGV[at + 8] ~= '' and redis.call('HINCRBY', KEYS[2], ARGV[at + 8], 1) == 1 then
                redis.call('PEXPIRE', KEYS[2], counted_ms)
            end
        end
    end
end
return answers
"""


_T = TypeVar("_T")
Step = Callable[[Record | None], tuple[_T, Record | None]]
"""From the stored record to the answer and the record afterwards (None if unchanged)."""


class _Change(Struct, frozen=True, gc=False):
    """One record's part of a call: the stored value from which it was computed, and the new one (ABSENT only reads)."""

    key: RecordKey
    before: StoredRecord
    after: StoredRecord


class RecordChanger:
    """Changes records by compare-and-set: a step is applied to the record that is really stored.

    Args:
        server, names: where the records are. entropy: source of the stamps.
    """

    def __init__(self, server: RedisServer, names: Names, entropy: Entropy) -> None:
        self._server = server
        self._names = names
        self._entropy = entropy
        self._guesses: dict[
            RecordKey, StoredRecord
        ] = {}  # the records that this process has claimed and will write again
        self._lock = threading.Lock()
        forks.in_child(self._start_anew)

    def _start_anew(self) -> None:
        """In a forked child: drop the guesses, and take a new lock that no thread of the parent holds."""
        self._guesses, self._lock = {}, threading.Lock()

    def read(self, keys: Sequence[RecordKey]) -> list[StoredRecord]:
        """What is stored under these keys, in one round trip."""
        names = [self._names.record(key) for key in keys]
        values = self._server.values(names)
        return [decode(key, value, name) for key, value, name in zip(keys, values, names, strict=True)]

    def apply(
        self,
        steps: Sequence[tuple[RecordKey, Step[_T]]],
        now_ms: int | None,
        guess: StoredRecord | None,
        unreadable: Callable[[errors.StorageError], _T],
    ) -> list[_T]:
        """Take each step, in order if two have the same key; returns the answers in order.

        Args:
            now_ms: for expiry and counts; None for verbs that are not given the time and complete nothing.
            guess: what is probably stored if this process does not know; None to read first.
            unreadable: gives the answer if something other than a record is stored, which is not changed.

        Raises:
            TransientError: others kept changing the same record.
        """
        answers: dict[int, _T] = {}
        seen: dict[RecordKey, StoredRecord] = {}
        refused = 0
        while len(answers) < len(steps):
            turn = self._next_steps(steps, answers)
            changes: dict[int, _Change] = {}
            made: dict[int, _T] = {}
            for number in turn:
                key, step = steps[number]
                before = seen.get(key) or self._guesses.get(key) or guess
                if before is not None and before.error is not None:
                    answers[number] = unreadable(before.error)
                    continue
                if before is not None:
                    made[number], after = step(before.record)
                    if after is not None:
                        changes[number] = _Change(key, before, StoredRecord(self._entropy.token().encode(), after))
                        continue
                    if key in seen:
                        answers[number] = made[number]
                        continue
                changes[number] = _Change(key, ABSENT, ABSENT)
            for number, stored in self._call(changes, now_ms).items():
                took = changes[number].after.record is not None and stored is changes[number].after
                if took:
                    answers[number] = made[number]
                seen[changes[number].key] = stored
                refused += not took
            if refused > REFUSALS_MAX * len(steps):
                raise errors.TransientError(
                    f"Others changed a record {REFUSALS_MAX} times, each time before this change could be applied.",
                    meaning="No part of this step was written.",
                    todo="Try again.",
                )
        return [answers[number] for number in range(len(steps))]

    def _next_steps(self, steps: Sequence[tuple[RecordKey, Any]], answers: dict[int, Any]) -> list[int]:
        """The first unanswered step of each key, for as many keys as one call takes."""
        first: dict[RecordKey, int] = {}
        for number, (key, _) in enumerate(steps):
            if number not in answers:
                first.setdefault(key, number)
                if len(first) == RECORDS_PER_CALL:
                    break
        return list(first.values())

    def _call(self, changes: dict[int, _Change], now_ms: int | None) -> dict[int, StoredRecord]:
        """Ask the server for these changes; returns what is stored afterwards: `after`, if a change was applied."""
        if not changes:
            return {}
        names = self._names
        minute = 0 if now_ms is None else now_ms // limits.MINUTE_MS
        keys = [names.jobs, names.completed(minute), *names.shelves]
        arguments: list[Any] = [len(SHELVES), LISTED_MAX, COUNTED_MS, len(names.records.encode())]
        for change in changes.values():
            keys.append(names.record(change.key))
            arguments += _arguments(change, now_ms)
        replies = self._server.run(CHANGE, keys, arguments, repeatable=True)
        stored: dict[int, StoredRecord] = {}
        for (number, change), reply in zip(changes.items(), replies, strict=True):
            stored[number] = change.after if reply == 1 else decode(change.key, reply, names.record(change.key))
            self._remember(change.key, stored[number] if reply == 1 else ABSENT)
        return stored

    def _remember(self, key: RecordKey, stored: StoredRecord) -> None:
        """Remember a record as this process left it, if this process will write it again."""
        record = stored.record
        with self._lock:
            self._guesses.pop(key, None)
            if record is not None and (record.status == "in_progress" or record.outbox):
                self._guesses[key] = stored
                if len(self._guesses) > _GUESSES_MAX:
                    del self._guesses[next(iter(self._guesses))]


def _arguments(change: _Change, now_ms: int | None) -> list[Any]:
    """One change as the arguments of the script."""
    before, after = change.before.record, change.after.record
    if after is None:
        return ["", "", 0, 0, 0, 0, "", ""]
    shelf_before = 0 if before is None else shelf(before) + 1
    moved = before is None or (shelf_before, before.updated_at_ms) != (shelf(after) + 1, after.updated_at_ms)
    completed = after.status == "completed" and before is not None and before.status != "completed"
    return [
        change.before.stamp,
        encode(after, change.after.stamp),
        _life_ms(after, after.updated_at_ms if now_ms is None else now_ms),
        shelf_before,
        shelf(after) + 1 if moved else 0,
        after.updated_at_ms,
        text_of_job(after.key) if before is None else "",
        f"{after.updated_at_ms // limits.SECOND_MS}|{after.key.job}" if completed else "",
    ]


def _life_ms(record: Record, now_ms: int) -> int:
    """How long Redis keeps a record, counted from `now_ms`; 0: until a person settles it.

    It is a duration, not an instant, so that the server's clock does not matter. It only frees memory: instants decide
    what counts as expired. A verb that is not given the time (renew) counts from the last change, which keeps the
    record longer.
    """
    if record.expires_at_ms is None:
        return 0
    until_ms = (
        max(record.expires_at_ms, record.lease_until_ms) if record.status == "in_progress" else record.expires_at_ms
    )
    return max(until_ms - now_ms, 0) + GRACE_MS


def _refused(_: errors.StorageError) -> bool:
    """The answer if the stored value is unreadable: the former holder does not hold it."""
    return False


def _raised(error: errors.StorageError) -> NoReturn:
    """Raise the error, for a person who asked about this record."""
    raise error


class RedisStore:
    """The Store contract on one server.

    Args:
        changer: changes its records.

    Attributes:
        capabilities: `durable` is False until `RedisBackend.check` has found that the server syncs every write.
    """

    ledger: Ledger | None = None  # on the same server; `once` records the outcomes of calls there
    state: State | None = None  # on the same server; names of operations are reserved there
    clock: Clock | None = None  # shared by everything that uses the server, and the default for `@once`

    def __init__(self, changer: RecordChanger) -> None:
        self._changer = changer
        self.capabilities = StoreCapabilities(durable=False, proves_death=False)

    def claim(self, asks: Sequence[Ask], now_ms: int, rows_of: RowsOf | None = None) -> list[Answer]:  # noqa: ARG002 - has no history in its transaction
        """See `contracts.verbs.Store.claim`; one call if all operations are new or done, two if some are taken over.

        Raises:
            TransientError: the server cannot be reached or does not accept writes now.
            StorageError: it will not work without a change to the server or the URL.
                Every verb here raises both; a verb that got no answer may have taken effect, and may be called again.
        """

        def step(ask: Ask) -> Step[Answer]:
            return lambda record: transitions.claim(record, ask, now_ms)

        return self._changer.apply([(ask.key, step(ask)) for ask in asks], now_ms, ABSENT, Unreadable.of)

    def start(self, holds: Sequence[Hold], now_ms: int) -> list[bool]:
        """See `contracts.verbs.Store`; one call."""

        def step(hold: Hold) -> Step[bool]:
            return lambda record: transitions.took(record, transitions.start(record, hold, now_ms))

        return self._changer.apply([(hold.key, step(hold)) for hold in holds], now_ms, None, _refused)

    def renew(self, holds: Sequence[Hold], lease_until_ms: int) -> list[bool]:
        """See `contracts.verbs.Store`; one call."""

        def step(hold: Hold) -> Step[bool]:
            return lambda record: transitions.took(record, transitions.renew(record, hold, lease_until_ms))

        return self._changer.apply([(hold.key, step(hold)) for hold in holds], None, None, _refused)

    def write(self, writes: Sequence[tuple[Hold, Outcome]], now_ms: int) -> list[bool]:
        """See `contracts.verbs.Store`; one call."""

        def step(hold: Hold, outcome: Outcome) -> Step[bool]:
            return lambda record: transitions.took(record, transitions.write(record, hold, outcome, now_ms))

        steps = [(hold.key, step(hold, outcome)) for hold, outcome in writes]
        return self._changer.apply(steps, now_ms, None, _refused)

    def restore(self, records: Sequence[Record]) -> list[bool]:
        """See `contracts.verbs.Store`; one call."""

        def step(gone: Record) -> Step[bool]:
            return lambda record: transitions.took(record, transitions.restore(record, gone))

        return self._changer.apply([(gone.key, step(gone)) for gone in records], None, ABSENT, _refused)

    def clear_outbox(self, holds: Sequence[Hold]) -> list[bool]:
        """See `contracts.verbs.Store`; one call."""

        def step(hold: Hold) -> Step[bool]:
            return lambda record: transitions.took(record, transitions.clear_outbox(record, hold))

        return self._changer.apply([(hold.key, step(hold)) for hold in holds], None, None, _refused)

    def read(self, keys: Sequence[RecordKey], now_ms: int) -> list[Record | None]:
        """See `contracts.verbs.Store`; one call.

        Raises:
            StorageError: something other than a record is stored under one of the keys.
        """
        found = self._changer.read(keys)
        for stored in found:
            if stored.error is not None:
                raise stored.error
        records = [stored.record for stored in found]
        return [None if record is None or transitions.is_expired(record, now_ms) else record for record in records]


_PAGE = 500


class RedisRecords:
    """The RecordAdmin contract on one server.

    Args:
        server, names: where the records are. changer: changes them.
    """

    def __init__(self, server: RedisServer, names: Names, changer: RecordChanger) -> None:
        self._server = server
        self._names = names
        self._changer = changer

    def scan(self, *, status: Status | None = None, parked: bool | None = None, limit: int = 100) -> list[Record]:
        """Records, newest change first: at most the newest 10,000 of each status, but all parked ones."""
        shelves = [number for number, name in enumerate(SHELVES) if _shows(name, status, parked)]
        entries = merge(*(self._entries(number) for number in shelves), reverse=True)
        found: dict[RecordKey, Record] = {}
        while len(found) < limit:
            page = [(key_at(text), number) for _, text, number in islice(entries, min(limit, _PAGE))]
            if not page:
                break
            for (key, number), stored in zip(page, self._changer.read([key for key, _ in page]), strict=True):
                if stored.record is not None and shelf(stored.record) == number:
                    found.setdefault(key, stored.record)
        return list(found.values())[:limit]

    def _entries(self, number: int) -> Iterator[tuple[float, str, int]]:
        """The names on a shelf, newest change first, read page by page: instant of the change, key as text, shelf."""
        first = 0
        while True:
            start, stop = first, first + _PAGE - 1
            rows = self._server.ask(
                lambda client: client.zrevrange(self._names.shelves[number], start, stop, withscores=True),  # noqa: B023
                repeatable=True,
            )
            yield from ((at_ms, text.decode(), number) for text, at_ms in rows)
            if len(rows) < _PAGE:
                return
            first += _PAGE

    def find(self, key: str, limit: int = 20) -> list[Record]:
        """Records whose business key is exactly `key`, newest change first; tries every scope and job with records.

        Raises:
            StorageError: there is none, and what is stored in the place of one is not a record.
        """
        found: dict[RecordKey, Record] = {}
        foreign: errors.StorageError | None = None
        for jobs in self._server.members(self._names.jobs, _PAGE):
            keys = [key_at(f"{job.decode()}|{key}") for job in jobs]
            read = self._changer.read(keys)
            foreign = next((one.error for one in read if one.error is not None), foreign)
            stored = [one.record for one in read if one.record is not None]
            found |= {record.key: record for record in stored}
            newest = nlargest(limit, found.values(), key=lambda record: record.updated_at_ms)
            found = {record.key: record for record in newest}
        if foreign is not None and not found:
            raise foreign
        return list(found.values())

    def settle(self, key: RecordKey, decision: ManualDecision, now_ms: int) -> bool:
        """Settle a parked record on a person's decision, or correct a result; False if neither is possible (any more)."""
        steps: list[tuple[RecordKey, Step[bool]]] = [
            (key, partial(transitions.settle, decision=decision, now_ms=now_ms))
        ]
        (settled,) = self._changer.apply(steps, now_ms, None, _raised)
        return settled

    def count_completed(self, since_ms: int, now_ms: int) -> dict[str, int]:
        """Runs completed in [since_ms, now_ms) per job; the seconds at both ends are counted in full."""
        first, last = since_ms // limits.SECOND_MS, (now_ms - 1) // limits.SECOND_MS
        oldest = (now_ms - limits.DAY_MS) // limits.SECOND_MS  # counts are not kept for longer
        minutes = range(max(first, oldest) // 60, last // 60 + 1)
        counts: Counter[str] = Counter()
        for fields in self._server.each("HGETALL", [self._names.completed(minute) for minute in minutes]):
            for field, count in fields.items():
                second, job = field.decode().split("|", 1)
                if first <= int(second) <= last:
                    counts[job] += int(count)
        return dict(counts)


def _shows(name: str, status: Status | None, parked: bool | None) -> bool:
    """Whether the shelf `name` can hold records with this status and this `parked`; None accepts any."""
    of_status = status is None or name == status or (name == "parked" and status == "unknown")
    return of_status and (parked is None or parked == (name == "parked"))
