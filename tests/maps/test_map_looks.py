"""How a map run shows itself: what an earlier round has done, one that is ending, one without items, the list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onefold import errors
from onefold.admin import maps
from onefold.maps.mapper import Mapper
from onefold.options import ItemRetry
from onefold.testing.inline import inline
from tests.maps.map_world import RUN, BusyError, Mill, NotThereError, drive
from tests.run.workshop import BreakerUpdate


def fails(_attempt: int) -> Exception:
    return NotThereError("no")


def test_a_redrive_shows_what_is_done_from_its_first_moment_on(tmp_path: Path) -> None:
    mill = Mill(tmp_path, concurrency=8)
    for number in (3, 20):
        mill.ill[str(number)] = fails
    with inline(mill.app) as world:
        maps.start(mill.app, "grind", run=RUN, items=mill.file(50), turns=False)
        first = drive(mill, world)
        assert (first.status, first.done > 0, first.pending > 0) == ("failed", True, True)
        mill.ill.clear()
        begun = maps.redrive(mill.app, RUN, turns=False)
        assert (begun.done, begun.failed, begun.under_way) == (first.done, 0, 0)
        assert begun.pending == 50 - first.done
        mapper, seen = Mapper(mill.app.runtime(), mill.map, RUN), [begun.done]
        while not mapper.over:
            mapper.advance()
            now = maps.progress(mill.app, RUN)
            assert now.done + now.failed + now.malformed + now.under_way + now.pending == 50
            seen.append(now.done)
            world.run()
            world.clock.advance(500)
        assert seen == sorted(seen)
        assert seen[-1] == 50


def test_what_was_done_stays_shown_when_a_redrive_ends_before_it_comes_there(tmp_path: Path) -> None:
    mill = Mill(tmp_path, concurrency=4)
    mill.ill["0"] = fails
    with inline(mill.app) as world:
        maps.start(mill.app, "grind", run=RUN, items=mill.file(40), turns=False)
        done = drive(mill, world).done
        maps.redrive(mill.app, RUN, turns=False)
        maps.stop(mill.app, RUN)
        stopped = drive(mill, world)
        assert (stopped.status, stopped.done, stopped.pending) == ("aborted", done, 40 - done)
        assert maps.redrive(mill.app, RUN, turns=False).done == done
        mill.ill.clear()
        assert drive(mill, world).done == 40


def test_a_repaired_file_with_fewer_rows_never_shows_more_than_it_has(tmp_path: Path) -> None:
    mill = Mill(tmp_path, concurrency=40)
    mill.ill["39"] = fails
    with inline(mill.app) as world:
        maps.start(mill.app, "grind", run=RUN, items=mill.file(40), turns=False)
        assert drive(mill, world).done == 39
        begun = maps.redrive(mill.app, RUN, items=mill.file(10, name="fewer.csv"), turns=False)
        assert (begun.total, begun.done, begun.pending) == (10, 10, 0)
        assert drive(mill, world).done == 10


def test_a_run_that_sends_no_more_says_so_until_it_is_over(tmp_path: Path) -> None:
    mill = Mill(tmp_path, concurrency=4)
    with inline(mill.app) as world:
        maps.start(mill.app, "grind", run=RUN, items=mill.file(20), turns=False)
        Mapper(mill.app.runtime(), mill.map, RUN).advance()
        found = maps.stop(mill.app, RUN)
        assert (found.status, found.over) == ("stopping", False)
        with pytest.raises(errors.UsageError, match="is not over: stopping"):
            maps.redrive(mill.app, RUN)
        assert drive(mill, world).status == "aborted"


def test_a_run_with_too_many_failures_is_ending_while_what_was_sent_finishes(tmp_path: Path) -> None:
    mill = Mill(tmp_path, concurrency=8, retry=[ItemRetry(errors=["BusyError"], interval="10s", retries=1)])
    mill.ill = {"0": fails, "1": lambda attempt: BusyError("later") if attempt == 1 else None}
    with inline(mill.app) as world:
        maps.start(mill.app, "grind", run=RUN, items=mill.file(20), turns=False)
        mapper = Mapper(mill.app.runtime(), mill.map, RUN)
        mapper.advance()
        world.run()
        mapper.advance()
        found = maps.progress(mill.app, RUN)
        assert (found.status, found.over, found.failed) == ("ending", False, 1)
        assert drive(mill, world).status == "failed"


@pytest.mark.parametrize(
    ("options", "name", "content", "said"),
    [
        ({}, "in.csv", "id,qty\n", "The file has a header and no rows: 0 items."),
        ({"items": "json"}, "in.json", "[]", "The file has no values in it: 0 items."),
        ({"items": "listing"}, "in", None, "The source is empty: 0 items."),
    ],
)
def test_a_run_without_items_succeeds_and_says_that_there_were_none(
    tmp_path: Path, options: dict[str, Any], name: str, content: str | None, said: str
) -> None:
    mill, place, told = Mill(tmp_path, **options), tmp_path / name, BreakerUpdate()
    mill.app.sinks = (told,)
    if content is None:
        place.mkdir()
    else:
        place.write_text(content)
    with inline(mill.app) as world:
        begun = maps.start(mill.app, "grind", run=RUN, items=str(place), turns=False)
        assert (begun.total, begun.remark) == (0, said)
        (event,) = told.of("map-empty")
        assert (event.severity, event.run, event.detail["remark"]) == ("warning", RUN, said)
        found = drive(mill, world)
        assert (found.status, found.remark) == ("succeeded", said)
        rows = mill.app.runtime().engine.ledger.of_run(RUN, 10, 0)
        assert "map-empty" in [row.event for row in rows]


def test_a_run_with_items_has_no_such_remark(tmp_path: Path) -> None:
    mill, told = Mill(tmp_path), BreakerUpdate()
    mill.app.sinks = (told,)
    with inline(mill.app):
        assert maps.start(mill.app, "grind", run=RUN, items=mill.file(1), turns=False).remark is None
        assert told.of("map-empty") == []


def test_map_runs_are_listed_the_latest_first_and_near_names_are_told(tmp_path: Path) -> None:
    mill = Mill(tmp_path)
    with inline(mill.app) as world:
        engine = mill.app.runtime().engine
        assert maps.listed(engine, mill.app.maps) == []
        for name in ("zeta/1", "alpha/1", "nightly/7"):
            maps.start(mill.app, "grind", run=name, items=mill.file(2), turns=False)
            world.clock.advance(1_000)
        assert [one.run for one in maps.listed(engine, mill.app.maps)] == [
            "nightly/7",
            "alpha/1",
            "zeta/1",
        ]
        assert maps.listed(engine, mill.app.maps, limit=1) == [maps.progress(mill.app, "nightly/7")]
        del mill.app.maps["grind"]
        assert [one.threshold for one in maps.listed(engine, mill.app.maps)] == ["", "", ""]
        with pytest.raises(errors.NotFoundError, match=r"There are 3, for example nightly/7\."):
            maps.progress(mill.app, "nightly/8")
        with pytest.raises(errors.NotFoundError, match="There are 3, for example alpha/1, nightly/7, zeta/1"):
            maps.progress(mill.app, "@@@")


def test_results_that_cannot_be_written_halt_the_run_in_plain_words(tmp_path: Path) -> None:
    mill = Mill(tmp_path)
    (tmp_path / "results").write_text("a file stands where the folder should be")
    with inline(mill.app) as world:
        maps.start(mill.app, "grind", run=RUN, items=mill.file(3))
        world.run_for(10_000)
        halted = maps.progress(mill.app, RUN)
        assert (halted.status, halted.done) == ("halted", 3)
        assert f"The results of run {RUN} cannot be written: Not a directory." in (halted.failure or "")
        (tmp_path / "results").unlink()
        maps.resume(mill.app, RUN)
        world.run_for(10_000)
        assert maps.progress(mill.app, RUN).status == "succeeded"
        assert len(mill.records("SUCCEEDED")) == 3
