"""A conditional write as PutItem or UpdateItem, and as an action of a transaction.

For a lone write, for emulators without batches of statements, for what PartiQL does not take, and for level 4.
Never here: calls, records. Invariant: a spelling here means the same as the statement (`writes.py`).

Sources: DynamoDB API reference, PutItem, UpdateItem, TransactWriteItems.
"""

from __future__ import annotations

from typing import Any

from onefold.backends.aws.dynamodb.items import Value
from onefold.backends.aws.dynamodb.writes import Insert, Write


def as_request(write: Write, table: str) -> dict[str, Any]:
    """The write as arguments of PutItem or UpdateItem; the same as `Put` or `Update` of a transaction."""
    request: dict[str, Any] = {"TableName": table, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    if isinstance(write, Insert):
        return request | {"Item": write.item, "ConditionExpression": "attribute_not_exists(pk)"}
    names: dict[str, str] = {}
    values: dict[str, Value] = {}

    def name_of(name: str) -> str:
        names[f"#{name}"] = name
        return f"#{name}"

    def value_of(label: str, value: Value) -> str:
        values[f":{label}"] = value
        return f":{label}"

    sets = [f"{name_of(name)} = {value_of(name, value)}" for name, value in write.sets.items()]
    sets += [f"{name_of(name)} = {name_of(name)} + {value_of(name, {'N': str(by)})}" for name, by in write.adds.items()]
    expression = f"SET {', '.join(sets)}"
    if write.removes:
        expression += f" REMOVE {', '.join(map(name_of, write.removes))}"
    conditions = [f"{name_of(name)} = {value_of(f'w_{name}', value)}" for name, value in write.where.items()]
    if write.differs is not None:
        name, value = write.differs
        conditions.append(f"{name_of(name)} <> {value_of(f'd_{name}', value)}")
    return request | {
        "Key": write.place,
        "UpdateExpression": expression,
        "ConditionExpression": " AND ".join(conditions),
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def as_action(write: Write, table: str) -> dict[str, Any]:
    """The write as one action of TransactWriteItems."""
    return {"Put" if isinstance(write, Insert) else "Update": as_request(write, table)}
