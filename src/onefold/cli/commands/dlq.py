"""`onefold dlq`: dead letters: list, show, edit, purge. Parsing, asking and drawing; the doing is `service/`'s.

Every command but `list` names what it is about: ids, conditions, or --all.
Never here: what a selection finds; `dlq redrive` (redrive.py).
Invariant: nothing is deleted without --yes or a person's answer.
"""

from __future__ import annotations

import os
import shlex
from itertools import islice

import click
import msgspec

from onefold.cli import options, render, selection, steps, target
from onefold.cli.commands import redrive
from onefold.cli.commands.send import read_file
from onefold.cli.program import Answer, Group, declared
from onefold.cli.render import Column, ago, line, number
from onefold.contracts.admin import Peeked
from onefold.errors import UsageError
from onefold.observe.standing import both
from onefold.observe.wording import counted, instant
from onefold.service import dead_letters as service
from onefold.service import editing
from onefold.service.dead_letters import Select
from onefold.service.desk import Desk
from onefold.service.reading import Forecast

command = Group("dlq", help="Dead letters: list, show, edit, redrive, purge.", no_args_is_help=True)

_LISTED = 100  # single messages that are drawn unless --limit says otherwise


# -- list ------------------------------------------------------------------------------------------------------------


@declared(
    "list",
    looks=True,
    example="onefold dlq list shop:app\nonefold dlq list shop:app --all --reason conflict --newer 2h",
)
@click.argument("words", metavar="[APP]", nargs=-1)
@target.by_url
@selection.selecting
@click.option("--all", "singly", is_flag=True, help="Every message instead of the groups of failures.")
@click.option(
    "--limit", type=click.IntRange(1), default=_LISTED, show_default=True, help="With --all: at most so many."
)
def list_letters(words: tuple[str, ...], url: str | None, select: Select, singly: bool, limit: int) -> Answer:
    """Dead letters, grouped by how they failed: reason, error class and job, with counts and when the first expires."""
    app, _ = target.split(words, 0, names="")
    found = target.find(app, url)
    if singly:
        letters = [service.letter(found.desk, one) for one in islice(service.find(found.desk, select), limit)]
        return Answer({"letters": letters}, draw=lambda: _draw_letters(letters, limit, select, found.desk))
    failures = service.failures(found.desk, select)
    return Answer({"failures": failures}, draw=lambda: _draw_failures(failures, select, found))


def _draw_none(select: Select, desk: Desk) -> None:
    """None at all, or none of those that were asked for."""
    every = sum(1 for _ in service.find(desk, Select())) if not select.is_empty() else 0
    line(f"None of the {counted(every, 'dead letter')} fits." if every else "No dead letters.")


def _draw_failures(failures: list[service.Failure], select: Select, found: target.Target) -> None:
    if not failures:
        _draw_none(select, found.desk)
        return
    now_ms = found.desk.now_ms()
    columns = [
        Column("count", right=True),
        Column("reason"),
        Column("job", folds=True),
        Column("newest", right=True),
        Column("expires in", right=True),
        Column("owner", folds=True),
        Column("queue", folds=True),
    ]
    rows = [
        (
            number(one.count),
            one.reason,
            one.job,
            ago(now_ms - one.newest_at_ms),
            ago(one.expires_in_ms),
            one.owner,
            one.queue,
        )
        for one in failures
    ]
    render.draw(render.table(columns, rows))
    line()
    for one in failures:
        line(f"{number(one.count):>5}  {one.error + ': ' if one.error else ''}{one.summary}")
    line()
    line(f"{counted(sum(one.count for one in failures), 'dead letter')}. Next:")
    render.todo(
        [
            f"onefold dlq show {failures[0].message_id}",
            _first_step(failures[0]),
        ],
        found.words,
    )


def _first_step(one: service.Failure) -> str:
    """What to try of a kind of failure, without doing it yet."""
    if one.reason == "conflict":  # as it is, it would be refused again
        return f"onefold dlq edit {one.message_id} --set field=value"
    return both(one.redrive)[0]


def _draw_letters(letters: list[service.DeadLetter], limit: int, select: Select, desk: Desk) -> None:
    if not letters:
        _draw_none(select, desk)
        return
    now_ms = desk.now_ms()
    columns = [
        Column("message"),
        Column("key", folds=True),
        Column("job", folds=True),
        Column("reason"),
        Column("error", folds=True),
        Column("age", right=True),
        Column("gone in", right=True),
    ]
    rows = [
        (
            one.message_id,
            one.key,
            one.job,
            one.reason,
            one.error,
            ago(now_ms - one.failed_at_ms),
            ago(one.expires_in_ms),
        )
        for one in letters
    ]
    render.draw(render.table(columns, rows))
    if len(letters) == limit:
        line(f"The first {limit}; see more with --limit.", "dim")


# -- show ------------------------------------------------------------------------------------------------------------


@declared("show", looks=True, example="onefold dlq show 5f0c-17 shop:app\nonefold dlq show shop:app --key o-17")
@click.argument("words", metavar="[ID] [APP]", nargs=-1)
@target.by_url
@selection.selecting
def show(words: tuple[str, ...], url: str | None, select: Select) -> Answer:
    """One dead letter with its body, its reason, its record, and what a redrive would do.

    ID is a message id or the number at its end; or select the one message with the options.
    """
    found, message = selection.one(words, url, select)
    say = instant if render.is_quiet() else render.local
    detail = service.show(found.desk, message, say)
    return Answer(detail, draw=lambda: _draw_detail(detail, found))


def _draw_detail(detail: service.Detail, found: target.Target) -> None:
    one = detail.letter
    line(f"message {one.message_id} in {one.queue}", "bold")
    failure = f"{one.error}: {one.summary}" if one.error is not None else one.summary
    facts = [
        (
            "operation",
            f"{one.job or '?'} {one.key or '(no key)'}" + (f"   group {one.group}" if one.group else ""),
        ),
        ("came from", one.source or "(sent here directly)"),
        ("reason", f"{one.reason}: {failure}"),
        ("tried", f"{_runs(one)}; {counted(one.receive_count, 'receive')}"),
        ("first tried", render.local(one.first_at_ms) if one.first_at_ms is not None else render.NOTHING),
        ("failed", render.local(one.failed_at_ms)),
        ("expires in", ago(one.expires_in_ms)),
        ("owner", one.owner or render.NOTHING),
        ("record", detail.record),
        ("a redrive", _foreseen(detail.forecast, detail.redrive)),
    ]
    for name, text in facts:
        line(f"  {name:<12}{text}")
    for name, value in detail.attributes.items():
        line(f"  {'attribute':<12}{name} = {value}", "dim")
    if detail.trace:
        line()
        for row in detail.trace.splitlines():
            line(f"  {row}")
    if detail.history:
        line()
        steps.draw(detail.history, detail.letter.message_id)
    line()
    line(pretty(detail.body))
    line()
    line("Next:")
    commands = [
        detail.redrive,
        f"onefold dlq edit {one.message_id} --set field=value",
    ]
    if one.key is not None:
        commands.insert(0, f"onefold why {shlex.quote(one.key)}")
    render.todo(commands, found.words)


def _foreseen(forecast: Forecast, way_back: str) -> str:
    """What a redrive would do, and of how much."""
    if not way_back.startswith("onefold dlq redrive"):
        return "is refused: its group is stopped by a held message."
    whole = "of its whole group, which is stopped: this one " if " --group " in way_back else ""
    return f"{whole}{selection.FATES[forecast.fate]} {forecast.why}"


def _runs(one: service.DeadLetter) -> str:
    crashed = f", {one.crashes} of which died with their worker process" if one.crashes else ""
    return counted(one.attempts, "run") + crashed


def pretty(body: str) -> str:
    """A payload for reading: JSON indented, anything else as it is."""
    try:
        msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return body
    return msgspec.json.format(body, indent=2)


# -- edit ------------------------------------------------------------------------------------------------------------


@declared(
    "edit",
    example="onefold dlq edit 5f0c-17 shop:app --set weight=29.5 --set city=London\n"
    "onefold dlq edit shop:app --key o-17 --body @fixed.json --dry-run",
)
@click.argument("words", metavar="[ID] [APP]", nargs=-1)
@target.by_url
@selection.selecting
@click.option(
    "--set",
    "assignments",
    metavar="FIELD=JSON",
    multiple=True,
    help="Set a field; a.b and items.0 reach inside.",
)
@click.option("--body", metavar="JSON|@FILE", help="The whole new body.")
@click.option("--new-key", is_flag=True, help="Allow a payload that names another operation.")
@click.option("--dry-run", is_flag=True, help="Only say what would change.")
@options.reason_text
def edit(
    words: tuple[str, ...],
    url: str | None,
    select: Select,
    assignments: tuple[str, ...],
    body: str | None,
    new_key: bool,
    dry_run: bool,
    reason_text: str | None,
) -> Answer:
    """Change a dead letter's payload where it lies; without --set or --body in $EDITOR.

    With an app the result is checked against the job's payload type. The message says which payload it replaces, so that
    it is run and not refused as a conflict. A value that is no JSON is taken as text.
    """
    found, message = selection.one(words, url, select)
    text = read_file(body[1:]) if body is not None and body.startswith("@") else body
    if text is None and not assignments:
        text = _in_editor(message)
    edited = editing.edit(
        found.desk,
        message,
        body=text,
        assignments=assignments,
        new_key=new_key,
        dry_run=dry_run,
        reason_text=reason_text,
    )
    return Answer(edited, draw=lambda: _draw_edited(edited, found))


def _in_editor(message: Peeked) -> str:
    if not (os.environ.get("VISUAL") or os.environ.get("EDITOR")):
        raise click.UsageError("Say what to change with --set or --body, or set EDITOR.")
    changed = click.edit(pretty(message.body), extension=".json", require_save=True)
    if changed is None:
        raise UsageError(
            "The editor was left without saving.", meaning="Nothing was changed.", todo="Edit and save it."
        )
    try:
        return msgspec.json.format(changed, indent=-1)
    except (ValueError, RecursionError):
        return changed.strip()


def _draw_edited(edited: editing.Edited, found: target.Target) -> None:
    word = "changed" if edited.written else "would change"
    line(f"message {edited.message_id}: {word} {', '.join(edited.changed)}")
    if edited.key_before == edited.key_after:
        line(f"  key: {edited.key_after or '(cannot be told)'}, as before")
    else:
        line(f"  key: {edited.key_before or '(none)'} -> {edited.key_after or '(cannot be told)'}", "yellow")
    if edited.amends is not None:
        line(f"  replaces the payload {edited.amends[:12]} that its record knows")
    line(f"  a redrive {_foreseen(edited.forecast, edited.redrive)}")
    if edited.written:
        render.todo([edited.redrive], found.words)


# -- purge -----------------------------------------------------------------------------------------------------------


@declared(
    "purge",
    example="onefold dlq purge 5f0c-17 shop:app\nonefold dlq purge shop:app --reason conflict --older 7d --yes",
)
@click.argument("words", metavar="[ID]... [APP]", nargs=-1)
@target.by_url
@selection.selecting
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.reason_text
def purge(
    words: tuple[str, ...],
    url: str | None,
    select: Select,
    everything: bool,
    yes: bool,
    reason_text: str | None,
) -> Answer:
    """Delete dead letters for good, after asking."""
    found, messages, _ = selection.chosen(words, url, select, everything=everything)
    counts = service.counts(messages)
    if not yes:
        what = ", ".join(f"{counted(count, 'message')} of {queue}" for queue, count in counts.items())
        click.confirm(f"Delete {what} for good?", abort=True, err=True)
    removed = service.remove(found.desk, messages, reason_text=reason_text)
    return Answer({"removed": removed}, draw=lambda: line(f"{counted(removed, 'dead letter')} deleted."))


for each in (list_letters, show, edit, redrive.command, purge):
    command.add_command(each)
