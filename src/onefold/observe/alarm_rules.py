"""The alarms as alerting rules for Prometheus, with thresholds from an app's declarations.

Each rule is over the metrics of `metrics.py`, as exposed by workers (`onefold worker --metrics`). Every worker that has a
queue exposes its gauges, so the rules use the largest value; counters are summed over all workers. A new counter counts
like one that has grown: a process's first `completion-failed` is where its counter begins. A metric that is no longer
exposed (no worker, no scheduler) is an alarm too, once the server has scraped for that long. Never here: what an alarm
means (`alarms.py`), querying a server. Invariant: the same declarations give the same text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from onefold import duration, limits
from onefold.observe import alarms
from onefold.observe.alarm_samples import (
    AppNumbers,
    drain_limit_ms,
    expiring_lead_ms,
    longest_gap_ms,
    numbers_of,
    oldest_limit_ms,
    stalled_after_ms,
)
from onefold.observe.alarms import ALARMS

if TYPE_CHECKING:
    from onefold.contracts.settings import QueueSettings
    from onefold.registry import Registry
    from onefold.schedules.schedule import Schedule

_RANGE_MS_MAX: Final = 40 * limits.DAY_MS  # our limit; many servers keep 15 days
_QUARTER: Final = duration.to_text(alarms.EVENT_MS)


class Rule(Struct, frozen=True, kw_only=True):
    """One alerting rule.

    Args:
        alarm: its name. subject: its queue or schedule; if empty, the expression's labels name it.
        expression: PromQL. for_ms: how long it must hold.
    """

    alarm: str
    subject: str = ""
    expression: str
    for_ms: int = 0


def rules(registry: Registry, now_ms: int) -> Iterator[Rule]:
    """The rules of an app.

    Args:
        now_ms: the instant from which gaps between ticks are computed.
    """
    numbers = numbers_of(registry)
    yield from _counted("completion-failed", "onefold_completion_failed_total", "job, queue", 1)
    yield from _counted("lease-lost", "onefold_lease_lost_total", "job, queue", 1)
    yield Rule(
        alarm="lease-lost-often",
        expression=f"sum by (job, queue) (increase(onefold_lease_lost_total[1h])) > {alarms.LEASES_LOST_MAX}",
    )
    yield from _counted("tick-dropped", 'onefold_schedule_ticks_total{outcome="dropped"}', "job", 1)
    yield from _counted("tick-refused", 'onefold_schedule_ticks_total{outcome="refused"}', "job", alarms.REFUSED_MIN)
    for alarm, state in (("dlq-not-empty", "dead"), ("held-not-empty", "held")):
        yield Rule(alarm=alarm, expression=f'max by (queue) (onefold_queue_messages{{state="{state}"}}) >= 1')
    yield Rule(
        alarm="in-flight-cap",
        expression=f"max by (queue) (onefold_queue_in_flight_ratio) >= {alarms.IN_FLIGHT_RATIO}",
        for_ms=ALARMS["in-flight-cap"].for_ms,
    )
    yield Rule(
        alarm="receives",
        expression="histogram_quantile(0.99, sum by (queue, le) (rate(onefold_message_receives_bucket[15m])))"
        f" >= {alarms.RECEIVES}",
        for_ms=ALARMS["receives"].for_ms,
    )
    yield Rule(
        alarm="engine-unreachable",
        expression=f"max by (instance) (onefold_engine_failing_age_seconds) >= {alarms.UNREACHABLE_MS // limits.SECOND_MS}",
    )
    yield Rule(
        alarm="breaker-open",
        expression="max by (job) (onefold_breaker_open) >= 1",
        for_ms=ALARMS["breaker-open"].for_ms,
    )
    for alarm, state in (("missing", "missing"), ("duplicate-effects", "duplicate")):
        yield Rule(alarm=alarm, expression=f'max by (job) (onefold_run_items{{state="{state}"}}) >= 1')
    for alarm, state in (("map-failed", "stopped"), ("reconcile-failed", "disagrees")):
        yield Rule(
            alarm=alarm,
            expression=f'max by (job) (onefold_runs{{state="{state}"}}) >= 1',
            for_ms=ALARMS[alarm].for_ms,
        )
    for queue in registry.queues.values():
        yield from _of_queue(queue.settings, numbers)
        yield from _of_companions(queue.name, queue.dead_letter.retention_ms)
    for schedule in registry.schedules.values():
        yield from _of_schedule(schedule, numbers, now_ms)


def _counted(alarm: str, metric: str, by: str, least: int) -> Iterator[Rule]:
    """At least `least` within 15 minutes; if one is enough, also a process's first one, at which its counter begins."""
    expression = f"sum by ({by}) (increase({metric}[{_QUARTER}])) >= {least}"
    if least == 1:
        grown = f"sum by ({by}) (increase({metric}[{_QUARTER}])) > 0"
        expression = f"{grown} or sum by ({by}) ({metric} unless {metric} offset {_QUARTER}) > 0"
    yield Rule(alarm=alarm, expression=expression)


def _of_queue(settings: QueueSettings, numbers: AppNumbers) -> Iterator[Rule]:
    name = settings.name
    own = numbers.queues.get(name)
    here = f'queue="{name}"'
    visible = f'max(onefold_queue_messages{{{here},state="visible"}})'
    oldest = f"max(onefold_queue_oldest_age_seconds{{{here}}})"
    done = f'onefold_messages_settled_total{{{here},outcome=~"completed|duplicate"}}'
    yield Rule(
        alarm="oldest",
        subject=name,
        expression=f"{oldest} >= {oldest_limit_ms(settings) // limits.SECOND_MS}",
        for_ms=ALARMS["oldest"].for_ms,
    )
    after_ms = stalled_after_ms(own.timeout_ms if own is not None else 0)
    after = duration.to_text(after_ms)
    yield Rule(
        alarm="stalled",
        subject=name,
        expression=f"({visible} > 0 and {oldest} >= {after_ms // limits.SECOND_MS} "
        f"unless (sum(increase({done}[{after}])) > 0 or sum({done} unless {done} offset {after}) > 0)) "
        f"or (sum(absent_over_time(onefold_queue_messages{{{here}}}[{after}])) and on () {_checked(after)})",
    )
    yield Rule(
        alarm="drain",
        subject=name,
        expression=f"{visible} / (sum(rate({done}[30m])) > 0) >= {drain_limit_ms(settings) // limits.SECOND_MS}",
        for_ms=ALARMS["drain"].for_ms,
    )


def _of_companions(name: str, dead_retention_ms: int) -> Iterator[Rule]:
    """The age of the oldest message in a queue's dead-letter and held queues."""
    dead_ms = dead_retention_ms - expiring_lead_ms(dead_retention_ms)
    for alarm, state, limit_ms in (("dlq-expiring", "dead", dead_ms), ("held-old", "held", limits.DAY_MS)):
        oldest = f'max(onefold_queue_companion_age_seconds{{queue="{name}",state="{state}"}})'
        yield Rule(alarm=alarm, subject=name, expression=f"{oldest} >= {limit_ms // limits.SECOND_MS}")


def _checked(since: str) -> str:
    """Whether the server has scraped anything this long ago."""
    return f"count(up offset {since}) > 0"


def _of_schedule(schedule: Schedule, numbers: AppNumbers, now_ms: int) -> Iterator[Rule]:
    """No tick for longer than the longest gap between two ticks of the next year."""
    gap_ms = longest_gap_ms(schedule.timing, now_ms)
    if gap_ms is None or gap_ms + alarms.TICK_LATE_MS > _RANGE_MS_MAX:
        return
    range_ms = gap_ms + alarms.TICK_LATE_MS
    sent = f'onefold_schedule_ticks_total{{job="{schedule.name}",outcome="sent"}}'
    wide = duration.to_text(range_ms - range_ms % limits.MINUTE_MS)
    yield from _of_checks(schedule.name, gap_ms, numbers)
    yield Rule(
        alarm="no-tick",
        subject=schedule.name,
        expression=f"((sum(increase({sent}[{wide}])) or vector(0)) == 0 and on () {_checked(wide)}) "
        f"unless sum({sent} unless {sent} offset {wide}) > 0",
    )


def _of_checks(schedule: str, gap_ms: int, numbers: AppNumbers) -> Iterator[Rule]:
    """No good reconciliation since the run before the last one that was due to be reconciled."""
    after_ms = numbers.reconcile_after_ms.get(schedule)
    if after_ms is None:
        return
    late_s = (gap_ms + 2 * after_ms) // limits.SECOND_MS
    yield Rule(
        alarm="reconcile-late",
        subject=schedule,
        expression=f'max(onefold_reconcile_age_seconds{{job="{schedule}"}}) > {late_s}',
    )


def prometheus(registry: Registry, *, target: str, now_ms: int) -> str:
    """A file of alerting rules.

    Args:
        target: the app's name in commands, `module:attribute`.
        now_ms: as for `rules`.
    """
    owner = registry.alarms.owner if registry.alarms is not None else None
    lines = ["groups:", f"- name: {_text('onefold ' + registry.name)}", "  rules:"]
    for one in rules(registry, now_ms):
        alarm = ALARMS[one.alarm]
        label = {"queue": "queue", "worker": "instance"}.get(alarm.of, "job")
        subject = one.subject or f"{{{{ $labels.{label} }}}}"
        labels = {"severity": alarm.severity, "alarm": alarm.name, "app": registry.name}
        if one.subject:
            labels[label] = one.subject
        labels |= {"owner": owner} if owner else {}
        notes = {
            "summary": f"{alarm.name} of {subject}",
            "description": f"{alarm.meaning} First: {alarm.command(target, subject)}. {alarm.steps}",
            "runbook": alarm.runbook,
        }
        lines += [f"  - alert: {_text('Onefold' + _camel(alarm.name))}", f"    expr: {_plain(one.expression)}"]
        lines += [f"    for: {duration.to_text(one.for_ms)}"] if one.for_ms else []
        lines += ["    labels:", *(f"      {name}: {_text(value)}" for name, value in labels.items())]
        lines += ["    annotations:", *(f"      {name}: {_text(value)}" for name, value in notes.items())]
    return "\n".join([*lines, ""])


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("-"))


def _plain(value: str) -> str:
    """A YAML text in single quotes, because PromQL uses double quotes."""
    return "'" + value.replace("'", "''") + "'"


def _text(value: str) -> str:
    """A YAML text in JSON's form, which YAML accepts."""
    return json.dumps(value, ensure_ascii=False)
