"""A plan as Terraform JSON: one module, `main.tf.json`, for the AWS provider 6.

Variables: `code_bucket` and `code_key`, where the functions' zip lies, and `alarm_topic`, an SNS topic that alarms notify.
Region and credentials are the caller's provider's; none is configured here, so that it may be a module of a larger whole.
Never here: sizes, names, permissions; they are the plan's. Invariant: equal plans give equal bytes; keys are sorted.

Sources: Terraform "JSON Configuration Syntax"; registry documentation of hashicorp/aws 6.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from onefold.contracts.settings import QueueSettings
from onefold.deploy import iam, module_time
from onefold.deploy import module_values as values
from onefold.deploy.alarms import Alarm, LogCount
from onefold.deploy.functions import URL_VARIABLE, FunctionPlan
from onefold.deploy.plan import Plan, QueuePlan

Json = dict[str, Any]

PROVIDER: Final = ">= 6.8.0, < 7.0.0"  # its changelog: from 6.8.0 on aws_sqs_queue takes messages of 1 MiB
TERRAFORM: Final = ">= 1.5.0"


def module(plan: Plan) -> Json:
    """The module as a plain value."""
    resources: dict[str, Json] = {}

    def put(kind: str, name: str, body: Json) -> None:
        known = resources.setdefault(f"aws_{kind}", {})
        assert name not in known, f"two {kind} are called {name}"
        known[name] = body

    for queue in plan.queues:
        name = values.name(queue.id)
        put("sqs_queue", name, _queue(plan, queue))
        put("sqs_queue_policy", name, _queue_policy(plan, queue, name))
        put("sqs_queue_redrive_allow_policy", name, _redrive_allow(plan, name, queue.settings))
    if plan.table is not None:
        put("dynamodb_table", "records", _table(plan, plan.table))
    for function in plan.functions:
        name = values.name(function.id)
        put("lambda_function", name, _function(plan, function, name))
        put("lambda_event_source_mapping", name, _mapping(plan, function, name))
        put("cloudwatch_log_group", name, _log_group(plan, function))
        role = values.name(function.role_id)
        put("iam_role", role, _role(plan, function))
        put("iam_role_policy", role, values.role_policy(function.role_id, function.statements))
        for number, arn in enumerate(function.policies, start=1):
            attached = {"role": f"${{aws_iam_role.{role}.name}}", "policy_arn": values.literal(arn)}
            put("iam_role_policy_attachment", f"{role}_{number}", attached)
    module_time.write(plan, put)
    for count in plan.log_counts:
        put("cloudwatch_log_metric_filter", values.name(count.id), _log_count(count))
    for alarm in plan.alarms:
        put("cloudwatch_metric_alarm", values.name(alarm.id), _alarm(plan, alarm))
    found: Json = {
        "terraform": {
            "required_version": TERRAFORM,
            "required_providers": {"aws": {"source": "hashicorp/aws", "version": PROVIDER}},
        },
        "data": {
            "aws_caller_identity": {"current": {}},
            "aws_partition": {"current": {}},
            "aws_region": {"current": {}},
        },
        "variable": _variables(plan),
        "resource": resources,
        "output": _outputs(plan),
    }
    return found


def to_json(plan: Plan) -> str:
    """The module as JSON text, indented, with a line end at its end."""
    text = msgspec.json.encode(module(plan), order="deterministic")
    return msgspec.json.format(text, indent=2).decode() + "\n"


# -- queues and table ------------------------------------------------------------------------------------------------


def _queue(plan: Plan, queue: QueuePlan) -> Json:
    settings = queue.settings
    found: Json = {
        "name": settings.name,
        "visibility_timeout_seconds": values.seconds(settings.visibility_ms),
        "message_retention_seconds": values.seconds(settings.retention_ms),
        "delay_seconds": values.seconds(settings.delay_ms),
        "max_message_size": settings.message_bytes_max,
        "tags": values.tags(plan, queue.owner, settings.held),
        **values.kept(plan),
    }
    if settings.dead_letter is not None:
        arn = f"${{aws_sqs_queue.{_queue_name(plan, settings.dead_letter)}.arn}}"
        found["redrive_policy"] = values.document(
            {"deadLetterTargetArn": arn, "maxReceiveCount": settings.receives_max}
        )
    if settings.fifo:
        found |= {
            "fifo_queue": True,
            "content_based_deduplication": settings.content_dedup,
            "deduplication_scope": settings.dedup_scope,
            "fifo_throughput_limit": "perMessageGroupId" if settings.dedup_scope == "messageGroup" else "perQueue",
        }
    if plan.stack.kms_key is not None:
        found["kms_master_key_id"] = plan.stack.kms_key
    else:
        found["sqs_managed_sse_enabled"] = True
    return found


def _queue_name(plan: Plan, full_name: str) -> str:
    return values.name(next(queue.id for queue in plan.queues if queue.settings.name == full_name))


def _redrive_allow(plan: Plan, name: str, settings: QueueSettings) -> Json:
    policy: Json = {"redrivePermission": settings.redrive_allow}
    if settings.redrive_allow == "byQueue":
        sources = [f"${{aws_sqs_queue.{_queue_name(plan, source)}.arn}}" for source in settings.redrive_sources]
        policy["sourceQueueArns"] = sources
    return {"queue_url": f"${{aws_sqs_queue.{name}.id}}", "redrive_allow_policy": values.document(policy)}


def _queue_policy(plan: Plan, queue: QueuePlan, name: str) -> Json:
    rules = plan.events.senders.get(queue.id)
    sent_by = None if rules is None else [values.text(arn) for arn in rules]
    statements = iam.queue_statements(f"${{aws_sqs_queue.{name}.arn}}", sent_by)
    return {"queue_url": f"${{aws_sqs_queue.{name}.id}}", "policy": values.policy(statements)}


def _table(plan: Plan, name: str) -> Json:
    encryption: Json = {"enabled": True}
    if plan.stack.kms_key is not None:
        encryption["kms_key_arn"] = plan.stack.kms_key
    return {
        "name": name,
        "billing_mode": "PAY_PER_REQUEST",
        "hash_key": "pk",
        "range_key": "sk",
        "attribute": [{"name": "pk", "type": "S"}, {"name": "sk", "type": "S"}],
        "ttl": {"attribute_name": "ttl", "enabled": True},
        "point_in_time_recovery": {"enabled": True},
        "server_side_encryption": encryption,
        "deletion_protection_enabled": plan.stack.deletion_protection,
        "tags": values.tags(plan, None),
        **values.kept(plan),
    }


# -- functions -------------------------------------------------------------------------------------------------------


def _function(plan: Plan, function: FunctionPlan, name: str) -> Json:
    settings = function.settings
    role = values.name(function.role_id)
    found: Json = {
        "function_name": settings.name,
        "description": values.literal(
            f"Runs {', '.join(function.jobs)} for messages of {function.mapping.queue}."[:256]
        ),
        "runtime": function.runtime,
        "architectures": [function.architecture],
        "handler": settings.handler,
        "s3_bucket": "${var.code_bucket}",
        "s3_key": "${var.code_key}",
        "memory_size": settings.memory_mib,
        "timeout": values.seconds(settings.timeout_ms),
        "role": f"${{aws_iam_role.{role}.arn}}",
        "environment": {
            "variables": {
                **{key: values.literal(value) for key, value in settings.env.items()},
                URL_VARIABLE: values.text(plan.url),
            }
        },
        "logging_config": {"log_format": "Text", "log_group": f"${{aws_cloudwatch_log_group.{name}.name}}"},
        "tags": values.tags(plan, function.owner),
        # the role's own policy is a resource beside it: without it the mapping's first poll would be refused
        "depends_on": [f"aws_iam_role_policy.{role}"],
    }
    if function.subnets:
        found["vpc_config"] = {
            "subnet_ids": list(function.subnets),
            "security_group_ids": list(function.security_groups),
        }
    if plan.stack.kms_key is not None:
        found["kms_key_arn"] = plan.stack.kms_key
    return found


def _mapping(plan: Plan, function: FunctionPlan, name: str) -> Json:
    mapping = function.mapping
    found: Json = {
        "event_source_arn": f"${{aws_sqs_queue.{values.name(function.queue_id)}.arn}}",
        "function_name": f"${{aws_lambda_function.{name}.arn}}",
        "batch_size": mapping.batch_size,
        "function_response_types": ["ReportBatchItemFailures"],
        "scaling_config": {"maximum_concurrency": mapping.concurrency_max},
        "tags": values.tags(plan, function.owner),
    }
    if not function.fifo:
        found["maximum_batching_window_in_seconds"] = values.seconds(mapping.window_ms)
    return found


def _role(plan: Plan, function: FunctionPlan) -> Json:
    return {
        "name_prefix": values.name_prefix(function.name),
        "description": f"What the function {function.name} uses, and no more.",
        "assume_role_policy": values.policy([iam.LAMBDA_TRUST]),
        "tags": values.tags(plan, function.owner),
    }


def _log_group(plan: Plan, function: FunctionPlan) -> Json:
    found: Json = {
        "name": function.log_group,
        "retention_in_days": plan.stack.log_days,
        "tags": values.tags(plan, function.owner),
    }
    if plan.stack.kms_key is not None:
        found["kms_key_id"] = plan.stack.kms_key
    return found


# -- alarms, variables, outputs --------------------------------------------------------------------------------------


def _log_count(count: LogCount) -> Json:
    return {
        "name": f"{count.namespace.rpartition('/')[2]}-{count.metric}",
        "log_group_name": f"${{aws_cloudwatch_log_group.{values.name(count.function)}.name}}",
        "pattern": values.literal(count.pattern),
        "metric_transformation": {
            "namespace": count.namespace,
            "name": count.metric,
            "value": "1",
            "unit": "Count",
        },
    }


def _alarm(plan: Plan, alarm: Alarm) -> Json:
    notified = '${var.alarm_topic == "" ? [] : [var.alarm_topic]}'
    found: Json = {
        "alarm_name": alarm.name,
        "alarm_description": values.literal(alarm.text),
        "namespace": alarm.namespace,
        "metric_name": alarm.metric,
        "statistic": alarm.statistic,
        "period": values.seconds(alarm.period_ms),
        "evaluation_periods": 1,
        "threshold": alarm.threshold,
        "comparison_operator": "GreaterThanOrEqualToThreshold",
        "treat_missing_data": "notBreaching",
        "alarm_actions": notified,
        "ok_actions": notified,
        "tags": values.tags(plan, alarm.owner),
    }
    if alarm.dimensions:
        found["dimensions"] = {name: values.text(value) for name, value in alarm.dimensions.items()}
    return found


def _variables(plan: Plan) -> Json:
    found: Json = {
        "alarm_topic": {
            "type": "string",
            "default": "",
            "description": "ARN of an SNS topic that alarms notify; empty for none.",
        }
    }
    if plan.functions:
        found["code_bucket"] = {"type": "string", "description": "Bucket with the functions' code (onefold package)."}
        found["code_key"] = {"type": "string", "description": "Key of the zip in that bucket."}
    return found


def _outputs(plan: Plan) -> Json:
    found: Json = {"engine_url": {"description": "For --url and ONEFOLD_URL.", "value": values.text(plan.url)}}
    for queue in plan.queues:
        name = values.name(queue.id)
        found[f"{name}_queue_url"] = {
            "description": f"Queue {queue.settings.name}.",
            "value": f"${{aws_sqs_queue.{name}.id}}",
        }
    for function in plan.functions:
        name = values.name(function.id)
        found[f"{name}_function_arn"] = {
            "description": f"Function {function.name}.",
            "value": f"${{aws_lambda_function.{name}.arn}}",
        }
    if plan.table is not None:
        found["record_table_name"] = {
            "description": "Table of records, ledger and state.",
            "value": "${aws_dynamodb_table.records.name}",
        }
    return found | module_time.outputs(plan)
