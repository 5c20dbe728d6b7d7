"""Processes that are killed while they dispatch a run, or while they close it; orders and answers as in `victim.py`.

Does not contain: kills, judging. Invariant: the work is done in one thread in one order, so that points have numbers.
"""

from __future__ import annotations

import os
from typing import Any

from onefold.runner.completion import Closer
from onefold.runner.executors import Grouper
from onefold.runner.setup import make_runner
from onefold.runtime.events import Sinks
from onefold.runtime.runtime import Runtime
from tests.crash import victim
from tests.run.billing import RUN, Billing

BATCH = 2


def dispatch(billing: Billing) -> None:
    """Receive the tick and dispatch its run; what is dispatched stays in its queue."""
    runtime = billing.runtime
    runner = make_runner(
        runtime, billing.app.jobs, billing.app.registry.job_of, lease_ms=victim.LEASE_MS, sinks=Sinks(), history="brief"
    )
    grouper = Grouper(runner)
    victim.perform(runner, grouper, runner.begin(runtime.engine.queues.open("ticks").receive(1)))


def close(billing: Billing, runtime: Runtime) -> int:
    """Check the run as a worker's maintenance does; how many runs were closed."""
    closer = Closer(runtime.engine, billing.app.jobs, runtime.clock)
    closer.touch(RUN)
    return closer.check()


def _live(order: dict[str, Any]) -> None:
    os.write(1, f"pid {os.getpid()}\n".encode())
    billing = Billing(f"sqlite:///{order['path']}", batch=BATCH)
    billing.customers = order["customers"]
    runtime = billing.runtime
    runtime.engine.appear()
    passed = victim.die_at(order["point"], runtime)
    if order["work"] == "dispatch":
        dispatch(billing)
    else:
        close(billing, runtime)
    os.write(1, f"done {len(passed)}\n".encode())


if __name__ == "__main__":
    victim.main(_live)
