"""How values of a plan are written in Terraform JSON: names, patterns, references, tags, policies, what is kept.

Used by the writers of all kinds of resources (`terraform.py`, `module_time.py`).
Never here: a resource. Invariant: text of a user is never read as an expression; `${` and `%{` in it are escaped.

Source: Terraform "JSON Configuration Syntax", "Strings and Templates".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from onefold import limits
from onefold.deploy import names
from onefold.deploy.iam import RolePlan, Statement
from onefold.deploy.plan import Plan

Json = dict[str, Any]

NAME_PREFIX_CHARS_MAX: Final = 38  # IAM allows 64 for a role; the provider adds 26 of its own
_PLACES: Final = {
    "partition": "${data.aws_partition.current.partition}",
    "region": "${data.aws_region.current.region}",
    "account": "${data.aws_caller_identity.current.account_id}",
}
_REFERENCES: Final = {
    "queue_url": "${{aws_sqs_queue.{}.id}}",
    "queue_arn": "${{aws_sqs_queue.{}.arn}}",
    "function_arn": "${{aws_lambda_function.{}.arn}}",
    "role_arn": "${{aws_iam_role.{}.arn}}",
    "bus_arn": "${{aws_cloudwatch_event_bus.{}.arn}}",
}


def name(logical: str) -> str:
    """A logical id as Terraform has names: OrdersDead becomes orders_dead, EMails e_mails, OrdersFIFO orders__fifo."""
    parted = logical.replace("FIFO", "__fifo")  # two: a queue may be called orders-fifo, too
    return re.sub(r"(?<=[A-Za-z0-9])(?=[A-Z])", "_", parted).lower()


def literal(value: str) -> str:
    """Text in which Terraform reads nothing."""
    return value.replace("${", "$${").replace("%{", "%%{")


def text(value: str) -> str:
    """A pattern with references for what only Terraform knows."""
    return names.filled(value, expression, literal)


def expression(place: str) -> str:
    """What stands for a place of `names.py`."""
    kind, _, what = place.partition(".")
    return _REFERENCES[kind].format(name(what)) if what else _PLACES[kind]


def tags(plan: Plan, owner: str | None, held: str | None = None) -> Json:
    """The tags of a resource."""
    return {literal(one): literal(value) for one, value in plan.tags_of(owner, held).items()}


def seconds(ms: int) -> int:
    """Whole seconds, rounded up."""
    return -(-ms // limits.SECOND_MS)


def kept(plan: Plan) -> Json:
    """A thing with contents is destroyed only by who takes this line out."""
    return {} if plan.stack.disposable else {"lifecycle": {"prevent_destroy": True}}


def document(value: Json) -> str:
    """A policy as the text that the provider wants; references in it stay references."""
    return json.dumps(value, sort_keys=True)


def policy(statements: list[Json]) -> str:
    """A policy of these statements."""
    return document({"Version": "2012-10-17", "Statement": statements})


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


def name_prefix(text: str) -> str:
    """What the name of a role begins with."""
    return f"{text[: NAME_PREFIX_CHARS_MAX - 1]}-"


def service_role(plan: Plan, role: RolePlan, prefix: str) -> Json:
    """A role that a service takes on; its name begins with `prefix`."""
    return {
        "name_prefix": name_prefix(prefix),
        "description": role.text,
        "assume_role_policy": policy([_filled(role.trust())]),
        "tags": tags(plan, role.owner),
    }


def role_policy(role_id: str, statements: Iterable[Statement]) -> Json:
    """What a role may."""
    said = policy([statement(one) for one in statements])
    return {"name": "onefold", "role": f"${{aws_iam_role.{name(role_id)}.id}}", "policy": said}


def _filled(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one) for one in value]
    return text(value) if isinstance(value, str) else value
