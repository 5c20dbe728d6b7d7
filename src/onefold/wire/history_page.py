"""The history of a local server as one self-contained page for a browser; and the choice between page, JSON and lines.

The page works without scripts, without fonts or files from elsewhere, in light and dark: a list of messages on the left with
their state and counts, the story of one of them (or the newest events of all) on the right, filters as links.

Never here: which events are shown (`wire/history_view.py`), HTTP. Invariant: every text that somebody else chose (a queue, a
group, an error) is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from onefold.local.history import Event, History, span
from onefold.watch import wording
from onefold.wire.history_view import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    Asked,
    Format,
    Summary,
    View,
    clock,
    is_trouble,
    received_text,
    since,
    summary,
)

_CONTENT_TYPES: Mapping[Format, str] = {
    "html": "text/html; charset=utf-8",
    "json": "application/json",
    "text": "text/plain; charset=utf-8",
}
# The page needs nothing but its own style; a hostile queue name that slipped through could still load or run nothing.
_SAFETY = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_FOLLOW_S = 2


class Page(Struct, frozen=True):
    """An answer: body and headers."""

    body: bytes
    headers: Mapping[str, str]


def render(
    history: History, asked: Asked, format_: Format, *, now_ms: int, name_of: Callable[[str], str], path: str
) -> Page:
    """The history as somebody asked for it.

    Args:
        history: of this server.
        asked: which part.
        format_: see `format_for`.
        now_ms: the server's clock; states and ages are as of now.
        name_of: the id the wire shows for an engine's id.
        path: where the page itself is, for its links.
    """
    view = View(history, asked, now_ms, name_of)
    if format_ == "json":
        body = msgspec.json.encode(view.as_json())
    elif format_ == "text":
        body = view.as_text().encode()
    else:
        body = _Html(view, path).page().encode()
    return Page(body, {"Content-Type": _CONTENT_TYPES[format_], **_SAFETY})


class _Html:
    def __init__(self, view: View, path: str) -> None:
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

    def _card(self, now: Summary) -> str:
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

    def _why(self, event: Event) -> str:
        text = escape(self.view.why_after_what(event))
        for other in (event.detail.get("new_message_id"), event.detail.get("old_message_id")):
            if isinstance(other, str):
                name = self.name_of(other)
                text = text.replace(escape(name), self._named(name))
        return text

    def _named(self, name: str) -> str:
        """A message's id as a link to its story."""
        return f'<a href="{self._link(message=name)}"><code>{escape(name)}</code></a>'

    def _row(self, event: Event, events: Sequence[Event], *, one: bool) -> str:
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


def _state_mark(state: str) -> str:
    return f'<i class="state {state.replace(" ", "-")}">{state}</i>'


@cache
def _style() -> str:
    return files("onefold.wire").joinpath("history_page.css").read_text(encoding="utf-8")
