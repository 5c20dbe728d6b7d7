"""The entry point of the command line: runs a command, and reports errors in a way that helps at 2 a.m.

An error is three lines on standard error: what happened, what it means, what to do. A traceback is shown only with
ONEFOLD_DEBUG=1. With --json the error is also the one JSON document on standard output. Exit codes: 0 fine; 1 error; 2 the
command itself was wrong; 3 a worker ended while runs were in flight; 130 interrupted. click and rich come with the extra
`cli` and are imported only when a command runs.
Never here: commands. Invariant: no exception leaves `run`, and nothing else decides an exit code.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from onefold import errors, extras, redact

if TYPE_CHECKING:
    import click

ERROR: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130  # 128 + SIGINT, as in shells
_ISSUES = "the project's issue tracker"


def main() -> None:
    """Run the command in `sys.argv` and end the process with its exit code."""
    while (missing := os.open(os.devnull, os.O_RDWR)) <= 2:  # else a socket could get the number of a closed stream
        pass
    os.close(missing)
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command, and return its exit code.

    Args:
        arguments: without the program's name.
    """
    wants_json = "--json" in arguments
    try:
        return _run(list(arguments))
    except errors.InvariantBroken as error:
        return _say(_defect(error), wants_json, error)
    except errors.OnefoldError as error:
        return _say(error, wants_json, error)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe has closed it, as with `| head`; nobody is left to report to
        _silence_output()
        return ERROR
    except OSError as error:
        full = _output_failed(error)
        if full is not None:
            _silence_output()
        return _say(full or _defect(error), wants_json, error)
    except Exception as error:  # noqa: BLE001 - the last line of defence: anything that comes here is a defect
        return _say(_damage(error) or _defect(error), wants_json, error)


def _run(arguments: list[str]) -> int:
    with extras.needed("The command line", "cli"):
        import click
        import rich  # noqa: F401 - imported here, so that its absence is reported before anything is done
    from onefold.cli.program import program

    try:
        code = program.main(arguments, prog_name="onefold", standalone_mode=False)
        sys.stdout.flush()  # here, where a closed pipe is still detected
    except click.UsageError as error:
        return _say_usage(error, "--json" in arguments)
    except click.ClickException as error:
        raise errors.UsageError(error.format_message(), todo="See the command's --help.") from error
    except click.Abort:
        raise KeyboardInterrupt from None
    return code if isinstance(code, int) else 0


# -- printing errors -------------------------------------------------------------------------------------------------


def text_of(error: errors.OnefoldError) -> str:
    """An error as text for people: up to three lines, one for each part."""
    lines = [f"error: {error.what}"]
    if error.meaning:
        lines.append(f"  meaning: {error.meaning}")
    if error.todo:
        lines.append(f"  to do: {error.todo}")
    return "\n".join(lines)


def _say(said: errors.OnefoldError, wants_json: bool, cause: BaseException) -> int:
    if os.environ.get("ONEFOLD_DEBUG") == "1":
        sys.stderr.write(redact.printable(redact.masked("".join(traceback.format_exception(cause)))))
    sys.stderr.write(redact.printable(text_of(said)) + "\n")
    if wants_json:
        _write_json(said)
    return ERROR


def _write_json(said: errors.OnefoldError) -> None:
    import msgspec

    parts = {"code": said.code, "what": said.what, "meaning": said.meaning, "todo": said.todo}
    shown = {name: redact.printable(text) for name, text in parts.items()}  # lone surrogates have no UTF-8 either
    try:
        sys.stdout.write(msgspec.json.encode({"error": shown}).decode() + "\n")
        sys.stdout.flush()
    except OSError:  # standard error has the error already
        _silence_output()


def _say_usage(error: click.UsageError, wants_json: bool) -> int:
    """The error for an invalid command line; click suggests similar option names, this adds command names."""
    import difflib

    import click

    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        sys.stderr.write(redact.printable(error.format_message()) + "\n")
        return USAGE
    if isinstance(error, click.NoSuchOption):  # click compares with the dashes, so that any short option is similar
        word, alike = error.option_name.lstrip("-"), error.possibilities or []
        near = [one for one in alike if difflib.get_close_matches(word, [one.lstrip("-")])]
        error = click.NoSuchOption(error.option_name, possibilities=near, ctx=error.ctx)
    where = error.ctx.command_path if error.ctx is not None else "onefold"
    todo = f"See `{where} --help`."
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        taken = " ".join(str(one.metavar) for one in error.ctx.command.params if isinstance(one, click.Argument))
        if named := next((name for name in ("KEY", "ID") if name in taken), None):
            todo += f" A {named} that begins with - stands behind two of them: {where} -- {named}"
    said = errors.UsageError(" ".join(error.format_message().split()), todo=todo)
    sys.stderr.write(redact.printable(text_of(said)) + "\n")
    if wants_json:
        _write_json(said)
    return USAGE


def _damage(error: BaseException) -> errors.StorageError | None:
    """The error for a stored value that cannot be read; None for other errors."""
    from msgspec import MsgspecError

    if not isinstance(error, MsgspecError | ValueError | OverflowError | TypeError | AttributeError):
        return None
    frames = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))
    if not any(f"{os.sep}onefold{os.sep}engines{os.sep}" in name for name in frames):
        return None
    return errors.StorageError(
        f"The database holds a value that cannot be read: {type(error).__name__}: {error}",
        meaning="It is damaged, or another program has written into it. Nothing was changed.",
        todo="Restore a copy. If no other program ever wrote there, run it again with ONEFOLD_DEBUG=1 to see the traceback,"
        f" and report that at {_ISSUES}.",
    )


def _output_failed(error: OSError) -> errors.UsageError | None:
    """The error for a standard output that cannot be written; None if something else failed."""
    last = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)][-1:]
    writers = [f"{os.sep}{name}{os.sep}" for name in ("rich", "click", f"onefold{os.sep}cli")]
    if error.filename is not None or not any(name in one for one in last for name in writers):
        return None
    return errors.UsageError(
        f"Standard output cannot be written: {error.strerror or error}.",
        meaning="Output is lost. If the command changes something, that may have been done.",
        todo="Make room where the output goes, and see what is there now before you run it again.",
    )


def _silence_output() -> None:
    """Drop what is still to be written, which Python would try again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _defect(error: BaseException) -> errors.InvariantBroken:
    where = ""
    if error.__traceback__ is not None:
        last = error.__traceback__
        while last.tb_next is not None:
            last = last.tb_next
        where = f" at {os.path.basename(last.tb_frame.f_code.co_filename)}:{last.tb_lineno}"
    what = error.what if isinstance(error, errors.OnefoldError) else f"{type(error).__name__}: {error}"
    return errors.InvariantBroken(
        f"{what}{where}",
        meaning="This is a defect of onefold, not of your input.",
        todo=f"Run it again with ONEFOLD_DEBUG=1 to see the traceback, and report that at {_ISSUES}.",
    )
