"""A process that forks under alarms whose handler raises, while other threads send.

python -m tests.crash.forked_alarmed PATH
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from typing import Any

import onefold
from onefold.entropy import SystemEntropy

FORKS = 400


class AlarmError(Exception):
    """Raised by the alarm's handler."""


def main(path: str) -> None:  # noqa: C901 - one loop
    """Fork, and report what went wrong."""
    app = onefold.App("forked", url=f"sqlite:///{path}")

    @app.job(app.queue("q"), key="{id}")
    def job(payload: dict[str, str]) -> None: ...

    job.send({"id": "first"})  # Python's own locks of modules do not survive an alarm in an import
    over = threading.Event()
    wrong: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    rung = heard = 0

    def send_on(name: str) -> None:
        while not over.is_set():
            try:
                job.send({"id": f"{name}-{sent[name]}"})
                sent[name] += 1
            except Exception as error:  # noqa: BLE001 - counted
                wrong[f"{name}: {error!r}"] += 1

    def ring(*_: Any) -> None:
        nonlocal rung
        rung += 1
        raise AlarmError

    chance = SystemEntropy()
    signal.signal(signal.SIGALRM, ring)
    threads = [threading.Thread(target=send_on, args=(f"t{number}",), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    number = 0
    while number < FORKS and not wrong:
        child = None
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.fraction() ** 2 * 0.008 + 1e-6)
            try:
                number += 1
                child = os.fork()
                if child == 0:
                    os._exit(0)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            os.waitpid(child, 0)
            job.send({"id": f"main-{number}"})
        except AlarmError:
            heard += 1
        except onefold.OnefoldError as error:
            wrong[f"main: {error!r}"] += 1
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    before = dict(sent)
    job.send({"id": "last"})
    while not wrong and any(sent[name] == before.get(name, 0) for name in ("t0", "t1")):
        pass
    over.set()
    for thread in threads:
        thread.join()
    sys.stdout.write(json.dumps({"wrong": wrong, "rung": rung, "heard": heard}))


if __name__ == "__main__":
    main(sys.argv[1])
