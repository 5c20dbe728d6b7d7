"""onefold's own figures, with the command lines of `benchmarks.raw`, so that a row can run either.

`python -m benchmarks.subjects enqueue --file q.db --count 10000`. Only what a user would write: declarations, `send`,
`send_many`, `once`; but `backlog` steps through a worker's own path, and `history`, which is timed against nothing,
writes records through the store's contract. Never here: settings tuned for a benchmark. Invariant: timed is what `raw`
times under the same name.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from benchmarks import probe
from onefold.runner.setup import make_runner

if TYPE_CHECKING:
    from benchmarks.onefold_tool import Order
    from onefold.contracts.verbs import Store

Figures = dict[str, float]
YEAR_MS = 365 * 86_400_000


def orders(count: int, first: int = 0) -> Iterator[Order]:
    from benchmarks.onefold_tool import order

    return (order(probe.body(number)) for number in range(first, first + count))


def timed(work: Callable[[], None], count: int) -> Figures:
    started = time.monotonic()
    work()
    seconds = time.monotonic() - started
    return {"done": count, "per_s": count / seconds, "us": seconds / count * 1e6}


def figure_enqueue(options: argparse.Namespace) -> Figures:
    """`send`, `--count` times, from `--threads` threads at once."""
    from benchmarks.onefold_tool import connect, job

    connect()
    all_of_them = list(orders(options.count))

    def send_all(some: Sequence[Order]) -> None:
        for order in some:
            job.send(order)

    threads = [
        Thread(target=send_all, args=(all_of_them[start :: options.threads],)) for start in range(options.threads)
    ]

    def work() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return timed(work, options.count)


def figure_asend(options: argparse.Namespace) -> Figures:
    """`await asend`, `--count` times, `--batch` tasks at once."""
    from benchmarks.onefold_tool import connect, job

    connect()
    rest = orders(options.count)

    async def send_all() -> None:
        while some := list(islice(rest, options.batch)):
            await asyncio.gather(*[job.asend(order) for order in some])

    return timed(lambda: asyncio.run(send_all()), options.count)


def figure_relay(options: argparse.Namespace) -> Figures:
    """A relay's way for `--count` messages that wait in an outbox in a file of the program's own."""
    from benchmarks.onefold_tool import app, connect, job
    from onefold.engines.urls import open_outbox
    from onefold.runtime.events import Sinks
    from onefold.runtime.relay import Relay

    connect()
    place = options.file.with_name("books.db")
    app.outbox = f"sqlite:///{place}"
    with closing(sqlite3.connect(place)) as mine:
        mine.execute("PRAGMA journal_mode = WAL")
        open_outbox(app.outbox).create()
        with mine:
            job.send_many(orders(options.count), connection=mine)
    relay = Relay(app.runtime(), open_outbox(app.outbox), Sinks(()))
    figures = timed(lambda: passed(relay.check(), options.count), options.count)
    relay.close()
    return figures


def passed(found: int, wanted: int) -> None:
    if found != wanted:
        raise SystemExit(f"the relay passed on {found} of {wanted} messages")


def figure_joined(options: argparse.Namespace) -> Figures:
    """A row of the program's own and a `send`, in one commit on its own connection, `--count` times."""
    from benchmarks.onefold_tool import app, connect, job

    connect()
    mine = sqlite3.connect(app.url.removeprefix("sqlite:///"))
    mine.execute("CREATE TABLE shop_order (id INTEGER PRIMARY KEY, pence INTEGER NOT NULL)")
    all_of_them = list(orders(options.count))

    def work() -> None:
        for number, order in enumerate(all_of_them):
            with mine:
                mine.execute("INSERT INTO shop_order VALUES (?, ?)", (number, 995))
                job.send(order, connection=mine)

    figures = timed(work, options.count)
    mine.close()
    return figures


def figure_bulk(options: argparse.Namespace) -> Figures:
    """`send_many` of `--batch` at a time."""
    from benchmarks.onefold_tool import connect, job

    connect()
    rest = orders(options.count, options.first)

    def work() -> None:
        while batch := list(islice(rest, options.batch)):
            job.send_many(batch)

    return timed(work, options.count)


def figure_history(options: argparse.Namespace) -> Figures:
    """The records of `--count` finished jobs, with no messages."""
    from benchmarks.onefold_tool import app, job
    from onefold.contracts.store import Ask, Claimed, Complete, RecordKey

    runtime = app.runtime()
    now_ms = runtime.clock.now_ms()
    numbers = iter(range(options.count))

    def work() -> None:
        while some := list(islice(numbers, 1_000)):
            asks = [
                Ask(
                    key=RecordKey(scope="", job=job.name, key=f"order-{number:010d}"), fingerprint="x" * 22,
                    owner=runtime.owner, lease_until_ms=now_ms + YEAR_MS, start=True, expires_at_ms=now_ms + YEAR_MS,
                    message_id=f"history-{number}", sent_at_ms=now_ms,
                )
                for number in some
            ]  # fmt: skip
            claims = runtime.engine.store.claim(asks, now_ms)
            done = Complete(result=b"null", expires_at_ms=now_ms + YEAR_MS)
            holds = [claim.hold for claim in claims if isinstance(claim, Claimed)]
            if not all(runtime.engine.store.write([(hold, done) for hold in holds], now_ms)):
                raise SystemExit("a record was refused")

    return timed(work, options.count)


def figure_backlog(options: argparse.Namespace) -> Figures:
    """Sends a batch and drains a batch, `--count` messages in all, on a file where others wait.

    A worker's path in one thread, because a worker would not stop after a batch: receive, begin, perform, finish.
    """
    from benchmarks.onefold_tool import app, job
    from benchmarks.onefold_tool import orders as queued
    from onefold.options import WorkerSettings
    from onefold.runtime.events import Sinks

    runtime, lease_ms = app.runtime(), WorkerSettings().lease_ms
    runner = make_runner(
        runtime, app.jobs, app.registry.job_of, lease_ms=lease_ms, sinks=Sinks(()), history=app.history
    )
    queue = runtime.engine.queues.open(queued.name)
    rest = orders(options.count, options.first)

    def work() -> None:
        while batch := list(islice(rest, options.batch)):
            job.send_many(batch)
            ready = runner.begin(queue.receive(len(batch), lease_ms))
            while ready:
                for run in ready:
                    runner.perform(run)
                ready = runner.finish(ready)

    return timed(work, options.count)


def guarded_calls(store: Store, count: int) -> Figures:
    """Calls a guarded function once for each of `count` orders, and then again: microseconds a call."""
    import onefold

    @onefold.once(key="{order_id}", store=store, name="take")
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
    "asend": figure_asend,
    "enqueue": figure_enqueue,
    "joined": figure_joined,
    "bulk": figure_bulk,
    "load": figure_bulk,
    "relay": figure_relay,
    "history": figure_history,
    "backlog": figure_backlog,
    "once-memory": figure_once_memory,
    "once-sqlite": figure_once_sqlite,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("--file", type=Path, required=True, help="the database; made when it does not exist")
    parser.add_argument("--count", type=int, default=20_000, help="messages or calls")
    parser.add_argument("--batch", type=int, default=1_000, help="messages a commit")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first message; its key is made from it")
    parser.add_argument("--groups", type=int, default=0, help="message groups; 0: a standard queue")
    options = parser.parse_args()
    os.environ.update(BENCH_PLACE=str(options.file.parent), BENCH_GROUPS=str(options.groups))
    print(json.dumps(FIGURES[options.figure](options)))


if __name__ == "__main__":
    main()
