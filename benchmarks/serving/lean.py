"""A client that costs next to nothing: prepared requests on keep-alive connections, so that the server is what is measured.

`python -m benchmarks.serving.lean --url URL --rounds N` prints messages a second for each kind of call as one JSON line.
A round sends 200 messages one by one, receives and deletes them one by one, then 1,000 in batches of 10; the queue is
empty after each, because some servers slow down as messages accumulate; `--share 0.2` makes a round a fifth of that. With
`--connections C` as many requests are under way at once. With one connection the client does not sleep while it waits,
for the first millisecond, but asks its socket again and again: what it costs the kernel to wake it is no server's doing. A
connection that the server closes is opened again, and the request repeated.
Never here: another server's API; only SQS's JSON protocol.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

SINGLE = 200
BATCHES = 100
BATCH = 10
BODY = "x" * 200
PATIENCE_S = 60
AWAKE_S = 1e-3
_SIGNATURE = "AWS4-HMAC-SHA256 Credential=bench/20260101/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=0000"


class Connection:
    """One keep-alive connection and the answer that is arriving on it."""

    def __init__(self, host: str, port: int) -> None:
        self.address = (host, port)
        self.request = b""
        self.socket = self._open()
        self.got = b""
        self.closes = False  # the answer before said that it is the last one of its connection

    def _open(self) -> socket.socket:
        opened = socket.create_connection(self.address, timeout=60)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setblocking(False)
        return opened

    def send(self, request: bytes) -> None:
        self.request = request
        if self.closes:
            self.again()
            return
        self.got = b""
        try:
            self._send_all()
        except OSError:
            self.again()

    def _send_all(self) -> None:
        rest = self.request
        while rest:
            try:
                rest = rest[self.socket.send(rest) :]
            except BlockingIOError:
                continue

    def again(self) -> None:
        """Opens the connection anew and repeats the request."""
        self.socket.close()
        self.socket = self._open()
        self.got, self.closes = b"", False
        self._send_all()

    def read(self) -> bytes | None:
        """Returns the answer's body when it is whole, else None; raises ConnectionError when the server closed."""
        try:
            part = self.socket.recv(262_144)
        except BlockingIOError:
            return None
        if not part:
            raise ConnectionError
        self.got = self.got + part if self.got else part
        return self._body()

    def ask(self, request: bytes, *, awake: bool = True) -> bytes:
        """Asks, and returns the answer's body; `awake`: without sleeping for the first millisecond."""
        self.send(request)
        now = time.monotonic()
        sleeps, ends = now + AWAKE_S * awake, now + PATIENCE_S
        while now < ends:
            if now >= sleeps:
                select.select([self.socket], [], [], PATIENCE_S)
            try:
                body = self.read()
            except ConnectionError:
                self.again()
                continue
            if body is not None:
                return body
            now = time.monotonic()
        raise ConnectionError("the server never gave a whole answer")

    def _body(self) -> bytes | None:
        """Returns the body of the one HTTP answer that is there; None while a part of it is missing."""
        head, found, body = self.got.partition(b"\r\n\r\n")
        if not found:
            return None
        head = head.lower()
        if not head.startswith((b"http/1.1 200", b"http/1.0 200")):
            raise SystemExit(f"not answered: {self.got[:400]!r}")
        self.closes = b"\r\nconnection: close" in head
        at = head.find(b"content-length:")
        if at >= 0:
            return body if len(body) >= int(head[at + 15 :].split(b"\r\n", 1)[0]) else None
        if b"chunked" in head:
            return unchunked(body) if body.endswith(b"0\r\n\r\n") else None
        raise SystemExit(f"an answer without a length: {head!r}")


def unchunked(text: bytes) -> bytes:
    whole = b""
    while text:
        size, _, text = text.partition(b"\r\n")
        whole += text[: int(size, 16)]
        text = text[int(size, 16) + 2 :]
    return whole


def prepared(host: str, operation: str, ask: dict[str, Any]) -> bytes:
    body = json.dumps(ask).encode()
    return (
        f"POST / HTTP/1.1\r\nHost: {host}\r\nX-Amz-Target: AmazonSQS.{operation}\r\n"
        f"Content-Type: application/x-amz-json-1.0\r\nAuthorization: {_SIGNATURE}\r\nX-Amz-Date: 20260101T000000Z\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


class Client:
    """Asks a server on so many connections at once."""

    def __init__(self, url: str, connections: int) -> None:
        parts = urlsplit(url)
        self.host = parts.netloc
        self.connections = [Connection(parts.hostname or "", parts.port or 80) for _ in range(connections)]

    def ask(self, operation: str, **ask: Any) -> Any:
        return json.loads(self.connections[0].ask(prepared(self.host, operation, ask)) or b"{}")

    def timed(self, requests: Sequence[bytes]) -> tuple[float, list[bytes]]:
        """Sends all requests; returns seconds and the answers, in the order of arrival."""
        started = time.perf_counter()
        if len(self.connections) == 1:
            answers = [self.connections[0].ask(request) for request in requests]
        else:
            answers = list(self._at_once(iter(requests)))
        return time.perf_counter() - started, answers

    def _at_once(self, requests: Iterator[bytes]) -> Iterator[bytes]:
        waiting: dict[int, Connection] = {}
        with select.epoll() as poll:

            def watch(connection: Connection) -> None:
                number = connection.socket.fileno()
                waiting[number] = connection
                poll.register(number, select.EPOLLIN)

            for connection, request in zip(self.connections, requests, strict=False):
                connection.send(request)
                watch(connection)
            while waiting:
                for number, _ in poll.poll(PATIENCE_S):
                    connection = waiting[number]
                    used = connection.socket
                    try:
                        answer = connection.read()
                    except ConnectionError:
                        answer = None
                        connection.again()
                    if answer is not None:
                        yield answer
                        request = next(requests, None)
                        if request is None:
                            del waiting[number]
                            poll.unregister(number)
                            continue
                        connection.send(request)
                    if connection.socket is not used:  # opened anew; the poll has forgotten the one before
                        del waiting[number]
                        watch(connection)


def handles(answers: Sequence[bytes]) -> list[list[str]]:
    """Returns the receipt handles of each receive."""
    found = [[message["ReceiptHandle"] for message in json.loads(answer).get("Messages", [])] for answer in answers]
    return [each for each in found if each]


def rounds(client: Client, queue: str, count: int, share: float) -> dict[str, float]:
    """Runs so many rounds; messages a second for each kind of call."""
    spent: dict[str, float] = {}
    messages: dict[str, int] = {}

    def run(figure: str, requests: Sequence[bytes], carried: int) -> list[bytes]:
        seconds, answers = client.timed(requests)
        spent[figure] = spent.get(figure, 0.0) + seconds
        messages[figure] = messages.get(figure, 0) + carried
        return answers

    def request(operation: str, **ask: Any) -> bytes:
        return prepared(client.host, operation, {"QueueUrl": queue, **ask})

    single, batches = int(SINGLE * share), int(BATCHES * share)
    entries = [{"Id": str(number), "MessageBody": BODY} for number in range(BATCH)]
    for _ in range(count):
        run("send_per_s", [request("SendMessage", MessageBody=BODY)] * single, single)
        got = handles(run("receive_per_s", [request("ReceiveMessage")] * single, single))
        deletes = [request("DeleteMessage", ReceiptHandle=handle) for each in got for handle in each]
        run("delete_per_s", deletes, len(deletes))
        run("send_batch_per_s", [request("SendMessageBatch", Entries=entries)] * batches, batches * BATCH)
        asks = [request("ReceiveMessage", MaxNumberOfMessages=BATCH)] * batches
        _, answers = taken = client.timed(asks)
        got = handles(answers)
        spent["receive_batch_per_s"] = spent.get("receive_batch_per_s", 0.0) + taken[0]
        messages["receive_batch_per_s"] = messages.get("receive_batch_per_s", 0) + sum(map(len, got))
        deletes = [
            request(
                "DeleteMessageBatch",
                Entries=[{"Id": str(place), "ReceiptHandle": handle} for place, handle in enumerate(each)],
            )
            for each in got
        ]
        run("delete_batch_per_s", deletes, sum(map(len, got)))
    return {figure: messages[figure] / spent[figure] for figure in spent}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--queue", help="an existing queue's name; otherwise one is created")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--share", type=float, default=1)
    parser.add_argument("--connections", type=int, default=1)
    options = parser.parse_args()
    client = Client(options.url, options.connections)
    name = options.queue or f"bench-{time.time_ns()}"
    queue = client.ask("CreateQueue", QueueName=name)["QueueUrl"]
    rounds(client, queue, 1, options.share)  # both sides are warm afterwards
    print(json.dumps(rounds(client, queue, options.rounds, options.share)))


if __name__ == "__main__":
    main()
