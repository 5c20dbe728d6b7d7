"""Every alarm of the list for CloudWatch: written with the numbers of the app, going off when it should, and ending."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

import onefold
from onefold import limits
from onefold.cli.stack_options import declared_in
from onefold.contracts.store import RecordKey
from onefold.deploy import cloudformation, terraform
from onefold.deploy.alarms import AlarmPlan
from onefold.deploy.plan import DeployPlan, plan
from onefold.deploy.stack import Stack
from onefold.observe import alarm_samples, alarms
from onefold.observe.alarms import ALARMS
from onefold.observe.log_fields import fields_of, json_line, plain_line
from onefold.options import Function
from onefold.reconcile.findings import ReconcileOutcome
from onefold.runtime.events import Event
from onefold.runtime.outgoing import Outgoing
from tests.deploy import timed
from tests.deploy.cloudwatch import Series, counts, states


def make_app() -> onefold.App:
    """An app of which every alarm can be written: the first queue has groups, the second is FIFO."""
    app = onefold.App("shop", sinks=[onefold.LogSink(), onefold.observe.EmfSink()])
    orders = app.queue("orders", retention="2h", function=Function(timeout="1m", concurrency=10))
    parcels = app.queue("parcels.fifo", fifo=True)

    with pytest.warns(UserWarning, match="has a group on orders"):

        @app.job(orders, key="{id}", group="{customer}", timeout="10s", owner="billing")
        def book(payload: dict[str, str]) -> None:
            """Nothing."""

    @app.job(parcels, key="{id}", group="{id}")
    def pack(payload: dict[str, str]) -> None:
        """Nothing."""

    @app.schedule("rate(1 hour)")
    def hourly(tick: onefold.Tick) -> Iterator[Outgoing]:
        yield book.message({"id": tick.run, "customer": "a"})

    app.bus("shop").rule("placed", {"source": ["shop"]}, to=orders)
    app.reconcile(hourly, after="30m")
    return app


def planned(stack: Stack | None = None) -> DeployPlan:
    app = make_app()
    return plan(
        "shop", "shop:app", replace(declared_in(app), maps=[replace(timed.spec, queue="orders")]), stack or Stack()
    )


@pytest.fixture(scope="module")
def whole() -> DeployPlan:
    return planned()


@pytest.fixture(scope="module")
def properties(whole: DeployPlan) -> dict[str, dict[str, Any]]:
    """Of each alarm of the list, one that is written for the queue `orders`, for its function, or the app."""
    resources = cloudformation.template(whole)["Resources"]
    found: dict[str, dict[str, Any]] = {}
    for one in whole.alarms:
        if one.alarm not in found or "orders" in one.name:
            found[one.alarm] = resources[one.id]["Properties"]
    return found


def test_what_the_list_says_of_cloudwatch_is_what_is_written(whole: DeployPlan) -> None:
    assert {one.alarm for one in whole.alarms} == {one.name for one in alarms.on("cloudwatch")}
    for one in ALARMS.values():
        assert ("cloudwatch" in one.sides) != one.aws.startswith("not there: "), one.name


def test_the_list_names_the_metrics_that_are_measured(whole: DeployPlan) -> None:
    for one in whole.alarms:
        for measure in one.measures:
            if not measure.namespace.startswith("onefold/") and measure.id != "used":
                assert f"`{measure.metric}`" in ALARMS[one.alarm].aws, (one.name, measure.metric)


def test_the_numbers_are_those_that_onefold_itself_evaluates(
    whole: DeployPlan, properties: dict[str, dict[str, Any]]
) -> None:
    (settings,) = [one.settings for one in whole.queues if one.settings.name == "orders"]
    assert properties["oldest"]["Threshold"] == alarm_samples.oldest_limit_ms(settings) // 1000
    assert properties["oldest"]["EvaluationPeriods"] * 60_000 == ALARMS["oldest"].for_ms
    assert properties["drain"]["Threshold"] == alarm_samples.drain_limit_ms(settings) // 1000
    assert properties["in-flight-cap"]["Threshold"] == 96_000
    assert properties["in-flight-cap"]["EvaluationPeriods"] * 60_000 == ALARMS["in-flight-cap"].for_ms
    assert properties["stalled"]["EvaluationPeriods"] * 300_000 == alarms.STALLED_MS
    assert properties["lease-lost-often"]["Threshold"] == alarms.LEASES_LOST_MAX + 1
    assert properties["tick-refused"]["Threshold"] == alarms.REFUSED_MIN
    assert properties["duration"]["Threshold"] == 48_000
    assert properties["concurrency"]["Threshold"] == 8
    # 14 days; 2 before it is deleted; the source keeps a message for 2 hours before it is moved
    assert properties["dlq-expiring"]["Threshold"] == (12 * limits.DAY_MS - 2 * limits.HOUR_MS) // 1000


# Of each alarm: the metrics of each minute, the minutes after which it is on, and after which it is not.
QUIET: list[Any] = [None] * 5
TICK: list[Any] = [1] + [None] * 59
CASES: list[tuple[str, dict[str, list[Any]], list[int], list[int]]] = [
    ("dlq-not-empty", {"ApproximateNumberOfMessagesVisible": [0] * 5 + [2] * 5 + [0] * 9}, [6, 10], [5, 11]),
    ("dlq-expiring", {"ApproximateAgeOfOldestMessage": [1_029_000] * 5 + [1_030_000] * 5 + [0] * 30}, [6, 10], [5, 20]),
    ("held-not-empty", {"ApproximateNumberOfMessagesVisible": [0] * 5 + [1] * 5 + [0] * 9}, [6, 10], [5, 11]),
    ("held-old", {"ApproximateAgeOfOldestMessage": [86_000] * 5 + [86_400] * 5 + [0] * 30}, [6, 10], [5, 20]),
    ("oldest", {"ApproximateAgeOfOldestMessage": [1_200] * 9 + [0] + [1_200] * 20 + [0] * 9}, [20, 30], [9, 19, 31]),
    ("stalled", {"ApproximateNumberOfMessagesVisible": [9] * 120, "NumberOfMessagesDeleted": [1] * 5 + [0] * 60 + [3] * 20},
     [35, 65], [5, 34, 66]),
    ("drain", {"ApproximateNumberOfMessagesVisible": [900] * 90, "NumberOfMessagesDeleted": [1] * 60 + [300] * 30},
     [30, 60], [5, 70]),
    ("in-flight-cap", {"ApproximateNumberOfMessagesNotVisible": [95_999] * 5 + [96_000] * 10 + [9] * 9}, [10, 15], [9, 16]),
    ("group-backlog", {"ApproximateAgeOfOldestMessage": [900] * 60,
                       "ApproximateNumberOfGroupsWithInflightMessages": [3] * 20 + [1] * 20 + [3] * 20}, [25, 40], [20, 50]),
    ("noisy-tenant", {"ApproximateNumberOfNoisyGroups": [0] * 5 + [1] * 20 + [0] * 9}, [20, 25], [5, 19, 26]),
    ("receives", {"ReceiveCount": [1.0] * 15 + [3.0] * 30 + [1.0] * 15}, [30, 45], [25, 50]),
    ("receives", {"ReceiveCount": [1.0] * 15 + [3.0] * 10 + [1.0] * 20}, [], [25, 30]),
    ("errors", {"Errors": [0] * 5 + [1] * 5 + [0] * 9, "Invocations": [100] * 30}, [7, 11], [6, 13]),
    ("errors", {"Errors": [0] * 5 + [1] * 5 + [0] * 9, "Invocations": [101] * 30}, [], [5, 7, 13]),
    ("failing", {"Errors": [0] * 5 + [1] * 5 + [0] * 9}, [8, 12], [7, 13]),
    ("failing", {"Errors": [None] * 20 + [1] + [None] * 20}, [21, 25], [20, 26]),  # one try in each visibility timeout
    ("throttles", {"Throttles": [0] * 5 + [1] * 5 + [0] * 9}, [7, 11], [6, 13]),
    ("duration", {"Duration": [1_000.0] * 15 + [48_000.0] * 20 + [1_000.0] * 30}, [30, 35], [20, 50]),
    ("concurrency", {"ConcurrentExecutions": [7] * 5 + [8] * 15 + [7] * 9}, [15, 20], [14, 21]),
    ("mapping-dropped", {"PolledEventCount": [10] * 70, "InvokedEventCount": [10] * 10 + [9] * 20 + [10] * 40}, [25, 30],
     [10, 60]),
    ("tick-dropped", {"InvocationDroppedCount": [*QUIET, 1, None, None]}, [6], [5, 7]),
    ("tick-refused", {"TargetErrorCount": [*QUIET, 1, 1, None, 1] + [None] * 30}, [9, 20], [8, 30]),
    ("tick-refused", {"TargetErrorThrottledCount": [*QUIET, 2, 1] + [None] * 30}, [7, 20], [6, 30]),
    ("tick-dlq", {"InvocationsSentToDeadLetterCount": [*QUIET, 1, None, None]}, [6], [5, 7]),
    ("tick-dlq", {"InvocationsFailedToBeSentToDeadLetterCount": [*QUIET, 1, None, None]}, [6], [5, 7]),
    ("no-tick", {"InvocationAttemptCount": TICK * 3 + [None] * 60 + TICK}, [200, 240], [120, 195, 241]),
    ("map-failed", {"ExecutionsFailed": [*QUIET, 1, None, None]}, [6], [5, 7]),
    ("map-throttled", {"ExecutionThrottled": [*QUIET, 3, 3, 3, None, None, None]}, [7, 9], [6, 10]),
    ("rule-failed", {"FailedInvocations": [*QUIET, 1, None, None]}, [6], [5, 7]),
    ("rule-failed", {"InvocationsFailedToBeSentToDlq": [*QUIET, 1, None, None]}, [6], [5, 7]),
    ("rule-failed", {"ThrottledRules": [*QUIET, 1, None, None]}, [6], [5, 7]),
    ("table-throttled", {"WriteThrottleEvents": [*QUIET, 4, 4, 4] + [None] * 9, "ConsumedWriteCapacityUnits": [9] * 30},
     [8, 10], [7, 11]),
    ("table-throttled", {"ReadThrottleEvents": [*QUIET, 4, 4, 4] + [None] * 9, "ConsumedWriteCapacityUnits": [9] * 30},
     [8, 10], [7, 11]),
]  # fmt: skip
LINES = {
    "completion-failed": "RecordLost", "lease-lost": "LeaseLost", "lease-lost-often": "LeaseLost", "breaker-open": "Paused",
    "timeouts": "TimedOut", "reconcile-failed": "ReconcileFailed", "missing": "Missing", "duplicate-effects": "Duplicates",
}  # fmt: skip


def test_each_alarm_is_tried() -> None:
    assert {one[0] for one in CASES} | LINES.keys() == {one.name for one in alarms.on("cloudwatch")}


@pytest.mark.parametrize(("alarm", "series", "on", "off"), CASES)
def test_it_goes_off_and_ends(
    properties: dict[str, dict[str, Any]], alarm: str, series: Series, on: list[int], off: list[int]
) -> None:
    last = max(on + off)
    found = states(properties[alarm], series, last)
    assert {minute: found[minute - 1] for minute in on + off} == dict.fromkeys(on, True) | dict.fromkeys(off, False)


@pytest.mark.parametrize("alarm", sorted(one.name for one in alarms.on("cloudwatch") if one.name != "no-tick"))
def test_a_metric_that_says_nothing_is_no_alarm(properties: dict[str, dict[str, Any]], alarm: str) -> None:
    assert states(properties[alarm], {}, 60) == [False] * 60


def test_no_tick_waits_for_the_first_one_that_can_come(whole: DeployPlan) -> None:
    (found,) = [one for one in whole.alarms if one.alarm == "no-tick"]
    assert found.warm_up_ms == limits.HOUR_MS + alarms.TICK_LATE_MS
    written = cloudformation.template(whole)["Resources"][found.id]["Properties"]
    assert written["WarmUpConfiguration"]["WarmUpPeriodDurationInMinutes"] == 75
    assert states(written, {}, 1) == [True]  # so it would be, at once


@pytest.mark.parametrize(
    ("expression", "written"),
    [("rate(1 day)", True), ("cron(0 3 * * ? *)", True), ("rate(2 days)", False), ("cron(0 3 1 * ? *)", False)],
)
def test_no_tick_is_not_written_where_it_could_not_wait_for_the_first_one(expression: str, written: bool) -> None:
    app = make_app()
    del app.schedules["hourly"]
    app.schedule(expression, name="rare")(lambda tick: None)
    found = {one.alarm for one in plan("shop", "shop:app", declared_in(app), Stack()).alarms}
    assert ("no-tick" in found) == written
    assert "tick-dropped" in found


# -- what is counted in logs -----------------------------------------------------------------------------------------

OUTCOME = ReconcileOutcome(
    run="hourly/1", name="reconcile-hourly", look=1, at_ms=0, verdict="disagrees", expected=3, dispatched=3, done=0,
    running=0, waiting=0, stuck=0, dead=0, held=0, missing=2, twice=1, doubtful=0, own=None, findings=(), examples=(),
)  # fmt: skip


def lines(name: str) -> list[str]:
    """What the functions' logs have of it."""
    if name == "Task timed out":
        return ["2026-01-01T00:00:00Z 8f2f Task timed out after 60.00 seconds"]
    event = Event(at_ms=0, name=name, key=RecordKey("", "book", "o-1"), queue="orders")
    if name == "reconcile-failed":
        event = Event(at_ms=0, name=name, run="hourly/1", detail={"missing": OUTCOME.missing, "twice": OUTCOME.twice})
    return log_lines(event)


def log_lines(event: Event) -> list[str]:
    """An event in both forms, and as Lambda's own logging writes it."""
    fields = fields_of(event)
    return [json_line(fields), plain_line(fields), f"[ERROR]\t2026-01-01T00:00:00.000Z\t8f2f\t{json_line(fields)}"]


@pytest.mark.parametrize(
    ("alarm", "line", "count"),
    [
        ("completion-failed", "completion-failed", 1), ("lease-lost", "lease-lost", 1),
        ("lease-lost-often", "lease-lost", 4),
        ("breaker-open", "paused", 1), ("timeouts", "Task timed out", 1), ("reconcile-failed", "reconcile-failed", 1),
        ("missing", "reconcile-failed", 1), ("duplicate-effects", "reconcile-failed", 1),
    ],
)  # fmt: skip
def test_a_line_of_the_log_makes_it_go_off(
    whole: DeployPlan, properties: dict[str, dict[str, Any]], alarm: str, line: str, count: int
) -> None:
    found = properties[alarm]
    written = cloudformation.template(whole)["Resources"].values()
    (transformation, pattern), = [
        (counts["MetricTransformations"][0], counts["FilterPattern"])
        for counts in (one["Properties"] for one in written if one["Type"] == "AWS::Logs::MetricFilter")
        if counts["MetricTransformations"][0]["MetricNamespace"] == found["Namespace"]
        and counts["MetricTransformations"][0]["MetricName"] == found["MetricName"]
    ]  # fmt: skip
    assert all(counts(pattern, one) for one in lines(line))
    worth = float(transformation["MetricValue"])
    ends = found["Period"] // 60
    series = {found["MetricName"]: [*QUIET, *([worth] * count), *([None] * 2 * ends)]}
    on = states(found, series, len(series[found["MetricName"]]))
    assert on.index(True) == 5 + count - 1
    assert not on[5 + count + ends - 1], "it has ended"


@pytest.mark.parametrize(
    ("detail", "name", "counted"),
    [
        ({"missing": 0, "twice": 0}, "reconciled", set[str]()),
        ({"missing": 0, "twice": 0}, "reconcile-failed", {"ReconcileFailed"}),
        ({"missing": 1, "twice": 0}, "reconcile-failed", {"ReconcileFailed", "Missing"}),
        ({"missing": 0, "twice": 10}, "reconcile-failed", {"ReconcileFailed", "Duplicates"}),
    ],
)
def test_a_look_counts_as_what_it_found(
    whole: DeployPlan, detail: dict[str, int], name: str, counted: set[str]
) -> None:
    event = Event(at_ms=0, name=name, run="hourly/1", detail=detail)
    for line in log_lines(event):
        assert {one.metric for one in whole.log_counts if counts(one.pattern, line)} == counted


# -- what onefold itself measures ------------------------------------------------------------------------------------


def receives(sinks: list[onefold.observe.Sink], environment: dict[str, str]) -> dict[str, AlarmPlan]:
    app = onefold.App("shop", sinks=sinks)
    app.job(app.queue("orders", function=Function(environment=environment)), key="{id}", name="book", owner="billing")(
        _none
    )
    app.job(app.queue("letters", function=None), key="{id}", name="write")(_none)
    made = plan("shop", "shop:app", declared_in(app), Stack(prefix="prod-"))
    return {one.name: one for one in made.alarms if one.alarm == "receives"}


def _none(payload: dict[str, str]) -> None:
    """Nothing."""


def test_receives_is_written_where_its_metric_is() -> None:
    assert receives([onefold.LogSink()], {"OTHER": "on"}) == {}
    assert receives([onefold.LogSink()], {"ONEFOLD_EMF": "off"}) == {}
    found = receives([], {"ONEFOLD_EMF": "on"})
    assert found.keys() == {"prod-orders-book-receives"}  # no function runs the other one
    (measure,) = found["prod-orders-book-receives"].measures
    assert (measure.namespace, measure.metric, measure.statistic) == ("onefold/shop", "ReceiveCount", "p99")
    assert (found["prod-orders-book-receives"].owner, found["prod-orders-book-receives"].jobs) == ("billing", ("book",))
    mine = receives([onefold.observe.EmfSink(namespace="mine")], {})
    assert mine.keys() == {"prod-orders-book-receives", "prod-letters-write-receives"}
    assert {one.measures[0].namespace for one in mine.values()} == {"mine"}


def test_a_line_of_the_sink_is_what_receives_measures(whole: DeployPlan) -> None:
    stream = io.StringIO()
    sink = onefold.observe.EmfSink(stream)
    sink.for_app("shop")
    sink.emit(Event(at_ms=0, name="completed", key=RecordKey("", "book", "o-1"), queue="orders", receive_count=4))
    sink.flush()
    (line,) = [json.loads(one) for one in stream.getvalue().splitlines()]
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    (alarm,) = [one for one in whole.alarms if one.name == "orders-book-receives"]
    (measure,) = alarm.measures
    assert directive["Namespace"] == measure.namespace
    assert list(measure.dimensions) in directive["Dimensions"]
    assert {name: line[name] for name in measure.dimensions} == measure.dimensions
    assert line[measure.metric] == 4


def test_receives_is_in_both_templates(whole: DeployPlan, properties: dict[str, dict[str, Any]]) -> None:
    written = properties["receives"]
    dimensions = [{"Name": "job", "Value": "book"}, {"Name": "queue", "Value": "orders"}]
    assert (written["Namespace"], written["MetricName"], written["Dimensions"]) == (
        "onefold/shop",
        "ReceiveCount",
        dimensions,
    )
    assert (written["ExtendedStatistic"], written["Period"], written["EvaluationPeriods"]) == ("p99", 300, 3)
    alarms_written = terraform.module(whole)["resource"]["aws_cloudwatch_metric_alarm"].values()
    (same,) = [one for one in alarms_written if one["alarm_name"] == "orders-book-receives"]
    assert (same["metric_name"], same["extended_statistic"]) == ("ReceiveCount", "p99")
    assert same["dimensions"] == {"job": "book", "queue": "orders"}


# -- which are written -----------------------------------------------------------------------------------------------


def test_few_are_those_that_emulators_understand() -> None:
    found = planned(Stack(alarms="few"))
    assert {one.alarm for one in found.alarms} == {
        "dlq-not-empty", "held-not-empty", "oldest", "failing", "throttles", "completion-failed", "lease-lost",
        "reconcile-failed", "map-failed",
    }  # fmt: skip
    assert all(one.expression is None for one in found.alarms)
    assert {one.metric for one in found.log_counts} == {"RecordLost", "LeaseLost", "ReconcileFailed"}
    assert not found.counts_mapped
    assert "MetricsConfig" not in cloudformation.to_json(found)


def test_none_are_none() -> None:
    found = planned(Stack(alarms="none", slack="T012/C345"))
    assert (found.alarms, found.log_counts, found.job_alarms, found.slack) == ((), (), (), None)


def test_one_alarm_for_each_job_notifies_instead_of_those_below_it() -> None:
    found = planned(Stack(alarms="jobs"))
    assert {one.name for one in found.job_alarms} == {
        "shop-job-book", "shop-job-hourly", "shop-job-pack", "shop-job-reconcile-hourly",
    }  # fmt: skip
    template = cloudformation.template(found)["Resources"]
    below = set(itertools.chain.from_iterable(one.children for one in found.job_alarms))
    for one in found.alarms:
        assert ("AlarmActions" in template[one.id]["Properties"]) == (one.id not in below), one.name
        assert (one.id in below) == bool(one.jobs)
    (book,) = [one for one in found.job_alarms if one.name == "shop-job-book"]
    names = {one.name for one in found.alarms if "book" in one.jobs}
    assert {"orders-oldest", "orders-dead-not-empty", "orders-held-old", "shop-orders-errors"} <= names
    written = template[book.id]
    assert written["Type"] == "AWS::CloudWatch::CompositeAlarm"
    assert written["Properties"]["AlarmRule"] == " OR ".join(f'ALARM("{name}")' for name in book.names)
    assert set(book.names) == names
    assert "AlarmActions" in written["Properties"]
    assert written["DependsOn"] == sorted(book.children)
    assert written["Properties"]["AlarmDescription"].startswith("[page] ")
    assert all(len(one.rule) <= 10_240 and len(one.names) <= 100 for one in found.job_alarms)
    assert "AWS::CloudWatch::CompositeAlarm" not in cloudformation.to_json(planned())


def test_slack_is_told_through_a_topic_of_its_own() -> None:
    found = planned(Stack(slack="T0123/C0456", prefix="prod-"))
    resources = cloudformation.template(found)["Resources"]
    channel = resources["AlarmsChannel"]["Properties"]
    assert (channel["SlackWorkspaceId"], channel["SlackChannelId"]) == ("T0123", "C0456")
    assert channel["SnsTopicArns"] == [{"Ref": "AlarmsTopic"}]
    assert channel["GuardrailPolicies"] == [
        {"Fn::Sub": "arn:${AWS::Partition}:iam::aws:policy/CloudWatchReadOnlyAccess"}
    ]
    assert resources["AlarmsTopic"]["Properties"]["TopicName"] == "prod-shop-alarms"
    own, given = {"Ref": "AlarmsTopic"}, {"Ref": "AlarmTopic"}
    for one in found.alarms:
        assert resources[one.id]["Properties"]["AlarmActions"] == {"Fn::If": ["HasAlarmTopic", [own, given], [own]]}
    (allowed,) = resources["ChatRole"]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"]
    assert all(one.startswith("cloudwatch:") for one in allowed["Action"])
    written = terraform.module(found)["resource"]
    assert written["aws_chatbot_slack_channel_configuration"]["alarms"]["slack_team_id"] == "T0123"


def test_an_alarm_says_how_urgent_it_is_what_it_means_and_what_to_do_first(whole: DeployPlan) -> None:
    for one in whole.alarms:
        alarm = ALARMS[one.alarm]
        assert one.text.startswith(f"[{alarm.severity}] {alarm.meaning} First: ")
        assert one.text.endswith(f"See {alarm.runbook}")
        assert len(one.text) <= 1_024
        assert len(one.name) <= 255


# -- the queue of alarms ---------------------------------------------------------------------------------------------


def test_the_queue_of_reports_is_only_there_where_a_worker_can_receive_from_it() -> None:
    app = make_app()
    app.alarms(email="a@example.com")
    found = plan("shop", "shop:app", declared_in(app), Stack())
    assert not any("onefold-alarms" in one.settings.name for one in found.queues)
    assert not any("onefold-alarms" in one.name for one in found.alarms)
    (note,) = [one for one in found.notes if "app.alarms" in one]
    assert "--alarm-topic" in note
    app.job(app.queue("by-workers", function=None), key="{id}", name="slow")(lambda payload: None)
    found = plan("shop", "shop:app", declared_in(app), Stack())
    assert {"onefold-alarms", "onefold-alarms-dead"} <= {one.settings.name for one in found.queues}
    assert not any("app.alarms" in one for one in found.notes)
