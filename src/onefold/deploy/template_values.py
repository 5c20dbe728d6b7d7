"""How values of a plan are written in CloudFormation: patterns, references, tags, statements, what is kept.

Used by the writers of all kinds of resources (`cloudformation.py`, `template_time.py`).
Never here: a resource. Invariant: text of a user is never read as an expression; `${` in it is escaped.

Source: CloudFormation template reference, "Fn::Sub" and "DeletionPolicy attribute".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from onefold import limits
from onefold.deploy import names
from onefold.deploy.iam import RolePlan, Statement
from onefold.deploy.plan import Plan

Json = dict[str, Any]

_PLACES: Final = {"partition": "AWS::Partition", "region": "AWS::Region", "account": "AWS::AccountId"}
_REFERENCES: Final = {
    "queue_url": "{}Queue",
    "queue_arn": "{}Queue.Arn",
    "function_arn": "{}Function.Arn",
    "role_arn": "{}Role.Arn",
    "bus_arn": "{}Bus.Arn",
}


def text(value: str) -> str | Json:
    """A pattern as it is written in a template: as it is, or with references put in."""
    if not names.has_places(value):
        return value
    return {"Fn::Sub": names.filled(value, _expression, lambda part: part.replace("${", "${!"))}


def _expression(place: str) -> str:
    kind, _, what = place.partition(".")
    return f"${{{_REFERENCES[kind].format(what) if what else _PLACES[kind]}}}"


def arn(logical: str) -> Json:
    """The ARN of a resource."""
    return {"Fn::GetAtt": [logical, "Arn"]}


def tags(plan: Plan, owner: str | None, held: str | None = None) -> list[Json]:
    """The tags of a resource as a list."""
    return [{"Key": name, "Value": value} for name, value in plan.tags_of(owner, held).items()]


def seconds(ms: int) -> int:
    """Whole seconds, rounded up."""
    return -(-ms // limits.SECOND_MS)


def kept(plan: Plan) -> Json:
    """What becomes of a thing with contents when it leaves the template or the stack is deleted."""
    if plan.stack.disposable:
        return {"DeletionPolicy": "Delete", "UpdateReplacePolicy": "Delete"}
    return {"DeletionPolicy": "RetainExceptOnCreate", "UpdateReplacePolicy": "Retain"}


def statement(one: Statement) -> Json:
    """A statement of a role's policy."""
    found: Json = {
        "Sid": one.sid,
        "Effect": "Allow",
        "Action": list(one.actions),
        "Resource": [text(pattern) for pattern in one.resources],
    }
    condition = one.condition()
    if condition:
        found["Condition"] = _filled(condition)
    return found


def document(statements: list[Json]) -> Json:
    """A policy."""
    return {"Version": "2012-10-17", "Statement": statements}


def service_role(plan: Plan, role: RolePlan) -> Json:
    """A role that a service takes on."""
    return {
        "Type": "AWS::IAM::Role",
        "Properties": {
            "AssumeRolePolicyDocument": document([_filled(role.trust())]),
            "Description": role.text,
            "Policies": [
                {"PolicyName": "onefold", "PolicyDocument": document([statement(one) for one in role.statements])}
            ],
            "Tags": tags(plan, role.owner),
        },
    }


def _filled(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _filled(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_filled(one) for one in value]
    return text(value) if isinstance(value, str) else value
