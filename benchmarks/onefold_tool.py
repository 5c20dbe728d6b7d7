"""onefold on SQLite, as `benchmarks.probe` drives it: one job, everything at its defaults.

The payload is a typed struct with the order's id, which is the key, and a note; as JSON it is 200 bytes. Never here:
settings tuned for a benchmark. BENCH_EFFECT names another kind of effect than the default, BENCH_GROUPS a FIFO queue with
so many message groups; the row that uses one says so.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

import onefold
from benchmarks import probe


class Order(msgspec.Struct):
    order_id: str
    note: str


app = onefold.App("bench", url=f"sqlite:///{probe.place() / 'bench.db'}")
groups = int(os.environ.get("BENCH_GROUPS", "0"))
orders = app.queue("orders", fifo=groups > 0)
run = probe.handler()


def group(order: Order) -> str:
    return f"group-{int(order.order_id.rpartition('-')[2]) % groups}"


@app.job(
    orders,
    key="{order_id}",
    group=group if groups else None,
    effect=os.environ.get("BENCH_EFFECT", "external"),  # type: ignore[arg-type]
)
def job(order: Order) -> None:
    run(order.note)


def order(text: str) -> Order:
    return msgspec.json.decode(text, type=Order)


def connect() -> None:
    app.runtime()


def send(text: str) -> None:
    job.send(order(text))


def send_many(texts: Sequence[str]) -> None:
    for start in range(0, len(texts), 1_000):
        job.send_many([order(text) for text in texts[start : start + 1_000]])


def work() -> None:
    probe.become("onefold", "worker", "benchmarks.onefold_tool:app")
