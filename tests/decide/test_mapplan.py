"""The rules of map runs, to the boundary: threshold, retries, names of errors, catch, batches; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from onefold import errors
from onefold.maps.rules import (
    Batcher,
    Catcher,
    ItemBatch,
    ItemReader,
    MapSpec,
    Retrier,
    Tolerated,
    batched,
    catcher,
    check_header,
    exceeded,
    matches,
    retry_ms,
)


class Sized(Struct, frozen=True):
    size: int


@pytest.mark.parametrize(
    ("tolerated", "failed", "total", "bound"),
    [
        (Tolerated(), 0, 100, None),
        (Tolerated(), 1, 100, "count"),
        (Tolerated(count=2), 2, 100, None),
        (Tolerated(count=2), 3, 100, "count"),
        (Tolerated(percent=2), 2, 100, None),
        (Tolerated(percent=2), 3, 100, "percent"),
        (Tolerated(percent=1.1), 11, 1_000, None),
        (Tolerated(percent=1.1), 12, 1_000, "percent"),
        (Tolerated(percent=0.1), 1, 1_000, None),
        (Tolerated(percent=100), 100, 100, None),
        (Tolerated(percent=0), 1, 100, "percent"),
        (Tolerated(percent=50), 60, None, None),  # not judged before the total is known
        (Tolerated(count=5, percent=50), 6, 100, "count"),
        (Tolerated(count=50, percent=5), 6, 100, "percent"),
        (Tolerated(percent=2), 0, 0, None),
    ],
)
def test_the_threshold_is_strictly_more(
    tolerated: Tolerated, failed: int, total: int | None, bound: str | None
) -> None:
    assert exceeded(tolerated, failed, total) == bound


def test_the_pauses_of_the_documented_example() -> None:
    rule = [Retrier(errors=("Busy",), interval_ms=2_000, backoff=2.0, retries=4, max_delay_ms=30_000)]
    pauses = [retry_ms(rule, "Busy", ["Busy"] * number, 0.0) for number in range(5)]
    assert pauses == [2_000, 4_000, 8_000, 16_000, None]


def test_the_longest_pause_holds_and_full_jitter_draws_up_to_it() -> None:
    rule = [Retrier(errors=("Busy",), interval_ms=2_000, retries=99, max_delay_ms=5_000, jitter="full")]
    assert retry_ms(rule, "Busy", ["Busy"] * 90, 0.5) == 2_500
    assert retry_ms(rule, "Busy", [], 0.0) == 0


def test_each_retrier_counts_for_itself() -> None:
    rules = [Retrier(errors=("A",), retries=1), Retrier(errors=("States.ALL",), retries=2)]
    assert retry_ms(rules, "A", ["B", "B"], 0.0) == 1_000
    assert retry_ms(rules, "A", ["A"], 0.0) is None  # the first that names it decides, even when it is used up
    assert retry_ms(rules, "B", ["A", "B"], 0.0) == 2_000
    assert retry_ms(rules, "B", ["B", "B"], 0.0) is None


@pytest.mark.parametrize(
    ("names", "error", "fits"),
    [
        (["NotThere"], "shop.NotThere", True),
        (["shop.NotThere"], "shop.NotThere", True),
        (["shop.NotThere"], "shop.deep.NotThere", True),
        (["shop.NotThere"], "other.NotThere", False),
        (["States.ALL"], "anything", True),
        (["States.ALL"], "States.Runtime", False),
        (["States.ALL"], "States.DataLimitExceeded", False),
        (["States.TaskFailed"], "ValueError", True),
        (["States.TaskFailed"], "HandlerTimeout", False),
        (["States.Timeout"], "HandlerTimeout", True),
        (["ValueError"], "UnicodeError", False),
    ],
)
def test_names_of_errors(names: list[str], error: str, fits: bool) -> None:
    assert matches(names, error) is fits


def test_a_permanent_error_is_not_tried_again_unless_it_is_named() -> None:
    spec = MapSpec(name="m", queue="q", retry=(Retrier(errors=("States.ALL",)),))
    assert retry_ms(spec.retriers, "PermanentError", [], 0.0) is None
    named = MapSpec(name="m", queue="q", retry=(Retrier(errors=("PermanentError",)),))
    assert retry_ms(named.retriers, "PermanentError", [], 0.0) == 1_000
    assert MapSpec(name="m", queue="q").retriers == ()
    assert spec.runs_max == 4


def test_the_first_catcher_that_names_it() -> None:
    clauses = [Catcher(errors=("A",), queue="a"), Catcher(errors=("States.ALL",), queue="rest")]
    assert [found.queue for error in ("A", "B") if (found := catcher(clauses, error))] == ["a", "rest"]
    assert catcher(clauses[:1], "B") is None


def test_1130_items_by_100_are_12_batches() -> None:
    found = list(batched([Sized(10)] * 1_130, ItemBatch(items_max=100)))
    assert [len(one) for one in found] == [100] * 11 + [30]


def test_a_batch_ends_before_the_item_that_does_not_fit() -> None:
    found = list(batched([Sized(4), Sized(4), Sized(5), Sized(50), Sized(1)], ItemBatch(bytes_max=11)))
    assert [[one.size for one in some] for some in found] == [[4, 4], [5], [50], [1]]
    assert Batcher[Sized](ItemBatch(items_max=1)).rest() is None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ItemReader(format="xml"), "format='xml'"),  # type: ignore[arg-type]
        (lambda: ItemReader(delimiter=";"), "delimiter=';'"),  # type: ignore[arg-type]
        (lambda: ItemReader(encoding="utf-16"), "encoding='utf-16'"),
        (lambda: ItemReader(quote='""'), "quote="),
        (lambda: ItemReader(items_max=0), "items_max=0"),
        (lambda: ItemReader(header=("a", "a")), "'a' twice"),
        (lambda: check_header([]), "names no column"),
        (lambda: check_header(["x" * 11_000]), "11001 bytes"),
        (ItemBatch, "no bound"),
        (lambda: ItemBatch(items_max=0), "batch.items_max=0"),
        (lambda: ItemBatch(bytes_max=262_145), "batch.bytes_max=262145"),
        (lambda: Tolerated(count=-1), "tolerated_count=-1"),
        (lambda: Tolerated(percent=100.1), "tolerated_percent=100.1"),
        (lambda: Tolerated(percent=-1), "tolerated_percent=-1"),
        (lambda: Retrier(errors=()), "names no error"),
        (lambda: Retrier(errors=("States.ALL", "A")), "together with others"),
        (lambda: Retrier(errors=("A",), backoff=0.9), "retry.backoff=0.9"),
        (lambda: Retrier(errors=("A",), interval_ms=0), "retry.interval=0"),
        (lambda: Retrier(errors=("A",), retries=-1), "retry.retries=-1"),
        (lambda: Retrier(errors=("A",), max_delay_ms=1_000), "retry.max_delay=1000 ms"),
        (lambda: MapSpec(name="m", queue="q", concurrency=10_001), "concurrency=10001"),
        (lambda: MapSpec(name="m", queue="q", concurrency=0), "concurrency=0"),
        (
            lambda: MapSpec(name="m", queue="q", retry=(Retrier(errors=("States.ALL",)), Retrier(errors=("A",)))),
            "States.ALL before another",
        ),
    ],
)
def test_what_is_refused(make: Any, said: str) -> None:
    with pytest.raises(errors.UsageError, match=said.replace("(", r"\(")) as refused:
        make()
    assert refused.value.todo
