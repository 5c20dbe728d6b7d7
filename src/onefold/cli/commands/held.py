"""`onefold held`: unknown outcomes that wait for a person. Drawing and asking; settling is `admin/held.py`'s.

Invariant: nothing is settled without --done or --not-done.
"""

from __future__ import annotations

import sys

import click

from onefold import redact
from onefold.admin import held as admin
from onefold.cli import options, render, target
from onefold.cli.program import Answer, Group, declared
from onefold.cli.render import Column, ago, line
from onefold.observe.wording import counted

command = Group("held", help="Unknown outcomes that wait for a person.", no_args_is_help=True)


def _target(words: tuple[str, ...], url: str | None, wanted: int) -> tuple[target.Target, list[str]]:
    app, rest = target.split(words, wanted, names="KEY" if wanted else "", url=url)
    return target.find(app, url, records=True), rest


@declared("list", read_only=True, example="onefold held list shop:app")
@click.argument("words", metavar="[APP]", nargs=-1)
@target.by_store_url
def list_held(words: tuple[str, ...], url: str | None) -> Answer:
    """What is held, longest first: one line per operation, its duplicates counted."""
    found, _ = _target(words, url, 0)
    held = admin.listed(found.session)
    return Answer({"held": held}, draw=lambda: _draw_list(held, found))


def _draw_list(held: list[admin.HeldOperation], found: target.Target) -> None:
    if not held:
        line("Nothing is held.")
        return
    tenants, keys = any(one.tenant for one in held), {one.key for one in held}
    columns = [
        Column("key"),
        Column("job"),
        *([Column("tenant")] if tenants else []),
        Column("for", right=True),
        Column("duplicates", right=True),
        Column("owner"),
        Column("what is known", folds=True),
    ]
    now_ms = found.session.now_ms()
    rows = [
        (
            one.key,
            one.job,
            *([one.tenant or None] if tenants else []),
            ago(now_ms - one.since_ms),
            render.some(max(len(one.message_ids) - 1, 0)),
            one.owner,
            render.joined(_KNOWN if one.took_effect else "", render.cause(one.error, one.summary)),
        )
        for one in held
    ]
    render.draw(render.table(columns, rows))
    line()
    is_known = all(one.took_effect for one in held)
    if is_known:
        line("With the result from the other system:")
    else:
        line("Find out from the other system whether the effect happened, then:")
    which = " --job JOB" + (" --tenant TENANT" if tenants else "") if len(keys) < len(held) else ""
    ways = _ways(took_effect=is_known)
    render.todo([f"onefold held settle KEY {way}{which}" for way in ways], found.words)


@declared("show", read_only=True, example="onefold held show o-17 shop:app")
@click.argument("words", metavar="KEY [APP]", nargs=-1)
@target.by_store_url
@options.operation
def show_held(words: tuple[str, ...], url: str | None, job: str | None, tenant: str | None) -> Answer:
    """One key's held operations with the payloads of their messages."""
    found, (key,) = _target(words, url, 1)
    every = admin.listed(found.session, key)
    held = [one for one in every if job in (None, one.job) and tenant in (None, one.tenant)]
    if not held:
        raise admin.nothing_held(found.session, key)
    bodies = {message_id: body for one in held for message_id, body in admin.bodies(found.session, one)}
    return Answer(
        {"held": held, "bodies": bodies}, draw=lambda: _draw_details(held, bodies, found, is_one_of_many=len(every) > 1)
    )


_KNOWN = "The effect happened; its result could not be recorded. "


def _ways(*, took_effect: bool) -> tuple[str, ...]:
    return ("--done --result JSON",) if took_effect else ("--done --result JSON", "--not-done")


def _draw_details(
    held: list[admin.HeldOperation], bodies: dict[str, str], found: target.Target, *, is_one_of_many: bool
) -> None:
    for one in held:
        first, *others = _facts(one, found.session.now_ms())
        line(first, "bold")
        for text in others:
            line(text)
        for message_id in one.message_ids:
            line(f"  message {message_id}", "dim")
            line(f"    {bodies.get(message_id, '(gone)')}")
    line()
    for one in held:
        tenant = f" --tenant {redact.shell_word(one.tenant)}" if one.tenant else ""
        which = (f" --job {redact.shell_word(one.job)}{tenant}" if is_one_of_many else "") + f" --hold {one.hold}"
        ways = _ways(took_effect=one.took_effect)
        render.todo([redact.command("onefold held settle", one.key, way + which) for way in ways], found.words)


def _facts(one: admin.HeldOperation, now_ms: int) -> list[str]:
    """Lines that say which operation is held, and what is known of its run."""
    known = _KNOWN if one.took_effect else ""
    process = "their worker process" if one.queue is not None else "the process that called"
    crashed = f", {one.crashes} of which died with {process}" if one.crashes else ""
    return [
        f"{one.job} {one.key}" + (f"   tenant {one.tenant}" if one.tenant else ""),
        render.joined(f"  {one.state} for {ago(now_ms - one.since_ms)}: {known}", render.cause(one.error, one.summary)),
        f"  {counted(one.attempts, 'run')}{crashed}",
        *([f"  owner: {one.owner}"] if one.owner is not None else []),
    ]


def _draw_settled(settled: admin.SettledOperation) -> None:
    word = "done" if settled.done else "not done"
    tenant = f" of tenant {settled.tenant}" if settled.tenant else ""
    if settled.replaced is not None:
        word = f"{word} before; its result is another one now. It was: {settled.replaced}"
    line(render.joined(f"{settled.job} {settled.key}{tenant}: ", f"settled as {word}{'' if settled.replaced else '.'}"))
    if settled.lacks_result:
        line(
            "  Its result is null, which is not what the job returns. To give it one, settle it again with --result JSON."
        )
    if settled.is_unchecked:
        line(
            "  Its result is null. What the job returns is not known without its app: if that is not null, settle it again "
            "with --result JSON."
        )
    if settled.sent_back:
        line(f"  sent back: {', '.join(settled.sent_back)}")
    if settled.deleted:
        line(f"  {counted(settled.deleted, 'held message')} deleted")
    if not settled.done and not settled.sent_back:
        line("  No message of it was held: the next call or message with this key runs it.")
    if settled.left:
        line(
            f"  {counted(settled.left, 'message')} with another payload stay; they were sent to the held queue directly"
        )
    if settled.group_restarted:
        line(f"  its group continues: {counted(settled.group_restarted, 'message')} that waited behind it")


@declared(
    "settle",
    example="""onefold held settle o-17 shop:app --done --result '{"label": "AB123"}'
               onefold held settle o-17 shop:app --not-done --reason-text "courier has no booking" """,
)
@click.argument("words", metavar="KEY [APP]", nargs=-1)
@target.by_store_url
@click.option("--done", is_flag=True, help="The effect happened.")
@click.option("--not-done", is_flag=True, help="The effect did not happen.")
@click.option("--result", metavar="JSON", help="With --done: what the call or job returned; it answers duplicates.")
@click.option("--hold", metavar="HOLD", help="Only if it is still this hold, `hold` of `list --json`; nobody is asked.")
@options.operation
@options.idle
@options.reason_text
def settle(
    words: tuple[str, ...],
    url: str | None,
    done: bool,
    not_done: bool,
    result: str | None,
    hold: str | None,
    job: str | None,
    tenant: str | None,
    idle: bool,
    reason_text: str | None,
) -> Answer:
    """Settle a held operation: say whether its effect happened.

    --done: its record is completed with the result, and its held messages are deleted. --not-done: its record is released,
    one message is sent back to its queue and runs again; the duplicates are deleted. On a terminal it is shown first, unless
    --hold says which hold was looked at.
    """
    if done and not_done:
        raise click.UsageError("--done and --not-done exclude each other. Nothing was changed.")
    found, (key,) = _target(words, url, 1)
    if not done and not not_done:
        raise click.UsageError("Say whether the effect happened: --done or --not-done.")
    if hold is None and sys.stdin.isatty() and admin.listed(found.session, key):
        hold = _asked(admin.find(found.session, key, job, tenant, undo=not_done), found, done=done)
    settled = admin.settle(
        found.session,
        key,
        done=done,
        result=result,
        job=job,
        tenant=tenant,
        hold=hold,
        reason_text=reason_text,
        idle=idle,
    )
    return Answer(settled, draw=lambda: _draw_settled(settled))


def _asked(one: admin.HeldOperation, found: target.Target, *, done: bool) -> str:
    """Show what would be settled; the hold that the person at the terminal has agreed to settle."""
    for text in _facts(one, found.session.now_ms()):
        render.note(redact.one_line(text))
    render.confirm(f"Settle it as {'done' if done else 'not done'}?", otherwise=f"--hold {one.hold}")
    return one.hold


for each in (list_held, show_held, settle):
    command.add_command(each)
