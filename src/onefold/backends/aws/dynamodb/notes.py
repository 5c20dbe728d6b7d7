"""Notes beside the records, by which people find them: an index on every record would cost a third more for every message.

    pk                     sk                  what
    ~jobs                  digest of the pair  there are records of this tenant and job; once per process and pair
    ~done#2026-11-21T07    second#stamp        how many runs completed in that second, by job; kept for a day
    ~held                  digest of the key   this operation was parked, and perhaps settled since

The first two ride along with the next batch of claims (`riders`), so they cost no call; a process that is killed takes the
count of its last runs with it. The third is written before the record is parked, which is rare. `finding.py` reads them.
Never here: anything that decides about a message. Invariant: a parked record has its note; a note proves nothing.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec

from onefold import errors, limits
from onefold.backends.aws.dynamodb.items import TTL_ATTRIBUTE, ttl_of
from onefold.backends.aws.dynamodb.moves import Rider
from onefold.backends.aws.dynamodb.writes import Insert

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from onefold.backends.aws.dynamodb.items import Item
    from onefold.backends.aws.dynamodb.table import Table
    from onefold.contracts.store import RecordKey

KEPT_MS: Final = limits.DAY_MS  # contracts/admin.py, count_completed
NAMED_MAX: Final = 10_000  # pairs of tenant and job that a process remembers to have named
RIDERS_MAX: Final = 5  # to one batch of claims
DUE_RUNS: Final = 10  # so many completed runs are worth a write,
DUE_MS: Final = 10_000  # or so long ago
JOBS: Final = "~jobs"  # partition keys
HELD: Final = "~held"
SECOND_DIGITS: Final = 12
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
                        self._done[rider.about] += Counter(counts_of(rider.write.item))
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
            "pk": {"S": hour_of(second)},
            "sk": {"S": f"{second:0{SECOND_DIGITS}d}#{self._table.entropy.token()}"},
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


def _pair_item(pair: Pair) -> Item:
    scope, job = pair
    digest = sha256(msgspec.json.encode(pair)).hexdigest()
    return {"pk": {"S": JOBS}, "sk": {"S": digest}, "scope": {"S": scope}, "job": {"S": job}}


def hour_of(second: int) -> str:
    """The partition key of counts of this second."""
    return f"~done#{datetime.fromtimestamp(second, tz=UTC):%Y-%m-%dT%H}"


def counts_of(item: Item) -> dict[str, int]:
    """How many runs an item counts, by job."""
    return msgspec.json.decode(item["counts"]["S"], type=dict[str, int])


def _operation(key: RecordKey) -> dict[str, str]:
    return {"S": msgspec.json.encode(key).decode()}


def _held_place(key: RecordKey) -> Item:
    return {"pk": {"S": HELD}, "sk": {"S": sha256(_operation(key)["S"].encode()).hexdigest()}}
