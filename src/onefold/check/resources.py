"""Resources of a template as facts: queues, queue policies, functions, and event source mappings, with SAM's shorthands.

`Properties` gives the properties of one resource, resolved one by one, with a note of each that could not be. SAM's Globals
are merged as they are written, as SAM does before CloudFormation sees them.

Never here: how a template is read or names are resolved (`scope`); running code (only Python runs here, from a directory of
this machine or inline; anything else is a fact all the same, with the reason in `code`); whether settings are wise or even
allowed: SQS and the mapping check that when they are created. Invariant: an accessor always gives a value of its type; when
the template's own is unresolved or malformed, that is the default, and `unresolved` says why under the property's path. What
is unresolved keeps a mapping from running: one with another batch size or without its filter is another mapping.

Sources: CloudFormation's AWS::SQS::Queue, whose properties are the attributes of SQS CreateQueue; Lambda API,
CreateEventSourceMapping: BatchSize 10, window 0, enabled; SAM developer guide, Globals section: single values are replaced,
mappings merged, lists joined, Globals first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from onefold.check.documents import PropertyPath
from onefold.check.facts import (
    FunctionFacts,
    InlineCode,
    LeftOut,
    LocalCode,
    MappingFacts,
    PolicyFacts,
    QueueFacts,
    RedriveFacts,
    TemplateLocation,
    Unresolved,
)
from onefold.check.intrinsics import NO_VALUE, flag, is_function, text_of, whole_number, why_not
from onefold.check.scope import Scope
from onefold.limits import (
    BATCH_SIZE_DEFAULT,
    FUNCTION_MEMORY_MIB_DEFAULT,
    FUNCTION_TIMEOUT_MS_DEFAULT,
    SECOND_MS,
)


class Properties:
    """Properties of a resource, or of a mapping inside them.

    Args:
        scope: the names of the template.
        kind: the resource's type, for what is left out.
        logical_id: the resource.
        path: where in the document `raw` is.
        raw: the mapping as written; anything else counts as empty and is noted.
    """

    def __init__(self, scope: Scope, kind: str, logical_id: str, path: PropertyPath, raw: Any) -> None:
        self.scope = scope
        self.kind = kind
        self.logical_id = logical_id
        self.path = path
        self.unresolved: dict[str, Unresolved] = {}
        self._notes: list[LeftOut] = []
        found = scope.resolve(raw) if is_function(raw) else raw
        found = {} if found is None or found is NO_VALUE else found
        if not isinstance(found, dict):
            why = found if isinstance(found, Unresolved) else Unresolved("no mapping of properties")
            self.unresolved[""] = why
            found = {}
        self.raw: dict[str, Any] = found

    def place(self, *parts: str | int) -> TemplateLocation:
        """Where the resource, or a property of it, is."""
        path = (*self.path, *parts)
        document = self.scope.document
        return TemplateLocation(document.file, document.line(path), self.logical_id, ".".join(map(str, path)))

    def get(self, name: str) -> Any:
        """The resolved value; None when it is absent, NoValue or unresolved as a whole. Unresolved values inside stay."""
        value = self.scope.resolve(self.raw.get(name))
        if isinstance(value, Unresolved):
            self.unresolved[name] = value
            return None
        return None if value is NO_VALUE else value

    def text(self, name: str, default: str) -> str:
        """A text."""
        return str(self._typed(name, text_of, default))

    def number(self, name: str, default: int) -> int:
        """A whole number."""
        return int(self._typed(name, whole_number, default))

    def number_or_none(self, name: str) -> int | None:
        """A whole number that has no default."""
        value = self._typed(name, whole_number, None)
        return None if value is None else int(value)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        return bool(self._typed(name, flag, default))

    def inner(self, name: str) -> Properties:
        """A mapping among the properties; what is unresolved in it is noted here too, see `took`."""
        return Properties(self.scope, self.kind, self.logical_id, (*self.path, name), self.raw.get(name))

    def took(self, inner: Properties) -> None:
        """Take over the notes of an inner mapping, under its longer path."""
        prefix = ".".join(map(str, inner.path[len(self.path) :]))
        for name, why in inner.unresolved.items():
            self.unresolved[f"{prefix}.{name}" if name else prefix] = why

    def refuse(self, name: str, why: str) -> None:
        """Note that a property is not usable."""
        self.unresolved[name] = Unresolved(why)

    def leave_out(self, name: str, why: str) -> None:
        """Note that a property is well understood and has no effect here."""
        if name in self.raw:
            self._notes.append(LeftOut(self.place(name), self.kind, why))

    def left_out(self) -> Iterator[LeftOut]:
        """Everything noted, for people."""
        yield from self._notes
        for name, value in self.unresolved.items():
            yield LeftOut(self.place(*name.split(".")) if name else self.place(), self.kind, value.why)

    def _typed(self, name: str, convert: Any, default: Any) -> Any:
        value = self.get(name)
        if value is None:
            return default
        converted = convert(value)
        if isinstance(converted, Unresolved):
            self.unresolved[name] = converted
            return default
        return converted


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
        place=properties.place(),
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
        place=properties.place(),
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
    return RedriveFacts(properties.place("RedrivePolicy"), arn, arn.rsplit(":", 1)[-1], receives_max)


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
    """A queue comes after its dead-letter queue; queues that name one another in a circle stay as they are written."""
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


IGNORED_BY_FUNCTIONS: Final = {
    "DeadLetterConfig": "for asynchronous invocations; messages of a queue go to the queue's own dead-letter queue",
    "DeadLetterQueue": "for asynchronous invocations; messages of a queue go to the queue's own dead-letter queue",
    "EventInvokeConfig": "for asynchronous invocations",
    "FileSystemConfigs": "no file system is mounted",
    "Layers": "layers are not loaded; install what they hold into this environment",
    "VpcConfig": "there is no VPC here",
}


def function_of(properties: Properties, asset: str | None) -> FunctionFacts:
    """The facts of a function. `asset`: directory that the CDK noted as the code's origin, relative to the template."""
    name, why = properties.scope.name_of(properties.logical_id)
    if why is not None:
        properties.unresolved["FunctionName"] = Unresolved(f"{why.why}; the function is named {name}")
    for key, reason in IGNORED_BY_FUNCTIONS.items():
        properties.leave_out(key, reason)
    runtime, handler = properties.text("Runtime", ""), properties.text("Handler", "")
    return FunctionFacts(
        place=properties.place(),
        logical_id=properties.logical_id,
        name=name,
        type=properties.kind,
        runtime=runtime,
        handler=handler,
        code=_code(properties, runtime, handler, asset),
        timeout_ms=properties.number("Timeout", FUNCTION_TIMEOUT_MS_DEFAULT // SECOND_MS) * SECOND_MS,
        memory_mib=properties.number("MemorySize", FUNCTION_MEMORY_MIB_DEFAULT),
        environment=_environment(properties),
        reserved_concurrency=properties.number_or_none("ReservedConcurrentExecutions"),
        unresolved=properties.unresolved,
    )


def _environment(properties: Properties) -> dict[str, str]:
    outer = properties.inner("Environment")
    inner = outer.inner("Variables")
    found: dict[str, str] = {}
    for name in inner.raw:
        value = inner.get(name)
        text = None if value is None else text_of(value)
        if isinstance(text, str):
            found[name] = text
        elif text is not None:
            inner.unresolved[name] = text
    outer.took(inner)
    properties.took(outer)
    return found


def _code(properties: Properties, runtime: str, handler: str, asset: str | None) -> LocalCode | InlineCode | Unresolved:
    if properties.text("PackageType", "Zip") == "Image" or "ImageUri" in properties.raw:
        return Unresolved("a container image")
    for key in ("Runtime", "Handler"):
        if key in properties.unresolved:
            return properties.unresolved[key]
    if not runtime.startswith("python"):
        return Unresolved(f"runtime {runtime or 'not given'}; only Python runs here")
    if "." not in handler:
        return Unresolved(f"handler {handler!r} is not file.function")
    serverless = properties.kind == "AWS::Serverless::Function"
    source = _source(properties, "CodeUri" if serverless else "Code", "." if serverless else asset)
    if isinstance(source, InlineCode):
        fits = handler.rpartition(".")[0] == "index"
        return source if fits else Unresolved(f"handler {handler!r} is not in index, which is where inline code goes")
    return source if isinstance(source, Unresolved) else _local(properties, source, handler)


def _source(properties: Properties, key: str, fallback: str | None) -> str | InlineCode | Unresolved:
    """Directory as written, or inline code."""
    value: Any = properties.get(key)
    if key in properties.unresolved:
        return properties.unresolved[key]
    inline = (
        properties.get("InlineCode") if key == "CodeUri" else value.get("ZipFile") if isinstance(value, dict) else None
    )
    if isinstance(inline, str):
        return InlineCode(inline, "index.py")
    if why := why_not([value, inline]) or properties.unresolved.get("InlineCode"):
        return why
    if isinstance(value, str):
        return value
    if fallback is None or (value is not None and key == "CodeUri"):
        return Unresolved(f"{key} is not in a local directory")
    return fallback


def _local(properties: Properties, source: str, handler: str) -> LocalCode | Unresolved:
    if source.startswith(("s3://", "https://", "http://")):
        return Unresolved(f"code in {source.partition(':')[0]}, not in a local directory")
    module = handler.rpartition(".")[0].replace(".", "/")
    try:
        directory = (Path(properties.scope.document.file).parent / source).resolve()
        if not directory.is_dir():
            return Unresolved(f"there is no directory {directory}")
        for file in (directory / f"{module}.py", directory / module / "__init__.py"):
            if file.is_file():
                return LocalCode(directory, file)
    except (OSError, ValueError) as error:
        return Unresolved(f"the code's directory cannot be read: {error}")
    return Unresolved(f"there is no {module}.py in {directory}")


IGNORED_BY_MAPPINGS: Final = {
    "DestinationConfig": "does not apply to queues",
    "MetricsConfig": "there is no CloudWatch here",
    "ProvisionedPollerConfig": "pollers are not provisioned here; the mapping scales as without it",
}


def mapping_of(
    properties: Properties, *, source_key: str = "EventSourceArn", function: str | None = None
) -> MappingFacts:
    """The facts of a mapping. SAM's events call the ARN `Queue`, and their function is known from where they are written."""
    for key, reason in IGNORED_BY_MAPPINGS.items():
        properties.leave_out(key, reason)
    arn = properties.text(source_key, "")
    if not arn and source_key not in properties.unresolved:
        properties.refuse(source_key, "no ARN of a queue")
    scaling = properties.inner("ScalingConfig")
    concurrency_max = scaling.number_or_none("MaximumConcurrency")
    properties.took(scaling)
    return MappingFacts(
        place=properties.place(),
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
        unresolved=properties.unresolved,
    )


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
