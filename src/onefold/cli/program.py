"""The tree of commands, and what all of them share: `--json`, help with an example, how a result becomes output.

A command is a function that calls `admin/` or `local/` and returns a plain value; with --json that value is the one JSON
document on standard output, otherwise it is rendered as text. A command is imported when it is called or its own help is
asked for, so that `onefold --help` and every other command start fast.
Never here: what a command does. Invariant: every command has a help text, an example and --json.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, Final

import click
import msgspec
from click.shell_completion import get_completion_class
from msgspec import Struct

import onefold
from onefold import redact
from onefold.cli.render import TARGET, copyable
from onefold.errors import OnefoldError, UsageError

# name -> (module, its attribute, one line of help)
COMMANDS: Final[Mapping[str, tuple[str, str, str]]] = {
    "worker": ("onefold.cli.commands.worker", "command", "Run an app's jobs until stopped."),
    "scheduler": ("onefold.cli.commands.scheduler", "command", "Send the ticks of an app's schedules."),
    "relay": ("onefold.cli.commands.outbox", "relay_command", "Pass on the messages of an app's outbox table."),
    "outbox": ("onefold.cli.commands.outbox", "command", "The outbox table in your own database: create."),
    "calendar": ("onefold.cli.commands.calendar", "command", "What schedules will fire, and with which keys."),
    "workers": ("onefold.cli.commands.workers", "command", "Workers: list them and what each runs; drain them."),
    "schedule": ("onefold.cli.commands.schedule", "command", "Schedules: list, run-now, pause, resume."),
    "send": ("onefold.cli.commands.jobs", "send", "Send one message to a job."),
    "status": (
        "onefold.cli.commands.status",
        "command",
        "What waits, how fast it is done, and what needs a person.",
    ),
    "runs": ("onefold.cli.commands.runs", "command", "Runs of schedules and map jobs: list, show, watch."),
    "counts": ("onefold.cli.commands.status", "counts", "What handlers counted, by day and job."),
    "why": ("onefold.cli.commands.why", "command", "What happened to a key, and what decided each step."),
    "reconcile": (
        "onefold.cli.commands.reconcile",
        "command",
        "Check that all of a run's work exists, once; repair what is missing.",
    ),
    "dlq": ("onefold.cli.commands.dlq", "command", "Dead letters: list, show, edit, redrive, purge."),
    "held": (
        "onefold.cli.commands.held",
        "command",
        "Unknown outcomes that wait for a person: list, show, settle.",
    ),
    "alarms": ("onefold.cli.commands.alarms", "command", "Alarms: list, history, silence, test."),
    "watch": ("onefold.cli.commands.alarms", "watch", "Evaluate an app's alarms, and send their reports."),
    "queue": ("onefold.cli.commands.queue", "command", "Queues: list, peek, purge, move, apply."),
    "check-payloads": (
        "onefold.cli.commands.jobs",
        "check_payloads",
        "Which messages a release could not run; for CI.",
    ),
    "names": ("onefold.cli.commands.jobs", "names_command", "Which app owns which job name: list, give."),
    "records": (
        "onefold.cli.commands.records",
        "records_command",
        "The table of records on DynamoDB: move it to layout 2.",
    ),
    "resume": (
        "onefold.cli.commands.jobs",
        "resume",
        "Resume a job that its circuit breaker has paused.",
    ),
    "stuck": ("onefold.cli.commands.status", "stuck", "Runs whose worker died or that take too long, each explained."),
    "events": ("onefold.cli.commands.events", "command", "Event buses: put, rules, patterns, archives, replays."),
    "map": ("onefold.cli.commands.map_", "command", "Map runs over a file: start, show, resume, redrive, stop."),
    "demo": ("onefold.demo.command", "demo", "25,943 real invoices under fire, each fulfilled once."),
    "web": ("onefold.cli.commands.web", "command", "A web page: look, redrive, edit and settle in a browser."),
    "mcp": ("onefold.cli.commands.mcp", "command", "Tools for an agent: look, and redrive and settle by plan."),
    "serve": ("onefold.cli.commands.serve", "command", "A local SQS, with Lambda event source mappings."),
    "check": (
        "onefold.cli.commands.check",
        "command",
        "Find what duplicates, loses or stops work in a template.",
    ),
    "lambda": ("onefold.cli.commands.lambda_", "command", "Run a Lambda function on a queue, as its mapping does."),
    "synth": (
        "onefold.cli.commands.deploy",
        "synth_command",
        "An app's infrastructure as CloudFormation or Terraform.",
    ),
    "package": ("onefold.cli.commands.deploy", "package_command", "The functions' zip, the same bytes every time."),
    "deploy": ("onefold.cli.commands.deploy", "command", "Put an app on AWS with a change set, shown and followed."),
    "destroy": ("onefold.cli.commands.destroy", "command", "Delete an app's stack, after showing what it holds."),
    "diff": ("onefold.cli.commands.diff", "command", "What a deployment would change in the template."),
    "cost": ("onefold.cli.commands.cost", "command", "What messages cost on AWS: calls, units, dollars."),
    "completion": ("onefold.cli.program", "completion", "Shell completion for bash, zsh or fish."),
}


class Answer(Struct, frozen=True):
    """The result of a command.

    Args:
        value: plain, for JSON.
        draw: renders it as text; None if there is nothing to render, or if it was printed already.
        code: exit code.
        said: with --json, the one document was printed before the command ended.
    """

    value: Any
    draw: Callable[[], None] | None = None
    code: int = 0
    said: bool = False


_EXIT_CODES = {
    "worker": "3 some runs were not\nfinished, ",
    "serve": "",
}


_COMMAND: Final = re.compile(r"`[^`]{1,60}`")
_UNBROKEN: Final = {ord("-"): "\u2011"}  # a hyphen at which click's text wrapper does not break


class _Formatter(click.HelpFormatter):
    """Wraps help at spaces only, and not inside a command, so that an option's name, a value or a command can be copied."""

    def write_text(self, text: str) -> None:
        commands = re.sub(_COMMAND, lambda found: "\u00a0".join(found[0].split()), text)
        super().write_text(commands.translate(_UNBROKEN))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(one, text.translate(_UNBROKEN)) for one, text in rows], col_max, col_spacing)

    def getvalue(self) -> str:
        return super().getvalue().replace(_UNBROKEN[ord("-")], "-").replace("\u00a0", " ")


class _Context(click.Context):
    formatter_class = _Formatter


class Command(click.Command):
    """A command with an example at the end of its help."""

    context_class = _Context

    def __init__(self, *args: Any, example: str, read_only: bool = False, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.example = example
        self.read_only = read_only

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; a command without --url says what it takes instead."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name != "--url" or not any("APP" in str(one.metavar) for one in self.params):
                raise
            path = ctx.command_path
            raise click.UsageError(
                f"{path} takes no --url: it needs an app (module:attribute), which opens its own URL, or the one in"
                f" ONEFOLD_URL. Write: {path} shop:app",
                ctx,
            ) from None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """Write the example, and the exit codes that all commands share."""
        formatter.write("\nExample:\n")
        for line in self.example.strip().splitlines():
            formatter.write(f"  {line.strip()}\n")
        formatter.write(
            f"\nExit codes: 0 success, 1 error, 2 wrong usage, {_EXIT_CODES.get(self.name or '', '')}130 interrupted.\n"
        )


def declared(
    name: str, *, example: str, read_only: bool = False, **settings: Any
) -> Callable[[Callable[..., Answer]], Command]:
    """Make a command from a function that returns an `Answer` or a plain value.

    Args:
        name: as typed. example: one or more command lines.
        read_only: it changes nothing, so read access is enough, and the app's declarations need not match existing queues.
        settings: for `click.command`.
    """

    def declare(function: Callable[..., Answer]) -> Command:
        def call(*args: Any, as_json: bool, **kwargs: Any) -> int:
            click.get_current_context().obj = {"json": as_json}
            try:
                answer = function(*args, **kwargs)
            except OnefoldError as error:
                words = click.get_current_context().meta.get(TARGET, "")
                error.meaning, error.todo = copyable(error.meaning, words), copyable(error.todo, words)
                raise
            if as_json and not answer.said:
                text = msgspec.json.format(msgspec.json.encode(answer.value), indent=2).decode()
                click.echo(redact.printable_json(text))
            elif not as_json and answer.draw is not None:
                answer.draw()
            return answer.code

        call.__name__ = function.__name__
        call.__doc__ = function.__doc__
        call.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]  # where click keeps them
        made = click.command(name, cls=Command, example=example, read_only=read_only, **settings)(call)
        made.params.append(
            click.Option(["--json", "as_json"], is_flag=True, help="One JSON document on standard output.")
        )
        return made

    return declare


class Group(click.Group):
    """A group of commands in the order of declaration; suggests a similar name for a misspelt one."""

    context_class = _Context

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        """In the order of declaration."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest the one that was probably meant."""
        word = args[0]
        if self.get_command(ctx, word) is None and not word.startswith("-"):
            names = self.list_commands(ctx)
            near = difflib.get_close_matches(word, names, n=1)
            meant = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(names)}."
            raise click.UsageError(f"There is no command {word!r}. {meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """List the commands with their complete first sentence."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(limit=200)) for name, one in self.commands.items()])


class Program(Group):
    """All commands, each imported at first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        """The commands in the order in which people need them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        found: click.Command = getattr(import_module(module), attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


def _version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"onefold {onefold.__version__}")
        context.exit()


program = Program(
    "onefold",
    help="Background jobs that take effect once, however often they are delivered.\n\n"
    "Most commands take an APP as module:attribute (or ONEFOLD_APP), or --url with an engine (or ONEFOLD_URL); with "
    "neither, the only database in ./.onefold is used.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_version,
            help="Show the version.",
        )
    ],
    no_args_is_help=True,
)


_VARIABLE = "_ONEFOLD_COMPLETE"


@declared(
    "completion",
    example='eval "$(onefold completion bash)"                                  # in ~/.bashrc\n'
    "onefold completion fish > ~/.config/fish/completions/onefold.fish",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> Answer:
    """Print the script that completes onefold's commands and options in bash, zsh or fish."""
    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(f"There is no completion for {shell}.", todo="There is one for bash, zsh and fish.")
    script = kind(program, {}, "onefold", _VARIABLE).source()
    return Answer({"shell": shell, "script": script}, draw=lambda: click.echo(script))
