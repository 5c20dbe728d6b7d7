"""One run performed in a task of an event loop: as `Driver.perform`, `calling.call` and `probing.probe`, awaited.

What the backend has to do, and a probe that is a plain function, happen in a thread, so that they do not hold up the loop.
Used by `tasks.py`, the lane for coroutines, and imported only where a job is one.
Never here: which run comes next, settling. Invariant: a task that is cancelled still comes to an outcome: what its run was
cut for, or what it raised.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from onefold import errors, forks
from onefold.decide import attempt as script
from onefold.decide.outcomes import Outcome
from onefold.decide.probing import ProbeAnswer
from onefold.run import calling, context, probing
from onefold.run.context import Context
from onefold.run.driver import Driver
from onefold.run.handlers import Job
from onefold.run.passage import Run

if TYPE_CHECKING:
    from onefold.outside import Clock


async def perform(driver: Driver, run: Run) -> None:
    """Perform one run up to its Commit."""
    clock = driver.clock
    since_ms = clock.monotonic_ms()
    while not isinstance(run.step, script.Commit):
        match run.step:
            case script.Probe() as probe:
                probe.answer = await _probe(run.job, run.payload, driver.open_context(run, run.attempt), clock)
            case script.Start():
                if not await asyncio.to_thread(driver.start, run):
                    return
            case script.Call() as call:
                ctx = driver.open_context(run, call.attempt)
                driver.answer(run, call, run.cut or await _call(run, ctx, clock))
            case _:
                raise errors.InvariantBroken(f"A run was performed at its step {type(run.step).__name__}.")
        run.advance(clock.now_ms())
    run.took_ms = clock.monotonic_ms() - since_ms


async def _call(run: Run, ctx: Context, clock: Clock) -> Outcome:
    """Await the handler; what it raised is its own, unless the run was cut: its task was cancelled from outside then."""
    context.watch_pools()
    token, born = context.current.set(ctx), forks.generation()
    try:
        value = await run.job.invoke(run.payload, ctx)
        if forks.generation() != born:
            calling.leave_child(None)
    except BaseException as error:  # noqa: BLE001 - CancelledError too: the task must live on to settle
        if forks.generation() != born:
            calling.leave_child(error)
        return run.cut or calling.raised(run.job, error, clock)
    finally:
        context.current.reset(token)
        ctx.end()
    return calling.returned(run.job, value, ctx)


async def _probe(job: Job[Any, Any], payload: Any, ctx: Context, clock: Clock) -> ProbeAnswer:
    """Ask the job's probe."""
    try:
        found = await asyncio.to_thread(job.ask, payload, ctx)
        if hasattr(found, "__await__"):
            found = await found
        return job.probe_answer(found)
    except BaseException as error:  # noqa: BLE001 - a probe that was cancelled has not answered either
        return probing.unanswered(error, clock.now_ms())
