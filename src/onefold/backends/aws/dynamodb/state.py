"""Named values with versions in the table: the State contract.

All names stand in the partition `~state`, sorted. A deleted name keeps its version for a day (time to live), so that a name
that comes back goes on counting and a writer who read the old value cannot overwrite the new one. A name too long for a
sort key is cut there and told apart by its digest; the attribute `name` has all of it.

Each change leaves its own `stamp`, as a record's does: botocore makes a call whose answer was lost again, and a refusal that
shows this very stamp means that the first one took. Otherwise whoever has won would be told that somebody else has.

Never here: what the values mean. Invariant: a version that was replaced never fits again.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

import botocore.exceptions

from onefold.backends.aws.dynamodb.items import (
    SORT_KEY_BYTES_MAX,
    TTL_ATTRIBUTE,
    Item,
    Value,
    number,
    stamp_of,
    ttl_of,
)
from onefold.backends.aws.dynamodb.table import Table
from onefold.backends.aws.session import aws_errors, code_of
from onefold.contracts.state import Change, Versioned, check

PARTITION: Final = "~state"
_DIGEST_BYTES: Final = 65  # a mark and 64 hexadecimal characters
_CUT_BYTES: Final = SORT_KEY_BYTES_MAX - _DIGEST_BYTES
# Placeholders: `value`, `name` and others are reserved words.
_NAMES: Final = {"#version": "version", "#value": "value"}


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
        table: where the values stand; its clock tells when a deleted name may be forgotten, its entropy draws stamps.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, names: Sequence[str]) -> list[Versioned | None]:
        """The values as they stand, in order; None where absent. Strongly consistent, in one call for 100 names."""
        places = [_place(name) for name in dict.fromkeys(names)]
        found = {item["sk"]["S"]: item for item in self._table.get_all(places)}
        return [_versioned(found.get(_place(name)["sk"]["S"])) for name in names]

    def put(self, changes: Sequence[Change]) -> list[bool]:
        """Apply each change whose expected version still stands, one conditional write each.

        Raises:
            UsageError: a name or value is too long; nothing was changed.
            TransientError: throttled or unreachable; earlier changes stand.
        """
        for change in changes:
            check(change)
        return [self._put(change) for change in changes]

    def _put(self, change: Change) -> bool:
        if change.value is None and change.expected == 0:  # deleting what is not there
            return self.get([change.name]) == [None]
        if change.expected == 0:
            condition, values = "attribute_not_exists(#value)", {}
        else:
            condition, values = (
                "#version = :expected AND attribute_exists(#value)",
                {":expected": number(change.expected)},
            )
        return self._update(change, condition, values)

    def _update(self, change: Change, condition: str, values: dict[str, Value]) -> bool:
        values = {**values, ":zero": number(0), ":one": number(1)}
        names = {**_NAMES, "#name": "name", "#ttl": TTL_ATTRIBUTE, "#stamp": "stamp"}
        sets = "SET #version = if_not_exists(#version, :zero) + :one, #name = :name, #stamp = :stamp"
        stamp = self._table.entropy.token()
        values |= {":name": {"S": change.name}, ":stamp": {"S": stamp}}
        if change.value is None:
            expression = f"{sets}, #ttl = :ttl REMOVE #value"
            values[":ttl"] = ttl_of(self._table.clock.now_ms())
        else:
            expression = f"{sets}, #value = :value REMOVE #ttl"
            values[":value"] = {"S": change.value.decode()}
        return self._apply(
            stamp,
            Key=_place(change.name),
            UpdateExpression=expression,
            ConditionExpression=condition,
            ExpressionAttributeNames=names,
            ExpressionAttributeValues=values,
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )

    def _apply(self, stamp: str, **request: Any) -> bool:
        with aws_errors("dynamodb:UpdateItem", self._table.resource):
            try:
                self._table.client.update_item(TableName=self._table.name, **request)
            except botocore.exceptions.ClientError as error:
                if code_of(error) != "ConditionalCheckFailedException":
                    raise
                return stamp_of(error.response.get("Item", {})) == stamp
        return True

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
