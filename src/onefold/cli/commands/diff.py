"""`onefold diff`: what a deployment would change in the template, what was changed by hand, and what it would strand.

Never here: what a difference (`deploy/changes.py`) or a stranded message is (`admin/stranding.py`). Invariants: nothing is
changed; exit code 0 means no difference, 1 differences, 2 an error.
"""

from __future__ import annotations

import json
from typing import Any, Final

import click
from msgspec.structs import replace

from onefold.admin.deploying import Comparison, Deployment, location_of
from onefold.admin.session import jobs_of
from onefold.admin.stranding import Stranding
from onefold.cli import render, stack_options, target
from onefold.cli.commands.deploy import deployment_of
from onefold.cli.commands.jobs import draw_stranded
from onefold.cli.main import text_of
from onefold.cli.program import Answer, declared
from onefold.deploy.apply import Rollout, StackDrift
from onefold.deploy.changes import Difference
from onefold.errors import OnefoldError
from onefold.observe.wording import counted

DIFFERENT: Final = 1
DIFF_FAILED: Final = 2
_VALUE_CHARS_MAX: Final = 100
_SIGNS: Final = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}


@declared("diff", example="onefold diff shop:app --prefix prod-\nonefold diff shop:app --json")
@click.argument("app", required=False)
@click.option("--drift", is_flag=True, help="Also show manual changes since the deployment; takes minutes.")
@click.option("--template-only", is_flag=True, help="Do not look at queues and records for what would be stranded.")
@stack_options.placing
@stack_options.stack_options
def command(
    app: str | None,
    drift: bool,
    template_only: bool,
    stack: str | None,
    region: str | None,
    endpoint: str | None,
    choices: stack_options.Choices,
) -> Answer:
    """Show what differs between the deployed template and the one the app would be deployed with.

    Shows both values by resource and property, and then what the deployment would strand: queues that leave the stack with
    messages in them, names under which the app has worked and that no job has any more, and messages that this release
    could not run (as onefold check-payloads). Nothing is changed, and no change set is made; onefold deploy --dry-run
    shows whether a resource would be replaced. Exit codes here: 0 no difference, 1 differences, 2 an error.
    """
    try:
        plan = stack_options.planned(app, choices)
        location = location_of(plan, target.load(plan.target).url, region=region, stack=stack, endpoint=endpoint)
        deployment = deployment_of(plan, choices, location, Rollout())
        compared = deployment.compare(drift=drift)
        if not template_only:
            compared = replace(compared, stranding=_stranding(deployment))
    except OnefoldError as error:
        return _diff_failed(error)
    code = DIFFERENT if compared.differences or compared.drift else 0
    return Answer(compared, draw=lambda: _draw_comparison(compared), code=code)


def _stranding(deployment: Deployment) -> Stranding | None:
    """What would be stranded; None if that is not known, which is reported, or if there is no stack yet."""
    app = target.load(deployment.plan.target)
    try:
        return deployment.stranding(jobs_of(app))
    except OnefoldError as error:
        render.note(f"! What a deployment would strand is not known: {error.what} {error.todo}")
        return None


def _diff_failed(error: OnefoldError) -> Answer:
    """An error with exit code 2, because for this command 1 means a difference."""
    parts = {"code": error.code, "what": error.what, "meaning": error.meaning, "todo": error.todo}
    render.note(text_of(error))
    return Answer({"error": parts}, code=DIFF_FAILED)


def _draw_drift(drift: tuple[StackDrift, ...]) -> None:
    if not drift:
        render.line("Nothing was changed manually since the deployment.")
    for one in drift:
        render.line(f"! {one.logical_id} ({one.type}) was {one.status.lower()} outside of CloudFormation", "red")
        for path, wanted, found in one.properties:
            render.line(f"    {path}: {wanted} -> {found}")


def _draw_comparison(compared: Comparison) -> None:
    if compared.drift is not None:
        _draw_drift(compared.drift)
    _draw_differences(compared)
    if compared.stranding is not None:
        _draw_stranding(compared.stranding)


def _draw_stranding(found: Stranding) -> None:
    """Draw what would be stranded; nothing if there is nothing."""
    for one in found.leaving:
        held = counted(one.messages, "message")
        kept = "It is kept, and nothing works on it" if one.kept else "It is deleted with them"
        render.line(f"! {one.queue} leaves the stack with {held}. {kept}.", "red")
    for one_job in found.survey.jobs:
        if one_job.unfit:
            where, held = f"{one_job.queue} ({one_job.place})", counted(one_job.count, "message")
            of = one_job.job or "no job"
            render.line(f"! {one_job.unfit:,} of {held} for {of} in {where} would not run.", "red")
    draw_stranded(found.survey)
    if found.is_nothing:
        return
    for queue, count in found.waiting.items():
        render.line(f"  {counted(count, 'message')} in {queue}: only a receive would show for which job.", "dim")
    if not found.survey.fits:
        render.line("  onefold check-payloads says more; give it the stack's EngineUrl as ONEFOLD_URL.", "cyan")


def _draw_differences(compared: Comparison) -> None:
    if not compared.differences:
        render.line(f"Stack {compared.stack} ({compared.status}) has the template the app would be deployed with.")
        return
    if compared.status == "ABSENT":
        render.line(f"There is no stack {compared.stack} yet: everything is new.")
    title = ""
    for one in compared.differences:
        sign, style = _SIGNS[one.kind]
        here = " ".join(part for part in (one.section, one.name, one.type and f"({one.type})") if part)
        if not one.path:
            render.line(f"{sign} {here}", style)  # type: ignore[arg-type]  # one of Style's literals
            title = ""
            continue
        if here != title:
            render.line(f"~ {here}", "yellow")
            title = here
        render.line(f"    {sign} {one.path}: {_values(one)}", style)  # type: ignore[arg-type]
    counts = {kind: sum(one.kind == kind for one in compared.differences) for kind in _SIGNS}
    render.line()
    render.line(", ".join(f"{count} {kind}" for kind, count in counts.items() if count), "bold")


def _values(one: Difference) -> str:
    if one.kind == "added":
        return _text(one.after)
    if one.kind == "removed":
        return _text(one.before)
    return f"{_text(one.before)} -> {_text(one.after)}"


def _text(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _VALUE_CHARS_MAX else f"{text[: _VALUE_CHARS_MAX - 3]}..."
