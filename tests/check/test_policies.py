"""Whether a policy allows something: yes, no, and when it cannot be told."""

from __future__ import annotations

from typing import Any

import pytest

from onefold.check.facts import Unresolved
from onefold.check.policies import Request, allows

QUEUE = "arn:aws:sqs:us-east-1:123456789012:orders"
TOPIC = "arn:aws:sns:us-east-1:123456789012:news"
OTHER = "arn:aws:sns:us-east-1:123456789012:other"


def asked(*, named: bool = True, source_arn: str = TOPIC, principal: str | None = "sns.amazonaws.com") -> Request:
    return Request(
        action="sqs:SendMessage", resource=QUEUE, named=named, principal=principal, source_arn=source_arn,
        known=frozenset({"refunds", OTHER, TOPIC}),
    )  # fmt: skip


def policy(**changed: Any) -> dict[str, Any]:
    statement = {
        "Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:SendMessage", "Resource": QUEUE,
        **changed,
    }  # fmt: skip
    return {"Statement": [{name: value for name, value in statement.items() if value is not None}]}


def source(operator: str, *arns: Any) -> dict[str, Any]:
    return {operator: {"aws:SourceArn": list(arns)}}


@pytest.mark.parametrize(
    ("changed", "answer"),
    [
        ({}, True),
        ({"Effect": None}, True),
        ({"Principal": "*"}, True),
        ({"Principal": {"AWS": "*"}}, True),
        ({"Principal": {"Service": ["events.amazonaws.com", "sns.amazonaws.com"]}}, True),
        ({"Action": ["SQS:Send*"]}, True),
        ({"Action": "*", "Resource": "*"}, True),
        ({"Resource": "arn:aws:sqs:*:*:ord?rs"}, True),
        ({"Principal": {"AWS": "arn:aws:iam::123456789012:root"}}, False),
        ({"Principal": {"Service": "events.amazonaws.com"}}, False),
        ({"Action": ["sqs:ReceiveMessage"]}, False),
        ({"Resource": "arn:aws:sqs:us-east-1:123456789012:refunds"}, False),
        ({"Effect": "Deny", "Principal": "*"}, False),
        ({"Condition": source("ArnEquals", OTHER)}, False),
        ({"Condition": source("ArnEquals", OTHER, TOPIC)}, None),
        ({"Condition": source("ArnLike", "arn:aws:sns:*:*:n*")}, None),
        ({"Condition": {"StringEquals": {"aws:SourceAccount": "1"}}}, None),
        ({"Principal": Unresolved("a parameter")}, None),
        ({"Principal": {"AWS": Unresolved("a parameter")}}, None),
        ({"Action": Unresolved("a parameter")}, None),
        ({"Action": None, "NotAction": "sqs:DeleteQueue"}, None),
        ({"Resource": None, "NotResource": "x"}, None),
        ({"Resource": [Unresolved("a parameter")]}, None),
    ],
)
def test_a_statement_allows_or_not_or_cannot_be_told(changed: dict[str, Any], answer: bool | None) -> None:
    assert allows(policy(**changed), asked()) is answer


@pytest.mark.parametrize(
    "document", [None, "text", Unresolved("a parameter"), {}, {"Statement": Unresolved("x")}, {"Statement": [1]}]
)
def test_what_is_no_policy_cannot_be_told(document: Any) -> None:
    assert allows(document, asked()) is None


def test_a_queue_whose_name_is_made_up_may_be_meant_by_another_pattern() -> None:
    by_stack = policy(Resource="arn:aws:sqs:us-east-1:123456789012:local-*")
    assert allows(by_stack, asked()) is False
    assert allows(by_stack, asked(named=False)) is None
    assert allows(policy(Resource="arn:aws:sqs:us-east-1:123456789012:refunds"), asked(named=False)) is False


def test_who_has_the_policy_and_an_unknown_source() -> None:
    assert allows(policy(Principal=None), asked(principal=None)) is True
    assert allows(policy(Condition=source("ArnEquals", OTHER)), asked(source_arn="")) is None
    statements = [policy(Action="sqs:ReceiveMessage")["Statement"][0], policy()["Statement"][0]]
    assert allows({"Statement": statements}, asked()) is True
    assert allows({"Statement": policy()["Statement"][0]}, asked()) is True
