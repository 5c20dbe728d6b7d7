"""Schedules as EventBridge Scheduler is told them: a tick's message, sizes, permissions, what is refused; and emulators.

moto and ministack keep what CreateSchedule is given, so what a template says is created there and read back. Neither fills
in `<aws.scheduler.scheduled-time>` nor calls a universal target; these stand on Scheduler's documentation, and what would
arrive is built here by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import boto3
import pytest

import onefold
import onefold.testing
from onefold import errors
from onefold.contracts.entries import Entry
from onefold.deploy import cloudformation
from onefold.deploy.eventbridge import Scheduling
from onefold.deploy.plan import AppDeclarations, DeployPlan, plan
from onefold.deploy.stack import Stack, engine_url
from onefold.engines.aws import messages
from onefold.schedules.fire_times import run_name
from onefold.schedules.schedule import SCHEDULED_TIME, Schedule, Tick, TickMessage
from tests.deploy import timed
from tests.deploy.declared import KEY
from tests.deploy.test_terraform import in_cloudformation
from tests.emulators import servers

REGION = "eu-west-1"
JUNE_MS = 1_780_279_200_000  # 2026-06-01T02:00:00Z
Json = dict[str, Any]


def scheduling(stack: Stack | None = None) -> Scheduling:
    """Of the timed app."""
    found = timed.planned(stack).scheduling
    assert found is not None
    return found


def template_of(name: str, stack: Stack | None = None) -> Json:
    """A schedule's properties in the template."""
    resources = cloudformation.template(timed.planned(stack))["Resources"]
    (found,) = [
        one["Properties"]
        for one in resources.values()
        if one["Type"] == "AWS::Scheduler::Schedule" and one["Properties"]["Name"] == name
    ]
    result: Json = found
    return result


def arrived(schedule: Schedule, planned_time: str) -> messages.Received:
    """The message that SQS has after a firing, by what the template says."""
    text = in_cloudformation(template_of(schedule.name)["Target"]["Input"])
    return received(json.loads(text.replace(SCHEDULED_TIME, planned_time)))


def received(request: Json) -> messages.Received:
    """The message that SQS has after this request of SendMessage."""
    system = {"SentTimestamp": "0", "ApproximateReceiveCount": "1"}
    for parameter in ("MessageGroupId", "MessageDeduplicationId"):
        if parameter in request:
            system[parameter] = request[parameter]
    return messages.received(
        {
            "MessageId": "1",
            "ReceiptHandle": "r",
            "Body": request["MessageBody"],
            "Attributes": system,
            "MessageAttributes": request["MessageAttributes"],
        }
    )


# -- the message of a tick ---------------------------------------------------------------------------------------------


def test_what_scheduler_sends_is_what_onefolds_own_scheduler_sends() -> None:
    for name, schedule in timed.app.schedules.items():
        form = arrived(schedule, "2026-06-01T02:00:00Z").form
        own = schedule.outgoing(JUNE_MS).entry
        assert (form.body, form.attributes, form.key) == (own.body, own.attributes, own.key)
        assert form.group == own.group
        assert form.key == run_name(name, JUNE_MS) == f"{name}/2026-06-01T02:00:00Z"


def test_the_handler_reads_the_planned_time_in_the_schedules_zone() -> None:
    form = arrived(timed.monthly, "2026-06-01T02:00:00Z").form
    tick = timed.monthly.tick(TickMessage(**json.loads(form.body)))
    assert tick == Tick(
        schedule="monthly",
        nominal_at_ms=JUNE_MS,
        run="monthly/2026-06-01T02:00:00Z",
        local=datetime.fromisoformat("2026-06-01T03:00:00+01:00"),
    )


def test_a_tick_that_scheduler_sends_twice_is_done_once() -> None:
    app = onefold.App("shop")
    seen: list[Tick] = []

    @app.schedule("rate(1 day)")
    def nightly(tick: Tick) -> None:
        seen.append(tick)

    resources = cloudformation.template(planned(app))["Resources"]
    text = in_cloudformation(resources["NightlySchedule"]["Properties"]["Target"]["Input"])
    with onefold.testing.inline(app) as world:
        queue = app.runtime().engine.queues.open("shop-schedules")
        for _ in range(2):
            form = received(json.loads(text.replace(SCHEDULED_TIME, "2022-03-22T18:59:43Z"))).form
            queue.send([Entry(body=form.body, attributes=form.attributes, key=form.key)])
        world.run()
    assert [tick.run for tick in seen] == ["nightly/2022-03-22T18:59:43Z"]


def test_fifo_queues_only_have_a_group_and_a_deduplication_id_which_nobody_can_foretell() -> None:
    text = in_cloudformation(template_of("monthly")["Target"]["Input"])
    request = json.loads(text)
    assert request["MessageGroupId"] == "monthly"
    assert request["MessageDeduplicationId"] == "<aws.scheduler.execution-id>"
    assert text.count("<aws.scheduler.execution-id>") == 1, "it is another one at each try: no key and no run"
    assert not json.loads(in_cloudformation(template_of("Sweep_2")["Target"]["Input"])).keys() & {
        "MessageGroupId",
        "MessageDeduplicationId",
    }


# -- sizes and permissions ---------------------------------------------------------------------------------------------


def test_a_schedule_is_told_expression_zone_bounds_window_and_what_becomes_of_failures() -> None:
    monthly, sweep = template_of("monthly"), template_of("Sweep_2")
    assert (monthly["ScheduleExpression"], monthly["ScheduleExpressionTimezone"]) == (
        "cron(0 3 1 * ? *)",
        "Europe/London",
    )
    assert monthly["FlexibleTimeWindow"] == {"Mode": "OFF"}
    assert monthly["Target"]["RetryPolicy"] == {"MaximumRetryAttempts": 185, "MaximumEventAgeInSeconds": 86_400}
    assert monthly["Target"]["DeadLetterConfig"] == {"Arn": {"Fn::GetAtt": ["BooksSchedulesDeadQueue", "Arn"]}}
    assert not {"StartDate", "EndDate", "KmsKeyArn"} & monthly.keys()
    assert (sweep["StartDate"], sweep["EndDate"]) == ("2026-06-01T00:00:00Z", "2027-06-01T12:00:00Z")
    assert sweep["FlexibleTimeWindow"] == {"Mode": "FLEXIBLE", "MaximumWindowInMinutes": 2}
    assert sweep["Target"]["RetryPolicy"] == {"MaximumRetryAttempts": 3, "MaximumEventAgeInSeconds": 600}
    assert "DeadLetterConfig" not in sweep["Target"]


def test_the_role_may_send_to_the_targets_and_dead_letter_queues_and_is_scheduler_s_alone() -> None:
    role = scheduling(Stack(prefix="prod-", kms_key=KEY)).role
    mine = "arn:{partition}:sqs:{region}:{account}:prod-"
    assert {one.sid: (one.actions, one.resources) for one in role.statements} == {
        "SendTicks": (
            ("sqs:SendMessage",),
            (f"{mine}books-schedules", f"{mine}books-schedules-dead", f"{mine}statements.fifo"),
        ),
        "UseKey": (("kms:Decrypt", "kms:GenerateDataKey"), (KEY,)),
    }
    assert role.trust()["Principal"] == {"Service": "scheduler.amazonaws.com"}
    assert role.trust()["Condition"] == {"StringEquals": {"aws:SourceAccount": "{account}"}}


def test_messages_for_later_need_group_and_role_and_functions_may_make_their_schedules_only() -> None:
    found = timed.planned(Stack(prefix="p-", later=True))
    assert (
        found.url
        == "aws://{region}?layout=2&prefix=p-&table=p-books&later=p-books&later_role={role_arn.Scheduler}&later_dead=p-books-late-dead"
    )
    for function in found.functions:
        by_sid = {one.sid: one for one in function.statements}
        assert by_sid["SendLater"].actions == ("scheduler:CreateSchedule",)
        assert by_sid["SendLater"].resources == (
            "arn:{partition}:scheduler:{region}:{account}:schedule/p-books/later-*",
        )
        assert by_sid["HandOverRole"].resources == ("{role_arn.Scheduler}",)
        assert by_sid["HandOverRole"].equals == {"iam:PassedToService": "scheduler.amazonaws.com"}
    assert found.scheduling is not None
    targets = found.scheduling.role.statements[0].resources
    assert "arn:{partition}:sqs:{region}:{account}:p-customers-dead" in targets
    assert (
        "arn:{partition}:sqs:{region}:{account}:p-statements-dead.fifo" not in targets
    )  # Scheduler takes standard ones
    assert "arn:{partition}:sqs:{region}:{account}:p-books-late-dead" in targets
    (dead,) = [one for one in found.queues if one.settings.name == "p-books-late-dead"]
    assert (dead.role, dead.settings.fifo) == ("dead", False)
    assert {one.name for one in found.alarms if one.name.startswith("p-books-late-dead")} == {
        "p-books-late-dead-not-empty", "p-books-late-dead-expiring",
    }  # fmt: skip
    assert "late-dead" not in str(timed.planned(Stack(prefix="p-")))


def test_an_app_without_fifo_queues_gets_no_queue_for_what_could_not_be_sent_to_them() -> None:
    app = onefold.App("plain")
    app.queue("orders")
    found = plan(app.name, "shop:app", AppDeclarations(queues=app.queues.values(), jobs=()), Stack(later=True))
    assert found.url == "aws://{region}?layout=2&table=plain&later=plain&later_role={role_arn.Scheduler}"
    assert not any("late" in one.settings.name for one in found.queues)


def test_a_rule_of_a_bus_and_one_of_the_default_bus_are_watched_by_their_own_dimensions() -> None:
    found = {one.name: dict(one.measures[0].dimensions) for one in timed.planned().alarms if one.alarm == "rule-failed"}
    assert found == {
        "orders-placed-rule-failed": {"EventBusName": "orders", "RuleName": "placed"},
        "orders-in-order-rule-failed": {"EventBusName": "orders", "RuleName": "in-order"},
        "anything-rule-failed": {"RuleName": "anything"},
    }


def test_without_schedules_and_messages_for_later_there_is_nothing() -> None:
    app = onefold.App("plain")
    app.queue("orders")
    assert planned(app).scheduling is None
    assert engine_url(Stack(), "plain") == "aws://{region}?layout=2"


# -- what is refused ---------------------------------------------------------------------------------------------------


def planned(app: onefold.App, prefix: str = "") -> DeployPlan:
    """The plan of an app with schedules."""
    declares = AppDeclarations(queues=app.queues.values(), jobs=app.jobs.values(), schedules=app.schedules.values())
    return plan(app.name, "shop:app", declares, Stack(prefix=prefix))


def scheduled(expression: str = "rate(1 day)", **options: Any) -> onefold.App:
    """An app with one schedule."""
    app = onefold.App("shop")

    @app.schedule(expression, **options)
    def nightly(tick: Tick) -> None:
        """Nothing."""

    return app


def test_a_clock_change_policy_that_eventbridge_does_not_have_is_refused() -> None:
    with pytest.raises(errors.UsageError, match="next valid instant"):
        planned(scheduled("cron(30 2 * * ? *)", tz="Europe/London", dst="next-valid"))


def test_a_group_that_is_too_long_with_its_prefix_is_refused() -> None:
    app = onefold.App("a" * 40)
    app.schedule("rate(1 day)", name="n", queue=app.queue("q", function=None))(lambda tick: None)
    with pytest.raises(errors.UsageError, match="group of the schedules"):
        planned(app, "p" * 30)


# -- on emulators --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scheduler() -> Iterator[Callable[[str], Any]]:
    """A client of each emulator's Scheduler; the server lasts as long as the module."""
    from contextlib import ExitStack

    clients: dict[str, Any] = {}
    with ExitStack() as running:

        def client(name: str) -> Any:
            if name not in clients:
                url = running.enter_context(getattr(servers, name)())
                keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
                clients[name] = boto3.client("scheduler", region_name=REGION, endpoint_url=url, **keys)
            return clients[name]

        yield client


def resolved(properties: Json) -> Json:
    """Properties of a template as CreateSchedule takes them."""
    if "Fn::GetAtt" in properties:
        return f"arn:aws:iam::111122223333:role/{properties['Fn::GetAtt'][0]}"  # type: ignore[return-value]
    if "Ref" in properties or "Fn::Sub" in properties:
        return in_cloudformation(properties) if "Fn::Sub" in properties else "books"  # type: ignore[return-value]
    return {name: resolved(one) if isinstance(one, dict) else one for name, one in properties.items()}


@pytest.mark.slow
@pytest.mark.parametrize("emulator", ["moto", "ministack"])
def test_a_schedule_is_created_and_read_back_equal(scheduler: Callable[[str], Any], emulator: str) -> None:
    client = scheduler(emulator)
    client.create_schedule_group(Name="books")
    for name in timed.app.schedules:
        asked = resolved(template_of(name))
        client.create_schedule(**asked)
        found = client.get_schedule(Name=name, GroupName="books")
        for bound in ("StartDate", "EndDate"):
            if bound in asked:
                asked[bound] = datetime.fromisoformat(asked[bound])
        assert {one: found[one] for one in asked} == asked
