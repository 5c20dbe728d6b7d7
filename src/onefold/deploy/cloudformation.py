"""A plan as a CloudFormation template of plain resources: no macro, no nested stack, nothing that runs at deployment.

Parameters: `CodeBucket` and `CodeKey`, where the functions' zip lies (`onefold deploy` fills them in), and `AlarmTopic`, an
SNS topic that alarms notify, empty for none.
Never here: sizes, names, permissions; they are the plan's. Invariant: equal plans give equal bytes; keys are sorted.

Source: CloudFormation "Resource and property types reference".
"""

from __future__ import annotations

from typing import Any

import msgspec

from onefold import errors
from onefold.contracts.settings import QueueSettings
from onefold.deploy import iam, names, template_time
from onefold.deploy import template_values as values
from onefold.deploy.alarms import Alarm, LogCount
from onefold.deploy.functions import URL_VARIABLE, FunctionPlan
from onefold.deploy.plan import Plan, QueuePlan

Json = dict[str, Any]


def template(plan: Plan) -> Json:
    """The template as a plain value."""
    resources: Json = {}
    for queue in plan.queues:
        resources[f"{queue.id}Queue"] = _queue(plan, queue)
        resources[f"{queue.id}QueuePolicy"] = _queue_policy(plan, queue)
    if plan.table is not None:
        resources["RecordTable"] = _table(plan, plan.table)
    for function in plan.functions:
        resources |= {
            f"{function.id}Function": _function(plan, function),
            f"{function.id}LogGroup": _log_group(plan, function),
            f"{function.id}Mapping": _mapping(plan, function),
            f"{function.role_id}Role": _role(plan, function),
        }
    resources |= template_time.resources(plan)
    resources |= {count.id: _log_count(count) for count in plan.log_counts}
    resources |= {alarm.id: _alarm(plan, alarm) for alarm in plan.alarms}
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Queues, functions, records and alarms of the onefold app {plan.app}.",
        "Conditions": {"HasAlarmTopic": {"Fn::Not": [{"Fn::Equals": [{"Ref": "AlarmTopic"}, ""]}]}},
        "Outputs": _outputs(plan),
        "Parameters": _parameters(plan),
        "Resources": resources,
    }


def to_json(plan: Plan) -> str:
    """The template as JSON text, indented, with a line end at its end."""
    text = msgspec.json.encode(template(plan), order="deterministic")
    return msgspec.json.format(text, indent=2).decode() + "\n"


def to_yaml(plan: Plan) -> str:
    """The template as YAML text.

    Raises:
        UsageError: PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError:
        raise errors.UsageError(
            "YAML needs the package PyYAML, which is not installed.", todo="Run: pip install pyyaml"
        ) from None
    # by way of JSON: a value that stands at several places would become an alias, which CloudFormation does not read
    plain = msgspec.json.decode(msgspec.json.encode(template(plan)))
    text: str = yaml.safe_dump(plain, sort_keys=True, width=120)
    return text


# -- queues and table ------------------------------------------------------------------------------------------------


def _queue(plan: Plan, queue: QueuePlan) -> Json:
    settings = queue.settings
    properties: Json = {
        "QueueName": settings.name,
        "VisibilityTimeout": values.seconds(settings.visibility_ms),
        "MessageRetentionPeriod": values.seconds(settings.retention_ms),
        "DelaySeconds": values.seconds(settings.delay_ms),
        "MaximumMessageSize": settings.message_bytes_max,
        "RedriveAllowPolicy": _redrive_allow(settings),
        "Tags": values.tags(plan, queue.owner, settings.held),
    }
    if settings.dead_letter is not None:
        dead = next(one.id for one in plan.queues if one.settings.name == settings.dead_letter)
        properties["RedrivePolicy"] = {
            "deadLetterTargetArn": values.arn(f"{dead}Queue"),
            "maxReceiveCount": settings.receives_max,
        }
    if settings.fifo:
        per_group = settings.dedup_scope == "messageGroup"
        properties |= {
            "FifoQueue": True,
            "ContentBasedDeduplication": settings.content_dedup,
            "DeduplicationScope": settings.dedup_scope,
            "FifoThroughputLimit": "perMessageGroupId" if per_group else "perQueue",
        }
    if plan.stack.kms_key is not None:
        properties["KmsMasterKeyId"] = plan.stack.kms_key
    else:
        properties["SqsManagedSseEnabled"] = True
    return {"Type": "AWS::SQS::Queue", "Properties": properties, **values.kept(plan)}


def _redrive_allow(settings: QueueSettings) -> Json:
    if settings.redrive_allow != "byQueue":
        return {"redrivePermission": settings.redrive_allow}
    # by name and not by GetAtt: source and dead-letter queue would wait for each other
    arns = [values.text(names.queue_arn(name)) for name in settings.redrive_sources]
    return {"redrivePermission": "byQueue", "sourceQueueArns": arns}


def _queue_policy(plan: Plan, queue: QueuePlan) -> Json:
    rules = plan.events.senders.get(queue.id)
    sent_by = None if rules is None else [values.text(arn) for arn in rules]
    document = values.document(iam.queue_statements(values.arn(f"{queue.id}Queue"), sent_by))
    return {
        "Type": "AWS::SQS::QueuePolicy",
        "Properties": {"Queues": [{"Ref": f"{queue.id}Queue"}], "PolicyDocument": document},
    }


def _table(plan: Plan, name: str) -> Json:
    encryption: Json = {"SSEEnabled": True}
    if plan.stack.kms_key is not None:
        encryption |= {"SSEType": "KMS", "KMSMasterKeyId": plan.stack.kms_key}
    return {
        "Type": "AWS::DynamoDB::Table",
        "Properties": {
            "TableName": name,
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [
                {"AttributeName": "pk", "AttributeType": "S"},
                {"AttributeName": "sk", "AttributeType": "S"},
            ],
            "KeySchema": [
                {"AttributeName": "pk", "KeyType": "HASH"},
                {"AttributeName": "sk", "KeyType": "RANGE"},
            ],
            "TimeToLiveSpecification": {"AttributeName": "ttl", "Enabled": True},
            "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True},
            "SSESpecification": encryption,
            "DeletionProtectionEnabled": plan.stack.deletion_protection,
            "Tags": values.tags(plan, None),
        },
        **values.kept(plan),
    }


# -- functions -------------------------------------------------------------------------------------------------------


def _function(plan: Plan, function: FunctionPlan) -> Json:
    settings = function.settings
    properties: Json = {
        "FunctionName": settings.name,
        "Description": f"Runs {', '.join(function.jobs)} for messages of {function.mapping.queue}."[:256],
        "Runtime": function.runtime,
        "Architectures": [function.architecture],
        "Handler": settings.handler,
        "Code": {"S3Bucket": {"Ref": "CodeBucket"}, "S3Key": {"Ref": "CodeKey"}},
        "MemorySize": settings.memory_mib,
        "Timeout": values.seconds(settings.timeout_ms),
        "Role": values.arn(f"{function.role_id}Role"),
        "Environment": {"Variables": {**settings.env, URL_VARIABLE: values.text(plan.url)}},
        "LoggingConfig": {"LogGroup": {"Ref": f"{function.id}LogGroup"}},
        "Tags": values.tags(plan, function.owner),
    }
    if function.subnets:
        properties["VpcConfig"] = {
            "SubnetIds": list(function.subnets),
            "SecurityGroupIds": list(function.security_groups),
        }
    if plan.stack.kms_key is not None:
        properties["KmsKeyArn"] = plan.stack.kms_key
    return {"Type": "AWS::Lambda::Function", "Properties": properties}


def _mapping(plan: Plan, function: FunctionPlan) -> Json:
    mapping = function.mapping
    properties: Json = {
        "EventSourceArn": values.arn(f"{function.queue_id}Queue"),
        "FunctionName": {"Ref": f"{function.id}Function"},
        "BatchSize": mapping.batch_size,
        "FunctionResponseTypes": ["ReportBatchItemFailures"],
        "ScalingConfig": {"MaximumConcurrency": mapping.concurrency_max},
        "Tags": values.tags(plan, function.owner),
    }
    if not function.fifo:
        properties["MaximumBatchingWindowInSeconds"] = values.seconds(mapping.window_ms)
    return {"Type": "AWS::Lambda::EventSourceMapping", "Properties": properties}


def _role(plan: Plan, function: FunctionPlan) -> Json:
    document = values.document([values.statement(one) for one in function.statements])
    properties: Json = {
        "AssumeRolePolicyDocument": values.document([iam.LAMBDA_TRUST]),
        "Description": f"What the function {function.name} uses, and no more.",
        "Policies": [{"PolicyName": "onefold", "PolicyDocument": document}],
        "Tags": values.tags(plan, function.owner),
    }
    if function.policies:
        properties["ManagedPolicyArns"] = list(function.policies)
    return {"Type": "AWS::IAM::Role", "Properties": properties}


def _log_group(plan: Plan, function: FunctionPlan) -> Json:
    properties: Json = {
        "LogGroupName": function.log_group,
        "RetentionInDays": plan.stack.log_days,
        "Tags": values.tags(plan, function.owner),
    }
    if plan.stack.kms_key is not None:
        properties["KmsKeyId"] = plan.stack.kms_key
    return {
        "Type": "AWS::Logs::LogGroup",
        "Properties": properties,
        "DeletionPolicy": "Delete",
        "UpdateReplacePolicy": "Delete",
    }


# -- alarms, parameters, outputs -------------------------------------------------------------------------------------


def _log_count(count: LogCount) -> Json:
    counted = {"MetricNamespace": count.namespace, "MetricName": count.metric, "MetricValue": "1", "Unit": "Count"}
    return {
        "Type": "AWS::Logs::MetricFilter",
        "Properties": {
            "LogGroupName": {"Ref": f"{count.function}LogGroup"},
            "FilterPattern": count.pattern,
            "MetricTransformations": [counted],
        },
    }


def _alarm(plan: Plan, alarm: Alarm) -> Json:
    notified = {"Fn::If": ["HasAlarmTopic", [{"Ref": "AlarmTopic"}], {"Ref": "AWS::NoValue"}]}
    properties: Json = {
        "AlarmName": alarm.name,
        "AlarmDescription": alarm.text,
        "Namespace": alarm.namespace,
        "MetricName": alarm.metric,
        "Statistic": alarm.statistic,
        "Period": values.seconds(alarm.period_ms),
        "EvaluationPeriods": 1,
        "Threshold": alarm.threshold,
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "TreatMissingData": "notBreaching",
        "AlarmActions": notified,
        "OKActions": notified,
        "Tags": values.tags(plan, alarm.owner),
    }
    if alarm.dimensions:
        properties["Dimensions"] = [
            {"Name": name, "Value": values.text(value)} for name, value in alarm.dimensions.items()
        ]
    return {"Type": "AWS::CloudWatch::Alarm", "Properties": properties}


def _parameters(plan: Plan) -> Json:
    found: Json = {
        "AlarmTopic": {
            "Type": "String",
            "Default": "",
            "Description": "ARN of an SNS topic that alarms notify; empty for none.",
        }
    }
    if plan.functions:
        found["CodeBucket"] = {"Type": "String", "Description": "Bucket with the functions' code (onefold package)."}
        found["CodeKey"] = {"Type": "String", "Description": "Key of the zip in that bucket."}
    return found


def _outputs(plan: Plan) -> Json:
    found: Json = {"EngineUrl": {"Description": "For --url and ONEFOLD_URL.", "Value": values.text(plan.url)}}
    for queue in plan.queues:
        role = {"main": "Queue", "dead": "Dead-letter queue", "held": "Queue for unknown outcomes"}[queue.role]
        found[f"{queue.id}QueueUrl"] = {
            "Description": f"{role} {queue.settings.name}.",
            "Value": {"Ref": f"{queue.id}Queue"},
        }
    for function in plan.functions:
        found[f"{function.id}FunctionArn"] = {
            "Description": f"Function {function.name}.",
            "Value": values.arn(f"{function.id}Function"),
        }
    if plan.table is not None:
        found["RecordTableName"] = {
            "Description": "Table of records, ledger and state.",
            "Value": {"Ref": "RecordTable"},
        }
    return found | template_time.outputs(plan)
