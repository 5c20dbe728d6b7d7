"""`onefold destroy`: deletes an app's stack; what holds data is shown first, and is kept unless it is disposable.

Never here: what is in a stack (`deploy/existing.py`), following it (`deploy/apply.py`). Invariant: nothing is deleted that
was not shown, and nothing that holds messages, records or events without explicit consent to that loss.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from onefold.admin.deploying import Contents, Deployment, location_of
from onefold.cli import render, stack_options, target
from onefold.cli.program import Answer, declared
from onefold.clock import SystemClock
from onefold.deploy.apply import Deployed, Rollout
from onefold.deploy.changes import StackEvent
from onefold.deploy.existing import Holder
from onefold.entropy import SystemEntropy
from onefold.errors import UsageError
from onefold.observe.wording import counted


@declared("destroy", example="onefold destroy shop:app --prefix test-\nonefold destroy shop:app --prefix test- --yes")
@click.argument("app", required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--accept-loss", is_flag=True, help="Delete even if messages, records or events are lost.")
@stack_options.role_option
@stack_options.placing
@stack_options.stack_options
def command(
    app: str | None,
    yes: bool,
    accept_loss: bool,
    role_arn: str | None,
    stack: str | None,
    region: str | None,
    endpoint: str | None,
    choices: stack_options.Choices,
) -> Answer:
    """Delete an app's stack.

    First shows which queues, tables and archives it has, how much each holds, and whether it is deleted or kept: they are
    kept unless the stack was deployed with --disposable. If something would be lost, it refuses without --accept-loss.
    What is kept no longer belongs to a stack; a later onefold deploy with the same names imports it again.
    """
    if render.is_quiet() and not yes:
        raise click.UsageError("--json asks nothing: add --yes.")
    plan = stack_options.planned(app, choices)
    location = location_of(plan, target.load(plan.target).url, region=region, stack=stack, endpoint=endpoint)
    rollout = Rollout(role_arn=role_arn)
    deployment = Deployment(plan, location, clock=SystemClock(), entropy=SystemEntropy(), rollout=rollout)
    click.get_current_context().call_on_close(deployment.close)
    found = deployment.contents()
    if not render.is_quiet():
        _draw(found)
    _check(found, accept_loss=accept_loss)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                "destroy asks before it deletes anything, and standard input is not a terminal.",
                meaning="Nothing was changed.",
                todo="Add --yes.",
            )
        if not click.confirm(f"Delete stack {found.stack}?", default=False, err=True):
            return Answer({"contents": found, "destroyed": None}, draw=lambda: render.line("Nothing was changed."))
    done = deployment.destroy(_follow)
    value = {"contents": found, "destroyed": done}
    return Answer(value, draw=lambda: _draw_end(done, found.holders), code=0 if done.ok else 1)


def _check(found: Contents, *, accept_loss: bool) -> None:
    if found.protected:
        raise UsageError(
            f"Stack {found.stack} has termination protection.",
            meaning="Somebody turned it on so that nobody deletes it by mistake; nothing was changed.",
            todo="Turn it off first: aws cloudformation update-termination-protection --no-enable-termination-protection"
            f" --stack-name {found.stack}",
        )
    if found.losses and not accept_loss:
        raise UsageError(
            f"This would lose what is in {counted(len(found.losses), 'resource')}: {'; '.join(found.losses)}.",
            meaning="The stack was deployed with --disposable; nothing was changed.",
            todo="Drain the queues first, deploy once without --disposable to keep them, or add --accept-loss.",
        )


def _draw(found: Contents) -> None:
    render.line(f"Stack {found.stack} ({found.status})")
    for one in found.holders:
        fate, style = ("kept", "green") if one.kept else ("deleted", "red")
        render.line(f"  {fate:<8} {one.name}: about {one.count or 0:,} {one.holds}", style)  # type: ignore[arg-type]
    render.line("  deleted  everything else: functions, roles, logs, alarms")


def _follow(event: StackEvent) -> None:
    if not render.is_quiet():
        render.note(f"{render.clock_time(event.at_ms)[:8]}  {event.status:<20} {event.logical_id}")


def _draw_end(done: Deployed, holders: Iterable[Holder]) -> None:
    if not done.ok:
        render.line(f"{done.stack} is {done.status}: it was not deleted.", "red")
        if done.failure is not None:
            render.line(f"  first    {done.failure.logical_id}: {done.failure.reason}")
        render.line(f"  to do    {done.todo or 'see its events'}", "cyan")
        return
    render.line(f"Stack {done.stack} is deleted.", "green")
    for one in holders:
        if one.kept:
            render.line(f"  stays    {one.name}: {_command(one)}")


def _command(one: Holder) -> str:
    """What deletes it."""
    return {
        "AWS::SQS::Queue": f"aws sqs delete-queue --queue-url {one.physical_id}",
        "AWS::DynamoDB::Table": f"aws dynamodb delete-table --table-name {one.name}",
        "AWS::Events::Archive": f"aws events delete-archive --archive-name {one.name}",
    }[one.type]
