"""Processes that are killed: each works on a real file, stops at a chosen point, reports it, and waits to be killed.

`python -m tests.crash.victim` reads one order per line (JSON) and forks a process for each, so that the imports are
paid once. A point is a statement that SQLite is about to run on the writer's connection, or one side of an effect
outside. The process writes to its standard output: `pid N`, then `at K NAME` and nothing more, or `done K` when there
was no such point; the parent process adds `gone`. This module also has the app with which the test itself continues.
Does not contain: kills, judging. Invariant: the work is done in one thread in one order, so that points have numbers.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import onefold
from onefold.runner.execution import Execution
from onefold.runner.executors import Grouper
from onefold.runner.runner import Runner
from onefold.runner.setup import make_runner
from onefold.runtime.events import Sinks
from onefold.runtime.runtime import Runtime

LEASE_MS = 30_000


def point(name: str) -> None:
    """Do nothing, unless this process is to be killed here."""


class Shop:
    """The app: `ship` has its effect in a file, `enter` in a table of the engine's own file and in a letter.

    Args:
        path: the database. effects: the file, one line for each effect. on_unknown: the policy of `ship`.
    """

    def __init__(self, path: str, effects: str, on_unknown: Any = "rerun") -> None:
        self.app = onefold.App("victim", url=f"sqlite:///{path}")
        never = onefold.Retry(attempts=10, crashes=10)
        parcels, entries, letters = (self.app.queue(name) for name in ("parcels", "entries", "letters"))

        @self.app.job(parcels, key="{id}", on_unknown=on_unknown, retry=never)
        def ship(order: dict[str, str], ctx: onefold.Context) -> str:
            point("before the effect")
            line = f"{ctx.key} {ctx.fence} {ctx.attempt}\n".encode()
            file = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(file, line)
            os.close(file)
            point("after the effect")
            return "shipped"

        @self.app.job(letters, key="{id}", retry=never, effect="transactional")
        def post(letter: dict[str, str], ctx: onefold.Context) -> None:
            ctx.connection.execute("INSERT INTO effect (key) VALUES (?)", (letter["id"],))

        @self.app.job(entries, key="{id}", effect="transactional", retry=never)
        def enter(order: dict[str, str], ctx: onefold.Context) -> str:
            ctx.connection.execute("INSERT INTO effect (key) VALUES (?)", (order["id"],))
            post.send({"id": f"letter of {order['id']}"})
            return "entered"

        self.ship, self.enter = ship, enter


def work(app: onefold.App, runtime: Runtime) -> None:
    """Do what a worker's loop does, in this thread, until nothing is visible."""
    runner = make_runner(runtime, app.jobs, app.registry.job_of, lease_ms=LEASE_MS, sinks=Sinks(), history="brief")
    grouper = Grouper(runner)
    while True:
        received = [one for name in app.queues for one in runtime.engine.queues.open(name).receive(10)]
        if not received:
            return
        perform(runner, grouper, runner.begin(received))


def perform(runner: Runner, grouper: Grouper, ready: list[Execution]) -> None:
    """Perform and finish runs, and the runs that waited behind them."""
    while ready:
        following = grouper.perform([run for run in ready if run.job.policy.effect != "external"])
        for run in ready:
            if run.job.policy.effect == "external":
                runner.perform(run)
                following += runner.finish([run])
        ready = following


def die_at(number: int, runtime: Runtime) -> list[str]:
    """Report when point `number` is reached, and wait there to be killed; returns the points so far."""
    global point  # noqa: PLW0603 - handlers call it by its name
    passed: list[str] = []

    def stop(name: str) -> None:
        if len(passed) == number:
            os.write(1, f"at {number} {name}\n".encode())
            while True:
                signal.pause()
        passed.append(name)

    point = stop
    runtime.engine.database._writer.set_trace_callback(lambda text: stop(" ".join(text.split())[:60]))  # type: ignore[attr-defined]  # SQLite's own
    return passed


def _live(order: dict[str, Any]) -> None:
    os.write(1, f"pid {os.getpid()}\n".encode())
    shop = Shop(order["path"], order["effects"], order["on_unknown"])
    runtime = shop.app.runtime()
    runtime.engine.appear()
    passed = die_at(order["point"], runtime)
    work(shop.app, runtime)
    os.write(1, f"done {len(passed)}\n".encode())


def main(live: Callable[[dict[str, Any]], None] = _live) -> None:
    """Fork a process for each order, and call `live` in it."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                live(json.loads(line))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.write(1, b"gone\n")


if __name__ == "__main__":
    main()
