"""The app of `test_clock_step.py`: its clock is the machine's, set forward or back by the milliseconds in a file.

Environment: ONEFOLD_URL, STEP (that file), STARTED (a file, a line for each run), GATE (a named pipe that long runs
read).
"""

from __future__ import annotations

import os
from pathlib import Path

import onefold
from onefold.clock import SystemClock


class StepClock(SystemClock):
    """As if somebody had set the machine's clock."""

    def now_ms(self) -> int:
        """Wall time, with the step in the file."""
        return super().now_ms() + int(Path(os.environ["STEP"]).read_text() or 0)


app = onefold.App("stepped", clock=StepClock())
parcels, letters = app.queue("parcels"), app.queue("letters", fifo=True)


def note(word: str) -> None:
    """Write a line for the test that waits, and for its count."""
    file = os.open(os.environ["STARTED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{word}\n".encode())
    os.close(file)
    os.write(int(os.environ["PROGRESS"]), f"{word}\n".encode())


@app.job(parcels, key="{id}")
def ship(order: dict[str, str]) -> None:
    """Ends at once, or when the gate opens."""
    note(order["id"])
    if order["id"].startswith("long"):
        with open(os.environ["GATE"], "rb") as gate:
            gate.read()


@app.job(letters, key="{id}", group="{group}")
def post(letter: dict[str, str]) -> None:
    """A job of a FIFO queue."""
    note(letter["id"])
