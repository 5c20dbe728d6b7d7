"""The listening sockets of one server, and its graceful stop: no new connections, and begun requests are finished.

Parsing is in `connection.py`. Never here: how requests are answered, what runs beside the sockets, signals and threads
(`local/serving.py`). Invariant: when `stop` returns, no connection is open and no request is being handled.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from onefold import errors, limits
from onefold.local.connection import Bounds, Connection, HttpHandler, ServerConnections

if TYPE_CHECKING:
    from onefold.outside import Clock


_BACKLOG = 2_048
_CHECKS = 4  # checks of idle connections within the idle timeout
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Dates:
    """The Date header of answers, formatted once a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._second = -1
        self._text = b""

    def now(self) -> bytes:
        """For example `Sat, 21 Nov 2026 04:18:54 GMT`."""
        second = self._clock.now_ms() // limits.SECOND_MS
        if second != self._second:
            at = datetime.fromtimestamp(second, tz=UTC)
            text = f"{_DAYS[at.weekday()]}, {at:%d} {_MONTHS[at.month - 1]} {at:%Y %H:%M:%S} GMT"
            self._second, self._text = second, text.encode()
        return self._text


class HttpServer:
    """An HTTP server on this loop.

    Args:
        handler: answers requests.
        host: name or address to listen on; a name with several addresses listens on all of them.
        port: 0 to 65,535; 0 takes a free one.
        clock: the time of the Date header.
        bounds: the limits for clients.
    """

    def __init__(
        self, handler: HttpHandler, *, host: str, port: int, clock: Clock, bounds: Bounds | None = None
    ) -> None:
        self.host = host
        self.port = port
        self._bounds = bounds or Bounds()
        self._handler = handler
        self._clock = clock
        self._shared: ServerConnections | None = None
        self._server: asyncio.Server | None = None
        self._check: asyncio.TimerHandle | None = None

    @property
    def url(self) -> str:
        """Its address for a client on this machine, for example `http://127.0.0.1:9324`."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104 - compared
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._shared.connections) if self._shared is not None else 0

    async def start(self) -> None:
        """Listen; after this, `port` and `url` are the real ones.

        Raises:
            UsageError: the port is taken or may not be used, or the host is not one of this machine's.
        """
        loop = asyncio.get_running_loop()
        shared = self._shared = ServerConnections(
            self._handler, date=Dates(self._clock).now, bounds=self._bounds, loop=loop
        )
        try:
            self._server = await loop.create_server(lambda: Connection(shared), self.host, self.port, backlog=_BACKLOG)
        except OSError as error:
            raise _unusable(self.host, self.port, error) from error
        self.port = self._server.sockets[0].getsockname()[1]
        self._check_idle()

    def _check_idle(self) -> None:
        assert self._shared is not None
        loop = self._shared.loop
        for connection in tuple(self._shared.connections):
            connection.check_idle(loop.time())
        self._check = loop.call_later(min(self._bounds.idle_s, self._bounds.stalled_s) / _CHECKS, self._check_idle)

    def drain(self) -> None:
        """Accept no new connections, close idle ones at once and the others after their last answer."""
        if self._shared is None or self._server is None:
            return
        self._server.close()
        self._shared.draining = True
        for connection in tuple(self._shared.connections):
            connection.drain()

    async def stop(self, *, grace_s: float) -> None:
        """Drain, and wait until all clients have left; after `grace_s` seconds cut off the rest. Can be called twice.

        Whoever owns a wait for something other than the clients (a long poll) must end it after `drain`.
        """
        self.drain()
        shared, self._shared = self._shared, None
        if shared is None:
            return
        if self._check is not None:
            self._check.cancel()
        if shared.connections:
            shared.emptied.clear()
            try:
                await asyncio.wait_for(shared.emptied.wait(), grace_s)
            except TimeoutError:
                for connection in tuple(shared.connections):
                    connection.abort()
        left = tuple(shared.tasks)
        if left:
            _, late = await asyncio.wait(left, timeout=grace_s)
            for task in late:
                task.cancel()


def _unusable(host: str, port: int, error: OSError) -> errors.UsageError:
    if error.errno == errno.EADDRINUSE:
        return errors.UsageError(
            f"Port {port} of {host} is taken by another program.",
            meaning="Nothing was started.",
            todo="End that program, or choose another port with --port; --port 0 takes a free one.",
        )
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return errors.UsageError(
            f"{host!r} is not an address of this machine.", todo="Use 127.0.0.1, or 0.0.0.0 for all addresses."
        )
    return errors.UsageError(f"{host}:{port} cannot be used: {error.strerror or error}.", todo="Choose another.")
