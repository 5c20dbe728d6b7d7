"""Asking a job's probe whether the effect of an earlier run happened.

As `calling.py` calls handlers: here and now, in the worker and in its child processes. Only runs in doubt come here. What a
probe may answer is in `probe_answers.py`.
Never here: scripts, storage, deadlines, what the answer decides (`decide/probing.py`).
Invariant: a probe that fails has not answered; it is never taken for "not done".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onefold.decide.probing import ProbeAnswer
from onefold.run.calling import run_coroutine
from onefold.run.context import Context
from onefold.run.handlers import Job

if TYPE_CHECKING:
    from onefold.outside import Clock


def probe(job: Job[Any, Any], payload: Any, ctx: Context, clock: Clock) -> ProbeAnswer:
    """Ask the job's probe in this thread; one that fails has not answered, see `unanswered`."""
    try:
        found = job.ask(payload, ctx)
        if hasattr(found, "__await__"):
            found = run_coroutine(found)
        return job.probe_answer(found)
    except Exception as error:  # noqa: BLE001 - see above
        return unanswered(error, clock.now_ms())


def unanswered(error: BaseException, now_ms: int) -> ProbeAnswer:
    """The answer of a probe that failed: ask again later where that is known to help, else a person must look.

    A probe only looks, so an answer that was lost may be asked for again.
    """
    from onefold.decide.failures import judge  # only a failure pays for the tables
    from onefold.run.error_text import kept_text

    summary = f"The probe failed: {type(error).__name__}: {kept_text(error)}"[:500]
    ruling = judge(error, now_ms=now_ms, sent="transient")
    if ruling.listed and ruling.kind in ("transient", "dependency-down"):
        return ProbeAnswer(verdict="later", summary=summary, retry_in_ms=ruling.retry_in_ms)
    return ProbeAnswer(verdict="unknown", summary=summary)
