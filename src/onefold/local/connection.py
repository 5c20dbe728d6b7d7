"""One HTTP/1.1 connection: bytes to requests, responses to bytes, in order, with limits on size and time.

The parser is llhttp (Node's, from httptools). A request reaches the handler when it is complete; requests that a client
pipelines wait here. The handler's answer is written in one piece. Sizes and times are bounded before anything is
kept: `Bounds`. A client that hangs up is noticed at once, even while its request is being handled.

Two measures make answers quick. Most requests are answered without waiting for anything, and creating, scheduling and
ending a task for each took a seventh of a send in memory: so `start_eagerly` runs a request inside its caller and makes
a task only if it must wait. And a client that sends its next request at once would find the server asleep, and waking
the process takes longer than most requests (40 us and more on a virtual machine): so after a response `BusyPoll` keeps
the loop polling its sockets for about that long.

Timeouts use the loop's real time, whatever clock the queues run on.
Never here: what a path means, AWS, JSON. Invariants: no unchecked byte of a request gets into a response's header;
responses are sent in the order of requests; a request whose handling has begun is handled to the end; a loop without
requests sleeps.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import lru_cache
from http import HTTPStatus
from types import coroutine
from typing import Any, Final, Protocol, cast

from msgspec import Struct

POLL_TURNS: Final = 100  # turns of an idle loop, about a microsecond each
POLL_REST_MIN: Final = 16  # answers without a busy poll after one that was in vain
POLL_REST_MAX: Final = 1_024
_LONG_BYTES = 64 * 1024  # bodies above this count for `held_bytes`; shorter ones only while they wait behind another
_REQUEST_BYTES = 1024  # memory of a request besides its head and body
_CHUNK_BYTES = 8  # room for the length of a chunk and its line ends
_MAX_AHEAD = 16  # complete requests of one client that may wait before its socket is no longer read
_NAME = re.compile(rb"[A-Za-z0-9-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


# -- the loop ----------------------------------------------------------------------------------------------------------


def start_eagerly(run: Coroutine[Any, None, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
    """Run until the end, or until it waits; then return a task for the rest, which must not be cancelled in this turn.

    Raises:
        Exception: whatever `run` raised before it waited.
    """
    try:
        waits_for = run.send(None)
    except StopIteration:
        return None
    return loop.create_task(_go_on(run, waits_for))


async def _go_on(run: Coroutine[Any, None, None], waits_for: Any) -> None:
    await _rest(run, waits_for)  # a task needs a coroutine; since Python 3.12 a generator is not one


@coroutine
def _rest(run: Coroutine[Any, None, None], waits_for: Any) -> Generator[Any, None, None]:
    """The rest of a coroutine that is waiting for something."""
    try:
        while True:
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - it is the coroutine's, for instance a cancel
                waits_for = run.throw(error)
            else:
                waits_for = run.send(None)
    except StopIteration:
        return


class BusyPoll:
    """Busy polling of one loop after an answer.

    Args:
        loop: the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = 0  # turns left in the current busy poll
        self._rest = 0  # answers until the next busy poll
        self._rest_next = POLL_REST_MIN

    def answered(self) -> None:
        """A request was answered, and another one may follow."""
        if self._left:  # it came in time
            self._left = POLL_TURNS
            self._rest_next = POLL_REST_MIN
        elif self._rest:
            self._rest -= 1
        else:
            self._left = POLL_TURNS
            self._loop.call_soon(self._read_more)

    def _read_more(self) -> None:
        self._left -= 1
        if self._left:
            self._loop.call_soon(self._read_more)
        else:
            self._rest = self._rest_next
            self._rest_next = min(2 * self._rest_next, POLL_REST_MAX)


# -- requests and answers ----------------------------------------------------------------------------------------------


class Bounds(Struct, frozen=True, kw_only=True):
    """Limits for clients.

    Args:
        body_bytes: the size of one request's body; a larger one is answered 413. SQS accepts 1 MiB, which is 6 MiB if each
            character is escaped, or 8 as escaped base64; Lambda accepts 6 MiB.
        held_bytes: the size of all clients' long bodies, and of requests of any length that wait behind another of
            their client; above it, requests are answered 503, and SDKs try again. The same bound holds for answers that
            clients have not read; above it, the client that has not read for the longest is disconnected.
        connections: how many clients can be connected at one time; one more is disconnected.
        head_bytes: of request line and header fields, and of the trailers of a chunked body; more is answered 431.
        head_fields: how many header fields.
        request_s: seconds from a request's first byte to its last; a slower one is answered 408.
        idle_s: seconds between two requests; longer than SDKs keep an idle connection, so that they close it, not we.
        stalled_s: seconds for which a client may leave an answer unread.
        linger_s: seconds for which the rest of a refused request is read and discarded, so that its answer arrives.
    """

    body_bytes: int = 10 * 1024 * 1024
    held_bytes: int = 256 * 1024 * 1024
    connections: int = 5_000
    head_bytes: int = 64 * 1024
    head_fields: int = 100
    request_s: float = 30.0
    idle_s: float = 120.0
    stalled_s: float = 60.0
    linger_s: float = 2.0


class HttpRequest:
    """One complete request.

    Attributes:
        method: for example `POST`.
        path: as sent, percent-encoding included; begins with `/`.
        query: the part after the question mark, as sent; may be empty.
        headers: names in lower case; the values of a repeated field are joined by commas.
        body: the whole body.
        keep_alive: the client asks to keep the connection.
        gone: the client has hung up.
        abandoned: set by the handler: stop handling (an asyncio cancel) if the client hangs up.
        held_bytes: its part of `held_bytes` of all clients.
    """

    __slots__ = ("abandoned", "body", "gone", "headers", "held_bytes", "keep_alive", "method", "path", "query")

    def __init__(self, method: str, path: str, query: str, headers: dict[bytes, bytes], body: bytes) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.body = body
        self.keep_alive = True
        self.gone = False
        self.abandoned = False
        self.held_bytes = 0

    def header(self, name: bytes) -> str:
        """A header field as text; empty if it was not sent."""
        return self.headers.get(name, b"").decode("latin-1")


class Response(Struct, frozen=True, gc=False):
    """One answer.

    Args:
        status: HTTP's.
        body: may be empty.
        headers: those besides Date, Content-Length and Connection. The bytes of a repeated tuple are cached.
        request_id: the value of `x-amzn-requestid`; empty if there is none, or if it is one of `headers`.
    """

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    request_id: str = ""


class HttpHandler(Protocol):
    """What answers requests."""

    async def handle(self, request: HttpRequest) -> Response | None:
        """The answer; None closes the connection without one."""
        ...

    def refused(self, status: int, why: str) -> Response:
        """The answer to a request that is refused before it is handled: 400, 408, 413, 431 or 503."""
        ...

    def failed(self, request: HttpRequest, error: Exception) -> Response:
        """The answer to a request whose handling raised `error`: a bug in onefold."""
        ...


class ServerConnections:
    """The connections of one server, and what they share.

    Args:
        handler: answers requests.
        date: returns the present value of the Date header.
        bounds: the limits for clients.
        loop: their event loop.
    """

    def __init__(
        self, handler: HttpHandler, *, date: Callable[[], bytes], bounds: Bounds, loop: asyncio.AbstractEventLoop
    ) -> None:
        import httptools  # comes with the extra `serve`

        self.httptools: Any = httptools
        self.handler = handler
        self.date = date
        self.bounds = bounds
        self.loop = loop
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.busy_poll = BusyPoll(loop)
        self.draining = False
        self.held_bytes = 0  # of requests that have come, or are coming, and are not yet answered: see `Bounds`
        self.unread_bytes = 0  # of answers that their clients have not read yet
        self.emptied = asyncio.Event()

    def make_room(self) -> None:
        """Disconnect the clients with the longest unread answers until the unread total is small enough."""
        while self.unread_bytes > self.bounds.held_bytes:
            unread = [(one.stalled_at, one) for one in self.connections if one.stalled_at is not None]
            min(unread, key=lambda pair: pair[0])[1].abort()

    def remove(self, connection: Connection) -> None:
        """Remove a connection that has ended."""
        self.connections.discard(connection)
        if not self.connections:
            self.emptied.set()


class Connection(asyncio.Protocol):
    """One client's connection.

    Args:
        shared: what it shares with the others.
    """

    def __init__(self, shared: ServerConnections) -> None:
        self._shared = shared
        self._parser = self._shared.httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[HttpRequest | Response] = deque()  # a Response is a refusal, which ends the connection
        self._current: HttpRequest | None = None
        self._task: asyncio.Task[None] | None = None
        self._late: asyncio.TimerHandle | None = None
        self._arriving = False  # a request has begun and is not complete
        self._in_body = False
        self._refused = False
        self._paused = False
        self.stalled_at: float | None = None  # since when the client has not read
        self._unread_bytes = 0  # this connection's part of the total
        self.idle_at: float | None = shared.loop.time()
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._fields = self._read_bytes = self._body_bytes = self._chunks = self._head_held = 0
        self._completed = 0  # requests completed by the bytes that are being parsed
        self._held_bytes = 0  # this connection's part of the total
        self._body_held = 0  # of these, for the body that is coming
        self._body: bytes | bytearray = b""

    # ---------------------------------------------------------------------------------------------------- from the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)
        self._shared.connections.add(self)
        if self._shared.draining:
            transport.close()
        elif len(self._shared.connections) > self._shared.bounds.connections:
            self._transport.abort()  # without a response, because nobody would read it

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """The client has hung up, or we have closed: nobody waits for the request that is being handled."""
        self._transport = None
        self._refused = True
        self._waiting.clear()
        self._body, self._body_held = b"", 0
        self._hold(-self._held_bytes)
        self._count_unread(0)
        self._cancel_late()
        if self._current is not None:
            self._current.gone = True
            if self._current.abandoned and self._task is not None:
                self._shared.loop.call_soon(self._task.cancel)  # not in this turn: see `start_eagerly`
        self._shared.remove(self)

    def pause_writing(self) -> None:
        """The client does not read."""
        self.stalled_at = self._shared.loop.time()

    def resume_writing(self) -> None:
        """The client reads again."""
        self.stalled_at = None
        self._count_unread(0)
        self._next()

    def data_received(self, data: bytes) -> None:
        """Parse, and handle complete requests in order."""
        if self._refused:
            return
        rest = data
        self._completed = 0
        while rest:
            try:
                self._parser.feed_data(rest)
                break
            except self._shared.httptools.HttpParserUpgrade as offer:
                rest = self._declined(rest[offer.args[0] :])
            except self._shared.httptools.HttpParserError:
                self._refuse(400, "This is not HTTP/1.1.")
                break
        if self._arriving:
            self._check_arriving(len(data))
        elif self._late is not None:
            self._cancel_late()
        if self._current is None:
            self._next()

    def _declined(self, rest: bytes) -> bytes:
        """The bytes to parse after a request that offers another protocol, as curl and Java do: it comes without the offer.

        The parser stopped after the head, since the bytes after it could belong to the other protocol.
        """
        if self._parser.get_method() == b"CONNECT":
            self._refuse(400, "This is not a proxy.")
            return b""
        head = [self._parser.get_method() + b" " + self._url + b" HTTP/1.1"]
        head += [b"%b: %b" % field for field in self._headers.items() if field[0] not in (b"upgrade", b"connection")]
        self._parser = self._shared.httptools.HttpRequestParser(self)
        return b"\r\n".join(head) + b"\r\n\r\n" + rest

    def _check_arriving(self, count: int) -> None:
        if not self._completed:  # otherwise the bytes include other requests; this one counts from the next ones
            self._read_bytes += count
        if self._read_bytes - self._body_bytes > self._shared.bounds.head_bytes + _CHUNK_BYTES * self._chunks:
            self._refuse(431, "The request's head is too long." if not self._in_body else "Its trailers are too long.")
            return
        if self._late is None:
            self._late = self._shared.loop.call_later(
                self._shared.bounds.request_s, self._refuse, 408, "The request did not arrive in time."
            )

    def _cancel_late(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    # ---------------------------------------------------------------------------------------------------- from the parser

    def on_message_begin(self) -> None:
        """A request begins."""
        self._arriving, self._in_body = True, False
        self.idle_at = None
        self._url, self._headers, self._body = b"", {}, b""
        self._fields = self._read_bytes = self._body_bytes = self._chunks = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the request's target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header field, or a trailer after a chunked body, which is ignored."""
        if self._in_body:
            return
        self._fields += 1
        if self._fields > self._shared.bounds.head_fields:
            return
        name = name.lower()
        if name in self._headers:
            value = self._headers[name] + b"," + value
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        """The head has arrived: refuse a request that is too large before its body comes."""
        self._in_body = True
        headers, bounds = self._headers, self._shared.bounds
        self._head_held = len(self._url) + sum(map(len, headers)) + sum(map(len, headers.values()))
        if self._head_held > bounds.head_bytes or self._fields > bounds.head_fields:
            self._refuse(431, "The request's head is too long.")
        elif b"content-length" in headers and int(headers[b"content-length"]) > bounds.body_bytes:
            self._refuse(413, "The request's body is too long.")
        elif b"expect" in headers and headers[b"expect"].lower() == b"100-continue" and self._is_free():
            assert self._transport is not None
            self._transport.write(_CONTINUE)

    def _is_free(self) -> bool:
        return self._current is None and not self._waiting and self._transport is not None

    def on_chunk_header(self) -> None:
        """The length of a chunk has arrived."""
        self._chunks += 1

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        size = self._body_bytes = self._body_bytes + len(body)
        if size > self._shared.bounds.body_bytes:
            self._refuse(413, "The request's body is too long.")
        elif not self._refused:
            if not self._body:  # one piece, as usual; a list of tiny pieces would take 28 times their bytes
                self._body = body
            elif isinstance(self._body, bytearray):
                self._body += body
            else:
                self._body = bytearray(self._body) + body
            if size > _LONG_BYTES:
                self._hold(size - self._body_held)
                self._body_held = size
                self._refuse_if_too_many()

    def _refuse_if_too_many(self) -> bool:
        if self._shared.held_bytes > self._shared.bounds.held_bytes:
            self._refuse(503, "Too many long requests are under way; try again.")
        return self._refused

    def _hold(self, count: int) -> None:
        self._held_bytes += count
        self._shared.held_bytes += count

    def _let_go(self, request: HttpRequest) -> None:
        """Free what an answered request held, unless it was freed when the client left."""
        if request.held_bytes and self._held_bytes:
            self._hold(-request.held_bytes)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._arriving = False
        self._completed += 1
        if self._refused or self._parser.should_upgrade():
            return
        path, _, query = self._url.decode("latin-1").partition("?")
        if not path.startswith("/"):  # a proxy's form, http://host/path
            path = "/" + path.partition("://")[2].partition("/")[2]
        if self._current is not None or self._waiting:  # it must wait, so all of it counts, however short it is
            held = self._head_held + self._body_bytes + _REQUEST_BYTES
            self._hold(held - self._body_held)
            self._body_held = held
            if self._refuse_if_too_many():
                return
        body = self._body if isinstance(self._body, bytes) else bytes(self._body)
        request = HttpRequest(self._parser.get_method().decode("ascii"), path, query, self._headers, body)
        request.keep_alive = self._parser.should_keep_alive()
        request.held_bytes = self._body_held
        self._body, self._body_held = b"", 0
        self._waiting.append(request)
        many = len(self._waiting) > _MAX_AHEAD or self._held_bytes > self._shared.bounds.body_bytes
        if many and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _refuse(self, status: int, why: str) -> None:
        """Refuse a request, after the current answer; nothing more is read from this client."""
        if self._refused:
            return
        self._refused = True
        self._hold(-self._body_held)
        self._body, self._body_held = b"", 0
        self._arriving = False
        self._cancel_late()
        self._waiting.append(self._shared.handler.refused(status, why))
        if self._current is None:
            self._next()

    # ---------------------------------------------------------------------------------------------------------- answering

    def _next(self) -> None:
        """Handle the next request, unless one is being handled or the client does not read."""
        if self._transport is None or self._current is not None or self.stalled_at is not None:
            return
        few = len(self._waiting) <= _MAX_AHEAD // 2 and self._held_bytes <= self._shared.bounds.body_bytes
        if self._paused and few:
            self._paused = False
            self._transport.resume_reading()
        if self._waiting:
            one = self._waiting.popleft()
            if isinstance(one, Response):
                self._write(one, keep_alive=False)
                self._shared.loop.call_later(self._shared.bounds.linger_s, self.close)
                return
            self._current = one
            loop, handling = self._shared.loop, self._handle(one)
            # Pipelined requests are not handled in one go: other clients have their turn in between.
            task = loop.create_task(handling) if self._waiting else start_eagerly(handling, loop)
            if task is not None:
                self._task = task
                self._shared.tasks.add(task)
                task.add_done_callback(self._shared.tasks.discard)
        elif self._shared.draining:
            self.close()
        elif not self._arriving:
            self.idle_at = self._shared.loop.time()

    async def _handle(self, request: HttpRequest) -> None:
        answer: Response | None = None
        try:
            answer = await self._shared.handler.handle(request)
        except Exception as error:  # noqa: BLE001 - the last line of defence: the server survives a bug
            answer = self._shared.handler.failed(request, error)
        finally:
            self._current = self._task = None
            self._let_go(request)
            if self._transport is not None:
                self._answer(request, answer)

    def _answer(self, request: HttpRequest, answer: Response | None) -> None:
        assert self._transport is not None
        if answer is None:
            self._transport.abort()
            return
        keep_alive = request.keep_alive and not self._shared.draining
        bodiless = request.method == "HEAD"
        try:
            self._write(answer, keep_alive=keep_alive, bodiless=bodiless)
        except ValueError as error:  # nothing was written yet
            self._write(self._shared.handler.failed(request, error), keep_alive=keep_alive, bodiless=bodiless)
        if keep_alive:
            self._next()
        else:
            self.close()

    def _write(self, answer: Response, *, keep_alive: bool, bodiless: bool = False) -> None:
        assert self._transport is not None
        head = _head(answer.status, answer.headers, keep_alive)
        length = b"" if answer.status == 204 else b"\r\ncontent-length: %d" % len(answer.body)
        name = b"\r\nx-amzn-requestid: " + answer.request_id.encode("ascii") if answer.request_id else b""
        body = b"" if bodiless or answer.status == 204 else answer.body
        self._shared.busy_poll.answered()
        self._transport.write(b"".join((head, self._shared.date(), name, length, b"\r\n\r\n", body)))
        if self.stalled_at is not None:
            self._count_unread(self._transport.get_write_buffer_size())
            self._shared.make_room()

    def _count_unread(self, count: int) -> None:
        self._shared.unread_bytes += count - self._unread_bytes
        self._unread_bytes = count

    # ------------------------------------------------------------------------------------------------------------ ending

    def drain(self) -> None:
        """Close now, or after the last answer."""
        if self._current is None and not self._waiting:
            self.close()

    def close(self) -> None:
        """Close once everything written has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; no more requests of this client are handled."""
        self._refused = True
        self._waiting.clear()
        self.stalled_at = None
        self._count_unread(0)
        if self._transport is not None:
            self._transport.abort()

    def check_idle(self, now: float) -> None:
        """Close a connection that is idle, or whose client does not read; called every few seconds."""
        bounds = self._shared.bounds
        if self.idle_at is not None and now - self.idle_at > bounds.idle_s:
            self.close()
        elif self.stalled_at is not None and now - self.stalled_at > bounds.stalled_s:
            self.abort()


@lru_cache(256)
def _head(status: int, headers: tuple[tuple[bytes, bytes], ...], keep_alive: bool) -> bytes:
    """Status line and fields up to the Date's value.

    Raises:
        ValueError: a name or value has characters that a header field must not have.
    """
    lines = [b"HTTP/1.1 %d %b" % (status, HTTPStatus(status).phrase.encode())]
    lines.append(b"connection: keep-alive" if keep_alive else b"connection: close")
    for name, value in headers:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"{name!r}: {value!r} is not a header field")
        lines.append(name + b": " + value)
    lines.append(b"date: ")
    return b"\r\n".join(lines)
