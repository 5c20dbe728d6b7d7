"""`onefold queue`: lists, shows, empties and moves queues, and updates their settings.

It parses, asks and prints; `admin/queues.py` does the work. Never here: receiving messages.
Invariant: nothing is emptied or changed without --yes or a person's answer.
"""

from __future__ import annotations

import click

from onefold.admin import queues as admin
from onefold.admin.session import AdminSession
from onefold.cli import options, render, target
from onefold.cli.program import Answer, Group, declared
from onefold.cli.render import Column, ago, line, number, some
from onefold.contracts.admin import MoveTask
from onefold.observe.wording import age, counted

command = Group("queue", help="Queues: list, peek, purge, move, apply.", no_args_is_help=True)
move = Group(
    "move",
    help="Move a dead-letter queue as a whole, as SQS does: start, list, cancel.",
    no_args_is_help=True,
)


def _target(words: tuple[str, ...], url: str | None, names: str) -> tuple[target.Target, list[str]]:
    app, rest = target.split(words, 1 if names else 0, names=names, url=url)
    return target.find(app, url), rest


@declared("list", read_only=True, example="onefold queue list shop:app")
@click.argument("words", metavar="[APP]", nargs=-1)
@target.by_url
def list_queues(words: tuple[str, ...], url: str | None) -> Answer:
    """All queues with their settings; dead-letter and held queues below their queue."""
    found, _ = _target(words, url, "")
    views = admin.views(found.session)
    return Answer({"queues": views}, draw=lambda: _draw_queues(views))


def _draw_queues(views: list[admin.QueueView]) -> None:
    columns = [Column("queue"), Column("type")]
    columns += [Column(head, right=True) for head in ("messages", "visibility", "retention", "delay", "receives")]
    rows = [
        (
            one.settings.name if one.role == "source" else f"  {one.settings.name}",
            "FIFO" if one.settings.fifo else "standard",
            number(one.visible + one.in_flight + one.delayed),
            age(one.settings.visibility_ms),
            age(one.settings.retention_ms),
            age(one.settings.delay_ms) if one.settings.delay_ms else None,
            one.settings.receives_max,
        )
        for one in views
    ]
    render.draw(render.table(columns, rows))


@declared("peek", read_only=True, example="onefold queue peek orders shop:app --limit 5 --bodies")
@click.argument("words", metavar="QUEUE [APP]", nargs=-1)
@target.by_url
@click.option(
    "--limit",
    type=options.WholeType(1),
    default=20,
    show_default=True,
    help="Show at most this many, the oldest first.",
)
@click.option("--bodies", is_flag=True, help="With their payloads.")
@click.option("--receive", is_flag=True, help="On SQS, look into a working queue by receiving its messages.")
def peek(words: tuple[str, ...], url: str | None, limit: int, bodies: bool, receive: bool) -> Answer:
    """Look at a queue's messages, without counting a receive or hiding a message.

    SQS cannot do this. There, reading a dead-letter or held queue receives its messages for a moment, which counts; for a
    working queue it is refused unless --receive is given, because it brings its messages nearer to the dead-letter queue.
    """
    found, (queue,) = _target(words, url, "QUEUE")
    messages = admin.look(found.session, queue, limit=limit, bodies=bodies, receive=receive)
    return Answer({"messages": messages}, draw=lambda: _draw_messages(messages, found.session))


def _draw_messages(messages: list[admin.MessageView], session: AdminSession) -> None:
    if not messages:
        line("No messages.")
        return
    columns = [
        Column("message"),
        Column("key", folds=True),
        Column("job", folds=True),
        Column("state", folds=True),
        Column("sent", right=True),
        Column("receives", right=True),
    ]
    now_ms, knows_owners = session.now_ms(), session.engine.commit is not None

    def state(one: admin.MessageView) -> str:
        """What the message waits for, and how long; only the embedded engine knows whether a received one was given back."""
        left = f" {ago(one.visible_at_ms - now_ms)}" if one.visible_at_ms > now_ms else ""
        if one.state == "in_flight":
            return f"to retry in{left}" if knows_owners and one.owner is None else f"in flight, hidden for{left}"
        return f"delayed for{left}" if one.state == "delayed" else "waiting"

    rows = [
        (
            one.message_id,
            one.key,
            one.job,
            state(one),
            ago(now_ms - one.sent_at_ms),
            some(one.receive_count),
        )
        for one in messages
    ]
    render.draw(render.table(columns, rows))
    for one in messages:
        if one.body is not None:
            line(f"{one.message_id}  {one.body}")


@declared("purge", example="onefold queue purge orders-dead shop:app --yes")
@click.argument("words", metavar="QUEUE [APP]", nargs=-1)
@target.by_url
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.reason_text
def purge(words: tuple[str, ...], url: str | None, yes: bool, reason_text: str | None) -> Answer:
    """Delete every message of a queue for good, those in flight included, after asking. Once a minute at most."""
    found, (queue,) = _target(words, url, "QUEUE")
    if not yes:
        count = counted(admin.count(found.session, queue), "message")
        render.confirm(f"Delete {count} of {queue} for good?")
    removed = admin.purge(found.session, queue, reason_text=reason_text)
    kept = admin.kept_keys(found.session, queue) if removed else None

    def draw() -> None:
        line(f"{counted(removed, 'message')} of {queue} deleted.")
        if kept is not None:
            render.fold(kept, "", "")

    return Answer({"removed": removed}, draw=draw)


@declared("apply", example="onefold queue apply shop:app")
@click.argument("words", metavar="[APP]", nargs=-1)
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.reason_text
def apply(words: tuple[str, ...], yes: bool, reason_text: str | None) -> Answer:
    """Give the engine's queues the settings that the app declares, after showing what differs."""
    app, _ = target.split(words, 0, names="")
    found = target.find_app(app)
    assert found.app is not None
    declared_queues = found.app.registry.queue_settings()
    differing = admin.drift(target.session_without_queues(found, read_only=True), declared_queues)
    if not differing:
        return Answer({"changed": []}, draw=lambda: _draw_drift([]))
    if not yes:
        for one in differing:
            for difference in one.differences:
                render.note(render.joined(f"{one.queue}: ", difference))
        render.confirm("Change these settings?")
    changed = admin.apply(target.session_without_queues(found), declared_queues, reason_text=reason_text)
    return Answer({"changed": changed}, draw=lambda: _draw_drift(changed))


def _draw_drift(changed: list[admin.Drift]) -> None:
    if not changed:
        line("All queues are as declared.")
    for one in changed:
        before = "; ".join(difference.replace(" is ", " was ", 1) for difference in one.differences)
        line(render.joined(f"{one.queue}: ", f"changed; {before}"))


# -- move ------------------------------------------------------------------------------------------------------------


@declared("start", example="onefold queue move start orders-dead shop:app --rate 10/s")
@click.argument("words", metavar="QUEUE [APP]", nargs=-1)
@target.by_url
@click.option("--to", metavar="QUEUE", help="Where to; by default each message's own source.")
@click.option("--rate", type=options.RATE, help="Messages per second, for example 10/s.")
@click.option("--no-wait", is_flag=True, help="Only begin; running workers continue it.")
@options.reason_text
def start(
    words: tuple[str, ...],
    url: str | None,
    to: str | None,
    rate: int | None,
    no_wait: bool,
    reason_text: str | None,
) -> Answer:
    """Move a dead-letter queue as a whole. Unlike `onefold dlq redrive`, this does not select, watch or stop on failures."""
    found, (queue,) = _target(words, url, "QUEUE")
    task = admin.start_move(found.session, queue, to=to, per_second=rate, reason_text=reason_text)
    if not no_wait:
        task = admin.carry_move(found.session, task, lambda _: None)
    return Answer(task, draw=lambda: _draw_tasks([task]), code=1 if task.status == "FAILED" else 0)


@declared("list", example="onefold queue move list shop:app")
@click.argument("words", metavar="[APP]", nargs=-1)
@target.by_url
@click.option("--queue", metavar="NAME", help="Only moves from this dead-letter queue.")
def list_moves(words: tuple[str, ...], url: str | None, queue: str | None) -> Answer:
    """List move tasks, newest first."""
    found, _ = _target(words, url, "")
    tasks = admin.move_tasks(found.session, queue)
    return Answer({"moves": tasks}, draw=lambda: _draw_tasks(tasks))


@declared("cancel", example="onefold queue move cancel 6d49bc19c603e699 shop:app")
@click.argument("words", metavar="HANDLE [APP]", nargs=-1)
@target.by_url
def cancel(words: tuple[str, ...], url: str | None) -> Answer:
    """Stop a running move; what moved stays moved."""
    found, (handle,) = _target(words, url, "HANDLE")
    task = admin.cancel_move(found.session, handle)
    return Answer(task, draw=lambda: _draw_tasks([task]))


def _draw_tasks(tasks: list[MoveTask]) -> None:
    if not tasks:
        line("No moves.")
        return
    columns = [
        Column("handle"),
        Column("from"),
        Column("to"),
        Column("status"),
        Column("moved", right=True),
        Column("of", right=True),
    ]
    rows = [
        (one.handle, one.source, one.to or "its source", one.status, number(one.moved), number(one.to_move))
        for one in tasks
    ]
    render.draw(render.table(columns, rows))
    for one in tasks:
        if one.failure is not None:
            line(f"{one.handle}: {one.failure}", "yellow")


for each in (start, list_moves, cancel):
    move.add_command(each)
for each_of_all in (list_queues, peek, purge, move, apply):
    command.add_command(each_of_all)
