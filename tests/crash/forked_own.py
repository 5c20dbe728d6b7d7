"""A program with an sqlite3 connection of its own forks and ends; its child is refused, and ends when its input ends.

With `others`: another process, which sends 20 messages and waits to be killed.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import suppress
from dataclasses import dataclass

import onefold


@dataclass
class Order:
    name: str


app = onefold.App("forked", url=f"sqlite:///{sys.argv[1]}")


@app.job(app.queue("orders"), key="{name}")
def ship(order: Order) -> None:
    """Never run."""


if sys.argv[2:] == ["others"]:
    for number in range(20):
        ship.send(Order(f"{number}"))
    os.write(1, b"sent\n")
    sys.stdin.read()
else:
    ship.send(Order("before"))
    own = sqlite3.connect(sys.argv[1])
    own.execute("SELECT count(*) FROM onefold_message").fetchall()
    if not os.fork():
        with suppress(onefold.errors.StorageError):
            ship.send(Order("child"))
            os.write(1, b"not ")
        os.write(1, b"refused\n")
        sys.stdin.read()
