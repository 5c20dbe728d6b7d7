"""CloudWatch's alarms in Slack: Amazon Q Developer in chat applications, and the topic that it reads.

It reads alarms from an SNS topic and posts them with their graph; no code or secret of onefold is involved. A person
connects the Slack workspace once, in the account's console. CloudFormation's types still have the service's old name,
`AWS::Chatbot`.
Never here: which alarms there are. Invariant: its role may read CloudWatch and nothing else.

Source: CloudFormation reference, AWS::Chatbot::SlackChannelConfiguration; its administrator guide, "Get started with Slack".
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from onefold.deploy import iam
from onefold.deploy.stack import Stack

TOPIC_ID: Final = "Alarms"
GUARDRAIL: Final = "arn:{partition}:iam::aws:policy/CloudWatchReadOnlyAccess"
"""The most that anyone in the channel may do, whatever the role allows; without this limit it would be everything."""
_LOOKS: Final = ("cloudwatch:Describe*", "cloudwatch:Get*", "cloudwatch:List*")


class SlackPlan(Struct, frozen=True, kw_only=True):
    """A channel in Slack.

    Args:
        name: the name of the configuration and of the topic, unique in the account. workspace, channel: ids in Slack.
        role: the role that the service assumes.
    """

    name: str
    workspace: str
    channel: str
    role: iam.RolePlan


def planned(app: str, stack: Stack) -> SlackPlan | None:
    """The channel for a deployment's alarms; None if there is none."""
    name = topic(app, stack)
    if stack.slack is None or name is None:
        return None
    workspace, _, channel = stack.slack.partition("/")
    role = iam.RolePlan(
        id="Chat",
        service="chatbot",
        text=f"What {name} looks at to show an alarm in Slack, and no more.",
        says_account=False,
        statements=(iam.Statement(sid="LookAtAlarms", actions=_LOOKS, resources=("*",)),),
    )
    return SlackPlan(name=name, workspace=workspace, channel=channel, role=role)


def topic(app: str, stack: Stack) -> str | None:
    """The name of the stack's own topic for alarms; None if there is none."""
    return f"{stack.prefix}{app}-alarms" if (stack.slack or stack.topic) and stack.alarms != "none" else None
