"""Alarms that undo an update: CloudFormation rolls a stack back when one goes off, during the update or some time after it.

With an alias, the old version is what the alias points to again. Only alarms that exist can be used, so a stack's own are
used from its second deployment on; an alarm that is on already says nothing about this update, and is left out.
Never here: which alarms there are (`alarms.py`), following the update (`apply.py`). Invariant: no alarm is used that
CloudFormation would not find, because it would undo everything for that.

Source: CloudFormation API, RollbackConfiguration, RollbackTrigger.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from msgspec import Struct

from onefold import errors
from onefold.deploy.alarms import AlarmPlan
from onefold.deploy.apply import Rollout, Translating

TRIGGERS_MAX: Final = 5  # API RollbackConfiguration, RollbackTriggers
_ALARM: Final = "failing"  # of a function that gets nothing done


class Trigger(Struct, frozen=True, kw_only=True):
    """An alarm that undoes an update. `type`: of its resource. `is_on`: whether it is on now."""

    arn: str
    type: str
    is_on: bool


def triggers(
    rollout: Rollout,
    planned: Sequence[AlarmPlan],
    deployed: Collection[str],
    look: Callable[[Sequence[str]], dict[str, Trigger]],
    report: Callable[[str], None],
) -> list[Trigger] | None:
    """The alarms that undo an update; None leaves those that the stack has.

    Args:
        planned: the alarms of the plan. deployed: logical ids of the resources that the stack has.
        look: finds alarms by their names.

    Raises:
        UsageError: more than five, or one that was named does not exist.
    """
    if not rollout.is_undone_by_alarms:
        return None
    wanted = [one for one in rollout.rollback_alarms if one]
    own = [one for one in planned if one.alarm == _ALARM] if not rollout.rollback_alarms else []
    names = wanted or [one.name for one in own if one.id in deployed]
    if len(names) > TRIGGERS_MAX:
        raise errors.UsageError(
            f"{len(names)} alarms could undo the update: {', '.join(names)}.",
            meaning=f"CloudFormation allows {TRIGGERS_MAX}; nothing was changed.",
            todo="Choose with --rollback-alarm NAME, or name a composite alarm.",
        )
    found = look(names) if names else {}
    missing = [one for one in wanted if one not in found]
    if missing:
        raise errors.UsageError(
            f"There is no alarm {missing[0]} in this region.",
            meaning="CloudFormation would undo the update for that; nothing was changed.",
            todo="Name an alarm that exists, or leave --rollback-alarm out for the functions' own.",
        )
    for name, one in found.items():
        if one.is_on:
            report(f"! alarm {name} is on already: it cannot tell whether this update is good, and is left out")
    used = [one for one in found.values() if not one.is_on]
    if not used and rollout.rollback_alarms != ("",):
        report("! no alarm undoes this update: the functions' own are used from the second deployment on")
    return used


def alarms_by_name(cloudwatch: Any, names: Sequence[str], aws_errors: Translating) -> dict[str, Trigger]:
    """Those of the alarms that exist."""
    with aws_errors("cloudwatch:DescribeAlarms", ", ".join(names)):
        found = cloudwatch.describe_alarms(AlarmNames=list(names), AlarmTypes=["MetricAlarm", "CompositeAlarm"])
    return {
        one["AlarmName"]: Trigger(arn=one["AlarmArn"], type=f"AWS::CloudWatch::{kind}", is_on=one["StateValue"] == "ALARM")
        for group, kind in (("MetricAlarms", "Alarm"), ("CompositeAlarms", "CompositeAlarm"))
        for one in found.get(group, ())
    }  # fmt: skip


def configuration(used: Sequence[Trigger], minutes: int) -> dict[str, Any]:
    """RollbackConfiguration of CreateChangeSet; without alarms CloudFormation would only wait, so it does not."""
    return {
        "RollbackTriggers": [{"Arn": one.arn, "Type": one.type} for one in used],
        "MonitoringTimeInMinutes": minutes if used else 0,
    }
