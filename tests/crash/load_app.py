"""The app whose workers are killed under load: `onefold worker tests.crash.load_app:app`, as a user would start it.

Three jobs: `ship` has its effect in a file outside, `enter` in a row and a letter, `count` in a row in the order of its
group. Each handler writes its process id into a pipe before and after its effect, so that the test knows which worker
is at work.
The environment says where: ONEFOLD_URL, EFFECTS (a file) and PROGRESS (the pipe's descriptor).
Does not contain: kills, judging. Invariant: one effect is one line or one row, written as a whole or not at all.
"""

from __future__ import annotations

import os
from contextlib import suppress

import onefold

app = onefold.App("load")
parcels, entries, letters = (app.queue(name, dead_letter=onefold.DeadLetter(after=1_000)) for name in ("p", "e", "l"))
counts = app.queue("c", fifo=True, dead_letter=onefold.DeadLetter(after=1_000))
PATIENT = onefold.Retry(attempts=1_000, base="10ms", cap="100ms", crashes=1_000)

_effects = os.open(os.environ["EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
_progress = int(os.environ["PROGRESS"])


def _under_way() -> None:
    with suppress(BlockingIOError):  # the test reads more slowly: the pipe is full
        os.write(_progress, os.getpid().to_bytes(4, "big"))


@app.job(parcels, key="{id}", retry=PATIENT)
def ship(order: dict[str, str], ctx: onefold.Context) -> str:
    """An effect outside."""
    _under_way()
    os.write(_effects, f"{ctx.key} {ctx.fence} {ctx.attempt} {os.getpid()}\n".encode())
    _under_way()
    return "shipped"


@app.job(letters, key="{id}", retry=PATIENT, effect="transactional")
def post(letter: dict[str, str], ctx: onefold.Context) -> None:
    """What `enter` sends."""
    ctx.connection.execute("INSERT INTO posted (key) VALUES (?)", (letter["id"],))


@app.job(entries, key="{id}", retry=PATIENT, effect="transactional")
def enter(order: dict[str, str], ctx: onefold.Context) -> str:
    """A row and a letter."""
    _under_way()
    ctx.connection.execute("INSERT INTO entered (key) VALUES (?)", (order["id"],))
    post.send({"id": order["id"]})
    _under_way()
    return "entered"


@app.job(counts, key="{group}/{number}", group="{group}", retry=PATIENT, effect="transactional")
def count(one: dict[str, int], ctx: onefold.Context) -> None:
    """A row in the order of its group."""
    _under_way()
    ctx.connection.execute("INSERT INTO counted (grp, number) VALUES (?, ?)", (one["group"], one["number"]))
