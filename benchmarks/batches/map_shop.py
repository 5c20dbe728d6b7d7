"""The app of the map benchmark: a job for each row of a file of orders, which does nothing but answer.

Its engine is ONEFOLD_URL. Never here: starting anything.
"""

from __future__ import annotations

import onefold

app = onefold.App("bench")


@app.map(app.queue("rows"), key="{order_id}", tolerated_percent=1)
def load(row: dict[str, str]) -> str:
    """Answer with the order."""
    return row["order_id"]
