"""Schedulers: built for an app, run in a thread beside a worker, and asked what they will send next.

Never here: the loop (`schedules/scheduler.py`), signals (cli), what an expression means (`admin/calendars.py`).
Invariant: whoever runs a scheduler gets the error it ends with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from onefold import errors, limits
from onefold.runner.events import Sinks
from onefold.runner.names import take
from onefold.schedules.fire_times import zone_of
from onefold.schedules.schedule import Schedule
from onefold.schedules.scheduler import Scheduler
from onefold.schedules.transactions import SchedulerApp

if TYPE_CHECKING:
    from onefold.runner.events import Sink


class Upcoming(Struct, frozen=True, kw_only=True):
    """What a scheduler will do.

    Args:
        schedule: its name. at: when it is sent, UTC; within a flexible window that is after its planned time.
        local: the same in the schedule's zone. in_ms: from now; 0 or less when it is due.
    """

    schedule: str
    at: str
    local: str
    in_ms: int


class Ended(Struct, frozen=True, kw_only=True):
    """A schedule that has no further tick: its name, and its expression as it was written."""

    schedule: str
    expression: str


def make_scheduler(app: SchedulerApp, schedules: Mapping[str, Schedule], *, sinks: Iterable[Sink] = ()) -> Scheduler:
    """A scheduler for an app's schedules, ready to `run()`.

    Raises:
        UsageError: the app declares no schedules. ConflictError: another app on this engine has one of that name.
    """
    if not schedules:
        raise errors.UsageError(
            f"App {app.name} declares no schedules.",
            todo="Declare one with @app.schedule(...), in a module that is imported where the app is made.",
        )
    opened = app.runtime()
    take(opened.engine.state, [one.job.name for one in schedules.values()], app.name, opened.clock.now_ms())
    return Scheduler(app, schedules, Sinks(sinks))


def upcoming(scheduler: Scheduler, schedules: Mapping[str, Schedule], now_ms: int, count: int = 5) -> list[Upcoming]:
    """The next ticks of a started scheduler, of each schedule its next one, in order.

    Args:
        count: at most so many.
    """
    found: list[Upcoming] = []
    for name, at_ms in scheduler.next_ticks(count):
        at = datetime.fromtimestamp(at_ms / limits.SECOND_MS, UTC)
        local = at.astimezone(zone_of(schedules[name].timing.zone))
        found.append(
            Upcoming(
                schedule=name, at=f"{at:%Y-%m-%dT%H:%M:%SZ}", local=f"{local:%a %Y-%m-%d %H:%M:%S %Z}", in_ms=at_ms - now_ms
            )
        )  # fmt: skip
    return found


def ended(scheduler: Scheduler, schedules: Mapping[str, Schedule]) -> list[Ended]:
    """The schedules of a started scheduler that have no further tick, by name."""
    return [Ended(schedule=name, expression=schedules[name].expression) for name in scheduler.ended()]


@contextmanager
def beside(scheduler: Scheduler, failed: Callable[[], None]) -> Iterator[None]:
    """Run a scheduler in a thread of its own while the block runs; what is due at its beginning was sent before it.

    Args:
        failed: is called when it ended by an error, which is raised when the block ends.

    Raises:
        As `Scheduler.run`.
    """
    raised: list[BaseException] = []
    with suppress(errors.TransientError):  # the thread tries again
        scheduler.catch_up()

    def run() -> None:
        try:
            scheduler.run()
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that waits for it
            raised.append(error)
            failed()

    thread = threading.Thread(target=run, name="onefold-scheduler", daemon=True)
    thread.start()
    try:
        yield
    finally:
        scheduler.stop()
        thread.join()
    if raised:
        raise raised[0]
