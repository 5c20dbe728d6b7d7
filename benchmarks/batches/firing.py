"""Next firings of cron expressions per second: onefold's, or a library's beside it.

`python -m benchmarks.batches.firing --subject onefold|croniter|cronsim --count 20000` prints one JSON line. Every expression
is walked onwards from 1 January 2026, one firing after the other, as a scheduler and a calendar do; the libraries get the
same schedule in their own five fields. Parsing is not timed.
Never here: which is right (docs/decisions/0012). Invariant: each subject computes the same number of firings.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

EXPRESSIONS = (
    ("*/5 * * * ? *", "*/5 * * * *", "UTC"),
    ("0 3 1 * ? *", "0 3 1 * *", "Europe/London"),
    ("30 9 ? * MON-FRI *", "30 9 * * MON-FRI", "America/New_York"),
    ("0 18 L * ? *", "0 18 L * *", "Asia/Tokyo"),
    ("15 10 ? * 6#3 *", "15 10 * * FRI#3", "Europe/Berlin"),
)
"""The same five schedules as EventBridge writes them and as cron does."""
START = datetime(2026, 1, 1, tzinfo=UTC)


def onefold() -> list[Iterator[object]]:
    """Firings of each schedule by onefold."""
    from onefold.schedules.fire_times import Timing, next_after, parse

    def walk(timing: Timing) -> Iterator[object]:
        at_ms: int | None = round(START.timestamp() * 1_000)
        while at_ms is not None:
            at_ms = next_after(timing, at_ms, anchor_ms=0)
            yield at_ms

    return [walk(Timing(parse(f"cron({text})"), zone=zone)) for text, _, zone in EXPRESSIONS]


def croniter() -> list[Iterator[object]]:
    """The same by croniter."""
    from croniter import croniter as library

    def walk(text: str, zone: str) -> Iterator[object]:
        found = library(text, START.astimezone(ZoneInfo(zone)))
        while True:
            yield found.get_next(float)

    return [walk(text, zone) for _, text, zone in EXPRESSIONS]


def cronsim() -> list[Iterator[object]]:
    """The same by cronsim."""
    from cronsim import CronSim

    return [iter(CronSim(text, START.astimezone(ZoneInfo(zone)))) for _, text, zone in EXPRESSIONS]


SUBJECTS: dict[str, Callable[[], list[Iterator[object]]]] = {
    "onefold": onefold,
    "croniter": croniter,
    "cronsim": cronsim,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subject", choices=tuple(SUBJECTS), required=True)
    parser.add_argument("--count", type=int, default=20_000)
    options = parser.parse_args()
    walks = SUBJECTS[options.subject]()
    each = options.count // len(walks)
    begun = time.perf_counter()
    for walk in walks:
        for _ in islice(walk, each):
            pass
    seconds = time.perf_counter() - begun
    print(json.dumps({"firings_per_s": each * len(walks) / seconds}))


if __name__ == "__main__":
    main()
