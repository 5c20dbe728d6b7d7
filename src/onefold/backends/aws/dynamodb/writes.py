"""One conditional write of one item as a value, and as a PartiQL statement; its other spellings are in `requests.py`.

An `Insert` takes when no item stands there. An `Update` takes when an item stands there whose attributes equal `where`
(so a deleted item never comes back by it), and, if given, `differs` does not equal its value.
Attribute names are always quoted or given by placeholder: `status`, `owner`, `ttl` and others are reserved words.

Never here: calls, records. Invariant: all spellings of one write mean the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onefold.backends.aws.dynamodb.items import Item, Value


class Insert(Struct, frozen=True, gc=False):
    """Create an item where none stands.

    Args:
        item: with its primary key.
    """

    item: Item


class Update(Struct, frozen=True, kw_only=True, gc=False):
    """Change an item that stands as expected.

    Args:
        place: its primary key.
        sets: attributes and their new values.
        adds: number attributes and what is added to them; each must be there.
        removes: attributes to be taken away; one that is not there is no error.
        where: attributes and the values they must have.
        differs: an attribute and the value it must not have.
    """

    place: Item
    where: Mapping[str, Value]
    sets: Mapping[str, Value] = {}
    adds: Mapping[str, int] = {}
    removes: tuple[str, ...] = ()
    differs: tuple[str, Value] | None = None


Write = Insert | Update


def place_of(write: Write) -> Item:
    """The primary key that a write is about."""
    if isinstance(write, Insert):
        return {"pk": write.item["pk"], "sk": write.item["sk"]}
    return write.place


def size_of(write: Write) -> int:
    """About how many bytes of values a write carries."""
    values = write.item if isinstance(write, Insert) else write.sets
    return sum(len(text) for value in values.values() for text in value.values() if isinstance(text, str))


def changed(place: Item, before: Item, after: Item) -> Update:
    """The update that makes `after` of an item as it was read: it takes when no one has written since.

    Args:
        place: its primary key.
        before: the item as it was read, `stamp` included.
        after: what it is to be.
    """
    return Update(
        place=place,
        where={name: before[name] for name in ("fence", "owner", "status", "stamp") if name in before},
        sets={name: value for name, value in after.items() if name not in place and before.get(name) != value},
        removes=tuple(name for name in before if name not in after),
    )


def as_statement(write: Write, table: str) -> dict[str, Any]:
    """The write as one statement of BatchExecuteStatement.

    Developer guide, "PartiQL insert statements": an existing key is DuplicateItem. "PartiQL update statements": SET and
    REMOVE may be repeated, and a WHERE that is not true for the item is ConditionalCheckFailed, also when there is none.
    """
    if isinstance(write, Insert):
        names = ", ".join(f"'{name}': ?" for name in write.item)
        text = f'INSERT INTO "{table}" VALUE {{{names}}}'
        values = list(write.item.values())
    else:
        text, values = _update_statement(write, table)
    return {"Statement": text, "Parameters": values, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


def _update_statement(write: Update, table: str) -> tuple[str, list[Value]]:
    parts = [f'UPDATE "{table}"']
    parts += [f'SET "{name}" = ?' for name in write.sets]
    parts += [f'SET "{name}" = "{name}" {"+" if by >= 0 else "-"} {abs(by)}' for name, by in write.adds.items()]
    parts += [f'REMOVE "{name}"' for name in write.removes]
    conditions = [f'"{name}" = ?' for name in (*write.place, *write.where)]
    values = [*write.sets.values(), *write.place.values(), *write.where.values()]
    if write.differs is not None:
        name, value = write.differs
        conditions.append(f'"{name}" <> ?')
        values.append(value)
    return f"{' '.join(parts)} WHERE {' AND '.join(conditions)}", values
