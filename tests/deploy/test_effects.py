"""`synth` refuses transactional handlers that could not work on AWS, and says which visibility timeouts it changed."""

from __future__ import annotations

from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.cli.stack_options import declared_in
from onefold.deploy.effects import asked_of_context
from onefold.deploy.plan import DeployPlan, plan
from onefold.deploy.stack import Stack


def app_with(handler: Any, effect: Any = "transactional", **queue: Any) -> onefold.App:
    app = onefold.App("shop", url="aws://eu-west-1")
    app.job(app.queue("orders", **queue), key="{id}", name="book", effect=effect, timeout="30s")(handler)
    return app


def planned(app: onefold.App, records: str | None = None) -> DeployPlan:
    return plan("shop", "shop:app", declared_in(app), Stack(records=records))


def through_connection(order: dict[str, Any], ctx: onefold.Context) -> None:
    def write() -> None:
        ctx.connection.execute("INSERT INTO books VALUES (1)")

    write()


def directly(order: dict[str, Any], run: onefold.Context) -> None:
    run.connection.execute("INSERT INTO books VALUES (1)")


def through_table(order: dict[str, Any], ctx: onefold.Context) -> None:
    connection = order["connection"]
    ctx.transact({"Put": {"TableName": connection, "Item": {"id": order["id"]}}})


@pytest.mark.parametrize("handler", [through_connection, directly])
def test_a_connection_is_refused_with_a_table(handler: Any) -> None:
    with pytest.raises(errors.UsageError, match=r"book writes through ctx\.connection, .* in DynamoDB") as caught:
        planned(app_with(handler))
    assert "--records postgresql://" in caught.value.todo
    assert planned(app_with(handler), "postgresql://db.example/shop").functions
    assert planned(app_with(handler, "external")).functions


def test_items_of_a_table_are_written_through_transact() -> None:
    assert planned(app_with(through_table)).functions
    assert asked_of_context(app_with(through_table).jobs["book"]) == {"transact"}


def test_redis_has_no_transaction_with_rows() -> None:
    with pytest.raises(errors.UsageError, match="effect='transactional', and the records of the stack are in Redis"):
        planned(app_with(through_table), "rediss://cache.example:6379")


def test_a_changed_visibility_is_said() -> None:
    (note,) = planned(app_with(through_table, visibility="1m")).notes
    assert note.startswith(
        "Queue orders is declared with visibility 1m and gets 7m: 6 times its function's timeout of 1m10s"
    )
    assert planned(app_with(through_table)).notes == ()
    assert planned(app_with(through_table, visibility="10m")).notes == ()
