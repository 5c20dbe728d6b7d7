"""The alarms of `observe/alarms.py` for CloudWatch: their metrics, with thresholds from the app's own declarations.

Most use metrics that AWS has anyway. What only onefold knows is counted in the functions' logs, by the event's name in
a line (`LogCount`): a partial batch failure is not a Lambda error, so Lambda's own metrics do not show it. An alarm
with several measures uses metric math. `wanted` decides which of the alarms a deployment has.
Never here: what an alarm means, thresholds that depend on traffic. Invariants: exactly the alarms of the list that are
marked `cloudwatch` are made here; no data means that nothing happened, so no alarm (`notBreaching`), except for alarms
about missing data.

Sources: CloudWatch user guide, "How alarms treat missing data", "Using math expressions with CloudWatch metrics", "Filter
pattern syntax for metric filters"; SQS developer guide, "Available CloudWatch metrics"; Lambda developer guide, "Types of
metrics for Lambda functions"; EventBridge Scheduler user guide, "Monitoring with CloudWatch"; DynamoDB developer guide.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from onefold import limits
from onefold.contracts.settings import QueueSettings
from onefold.deploy import names
from onefold.deploy.functions import FunctionPlan
from onefold.deploy.stack import Alarms
from onefold.observe import alarms
from onefold.observe.alarm_samples import (
    drain_limit_ms,
    expiring_lead_ms,
    longest_gap_ms,
    oldest_limit_ms,
    stalled_after_ms,
)
from onefold.observe.alarms import ALARMS, MINUTE_MS
from onefold.observe.metrics import METRICS
from onefold.schedules.fire_times import Timing

Missing = Literal["notBreaching", "breaching"]

LOG_NAMESPACE: Final = "onefold"
FEW: Final = frozenset(
    (
        "dlq-not-empty",
        "held-not-empty",
        "oldest",
        "failing",
        "throttles",
        "completion-failed",
        "lease-lost",
        "reconcile-failed",
        "map-failed",
    )
)
"""Alarms that no app should be without. Each uses a single metric, which AWS emulators support too."""
_SQS: Final = "AWS/SQS"
_LAMBDA: Final = "AWS/Lambda"
_SCHEDULER: Final = "AWS/Scheduler"
_EVENTS_NAMESPACE: Final = "AWS/Events"
_TEXT_CHARS_MAX: Final = 1_024  # CloudWatch API, PutMetricAlarm, AlarmDescription
RULE_CHARS_MAX: Final = 10_240  # same, PutCompositeAlarm, AlarmRule
_FIVE_MS: Final = 5 * MINUTE_MS
_WARM_UP_MS_MAX: Final = 2 * limits.DAY_MS  # CloudFormation, AWS::CloudWatch::Alarm, WarmUpPeriodDurationInMinutes
_PERIODS_MS_MAX: Final = limits.DAY_MS  # all periods together, if one is shorter than an hour; else a week
_TICKS_FROM_MS: Final = (
    1_767_225_600_000  # 2026-01-01; the gaps between ticks of this year count, whenever the template is written
)


class Measure(Struct, frozen=True, kw_only=True):
    """One metric.

    Args:
        id: its name in the alarm's expression. statistic: `Maximum`, `Sum`, or a percentile such as `p99`.
        namespace, metric, dimensions: identify the metric; values of dimensions are patterns (see `names.py`).
    """

    id: str
    namespace: str
    metric: str
    dimensions: Mapping[str, str] = {}
    statistic: str = "Sum"


class AlarmPlan(Struct, frozen=True, kw_only=True):
    """One alarm; it goes off when the value is at or over the threshold in `bad` of the last `periods`.

    Args:
        id: logical id. name: unique in account and region. alarm: its name in the list.
        text: what it means and what to do first.
        measures: the metrics. expression: over their ids; None: the single measure itself.
        period_ms, periods, bad: see above. threshold: in the metric's unit.
        missing: how a period without data counts. warm_up_ms: for how long it is not evaluated after it was made.
        owner: the responsible team, if there is one. jobs: those it is about, if known.
    """

    id: str
    name: str
    alarm: str
    text: str
    measures: tuple[Measure, ...]
    expression: str | None = None
    period_ms: int
    periods: int = 1
    bad: int = 1
    threshold: float
    missing: Missing = "notBreaching"
    warm_up_ms: int = 0
    owner: str | None
    jobs: tuple[str, ...] = ()


class CompositePlan(Struct, frozen=True, kw_only=True):
    """One alarm for a job, which is on while any of the job's alarms is on. It notifies instead of them.

    Args:
        id: logical id. name: unique in account and region. text: what to do first.
        children: logical ids of the job's alarms. names: their names. owner: the responsible team.
    """

    id: str
    name: str
    text: str
    children: tuple[str, ...]
    names: tuple[str, ...]
    owner: str | None

    @property
    def rule(self) -> str:
        """The rule in the language of composite alarms."""
        return " OR ".join(f'ALARM("{one}")' for one in self.names)


class LogCount(Struct, frozen=True, kw_only=True):
    """A metric that counts lines of a log.

    Args:
        id: logical id. function: part of the logical ids of the function whose log it is.
        pattern: in the language of CloudWatch Logs: phrases that a line must have (all, or with `?` any), or not have
            (`-`).
        namespace, metric: the metric's name.
    """

    id: str
    function: str
    pattern: str
    namespace: str
    metric: str


class Made(Struct, frozen=True, kw_only=True):
    """The common values of the alarms of one resource.

    Args:
        part: the first part of their logical ids. resource: the resource's full name, with which their names begin.
        subject: what the first command in their texts names. target: the app in that command.
        owner: the responsible team. jobs: see `AlarmPlan`.
    """

    part: str
    resource: str
    subject: str
    target: str
    owner: str | None
    jobs: tuple[str, ...] = ()

    def alarm(
        self,
        alarm: str,
        threshold: float,
        *measures: Measure,
        ids: str,
        suffix: str,
        expression: str | None = None,
        period_ms: int = MINUTE_MS,
        periods: int = 1,
        bad: int | None = None,
        missing: Missing = "notBreaching",
        warm_up_ms: int = 0,
    ) -> AlarmPlan:
        """Make one alarm.

        Args:
            ids, suffix: the ends of its logical id and its name; never change them, since another name is another
                alarm.
        """
        meant = ALARMS[alarm]
        owner = f" Owner: {self.owner}." if self.owner else ""
        said = f"[{meant.severity}] {meant.meaning} First: {meant.command(self.target, self.subject)}."
        return AlarmPlan(
            id=f"{self.part}{ids}Alarm",
            name=f"{self.resource}-{suffix}",
            alarm=alarm,
            text=f"{said}{owner} See {meant.runbook}"[:_TEXT_CHARS_MAX],
            measures=measures,
            expression=expression,
            period_ms=period_ms,
            periods=periods,
            bad=periods if bad is None else bad,
            threshold=threshold,
            missing=missing,
            warm_up_ms=warm_up_ms,
            owner=self.owner,
            jobs=self.jobs,
        )


def _sqs(name: str, metric: str, queue: str, statistic: str = "Maximum") -> Measure:
    return Measure(id=name, namespace=_SQS, metric=metric, dimensions={"QueueName": queue}, statistic=statistic)


# -- queues ----------------------------------------------------------------------------------------------------------


def of_queue(made: Made, settings: QueueSettings, *, timeout_ms: int, grouped: bool) -> Iterator[AlarmPlan]:
    """The alarms of a main queue.

    Args:
        settings: the settings of the queue, with its full name. timeout_ms: the longest of its jobs. grouped: one of
            its jobs has groups.
    """
    queue = settings.name
    visible = _sqs("visible", "ApproximateNumberOfMessagesVisible", queue)
    deleted = _sqs("deleted", "NumberOfMessagesDeleted", queue, "Sum")
    oldest = _sqs("oldest", "ApproximateAgeOfOldestMessage", queue)
    yield made.alarm(
        "oldest", oldest_limit_ms(settings) // limits.SECOND_MS, oldest, ids="Oldest", suffix="oldest",
        periods=_periods(ALARMS["oldest"].for_ms, MINUTE_MS),
    )  # fmt: skip
    after_ms = stalled_after_ms(timeout_ms)
    period_ms = _FIVE_MS if after_ms <= _PERIODS_MS_MAX else limits.HOUR_MS
    yield made.alarm(
        "stalled", 1, deleted, visible, ids="Stalled", suffix="stalled",
        expression="IF(FILL(deleted, 0) == 0 AND FILL(visible, 0) > 0, 1, 0)",
        period_ms=period_ms, periods=_periods(after_ms, period_ms),
    )  # fmt: skip
    period_ms = ALARMS["drain"].for_ms
    yield made.alarm(
        "drain", drain_limit_ms(settings) // limits.SECOND_MS, deleted, visible, ids="Drain", suffix="drain",
        expression=f"IF(FILL(deleted, 0) > 0, FILL(visible, 0) * {period_ms // limits.SECOND_MS} / deleted, 0)",
        period_ms=period_ms, periods=2,
    )  # fmt: skip
    yield made.alarm(
        "in-flight-cap", round(alarms.IN_FLIGHT_RATIO * settings.in_flight_max),
        _sqs("in_flight", "ApproximateNumberOfMessagesNotVisible", queue), ids="InFlightCap", suffix="in-flight-cap",
        periods=_periods(ALARMS["in-flight-cap"].for_ms, MINUTE_MS),
    )  # fmt: skip
    if settings.fifo:
        yield made.alarm(
            "group-backlog", 15 * MINUTE_MS // limits.SECOND_MS, oldest,
            _sqs("groups", "ApproximateNumberOfGroupsWithInflightMessages", queue),
            ids="GroupBacklog", suffix="group-backlog", expression="IF(FILL(groups, 0) <= 1, oldest, 0)", period_ms=_FIVE_MS,
        )  # fmt: skip
    elif grouped:
        yield made.alarm(
            "noisy-tenant", 1, _sqs("groups", "ApproximateNumberOfNoisyGroups", queue), ids="NoisyTenant",
            suffix="noisy-tenant", periods=15,
        )  # fmt: skip


def of_receives(made: Made, namespace: str, job: str, queue: str) -> AlarmPlan:
    """The alarm of a queue's job whose metrics an `EmfSink` writes; CloudWatch has no such metric of a queue alone.

    Args:
        namespace: the namespace of these metrics. job, queue: their names in the app.
    """
    measure = Measure(
        id="receives", namespace=namespace, metric=METRICS["onefold.message.receives"].emf,
        dimensions={"job": job, "queue": queue}, statistic="p99",
    )  # fmt: skip
    return made.alarm(
        "receives", alarms.RECEIVES, measure, ids=f"{names.logical_id(job)}Receives", suffix=f"{job}-receives",
        period_ms=_FIVE_MS, periods=_periods(ALARMS["receives"].for_ms, _FIVE_MS),
    )  # fmt: skip


def of_dead(made: Made, dead: QueueSettings, *, source_retention_ms: int) -> Iterator[AlarmPlan]:
    """The alarms of a dead-letter queue.

    Args:
        dead: its settings, with its full name. source_retention_ms: the longest retention of its source queues.
    """
    visible = _sqs("dead", "ApproximateNumberOfMessagesVisible", dead.name)
    yield made.alarm("dlq-not-empty", 1, visible, ids="NotEmpty", suffix="not-empty")
    # On a standard queue a message expires by the time of its first send, but its age is counted from the move.
    before_ms = 0 if dead.fifo else source_retention_ms
    limit_ms = dead.retention_ms - expiring_lead_ms(dead.retention_ms)
    yield made.alarm(
        "dlq-expiring", max(limit_ms - before_ms, dead.retention_ms // 2) // limits.SECOND_MS,
        _sqs("oldest", "ApproximateAgeOfOldestMessage", dead.name), ids="Expiring", suffix="expiring", period_ms=_FIVE_MS,
    )  # fmt: skip


def of_held(made: Made, held: str) -> Iterator[AlarmPlan]:
    """The alarms of a queue for unknown outcomes; `held`: its full name."""
    visible = _sqs("held", "ApproximateNumberOfMessagesVisible", held)
    yield made.alarm("held-not-empty", 1, visible, ids="NotEmpty", suffix="not-empty")
    oldest = _sqs("oldest", "ApproximateAgeOfOldestMessage", held)
    yield made.alarm("held-old", limits.DAY_MS // limits.SECOND_MS, oldest, ids="Old", suffix="old", period_ms=_FIVE_MS)


def _periods(time_ms: int, period_ms: int) -> int:
    return max(1, -(-time_ms // period_ms))


# -- functions -------------------------------------------------------------------------------------------------------


def of_function(made: Made, function: FunctionPlan) -> Iterator[AlarmPlan]:
    """The alarms of a function and its mapping, on Lambda's own metrics."""

    def measure(name: str, metric: str, statistic: str = "Sum") -> Measure:
        dimensions = {"FunctionName": function.name}
        return Measure(id=name, namespace=_LAMBDA, metric=metric, dimensions=dimensions, statistic=statistic)

    def mapped(name: str, metric: str) -> Measure:
        dimensions = {"EventSourceMappingUUID": f"{{mapping_id.{function.id}}}"}
        return Measure(id=name, namespace=_LAMBDA, metric=metric, dimensions=dimensions)

    yield made.alarm(
        "errors", alarms.ERRORS_PERCENT, measure("errors", "Errors"), measure("invocations", "Invocations"), ids="Errors",
        suffix="errors", expression="IF(invocations > 0, 100 * errors / invocations, 0)", periods=3, bad=2,
    )  # fmt: skip
    # each invocation counts 0 or 1 in Errors, so the average is the share that failed; a quiet queue has few of them
    yield made.alarm(
        "failing", alarms.FAILING_RATIO, measure("failing", "Errors", "Average"), ids="Failing", suffix="failing",
        period_ms=_FIVE_MS,
    )  # fmt: skip
    yield made.alarm(
        "throttles", 1, measure("throttles", "Throttles"), ids="Throttles", suffix="throttles", periods=3, bad=2
    )
    yield made.alarm(
        "duration", function.settings.timeout_ms * alarms.DURATION_PERCENT // 100, measure("duration", "Duration", "p99"),
        ids="Duration", suffix="duration", period_ms=_FIVE_MS, periods=5, bad=3,
    )  # fmt: skip
    assert function.mapping.concurrency_max is not None  # options always have one
    most = -(-function.mapping.concurrency_max * alarms.CONCURRENCY_PERCENT // 100)
    yield made.alarm(
        "concurrency", most, measure("running", "ConcurrentExecutions", "Maximum"), ids="Concurrency", suffix="concurrency",
        periods=10,
    )  # fmt: skip
    yield made.alarm(
        "mapping-dropped", 1, mapped("polled", "PolledEventCount"), mapped("filtered", "FilteredOutEventCount"),
        mapped("invoked", "InvokedEventCount"), ids="MappingDropped", suffix="mapping-dropped",
        expression="SUM([polled, -1 * filtered, -1 * invoked])", period_ms=_FIVE_MS, periods=5, bad=3,
    )  # fmt: skip


_TIMED_OUT: Final = "Task timed out"  # Lambda's own line; in a JSON log it is the status of the report
_EVENTS: Final[Mapping[str, str]] = {
    "RecordLost": '"completion-failed"',
    "LeaseLost": '"lease-lost"',
    "Paused": r'?"\"event\":\"paused\"" ?"ERROR paused"',  # in a JSON line, and in plain text
    "TimedOut": f'"{_TIMED_OUT}"',
}
_LOOKS: Final[Mapping[str, str]] = {
    "ReconcileFailed": '"reconcile-failed"',
    "Missing": r'"reconcile-failed" -"\"missing\":0" -"missing=0"',
    "Duplicates": r'"reconcile-failed" -"\"twice\":0" -"twice=0"',
}
"""What is counted in logs: the metric, and the pattern of its lines, to which Lambda's logging adds a prefix."""


def _in_json(pattern: str) -> str:
    """The pattern for a log that Lambda writes as JSON, where a line is a text with a backslash before each quote."""
    found = []
    for sign, text in re.findall(r'([?-]?)"((?:[^"\\]|\\.)*)"', pattern):
        found.append(f'{sign}"{text}"')
        if r"\"" in text and sign:  # `\"` in a pattern gets one more backslash, which is escaped too
            found.append(f'{sign}"{text.replace(chr(92) + chr(34), chr(92) * 3 + chr(34))}"')
        if text == _TIMED_OUT:
            found = [f'?"{text}"', r'?"\"status\":\"timeout\""']
    return " ".join(found)


def of_log(made: Made, function: FunctionPlan, *, reconciles: bool) -> tuple[list[LogCount], list[AlarmPlan]]:
    """The metrics that are counted in a function's log, and the alarms on them.

    Args:
        reconciles: whether reconciliations run in it.
    """
    namespace = f"{LOG_NAMESPACE}/{function.name}"
    shaped = _in_json if function.options.json_logs else str
    counts = {
        metric: LogCount(
            id=f"{function.id}{metric}Count", function=function.id, pattern=shaped(pattern), namespace=namespace,
            metric=metric,
        )
        for metric, pattern in {**_EVENTS, **(_LOOKS if reconciles else {})}.items()
    }  # fmt: skip

    def alarm(
        alarm: str, metric: str, threshold: int = 1, period_ms: int = MINUTE_MS, ids: str | None = None
    ) -> AlarmPlan:
        measure = Measure(id="lines", namespace=namespace, metric=counts[metric].metric)
        return made.alarm(alarm, threshold, measure, ids=ids or metric, suffix=alarm, period_ms=period_ms)

    found = [
        alarm("completion-failed", "RecordLost"),
        alarm("lease-lost", "LeaseLost"),
        alarm("lease-lost-often", "LeaseLost", alarms.LEASES_LOST_MAX + 1, alarms.HOUR_MS, "LeaseLostOften"),
        alarm("breaker-open", "Paused", period_ms=alarms.EVENT_MS),
        alarm("timeouts", "TimedOut"),
    ]
    if reconciles:
        found += [
            alarm("reconcile-failed", "ReconcileFailed"),
            alarm("missing", "Missing"),
            alarm("duplicate-effects", "Duplicates"),
        ]
    return list(counts.values()), found


_SAID: Final = {"RecordLost": "completion-failed", "LeaseLost": "lease-lost", "Paused": "paused"}


def notes(counts: Sequence[LogCount]) -> list[str]:
    """Notes, a sentence each, on counts in logs that the app's events do not reach."""
    if not counts:
        return []
    patterns = ", ".join(sorted({_SAID[one.metric] for one in counts if one.metric in _SAID}))
    said = f"The app names sinks, none of them a LogSink: alarms on {patterns} count lines of the functions' logs."
    return [f"{said} Add onefold.LogSink(), or let a sink of yours write these names there."]


# -- schedules, map runs, the table ----------------------------------------------------------------------------------


def of_schedules(made: Made, group: str, timings: Collection[Timing]) -> Iterator[AlarmPlan]:
    """The alarms of the group of the app's schedules, since Scheduler has no metric of a single schedule.

    Args:
        timings: the timings of the schedules; empty if the group is only for messages that are due late.
    """

    def measure(name: str, metric: str) -> Measure:
        return Measure(id=name, namespace=_SCHEDULER, metric=metric, dimensions={"ScheduleGroup": group})

    def both(*measures: Measure) -> str:  # a sum with `+` has no value if one of the two has none
        return f"SUM([{', '.join(one.id for one in measures)}])"

    dropped = measure("dropped", "InvocationDroppedCount")
    yield made.alarm("tick-dropped", 1, dropped, ids="TickDropped", suffix="tick-dropped")
    refused = measure("failed", "TargetErrorCount"), measure("throttled", "TargetErrorThrottledCount")
    yield made.alarm(
        "tick-refused", alarms.REFUSED_MIN, *refused, ids="TickRefused", suffix="tick-refused", expression=both(*refused),
        period_ms=alarms.EVENT_MS,
    )  # fmt: skip
    dead = (
        measure("sent", "InvocationsSentToDeadLetterCount"),
        measure("lost", "InvocationsFailedToBeSentToDeadLetterCount"),
    )
    yield made.alarm("tick-dlq", 1, *dead, ids="TickDlq", suffix="tick-dlq", expression=both(*dead))
    lasting = [one for one in timings if one.start_ms is None and one.end_ms is None]
    gaps = [gap_ms for one in lasting if (gap_ms := longest_gap_ms(one, _TICKS_FROM_MS)) is not None]
    late_ms = min(gaps, default=_WARM_UP_MS_MAX) + alarms.TICK_LATE_MS
    if late_ms <= _WARM_UP_MS_MAX:  # before the first tick there is no data, which must not be an alarm
        period_ms = _FIVE_MS if late_ms <= _PERIODS_MS_MAX else limits.HOUR_MS
        yield made.alarm(
            "no-tick", 1, measure("sent", "InvocationAttemptCount"), ids="NoTick", suffix="no-tick",
            # an alarm goes off at or over its threshold, but here too little is bad
            expression="IF(FILL(sent, 0) == 0, 1, 0)", period_ms=period_ms, periods=_periods(late_ms, period_ms),
            missing="breaching", warm_up_ms=late_ms,
        )  # fmt: skip


def of_map(made: Made, machine: str) -> Iterator[AlarmPlan]:
    """The alarms of a map: a run failed (its threshold was exceeded, or its file could not be read), or is throttled.

    Args:
        machine: name of its state machine.
    """

    def measure(name: str, metric: str) -> Measure:
        dimensions = {"StateMachineArn": names.machine_arn(machine)}
        return Measure(id=name, namespace="AWS/States", metric=metric, dimensions=dimensions)

    yield made.alarm("map-failed", 1, measure("failed", "ExecutionsFailed"), ids="Failed", suffix="failed")
    yield made.alarm(
        "map-throttled", 1, measure("throttled", "ExecutionThrottled"), ids="Throttled", suffix="throttled", periods=3, bad=2
    )  # fmt: skip


def of_rule(made: Made, rule: str, bus: str | None) -> AlarmPlan:
    """The alarm of a rule that gave up on events, or could not run for them.

    Args:
        rule: its name. bus: name of its bus; None for the account's default bus, whose rules have one dimension less.
    """
    dimensions = {"RuleName": rule} if bus is None else {"EventBusName": bus, "RuleName": rule}

    def measure(name: str, metric: str) -> Measure:
        return Measure(id=name, namespace=_EVENTS_NAMESPACE, metric=metric, dimensions=dimensions)

    measures = (
        measure("failed", "FailedInvocations"),
        measure("lost", "InvocationsFailedToBeSentToDlq"),
        measure("throttled", "ThrottledRules"),
    )
    return made.alarm(
        "rule-failed", 1, *measures, ids="Failed", suffix="failed", expression="SUM([failed, lost, throttled])"
    )


def of_table(made: Made, table: str) -> AlarmPlan:
    """The alarm of the table of records, which refuses requests; `table`: its name."""

    def measure(name: str, metric: str) -> Measure:
        return Measure(id=name, namespace="AWS/DynamoDB", metric=metric, dimensions={"TableName": table})

    measures = (
        measure("reads", "ReadThrottleEvents"),
        measure("writes", "WriteThrottleEvents"),
        measure(
            "used", "ConsumedWriteCapacityUnits"
        ),  # without throttles there is no data, and the alarm would not end
    )
    return made.alarm(
        "table-throttled", 1, *measures, ids="Throttled", suffix="throttled",
        expression="SUM([reads, writes, 0 * used])", periods=5, bad=3,
    )  # fmt: skip


# -- which alarms a deployment has -----------------------------------------------------------------------------------


def wanted(
    kept: Alarms, counts: Sequence[LogCount], found: Sequence[AlarmPlan]
) -> tuple[list[LogCount], list[AlarmPlan]]:
    """The alarms of a deployment, and the counts in logs that they need."""
    those = [one for one in found if kept in ("all", "jobs") or (kept == "few" and one.alarm in FEW)]
    used = {(measure.namespace, measure.metric) for one in those for measure in one.measures}
    return [one for one in counts if (one.namespace, one.metric) in used], those


def composites(prefix: str, found: Sequence[AlarmPlan], target: str) -> list[CompositePlan]:
    """One alarm for each job, over all alarms about it.

    Args:
        prefix: the beginning of their names, from the stack and the app.
    """
    by_job: dict[str, list[AlarmPlan]] = {}
    for one in found:
        for job in one.jobs:
            by_job.setdefault(job, []).append(one)
    return [
        CompositePlan(
            id=f"{names.logical_id(job)}JobAlarm",
            name=f"{prefix}job-{job}",
            text=_job_text(job, target, those),
            children=tuple(one.id for one in those),
            names=tuple(one.name for one in those),
            owner=those[0].owner,
        )
        for job, those in sorted(by_job.items())
    ]


def _job_text(job: str, target: str, those: Sequence[AlarmPlan]) -> str:
    worst = min((ALARMS[one.alarm].severity for one in those), key=("page", "ticket", "info").index)
    return (
        f"[{worst}] An alarm of the job {job} is on; its own text says what it means. First: onefold status {target}."
    )
