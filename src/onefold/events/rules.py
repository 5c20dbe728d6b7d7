"""What is declared on an event bus: rules and archives, checked and compiled when they are declared; and which rules match.

A `Rule` and an `EventArchive` are plain values: names of queues, patterns and templates in EventBridge's own form, so
that a deployment writes the same rule that the embedded bus follows. They also hold what was compiled from these texts.

`Router` finds the rules that match an event without trying every rule. Each pattern is indexed under something that any
event that matches it must contain: the signs of one of its leaves, which are values (`source`, `detail-type`, a customer's
id), prefixes of texts, ranges of numbers, or just that the field is present. Of several leaves the one whose signs the
fewest patterns share is chosen. An event is traversed once along the paths that are indexed; the values found there select
the candidates, and only those are matched in full. So a thousand rules on different values, fields or ranges cost about as
much as one; patterns that only test for absent fields are always tried. Ranges of numbers are kept in a centered interval
tree: a lookup costs its depth and its results, not the number of ranges.

Never here: events, sending, what a rule does with an event. Invariants: an existing rule can be applied, and EventBridge
would accept it; every rule that matches is found: the index only selects candidates.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from onefold import duration, errors, limits
from onefold.duration import Duration
from onefold.events.operators import ANY, Sign, double, sign_of
from onefold.events.patterns import Node, Pattern, SplitNames, compile_pattern, elements, matches, view_of
from onefold.events.transform import InputTransformer, Path, Transformation, compile_path, compile_transformation
from onefold.options import Queue

PATTERN_CHARS_MAX: Final = 4_096  # EventBridge API, PutRule, EventPattern
TARGETS_MAX: Final = 5  # EventBridge quotas, targets per rule
_RULE_NAME: Final = r"[.\-_A-Za-z0-9]{1,64}"  # API reference, PutRule
_ARCHIVE_NAME: Final = r"[.\-_A-Za-z0-9]{1,48}"  # API reference, CreateArchive


class Rule(Struct, frozen=True, kw_only=True, eq=False):
    """A declared rule.

    Args:
        name, bus: those of the rule. arn: its ARN in EventBridge.
        pattern: its JSON. enabled: if False, the rule is not used.
        targets: names of queues, 1 to 5. dead_letter: name of the queue for what they refuse.
        input_path, input_transformer, constant: what targets get; at most one is not None.
        group: of FIFO targets: a text, or a JSON path into the event.
    """

    name: str
    bus: str
    arn: str
    pattern: str
    enabled: bool
    targets: tuple[str, ...]
    dead_letter: str
    input_path: str | None
    input_transformer: InputTransformer | None
    constant: Any
    group: str | None
    compiled: Pattern
    transformation: Transformation
    group_path: Path | None


class EventArchive(Struct, frozen=True, kw_only=True, eq=False):
    """A declared archive.

    Args:
        name, bus: those of the archive. pattern: JSON of what it keeps; None: every event.
        retention_ms: how long; None: forever.
    """

    name: str
    bus: str
    pattern: str | None
    retention_ms: int | None
    compiled: Pattern | None

    @property
    def place(self) -> str:
        """Its name in the engine: the bus's and the archive's."""
        return f"{self.bus}/{self.name}"


def make_rule(
    name: str,
    *,
    bus: str,
    arn: str,
    pattern: Mapping[str, Any] | str,
    targets: Sequence[Queue],
    known: Mapping[str, Queue],
    dead_letter: Callable[[], Queue],
    input_path: str | None,
    input_transformer: InputTransformer | None,
    constant: Any,
    group: str | None,
    enabled: bool,
) -> Rule:
    """A rule from what was declared; arguments and errors as `Bus.rule`.

    Args:
        known: the app's queues by name.
        dead_letter: returns its dead-letter queue; called once everything else is valid.
    """
    if not re.fullmatch(_RULE_NAME, str(name)):
        raise errors.UsageError(
            f"{name!r:.80} is not a valid name for a rule.", todo="Use 1 to 64 of A-Z a-z 0-9 . - and _."
        )
    text = pattern_text(pattern)
    compiled = compile_pattern(text)
    _check_targets(name, targets, known, group)
    transformation = compile_transformation(input_path, input_transformer, constant)
    group_path = compile_path(group) if group is not None and group.startswith("$") else None
    dead = dead_letter()
    _check_dead_letter(name, dead)
    return Rule(
        name=name,
        bus=bus,
        arn=arn,
        pattern=text,
        enabled=enabled,
        targets=tuple(one.name for one in targets),
        dead_letter=dead.name,
        input_path=input_path,
        input_transformer=input_transformer,
        constant=constant,
        group=group,
        compiled=compiled,
        transformation=transformation,
        group_path=group_path,
    )


def make_archive(
    name: str, *, bus: str, pattern: Mapping[str, Any] | str | None, retention: Duration | None
) -> EventArchive:
    """An archive from what was declared; arguments and errors as `Bus.archive`."""
    if not re.fullmatch(_ARCHIVE_NAME, str(name)):
        raise errors.UsageError(
            f"{name!r:.80} is not a valid name for an archive.", todo="Use 1 to 48 of A-Z a-z 0-9 . - and _."
        )
    text = None if pattern is None else pattern_text(pattern)
    return EventArchive(
        name=name,
        bus=bus,
        pattern=text,
        retention_ms=None if retention is None else duration.to_ms(retention, "retention", least_ms=1),
        compiled=None if text is None else compile_pattern(text),
    )


def _check_targets(rule: str, targets: Sequence[Queue], known: Mapping[str, Queue], group: str | None) -> None:
    for queue in targets:
        if known.get(getattr(queue, "name", "")) is not queue:
            raise errors.UsageError(
                f"{getattr(queue, 'name', queue)!r:.80} is not a queue of this bus's app.",
                todo="Pass what app.queue(...) returned.",
            )
    if not 1 <= len(targets) <= TARGETS_MAX or len({one.name for one in targets}) != len(targets):
        raise errors.UsageError(
            f"Rule {rule} has {len(targets)} targets.", todo=f"Give it 1 to {TARGETS_MAX} different queues."
        )
    for queue in targets:
        if queue.settings.fifo and group is None:
            raise errors.UsageError(
                f"Rule {rule} sends to the FIFO queue {queue.name} and has no group.",
                todo='Say what is kept in order, for example group="$.detail.customer".',
            )
        if queue.settings.fifo and not queue.settings.content_dedup:
            raise errors.UsageError(
                f"Rule {rule} sends to the FIFO queue {queue.name}, which has no content-based deduplication.",
                meaning="EventBridge gives messages no deduplication id.",
                todo="Declare the queue with content_dedup=True.",
            )


def pattern_text(pattern: Mapping[str, Any] | str) -> str:
    """The JSON of a pattern.

    Raises:
        UsageError: it is longer than 4,096 characters, or has no JSON form.
    """
    if isinstance(pattern, str):
        text = pattern
    else:
        try:
            text = msgspec.json.encode(pattern).decode()
        except (TypeError, ValueError) as error:
            raise errors.UsageError(
                f"The pattern has no JSON form: {error}.", todo="Use dicts, lists, texts, numbers."
            ) from None
    if len(text) > PATTERN_CHARS_MAX:
        raise errors.UsageError(
            f"A pattern of {len(text):,} characters is too long.", todo=f"It has at most {PATTERN_CHARS_MAX:,}."
        )
    return text


def _check_dead_letter(rule: str, queue: Queue) -> None:
    if queue.settings.fifo or queue.settings.message_bytes_max < limits.MESSAGE_BYTES_MAX:
        raise errors.UsageError(
            f"Queue {queue.name} cannot take what the targets of rule {rule} refuse.",
            meaning="It must be a standard queue, as EventBridge requires, and accept messages of the largest size.",
            todo="Declare another one: app.queue(name).",
        )


# -- which rules match ---------------------------------------------------------------------------------------------------


class NumberRange(NamedTuple):
    """From `low` to `high`, both inclusive; infinities for no bound. `rule` is the caller's index of the rule."""

    low: float
    high: float
    rule: int


class NumberRangeTree:
    """The ranges that contain a center, and trees of those below and above it.

    Args:
        ranges: at least one, low <= high each.
    """

    __slots__ = ("_above", "_below", "_by_high", "_by_low", "_center")

    def __init__(self, ranges: Sequence[NumberRange]) -> None:
        bounds = sorted(bound for one in ranges for bound in (one.low, one.high))
        center = self._center = bounds[len(bounds) // 2]
        here = [one for one in ranges if one.low <= center <= one.high]  # not empty: the center is a bound of one
        below = [one for one in ranges if one.high < center]
        above = [one for one in ranges if one.low > center]
        self._by_low = sorted(here, key=lambda one: one.low)
        self._by_high = sorted(here, key=lambda one: -one.high)
        self._below = NumberRangeTree(below) if below else None
        self._above = NumberRangeTree(above) if above else None

    def find(self, number: float, found: set[int]) -> None:
        """Add the rules of all ranges that contain a number."""
        if number < self._center:
            for one in self._by_low:
                if one.low > number:
                    break
                found.add(one.rule)
            farther = self._below
        else:
            for one in self._by_high:
                if one.high < number:
                    break
                found.add(one.rule)
            farther = self._above
        if farther is not None:
            farther.find(number, found)


T = TypeVar("T")

_RANGES_MET: Final = 4  # our estimate: a number lies in one of four ranges of its field
_Anchor = tuple[tuple[str, ...], Sign]  # a path and the sign of the value there


class Router(Generic[T]):
    """Finds the rules whose patterns match an event.

    Args:
        rules: patterns with their rules; answers keep this order.
    """

    def __init__(self, rules: Iterable[tuple[Pattern, T]]) -> None:
        self._rules = tuple(rules)
        offers = [list(_offers(pattern.root, ())) for pattern, _ in self._rules]
        crowd = Counter(_shared(anchor) for offer in offers for anchors in offer for anchor in anchors)
        self._always: list[int] = []
        self._root = _Shelf()
        for index, offer in enumerate(offers):
            if not offer:
                self._always.append(index)
                continue
            for path, sign in min(offer, key=lambda anchors: _cost(anchors, crowd)):
                shelf = self._root
                for name in path:
                    shelf = shelf.below.setdefault(name, _Shelf())
                shelf.file(sign, index)

    @property
    def always(self) -> int:
        """How many rules are tried for every event."""
        return len(self._always)

    def matching(self, value: Mapping[str, Any]) -> list[T]:
        """The rules whose pattern matches an event, in the order given."""
        event = view_of(value)
        found = set(self._always)
        _collect(self._root, event.value, event.dotted, found)
        return [self._rules[index][1] for index in sorted(found) if matches(self._rules[index][0], event)]


class _Shelf:
    """One step of a path: the patterns filed under signs here, and the steps below."""

    __slots__ = ("_ranges", "_tree", "below", "filed", "folds", "lengths")

    def __init__(self) -> None:
        self.below: dict[str, _Shelf] = {}
        self.filed: dict[Sign, list[int]] = {}
        self.folds = False
        self.lengths: set[int] = set()  # of the prefixes that are filed
        self._ranges: list[NumberRange] = []
        self._tree: NumberRangeTree | None = None

    def file(self, sign: Sign, index: int) -> None:
        """File a pattern's index under a sign; all patterns must be filed before the first `find`."""
        if sign[0] == "range":
            low, high = sign[1]
            self._ranges.append(NumberRange(low, high, index))
            return
        self.filed.setdefault(sign, []).append(index)
        kind, value = sign
        self.folds = self.folds or kind == "folded"
        if kind == "prefix":
            self.lengths.add(len(str(value)))

    def find(self, value: object, found: set[int]) -> None:
        """Add the rules indexed under a value that is neither a list nor an object."""
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


def _collect(shelf: _Shelf, value: object, dotted: SplitNames | None, found: set[int]) -> None:
    if isinstance(value, list):
        for one in elements(value):
            _collect(shelf, one, dotted, found)
    elif isinstance(value, dict):
        if shelf.below:
            fields = dotted.of(value) if dotted else value
            few, many = (fields, shelf.below) if len(fields) < len(shelf.below) else (shelf.below, fields)
            for name in few:
                if name in many:
                    _collect(shelf.below[name], fields[name], dotted, found)
    else:
        shelf.find(value, found)


def _cost(anchors: Sequence[_Anchor], crowd: Mapping[_Anchor, int]) -> tuple[int, bool]:
    """How many patterns would be tried; if two costs are equal, values are better than mere presence."""
    return sum(_asked(anchor, crowd) for anchor in anchors), any(sign == ANY for _, sign in anchors)


def _asked(anchor: _Anchor, crowd: Mapping[_Anchor, int]) -> int:
    count = crowd[_shared(anchor)]
    return count // _RANGES_MET + 1 if anchor[1][0] == "range" else count


def _shared(anchor: _Anchor) -> _Anchor:
    """What several patterns can share: equal values or prefixes; all ranges of one field count as shared."""
    path, sign = anchor
    return (path, ("range", None)) if sign[0] == "range" else anchor


def _offers(node: Node, path: tuple[str, ...]) -> Iterator[list[_Anchor]]:
    """The ways to file a pattern: each is a list of anchors, and every event that matches has at least one of them."""
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
