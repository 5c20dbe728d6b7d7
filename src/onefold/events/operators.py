"""The values and operators in a leaf of an event pattern, compiled once into tests on one value of an event.

A leaf is a list; a value has to match one of its members. Strings, numbers, true, false and null are compared directly;
an object names one operator. Numbers are compared by value (recorded from AWS: 300.0 matches 300), never with strings.
Never here: where in an event the value is (`patterns.py`). Invariant: a test accepts any JSON value and never raises.

Sources: EventBridge user guide, "Comparison operators for use in event patterns"; aws/event-ruler, also for the errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from onefold.errors import UsageError

Test = Callable[[object], bool]

Sign = tuple[Literal["text", "number", "word", "folded", "prefix", "range", "any"], Any]
"""What an index of patterns stores for a value: the value itself, a text in lower case, how a text begins, the two
bounds of a number (doubles), or just that there is a value. Kinds keep 1, "1" and true apart."""
ANY: Final[Sign] = ("any", None)

STARS_MAX: Final = 5  # our limit: AWS bounds the "complexity" of wildcards and does not say how it counts
_OF_STRING: Final[Mapping[str, Callable[[str, str], bool]]] = {"prefix": str.startswith, "suffix": str.endswith}


class Leaf(Struct, frozen=True, eq=False, gc=False):
    """The values that a leaf accepts.

    Args:
        texts, numbers, words: strings, numbers, and true, false, null that are compared directly.
        tests: operators.
        absent: an absent field is accepted too.
        signs: every value that satisfies the leaf has one of them; see `Sign`.
        text: its list, as JSON.
    """

    texts: frozenset[str]
    numbers: frozenset[float]
    words: frozenset[bool | None]
    tests: tuple[Test, ...]
    absent: bool
    signs: tuple[Sign, ...]
    text: str

    def takes(self, value: object) -> bool:
        """Whether the leaf accepts a value that is not an array; it never accepts an object."""
        if isinstance(value, str):
            if value in self.texts:
                return True
        elif value is None or isinstance(value, bool):
            if value in self.words:
                return True
        elif isinstance(value, dict):
            return False
        elif value in self.numbers:
            return True
        return any(test(value) for test in self.tests)


def refused(reason: str, path: Sequence[str], meaning: str = "") -> UsageError:
    """The error of a pattern that is not valid.

    Args:
        reason: EventBridge's text. path: where in the pattern. meaning: an explanation in our words.
    """
    at = f"It is at {'.'.join(path)[:200]}." if path else ""
    return UsageError(
        f"Event pattern is not valid. Reason: {reason}",
        meaning=" ".join(part for part in (at, meaning) if part),
        todo='A pattern is an object of fields with lists, for example {"kind": ["order", {"prefix": "re"}]}.',
    )


def read(members: Sequence[object], path: Sequence[str]) -> Leaf:
    """A leaf from its list.

    Raises:
        UsageError: an empty list, a list or unknown operator in it, or an operator with an argument it does not take.
    """
    if not members:
        raise refused("Empty arrays are not allowed", path)
    texts, numbers, words, tests = set[str](), set[float](), set[bool | None](), list[Test]()
    absent, signs = False, list[Sign]()
    for member in members:
        if isinstance(member, str):
            texts.add(member)
        elif member is None or isinstance(member, bool):
            words.add(member)
        elif isinstance(member, int | float):
            numbers.add(member)
        elif not isinstance(member, dict):
            raise refused("Match value must be String, number, true, false, or null", path)
        elif len(member) != 1:
            raise refused("Only one key allowed in match expression", path)
        else:
            [(name, argument)] = member.items()
            at = (*path, name)
            if name not in _OPERATORS:
                raise refused(f"Unrecognized match type {name}", at)
            if name == "exists" and argument is False:
                absent = True
            else:
                tests.append(_OPERATORS[name](argument, at))
                signs.append(_sign_of(name, argument))
    signs.extend(sign_of(one) for one in (*texts, *numbers, *words))
    text = msgspec.json.encode(members).decode()
    return Leaf(
        frozenset(texts), frozenset(numbers), frozenset(words), tuple(tests), absent,
        signs=(ANY,) if ANY in signs else tuple(signs), text=text,
    )  # fmt: skip


def sign_of(value: object) -> Sign:
    """A value's own sign."""
    if isinstance(value, str):
        return ("text", value)
    if value is None or isinstance(value, bool):
        return ("word", value)
    return ("number", value)


def _sign_of(name: str, argument: Any) -> Sign:
    """The sign of every value that an operator accepts. The argument has been checked."""
    if name == "equals-ignore-case":
        return ("folded", argument.lower())
    if name == "numeric":
        return ("range", _bounds(argument))
    start = argument if name == "prefix" else _pieces(argument, ())[0] if name == "wildcard" else ""
    return ("prefix", start) if isinstance(start, str) and start else ANY


# ---------------------------------------------------------------------------------------------------------- of strings


def _affix(argument: object, path: Sequence[str], name: str) -> Test:
    """`prefix` and `suffix`: a string, or `{"equals-ignore-case": string}`."""
    has = _OF_STRING[name]
    if isinstance(argument, dict):
        [(inner, text)] = argument.items() if len(argument) == 1 else [("", None)]
        if inner != "equals-ignore-case" or not isinstance(text, str):
            raise refused(f"Unsupported {name} pattern: {', '.join(argument)}", path)
        lower = text.lower()
        return lambda value: isinstance(value, str) and has(value.lower(), lower)
    text = _string(argument, path, name)
    return lambda value: isinstance(value, str) and has(value, text)


def _equal_but_case(argument: object, path: Sequence[str]) -> Test:
    lower = _string(argument, path, "equals-ignore-case").lower()
    return lambda value: isinstance(value, str) and value.lower() == lower


def _wildcard(argument: object, path: Sequence[str]) -> Test:
    first, *others = _pieces(_string(argument, path, "wildcard"), path)
    if not others:
        return lambda value: value == first and isinstance(value, str)
    *middle, last = others
    least = len(first) + len(last)

    def test(value: object) -> bool:
        if not isinstance(value, str) or len(value) < least or not value.startswith(first) or not value.endswith(last):
            return False
        start, end = len(first), len(value) - len(last)
        for piece in middle:
            found = value.find(piece, start, end)
            if found < 0:
                return False
            start = found + len(piece)
        return True

    return test


def _pieces(text: str, path: Sequence[str]) -> list[str]:
    r"""The texts between the stars; `\*` and `\\` are a star and a backslash."""
    pieces, escaped, before = [""], False, ""
    for index, char in enumerate(text):
        if escaped:
            if char not in "*\\":
                raise refused(f"Invalid escape character at pos {index}", path)
            pieces[-1] += char
            escaped, before = False, ""
            continue
        if char == "*":
            if before == "*":
                raise refused(f"Consecutive wildcard characters at pos {index}", path)
            pieces.append("")
        elif char != "\\":
            pieces[-1] += char
        escaped, before = char == "\\", char
    if escaped:
        raise refused(f"Invalid escape character at pos {len(text) - 1}", path)
    if len(pieces) > STARS_MAX + 1:
        raise refused(
            "Rule is too complex - try using fewer wildcard characters or fewer repeating character sequences after a "
            "wildcard character",
            path,
        )
    return pieces


def _string(argument: object, path: Sequence[str], name: str) -> str:
    if not isinstance(argument, str):
        raise refused(f"{name} match pattern must be a string", path)
    return argument


# ---------------------------------------------------------------------------------------------------------- the others


def _anything_but(argument: object, path: Sequence[str]) -> Test:
    if isinstance(argument, dict):
        return _anything_but_like(argument, path)
    values = argument if isinstance(argument, list) else [argument]
    if not values:
        raise refused("Empty arrays are not allowed", path)
    if all(isinstance(value, str) for value in values) or all(_is_number(value) for value in values):
        banned = frozenset(values)
        numeric = not isinstance(values[0], str)
        return lambda value: _is_number(value) is not numeric or value not in banned
    if isinstance(argument, list):
        raise refused(
            "Inside anything but list, either all values are number or string, mixed type is not supported", path
        )
    raise refused("Value of anything-but must be an array or single string/number value.", path)


def _anything_but_like(argument: Mapping[str, object], path: Sequence[str]) -> Test:
    """`anything-but` with one of the operators of strings, with one string or a list of them."""
    if len(argument) != 1:
        raise refused("Only one key allowed in match expression", path)
    [(name, inner)] = argument.items()
    if name not in _NEGATED:
        raise refused(f"Unsupported anything-but pattern: {name}", path)
    texts = inner if isinstance(inner, list) else [inner]
    if not texts:
        raise refused("Empty arrays are not allowed", path)
    if not all(isinstance(text, str) for text in texts):
        if name in _OF_STRING:
            raise refused("prefix/suffix match pattern must be a string", path)
        reason = f"Inside anything-but/{name} list, number|start|null|boolean is not supported."
        raise refused(reason, path)
    if name in _OF_STRING and "" in texts:
        raise refused("Null prefix/suffix not allowed", path)
    tests = [_OPERATORS[name](text, (*path, name)) for text in texts]
    return lambda value: not any(test(value) for test in tests)


_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": lambda value, bound: value < bound,
    "<=": lambda value, bound: value <= bound,
    "=": lambda value, bound: value == bound,
    ">": lambda value, bound: value > bound,
    ">=": lambda value, bound: value >= bound,
}


def _numeric(argument: object, path: Sequence[str]) -> Test:
    """One comparison, or a lower and then an upper bound."""
    if not isinstance(argument, list):
        raise refused("Value of numeric must be an array.", path)
    if not argument:
        raise refused("Invalid member in numeric match: ]", path)
    operator, bound = _comparison(argument[0], argument[1:2], path)
    if len(argument) <= 2:
        return partial(_compares, _COMPARISONS[operator], bound)
    if operator not in (">", ">="):
        raise refused("Too many elements in numeric expression", path)
    if argument[2] not in ("<", "<="):
        raise refused(f"Bad numeric range operator: {argument[2]}", path)
    upper, top = _comparison(argument[2], argument[3:4], path)
    if len(argument) > 4:
        raise refused("Too many terms in numeric range expression", path)
    if top <= bound:
        raise refused("Bottom must be less than top", path)
    above, below = _COMPARISONS[operator], _COMPARISONS[upper]
    return lambda value: _compares(above, bound, value) and _compares(below, top, value)


def _comparison(operator: object, bound: Sequence[object], path: Sequence[str]) -> tuple[str, float]:
    if not isinstance(operator, str):
        raise refused(f"Invalid member in numeric match: {operator}", path)
    if operator not in _COMPARISONS:
        raise refused(f"Unrecognized numeric range operator: {operator}", path)
    if not bound or not _is_number(bound[0]):
        raise refused(f"Value of {'equals' if operator == '=' else operator} must be numeric", path)
    return operator, double(bound[0])


def _compares(how: Callable[[float, float], bool], bound: float, value: object) -> bool:
    return _is_number(value) and how(double(value), bound)


def double(number: Any) -> float:
    """A number as a double; infinity if it is out of range, as JSON cannot write infinity itself."""
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def _bounds(argument: Sequence[Any]) -> tuple[float, float]:
    """The bounds in the argument of `numeric`, as if both were inclusive."""
    low, high = float("-inf"), float("inf")
    for operator, bound in zip(argument[::2], argument[1::2], strict=True):
        low = double(bound) if operator in (">", ">=", "=") else low
        high = double(bound) if operator in ("<", "<=", "=") else high
    return low, high


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _exists(argument: object, path: Sequence[str]) -> Test:
    if argument is not True:
        raise refused("exists match pattern must be either true or false.", path)
    return lambda _: True  # only called for fields that exist


def _cidr(argument: object, path: Sequence[str]) -> Test:
    text = _string(argument, path, "prefix")  # AWS says `prefix` here (recorded)
    address, slash, mask = text.partition("/")
    if not slash or "/" in mask:
        raise refused("Malformed CIDR, one '/' required", path)
    if not (mask.isascii() and mask.isdigit()):
        raise refused("Malformed CIDR, mask bits must be an integer", path)
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        raise refused(f"Nonstandard IP address: {address}", path) from None

    def test(value: object) -> bool:
        try:
            return isinstance(value, str) and ip_address(value) in network
        except ValueError:
            return False

    return test


_NEGATED: Final = ("prefix", "suffix", "equals-ignore-case", "wildcard")
_OPERATORS: Final[Mapping[str, Callable[[object, Sequence[str]], Test]]] = {
    "prefix": partial(_affix, name="prefix"),
    "suffix": partial(_affix, name="suffix"),
    "equals-ignore-case": _equal_but_case,
    "wildcard": _wildcard,
    "anything-but": _anything_but,
    "numeric": _numeric,
    "exists": _exists,
    "cidr": _cidr,
}
