"""A process that looks once at an app's alarms and sends what is to be sent; it kills itself where it is told to.

    python -m tests.observe.watched FOLDER KILL_AT

KILL_AT counts what is durable: each write of State, each send, each appended history; `0` never. An odd number is just
before a call, an even one just after it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onefold
from onefold.observe import incidents
from onefold.observe.alarm_targets import QUEUE
from onefold.observe.watch import Watch
from onefold.options import WorkerSettings
from onefold.runner import worker_setup

COMMAND = """
import os, pathlib, signal, sys
folder = pathlib.Path(sys.argv[1])
with open(folder / "ids", "a") as ids:
    ids.write(os.environ["ONEFOLD_ALARM_ID"] + chr(10))
if (folder / "kill").exists():
    (folder / "kill").unlink()
    os.kill(os.getppid(), signal.SIGKILL)
"""
"""What the command of the app does: it notes the report's name, and ends who called it where a file `kill` says so."""


def make_app(folder: Path) -> onefold.App:
    app = onefold.App("shop", url=f"sqlite:///{folder}/shop.db")
    orders = app.queue("orders")

    @app.job(orders, key="{id}")
    def book(payload: dict[str, str]) -> None:
        raise onefold.PermanentError("There is no such customer.")

    channel = {"slack": "env:SLACK_BOT_TOKEN", "slack_channel": "C0123ABCD"} if "SLACK_BOT_TOKEN" in os.environ else {}
    app.alarms(
        **{"slack": "env:HOOK", **channel}, webhook="env:HOOK", email="a@example.com",
        command=[sys.executable, "-c", COMMAND, str(folder)],
    )  # fmt: skip
    return app


class Killer:
    """Counts calls, and ends the process in the middle of its work."""

    def __init__(self, at: int) -> None:
        self._at, self._count = at, 0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            self._step()
            answer = call(*args, **kwargs)
            self._step()
            return answer

        return called

    def _step(self) -> None:
        self._count += 1
        if self._count == self._at:
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path, kill_at: int) -> None:
    app = make_app(folder)
    runtime = app.runtime()
    killer = Killer(kill_at)
    state: Any = runtime.engine.state
    state.put = killer.around(state.put)
    runtime.send = killer.around(runtime.send)  # type: ignore[method-assign]
    incidents.keep = killer.around(incidents.keep)
    Watch(runtime, app.registry.alarms).look()
    worker_setup.make_worker(
        runtime, app.jobs, app.registry.job_of, settings=WorkerSettings(threads=1, until_empty=True), queues=[QUEUE]
    ).run()
    app.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
