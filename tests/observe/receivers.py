"""What alarms are sent to in tests: a webhook and a mail server on this machine, which remember what they got."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from aiosmtpd.controller import Controller

from tests.emulators.servers import free_port


class Webhook:
    """Answers each request with the next of `answers`, then with 200.

    Attributes:
        bodies, headers: of each request that came whole. answers: status and headers.
        on_request: is called before it answers.
    """

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.headers: list[Mapping[str, str]] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.on_request: Callable[[], None] = lambda: None
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                announced = int(self.headers["Content-Length"])
                body = self.rfile.read(announced)
                if len(body) < announced:  # its sender was killed in the middle of it; nothing can be done with a part
                    self.close_connection = True
                    return
                webhook.bodies.append(body)
                webhook.headers.append(dict(self.headers.items()))
                webhook.on_request()
                status, headers = webhook.answers.pop(0) if webhook.answers else (200, {})
                self.send_response(status)
                for name, value in {"Content-Length": "0", **headers}.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    def documents(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(one) for one in self.bodies]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class SlackApi:
    """Two methods of Slack's Web API for one channel: it keeps what is posted, and shows its history, three a page.

    Attributes:
        messages: what was posted, the oldest first. on_post: is called when a message is kept, before it is answered.
        answers: the next answers, instead of what would be done: status and JSON.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.on_post: Callable[[], None] = lambda: None
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.asked: list[dict[str, str]] = []
        slack = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                announced = int(self.headers["Content-Length"])
                body = self.rfile.read(announced)
                if len(body) < announced:
                    self.close_connection = True
                    return
                if self.headers["Authorization"] != "Bearer xoxb-1":
                    status, answer = 200, {"ok": False, "error": "invalid_auth"}
                elif slack.answers:
                    status, answer = slack.answers.pop(0)
                else:
                    method = self.path.rpartition("/")[2]
                    status, answer = 200, slack.post(body) if method == "chat.postMessage" else slack.history(body)
                read = msgspec.json.encode(answer)
                self.send_response(status)
                self.send_header("Content-Length", str(len(read)))
                self.end_headers()
                self.wfile.write(read)

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/api"

    def post(self, body: bytes) -> dict[str, Any]:
        self.messages.append(msgspec.json.decode(body))
        self.on_post()
        return {"ok": True, "ts": f"{len(self.messages)}.0"}

    def history(self, body: bytes) -> dict[str, Any]:
        form = dict(parse_qsl(body.decode()))
        self.asked.append(form)
        start = int(form.get("cursor", "0"))
        newest_first = self.messages[::-1]
        shown = [dict(one) for one in newest_first[start : start + 3]]
        if form.get("include_all_metadata") != "true":
            for one in shown:
                one.pop("metadata", None)
        after = str(start + 3) if start + 3 < len(newest_first) else ""
        return {"ok": True, "messages": shown, "response_metadata": {"next_cursor": after}}

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Mails:
    """What a mail server was sent, and what it answers.

    Attributes:
        found: what was sent. refuses: how many to refuse for now. on_mail: is called before it answers.
        to_recipients, to_quit: what it answers to an address and to QUIT; None: as a server that takes the mail.
    """

    def __init__(self) -> None:
        self.found: list[Message] = []
        self.refuses = 0
        self.on_mail: Callable[[], None] = lambda: None
        self.url = ""
        self.to_recipients: str | None = None
        self.to_quit: str | None = None

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> str:
        if self.to_recipients is None:
            envelope.rcpt_tos.append(address)
        return self.to_recipients or "250 OK"

    async def handle_QUIT(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's
        return self.to_quit or "221 Bye"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's
        if self.refuses:
            self.refuses -= 1
            return "451 later"
        self.found.append(message_from_bytes(envelope.content))
        self.on_mail()
        return "250 OK"


@contextmanager
def webhook() -> Iterator[Webhook]:
    made = Webhook()
    try:
        yield made
    finally:
        made.close()


@contextmanager
def mail_server() -> Iterator[Mails]:
    mails = Mails()
    port = free_port()  # the controller connects to the port that it was given, so 0 will not do
    controller = Controller(mails, hostname="127.0.0.1", port=port)
    controller.start()
    mails.url = f"smtp://127.0.0.1:{port}?from=onefold@example.com"
    try:
        yield mails
    finally:
        controller.stop()


@contextmanager
def slack_api() -> Iterator[SlackApi]:
    made = SlackApi()
    try:
        yield made
    finally:
        made.close()
