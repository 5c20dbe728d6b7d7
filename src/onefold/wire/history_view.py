"""What of the history is shown to somebody who asks: which events, each message as it stands, and both as JSON or as lines.

Never here: what is remembered and its sentences (`local/history.py`), HTML (`wire/history_page.py`), HTTP. Invariant: ids
are shown as the wire shows them, never the engine's; control characters never reach a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from onefold.errors import UsageError
from onefold.local.history import Event, History, span
from onefold.watch import wording

Format = Literal["html", "json", "text"]
LIMIT_DEFAULT = 500
LIMIT_MAX = 10_000
_UNPRINTABLE = dict.fromkeys((*range(32), *range(127, 160)), "?")


class Asked(Struct, frozen=True, kw_only=True):
    """What somebody wants to see.

    Args:
        queue: only events in this queue; None: all. A message's story is told whole, whatever queue is asked for.
        message: the story of this message (the engine's id); None: all messages.
        wrong: only messages that were redelivered, dead-lettered, refused, failed, expired, or met a fault.
        after: only events with a larger number.
        limit: how many events at most, 1 to 10,000.
        follow: the page loads itself again every 2 seconds.
    """

    queue: str | None = None
    message: str | None = None
    wrong: bool = False
    after: int | None = None
    limit: int = LIMIT_DEFAULT
    follow: bool = False


class Summary(Struct, frozen=True, kw_only=True):
    """A message as it stands, as far as its remembered events tell."""

    message_id: str
    queue: str
    state: str
    receives: int
    events: int
    wrong: bool
    last_at_ms: int


def format_for(asked: str | None, accept: str) -> Format:
    """Which format to answer in.

    Args:
        asked: the `format` parameter: `html`, `json` or `text`; None lets the header decide.
        accept: the Accept header; a browser's names text/html, and what names neither html nor plain gets JSON.

    Raises:
        UsageError: another format.
    """
    if asked is not None:
        for known in ("html", "json", "text"):
            if asked == known:
                return known
        raise UsageError(f"format={asked!r} is not known.", todo="It is html, json or text.")
    if "text/html" in accept:
        return "html"
    return "text" if "text/plain" in accept else "json"


def asked_from(query: Mapping[str, str], message_id_of: Callable[[str], str]) -> Asked:
    """What the parameters of a request ask for: `queue`, `message`, `wrong`, `after`, `limit`, `follow`.

    Args:
        query: the parameters, each once.
        message_id_of: the engine's id for the id the wire shows.

    Raises:
        UsageError: `after` or `limit` is no number in its range.
    """
    message = query.get("message")
    return Asked(
        queue=query.get("queue") or None,
        message=message_id_of(message) if message else None,
        wrong=query.get("wrong", "0") not in ("", "0", "false"),
        after=_number(query, "after", 0, 2**63 - 1),
        limit=_number(query, "limit", 1, LIMIT_MAX) or LIMIT_DEFAULT,
        follow=query.get("follow", "0") not in ("", "0", "false"),
    )


def _number(query: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = query.get(name)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise UsageError(f"{name}={text!r} is out of range.", todo=f"It is a whole number, {least:,} to {most:,}.")
    return int(text)


# ------------------------------------------------------------------------------------------------- what stands there

_TROUBLE = frozenset({"dead-lettered", "delete-refused", "expired", "fault"})


def went_wrong(events: Sequence[Event]) -> bool:
    """Whether a message was redelivered, dead-lettered, refused a delete, failed, expired, or met a fault."""
    return any(is_trouble(event) for event in events)


def is_trouble(event: Event) -> bool:
    """Whether this event is part of what went wrong."""
    count = event.detail.get("receive_count")
    return (
        event.what in _TROUBLE
        or (event.what == "received" and isinstance(count, int) and count > 1)
        or (event.what == "answered" and event.detail.get("outcome", "done") != "done")
    )


def summary(events: Sequence[Event], now_ms: int) -> Summary:
    """A message as it stands at `now_ms`, from its events, oldest first, at least one."""
    state, queue = "seen", events[-1].queue
    for event in reversed(events):
        found = _state(event, now_ms)
        if found:
            state = found
            queue = str(event.detail.get("to") or event.queue)
            break
    counts = [count for event in events if isinstance(count := event.detail.get("receive_count"), int)]
    return Summary(
        message_id=events[-1].message_id,
        queue=queue,
        state=state,
        receives=max(counts, default=0),
        events=len(events),
        wrong=went_wrong(events),
        last_at_ms=events[-1].at_ms,
    )


_ENDS = {
    "deleted": "deleted",
    "released": "waiting",
    "dead-lettered": "dead letter",
    "purged": "purged",
    "expired": "expired",
}


def _state(event: Event, now_ms: int) -> str:
    """The state this event put its message in, as of now; empty where it changes none."""
    if event.what in _ENDS:
        return _ENDS[event.what]
    if event.what == "moved":
        return "moved" if event.detail.get("new_message_id") else "waiting"
    if event.what == "sent":
        return "delayed" if _ends_ms(event, "delay_ms") > now_ms else "waiting"
    if event.what == "hidden" or (event.what == "received" and not event.detail.get("copy")):
        return "in flight" if _ends_ms(event, "visible_ms") > now_ms else "waiting"
    return ""


def _ends_ms(event: Event, name: str) -> int:
    value = event.detail.get(name)
    return event.at_ms + (value if isinstance(value, int) else 0)


# ------------------------------------------------------------------------------------------------------ JSON and text


class View:
    """The part of a history that somebody asked for, as of `now_ms`.

    Args:
        name_of: the id the wire shows for an engine's id.
    """

    def __init__(self, history: History, asked: Asked, now_ms: int, name_of: Callable[[str], str]) -> None:
        self.history = history
        self.asked = asked
        self.now_ms = now_ms
        self.name_of = name_of

    def events(self) -> list[Event]:
        """The events that were asked for, oldest first."""
        asked = self.asked
        if asked.message is not None:
            events = [
                event for event in self.history.of(asked.message) if asked.after is None or event.number > asked.after
            ]
            return events if asked.after is not None else events[-asked.limit :]
        if not asked.wrong:
            return self.history.all(asked.queue, asked.after, asked.limit)
        events = [event for event in self.history.all(asked.queue, asked.after, LIMIT_MAX) if is_trouble(event)]
        return events[: asked.limit] if asked.after is not None else events[-asked.limit :]

    def why(self, event: Event) -> str:
        """The event's sentence, with ids as the wire shows them."""
        text = self.history.why(event)
        for name in ("new_message_id", "old_message_id"):
            other = event.detail.get(name)
            if isinstance(other, str):
                text = text.replace(other, self.name_of(other))
        return text

    def why_after_what(self, event: Event) -> str:
        """The same sentence, to stand behind the event's word: without that word where it begins with it."""
        why = self.why(event)
        if why.startswith(event.what):
            return why[len(event.what) :].lstrip(" ,:")
        return why

    # ---------------------------------------------------------------------------------------------------------- JSON

    def as_json(self) -> dict[str, object]:
        """The events, and the number to ask for what comes `after`."""
        events = self.events()
        return {
            "events": [
                {
                    "number": event.number,
                    "at": wording.instant(event.at_ms),
                    "at_ms": event.at_ms,
                    "queue": event.queue,
                    "message": self.name_of(event.message_id) if event.message_id else None,
                    "what": event.what,
                    "why": self.why(event),
                    "via": event.via,
                    "detail": {
                        name: self._detail(name, value) for name, value in event.detail.items() if value is not None
                    },
                }
                for event in events
            ],
            "next": events[-1].number if events else self.asked.after,
            "remembered": len(self.history),
            "limit": self.history.limit,
        }

    def _detail(self, name: str, value: str | int | None) -> str | int | None:
        return self.name_of(value) if name.endswith("_message_id") and isinstance(value, str) else value

    # ---------------------------------------------------------------------------------------------------------- text

    def as_text(self) -> str:
        """One line per event."""
        events = self.events()
        if not events:
            return f"{self.nothing()}\n"
        one = self.asked.message is not None
        lines = []
        if one:
            now = summary(self.history.of(events[0].message_id), self.now_ms)
            lines.append(
                f"message {self.name_of(now.message_id)}: {now.state} in {now.queue}, {received_text(now.receives)}"
            )
        width = max(len(event.queue) for event in events)
        for event in events:
            name = self.name_of(event.message_id) if event.message_id else "-"
            message = "" if one else f"{name}  "
            via = f"  [{event.via}]" if event.via else ""
            lines.append(
                f"{clock(event.at_ms)}  {since(event, events):>8}  {event.queue:<{width}}  {message}"
                f"{event.what:<14}  {self.why_after_what(event)}{via}"
            )
        return "".join(f"{line.translate(_UNPRINTABLE).rstrip()}\n" for line in lines)

    def nothing(self) -> str:
        """Why there is nothing to show."""
        if self.asked.message is not None:
            return "Nothing is remembered of this message: it was never here, or it happened too long ago."
        return "Nothing happened yet." if not len(self.history) else "Nothing of this kind is remembered."


def received_text(count: int) -> str:
    """`received 3 times`."""
    return {0: "never received", 1: "received once"}.get(count, f"received {count:,} times")


def since(event: Event, events: Sequence[Event]) -> str:
    """How long after the first one shown."""
    return f"+{span(event.at_ms - events[0].at_ms)}"


def clock(at_ms: int) -> str:
    """Time of day with milliseconds, UTC."""
    return wording.instant(at_ms)[11:23]
