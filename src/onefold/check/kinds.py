"""How CloudFormation refers to resources: which property names one, what its ARN is, what Ref and Fn::GetAtt give.

Never here: what a resource consists of. Queues and functions have rules of their own (scope.py): their names are taken over
by a local SQS. Invariant: a type that is not listed is referred to by nobody's guess.

Source: CloudFormation template reference, "Return values" of each type; Service Authorization Reference, "Resource types"
for the forms of ARNs.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct


class ResourceKind(Struct, frozen=True):
    """How one type of resource is referred to.

    Attributes:
        name: the property that names it. arn: what follows the partition, `{name}` and the like filled in.
        ref: what Ref gives. inside: the property with the group or bus that is a part of the ARN, and its default.
    """

    name: str
    arn: str
    ref: Literal["name", "arn"] = "name"
    inside: tuple[str, str] | None = None


_AT: Final = "{region}:{account}"
KINDS: Final = {
    "AWS::CloudWatch::Alarm": ResourceKind("AlarmName", f"cloudwatch:{_AT}:alarm:{{name}}"),
    "AWS::CloudWatch::CompositeAlarm": ResourceKind("AlarmName", f"cloudwatch:{_AT}:alarm:{{name}}"),
    "AWS::CloudWatch::LogAlarm": ResourceKind("AlarmName", f"cloudwatch:{_AT}:alarm:{{name}}"),
    "AWS::DynamoDB::GlobalTable": ResourceKind("TableName", f"dynamodb:{_AT}:table/{{name}}"),
    "AWS::DynamoDB::Table": ResourceKind("TableName", f"dynamodb:{_AT}:table/{{name}}"),
    "AWS::Events::EventBus": ResourceKind("Name", f"events:{_AT}:event-bus/{{name}}"),
    "AWS::Events::Rule": ResourceKind("Name", f"events:{_AT}:rule/{{inside}}{{name}}", inside=("EventBusName", "")),
    "AWS::EventsV2::EventBus": ResourceKind("Name", f"events:{_AT}:event-busv2/{{name}}", "arn"),
    "AWS::EventsV2::Subscriber": ResourceKind("Name", f"events:{_AT}:subscriber/{{name}}", "arn"),
    "AWS::IAM::Role": ResourceKind("RoleName", "iam::{account}:role/{name}"),
    "AWS::KMS::Alias": ResourceKind("AliasName", f"kms:{_AT}:{{name}}"),
    "AWS::KMS::Key": ResourceKind("", f"kms:{_AT}:key/{{name}}"),
    "AWS::SNS::Topic": ResourceKind("TopicName", f"sns:{_AT}:{{name}}", "arn"),
    "AWS::Scheduler::Schedule": ResourceKind(
        "Name", f"scheduler:{_AT}:schedule/{{inside}}{{name}}", inside=("GroupName", "default")
    ),
    "AWS::Scheduler::ScheduleGroup": ResourceKind("Name", f"scheduler:{_AT}:schedule-group/{{name}}"),
    "AWS::Serverless::SimpleTable": ResourceKind("TableName", f"dynamodb:{_AT}:table/{{name}}"),
    "AWS::Serverless::StateMachine": ResourceKind("Name", f"states:{_AT}:stateMachine:{{name}}", "arn"),
    "AWS::StepFunctions::StateMachine": ResourceKind("StateMachineName", f"states:{_AT}:stateMachine:{{name}}", "arn"),
}
SERVED: Final = frozenset({"AWS::SNS::Topic"})  # of these, those that exist in a local SQS
NAME_ATTRIBUTES: Final = frozenset({"AlarmName", "KeyId", "Name", "QueueName", "TopicName"})
ARN_ATTRIBUTES: Final = frozenset({"Arn", "EventBusArn", "SubscriberArn", "TopicArn"})
QUALIFIED: Final = frozenset({"AWS::Lambda::Alias", "AWS::Lambda::Version"})
