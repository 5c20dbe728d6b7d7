"""History in the table: the Ledger contract.

A row is stored once for each way in which it is found: under its business key (`~key#KEY`, sorted by scope, job, time),
under its run (`~run#RUN`) and under its day (`~day#2026-11-21`), each with a Query of one partition. At level `brief`
there are few rows, because they only report what a record cannot show; at level `full` a day's partition accepts about
1,000 rows/s, which is DynamoDB's limit for one partition; in layout 2 a day is split into 16 parts by key
(`~day#2026-11-21#SHARD`). The days that have rows are named in the partition `~days`, so that reading a span of years
does not query each day. DynamoDB's time to live removes rows after 90 days, the same time for which
records of completed work are kept by default.

Never here: what a row means. Invariant: no row is changed; rows that one process appended at one instant keep their order.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec

from onefold import limits
from onefold.contracts.ledger import Row, tally_of
from onefold.engines.aws.dynamodb.items import (
    PARTITION_KEY_BYTES_MAX,
    SORT_KEY_BYTES_MAX,
    TTL_ATTRIBUTE,
    escaped,
    ttl_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from onefold.contracts.store import RecordKey
    from onefold.engines.aws.dynamodb.items import Item
    from onefold.engines.aws.dynamodb.table import Table

KEPT_MS: Final = 90 * limits.DAY_MS
_DAYS: Final = "~days"
_SHARDS: Final = 16  # partitions of a day in layout 2
_DAYS_MAX: Final = "9999-12-31"
_MS_MAX: Final = 253_402_300_799_999  # the last millisecond of _DAYS_MAX
_INSTANT_DIGITS: Final = 15
_ORDER_BYTES: Final = 15 + 1 + 16 + 1 + 10 + 2  # instant, writer, number, and their separators


class DynamoLedger:
    """The Ledger contract on one table.

    Args:
        table: where the rows are.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._writer = table.entropy.token()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._days: set[str] = set()  # days that this process has already written

    def append(self, rows: Sequence[Row]) -> None:
        """Write rows durably, in order, 25 items to a call.

        Raises:
            TransientError, NotFoundError, UsageError: some rows may be stored; another call writes those a second time.
        """
        self._table.put_all([*self._new_days(rows), *self.items(rows)])
        self._name(rows)

    def prepare(self, rows: Sequence[Row]) -> None:
        """Name the days of rows whose `items` somebody else's transaction will write; errors as for `append`."""
        if days := self._new_days(rows):
            self._table.put_all(days)
            self._name(rows)

    def _new_days(self, rows: Sequence[Row]) -> list[Item]:
        last = {_day(row.at_ms): row.at_ms for row in rows}
        return [
            {"pk": {"S": _DAYS}, "sk": {"S": day}, TTL_ATTRIBUTE: ttl_of(at_ms + KEPT_MS + limits.DAY_MS)}
            for day, at_ms in last.items()
            if day not in self._days
        ]

    def _name(self, rows: Sequence[Row]) -> None:
        with self._lock:
            self._days |= {_day(row.at_ms) for row in rows}

    def items(self, rows: Sequence[Row]) -> list[Item]:
        """The items of these rows, without the items that name their days."""
        items: list[Item] = []
        for row in rows:
            order = self._order(row.at_ms)
            body: Item = {"row": {"S": msgspec.json.encode(row).decode()}, TTL_ATTRIBUTE: ttl_of(row.at_ms + KEPT_MS)}
            item_keys = [(self._day_partition(row), order)]
            if row.key is not None:
                item_keys.append((_key_partition(row.key.key), f"{_operation(row.key)}{order}"))
            if row.run is not None:
                item_keys.append((_run_partition(row.run), order))
            items += [{"pk": {"S": partition}, "sk": {"S": sort_key}, **body} for partition, sort_key in item_keys]
        return items

    def _day_partition(self, row: Row) -> str:
        day = f"~day#{_day(row.at_ms)}"
        if self._table.layout == 1 or row.key is None:
            return day
        return f"{day}#{crc32(row.key.key.encode()) % _SHARDS}"

    def _order(self, at_ms: int) -> str:
        with self._lock:
            return f"{at_ms:0{_INSTANT_DIGITS}d}#{self._writer}#{next(self._numbers):010d}"

    # -- reads ---------------------------------------------------------------------------------------------------------

    def of_key(self, key: RecordKey, limit: int = 1000) -> list[Row]:
        """The rows of one operation, oldest first."""
        rows = self._rows(_key_partition(key.key), "begins_with(sk, :first)", _operation(key))
        return list(itertools.islice(rows, limit))

    def of_run(self, run: str, limit: int = 1000, after: int = 0) -> list[Row]:
        """The rows of one run, oldest first; `after` skips that many, which are still read."""
        return list(itertools.islice(self._rows(_run_partition(run)), after, after + limit))

    def walk_run(self, run: str, page: int = 1000) -> Iterator[list[Row]]:
        """All rows of one run, oldest first, page by page, read once from beginning to end."""
        rows = self._rows(_run_partition(run))
        while found := list(itertools.islice(rows, page)):
            yield found

    def tally(self, run: str) -> Mapping[str, int]:
        """How many operations of a run have each outcome; reads all its rows, about 1 MiB in one Query."""
        return tally_of(self._rows(_run_partition(run)))

    def between(self, from_ms: int, to_ms: int, limit: int = 1000) -> list[Row]:
        """Rows with from_ms <= at_ms < to_ms, oldest first."""
        if from_ms >= to_ms:
            return []
        first, last = (f"{at_ms:0{_INSTANT_DIGITS}d}" for at_ms in (from_ms, to_ms - 1))
        rows = (
            row
            for day in self._days_between(_day(from_ms), _day(to_ms - 1))
            for row in self._of_day(day, first, f"{last}~")
        )
        return list(itertools.islice(rows, limit))

    def _of_day(self, day: str, first: str, last: str) -> Iterator[Row]:
        """The rows of a day between two instants, oldest first; in layout 2 also rows written in layout 1."""
        shards = range(_SHARDS if self._table.layout == 2 else 0)
        partitions = [f"~day#{day}", *(f"~day#{day}#{shard}" for shard in shards)]
        found = [self._items(one, "sk BETWEEN :first AND :last", first, last) for one in partitions]
        return map(_row_of, heapq.merge(*found, key=lambda item: str(item["sk"]["S"])))

    def find_keys(self, text: str, limit: int = 20) -> list[RecordKey]:
        """Operations whose business key is exactly `text`, by scope and job; one small Query each."""
        found: list[RecordKey] = []
        after = "\x00"
        while len(found) < limit:
            row = next(self._rows(_key_partition(text), "sk > :first", after, page=1), None)
            if row is None:
                break
            assert row.key is not None
            found.append(row.key)
            after = f"{_operation(row.key)}~"  # comes after every instant of this operation
        return found

    def _days_between(self, first: str, last: str) -> Iterator[str]:
        condition = "pk = :pk AND sk BETWEEN :first AND :last"
        values = {":pk": {"S": _DAYS}, ":first": {"S": first}, ":last": {"S": last}}
        for item in self._table.query(KeyConditionExpression=condition, ExpressionAttributeValues=values):
            yield item["sk"]["S"]

    def _rows(
        self, partition: str, condition: str = "", first: str = "", last: str = "", *, page: int | None = None
    ) -> Iterator[Row]:
        return map(_row_of, self._items(partition, condition, first, last, page=page))

    def _items(
        self, partition: str, condition: str = "", first: str = "", last: str = "", *, page: int | None = None
    ) -> Iterator[Item]:
        values = {":pk": {"S": partition}}
        values |= {name: {"S": text} for name, text in ((":first", first), (":last", last)) if text}
        arguments: dict[str, Any] = {
            "KeyConditionExpression": f"pk = :pk AND {condition}" if condition else "pk = :pk",
            "ExpressionAttributeValues": values,
        }
        if page is not None:
            arguments["Limit"] = page
        return self._table.query(**arguments)


def _row_of(item: Item) -> Row:
    return msgspec.json.decode(item["row"]["S"], type=Row)


def _day(at_ms: int) -> str:
    if not 0 <= at_ms <= _MS_MAX:
        return "0000-00-00" if at_ms < 0 else _DAYS_MAX
    return datetime.fromtimestamp(at_ms // 1000, tz=UTC).strftime("%Y-%m-%d")


def _partition(kind: str, text: str) -> str:
    full = f"~{kind}#{text}"
    if len(full.encode()) <= PARTITION_KEY_BYTES_MAX:
        return full
    return f"~{kind}#sha256:{sha256(text.encode()).hexdigest()}"


def _key_partition(key: str) -> str:
    return _partition("key", key)


def _run_partition(run: str) -> str:
    return _partition("run", run)


def _operation(key: RecordKey) -> str:
    """The beginning of the sort keys of an operation's rows within the partition of its business key."""
    text = f"{escaped(key.scope)}#{escaped(key.job)}#"
    if len(text.encode()) + _ORDER_BYTES <= SORT_KEY_BYTES_MAX:
        return text
    return f"sha256:{sha256(text.encode()).hexdigest()}##"
