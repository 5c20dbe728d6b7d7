"""Event patterns as tables: each operator's yes and no, what AWS refuses, and the filters of a queue's mapping."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from onefold.errors import UsageError
from onefold.events.patterns import compile_filters, compile_pattern, matches, view_of


def does_match(pattern: Any, event: Any) -> bool:
    return matches(compile_pattern(msgspec.json.encode(pattern)), view_of(event))


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (
            {"a": ["x", 1, True, None]},
            [{"a": "x"}, {"a": 1}, {"a": 1.0}, {"a": True}, {"a": None}],
            [{"a": "X"}, {"a": 2}, {}],
        ),
        ({"a": [""]}, [{"a": ""}], [{"a": None}, {"a": " "}]),
        ({"a": [{"prefix": "ab"}]}, [{"a": "abc"}], [{"a": "aB"}, {"a": 1}, {}]),
        ({"a": [{"prefix": ""}]}, [{"a": "x"}, {"a": ""}], [{"a": 1}]),
        ({"a": [{"prefix": {"equals-ignore-case": "AB"}}]}, [{"a": "abc"}], [{"a": "b"}]),
        ({"a": [{"suffix": ".png"}]}, [{"a": "x.png"}], [{"a": "x.PNG"}]),
        ({"a": [{"suffix": {"equals-ignore-case": ".png"}}]}, [{"a": "x.PNG"}], [{"a": "x"}]),
        ({"a": [{"equals-ignore-case": "Yes"}]}, [{"a": "YES"}], [{"a": "yes "}, {"a": 1}]),
        ({"a": [{"wildcard": "dir/*.txt"}]}, [{"a": "dir/.txt"}, {"a": "dir/b/c.txt"}], [{"a": "dir/c.tx"}]),
        ({"a": [{"wildcard": "a*b*c"}]}, [{"a": "abc"}, {"a": "aXbYc"}], [{"a": "acb"}]),
        ({"a": [{"wildcard": "a\\*b"}]}, [{"a": "a*b"}], [{"a": "axb"}]),
        ({"a": [{"anything-but": "x"}]}, [{"a": "y"}, {"a": None}, {"a": 1}], [{"a": "x"}, {}]),
        ({"a": [{"anything-but": [1, 2]}]}, [{"a": 3}, {"a": "1"}], [{"a": 1}, {}]),
        ({"a": [{"anything-but": {"prefix": "x"}}]}, [{"a": "y"}, {"a": 5}], [{"a": "xy"}]),
        ({"a": [{"anything-but": {"suffix": ["x", "y"]}}]}, [{"a": "z"}], [{"a": "ax"}, {"a": "ay"}]),
        ({"a": [{"anything-but": {"wildcard": "*x*"}}]}, [{"a": "z"}], [{"a": "axb"}]),
        (
            {"a": [{"numeric": [">", 0, "<=", 5]}]},
            [{"a": 5}, {"a": 0.5}],
            [{"a": 0}, {"a": 5.1}, {"a": "3"}, {"a": None}],
        ),
        ({"a": [{"numeric": ["=", 3]}]}, [{"a": 3}, {"a": 3.0}], [{"a": 4}]),
        ({"a": [{"exists": True}]}, [{"a": None}, {"a": ""}], [{}, {"a": {"b": 1}}, {"a": []}]),
        ({"a": [{"exists": False}]}, [{}, {"b": 1}], [{"a": 1}]),
        ({"a": {"b": [{"exists": False}]}}, [{}, {"a": {}}, {"a": {"c": 1}}], [{"a": {"b": 1}}]),
        ({"a": [{"cidr": "10.0.0.0/24"}]}, [{"a": "10.0.0.7"}], [{"a": "10.0.1.7"}, {"a": "x"}, {"a": 10}]),
        ({"a": [{"cidr": "2001:db8::/32"}]}, [{"a": "2001:db8::1"}], [{"a": "2001:db9::1"}]),
        ({"$or": [{"a": [1]}, {"b": [2]}]}, [{"a": 1}, {"b": 2}], [{"a": 2}, {}]),
        ({"c": [3], "$or": [{"a": [1]}, {"b": [2]}]}, [{"a": 1, "c": 3}], [{"a": 1}]),
        ({"a": [1, 2]}, [{"a": [5, 2]}], [{"a": [5]}, {"a": []}]),
        ({"a": {"x": [1], "y": [2]}}, [{"a": [{"x": 9}, {"x": 1, "y": 2}]}], [{"a": [{"x": 1}, {"y": 2}]}]),
        ({"a.b": [1]}, [{"a": {"b": 1}}, {"a.b": 1}], [{"a": 1}]),
        ({"a": [300]}, [{"a": 300.0}, {"a": 3e2}], [{"a": "300"}]),
        ({"a": [True]}, [{"a": True}], [{"a": 1}, {"a": "true"}]),
        ({"a": [None]}, [{"a": None}], [{"a": ""}, {"a": "null"}, {"a": False}, {}]),
        ({"a": {"b": [1]}}, [{"a.b": 1}, {"a": {"b": 1}}, {"a": {"c": 2}, "a.b": 1}], [{"a": '{"b": 1}'}]),
        ({"a.b": [1], "a": {"c": [2]}}, [{"a": [{"b": 1, "c": 2}]}], [{"a": [{"b": 1}, {"c": 2}]}]),
        ({"a": {"b": [1]}}, [{"a": [[{"b": 1}]]}, {"a": {"b": [[0], [1]]}}], [{"a": [[]]}]),
        ({"a": {"b": [{"exists": False}]}}, [{"a": [{"c": 1}]}, {"a": "x"}], [{"a": [{"c": 1}, {"b": 1}]}]),
        ({"a": [{"exists": False}, "x"]}, [{}, {"a": "x"}], [{"a": "y"}]),
        ({"a": [{"wildcard": ""}]}, [{"a": ""}], [{"a": "x"}]),
        ({"a": [{"wildcard": "*"}]}, [{"a": ""}, {"a": "x"}], [{"a": 1}, {}]),
        ({"a": [{"wildcard": "ab*ba"}]}, [{"a": "abba"}, {"a": "abxba"}], [{"a": "aba"}]),
        ({"a": [{"wildcard": "a\\\\*"}]}, [{"a": "a\\x"}], [{"a": "ax"}]),
        ({"a": [{"suffix": ""}]}, [{"a": "x"}], [{"a": None}]),
        ({"a": [{"anything-but": {"equals-ignore-case": ["X"]}}]}, [{"a": "y"}, {"a": None}], [{"a": "x"}, {}]),
        ({"a": [{"anything-but": ["x", "y"]}]}, [{"a": ["x", "z"]}, {"a": True}], [{"a": ["x", "y"]}, {"a": []}]),
        ({"a": [{"anything-but": 0}]}, [{"a": False}, {"a": 1}], [{"a": 0}, {"a": 0.0}]),
        ({"a": [{"numeric": ["<", 9007199254740993]}]}, [{"a": 9007199254740991}], [{"a": 9007199254740993}]),
        ({"a": [{"numeric": [">", 0]}]}, [{"a": 10**400}], [{"a": -(10**400)}, {"a": True}]),
        ({"$or": ["x"]}, [{"$or": "x"}], [{}]),
        (
            {"a": {"$or": [{"b": [1]}, {"$or": [{"c": [2]}, {"c": [3]}]}]}},
            [{"a": {"b": 1}}, {"a": {"c": 3}}],
            [{"a": {}}],
        ),
    ],
)
def test_operators(pattern: Any, yes: list[Any], no: list[Any]) -> None:
    assert [one for one in yes if not does_match(pattern, one)] == []
    assert [one for one in no if does_match(pattern, one)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        [], "text", 1, None,
        {"a": 42}, {"a": "x"}, {"a": []}, {"a": [[1]]},
        {"a": [{"EXISTS": True}]}, {"a": [{"strange": 1}]}, {"a": [{"prefix": "x", "suffix": "y"}]},
        {"a": [{"prefix": 1}]}, {"a": [{"suffix": ["x"]}]}, {"a": [{"equals-ignore-case": 1}]},
        {"a": [{"wildcard": "a**b"}]}, {"a": [{"wildcard": "a\\b"}]}, {"a": [{"wildcard": 1}]},
        {"a": [{"anything-but": None}]}, {"a": [{"anything-but": [1, "x"]}]}, {"a": [{"anything-but": {"prefix": ""}}]},
        {"a": [{"anything-but": {"numeric": [">", 1]}}]},
        {"a": [{"numeric": 5}]}, {"a": [{"numeric": [">", 0, ">", 0]}]}, {"a": [{"numeric": [">", "0"]}]},
        {"a": [{"exists": "yes"}]}, {"a": [{"cidr": "10.0.0.0"}]}, {"a": [{"cidr": "x/8"}]},
        {"a": [{"cidr": "10.0.0.0/33"}]}, {"a": [{"cidr": "10.0.0.0/8/8"}]}, {"a": [{"cidr": "10.0.0.0/x"}]},
        {"a": [{"cidr": 1}]},
        {}, {"a": {}}, {"a": [{}]}, {"a": None}, {"a": [{"NUMERIC": [">", 1]}]},
        {"a": [{"prefix": {"suffix": "x"}}]}, {"a": [{"prefix": {"equals-ignore-case": 1}}]},
        {"a": [{"wildcard": "a*b*c*d*e*f*g"}]}, {"a": [{"wildcard": "a\\"}]},
        {"a": [{"anything-but": []}]}, {"a": [{"anything-but": True}]}, {"a": [{"anything-but": {}}]},
        {"a": [{"anything-but": {"prefix": {"equals-ignore-case": "x"}}}]}, {"a": [{"anything-but": {"suffix": []}}]},
        {"a": [{"anything-but": {"wildcard": [1]}}]},
        {"a": [{"numeric": []}]}, {"a": [{"numeric": [">"]}]}, {"a": [{"numeric": ["!", 1]}]}, {"a": [{"numeric": [1, 2]}]},
        {"a": [{"numeric": ["=", 1, "<", 2]}]}, {"a": [{"numeric": [">", 2, "<", 1]}]}, {"a": [{"numeric": [">", True]}]},
        {"a": [{"numeric": [">", 1, "<", 2, "<", 3]}]},
        {"$or": []}, {"$or": [{"a": [1]}]}, {"$or": [{"a": [1]}, {}]},
        {f"f{field}": {"$or": [{"a": [1]}, {"b": [1]}]} for field in range(10)},
    ],
)  # fmt: skip
def test_what_is_no_pattern(pattern: Any) -> None:
    with pytest.raises(UsageError) as caught:
        compile_pattern(msgspec.json.encode(pattern))
    assert caught.value.what.startswith("Event pattern is not valid. Reason: ")


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ({"detail": {"state": []}}, "detail.state"),
        ({"detail": {"state": [{"strange": 1}]}}, "detail.state.strange"),
        ({"$or": [{"a": ["x"]}, {"b": [{"anything-but": {"prefix": ""}}]}]}, "$or.b.anything-but"),
    ],
)
def test_the_error_names_the_place(pattern: Any, path: str) -> None:
    with pytest.raises(UsageError) as caught:
        compile_pattern(msgspec.json.encode(pattern))
    assert caught.value.meaning == f"It is at {path}."


def test_depth_fails_neither_compiling_nor_matching() -> None:
    deep = b'{"a":' * 400 + b"[1]" + b"}" * 400
    with pytest.raises(UsageError, match="nested deeper"):
        compile_pattern(deep)
    nested: Any = 1
    for _ in range(5_000):
        nested = [nested]
    assert does_match({"a": [1]}, {"a": nested})
    assert not does_match({"a": {"b": [{"exists": False}], "c": [1]}}, {"a": nested})


@pytest.mark.parametrize("body", ["[" * 100_000, "{", '{"a": 1e400}', '{"a": "\ud800"}', " \n", '{"a": NaN}'])
def test_a_body_that_is_nearly_json_is_text(body: str) -> None:
    assert not compile_filters(['{"body": {"a": [{"exists": false}]}}']).keep(body)
    assert compile_filters(['{"body": [{"exists": true}]}']).keep(body)


def test_a_pattern_that_could_take_for_ever_does_not() -> None:
    pattern = compile_pattern(b'{"a": [{"wildcard": "*a*a*a*a*b"}]}')
    assert not matches(pattern, view_of({"a": "a" * 50_000}))


@pytest.mark.parametrize(
    ("filters", "kept", "dropped"),
    [
        pytest.param(
            filters, kept, dropped, marks=pytest.mark.conformance(operation="Mapping", case=case, source="2.3")
        )
        for filters, kept, dropped, case in (
            ([], ["x", '{"a": 1}'], [], "filters: none takes everything"),
            (
                ['{"body": {"a": [1]}}'],
                ['{"a": 1}'],
                ['{"a": 2}', "text", ""],
                "filters: a JSON pattern drops plain text",
            ),
            (['{"body": ["x"]}'], ["x"], ["y", '{"x": 1}'], "filters: a text pattern drops JSON"),
            (['{"body": [{"prefix": "o-"}]}'], ["o-1"], ["p-1"], "filters: operators on plain text"),
            (
                ['{"body": {"a": [1]}}', '{"body": ["x"]}'],
                ['{"a": 1}', "x"],
                ["y"],
                "filters: one that matches is enough",
            ),
            (['{"body": {"n": [{"numeric": [">", 5]}]}}'], ['{"n": 6}'], ['{"n": "6"}'], "filters: numeric"),
            (['{"body": ["a"]}'], ["a"], ['["a"]'], "filters: a text pattern drops a JSON array"),
            (
                ['{"$or": [{"body": {"a": [1]}}, {"body": ["x"]}]}', '{"body.b": [2]}'],
                ['{"a": 1}', "x", '{"b": 2}'],
                ['{"a": 2}', "y"],
                "filters: $or and dots",
            ),
            (["{}"], ["x", '{"a": 1}'], [], "filters: no pattern on the body keeps every message"),
        )
    ],
)
def test_filters(filters: list[str], kept: list[str], dropped: list[str]) -> None:
    compiled = compile_filters(filters)
    assert [body for body in kept if not compiled.keep(body)] == []
    assert [body for body in dropped if compiled.keep(body)] == []


@pytest.mark.conformance(
    operation="Mapping", case="filters: only on body, at most 5, of 4,096 characters", source="2.3 [O]"
)
@pytest.mark.parametrize(
    "filters",
    [
        ['{"messageId": ["x"]}'], ["no json"], ["[]"], ['{"body": "x"}'], ['{"body": ["x"]}'] * 6,
        ['{"body": ["' + "x" * 4_096 + '"]}'],
    ],
)  # fmt: skip
def test_filters_that_are_refused(filters: list[str]) -> None:
    with pytest.raises(UsageError):
        compile_filters(filters)
