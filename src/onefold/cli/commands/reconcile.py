"""`onefold reconcile`: check a run by hand, and send again what is missing.

It parses and prints; `admin/reconcile.py` does the work.
Invariant: nothing is sent without --repair and --yes.
"""

from __future__ import annotations

import click

from onefold import errors
from onefold.admin import reconcile, runs
from onefold.admin.reconcile import Repair, RepairPlan
from onefold.cli import options, outcomes, render, target
from onefold.cli.program import Answer, declared
from onefold.cli.render import Column, line
from onefold.maps import state as map_state
from onefold.observe.wording import counted
from onefold.reconcile.findings import ReconcileOutcome

_SHOWN = 20  # planned messages that are shown; --json has them all


@declared(
    "reconcile",
    example="onefold reconcile shop:app monthly-billing/2026-06\n"
    "onefold reconcile shop:app monthly-billing/2026-06-01T02:00:00Z --repair --yes --reason-text 'queue was purged'",
)
@click.argument("words", metavar="[APP] RUN", nargs=-1)
@target.by_url
@click.option("--repair", is_flag=True, help="Show which missing messages would be sent again; send none.")
@click.option("--yes", is_flag=True, help="With --repair: send them.")
@options.reason_text
def command(words: tuple[str, ...], url: str | None, repair: bool, yes: bool, reason_text: str | None) -> Answer:
    """Check that everything a run dispatched exists, exactly once.

    The keys that it dispatched are compared with records and queues, and with what the app's own check counts, if it
    declares one (`app.reconcile`). RUN is a run's name, or a beginning that no other run has. The finding is recorded in
    the run's history and reported as an event, with and without --repair: a run that is not complete raises its alarm.

    --repair runs the dispatcher again to get the messages that are missing, and sends them under their own keys: what has
    taken effect in the meantime is not run again. Exit code 1: the run is not complete; with --yes: something is left to do.
    """
    if yes and not repair:
        raise click.UsageError("--yes goes with --repair.")
    app, (text,) = target.split(words, 1, names="RUN", url=url)
    found = target.find(app, url)
    if repair and found.app is None:
        raise click.UsageError(
            "--repair needs the app, whose dispatcher makes the messages: name it as module:attribute."
        )
    try:
        run = runs.find_run(found.session, text)
    except errors.StorageError as error:
        meaning = "A reconciliation writes down what it found, so that reading alone is not enough."
        raise errors.StorageError(error.what, meaning=meaning, todo=error.todo) from None
    all_found = reconcile.reconcile(found.session, found.app, run)
    code = int(any(one.verdict != "agrees" for one in all_found))
    if not repair:
        return Answer({"outcomes": all_found}, draw=lambda: _draw_outcomes(all_found, found), code=code)
    assert found.app is not None
    work = Repair(found.session, found.app, run)
    plan = work.send(reason_text) if yes else work.plan
    if yes:
        code = int(not plan.whole)

    def draw() -> None:
        _draw_outcomes(all_found, found, repairs=True)
        line()
        _draw_plan(plan, found, sent=yes)

    return Answer({"outcomes": all_found, "repair": plan}, draw=draw, code=code)


def _draw_outcomes(all_found: list[ReconcileOutcome], found: target.Target, *, repairs: bool = False) -> None:
    for index, outcome in enumerate(all_found):
        if index:
            line()
        is_map = map_state.read(found.session.engine.state, outcome.run) is not None
        outcomes.draw(outcome, found.words, repairs=repairs, is_map=is_map)
    line(f"Recorded in the run's history, as found by {found.session.actor.removeprefix('person:')}.", "dim")


# -- the repair ------------------------------------------------------------------------------------------------------


def _draw_plan(plan: RepairPlan, found: target.Target, *, sent: bool) -> None:
    line("Repair", "bold")
    if plan.resend:
        columns = [Column("key", folds=True), Column("job", folds=True), Column("to"), Column("because", folds=True)]
        rows = [(one.key, one.job, one.queue, one.why) for one in plan.resend[:_SHOWN]]
        render.draw(render.table(columns, rows))
        line()
    if len(plan.resend) > _SHOWN:
        line(f"  and {len(plan.resend) - _SHOWN:,} more; --json has them all")
    for one in plan.refused[:_SHOWN]:
        line(f"  {one.job} {one.key} is missing and cannot be sent again: {one.why}", "red")
    if len(plan.refused) > _SHOWN:
        line(f"  and {len(plan.refused) - _SHOWN:,} more that cannot be sent again")
    if plan.more:
        line(f"  There are more than {len(plan.resend) + len(plan.refused):,}: repair again afterwards.")
    if sent and plan.resend:
        line(f"{counted(plan.sent, 'message')} sent again, each under its own key.")
        render.todo([f"onefold reconcile {plan.run}   (when workers have done them)"], found.words)
    elif plan.resend:
        line(f"{counted(len(plan.resend), 'message')} would be sent again. Nothing was sent.")
        render.todo([f"onefold reconcile {plan.run} --repair --yes"], found.words)
    else:
        line("There is nothing to send again.")
