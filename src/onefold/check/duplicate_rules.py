"""Rules DUP: settings that make finished work run again.

Sources: AWS Lambda developer guide, "Using Lambda with Amazon SQS", configuring the source queue: a visibility timeout of at
least six times the function's timeout, plus the batching window; "Implementing partial batch responses";
CreateEventSourceMapping refuses a visibility timeout below the function's timeout. DynamoDB developer guide, global tables:
replicas are eventually consistent unless MultiRegionConsistency is STRONG, and a condition is checked in one region.
Never here: positions, edits. Invariant: an unknown value is not a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from onefold.check.facts import TableFacts
from onefold.check.findings import Finding, FindingEdit, Fix, Related
from onefold.check.model import Model, ModelFunction, ModelMapping, ModelQueue, inserted, settled
from onefold.limits import SECOND_MS, VISIBILITY_MS_MAX

VISIBILITY_MAX_S: Final = VISIBILITY_MS_MAX // SECOND_MS
TIMEOUTS_A_RECEIVE: Final = 6  # Lambda developer guide, as above


def visibility_needed_s(mapping: ModelMapping) -> int | None:
    """Six times the function's timeout and the batching window; None if one of them is not known."""
    timeout_s = None if mapping.function is None else mapping.function.timeout_s.value
    if timeout_s is None or mapping.window_s.value is None:
        return None
    return TIMEOUTS_A_RECEIVE * timeout_s + mapping.window_s.value


def _pairs(model: Model) -> Iterator[tuple[ModelMapping, ModelQueue, ModelFunction, int, int, int]]:
    """Mappings whose queue and function are known, with visibility timeout, function timeout and needed visibility (s)."""
    for mapping in model.mappings:
        queue, function, needed_s = mapping.queue, mapping.function, visibility_needed_s(mapping)
        if queue is None or function is None or needed_s is None:
            continue
        visibility_s, timeout_s = queue.visibility_s.value, function.timeout_s.value
        if visibility_s is not None and timeout_s is not None:
            yield mapping, queue, function, visibility_s, timeout_s, needed_s


def _raise_visibility(model: Model, queue: ModelQueue, needed_s: int) -> Fix:
    value = min(needed_s, VISIBILITY_MAX_S)
    return Fix(
        f"Set VisibilityTimeout of {queue.name} to {value}.", "safe", settled(model.document, queue.visibility_s, value)
    )


def _function_of(function: ModelFunction) -> Related:
    default = "" if function.timeout_s.written else " (AWS's default)"
    return Related(function.timeout_s.source, function.name, f"Timeout: {function.timeout_s.value} s{default}")


def _arithmetic(mapping: ModelMapping, visibility_s: int, timeout_s: int, needed_s: int) -> tuple[str, ...]:
    return (
        f"{TIMEOUTS_A_RECEIVE} x {timeout_s} s timeout + {mapping.window_s.value} s batching window = {needed_s} s",
        f"the visibility timeout is {visibility_s} s",
    )


def visibility_below_timeout(model: Model) -> Iterator[Finding]:
    """DUP001."""
    for mapping, queue, function, visibility_s, timeout_s, needed_s in _pairs(model):
        if visibility_s < timeout_s:
            yield Finding(
                rule="DUP001",
                severity="error",
                message=f"{queue.name} shows a message again after {visibility_s} s, while {function.name} may run for"
                f" {timeout_s} s: a second invocation works on it at the same time.",
                source=queue.visibility_s.source,
                resource=queue.name,
                property_path=queue.visibility_s.path,
                arithmetic=_arithmetic(mapping, visibility_s, timeout_s, needed_s),
                related=(_function_of(function),),
                fix=_raise_visibility(model, queue, needed_s),
            )


def visibility_below_six_timeouts(model: Model) -> Iterator[Finding]:
    """DUP002."""
    for mapping, queue, function, visibility_s, timeout_s, needed_s in _pairs(model):
        if not timeout_s <= visibility_s < min(needed_s, VISIBILITY_MAX_S):
            continue
        window_s = mapping.window_s.value or 0
        at_once = visibility_s < timeout_s + window_s or visibility_s == timeout_s
        yield Finding(
            rule="DUP002",
            severity="error" if at_once else "warning",
            message=f"{queue.name} has a visibility timeout of {visibility_s} s; for {function.name} it needs {needed_s} s."
            + (" A run that takes its whole time is started again while it still runs." if at_once else ""),
            source=queue.visibility_s.source,
            resource=queue.name,
            property_path=queue.visibility_s.path,
            arithmetic=_arithmetic(mapping, visibility_s, timeout_s, needed_s),
            related=(_function_of(function),),
            fix=_raise_visibility(model, queue, needed_s),
        )


def batch_returns_on_timeout(model: Model) -> Iterator[Finding]:
    """DUP003."""
    for mapping, queue, function, visibility_s, timeout_s, needed_s in _pairs(model):
        batch_size = mapping.batch_size.value
        if batch_size is None or batch_size < 2 or visibility_s > timeout_s + (mapping.window_s.value or 0):
            continue
        each_ms = timeout_s * 1_000 // batch_size
        yield Finding(
            rule="DUP003",
            severity="error",
            message=f"When {function.name} times out, all {batch_size} messages of its batch come back, those that were"
            " done too: a function that has timed out returns no partial answer.",
            source=mapping.batch_size.source,
            resource=mapping.name,
            property_path=mapping.batch_size.path,
            arithmetic=(
                f"{timeout_s} s timeout / {batch_size} messages = {each_ms:,} ms for each",
                f"the batch is visible again {visibility_s} s after it was received, and may run until second {timeout_s}",
            ),
            related=(_function_of(function),),
            fix=_raise_visibility(model, queue, needed_s),
        )


def report_failures(model: Model, mapping: ModelMapping) -> tuple[FindingEdit, ...]:
    """The edit that makes a mapping ask for the failed messages."""
    properties = mapping.facts.location.parts
    return tuple(inserted(model.document, properties, "FunctionResponseTypes", ["ReportBatchItemFailures"]))


def no_partial_answer(model: Model) -> Iterator[Finding]:
    """DUP004."""
    for mapping in model.mappings:
        batch_size = mapping.batch_size.value
        if mapping.queue is None or mapping.reports_failures is not False or batch_size is None or batch_size < 2:
            continue
        yield Finding(
            rule="DUP004",
            severity="warning",
            message=f"One message that fails brings back the whole batch of up to {batch_size}: {mapping.name} does not"
            " report which ones failed.",
            source=mapping.batch_size.source,
            resource=mapping.name,
            property_path=mapping.batch_size.path,
            arithmetic=(f"1 failed message -> up to {batch_size - 1} that were done are delivered again",),
            fix=Fix(
                "Add FunctionResponseTypes: [ReportBatchItemFailures], and return the failed ids as batchItemFailures.",
                "unsafe",
                report_failures(model, mapping),
            ),
        )


def two_consumers(model: Model) -> Iterator[Finding]:
    """DUP011."""
    for queue in model.queues:
        mappings = model.mappings_of(queue)
        functions = {one.facts.function for one in mappings}
        if len(functions) < 2 or any(one.facts.filters for one in mappings):
            continue
        first, *others = mappings
        yield Finding(
            rule="DUP011",
            severity="warning",
            message=f"{len(functions)} functions receive from {queue.name}: each message goes to one of them, by chance.",
            source=first.source,
            resource=first.name,
            related=tuple(Related(one.source, one.name, f"{one.name} receives from it too") for one in others),
        )


def claimed_in_two_regions(model: Model) -> Iterator[Finding]:
    """DUP012."""
    for table in model.all(TableFacts):
        regions = table.regions.value
        if (
            regions is None
            or len(set(regions)) < 2
            or table.consistency.value != "EVENTUAL"
            or not _keeps_records(table)
        ):
            continue
        yield Finding(
            rule="DUP012",
            severity="warning",
            message=f"{table.id} keeps records of what is done, and each of its {len(set(regions))} regions checks a claim"
            " against its own copy: one job that is delivered in two regions is done in both.",
            source=table.regions.source,
            resource=table.id,
            property_path=table.regions.path,
            arithmetic=(f"replicas in {', '.join(sorted(set(regions)))}, consistency {table.consistency.value}",),
            fix=Fix("Set MultiRegionConsistency to STRONG, or claim in one region only.", "unsafe"),
        )


def _keeps_records(table: TableFacts) -> bool:
    """Whether a table is of idempotency records: by its name, or with the key and expiry that Powertools has."""
    names = (table.id, table.name)
    is_powertools = table.hash_key.value == "id" and table.ttl_attribute.value == "expiration"
    return is_powertools or any("idempot" in one.lower() for one in names)
