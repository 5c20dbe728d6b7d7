"""Server time of pages: `python -m benchmarks.pages.opening --folder DIR --count 1000000` prints one JSON line.

The pages are asked as an ASGI server would ask, in this process, with nothing kept from one request to the next; each five
times, the median. Never here: goals (`rows`), filling (`filling`). Invariant: every page answers 200.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.pages import filling
from onefold.admin.session import AdminSession, jobs_of
from onefold.app import App
from onefold.web.application import Page
from onefold.web.safety import Access

TIMES = 5
_TOKEN = "a-token-of-the-benchmark"
LARGE = {
    "first": "/",
    "queue": "/queues/orders",
    "dead": "/dead/orders-dead",
    "filtered": "/dead/orders-dead?reason=conflict",
    "redrive": "/dead/orders-dead/redrive?reason=permanent",
}


def page_of(app: App) -> Page:
    """The page of an app, anew: it has read nothing yet."""
    session = AdminSession(app.runtime(), actor="person:benchmark", jobs=jobs_of(app))
    return Page(session, access=Access(token=_TOKEN), app=app)


async def ask(page: Page, path: str) -> int:
    """The status of an answer."""
    found: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(event: Any) -> None:
        if event["type"] == "http.response.start":
            found.append(event["status"])

    raw, _, query = path.partition("?")
    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {_TOKEN}".encode())]
    scope = {"type": "http", "method": "GET", "path": raw, "query_string": query.encode(), "headers": headers}
    await page(scope, receive, send)
    return found[0]


def taken_ms(app: App, path: str) -> float:
    """Milliseconds of a page."""
    taken = []
    for _ in range(TIMES):
        page = page_of(app)
        began = time.perf_counter()
        status = asyncio.run(ask(page, path))
        taken.append((time.perf_counter() - began) * 1e3)
        assert status == 200, path
    return median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--queues", type=int, required=True)
    options = parser.parse_args()
    large, _ = filling.million(options.folder / "large.db", options.count)
    figures = {f"{name}_ms": taken_ms(large, path) for name, path in LARGE.items()}
    letter = large.runtime().engine.queues.peek("orders-dead", limit=1)[0].message_id
    figures["letter_ms"] = taken_ms(large, f"/dead/orders-dead/letters/{letter}")
    large.close()
    many = filling.thousand(options.folder / "many.db", options.queues)
    figures["metrics_ms"] = taken_ms(many, "/metrics")
    many.close()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
