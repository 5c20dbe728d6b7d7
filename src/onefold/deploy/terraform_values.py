"""How values of a plan are written in Terraform JSON: names, references, texts, tags, policies.

Never here: resources. Invariant: a user's text is data and never read as an expression: `${` and `%{` in it are escaped, and
only our own references are expressions.

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

NAME_PREFIX_CHARS_MAX: Final = 38  # IAM allows 64 for a role; the provider adds 26 of its own
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
    """A logical id as Terraform has names: OrdersDead becomes orders_dead, EMails e_mails, OrdersFIFO orders__fifo."""
    parted = logical.replace("FIFO", "__fifo")  # two: a queue may be called orders-fifo, too
    return re.sub(r"(?<=[A-Za-z0-9])(?=[A-Z])", "_", parted).lower()


def literal(value: str) -> str:
    """Text in which Terraform reads nothing."""
    return value.replace("${", "$${").replace("%{", "%%{")


def text(value: str) -> str:
    """A pattern with references for what only Terraform knows."""
    return names.filled(value, _expression, literal)


def _expression(place: str) -> str:
    """What replaces a placeholder of `names.py`."""
    kind, _, what = place.partition(".")
    return _REFERENCES[kind].format(resource_name(what)) if what else _PLACES[kind]


def tags(plan: DeployPlan, owner: str | None, held: str | None = None) -> Json:
    """The tags of a resource."""
    return {literal(one): literal(value) for one, value in plan.tags_of(owner, held).items()}


def kept(plan: DeployPlan) -> Json:
    """A resource with contents is destroyed only after this line is removed."""
    return {} if plan.stack.disposable else {"lifecycle": {"prevent_destroy": True}}


def policy_text(value: Json) -> str:
    """A policy in the provider's text form; references in it stay references."""
    return json.dumps(value, sort_keys=True)


def policy(statements: list[Json]) -> str:
    """A policy of these statements."""
    return policy_text({"Version": "2012-10-17", "Statement": statements})


def name_prefix(text: str) -> str:
    """What the name of a role begins with."""
    return f"{text[: NAME_PREFIX_CHARS_MAX - 1]}-"


def role_bounds(plan: DeployPlan) -> Json:
    """What the owner of the account asks of each role."""
    found = {"path": plan.stack.role_path, "permissions_boundary": plan.stack.boundary}
    return {name: value for name, value in found.items() if value is not None}


def service_role(plan: DeployPlan, role: RolePlan, prefix: str) -> Json:
    """A role that a service takes on; its name begins with `prefix`."""
    return {
        "name_prefix": name_prefix(prefix),
        "description": role.text,
        "assume_role_policy": policy([iam.filled(role.trust(), text)]),
        "tags": tags(plan, role.owner),
        **role_bounds(plan),
    }


def role_policy(role_id: str, statements: Iterable[Statement]) -> Json:
    """What a role may."""
    said = policy([one.document(text) for one in statements])
    return {"name": "onefold", "role": f"${{aws_iam_role.{resource_name(role_id)}.id}}", "policy": said}
