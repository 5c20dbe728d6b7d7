"""Looks at the alarms of an app with many queues, each with a job, a dead-letter and a held queue; prints figures as JSON.

`python -m benchmarks.watching.alarms --file shop.db --queues 1000`: the time of one look of a `Watch` (reading the engine,
evaluating each alarm of each queue, writing what changed) while nothing is wrong, when an alarm of each queue begins at
once, and while all of these are on. Each look is a new watch's, so that none has read anything before.
Never here: goals. Invariant: the file is on the disk that is measured, and what a look writes is durable.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median

import onefold
from onefold.observe.watch import Watch

LOOKS = 5


def make_app(file: Path, queues: int) -> onefold.App:
    app = onefold.App("shop", url=f"sqlite:///{file}")
    for number in range(queues):
        app.job(app.queue(f"queue-{number}"), key="{id}", name=f"job-{number}")(_nothing)
    app.alarms(command=["true"])
    return app


def _nothing(payload: dict[str, str]) -> None:
    """What each job does."""


def look_ms(app: onefold.App, reports: int) -> float:
    """One look, which reports so many beginnings."""
    watch = Watch(app.runtime(), app.registry.alarms)
    started = time.monotonic()
    found = watch.look()
    ms = (time.monotonic() - started) * 1_000
    assert len(found) == reports, (len(found), reports)
    return ms


def figures(file: Path, queues: int) -> dict[str, float]:
    app = make_app(file, queues)
    runtime = app.runtime()
    for job in app.jobs:
        if job.startswith("job-"):
            app.jobs[job].send({"id": "1"})
    quiet = [look_ms(app, 0) for _ in range(LOOKS)]
    for number in range(queues):
        name = f"queue-{number}"
        runtime.engine.queues.move([(one.message_id, f"{name}-dead", None) for one in runtime.engine.queues.peek(name)])
    begins = look_ms(app, queues)
    on = [look_ms(app, 0) for _ in range(LOOKS)]
    app.close()
    return {"quiet_ms": median(quiet), "begins_ms": begins, "on_ms": median(on)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--queues", type=int, default=1_000)
    options = parser.parse_args()
    print(json.dumps(figures(options.file, options.queues)))


if __name__ == "__main__":
    main()
