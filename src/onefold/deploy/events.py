"""Buses, rules, archives and pipes of an app on EventBridge, from the same declarations that the embedded bus follows.

A rule sends to its queues with its own transformation, retries for a day, and puts what cannot be delivered into its
dead-letter queue. Queues let exactly those rules in (`senders`). A pipe without an enrichment is one of EventBridge Pipes;
one with an enrichment stays the job that it is, in the function of its source queue, which can run Python.
Names on AWS have the prefix; the default bus is the account's own and is not made.
Never here: the pattern language (decide/), templates. Invariant: a queue is open to the rules that target it, and to no
other.

Sources: EventBridge API reference, PutRule, PutTargets, CreateArchive; user guide, "Using dead-letter queues", "Amazon SQS
permissions", "Amazon SQS queue as a source" (pipes).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from onefold import codec, limits
from onefold.buses.bus import Bus
from onefold.buses.pipes import Pipe
from onefold.buses.rules import EventArchive, Rule
from onefold.buses.transform import InputTransformer
from onefold.deploy import iam, names
from onefold.deploy.stack import Stack

RETRIES: Final = 185  # EventBridge user guide, "Event retry policy": its default and most
RETRY_AGE_S: Final = 86_400  # same
PIPE_BATCH: Final = 10  # user guide, "EventBridge Pipes batching": the most toward an SQS target
DEFAULT_BUS: Final = "default"
_NAME_CHARS_MAX: Final = {"bus": 256, "rule": 64, "archive": 48, "pipe": 64}  # API references, Create...


class BusPlan(Struct, frozen=True, kw_only=True):
    """An event bus of its own; `id` of its logical ids."""

    id: str
    name: str


class RulePlan(Struct, frozen=True, kw_only=True):
    """A rule.

    Args:
        id: of its logical ids. name: on AWS. bus_id: of its bus; None for the default bus.
        arn: a pattern (see `names.py`). pattern: its JSON. enabled: whether it takes part.
        target_ids: ids of the queues; fifo_ids: of those that are FIFO. dead_id: of the queue for what they refuse.
        input_path, transformer, constant: what targets get, the last one as JSON; at most one is not None.
        group: of FIFO targets.
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
    """An archive; `bus_id` None for the default bus, `pattern` None for all events, `days` None for ever."""

    id: str
    name: str
    bus_id: str | None
    pattern: str | None
    days: int | None


class PipePlan(Struct, frozen=True, kw_only=True):
    """A pipe; `group` of a FIFO target, `template` None for the record as it is. `owner`: of the fix."""

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
    """All of it, each kind sorted by id; `senders`: queue id to the ARN patterns of the rules that may send there."""

    buses: tuple[BusPlan, ...] = ()
    rules: tuple[RulePlan, ...] = ()
    archives: tuple[ArchivePlan, ...] = ()
    pipes: tuple[PipePlan, ...] = ()
    senders: Mapping[str, tuple[str, ...]] = {}


def planned(buses: Sequence[Bus], pipes: Sequence[Pipe], stack: Stack) -> EventsPlan:
    """What events need.

    Args:
        pipes: those that EventBridge Pipes is to perform (`can_be_pipe`).

    Raises:
        UsageError: a name that is too long with its prefix, or two that share a logical id.
    """
    used = sorted((bus for bus in buses if bus.rules or bus.archives), key=lambda bus: bus.name)
    made = [_bus(bus, stack.prefix) for bus in used if bus.name != DEFAULT_BUS]
    rules = [_rule(rule, stack.prefix) for bus in used for rule in bus.rules.values()]
    archives = [_archive(archive, stack.prefix) for bus in used for archive in bus.archives.values()]
    senders: dict[str, list[str]] = defaultdict(list)
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
    """Of a declared bus on AWS."""
    return bus if bus == DEFAULT_BUS else prefix + bus


def can_be_pipe(pipe: Pipe) -> bool:
    """Whether EventBridge Pipes can do what it does."""
    return pipe.enrich is None


def _named(kind: str, prefix: str, name: str) -> str:
    found = prefix + name
    names.check_length(found, _NAME_CHARS_MAX[kind], f"The {kind} {name}")
    return found


def _bus_id(bus: str) -> str | None:
    return None if bus == DEFAULT_BUS else names.logical_id(bus)


def _bus(bus: Bus, prefix: str) -> BusPlan:
    return BusPlan(id=names.logical_id(bus.name), name=_named("bus", prefix, bus.name))


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
        name=_named("archive", prefix, archive.name),
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


def as_value(pattern: str) -> object:
    """A pattern as a value, for a template."""
    return msgspec.json.decode(pattern)
