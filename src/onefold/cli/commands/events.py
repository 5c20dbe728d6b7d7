"""`onefold events`: put, rules, why a pattern does not match, archives, replays. It only prints; see `admin/events.py`.

Invariant: only `put`, `replay`, `cancel` and `redeliver` change anything.
"""

from __future__ import annotations

import sys

import click

from onefold.admin import events as admin
from onefold.app import App
from onefold.cli import options, render, target
from onefold.cli.commands.jobs import read_file
from onefold.cli.program import Answer, Group, declared
from onefold.cli.render import Column, line, number
from onefold.events.bus import PutAnswer
from onefold.events.replay import Replay
from onefold.observe.wording import age, counted, one_line
from onefold.record.envelopes import time_text

command = Group(
    "events",
    help="Event buses: put, rules, test a pattern, archives, replays, what was not delivered.",
    no_args_is_help=True,
)

_bus = click.option("--bus", metavar="NAME", help="Which bus; by default the app's only one.")


def _target(words: tuple[str, ...], names: str = "") -> tuple[target.Target, list[str]]:
    app, rest = target.split(words, 1 if names else 0, names=names)
    return target.find_app(app), rest


def _app(words: tuple[str, ...], names: str = "") -> tuple[App, list[str]]:
    found, rest = _target(words, names)
    assert found.app is not None
    return found.app, rest


def _text(word: str) -> str:
    """JSON from the command line, from standard input (`-`), or from a file."""
    if word == "-":
        return sys.stdin.read()
    return word if word.lstrip()[:1] in ("{", "[") else read_file(word.removeprefix("@"))


# -- putting, rules, patterns ----------------------------------------------------------------------------------------


@declared(
    "put",
    example="""onefold events put '{"Source": "shop", "DetailType": "Order placed", "Detail": {"id": "o-1"}}' shop:app
               onefold events put entries.json shop:app --bus orders""",
)
@click.argument("words", metavar="ENTRIES [APP]", nargs=-1)
@_bus
def put(words: tuple[str, ...], bus: str | None) -> Answer:
    """Put events on a bus.

    ENTRIES is JSON, a file, or - for standard input: an entry in PutEvents' form, a list of them, or {"Entries": [...]}.
    When the command returns, accepted events are durable in queues and archives. Exit code 1: an entry was refused.
    """
    app, (entries,) = _app(words, "ENTRIES")
    answers = admin.put(admin.bus_of(app, bus), _text(entries))
    if not answers:
        raise click.UsageError("There are 0 events in the entries; nothing was put.")
    failed = sum(one.event_id is None for one in answers)
    value = {"FailedEntryCount": failed, "Entries": answers}
    return Answer(value, draw=lambda: _draw_put(answers), code=1 if failed else 0)


def _draw_put(answers: list[PutAnswer]) -> None:
    for one in answers:
        if one.event_id is not None:
            line(f"put: event {one.event_id}")
        else:
            line(f"not taken: {one.error_code}: {one.error_message}", "red")


@declared("rules", example="onefold events rules shop:app\nonefold events rules shop:app --event event.json")
@click.argument("words", metavar="[APP]", nargs=-1)
@_bus
@click.option("--event", metavar="FILE", help="Show which rules match this event, given with its envelope.")
def rules(words: tuple[str, ...], bus: str | None, event: str | None) -> Answer:
    """The declared rules with their patterns and targets."""
    app, _ = _app(words)
    found = admin.rules(app, bus, None if event is None else _text(event))
    return Answer({"rules": found}, draw=lambda: _draw_rules(found, asked=event is not None))


def _draw_rules(found: list[admin.RuleLine], *, asked: bool) -> None:
    if not found:
        line("No rules are declared.")
        return
    columns = [Column("bus"), Column("rule"), Column("to", folds=True), Column("gets", folds=True)]
    columns += [Column("matches" if asked else "state"), Column("pattern", folds=True)]
    rows = [
        (
            one.bus,
            one.rule,
            ", ".join(one.targets),
            one.gets,
            ("yes" if one.matches else "no") if asked else ("enabled" if one.enabled else "disabled"),
            one.pattern,
        )
        for one in found
    ]
    render.draw(render.table(columns, rows))


@declared("test", example="onefold events test --pattern pattern.json --event event.json")
@click.option("--pattern", metavar="FILE", required=True, help="A file, - or the JSON itself.")
@click.option("--event", metavar="FILE", required=True, help="A file, - or the JSON itself; with its envelope.")
def test(pattern: str, event: str) -> Answer:
    """Whether a pattern matches an event; if not, which fields do not match, and exit code 1."""
    found = admin.tested(_text(pattern), _text(event))
    return Answer(found, draw=lambda: _draw_test(found), code=0 if found.matches else 1)


def _draw_test(found: admin.Tested) -> None:
    line("matches" if found.matches else "does not match", "green" if found.matches else "yellow")
    for one in found.reasons:
        line(f"  {one}")
    for hint in found.hints:
        line(hint, "yellow")


# -- archives and replays --------------------------------------------------------------------------------------------


@declared("archives", example="onefold events archives shop:app")
@click.argument("words", metavar="[APP]", nargs=-1)
@_bus
def archives(words: tuple[str, ...], bus: str | None) -> Answer:
    """The declared archives and what they hold."""
    app, _ = _app(words)
    found = admin.archives(app, bus)
    return Answer({"archives": found}, draw=lambda: _draw_archives(found))


def _draw_archives(found: list[admin.ArchiveLine]) -> None:
    if not found:
        line("No archives are declared.")
        return
    columns = [Column("bus"), Column("archive"), Column("events", right=True), Column("bytes", right=True)]
    columns += [Column("from"), Column("to"), Column("kept", right=True)]
    rows = [
        (
            one.bus,
            one.archive,
            number(one.events),
            number(one.size),
            time_text(one.first_ms) if one.first_ms is not None else None,
            time_text(one.last_ms) if one.last_ms is not None else None,
            age(one.retention_ms) if one.retention_ms is not None else "for ever",
        )
        for one in found
    ]
    render.draw(render.table(columns, rows))


@declared("archive", example="onefold events archive all shop:app --from 2026-06-01T00:00:00Z --limit 20")
@click.argument("words", metavar="ARCHIVE [APP]", nargs=-1)
@_bus
@click.option("--from", "start", metavar="INSTANT", help="Events of this time or later.")
@click.option("--to", "end", metavar="INSTANT", help="Events before this time.")
@click.option("--limit", type=options.WholeType(1), default=100, show_default=True, help="Show at most this many.")
def archive(words: tuple[str, ...], bus: str | None, start: str | None, end: str | None, limit: int) -> Answer:
    """The events of an archive, by their time."""
    app, (name,) = _app(words, "ARCHIVE")
    from_ms = None if start is None else admin.instant(start, "--from")
    to_ms = None if end is None else admin.instant(end, "--to")
    found = admin.kept(app, admin.bus_of(app, bus), name, from_ms, to_ms, limit)

    def draw() -> None:
        for one in found:
            line(f"{time_text(one.time_ms)}  {one_line(one.text)}")
        if not found:
            line("No events.")

    return Answer({"events": found}, draw=draw)


@declared(
    "replay",
    example="onefold events replay all shop:app --name june --from 2026-06-01T00:00:00Z --to 2026-07-01T00:00:00Z",
)
@click.argument("words", metavar="ARCHIVE [APP]", nargs=-1)
@_bus
@click.option("--name", required=True, help="Name of the replay; every event carries it as replay-name.")
@click.option("--from", "start", metavar="INSTANT", required=True, help="Events of this time or later.")
@click.option("--to", "end", metavar="INSTANT", required=True, help="Events before this time.")
@click.option("--rule", "only", metavar="RULE", multiple=True, help="Only this rule; may be given several times.")
@click.option("--dry-run", is_flag=True, help="Show how many events would be sent; send nothing.")
def replay(
    words: tuple[str, ...],
    bus: str | None,
    name: str,
    start: str,
    end: str,
    only: tuple[str, ...],
    dry_run: bool,
) -> Answer:
    """Send the archived events of a time range through the rules once more.

    They keep id, time and detail: a job whose key is in the detail answers them from its record. After an interruption the
    same command continues where it stopped.
    """
    app, (archived,) = _app(words, "ARCHIVE")
    one = admin.bus_of(app, bus)
    from_ms, to_ms = admin.instant(start, "--from"), admin.instant(end, "--to")
    if dry_run:
        count = admin.planned(app, one, archived, from_ms, to_ms)
        return Answer({"events": count}, draw=lambda: line(f"{counted(count, 'event')} would be replayed."))
    done = admin.replay(app, one, archived, from_ms, to_ms, name=name, only=only or None)
    return Answer(done, draw=lambda: _draw_replay(done))


def _draw_replay(one: Replay) -> None:
    line(
        f"Replay {one.name} of {one.archive}: {one.state}; {counted(one.replayed, 'event')}, "
        f"{counted(one.delivered, 'message')}."
    )


@declared("replays", example="onefold events replays shop:app")
@click.argument("words", metavar="[APP]", nargs=-1)
@_bus
def replays(words: tuple[str, ...], bus: str | None) -> Answer:
    """All replays, oldest first; repeat the command of a running one to continue it."""
    app, _ = _app(words)
    found = admin.all_replays(app, bus)

    def draw() -> None:
        for one in found:
            _draw_replay(one)
        if not found:
            line("No replays.")

    return Answer({"replays": found}, draw=draw)


@declared("cancel", example="onefold events cancel june shop:app")
@click.argument("words", metavar="REPLAY [APP]", nargs=-1)
@_bus
def cancel(words: tuple[str, ...], bus: str | None) -> Answer:
    """End a running replay; what it has delivered stays."""
    app, (name,) = _app(words, "REPLAY")
    ended, was_running = admin.cancel(app, admin.bus_of(app, bus), name)

    def draw() -> None:
        if not was_running:
            line(f"Nothing was cancelled: the replay was already {ended.state}.", "yellow")
        _draw_replay(ended)

    return Answer(ended, draw=draw)


# -- what targets refused --------------------------------------------------------------------------------------------

_rule = click.option("--rule", metavar="RULE", help="Only of rules with this name.")


@declared("undelivered", example="onefold events undelivered shop:app")
@click.argument("words", metavar="[APP]", nargs=-1)
@_bus
@_rule
def list_undelivered(words: tuple[str, ...], bus: str | None, rule: str | None) -> Answer:
    """Events that a rule's target refused, with the reason; they are in the rule's dead-letter queue."""
    found, _ = _target(words)
    assert found.app is not None
    lines = admin.undelivered(found.session, admin.buses(found.app, bus), rule)
    return Answer({"undelivered": lines}, draw=lambda: _draw_undelivered(lines))


def _draw_undelivered(lines: list[admin.UndeliveredEvent]) -> None:
    for one in lines:
        line(f"{one.message_id}  {one.bus}/{one.rule} to {one.target}: {one.code}: {one.message}")
    line(
        "`onefold events redeliver` sends them again, once the cause is fixed."
        if lines
        else "Everything was delivered."
    )


@declared("redeliver", example="onefold events redeliver shop:app --rule to-billing")
@click.argument("words", metavar="[MESSAGE-ID...] [APP]", nargs=-1)
@_bus
@_rule
@options.reason_text
def redeliver(words: tuple[str, ...], bus: str | None, rule: str | None, reason_text: str | None) -> Answer:
    """Deliver again what targets refused: all of it, or these messages. Exit code 1: something was refused again."""
    app, ids = target.split_ids(words)
    found = target.find_app(app)
    assert found.app is not None
    done = admin.redeliver(found.session, admin.buses(found.app, bus), rule=rule, ids=ids, reason_text=reason_text)

    def draw() -> None:
        line(f"{counted(len(done.sent), 'event')} delivered.")
        for one, why in done.left:
            line(f"{one.message_id}  refused again: {why}", "yellow")

    return Answer(done, draw=draw, code=1 if done.left else 0)


for each in (put, rules, test, archives, archive, replay, replays, cancel, list_undelivered, redeliver):
    command.add_command(each)
