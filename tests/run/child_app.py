"""An app whose handlers run in child processes: some are well, some end their process. Imported afresh by each child."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import msgspec

import onefold

app = onefold.App("shop", url=f"sqlite:///{os.environ.get('ONEFOLD_TEST_DB', '/nonexistent/shop.db')}")
queue = app.queue("orders")


class Order(msgspec.Struct):
    id: str
    how: str = "well"
    where: str = ""


def found(order: Order) -> onefold.Done | onefold.NotDone | onefold.StillUnknown:
    match order.how:
        case "found":
            label.send(Order("found-label"))
            return onefold.Done(f"found by {os.getpid()}")
        case "lost":
            os._exit(9)
        case _:
            return onefold.StillUnknown("nobody knows")


@app.job(app.queue("apart"), key="{id}", executor="process")
def apart(order: Order) -> int:
    return os.getpid()


@app.job(app.queue("inside"), key="{id}", executor="thread")
def inside(order: Order) -> int:
    return os.getpid()


@app.job(queue, key="{id}", timeout="1s", on_unknown="hold")
def ship(order: Order, ctx: onefold.Context) -> dict[str, Any]:
    match order.how:
        case "exit":
            os._exit(7)
        case "signal":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "spin":
            while True:
                pass
        case "start":
            subprocess.run(["sleep", "600"], check=False)
        case "raise":
            raise onefold.PermanentError("no such street")
        case "interrupt":
            raise KeyboardInterrupt
        case "term":
            os.kill(os.getpid(), signal.SIGTERM)
        case "send":
            label.send(Order("label"))
        case "count":
            ctx.count("parcels_shipped", 3)
    return {"pid": os.getpid(), "attempt": ctx.attempt, "key": ctx.idempotency_key}


@app.job(queue, key="{id}", timeout="30m")
def wait(order: Order) -> None:
    Path(order.where).write_text(f"{os.getpid()}\n")  # a FIFO: whoever reads it knows that the handler runs
    threading.Event().wait()


@app.job(queue, key="{id}")
async def label(order: Order) -> int:
    await asyncio.to_thread(lambda: None)
    return os.getpid()


@app.job(queue, key="{id}", on_unknown=found)
def ask(order: Order) -> str:
    return f"done by {os.getpid()}"


@app.job(queue, key="{id}", effect="transactional")
def note(order: Order, ctx: onefold.Context) -> int:
    ctx.connection.execute("INSERT INTO noted VALUES (?)", (order.id,))
    return os.getpid()
