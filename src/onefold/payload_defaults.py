"""Whether two payloads differ only in fields that one of them omits because they have a default.

A fingerprint is made of the payload as it is written. `{"id": "1"}` and `{"id": "1", "n": 1}` mean the same if `n`
defaults to 1; the first may come from a version of the program that did not have `n` yet. This is checked only when two
fingerprints differ, so it costs nothing otherwise.

It covers fields of dataclasses, msgspec.Struct and pydantic models, at any depth, and parameters of guarded functions.
A default that a factory makes counts if the factory is one of Python's own types (`list`, `dict`); other factories may
give another value each time.
Never here: what to do about a difference. Invariant: a field whose value is not its default is never left out.
Private: may change with any release.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, islice
from typing import Any, Final

import msgspec

from onefold import codec
from onefold.errors import PayloadError

_FACTORIES: Final = (list, dict, set, frozenset, tuple, str, bytes, int, float, bool)
_ALL_MAX: Final = 10  # up to this many fields are tried in all combinations (1,024)
_TRIES_MAX: Final = 2_000
_TRIES_MIN: Final = 2  # none left out, and all
_LOOKS_MAX: Final = (
    20_000  # objects, and fields with a default, in one payload; bounds the cost of a payload from outside
)
_TRIED_BYTES_MAX: Final = 8 * 1024 * 1024
_TRIED_FIELDS_MAX: Final = 400_000
_NONE: Final = object()

_Found = dict[tuple[object, str], list[tuple[dict[str, Any], str, Any]]]


def is_same(value: object, own: str, first: str, compared: codec.Compared | None) -> bool:
    """Like `is_alike`, for a job's payload.

    Args:
        compared: the fields that the job compares; a fingerprint that an earlier version stored may be of all fields.
    """
    if compared is None:
        return is_alike(value, own, first)
    if not codec.says_fields(first):
        return is_alike(value, first, first)
    return is_alike(value, own, first, of=compared.of_parts)


def is_alike(
    value: object,
    own: str,
    first: str,
    defaults: Mapping[str, object] | None = None,
    of: Callable[[Any], str] = lambda tree: codec.digest(codec.joined(tree)),
) -> bool:
    """Whether two fingerprints are both of `value`, each without some of the fields that have their default.

    A field of a type is left out everywhere or nowhere. With more than ten fields with defaults, not every combination
    is tried: only none, all, each one, each two, all but one, and the last ones; for payloads over 4 KB fewer, but at
    least none and all. For a payload with more than 20,000 objects and fields with defaults the answer is no.

    Args:
        value: the payload as its type reads it; for a guarded call, the arguments by name.
        own: fingerprint of the text that it was read from; a text with a field that the type does not have differs.
        first: fingerprint of the payload that came first.
        defaults: the defaults of the parameters, if `value` holds arguments. of: makes a fingerprint.
    """
    try:
        tree = codec.parts(codec.outline(value))
        found: _Found = {}
        for name, default in (defaults or {}).items():
            if name in tree and _is_equal(tree[name], default):
                found[None, name] = [(tree, name, tree[name])]
        _Collector(found).collect(value, tree)
        whole = codec.joined(tree)
    except (PayloadError, RecursionError, _TooLargeError):
        return False
    missing = {own, first}
    mark = (
        own[: codec.VERSION_MARK_CHARS] if own[: codec.VERSION_MARK_CHARS] == first[: codec.VERSION_MARK_CHARS] else ""
    )
    entries = sum(map(len, found.values())) or 1
    tries = max(_TRIES_MIN, min(_TRIES_MAX, _TRIED_BYTES_MAX // len(whole), _TRIED_FIELDS_MAX // entries))
    for chosen in islice(_choices(list(found.values())), tries):
        missing.discard(mark + _without(tree, chosen, of)[len(mark) :])
        if not missing:
            return True
    return False


def _without(tree: object, chosen: Sequence[list[tuple[dict[str, Any], str, Any]]], of: Callable[[Any], str]) -> str:
    for group in chosen:
        for part, name, _ in group:
            del part[name]
    found = of(tree)
    for group in chosen:
        for part, name, value in group:
            part[name] = value
    return found


def _choices(groups: list[Any]) -> Iterator[Sequence[Any]]:
    """The groups of fields to leave out, likeliest first."""
    count = len(groups)
    yield ()
    yield groups
    if count <= _ALL_MAX:
        for size in range(1, count):
            yield from combinations(groups, size)
        return
    yield from combinations(groups, 1)
    yield from (groups[index:] for index in range(1, count - 1))  # fields that later versions added
    yield from (groups[:index] + groups[index + 1 :] for index in range(count))
    yield from combinations(groups, 2)


class _TooLargeError(Exception):
    """The payload has more objects and fields than `_LOOKS_MAX`."""


class _Collector:
    """Notes the fields that have their default.

    Defaults that were not written out (msgspec may omit them) are added to the tree.
    """

    def __init__(self, found: _Found) -> None:
        self._found = found
        self._left = _LOOKS_MAX
        self._texts: dict[tuple[object, str], bytes | None] = {}  # each default as it is written

    def collect(self, value: object, tree: object) -> None:
        """Note the fields of a value that have their default; `tree` is its JSON."""
        self._spend()
        if isinstance(value, list | tuple) and isinstance(tree, list):
            for one, part in zip(value, tree, strict=False):
                if isinstance(part, list | dict):
                    self.collect(one, part)
        elif isinstance(value, Mapping) and isinstance(tree, dict):
            for name, one in value.items():
                if isinstance(name, str) and isinstance(tree.get(name), list | dict):
                    self.collect(one, tree[name])
        elif isinstance(tree, dict):
            self._collect_fields(value, tree)

    def _collect_fields(self, value: object, tree: dict[str, Any]) -> None:
        kind: Any = type(value)
        for attribute, name, default in _fields(kind):
            one = getattr(value, attribute, _NONE)
            is_model = hasattr(kind, "model_fields")  # a field that pydantic omits here is never written
            if name not in tree and (one is _NONE or default is _NONE or is_model):
                continue
            part = tree[name] if name in tree else codec.parts(codec.outline(one))
            if isinstance(part, list | dict):
                self.collect(one, part)
            if default is _NONE:
                continue
            self._spend()
            if (kind, name) not in self._texts:
                self._texts[kind, name] = _written(default)
            if codec.joined(part) == self._texts[kind, name]:
                tree[name] = part
                self._found.setdefault((kind, name), []).append((tree, name, part))

    def _spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _TooLargeError


def _written(default: object) -> bytes | None:
    try:
        return codec.canonical(codec.outline(default))
    except PayloadError:
        return None


def _is_equal(written: object, default: object) -> bool:
    return codec.joined(written) == _written(default)


@lru_cache(maxsize=64)
def _fields(cls: type) -> tuple[tuple[str, str, Any], ...]:
    """The fields of a class: attribute, name in JSON, and default or `_NONE`; empty for a class that has none."""
    if issubclass(cls, msgspec.Struct):
        if cls.__struct_config__.array_like:
            return ()
        given = cls.__struct_defaults__
        padded = (_NONE,) * (len(cls.__struct_fields__) - len(given)) + given
        made = tuple(_made(one, getattr(one, "factory", None) if _is_made(one) else None) for one in padded)
        return tuple(zip(cls.__struct_fields__, cls.__struct_encode_fields__, made, strict=True))
    if hasattr(cls, "__dataclass_fields__"):
        dataclasses = sys.modules["dataclasses"]  # the class's code has imported it; a cold start need not
        none = dataclasses.MISSING
        return tuple(
            (
                one.name,
                one.name,
                _made(
                    msgspec.NODEFAULT if one.default is none else one.default,
                    None if one.default_factory is none else one.default_factory,
                ),
            )
            for one in dataclasses.fields(cls)
        )
    models: Mapping[str, Any] = getattr(cls, "model_fields", {}) if hasattr(cls, "model_config") else {}
    return tuple(
        (
            name,
            one.serialization_alias or one.alias or name,
            _NONE if one.is_required() else _made(one.default, one.default_factory),
        )
        for name, one in models.items()
    )


def _is_made(default: object) -> bool:
    return type(default).__name__ == "Factory" and type(default).__module__.startswith("msgspec")


def _made(default: object, factory: Any) -> object:
    """A default; `_NONE` if there is none, or if a factory other than Python's own types makes it."""
    if factory is not None:
        return factory() if factory in _FACTORIES else _NONE
    return _NONE if default is msgspec.NODEFAULT else default
