"""kill -9 under load from four clients: every acknowledged send is received, every acknowledged delete stays deleted.

Each round starts the server on the same file, lets the clients work, and kills it at a drawn moment. What a client was told
stands; what it was not told may have happened or not.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from onefold.entropy import SeededEntropy, SystemEntropy

SOAK = os.environ.get("ONEFOLD_SOAK") == "1"
ROUNDS = 100 if SOAK else 5
ACKS_MAX = 600  # answers in a round before the kill, at most
PATIENCE_S = 60.0
GONE = (OSError, http.client.HTTPException)  # the server was killed while this client asked


class Client:
    """A connection that speaks SQS's JSON."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)

    def call(self, operation: str, **ask: object) -> dict[str, Any]:
        headers = {"X-Amz-Target": f"AmazonSQS.{operation}", "Content-Type": "application/x-amz-json-1.0"}
        self._connection.request("POST", "/", json.dumps(ask), headers)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return json.loads(body or b"{}")  # type: ignore[no-any-return]  # an object by protocol

    def close(self) -> None:
        self._connection.close()


class BreakerUpdate:
    """What the clients were told, and what they saw."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.deleted: set[str] = set()
        self.seen: set[str] = set()
        self.wrong: list[str] = []
        self._acks = 0
        self._changed = threading.Condition()

    def ack(self, into: set[str], bodies: list[str]) -> None:
        with self._changed:
            into.update(bodies)
            self._acks += 1
            self._changed.notify_all()

    def received(self, bodies: list[str], deleted_before: set[str]) -> None:
        with self._changed:
            self.seen.update(bodies)
            self.wrong += [f"{body} came back after its delete" for body in bodies if body in deleted_before]

    def wait_for(self, more: int) -> None:
        with self._changed:
            goal = self._acks + more
            assert self._changed.wait_for(lambda: self._acks >= goal, PATIENCE_S), "the clients stand still"


def work(port: int, name: str, told: BreakerUpdate, stopped: threading.Event) -> None:
    """Send, receive and delete until the server is gone."""
    client, number = Client(port), 0
    deleted_before = set(told.deleted)  # by earlier rounds: later deletes may cross a receive that is under way
    try:
        while not stopped.is_set():
            bodies = [f"{name}-{number + place}" for place in range(10 if name.startswith("batch") else 1)]
            number += len(bodies)
            if len(bodies) == 1:
                client.call("SendMessage", QueueUrl="q", MessageBody=bodies[0])
            else:
                entries = [{"Id": str(place), "MessageBody": body} for place, body in enumerate(bodies)]
                answer = client.call("SendMessageBatch", QueueUrl="q", Entries=entries)
                bodies = [bodies[int(one["Id"])] for one in answer["Successful"]]
            told.ack(told.sent, bodies)
            found = client.call("ReceiveMessage", QueueUrl="q", MaxNumberOfMessages=10, VisibilityTimeout=1)
            messages = found.get("Messages", [])
            told.received([one["Body"] for one in messages], deleted_before)
            for one in messages[::2]:
                client.call("DeleteMessage", QueueUrl="q", ReceiptHandle=one["ReceiptHandle"])
                told.ack(told.deleted, [one["Body"]])
    except GONE:
        pass
    except AssertionError as error:
        with told._changed:
            told.wrong.append(str(error))
    finally:
        client.close()


@contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-m", "onefold", "serve", "--port", "0", "--data", str(folder / "sqs.db"), "--json"]
    with subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process, int(json.loads(process.stdout.readline())["port"])
        finally:
            process.kill()


def drained(port: int) -> set[str]:
    """Everything that can still be received; what is in flight comes within its second."""
    client, found, empty = Client(port), set[str](), 0
    while empty < 2:
        answer = client.call(
            "ReceiveMessage", QueueUrl="q", MaxNumberOfMessages=10, WaitTimeSeconds=2, VisibilityTimeout=60
        )
        empty = 0 if "Messages" in answer else empty + 1
        found |= {one["Body"] for one in answer.get("Messages", [])}
        for one in answer.get("Messages", []):
            client.call("DeleteMessage", QueueUrl="q", ReceiptHandle=one["ReceiptHandle"])
    client.close()
    return found


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(0 if SOAK else 300)
@pytest.mark.conformance(operation="Server", case="kill -9 under load from four clients", source="durability")
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    entropy = SeededEntropy(int(SystemEntropy().token(), 16) if SOAK else 1)
    print(f"seed {entropy.seed}")  # noqa: T201 - pytest -s
    told = BreakerUpdate()
    with serving(tmp_path) as (_, port):
        client = Client(port)
        client.call("CreateQueue", QueueName="q")
        client.close()
    for round_ in range(ROUNDS):
        with serving(tmp_path) as (process, port):
            stopped = threading.Event()
            names = [f"{kind}-{round_}-{place}" for place, kind in enumerate(("one", "one", "batch", "batch"))]
            clients = [threading.Thread(target=work, args=(port, name, told, stopped)) for name in names]
            for client in clients:
                client.start()
            try:
                told.wait_for(1 + int(entropy.fraction() * ACKS_MAX))
            finally:
                process.kill()
                stopped.set()
                for client in clients:
                    client.join(PATIENCE_S)
            assert not any(client.is_alive() for client in clients)
    with serving(tmp_path) as (_, port):
        left = drained(port)
    assert told.wrong == []
    assert left & told.deleted == set(), "deleted, and there again"
    assert told.sent - told.seen - left == set(), "acknowledged, and never received"
    assert len(told.sent) > 20 * ROUNDS
    assert len(told.deleted) > 5 * ROUNDS
