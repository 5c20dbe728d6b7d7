"""How values of a plan are written in Terraform JSON: names, references, texts, tags, policies.

Never here: resources. Invariant: a user's text is data and never read as an expression: `${` and `%{` in it are escaped, and
only onefold's own references are expressions.

Source: Terraform "JSON Configuration Syntax", "Strings and Templates".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

from onefold.deploy import iam, names
from onefold.deploy.iam import RolePlan, Statement
from onefold.deploy.plan import DeployPlan

Json = dict[str, Any]

NAME_PREFIX_CHARS_MAX: Final = 38  # IAM allows 64 for a role, and the provider adds 26 of its own
_PLACES: Final = {
    "partition": "${data.aws_partition.current.partition}",
    "region": "${data.aws_region.current.region}",
    "account": "${data.aws_caller_identity.current.account_id}",
}
_REFERENCES: Final = {
    "queue_url": "${{aws_sqs_queue.{}.id}}",
    "mapping_id": "${{aws_lambda_event_source_mapping.{}.uuid}}",
    "topic_arn": "${{aws_sns_topic.{}.arn}}",
    "queue_arn": "${{aws_sqs_queue.{}.arn}}",
    "function_arn": "${{aws_lambda_function.{}.arn}}",
    "role_arn": "${{aws_iam_role.{}.arn}}",
    "alias_arn": "${{aws_lambda_alias.{}.arn}}",
    "bus_arn": "${{aws_cloudwatch_event_bus.{}.arn}}",
}


def resource_name(logical: str) -> str:
    """A logical id as a name in Terraform: OrdersDead becomes orders_dead, EMails e_mails, OrdersFIFO orders__fifo."""
    parted = logical.replace("FIFO", "__fifo")  # two underscores, as another queue may be called orders-fifo
    return re.sub(r"(?<=[A-Za-z0-9])(?=[A-Z])", "_", parted).lower()


def literal(value: str) -> str:
    """A text in which Terraform sees no expression."""
    return value.replace("${", "$${").replace("%{", "%%{")


def text(value: str) -> str:
    """A pattern with references to values that only Terraform knows."""
    return names.filled(value, _expression, literal)


def _expression(place: str) -> str:
    """The expression that replaces a placeholder of `names.py`."""
    kind, _, what = place.partition(".")
    return _REFERENCES[kind].format(resource_name(what)) if what else _PLACES[kind]


def tags(plan: DeployPlan, owner: str | None, held: str | None = None) -> Json:
    """The tags of a resource."""
    return {literal(one): literal(value) for one, value in plan.tags_of(owner, held).items()}


def kept(plan: DeployPlan) -> Json:
    """The block by which a resource with contents is destroyed only after the block is removed."""
    return {} if plan.stack.disposable else {"lifecycle": {"prevent_destroy": True}}


def policy_text(value: Json) -> str:
    """A policy as text for the provider; references in it stay references."""
    return json.dumps(value, sort_keys=True)


def policy(statements: list[Json]) -> str:
    """A policy of these statements."""
    return policy_text({"Version": "2012-10-17", "Statement": statements})


def name_prefix(text: str) -> str:
    """The prefix of a role's name."""
    return f"{text[: NAME_PREFIX_CHARS_MAX - 1]}-"


def role_bounds(plan: DeployPlan) -> Json:
    """The permissions boundary and path that the owner of the account requires of each role."""
    found = {"path": plan.stack.role_path, "permissions_boundary": plan.stack.boundary}
    return {name: value for name, value in found.items() if value is not None}


def service_role(plan: DeployPlan, role: RolePlan, prefix: str) -> Json:
    """A role that a service assumes; its name begins with `prefix`."""
    return {
        "name_prefix": name_prefix(prefix),
        "description": role.text,
        "assume_role_policy": policy([iam.filled(role.trust(), text)]),
        "tags": tags(plan, role.owner),
        **role_bounds(plan),
    }


def role_policy(role_id: str, statements: Iterable[Statement]) -> Json:
    """The policy of a role's permissions."""
    said = policy([one.document(text) for one in statements])
    return {"name": "onefold", "role": f"${{aws_iam_role.{resource_name(role_id)}.id}}", "policy": said}
