"""Canonical JSON, both ways and typed, and the fingerprint of a payload.

Canonical: keys sorted by code point at every level, no white space, Decimal, date, UUID and Enum as JSON text. What would
not come back equal (NaN, a tuple where nothing says tuple, a field that the type does not have) is refused when it is
encoded, so that a duplicate is answered with exactly what the first run returned. A fingerprint is BLAKE2b of the canonical
text, 128 bits: two texts that differ in key order, white space or the spelling of a number have the same one; 1 and 1.0
have not.

pydantic models are understood when the program has imported pydantic; nothing here imports it.
Never here: pickle, keys of operations, envelopes.
Invariant: decode(encode(value), type of value) == value, or encode raised.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b
from math import isfinite
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec
from msgspec import inspect

from onefold.errors import PayloadError, UsageError

T = TypeVar("T")

_EXACT_CHARS = 16  # 15 digits and a point: every such decimal is a double of its own (IEEE 754, DBL_DIG = 15)
_SHOWN_CHARS = 60
# Patterns for errors; compiled when there is one.
_PATH = r" - at (?:`key` in )?`\$(?P<path>[^`]*)`$"
_VALUE = r"(?s)^(Invalid (?:enum )?value) .*$"
_STEP = r"\.([^.\[\]]+)|\[(\d+)\]|(\[\.\.\.\])"
_NOTHING = object()


class _Decoder(Protocol):
    def decode(self, data: bytes | str, /) -> Any: ...


# ------------------------------------------------------------------------------------------------ canonical text


def _to_builtins(value: object) -> object:
    """Called by msgspec for classes it does not know."""
    if _is_model(type(value)):
        return cast(Any, value).model_dump(mode="json", by_alias=True, round_trip=True)
    raise TypeError(f"{type(value).__qualname__} has no JSON form")


def _number(text: str) -> float | Decimal:
    """A number of a JSON text: a double, or a Decimal where a double would make two amounts equal."""
    number = float(text)
    if len(text) <= _EXACT_CHARS and abs(number) != float("inf"):
        return number
    exact = Decimal(text)
    return number if Decimal(repr(number)) == exact else exact


_SORTED = msgspec.json.Encoder(order="sorted", decimal_format="string", enc_hook=_to_builtins)
_UNSORTED = msgspec.json.Encoder(enc_hook=_to_builtins)
_EXACT = msgspec.json.Decoder(float_hook=_number)
_EXACT_SORTED = msgspec.json.Encoder(order="sorted", decimal_format="number")
_ANY = msgspec.json.Decoder()


def _encode_unsorted(value: object) -> bytes:
    try:
        data = _UNSORTED.encode(value)
    except (TypeError, ValueError) as error:
        raise _no_json(value, error) from None
    return canonical(data)


def canonical(text: bytes | str) -> bytes:
    """The canonical form of a JSON text.

    Raises:
        PayloadError: not JSON, or nested too deeply.
    """
    try:
        return _EXACT_SORTED.encode(_EXACT.decode(text))
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise _malformed(text, error) from None


def digest(canonical_text: bytes) -> str:
    """Fingerprint of a text that is canonical already (what `encode` returns): 32 hexadecimal characters."""
    return blake2b(canonical_text, digest_size=16).hexdigest()


def fingerprint(value_or_json: object) -> str:
    """Fingerprint of a value, or of a JSON text given as bytes: 32 hexadecimal characters.

    Raises:
        PayloadError: not JSON, or a value without a JSON form that comes back equal.
    """
    return digest(canonical(value_or_json) if isinstance(value_or_json, bytes) else encode(value_or_json))


def plain(value: object) -> Any:
    """A value as JSON's own types: dict, list, str, int, float, bool, None; names as in the JSON text."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_to_builtins)


def encode(value: object) -> bytes:
    """Canonical JSON of a value, as `payload_type(type(value)).encode(value)`; plain containers as `Any`."""
    return payload_type(type(value) if _has_fields(type(value)) else Any).encode(value)


def decode(data: bytes | str, as_type: type[T]) -> T:
    """A value of `as_type` from JSON. Errors as `PayloadCodec.decode`."""
    return cast(T, payload_type(as_type).decode(data))


# ------------------------------------------------------------------------------------------------------ typed codec


class PayloadCodec(Generic[T]):
    """Encodes, decodes and fingerprints the payloads of one job, and encodes its results. Immutable, safe from any thread.

    Args:
        annotation: the payload's type: a dataclass, TypedDict, msgspec.Struct, pydantic model, builtin, or any combination
            that msgspec understands; `Any` for untyped JSON.
        result: the type of what the handler returns; `Any` when it does not say.

    Raises:
        UsageError: a type that has no JSON form.
    """

    __slots__ = ("_decoder", "_result", "annotation", "name")

    def __init__(self, annotation: Any = Any, result: Any = Any) -> None:
        self.annotation = Any if annotation is object else annotation
        self.name = type_name(self.annotation)
        self._decoder: _Decoder = _decoder_of(self.annotation, self.name)
        self._result: PayloadCodec[Any] | None = None if result is annotation else payload_type(result)

    def __repr__(self) -> str:
        return f"<codec of {self.name}>"

    def encode(self, value: T) -> bytes:
        """Canonical JSON of `value`.

        Raises:
            PayloadError: no JSON form, or it would not come back equal; names the field and the value.
        """
        if value is None and self.annotation is Any:
            return b"null"
        try:
            return self._encode(value)
        except RecursionError:
            raise PayloadError(
                f"The {self.name} value is nested too deeply, or contains itself.",
                todo="Send a flatter form; keep references as ids.",
            ) from None

    def _encode(self, value: T) -> bytes:
        try:
            data = _SORTED.encode(value)
        except TypeError:  # keys that are no strings (msgspec sorts only those), or no JSON form at all
            data = _encode_unsorted(value)
        except ValueError as error:
            raise _no_json(value, error) from None
        try:
            back = self._decoder.decode(data)
        except ValueError as error:
            endless = _not_finite(value, "$")
            raise (_unequal(*endless, None, self.name) if endless else _misfit(data, error, self.name)) from None
        if back != value:
            found = _difference(value, back, "$")
            if found is not None:
                raise _unequal(*found, self.name)
        return data

    def encode_result(self, value: object) -> bytes:
        """Canonical JSON of what the handler returned; errors as `encode`.

        A handler that does not say what it returns may return anything that has a JSON form; duplicates get that form.
        """
        codec = self if self._result is None else self._result
        return encode(value) if codec.annotation is Any else codec.encode(cast(Any, value))

    def decode(self, data: bytes | str) -> T:
        """The payload of a JSON text.

        Raises:
            PayloadError: not JSON, nested too deeply, or it does not fit the type; names the field, its value and what was
                expected. `what` and `todo` of the error do not repeat the value, so that they may be logged.
        """
        try:
            return cast(T, self._decoder.decode(data))
        except (ValueError, RecursionError) as error:
            raise _misfit(data, error, self.name) from None

    def decode_result(self, data: bytes | str) -> Any:
        """What the handler returned, from a record; errors as `decode`."""
        return (self if self._result is None else self._result).decode(data)

    @staticmethod
    def fingerprint(text: bytes | str) -> str:
        """Fingerprint of a payload's JSON text, the same for every spelling of it; 32 hexadecimal characters.

        Raises:
            PayloadError: not JSON, or nested too deeply.
        """
        return digest(canonical(text))


@lru_cache(maxsize=1024)
def _cached(annotation: Any, result: Any) -> PayloadCodec[Any]:
    return PayloadCodec(annotation, result)


def payload_type(annotation: Any, result: Any = Any) -> PayloadCodec[Any]:
    """The codec for an annotation, made once per pair of types. Arguments and errors as `PayloadCodec`."""
    try:
        return _cached(annotation, result)
    except TypeError:  # an annotation that cannot be hashed: Annotated[...] with a list in it
        return PayloadCodec(annotation, result)


def type_name(annotation: Any) -> str:
    """A type as its author writes it: `Order`, `list[Order]`, `Order | None`."""
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return "None" if annotation is type(None) else annotation.__name__
    return re.sub(r"(?:\w+\.)+(?:<locals>\.)?", "", str(annotation))


# ---------------------------------------------------------------------------------------------------------- decoders


def _is_model(cls: object) -> bool:
    pydantic = sys.modules.get("pydantic")  # a model exists only where pydantic was imported
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


def _has_fields(cls: type) -> bool:
    return hasattr(cls, "__dataclass_fields__") or issubclass(cls, msgspec.Struct) or _is_model(cls)


def _from_builtins(cls: type, value: object) -> object:
    """Called by msgspec for classes it does not know; `object` takes anything.

    As JSON, so that a strict model reads dates as it does alone.
    """
    return value if cls is object else cast(Any, cls).model_validate_json(_UNSORTED.encode(value))


class _ModelDecoder:
    """Decodes a pydantic model at the top, without a detour."""

    __slots__ = ("_model",)

    def __init__(self, model: type) -> None:
        self._model = model

    def decode(self, data: bytes | str, /) -> Any:
        return cast(Any, self._model).model_validate_json(data)


def _decoder_of(annotation: Any, name: str) -> _Decoder:
    if _is_model(annotation):
        return _ModelDecoder(annotation)
    try:
        known = inspect.type_info(annotation)
        stranger = next(_strangers(known, set()), None)
        if stranger is None:
            return cast(_Decoder, msgspec.json.Decoder(annotation, dec_hook=_from_builtins))
        reason = f"{type_name(stranger)} has no JSON form."
    except (TypeError, ValueError, NameError) as error:
        reason = str(error).rstrip(".") + "."
    raise UsageError(
        f"The type {name} cannot be a payload or result: {reason}",
        todo="Use a dataclass, a TypedDict, a msgspec.Struct, a pydantic model, or builtins, dates, Decimal, UUID and Enum.",
    )


def _strangers(known: object, seen: set[int]) -> Iterator[Any]:
    """Classes inside a type that neither msgspec nor pydantic can read."""
    if id(known) in seen:
        return
    seen.add(id(known))
    if isinstance(known, inspect.CustomType | inspect.RawType | inspect.ExtType):
        cls = getattr(known, "cls", msgspec.Raw)
        if not _is_model(cls) and cls is not object:
            yield cls
    elif isinstance(known, tuple | list):
        for part in known:
            yield from _strangers(part, seen)
    elif isinstance(known, msgspec.Struct):
        for name in known.__struct_fields__:
            if isinstance(part := getattr(known, name), tuple | list | msgspec.Struct):
                yield from _strangers(part, seen)


# ------------------------------------------------------------------------------------------------------------ errors


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."


def _place(path: str) -> str:
    return "The value" if path == "$" else f"The field {path}"


def _malformed(text: bytes | str, error: Exception) -> PayloadError:
    shown = f"It begins with {_shown(text[:_SHOWN_CHARS])}." if text else "It is empty."
    if isinstance(error, RecursionError):
        return PayloadError(
            "The payload is nested too deeply.",
            meaning=shown,
            todo="Send a flatter form; some hundred levels are possible.",
        )
    reason = "a number is out of range" if isinstance(error, ArithmeticError) else str(error)
    return PayloadError(
        f"The payload is not JSON: {reason.removeprefix('JSON is malformed: ').rstrip('.')}.",
        meaning=shown,
        todo="Send JSON text in UTF-8; if another program wrote this message, declare its form with source=.",
    )


def _misfit(text: bytes | str, error: Exception, name: str) -> PayloadError:
    """The error for a text that could not be read as the type, from what msgspec or pydantic said."""
    found = _pydantic_errors(error)
    at = ""
    if match := re.search(_PATH, str(error)):
        at = match["path"]
    if found is not None:
        place, reason, value = found
        if place is None:
            return _malformed(text, ValueError(reason))
        at += place
        shown = f"The value there is {_shown(value)}." if value is not error else ""
    elif isinstance(error, msgspec.ValidationError):
        reason = re.sub(_VALUE, r"\1", re.sub(_PATH, "", str(error)))
        shown = _value_at(text, at)
    else:
        return _malformed(text, error)
    return PayloadError(
        f"{_place('$' + at)} does not fit {name}: {reason.rstrip('.')}.",
        meaning=shown,
        todo=f"Send what {name} declares, or change the type if this form is meant.",
    )


def _pydantic_errors(error: Exception) -> tuple[str | None, str, object] | None:
    """Place (None: not JSON at all), reason and value of the first complaint of a pydantic ValidationError."""
    for one in (error, error.__cause__):
        if one is not None and type(one).__module__.partition(".")[0] == "pydantic_core" and hasattr(one, "errors"):
            complaints = one.errors(include_url=False, include_context=False)
            first = complaints[0]
            if first["type"] == "json_invalid":
                return None, first["msg"].removeprefix("Invalid JSON: "), None
            place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
            more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
            return place, first["msg"] + more, first["input"]
    return None


def _value_at(text: bytes | str, path: str) -> str:
    """The value a path of msgspec points to, as a sentence; empty where the path does not name one place."""
    try:
        value = _ANY.decode(text)
        for name, index, any_key in re.findall(_STEP, path):
            if any_key:
                if not isinstance(value, Mapping) or len(value) != 1:
                    return ""
                value = next(iter(value.values()))
            else:
                value = value[name] if name else value[int(index)]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return f"The value there is {_shown(value)}."


def _no_json(value: object, error: Exception) -> PayloadError:
    path, culprit = _culprit(value, "$")
    what = "is text that is not valid Unicode" if isinstance(error, UnicodeError) else "has no JSON form"
    return PayloadError(
        f"{_place(path)} {what}: its type is {type(culprit).__qualname__}.",
        meaning=f"The value there is {_shown(culprit)}.",
        todo="Use builtins, dates, Decimal, UUID, Enum, dataclasses, Structs or pydantic models.",
    )


def _culprit(value: object, path: str) -> tuple[str, object]:
    """The innermost part of a value that cannot be encoded."""
    for step, part in _parts(value):
        try:
            _UNSORTED.encode(part)
        except (TypeError, ValueError):
            return _culprit(part, path + step)
    return path, value


def _not_finite(value: object, path: str) -> tuple[str, object] | None:
    """The first NaN or infinity in a value: JSON turns them into null."""
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
    elif _has_fields(type(value)):
        for name in _field_names(type(value)):
            if hasattr(value, name):
                yield f".{name}", getattr(value, name)


def _field_names(cls: Any) -> tuple[str, ...]:
    if issubclass(cls, msgspec.Struct):
        return tuple(cls.__struct_fields__)
    return tuple(cls.__dataclass_fields__ if hasattr(cls, "__dataclass_fields__") else cls.model_fields)


def _difference(value: Any, back: Any, path: str) -> tuple[str, object, object] | None:
    """The first place where two values differ: what stood there and what came back.

    Containers, and classes without an __eq__ of their own, are compared part by part.
    """
    if value == back:
        return None
    pairs: list[tuple[str, Any, Any]]
    if isinstance(value, Mapping) and isinstance(back, Mapping):
        missing = next((key for key in value if key not in back), None)
        if missing is not None:
            return f"{path}.{missing}", value[missing], _NOTHING
        pairs = [(f".{key}", value[key], back[key]) for key in value]
    elif isinstance(value, list | tuple) and isinstance(back, type(value)) and len(value) == len(back):
        pairs = [(f"[{number}]", mine, theirs) for number, (mine, theirs) in enumerate(zip(value, back, strict=True))]
    elif _has_fields(type(value)) and type(back) is type(value):
        names = _field_names(type(value))
        pairs = [(f".{name}", getattr(value, name, None), getattr(back, name, None)) for name in names]
    else:
        return path, value, back
    found = (_difference(mine, theirs, path + step) for step, mine, theirs in pairs)
    return next((one for one in found if one is not None), None)


def _unequal(path: str, value: object, back: object, name: str) -> PayloadError:
    kind, became = type(value).__qualname__, type(back).__qualname__
    if back is _NOTHING:
        what = f"{name} has no place for the field {path}: it would be lost."
        todo = "Send what the type declares, or add the field to it; keys of plain objects are text."
    elif isinstance(value, float) and back is None:
        what = f"{_place(path)} is {value}, which JSON does not have."
        todo = "Send None, or a text, where there is no number."
    else:
        what = f"{_place(path)} would not come back equal: {kind} would become {became}."
        todo = "Declare its exact type, or send it in a form that JSON has."
        if became == name:
            todo = f"Pass a value of type {name}."
    return PayloadError(what, meaning=f"The value there is {_shown(value)}.", todo=todo)
