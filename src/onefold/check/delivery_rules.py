"""Rules about what sends to queues and functions: schedules, rules, topics, subscribers of a bus.

Sources: EventBridge Scheduler user guide, context attributes and dead-letter queues; EventBridge user guide, retry policy
and dead-letter queues of rules; SNS developer guide, dead-letter queues and encrypted queues; EventBridge API reference of
the second generation (retry policy, OnFailureConfiguration, ordering types); SQS developer guide, quotas: 1 MiB a message.
Never here: positions, edits, how policies are read. Invariant: an unknown value is not a finding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, Literal

from onefold.check.documents import json_of
from onefold.check.facts import (
    KeyFacts,
    ResourceSetting,
    RoleFacts,
    RuleFacts,
    ScheduleFacts,
    SubscriberFacts,
    TargetFacts,
)
from onefold.check.findings import Finding, Fix, Related
from onefold.check.model import EVENTS, TOPICS, Model, ModelQueue, Sender, settled
from onefold.check.policies import Request, allows
from onefold.limits import MESSAGE_BYTES_MAX

SCHEDULED_TIME: Final = "<aws.scheduler.scheduled-time>"
HOUR_S: Final = 3_600
TOPIC_BYTES_MAX: Final = 262_144  # SNS quotas: message size
_RATE: Final = re.compile(r"rate\(\s*([0-9]{1,9})\s+(minute|hour|day)s?\s*\)")
_CRON: Final = re.compile(r"cron\(\s*(\S{1,80})\s+(\S{1,80})\s+[^)]{1,200}\)")
_SECONDS: Final = {"minute": 60, "hour": HOUR_S, "day": 86_400}


def _targets(model: Model) -> Iterator[tuple[ScheduleFacts | RuleFacts, Literal["schedule", "rule"], TargetFacts]]:
    """Targets of schedules and rules that are switched on."""
    for schedule in model.all(ScheduleFacts):
        if schedule.state.value not in {"DISABLED", None}:
            yield schedule, "schedule", schedule.target
    for rule in model.all(RuleFacts):
        if rule.state.value not in {"DISABLED", None}:
            for target in rule.targets or ():
                yield rule, "rule", target


def _comes_again_within_the_hour(expression: str | None) -> bool:
    rate, cron = _RATE.fullmatch(expression or ""), _CRON.fullmatch(expression or "")
    if rate is not None:
        return int(rate[1]) * _SECONDS[rate[2]] <= HOUR_S
    return cron is not None and cron[2] in {"*", "*/1", "0/1", "0-23"}


def no_dead_letter_queue_of_a_target(model: Model) -> Iterator[Finding]:
    """LOS007."""
    for owner, kind, target in _targets(model):
        if not target.dead_letter_arn.is_absent or target.makes_queue or target.arn.value is None:
            continue
        if _comes_again_within_the_hour(owner.expression.value) or owner.expression.why:
            continue
        function = model.function_at(target.arn.value)
        is_kept = model.queue_at(target.arn.value) is not None or (function and model.keeps_failures(function))
        if kind == "rule" and is_kept:
            continue
        retries, age_s = target.retries_max.value, target.age_max_s.value
        what = "a tick" if owner.expression.value is not None else "an event"
        after = "some retries" if retries is None or age_s is None else f"{retries} retries or {age_s:,} s"
        steps = [f"given up after {after}; at once where the permission or the target is missing"]
        if function is not None and not model.keeps_failures(function):
            steps.append(
                f"{function.name}'s own failures: two more tries, then dropped, unless it has a destination for them"
            )
        yield Finding(
            rule="LOS007",
            severity="warning",
            message=f"{owner.id} has no dead-letter queue: {what} that cannot be delivered is dropped, and no trace of it"
            " is left.",
            source=target.source,
            resource=owner.id,
            property_path=".".join(map(str, (*target.at, "DeadLetterConfig"))),
            arithmetic=tuple(steps),
            fix=Fix("Add DeadLetterConfig with the ARN of a standard queue that may be sent to.", "unsafe"),
        )


# -- permissions -----------------------------------------------------------------------------------------------------------


def refused_by_the_queue(model: Model) -> Iterator[Finding]:
    """LOS008."""
    known = frozenset(
        {*(one.facts.name for one in model.queues), *(one.arn for one in model.around if one.arn)}
    )  # fmt: skip
    for queue in model.queues:
        by_principal: dict[str, list[Sender]] = {}
        for one in model.senders_of(queue):
            if not one.is_allowed:
                by_principal.setdefault(one.principal, []).append(one)
        for principal, senders in by_principal.items():
            refused = [one for one in senders if _is_refused(model, queue, one, known)]
            if refused:
                yield _refused(queue, refused)
            without_key = [one for one in senders if principal and _is_without_key(model, queue, one, known)]
            if without_key:
                yield _without_key(queue, without_key)


def _is_refused(model: Model, queue: ModelQueue, sender: Sender, known: frozenset[str]) -> bool:
    if model.may_be_elsewhere(queue.name, named=queue.is_named):
        return False
    request = Request(
        action="sqs:SendMessage",
        resource=f"arn:aws:sqs:::{queue.facts.name}",
        named=queue.facts.named,
        principal=sender.principal or None,
        source_arn=sender.arn,
        known=known - {queue.facts.name},
    )
    own = [one for one in model.policies if queue.facts.name in one.queues or one.is_for_others]
    if sender.principal:
        is_by_role = sender.role_arn is not None and not sender.role_arn.is_absent
        return not is_by_role and all(allows(one.document, request) is False for one in own)
    role = next((one for one in model.possible(RoleFacts) if one.arn == _value(sender.role_arn)), None)
    if role is None or role.has_others or own:
        return False
    return all(allows(one, request) is False for one in role.policies)


def _value(setting: ResourceSetting[str] | None) -> str | None:
    return None if setting is None else setting.value


def _refused(queue: ModelQueue, senders: list[Sender]) -> Finding:
    first = senders[0]
    what = "what could not be delivered" if first.of_failures else "what is sent"
    by_role = not first.principal
    who = "the role of " + first.name if by_role else first.principal
    return Finding(
        rule="LOS008",
        severity="error",
        message=f"{queue.name} refuses {', '.join(one.name for one in senders)}: nothing allows {who} to send to it, so"
        f" {what} is dropped silently.",
        source=queue.source,
        resource=queue.name,
        property_path="QueuePolicy",
        arithmetic=tuple(
            f"{one.name} sends {'what failed' if one.of_failures else 'messages'} as"
            f" {one.principal or 'its role, which has no sqs:SendMessage for it'}"
            for one in senders
        ),
        related=tuple(Related(one.queue_arn.source, one.name, f"sends to {queue.name}") for one in senders),
        fix=Fix(
            f"Allow sqs:SendMessage on {queue.name} in a policy of the role."
            if by_role
            else f"Add an AWS::SQS::QueuePolicy that allows {first.principal} sqs:SendMessage on {queue.name}, with"
            " aws:SourceArn.",
            "unsafe",
        ),
    )


def _is_without_key(model: Model, queue: ModelQueue, sender: Sender, known: frozenset[str]) -> bool:
    name = queue.facts.attributes.get("KmsMasterKeyId", "")
    if name.endswith("alias/aws/sqs"):
        return True
    key = next((one for one in model.possible(KeyFacts) if name in one.names), None)
    if key is None or key.policy.value is None:
        return False
    actions = ("kms:GenerateDataKey", "kms:Decrypt")
    requests = [
        Request(
            action=one, resource=key.arn, named=True, principal=sender.principal, source_arn=sender.arn, known=known
        )
        for one in actions
    ]
    return any(allows(_of_all(key.policy.value), one) is False for one in requests)


def _of_all(policy: dict[str, Any]) -> dict[str, Any]:
    """A key policy whose statements are for all resources: they can only mean the key itself, however they name it."""
    statements = policy.get("Statement")
    listed = statements if isinstance(statements, list) else [statements]
    return {"Statement": [{**one, "Resource": "*"} if isinstance(one, dict) else one for one in listed]}


def _without_key(queue: ModelQueue, senders: list[Sender]) -> Finding:
    name = queue.facts.attributes["KmsMasterKeyId"]
    first = senders[0]
    own = name.endswith("alias/aws/sqs")
    return Finding(
        rule="LOS008",
        severity="error",
        message=f"{queue.name} is encrypted with a key that {first.principal} may not use, so what"
        f" {', '.join(one.name for one in senders)} sends is dropped silently.",
        source=queue.source,
        resource=queue.name,
        property_path="KmsMasterKeyId",
        arithmetic=(
            "the policy of AWS's own key alias/aws/sqs cannot be changed"
            if own
            else f"the key's policy does not allow {first.principal} kms:GenerateDataKey and kms:Decrypt",
        ),
        related=tuple(Related(one.queue_arn.source, one.name, f"sends to {queue.name}") for one in senders),
        fix=Fix(
            f"Use a key of your own, or SqsManagedSseEnabled, and allow {first.principal} in the key's policy.",
            "unsafe",
        ),
    )


# -- ticks, generations, groups --------------------------------------------------------------------------------------------


def ticks_without_a_key(model: Model) -> Iterator[Finding]:
    """DUP015."""
    for owner, kind, target in _targets(model):
        expression, retries = owner.expression.value, target.retries_max.value
        if expression is None or expression.startswith("at(") or retries is None or retries == 0:
            continue
        written = target.input.value
        if written is None or SCHEDULED_TIME in (written if isinstance(written, str) else json.dumps(written)):
            continue
        yield Finding(
            rule="DUP015",
            severity="warning",
            message=f"Every tick of {owner.id} sends the same input: a tick that is delivered twice cannot be told from"
            " two ticks.",
            source=target.input.source,
            resource=owner.id,
            property_path=target.input.path,
            arithmetic=(
                f"up to {retries} retries in {target.age_max_s.value or 0:,} s, each with the same input as the next tick",
            ),
            fix=Fix(
                f"Put {SCHEDULED_TIME} into the input, and use it as the idempotency key."
                if kind == "schedule"
                else "Leave the input out: the event has the time of the tick. Or use InputTransformer with it.",
                "unsafe",
            ),
        )


def both_generations(model: Model) -> Iterator[Finding]:
    """DUP017."""
    for subscriber in _running(model):
        for owner, kind, target in _targets(model):
            if kind != "rule" or not isinstance(owner, RuleFacts) or owner.pattern.is_absent:
                continue
            if target.arn.value is None or target.arn.value != subscriber.target_arn.value:
                continue
            if subscriber.filters.why or not _overlap(owner.pattern.value, subscriber.filters.value):
                continue
            yield Finding(
                rule="DUP017",
                severity="warning",
                message=f"The rule {owner.id} and the subscriber {subscriber.id} deliver to one target: an event that is"
                " put on both buses, as in a migration, arrives twice.",
                source=subscriber.target_arn.source,
                resource=subscriber.id,
                property_path=subscriber.target_arn.path,
                arithmetic=("1 event x 2 buses = 2 deliveries",),
                related=(Related(target.source, owner.id, "delivers there too"),),
                fix=Fix("Disable the rule once the subscriber runs, or deduplicate by a key of the event.", "unsafe"),
            )


def _running(model: Model) -> list[SubscriberFacts]:
    return [one for one in model.all(SubscriberFacts) if one.state.value not in {"STOPPED", None}]


def _overlap(pattern: Any, filters: list[Any] | None) -> bool:
    """Whether a rule and a subscriber may match the same events: one text in common, or one of them matches all."""
    return not filters or bool(_texts(pattern) & _texts(filters))


def _texts(value: Any) -> set[str]:
    """The texts that a pattern compares with; a pattern may be JSON text itself."""
    if isinstance(value, str):
        try:
            parsed = json_of(value)
        except ValueError:
            return {value}
        return {value} if isinstance(parsed, str | int | float) else _texts(parsed)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {text for one in inner for text in _texts(one)}


def no_destination_of_a_subscriber(model: Model) -> Iterator[Finding]:
    """LOS013."""
    for one in _running(model):
        if not one.on_failure.is_absent:
            continue
        retries, age_s = one.retries_max.value, one.age_max_s.value
        yield Finding(
            rule="LOS013",
            severity="error",
            message=f"{one.id} has no destination for failures: an event that cannot be delivered is dropped"
            + (f" after {retries} retries or {age_s:,} s." if retries is not None and age_s is not None else "."),
            source=one.source,
            resource=one.id,
            property_path="OnFailureConfiguration",
            arithmetic=()
            if age_s is None
            else (f"an outage of the target of more than {age_s:,} s loses every event that arrives during it",),
            fix=Fix("Add OnFailureConfiguration with the ARN of a queue.", "unsafe"),
        )


def short_retries_of_a_subscriber(model: Model) -> Iterator[Finding]:
    """LOS014."""
    for one in _running(model):
        if one.retries_max.written or one.age_max_s.written or one.age_max_s.why or one.retries_max.why:
            continue
        if model.queue_at(one.target_arn.value) is not None or one.target_arn.value is None:
            continue
        yield Finding(
            rule="LOS014",
            severity="warning" if one.on_failure.is_absent else "info",
            message=f"{one.id} gives up on an event after {one.retries_max.value} retries or {one.age_max_s.value} s, the"
            " defaults of the second generation: a target that is down longer misses it.",
            source=one.source,
            resource=one.id,
            property_path="RetryPolicy",
            arithmetic=(
                f"second generation: 5 retries, {one.age_max_s.value} s; classic rules: 185 retries, 86,400 s",
            ),
            fix=Fix("Set RetryPolicy with the time for which the target may be down.", "unsafe"),
        )


def subscriber_stops_its_group(model: Model) -> Iterator[Finding]:
    """CLG011."""
    for one in _running(model):
        if one.kind.value != "FIFO":
            continue
        queue, age_s = model.queue_at(one.target_arn.value), one.age_max_s.value
        if queue is not None and not queue.facts.fifo and "FifoQueue" not in queue.facts.unresolved:
            yield Finding(
                rule="CLG011",
                severity="warning",
                message=f"{one.id} delivers in order, group by group, to {queue.name}, a standard queue, which keeps no"
                " order: the groups wait in vain.",
                source=one.kind.source,
                resource=one.id,
                property_path=one.kind.path,
                related=(Related(queue.source, queue.name, "is a standard queue"),),
                fix=Fix("Set Type to UNORDERED, or deliver to a FIFO queue.", "unsafe"),
            )
        if age_s is not None and age_s > HOUR_S:
            yield Finding(
                rule="CLG011",
                severity="warning",
                message=f"An event that cannot be delivered holds the events of its group in {one.id} for up to {age_s:,}"
                " s.",
                source=one.age_max_s.source,
                resource=one.id,
                property_path=one.age_max_s.path,
                arithmetic=(f"MaxEventAgeInSeconds {age_s:,} > {HOUR_S:,}",),
                fix=Fix(f"Set it to {HOUR_S} or less; OnFailureConfiguration keeps what is given up.", "unsafe"),
            )


def body_over_the_queue_limit(model: Model) -> Iterator[Finding]:
    """LOS015."""
    bounds = {EVENTS: ("an event", MESSAGE_BYTES_MAX), TOPICS: ("a message of a topic", TOPIC_BYTES_MAX)}
    for queue in model.queues:
        setting, limit = queue.body_bytes_max, queue.body_bytes_max.value
        if limit is None:
            continue
        for sender in model.senders_of(queue):
            what, most = bounds.get(sender.principal, ("", 0))
            if limit >= most:
                continue
            yield Finding(
                rule="LOS015",
                severity="warning",
                message=f"{queue.name} accepts {limit:,} bytes a message, and {what} may have {most:,}: what {sender.name}"
                " sends above that cannot be delivered.",
                source=setting.source,
                resource=queue.name,
                property_path=setting.path,
                arithmetic=(f"{limit:,} < {most:,}",),
                related=(Related(sender.queue_arn.source, sender.name, f"sends to {queue.name}"),),
                fix=Fix(
                    f"Set MaximumMessageSize to {MESSAGE_BYTES_MAX}.",
                    "safe",
                    settled(model.document, setting, MESSAGE_BYTES_MAX),
                ),
            )
            break
