"""An app with a map, for the commands' tests."""

from __future__ import annotations

from pathlib import Path

import onefold

app = onefold.App("mill")
queue = app.queue("items")


@app.map(queue, key="{id}", tolerated_count=1, concurrency=50, owner="data")
def grind(row: dict[str, str]) -> str:
    if Path(f"bad-{row['id']}").exists():
        raise onefold.PermanentError("no such item")
    with Path("done.txt").open("a") as file:
        file.write(row["id"] + "\n")
    return row["id"]
