"""Calling a job's handler or probe, here and now, and saying what it did as a value.

Four functions: handler and probe, each for a thread and for a task. A handler that raises has failed, whatever it raised:
`sys.exit()` in a handler must not end the worker. The same functions run in the worker's threads, in its event loop and in
its child processes, so a failure means the same everywhere.
Never here: scripts, storage, deadlines. Invariant: what a handler does, short of ending the process, comes back as one
outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onefold import errors
from onefold.clock import Clock
from onefold.decide import delivery as fate
from onefold.decide.attempt import ProbeAnswer
from onefold.run import context
from onefold.run.context import Context
from onefold.run.handlers import Job


def call(job: Job[Any, Any], payload: Any, ctx: Context, clock: Clock) -> fate.Outcome:
    """Call the handler in this thread; an `async def` handler gets an event loop of its own."""
    token = context.current.set(ctx)
    try:
        value = job.invoke(payload, ctx)
        if hasattr(value, "__await__"):
            value = _run_coroutine(value)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise  # the person at the terminal means the process, not this run
        return raised(job, error, clock)
    finally:
        context.current.reset(token)
    return returned(job, value, ctx)


async def call_in_task(
    job: Job[Any, Any], payload: Any, ctx: Context, clock: Clock, cut: Callable[[], fate.Outcome | None]
) -> fate.Outcome:
    """Await the handler in this task.

    Args:
        cut: the outcome when the handler was stopped from outside (its task was cancelled at its deadline, or because its
            lease was lost); None when it was not, so that what it raised is its own.
    """
    token = context.current.set(ctx)
    try:
        value = await job.invoke(payload, ctx)
    except BaseException as error:  # noqa: BLE001 - CancelledError too: the task must live on to settle
        return cut() or raised(job, error, clock)
    finally:
        context.current.reset(token)
    return returned(job, value, ctx)


def probe(job: Job[Any, Any], payload: Any, ctx: Context, clock: Clock) -> ProbeAnswer:
    """Ask the job's probe in this thread. A probe that fails has not answered; see `unanswered`."""
    try:
        found = job.ask(payload, ctx)
        if hasattr(found, "__await__"):
            found = _run_coroutine(found)
        return job.probe_answer(found)
    except Exception as error:  # noqa: BLE001 - see above
        return unanswered(error, clock.now_ms())


async def probe_in_task(job: Job[Any, Any], payload: Any, ctx: Context, clock: Clock) -> ProbeAnswer:
    """As `probe`, in this task. A plain function is asked in a thread, so that it does not hold up the loop."""
    import asyncio

    try:
        found = await asyncio.to_thread(job.ask, payload, ctx)
        if hasattr(found, "__await__"):
            found = await found
        return job.probe_answer(found)
    except BaseException as error:  # noqa: BLE001 - a probe that was cancelled has not answered either
        return unanswered(error, clock.now_ms())


def returned(job: Job[Any, Any], value: object, ctx: Context) -> fate.Outcome:
    """The outcome of a handler that returned `value`."""
    try:
        result = job.rules.payload.encode_result(value)
    except errors.PayloadError as error:
        return fate.Unstorable(summary=str(error)[:500])
    except Exception as error:  # noqa: BLE001 - a result's own methods may raise anything; the effect has happened all the same
        return fate.Unstorable(summary=f"The result could not be encoded: {type(error).__name__}: {error}"[:500])
    return fate.Success(result=result, outbox=ctx.outbox)


def raised(job: Job[Any, Any], error: BaseException, clock: Clock) -> fate.Outcome:
    """The outcome of a handler that raised `error`."""
    if isinstance(error, errors.LeaseLost):
        return fate.LeaseGone()
    from onefold.decide.failures import classify  # only a failure pays for the tables

    classes = job.classes
    return classify(
        error,
        now_ms=clock.now_ms(),
        transient=classes.get("transient", ()),
        permanent=classes.get("permanent", ()),
        unknown=classes.get("unknown", ()),
    )


def overran(timeout_ms: int) -> fate.Failed:
    """The outcome of a handler that was stopped at its deadline: whether its effect happened is not known."""
    summary = f"The handler was still running after its timeout of {timeout_ms} ms and was stopped."
    return fate.Failed(kind="unknown", error="HandlerTimeout", summary=summary)


def unanswered(error: BaseException, now_ms: int) -> ProbeAnswer:
    """The answer of a probe that failed: ask again later where that is known to help, else a person must look.

    A probe only looks, so an answer that was lost may be asked for again.
    """
    summary = f"The probe failed: {type(error).__name__}: {error}"[:500]
    from onefold.decide.failures import judge

    ruling = judge(error, now_ms=now_ms, sent="transient")
    if ruling.listed and ruling.kind in ("transient", "dependency-down"):
        return ProbeAnswer(verdict="later", summary=summary, retry_in_ms=ruling.retry_in_ms)
    return ProbeAnswer(verdict="unknown", summary=summary)


def _run_coroutine(value: Any) -> Any:
    import asyncio  # 36 ms to import; only jobs with coroutines pay it

    async def awaited() -> Any:
        return await value

    return asyncio.run(awaited())
