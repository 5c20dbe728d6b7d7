"""The index over rules: it finds exactly whom the plain matcher finds, and asks few."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.events import patterns
from onefold.events import rules as routing
from onefold.events.patterns import Pattern, compile_pattern, matches, mismatches, view_of
from onefold.events.rules import NumberRange, NumberRangeTree, Router

texts = st.sampled_from(["", "a", "A", "ab", "aB", "abc", "b*", "1", "10.0.0.7"])
numbers = st.sampled_from([0, 1, 1.0, -1, 2.5, 300, 2**53, 2**53 + 1, 2.0**60])
scalars = st.one_of(texts, numbers, st.booleans(), st.none())
names = st.sampled_from(["a", "b", "c", "a.b", "b.c"])
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(names, below, max_size=3)),
    max_leaves=8,
)
events = st.dictionaries(names, values, max_size=4)
members: st.SearchStrategy[Any] = st.one_of(
    scalars,
    st.sampled_from(
        [
            {"prefix": "a"},
            {"prefix": ""},
            {"prefix": {"equals-ignore-case": "AB"}},
            {"suffix": "b"},
            {"equals-ignore-case": "ab"},
            {"wildcard": "a*c"},
            {"wildcard": "*b"},
            {"wildcard": "b\\*"},
            {"anything-but": ["a", "b"]},
            {"anything-but": {"prefix": "a"}},
            {"numeric": ["=", 300]},
            {"numeric": ["=", 2**53]},
            {"numeric": [">", 0, "<=", 2.5]},
            {"numeric": [">=", 2**53]},
            {"numeric": ["<", 1]},
            {"exists": True},
            {"exists": False},
            {"cidr": "10.0.0.0/24"},
        ]
    ),
)
leaves = st.lists(members, min_size=1, max_size=3)
some_patterns: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.dictionaries(names, leaves, min_size=1, max_size=3),
    lambda below: st.one_of(
        st.dictionaries(names, st.one_of(leaves, below), min_size=1, max_size=3),
        st.builds(lambda one, ors: {**one, "$or": ors}, below, st.lists(below, min_size=2, max_size=3)),
    ),
    max_leaves=4,
)


def compiled(pattern: Any) -> Pattern:
    return compile_pattern(msgspec.json.encode(pattern))


@settings(max_examples=200, deadline=None)
@given(st.lists(some_patterns, max_size=8), st.lists(events, min_size=1, max_size=4))
def test_who_is_found_is_who_matches(several: list[Any], asked: list[Any]) -> None:
    rules = [(compiled(one), place) for place, one in enumerate(several)]
    router = Router(rules)
    for event in asked:
        assert router.matching(event) == [place for one, place in rules if matches(one, view_of(event))]


@settings(max_examples=200, deadline=None)
@given(some_patterns, events)
def test_there_are_reasons_exactly_where_nothing_matches(pattern: Any, event: Any) -> None:
    one, asked = compiled(pattern), view_of(event)
    assert bool(mismatches(one, asked)) is not matches(one, asked)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Pattern]:
    """The patterns that are matched in full."""
    seen: list[Pattern] = []

    def noted(pattern: Pattern, event: patterns.EventView) -> bool:
        seen.append(pattern)
        return matches(pattern, event)

    monkeypatch.setattr(routing, "matches", noted)
    return seen


THOUSAND = range(1_000)


@pytest.mark.parametrize(
    ("pattern_of", "event", "asked_max"),
    [
        (lambda n: {"source": ["shop"], "detail": {"customer": [f"c-{n}"]}}, {"customer": "c-7"}, 1),
        (lambda n: {"source": [{"prefix": "sh"}], "detail": {"sku": [{"prefix": f"{n:04}-"}]}}, {"sku": "0007-x"}, 1),
        (lambda n: {"source": ["shop"], "detail": {f"field{n}": [{"exists": True}]}}, {"field7": 0}, 1),
        (lambda n: {"detail": {"id": [{"wildcard": f"{n:04}-*-z"}]}}, {"id": "0007-a-z"}, 1),
        (lambda n: {"detail": {"id": [{"equals-ignore-case": f"ID-{n}"}]}}, {"id": "id-7"}, 1),
        (lambda n: {"source": ["shop"], "detail": {"total": [{"numeric": [">=", n, "<", n + 1]}]}}, {"total": 7.5}, 2),
        (
            lambda n: {"source": ["shop"], "$or": [{"detail": {"a": [n]}}, {"detail": {"b": [n]}}]},
            {"b": 7, "a": 8},
            2,
        ),
    ],
)
def test_a_thousand_rules_are_not_a_thousand_matches(
    asked: list[Pattern], pattern_of: Any, event: dict[str, Any], asked_max: int
) -> None:
    router = Router((compiled(pattern_of(n)), n) for n in THOUSAND)
    assert 7 in router.matching({"source": "shop", "detail": event})
    assert len(asked) <= asked_max
    assert router.always == 0


bounds = st.one_of(st.integers(-9, 9), st.floats(allow_nan=False))
spans = st.lists(st.tuples(bounds, bounds).map(sorted), min_size=1, max_size=30)


@settings(max_examples=150, deadline=None)
@given(spans, st.lists(bounds, min_size=1, max_size=9))
def test_a_number_finds_the_ranges_that_hold_it(several: list[list[float]], numbers: list[float]) -> None:
    tree = NumberRangeTree([NumberRange(low, high, place) for place, (low, high) in enumerate(several)])
    for number in [*numbers, several[0][0], several[-1][1]]:
        found: set[int] = set()
        tree.find(number, found)
        assert found == {place for place, (low, high) in enumerate(several) if low <= number <= high}


def test_what_can_be_filed_under_nothing_is_always_asked() -> None:
    router = Router([(compiled({"a": [{"exists": False}]}), "absent"), (compiled({"b": [1]}), "one")])
    assert router.always == 1
    assert router.matching({"b": [1]}) == ["absent", "one"]
    assert router.matching({"a": 1}) == []


def test_of_nothing_there_is_nobody() -> None:
    assert Router([]).matching({"a": 1}) == []


@pytest.mark.parametrize(
    ("pattern", "event", "told"),
    [
        ({"a": ["x"]}, {}, '$.a should be one of ["x"], but there is no such field'),
        ({"a": ["x"]}, {"a": {"b": 1}}, '$.a should be one of ["x"], but it is an object'),
        ({"a": {"b": [1]}}, {"a": {"b": 2}}, "$.a.b should be one of [1], but it is 2"),
        ({"a": [1]}, {"a": [2, 3]}, "$.a should be one of [1], but none of the 2 elements of [2,3] is"),
        ({"a": [1]}, {"a": []}, "$.a should be one of [1], but the list there is empty"),
        ({"a": [{"exists": False}]}, {"a": 1}, '$.a should be one of [{"exists":false}], but it is 1'),
        (
            {"a": {"x": [1], "y": [2]}},
            {"a": [{"x": 1}, {"z": 2}]},
            (
                "$.a should be a list with one element that has everything, but the closest lacks: "
                "$.a[0].y should be one of [2], but there is no such field"
            ),
        ),
        (
            {"$or": [{"a": [1]}, {"b": [2]}]},
            {"a": 3},
            (
                "$ should be as one of its $or alternatives requires, but none matches: "
                "$.a should be one of [1], but it is 3; $.b should be one of [2], but there is no such field"
            ),
        ),
    ],
)
def test_a_reason_points_at_the_field(pattern: Any, event: Any, told: str) -> None:
    (reason,) = mismatches(compiled(pattern), view_of(event))
    assert str(reason) == told
