"""EventBridge's event patterns, for Lambda's filters and for rules of an event bus: compiled once, matched often.

A pattern names fields, and for each field the values or operators it accepts. All named fields must match, each with one of
its values. In an array of the event any one element can match, but fields below one array must match in the same
element. A dot in a name, in the pattern or the event, is a step into the object.

Why an event does not match (`mismatches`) is found by the same `holds` over the same compiled pattern, so the two agree.

Never here: what a leaf's values and operators mean (`operators.py`), what happens to an event that matches.
Invariants: an invalid pattern is refused when it is compiled; matching does not fail, whatever the event is. There are no
mismatches if and only if the event matches.

Sources: EventBridge user guide, "Event patterns", "Comparison operators"; aws/event-ruler; Lambda developer guide,
"Using event filtering with an Amazon SQS event source".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from onefold.errors import UsageError
from onefold.events.operators import Leaf, refused
from onefold.events.operators import read as read_leaf

ALTERNATIVES_MAX: Final = 1_000  # EventBridge user guide, comparison operators, "Or matching"
DEPTH_MAX: Final = 100  # our limit: matching recurses as deep as the pattern does
FILTERS_MAX: Final = 5  # Lambda developer guide, "Control which events Lambda sends to your function"
FILTER_CHARS_MAX: Final = 4_096  # Lambda API, Filter, Pattern
_OR: Final = "$or"
_BODY: Final = "body"
ABSENT: Final[object] = object()


class Node(Struct, frozen=True, eq=False, gc=False):
    """What a pattern requires at one path: a value, fields below it, and one of each group of alternatives."""

    leaf: Leaf | None
    fields: tuple[tuple[str, Node], ...]
    ors: tuple[tuple[Node, ...], ...]


class Pattern(Struct, frozen=True, eq=False):
    """A compiled pattern.

    Args:
        root: what it requires.
        absent: leaves that an absent field satisfies, with their paths.
    """

    root: Node
    absent: tuple[tuple[tuple[str, ...], Leaf], ...]


class SplitNames:
    """The objects of one event with their names split at the first dot; each object is split once for all nodes."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Mapping[str, object], Mapping[str, object]]] = {}  # by id, with the object itself

    def of(self, fields: Mapping[str, object]) -> Mapping[str, object]:
        """See `undotted`."""
        if not fields:
            return fields
        known = self._made.get(id(fields))
        if known is None:
            known = self._made[id(fields)] = (fields, undotted(fields))
        return known[1]


class EventView(Struct, frozen=True, gc=False):
    """An event, examined once before it is matched with any number of patterns.

    Args:
        value: the event's JSON value.
        dotted: its objects with split names; None if no object in it has a name with a dot.
    """

    value: object
    dotted: SplitNames | None


# ---------------------------------------------------------------------------------------------------------- compiling


def compile_pattern(text: str | bytes) -> Pattern:
    """A pattern from its JSON.

    Raises:
        UsageError: with EventBridge's text ("Event pattern is not valid. Reason: ...") and the path.
    """
    return _compiled(_parsed(text), empty=False)


def _parsed(text: str | bytes) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise refused("Filter is not an object", (), f"It is not JSON: {error}.") from None


def _compiled(value: object, *, empty: bool) -> Pattern:
    if not isinstance(value, dict):
        raise refused("Filter is not an object", ())
    draft = _Draft()
    if value or not empty:
        _read_fields(draft, value, ())
    if _alternatives(draft) > ALTERNATIVES_MAX:
        raise refused(f"Rule is too complex: $or expands to more than {ALTERNATIVES_MAX:,} alternatives", ())
    absent: list[tuple[tuple[str, ...], Leaf]] = []
    return Pattern(draft.made((), absent), tuple(absent))


class _Draft:
    """A node that is still being built: later names with dots can lead to the same path."""

    def __init__(self) -> None:
        self.leaf: Leaf | None = None
        self.fields: dict[str, _Draft] = {}
        self.ors: list[list[_Draft]] = []

    def made(self, path: tuple[str, ...], absent: list[tuple[tuple[str, ...], Leaf]]) -> Node:
        if self.leaf is not None and self.leaf.absent:
            absent.append((path, self.leaf))
        fields = tuple((name, draft.made((*path, name), absent)) for name, draft in self.fields.items())
        ors = tuple(tuple(draft.made(path, absent) for draft in group) for group in self.ors)
        return Node(self.leaf, fields, ors)


def _read_fields(draft: _Draft, value: Mapping[str, Any], path: tuple[str, ...]) -> None:
    if len(path) > DEPTH_MAX:
        raise refused(f"The pattern is nested deeper than {DEPTH_MAX} levels", path[:3])
    if not value:
        raise refused("Empty objects are not allowed", path)
    for name, below in value.items():
        if name == _OR and _is_or(below):
            draft.ors.append([])
            for alternative in below:
                draft.ors[-1].append(_Draft())
                _read_fields(draft.ors[-1][-1], alternative, (*path, name))
            continue
        at, node = (*path, name), draft
        for step in name.split("."):
            node = node.fields.setdefault(step, _Draft())
        if isinstance(below, dict):
            _read_fields(node, below, at)
        elif isinstance(below, list):
            node.leaf = read_leaf(below, at)
        else:
            raise refused(f'"{name}" must be an object or an array', at)


def _is_or(value: object) -> bool:
    """Whether `$or` means alternatives; otherwise it is a field of that name, as event-ruler reads it."""
    return isinstance(value, list) and len(value) >= 2 and all(isinstance(one, dict) for one in value)


def _alternatives(draft: _Draft) -> int:
    count = 1
    for below in draft.fields.values():
        count *= _alternatives(below)
    for group in draft.ors:
        count *= sum(_alternatives(one) for one in group)
    return count


def refuse_operators(text: str | bytes, names: Sequence[str], where: str) -> None:
    """Refuse operators that a service does not know, and the forms of `anything-but` with an operator inside.

    Args:
        text: JSON of a pattern. names: the operators to refuse. where: the service, for the error.

    Raises:
        UsageError: the pattern has such an operator; the error names it and its place. Or the text is not JSON.
    """
    waiting: list[tuple[object, tuple[str, ...]]] = [(_parsed(text), ())]
    while waiting:
        value, path = waiting.pop()
        if isinstance(value, list):
            waiting.extend((one, path) for one in value)
            for one in value:
                name, argument = next(iter(one.items())) if isinstance(one, dict) and len(one) == 1 else ("", None)
                if name in names or (name == "anything-but" and isinstance(argument, dict)):
                    named = f"anything-but/{next(iter(argument), '')}" if isinstance(argument, dict) else name
                    raise refused(f"Unrecognized match type {named}", path, f"{where} does not know this operator.")
        elif isinstance(value, dict):
            waiting.extend((below, (*path, name)) for name, below in value.items())


# ----------------------------------------------------------------------------------------------------------- matching


def view_of(value: object) -> EventView:
    """The view of an event for `matches`, from its JSON value."""
    waiting, dotted = [value], False
    for one in waiting:  # grows during the loop
        below: Iterable[object] = ()
        if isinstance(one, dict):
            dotted = dotted or "." in "".join(one)
            below = one.values()
        elif isinstance(one, list):
            below = one
        waiting.extend(inner for inner in below if isinstance(inner, dict | list))
    return EventView(value, SplitNames() if dotted else None)


def matches(pattern: Pattern, event: EventView) -> bool:
    """Whether the event has everything that the pattern asks for."""
    return holds(pattern.root, event.value, absent_in(pattern, event), event.dotted)


def absent_in(pattern: Pattern, event: EventView) -> frozenset[Leaf]:
    """The leaves that are satisfied because their path is absent from the event, and from every element of an array."""
    if not pattern.absent:
        return _NONE
    return frozenset(leaf for path, leaf in pattern.absent if not _exists(event, path))


_NONE: Final[frozenset[Leaf]] = frozenset()


def holds(node: Node, value: object, absent: frozenset[Leaf], dotted: SplitNames | None) -> bool:
    """Whether `value` has what the node requires.

    Args:
        value: `ABSENT` for no value. absent: leaves that are satisfied (`absent_in`). dotted: see `EventView`.
    """
    if isinstance(value, list):
        return any(holds(node, one, absent, dotted) for one in elements(value)) or (
            not value and holds(node, ABSENT, absent, dotted)
        )
    leaf = node.leaf
    if leaf is not None and leaf not in absent and (value is ABSENT or not leaf.takes(value)):
        return False
    if node.fields:
        fields: Mapping[str, object] = value if isinstance(value, dict) else {}
        if dotted:
            fields = dotted.of(fields)
        for name, below in node.fields:
            if not holds(below, fields.get(name, ABSENT), absent, dotted):
                return False
    return all(any(holds(one, value, absent, dotted) for one in group) for group in node.ors)


def elements(value: Sequence[object]) -> Iterator[object]:
    """The elements of an array, and of the arrays in it."""
    waiting = list(reversed(value))
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting.extend(reversed(one))
        else:
            yield one


def undotted(fields: Mapping[str, object]) -> Mapping[str, object]:
    """An object whose names are split at their first dot.

    Objects that meet under one name are merged; other values that meet become alternatives.
    """
    if not any("." in name for name in fields):
        return fields
    made: dict[str, object] = {}
    merged: dict[str, dict[str, object]] = {}  # by first step: the objects that met there, in one copy
    for name, value in fields.items():
        first, dot, rest = name.partition(".")
        below: object = {rest: value} if dot else value
        if isinstance(below, dict):
            if first in merged:
                merged[first].update(below)
                continue
            below = merged[first] = dict(below)
        made[first] = [made[first], below] if first in made else below
    return made


def _exists(event: EventView, path: Sequence[str]) -> bool:
    """Whether a path leads to a value that is not an object, in any element of arrays on the way."""
    found: list[object] = [event.value]
    for name in path:
        below: list[object] = []
        for one in elements(found):
            if isinstance(one, dict):
                fields = event.dotted.of(one) if event.dotted else one
                if name in fields:
                    below.append(fields[name])
        found = below
    return any(not isinstance(one, dict) for one in elements(found))


# ----------------------------------------------------------------------------------------------------- filters of SQS


class BodyFilters(Struct, frozen=True, eq=False):
    """The filters of a queue's event source mapping; a message is kept if one of them matches or there are none."""

    patterns: tuple[Pattern, ...]

    def keep(self, body: str) -> bool:
        """Whether a message with this body is handed to the function; otherwise it is deleted.

        A body that is a JSON object or array can match only patterns of fields, any other body only patterns of text.
        """
        if not self.patterns:
            return True
        value: object = body
        if body.lstrip()[:1] in ("{", "["):
            try:
                value = msgspec.json.decode(body)
            except (msgspec.DecodeError, RecursionError, UnicodeError):
                value = body
        event = view_of(value)
        return any(_keeps(one.root, event, _absent_below(one, event), value is not body) for one in self.patterns)


def _absent_below(pattern: Pattern, event: EventView) -> frozenset[Leaf]:
    return frozenset(leaf for path, leaf in pattern.absent if not _exists(event, path[1:]))


def _keeps(root: Node, event: EventView, absent: frozenset[Leaf], is_json: bool) -> bool:
    """Whether the body has what a pattern requires, and the pattern is meant for bodies of this form (JSON or text)."""
    for _, body in root.fields:
        if (body.leaf is not None) is is_json or not holds(body, event.value, absent, event.dotted):
            return False
    return all(any(_keeps(one, event, absent, is_json) for one in group) for group in root.ors)


def compile_filters(texts: Sequence[str]) -> BodyFilters:
    """The filters of a mapping, from the JSON of their patterns.

    Raises:
        UsageError: there are more than 5; or one is longer than 4,096 characters, is not a pattern, or filters
            something other than `body` ("Invalid filter pattern definition."). The error names the place.
    """
    if len(texts) > FILTERS_MAX:
        raise UsageError(
            f"{len(texts)} filters are too many.",
            todo=f"A mapping has at most {FILTERS_MAX}; a message is kept when one of them matches.",
        )
    return BodyFilters(tuple(_filter(text) for text in texts))


def _filter(text: str) -> Pattern:
    if len(text) > FILTER_CHARS_MAX:
        raise UsageError(
            f"A filter pattern of {len(text):,} characters is too long.",
            todo=f"A pattern has at most {FILTER_CHARS_MAX:,}.",
        )
    try:
        pattern = _compiled(_parsed(text), empty=True)
    except UsageError as error:
        why = error.what.partition("Reason: ")[2]
        raise _no_filter(f"{why}. {error.meaning}".strip()) from None
    other = next(_others(pattern.root), None)
    if other is not None:
        raise _no_filter(f"Messages of a queue are filtered by their body only, not by {other!r}.")
    return pattern


def _others(root: Node) -> Iterator[str]:
    """Names at the top of a pattern that are not `body`."""
    yield from (name for name, _ in root.fields if name != _BODY)
    for group in root.ors:
        for one in group:
            yield from _others(one)


def _no_filter(meaning: str) -> UsageError:
    return UsageError(
        "Invalid filter pattern definition.", meaning=meaning, todo='Write for example {"body": {"kind": ["order"]}}.'
    )


_SHOWN_CHARS = 120


class Mismatch(Struct, frozen=True):
    """One field of an event that does not match.

    Args:
        field: path of the field, `$` for the event itself.
        asked: what the pattern requires there, as written.
        found: what the event has there.
    """

    field: str
    asked: str
    found: str

    def __str__(self) -> str:
        return f"{self.field} should be {self.asked}, but {self.found}"


def mismatches(pattern: Pattern, event: EventView) -> list[Mismatch]:
    """What does not match, in the order of the pattern; empty if the event matches."""
    if not isinstance(event.value, dict | list):
        event = EventView({}, None)
    absent = absent_in(pattern, event)
    return list(_walk(pattern.root, event.value, absent, event.dotted, "$"))


def _walk(
    node: Node, value: object, absent: frozenset[Leaf], dotted: SplitNames | None, path: str
) -> Iterator[Mismatch]:
    if holds(node, value, absent, dotted):
        return
    if isinstance(value, list):
        yield from _walk_list(node, value, absent, dotted, path)
        return
    leaf = node.leaf
    if leaf is not None and leaf not in absent and (value is ABSENT or not leaf.takes(value)):
        yield Mismatch(path, f"one of {leaf.text}", _found(value))
    fields: Mapping[str, object] = value if isinstance(value, dict) else {}
    if dotted:
        fields = dotted.of(fields)
    for name, below in node.fields:
        yield from _walk(below, fields.get(name, ABSENT), absent, dotted, f"{path}.{name}")
    for group in node.ors:
        if not any(holds(one, value, absent, dotted) for one in group):
            first = [next(_walk(one, value, absent, dotted, path)) for one in group]
            yield Mismatch(
                path, "as one of its $or alternatives requires", f"none matches: {'; '.join(str(one) for one in first)}"
            )


def _walk_list(
    node: Node, value: list[object], absent: frozenset[Leaf], dotted: SplitNames | None, path: str
) -> Iterator[Mismatch]:
    """Why an array does not match: the reasons for its only element, or that none of several elements fits."""
    several = list(elements(value))
    if len(several) == 1:
        yield from _walk(node, several[0], absent, dotted, f"{path}[0]")
    elif node.leaf is not None and not node.fields:
        found = f"none of the {len(several)} elements of {_shown(value)} is" if several else "the list there is empty"
        yield Mismatch(path, f"one of {node.leaf.text}", found)
    elif several:
        closest = min(
            (list(_walk(node, one, absent, dotted, f"{path}[{at}]")) for at, one in enumerate(several)), key=len
        )
        missing = "; ".join(str(one) for one in closest)
        yield Mismatch(path, "a list with one element that has everything", f"the closest lacks: {missing}")
    else:
        yield from _walk(node, ABSENT, absent, dotted, path)


def _found(value: object) -> str:
    if value is ABSENT:
        return "there is no such field"
    if isinstance(value, dict):
        return "it is an object"
    return f"it is {_shown(value)}"


def _shown(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
