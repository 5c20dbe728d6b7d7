"""What the notes tell (`notes.py`): which operations are parked, where a key can be, how many runs completed.

For operators; each look is a Query of one partition or a few, in layout 2 for each job.
Never here: writing notes, and records themselves.
Invariant: nothing is told that no note says; a note proves nothing, so who asks reads the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from onefold import errors
from onefold.backends.aws.dynamodb.items import Item, job_partition, place_of
from onefold.backends.aws.dynamodb.notes import HELD, JOBS, KEPT_MS, NAMES, SECOND_DIGITS, counts_of, done_of, hour_of
from onefold.backends.aws.dynamodb.table import Table
from onefold.contracts.store import RecordKey

PAIRS_MAX: Final = 20_000  # pairs of tenant and job that a key is looked for in: 200 calls


def parked(table: Table) -> list[RecordKey]:
    """Operations that are parked, or were to be; their records tell."""
    partitions = [HELD] if table.layout == 1 else [job_partition(job, "held") for job in jobs(table)]
    return [
        msgspec.json.decode(item["operation"]["S"], type=RecordKey)
        for partition in partitions
        for item in _query(table, partition)
    ]


def jobs(table: Table) -> list[str]:
    """The jobs that a table of layout 2 has records or rows of."""
    return [item["job"]["S"] for item in _query(table, NAMES)]


def _pairs(table: Table) -> Iterator[Item]:
    partitions = [JOBS] if table.layout == 1 else [job_partition(job, "scopes") for job in jobs(table)]
    for partition in partitions:
        yield from _query(table, partition)


def places_of(table: Table, key: str) -> list[Item]:
    """Wherever a record with this business key can be.

    Raises:
        UsageError: there are more than 20,000 pairs of tenant and job.
    """
    places: list[Item] = []
    for item in _pairs(table):
        places.append(place_of(RecordKey(item["scope"]["S"], item["job"]["S"], key), table.layout))
        if len(places) > PAIRS_MAX:
            raise errors.UsageError(
                f"The table {table.name} has records of more than {PAIRS_MAX} tenants and jobs.",
                meaning="A key alone is looked for in each of them.",
                todo="Read the one record by its tenant, job and key.",
            )
    return places


def done(table: Table, since_ms: int, now_ms: int) -> Counter[str]:
    """Runs completed per job, in the seconds from that of `since_ms` to that of the millisecond before `now_ms`."""
    first, last = max(since_ms, now_ms - KEPT_MS) // 1000, (now_ms - 1) // 1000
    counted: Counter[str] = Counter()
    seconds = (*range(first, last, 3600), last)
    if table.layout == 1:
        partitions = [hour_of(second) for second in seconds]
    else:
        partitions = [done_of(job, second) for job in jobs(table) for second in seconds]
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
