"""The outbox in its own DynamoDB table: an item that a program adds to its transaction, and a relay's reads.

    pk  <app>/<shard>      sk  <number>.<token>    queue, message       a message that waits
    pk  <app>/refused      sk  the same                                 a message put aside; `refused` has the reason
    pk  ~outbox            sk  ~outbox             version, token       about the table itself

A relay queries the shards of its app, so that nothing is scanned; messages for one message group, or with one key, are
in one shard. Numbers come from the sender's clock: of two successive transactions the later one has the higher number,
always within one process, and otherwise as far as the clocks of the two machines agree.
Never here: queues, the program's own items. Invariant: a read sees everything that was committed before it.

Sources: DynamoDB API reference, TransactWriteItems; developer guide, "Query" (strongly consistent on a table), "Limits" (an
item 400 KB, a partition 1,000 write units a second).
"""

from __future__ import annotations

import heapq
import itertools
import json
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final
from zlib import crc32

from onefold import errors
from onefold.contracts.outbox import VERSION, Backlog, OutboxRow, RowId
from onefold.engines.aws.dynamodb import schema
from onefold.engines.aws.dynamodb.items import Item
from onefold.engines.aws.dynamodb.table import Insert, Table

SHARDS: Final = 4
_MESSAGE_BYTES_MAX: Final = 390_000
_COUNTED_BITS: Final = 20
_MARKER: Final = {"pk": {"S": "~outbox"}, "sk": {"S": "~outbox"}}

_numbering = threading.Lock()
_last = [0]


def put_action(
    table: str, app: str, queue: str, message: str, together: str, now_ms: int, token: str
) -> dict[str, Any]:
    """The action of TransactWriteItems that writes a message into an outbox.

    Args:
        together: messages with the same text keep their order: the message group, or the key.

    Raises:
        PayloadError: it is too large for an item.
    """
    if (size := len(message.encode())) > _MESSAGE_BYTES_MAX:
        raise errors.PayloadError(
            f"The message has {size:,} bytes; an item in DynamoDB has room for {_MESSAGE_BYTES_MAX:,}.",
            meaning="Nothing was sent.",
            todo="Store the payload on S3, and send its location.",
        )
    with _numbering:
        _last[0] = number = max(now_ms << _COUNTED_BITS, _last[0] + 1)
    item = {
        "pk": {"S": f"{app}/{crc32(together.encode()) % SHARDS}"},
        "sk": {"S": f"{number:019d}.{token}"},
        "queue": {"S": queue},
        "message": {"S": message},
    }
    return {"Put": {"TableName": table, "Item": item}}


def definition(table: str) -> str:
    """The arguments of CreateTable, as JSON."""
    return json.dumps(schema.definition(table), indent=2) + "\n"


class DynamoOutbox:
    """The OutboxTable contract on one table.

    Args:
        table: a table with the primary key `pk`, `sk` and without time to live.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._token: str | None = None

    def create(self) -> None:
        """Create the table if it does not exist."""
        schema.make(self._table)
        marker = _MARKER | {"version": {"N": str(VERSION)}, "token": {"S": self._table.entropy.token()}}
        for answer in self._table.write([Insert(marker)]):
            if isinstance(answer, errors.OnefoldError):
                raise answer
        self._token = None

    @property
    def token(self) -> str:
        """See `OutboxTable.token`."""
        if self._token is None:
            try:
                found = self._table.get(_MARKER)
            except errors.NotFoundError as error:
                raise self._missing() from error
            if found is None:
                raise self._missing()
            if int(found["version"]["N"]) != VERSION:
                raise errors.StorageError(
                    f"The outbox in the table {self._table.name} does not have version {VERSION}, which this onefold uses.",
                    meaning="The messages in it stay there.",
                    todo="Use the version of onefold that created it.",
                )
            self._token = found["token"]["S"]
        return self._token

    def _missing(self) -> errors.StorageError:
        return errors.StorageError(
            f"The table {self._table.name} does not exist, or is not an outbox.",
            meaning="Nothing can be sent from it.",
            todo="Create it once: onefold outbox create dynamodb://REGION/TABLE",
        )

    def waiting(self, app: str, queues: Collection[str], limit: int) -> list[OutboxRow]:
        """See `OutboxTable.waiting`."""
        shards = [self._rows_of(f"{app}/{shard}", queues, limit) for shard in range(SHARDS)]
        return list(itertools.islice(heapq.merge(*shards), limit))

    def _rows_of(self, partition: str, queues: Collection[str], limit: int) -> Iterator[OutboxRow]:
        for item in self._table.query(**_in(partition), Limit=limit):
            if item["queue"]["S"] in queues:
                number, _, token = item["sk"]["S"].partition(".")
                yield OutboxRow(RowId(int(number), f"{partition} {token}"), item["queue"]["S"], item["message"]["S"])

    def remove(self, ids: Sequence[RowId]) -> None:
        """See `OutboxTable.remove`."""
        self._table.delete_all([_place(one) for one in ids])

    def refuse(self, row: RowId, why: str) -> None:
        """See `OutboxTable.refuse`."""
        place = _place(row)
        item = self._table.get(place)
        if item is None:
            return
        aside = item | {"pk": {"S": f"{item['pk']['S'].rpartition('/')[0]}/refused"}, "refused": {"S": why}}
        self._table.transact([{"Put": {"Item": aside}}, {"Delete": {"Key": place}}])

    def backlog(self, app: str) -> Backlog:
        """See `OutboxTable.backlog`."""
        shards = [f"{app}/{shard}" for shard in range(SHARDS)]
        waiting = sum(map(self._count, shards))
        firsts = [item for one in shards for item in itertools.islice(self._table.query(**_in(one), Limit=1), 1)]
        oldest_ms = min((int(one["sk"]["S"].partition(".")[0]) >> _COUNTED_BITS for one in firsts), default=None)
        return Backlog(
            waiting=waiting,
            oldest_age_ms=None if oldest_ms is None else max(self._table.clock.now_ms() - oldest_ms, 0),
            refused=self._count(f"{app}/refused"),
        )

    def _count(self, partition: str) -> int:
        start: dict[str, Any] = {}
        count = 0
        while True:
            answer = self._table.call("query", **_in(partition), Select="COUNT", ConsistentRead=True, **start)
            count += int(answer["Count"])
            if not (last := answer.get("LastEvaluatedKey")):
                return count
            start = {"ExclusiveStartKey": last}

    def wait(self, rest: Callable[[int], bool], at_most_ms: int) -> None:
        """Like `OutboxTable.wait`; DynamoDB sends no notice of a change, so this only waits."""
        rest(at_most_ms)

    def close(self) -> None:
        """Close the client's connections. Idempotent."""
        self._table.close()


def _in(partition: str) -> dict[str, Any]:
    return {"KeyConditionExpression": "pk = :pk", "ExpressionAttributeValues": {":pk": {"S": partition}}}


def _place(row: RowId) -> Item:
    partition, _, token = row.token.rpartition(" ")
    return {"pk": {"S": partition}, "sk": {"S": f"{row.number:019d}.{token}"}}
