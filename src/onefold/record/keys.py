"""The business key of an operation: a rule declared once, checked against the payload's type, applied to each payload.

There are three forms: a template of field names (`"{customer.id}#{month}"`), a JMESPath expression over the payload's
JSON (`jmespath("detail.id")` or `"jmespath:detail.id"`), or a function of the payload. The rules for a tenant's scope
and a message group have the same forms. A value that is null, empty, a boolean, a float or anything else that is
neither text nor a whole number is an error that names the field, never a key: two customers must not share a record
because neither has an id.

Never here: message ids, receive counts, the clock; a key is made only of what identifies the operation.
Invariant: equal payloads give equal keys, and different lists of values give different keys (except where a template asks
for the earlier format with `keys-v1:`); the keys of a rule do not change from one version of onefold to the next.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Collection, Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from types import FunctionType, UnionType
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin, get_type_hints, is_typeddict

from msgspec import Struct

from onefold import codec, extras
from onefold.contracts.store import RecordKey
from onefold.errors import PayloadError, UsageError
from onefold.interrupts import let_through
from onefold.payload_errors import is_pydantic
from onefold.record.error_text import summary_of

KEY_CHARS_MAX = 512  # contracts.store.RecordKey: 1 to 512 characters
IDEMPOTENCY_KEY_CHARS_MAX = 64  # the shortest limit we know of among partners (Adyen: 64; Stripe: 255)
_SLUG_CHARS = IDEMPOTENCY_KEY_CHARS_MAX - 33  # the others are 32 hexadecimal characters and a dash

_JMESPATH = "jmespath:"
_NAME_SIGNS = frozenset(string.ascii_letters + string.digits + "_-")
_UNFIT = r"[\x00-\x1f\x7f\ud800-\udfff]"  # none of it is printable
_VERSIONS = {
    1: "keys-v1:",
    2: "keys-v2:",
}  # prefixes with which a template chooses the version, where the separator between two fields is ambiguous
_MISSING = object()
_CO_VARARGS = 0x04  # inspect.CO_VARARGS: the function has *args
_IDENTITY = "A key must be text, an integer, a UUID, an Enum or a date."
_OF_THE_DICT = "Return one of its values: a key function of a call is given the arguments as a dict."
_ANOTHER = "Name another field, or use a function that derives a text from it."

# Names of fields whose values usually differ at every send, so that a second send of the same order would run again.
_VOLATILE = frozenset(
    {
        "attempt", "attempts", "correlationid", "createdat", "eventtime", "guid", "messageid", "nonce", "now", "random",
        "receipt", "receipthandle", "receivecount", "requestid", "sentat", "sequence", "sequencenumber", "spanid", "time",
        "timestamp", "traceid", "ts", "updatedat", "uuid",
    }
)  # fmt: skip


class JmesPath(Struct, frozen=True):
    """A JMESPath expression over the payload's JSON; made by `jmespath`."""

    expression: str


def jmespath(expression: str) -> JmesPath:
    """A key rule in JMESPath, for example `jmespath("detail.order.id")`. Needs the package jmespath."""
    return JmesPath(expression)


KeyFunction = JmesPath | Callable[[Any], object]  # the forms of a rule besides a template


class KeyRule:
    """A compiled rule. Immutable, safe from any thread.

    Attributes:
        text: the rule as declared, for people.
        what: the name of what it makes: `key`, `tenant`, `group`...
        volatile: fields it uses whose names suggest that they differ at every send; a warning, not an error.
        function: the function, where the rule is one.
    """

    __slots__ = ("_chars_max", "_find", "function", "text", "volatile", "what")

    def __init__(
        self,
        text: str,
        what: str,
        find: Callable[[Any], str],
        volatile: tuple[str, ...],
        chars_max: int,
        function: Callable[[Any], object] | None = None,
    ) -> None:
        self.text: str = text
        self.what: str = what
        self.volatile: tuple[str, ...] = volatile
        self._find = find
        self._chars_max = chars_max
        self.function: Callable[[Any], object] | None = function

    def __repr__(self) -> str:
        return f"<{self.what} {self.text}>"

    def of(self, payload: Any) -> str:
        """The key of a payload: 1 to `chars_max` characters, none of them a control character.

        Raises:
            PayloadError: a field is missing, null, empty, or of a type that is not an identity; or the key is too long.
        """
        return self._fitting(self._find(payload))

    def given(self, key: object) -> str:
        """A key that was given separately from the payload, within the same limits.

        Raises:
            PayloadError: it is not text, blank, too long, or contains control characters.
        """
        if not isinstance(key, str) or not key.strip():
            raise PayloadError(
                f"{key!r:.80} was given instead of the {self.what} {self.text}.",
                meaning="It identifies no operation.",
                todo="Give a text, or leave it out.",
            )
        return self._fitting(key)

    def _fitting(self, key: str) -> str:
        if len(key) > self._chars_max:
            raise PayloadError(
                f"The {self.what} {self.text} gives {len(key)} characters.",
                meaning=f"It begins with {key[:40]!r}; at most {self._chars_max} are possible.",
                todo="Use a shorter identifier, or a function that derives one.",
            )
        if not key.isprintable() and re.search(_UNFIT, key):
            raise PayloadError(
                f"The {self.what} {self.text} gives control characters or broken Unicode.",
                meaning=f"It begins with {key[:40]!r}.",
                todo="Clean the field where it comes from, or use a function that does.",
            )
        return key


def key_rule(
    declared: str | KeyFunction,
    payload: Any = Any,
    *,
    what: str = "key",
    chars_max: int = KEY_CHARS_MAX,
    parameters: bool = False,
) -> KeyRule:
    """Compile a rule and check it against the payload's type, as far as the type is known.

    Args:
        declared: template, JMESPath or function.
        payload: annotation of the payload; `Any` checks nothing.
        what: the name of the setting, for errors.
        chars_max: longest result, in characters.
        parameters: the fields are a function's parameters; these take objects of any class, with properties, so what is
            inside them is not checked.

    Raises:
        UsageError: not a rule; a template without a field, with a field that the type does not have (names the nearest),
            or with a field that cannot be a key; jmespath is not installed or cannot parse the expression.
    """
    if isinstance(declared, str) and not declared.startswith(_JMESPATH):
        version, template = _version_of(declared)
        parts = _parse(template, payload, what)
        version = _checked_version(version, template, parts, what)
        names = tuple(name for _, name in parts if name is not None)
        for name in names:
            _check_field(declared, name, payload, what, parameters=parameters)
        volatile = tuple(name for name in names if is_volatile(name))
        return KeyRule(declared, what, _template(declared, parts, what, version), volatile, chars_max)
    if isinstance(declared, str):
        declared = JmesPath(declared.removeprefix(_JMESPATH).strip())
    if isinstance(declared, JmesPath):
        expression, rule = declared.expression, _JMESPATH + declared.expression
        volatile = tuple(name for name in last_names(expression) if is_volatile(name))
        search = by_expression(expression, what)
        return KeyRule(rule, what, lambda value: _text(search(value), expression, rule, what), volatile, chars_max)
    if callable(declared):
        name = getattr(declared, "__name__", type(declared).__name__)
        if not takes(declared, 1):
            raise UsageError(
                f"{what}: the function {name} cannot be called with the payload alone.",
                todo="Give a function of one parameter, for example lambda payload: payload.order_id.",
            )
        call = by_function(declared, name, what)
        found = f"the result of {name}()"
        return KeyRule(
            f"{name}()", what, lambda value: _text(call(value), found, f"{name}()", what), (), chars_max, declared
        )
    raise UsageError(
        f"{what}={declared!r} is not a rule.",
        todo='Give a template such as "{order_id}", onefold.jmespath("detail.id"), or a function of the payload.',
    )


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with `count` positional arguments; True also where that is unknown."""
    if type(function) is FunctionType and not vars(function):  # inspect.signature would take 0.1 ms of every cold start
        code, defaults, named = function.__code__, function.__defaults__ or (), function.__kwdefaults__ or {}
        most = code.co_argcount if not code.co_flags & _CO_VARARGS else count
        needed = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        return code.co_argcount - len(defaults) <= count <= most and all(name in named for name in needed)
    import inspect  # only for callables that are not plain functions

    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def is_volatile(name: str) -> bool:
    """Whether a field's name suggests that its value differs at every send (timestamp, uuid, message_id...)."""
    return name.rpartition(".")[2].replace("_", "").replace("-", "").lower() in _VOLATILE


def idempotency_key(record: RecordKey, *parts: str) -> str:
    """The key that a run passes to a partner: the same for every attempt of the operation, in any process.

    Args:
        record: the operation.
        parts: texts that distinguish several calls of one run, for example `"refund"`.

    Returns:
        At most 64 characters of A-Z a-z 0-9 _ -: the job's name, shortened, and 128 bits of scope, job, key and parts.
    """
    named = codec.digest(codec.encode([record.scope, record.job, record.key, *parts]))
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", record.job)[:_SLUG_CHARS].strip("-")
    return f"{slug}-{named}" if slug else named


# --------------------------------------------------------------------------------------------------------- templates


def _parse(template: str, payload: Any, what: str) -> list[tuple[str, str | None]]:
    """Pairs of (text before, field name); the last pair has the text after the last field and no name."""
    parts: list[tuple[str, str | None]] = []
    before, at = "", 0
    while at < len(template):
        sign = template[at]
        if sign not in "{}" or template.startswith(sign * 2, at):
            before += sign
            at += 1 if sign not in "{}" else 2
            continue
        end = template.find("}", at + 1)
        token = template[at : end + 1] if sign == "{" and end > 0 else sign
        if not all(step and _NAME_SIGNS.issuperset(step) for step in token[1:-1].split(".")):
            raise UsageError(
                f"{what}={template!r} is not a valid template: {token!r} is not a field.",
                meaning="A field is {name} or {name.name}; formats and conversions do not exist here.",
                todo="Use a function for more, and {{ or }} for a brace itself.",
            )
        if parts and not before:
            raise UsageError(
                f"{what}={template!r} has two fields with nothing between them.",
                meaning='"1" and "23" would give the same key as "12" and "3".',
                todo="Put a character between them, for example #.",
            )
        parts.append((before, token[1:-1]))
        before, at = "", end + 1
    if not parts:
        names = _fields(payload)
        hint = "{" + (template if names is None or template in names else next(iter(names), "order_id")) + "}"
        raise UsageError(
            f"{what}={template!r} names no field.",
            meaning=f"All messages or calls would have the same {what}.",
            todo=f'Write the field in braces: "{hint}".',
        )
    return [*parts, (before, None)]


def _check_field(template: str, name: str, payload: Any, what: str, *, parameters: bool) -> None:
    """Follow a dotted name through the payload's type, as far as the type is known."""
    at = payload
    for step in name.split("."):
        names = _fields(at)
        if names is None:
            kind = _unwrapped(at)
            if (get_origin(kind) or kind) in (list, tuple) and not step.isdecimal():
                raise UsageError(
                    f"{what}={template!r}: {step} comes after {codec.type_name(at)}, which has numbers, not names.",
                    todo="Name one item by its position, for example {lines.0.id}, or use a function of the payload.",
                )
            at = _item(kind, step)
            continue
        if step not in names:
            owner = codec.type_name(at)
            near = _nearest(step, names)
            raise UsageError(
                f"{what}={template!r}: {owner} has no field {step}.",
                meaning=f"It has {', '.join(names)}." if names else f"{owner} has no fields at all.",
                todo=f"Did you mean {near}?" if near else "Name one of its fields, or use a function of the payload.",
            )
        at = Any if parameters and step != name else names[step]
    reason = _unfit_type(at)
    if reason is not None:
        raise UsageError(
            f"{what}={template!r}: the field {name} cannot be part of a key: {reason}.",
            meaning=_IDENTITY,
            todo=_ANOTHER,
        )


def _nearest(name: str, names: Mapping[str, Any]) -> str | None:
    from difflib import get_close_matches  # imported only after a misspelling

    plain = {re.sub(r"[_-]", "", one).lower(): one for one in names}
    found = get_close_matches(re.sub(r"[_-]", "", name).lower(), plain, n=1)
    return plain[found[0]] if found else None


def _unwrapped(kind: Any) -> Any:
    """A type without its Annotated, NewType and `| None`; Any where more than one type is left."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif isinstance(kind, NewType):
            kind = kind.__supertype__
        elif get_origin(kind) in (Union, UnionType):
            some = [one for one in get_args(kind) if one is not type(None)]
            if len(some) != 1:
                return Any
            kind = some[0]
        else:
            return kind


def _fields(kind: Any) -> dict[str, Any] | None:
    """The fields of a type with their types; empty for a scalar; None if the type is unknown."""
    kind = _unwrapped(kind)
    cls = get_origin(kind) or kind
    if not isinstance(cls, type) or cls in (Any, object):
        return None
    for attribute in ("__struct_fields__", "__dataclass_fields__", "_fields"):
        if hasattr(cls, attribute):
            return _hints(cls, tuple(getattr(cls, attribute)))
    if is_typeddict(cls):
        return _hints(cls, tuple(cls.__annotations__))
    if hasattr(cls, "model_fields") and hasattr(cls, "model_config"):  # pydantic
        open_ended = cls.model_config.get("extra") == "allow"
        return None if open_ended else {name: one.annotation for name, one in cls.model_fields.items()}
    return None if issubclass(cls, Collection) and not issubclass(cls, str | bytes) else {}


def _hints(cls: type, names: tuple[str, ...]) -> dict[str, Any]:
    try:
        hints = _resolved(cls)
    except (NameError, TypeError, AttributeError):  # a forward reference to a class inside a function
        hints = {}
    return {name: hints.get(name, Any) for name in names}


_resolved = lru_cache(maxsize=64)(get_type_hints)  # many jobs may have one payload type, as ticks do


def _item(kind: Any, step: str) -> Any:
    """The element type of a list or dict; Any where the type is unknown."""
    arguments = get_args(kind)
    if get_origin(kind) is list and step.isdecimal():
        return arguments[0]
    return arguments[1] if get_origin(kind) is dict else Any


def _unfit_type(kind: Any) -> str | None:
    kind = _unwrapped(kind)
    if get_origin(kind) is Literal:
        kind = type(get_args(kind)[0])
    if (get_origin(kind) or kind) in (list, set, frozenset, tuple, dict) or _fields(kind):
        return f"it is {codec.type_name(kind)}, which has parts"
    if kind is datetime:
        return "it is a datetime, and an instant differs when the same thing is sent again"
    if kind in (bool, float, Decimal, bytes, type(None)):
        return f"it is {codec.type_name(kind)}"
    return None


def _version_of(declared: str) -> tuple[int | None, str]:
    """The version that a template chooses (None: it chooses none), and the template itself."""
    for version, prefix in _VERSIONS.items():
        if declared.startswith(prefix):
            return version, declared[len(prefix) :]
    return None, declared


def _checked_version(version: int | None, template: str, parts: list[tuple[str, str | None]], what: str) -> int:
    """The version that makes the keys; without an ambiguous separator both versions make the same keys.

    Raises:
        UsageError: an ambiguous separator without a version: the keys of existing records must not change silently.
    """
    flawed = [before[0] for before, _ in parts[1:-1] if _is_flawed(before[0])]
    if flawed and version is None:
        raise UsageError(
            f"{what}={template!r} has {flawed[0]!r} between two fields: two different lists of values could give one key.",
            meaning="Earlier versions confused % and characters whose code begins with 25 (box drawing) with values.",
            todo=f'For new keys put another character there, such as #, or write "{_VERSIONS[2]}{template}". To find '
            f'existing records, write "{_VERSIONS[1]}{template}": the earlier keys, which two operations may share.',
        )
    return version or 1


def _is_flawed(sign: str) -> bool:
    """Whether values that version 1 escapes for this separator may contain it, or become equal although they differ.

    Version 1 writes `%25` for `%`, and `%` with the hexadecimal code of the separator for the separator. If that code
    begins with 25, it reads as an escaped `%` followed by something; if the separator is `%`, its escape contains it.
    """
    return f"{ord(sign):02X}".startswith("25")


def _escaped(text: str, sign: str, version: int) -> str:
    """A value, escaped so that the literal after it does not occur in it; so different lists give different keys."""
    if version == 2 and _is_flawed(sign):
        return text.replace("~", "~t").replace(sign, "~s")
    if sign in text or "%" in text:
        return text.replace("%", "%25").replace(sign, f"%{ord(sign):02X}")
    return text


def _template(template: str, parts: list[tuple[str, str | None]], what: str, version: int) -> Callable[[Any], str]:
    compiled = [(before, name, tuple(name.split("."))) for before, name in parts if name is not None]
    after = parts[-1][0]
    if len(compiled) == 1 and not after and not compiled[0][0]:
        _, only, steps = compiled[0]

        def alone(payload: Any) -> str:
            return _text(_value(payload, steps), only, template, what)

        return alone
    # All values but the last are followed by a literal, which is escaped inside the value.
    signs = [before[0] for before, _ in parts[1:-1]] + [""]

    def joined(payload: Any) -> str:
        found = []
        for (before, name, steps), sign in zip(compiled, signs, strict=True):
            text = _text(_value(payload, steps), name, template, what)
            if sign:
                text = _escaped(text, sign, version)
            found.append(before + text)
        return "".join(found) + after

    return joined


def _value(value: Any, steps: tuple[str, ...]) -> Any:
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step, _MISSING)
        elif isinstance(value, list | tuple) and step.isdecimal():
            value = value[int(step)] if int(step) < len(value) else _MISSING
        else:
            value = getattr(value, step, _MISSING)
        if value is None or value is _MISSING:
            return value
    return value


def _text(value: Any, name: str, rule: str, what: str) -> str:
    """A value as part of a key.

    Raises:
        PayloadError: it cannot identify anything; names the field.
    """
    if type(value) is str:  # by far the most frequent
        if value.strip():
            return value
        found = "empty" if not value else "white space only"
    elif isinstance(value, Enum):
        return _text(value.value, name, rule, what)
    elif isinstance(value, bool):
        found = f"the boolean {value}"
    elif isinstance(value, int):
        return str(int(value))
    elif isinstance(value, str):
        return _text(str(value), name, rule, what)
    elif value is None:
        found = "null"
    elif value is _MISSING:
        found = "missing"
    elif isinstance(value, datetime):
        found = "an instant, which differs when the same thing is sent again"
    elif isinstance(value, date):
        return value.isoformat()
    elif any(cls.__module__ == "uuid" and cls.__qualname__ == "UUID" for cls in type(value).__mro__):
        return str(value)
    else:
        found = f"of type {type(value).__qualname__}"
    is_filled = value is not None and value is not _MISSING and type(value) is not str
    raise PayloadError(
        f"The {what} {rule} cannot be made: {name} is {found}.",
        meaning=_IDENTITY,
        todo=(_OF_THE_DICT if name.endswith("()") and isinstance(value, dict) else _ANOTHER)
        if is_filled
        else "Fill the field, or declare another rule.",
    )


def last_names(expression: str) -> list[str]:
    """The names in an expression that select values, without their parents' names."""
    return re.findall(r"[A-Za-z_]\w*(?![\w.(\[])", expression)


def by_expression(expression: str, what: str) -> Callable[[Any], object]:
    """A function that evaluates an expression on a payload.

    Raises:
        UsageError: jmespath is not installed or cannot parse the expression.
    """
    with extras.needed(f"{what}={expression!r} is JMESPath, and", "cli", ", or use a template or a function."):
        import jmespath as library
    try:
        compiled = library.compile(expression)
    except ValueError as error:
        reason = str(error).partition("\n")[0].rstrip(":")
        raise UsageError(
            f"{what}={expression!r} is not JMESPath: {reason}.",
            todo="See https://jmespath.org for the language.",
        ) from None

    def find(payload: Any) -> object:
        try:
            return compiled.search(codec.plain(payload))
        except (TypeError, ValueError) as error:  # no JSON form, or a JMESPath function got a value of a wrong type
            let_through(error)
            raise _failed(f"{what} jmespath:{expression}", error) from error

    return find


def by_function(function: Callable[[Any], object], name: str, what: str) -> Callable[[Any], object]:
    """A function that calls the app's own key function on a payload."""

    def find(payload: Any) -> object:
        try:
            return function(payload)
        except Exception as error:
            let_through(error)
            raise _failed(f"{what} function {name}", error) from error

    return find


def _failed(rule: str, error: Exception) -> PayloadError:
    return PayloadError(
        f"The {rule} raised {type(error).__qualname__} for this payload.",
        meaning=f"It said: {(summary_of(error) if is_pydantic(error) else str(error))[:200]}",
        todo="Send what the rule expects, or make the rule cover this case.",
    )
