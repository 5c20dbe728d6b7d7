"""A proxy between an AWS client and a server that fails on purpose, at a seeded rate: for tests of code that calls AWS.

    with wire_faults("http://127.0.0.1:4566", rate=0.02, seed=7) as wire:
        client = boto3.client("sqs", endpoint_url=wire.url, ...)

It is a real HTTP server on loopback that forwards requests, so that every SDK, child process and container meets the
same faults. What can happen to a request:

    error      answered 500 InternalFailure; not applied
    throttle   answered ThrottlingException (400); not applied
    before     the connection ends without an answer; not applied
    after      applied, then the connection ends without an answer, so the client cannot know
    reset      like `after`, with a TCP reset

`latency_ms` delays every answer, as a network does. `calls` counts requests by action.
Never here: what a server answers. Invariant: a request is forwarded once or not at all.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Literal, get_args
from urllib.parse import parse_qs, urlsplit

from onefold import errors
from onefold.entropy import SeededEntropy

Fault = Literal["error", "throttle", "before", "after", "reset"]
FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)
_HOPS: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "expect"})
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER with a time of 0: close sends a reset
_TIMEOUT_S: Final = 60.0


class Wire:
    """One faulty proxy.

    Args:
        target: endpoint URL of the server behind it.
        rate: share of the requests that get a fault, 0 to 1.
        faults: the faults to inject, each with the same probability.
        latency_ms: added to every answer.
        seed: the same seed draws the same sequence of faults.

    Attributes:
        url: the endpoint for clients.
        calls: number of requests by action, for example `SendMessageBatch`.
        met: number of faults injected, by kind.

    Raises:
        UsageError: the rate is out of range, or a fault is unknown.
    """

    def __init__(self, target: str, rate: float, faults: Sequence[Fault], latency_ms: float, seed: int) -> None:
        if not 0 <= rate <= 1:
            raise errors.UsageError(f"rate={rate!r} is not a share of the requests.", todo="Use 0 to 1.")
        unknown = [fault for fault in faults if fault not in FAULTS]
        if unknown or not faults:
            raise errors.UsageError(f"{unknown!r} are not faults.", todo=f"They are {', '.join(FAULTS)}.")
        self.rate = rate
        self.latency_ms = latency_ms
        self.calls: Counter[str] = Counter()
        self.met: Counter[str] = Counter()
        self._faults = tuple(faults)
        self._entropy = SeededEntropy(seed)
        self._lock = threading.Lock()
        self._never = threading.Event()
        self._target = urlsplit(target)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url: str = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the proxy; open connections end too."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def draw(self, action: str) -> Fault | None:
        """Count a request, and return what happens to it."""
        with self._lock:
            self.calls[action] += 1
            if self._entropy.fraction() >= self.rate:
                return None
            fault = self._faults[int(self._entropy.fraction() * len(self._faults))]
            self.met[fault] += 1
            return fault

    def connect(self) -> http.client.HTTPConnection:
        """A connection to the server behind the proxy."""
        return http.client.HTTPConnection(self._target.hostname or "127.0.0.1", self._target.port, timeout=_TIMEOUT_S)

    def pause(self) -> None:
        """Wait for the latency that is set."""
        if self.latency_ms > 0:
            self._never.wait(self.latency_ms / 1000)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        wire = self

        class ProxyHandler(_Handler):
            pass

        ProxyHandler.wire = wire
        return ProxyHandler


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wire: Wire
    _behind: http.client.HTTPConnection | None = None

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Say nothing."""

    def _serve(self) -> None:
        body = self._body()
        wire = self.wire
        fault = wire.draw(self._action(body))
        wire.pause()
        if fault == "error":
            self._refuse(500, "InternalFailure", "The server failed on purpose.")
        elif fault == "throttle":
            self._refuse(400, "ThrottlingException", "Rate exceeded on purpose.")
        elif fault == "before":
            self.close_connection = True
        else:
            headers = [(name, value) for name, value in self.headers.items() if name.lower() not in _HOPS]
            answer = self._forward(headers, body)
            content = answer.read()
            if fault is None:
                self._pass_on(answer, content)
            else:
                self._hang_up(reset=fault == "reset")

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _serve  # noqa: N815 - http.server's names

    def _forward(self, headers: list[tuple[str, str]], body: bytes) -> http.client.HTTPResponse:
        """Get the answer of the server behind the proxy, on a connection that lives as long as the client's."""
        for last in (False, True):
            fresh, self._behind = self._behind is None, self._behind or self.wire.connect()
            try:
                self._behind.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in headers:
                    self._behind.putheader(name, value)
                self._behind.putheader("Content-Length", str(len(body)))
                self._behind.endheaders(body)
                return self._behind.getresponse()
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                self._behind.close()
                self._behind = None
                if fresh or last:  # only a kept connection that the server had closed has surely transferred nothing
                    raise
        raise AssertionError

    def finish(self) -> None:
        super().finish()
        if self._behind is not None:
            self._behind.close()

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _action(self, body: bytes) -> str:
        """The requested action: JSON protocols name it in a header, the query protocol in the body, S3 by method."""
        target = self.headers.get("X-Amz-Target")
        if target:
            return target.rpartition(".")[2]
        if b"Action=" in body[:2000]:
            return parse_qs(body.decode("utf-8", "replace")).get("Action", ["?"])[0]
        return self.command

    def _refuse(self, status: int, code: str, message: str) -> None:
        content = json.dumps({"__type": code, "message": message}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _pass_on(self, answer: http.client.HTTPResponse, content: bytes) -> None:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _HOPS:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _hang_up(self, *, reset: bool) -> None:
        self.close_connection = True
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            os.close(self.connection.detach())  # otherwise an orderly shutdown would come first


@contextmanager
def wire_faults(
    target: str, *, rate: float = 0.0, faults: Sequence[Fault] = FAULTS, latency_ms: float = 0.0, seed: int = 0
) -> Iterator[Wire]:
    """Run a faulty proxy in front of an endpoint until the end of the `with` block; arguments as `Wire`."""
    wire = Wire(target, rate, faults, latency_ms, seed)
    try:
        yield wire
    finally:
        wire.close()
