"""Workers on the page: which are there, what each runs, and draining one with a reason."""

from __future__ import annotations

import pytest

from onefold.web.application import Page
from onefold.web.safety import Access
from tests.faces.office import Open, Order
from tests.faces.test_workers import states, there_is
from tests.web.browsing import TOKEN, Reader


def test_a_worker_is_listed_with_what_it_runs(there: Open, reader: Reader) -> None:
    assert "No worker is running" in reader.get("/workers").words
    there_is(there, "worker-that-dies")
    assert "It waits for messages." in reader.get("/workers").words
    there.office.book.send(Order("o-1"))
    there.claim("book", "o-1", start=True)
    got = reader.get("/workers")
    assert "worker-that-dies working" in got.words
    assert "App office, here, process 7" in got.words
    assert 'href="/why/book/o-1"' in got.text
    assert reader.get("/api/workers").json()["workers"][0]["pid"] == 7


def test_a_drain_is_previewed_and_asked_for_once(there: Open, reader: Reader) -> None:
    there_is(there)
    assert "finishes the 0 operations" in reader.get("/workers/w-1/drain").words
    assert states(there) == {"w-1": "idle"}
    assert reader.post("/workers/w-1/drain", {"why": " "}).status == 400
    assert reader.post("/workers/w-1/drain", {"why": "the host is rebooted"}).status == 303
    assert states(there) == {"w-1": "draining"}
    assert "Asked to drain by ada" in reader.get("/workers").words
    assert reader.post("/workers/w-1/drain", {"why": "again"}).status == 409
    assert reader.get("/workers/w-9/drain").status == 404


def test_one_that_is_silent_waits_for_nothing_and_is_not_asked_to_drain(there: Open, reader: Reader) -> None:
    there_is(there)
    assert "Drain" in reader.get("/workers").words
    there.clock.advance(10 * 60_000)
    got = reader.get("/workers")
    assert "w-1 silent" in got.words
    assert "Nothing was heard from it lately" in got.words
    assert "waits for messages" not in got.words
    assert "Drain" not in got.words


@pytest.mark.parametrize(
    ("target", "worker", "watch"),
    [
        ("beh:app", "onefold worker beh:app", "onefold watch beh:app"),
        ("--url URL", "onefold worker MODULE:APP", "onefold watch --url URL"),
        ("", "onefold worker MODULE:APP", "onefold watch"),
    ],
)
def test_next_steps_name_what_the_page_was_started_with(there: Open, target: str, worker: str, watch: str) -> None:
    access = Access(token=TOKEN, actor="person:ada")
    reader = Reader(Page(there.session, access=access, app=there.office.app, target=target))
    assert f"<code>{worker}</code>" in reader.get("/workers").text
    assert f"<code>{watch}</code>" in reader.get("/alarms").text
