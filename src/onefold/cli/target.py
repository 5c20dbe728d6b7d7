"""Which engine a command works on: an app (`module:attribute`), a URL, or what the environment or the folder names.

An app is imported with the current folder on the path, as `python -m` does. Each way this can fail has its own error: no
module, a module whose import fails (with its error and line), a missing attribute, an attribute that is not an app.
Never here: opening an engine by other means than the app's runtime or `admin/session.py`.
Invariant: an argument is taken for an app only if it has the form of one.
"""

from __future__ import annotations

import difflib
import getpass
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import click

from onefold.admin import queues
from onefold.admin.session import AdminSession, jobs_of, open_session
from onefold.app import App
from onefold.cli import render
from onefold.engines.composite import NoQueues
from onefold.engines.urls import SERVERS, is_records_alone
from onefold.errors import NotFoundError, OnefoldError, UsageError
from onefold.observe.wording import with_target
from onefold.redact import masked, shown_url

F = TypeVar("F", bound=Callable[..., Any])

_URL = re.compile(r"(?:sqlite|aws|dynamodb|rediss?|postgres(?:ql)?)://")
_ANY_URL = re.compile(r"([A-Za-z][\w+.-]*)://")
_URLS = "sqlite:///PATH, aws://REGION, dynamodb://REGION/TABLE, redis://HOST/0, postgresql://HOST/DATABASE"
_DATABASES = (".db", ".sqlite", ".sqlite3")
_FORM = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_MEMORY = "sqlite://:memory:"


def by_url(function: F) -> F:
    """Add --url, for commands that need no app and look at queues."""
    text = "An engine instead of an app: sqlite:///.onefold/shop.db, aws://REGION"
    return click.option("--url", metavar="URL", help=text)(function)


def by_store_url(function: F) -> F:
    """Add --url, for commands that need no app, and for which a store for records will do."""
    text = "An engine or store instead of an app: sqlite:///.onefold/shop.db, redis://HOST/0"
    return click.option("--url", metavar="URL", help=text)(function)


def is_app(word: str) -> bool:
    """Whether an argument has the form of a target: an app (module:attribute), or a URL."""
    return _FORM.fullmatch(word) is not None or is_url(word)


def is_url(word: str) -> bool:
    """Whether an argument has the form of an engine's or a store's URL."""
    return _URL.match(word) is not None


def split(
    words: Sequence[str], wanted: int, *, names: str, url: str | None = None, form: str = ""
) -> tuple[str | None, list[str]]:
    """Separate the app from the other arguments of a command.

    Args:
        words: as typed. wanted: how many arguments besides an app.
        names: the names of those arguments, for the error, for example "KEY".
        url: the value of --url, if the command has it; then no argument can be an app.
        form: what such an argument looks like, for the error.

    Raises:
        click.UsageError: too few or too many arguments, or an app or a URL instead of another argument.
        UsageError: an argument that was meant as an app or a URL and is neither.
    """
    if len(words) == wanted:
        for word in words:
            if is_url(word) or (url is None and _FORM.fullmatch(word) and _is_file_here(word.partition(":")[0])):
                kind = "the URL of an engine or store" if is_url(word) else "an app"
                shown = shown_url(word).strip("'") if is_url(word) else word
                example = f"{click.get_current_context().command_path} {names} {shown}"
                raise click.UsageError(
                    f"{names} is missing{form and f' ({form})'}: {shown} is {kind}. Write: {example}"
                )
        return None, list(words)
    if not wanted and len(words) == 1:
        return words[0], []
    if len(words) == wanted + 1:
        forms = [index for index, word in enumerate(words) if is_app(word)]
        there = [index for index in forms if is_url(words[index]) or _is_module(words[index].partition(":")[0])]
        chosen = there or forms
        if chosen:
            index = chosen[-1]
            return words[index], [word for other, word in enumerate(words) if other != index]
        if names and url is None:
            raise not_a_target(words[-1])
    if wanted == 1 and not words:
        path = click.get_current_context().command_path
        raise click.UsageError(f"{names} is missing{form and f' ({form})'}. Write: {path} {names} [APP]")
    asked = f"{names} and perhaps an app" if names else "at most an app (module:attribute)"
    raise click.UsageError(f"This command takes {asked}; it was given {' '.join(words) or 'nothing'}.")


def not_a_target(word: str, *, nor: str = "") -> UsageError:
    """The error for an argument that should be an app or a URL, with a suggestion.

    Args:
        nor: what else it could have been and is not, for example "a date".
    """
    meaning = f"URLs are {_URLS}."
    stem, _, attribute = word.partition(":")
    todo = f"Write an app, for example {stem if stem.isidentifier() else 'shop'}:app, or such a URL."
    scheme = _ANY_URL.match(word)
    if scheme is not None:
        todo = "Write an app, for example shop:app, or such a URL."
        what = f"{shown_url(word)}: there is no engine or store {scheme[1]!r}"
        return UsageError(f"{what}{f', and it is not {nor}' if nor else ''}.", meaning=meaning, todo=todo)
    if stem.endswith(".py"):
        todo = f"Did you mean {'.'.join(Path(stem).with_suffix('').parts)}:{attribute or 'app'}?"
    elif word.endswith(_DATABASES) or Path(word).is_file():
        todo = f"Did you mean sqlite:///{word.removeprefix('sqlite:')}?"
    elif _is_module(stem) and stem.isidentifier():
        todo = f"Did you mean {stem}:app?"
    shown = shown_url(word) if "@" in word or "//" in word or stem in SERVERS else repr(word)
    what = f"{shown} is neither an app (module:attribute) nor the URL of an engine or store"
    return UsageError(f"{what}{f', nor {nor}' if nor else ''}.", meaning=meaning, todo=todo)


def _needs_app(url: str) -> UsageError:
    path = click.get_current_context().command_path
    shown = shown_url(url).strip("'")
    return UsageError(
        f"{path} needs an app, and {shown} is the URL of an engine or store.",
        meaning="What is declared (jobs, queues, schedules) is in the app; a URL has none of it.",
        todo=f"Name the app: {path} shop:app. It opens its own URL, or the one in ONEFOLD_URL.",
    )


def split_ids(words: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Separate the app from message ids, which have no colon."""
    apps = [word for word in words if is_app(word)]
    if len(apps) > 1:
        raise click.UsageError(f"More than one app was given: {', '.join(apps)}.")
    return (apps[0] if apps else None), tuple(word for word in words if word not in apps)


def _is_module(name: str) -> bool:
    _find_here()
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _is_file_here(module: str) -> bool:
    path = Path(*module.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def _find_here() -> None:
    if sys.path[:1] != [os.getcwd()]:
        sys.path.insert(0, os.getcwd())


# -- opening ---------------------------------------------------------------------------------------------------------


class Target:
    """The target of a command.

    Attributes:
        app: None if only a URL is known.
        words: the target's form on a command line; empty if it comes from the environment or the folder.
        unfinished: handlers still run in this process when the command ends.
    """

    def __init__(self, app: App | None, url: str | None, words: str) -> None:
        self.app = app
        self.words = words
        self.unfinished = False
        self._url = url
        self._session: AdminSession | None = None
        if app is not None:
            click.get_current_context().call_on_close(lambda: app.close(unfinished=self.unfinished))

    @property
    def session(self) -> AdminSession:
        """The engine, opened at first use."""
        if self._session is None:
            context = click.get_current_context()
            asked = context.params.get("dry_run") or context.params.get("read_only")
            read_only = bool(getattr(context.command, "read_only", False) or asked)
            jobs = jobs_of(self.app) if self.app is not None else None
            if self.app is not None and not read_only:
                self._session = AdminSession(self.app.runtime(), actor=actor(), jobs=jobs)
                return self._session
            url = self.app.url if self.app is not None else self._url
            assert url is not None
            self._session = open_session(url, actor=actor(), jobs=jobs, read_only=read_only)
            context.call_on_close(self._session.close)
            if self.app is not None and context.command.name != "status":  # which shows it among its warnings
                for one in queues.drift(self._session, self.app.registry.queue_settings()):
                    render.note(f"! {one.text}")
                    render.note(f"  {with_target('onefold queue apply', self.words)}")
        return self._session


def find(app: str | None, url: str | None = None, *, records: bool = False) -> Target:
    """The target of a command, from its arguments, then the environment, then the folder.

    Args:
        app: module:attribute, or a URL.
        records: the command needs only records, so a store without queues will do.

    Raises:
        UsageError: both an app and a URL, an engine that only its own process can use, or a store without queues.
        NotFoundError: no target was given and none was found; the app cannot be found.
    """
    if app is not None and url is not None:
        raise UsageError(f"Both an app ({app}) and --url {shown_url(url)} were given.", todo="Give one of them.")
    if url is not None and not is_url(url):
        raise not_a_target(url)
    words = app or (f"--url {url}" if url is not None else "")
    if masked(words) != words:
        words = "--url URL"  # the one given has a secret, and commands are copied into tickets
    elif words:
        words = f"--url {shlex.quote(url)}" if url is not None else shlex.quote(words)
    click.get_current_context().meta[render.TARGET] = words
    if app is None and url is None:
        app = os.environ.get("ONEFOLD_APP")
    if app is not None and is_url(app):
        app, url = None, app
    if app is not None:
        loaded = load(app)
        _refuse_memory(loaded.url)
        return Target(loaded, None, words)
    url = url or os.environ.get("ONEFOLD_URL") or _only_here()
    _refuse_memory(url)
    if is_records_alone(url) and not records:
        NoQueues(url).refuse()
    return Target(None, url, words)


def find_app(app: str | None) -> Target:
    """The target of a command that needs an app; errors as `find`."""
    found = app or os.environ.get("ONEFOLD_APP")
    if found is None:
        raise click.UsageError("Name the app as module:attribute, for example shop:app, or set ONEFOLD_APP.")
    if is_url(found):
        raise _needs_app(found)
    return find(found)


def _refuse_memory(url: str) -> None:
    if url == _MEMORY:
        raise UsageError(
            f"The engine {url} lives inside one process.",
            meaning="No command can see it from outside.",
            todo="Use a file, for example App(..., url='sqlite:///.onefold/shop.db').",
        )


def _only_here() -> str:
    here = sorted(Path(".onefold").glob("*.db"))
    if len(here) == 1:
        return f"sqlite:///{here[0]}"
    found = (
        f"./.onefold holds {', '.join(path.name for path in here)}." if here else "There is no database in ./.onefold."
    )
    raise NotFoundError(
        "Which engine? Neither an app nor --url was given.",
        meaning=found,
        todo="Add an app (module:attribute) or --url sqlite:///PATH, or set ONEFOLD_APP or ONEFOLD_URL.",
    )


def actor() -> str:
    """The person who runs this command, as named in the ledger."""
    try:
        return f"person:{os.environ.get('SUDO_USER') or getpass.getuser()}"
    except (KeyError, OSError):
        return f"person:uid-{os.getuid()}"


def session_without_queues(found: Target, *, read_only: bool = False) -> AdminSession:
    """A session on the app's engine that does not change queues, to compare them with the declarations.

    Args:
        read_only: nothing will be changed, so read access is enough.

    Raises:
        NotFoundError: the engine does not exist yet.
    """
    assert found.app is not None
    session = open_session(found.app.url, actor=actor(), read_only=read_only)
    click.get_current_context().call_on_close(session.close)
    return session


# -- importing an app ------------------------------------------------------------------------------------------------


def load(target: str) -> App:
    """The app that `module:attribute` names.

    Raises:
        UsageError: another form, a URL, an attribute that is not an app, a module whose import fails.
        NotFoundError: the module or attribute does not exist.
    """
    module_name, colon, attribute = target.partition(":")
    if is_url(target):
        raise _needs_app(target)
    if not colon or not is_app(target):
        raise not_a_target(target)
    module = _module(module_name, target)
    found = getattr(module, attribute, None)
    if isinstance(found, App):
        found.registry.command_name = target
        return found
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    there = f"Apps in {module_name}: {', '.join(apps)}." if apps else f"{module_name} declares no app."
    if found is None:
        near = difflib.get_close_matches(attribute, apps, n=1) or apps[:1]
        raise NotFoundError(
            f"The module {module_name} has no attribute {attribute!r}.",
            meaning=there,
            todo=f"Did you mean {module_name}:{near[0]}?" if near else "Declare one: app = onefold.App(...).",
        )
    raise UsageError(
        f"{target} is a {type(found).__name__}, not an onefold.App.",
        meaning=there,
        todo=f"Did you mean {module_name}:{apps[0]}?" if apps else "Name the attribute that holds onefold.App(...).",
    )


def _module(name: str, target: str) -> ModuleType:
    _find_here()
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise _no_module(name, error.name, target) from None
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:  # the user's own code runs here and may raise anything
        raise _broken(name, error) from error


def _no_module(name: str, missing: str, target: str) -> NotFoundError:
    parent = Path(*missing.split(".")[:-1])
    files = {path.stem for path in parent.glob("*.py")} | {path.parent.name for path in parent.glob("*/__init__.py")}
    near = difflib.get_close_matches(missing.rpartition(".")[2], files, n=1, cutoff=0.75)
    prefix = missing.rpartition(".")[0]
    meant = f"{prefix}.{near[0]}" if prefix and near else near[0] if near else ""
    return NotFoundError(
        f"There is no module {missing!r}" + (f" (of {target})" if missing != name else "") + ".",
        meaning=f"It was looked for in {os.getcwd()} and among the installed packages.",
        todo=f"Did you mean {meant}:{target.partition(':')[2]}?"
        if near
        else "Run the command in the folder of the module.",
    )


def _broken(name: str, error: BaseException) -> UsageError:
    """The error of a module whose import raised, with the last line of the user's own code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if "site-packages" not in frame.filename and _HERE not in frame.filename]
    where = f"{own[-1].filename}, line {own[-1].lineno}" if own else name
    if isinstance(error, SyntaxError) and error.filename is not None:
        where = f"{error.filename}, line {error.lineno}"
    if isinstance(error, OnefoldError):  # onefold refused a declaration: its own error says best what to do
        return UsageError(f"{name} ({where}): {error.what}", meaning=error.meaning, todo=error.todo)
    line = f": {own[-1].line}" if own and own[-1].line and not isinstance(error, SyntaxError) else ""
    return UsageError(
        f"The module {name} cannot be imported: {type(error).__name__}: {error}",
        meaning=f"It was raised at {where}{line}",
        todo=f"Correct it; `python -c 'import {name}'` shows the whole traceback.",
    )


_HERE = str(Path(__file__).parents[1])
