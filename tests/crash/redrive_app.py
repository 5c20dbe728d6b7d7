"""The app whose stopped FIFO groups are sent back while messages go on arriving; a worker runs it as a user would start it.

Every tenth message of a group fails for good in its first run, which stops its group (after_failure=stop); its second
run succeeds. Each message that is done is a line in a file, written in one call.
The environment says where: ONEFOLD_URL, EFFECTS (the file) and ONCE (a folder with a file for each message that has
failed).
Does not contain: sending, redriving, judging.
"""

from __future__ import annotations

import os
from pathlib import Path

import onefold

app = onefold.App("redrive")
lines = app.queue("lines", fifo=True)

_effects = os.open(os.environ["EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
_once = Path(os.environ["ONCE"])


@app.job(lines, key="{group}/{number}", group="{group}", effect="external")
def step(one: dict[str, int]) -> None:
    """One message of a group."""
    if one["number"] % 10 == 3 and not (failed := _once / f"{one['group']}-{one['number']}").exists():
        failed.touch()
        raise onefold.PermanentError("not the first time")
    os.write(_effects, f"{one['group']} {one['number']}\n".encode())
