"""Named values with versions in the table: the State contract.

All names stand in the partition `~state`, sorted. A deleted name keeps its version for a day (time to live), so that a name
that comes back goes on counting and a writer who read the old value cannot overwrite the new one. A name too long for a
sort key is cut there and told apart by its digest; the attribute `name` has all of it. How one is changed is in
`changing.py`.

Never here: what the values mean. Invariant: a version that was replaced never fits again.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from onefold.backends.aws.dynamodb.items import SORT_KEY_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onefold.backends.aws.dynamodb.items import Item
    from onefold.backends.aws.dynamodb.table import Table
    from onefold.contracts.state import Change, Versioned

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
        from onefold.backends.aws.dynamodb.changing import change  # functions read, and seldom write
        from onefold.contracts.state import check

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
    from onefold.contracts.state import Versioned

    return Versioned(int(item["version"]["N"]), item["value"]["S"].encode())
