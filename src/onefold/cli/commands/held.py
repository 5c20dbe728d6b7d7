"""`onefold held`: unknown outcomes that wait for a person. It asks and prints; `admin/held.py` settles.

Invariant: nothing is settled without --done or --not-done.
"""

from __future__ import annotations

import sys

import click
import msgspec

from onefold import redact
from onefold.admin import held as admin
from onefold.admin import settling
from onefold.admin.settling import HeldSelect
from onefold.cli import options, render, selection, target
from onefold.cli.program import Answer, Group, declared
from onefold.cli.render import Column, ago, line
from onefold.errors import ConflictError
from onefold.observe.wording import counted, counted_runs

command = Group("held", help="Unknown outcomes that wait for a person.", no_args_is_help=True)


def _target(words: tuple[str, ...], url: str | None, wanted: int) -> tuple[target.Target, list[str]]:
    app, rest = target.split(words, wanted, names="KEY" if wanted else "", url=url)
    return target.find(app, url, records=True), rest


@declared("list", read_only=True, example="onefold held list shop:app")
@click.argument("words", metavar="[APP]", nargs=-1)
@target.by_store_url
@selection.selecting_held
def list_held(words: tuple[str, ...], url: str | None, select: HeldSelect) -> Answer:
    """What is held, longest first: one line per operation, its duplicates counted."""
    found, _ = _target(words, url, 0)
    held = settling.selected(found.session, select)
    return Answer({"held": held}, draw=lambda: _draw_list(held, found, is_all=select.is_empty()))


def _draw_list(held: list[admin.HeldOperation], found: target.Target, *, is_all: bool = True) -> None:
    if not held:
        line("Nothing is held." if is_all else "Nothing that is held matches.")
        return
    tenants, keys = any(one.tenant for one in held), {one.key for one in held}
    columns = [
        Column("key"),
        Column("job"),
        *([Column("tenant")] if tenants else []),
        Column("for", right=True),
        Column("expires in", right=True),
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
            "message gone" if one.message_gone else ago(one.expires_in_ms),
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


_KNOWN = "The effect happened; its result could not be recorded, and was not kept. "
_MESSAGE_GONE = "Its message is gone: it has expired, or was deleted."


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
    """Lines with the held operation, and what is known of its run."""
    known = _KNOWN if one.took_effect else ""
    return [
        f"{one.job} {one.key}" + (f"   tenant {one.tenant}" if one.tenant else ""),
        render.joined(f"  {one.state} for {ago(now_ms - one.since_ms)}: {known}", render.cause(one.error, one.summary)),
        f"  {counted_runs(one.attempts, one.crashes)}",
        *([f"  its message expires in {ago(one.expires_in_ms)}"] if one.expires_in_ms is not None else []),
        *([f"  {_MESSAGE_GONE} After --not-done, send it again under the same key."] if one.message_gone else []),
        *([f"  owner: {one.owner}"] if one.owner is not None else []),
    ]


def _draw_settled(settled: admin.SettledOperation) -> None:
    word = "done" if settled.done else "not done"
    tenant = f" of tenant {settled.tenant}" if settled.tenant else ""
    if settled.replaced is not None:
        word = f"{word} before; its result has been replaced. It was: {settled.replaced}"
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
    if settled.message_gone:
        line(f"  {_MESSAGE_GONE} Nothing runs until you send it again under the same key.", "red")
    elif not settled.done and not settled.sent_back:
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
               onefold held settle o-17 shop:app --not-done --reason-text "courier has no booking"
               onefold held settle shop:app --all --where error=Timeout* --not-done --reason-text "courier was down" """,
)
@click.argument("words", metavar="[KEY] [APP]", nargs=-1)
@target.by_store_url
@click.option(
    "--all", "everything", is_flag=True, help="Many operations: all that --where names, or all that are held."
)
@click.option("--done", is_flag=True, help="The effect happened.")
@click.option("--not-done", is_flag=True, help="The effect did not happen.")
@click.option("--result", metavar="JSON", help="With --done: what the call or job returned; it answers duplicates.")
@click.option("--hold", metavar="HOLD", help="Only if this is still its hold (`hold` in `list --json`); does not ask.")
@click.option("--yes", is_flag=True, help="With --all: settle them without asking.")
@click.option("--digest", metavar="DIGEST", help="With --all: settle them if they are still those that were shown.")
@selection.selecting_held
@options.idle
@options.reason_text
def settle(
    words: tuple[str, ...],
    url: str | None,
    everything: bool,
    done: bool,
    not_done: bool,
    result: str | None,
    hold: str | None,
    yes: bool,
    digest: str | None,
    select: HeldSelect,
    idle: bool,
    reason_text: str | None,
) -> Answer:
    """Settle a held operation: say whether its effect happened.

    --done: its record is completed with the result, and its held messages are deleted. --not-done: its record is released,
    one message is sent back to its queue and runs again; the duplicates are deleted. On a terminal it is shown first, unless
    --hold names the hold that you have seen.

    With --all and no KEY, many are settled in the same way: the command shows them and, with --reason-text, asks. If
    nobody can be asked, it changes nothing without --yes, or --digest with the digest that it has shown. An operation
    that ran again meanwhile is left alone and reported.
    """
    if done and not_done:
        raise click.UsageError("--done and --not-done exclude each other. Nothing was changed.")
    if everything:
        if hold is not None:
            raise click.UsageError("--hold is for one operation. Nothing was changed.")
        return _settle_many(
            _target(words, url, 0)[0], select, done=done, not_done=not_done, result=result, yes=yes, digest=digest,
            idle=idle, reason_text=reason_text,
        )  # fmt: skip
    job, tenant = select.job, select.tenant
    if msgspec.structs.replace(select, job=None, tenant=None) != HeldSelect() or yes or digest is not None:
        raise click.UsageError(
            "Conditions, --yes and --digest go with --all; without it name one KEY. Nothing was changed."
        )
    found, (key,) = _target(words, url, 1)
    if not done and not not_done:
        raise click.UsageError("Say whether the effect happened: --done or --not-done.")
    if hold is None and sys.stdin.isatty() and admin.listed(found.session, key):
        one = admin.find(found.session, key, job, tenant, undo=not_done)
        admin.check_decision(found.session, one, done=done, result=result, reason_text=reason_text)
        hold = _asked(one, found, done=done, is_null=done and result is None)
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


def _settle_many(
    found: target.Target,
    select: HeldSelect,
    *,
    done: bool,
    not_done: bool,
    result: str | None,
    yes: bool,
    digest: str | None,
    idle: bool,
    reason_text: str | None,
) -> Answer:
    """Show what would be settled; settle it if a person has agreed to this plan."""
    if not done and not not_done:
        raise click.UsageError("Say whether the effects happened: --done or --not-done.")
    plan = settling.plan(found.session, select, done=done, result=result)
    if digest is not None and digest != plan.digest:
        raise ConflictError(
            f"The digest {digest:.40} is out of date: what would be settled has the digest {plan.digest} now.",
            meaning="Something was settled, ran again, or was held since. Nothing was changed.",
            todo="Run it again without --digest to see what would be settled.",
        )
    can_ask = reason_text and sys.stdin.isatty() and not render.is_quiet()
    if not plan.operations or (not yes and digest is None and not can_ask):
        return Answer({"plan": plan}, draw=lambda: _draw_plan(plan, found, reason_text=reason_text))
    if not reason_text:
        raise click.UsageError(
            "Settling many needs --reason-text: it is kept in the history of each. Nothing was changed."
        )
    if not yes and digest is None:
        for text in _plan_lines(plan, found.session.now_ms()):
            render.note(redact.one_line(text))
        render.confirm(f"Settle {counted(len(plan.operations), 'operation')} as {'done' if done else 'not done'}?")
    many = settling.carry_out(found.session, plan, reason_text=reason_text, idle=idle)
    return Answer(many, draw=lambda: _draw_many(many, plan), code=int(bool(many.left)))


_PLANNED = 50  # operations that are shown; --json has all


def _plan_lines(plan: settling.SettlePlan, now_ms: int) -> list[str]:
    found = [
        f"  {one.job} {one.key}{f' of {one.tenant}' if one.tenant else ''}  held for {ago(now_ms - one.since_ms)}: "
        f"{render.cause(one.error, one.summary)}"
        for one in plan.operations[:_PLANNED]
    ]
    if len(plan.operations) > _PLANNED:
        found.append(f"  and {len(plan.operations) - _PLANNED:,} more; --json has them all")
    found += [f"  {one.job} {one.key} is left as it is: {one.why}" for one in plan.refused[:_PLANNED]]
    if not plan.is_whole:
        found.append("  More is held than one command settles: run it again afterwards.")
    return found


def _draw_plan(plan: settling.SettlePlan, found: target.Target, *, reason_text: str | None) -> None:
    for text in _plan_lines(plan, found.session.now_ms()):
        line(text)
    if not plan.operations:
        line("Nothing that is held matches." if not plan.refused else "Nothing else that is held matches.")
        return
    word = "done" if plan.done else "not done"
    line(f"{counted(len(plan.operations), 'operation')} would be settled as {word}. Nothing was changed.")
    why = "" if reason_text else " --reason-text TEXT"
    line(f"The same command with --digest {plan.digest}{why} does it, if they are still these.")


def _draw_many(many: settling.SettledMany, plan: settling.SettlePlan) -> None:
    for one in many.left:
        line(f"{one.job} {one.key} is left as it is: {one.why}", "yellow")
    back = sum(len(one.sent_back) for one in many.settled)
    word = "done" if plan.done else "not done"
    line(f"{counted(len(many.settled), 'operation')} settled as {word}; {counted(back, 'message')} sent back.")
    if any(one.lacks_result for one in many.settled):
        line(
            "Their result is null, which is not what the job returns: settle one again with --result JSON to give it one."
        )
    if not plan.is_whole:
        line("More is held than one command settles: run it again.")


def _asked(one: admin.HeldOperation, found: target.Target, *, done: bool, is_null: bool) -> str:
    """Show what would be settled, and ask; returns the hold that the person at the terminal has agreed to settle."""
    for text in _facts(one, found.session.now_ms()):
        render.note(redact.one_line(text))
    if is_null and admin.lacks_result(found.session, one.job):
        render.note("  Duplicates would get the result null, which is not what the job returns: see --result.")
    render.confirm(f"Settle it as {'done' if done else 'not done'}?", otherwise=f"--hold {one.hold}")
    return one.hold


for each in (list_held, show_held, settle):
    command.add_command(each)
