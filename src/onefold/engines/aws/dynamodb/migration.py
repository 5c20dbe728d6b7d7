"""Moving a table from layout 1 to layout 2 (`items.py`): each record and each note gets a copy where layout 2 reads it.

There are three passes over the table. The first only reads: nothing is written while a run holds a lease. The second
copies, and the table still has layout 1. Then the table is closed to processes that open it now (`schema.py`), and the
third pass is repeated until it finds an exact copy of every record; then the table has layout 2. The next migration
continues one that was interrupted: what has a copy is not written again. The old items stay; items that expire are
removed by time to live.

Processes of layout 1 that are already running are not stopped by this, so the caller must stop them first. A record
that one of them writes during the passes is found by its `stamp` and copied again, and a lease ends the attempt.
Never here: questions to people. Invariant: a copy that a process of layout 2 has changed is never overwritten, and the
table is marked as one of layout 2 only after a pass in which each record had its copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import botocore.exceptions
import msgspec
from msgspec import Struct

from onefold import errors
from onefold.contracts.store import RecordKey
from onefold.engines.aws.dynamodb import notes, schema
from onefold.engines.aws.dynamodb.items import (
    MARKER,
    RECORD_SORT_KEY,
    Item,
    item_key_of,
    key_of,
    names_of,
    number,
    stamp_of,
)
from onefold.engines.aws.dynamodb.table import GETS_MAX, ConditionFailed, Insert, Table
from onefold.engines.aws.session import aws_errors, code_of

PASSES_MAX: Final = 5
REPORTED_EVERY: Final = 10_000  # items
_COPIED: Final = "copied"  # attribute of a copy: the stamp of the record that was copied

Report = Callable[[str], None]


class LayoutSurvey(Struct, frozen=True, kw_only=True):
    """The result of one pass.

    Args:
        records: records of layout 1. notes: notes to be written. copied: records copied by this pass.
        running: records whose lease has not ended. lease_until_ms: when the last of them ends; 0 for none.
        done: whether the table already has layout 2.
    """

    records: int = 0
    notes: int = 0
    copied: int = 0
    running: int = 0
    lease_until_ms: int = 0
    done: bool = False


def survey(table: Table, report: Report) -> LayoutSurvey:
    """Find out what would be moved; nothing is written.

    Args:
        table: a bare table (`Table.bare`).

    Raises:
        NotFoundError, UsageError, TransientError: as for `Table.call`.
    """
    if _is_done(table):
        return LayoutSurvey(done=True)
    return _pass(table, report, writes=False)


def migrate(table: Table, report: Report) -> LayoutSurvey:
    """Move the table to layout 2; if it was interrupted, call it again.

    Returns:
        The result of the last pass, in which all records have their copy.

    Raises:
        UsageError: a run holds a lease, or records are written all the time; the table still has layout 1.
        StorageError: copies were changed although the table never had layout 2.
        NotFoundError, TransientError: as for `Table.call`; what was copied stays, and the next call continues.
    """
    if _is_done(table):
        return LayoutSurvey(done=True)
    _refuse_running(table, _pass(table, report, writes=False))
    report("copying")
    _pass(table, report, writes=True)
    _close(table)
    for _ in range(PASSES_MAX):
        report("comparing")
        found = _pass(table, report, writes=True)
        if found.running:
            _open_again(table)
            _refuse_running(table, found)
        if not found.copied:
            if schema.put_marker(table, {"layout": number(2)}, "attribute_exists(moving)") or _is_done(table):
                return found
            _close(table)  # another migration has opened it again
    _open_again(table)
    raise errors.UsageError(
        f"Records of the table {table.name} were written during each of {PASSES_MAX} passes.",
        meaning="Processes of layout 1 are still running. The table still has layout 1; the copies do no harm.",
        todo="Stop all workers and functions of the app, then run this again.",
    )


def _is_done(table: Table) -> bool:
    item = table.get(MARKER)
    return item is not None and "moving" not in item and item["layout"]["N"] == "2"


def _close(table: Table) -> None:
    schema.put_marker(
        table,
        {"layout": number(1), "moving": {"BOOL": True}},
        "attribute_not_exists(pk) OR layout = :one",
        one=number(1),
    )


def _open_again(table: Table) -> None:
    schema.put_marker(table, {"layout": number(1)}, "attribute_exists(moving)")


def _refuse_running(table: Table, found: LayoutSurvey) -> None:
    if found.running:
        left_s = max(0, found.lease_until_ms - table.clock.now_ms()) // 1000 + 1
        raise errors.UsageError(
            f"{found.running} of the records of the table {table.name} belong to runs that hold a lease.",
            meaning="They are still working, or died. Nothing was moved: the table still has layout 1.",
            todo=f"Stop all workers and functions of the app. The last lease ends in {left_s} s; then run this again.",
        )


def _pass(table: Table, report: Report, *, writes: bool) -> LayoutSurvey:
    """One pass over the table; with `writes`, what is missing is written."""
    seen = records = other = copied = running = lease_until_ms = 0
    now_ms = table.clock.now_ms()
    named: set[tuple[str | None, str]] = set()
    for some in _chunks(table.scan(None), GETS_MAX):
        old = [item for item in some if "fence" in item and item["sk"]["S"] != RECORD_SORT_KEY]
        beside = [copy for item in some for copy in _notes_of(item)]
        for item in old:
            key = key_of(item)
            until_ms = int(item["lease_until"]["N"])
            if item["status"]["S"] == "in_progress" and until_ms > now_ms:
                running, lease_until_ms = running + 1, max(lease_until_ms, until_ms)
            new = {(None, key.job), (key.scope, key.job)} - named
            named |= new
            beside += [notes.named_item(one, 2) for one in new]
        records, other = records + len(old), other + len(beside)
        if writes:
            copied += _copied(table, old)
            table.put_all(list({(one["pk"]["S"], one["sk"]["S"]): one for one in beside}.values()))
        if seen // REPORTED_EVERY != (seen + len(some)) // REPORTED_EVERY:
            report(f"{seen + len(some):,} items, {records:,} records, {copied:,} copied")
        seen += len(some)
    return LayoutSurvey(records=records, notes=other, copied=copied, running=running, lease_until_ms=lease_until_ms)


def _notes_of(item: Item) -> list[Item]:
    """The notes of layout 2 for a note of layout 1; empty for any other item."""
    partition = item["pk"]["S"]
    if partition == notes.HELD:
        return [notes.held_item(msgspec.json.decode(item["operation"]["S"], type=RecordKey), 2)]
    if partition == notes.JOBS:
        scope, job = item["scope"]["S"], item["job"]["S"]
        return [notes.named_item((None, job), 2), notes.named_item((scope, job), 2)]
    if partition.startswith(notes.DONE):
        stamp = item["sk"]["S"]
        second = int(stamp.partition("#")[0])
        counts = notes.counts_of(item)
        return [notes.done_item(notes.done_of(job, second), stamp, {job: runs}) for job, runs in counts.items()]
    return []


def _copied(table: Table, records: list[Item]) -> int:
    """Write the copies that are missing or older than their record; returns how many."""
    copies = [_copy(item) for item in records]
    item_keys = {(one["pk"]["S"], one["sk"]["S"]): one for one in copies}
    found = table.get_all([{"pk": one["pk"], "sk": one["sk"]} for one in copies])
    existing = {(one["pk"]["S"], one["sk"]["S"]): one for one in found}
    missing = [one for item_key, one in item_keys.items() if item_key not in existing]
    older = [
        one
        for item_key, one in item_keys.items()
        if item_key in existing and existing[item_key].get(_COPIED) != one[_COPIED]
    ]
    for one, answer in zip(missing, table.write([Insert(one) for one in missing]), strict=True):
        if isinstance(answer, ConditionFailed):
            raise _touched(one)
        if answer is not None:
            raise answer
    for one in older:
        _replace(table, one)
    for item_key, one in existing.items():
        if one.get(_COPIED) == item_keys[item_key][_COPIED] and stamp_of(one) != one[_COPIED]["S"]:
            raise _touched(one)
    return len(missing) + len(older)


def _copy(item: Item) -> Item:
    key = key_of(item)
    rest = {name: value for name, value in item.items() if name not in ("pk", "sk", "key")}
    return {**item_key_of(key, 2), **names_of(key, 2), **rest, _COPIED: {"S": stamp_of(item)}}


def _replace(table: Table, copy: Item) -> None:
    """Replace an older copy by a newer one, unless a process of layout 2 has changed it."""
    condition = f"stamp = {_COPIED}"
    with aws_errors("dynamodb:PutItem", table.resource):
        try:
            table.client.put_item(TableName=table.name, Item=copy, ConditionExpression=condition)
        except botocore.exceptions.ClientError as error:
            if code_of(error) != "ConditionalCheckFailedException":
                raise
            raise _touched(copy) from error


def _touched(item: Item) -> errors.StorageError:
    key = key_of(item)
    return errors.StorageError(
        f"The copy of the record of {key.job} {key.key!r} was written by another process while records were moved.",
        meaning="Two migrations ran at the same time, or a process of layout 2 was running. It was not changed.",
        todo="Let one of them end. If none runs, look at both items before you continue.",
    )


def _chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    rest = iter(items)
    while some := list(itertools.islice(rest, size)):
        yield some
