"""An app on SQS whose handler containers run. It writes a line to the file SHOP_LOG whenever a job is called."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import onefold

app = onefold.App("shop")
orders = app.queue("orders", visibility="4s")
parcels = app.queue("parcels", fifo=True, visibility="4s")
notes = app.queue("notes", visibility="4s")
RETRY = onefold.Retry(attempts=3, base="1s", factor=1.0, jitter="none")


def log(line: str) -> None:
    with open(os.environ["SHOP_LOG"], "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


@app.job(orders, key="{id}", retry=RETRY)
def ship(order: dict[str, Any], ctx: onefold.Context) -> str:
    log(f"ship {order['id']} {ctx.attempt}")
    do = order.get("do")
    if do == "fail-once" and ctx.attempt == 1:
        raise onefold.TransientError("busy")
    if do == "fail-long":
        raise onefold.TransientError("busy", retry_in_ms=60_000)
    if do == "poison":
        raise onefold.PermanentError("no such customer")
    if do == "die" and ctx.attempt == 1:
        os._exit(3)
    if do == "note":
        note.send({"id": order["id"]})
    return "shipped"


@app.job(parcels, key="{id}", group="{customer}", retry=RETRY, after_failure="skip")
def carry(parcel: dict[str, Any], ctx: onefold.Context) -> None:
    log(f"carry {parcel['id']} {ctx.attempt}")
    if parcel.get("do") == "fail-once" and ctx.attempt == 1:
        raise onefold.TransientError("busy")


@app.job(notes, key="{id}", retry=RETRY)
async def note(payload: dict[str, Any]) -> None:
    await asyncio.to_thread(log, f"note {payload['id']}")


handler = app.lambda_handler()
