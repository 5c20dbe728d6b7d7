"""`onefold alarms`: list, show past ones, silence and test alarms; `onefold watch`: evaluate them. They only print.

`observe/alarms.py` defines what an alarm means, `testing/alarm_drills.py` what a test does.
Invariants: `list` and `history` evaluate nothing; a test touches no engine but its own, and what it sends is marked as a
    test.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

import click

from onefold import errors, limits
from onefold.admin import alarms as admin
from onefold.app import App
from onefold.cli import options, render, target
from onefold.cli.commands.scheduler import stopped_by_signals
from onefold.cli.program import Answer, Group, declared
from onefold.cli.render import Column, ago, line
from onefold.clock import SystemClock
from onefold.observe import alarm_rules
from onefold.observe.alarm_targets import QUEUE, names, unreadable
from onefold.observe.alarms import ALARMS
from onefold.observe.incidents import Report, history
from onefold.observe.watch import Watch, beside
from onefold.observe.wording import age, counted, instant, with_target
from onefold.options import WorkerSettings
from onefold.runner import worker_setup as workers
from onefold.runner.worker import Worker
from onefold.testing.alarm_drills import DRILLS, DrillResult, drill

command = Group("alarms", help="Alarms: list, history, silence, test.", no_args_is_help=True)


@declared("list", read_only=True, example="onefold alarms list shop:app\nonefold alarms list shop:app --table")
@click.argument("words", metavar="[APP]", nargs=-1)
@target.by_store_url
@click.option("--table", is_flag=True, help="Instead, all existing alarms with their thresholds.")
def list_alarms(words: tuple[str, ...], url: str | None, table: bool) -> Answer:
    """Which alarms are on or wait, and what is silenced.

    They are evaluated by a worker that receives from the queue of alarms, or by `onefold watch`.
    """
    if table:
        every = list(ALARMS.values())
        return Answer({"alarms": every}, draw=_draw_table)
    app, _ = target.split(words, 0, names="")
    found = target.find(app, url, records=True)
    now = admin.now(found.session)
    return Answer(now, draw=lambda: _draw_now(now, found.words))


def _draw_table() -> None:
    columns = [
        Column("alarm"), Column("severity"), Column("of"), Column("begins at", folds=True), Column("ends at", folds=True),
        Column("evaluated on", folds=True),
    ]  # fmt: skip
    rows = [
        (one.name, one.severity, one.of, f"{one.condition}: {one.threshold}", one.clear, ", ".join(one.sides))
        for one in ALARMS.values()
    ]
    render.draw(render.table(columns, rows))


def _draw_now(now: admin.AlarmsNow, words: str) -> None:
    if not now.watched:
        watch = with_target("onefold watch", words)
        render.sentence(
            f"Nobody evaluates alarms: start a worker whose app calls app.alarms(...), or {watch}", style="yellow"
        )
    if not now.alarms:
        line("No alarm is on." if now.watched else "Whether an alarm is on is not known.")
    for one in now.alarms:
        since = ago(None if one.since_ms is None else now.at_ms - one.since_ms)
        state = {"on": f"{one.severity}, on for {since}", "waiting": f"waits, {since}", "over": "has ended"}[one.phase]
        silenced = ", silenced" if one.silenced_until_ms is not None else ""
        line(render.joined(f"{one.alarm} of {one.subject}   {state}{silenced}"), "bold" if one.phase == "on" else "dim")
        owner = f" (owner: {one.owner})" if one.owner else ""
        render.fold(f"{one.text}. {one.meaning}{owner}", "  ", "  ")
        render.todo([one.first], words)
    for silence in now.silences:
        left = age(silence.until_ms - now.at_ms)
        render.fold(
            f"{silence.name} is silenced for {left} by {silence.by.removeprefix('person:')}: {silence.reason}",
            "~ ",
            "  ",
            "dim",
        )


@declared("history", read_only=True, example="onefold alarms history shop:app")
@click.argument("words", metavar="[APP]", nargs=-1)
@target.by_store_url
def show_history(words: tuple[str, ...], url: str | None) -> Answer:
    """What was recently reported about alarms, oldest first."""
    app, _ = target.split(words, 0, names="")
    found = target.find(app, url, records=True)
    reports = history(found.session.engine.state)
    return Answer({"reports": reports}, draw=lambda: _draw_reports(reports))


def _draw_reports(reports: Sequence[Report]) -> None:
    if not reports:
        line("No alarm was reported.")
        return
    columns = [Column("at"), Column("alarm"), Column("of", folds=True), Column(""), Column("value", folds=True)]
    rows = [
        (
            render.local(one.at_ms), one.alarm, one.subject,
            f"{one.severity} {one.kind}" + (", silenced" if one.silenced else ""), one.text,
        )
        for one in reports
    ]  # fmt: skip
    render.draw(render.table(columns, rows))


@declared(
    "silence",
    example="onefold alarms silence dlq-not-empty shop:app --for 2h --reason 'partner is down, they know'\n"
    "onefold alarms silence stalled/orders shop:app --lift --reason done",
)
@click.argument("words", metavar="NAME [APP]", nargs=-1)
@target.by_store_url
@click.option("--for", "for_ms", type=options.DURATION, help="For how long, at most 30 days.")
@click.option("--lift", is_flag=True, help="End its silence now.")
@click.option("--reason", required=True, metavar="TEXT", help="Why; kept in the history with your name.")
def silence(words: tuple[str, ...], url: str | None, for_ms: int | None, lift: bool, reason: str) -> Answer:
    """Send no reports of an alarm for a while: NAME, NAME/SUBJECT, or * for all of them.

    Meanwhile it is evaluated and kept in the history. If it is still on when the silence ends, it is reported then.
    """
    if lift == (for_ms is not None):
        raise click.UsageError("Say for how long (--for 2h), or --lift. Nothing was changed.")
    app, (name,) = target.split(words, 1, names="NAME", url=url)
    found = target.find(app, url, records=True)
    made = admin.silence(found.session, name, 0 if lift else for_ms or 0, reason)
    said = f"{name} is not silenced any more." if lift else f"{name} is silenced until {render.local(made.until_ms)}."
    return Answer(made, draw=lambda: line(render.joined(said)))


@declared("test", example="onefold alarms test dlq-not-empty shop:app\nonefold alarms test --all")
@click.argument("words", metavar="[NAME] [APP]", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every alarm that is evaluated here.")
def test(words: tuple[str, ...], every: bool) -> Answer:
    """Make an alarm's condition true on a separate engine, wait for the alarm and for its end, and report both.

    Time is simulated. With an APP the reports go to its targets, marked as a test, so that you see them arrive. Exit
    code 1: a target did not take a report.
    """
    app, rest = target.split(words, 0 if every else 1, names="" if every else "NAME")
    targets = target.load(app).registry.alarms if app is not None else None
    if app is not None and targets is None:
        raise errors.UsageError(f"{app} does not say where its alarms go.", todo="Call app.alarms(slack=...) in it.")
    results = [drill(name, targets) for name in (DRILLS if every else rest)]
    where = names(targets) if targets is not None else []
    code = int(any(one.unsent for one in results))
    return Answer({"tests": results, "targets": where}, draw=lambda: _draw_tests(results, where), code=code)


def _draw_tests(results: Sequence[DrillResult], where: Sequence[str]) -> None:
    for one in results:
        line(
            f"{one.alarm}: began {age(one.began_after_ms)} after its condition, ended {age(one.ended_after_ms)} after that "
            f"had ended; {counted(len(one.reports), 'report')}"
        )
    sent = sum(one.sent for one in results)
    unsent = {name: why for one in results for name, why in one.unsent.items()}
    took = [name for name in where if name not in unsent]
    if took:
        line(f"sent to {', '.join(took)}: {counted(sent, 'message')}", "dim")
    for name, why in unsent.items():
        render.fold(f"{name} did not get every report: {why}", "", "  ", "red")
    if not where:
        line("sent nowhere: no APP was named", "dim")


@declared("rules", example="onefold alarms rules shop:app --prometheus > onefold.rules.yml")
@click.argument("words", metavar="[APP]", nargs=-1)
@click.option("--prometheus", is_flag=True, required=True, help="As alerting rules for Prometheus.")
def rules(words: tuple[str, ...], prometheus: bool) -> Answer:
    """Write an app's alarms for another evaluator; thresholds come from the app's own numbers.

    The rules use the metrics of `onefold worker --metrics`.
    """
    del prometheus  # no other kind exists yet
    name, _ = target.split(words, 0, names="")
    found = target.find_app(name)
    assert found.app is not None
    word = name or os.environ.get("ONEFOLD_APP", "APP")
    now_ms = SystemClock().now_ms()
    text = alarm_rules.prometheus(found.app.registry, target=word, now_ms=now_ms)
    made = list(alarm_rules.rules(found.app.registry, now_ms))
    return Answer({"rules": made, "prometheus": text}, draw=lambda: click.echo(text, nl=False))


for each in (list_alarms, show_history, silence, test, rules):
    command.add_command(each)


# -- watch -----------------------------------------------------------------------------------------------------------


@declared("watch", example="onefold watch shop:app\nonefold watch shop:app --once   (from the host's own cron)")
@click.argument("words", metavar="[APP]", nargs=-1)
@click.option("--once", is_flag=True, help="Evaluate once, send the reports, and end.")
def watch(words: tuple[str, ...], once: bool) -> Answer:
    """Evaluate an app's alarms, and send reports to the targets of app.alarms(...).

    Workers that receive from the queue of alarms do the same; only one of all these processes evaluates, and another
    takes over when it ends. SIGTERM or Ctrl-C ends it.
    """
    name, _ = target.split(words, 0, names="")
    found = target.find_app(name)
    assert found.app is not None
    app = found.app
    made = Watch(app.runtime(), app.registry.alarms)
    sender = _sender(app, until_empty=once)
    for warning in unreadable(app.registry.alarms) if app.registry.alarms is not None else ():
        render.note(f"warning: {warning}")
    reports: list[Report] = []
    if sender is None:
        render.note(
            "note: the app has no app.alarms(...): reports are printed here and kept in the history, but not sent"
        )

    def reported(report: Report) -> None:
        reports.append(report)
        render.note(
            render.joined(f"{instant(report.at_ms)} {report.severity} {report.kind}: {report.alarm} of {report.subject}: ",
            report.text)
        )  # fmt: skip

    if once:
        for report in made.look():
            reported(report)
        made.resign()
        if sender is not None:
            sender.run()
    else:
        _until_stopped(made, sender, app, reported)
    return Answer({"reports": reports}, draw=lambda: line(f"ended: {counted(len(reports), 'report')}"))


def _sender(app: App, *, until_empty: bool) -> Worker | None:
    """A worker that sends reports; None if the app names no target."""
    if app.registry.alarms is None:
        return None
    return workers.make_worker(
        app.runtime(), app.jobs, app.registry.job_of, settings=WorkerSettings(threads=4, until_empty=until_empty),
        history=app.history, sinks=app.sinks, queues=[QUEUE],
    )  # fmt: skip


def _until_stopped(made: Watch, sender: Worker | None, app: App, reported: Callable[[Report], None]) -> None:
    if sender is not None:
        with stopped_by_signals(sender.drain), beside(made, reported):
            sender.run()
        return
    ended = threading.Event()
    with stopped_by_signals(ended.set), beside(made, reported):
        while not app.runtime().clock.wait(ended, limits.HOUR_MS):
            pass
