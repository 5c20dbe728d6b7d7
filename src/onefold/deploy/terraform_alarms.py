"""A plan's alarms in Terraform: metric filters on logs, alarms, alarms for whole jobs, and the Slack channel.

It writes the same alarms as `cloudformation_alarms.py`, with one difference: the provider has no warm-up, so `no-tick`
can go off once between its creation and the first tick.
Never here: which alarms there are. Invariant: an alarm notifies the topic in the variable `alarm_topic`, if one is
given, and the channel's topic; if there is an alarm for a whole job, the alarms below it do not notify.

Source: registry documentation of hashicorp/aws 6.
"""

from __future__ import annotations

from collections.abc import Iterator

from onefold.deploy.alarms import AlarmPlan, CompositePlan, LogCount, Measure
from onefold.deploy.chat import GUARDRAIL, TOPIC_ID, SlackPlan
from onefold.deploy.plan import DeployPlan
from onefold.deploy.terraform_values import Json, literal, resource_name, role_policy, service_role, tags, text
from onefold.duration import seconds_up

_TOPIC = resource_name(TOPIC_ID)


def resources(plan: DeployPlan) -> Iterator[tuple[str, str, Json]]:
    """The resources for alarms: type without `aws_`, name, arguments."""
    for count in plan.log_counts:
        yield "cloudwatch_log_metric_filter", resource_name(count.id), _log_count(count)
    for alarm in plan.alarms:
        yield "cloudwatch_metric_alarm", resource_name(alarm.id), _alarm(plan, alarm)
    for job in plan.job_alarms:
        yield "cloudwatch_composite_alarm", resource_name(job.id), _job_alarm(plan, job)
    if plan.topic is not None:
        key = {} if plan.stack.kms_key is None else {"kms_master_key_id": plan.stack.kms_key}
        yield "sns_topic", _TOPIC, {"name": plan.topic, "tags": tags(plan, None), **key}
    if plan.slack is not None:
        role = resource_name(plan.slack.role.id)
        yield "iam_role", role, service_role(plan, plan.slack.role, plan.slack.name)
        yield "iam_role_policy", role, role_policy(plan.slack.role.id, plan.slack.role.statements)
        yield "chatbot_slack_channel_configuration", _TOPIC, _slack(plan, plan.slack, role)


def _log_count(count: LogCount) -> Json:
    return {
        "name": f"{count.namespace.rpartition('/')[2]}-{count.metric}",
        "log_group_name": f"${{aws_cloudwatch_log_group.{resource_name(count.function)}.name}}",
        "pattern": literal(count.pattern),
        "metric_transformation": {
            "namespace": count.namespace,
            "name": count.metric,
            "value": "1",
            "unit": "Count",
        },
    }


def _actions(plan: DeployPlan) -> str:
    """The topics to notify."""
    own = "" if plan.topic is None else f"aws_sns_topic.{_TOPIC}.arn"
    both = f"{own}, var.alarm_topic" if own else "var.alarm_topic"
    return f'${{var.alarm_topic == "" ? [{own}] : [{both}]}}'


def _alarm(plan: DeployPlan, alarm: AlarmPlan) -> Json:
    found: Json = {
        "alarm_name": alarm.name,
        "alarm_description": literal(alarm.text),
        "evaluation_periods": alarm.periods,
        "threshold": alarm.threshold,
        "comparison_operator": "GreaterThanOrEqualToThreshold",
        "treat_missing_data": alarm.missing,
        "tags": tags(plan, alarm.owner),
    }
    if alarm.periods > 1:
        found["datapoints_to_alarm"] = alarm.bad
    if not (plan.job_alarms and alarm.jobs):
        found |= {"alarm_actions": _actions(plan), "ok_actions": _actions(plan)}
    if alarm.expression is not None:
        found["metric_query"] = [
            {"id": "value", "expression": alarm.expression, "label": alarm.alarm, "return_data": True},
            *(
                {
                    "id": one.id,
                    "metric": _metric(one) | {"period": seconds_up(alarm.period_ms), "stat": one.statistic},
                    "return_data": False,
                }
                for one in alarm.measures
            ),
        ]
        return found
    (one,) = alarm.measures
    found |= _metric(one) | {"period": seconds_up(alarm.period_ms)}
    found["extended_statistic" if one.statistic.startswith("p") else "statistic"] = one.statistic
    return found


def _metric(one: Measure) -> Json:
    found: Json = {"namespace": one.namespace, "metric_name": one.metric}
    if one.dimensions:
        found["dimensions"] = {name: text(value) for name, value in one.dimensions.items()}
    return found


def _job_alarm(plan: DeployPlan, one: CompositePlan) -> Json:
    return {
        "alarm_name": one.name,
        "alarm_description": literal(one.text),
        "alarm_rule": literal(one.rule),
        "alarm_actions": _actions(plan),
        "ok_actions": _actions(plan),
        "tags": tags(plan, one.owner),
        # CloudWatch refuses a rule that names alarms which do not exist yet
        "depends_on": [f"aws_cloudwatch_metric_alarm.{resource_name(child)}" for child in sorted(one.children)],
    }


def _slack(plan: DeployPlan, slack: SlackPlan, role: str) -> Json:
    return {
        "configuration_name": slack.name,
        "iam_role_arn": f"${{aws_iam_role.{role}.arn}}",
        "slack_channel_id": slack.channel,
        "slack_team_id": slack.workspace,
        "sns_topic_arns": [f"${{aws_sns_topic.{_TOPIC}.arn}}"],
        "guardrail_policy_arns": [text(GUARDRAIL)],
        "logging_level": "ERROR",
        "tags": tags(plan, None),
    }
