"""A map run over a CSV of many rows by one worker: items a second, its largest memory, and what resuming costs.

`python -m benchmarks.batches.mapping --folder DIR --rows 1000000` prints one JSON line. The worker gets SIGKILL when half of
the rows are done, and another takes over: `resume_s` is from its start to the first row that it finishes. Items a second
count everything from the first worker's start to the run's end, the kill and the takeover included.
Never here: the job (`map_shop`). Invariant: the run ends with every row done, and the file's rows are all different.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from benchmarks.trials import Figures, wait_until

APP = "benchmarks.batches.map_shop:app"
RUN = "load/2026-06-01"
PROCESS_S = 3_600


def write_rows(place: Path, count: int) -> None:
    """A CSV of orders, about 60 bytes each."""
    with place.open("w", encoding="ascii", newline="") as file:
        file.write("order_id,customer,amount,note\n")
        for number in range(count):
            file.write(f'2026-{number:09d},customer-{number % 9_973},{number % 1_000}.00,"twice, please"\n')


def worker() -> subprocess.Popen[bytes]:
    """A worker that ends when nothing is left."""
    command = [sys.executable, "-m", "onefold", "worker", APP, "--until-empty", "--no-progress"]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def memory_mb(pid: int) -> float:
    """The largest resident size so far; 0 for a process that is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return 0.0
    found = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(found[0].split()[1]) / 1024 if found else 0.0


def completed(file: Path, after: int = 0) -> tuple[int, bool]:
    """The last row of history, and whether one after `after` tells of a finished item."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=60)) as link:
        last = link.execute("SELECT coalesce(max(id), 0) FROM onefold_ledger").fetchone()[0]
        found = link.execute(
            "SELECT 1 FROM onefold_ledger WHERE id > ? AND event = 'completed' LIMIT 1", [after]
        ).fetchone()
    return last, found is not None


def measure(folder: Path, rows: int) -> Figures:
    """The figures of one run in a new engine in `folder`."""
    file = folder.absolute() / "bench.db"
    os.environ["ONEFOLD_URL"] = f"sqlite:///{file}"
    write_rows(folder / "orders.csv", rows)
    start = ["map", "start", "load", APP, "--items", str(folder / "orders.csv"), "--name", RUN, "--detach"]
    subprocess.run([sys.executable, "-m", "onefold", *start], check=True, stdout=subprocess.DEVNULL)
    begun = time.monotonic()
    first = worker()
    wait_until(lambda: completed(file)[0] >= rows, PROCESS_S, "half of the rows")  # two rows of history for each
    largest_mb = memory_mb(first.pid)
    first.kill()
    first.wait()
    last, _ = completed(file)
    resumed = time.monotonic()
    second = worker()
    wait_until(lambda: completed(file, last)[1], PROCESS_S, "a row after the kill")
    resume_s = time.monotonic() - resumed
    while second.poll() is None:
        largest_mb = max(largest_mb, memory_mb(second.pid))
        time.sleep(0.05)
    seconds = time.monotonic() - begun
    shown = subprocess.run(
        [sys.executable, "-m", "onefold", "map", "show", RUN, APP, "--json"], check=True, stdout=subprocess.PIPE
    )
    found = json.loads(shown.stdout)
    assert (found["status"], found["done"]) == ("succeeded", rows), found
    return {"per_s": rows / seconds, "resume_s": resume_s, "rss_mb": largest_mb}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    options = parser.parse_args()
    print(json.dumps(measure(options.folder, options.rows)))


if __name__ == "__main__":
    main()
