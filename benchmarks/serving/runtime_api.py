"""A warm invocation of a local function: Lambda's Runtime API over loopback HTTP beside the socket pair that onefold uses.

`python -m benchmarks.serving.runtime_api` prints both as JSON, from the same event (ten records of 200 characters) and the
same empty answer. What decision 0032 quotes. The HTTP side is the least that the protocol needs: no log, no deadline, no
memory limit; the other side is a whole invocation of `onefold.local.containers`.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from onefold.clock import SystemClock
from onefold.local.containers import Container
from onefold.local.settings import FunctionSettings

WARM_UP = 50
MEASURED = 1_000
ROUNDS = 3
EVENT = json.dumps({"Records": [{"messageId": str(number), "body": "x" * 200} for number in range(10)]}).encode()
ANSWER = {"batchItemFailures": list[str]()}

CLIENT = """
import http.client, json, sys
connection = http.client.HTTPConnection(sys.argv[1])
while True:
    connection.request("GET", "/2018-06-01/runtime/invocation/next")
    response = connection.getresponse()
    event, number = json.loads(response.read()), response.headers["Lambda-Runtime-Aws-Request-Id"]
    answer = json.dumps({"batchItemFailures": []}).encode()
    connection.request("POST", f"/2018-06-01/runtime/invocation/{number}/response", answer)
    connection.getresponse().read()
"""


async def over_http() -> list[float]:
    """Milliseconds of each invocation by a process that takes events as the Runtime API gives them."""
    events: asyncio.Queue[bytes] = asyncio.Queue()
    answers: asyncio.Queue[bytes] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await _head(reader):
            length = next((int(line[15:]) for line in head if line.lower().startswith(b"content-length:")), 0)
            body = await reader.readexactly(length)
            if head[0].startswith(b"GET"):
                event = await events.get()
                lines = b"HTTP/1.1 200 OK\r\nLambda-Runtime-Aws-Request-Id: 1\r\nContent-Length: %d\r\n\r\n"
                writer.write(lines % len(event) + event)
            else:
                writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
                answers.put_nowait(body)
            await writer.drain()

    async def invoke() -> None:
        events.put_nowait(EVENT)
        assert json.loads(await answers.get()) == ANSWER

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with subprocess.Popen([sys.executable, "-c", CLIENT, f"127.0.0.1:{port}"]) as client:  # noqa: ASYNC220 - before anything waits
        try:
            return await _timed(invoke)
        finally:
            client.kill()
            server.close()


async def _head(reader: asyncio.StreamReader) -> list[bytes]:
    try:
        return (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    except (asyncio.IncompleteReadError, asyncio.CancelledError):
        return []


async def over_a_socket_pair() -> list[float]:
    """Milliseconds of each invocation by a container of the local server."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "module.py").write_text("def handler(event, context):\n    return {'batchItemFailures': []}\n")
        container = Container(
            FunctionSettings(name="measured", code_dir=folder, handler="module.handler", timeout_ms=3_000),
            loop=asyncio.get_running_loop(),
            clock=SystemClock(),
            on_line=lambda _: None,
            log_stream="measured",
        )
        assert await container.init("00000000-0000-4000-8000-000000000000") is None

        async def invoke() -> None:
            await container.invoke(EVENT, "00000000-0000-4000-8000-000000000000")

        try:
            return await _timed(invoke)
        finally:
            await container.close()


async def _timed(invoke: Callable[[], Awaitable[None]]) -> list[float]:
    took = []
    for _ in range(WARM_UP + MEASURED):
        began = time.perf_counter()
        await invoke()
        took.append((time.perf_counter() - began) * 1_000)
    return took[WARM_UP:]


def main() -> None:
    """Measure both in turn and print the median of the rounds."""
    rounds = [(asyncio.run(over_http()), asyncio.run(over_a_socket_pair())) for _ in range(ROUNDS)]
    for name, of_all in zip(("http", "socket pair"), zip(*rounds, strict=True), strict=True):
        cuts = [statistics.quantiles(took, n=100) for took in of_all]
        p50, p99 = (statistics.median(cut[rank] for cut in cuts) for rank in (49, 98))
        print(json.dumps({"protocol": name, "p50_ms": round(p50, 2), "p99_ms": round(p99, 2)}))


if __name__ == "__main__":
    main()
