"""Schedules on the page: what was sent and comes, a tick now under its own key, pausing; with reasons, in the audit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.admin.session import AdminSession, jobs_of
from onefold.web.application import Page
from onefold.web.safety import Access
from tests.run.ticking import HOUR_MS, Place, clock_at, places
from tests.web.browsing import TOKEN, Reader

TWO = "nightly/2026-06-01T02:00:00Z"
RUN_NOW = "/schedules/nightly/run-now"


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Place]:
    with places(Place(tmp_path / "shop.db", clock_at("2026-06-01T01:30:00"), "cron(0 2,14 * * ? *)")) as (made,):
        made.step()
        yield made


@pytest.fixture
def reader(one: Place) -> Reader:
    session = AdminSession(one.app.runtime(), actor="person:ada", jobs=jobs_of(one.app))
    return Reader(Page(session, access=Access(token=TOKEN, actor="person:ada"), app=one.app))


def test_the_next_week_is_drawn_and_listed(reader: Reader) -> None:
    got = reader.get("/schedules")
    assert "nightly on cron(0 2,14 * * ? *) UTC 0" in got.words
    assert got.text.count('<circle class="plain"') == 14
    assert 'aria-label="14 ticks in the next 7 days"' in got.text
    found = reader.get("/api/schedules").json()
    assert [row["key"] for row in found["rows"]][:2] == [TWO, "nightly/2026-06-01T14:00:00Z"]
    assert found["schedules"][0]["next_key"] == TWO


def test_a_tick_is_shown_and_then_sent_once(one: Place, reader: Reader) -> None:
    shown = reader.get(RUN_NOW)
    assert TWO in shown.words
    assert one.waiting() == []
    fields = {"tick": shown.field("tick")}
    assert reader.post(RUN_NOW, {**fields, "why": ""}).status == 400
    assert reader.post(RUN_NOW, {"why": "x"}).status == 400
    got = reader.post(RUN_NOW, {**fields, "why": "the export came late"})
    assert got.headers["location"] == "/runs/nightly%2F2026-06-01T02%3A00%3A00Z"
    assert reader.get(got.headers["location"]).status == 200
    again = reader.post(RUN_NOW, {**fields, "why": "twice"})  # the form of before
    assert (again.status, "was sent already" in again.words) == (409, True)
    one.step(HOUR_MS)
    assert one.waiting() == [TWO]
    (deed,) = reader.get("/api/audit").json()["deeds"]
    assert (deed["event"], deed["run"], deed["reason"]) == ("tick-by-hand", TWO, "the export came late")


def test_the_tick_after_one_that_was_sent_ahead_is_sent_from_its_row(one: Place, reader: Reader) -> None:
    reader.post(RUN_NOW, {"tick": reader.get(RUN_NOW).field("tick"), "why": "the export came late"})
    got = reader.get(RUN_NOW)
    assert (got.status, "its row under /schedules" in got.words) == (409, True)
    listed = reader.get("/schedules")
    assert "sent ahead of its time" in listed.words
    assert f"{RUN_NOW}?tick=2026-06-01T02%3A00%3A00Z" not in listed.text
    row = f"{RUN_NOW}?tick=2026-06-01T14%3A00%3A00Z"
    assert row in listed.text
    after = reader.get(row)
    assert after.field("tick") == "2026-06-01T14:00:00Z"
    assert reader.post(RUN_NOW, {"tick": after.field("tick"), "why": "both"}).status == 303


def test_it_is_paused_and_resumed(one: Place, reader: Reader) -> None:
    shown = reader.get("/schedules/nightly/pause")
    assert TWO in shown.words
    fields = {"seen": shown.field("seen"), "why": "the warehouse moves"}
    assert reader.post("/schedules/nightly/pause", fields).status == 303
    assert reader.post("/schedules/nightly/pause", fields).status == 409
    got = reader.get("/schedules")
    assert "nightly paused" in got.words
    assert '<circle class="plain"' not in got.text
    assert one.step(HOUR_MS) == 0
    seen = reader.get("/schedules/nightly/resume").field("seen")
    assert reader.post("/schedules/nightly/resume", {"seen": seen, "why": "it has moved"}).status == 303
    assert "nightly on" in reader.get("/schedules").words


def test_what_there_is_not(reader: Reader) -> None:
    assert reader.get("/schedules/nightyl/pause").status == 404
    assert reader.get(f"{RUN_NOW}?tick=2026-06-01T02:30:00Z").status == 400


def test_without_the_app_it_says_why(one: Place) -> None:
    reader = Reader(Page(AdminSession(one.app.runtime(), actor="person:ada"), access=Access(token=TOKEN)))
    got = reader.get(RUN_NOW)
    assert (got.status, "started with a URL" in got.words) == (400, True)
