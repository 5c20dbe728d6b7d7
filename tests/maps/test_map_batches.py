"""What of a map run in batches can be repaired, and how: the ways out that a refusal names are gone, to their end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import onefold
from onefold import errors
from onefold.admin import maps
from onefold.maps.mapper import Mapper
from onefold.maps.rules import ItemBatch
from onefold.testing.inline import World, inline
from tests.maps import map_world
from tests.maps.map_world import RUN, Mill, NotThereError, Row


class Batches:
    """A map in batches of four, one of whose batches fails until the test says otherwise."""

    def __init__(self, folder: Path) -> None:
        self.mill = Mill(folder)
        self.effects: Counter[str] = Counter()
        self.ill = {"4"}
        app = self.mill.app = onefold.App("batches")

        @app.map(
            app.queue("items"), key="{id}", batch=ItemBatch(items_max=4), retry=(), results=str(folder / "results")
        )
        def grind(rows: list[Row]) -> None:
            if self.ill & {row.id for row in rows}:
                raise NotThereError("no")
            self.effects.update(row.id for row in rows)

        self.mill.map = grind

    def run(self, world: World) -> str:
        return map_world.drive(self.mill, world).status


@pytest.fixture
def batches(tmp_path: Path) -> Batches:
    return Batches(tmp_path)


def test_the_ways_out_of_a_repaired_file_lead_to_each_item_once(batches: Batches) -> None:
    mill, app = batches.mill, batches.mill.app
    with inline(app) as world:
        items = mill.file(13, bad={2: "two"})
        maps.start(app, "grind", run=RUN, items=items, turns=False)
        assert batches.run(world) == "failed"
        batches.ill.clear()
        mill.file(13)  # repaired in its place
        with pytest.raises(errors.UsageError, match="is not the file") as changed:
            maps.redrive(app, RUN, turns=False)
        with pytest.raises(errors.UsageError, match=r"in batches, and \d+ of them are done") as cut:
            maps.redrive(app, RUN, items=items, turns=False)
        assert "Put the file back and `onefold map redrive nightly/1`; put what was repaired into" in changed.value.todo
        assert "--items" not in changed.value.todo, "that is refused"
        assert "`onefold map redrive nightly/1` without another source" in cut.value.todo
        assert "`onefold map start grind --items FILE --name NAME`" in cut.value.todo

        mill.file(13, bad={2: "two"})
        maps.redrive(app, RUN, turns=False)
        batches.run(world)
        alone = mill.folder / "repaired.csv"
        alone.write_text("id,qty\n2,2\n")
        maps.start(app, "grind", run="nightly/1-repaired", items=str(alone), turns=False)
        mapper = Mapper(app.runtime(), mill.map, "nightly/1-repaired")
        while not mapper.over:
            mapper.advance()
            world.run()
    assert batches.effects == {str(number): 1 for number in range(13)}


def test_a_run_in_batches_that_goes_on_names_no_way_that_is_closed(batches: Batches) -> None:
    mill, app = batches.mill, batches.mill.app
    with inline(app) as world:
        items = mill.file(40)
        maps.start(app, "grind", run=RUN, items=items, turns=False)
        Mapper(app.runtime(), mill.map, RUN).advance()
        world.run()
        mill.file(40, bad={39: "39,40"})
        with pytest.raises(errors.UsageError, match="is not the file") as changed:
            maps.resume(app, RUN, turns=False)
        assert "Put the file back and `onefold map resume nightly/1`; put what was repaired into" in changed.value.todo
        assert "--items" not in changed.value.todo
