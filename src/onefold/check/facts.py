"""What a template says about queues, functions and mappings, as plain values, each with its position in the file.

Never here: how a template is read (collect_template.py and the modules beside it) or what to think of it. A value that
cannot be known from the file alone is not guessed: it is `Unresolved` with the reason, listed under `unresolved` of its
fact by the path of the property, and the field beside it holds AWS's default. Invariant: whatever a reader ignored is in
`TemplateFacts.left_out`, with the reason, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

PropertyPath = tuple[str | int, ...]


class Span(msgspec.Struct, frozen=True):
    """A piece of a file: lines and columns from 1; `end_column` is one past the last character."""

    line: int
    column: int
    end_line: int
    end_column: int


class Document(msgspec.Struct, frozen=True):
    """Plain data (dict, list, str, int, float, bool, None), and for each value by its path its line, from 1, and its span.

    `text` is the file as it was read. `lines` and `spans` are empty for JSON that is not YAML. The span of a mapping or list
    in block style ends where the next token begins, which may be lines later.
    """

    file: str
    data: dict[str, Any]
    lines: dict[PropertyPath, int]
    spans: dict[PropertyPath, Span] = {}
    text: str = ""

    def line(self, path: PropertyPath) -> int:
        """Line of the value at `path`, or of the nearest value around it; 0 when lines are not known."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)


class TemplateLocation(msgspec.Struct, frozen=True):
    """Where in a template: file, line from 1 (0: not known), logical id of the resource ("" outside one), property path."""

    file: str
    line: int
    logical_id: str = ""
    path: str = ""

    def __str__(self) -> str:
        """`template.yaml:12`, the form that editors and terminals open."""
        return f"{self.file}:{self.line}" if self.line else self.file


class Unresolved(msgspec.Struct, frozen=True):
    """A value that the file alone does not give; `why` is a phrase for a person, without a full stop."""

    why: str


class LeftOut(msgspec.Struct, frozen=True):
    """A resource or property that is not taken over: its type, and why."""

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

    `attributes` are SQS's names and string values as CreateQueue takes them, RedrivePolicy and RedriveAllowPolicy
    included, the ones that could be resolved. `named` is False when the template gives no name and the logical id is used.
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
    """An AWS::SQS::QueuePolicy: names of the queues it is for, and the document, `Unresolved` values inside it."""

    location: TemplateLocation
    logical_id: str
    queues: tuple[str, ...]
    document: Any


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
    """An AWS::Lambda::Function or AWS::Serverless::Function; `code` is Unresolved when it cannot run here."""

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


class TemplateFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that was read from one template. `queues` are in an order to create them in: dead-letter queues first."""

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

    @property
    def functions_that_run(self) -> tuple[FunctionFacts, ...]:
        """Those whose code is here."""
        return tuple(one for one in self.functions if not isinstance(one.code, Unresolved))

    @property
    def mappings_that_run(self) -> tuple[MappingFacts, ...]:
        """The mappings that are fully known, between a queue of this template and a function that runs."""
        queues = {one.name for one in self.queues}
        functions = {one.name for one in self.functions_that_run}
        known = (one for one in self.mappings if not one.unresolved)
        return tuple(one for one in known if one.queue in queues and one.function in functions)
