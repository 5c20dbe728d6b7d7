"""A thread makes its first `send`, which imports and opens all, while the main thread forks; the child sends too."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from dataclasses import dataclass

import onefold

PATIENCE_S = 60.0


@dataclass
class Order:
    name: str


app = onefold.App("forked", url=f"sqlite:///{sys.argv[1]}")


@app.job(app.queue("orders"), key="{name}")
def ship(order: Order) -> None:
    """Never run."""


thread = threading.Thread(target=lambda: ship.send(Order("thread")))
thread.start()
threading.Event().wait(float(sys.argv[2]))
child = os.fork()
if not child:
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    ship.send(Order("child"))
    os._exit(0)
_, status = os.waitpid(child, 0)
thread.join()
os._exit(os.waitstatus_to_exitcode(status))
