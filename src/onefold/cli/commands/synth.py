"""`onefold synth`: an app's infrastructure as CloudFormation or Terraform, written and nothing else.

Never here: what is in it (`deploy/`). Invariant: no AWS call is made, and without --output nothing but the template goes to
standard output.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onefold.cli import render, stack_options
from onefold.cli.program import Answer, declared
from onefold.deploy import cloudformation, terraform
from onefold.errors import UsageError

_WRITERS = {
    "cloudformation": (cloudformation.template, cloudformation.to_json),
    "yaml": (cloudformation.template, cloudformation.to_yaml),
    "terraform": (terraform.module, terraform.to_json),
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
    help="CloudFormation as JSON or YAML, or Terraform JSON.",
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write it there.")
@stack_options.stack_options
def command(app: str | None, form: str, output: Path | None, choices: dict[str, Any]) -> Answer:
    """Write an app's queues, functions, record table, roles and alarms as a template.

    The same app gives the same bytes. Sizes are worked out: a queue's visibility timeout from its function's timeout, that
    from its jobs' timeouts. What is declared and AWS will not do is said on standard error. Nothing is created;
    `onefold deploy` does that.
    """
    plan = stack_options.planned(app, choices)
    stack_options.report_notes(plan)
    as_value, as_text = _WRITERS[form]
    if output is None:
        return Answer(as_value(plan), draw=lambda: click.echo(as_text(plan), nl=False))
    try:
        output.write_text(as_text(plan), encoding="utf-8")
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
    return Answer(summary, draw=lambda: _say(summary))


def _say(summary: dict[str, Any]) -> None:
    count = f"{len(summary['queues'])} queues, {len(summary['functions'])} functions, {summary['alarms']} alarms"
    render.line(f"{summary['output']}: {summary['format']} of {summary['stack']}: {count}.")
