"""The app whose processes are stopped in the middle of a handler: `onefold worker tests.crash.stopped_app:app`.

Each handler writes its key and the process's number to one pipe when it begins, and goes on when it can read a byte
from another. Its effect is a line in a file. The environment says where: ONEFOLD_URL, EFFECTS (a file), BEGUN and GATE
(named pipes). `python -m tests.crash.stopped_app KEY` calls a guarded function instead of a job.
Does not contain: signals, judging.
"""

from __future__ import annotations

import ctypes
import os
import sys

import onefold

app = onefold.App("stopped")
LAST = onefold.DeadLetter(after=1)  # each receive is the last one
ONCE = onefold.Retry(attempts=1)
parcels = app.queue("parcels")
last = app.queue("last", dead_letter=LAST)
chain = app.queue("chain", fifo=True)
last_chain = app.queue("last-chain", fifo=True, dead_letter=LAST)


def work(key: str, *, alone: bool = False) -> str:
    with open(os.environ["BEGUN"], "w", encoding="ascii") as begun:
        begun.write(f"{key} {os.getpid()}\n")
    with open(os.environ["GATE"], "rb", buffering=0) as gate:
        if alone:
            ctypes.PyDLL(None).read(gate.fileno(), ctypes.create_string_buffer(1), ctypes.c_size_t(1))
        else:
            gate.read(1)
    with open(os.environ["EFFECTS"], "a", encoding="ascii") as effects:
        effects.write(f"{key}\n")
    return key


@app.job(parcels, key="{id}", timeout="5m")
def ship(order: dict[str, str]) -> str:
    """On a standard queue."""
    return work(order["id"])


@app.job(parcels, key="{id}", timeout="5m")
def hang(order: dict[str, str]) -> str:
    """Runs C code that lets no other thread run, until the gate opens."""
    return work(order["id"], alone=True)


@app.job(last, key="{id}", retry=ONCE, timeout="5m")
def ship_last(order: dict[str, str]) -> str:
    """On a standard queue that dead-letters what is received twice."""
    return work(order["id"])


@app.job(chain, key="{id}", group="{lane}", timeout="5m")
def follow(order: dict[str, str]) -> str:
    """On a FIFO queue, all in one group."""
    return work(order["id"])


@app.job(last_chain, key="{id}", retry=ONCE, group="{lane}", timeout="5m")
def follow_last(order: dict[str, str]) -> str:
    """On a FIFO queue that dead-letters what is received twice."""
    return work(order["id"])


def main(key: str) -> None:
    """Make one guarded call; print its result."""
    store = onefold.store(os.environ["ONEFOLD_URL"])

    @onefold.once(key="{key}", store=store, name="charge", lease="1s")
    def charge(key: str) -> str:
        return work(key)

    print(charge(key), flush=True)  # noqa: T201 - for the test


if __name__ == "__main__":
    main(sys.argv[1])
