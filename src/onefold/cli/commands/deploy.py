"""`onefold package`, `deploy`, `synth`: an app's zip, template and stack.

Output and questions only: `deploy/package.py` makes the zip, the writers make templates, and every step of a
deployment is in `admin/deploying.py`. Never here: what a change or failure means. Invariants: the printed hash is the
hash of the file that exists; `deploy` does nothing that was not shown, and replaces or deletes nothing that holds
messages or records without explicit consent; `synth` makes no AWS call, and without --output only the template goes to
standard output.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from msgspec import Struct

from onefold.admin.deploying import DeployLocation, Deployment, location_of
from onefold.app import App
from onefold.cli import render, stack_options, target
from onefold.cli.program import Answer, declared
from onefold.cli.render import Column, Style
from onefold.clock import SystemClock
from onefold.deploy import cloudformation, key_policy, terraform
from onefold.deploy import package as packing
from onefold.deploy.apply import ChangeSet, Deployed, Rollout, Uploaded
from onefold.deploy.changes import ResourceChange, StackEvent
from onefold.deploy.package import Built, PackageSettings, hash_of
from onefold.deploy.plan import DeployPlan
from onefold.deploy.sources import root_of
from onefold.deploy.stack import stack_of, written_layout
from onefold.entropy import SystemEntropy
from onefold.errors import UsageError
from onefold.observe.wording import counted

BUILD_DIR = ".onefold/build"

F = TypeVar("F", bound=Callable[..., Any])


class Wanted(Struct, frozen=True, kw_only=True):
    """The options of a package on a command line; see `PackageSettings`."""

    include: tuple[str, ...]
    requirements: str | None
    bytecode: bool


def packing_options(function: F) -> F:
    """Add the options that select the contents of a package; the function gets them as `wanted`."""

    @functools.wraps(function)
    def collected(*args: Any, include: tuple[str, ...], requirements: str | None, bytecode: bool, **kwargs: Any) -> Any:
        wanted = Wanted(include=include, requirements=requirements, bytecode=bytecode)
        return function(*args, wanted=wanted, **kwargs)

    made: Any = collected
    for option in (
        click.option(
            "--bytecode", is_flag=True, help="Also compile, for faster cold starts; needs the functions' Python."
        ),
        click.option("-r", "--requirements", metavar="FILE", help="The app's own dependencies, for pip."),
        click.option("--include", multiple=True, metavar="PATH", help="A file or folder next to the app; repeatable."),
    ):
        made = option(made)
    result: F = made
    return result


@declared(
    "package", example="onefold package shop:app\nonefold package shop:app -r requirements.txt --include templates"
)
@click.argument("app", required=False)
@click.option("-o", "--output", metavar="FILE", help="The zip to write; by default .onefold/build/<app>.zip.")
@click.option(
    "--extra", "extras", multiple=True, type=click.Choice(sorted(packing.EXTRAS)), help="A record store's client."
)
@packing_options
def package_command(app: str | None, output: str | None, extras: tuple[str, ...], wanted: Wanted) -> Answer:
    """Pack the functions' zip: the app, onefold, and pinned dependencies for Lambda's platform.

    It contains the app's module (a package with its whole folder), the modules next to it that they import, what --include
    names, onefold itself, msgspec as installed here, and --requirements as pip resolves them. boto3 comes with Lambda.
    Hidden files and folders called tests are left out. The same input gives the same bytes.
    """
    word = app or os.environ.get("ONEFOLD_APP")
    if word is None:
        raise click.UsageError("Name the app as module:attribute, for example shop:app, or set ONEFOLD_APP.")
    built = build(word, output, wanted, extras)
    return Answer(built, draw=lambda: _draw_package(built))


def build(
    word: str, output: str | None, wanted: Wanted, extras: tuple[str, ...] = (), records: str | None = None
) -> Built:
    """Pack an app, reporting each step on standard error.

    Args:
        word: `module:attribute`. records: URL of a store other than DynamoDB; None: from the app's URL.
    """
    found = target.load(word)
    module = word.partition(":")[0]
    loaded: Any = sys.modules[module]
    python, architecture = _platform(found)
    settings = PackageSettings(
        module=module,
        root=root_of(module, getattr(loaded, "__file__", None), getattr(loaded, "__path__", ())),
        output=Path(output or f"{BUILD_DIR}/{found.name}.zip"),
        build_dir=Path(BUILD_DIR),
        include=wanted.include,
        requirements=Path(wanted.requirements) if wanted.requirements is not None else None,
        bytecode=wanted.bytecode,
        extras=tuple(sorted({*extras, *_store(records or stack_of(found.url).records or "")})),
        python=python,
        architecture=architecture,  # type: ignore[arg-type]  # the options of a function know the same two
    )
    return packing.build(settings, render.note)


def _platform(app: App) -> tuple[str, str]:
    """The Python version and processor that the app's functions share; one zip serves them all."""
    platforms = {
        (queue.function.runtime.removeprefix("python"), queue.function.architecture)
        for queue in app.queues.values()
        if queue.function is not None
    }
    if len(platforms) > 1:
        raise UsageError(
            "The app's functions have different platforms: "
            + ", ".join(f"Python {python} on {architecture}" for python, architecture in sorted(platforms)) + ".",
            meaning="They share one package, whose dependencies are built for one platform.",
            todo="Give all of them the same runtime and architecture.",
        )  # fmt: skip
    if not platforms:
        raise UsageError(
            f"App {app.name} has no function.",
            meaning="All its queues were declared with function=None: workers run its jobs.",
            todo="Start onefold worker where they are to run; there is nothing to package.",
        )
    return platforms.pop()


def _store(records: str) -> tuple[str, ...]:
    return tuple(
        extra for scheme, extra in (("redis", "redis"), ("postgres", "postgres")) if records.startswith(scheme)
    )


def _draw_package(built: Built) -> None:
    render.line(f"{built.path}   {megabytes(built.zipped_bytes)} ({megabytes(built.unzipped_bytes)} unzipped)", "bold")
    render.line(f"  sha256   {built.sha256}")
    render.line(f"  app      {', '.join(built.modules)}")
    render.line(f"  pinned   {', '.join(built.pinned)}")
    render.line(f"  files    {render.number(built.files)}")
    for warning in built.warnings:
        render.line(f"! {warning}", "yellow")


def megabytes(count: int) -> str:
    """A size in the unit of Lambda's limits."""
    return f"{count / 1024 / 1024:.2f} MB"


FAILED: Final = 1
_ACTIONS: Final[Mapping[str, tuple[str, Style]]] = {
    "Add": ("add", "green"),
    "Modify": ("modify", "yellow"),
    "Remove": ("remove", "red"),
    "Import": ("import", "green"),
    "Dynamic": ("decide later", "yellow"),
    "SyncWithActual": ("note", "dim"),
}


@declared(
    "deploy",
    example="onefold deploy shop:app --bucket my-code --prefix prod-\n"
    "onefold deploy shop:app --bucket my-code --prefix prod- --yes --json",
)
@click.argument("app", required=False)
@click.option("--bucket", metavar="NAME", envvar="ONEFOLD_BUCKET", help="In S3, for the package (or ONEFOLD_BUCKET).")
@click.option("--package", "package", metavar="FILE", help="A zip made by onefold package, instead of packing now.")
@packing_options
@click.option("--alarm-topic", metavar="ARN", help="SNS topic that alarms notify; '' for none. By default unchanged.")
@click.option("--dry-run", is_flag=True, help="Show the change set, then remove it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--accept-loss", is_flag=True, help="With --yes: also if messages or records are lost.")
@stack_options.rollout_options
@stack_options.placing
@stack_options.stack_options
def command(
    app: str | None,
    bucket: str | None,
    package: str | None,
    wanted: Wanted,
    alarm_topic: str | None,
    dry_run: bool,
    yes: bool,
    accept_loss: bool,
    stack: str | None,
    region: str | None,
    endpoint: str | None,
    rollout: Rollout,
    choices: stack_options.Choices,
) -> Answer:
    """Deploy an app to AWS with a CloudFormation change set.

    Packs the functions' zip (or takes --package), uploads it under its hash, makes a change set and shows it: what is added,
    modified, replaced, removed, and what would be lost. If you agree, it is executed and followed. If something fails,
    CloudFormation rolls back; the first failure is named, with what to do.
    """
    if render.is_quiet() and not (yes or dry_run):
        raise click.UsageError("--json asks no questions: add --yes or --dry-run.")
    plan = stack_options.planned(app, choices)
    if not (yes or dry_run or sys.stdin.isatty()):
        raise UsageError(
            "deploy asks before it changes anything, and standard input is not a terminal.",
            meaning="Nothing was changed.",
            todo="Add --yes, or --dry-run to change nothing.",
        )
    stack_options.report_notes(plan)
    location = location_of(plan, target.load(plan.target).url, region=region, stack=stack, endpoint=endpoint)
    deployment = deployment_of(plan, choices, location, rollout)
    plan = deployment.plan
    deployment.check(bucket, alarm_topic)
    if deployment.notifies_nobody(alarm_topic):
        said = f"{counted(len(plan.alarms), 'alarm')} and no target"
        render.note(f"! {said}: give --alarm-topic ARN, --topic or --slack.")
    code: Uploaded | None = None
    if plan.functions:
        assert bucket is not None
        path, sha256 = _package(plan, package, wanted)
        code = deployment.upload(path, sha256, bucket, render.note)
    change_set = deployment.prepare(code, bucket, alarm_topic, render.note)
    if change_set is None:
        return _nothing(deployment)
    if not render.is_quiet():
        _draw_changes(change_set)
    try:
        agreed = not dry_run and _agreed(change_set, yes=yes, accept_loss=accept_loss)
    except BaseException:
        deployment.discard(change_set)
        raise
    if not agreed:
        deployment.discard(change_set)
        return Answer({"stack": location.stack, "changes": change_set.changes, "deployed": None}, draw=_draw_dry)
    try:
        done = deployment.execute(change_set, _follower(change_set))
    except KeyboardInterrupt:
        render.note(
            f"CloudFormation continues by itself. To see how it ends: aws cloudformation describe-stack-events"
            f" --stack-name {location.stack}"
        )
        raise
    value = {"stack": location.stack, "changes": change_set.changes, "deployed": done}
    return Answer(value, draw=lambda: _draw_end(done), code=0 if done.ok else FAILED)


def deployment_of(
    plan: DeployPlan, choices: stack_options.Choices, location: DeployLocation, rollout: Rollout
) -> Deployment:
    """A deployment of the plan; a table that has records keeps their layout unless another one was asked for."""
    deployment = Deployment(plan, location, clock=SystemClock(), entropy=SystemEntropy(), rollout=rollout)
    click.get_current_context().call_on_close(deployment.close)
    if plan.table is None or choices["layout"]:
        return deployment
    is_open, has = stack_options.leaves_layout_open(plan.target, choices), deployment.layout()
    if plan.stack.layout == 1 and has is None:
        render.note("! The app's URL names no layout, which means layout 1. The table is new: add layout=2 to the URL.")
    if is_open and has == 1:
        deployment.plan = stack_options.planned(plan.target, {**choices, "layout": "1"})
        moves = f"onefold records migrate dynamodb://{location.region}/{plan.table}"
        render.note(f"! The records in table {plan.table} keep layout 1. To move them to layout 2: {moves}")
    return deployment


def _package(plan: DeployPlan, package: str | None, wanted: Wanted) -> tuple[Path, str]:
    if package is not None:
        return Path(package), hash_of(Path(package))
    built = build(plan.target, None, wanted, records=plan.stack.records)
    for warning in built.warnings:
        render.note(f"! {warning}")
    return Path(built.path), built.sha256


def _nothing(deployment: Deployment) -> Answer:
    stack = deployment.location.stack
    now = deployment.state()
    done = Deployed(stack=stack, status=now.status, ok=True, outputs=now.outputs)
    return Answer(
        {"stack": stack, "changes": [], "deployed": done},
        draw=lambda: render.line(f"No changes: stack {stack} ({now.status}) is as the app declares it."),
    )


# -- asking ----------------------------------------------------------------------------------------------------------


def _agreed(change_set: ChangeSet, *, yes: bool, accept_loss: bool) -> bool:
    lost = change_set.losses
    if yes and lost and not accept_loss:
        raise UsageError(
            f"This deployment would lose what is in {counted(len(lost), 'resource')}: {'; '.join(lost)}.",
            meaning="--yes does not cover that; nothing was changed.",
            todo="Undo the change, drain the queue first, or add --accept-loss.",
        )
    if yes:
        return True
    question = "Deploy, and lose what is listed above?" if lost else "Deploy these changes?"
    return click.confirm(question, default=False, err=True)


# -- drawing ---------------------------------------------------------------------------------------------------------


def _draw_changes(change_set: ChangeSet) -> None:
    from rich.text import Text

    columns = [
        Column("change"),
        Column("resource", folds=True),
        Column("type", folds=True),
        Column("properties", folds=True),
    ]
    drawn = render.table(columns, ())
    for one in change_set.changes:
        word, style = _word(one)
        drawn.add_row(
            Text(word, style=style),
            one.logical_id,
            one.type.removeprefix("AWS::"),
            ", ".join(one.properties) or render.NOTHING,
        )
    render.draw(drawn)
    for one in change_set.changes:
        if one.lost is not None:
            render.line(f"! {one.lost}", "red")
        elif one.kept_outside:
            render.line(f"! {one.logical_id} leaves the stack and is kept: nothing works on it any more", "yellow")


def _word(one: ResourceChange) -> tuple[str, str]:
    if one.action == "Modify" and one.replacement == "yes":
        return "REPLACE", "bold red"
    if one.action == "Modify" and one.replacement == "maybe":
        return "may replace", "red"
    return _ACTIONS.get(one.action, (one.action, ""))


def _follower(change_set: ChangeSet) -> Any:
    """Returns what draws each event on one line, with how many of the resources are done."""
    wanted = {one.logical_id for one in change_set.changes}
    done: set[str] = set()
    quiet = render.is_quiet()

    def on_event(event: StackEvent) -> None:
        if event.logical_id in wanted and event.status.endswith("_COMPLETE"):
            done.add(event.logical_id)
        if quiet:
            return
        style = "red" if "FAILED" in event.status or "ROLLBACK" in event.status else ""
        counter = f"{len(done)}/{len(wanted)}"
        reason = f"  {event.reason}" if event.reason and event.status.endswith("_FAILED") else ""
        click.secho(
            f"{render.clock_time(event.at_ms)[:8]}  {counter:>7}  {event.status:<28} {event.logical_id}{reason}",
            err=True,
            fg=style or None,
        )

    return on_event


def _draw_dry() -> None:
    render.line("Nothing was changed.")


def _draw_end(done: Deployed) -> None:
    if done.ok:
        render.line(f"{done.stack} is {done.status}.", "green")
        for name, value in sorted(done.outputs.items()):
            render.line(f"  {name}  {value}")
        return
    render.line(f"{done.stack} is {done.status}: the deployment failed.", "red")
    if done.failure is not None:
        render.line(f"  first    {done.failure.logical_id} ({done.failure.type}) {done.failure.status}")
        render.line(f"  why      {done.failure.reason}")
        render.line(f"  to do    {done.failure.todo}", "cyan")
    if done.todo:
        render.line(f"  stack    {done.todo}", "cyan")


# -- synth: the template --------------------------------------------------------------------------------------------


_WRITERS = {
    "cloudformation": (cloudformation.template, cloudformation.to_json),
    "yaml": (cloudformation.template, cloudformation.to_yaml),
    "terraform": (terraform.module, terraform.to_json),
    "key-policy": (key_policy.policy, key_policy.to_json),
}


@declared(
    "synth",
    example="onefold synth shop:app --prefix prod- > template.json\n"
    "onefold synth shop:app --format yaml\n"
    "onefold synth shop:app --format terraform --output infrastructure/main.tf.json",
)
@click.argument("app", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(list(_WRITERS)),
    default="cloudformation",
    show_default=True,
    help="CloudFormation as JSON or YAML, Terraform JSON, or the statements that the policy of --kms-key needs.",
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write it there.")
@stack_options.stack_options
def synth_command(app: str | None, form: str, output: Path | None, choices: dict[str, Any]) -> Answer:
    """Write an app's queues, functions, record table, roles and alarms as a template.

    The same app gives the same bytes. Sizes are computed: a queue's visibility timeout from its function's timeout, and
    that from its jobs' timeouts. Standard error names declarations that AWS will not honour. Nothing is created;
    `onefold deploy` does that.
    """
    plan = stack_options.planned(app, choices)
    if output is not None and stack_options.leaves_layout_open(plan.target, choices):
        plan = stack_options.planned(plan.target, {**choices, "layout": _layout_in(output)})
    stack_options.report_notes(plan)
    as_value, as_text = _WRITERS[form]
    if output is None:
        return Answer(as_value(plan), draw=lambda: click.echo(as_text(plan), nl=False))
    text = as_text(plan) if form != "terraform" else _terraform(plan, output)
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}.", todo="Choose another file.") from error
    summary = {
        "output": str(output),
        "format": form,
        "stack": plan.name,
        "queues": [queue.settings.name for queue in plan.queues],
        "functions": [function.name for function in plan.functions],
        "table": plan.table,
        "alarms": len(plan.alarms),
        "notes": plan.notes,
    }
    return Answer(summary, draw=lambda: _draw_synth(summary))


def _layout_in(output: Path) -> str | None:
    """The layout of the file that is about to be replaced; None if there is none."""
    try:
        layout = written_layout(output.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return None if layout is None else str(layout)


def _terraform(plan: DeployPlan, output: Path) -> str:
    """The module's text; resources of the previous file that may hold data are kept."""
    try:
        before = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{output} exists and cannot be read as a Terraform module: {error}",
            meaning="Queues and tables that only the file has could not be kept.",
            todo="Choose another file, or move this one.",
        ) from error
    for one in terraform.module(plan, before).get("removed", ()):
        render.note(f"! {one['from']} is not in the app any more: it is kept, and Terraform forgets it.")
    for address in terraform.put_back(plan, before):
        render.note(f"! {address} was kept when it left the app: terraform import {address} ID before you apply.")
    return terraform.to_json(plan, before)


def _draw_synth(summary: dict[str, Any]) -> None:
    count = f"{len(summary['queues'])} queues, {len(summary['functions'])} functions, {summary['alarms']} alarms"
    render.line(f"{summary['output']}: {summary['format']} of {summary['stack']}: {count}.")
