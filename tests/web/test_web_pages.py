"""Each page on a real engine: what it shows, what its JSON twin has, and that strangers' texts stay texts."""

from __future__ import annotations

import msgspec
import pytest

import onefold
from onefold.admin import dead_letters, held, runs, status, why
from onefold.admin.dead_letters import Select
from onefold.web.application import Page
from onefold.web.safety import Access
from tests.faces.office import Open, Order
from tests.faces.test_held import park
from tests.web.browsing import TOKEN, Reader

HOSTILE = "<script>alert(1)</script>\u202egnp.exe\x1b[31m"


def fail(there: Open, key: str = "o-1", city: str = "London") -> str:
    """A dead letter; its message id."""
    there.office.ill[key] = onefold.PermanentError("there is no such city")
    there.office.book.send(Order(key, city))
    there.world.run()
    return there.dead()[key]


def plain(value: object) -> object:
    """As JSON has it."""
    return msgspec.json.decode(msgspec.json.encode(value))


def test_an_empty_engine_says_what_to_do(there: Open, reader: Reader) -> None:
    for path, said in (
        ("/", "Nothing needs a person."),
        ("/dead", "Dead letters"),
        ("/dead/orders-dead", "No dead letters."),
        ("/held", "Nothing is held."),
        ("/runs", "No run yet."),
        ("/schedules", "declares no schedule"),
        ("/workers", "onefold worker"),
        ("/audit", "No person has changed anything."),
        ("/why", "business key"),
        ("/queues/orders", "No message waits here."),
    ):
        got = reader.get(path)
        assert (got.status, said in got.words) == (200, True), (path, got.words)


def test_the_first_page_says_what_needs_a_person_and_how_each_queue_is(there: Open, reader: Reader) -> None:
    there.office.orders  # noqa: B018 - declared
    fail(there)
    park(there)
    there.office.book.send(Order("o-2"))
    got = reader.get("/")
    assert "1 operation of careful held" in got.words
    assert 'href="/dead/orders-dead"' in got.text
    found = reader.get("/api/status").json()
    wanted = plain(status.status(there.session))
    assert isinstance(wanted, dict)
    assert {name: found[name] for name in wanted} == wanted


def test_a_queue_shows_its_messages_without_receiving_them(there: Open, reader: Reader) -> None:
    there.office.book.send(Order("o-1"))
    for _ in range(3):
        got = reader.get("/queues/orders")
        assert 'href="/why/book/o-1"' in got.text
    (message,) = there.session.engine.queues.peek("orders")
    assert message.receive_count == 0
    assert reader.get("/api/queues/orders").json()["messages"][0]["key"] == "o-1"


def test_dead_letters_are_grouped_and_filtered(there: Open, reader: Reader) -> None:
    fail(there, "o-1")
    fail(there, "o-2", city="Paris")
    got = reader.get("/dead/orders-dead")
    assert "PermanentError there is no such city" in got.words
    assert got.text.count('name="id"') == 2
    assert reader.get("/dead/orders-dead?contains=Paris").text.count('name="id"') == 1
    assert reader.get("/dead/orders-dead?key=o-1").text.count('name="id"') == 1
    assert "None of the 2 dead letters fits" in reader.get("/dead/orders-dead?reason=conflict").words
    found = reader.get("/api/dead/orders-dead").json()
    assert found["failures"] == plain(dead_letters.failures(there.session, Select(queue="orders-dead")))
    assert found["count"] == 2


def test_the_name_of_the_queue_leads_to_its_dead_letters(there: Open, reader: Reader) -> None:
    fail(there, "o-1")
    there.office.book.send(Order("o-2"))
    for prefix in ("", "/api"):
        got = reader.get(f"{prefix}/dead/orders?reason=permanent")
        assert (got.status, got.headers["location"]) == (303, f"{prefix}/dead/orders-dead?reason=permanent")
    assert reader.get("/dead/orders/redrive").headers["location"] == "/dead/orders-dead/redrive"
    assert reader.post("/dead/orders/redrive", {"why": "x"}).headers["location"] == "/dead/orders-dead/redrive"
    park(there)
    got = reader.get("/dead/careful-held")
    assert (got.status, "is not a dead-letter queue" in got.words) == (404, True)


def test_the_first_page_says_that_there_are_dead_letters(there: Open, reader: Reader) -> None:
    assert "Nothing needs a person." in reader.get("/").words
    fail(there, "o-1")
    assert "1 dead letter of orders expires in 14d." in reader.get("/").words
    fail(there, "o-2")
    got = reader.get("/")
    assert "The first of 2 dead letters of orders expires in 14d." in got.words
    assert 'href="/dead">dead letters</a>' in got.text


def test_a_dead_letter_says_what_a_redrive_would_do(there: Open, reader: Reader) -> None:
    message_id = fail(there)
    got = reader.get(f"/dead/orders-dead/letters/{message_id}")
    assert "A redrive would run" in got.words
    assert '"order_id": "o-1"' in got.words
    detail = dead_letters.show(there.session, dead_letters.one_of(there.session, Select(ids=(message_id,))))
    assert reader.get(f"/api/dead/orders-dead/letters/{message_id}").json() == plain(detail)


def test_a_letter_that_is_gone_is_said_to_be(there: Open, reader: Reader) -> None:
    message_id = fail(there)
    there.session.engine.queues.remove([message_id])
    got = reader.get(f"/dead/orders-dead/letters/{message_id}")
    assert got.status == 404
    assert "It may have been sent back" in got.words


def test_pages_of_dead_letters_go_by_key(there: Open, reader: Reader) -> None:
    for number in range(60):
        there.office.ill[f"o-{number}"] = onefold.PermanentError("no")
        there.office.book.send(Order(f"o-{number}"))
    there.world.run()
    first = reader.get("/api/dead/orders-dead").json()
    second = reader.get(f"/api/dead/orders-dead?after={first['after']}").json()
    keys = [one["key"] for one in [*first["letters"], *second["letters"]]]
    assert (len(first["letters"]), len(second["letters"]), second["after"]) == (50, 10, None)
    assert len(set(keys)) == 60


def test_held_operations_and_their_payloads(there: Open, reader: Reader) -> None:
    park(there, count=2)
    got = reader.get("/held")
    assert "the bank did not answer" in got.words
    assert reader.get("/api/held").json() == {"held": plain(held.listed(there.session))}


def test_why_has_the_rows_of_the_command_and_a_timeline(there: Open, reader: Reader) -> None:
    fail(there)
    got = reader.get("/why/book/o-1")
    answer = why.explain(there.session, "o-1", job="book", schedules=())
    assert reader.get("/api/why/book/o-1").json() == plain(answer)
    assert '<svg class="time"' in got.text
    for line in answer.stories[0].lines:
        assert line.text in got.words
    assert "o-1" in reader.get("/why?key=o-1").words
    assert reader.get("/why?key=nobody").status == 404


def test_a_key_may_hold_slashes_and_spaces(there: Open, reader: Reader) -> None:
    fail(there, "a/b c?d")
    page = reader.get("/dead/orders-dead/letters/" + there.dead()["a/b c?d"])
    assert 'href="/why/book/a%2Fb%20c%3Fd"' in page.text
    assert reader.get("/why/book/a%2Fb%20c%3Fd").status == 200


def test_runs(there: Open, reader: Reader) -> None:
    assert reader.get("/api/runs").json() == plain(runs.listed(there.session))
    assert reader.get("/runs/none").status == 404


def test_texts_of_strangers_stay_texts(there: Open, reader: Reader) -> None:
    there.office.ill["o-1"] = onefold.PermanentError(HOSTILE)
    there.office.book.send(Order("o-1", HOSTILE))
    there.world.run()
    park(there, "p-<b>")
    message_id = there.dead()["o-1"]
    paths = [
        "/",
        "/dead/orders-dead",
        f"/dead/orders-dead/letters/{message_id}",
        "/why/book/o-1",
        "/held",
        "/queues/orders",
    ]
    paths += [
        f"/dead/orders-dead/letters/{message_id}/edit",
        "/dead/orders-dead/redrive",
        "/dead/orders-dead?key=<script>",
    ]
    for path in paths:
        text = reader.get(path).text
        assert "<script>alert" not in text
        assert "<b>" not in text.replace("<b>PermanentError</b>", "").replace("<b>OutcomeUnknown</b>", "")
        assert not any(character in text for character in "\u202e\x1b"), path
    assert r"\u202e" in reader.get("/dead/orders-dead").text


def test_big_integers_are_shown_digit_by_digit(there: Open, reader: Reader) -> None:
    there.send_foreign("orders-dead", '{"order_id":"x","amount":12345678901234567890.10}')
    (message,) = there.session.engine.queues.peek("orders-dead")
    assert "12345678901234567890.10" in reader.get(f"/dead/orders-dead/letters/{message.message_id}").words


@pytest.mark.parametrize("path", ["/queues/orders", "/dead/orders-dead/letters/{}", "/held", "/why/book/o-2"])
def test_hidden_payloads_are_on_no_page(there: Open, path: str) -> None:
    there.office.book.send(Order("o-2"))
    there.world.run()
    message_id = fail(there, city="secret-town")
    there.office.book.send(Order("o-3", "secret-town"))
    access = Access(token=TOKEN)
    reader = Reader(Page(there.session, access=access, app=there.office.app, hide_payloads=True))
    for prefix in ("", "/api"):
        got = reader.get(prefix + path.format(message_id))
        assert got.status == 200
        assert "secret-town" not in got.text
        assert "L-o-2" not in got.text
    assert reader.get(f"/dead/orders-dead/letters/{message_id}/edit").status == 400


def test_unknown_pages_queues_and_files_are_said_to_be(there: Open, reader: Reader) -> None:
    for path in ("/nothing", "/queues/none", "/dead/none", "/static/none.css", "/static/../page.css", "/redrives/none"):
        assert reader.get(path).status == 404, path
    error = reader.get("/api/queues/none").json()["error"]
    assert error["code"]
    assert "none" in error["what"]


def test_the_page_of_an_engine_without_its_app(there: Open) -> None:
    fail(there)
    reader = Reader(Page(there.without_app(), access=Access(token=TOKEN)))
    assert "started with a URL" in reader.get("/schedules").words
    assert reader.get("/dead/orders-dead/redrive").status == 200


LONG = "9" * 5_000  # Python's int refuses more than 4,300 digits of a text, Decimal an exponent of more than 18


@pytest.mark.parametrize(
    "body",
    [
        f'{{"order_id":"x","city":{LONG}}}',
        f'{{"order_id":"x","n":1e{LONG}}}',
        f'{{"order_id":"x","n":-{LONG}.5}}',
        f'{{"order_id":{LONG}}}',
        LONG,
    ],
)
@pytest.mark.parametrize("fields", [(), ("email",)])
def test_numbers_of_any_length_are_shown_and_edited_or_refused(there: Open, body: str, fields: tuple[str, ...]) -> None:
    """Such a number came from outside, and is no reason not to show its message."""
    for queue in ("orders", "orders-dead"):
        there.send_foreign(queue, body)
    reader = Reader(Page(there.session, access=Access(token=TOKEN), app=there.office.app, hide_fields=fields))
    (message,) = there.session.engine.queues.peek("orders-dead")
    letter = f"/dead/orders-dead/letters/{message.message_id}"
    for path in (
        "/queues/orders",
        "/dead/orders-dead",
        letter,
        "/dead/orders-dead/redrive",
        "/api/queues/orders",
        f"/api{letter}",
    ):
        assert reader.get(path).status == 200, path
    edit = reader.get(f"{letter}/edit")
    assert edit.status == (400 if fields else 200)
    if not fields:
        for other in (body, f'{{"order_id":"x","n":1e{LONG}}}', '{"order_id":"x"}'):
            got = reader.post(f"{letter}/edit", {"seen": edit.field("seen"), "body": other, "do": "check"})
            assert got.status in (200, 400), other[:40]


@pytest.mark.parametrize(
    "path",
    [
        f"/runs/x?after={LONG}",
        f"/dead/orders-dead?newer={LONG}s",
        f"/dead/orders-dead/redrive?older={LONG}d",
        f"/runs?after={LONG}",
    ],
)
def test_numbers_of_any_length_in_an_address_are_refused(reader: Reader, path: str) -> None:
    assert reader.get(path).status in (400, 404)
