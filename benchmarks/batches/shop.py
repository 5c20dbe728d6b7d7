"""The app that the batch benchmarks run: a dispatcher of orders, and a job that would do them.

Its engine is ONEFOLD_URL, the number of orders BENCH_COUNT; the dispatcher writes what it saw to the file BENCH_FIGURES.
Never here: starting anything. Invariant: the dispatcher holds one message at a time.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

import onefold

app = onefold.App("bench")
orders = app.queue("orders")
ticks = app.queue("ticks", visibility="15m")


class Order(Struct, frozen=True):
    """An order as orders are: about 200 bytes of JSON."""

    order_id: str
    customer: str
    amount: str
    note: str


@app.job(orders, key="{order_id}")
def book(order: Order) -> str:
    """Would book it."""
    return order.order_id


@app.schedule("cron(0 3 1 * ? *)", queue=ticks, timeout="2h")
def dispatch(tick: onefold.Tick) -> Iterator[object]:
    """Yield so many orders."""
    begun, cpu = time.monotonic(), time.process_time()
    for number in range(int(os.environ["BENCH_COUNT"])):
        yield book.message(
            Order(
                order_id=f"2026-{number:012d}",
                customer=f"customer-{number % 9_973}",
                amount=f"{number % 1_000}.00",
                note="delivered to the back door between nine and twelve, please ring twice and wait for an answer",
            )
        )
    figures = {
        "seconds": time.monotonic() - begun,
        "cpu_s": time.process_time() - cpu,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    Path(os.environ["BENCH_FIGURES"]).write_text(json.dumps(figures))
