"""One worker process of the demo: `python -m onefold.demo.worker --url ... --setup ... --partner PORT`.

Prints `ready OWNER` before it receives; drains on SIGTERM, stops at once on a second one, and also when its standard input
ends, so that no worker outlives the process that started it, however that one ended.
Here: the worker of `service/workers.py` with the demo's shop, and its fault if one is to be built in. Never here: what a
worker does, kills. Invariant: without `--plant` nothing of `plant` is used.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from functools import partial

from onefold.demo import plant
from onefold.demo.courier import Courier
from onefold.demo.fulfilment import Probe, shop
from onefold.run.worker import Worker, WorkerSettings
from onefold.service.workers import make_worker


def main(arguments: list[str]) -> int:
    """Run the worker until it is told to stop; its exit code: 0 drained, 3 with work in hand."""
    parser = argparse.ArgumentParser(prog="python -m onefold.demo.worker", description="One worker of the demo.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--setup", choices=("keys", "probe", "hold"), required=True)
    parser.add_argument("--partner", type=int, required=True, metavar="PORT")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--plant", choices=("no-fence",))
    options = parser.parse_args(arguments)

    courier = Courier(options.partner)
    probe: Probe | None = None
    if options.plant is not None:
        probe = partial(plant.only_looking, courier)
    app = shop(options.setup, options.url, courier, probe=probe)
    runtime = app.runtime()
    if options.plant is not None:
        runtime.backend = plant.without_fence(runtime.backend)
    settings = WorkerSettings(threads=options.threads)
    worker = make_worker(runtime, app.jobs, app.job_of, settings=settings, history=app.history)
    signal.signal(signal.SIGTERM, lambda _number, _frame: worker.stop_now() if worker.draining else worker.drain())
    threading.Thread(target=_stop_at_end_of_input, args=(worker,), daemon=True).start()
    sys.stdout.write(f"ready {runtime.owner}\n")
    sys.stdout.flush()
    report = worker.run()
    if report.code == 0:
        app.close()
    return report.code


def _stop_at_end_of_input(worker: Worker) -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    worker.stop_now()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
