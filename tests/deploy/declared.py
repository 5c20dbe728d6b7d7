"""Apps that are declared and never opened, for tests of what is written for them.

`demo` is the shop of the fulfilment demo; `wide` uses every option there is.
"""

from __future__ import annotations

from typing import Any

import onefold
from onefold.demo.fulfilment import Courier, shop
from onefold.deploy.plan import AppDeclarations, DeployPlan, plan
from onefold.deploy.stack import Stack, stack_of
from onefold.options import FUNCTION, Function

demo = shop("keys", "aws://eu-west-1?table=shop&prefix=demo-", Courier(1))

wide = onefold.App("mail")
_orders = wide.queue(
    "orders.fifo",
    fifo=True,
    visibility="3h",
    retention="8d",
    delay="15s",
    dead_letter=onefold.DeadLetter(after=7, name="lost.fifo"),
    max_bytes=262_144,
    content_dedup=True,
    dedup_scope="messageGroup",
    function=Function(
        memory_mb=1_024,
        timeout="2m",
        batch=5,
        concurrency=2,
        runtime="python3.12",
        architecture="arm64",
        handler="handlers/mail.orders",
        environment={"GREETING": "Hello ${name}, {region} %{x}"},
        policies=["arn:aws:iam::aws:policy/AmazonSSMReadOnlyAccess"],
        sends_to=["letters"],
        subnets=["subnet-0bb5dba7db2c7bc9b", "subnet-0aa4cba6ca1b6ab8a"],
        security_groups=["sg-0123456789abcdef0"],
    ),
)
_letters = wide.queue(
    "letters",
    dead_letter=onefold.DeadLetter(name="lost"),
    function=Function(batch=100, window="30s", runtime="python3.12", architecture="arm64"),
)
_cards = wide.queue("Cards_2", dead_letter=onefold.DeadLetter(name="lost"), function=None)


@wide.job(_orders, key="{id}", group="{id}", timeout="1m", owner="mail team")
def order(payload: dict[str, Any]) -> None:
    """Nothing."""


@wide.job(_letters, key="{id}", timeout="20s", owner="post & co")
def letter(payload: dict[str, Any]) -> None:
    """Nothing."""


@wide.job(_cards, key="{id}", owner="letters team")
def card(payload: dict[str, Any]) -> None:
    """Nothing."""


def handler(event: object, context: object) -> None:
    """What Lambda would call."""


KEY = "arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
WIDE = Stack(
    prefix="prod-",
    payloads="big-bodies/mail",
    kms_key=KEY,
    log_days=400,
    deletion_protection=True,
    tags={"cost centre": "42"},
)


def planned(app: onefold.App, stack: Stack | None = None) -> DeployPlan:
    """The plan of an app of this module."""
    name = "demo" if app is demo else "wide"
    found = stack_of(app.url) if stack is None else stack
    declares = AppDeclarations(queues=app.queues.values(), jobs=app.jobs.values())
    return plan(app.name, f"tests.deploy.declared:{name}", declares, found)


def declared(function: Function | None = FUNCTION, *, timeout: str = "10s", **queue: Any) -> onefold.App:
    """A small app: queue `orders`, job `pack`."""
    app = onefold.App("shop")
    orders = app.queue("orders.fifo" if queue.get("fifo") else "orders", function=function, **queue)

    @app.job(orders, key="{id}", group="{id}" if queue.get("fifo") else None, timeout=timeout)
    def pack(payload: dict[str, Any]) -> None:
        """Nothing."""

    return app
