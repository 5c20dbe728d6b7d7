"""Small index items beside the records, by which operators find them.

An index on every record would cost a third more for every message. Instead there are a few small items:

    pk                     sk                  what
    ~jobs                  digest of the pair  there are records of this tenant and job; once per process and pair
    ~done#2026-11-21T07    second#stamp        how many runs completed in that second, by job; kept for a day
    ~held                  digest of the key   this operation was parked, and perhaps settled since

In layout 2 each job has its own notes, so that no partition is shared by all jobs and a role can be limited to its
jobs:

    ~names                 job                 there are records of this job
    job#~scopes            digest              the job has records of this tenant; once per process and pair
    job#~done#2026-11-21   second#stamp        how many runs of the job completed in that second
    job#~held              digest of the key   this operation of the job was parked

All notes except those of parked records are written with the next batch of claims (`riders`), so they cost no extra
call; if a process is killed, the count of its last runs is lost. The note of a parked record is written before the
record is parked, which is rare.

DynamoDB finds records only by their primary key. Parked records, records by key alone and counts are found by notes,
each with a Query of one partition or a few, in layout 2 for each job.

Never here: anything that decides about a message. Invariant: a parked record has its note; a note proves nothing, so a
reader must check the record.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec

from onefold import errors, limits
from onefold.contracts.store import RecordKey
from onefold.engines.aws.dynamodb.items import (
    TTL_ATTRIBUTE,
    Item,
    item_key_of,
    job_part,
    job_partition,
    ttl_of,
)
from onefold.engines.aws.dynamodb.table import Insert, Rider, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from onefold.engines.aws.dynamodb.items import Layout


KEPT_MS: Final = limits.DAY_MS  # contracts/admin.py, count_completed
NAMED_MAX: Final = 10_000  # pairs of tenant and job that a process remembers having named
RIDERS_MAX: Final = 5  # per batch of claims
DUE_RUNS: Final = 10  # counts are written after this many completed runs
DUE_MS: Final = 10_000  # or after this time
JOBS: Final = "~jobs"  # partition keys
HELD: Final = "~held"
DONE: Final = "~done#"
NAMES: Final = "~names"  # in layout 2
SECOND_DIGITS: Final = 12
Named = tuple[str | None, str]
"""A tenant and a job; the tenant is None for the job as a whole (layout 2)."""
Slot = tuple[int, str]
"""A second, and in layout 2 the job whose runs are counted."""


class RecordNotes:
    """The notes of one table. Safe to call from any thread.

    Args:
        table: where records and notes are.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._named: set[Named] = set()
        self._done: dict[Slot, Counter[str]] = defaultdict(Counter)  # slot -> job -> runs not yet in an item

    # -- written along with claims -------------------------------------------------------------------------------------

    def riders(self, keys: Iterable[RecordKey], now_ms: int) -> list[Rider]:
        """Notes that are worth writing along with claims of these operations; pass them to `arrived` afterwards."""
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
        """Remember which riders were written; the others are tried again."""
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
        """Write the counts that are not in any item yet; after an error (as for `Table.put_all`) they stay due."""
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
        """Note that these operations are about to be parked; errors as for `Table.put_all`."""
        layout = self._table.layout
        items = [held_item(key, layout) for key in dict.fromkeys(keys)]
        if layout == 2:  # a reader finds parked records by the names of jobs
            items += [named_item((None, job), layout) for job in dict.fromkeys(key.job for key in keys)]
        self._table.put_all(items)

    def unpark(self, key: RecordKey) -> None:
        """Forget that an operation was parked; errors as for `Table.call`."""
        self._table.call("delete_item", Key=_held_item_key(key, self._table.layout))


def named_item(named: Named, layout: Layout) -> Item:
    """The note that there are records of this tenant and job."""
    scope, job = named
    if scope is None:
        return {"pk": {"S": NAMES}, "sk": {"S": job_part(job)}, "job": {"S": job}}
    partition = JOBS if layout == 1 else job_partition(job, "scopes")
    digest = sha256(msgspec.json.encode(named)).hexdigest()
    return {"pk": {"S": partition}, "sk": {"S": digest}, "scope": {"S": scope}, "job": {"S": job}}


def hour_of(second: int) -> str:
    """The partition key of counts of this second in layout 1."""
    return f"{DONE}{datetime.fromtimestamp(second, tz=UTC):%Y-%m-%dT%H}"


def done_of(job: str, second: int) -> str:
    """The partition key of counts of this second in layout 2."""
    return job_partition(job, "done", f"{datetime.fromtimestamp(second, tz=UTC):%Y-%m-%d}")


def done_item(partition: str, stamp: str, counted: Mapping[str, int]) -> Item:
    """The note of how many runs completed in the second with which `stamp` begins."""
    return {
        "pk": {"S": partition},
        "sk": {"S": stamp},
        "counts": {"S": msgspec.json.encode(counted).decode()},
        TTL_ATTRIBUTE: ttl_of(int(stamp.partition("#")[0]) * 1000 + KEPT_MS),
    }


def held_item(key: RecordKey, layout: Layout) -> Item:
    """The note that this operation is about to be parked."""
    return {**_held_item_key(key, layout), "operation": _operation(key)}


def counts_of(item: Item) -> dict[str, int]:
    """How many runs an item counts, by job."""
    return msgspec.json.decode(item["counts"]["S"], type=dict[str, int])


def _operation(key: RecordKey) -> dict[str, str]:
    return {"S": msgspec.json.encode(key).decode()}


def _held_item_key(key: RecordKey, layout: Layout) -> Item:
    partition = HELD if layout == 1 else job_partition(key.job, "held")
    return {"pk": {"S": partition}, "sk": {"S": sha256(_operation(key)["S"].encode()).hexdigest()}}


PAIRS_MAX: Final = 20_000  # pairs of tenant and job in which a key is looked up: 200 calls


def parked_keys(table: Table) -> list[RecordKey]:
    """Operations that are parked, were parked, or were about to be; only their records show which."""
    partitions = [HELD] if table.layout == 1 else [job_partition(job, "held") for job in job_names(table)]
    return [
        msgspec.json.decode(item["operation"]["S"], type=RecordKey)
        for partition in partitions
        for item in _query(table, partition)
    ]


def job_names(table: Table) -> list[str]:
    """The jobs of which a table of layout 2 has records or rows."""
    return [item["job"]["S"] for item in _query(table, NAMES)]


def _pairs(table: Table) -> Iterator[Item]:
    partitions = [JOBS] if table.layout == 1 else [job_partition(job, "scopes") for job in job_names(table)]
    for partition in partitions:
        yield from _query(table, partition)


def possible_item_keys(table: Table, key: str) -> list[Item]:
    """The primary keys that a record with this business key can have.

    Raises:
        UsageError: there are more than 20,000 pairs of tenant and job.
    """
    item_keys: list[Item] = []
    for item in _pairs(table):
        item_keys.append(item_key_of(RecordKey(item["scope"]["S"], item["job"]["S"], key), table.layout))
        if len(item_keys) > PAIRS_MAX:
            raise errors.UsageError(
                f"The table {table.name} has records of more than {PAIRS_MAX} tenants and jobs.",
                meaning="A key alone must be looked up in each of them.",
                todo="Read the one record by its tenant, job and key.",
            )
    return item_keys


def completed_runs(table: Table, since_ms: int, now_ms: int) -> Counter[str]:
    """Runs completed per job, in the seconds from `since_ms` up to the millisecond before `now_ms`."""
    first, last = max(since_ms, now_ms - KEPT_MS) // 1000, (now_ms - 1) // 1000
    counted: Counter[str] = Counter()
    seconds = (*range(first, last, 3600), last)
    if table.layout == 1:
        partitions = [hour_of(second) for second in seconds]
    else:
        partitions = [done_of(job, second) for job in job_names(table) for second in seconds]
    for partition in dict.fromkeys(partitions):
        for item in _query(table, partition, (f"{first:0{SECOND_DIGITS}d}", f"{last:0{SECOND_DIGITS}d}~")):
            counted += Counter(counts_of(item))
    return counted


def _query(table: Table, partition: str, bounds: tuple[str, str] | None = None) -> Iterator[Item]:
    condition, values = "pk = :pk", {":pk": {"S": partition}}
    if bounds is not None:
        condition += " AND sk BETWEEN :first AND :last"
        values |= {":first": {"S": bounds[0]}, ":last": {"S": bounds[1]}}
    return table.query(KeyConditionExpression=condition, ExpressionAttributeValues=values)
