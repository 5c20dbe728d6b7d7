"""One dispatch of many messages by one worker: messages a second, and the largest memory of the worker.

`python -m benchmarks.batches.dispatching --folder DIR --count 1000000` prints one JSON line. The tick is sent as a scheduler
would; the worker has the ticks' queue alone, so nothing works the messages off meanwhile.
Never here: the dispatcher (`shop`). Invariant: timed is from its first line to its end, in the worker's own process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.trials import Figures

NOMINAL_MS = 1_780_282_800_000  # 2026-06-01T03:00:00Z


def measure(folder: Path, count: int) -> Figures:
    """Dispatch into a new engine in `folder`."""
    found = folder / "figures.json"
    os.environ["ONEFOLD_URL"] = f"sqlite:///{folder.absolute() / 'bench.db'}"
    os.environ["BENCH_COUNT"], os.environ["BENCH_FIGURES"] = str(count), str(found)
    from benchmarks.batches.shop import app, dispatch

    dispatch.job.deliver([dispatch.outgoing(NOMINAL_MS)])
    app.close()
    options = ["--queues", "ticks", "--threads", "1", "--until-empty", "--no-progress"]
    subprocess.run(
        [sys.executable, "-m", "onefold", "worker", "benchmarks.batches.shop:app", *options],
        check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    seen = json.loads(found.read_text())
    return {"per_s": count / seen["seconds"], "rss_mb": seen["rss_mb"], "cpu_us": seen["cpu_s"] / count * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--count", type=int, required=True)
    options = parser.parse_args()
    print(json.dumps(measure(options.folder, options.count)))


if __name__ == "__main__":
    main()
