"""Rules CLG: settings that Lambda refuses, or that make work stop.

Sources: Lambda API reference, CreateEventSourceMapping: at most 10 messages and no window for FIFO queues, a window of at
least 1 s for more than 10, maximum concurrency and provisioned pollers exclude each other; SQS developer guide, quotas:
about 120,000 messages of a standard queue in flight; a group of a FIFO queue waits for its messages in flight; Lambda
developer guide, scaling of queues: up to 1,250 invocations at a time; recursive loop detection: about 16 loops.
Never here: positions, edits. Invariant: an unknown value is not a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from onefold.check.duplicate_rules import VISIBILITY_MAX_S, visibility_needed_s
from onefold.check.facts import ResourceSetting, RoleFacts, RuleFacts
from onefold.check.findings import Finding, Fix, Related
from onefold.check.model import Model, ModelFunction, ModelMapping, ModelQueue, settled
from onefold.check.policies import Request, allows, any_of
from onefold.limits import IN_FLIGHT_MAX

FIFO_BATCH_MAX: Final = 10
BATCH_WITHOUT_WINDOW_MAX: Final = 10
GROUP_HELD_S: Final = 3_600  # ours: an hour in which no message of a group is processed
GROUP_HELD_LONG_S: Final = 43_200
CRASH_WAITS_S: Final = 900  # ours
MACHINES: Final = ("batch.amazonaws.com", "ec2.amazonaws.com", "ecs-tasks.amazonaws.com", "pods.eks.amazonaws.com")
INVOCATIONS_MAX: Final = 1_250
LOOPS: Final = 16
SAM_TEMPLATES: Final = {  # SAM developer guide, policy template list
    "SQSSendMessagePolicy": ("sqs:SendMessage*",),
    "SQSPollerPolicy": (
        "sqs:ChangeMessageVisibility*",
        "sqs:DeleteMessage*",
        "sqs:GetQueueAttributes",
        "sqs:ReceiveMessage",
    ),
}


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
    for rule in model.all(RuleFacts):
        for target in rule.targets or ():
            queue, group = model.queue_at(target.arn.value), target.group.value
            if (
                queue is None
                or not queue.facts.fifo
                or group is None
                or group.startswith("$")
                or rule.pattern.is_absent
            ):
                continue
            yield Finding(
                rule="CLG001",
                severity="info",
                message=f"All events that {rule.id} sends to {queue.name} belong to one message group: they are"
                " processed one after another, and one that fails stops them all.",
                source=target.group.source,
                resource=rule.id,
                property_path=target.group.path,
                arithmetic=(f"MessageGroupId {group!r:.60} for every event = 1 at a time",),
                related=(Related(queue.source, queue.name, "is a FIFO queue"),),
                fix=Fix("Take the group from the event: a path such as $.detail.customer.", "unsafe"),
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
                message=f"{mapping.function.name} would need a visibility timeout of {needed_s:,} s, and SQS allows at most"
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
                message=f"{queue.name} has a visibility timeout of {setting.value:,} s; SQS allows at most"
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
                message=f"{mapping.name} may have {bound * batch_size:,} messages in flight; SQS delivers no more from a"
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


def group_held_up(model: Model) -> Iterator[Finding]:
    """CLG002."""
    for queue in model.queues:
        receives, visibility_s = queue.receives_max, queue.visibility_s.value
        if not queue.facts.fifo or receives is None or receives.value is None or visibility_s is None:
            continue
        held_s = receives.value * visibility_s
        mappings = model.mappings_of(queue)
        if held_s <= GROUP_HELD_S or not mappings or any(_may_hurry(model, one, queue) for one in mappings):
            continue
        yield Finding(
            rule="CLG002",
            severity="warning" if held_s > GROUP_HELD_LONG_S else "info",
            message=f"A message of {queue.name} that always fails holds its message group for {held_s:,} s: what is sent"
            " after it waits until it is in the dead-letter queue.",
            source=receives.source,
            resource=queue.name,
            property_path=receives.path,
            arithmetic=(f"{receives.value:,} receives x {visibility_s:,} s visibility timeout = {held_s:,} s",),
            related=(Related(queue.visibility_s.source, queue.name, f"VisibilityTimeout: {visibility_s:,} s"),),
            fix=Fix(
                "Shorten the function's timeout and then the visibility timeout; or catch what cannot succeed.",
                "unsafe",
            ),
        )


def _may_hurry(model: Model, mapping: ModelMapping, queue: ModelQueue) -> bool:
    """Whether a function is allowed to make failed messages visible again itself; True also if that is unknown."""
    function = mapping.function
    return function is None or _allowed(model, function, "sqs:ChangeMessageVisibility", queue) is not False


def crash_waits_for_visibility(model: Model) -> Iterator[Finding]:
    """CLG004."""
    for queue in model.queues:
        visibility_s = queue.visibility_s.value
        if visibility_s is None or visibility_s < CRASH_WAITS_S or "source" in queue.roles or queue.is_for_failures:
            continue
        workers = [one for one in model.all(RoleFacts) if any(name in str(one.trust) for name in MACHINES)]
        for role in workers:
            if (
                _may(role, "sqs:ReceiveMessage", queue) is not True
                or role.has_others
                or _may(role, "sqs:ChangeMessageVisibility", queue) is not False
            ):
                continue
            yield Finding(
                rule="CLG004",
                severity="warning",
                message=f"When a worker with the role {role.id} dies while it has a message of {queue.name}, the message"
                f" stays hidden for up to {visibility_s:,} s: it may not change the visibility timeout, so it has no"
                " heartbeat.",
                source=queue.visibility_s.source,
                resource=queue.name,
                property_path=queue.visibility_s.path,
                arithmetic=(f"VisibilityTimeout {visibility_s:,} s, and sqs:ChangeMessageVisibility is not allowed",),
                related=(Related(role.source, role.id, "may receive from it"),),
                fix=Fix(
                    "Allow sqs:ChangeMessageVisibility, set a short timeout, and extend it while the work goes on.",
                    "unsafe",
                ),
            )


def _may(role: RoleFacts, action: str, queue: ModelQueue) -> bool | None:
    request = Request(action=action, resource=f"arn:aws:sqs:::{queue.facts.name}", named=queue.facts.named)
    return any_of(allows(one, request) for one in role.policies)


def backlog_grows(model: Model) -> Iterator[Finding]:
    """CLG006."""
    for queue in model.queues:
        rate, each_s = queue.messages_a_second, queue.seconds_each
        bounds = [_bound(one) for one in model.mappings_of(queue)]
        if rate.value is None or each_s.value is None or not bounds or any(one is None for one, _ in bounds):
            continue
        most = sum(one or 0 for one, _ in bounds)
        needed = rate.value * each_s.value
        if needed <= most:
            continue
        yield Finding(
            rule="CLG006",
            severity="error",
            message=f"{queue.name} receives more than its functions can process: {needed:,.6g} messages would have to be in"
            f" progress at a time, and at most {most:,} can be. The backlog grows for as long as that lasts.",
            source=rate.source,
            resource=queue.name,
            property_path=rate.path,
            arithmetic=(
                f"{rate.value:,.6g} messages a second x {each_s.value:,.6g} s each = {needed:,.6g} at a time",
                *(text for _, text in bounds),
                f"after an hour {(rate.value - most / each_s.value) * 3600:,.0f} messages are left",
            ),
            fix=Fix("Raise the concurrency, or process a message in less time.", "unsafe"),
        )


def _bound(mapping: ModelMapping) -> tuple[int | None, str]:
    """How many invocations a mapping may have at a time, and why; None if that is not known."""
    bounds: list[tuple[int, str]] = [(INVOCATIONS_MAX, "Lambda's bound for a mapping")]
    function = mapping.function
    settings: list[tuple[ResourceSetting[int] | None, str]] = [
        (mapping.concurrency_max, "MaximumConcurrency"),
        (None if function is None else function.facts.reserved, "reserved concurrency"),
    ]
    for setting, what in settings:
        if setting is not None and setting.why:
            return None, ""
        if setting is not None and setting.value is not None:
            bounds.append((setting.value, what))
    if mapping.facts.has_pollers or function is None:
        return None, ""
    most, what = min(bounds)
    return most, f"{mapping.name} runs at most {most:,} at a time: {what}"


def sends_to_its_own_queue(model: Model) -> Iterator[Finding]:
    """CLG008."""
    for mapping in model.mappings:
        queue, function = mapping.queue, mapping.function
        if queue is None or function is None or function.facts.loops_allowed:
            continue
        named = [name for name, value in function.facts.environment.items() if _is_of(value, queue)]
        if not named or _allowed(model, function, "sqs:SendMessage", queue) is not True:
            continue
        path = (*function.facts.location.parts, "Environment", "Variables", named[0])
        yield Finding(
            rule="CLG008",
            severity="warning",
            message=f"{function.name} receives from {queue.name}, knows it as {named[0]} and may send to it: Lambda stops a"
            f" message that comes back by itself after about {LOOPS} rounds, and leaves it to the dead-letter queue.",
            source=model.document.source(path),
            resource=function.name,
            property_path=".".join(map(str, path)),
            arithmetic=(f"{queue.name} -> {function.name} -> {queue.name}, about {LOOPS} times",),
            related=(Related(mapping.source, mapping.name, f"receives from {queue.name}"),),
            fix=Fix("Fail the message so that the queue delivers it again, or set RecursiveLoop to Allow.", "unsafe"),
        )


def _is_of(value: str, queue: ModelQueue) -> bool:
    """Whether a value is the name, URL or ARN of a queue."""
    return value.replace(":", "/").rsplit("/", 1)[-1] == queue.facts.name


def _allowed(model: Model, function: ModelFunction, action: str, queue: ModelQueue) -> bool | None:
    """Whether a function's role allows an action on a queue; None if that is unknown."""
    facts = function.facts
    role = next((one for one in model.possible(RoleFacts) if one.arn and one.arn == facts.role_arn.value), None)
    documents = [_of_template(one, queue) for one in facts.permissions.value or ()]
    documents += () if role is None else role.policies
    is_all = facts.role_arn.is_absent if role is None else not role.has_others
    request = Request(action=action, resource=f"arn:aws:sqs:::{queue.facts.name}", named=queue.facts.named)
    answers = [allows(one, request) for one in documents if not _is_harmless(one)]
    answers += [] if is_all and not facts.permissions.why else [None]
    return any_of(answers)


def _is_harmless(policy: Any) -> bool:
    """Whether a policy is AWS's own for functions by its name, which allows no more than a mapping needs."""
    return isinstance(policy, str) and policy.rsplit("/", 1)[-1].startswith("AWSLambda")


def _of_template(policy: Any, queue: ModelQueue) -> Any:
    """A policy of a function; SAM's policy templates for queues as the statements that SAM makes of them."""
    for name, actions in SAM_TEMPLATES.items() if isinstance(policy, dict) else ():
        parameters = policy.get(name)
        if isinstance(parameters, dict) and parameters.get("QueueName") == queue.facts.name:
            return {"Statement": {"Action": list(actions), "Resource": queue.facts.name}}
    return policy
