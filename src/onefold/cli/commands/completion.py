"""`onefold completion`: the script that completes commands and options in a shell; click makes it.

Never here: what the completions are. Invariant: the script goes to standard output and nothing else does.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from onefold.cli.program import Answer, declared
from onefold.errors import UsageError

_VARIABLE = "_ONEFOLD_COMPLETE"


@declared(
    "completion",
    example='eval "$(onefold completion bash)"                                  # in ~/.bashrc\n'
    "onefold completion fish > ~/.config/fish/completions/onefold.fish",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> Answer:
    """Print the script that completes onefold's commands and options in bash, zsh or fish."""
    from onefold.cli.program import program

    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(f"There is no completion for {shell}.", todo="There is one for bash, zsh and fish.")
    script = kind(program, {}, "onefold", _VARIABLE).source()
    return Answer({"shell": shell, "script": script}, draw=lambda: click.echo(script))
