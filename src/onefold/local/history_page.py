"""The history of a local server, rendered: as a page for a browser, as JSON, or as lines of text.

A view selects the events and derives the present state of each message from them. The page is self-contained and works
without scripts and without fonts or files from elsewhere, in light and dark: on the left a list of messages with their
state and counts, on the right the history of one of them (or the newest events of all), and filters as links.

Never here: what is recorded and its sentences (`history.py`), HTTP. Invariants: ids are shown in AWS's form, never in the
engine's; every text from outside (a queue, a group, an error) is escaped on the page; control characters never reach a
terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Literal
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from onefold import redact
from onefold.errors import UsageError
from onefold.local.history import HistoryEvent, MessageHistory, span
from onefold.observe import wording

Format = Literal["html", "json", "text"]
LIMIT_DEFAULT = 500
LIMIT_MAX = 10_000
_UNPRINTABLE = dict.fromkeys((*range(32), *range(127, 160)), "?")
_TROUBLE = frozenset({"dead-lettered", "delete-refused", "expired", "fault"})
_ENDS = {
    "deleted": "deleted",
    "released": "waiting",
    "dead-lettered": "dead letter",
    "purged": "purged",
    "expired": "expired",
}
_CONTENT_TYPES: Mapping[Format, str] = {
    "html": "text/html; charset=utf-8",
    "json": "application/json",
    "text": "text/plain; charset=utf-8",
}
# The page needs only its own style; even an unescaped hostile queue name could load or run nothing.
_SAFETY = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_FOLLOW_S = 2
_TONES: Mapping[str, str] = {
    "sent": "new",
    "deduplicated": "quiet-tone",
    "received": "held",
    "hidden": "held",
    "released": "held",
    "deleted": "done",
    "delete-refused": "bad",
    "dead-lettered": "bad",
    "moved": "new",
    "purged": "quiet-tone",
    "expired": "bad",
    "invoked": "ran",
    "answered": "ran",
    "fault": "fault",
}


class HistoryQuery(Struct, frozen=True, kw_only=True):
    """Which part of the history to show.

    Args:
        queue: only events in this queue; None: all. The history of a single message is shown whole, whatever the queue.
        message: the history of this message (the engine's id); None: all messages.
        wrong: only messages that were redelivered, dead-lettered, refused, failed, expired, or affected by a fault.
        after: only events with a larger number.
        limit: the most events, 1 to 10,000.
        follow: the page reloads itself every 2 seconds.
    """

    queue: str | None = None
    message: str | None = None
    wrong: bool = False
    after: int | None = None
    limit: int = LIMIT_DEFAULT
    follow: bool = False


class MessageSummary(Struct, frozen=True, kw_only=True):
    """The present state of a message, as far as it follows from the recorded events."""

    message_id: str
    queue: str
    state: str
    receives: int
    events: int
    wrong: bool
    last_at_ms: int


def format_for(asked: str | None, accept: str) -> Format:
    """The format of the answer.

    Args:
        asked: the `format` parameter: `html`, `json` or `text`; None: the header decides.
        accept: the Accept header; a browser's has text/html; one with neither html nor plain gets JSON.

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


def asked_from(query: Mapping[str, str], message_id_of: Callable[[str], str]) -> HistoryQuery:
    """The query in a request's parameters: `queue`, `message`, `wrong`, `after`, `limit`, `follow`.

    Args:
        query: the parameters, each once.
        message_id_of: the engine's id for the id that clients see.

    Raises:
        UsageError: `after` or `limit` is not a number in its range.
    """
    message = query.get("message")
    return HistoryQuery(
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


# --------------------------------------------------------------------------------------------------- states of messages


def went_wrong(events: Sequence[HistoryEvent]) -> bool:
    """Whether a message was redelivered, dead-lettered, refused a delete, failed, expired, or affected by a fault."""
    return any(is_trouble(event) for event in events)


def is_trouble(event: HistoryEvent) -> bool:
    """Whether this event is part of what went wrong."""
    count = event.detail.get("receive_count")
    return (
        event.what in _TROUBLE
        or (event.what == "received" and isinstance(count, int) and count > 1)
        or (event.what == "answered" and event.detail.get("outcome", "done") != "done")
    )


def summary(events: Sequence[HistoryEvent], now_ms: int) -> MessageSummary:
    """The state of a message at `now_ms`, from its events: at least one, oldest first."""
    state, queue = "seen", events[-1].queue
    for event in reversed(events):
        found = _state(event, now_ms)
        if found:
            state = found
            queue = str(event.detail.get("to") or event.queue)
            break
    counts = [count for event in events if isinstance(count := event.detail.get("receive_count"), int)]
    return MessageSummary(
        message_id=events[-1].message_id,
        queue=queue,
        state=state,
        receives=max(counts, default=0),
        events=len(events),
        wrong=went_wrong(events),
        last_at_ms=events[-1].at_ms,
    )


def _state(event: HistoryEvent, now_ms: int) -> str:
    """The state into which this event put its message, as of now; empty if it does not change the state."""
    if event.what in _ENDS:
        return _ENDS[event.what]
    if event.what == "moved":
        return "moved" if event.detail.get("new_message_id") else "waiting"
    if event.what == "sent":
        return "delayed" if _ends_ms(event, "delay_ms") > now_ms else "waiting"
    if event.what == "hidden" or (event.what == "received" and not event.detail.get("copy")):
        return "in flight" if _ends_ms(event, "visible_ms") > now_ms else "waiting"
    return ""


def _ends_ms(event: HistoryEvent, name: str) -> int:
    value = event.detail.get(name)
    return event.at_ms + (value if isinstance(value, int) else 0)


# ------------------------------------------------------------------------------------------------------ JSON and text


class HistoryView:
    """The requested part of a history, as of `now_ms`.

    Args:
        name_of: the id that clients see for an engine's id.
    """

    def __init__(
        self, history: MessageHistory, asked: HistoryQuery, now_ms: int, name_of: Callable[[str], str]
    ) -> None:
        self.history = history
        self.asked = asked
        self.now_ms = now_ms
        self.name_of = name_of

    def events(self) -> list[HistoryEvent]:
        """The requested events, oldest first."""
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

    def why(self, event: HistoryEvent) -> str:
        """The event's sentence, with ids in the form that clients see."""
        text = self.history.why(event)
        for name in ("new_message_id", "old_message_id"):
            other = event.detail.get(name)
            if isinstance(other, str):
                text = text.replace(other, self.name_of(other))
        return text

    def why_after_what(self, event: HistoryEvent) -> str:
        """The same sentence without the event's kind at its start, for use after the kind."""
        why = self.why(event)
        if why.startswith(event.what):
            return why[len(event.what) :].lstrip(" ,:")
        return why

    # ---------------------------------------------------------------------------------------------------------- JSON

    def as_json(self) -> dict[str, object]:
        """The events, and the number to pass as `after` for later ones."""
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
        return "".join(f"{redact.printable(line.translate(_UNPRINTABLE)).rstrip()}\n" for line in lines)

    def nothing(self) -> str:
        """Why there is nothing to show."""
        if self.asked.message is not None:
            return "No event of this message is recorded: it was never here, or its events are too old."
        return "Nothing has happened yet." if not len(self.history) else "No event of this kind is remembered."


def received_text(count: int) -> str:
    """`received 3 times`."""
    return {0: "never received", 1: "received once"}.get(count, f"received {count:,} times")


def since(event: HistoryEvent, events: Sequence[HistoryEvent]) -> str:
    """The time since the first event that is shown."""
    return f"+{span(event.at_ms - events[0].at_ms)}"


def clock(at_ms: int) -> str:
    """Time of day with milliseconds, UTC."""
    return wording.instant(at_ms)[11:23]


class HistoryPage(Struct, frozen=True):
    """An answer: body and headers."""

    body: bytes
    headers: Mapping[str, str]


def render(
    history: MessageHistory,
    asked: HistoryQuery,
    format_: Format,
    *,
    now_ms: int,
    name_of: Callable[[str], str],
    path: str,
) -> HistoryPage:
    """The requested part of a history in the requested format.

    Args:
        history: this server's.
        asked: the requested part.
        format_: see `format_for`.
        now_ms: the server's clock; states and ages are as of now.
        name_of: the id that clients see for an engine's id.
        path: the page's own path, for its links.
    """
    view = HistoryView(history, asked, now_ms, name_of)
    if format_ == "json":
        body = msgspec.json.encode(view.as_json())
    elif format_ == "text":
        body = view.as_text().encode()
    else:
        body = _Html(view, path).page().encode()
    return HistoryPage(body, {"Content-Type": _CONTENT_TYPES[format_], **_SAFETY})


class _Html:
    def __init__(self, view: HistoryView, path: str) -> None:
        self.view = view
        self.asked = view.asked
        self.history = view.history
        self.now_ms = view.now_ms
        self.name_of = view.name_of
        self.path = path

    def page(self) -> str:
        follow = f'<meta http-equiv="refresh" content="{_FOLLOW_S}">' if self.asked.follow else ""
        story = self._story() if self.asked.message is not None else self._log()
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>onefold: history</title>'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">{follow}<style>{_style()}</style></head>'
            f"<body><header>{self._header()}</header><main><nav>{self._list()}</nav>"
            f"<section>{story}</section></main></body></html>"
        )

    def _link(self, **changes: str | None) -> str:
        """The address of this page with some parameters changed; None removes one."""
        asked = self.asked
        parameters = {
            "queue": asked.queue,
            "message": None if asked.message is None else self.name_of(asked.message),
            "wrong": "1" if asked.wrong else None,
            "follow": "1" if asked.follow else None,
            **changes,
        }
        query = urlencode({name: value for name, value in parameters.items() if value is not None})
        return escape(f"{self.path}?{query}" if query else self.path)

    def _chip(self, text: str, on: bool, **changes: str | None) -> str:
        current = ' aria-current="true"' if on else ""
        return f'<a class="chip" href="{self._link(**changes)}"{current}>{escape(text)}</a>'

    def _header(self) -> str:
        asked = self.asked
        queues = [self._chip("all queues", asked.queue is None, queue=None)]
        queues += [self._chip(name, asked.queue == name, queue=name) for name in self.history.queues()]
        kinds = self._chip("everything", not asked.wrong, wrong=None) + self._chip("went wrong", asked.wrong, wrong="1")
        follow = self._chip("follow", asked.follow, follow=None if asked.follow else "1")
        count = wording.counted(len(self.history), "event")
        return (
            f'<h1><a href="{self._link(queue=None, message=None, wrong=None)}">onefold history</a></h1>'
            f'<div class="chips">{"".join(queues)}</div><div class="chips">{kinds}</div><div class="chips">{follow}</div>'
            f'<p class="quiet">{count} of at most {self.history.limit:,}</p>'
        )

    def _list(self) -> str:
        shown = []
        for message_id in self.history.messages(self.asked.queue, LIMIT_MAX):
            now = summary(self.history.of(message_id), self.now_ms)
            if now.wrong or not self.asked.wrong:
                shown.append(now)
            if len(shown) == LIMIT_DEFAULT:
                break
        if not shown:
            return '<p class="quiet">No messages.</p>'
        return "".join(self._card(now) for now in shown)

    def _card(self, now: MessageSummary) -> str:
        name = self.name_of(now.message_id)
        current = ' aria-current="true"' if now.message_id == self.asked.message else ""
        times = f'<b class="{"again" if now.receives > 1 else "quiet"}" title="receives">&times;{now.receives}</b>'
        ago = wording.age(self.now_ms - now.last_at_ms)
        return (
            f'<a class="card{" wrong" if now.wrong else ""}" href="{self._link(message=name)}"{current}>'
            f"<code>{escape(name)}</code>"
            f"<span>{_state_mark(now.state)}{times}<em>{escape(now.queue)}</em><small>{ago} ago</small></span></a>"
        )

    def _story(self) -> str:
        events = self.view.events()
        if not events:
            return f'<p class="quiet">{escape(self.view.nothing())}</p>'
        now = summary(self.history.of(events[0].message_id), self.now_ms)
        rows = "".join(self._row(event, events, one=True) for event in events)
        took = span(events[-1].at_ms - events[0].at_ms)
        return (
            f"<h2><code>{escape(self.name_of(now.message_id))}</code></h2>"
            f'<p class="quiet">{_state_mark(now.state)} in <b>{escape(now.queue)}</b>, {received_text(now.receives)}, '
            f"{wording.counted(len(events), 'event')} in {took} &middot; "
            f"{self._chip('back to all', False, message=None)}</p>"
            f'<ol class="line">{rows}</ol>'
        )

    def _log(self) -> str:
        events = self.view.events()
        if not events:
            return f'<p class="quiet">{escape(self.view.nothing())}</p>'
        rows = "".join(self._row(event, events, one=False) for event in reversed(events))
        return f'<h2>What happened</h2><p class="quiet">Newest first. Times are UTC.</p><ol class="line">{rows}</ol>'

    def _why(self, event: HistoryEvent) -> str:
        text = escape(self.view.why_after_what(event))
        for other in (event.detail.get("new_message_id"), event.detail.get("old_message_id")):
            if isinstance(other, str):
                name = self.name_of(other)
                text = text.replace(escape(name), self._named(name))
        return text

    def _named(self, name: str) -> str:
        """A message's id as a link to its history."""
        return f'<a href="{self._link(message=name)}"><code>{escape(name)}</code></a>'

    def _row(self, event: HistoryEvent, events: Sequence[HistoryEvent], *, one: bool) -> str:
        trouble = " trouble" if is_trouble(event) else ""
        via = f'<small class="quiet">{escape(event.via)}</small>' if event.via else ""
        if one:
            rest = f'<small class="quiet">{escape(event.queue)}</small>{via}'
            when = f"<b>{since(event, events)}</b>"
        else:
            link = self._named(self.name_of(event.message_id)) if event.message_id else ""
            rest = f'<small class="quiet">{escape(event.queue)}</small>{link}{via}'
            when = f"<b>{wording.age(self.now_ms - event.at_ms)} ago</b>"
        return (
            f'<li class="{_TONES[event.what]}{trouble}"><time title="{wording.instant(event.at_ms)}">{when}'
            f'<small class="quiet">{clock(event.at_ms)}</small></time>'
            f'<div><strong class="what">{event.what}</strong> {self._why(event)}<p>{rest}</p></div></li>'
        )


def _state_mark(state: str) -> str:
    return f'<i class="state {state.replace(" ", "-")}">{state}</i>'


@cache
def _style() -> str:
    return files("onefold.local").joinpath("history_page.css").read_text(encoding="utf-8")
