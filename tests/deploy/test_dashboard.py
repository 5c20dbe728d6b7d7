"""The dashboard of a stack: AWS's widgets in bounds, the first question first, and only metrics that are there."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

import onefold
from onefold.deploy import cloudformation, dashboard, terraform
from onefold.observe.emf import emf_name
from onefold.observe.metrics import METRICS
from tests.deploy.declared import demo, planned

OF_AWS = {
    "AWS/SQS": {
        "ApproximateNumberOfMessagesVisible", "ApproximateNumberOfMessagesNotVisible", "ApproximateAgeOfOldestMessage",
        "NumberOfMessagesDeleted",
    },
    "AWS/Lambda": {"Errors", "Throttles", "Duration"},
    "AWS/Scheduler": {"InvocationAttemptCount", "TargetErrorCount", "InvocationDroppedCount"},
}  # fmt: skip


def widgets(app: onefold.App = demo) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(dashboard.body(planned(app)))["widgets"]
    return found


def many(count: int) -> onefold.App:
    app = onefold.App("many")
    for number in range(count):
        app.job(app.queue(f"queue-{number}"), key="{id}", name=f"job-{number}")(lambda payload: None)
    return app


def test_the_first_panel_asks_whether_anything_waits_that_nobody_works_on() -> None:
    first = min(widgets(), key=lambda one: (one["y"], one["x"]))
    assert first["properties"]["title"] == "Is anything waiting that nobody works on?"
    names = [one.settings.name for one in planned(demo).queues if one.role == "main"]
    asked = [metric[0] for metric in first["properties"]["metrics"] if len(metric) == 1]
    assert [one["label"] for one in asked] == names
    given = {metric[-1]["id"] for metric in first["properties"]["metrics"] if len(metric) > 1}
    used = {name for one in asked for name in re.findall(r"(?:visible|deleted)\d+", one["expression"])}
    assert used == given


@pytest.mark.parametrize("app", [demo, many(1), many(120)], ids=["demo", "one", "many"])
def test_widgets_are_within_cloudwatchs_bounds(app: onefold.App) -> None:
    found = widgets(app)
    assert len(found) <= 500
    for one in found:
        assert one["type"] in ("metric", "text", "alarm")
        assert 0 <= one["x"] < one["x"] + one["width"] <= 24
        if one["type"] == "metric":
            assert 1 <= len(one["properties"]["metrics"]) <= 500
            assert one["properties"]["region"] == "{region}"
        if one["type"] == "alarm":
            assert 1 <= len(one["properties"]["alarms"]) <= 100
    for a, b in itertools.combinations(found, 2):
        beside = a["x"] + a["width"] <= b["x"] or b["x"] + b["width"] <= a["x"]
        assert beside or a["y"] + a["height"] <= b["y"] or b["y"] + b["height"] <= a["y"], (a, b)


def test_only_metrics_that_are_there_are_asked_for() -> None:
    known = {
        emf_name(metric, (("state", state),))
        for metric in METRICS.values()
        for state in ("", "expected", "completed", "missing", "duplicate", "failed", "dead", "held")
    }
    searched = 0
    for one in widgets():
        for metric in one["properties"].get("metrics", ()):
            if len(metric) > 1:
                assert metric[1] in OF_AWS[metric[0]], metric
            elif "SEARCH" in metric[0]["expression"]:
                found = re.fullmatch(
                    r"SEARCH\('\{onefold/[a-z0-9_-]+,job\} MetricName=\"([A-Za-z]+)\"', '(Sum|Maximum|p95)', 300\)",
                    metric[0]["expression"],
                )
                assert found is not None, metric
                assert found[1] in known, found[1]
                searched += 1
    assert searched >= 10


def test_both_writers_say_the_same() -> None:
    plan = planned(demo)
    in_stack = cloudformation.template(plan)["Resources"]["Dashboard"]
    assert in_stack["Type"] == "AWS::CloudWatch::Dashboard"
    made = terraform.module(plan)["resource"]["aws_cloudwatch_dashboard"]["dashboard"]
    assert made["dashboard_name"] == in_stack["Properties"]["DashboardName"] == plan.name
    template = in_stack["Properties"]["DashboardBody"]["Fn::Sub"]
    filled = re.sub(r"\$\{AWS::(\w+)\}", lambda found: f"({found[1]})", template).replace("${!", "${")
    said = re.sub(
        r"(?<!\$)\$\{data\.aws_(\w+)\.current\.\w+\}",
        lambda found: {"partition": "(Partition)", "region": "(Region)", "caller_identity": "(AccountId)"}[found[1]],
        made["dashboard_body"],
    ).replace("$${", "${")
    assert json.loads(filled) == json.loads(said)
    assert "${PROP('Dim.job')}" in said
