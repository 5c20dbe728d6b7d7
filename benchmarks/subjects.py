"""onefold's own figures, with the command lines of `benchmarks.raw`, so that a row can run either.

`python -m benchmarks.subjects enqueue --file q.db --count 10000`. Only what a user would write: declarations, `send`,
`send_many`, `once`. Never here: settings tuned for a benchmark. Invariant: timed is what `raw` times under the same name.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from benchmarks import probe

if TYPE_CHECKING:
    from benchmarks.onefold_tool import Order
    from onefold.contracts.store import Store

Figures = dict[str, float]


def orders(count: int) -> list[Order]:
    from benchmarks.onefold_tool import order

    return [order(probe.body(number)) for number in range(count)]


def timed(work: Callable[[], None], count: int) -> Figures:
    started = time.monotonic()
    work()
    seconds = time.monotonic() - started
    return {"done": count, "per_s": count / seconds, "us": seconds / count * 1e6}


def figure_enqueue(options: argparse.Namespace) -> Figures:
    """`send`, `--count` times, from `--threads` threads at once."""
    from benchmarks.onefold_tool import connect, job

    connect()
    all_of_them = orders(options.count)

    def send_all(some: Sequence[Order]) -> None:
        for order in some:
            job.send(order)

    threads = [
        Thread(target=send_all, args=(all_of_them[start :: options.threads],))
        for start in range(options.threads)
    ]

    def work() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return timed(work, options.count)


def figure_bulk(options: argparse.Namespace) -> Figures:
    """`send_many` of `--batch` at a time."""
    from benchmarks.onefold_tool import connect, job

    connect()
    rest = iter(orders(options.count))

    def work() -> None:
        while batch := list(islice(rest, options.batch)):
            job.send_many(batch)

    return timed(work, options.count)


def guarded_calls(store: Store, count: int) -> Figures:
    """Calls a guarded function once for each of `count` orders, and then again: microseconds a call."""
    import onefold

    @onefold.once(key="{order_id}", store=store)
    def take(order_id: str, note: str) -> str:
        return order_id

    bodies = [json.loads(probe.body(number)) for number in range(count)]

    def work() -> None:
        for body in bodies:
            take(body["order_id"], body["note"])

    return {"first_us": timed(work, count)["us"], "duplicate_us": timed(work, count)["us"]}


def figure_once_memory(options: argparse.Namespace) -> Figures:
    """`@once` around a plain function, records in memory."""
    import onefold

    return guarded_calls(onefold.memory_store(), options.count)


def figure_once_sqlite(options: argparse.Namespace) -> Figures:
    """The same with records in a file, durable."""
    import onefold

    return guarded_calls(onefold.store(f"sqlite:///{options.file}"), options.count)


FIGURES: dict[str, Callable[[argparse.Namespace], Figures]] = {
    "enqueue": figure_enqueue,
    "bulk": figure_bulk,
    "once-memory": figure_once_memory,
    "once-sqlite": figure_once_sqlite,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("--file", type=Path, required=True, help="the database; made when it does not exist")
    parser.add_argument("--count", type=int, default=20_000, help="messages or calls")
    parser.add_argument("--batch", type=int, default=1_000, help="messages a commit")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    os.environ["BENCH_PLACE"] = str(options.file.parent)
    print(json.dumps(FIGURES[options.figure](options)))


if __name__ == "__main__":
    main()
