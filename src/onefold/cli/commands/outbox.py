"""`onefold outbox create`: the tables of an outbox; `onefold relay`: pass on what is in one.

A worker does what `relay` does for its app; the command is for apps whose workers are Lambda functions, and for a
separate relay process. SIGTERM or Ctrl-C ends it after the current batch.
Never here: the relay (`runtime/relay.py`). Invariant: a signal handler only sets a flag.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from onefold import errors
from onefold.admin import outbox as admin
from onefold.app import App
from onefold.cli import render, target
from onefold.cli.commands.scheduler import stopped_by_signals
from onefold.cli.program import Answer, Group, declared
from onefold.cli.render import line
from onefold.engines.urls import open_outbox
from onefold.observe.sinks import LogSink
from onefold.observe.wording import counted
from onefold.runtime.events import EVENTS, Event, Sinks
from onefold.runtime.relay import Relay, beside

if TYPE_CHECKING:
    from onefold.runtime.events import Sink


class Relayed(Struct, frozen=True):
    """What a relay did.

    Args:
        passed: messages that it passed on.
    """

    passed: int


class _Voice:
    """A sink that reports on standard error what a relay cannot do."""

    def emit(self, event: Event) -> None:
        """Say it."""
        render.note(f"warning: {EVENTS[event.name].text}: {event.detail.get('summary')}")


@declared("relay", example="onefold relay shop:app\nonefold relay shop:app --once")
@click.argument("words", metavar="[APP]", nargs=-1)
@click.option("--once", is_flag=True, help="Pass on what waits now, and end.")
@click.option("--log", type=click.Choice(["json", "plain"]), help="Events as log lines on standard error.")
def relay_command(words: tuple[str, ...], once: bool, log: str | None) -> Answer:
    """Pass on the messages of an app's outbox table to their queues, until stopped.

    Each worker of the app does this too; any number can run. The app's `outbox=`, or ONEFOLD_OUTBOX, names the database.
    """
    name, _ = target.split(words, 0, names="")
    found = target.find_app(name)
    assert found.app is not None
    app = found.app
    sinks: list[Sink] = [*app.sinks]
    sinks.append(_Voice() if log is None else LogSink(form="json" if log == "json" else "plain", stream=sys.stderr))
    relay = relay_of(app, sinks)
    if relay is None:
        raise errors.UsageError(
            f"App {app.name} names no outbox.",
            todo="Write onefold.App(..., outbox='postgresql://host/shop'), or set ONEFOLD_OUTBOX.",
        )
    if once:
        relay.check()
        relay.close()
    else:
        ended = threading.Event()
        with stopped_by_signals(ended.set):
            relay.run(ended)
    report = Relayed(relay.passed)
    return Answer(report, draw=lambda: line(f"passed on: {counted(report.passed, 'message')}"))


def relay_of(app: App, sinks: Sequence[Sink]) -> Relay | None:
    """The relay of an app's outbox; None if it names none."""
    if app.outbox is None:
        return None
    runtime = app.runtime()
    runtime.take_names_of(app.jobs)
    return Relay(runtime, open_outbox(app.outbox), Sinks(sinks))


def relaying(app: App, sinks: Sequence[Sink], *, until_empty: bool) -> AbstractContextManager[None]:
    """A relay beside a worker. `until_empty`: what waits in the outbox now is passed on first."""
    relay = relay_of(app, sinks)
    if relay is None:
        return nullcontext()
    if until_empty:
        relay.check()
    return beside(relay)


@click.group("outbox", cls=Group, help="The table in your own database for sends with connection=: create.")
def command() -> None:
    """Only a group."""


@declared(
    "create",
    example="onefold outbox create postgresql://owner@localhost/shop\n"
    "onefold outbox create postgresql://localhost/shop --print > migrations/0007_outbox.sql",
)
@click.argument("url", metavar="URL")
@click.option("--print", "prints", is_flag=True, help="Only show the SQL (for DynamoDB, CreateTable's arguments).")
def create(url: str, prints: bool) -> Answer:
    """Make the outbox tables that do not exist in PostgreSQL, a SQLite file or DynamoDB.

    On PostgreSQL they are made in the first schema of the role's search_path. A role that sends needs SELECT and INSERT on
    both; one whose workers pass messages on needs UPDATE and DELETE too.
    """
    made = admin.create(url, run=not prints)

    def draw() -> None:
        if prints:
            click.echo(made.sql, nl=False)
        else:
            line(f"onefold_outbox, version {made.version}, is in {made.url}")

    return Answer(made, draw=draw)


command.add_command(create)
