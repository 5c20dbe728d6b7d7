"""`onefold web`: serves the page with our own HTTP server, until it is stopped.

SIGTERM, SIGINT and SIGHUP end it gracefully, unless it was started with them ignored: `nohup` does that, and so does a
shell for a background process, for which a Ctrl-C is not meant.

The server reads a whole request, passes it to the ASGI application, and sends the whole answer at once. The
server bounds sizes, times and the number of clients (`local/connection.py`).
Never here: who has access, and what is shown. Invariant: nothing is printed as running before requests are accepted.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from onefold import extras
from onefold.local.connection import Bounds, HttpRequest, Response
from onefold.local.http_server import HttpServer
from onefold.web.application import Page
from onefold.web.exchange import BODY_BYTES_MAX
from onefold.web.safety import HEADERS

if TYPE_CHECKING:
    from onefold.outside import Clock

PORT: Final = 9400
_GRACE_S: Final = 5.0
_BOUNDS: Final = Bounds(
    body_bytes=BODY_BYTES_MAX, held_bytes=32 * 1024 * 1024, connections=1_000, head_bytes=32 * 1024, request_s=15.0
)
_SAFE: Final = tuple((name.encode(), value.encode()) for name, value in (("Content-Type", "text/plain"), *HEADERS))


class PageHandler:
    """Passes our server's requests to an ASGI application.

    Args:
        page: the application.
    """

    def __init__(self, page: Page) -> None:
        self._page = page

    async def handle(self, request: HttpRequest) -> Response | None:
        """The application's answer."""
        scope: dict[str, Any] = {
            "type": "http", "method": request.method, "path": request.path, "raw_path": request.path.encode("latin-1"),
            "query_string": request.query.encode("latin-1"), "headers": list(request.headers.items()), "root_path": "",
        }  # fmt: skip
        status, headers, parts = 500, (), list[bytes]()

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": request.body, "more_body": False}

        async def send(event: MutableMapping[str, Any]) -> None:
            nonlocal status, headers
            if event["type"] == "http.response.start":
                status = event["status"]
                headers = tuple(pair for pair in event["headers"] if pair[0] != b"content-length")
            else:
                parts.append(event.get("body", b""))

        await self._page(scope, receive, send)
        return Response(status, b"".join(parts), headers)

    def refused(self, status: int, why: str) -> Response:
        """The answer to a request that the server refuses."""
        return Response(status, f"{why}\n".encode(), _SAFE)

    def failed(self, request: HttpRequest, error: Exception) -> Response:  # noqa: ARG002 - the server's interface
        """The answer if the application itself raised, which should not happen."""
        return Response(500, b"The page could not be made.\n", _SAFE)


def run(page: Page, *, host: str, port: int, clock: Clock, ready: Callable[[str], None]) -> str:
    """Serve a page in this thread, which must be the main one, until a signal ends it; return that signal's name.

    Args:
        host, port: to listen on; port 0 takes a free one.
        ready: called with the address once requests are accepted.

    Raises:
        UsageError: the port is taken, the host is not an address of this machine, or the extra `web` is not installed.
    """
    with extras.needed("The page", "web"):
        import httptools  # noqa: F401 - imported here, so that its absence is reported before anything is started
        import uvloop

    async def main() -> str:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()

        def end(name: str) -> None:
            if not ended.done():
                ended.set_result(name)

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, end, number.name)
        server = HttpServer(PageHandler(page), host=host, port=port, clock=clock, bounds=_BOUNDS)
        await server.start()
        try:
            ready(server.url)
            return await ended
        finally:
            await server.stop(grace_s=_GRACE_S)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
