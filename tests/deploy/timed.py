"""An app with everything that happens by the clock or by events: schedules, map runs, rules, archives, pipes.

`planned` is its plan; `spec` and `batched` are its map runs as plain values, `NIGHTLY` is what the first one reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import onefold
from onefold.deploy.plan import AppDeclarations, DeployPlan, plan
from onefold.deploy.stack import Stack
from onefold.events.transform import InputTransformer
from onefold.maps.rules import Catcher, ItemBatch, ItemReader, MapSpec, Retrier, Tolerated
from onefold.runtime.outgoing import Outgoing
from onefold.schedules.schedule import ScheduleRetry, Tick

BUCKET = "shop-files"
NIGHTLY = f"s3://{BUCKET}/in/customers.csv"

app = onefold.App("books")
statements = app.queue("statements.fifo", fifo=True, content_dedup=True)
customers = app.queue("customers")
operations = app.queue("operations", function=None)
mirror = app.queue("mirror")
audit = app.queue("audit", function=None)


@app.job(statements, key="{id}", group="{id}", owner="billing")
def statement(payload: dict[str, Any]) -> None:
    """Nothing."""


@app.job(customers, key="{id}", name="enrich", timeout="20s", owner="customers")
def enrich(payload: dict[str, Any]) -> None:
    """Nothing."""


@app.schedule("cron(0 3 1 * ? *)", tz="Europe/London", queue=statements, timeout="10m", owner="billing")
def monthly(tick: Tick) -> Iterator[Outgoing]:
    """A message for each customer."""
    yield statement.message({"id": tick.run})


@app.schedule(
    "rate(5 minutes)",
    name="Sweep_2",
    window="2m",
    start=datetime(2026, 6, 1, tzinfo=UTC),
    end=datetime(2027, 6, 1, 12, tzinfo=UTC),
    retry=ScheduleRetry(retries=3, age="10m"),
    dead_letter=False,
)
def sweep(tick: Tick) -> None:
    """Nothing."""


bus = app.bus("orders")
bus.rule(
    "placed",
    {"source": ["shop"], "detail-type": [{"prefix": "Order"}], "detail": {"total": [{"numeric": [">", 0]}]}},
    to=[customers, audit],
    input_transformer=InputTransformer(paths={"id": "$.detail.id"}, template='{"id": <id>, "sign": "${x}"}'),
)
bus.rule("in-order", {"source": ["shop"]}, to=statements, input_path="$.detail", group="$.detail.customer")
bus.archive("kept", {"source": ["shop"]}, retention="36h")
app.bus().rule("anything", {"account": ["000000000000"]}, to=audit, constant={"said": "so"}, enabled=False)
app.pipe(mirror, statements, filter={"body": {"kind": ["order"]}}, group="$.body.customer", owner="mirror team")

spec = MapSpec(
    name="enrich",
    queue="customers",
    source=NIGHTLY,
    concurrency=40,
    tolerated=Tolerated(percent=2.0),
    retry=(
        Retrier(errors=("requests.exceptions.ConnectionError", "HandlerTimeout"), interval_ms=2_000, retries=4,
                max_delay_ms=30_000, jitter="full"),
        Retrier(errors=("States.ALL",), retries=1),
    ),
    catch=(Catcher(errors=("Poisoned",), queue="operations"),),
    results=f"s3://{BUCKET}/out",
)  # fmt: skip
batched = MapSpec(
    name="load",
    queue="customers",
    reader=ItemReader(format="csv", header=("id", "name"), delimiter="pipe", items_max=500),
    source=f"s3://{BUCKET}/in/load.csv",
    batch=ItemBatch(items_max=100, bytes_max=65_536),
    tolerated=Tolerated(count=3, percent=1.1),
)


def planned(stack: Stack | None = None, maps: tuple[MapSpec, ...] = (spec, batched)) -> DeployPlan:
    """The plan of the app."""
    declares = AppDeclarations(
        queues=app.queues.values(),
        jobs=app.jobs.values(),
        schedules=app.schedules.values(),
        maps=maps,
        buses=app.buses.values(),
        pipes=app.pipes.values(),
    )
    return plan(app.name, "tests.deploy.timed:app", declares, stack or Stack())


def handler(event: object, context: object) -> None:
    """What Lambda would call."""
