"""A plan's alarms in CloudFormation: counts in logs, alarms, alarms of whole jobs, and the channel in Slack.

Never here: which alarms there are. Invariant: an alarm notifies the topic in the parameter `AlarmTopic`, if one is
given, and that of the channel; if there is an alarm of the whole job, that one notifies and those below it do not.

Source: CloudFormation reference, AWS::CloudWatch::Alarm, AWS::CloudWatch::CompositeAlarm, AWS::Chatbot.
"""

from __future__ import annotations

from typing import Any

from onefold.deploy.alarms import AlarmPlan, CompositePlan, LogCount, Measure
from onefold.deploy.chat import GUARDRAIL, TOPIC_ID, SlackPlan
from onefold.deploy.cloudformation_values import Json, arn, service_role, tags, text
from onefold.deploy.plan import DeployPlan
from onefold.duration import seconds_up
from onefold.limits import MINUTE_MS


def resources(plan: DeployPlan) -> Json:
    """The resources for alarms, by logical id."""
    found: Json = {one.id: _log_count(one) for one in plan.log_counts}
    found |= {one.id: _alarm(plan, one) for one in plan.alarms}
    found |= {one.id: _job_alarm(plan, one) for one in plan.job_alarms}
    if plan.topic is not None:
        topic: Json = {"TopicName": plan.topic, "Tags": tags(plan, None)}
        if plan.stack.kms_key is not None:
            topic["KmsMasterKeyId"] = plan.stack.kms_key
        found[f"{TOPIC_ID}Topic"] = {"Type": "AWS::SNS::Topic", "Properties": topic}
    if plan.slack is not None:
        found |= _slack(plan, plan.slack)
    return found


def _log_count(count: LogCount) -> Json:
    counted = {
        "MetricNamespace": count.namespace,
        "MetricName": count.metric,
        "MetricValue": "1",
        "Unit": "Count",
    }
    return {
        "Type": "AWS::Logs::MetricFilter",
        "Properties": {
            "LogGroupName": {"Ref": f"{count.function}LogGroup"},
            "FilterPattern": count.pattern,
            "MetricTransformations": [counted],
        },
    }


def _actions(plan: DeployPlan) -> Any:
    """The topics to notify."""
    given: Json = {"Ref": "AlarmTopic"}
    if plan.topic is None:
        return {"Fn::If": ["HasAlarmTopic", [given], {"Ref": "AWS::NoValue"}]}
    own: Json = {"Ref": f"{TOPIC_ID}Topic"}
    return {"Fn::If": ["HasAlarmTopic", [own, given], [own]]}


def _alarm(plan: DeployPlan, alarm: AlarmPlan) -> Json:
    properties: Json = {
        "AlarmName": alarm.name,
        "AlarmDescription": alarm.text,
        "EvaluationPeriods": alarm.periods,
        "Threshold": alarm.threshold,
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "TreatMissingData": alarm.missing,
        "Tags": tags(plan, alarm.owner),
    }
    if alarm.periods > 1:
        properties["DatapointsToAlarm"] = alarm.bad
    if not (plan.job_alarms and alarm.jobs):
        properties |= {"AlarmActions": _actions(plan), "OKActions": _actions(plan)}
    if alarm.warm_up_ms:
        properties["WarmUpConfiguration"] = {
            "WarmUpPeriodDurationInMinutes": -(-alarm.warm_up_ms // MINUTE_MS),
            "OnlyStartEvaluatingAfterWarmUpPeriodEnds": True,
        }
    if alarm.expression is not None:
        properties["Metrics"] = [
            {"Id": "value", "Expression": alarm.expression, "ReturnData": True},
            *(
                {
                    "Id": one.id,
                    "MetricStat": {
                        "Metric": _metric(one),
                        "Period": seconds_up(alarm.period_ms),
                        "Stat": one.statistic,
                    },
                    "ReturnData": False,
                }
                for one in alarm.measures
            ),
        ]
        return {"Type": "AWS::CloudWatch::Alarm", "Properties": properties}
    (one,) = alarm.measures
    properties |= {**_metric(one), "Period": seconds_up(alarm.period_ms)}
    properties["ExtendedStatistic" if one.statistic.startswith("p") else "Statistic"] = one.statistic
    return {"Type": "AWS::CloudWatch::Alarm", "Properties": properties}


def _metric(one: Measure) -> Json:
    found: Json = {"Namespace": one.namespace, "MetricName": one.metric}
    if one.dimensions:
        found["Dimensions"] = [{"Name": name, "Value": text(value)} for name, value in one.dimensions.items()]
    return found


def _job_alarm(plan: DeployPlan, one: CompositePlan) -> Json:
    properties: Json = {
        "AlarmName": one.name,
        "AlarmDescription": one.text,
        "AlarmRule": one.rule,
        "AlarmActions": _actions(plan),
        "OKActions": _actions(plan),
        "Tags": tags(plan, one.owner),
    }
    # its rule names them, and CloudWatch refuses a rule over alarms that do not exist yet
    return {"Type": "AWS::CloudWatch::CompositeAlarm", "Properties": properties, "DependsOn": sorted(one.children)}


def _slack(plan: DeployPlan, slack: SlackPlan) -> Json:
    channel: Json = {
        "ConfigurationName": slack.name,
        "SlackWorkspaceId": slack.workspace,
        "SlackChannelId": slack.channel,
        "IamRoleArn": arn(f"{slack.role.id}Role"),
        "SnsTopicArns": [{"Ref": f"{TOPIC_ID}Topic"}],
        "GuardrailPolicies": [text(GUARDRAIL)],
        "LoggingLevel": "ERROR",
        "Tags": tags(plan, None),
    }
    return {
        f"{slack.role.id}Role": service_role(plan, slack.role),
        f"{TOPIC_ID}Channel": {"Type": "AWS::Chatbot::SlackChannelConfiguration", "Properties": channel},
    }
