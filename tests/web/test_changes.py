"""Each change on the page: what its preview says, that it is made once as it was seen, and what refuses it."""

from __future__ import annotations

from typing import Any

import pytest

import onefold
from onefold.web.application import Page
from onefold.web.redrives import RunningRedrives
from onefold.web.safety import Access
from tests.faces.office import Open, Order
from tests.faces.test_held import park
from tests.web.browsing import TOKEN, Got, Reader
from tests.web.test_web_pages import fail

REDRIVE = "/dead/orders-dead/redrive"


def send_back(reader: Reader, query: str = "", **fields: str) -> Got:
    """Look at the preview, and confirm it."""
    seen = reader.get(f"{REDRIVE}?{query}")
    named = dict(pair.split("=", 1) for pair in query.split("&") if pair)
    return reader.post(REDRIVE, {"seen": seen.field("seen"), "why": "the city is back", **named, **fields})


def followed(there: Open, reader: Reader, redrives: RunningRedrives, got: Got) -> Any:
    """The redrive's last word, while a worker does what it sends and time passes."""
    assert got.status == 303, got.words
    found: Any = None
    for _ in range(200):
        redrives.one(got.headers["location"].rpartition("/")[2]).step()
        there.world.run()
        found = reader.get(f"/api{got.headers['location']}").json()
        if found["tally"]["end"]:
            return found
        there.clock.advance(1_000)
    raise AssertionError(found)


@pytest.fixture
def redrives() -> RunningRedrives:
    """They go on by a step at each look, so that time is the test's."""
    return RunningRedrives(spawn=lambda _: None)


@pytest.fixture
def reader(there: Open, redrives: RunningRedrives) -> Reader:
    access = Access(token=TOKEN, actor="person:ada")
    return Reader(Page(there.session, access=access, app=there.office.app, redrives=redrives))


def test_a_redrive_says_what_it_would_do_and_then_does_it(
    there: Open, reader: Reader, redrives: RunningRedrives
) -> None:
    fail(there, "o-1")
    fail(there, "o-2")
    there.office.ill.clear()
    preview = reader.get(f"/api{REDRIVE}?key=o-1").json()
    assert (preview["selected"], preview["fates"]) == (1, {"run": 1})
    found = followed(there, reader, redrives, send_back(reader, "key=o-1"))
    assert (found["tally"]["done"], found["tally"]["end"], found["actor"]) == (1, "done", "person:ada")
    assert set(there.dead()) == {"o-2"}
    (deed,) = reader.get("/api/audit").json()["deeds"]
    assert (deed["event"], deed["key"], deed["reason"]) == ("redrive", "o-1", "the city is back")


def test_the_whole_queue_needs_its_name(there: Open, reader: Reader, redrives: RunningRedrives) -> None:
    fail(there)
    got = send_back(reader)
    assert (got.status, "its name was not typed" in got.words) == (400, True)
    assert set(there.dead()) == {"o-1"}
    there.office.ill.clear()
    assert followed(there, reader, redrives, send_back(reader, typed="orders-dead"))["tally"]["done"] == 1


def test_a_change_without_a_reason_is_refused(there: Open, reader: Reader) -> None:
    fail(there)
    assert send_back(reader, "key=o-1", why=" ").status == 400
    assert set(there.dead()) == {"o-1"}


@pytest.mark.parametrize(
    "fields", [{"rate": "0"}, {"rate": "501"}, {"rate": "x"}, {"stop_after": "-1"}, {"rate": "9" * 30}]
)
def test_numbers_out_of_range_are_refused(there: Open, reader: Reader, fields: dict[str, str]) -> None:
    fail(there)
    got = send_back(reader, "key=o-1", **fields)
    assert got.status == 400
    assert set(there.dead()) == {"o-1"}


def test_what_came_since_the_preview_is_not_sent(there: Open, reader: Reader) -> None:
    fail(there, "o-1")
    seen = reader.get(f"{REDRIVE}?reason=permanent").field("seen")
    fail(there, "o-2")
    got = reader.post(REDRIVE, {"seen": seen, "reason": "permanent", "why": "x"})
    assert (got.status, "2 dead letters now, not those that you have seen" in got.words) == (409, True)
    assert set(there.dead()) == {"o-1", "o-2"}


def test_those_that_were_ticked_are_shown_first(there: Open, reader: Reader) -> None:
    first, second = fail(there, "o-1"), fail(there, "o-2")
    fail(there, "o-3")
    got = reader.post(REDRIVE, [("id", first), ("id", second)])
    assert got.status == 200
    assert "Redrive 2 of orders-dead" in got.words
    assert len(there.dead()) == 3


def test_a_fix_that_does_not_work_costs_a_handful(there: Open, reader: Reader, redrives: RunningRedrives) -> None:
    for number in range(40):
        there.office.ill[f"o-{number}"] = onefold.PermanentError("no")
        there.office.book.send(Order(f"o-{number}"))
    there.world.run()
    found = followed(there, reader, redrives, send_back(reader, "reason=permanent", stop_after="3"))
    assert found["tally"]["end"] == "failing-again"
    assert found["tally"]["sent"] < 15
    assert (
        "fails again" in reader.get(send_back(reader, "key=o-39").headers["location"]).words or len(there.dead()) == 40
    )


def test_a_redrive_can_be_stopped(there: Open, reader: Reader, redrives: RunningRedrives) -> None:
    fail(there)
    got = send_back(reader, "key=o-1")
    path = got.headers["location"]
    assert reader.post(f"{path}/stop", {}).headers["location"] == path
    redrives.one(path.rpartition("/")[2]).step()
    assert "Stopped. What was sent stays sent." in reader.get(path).words
    assert set(there.dead()) == {"o-1"}


EDIT = "/dead/orders-dead/letters/{}/edit"


def test_an_edit_is_checked_shown_and_saved(there: Open, reader: Reader) -> None:
    path = EDIT.format(fail(there, city="Atlantis"))
    form = reader.get(path)
    body = '{"order_id":"o-1","city":"London","customer":"c-1"}'
    checked = reader.post(path, {"seen": form.field("seen"), "body": body, "do": "check"})
    assert '+ "city": "London"' in checked.words
    (message,) = there.session.engine.queues.peek("orders-dead")
    assert "Atlantis" in message.body
    fields = {"seen": checked.field("seen"), "checked": checked.field("checked"), "body": body, "do": "save"}
    assert reader.post(path, {**fields, "why": ""}).status == 400
    assert reader.post(path, {**fields, "why": "a typing error"}).status == 303
    (message,) = there.session.engine.queues.peek("orders-dead")
    assert "London" in message.body
    assert reader.get("/api/audit").json()["deeds"][0]["event"] == "edit"


def test_an_edit_that_was_not_checked_is_not_saved(there: Open, reader: Reader) -> None:
    path = EDIT.format(fail(there, city="Atlantis"))
    form = reader.get(path)
    body = '{"order_id":"o-1","city":"London"}'
    got = reader.post(path, {"seen": form.field("seen"), "checked": "", "body": body, "do": "save", "why": "x"})
    assert got.status == 200
    assert "Atlantis" in there.session.engine.queues.peek("orders-dead")[0].body


@pytest.mark.parametrize("body", ["{", '{"order_id":"o-9"}', '{"order_id":7}', '{"order_id":"o-1","citty":"x"}', ""])
def test_an_edit_that_does_not_fit_keeps_what_was_written(there: Open, reader: Reader, body: str) -> None:
    path = EDIT.format(fail(there, city="Atlantis"))
    got = reader.post(path, {"seen": reader.get(path).field("seen"), "body": body, "do": "check"})
    assert got.status == 400
    assert "Atlantis" in there.session.engine.queues.peek("orders-dead")[0].body


def test_an_edit_of_what_somebody_else_has_edited_is_refused(there: Open, reader: Reader) -> None:
    path = EDIT.format(fail(there, city="Atlantis"))
    form = reader.get(path)
    for city, status in (("Paris", 200), ("London", 409)):
        body = f'{{"order_id":"o-1","city":"{city}"}}'
        got = reader.post(path, {"seen": form.field("seen"), "body": body, "do": "check"})
        assert got.status == status
        if status == 200:
            fields = {
                "seen": form.field("seen"),
                "checked": got.field("checked"),
                "body": body,
                "why": "x",
                "do": "save",
            }
            assert reader.post(path, fields).status == 303


def op(key: str, job: str = "pay") -> tuple[str, str]:
    return "op", f'["{job}","","{key}"]'


def test_many_are_settled_at_once_and_each_is_answered(there: Open, reader: Reader) -> None:
    for key in ("p-1", "p-2", "p-3"):
        park(there, key)
    shown = reader.post("/held/settle", [op("p-1"), op("p-2")])
    assert "Did the effect happen?" in shown.words
    assert "Settle 2" in shown.words
    fields = [
        op("p-1"),
        op("p-2"),
        op("gone"),
        ("done", "yes"),
        ("result", '{"label":"x"}'),
        ("why", "the bank says so"),
    ]
    outcomes = [one["outcome"] for one in reader.post("/api/held/settle", fields).json()["outcomes"]]
    assert outcomes == ["done", "done", "changed meanwhile"]
    assert [one["key"] for one in reader.get("/api/held").json()["held"]] == ["p-3"]


def test_a_result_that_does_not_fit_is_refused_and_nothing_is_settled(there: Open, reader: Reader) -> None:
    park(there)
    fields = [op("p-1"), ("done", "yes"), ("result", "[1]"), ("why", "x")]
    (outcome,) = reader.post("/api/held/settle", fields).json()["outcomes"]
    assert (outcome["outcome"], "Nothing was changed" in outcome["text"]) == ("refused", True)
    assert there.session.engine.records.find("p-1")[0].parked


@pytest.mark.parametrize(
    "fields", [[op("p-1"), ("done", "maybe"), ("why", "x")], [("op", "{"), ("done", "no"), ("why", "x")]]
)
def test_a_form_that_says_nothing_clear_changes_nothing(
    there: Open, reader: Reader, fields: list[tuple[str, str]]
) -> None:
    park(there)
    assert reader.post("/held/settle", fields).status == 400
    assert there.session.engine.records.find("p-1")[0].parked


def test_not_done_runs_again(there: Open, reader: Reader) -> None:
    park(there)
    there.office.ill.clear()
    reader.post("/held/settle", [op("p-1"), ("done", "no"), ("why", "never arrived")])
    there.world.run()
    assert there.office.ran == ["p-1"]
