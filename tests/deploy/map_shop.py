"""An app with one map run, for the same items on the embedded engine and as a Distributed Map on an emulator.

What becomes of a customer is said by its `kind`: fine, flaky (fails once), poisoned (caught), broken (fails for good).
"""

from __future__ import annotations

import onefold
from onefold.options import Function, ItemCatch, ItemRetry
from onefold.runner.context import Context

BUCKET = "map-shop"
KEY = "in/customers.csv"
HEADER = "id,name,kind"

app = onefold.App("mapshop")
customers = app.queue("customers", function=Function(timeout="40s", handler="entry.handler"))
operations = app.queue("operations", function=None)


class FlakyError(Exception):
    """Passes by itself."""


class PoisonedError(Exception):
    """Is to be looked at by a person."""


class BrokenError(Exception):
    """Nobody knows what to do."""


@app.map(
    customers,
    key="{id}",
    name="enrich",
    source=f"s3://{BUCKET}/{KEY}",
    concurrency=4,
    tolerated_percent=20,
    retry=[ItemRetry(errors=["FlakyError"], interval="1s", retries=2)],
    catch=[ItemCatch(queue=operations, errors=["PoisonedError"])],
    timeout="20s",
)
def enrich(row: dict[str, str], ctx: Context) -> dict[str, str]:
    """What the row says."""
    kind = row["kind"]
    if kind == "flaky" and ctx.attempt == 1:
        raise FlakyError("the first time")
    if kind == "poisoned":
        raise PoisonedError("not fit to eat")
    if kind == "broken":
        raise BrokenError("in pieces")
    return {"id": row["id"], "said": row["name"].upper()}


def customers_csv(**kinds: str) -> str:
    """Twenty customers; `c3="broken"` says the kind of the third."""
    rows = [f"{number},name {number},{kinds.get(f'c{number}', 'fine')}" for number in range(1, 21)]
    return "\n".join([HEADER, *rows]) + "\n"


handler = app.lambda_handler()
