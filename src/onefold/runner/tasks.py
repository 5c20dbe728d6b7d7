"""The lane for coroutines: one event loop in one thread, a task for each run. Imported only if a job is a coroutine.

`perform` does what `Runner.perform`, `calling.call` and `calling.probe` do, but awaits: calls of the backend, and a
probe that is a plain function, are made in a thread, so that they do not block the loop. Never here: which run comes
next, settling.
Invariant: every run that was submitted is answered by exactly one `LaneReport`, and a task that is cancelled still has
an outcome: the reason for which its run was cut, or what it raised.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from onefold import errors, forks
from onefold.record import attempt as script
from onefold.record.decisions import ProbeAnswer
from onefold.record.delivery import Outcome
from onefold.runner import calling, context
from onefold.runner.context import Context
from onefold.runner.execution import Execution, LaneReport, Unit
from onefold.runner.runner import Runner

if TYPE_CHECKING:
    from onefold.outside import Clock
    from onefold.runner.execution import Report


async def perform(runner: Runner, run: Execution) -> None:
    """Perform one run up to its Commit."""
    if runner.tracing is None:
        await _perform(runner, run)
    else:
        with runner.tracing.processing(run):
            await _perform(runner, run)


async def _perform(runner: Runner, run: Execution) -> None:
    clock = runner.clock
    since_ms = clock.monotonic_ms()
    while not runner.is_over(run):
        match run.step:
            case script.Probe() as probe:
                probe.answer = await _probe(run, runner.open_context(run, run.attempt), clock)
                run.read_again()
            case script.Start():
                await asyncio.to_thread(runner.start, run)
            case script.Call() as call:
                ctx = runner.open_context(run, call.attempt)
                runner.answer(run, call, run.cut or await _call(run, ctx, clock))
            case _:
                raise errors.InvariantBroken(f"A run was performed at its step {type(run.step).__name__}.")
        run.advance(clock.now_ms())
    run.took_ms = clock.monotonic_ms() - since_ms


async def _call(run: Execution, ctx: Context, clock: Clock) -> Outcome:
    """Await the handler. What it raises is its own outcome, unless the run was cut: then its task was cancelled."""
    context.watch_pools()
    token, born = context.current.set(ctx), forks.generation()
    try:
        invoke = functools.partial(calling.invoked_async, run.job, run.payload, ctx, born)
        if run.job.hooks.has_any:
            value = await run.job.hooks.call_async(ctx, invoke)
        else:
            ctx.is_called = True
            value = await invoke()
    except BaseException as error:  # noqa: BLE001 - CancelledError too: the task must live on to settle
        if forks.generation() != born:
            calling.leave_child(error)
        ctx.raised = error
        return run.cut or calling.raised(run.job, error, clock, called=ctx.is_called)
    finally:
        context.current.reset(token)
        ctx.end()
    return calling.returned(run.job, value, ctx)


async def _probe(run: Execution, ctx: Context, clock: Clock) -> ProbeAnswer:
    """Ask the job's probe."""
    job = run.job
    context.watch_pools()
    token = context.current.set(ctx)
    try:
        found = await asyncio.to_thread(job.ask, run.payload, ctx)
        if hasattr(type(found), "__await__"):
            found = await found
        return calling.answered(job, found, ctx)
    except BaseException as error:  # noqa: BLE001 - a cancelled probe has not answered either
        ctx.raised = error
        return calling.unanswered(error, clock.now_ms())
    finally:
        context.current.reset(token)
        ctx.end()


class Tasks:
    """The lane.

    Args:
        count: tasks at one time, 1 or more.
    """

    def __init__(self, count: int, runner: Runner, report: Report) -> None:
        self.slots = count
        self._runner = runner
        self._report = report
        self._tasks: dict[Execution, asyncio.Task[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run_loop, name="onefold-loop", daemon=True)

    def start(self) -> None:
        """Start the loop's thread."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        self._report(LaneReport(lane=self, slots=self.slots))

    def submit(self, unit: Unit) -> None:
        """Start a task for each run."""
        self._call(self._begin, unit)

    def stop(self, run: Execution) -> None:
        """Cancel the run's task if its handler is running."""
        self._call(self._cancel, run)

    def end(self, *, wait: bool) -> None:
        """End the loop; tasks that are still running are cancelled, and no reports come from them."""
        self._call(self._end)
        if wait:
            self._thread.join()

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _run_loop(self) -> None:
        assert self._loop is not None
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()

    # The methods below run in the loop's thread.

    def _begin(self, unit: Unit) -> None:
        assert self._loop is not None
        for run in unit.runs:
            self._tasks[run] = self._loop.create_task(self._perform(run))

    async def _perform(self, run: Execution) -> None:
        unit = Unit([run])
        try:
            await perform(self._runner, run)
        except BaseException as error:  # noqa: BLE001 - the control loop decides
            self._report(LaneReport(lane=self, unit=unit, error=error))
        else:
            self._report(LaneReport(lane=self, unit=unit))
        finally:
            del self._tasks[run]

    def _cancel(self, run: Execution) -> None:
        task = self._tasks.get(run)
        # A task that is cancelled before its first step never runs at all, and would never be reported.
        begun = run.ctx is not None and isinstance(run.step, script.Call | script.Probe)
        if task is not None and begun:
            task.cancel()

    def _end(self) -> None:
        assert self._loop is not None
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        waiting = asyncio.gather(*tasks, return_exceptions=True)
        waiting.add_done_callback(lambda _: self._loop.stop() if self._loop is not None else None)
