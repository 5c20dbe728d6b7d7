"""The plan of an app as a document for `onefold check`: resources with the lines of their declarations.

The resources are those that a deployment would create. For an app that cannot be deployed as it is, for example because a
handler needs a database, they are only its queues.
Never here: rules, writing files. Invariant: nothing is opened, and no credentials are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from onefold.check.declarations import Declarations, declarations_in
from onefold.check.facts import Document, PropertyPath, Span
from onefold.check.findings import FindingSource
from onefold.deploy import cloudformation
from onefold.deploy.plan import AppDeclarations, DeployPlan, plan
from onefold.deploy.stack import Stack
from onefold.errors import UsageError

WORDS: Final = {
    "BatchSize": "Function(batch=...)",
    "MaximumBatchingWindowInSeconds": "Function(window=...)",
    "MaximumConcurrency": "Function(concurrency=...)",
    "MaximumMessageSize": "app.queue(max_bytes=...)",
    "MessageRetentionPeriod": "retention=...",
    "ReservedConcurrentExecutions": "Function(reserved=...)",
    "VisibilityTimeout": "app.queue(visibility=...)",
    "maxReceiveCount": "DeadLetter(after=...)",
}


def document_of(
    app: str, target: str, declared: AppDeclarations, stack: Stack, files: Iterable[Path]
) -> tuple[Document, str]:
    """The document, and why it contains only queues; "" if it contains everything.

    Args:
        app: its name. target: `module:attribute`.
        declared: what it declares.
        stack: the choices for the whole deployment.
        files: its modules, the one of `target` first.

    Raises:
        UsageError: it declares no queue, or AWS would refuse one.
    """
    try:
        planned = plan(app, target, declared, stack)
        refused = ""
    except UsageError as error:
        refused = error.what
        queues = [replace(one, function=None) for one in declared.queues]
        planned = plan(app, target, AppDeclarations(queues=queues, jobs=declared.jobs, logs=False), stack)
    files = list(files)
    queues_of = {one.name: one for one in declared.queues}
    found = declarations_in(files, files[0].parent, queues_of)
    places = {name: found.queues.get(name, found.app) for name in queues_of}
    for name, queue in queues_of.items():
        for companion in (queue.dead_letter.name, queue.held.name):
            places.setdefault(companion, places[name])
    spans = _spans(planned, found, places)
    return Document(str(files[0]), _resources(planned), {}, spans, words=WORDS), refused


def _resources(planned: DeployPlan) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(cloudformation.to_json(planned, indent=False))
    parameters = found.pop("Parameters", {})
    for about in parameters.values():
        about.pop("Default", None)  # set when deploying; whether alarms have a topic is not known before
    return {**found, "Parameters": parameters}


def _spans(planned: DeployPlan, found: Declarations, places: Mapping[str, FindingSource]) -> dict[PropertyPath, Span]:
    spans: dict[PropertyPath, Span] = {(): _span(found.app)}
    prefix = planned.stack.prefix
    for one in planned.queues:
        spans["Resources", f"{one.id}Queue"] = _span(places.get(one.settings.name.removeprefix(prefix), found.app))
    by_id = {one.id: one.settings.name.removeprefix(prefix) for one in planned.queues}
    for function in planned.functions:
        place = _span(places.get(by_id.get(function.queue_id, ""), found.app))
        spans["Resources", f"{function.id}Function"] = spans["Resources", f"{function.id}Mapping"] = place
    return spans


def _span(source: FindingSource) -> Span:
    return Span(source.start_line, source.start_column, source.end_line, source.end_column, source.file)
