"""A process without free file descriptors for a while: what needs one is a transient error, and the worker goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PATIENCE_S = 60
LIMIT = 256
HOG = f"""
import os, resource, sys, threading
resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT}))

def hog():
    held = []
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return held

def free(held):
    for one in held:
        os.close(one)
"""
ENGINE = """
from onefold import errors
from onefold.clock import SystemClock
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.entropy import SystemEntropy

def opened():
    return SqliteEngine("s.db", clock=SystemClock(), entropy=SystemEntropy(), owner="me", url="")

engine = opened()
engine.appear()
engine.maintain(print)
held = hog()
for attempt in (lambda: engine.maintain(print), opened):
    try:
        attempt()
    except errors.StorageBusy as error:
        print(error)
free(held)
engine.maintain(print)
engine.close()
print("went on")
"""
WORKER = """
import onefold

busy, booking = threading.Event(), threading.Event()

class Sink:
    def emit(self, event):
        if event.name == "engine-busy":
            busy.set()
    def flush(self): ...

app = onefold.App("spike", url="sqlite:///s.db", sinks=[Sink()])
jobs = app.queue("jobs")

@app.job(jobs, key="b{n}", on_unknown="hold")
def book(order: dict[str, int]) -> int:
    booking.set()
    assert busy.wait(PATIENCE_S)
    return order["n"]

@app.job(jobs, key="s{n}", on_unknown="hold")
def spike(order: dict[str, int]) -> int:
    assert booking.wait(PATIENCE_S)
    held = hog()
    came = busy.wait(PATIENCE_S)
    free(held)
    assert came
    assert "onefold.record.failures" in sys.modules  # what judges a failure is not loaded when the first one comes
    raise onefold.PermanentError("enough")

if __name__ == "__main__":
    book.send({"n": 1})
    spike.send({"n": 1})
"""


def run(arguments: list[str], folder: Path, warned: str = "") -> str:
    """What a Python process in the folder printed; it must exit with 0, and print at most one such warning."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [warned in line for line in done.stderr.splitlines()] == [True] * bool(warned), done.stderr
    return done.stdout


def test_what_needs_a_descriptor_is_refused_for_now_and_names_the_limit(tmp_path: Path) -> None:
    *refused, last = run(["-c", HOG + ENGINE], tmp_path).splitlines()
    assert last == "went on"
    said = "\n".join(refused)
    assert said.count("could not be opened: Too many open files.") == 2
    assert said.count(f"`ulimit -n`, now {LIMIT}") == 2


def test_a_worker_goes_on_after_a_moment_without_descriptors(tmp_path: Path) -> None:
    (tmp_path / "spiky.py").write_text(HOG + WORKER.replace("PATIENCE_S", str(PATIENCE_S)))
    run(["spiky.py"], tmp_path)
    command = "from onefold.cli.main import main; main()"
    said = json.loads(
        run(
            ["-c", command, "worker", "spiky:app", "--threads", "2", "--until-empty", "--json"],
            tmp_path,
            "engine could not be",
        )
    )
    counts = said["counts"]
    assert (counts["completed"], counts["buried"]) == (1, 1), said
