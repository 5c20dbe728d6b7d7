"""Conversion of a queue's settings to SQS attributes and back.

SQS has no attribute for a held queue; its name is in the tag `onefold:held`. Times that SQS keeps in seconds must be
whole seconds, and SQS's limit on messages in flight cannot be set.

Never here: calls to AWS. Invariant: writing back what `read` returned changes nothing.

Sources: SQS API reference, CreateQueue and SetQueueAttributes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from onefold import errors, limits
from onefold.contracts.settings import QueueSettings, check_settings

HELD_TAG: Final = "onefold:held"
_SECONDS: Final = {
    "VisibilityTimeout": "visibility_ms",
    "MessageRetentionPeriod": "retention_ms",
    "DelaySeconds": "delay_ms",
}


def check(settings: QueueSettings) -> None:
    """Refuse settings that SQS cannot store, before any call is made.

    Raises:
        UsageError: names the setting and its value.
    """
    check_settings(settings)
    for name in _SECONDS.values():
        if getattr(settings, name) % limits.SECOND_MS:
            raise errors.UsageError(
                f"Queue {settings.name!r} has {name}={getattr(settings, name)}.",
                meaning="SQS keeps this in whole seconds.",
                todo="Give a whole number of seconds.",
            )
    if settings.in_flight_max != limits.IN_FLIGHT_MAX:
        raise errors.UsageError(
            f"Queue {settings.name!r} has in_flight_max={settings.in_flight_max}.",
            meaning=f"On SQS it is {limits.IN_FLIGHT_MAX:,} for every queue; only AWS Support can change it.",
            todo="Leave it out.",
        )


def written(settings: QueueSettings, arn_of: Callable[[str], str]) -> dict[str, str]:
    """The attributes for SetQueueAttributes: all of them, so that a setting that was removed is reset.

    Args:
        arn_of: returns the ARN of an existing queue.

    Raises:
        NotFoundError: from `arn_of`.
    """
    found = {name: str(getattr(settings, field) // limits.SECOND_MS) for name, field in _SECONDS.items()}
    found["MaximumMessageSize"] = str(settings.message_bytes_max)
    found["RedrivePolicy"] = ""
    if settings.dead_letter is not None:
        policy = {"deadLetterTargetArn": arn_of(settings.dead_letter), "maxReceiveCount": settings.receives_max}
        found["RedrivePolicy"] = json.dumps(policy, separators=(",", ":"))
    allow: dict[str, Any] = {"redrivePermission": settings.redrive_allow}
    if settings.redrive_sources:
        allow["sourceQueueArns"] = [arn_of(name) for name in settings.redrive_sources]
    found["RedriveAllowPolicy"] = json.dumps(allow, separators=(",", ":"))
    if settings.fifo:
        found["ContentBasedDeduplication"] = "true" if settings.content_dedup else "false"
        found["DeduplicationScope"] = settings.dedup_scope
    return found


def read(name: str, attributes: Mapping[str, str], name_of_arn: Callable[[str], str]) -> QueueSettings:
    """Settings from GetQueueAttributes, without `held`.

    Args:
        name: the queue's name, as onefold's users write it.
        name_of_arn: returns that name for another queue's ARN.
    """
    redrive = _map(attributes.get("RedrivePolicy"))
    allow = _map(attributes.get("RedriveAllowPolicy"))
    fifo = attributes.get("FifoQueue") == "true"
    target = redrive.get("deadLetterTargetArn")
    scope: Any = attributes.get("DeduplicationScope", "queue")
    times: dict[str, Any] = {
        field: int(attributes[attribute]) * limits.SECOND_MS
        for attribute, field in _SECONDS.items()
        if attribute in attributes
    }
    return QueueSettings(
        name=name,
        fifo=fifo,
        message_bytes_max=int(attributes.get("MaximumMessageSize", limits.MESSAGE_BYTES_MAX)),
        dead_letter=name_of_arn(target) if target else None,
        receives_max=int(redrive["maxReceiveCount"]) if target else None,
        content_dedup=attributes.get("ContentBasedDeduplication") == "true",
        dedup_scope=scope if fifo else "queue",
        redrive_allow=allow.get("redrivePermission", "allowAll"),
        redrive_sources=tuple(name_of_arn(arn) for arn in allow.get("sourceQueueArns", ())),
        **times,
    )


def _map(text: str | None) -> dict[str, Any]:
    found = json.loads(text) if text else {}
    return found if isinstance(found, dict) else {}
