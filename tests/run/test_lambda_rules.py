"""What a batch names in its answer and what may begin: the tables, whole, against the rules as AWS words them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

import pytest

from onefold.local.batching import read_answer
from onefold.runner.lambda_invocation import LONGEST_TIMES, has_time, may_begin, next_longest
from onefold.runner.lambda_mapping import answer, failures

if TYPE_CHECKING:
    from onefold.options import OnFailure

DONE, STAYS = "done", "stays"
GROUPS = ("a", "b")


def batches(count_max: int) -> Iterator[tuple[tuple[str, str], ...]]:
    """Every FIFO batch of up to so many messages: its group, and what would become of each if it were begun."""
    for count in range(count_max + 1):
        yield from product(product(GROUPS, (DONE, STAYS)), repeat=count)


def worked(batch: tuple[tuple[str, str], ...], on_failure: OnFailure) -> list[tuple[str, bool]]:
    """A handler that works through a batch one by one: message id, and whether it is done."""
    stays: set[str | None] = set()
    receives = []
    for place, (group, becomes) in enumerate(batch):
        done = may_begin(group, stays, 0, on_failure) and becomes == DONE
        if not done:
            stays.add(group)
        receives.append((str(place), done))
    return receives


@pytest.mark.parametrize("on_failure", ["group", "batch"])
def test_every_batch_keeps_its_order(on_failure: OnFailure) -> None:
    seen = 0
    for batch in batches(5):
        named = failures(worked(batch, on_failure))
        for place, (group, becomes) in enumerate(batch):
            behind = range(place + 1, len(batch))
            if becomes == STAYS:
                assert str(place) in named
            if str(place) in named:
                held_up = [later for later in behind if on_failure == "batch" or batch[later][0] == group]
                assert all(str(later) in named for later in held_up), (batch, named)
            elif on_failure == "group":  # what others' groups do is nothing to it
                assert all(batch[earlier][1] == DONE for earlier in range(place) if batch[earlier][0] == group)
            else:
                assert all(batch[earlier][1] == DONE for earlier in range(place))
        seen += 1
    assert seen == sum(4**count for count in range(6))


@pytest.mark.parametrize("on_failure", ["group", "batch"])
def test_lambda_reads_every_answer_as_it_is_meant(on_failure: OnFailure) -> None:
    import json

    for batch in batches(4):
        receives = worked(batch, on_failure)
        payload = json.dumps(answer(failures(receives))).encode()
        verdict = read_answer(payload, {message_id for message_id, _ in receives}, reports_failures=True)
        assert verdict.kind != "none"
        assert verdict.failed == {message_id for message_id, done in receives if not done}


@pytest.mark.parametrize(
    ("receives", "named"),
    [
        ([], []),
        ([("m1", True)], []),
        ([("m1", False)], ["m1"]),
        ([("m1", True), ("m2", False), ("m3", True), ("m4", False)], ["m2", "m4"]),
        ([("m1", True), ("m1", True)], []),
        ([("m1", True), ("m1", False)], ["m1"]),  # one message twice in a batch: it stays while one receive is open
        ([("m1", False), ("m2", True), ("m1", True)], ["m1"]),
        ([("m1", False), ("m1", False)], ["m1"]),  # named once: what Lambda makes of a repeated id is not documented
    ],
)
def test_what_is_named(receives: list[tuple[str, bool]], named: list[str]) -> None:
    assert failures(receives) == named


@pytest.mark.parametrize(
    ("group", "stays", "running", "on_failure", "begins"),
    [
        (None, set(), 0, "group", True),
        (None, set(), 9, "group", True),
        (None, {None}, 0, "group", True),  # a standard queue has no order
        ("a", set(), 9, "group", True),  # chains keep the order of what has begun
        ("a", {"a"}, 0, "group", False),
        ("a", {"b"}, 0, "group", True),
        ("a", {None}, 0, "group", True),
        (None, set(), 0, "batch", True),
        (None, set(), 1, "batch", False),
        (None, {None}, 0, "batch", False),
        ("a", set(), 1, "batch", False),
        ("a", {"b"}, 0, "batch", False),
    ],
)
def test_what_may_begin(
    group: str | None, stays: set[str | None], running: int, on_failure: OnFailure, begins: bool
) -> None:
    assert may_begin(group, stays, running, on_failure) is begins


@pytest.mark.parametrize(
    ("timeout_ms", "longest_ms", "left_ms", "fresh", "starts"),
    [
        (60_000, None, 1, True, True),  # nothing was started: giving back would not bring more time
        (10_000, None, 10_000, False, True),  # a timeout that fits is a promise
        (10_000, None, 9_999, False, False),
        (10_000, 5, 9_999, False, False),  # whatever runs took so far
        (30_000, None, 29_999, False, False),
        (
            60_000,
            None,
            15_000,
            False,
            True,
        ),  # one that does not fit promises nothing: half of the time, then experience
        (60_000, None, 14_999, False, False),
        (60_000, 100, 300, False, True),
        (60_000, 100, 299, False, False),
        (60_000, 20_000, 29_999, False, False),  # never more than the whole
        (60_000, 20_000, 30_000, False, True),
        (60_000, 0, 0, False, True),
    ],
)
def test_what_there_is_time_for(
    timeout_ms: int, longest_ms: int | None, left_ms: int, fresh: bool, starts: bool
) -> None:
    assert has_time(timeout_ms, longest_ms, left_ms, 30_000, fresh=fresh) is starts


def test_a_run_with_a_timeout_that_fits_is_never_cut_off() -> None:
    for left_ms in range(0, 30_001, 7):
        if has_time(5_000, 1, left_ms, 30_000, fresh=False):
            assert left_ms >= 5_000
    assert LONGEST_TIMES > 1


def test_one_slow_run_is_forgotten() -> None:
    longest_ms: int | None = None
    for took_ms in (100, 9_000, *[100] * 50):
        longest_ms = next_longest(longest_ms, took_ms)
    assert longest_ms == 100
    assert next_longest(None, 3) == 3
    assert next_longest(100, 9_000) == 9_000
