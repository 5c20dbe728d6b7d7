"""The history as somebody sees it: one story in three formats, filters, states; and nothing foreign gets through."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest

from onefold.errors import UsageError
from onefold.local.history import WHATS, MessageHistory, What
from onefold.local.history_page import Format, HistoryQuery, asked_from, format_for, render, summary

NOON_MS = 1_700_049_600_000  # 2023-11-15T12:00:00Z
PATH = "/_onefold/history"


def name_of(message_id: str) -> str:
    return f"uuid-of-{message_id}"


def shown(history: MessageHistory, asked: HistoryQuery, format_: Format, now_ms: int = NOON_MS + 100_000) -> str:
    return render(history, asked, format_, now_ms=now_ms, name_of=name_of, path=PATH).body.decode()


def shop() -> MessageHistory:
    """One message that took three receives and became a dead letter, one that went well, one whose delete was lost."""
    history = MessageHistory()
    history.record("orders", "m-1", "sent", at_ms=NOON_MS, via="sqs")
    for count in (1, 2, 3):
        at_ms = NOON_MS + 31_000 * (count - 1) + 500
        history.record("orders", "m-1", "received", at_ms=at_ms, via="sqs", receive_count=count, visible_ms=30_000)
    history.record(
        "orders", "m-1", "dead-lettered", at_ms=NOON_MS + 93_000, to="orders-dlq", receive_count=3, receives_max=3
    )
    for what in ("sent", "received", "deleted"):
        history.record("orders", "m-2", what, at_ms=NOON_MS + 94_000, via="mapping 5f0c")
    history.record("invoices", "m-3", "sent", at_ms=NOON_MS + 95_000)
    history.record(
        "invoices", "m-3", "fault", at_ms=NOON_MS + 96_000, why="fault: the delete was answered and not done"
    )
    return history


class Reader(HTMLParser):
    """Reads a page as a browser would: tags with their attributes, and the text a person sees."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == [], f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.text += f"{data} "

    def links(self) -> list[str]:
        return [attributes["href"] or "" for tag, attributes in self.tags if tag == "a"]

    def cards(self) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == "a" and "card" in (attributes.get("class") or "")]


# ------------------------------------------------------------------------------------------------------------- asking


@pytest.mark.parametrize(
    ("asked", "accept", "format_"),
    [
        (None, "text/html,application/xhtml+xml,*/*;q=0.8", "html"),
        (None, "text/plain", "text"),
        (None, "*/*", "json"),
        (None, "", "json"),
        ("text", "text/html", "text"),
        ("json", "text/html", "json"),
        ("html", "*/*", "html"),
    ],
)
def test_who_asks_gets_their_format(asked: str | None, accept: str, format_: str) -> None:
    assert format_for(asked, accept) == format_


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(UsageError, match="format='xml' is not known"):
        format_for("xml", "")


def test_parameters_are_read() -> None:
    query = {"queue": "orders", "message": "uuid-of-m-1", "wrong": "1", "after": "7", "limit": "5", "follow": "1"}
    assert asked_from(query, lambda name: name.removeprefix("uuid-of-")) == HistoryQuery(
        queue="orders", message="m-1", wrong=True, after=7, limit=5, follow=True
    )
    assert asked_from({"queue": "", "wrong": "0"}, name_of) == HistoryQuery()


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "10001"}, {"limit": "x"}, {"after": "-1"}, {"after": "9" * 50}]
)
def test_parameters_out_of_range_are_refused(query: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="is out of range"):
        asked_from(query, name_of)


# ------------------------------------------------------------------------------------------------------ JSON and text


def test_json_for_programs() -> None:
    told = json.loads(shown(shop(), HistoryQuery(message="m-1"), "json"))
    assert [event["what"] for event in told["events"]] == ["sent", "received", "received", "received", "dead-lettered"]
    assert told["events"][2] == {
        "number": 2,
        "at": "2023-11-15T12:00:31.500Z",
        "at_ms": NOON_MS + 31_500,
        "queue": "orders",
        "message": "uuid-of-m-1",
        "what": "received",
        "why": "received for the 2nd time: its visibility of 30 s ended at 12:00:30 without a delete; hidden for 30 s",
        "via": "sqs",
        "detail": {"receive_count": 2, "visible_ms": 30_000},
    }
    assert (told["next"], told["remembered"], told["limit"]) == (4, 10, 10_000)


def test_json_reads_on_where_it_stopped() -> None:
    history = shop()
    first = json.loads(shown(history, HistoryQuery(after=0, limit=4), "json"))
    rest = json.loads(shown(history, HistoryQuery(after=first["next"]), "json"))
    assert [event["number"] for event in first["events"] + rest["events"]] == list(range(1, 10))
    assert json.loads(shown(history, HistoryQuery(after=rest["next"]), "json"))["next"] == 9


def test_filters() -> None:
    def numbers(asked: HistoryQuery) -> list[int]:
        return [event["number"] for event in json.loads(shown(shop(), asked, "json"))["events"]]

    assert numbers(HistoryQuery(queue="invoices")) == [8, 9]
    assert numbers(HistoryQuery(wrong=True)) == [2, 3, 4, 9]
    assert numbers(HistoryQuery(wrong=True, limit=2)) == [4, 9]
    assert numbers(HistoryQuery(wrong=True, after=2, limit=1)) == [3]
    assert numbers(HistoryQuery(message="m-2", limit=2)) == [6, 7]
    assert numbers(HistoryQuery(message="m-2", after=5)) == [6, 7]
    assert numbers(HistoryQuery(message="m-2", queue="invoices")) == [5, 6, 7]
    assert numbers(HistoryQuery(message="unknown")) == []


def test_lines_for_a_terminal() -> None:
    head, *lines = shown(shop(), HistoryQuery(message="m-1"), "text").splitlines()
    assert head == "message uuid-of-m-1: dead letter in orders-dlq, received 3 times"
    ended, hid = "its visibility of 30 s ended at", "; hidden for 30 s  [sqs]"
    assert lines == [
        "12:00:00.000     +0 ms  orders  sent              [sqs]",
        "12:00:00.500   +500 ms  orders  received        hidden for 30 s  [sqs]",
        f"12:00:31.500   +31.5 s  orders  received        for the 2nd time: {ended} 12:00:30 without a delete{hid}",
        f"12:01:02.500     +1m2s  orders  received        for the 3rd time: {ended} 12:01:01 without a delete{hid}",
        "12:01:33.000    +1m33s  orders  dead-lettered   moved to orders-dlq: received 3 times, the maximum is 3",
    ]
    assert "uuid-of-m-3" in shown(shop(), HistoryQuery(), "text")


def test_a_redrive_shows_ids_of_the_wire_only() -> None:
    history = MessageHistory()
    history.record("dlq", "m-1", "moved", at_ms=NOON_MS, to="orders", new_message_id="m-9")
    history.record("orders", "m-9", "moved", at_ms=NOON_MS, source="dlq", old_message_id="m-1")
    assert "moved           to orders, where it is message uuid-of-m-9" in shown(
        history, HistoryQuery(message="m-1"), "text"
    )
    assert json.loads(shown(history, HistoryQuery(), "json"))["events"][1]["detail"]["old_message_id"] == "uuid-of-m-1"
    page = Reader(shown(history, HistoryQuery(message="m-1"), "html"))
    assert f"{PATH}?message=uuid-of-m-9" in page.links()


def test_no_control_character_reaches_a_terminal() -> None:
    history = MessageHistory()
    history.record("orders", "m-1", "answered", at_ms=NOON_MS, function="f", outcome="failed: \x1b[2J\r\n\x07\x9b")
    line = shown(history, HistoryQuery(), "text")
    assert line.count("\n") == 1
    assert line.rstrip("\n").isprintable()


@pytest.mark.parametrize("format_", ["text", "html"])
def test_nothing_to_show_says_why(format_: Format) -> None:
    assert "Nothing has happened yet." in shown(MessageHistory(), HistoryQuery(), format_)
    assert "No event of this message is recorded" in shown(shop(), HistoryQuery(message="unknown"), format_)
    assert "No event of this kind is remembered." in shown(shop(), HistoryQuery(queue="other"), format_)


# --------------------------------------------------------------------------------------------------------------- page


def test_the_page_tells_a_story() -> None:
    page = Reader(shown(shop(), HistoryQuery(message="m-1"), "html"))
    assert "for the 3rd time: its visibility of 30 s ended at 12:01:01 without a delete" in page.text
    assert "moved to orders-dlq: received 3 times, the maximum is 3" in page.text
    assert [attributes["aria-current"] for attributes in page.cards() if "aria-current" in attributes] == ["true"]
    assert len(page.cards()) == 3


def test_the_page_without_a_message_shows_the_newest_first() -> None:
    text = Reader(shown(shop(), HistoryQuery(), "html")).text
    assert text.index("the delete was answered and not done") < text.index("moved to orders-dlq")


def test_the_page_marks_and_filters_what_went_wrong() -> None:
    everything = Reader(shown(shop(), HistoryQuery(), "html")).cards()
    assert [card["class"] for card in everything] == ["card wrong", "card", "card wrong"]
    wrong = Reader(shown(shop(), HistoryQuery(wrong=True), "html")).cards()
    assert [card["href"] for card in wrong] == [
        f"{PATH}?message=uuid-of-m-3&wrong=1",
        f"{PATH}?message=uuid-of-m-1&wrong=1",
    ]
    assert len(Reader(shown(shop(), HistoryQuery(queue="invoices"), "html")).cards()) == 1


def test_the_page_needs_nothing_from_elsewhere_and_runs_nothing() -> None:
    page = render(shop(), HistoryQuery(follow=True), "html", now_ms=NOON_MS, name_of=name_of, path=PATH)
    read = Reader(page.body.decode())
    assert {tag for tag, _ in read.tags}.isdisjoint({"script", "link", "img", "iframe", "form"})
    assert all(link.startswith(PATH) for link in read.links())
    assert not any(
        name.startswith("on") or name in ("src", "style") for _, attributes in read.tags for name in attributes
    )
    assert "url(" not in page.body.decode()
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert ("meta", {"http-equiv": "refresh", "content": "2"}) in read.tags


def test_hostile_texts_are_shown_and_not_obeyed() -> None:
    evil = "<script>alert(1)</script>\"'&"
    history = MessageHistory()
    history.record(evil, evil, "answered", at_ms=NOON_MS, via=evil, function=evil, outcome=evil)
    history.record(evil, evil, "moved", at_ms=NOON_MS, to=evil, new_message_id=evil, via=evil)
    for asked in (HistoryQuery(), HistoryQuery(message=evil, queue=evil)):
        page = render(history, asked, "html", now_ms=NOON_MS, name_of=str, path=PATH).body.decode()
        read = Reader(page)
        assert "<script" not in page
        assert evil in read.text
        assert all(link.startswith(PATH) for link in read.links())


def test_a_fault_that_met_no_message_stands_in_the_log_alone() -> None:
    history = MessageHistory()
    history.record("", "", "fault", at_ms=NOON_MS, why="fault: ListQueues was throttled before anything was done")
    page = Reader(shown(history, HistoryQuery(), "html"))
    assert "ListQueues was throttled" in page.text
    assert page.cards() == []
    assert "message=" not in "".join(page.links())
    assert json.loads(shown(history, HistoryQuery(), "json"))["events"][0]["message"] is None
    assert "-  fault           ListQueues was throttled before anything was done" in shown(
        history, HistoryQuery(), "text"
    )


def test_everything_that_can_happen_can_be_shown() -> None:
    history = MessageHistory()
    for what in WHATS:
        history.record("orders", what, what, at_ms=NOON_MS)
    text = Reader(shown(history, HistoryQuery(), "html")).text
    assert all(what in text for what in WHATS)


# ------------------------------------------------------------------------------------------------------------- states


@pytest.mark.parametrize(
    ("what", "detail", "after_ms", "state"),
    [
        ("sent", {}, 0, "waiting"),
        ("sent", {"delay_ms": 5_000}, 4_999, "delayed"),
        ("sent", {"delay_ms": 5_000}, 5_000, "waiting"),
        ("received", {"receive_count": 1, "visible_ms": 30_000}, 29_999, "in flight"),
        ("received", {"receive_count": 1, "visible_ms": 30_000}, 30_000, "waiting"),
        ("hidden", {"visible_ms": 1_000}, 999, "in flight"),
        ("released", {}, 0, "waiting"),
        ("deleted", {}, 0, "deleted"),
        ("dead-lettered", {"to": "dlq"}, 0, "dead letter"),
        ("moved", {"to": "other", "new_message_id": "m-9"}, 0, "moved"),
        ("moved", {"source": "dlq", "old_message_id": "m-0"}, 0, "waiting"),
        ("purged", {}, 0, "purged"),
        ("expired", {}, 0, "expired"),
        ("fault", {}, 0, "seen"),
    ],
)
def test_a_message_stands_where_its_last_change_put_it(
    what: What, detail: dict[str, str | int | None], after_ms: int, state: str
) -> None:
    history = MessageHistory()
    history.record("orders", "m-1", what, at_ms=NOON_MS, **detail)
    history.record("orders", "m-1", "deduplicated", at_ms=NOON_MS)
    assert summary(history.of("m-1"), NOON_MS + after_ms).state == state


def test_a_copy_changes_no_state_but_counts() -> None:
    history = MessageHistory()
    history.record("orders", "m-1", "received", at_ms=NOON_MS, receive_count=1, visible_ms=30_000)
    history.record("orders", "m-1", "deleted", at_ms=NOON_MS)
    history.record("orders", "m-1", "received", at_ms=NOON_MS, receive_count=2, visible_ms=30_000, copy=1)
    now = summary(history.of("m-1"), NOON_MS)
    assert (now.state, now.receives, now.wrong) == ("deleted", 2, True)


def test_a_handler_that_failed_went_wrong() -> None:
    history = MessageHistory()
    history.record("orders", "m-1", "answered", at_ms=NOON_MS, function="charge", outcome="done")
    assert not summary(history.of("m-1"), NOON_MS).wrong
    history.record("orders", "m-1", "answered", at_ms=NOON_MS, function="charge", outcome="timed out after 3 s")
    assert summary(history.of("m-1"), NOON_MS).wrong
