"""Which layout a table has (`items.py`): the item `~layout`, read once by each process before its first other call.

A process of one layout on a table of the other would not see the records that say what is done, and would do it again. So
it refuses. A table without the item is one of layout 1, made before there was another, unless it is empty: then a process of
layout 2 makes it one of layout 2.

Never here: moving records (`migrating.py`). Invariant: no record is written in layout 2 before the item says 2, and the item
says 2 only where no record of layout 1 was, or each has its copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import botocore.exceptions

from onefold import errors
from onefold.backends.aws.dynamodb.items import number
from onefold.backends.aws.session import aws_errors

if TYPE_CHECKING:
    from onefold.backends.aws.dynamodb.items import Item, Value
    from onefold.backends.aws.dynamodb.table import Table

PARTITION: Final = "~layout"
PLACE: Final[Item] = {"pk": {"S": PARTITION}, "sk": {"S": PARTITION}}


def agree(table: Table) -> None:
    """Make sure that the table has the layout of this process.

    Args:
        table: a bare one (`Table.bare`).

    Raises:
        UsageError: it has the other one, or is being migrated; nothing was written.
        NotFoundError, TransientError: as `Table.call`.
    """
    item = table.get(PLACE)
    if item is None and table.layout == 2:
        item = _begun(table)
    if item is None:
        return
    if "moving" in item:
        raise errors.UsageError(
            f"The records of the table {table.name} are being moved to layout 2.",
            meaning="What is done is written in two places until that has ended. Nothing was read or written.",
            todo="Wait until `onefold records migrate` has ended; if it was interrupted, run it again.",
        )
    found = int(item["layout"]["N"])
    if found != table.layout:
        raise refusal(table, found)


def _begun(table: Table) -> Item | None:
    """The marker of an empty table, written now.

    Raises:
        UsageError: the table is not empty.
    """
    if table.call("scan", Select="COUNT", Limit=1, ConsistentRead=True)["Count"]:
        item = table.get(PLACE)  # another process may have begun meanwhile
        if item is None:
            raise refusal(table, 1)
        return item
    write(table)
    return table.get(PLACE)


def write(table: Table) -> None:
    """Mark a new table with this process's layout; one that is marked already stays as it is."""
    put(table, {"layout": number(table.layout)}, "attribute_not_exists(pk)")


def put(table: Table, attributes: Item, condition: str, **values: Value) -> bool:
    """Write the marker when this condition on the one that stands holds; whether it did.

    Args:
        values: of the condition's placeholders, without their colons.
    """
    from onefold.backends.aws.refusals import code_of  # a function's first batch writes no marker

    request: dict[str, Any] = {"Item": {**PLACE, **attributes}, "ConditionExpression": condition}
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


def refusal(table: Table, found: int) -> errors.UsageError:
    """The error of a process whose layout is not the table's."""
    if found == 1:
        todo = f"Leave layout=2 out of its URL, or move its records first: onefold records migrate 'dynamodb://REGION/{table.name}'."
    else:
        todo = f"Add layout={found} to its URL, for example dynamodb://REGION/{table.name}?layout={found}."
    return errors.UsageError(
        f"The table {table.name} has records of layout {found}, and this process was given layout {table.layout}.",
        meaning="It would not see what is done already, and would do it again. Nothing was written.",
        todo=todo,
    )
