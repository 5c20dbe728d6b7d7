"""A scheduler with many schedules: its first start, a later start, and what a tick costs.

`python -m benchmarks.batches.scheduling --folder DIR --schedules 100000` prints one JSON line. Each schedule fires once
a day, at a minute of its own; the clock is set on minute by minute for two hours, and every tick is sent durably. The first
start registers all schedules, the later one finds them unchanged, as after a deployment. Declaring them is timed apart.
Never here: waiting. Invariant: every tick of the two hours was sent, and no other.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path

import onefold
from benchmarks.trials import Figures
from onefold import limits
from onefold.manual_clock import ManualClock
from onefold.schedules.scheduler import make_scheduler

START_MS = 1_780_272_000_000  # 2026-06-01T00:00:00Z
DAY_MINUTES = 1_440
MINUTES = 120


def declare(url: str, clock: ManualClock, schedules: int) -> onefold.App:
    """An app with so many schedules, all of one function."""
    app = onefold.App("bench", url=url, clock=clock)

    def report(tick: onefold.Tick) -> None:
        """Nothing."""

    for number in range(schedules):
        minute = number % DAY_MINUTES
        app.schedule(f"cron({minute % 60} {minute // 60} * * ? *)", name=f"report-{number}")(report)
    return app


def timed_ms(work: Callable[[], object]) -> float:
    """Milliseconds of a call."""
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1e3


def measure(folder: Path, schedules: int) -> Figures:
    """All figures, of a new engine in `folder`."""
    clock = ManualClock(START_MS - limits.SECOND_MS)
    begun = time.perf_counter()
    app = declare(f"sqlite:///{folder.absolute() / 'bench.db'}", clock, schedules)
    declared_ms = (time.perf_counter() - begun) * 1e3
    app.runtime()
    first_ms = timed_ms(make_scheduler(app.runtime()).start)
    scheduler = make_scheduler(app.runtime())
    again_ms = timed_ms(scheduler.start)
    turns_ms = 0.0
    for minute in range(MINUTES):
        clock.advance(START_MS + minute * limits.MINUTE_MS - clock.now_ms())
        turns_ms += timed_ms(lambda: [None for _ in iter(scheduler.turn, False)])
    expected = sum(number % DAY_MINUTES < MINUTES for number in range(schedules))
    assert scheduler.sent == expected, f"{scheduler.sent} ticks of {expected} were sent"
    app.close()
    return {
        "declare_us": declared_ms * 1e3 / schedules, "first_ms": first_ms, "again_ms": again_ms,
        "tick_us": turns_ms * 1e3 / scheduler.sent, "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--schedules", type=int, required=True)
    options = parser.parse_args()
    print(json.dumps(measure(options.folder, options.schedules)))


if __name__ == "__main__":
    main()
