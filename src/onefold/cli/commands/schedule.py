"""`onefold schedule`: what an app's schedules have sent and will send; sending a tick now; pausing. It only asks and prints.

`admin/schedules.py` does the work; `onefold scheduler` sends what is due.
Invariant: a tick is sent only under its own key, and never a second time.
"""

from __future__ import annotations

import click

from onefold.admin import schedules as admin
from onefold.admin.session import AdminSession
from onefold.app import App
from onefold.cli import options, render, target
from onefold.cli.program import Answer, Group, declared
from onefold.cli.render import Column, ago, line
from onefold.observe.wording import instant

command = Group("schedule", help="Schedules: list, run-now, pause, resume.", no_args_is_help=True)


def _found(words: tuple[str, ...], wanted: int) -> tuple[AdminSession, App, list[str]]:
    name, rest = target.split(words, wanted, names="SCHEDULE" if wanted else "")
    found = target.find_app(name)
    assert found.app is not None
    return found.session, found.app, rest


@declared("list", read_only=True, example="onefold schedule list shop:app")
@click.argument("words", metavar="[APP]", nargs=-1)
def list_schedules(words: tuple[str, ...]) -> Answer:
    """What each schedule of an app has sent, and what it sends next."""
    session, app, _ = _found(words, 0)
    found = admin.views(session, app)
    return Answer({"schedules": found}, draw=lambda: _draw(found, session.now_ms()))


def _draw(found: list[admin.ScheduleView], now_ms: int) -> None:
    if not found:
        line("The app declares no schedule.")
        return
    columns = [
        Column("schedule"), Column("state"), Column("times", folds=True), Column("sent", right=True),
        Column("last", right=True), Column("next", folds=True),
    ]  # fmt: skip
    rows = [
        (
            one.schedule,
            f"paused, {ago(now_ms - one.paused_since_ms)}" if one.paused_since_ms is not None else one.phase,
            f"{one.expression} {one.zone}",
            render.number(one.sent),
            instant(one.sent_ms) if one.sent_ms is not None else None,
            instant(one.next_ms) if one.next_ms is not None else None,
        )
        for one in found
    ]
    render.draw(render.table(columns, rows))


@declared(
    "run-now",
    example="onefold schedule run-now nightly shop:app --reason-text 'the export came late'\n"
    "onefold schedule run-now nightly shop:app --tick 2026-06-01T02:00:00Z",
)
@click.argument("words", metavar="SCHEDULE [APP]", nargs=-1)
@click.option(
    "--tick",
    metavar="TIME",
    help="Planned time of the tick, as in its key; by default the next one, unless it was sent ahead of its time.",
)
@options.reason_text
def run_now(words: tuple[str, ...], tick: str | None, reason_text: str | None) -> Answer:
    """Send a tick now, under its own key; when its time comes it is not sent again.

    A tick that was sent already is refused, so that a command typed twice does not send the tick after it too.
    `onefold calendar` lists ticks.
    """
    session, app, (name,) = _found(words, 1)
    sent = admin.run_now(session, app, name, tick, reason_text=reason_text)
    return Answer(sent, draw=lambda: line(render.joined(f"Sent {sent.run} to {sent.queue}.")))


@declared("pause", example="onefold schedule pause nightly shop:app --reason-text 'the warehouse moves'")
@click.argument("words", metavar="SCHEDULE [APP]", nargs=-1)
@options.reason_text
def pause(words: tuple[str, ...], reason_text: str | None) -> Answer:
    """Have a schedule send no ticks until it is resumed. What was sent still runs."""
    session, app, (name,) = _found(words, 1)
    done = admin.pause(session, app, name, reason_text=reason_text)
    said = f"{name} is paused." if done else f"{name} was paused already."
    return Answer({"schedule": name, "paused": True, "changed": done}, draw=lambda: line(said))


@declared("resume", example="onefold schedule resume nightly shop:app")
@click.argument("words", metavar="SCHEDULE [APP]", nargs=-1)
@options.reason_text
def resume(words: tuple[str, ...], reason_text: str | None) -> Answer:
    """Resume a paused schedule with its next tick; ticks that were due during the pause are skipped.

    Running schedulers notice within ten seconds. `run-now --tick` sends a tick of the pause.
    """
    session, app, (name,) = _found(words, 1)
    done = admin.resume(session, app, name, reason_text=reason_text)
    said = f"{name} is resumed." if done else f"{name} was not paused."
    return Answer({"schedule": name, "paused": False, "changed": done}, draw=lambda: line(said))


for each in (list_schedules, run_now, pause, resume):
    command.add_command(each)
