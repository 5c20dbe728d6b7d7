"""Replays: the same events once more, in order, once per replay whoever is killed in between, answered as duplicates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import onefold
from onefold.errors import ConflictError, NotFoundError, StorageBusy, UsageError
from onefold.events import EventEntry
from onefold.events import replay as replays
from onefold.record.envelopes import unmarked
from onefold.testing import World, inline

HOUR_MS = 3_600_000
START_MS = 1_780_279_200_000  # 2026-06-01T02:00:00Z


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, tz=UTC)


class Town:
    """A bus with two rules and an archive, and a job behind one of them."""

    def __init__(self) -> None:
        self.app = onefold.App("town")
        self.billing = self.app.queue("billing")
        self.log = self.app.queue("log")
        self.done: list[str] = []
        self.bus = self.app.bus("orders")
        self.bus.rule("billing", {"source": ["shop"]}, to=self.billing)
        self.bus.rule("log", {"source": ["shop"]}, to=self.log)
        self.bus.archive("all")

        @self.app.job(self.billing, key="{id}", source="eventbridge")
        def bill(order: dict[str, Any]) -> None:
            self.done.append(order["id"])

    def put(self, *hours: int) -> None:
        entries = [
            EventEntry(source="shop", detail_type="x", detail={"id": f"o-{hour}"}, time_ms=START_MS + hour * HOUR_MS)
            for hour in hours
        ]
        assert all(one.event_id for one in self.bus.put(entries))

    def logged(self) -> list[Any]:
        return [json.loads(one.body) for one in self.app.runtime().engine.queues.peek("log", limit=10_000)]

    def replay(self, from_hour: int, to_hour: int, name: str = "june", **more: Any) -> Any:
        start, end = at(START_MS + from_hour * HOUR_MS), at(START_MS + to_hour * HOUR_MS)
        return self.bus.replay("all", start, end, name=name, **more)

    def begin(self, from_hour: int = 0, to_hour: int = 1_000, **more: Any) -> Any:
        start_ms, end_ms = START_MS + from_hour * HOUR_MS, START_MS + to_hour * HOUR_MS
        return replays.begin(self.bus, self.app.runtime(), "all", start_ms, end_ms, name="june", **more)


@pytest.fixture
def town() -> Town:
    return Town()


@pytest.fixture
def world(town: Town) -> Iterator[World]:
    with inline(town.app) as there:
        yield there


def ids(events: list[Any]) -> list[str]:
    return [one["detail"]["id"] for one in events]


def test_a_range_is_replayed_in_order_of_time_and_marked(town: Town, world: World) -> None:
    town.put(3, 1, 2, 4)
    first = {one["id"]: one for one in town.logged()}
    done = town.replay(1, 4)
    assert (done.state, done.replayed, done.delivered) == ("completed", 3, 6)
    again = town.logged()[4:]
    assert ids(again) == ["o-1", "o-2", "o-3"]
    for one in again:
        assert one.pop("replay-name") == "june"
        assert one == first[one["id"]]
    assert done.ended_at_ms == world.clock.now_ms()


def test_a_replayed_event_is_a_duplicate_of_its_work(town: Town, world: World) -> None:
    town.put(1, 2)
    world.run()
    town.replay(0, 9)
    world.run()
    assert town.done == ["o-1", "o-2"]
    assert world.names().count("duplicate") == 2


def test_an_event_whose_work_was_never_done_is_done_by_its_replay(town: Town, world: World) -> None:
    town.put(1, 2)
    town.app.runtime().engine.queues.purge("billing")
    town.replay(2, 3)
    world.run()
    assert town.done == ["o-2"]


def test_replayed_events_are_not_archived_again_and_only_rules_that_were_named_get_them(
    town: Town, world: World
) -> None:
    town.put(1)
    done = town.replay(0, 9, rules=["log"])
    assert (done.delivered, len(town.logged())) == (1, 2)
    archive = town.app.runtime().engine.archive
    assert archive is not None
    assert archive.holdings("orders/all").count == 1
    world.run()
    assert town.done == ["o-1"]


def test_what_is_put_meanwhile_is_no_part_of_it(town: Town, world: World) -> None:
    town.put(*range(5))
    town.begin()
    town.put(3)
    done = replays.run(town.bus, town.app.runtime(), "june")
    assert done.replayed == 5
    assert world.names() == []


def test_another_process_goes_on_where_one_was_killed(town: Town, world: World) -> None:
    town.put(*range(replays.PAGE * 2 + 7))
    assert town.begin().state == "running"
    half = replays.step(town.bus, town.app.runtime(), "june")
    assert (half.state, half.replayed) == ("running", replays.PAGE)
    assert town.begin() == half
    done = town.replay(0, 1_000)
    assert done.replayed == replays.PAGE * 2 + 7
    assert len(town.logged()) == 2 * done.replayed
    assert replays.step(town.bus, town.app.runtime(), "june") == done
    assert world.names() == []


def test_a_page_whose_cursor_cannot_move_delivers_nothing(town: Town, world: World, monkeypatch: Any) -> None:
    town.put(1)
    town.begin()
    state = town.app.runtime().engine.state
    monkeypatch.setattr(state, "put", lambda changes: [False] * len(changes))
    with pytest.raises(StorageBusy):
        replays.step(town.bus, town.app.runtime(), "june")
    assert len(town.logged()) == 1
    assert world.names() == []


def test_a_cancelled_replay_stays_where_it_is(town: Town, world: World) -> None:
    town.put(*range(replays.PAGE + 1))
    town.begin()
    replays.step(town.bus, town.app.runtime(), "june")
    ended = replays.cancel(town.bus, town.app.runtime(), "june")
    assert (ended.state, ended.replayed) == ("cancelled", replays.PAGE)
    assert replays.cancel(town.bus, town.app.runtime(), "june") == ended
    assert replays.run(town.bus, town.app.runtime(), "june") == ended
    assert replays.listed(town.app.runtime().engine.state, "orders") == [ended]
    assert world.names() == []


def test_a_name_is_for_one_replay(town: Town, world: World) -> None:
    town.put(1)
    town.replay(0, 9)
    with pytest.raises(ConflictError, match="exists: completed"):
        town.replay(0, 9)
    replays.begin(town.bus, town.app.runtime(), "all", 0, 1, name="july")
    with pytest.raises(ConflictError, match="exists: running"):
        replays.begin(town.bus, town.app.runtime(), "all", 0, 2, name="july")
    assert world.names() == []


def test_what_cannot_be_replayed_is_said(town: Town, world: World) -> None:
    with pytest.raises(NotFoundError, match="no archive"):
        town.bus.replay("none", at(0), at(1_000), name="x")
    with pytest.raises(NotFoundError, match="no rule"):
        town.replay(0, 1, rules=["none"])
    with pytest.raises(UsageError, match="end before it starts"):
        town.replay(1, 1)
    with pytest.raises(UsageError, match="not a valid name for a replay"):
        town.replay(0, 1, name="a/b")
    with pytest.raises(UsageError, match="not a valid instant"):
        town.bus.replay("all", datetime(2026, 6, 1), at(1), name="x")  # noqa: DTZ001 - what is refused
    with pytest.raises(NotFoundError, match="no replay"):
        replays.step(town.bus, town.app.runtime(), "none")
    assert replays.listed(town.app.runtime().engine.state, "orders") == []
    assert world.names() == []


def test_a_replay_whose_archive_is_not_declared_any_more_delivers_nothing(town: Town, world: World) -> None:
    town.put(1)
    town.begin()
    del town.bus.archives["all"]
    with pytest.raises(NotFoundError, match="all of replay june is not declared"):
        replays.step(town.bus, town.app.runtime(), "june")
    assert len(town.logged()) == 1
    assert world.names() == []


def test_a_job_of_whole_envelopes_answers_a_replayed_one_from_its_record() -> None:
    town, seen = Town(), list[str]()

    @town.app.job(town.log, key="{id}")
    def note(event: dict[str, Any]) -> None:
        seen.append(event["id"])

    with inline(town.app) as world:
        town.put(0, 1)
        world.run()
        town.replay(0, 10)
        world.run()
        assert len(seen) == 2
        assert "conflict" not in world.names()
        assert world.names().count("duplicate") == 4
        assert world.depth("log-dead").visible == 0


def test_only_an_envelope_loses_its_replay_name() -> None:
    assert unmarked('{"replay-name": "mine", "id": 1}') == '{"replay-name": "mine", "id": 1}'
    assert unmarked('["replay-name"]') == '["replay-name"]'
    fields = (
        '"version":"0","id":"i","detail-type":"d","source":"s","account":"1","time":"t","region":"r","resources":[]'
    )
    assert unmarked(f'{{{fields},"replay-name":"june","detail":{{"a":1}}}}') == f'{{{fields},"detail":{{"a":1}}}}'
