"""The properties of one resource, resolved one by one, with a note of each that could not be.

Never here: what a particular type has for properties. Invariant: an accessor always gives a value of its type; when the
template's own is unresolved or malformed, that is the default, and `unresolved` says why under the property's path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onefold.check.documents import PropertyPath
from onefold.check.facts import LeftOut, Place, Unresolved
from onefold.check.intrinsics import NO_VALUE, flag, is_function, text_of, whole_number
from onefold.check.scope import Scope


class Properties:
    """Properties of a resource, or of a mapping inside them.

    Args:
        scope: the names of the template.
        kind: the resource's type, for what is left out.
        logical_id: the resource.
        path: where in the document `raw` stands.
        raw: the mapping as written; anything else counts as empty and is noted.
    """

    def __init__(self, scope: Scope, kind: str, logical_id: str, path: PropertyPath, raw: Any) -> None:
        self.scope = scope
        self.kind = kind
        self.logical_id = logical_id
        self.path = path
        self.unresolved: dict[str, Unresolved] = {}
        self._notes: list[LeftOut] = []
        found = scope.resolve(raw) if is_function(raw) else raw
        found = {} if found is None or found is NO_VALUE else found
        if not isinstance(found, dict):
            why = found if isinstance(found, Unresolved) else Unresolved("no mapping of properties")
            self.unresolved[""] = why
            found = {}
        self.raw: dict[str, Any] = found

    def place(self, *parts: str | int) -> Place:
        """Where the resource, or a property of it, stands."""
        path = (*self.path, *parts)
        document = self.scope.document
        return Place(document.file, document.line(path), self.logical_id, ".".join(map(str, path)))

    def get(self, name: str) -> Any:
        """The resolved value; None when it is absent, NoValue or unresolved as a whole. Unresolved values inside stay."""
        value = self.scope.resolve(self.raw.get(name))
        if isinstance(value, Unresolved):
            self.unresolved[name] = value
            return None
        return None if value is NO_VALUE else value

    def text(self, name: str, default: str) -> str:
        """A text."""
        return str(self._typed(name, text_of, default))

    def number(self, name: str, default: int) -> int:
        """A whole number."""
        return int(self._typed(name, whole_number, default))

    def number_or_none(self, name: str) -> int | None:
        """A whole number that has no default."""
        value = self._typed(name, whole_number, None)
        return None if value is None else int(value)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        return bool(self._typed(name, flag, default))

    def inner(self, name: str) -> Properties:
        """A mapping among the properties; what is unresolved in it is noted here too, see `took`."""
        return Properties(self.scope, self.kind, self.logical_id, (*self.path, name), self.raw.get(name))

    def took(self, inner: Properties) -> None:
        """Take over the notes of an inner mapping, under its longer path."""
        prefix = ".".join(map(str, inner.path[len(self.path) :]))
        for name, why in inner.unresolved.items():
            self.unresolved[f"{prefix}.{name}" if name else prefix] = why

    def refuse(self, name: str, why: str) -> None:
        """Note that a property is not usable."""
        self.unresolved[name] = Unresolved(why)

    def leave_out(self, name: str, why: str) -> None:
        """Note that a property is well understood and has no effect here."""
        if name in self.raw:
            self._notes.append(LeftOut(self.place(name), self.kind, why))

    def left_out(self) -> Iterator[LeftOut]:
        """Everything noted, for people."""
        yield from self._notes
        for name, value in self.unresolved.items():
            yield LeftOut(self.place(*name.split(".")) if name else self.place(), self.kind, value.why)

    def _typed(self, name: str, convert: Any, default: Any) -> Any:
        value = self.get(name)
        if value is None:
            return default
        converted = convert(value)
        if isinstance(converted, Unresolved):
            self.unresolved[name] = converted
            return default
        return converted
