"""`onefold dlq`: dead letters: list, show, edit, redrive, purge. It parses, asks and prints; `admin/` does the work.

Every command but `list` is told what it is about: ids, conditions, or --all. A redrive that is interrupted leaves what was
sent unchanged, and reports how much that was.
Never here: what a selection finds; when a redrive stops (`admin/redrive.py`).
Invariant: nothing is deleted without --yes or a person's answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import islice
from typing import Final

import click
import msgspec

from onefold import redact
from onefold.admin import dead_letters as admin
from onefold.admin import editing, groups
from onefold.admin import redrive as redriving
from onefold.admin.dead_letters import Select
from onefold.admin.reading import ExpectedOutcome, Forecast
from onefold.admin.session import AdminSession
from onefold.cli import options, render, selection, target
from onefold.cli.commands.jobs import read_file
from onefold.cli.program import Answer, Group, declared
from onefold.cli.render import Column, ago, line, number
from onefold.contracts.admin import Peeked
from onefold.errors import NotFoundError, UsageError
from onefold.observe.operation_state import both
from onefold.observe.wording import age, counted, counted_runs, instant

command = Group("dlq", help="Dead letters: list, show, edit, redrive, purge.", no_args_is_help=True)

_LISTED = 100  # single messages that are shown unless --limit is given


# -- list ------------------------------------------------------------------------------------------------------------


@declared(
    "list",
    read_only=True,
    example="onefold dlq list shop:app\nonefold dlq list shop:app --all --reason conflict --newer 2h",
)
@click.argument("words", metavar="[APP]", nargs=-1)
@target.by_url
@selection.selecting
@click.option("--all", "singly", is_flag=True, help="Every message instead of the groups of failures.")
@click.option("--by-text", is_flag=True, help="Group by the text of the error too, each group with its fingerprint.")
@click.option(
    "--limit", type=options.WholeType(1), default=_LISTED, show_default=True, help="With --all: show at most this many."
)
def list_letters(
    words: tuple[str, ...], url: str | None, select: Select, singly: bool, by_text: bool, limit: int
) -> Answer:
    """Dead letters, grouped by how they failed: reason, error class and job, with counts and when the first expires."""
    app, _ = target.split(words, 0, names="")
    found = target.find(app, url)
    if singly:
        letters = [admin.letter(found.session, one) for one in islice(admin.find(found.session, select), limit)]
        return Answer({"letters": letters}, draw=lambda: _draw_letters(letters, limit, select, found.session))
    failures = admin.failures(found.session, select, by_text=by_text)
    return Answer({"failures": failures}, draw=lambda: _draw_failures(failures, select, found, by_text=by_text))


def _draw_none(select: Select, session: AdminSession) -> None:
    """The message for an empty list: none at all, or none that match."""
    every = sum(1 for _ in admin.find(session, Select())) if not select.is_empty() else 0
    line(f"None of the {counted(every, 'dead letter')} fits." if every else "No dead letters.")


def _draw_failures(failures: list[admin.FailureGroup], select: Select, found: target.Target, *, by_text: bool) -> None:
    if not failures:
        _draw_none(select, found.session)
        return
    now_ms, queues = found.session.now_ms(), sorted({one.queue for one in failures})
    columns = [
        Column("count", right=True),
        Column("reason"),
        Column("error", folds=True),
        Column("job", folds=True),
        Column("newest", right=True),
        Column("expires in", right=True),
        Column("owner", folds=True),
        *(
            [Column("queue", folds=True)] if len(queues) > 1 else []
        ),  # a single one is shown below, so that rows fit into 80 columns
    ]
    rows = [
        (
            number(one.count),
            one.reason,
            one.error,
            one.job,
            ago(now_ms - one.newest_at_ms),
            ago(one.expires_in_ms),
            one.owner,
            *([one.queue] if len(queues) > 1 else []),
        )
        for one in failures
    ]
    render.draw(render.table(columns, rows))
    line()
    for one in failures:
        render.sentence(render.cause(one.error, one.summary), f"{number(one.count):>5}  ", " " * 7)
        if one.texts > 1:  # two causes can have one class
            way = "--all --json" if one.fingerprint is not None else "--by-text"
            line(f"       (the newest of {one.texts} different texts; onefold dlq list {way} has each)")
        if by_text and one.fingerprint is not None:
            line(f"       fingerprint {one.fingerprint}")
    line()
    where = f" in {queues[0]}" if len(queues) == 1 else ""
    line(f"{counted(sum(one.count for one in failures), 'dead letter')}{where}. Next:")
    render.todo(
        [
            f"onefold dlq show {failures[0].message_id}",
            _first_step(failures[0]),
        ],
        found.words,
    )


def _first_step(one: admin.FailureGroup) -> str:
    """What to try first for one kind of failure; it sends nothing yet."""
    if one.reason == "conflict":  # unchanged, it would be refused again
        return f"onefold dlq edit {one.message_id} --set field=value"
    return both(one.redrive)[0]


def _draw_letters(letters: list[admin.DeadLetterView], limit: int, select: Select, session: AdminSession) -> None:
    if not letters:
        _draw_none(select, session)
        return
    now_ms = session.now_ms()
    columns = [
        Column("message"),
        Column("key", folds=True),
        Column("job", folds=True),
        Column("reason"),
        Column("error", folds=True),
        Column("age", right=True),
        Column("expires in", right=True),
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


@declared("show", read_only=True, example="onefold dlq show 5f0c-17 shop:app\nonefold dlq show shop:app --key o-17")
@click.argument("words", metavar="[ID] [APP]", nargs=-1)
@target.by_url
@selection.selecting
def show(words: tuple[str, ...], url: str | None, select: Select) -> Answer:
    """One dead letter with its body, its reason, its record, and what a redrive would do.

    ID is a message id or the number at its end; or select the one message with the options.
    """
    found, message = selection.one(words, url, select)
    say = instant if render.is_quiet() else render.local
    detail = admin.show(found.session, message, say)
    return Answer(detail, draw=lambda: _draw_detail(detail, found))


def _draw_detail(detail: admin.Detail, found: target.Target) -> None:
    one = detail.letter
    line(f"message {one.message_id} in {one.queue}", "bold")
    facts = [
        (
            "operation",
            f"{one.job or '?'} {one.key or '(no key)'}" + (f"   group {one.group}" if one.group else ""),
        ),
        ("came from", one.source or "(sent here directly)"),
        ("reason", render.joined(f"{one.reason}: ", render.cause(one.error, one.summary))),
        ("tried", f"{counted_runs(one.attempts, one.crashes)}; {counted(one.receive_count, 'receive')}"),
        ("first tried", render.local(one.first_at_ms) if one.first_at_ms is not None else render.NOTHING),
        ("failed", render.local(one.failed_at_ms)),
        ("expires in", ago(one.expires_in_ms)),
        ("owner", one.owner or render.NOTHING),
        ("record", detail.record),
        ("a redrive", _foreseen(detail.forecast, detail.redrive)),
    ]
    for name, text in facts:
        line(render.joined(f"  {name:<12}", text))
    for name, value in detail.attributes.items():
        line(f"  {'attribute':<12}{name} = {value}", "dim")
    if detail.trace:
        line()
        for row in detail.trace.splitlines():
            line(f"  {row}")
    if detail.history:
        line()
        render.draw_steps(detail.history, detail.letter.message_id)
    line()
    _draw_body(detail.body)
    line()
    line("Next:")
    commands = _next_of(detail)
    if one.key is not None:
        commands.insert(0, redact.command("onefold why", one.key))
    render.todo(commands, found.words)


def _next_of(detail: admin.Detail) -> list[str]:
    """What can be done with a dead letter, without what would be refused."""
    edit = f"onefold dlq edit {detail.letter.message_id} --set field=value"
    purge = f"onefold dlq purge {detail.letter.message_id}"
    if detail.redrive.startswith("onefold map"):
        return [detail.redrive]
    if detail.forecast.outcome == "conflict":
        return [
            f"{edit} --new-key   (it is another operation: give it a key of its own)",
            f"{purge}   (it is not wanted)",
        ]
    if detail.forecast.outcome in ("malformed", "comes-back"):
        return [edit, f"{purge}   (it is not wanted)"]
    return [detail.redrive, edit]


def _foreseen(forecast: Forecast, way_back: str) -> str:
    """What a redrive would do, and whether with one message or a whole group."""
    if way_back.startswith("onefold map redrive"):
        return "is done with its map run, which does the item again."
    if not way_back.startswith("onefold dlq redrive"):
        return "is refused: its group is stopped by a held message."
    whole = "of its whole group, which is stopped: this one " if " --group " in way_back else ""
    return f"{whole}{selection.OUTCOMES[forecast.outcome]} {forecast.why}"


def pretty(body: str) -> str:
    """A payload for reading: JSON indented, anything else unchanged."""
    return msgspec.json.format(body, indent=2) if _is_json(body) else body


def _is_json(body: str) -> bool:
    try:
        msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return False
    return True


def _draw_body(body: str) -> None:
    """Draw a body; if it is not JSON, with a mark before each line, because its lines can look like our own output."""
    render.block(pretty(body), "" if _is_json(body) else "  | ")


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
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
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
    """Change a dead letter's payload in place; without --set or --body, in $EDITOR.

    With an app the result is checked against the job's payload type. The message says which payload it replaces, so that
    it is run and not refused as a conflict. A value that is not JSON is taken as text.
    """
    found, message = selection.one(words, url, select)
    text = read_file(body[1:]) if body is not None and body.startswith("@") else body
    if text is None and not assignments:
        text = _in_editor(message)
    edited = editing.edit(
        found.session,
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
            "The editor was closed without saving.", meaning="Nothing was changed.", todo="Edit and save it."
        )
    try:
        return msgspec.json.format(changed, indent=-1)
    except (ValueError, RecursionError):
        return changed.strip()


def _draw_edited(edited: editing.Edited, found: target.Target) -> None:
    word = "changed" if edited.written else "would change"
    line(f"message {edited.message_id}: {word} {', '.join(edited.changed)}")
    if edited.key_before == edited.key_after:
        line(f"  key: {edited.key_after or '(not known)'}, as before")
    else:
        line(f"  key: {edited.key_before or '(none)'} -> {edited.key_after or '(not known)'}", "yellow")
    if edited.amends is not None:
        line(f"  replaces the payload {edited.amends[:12]} that its record knows")
    line(f"  a redrive {_foreseen(edited.forecast, edited.redrive)}")
    if edited.written:
        render.todo([edited.redrive], found.words)


# -- purge -----------------------------------------------------------------------------------------------------------


_ASKED_ABOUT = 10  # messages that are listed before the question whether to delete them


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
    counts = admin.counts(messages)
    if not yes:
        for one in messages[:_ASKED_ABOUT]:
            render.note(f"  {one.message_id}  {one.key or ''}".rstrip())
        if len(messages) > _ASKED_ABOUT:
            render.note(f"  and {len(messages) - _ASKED_ABOUT} more")
        what = ", ".join(f"{counted(count, 'message')} of {queue}" for queue, count in counts.items())
        render.confirm(f"Delete {what} for good?")
    removed = admin.remove(found.session, messages, reason_text=reason_text)
    left = len(messages) - removed

    def draw() -> None:
        line(f"{counted(removed, 'dead letter')} deleted.")
        if left:
            line(f"{counted(left, 'message')} left alone: changed, redriven or deleted since the list was made.")

    return Answer({"removed": removed, **({"left": left} if left else {})}, draw=draw)


# -- redrive ---------------------------------------------------------------------------------------------------------


@declared(
    "redrive",
    example="onefold dlq redrive shop:app --reason attempts --error TimeoutError --dry-run\n"
    "onefold dlq redrive shop:app --all --rate 10/s --stop-after 3",
)
@click.argument("words", metavar="[ID]... [APP]", nargs=-1)
@target.by_url
@selection.selecting
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@click.option("--dry-run", is_flag=True, help="Show what each message would do, and send nothing.")
@click.option(
    "--yes",
    is_flag=True,
    help="Do not ask. Otherwise a redrive of several messages asks first when it runs on a terminal.",
)
@click.option(
    "--rate",
    type=options.RATE,
    default="100/s",
    show_default=True,
    help="Highest speed; it is reached gradually.",
)
@click.option(
    "--stop-after",
    type=options.WholeType(0),
    default=redriving.STOP_AFTER_DEFAULT,
    show_default=True,
    help="Stop when this many of the messages sent have failed again; 0: never.",
)
@click.option("--no-watch", is_flag=True, help="Only send; do not wait for their outcome.")
@options.idle
@options.reason_text
def redrive(
    words: tuple[str, ...],
    url: str | None,
    select: Select,
    everything: bool,
    dry_run: bool,
    yes: bool,
    rate: int,
    stop_after: int,
    no_watch: bool,
    idle: bool,
    reason_text: str | None,
) -> Answer:
    """Send dead letters back to the queues they came from.

    Sends in growing waves, watches their outcome meanwhile, and stops if messages fail again. That needs running
    workers; without any, use --no-watch. A stopped FIFO group goes back as a whole, in order, and continues.
    """
    try:
        found, messages, wanted = selection.chosen(words, url, select, everything=everything)
    except NotFoundError:
        freed = None if dry_run or select.group is None else _resume_expired(words, url, select.group, reason_text)
        if freed is None:
            raise
        return freed
    if dry_run:
        foreseen = redriving.foresee(found.session, messages, select=wanted, idle=idle)
        return Answer({"foreseen": foreseen, "counts": _outcomes(foreseen)}, draw=lambda: _draw_foreseen(foreseen))
    if len(messages) > 1 and not yes and sys.stdin.isatty():
        foreseen = redriving.foresee(found.session, messages, select=wanted, idle=idle)
        render.confirm(f"{counted(len(messages), 'message')}: {_counts(foreseen)}. Send them back?")
    work = redriving.Redrive(
        found.session,
        messages,
        per_second=rate,
        stop_after=stop_after,
        watch=not no_watch,
        reason_text=reason_text,
        select=wanted,
        idle=idle,
    )
    tally = _run(work, len(messages), rate)
    code = 1 if tally.end in ("failing-again", "no-worker") else 0
    return Answer(tally, draw=lambda: _draw_tally(tally, found), code=code)


def _resume_expired(words: tuple[str, ...], url: str | None, group: str, reason_text: str | None) -> Answer | None:
    """Resume a stopped group that has no dead letters left; None if it is not stopped."""
    queues = groups.resume_expired(target.find(target.split_ids(words)[0], url).session, group, reason_text=reason_text)
    if not queues:
        return None
    text = f"Group {redact.one_line(group)} of {', '.join(queues)} continues: none of its dead letters is left."
    return Answer({"resumed": [{"queue": queue, "group": group} for queue in queues]}, draw=lambda: line(text))


def _outcomes(foreseen: list[redriving.Foreseen]) -> dict[ExpectedOutcome, int]:
    counts: dict[ExpectedOutcome, int] = {}
    for one in foreseen:
        counts[one.forecast.outcome] = counts.get(one.forecast.outcome, 0) + 1
    return counts


def _draw_foreseen(foreseen: list[redriving.Foreseen]) -> None:
    columns = [
        Column("message"),
        Column("key", folds=True),
        Column("job", folds=True),
        Column("would"),
        Column("because", folds=True),
    ]
    rows = [
        (one.letter.message_id, one.letter.key, one.letter.job, _WOULD[one.forecast.outcome], one.forecast.why)
        for one in foreseen
    ]
    render.draw(render.table(columns, rows))
    line()
    line(f"{counted(len(foreseen), 'message')}: {_counts(foreseen)}. Nothing was sent.")


def _counts(foreseen: list[redriving.Foreseen]) -> str:
    return ", ".join(f"{count:,} would {_WOULD[outcome]}" for outcome, count in _outcomes(foreseen).items())


_LINE_S: Final = 5
_WOULD: Final[dict[ExpectedOutcome, str]] = {
    "run": "run",
    "answered": "be answered",
    "waits": "wait",
    "unknown": "be uncertain",
    "held": "be held",
    "conflict": "conflict",
    "malformed": "be malformed",
    "comes-back": "fail again",
    "no-job": "find no job",
}


def _in_lines(total: int, rate: int) -> Callable[[redriving.Tally], None]:
    """Reports a redrive in lines: of a long one when it begins, and after each five seconds' worth of messages."""
    step = _LINE_S * rate
    if total > step:
        render.note(f"{total:,} dead letters at {rate:,} a second at most (--rate): {age(total * 1_000 // rate)}")
    shown = 0

    def report(tally: redriving.Tally) -> None:
        nonlocal shown
        over = tally.sent + tally.gone + tally.stopped
        if total > step and over // step > shown // step:
            shown = over
            render.note(f"sent {tally.sent:,} of {total:,}, done {tally.done:,}, back {tally.came_back:,}")

    return report


def _run(work: redriving.Redrive, total: int, rate: int) -> redriving.Tally:
    """Carry out a redrive, with a progress bar on a terminal; an interrupt does not undo what was sent."""
    if render.is_quiet() or not render.console(stderr=True).is_terminal:
        try:
            return work.run((lambda _: None) if render.is_quiet() else _in_lines(total, rate))
        except KeyboardInterrupt:
            return msgspec.structs.replace(work.tally, end="interrupted")
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    with Progress(
        TextColumn("sent back"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
        console=render.console(stderr=True),
    ) as progress:
        task = progress.add_task("", total=total, text="")

        def draw(tally: redriving.Tally) -> None:
            text = f"done {tally.done}, back {tally.came_back}, under way {tally.under_way + tally.waiting}"
            progress.update(task, completed=tally.sent + tally.gone + tally.stopped, text=text)

        try:
            return work.run(draw)
        except KeyboardInterrupt:
            return msgspec.structs.replace(work.tally, end="interrupted")


_ENDS: Final[dict[redriving.End, str]] = {
    "done": "",
    "failing-again": "Stopped early: the messages fail again. The others are still dead letters.",
    "no-worker": "Stopped: none of them has been received. Is a worker running, or the job paused? See onefold status. "
    "What was sent waits in its queue; --no-watch sends without looking.",
    "under-way": "All are sent; some are still being retried.",
    "interrupted": "Interrupted. What was sent stays sent.",
}


def _draw_tally(tally: redriving.Tally, found: target.Target) -> None:
    line(f"{render.number(tally.sent)} of {counted(tally.selected, 'dead letter')} sent back.")
    parts = [
        (tally.done, "done"),
        (tally.came_back, "failed again"),
        (tally.held, "held: outcome unknown"),
        (tally.under_way, "received, not finished"),
        (tally.waiting, "not received yet"),
        (tally.gone, "were no longer there, or being processed"),
        (tally.stopped, "left: their group stopped meanwhile (see `onefold dlq redrive --group`)"),
    ]
    for count, what in parts:
        if count:
            line(f"  {count:>6,} {what}")
    if _ENDS[tally.end]:
        line(_ENDS[tally.end], "yellow")
    render.todo([f"onefold dlq show {one}" for one in tally.examples[:3]], found.words)


for each in (list_letters, show, edit, redrive, purge):
    command.add_command(each)
