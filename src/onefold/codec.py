"""Encodes to and decodes from canonical, typed JSON, and makes the fingerprint of a payload.

Canonical means: keys sorted by code point at every level, no white space, Decimal, date, UUID and Enum as JSON strings.
A value that would not decode to an equal one (NaN, a tuple if the type does not declare one, a field that the type does
not have) is refused when it is encoded, so that a duplicate is answered with exactly what the first run returned. A
fingerprint is BLAKE2b of the canonical text, 128 bits: two texts that differ only in key order, white space or the
notation of a number have the same fingerprint; 1 and 1.0 have different ones.

pydantic models are supported if the program has imported pydantic; nothing here imports it.
Never here: pickle, keys of operations, envelopes.
Invariant: decode(encode(value), type of value) == value, or encode raised.
Private: may change with any release.
"""

from __future__ import annotations

import re
import sys
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, get_origin

import msgspec
from msgspec import inspect

from onefold import payload_errors
from onefold.errors import PayloadError, UsageError
from onefold.interrupts import let_through

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

_EXACT_CHARS = 16  # 15 digits and a point: up to here different decimals are different doubles (DBL_DIG = 15)


_CROWDED_BYTES = 16_384  # a shorter text has too few numbers to cost much time
_ALIKE_MAX = 32  # values with the same hash in one array or object; at most 16 64-bit integers share one
_NESTED_MAX = 4  # levels of nested arrays whose hash is checked
_HASHED = (  # in msgspec's descriptions of types and in pydantic's
    r"SetType\(item_type=(?!StrType)|key_type=(?!StrType|AnyType)"
    r"|'(?:frozen)?set'(?!, 'items_schema': \{'type': 'str')|'keys_schema': \{'type': '(?!str'|any')"
)
_OWN_HASH_MAX = 2**61 - 2  # a smaller integer is its own hash


# ------------------------------------------------------------------------------------------------ canonical text


def _to_builtins(value: object) -> object:
    """Convert an object of a class that msgspec does not know; msgspec calls it."""
    if _is_model(type(value)):
        return cast(Any, value).model_dump(mode="json", by_alias=True, round_trip=True)
    raise TypeError(f"{type(value).__qualname__} has no JSON form")


def _number(text: str) -> float | Decimal:
    """A number in a JSON text as a double, or as a Decimal if a double would make different amounts equal."""
    number = float(text)
    if len(text) <= _EXACT_CHARS and abs(number) != float("inf"):
        return number
    exact = Decimal(text)
    return number if Decimal(repr(number)) == exact else exact


def decimal(text: str) -> Decimal:
    """A number in a JSON text with all of its digits, for `float_hook` and `parse_float`.

    Raises:
        ValueError: its exponent is too large for Decimal.
    """
    try:
        return Decimal(text)
    except ArithmeticError as error:
        let_through(error)
        raise ValueError(f"the number {text[:20]} ... is out of range") from None


VERSION_MARK_CHARS: Final = 8  # of a fingerprint's 32: from a payload's version 2 on they say which version it is
_MARKS: Final = "~"  # separates the digest from the fields in a fingerprint
_MARKS_CHARS_MAX: Final = 400
_NAMED: Final = re.compile(r"\w{1,64}")
_SORTED = msgspec.json.Encoder(order="sorted", decimal_format="string", enc_hook=_to_builtins)
_UNSORTED = msgspec.json.Encoder(enc_hook=_to_builtins)
_EXACT = msgspec.json.Decoder(float_hook=_number)
_ROUGH = msgspec.json.Decoder(float_hook=decimal)
_EXACT_SORTED = msgspec.json.Encoder(order="sorted", decimal_format="number")


def _encode_unsorted(value: object) -> bytes:
    try:
        data = _UNSORTED.encode(value)
    except (TypeError, ValueError) as error:
        let_through(error)
        raise payload_errors.no_json(value, error, _UNSORTED.encode) from None
    return canonical(data)


def canonical(text: bytes | str) -> bytes:
    """The canonical form of a JSON text.

    Raises:
        PayloadError: the text is not JSON, or is nested too deeply.
    """
    try:
        return _EXACT_SORTED.encode(_EXACT.decode(text))
    except (ValueError, ArithmeticError, RecursionError) as error:
        let_through(error)
        raise payload_errors.malformed(text, error) from None


def parts(text: bytes) -> Any:
    """A canonical text as JSON's own types, for `joined`; numbers keep their digits."""
    return _EXACT.decode(text)


def joined(value: object) -> bytes:
    """The canonical text of the result of `parts`, or of a part of it."""
    return _EXACT_SORTED.encode(value)


def digest(canonical_text: bytes) -> str:
    """Fingerprint of a canonical text (as `encode` returns it): 32 hexadecimal characters."""
    return blake2b(canonical_text, digest_size=16).hexdigest()


def fingerprint(value_or_json: object) -> str:
    """Fingerprint of a value, or of a JSON text given as bytes: 32 hexadecimal characters.

    Raises:
        PayloadError: the text is not JSON, or the value's JSON form would not decode to an equal value.
    """
    return digest(canonical(value_or_json) if isinstance(value_or_json, bytes) else encode(value_or_json))


class Compared(msgspec.Struct, frozen=True):
    """Makes fingerprints of a payload's fields, with a mark of each, so that a conflict can name those that differ.

    Args:
        only: the fields' names in JSON; None: all. ignored: fields that are left out.
    """

    only: tuple[str, ...] | None = None
    ignored: tuple[str, ...] = ()

    def of(self, text: bytes | str) -> str:
        """The fingerprint of a payload's JSON text; raises what `fingerprint` raises."""
        return self.of_parts(parts(canonical(text)))

    def of_parts(self, tree: Any) -> str:
        """The fingerprint of a result of `parts`."""
        if isinstance(tree, dict):
            tree = {
                name: value
                for name, value in tree.items()
                if (self.only is None or name in self.only) and name not in self.ignored
            }
        named = [name for name in sorted(tree) if _NAMED.fullmatch(name)] if isinstance(tree, dict) else []
        marks = ",".join(f"{name}={digest(joined(tree[name]))[:3]}" for name in named)
        return f"{digest(joined(tree))}{_MARKS}{marks if len(marks) <= _MARKS_CHARS_MAX else ''}"


def says_fields(fingerprint: str) -> bool:
    """Whether a fingerprint was made by `Compared`, so that it names fields."""
    return _MARKS in fingerprint


def differing(own: str, first: str) -> list[str]:
    """The names of the fields in which two payloads differ, as far as their fingerprints show it."""
    if not (says_fields(own) and says_fields(first)):
        return []
    one, other = (set(filter(None, text.partition(_MARKS)[2].split(","))) for text in (own, first))
    return sorted({mark.partition("=")[0] for mark in one ^ other})


def plain(value: object) -> Any:
    """A value as JSON's own types: dict, list, str, int, float, bool, None; field names as in the JSON text."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_to_builtins)


def encode(value: object) -> bytes:
    """Canonical JSON of a value, as by `payload_type(type(value)).encode(value)`; plain containers count as `Any`."""
    return payload_type(type(value) if _has_fields(type(value)) else Any).encode(value)


def outline(value: object) -> bytes:
    """Canonical JSON of a value that is only fingerprinted, never decoded; the types of its parts need not be declared.

    Raises:
        PayloadError: the value has no JSON form, contains NaN or an infinity, or is nested too deeply.
    """
    try:
        data = _SORTED.encode(value)
    except TypeError as error:  # keys that are not strings, or no JSON form at all
        let_through(error)
        data = _encode_unsorted(value)
    except (ValueError, RecursionError) as error:
        let_through(error)
        return encode(value)  # its error explains what is wrong
    if b"null" in data:
        payload_errors.refuse_endless(value)
    return data


def decode(data: bytes | str, as_type: type[T]) -> T:
    """A value of `as_type` from JSON. Raises what `PayloadCodec.decode` raises."""
    return cast(T, payload_type(as_type).decode(data))


# ------------------------------------------------------------------------------------------------------ typed codec


class PayloadCodec(Generic[T]):
    """Encodes, decodes and fingerprints the payloads of one job, and encodes its results. Immutable and thread-safe.

    Args:
        annotation: the payload's type: a dataclass, TypedDict, msgspec.Struct, pydantic model, builtin, or any
            combination that msgspec understands; `Any` for untyped JSON.
        result: the type of what the handler returns; `Any` if it is not annotated.

    Raises:
        UsageError: the type has no JSON form.
    """

    __slots__ = ("_decoder", "_hashes", "_result", "annotation")

    def __init__(self, annotation: Any = Any, result: Any = Any) -> None:
        self.annotation: Any = Any if annotation is object else annotation
        self._decoder = _decoder_of(self.annotation)
        self._hashes: tuple[Callable[[str], object], ...] | None = None  # determined at the first long text
        self._result: PayloadCodec[Any] | None = None if result is annotation else payload_type(result)

    def __repr__(self) -> str:
        return f"<codec of {self.name}>"

    @property
    def name(self) -> str:
        """The payload's type as a text for people."""
        return type_name(self.annotation)

    def encode(self, value: T) -> bytes:
        """Canonical JSON of `value`.

        Raises:
            PayloadError: the value has no JSON form, or would not decode to an equal value; names field and value.
        """
        if value is None and self.annotation is Any:
            return b"null"
        try:
            return self._encode(value)
        except RecursionError as error:
            let_through(error)
            raise PayloadError(
                f"The {self.name} value is nested too deeply, or contains itself.",
                todo="Send a flatter form; keep references as ids.",
            ) from None

    def _encode(self, value: T) -> bytes:
        try:
            data = _SORTED.encode(value)
        except TypeError as error:  # keys that are not strings (msgspec sorts only those), or no JSON form at all
            let_through(error)
            data = _encode_unsorted(value)
        except ValueError as error:
            let_through(error)
            raise payload_errors.no_json(value, error, _UNSORTED.encode) from None
        try:
            back = self._decoder.decode(data)
        except ValueError as error:
            let_through(error)
            raise payload_errors.unreadable(value, data, error, self.name) from None
        try:
            is_other = back != value
        except ArithmeticError as error:  # comparing a signaling NaN
            let_through(error)
            is_other = True
        if is_other:
            wrong = payload_errors.unequal(value, back, self.name)
            if wrong is not None:
                raise wrong
        return data

    def encode_result(self, value: object) -> bytes:
        """Canonical JSON of what the handler returned; the errors are those of `encode`, worded for a returned value.

        A handler without a return annotation can return anything that has a JSON form; duplicates get that form.
        """
        codec = self if self._result is None else self._result
        try:
            return encode(value) if codec.annotation is Any else codec.encode(cast(Any, value))
        except PayloadError as error:
            raise _of_result(value, error, codec) from None

    def decode(self, data: bytes | str) -> T:
        """The payload of a JSON text.

        Raises:
            PayloadError: the text is not JSON, is nested too deeply, or does not fit the type; the error names the
                field, its value and what was expected, but `what` and `todo` do not repeat the value, so that they can
                be logged. Or the text has very many numbers that Python's sets and dicts cannot distinguish by their
                hash.
        """
        if len(data) > _CROWDED_BYTES:
            if self._hashes is None:
                self._hashes = _hashed_texts(self.annotation)
            for read in self._hashes:
                _refuse_crowds(data, read)
        try:
            return cast(T, self._decoder.decode(data))
        except (ValueError, RecursionError) as error:
            let_through(error)
            raise payload_errors.misfit(data, error, self.name) from None

    def decode_result(self, data: bytes | str) -> Any:
        """The handler's result, from a record; raises what `decode` raises."""
        return (self if self._result is None else self._result).decode(data)

    @staticmethod
    def fingerprint(text: bytes | str) -> str:
        """Fingerprint of a payload's JSON text, which does not depend on how it is written; 32 hexadecimal characters.

        Raises:
            PayloadError: the text is not JSON, or is nested too deeply.
        """
        return digest(canonical(text))


@lru_cache(maxsize=1024)
def _cached(annotation: Any, result: Any) -> PayloadCodec[Any]:
    return PayloadCodec(annotation, result)


def payload_type(annotation: Any, result: Any = Any) -> PayloadCodec[Any]:
    """The codec for an annotation, made once for each pair of types. Arguments and errors as in `PayloadCodec`."""
    try:
        return _cached(annotation, result)
    except TypeError as error:  # an annotation that cannot be hashed: Annotated[...] with a list in it
        let_through(error)
        return PayloadCodec(annotation, result)


def type_name(annotation: Any) -> str:
    """A type as it is written in code: `Order`, `list[Order]`, `Order | None`."""
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return "None" if annotation is type(None) else annotation.__name__
    return re.sub(r"(?<!\w)(?:\w+\.)+(?:<locals>\.)?", "", str(annotation))


def _of_result(value: object, error: PayloadError, codec: PayloadCodec[Any]) -> PayloadError:
    cls = get_origin(codec.annotation) or codec.annotation
    is_of_type = codec.annotation is not Any and isinstance(cls, type) and isinstance(value, cls)
    proposed = fitting(value, Any if is_of_type else codec.annotation)
    return payload_errors.of_result(value, error, codec.name, proposed, is_of_type=is_of_type)


def fitting(value: object, beside: Any = Any) -> str | None:
    """An annotation with which `value` could be recorded unchanged, as text for an error; None if none was found.

    Args:
        beside: an annotation whose values must fit too; `Any` for none.
    """
    try:
        annotation = payload_errors.annotation_of(value)
        if beside is type(None):
            annotation = annotation | None
        elif beside is not Any:
            annotation = beside | (None if value is None else annotation)
        payload_type(annotation).encode(value)
    except Exception as error:  # noqa: BLE001 - the value's methods can raise anything, and this is only a proposal for an error
        let_through(error)
        return None
    return type_name(annotation)


# ---------------------------------------------------------------------------------------------------------- decoders


def _is_model(cls: object) -> bool:
    pydantic = sys.modules.get("pydantic")  # there are models only if pydantic was imported
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


def _has_fields(cls: type) -> bool:
    return hasattr(cls, "__dataclass_fields__") or issubclass(cls, msgspec.Struct) or _is_model(cls)


def _from_builtins(cls: type, value: object) -> object:
    """Convert a value to a class that msgspec does not know; msgspec calls it. `object` accepts anything.

    The value is passed as JSON, so that a strict model reads dates as it does on its own.
    """
    if cls is object:
        return value
    try:
        return cast(object, cast(Any, cls).model_validate_json(_UNSORTED.encode(value)))
    except ValueError as error:
        let_through(error)
        if not payload_errors.is_pydantic(error):
            raise
        raise ValueError("pydantic refuses it") from error  # msgspec would make a text of all errors


class _ModelDecoder:
    """Decodes a top-level pydantic model directly."""

    __slots__ = ("_model",)

    def __init__(self, model: type) -> None:
        self._model = model

    def decode(self, data: bytes | str, /) -> Any:
        return cast(Any, self._model).model_validate_json(data)


def _decoder_of(annotation: Any) -> msgspec.json.Decoder[Any] | _ModelDecoder:
    if _is_model(annotation):
        return _ModelDecoder(annotation)
    try:
        known = inspect.type_info(annotation)
        strange = (cls for cls in _customs(known, set()) if not _is_model(cls) and cls is not object)
        stranger = next(strange, None)
        if stranger is None:
            return msgspec.json.Decoder(annotation, dec_hook=_from_builtins)
        reason = f"{type_name(stranger)} has no JSON form."
    except (TypeError, ValueError, NameError) as error:
        let_through(error)
        reason = str(error).rstrip(".") + "."
    raise UsageError(
        f"The type {type_name(annotation)} cannot be a payload or result: {reason}",
        todo="Use a dataclass, a TypedDict, a msgspec.Struct, a pydantic model, or builtins, dates, Decimal, UUID and Enum.",
    )


def _hashed_texts(annotation: Any) -> tuple[Callable[[str], object], ...]:
    """Readers for texts that the type hashes without a secret, in sets and keys; empty if there are none."""
    known = () if _is_model(annotation) else inspect.type_info(annotation)
    models = [annotation] if _is_model(annotation) else [one for one in _customs(known, set()) if _is_model(one)]
    words = repr(known) + "".join(repr(one.__pydantic_core_schema__) for one in models)
    if re.search(_HASHED, words) is None:
        return ()
    return (_as_number, _as_uuid) if re.search("UUIDType|'uuid'", words) else (_as_number,)


def _as_number(text: str) -> object:
    try:
        number = Decimal(text)
    except ArithmeticError as error:
        let_through(error)
        return text
    return text if number.is_nan() else number


def _as_uuid(text: str) -> object:
    """The UUID's integer, which has the same hash as the UUID."""
    if len(text) not in (32, 36):
        return text
    try:
        return int(text.replace("-", ""), 16)
    except ValueError as error:
        let_through(error)
        return text


def _hashable(value: object, read: Callable[[str], object], depth: int = 0) -> object:
    if isinstance(value, str):
        return read(value)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return tuple(_hashable(one, read, depth + 1) for one in value) if depth < _NESTED_MAX else ()
    return value


def _is_plain(part: dict[str, object] | list[Any]) -> bool:
    """Whether a part is an array of integers with different hashes (except -1, which has the same hash as -2)."""
    return (
        isinstance(part, list)
        and set(map(type, part)) == {int}
        and max(part) <= _OWN_HASH_MAX
        and min(part) >= -_OWN_HASH_MAX
    )


def _refuse_crowds(data: bytes | str, read: Callable[[str], object]) -> None:
    """Refuse a text in which very many different values have the same hash, since a set of them takes quadratic time.

    Python's hashes of numbers and UUIDs use no secret, so an attacker can choose such values; its hashes of texts use
    one.
    """
    try:
        parts = [_ROUGH.decode(data)]
    except (ValueError, ArithmeticError, RecursionError) as error:
        let_through(error)
        return  # the type's own decoder reports what is wrong
    while parts:
        part = parts.pop()
        if not isinstance(part, dict | list):
            continue
        parts += part.values() if isinstance(part, dict) else part
        if len(part) <= _ALIKE_MAX or _is_plain(part):
            continue
        values = [_hashable(one, read) for one in part]
        hashes = [str(hash(one)) for one in values]  # as texts, since hashes of texts use a secret
        if len(set(hashes)) >= len(hashes) - _ALIKE_MAX:
            continue
        crowds: dict[str, list[object]] = {}
        for value, hashed in zip(values, hashes, strict=True):
            crowd = crowds.setdefault(hashed, [])
            if value not in crowd:
                crowd.append(value)
            if len(crowd) > _ALIKE_MAX:
                raise PayloadError(
                    f"The payload has more than {_ALIKE_MAX} different numbers with one hash in an array or object.",
                    meaning="Python would take minutes to make a set or dict of them. This does not happen by chance.",
                    todo="Find out who sent it. For numbers that are not keys, declare a list.",
                )


def _customs(known: object, seen: set[int]) -> Iterator[Any]:
    """Classes inside a type that msgspec does not support: pydantic models, and those that cannot be decoded."""
    if id(known) in seen:
        return
    seen.add(id(known))
    if isinstance(known, inspect.CustomType | inspect.RawType | inspect.ExtType):
        yield getattr(known, "cls", msgspec.Raw)
    elif isinstance(known, tuple | list):
        for part in known:
            yield from _customs(part, seen)
    elif isinstance(known, msgspec.Struct):
        for name in known.__struct_fields__:
            if isinstance(part := getattr(known, name), tuple | list | msgspec.Struct):
                yield from _customs(part, seen)
