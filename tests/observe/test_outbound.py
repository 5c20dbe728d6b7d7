"""Calls to servers of others: one deadline for the whole of each, whatever the other side does."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onefold import errors
from onefold.observe import alarm_targets
from onefold.observe.alarm_targets import environment_of, send
from onefold.options import AlarmTargets
from onefold.threads import thread_beside
from tests.emulators.servers import free_port
from tests.observe import receivers
from tests.observe.test_alarm_targets import NOW_MS, message

DRIPS = 400  # with a pause of 50 ms each: twenty seconds, after which a correct answer has come
PAUSE_S = 0.05


class Dripping:
    """Accepts connections and writes an answer to each, a byte at a time.

    Attributes:
        cut: set when the client went away before the end.
    """

    def __init__(self, answer: bytes, chunk: int, port: int) -> None:
        self.port = port
        self.cut = threading.Event()
        self.closed = threading.Event()
        self._answer, self._chunk = answer, chunk

    def serve(self, listening: socket.socket) -> None:
        while not self.closed.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                self._drip(connection)

    def _drip(self, connection: socket.socket) -> None:
        connection.settimeout(0.01)
        for first in range(0, len(self._answer), self._chunk):
            try:
                connection.sendall(self._answer[first : first + self._chunk])
                if connection.recv(65_536) == b"":
                    self.cut.set()
                    return
            except TimeoutError:
                pass
            except OSError:
                self.cut.set()
                return
            if self.closed.wait(PAUSE_S):
                return


@contextmanager
def dripping(answer: bytes, chunk: int = 1) -> Iterator[Dripping]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = Dripping(answer, chunk, listening.getsockname()[1])

        def stop() -> None:
            server.closed.set()
            listening.shutdown(socket.SHUT_RDWR)

        with thread_beside("dripping", lambda: server.serve(listening), stop):
            yield server


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm_targets, "TIMEOUT_S", 0.4)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_webhook_that_drips_its_headers_is_left_when_the_time_is_over(scheme: str) -> None:
    with dripping(b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * DRIPS + b"\r\nContent-Length: 0\r\n\r\n") as server:
        with pytest.raises(errors.TransientError, match="cannot be reached"):
            send(AlarmTargets(webhook=f"{scheme}://127.0.0.1:{server.port}/"), message("webhook"), NOW_MS)
        assert server.cut.wait(60)


@pytest.mark.slow
def test_a_webhook_that_drips_its_body_has_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm_targets, "TIMEOUT_S", 3)  # the server's thread answers within that, on a busy machine too
    body = b"x" * DRIPS
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    with dripping(answer + body, len(answer)) as server:
        send(AlarmTargets(webhook=f"http://127.0.0.1:{server.port}/"), message("webhook"), NOW_MS)
    refusal = answer.replace(b"200 OK", b"503 No")
    with dripping(refusal + body, len(refusal)) as server, pytest.raises(errors.TransientError, match="503"):
        send(AlarmTargets(webhook=f"http://127.0.0.1:{server.port}/"), message("webhook"), NOW_MS)


@pytest.mark.slow
def test_an_endless_answer_is_read_up_to_a_limit() -> None:
    """100 Continue again and again: http.client itself reads them all."""
    with dripping(b"HTTP/1.1 100 Continue\r\n\r\n" * DRIPS, 25) as server:
        with pytest.raises(errors.TransientError):
            send(AlarmTargets(webhook=f"http://127.0.0.1:{server.port}/"), message("webhook"), NOW_MS)
        assert server.cut.wait(60)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["smtp", "smtps"])
def test_a_mail_server_that_drips_is_left_when_the_time_is_over(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with dripping(b"220-wait\r\n" * DRIPS, 10) as server:
        monkeypatch.setenv(alarm_targets.SMTP, f"{scheme}://127.0.0.1:{server.port}")
        with pytest.raises(errors.TransientError, match="did not take"):
            send(AlarmTargets(email=("a@example.com",)), message("email"), NOW_MS)
        assert server.cut.wait(60)


def test_a_mail_server_that_says_too_much_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm_targets, "TIMEOUT_S", 60)
    lines = (b"220-" + b"x" * 1_000 + b"\r\n") * 200
    with dripping(lines, len(lines)) as server:
        monkeypatch.setenv(alarm_targets.SMTP, f"smtp://127.0.0.1:{server.port}")
        with pytest.raises(errors.TransientError, match="SMTPServerDisconnected"):
            send(AlarmTargets(email=("a@example.com",)), message("email"), NOW_MS)


def test_nobody_who_accepts_is_tried_again() -> None:
    with pytest.raises(errors.TransientError, match="cannot be reached"):
        send(AlarmTargets(webhook=f"http://127.0.0.1:{free_port()}/"), message("webhook"), NOW_MS)


# -- URLs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://", "http://host:port/", "http://host:99999/", "http://a b/", "http://h/\n", "https://ü.de"],
)
def test_what_is_no_url_is_refused_once_and_not_tried_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", url.replace("\n", "\x01"))
    with pytest.raises(errors.PermanentError, match="not an http"):
        send(AlarmTargets(webhook="env:HOOK"), message("webhook"), NOW_MS)
    with pytest.raises(errors.UsageError, match="webhook="):
        alarm_targets.checked_targets(None, url, None, None, None)


def test_a_login_in_a_url_is_sent_as_such() -> None:
    with receivers.webhook() as hook:
        url = hook.url.replace("//", "//me:p%40ss@")
        send(AlarmTargets(webhook=url), message("webhook"), NOW_MS)
        assert hook.headers[0]["Authorization"] == "Basic bWU6cEBzcw=="
        assert hook.headers[0]["Host"] in hook.url


# -- mail ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "kind"), [("450 later", errors.TransientError), ("550 never", errors.PermanentError)]
)
def test_an_address_that_is_refused_for_now_is_tried_again(
    answer: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    with receivers.mail_server() as mails:
        mails.to_recipients = answer
        monkeypatch.setenv(alarm_targets.SMTP, mails.url)
        monkeypatch.setattr(alarm_targets, "TIMEOUT_S", 20)
        with pytest.raises(kind, match="SMTPRecipientsRefused"):
            send(AlarmTargets(email=("a@example.com",)), message("email"), NOW_MS)


def test_a_mail_that_was_taken_is_sent_whatever_the_server_says_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with receivers.mail_server() as mails:
        mails.to_quit = "421 closing"
        monkeypatch.setenv(alarm_targets.SMTP, mails.url)
        monkeypatch.setattr(alarm_targets, "TIMEOUT_S", 20)
        send(AlarmTargets(email=("a@example.com",)), message("email"), NOW_MS)
        assert len(mails.found) == 1


# -- commands --------------------------------------------------------------------------------------------------------


def test_a_command_has_what_programs_need_and_no_secret() -> None:
    secrets = dict.fromkeys(
        (
            alarm_targets.SECRET, alarm_targets.SMTP, "ONEFOLD_SECRET", "ONEFOLD_WEB_TOKEN", "ONEFOLD_ADMIN_TOKEN",
            "SLACK_WEBHOOK_URL", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "PAGER_TOKEN",
        ), "hidden",
    )  # fmt: skip
    needed = {
        "PATH": "/bin",
        "HOME": "/root",
        "LANG": "de_DE.UTF-8",
        "LC_ALL": "C",
        "TZ": "UTC",
        "HTTPS_PROXY": "http://p",
    }
    targets = AlarmTargets(slack="env:SLACK_WEBHOOK_URL", command=("notify",), command_env=("PAGER_TOKEN",))
    assert environment_of(targets, {**secrets, **needed}) == {**needed, "PAGER_TOKEN": "hidden"}


@pytest.mark.slow
def test_a_command_that_lasts_is_killed_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm_targets, "TIMEOUT_S", 2)
    ready, alive = tmp_path / "ready", tmp_path / "alive"
    os.mkfifo(alive)
    reader = os.open(alive, os.O_RDONLY | os.O_NONBLOCK)
    script = f"sleep 600 > {alive} & : > {ready}; wait"
    try:
        with pytest.raises(errors.TransientError, match="TimeoutExpired"):
            send(AlarmTargets(command=("sh", "-c", script)), message("command"), NOW_MS)
        assert ready.exists()
        os.set_blocking(reader, True)
        assert os.read(reader, 1) == b""  # at its end: nobody has the other end open
    finally:
        os.close(reader)
