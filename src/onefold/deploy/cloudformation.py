"""A plan as a CloudFormation template of plain resources: no macro, no nested stack, nothing that runs at deployment.

Parameters: `CodeBucket` and `CodeKey`, where the functions' zip is (`onefold deploy` fills them in), and `AlarmTopic`, an
SNS topic that alarms notify, empty for none.

Never here: which resources there are, sizes, names, permissions; the plan has them. Invariant: equal plans give equal
bytes, because keys are sorted; a user's text is data in every property and never read as an expression: `${` in it is
escaped, and only onefold's own references are expressions.

Source: CloudFormation "Resource and property types reference"; template reference, "Fn::Sub" and "DeletionPolicy attribute".
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from onefold import errors, extras
from onefold.contracts.settings import QueueSettings
from onefold.deploy import cloudformation_alarms, dashboard, iam, names
from onefold.deploy.chat import TOPIC_ID
from onefold.deploy.cloudformation_values import Json, arn, document, kept, role_bounds, service_role, tags, text
from onefold.deploy.eventbridge import (
    GROUP_ID,
    PIPE_BATCH,
    RETRIES,
    RETRY_AGE_S,
    ROLE_ID,
    TARGET_ARN,
    ArchivePlan,
    BusPlan,
    PipePlan,
    RulePlan,
    SchedulePlan,
)
from onefold.deploy.functions import EPHEMERAL_MB, URL_VARIABLE, FunctionPlan
from onefold.deploy.plan import DeployPlan, QueuePlan
from onefold.deploy.stack import overridden
from onefold.deploy.state_machine import MachinePlan
from onefold.duration import seconds_up

RESOURCES_MAX = 500  # CloudFormation quotas: resources in a template


def template(plan: DeployPlan) -> Json:
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
        if function.options.alias is not None:
            resources |= _alias(function, resources[f"{function.id}Function"]["Properties"])
    resources |= _event_resources(plan)
    resources |= cloudformation_alarms.resources(plan)
    drawn = {"DashboardName": plan.name, "DashboardBody": text(dashboard.body(plan)), "Tags": tags(plan, None)}
    resources[dashboard.ID] = {"Type": "AWS::CloudWatch::Dashboard", "Properties": drawn}
    overridden(resources, {key: one for key, one in plan.stack.overrides.items() if "." not in key})
    if len(resources) > RESOURCES_MAX:
        raise errors.UsageError(
            f"The template has {len(resources)} resources.",
            meaning=f"CloudFormation allows {RESOURCES_MAX} in a stack; {len(plan.alarms)} of these are alarms.",
            todo="Use `--alarms few`, write Terraform, or split the app: several apps may share queues and a table.",
        )
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Queues, functions, records and alarms of the onefold app {plan.app}.",
        "Conditions": {"HasAlarmTopic": {"Fn::Not": [{"Fn::Equals": [{"Ref": "AlarmTopic"}, ""]}]}},
        "Outputs": _outputs(plan),
        "Parameters": _parameters(plan),
        "Resources": resources,
    }


def to_json(plan: DeployPlan, *, indent: bool = True) -> str:
    """The template as JSON text with a line end at its end.

    Args:
        indent: for people; without it the text is about a third shorter, and a request can have 51,200 bytes.
    """
    text = msgspec.json.encode(template(plan), order="deterministic")
    return (msgspec.json.format(text, indent=2) if indent else text).decode() + "\n"


def to_yaml(plan: DeployPlan) -> str:
    """The template as YAML text.

    Raises:
        UsageError: PyYAML is not installed.
    """
    with extras.needed("YAML", "serve"):
        import yaml
    # through JSON, because a repeated value would become a YAML alias, which CloudFormation cannot read
    plain = msgspec.json.decode(msgspec.json.encode(template(plan)))
    text: str = yaml.safe_dump(plain, sort_keys=True, width=120)
    return text


# -- queues and table ------------------------------------------------------------------------------------------------


def _queue(plan: DeployPlan, queue: QueuePlan) -> Json:
    settings = queue.settings
    properties: Json = {
        "QueueName": settings.name,
        "VisibilityTimeout": seconds_up(settings.visibility_ms),
        "MessageRetentionPeriod": seconds_up(settings.retention_ms),
        "DelaySeconds": seconds_up(settings.delay_ms),
        "MaximumMessageSize": settings.message_bytes_max,
        "RedriveAllowPolicy": _redrive_allow(settings),
        "Tags": tags(plan, queue.owner, settings.held),
    }
    if settings.dead_letter is not None:
        dead = next(one.id for one in plan.queues if one.settings.name == settings.dead_letter)
        properties["RedrivePolicy"] = {
            "deadLetterTargetArn": arn(f"{dead}Queue"),
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
    return {"Type": "AWS::SQS::Queue", "Properties": properties, **kept(plan)}


def _redrive_allow(settings: QueueSettings) -> Json:
    if settings.redrive_allow != "byQueue":
        return {"redrivePermission": settings.redrive_allow}
    # by name and not by GetAtt, because source and dead-letter queue would depend on each other
    arns = [text(names.queue_arn(name)) for name in settings.redrive_sources]
    return {"redrivePermission": "byQueue", "sourceQueueArns": arns}


def _queue_policy(plan: DeployPlan, queue: QueuePlan) -> Json:
    rules = plan.events.senders.get(queue.id)
    sent_by = None if rules is None else [text(arn) for arn in rules]
    policy = document(iam.queue_statements(arn(f"{queue.id}Queue"), sent_by))
    return {
        "Type": "AWS::SQS::QueuePolicy",
        "Properties": {"Queues": [{"Ref": f"{queue.id}Queue"}], "PolicyDocument": policy},
    }


def _table(plan: DeployPlan, name: str) -> Json:
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
            "Tags": tags(plan, None),
        },
        **kept(plan),
    }


# -- functions -------------------------------------------------------------------------------------------------------


def _function(plan: DeployPlan, function: FunctionPlan) -> Json:
    settings = function.settings
    properties: Json = {
        "FunctionName": settings.name,
        "Description": f"Runs {', '.join(function.jobs)} for messages of {function.mapping.queue}."[:256],
        "Runtime": function.runtime,
        "Architectures": [function.architecture],
        "Handler": settings.handler,
        "Code": {"S3Bucket": {"Ref": "CodeBucket"}, "S3Key": {"Ref": "CodeKey"}},
        "MemorySize": settings.memory_mib,
        "Timeout": seconds_up(settings.timeout_ms),
        "Role": arn(f"{function.role_id}Role"),
        "Environment": {"Variables": {**settings.env, URL_VARIABLE: text(plan.url)}},
        "LoggingConfig": {"LogGroup": {"Ref": f"{function.id}LogGroup"}},
        "Tags": tags(plan, function.owner),
    }
    options = function.options
    if options.tracing:
        properties["TracingConfig"] = {"Mode": "Active"}
    if options.layers:
        properties["Layers"] = list(options.layers)
    if options.reserved is not None:
        properties["ReservedConcurrentExecutions"] = options.reserved
    if options.ephemeral_mb != EPHEMERAL_MB[0]:
        properties["EphemeralStorage"] = {"Size": options.ephemeral_mb}
    if options.json_logs:
        properties["LoggingConfig"]["LogFormat"] = "JSON"
    if function.subnets:
        properties["VpcConfig"] = {
            "SubnetIds": list(function.subnets),
            "SecurityGroupIds": list(function.security_groups),
        }
    if plan.stack.kms_key is not None:
        properties["KmsKeyArn"] = plan.stack.kms_key
    return {"Type": "AWS::Lambda::Function", "Properties": properties}


def _alias(function: FunctionPlan, properties: Json) -> Json:
    """A version for each deployment, and the alias that points to the last one.

    A new version is made when its description changes, which names the code and represents all settings; the old
    versions are kept, so that the alias can be pointed back to them.
    """
    options = function.options
    settings = hashlib.sha256(msgspec.json.encode(properties, order="deterministic")).hexdigest()[:16]
    alias: Json = {
        "FunctionName": {"Ref": f"{function.id}Function"},
        "FunctionVersion": {"Fn::GetAtt": [f"{function.id}Version", "Version"]},
        "Name": options.alias,
    }
    if options.provisioned:
        alias["ProvisionedConcurrencyConfig"] = {"ProvisionedConcurrentExecutions": options.provisioned}
    version = {
        "FunctionName": {"Ref": f"{function.id}Function"},
        "Description": {"Fn::Sub": f"${{CodeKey}} {settings}"},
    }
    return {
        f"{function.id}Version": {
            "Type": "AWS::Lambda::Version",
            "Properties": version,
            "DeletionPolicy": "Retain",
            "UpdateReplacePolicy": "Retain",
        },
        f"{function.id}Alias": {"Type": "AWS::Lambda::Alias", "Properties": alias},
    }


def _mapping(plan: DeployPlan, function: FunctionPlan) -> Json:
    mapping = function.mapping
    properties: Json = {
        "EventSourceArn": arn(f"{function.queue_id}Queue"),
        "FunctionName": {"Ref": f"{function.id}{'Alias' if function.options.alias else 'Function'}"},
        "BatchSize": mapping.batch_size,
        "FunctionResponseTypes": ["ReportBatchItemFailures"],
        "ScalingConfig": {"MaximumConcurrency": mapping.concurrency_max},
        "Tags": tags(plan, function.owner),
    }
    if not function.fifo:
        properties["MaximumBatchingWindowInSeconds"] = seconds_up(mapping.window_ms)
    if plan.counts_mapped:
        properties["MetricsConfig"] = {"Metrics": ["EventCount"]}
    return {"Type": "AWS::Lambda::EventSourceMapping", "Properties": properties}


def _role(plan: DeployPlan, function: FunctionPlan) -> Json:
    policy = document([one.document(text) for one in function.statements])
    properties: Json = {
        "AssumeRolePolicyDocument": document([iam.LAMBDA_TRUST]),
        "Description": f"What the function {function.name} uses, and no more.",
        "Policies": [{"PolicyName": "onefold", "PolicyDocument": policy}],
        "Tags": tags(plan, function.owner),
        **role_bounds(plan),
    }
    if function.options.statements:
        own = document([iam.filled(dict(one), text) for one in function.options.statements])
        properties["Policies"].append({"PolicyName": "own", "PolicyDocument": own})
    if function.policies:
        properties["ManagedPolicyArns"] = [text(one) for one in function.policies]
    return {"Type": "AWS::IAM::Role", "Properties": properties}


def _log_group(plan: DeployPlan, function: FunctionPlan) -> Json:
    properties: Json = {
        "LogGroupName": function.log_group,
        "RetentionInDays": plan.stack.log_days,
        "Tags": tags(plan, function.owner),
    }
    if plan.stack.kms_key is not None:
        properties["KmsKeyId"] = plan.stack.kms_key
    return {
        "Type": "AWS::Logs::LogGroup",
        "Properties": properties,
        "DeletionPolicy": "Delete",
        "UpdateReplacePolicy": "Delete",
    }


# -- parameters, outputs ----------------------------------------------------------------------------------------------


def _parameters(plan: DeployPlan) -> Json:
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


def _outputs(plan: DeployPlan) -> Json:
    found: Json = {"EngineUrl": {"Description": "For --url and ONEFOLD_URL.", "Value": text(plan.url)}}
    for queue in plan.queues:
        role = {"main": "Queue", "dead": "Dead-letter queue", "held": "Queue for unknown outcomes"}[queue.role]
        found[f"{queue.id}QueueUrl"] = {
            "Description": f"{role} {queue.settings.name}.",
            "Value": {"Ref": f"{queue.id}Queue"},
        }
    for function in plan.functions:
        found[f"{function.id}FunctionArn"] = {
            "Description": f"Function {function.name}.",
            "Value": arn(f"{function.id}Function"),
        }
    if plan.table is not None:
        found["RecordTableName"] = {
            "Description": "Table of records, ledger and state.",
            "Value": {"Ref": "RecordTable"},
        }
    if plan.topic is not None:
        found["AlarmTopicArn"] = {
            "Description": "What alarms notify: subscribe to it.",
            "Value": {"Ref": f"{TOPIC_ID}Topic"},
        }
    return found | _event_outputs(plan)


# -- schedules, map runs, events --------------------------------------------------------------------------------------


def _event_resources(plan: DeployPlan) -> Json:
    """The resources for schedules, map runs and events, by logical id."""
    found: Json = {}
    if plan.scheduling is not None:
        found[GROUP_ID] = {
            "Type": "AWS::Scheduler::ScheduleGroup",
            "Properties": {"Name": plan.scheduling.group, "Tags": tags(plan, None)},
        }
        found[f"{ROLE_ID}Role"] = service_role(plan, plan.scheduling.role)
        found |= {one.id: _schedule(plan, one) for one in plan.scheduling.schedules}
    for machine in plan.machines:
        found[f"{machine.id}Machine"] = _machine(plan, machine)
        found[f"{machine.role.id}Role"] = service_role(plan, machine.role)
    found |= {f"{bus.id}Bus": _bus(plan, bus) for bus in plan.events.buses}
    found |= {f"{rule.id}Rule": _rule(plan, rule) for rule in plan.events.rules}
    found |= {f"{archive.id}Archive": _archive(plan, archive) | kept(plan) for archive in plan.events.archives}
    for pipe in plan.events.pipes:
        found[pipe.id] = _pipe(plan, pipe)
        found[f"{pipe.role.id}Role"] = service_role(plan, pipe.role)
    return found


def _event_outputs(plan: DeployPlan) -> Json:
    """The outputs whose names are needed later."""
    found: Json = {
        f"{machine.id}MachineArn": {
            "Description": f"State machine {machine.name}.",
            "Value": {"Ref": f"{machine.id}Machine"},
        }
        for machine in plan.machines
    }
    found |= {
        f"{bus.id}BusName": {"Description": f"Event bus {bus.name}.", "Value": {"Ref": f"{bus.id}Bus"}}
        for bus in plan.events.buses
    }
    return found


def _schedule(plan: DeployPlan, one: SchedulePlan) -> Json:
    window: Json = {"Mode": "OFF"}
    if one.window_minutes is not None:
        window = {"Mode": "FLEXIBLE", "MaximumWindowInMinutes": one.window_minutes}
    target: Json = {
        "Arn": text(TARGET_ARN),
        "RoleArn": arn(f"{ROLE_ID}Role"),
        "Input": text(one.input),
        "RetryPolicy": {"MaximumRetryAttempts": one.retries, "MaximumEventAgeInSeconds": one.age_s},
    }
    if one.dead_id is not None:
        target["DeadLetterConfig"] = {"Arn": arn(f"{one.dead_id}Queue")}
    properties: Json = {
        "Name": one.name,
        "GroupName": {"Ref": GROUP_ID},
        "Description": one.text,
        "ScheduleExpression": one.expression,
        "ScheduleExpressionTimezone": one.zone,
        "FlexibleTimeWindow": window,
        "State": "ENABLED",
        "Target": target,
    }
    optional = {"StartDate": one.start, "EndDate": one.end, "KmsKeyArn": plan.stack.kms_key}
    properties |= {name: value for name, value in optional.items() if value is not None}
    return {"Type": "AWS::Scheduler::Schedule", "Properties": properties}


def _machine(plan: DeployPlan, machine: MachinePlan) -> Json:
    properties: Json = {
        "StateMachineName": machine.name,
        "StateMachineType": "STANDARD",
        "RoleArn": arn(f"{machine.role.id}Role"),
        "DefinitionString": text(machine.definition),
        "Tags": tags(plan, machine.owner),
    }
    if plan.stack.kms_key is not None:
        properties["EncryptionConfiguration"] = {"Type": "CUSTOMER_MANAGED_KMS_KEY", "KmsKeyId": plan.stack.kms_key}
    return {"Type": "AWS::StepFunctions::StateMachine", "Properties": properties}


def _bus(plan: DeployPlan, bus: BusPlan) -> Json:
    properties: Json = {"Name": bus.name, "Tags": tags(plan, None)}
    if plan.stack.kms_key is not None:
        properties["KmsKeyIdentifier"] = plan.stack.kms_key
        if bus.dead_id is not None:
            properties["DeadLetterConfig"] = {"Arn": arn(f"{bus.dead_id}Queue")}
    return {"Type": "AWS::Events::EventBus", "Properties": properties}


def _rule(plan: DeployPlan, rule: RulePlan) -> Json:
    common: Json = {
        "RetryPolicy": {"MaximumRetryAttempts": RETRIES, "MaximumEventAgeInSeconds": RETRY_AGE_S},
        "DeadLetterConfig": {"Arn": arn(f"{rule.dead_id}Queue")},
    }
    if rule.input_path is not None:
        common["InputPath"] = rule.input_path
    elif rule.constant is not None:
        common["Input"] = rule.constant
    elif rule.transformer is not None:
        common["InputTransformer"] = {"InputTemplate": rule.transformer.template}
        if rule.transformer.paths:
            common["InputTransformer"]["InputPathsMap"] = dict(rule.transformer.paths)
    targets = []
    for queue in rule.target_ids:
        target = {**common, "Id": queue, "Arn": arn(f"{queue}Queue")}
        if queue in rule.fifo_ids:
            target["SqsParameters"] = {"MessageGroupId": rule.group}
        targets.append(target)
    properties: Json = {
        "Name": rule.name,
        "EventPattern": msgspec.json.decode(rule.pattern),
        "State": "ENABLED" if rule.enabled else "DISABLED",
        "Targets": targets,
        "Tags": tags(plan, None),
    }
    if rule.bus_id is not None:
        properties["EventBusName"] = {"Ref": f"{rule.bus_id}Bus"}
    return {"Type": "AWS::Events::Rule", "Properties": properties}


def _archive(plan: DeployPlan, archive: ArchivePlan) -> Json:
    source: Any = text("arn:{partition}:events:{region}:{account}:event-bus/default")
    if archive.bus_id is not None:
        source = arn(f"{archive.bus_id}Bus")
    properties: Json = {"ArchiveName": archive.name, "SourceArn": source}
    if archive.pattern is not None:
        properties["EventPattern"] = msgspec.json.decode(archive.pattern)
    if archive.days is not None:
        properties["RetentionDays"] = archive.days
    if plan.stack.kms_key is not None:
        properties["KmsKeyIdentifier"] = plan.stack.kms_key
    return {"Type": "AWS::Events::Archive", "Properties": properties}


def _pipe(plan: DeployPlan, pipe: PipePlan) -> Json:
    source: Json = {"SqsQueueParameters": {"BatchSize": PIPE_BATCH}}
    if pipe.filters:
        source["FilterCriteria"] = {"Filters": [{"Pattern": pattern} for pattern in pipe.filters]}
    target: Json = {}
    if pipe.template is not None:
        target["InputTemplate"] = pipe.template
    if pipe.group is not None:
        target["SqsQueueParameters"] = {"MessageGroupId": pipe.group, "MessageDeduplicationId": "$.messageId"}
    return {
        "Type": "AWS::Pipes::Pipe",
        "Properties": {
            "Name": pipe.name,
            "RoleArn": arn(f"{pipe.role.id}Role"),
            "Source": arn(f"{pipe.source_id}Queue"),
            "SourceParameters": source,
            "Target": arn(f"{pipe.target_id}Queue"),
            **({"TargetParameters": target} if target else {}),
            "Tags": plan.tags_of(pipe.owner),
        },
    }
