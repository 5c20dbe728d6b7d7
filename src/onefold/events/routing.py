"""From an event to the rules that match it, without asking every rule.

Each pattern is filed under what any event that matches it must contain: the signs of one of its leaves, which are values
(`source`, `detail-type`, a customer's id), beginnings of texts, ranges of numbers, or just that the field is there. Of
several leaves the one whose signs the fewest patterns share is chosen. An event is walked once along the paths that occur;
what it finds there names the candidates, and only they are matched in full. So a thousand rules on different values, fields
or ranges cost about what one does; patterns of absent fields alone are asked always.
Ranges of numbers are kept in a centered interval tree: a lookup costs its depth and what it finds, not the number of ranges.
Never here: what a rule does with an event.
Invariant: every rule that matches is found; filing decides which rules are asked, not the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from onefold.events.operators import ANY, Sign, double, sign_of
from onefold.events.patterns import Node, Pattern, elements, matches, undotted, view_of


class NumberRange(NamedTuple):
    """From `low` to `high`, both inside; infinities for no bound. `place` is the caller's."""

    low: float
    high: float
    place: int


class NumberRangeTree:
    """Ranges around a center, and trees of those below and above it.

    Args:
        ranges: at least one, low <= high each.
    """

    __slots__ = ("_above", "_below", "_by_high", "_by_low", "_center")

    def __init__(self, ranges: Sequence[NumberRange]) -> None:
        bounds = sorted(bound for one in ranges for bound in (one.low, one.high))
        center = self._center = bounds[len(bounds) // 2]
        here = [one for one in ranges if one.low <= center <= one.high]  # not empty: the center is somebody's bound
        below = [one for one in ranges if one.high < center]
        above = [one for one in ranges if one.low > center]
        self._by_low = sorted(here, key=lambda one: one.low)
        self._by_high = sorted(here, key=lambda one: -one.high)
        self._below = NumberRangeTree(below) if below else None
        self._above = NumberRangeTree(above) if above else None

    def find(self, number: float, found: set[int]) -> None:
        """Add the places of all ranges that hold a number."""
        if number < self._center:
            for one in self._by_low:
                if one.low > number:
                    break
                found.add(one.place)
            farther = self._below
        else:
            for one in self._by_high:
                if one.high < number:
                    break
                found.add(one.place)
            farther = self._above
        if farther is not None:
            farther.find(number, found)


T = TypeVar("T")

_RANGES_MET: Final = 4  # ours: a number is taken to lie in one of four ranges of its field
_Anchor = tuple[tuple[str, ...], Sign]  # a path and the sign of the value there


class Router(Generic[T]):
    """Rules by pattern.

    Args:
        rules: pattern and rule; the answer keeps this order.
    """

    def __init__(self, rules: Iterable[tuple[Pattern, T]]) -> None:
        self._rules = tuple(rules)
        offers = [list(_offers(pattern.root, ())) for pattern, _ in self._rules]
        crowd = Counter(_shared(anchor) for offer in offers for anchors in offer for anchor in anchors)
        self._always: list[int] = []
        self._root = _Shelf()
        for place, offer in enumerate(offers):
            if not offer:
                self._always.append(place)
                continue
            for path, sign in min(offer, key=lambda anchors: _cost(anchors, crowd)):
                shelf = self._root
                for name in path:
                    shelf = shelf.below.setdefault(name, _Shelf())
                shelf.file(sign, place)

    @property
    def always(self) -> int:
        """How many rules are asked about every event."""
        return len(self._always)

    def matching(self, value: Mapping[str, Any]) -> list[T]:
        """The rules whose pattern matches an event, in the order given."""
        event = view_of(value)
        found = set(self._always)
        _collect(self._root, event.value, event.dotted, found)
        return [self._rules[place][1] for place in sorted(found) if matches(self._rules[place][0], event)]


class _Shelf:
    """One step of a path: what is filed under signs here, and the steps below."""

    __slots__ = ("_ranges", "_tree", "below", "filed", "folds", "lengths")

    def __init__(self) -> None:
        self.below: dict[str, _Shelf] = {}
        self.filed: dict[Sign, list[int]] = {}
        self.folds = False
        self.lengths: set[int] = set()  # of the beginnings that are filed
        self._ranges: list[NumberRange] = []
        self._tree: NumberRangeTree | None = None

    def file(self, sign: Sign, place: int) -> None:
        """File a pattern's place under a sign; all of it before anything is looked for."""
        if sign[0] == "range":
            low, high = sign[1]
            self._ranges.append(NumberRange(low, high, place))
            return
        self.filed.setdefault(sign, []).append(place)
        kind, value = sign
        self.folds = self.folds or kind == "folded"
        if kind == "prefix":
            self.lengths.add(len(str(value)))

    def find(self, value: object, found: set[int]) -> None:
        """Add who is filed under a value that is neither a list nor an object."""
        filed = self.filed
        found.update(filed.get(sign_of(value), ()))
        found.update(filed.get(ANY, ()))
        if self._ranges and isinstance(value, int | float) and not isinstance(value, bool):
            if self._tree is None:
                self._tree = NumberRangeTree(self._ranges)
            self._tree.find(double(value), found)
        if isinstance(value, str):
            if self.folds:
                found.update(filed.get(("folded", value.lower()), ()))
            for length in self.lengths:
                found.update(filed.get(("prefix", value[:length]), ()))


def _collect(shelf: _Shelf, value: object, dotted: bool, found: set[int]) -> None:
    if isinstance(value, list):
        for one in elements(value):
            _collect(shelf, one, dotted, found)
    elif isinstance(value, dict):
        if shelf.below:
            fields = undotted(value) if dotted else value
            few, many = (fields, shelf.below) if len(fields) < len(shelf.below) else (shelf.below, fields)
            for name in few:
                if name in many:
                    _collect(shelf.below[name], fields[name], dotted, found)
    else:
        shelf.find(value, found)


def _cost(anchors: Sequence[_Anchor], crowd: Mapping[_Anchor, int]) -> tuple[int, bool]:
    """How many patterns would be asked; at a draw values are better than mere presence."""
    return sum(_asked(anchor, crowd) for anchor in anchors), any(sign == ANY for _, sign in anchors)


def _asked(anchor: _Anchor, crowd: Mapping[_Anchor, int]) -> int:
    count = crowd[_shared(anchor)]
    return count // _RANGES_MET + 1 if anchor[1][0] == "range" else count


def _shared(anchor: _Anchor) -> _Anchor:
    """What several patterns may share: a value and a beginning as they are, ranges of one field as if they all met."""
    path, sign = anchor
    return (path, ("range", None)) if sign[0] == "range" else anchor


def _offers(node: Node, path: tuple[str, ...]) -> Iterator[list[_Anchor]]:
    """The ways to file a pattern: each a list of anchors, one of which is in every event that matches."""
    if node.leaf is not None and not node.leaf.absent:
        yield [(path, sign) for sign in node.leaf.signs]
    for name, below in node.fields:
        yield from _offers(below, (*path, name))
    for group in node.ors:
        ways = [min(_offers(one, path), key=_width, default=None) for one in group]
        if all(way is not None for way in ways):
            yield [anchor for way in ways if way is not None for anchor in way]


def _width(anchors: Sequence[_Anchor]) -> tuple[bool, int]:
    return any(sign == ANY for _, sign in anchors), len(anchors)
