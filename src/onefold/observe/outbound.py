"""Calls to the outside, each within one deadline: a POST by HTTP, a mail by SMTP, a program.

The timeouts of `urllib`, `http.client` and `smtplib` apply to one read or write, so a server that sends a byte now and
then can hold a caller indefinitely. Here a thread shuts the connection at the deadline of the whole call: connecting,
TLS, request and answer together. Name resolution is not included; the system's resolver limits it.
Never here: what is sent, what is retried. Invariants: no call lasts longer than its deadline plus name resolution; only
a bounded number of bytes of an answer is kept; no redirect to another host is followed.
"""

from __future__ import annotations

import base64
import http.client
import os
import signal
import smtplib
import socket
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.message import EmailMessage, Message
from functools import partial
from typing import IO, Any, Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from onefold.clock import SystemClock
from onefold.interrupts import ignored, let_through
from onefold.threads import thread_beside

_ANSWER_BYTES_MAX: Final = 2_000  # of an HTTP body, which is read so that the server is not cut off
_REPLIES_BYTES_MAX: Final = 64 * 1024  # of all lines that a mail server sends
_HERE: Final = ("localhost", "127.0.0.1", "::1")  # hosts to which a connection cannot be overheard


class UnsafeServerError(Exception):
    """A password would have crossed the network in clear; nothing was sent."""


class TargetAnswer(NamedTuple):
    """What a server answered: its status, its header `Retry-After`, or an empty text, and the beginning of its body."""

    status: int
    retry_after: str
    body: bytes = b""


def url_parts(text: str, schemes: Sequence[str]) -> SplitResult | None:
    """The parts of a URL to which one can connect; None if it has another scheme, no host, or an impossible port.

    Args:
        schemes: those that are allowed.
    """
    try:
        parts = urlsplit(text)
        fits = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if fits and text.isascii() and text.isprintable() and " " not in text else None


class _Deadline:
    """Opens connections, and shuts them at the deadline.

    Args:
        timeout_s: seconds for everything, from now on.
    """

    def __init__(self, timeout_s: float) -> None:
        self._clock = SystemClock()
        self._timeout_ms = timeout_s * 1000
        self._until_ms = self._clock.monotonic_ms() + self._timeout_ms
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def left_s(self) -> float:
        """The seconds that are left.

        Raises:
            TimeoutError: there are none.
        """
        left_ms = self._until_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            raise TimeoutError("the time for the whole call is up")
        return left_ms / 1000

    def connect(self, address: tuple[str, int], *_: Any) -> socket.socket:
        """A connection to the first address of a host that accepts one, like `socket.create_connection`.

        Raises:
            OSError: no address does.
        """
        failure: OSError = OSError("the name has no address")
        for family, kind, protocol, _name, place in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
            made = socket.socket(family, kind, protocol)
            try:
                made.settimeout(self.left_s())
                made.connect(place)
                made.settimeout(self.left_s())
                with self._lock:
                    self._open.append(made.dup())  # a duplicate of it, because TLS takes over the original
            except OSError as error:
                made.close()
                let_through(error)
                failure = error
            else:
                return made
        raise failure

    def watch(self) -> None:
        """Shut the connections at the deadline."""
        if not self._clock.wait(self._ended, self._timeout_ms):
            with self._lock:
                for one in self._open:
                    with ignored(OSError):  # the server closed it first
                        one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the watch and close the connections, because the call has ended."""
        self._ended.set()
        with self._lock:
            while self._open:
                self._open.pop().close()


@contextmanager
def _deadline(timeout_s: float) -> Iterator[_Deadline]:
    one = _Deadline(timeout_s)
    with thread_beside("onefold-deadline", one.watch, one.close):
        yield one


# -- HTTP ------------------------------------------------------------------------------------------------------------


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: a report goes only to the host that was named."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


def _opened(kind: Callable[..., Any], deadline: _Deadline, host: str, **options: Any) -> Any:
    connection = kind(host, **options)
    connection._create_connection = deadline.connect  # noqa: SLF001 - both classes of http.client connect with it
    return connection


class _Plain(urllib.request.HTTPHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_opened, http.client.HTTPConnection, self._deadline), req)


class _Tls(urllib.request.HTTPSHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        context = ssl.create_default_context()
        return self.do_open(partial(_opened, http.client.HTTPSConnection, self._deadline, context=context), req)


def post(
    url: str, body: bytes, headers: Mapping[str, str], timeout_s: float, *, most: int = _ANSWER_BYTES_MAX
) -> TargetAnswer:
    """Send a POST, and read its answer.

    Args:
        url: one that `url_parts` accepts; a login in it is sent as Basic authentication. timeout_s: for everything.
        most: how many bytes of the answer's body to read.

    Raises:
        OSError, http.client.HTTPException, ValueError: no answer came, or not in time; the text may contain the URL.
    """
    parts = urlsplit(url)
    named = {**headers, "User-Agent": "onefold"}
    login, at, host = parts.netloc.rpartition("@")
    if at:
        named["Authorization"] = f"Basic {base64.b64encode(unquote(login).encode()).decode()}"
        url = urlunsplit(parts._replace(netloc=host))
    request = urllib.request.Request(url, data=body, headers=named, method="POST")  # noqa: S310 - its scheme was checked
    with _deadline(timeout_s) as deadline:
        opener = urllib.request.build_opener(_NoRedirect, _Plain(deadline), _Tls(deadline))
        try:
            with opener.open(request, timeout=timeout_s) as answer:
                status, found, read = answer.status, answer.headers, b""
                with ignored(OSError, http.client.HTTPException):  # the server has the report: its status said so
                    read = answer.read(most)
        except urllib.error.HTTPError as error:
            with error:
                status, found, read = error.code, error.headers, b""
    return TargetAnswer(status, _retry_after(found), read)


def _retry_after(headers: Message) -> str:
    return str(headers.get("Retry-After", ""))


# -- SMTP ------------------------------------------------------------------------------------------------------------


class _Replies:
    """The replies of a mail server, up to a number of bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._left = _REPLIES_BYTES_MAX

    def readline(self, size: int = -1) -> bytes:
        if self._left <= 0:
            raise OSError("the mail server says more than can be read")
        line = self._file.readline(size)
        self._left -= len(line)
        return line

    def close(self) -> None:
        self._file.close()


class _Smtp(smtplib.SMTP):
    """smtplib's client within a deadline."""

    deadline: _Deadline
    file: Any

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:  # noqa: ARG002 - smtplib's interface
        return self.deadline.connect((host, port))

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None and self.sock is not None:
            self.file = _Replies(self.sock.makefile("rb"))
        return super().getreply()


class _SmtpTls(smtplib.SMTP_SSL, _Smtp):
    """The same with TLS from the first byte."""


def mail(server: SplitResult, message: EmailMessage, timeout_s: float) -> int:
    """Send a mail, and return how many of its addresses the server refused while it accepted the others.

    Args:
        server: `smtp://` or `smtps://` with a host, and a login if one is needed. timeout_s: for everything.

    Raises:
        UnsafeServerError: there is a password, but no STARTTLS.
        OSError, smtplib.SMTPException: the server did not accept it.
    """
    host = server.hostname or ""
    checked = ssl.create_default_context()  # smtplib's own checks neither the certificate nor the name
    with _deadline(timeout_s) as deadline:
        # Given a host, the classes connect while they are made, before they could be given a deadline.
        client = _SmtpTls(timeout=timeout_s, context=checked) if server.scheme == "smtps" else _Smtp(timeout=timeout_s)
        client.deadline = deadline
        client._host = host  # type: ignore[attr-defined]  # noqa: SLF001 - the name that TLS checks
        try:
            code, said = client.connect(host, server.port or 0)
            if code != 220:
                raise smtplib.SMTPConnectError(code, said)
            client.ehlo_or_helo_if_needed()
            if server.scheme == "smtp" and client.has_extn("starttls"):
                client.starttls(context=checked)
            elif server.scheme == "smtp" and server.username and host not in _HERE:
                raise UnsafeServerError
            if server.username:
                client.login(unquote(server.username), unquote(server.password or ""))
            refused = client.send_message(message)
            with ignored(OSError, smtplib.SMTPException):  # the server has the mail, however the connection ends
                client.quit()
        finally:
            client.close()
    return len(refused)


def is_refusal(error: Exception) -> bool:
    """Whether a mail server refuses this for good, not only for now."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return all(code >= 500 for code, _ in error.recipients.values())
    if isinstance(error, smtplib.SMTPResponseException):
        return error.smtp_code >= 500
    return isinstance(error, smtplib.SMTPNotSupportedError)


# -- a program -------------------------------------------------------------------------------------------------------


def run(words: Sequence[str], given: bytes, environment: Mapping[str, str], timeout_s: float) -> int:
    """Run a program without a shell, and return its exit code.

    Args:
        given: its standard input. environment: its whole environment. timeout_s: after this, it and all that it started
            are killed.

    Raises:
        OSError: it cannot be run. subprocess.TimeoutExpired: it did not end in time.
    """
    with subprocess.Popen(  # noqa: S603 - the app's own command
        words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(environment),
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            process.communicate(given, timeout=timeout_s)
        except BaseException:
            with ignored(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode
