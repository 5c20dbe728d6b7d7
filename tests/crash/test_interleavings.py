"""Every interleaving of two and three workers on one operation, with deaths, zombies and lost answers, on the real code.

`world.py` says what can happen, `walk.py` walks it, `judge.py` has the rules, and `plants.py` has the faults that show
that the rules work. The gate walks bounds that take about half a minute together; ONEFOLD_SOAK=1 walks wider ones. Each
test prints how many histories it walked (pytest -s).
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.crash.judge import Judge, Violation
from tests.crash.plants import (
    DoubtForgotten,
    DuplicateForgotten,
    FenceRestarts,
    LeaseForEver,
    LeaseIgnored,
    NoFence,
    Plant,
    WriteLost,
)
from tests.crash.stage import Stage, staged
from tests.crash.walk import Walk
from tests.crash.world import Bounds

SOAK = os.environ.get("ONEFOLD_SOAK") == "1"
SMALL = Bounds(workers=2, deliveries=2, deaths=1, waits=1, faults=1, renewals=1)
MIDDLE = Bounds(workers=2, deliveries=3, deaths=1, waits=1, faults=1)


def walked(stage: Stage, bounds: Bounds) -> Walk:
    walk = Walk(stage, bounds)
    print(f"{walk.interleavings:,} interleavings, {walk.situations:,} situations: {bounds}")  # noqa: T201 - pytest -s
    return walk


# -- the promise -------------------------------------------------------------------------------------------

BOUNDS = (
    [
        Bounds(workers=2, deliveries=4, deaths=2, waits=3, faults=2, renewals=1),
        Bounds(workers=3, deliveries=4, deaths=2, waits=2, faults=1),
    ]
    if SOAK
    else [
        Bounds(workers=2, deliveries=3, deaths=2, waits=2, faults=1),
        Bounds(workers=2, deliveries=3, deaths=1, waits=1, renewals=1),
        Bounds(workers=3, deliveries=3, deaths=1, waits=2),
    ]
)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@pytest.mark.parametrize("on_unknown", ["rerun", "probe"])
def test_external_effects(on_unknown: str, bounds: Bounds) -> None:
    """`rerun`: another effect only after each doubt. A probe that fences: one effect, whatever the partner stores."""
    with staged(on_unknown) as stage:
        assert walked(stage, bounds).interleavings > 10_000


@pytest.mark.parametrize("bounds", [*BOUNDS, SMALL], ids=str)
def test_held_effects_never_happen_twice(bounds: Bounds) -> None:
    with staged("hold") as stage:
        assert walked(stage, bounds).interleavings > 1_000


@pytest.mark.parametrize("bounds", [*BOUNDS, SMALL], ids=str)
def test_transactional_effects_happen_once(bounds: Bounds) -> None:
    with staged("rerun", transactional=True) as stage:
        assert walked(stage, bounds).interleavings > 500


@pytest.mark.parametrize("on_unknown", ["rerun", "hold", "probe"])
def test_small_walks(on_unknown: str) -> None:
    with staged(on_unknown) as stage:
        assert walked(stage, SMALL).interleavings > 1_000


@pytest.mark.parametrize("on_unknown", ["rerun", "hold", "probe"])
def test_calls_under_once(on_unknown: str) -> None:
    """The same promises for a guarded function; without an observer it needs no script, and has the same histories."""
    bounds = Bounds(workers=2, deliveries=4, deaths=2, waits=2, faults=1, renewals=1) if SOAK else SMALL
    with staged(on_unknown, calls="plain") as stage:
        plain = walked(stage, bounds)
    with staged(on_unknown, calls="followed") as stage:
        followed = walked(stage, bounds)
    assert plain.interleavings == followed.interleavings > 1_000


@pytest.mark.parametrize("calls", ["plain", "followed"])
def test_calls_that_die_are_held_after_so_many(calls: str) -> None:
    """After one death, with `crashes=1`, no other effect happens, although `on_unknown` says to run again."""
    with staged("rerun", calls=calls, crashes=1) as stage:
        assert walked(stage, Bounds(workers=2, deliveries=3, deaths=2, waits=2)).interleavings > 500


def test_merging_situations_leaves_out_no_history() -> None:
    for on_unknown, transactional in (("rerun", False), ("hold", False), ("probe", False), ("rerun", True)):
        with staged(on_unknown, transactional=transactional) as stage:
            bounds = Bounds(workers=2, deliveries=2, deaths=1, waits=1)
            merged, plain = Walk(stage, bounds), Walk(stage, bounds, merge=False)
            assert merged.interleavings == plain.interleavings
            assert merged.situations == plain.situations


# -- the test of the test ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plant", "on_unknown", "options", "rule"),
    [
        (NoFence, "rerun", {}, "write"),
        (NoFence, "probe", {}, "write"),
        (NoFence, "rerun", {"transactional": True}, "write"),
        # Not a mere formality: without the fence, runs happen that nobody ever learns about.
        (NoFence, "rerun", {"deaf_to": ("write", "result")}, "effects"),
        (FenceRestarts, "rerun", {}, "fence"),
        (FenceRestarts, "hold", {}, "fence"),
        (LeaseIgnored, "rerun", {}, "lease"),
        (LeaseIgnored, "rerun", {"transactional": True}, "lease"),
        (DoubtForgotten, "hold", {}, "effects"),
        (DoubtForgotten, "probe", {}, "effects"),
        (DuplicateForgotten, "rerun", {}, "result"),
        (DuplicateForgotten, "rerun", {"transactional": True}, "result"),
        (DuplicateForgotten, "hold", {"deaf_to": ("result",)}, "effects"),
        (WriteLost, "rerun", {}, "result"),
        (WriteLost, "hold", {"deaf_to": ("result",)}, "write"),
        (LeaseForEver, "rerun", {}, "message"),
        (LeaseForEver, "hold", {}, "message"),
    ],
)
def test_a_planted_fault_is_found(plant: type[Plant], on_unknown: str, options: dict[str, Any], rule: str) -> None:
    with staged(on_unknown, plant=plant, **options) as stage, pytest.raises(Violation) as found:
        Walk(stage, MIDDLE)
    assert found.value.rule == rule
    assert "history: w" in str(found.value)


@pytest.mark.parametrize("calls", ["plain", "followed"])
@pytest.mark.parametrize(
    ("plant", "on_unknown", "rule"),
    [
        (NoFence, "rerun", "write"),
        (FenceRestarts, "hold", "fence"),
        (LeaseIgnored, "rerun", "lease"),
        (DoubtForgotten, "hold", "effects"),
        (DoubtForgotten, "probe", "effects"),
        (DuplicateForgotten, "rerun", "result"),
        (WriteLost, "rerun", "result"),
        (LeaseForEver, "rerun", "message"),
    ],
)
def test_a_planted_fault_is_found_under_calls(plant: type[Plant], on_unknown: str, rule: str, calls: str) -> None:
    with staged(on_unknown, plant=plant, calls=calls) as stage, pytest.raises(Violation) as found:
        Walk(stage, MIDDLE)
    assert found.value.rule == rule


def test_a_plant_without_a_fault_is_left_alone() -> None:
    with staged("rerun", plant=Plant) as stage:
        assert walked(stage, SMALL).interleavings > 1_000


def test_a_probe_that_only_looks_does_not_stop_a_slow_run() -> None:
    """The limit named on the guarantees page: between probe and new run, the old run may still go on."""
    with staged("look") as stage, pytest.raises(Violation) as found:
        Walk(stage, MIDDLE)
    assert found.value.rule == "effects"


# -- the judge ---------------------------------------------------------------------------------------------


def claimed_and_started(judge: Judge, owner: str, fence: int, now_ms: int = 0) -> None:
    judge.claimed(owner, fence, started=True, now_ms=now_ms, lease_end_ms=now_ms + 100)


def test_the_judge_passes_a_clean_history() -> None:
    judge = Judge("never")
    claimed_and_started(judge, "a", 1)
    judge.effect("a", 1)
    judge.wrote("a", 1, result=1, in_doubt=False, took=True)
    judge.settled("deleted")
    judge.record(1)
    judge.rested("a")
    judge.end()


def test_the_judge_passes_a_second_effect_after_a_doubt_that_was_told() -> None:
    judge = Judge("after doubt")
    claimed_and_started(judge, "a", 1)
    judge.effect("a", 1)
    claimed_and_started(judge, "b", 2, now_ms=100)
    judge.effect("b", 2)
    judge.wrote("b", 2, result=2, in_doubt=False, took=True)
    judge.told("b", "takeover", {"crashes": 1})
    judge.settled("deleted")
    judge.end()


def test_the_judge_objects_to_a_double_that_was_not_told() -> None:
    judge = Judge("after doubt")
    claimed_and_started(judge, "a", 1)
    judge.effect("a", 1)
    claimed_and_started(judge, "b", 2, now_ms=100)
    judge.effect("b", 2)
    judge.wrote("b", 2, result=2, in_doubt=False, took=True)
    judge.settled("deleted")
    with pytest.raises(Violation, match="only 0 doubts were told"):
        judge.end()


def test_the_judge_objects_to_each_breach() -> None:
    judge = Judge("never")
    claimed_and_started(judge, "a", 2)
    with pytest.raises(Violation, match="given fence 2 after fence 2"):
        claimed_and_started(judge, "b", 2, now_ms=100)
    with pytest.raises(Violation, match="a holds the lease"):
        claimed_and_started(judge, "b", 3, now_ms=99)
    with pytest.raises(Violation, match="completed with result 2; the effects were"):
        judge.wrote("a", 2, result=2, in_doubt=False, took=True)
    judge = Judge("never")
    claimed_and_started(judge, "a", 1)
    judge.effect("a", 1)
    claimed_and_started(judge, "b", 2, now_ms=100)
    with pytest.raises(Violation, match="effect number 2 under fence 2"):
        judge.effect("b", 2)
    with pytest.raises(Violation, match="of a under fence 1 was taken; fence 2 has the work"):
        judge.wrote("a", 1, result=None, in_doubt=False, took=True)
    judge.wrote("a", 1, result=1, in_doubt=False, took=False)
    with pytest.raises(Violation, match="it told nobody"):
        judge.rested("a")
    judge.told("a", "lease-lost", {})
    judge.rested("a")
    with pytest.raises(Violation, match="the message was deleted, and its work is not completed"):
        judge.settled("deleted")
    with pytest.raises(Violation, match="the record answers 1; what was written and taken is None"):
        judge.record(1)
    with pytest.raises(Violation, match="never came to an end"):
        Judge("never").end()
