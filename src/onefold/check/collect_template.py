"""Reads a CloudFormation or SAM template into facts: queues, queue policies, functions and event source mappings.

The only entry point is `collect_template`. It evaluates what can be evaluated from the file alone (parameters, conditions,
functions) and lists everything else with a reason. SAM's Globals are merged as written, as SAM does before CloudFormation
sees them.

Never here: creating anything, asking AWS, or an opinion on what was found; running code (only Python runs here, from a
directory of this machine or inline; anything else is still a fact, with the reason in `code`); whether settings are
wise or even allowed: SQS and the mapping check that when they are created.
Invariant: every resource of the template is either a fact or in `left_out`. A mapping with an unresolved value does not run:
with another batch size or without its filter it would be another mapping.

Sources: CloudFormation's AWS::SQS::Queue, whose properties are the attributes of SQS CreateQueue; Lambda API,
CreateEventSourceMapping: BatchSize 10, window 0, enabled; SAM developer guide, Globals section: single values are replaced,
mappings merged, lists joined, Globals first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from onefold.check.collect_function import function_of
from onefold.check.documents import read_document
from onefold.check.facts import (
    FunctionFacts,
    LeftOut,
    MappingFacts,
    PolicyFacts,
    PropertyPath,
    QueueFacts,
    RedriveFacts,
    TemplateFacts,
    TemplateLocation,
    Unresolved,
)
from onefold.check.intrinsics import NO_VALUE, is_function, text_of, whole_number, why_not
from onefold.check.scope import FUNCTIONS, QUEUE, Properties, Scope
from onefold.errors import UsageError
from onefold.limits import (
    BATCH_SIZE_DEFAULT,
    SECOND_MS,
)

QUEUE_ATTRIBUTES: Final = (
    "ContentBasedDeduplication",
    "DeduplicationScope",
    "DelaySeconds",
    "FifoQueue",
    "FifoThroughputLimit",
    "KmsDataKeyReusePeriodSeconds",
    "KmsMasterKeyId",
    "MaximumMessageSize",
    "MessageRetentionPeriod",
    "ReceiveMessageWaitTimeSeconds",
    "SqsManagedSseEnabled",
    "VisibilityTimeout",
)
QUEUE_DOCUMENTS: Final = ("RedriveAllowPolicy", "RedrivePolicy")


def queue_of(properties: Properties) -> QueueFacts:
    """The facts of an AWS::SQS::Queue."""
    name, why = properties.scope.name_of(properties.logical_id)
    if why is not None:
        properties.unresolved["QueueName"] = Unresolved(f"{why.why}; the queue is named {name}")
    attributes: dict[str, str] = {}
    for key in QUEUE_ATTRIBUTES:
        if (value := properties.text(key, "")) != "":
            attributes[key] = value
    if attributes.get("FifoQueue") == "false":  # CloudFormation takes it; SQS knows only "true"
        del attributes["FifoQueue"]
    for key in QUEUE_DOCUMENTS:
        if (document := _document(properties, key)) is not None:
            attributes[key] = json.dumps(document)
    for key in properties.raw:
        if key not in {*QUEUE_ATTRIBUTES, *QUEUE_DOCUMENTS, "QueueName", "Tags"}:
            properties.leave_out(key, "not a property of a queue")
    return QueueFacts(
        location=properties.location(),
        logical_id=properties.logical_id,
        name=name,
        named="QueueName" in properties.raw and why is None,
        attributes=attributes,
        tags=_tags(properties),
        redrive=_redrive(properties, attributes),
        unresolved=properties.unresolved,
    )


def policy_of(properties: Properties) -> PolicyFacts:
    """The facts of an AWS::SQS::QueuePolicy or QueueInlinePolicy."""
    urls = properties.get("Queues") if "Queues" in properties.raw else [properties.get("Queue")]
    if not isinstance(urls, list):
        properties.refuse("Queues", "no list of URLs")
    names = [url.rsplit("/", 1)[-1] for url in urls if isinstance(url, str)] if isinstance(urls, list) else []
    return PolicyFacts(
        location=properties.location(),
        logical_id=properties.logical_id,
        queues=tuple(names),
        document=properties.get("PolicyDocument"),
    )


def _document(properties: Properties, key: str) -> dict[str, Any] | None:
    value = properties.get(key)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            properties.refuse(key, "no JSON")
            return None
    if value is None or value == {}:
        return None
    if not isinstance(value, dict):
        properties.refuse(key, "no mapping")
        return None
    if why := why_not(value):
        properties.unresolved[key] = why
        return None
    return value


def _redrive(properties: Properties, attributes: dict[str, str]) -> RedriveFacts | None:
    if "RedrivePolicy" not in attributes:
        return None
    policy = json.loads(attributes["RedrivePolicy"])
    arn, receives_max = text_of(policy.get("deadLetterTargetArn")), whole_number(policy.get("maxReceiveCount"))
    if isinstance(arn, Unresolved) or isinstance(receives_max, Unresolved):
        properties.refuse("RedrivePolicy", "it needs deadLetterTargetArn and a whole maxReceiveCount")
        del attributes["RedrivePolicy"]
        return None
    return RedriveFacts(properties.location("RedrivePolicy"), arn.rsplit(":", 1)[-1], receives_max)


def _tags(properties: Properties) -> dict[str, str]:
    value = properties.get("Tags")
    found: dict[str, str] = {}
    for number, item in enumerate(value if isinstance(value, list) else ()):
        pair = (text_of(item.get("Key")), text_of(item.get("Value"))) if isinstance(item, dict) else (None, None)
        if isinstance(pair[0], str) and isinstance(pair[1], str):
            found[pair[0]] = pair[1]
        else:
            properties.unresolved[f"Tags.{number}"] = why_not(item) or Unresolved("no Key and Value")
    return found


def in_order(queues: list[QueueFacts]) -> list[QueueFacts]:
    """A queue comes after its dead-letter queue; queues that refer to one another in a circle keep their order."""
    by_name = {queue.name: queue for queue in queues}
    placed: dict[str, QueueFacts] = {}
    for queue in queues:
        chain: list[QueueFacts] = []
        current: QueueFacts | None = queue
        while current is not None and current.name not in placed and current not in chain:
            chain.append(current)
            current = by_name.get(current.redrive.target) if current.redrive else None
        placed.update((one.name, one) for one in reversed(chain))
    return list(placed.values())


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
        properties.refuse(source_key, "no ARN of a queue")
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


def collect_template(
    path: Path, *, parameters: Mapping[str, str], account: str, region: str, endpoint: str = ""
) -> TemplateFacts:
    """What the template says.

    Args:
        path: the file, YAML or JSON; code directories are relative to it.
        parameters: values for the template's parameters, over their defaults.
        account: account id, 12 digits, for ARNs, URLs and AWS::AccountId.
        region: for ARNs, URLs and AWS::Region.
        endpoint: what `Ref` of a queue begins with, `http://127.0.0.1:9324`; SQS's own address when empty.

    Raises:
        NotFoundError: the file does not exist.
        StorageError: it cannot be read.
        UsageError: it is not a template (see documents.read_document), or a parameter is unknown or not allowed.
    """
    _refuse_others(path)
    document = read_document(path)
    scope = Scope(document, parameters=parameters, account=account, region=region, endpoint=endpoint)
    if not scope.resources:
        _refuse_others(path, document.data)
        raise UsageError(f"{document.file} has no Resources.", todo="Name a template that has some.")
    found = _Collection(scope)
    for logical_id in scope.resources:
        found.take(logical_id)
    found.finish()
    return TemplateFacts(
        file=document.file,
        account=account,
        region=region,
        parameters=scope.parameters,
        queues=tuple(in_order(found.queues)),
        policies=tuple(found.policies),
        functions=tuple(found.functions),
        mappings=tuple(found.mappings),
        left_out=tuple(sorted(found.left_out, key=lambda one: (one.location.line, one.location.path))),
        document=document,
    )


def _refuse_others(path: Path, data: Mapping[str, Any] | None = None) -> None:
    """Refuse a file of another tool, and say what to give instead.

    Args:
        data: what it says, once it was read; None: it is judged by its name alone.
    """
    found = data or {}
    if path.name.endswith((".tf", ".tf.json", ".hcl")) or {"resource", "terraform"} & found.keys():
        raise UsageError(
            f"{path} is a file of Terraform.",
            meaning="Only CloudFormation and SAM templates are read here: Terraform works with an API.",
            todo="Start onefold serve without it, give the aws provider endpoints { sqs = URL, lambda = URL }, and run "
            "terraform apply.",
        )
    if "service" in found and "provider" in found:
        raise UsageError(
            f"{path} is a file of the Serverless Framework.",
            meaning="Only CloudFormation and SAM templates are read here; it makes one.",
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

    def take(self, logical_id: str) -> None:
        """Make facts of one resource, or leave it out."""
        path = ("Resources", logical_id)
        resource = self.scope.resources[logical_id]
        kind = self.scope.type_of(logical_id)
        if logical_id.startswith("Fn::"):
            self._leave_out(path, logical_id.split("::", 2)[1], "a loop or macro; it is not expanded here")
        elif kind is None:
            self._leave_out(path, "no type", "no resource: it needs a Type")
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
        else:
            self._leave_out(path, kind, "only queues, functions and their mappings are served")

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
            if name not in OWN_TRANSFORMS:
                self._leave_out(("Transform",), "macro", f"{name} is not run; what it would change is as written")

    # ------------------------------------------------------------------------------------------------

    def _not_there(self, resource: dict[str, Any]) -> str | None:
        """Why a conditional resource is not taken."""
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
            if kind != "SQS":
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
        location = TemplateLocation(document.file, document.line(path), logical_id, ".".join(map(str, path)))
        self.left_out.append(LeftOut(location, str(text_of(kind)), why))
