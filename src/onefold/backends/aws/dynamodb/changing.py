"""One compare-and-set of a shared value: an UpdateItem on the condition that the version stands.

Each change leaves its own `stamp`, as a record's does: botocore makes a call whose answer was lost again, and a refusal that
shows this very stamp means that the first one took. Otherwise whoever has won would be told that somebody else has.

Never here: reading, and where values lie (`state.py`). Invariant: of the changes of one version, at most one is told that it
took; none, where its answer was lost and the value has changed again since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import botocore.exceptions

from onefold.backends.aws.dynamodb.items import TTL_ATTRIBUTE, Item, Value, number, stamp_of, ttl_of
from onefold.backends.aws.dynamodb.table import Table
from onefold.backends.aws.refusals import code_of
from onefold.backends.aws.session import aws_errors

if TYPE_CHECKING:
    from onefold.contracts.state import Change

# Placeholders: `value`, `name` and others are reserved words.
_NAMES = {"#version": "version", "#value": "value", "#name": "name", "#ttl": TTL_ATTRIBUTE, "#stamp": "stamp"}
_SETS = "SET #version = if_not_exists(#version, :zero) + :one, #name = :name, #stamp = :stamp"


def change(table: Table, place: Item, asked: Change) -> bool:
    """Make the change, unless its version stands no more; whether it took.

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
