"""Asks an ASGI page without a server: requests go in as a browser or a program sends them, answers come out whole."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from html import unescape
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct

from onefold.admin import held
from onefold.web.application import Page
from tests.faces.office import Open

TOKEN = "a-token-for-tests-0001"
SAME = {"sec-fetch-site": "same-origin", "origin": "http://localhost"}


def op(there: Open, key: str = "p-1") -> tuple[str, str]:
    """A field that names an operation as it is held now, or one that is not."""
    found = held.listed(there.session, key)
    name = (found[0].job, found[0].tenant, key, found[0].hold) if found else ("pay", "", key, "1@1")
    return "op", json.dumps(name)


class Got(Struct, frozen=True):
    """One answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    @property
    def words(self) -> str:
        """What a reader sees: without tags, spaces folded."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.text)).split())

    def json(self) -> Any:
        """The document."""
        return json.loads(self.body)

    def field(self, name: str) -> str:
        """The value of a hidden field."""
        found = re.search(f'name="{name}" value="([^"]*)"', self.text)
        assert found is not None, self.text
        return unescape(found[1])


class Reader:
    """Somebody with the token.

    Args:
        page: the application. headers: of every request, beside or instead of Host and Authorization.
    """

    def __init__(self, page: Page, headers: Mapping[str, str] | None = None) -> None:
        self._page = page
        known = {"host": "localhost", "cookie": "", "authorization": f"Bearer {TOKEN}"}
        self._headers = {**known, **(headers or {})}

    def get(self, path: str, *, method: str = "GET", **headers: str) -> Got:
        """Ask for a page; underscores in names of headers are hyphens."""
        return self.ask(method, path, b"", headers)

    def post(self, path: str, fields: Mapping[str, str] | list[tuple[str, str]], **headers: str) -> Got:
        """Send a form."""
        return self.ask("POST", path, urlencode(fields).encode(), headers)

    def ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Got:
        """One request and its answer."""
        given = {**self._headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        raw, _, query = path.partition("?")
        scope = {
            "type": "http", "method": method, "path": raw, "raw_path": raw.encode(), "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items() if value],
        }  # fmt: skip
        sent: list[Any] = []
        pieces = [body[at : at + 65_536] for at in range(0, len(body), 65_536)] or [b""]

        async def receive() -> dict[str, Any]:
            piece = pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

        async def send(event: Any) -> None:
            sent.append(event)

        asyncio.run(self._page(scope, receive, send))
        start, *rest = sent
        found = {name.decode(): value.decode() for name, value in start["headers"]}
        return Got(start["status"], found, b"".join(one["body"] for one in rest))
