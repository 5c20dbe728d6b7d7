"""The options that select dead letters, and finding them; and how a forecast is worded.

Never here: which dead letters match a selection (`admin/dead_letters.py`).
Invariant: a command that changes something names what it changes, or says --all.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import click
import msgspec

from onefold import duration
from onefold.admin import dead_letters
from onefold.admin.dead_letters import Select
from onefold.admin.reading import ExpectedOutcome
from onefold.admin.settling import HeldSelect
from onefold.cli import options, target
from onefold.contracts.admin import Peeked
from onefold.contracts.queue import REASONS
from onefold.errors import NotFoundError, UsageError

F = TypeVar("F", bound=Callable[..., Any])

OUTCOMES: Final[dict[ExpectedOutcome, str]] = {
    "run": "would run.",
    "answered": "would be answered.",
    "waits": "would wait.",
    "unknown": "is uncertain.",
    "held": "would be held.",
    "conflict": "would fail again.",
    "malformed": "would fail again.",
    "comes-back": "would fail again.",
    "no-job": "would wait for a worker that knows its job.",
}


_REASONS: Final = (*REASONS, "none")  # none: the message has no reason


def selecting(function: F) -> F:
    """Add the options that select dead letters; the function gets them as `select`."""

    def call(*args: Any, **given: Any) -> Any:
        names = ("queue", "reason", "error", "job", "key", "group", "older_ms", "newer_ms", "contains", *_SHARED)
        select = _with(Select(**{name: given.pop(name) for name in names}), given.pop("where"))
        if select.reason is not None and select.reason not in _REASONS:
            near = difflib.get_close_matches(select.reason, _REASONS, n=1)
            meant = f" Did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"There is no reason {select.reason!r}.{meant} There are: {', '.join(_REASONS)}.")
        return function(*args, select=select, **given)

    call.__name__, call.__doc__ = function.__name__, function.__doc__
    call.__click_params__ = list(getattr(function, "__click_params__", []))  # type: ignore[attr-defined]  # click's own place
    decorated: Any = call
    for option in reversed(
        [
            click.option("--queue", metavar="NAME", help="Of this queue, or in this dead-letter queue."),
            click.option(
                "--reason",
                metavar="KIND",
                help="permanent, attempts, conflict, malformed, quarantine, receives ...",
            ),
            click.option("--error", metavar="CLASS", help="Class of the exception; * and ? match anything."),
            click.option("--job", metavar="NAME", help="Of this job."),
            click.option("--key", metavar="KEY", help="With this business key; * and ? match anything."),
            click.option("--group", metavar="GROUP", help="Of this FIFO group; * and ? match anything."),
            click.option(
                "--older",
                "older_ms",
                type=options.DURATION,
                help="Failed at least this long ago, for example 2h.",
            ),
            click.option("--newer", "newer_ms", type=options.DURATION, help="Failed at most this long ago."),
            click.option("--contains", metavar="TEXT", help="Whose body contains this text."),
            *_shared_options(),
        ]
    ):
        decorated = option(decorated)
    return cast(F, decorated)


_SHARED: Final = ("run", "tenant", "fingerprint")
_IN_MS: Final = {"older": "older_ms", "newer": "newer_ms"}


def _shared_options() -> list[Callable[[F], F]]:
    return [
        click.option("--run", metavar="RUN", help="Of this run; * and ? match anything."),
        click.option("--tenant", metavar="NAME", help="Of this tenant; * and ? match anything."),
        click.option("--fingerprint", metavar="ID", help="Whose failure has a fingerprint that begins with this."),
        click.option(
            "--where",
            metavar="FIELD=VALUE",
            multiple=True,
            help="Same as the option: --where job=pay --where older=2h. All conditions must hold.",
        ),
    ]


S = TypeVar("S", Select, HeldSelect)


def _with(select: S, conditions: tuple[str, ...]) -> S:
    """A selection with the conditions of `--where`."""
    fields = {
        next((short for short, name in _IN_MS.items() if name == one), one): one
        for one in select.__struct_fields__
        if one != "ids"
    }
    found: dict[str, Any] = {}
    for condition in conditions:
        name, sign, value = condition.partition("=")
        field = fields.get(name.strip())
        if not sign or field is None:
            near = difflib.get_close_matches(name.strip(), fields, n=1)
            meant = f" Did you mean {near[0]}=...?" if near and sign else ""
            raise click.UsageError(
                f"--where {condition!r} is not a condition.{meant} Write FIELD=VALUE; fields: {', '.join(fields)}."
            )
        if field in found or getattr(select, field) is not None:
            raise click.UsageError(f"{name.strip()} is given twice; only one value is possible.")
        found[field] = value if field not in _IN_MS.values() else _read_ms(name.strip(), value)
    return msgspec.structs.replace(select, **found)


def _read_ms(field: str, value: str) -> int:
    try:
        return duration.to_ms(value, field)
    except UsageError as error:
        raise click.UsageError(f"--where: {error.what} {error.todo}") from error


def selecting_held(function: F) -> F:
    """Add the options that say which held operations are meant; they arrive as one `select`."""

    def call(*args: Any, **given: Any) -> Any:
        names = ("queue", "error", "job", "older_ms", "newer_ms", *_SHARED)
        return function(
            *args, select=_with(HeldSelect(**{name: given.pop(name) for name in names}), given.pop("where")), **given
        )

    call.__name__, call.__doc__ = function.__name__, function.__doc__
    call.__click_params__ = list(getattr(function, "__click_params__", []))  # type: ignore[attr-defined]  # click's own place
    decorated: Any = call
    for option in reversed(
        [
            click.option("--queue", metavar="NAME", help="Of this queue, or in this held queue."),
            click.option("--error", metavar="CLASS", help="Class of the exception; * and ? match anything."),
            click.option("--job", metavar="NAME", help="Of this job."),
            click.option("--older", "older_ms", type=options.DURATION, help="Held at least this long, for example 2h."),
            click.option("--newer", "newer_ms", type=options.DURATION, help="Held at most this long."),
            *_shared_options(),
        ]
    ):
        decorated = option(decorated)
    return cast(F, decorated)


def chosen(
    words: tuple[str, ...], url: str | None, select: Select, *, everything: bool
) -> tuple[target.Target, list[Peeked], Select]:
    """The dead letters that a command's arguments and options select, at least one, and how they select them.

    Raises:
        NotFoundError: none matches.
    """
    app, ids = target.split_ids(words)
    wanted = msgspec.structs.replace(select, ids=ids)
    if wanted.is_empty() and not everything:
        raise click.UsageError("Say which dead letters: ids, conditions such as --reason, or --all.")
    found = target.find(app, url)
    messages = list(dead_letters.find(found.session, wanted))
    if not messages:
        raise NotFoundError(
            "No dead letter matches.", meaning="Nothing was changed.", todo="See `onefold dlq list --all`."
        )
    return found, messages, wanted


def one(words: tuple[str, ...], url: str | None, select: Select) -> tuple[target.Target, Peeked]:
    """The one dead letter that a command's arguments and options select, with its target.

    Raises:
        NotFoundError: none matches. UsageError: several do.
    """
    app, ids = target.split_ids(words)
    wanted = msgspec.structs.replace(select, ids=ids)
    if wanted.is_empty():
        raise click.UsageError("Say which message: its id, or conditions such as --key.")
    found = target.find(app, url)
    return found, dead_letters.one_of(found.session, wanted)
