"""Receivers that wait: how soon a message wakes one, and what two thousand of them weigh.

`python -m benchmarks.serving.waiting --url URL --pid PID` prints, as one JSON line, the median and the slowest but one of
a hundred wake-ups (from before the send until the waiting receiver has the message) and the memory that 2,000 receivers,
each waiting on a connection of its own, add to the server. Never here: throughput (`lean`).
"""

from __future__ import annotations

import argparse
import json
import resource
import select
import time
from pathlib import Path
from statistics import median, quantiles

from benchmarks.serving.lean import BODY, PATIENCE_S, Client, Connection, prepared

WAKES = 100
RECEIVERS = 2_000


def wakes_ms(url: str) -> list[float]:
    """Milliseconds from before each send until a receiver that was waiting has the message."""
    sender, receiver = Client(url, 1), Client(url, 1)
    queue = sender.ask("CreateQueue", QueueName=f"wake-{time.time_ns()}")["QueueUrl"]
    poll = prepared(receiver.host, "ReceiveMessage", {"QueueUrl": queue, "WaitTimeSeconds": 20})
    send = prepared(sender.host, "SendMessage", {"QueueUrl": queue, "MessageBody": BODY})
    taken = []
    for _ in range(WAKES):
        waiting = receiver.connections[0]
        waiting.send(poll)
        time.sleep(0.02)
        started = time.perf_counter()
        sender.connections[0].ask(send, awake=False)  # awake it would keep the two others from a core
        body = None
        while body is None:
            select.select([waiting.socket], [], [], PATIENCE_S)  # asleep, as a receiver that waits is
            body = waiting.read()
        taken.append((time.perf_counter() - started) * 1e3)
        handle = json.loads(body)["Messages"][0]["ReceiptHandle"]
        sender.ask("DeleteMessage", QueueUrl=queue, ReceiptHandle=handle)
    return taken


def receiver_kb(url: str, pid: int) -> float:
    """Kilobytes of the server's memory for each receiver that waits."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    client = Client(url, 1)
    queue = client.ask("CreateQueue", QueueName=f"crowd-{time.time_ns()}")["QueueUrl"]
    poll = prepared(client.host, "ReceiveMessage", {"QueueUrl": queue, "WaitTimeSeconds": 20})
    host, _, port = client.host.rpartition(":")
    before = memory_kb(pid)
    crowd = [Connection(host, int(port)) for _ in range(RECEIVERS)]
    for each in crowd:
        each.send(poll)
    time.sleep(1)
    return (memory_kb(pid) - before) / RECEIVERS


def memory_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise SystemExit(f"process {pid} has no memory")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--pid", type=int, required=True)
    options = parser.parse_args()
    taken = wakes_ms(options.url)
    figures = {"wake_p50_ms": median(taken), "wake_p99_ms": quantiles(taken, n=100)[98]}
    print(json.dumps(figures | {"receiver_kb": receiver_kb(options.url, options.pid)}))


if __name__ == "__main__":
    main()
