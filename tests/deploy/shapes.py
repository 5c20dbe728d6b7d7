"""Three shapes of app, as a platform team reads them: minimal; orders with everything; in a VPC with a key of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onefold
from onefold.cli.stack_options import declared_in
from onefold.deploy.plan import DeployPlan, plan
from onefold.deploy.stack import Stack
from onefold.options import Function
from onefold.runtime.outgoing import Outgoing
from tests.deploy.declared import KEY, declared

NETWORK = Function(
    subnets=["subnet-0bb5dba7db2c7bc9b"], security_groups=["sg-0123456789abcdef0"], tracing=True, reserved=20, alias="live",
    json_logs=True, policies=["arn:aws:iam::aws:policy/AmazonSSMReadOnlyAccess"],
)  # fmt: skip


def orders(function: Function | None = None) -> onefold.App:
    """An app with FIFO, a schedule, a map run, events, a pipe and a reconciliation."""
    app = onefold.App("orders")
    here = function or Function()
    placed = app.queue("placed.fifo", fifo=True, content_dedup=True, function=here)
    customers = app.queue("customers", function=here)

    @app.job(placed, key="{id}", group="{customer}", owner="orders")
    def book(payload: dict[str, Any]) -> None:
        """Nothing."""

    @app.schedule("cron(0 3 * * ? *)", queue=customers)
    def nightly(tick: onefold.Tick) -> Iterator[Outgoing]:
        yield book.message({"id": tick.run, "customer": "all"})

    app.map(customers, key="{id}", name="enrich", source="s3://shop-files/customers.csv")(lambda row: None)
    bus = app.bus("shop")
    bus.rule("placed", {"source": ["shop"]}, to=placed, group="$.detail.customer")
    bus.archive("all", retention="30d")
    app.pipe(app.queue("mirror"), customers, name="copy")
    app.reconcile(nightly, after="1h")
    return app


def _planned(app: onefold.App, stack: Stack) -> DeployPlan:
    return plan(app.name, "tests.deploy.shapes:app", declared_in(app), stack)


SHAPES = {
    "minimal": lambda: _planned(declared(), Stack()),
    "orders": lambda: _planned(orders(), Stack(prefix="prod-", later=True, layout=2, topic=True)),
    "vpc-with-key": lambda: _planned(
        orders(NETWORK),
        Stack(
            prefix="prod-", kms_key=KEY, payloads="big-bodies/orders", log_days=365, topic=True, deletion_protection=True,
            boundary="arn:aws:iam::111122223333:policy/team", role_path="/team/", alarms="jobs", later=True,
        ),
    ),
}  # fmt: skip
