"""The page's requests and answers as values: read from ASGI within bounds, and written to it.

Path segments are taken from the raw path and decoded one by one, because a business key may contain a slash.
Never here: access (`safety.py`), what a path means (`application.py`).
Invariant: no more of a body is kept than its bound.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode

import msgspec
from msgspec import Struct

from onefold import errors

BODY_BYTES_MAX: Final = 4 * 1024 * 1024  # a message is at most 1 MiB, and percent-encoded three times that
_FIELDS_MAX: Final = 1_000  # fields of a query or a form
EXACT: Final = "exact"  # this field has names and values as JSON, where control characters can be written as escapes

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApplication = Callable[[Scope, Receive, Send], Awaitable[None]]


class TooLargeError(Exception):
    """A body is larger than its bound; the rest of it was not kept."""


class WebRequest(Struct, frozen=True, kw_only=True):
    """One request.

    Args:
        method: `GET`, `HEAD` or `POST`.
        segments: the segments of the path below the base, decoded.
        query, form: the first value of each field.
        many: every value of each field of the form.
        headers: names in lower case.
        base: the start of all links; empty, or like `/ops`, without a slash at its end.
        actor: the user, as named in the ledger; empty until known. role: what they may do.
        wants_json: the path is under `/api`.
    """

    method: str
    segments: tuple[str, ...]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    base: str
    form: Mapping[str, str] = {}
    many: Mapping[str, tuple[str, ...]] = {}
    actor: str = ""
    role: Literal["viewer", "operator", "admin"] = "viewer"
    wants_json: bool = False

    @property
    def here(self) -> str:
        """The address of this page without its query."""
        return address(self.base, *(("api",) if self.wants_json else ()), *self.segments)

    def with_query(self, **changes: str | None) -> str:
        """The address of this page with parts of its query changed; None leaves one out."""
        wanted = {**self.query, **changes}
        text = urlencode({name: value for name, value in wanted.items() if value})
        return f"{self.here}?{text}" if text else self.here


class WebAnswer(Struct, frozen=True, kw_only=True):
    """One answer: status, body, and headers besides those that every answer has."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def address(base: str, *segments: str) -> str:
    """The address of a page, its segments encoded."""
    return f"{base}/{'/'.join(quote(one, safe='') for one in segments)}"


def read_head(scope: Scope, base_path: str) -> WebRequest | None:
    """The request without its body; None if its path is not below the base.

    Args:
        base_path: the one in the settings. A framework that mounts the page passes its own as `root_path`.

    Raises:
        UsageError: the query has more than 1,000 fields.
    """
    base = str(scope.get("root_path") or "").rstrip("/") or base_path
    raw = scope.get("raw_path")
    path = raw.decode("latin-1").partition("?")[0] if raw else quote(str(scope["path"]))
    if base and (path == base or path.startswith(f"{base}/")):
        path = path[len(base) :]
    elif base and base == base_path:
        return None
    segments = tuple(unquote(one, errors="replace") for one in path.split("/") if one)
    wants_json = segments[:1] == ("api",)
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        headers[name.decode("latin-1").lower()] = value.decode("latin-1")
    return WebRequest(
        method=str(scope["method"]),
        segments=segments[1:] if wants_json else segments,
        query=_first(_fields(scope.get("query_string", b""))),
        headers=headers,
        base=base,
        wants_json=wants_json,
    )


async def read_body(receive: Receive, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """The whole body of a request.

    Raises:
        TooLargeError: it is longer than `bytes_max`. ConnectionError: the client has hung up.
    """
    parts, size = [], 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ConnectionError
        part = event.get("body", b"")
        size += len(part)
        if size > bytes_max:
            raise TooLargeError
        parts.append(part)
        if not event.get("more_body"):
            return b"".join(parts)


def form_of(body: bytes) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """The first value, and every value, of each field of a form.

    Raises:
        UsageError: there are more than 1,000 fields.
    """
    pairs = _fields(body, typed=True)
    many: dict[str, tuple[str, ...]] = {}
    for name, value in pairs:
        many[name] = (*many.get(name, ()), value)
    return {name: values[0] for name, values in many.items()}, many


def exactly(pairs: Sequence[tuple[str, str]]) -> str:
    """Names and values for a form's field `exact`, in ASCII, so that any characters come back unchanged."""
    return json.dumps(pairs)


def _fields(text: bytes, *, typed: bool = False) -> list[tuple[str, str]]:
    """Names and values; with `typed` (a form), line ends are converted back to those of Unix."""
    try:
        pairs = parse_qsl(text.decode("latin-1"), keep_blank_values=True, max_num_fields=_FIELDS_MAX)
    except ValueError:
        raise _too_many() from None
    found: list[tuple[str, str]] = []
    for name, value in pairs:
        if name != EXACT:
            found.append((name, value.replace("\r\n", "\n") if typed else value))
            continue
        try:
            found += msgspec.json.decode(value, type=list[tuple[str, str]])
        except (msgspec.MsgspecError, RecursionError):
            raise errors.UsageError(
                f"The field {EXACT} of the request is not a list of names and values.",
                meaning="Nothing was changed.",
                todo="Open the form again.",
            ) from None
    if len(found) > _FIELDS_MAX:
        raise _too_many()
    return found


def _too_many() -> errors.UsageError:
    return errors.UsageError(
        f"The request has more than {_FIELDS_MAX:,} fields.",
        meaning="Nothing was changed.",
        todo="Choose fewer at a time, or use a filter.",
    )


def _first(pairs: list[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in pairs:
        found.setdefault(name, value)
    return found


async def write(send: Send, answer: WebAnswer, *, head_only: bool = False) -> None:
    """Send an answer."""
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head_only else answer.body})
