"""`onefold diff`: what a deployment would change in the template, without making a change set.

Drawing only; comparing is `deploy/diff.py`'s. Never here: what a change does to a resource.
Invariant: exit code 0 means no difference, 1 differences, 2 that it could not be found out.
"""

from __future__ import annotations

import json
from typing import Any, Final

import click

from onefold.admin.deploying import Comparison, Deployment, location_of
from onefold.cli import render, stack_options, target
from onefold.cli.main import text_of
from onefold.cli.program import Answer, declared
from onefold.clock import SystemClock
from onefold.deploy.changes import Difference
from onefold.entropy import SystemEntropy
from onefold.errors import OnefoldError

DIFFERENT: Final = 1
FAILED: Final = 2
_VALUE_CHARS_MAX: Final = 100
_SIGNS: Final = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}


@declared("diff", example="onefold diff shop:app --prefix prod-\nonefold diff shop:app --json")
@click.argument("app", required=False)
@stack_options.placing
@stack_options.stack_options
def command(
    app: str | None, stack: str | None, region: str | None, endpoint: str | None, choices: stack_options.Choices
) -> Answer:
    """Show what differs between the deployed template and the one the app would be deployed with.

    By resource and property, both values. Nothing is changed, not even a change set is made; whether a resource would be
    replaced is shown by onefold deploy --dry-run. Exit codes here: 0 no difference, 1 differences, 2 an error.
    """
    try:
        plan = stack_options.planned(app, choices)
        place = location_of(plan, target.load(plan.target).url, region=region, stack=stack, endpoint=endpoint)
        deployment = Deployment(plan, place, clock=SystemClock(), entropy=SystemEntropy())
        click.get_current_context().call_on_close(deployment.close)
        compared = deployment.compare()
    except OnefoldError as error:
        return _failed(error)
    code = DIFFERENT if compared.differences else 0
    return Answer(compared, draw=lambda: _draw(compared), code=code)


def _failed(error: OnefoldError) -> Answer:
    """An error under this command's own exit code; elsewhere 1 is an error, and here a difference."""
    parts = {"code": error.code, "what": error.what, "meaning": error.meaning, "todo": error.todo}
    render.note(text_of(error))
    return Answer({"error": parts}, code=FAILED)


def _draw(compared: Comparison) -> None:
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
            render.line(f"{sign} {here}", style)  # type: ignore[arg-type]  # one of Style's words
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
