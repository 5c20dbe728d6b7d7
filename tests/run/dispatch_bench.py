"""How fast a dispatcher enqueues, and what it has in memory meanwhile: a run of so many messages into a file.

    python -m tests.run.dispatch_bench FILE COUNT [LOOK ...]

writes one JSON document: messages per second with their rows and checkpoints, seconds for the end of the run, and resident
memory after each LOOK messages and at the peak. Never here: expectations. Invariant: the file is new.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from onefold.clock import SystemClock
from onefold.runner import runs
from onefold.runner.dispatcher import Dispatch
from onefold.runtime.outgoing import Outgoing
from tests.run.billing import NOMINAL_MS, RUN, Billing

PAGE_BYTES = resource.getpagesize()


def resident_mb() -> float:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES / 1e6


def measure(path: Path, count: int, looks: Sequence[int] = ()) -> dict[str, Any]:
    """Dispatch `count` messages into a new file; looks are numbers of messages after which memory is read."""
    billing, clock = Billing(f"sqlite:///{path}"), SystemClock()
    dispatch = Dispatch(billing.app.runtime(), runs.of_tick(RUN, "billing", NOMINAL_MS, 1, dispatches=True))
    resident: dict[int, float] = {}
    began_ms = clock.monotonic_ms()
    for number, one in enumerate(_messages(billing, count), 1):
        if dispatch.add(one):
            dispatch.flush()
        if number in looks:
            resident[number] = resident_mb()
    dispatch.flush()
    sent_ms = clock.monotonic_ms()
    expected = dispatch.end()
    ended_ms = clock.monotonic_ms()
    billing.app.close()
    return {
        "messages": count,
        "expected": expected,
        "per_second": round(count * 1000 / max(sent_ms - began_ms, 1)),
        "end_ms": ended_ms - sent_ms,
        "resident_mb": resident,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "file_bytes_each": round(path.stat().st_size / max(count, 1)),
    }


def _messages(billing: Billing, count: int) -> Iterator[Outgoing]:
    for number in range(count):
        yield billing.charge.message({"customer": f"c-{number:08}"})


if __name__ == "__main__":
    file, total, *at = sys.argv[1:]
    sys.stdout.write(json.dumps(measure(Path(file), int(total), [int(one) for one in at])) + "\n")
