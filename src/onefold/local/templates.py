"""Sets up a local SQS: functions from the command line; queues, topics, functions and mappings from a template.

A template is applied as if its author had called the API, so AWS's own rules refuse what is wrong; applied again to the
same data file, it changes what differs. Parts that are left out are returned with their place and the reason.
Never here: reading templates (`check/`), how queues and mappings work. Invariant: a function is registered before the
mapping that names it.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from uuid import NAMESPACE_URL, uuid5

from msgspec import Struct

from onefold import errors, extras, private_files
from onefold.check.facts import (
    FunctionFacts,
    InlineCode,
    LocalCode,
    QueueFacts,
    TemplateFacts,
    TopicFacts,
    TopicSubscriptionFacts,
    ZippedCode,
)
from onefold.events.patterns import compile_pattern
from onefold.local.aws_errors import AwsError
from onefold.local.registry import FunctionRegistry
from onefold.local.request_handler import OPERATIONS
from onefold.local.settings import FunctionSettings
from onefold.local.sqs_service import SqsCaller, SqsService
from onefold.local.topics import Subscription, Topic, Topics, entries_of


class Planted(Struct, frozen=True, kw_only=True):
    """What was created.

    Args:
        queues, functions: names. mappings: `queue -> function`. subscriptions: `topic -> queue`.
        left_out: one line for each part that was left out: its place in the template, what it is, and why.
        problems: one sentence for each stored mapping that cannot be resumed.
    """

    queues: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    mappings: tuple[str, ...] = ()
    subscriptions: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def register(registry: FunctionRegistry, functions: Sequence[tuple[str, str]], *, account: str, region: str) -> None:
    """Register the functions of the command line, with their modules in the current folder.

    Raises:
        UsageError: Lambda would refuse a name or handler. ConflictError: a name is used twice.
    """
    for name, handler in functions:
        registry.register(
            FunctionSettings(name=name, handler=handler, code_dir=str(Path.cwd()), account=account, region=region)
        )


async def plant(
    path: Path,
    sqs: SqsService,
    registry: FunctionRegistry,
    topics: Topics,
    inline: Path,
    parameters: Mapping[str, str],
) -> Planted:
    """Create what a template describes.

    Args:
        topics: receives the template's topics, with the queues that are subscribed to them.
        parameters: values of the template's parameters, which override their defaults.
        inline: a folder for code from the template itself, or from a zip.

    Raises:
        UsageError: the template cannot be read, or AWS would refuse a part of it; names its place.
    """
    with extras.needed("A template", "serve"):
        from onefold.check.collect_template import collect_template  # here: YAML is only needed for a template

    address = sqs.addresses
    endpoint = f"http://{address.host}"  # for queue URLs in the functions' environment
    facts = collect_template(
        path, parameters=parameters, account=address.account, region=address.region, endpoint=endpoint
    )
    for queue in facts.queues:
        await _queue(sqs, queue)
    for function in facts.functions_that_run:
        registry.register(_settings(function, inline, facts))
    left_out = [f"{one.location}: {one.type} {one.location.logical_id}: {one.why}" for one in facts.left_out]
    left_out += _topics(topics, facts)
    problems = (
        await registry.load()
    )  # between functions and mappings: stored mappings are resumed first, so that they are changed, not duplicated
    made = []
    for mapping in facts.mappings_that_run:
        await _mapping(registry, mapping.queue, mapping.function, _changes(mapping), str(mapping.location))
        made.append(f"{mapping.queue} -> {mapping.function}")
    return Planted(
        queues=tuple(one.name for one in facts.queues),
        functions=tuple(one.name for one in facts.functions_that_run),
        mappings=tuple(made),
        subscriptions=tuple(entries_of(topics.listed())),
        left_out=tuple(left_out),
        problems=tuple(problems),
    )


async def _queue(sqs: SqsService, queue: QueueFacts) -> None:
    url = sqs.addresses.queue_url(queue.name)
    caller = SqsCaller()
    create = SimpleNamespace(QueueName=queue.name, Attributes=dict(queue.attributes), tags=dict(queue.tags))
    try:
        try:
            await OPERATIONS["CreateQueue"](sqs, create, caller)
        except AwsError as error:
            if error.shape != "QueueNameExists":
                raise
            changed = {name: value for name, value in queue.attributes.items() if name != "FifoQueue"}
            await OPERATIONS["SetQueueAttributes"](sqs, SimpleNamespace(QueueUrl=url, Attributes=changed), caller)
    except AwsError as error:
        raise errors.UsageError(
            f"{queue.location}: queue {queue.logical_id} cannot be made: {error.message}",
            meaning=f"SQS would refuse it too ({error.shape}).",
            todo="Correct the template.",
        ) from error


def _topics(topics: Topics, facts: TemplateFacts) -> list[str]:
    """Make the topics and subscriptions; returns a line for each that is left out."""
    left_out = []
    for one in facts.around:
        if isinstance(one, TopicFacts):
            why = None if one.arn else "its name is not known"
            if why is None:
                fifo, dedup = one.fifo.value is True, one.content_dedup.value is True
                topics.add(Topic(arn=one.arn, fifo=fifo, content_dedup=dedup, subscriptions=[]))
        elif isinstance(one, TopicSubscriptionFacts):
            why = _subscribe(topics, one, {queue.name for queue in facts.queues})
        else:
            continue
        if why is not None:
            left_out.append(f"{one.source.file}:{one.source.start_line}: {one.type} {one.id}: {why}")
    return left_out


def _subscribe(topics: Topics, facts: TopicSubscriptionFacts, queues: Collection[str]) -> str | None:
    """Subscribe a queue to a topic; returns why that cannot be done, or None."""
    for what, setting in (
        ("topic", facts.topic_arn), ("protocol", facts.protocol), ("queue", facts.endpoint), ("raw delivery", facts.raw),
        ("filter policy", facts.filter_policy), ("scope of the filter", facts.filter_scope),
        ("dead-letter queue", facts.dead_letter_arn),
    ):  # fmt: skip
        if setting.why:
            return f"its {what} is not known: {setting.why}"
    if facts.protocol.value != "sqs":
        return f"its protocol is {facts.protocol.value}; only queues are subscribed here"
    topic = next((one for one in topics.listed() if one.arn == facts.topic_arn.value), None)
    queue = str(facts.endpoint.value).rpartition(":")[2]
    if topic is None or queue not in queues:
        return "its topic is not in this template" if topic is None else f"its queue {queue} is not in this template"
    if queue.endswith(".fifo") and not topic.fifo:
        return f"a FIFO queue cannot be subscribed to {topic.name}, which is a standard topic"
    if facts.filter_scope.value not in ("MessageAttributes", "MessageBody"):
        return f"FilterPolicyScope {facts.filter_scope.value} is neither MessageAttributes nor MessageBody"
    policy, dead = facts.filter_policy.value, facts.dead_letter_arn.value
    try:
        pattern = compile_pattern(json.dumps(policy)) if policy else None
    except errors.UsageError as error:
        return f"its filter policy cannot be used: {error.what}"
    subscription = Subscription(
        arn=f"{topic.arn}:{uuid5(NAMESPACE_URL, f'{topic.arn} {facts.id} {queue}')}",
        queue=queue,
        raw=facts.raw.value is True,
        dead_letter=None if dead is None else dead.rpartition(":")[2],
        pattern=pattern,
        scope="MessageBody" if facts.filter_scope.value == "MessageBody" else "MessageAttributes",
    )
    topic.subscriptions.append(subscription)
    return None


def _settings(function: FunctionFacts, inline: Path, facts: TemplateFacts) -> FunctionSettings:
    code = function.code
    if isinstance(code, InlineCode | ZippedCode):
        if not (function.logical_id.isascii() and function.logical_id.isalnum()):  # it becomes a folder's name
            raise errors.UsageError(
                f"{function.location}: {function.logical_id!r} is not a logical id.",
                meaning="CloudFormation accepts letters and digits only.",
                todo="Rename the resource.",
            )
        folder = inline / function.logical_id
        private_files.make_folder(folder)
        if isinstance(code, InlineCode):
            (folder / code.file_name).write_text(code.text, encoding="utf-8")
        else:
            with zipfile.ZipFile(code.archive) as archive:
                archive.extractall(folder)  # extracts nothing outside the folder
    else:
        assert isinstance(code, LocalCode), "a function that runs here has local code"
        folder = code.directory
    return FunctionSettings(
        name=function.name,
        handler=function.handler,
        code_dir=str(folder.resolve()),
        timeout_ms=function.timeout_ms,
        memory_mib=function.memory_mib,
        env=function.environment,
        reserved_concurrency=function.reserved_concurrency,
        account=facts.account,
        region=facts.region,
    )


def _changes(mapping: object) -> dict[str, object]:
    names = ("batch_size", "window_ms", "concurrency_max", "filters", "reports_failures", "enabled")
    return {name: getattr(mapping, name) for name in names}


async def _mapping(
    registry: FunctionRegistry, queue: str, function: str, changes: Mapping[str, object], location: str
) -> None:
    known = registry.entries(queue=queue, function=function)
    try:
        if known:
            await registry.update(known[0].settings.uuid, **changes)
        else:
            await registry.create(function, queue, **changes)
    except errors.UsageError as error:
        raise errors.UsageError(f"{location}: {error.what}", meaning=error.meaning, todo=error.todo) from error
