"""The page of a record store (Redis, PostgreSQL, DynamoDB): what applies works, the rest says why it does not."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import onefold
from onefold.admin.session import AdminSession
from onefold.web.application import Page
from onefold.web.safety import Access
from tests.stores.test_looking_at_records import on_dynamodb, on_postgres, on_redis, session
from tests.web.browsing import TOKEN, Reader

pytestmark = pytest.mark.slow

STORES = {"redis": on_redis, "postgres": on_postgres, "dynamodb": on_dynamodb}


@pytest.fixture(scope="module", params=STORES)
def opened(request: pytest.FixtureRequest) -> Iterator[AdminSession]:
    """A store with a call that is done and one whose outcome is unknown."""
    with STORES[request.param]() as place, session(place.url) as found:

        @onefold.once(key="{number}", store=found.engine.store, name="charge", on_unknown="hold")
        def charge(number: str) -> str:
            if number == "i-2":
                raise onefold.OutcomeUnknown("the bank did not answer")
            return f"booked {number}"

        charge("i-1")
        with pytest.raises(onefold.OutcomeUnknown):
            charge("i-2")
        yield found


@pytest.fixture
def reader(opened: AdminSession) -> Reader:
    return Reader(Page(opened, access=Access(token=TOKEN, actor="person:ada")))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/", "This is a store for records alone"),
        ("/dead", "This is a store for records alone"),
        ("/held", "i-2 charge"),
        ("/why/charge/i-1", "completed"),
        ("/why?key=i-1", "charge"),
        ("/alarms", "Nobody evaluates alarms here"),
        ("/runs", "No run yet."),
        ("/schedules", "started with a URL"),
        ("/workers", "No worker is running"),
        ("/audit", "Audit"),
    ],
)
def test_what_applies_answers_and_the_rest_says_why(reader: Reader, path: str, said: str) -> None:
    got = reader.get(path)
    assert (got.status, said in got.words) == (200, True), got.words


def test_queues_are_said_not_to_be_there(reader: Reader) -> None:
    for path in ("/queues/orders", "/dead/orders-dead", "/dead/orders-dead/redrive"):
        got = reader.get(path)
        assert got.status in (400, 404), (path, got.words)
        assert "records" in got.words, (path, got.words)


def test_what_machines_ask(reader: Reader) -> None:
    assert reader.get("/readyz").status == 200
    assert reader.get("/metrics").status == 200


def test_a_held_call_is_settled(reader: Reader) -> None:
    (one,) = reader.get("/api/held").json()["held"]
    op = json.dumps([one["job"], one["tenant"], one["key"], one["hold"]])
    fields = [("op", op), ("done", "yes"), ("result", '"booked i-2"'), ("why", "the bank says so")]
    assert "settled as done" in reader.post("/held/settle", fields).words
    assert "Nothing is held." in reader.get("/held").words
