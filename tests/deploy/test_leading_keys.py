"""With layout 2 a function's role writes the records of its own jobs: every key of a real run is held against the role.

On ministack, which checks no permission itself: each call of boto3 on the table is noted with its IAM actions and partition
keys, and evaluated with the role's statements as IAM does (`ForAllValues`, `Null`, `StringLike`, `StringEquals`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.client import BaseClient
from msgspec import Struct

import onefold
from onefold.cli.stack_options import declared_in
from onefold.contracts.store import RecordKey
from onefold.deploy.iam import Statement
from onefold.deploy.plan import plan
from onefold.deploy.stack import stack_of
from onefold.engines.aws.dynamodb.items import item_key_of
from tests.deploy.test_permissions import DUE_MS, REGION, Monthly, Outcomes, Rig
from tests.emulators import servers

ACTIONS = {"Put": "PutItem", "Update": "UpdateItem"}


class Call(Struct, frozen=True):
    """One action on the table, with the condition keys that DynamoDB hands to IAM.

    Args:
        action: for example `PutItem`. keys: `dynamodb:LeadingKeys`. select: `dynamodb:Select`.
    """

    action: str
    keys: tuple[str, ...] = ()
    select: str | None = None


def calls_of(operation: str, asked: Mapping[str, Any], table: str) -> list[Call]:
    """What a call of boto3 does to the table."""
    if "Statements" in asked:
        return [_of_statement(one) for one in asked["Statements"]]
    if "TransactItems" in asked:
        return [
            Call(ACTIONS[kind], (body.get("Item", body.get("Key"))["pk"]["S"],))
            for one in asked["TransactItems"]
            for kind, body in one.items()
            if body["TableName"] == table
        ]
    if operation == "BatchGetItem":
        return [Call(operation, tuple(key["pk"]["S"] for key in asked["RequestItems"][table]["Keys"]))]
    if operation == "BatchWriteItem":
        puts = asked["RequestItems"][table]
        return [Call(operation, tuple(one["PutRequest"]["Item"]["pk"]["S"] for one in puts))]
    if operation == "Query":
        return [Call(operation, (asked["ExpressionAttributeValues"][":pk"]["S"],))]
    if operation == "Scan":
        return [Call(operation, (), asked.get("Select"))]
    return [Call(operation, (asked.get("Item", asked.get("Key"))["pk"]["S"],))]


def _of_statement(one: Mapping[str, Any]) -> Call:
    text = one["Statement"]
    action = "PartiQLInsert" if text.startswith("INSERT") else "PartiQLUpdate"
    before = re.split(r"""'pk': \?|"pk" = \?""", text)[0]
    return Call(action, (one["Parameters"][before.count("?")]["S"],))


def allows(statements: Sequence[Statement], call: Call) -> bool:
    """Whether a role allows an action on its record table."""
    return any(
        f"dynamodb:{call.action}" in one.actions and all(_holds(*test, call) for test in one.condition().items())
        for one in statements
    )


def _holds(operator: str, wanted: Mapping[str, Sequence[str]], call: Call) -> bool:
    has = {"dynamodb:LeadingKeys": call.keys, "dynamodb:Select": (call.select,) if call.select else ()}
    for name, values in wanted.items():
        found = has[name]
        match operator:
            case "Null":
                if (not found) != (values == ["true"]):
                    return False
            case "StringEquals":
                if not found or found[0] not in values:
                    return False
            case "ForAllValues:StringLike":
                if not all(any(like(pattern, one) for pattern in values) for one in found):
                    return False
            case _:
                raise AssertionError(operator)
    return True


def like(pattern: str, text: str) -> bool:
    """As IAM matches StringLike; a variable in a pattern would be another thing."""
    assert "${" not in pattern
    parts = (".*" if one == "*" else "." if one == "?" else re.escape(one) for one in pattern)
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None


@contextmanager
def noted(table: str) -> Iterator[list[Call]]:
    """What all calls of boto3 in the block do to the table."""
    found: list[Call] = []
    real = BaseClient._make_api_call

    def note(self: Any, operation: str, asked: dict[str, Any]) -> Any:
        if self.meta.service_model.service_name == "dynamodb":
            found.extend(calls_of(operation, asked, table))
        return real(self, operation, asked)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BaseClient, "_make_api_call", note)
        yield found


@pytest.mark.slow
def test_every_key_that_a_handler_uses_fits_its_role(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in servers.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    url = f"aws://{REGION}?table=spread&prefix=s-&payloads=spreads/p&layout=2&endpoint={endpoint}"
    made, outside = Rig(endpoint, Outcomes(url).app, "books"), Outcomes(url)
    words = ("plain", "send", "large", "fail", "refuse", "unknown")
    with noted("spread") as found:
        outside.order.send_many(
            [{"id": word, "do": word} for word in words]
        )  # asks for the app's secret: its first call
        outside.limited.send({"id": "l"})
        outside.book.send({"id": "b"})
        made.poll("orders")
        made.poll("orders")
    made.app.close()
    outside.app.close()

    orders, mails = (
        next(one for one in made.plan.functions if one.mapping.queue == f"s-{name}") for name in ("orders", "mails")
    )
    assert [call for call in found if not allows(orders.statements, call)] == []
    used = {call.action for call in found}
    assert {"GetItem", "Scan", "BatchWriteItem", "PartiQLInsert", "PartiQLUpdate", "UpdateItem"} <= used
    records = [call for call in found if any(not key.startswith("~") for key in call.keys)]
    keys = {key for call in records for key in call.keys if not key.startswith("~")}
    assert {key.partition("#")[0] for key in keys} == {"order", "limited", "book"}
    assert [call for call in records if allows(mails.statements, call)] == [], "the other function's role refuses each"


@pytest.mark.slow
def test_every_key_of_a_look_at_a_run_fits_its_functions_role(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in servers.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    url = f"aws://{REGION}?table=looked&prefix=l-&payloads=lookeds/m&layout=2&endpoint={endpoint}"
    outside = Monthly(url)
    made, looks_app = Rig(endpoint, Monthly(url).app), Monthly(url).app
    outside.app.runtime().send([outside.monthly.outgoing(DUE_MS)])
    roles = {one.mapping.queue: one.statements for one in made.plan.functions}
    for queue in ("monthly-schedules", "bills", "onefold-reconcile"):
        if queue == "onefold-reconcile":
            made.handler = looks_app.lambda_handler()
        with noted("looked") as found:
            made.poll(queue)
        assert found
        assert [call for call in found if not allows(roles[f"l-{queue}"], call)] == [], queue
    for app in (made.app, outside.app, looks_app):
        app.close()


def shop(layout: int) -> onefold.App:
    app = onefold.App("shop", url=f"aws://{REGION}?table=shop&layout={layout}")
    app.job(app.queue("orders"), key="{id}", name="order")(lambda one: None)
    guarded = app.queue("cards", function=onefold.aws.Function(guards=("charge_card",), sends_to=["orders"]))
    app.job(guarded, key="{id}", name="ord")(lambda one: None)
    mails = app.queue("mails", function=onefold.aws.Function(sends_to=["letters"]))
    app.job(mails, key="{id}", name="mail")(lambda one: None)
    app.job(app.queue("letters"), key="{id}", name="letter", unique=True)(lambda one: None)
    return app


def written_by(layout: int) -> dict[str, tuple[Statement, ...]]:
    app = shop(layout)
    made = plan("shop", "shop:app", declared_in(app), stack_of(app.url))
    return {one.mapping.queue: one.statements for one in made.functions}


def test_the_record_of_another_job_is_refused() -> None:
    roles = written_by(2)
    jobs = ("order", "ord", "mail", "letter", "charge_card", "order#", "or*", "orde?")
    writes = ("PartiQLInsert", "PartiQLUpdate", "PutItem", "UpdateItem", "BatchWriteItem", "BatchGetItem", "Query")

    def may_write(queue: str) -> set[str]:
        keys = {job: item_key_of(RecordKey("tenant", job, "k#~day#"), 2)["pk"]["S"] for job in jobs}
        for action in writes:
            assert not allows(roles[queue], Call(action)), "without a key"
            assert not allows(roles[queue], Call(action, (keys["order#"], keys["order"]))), (
                "one of another job among them"
            )
        allowed = [{job for job, key in keys.items() if allows(roles[queue], Call(one, (key,)))} for one in writes]
        assert all(one == allowed[0] for one in allowed)
        return allowed[0]

    assert may_write("orders") == {"order", "letter"}, "by default it may send to each queue, and a unique send claims"
    assert may_write("cards") == {"ord", "charge_card"}
    assert may_write("mails") == {"mail", "letter"}
    assert not allows(roles["orders"], Call("Scan"))
    assert not allows(roles["orders"], Call("Scan", (), "ALL_ATTRIBUTES"))
    assert allows(roles["orders"], Call("Scan", (), "COUNT"))


def test_a_role_writes_records_under_earlier_names_of_its_jobs() -> None:
    app = onefold.App("shop", url=f"aws://{REGION}?table=shop&layout=2")
    app.job(app.queue("orders"), key="{id}", name="ship", aliases=["book"])(lambda order: None)
    made = plan("shop", "shop:app", declared_in(app), stack_of(app.url))
    (role,) = [one.statements for one in made.functions if one.mapping.queue == "orders"]
    keys = {name: item_key_of(RecordKey("", name, "k"), 2)["pk"]["S"] for name in ("ship", "book", "boo")}
    assert {name for name, key in keys.items() if allows(role, Call("PutItem", (key,)))} == {"ship", "book"}


def test_roles_of_layout_1_are_as_they_were() -> None:
    (keep,) = [one for one in written_by(1)["orders"] if any("dynamodb:" in action for action in one.actions)]
    assert keep.condition() == {}
    app = shop(1)
    assert "layout" not in plan("shop", "shop:app", declared_in(app), stack_of(app.url)).url
