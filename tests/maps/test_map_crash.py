"""A driver of a map run is ended before and after each of its writes; another one goes on: each item once, none left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onefold.admin import maps
from onefold.maps import mapper as mapper_module
from onefold.maps.mapper import Mapper
from onefold.maps.sources import result_location
from onefold.testing.inline import World, inline
from tests.maps.map_world import RUN, Countdown, Killed, Mill, Mortal, MortalRuntime, NotThereError, drive

ITEMS = 14


def until_killed(mill: Mill, world: World, countdown: Countdown, monkey: pytest.MonkeyPatch, *, apart: bool) -> None:
    """Drive with a driver that is ended at one step; it may also come to the run's end."""
    runtime = MortalRuntime(mill.app, countdown, apart=apart)

    def mortal(place: str, s3_client: Any) -> Any:
        return Mortal(result_location(place, s3_client), "results", ("writing", "remove"), countdown)

    monkey.setattr(mapper_module, "result_location", mortal)
    try:
        mapper = Mapper(runtime, mill.map, RUN)  # type: ignore[arg-type]  # stands for the app's
        for _ in range(60):
            mapper.advance()
            if mapper.over:
                return
            world.run()
            world.clock.advance(500)
    except Killed:
        return
    raise AssertionError("the run came to no end")


@pytest.mark.parametrize("apart", [False, True], ids=["one transaction", "apart"])
@pytest.mark.parametrize("redriven", [False, True], ids=["first", "redrive"])
def test_a_driver_that_ends_anywhere(tmp_path: Path, apart: bool, redriven: bool) -> None:
    places: set[str] = set()
    for at in range(1, 400):
        folder = tmp_path / str(at)
        folder.mkdir()
        mill = Mill(folder, tolerated_count=20 if not redriven else 2, concurrency=6)
        with inline(mill.app) as world:
            items = mill.file(ITEMS, bad={3: "three"})
            maps.start(mill.app, "grind", run=RUN, items=items, turns=False)
            if redriven:
                for number in range(ITEMS):
                    mill.ill[str(number)] = lambda _: NotThereError("no")
                assert drive(mill, world).status == "failed"
                mill.ill.clear()
                maps.redrive(mill.app, RUN, items=items, turns=False)
            countdown = Countdown(at)
            with pytest.MonkeyPatch.context() as monkey:
                until_killed(mill, world, countdown, monkey, apart=apart)
            places.add(countdown.where)
            world.clock.advance(1_000)
            found = drive(mill, world)
            assert (found.status, found.done, found.failed, found.malformed, found.pending) == (
                "succeeded", ITEMS - 1, 0, 1, 0,
            ), countdown.where  # fmt: skip
            assert set(mill.effects.values()) == {1}, countdown.where
            assert len(mill.effects) == ITEMS - 1
            assert len(mill.records("SUCCEEDED")) == ITEMS - 1
            assert [one["Line"] for one in mill.records("QUARANTINED")] == [5]
        if countdown.passed:
            break
    else:
        raise AssertionError("there were more steps than were tried")
    assert {"before send", "after ledger.append", "before state.put", "after results.writing"} <= places
