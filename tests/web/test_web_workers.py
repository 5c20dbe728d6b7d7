"""Workers on the page: which are there, what each runs, and draining one with a reason."""

from __future__ import annotations

from tests.faces.office import Open, Order
from tests.faces.test_workers import states, there_is
from tests.web.browsing import Reader


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
