"""Queues, functions and mappings of a template as rules compare them: linked, and each value with its position.

A value is known, or it is None because the file alone does not give it; a rule says nothing about what is not known. A value
that is not written is AWS's default, and its position is that of the resource.
Never here: what is wrong with a value. Invariant: whatever a mapping refers to is linked where it is in the same template.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from onefold.check.facts import Document, FunctionFacts, MappingFacts, PropertyPath, QueueFacts, Span, TemplateFacts
from onefold.check.findings import Edit, Source
from onefold.limits import SECOND_MS

# SQS API reference, SetQueueAttributes: VisibilityTimeout and MessageRetentionPeriod.
VISIBILITY_DEFAULT_S: Final = 30
RETENTION_DEFAULT_S: Final = 345_600


class Setting(Struct, frozen=True):
    """A number of a resource.

    Attributes:
        value: None: the file alone does not give it. written: False where it is AWS's default.
        span: of the number itself, where it is written as one and can be replaced.
    """

    value: int | None
    source: Source
    path: str
    written: bool
    span: Source | None = None


class Queue(Struct, frozen=True, kw_only=True):
    """A queue. `role`: what it is for, as far as this template says."""

    facts: QueueFacts
    source: Source
    visibility_s: Setting
    retention_s: Setting
    receives_max: Setting | None
    dead_letters: Queue | None
    is_dead_letter_queue: bool

    @property
    def name(self) -> str:
        """Its logical id."""
        return self.facts.logical_id


class Function(Struct, frozen=True, kw_only=True):
    """A function. `reserved`: its reserved concurrency; None: there is none."""

    facts: FunctionFacts
    source: Source
    timeout_s: Setting
    reserved: Setting | None

    @property
    def name(self) -> str:
        """Its logical id."""
        return self.facts.logical_id


class Mapping(Struct, frozen=True, kw_only=True):
    """An event source mapping that is enabled, with its two ends where they are in this template."""

    facts: MappingFacts
    source: Source
    batch_size: Setting
    window_s: Setting
    concurrency_max: Setting | None
    reports_failures: bool | None
    queue: Queue | None
    function: Function | None

    @property
    def name(self) -> str:
        """Its logical id; of a SAM event that of the function with the event's name."""
        return self.facts.logical_id


class Model(Struct, frozen=True, kw_only=True):
    """Everything that rules look at."""

    document: Document
    queues: tuple[Queue, ...]
    functions: tuple[Function, ...]
    mappings: tuple[Mapping, ...]

    def mappings_of(self, queue: Queue) -> list[Mapping]:
        """The mappings that receive from a queue."""
        return [one for one in self.mappings if one.queue is queue]


def model_of(facts: TemplateFacts) -> Model:
    """Link what was read from one template."""
    return _Linker(facts).model()


class _Linker:
    def __init__(self, facts: TemplateFacts) -> None:
        self._facts = facts
        self._document = facts.document
        self._targets = {one.redrive.target for one in facts.queues if one.redrive is not None}

    def model(self) -> Model:
        queues: dict[str, Queue] = {}
        for one in self._facts.queues:  # dead-letter queues come first
            queues[one.name] = self._queue(one, queues)
        functions = {one.name: self._function(one) for one in self._facts.functions}
        return Model(
            document=self._document,
            queues=tuple(queues.values()),
            functions=tuple(functions.values()),
            mappings=tuple(
                self._mapping(one, queues.get(one.queue), functions.get(one.function))
                for one in self._facts.mappings
                if one.enabled and "Enabled" not in one.unresolved
            ),
        )

    def _queue(self, facts: QueueFacts, before: dict[str, Queue]) -> Queue:
        base = _path(facts.location.path)
        receives = None
        if facts.redrive is not None:
            path = (*base, "RedrivePolicy", "maxReceiveCount")
            receives = self._setting(path, facts.redrive.receives_max, is_known=True)
        return Queue(
            facts=facts,
            source=self.source(base),
            visibility_s=self._attribute(facts, "VisibilityTimeout", VISIBILITY_DEFAULT_S),
            retention_s=self._attribute(facts, "MessageRetentionPeriod", RETENTION_DEFAULT_S),
            receives_max=receives,
            dead_letters=None if facts.redrive is None else before.get(facts.redrive.target),
            is_dead_letter_queue=facts.name in self._targets,
        )

    def _attribute(self, facts: QueueFacts, name: str, default: int) -> Setting:
        text = facts.attributes.get(name, str(default))
        is_known = name not in facts.unresolved and text.isascii() and text.isdecimal()
        return self._setting((*_path(facts.location.path), name), int(text) if is_known else 0, is_known=is_known)

    def _function(self, facts: FunctionFacts) -> Function:
        base = _path(facts.location.path)
        timeout = self._setting(
            self._with_globals(base, "Timeout"),
            facts.timeout_ms // SECOND_MS,
            is_known="Timeout" not in facts.unresolved,
        )
        reserved = None
        if facts.reserved_concurrency is not None:
            path = self._with_globals(base, "ReservedConcurrentExecutions")
            reserved = self._setting(path, facts.reserved_concurrency, is_known=True)
        return Function(facts=facts, source=self.source(base), timeout_s=timeout, reserved=reserved)

    def _mapping(self, facts: MappingFacts, queue: Queue | None, function: Function | None) -> Mapping:
        base = _path(facts.location.path)

        def setting(name: str, value: int) -> Setting:
            return self._setting((*base, *name.split(".")), value, is_known=name not in facts.unresolved)

        return Mapping(
            facts=facts,
            source=self.source(base),
            batch_size=setting("BatchSize", facts.batch_size),
            window_s=setting("MaximumBatchingWindowInSeconds", facts.window_ms // SECOND_MS),
            concurrency_max=None
            if facts.concurrency_max is None
            else setting("ScalingConfig.MaximumConcurrency", facts.concurrency_max),
            reports_failures=None if "FunctionResponseTypes" in facts.unresolved else facts.reports_failures,
            queue=queue,
            function=function,
        )

    # -- positions -----------------------------------------------------------------------------------------------------

    def _with_globals(self, base: PropertyPath, name: str) -> PropertyPath:
        """Where a function's property is written: its own, or in SAM's Globals."""
        shared: PropertyPath = ("Globals", "Function", name)
        own = (*base, name)
        return shared if own not in self._document.spans and shared in self._document.spans else own

    def _setting(self, path: PropertyPath, value: int, *, is_known: bool) -> Setting:
        written = path in self._document.spans
        literal = _at(self._document.data, path)
        is_number = type(literal) is int or (isinstance(literal, str) and literal.isascii() and literal.isdecimal())
        source = self.source(path)
        return Setting(
            value=value if is_known else None,
            source=source,
            path=".".join(map(str, path)),
            written=written,
            span=source if written and is_number else None,
        )

    def source(self, path: PropertyPath) -> Source:
        """Where a value, or the nearest around it, is written; the first line of it if it has several."""
        while path and path not in self._document.spans:
            path = path[:-1]
        span = self._document.spans.get(path, Span(1, 1, 1, 1))
        if span.end_line != span.line:
            first = self._document.text.split("\n", span.line)[span.line - 1]
            span = Span(span.line, span.column, span.line, max(span.column, len(first.rstrip()) + 1))
        return Source(self._document.file, span.line, span.column, span.end_line, span.end_column)


def _path(dotted: str) -> PropertyPath:
    return tuple(dotted.split("."))


def _at(data: Any, path: PropertyPath) -> Any:
    for part in path:
        data = data.get(part) if isinstance(data, dict) else None
    return data


# -- edits -----------------------------------------------------------------------------------------------------------------


def replaced(setting: Setting, value: int) -> Iterator[Edit]:
    """The edit that writes another number; none where it is not written as a number."""
    if setting.span is not None:
        yield Edit(setting.span, str(value))


def inserted(document: Document, properties: PropertyPath, name: str, value: object) -> Iterator[Edit]:
    """The edit that writes a property above the first of a mapping in block style; none for other mappings.

    Args:
        properties: the path of the mapping. value: a number, text or list of texts.
    """
    span = document.spans.get(properties)
    if span is None:
        return
    line = document.text.split("\n", span.line)[span.line - 1]
    indent = line[: span.column - 1]
    if indent.strip() or line[span.column - 1 : span.column] in {"{", ""}:
        return
    at = Source(document.file, span.line, 1, span.line, 1)
    yield Edit(at, f"{indent}{name}: {json.dumps(value)}\n")


def settled(document: Document, setting: Setting, value: int) -> tuple[Edit, ...]:
    """The edit that gives a setting this value: the number replaced, or the property inserted where it is not written."""
    if setting.written:
        return tuple(replaced(setting, value))
    *properties, name = _path(setting.path)
    return tuple(inserted(document, tuple(properties), str(name), value))
