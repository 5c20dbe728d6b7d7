"""Roles: exactly these statements, no wildcard that AWS does not force on us, and a reference that says the same."""

from __future__ import annotations

import ast
from pathlib import Path

import botocore.session
from botocore import xform_name

from onefold.deploy import iam
from onefold.deploy.iam import GRANTS, Statement
from onefold.deploy.stack import Stack
from tests.deploy import timed
from tests.deploy.declared import KEY, WIDE, demo, planned, wide

BACKEND = Path(iam.__file__).parents[1] / "engines" / "aws"
# Calls that need other actions than one of their own name (service authorization reference).
ACTIONS_OF = {
    "dynamodb:BatchExecuteStatement": ("dynamodb:PartiQLInsert", "dynamodb:PartiQLUpdate"),
    "dynamodb:TransactWriteItems": ("dynamodb:PutItem", "dynamodb:UpdateItem"),
    "s3:DeleteObjects": ("s3:DeleteObject",),
    "sqs:ChangeMessageVisibilityBatch": ("sqs:ChangeMessageVisibility",),
    "sqs:DeleteMessageBatch": ("sqs:DeleteMessage",),
    "sqs:SendMessageBatch": ("sqs:SendMessage",),
}
OPERATORS = {
    "dynamodb:CreateTable", "dynamodb:DeleteItem", "dynamodb:DescribeTable", "dynamodb:DescribeTimeToLive",
    "dynamodb:UpdateTimeToLive", "sqs:CancelMessageMoveTask", "sqs:CreateQueue", "sqs:DeleteQueue",
    "sqs:ListDeadLetterSourceQueues", "sqs:ListMessageMoveTasks", "sqs:PurgeQueue", "sqs:SetQueueAttributes",
    "sqs:StartMessageMoveTask", "sqs:TagQueue", "sqs:UntagQueue",
}  # fmt: skip
"""What only commands, workers and emulators (`create=`) do: setting up, redriving, settling what is parked."""

PAGE = Path(__file__).parents[2] / "docs" / "iam.md"
MINE = "arn:{partition}:sqs:{region}:{account}:"
TABLE = "arn:{partition}:dynamodb:{region}:{account}:table/prod-mail"


def test_the_demos_role() -> None:
    (function,) = planned(demo).functions
    assert function.statements == (
        Statement(
            sid="TakeFromItsQueue",
            actions=(
                "sqs:ChangeMessageVisibility",
                "sqs:DeleteMessage",
                "sqs:GetQueueAttributes",
                "sqs:GetQueueUrl",
                "sqs:ListQueueTags",
                "sqs:ReceiveMessage",
            ),
            resources=(f"{MINE}demo-invoices",),
        ),
        Statement(
            sid="PutAside",
            actions=("sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage"),
            resources=(f"{MINE}demo-invoices-dead", f"{MINE}demo-invoices-held"),
        ),
        Statement(
            sid="SendOn",
            actions=("sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage"),
            resources=(f"{MINE}demo-invoices",),
        ),
        Statement(
            sid="KeepRecords",
            actions=(
                "dynamodb:BatchGetItem",
                "dynamodb:BatchWriteItem",
                "dynamodb:GetItem",
                "dynamodb:PartiQLInsert",
                "dynamodb:PartiQLUpdate",
                "dynamodb:PutItem",
                "dynamodb:Query",
                "dynamodb:UpdateItem",
            ),
            resources=("arn:{partition}:dynamodb:{region}:{account}:table/shop",),
        ),
        Statement(
            sid="WriteLogs",
            actions=("logs:CreateLogStream", "logs:PutLogEvents"),
            resources=("arn:{partition}:logs:{region}:{account}:log-group:/aws/lambda/demo-shop-invoices:*",),
        ),
    )


def test_each_function_reaches_its_own_things_only() -> None:
    letters, orders = planned(wide, WIDE).functions

    def resources(statements: tuple[Statement, ...]) -> dict[str, tuple[str, ...]]:
        return {statement.sid: statement.resources for statement in statements}

    assert resources(letters.statements) == {
        "TakeFromItsQueue": (f"{MINE}prod-letters",),
        "PutAside": (f"{MINE}prod-letters-held", f"{MINE}prod-lost"),
        "SendOn": (f"{MINE}prod-Cards_2", f"{MINE}prod-letters", f"{MINE}prod-orders.fifo"),
        "KeepRecords": (TABLE,),
        "CountRecords": (TABLE,),
        "MovePayloads": ("arn:{partition}:s3:::big-bodies/mail/*",),
        "MissPayloads": ("arn:{partition}:s3:::big-bodies",),
        "WriteLogs": ("arn:{partition}:logs:{region}:{account}:log-group:/aws/lambda/prod-mail-letters:*",),
        "UseKey": (KEY,),
    }
    assert resources(orders.statements) == {
        "TakeFromItsQueue": (f"{MINE}prod-orders.fifo",),
        "PutAside": (f"{MINE}prod-lost.fifo", f"{MINE}prod-orders-held.fifo"),
        "SendOn": (f"{MINE}prod-letters", f"{MINE}prod-orders.fifo"),
        "KeepRecords": (TABLE,),
        "CountRecords": (TABLE,),
        "MovePayloads": ("arn:{partition}:s3:::big-bodies/mail/*",),
        "MissPayloads": ("arn:{partition}:s3:::big-bodies",),
        "WriteLogs": ("arn:{partition}:logs:{region}:{account}:log-group:/aws/lambda/prod-mail-orders-fifo:*",),
        "UseKey": (KEY,),
        "JoinNetwork": ("*",),
    }
    assert orders.policies == ("arn:aws:iam::aws:policy/AmazonSSMReadOnlyAccess",)


def test_the_key_is_used_by_way_of_the_services_only() -> None:
    (key,) = [one for one in planned(wide, WIDE).functions[0].statements if one.sid == "UseKey"]
    assert key.services == ("dynamodb", "lambda", "s3", "sqs")  # payloads, too


def test_no_action_is_a_wildcard_and_lists_are_sorted() -> None:
    for purpose, grant in GRANTS.items():
        assert list(grant.actions) == sorted(set(grant.actions)), purpose
        assert not any("*" in action for action in grant.actions), purpose
    assert len({grant.sid for grant in GRANTS.values()}) == len(GRANTS)


def called() -> set[str]:
    """The IAM actions of all calls of boto3 in the AWS backend, by their names in the text."""
    session = botocore.session.get_session()
    operations = {
        xform_name(operation): f"{service}:{operation}"
        for service in ("dynamodb", "events", "s3", "scheduler", "sqs")
        for operation in session.get_service_model(service).operation_names
    }
    words: set[str] = set()
    for path in BACKEND.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                words.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
    found = {operations[word] for word in words & operations.keys()}
    return {action for one in found for action in ACTIONS_OF.get(one, (one,))}


def test_what_the_code_calls_is_granted_or_an_operators_and_what_is_granted_is_called() -> None:
    granted = {action for grant in GRANTS.values() for action in grant.actions}
    by_service = {
        *GRANTS["bucket"].actions,
        *GRANTS["logs"].actions,
        *GRANTS["key"].actions,
        *GRANTS["network"].actions,
        *GRANTS["tracing"].actions,
    }
    by_service |= {*GRANTS["role"].actions}  # Scheduler looks for it at CreateSchedule
    assert sorted(called() - granted - OPERATORS) == [], "grant it to functions, or name it as an operator's"
    assert sorted(granted - called() - by_service) == [], "nothing calls it any more"
    assert sorted(OPERATORS & granted) == sorted(OPERATORS - called()) == []


def test_the_reference_says_what_is_granted() -> None:
    assert iam.reference() in PAGE.read_text(encoding="utf-8"), (
        "docs/iam.md is behind; put this in: .venv/bin/python -c 'from onefold.deploy import iam; print(iam.reference())'"
    )


def test_the_page_has_every_statement_of_the_services_roles() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = timed.planned(Stack(kms_key=KEY, later=True))
    assert found.scheduling is not None
    roles = [found.scheduling.role, *(one.role for one in (*found.machines, *found.events.pipes))]
    assert {role.service for role in roles} == {"scheduler", "states", "pipes"}
    for role in roles:
        for one in role.statements:
            assert f"`{one.sid}`" in text
            assert all(f"`{action}`" in text for action in one.actions)
            assert not any("*" in action for action in one.actions)
