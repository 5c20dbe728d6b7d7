"""The statements that the policy of your own key needs for services that use the key directly, not through a role.

A role's policy cannot let CloudWatch Logs or EventBridge use a key: they use it under their own name, with the account,
the log group or the bus in their request. Everything else uses the key through a role, whose statements are in
`iam.py`.
Never here: roles. Invariant: each statement is needed by the plan, and names one account.

Sources: CloudWatch Logs user guide, "Encrypt log data using AWS KMS"; EventBridge user guide, "Encrypting event buses" and
"Encrypting archives"; SQS developer guide, "Configure KMS permissions for AWS services".
"""

from __future__ import annotations

import json
from typing import Any

from onefold import errors
from onefold.deploy import names
from onefold.deploy.plan import DeployPlan

Json = dict[str, Any]


def policy(plan: DeployPlan) -> Json:
    """A policy document with the statements to add to the key's policy.

    Raises:
        UsageError: the stack has no key.
    """
    if plan.stack.kms_key is None:
        raise errors.UsageError(
            "The stack names no key, so it needs no policy.",
            todo="Give --kms-key ARN, which names region and account.",
        )
    _, partition, _, region, account, _ = plan.stack.kms_key.split(":", 5)
    places = {"partition": partition, "region": region, "account": account}

    def text(pattern: str) -> str:
        return names.filled(pattern, places.__getitem__)

    statements: list[Json] = []
    if plan.functions:
        logs = [
            text(f"arn:{{partition}}:logs:{{region}}:{{account}}:log-group:{one.log_group}") for one in plan.functions
        ]
        statements.append(
            {
                "Sid": "LetLogsEncrypt",
                "Effect": "Allow",
                "Principal": {"Service": f"logs.{region}.amazonaws.com"},
                "Action": ["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey*", "kms:ReEncrypt*"],
                "Resource": "*",
                "Condition": {"ArnEquals": {"kms:EncryptionContext:aws:logs:arn": sorted(logs)}},
            }
        )
    if plan.events.rules or plan.events.archives:
        statements.append(
            {
                "Sid": "LetEventBridgeKeepAndSend",
                "Effect": "Allow",
                "Principal": {"Service": "events.amazonaws.com"},
                "Action": ["kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKey", "kms:ReEncrypt*"],
                "Resource": "*",
                "Condition": {"StringEquals": {"aws:SourceAccount": account}},
            }
        )
    if plan.topic is not None:
        statements.append(
            {
                "Sid": "LetAlarmsNotify",
                "Effect": "Allow",
                "Principal": {"Service": "cloudwatch.amazonaws.com"},
                "Action": ["kms:Decrypt", "kms:GenerateDataKey"],
                "Resource": "*",
                "Condition": {"StringEquals": {"aws:SourceAccount": account}},
            }
        )
    return {"Version": "2012-10-17", "Statement": statements}


def to_json(plan: DeployPlan) -> str:
    """The same as JSON text that ends in a line end; raises what `policy` raises."""
    return json.dumps(policy(plan), indent=2) + "\n"
