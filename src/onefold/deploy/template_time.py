"""Schedules, map runs and events in CloudFormation: Scheduler, Step Functions, EventBridge and its pipes.

Never here: what there is (`plan.py`); queues, functions and alarms (`cloudformation.py`).
Invariant: a text of a user is data in every property; only references of ours are read as expressions.

Source: CloudFormation resource and property types reference, AWS::Scheduler, AWS::StepFunctions, AWS::Events, AWS::Pipes.
"""

from __future__ import annotations

from typing import Any

from onefold.deploy import template_values as values
from onefold.deploy.events import (
    PIPE_BATCH,
    RETRIES,
    RETRY_AGE_S,
    ArchivePlan,
    BusPlan,
    PipePlan,
    RulePlan,
    as_value,
)
from onefold.deploy.plan import Plan
from onefold.deploy.schedules import GROUP_ID, ROLE_ID, TARGET_ARN, SchedulePlan
from onefold.deploy.state_machine import MachinePlan

Json = dict[str, Any]


def resources(plan: Plan) -> Json:
    """All of them, by logical id."""
    found: Json = {}
    if plan.scheduling is not None:
        found[GROUP_ID] = {
            "Type": "AWS::Scheduler::ScheduleGroup",
            "Properties": {"Name": plan.scheduling.group, "Tags": values.tags(plan, None)},
        }
        found[f"{ROLE_ID}Role"] = values.service_role(plan, plan.scheduling.role)
        found |= {one.id: _schedule(plan, one) for one in plan.scheduling.schedules}
    for machine in plan.machines:
        found[f"{machine.id}Machine"] = _machine(plan, machine)
        found[f"{machine.role.id}Role"] = values.service_role(plan, machine.role)
    found |= {f"{bus.id}Bus": _bus(plan, bus) for bus in plan.events.buses}
    found |= {f"{rule.id}Rule": _rule(rule) for rule in plan.events.rules}
    found |= {f"{archive.id}Archive": _archive(archive) | values.kept(plan) for archive in plan.events.archives}
    for pipe in plan.events.pipes:
        found[pipe.id] = _pipe(plan, pipe)
        found[f"{pipe.role.id}Role"] = values.service_role(plan, pipe.role)
    return found


def outputs(plan: Plan) -> Json:
    """What is asked for by name later."""
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


def _schedule(plan: Plan, one: SchedulePlan) -> Json:
    window: Json = {"Mode": "OFF"}
    if one.window_minutes is not None:
        window = {"Mode": "FLEXIBLE", "MaximumWindowInMinutes": one.window_minutes}
    target: Json = {
        "Arn": values.text(TARGET_ARN),
        "RoleArn": values.arn(f"{ROLE_ID}Role"),
        "Input": values.text(one.input),
        "RetryPolicy": {"MaximumRetryAttempts": one.attempts, "MaximumEventAgeInSeconds": one.age_s},
    }
    if one.dead_id is not None:
        target["DeadLetterConfig"] = {"Arn": values.arn(f"{one.dead_id}Queue")}
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


def _machine(plan: Plan, machine: MachinePlan) -> Json:
    return {
        "Type": "AWS::StepFunctions::StateMachine",
        "Properties": {
            "StateMachineName": machine.name,
            "StateMachineType": "STANDARD",
            "RoleArn": values.arn(f"{machine.role.id}Role"),
            "DefinitionString": values.text(machine.definition),
            "Tags": values.tags(plan, machine.owner),
        },
    }


def _bus(plan: Plan, bus: BusPlan) -> Json:
    return {"Type": "AWS::Events::EventBus", "Properties": {"Name": bus.name, "Tags": values.tags(plan, None)}}


def _rule(rule: RulePlan) -> Json:
    common: Json = {
        "RetryPolicy": {"MaximumRetryAttempts": RETRIES, "MaximumEventAgeInSeconds": RETRY_AGE_S},
        "DeadLetterConfig": {"Arn": values.arn(f"{rule.dead_id}Queue")},
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
        target = {**common, "Id": queue, "Arn": values.arn(f"{queue}Queue")}
        if queue in rule.fifo_ids:
            target["SqsParameters"] = {"MessageGroupId": rule.group}
        targets.append(target)
    properties: Json = {
        "Name": rule.name,
        "EventPattern": as_value(rule.pattern),
        "State": "ENABLED" if rule.enabled else "DISABLED",
        "Targets": targets,
    }
    if rule.bus_id is not None:
        properties["EventBusName"] = {"Ref": f"{rule.bus_id}Bus"}
    return {"Type": "AWS::Events::Rule", "Properties": properties}


def _archive(archive: ArchivePlan) -> Json:
    source: Any = values.text("arn:{partition}:events:{region}:{account}:event-bus/default")
    if archive.bus_id is not None:
        source = values.arn(f"{archive.bus_id}Bus")
    properties: Json = {"ArchiveName": archive.name, "SourceArn": source}
    if archive.pattern is not None:
        properties["EventPattern"] = as_value(archive.pattern)
    if archive.days is not None:
        properties["RetentionDays"] = archive.days
    return {"Type": "AWS::Events::Archive", "Properties": properties}


def _pipe(plan: Plan, pipe: PipePlan) -> Json:
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
            "RoleArn": values.arn(f"{pipe.role.id}Role"),
            "Source": values.arn(f"{pipe.source_id}Queue"),
            "SourceParameters": source,
            "Target": values.arn(f"{pipe.target_id}Queue"),
            **({"TargetParameters": target} if target else {}),
            "Tags": plan.tags_of(pipe.owner),
        },
    }
