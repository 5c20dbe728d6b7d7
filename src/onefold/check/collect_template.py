"""Reads a CloudFormation or SAM template into facts: queues, queue policies, functions and event source mappings.

The one way in is `collect_template`. It evaluates what the file alone decides (parameters, conditions, functions) and
lists everything else with a reason. Never here: creating anything, asking AWS, or an opinion on what was found.
Invariant: every resource of the template is either a fact or in `left_out`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from onefold.check.documents import PropertyPath, read_document
from onefold.check.facts import (
    FunctionFacts,
    LeftOut,
    MappingFacts,
    PolicyFacts,
    QueueFacts,
    TemplateFacts,
    TemplateLocation,
    Unresolved,
)
from onefold.check.intrinsics import NO_VALUE, is_function, text_of
from onefold.check.resources import (
    Properties,
    function_of,
    in_order,
    mapping_of,
    of_another_service,
    policy_of,
    queue_of,
    with_globals,
)
from onefold.check.scope import FUNCTIONS, QUEUE, Scope
from onefold.errors import UsageError

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
        NotFoundError: no such file.
        StorageError: it cannot be read.
        UsageError: it is not a template (see documents.read_document), or a parameter is unknown or not allowed.
    """
    document = read_document(path)
    scope = Scope(document, parameters=parameters, account=account, region=region, endpoint=endpoint)
    if not scope.resources:
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
        left_out=tuple(sorted(found.left_out, key=lambda one: (one.place.line, one.place.path))),
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
                self.left_out.append(LeftOut(mapping.place, MAPPING, why))
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
                why = f"its name {fact.name} is that of {first.logical_id}, line {first.place.line}"
                self.left_out.append(LeftOut(fact.place, kind, why))
        return list(kept.values())

    def _note(self, properties: Properties) -> None:
        self.left_out.extend(properties.left_out())

    def _leave_out(self, path: PropertyPath, kind: str, why: str) -> None:
        document = self.scope.document
        logical_id = str(path[1]) if len(path) > 1 else ""
        place = TemplateLocation(document.file, document.line(path), logical_id, ".".join(map(str, path)))
        self.left_out.append(LeftOut(place, str(text_of(kind)), why))
