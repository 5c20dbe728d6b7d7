"""Facts about what sends to queues and functions: schedules, rules, event buses, topics and their subscriptions.

The events of a SAM function or state machine give the same facts as the resources that SAM creates for them.
Never here: who receives (mappings: collect_template.py). Invariant: a setting not written is absent, or AWS's default.

Sources: CloudFormation template reference of each type; SAM developer guide, event sources; EventBridge user guide, retry
policy (rules: 185 retries, 24 hours); EventBridge API reference of the second generation, RetryPolicy (5 retries, 300 s).
Scheduler's own pages give only the ranges of its settings; its defaults here are those that are commonly stated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from onefold.check.documents import json_of
from onefold.check.facts import (
    BusFacts,
    ResourceFacts,
    ResourceSetting,
    RuleFacts,
    ScheduleFacts,
    SubscriberFacts,
    TargetFacts,
    TopicFacts,
    TopicSubscriptionFacts,
    Unresolved,
)
from onefold.check.intrinsics import flag, plain, text_of, whole_number, why_not
from onefold.check.kinds import KINDS
from onefold.check.scope import Properties

RETRIES_MAX_DEFAULT: Final = 185
AGE_MAX_S_DEFAULT: Final = 86_400
SECOND_RETRIES_MAX_DEFAULT: Final = 5
SECOND_AGE_MAX_S_DEFAULT: Final = 300


def shared(properties: Properties, exists: bool | Unresolved) -> dict[str, Any]:
    """The facts that every resource has."""
    scope, logical_id = properties.scope, properties.logical_id
    kind = scope.type_of(logical_id)
    is_known = kind in KINDS and scope.name_of(logical_id)[1] is None
    arn = scope.arn_of(logical_id) if is_known else ""
    name = KINDS[kind].name if kind in KINDS else ""
    return {
        "id": logical_id,
        "type": properties.kind,
        "arn": arn if isinstance(arn, str) else "",
        "named": name in properties.raw,
        "source": scope.document.source(properties.path),
        "at": properties.path,
        "exists": exists,
    }


def target_of(properties: Properties, arn: str | None = None) -> TargetFacts:
    """A target of a schedule or rule. `arn`: the target of a SAM event, which does not name it itself."""
    document = properties.scope.document
    dead, retry = properties.inner("DeadLetterConfig"), properties.inner("RetryPolicy")
    message_input = properties.setting("Input", plain)
    if message_input.is_absent and not {"InputPath", "InputTransformer"}.isdisjoint(properties.raw):
        message_input = document.setting((*properties.path, "InputTransformer"), None, "it is made from the event")
    return TargetFacts(
        source=document.source(properties.path),
        at=properties.path,
        arn=document.setting(properties.path, arn) if arn is not None else properties.setting("Arn", text_of),
        role_arn=properties.setting("RoleArn", text_of),
        dead_letter_arn=dead.setting("Arn", text_of),
        makes_queue=arn is not None and "Type" in dead.raw,
        retries_max=retry.setting("MaximumRetryAttempts", whole_number, RETRIES_MAX_DEFAULT),
        age_max_s=retry.setting("MaximumEventAgeInSeconds", whole_number, AGE_MAX_S_DEFAULT),
        group=properties.inner("SqsParameters").setting("MessageGroupId", text_of),
        input=message_input,
    )


def schedule_of(properties: Properties, exists: bool | Unresolved, arn: str | None = None) -> ScheduleFacts:
    """An AWS::Scheduler::Schedule, or a SAM event ScheduleV2 whose target has this ARN."""
    return ScheduleFacts(
        **shared(properties, exists),
        expression=properties.setting("ScheduleExpression", text_of),
        group=properties.setting("GroupName", text_of, "default"),
        state=properties.setting("State", text_of, "ENABLED"),
        target=target_of(properties.inner("Target") if arn is None else properties, arn),
    )


def rule_of(properties: Properties, exists: bool | Unresolved, arn: str | None = None) -> RuleFacts:
    """An AWS::Events::Rule, or a SAM event Schedule, EventBridgeRule or CloudWatchEvent whose target has this ARN."""
    written = properties.items("Targets") if arn is None else []
    targets = None if written is None else tuple(target_of(one) for one in written)
    state = properties.setting("State", text_of, "ENABLED")
    if "Enabled" in properties.raw:
        enabled = properties.setting("Enabled", flag)
        value = None if enabled.value is None else "ENABLED" if enabled.value else "DISABLED"
        state = properties.scope.document.setting(enabled.at, value, enabled.why)
    return RuleFacts(
        **shared(properties, exists),
        expression=properties.setting("ScheduleExpression" if arn is None else "Schedule", text_of),
        pattern=properties.setting("EventPattern" if arn is None else "Pattern", plain),
        bus=properties.setting("EventBusName", text_of, "default"),
        state=state,
        targets=targets if arn is None else (target_of(properties, arn),),
    )


def bus_of(properties: Properties, exists: bool | Unresolved) -> BusFacts:
    """An AWS::Events::EventBus or AWS::EventsV2::EventBus."""
    is_second = properties.kind == "AWS::EventsV2::EventBus"
    key = properties.inner("EncryptionConfiguration") if is_second else properties
    return BusFacts(
        **shared(properties, exists),
        generation=2 if is_second else 1,
        dead_letter_arn=properties.inner("DeadLetterConfig").setting("Arn", text_of),
        key=key.setting("KmsKeyIdentifier", text_of),
        retention_days=properties.inner("StorageConfiguration").setting("RetentionPeriodInDays", whole_number),
    )


def subscriber_of(properties: Properties, exists: bool | Unresolved) -> SubscriberFacts:
    """An AWS::EventsV2::Subscriber."""
    invoke, retry = properties.inner("InvokeConfiguration"), properties.inner("RetryPolicy")
    return SubscriberFacts(
        **shared(properties, exists),
        bus=properties.setting("EventBusArn", text_of),
        kind=properties.setting("Type", text_of),
        state=properties.setting("State", text_of, "RUNNING"),
        target_arn=invoke.setting("TargetArn", text_of),
        filters=properties.inner("FilterConfiguration").setting("Filters", plain),
        role_arn=invoke.setting("RoleArn", text_of),
        on_failure=properties.inner("OnFailureConfiguration").setting("Arn", text_of),
        retries_max=retry.setting("MaxRetryAttempts", whole_number, SECOND_RETRIES_MAX_DEFAULT),
        age_max_s=retry.setting("MaxEventAgeInSeconds", whole_number, SECOND_AGE_MAX_S_DEFAULT),
    )


def topic_of(properties: Properties, exists: bool | Unresolved) -> Iterator[ResourceFacts]:
    """An AWS::SNS::Topic with the subscriptions that are written in it."""
    facts = TopicFacts(
        **shared(properties, exists),
        fifo=properties.setting("FifoTopic", flag, False),
        content_dedup=properties.setting("ContentBasedDeduplication", flag, False),
        key=properties.setting("KmsMasterKeyId", text_of),
    )
    yield facts
    for one in properties.items("Subscription") or ():
        yield _subscription(one, exists, properties.scope.document.setting(properties.path, facts.arn))


def subscription_of(properties: Properties, exists: bool | Unresolved) -> TopicSubscriptionFacts:
    """An AWS::SNS::Subscription."""
    return _subscription(properties, exists, properties.setting("TopicArn", text_of))


def _subscription(
    properties: Properties, exists: bool | Unresolved, topic_arn: ResourceSetting[str]
) -> TopicSubscriptionFacts:
    return TopicSubscriptionFacts(
        **shared(properties, exists),
        topic_arn=topic_arn,
        protocol=properties.setting("Protocol", text_of),
        endpoint=properties.setting("Endpoint", text_of),
        dead_letter_arn=properties.inner("RedrivePolicy").setting("deadLetterTargetArn", text_of),
        raw=properties.setting("RawMessageDelivery", flag, False),
        filter_policy=properties.setting("FilterPolicy", _policy),
        filter_scope=properties.setting("FilterPolicyScope", text_of, "MessageAttributes"),
        allowed=False,
    )


def _policy(value: Any) -> dict[str, Any] | Unresolved:
    if isinstance(value, str):
        try:
            value = json_of(value)
        except ValueError:
            return Unresolved("it is not JSON")
    if why := why_not(value):
        return why
    return value if isinstance(value, dict) else Unresolved("it is not a mapping")


def _topic_event(properties: Properties, exists: bool | Unresolved, arn: str) -> TopicSubscriptionFacts:
    """A SAM event SNS: it subscribes the function, or a queue that SAM creates or grants access to."""
    document = properties.scope.document
    through_queue = properties.raw.get("SqsSubscription") not in (None, False, "false")
    queue_arn = properties.inner("SqsSubscription").setting("QueueArn", text_of)
    return TopicSubscriptionFacts(
        **shared(properties, exists),
        topic_arn=properties.setting("Topic", text_of),
        protocol=document.setting(properties.path, "sqs" if through_queue else "lambda"),
        endpoint=queue_arn if through_queue else document.setting(properties.path, arn),
        dead_letter_arn=properties.inner("RedrivePolicy").setting("deadLetterTargetArn", text_of),
        raw=document.setting(properties.path, False),
        filter_policy=properties.setting("FilterPolicy", _policy),
        filter_scope=properties.setting("FilterPolicyScope", text_of, "MessageAttributes"),
        allowed=True,
    )


def event_of(kind: str, properties: Properties, exists: bool | Unresolved, arn: str) -> ResourceFacts | None:
    """A SAM event whose target has this ARN; None if the event does not come from a schedule, bus or topic."""
    match kind:
        case "ScheduleV2":
            return schedule_of(properties, exists, arn)
        case "Schedule" | "EventBridgeRule" | "CloudWatchEvent":
            return rule_of(properties, exists, arn)
        case "SNS":
            return _topic_event(properties, exists, arn)
        case _:
            return None
