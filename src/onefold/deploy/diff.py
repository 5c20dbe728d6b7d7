"""What differs between two templates: by section, resource and property, both values at hand.

Compares what was deployed last with what would be deployed now, as texts say it; nothing is asked of AWS and no change set
is made. What a difference does to a running resource (an update in place, a replacement) is CloudFormation's to say: that is
what the change set of `onefold deploy` shows.

Pure. Never here: calls, tables. Invariant: templates without a difference here are equal, empty sections aside.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from onefold import errors

_ABSENT: Final = object()
_SECTIONS: Final = ("Parameters", "Mappings", "Conditions", "Resources", "Outputs")  # whose members have names


class Difference(Struct, frozen=True, kw_only=True):
    """One difference.

    Args:
        section: of the template, for example `Resources`.
        name: of the member, for example a logical id; empty where the section is one value.
        type: of the resource; empty elsewhere.
        path: of the property below it, for example `Properties.VisibilityTimeout`; empty when the member as a whole came
            or went.
        kind: `added`, `removed` or `changed`.
        before, after: the values; None where there is none.
    """

    section: str
    name: str
    type: str
    path: str
    kind: Literal["added", "removed", "changed"]
    before: Any = None
    after: Any = None


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """All differences between two templates, in the order of their names."""
    found: list[Difference] = []
    for section in sorted({*before, *after}):
        old, new = before.get(section, _ABSENT), after.get(section, _ABSENT)
        if section not in _SECTIONS:
            found += [_difference(section, "", "", *one) for one in _values("", old, new)]
            continue
        members, wanted = _mapping(old), _mapping(new)
        for name in sorted({*members, *wanted}):
            was, now = members.get(name, _ABSENT), wanted.get(name, _ABSENT)
            type_ = _mapping(was if now is _ABSENT else now).get("Type", "") if section == "Resources" else ""
            if was is _ABSENT or now is _ABSENT:
                found += [_difference(section, name, type_, "", was, now)]
            else:
                found += [_difference(section, name, type_, *one) for one in _values("", was, now)]
    return found


def read_template(text: str | Mapping[str, Any], stack: str) -> Mapping[str, Any]:
    """A deployed template as a value.

    Raises:
        UsageError: it is no JSON, so `onefold deploy` did not write it.
    """
    if not isinstance(text, str):
        return text
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise errors.UsageError(
            f"The template of stack {stack} is not JSON.",
            meaning="onefold deploy writes JSON: another tool deploys this stack, or it was given YAML.",
            todo="Give the app a stack of its own (--stack NAME), or compare with the text of onefold synth --format yaml.",
        )
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _values(path: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """Where two values differ, at the deepest names they share; lists are compared as wholes unless equally long."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted({*before, *after}):
            deeper = f"{path}.{name}" if path else name
            yield from _values(deeper, before.get(name, _ABSENT), after.get(name, _ABSENT))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _values(f"{path}[{place}]", old, new)
    elif not _equal(before, after):
        yield path, before, after


def _equal(before: Any, after: Any) -> bool:
    """Whether two values are the same; 30 and "30" are told as different, though CloudFormation reads them alike."""
    return type(before) is type(after) and before == after


def _difference(section: str, name: str, type_: str, path: str, before: Any, after: Any) -> Difference:
    return Difference(
        section=section,
        name=name,
        type=type_,
        path=path,
        kind="added" if before is _ABSENT else "removed" if after is _ABSENT else "changed",
        before=None if before is _ABSENT else before,
        after=None if after is _ABSENT else after,
    )
