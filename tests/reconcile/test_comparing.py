"""What a user's own check may answer, and how it is held against the dispatched keys: too many, too few, unexpected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import onefold
from onefold.reconcile.counts import Counted, Own, Totals, compare


def pages() -> Iterator[list[str]]:
    yield ["a", "b"]
    yield ["c"]


@pytest.mark.parametrize(
    ("answer", "missing", "duplicate", "unexpected", "found"),
    [
        ({"a": 1, "b": 1, "c": 1}, 0, 0, 0, 3),
        ({"a": 1, "c": 2}, 1, 1, 0, 3),
        ({"a": 1, "b": 1, "c": 1, "z": 1}, 0, 0, 1, 4),
        ({"z": 0}, 3, 0, 0, 0),
        (Totals(expected=3, found=2, what="statements"), 1, 0, 0, 2),
        (Totals(expected=3, found=5), 0, 2, 0, 5),
        ([Counted("a", 1), Counted("b", 0), Counted("c", 3, 2), Counted("d", 1, 0)], 1, 1, 1, 5),
        ((("a", 1), ("b", 2, 2)), 0, 0, 0, 3),
        (iter([]), 0, 0, 0, 0),
    ],
)
def test_three_forms_of_an_answer(answer: Any, missing: int, duplicate: int, unexpected: int, found: int) -> None:
    own = compare(answer, pages)
    assert (own.missing, own.duplicate, own.unexpected, own.found) == (missing, duplicate, unexpected, found)


@pytest.mark.parametrize(
    "answer", [None, 3, "abc", {"a": 1.5}, {"a": -1}, [("a",)], [3], Totals(expected=1, found=True)]
)
def test_an_answer_of_another_form_is_refused(answer: Any) -> None:
    with pytest.raises(onefold.errors.UsageError):
        compare(answer, pages)


def test_differences_are_named_up_to_a_bound() -> None:
    own = compare({}, lambda: iter([[f"k{number}" for number in range(1_000)]]))
    assert (own.missing, len(own.differences)) == (1_000, 20)


def test_rows_that_are_not_written_yet_are_not_missing() -> None:
    own = Own(what="rows", expected=10, found=7, missing=3, duplicate=0, unexpected=0, differences=())
    assert not own.differs(3)
    assert own.differs(2)


def test_a_key_that_was_dispatched_twice_is_missing_once() -> None:
    own = compare({"b": 1}, lambda: iter([["a", "b"], ["a", "b"]]))
    assert (own.expected, own.found, own.missing) == (2, 1, 1)
    assert own.differences == (Counted("a", 0),)
