"""Event source mappings of a template: resources of their own, and a SAM function's events of type SQS.

Never here: AWS's limits on their settings; the mapping is checked when it is created. Defaults are Lambda's for SQS
(Lambda API, CreateEventSourceMapping: BatchSize 10, window 0, enabled). What is unresolved keeps a mapping from running:
a mapping with another batch size or without its filter is another mapping.
"""

from __future__ import annotations

import json
from typing import Any, Final

from onefold.check.facts import MappingFacts, Unresolved
from onefold.check.intrinsics import text_of, why_not
from onefold.check.properties import Properties
from onefold.lambdas.settings import BATCH_SIZE_DEFAULT
from onefold.limits import SECOND_MS

INEFFECTIVE: Final = {
    "DestinationConfig": "does not apply to queues",
    "MetricsConfig": "there is no CloudWatch here",
    "ProvisionedPollerConfig": "pollers are not provisioned here; the mapping scales as without it",
}


def mapping_of(
    properties: Properties, *, source_key: str = "EventSourceArn", function: str | None = None
) -> MappingFacts:
    """The facts of a mapping. SAM's events call the ARN `Queue`, and their function is known by where they stand."""
    for key, reason in INEFFECTIVE.items():
        properties.leave_out(key, reason)
    arn = properties.text(source_key, "")
    if not arn and source_key not in properties.unresolved:
        properties.refuse(source_key, "no ARN of a queue")
    scaling = properties.inner("ScalingConfig")
    concurrency_max = scaling.number_or_none("MaximumConcurrency")
    properties.took(scaling)
    return MappingFacts(
        place=properties.place(),
        logical_id=properties.logical_id,
        queue_arn=arn,
        queue=arn.rsplit(":", 1)[-1],
        function=_function_name(properties.text("FunctionName", "")) if function is None else function,
        batch_size=properties.number("BatchSize", BATCH_SIZE_DEFAULT),
        window_ms=properties.number("MaximumBatchingWindowInSeconds", 0) * SECOND_MS,
        concurrency_max=concurrency_max,
        filters=_filters(properties),
        reports_failures="ReportBatchItemFailures" in _texts(properties, "FunctionResponseTypes"),
        enabled=properties.flag("Enabled", True),
        unresolved=properties.unresolved,
    )


def of_another_service(arn: str) -> str | None:
    """The service an event source belongs to, None for SQS or when it cannot be told."""
    parts = arn.split(":")
    return parts[2] if len(parts) >= 6 and parts[0] == "arn" and parts[2] != "sqs" else None


def _function_name(text: str) -> str:
    """A name out of a name, ARN or partial ARN, with or without a version or alias."""
    _, colon, rest = text.partition(":function:")
    return (rest if colon else text).partition(":")[0]


def _texts(properties: Properties, name: str) -> tuple[str, ...]:
    value = properties.get(name)
    if why := why_not(value):
        properties.unresolved[name] = why
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _filters(properties: Properties) -> tuple[str, ...]:
    value: Any = properties.get("FilterCriteria")
    if value is None:
        return ()
    if why := why_not(value):
        properties.unresolved["FilterCriteria"] = why
        return ()
    listed = value.get("Filters", []) if isinstance(value, dict) else None
    if not isinstance(listed, list):
        properties.refuse("FilterCriteria", "no list of Filters")
        return ()
    found: list[str] = []
    for number, item in enumerate(listed):
        pattern = item.get("Pattern") if isinstance(item, dict) else None
        text = json.dumps(pattern) if isinstance(pattern, dict) else text_of(pattern)
        if isinstance(text, Unresolved):
            properties.refuse(f"FilterCriteria.Filters.{number}", "no Pattern")
        else:
            found.append(text)
    return tuple(found)
