"""Reads Python files into facts: which functions are handlers of queues, and how each processes its messages.

A function is a handler of a queue if a template says so, or if its code shows it: it takes (event, context) and reads
fields of the records that only SQS messages have, or passes the records to a batch processor of Powertools for SQS.
Never here: rules, running code. Invariants: a broken file is listed and the others are read; what is not certain is left
out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct

from onefold.check.call_graph import CallGraph, CallUnit
from onefold.check.code_facts import (
    Code,
    CodeCall,
    CodeHandler,
    CodeStep,
    Countdown,
    Deletion,
    Durable,
    Key,
    Threshold,
    Timeout,
)
from onefold.check.collect_answers import BATCH, HandlerAnswers, Swallowing
from onefold.check.collect_calls import calls_of, given, operation_of
from onefold.check.collect_keys import Keys
from onefold.check.collect_work import HandlerWork
from onefold.check.findings import FindingSource
from onefold.check.python_effects import Effects
from onefold.check.python_modules import FUNCTION, BrokenModule, Inside, Module, Modules, broken, last_name
from onefold.check.python_values import Roles, Value, Values
from onefold.errors import UsageError

PART_BYTES: Final = 4_000_000  # ours: how much source is parsed at once; takes about 200 MB of memory
_CONTEXT: Final = re.compile(r"^_*(?:lambda_?|aws_?)?(?:context|ctx)$|^_+$")
_OF_SQS: Final = frozenset(
    {
        *("body", "messageId", "receiptHandle", "messageAttributes"),
        *("message_id", "receipt_handle", "json_body", "message_attributes"),
    }
)
_OF_OTHERS: Final = frozenset(
    {"Sns", "sns", "s3", "kinesis", "dynamodb", "cf", "ses", "eventSource", "event_source", "EventSource", "codecommit"}
)
_GUARDS: Final = re.compile(
    r"idempot|dedup|duplicat|already|seen|processed|claim|lock|once|exactly|unique|inbox", re.IGNORECASE
)
_SENDS: Final = frozenset(
    {
        *(("sqs", "send_message"), ("sns", "publish"), ("ses", "send_email"), ("sesv2", "send_email")),
        *(("stepfunctions", "start_execution"), ("lambda", "invoke"), ("events", "put_events")),
    }
)
_POSTS: Final = frozenset({"requests.post", "requests.put", "httpx.post", "httpx.put", "urllib.request.urlopen"})
_KEYS: Final = frozenset(
    {"MessageDeduplicationId", "name", "headers", "idempotency_key", "DurableExecutionName", "ClientToken", "auth"}
)
_DURABLE: Final = "aws_durable_execution_sdk_python"
_UNITS_OF_TIME: Final = {"from_seconds": 1, "from_minutes": 60, "from_hours": 3_600, "from_days": 86_400}


F = TypeVar("F", CodeHandler, CodeCall, Key, Deletion, Countdown, Timeout, Threshold)


class HandlerEntry(Struct, frozen=True):
    """A function that a template names as the handler of a queue.

    Attributes:
        file: contains the function. root: the folder of its code. function: its name.
        on_instances: Lambda Managed Instances run it.
        text, inside: only for code that is written in the template: the code, and where it is.
    """

    file: Path
    root: Path
    function: str
    text: str = ""
    inside: Inside | None = None
    on_instances: bool = False


class Collected(Struct, frozen=True, kw_only=True):
    """What was read. `of_entries`: the handlers of the entries that were found. `broken`: files that could not be read."""

    code: Code
    of_entries: Mapping[HandlerEntry, CodeHandler]
    broken: Mapping[str, BrokenModule]


def collect_python(files: Iterable[tuple[Path, Path]], entries: Sequence[HandlerEntry] = ()) -> Collected:
    """The facts of Python files.

    Args:
        files: each with its root: imports are not followed above it.
        entries: functions that are known to be handlers of queues.
    """
    parts = [
        _collected(part) for part in _in_parts([*(HandlerEntry(path, root, "") for path, root in files), *entries])
    ]
    of_entries = {entry: handler for part in parts for entry, handler in part.of_entries.items()}
    unread = {file: error for part in parts for file, error in part.broken.items()}
    return Collected(code=_together([part.code for part in parts]), of_entries=of_entries, broken=unread)


def _in_parts(entries: Sequence[HandlerEntry]) -> Iterator[list[HandlerEntry]]:
    """The entries in parts of bounded size, in the order of their paths; each part is read and released on its own."""
    part: list[HandlerEntry] = []
    size = 0
    for one in sorted(entries, key=lambda each: str(each.file)):
        own = len(one.text) if one.inside is not None else _size(one.file)
        if part and size + own > PART_BYTES:
            yield part
            part, size = [], 0
        part.append(one)
        size += own
    yield part


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0  # reading it says so


def _collected(entries: Sequence[HandlerEntry]) -> Collected:
    modules = Modules()
    unread: dict[str, BrokenModule] = {}
    for one in entries:
        try:
            _module(one, modules)
        except UsageError as error:
            unread[str(one.file) if one.inside is None else one.inside.source.file] = broken(error)
    return _Collection(modules, [one for one in entries if one.function]).collected(unread)


def _together(parts: Sequence[Code]) -> Code:
    """Merge the facts of several parts; facts of a file that two parts have read count once."""
    return Code(
        texts={file: text for part in parts for file, text in part.texts.items()},
        handlers=_distinct(one for part in parts for one in part.handlers),
        calls=_distinct(one for part in parts for one in part.calls),
        keys=_distinct(one for part in parts for one in part.keys),
        deletions=_distinct(one for part in parts for one in part.deletions),
        countdowns=_distinct(one for part in parts for one in part.countdowns),
        timeouts=_distinct(one for part in parts for one in part.timeouts),
        thresholds=_distinct(one for part in parts for one in part.thresholds),
        extends=any(part.extends for part in parts),
    )


def _distinct(facts: Iterable[F]) -> tuple[F, ...]:
    return tuple({one.source: one for one in facts}.values())


class _Collection:
    def __init__(self, modules: Modules, entries: Sequence[HandlerEntry]) -> None:
        values = self._values = Values(modules)
        _follow_imports(modules)
        self._modules = modules
        self._graph = CallGraph(modules.all(), values)
        self._keys = Keys(values)
        self._work = HandlerWork(self._graph, self._keys)
        self._answers = HandlerAnswers(self._graph)
        self._swallowing = Swallowing(self._graph)
        self._effects = Effects(values)
        self._entries = {one: unit for one in entries if (unit := self._entry(one)) is not None}

    def collected(self, unread: Mapping[str, BrokenModule]) -> Collected:
        candidates = {**dict.fromkeys(self._candidates(), False), **dict.fromkeys(self._entries.values(), True)}
        initial: Roles = {}
        for unit in candidates:
            for name, value in zip(unit.parameters[:2], (Value("event"), Value("context")), strict=False):
                initial[unit.node, name] = value
        self._graph.spread(initial, list(self._handed()))
        handlers = {
            unit: self._handler(unit) for unit, is_known in candidates.items() if is_known or self._is_of_sqs(unit)
        }
        units = list(self._graph.units.values())
        calls = {one.position: one for unit in units for one in calls_of(unit, self._values)}
        inside = {one.source for handler in handlers.values() for one in handler.keys}
        code = Code(
            texts={one.file: one.text for one in self._modules.all() if one.inside is None},
            handlers=tuple(sorted(handlers.values(), key=lambda one: (one.file, one.source.start_line))),
            calls=tuple(calls.values()),
            keys=tuple(one for unit in units for one in self._keys.of_onefold(unit) if one.source not in inside),
            deletions=tuple(one for unit in units for one in self._work.deletions(unit)),
            countdowns=tuple(one for unit in units for one in self._countdowns(unit)),
            timeouts=tuple(one for unit in units for one in self._timeouts(unit)),
            thresholds=tuple(one for unit in units for one in self._thresholds(unit)),
            extends=any(one.operation.startswith("change_message_visibility") for one in calls.values()),
        )
        found = {entry: handlers[unit] for entry, unit in self._entries.items()}
        return Collected(code=code, of_entries=found, broken={**unread, **self._modules.unread})

    # -- which functions are handlers --------------------------------------------------------------------------------------

    def _entry(self, entry: HandlerEntry) -> CallUnit | None:
        try:
            module = _module(entry, self._modules)
        except UsageError:
            return None
        value = self._values.named(entry.function, module.top, 0)
        return self._graph.units.get(value.of) if value.kind == "function" else None

    def _candidates(self) -> Iterator[CallUnit]:
        """Functions at the top level with two or three parameters, of which the second is a context."""
        for unit in self._graph.units.values():
            if isinstance(unit.node, ast.Module) or "." in unit.name or not 2 <= len(unit.parameters) <= 3:
                continue
            second = [*unit.node.args.posonlyargs, *unit.node.args.args][1]
            is_annotated = last_name(second.annotation) in {"LambdaContext", "DurableContext"}
            if _CONTEXT.match(second.arg) or is_annotated:
                yield unit

    def _is_of_sqs(self, unit: CallUnit) -> bool:
        """Whether the code shows that the records of a handler are SQS messages, and of no other service."""
        read: set[str] = set()
        is_processor = self._is_given_to_processor(unit)
        for one in self._graph.reach(unit):
            read |= self._read_of_records(one)
        return not read & _OF_OTHERS and (bool(read & _OF_SQS) or is_processor)

    def _read_of_records(self, unit: CallUnit) -> set[str]:
        """The names of the fields of records that a unit reads."""
        found = set()
        for node in unit.nodes:
            name, base = None, None
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                name, base = node.slice.value, node.value
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "get"
                and node.args
            ):
                name, base = getattr(node.args[0], "value", None), node.func.value
            elif isinstance(node, ast.Attribute):
                name, base = node.attr, node.value
            if isinstance(name, str) and base is not None and self._values.of(base, unit.module).kind == "record":
                found.add(name)
        return found

    def _is_given_to_processor(self, unit: CallUnit) -> bool:
        return any(
            self._is_of_queues(given(node, "processor"), one.module)
            for one in self._graph.reach(unit)
            for node in (*one.calls(), *getattr(one.node, "decorator_list", ()))
            if isinstance(node, ast.Call) and self._values.dotted(node.func, one.module).startswith(BATCH)
        )

    def _is_of_queues(self, processor: ast.expr | None, module: Module) -> bool:
        """Whether a batch processor of Powertools is for SQS and passes records on unchanged."""
        value = self._values.of(processor, module)
        if (
            value.kind != "instance"
            or not str(value.of).startswith(BATCH)
            or value.call is None
            or value.module is None
        ):
            return False
        if given(value.call, "model") is not None:
            return False
        if str(value.of).endswith(".SqsFifoPartialProcessor"):
            return True
        kind = given(value.call, "event_type") or (value.call.args[0] if value.call.args else None)
        return self._values.dotted(kind, value.module).endswith("EventType.SQS")

    def _handed(self) -> Iterator[tuple[CallUnit, int, Value]]:
        """The functions that a batch processor of Powertools calls with a record."""
        for unit in self._graph.units.values():
            decorators = () if isinstance(unit.node, ast.Module) else unit.node.decorator_list
            for node in (*unit.calls(), *(one for one in decorators if isinstance(one, ast.Call))):
                is_batch = self._values.dotted(node.func, unit.module).startswith(BATCH)
                is_used = self._values.class_of(node.func, unit.module).startswith(BATCH)
                written = given(node, "record_handler" if is_batch else "handler")
                processor = given(node, "processor") if is_batch else node.func
                if (is_batch or is_used) and written is not None and self._is_of_queues(processor, unit.module):
                    called = self._graph.unit(written, unit.module)
                    if called is not None:
                        yield called, 0, Value("record")

    # -- what each does ----------------------------------------------------------------------------------------------------

    def _handler(self, unit: CallUnit) -> CodeHandler:
        reach = self._graph.reach(unit)
        answer = self._answers.of(unit)
        idempotency = tuple(found for one in reach for found in self._keys.idempotency(one))
        return CodeHandler(
            name=unit.name,
            file=unit.module.file,
            source=unit.module.source(unit.node),
            answer=answer,
            on_instances=unit in self._entries.values()
            and all(entry.on_instances for entry, one in self._entries.items() if one is unit),
            acts=any(self._effects.acts(one.node, one.module) is not None for one in reach),
            is_powertools=self._answers.is_powertools(reach),
            functions=frozenset(one.id for one in reach),
            is_guarded=bool(idempotency) or any(_may_guard(one) for one in reach),
            registers_context=any("register_lambda_context" in one.module.text for one in reach),
            swallowed=tuple(self._swallowing.of(unit, reach)) if answer == "never" else (),
            calls=tuple(call for one in reach for call in calls_of(one, self._values)),
            keys=tuple(key for one in reach for key in self._all_keys(one, unit)),
            idempotency=idempotency,
            claims=tuple(self._work.claims(reach)),
            locks=tuple(lock for one in reach for lock in self._keys.locks(one)),
            races=tuple(race for one in reach for race in self._work.races(one)),
            thresholds=tuple(self._thresholds_of({one.module for one in reach})),
            durable=self._durable(unit, reach),
        )

    def _all_keys(self, unit: CallUnit, handler: CallUnit) -> Iterator[Key]:
        yield from self._keys.of_powertools(unit, handler)
        yield from self._keys.of_writes(unit)
        yield from self._keys.of_partners(unit)
        yield from self._keys.of_onefold(unit)

    def _durable(self, unit: CallUnit, reach: Sequence[CallUnit]) -> Durable | None:
        if isinstance(unit.node, ast.Module):
            return None
        decorators = unit.node.decorator_list
        names = [self._values.dotted(one.func if isinstance(one, ast.Call) else one, unit.module) for one in decorators]
        durable = [
            number
            for number, one in enumerate(names)
            if one.startswith(_DURABLE) and one.endswith(".durable_execution")
        ]
        if not durable:
            return None
        found = [number for number, one in enumerate(names) if one.endswith("idempotency.idempotent")]
        return Durable(
            source=unit.module.source(decorators[durable[0]]),
            idempotent=unit.module.source(decorators[found[0]]) if found else None,
            is_outside=bool(found) and found[0] < durable[0],
            waits=tuple(wait for one in reach for wait in self._waits(one)),
            steps=tuple(step for one in reach for step in self._steps(one)),
        )

    def _steps(self, unit: CallUnit) -> Iterator[CodeStep]:
        """Steps with the default configuration whose function sends something without an idempotency key."""
        for node in unit.calls():
            is_step = isinstance(node.func, ast.Attribute) and node.func.attr == "step" and node.args
            if not is_step or any(one.arg != "name" for one in node.keywords) or not self._is_of_context(node, unit):
                continue
            written = node.args[0].func if isinstance(node.args[0], ast.Call) else node.args[0]
            found = self._values.function(written, unit.module)
            if found is None:
                continue
            body, module = found
            for call in (one for one in ast.walk(body) if isinstance(one, ast.Call)):
                if self._sends(call, module):
                    yield CodeStep(
                        source=unit.module.source(node), function=unit.id,
                        effect=module.source(call), effect_text=module.text_of(call),
                    )  # fmt: skip
                    break

    def _sends(self, call: ast.Call, module: Module) -> bool:
        """Whether a call has an effect on another service, and certainly passes no idempotency key."""
        found = operation_of(call, module, self._values)
        is_send = found[:2] in _SENDS if found is not None else self._values.dotted(call.func, module) in _POSTS
        names = {one.arg for one in call.keywords}
        return is_send and None not in names and names.isdisjoint(_KEYS)

    def _is_of_context(self, node: ast.Call, unit: CallUnit) -> bool:
        if not isinstance(node.func, ast.Attribute):
            return False
        is_named = isinstance(node.func.value, ast.Name) and _CONTEXT.match(node.func.value.id) is not None
        return is_named or self._values.of(node.func.value, unit.module).kind == "context"

    def _waits(self, unit: CallUnit) -> Iterator[tuple[FindingSource, str, int | None]]:
        for node in unit.calls():
            func = node.func
            if not isinstance(func, ast.Attribute) or func.attr not in {"wait", "wait_for_callback"}:
                continue
            if not self._is_of_context(node, unit):
                continue
            if func.attr == "wait":
                written = given(node, "duration") or (node.args[0] if node.args else None)
                seconds = self._seconds(written, unit.module)
                if seconds is not None:
                    yield unit.module.source(node), "wait", seconds
            else:
                config = self._values.of(given(node, "config"), unit.module)
                written = given(config.call, "timeout") if config.call is not None else None
                where = config.module if config.module is not None else unit.module
                seconds = self._seconds(written, where)
                if given(node, "config") is None or seconds is not None:
                    yield unit.module.source(node), "wait_for_callback", seconds

    def _seconds(self, node: ast.expr | None, module: Module) -> int | None:
        """The seconds of `Duration.from_hours(2)` or `Duration(seconds=7200)`; None for other expressions."""
        node = self._values.literal(node, module)
        if not isinstance(node, ast.Call):
            return None
        name = self._values.dotted(node.func, module).rpartition(".")[2]
        written = node.args[0] if node.args else given(node, "seconds") or given(node, "value")
        number = self._values.of(written, module).of
        if not isinstance(number, (int, float)) or isinstance(number, bool):
            return None
        factor = 1 if name == "Duration" else _UNITS_OF_TIME.get(name)
        return None if factor is None else int(number * factor)

    def _thresholds_of(self, modules: set[Module]) -> Iterator[Threshold]:
        if any("sqs_extended_client" in one.text for one in modules):
            for unit in self._graph.units.values():
                if unit.module in modules:
                    yield from self._thresholds(unit)

    def _thresholds(self, unit: CallUnit) -> Iterator[Threshold]:
        """Assignments to `message_size_threshold`, in modules that use the extended SQS client."""
        if "sqs_extended_client" not in unit.module.text:
            return
        for node in unit.nodes:
            targets = node.targets if isinstance(node, ast.Assign) else []
            if any(isinstance(one, ast.Attribute) and one.attr == "message_size_threshold" for one in targets):
                size = self._values.of(getattr(node, "value", None), unit.module).of
                if isinstance(size, int):
                    yield Threshold(source=unit.module.source(node), function=unit.id, size=size)

    # -- Celery ------------------------------------------------------------------------------------------------------------

    def _countdowns(self, unit: CallUnit) -> Iterator[Countdown]:
        for node in unit.calls():
            if isinstance(node.func, ast.Attribute) and node.func.attr in {"apply_async", "signature", "retry", "set"}:
                seconds = self._values.of(given(node, "countdown"), unit.module).of
                if isinstance(seconds, int) and not isinstance(seconds, bool):
                    yield Countdown(source=unit.module.source(node), function=unit.id, seconds=seconds)

    def _timeouts(self, unit: CallUnit) -> Iterator[Timeout]:
        for node in unit.nodes:
            if isinstance(node, ast.Dict) and self._is_of_transport(node, unit.module):
                for key, value in zip(node.keys, node.values, strict=True):
                    seconds = self._values.of(value, unit.module).of
                    if isinstance(key, ast.Constant) and key.value == "visibility_timeout" and isinstance(seconds, int):
                        yield Timeout(source=unit.module.source(value), seconds=seconds)

    def _is_of_transport(self, node: ast.Dict, module: Module) -> bool:
        """Whether a dictionary is Celery's `broker_transport_options`."""
        outer = module.parents.get(node)
        if isinstance(outer, ast.keyword):
            return outer.arg == "broker_transport_options"
        targets = outer.targets if isinstance(outer, ast.Assign) else []
        names = {one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "") for one in targets}
        return bool({one.lower() for one in names} & {"broker_transport_options", "celery_broker_transport_options"})


def _module(entry: HandlerEntry, modules: Modules) -> Module:
    if entry.inside is None:
        return modules.read(entry.file, entry.root)
    return modules.add(entry.file, entry.root, entry.text, entry.inside)


def _follow_imports(modules: Modules) -> None:
    """Read the local files that the modules import, directly or indirectly."""
    seen: set[Module] = set()
    while waiting := [one for one in modules.all() if one not in seen]:
        for module in waiting:
            seen.add(module)
            for node in module.parents:
                if isinstance(node, ast.ImportFrom):
                    modules.imported(module, node.module or "", node.level)
                    for one in node.names:
                        modules.imported(module, f"{node.module or ''}.{one.name}".lstrip("."), node.level)
                elif isinstance(node, ast.Import):
                    for one in node.names:
                        modules.imported(module, one.name, 0)


def _may_guard(unit: CallUnit) -> bool:
    """Whether a name in a unit suggests a guard against duplicates, or the unit makes a conditional write."""
    for node in unit.nodes:
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if isinstance(node, ast.keyword) and node.arg in {"ConditionExpression", "nx"}:
            return True
        if isinstance(node, FUNCTION):
            name = node.name
        if name and _GUARDS.search(name):
            return True
    return _GUARDS.search(unit.name.rpartition(".")[2]) is not None
