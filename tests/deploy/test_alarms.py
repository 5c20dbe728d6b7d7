"""The most important alarms: what they watch, from where on they go off, and that the log says what they count in it."""

from __future__ import annotations

import pytest

import onefold
from onefold.contracts.store import RecordKey
from onefold.deploy.alarms import FEW, AlarmPlan
from onefold.deploy.plan import AppDeclarations, plan
from onefold.deploy.stack import Stack
from onefold.observe.log_fields import fields_of, json_line, plain_line
from onefold.options import Function
from onefold.runtime.events import EVENTS, Event
from tests.deploy.cloudwatch import counts
from tests.deploy.declared import declared, demo, planned


def alarms() -> dict[str, AlarmPlan]:
    return {alarm.name: alarm for alarm in planned(demo).alarms}


def test_the_demos_few_alarms() -> None:
    found = {
        one.name: (one.measures[0].namespace, one.measures[0].metric, dict(one.measures[0].dimensions), one.threshold)
        for one in alarms().values()
        if one.alarm in FEW
    }
    depth, age = "ApproximateNumberOfMessagesVisible", "ApproximateAgeOfOldestMessage"
    assert found == {
        "demo-invoices-dead-not-empty": ("AWS/SQS", depth, {"QueueName": "demo-invoices-dead"}, 1),
        "demo-invoices-held-not-empty": ("AWS/SQS", depth, {"QueueName": "demo-invoices-held"}, 1),
        "demo-invoices-oldest": ("AWS/SQS", age, {"QueueName": "demo-invoices"}, 1.5 * 6 * 130),
        "demo-shop-invoices-failing": ("AWS/Lambda", "Errors", {"FunctionName": "demo-shop-invoices"}, 0.5),
        "demo-shop-invoices-throttles": ("AWS/Lambda", "Throttles", {"FunctionName": "demo-shop-invoices"}, 1),
        "demo-shop-invoices-completion-failed": ("onefold/demo-shop-invoices", "RecordLost", {}, 1),
        "demo-shop-invoices-lease-lost": ("onefold/demo-shop-invoices", "LeaseLost", {}, 1),
    }


def test_an_alarm_says_what_to_do_and_whose_it_is() -> None:
    for alarm in alarms().values():
        assert alarm.owner == ("fulfilment" if alarm.alarm != "table-throttled" else None)
        assert ("Owner: fulfilment." in alarm.text) == (alarm.owner is not None)
        assert len(alarm.text) <= 1_024  # CloudWatch API, PutMetricAlarm, AlarmDescription
        assert len(alarm.name) <= 255  # same, AlarmName
    assert "onefold dlq list tests.deploy.declared:demo" in alarms()["demo-invoices-dead-not-empty"].text


@pytest.mark.parametrize(
    ("function", "retention", "threshold_s"),
    [
        (Function(timeout="20s"), "4d", 15 * 60),  # short waits are no news
        (Function(timeout="15m"), "4d", 1.5 * 6 * 900),
        (Function(timeout="15m"), "1h", 1_800),  # while half of the retention is left
    ],
)
def test_from_when_on_the_oldest_message_is_too_old(function: Function, retention: str, threshold_s: int) -> None:
    plan = planned(declared(function, retention=retention))
    (oldest,) = [alarm for alarm in plan.alarms if alarm.alarm == "oldest"]
    assert oldest.threshold == threshold_s


def test_where_reconciliations_run_a_failed_one_alarms() -> None:
    app = onefold.App("shop")
    app.reconcile("billing", owner="finance")
    declares = AppDeclarations(queues=app.queues.values(), jobs=app.jobs.values(), reconcilers=app.reconcilers.keys())
    found = {alarm.name: alarm for alarm in plan("shop", "shop:app", declares, Stack()).alarms}
    alarm = found["shop-onefold-reconcile-reconcile-failed"]
    (measure,) = alarm.measures
    assert (measure.metric, measure.statistic, alarm.threshold, alarm.owner) == ("ReconcileFailed", "Sum", 1, "finance")
    (count,) = [one for one in plan("shop", "shop:app", declares, Stack()).log_counts if one.metric == measure.metric]
    event = Event(at_ms=0, name="reconcile-failed", run="billing/2026-06-01T02:00:00Z")
    assert all(count.pattern.strip('"') in line for line in (json_line(fields_of(event)), plain_line(fields_of(event))))
    assert not any("reconcile" in name for name in alarms())


def test_and_only_there_a_function_may_look_into_dead_letters() -> None:
    app = onefold.App("shop")
    app.job(app.queue("bills"), key="{id}", name="charge")(lambda bill: None)
    app.reconcile("billing")
    declares = AppDeclarations(queues=app.queues.values(), jobs=app.jobs.values(), reconcilers=app.reconcilers.keys())
    functions = {one.jobs: one for one in plan("shop", "shop:app", declares, Stack(prefix="p-")).functions}
    may = {one.sid: one.resources for one in functions["reconcile-billing",].statements}
    assert [arn.rpartition(":")[2] for arn in may["LookIntoDeadLetters"]] == [
        "p-bills-dead", "p-bills-held", "p-onefold-reconcile-dead", "p-onefold-reconcile-held",
    ]  # fmt: skip
    assert may["FindQueues"] == ("*",)  # sqs:ListQueues knows no ARN of a queue
    assert [arn.rpartition(":")[2] for arn in may["LookAtQueues"]] == ["*"]
    assert not {"LookIntoDeadLetters", "FindQueues"} & {one.sid for one in functions["charge",].statements}
    (note,) = plan("shop", "shop:app", declares, Stack(prefix="p-")).notes
    assert "queue that begins with p-, and fail at another app's." in note
    assert note.endswith(": --prefix p-shop-")
    assert plan("shop", "shop:app", declares, Stack(prefix="p-shop-")).notes == ()


def test_lines_of_the_log_hold_the_phrases_that_are_counted_and_others_do_not() -> None:
    patterns = {count.metric: count.pattern for count in planned(demo).log_counts}
    events = {"RecordLost": "completion-failed", "LeaseLost": "lease-lost", "Paused": "paused", "TimedOut": None}
    assert patterns.keys() == events.keys()
    for name in EVENTS:
        event = Event(at_ms=0, name=name, key=RecordKey(scope="", job="fulfil", key="4711"), queue="invoices")
        for line in (json_line(fields_of(event)), plain_line(fields_of(event))):
            found = {metric for metric, pattern in patterns.items() if counts(pattern, line)}
            assert found == {metric for metric, event in events.items() if event == name}
