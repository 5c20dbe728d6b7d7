"""`onefold reconcile`: look at a run by hand, as its declared reconciliation would, and write down what was found.

Where the app declares no reconciliation for the run, dispatched keys are compared with records alone. The ledger
says who looked. Never here: what a look consists of (`reconcile/reconciler.py`), repairs (`repair.py`), output.
Invariant: looking sends nothing and changes no operation.
"""

from __future__ import annotations

from onefold import errors
from onefold.admin.session import AdminSession
from onefold.app import App
from onefold.reconcile import findings
from onefold.reconcile.findings import ReconcileOutcome
from onefold.reconcile.reconciler import LookMessage, ReconcilePass, Reconciler
from onefold.record.error_text import summary_of
from onefold.runner import runs
from onefold.runtime.events import Sinks

BY_HAND = 0  # the number of a look that no message asked for


def reconcile(session: AdminSession, app: App | None, run: str) -> list[ReconcileOutcome]:
    """Look at a run now: once for each reconciliation that is declared for it, or once without a count of the user's own.

    Args:
        app: the app; None where only the engine is known.
        run: its full name.

    Returns:
        An outcome for each look. They are written down and reported, as those of the job are.

    Raises:
        UsageError: the user's own check failed, or answered in no known form; nothing of its look is written down.
    """
    found = runs.read(session.engine.state, run)
    title = found.run.title if found is not None else run.partition("/")[0]
    mine = [one for one in app.reconcilers.values() if one.is_for(run, title)] if app is not None else []
    if mine:
        return [_by(one, session, run) for one in mine]
    jobs = session.jobs.named if session.jobs is not None else {}
    look = ReconcilePass(session.engine, jobs, LookMessage(run=run, look=BY_HAND), name="", now_ms=session.now_ms())
    look.survey()
    outcome = look.outcome(None)
    findings.record(session.engine, outcome, actor=session.actor, sinks=Sinks(app.sinks if app is not None else ()))
    return [outcome]


def _by(reconciler: Reconciler, session: AdminSession, run: str) -> ReconcileOutcome:
    try:
        return reconciler.reconcile(LookMessage(run=run, look=BY_HAND), actor=session.actor)
    except errors.OnefoldError:
        raise
    except Exception as error:  # the user's own code may raise anything
        raise errors.UsageError(
            f"The check of {reconciler.name} failed: {type(error).__name__}: {summary_of(error)}",
            meaning=f"What it would have found of {run} is not known; nothing was written down.",
            todo="Fix it, and look again.",
        ) from error
