"""Renders values as HTML with Jinja2: what a template can call, and how texts from outside are shown.

Every value is escaped, and characters that would mislead the eye (control characters, bidirectional overrides,
characters without width) are shown as escape sequences: `finalize` sees each value before it is written, so that no
template can forget it. Never here: what a page shows. Invariant: only our own markup reaches a page as markup.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import msgspec

from onefold import extras, redact
from onefold.observe.wording import age, instant
from onefold.schedules.fire_times import utc_text
from onefold.web.exchange import exactly

if TYPE_CHECKING:
    from jinja2 import Environment

_BODY_CHARS_MAX: Final = 200_000  # characters of a body that a page shows
_NOTHING: Final = "\u2013"
_STATIC: Final = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


@cache
def environment() -> Environment:
    """The environment with our templates and filters.

    Raises:
        UsageError: the extra `web` is not installed.
    """
    with extras.needed("The page", "web"):
        import jinja2
        from markupsafe import Markup, escape

    def shown(value: object) -> object:
        return redact.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("onefold.web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown,
    )
    made.filters |= {"age": _age, "count": _count, "at": _at, "text": one_text, "line": _line, "body": body}
    made.tests["plain"] = lambda text: redact.one_line(text) == text
    made.filters |= {"key_time": utc_text, "exactly": exactly, "own": escape, "editable": editable}
    return made


def render(template: str, **values: Any) -> bytes:
    """A page."""
    return environment().get_template(template).render(**values).encode("utf-8", "backslashreplace")


def static(name: str) -> tuple[bytes, str] | None:
    """A static file of the page and its media type; None if there is no such file."""
    return (_static_file(name), _STATIC[name]) if name in _STATIC else None


@cache  # only for known names: anybody can ask for any name
def _static_file(name: str) -> bytes:
    return files("onefold.web").joinpath("static", name).read_bytes()


def _age(ms: int | None) -> str:
    return _NOTHING if ms is None else age(ms)


def _count(number: float | None) -> str:
    return _NOTHING if number is None else f"{number:,.0f}"


def _at(at_ms: int | None) -> str:
    """An instant in UTC to the second: `2026-11-21 00:31:05`."""
    if at_ms is None:
        return _NOTHING
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, tz=UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError):
        return instant(at_ms)


def one_text(text: str | None) -> str:
    """A text from outside, with secrets masked."""
    return "" if text is None else redact.masked(text)


def _line(text: str | None) -> str:
    """A text from outside in one line, with secrets masked."""
    return redact.one_line(one_text(text))


def editable(text: str) -> str:
    """A payload to be edited: characters that would mislead the eye are JSON escapes, which mean the same."""
    try:
        msgspec.json.format(text)
    except (ValueError, RecursionError):
        return text
    return redact.printable_json(text)


def body(text: str) -> str:
    """A payload to be read: JSON is indented, with numbers exactly as sent; secret fields are masked."""
    head = text[:_BODY_CHARS_MAX]
    if head == text:
        try:
            head = msgspec.json.format(text, indent=2)
        except (ValueError, RecursionError):
            head = text
    else:
        head += f"\n... and {len(text) - _BODY_CHARS_MAX:,} more characters"
    return redact.masked(head)
