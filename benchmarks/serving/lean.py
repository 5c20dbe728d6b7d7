"""A client that costs next to nothing: prepared requests on keep-alive connections, so that the server is what is measured.

`python -m benchmarks.serving.lean --url URL --rounds N` prints messages a second for each kind of call as one JSON line.
A round sends 200 messages one by one, receives and deletes them one by one, then 1,000 in batches of 10; the queue is
empty after each, because some servers slow down as messages accumulate; `--share 0.2` makes a round a fifth of that. With
`--connections C` as many requests are under way at once. A connection that the server closes is opened again, and the
request repeated.
Never here: another server's API; only SQS's JSON protocol.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

SINGLE = 200
BATCHES = 100
BATCH = 10
BODY = "x" * 200
_SIGNATURE = "AWS4-HMAC-SHA256 Credential=bench/20260101/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=0000"


class Connection:
    """One keep-alive connection and the answer that is arriving on it."""

    def __init__(self, host: str, port: int) -> None:
        self.address = (host, port)
        self.request = b""
        self.socket = self._open()
        self.buffer = bytearray()

    def _open(self) -> socket.socket:
        opened = socket.create_connection(self.address, timeout=60)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened

    def send(self, request: bytes) -> None:
        self.request = request
        if b"\r\nconnection: close" in bytes(self.buffer).lower():  # what the answer before said
            self.again()
            return
        self.buffer.clear()
        try:
            self.socket.sendall(request)
        except OSError:
            self.again()

    def again(self) -> None:
        """Opens the connection anew and repeats the request."""
        self.socket.close()
        self.socket = self._open()
        self.buffer.clear()
        self.socket.sendall(self.request)

    def read(self) -> bytes | None:
        """Returns the answer's body when it is whole, else None; raises ConnectionError when the server closed."""
        part = self.socket.recv(262_144)
        if not part:
            raise ConnectionError
        self.buffer += part
        return body_of(self.buffer)

    def ask(self, request: bytes) -> bytes:
        self.send(request)
        for _ in range(1_000):
            try:
                body = self.read()
            except ConnectionError:
                self.again()
                continue
            if body is not None:
                return body
        raise ConnectionError("the server never gave a whole answer")


def body_of(buffer: bytearray) -> bytes | None:
    """Returns the body of the one HTTP answer in the buffer; None while a part of it is missing."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = bytes(buffer[:end]).lower()
    if not head.startswith((b"http/1.1 200", b"http/1.0 200")):
        raise SystemExit(f"not answered: {bytes(buffer[:400])!r}")
    at = head.find(b"content-length:")
    if at >= 0:
        length = int(head[at + 15 :].split(b"\r\n", 1)[0])
        return bytes(buffer[end + 4 :]) if len(buffer) >= end + 4 + length else None
    if b"chunked" in head:
        return unchunked(bytes(buffer[end + 4 :])) if buffer.endswith(b"0\r\n\r\n") else None
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
        with selectors.DefaultSelector() as selector:
            for connection in self.connections:
                request = next(requests, None)
                if request is not None:
                    connection.send(request)
                    selector.register(connection.socket, selectors.EVENT_READ, connection)
            while selector.get_map():
                for key, _ in selector.select(60):
                    connection = key.data
                    try:
                        answer = connection.read()
                    except ConnectionError:
                        selector.unregister(key.fileobj)
                        connection.again()
                        selector.register(connection.socket, selectors.EVENT_READ, connection)
                        continue
                    if answer is None:
                        continue
                    yield answer
                    request = next(requests, None)
                    if request is None:
                        selector.unregister(key.fileobj)
                    else:
                        connection.send(request)


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
