"""Schedules, map runs and events in Terraform JSON: Scheduler, Step Functions, EventBridge and its pipes.

Never here: what there is (`plan.py`); queues, functions and alarms (`terraform.py`).
Invariant: a text of a user is data in every argument; only references of ours are read as expressions.

Source: registry documentation of hashicorp/aws 6, scheduler_*, sfn_state_machine, cloudwatch_event_*, pipes_pipe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onefold.deploy import module_values as values
from onefold.deploy.events import PIPE_BATCH, RETRIES, RETRY_AGE_S, ArchivePlan, PipePlan, RulePlan
from onefold.deploy.iam import RolePlan
from onefold.deploy.plan import Plan
from onefold.deploy.schedules import ROLE_ID, TARGET_ARN, SchedulePlan
from onefold.deploy.state_machine import MachinePlan

Json = dict[str, Any]
Put = Callable[[str, str, Json], None]
"""Takes a resource: its type without `aws_`, its name, its arguments."""


def write(plan: Plan, put: Put) -> None:
    """Put all of them."""

    def put_role(role: RolePlan, prefix: str) -> None:
        name = values.name(role.id)
        put("iam_role", name, values.service_role(plan, role, prefix))
        put("iam_role_policy", name, values.role_policy(role.id, role.statements))

    if plan.scheduling is not None:
        group = plan.scheduling.group
        put("scheduler_schedule_group", "schedules", {"name": group, "tags": values.tags(plan, None)})
        put_role(plan.scheduling.role, f"{group}-scheduler")
        for schedule in plan.scheduling.schedules:
            put("scheduler_schedule", values.name(schedule.id), _schedule(plan, schedule))
    for machine in plan.machines:
        put_role(machine.role, machine.name)
        put("sfn_state_machine", values.name(machine.id), _machine(plan, machine))
    for bus in plan.events.buses:
        put("cloudwatch_event_bus", values.name(bus.id), {"name": bus.name, "tags": values.tags(plan, None)})
    for rule in plan.events.rules:
        _put_rule(plan, rule, put)
    for archive in plan.events.archives:
        put("cloudwatch_event_archive", values.name(archive.id), _archive(archive) | values.kept(plan))
    for pipe in plan.events.pipes:
        put_role(pipe.role, pipe.name)
        put("pipes_pipe", values.name(pipe.id), _pipe(plan, pipe))


def outputs(plan: Plan) -> Json:
    """What is asked for by name later."""
    found: Json = {
        f"{values.name(machine.id)}_machine_arn": {
            "description": f"State machine {machine.name}.",
            "value": f"${{aws_sfn_state_machine.{values.name(machine.id)}.arn}}",
        }
        for machine in plan.machines
    }
    found |= {
        f"{values.name(bus.id)}_bus_name": {
            "description": f"Event bus {bus.name}.",
            "value": f"${{aws_cloudwatch_event_bus.{values.name(bus.id)}.name}}",
        }
        for bus in plan.events.buses
    }
    return found


def _queue(logical: str) -> str:
    return f"${{aws_sqs_queue.{values.name(logical)}.arn}}"


def _role(logical: str) -> str:
    return f"${{aws_iam_role.{values.name(logical)}.arn}}"


def _schedule(plan: Plan, one: SchedulePlan) -> Json:
    window: Json = {"mode": "OFF"}
    if one.window_minutes is not None:
        window = {"mode": "FLEXIBLE", "maximum_window_in_minutes": one.window_minutes}
    target: Json = {
        "arn": values.text(TARGET_ARN),
        "role_arn": _role(ROLE_ID),
        "input": values.text(one.input),
        "retry_policy": {"maximum_retry_attempts": one.attempts, "maximum_event_age_in_seconds": one.age_s},
    }
    if one.dead_id is not None:
        target["dead_letter_config"] = {"arn": _queue(one.dead_id)}
    found: Json = {
        "name": one.name,
        "group_name": "${aws_scheduler_schedule_group.schedules.name}",
        "description": values.literal(one.text),
        "schedule_expression": one.expression,
        "schedule_expression_timezone": one.zone,
        "flexible_time_window": window,
        "state": "ENABLED",
        "target": target,
    }
    optional = {"start_date": one.start, "end_date": one.end, "kms_key_arn": plan.stack.kms_key}
    return found | {name: value for name, value in optional.items() if value is not None}


def _machine(plan: Plan, machine: MachinePlan) -> Json:
    return {
        "name": machine.name,
        "type": "STANDARD",
        "role_arn": _role(machine.role.id),
        "definition": values.text(machine.definition),
        "tags": values.tags(plan, machine.owner),
        # the role's own policy is a resource beside it: without it the definition would be refused
        "depends_on": [f"aws_iam_role_policy.{values.name(machine.role.id)}"],
    }


def _bus_name(logical: str | None) -> str:
    return "default" if logical is None else f"${{aws_cloudwatch_event_bus.{values.name(logical)}.name}}"


def _put_rule(plan: Plan, rule: RulePlan, put: Put) -> None:
    name = values.name(rule.id)
    body: Json = {
        "name": rule.name,
        "event_bus_name": _bus_name(rule.bus_id),
        "event_pattern": values.literal(rule.pattern),
        "state": "ENABLED" if rule.enabled else "DISABLED",
        "tags": values.tags(plan, None),
    }
    put("cloudwatch_event_rule", name, body)
    for queue in rule.target_ids:
        put("cloudwatch_event_target", f"{name}__to_{values.name(queue)}", _target(rule, name, queue))


def _target(rule: RulePlan, name: str, queue: str) -> Json:
    found: Json = {
        "rule": f"${{aws_cloudwatch_event_rule.{name}.name}}",
        "event_bus_name": _bus_name(rule.bus_id),
        "target_id": queue,
        "arn": _queue(queue),
        "retry_policy": {"maximum_retry_attempts": RETRIES, "maximum_event_age_in_seconds": RETRY_AGE_S},
        "dead_letter_config": {"arn": _queue(rule.dead_id)},
    }
    if rule.input_path is not None:
        found["input_path"] = rule.input_path
    elif rule.constant is not None:
        found["input"] = values.literal(rule.constant)
    elif rule.transformer is not None:
        found["input_transformer"] = {"input_template": values.literal(rule.transformer.template)}
        if rule.transformer.paths:
            found["input_transformer"]["input_paths"] = dict(rule.transformer.paths)
    if queue in rule.fifo_ids and rule.group is not None:
        found["sqs_target"] = {"message_group_id": values.literal(rule.group)}
    return found


def _archive(archive: ArchivePlan) -> Json:
    source = values.text("arn:{partition}:events:{region}:{account}:event-bus/default")
    if archive.bus_id is not None:
        source = f"${{aws_cloudwatch_event_bus.{values.name(archive.bus_id)}.arn}}"
    found: Json = {"name": archive.name, "event_source_arn": source}
    if archive.pattern is not None:
        found["event_pattern"] = values.literal(archive.pattern)
    if archive.days is not None:
        found["retention_days"] = archive.days
    return found


def _pipe(plan: Plan, pipe: PipePlan) -> Json:
    source: Json = {"sqs_queue_parameters": {"batch_size": PIPE_BATCH}}
    if pipe.filters:
        patterns = [{"pattern": values.literal(pattern)} for pattern in pipe.filters]
        source["filter_criteria"] = {"filter": patterns}
    target: Json = {}
    if pipe.template is not None:
        target["input_template"] = values.literal(pipe.template)
    if pipe.group is not None:
        target["sqs_queue_parameters"] = {
            "message_group_id": values.literal(pipe.group),
            "message_deduplication_id": "$.messageId",
        }
    found: Json = {
        "name": pipe.name,
        "role_arn": _role(pipe.role.id),
        "source": _queue(pipe.source_id),
        "source_parameters": source,
        "target": _queue(pipe.target_id),
        "tags": values.tags(plan, pipe.owner),
        # the role's own policy is a resource beside it: without it the pipe could not be made
        "depends_on": [f"aws_iam_role_policy.{values.name(pipe.role.id)}"],
    }
    return found | ({"target_parameters": target} if target else {})
