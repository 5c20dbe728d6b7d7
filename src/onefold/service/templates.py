"""A CloudFormation or SAM template made real on a local server: its queues, its functions, its event source mappings.

Applied at every start: what is there already is brought to what the template says, what the template does not name is left
alone. Never here: reading the file (`check/collect_template.py`), what a queue or mapping is. Invariant: what was not made is
in `Applied.left_out`, with the place in the file and the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from onefold import errors
from onefold.check.collect_template import collect_template
from onefold.check.facts import FunctionFacts, InlineCode, LocalCode, MappingFacts, QueueFacts, TemplateFacts
from onefold.lambdas.registry import Registry
from onefold.lambdas.settings import FunctionSettings
from onefold.wire.desk import Caller, Desk
from onefold.wire.errors import AwsError
from onefold.wire.model import Model
from onefold.wire.operations import OPERATIONS

_FIXED = "FifoQueue"  # decided when a queue is created


class Applied(Struct, frozen=True, kw_only=True):
    """What became of a template: names of queues and functions, `queue -> function` of mappings, sentences of the rest."""

    file: str
    queues: tuple[str, ...]
    functions: tuple[str, ...]
    mappings: tuple[str, ...]
    left_out: tuple[str, ...]


def read(path: str, *, account: str, region: str, endpoint: str) -> TemplateFacts:
    """What a template says, for a server at `endpoint`; errors as `collect_template`."""
    return collect_template(Path(path), parameters={}, account=account, region=region, endpoint=endpoint)


def register(facts: TemplateFacts, registry: Registry, folder: Path) -> list[str]:
    """Register the functions whose code is here; their names.

    Args:
        folder: where code that stands in the template itself is written to.

    Raises:
        UsageError: settings Lambda would refuse. ConflictError: a function of that name was registered already.
    """
    names = []
    for one in facts.functions_that_run:
        try:
            registry.register(_function(one, facts, folder))
        except errors.UsageError as error:
            raise _at(one, f"function {one.name}", error) from error
        names.append(one.name)
    return names


def _function(one: FunctionFacts, facts: TemplateFacts, folder: Path) -> FunctionSettings:
    assert isinstance(one.code, LocalCode | InlineCode), "it runs here"
    if isinstance(one.code, LocalCode):
        code_dir = one.code.directory
    else:
        code_dir = folder / one.name
        code_dir.mkdir(parents=True, exist_ok=True)
        (code_dir / one.code.file_name).write_text(one.code.text, encoding="utf-8")
    return FunctionSettings(
        name=one.name,
        handler=one.handler,
        code_dir=str(code_dir),
        timeout_ms=one.timeout_ms,
        memory_mib=one.memory_mib,
        env=one.environment,
        region=facts.region,
        account=facts.account,
        reserved_concurrency=one.reserved_concurrency,
    )


async def apply(facts: TemplateFacts, desk: Desk, model: Model, registry: Registry, functions: list[str]) -> Applied:
    """Make queues and mappings; functions were registered before.

    Raises:
        UsageError: a queue that SQS would refuse, with its place in the template.
    """
    for queue in facts.queues:
        await _make_queue(queue, desk, model)
    left_out = [f"{one.place} {one.place.logical_id} {one.type}: {one.why}" for one in facts.left_out]
    mapped = []
    for mapping in facts.mappings_that_run:
        try:
            await _make_mapping(mapping, registry)
            mapped.append(f"{mapping.queue} -> {mapping.function}")
        except errors.UsageError as error:
            left_out.append(f"{mapping.place} {mapping.logical_id} AWS::Lambda::EventSourceMapping: {error.what}")
    return Applied(
        file=facts.file,
        queues=tuple(one.name for one in facts.queues),
        functions=tuple(functions),
        mappings=tuple(mapped),
        left_out=tuple(left_out),
    )


async def _make_queue(queue: QueueFacts, desk: Desk, model: Model) -> None:
    async def ask(operation: str, **members: Any) -> None:
        found = model.operation(operation)
        assert found is not None, "every SQS model has it"
        await OPERATIONS[operation](desk, found.input_type(**members), Caller())

    try:
        try:
            await ask("CreateQueue", QueueName=queue.name, Attributes=dict(queue.attributes), tags=dict(queue.tags))
        except AwsError as error:
            if error.shape != "QueueNameExists":
                raise
            changes: Mapping[str, str] = {name: text for name, text in queue.attributes.items() if name != _FIXED}
            await ask("SetQueueAttributes", QueueUrl=queue.name, Attributes=changes)
    except AwsError as error:
        raise errors.UsageError(
            f"{queue.place}: queue {queue.name} is refused: {error.message}", todo="Correct it in the template."
        ) from error


async def _make_mapping(mapping: MappingFacts, registry: Registry) -> None:
    settings: dict[str, Any] = {
        "batch_size": mapping.batch_size,
        "window_ms": mapping.window_ms,
        "concurrency_max": mapping.concurrency_max,
        "filters": mapping.filters,
        "reports_failures": mapping.reports_failures,
        "enabled": mapping.enabled,
    }
    there = registry.entries(queue=mapping.queue, function=mapping.function)
    if there:
        await registry.update(there[0].settings.uuid, **settings)
    else:
        await registry.create(mapping.function, mapping.queue, **settings)


def _at(one: FunctionFacts, what: str, error: errors.UsageError) -> errors.UsageError:
    return errors.UsageError(
        f"{one.place}: {what} is refused: {error.what}", meaning=error.meaning, todo=error.todo or "Correct it there."
    )
