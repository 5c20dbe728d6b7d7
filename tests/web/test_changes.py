"""Each change on the page: what its preview says, that it is made once as it was seen, and what refuses it."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest

import onefold
from onefold import limits
from onefold.admin import dead_letters, editing
from onefold.admin import held as holding
from onefold.admin.dead_letters import Select
from onefold.web.application import Page
from onefold.web.redrives import RunningRedrives
from onefold.web.safety import Access
from tests.faces.office import Open, Order
from tests.faces.test_held import park
from tests.web.browsing import TOKEN, Got, Reader, op
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


def test_a_held_operation_whose_message_is_gone_is_named_as_such(there: Open, reader: Reader) -> None:
    park(there)
    there.clock.advance(15 * limits.DAY_MS)
    assert "message gone" in reader.get("/held").words
    shown = reader.post("/held/settle", [op(there, "p-1")])
    assert "Its message is gone" in shown.words
    got = reader.post("/held/settle", [op(there, "p-1"), ("done", "no"), ("why", "the bank says no")])
    assert "settled as not done; its message is gone: it runs only if it is sent again" in got.words


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
    assert (got.status, "2 dead letters now, not the ones you have seen" in got.words) == (409, True)
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
    found = followed(
        there, reader, redrives, send_back(reader, "reason=permanent", stop_after="3", typed="orders-dead")
    )
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


def test_many_are_settled_at_once_and_each_is_answered(there: Open, reader: Reader) -> None:
    for key in ("p-1", "p-2", "p-3"):
        park(there, key)
    shown = reader.post("/held/settle", [op(there, "p-1"), op(there, "p-2")])
    assert "Did the effect happen?" in shown.words
    assert "Settle 2" in shown.words
    fields = [
        op(there, "p-1"),
        op(there, "p-2"),
        op(there, "gone"),
        op(there, "p-1"),
        ("done", "yes"),
        ("result", '{"label":"x"}'),
        ("why", "the bank says so"),
    ]
    outcomes = [one["outcome"] for one in reader.post("/api/held/settle", fields).json()["outcomes"]]
    assert outcomes == ["done", "done", "changed meanwhile"]
    assert [one["key"] for one in reader.get("/api/held").json()["held"]] == ["p-3"]


def test_a_result_that_does_not_fit_is_refused_and_nothing_is_settled(there: Open, reader: Reader) -> None:
    park(there)
    fields = [op(there, "p-1"), ("done", "yes"), ("result", "[1]"), ("why", "x")]
    (outcome,) = reader.post("/api/held/settle", fields).json()["outcomes"]
    assert (outcome["outcome"], "Nothing was changed" in outcome["text"]) == ("refused", True)
    assert there.session.engine.records.find("p-1")[0].parked


def test_a_refused_form_comes_again_with_what_was_typed(there: Open, reader: Reader) -> None:
    for key in ("p-1", "p-2"):
        park(there, key)
    typed = [("done", "yes"), ("result", "<ref-1>"), ("why", 'the bank\'s "yes"')]
    got = reader.post("/held/settle", [op(there, "p-1"), op(there, "p-2"), *typed])
    assert "The result is not JSON" in got.words
    assert "Settle 2" in got.words
    assert "&lt;ref-1&gt;</textarea>" in got.text
    assert 'value="yes" required checked' in got.text
    form = hidden(got)
    assert 'value="the bank&#39;s &#34;yes&#34;"' in got.text
    done = reader.post(
        "/held/settle", [*form, ("done", "yes"), ("result", '{"label":"x"}'), ("why", "the bank says so")]
    )
    assert done.words.count("settled as done") == 2
    assert "Did the effect happen?" not in done.words


@pytest.mark.parametrize(
    "fields",
    [
        {"done": "maybe", "why": "x"},
        {"done": "no", "why": ""},
        {"done": "no", "why": "x", "op": "{"},
        {"done": "no", "why": "x", "op": '["pay","","p-1"]'},
        {"done": "no", "why": "x", "exact": '[["op"]]'},
    ],
)
def test_a_form_that_is_wrong_anywhere_changes_nothing(there: Open, reader: Reader, fields: dict[str, str]) -> None:
    park(there)
    got = reader.post("/held/settle", [op(there, "p-1"), *fields.items()])
    assert (got.status, "Nothing was changed" in got.words) == (400, True)
    assert there.session.engine.records.find("p-1")[0].parked


def test_a_form_settles_the_runs_that_it_showed_and_no_later_ones(there: Open, reader: Reader) -> None:
    """It is open while somebody else settles the operation as not done, and it is held once more."""
    park(there)
    seen = op(there, "p-1")
    assert "Settle 1" in reader.post("/held/settle", [seen]).words
    holding.settle(there.session, "p-1", done=False)
    there.world.run()
    for done in ("yes", "no"):
        got = reader.post("/api/held/settle", [seen, ("done", done), ("result", ""), ("why", "the bank says so")])
        (outcome,) = got.json()["outcomes"]
        assert (outcome["outcome"], "is held as" in outcome["text"]) == (
            "changed meanwhile",
            True,
        )
    assert there.session.engine.records.find("p-1")[0].parked
    assert "None of them is held any more" in reader.get("/held/settle?" + urlencode([seen])).words


HOSTILE = 'o\u200b-\u202e1 %27"<&\\u202e'


def hidden(got: Got) -> list[tuple[str, str]]:
    """What a browser sends of a form's hidden fields."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', got.text)
    return [(name, unescape(value)) for name, value in found]


def test_a_key_that_the_eye_cannot_trust_is_settled_like_any_other(there: Open, reader: Reader) -> None:
    park(there, HOSTILE)
    listed = reader.get("/held")
    assert "\u202e" not in listed.text
    assert "\u200b" not in listed.text
    form = reader.post("/held/settle", [("op", listed.field("op"))])
    assert "Settle 1" in form.words
    assert "\u202e" not in form.text
    got = reader.post("/api/held/settle", [*hidden(form), ("done", "yes"), ("why", "the bank says so")])
    assert [(one["key"], one["outcome"]) for one in got.json()["outcomes"]] == [(HOSTILE, "done")]
    assert there.session.engine.records.find(HOSTILE)[0].status == "completed"


def test_a_selection_that_the_eye_cannot_trust_comes_back_as_it_is(
    there: Open, reader: Reader, redrives: RunningRedrives
) -> None:
    fail(there, HOSTILE)
    fail(there, "o-1")
    there.office.ill.clear()
    query = urlencode({"key": HOSTILE.replace("\\", "?"), "contains": HOSTILE[:6]})
    listed = reader.get(f"/dead/orders-dead?{query}")
    assert (listed.status, "\u202e" in listed.text) == (200, False)
    assert "readonly" in listed.text
    assert [json.loads(value) for _, value in hidden(listed)] == [
        [["key", HOSTILE.replace("\\", "?")]],
        [["contains", HOSTILE[:6]]],
    ]
    form = reader.get(f"{REDRIVE}?{query}")
    assert "Redrive 1 of orders-dead" in form.words
    fields = [*hidden(form), ("why", "the city is back")]
    assert followed(there, reader, redrives, reader.post(REDRIVE, fields))["tally"]["done"] == 1
    assert set(there.dead()) == {"o-1"}


def test_what_was_edited_since_the_preview_is_not_sent(there: Open, reader: Reader) -> None:
    message_id = fail(there, city="Atlantis")
    fail(there, "o-2")
    preview = reader.get(f"{REDRIVE}?key=o-1")
    message = dead_letters.one_of(there.session, Select(ids=(message_id,)))
    editing.edit(there.session, message, assignments=["city=London"])
    got = reader.post(REDRIVE, {"seen": preview.field("seen"), "key": "o-1", "why": "x"})
    assert (got.status, "not as you have seen them" in got.words) == (409, True)
    assert set(there.dead()) == {"o-1", "o-2"}


@pytest.mark.parametrize("query", ["older=0s", "key=*", "contains={", "newer=365d", "reason=permanent"])
def test_a_filter_that_fits_everything_is_all_of_the_queue(there: Open, reader: Reader, query: str) -> None:
    fail(there, "o-1")
    fail(there, "o-2")
    assert "This is the whole queue." in reader.get(f"{REDRIVE}?{query}").words
    got = send_back(reader, query)
    assert (got.status, "its name was not typed" in got.words) == (400, True)
    assert set(there.dead()) == {"o-1", "o-2"}
    assert "This is the whole queue." not in reader.get(f"{REDRIVE}?key=o-1").words


def test_what_is_edited_means_the_same_however_it_is_written(there: Open, reader: Reader) -> None:
    """What an eye would obey is shown as JSON's escapes: to save it unchanged changes nothing."""
    path = EDIT.format(fail(there, city="At\u202elantis"))
    form = reader.get(path)
    assert "\u202e" not in form.text
    shown = unescape(form.text.partition("<textarea")[2].partition(">")[2].partition("</textarea>")[0])
    assert json.loads(shown)["city"] == "At\u202elantis"
    got = reader.post(path, {"seen": form.field("seen"), "body": shown, "do": "check"})
    assert (got.status, "changes nothing" in got.words) == (400, True)


def test_not_done_runs_again(there: Open, reader: Reader) -> None:
    park(there)
    there.office.ill.clear()
    reader.post("/held/settle", [op(there, "p-1"), ("done", "no"), ("why", "never arrived")])
    there.world.run()
    assert there.office.ran == ["p-1"]
