"""Reads a CloudFormation or SAM template into facts: queues, queue policies, functions and event source mappings.

`collect_template` reads a file, `collect` a document that another input made (facts.py says what it looks like). With
`everything`, the resources around queues are read too: schedules, rules, topics, alarms and the others of `AROUND`; for
those with a condition the facts say whether they exist. It evaluates what can be evaluated from the file alone (parameters,
conditions, functions) and lists everything else with a reason. SAM's Globals are merged as written, as SAM does before
CloudFormation sees them.

Never here: creating anything, asking AWS, or an opinion on what was found; running code (only Python runs here, from a
directory of this machine or inline; anything else is still a fact, with the reason in `code`); whether settings are
wise or even allowed: SQS and the mapping check that when they are created.
Invariants: every resource of the template is either a fact or in `left_out`; what may hold more resources is in `unseen` or
`nested`. A mapping with an unresolved value does not run: with another batch size or without its filter it would be another
mapping.

Sources: Lambda API, CreateEventSourceMapping: BatchSize 10, window 0, enabled; SAM developer guide, Globals section: single
values are replaced, mappings merged, lists joined, Globals first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from onefold.check.collect_events import (
    bus_of,
    event_of,
    rule_of,
    schedule_of,
    subscriber_of,
    subscription_of,
    topic_of,
)
from onefold.check.collect_function import function_of
from onefold.check.collect_queue import in_order, policy_of, queue_of
from onefold.check.collect_services import (
    alarm_of,
    invoke_config_of,
    key_of,
    role_of,
    state_machine_of,
    table_of,
    with_aliases,
    with_policies,
)
from onefold.check.documents import read_document
from onefold.check.facts import (
    Document,
    FunctionFacts,
    KeyFacts,
    LeftOut,
    MappingFacts,
    PolicyFacts,
    PropertyPath,
    QueueFacts,
    ResourceFacts,
    RoleFacts,
    TemplateFacts,
    TemplateLocation,
    Unresolved,
)
from onefold.check.intrinsics import NO_VALUE, is_function, text_of, why_not
from onefold.check.loops import expanded
from onefold.check.scope import FUNCTIONS, QUEUE, Properties, Scope
from onefold.errors import UsageError
from onefold.limits import (
    BATCH_SIZE_DEFAULT,
    SECOND_MS,
)

READ_OF_MAPPINGS: Final = frozenset(
    {
        *("BatchSize", "Enabled", "EventSourceArn", "FilterCriteria", "FunctionName", "FunctionResponseTypes"),
        *("MaximumBatchingWindowInSeconds", "ScalingConfig", "Tags"),
    }
)
IGNORED_BY_MAPPINGS: Final = {
    "DestinationConfig": "does not apply to queues",
    "MetricsConfig": "there is no CloudWatch here",
    "ProvisionedPollerConfig": "pollers are not provisioned here; the mapping scales as without it",
}


def mapping_of(
    properties: Properties, *, source_key: str = "EventSourceArn", function: str | None = None
) -> MappingFacts:
    """The facts of a mapping. SAM's events call the ARN `Queue`, and their function is known from where they are written."""
    for key in properties.raw:
        if key not in READ_OF_MAPPINGS and key != source_key:
            properties.leave_out(key, IGNORED_BY_MAPPINGS.get(key, "without effect here"))
    arn = properties.text(source_key, "")
    if not arn and source_key not in properties.unresolved:
        properties.refuse(source_key, "not the ARN of a queue")
    scaling = properties.inner("ScalingConfig")
    concurrency_max = scaling.number_or_none("MaximumConcurrency")
    properties.took(scaling)
    return MappingFacts(
        location=properties.location(),
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
        destination=_destination(properties.raw.get("DestinationConfig")),
        has_pollers="ProvisionedPollerConfig" in properties.raw,
        unresolved=properties.unresolved,
    )


def _destination(written: Any) -> str | None:
    """The destination of failed invocations as it is written, as JSON text; None when there is none."""
    failed = written.get("OnFailure") if isinstance(written, dict) else None
    return None if not failed else json.dumps(failed, default=str)


def of_another_service(arn: str) -> str | None:
    """The service an event source belongs to, None for SQS or when it is not known."""
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
        properties.refuse("FilterCriteria", "not a list of Filters")
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


def with_globals(scope: Scope, raw: Any) -> Any:
    """A function's properties on top of Globals.Function."""
    shared = scope.section("Globals").get("Function")
    if not isinstance(shared, dict):
        return raw
    scope.functions.count(shared)  # each function gets a copy
    return _merged(shared, raw if raw is not None else {})


def _merged(below: Any, above: Any) -> Any:
    if isinstance(below, list) and isinstance(above, list):
        return below + above
    if isinstance(below, dict) and isinstance(above, dict) and not (is_function(below) or is_function(above)):
        return below | {key: _merged(below[key], item) if key in below else item for key, item in above.items()}
    return above


T = TypeVar("T", QueueFacts, FunctionFacts)
MAPPING = "AWS::Lambda::EventSourceMapping"
POLICIES = frozenset({"AWS::SQS::QueuePolicy", "AWS::SQS::QueueInlinePolicy"})
SERVERLESS = "AWS::Serverless::Function"
OWN_TRANSFORMS = frozenset({"AWS::Serverless-2016-10-31", "AWS::LanguageExtensions"})
_Taker = Callable[[Properties, bool | Unresolved], ResourceFacts | Iterable[ResourceFacts]]
AROUND: Final[Mapping[str, _Taker]] = {
    "AWS::CloudWatch::Alarm": alarm_of,
    "AWS::CloudWatch::CompositeAlarm": alarm_of,
    "AWS::CloudWatch::LogAlarm": alarm_of,
    "AWS::DynamoDB::GlobalTable": table_of,
    "AWS::DynamoDB::Table": table_of,
    "AWS::Events::EventBus": bus_of,
    "AWS::Events::Rule": rule_of,
    "AWS::EventsV2::EventBus": bus_of,
    "AWS::EventsV2::Subscriber": subscriber_of,
    "AWS::IAM::Role": role_of,
    "AWS::KMS::Key": key_of,
    "AWS::Lambda::EventInvokeConfig": invoke_config_of,
    "AWS::SNS::Subscription": subscription_of,
    "AWS::SNS::Topic": topic_of,
    "AWS::Scheduler::Schedule": schedule_of,
    "AWS::Serverless::SimpleTable": table_of,
    "AWS::Serverless::StateMachine": state_machine_of,
    "AWS::StepFunctions::StateMachine": state_machine_of,
}
READ_OF_TOPICS: Final[Mapping[str, tuple[str, ...]]] = {
    "AWS::SNS::Topic": ("ContentBasedDeduplication", "FifoTopic", "Subscription", "TopicName"),
    "AWS::SNS::Subscription": (
        "Endpoint", "FilterPolicy", "FilterPolicyScope", "Protocol", "RawMessageDelivery", "RedrivePolicy", "TopicArn",
    ),
}  # fmt: skip
ATTACHED: Final = frozenset({"AWS::IAM::ManagedPolicy", "AWS::IAM::Policy", "AWS::IAM::RolePolicy"})
ALIAS: Final = "AWS::KMS::Alias"
NESTED: Final = frozenset({"AWS::CloudFormation::Stack", "AWS::Serverless::Application"})
CONNECTOR: Final = "AWS::Serverless::Connector"


def collect_template(
    path: Path,
    *,
    parameters: Mapping[str, str],
    account: str,
    region: str,
    endpoint: str = "",
    everything: bool = False,
    text: str | None = None,
) -> TemplateFacts:
    """What the template says.

    Args:
        path: the file, YAML or JSON; code directories are relative to it.
        parameters: values for the template's parameters, over their defaults.
        account: account id, 12 digits, for ARNs, URLs and AWS::AccountId.
        region: for ARNs, URLs and AWS::Region.
        endpoint: what `Ref` of a queue begins with, `http://127.0.0.1:9324`; SQS's own address when empty.
        everything: also read the resources around queues, for rules; a local SQS does not need them.
        text: contents to use instead of the file's.

    Raises:
        NotFoundError: the file does not exist.
        StorageError: it cannot be read.
        UsageError: it is not a template (see documents.read_document), or a parameter is unknown or not allowed.
    """
    _refuse_others(path)
    document = read_document(path, text)
    if not document.data.get("Resources"):
        _refuse_others(path, document.data)
    return collect(
        document, parameters=parameters, account=account, region=region, endpoint=endpoint, everything=everything
    )


def collect(
    document: Document,
    *,
    parameters: Mapping[str, str],
    account: str,
    region: str,
    endpoint: str = "",
    everything: bool,
    values: Mapping[str, Any] | None = None,
) -> TemplateFacts:
    """What a document says, from wherever it comes; the arguments are those of `collect_template`.

    Args:
        values: values of parameters, over the given ones; Unresolved: only values that it is not are known.

    Raises:
        UsageError: it has no Resources, or a parameter is unknown or not allowed.
    """

    def scope_of(document: Document) -> Scope:
        return Scope(
            document, parameters=parameters, account=account, region=region, endpoint=endpoint, everything=everything,
            values=values,
        )  # fmt: skip

    scope = scope_of(document)
    written_out = expanded(document, scope) if everything else document
    if written_out is not document:
        scope = scope_of(written_out)
        document = written_out
    if everything and (holds := scope.decided()):
        document = replace(document, holds=holds)
        scope.document = document
    if not scope.resources:
        raise UsageError(f"{document.file} has no Resources.", todo="Name a template that has some.")
    found = _Collection(scope)
    for logical_id in scope.resources:
        found.take(logical_id)
    found.finish()
    return TemplateFacts(
        file=document.file,
        account=scope.account,
        region=scope.region,
        parameters=scope.parameters,
        queues=tuple(in_order(found.queues)),
        policies=tuple(found.policies),
        functions=tuple(found.functions),
        mappings=tuple(found.mappings),
        left_out=tuple(sorted(found.left_out, key=lambda one: (one.location.line, one.location.path))),
        document=document,
        around=tuple(found.around),
        unseen=(*document.missing, *found.unseen),
        nested=tuple(found.nested),
    )


def _refuse_others(path: Path, data: Mapping[str, Any] | None = None) -> None:
    """Refuse a file of another tool, and say what to give instead.

    Args:
        data: its content, once it has been read; None: only its name is checked.
    """
    found = data or {}
    if path.name.endswith((".tf", ".tf.json", ".hcl")) or {"resource", "terraform"} & found.keys():
        raise UsageError(
            f"{path} is a Terraform file.",
            meaning="Only CloudFormation and SAM templates are read here: Terraform works with an API.",
            todo="Start onefold serve without it, give the aws provider endpoints { sqs = URL, lambda = URL }, and run "
            "terraform apply.",
        )
    if "service" in found and "provider" in found:
        raise UsageError(
            f"{path} is a Serverless Framework file.",
            meaning="Only CloudFormation and SAM templates are read here; the framework makes one.",
            todo="Run serverless package, then give .serverless/cloudformation-template-update-stack.json.",
        )


class _Collection:
    """Gathers the facts of one template."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.queues: list[QueueFacts] = []
        self.policies: list[PolicyFacts] = []
        self.functions: list[FunctionFacts] = []
        self.mappings: list[MappingFacts] = []
        self.left_out: list[LeftOut] = []
        self.around: list[ResourceFacts] = []
        self.unseen: list[str] = []
        self.nested: list[str] = []
        self._attached: list[Properties] = []
        self._aliases: list[Properties] = []

    def take(self, logical_id: str) -> None:
        """Make facts of one resource, or leave it out."""
        path = ("Resources", logical_id)
        resource = self.scope.resources[logical_id]
        kind = self.scope.type_of(logical_id)
        if self.scope.everything and kind is not None and self._take_around(logical_id, kind, resource):
            return
        if logical_id.startswith("Fn::"):
            self.unseen.append(f"{logical_id}, a loop or macro")
            self._leave_out(path, logical_id.split("::", 2)[1], "a loop or macro; it is not expanded here")
        elif kind is None:
            self._leave_out(path, "no type", "not a resource: it needs a Type")
        elif (why := self._not_there(resource)) is not None:
            self._leave_out(path, kind, why)
        elif kind == QUEUE:
            self._take_queue(self._properties(logical_id))
        elif kind in POLICIES:
            properties = self._properties(logical_id)
            self.policies.append(policy_of(properties))
            self._note(properties)
        elif kind in FUNCTIONS:
            self._take_function(logical_id, kind)
        elif kind == MAPPING:
            properties = self._properties(logical_id)
            self._take_mapping(mapping_of(properties), properties)
        elif kind in READ_OF_TOPICS:
            self._take_topic(kind, self._properties(logical_id))
        else:
            self._leave_out(path, kind, "only queues, topics, functions and their mappings are served")

    def _take_topic(self, kind: str, properties: Properties) -> None:
        """A topic, or a subscription, of a local SQS."""
        made = AROUND[kind](properties, True)
        self.around += [made] if isinstance(made, ResourceFacts) else made
        for name in properties.raw:
            if name not in READ_OF_TOPICS[kind]:
                properties.leave_out(name, "without effect here")
        self._note(properties)

    def finish(self) -> None:
        """What is known only when all resources are read: names used twice, mappings without an end, macros."""
        self.queues = self._once(self.queues, QUEUE)
        self.functions = self._once(self.functions, "function")
        for mapping in self.mappings:
            if not mapping.unresolved and (why := self._loose_end(mapping)) is not None:
                self.left_out.append(LeftOut(mapping.location, MAPPING, why))
        named = self.scope.document.data.get("Transform") or []
        for transform in named if isinstance(named, list) else [named]:
            name = transform if isinstance(transform, str) else "Fn::Transform"
            if not name.startswith("AWS::") or name == "AWS::Include":
                self.unseen.append(f"the macro {name}")
            if name not in OWN_TRANSFORMS:
                self._leave_out(("Transform",), "macro", f"{name} is not run; what it would change is as written")

        keys = [one for one in self.around if isinstance(one, KeyFacts)]
        roles = [one for one in self.around if isinstance(one, RoleFacts)]
        others = [one for one in self.around if not isinstance(one, (KeyFacts, RoleFacts))]
        self.around = [*others, *with_aliases(keys, self._aliases), *with_policies(roles, self._attached)]

    # ------------------------------------------------------------------------------------------------

    def _take_around(self, logical_id: str, kind: str, resource: dict[str, Any]) -> bool:
        """Make facts of a resource that is not served; False: it is of another type."""
        if kind in NESTED or kind.endswith("::MODULE"):
            self.nested.append(logical_id)
            return False
        if kind == CONNECTOR:
            self.unseen.append(f"{logical_id}, a connector, from which SAM makes policies")
            return False
        exists = self.scope.condition(str(resource["Condition"])) if "Condition" in resource else True
        if kind in ATTACHED:
            self._attached.append(self._properties(logical_id))
        elif kind == ALIAS:
            self._aliases.append(self._properties(logical_id))
        elif kind in POLICIES and exists is not True:
            self.policies.append(policy_of(self._properties(logical_id), exists))
        elif kind in AROUND:
            properties = self._properties(logical_id)
            made = AROUND[kind](properties, exists)
            self.around += [made] if isinstance(made, ResourceFacts) else made
            if kind == "AWS::Serverless::StateMachine":
                self._take_events_around(properties, str(self.scope.ref(logical_id)), exists)
        else:
            return False
        return True

    def _take_events_around(self, properties: Properties, arn: str, exists: bool | Unresolved) -> None:
        """SAM's events of a state machine."""
        events = properties.inner("Events")
        for name, written in events.raw.items():
            event = self.scope.resolve(written) if is_function(written) else written
            self._take_event_around(event, properties.logical_id, (*events.path, name), arn, exists)

    def _take_event_around(
        self, event: Any, logical_id: str, path: PropertyPath, arn: str, exists: bool | Unresolved
    ) -> bool:
        """Make facts of SAM's event of a schedule, bus or topic; False: it is something else, or not asked for."""
        if not self.scope.everything or not isinstance(event, dict):
            return False
        kind, name = str(event.get("Type")), str(path[-1])
        source = Properties(self.scope, kind, f"{logical_id}{name}", (*path, "Properties"), event.get("Properties"))
        made = event_of(kind, source, exists, arn)
        if made is not None:
            self.around.append(made)
        return made is not None

    def _not_there(self, resource: dict[str, Any]) -> str | None:
        """Why a conditional resource is left out."""
        name = resource.get("Condition")
        if name is None:
            return None
        holds = self.scope.condition(str(name))
        if isinstance(holds, Unresolved):
            return f"its condition {name} is not known: {holds.why}"
        return None if holds else f"its condition {name} is false"

    def _properties(self, logical_id: str) -> Properties:
        resource = self.scope.resources[logical_id]
        kind, raw = resource["Type"], resource.get("Properties")
        raw = with_globals(self.scope, raw) if kind == SERVERLESS else raw
        return Properties(self.scope, kind, logical_id, ("Resources", logical_id, "Properties"), raw)

    def _take_queue(self, properties: Properties) -> None:
        self.queues.append(queue_of(properties))
        self._note(properties)

    def _take_function(self, logical_id: str, kind: str) -> None:
        properties = self._properties(logical_id)
        metadata = self.scope.resources[logical_id].get("Metadata")
        asset = metadata.get("aws:asset:path") if isinstance(metadata, dict) else None
        function = function_of(properties, asset if isinstance(asset, str) else None)
        self.functions.append(function)
        self._note(properties)
        if isinstance(function.code, Unresolved):
            self._leave_out(properties.path[:2], kind, f"it does not run here: {function.code.why}")
        if kind == SERVERLESS:
            self._take_events(properties, function.name)

    def _take_events(self, properties: Properties, function: str) -> None:
        """SAM's events of a function."""
        events = properties.inner("Events")
        properties.took(events)
        for name, written in events.raw.items():
            path = (*events.path, name)
            event = self.scope.resolve(written) if is_function(written) else written
            if event is NO_VALUE:
                continue
            kind = event.get("Type") if isinstance(event, dict) else None
            if isinstance(event, Unresolved) or (kind is not None and not isinstance(kind, str)):
                self.unseen.append(f"the event {name} of {properties.logical_id}, which is not known")
            if kind != "SQS":
                arn = self.scope.function_arn(function)
                if self._take_event_around(event, properties.logical_id, path, arn, True):
                    continue
                self._leave_out(path, str(kind), "only events of type SQS are served")
                continue
            raw = event.get("Properties")
            source = Properties(self.scope, MAPPING, f"{properties.logical_id}{name}", (*path, "Properties"), raw)
            self._take_mapping(mapping_of(source, source_key="Queue", function=function), source)

    def _take_mapping(self, mapping: MappingFacts, properties: Properties) -> None:
        service = of_another_service(mapping.queue_arn)
        if service is not None:
            self._leave_out(properties.path, MAPPING, f"its source is of {service}; only queues are served")
            return
        self.mappings.append(mapping)
        self._note(properties)

    def _loose_end(self, mapping: MappingFacts) -> str | None:
        if mapping.queue not in {queue.name for queue in self.queues}:
            return f"its queue {mapping.queue} is not in this template"
        code = next((one.code for one in self.functions if one.name == mapping.function), None)
        if code is None:
            return f"its function {mapping.function or '(none)'} is not in this template"
        return f"its function {mapping.function} does not run here" if isinstance(code, Unresolved) else None

    def _once(self, facts: list[T], kind: str) -> list[T]:
        kept: dict[str, T] = {}
        for fact in facts:
            first = kept.setdefault(fact.name, fact)
            if first is not fact:
                why = f"its name {fact.name} is that of {first.logical_id}, line {first.location.line}"
                self.left_out.append(LeftOut(fact.location, kind, why))
        return list(kept.values())

    def _note(self, properties: Properties) -> None:
        self.left_out.extend(properties.left_out())

    def _leave_out(self, path: PropertyPath, kind: str, why: str) -> None:
        document = self.scope.document
        logical_id = str(path[1]) if len(path) > 1 else ""
        location = TemplateLocation(document.file, document.line(path), logical_id, path)
        self.left_out.append(LeftOut(location, str(text_of(kind)), why))
