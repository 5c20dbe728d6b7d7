"""The facts of a queue and of a queue policy in a template.

Never here: whether settings are allowed; SQS says that when they are created. Invariant: a property that is not used
is noted with the reason.
Source: CloudFormation's AWS::SQS::Queue, whose properties are the attributes of SQS CreateQueue; AWS::SQS::QueuePolicy.
"""

from __future__ import annotations

import json
from typing import Any, Final

from onefold.check.documents import json_of
from onefold.check.facts import PolicyFacts, QueueFacts, RedriveFacts, Unresolved
from onefold.check.intrinsics import text_of, whole_number, why_not
from onefold.check.scope import Properties

QUEUE_ATTRIBUTES: Final = (
    "ContentBasedDeduplication",
    "DeduplicationScope",
    "DelaySeconds",
    "FifoQueue",
    "FifoThroughputLimit",
    "KmsDataKeyReusePeriodSeconds",
    "KmsMasterKeyId",
    "MaximumMessageSize",
    "MessageRetentionPeriod",
    "ReceiveMessageWaitTimeSeconds",
    "SqsManagedSseEnabled",
    "VisibilityTimeout",
)
QUEUE_DOCUMENTS: Final = ("RedriveAllowPolicy", "RedrivePolicy")


def queue_of(properties: Properties) -> QueueFacts:
    """The facts of an AWS::SQS::Queue."""
    name, why = properties.scope.name_of(properties.logical_id)
    if why is not None:
        properties.unresolved["QueueName"] = Unresolved(f"{why.why}; the queue is named {name}")
    attributes: dict[str, str] = {}
    for key in QUEUE_ATTRIBUTES:
        if (value := properties.text(key, "")) != "":
            attributes[key] = value
    if attributes.get("FifoQueue") == "false":  # CloudFormation accepts it; SQS knows only "true"
        del attributes["FifoQueue"]
    for key in QUEUE_DOCUMENTS:
        if (document := _document(properties, key)) is not None:
            attributes[key] = json.dumps(document)
    for key in properties.raw:
        if key not in {*QUEUE_ATTRIBUTES, *QUEUE_DOCUMENTS, "QueueName", "Tags"}:
            properties.leave_out(key, "not a property of a queue")
    return QueueFacts(
        location=properties.location(),
        logical_id=properties.logical_id,
        name=name,
        named="QueueName" in properties.raw and why is None,
        attributes=attributes,
        tags=_tags(properties),
        redrive=_redrive(properties, attributes),
        unresolved=properties.unresolved,
    )


def policy_of(properties: Properties, exists: bool | Unresolved = True) -> PolicyFacts:
    """The facts of an AWS::SQS::QueuePolicy or QueueInlinePolicy."""
    urls = properties.get("Queues") if "Queues" in properties.raw else [properties.get("Queue")]
    if not isinstance(urls, list):
        properties.refuse("Queues", "not a list of URLs")
    names = [url.rsplit("/", 1)[-1] for url in urls if isinstance(url, str)] if isinstance(urls, list) else []
    return PolicyFacts(
        location=properties.location(),
        logical_id=properties.logical_id,
        queues=tuple(names),
        document=properties.get("PolicyDocument"),
        is_for_others=not isinstance(urls, list) or len(names) < len(urls),
        exists=exists,
    )


def _document(properties: Properties, key: str) -> dict[str, Any] | None:
    value = properties.get(key)
    if isinstance(value, str):
        try:
            value = json_of(value)
        except ValueError:
            properties.refuse(key, "not JSON")
            return None
    if value is None or value == {}:
        return None
    if not isinstance(value, dict):
        properties.refuse(key, "not a mapping")
        return None
    if why := why_not(value):
        properties.unresolved[key] = why
        return None
    return value


def _redrive(properties: Properties, attributes: dict[str, str]) -> RedriveFacts | None:
    if "RedrivePolicy" not in attributes:
        return None
    policy = json.loads(attributes["RedrivePolicy"])
    arn, receives_max = text_of(policy.get("deadLetterTargetArn")), whole_number(policy.get("maxReceiveCount"))
    if isinstance(arn, Unresolved) or isinstance(receives_max, Unresolved):
        properties.refuse("RedrivePolicy", "it needs deadLetterTargetArn and a whole maxReceiveCount")
        del attributes["RedrivePolicy"]
        return None
    return RedriveFacts(properties.location("RedrivePolicy"), arn.rsplit(":", 1)[-1], receives_max)


def _tags(properties: Properties) -> dict[str, str]:
    value = properties.get("Tags")
    found: dict[str, str] = {}
    for number, item in enumerate(value if isinstance(value, list) else ()):
        pair = (text_of(item.get("Key")), text_of(item.get("Value"))) if isinstance(item, dict) else (None, None)
        if isinstance(pair[0], str) and isinstance(pair[1], str):
            found[pair[0]] = pair[1]
        else:
            properties.unresolved[f"Tags.{number}"] = why_not(item) or Unresolved("no Key and Value")
    return found


def in_order(queues: list[QueueFacts]) -> list[QueueFacts]:
    """A queue comes after its dead-letter queue; queues that refer to one another in a circle keep their order."""
    by_name = {queue.name: queue for queue in queues}
    placed: dict[str, QueueFacts] = {}
    for queue in queues:
        chain: list[QueueFacts] = []
        current: QueueFacts | None = queue
        while current is not None and current.name not in placed and current not in chain:
            chain.append(current)
            current = by_name.get(current.redrive.target) if current.redrive else None
        placed.update((one.name, one) for one in reversed(chain))
    return list(placed.values())
