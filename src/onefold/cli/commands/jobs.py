"""`onefold send`, `resume`, `check-payloads`, `names`: send to a job, resume one, check what waits, give names.

They parse and print; `admin/jobs.py` does the work. Never here: making messages, when a job pauses (`record/breaker.py`).
Invariants: what `send` prints was checked against the job's type and then accepted durably; a job that was not paused is
left unchanged, and `resume` reports that; a name changes hands only if it is given itself, or with all names of its app.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from onefold import redact
from onefold.admin import jobs, payloads
from onefold.admin.payloads import JobMessages, PayloadSurvey
from onefold.cli import options, render, target
from onefold.cli.program import Answer, Group, declared
from onefold.cli.render import Column, ago, draw, line, table
from onefold.errors import NotFoundError
from onefold.runtime.names import Taken
from onefold.runtime.outgoing import Receipt


def _draw_receipt(receipt: Receipt, *, has_commit: bool) -> None:
    if receipt.duplicate:
        render.line(f"already known ({receipt.found}): {receipt.job} {receipt.key}; nothing was added")
        if not has_commit and receipt.found in ("waiting", "failed"):
            render.line(
                "This is known from its record: these queues cannot be searched for its message. "
                f"See `{redact.command('onefold why', receipt.key)}`."
            )
    else:
        render.line(f"sent: {receipt.job} {receipt.key} as message {receipt.message_id}")


@declared(
    "send",
    example="""onefold send shop:app book_courier '{"order_id": "o-17"}'
               echo '{"order_id": "o-18"}' | onefold send shop:app book_courier - --delay 10m""",
)
@click.argument("words", metavar="[APP] JOB PAYLOAD", nargs=-1)
@click.option("--delay", metavar="DURATION", help="Deliver it after this time at the earliest, for example 10m.")
@click.option(
    "--run-at",
    metavar="INSTANT",
    help="Deliver it at this time at the earliest, for example 2026-12-24T06:00:00+01:00.",
)
@click.option("--key", metavar="KEY", help="Use this key, not the one from the job's rule.")
def send(words: tuple[str, ...], delay: str | None, run_at: str | None, key: str | None) -> Answer:
    """Send one message to a job.

    PAYLOAD is JSON, or - to read it from standard input, or @FILE. When the command returns, the message is durable.
    """
    if len(words) == 2 and target.is_app(words[0]) and "ONEFOLD_APP" not in os.environ:
        raise click.UsageError("PAYLOAD is missing: JSON, - for standard input, or @FILE.")
    app, (name, payload) = target.split(words, 2, names="JOB PAYLOAD")
    found = target.find_app(app)
    assert found.app is not None
    job = found.app.jobs.get(name)
    if job is None:
        raise jobs.no_job(found.app.jobs, name)
    receipt = jobs.send_text(job, _text(payload), delay=delay, run_at=run_at, key=key)
    has_commit = found.app.runtime().engine.commit is not None
    return Answer(receipt, draw=lambda: _draw_receipt(receipt, has_commit=has_commit))


def _text(payload: str) -> str:
    if payload == "-":
        return sys.stdin.read()
    if payload.startswith("@"):
        return read_file(payload[1:])
    return payload


def read_file(name: str) -> str:
    """The text of a file that a person named.

    Raises:
        NotFoundError: it cannot be read.
    """
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or error) if isinstance(error, OSError) else "it is not UTF-8 text"
        raise NotFoundError(
            f"The file {name} cannot be read: {why}.", todo="Check its name and permissions."
        ) from error


@declared("resume", example="onefold resume book_courier shop:app --reason-text 'new API key is in'")
@click.argument("words", metavar="JOB [APP]", nargs=-1)
@target.by_url
@options.reason_text
def resume(words: tuple[str, ...], url: str | None, reason_text: str | None) -> Answer:
    """Resume a paused job now.

    A job pauses when its dependency refuses everything (a rotated key, a closed account); no attempts are used up meanwhile.
    Messages that are hidden until its next try, or until a retry, become visible at once; on SQS, which cannot do that,
    when they are due.
    """
    app, (job,) = target.split(words, 1, names="JOB", url=url)
    found = target.find(app, url)
    resumed = jobs.resume(found.session, job, reason_text=reason_text)
    text = f"{job} is resumed." if resumed else f"{job} was not paused; nothing was changed."
    if not resumed and found.app is None:
        text += " Only the app knows whether there is such a job: name it as module:attribute."
    return Answer({"job": job, "resumed": resumed}, draw=lambda: line(text))


@declared(
    "check-payloads",
    read_only=True,
    example="onefold check-payloads shop:app\nonefold check-payloads shop:app --limit 1000000 --json",
)
@click.argument("words", metavar="[APP]", nargs=-1)
@click.option(
    "--limit",
    type=options.WholeType(1),
    default=payloads.LOOKED_AT,
    show_default=True,
    help="Read at most this many messages.",
)
def check_payloads(words: tuple[str, ...], limit: int) -> Answer:
    """Show which messages this release could not run, among those that wait, are dead letters or are held.

    Each message is upgraded and validated, and its key made, as a worker of this release would do; nothing is written, and
    no handler runs. The output has ids, fields and types, never values. Queues on SQS that cannot be read without
    receiving are named and left alone. Exit code 1: a message does not fit or has no job, or the app no longer has a name
    that it worked under.
    """
    name, _ = target.split(words, 0, names="")
    found = target.find_app(name)
    survey = payloads.survey(found.session, limit=limit)
    return Answer(survey, draw=lambda: draw_survey(survey, found), code=int(not survey.fits))


def draw_survey(survey: PayloadSurvey, found: target.Target) -> None:
    """Print what a release would do with the messages in the queues."""
    if survey.jobs:
        columns = [Column("job"), Column("queue"), Column("messages", right=True), Column("upgraded", right=True)]
        rows = [
            (_named(one), f"{one.queue} ({one.place})", one.count, render.some(one.upgraded), render.some(one.unfit))
            for one in survey.jobs
        ]
        draw(table([*columns, Column("would not run", right=True)], rows))
    else:
        line("There are no messages.")
    if survey.unfit:
        line()
        columns = [Column("message"), Column("queue"), Column("key"), Column("why", folds=True)]
        draw(table(columns, [(one.message_id, one.queue, one.key, one.why) for one in survey.unfit]))
        if survey.unfit_count > len(survey.unfit):
            line(f"... and {survey.unfit_count - len(survey.unfit):,} more.")
    draw_stranded(survey)
    for queue in survey.unread:
        line(f"Not looked at: {queue}, whose messages can only be seen by receiving them.", "dim")
    if not survey.is_whole:
        line(f"Looked at the first {survey.looked_at:,} messages only; see --limit.", "dim")
    if survey.fits and survey.jobs:
        line("All of them would run.")
    elif survey.unfit:
        steps = [f"onefold {place} show {name}" for place, name in _looked_up(survey)]
        render.todo(steps, found.words)


def draw_stranded(survey: PayloadSurvey) -> None:
    """Print the names that no job has any more, and the key rules that have changed."""
    for stranded in survey.stranded:
        line()
        render.fold(
            f"The app has worked under the name {stranded!r}, and no job of it has that name. If it was renamed, declare "
            f"aliases=[{stranded!r}]: otherwise its records no longer count, and its messages are left where they are.",
            "! ",
            "  ",
        )
    for sentence in survey.rekeyed:
        line()
        render.fold(redact.one_line(sentence), "! ", "  ")


def _named(one: JobMessages) -> str:
    if one.declared is None:
        return f"{one.job or '(none)'}: not declared"
    return one.declared if one.job in (None, one.declared) else f"{one.declared} (as {one.job})"


def _looked_up(survey: PayloadSurvey) -> list[tuple[str, str]]:
    """For the first unfit dead letter and held message: the command group that shows it, and its id or key."""
    first = {one.place: one for one in reversed(survey.unfit)}
    found = [("dlq", first["dead"].message_id)] if "dead" in first else []
    return found + ([("held", first["held"].key)] if "held" in first and first["held"].key is not None else [])


names_command = Group("names", help="Which app owns which job name: list, give.", no_args_is_help=True)


@declared("list", read_only=True, example="onefold names list shop:app")
@click.argument("words", metavar="[APP]", nargs=-1)
@target.by_store_url
def list_names(words: tuple[str, ...], url: str | None) -> Answer:
    """All names of operations on a store, and which app's jobs or guarded calls own them."""
    app, _ = target.split(words, 0, names="", url=url)
    found = target.find(app, url, records=True)
    taken = jobs.taken_names(found.session)
    return Answer({"names": taken}, draw=lambda: _draw_names(taken, found.session.now_ms()))


def _draw_names(taken: list[Taken], now_ms: int) -> None:
    if not taken:
        line("No names: a worker takes those of its app's jobs when it starts.")
        return
    columns = [Column("name", folds=True), Column("kind"), Column("apps", folds=True), Column("since", right=True)]
    draw(table(columns, [(one.name, one.kind, ", ".join(one.apps), ago(now_ms - one.since_ms)) for one in taken]))


@declared(
    "give",
    example="onefold names give book_courier --to shop2 shop:app\n"
    "onefold names give --of shop --to shop2 --url sqlite:///.onefold/shop.db",
)
@click.argument("words", metavar="[NAME]... [APP]", nargs=-1)
@click.option("--to", metavar="APP", required=True, help="Name of the app that gets them.")
@click.option("--of", metavar="APP", help="All names of that app, instead of single ones.")
@click.option("--share", is_flag=True, help="The app that has them now keeps them too.")
@click.option("--app", metavar="MODULE:ATTRIBUTE", help="The APP, if a NAME looks like one.")
@target.by_store_url
@options.reason_text
def give(
    words: tuple[str, ...],
    to: str,
    of: str | None,
    share: bool,
    app: str | None,
    url: str | None,
    reason_text: str | None,
) -> Answer:
    """Give names of operations to another app: after it was renamed, or when a job moved.

    Stop the workers of the app that had them. With --share both apps have them: while an app is being renamed, or for
    apps that never use the same keys; if they do, each is answered with what the other has done.
    """
    names = words
    if app is None and url is None:
        app, names = target.split_ids(words)
    if bool(names) == bool(of):
        given = f"names ({', '.join(names)}) and --of {of} were" if names else "neither was"
        raise click.UsageError(f"Give names, or --of APP for all names of an app; {given} given.")
    found = target.find(app, url, records=True)
    known = {app for one in jobs.taken_names(found.session) for app in one.apps}
    known |= {found.app.name} if found.app is not None else set()
    changed = jobs.give_names(found.session, names, to, of=of, shared=share, reason_text=reason_text)

    def show() -> None:
        for one in changed:
            line(f"{one.name} belongs to {' and '.join(one.apps)}.")
        if to not in known:
            given = f"--of {to}" if of is not None else " ".join(one.name for one in changed)
            line(
                f"No worker of an app {to!r} has run here yet; apps that have: {', '.join(sorted(known)) or 'none'}.",
                "yellow",
            )
            line(
                f"If that is a slip: onefold names give {given} --to NAME, before workers are started again.", "yellow"
            )

    return Answer({"names": changed}, draw=show)


names_command.add_command(list_names)
names_command.add_command(give)
