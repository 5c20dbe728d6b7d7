"""The inside of a measured process: what its jobs do, and the two commands that drive every tool under test.

A tool is a module with `send(text)`, which returns when the job is accepted, `work()`, which runs jobs until the
process is killed, and, where the tool has them, `send_many(texts)` and `connect()`, called before sends are timed.
`python -m benchmarks.probe MODULE send --count N` sends and prints figures as JSON, `... MODULE worker` works. The tool's
job calls `probe.handler()`'s answer with its body's note. What the job does comes from the environment, so that every
tool runs the same lines:

    BENCH_JOB     noop: counts | stamped: measures the time since the body was sent | stuck: never ends the first time
    BENCH_EVERY   how many jobs there are between two reports of a process
    BENCH_REPORTS a directory where each process writes its reports, whole files only
    BENCH_PLACE   a directory for the tool's own files; BENCH_REDIS_URL the Redis to use

Never here: a tool's own API, anything but the standard library (this runs in other tools' environments).
Invariant: the clock is `time.monotonic`, which all processes of a machine share.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

BODY_BYTES = 200
"""Size of every payload, from the issue; the body is JSON so that tools that decode it may."""

Job = Callable[[str], None]


def place() -> Path:
    return Path(os.environ["BENCH_PLACE"])


def redis_url() -> str:
    return os.environ["BENCH_REDIS_URL"]


def body(number: int, sent_at_ns: int = 0) -> str:
    """Returns JSON of exactly 200 bytes; both numbers can be read back out of it."""
    start = f'{{"order_id":"order-{number:010d}","note":"{sent_at_ns:020d}'
    return start + "x" * (BODY_BYTES - len(start) - 2) + '"}'


def note(text: str) -> str:
    """Returns a body's note, which begins with when it was sent; a job is called with this."""
    start = text.index('"note":"') + 8
    return text[start:-2]


def report(figures: object, name: str | None = None) -> None:
    """Writes a report of this process so that a reader sees the whole file or none."""
    final = Path(os.environ["BENCH_REPORTS"]) / f"{name or os.getpid()}.json"
    draft = final.with_suffix(f".{os.getpid()}.draft")
    draft.write_text(json.dumps(figures))
    draft.rename(final)


class Noop:
    """Counts; several threads may call it. Reports how many jobs this process did, and when the first and last began."""

    def __init__(self) -> None:
        self.every = int(os.environ["BENCH_EVERY"])
        self.done = 0
        self.first_at = 0.0
        self.lock = threading.Lock()

    def __call__(self, note: str) -> None:
        with self.lock:
            self.done += 1
            if self.done == 1:
                self.first_at = time.monotonic()
            if self.done % self.every == 0:
                report({"done": self.done, "first_at": self.first_at, "last_at": time.monotonic()})


class Stamped:
    """Notes how long ago its body was sent, in milliseconds; several threads may call it."""

    def __init__(self) -> None:
        self.every = int(os.environ["BENCH_EVERY"])
        self.ms: list[float] = []
        self.lock = threading.Lock()

    def __call__(self, note: str) -> None:
        ms = (time.monotonic_ns() - int(note[:20])) / 1e6
        with self.lock:
            self.ms.append(ms)
            if len(self.ms) % self.every == 0:
                report(self.ms)


class Stuck:
    """The first run says that it began and hangs until it is killed; the next run says when it began."""

    def __call__(self, note: str) -> None:
        began = Path(os.environ["BENCH_REPORTS"]) / "began.json"
        if began.exists():
            report(time.monotonic(), "again")
            return
        report(os.getpid(), "began")
        time.sleep(120)


def handler() -> Job:
    """Returns what a job of this process does; does nothing where nothing is measured (the sending process)."""
    kinds: dict[str, Callable[[], Job]] = {"noop": Noop, "stamped": Stamped, "stuck": Stuck}
    name = os.environ.get("BENCH_JOB")
    return kinds[name]() if name else lambda note: None


def paced(numbers: range, per_s: float) -> Iterator[str]:
    """Yields a body at each due instant, stamped with that moment."""
    started = time.monotonic()
    for place_in_line, number in enumerate(numbers):
        time.sleep(max(0.0, started + place_in_line / per_s - time.monotonic()))
        yield body(number, time.monotonic_ns())


def send_and_print(
    options: argparse.Namespace,
    send: Callable[[str], object],
    send_many: Callable[[Sequence[str]], object] | None,
) -> None:
    numbers = range(options.first, options.first + options.count)
    if options.per_s:
        for text in paced(numbers, options.per_s):
            send(text)
        return
    texts = [body(number) for number in numbers]
    started = time.monotonic()
    if send_many is not None and options.bulk:
        send_many(texts)
    else:
        for text in texts:
            send(text)
    ended = time.monotonic()
    seconds = ended - started
    figures = {"per_s": options.count / seconds, "us": seconds / options.count * 1e6}
    print(json.dumps({**figures, "started_at": started, "ended_at": ended}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("module", help="the tool's module")
    parser.add_argument("command", choices=["send", "worker"])
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first job; its key is made from it")
    parser.add_argument("--per-s", type=float, help="send at this rate instead of as fast as possible")
    parser.add_argument("--bulk", action="store_true", help="in bulk where the tool can")
    options = parser.parse_args()
    tool = import_module(options.module)
    if options.command == "worker":
        tool.work()
    else:
        getattr(tool, "connect", lambda: None)()
        send_and_print(options, tool.send, getattr(tool, "send_many", None))


def become(*command: str) -> None:
    """Replaces this process by the tool's own command, from the environment that this Python runs in."""
    program = Path(sys.executable).parent / command[0]
    os.execv(program, [str(program), *command[1:]])


if __name__ == "__main__":
    main()
