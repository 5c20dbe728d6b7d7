"""A server for the client tests: `onefold serve` in a process of its own on a free port, and sockets to hear from programs.

Never here: what a client asks. Invariant: nobody waits by the clock; a test waits for an answer of the server or for a
report of a program, each with a limit.
"""

from __future__ import annotations

import json
import os
import queue
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onefold.entropy import SystemEntropy

PATIENCE_S = 60
CREDENTIALS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}


def unique(name: str) -> str:
    """A queue name nobody used; a suffix `.fifo` stays at the end."""
    stem, dot, suffix = name.partition(".")
    return f"{stem}-{SystemEntropy().token()[:8]}{dot}{suffix}"


def environment(**more: str) -> dict[str, str]:
    """An environment with dummy credentials, without the reader's own configuration of AWS."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "ONEFOLD", "PYTEST"))}
    scripts = str(Path(sys.executable).parent)
    return kept | {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_DEFAULT_OUTPUT": "json",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_PAGER": "",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        **more,
    }


@contextmanager
def serving(*options: str, folder: Path | None = None, port: int = 0, **env: str) -> Iterator[str]:
    """A server that answers; its URL. What it prints is shown when it does not start or does not end well."""
    command = [sys.executable, "-m", "onefold", "serve", "--port", str(port), "--json", *options]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(**env), text=True, stdout=subprocess.PIPE, stderr=said, bufsize=1
        )
        assert process.stdout is not None
        reader: threading.Thread | None = None
        try:
            first = process.stdout.readline()
            if '"url"' not in first:
                said.seek(0)
                raise AssertionError(f"{' '.join(command)} said {first!r} {said.read()}")
            # What it says later is read and forgotten, so that it never waits for a reader.
            reader = threading.Thread(target=process.stdout.read, daemon=True)
            reader.start()
            yield json.loads(first)["url"]
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE_S)
            finally:
                process.kill()
                process.wait()
                if reader is not None:
                    reader.join(PATIENCE_S)
                process.stdout.close()
    assert process.returncode == 0


class Reports:
    """Lines that other programs send to a port of this process, a connection each, in the order that they connected."""

    def __init__(self) -> None:
        self.lines: queue.Queue[str] = queue.Queue()
        lines = self.lines

        class Hear(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                for line in self.rfile:
                    lines.put(line.decode().rstrip("\n"))

        # One after the other: with a thread each, what was reported first may be heard second.
        self._server = socketserver.TCPServer(("127.0.0.1", 0), Hear)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def until(self, enough: Callable[[list[str]], object]) -> list[str]:
        """The lines up to the one with which it is enough; AssertionError when none comes any more."""
        heard: list[str] = []
        while not enough(heard):
            try:
                heard.append(self.lines.get(timeout=PATIENCE_S))
            except queue.Empty:
                raise AssertionError(f"nothing more came after {heard}") from None
        return heard


def receive_until(client: Any, url: str, count: int, **more: Any) -> list[dict[str, Any]]:
    """`count` messages, however many answers that takes; each is deleted, unless `keep` is given."""
    keep = more.pop("keep", False)
    found: list[dict[str, Any]] = []
    while len(found) < count:
        answer = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=10, **more)
        assert "Messages" in answer, f"nothing more came after {found}"
        found += answer["Messages"]
        for message in () if keep else answer["Messages"]:
            client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return found
