"""A plan as Terraform JSON: one module, `main.tf.json`, for the AWS provider 6.

Variables: `code_bucket` and `code_key`, where the functions' zip is, and `alarm_topic`, an SNS topic that alarms notify.
Region and credentials come from the caller's provider; the module configures none, so that a larger configuration can
use it.

Never here: which resources there are, sizes, names, permissions; the plan has them. Invariant: equal plans give equal
bytes, because keys are sorted; a user's text is data in every argument and never read as an expression: `${` and `%{`
in it are escaped, and only onefold's own references are expressions.

Sources: Terraform "JSON Configuration Syntax", "Strings and Templates"; registry documentation of hashicorp/aws 6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from onefold.contracts.settings import QueueSettings
from onefold.deploy import dashboard, iam, terraform_alarms
from onefold.deploy.chat import TOPIC_ID
from onefold.deploy.eventbridge import (
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
from onefold.deploy.iam import RolePlan
from onefold.deploy.plan import DeployPlan, QueuePlan
from onefold.deploy.stack import overridden
from onefold.deploy.state_machine import MachinePlan
from onefold.deploy.terraform_values import (
    Json,
    kept,
    literal,
    name_prefix,
    policy,
    policy_text,
    resource_name,
    role_bounds,
    role_policy,
    service_role,
    tags,
    text,
)
from onefold.duration import seconds_up

PROVIDER: Final = ">= 6.8.0, < 7.0.0"  # its changelog: since 6.8.0 aws_sqs_queue accepts messages of 1 MiB
TERRAFORM: Final = ">= 1.5.0"
TERRAFORM_REMOVED: Final = ">= 1.7.0"  # its changelog: the block `removed`


Put = Callable[[str, str, Json], None]
"""Adds a resource: its type without `aws_`, its name, its arguments."""
_KEPT: Final = ("aws_cloudwatch_event_archive", "aws_dynamodb_table", "aws_sqs_queue")
"""Types of resources with contents: if they leave the module, Terraform forgets them and does not destroy them."""


def module(plan: DeployPlan, before: Mapping[str, Any] | None = None) -> Json:
    """The module as a plain value.

    Args:
        before: the module as it was last written. A resource with contents that is in it and not in this one gets a
            block that keeps it, because `prevent_destroy` disappears together with its resource's block.
    """
    resources: dict[str, Json] = {}

    def put(kind: str, name: str, body: Json) -> None:
        known = resources.setdefault(f"aws_{kind}", {})
        assert name not in known, f"two {kind} are called {name}"
        known[name] = body

    for queue in plan.queues:
        name = resource_name(queue.id)
        put("sqs_queue", name, _queue(plan, queue))
        put("sqs_queue_policy", name, _queue_policy(plan, queue, name))
        put("sqs_queue_redrive_allow_policy", name, _redrive_allow(plan, name, queue.settings))
    if plan.table is not None:
        put("dynamodb_table", "records", _table(plan, plan.table))
    for function in plan.functions:
        name = resource_name(function.id)
        put("lambda_function", name, _function(plan, function, name))
        put("lambda_event_source_mapping", name, _mapping(plan, function, name))
        put("cloudwatch_log_group", name, _log_group(plan, function))
        role = resource_name(function.role_id)
        put("iam_role", role, _role(plan, function))
        put("iam_role_policy", role, role_policy(function.role_id, function.statements))
        if function.options.statements:
            own = policy([iam.filled(dict(one), text) for one in function.options.statements])
            put(
                "iam_role_policy",
                f"{role}_own",
                {"name": "own", "role": f"${{aws_iam_role.{role}.id}}", "policy": own},
            )
        if function.options.alias is not None:
            _put_alias(function, name, put)
        for number, arn in enumerate(function.policies, start=1):
            attached = {"role": f"${{aws_iam_role.{role}.name}}", "policy_arn": text(arn)}
            put("iam_role_policy_attachment", f"{role}_{number}", attached)
    _put_events(plan, put)
    for kind, name, body in terraform_alarms.resources(plan):
        put(kind, name, body)
    drawn = {"dashboard_name": plan.name, "dashboard_body": text(dashboard.body(plan))}
    put("cloudwatch_dashboard", resource_name(dashboard.ID), drawn)
    _override(plan, resources)
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
    removed = _removed(before or {}, resources)
    if removed:
        found["terraform"]["required_version"] = TERRAFORM_REMOVED
        found["removed"] = [{"from": one, "lifecycle": {"destroy": False}} for one in removed]
    return found


def _override(plan: DeployPlan, resources: dict[str, Json]) -> None:
    """Merge the user's own values into resources, which the values name by address."""
    wanted = {key: one for key, one in plan.stack.overrides.items() if "." in key}
    flat = {f"{kind}.{name}": body for kind, several in resources.items() for name, body in several.items()}
    overridden(flat, wanted)
    for key in wanted:
        kind, _, name = key.partition(".")
        resources[kind][name] = flat[key]


def _removed(before: Mapping[str, Any], resources: Mapping[str, Json]) -> list[str]:
    """Addresses of resources with contents that an earlier module has and this one does not have, sorted."""
    known = {one["from"] for one in before.get("removed", ())}
    for kind in _KEPT:
        for name, body in before.get("resource", {}).get(kind, {}).items():
            if body.get("lifecycle", {}).get("prevent_destroy"):
                known.add(f"{kind}.{name}")
    here = {f"{kind}.{name}" for kind in _KEPT for name in resources.get(kind, ())}
    return sorted(known - here)


def put_back(plan: DeployPlan, before: Mapping[str, Any]) -> list[str]:
    """Addresses of resources that an earlier module released and this one has again; they exist, so import them."""
    resources = module(plan)["resource"]
    here = {f"{kind}.{name}" for kind in _KEPT for name in resources.get(kind, ())}
    return sorted({one["from"] for one in before.get("removed", ())} & here)


def to_json(plan: DeployPlan, before: Mapping[str, Any] | None = None) -> str:
    """The module as indented JSON text that ends in a line end; `before` as for `module`."""
    text = msgspec.json.encode(module(plan, before), order="deterministic")
    return msgspec.json.format(text, indent=2).decode() + "\n"


# -- queues and table ------------------------------------------------------------------------------------------------


def _queue(plan: DeployPlan, queue: QueuePlan) -> Json:
    settings = queue.settings
    found: Json = {
        "name": settings.name,
        "visibility_timeout_seconds": seconds_up(settings.visibility_ms),
        "message_retention_seconds": seconds_up(settings.retention_ms),
        "delay_seconds": seconds_up(settings.delay_ms),
        "max_message_size": settings.message_bytes_max,
        "tags": tags(plan, queue.owner, settings.held),
        **kept(plan),
    }
    if settings.dead_letter is not None:
        arn = f"${{aws_sqs_queue.{_queue_name(plan, settings.dead_letter)}.arn}}"
        found["redrive_policy"] = policy_text({"deadLetterTargetArn": arn, "maxReceiveCount": settings.receives_max})
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


def _queue_name(plan: DeployPlan, full_name: str) -> str:
    return resource_name(next(queue.id for queue in plan.queues if queue.settings.name == full_name))


def _redrive_allow(plan: DeployPlan, name: str, settings: QueueSettings) -> Json:
    policy: Json = {"redrivePermission": settings.redrive_allow}
    if settings.redrive_allow == "byQueue":
        sources = [f"${{aws_sqs_queue.{_queue_name(plan, source)}.arn}}" for source in settings.redrive_sources]
        policy["sourceQueueArns"] = sources
    return {"queue_url": f"${{aws_sqs_queue.{name}.id}}", "redrive_allow_policy": policy_text(policy)}


def _queue_policy(plan: DeployPlan, queue: QueuePlan, name: str) -> Json:
    rules = plan.events.senders.get(queue.id)
    sent_by = None if rules is None else [text(arn) for arn in rules]
    statements = iam.queue_statements(f"${{aws_sqs_queue.{name}.arn}}", sent_by)
    return {"queue_url": f"${{aws_sqs_queue.{name}.id}}", "policy": policy(statements)}


def _table(plan: DeployPlan, name: str) -> Json:
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
        "tags": tags(plan, None),
        **kept(plan),
    }


# -- functions -------------------------------------------------------------------------------------------------------


def _function(plan: DeployPlan, function: FunctionPlan, name: str) -> Json:
    settings = function.settings
    role = resource_name(function.role_id)
    found: Json = {
        "function_name": settings.name,
        "description": literal(f"Runs {', '.join(function.jobs)} for messages of {function.mapping.queue}."[:256]),
        "runtime": function.runtime,
        "architectures": [function.architecture],
        "handler": settings.handler,
        "s3_bucket": "${var.code_bucket}",
        "s3_key": "${var.code_key}",
        "memory_size": settings.memory_mib,
        "timeout": seconds_up(settings.timeout_ms),
        "role": f"${{aws_iam_role.{role}.arn}}",
        "environment": {
            "variables": {
                **{key: literal(value) for key, value in settings.env.items()},
                URL_VARIABLE: text(plan.url),
            }
        },
        "logging_config": {"log_format": "Text", "log_group": f"${{aws_cloudwatch_log_group.{name}.name}}"},
        "tags": tags(plan, function.owner),
        # the role's own policy is a separate resource: without it the mapping's first poll would be refused
        "depends_on": [f"aws_iam_role_policy.{role}"],
    }
    options = function.options
    if options.tracing:
        found["tracing_config"] = {"mode": "Active"}
    if options.layers:
        found["layers"] = list(options.layers)
    if options.reserved is not None:
        found["reserved_concurrent_executions"] = options.reserved
    if options.ephemeral_mb != EPHEMERAL_MB[0]:
        found["ephemeral_storage"] = {"size": options.ephemeral_mb}
    if options.json_logs:
        found["logging_config"]["log_format"] = "JSON"
    if options.alias is not None:
        found["publish"] = True
    if function.subnets:
        found["vpc_config"] = {
            "subnet_ids": list(function.subnets),
            "security_group_ids": list(function.security_groups),
        }
    if plan.stack.kms_key is not None:
        found["kms_key_arn"] = plan.stack.kms_key
    return found


def _put_alias(function: FunctionPlan, name: str, put: Put) -> None:
    """Add the alias that points to the last version, and its warm containers."""
    options = function.options
    at = f"${{aws_lambda_function.{name}"
    alias = {"name": options.alias, "function_name": f"{at}.function_name}}", "function_version": f"{at}.version}}"}
    put("lambda_alias", name, alias)
    if options.provisioned:
        warm = {
            "function_name": f"{at}.function_name}}",
            "qualifier": f"${{aws_lambda_alias.{name}.name}}",
            "provisioned_concurrent_executions": options.provisioned,
        }
        put("lambda_provisioned_concurrency_config", name, warm)


def _mapping(plan: DeployPlan, function: FunctionPlan, name: str) -> Json:
    mapping = function.mapping
    kind = "alias" if function.options.alias else "function"
    found: Json = {
        "event_source_arn": f"${{aws_sqs_queue.{resource_name(function.queue_id)}.arn}}",
        "function_name": f"${{aws_lambda_{kind}.{name}.arn}}",
        "batch_size": mapping.batch_size,
        "function_response_types": ["ReportBatchItemFailures"],
        "scaling_config": {"maximum_concurrency": mapping.concurrency_max},
        "tags": tags(plan, function.owner),
    }
    if not function.fifo:
        found["maximum_batching_window_in_seconds"] = seconds_up(mapping.window_ms)
    if plan.counts_mapped:
        found["metrics_config"] = {"metrics": ["EventCount"]}
    return found


def _role(plan: DeployPlan, function: FunctionPlan) -> Json:
    return {
        "name_prefix": name_prefix(function.name),
        "description": f"What the function {function.name} uses, and no more.",
        "assume_role_policy": policy([iam.LAMBDA_TRUST]),
        "tags": tags(plan, function.owner),
        **role_bounds(plan),
    }


def _log_group(plan: DeployPlan, function: FunctionPlan) -> Json:
    found: Json = {
        "name": function.log_group,
        "retention_in_days": plan.stack.log_days,
        "tags": tags(plan, function.owner),
    }
    if plan.stack.kms_key is not None:
        found["kms_key_id"] = plan.stack.kms_key
    return found


# -- variables, outputs -----------------------------------------------------------------------------------------------


def _variables(plan: DeployPlan) -> Json:
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


def _outputs(plan: DeployPlan) -> Json:
    found: Json = {"engine_url": {"description": "For --url and ONEFOLD_URL.", "value": text(plan.url)}}
    for queue in plan.queues:
        name = resource_name(queue.id)
        found[f"{name}_queue_url"] = {
            "description": f"Queue {queue.settings.name}.",
            "value": f"${{aws_sqs_queue.{name}.id}}",
        }
    for function in plan.functions:
        name = resource_name(function.id)
        found[f"{name}_function_arn"] = {
            "description": f"Function {function.name}.",
            "value": f"${{aws_lambda_function.{name}.arn}}",
        }
    if plan.table is not None:
        found["record_table_name"] = {
            "description": "Table of records, ledger and state.",
            "value": "${aws_dynamodb_table.records.name}",
        }
    if plan.topic is not None:
        found["alarm_topic_arn"] = {
            "description": "What alarms notify: subscribe to it.",
            "value": f"${{aws_sns_topic.{resource_name(TOPIC_ID)}.arn}}",
        }
    return found | _event_outputs(plan)


# -- schedules, map runs, events --------------------------------------------------------------------------------------


def _put_events(plan: DeployPlan, put: Put) -> None:
    """Add the resources for schedules, map runs and events."""

    def put_role(role: RolePlan, prefix: str) -> None:
        name = resource_name(role.id)
        put("iam_role", name, service_role(plan, role, prefix))
        put("iam_role_policy", name, role_policy(role.id, role.statements))

    if plan.scheduling is not None:
        group = plan.scheduling.group
        put("scheduler_schedule_group", "schedules", {"name": group, "tags": tags(plan, None)})
        put_role(plan.scheduling.role, f"{group}-scheduler")
        for schedule in plan.scheduling.schedules:
            put("scheduler_schedule", resource_name(schedule.id), _schedule(plan, schedule))
    for machine in plan.machines:
        put_role(machine.role, machine.name)
        put("sfn_state_machine", resource_name(machine.id), _machine(plan, machine))
    for bus in plan.events.buses:
        put("cloudwatch_event_bus", resource_name(bus.id), _bus(plan, bus))
    for rule in plan.events.rules:
        _put_rule(plan, rule, put)
    for archive in plan.events.archives:
        put("cloudwatch_event_archive", resource_name(archive.id), _archive(plan, archive) | kept(plan))
    for pipe in plan.events.pipes:
        put_role(pipe.role, pipe.name)
        put("pipes_pipe", resource_name(pipe.id), _pipe(plan, pipe))


def _event_outputs(plan: DeployPlan) -> Json:
    """The outputs whose names are needed later."""
    found: Json = {
        f"{resource_name(machine.id)}_machine_arn": {
            "description": f"State machine {machine.name}.",
            "value": f"${{aws_sfn_state_machine.{resource_name(machine.id)}.arn}}",
        }
        for machine in plan.machines
    }
    found |= {
        f"{resource_name(bus.id)}_bus_name": {
            "description": f"Event bus {bus.name}.",
            "value": f"${{aws_cloudwatch_event_bus.{resource_name(bus.id)}.name}}",
        }
        for bus in plan.events.buses
    }
    return found


def _queue_arn(logical: str) -> str:
    return f"${{aws_sqs_queue.{resource_name(logical)}.arn}}"


def _role_arn(logical: str) -> str:
    return f"${{aws_iam_role.{resource_name(logical)}.arn}}"


def _schedule(plan: DeployPlan, one: SchedulePlan) -> Json:
    window: Json = {"mode": "OFF"}
    if one.window_minutes is not None:
        window = {"mode": "FLEXIBLE", "maximum_window_in_minutes": one.window_minutes}
    target: Json = {
        "arn": text(TARGET_ARN),
        "role_arn": _role_arn(ROLE_ID),
        "input": text(one.input),
        "retry_policy": {"maximum_retry_attempts": one.retries, "maximum_event_age_in_seconds": one.age_s},
    }
    if one.dead_id is not None:
        target["dead_letter_config"] = {"arn": _queue_arn(one.dead_id)}
    found: Json = {
        "name": one.name,
        "group_name": "${aws_scheduler_schedule_group.schedules.name}",
        "description": literal(one.text),
        "schedule_expression": one.expression,
        "schedule_expression_timezone": one.zone,
        "flexible_time_window": window,
        "state": "ENABLED",
        "target": target,
    }
    optional = {"start_date": one.start, "end_date": one.end, "kms_key_arn": plan.stack.kms_key}
    return found | {name: value for name, value in optional.items() if value is not None}


def _bus(plan: DeployPlan, bus: BusPlan) -> Json:
    found: Json = {"name": bus.name, "tags": tags(plan, None)}
    if plan.stack.kms_key is not None:
        found["kms_key_identifier"] = plan.stack.kms_key
        if bus.dead_id is not None:
            found["dead_letter_config"] = {"arn": _queue_arn(bus.dead_id)}
    return found


def _machine(plan: DeployPlan, machine: MachinePlan) -> Json:
    found: Json = {
        "name": machine.name,
        "type": "STANDARD",
        "role_arn": _role_arn(machine.role.id),
        "definition": text(machine.definition),
        "tags": tags(plan, machine.owner),
        # the role's own policy is a separate resource: without it the definition would be refused
        "depends_on": [f"aws_iam_role_policy.{resource_name(machine.role.id)}"],
    }
    if plan.stack.kms_key is not None:
        found["encryption_configuration"] = {"type": "CUSTOMER_MANAGED_KMS_KEY", "kms_key_id": plan.stack.kms_key}
    return found


def _bus_name(logical: str | None) -> str:
    return "default" if logical is None else f"${{aws_cloudwatch_event_bus.{resource_name(logical)}.name}}"


def _put_rule(plan: DeployPlan, rule: RulePlan, put: Put) -> None:
    name = resource_name(rule.id)
    body: Json = {
        "name": rule.name,
        "event_bus_name": _bus_name(rule.bus_id),
        "event_pattern": literal(rule.pattern),
        "state": "ENABLED" if rule.enabled else "DISABLED",
        "tags": tags(plan, None),
    }
    put("cloudwatch_event_rule", name, body)
    for queue in rule.target_ids:
        put("cloudwatch_event_target", f"{name}__to_{resource_name(queue)}", _target(rule, name, queue))


def _target(rule: RulePlan, name: str, queue: str) -> Json:
    found: Json = {
        "rule": f"${{aws_cloudwatch_event_rule.{name}.name}}",
        "event_bus_name": _bus_name(rule.bus_id),
        "target_id": queue,
        "arn": _queue_arn(queue),
        "retry_policy": {"maximum_retry_attempts": RETRIES, "maximum_event_age_in_seconds": RETRY_AGE_S},
        "dead_letter_config": {"arn": _queue_arn(rule.dead_id)},
    }
    if rule.input_path is not None:
        found["input_path"] = rule.input_path
    elif rule.constant is not None:
        found["input"] = literal(rule.constant)
    elif rule.transformer is not None:
        found["input_transformer"] = {"input_template": literal(rule.transformer.template)}
        if rule.transformer.paths:
            found["input_transformer"]["input_paths"] = dict(rule.transformer.paths)
    if queue in rule.fifo_ids and rule.group is not None:
        found["sqs_target"] = {"message_group_id": literal(rule.group)}
    return found


def _archive(plan: DeployPlan, archive: ArchivePlan) -> Json:
    source = text("arn:{partition}:events:{region}:{account}:event-bus/default")
    if archive.bus_id is not None:
        source = f"${{aws_cloudwatch_event_bus.{resource_name(archive.bus_id)}.arn}}"
    found: Json = {"name": archive.name, "event_source_arn": source}
    if archive.pattern is not None:
        found["event_pattern"] = literal(archive.pattern)
    if archive.days is not None:
        found["retention_days"] = archive.days
    if plan.stack.kms_key is not None:
        found["kms_key_identifier"] = plan.stack.kms_key
    return found


def _pipe(plan: DeployPlan, pipe: PipePlan) -> Json:
    source: Json = {"sqs_queue_parameters": {"batch_size": PIPE_BATCH}}
    if pipe.filters:
        patterns = [{"pattern": literal(pattern)} for pattern in pipe.filters]
        source["filter_criteria"] = {"filter": patterns}
    target: Json = {}
    if pipe.template is not None:
        target["input_template"] = literal(pipe.template)
    if pipe.group is not None:
        target["sqs_queue_parameters"] = {
            "message_group_id": literal(pipe.group),
            "message_deduplication_id": "$.messageId",
        }
    found: Json = {
        "name": pipe.name,
        "role_arn": _role_arn(pipe.role.id),
        "source": _queue_arn(pipe.source_id),
        "source_parameters": source,
        "target": _queue_arn(pipe.target_id),
        "tags": tags(plan, pipe.owner),
        # the role's own policy is a separate resource: without it the pipe could not be made
        "depends_on": [f"aws_iam_role_policy.{resource_name(pipe.role.id)}"],
    }
    return found | ({"target_parameters": target} if target else {})
