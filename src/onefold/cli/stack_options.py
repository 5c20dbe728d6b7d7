"""Options of the commands that write or deploy an app's infrastructure, and the plan behind them.

An app's URL can make some of the choices (`aws://...?prefix=...`); an option on the command line overrides it. The app is
imported and nothing is opened: no AWS call is made, no credentials are read.
Never here: sizes and names (`deploy/plan.py`), files, uploads.
Invariant: given the same options, all these commands work on the same plan.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click
from msgspec.structs import replace

from onefold import errors
from onefold.app import App
from onefold.check.facts import Document
from onefold.cli import options, render, target
from onefold.deploy.apply import KEEPING_POLICY, Rollout
from onefold.deploy.document import document_of
from onefold.deploy.plan import AppDeclarations, DeployPlan, plan
from onefold.deploy.stack import ALARMS, LOG_DAYS, Stack, stack_of
from onefold.observe.emf import EmfSink
from onefold.observe.sinks import LogSink
from onefold.runtime.names import guarded_names

F = TypeVar("F", bound=Callable[..., Any])

Choices = dict[str, Any]
"""The options given on the command line, by the names of Stack's fields; None or empty: not given."""

_OPTIONS = (
    click.option("--prefix", metavar="TEXT", help="Prefix of every name on AWS, for example prod-."),
    click.option("--table", metavar="NAME", help="Name of the record table; by default prefix and app."),
    click.option(
        "--layout",
        type=click.Choice(["1", "2"]),
        help="Layout of a table's records; by default that of the table, 2 if new.",
    ),
    click.option("--records", metavar="URL", help="Records elsewhere (redis://, postgresql://) instead of a table."),
    click.option("--payloads", metavar="BUCKET/PREFIX", help="Where bodies over the queue's limit go."),
    click.option("--kms-key", metavar="ARN", help="Your own key for queues, table, logs and variables."),
    click.option("--log-days", type=int, metavar="DAYS", help="How long logs are kept; by default 30."),
    click.option("--deletion-protection", is_flag=True, help="The table cannot be deleted until this is turned off."),
    click.option(
        "--disposable", is_flag=True, help="Queues and table are deleted with the stack; for tests and stages."
    ),
    click.option("--later", is_flag=True, help="Messages due later than SQS can delay become one-time schedules."),
    click.option(
        "--alarms",
        type=click.Choice(ALARMS),
        help="By default all; few: the most important; jobs: all, and one for each job, which notifies instead; none.",
    ),
    click.option(
        "--slack", metavar="WORKSPACE/CHANNEL", help="Ids in Slack; Amazon Q Developer posts the alarms there."
    ),
    click.option("--topic", is_flag=True, help="Make an SNS topic in the stack that alarms notify: subscribe to it."),
    click.option("--permissions-boundary", "boundary", metavar="ARN", help="For every role that is made."),
    click.option("--role-path", metavar="/PATH/", help="For every role that is made."),
    click.option("--override", "overrides", metavar="FILE", help="JSON that is merged into single resources."),
    click.option("--tag", "tags", metavar="NAME=VALUE", multiple=True, help="On every resource; it may be repeated."),
)


def stack_options(function: F) -> F:
    """Add the options of a stack; the function gets them as `choices`."""
    names = (
        "prefix",
        "table",
        "layout",
        "records",
        "payloads",
        "kms_key",
        "log_days",
        "deletion_protection",
        "disposable",
        "later",
        "alarms",
        "slack",
        "tags",
        "topic",
        "boundary",
        "role_path",
        "overrides",
    )

    @functools.wraps(function)
    def collected(*args: Any, **kwargs: Any) -> Any:
        choices = {name: kwargs.pop(name) for name in names}
        return function(*args, choices=choices, **kwargs)

    made: Any = collected
    for option in reversed(_OPTIONS):
        made = option(made)
    result: F = made
    return result


def rollout_options(function: F) -> F:
    """Add the options for how a stack is deployed; the function gets them as `rollout`."""

    @functools.wraps(function)
    def collected(
        *args: Any,
        role_arn: str | None,
        notify: tuple[str, ...],
        protect: bool | None,
        policy: str | None,
        rollback_minutes: int | None,
        rollback_alarms: tuple[str, ...],
        **kwargs: Any,
    ) -> Any:
        rollout = Rollout(
            role_arn=role_arn, notifications=notify, protected=protect, policy=_policy(policy),
            rollback_minutes=rollback_minutes, rollback_alarms=rollback_alarms,
        )  # fmt: skip
        return function(*args, rollout=rollout, **kwargs)

    made: Any = collected
    for option in (
        click.option(
            "--rollback-alarm", "rollback_alarms", metavar="NAME", multiple=True,
            help="Alarm that undoes the update, 5 at most; by default the functions' own; '' for none from now on.",
        ),
        click.option(
            "--rollback-minutes", type=options.WholeType(0, 180), metavar="N",
            help="Undo the update if an alarm goes off during it or in the N minutes after it.",
        ),
        click.option(
            "--stack-policy", "policy", metavar="keep|FILE",
            help="keep: nothing that holds data may be replaced; or a file with your own policy.",
        ),
        click.option("--protect/--no-protect", default=None, help="Termination protection; by default unchanged."),
        click.option("--notify", metavar="ARN", multiple=True, help="SNS topic for the stack's events; repeatable."),
        role_option,
    ):  # fmt: skip
        made = option(made)
    result: F = made
    return result


def role_option(function: F) -> F:
    """Add the option for the role that CloudFormation assumes."""
    made: F = click.option(
        "--role-arn", metavar="ARN", help="Role that CloudFormation assumes, instead of your permissions."
    )(function)
    return made


def _policy(word: str | None) -> str | None:
    """A stack policy's text."""
    if word is None or word == "keep":
        return None if word is None else KEEPING_POLICY
    try:
        text = Path(word).read_text(encoding="utf-8")
        json.loads(text)
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--stack-policy {word}: {error}. Write keep, or name a file with JSON.") from error
    return text


def placing(function: F) -> F:
    """Add the options for the location of a stack."""
    for option in (
        click.option("--endpoint", metavar="URL", help="URL of an emulator, instead of AWS."),
        click.option("--region", metavar="NAME", help="By default that of the app's URL, AWS_REGION or your profile."),
        click.option("--stack", metavar="NAME", help="CloudFormation stack; by default prefix and app."),
    ):
        function = option(function)
    return function


def planned(app: str | None, choices: Choices) -> DeployPlan:
    """The plan of an app.

    Args:
        app: `module:attribute`; by default ONEFOLD_APP.
        choices: as `stack_options` collects them.

    Raises:
        click.UsageError: no app was named.
        UsageError, NotFoundError: the app cannot be loaded, its module has no handler, or a declaration is invalid on AWS.
    """
    word = app or os.environ.get("ONEFOLD_APP")
    if word is None:
        raise click.UsageError("Name the app as module:attribute, for example shop:app, or set ONEFOLD_APP.")
    loaded = target.load(word)
    found = plan(loaded.name, word, declared_in(loaded), _stack(loaded.url, choices))
    for function in found.functions:
        _check_handler(function.settings.handler, word)
    if found.functions:
        _check_url(loaded, found)
    return replace(found, notes=(*found.notes, *_guards_left_out(found)))


def leaves_layout_open(app: str, choices: Choices) -> bool:
    """Whether neither the options nor the app's URL name the layout of the table; a URL of AWS without it names 1."""
    return not choices["layout"] and not target.load(app).url.startswith("aws://")


def planned_document(app: str) -> tuple[Document, list[Path]]:
    """What an app declares, for `onefold check`, and the files of the modules that declare it; says when not all of it.

    Raises:
        UsageError, NotFoundError: the app cannot be loaded, or it declares no queue.
    """
    loaded = target.load(app)
    modules = [app.partition(":")[0], *(job.handler.__module__ for job in loaded.jobs.values())]
    found = [getattr(sys.modules.get(one), "__file__", None) for one in dict.fromkeys(modules)]
    files = [Path(os.path.relpath(one)) for one in found if one is not None]
    document, refused = document_of(loaded.name, app, declared_in(loaded), _stack(loaded.url, {}), files)
    if refused:
        render.note(f"! {app}: only queues and code were checked, because it cannot be deployed as it is. {refused}")
    return document, files


def report_notes(plan: DeployPlan) -> None:
    """Warn on standard error of declarations that have no effect on AWS."""
    for note in plan.notes:
        render.note(f"! {note}")


def declared_in(app: App) -> AppDeclarations:
    """An app's declarations in the form that the plan takes."""
    return AppDeclarations(
        queues=app.queues.values(),
        jobs=app.jobs.values(),
        schedules=app.schedules.values(),
        maps=[one.spec for one in app.maps.values()],
        buses=app.buses.values(),
        pipes=app.pipes.values(),
        reconcilers=app.reconcilers.keys(),
        logs=not app.sinks or any(isinstance(one, LogSink) for one in app.sinks),
        metrics=next((one.namespace(app.name) for one in app.sinks if isinstance(one, EmfSink)), None),
    )


def _stack(url: str, choices: Choices) -> Stack:
    said = {name: value for name, value in choices.items() if value}
    if "layout" in said:
        said["layout"] = int(said["layout"])
    if "tags" in said:
        said["tags"] = _tags(said["tags"])
    if "overrides" in said:
        said["overrides"] = _overrides(said["overrides"])
    if "log_days" in said and said["log_days"] not in LOG_DAYS:
        raise click.UsageError(f"--log-days is one of {', '.join(map(str, LOG_DAYS))}.")
    if "records" in said and "table" in said:
        raise click.UsageError("--table and --records exclude each other: records are kept in one place.")
    base = stack_of(url)
    if "records" in said:
        base = replace(base, table=None)
    elif "table" in said:
        base = replace(base, records=None)
    return replace(base, **said)


def _overrides(word: str) -> dict[str, Any]:
    try:
        found = json.loads(Path(word).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--override {word}: {error}.") from error
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise click.UsageError(
            f"--override {word}: it must be an object with an object for each resource, by its name."
        )
    return found


def _tags(words: Iterable[str]) -> dict[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--tag {word!r} is not written NAME=VALUE.")
        found[name] = value
    return found


def _guards_left_out(found: DeployPlan) -> list[str]:
    """A note on functions under `@once` in the app's folder, whose records no role may write; there is none in layout 1."""
    if found.table is None or found.stack.layout == 1 or not found.functions:
        return []
    home = getattr(sys.modules[found.target.partition(":")[0]], "__file__", None)
    if home is None:
        return []
    said = {name for one in found.functions for name in one.options.guards}
    left_out = [name for name in guarded_names(os.path.dirname(home)) if name not in said]
    if not left_out:
        return []
    names = f"@onefold.once is on {', '.join(left_out)}, which Function(guards=[...]) does not name"
    return [f"{names}: a function that keeps such records in table {found.table} is refused them."]


def _check_url(app: App, found: DeployPlan) -> None:
    """Refuse an app that names an engine other than the one that is deployed, and would use it in Lambda."""
    if app.url == os.environ.get("ONEFOLD_URL") or app.url == f"sqlite:///.onefold/{app.name}.db":
        return
    own = stack_of(app.url) if app.url.startswith("aws://") else None
    made = found.stack
    if own is None or (own.prefix, own.table, own.layout, own.records, own.payloads, own.later) != (
        made.prefix,
        made.table,
        made.layout,
        made.records,
        made.payloads,
        made.later,
    ):
        raise errors.UsageError(
            f"App {app.name} names its own engine, {app.url}; its functions would use that one.",
            meaning=f"What is made here is {found.url.replace('{region}', 'REGION')}, which they get as ONEFOLD_URL.",
            todo="Leave url= out of App(...), and set ONEFOLD_URL where you develop.",
        )


def _check_handler(handler: str, app: str) -> None:
    """Refuse a handler that the app's own module does not have; a handler in another module is not checked."""
    module, _, attribute = handler.replace("/", ".").rpartition(".")
    home = app.partition(":")[0]
    if module != home or callable(getattr(sys.modules.get(module), attribute, None)):
        return
    raise errors.NotFoundError(
        f"The module {module} has no handler for Lambda: {handler} does not exist.",
        todo=f"Add to it: {attribute} = {app.partition(':')[2]}.lambda_handler()   (or name another: Function(handler=...))",
    )
