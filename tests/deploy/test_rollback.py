"""Alarms that undo an update: which are used, what CloudFormation is asked, and what a person is told when one goes off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from onefold.deploy import changes, rollback
from onefold.deploy.apply import FOLLOW_MS_MAX, LOOK_MS, LiveStack, Rollout
from onefold.deploy.changes import StackEvent
from onefold.deploy.rollback import Trigger
from onefold.deploy.stack import Stack
from onefold.engines.aws.session import Session, aws_errors
from onefold.errors import TransientError, UsageError
from onefold.options import Function
from tests.deploy.declared import declared, planned
from tests.deploy.test_destroy import Cloud, live, plain

PLAN = planned(declared(Function(alias="live")), Stack())
(FAILING,) = [one for one in PLAN.alarms if one.alarm == "failing"]


def trigger(name: str, *, is_on: bool = False) -> Trigger:
    arn = f"arn:aws:cloudwatch:eu-west-1:111122223333:alarm:{name}"
    return Trigger(arn=arn, type="AWS::CloudWatch::Alarm", is_on=is_on)


def chosen(
    rollout: Rollout, *exist: str, deployed: Sequence[str] = (FAILING.id,), on: Sequence[str] = ()
) -> tuple[list[str] | None, list[str]]:
    """The names of the alarms that are used, and what is reported."""
    said: list[str] = []

    def look(names: Sequence[str]) -> dict[str, Trigger]:
        return {one: trigger(one, is_on=one in on) for one in names if one in exist}

    used = rollback.triggers(rollout, PLAN.alarms, deployed, look, said.append)
    return None if used is None else [one.arn.rpartition(":")[2] for one in used], said


def test_a_function_that_gets_nothing_done_undoes_the_update_if_that_was_asked_for() -> None:
    assert chosen(Rollout(), FAILING.name) == (None, [])
    assert chosen(Rollout(rollback_minutes=10), FAILING.name) == ([FAILING.name], [])


def test_a_first_deployment_has_no_alarms_yet_and_that_is_said() -> None:
    used, said = chosen(Rollout(rollback_minutes=10), FAILING.name, deployed=())
    assert used == []
    assert "from the second deployment on" in said[0]


def test_an_alarm_that_is_on_is_left_out_so_that_the_repair_can_be_deployed() -> None:
    used, said = chosen(Rollout(rollback_alarms=("mine", "yours")), "mine", "yours", on=("yours",))
    assert used == ["mine"]
    assert said == ["! alarm yours is on already: it cannot tell whether this update is good, and is left out"]


def test_alarms_can_be_named_taken_back_and_are_refused_where_cloudformation_would_undo_everything() -> None:
    assert chosen(Rollout(rollback_alarms=("",))) == ([], [])
    with pytest.raises(UsageError, match="There is no alarm gone"):
        chosen(Rollout(rollback_alarms=("mine", "gone")), "mine")
    six = tuple(f"a{number}" for number in range(6))
    with pytest.raises(UsageError, match="6 alarms could undo the update: a0, a1"):
        chosen(Rollout(rollback_alarms=six), *six)


def test_a_change_set_has_them_and_without_any_cloudformation_does_not_wait() -> None:
    cloud = Cloud()
    asked = rollback.configuration([trigger("mine")], 10)
    live(cloud).prepare("{}", None, {}, "t", rollback=asked)
    assert cloud.arguments("create_change_set")["RollbackConfiguration"] == {
        "RollbackTriggers": [
            {"Arn": "arn:aws:cloudwatch:eu-west-1:111122223333:alarm:mine", "Type": "AWS::CloudWatch::Alarm"}
        ],
        "MonitoringTimeInMinutes": 10,
    }
    assert rollback.configuration([], 10) == {"RollbackTriggers": [], "MonitoringTimeInMinutes": 0}
    cloud = Cloud()
    live(cloud).prepare("{}", None, {}, "t")
    assert "RollbackConfiguration" not in cloud.arguments("create_change_set"), "the stack keeps its own"


def test_an_update_is_followed_as_long_as_its_alarms_are_watched() -> None:
    class Endless(Cloud):
        def answers(self, name: str) -> dict[str, Any]:
            return {"StackEvents": []} if name == "describe_stack_events" else super().answers(name)

    looks: list[int] = []
    stack = LiveStack(Endless(), "prod-shop", aws_errors=plain, pause=looks.append)
    change_set = stack.prepare("{}", None, {}, "t")
    assert change_set is not None
    looks.clear()
    with pytest.raises(TransientError, match="It takes longer than 5h"):
        stack.execute(change_set, "t", lambda event: None, watched_ms=3 * 3_600_000)
    assert sum(looks) == FOLLOW_MS_MAX + 3 * 3_600_000
    assert set(looks) == {LOOK_MS}


def event(status: str, reason: str = "", *, type_: str = changes.STACK) -> StackEvent:
    return StackEvent(
        event_id=status, at_ms=0, logical_id="shop", type=type_, physical_id="", status=status, reason=reason
    )


def test_an_update_that_an_alarm_undid_says_so() -> None:
    why = "Rollback triggers in ALARM: arn:aws:cloudwatch:eu-west-1:111122223333:alarm:shop-orders-failing"
    found = changes.first_failure(
        [event("UPDATE_IN_PROGRESS"), event("UPDATE_ROLLBACK_IN_PROGRESS", why), event("UPDATE_ROLLBACK_COMPLETE")]
    )
    assert found is not None
    assert found.reason == why
    assert "An alarm went off and the update was undone." in found.todo
    failed = event("UPDATE_FAILED", "Rate exceeded", type_="AWS::SQS::Queue")
    found = changes.first_failure([failed, event("UPDATE_ROLLBACK_IN_PROGRESS", "The following resource(s) failed")])
    assert found is not None
    assert found.type == "AWS::SQS::Queue", "a resource that failed is the cause"


@pytest.mark.slow
def test_alarms_are_found_by_name_with_their_state(session: Session) -> None:
    client = session.client("cloudwatch")
    for name in ("rolled-quiet", "rolled-loud"):
        client.put_metric_alarm(
            AlarmName=name, Namespace="AWS/Lambda", MetricName="Errors", Statistic="Average", Period=300,
            EvaluationPeriods=1, Threshold=0.5, ComparisonOperator="GreaterThanOrEqualToThreshold",
        )  # fmt: skip
    client.set_alarm_state(AlarmName="rolled-loud", StateValue="ALARM", StateReason="a test")
    found = rollback.alarms_by_name(client, ["rolled-quiet", "rolled-loud", "rolled-nowhere"], aws_errors)
    assert {name: (one.type, one.is_on) for name, one in found.items()} == {
        "rolled-quiet": ("AWS::CloudWatch::Alarm", False),
        "rolled-loud": ("AWS::CloudWatch::Alarm", True),
    }
    assert found["rolled-loud"].arn.endswith(":alarm:rolled-loud")
