"""CloudFormation's intrinsic functions, evaluated on plain data.

Only the functions live here: what a name refers to (parameters, pseudo parameters, resources) is looked up in a
`NameResolver`. `resolve` never raises for the content of a template, only for its size: a function that cannot be evaluated
gives Unresolved(why), and inside a list or mapping the others are still evaluated. The total size of what a template's
functions read and produce is bounded, because each may refer to the same long text. A function of an unresolved argument is
unresolved for the same reason. NO_VALUE (AWS::NoValue) removes the property or item where it is written.
Source: CloudFormation user guide, intrinsic function reference; pseudo parameters reference.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from onefold.check.facts import Unresolved
from onefold.errors import UsageError

TOTAL_CHARS_MAX: Final = 64 * 1_048_576  # ours: 64 templates of 1 MB
_VALUE_CHARS: Final = 64  # what a value counts for, besides its text
TEXT_CHARS_MAX: Final = 1_048_576  # ours: no text of a template is longer than a template


class NoValue:
    """AWS::NoValue: the property or item is as if it were not written."""

    def __repr__(self) -> str:
        return "AWS::NoValue"


NO_VALUE: Final = NoValue()
GAP: Final = "\N{REPLACEMENT CHARACTER}"  # stands for each part of a text that is not known
_SUBSTITUTED: Final = re.compile(r"\$\{(!?)([^{}]*)\}")
_DYNAMIC: Final = re.compile(r"\{\{resolve:([^:}]+):")


class NameResolver(Protocol):
    """What names refer to."""

    def ref(self, name: str) -> Any:
        """Value of `Ref name`: a parameter, pseudo parameter or resource."""

    def attribute(self, name: str, attribute: str) -> Any:
        """Value of an attribute of a resource."""

    def condition(self, name: str) -> bool | Unresolved:
        """Whether a condition of the template holds."""

    def mapping(self, name: str) -> Mapping[str, Any] | Unresolved:
        """A table of the section Mappings."""


def text_of(value: Any) -> str | Unresolved:
    """A value as CloudFormation writes it into text: `true`, `30`, the text itself."""
    match value:
        case Unresolved() | str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case _:
            return Unresolved(f"{type(value).__name__} where a text is needed")


def whole_number(value: Any) -> int | Unresolved:
    """An integer, written as a number or as text."""
    if isinstance(value, Unresolved):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,18}\s*", value):
        return int(value)
    return Unresolved(f"{_short(value)} where a whole number is needed")


def flag(value: Any) -> bool | Unresolved:
    """A boolean, written as such or as text."""
    if isinstance(value, (bool, Unresolved)):
        return value
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    return Unresolved(f"{_short(value)} where true or false is needed")


def decimal_number(value: Any) -> float | Unresolved:
    """A number, written as such or as text."""
    if isinstance(value, Unresolved):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,18}(\.[0-9]{1,18})?\s*", value):
        return float(value)
    return Unresolved(f"{_short(value)} where a number is needed")


def list_of(value: Any) -> list[Any] | Unresolved:
    """A list; a single value becomes a list with that value."""
    return value if isinstance(value, (list, Unresolved)) else [value]


def plain(value: Any) -> Any:
    """A value of any type, if all of it is known."""
    return why_not(value) or value


def is_function(value: Any) -> bool:
    """Whether a value, as written, is an intrinsic function."""
    return isinstance(value, dict) and len(value) == 1 and next(iter(value)).startswith(("Fn::", "Ref"))


def why_not(value: Any) -> Unresolved | None:
    """The first unresolved value inside `value`, None when all is known."""
    if isinstance(value, Unresolved):
        return value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((why for item in inner if (why := why_not(item)) is not None), None)


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."


class Intrinsics:
    """Evaluates functions; one per template."""

    def __init__(self, names: NameResolver) -> None:
        self._names = names
        self._gap: str | None = None
        self._chars = 0  # of all that was read and produced so far
        self._functions: Mapping[str, Callable[[Any], Any]] = {
            "Condition": self._condition,
            "Fn::And": lambda arg: self._logic(arg, all),
            "Fn::Base64": self._base64,
            "Fn::Contains": self._contains,
            "Fn::Equals": self._equals,
            "Fn::FindInMap": self._find_in_map,
            "Fn::GetAtt": self._get_att,
            "Fn::GetAZs": self._zones,
            "Fn::If": self._if,
            "Fn::ImportValue": self._import,
            "Fn::Join": self._join,
            "Fn::Length": self._length,
            "Fn::Not": self._not,
            "Fn::Or": lambda arg: self._logic(arg, any),
            "Fn::Select": self._select,
            "Fn::Split": self._split,
            "Fn::Sub": self._sub,
            "Fn::ToJsonString": self._to_json,
            "Ref": self._ref,
        }

    def resolve(self, value: Any) -> Any:
        """The value with every function in it evaluated.

        Raises:
            UsageError: what was read and produced so far is more than TOTAL_CHARS_MAX.
        """
        self._count(value)
        match value:
            case str() if found := _DYNAMIC.search(value):
                return Unresolved(f"a dynamic reference to {found[1]}, which is read at deployment")
            case list():
                items = [self.resolve(item) for item in value]
                return [item for item in items if item is not NO_VALUE]
            case dict():
                return self._resolve_mapping(value)
            case _:
                return value

    def with_gaps(self, value: Any) -> Any:
        """The value with every function evaluated, and `GAP` in its texts for each part that is not known."""
        self._gap = GAP
        try:
            return self.resolve(value)
        finally:
            self._gap = None

    def _count(self, value: Any) -> None:
        self._chars += _VALUE_CHARS + (len(value) if isinstance(value, str) else 0)
        if self._chars > TOTAL_CHARS_MAX:
            raise UsageError(
                f"The functions of the template produce more than {TOTAL_CHARS_MAX} characters in total.",
                meaning="Many of them refer to the same long text, table or list.",
                todo="Make it shorter, or refer to it less often; nothing was started.",
            )

    def count(self, value: Any) -> None:
        """Count what a function produced or Globals add, even if that part of the template was counted before."""
        self._count(value)
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        for item in inner:
            self.count(item)

    def _resolve_mapping(self, value: dict[str, Any]) -> Any:
        if len(value) == 1:
            [(name, argument)] = value.items()
            function = self._functions.get(name)
            # "Condition" is a function in conditions only; elsewhere it may be a key, as in a policy's statement.
            if function is not None and (name != "Condition" or isinstance(argument, str)):
                made = function(argument)
                self.count(made)
                return made
            if name.startswith("Fn::"):
                return Unresolved(f"{name} is not evaluated here")
        resolved = {key: self.resolve(item) for key, item in value.items()}
        return {key: item for key, item in resolved.items() if item is not NO_VALUE}

    # ------------------------------------------------------------------------------------------ names

    def _ref(self, argument: Any) -> Any:
        name = argument if isinstance(argument, str) else self._name(argument)
        return self._names.ref(name) if isinstance(name, str) else _bad("Ref", argument)

    def _condition(self, argument: Any) -> bool | Unresolved:
        return self._names.condition(argument)

    def _get_att(self, argument: Any) -> Any:
        parts = argument.split(".", 1) if isinstance(argument, str) else argument
        if not isinstance(parts, list) or len(parts) < 2:
            return _bad("Fn::GetAtt", argument)
        first = parts[0] if isinstance(parts[0], str) else self._name(parts[0])
        if not isinstance(first, str):
            return _bad("Fn::GetAtt", argument)
        rest = [text_of(self.resolve(part)) for part in parts[1:]]
        if why := why_not(rest):
            return why
        return self._names.attribute(first, ".".join(str(part) for part in rest))

    def _name(self, argument: Any) -> Any:
        """A name that is a function itself, which AWS::LanguageExtensions allows."""
        return self.resolve(argument) if is_function(argument) else None

    def _import(self, argument: Any) -> Unresolved:
        name = text_of(self.resolve(argument))
        return Unresolved(f"an export of another stack, {name if isinstance(name, str) else 'of unknown name'}")

    # ------------------------------------------------------------------------------------------- text

    def _sub(self, argument: Any) -> str | Unresolved:
        given: dict[str, Any] = {}
        if isinstance(argument, list) and len(argument) == 2 and isinstance(argument[1], dict):
            argument, given = argument
        if not isinstance(argument, str):
            return _bad("Fn::Sub", argument)
        parts: list[str] = []
        known: dict[str, str | Unresolved] = {}  # each name is resolved once, however often it is written
        end = length = 0
        for found in _SUBSTITUTED.finditer(argument):
            literal, name = found[1], found[2].strip()
            if not literal and name not in known:
                known[name] = self._named(name, given)
            value = f"${{{found[2]}}}" if literal else known[name]
            if isinstance(value, Unresolved) and self._gap is not None:
                value = self._gap
            if isinstance(value, Unresolved):
                return value
            parts += (argument[end : found.start()], value)
            length += len(value)
            if length > TEXT_CHARS_MAX:
                return Unresolved(f"Fn::Sub makes more than {TEXT_CHARS_MAX} characters")
            end = found.end()
        return self._checked("".join((*parts, argument[end:])))

    def _named(self, name: str, given: dict[str, Any]) -> str | Unresolved:
        if name in given:
            return text_of(self.resolve(given[name]))
        first, dot, rest = name.partition(".")
        return text_of(self._names.attribute(first, rest) if dot else self._names.ref(name))

    def _join(self, argument: Any) -> str | Unresolved:
        if not isinstance(argument, list) or len(argument) != 2 or not isinstance(argument[0], str):
            return _bad("Fn::Join", argument)
        items = self.resolve(argument[1])
        if not isinstance(items, list):
            return items if isinstance(items, Unresolved) else _bad("Fn::Join", argument)
        texts = [text_of(item) for item in items]
        if self._gap is not None:
            texts = [self._gap if isinstance(text, Unresolved) else text for text in texts]
        known = [text for text in texts if isinstance(text, str)]
        if len(known) < len(texts):
            return why_not(texts) or _bad("Fn::Join", argument)
        if sum(map(len, known)) + len(argument[0]) * len(known) > TEXT_CHARS_MAX:
            return Unresolved(f"Fn::Join makes more than {TEXT_CHARS_MAX} characters")
        return self._checked(argument[0].join(known))

    def _checked(self, text: str) -> str | Unresolved:
        """A text put together may turn out to be a dynamic reference."""
        found = self.resolve(text)
        return found if isinstance(found, Unresolved) else text

    def _split(self, argument: Any) -> Any:
        if not isinstance(argument, list) or len(argument) != 2:
            return _bad("Fn::Split", argument)
        text = text_of(self.resolve(argument[1]))
        if isinstance(text, Unresolved):
            return text
        return text.split(argument[0]) if isinstance(argument[0], str) and argument[0] else _bad("Fn::Split", argument)

    def _base64(self, argument: Any) -> str | Unresolved:
        text = text_of(self.resolve(argument))
        if isinstance(text, Unresolved):
            return text
        if len(text) > TEXT_CHARS_MAX // 4:
            return Unresolved(f"Fn::Base64 makes more than {TEXT_CHARS_MAX} characters")
        try:
            return base64.b64encode(text.encode()).decode()
        except (UnicodeEncodeError, binascii.Error):
            return _bad("Fn::Base64", argument)

    def _to_json(self, argument: Any) -> str | Unresolved:
        value = self.resolve(argument)
        unknown = why_not(value)
        if unknown is not None:
            return unknown
        text = json.dumps(value, separators=(",", ":"))
        return (
            text
            if len(text) <= TEXT_CHARS_MAX
            else Unresolved(f"Fn::ToJsonString makes more than {TEXT_CHARS_MAX} characters")
        )

    # ---------------------------------------------------------------------------------- lists and tables

    def _select(self, argument: Any) -> Any:
        if not isinstance(argument, list) or len(argument) != 2:
            return _bad("Fn::Select", argument)
        index, items = whole_number(self.resolve(argument[0])), self.resolve(argument[1])
        if isinstance(index, Unresolved) or isinstance(items, Unresolved):
            return why_not([index, items])
        if not isinstance(items, list) or not 0 <= index < len(items):
            return Unresolved(
                f"Fn::Select asks for item {index} of {len(items) if isinstance(items, list) else 'a value that is no list'}"
            )
        return items[index]

    def _length(self, argument: Any) -> int | Unresolved:
        items = self.resolve(argument)
        if isinstance(items, list):
            return len(items)
        return items if isinstance(items, Unresolved) else _bad("Fn::Length", argument)

    def _zones(self, argument: Any) -> Any:
        region = text_of(self.resolve(argument) or self._names.ref("AWS::Region"))
        return [f"{region}{letter}" for letter in "abc"] if isinstance(region, str) else region

    def _find_in_map(self, argument: Any) -> Any:
        if not isinstance(argument, list) or len(argument) not in {3, 4}:
            return _bad("Fn::FindInMap", argument)
        keys = [text_of(self.resolve(part)) for part in argument[:3]]
        if why := why_not(keys):
            return why
        table, first, second = (str(key) for key in keys)
        rows = self._names.mapping(table)
        if isinstance(rows, Unresolved):
            return rows
        row = rows.get(first)
        if isinstance(row, dict) and second in row:
            return row[second]
        default = argument[3] if len(argument) == 4 else None
        if isinstance(default, dict) and "DefaultValue" in default:
            return self.resolve(default["DefaultValue"])
        return Unresolved(f"Mappings.{table} has no {first}.{second}")

    # ------------------------------------------------------------------------------------- conditions

    def _if(self, argument: Any) -> Any:
        if not isinstance(argument, list) or len(argument) != 3 or not isinstance(argument[0], str):
            return _bad("Fn::If", argument)
        holds = self._names.condition(argument[0])
        return holds if isinstance(holds, Unresolved) else self.resolve(argument[1 if holds else 2])

    def _equals(self, argument: Any) -> bool | Unresolved:
        if not isinstance(argument, list) or len(argument) != 2:
            return _bad("Fn::Equals", argument)
        sides = self.resolve(argument)
        if len(sides) == 2 and (_differs(*sides) or _differs(*reversed(sides))):
            return False
        if why := why_not(sides):
            return why
        if len(sides) != 2:  # one side is AWS::NoValue
            return False
        left, right = (side if isinstance(side, (list, dict)) else text_of(side) for side in sides)
        return bool(left == right)

    def _contains(self, argument: Any) -> bool | Unresolved:
        """A function for the section Rules: whether a list contains a text."""
        if not isinstance(argument, list) or len(argument) != 2:
            return _bad("Fn::Contains", argument)
        items, value = self.resolve(argument)
        if why := why_not([items, value]):
            return why
        texts = [text_of(one) for one in items] if isinstance(items, list) else []
        return text_of(value) in texts

    def _not(self, argument: Any) -> bool | Unresolved:
        if not isinstance(argument, list) or len(argument) != 1:
            return _bad("Fn::Not", argument)
        value = flag(self.resolve(argument[0]))
        return value if isinstance(value, Unresolved) else not value

    def _logic(self, argument: Any, combine: Callable[[list[bool]], bool]) -> bool | Unresolved:
        """And, Or: an unresolved part matters only when the known ones do not decide."""
        if not isinstance(argument, list) or not argument:
            return _bad("Fn::And or Fn::Or", argument)
        values = [flag(self.resolve(part)) for part in argument]
        known = [value for value in values if isinstance(value, bool)]
        low, high = ([*known, *[guess] * (len(values) - len(known))] for guess in (False, True))
        if combine(low) == combine(high):
            return combine(low)
        return why_not(values) or _bad("Fn::And or Fn::Or", argument)


def _differs(value: Any, other: Any) -> bool:
    """Whether a value that is not known is certainly not this one."""
    text = text_of(other)
    return isinstance(value, Unresolved) and isinstance(text, str) and text in value.other_than


def _bad(name: str, argument: Any) -> Unresolved:
    return Unresolved(f"{name} does not take {_short(argument)}")
