"""Why an event does not match a pattern: the fields that say no, what they ask for and what stands there.

It walks the same compiled pattern with the same `holds` as matching does, so it says no exactly where matching does.
Never here: matching itself, drawing. Invariant: no reasons if and only if the event matches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct

from onefold.events.operators import Leaf
from onefold.events.patterns import ABSENT, Event, Node, Pattern, absent_in, elements, holds, undotted

_SHOWN_CHARS = 120


class Reason(Struct, frozen=True):
    """One thing that does not fit.

    Args:
        field: path of the field, `$` for the event itself.
        asked: what the pattern wants there, as it writes it.
        found: what the event has there.
    """

    field: str
    asked: str
    found: str

    def __str__(self) -> str:
        return f"{self.field} should be {self.asked}, and {self.found}"


def reasons(pattern: Pattern, event: Event) -> list[Reason]:
    """What does not fit, in the order of the pattern; empty when the event matches."""
    if not isinstance(event.value, dict | list):
        event = Event({}, False)
    absent = absent_in(pattern, event)
    return list(_walk(pattern.root, event.value, absent, event.dotted, "$"))


def _walk(node: Node, value: object, absent: frozenset[Leaf], dotted: bool, path: str) -> Iterator[Reason]:
    if holds(node, value, absent, dotted):
        return
    if isinstance(value, list):
        yield from _walk_list(node, value, absent, dotted, path)
        return
    leaf = node.leaf
    if leaf is not None and leaf not in absent and (value is ABSENT or not leaf.takes(value)):
        yield Reason(path, f"one of {leaf.text}", _found(value))
    fields: Mapping[str, object] = value if isinstance(value, dict) else {}
    if dotted:
        fields = undotted(fields)
    for name, below in node.fields:
        yield from _walk(below, fields.get(name, ABSENT), absent, dotted, f"{path}.{name}")
    for group in node.ors:
        if not any(holds(one, value, absent, dotted) for one in group):
            first = [next(_walk(one, value, absent, dotted, path)) for one in group]
            yield Reason(path, "one of its $or", f"none holds: {'; '.join(str(one) for one in first)}")


def _walk_list(node: Node, value: list[object], absent: frozenset[Leaf], dotted: bool, path: str) -> Iterator[Reason]:
    """Of one element the element's reasons; of several what they have in common: none of them fits."""
    several = list(elements(value))
    if len(several) == 1:
        yield from _walk(node, several[0], absent, dotted, f"{path}[0]")
    elif node.leaf is not None and not node.fields:
        found = f"of the {len(several)} elements of {_shown(value)} none is" if several else "the list there is empty"
        yield Reason(path, f"one of {node.leaf.text}", found)
    elif several:
        closest = min(
            (list(_walk(node, one, absent, dotted, f"{path}[{at}]")) for at, one in enumerate(several)), key=len
        )
        told = "; ".join(str(one) for one in closest)
        yield Reason(path, "a list with one element that has everything", f"the closest has not: {told}")
    else:
        yield from _walk(node, ABSENT, absent, dotted, path)


def _found(value: object) -> str:
    if value is ABSENT:
        return "there is no such field"
    if isinstance(value, dict):
        return "an object stands there"
    return f"it is {_shown(value)}"


def _shown(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
