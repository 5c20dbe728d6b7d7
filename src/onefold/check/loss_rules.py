"""Rules LOS: settings that lose messages.

Sources: Amazon SQS developer guide, "Using dead-letter queues": same type, account and region; a standard queue's message
keeps its enqueue timestamp in the dead-letter queue; Lambda developer guide, "Using Lambda with Amazon SQS": at least five
receives, filters delete what does not match, maximum concurrency within reserved concurrency; "Durable functions" behind a
mapping: the whole execution within 15 minutes, 90 on managed instances; Step Functions developer guide, failure threshold of
a distributed map.
Never here: positions, edits. Invariant: an unknown value is not a finding.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from onefold.check.duplicate_rules import VISIBILITY_MAX_S, visibility_needed_s
from onefold.check.facts import PropertyPath, ResourceSetting, StateMachineFacts
from onefold.check.findings import Finding, Fix, Related
from onefold.check.intrinsics import why_not
from onefold.check.model import Model, ModelFunction, ModelQueue, settled
from onefold.limits import RETENTION_MS_MAX, SECOND_MS

RECEIVES_LEAST: Final = 5  # Lambda developer guide, as above
CONCURRENCY_LEAST: Final = 2  # Lambda API reference, ScalingConfig: MaximumConcurrency is 2 to 1,000
RETENTION_MAX_S: Final = RETENTION_MS_MAX // SECOND_MS
DAY_S: Final = 86_400
DURABLE_MAX_S: Final = {"functions": 900, "instances": 5_400}  # Lambda developer guide, as above
TOLERATED: Final = (
    "ToleratedFailurePercentage", "ToleratedFailureCount", "ToleratedFailurePercentagePath", "ToleratedFailureCountPath",
)  # fmt: skip


def no_dead_letter_queue(model: Model) -> Iterator[Finding]:
    """LOS001."""
    for queue in model.queues:
        mappings = model.mappings_of(queue)
        if not mappings or queue.may_redrive or queue.is_for_failures:
            continue
        yield Finding(
            rule="LOS001",
            severity="error",
            message=f"{queue.name} has no dead-letter queue: a message that always fails is tried again until it expires,"
            " and then it is gone.",
            source=queue.source,
            resource=queue.name,
            arithmetic=(f"it expires {_days(queue.retention_s.value)} after it was sent",),
            related=(Related(mappings[0].source, mappings[0].name, "receives from it"),),
        )


def _days(seconds: int | None) -> str:
    if seconds is None:
        return "some time"
    return f"{seconds / DAY_S:.3g} days" if seconds >= 2 * DAY_S else f"{seconds:,} s"


def _pairs(model: Model) -> Iterator[tuple[ModelQueue, ModelQueue]]:
    """Queues with the dead-letter queue that is in the same template."""
    for queue in model.queues:
        if queue.dead_letters is not None:
            yield queue, queue.dead_letters


def dead_letters_expire_early(model: Model) -> Iterator[Finding]:
    """LOS002."""
    for queue, dead in _pairs(model):
        source_s, dead_s = queue.retention_s.value, dead.retention_s.value
        if source_s is None or dead_s is None or dead_s > source_s or dead_s == RETENTION_MAX_S:
            continue
        if queue.facts.fifo or "FifoQueue" in queue.facts.unresolved:
            continue
        yield Finding(
            rule="LOS002",
            severity="error" if dead_s < source_s else "warning",
            message=f"A dead letter of {queue.name} keeps the time at which it was sent, and {dead.name} deletes it"
            f" {_days(dead_s)} after that: a message that waited long is gone soon after it arrives there.",
            source=dead.retention_s.source,
            resource=dead.name,
            property_path=dead.retention_s.path,
            arithmetic=(f"{queue.name} keeps {source_s:,} s, {dead.name} {dead_s:,} s, both from the first send",),
            related=(Related(queue.retention_s.source, queue.name, f"MessageRetentionPeriod: {source_s:,} s"),),
            fix=Fix(
                f"Set MessageRetentionPeriod of {dead.name} to {RETENTION_MAX_S}.",
                "safe",
                settled(model.document, dead.retention_s, RETENTION_MAX_S),
            ),
        )


def few_receives(model: Model) -> Iterator[Finding]:
    """LOS003."""
    for queue in model.queues:
        receives = queue.receives_max
        if (
            receives is None
            or receives.value is None
            or receives.value >= RECEIVES_LEAST
            or not model.mappings_of(queue)
        ):
            continue
        yield Finding(
            rule="LOS003",
            severity="error" if receives.value == 1 else "warning",
            message=f"{queue.name} gives up on a message after {receives.value} receive{'s' * (receives.value > 1)}. Lambda"
            " also receives messages without running the function, when it is throttled, and each of these receives counts.",
            source=receives.source,
            resource=queue.name,
            property_path=receives.path,
            arithmetic=(f"maxReceiveCount {receives.value} < {RECEIVES_LEAST}",),
            fix=Fix(
                f"Set maxReceiveCount to {RECEIVES_LEAST}.", "unsafe", settled(model.document, receives, RECEIVES_LEAST)
            ),
        )


def expires_before_dead_letter_queue(model: Model) -> Iterator[Finding]:
    """LOS004."""
    for queue in model.queues:
        receives, visibility_s, retention_s = queue.receives_max, queue.visibility_s.value, queue.retention_s.value
        if receives is None or receives.value is None or visibility_s is None or retention_s is None:
            continue
        needs = [(need, one) for one in model.mappings_of(queue) if (need := visibility_needed_s(one)) is not None]
        needed_s, mapping = max(needs, key=lambda pair: pair[0], default=(0, None))
        each_s = max(visibility_s, min(needed_s, VISIBILITY_MAX_S))
        if receives.value * each_s <= retention_s:
            continue
        is_raised = each_s > visibility_s
        yield Finding(
            rule="LOS004",
            severity="error",
            message=("With the visibility timeout that it needs, a" if is_raised else "A")
            + f" message of {queue.name} that always fails expires before it has been received {receives.value:,} times:"
            " it is deleted and never reaches the dead-letter queue.",
            source=receives.source,
            resource=queue.name,
            property_path=receives.path,
            arithmetic=(
                f"{receives.value:,} receives x {each_s} s"
                + (f" (the visibility timeout that {mapping.name} needs)" if is_raised and mapping is not None else "")
                + f" = {receives.value * each_s:,} s",
                f"messages are kept for {retention_s:,} s",
            ),
            related=(
                Related(queue.retention_s.source, queue.name, f"MessageRetentionPeriod: {retention_s:,} s"),
                Related(queue.visibility_s.source, queue.name, f"VisibilityTimeout: {visibility_s} s"),
            ),
            fix=_in_time(model, queue, receives, retention_s // each_s, each_s),
        )


def _in_time(model: Model, queue: ModelQueue, receives: ResourceSetting[int], most: int, each_s: int) -> Fix:
    """Fewer receives; where that would be too few for a function, a longer retention."""
    if most >= RECEIVES_LEAST or (most and not model.mappings_of(queue)):
        description = f"Set maxReceiveCount of {queue.name} to {most} or less."
        return Fix(description, "safe", settled(model.document, receives, most))
    least = min(receives.value or RECEIVES_LEAST, RECEIVES_LEAST)
    keeps = queue.dead_letters is not None and (queue.dead_letters.retention_s.value or 0) > least * each_s
    edits = settled(model.document, queue.retention_s, least * each_s) if keeps else ()
    if edits and receives.value != least:
        edits += settled(model.document, receives, least)
    return Fix(
        f"Set maxReceiveCount of {queue.name} to {least} and MessageRetentionPeriod to {least * each_s:,} s, shorter than"
        " that of its dead-letter queue.",
        "safe",
        edits,
    )


def unlike_dead_letter_queue(model: Model) -> Iterator[Finding]:
    """LOS005."""
    for queue, dead in _pairs(model):
        if queue.facts.fifo == dead.facts.fifo or "FifoQueue" in {*queue.facts.unresolved, *dead.facts.unresolved}:
            continue
        kinds = {True: "a FIFO queue", False: "a standard queue"}
        yield Finding(
            rule="LOS005",
            severity="error",
            message=f"{queue.name} is {kinds[queue.facts.fifo]} and its dead-letter queue {dead.name} is"
            f" {kinds[dead.facts.fifo]}: SQS accepts only one of the same kind.",
            source=queue.receives_max.source if queue.receives_max is not None else queue.source,
            resource=queue.name,
            property_path="RedrivePolicy",
            related=(Related(dead.source, dead.name, kinds[dead.facts.fifo]),),
        )


def source_not_allowed(model: Model) -> Iterator[Finding]:
    """LOS006."""
    for queue, dead in _pairs(model):
        policy = _policy(dead)
        if policy is None:
            continue
        permission = policy.get("redrivePermission", "allowAll")
        arns = policy.get("sourceQueueArns", [])
        names = {str(one).rsplit(":", 1)[-1] for one in arns} if isinstance(arns, list) else set()
        is_allowed = permission == "allowAll" or (permission == "byQueue" and queue.facts.name in names)
        if not is_allowed:
            yield Finding(
                rule="LOS006",
                severity="error",
                message=f"{dead.name} does not take dead letters of {queue.name}: its RedriveAllowPolicy says {permission}.",
                source=dead.source,
                resource=dead.name,
                property_path="RedriveAllowPolicy",
                arithmetic=(f"sourceQueueArns: {', '.join(sorted(names)) or 'none'}",),
                related=(Related(queue.source, queue.name, f"its dead letters go to {dead.name}"),),
            )


def _policy(queue: ModelQueue) -> dict[str, Any] | None:
    text = queue.facts.attributes.get("RedriveAllowPolicy")
    found: dict[str, Any] | None = None if text is None else json.loads(text)
    return found


def filters_beside_another(model: Model) -> Iterator[Finding]:
    """LOS009."""
    for queue in model.queues:
        mappings = model.mappings_of(queue)
        filtered = [one for one in mappings if one.facts.filters]
        if len(mappings) < 2 or not filtered:
            continue
        first = filtered[0]
        yield Finding(
            rule="LOS009",
            severity="error",
            message=f"{first.name} filters what it receives from {queue.name}, and so deletes messages that are meant for"
            f" another of its {len(mappings)} mappings: what a filter does not match is deleted.",
            source=first.source,
            resource=first.name,
            property_path="FilterCriteria",
            related=tuple(
                Related(one.source, one.name, "receives from it too") for one in mappings if one is not first
            ),
        )


def reserved_below_concurrency(model: Model) -> Iterator[Finding]:
    """LOS010."""
    for function in model.functions:
        reserved = function.reserved
        mappings = [one for one in model.mappings if one.function is function]
        if reserved is None or reserved.value is None or not mappings:
            continue
        bounds = [one.concurrency_max.value for one in mappings if one.concurrency_max is not None]
        together = sum(one for one in bounds if one is not None)
        if together > reserved.value:
            yield _throttled(
                model, function, f"{' + '.join(str(one) for one in bounds)} > {reserved.value} reserved", together
            )
        elif len(bounds) < len(mappings) and reserved.value < RECEIVES_LEAST:
            yield _throttled(
                model,
                function,
                f"Lambda begins with {RECEIVES_LEAST} pollers > {reserved.value} reserved",
                RECEIVES_LEAST,
            )


def _throttled(model: Model, function: ModelFunction, arithmetic: str, least: int) -> Finding:
    reserved = function.reserved
    assert reserved is not None
    assert reserved.value is not None
    mappings = sum(one.function is function for one in model.mappings)
    other = f", or let the ScalingConfig.MaximumConcurrency of its mappings add up to {reserved.value} at most"
    can_bound = reserved.value >= CONCURRENCY_LEAST * mappings
    return Finding(
        rule="LOS010",
        severity="warning",
        message=f"{function.name} has {reserved.value} reserved concurrent execution{'s' * (reserved.value != 1)}, fewer"
        " than its queues may use: messages for which it is throttled use up their receives without being processed.",
        source=reserved.source,
        resource=function.name,
        property_path=reserved.path,
        arithmetic=(arithmetic,),
        fix=Fix(
            f"Reserve {least}{other if can_bound else ''}.",
            "unsafe",
            settled(model.document, reserved, least),
        ),
    )


def destination_of_a_queue(model: Model) -> Iterator[Finding]:
    """LOS011."""
    for mapping in model.mappings:
        if mapping.queue is not None and mapping.facts.destination is not None:
            yield Finding(
                rule="LOS011",
                severity="warning",
                message=f"{mapping.name} names a destination for failures. A mapping of a queue cannot have one: failed"
                " messages go back to the queue, and to its dead-letter queue.",
                source=mapping.source,
                resource=mapping.name,
                property_path="DestinationConfig",
            )


def durable_longer_than_a_mapping_waits(model: Model) -> Iterator[Finding]:
    """LOS012."""
    for mapping in model.mappings:
        function = mapping.function
        if function is None:
            continue
        durable = function.facts.durable_s
        most = DURABLE_MAX_S["instances" if function.facts.on_instances else "functions"]
        if mapping.queue is None or durable.value is None or durable.value <= most:
            continue
        yield Finding(
            rule="LOS012",
            severity="error",
            message=f"{function.name} is a durable function that may take {durable.value:,} s, and {mapping.name} waits"
            f" for {most:,} s: what takes longer counts as failed, and its messages are received again until they"
            " become dead letters.",
            source=durable.source,
            resource=function.name,
            property_path=durable.path,
            arithmetic=(f"ExecutionTimeout {durable.value:,} s > {most:,} s",),
            related=(Related(mapping.source, mapping.name, "invokes it and waits"),),
            fix=Fix(
                f"Set ExecutionTimeout to {most}, or start the execution from a function that does not wait for it.",
                "unsafe",
                settled(model.document, durable, most),
            ),
        )


def tolerated_items_without_a_manifest(model: Model) -> Iterator[Finding]:
    """LOS017."""
    for machine in model.all(StateMachineFacts):
        if machine.definition.value is None:
            continue
        for path, state in _states(machine.definition.value, machine.definition.at):
            tolerated = [name for name in TOLERATED if _may_tolerate(state.get(name))]
            if state.get("Type") != "Map" or not tolerated or "ResultWriter" in state or _catches_all(state):
                continue
            source = model.document.source((*path, tolerated[0]))
            yield Finding(
                rule="LOS017",
                severity="warning",
                message=f"The map {path[-1]} of {machine.id} goes on when items fail and writes no list of them:"
                " nobody knows which ones were left undone.",
                source=source,
                resource=machine.id,
                property_path=".".join(map(str, (*path, tolerated[0]))),
                arithmetic=(f"{tolerated[0]}: {_shown(state[tolerated[0]])}, and no ResultWriter",),
                fix=Fix("Add a ResultWriter, and let a next state look at FAILED in its manifest.", "unsafe"),
            )


def _states(definition: dict[str, Any], at: PropertyPath) -> Iterator[tuple[PropertyPath, dict[str, Any]]]:
    """The states of a state machine with their paths, including those inside other states."""
    states = definition.get("States")
    for name, state in states.items() if isinstance(states, dict) else ():
        if not isinstance(state, dict):
            continue
        path = (*at, "States", name)
        yield path, state
        for key in ("ItemProcessor", "Iterator"):
            if isinstance(state.get(key), dict):
                yield from _states(state[key], (*path, key))
        branches = state.get("Branches")
        for number, branch in enumerate(branches if isinstance(branches, list) else ()):
            if isinstance(branch, dict):
                yield from _states(branch, (*path, "Branches", number))


def _may_tolerate(value: Any) -> bool:
    """Whether a threshold lets items fail: a number above 0, or a path to one."""
    return (isinstance(value, int | float) and value > 0) or (isinstance(value, str) and bool(value))


def _catches_all(state: dict[str, Any]) -> bool:
    """Whether each task of a map's items handles its own errors, or may do so."""
    processor = state.get("ItemProcessor") or state.get("Iterator")
    states = processor.get("States") if isinstance(processor, dict) else None
    if not isinstance(states, dict) or not all(isinstance(one, dict) for one in states.values()):
        return True
    inner = [one for _, one in _states({"States": states}, ())]
    if any(why_not([one.get("Type"), one.get("Catch")]) for one in inner):
        return True
    tasks = [one for one in inner if one.get("Type") in ("Task", "Map", "Parallel")]
    return bool(tasks) and all("States.ALL" in json.dumps(one.get("Catch"), default=str) for one in tasks)


def _shown(value: Any) -> str:
    return f"{value}"[:60]
