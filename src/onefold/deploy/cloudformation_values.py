"""How values of a plan are written in a CloudFormation template: references, texts, tags, policies.

Never here: resources. Invariant: a user's text is data in every property and never read as an expression: `${` in it is
escaped, and only onefold's own references are expressions.

Source: CloudFormation template reference, "Fn::Sub" and "DeletionPolicy attribute".
"""

from __future__ import annotations

from typing import Any, Final

from onefold.deploy import iam, names
from onefold.deploy.iam import RolePlan
from onefold.deploy.plan import DeployPlan

Json = dict[str, Any]

_PLACES: Final = {"partition": "AWS::Partition", "region": "AWS::Region", "account": "AWS::AccountId"}
_REFERENCES: Final = {
    "queue_url": "{}Queue",
    "mapping_id": "{}Mapping",
    "topic_arn": "{}Topic",
    "queue_arn": "{}Queue.Arn",
    "function_arn": "{}Function.Arn",
    "role_arn": "{}Role.Arn",
    "alias_arn": "{}Alias",
    "bus_arn": "{}Bus.Arn",
}


def text(value: str) -> str | Json:
    """A pattern in the form of a template: unchanged, or with references inserted."""
    if not names.has_placeholders(value):
        return value
    return {"Fn::Sub": names.filled(value, _expression, lambda part: part.replace("${", "${!"))}


def _expression(place: str) -> str:
    kind, _, what = place.partition(".")
    return f"${{{_REFERENCES[kind].format(what) if what else _PLACES[kind]}}}"


def arn(logical: str) -> Json:
    """The ARN of a resource."""
    return {"Fn::GetAtt": [logical, "Arn"]}


def tags(plan: DeployPlan, owner: str | None, held: str | None = None) -> list[Json]:
    """The tags of a resource as a list."""
    return [{"Key": name, "Value": value} for name, value in plan.tags_of(owner, held).items()]


def kept(plan: DeployPlan) -> Json:
    """What happens to a resource with contents when it leaves the template or the stack is deleted."""
    if plan.stack.disposable:
        return {"DeletionPolicy": "Delete", "UpdateReplacePolicy": "Delete"}
    return {"DeletionPolicy": "RetainExceptOnCreate", "UpdateReplacePolicy": "Retain"}


def document(statements: list[Json]) -> Json:
    """A policy."""
    return {"Version": "2012-10-17", "Statement": statements}


def role_bounds(plan: DeployPlan) -> Json:
    """The permissions boundary and path that the owner of the account requires of each role."""
    found = {"Path": plan.stack.role_path, "PermissionsBoundary": plan.stack.boundary}
    return {name: value for name, value in found.items() if value is not None}


def service_role(plan: DeployPlan, role: RolePlan) -> Json:
    """A role that a service assumes."""
    return {
        "Type": "AWS::IAM::Role",
        "Properties": {
            "AssumeRolePolicyDocument": document([iam.filled(role.trust(), text)]),
            "Description": role.text,
            "Policies": [
                {"PolicyName": "onefold", "PolicyDocument": document([one.document(text) for one in role.statements])}
            ],
            "Tags": tags(plan, role.owner),
            **role_bounds(plan),
        },
    }
