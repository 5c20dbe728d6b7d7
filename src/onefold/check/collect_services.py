"""Facts about state machines, tables, alarms, keys, roles and functions' settings for asynchronous invocations.

Never here: whether they suit the queues and functions around them. Invariant: an alarm with a metric that is not
understood is left without metrics.

Sources: CloudFormation template reference of each type; SAM developer guide, AWS::Serverless::StateMachine.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from onefold.check.collect_events import shared
from onefold.check.collect_function import on_failure_of
from onefold.check.documents import json_of, read_document
from onefold.check.facts import (
    AlarmFacts,
    InvokeConfigFacts,
    KeyFacts,
    MetricFacts,
    ResourceSetting,
    RoleFacts,
    StateMachineFacts,
    TableFacts,
    Unresolved,
)
from onefold.check.intrinsics import decimal_number, flag, list_of, text_of, whole_number, why_not
from onefold.check.scope import Properties
from onefold.errors import OnefoldError

_DEFINITIONS: Final = ("Definition", "DefinitionString", "DefinitionUri")


def state_machine_of(properties: Properties, exists: bool | Unresolved) -> StateMachineFacts:
    """An AWS::StepFunctions::StateMachine or AWS::Serverless::StateMachine."""
    key = "Type" if properties.kind == "AWS::Serverless::StateMachine" else "StateMachineType"
    return StateMachineFacts(
        **shared(properties, exists),
        kind=properties.setting(key, text_of, "STANDARD"),
        definition=_definition(properties),
    )


def _definition(properties: Properties) -> ResourceSetting[dict[str, Any]]:
    scope = properties.scope
    name = next((one for one in _DEFINITIONS if one in properties.raw), "DefinitionS3Location")
    at = (*properties.path, name)
    try:
        value = scope.functions.with_gaps(properties.raw.get(name))
        if name == "DefinitionUri" and isinstance(value, str):
            value = read_document(Path(scope.document.file).parent / value).data
        elif isinstance(value, str):
            value = json_of(value)
    except (OnefoldError, ValueError, OSError) as error:
        return scope.document.setting(at, None, f"it cannot be read: {error!s:.200}")
    if isinstance(value, dict):
        return scope.document.setting(at, value)
    why = value.why if isinstance(value, Unresolved) else "it is not in the template"
    return scope.document.setting(at, None, why)


def table_of(properties: Properties, exists: bool | Unresolved) -> TableFacts:
    """An AWS::DynamoDB::Table, ::GlobalTable or AWS::Serverless::SimpleTable."""
    replicas = properties.items("Replicas")
    document, at = properties.scope.document, (*properties.path, "Replicas")
    regions: ResourceSetting[list[str]] = document.setting(at, None, "the list of replicas is not known")
    if replicas is not None:
        found = [one.setting("Region", text_of) for one in replicas]
        known = [one.value for one in found if one.value is not None]
        regions = (
            document.setting(at, known) if len(known) == len(found) else replace(regions, why="a region is not known")
        )
    keys = [one for one in properties.items("KeySchema") or () if one.setting("KeyType", text_of).value == "HASH"]
    primary = properties.inner("PrimaryKey")  # of AWS::Serverless::SimpleTable, whose key is "id" by default
    named = keys[0].setting("AttributeName", text_of) if keys else primary.setting("Name", text_of)
    return TableFacts(
        **shared(properties, exists),
        name=properties.scope.name_of(properties.logical_id)[0],
        hash_key=named,
        ttl_attribute=properties.inner("TimeToLiveSpecification").setting("AttributeName", text_of),
        regions=regions,
        consistency=properties.setting("MultiRegionConsistency", text_of, "EVENTUAL"),
    )


def alarm_of(properties: Properties, exists: bool | Unresolved) -> AlarmFacts:
    """An AWS::CloudWatch::Alarm, ::CompositeAlarm or ::LogAlarm."""
    written = properties.items("Metrics")
    metrics = _metrics(properties, written)
    names = {"AWS::CloudWatch::CompositeAlarm": "composite", "AWS::CloudWatch::LogAlarm": "log"}
    return AlarmFacts(
        **shared(properties, exists),
        kind=names.get(properties.kind, "metric"),  # type: ignore[arg-type]
        metrics=metrics,
        computes=bool(written),
        comparison=properties.setting("ComparisonOperator", text_of),
        threshold=properties.setting("Threshold", decimal_number),
        missing=properties.setting("TreatMissingData", text_of, "missing"),
        enabled=properties.setting("ActionsEnabled", flag, True),
        actions=properties.setting("AlarmActions", list_of),
        ok_actions=properties.setting("OKActions", list_of),
        rule=properties.setting("AlarmRule", text_of),
    )


def _metrics(properties: Properties, written: list[Properties] | None) -> tuple[MetricFacts, ...] | None:
    if written is None:
        return None
    if not written:
        one = _metric(properties, properties)
        return None if one is None else (one,)
    found: list[MetricFacts] = []
    for query in written:
        if "MetricStat" not in query.raw:
            continue
        stat = query.inner("MetricStat")
        metric = _metric(stat.inner("Metric"), stat)
        if metric is None or "" in stat.unresolved:
            return None
        found.append(metric)
    return tuple(found)


def _metric(metric: Properties, stat: Properties) -> MetricFacts | None:
    """A metric and how it is counted; None when its dimensions are not known."""
    dimensions: dict[str, ResourceSetting[str]] = {}
    listed = metric.items("Dimensions")
    for one in listed if listed is not None else ():
        name = one.setting("Name", text_of)
        if name.value is None:
            return None
        dimensions[name.value] = one.setting("Value", text_of)
    if listed is None:
        return None
    named = (
        "Statistic" if "Statistic" in stat.raw else "ExtendedStatistic" if "ExtendedStatistic" in stat.raw else "Stat"
    )
    return MetricFacts(
        namespace=metric.setting("Namespace", text_of),
        name=metric.setting("MetricName", text_of),
        dimensions=dimensions,
        statistic=stat.setting(named, text_of),
        period_s=stat.setting("Period", whole_number),
    )


def key_of(properties: Properties, exists: bool | Unresolved) -> KeyFacts:
    """An AWS::KMS::Key. Its aliases are added by `with_aliases`."""
    common = shared(properties, exists)
    names = frozenset({properties.scope.name_of(properties.logical_id)[0], common["arn"]})
    return KeyFacts(**common, policy=properties.setting("KeyPolicy", _mapping), names=names)


def _mapping(value: Any) -> dict[str, Any] | Unresolved:
    return value if isinstance(value, dict) else Unresolved("it is not a mapping")


def with_aliases(keys: Iterable[KeyFacts], aliases: Iterable[Properties]) -> list[KeyFacts]:
    """Keys with the names of their aliases added."""
    found = {one.id: one for one in keys}
    for alias in aliases:
        name, target = alias.setting("AliasName", text_of).value, alias.setting("TargetKeyId", text_of).value
        for one in list(found.values()):
            if name is not None and target in one.names:
                found[one.id] = replace(one, names=one.names | {name, one.arn.rsplit(":", 1)[0] + f":{name}"})
    return list(found.values())


def role_of(properties: Properties, exists: bool | Unresolved) -> RoleFacts:
    """An AWS::IAM::Role. Policies that are resources of their own are added by `with_policies`."""
    inline = properties.items("Policies")
    managed = properties.setting("ManagedPolicyArns", list_of)
    return RoleFacts(
        **shared(properties, exists),
        trust=properties.get("AssumeRolePolicyDocument"),
        policies=tuple(one.get("PolicyDocument") for one in inline or ()),
        has_others=inline is None or not (managed.is_absent or managed.value == []),
    )


def with_policies(roles: Iterable[RoleFacts], policies: Iterable[Properties]) -> list[RoleFacts]:
    """Roles with the policies that are attached to them; one whose role is not known may belong to any of them."""
    found = {one.id: one for one in roles}
    for policy in policies:
        names = policy.get("Roles") if "RoleName" not in policy.raw else [policy.get("RoleName")]
        is_known = isinstance(names, list) and why_not(names) is None and not policy.unresolved
        document = policy.get("PolicyDocument")
        for one in list(found.values()):
            name = policy.scope.name_of(one.id)[0]
            if not is_known:
                found[one.id] = replace(one, has_others=True)
            elif name in names:
                found[one.id] = replace(one, policies=(*one.policies, document))
    return list(found.values())


def invoke_config_of(properties: Properties, exists: bool | Unresolved) -> InvokeConfigFacts:
    """An AWS::Lambda::EventInvokeConfig."""
    return InvokeConfigFacts(
        **shared(properties, exists),
        function=properties.setting("FunctionName", text_of),
        on_failure=on_failure_of(properties),
        retries_max=properties.setting("MaximumRetryAttempts", whole_number, 2),
    )
