"""Errors of payloads: which part of a value has no JSON form, would not come back equal, or does not fit its type.

They are made after `codec.py` has refused a payload, so that the message names the field, its value and what was expected.
Never here: encoding, decoding, deciding what is refused. Invariant: `what` and `todo` never repeat a value of a
received payload, except as far as the payload type's own validation quotes it.
Private: may change with any release.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import chain, starmap
from math import isfinite
from typing import Any, cast

import msgspec

from onefold.errors import PayloadError
from onefold.interrupts import ignored, let_through

COMPLAINTS_MAX = 1_000  # pydantic's errors about one value; if there are more, only their count is used
_SHOWN_CHARS = 60
_PATH = r" - at (?:`key` in )?`\$(?P<path>[^`]*)`$"
_VALUE = r"(?s)^(Invalid (?:enum )?value) .*$"
_STEP = r"\.([^.\[\]]+)|\[(\d+)\]|(\[\.\.\.\])"
_NOTHING = object()
_TUPLE_PARTS_MAX = 4  # for a longer tuple, an annotation of any length is proposed
_UNION_MAX = 3
_INEXACT = "cannot be stored exactly"
_OF_JSON = (str, int, float, bool, list, dict, type(None))
_EXAMPLES = {
    "Decimal": "Decimal('1.10')",
    "UUID": "UUID(text)",
    "date": "date.fromisoformat('2026-01-31')",
    "datetime": "datetime.fromisoformat('2026-01-31T12:00:00+00:00')",
    "time": "time.fromisoformat('12:00:00')",
    "timedelta": "timedelta(hours=1)",
}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."


def _where(path: str) -> str:
    return "The value" if path == "$" else f"The field {path}"


def malformed(text: bytes | str, error: Exception) -> PayloadError:
    """The error for a text that is not JSON."""
    shown = f"It begins with {_shown(text[:_SHOWN_CHARS])}." if text else "It is empty."
    if isinstance(error, RecursionError):
        return PayloadError(
            "The payload is nested too deeply.",
            meaning=shown,
            todo="Send a flatter form; a few hundred levels are possible.",
        )
    reason = "a number is out of range" if isinstance(error, ArithmeticError) else str(error)
    return PayloadError(
        f"The payload is not JSON: {reason.removeprefix('JSON is malformed: ').rstrip('.')}.",
        meaning=shown,
        todo="Send JSON text in UTF-8; if another program wrote this message, declare its form with source=.",
    )


def misfit(text: bytes | str, error: Exception, name: str) -> PayloadError:
    """The error for a text that could not be read as the type, made from msgspec's or pydantic's error."""
    found = _pydantic_errors(error)
    at = ""
    # The text of pydantic's own error, which has no such path, is never made: it could have a million entries.
    if isinstance(error, msgspec.ValidationError) and (match := re.search(_PATH, str(error))):
        at = match["path"]
    if found is not None:
        where, reason, value = found
        if where is None:
            return malformed(text, ValueError(reason))
        at += where
        shown = f"The value there is {_shown(value)}." if value is not _NOTHING else ""
    elif isinstance(error, msgspec.ValidationError):
        reason = reason_of(error)
        shown = _value_at(text, at)
    else:
        return malformed(text, error)
    return PayloadError(
        f"{_where('$' + at)} does not fit {name}: {reason.rstrip('.')}.",
        meaning=shown,
        todo=f"Send a value that matches {name}, or change {name} if this shape is intended.",
    )


def reason_of(error: msgspec.ValidationError) -> str:
    """What msgspec says about a value that does not fit, without the path and the value that some texts quote."""
    return re.sub(_VALUE, r"\1", re.sub(_PATH, "", str(error)))


def _pydantic_errors(error: Exception) -> tuple[str | None, str, object] | None:
    """Path (None: not JSON at all), reason and value of the first entry of a pydantic ValidationError.

    Getting the first entry makes all of them, so if there are very many only their count is returned.
    """
    one: BaseException | None = error
    while one is not None and not is_pydantic(one):
        one = one.__cause__
    if one is None:
        return None
    count = cast(Any, one).error_count()
    if count > COMPLAINTS_MAX:
        return "", f"pydantic finds {count:,} errors in it, too many to list", _NOTHING
    first = cast(Any, one).errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return None, first["msg"].removeprefix("Invalid JSON: "), None
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
    more = f" (and {count - 1} more)" if count > 1 else ""
    return where, first["msg"] + more, first["input"]


def is_pydantic(error: BaseException) -> bool:
    """Whether an error is a ValidationError of pydantic, without importing pydantic."""
    return type(error).__module__.partition(".")[0] == "pydantic_core" and hasattr(error, "error_count")


def _value_at(text: bytes | str, path: str) -> str:
    """A sentence with the value that a path of msgspec points to; empty if the path does not name one location."""
    try:
        value: Any = msgspec.json.decode(text)
        for name, index, any_key in re.findall(_STEP, path):
            if any_key:
                if not isinstance(value, Mapping) or len(value) != 1:
                    return ""
                value = next(iter(value.values()))
            else:
                value = value[name] if name else value[int(index)]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        let_through(error)
        return ""
    return f"The value there is {_shown(value)}."


def of_result(value: object, error: PayloadError, name: str, fitting: str | None, *, is_of_type: bool) -> PayloadError:
    """The error for a returned value that `error` refused.

    Args:
        name: the type that the function is declared to return.
        fitting: an annotation with which this value can be recorded, and all values that the present one allows.
        is_of_type: whether the value is of the annotated class, so that the annotation says too little about its parts.
    """
    is_declared = name not in ("Any", "object")
    if fitting is not None and is_declared and is_of_type:
        todo = f"Annotate it with -> {fitting}, if that fits all it returns, or with a dataclass, TypedDict or Struct whose"
        todo += " fields have their types."
    elif fitting is not None and is_declared:
        todo = f"Return a value of type {name}, as its annotation says, or annotate it with -> {fitting}."
    elif fitting is not None:
        todo = f"Annotate what the function returns: -> {fitting}. Without it the value is read back as plain JSON."
    elif _INEXACT in error.what and (is_of_type or not is_declared):
        todo = error.todo
        if isinstance(value, dict | list | tuple):
            todo += " The function's annotation must name that type."
    elif is_declared and not is_of_type:
        todo = f"Return a value of type {name}, as its annotation says, or annotate it with a type that fits all it returns."
    else:
        declared = f" of type {name}, as its annotation says," if is_declared else ""
        todo = (
            f"Return None or a value{declared} that JSON can hold: builtins, dates, Decimal, UUID, Enum, dataclasses,"
        )
        todo += " Structs or pydantic models."
    return PayloadError(
        f"The function ran and returned a value of type {type(value).__qualname__} that cannot be recorded: {error.what}",
        meaning=f"Its effect has happened; only its result is missing. {error.meaning}".rstrip(),
        todo=todo,
    )


def annotation_of(value: Any) -> Any:
    """A type to propose for a value, derived from its parts, with `Any` for parts that do not show theirs. To be tried.

    Raises:
        RecursionError: the value is nested too deeply, or contains itself.
    """
    cls = type(value)
    if cls is tuple and 0 < len(value) <= _TUPLE_PARTS_MAX:
        parts: Any = tuple(annotation_of(part) for part in value)
        return tuple[parts]
    if cls is tuple:
        part: Any = _common(value)
        return tuple[part, ...]
    if cls in (list, set, frozenset):
        return cls[_common(value)] if value else cls
    if cls is dict:
        return dict[_common(value), _common(value.values())] if value else dict  # type: ignore[misc]
    return cls


def _common(parts: Iterable[Any]) -> Any:
    """The common type of all parts; empty lists and dicts are ignored."""
    found = dict.fromkeys(annotation_of(part) for part in parts if type(part) not in (list, dict) or part)
    return functools.reduce(operator.or_, found) if 0 < len(found) <= _UNION_MAX else Any


def retyped(value: Any, back: Any) -> tuple[type, type] | None:
    """The first change of class between a value and `back`, its equal read from JSON: the old class and the new one."""
    if type(value) is not type(back):
        return type(value), type(back)
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        pairs = chain(zip(value, back, strict=True), ((one, back[key]) for key, one in value.items()))
    elif isinstance(value, list):
        pairs = zip(value, back, strict=True)
    return next((one for one in starmap(retyped, pairs) if one is not None), None)


def no_json(value: object, error: Exception, encode: Callable[[object], bytes]) -> PayloadError:
    """The error for a value that `encode` refused with `error`."""
    path, culprit = _culprit(value, "$", encode)
    what = "is text that is not valid Unicode" if isinstance(error, UnicodeError) else "has no JSON form"
    return PayloadError(
        f"{_where(path)} {what}: its type is {type(culprit).__qualname__}.",
        meaning=f"The value there is {_shown(culprit)}.",
        todo="Use builtins, dates, Decimal, UUID, Enum, dataclasses, Structs or pydantic models.",
    )


def _culprit(value: object, path: str, encode: Callable[[object], bytes]) -> tuple[str, object]:
    """The innermost part of a value that cannot be encoded."""
    for step, part in _parts(value):
        try:
            encode(part)
        except (TypeError, ValueError) as error:
            let_through(error)
            return _culprit(part, path + step, encode)
    return path, value


def _not_finite(value: object, path: str) -> tuple[str, object] | None:
    """The first NaN or infinity in a value; JSON turns these into null."""
    if isinstance(value, float):
        return None if isfinite(value) else (path, value)
    found = (_not_finite(part, path + step) for step, part in _parts(value))
    return next((one for one in found if one is not None), None)


def _parts(value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield f".{key}", part
    elif isinstance(value, list | tuple | set | frozenset):
        for number, part in enumerate(value):
            yield f"[{number}]", part
    else:
        for name in _field_names(type(value)) or ():
            if hasattr(value, name):
                yield f".{name}", getattr(value, name)


def _field_names(cls: type) -> tuple[str, ...] | None:
    """The field names of a Struct, dataclass or pydantic model, which may have none; None for any other class."""
    for attribute in ("__struct_fields__", "__dataclass_fields__", "model_fields"):
        if hasattr(cls, attribute):
            return tuple(getattr(cls, attribute))
    return None


def strange_fields(value: object, given: object, path: str = "$") -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Fields of a decoded JSON text for which the value read from it has no place, so that reading ignores them.

    Args:
        value: the payload as its type reads it. given: the payload as plain JSON values.

    Yields:
        The path, the field's name, and the names that exist there.
    """
    if isinstance(given, list) and isinstance(value, list | tuple) and len(given) == len(value):
        for number, (mine, theirs) in enumerate(zip(value, given, strict=True)):
            yield from strange_fields(mine, theirs, f"{path}[{number}]")
    if not isinstance(given, dict):
        return
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            for name, theirs in given.items():
                if name in value:
                    yield from strange_fields(value[name], theirs, f"{path}.{name}")
                else:
                    yield path, name, tuple(value)
        return
    names = _names_in_json(value)
    for name, theirs in given.items() if names is not None else ():
        if name not in (names or ()):
            yield path, name, _field_names(type(value)) or ()
        elif hasattr(value, name):
            yield from strange_fields(getattr(value, name), theirs, f"{path}.{name}")


def _names_in_json(value: object) -> set[str] | None:
    """The names that an object's fields can have in JSON; None if it has no fields, or accepts others too."""
    names = _field_names(type(value))
    if names is None or getattr(value, "model_extra", None):
        return None
    known = {*names, *getattr(type(value), "__struct_encode_fields__", ())}
    for model in getattr(type(value), "model_fields", {}).values():
        if not isinstance(model.validation_alias, str | None):  # several names, or a path
            return None
        known |= {alias for alias in (model.alias, model.validation_alias) if alias is not None}
    return known


class _LostKey:
    """A dict's key that is not text and so did not come back."""

    def __init__(self, path: str, key: object) -> None:
        self.path, self.key = path, key


def _difference(value: Any, back: Any, path: str) -> tuple[str, object, object] | None:
    """The first location where two values differ: the original part and what came back.

    Containers, and classes without an __eq__ of their own, are compared part by part.
    """
    with ignored(ArithmeticError):  # comparing a signaling NaN
        if value == back:
            return None
    pairs: list[tuple[str, Any, Any]]
    if isinstance(value, Mapping) and isinstance(back, Mapping):
        for key in value:
            if key not in back:
                return f"{path}.{key}", value[key], _NOTHING if isinstance(key, str) else _LostKey(path, key)
        pairs = [(f".{key}", value[key], back[key]) for key in value]
    elif isinstance(value, list | tuple) and isinstance(back, type(value)) and len(value) == len(back):
        pairs = [(f"[{number}]", mine, theirs) for number, (mine, theirs) in enumerate(zip(value, back, strict=True))]
    elif type(back) is type(value) and (names := _field_names(type(value))) is not None:
        pairs = [(f".{name}", getattr(value, name, None), getattr(back, name, None)) for name in names]
    else:
        return path, value, back
    found = (_difference(mine, theirs, path + step) for step, mine, theirs in pairs)
    return next((one for one in found if one is not None), None)


def unequal(value: object, back: object, name: str) -> PayloadError | None:
    """The error for a value of type `name` that came back as `back`; None if all its parts are equal."""
    found = _difference(value, back, "$")
    return _not_back(*found, name) if found is not None else None


def refuse_endless(value: object) -> None:
    """Refuse NaN and infinity, which JSON turns into null.

    Raises:
        PayloadError: a part of the value is NaN or infinity.
    """
    found = _not_finite(value, "$")
    if found is not None:
        raise _not_back(*found, None, "")


def unreadable(value: object, text: bytes, error: Exception, name: str) -> PayloadError:
    """The error for a value of type `name` whose JSON text could not be read as that type."""
    endless = _not_finite(value, "$")
    return _not_back(*endless, None, name) if endless is not None else misfit(text, error, name)


def _not_back(path: str, value: object, back: object, name: str) -> PayloadError:
    kind, became = type(value).__qualname__, type(back).__qualname__
    if back is _NOTHING:
        what = f"{name} has no place for the field {path}: it would be lost."
        todo = "Send what the type declares, or add the field to it."
    elif isinstance(back, _LostKey):
        key_kind = type(back.key).__qualname__
        what = f"{_where(back.path)} has the key {_shown(back.key)} of type {key_kind}: keys in JSON are text."
        todo = f"Use text for keys, or declare the type, for example dict[{key_kind}, {kind}]."
    elif isinstance(value, float) and back is None:
        what = f"{_where(path)} is {value}, which JSON does not have."
        todo = "Send None, or a text, instead of a number."
    elif isinstance(value, Decimal) and value.is_nan():
        what = f"{_where(path)} is {value}, which is not equal to itself."
        todo = "Send a number, or None if there is none."
    elif kind == became:
        what = f"{_where(path)} {_INEXACT}: another {kind} would come back."
        todo = f"Give {kind} a way back from JSON that restores all of it, or send another value."
    elif type(back) in _OF_JSON:
        what = f"{_where(path)} {_INEXACT}: {kind} would become {became}."
        todo = f"Pass a value of type {name}." if became == name else _declaring(path, kind, became)
    else:
        what = f"{_where(path)} is declared as {became}, but a value of type {kind} was given."
        example = _EXAMPLES.get(became)
        todo = f"Pass a value of type {became}{f', for example {example}' if example else ''}."
        if isinstance(value, float) and became == "Decimal":
            what = f"{_where(path)} is declared as Decimal, but a float was given; floats cannot hold decimals exactly."
            todo = "Pass a Decimal made from text, for example Decimal('1.10')."
    return PayloadError(what, meaning=f"The value there is {_shown(value)}.", todo=todo)


def _declaring(path: str, kind: str, became: str) -> str:
    """What to do about a value whose type is not declared: the declaration that is needed."""
    name, declared = "", kind
    for step, index, _ in reversed(re.findall(_STEP, path)):
        if not index:
            name = step
            break
        declared = f"list[{declared}]"
    if name.isidentifier():
        return (
            f"Declare the field as {name}: {declared}, in a dataclass, TypedDict or Struct; or convert it to {became}."
        )
    return f"Declare its exact type, for example {declared}, or convert it to {became}."
