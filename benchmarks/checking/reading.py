"""Time and memory of checking: `python -m benchmarks.checking.reading warm FOLDER`, or `... once PROGRAM WORDS`.

It prints one JSON line: seconds, and the largest resident size in MB. A program may end with any exit code below 126, as
linters do when they find something.
Never here: making templates (`templates`). Invariant: a run that read nothing is no figure.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

TODAY = date(2026, 11, 28)


def once(command: list[str]) -> dict[str, float]:
    """A process from its start to its exit."""
    started = time.monotonic()
    ended = subprocess.run(command, capture_output=True, check=False)
    seconds = time.monotonic() - started
    if ended.returncode >= 126:
        raise SystemExit(ended.stderr.decode(errors="replace")[-2_000:])
    return {"s": seconds, "mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1_024}


def warm(folder: Path) -> dict[str, float]:
    """All templates of a folder in this process, which has read one before."""
    from onefold.check.checking import check
    from onefold.check.rules import RULES

    check([next(folder.iterdir())], RULES, TODAY)
    started = time.monotonic()
    checked = check([folder], RULES, TODAY)
    seconds = time.monotonic() - started
    assert len(checked.files) == len(list(folder.iterdir()))
    assert not checked.findings
    return {
        "s": seconds,
        "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024,
        "per_s": len(checked.files) / seconds,
    }


if __name__ == "__main__":
    print(json.dumps(warm(Path(sys.argv[2])) if sys.argv[1] == "warm" else once(sys.argv[2:])))
