"""What happened to each message of a local server, in order, and why: a bounded ring in memory.

Every operation records, so recording is cheap: one tuple in the ring, no text. Each event has the number of the
previous event of the same message, so the history of a message is read backwards and the index holds one number per
message. Texts are made when somebody reads them (`why`), from the event and those before it.

Never here: message bodies and attribute values; HTML (`history_page.py`); what must survive the process (the engine's
ledger). Invariant: never more than `limit` events, and never an index entry whose event has left the ring.
Used on the server's loop only: no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Literal, get_args

from msgspec import Struct

from onefold.observe import wording

EVENTS_MAX = 10_000
_EARLIER_MAX = 50  # earlier events that one sentence looks at; a message can have all of the ring's

What = Literal[
    "sent",
    "deduplicated",
    "received",
    "hidden",
    "released",
    "deleted",
    "delete-refused",
    "dead-lettered",
    "moved",
    "purged",
    "expired",
    "invoked",
    "answered",
    "fault",
]
WHATS: tuple[What, ...] = get_args(What)

Detail = str | int | None
_Row = tuple[int, int, str, str, What, str, str, dict[str, Detail], int]


class HistoryEvent(Struct, frozen=True, gc=False):
    """One thing that happened to one message.

    Args:
        number: position in the history since the server started, from 0; rises by one per event.
        at_ms: when, milliseconds since the epoch, the server's clock.
        queue: the queue where the message was when it happened.
        message_id: the engine's id (SQS clients see a UUID).
        what: see `What`.
        text: the recorded sentence; empty if `MessageHistory.why` makes one.
        via: the cause: `sqs`, `mapping <uuid>`, `admin`, or empty.
        detail: depends on `what`; see `MessageHistory.record`.
        before: number of the previous event of the same message; -1 if there is none.
    """

    number: int
    at_ms: int
    queue: str
    message_id: str
    what: What
    text: str
    via: str
    detail: Mapping[str, Detail]
    before: int

    @property
    def told(self) -> str:
        """Deprecated: the old name of `text`."""
        return self.text


class MessageHistory:
    """The newest events of all messages.

    Args:
        limit: how many events are kept, 0 (none) or more. 10,000 take about 4 MB.
    """

    def __init__(self, limit: int = EVENTS_MAX) -> None:
        self.limit = limit
        self._ring: list[_Row | None] = [None] * limit
        self._last: dict[str, int] = {}
        self._next = 0
        self._oldest = 0  # number of the first event that counts; after `clear`, later than the ring's first

    def record(
        self, queue: str, message_id: str, what: What, *, at_ms: int, why: str = "", via: str = "", **detail: Detail
    ) -> None:
        """Record one event, which takes about a microsecond.

        Args:
            queue: the queue where the message is; for `dead-lettered` and `moved`, the queue from which it came.
            message_id: the engine's id; for `deduplicated` the first message's; empty for a fault that affected a
                request and no particular message.
            what: what happened.
            at_ms: when.
            why: one sentence for a person; if empty, `why()` makes one from `detail` and the events before.
            via: the cause.
            **detail: short facts, never a body. The sentences use, for received: `receive_count`, `visible_ms`,
                `copy` (1 for a copy that a fault made);
                hidden: `visible_ms`; sent: `delay_ms`, `group`; dead-lettered: `to`, `receive_count`, `receives_max`;
                moved: `to`, `new_message_id`, `old_message_id`; delete-refused: `standing`; invoked and answered:
                `function`, `request_id`, `messages`, `outcome`.
        """
        self._keep((message_id,), queue, what, at_ms, why, via, detail)

    def record_each(self, queue: str, message_ids: Iterable[str], what: What, *, at_ms: int, via: str = "") -> None:
        """Like `record`, for several messages without details; takes half the time of as many calls."""
        self._keep(message_ids, queue, what, at_ms, "", via, {})

    def _keep(
        self,
        message_ids: Iterable[str],
        queue: str,
        what: What,
        at_ms: int,
        why: str,
        via: str,
        detail: dict[str, Detail],
    ) -> None:
        limit, ring, last, number = self.limit, self._ring, self._last, self._next
        if not limit:
            return
        for message_id in message_ids:
            slot = number % limit
            gone = ring[slot]
            if gone is not None and last.get(gone[3]) == gone[0]:
                del last[gone[3]]
            ring[slot] = (number, at_ms, queue, message_id, what, why, via, detail, last.get(message_id, -1))
            last[message_id] = number
            number += 1
        self._next = number

    def of(self, message_id: str) -> list[HistoryEvent]:
        """The remembered events of one message, oldest first; empty for an unknown one."""
        events = list(self._back_from(self._last.get(message_id, -1)))
        events.reverse()
        return events

    def all(self, queue: str | None = None, after: int | None = None, limit: int = 1_000) -> list[HistoryEvent]:
        """Events of all messages, oldest first.

        Args:
            queue: only events of this queue.
            after: only events with a larger number; None: the newest `limit`.
            limit: the most events, 1 or more.
        """
        if after is not None:
            found = self._each(range(max(after + 1, self._first()), self._next))
            return _some(found, queue, limit)
        newest = _some(self._each(range(self._next - 1, self._first() - 1, -1)), queue, limit)
        newest.reverse()
        return newest

    def messages(self, queue: str | None = None, limit: int = 500) -> list[str]:
        """Ids of messages with events (in `queue`), the one with the newest event first."""
        seen: dict[str, None] = {}
        for event in self._each(range(self._next - 1, self._first() - 1, -1)):
            if event.message_id and (queue is None or event.queue == queue):
                seen[event.message_id] = None
                if len(seen) == limit:
                    break
        return list(seen)

    def queues(self) -> list[str]:
        """Names of queues with events, sorted."""
        return sorted({row[2] for row in self._ring if row is not None and row[2]})

    def why(self, event: HistoryEvent) -> str:
        """One sentence about what happened and why, as far as the last few events of the message show it."""
        return event.text or _sentence(event, islice(self._back_from(event.before), _EARLIER_MAX))

    def clear(self) -> None:
        """Forget all events; numbering continues."""
        self._ring = [None] * self.limit
        self._last.clear()
        self._oldest = self._next

    def __len__(self) -> int:
        return self._next - self._first()

    def _first(self) -> int:
        return max(self._oldest, self._next - self.limit)

    def _back_from(self, number: int) -> Iterator[HistoryEvent]:
        """The event with this number and the same message's earlier ones, newest first."""
        while number >= self._first() and number >= 0:
            row = self._ring[number % self.limit]
            assert row is not None, "a number within the ring has its row"
            yield HistoryEvent(*row)
            number = row[8]

    def _each(self, numbers: range) -> Iterator[HistoryEvent]:
        for number in numbers:
            row = self._ring[number % self.limit]
            assert row is not None, "a number within the ring has its row"
            yield HistoryEvent(*row)


def _some(events: Iterator[HistoryEvent], queue: str | None, limit: int) -> list[HistoryEvent]:
    found: list[HistoryEvent] = []
    for event in events:
        if queue is None or event.queue == queue:
            found.append(event)
            if len(found) >= limit:
                break
    return found


# --------------------------------------------------------------------------------------------------------- sentences


def span(ms: int) -> str:
    """A duration in a sentence: `300 ms`, `4.1 s`, `30 s`, and from a minute `3m12s`."""
    text = wording.pause(ms)
    return text.replace(".0 s", " s")


def time_of_day(at_ms: int) -> str:
    """`12:00:31`, UTC."""
    return datetime.fromtimestamp(at_ms // 1000, tz=UTC).strftime("%H:%M:%S")


def ordinal(count: int) -> str:
    """`1st`, `2nd`, `3rd`, `11th`."""
    ending = "th" if 10 <= count % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th")
    return f"{count:,}{ending}"


def _number(event: HistoryEvent, name: str) -> int | None:
    value = event.detail.get(name)
    return value if isinstance(value, int) else None


def _sent(event: HistoryEvent) -> str:
    delay_ms, group = _number(event, "delay_ms"), event.detail.get("group")
    into = f" into group {group}" if group else ""
    return f"sent{into}, delayed for {span(delay_ms)}" if delay_ms else f"sent{into}"


def _deduplicated(event: HistoryEvent, before: Iterator[HistoryEvent]) -> str:
    first = next((earlier for earlier in before if earlier.what == "sent"), None)
    seen = "less than 5 minutes ago" if first is None else f"{span(event.at_ms - first.at_ms)} ago"
    return f"accepted but not delivered: deduplication id seen {seen}"


def _received(event: HistoryEvent, before: Iterator[HistoryEvent]) -> str:
    count, visible_ms = _number(event, "receive_count") or 1, _number(event, "visible_ms")
    if event.detail.get("copy"):
        return "delivered once more: a copy of the previous receive, with the same receipt"
    hidden = "" if visible_ms is None else f"hidden for {span(visible_ms)}" if visible_ms else "not hidden"
    again = _received_again(event, before)
    if count < 2 and not again:
        return f"received, {hidden}" if hidden else "received"
    past = again or " (the previous receive is no longer remembered)"
    return f"received for the {ordinal(count)} time{past}" + (f"; {hidden}" if hidden else "")


def _received_again(event: HistoryEvent, before: Iterator[HistoryEvent]) -> str:
    """Why a message could be received again, according to the events since its last receive."""
    faulty = False
    for earlier in before:
        faulty = faulty or earlier.what == "fault"
        if earlier.what == "dead-lettered":
            return f", now from {event.queue}"
        if earlier.what == "deleted":
            return f": it came back after its delete at {time_of_day(earlier.at_ms)}"
        if earlier.what == "released":
            return f": it was released at {time_of_day(earlier.at_ms)}"
        if earlier.what == "hidden" or (earlier.what == "received" and not earlier.detail.get("copy")):
            return f": {_hidden_until(earlier, event.at_ms, faulty)}"
    return ""


def _hidden_until(hold: HistoryEvent, now_ms: int, faulty: bool) -> str:
    visible_ms = _number(hold, "visible_ms")
    how = "after the previous fault" if faulty else "without a delete"
    if visible_ms is None:
        return f"received at {time_of_day(hold.at_ms)} {how}"
    end_ms = hold.at_ms + visible_ms
    if end_ms > now_ms:
        early = f"{span(now_ms - hold.at_ms)} into its visibility of {span(visible_ms)}"
        return f"{early}, {how}" if faulty else early
    return f"its visibility of {span(visible_ms)} ended at {time_of_day(end_ms)} {how}"


def _hidden(event: HistoryEvent) -> str:
    visible_ms = _number(event, "visible_ms")
    if visible_ms is None:
        return "its visibility was changed"
    return f"its visibility was changed: hidden for {span(visible_ms)} from now"


def _deleted(event: HistoryEvent, before: Iterator[HistoryEvent]) -> str:
    held = next((earlier for earlier in before if earlier.what == "received"), None)
    return "deleted" if held is None else f"deleted, {span(event.at_ms - held.at_ms)} after it was received"


_RECEIPT_STATES = {
    "expired": "the receipt has expired: its visibility was over",
    "superseded": "the message has been received again since: this receipt is not the newest",
    "visible": "nobody holds the message: its visibility had ended",
    "gone": "the message is gone",
}


def _delete_refused(event: HistoryEvent) -> str:
    reason = _RECEIPT_STATES.get(str(event.detail.get("standing")), "the receipt has expired")
    return f"not deleted: {reason}"


def _dead_lettered(event: HistoryEvent) -> str:
    to, count, most = event.detail.get("to"), _number(event, "receive_count"), _number(event, "receives_max")
    times = "as often as it may be" if count is None else "once" if count == 1 else f"{count} times"
    return f"moved to {to}: received {times}" + ("" if most is None else f", the maximum is {most}")


def _moved(event: HistoryEvent) -> str:
    to, new, old = (event.detail.get(name) for name in ("to", "new_message_id", "old_message_id"))
    if old:
        return f"moved here from {event.detail.get('source')}, where it was message {old}"
    return f"moved to {to}" + (f", where it is message {new}" if new else "")


def _invoked(event: HistoryEvent) -> str:
    messages, request_id = _number(event, "messages"), event.detail.get("request_id")
    batch = f" in a batch of {messages}" if messages else ""
    return f"handed to {event.detail.get('function')}{batch}" + (f", request {request_id}" if request_id else "")


def _answered(event: HistoryEvent, before: Iterator[HistoryEvent]) -> str:
    invoked = next((earlier for earlier in before if earlier.what == "invoked"), None)
    after = "" if invoked is None else f" after {span(event.at_ms - invoked.at_ms)}"
    return f"{event.detail.get('function')} answered{after}: {event.detail.get('outcome', 'done')}"


_PLAIN: Mapping[What, str] = {
    "released": "released: visible at once",
    "purged": "removed: the queue was purged",
    "expired": "removed: its retention ended without a delete",
    "fault": "a fault was injected",
}
_ALONE: Mapping[What, Callable[[HistoryEvent], str]] = {
    "sent": _sent,
    "hidden": _hidden,
    "delete-refused": _delete_refused,
    "dead-lettered": _dead_lettered,
    "moved": _moved,
    "invoked": _invoked,
}
_WITH_BEFORE: Mapping[What, Callable[[HistoryEvent, Iterator[HistoryEvent]], str]] = {
    "deduplicated": _deduplicated,
    "received": _received,
    "deleted": _deleted,
    "answered": _answered,
}


def _sentence(event: HistoryEvent, before: Iterator[HistoryEvent]) -> str:
    if event.what in _PLAIN:
        return _PLAIN[event.what]
    if event.what in _ALONE:
        return _ALONE[event.what](event)
    return _WITH_BEFORE[event.what](event, before)
