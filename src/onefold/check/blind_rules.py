"""Rules BLD: nobody is notified when work fails.

Sources: SQS developer guide, CloudWatch metrics: a queue that is not used for some six hours has none,
NumberOfMessagesSent leaves out what a redrive policy moved; Lambda developer guide, metrics: DeadLetterErrors counts only
asynchronous invocations, Errors counts no partial failures; CloudWatch user guide, missing data; EventBridge Scheduler
user guide, monitoring: metrics are of a schedule group.
Never here: positions, edits. Invariants: an unknown value is not a finding; what may exist elsewhere is not missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from onefold.check.facts import AlarmFacts, MetricFacts, ResourceSetting, ScheduleFacts
from onefold.check.findings import Finding, Fix, Related
from onefold.check.model import Model, ModelFunction, ModelMapping, ModelQueue, inserted

VISIBLE: Final = "ApproximateNumberOfMessagesVisible"
NOT_VISIBLE: Final = "ApproximateNumberOfMessagesNotVisible"
OLDEST: Final = "ApproximateAgeOfOldestMessage"
GAUGES: Final = frozenset({VISIBLE, NOT_VISIBLE, OLDEST, "ApproximateNumberOfMessagesDelayed"})
OURS: Final = frozenset({"AWS/SQS", "AWS/Lambda", "AWS/Scheduler", "AWS/Events", "AWS/States"})


def _watched(model: Model, queue: ModelQueue, kinds: frozenset[str]) -> list[AlarmFacts]:
    """The alarms on some metrics of a queue, including those under other conditions."""
    return [
        alarm
        for alarm in model.possible(AlarmFacts)
        for metric in alarm.metrics or ()
        if metric.name.value in kinds and _is_of(metric, queue)
    ]


def _is_of(metric: MetricFacts, queue: ModelQueue) -> bool:
    name = metric.dimensions.get("QueueName")
    return metric.namespace.value == "AWS/SQS" and name is not None and name.value == queue.facts.name


def _may_watch_anything(model: Model) -> bool:
    """Whether some alarm watches a queue that is not known, or evaluates an expression that finds its own metrics."""
    for alarm in model.possible(AlarmFacts):
        if alarm.metrics is None or (alarm.computes and not alarm.metrics):
            return True
        for metric in alarm.metrics:
            name = metric.dimensions.get("QueueName")
            if metric.namespace.why or metric.name.why or (name is not None and name.why):
                return True
    return False


def no_alarm_on_dead_letters(model: Model) -> Iterator[Finding]:
    """BLD001."""
    if not model.possible(AlarmFacts) or _may_watch_anything(model):
        return
    for queue in model.queues:
        if "dead letters" not in queue.roles and "failed deliveries" not in queue.roles:
            continue
        if "source" in queue.roles or _watched(model, queue, GAUGES) or queue.name in model.exported:
            continue
        if (
            model.may_be_elsewhere(queue.name, named=queue.is_named)
            or not queue.is_name_known
            or model.has_unknown_sources
        ):
            continue
        sources = [one for one in model.queues if one.dead_letters is queue]
        yield Finding(
            rule="BLD001",
            severity="warning",
            message=f"{queue.name} receives what failed, and no alarm in this template watches it: a dead letter stays"
            " there, unseen, until it expires.",
            source=queue.source,
            resource=queue.name,
            arithmetic=()
            if queue.retention_s.value is None
            else (f"it is deleted after {queue.retention_s.value:,} s, seen or not",),
            related=tuple(Related(one.source, one.name, f"its dead letters go to {queue.name}") for one in sources),
            fix=Fix(
                f"Add an alarm on the maximum of {VISIBLE} of {queue.name}, at least 1, with TreatMissingData notBreaching.",
                "unsafe",
            ),
        )


def alarm_that_never_fires(model: Model) -> Iterator[Finding]:
    """BLD002."""
    for alarm, metric in _of_existing(model):
        name = metric.name.value
        queue = _queue_of(model, metric)
        if queue is not None and name == "NumberOfMessagesSent" and queue.roles == {"dead letters"}:
            yield _never(
                alarm, metric, f"{queue.name} is filled by a redrive policy, which this metric does not count", VISIBLE
            )
        function = _function_of(model, metric)
        if function is None or not (mappings := [one for one in model.mappings if one.function is function]):
            continue
        if name == "DeadLetterErrors" and function.facts.dead_letter_arn.is_absent:
            why = f"{function.name} has no dead-letter queue of its own, only its queue has one"
            yield _never(alarm, metric, why, "the messages in the dead-letter queue of its queue")
        if name == "Errors" and all(one.reports_failures for one in mappings) and not _is_watched(model, mappings):
            yield Finding(
                rule="BLD002",
                severity="warning",
                message=f"{alarm.id} looks at Errors of {function.name}, which counts no message that is reported as"
                " failed, and no alarm looks at its queue.",
                source=metric.name.source,
                resource=alarm.id,
                property_path=metric.name.path,
                related=(Related(mappings[0].source, mappings[0].name, "reports the messages that failed"),),
                fix=Fix("Look at the messages in the dead-letter queue too.", "unsafe"),
            )


def _function_of(model: Model, metric: MetricFacts) -> ModelFunction | None:
    name = metric.dimensions.get("FunctionName")
    if metric.namespace.value != "AWS/Lambda" or name is None or name.value is None:
        return None
    return next((one for one in model.functions if one.facts.name == name.value.split(":")[0]), None)


def _is_watched(model: Model, mappings: list[ModelMapping]) -> bool:
    """Whether an alarm looks at a queue of these mappings or at its dead letters, or may."""
    sources = [one.queue for one in mappings]
    queues = [*sources, *(None if one is None else one.dead_letters for one in sources)]
    if _may_watch_anything(model):
        return True
    return any(
        one is None or _watched(model, one, GAUGES) or model.may_be_elsewhere(one.name, named=one.is_named)
        for one in queues
    )


def _never(alarm: AlarmFacts, metric: MetricFacts, why: str, instead: str) -> Finding:
    return Finding(
        rule="BLD002",
        severity="error",
        message=f"{alarm.id} looks at {metric.name.value}, which stays 0: {why}.",
        source=metric.name.source,
        resource=alarm.id,
        property_path=metric.name.path,
        fix=Fix(f"Look at {instead}.", "unsafe"),
    )


def _of_existing(model: Model) -> Iterator[tuple[AlarmFacts, MetricFacts]]:
    for alarm in model.all(AlarmFacts):
        for metric in alarm.metrics or ():
            yield alarm, metric


def _queue_of(model: Model, metric: MetricFacts) -> ModelQueue | None:
    return next((one for one in model.queues if _is_of(metric, one)), None)


def missing_data_and_wrong_sums(model: Model) -> Iterator[Finding]:
    """BLD003."""
    for alarm, metric in _of_existing(model):
        queue = _queue_of(model, metric)
        if queue is None or alarm.computes:
            continue
        name, threshold = metric.name.value, alarm.threshold.value
        if alarm.missing.value in {"missing", "breaching"} and alarm.missing.value is not None:
            is_breaching = alarm.missing.value == "breaching"
            yield Finding(
                rule="BLD003",
                severity="warning" if is_breaching else "info",
                message=f"{alarm.id} treats missing data as {alarm.missing.value}. A queue that nobody uses for some six"
                f" hours has no metrics: it then {'is in alarm' if is_breaching else 'has insufficient data'} with nothing"
                " wrong.",
                source=alarm.missing.source,
                resource=alarm.id,
                property_path=alarm.missing.path,
                related=(Related(queue.source, queue.name, "may be idle"),),
                fix=Fix(
                    "Set TreatMissingData to notBreaching.",
                    "safe",
                    tuple(inserted(model.document, alarm.at, "TreatMissingData", "notBreaching"))
                    if not alarm.missing.written
                    else (),
                ),
            )
        if name in GAUGES and metric.statistic.value == "Sum" and threshold is not None and threshold > 1:
            yield Finding(
                rule="BLD003",
                severity="warning",
                message=f"{alarm.id} adds up {name}, which is a level: with five samples in a period it is five times as"
                " high.",
                source=metric.statistic.source,
                resource=alarm.id,
                property_path=metric.statistic.path,
                arithmetic=(f"5 samples of {threshold / 5:g} are {threshold:g}, and the alarm is on",),
                fix=Fix("Use Maximum.", "unsafe"),
            )
        if name == NOT_VISIBLE and queue.is_for_failures and not model.mappings_of(queue) and not queue.may_redrive:
            yield Finding(
                rule="BLD003",
                severity="warning",
                message=f"{alarm.id} looks at messages in flight of {queue.name}, which nobody receives: dead letters are"
                " visible.",
                source=metric.name.source,
                resource=alarm.id,
                property_path=metric.name.path,
                fix=Fix(f"Look at {VISIBLE}.", "unsafe"),
            )


def alarm_without_action(model: Model) -> Iterator[Finding]:
    """BLD004."""
    silent: list[AlarmFacts] = []
    for alarm in model.all(AlarmFacts):
        if alarm.kind == "log" or not _is_about_us(alarm):
            continue
        if _is_none(alarm.actions) and not _is_used(model, alarm):
            silent.append(alarm)
        dead = [queue for one in alarm.metrics or () if (queue := _queue_of(model, one)) and queue.is_for_failures]
        if alarm.actions.value and _is_none(alarm.ok_actions) and dead and _is_level(alarm):
            yield Finding(
                rule="BLD004",
                severity="info",
                message=f"{alarm.id} says when {dead[0].name} has dead letters, but not when they are gone: it has no OK"
                " action.",
                source=alarm.source,
                resource=alarm.id,
                property_path="OKActions",
                fix=Fix("Add OKActions with the same topic.", "unsafe"),
            )

    is_every = all(_is_none(one.actions) for one in model.possible(AlarmFacts))
    for first, others in [(silent[0], silent[1:])] if silent and is_every else [(one, []) for one in silent]:
        yield Finding(
            rule="BLD004",
            severity="warning",
            message=f"{first.id} notifies nobody: it has no action, and nothing else refers to it."
            + (f" The same is true of {len(others)} more: no alarm of this template has an action." if others else ""),
            source=first.source,
            resource=first.id,
            property_path="AlarmActions",
            related=tuple(Related(one.source, one.id, "has none either") for one in others),
            fix=Fix("Add AlarmActions with the ARN of a topic.", "unsafe"),
        )


def _is_none(actions: ResourceSetting[list[Any]]) -> bool:
    """Whether there is certainly no action."""
    return actions.is_absent or actions.value == []


def _is_used(model: Model, alarm: AlarmFacts) -> bool:
    """Whether a composite alarm, a deployment or anything else refers to an alarm, or may."""
    name = alarm.arn.rsplit(":", 1)[-1]
    rules = [one.rule for one in model.possible(AlarmFacts) if one.kind == "composite"]
    return (
        bool(model.references.get(alarm.id, frozenset()) - {alarm.id})
        or any(one.value is None or not name or name in one.value for one in rules)
        or model.may_be_elsewhere(alarm.id, named=alarm.named)
    )


def _is_about_us(alarm: AlarmFacts) -> bool:
    names = {one.namespace.value for one in alarm.metrics or ()}
    return bool(names) and names <= OURS


def _is_level(alarm: AlarmFacts) -> bool:
    return any(one.name.value == VISIBLE for one in alarm.metrics or ())


def schedules_share_a_group(model: Model) -> Iterator[Finding]:
    """BLD005."""
    shared = [one for one in model.all(ScheduleFacts) if one.group.value == "default" and one.state.value != "DISABLED"]
    if len(shared) < 2:
        return
    first, *others = shared
    yield Finding(
        rule="BLD005",
        severity="info",
        message=f"{len(shared)} schedules are in the default group, and Scheduler counts failures for a group: its metrics"
        " do not say whose tick failed.",
        source=first.source,
        resource=first.id,
        property_path="GroupName",
        related=tuple(Related(one.source, one.id, "is in it too") for one in others),
        fix=Fix("Give each job an AWS::Scheduler::ScheduleGroup of its own.", "unsafe"),
    )


def tenant_behind_a_mapping(model: Model) -> Iterator[Finding]:
    """BLD006."""
    for mapping in model.mappings:
        function = mapping.function
        if function is None or function.facts.tenancy.value != "PER_TENANT":
            continue
        yield Finding(
            rule="BLD006",
            severity="info",
            message=f"{function.name} isolates tenants, and {mapping.name} passes none: an event source mapping has no"
            " tenant to invoke for.",
            source=function.facts.tenancy.source,
            resource=function.name,
            property_path=function.facts.tenancy.path,
            related=(Related(mapping.source, mapping.name, "invokes it"),),
            fix=Fix("Invoke it from a function that knows the tenant, with X-Amz-Tenant-Id.", "unsafe"),
        )
