"""The dashboard that `synth` writes for CloudWatch: one question first, then a row for each layer.

    1  does anything wait without being processed? Queues with visible messages and no deletion for 30 minutes
    2  the alarms
    3  what was triggered: EventBridge Scheduler's own numbers for the schedule group
    4  what is in progress: depth, oldest age, in flight, dead and held; errors, throttles and durations of functions
    5  what happened: onefold's own metrics, if an `EmfSink` writes them (`observe/emf.py`)

It is data: a JSON text with the placeholders of `names.py`. Never here: which alarms there are, how a template writes
it.
Invariant: it uses no metric for which AWS has no dimension; onefold's own metrics are named as in its table of metrics.

Source: CloudWatch API reference, "Dashboard body structure and syntax": 24 columns, 500 widgets, 500 metrics in a graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from onefold.deploy.plan import DeployPlan, QueuePlan
from onefold.observe.emf import emf_name
from onefold.observe.metrics import METRICS

Json = dict[str, Any]

ID: Final = "Dashboard"
QUEUES_MAX: Final = 100  # in one graph: three metrics each, of at most 500
ALARMS_MAX: Final = 100  # in one alarm widget
_WIDTH: Final = 24
_UNWORKED_S: Final = 1_800
"""For how long nothing was deleted; as in the alarm `stalled`."""
_OWN: Final = (
    ("Messages by outcome", "onefold.messages.settled", ("completed", "duplicate", "failed", "dead", "held"), "Sum"),
    ("Answered from the record", "onefold.duplicates.answered", ("",), "Sum"),
    ("Runs: expected, completed, missing, more than once", "onefold.run.items",
     ("expected", "completed", "missing", "duplicate"), "Maximum"),
    ("Wait until the first start (p95)", "onefold.queue.wait", ("",), "p95"),
    ("Takeovers and lost leases", "onefold.takeovers", ("",), "Sum"),
    ("Since the last good reconciliation", "onefold.reconcile.age", ("",), "Maximum"),
)  # fmt: skip
"""Graphs of onefold's own metrics: title, metric of the table, states or outcomes, statistic."""


def body(plan: DeployPlan) -> str:
    """The dashboard's body, a pattern (see `names.py`)."""
    placed: list[Json] = []
    y = 0
    for row in _rows(plan):
        x, height = 0, max(int(one["height"]) for one in row)
        for widget in row:
            if x + widget["width"] > _WIDTH:
                x, y = 0, y + height
            placed.append({"x": x, "y": y, **widget})
            x += widget["width"]
        y += height
    return msgspec.json.encode({"widgets": placed}).decode()


def _rows(plan: DeployPlan) -> Iterator[list[Json]]:
    working = [one for one in plan.queues if one.role == "main"]
    for some in _cut(working):
        yield [_unworked(some)]
    if plan.alarms:
        arns = [f"arn:{{partition}}:cloudwatch:{{region}}:{{account}}:alarm:{one.name}" for one in plan.alarms]
        yield [_widget("alarm", 24, 4, {"title": "Alarms", "alarms": arns[:ALARMS_MAX]})]
    if plan.scheduling is not None:
        yield [_title("What was triggered")]
        group = plan.scheduling.group
        names = ("InvocationAttemptCount", "TargetErrorCount", "InvocationDroppedCount")
        yield [_graph("Ticks", [["AWS/Scheduler", name, "ScheduleGroup", group] for name in names], "Sum", width=24)]
    yield [_title("What is travelling")]
    for some in _cut(working):
        yield [
            _graph("Visible", _of_queues("ApproximateNumberOfMessagesVisible", some), "Maximum"),
            _graph("Age of the oldest, seconds", _of_queues("ApproximateAgeOfOldestMessage", some), "Maximum"),
            _graph("In flight", _of_queues("ApproximateNumberOfMessagesNotVisible", some), "Maximum"),
        ]
    kept = [one for one in plan.queues if one.role != "main"]
    for some in _cut(kept):
        yield [
            _graph("Dead letters and held", _of_queues("ApproximateNumberOfMessagesVisible", some), "Maximum", width=24)
        ]
    for functions in _cut([one.settings.name for one in plan.functions]):
        yield [
            _graph(name, [["AWS/Lambda", name, "FunctionName", function] for function in functions], statistic)
            for name, statistic in (("Errors", "Sum"), ("Throttles", "Sum"), ("Duration", "p99"))
        ]
    yield [_title("What really happened (with EmfSink)")]
    yield [_own(plan.app, *one) for one in _OWN]


def _unworked(queues: Sequence[QueuePlan]) -> Json:
    metrics: list[Any] = []
    for number, queue in enumerate(queues):
        name = queue.settings.name
        waits = f"IF(FILL(deleted{number},0)==0 AND FILL(visible{number},0)>0,visible{number},0)"
        metrics += [
            [{"expression": waits, "label": name, "id": f"unworked{number}"}],
            ["AWS/SQS", "ApproximateNumberOfMessagesVisible", "QueueName", name,
             {"id": f"visible{number}", "visible": False, "stat": "Maximum"}],
            ["AWS/SQS", "NumberOfMessagesDeleted", "QueueName", name,
             {"id": f"deleted{number}", "visible": False, "stat": "Sum"}],
        ]  # fmt: skip
    said = {
        "title": "Is anything waiting that nobody works on?",
        "view": "singleValue",
        "metrics": metrics,
        "period": _UNWORKED_S,
        "region": "{region}",
    }
    return _widget("metric", 24, 4, said)


def _of_queues(metric: str, queues: Sequence[QueuePlan]) -> list[list[str]]:
    return [["AWS/SQS", metric, "QueueName", one.settings.name] for one in queues]


def _own(app: str, title: str, name: str, states: Sequence[str], statistic: str) -> Json:
    """A graph of one of onefold's own metrics, over all jobs that have it."""
    metric = METRICS[name]
    metrics = []
    for state in states:
        asked = emf_name(metric, (("state", state),))
        search = f"SEARCH('{{onefold/{app},job}} MetricName=\"{asked}\"', '{statistic}', 300)"
        metrics.append([{"expression": search, "label": f"{asked} ${{PROP('Dim.job')}}"}])
    return _graph(title, metrics, statistic)


def _graph(title: str, metrics: Sequence[Any], statistic: str, *, width: int = 8) -> Json:
    said = {
        "title": title,
        "view": "timeSeries",
        "metrics": metrics,
        "stat": statistic,
        "period": 300,
        "region": "{region}",
    }
    return _widget("metric", width, 6, said)


def _title(text: str) -> Json:
    return _widget("text", 24, 1, {"markdown": f"## {text}"})


def _widget(kind: str, width: int, height: int, properties: Json) -> Json:
    return {"type": kind, "width": width, "height": height, "properties": properties}


def _cut(some: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return iter([some[at : at + QUEUES_MAX] for at in range(0, len(some), QUEUES_MAX)])
