"""CloudFormation's loops (Fn::ForEach) among resources, written out, so that rules see each resource that they create.

A loop whose collection is not known stays as it is. Every resource that a loop creates has the position of the loop's text.
Never here: loops in properties, conditions and outputs. Invariant: a document without loops is returned unchanged.

Source: CloudFormation template reference, Fn::ForEach: [identifier, collection, {key: resource}]; `${identifier}`, or
`&{identifier}` with letters and digits only, is replaced in keys and texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from onefold.check.facts import Document, PropertyPath
from onefold.check.scope import Scope

LOOP: Final = "Fn::ForEach::"
MADE_MAX: Final = 1_000  # ours; CloudFormation quotas: 500 resources in a template
DEPTH_MAX: Final = 5  # CloudFormation template reference, as above
_IDENTIFIER: Final = re.compile(r"([$&])\{([A-Za-z0-9]{1,255})\}")
_Made = tuple[str, Any, PropertyPath]  # key, value, where it is written


def expanded(document: Document, scope: Scope) -> Document:
    """The document with its loops among resources written out.

    Args:
        scope: its names, which collections refer to.

    Raises:
        UsageError: the loops produce more than `intrinsics.TOTAL_CHARS_MAX`.
    """
    resources = document.data.get("Resources")
    if not isinstance(resources, dict) or not any(str(key).startswith(LOOP) for key in resources):
        return document
    made: dict[str, Any] = {}
    places: dict[PropertyPath, PropertyPath] = {}
    for key, value in resources.items():
        for name, resource, path in _of(key, value, ("Resources", key), scope, {}):
            made.setdefault(name, resource)
            places.setdefault(("Resources", name), path)
            if len(made) > MADE_MAX:
                return document
    origins: dict[PropertyPath, list[PropertyPath]] = {}
    for place, written in places.items():
        if written != place:
            origins.setdefault(written, []).append(place)
    return replace(
        document,
        data={**document.data, "Resources": made},
        lines={**document.lines, **dict(_at(document.lines, origins))},
        spans={**document.spans, **dict(_at(document.spans, origins))},
    )


def _of(key: str, value: Any, path: PropertyPath, scope: Scope, known: dict[str, str]) -> Iterator[_Made]:
    """The resources of one entry of a mapping: itself, or those that its loop creates."""
    if not key.startswith(LOOP):
        if known:
            scope.functions.count(value)
        yield _filled(key, known), _filled(value, known), path
        return
    is_loop = isinstance(value, list) and len(value) == 3 and isinstance(value[0], str) and isinstance(value[2], dict)
    items = scope.resolve(_filled(value[1], known)) if is_loop and len(known) < DEPTH_MAX else None
    if not isinstance(items, list) or not all(isinstance(one, str) for one in items):
        yield _filled(key, known), value, path
        return
    for item in items[: MADE_MAX + 1]:
        inside = {**known, value[0]: item}
        for inner, resource in value[2].items():
            yield from _of(inner, resource, (*path, 2, inner), scope, inside)


def _filled(value: Any, known: dict[str, str]) -> Any:
    """A value with the identifiers of the loops around it replaced."""
    if not known:
        return value
    if isinstance(value, str):
        return _IDENTIFIER.sub(lambda found: _text_for(found, known), value)
    if isinstance(value, list):
        return [_filled(one, known) for one in value]
    if isinstance(value, dict):
        name = value.get("Ref")
        if len(value) == 1 and isinstance(name, str) and name in known:
            return known[name]
        return {_filled(key, known): _filled(one, known) for key, one in value.items()}
    return value


def _text_for(found: re.Match[str], known: dict[str, str]) -> str:
    if found[2] not in known:
        return found[0]
    text = known[found[2]]
    return text if found[1] == "$" else "".join(one for one in text if one.isalnum())


def _at(
    table: dict[PropertyPath, Any], origins: dict[PropertyPath, list[PropertyPath]]
) -> Iterator[tuple[PropertyPath, Any]]:
    """The entries of a table of positions for the resources that loops have created."""
    for path, value in table.items():
        for length in range(4, len(path) + 1, 2):  # Resources, a loop, 2, a key, and so on for loops inside of loops
            for name in origins.get(path[:length], ()):
                yield (*name, *path[length:]), value
