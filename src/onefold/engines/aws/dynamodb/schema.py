"""The table itself: created for an emulator or a developer, checked before use, and marked with its layout.

In production the output of `onefold synth` creates the table; `definition` describes the same table for both.

The item `~layout` records which layout a table has (`items.py`); each process reads it once, before its first other
call. A process of one layout on a table of the other would not see the records of finished work, and would do the work
again. So it refuses. A table without the item has layout 1, because it was made before there was another, unless it is
empty: then a process of layout 2 gives it layout 2.

Never here: records, and moving them (`migration.py`). Invariant: nothing is created unless it was asked for, and of an
existing table only the time to live is ever changed; no record is written in layout 2 before the item says 2, and the
item says 2 only if there was no record of layout 1, or each one has its copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import botocore.exceptions

from onefold import errors
from onefold.engines.aws.dynamodb.items import MARKER, TTL_ATTRIBUTE, number
from onefold.engines.aws.dynamodb.table import Table
from onefold.engines.aws.session import aws_errors, code_of

if TYPE_CHECKING:
    from onefold.engines.aws.dynamodb.items import Item, Value


def check_layout(table: Table) -> None:
    """Make sure that the table has the layout of this process.

    Args:
        table: a bare table (`Table.bare`).

    Raises:
        UsageError: it has the other layout, or is being migrated; nothing was written.
        NotFoundError, TransientError: as for `Table.call`.
    """
    item = table.get(MARKER)
    if item is None and table.layout == 2:
        item = _begun(table)
    if item is None:
        return
    if "moving" in item:
        raise errors.UsageError(
            f"The records of the table {table.name} are being moved to layout 2.",
            meaning="Records are written in two places until the move has ended. Nothing was read or written.",
            todo="Wait until `onefold records migrate` has ended; if it was interrupted, run it again.",
        )
    found = int(item["layout"]["N"])
    if found != table.layout:
        raise layout_mismatch(table, found)


def _begun(table: Table) -> Item | None:
    """Mark an empty table with this process's layout; returns the marker.

    Raises:
        UsageError: the table is not empty.
    """
    if table.call("scan", Select="COUNT", Limit=1, ConsistentRead=True)["Count"]:
        item = table.get(MARKER)  # another process may have marked it meanwhile
        if item is None:
            raise layout_mismatch(table, 1)
        return item
    mark_layout(table)
    return table.get(MARKER)


def mark_layout(table: Table) -> None:
    """Mark a new table with this process's layout; a table that is already marked is not changed."""
    put_marker(table, {"layout": number(table.layout)}, "attribute_not_exists(pk)")


def put_marker(table: Table, attributes: Item, condition: str, **values: Value) -> bool:
    """Write the marker if this condition on the stored marker holds; returns whether it did.

    Args:
        values: the values of the condition's placeholders, by name, without the colon.
    """
    request: dict[str, Any] = {"Item": {**MARKER, **attributes}, "ConditionExpression": condition}
    if values:
        request["ExpressionAttributeValues"] = {f":{name}": value for name, value in values.items()}
    with aws_errors("dynamodb:PutItem", table.resource):
        try:
            table.client.put_item(TableName=table.name, **request)
        except botocore.exceptions.ClientError as error:
            if code_of(error) != "ConditionalCheckFailedException":
                raise
            return False
    return True


def layout_mismatch(table: Table, found: int) -> errors.UsageError:
    """The error for a process whose layout is not the table's."""
    if found == 1:
        todo = f"Leave layout=2 out of its URL, or move its records first: onefold records migrate 'dynamodb://REGION/{table.name}'."
    else:
        todo = f"Add layout={found} to its URL, for example dynamodb://REGION/{table.name}?layout={found}."
    return errors.UsageError(
        f"The table {table.name} has records of layout {found}, and this process was given layout {table.layout}.",
        meaning="It would not see what is already done, and would do it again. Nothing was written.",
        todo=todo,
    )


PARTITION_KEY: Final = "pk"
SORT_KEY: Final = "sk"
_USABLE: Final = frozenset({"ACTIVE", "UPDATING"})  # API DescribeTable, TableStatus: both allow reads and writes


def definition(name: str) -> dict[str, Any]:
    """The table as arguments of CreateTable: two text keys, paid per request."""
    return {
        "TableName": name,
        "KeySchema": [
            {"AttributeName": PARTITION_KEY, "KeyType": "HASH"},
            {"AttributeName": SORT_KEY, "KeyType": "RANGE"},
        ],
        "AttributeDefinitions": [
            {"AttributeName": PARTITION_KEY, "AttributeType": "S"},
            {"AttributeName": SORT_KEY, "AttributeType": "S"},
        ],
        "BillingMode": "PAY_PER_REQUEST",
    }


def create(table: Table) -> None:
    """Create the table with time to live and its layout, and wait until it can be used; an existing one is not changed.

    Raises:
        UsageError: not allowed.
        TransientError: it was not ready after some seconds.
    """
    made = make(table)
    if _ttl_attribute(table) is None:
        table.call("update_time_to_live", TimeToLiveSpecification={"Enabled": True, "AttributeName": TTL_ATTRIBUTE})
    if made:
        mark_layout(table)


def make(table: Table) -> bool:
    """Create only the table, and wait until it can be used; returns whether it was created. Errors as for `create`."""
    made = True
    with aws_errors("dynamodb:CreateTable", table.resource):
        try:
            table.client.create_table(**definition(table.name))
        except botocore.exceptions.ClientError as error:
            if code_of(error) != "ResourceInUseException":
                raise
            made = False
    for _ in table.tries():
        if table.call("describe_table")["Table"]["TableStatus"] in _USABLE:
            return made
    raise errors.TransientError(f"The table {table.name} is still being created.", todo="Try again in a minute.")


def check(table: Table) -> list[str]:
    """Check that the table is what onefold needs.

    Returns:
        Warnings for people about what works now but will cause trouble.

    Raises:
        NotFoundError: the table does not exist in this region and account.
        StorageError: it has another primary key, or is being deleted.
        UsageError: no permission or credentials.
        TransientError: unreachable.
    """
    found = table.call("describe_table")["Table"]
    types = {one["AttributeName"]: one["AttributeType"] for one in found["AttributeDefinitions"]}
    schema = [(one["KeyType"], one["AttributeName"], types.get(one["AttributeName"])) for one in found["KeySchema"]]
    if sorted(schema) != [("HASH", PARTITION_KEY, "S"), ("RANGE", SORT_KEY, "S")]:
        has = ", ".join(f"{name} ({kind}, {role})" for role, name, kind in schema)
        raise errors.StorageError(
            f"The table {table.name} has the primary key {has}.",
            meaning="Onefold needs pk (S, HASH) and sk (S, RANGE). Nothing was written.",
            todo="Give onefold its own table: onefold deploy makes one; a primary key cannot be changed.",
        )
    if found["TableStatus"] not in _USABLE:
        raise errors.StorageError(
            f"The table {table.name} is {found['TableStatus']}.", todo="Wait until it is ACTIVE, or create it again."
        )
    return _ttl_warnings(table)


def _ttl_warnings(table: Table) -> list[str]:
    try:
        attribute = _ttl_attribute(table)
    except errors.UsageError as error:
        return [f"Whether {table.name} removes old records is not known: {error.what}"]
    if attribute == TTL_ATTRIBUTE:
        return []
    now = f"removes old items by the attribute {attribute!r}" if attribute else "does not remove old items"
    text = f"The table {table.name} {now}: records stay for ever and cost money."
    return [f"{text} Enable time to live on the attribute {TTL_ATTRIBUTE!r}."]


def _ttl_attribute(table: Table) -> str | None:
    found = table.call("describe_time_to_live")["TimeToLiveDescription"]
    if found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING"):
        return str(found.get("AttributeName"))
    return None
