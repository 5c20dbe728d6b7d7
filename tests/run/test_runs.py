"""Runs as values: begun once, counted from the ledger, changed by compare-and-set, forgotten after 90 days."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

import onefold
from onefold import errors
from onefold.contracts.engine import Engine
from onefold.contracts.ledger import OUTCOME_EVENTS
from onefold.contracts.state import Change
from onefold.runner import runs
from onefold.runner.runs import Counts, RunState, counts_of, is_over
from onefold.testing import inline

BEGUN = RunState(name="billing/1", kind="dispatch", title="billing", started_at_ms=5)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with inline(onefold.App("runs")) as world:
        yield world.app.runtime().engine


def test_a_run_is_begun_once_and_gone_on_with(engine: Engine) -> None:
    first = runs.begin(engine.state, BEGUN)
    assert first.run == BEGUN
    runs.note(engine.state, BEGUN.name, dispatched=7)
    again = runs.begin(engine.state, replace(BEGUN, started_at_ms=99))
    assert (again.run.started_at_ms, again.run.dispatched) == (5, 7)
    assert runs.names(engine.state) == runs.open_names(engine.state) == ["billing/1"]


def test_a_crash_between_the_two_values_of_a_new_run_is_mended_when_it_is_begun_again(engine: Engine) -> None:
    engine.state.put(runs.began(BEGUN)[:1])
    assert runs.open_names(engine.state) == []
    runs.begin(engine.state, BEGUN)
    assert runs.open_names(engine.state) == ["billing/1"]


@pytest.mark.parametrize("name", ["", "n" * 281])
def test_a_name_that_state_cannot_hold_is_refused(engine: Engine, name: str) -> None:
    with pytest.raises(errors.UsageError, match=f"{len(name)} characters"):
        runs.begin(engine.state, replace(BEGUN, name=name))
    assert runs.names(engine.state) == []


def test_a_note_overwrites_nothing_of_others(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.begin(engine.state, BEGUN)
    read, raced = runs.read, [True]

    def racing(state: object, name: str) -> object:
        found = read(engine.state, name)
        if raced:
            raced.clear()
            runs.note(engine.state, name, dispatched=3)
        return found

    monkeypatch.setattr(runs, "read", racing)
    runs.note(engine.state, BEGUN.name, failure="x")
    monkeypatch.undo()
    standing = runs.read(engine.state, BEGUN.name)
    assert standing is not None
    assert (standing.run.dispatched, standing.run.failure) == (3, "x")
    assert runs.note(engine.state, "nobody's", failure="x") is None


def test_a_run_that_has_not_ended_any_more_is_open_again(engine: Engine) -> None:
    runs.begin(engine.state, BEGUN)
    (opened,) = engine.state.get([runs.OPEN_PREFIX + BEGUN.name])
    assert opened is not None
    runs.note(engine.state, BEGUN.name, ended_at_ms=7, expected=3)
    engine.state.put([Change(runs.OPEN_PREFIX + BEGUN.name, None, opened.version)])
    runs.note(engine.state, BEGUN.name, failure="x")
    assert runs.open_names(engine.state) == []
    for _ in range(2):
        runs.note(engine.state, BEGUN.name, ended_at_ms=None, expected=None)
        assert runs.open_names(engine.state) == ["billing/1"]


def test_a_note_gives_up_when_others_never_stop(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.begin(engine.state, BEGUN)
    monkeypatch.setattr(engine.state, "put", lambda changes: [False for _ in changes])
    with pytest.raises(errors.StorageBusy):
        runs.note(engine.state, BEGUN.name, failure="x")


def test_the_counts_sum_up_to_all_that_are_known() -> None:
    tally = dict.fromkeys(OUTCOME_EVENTS, 1) | {"dispatched": 10, "lease-lost": 2}
    counts = counts_of(replace(BEGUN, expected=30), tally)
    assert counts.done + counts.failed + counts.dead + counts.unknown + counts.missing == counts.expected == 30
    fates = Counter(runs.outcome_of(event) for event in OUTCOME_EVENTS)
    assert (counts.done, counts.failed, counts.dead, counts.unknown) == tuple(
        fates[outcome] for outcome in ("done", "failed", "dead", "unknown")
    )
    assert counts.missing == 30 - counts.settled - counts.failed  # sent, begun, redriven, or without any row yet


def test_every_fate_but_a_redrive_says_what_became_of_an_operation() -> None:
    assert {event for event in OUTCOME_EVENTS if runs.outcome_of(event) is None} == {"redrive"}


@pytest.mark.parametrize(
    ("expected", "tally", "over"),
    [
        (None, {"completed": 3}, False),  # it is still being dispatched
        (3, {"completed": 3}, True),
        (3, {"completed": 1, "dead-letter": 1, "held": 1}, True),
        (3, {"completed": 2, "retry": 1}, False),
        (3, {"completed": 2}, False),
        (3, {"completed": 2, "redrive": 1}, False),
        (0, {}, True),
    ],
)
def test_when_nothing_is_left_to_do(expected: int | None, tally: dict[str, int], over: bool) -> None:
    run = replace(BEGUN, expected=expected)
    assert is_over(run, counts_of(run, tally)) is over


def test_more_operations_than_expected_are_counted_all_the_same() -> None:
    assert counts_of(replace(BEGUN, expected=2), {"completed": 3}) == Counts(expected=3, done=3)


def test_runs_are_read_in_pages(engine: Engine) -> None:
    for number in range(150):
        runs.begin(engine.state, replace(BEGUN, name=f"billing/{number:03}"))
    names = runs.names(engine.state, "billing/")
    found = runs.read_all(engine.state, [*names, "nobody's"])
    assert [one.run.name if one is not None else None for one in found] == [*names, None]


def test_old_runs_are_removed_and_young_ones_stay(engine: Engine) -> None:
    for title in ("a", "b"):
        for number in range(4):
            name = f"{title}/{number}"
            runs.begin(engine.state, RunState(name=name, kind="tick", title=title, started_at_ms=number * 1_000))
    for name, at_ms in (("alone-1", 0), ("alone-2", 9_000)):
        runs.begin(engine.state, RunState(name=name, kind="map", title=name, started_at_ms=at_ms))
    assert runs.sweep(engine.state, 1_500, limit=3) == 3
    assert runs.sweep(engine.state, 1_500) == 2
    assert runs.sweep(engine.state, 1_500) == 0
    left = ["a/2", "a/3", "alone-2", "b/2", "b/3"]
    assert runs.names(engine.state) == runs.open_names(engine.state) == left


def test_what_stands_beside_an_old_run_goes_with_it(engine: Engine) -> None:
    runs.begin(engine.state, BEGUN)
    for prefix in (runs.MAP_PREFIX, runs.RECONCILED_PREFIX):
        engine.state.put([Change(prefix + BEGUN.name, b"{}", 0)])
    assert runs.sweep(engine.state, 1_000) == 1
    assert engine.state.names("") == []


def test_who_goes_on_with_a_run_that_was_begun_by_half_opens_it() -> None:
    app = onefold.App("runs")
    with inline(app):
        state = app.runtime().engine.state
        state.put(runs.began(BEGUN)[:1])  # where a put is not one step, a crash leaves the other value out
        runs.begin_followed(app.runtime(), BEGUN)
        assert runs.open_names(state) == ["billing/1"]
        runs.note(state, BEGUN.name, ended_at_ms=9)
        state.put([Change(runs.OPEN_PREFIX + BEGUN.name, None, 1)])
        runs.begin_followed(app.runtime(), BEGUN)
        assert runs.open_names(state) == [], "one that is over stays closed"
