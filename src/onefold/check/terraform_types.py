"""The types of Terraform's AWS provider in CloudFormation's words: which argument is which property.

Never here: values (terraform_resources.py). Invariant: an argument that has no meaning for a rule is left out.

Sources: registry documentation of hashicorp/aws 5 and 6, Argument Reference of each resource; CloudFormation template
reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct


class Part(Struct, frozen=True):
    """How an argument becomes a property.

    `text`: JSON as text. `one`: the first of its blocks. `many`: all of them. `pairs`: a mapping as a list of names and
    values, `tags` with keys. `whole`: a list or mapping, not one of the values in it.
    """

    name: str
    how: Literal["text", "one", "many", "pairs", "tags", "whole"]
    inside: Mapping[str, str | Part] = {}


Parts = Mapping[str, "str | Part"]


class Type(Struct, frozen=True):
    """A type of resource: CloudFormation's name for it, its arguments' names there, and the provider's own defaults."""

    name: str
    parts: Parts
    defaults: Mapping[str, Any] = {}


_TAGS: Final = Part("Tags", "tags")
_DEAD: Final = Part("DeadLetterConfig", "one", {"arn": "Arn"})
_RETRY: Final = Part(
    "RetryPolicy",
    "one",
    {
        "maximum_retry_attempts": "MaximumRetryAttempts",
        "maximum_event_age_in_seconds": "MaximumEventAgeInSeconds",
    },
)
_METRIC: Final[Parts] = {
    "metric_name": "MetricName", "namespace": "Namespace", "dimensions": Part("Dimensions", "pairs"),
}  # fmt: skip
_ACTIONS: Final[Parts] = {
    "alarm_name": "AlarmName", "actions_enabled": "ActionsEnabled", "alarm_actions": Part("AlarmActions", "whole"),
    "ok_actions": Part("OKActions", "whole"),
}  # fmt: skip
TARGET: Final[Parts] = {
    "arn": "Arn", "role_arn": "RoleArn", "input": "Input", "input_path": "InputPath",
    "input_transformer": Part("InputTransformer", "one", {"input_template": "InputTemplate"}),
    "dead_letter_config": _DEAD, "retry_policy": _RETRY,
    "sqs_target": Part("SqsParameters", "one", {"message_group_id": "MessageGroupId"}),
    "sqs_parameters": Part("SqsParameters", "one", {"message_group_id": "MessageGroupId"}),
}  # fmt: skip
TYPES: Final[Mapping[str, Type]] = {
    "aws_sqs_queue": Type(
        "AWS::SQS::Queue",
        {
            "name": "QueueName",
            "fifo_queue": "FifoQueue",
            "visibility_timeout_seconds": "VisibilityTimeout",
            "message_retention_seconds": "MessageRetentionPeriod",
            "max_message_size": "MaximumMessageSize",
            "delay_seconds": "DelaySeconds",
            "receive_wait_time_seconds": "ReceiveMessageWaitTimeSeconds",
            "content_based_deduplication": "ContentBasedDeduplication",
            "deduplication_scope": "DeduplicationScope",
            "fifo_throughput_limit": "FifoThroughputLimit",
            "kms_master_key_id": "KmsMasterKeyId",
            "kms_data_key_reuse_period_seconds": "KmsDataKeyReusePeriodSeconds",
            "sqs_managed_sse_enabled": "SqsManagedSseEnabled",
            "redrive_policy": Part("RedrivePolicy", "text"),
            "redrive_allow_policy": Part("RedriveAllowPolicy", "text"),
            "tags": _TAGS,
        },
        {
            "visibility_timeout_seconds": 30,
            "message_retention_seconds": 345_600,
            "delay_seconds": 0,
            "receive_wait_time_seconds": 0,
            "fifo_queue": False,
            "content_based_deduplication": False,
        },
    ),
    "aws_lambda_function": Type(
        "AWS::Lambda::Function",
        {
            "function_name": "FunctionName",
            "handler": "Handler",
            "runtime": "Runtime",
            "package_type": "PackageType",
            "timeout": "Timeout",
            "memory_size": "MemorySize",
            "reserved_concurrent_executions": "ReservedConcurrentExecutions",
            "role": "Role",
            "environment": Part("Environment", "one", {"variables": Part("Variables", "whole")}),
            "dead_letter_config": Part("DeadLetterConfig", "one", {"target_arn": "TargetArn"}),
            "durable_config": Part("DurableConfig", "one", {"execution_timeout": "ExecutionTimeout"}),
            "tenancy_config": Part("TenancyConfig", "one", {"tenant_isolation_mode": "TenantIsolationMode"}),
            "capacity_provider_config": Part("CapacityProviderConfig", "one"),
        },
        {"timeout": 3, "memory_size": 128, "reserved_concurrent_executions": -1, "package_type": "Zip"},
    ),
    "aws_lambda_event_source_mapping": Type(
        "AWS::Lambda::EventSourceMapping",
        {
            "event_source_arn": "EventSourceArn",
            "function_name": "FunctionName",
            "batch_size": "BatchSize",
            "maximum_batching_window_in_seconds": "MaximumBatchingWindowInSeconds",
            "enabled": "Enabled",
            "function_response_types": Part("FunctionResponseTypes", "whole"),
            "scaling_config": Part("ScalingConfig", "one", {"maximum_concurrency": "MaximumConcurrency"}),
            "filter_criteria": Part(
                "FilterCriteria", "one", {"filter": Part("Filters", "many", {"pattern": "Pattern"})}
            ),
            "destination_config": Part(
                "DestinationConfig",
                "one",
                {"on_failure": Part("OnFailure", "one", {"destination_arn": "Destination"})},
            ),
            "provisioned_poller_config": Part(
                "ProvisionedPollerConfig",
                "one",
                {"minimum_pollers": "MinimumPollers", "maximum_pollers": "MaximumPollers"},
            ),
        },
        {"enabled": True},
    ),
    "aws_lambda_function_event_invoke_config": Type(
        "AWS::Lambda::EventInvokeConfig",
        {
            "function_name": "FunctionName",
            "maximum_retry_attempts": "MaximumRetryAttempts",
            "destination_config": Part(
                "DestinationConfig", "one", {"on_failure": Part("OnFailure", "one", {"destination": "Destination"})}
            ),
        },
    ),
    "aws_lambda_alias": Type("AWS::Lambda::Alias", {"name": "Name", "function_name": "FunctionName"}),
    "aws_cloudwatch_event_bus": Type(
        "AWS::Events::EventBus",
        {"name": "Name", "kms_key_identifier": "KmsKeyIdentifier", "dead_letter_config": _DEAD},
    ),
    "aws_cloudwatch_event_rule": Type(
        "AWS::Events::Rule",
        {
            "name": "Name",
            "event_bus_name": "EventBusName",
            "schedule_expression": "ScheduleExpression",
            "event_pattern": Part("EventPattern", "text"),
            "state": "State",
        },
        {"event_bus_name": "default", "state": "ENABLED"},
    ),
    "aws_scheduler_schedule_group": Type("AWS::Scheduler::ScheduleGroup", {"name": "Name"}),
    "aws_scheduler_schedule": Type(
        "AWS::Scheduler::Schedule",
        {
            "name": "Name",
            "group_name": "GroupName",
            "schedule_expression": "ScheduleExpression",
            "state": "State",
            "target": Part("Target", "one", TARGET),
        },
        {"state": "ENABLED"},
    ),
    "aws_sns_topic": Type(
        "AWS::SNS::Topic", {"name": "TopicName", "fifo_topic": "FifoTopic", "kms_master_key_id": "KmsMasterKeyId"}
    ),
    "aws_sns_topic_subscription": Type(
        "AWS::SNS::Subscription",
        {
            "topic_arn": "TopicArn",
            "protocol": "Protocol",
            "endpoint": "Endpoint",
            "raw_message_delivery": "RawMessageDelivery",
            "redrive_policy": Part("RedrivePolicy", "text"),
        },
        {"raw_message_delivery": False},
    ),
    "aws_sfn_state_machine": Type(
        "AWS::StepFunctions::StateMachine",
        {
            "name": "StateMachineName",
            "type": "StateMachineType",
            "definition": "DefinitionString",
            "role_arn": "RoleArn",
        },
        {"type": "STANDARD"},
    ),
    "aws_dynamodb_table": Type(
        "AWS::DynamoDB::GlobalTable",
        {
            "name": "TableName",
            "replica": Part("Replicas", "many", {"region_name": "Region", "consistency_mode": "Consistency"}),
            "ttl": Part("TimeToLiveSpecification", "one", {"attribute_name": "AttributeName", "enabled": "Enabled"}),
        },
    ),
    "aws_cloudwatch_metric_alarm": Type(
        "AWS::CloudWatch::Alarm",
        {
            **_ACTIONS,
            **_METRIC,
            "comparison_operator": "ComparisonOperator",
            "threshold": "Threshold",
            "treat_missing_data": "TreatMissingData",
            "statistic": "Statistic",
            "extended_statistic": "ExtendedStatistic",
            "period": "Period",
            "evaluation_periods": "EvaluationPeriods",
            "metric_query": Part(
                "Metrics",
                "many",
                {
                    "id": "Id",
                    "expression": "Expression",
                    "metric": Part("MetricStat", "one", {**_METRIC, "stat": "Stat", "period": "Period"}),
                },
            ),
        },
        {"treat_missing_data": "missing", "actions_enabled": True},
    ),
    "aws_cloudwatch_composite_alarm": Type(
        "AWS::CloudWatch::CompositeAlarm", {**_ACTIONS, "alarm_rule": "AlarmRule"}, {"actions_enabled": True}
    ),
    "aws_iam_role": Type(
        "AWS::IAM::Role",
        {
            "name": "RoleName",
            "assume_role_policy": Part("AssumeRolePolicyDocument", "text"),
            "managed_policy_arns": Part("ManagedPolicyArns", "whole"),
            "inline_policy": Part("Policies", "many", {"policy": Part("PolicyDocument", "text")}),
        },
    ),
    "aws_iam_role_policy": Type("AWS::IAM::RolePolicy", {"role": "RoleName", "policy": Part("PolicyDocument", "text")}),
    "aws_iam_role_policy_attachment": Type("AWS::IAM::RolePolicy", {"role": "RoleName"}),
    "aws_iam_policy_attachment": Type("AWS::IAM::ManagedPolicy", {"roles": Part("Roles", "whole")}),
    "aws_kms_key": Type("AWS::KMS::Key", {"policy": Part("KeyPolicy", "text")}),
    "aws_kms_alias": Type("AWS::KMS::Alias", {"name": "AliasName", "target_key_id": "TargetKeyId"}),
    "aws_sqs_queue_policy": Type(
        "AWS::SQS::QueueInlinePolicy", {"queue_url": "Queue", "policy": Part("PolicyDocument", "text")}
    ),
}
WORDS: Final = {
    "BatchSize": "batch_size",
    "FunctionResponseTypes": "function_response_types",
    "MaximumBatchingWindowInSeconds": "maximum_batching_window_in_seconds",
    "MaximumConcurrency": "scaling_config { maximum_concurrency }",
    "MaximumMessageSize": "max_message_size",
    "MessageRetentionPeriod": "message_retention_seconds",
    "ReservedConcurrentExecutions": "reserved_concurrent_executions",
    "TreatMissingData": "treat_missing_data",
    "VisibilityTimeout": "visibility_timeout_seconds",
}
