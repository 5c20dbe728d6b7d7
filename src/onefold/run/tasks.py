"""The lane for coroutines: one event loop in one thread, a task for each run.

As in `executors.py`, and imported only where a job is a coroutine.
Never here: which run comes next, settling. Invariant: every run that was submitted is answered by exactly one `Done`, also
when its task is cancelled.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from onefold.decide import attempt as script
from onefold.run import in_tasks
from onefold.run.driver import Driver
from onefold.run.executors import Done, Unit
from onefold.run.passage import Run

if TYPE_CHECKING:
    from onefold.run.executors import Report


class Tasks:
    """The lane.

    Args:
        count: tasks at one time, 1 or more.
    """

    def __init__(self, count: int, driver: Driver, report: Report) -> None:
        self.slots = count
        self._driver = driver
        self._report = report
        self._tasks: dict[Run, asyncio.Task[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run_loop, name="onefold-loop", daemon=True)

    def start(self) -> None:
        """Start the loop's thread."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        self._report(Done(lane=self, slots=self.slots))

    def submit(self, unit: Unit) -> None:
        """Make a task of each run."""
        self._call(self._begin, unit)

    def stop(self, run: Run) -> None:
        """Cancel the run's task, if its handler has been called and has not ended."""
        self._call(self._cancel, run)

    def end(self, *, wait: bool) -> None:
        """End the loop; tasks that are under way are cancelled and heard of no more."""
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

    # In the loop's thread from here on.

    def _begin(self, unit: Unit) -> None:
        assert self._loop is not None
        for run in unit.runs:
            self._tasks[run] = self._loop.create_task(self._perform(run))

    async def _perform(self, run: Run) -> None:
        unit = Unit([run])
        try:
            await in_tasks.perform(self._driver, run)
        except BaseException as error:  # noqa: BLE001 - the control loop decides
            self._report(Done(lane=self, unit=unit, error=error))
        else:
            self._report(Done(lane=self, unit=unit))
        finally:
            del self._tasks[run]

    def _cancel(self, run: Run) -> None:
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
