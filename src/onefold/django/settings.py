"""The OPTIONS of the backend in the setting TASKS: reads and checks them without opening anything.

Never here: tasks, sending. Invariant: settings without a problem of level error can be used.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode

from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from msgspec import Struct

from onefold import errors, redact
from onefold.app import App
from onefold.engines import urls
from onefold.engines.sqlite.file import inode, path_of

Way = Literal["join", "outbox", "on_commit", "now"]

_WAYS: Final = ("join", "on_commit", "now")
_KINDS: Final[Mapping[str, str]] = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "sqlite": "sqlite",
}  # of outboxes
_TAKES: Final[Mapping[str, tuple[type, ...]]] = {
    "app": (str,), "name": (str,), "url": (str,), "adopt": (bool,), "outbox": (bool, str), "database": (str,),
    "transaction": (str,), "queues": (dict,), "modules": (list, tuple), "keep_arguments": (bool,), "page": (str,),
}  # fmt: skip


class InMemoryError(ImproperlyConfigured):  # type: ignore[misc]  # Django ships no types
    """The database is in memory, as in most tests: everything except `enqueue` works."""


class DjangoOptions(Struct, frozen=True, kw_only=True):
    """What OPTIONS can contain.

    Args:
        app: an app of the project, as `module:attribute`, to whose jobs the tasks are added. It replaces `name`, `url`
            and `adopt`.
        name: the name of the app that is made if `app` is absent. url: the URL of its engine; by default ONEFOLD_URL.
        adopt: the engine is the SQLite file of `database`, to which onefold's tables are added.
        outbox: URL of the app's outbox; True: tables in the PostgreSQL `database`, which a migration creates.
        database: alias of the database in whose transactions tasks are enqueued.
        transaction: what `enqueue` does inside `atomic()`: `join` the transaction; send `on_commit`, which loses the
            task if the process dies between commit and send; or send `now`. By default `join` if possible, else
            `on_commit`.
        queues: options of `App.queue`, by the name of a queue in QUEUES.
        modules: modules that declare tasks, in addition to `tasks` of each installed app.
        keep_arguments: records keep the arguments of finished tasks, for `get_result`.
        page: path or URL at which the page of onefold is mounted, for a link in the admin.
    """

    app: str | None = None
    name: str = "django"
    url: str | None = None
    adopt: bool = False
    outbox: str | bool | None = None
    database: str = "default"
    transaction: Literal["join", "on_commit", "now"] | None = None
    queues: dict[str, dict[str, Any]] = {}
    modules: list[str] | tuple[str, ...] = ()
    keep_arguments: bool = True
    page: str | None = None


class Problem(Struct, frozen=True):
    """A problem with the settings of a backend. `number`: of the check that found it; W... is a warning."""

    number: str
    what: str
    todo: str

    def message(self, alias: str) -> checks.CheckMessage:
        """The problem as a message of `manage.py check`."""
        kind = checks.Warning if self.number.startswith("W") else checks.Error
        return kind(f"TASKS[{alias!r}]: {self.what}", hint=self.todo, id=f"onefold.{self.number}")


def options_of(given: Mapping[str, Any]) -> DjangoOptions:
    """OPTIONS as a value; unknown options and those of a wrong type are left out, and `problems` reports them."""
    return DjangoOptions(**{name: value for name, value in given.items() if name in _TAKES and _fits(name, value)})


def _fits(name: str, value: object) -> bool:
    kinds = _TAKES[name]
    if name == "transaction":
        return value in _WAYS
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def problems(given: Mapping[str, Any], queues: set[str]) -> list[Problem]:
    """Everything that keeps a backend with these settings from working, and warnings about them.

    Args:
        given: OPTIONS. queues: QUEUES.
    """
    found = list(_of_options(given))
    options = options_of(given)
    if not queues:
        found.append(
            Problem("E004", "QUEUES is empty: no queue would be made.", 'Name them, for example "QUEUES": ["default"].')
        )
    if found:
        return found
    if options.database not in connections:
        known = ", ".join(connections)
        return [Problem("E005", f"There is no database {options.database!r} in DATABASES.", f"It has {known}.")]
    try:
        app = make_app(options, queues)
    except ImproperlyConfigured as error:
        what, _, todo = str(error).partition(" To do: ")
        return [Problem("W004" if isinstance(error, InMemoryError) else "E006", what, todo)]
    found = []
    way = way_of(options, app)
    alias = options.database
    if way == "on_commit" and options.transaction == "join":
        found.append(
            Problem(
                "E009",
                f'OPTIONS["transaction"] is "join", and neither the engine nor an outbox is in database {alias!r}.',
                'Set "adopt": True (SQLite) or "outbox": True (PostgreSQL), or "transaction": "on_commit".',
            )
        )
    if way == "on_commit" and options.transaction is None:
        found.append(
            Problem(
                "W001",
                "Tasks that are enqueued inside atomic() are sent after the commit: the engine is not in database"
                f" {alias!r}. A process that dies between the two loses them.",
                'Set "adopt": True (SQLite) or "outbox": True (PostgreSQL), or "transaction": "on_commit" to accept it.',
            )
        )
    if not apps.is_installed("onefold.django"):
        found.append(
            Problem(
                "W002",
                "onefold.django is not in INSTALLED_APPS.",
                "Add it: the worker's command, the search for tasks.py and the migration of the outbox are there.",
            )
        )
    return found + _of_database(alias, way, app.outbox)


def _of_options(given: Mapping[str, Any]) -> list[Problem]:
    found = []
    for name, value in given.items():
        if name not in _TAKES:
            near = difflib.get_close_matches(str(name), _TAKES, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"It knows {', '.join(_TAKES)}."
            found.append(Problem("E001", f"OPTIONS has {name!r}, which is not an option.", hint))
        elif not _fits(name, value):
            kinds = " or ".join(_WAYS if name == "transaction" else [one.__name__ for one in _TAKES[name]])
            found.append(Problem("E002", f"OPTIONS[{name!r}] is {value!r:.80}.", f"It takes {kinds}."))
    unused = [name for name in ("name", "outbox") if given.get("app") and given.get(name)]
    if unused:
        found.append(
            Problem(
                "E003",
                f"OPTIONS has app, and {' and '.join(unused)}, which that app would not get.",
                "Give them to the onefold.App itself.",
            )
        )
    both = [name for name in ("app", "url", "adopt") if given.get(name)]
    if len(both) > 1:
        found.append(
            Problem("E003", f"OPTIONS has {' and '.join(both)}, which name the engine twice.", "Leave all but one out.")
        )
    if not both and not os.environ.get("ONEFOLD_URL"):
        found.append(
            Problem(
                "E003",
                "Nothing says where messages and records are.",
                'In OPTIONS set "adopt" to True for the SQLite file of the database, "url" or "app"; or set ONEFOLD_URL.',
            )
        )
    return found


def _of_database(alias: str, way: Way, outbox: str | None) -> list[Problem]:
    """Problems with enqueueing in the transactions of a database."""
    connection: Any = connections[alias]
    settings = connection.settings_dict.get("OPTIONS") or {}
    if connection.vendor == "sqlite" and way in ("join", "outbox") and "transaction_mode" not in settings:
        return [
            Problem(
                "W003",
                f"Database {alias!r} begins transactions that read first, and then cannot write when another process has.",
                'Set DATABASES[...]["OPTIONS"]["transaction_mode"] to "IMMEDIATE".',
            )
        ]
    if way == "outbox" and connection.vendor != _KINDS.get(scheme := (outbox or "").partition("://")[0]):
        return [
            Problem(
                "E010",
                f"Database {alias!r} is {connection.vendor}, and the app's outbox is in {scheme}.",
                "The outbox must be tables of the database in whose transactions tasks are enqueued.",
            )
        ]
    return []


# -- the app and the database that the settings name -----------------------------------------------------------------


def make_app(options: DjangoOptions, queues: set[str]) -> App:
    """The app that the settings name, with the queues of QUEUES declared; it is not opened.

    Raises:
        ImproperlyConfigured: the settings cannot work; the error says what to do.
    """
    try:
        app = _own_app(options) if options.app is None else _loaded(options.app)
        _check_urls(app)
        for name in sorted(queues):
            if not any(name in (known, known.removesuffix(".fifo")) for known in app.queues):
                app.queue(name, **options.queues.get(name, {}))
    except (errors.OnefoldError, TypeError) as error:
        todo = getattr(error, "todo", "") or "See the options of App.queue."
        raise wrong(str(getattr(error, "what", error)), todo) from error
    unknown = sorted(options.queues.keys() - queues)
    if unknown:
        raise wrong(f'OPTIONS["queues"] has {", ".join(unknown)}, which QUEUES does not have.', "Add it to QUEUES.")
    return app


def _own_app(options: DjangoOptions) -> App:
    url = engine_file(options) if options.adopt else options.url
    outbox = options.outbox if isinstance(options.outbox, str) else None
    if options.outbox is True:
        outbox = _outbox_url(options.database)
    return App(options.name, url=url, outbox=outbox)


def _check_urls(app: App) -> None:
    """Refuse URLs that no engine or outbox has; nothing is opened. Raises UsageError."""
    scheme, _, rest = app.url.partition("://")
    if scheme not in urls.ENGINES:
        raise errors.UsageError(
            f"{redact.shown_url(app.url)} is not an engine URL.", todo="Use a sqlite:/// or an aws:// URL."
        )
    if scheme == "sqlite":
        path_of(app.url, rest)
    else:
        urls.read_aws(app.url)
    if app.outbox is not None:
        urls.open_outbox(app.outbox).close()


def _loaded(target: str) -> App:
    module, _, attribute = target.partition(":")
    try:
        found: object = import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise wrong(f'OPTIONS["app"] is {target!r}: {error}.', "Write it as module:attribute.") from error
    if not isinstance(found, App):
        raise wrong(f'OPTIONS["app"] is {target!r}, a {type(found).__name__}.', "Name an onefold.App.")
    return found


def engine_file(options: DjangoOptions) -> str:
    """The URL of the engine in the database's SQLite file, under its current name (Django's test runner changes it).

    Raises:
        ImproperlyConfigured: the database is in memory, or is not SQLite.
    """
    connection: Any = connections[options.database]
    name = str(connection.settings_dict["NAME"])
    if connection.vendor != "sqlite":
        raise wrong(
            f'OPTIONS["adopt"] is for SQLite, and database {options.database!r} is {connection.vendor}.',
            'Set "url" for the queues, and for PostgreSQL "outbox": True.',
        )
    if ":memory:" in name or "mode=memory" in name:
        raise InMemoryError(
            f"Database {options.database!r} is in memory, where no worker would find its tasks: none can be enqueued."
            ' To do: In tests, set DATABASES[...]["TEST"] = {"NAME": "test.sqlite3"}, or another BACKEND in TASKS.'
        )
    return f"sqlite:///{os.path.abspath(name)}?adopt=yes"


def _outbox_url(alias: str) -> str:
    connection: Any = connections[alias]
    if connection.vendor != "postgresql":
        raise wrong(
            f'OPTIONS["outbox"] is True, and database {alias!r} is {connection.vendor}.',
            "Give it the URL of a database with outbox tables, or for SQLite set adopt.",
        )
    told = connection.settings_dict
    user, password, host = (str(told.get(name) or "") for name in ("USER", "PASSWORD", "HOST"))
    login = f"{quote(user, safe='')}{':' if password else ''}{quote(password, safe='')}{'@' if user else ''}"
    port = f":{told['PORT']}" if told.get("PORT") else ""
    name = quote(str(told["NAME"]), safe="")
    if host.startswith("/"):
        return f"postgresql://{login}{port}/{name}?{urlencode({'host': host})}"
    return f"postgresql://{login}{host}{port}/{name}"


def way_of(options: DjangoOptions, app: App) -> Way:
    """What `enqueue` does inside `atomic()`."""
    if options.transaction in ("on_commit", "now"):
        way: Way = options.transaction
        return way
    if is_in_database(options, app):
        return "join"
    return "outbox" if app.outbox is not None else "on_commit"


def is_in_database(options: DjangoOptions, app: App) -> bool:
    """Whether the app's engine is in the SQLite file of the database, so that one transaction can write to both."""
    connection: Any = connections[options.database]
    scheme, _, rest = app.url.partition("://")
    if connection.vendor != "sqlite" or scheme != "sqlite" or rest == ":memory:":
        return False
    name, path = str(connection.settings_dict["NAME"]), path_of(app.url, rest)
    return os.path.realpath(name) == os.path.realpath(path) or (inode(name) is not None and inode(name) == inode(path))


def wrong(what: str, todo: str) -> ImproperlyConfigured:
    """The error for settings that cannot work."""
    return ImproperlyConfigured(f"{what} To do: {todo}")
