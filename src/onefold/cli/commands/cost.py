"""`onefold cost`: calls, capacity units and dollars per thousand messages, and per month.

It only prints; the figures come from `admin/costing.py`. Never here: AWS calls; no account is asked for anything.
Invariant: every figure is shown with the assumptions and the date of the prices it rests on.
"""

from __future__ import annotations

import re
from typing import Any, Final

import click
from msgspec.structs import replace

from onefold.admin import costing
from onefold.admin.costing import Bill, QueueCost
from onefold.app import App
from onefold.cli import options, render, stack_options, target
from onefold.cli.program import Answer, declared
from onefold.cli.render import Column
from onefold.deploy.plan import DeployPlan
from onefold.duration import to_text
from onefold.observe.cost import Traffic

_UNITS: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
_BYTES: Final = {"": 1, "B": 1, "KB": 1_024, "MB": 1_024**2}
_PATHS: Final = {"first": "first delivery", "duplicate": "duplicate", "retry": "failure + retry"}
_PATTERN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z%]*)")


class _Scaled(click.ParamType[float]):
    """A number with one of the given units."""

    def __init__(self, name: str, units: dict[str, float], example: str) -> None:
        self.name = name
        self._units = units
        self._example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it."""
        if not isinstance(value, str):
            return float(value)
        found = _PATTERN.fullmatch(value.strip())
        if found is None or found[2] not in self._units:
            self.fail(f"{value!r} cannot be read; write for example {self._example}.", param, ctx)
        return float(found[1]) * self._units[found[2]]


COUNT: Final = _Scaled("count", dict(_UNITS), "1M, 250k or 1000")
BYTES: Final = _Scaled("size", dict(_BYTES), "1KB or 800")
PART: Final = _Scaled("part", {"%": 0.01}, "1% or 0.5%")


@declared(
    "cost",
    example="onefold cost shop:app --messages 1M\nonefold cost shop:app --messages 20M --batch 4 --run 250ms --json",
)
@click.argument("app", required=False)
@click.option("--messages", type=COUNT, default="1M", show_default=True, help="Messages per queue and month.")
@click.option("--duplicates", type=PART, default="1%", show_default=True, help="Share delivered again once done.")
@click.option("--failures", type=PART, default="1%", show_default=True, help="Share that fails once, then succeeds.")
@click.option("--batch", type=float, help="Messages received together; by default the mapping's maximum.")
@click.option("--send-batch", type=int, default=1, show_default=True, help="Messages per send call, 1 to 10.")
@click.option("--body", type=BYTES, default="1KB", show_default=True, help="Size of a message.")
@click.option("--result", type=BYTES, default="200B", show_default=True, help="Size of what a job returns.")
@click.option("--run", type=options.DURATION, default="100ms", show_default=True, help="Duration of one handler.")
@click.option("--region", default=costing.REGION_DEFAULT, show_default=True, help="Region of the price table.")
@click.option("--prices", metavar="FILE", help="Your own table, in the form of onefold/observe/prices.json.")
@stack_options.stack_options
def command(
    app: str | None,
    messages: float,
    duplicates: float,
    failures: float,
    batch: float | None,
    send_batch: int,
    body: float,
    result: float,
    run: int,
    region: str,
    prices: str | None,
    choices: stack_options.Choices,
) -> Answer:
    """Work out what an app's messages cost on AWS: calls, capacity units, dollars per thousand and per month.

    Per queue and path: a first delivery, a duplicate answered from the record, a failure with the retry that succeeds.
    Below the table: what was assumed, and what no figure includes. The prices are list prices with a date: check them.
    """
    plan = stack_options.planned(app, choices)
    declared_app = target.load(plan.target)
    traffic = Traffic(
        messages=round(messages),
        duplicates=duplicates,
        retries=failures,
        batch=batch if batch is not None else Traffic().batch,
        sent_together=send_batch,
        body_bytes=round(body),
        result_bytes=round(result),
        run_ms=run,
    )
    if batch is None:
        traffic = replace(traffic, batch=float(_largest(plan)))
    table = costing.read_prices(prices, region)
    found = costing.bill(plan, _keeps(declared_app, plan.stack.prefix), declared_app.history, traffic, table)
    return Answer(found, draw=lambda: _draw(found))


def _largest(plan: DeployPlan) -> int:
    return max((one.mapping.batch_size for one in plan.functions), default=10)


def _keeps(app: App, prefix: str) -> dict[str, int]:
    keeps: dict[str, int] = {}
    for job in app.jobs.values():
        name = prefix + job.policy.queue
        keeps[name] = max(keeps.get(name, 0), job.policy.keep_ms)
    return keeps


# -- drawing ---------------------------------------------------------------------------------------------------------


def _draw(bill: Bill) -> None:
    for one in bill.queues:
        _draw_queue(one)
    for one in bill.queues:
        parts = [f"{service} {_dollars(usd)}" for service, usd in one.usd_month.items()]
        render.line(
            render.joined(
                f"{one.queue}: ", f"{_dollars(sum(one.usd_month.values()))} a month for {one.messages:,} messages"
            ),
            "bold",
        )
        render.line(f"  {', '.join(parts)}; and {_dollars(one.usd_polls)} for polling a quiet queue")
    if bill.alarms or bill.metrics:
        render.line(f"alarms and metrics: {_dollars(bill.usd_watch)} a month ({bill.alarms} and {bill.metrics})")
    render.line(f"all: {_dollars(bill.usd_month)} a month", "bold")
    render.line()
    traffic = bill.traffic
    render.line(
        f"Assumed: {traffic.duplicates:.1%} duplicates, {traffic.retries:.1%} failures, batches of {traffic.batch:g},"
        f" {traffic.sent_together} a send, {traffic.body_bytes:,} B bodies, {traffic.result_bytes:,} B results,"
        f" {to_text(traffic.run_ms)} a handler.",
        "dim",
    )
    render.line(f"Not counted: {', '.join(bill.not_counted)}.", "dim")
    render.line(f"Prices: {bill.region}, {bill.prices_as_of}. {bill.prices_note}", "dim")


def _draw_queue(one: QueueCost) -> None:
    render.line(f"{one.queue}   {one.works}; of 1,000 messages:", "bold")
    columns = [
        Column("path"),
        *[Column(head, right=True) for head in ("part", "SQS calls", "invoked", "table calls", "writes", "dollars")],
    ]
    rows = []
    for path in one.paths:
        used = path.per_thousand
        sqs = sum(count for name, count in used.calls.items() if name.startswith("sqs:"))
        table = sum(count for name, count in used.calls.items() if name.startswith("dynamodb:"))
        rows.append(
            (
                _PATHS[path.path], f"{path.part:.1%}", render.number(sqs), render.number(used.invocations),
                render.number(table), render.number(used.write_units),
                f"{path.usd_per_thousand_total:.5f}",
            )
        )  # fmt: skip
    render.draw(render.table(columns, rows))
    render.line()


def _dollars(usd: float) -> str:
    return f"${usd:,.2f}" if usd >= 0.01 or usd == 0 else f"${usd:.4f}"
