"""Rows of a map run's source that repeat an earlier row: done once, counted once, and said."""

from __future__ import annotations

from pathlib import Path

import onefold
from onefold.admin import maps
from onefold.admin import runs as looking
from onefold.admin.session import AdminSession, jobs_of
from onefold.maps.rules import ItemBatch
from onefold.testing.inline import inline
from tests.maps.map_world import RUN, Mill, NotThereError, Row, drive


def test_a_row_that_is_twice_in_the_file_is_counted_once_and_said(tmp_path: Path) -> None:
    mill = Mill(tmp_path)
    with inline(mill.app) as world:
        maps.start(mill.app, "grind", run=RUN, items=mill.file(16, bad={15: "5,5"}), turns=False)
        found = drive(mill, world)
        assert (found.status, found.total, found.done, found.duplicates, found.failed) == ("succeeded", 16, 15, 1, 0)
        assert found.remark == (
            "1 row repeats the key of an earlier row (line 17), answered from its record: no effect happened again."
        )
        assert set(mill.effects.values()) == {1}
        seen = looking.show(AdminSession(mill.app.runtime(), actor="person:a", jobs=jobs_of(mill.app)), RUN)
        assert (seen.run.status, seen.run.done, seen.run.expected, seen.duplicates) == ("complete", 15, 15, 1)
        assert len(mill.records("SUCCEEDED")) == 16  # as Step Functions would: each row is a child


def test_many_repeated_rows_are_counted_and_the_first_of_them_named(tmp_path: Path) -> None:
    mill = Mill(tmp_path, concurrency=100)
    with inline(mill.app) as world:
        bad = dict.fromkeys(range(20, 40), "3,3")
        maps.start(mill.app, "grind", run=RUN, items=mill.file(40, bad=bad), turns=False)
        found = drive(mill, world)
        assert (found.done, found.duplicates) == (20, 20)
        assert found.remark is not None
        assert found.remark.startswith(
            "20 rows repeat the key of an earlier row (lines 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, ...), answered"
        )


def test_a_row_with_the_key_of_another_and_other_contents_has_failed_and_is_no_duplicate(tmp_path: Path) -> None:
    mill = Mill(tmp_path, tolerated_count=1)
    with inline(mill.app) as world:
        maps.start(mill.app, "grind", run=RUN, items=mill.file(6, bad={5: "2,9"}), turns=False)
        found = drive(mill, world)
        assert (found.done, found.failed, found.duplicates, found.remark) == (5, 1, 0, None)


def test_a_redrive_counts_them_anew(tmp_path: Path) -> None:
    mill = Mill(tmp_path)
    mill.ill["1"] = lambda _: NotThereError("no")
    with inline(mill.app) as world:
        maps.start(mill.app, "grind", run=RUN, items=mill.file(6, bad={3: "2,2", 5: "1,1"}), turns=False)
        found = drive(mill, world)
        assert (found.status, found.failed) == ("failed", 2)
        mill.ill.clear()
        maps.redrive(mill.app, RUN, turns=False)
        found = drive(mill, world)
        assert (found.status, found.total, found.done, found.duplicates) == ("succeeded", 6, 4, 2)
        assert set(mill.effects.values()) == {1}


def test_a_batch_is_given_the_row_again_and_that_is_said(tmp_path: Path) -> None:
    mill = Mill(tmp_path)
    app = mill.app = onefold.App("batches")

    @app.map(app.queue("items"), key="{id}", batch=ItemBatch(items_max=4), results=str(tmp_path / "results"))
    def grind(rows: list[Row]) -> None:
        mill.effects.update(row.id for row in rows)

    mill.map = grind
    with inline(app) as world:
        maps.start(app, "grind", run=RUN, items=mill.file(12, bad={9: "1,1"}), turns=False)
        found = drive(mill, world)
        assert (found.status, found.done, found.duplicates, mill.effects["1"]) == ("succeeded", 12, 0, 2)
        assert found.remark == (
            "1 row repeats the key of an earlier row (line 11). A batch is one effect with all its rows: it was given to "
            "the handler again."
        )
