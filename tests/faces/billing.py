"""Monthly billing as a user's file would hold it: the command-line tests copy it into a folder and name it `billing:app`.

Customers are the words of the file `customers`; one that ends in `!` has no such card. Statements are those of `statements`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onefold
from onefold.runtime.outgoing import Outgoing
from onefold.schedules.schedule import Tick

app = onefold.App("billing", url=os.environ.get("BILLING_URL"))
bills = app.queue("bills")


@dataclass
class Bill:
    month: str
    customer: str
    card: str = "good"


@app.job(bills, key="{month}/{customer}", owner="billing", retry=onefold.Retry(attempts=2, base="50ms"))
def charge(bill: Bill) -> None:
    if bill.card != "good":
        raise onefold.PermanentError("no such card")
    with open("statements", "a", encoding="utf-8") as file:
        file.write(f"{bill.month}/{bill.customer}\n")


def read(name: str) -> list[str]:
    return Path(name).read_text(encoding="utf-8").split() if Path(name).exists() else []


@app.schedule("cron(0 3 1 * ? *)", tz="Europe/London", owner="finance")
def monthly_billing(tick: Tick, ctx: onefold.Context) -> Iterator[Outgoing]:
    for customer in read("customers"):
        if customer == "RAISE":
            raise ConnectionError("the customer list is away")
        card = "bad" if customer.endswith("!") else "good"
        yield charge.message(Bill(f"{tick.local:%Y-%m}", customer.rstrip("!"), card))


@app.reconcile(monthly_billing, after="30m")
def statements_exist(check: onefold.reconcile.Reconciliation) -> dict[str, int]:
    if Path("unreadable").exists():
        raise ConnectionError("the statements are away")
    return dict(Counter(read("statements")))
