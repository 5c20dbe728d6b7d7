"""Values of HCL, if the files show what they are: their kinds, their parts, and Terraform's functions on them.

A value is plain data; or a resource's attribute (`PlanTarget`), which is a reference; or a text with such parts
(`Pieces`); or a value to be written as JSON, not all of which is known (`Encoded`); or a whole resource or module
(`Named`); or a value that is not known (`Perhaps`), with the reason and the resources it is made of.
Never here: how expressions are written (hcl_expressions.py), modules, resources. Invariants: a value that cannot be known
is never guessed, and a function that is not listed here is not known; the size of all values produced is bounded.

Source: Terraform documentation, "Functions".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from onefold.check.documents import json_of
from onefold.check.terraform_plan import Encoded, Perhaps, Pieces, PlanTarget

TEXT_MAX: Final = 262_144  # ours: characters
NUMBER_MAX: Final = 10**18
ITEMS_MAX: Final = 10_000  # ours: values in a value; a text counts as one for every 64 characters
LEVELS_MAX: Final = 100  # ours: levels of values in a value
_TEXT_OF_ONE: Final = 64
_VERB: Final = re.compile(r"%(?:%|[sdqv])")
OfLoop: Final = object()  # an index by the key of a loop over something that is not known


class Splat(Struct, frozen=True):
    """The step `[*]` or `.*`, with the steps after it that apply to each value and not to the resulting list."""

    steps: Sequence[Any]


class Named(Struct, frozen=True):
    """A resource or module as a whole. `follow`: returns what `.name` and `[index]` lead to in it."""

    target: PlanTarget | None
    follow: Callable[[Sequence[Any]], Any]


def targets_in(value: Any) -> tuple[PlanTarget, ...]:
    """The resources that a value is made of, each once."""
    return tuple(dict.fromkeys(_targets(value)))


def _targets(value: Any) -> Iterator[PlanTarget]:
    match value:
        case PlanTarget():
            yield value
        case Named() if value.target is not None:
            yield value.target
        case Perhaps():
            yield from value.targets
        case Encoded():
            yield from _targets(value.value)
        case Pieces():
            for one in value.parts:
                yield from _targets(one)
        case list():
            for one in value:
                yield from _targets(one)
        case dict():
            for one in value.values():
                yield from _targets(one)
        case _:
            pass


def unknown(why: str, *values: Any) -> Perhaps:
    """A value that is not known, made of others; its reason is that of the first of these that has one, or `why`."""
    reasons = (one.why for one in values if isinstance(one, Perhaps))
    return Perhaps(targets_in(list(values)), next(reasons, why))


def is_known(value: Any) -> bool:
    """Whether all of a value is known."""
    if isinstance(value, (PlanTarget, Perhaps, Pieces, Encoded, Named)):
        return False
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(is_known(one) for one in inner)


def size_of(value: Any) -> int:
    """How many values there are in one, with those in texts; more than `ITEMS_MAX` if it is too large or too deep."""
    found, level = 1, [value]
    for _ in range(LEVELS_MAX):
        below: list[Any] = []
        for one in level:
            if isinstance(one, str):
                found += len(one) // _TEXT_OF_ONE
                continue
            match one:
                case dict():
                    inner: Sequence[Any] = list(one.values())
                case list():
                    inner = one
                case Pieces():
                    inner = one.parts
                case Encoded():
                    inner = [one.value]
                case Perhaps():
                    inner = one.targets
                case _:
                    continue
            found += len(inner)
            if found > ITEMS_MAX:
                return found
            below += inner
        if not below:
            return found
        level = below
    return ITEMS_MAX + 1


def followed(value: Any, steps: Sequence[Any]) -> Any:
    """What `.name`, `[index]` and `[*]` lead to in a value."""
    for at, step in enumerate(steps):
        if isinstance(value, Named):
            return value.follow(steps[at:])
        if isinstance(step, Splat):
            if isinstance(value, (PlanTarget, Perhaps, Pieces, Encoded)):
                return unknown("a part of what is not known", value)
            many = value if isinstance(value, list) else [] if value is None else [value]
            value = [followed(one, step.steps) for one in many]
            continue
        has_name = isinstance(value, dict) and isinstance(step, str) and step in value
        if has_name or (isinstance(value, list) and type(step) is int and -1 < step < len(value)):
            value = value[step]
        else:
            return unknown("a part that is not there, or is not known", value, step)
    return value


def text_of(value: Any) -> str | None:
    """A known value as it is written into a text; None if it cannot be."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(whole(value))
        case str():
            return value
        case _:
            return None


def whole(value: float) -> float:
    """A whole number as such."""
    return int(value) if float(value).is_integer() and abs(value) < 1e15 else value


def flag_of(value: Any) -> Any:
    """True or false, or a value that is not known."""
    if isinstance(value, str) and value in ("true", "false"):
        return value == "true"
    return value if isinstance(value, bool) else unknown("no condition", value)


def number_of(value: Any) -> Any:
    """A number, even if it is written as text, or a value that is not known."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", value):
        return whole(float(value))
    return unknown("no number where one is needed", value)


# -- functions -------------------------------------------------------------------------------------------------------------


def called(name: str, values: list[Any]) -> Any:
    """What a function returns."""
    if name == "jsonencode" and len(values) == 1:
        return json.dumps(values[0]) if is_known(values[0]) else Encoded(values[0])
    if name == "jsondecode" and len(values) == 1 and isinstance(values[0], Encoded):
        return values[0].value
    if name in _LOOSE:
        made = _LOOSE[name](values)
    elif name not in _FUNCTIONS:
        return unknown(f"the function {name} is not evaluated here", *values)
    elif not all(is_known(one) for one in values):
        return unknown(f"the function {name} of values that are not known", *values)
    else:
        try:
            made = _FUNCTIONS[name](*values)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError):
            return unknown(f"the function {name} does not accept its arguments")
    too_large = size_of(made) > ITEMS_MAX or (isinstance(made, str) and len(made) > TEXT_MAX)
    return unknown(f"the result of {name} is too large") if too_large else made


def _formatted(form: str, *values: Any) -> Any:
    rest = list(values)

    def one(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        shown = text_of(rest.pop(0))
        if shown is None or len(shown) > TEXT_MAX // len(values):
            raise TypeError
        return json.dumps(shown) if match[0] == "%q" else shown

    if "%" in _VERB.sub("", form):
        raise ValueError
    return _VERB.sub(one, form)


def _number(value: Any) -> Any:
    number = number_of(value)
    if isinstance(number, Perhaps):
        raise TypeError
    return number


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _split(mark: str, text: str) -> list[str]:
    return text.split(mark) if mark else list(text)


def _replaced(text: str, old: str, new: str) -> str:
    if len(old) > 1 and old.startswith("/") and old.endswith("/"):
        raise ValueError  # a regular expression
    if text.count(old) * len(new) > TEXT_MAX:
        raise ValueError
    return text.replace(old, new)


def _joined(mark: str, many: list[Any]) -> str:
    texts = [text_of(one) for one in _items(many)]
    known = [one for one in texts if one is not None]
    if len(known) < len(texts) or sum(map(len, known)) + len(mark) * len(known) > TEXT_MAX:
        raise ValueError
    return mark.join(known)


def _merged(values: list[Any]) -> Any:
    if not all(isinstance(one, dict) or one is None for one in values):
        return unknown("a part of the result of merge is not known", *values)
    return {name: value for one in values if one is not None for name, value in one.items()}


def _concatenated(values: list[Any]) -> Any:
    if not all(isinstance(one, list) for one in values):
        return unknown("a part of the result of concat is not known", *values)
    return [one for many in values for one in many]


def _first_known(values: list[Any]) -> Any:
    """`try`: its first argument, if that is certainly there."""
    return values[0] if values and not isinstance(values[0], Perhaps) else unknown("which argument it takes", *values)


def _coalesced(values: list[Any]) -> Any:
    for one in values:
        if one is None or one == "":
            continue
        return unknown("which argument it takes", *values) if isinstance(one, Perhaps) else one
    return unknown("no argument has a value")


def _as_is(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else unknown("one argument is needed", *values)


def _one(values: list[Any]) -> Any:
    many = values[0] if len(values) == 1 else None
    if isinstance(many, list) and len(many) < 2:
        return many[0] if many else None
    return unknown("one of what is not known", *values)


def _as_set(values: list[Any]) -> Any:
    many = values[0] if len(values) == 1 else None
    if not isinstance(many, list):
        return unknown("a set of what is not known", *values)
    return sorted(set(many)) if all(isinstance(one, str) for one in many) else many


def _element(given: list[Any]) -> Any:
    if len(given) == 2 and isinstance(given[0], list) and given[0] and type(given[1]) is int:
        return given[0][given[1] % len(given[0])]
    return unknown("an element of what is not known", *given)


def _flattened(given: list[Any]) -> Any:
    if len(given) != 1 or not isinstance(given[0], list) or any(isinstance(one, Perhaps) for one in given[0]):
        return unknown("a list of what is not known", *given)
    return [inner for one in given[0] for inner in (_flattened([one]) if isinstance(one, list) else [one])]


def _keys(given: list[Any]) -> Any:
    return (
        sorted(given[0])
        if len(given) == 1 and isinstance(given[0], dict)
        else unknown("keys of what is not known", *given)
    )


def _length(given: list[Any]) -> Any:
    is_known_here = len(given) == 1 and isinstance(given[0], (dict, list, str))
    return len(given[0]) if is_known_here else unknown("the length of what is not known", *given)


def _values(given: list[Any]) -> Any:
    if len(given) != 1 or not isinstance(given[0], dict):
        return unknown("the values of what is not known", *given)
    return [given[0][name] for name in sorted(given[0])]


def _looked_up(values: list[Any]) -> Any:
    if len(values) in (2, 3) and isinstance(values[0], dict) and isinstance(values[1], str):
        if values[1] in values[0]:
            return values[0][values[1]]
        if len(values) == 3:
            return values[2]
    return unknown("a value of what is not known", *values)


ARITHMETIC: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": lambda one, other: one + other, "-": lambda one, other: one - other, "*": lambda one, other: one * other,
    "/": lambda one, other: one / other, "%": math.fmod, "<": lambda one, other: one < other,
    ">": lambda one, other: one > other, "<=": lambda one, other: one <= other, ">=": lambda one, other: one >= other,
}  # fmt: skip
_LOOSE: Final[Mapping[str, Callable[[list[Any]], Any]]] = {  # even for values that are not known
    "coalesce": _coalesced, "concat": _concatenated, "element": _element, "flatten": _flattened, "keys": _keys,
    "length": _length, "lookup": _looked_up, "merge": _merged, "nonsensitive": _as_is, "one": _one, "sensitive": _as_is,
    "tolist": _as_is, "tomap": _as_is, "tonumber": _as_is, "toset": _as_set, "tostring": _as_is, "try": _first_known,
    "values": _values,
}  # fmt: skip
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "abs": lambda one: abs(_number(one)), "ceil": lambda one: math.ceil(_number(one)),
    "floor": lambda one: math.floor(_number(one)), "max": lambda *many: max(map(_number, many)),
    "min": lambda *many: min(map(_number, many)),
    "compact": lambda many: [one for one in _items(many) if one not in (None, "")],
    "contains": lambda many, one: one in _items(many), "distinct": lambda many: list(dict.fromkeys(_items(many))),
    "endswith": str.endswith, "format": _formatted, "join": _joined, "jsondecode": json_of, "lower": str.lower,
    "range": lambda *numbers: list(range(*numbers)) if len(range(*numbers)) <= ITEMS_MAX else unknown("a long range"),
    "replace": _replaced, "reverse": lambda many: _items(many)[::-1], "split": _split, "startswith": str.startswith,
    "title": str.title, "tobool": lambda one: one, "trimprefix": str.removeprefix, "trimspace": str.strip,
    "trimsuffix": str.removesuffix, "upper": str.upper,
    "zipmap": lambda keys, many: dict(zip(_items(keys), _items(many), strict=True)),
}  # fmt: skip
