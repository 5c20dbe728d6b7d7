"""Named values with versions in the table: the State contract.

All names are in the partition `~state`, sorted. A deleted name keeps its version for a day (time to live), so that a name
that comes back continues its count and a writer who read the old value cannot overwrite the new one. A name too long for a
sort key is cut there and distinguished by its digest; the attribute `name` has all of it.

A change is an UpdateItem on the condition that the version is current. Each leaves its own `stamp`, as a record's does:
botocore makes a call whose answer was lost again, and a refusal that shows this very stamp means that the first one took.
Otherwise the winner would believe that somebody else has won.

Never here: what the values mean. Invariant: a version that was replaced is never current again; of the changes of one
version, at most one is answered True, and none where its answer was lost and the value has changed again since.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import botocore.exceptions

from onefold.contracts.state import Change, Versioned, check
from onefold.engines.aws.dynamodb.items import SORT_KEY_BYTES_MAX, TTL_ATTRIBUTE, Item, Value, number, stamp_of, ttl_of
from onefold.engines.aws.dynamodb.table import Table
from onefold.engines.aws.session import aws_errors, code_of

if TYPE_CHECKING:
    from collections.abc import Sequence


# Placeholders: `value`, `name` and others are reserved words.
_NAMES = {"#version": "version", "#value": "value", "#name": "name", "#ttl": TTL_ATTRIBUTE, "#stamp": "stamp"}
_SETS = "SET #version = if_not_exists(#version, :zero) + :one, #name = :name, #stamp = :stamp"


def change(table: Table, place: Item, asked: Change) -> bool:
    """Make the change, unless its version is no longer current; returns whether it took.

    Args:
        place: of the value.

    Raises:
        NotFoundError, UsageError, TransientError: as `Table.call`.
    """
    stamp = table.entropy.token()
    values: dict[str, Value] = {
        ":zero": number(0),
        ":one": number(1),
        ":name": {"S": asked.name},
        ":stamp": {"S": stamp},
    }
    condition = "attribute_not_exists(#value)"
    if asked.expected:
        condition = "#version = :expected AND attribute_exists(#value)"
        values[":expected"] = number(asked.expected)
    if asked.value is None:
        expression = f"{_SETS}, #ttl = :ttl REMOVE #value"
        values[":ttl"] = ttl_of(table.clock.now_ms())
    else:
        expression = f"{_SETS}, #value = :value REMOVE #ttl"
        values[":value"] = {"S": asked.value.decode()}
    return _took(
        table,
        stamp,
        Key=place,
        UpdateExpression=expression,
        ConditionExpression=condition,
        ExpressionAttributeNames=_NAMES,
        ExpressionAttributeValues=values,
        ReturnValuesOnConditionCheckFailure="ALL_OLD",
    )


def _took(table: Table, stamp: str, **request: Any) -> bool:
    with aws_errors("dynamodb:UpdateItem", table.resource):
        try:
            table.client.update_item(TableName=table.name, **request)
        except botocore.exceptions.ClientError as error:
            if code_of(error) != "ConditionalCheckFailedException":
                raise
            return stamp_of(error.response.get("Item", {})) == stamp
    return True


PARTITION: Final = "~state"
_DIGEST_BYTES: Final = 65  # a mark and 64 hexadecimal characters
_CUT_BYTES: Final = SORT_KEY_BYTES_MAX - _DIGEST_BYTES


def _cut(name: str) -> str:
    """As much of a name as a sort key may begin with."""
    return name.encode()[:_CUT_BYTES].decode(errors="ignore")


def _place(name: str) -> Item:
    if len(name.encode()) > _CUT_BYTES:
        name = f"{_cut(name)}#{sha256(name.encode()).hexdigest()}"
    return {"pk": {"S": PARTITION}, "sk": {"S": name}}


class DynamoState:
    """The State contract on one table.

    Args:
        table: where the values are; its clock decides when a deleted name may be forgotten, its entropy draws stamps.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, names: Sequence[str]) -> list[Versioned | None]:
        """The current values, in order; None where absent. Strongly consistent, in one call for 100 names."""
        places = [_place(name) for name in dict.fromkeys(names)]
        found = {item["sk"]["S"]: item for item in self._table.get_all(places)}
        return [_versioned(found.get(_place(name)["sk"]["S"])) for name in names]

    def put(self, changes: Sequence[Change]) -> list[bool]:
        """Apply each change whose expected version is still current, one conditional write each.

        Raises:
            UsageError: a name or value is too long; nothing was changed.
            TransientError: throttled or unreachable; earlier changes were made.
        """
        for one in changes:
            check(one)
        return [
            self.get([one.name]) == [None]  # deleting what is not there
            if one.value is None and one.expected == 0
            else change(self._table, _place(one.name), one)
            for one in changes
        ]

    def names(self, prefix: str) -> list[str]:
        """All names that begin with `prefix`, sorted. Reads every value of theirs: for few and small ones."""
        arguments: dict[str, Any] = {
            "KeyConditionExpression": "pk = :pk",
            "FilterExpression": "attribute_exists(#value)",
            "ProjectionExpression": "#name",
            "ExpressionAttributeNames": {"#name": "name", "#value": "value"},
            "ExpressionAttributeValues": {":pk": {"S": PARTITION}},
        }
        if start := _cut(prefix):
            arguments["KeyConditionExpression"] += " AND begins_with(sk, :start)"
            arguments["ExpressionAttributeValues"][":start"] = {"S": start}
        found = (item["name"]["S"] for item in self._table.query(**arguments))
        return sorted(name for name in found if name.startswith(prefix))


def _versioned(item: Item | None) -> Versioned | None:
    if item is None or "value" not in item:
        return None
    return Versioned(int(item["version"]["N"]), item["value"]["S"].encode())
