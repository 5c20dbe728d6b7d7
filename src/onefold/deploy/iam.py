"""Least privilege, as data: which actions a function's role needs, on which resources, and what each group is for.

`GRANTS` is the only list; statements of a role, the IAM reference in the documentation and the tests that compare it
with the calls a handler really makes all use it. A role has a grant only if it needs it: without a table, nothing for
DynamoDB.
Never here: a wildcard action that allows; a wildcard resource, except where AWS offers nothing else (network interfaces
of a VPC, traces, the list of queues, which no ARN limits).
Invariant: an action is in `GRANTS` because the code calls it; the person who deploys needs other permissions (not
here).

Sources: Service Authorization Reference (SQS, DynamoDB, S3, CloudWatch Logs, KMS, EC2); the managed policies
AWSLambdaSQSQueueExecutionRole and AWSLambdaVPCAccessExecutionRole; SQS developer guide, "Enforce encryption of data in
transit", for the queue policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from onefold.deploy import names

LEADING_KEYS: Final = "dynamodb:LeadingKeys"

Purpose = Literal[
    "source",
    "companions",
    "sends",
    "table",
    "reading",
    "empty",
    "payloads",
    "bucket",
    "logs",
    "key",
    "network",
    "tracing",
    "later",
    "role",
    "graves",
    "listing",
    "finding",
    "buses",
]


class Grant(Struct, frozen=True, kw_only=True):
    """Actions that belong together.

    Args:
        sid: id of the statement.
        actions: sorted.
        on: the resources, as a text for people.
        why: the purpose, as a text for people.
    """

    sid: str
    actions: tuple[str, ...]
    on: str
    why: str


GRANTS: Final[Mapping[Purpose, Grant]] = {
    "source": Grant(
        sid="TakeFromItsQueue",
        actions=(
            "sqs:ChangeMessageVisibility",
            "sqs:DeleteMessage",
            "sqs:GetQueueAttributes",
            "sqs:GetQueueUrl",
            "sqs:ListQueueTags",
            "sqs:ReceiveMessage",
        ),
        on="the queue of the function",
        why="The event source mapping receives and deletes with the function's role and reads the queue's attributes. The "
        "handler changes the visibility of what failed, so that it comes back after its pause. A tag names the held queue.",
    ),
    "companions": Grant(
        sid="PutAside",
        actions=("sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage"),
        on="the dead-letter queue and the queue for unknown outcomes of that queue",
        why="onefold moves a message there itself, with the reason, before the queue's own maximum does it without one.",
    ),
    "sends": Grant(
        sid="SendOn",
        actions=("sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage"),
        on="the queues that the jobs may send to (`Function(sends_to=...)`), and the function's own queue",
        why="Messages that handlers send leave when the run is recorded. A message that waits for another run of its key is "
        "sent once more to its own queue before its receives are used up.",
    ),
    "table": Grant(
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
        on="the record table; with `layout=2` the records of the function's jobs, and the history and state of the app",
        why="Claims and completions, ten in one call (PartiQL), one alone, or in a transaction with the handler's own "
        "writes (`ctx.transact`); the ledger; the state of throttles and breakers, and whose the jobs' names are. A single "
        "item is read for the table's "
        "layout, and when the answer to a transaction was lost. Queries count a run's operations, and find the runs that "
        "are open.",
    ),
    "reading": Grant(
        sid="ReadRecords",
        actions=("dynamodb:BatchGetItem", "dynamodb:GetItem", "dynamodb:Query"),
        on="the record table, from functions with reconciliations (`layout=2`)",
        why="A reconciliation reads the records of all jobs of its run.",
    ),
    "empty": Grant(
        sid="CountRecords",
        actions=("dynamodb:Scan",),
        on="the record table, to count only (`dynamodb:Select` is `COUNT`; `layout=2`)",
        why="The first process of all on a new table makes sure that it is empty before it writes in layout 2.",
    ),
    "payloads": Grant(
        sid="MovePayloads",
        actions=("s3:DeleteObject", "s3:GetObject", "s3:PutObject"),
        on="the objects below the payload prefix",
        why="Bodies over the queue's limit; deleted when the job is done.",
    ),
    "bucket": Grant(
        sid="MissPayloads",
        actions=("s3:ListBucket",),
        on="the bucket of the payloads",
        why="Without it S3 calls an object that is gone forbidden (403 instead of 404). Nothing is listed. It is about the "
        "whole bucket, so give payloads one of their own.",
    ),
    "logs": Grant(
        sid="WriteLogs",
        actions=("logs:CreateLogStream", "logs:PutLogEvents"),
        on="the streams of the function's own log group",
        why="What the function prints. The group itself is part of the template, so that it has its retention.",
    ),
    "key": Grant(
        sid="UseKey",
        actions=("kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey"),
        on="the KMS key, and only through SQS, DynamoDB, Lambda and, with `--payloads`, S3",
        why="Queues, table, variables and payloads that are encrypted with your own key (`--kms-key`).",
    ),
    "network": Grant(
        sid="JoinNetwork",
        actions=(
            "ec2:AssignPrivateIpAddresses",
            "ec2:CreateNetworkInterface",
            "ec2:DeleteNetworkInterface",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribeSubnets",
            "ec2:UnassignPrivateIpAddresses",
        ),
        on="every resource: network interfaces have no name before they are made",
        why="A function in a VPC (`Function(subnets=..., security_groups=...)`).",
    ),
    "tracing": Grant(
        sid="SendTraces",
        actions=("xray:PutTelemetryRecords", "xray:PutTraceSegments"),
        on="every resource: traces have no name before they are made",
        why="A function with `Function(tracing=True)`.",
    ),
    "later": Grant(
        sid="SendLater",
        actions=("scheduler:CreateSchedule",),
        on="the one-time schedules `later-...` of the app's group",
        why="A message whose `run_at` is further ahead than SQS delays (`--later`).",
    ),
    "role": Grant(
        sid="HandOverRole",
        actions=("iam:PassRole",),
        on="the role of the app's schedules, and only to EventBridge Scheduler",
        why="A schedule is made with the role that it sends with (`--later`).",
    ),
    "graves": Grant(
        sid="LookIntoDeadLetters",
        actions=("sqs:ChangeMessageVisibility", "sqs:ReceiveMessage"),
        on="all dead-letter and held queues of the app, from functions with reconciliations",
        why="A reconciliation reports where the messages of unfinished work are. They are visible again at once.",
    ),
    "listing": Grant(
        sid="LookAtQueues",
        actions=("sqs:GetQueueAttributes", "sqs:ListQueueTags"),
        on="every queue of the region, from functions with reconciliations",
        why="Which queues are dead-letter and held queues, and whether a queue is empty. No message is read.",
    ),
    "finding": Grant(
        sid="FindQueues",
        actions=("sqs:ListQueues",),
        on="every resource, from functions with reconciliations: AWS limits this action to no queue",
        why="The names of the queues that the statement above reads.",
    ),
    "buses": Grant(
        sid="PutEvents",
        actions=("events:PutEvents",),
        on="the event buses of the app",
        why="Events that handlers put leave when the run is recorded.",
    ),
}


class Statement(Struct, frozen=True, kw_only=True):
    """One statement of a role's policy; all of onefold's allow.

    Args:
        sid: its id.
        actions, resources: sorted; resources are ARN patterns (see `names.py`).
        services: allowed only on behalf of these services of the region (`kms:ViaService`).
        equals, like: condition keys and the text that they must equal, or match with `*`; also patterns.
        leading: patterns that the partition key of each item must match; empty for any.
    """

    sid: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    services: tuple[str, ...] = ()
    equals: Mapping[str, str] = {}
    like: Mapping[str, str] = {}
    leading: tuple[str, ...] = ()

    def condition(self) -> dict[str, dict[str, list[str]]]:
        """The condition in IAM's form, with patterns; empty if there is none."""
        equals = {name: [value] for name, value in self.equals.items()}
        if self.services:
            equals["kms:ViaService"] = [f"{service}.{{region}}.amazonaws.com" for service in self.services]
        like = {name: [value] for name, value in self.like.items()}
        found = {name: one for name, one in (("StringEquals", equals), ("StringLike", like)) if one}
        if self.leading:  # "all" is also true of no keys, so a call without keys is refused separately (IAM user guide)
            found["ForAllValues:StringLike"] = {LEADING_KEYS: list(self.leading)}
            found["Null"] = {LEADING_KEYS: ["false"]}
        return found

    def document(self, text: Callable[[str], Any]) -> dict[str, Any]:
        """The statement in the form of a policy; `text` writes a pattern in the language of a template."""
        found = {"Sid": self.sid, "Effect": "Allow", "Action": list(self.actions)}
        found["Resource"] = [text(pattern) for pattern in self.resources]
        condition = self.condition()
        return {**found, "Condition": filled(condition, text)} if condition else found


def filled(value: Any, text: Callable[[str], Any]) -> Any:
    """A document with each of its texts written by `text`."""
    if isinstance(value, Mapping):
        return {name: filled(one, text) for name, one in value.items()}
    if isinstance(value, list):
        return [filled(one, text) for one in value]
    return text(value) if isinstance(value, str) else value


class RolePlan(Struct, frozen=True, kw_only=True):
    """A role that an AWS service assumes, only for this account's resources.

    Args:
        id: part of its logical id `{id}Role`. service: for example `scheduler`.
        text: its purpose. statements: its permissions.
        owner: the owner of the thing it belongs to, if there is one.
        says_account: whether the service's request names the account for which it assumes the role.
    """

    id: str
    service: str
    text: str
    statements: tuple[Statement, ...]
    owner: str | None = None
    says_account: bool = True

    def trust(self) -> dict[str, object]:
        """The single statement of its trust policy; the account prevents a confused deputy (IAM user guide)."""
        found: dict[str, object] = {
            "Effect": "Allow",
            "Principal": {"Service": f"{self.service}.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
        if self.says_account:
            found["Condition"] = {"StringEquals": {"aws:SourceAccount": "{account}"}}
        return found


LAMBDA_TRUST: Final = {
    "Effect": "Allow",
    "Principal": {"Service": "lambda.amazonaws.com"},
    "Action": "sts:AssumeRole",
}
"""The single statement of the trust policy of a function's role."""


def queue_statements(queue: object, rules: Sequence[object] | None) -> list[dict[str, Any]]:
    """The statements of a queue's own policy: no access without TLS, and the rules that target it are allowed to send.

    Args:
        queue: its ARN. rules: ARNs of the rules; None if there are none. Both in the form that the writer uses.
    """
    found: list[dict[str, Any]] = [
        {
            "Sid": "DenyWithoutTls",
            "Effect": "Deny",
            "Principal": "*",
            "Action": "sqs:*",
            "Resource": queue,
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        }
    ]
    if rules is not None:
        allowed = {
            "Sid": "LetRulesSend",
            "Effect": "Allow",
            "Principal": {"Service": "events.amazonaws.com"},
            "Action": "sqs:SendMessage",
            "Resource": queue,
            "Condition": {"ArnEquals": {"aws:SourceArn": list(rules)}},
        }
        found.append(allowed)
    return found


class Uses(Struct, frozen=True, kw_only=True):
    """What one function uses, by full names.

    Args:
        queue: the queue whose messages it handles. companions: the queue's dead-letter and held queues.
        sends_to: queues to which its jobs send. log_group: its log group.
        table: the table of the records; None if they are kept elsewhere.
        jobs: the jobs whose records it writes, if the table has layout 2; empty in layout 1, which cannot separate
            roles by job.
        payloads: `bucket/prefix`, or None.
        kms_key: ARN, or None.
        network: whether it runs in a VPC. tracing: whether it sends traces.
        buses: event buses on which its jobs may put events, by full names.
        late_group: name of the group of its one-time schedules, or None. late_role: ARN of the role with which they
            send.
        graves: dead-letter and held queues that its reconciliations read; empty if it has no reconciliation.
    """

    queue: str
    companions: tuple[str, ...]
    sends_to: tuple[str, ...]
    log_group: str
    table: str | None = None
    jobs: tuple[str, ...] = ()
    payloads: str | None = None
    kms_key: str | None = None
    network: bool = False
    tracing: bool = False
    buses: tuple[str, ...] = ()
    late_group: str | None = None
    late_role: str = ""
    graves: tuple[str, ...] = ()


_EQUALS: Final[Mapping[Purpose, Mapping[str, str]]] = {
    "role": {"iam:PassedToService": "scheduler.amazonaws.com"},
    "empty": {"dynamodb:Select": "COUNT"},
}


def statements(uses: Uses) -> tuple[Statement, ...]:
    """The statements of a function's role, in the order of GRANTS."""
    queues = sorted({uses.queue, *uses.sends_to})
    resources: dict[Purpose, Sequence[str]] = {
        "source": [names.queue_arn(uses.queue)],
        "companions": [names.queue_arn(name) for name in sorted(set(uses.companions))],
        "sends": [names.queue_arn(name) for name in queues],
        "logs": [names.log_streams_arn(uses.log_group)],
    }
    if uses.table is not None:
        resources["table"] = [names.table_arn(uses.table)]
        if uses.jobs:
            resources["empty"] = resources["table"]
            if uses.graves:
                resources["reading"] = resources["table"]
    if uses.payloads is not None:
        resources["payloads"] = [names.objects_arn(uses.payloads)]
        resources["bucket"] = [names.bucket_arn(uses.payloads)]
    if uses.kms_key is not None:
        resources["key"] = [uses.kms_key]
    if uses.network:
        resources["network"] = ["*"]
    if uses.tracing:
        resources["tracing"] = ["*"]
    if uses.buses:
        resources["buses"] = [names.bus_arn(name) for name in sorted(uses.buses)]
    if uses.late_group is not None:
        resources["later"] = [names.schedules_arn(uses.late_group, "later-")]
        resources["role"] = [uses.late_role]
    if uses.graves:
        resources["graves"] = [names.queue_arn(name) for name in sorted(set(uses.graves))]
        resources["listing"] = [names.queue_arn("*")]
        resources["finding"] = ["*"]
    by_service = tuple(
        service
        for service, used in (("dynamodb", uses.table), ("lambda", True), ("s3", uses.payloads), ("sqs", True))
        if used
    )
    return tuple(
        Statement(
            sid=grant.sid,
            actions=grant.actions,
            resources=tuple(resources[purpose]),
            services=by_service if purpose == "key" else (),
            equals=_EQUALS.get(purpose, {}),
            leading=names.partitions(uses.jobs) if purpose == "table" and uses.jobs else (),
        )
        for purpose, grant in GRANTS.items()
        if purpose in resources
    )


def reference() -> str:
    """The table of the IAM reference, as Markdown."""
    rows = ["| Statement | Actions | On | What for |", "|---|---|---|---|"]
    for grant in GRANTS.values():
        actions = "<br>".join(f"`{action}`" for action in grant.actions)
        rows.append(f"| `{grant.sid}` | {actions} | {grant.on} | {grant.why} |")
    return "\n".join(rows) + "\n"
