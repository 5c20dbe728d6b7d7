"""Rules CLG: settings that Lambda refuses, or by which work stops.

Sources: Lambda API reference, CreateEventSourceMapping: at most 10 messages and no window for FIFO queues, a window of at
least 1 s for more than 10, maximum concurrency and provisioned pollers exclude each other; SQS developer guide, quotas:
about 120,000 messages of a standard queue in flight.
Never here: positions, edits. Invariant: a value that is not known is no finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from onefold.check.duplicate_rules import VISIBILITY_MAX_S, visibility_needed_s
from onefold.check.findings import Finding, Fix, Related
from onefold.check.model import Model, settled

FIFO_BATCH_MAX: Final = 10
BATCH_WITHOUT_WINDOW_MAX: Final = 10
IN_FLIGHT_MAX: Final = 120_000


def batch_of_fifo_queue(model: Model) -> Iterator[Finding]:
    """CLG001."""
    for mapping in model.mappings:
        if mapping.queue is None or not mapping.queue.facts.fifo:
            continue
        for setting, most, what in (
            (mapping.batch_size, FIFO_BATCH_MAX, "messages a batch"),
            (mapping.window_s, 0, "s batching window"),
        ):
            if setting.value is not None and setting.value > most:
                yield Finding(
                    rule="CLG001",
                    severity="error",
                    message=f"{mapping.name} receives from a FIFO queue with {setting.value} {what}; Lambda refuses more"
                    f" than {most}.",
                    source=setting.source,
                    resource=mapping.name,
                    property_path=setting.path,
                    arithmetic=(f"{setting.value} > {most}",),
                    related=(Related(mapping.queue.source, mapping.queue.name, "is a FIFO queue"),),
                    fix=Fix(f"Set it to {most}.", "safe", settled(model.document, setting, most)),
                )


def visibility_over_the_limit(model: Model) -> Iterator[Finding]:
    """CLG003."""
    for mapping in model.mappings:
        needed_s = visibility_needed_s(mapping)
        if mapping.queue is not None and needed_s is not None and needed_s > VISIBILITY_MAX_S:
            assert mapping.function is not None
            yield Finding(
                rule="CLG003",
                severity="warning",
                message=f"{mapping.function.name} would need a visibility timeout of {needed_s:,} s, and SQS takes at most"
                f" {VISIBILITY_MAX_S:,}.",
                source=mapping.function.timeout_s.source,
                resource=mapping.function.name,
                property_path=mapping.function.timeout_s.path,
                arithmetic=(
                    f"6 x {mapping.function.timeout_s.value:,} s + {mapping.window_s.value} s = {needed_s:,} s",
                ),
            )
    for queue in model.queues:
        setting = queue.visibility_s
        if setting.value is not None and setting.value > VISIBILITY_MAX_S:
            yield Finding(
                rule="CLG003",
                severity="error",
                message=f"{queue.name} has a visibility timeout of {setting.value:,} s; SQS takes at most"
                f" {VISIBILITY_MAX_S:,}.",
                source=setting.source,
                resource=queue.name,
                property_path=setting.path,
                arithmetic=(f"{setting.value:,} > {VISIBILITY_MAX_S:,}",),
                fix=Fix(
                    f"Set VisibilityTimeout to {VISIBILITY_MAX_S}.",
                    "safe",
                    settled(model.document, setting, VISIBILITY_MAX_S),
                ),
            )


def in_flight_over_the_limit(model: Model) -> Iterator[Finding]:
    """CLG005."""
    for mapping in model.mappings:
        bound = None if mapping.concurrency_max is None else mapping.concurrency_max.value
        batch_size = mapping.batch_size.value
        if mapping.queue is None or mapping.queue.facts.fifo or bound is None or batch_size is None:
            continue
        if bound * batch_size > IN_FLIGHT_MAX:
            yield Finding(
                rule="CLG005",
                severity="warning",
                message=f"{mapping.name} may have {bound * batch_size:,} messages in flight; SQS gives out no more of a"
                f" standard queue once some {IN_FLIGHT_MAX:,} are.",
                source=mapping.batch_size.source,
                resource=mapping.name,
                property_path=mapping.batch_size.path,
                arithmetic=(
                    f"{bound} concurrent x {batch_size:,} a batch = {bound * batch_size:,} > {IN_FLIGHT_MAX:,}",
                ),
                fix=Fix(
                    f"Set BatchSize to {IN_FLIGHT_MAX // bound}.",
                    "safe",
                    settled(model.document, mapping.batch_size, IN_FLIGHT_MAX // bound),
                ),
            )


def concurrency_and_pollers(model: Model) -> Iterator[Finding]:
    """CLG007."""
    for mapping in model.mappings:
        if mapping.concurrency_max is not None and mapping.facts.has_pollers:
            yield Finding(
                rule="CLG007",
                severity="error",
                message=f"{mapping.name} has both a maximum concurrency and provisioned pollers; Lambda refuses that.",
                source=mapping.concurrency_max.source,
                resource=mapping.name,
                property_path=mapping.concurrency_max.path,
            )


def batch_without_window(model: Model) -> Iterator[Finding]:
    """CLG012."""
    for mapping in model.mappings:
        batch_size, window_s = mapping.batch_size.value, mapping.window_s.value
        if mapping.queue is None or mapping.queue.facts.fifo or batch_size is None or window_s is None:
            continue
        if batch_size > BATCH_WITHOUT_WINDOW_MAX and window_s < 1:
            yield Finding(
                rule="CLG012",
                severity="error",
                message=f"{mapping.name} asks for batches of {batch_size:,} without a batching window; Lambda refuses more"
                f" than {BATCH_WITHOUT_WINDOW_MAX} without a window of at least 1 s.",
                source=mapping.batch_size.source,
                resource=mapping.name,
                property_path=mapping.batch_size.path,
                arithmetic=(f"{batch_size:,} > {BATCH_WITHOUT_WINDOW_MAX}, and the window is {window_s} s",),
                fix=Fix(
                    "Set MaximumBatchingWindowInSeconds to 1.", "safe", settled(model.document, mapping.window_s, 1)
                ),
            )
