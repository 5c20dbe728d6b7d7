"""Notes beside the records, by which people find them: an index on every record would cost a third more for every message.

    pk                     sk                  what
    ~jobs                  digest of the pair  there are records of this tenant and job; once per process and pair
    ~done#2026-11-21T07    second#stamp        how many runs completed in that second, by job; kept for a day
    ~held                  digest of the key   this operation was parked, and perhaps settled since

The first two ride along with the next batch of claims (`riders`), so they cost no call; a process that is killed takes the
count of its last runs with it. The third is written before the record is parked, which is rare.
Never here: anything that decides about a message. Invariant: a parked record has its note; a note proves nothing.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

import msgspec

from onefold import errors, limits
from onefold.backends.aws.dynamodb.items import TTL_ATTRIBUTE, Item, place_of, ttl_of
from onefold.backends.aws.dynamodb.moves import Rider
from onefold.backends.aws.dynamodb.table import Table
from onefold.backends.aws.dynamodb.writes import Insert
from onefold.contracts.store import RecordKey

KEPT_MS: Final = limits.DAY_MS  # contracts/admin.py, count_completed
NAMED_MAX: Final = 10_000  # pairs of tenant and job that a process remembers to have named
PAIRS_MAX: Final = 20_000  # pairs that a key is looked for in: 200 calls
RIDERS_MAX: Final = 5  # to one batch of claims
DUE_RUNS: Final = 10  # so many completed runs are worth a write,
DUE_MS: Final = 10_000  # or so long ago
_JOBS: Final = "~jobs"
_HELD: Final = "~held"
_SECOND_DIGITS: Final = 12
_COUNTS = msgspec.json.Decoder(dict[str, int])
Pair = tuple[str, str]


class Notes:
    """The notes of one table. Safe from any thread.

    Args:
        table: where records and notes are.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._named: set[Pair] = set()
        self._done: dict[int, Counter[str]] = defaultdict(Counter)  # second: job: runs that no item tells of yet

    # -- written along with claims -------------------------------------------------------------------------------------

    def riders(self, keys: Iterable[RecordKey], now_ms: int) -> list[Rider]:
        """What is worth to be written along with claims of these operations; to be handed to `arrived` after that."""
        with self._lock:
            new = {(key.scope, key.job) for key in keys} - self._named
            waiting = sum(counted.total() for counted in self._done.values())
            due = waiting >= DUE_RUNS or any(now_ms - second * 1000 >= DUE_MS for second in self._done)
            riders = [Rider(Insert(_pair_item(pair)), pair) for pair in sorted(new)[:RIDERS_MAX]]
            if due:
                seconds = sorted(self._done)[: RIDERS_MAX - len(riders)]
                riders += [Rider(Insert(self._done_item(second)), second) for second in seconds]
                for second in seconds:
                    del self._done[second]
        return riders

    def arrived(self, riders: Sequence[Rider]) -> None:
        """Remember which riders were written; the others try again."""
        with self._lock:
            for rider in riders:
                if isinstance(rider.about, int):
                    if not rider.written:
                        self._done[rider.about] += Counter(_counts(rider.write.item))
                elif rider.written:
                    if len(self._named) >= NAMED_MAX:
                        self._named.clear()
                    self._named.add(rider.about)

    def completed(self, jobs: Iterable[str], now_ms: int) -> None:
        """Count runs that completed at this instant."""
        counted = Counter(jobs)
        if counted:
            with self._lock:
                self._done[now_ms // 1000] += counted

    def flush(self) -> None:
        """Write the counts that no item tells of yet; errors as `Table.put_all`, and then they wait on."""
        with self._lock:
            waiting, self._done = self._done, defaultdict(Counter)
            items = [self._done_item(second, counted) for second, counted in waiting.items()]
        try:
            self._table.put_all(items)
        except errors.OnefoldError:
            with self._lock:
                for second, counted in waiting.items():
                    self._done[second] += counted
            raise

    def _done_item(self, second: int, counted: Counter[str] | None = None) -> Item:
        return {
            "pk": {"S": _hour(second)},
            "sk": {"S": f"{second:0{_SECOND_DIGITS}d}#{self._table.entropy.token()}"},
            "counts": {"S": msgspec.json.encode(self._done[second] if counted is None else counted).decode()},
            TTL_ATTRIBUTE: ttl_of(second * 1000 + KEPT_MS),
        }

    # -- parked --------------------------------------------------------------------------------------------------------

    def park(self, keys: Sequence[RecordKey]) -> None:
        """Note that these operations are about to be parked; errors as `Table.put_all`."""
        self._table.put_all([{**_held_place(key), "operation": _operation(key)} for key in dict.fromkeys(keys)])

    def unpark(self, key: RecordKey) -> None:
        """Forget that an operation was parked; errors as `Table.call`."""
        self._table.call("delete_item", Key=_held_place(key))

    # -- read ----------------------------------------------------------------------------------------------------------

    def parked(self) -> list[RecordKey]:
        """Operations that are parked, or were to be; their records tell."""
        items = self._query(_HELD)
        return [msgspec.json.decode(item["operation"]["S"], type=RecordKey) for item in items]

    def places_of(self, key: str) -> list[Item]:
        """Wherever a record with this business key can be.

        Raises:
            UsageError: there are more than 20,000 pairs of tenant and job.
        """
        places: list[Item] = []
        for item in self._query(_JOBS):
            places.append(place_of(RecordKey(item["scope"]["S"], item["job"]["S"], key)))
            if len(places) > PAIRS_MAX:
                raise errors.UsageError(
                    f"The table {self._table.name} has records of more than {PAIRS_MAX} tenants and jobs.",
                    meaning="A key alone is looked for in each of them.",
                    todo="Read the one record by its tenant, job and key.",
                )
        return places

    def done(self, since_ms: int, now_ms: int) -> Counter[str]:
        """Runs completed per job, in the seconds from that of `since_ms` to that of the millisecond before `now_ms`."""
        first, last = max(since_ms, now_ms - KEPT_MS) // 1000, (now_ms - 1) // 1000
        counted: Counter[str] = Counter()
        for hour in dict.fromkeys(map(_hour, (*range(first, last, 3600), last))):
            bounds = (f"{first:0{_SECOND_DIGITS}d}", f"{last:0{_SECOND_DIGITS}d}~")
            for item in self._query(hour, bounds):
                counted += Counter(_counts(item))
        return counted

    def _query(self, partition: str, bounds: tuple[str, str] | None = None) -> Iterator[Item]:
        condition, values = "pk = :pk", {":pk": {"S": partition}}
        if bounds is not None:
            condition += " AND sk BETWEEN :first AND :last"
            values |= {":first": {"S": bounds[0]}, ":last": {"S": bounds[1]}}
        return self._table.query(KeyConditionExpression=condition, ExpressionAttributeValues=values)


def _pair_item(pair: Pair) -> Item:
    scope, job = pair
    digest = sha256(msgspec.json.encode(pair)).hexdigest()
    return {"pk": {"S": _JOBS}, "sk": {"S": digest}, "scope": {"S": scope}, "job": {"S": job}}


def _hour(second: int) -> str:
    return f"~done#{datetime.fromtimestamp(second, tz=UTC):%Y-%m-%dT%H}"


def _counts(item: Item) -> dict[str, int]:
    return _COUNTS.decode(item["counts"]["S"])


def _operation(key: RecordKey) -> dict[str, str]:
    return {"S": msgspec.json.encode(key).decode()}


def _held_place(key: RecordKey) -> Item:
    return {"pk": {"S": _HELD}, "sk": {"S": sha256(_operation(key)["S"].encode()).hexdigest()}}
