"""The alarms, as data: what is measured, from which value on a person is needed, and what that person does first.

    dead letters   1 or more visible in the dead-letter queue (SQS does not count its own moves as sent, so depth it is)
    held           1 or more in the queue for unknown outcomes
    oldest         the oldest message has waited far longer than a delivery that failed once or twice
    record-lost    `completion-failed`: the effect happened, and its record could not be written
    lease-lost     a run lost its lease: somebody else may have run the same operation meanwhile
    map-failed     a map run ended as failed
    reconcile      `reconcile-failed`: a run is not as it should be; only where reconciliations run

record-lost, lease-lost and reconcile are counted in the function's log by the event's name in its line (`observe/sinks.py`);
a partial batch failure is not a Lambda error, so Lambda's own metrics show none of this.
Never here: thresholds that depend on traffic. Invariant: no data means nothing happened, so no alarm (`notBreaching`).

Sources: CloudWatch user guide, "How alarms treat missing data", "Filter pattern syntax for metric filters"; SQS developer
guide, "Available CloudWatch metrics".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from onefold import limits
from onefold.contracts.settings import QueueSettings
from onefold.deploy import names
from onefold.duration import to_text

LOG_NAMESPACE: Final = "onefold"
_SQS: Final = "AWS/SQS"
_TEXT_CHARS_MAX: Final = 1_024  # CloudWatch API, PutMetricAlarm, AlarmDescription
_MINUTE_MS: Final = limits.MINUTE_MS
_OLDEST_MS_MIN: Final = 15 * limits.MINUTE_MS  # ours: a shorter wait is normal
_OLDEST_VISIBILITIES: Final = 3  # ours: received, failed, received again, and still there
_EVENTS: Final[Mapping[str, tuple[str, str]]] = {
    "completion-failed": (
        "RecordLost",
        "An effect happened and its record could not be written; its message comes back. The log names the key",
    ),
    "lease-lost": (
        "LeaseLost",
        "A run took longer than its lease; nothing of it was recorded. Compare the job's timeout with its runs",
    ),
}
_LOOKS: Final[Mapping[str, tuple[str, str]]] = {
    "reconcile-failed": (
        "ReconcileFailed",
        "A run is not as it should be: missing, twice, or not done in time. The log names it; see: onefold reconcile RUN",
    ),
}


class AlarmPlan(Struct, frozen=True, kw_only=True):
    """One alarm; it goes off when the value is at or over the threshold in one period.

    Args:
        id: logical id. name: unique in account and region.
        text: what it means and what to do first.
        namespace, metric, dimensions, statistic, period_ms: what is measured; values of dimensions are patterns.
        threshold: in the metric's unit.
        owner: of the fix, where there is one.
    """

    id: str
    name: str
    text: str
    namespace: str
    metric: str
    dimensions: Mapping[str, str]
    statistic: Literal["Maximum", "Sum"]
    period_ms: int
    threshold: int
    owner: str | None


class LogCount(Struct, frozen=True, kw_only=True):
    """A metric that counts lines of a log.

    Args:
        id: logical id. function: part of the logical ids of the function whose log it is.
        pattern: CloudWatch Logs' own language; here always a quoted phrase.
        namespace, metric: what it is called.
    """

    id: str
    function: str
    pattern: str
    namespace: str
    metric: str


def depth(queue: str, role: Literal["dead", "held"], *, part: str, target: str, owner: str | None) -> AlarmPlan:
    """There is something in a dead-letter or held queue.

    Args:
        queue: its full name. role: which of the two.
        part: of the logical id. target: the app, for the command that helps. owner: of the fix.
    """
    what, command = ("Dead letters", "dlq") if role == "dead" else ("Unknown outcomes", "held")
    return AlarmPlan(
        id=f"{part}NotEmptyAlarm",
        name=f"{queue}-not-empty",
        text=_with_owner(f"{what} wait in {queue}. Look at them: onefold {command} list {target}", owner),
        namespace=_SQS,
        metric="ApproximateNumberOfMessagesVisible",
        dimensions={"QueueName": queue},
        statistic="Maximum",
        period_ms=_MINUTE_MS,
        threshold=1,
        owner=owner,
    )


def oldest(settings: QueueSettings, *, part: str, target: str, owner: str | None) -> AlarmPlan:
    """The oldest message waits too long: over 15 min and 3 visibility timeouts, but before half the retention is gone.

    Args:
        settings: of the queue, by its full name. The rest as of `depth`.
    """
    limit_ms = min(max(_OLDEST_MS_MIN, _OLDEST_VISIBILITIES * settings.visibility_ms), settings.retention_ms // 2)
    text = f"The oldest message of {settings.name} waits for over {to_text(limit_ms)}. See: onefold status {target}"
    return AlarmPlan(
        id=f"{part}OldestAlarm",
        name=f"{settings.name}-oldest",
        text=_with_owner(text, owner),
        namespace=_SQS,
        metric="ApproximateAgeOfOldestMessage",
        dimensions={"QueueName": settings.name},
        statistic="Maximum",
        period_ms=5 * _MINUTE_MS,
        threshold=limit_ms // limits.SECOND_MS,
        owner=owner,
    )


def of_log(
    function: str, *, part: str, owner: str | None, looks: bool = False
) -> tuple[list[LogCount], list[AlarmPlan]]:
    """What is counted in a function's log, and the alarms on it.

    Args:
        function: its name. part: of the logical ids. owner: of the fix.
        looks: whether reconciliations run in it.
    """
    events = {**_EVENTS, **_LOOKS} if looks else _EVENTS
    namespace = f"{LOG_NAMESPACE}/{function}"
    counts = [
        LogCount(id=f"{part}{metric}Count", function=part, pattern=f'"{event}"', namespace=namespace, metric=metric)
        for event, (metric, _) in events.items()
    ]
    found = [
        AlarmPlan(
            id=f"{part}{metric}Alarm",
            name=f"{function}-{event}",
            text=_with_owner(text, owner),
            namespace=namespace,
            metric=metric,
            dimensions={},
            statistic="Sum",
            period_ms=_MINUTE_MS,
            threshold=1,
            owner=owner,
        )
        for event, (metric, text) in events.items()
    ]
    return counts, found


def notes(counts: Sequence[LogCount]) -> list[str]:
    """What is to be said of counts in logs to which the app's events do not come, a sentence each."""
    if not counts:
        return []
    patterns = ", ".join(sorted({one.pattern.strip('"') for one in counts}))
    said = f"The app names sinks, none of them a LogSink: alarms on {patterns} count lines of the functions' logs."
    return [f"{said} Add onefold.LogSink(), or let a sink of yours write these names there."]


def map_failed(machine: str, *, part: str, owner: str | None) -> AlarmPlan:
    """A map run ended as failed: its threshold was passed, or its file could not be read.

    Args:
        machine: name of the state machine. part: of the logical id. owner: of the fix.
    """
    text = f"A run of {machine} has failed. See it: aws stepfunctions list-executions --status-filter FAILED"
    return AlarmPlan(
        id=f"{part}FailedAlarm",
        name=f"{machine}-failed",
        text=_with_owner(text, owner),
        namespace="AWS/States",
        metric="ExecutionsFailed",
        dimensions={"StateMachineArn": names.machine_arn(machine)},
        statistic="Sum",
        period_ms=_MINUTE_MS,
        threshold=1,
        owner=owner,
    )


def _with_owner(text: str, owner: str | None) -> str:
    return f"{text} (owner: {owner})"[:_TEXT_CHARS_MAX] if owner else text
