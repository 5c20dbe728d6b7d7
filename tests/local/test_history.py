"""The history: bounded, in order, per message, without bodies, and its sentences say why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.local.history import WHATS, HistoryEvent, MessageHistory, ordinal, span

NOON_MS = 1_700_049_600_000  # 2023-11-15T12:00:00Z


def sentences(history: MessageHistory, message_id: str = "m-1") -> list[str]:
    return [history.why(event) for event in history.of(message_id)]


def received(
    history: MessageHistory, count: int, at_ms: int, *, queue: str = "orders", visible_ms: int = 30_000
) -> None:
    history.record(queue, "m-1", "received", at_ms=at_ms, receive_count=count, visible_ms=visible_ms)


# --------------------------------------------------------------------------------------------------------------- ring


def test_the_newest_events_stay() -> None:
    history = MessageHistory(limit=3)
    for number in range(5):
        history.record("orders", f"m-{number}", "sent", at_ms=number)
    assert [event.message_id for event in history.all()] == ["m-2", "m-3", "m-4"]
    assert [event.number for event in history.all()] == [2, 3, 4]
    assert len(history) == 3
    assert history.of("m-0") == []


def test_events_of_one_message_in_order() -> None:
    history = MessageHistory()
    for what in ("sent", "received", "deleted"):
        history.record("orders", "m-1", what, at_ms=NOON_MS, via="sqs")
        history.record("orders", "m-2", what, at_ms=NOON_MS)
    assert [event.what for event in history.of("m-1")] == ["sent", "received", "deleted"]
    assert {event.via for event in history.of("m-1")} == {"sqs"}
    assert history.of("unknown") == []


def test_reading_on_after_a_number() -> None:
    history = MessageHistory(limit=4)
    for number in range(6):
        history.record("orders" if number % 2 else "invoices", f"m-{number}", "sent", at_ms=number)
    assert [event.number for event in history.all(after=3)] == [4, 5]
    assert [event.number for event in history.all(after=0, limit=2)] == [2, 3]
    assert [event.number for event in history.all(limit=2)] == [4, 5]
    assert [event.number for event in history.all(queue="orders", limit=1)] == [5]
    assert [event.number for event in history.all(queue="orders", after=2)] == [3, 5]
    assert history.all(after=5) == []


def test_messages_and_queues_that_something_happened_to() -> None:
    history = MessageHistory()
    history.record("orders", "m-1", "sent", at_ms=1)
    history.record("invoices", "m-2", "sent", at_ms=2)
    history.record("orders", "m-1", "received", at_ms=3)
    assert history.messages() == ["m-1", "m-2"]
    assert history.messages(queue="invoices") == ["m-2"]
    assert history.messages(limit=1) == ["m-1"]
    assert history.queues() == ["invoices", "orders"]


def test_a_cleared_history_is_empty_and_numbers_go_on() -> None:
    history = MessageHistory(limit=5)
    for number in range(7):
        history.record("orders", "m-1", "sent", at_ms=number)
    history.clear()
    assert (len(history), history.all(), history.of("m-1"), history.messages(), history.queues()) == (0, [], [], [], [])
    history.record("orders", "m-1", "received", at_ms=9)
    assert [event.number for event in history.of("m-1")] == [7]
    assert history.all(after=0) == history.all() == history.of("m-1")


def test_a_history_of_no_events_keeps_none() -> None:
    history = MessageHistory(limit=0)
    history.record("orders", "m-1", "sent", at_ms=1)
    assert (history.all(), history.of("m-1"), len(history)) == ([], [], 0)


@given(st.integers(1, 7), st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=60))
def test_the_ring_agrees_with_a_plain_list(limit: int, steps: list[tuple[int, bool]]) -> None:
    history, kept = MessageHistory(limit), list[tuple[int, str]]()
    for number, (message, clears) in enumerate(steps):
        history.record("orders", f"m-{message}", "sent", at_ms=number)
        kept = [*kept, (number, f"m-{message}")][-limit:]
        if clears and number % 5 == 4:
            history.clear()
            kept = []
    assert [(event.number, event.message_id) for event in history.all()] == kept
    for message in range(5):
        mine = [number for number, message_id in kept if message_id == f"m-{message}"]
        assert [event.number for event in history.of(f"m-{message}")] == mine
    assert sorted(history.messages()) == sorted({message_id for _, message_id in kept})
    assert len(history._last) == len({message_id for _, message_id in kept})


# ---------------------------------------------------------------------------------------------------------- sentences


def test_a_received_again_says_which_visibility_ended() -> None:
    history = MessageHistory()
    history.record("orders", "m-1", "sent", at_ms=NOON_MS)
    received(history, 1, NOON_MS)
    received(history, 2, NOON_MS + 30_500)
    received(history, 3, NOON_MS + 61_000)
    assert sentences(history) == [
        "sent",
        "received, hidden for 30 s",
        "received for the 2nd time: its visibility of 30 s ended at 12:00:30 without a delete; hidden for 30 s",
        "received for the 3rd time: its visibility of 30 s ended at 12:01:00 without a delete; hidden for 30 s",
    ]


def test_a_changed_visibility_counts_from_the_change() -> None:
    history = MessageHistory()
    received(history, 1, NOON_MS)
    history.record("orders", "m-1", "hidden", at_ms=NOON_MS + 10_000, visible_ms=60_000)
    received(history, 2, NOON_MS + 71_000)
    assert sentences(history)[1:] == [
        "its visibility was changed: hidden for 1m from now",
        "received for the 2nd time: its visibility of 1m ended at 12:01:10 without a delete; hidden for 30 s",
    ]


def test_a_message_given_back_says_when() -> None:
    history = MessageHistory()
    received(history, 1, NOON_MS)
    history.record("orders", "m-1", "released", at_ms=NOON_MS + 1_000)
    received(history, 2, NOON_MS + 2_000, visible_ms=0)
    assert sentences(history)[1:] == [
        "released: visible at once",
        "received for the 2nd time: it was released at 12:00:01; not hidden",
    ]


def test_a_receive_before_its_time_says_so() -> None:
    history = MessageHistory()
    received(history, 1, NOON_MS)
    history.record("orders", "m-1", "fault", at_ms=NOON_MS, why="fault: its visibility ends after 4,100 ms")
    received(history, 2, NOON_MS + 4_100)
    assert sentences(history)[1:] == [
        "fault: its visibility ends after 4,100 ms",
        "received for the 2nd time: 4.1 s into its visibility of 30 s, after the previous fault; hidden for 30 s",
    ]


def test_a_lost_delete_is_part_of_the_story() -> None:
    history = MessageHistory()
    received(history, 1, NOON_MS)
    history.record("orders", "m-1", "fault", at_ms=NOON_MS + 1_000, why="fault: the delete was answered and not done")
    received(history, 2, NOON_MS + 30_000)
    history.record("orders", "m-1", "received", at_ms=NOON_MS + 30_001, receive_count=3, visible_ms=30_000, copy=1)
    assert sentences(history)[1:] == [
        "fault: the delete was answered and not done",
        "received for the 2nd time: its visibility of 30 s ended at 12:00:30 after the previous fault; hidden for 30 s",
        "delivered once more: a copy of the previous receive, with the same receipt",
    ]


def test_a_message_that_came_back_after_its_delete() -> None:
    history = MessageHistory()
    received(history, 1, NOON_MS)
    history.record("orders", "m-1", "deleted", at_ms=NOON_MS + 1_500)
    received(history, 2, NOON_MS + 2_000)
    assert sentences(history)[1:] == [
        "deleted, 1.5 s after it was received",
        "received for the 2nd time: it came back after its delete at 12:00:01; hidden for 30 s",
    ]


def test_a_receive_whose_past_left_the_ring() -> None:
    history = MessageHistory(limit=1)
    received(history, 1, NOON_MS)
    received(history, 2, NOON_MS + 31_000)
    assert sentences(history) == [
        "received for the 2nd time (the previous receive is no longer remembered); hidden for 30 s"
    ]


def test_a_dead_letter_says_how_often_it_was_received() -> None:
    history = MessageHistory()
    history.record("orders", "m-1", "dead-lettered", at_ms=NOON_MS, to="orders-dlq", receive_count=3, receives_max=3)
    received(history, 4, NOON_MS + 5, queue="orders-dlq")
    assert sentences(history) == [
        "moved to orders-dlq: received 3 times, the maximum is 3",
        "received for the 4th time, now from orders-dlq; hidden for 30 s",
    ]


def test_a_duplicate_send_says_how_long_ago_the_first_was() -> None:
    history = MessageHistory()
    history.record("orders.fifo", "m-1", "sent", at_ms=NOON_MS, group="customer-7")
    history.record("orders.fifo", "m-1", "deduplicated", at_ms=NOON_MS + 41_000)
    history.record("orders.fifo", "m-2", "deduplicated", at_ms=NOON_MS + 41_000)
    assert sentences(history) == [
        "sent into group customer-7",
        "accepted but not delivered: deduplication id seen 41 s ago",
    ]
    assert sentences(history, "m-2") == ["accepted but not delivered: deduplication id seen less than 5 minutes ago"]


def test_a_sentence_looks_at_a_bounded_number_of_earlier_events(monkeypatch: pytest.MonkeyPatch) -> None:
    history = MessageHistory()
    history.record("orders.fifo", "m-1", "sent", at_ms=NOON_MS)
    for number in range(2_000):
        history.record("orders.fifo", "m-1", "deduplicated", at_ms=NOON_MS + number)
    events = history.of("m-1")
    looked: list[int] = []
    back = history._back_from

    def counted(number: int) -> Iterator[HistoryEvent]:
        for event in back(number):
            looked.append(event.number)
            yield event

    monkeypatch.setattr(history, "_back_from", counted)
    told = [history.why(event) for event in events]
    assert told[1].endswith("seen 0 ms ago")
    assert told[-1].endswith("seen less than 5 minutes ago")
    assert len(looked) <= 51 * len(events)


def test_an_invocation_and_its_answer() -> None:
    history = MessageHistory()
    history.record("orders", "m-1", "invoked", at_ms=NOON_MS, function="charge", request_id="r-1", messages=4)
    history.record("orders", "m-1", "answered", at_ms=NOON_MS + 250, function="charge", outcome="failed: KeyError")
    assert sentences(history) == [
        "handed to charge in a batch of 4, request r-1",
        "charge answered after 250 ms: failed: KeyError",
    ]


@pytest.mark.parametrize(
    ("standing", "said"),
    [("expired", "the receipt has expired"), ("superseded", "received again since"), ("gone", "the message is gone")],
)
def test_a_refused_delete_says_why(standing: str, said: str) -> None:
    history = MessageHistory()
    history.record("orders.fifo", "m-1", "delete-refused", at_ms=NOON_MS, standing=standing)
    assert said in sentences(history)[0]


def test_a_redrive_names_both_ids() -> None:
    history = MessageHistory()
    history.record("orders-dlq", "m-1", "moved", at_ms=NOON_MS, to="orders", new_message_id="m-9")
    history.record("orders", "m-9", "moved", at_ms=NOON_MS, source="orders-dlq", old_message_id="m-1")
    assert sentences(history) == ["moved to orders, where it is message m-9"]
    assert sentences(history, "m-9") == ["moved here from orders-dlq, where it was message m-1"]


def test_what_its_teller_said_goes_first() -> None:
    history = MessageHistory()
    history.record("orders", "m-1", "expired", at_ms=NOON_MS, why="removed: its 60 s of retention ended")
    assert sentences(history) == ["removed: its 60 s of retention ended"]


def test_everything_has_a_sentence_even_without_details() -> None:
    history = MessageHistory()
    for what in WHATS:
        history.record("orders", what, what, at_ms=NOON_MS)
    assert all(sentences(history, what)[0] for what in WHATS)


def test_words_for_counts_and_spans() -> None:
    assert [ordinal(count) for count in (1, 2, 3, 4, 11, 12, 13, 21, 22, 101, 111, 1_003)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "101st", "111th", "1,003rd",
    ]  # fmt: skip
    assert [span(ms) for ms in (0, 999, 1_000, 4_100, 30_000, 90_000)] == [
        "0 ms",
        "999 ms",
        "1 s",
        "4.1 s",
        "30 s",
        "1m30s",
    ]
