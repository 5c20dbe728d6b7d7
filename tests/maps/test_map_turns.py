"""Turns of a map run: what one has read of the source is not read again by the next, whichever process drove it between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold.admin import maps
from onefold.maps import mapper
from onefold.maps.children import MapChild, children
from onefold.options import ItemRetry
from onefold.runner import runs
from onefold.testing.inline import inline
from tests.maps.map_world import RUN, BusyError, Mill, NotThereError

ITEMS = 120


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where the children end that drivers have read, in the order of reading."""
    seen: list[int] = []

    def counted(*args: Any) -> Iterator[MapChild]:
        for child in children(*args):
            seen.append(child.end.index)
            yield child

    monkeypatch.setattr(mapper, "children", counted)
    return seen


def test_the_next_turn_reads_on_where_the_last_one_stopped(tmp_path: Path, read: list[int]) -> None:
    mill = Mill(tmp_path, concurrency=10, retry=[ItemRetry(errors="BusyError", interval="3m", retries=3)])
    mill.ill["0"] = lambda attempt: BusyError("for now") if attempt == 1 else None
    with inline(mill.app) as world:
        maps.start(mill.app, "grind", run=RUN, items=mill.file(ITEMS))
        world.run_for(120_000)
        assert maps.progress(mill.app, RUN).under_way == 1, "everything but the first is over"
        assert sorted(read) == list(range(1, ITEMS + 1))
        world.run_for(240_000)
        assert maps.progress(mill.app, RUN).status == "succeeded"
    assert sorted(read) == list(range(1, ITEMS + 1))


@pytest.mark.parametrize("every", [1, 2, 5])
def test_processes_that_take_turns_read_it_once_each(
    tmp_path: Path, read: list[int], monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    processes, taken = [mapper.Turns(), mapper.Turns()], []

    class Both:
        def take(self, *args: Any) -> str:
            taken.append(len(taken))
            return processes[len(taken) // every % 2].take(*args)

    monkeypatch.setattr(mapper, "Turns", Both)
    monkeypatch.setattr(mapper, "TURN_MS", 500)
    mill = Mill(
        tmp_path, concurrency=10, tolerated_count=5, retry=[ItemRetry(errors="BusyError", interval="40s", retries=3)]
    )
    for number in (0, 17, 60):
        mill.ill[str(number)] = lambda attempt: BusyError("for now") if attempt == 1 else None
    mill.ill["30"] = lambda _: NotThereError("no")
    with inline(mill.app) as world:
        maps.start(mill.app, "grind", run=RUN, items=mill.file(ITEMS, bad={41: "x", 42: "y"}))
        world.run_for(180_000)
        found = maps.progress(mill.app, RUN)
        assert (found.status, found.done, found.failed, found.malformed) == ("succeeded", ITEMS - 3, 1, 2)
    assert set(mill.effects.values()) == {1}
    assert len(taken) > 2 * every, "both of them had turns"
    assert max(read.count(end) for end in set(read)) <= 2


def test_a_directory_that_changes_between_two_turns_halts_the_run(tmp_path: Path) -> None:
    app = onefold.App("listing")
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02}").touch()

    @app.map(app.queue("files"), key="{Key}", items="listing", concurrency=5, results=str(tmp_path / "results"))
    def look(file: dict[str, Any], ctx: onefold.Context) -> None:
        if ctx.attempt == 1:
            raise BusyError("for now")

    with inline(app) as world:
        maps.start(app, "look", run=RUN, items=str(folder))
        world.run()
        assert maps.progress(app, RUN).under_way
        (folder / "00a").touch()
        world.run_for(30_000)
        found = maps.progress(app, RUN)
        assert found.status == "halted"
        assert "its size was 40 and is 41" in (found.failure or "")


def test_a_run_goes_by_the_time_of_what_is_stored_when_the_clock_is_set_back(tmp_path: Path) -> None:
    mill = Mill(tmp_path, concurrency=2)
    with inline(mill.app) as world:
        maps.start(mill.app, "grind", run=RUN, items=mill.file(6))
        world.clock.jump(-3_600_000)
        world.run_for(120_000)
        found = maps.progress(mill.app, RUN)
        run = runs.read(mill.app.runtime().engine.state, RUN)
    assert found.status == "succeeded"
    assert found.ended_at_ms is not None
    assert run is not None
    assert run.run.ended_at_ms is not None
    assert found.started_at_ms <= found.ended_at_ms <= run.run.ended_at_ms, "nothing ends an hour before it began"
