"""What a template says about queues, functions, mappings and what is around them, as plain values with their positions.

Any input gives these facts. It makes a `Document`: resources in the shape that CloudFormation gives them, and a table of
positions. `collect_template.collect` reads the facts from it, so that an input knows nothing about rules and a rule nothing
about inputs. In such a document

- `data` is {"Resources": {id: {"Type": ..., "Properties": {...}}}}. An id is what people call the resource: a logical id, a
  Terraform address, an ARN; it may have dots. `Condition`, `Metadata` and CloudFormation's functions may be used.
- a reference to another resource is a literal ARN, name or URL, or {"Fn::GetAtt": [id, "Arn"]}, {"Ref": id}.
- a value that only a deployment knows is replaced by `Unresolved(why)`, even a whole mapping, list or property; but one
  that comes from another resource is a reference to it, so that a rule sees what belongs together.
- `spans` has the position of each value by its path, `("Resources", id, "Properties", "VisibilityTimeout")`; where one is
  missing, that of the nearest value around it is shown. `Span.file` names the file when it is not `Document.file`.
- one document is of one account and region, and queues are linked by name. An input that knows both says so with `exact`.
- `missing` says what may exist besides the resources that are listed, so that no rule assumes that these are all.

Never here: how a template is read (collect_template.py and the modules beside it) or what to think of it. A value that
cannot be known from the file alone is not guessed. It is a `Setting` without a value and with the reason; in the facts that
a local SQS is made from (queues, functions, mappings) it is also listed under `unresolved` by the path of the property, and
the field beside it holds AWS's default. Invariant: whatever a reader ignored is in `TemplateFacts.left_out`, with the
reason, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from onefold.check.findings import FindingSource

PropertyPath = tuple[str | int, ...]
T = TypeVar("T")
_NOTHING: Final = object()


class Span(msgspec.Struct, frozen=True):
    """A piece of a file, or of the document's if `file` is ""; lines and columns from 1, `end_column` one past the last."""

    line: int
    column: int
    end_line: int
    end_column: int
    file: str = ""


class Unresolved(msgspec.Struct, frozen=True):
    """A value that the file alone does not give.

    `why`: a phrase for a person, without a full stop. `other_than`: texts that it certainly is not.
    """

    why: str
    other_than: frozenset[str] = frozenset()


class ResourceSetting(msgspec.Struct, Generic[T], frozen=True):
    """A value of a resource: known, absent, or impossible to determine.

    Attributes:
        value: the value; None if it is absent or not known.
        at: its path in the document. source: where it is written, or the nearest value around it.
        written: False if the value is AWS's default, or absent.
        why: the reason why it is not known; "" when it is known or absent.
        span: the value's own position, if it is written as a number and can be replaced.
    """

    value: T | None
    source: FindingSource
    at: PropertyPath
    written: bool
    why: str = ""
    span: FindingSource | None = None

    @property
    def path(self) -> str:
        """`Resources.Orders.Properties.VisibilityTimeout`."""
        return ".".join(map(str, self.at))

    @property
    def is_absent(self) -> bool:
        """Whether there is certainly no value: not written, and without a default."""
        return self.value is None and not self.why


class Document(msgspec.Struct, frozen=True):
    """Plain data (dict, list, str, int, float, bool, None), with the line (from 1) and the span of each value, by its path.

    `text` is the file as it was read. `lines` and `spans` are empty for JSON that is not YAML. The span of a mapping or list
    in block style ends where the next token begins, which may be lines later. `missing`: what may exist besides. `exact`:
    the region and account are the resources' own, so an ARN with others names none of them. `words`: what the properties are
    called in the original, if that is not a template that people wrote. `is_generated`: nobody edits the file. `holds`: the
    conditions that are known, and whether each holds; a setting is then found in the case that applies.
    """

    file: str
    data: dict[str, Any]
    lines: dict[PropertyPath, int]
    spans: dict[PropertyPath, Span] = {}
    text: str = ""
    missing: tuple[str, ...] = ()
    exact: bool = False
    words: Mapping[str, str] = {}
    is_generated: bool = False
    holds: Mapping[str, bool] = {}

    def line(self, path: PropertyPath) -> int:
        """Line of the value at `path`, or of the nearest value around it; 0 when lines are not known."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)

    def at(self, path: PropertyPath) -> Any:
        """The value that is written at a path; None when there is none."""
        found = self._at(path)
        return None if found is _NOTHING else found

    def has(self, path: PropertyPath) -> bool:
        """Whether anything is written at a path, even null."""
        return self._at(path) is not _NOTHING

    def _at(self, path: PropertyPath) -> Any:
        found: Any = self.data
        for part in path:
            found = _inside(found, part)
        return found

    def source(self, path: PropertyPath) -> FindingSource:
        """Where a value, or the nearest around it, is written; the first line of it if it has several."""
        while path and path not in self.spans:
            path = path[:-1]
        span = self.spans.get(path, Span(1, 1, 1, 1))
        if span.end_line != span.line and not span.file:
            first = self.row(span.line)
            span = Span(span.line, span.column, span.line, max(span.column, len(first.rstrip()) + 1))
        return FindingSource(span.file or self.file, span.line, span.column, span.end_line, span.end_column)

    def row(self, line: int) -> str:
        """A line of the text, by its number from 1."""
        return rows(self.text)[line - 1]

    def setting(self, path: PropertyPath, value: T | None, why: str = "") -> ResourceSetting[T]:
        """A value, and where it is written."""
        place, literal = self.case(path)
        is_number = type(literal) is int or (isinstance(literal, str) and literal.isascii() and literal.isdecimal())
        source = self.source(place)
        span = source if is_number and place in self.spans else None
        return ResourceSetting(value, source, path, literal is not _NOTHING, why, span)

    def case(self, path: PropertyPath) -> tuple[PropertyPath, Any]:
        """Where a value is written and what is there. Of each `Fn::If` on the way, the case that holds, if known."""
        if not self.holds:
            return path, self._at(path)
        place: PropertyPath = ()
        found: Any = self.data
        for part in path:
            place, found = (*place, part), _inside(found, part)
            while (case := self._chosen(found)) is not None:
                place, found = (*place, "Fn::If", case), found["Fn::If"][case]
        return place, found

    def _chosen(self, value: Any) -> int | None:
        """Which case of an `Fn::If` holds; None: this is no `Fn::If`, or the case is not known."""
        cases = value.get("Fn::If") if isinstance(value, dict) and len(value) == 1 else None
        if not isinstance(cases, list) or len(cases) != 3 or not isinstance(cases[0], str):
            return None
        holds = self.holds.get(cases[0])
        return None if holds is None else 1 if holds else 2


@lru_cache(maxsize=4)
def rows(text: str) -> list[str]:
    """The lines of a text; kept, because many lines of one text are asked for in turn."""
    return text.split("\n")


def _inside(value: Any, part: str | int) -> Any:
    """What a mapping or list has at a key or number."""
    if isinstance(value, dict):
        return value.get(part, _NOTHING)
    is_item = isinstance(value, list) and isinstance(part, int) and 0 <= part < len(value)
    return value[part] if is_item else _NOTHING


class TemplateLocation(msgspec.Struct, frozen=True):
    """Where in a template: file, line from 1 (0: not known), logical id of the resource ("" outside one), path there."""

    file: str
    line: int
    logical_id: str = ""
    parts: PropertyPath = ()

    @property
    def path(self) -> str:
        """The path with dots between its parts."""
        return ".".join(map(str, self.parts))

    def __str__(self) -> str:
        """`template.yaml:12`, the form that editors and terminals open."""
        return f"{self.file}:{self.line}" if self.line else self.file


class LeftOut(msgspec.Struct, frozen=True):
    """A resource or property that is left out: its type, and why."""

    location: TemplateLocation
    type: str
    why: str


class RedriveFacts(msgspec.Struct, frozen=True):
    """A queue's redrive policy; `target` is the queue's name, the last part of the ARN."""

    location: TemplateLocation
    target: str
    receives_max: int


class QueueFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An AWS::SQS::Queue.

    `attributes` are the names and text values for CreateQueue that could be resolved, including RedrivePolicy and
    RedriveAllowPolicy. `named` is False when the template gives no name and the logical id is used.
    """

    location: TemplateLocation
    logical_id: str
    name: str
    named: bool
    attributes: Mapping[str, str]
    tags: Mapping[str, str]
    redrive: RedriveFacts | None = None
    unresolved: Mapping[str, Unresolved] = {}

    @property
    def fifo(self) -> bool:
        """Whether it is a FIFO queue."""
        return self.attributes.get("FifoQueue") == "true"


class PolicyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An AWS::SQS::QueuePolicy: names of the queues it is for, and the document, `Unresolved` values inside it.

    `is_for_others`: it is also for queues whose URL is not known. `exists`: see `ResourceFacts`.
    """

    location: TemplateLocation
    logical_id: str
    queues: tuple[str, ...]
    document: Any
    is_for_others: bool = False
    exists: bool | Unresolved = True


class LocalCode(msgspec.Struct, frozen=True):
    """Code in a directory of this machine; `file` holds the handler."""

    directory: Path
    file: Path


class ZippedCode(msgspec.Struct, frozen=True):
    """Code in a zip of this machine, which holds the handler."""

    archive: Path


class InlineCode(msgspec.Struct, frozen=True):
    """Code that is written in the template; to run it, write `text` to a file of this name (`index.py`)."""

    text: str
    file_name: str


class FunctionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An AWS::Lambda::Function or AWS::Serverless::Function; `code` is Unresolved when it cannot run here.

    `dead_letter_arn`, `on_failure`: where the events of failed asynchronous invocations go. `durable_s`: the execution
    timeout of a durable function. `tenancy`: its isolation mode. `on_instances`: Lambda Managed Instances run it.
    `permissions`: what SAM's Policies say. `loops_allowed`: Lambda is configured not to stop recursive loops, or may be.
    """

    location: TemplateLocation
    logical_id: str
    name: str
    type: str
    runtime: str
    handler: str
    code: LocalCode | ZippedCode | InlineCode | Unresolved
    timeout_ms: int
    memory_mib: int
    environment: Mapping[str, str]
    reserved_concurrency: int | None = None
    reserved: ResourceSetting[int]
    dead_letter_arn: ResourceSetting[str]
    on_failure: ResourceSetting[str]
    durable_s: ResourceSetting[int]
    tenancy: ResourceSetting[str]
    on_instances: bool
    role_arn: ResourceSetting[str]
    permissions: ResourceSetting[list[Any]]
    loops_allowed: bool
    unresolved: Mapping[str, Unresolved] = {}


class MappingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An SQS event source mapping, its own resource or a SAM function's event of type SQS.

    `queue` and `function` are names, `filters` patterns as JSON text. `window_ms`: the batching window. `destination`: where
    failed invocations are said to go. `has_pollers`: pollers are provisioned.
    """

    location: TemplateLocation
    logical_id: str
    queue_arn: str
    queue: str
    function: str
    batch_size: int
    window_ms: int
    concurrency_max: int | None
    filters: tuple[str, ...]
    reports_failures: bool
    enabled: bool
    destination: str | None = None
    has_pollers: bool = False
    unresolved: Mapping[str, Unresolved] = {}


class ResourceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What each of the resources below has.

    Attributes:
        id: its logical id. arn: the ARN by which others in the document refer to it; "" if it is not known.
        named: the document gives its name. source, at: the position and path of its properties.
        exists: False if its condition does not hold, unresolved if that is not known.
    """

    id: str
    type: str
    arn: str
    named: bool
    source: FindingSource
    at: PropertyPath
    exists: bool | Unresolved = True


class TargetFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule or rule invokes, and what happens when that fails.

    `makes_queue`: SAM makes the dead-letter queue, and lets it be sent to. `input`: what is sent, text or plain data.
    """

    source: FindingSource
    at: PropertyPath
    arn: ResourceSetting[str]
    role_arn: ResourceSetting[str]
    dead_letter_arn: ResourceSetting[str]
    makes_queue: bool
    retries_max: ResourceSetting[int]
    age_max_s: ResourceSetting[int]
    group: ResourceSetting[str]
    input: ResourceSetting[Any]


class ScheduleFacts(ResourceFacts, frozen=True, kw_only=True):
    """A schedule of EventBridge Scheduler. `group`: the name of its schedule group, "default" where none is given."""

    expression: ResourceSetting[str]
    group: ResourceSetting[str]
    state: ResourceSetting[str]
    target: TargetFacts


class RuleFacts(ResourceFacts, frozen=True, kw_only=True):
    """A rule of EventBridge: on a schedule, or for events of a bus. `targets` None: they are not known."""

    expression: ResourceSetting[str]
    pattern: ResourceSetting[Any]
    bus: ResourceSetting[str]
    state: ResourceSetting[str]
    targets: tuple[TargetFacts, ...] | None


class BusFacts(ResourceFacts, frozen=True, kw_only=True):
    """An event bus, of the classic generation (1) or of the second (2)."""

    generation: Literal[1, 2]
    dead_letter_arn: ResourceSetting[str]
    key: ResourceSetting[str]
    retention_days: ResourceSetting[int]


class SubscriberFacts(ResourceFacts, frozen=True, kw_only=True):
    """A subscriber of an event bus of the second generation: it has one target."""

    bus: ResourceSetting[str]
    kind: ResourceSetting[str]
    state: ResourceSetting[str]
    target_arn: ResourceSetting[str]
    filters: ResourceSetting[list[Any]]
    role_arn: ResourceSetting[str]
    on_failure: ResourceSetting[str]
    retries_max: ResourceSetting[int]
    age_max_s: ResourceSetting[int]


class TopicFacts(ResourceFacts, frozen=True, kw_only=True):
    """A topic of SNS."""

    fifo: ResourceSetting[bool]
    content_dedup: ResourceSetting[bool]
    key: ResourceSetting[str]


class TopicSubscriptionFacts(ResourceFacts, frozen=True, kw_only=True):
    """A subscription to a topic. `allowed`: SAM makes the policy that lets the topic send to its queue."""

    topic_arn: ResourceSetting[str]
    protocol: ResourceSetting[str]
    endpoint: ResourceSetting[str]
    dead_letter_arn: ResourceSetting[str]
    raw: ResourceSetting[bool]
    filter_policy: ResourceSetting[dict[str, Any]]
    filter_scope: ResourceSetting[str]
    allowed: bool


class StateMachineFacts(ResourceFacts, frozen=True, kw_only=True):
    """A state machine. `definition`: in Amazon States Language; in its texts, `GAP` stands for what is not known."""

    kind: ResourceSetting[str]
    definition: ResourceSetting[dict[str, Any]]


class TableFacts(ResourceFacts, frozen=True, kw_only=True):
    """A table of DynamoDB. `regions`: those of its replicas. `consistency`: EVENTUAL or STRONG."""

    name: str
    hash_key: ResourceSetting[str]
    ttl_attribute: ResourceSetting[str]
    regions: ResourceSetting[list[str]]
    consistency: ResourceSetting[str]


class MetricFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A metric that an alarm looks at, alone or in an expression."""

    namespace: ResourceSetting[str]
    name: ResourceSetting[str]
    dimensions: Mapping[str, ResourceSetting[str]]
    statistic: ResourceSetting[str]
    period_s: ResourceSetting[int]


class AlarmFacts(ResourceFacts, frozen=True, kw_only=True):
    """An alarm. `metrics` None: not known. `computes`: it evaluates an expression of them. `rule`: a composite alarm's."""

    kind: Literal["metric", "composite", "log"]
    metrics: tuple[MetricFacts, ...] | None
    computes: bool
    comparison: ResourceSetting[str]
    threshold: ResourceSetting[float]
    missing: ResourceSetting[str]
    enabled: ResourceSetting[bool]
    actions: ResourceSetting[list[Any]]
    ok_actions: ResourceSetting[list[Any]]
    rule: ResourceSetting[str]


class KeyFacts(ResourceFacts, frozen=True, kw_only=True):
    """A key of KMS with its policy. `names`: its id and aliases, by which queues refer to it."""

    policy: ResourceSetting[dict[str, Any]]
    names: frozenset[str]


class RoleFacts(ResourceFacts, frozen=True, kw_only=True):
    """A role. `trust`: who may assume it. `policies`: the documents written for it. `has_others`: more may be attached."""

    trust: Any
    policies: tuple[Any, ...]
    has_others: bool


class InvokeConfigFacts(ResourceFacts, frozen=True, kw_only=True):
    """An AWS::Lambda::EventInvokeConfig: where failed asynchronous invocations of a function (its name) go."""

    function: ResourceSetting[str]
    on_failure: ResourceSetting[str]
    retries_max: ResourceSetting[int]


class TemplateFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that was read from one template. `queues` are in the order in which to create them: dead-letter queues first.

    `around`: the other resources, read only on request. `unseen`: why there may be more resources.
    `nested`: ids of nested stacks and modules, which may add resources for what is passed to them.
    """

    file: str
    account: str
    region: str
    parameters: Mapping[str, Any]
    queues: tuple[QueueFacts, ...]
    policies: tuple[PolicyFacts, ...]
    functions: tuple[FunctionFacts, ...]
    mappings: tuple[MappingFacts, ...]
    left_out: tuple[LeftOut, ...]
    document: Document
    around: tuple[ResourceFacts, ...] = ()
    unseen: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()

    @property
    def functions_that_run(self) -> tuple[FunctionFacts, ...]:
        """The functions whose code is here."""
        return tuple(one for one in self.functions if not isinstance(one.code, Unresolved))

    @property
    def mappings_that_run(self) -> tuple[MappingFacts, ...]:
        """The mappings that are fully known, between a queue of this template and a function that runs."""
        queues = {one.name for one in self.queues}
        functions = {one.name for one in self.functions_that_run}
        known = (one for one in self.mappings if not one.unresolved)
        return tuple(one for one in known if one.queue in queues and one.function in functions)
