"""Bytes on a socket: bounds of size and time, order, hang-ups, odd clients, the end of a server. The handler is a stub."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from onefold import errors
from onefold.local.connection import Bounds, HttpRequest, Response
from onefold.local.http_server import HttpServer
from onefold.manual_clock import ManualClock
from tests.wire.scenarios import scenario

PATIENCE_S = 60.0
PLAIN = ((b"content-type", b"text/plain"),)


class Stub:
    """Echoes; `/wait` waits until `let_go`, `/defect` raises, `/drop` answers nothing."""

    def __init__(self) -> None:
        self.seen: list[HttpRequest] = []
        self.begun = asyncio.Event()
        self.let_go = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.failures: list[Exception] = []

    async def handle(self, request: HttpRequest) -> Response | None:
        self.seen.append(request)
        if request.path == "/wait":
            request.abandoned = True
            self.begun.set()
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        if request.path == "/defect":
            raise RuntimeError("a defect")
        if request.path == "/drop":
            return None
        if request.path == "/inject":
            return Response(200, b"", ((b"x-name", request.header(b"x-value").encode() + b"\r\nx-other: 1"),))
        if request.path == "/large":
            return Response(200, b"x" * 8_000_000, PLAIN)
        return Response(200, request.path.encode() + b" " + request.body, PLAIN, "id-1")

    def refused(self, status: int, why: str) -> Response:
        return Response(status, why.encode(), PLAIN)

    def failed(self, request: HttpRequest, error: Exception) -> Response:
        self.failures.append(error)
        return Response(500, b"failed", PLAIN)


class Client:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, dict[bytes, bytes], bytes]:
        """The next answer: status, fields, body."""
        async with asyncio.timeout(PATIENCE_S):
            line, *fields = (await self.reader.readuntil(b"\r\n\r\n")).strip().split(b"\r\n")
            headers = dict(field.split(b": ", 1) for field in fields)
            body = await self.reader.readexactly(int(headers.get(b"content-length", b"0")))
        return int(line.split()[1]), headers, body

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    def close(self) -> None:
        self.writer.close()


class Rig:
    def __init__(self, server: HttpServer, stub: Stub) -> None:
        self.server, self.stub = server, stub
        self.clients: list[Client] = []

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.server.port))
        self.clients.append(client)
        return client


@asynccontextmanager
async def running(bounds: Bounds | None = None) -> AsyncIterator[Rig]:
    stub = Stub()
    server = HttpServer(stub, host="127.0.0.1", port=0, clock=ManualClock(1_767_225_600_000), bounds=bounds)
    await server.start()
    rig = Rig(server, stub)
    try:
        yield rig
    finally:
        stub.let_go.set()
        for client in rig.clients:
            client.writer.transport.abort()
        await server.stop(grace_s=1)


def post(path: bytes, body: bytes = b"", more: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (path, more, len(body), body)


# ------------------------------------------------------------------------------------------------------------ answers


@scenario
async def test_answers_with_what_every_answer_has() -> None:
    async with running() as rig:
        client = await rig.client()
        client.send(post(b"/a?b=c", b"hello"))
        status, headers, body = await client.answer()
        assert (status, body) == (200, b"/a hello")
        assert headers == {
            b"connection": b"keep-alive",
            b"content-type": b"text/plain",
            b"date": b"Thu, 01 Jan 2026 00:00:00 GMT",
            b"x-amzn-requestid": b"id-1",
            b"content-length": b"8",
        }
        assert rig.stub.seen[0].query == "b=c"
        assert rig.stub.seen[0].headers[b"host"] == b"x"


@scenario
async def test_pipelined_requests_are_answered_in_order() -> None:
    async with running() as rig:
        client = await rig.client()
        client.send(post(b"/wait") + b"".join(post(b"/%d" % number) for number in range(100)))
        async with asyncio.timeout(PATIENCE_S):
            await rig.stub.begun.wait()
        rig.stub.let_go.set()
        bodies = [(await client.answer())[2] for _ in range(101)]
        assert bodies == [b"/wait ", *(b"/%d " % number for number in range(100))]


@scenario
async def test_a_request_may_come_byte_by_byte() -> None:
    async with running() as rig:
        client = await rig.client()
        for byte in post(b"/slow", b"body", b"X-Twice: 1\r\nX-Twice: 2\r\n"):
            client.send(bytes([byte]))
            await client.writer.drain()
        assert (await client.answer())[2] == b"/slow body"
        assert rig.stub.seen[0].headers[b"x-twice"] == b"1,2"


@scenario
async def test_chunked_bodies_are_put_together_and_their_trailers_left_out() -> None:
    async with running() as rig:
        client = await rig.client()
        client.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.send(b"3\r\nabc\r\n2\r\nde\r\n0\r\nHost: other\r\n\r\n")
        assert (await client.answer())[2] == b"/ abcde"
        assert rig.stub.seen[0].headers[b"host"] == b"x"


@scenario
async def test_expect_100_continue_is_answered_before_the_body() -> None:
    async with running() as rig:
        client = await rig.client()
        client.send(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert (await client.answer())[0] == 100
        client.send(b"ok")
        assert (await client.answer())[2] == b"/ ok"


@scenario
async def test_http_1_0_is_closed_unless_it_asks_for_more() -> None:
    async with running() as rig:
        client = await rig.client()
        client.send(b"GET /one HTTP/1.0\r\n\r\n")
        said = await client.rest()
        assert b"connection: close" in said
        assert said.endswith(b"/one ")
        client = await rig.client()
        client.send(b"GET /one HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert (await client.answer())[1][b"connection"] == b"keep-alive"
        client.send(b"GET /two HTTP/1.0\r\n\r\n")
        assert (await client.rest()).endswith(b"/two ")


@scenario
async def test_connection_close_and_head() -> None:
    async with running() as rig:
        client = await rig.client()
        client.send(b"HEAD /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        said = await client.rest()
        assert b"content-length: 3\r\n" in said
        assert said.endswith(b"\r\n\r\n")


@scenario
async def test_an_offer_to_upgrade_is_ignored() -> None:
    """Java's and curl's clients offer HTTP/2 so; the request is answered in HTTP/1.1, and so is the one behind it."""
    async with running() as rig:
        client = await rig.client()
        offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
        client.send(post(b"/a", b"1", offer) + post(b"/b", b"2"))
        assert [(await client.answer())[2] for _ in range(2)] == [b"/a 1", b"/b 2"]


@scenario
async def test_a_proxys_form_of_the_target_is_taken() -> None:
    async with running() as rig:
        client = await rig.client()
        client.send(b"GET http://sqs.example:9324/queue?Action=x HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.answer())[2] == b"/queue "
        assert rig.stub.seen[0].query == "Action=x"


# ------------------------------------------------------------------------------------------------------------- bounds


@scenario
async def test_a_body_that_is_announced_too_long_is_refused_at_once() -> None:
    async with running(Bounds(body_bytes=1_000)) as rig:
        client = await rig.client()
        client.send(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n")
        status, headers, _ = await client.answer()
        assert (status, headers[b"connection"]) == (413, b"close")
        assert rig.stub.seen == []


@scenario
async def test_the_answer_arrives_although_the_client_is_still_sending() -> None:
    async with running(Bounds(body_bytes=1_000, linger_s=0.3)) as rig:
        client = await rig.client()
        client.send(post(b"/", b"x" * 20_000_000))
        assert (await client.answer())[0] == 413
        assert await client.rest() == b""


@scenario
async def test_a_chunked_body_too_long_is_refused() -> None:
    async with running(Bounds(body_bytes=1_000)) as rig:
        client = await rig.client()
        client.send(
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1f4\r\n%b\r\n" % (b"x" * 500) * 3
        )
        assert (await client.answer())[0] == 413
        assert rig.stub.seen == []


@pytest.mark.parametrize(
    "rest",
    [
        b"0\r\nX-Endless: " + b"a" * 1_000_000,
        b"0\r\n" + b"X-A: b\r\n" * 100_000,
        b"2;" + b"a" * 1_000_000,
        b"2\r\nab\r\n" * 1_000 + b"0\r\nX: " + b"a" * 1_000_000,
    ],
    ids=["one trailer", "many trailers", "chunk extension", "after many chunks"],
)
def test_what_comes_with_a_chunked_body_is_bounded(rest: bytes) -> None:
    async def story() -> None:
        async with running() as rig:
            client = await rig.client()
            client.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n" + rest)
            assert (await client.answer())[0] == 431
            assert rig.stub.seen == []

    scenario(story)()


@pytest.mark.parametrize(
    "head",
    [
        b"X-Long: " + b"a" * 70_000 + b"\r\n",
        b"".join(b"X-%d: a\r\n" % number for number in range(101)),
        b"X-Endless: " + b"a" * 1_000_000,
    ],
)
def test_a_head_too_long_is_refused(head: bytes) -> None:
    async def story() -> None:
        async with running() as rig:
            client = await rig.client()
            client.send(b"GET / HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n")
            assert (await client.answer())[0] == 431
            assert rig.stub.seen == []

    scenario(story)()


@pytest.mark.parametrize("sent", [b"GET / HT", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab"])
def test_a_slow_request_is_given_up(sent: bytes) -> None:
    async def story() -> None:
        async with running(Bounds(request_s=0.05, linger_s=0.01)) as rig:
            client = await rig.client()
            client.send(sent)
            assert (await client.answer())[0] == 408
            assert await client.rest() == b""
            assert rig.stub.seen == []

    scenario(story)()


@scenario
async def test_an_idle_connection_is_closed_and_one_that_waits_for_its_answer_is_not() -> None:
    async with running(Bounds(idle_s=0.05)) as rig:
        waiting, idle = await rig.client(), await rig.client()
        waiting.send(post(b"/wait"))
        idle.send(post(b"/a"))
        assert (await idle.answer())[0] == 200
        assert await idle.rest() == b""
        rig.stub.let_go.set()
        assert (await waiting.answer())[0] == 200


@scenario
async def test_a_client_that_does_not_read_is_cut_off() -> None:
    async with running(Bounds(stalled_s=0.05)) as rig:
        client = await rig.client()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport that can
        client.send(post(b"/large") * 4)
        async with asyncio.timeout(PATIENCE_S):
            while rig.server.connections or not rig.stub.seen:
                await turn()
        assert len(rig.stub.seen) < 4


@scenario
async def test_of_many_that_do_not_read_those_who_began_first_are_cut_off() -> None:
    async with running(Bounds(held_bytes=20_000_000)) as rig:
        shared = rig.server._shared
        assert shared is not None
        clients = [await rig.client() for _ in range(10)]
        for number, client in enumerate(clients):
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport that can
            client.send(post(b"/large"))
            async with asyncio.timeout(PATIENCE_S):
                while len(rig.stub.seen) <= number:
                    await turn()
            assert shared.unread_bytes <= 20_000_000
        assert 1 < len(shared.connections) < 5
        other = await rig.client()
        other.send(post(b"/after"))
        assert (await other.answer())[2] == b"/after "
        clients[-1].writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len((await clients[-1].answer())[2]) == 8_000_000
        for client in clients:
            client.close()
        async with asyncio.timeout(PATIENCE_S):
            while shared.unread_bytes:
                await turn()


async def turn() -> None:
    """One turn of the loop, a little later."""
    passed = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.005, passed.set_result, None)
    await passed


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX : 1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_not_http_is_refused_and_the_server_goes_on(sent: bytes) -> None:
    async def story() -> None:
        async with running(Bounds(linger_s=0.01)) as rig:
            client = await rig.client()
            client.send(post(b"/before") + sent)
            assert (await client.answer())[2] == b"/before "
            assert (await client.answer())[0] == 400
            assert await client.rest() == b""
            other = await rig.client()
            other.send(post(b"/after"))
            assert (await other.answer())[2] == b"/after "

    scenario(story)()


# ---------------------------------------------------------------------------------------------- hang-ups and defects


@scenario
async def test_a_client_that_hangs_up_ends_what_waits_for_it() -> None:
    async with running() as rig:
        client = await rig.client()
        client.send(post(b"/wait"))
        async with asyncio.timeout(PATIENCE_S):
            await rig.stub.begun.wait()
            client.close()
            await rig.stub.cancelled.wait()
        assert rig.stub.seen[0].gone


@scenario
async def test_a_defect_is_answered_and_the_connection_goes_on() -> None:
    async with running() as rig:
        client = await rig.client()
        client.send(post(b"/defect"))
        assert (await client.answer())[::2] == (500, b"failed")
        assert [str(error) for error in rig.stub.failures] == ["a defect"]
        client.send(post(b"/a"))
        assert (await client.answer())[0] == 200


@scenario
async def test_no_answer_closes_the_connection() -> None:
    async with running() as rig:
        client = await rig.client()
        client.send(post(b"/drop"))
        assert await client.rest() == b""


@scenario
async def test_a_header_that_would_end_its_line_is_never_written() -> None:
    async with running() as rig:
        client = await rig.client()
        client.send(post(b"/inject", more=b"X-Value: 1\r\n"))
        status, headers, _ = await client.answer()
        assert status == 500
        assert b"x-other" not in headers


# ------------------------------------------------------------------------------------------------------------ the end


@scenario
async def test_a_stop_finishes_what_is_in_hand_and_takes_nothing_new() -> None:
    async with running() as rig:
        busy, idle = await rig.client(), await rig.client()
        busy.send(post(b"/wait") + post(b"/never"))
        idle.send(post(b"/a"))
        await idle.answer()
        async with asyncio.timeout(PATIENCE_S):
            await rig.stub.begun.wait()
        rig.server.drain()
        assert await idle.rest() == b""
        with pytest.raises(OSError, match=r"refused|reset|Connect"):
            await rig.client()
        rig.stub.let_go.set()
        status, headers, body = await busy.answer()
        assert (status, body, headers[b"connection"]) == (200, b"/wait ", b"close")
        assert await busy.rest() == b""
        await rig.server.stop(grace_s=PATIENCE_S)
        assert {request.path for request in rig.stub.seen} == {"/a", "/wait"}


@scenario
async def test_a_stop_cuts_off_who_does_not_leave() -> None:
    async with running() as rig:
        client = await rig.client()
        client.send(post(b"/wait"))
        async with asyncio.timeout(PATIENCE_S):
            await rig.stub.begun.wait()
            await rig.server.stop(grace_s=0.01)
        assert rig.stub.cancelled.is_set()


@scenario
async def test_a_taken_port_is_said() -> None:
    async with running() as rig:
        other = HttpServer(Stub(), host="127.0.0.1", port=rig.server.port, clock=ManualClock())
        with pytest.raises(errors.UsageError, match="is taken by another program"):
            await other.start()
        foreign = HttpServer(Stub(), host="192.0.2.1", port=0, clock=ManualClock())
        with pytest.raises(errors.UsageError, match="not an address of this machine"):
            await foreign.start()


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:9324"), ("0.0.0.0", "http://127.0.0.1:9324"), ("::1", "http://[::1]:9324")],
)
def test_the_url_is_one_that_a_client_here_can_use(host: str, url: str) -> None:
    assert HttpServer(Stub(), host=host, port=9324, clock=ManualClock()).url == url


@scenario
async def test_small_requests_sent_ahead_are_no_long_head() -> None:
    async with running() as rig:
        client = await rig.client()
        requests = b"".join(post(b"/%d" % number) for number in range(2_000))
        assert len(requests) > Bounds().head_bytes
        client.send(requests[:-10])  # the last one has begun, and is not complete
        for number in range(1_999):
            assert (await client.answer())[2] == b"/%d " % number
        client.send(requests[-10:])
        assert (await client.answer())[::2] == (200, b"/1999 ")


@scenario
async def test_a_long_head_behind_a_small_request_is_refused() -> None:
    async with running() as rig:
        client = await rig.client()
        client.send(post(b"/a") + b"GET / HTTP/1.1\r\nX-Endless: " + b"a" * 2_000_000)
        assert (await client.answer())[::2] == (200, b"/a ")
        assert (await client.answer())[0] == 431


@scenario
async def test_long_bodies_of_all_clients_are_bounded_together() -> None:
    async with running(Bounds(body_bytes=1_000_000, held_bytes=1_500_000, linger_s=0.01)) as rig:
        first, second = await rig.client(), await rig.client()
        first.send(post(b"/wait", b"x" * 1_000_000))
        await rig.stub.begun.wait()
        second.send(post(b"/a", b"x" * 1_000_000))
        assert (await second.answer())[0] == 503
        rig.stub.let_go.set()
        assert (await first.answer())[0] == 200
        for body in (b"x" * 1_000_000, b"x" * 999_999):  # what was answered, or refused, holds nothing any more
            client = await rig.client()
            client.send(post(b"/a", body))
            assert (await client.answer())[0] == 200
        gone = await rig.client()
        gone.send(post(b"/b", b"x" * 1_000_000)[:-1])
        gone.send(b"x")
        gone.close()
        first.send(post(b"/c", b"y" * 1_000_000) * 2)  # the second of one client is read when the first is answered
        for _ in range(2):
            assert (await first.answer())[0] == 200


@scenario
async def test_requests_behind_another_are_bounded_together_however_short() -> None:
    async with running(Bounds(held_bytes=1_500_000, linger_s=0.01)) as rig:
        shared = rig.server._shared
        assert shared is not None
        clients = [await rig.client() for _ in range(8)]
        for number, client in enumerate(clients):
            client.send(post(b"/wait") + post(b"/a", b"x" * 60_000) * 10)
            async with asyncio.timeout(PATIENCE_S):
                while len(rig.stub.seen) <= number or not (
                    shared.held_bytes > 600_000 * (number + 1) or client_is_refused(rig)
                ):
                    await turn()
            assert shared.held_bytes < 1_500_000
        rig.stub.let_go.set()
        answers = [(await clients[-1].answer())[0] for _ in range(2)]
        assert answers == [200, 503]
        assert [(await clients[0].answer())[0] for _ in range(11)] == [200] * 11
        for client in clients:
            client.close()
        async with asyncio.timeout(PATIENCE_S):
            while shared.held_bytes:
                await turn()


def client_is_refused(rig: Rig) -> bool:
    """The newest connection whose first request is handled has been refused the rest."""
    shared = rig.server._shared
    assert shared is not None
    return sum(one._refused for one in shared.connections) >= len(rig.stub.seen) - 2


@scenario
async def test_very_many_requests_without_bodies_behind_another_are_bounded() -> None:
    async with running(Bounds(held_bytes=1_500_000, linger_s=0.01)) as rig:
        client, other = await rig.client(), await rig.client()
        client.send(post(b"/wait") + b"GET / HTTP/1.1\r\n\r\n" * 5_000)
        await rig.stub.begun.wait()
        other.send(post(b"/b", b"x" * 1_000))  # alone on its connection: taken
        assert (await other.answer())[0] == 200
        rig.stub.let_go.set()
        answered = 0
        while (await client.answer())[0] == 200:
            answered += 1
        assert 0 < answered < 1_600


@scenario
async def test_a_body_in_pieces_of_two_bytes_takes_no_more_room_than_its_bytes() -> None:
    async with running() as rig:
        client = await rig.client()
        client.send(b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"2\r\nab\r\n" * 50_000)
        shared = rig.server._shared
        assert shared is not None
        async with asyncio.timeout(PATIENCE_S):
            while shared.held_bytes < 100_000:
                await turn()
        (connection,) = shared.connections
        assert sys.getsizeof(connection._body) < 150_000
        client.send(b"0\r\n\r\n")
        assert (await client.answer())[::2] == (200, b"/a " + b"ab" * 50_000)
        assert type(rig.stub.seen[0].body) is bytes
        assert shared.held_bytes == 0


@scenario
async def test_one_client_cannot_hold_many_long_bodies() -> None:
    async with running(Bounds(body_bytes=1_000_000, held_bytes=100_000_000)) as rig:
        client = await rig.client()
        client.send(post(b"/wait", b"x" * 1_000_000))
        await rig.stub.begun.wait()
        other = await rig.client()
        client.send(post(b"/a", b"x" * 900_000) * 8)
        other.send(post(b"/b"))
        assert (await other.answer())[0] == 200
        rig.stub.let_go.set()
        for _ in range(9):
            assert (await client.answer())[0] == 200
