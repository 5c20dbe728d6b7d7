"""Notes beside the records, by which people find them: an index on every record would cost a third more for every message.

    pk                     sk                  what
    ~jobs                  digest of the pair  there are records of this tenant and job; once per process and pair
    ~done#2026-11-21T07    second#stamp        how many runs completed in that second, by job; kept for a day
    ~held                  digest of the key   this operation was parked, and perhaps settled since

In layout 2 each job has its own, so that no partition is everybody's and a role can be limited to its jobs:

    ~names                 job                 there are records of this job
    job#~scopes            digest              of this tenant; once per process and pair
    job#~done#2026-11-21   second#stamp        how many runs of it completed in that second
    job#~held              digest of the key   this operation of it was parked

All but those of parked ones ride along with the next batch of claims (`riders`), so they cost no call; a process that is
killed takes the count of its last runs with it. That of a parked record is written before it is parked, which is rare.
`finding.py` reads them.
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
from onefold.backends.aws.dynamodb.items import TTL_ATTRIBUTE, job_part, job_partition, ttl_of
from onefold.backends.aws.dynamodb.moves import Rider
from onefold.backends.aws.dynamodb.writes import Insert

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from onefold.backends.aws.dynamodb.items import Item, Layout
    from onefold.backends.aws.dynamodb.table import Table
    from onefold.contracts.store import RecordKey

KEPT_MS: Final = limits.DAY_MS  # contracts/admin.py, count_completed
NAMED_MAX: Final = 10_000  # pairs of tenant and job that a process remembers to have named
RIDERS_MAX: Final = 5  # to one batch of claims
DUE_RUNS: Final = 10  # so many completed runs are worth a write,
DUE_MS: Final = 10_000  # or so long ago
JOBS: Final = "~jobs"  # partition keys
HELD: Final = "~held"
DONE: Final = "~done#"
NAMES: Final = "~names"  # of layout 2
SECOND_DIGITS: Final = 12
Named = tuple[str | None, str]
"""A tenant and a job; the tenant is None for the job as a whole (layout 2)."""
Slot = tuple[int, str]
"""A second, and in layout 2 the job that the counts are of."""


class Notes:
    """The notes of one table. Safe from any thread.

    Args:
        table: where records and notes are.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._named: set[Named] = set()
        self._done: dict[Slot, Counter[str]] = defaultdict(Counter)  # slot: job: runs that no item tells of yet

    # -- written along with claims -------------------------------------------------------------------------------------

    def riders(self, keys: Iterable[RecordKey], now_ms: int) -> list[Rider]:
        """What is worth to be written along with claims of these operations; to be handed to `arrived` after that."""
        layout = self._table.layout
        most = RIDERS_MAX * layout  # a tenant and job are two notes in layout 2
        with self._lock:
            wanted: set[Named] = {(key.scope, key.job) for key in keys}
            if layout == 2:
                wanted |= {(None, job) for _, job in wanted}
            new = sorted(wanted - self._named, key=lambda named: (named[0] is not None, named[1], named[0] or ""))
            waiting = sum(counted.total() for counted in self._done.values())
            due = waiting >= DUE_RUNS or any(now_ms - second * 1000 >= DUE_MS for second, _ in self._done)
            riders = [Rider(Insert(named_item(named, layout)), named) for named in new[:most]]
            if due:
                slots = sorted(self._done)[: most - len(riders)]
                riders += [Rider(Insert(self._done_item(slot, self._done[slot])), slot) for slot in slots]
                for slot in slots:
                    del self._done[slot]
        return riders

    def arrived(self, riders: Sequence[Rider]) -> None:
        """Remember which riders were written; the others try again."""
        with self._lock:
            for rider in riders:
                first, job = rider.about
                if isinstance(first, int):
                    if not rider.written:
                        self._done[first, job] += Counter(counts_of(rider.write.item))
                elif rider.written:
                    if len(self._named) >= NAMED_MAX:
                        self._named.clear()
                    self._named.add((first, job))

    def completed(self, jobs: Iterable[str], now_ms: int) -> None:
        """Count runs that completed at this instant."""
        counted = Counter(jobs)
        if counted:
            with self._lock:
                for job, runs in counted.items():
                    self._done[now_ms // 1000, job if self._table.layout == 2 else ""][job] += runs

    def flush(self) -> None:
        """Write the counts that no item tells of yet; errors as `Table.put_all`, and then they wait on."""
        with self._lock:
            waiting, self._done = self._done, defaultdict(Counter)
            items = [self._done_item(slot, counted) for slot, counted in waiting.items()]
        try:
            self._table.put_all(items)
        except errors.OnefoldError:
            with self._lock:
                for slot, counted in waiting.items():
                    self._done[slot] += counted
            raise

    def _done_item(self, slot: Slot, counted: Counter[str]) -> Item:
        second, job = slot
        stamp = f"{second:0{SECOND_DIGITS}d}#{self._table.entropy.token()}"
        return done_item(hour_of(second) if self._table.layout == 1 else done_of(job, second), stamp, counted)

    # -- parked --------------------------------------------------------------------------------------------------------

    def park(self, keys: Sequence[RecordKey]) -> None:
        """Note that these operations are about to be parked; errors as `Table.put_all`."""
        layout = self._table.layout
        items = [held_item(key, layout) for key in dict.fromkeys(keys)]
        if layout == 2:  # by which the parked ones are found
            items += [named_item((None, job), layout) for job in dict.fromkeys(key.job for key in keys)]
        self._table.put_all(items)

    def unpark(self, key: RecordKey) -> None:
        """Forget that an operation was parked; errors as `Table.call`."""
        self._table.call("delete_item", Key=_held_place(key, self._table.layout))


def named_item(named: Named, layout: Layout) -> Item:
    """The note that there are records of this tenant and job."""
    scope, job = named
    if scope is None:
        return {"pk": {"S": NAMES}, "sk": {"S": job_part(job)}, "job": {"S": job}}
    partition = JOBS if layout == 1 else job_partition(job, "scopes")
    digest = sha256(msgspec.json.encode(named)).hexdigest()
    return {"pk": {"S": partition}, "sk": {"S": digest}, "scope": {"S": scope}, "job": {"S": job}}


def hour_of(second: int) -> str:
    """The partition key of counts of this second."""
    return f"{DONE}{datetime.fromtimestamp(second, tz=UTC):%Y-%m-%dT%H}"


def done_of(job: str, second: int) -> str:
    """The partition key of counts of this second in layout 2."""
    return job_partition(job, "done", f"{datetime.fromtimestamp(second, tz=UTC):%Y-%m-%d}")


def done_item(partition: str, stamp: str, counted: Mapping[str, int]) -> Item:
    """The note how many runs completed in the second that `stamp` begins with."""
    return {
        "pk": {"S": partition},
        "sk": {"S": stamp},
        "counts": {"S": msgspec.json.encode(counted).decode()},
        TTL_ATTRIBUTE: ttl_of(int(stamp.partition("#")[0]) * 1000 + KEPT_MS),
    }


def held_item(key: RecordKey, layout: Layout) -> Item:
    """The note that this operation is about to be parked."""
    return {**_held_place(key, layout), "operation": _operation(key)}


def counts_of(item: Item) -> dict[str, int]:
    """How many runs an item counts, by job."""
    return msgspec.json.decode(item["counts"]["S"], type=dict[str, int])


def _operation(key: RecordKey) -> dict[str, str]:
    return {"S": msgspec.json.encode(key).decode()}


def _held_place(key: RecordKey, layout: Layout) -> Item:
    partition = HELD if layout == 1 else job_partition(key.job, "held")
    return {"pk": {"S": partition}, "sk": {"S": sha256(_operation(key)["S"].encode()).hexdigest()}}
