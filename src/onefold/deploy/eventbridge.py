"""What an app needs on EventBridge: buses, rules, archives, pipes and schedules, from its own declarations.

A rule sends to its queues with its own transformation, retries for a day, and puts what cannot be delivered into its
dead-letter queue. Queues let only these rules send (`senders`). A pipe without an enrichment becomes one of EventBridge
Pipes; one with an enrichment remains a job in the function of its source queue, which can run Python. Names on AWS have
the prefix; the default bus belongs to the account and is not made.

Schedules have one group and one role, and each has a target: SQS's SendMessage through the universal target, so that
the message has key, run and, on FIFO queues, group and deduplication id. Key and run derive from
`<aws.scheduler.scheduled-time>`, which is the same at each retry of an occurrence. The deduplication id does not:
anyone who may send to the queue could predict it and make SQS discard the tick. It is `<aws.scheduler.execution-id>`,
and the record answers a second message of one occurrence. Otherwise the message is the same as that of onefold's own
scheduler (`schedules/schedule.py`). Group and role also apply to the one-time schedules that a message with a late
`run_at` becomes (`Stack.later`, `engines/aws/sending.py`). No schedule deletes itself here: CloudFormation has no
property for it, and Terraform would create a missing schedule again, so that a past `at(...)` would fire at once. A
past schedule costs nothing and never fires again.

Never here: the pattern language, what a tick does, templates. Invariant: only the rules that target a queue may send to
it; the schedules' role may send only to the queues that are targets, and to the dead-letter queues of schedules.

Sources: EventBridge API reference, PutRule, PutTargets, CreateArchive; user guide, "Using dead-letter queues", "Amazon SQS
permissions", "Amazon SQS queue as a source" (pipes). EventBridge Scheduler user guide, "Schedule types", "Using universal
targets", "Adding context attributes", "Configuring a dead-letter queue"; API reference, CreateSchedule, RetryPolicy,
FlexibleTimeWindow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Struct

from onefold import codec, errors, limits
from onefold.contracts.settings import QueueSettings
from onefold.deploy import iam, names
from onefold.deploy.stack import Stack
from onefold.engines.aws import messages
from onefold.engines.aws.messages import entry_of
from onefold.events.bus import Bus
from onefold.events.pipes import Pipe
from onefold.events.rules import EventArchive, Rule
from onefold.events.transform import InputTransformer
from onefold.schedules.schedule import SCHEDULED_TIME, Schedule

RETRIES: Final = 185  # EventBridge user guide, "Event retry policy": default and maximum
RETRY_AGE_S: Final = 86_400  # same
PIPE_BATCH: Final = 10  # user guide, "EventBridge Pipes batching": the most for an SQS target
DEFAULT_BUS: Final = "default"
_NAME_CHARS_MAX: Final = {"bus": 256, "rule": 64, "archive": 48, "pipe": 64}  # API references, Create...


class BusPlan(Struct, frozen=True, kw_only=True):
    """A custom event bus; `id` is part of its logical ids.

    Args:
        dead_id: id of the queue for events that could not be encrypted or decrypted with a key; None if no rule has
            one.
    """

    id: str
    name: str
    dead_id: str | None = None


class RulePlan(Struct, frozen=True, kw_only=True):
    """A rule.

    Args:
        id: part of its logical ids. name: its name on AWS. bus_id: id of its bus; None for the default bus.
        arn: a pattern (see `names.py`). pattern: its JSON. enabled: whether it is active.
        target_ids: ids of its queues. fifo_ids: those of the FIFO queues. dead_id: id of the queue for what they refuse.
        input_path, transformer, constant: what targets get, the last one as JSON; at most one is not None.
        group: message group for FIFO targets.
    """

    id: str
    name: str
    bus_id: str | None
    arn: str
    pattern: str
    enabled: bool
    target_ids: tuple[str, ...]
    fifo_ids: tuple[str, ...]
    dead_id: str
    input_path: str | None
    transformer: InputTransformer | None
    constant: str | None
    group: str | None


class ArchivePlan(Struct, frozen=True, kw_only=True):
    """An archive; `bus_id`: None for the default bus; `pattern`: None for all events; `days`: None for unlimited."""

    id: str
    name: str
    bus_id: str | None
    pattern: str | None
    days: int | None


class PipePlan(Struct, frozen=True, kw_only=True):
    """A pipe; `group`: a FIFO target's group; `template`: None for the unchanged record; `owner`: the responsible team."""

    id: str
    name: str
    source_id: str
    target_id: str
    filters: tuple[str, ...]
    template: str | None
    group: str | None
    role: iam.RolePlan
    owner: str | None


class EventsPlan(Struct, frozen=True, kw_only=True):
    """All plans for events, each kind by id; `senders`: queue id to ARN patterns of rules that may send to it."""

    buses: tuple[BusPlan, ...] = ()
    rules: tuple[RulePlan, ...] = ()
    archives: tuple[ArchivePlan, ...] = ()
    pipes: tuple[PipePlan, ...] = ()
    senders: Mapping[str, tuple[str, ...]] = {}


def planned_events(buses: Sequence[Bus], pipes: Sequence[Pipe], stack: Stack) -> EventsPlan:
    """Plan what events need.

    Args:
        pipes: those that EventBridge Pipes performs (without an enrichment).

    Raises:
        UsageError: a name is too long with its prefix, or two share a logical id.
    """
    used = sorted((bus for bus in buses if bus.rules or bus.archives), key=lambda bus: bus.name)
    made = [_bus(bus, stack.prefix) for bus in used if bus.name != DEFAULT_BUS]
    rules = [_rule(rule, stack.prefix) for bus in used for rule in bus.rules.values()]
    archives = [_archive(archive, stack.prefix) for bus in used for archive in bus.archives.values()]
    senders: dict[str, list[str]] = defaultdict(list)
    if stack.kms_key is not None:
        for bus in made:
            if bus.dead_id is not None:
                senders[bus.dead_id].append(names.bus_arn(bus.name))
    for rule in rules:
        for queue in {*rule.target_ids, rule.dead_id}:
            senders[queue].append(rule.arn)
    return EventsPlan(
        buses=tuple(made),
        rules=names.by_id(rules),
        archives=names.by_id(archives),
        pipes=names.by_id(_pipe(pipe, stack) for pipe in pipes),
        senders={queue: tuple(sorted(senders[queue])) for queue in sorted(senders)},
    )


def full_name(bus: str, prefix: str) -> str:
    """The name of a declared bus on AWS."""
    return bus if bus == DEFAULT_BUS else prefix + bus


def _named(kind: str, prefix: str, name: str) -> str:
    found = prefix + name
    names.check_length(found, _NAME_CHARS_MAX[kind], f"The {kind} {name}")
    return found


def _bus_id(bus: str) -> str | None:
    return None if bus == DEFAULT_BUS else names.logical_id(bus)


def _bus(bus: Bus, prefix: str) -> BusPlan:
    dead_id = min((names.logical_id(rule.dead_letter) for rule in bus.rules.values()), default=None)
    return BusPlan(id=names.logical_id(bus.name), name=_named("bus", prefix, bus.name), dead_id=dead_id)


def _rule(rule: Rule, prefix: str) -> RulePlan:
    name = _named("rule", prefix, rule.name)
    return RulePlan(
        id=f"{names.logical_id(rule.bus)}{names.logical_id(rule.name)}",
        name=name,
        bus_id=_bus_id(rule.bus),
        arn=names.rule_arn(full_name(rule.bus, prefix), name),
        pattern=rule.pattern,
        enabled=rule.enabled,
        target_ids=tuple(names.logical_id(queue) for queue in rule.targets),
        fifo_ids=tuple(names.logical_id(queue) for queue in rule.targets if queue.endswith(".fifo")),
        dead_id=names.logical_id(rule.dead_letter),
        input_path=rule.input_path,
        transformer=rule.input_transformer,
        constant=None if rule.constant is None else codec.encode(rule.constant).decode(),
        group=rule.group,
    )


def _archive(archive: EventArchive, prefix: str) -> ArchivePlan:
    return ArchivePlan(
        id=f"{names.logical_id(archive.bus)}{names.logical_id(archive.name)}",
        name=_named("archive", prefix, f"{archive.bus}-{archive.name}"),  # unique in the account, not only on a bus
        bus_id=_bus_id(archive.bus),
        pattern=archive.pattern,
        days=None if archive.retention_ms is None else -(-archive.retention_ms // limits.DAY_MS),
    )


def _pipe(pipe: Pipe, stack: Stack) -> PipePlan:
    name = _named("pipe", stack.prefix, pipe.name)
    source, target = (names.queue_arn(stack.prefix + queue) for queue in (pipe.source, pipe.target))
    take = ("sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage")
    statements = [
        iam.Statement(sid="TakeFromSource", actions=take, resources=(source,)),
        iam.Statement(sid="SendToTarget", actions=("sqs:SendMessage",), resources=(target,)),
    ]
    if stack.kms_key is not None:
        use = ("kms:Decrypt", "kms:GenerateDataKey")
        statements.append(iam.Statement(sid="UseKey", actions=use, resources=(stack.kms_key,), services=("sqs",)))
    logical = f"{names.logical_id(pipe.name)}Pipe"
    return PipePlan(
        id=logical,
        name=name,
        source_id=names.logical_id(pipe.source),
        target_id=names.logical_id(pipe.target),
        filters=pipe.filters,
        template=pipe.input_template,
        group=pipe.group if pipe.fifo else None,
        role=iam.RolePlan(
            id=logical,
            service="pipes",
            text=f"What the pipe {name} takes from and sends to, and no more.",
            statements=tuple(statements),
            owner=pipe.owner,
        ),
        owner=pipe.owner,
    )


TARGET_ARN: Final = "arn:{partition}:scheduler:::aws-sdk:sqs:sendMessage"
NAME_CHARS_MAX: Final = 64  # API reference, CreateSchedule, Name and GroupName
EXECUTION_ID: Final = "<aws.scheduler.execution-id>"  # EventBridge Scheduler replaces it by a new id at each attempt
ROLE_ID: Final = "Scheduler"
GROUP_ID: Final = "ScheduleGroup"
_AT: Final = "%Y-%m-%dT%H:%M:%SZ"


class SchedulePlan(Struct, frozen=True, kw_only=True):
    """A schedule in the form that both writers write.

    Args:
        id: logical id. name, expression, zone: as Scheduler gets them.
        start, end: RFC 3339, UTC; None if not bounded. window_minutes: None if there is no window.
        input: SendMessage's parameters as JSON, a pattern (see `names.py`).
        retries, age_s: retry policy. dead_id: id of the queue for undeliverable ticks; None if there is none.
        text: what it does, for people.
    """

    id: str
    name: str
    expression: str
    zone: str
    start: str | None
    end: str | None
    window_minutes: int | None
    input: str
    retries: int
    age_s: int
    dead_id: str | None
    text: str


class Scheduling(Struct, frozen=True, kw_only=True):
    """All plans for schedules.

    Args:
        group: name of the schedule group. role: the role that Scheduler assumes.
        schedules: sorted by id.
    """

    group: str
    role: iam.RolePlan
    schedules: tuple[SchedulePlan, ...]


def planned_schedules(
    app: str, declared: Sequence[Schedule], stack: Stack, queues: Mapping[str, QueueSettings]
) -> Scheduling | None:
    """Plan what schedules need; None if there are no schedules and no messages for later.

    Args:
        app: the app's name. declared: its schedules. queues: settings of all main queues, by declared name.

    Raises:
        UsageError: Scheduler would refuse something, or does not have a declared clock-change policy.
    """
    if not declared and not stack.later:
        return None
    group = schedule_group(app, stack)
    names.check_length(group, NAME_CHARS_MAX, "The group of the schedules")
    targets = {one.job.policy.queue for one in declared}
    targets |= {one.undelivered.dead_letter for one in declared if one.undelivered.dead_letter is not None}
    if stack.later:
        targets |= {*queues, *(dead for one in queues.values() if (dead := late_dead_letter(app, one)) is not None)}
    return Scheduling(
        group=group,
        role=_role(group, sorted(stack.prefix + name for name in targets), stack.kms_key),
        schedules=tuple(sorted((_schedule(one) for one in declared), key=lambda one: one.id)),
    )


def schedule_notes(declared: Sequence[Schedule]) -> list[str]:
    """Notes, a sentence each, on declarations that Scheduler does not support, by name."""
    return [
        f"Schedule {one.name}: delete_after=True deletes nothing on AWS. After its end it never fires again, at no cost."
        for one in sorted(declared, key=lambda one: one.name)
        if one.delete_after
    ]


def schedule_group(app: str, stack: Stack) -> str:
    """The name of the group of an app's schedules, including those for messages that are due late."""
    return f"{stack.prefix}{app}"


def late_dead_letter(app: str, queue: QueueSettings) -> str | None:
    """The queue for a late message that Scheduler could not deliver; its dead-letter queues must be standard queues."""
    return f"{app}-late-dead" if queue.fifo else queue.dead_letter


def _role(group: str, targets: Sequence[str], kms_key: str | None) -> iam.RolePlan:
    arns = tuple(names.queue_arn(name) for name in targets)
    statements = [iam.Statement(sid="SendTicks", actions=("sqs:SendMessage",), resources=arns)]
    if kms_key is not None:
        statements.append(
            iam.Statement(
                sid="UseKey",
                actions=("kms:Decrypt", "kms:GenerateDataKey"),
                resources=(kms_key,),
                services=("scheduler", "sqs"),
            )
        )
    return iam.RolePlan(
        id=ROLE_ID,
        service="scheduler",
        text=f"What the schedules of {group} send to, and no more.",
        statements=tuple(statements),
    )


def _schedule(one: Schedule) -> SchedulePlan:
    _check(one)
    entry = one.outgoing_at(SCHEDULED_TIME).entry
    form = messages.Form(
        body=entry.body,
        attributes=entry.attributes,
        key=entry.key,
        group=entry.group,
        dedup_id=EXECUTION_ID if entry.group else None,
    )
    request = entry_of(form, "")
    del request["Id"]
    text = msgspec.json.encode(request, order="deterministic").decode()
    queue = one.job.policy.queue
    timing, undelivered = one.timing, one.undelivered
    return SchedulePlan(
        id=f"{names.logical_id(one.name)}Schedule",
        name=one.name,
        expression=one.expression,
        zone=timing.zone,
        start=_instant(timing.start_ms),
        end=_instant(timing.end_ms),
        window_minutes=timing.window_ms // limits.MINUTE_MS or None,
        input=f'{{"QueueUrl":"{{queue_url.{names.logical_id(queue)}}}",' + text[1:],
        retries=undelivered.retries_max,
        age_s=undelivered.age_ms // limits.SECOND_MS,
        dead_id=None if undelivered.dead_letter is None else names.logical_id(undelivered.dead_letter),
        text=f"Ticks of {one.name} to {queue}." + (f" Owner: {one.owner}." if one.owner else ""),
    )


def _instant(ms: int | None) -> str | None:
    return None if ms is None else datetime.fromtimestamp(ms // limits.SECOND_MS, UTC).strftime(_AT)


def _check(one: Schedule) -> None:
    if one.timing.dst != "eventbridge":
        raise errors.UsageError(
            f"Schedule {one.name} runs a skipped local time at the next valid instant.",
            meaning="EventBridge Scheduler skips a local time that does not exist that day, and has no setting for it.",
            todo='Leave dst= out on AWS, choose an hour that always exists, or run it with "onefold scheduler".',
        )
