"""The model that rules examine: queues, functions and other resources, linked to each other; each value has its position.

A value is known, absent, or None because the file alone does not give it (`ResourceSetting`); a rule says nothing about
values that are not known. A value that is not written is AWS's default and has the position of its resource. The purpose
of each queue is inferred first (`ModelQueue.roles`, `Model.senders_of`), so that no rule mistakes a dead-letter queue for a
source.

`all` returns the resources of a kind that exist; `possible` adds those whose condition does not hold or is not known. A rule
that reports something missing looks at the possible ones, and asks whether it may be in another stack (`may_be_elsewhere`).
Never here: what is wrong with a value. Invariant: what a mapping refers to is linked if it is in the same template.
"""

from __future__ import annotations

import json
import re
from collections import abc
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, TypeVar

from msgspec import Struct

from onefold.check.documents import json_of
from onefold.check.facts import (
    BusFacts,
    Document,
    FunctionFacts,
    InvokeConfigFacts,
    MappingFacts,
    PolicyFacts,
    PropertyPath,
    QueueFacts,
    ResourceFacts,
    ResourceSetting,
    RuleFacts,
    ScheduleFacts,
    SubscriberFacts,
    TargetFacts,
    TemplateFacts,
    TopicSubscriptionFacts,
    Unresolved,
)
from onefold.check.findings import FindingEdit, FindingSource
from onefold.check.intrinsics import decimal_number, is_function
from onefold.limits import MESSAGE_BYTES_MAX, RETENTION_MS_DEFAULT, SECOND_MS, VISIBILITY_MS_DEFAULT

HELD_TAG: Final = "onefold:held"  # a queue's tag: the name of the queue that holds its unknown outcomes
EVENTS: Final = "events.amazonaws.com"
TOPICS: Final = "sns.amazonaws.com"
SDK_SEND: Final = ":aws-sdk:sqs:sendMessage"

Role = Literal["source", "dead letters", "perhaps dead letters", "failed deliveries", "held", "target"]
_SUBSTITUTED: Final = re.compile(r"\$\{([^!.{}]{1,255})")
R = TypeVar("R", bound=ResourceFacts)


class ModelQueue(Struct, frozen=True, kw_only=True):
    """A queue. `roles`: what it is for, if this template shows that; it may have several roles, or none.

    `messages_a_second`, `seconds_each`: how many messages arrive and how long one takes, if the resource's metadata says so:
    {"onefold": {"expect": {"messages_per_second": 40, "seconds_each": 1.5}}}. An input that measures them puts them there.
    """

    facts: QueueFacts
    source: FindingSource
    visibility_s: ResourceSetting[int]
    retention_s: ResourceSetting[int]
    body_bytes_max: ResourceSetting[int]
    receives_max: ResourceSetting[int] | None
    dead_letters: ModelQueue | None
    roles: frozenset[Role]
    is_redrive_written: bool
    messages_a_second: ResourceSetting[float]
    seconds_each: ResourceSetting[float]

    @property
    def name(self) -> str:
        """Its logical id."""
        return self.facts.logical_id

    @property
    def is_for_failures(self) -> bool:
        """Whether it receives messages or events that could not be processed or delivered."""
        return not self.roles.isdisjoint({"dead letters", "perhaps dead letters", "failed deliveries", "held"})

    @property
    def is_name_known(self) -> bool:
        """Whether it is known which name the document gives it, if any."""
        return "QueueName" not in self.facts.unresolved

    @property
    def is_named(self) -> bool:
        """Whether the document gives it a name by which others can refer to it, or may do so."""
        return self.facts.named or not self.is_name_known

    @property
    def may_redrive(self) -> bool:
        """Whether it has a redrive policy, or may have one under other conditions."""
        return self.facts.redrive is not None or self.is_redrive_written


class Sender(Struct, frozen=True, kw_only=True):
    """A resource of EventBridge, Scheduler or SNS that sends to a queue.

    Attributes:
        name: its logical id. arn: the ARN of the schedule, rule or topic; "" if it is not known.
        queue_arn: where it sends. of_failures: it sends only what it could not deliver elsewhere.
        principal: the service that sends; "" if it sends with the role `role_arn`.
        is_allowed: SAM creates the policy that allows it to send.
    """

    name: str
    kind: Literal["rule", "schedule", "topic", "bus", "subscriber"]
    source: FindingSource
    arn: str
    queue_arn: ResourceSetting[str]
    of_failures: bool
    principal: str = ""
    role_arn: ResourceSetting[str] | None = None
    is_allowed: bool = False


class ModelFunction(Struct, frozen=True, kw_only=True):
    """A function. `reserved`: its reserved concurrency; None: there is none."""

    facts: FunctionFacts
    source: FindingSource
    timeout_s: ResourceSetting[int]
    reserved: ResourceSetting[int] | None

    @property
    def name(self) -> str:
        """Its logical id."""
        return self.facts.logical_id


class ModelMapping(Struct, frozen=True, kw_only=True):
    """An enabled event source mapping, with its queue and its function if they are in this template."""

    facts: MappingFacts
    source: FindingSource
    batch_size: ResourceSetting[int]
    window_s: ResourceSetting[int]
    concurrency_max: ResourceSetting[int] | None
    reports_failures: bool | None
    queue: ModelQueue | None
    function: ModelFunction | None

    @property
    def name(self) -> str:
        """Its logical id; for a SAM event, the function's id and the event's name."""
        return self.facts.logical_id


class Model(Struct, frozen=True, kw_only=True):
    """Everything that rules look at.

    `around`: all other resources. `senders`: what sends to queues. `unseen`: why there may be resources that this model does
    not have. `references`: by id, the ids of the resources that refer to it; "" stands for the rest of the template.
    `exported`: ids that other stacks may use. `place`: the region and account of these resources, which an ARN must have to
    name one of them; None if they are made up. `has_unknown_sources`: there is a mapping whose source may be any queue.
    """

    document: Document
    queues_by_name: abc.Mapping[str, ModelQueue]
    functions_by_name: abc.Mapping[str, ModelFunction]
    mappings: tuple[ModelMapping, ...]
    policies: tuple[PolicyFacts, ...]
    around: tuple[ResourceFacts, ...]
    senders: abc.Mapping[str, list[Sender]]
    unseen: tuple[str, ...]
    nested: tuple[str, ...]
    references: abc.Mapping[str, frozenset[str]]
    exported: frozenset[str]
    place: tuple[str, str] | None
    has_unknown_sources: bool

    @property
    def queues(self) -> abc.Collection[ModelQueue]:
        """All queues."""
        return self.queues_by_name.values()

    @property
    def functions(self) -> abc.Collection[ModelFunction]:
        """All functions."""
        return self.functions_by_name.values()

    def mappings_of(self, queue: ModelQueue) -> list[ModelMapping]:
        """The mappings that receive from a queue."""
        return [one for one in self.mappings if one.queue is queue]

    def senders_of(self, queue: ModelQueue) -> list[Sender]:
        """What sends to a queue, or sends it what failed elsewhere."""
        return self.senders.get(queue.facts.name, [])

    def all(self, kind: type[R]) -> list[R]:
        """The resources of a kind that exist."""
        return [one for one in self.around if isinstance(one, kind) and one.exists is True]

    def possible(self, kind: type[R]) -> list[R]:
        """The resources of a kind, including those that exist only under other conditions."""
        return [one for one in self.around if isinstance(one, kind)]

    def may_be_elsewhere(self, one_id: str, *, named: bool) -> bool:
        """Whether an alarm or policy for a resource may be in a place that this model does not show.

        Args:
            named: the document gives the resource's name, so a nested stack may use that name without receiving it.
        """
        places = self.references.get(one_id, frozenset())
        return bool(self.unseen) or any(named or one in places for one in self.nested)

    def queue_at(self, arn: str | None) -> ModelQueue | None:
        """The queue of this template that has an ARN."""
        return self.queues_by_name.get(name_in(arn, "sqs", self.place))

    def keeps_failures(self, function: ModelFunction) -> bool:
        """Whether asynchronous invocations that fail are sent to a destination, or may be."""
        facts = function.facts
        if not (facts.dead_letter_arn.is_absent and facts.on_failure.is_absent):
            return True
        configs = [one for one in self.possible(InvokeConfigFacts) if _is_of(one.function.value, facts.name)]
        return any(not one.on_failure.is_absent for one in configs)

    def function_at(self, arn: str | None) -> ModelFunction | None:
        """The function of this template that has an ARN, with or without a version or alias."""
        return self.functions_by_name.get(name_in(arn, "lambda", self.place))


def _is_of(function: str | None, name: str) -> bool:
    """Whether a function's name or ARN is not known, or refers to the function with this name."""
    return function is None or name in function.split(":")


def name_in(arn: str | None, service: str, place: tuple[str, str] | None = None) -> str:
    """The name of a queue or function in an ARN; "" if the service, region or account is a different one."""
    parts = (arn or "").split(":")
    if len(parts) < 6 or parts[0] != "arn" or parts[2] != service:
        return ""
    if place is not None and any(given and given != own for given, own in zip(parts[3:5], place, strict=True)):
        return ""
    return parts[6] if service == "lambda" and len(parts) > 6 else parts[5]


def model_of(facts: TemplateFacts) -> Model:
    """Link what was read from one template."""
    return _Linker(facts).model()


class _Linker:
    def __init__(self, facts: TemplateFacts) -> None:
        self._facts = facts
        self._document = facts.document
        self._place = (facts.region, facts.account) if facts.document.exact else None
        self._senders: dict[str, list[Sender]] = {}
        for one in facts.around:
            for sender in _senders(one):
                name = name_in(sender.queue_arn.value, "sqs", self._place)
                self._senders.setdefault(name, []).append(sender)
        self._roles = self._inferred()

    def model(self) -> Model:
        queues: dict[str, ModelQueue] = {}
        for one in self._facts.queues:  # dead-letter queues come first
            queues[one.name] = self._queue(one, queues)
        functions = {one.name: self._function(one) for one in self._facts.functions}
        return Model(
            document=self._document,
            queues_by_name=queues,
            functions_by_name=functions,
            mappings=tuple(
                self._mapping(one, queues.get(self._source_of(one)), functions.get(one.function))
                for one in self._facts.mappings
                if one.enabled and "Enabled" not in one.unresolved
            ),
            policies=self._facts.policies,
            around=self._facts.around,
            senders=self._senders,
            unseen=self._facts.unseen,
            nested=self._facts.nested,
            references=_references(self._document.data),
            exported=frozenset(_exported(self._document.data)),
            place=self._place,
            has_unknown_sources=any(not one.queue for one in self._facts.mappings)
            or any(name.startswith("Events") for one in self._facts.functions for name in one.unresolved),
        )

    def _inferred(self) -> dict[str, set[Role]]:
        """What queues are for, by their names."""
        found: dict[str, set[Role]] = {one.name: set() for one in self._facts.queues}

        def note(name: str, role: Role) -> None:
            found.setdefault(name, set()).add(role)

        for mapping in self._facts.mappings:
            note(self._source_of(mapping), "source")
        for queue in self._facts.queues:
            note(queue.tags.get(HELD_TAG, ""), "held")
            note("" if queue.redrive is None else queue.redrive.target, "dead letters")
            for name in self._perhaps_dead_letters_of(queue):
                note(name, "perhaps dead letters")
        for name, senders in self._senders.items():
            for sender in senders:
                note(name, "failed deliveries" if sender.of_failures else "target")
        for function in self._facts.functions:
            note(name_in(function.dead_letter_arn.value, "sqs", self._place), "failed deliveries")
            note(name_in(function.on_failure.value, "sqs", self._place), "failed deliveries")
        return found

    def _perhaps_dead_letters_of(self, queue: QueueFacts) -> list[str]:
        """The queues that may be the target of a redrive policy that is not known: those it mentions, or else any other."""
        path = (*queue.location.parts, "RedrivePolicy")
        if queue.redrive is not None or not self._document.has(path):
            return []
        mentioned = set(_mentioned(self._document.at(path)))
        named = [one.name for one in self._facts.queues if one.logical_id in mentioned]
        return named or [one.name for one in self._facts.queues if one is not queue]

    def _source_of(self, mapping: MappingFacts) -> str:
        """The name of a mapping's queue; "" if that is in another region or account."""
        return name_in(mapping.queue_arn, "sqs", self._place) if self._place is not None else mapping.queue

    def _queue(self, facts: QueueFacts, before: dict[str, ModelQueue]) -> ModelQueue:
        base = facts.location.parts
        receives = None
        if facts.redrive is not None:
            receives = self._document.setting((*base, "RedrivePolicy", "maxReceiveCount"), facts.redrive.receives_max)
        return ModelQueue(
            facts=facts,
            source=self._document.source(base),
            visibility_s=self._attribute(facts, "VisibilityTimeout", VISIBILITY_MS_DEFAULT // SECOND_MS),
            retention_s=self._attribute(facts, "MessageRetentionPeriod", RETENTION_MS_DEFAULT // SECOND_MS),
            body_bytes_max=self._attribute(facts, "MaximumMessageSize", MESSAGE_BYTES_MAX),
            receives_max=receives,
            dead_letters=None if facts.redrive is None else before.get(facts.redrive.target),
            roles=frozenset(self._roles.get(facts.name, ())),
            is_redrive_written=self._document.has((*base, "RedrivePolicy")),
            messages_a_second=self._expected(facts, "messages_per_second"),
            seconds_each=self._expected(facts, "seconds_each"),
        )

    def _expected(self, facts: QueueFacts, name: str) -> ResourceSetting[float]:
        path = (*facts.location.parts[:-1], "Metadata", "onefold", "expect", name)
        written = self._document.at(path)
        value = decimal_number(written)
        if written is not None and isinstance(value, Unresolved):
            return self._document.setting(path, None, value.why)
        return self._document.setting(path, None if written is None or isinstance(value, Unresolved) else value)

    def _attribute(self, facts: QueueFacts, name: str, default: int) -> ResourceSetting[int]:
        text = facts.attributes.get(name, str(default))
        why = facts.unresolved[name].why if name in facts.unresolved else ""
        if not why and not (text.isascii() and text.isdecimal()):
            why = "it is not a whole number"
        return self._document.setting((*facts.location.parts, name), None if why else int(text), why)

    def _function(self, facts: FunctionFacts) -> ModelFunction:
        base = facts.location.parts
        why = facts.unresolved["Timeout"].why if "Timeout" in facts.unresolved else ""
        timeout = self._document.setting(
            self._with_globals(base, "Timeout"), None if why else facts.timeout_ms // SECOND_MS, why
        )
        reserved = None if facts.reserved.value is None else facts.reserved
        return ModelFunction(facts=facts, source=self._document.source(base), timeout_s=timeout, reserved=reserved)

    def _mapping(self, facts: MappingFacts, queue: ModelQueue | None, function: ModelFunction | None) -> ModelMapping:
        base = facts.location.parts

        def setting(name: str, value: int) -> ResourceSetting[int]:
            why = facts.unresolved[name].why if name in facts.unresolved else ""
            return self._document.setting((*base, *name.split(".")), None if why else value, why)

        return ModelMapping(
            facts=facts,
            source=self._document.source(base),
            batch_size=setting("BatchSize", facts.batch_size),
            window_s=setting("MaximumBatchingWindowInSeconds", facts.window_ms // SECOND_MS),
            concurrency_max=None
            if facts.concurrency_max is None
            else setting("ScalingConfig.MaximumConcurrency", facts.concurrency_max),
            reports_failures=None if "FunctionResponseTypes" in facts.unresolved else facts.reports_failures,
            queue=queue,
            function=function,
        )

    def _with_globals(self, base: PropertyPath, name: str) -> PropertyPath:
        """Where a function's property is written: in the function itself, or in SAM's Globals."""
        shared: PropertyPath = ("Globals", "Function", name)
        own = (*base, name)
        return shared if not self._document.has(own) and self._document.has(shared) else own


# -- references ------------------------------------------------------------------------------------------------------------


def _references(data: dict[str, Any]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    resources = data.get("Resources")
    places = list(resources.items()) if isinstance(resources, dict) else []
    for place, value in (*places, ("", {key: one for key, one in data.items() if key != "Resources"})):
        for name in _mentioned(value):
            found.setdefault(name, set()).add(place)
    return {name: frozenset(ids) for name, ids in found.items()}


def _exported(data: dict[str, Any]) -> Iterator[str]:
    outputs = data.get("Outputs")
    for one in outputs.values() if isinstance(outputs, dict) else ():
        if isinstance(one, dict) and "Export" in one:
            yield from _mentioned(one.get("Value"))


def _mentioned(value: Any) -> Iterator[str]:
    """The ids that a value refers to."""
    if isinstance(value, list):
        for one in value:
            yield from _mentioned(one)
    if not isinstance(value, dict):
        return
    for key, inner in value.items():
        first = inner[0] if isinstance(inner, list) and inner else inner
        if key == "Ref" and isinstance(inner, str):
            yield inner
        elif key == "Fn::GetAtt" and isinstance(first, str):
            yield first if isinstance(inner, list) else first.split(".", 1)[0]
        elif key == "Fn::Sub" and isinstance(first, str):
            yield from _SUBSTITUTED.findall(first)
        yield from _mentioned(inner)


# -- what sends to queues --------------------------------------------------------------------------------------------------


def _senders(one: ResourceFacts) -> Iterator[Sender]:
    """What one resource sends to queues that are known."""
    if one.exists is not True:
        return
    match one:
        case RuleFacts():
            for target in one.targets or ():
                yield from _of_target(one, "rule", target, EVENTS)
        case ScheduleFacts():
            yield from _of_target(one, "schedule", one.target, "")
        case SubscriberFacts():
            for arn, of_failures in ((one.target_arn, False), (one.on_failure, True)):
                yield from _sender(one, "subscriber", arn, of_failures, role_arn=one.role_arn)
        case TopicSubscriptionFacts():
            if one.protocol.value == "sqs":
                yield from _sender(one, "topic", one.endpoint, False, principal=TOPICS, is_allowed=one.allowed)
            yield from _sender(one, "topic", one.dead_letter_arn, True, principal=TOPICS)
        case BusFacts(generation=1):
            yield from _sender(one, "bus", one.dead_letter_arn, True, principal=EVENTS)
        case _:
            pass


def _of_target(
    one: ResourceFacts, kind: Literal["rule", "schedule"], target: TargetFacts, principal: str
) -> Iterator[Sender]:
    queue_arn = target.arn
    if target.arn.value is not None and target.arn.value.endswith(SDK_SEND):
        queue_arn = _queue_of_call(target)
    yield from _sender(one, kind, queue_arn, False, principal=principal, role_arn=target.role_arn)
    yield from _sender(
        one, kind, target.dead_letter_arn, True,
        principal=principal, role_arn=None if principal else target.role_arn, is_allowed=target.makes_queue,
    )  # fmt: skip


def _queue_of_call(target: TargetFacts) -> ResourceSetting[str]:
    """The queue to which Scheduler's universal target sends, from the URL in its input."""
    try:
        call = json_of(target.input.value or "")
    except ValueError:
        call = None
    url = call.get("QueueUrl") if isinstance(call, dict) else None
    if not isinstance(url, str) or url.count("/") < 4:
        return ResourceSetting(None, target.source, target.at, False, "the queue is not in its input")
    account, name = url.rsplit("/", 2)[1:]
    return ResourceSetting(f"arn:aws:sqs::{account}:{name}", target.source, target.at, True)


def _sender(
    one: ResourceFacts, kind: Literal["rule", "schedule", "topic", "bus", "subscriber"], queue_arn: ResourceSetting[str],
    of_failures: bool, *, principal: str = "", role_arn: ResourceSetting[str] | None = None, is_allowed: bool = False,
) -> Iterator[Sender]:  # fmt: skip
    if name_in(queue_arn.value, "sqs"):
        arn = one.topic_arn.value or "" if isinstance(one, TopicSubscriptionFacts) else one.arn
        yield Sender(
            name=one.id, kind=kind, source=one.source, arn=arn, queue_arn=queue_arn, of_failures=of_failures,
            principal=principal, role_arn=role_arn, is_allowed=is_allowed,
        )  # fmt: skip


# -- edits -----------------------------------------------------------------------------------------------------------------


def replaced(setting: ResourceSetting[int], value: int) -> Iterator[FindingEdit]:
    """The edit that writes another number; none if the value is not written as a number."""
    if setting.span is not None:
        yield FindingEdit(setting.span, str(value))


def inserted(document: Document, properties: PropertyPath, name: str, value: object) -> Iterator[FindingEdit]:
    """The edit that inserts a property as the first of a mapping in block style; the mapping too, if it is not written.

    There is none for a mapping in another style, or if the property is written already.

    Args:
        properties: the mapping's path. value: a number, a text or a list of texts.
    """
    place, around = document.case(properties)
    if document.has(place):
        yield from _first_of(document, place, around, [f"{name}: {json.dumps(value)}"])
        return
    outer, beside = document.case(properties[:-1])
    yield from _first_of(document, outer, beside, [f"{properties[-1]}:", f"  {name}: {json.dumps(value)}"])


def _first_of(document: Document, place: PropertyPath, around: object, new: Sequence[str]) -> Iterator[FindingEdit]:
    """The edit that inserts lines, of which the first begins with a key, in a mapping; below its `Type`, if it has one."""
    span = document.spans.get(place)
    if span is None or not isinstance(around, dict) or is_function(around) or new[0].partition(":")[0] in around:
        return
    row = document.row(span.line)
    indent = row[: span.column - 1]
    if indent.strip() or row[span.column - 1 : span.column] in {"{", ""}:
        return
    at_line, kind = span.line, document.spans.get((*place, "Type"))
    if kind is not None and kind.line == kind.end_line < document.text.count("\n") + 1:
        at_line = kind.line + 1
    end = "\r\n" if row.endswith("\r") else "\n"
    at = FindingSource(document.file, at_line, 1, at_line, 1)
    yield FindingEdit(at, "".join(f"{indent}{one}{end}" for one in new))


def settled(document: Document, setting: ResourceSetting[int], value: int) -> tuple[FindingEdit, ...]:
    """The edit that gives a setting this value: it replaces the number, or inserts a property that is not written."""
    if setting.written:
        return tuple(replaced(setting, value))
    *properties, name = setting.at
    return tuple(inserted(document, tuple(properties), str(name), value))
