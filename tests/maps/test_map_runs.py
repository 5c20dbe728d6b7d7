"""Map runs on the embedded engine: from start to results, threshold, retries, catch, quarantine, resume, redrive, stop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import onefold
from onefold import errors
from onefold.admin import maps
from onefold.admin import runs as looking
from onefold.admin.session import AdminSession, SessionJobs
from onefold.maps import state as map_state
from onefold.maps.mapper import Mapper
from onefold.maps.results import write_results
from onefold.maps.rules import ItemBatch, ItemReader
from onefold.maps.sources import result_location, source_of
from onefold.maps.state import OtherDriverError
from onefold.options import ItemCatch, ItemRetry
from onefold.runner import runs
from onefold.testing.inline import World, inline
from tests.maps.map_world import RUN, BusyError, Mill, NotThereError, Row, drive


@contextmanager
def mill_at(folder: Path, **options: Any) -> Iterator[tuple[Mill, World]]:
    mill = Mill(folder, **options)
    with inline(mill.app) as world:
        yield mill, world


def always(error: type[Exception]) -> Any:
    return lambda _attempt: error("no")


def test_every_item_once_and_a_result_for_each(tmp_path: Path) -> None:
    with mill_at(tmp_path) as (mill, world):
        maps.start(mill.app, "grind", run=RUN, items=mill.file(40), turns=False)
        found = drive(mill, world)
        assert (found.status, found.total, found.done, found.pending) == ("succeeded", 40, 40, 0)
        assert set(mill.effects.values()) == {1}
        assert [one["Output"] for one in mill.records("SUCCEEDED")[:2]] == ['{"twice":0}', '{"twice":2}']
        run = runs.read(mill.app.runtime().engine.state, RUN)
        assert run is not None
        assert (run.run.kind, run.run.expected, run.run.ended_at_ms is not None) == ("map", 40, True)


def test_workers_drive_it_by_turns(tmp_path: Path) -> None:
    with mill_at(tmp_path) as (mill, world):
        maps.start(mill.app, "grind", run=RUN, items=mill.file(30))
        world.run_for(20_000)
        assert maps.progress(mill.app, RUN).status == "succeeded"
        assert sum(mill.effects.values()) == 30


def test_no_more_are_under_way_than_allowed(tmp_path: Path) -> None:
    with mill_at(tmp_path, concurrency=5) as (mill, world):
        maps.start(mill.app, "grind", run=RUN, items=mill.file(20), turns=False)
        mapper = Mapper(mill.app.runtime(), mill.map, RUN)
        for _ in range(5):
            mapper.advance()
            assert world.depth("items").visible == 5
        world.run()
        mapper.advance()
        assert world.depth("items").visible == 5


def test_a_file_without_rows_is_done_at_once(tmp_path: Path) -> None:
    with mill_at(tmp_path) as (mill, world):
        maps.start(mill.app, "grind", run=RUN, items=mill.file(0), turns=False)
        assert drive(mill, world).status == "succeeded"
        assert mill.records("SUCCEEDED") == []


def test_the_threshold_ends_it_and_what_was_sent_may_finish(tmp_path: Path) -> None:
    with mill_at(tmp_path, tolerated_percent=10) as (mill, world):
        for number in range(0, 100, 2):
            mill.ill[str(number)] = always(NotThereError)
        maps.start(mill.app, "grind", run=RUN, items=mill.file(100), turns=False)
        found = drive(mill, world)
        assert found.status == "failed"
        assert found.failure is not None
        assert found.failure.startswith("States.ExceedToleratedFailureThreshold: The specified tolerated failure")
        assert 10 < found.failed < 10 + 8
        assert found.pending > 0
        assert found.under_way == 0
        kinds = {kind: len(mill.records(kind)) for kind in ("SUCCEEDED", "FAILED", "PENDING")}
        assert kinds == {"SUCCEEDED": found.done, "FAILED": found.failed, "PENDING": found.pending}
        assert mill.records("FAILED")[0]["Error"] == "tests.maps.map_world.NotThereError"


def test_as_many_as_are_tolerated_are_tolerated(tmp_path: Path) -> None:
    with mill_at(tmp_path, tolerated_percent=10) as (mill, world):
        for number in range(10):
            mill.ill[str(number)] = always(NotThereError)
        maps.start(mill.app, "grind", run=RUN, items=mill.file(100), turns=False)
        found = drive(mill, world)
        assert (found.status, found.failed, found.done) == ("succeeded", 10, 90)


def test_malformed_rows_are_quarantined_and_have_failed(tmp_path: Path) -> None:
    bad = {3: "3", 7: "7,seven", 11: ",1"}
    with mill_at(tmp_path, tolerated_count=3) as (mill, world):
        maps.start(mill.app, "grind", run=RUN, items=mill.file(20, bad=bad), turns=False)
        found = drive(mill, world)
        assert (found.status, found.done, found.malformed, found.failed) == ("succeeded", 17, 3, 0)
        told = maps.quarantine(mill.app.runtime().engine, RUN)
        assert [one.line for one in told] == [5, 9, 13]
        assert [one["Line"] for one in mill.records("QUARANTINED")] == [5, 9, 13]
        assert mill.records("QUARANTINED")[1]["Row"] == "7,seven"
    (tmp_path / "second").mkdir()
    with mill_at(tmp_path / "second", tolerated_count=2) as (mill, world):
        maps.start(mill.app, "grind", run=RUN, items=mill.file(20, bad=bad), turns=False)
        assert drive(mill, world).status == "failed"


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, KeyboardInterrupt])
def test_a_row_whose_key_ends_the_program_is_quarantined(
    tmp_path: Path, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(row: Row) -> str:
        if row.id == "3":
            raise kind
        return row.id

    with mill_at(tmp_path, tolerated_count=1) as (mill, world):
        monkeypatch.setattr(mill.map.key, "_find", find)
        maps.start(mill.app, "grind", run=RUN, items=mill.file(5), turns=False)
        found = drive(mill, world)
        assert (found.status, found.done, found.malformed) == ("succeeded", 4, 1)
        (told,) = maps.quarantine(mill.app.runtime().engine, RUN)
        assert told.reason.startswith(f"Reading it raised {kind.__name__}: ")


def test_rows_that_are_all_malformed_fail_the_run(tmp_path: Path) -> None:
    with mill_at(tmp_path, tolerated_percent=99) as (mill, world):
        maps.start(mill.app, "grind", run=RUN, items=mill.file(3, bad={0: "a", 1: "b", 2: "c"}), turns=False)
        found = drive(mill, world)
        assert (found.status, found.malformed, found.pending) == ("failed", 3, 0)


def test_retries_by_name_with_their_own_counts(tmp_path: Path) -> None:
    retry = [
        ItemRetry(errors=["BusyError"], interval="10s", backoff=3.0, retries=2),
        ItemRetry(errors=["States.ALL"], interval="1s", retries=1),
    ]
    with mill_at(tmp_path, retry=retry, tolerated_count=1) as (mill, world):
        mill.ill["1"] = {1: BusyError("a"), 2: ValueError("b"), 3: BusyError("c")}.get
        mill.ill["2"] = always(BusyError)
        mill.ill["3"] = always(NotThereError)
        maps.start(mill.app, "grind", run=RUN, items=mill.file(4), turns=False)
        mapper = Mapper(mill.app.runtime(), mill.map, RUN)
        while not mapper.over:
            mapper.advance()
            world.run()
            world.clock.advance(1_000)
        pauses = [event.detail["delay_ms"] for event in world.events if event.name == "retry"
                  and event.key is not None and event.key.key.endswith("/1")]  # fmt: skip
        assert pauses == [10_000, 1_000, 30_000]
        found = maps.progress(mill.app, RUN)
        assert (found.status, found.done, found.failed) == ("failed", 2, 2)
        assert mill.effects == {"0": 1, "1": 1}


def test_a_caught_item_has_succeeded_and_operations_know(tmp_path: Path) -> None:
    with mill_at(tmp_path, catch=None) as (mill, _):
        queue = mill.operations
    (tmp_path / "b").mkdir()
    mill = Mill(tmp_path / "b")
    del mill.app.maps["grind"], mill.app.jobs["grind"], mill.app.jobs["grind-run"]

    @mill.app.map(
        mill.queue, key="{id}", name="grind", catch=[ItemCatch(queue=mill.operations, errors=["NotThereError"])],
        retry=(), results=str(tmp_path / "b" / "results"),
    )  # fmt: skip
    def grind(row: Row) -> None:
        if row.id == "2":
            raise NotThereError("no such item")

    mill.map = grind
    with inline(mill.app) as world:
        maps.start(mill.app, "grind", run=RUN, items=mill.file(5), turns=False)
        mapper = Mapper(mill.app.runtime(), mill.map, RUN)
        driver = world._runner
        while not mapper.over:
            mapper.advance()
            deliveries = mill.app.runtime().engine.queues.open("items").receive(10)
            world._perform(driver.begin(deliveries))
        assert maps.progress(mill.app, RUN).status == "succeeded"
        (told,) = mill.app.runtime().engine.queues.peek(queue.name)
        body = json.loads(told.body)
        assert body["Error"].endswith("NotThereError")
        assert (body["Cause"], body["Name"], body["Input"]) == ("no such item", f"{RUN}/2", {"id": "2", "qty": 2})
        assert json.loads(mill.records("SUCCEEDED")[2]["Output"]) == {
            "Error": body["Error"], "Cause": "no such item",
        }  # fmt: skip


def test_batches_are_one_call_and_fail_together(tmp_path: Path) -> None:
    calls: list[list[str]] = []
    app = onefold.App("batches")
    queue = app.queue("items")

    @app.map(
        queue, key="{id}", batch=ItemBatch(items_max=4), tolerated_percent=50, retry=(), results=str(tmp_path / "r")
    )
    def grind(rows: list[Row]) -> int:
        calls.append([row.id for row in rows])
        if rows[0].id == "4":
            raise NotThereError("no")
        return len(rows)

    mill = Mill(tmp_path)
    mill.app, mill.map = app, grind
    with inline(app) as world:
        maps.start(app, "grind", run=RUN, items=mill.file(10, bad={5: "five"}), turns=False)
        found = drive(mill, world)
        assert calls == [["0", "1", "2", "3"], ["4", "6", "7", "8"], ["9"]]
        assert (found.done, found.failed, found.malformed) == (5, 4, 1)
        assert found.status == "succeeded"
    files = json.loads((tmp_path / "r" / RUN / "SUCCEEDED_0.json").read_text())
    assert json.loads(files[0]["Input"]) == {"Items": [{"id": str(one), "qty": one} for one in range(4)]}


def test_batches_that_are_done_are_not_cut_anew_by_a_repaired_source(tmp_path: Path) -> None:
    app, calls = onefold.App("batches"), list[list[str]]()

    @app.map(app.queue("items"), key="{id}", batch=ItemBatch(items_max=4), results=str(tmp_path / "r"))
    def grind(rows: list[Row]) -> None:
        calls.append([row.id for row in rows])

    mill = Mill(tmp_path)
    mill.app, mill.map = app, grind
    with inline(app) as world:
        maps.start(app, "grind", run=RUN, items=mill.file(10, bad={9: "nine"}), turns=False)
        assert drive(mill, world).status == "failed"
        done = len(calls)
        with pytest.raises(errors.UsageError, match="are done") as refused:
            maps.redrive(app, RUN, items=mill.file(10, name="repaired.csv"), turns=False)
        assert "`onefold map start grind --items FILE --name NAME`" in refused.value.todo
        world.run()
        assert maps.progress(app, RUN).status == "failed"
        assert len(calls) == done


def test_two_rows_of_one_key_are_one_item_or_a_conflict(tmp_path: Path) -> None:
    with mill_at(tmp_path, tolerated_count=1) as (mill, world):
        items = mill.file(5, bad={1: "0,0", 2: "0,9"})
        maps.start(mill.app, "grind", run=RUN, items=items, turns=False)
        found = drive(mill, world)
        assert (found.status, found.done, found.duplicates, found.failed) == ("succeeded", 3, 1, 1)
        assert mill.effects["0"] == 1
        assert mill.records("FAILED")[0]["Error"] == "ConflictError"


def test_two_rows_of_one_key_that_both_fail_come_to_an_end_again_and_again(tmp_path: Path) -> None:
    with mill_at(tmp_path, tolerated_count=9) as (mill, world):
        mill.ill["0"] = always(NotThereError)
        items = mill.file(3, bad={1: "0,9"})
        maps.start(mill.app, "grind", run=RUN, items=items, turns=False)
        mapper = Mapper(mill.app.runtime(), mill.map, RUN)
        mapper.advance()
        world.run()
        assert drive(mill, world).failed == 2  # another driver, from the records
        for _ in range(2):
            maps.redrive(mill.app, RUN, turns=False)
            assert drive(mill, world).failed == 2
        mill.ill.clear()
        maps.redrive(mill.app, RUN, turns=False)
        found = drive(mill, world)
        assert (found.done, found.failed) == (2, 1)
        assert mill.effects == {"0": 1, "2": 1}


def test_a_file_of_results_that_is_full_is_followed_by_the_next(tmp_path: Path) -> None:
    with mill_at(tmp_path) as (mill, world):
        maps.start(mill.app, "grind", run=RUN, items=mill.file(9), turns=False)
        drive(mill, world)
        opened = mill.app.runtime()
        state = map_state.must_read(opened.engine.state, RUN).state
        place = result_location(state.results, opened.s3_client)
        source = source_of(state.source, opened.s3_client)
        write_results(mill.map, state, source, opened.engine.store, place, bytes_max=1_500)
        files = sorted(one.name for one in (tmp_path / "results" / RUN).glob("SUCCEEDED_*"))
        assert len(files) > 2
        assert len(mill.records("SUCCEEDED")) == 9
        write_results(mill.map, state, source, opened.engine.store, place)  # and what is left over goes
        assert [one.name for one in (tmp_path / "results" / RUN).glob("SUCCEEDED_*")] == ["SUCCEEDED_0.json"]


def test_a_payload_that_its_queue_does_not_take_is_malformed(tmp_path: Path) -> None:
    app = onefold.App("narrow")
    queue = app.queue("items", max_bytes=1_024)

    @app.map(queue, key="{id}", tolerated_count=2, results=str(tmp_path / "r"))
    def grind(row: dict[str, str]) -> None:
        """Does nothing."""

    (tmp_path / "in.csv").write_text(f"id,text\n1,short\n2,{'x' * 2_000}\n3,a\ufffeb\n4,short\n", encoding="utf-8")
    with inline(app) as world:
        maps.start(app, "grind", run=RUN, items=str(tmp_path / "in.csv"), turns=False)
        mapper = Mapper(app.runtime(), grind, RUN)
        while not mapper.over:
            mapper.advance()
            world.run()
        found = maps.progress(app, RUN)
        assert (found.status, found.done, found.malformed) == ("succeeded", 2, 2)
        assert [one.line for one in maps.quarantine(app.runtime().engine, RUN)] == [3, 4]
    assert len(json.loads((tmp_path / "r" / RUN / "QUARANTINED_0.json").read_text())) == 2


# -- what cannot be started ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"id,id\n1,2\n", "twice"),
        (b"\x1f\x8bgarbage", "damaged|breaks off"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_changes_nothing(tmp_path: Path, content: bytes | None, said: str) -> None:
    with mill_at(tmp_path) as (mill, _):
        if content is not None:
            (tmp_path / "in.csv").write_bytes(content)
        with pytest.raises(errors.UsageError, match=said):
            maps.start(mill.app, "grind", run=RUN, items=str(tmp_path / "in.csv"))
        state = mill.app.runtime().engine.state
        assert (state.names("map/"), state.names("run/"), state.names("open-run/")) == ([], [], [])


def test_names_that_cannot_be(tmp_path: Path) -> None:
    with mill_at(tmp_path) as (mill, _):
        items = mill.file(1)
        for run in ("", "../x", "/x", "a b", "x" * 201):
            with pytest.raises(errors.UsageError, match="not a valid name for a map run"):
                maps.start(mill.app, "grind", run=run, items=items)
        with pytest.raises(errors.NotFoundError, match="Did you mean 'grind'"):
            maps.start(mill.app, "grinf", run=RUN, items=items)
        with pytest.raises(errors.UsageError, match="declares no source"):
            maps.start(mill.app, "grind", run=RUN)
        with pytest.raises(errors.NotFoundError, match="no map run 'other'"):
            maps.progress(mill.app, "other")
        maps.start(mill.app, "grind", run=RUN, items=items)
        with pytest.raises(errors.ConflictError, match="already"):
            maps.start(mill.app, "grind", run=RUN, items=items)


def test_declarations_that_cannot_be() -> None:
    app = onefold.App("wrong")
    fifo, queue = app.queue("fifo", fifo=True), app.queue("items")
    with pytest.raises(errors.UsageError, match="is a FIFO queue"):
        app.map(fifo, key="{id}")(lambda row: None)
    with pytest.raises(errors.UsageError, match="as a list"):

        @app.map(queue, key="{id}", batch=10)
        def alone(row: Row) -> None:
            """Takes one."""

    with pytest.raises(errors.UsageError, match="no option 'tolerate_count'"):
        app.map(queue, key="{id}", tolerate_count=1)  # type: ignore[call-arg]
    with pytest.raises(errors.UsageError, match=r"retry.attempts=31 with dead_letter.after=10"):

        @app.map(queue, key="{id}", retry=[ItemRetry(retries=30)])
        def often(row: Row) -> None:
            """Is tried too often."""


# -- resume ------------------------------------------------------------------------------------------------------------


def test_a_file_that_has_changed_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with mill_at(tmp_path) as (mill, world):
        items = mill.file(40)
        maps.start(mill.app, "grind", run=RUN, items=items, turns=False)
        Mapper(mill.app.runtime(), mill.map, RUN).advance()
        world.run()
        mill.file(40, bad={39: "39,40"})
        with pytest.raises(errors.UsageError, match="is not the file that run nightly/1 was started with") as refused:
            Mapper(mill.app.runtime(), mill.map, RUN)
        assert "onefold map redrive nightly/1 --items" in refused.value.todo
        with pytest.raises(errors.UsageError, match="is not the file"):
            maps.resume(mill.app, RUN, turns=False)
        mill.file(40)
        maps.resume(mill.app, RUN, turns=False)
        assert drive(mill, world).status == "succeeded"
        assert set(mill.effects.values()) == {1}


def test_a_turn_halts_a_run_whose_file_has_changed(tmp_path: Path) -> None:
    with mill_at(tmp_path) as (mill, world):
        items = mill.file(40)
        maps.start(mill.app, "grind", run=RUN, items=items)
        Path(items).unlink()
        world.run_for(5_000)
        found = maps.progress(mill.app, RUN)
        assert found.status == "halted"
        assert "cannot be read" in (found.failure or "")
        mill.file(40)
        maps.resume(mill.app, RUN)
        world.run_for(20_000)
        assert maps.progress(mill.app, RUN).status == "succeeded"


def test_another_declaration_is_refused(tmp_path: Path) -> None:
    with mill_at(tmp_path) as (mill, _):
        maps.start(mill.app, "grind", run=RUN, items=mill.file(3), turns=False)
        other = replace(mill.map, spec=replace(mill.map.spec, reader=ItemReader(delimiter="pipe")))
        with pytest.raises(errors.UsageError, match="not declared as it was"):
            Mapper(mill.app.runtime(), other, RUN)


def test_two_that_drive_one_run_are_told_apart(tmp_path: Path) -> None:
    with mill_at(tmp_path) as (mill, world):
        maps.start(mill.app, "grind", run=RUN, items=mill.file(40), turns=False)
        first, second = (Mapper(mill.app.runtime(), mill.map, RUN) for _ in range(2))
        first.advance()
        with pytest.raises(OtherDriverError):
            second.advance()
        assert drive(mill, world).done == 40


def test_what_is_read_again_is_what_may_not_be_over(tmp_path: Path) -> None:
    with mill_at(tmp_path, tolerated_count=1) as (mill, world):
        mill.ill["0"] = lambda attempt: None
        maps.start(mill.app, "grind", run=RUN, items=mill.file(100), turns=False)
        mapper = Mapper(mill.app.runtime(), mill.map, RUN)
        for _ in range(4):
            mapper.advance()
            world.run()
        state = map_state.must_read(mill.app.runtime().engine.state, RUN).state
        assert state.settled.index >= state.sent.index - 16
        assert drive(mill, world).done == 100


def test_messages_that_are_gone_are_sent_again(tmp_path: Path) -> None:
    with mill_at(tmp_path) as (mill, world):
        maps.start(mill.app, "grind", run=RUN, items=mill.file(6), turns=False)
        mapper = Mapper(mill.app.runtime(), mill.map, RUN)
        mapper.advance()
        mill.app.runtime().engine.queues.purge("items")
        while not mapper.over:
            mapper.advance()
            world.run()
            world.clock.advance(1_000)
        assert mill.effects == {str(number): 1 for number in range(6)}


# -- redrive and stop --------------------------------------------------------------------------------------------------


def test_a_redrive_does_what_failed_and_what_was_not_sent(tmp_path: Path) -> None:
    with mill_at(tmp_path, tolerated_count=2) as (mill, world):
        for number in (1, 5, 9, 13):
            mill.ill[str(number)] = always(NotThereError)
        maps.start(mill.app, "grind", run=RUN, items=mill.file(60), turns=False)
        first = drive(mill, world)
        assert first.status == "failed"
        assert first.pending > 0
        mill.ill.clear()
        maps.redrive(mill.app, RUN, turns=False)
        found = drive(mill, world)
        assert (found.status, found.done, found.failed, found.round) == ("succeeded", 60, 0, 1)
        assert set(mill.effects.values()) == {1}
        assert world.depth("items-dead").visible == 0
        assert mill.records("SUCCEEDED")[1]["RedriveCount"] == 1
        assert mill.records("FAILED") == mill.records("PENDING") == []


def test_what_fails_again_in_a_redrive_has_failed_again(tmp_path: Path) -> None:
    with mill_at(tmp_path) as (mill, world):
        mill.ill["3"] = always(NotThereError)
        maps.start(mill.app, "grind", run=RUN, items=mill.file(6), turns=False)
        assert drive(mill, world).status == "failed"
        maps.redrive(mill.app, RUN)
        world.run_for(20_000)
        found = maps.progress(mill.app, RUN)
        assert (found.status, found.done, found.failed, found.pending) == ("failed", 5, 1, 0)
        assert world.depth("items-dead").visible == 1


def test_a_repaired_file_brings_malformed_rows_and_new_contents(tmp_path: Path) -> None:
    with mill_at(tmp_path, tolerated_count=5) as (mill, world):
        mill.ill["2"] = lambda _: NotThereError("no") if not repaired else None
        repaired: list[bool] = []
        maps.start(mill.app, "grind", run=RUN, items=mill.file(10, bad={2: "2,999", 4: "four"}), turns=False)
        assert drive(mill, world).done == 8
        repaired.append(True)
        maps.redrive(mill.app, RUN, items=mill.file(10, name="repaired.csv"), turns=False)
        found = drive(mill, world)
        assert (found.status, found.done, found.failed, found.malformed) == ("succeeded", 10, 0, 0)
        assert json.loads(mill.records("SUCCEEDED")[2]["Output"]) == {"twice": 4}
        assert mill.records("QUARANTINED") == []
        assert set(mill.effects.values()) == {1}


def test_a_row_that_was_done_otherwise_is_a_conflict_in_a_redrive(tmp_path: Path) -> None:
    with mill_at(tmp_path, tolerated_count=1) as (mill, world):
        mill.ill["0"] = always(NotThereError)
        maps.start(mill.app, "grind", run=RUN, items=mill.file(3), turns=False)
        drive(mill, world)
        mill.ill.clear()
        maps.redrive(mill.app, RUN, items=mill.file(3, name="other.csv", bad={1: "1,77"}), turns=False)
        found = drive(mill, world)
        assert (found.done, found.failed) == (2, 1)
        assert mill.records("FAILED")[0]["Error"] == "ConflictError"
        assert set(mill.effects.values()) == {1}


def test_a_redrive_counts_retries_anew(tmp_path: Path) -> None:
    retry = [ItemRetry(errors=["BusyError"], retries=1)]
    with mill_at(tmp_path, retry=retry) as (mill, world):
        mill.ill["1"] = always(BusyError)
        maps.start(mill.app, "grind", run=RUN, items=mill.file(2), turns=False)
        assert drive(mill, world).status == "failed"
        tries: list[int] = []

        def second(attempt: int) -> Exception | None:
            tries.append(attempt)
            return BusyError("once more") if len(tries) == 1 else None

        mill.ill["1"] = second
        maps.redrive(mill.app, RUN, turns=False)
        assert drive(mill, world).status == "succeeded"
        assert len(tries) == 2


def test_a_redrive_that_cannot_be(tmp_path: Path) -> None:
    with mill_at(tmp_path) as (mill, world):
        maps.start(mill.app, "grind", run=RUN, items=mill.file(3), turns=False)
        with pytest.raises(errors.UsageError, match="is not over"):
            maps.redrive(mill.app, RUN)
        drive(mill, world)
        with pytest.raises(errors.UsageError, match="nothing left to do"):
            maps.redrive(mill.app, RUN)
        with pytest.raises(errors.UsageError, match="has ended: succeeded"):
            maps.resume(mill.app, RUN)
        with pytest.raises(errors.UsageError, match="has ended: succeeded"):
            maps.stop(mill.app, RUN)


def test_a_run_that_is_stopped_sends_no_more_and_can_be_redriven(tmp_path: Path) -> None:
    with mill_at(tmp_path) as (mill, world):
        maps.start(mill.app, "grind", run=RUN, items=mill.file(50))
        maps.stop(mill.app, RUN)
        world.run_for(10_000)
        found = maps.progress(mill.app, RUN)
        assert found.status == "aborted"
        assert found.pending == 50
        maps.redrive(mill.app, RUN)
        world.run_for(30_000)
        assert maps.progress(mill.app, RUN).done == 50


@pytest.mark.parametrize("turns", [True, False])
def test_a_run_that_is_stopped_in_its_midst_ends_by_itself(
    tmp_path: Path, turns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mill_at(tmp_path, concurrency=4) as (mill, world):
        maps.start(mill.app, "grind", run=RUN, items=mill.file(50), turns=turns)
        if turns:
            stopping: list[bool] = []

            def stop(_: int) -> None:
                if not stopping:
                    stopping.append(True)
                    maps.stop(mill.app, RUN)

            mill.ill["6"] = stop
            world.run_for(20_000)
        else:
            Mapper(mill.app.runtime(), mill.map, RUN).advance()
            stopped: list[bool] = []
            monkeypatch.setattr(world.clock, "wait", lambda _, wait_ms: world.clock.advance(wait_ms))

            def told(_: maps.MapProgress) -> None:
                world.run()
                if not stopped:
                    stopped.append(True)
                    maps.stop(mill.app, RUN)

            maps.drive(mill.app, RUN, told)
        found = maps.progress(mill.app, RUN)
        assert found.status == "aborted"
        assert found.under_way == 0
        assert 0 < found.done < 50
        assert found.done + found.pending == 50
        assert len(mill.records("PENDING")) == found.pending


def test_a_start_that_was_cut_short_can_be_repeated(tmp_path: Path) -> None:
    with mill_at(tmp_path) as (mill, world):
        begun = runs.RunState(name=RUN, kind="map", title="grind", started_at_ms=1)
        mill.app.runtime().engine.state.put(runs.began(begun))
        maps.start(mill.app, "grind", run=RUN, items=mill.file(3), turns=False)
        assert drive(mill, world).done == 3


def test_a_job_starts_when_the_run_is_complete_and_not_before(tmp_path: Path) -> None:
    with mill_at(tmp_path) as (mill, world):
        mill.ill["1"] = always(NotThereError)
        maps.start(mill.app, "grind", run=RUN, items=mill.file(4), turns=False)
        drive(mill, world)
        standing = runs.read(mill.app.runtime().engine.state, RUN)
        assert standing is not None
        assert (standing.run.ended_at_ms, standing.run.expected) == (None, None)
        assert "ExceedToleratedFailureThreshold" in (standing.run.failure or "")
        mill.ill.clear()
        maps.redrive(mill.app, RUN, turns=False)
        drive(mill, world)
        standing = runs.read(mill.app.runtime().engine.state, RUN)
        assert standing is not None
        assert standing.run.ended_at_ms is not None
        assert standing.run.failure is None


def test_a_redrive_that_is_cut_short_has_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mill_at(tmp_path) as (mill, world):
        mill.ill["1"] = always(NotThereError)
        maps.start(mill.app, "grind", run=RUN, items=mill.file(4), turns=False)
        assert drive(mill, world).status == "failed"
        mill.ill.clear()

        def crash(*_: object) -> None:
            raise errors.StorageBusy("no", todo="again")

        with monkeypatch.context() as patch:
            patch.setattr(maps, "_turn", crash)
            with pytest.raises(errors.StorageBusy):
                maps.redrive(mill.app, RUN)
        assert (maps.progress(mill.app, RUN).status, maps.progress(mill.app, RUN).round) == ("failed", 0)
        maps.redrive(mill.app, RUN)
        world.run_for(10_000)
        assert maps.progress(mill.app, RUN).status == "succeeded"


def session_of(mill: Mill) -> AdminSession:
    return AdminSession(
        mill.app.runtime(),
        actor="me",
        jobs=SessionJobs(named=mill.app.jobs, of=mill.app.registry.job_of, history="brief"),
    )


def test_runs_of_a_map_are_found_by_its_name_whatever_theirs(tmp_path: Path) -> None:
    with mill_at(tmp_path) as (mill, world):
        maps.start(mill.app, "grind", run=RUN, items=mill.file(4), turns=False)
        drive(mill, world)
        assert [one.run for one in looking.listed(session_of(mill), "grind").runs] == [RUN]


def test_to_watch_a_map_run_that_failed_comes_to_an_end(tmp_path: Path) -> None:
    with mill_at(tmp_path) as (mill, world):
        mill.ill["1"] = always(NotThereError)
        maps.start(mill.app, "grind", run=RUN, items=mill.file(4), turns=False)
        drive(mill, world)
        looks = looking.watched(session_of(mill), RUN, wait=world.clock.advance)
        assert [one.run.status for one in looks] == ["stopped"]


def first_turn(world: World) -> None:
    """The turn that sends the first items, and nothing more."""
    turns = world.app.runtime().engine.queues.open("mill-maps")
    world._perform(world._runner.begin(turns.receive(1)))


def test_messages_that_are_gone_are_sent_again_by_turns_too(tmp_path: Path) -> None:
    with mill_at(tmp_path) as (mill, world):
        maps.start(mill.app, "grind", run=RUN, items=mill.file(6))
        first_turn(world)
        mill.app.runtime().engine.queues.purge("items")
        world.run_for(60_000)
        assert maps.progress(mill.app, RUN).status == "succeeded"
        assert mill.effects == {str(number): 1 for number in range(6)}


def test_a_run_that_is_stopped_ends_by_turns_although_messages_are_gone(tmp_path: Path) -> None:
    with mill_at(tmp_path) as (mill, world):
        maps.start(mill.app, "grind", run=RUN, items=mill.file(6))
        first_turn(world)
        mill.app.runtime().engine.queues.purge("items")
        maps.stop(mill.app, RUN)
        world.run_for(120_000)
        assert maps.progress(mill.app, RUN).status == "aborted"


def test_a_turn_that_was_replaced_by_one_that_has_lost_its_lease_takes_the_run_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mill_at(tmp_path) as (mill, world):
        maps.start(mill.app, "grind", run=RUN, items=mill.file(40))
        begun = str(maps.progress(mill.app, RUN).started_at_ms)
        straggler, advance = Mapper(mill.app.runtime(), mill.map, RUN, chain=begun), Mapper.advance
        steps: list[int] = []

        def after_the_straggler(mapper: Mapper) -> int:
            if not steps and mapper is not straggler:
                steps.append(advance(straggler))  # its last: its lease is over
            return advance(mapper)

        monkeypatch.setattr(Mapper, "advance", after_the_straggler)
        world.run_for(180_000)
        assert maps.progress(mill.app, RUN).status == "succeeded"
