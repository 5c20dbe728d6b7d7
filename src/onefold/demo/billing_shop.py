"""The billing department of `onefold demo billing`, as a user would write it: a schedule, a dispatcher, a statement.

At 03:00 on the 1st, London time, the customers of the previous month are dispatched: one message each, in a FIFO queue
grouped by country and month. Each message makes one statement, whose row commits together with its record. The thirteen
ticks for the file are in the past: `missed="all"` fires every one of them.
Never here: processes, kills, judging. Invariant: the dispatcher only dispatches, and yields the same messages each
time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from msgspec import Struct

import onefold
from onefold.demo import data
from onefold.schedules.fire_times import between

app = onefold.App("billing")
queue = app.queue("statements", fifo=True, visibility="30s", dead_letter=onefold.DeadLetter(after=200))
ticks = app.queue("ticks", visibility="30s", dead_letter=onefold.DeadLetter(after=200))
_PLANTED = os.environ.get("ONEFOLD_DEMO_PLANT") == "two-keys"


class AccountStatement(Struct, frozen=True, kw_only=True):
    """The payload: what one customer bought and returned in one month.

    Args:
        account: the customer's number, or the invoice's if the file has none.
        lines: quantity and unit price of each invoice, the price as text.
        tick: the tick that dispatched it, if a fault is built in.
    """

    account: str
    month: str
    country: str
    lines: tuple[tuple[int, str], ...]
    tick: str = ""


def business_key(one: AccountStatement) -> str:
    """The key: one statement per account and month; with the fault built in, one per account, month and tick."""
    return f"{one.month}/{one.account}{one.tick}"


@app.job(
    queue,
    key=business_key,
    group="{country}/{month}",
    effect="transactional",
    timeout="30s",
    retry=onefold.Retry(attempts=100, base="100ms", cap="1s", crashes=100),
    owner="billing",
)
def state(one: AccountStatement, ctx: onefold.Context) -> dict[str, str]:
    """Write a statement: its row and this run's record are in one transaction."""
    net = sum((quantity * Decimal(price) for quantity, price in one.lines), Decimal())
    ctx.connection.execute("INSERT INTO statement VALUES (?, ?, ?)", (one.month, one.account, str(net)))
    return {"net": str(net)}


@app.schedule(
    "cron(0 3 1 * ? *)",
    tz="Europe/London",
    name="monthly-billing",
    start=datetime(2011, 1, 1, tzinfo=UTC),
    end=datetime(2012, 1, 2, tzinfo=UTC),
    queue=ticks,
    missed="all",
    job_retry=onefold.Retry(attempts=100, crashes=100),
    owner="billing",
)
def bill(tick: onefold.Tick) -> Iterator[object]:
    """Dispatch the statements of the previous month."""
    month = (tick.local.replace(day=1) - timedelta(days=1)).strftime("%Y-%m")
    accounts: dict[str, list[data.InvoiceRow]] = {}
    for invoice in data.read_invoices():
        if month_of(invoice) == month:
            accounts.setdefault(invoice.customer or invoice.number, []).append(invoice)
    for number, (account, invoices) in enumerate(accounts.items()):
        if number == len(accounts) // 2:
            _fall(month)
        yield state.message(
            AccountStatement(
                account=account,
                month=month,
                country=invoices[0].country.replace(" ", "-"),  # a message group id cannot contain spaces
                lines=tuple((one.quantity, str(one.unit_price)) for one in invoices),
                tick=f"/{tick.run}" if _PLANTED else "",
            )
        )


def _fall(month: str) -> None:
    """Kill this process in the middle of a dispatch, once for each month that the demo has chosen."""
    chosen = Path(os.environ.get("ONEFOLD_DEMO_FALLS", ".")) / month
    try:
        chosen.unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def fire_again() -> None:
    """Send every tick of the year once more, as a person might who doubts that they were sent.

    With the fault built in they are a second late, so their keys are different and the same months count twice.
    """
    times = bill.timing
    assert times.start_ms is not None
    assert times.end_ms is not None
    again = [bill.outgoing(at_ms) for at_ms in between(times, times.start_ms, times.end_ms, anchor_ms=times.start_ms)]
    if _PLANTED:
        fired = between(times, times.start_ms, times.end_ms, anchor_ms=times.start_ms)
        again = [bill.outgoing(at_ms + 1_000) for at_ms in fired]
    bill.job.deliver(again)


def month_of(invoice: data.InvoiceRow) -> str:
    """The month of an invoice, for example `2011-03`."""
    month, _, rest = invoice.invoice_date.partition("/")
    return f"{rest.partition('/')[2].partition(' ')[0]}-{int(month):02d}"
