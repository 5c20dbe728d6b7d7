"""The table itself: made where an emulator or a developer wants it, and looked at before it is used.

What production has is written by `onefold synth`; `definition` is the same table for both. Never here: records.
Invariant: nothing is created unless it was asked for, and an existing table is never changed but for its time to live.
"""

from __future__ import annotations

from typing import Any, Final

import botocore.exceptions

from onefold import errors
from onefold.backends.aws.dynamodb import marker
from onefold.backends.aws.dynamodb.items import TTL_ATTRIBUTE
from onefold.backends.aws.dynamodb.table import Table
from onefold.backends.aws.refusals import code_of
from onefold.backends.aws.session import aws_errors

PARTITION_KEY: Final = "pk"
SORT_KEY: Final = "sk"
_USABLE: Final = frozenset({"ACTIVE", "UPDATING"})  # API DescribeTable, TableStatus: both serve reads and writes


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
    """Make the table with time to live and its layout, and wait until it can be used; one that exists is left as it is.

    Raises:
        UsageError: not allowed.
        TransientError: it was not ready after some seconds.
    """
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
            break
    else:
        raise errors.TransientError(f"The table {table.name} is still being created.", todo="Try again in a minute.")
    if _ttl_attribute(table) is None:
        table.call("update_time_to_live", TimeToLiveSpecification={"Enabled": True, "AttributeName": TTL_ATTRIBUTE})
    if made:
        marker.write(table)


def check(table: Table) -> list[str]:
    """Whether the table is what onefold needs.

    Returns:
        Warnings for people: what works but will hurt.

    Raises:
        NotFoundError: there is no such table in this region and account.
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
            todo="Give onefold a table of its own: onefold deploy makes one; a primary key cannot be changed.",
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
        return [f"Whether {table.name} forgets old records by itself is not known: {error.what}"]
    if attribute == TTL_ATTRIBUTE:
        return []
    now = f"by the attribute {attribute!r}" if attribute else "not at all"
    text = f"The table {table.name} removes old items {now}: records stay for ever and are paid for."
    return [f"{text} Enable time to live on the attribute {TTL_ATTRIBUTE!r}."]


def _ttl_attribute(table: Table) -> str | None:
    found = table.call("describe_time_to_live")["TimeToLiveDescription"]
    if found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING"):
        return str(found.get("AttributeName"))
    return None
