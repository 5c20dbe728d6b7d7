"""Condition expressions, update expressions and PartiQL of DynamoDB, as far as records use them; for `dynamodb_stub.py`.

One reader for all three: an expression is evaluated against an item while it is read. Comparisons with =, <>, <, <=, >, >=,
AND, OR, NOT, parentheses, attribute_exists, attribute_not_exists; SET with +, - and if_not_exists; REMOVE. Anything else is
refused with ValidationException, never guessed. Sources: developer guide, "Condition and filter expressions, operators, and
functions", "Update expressions", "PartiQL update statements".
Invariant: an attribute that is not there equals nothing.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

Item = dict[str, dict[str, Any]]

_TOKEN = re.compile(
    r"""\s*(?:"(?P<quoted>[^"]+)"|'(?P<text>[^']+)'|(?P<word>[#:]?\w+)|(?P<mark><>|<=|>=|[=<>(),{}:?+-]))"""
)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


class RefusedError(Exception):
    """An error answer."""

    def __init__(self, code: str, message: str, item: Item | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.item = item


def invalid(message: str) -> RefusedError:
    return RefusedError("ValidationException", message)


@functools.lru_cache(maxsize=1_000)
def _tokens(text: str) -> tuple[tuple[str, str], ...]:
    found = []
    place = 0
    while place < len(text.rstrip()):
        match = _TOKEN.match(text, place)
        if match is None:
            raise invalid(f"cannot read {text[place : place + 20]!r}")
        found.append((match.lastgroup or "", match[match.lastgroup or 0]))
        place = match.end()
    return tuple(found)


class Expression:
    """One condition, update expression or statement, evaluated against an item while it is read.

    Args:
        text: of it. item: what stands there; None for nothing. names, values: what its placeholders mean.
        parameters: the values of its question marks, in order.
    """

    def __init__(
        self,
        text: str,
        item: Item | None = None,
        *,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
        parameters: Sequence[Any] = (),
    ) -> None:
        self.item = item or {}
        self._names = names or {}
        self._values = values or {}
        self._parameters = list(parameters)
        self._tokens = list(_tokens(text))

    # -- tokens --------------------------------------------------------------------------------------------------------

    def at(self, *texts: str) -> bool:
        return bool(self._tokens) and self._tokens[0][0] in ("word", "mark") and self._tokens[0][1].upper() in texts

    def take(self, *texts: str) -> str:
        if not self._tokens or (texts and not self.at(*texts)):
            raise invalid(f"expected {texts} before {self._tokens[:3]}")
        return self._tokens.pop(0)[1]

    def took(self, *texts: str) -> bool:
        return self.at(*texts) and bool(self.take())

    def path(self) -> str:
        kind = self._tokens[0][0] if self._tokens else ""
        if kind not in ("word", "quoted", "text"):
            raise invalid(f"expected an attribute before {self._tokens[:3]}")
        name = self.take()
        return self._names[name] if name.startswith("#") else name

    # -- values and conditions -----------------------------------------------------------------------------------------

    def operand(self) -> dict[str, Any] | None:
        value = self._single()
        while self.at("+", "-"):
            sign = 1 if self.take() == "+" else -1
            value = {"N": str(_number(value) + sign * _number(self._single()))}
        return value

    def _single(self) -> dict[str, Any] | None:
        if self.took("?"):
            return dict(self._parameters.pop(0))
        if self.took("IF_NOT_EXISTS"):
            self.take("(")
            found = self.item.get(self.path())
            self.take(",")
            other = self.operand()
            self.take(")")
            return other if found is None else found
        kind, text = self._tokens[0]
        if kind == "word" and text.startswith(":"):
            return dict(self._values[self.take()])
        if kind == "word" and text.isdigit():
            return {"N": self.take()}
        return self.item.get(self.path())

    def condition(self) -> bool:
        holds = self._all()
        while self.took("OR"):
            holds = self._all() or holds
        return holds

    def _all(self) -> bool:
        holds = self._one()
        while self.took("AND"):
            holds = self._one() and holds
        return holds

    def _one(self) -> bool:
        if self.took("NOT"):
            return not self._one()
        if self.took("("):
            holds = self.condition()
            self.take(")")
            return holds
        if self.at("ATTRIBUTE_EXISTS", "ATTRIBUTE_NOT_EXISTS"):
            wanted = self.take().upper() == "ATTRIBUTE_EXISTS"
            self.take("(")
            there = self.path() in self.item
            self.take(")")
            return there == wanted
        left, mark, right = self.operand(), self.take(*_COMPARE), self.operand()
        if left is None or right is None:
            return mark == "<>"
        (((kind, a),), ((other, b),)) = left.items(), right.items()
        if kind != other:
            return mark == "<>"
        return _COMPARE[mark](Decimal(a), Decimal(b)) if kind == "N" else _COMPARE[mark](a, b)

    # -- changes -------------------------------------------------------------------------------------------------------

    def changes(self) -> Item:
        """What SET and REMOVE clauses make of the item; all operands are those of the item as it was."""
        after = dict(self.item)
        while self.at("SET", "REMOVE"):
            removes = self.take().upper() == "REMOVE"
            while True:
                name = self.path()
                if removes:
                    after.pop(name, None)
                else:
                    self.take("=")
                    value = self.operand()
                    if value is None:
                        raise invalid("The provided expression refers to an attribute that does not exist in the item")
                    after[name] = value
                if not self.took(","):
                    break
        return after

    def equalities(self) -> dict[str, Any]:
        """The attributes that the conditions from here on compare with `=`; for the key of a statement."""
        words = [text for _, text in self._tokens]
        count = 0
        found: dict[str, Any] = {}
        for place, text in enumerate(words):
            if text == "?":
                if words[place - 1] == "=":
                    found[words[place - 2]] = self._parameters[count]
                count += 1
        return found

    def end(self) -> None:
        if self._tokens:
            raise invalid(f"unexpected {self._tokens[:3]}")


def _number(value: dict[str, Any] | None) -> Decimal:
    if value is None or "N" not in value:
        raise invalid("An operand in the update expression has an incorrect data type")
    return Decimal(value["N"])
