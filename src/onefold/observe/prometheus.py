"""Metrics for Prometheus: the exposition format, and a worker's small server for it, with `/healthz` and `/readyz`.

The server is the standard library's, on an address that the user names. On a loopback address it only answers requests
whose Host header names this machine, so that no page in a browser can read it under another name.
Never here: which metrics there are (`metrics.py`). Invariants: answering changes nothing; a failed reading is reported in
the answer, which still has the counters; however many clients there are and however slow, they take a bounded number of
threads, bytes and seconds, and a client that goes away leaves no line on standard error.
"""

from __future__ import annotations

import http.client
import ipaddress
import math
import socket
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from onefold import errors, limits
from onefold.clock import SystemClock
from onefold.interrupts import ignored
from onefold.observe.metrics import METRICS, Histogram, Metric, Sample

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_REQUEST_MS: Final = 5 * limits.SECOND_MS  # for a whole request, however slowly it comes, and again for the answer
_HEAD_BYTES_MAX: Final = 16 * 1024  # of request line and headers
CLIENTS_MAX: Final = 16  # at one time, each a thread; Prometheus is one client, and asks again after its interval
_BUSY: Final = (
    b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Type: text/plain\r\n\r\n"
    b"There are too many clients; ask again.\n"
)
_PORT_MAX: Final = 65_535
_WHOLE_DIGITS_MAX: Final = 6  # digits of a number that is written without an exponent
_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


def exposition(samples: Iterable[Sample]) -> bytes:
    """Samples in Prometheus's text format, with the same bytes as its client library, in a fraction of the time."""
    by_metric: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_metric[sample.metric.name].append(sample)
    lines: list[str] = []
    for name, metric in METRICS.items():
        if name in by_metric:
            text = metric.text.replace("\\", r"\\").replace("\n", r"\n")
            lines.append(f"# HELP {metric.prometheus} {text}\n# TYPE {metric.prometheus} {metric.instrument}\n")
            for sample in by_metric[name]:
                _write(lines, metric, sample)
    return "".join(lines).encode()


def _write(lines: list[str], metric: Metric, sample: Sample) -> None:
    labels, value, name = sample.labels, sample.value, metric.prometheus
    if len(labels) != len(metric.labels):
        said = dict(labels)
        labels = tuple((label, said.get(label, "")) for label in metric.labels)
    if not isinstance(value, Histogram):
        lines.append(f"{name}{_labels(labels)} {_number(value)}\n")
        return
    total = 0
    for bound, count in zip((*value.bounds, math.inf), value.counts, strict=True):
        total += count
        le = "+Inf" if bound == math.inf else str(float(bound))
        lines.append(f"{name}_bucket{_labels((*labels, ('le', le)))} {_number(total)}\n")
    lines.append(f"{name}_count{_labels(labels)} {_number(total)}\n{name}_sum{_labels(labels)} {_number(value.sum)}\n")


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    """`{job="book",queue="orders"}`, sorted by name; empty without labels."""
    parts = [f'{name}="{_escaped(text)}"' for name, text in sorted(labels)]
    return f"{{{','.join(parts)}}}" if parts else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    """A number as Go writes it: 1e+06 for a million."""
    if isinstance(value, int) and 0 <= value < 10**_WHOLE_DIGITS_MAX:
        return f"{value:d}.0"
    number = float(value)
    if not math.isfinite(number):
        return {math.inf: "+Inf", -math.inf: "-Inf"}.get(number, "NaN")
    text = repr(number)
    whole = text.find(".")
    if number > 0 and whole > _WHOLE_DIGITS_MAX:
        return f"{text[0]}.{text[1:whole]}{text[whole + 1 :]}".rstrip("0.") + f"e+{whole - 1:02d}"
    return text


def address_of(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, or of `:PORT` on the loopback address.

    Raises:
        UsageError: it is neither.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > _PORT_MAX:
        raise errors.UsageError(
            f"{text!r:.80} is not an address.", todo="Write HOST:PORT, for example 127.0.0.1:9400 or :9400."
        )
    return host.strip("[]") or "127.0.0.1", int(port)


class _Head:
    """Request line and headers of one connection, read within one deadline and up to a number of bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._clock = SystemClock()
        self._until_ms = self._clock.monotonic_ms() + _REQUEST_MS
        self._bytes = b""
        self._read = 0

    def readline(self, _size: int = -1) -> bytes:
        """The next line.

        Raises:
            TimeoutError: it did not come in time. HTTPException: the headers are too large.
        """
        while (end := self._bytes.find(b"\n") + 1) == 0:
            left_ms = self._until_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                raise TimeoutError
            self._connection.settimeout(left_ms / limits.SECOND_MS)
            some = self._connection.recv(4_096)
            self._read += len(some)
            if self._read > _HEAD_BYTES_MAX:
                raise http.client.HTTPException(f"more than {_HEAD_BYTES_MAX} bytes of headers")
            if not some:
                raise ConnectionResetError
            self._bytes += some
        line, self._bytes = self._bytes[:end], self._bytes[end:]
        return line

    def close(self) -> None:
        """Do nothing: the socket belongs to its handler."""


class _BoundedServer(ThreadingHTTPServer):
    """Answers a bounded number of clients at a time; others are refused at once."""

    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        self._free = threading.BoundedSemaphore(CLIENTS_MAX)
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if one is free."""
        if not self._free.acquire(blocking=False):
            with ignored(OSError):  # the client went away
                request.setblocking(False)
                request.send(_BUSY)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer it."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log our own defects, but not clients that go away or send something other than a request."""
        if not isinstance(sys.exception(), OSError | http.client.HTTPException):
            super().handle_error(request, client_address)


class MetricsServer:
    """Serves a worker's metrics and state until it is closed.

    Args:
        address: host and port; port 0 takes a free one.
        samples: returns all current metrics. trouble: returns a sentence about what keeps the worker from its work, or
            None.

    Attributes:
        url: the server's address.

    Raises:
        UsageError: it cannot listen on the address.
    """

    def __init__(
        self, address: tuple[str, int], samples: Callable[[], list[Sample]], trouble: Callable[[], str | None]
    ) -> None:
        is_local = _is_loopback(address[0])

        class MetricsHandler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def setup(self) -> None:
                super().setup()
                self.rfile = _Head(self.connection)  # type: ignore[assignment]  # only these two methods are called

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
                if is_local and host not in _HOSTS:
                    self._answer(403, b"This server answers requests to localhost only.\n")
                elif path == "/metrics":
                    try:
                        self._answer(200, exposition(samples()))
                    except errors.OnefoldError as error:
                        self._answer(503, f"{error.code}: the metrics cannot be read now.\n".encode())
                elif path == "/healthz":
                    self._answer(200, b"ok\n")
                elif path == "/readyz":
                    said = trouble()
                    self._answer(200 if said is None else 503, f"{said or 'ok'}\n".encode())
                else:
                    self._answer(404, b"There are /metrics, /healthz and /readyz.\n")

            def _answer(self, status: int, body: bytes) -> None:
                self.connection.settimeout(_REQUEST_MS / limits.SECOND_MS)  # for the whole of sendall
                self.send_response(status)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Do nothing: scrapes are not logged."""

        class Server(_BoundedServer):
            address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET

        try:
            self._server = Server(address, MetricsHandler)
        except OSError as error:
            raise errors.UsageError(
                f"Metrics cannot be served on {address[0]}:{address[1]}: {error.strerror}.",
                todo="Choose another address for --metrics, or end what listens there.",
            ) from None
        self.url: str = f"http://{_shown(address[0])}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="onefold-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
