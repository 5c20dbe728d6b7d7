"""`onefold scheduler`: send an app's ticks as they become due, and show what comes next.

SIGTERM or SIGINT ends it after the current transaction; a second one ends the process. Nothing is lost either way.
Never here: the loop, and how a scheduler is built (`schedules/scheduler.py`).
Invariant: a signal handler only sets the scheduler's flag.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from onefold.admin.jobs import unmatched
from onefold.admin.session import absolute
from onefold.app import App
from onefold.cli import render, target
from onefold.cli.program import Answer, declared
from onefold.cli.render import line
from onefold.observe.sinks import of_app
from onefold.observe.wording import age, counted, instant
from onefold.runtime.events import EVENTS, Event
from onefold.schedules import scheduler as schedulers
from onefold.schedules.scheduler import Ended, Scheduler, Upcoming

if TYPE_CHECKING:
    from onefold.runtime.events import Sink

_SAID = 5  # ticks or schedules that are listed at the start


class SchedulerReport(Struct, frozen=True, kw_only=True):
    """What a scheduler did.

    Args:
        sent: how many ticks. runs: their names, with --once. next: what comes next.
        more: how many other schedules have a further tick.
        ended: schedules that have no further tick. paused: schedules that a person has paused.
    """

    sent: int
    runs: tuple[str, ...]
    next: tuple[Upcoming, ...]
    more: int
    ended: tuple[Ended, ...]
    paused: tuple[str, ...]


class _Voice:
    """A sink that reports on standard error what happens, and keeps the names of what was sent."""

    def __init__(self, *, says: bool, keeps: bool) -> None:
        self._says = says
        self._keeps = keeps
        self.runs: list[str] = []

    def emit(self, event: Event) -> None:
        """Print an event, or keep its run."""
        if event.name == "ticked" and event.run is not None and self._keeps:
            self.runs.append(event.run)
        if not self._says or event.severity == "debug":
            return
        if event.name == "ticked":
            render.note(f"{instant(event.at_ms)} sent {event.run}")
            return
        detail = ", ".join(_detail_text(name, value) for name, value in event.detail.items() if value is not None)
        render.note(
            f"{instant(event.at_ms)} {event.name}: {EVENTS[event.name].text}" + (f" ({detail})" if detail else "")
        )


def _detail_text(name: str, value: object) -> str:
    """A detail of an event as text; instants as date and time."""
    if name in ("from_ms", "to_ms") and isinstance(value, int):
        return f"{name.removesuffix('_ms')}={instant(value)}"
    return f"{name}={value}"


@declared(
    "scheduler",
    example="onefold scheduler shop:app\nonefold scheduler shop:app --once   (from the host's own cron, every minute)",
)
@click.argument("words", metavar="[APP]", nargs=-1)
@click.option("--once", is_flag=True, help="Send what is due now, and end.")
@click.option("--log", type=click.Choice(["json", "plain"]), help="Events as log lines on standard error.")
def command(words: tuple[str, ...], once: bool, log: str | None) -> Answer:
    """Send the ticks of an app's schedules as they become due, until stopped.

    Any number of schedulers can run: each tick is sent once, and if one ends, the others send its ticks. `onefold worker`
    does the ticks' work. SIGTERM or Ctrl-C ends it; what is due later is sent by the others, or when one runs again.
    """
    name, _ = target.split(words, 0, names="")
    found = target.find_app(name)
    assert found.app is not None
    app = found.app
    voice = _Voice(says=log is None and not render.is_quiet(), keeps=once)
    sinks: list[Sink] = [*app.sinks, voice]
    if log is not None:
        sinks.append(of_app(app.name, log))
    for warning in unmatched(app):
        render.note(f"warning: {warning}")
    scheduler = schedulers.make_scheduler(app.runtime(), sinks=sinks)
    if once:
        scheduler.catch_up()
    else:
        with stopped_by_signals(scheduler.stop):
            scheduler.run(resting=_Next(app, scheduler).say if log is None and not render.is_quiet() else None)
    comes = tuple(schedulers.upcoming(scheduler, app.schedules, app.runtime().now_ms(), _SAID))
    more = len(scheduler.next_ticks(len(app.schedules))) - len(comes)
    over = tuple(schedulers.ended(scheduler, app.schedules))
    report = SchedulerReport(
        sent=scheduler.sent, runs=tuple(voice.runs), next=comes, more=more, ended=over, paused=tuple(scheduler.paused())
    )
    return Answer(report, draw=lambda: _draw(report))


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call `stop`; a second one ends the process as if no handler were installed."""
    caught = (signal.SIGTERM, signal.SIGINT)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop()
        for one in caught:
            signal.signal(one, signal.SIG_DFL)

    before = {one: signal.signal(one, on_signal) for one in caught}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


class _Next:
    """Reports what comes next whenever that has changed."""

    def __init__(self, app: App, scheduler: Scheduler) -> None:
        self._app = app
        self._scheduler = scheduler
        self._said: list[tuple[str, str]] | None = None

    def say(self) -> None:
        """List what comes soon the first time; later print one line, if what comes next has changed."""
        count = _SAID if self._said is None else 1
        comes = schedulers.upcoming(self._scheduler, self._app.schedules, self._app.runtime().now_ms(), count)
        said = [(one.schedule, one.at) for one in comes]
        if self._said is None:
            render.note(f"{counted(len(self._app.schedules), 'schedule')} on {absolute(self._app.url)}")
            for text in _without_ticks(schedulers.ended(self._scheduler, self._app.schedules)):
                render.note(text)
            for text in _paused(self._scheduler.paused()):
                render.note(text)
        if self._said is None or said[:1] != self._said[:1]:
            for one in comes:
                render.note(f"next: {_sentence(one)}")
            if not comes:
                render.note(_nothing(self._scheduler.paused()))
        self._said = said


def _sentence(one: Upcoming) -> str:
    return f"{one.schedule} at {one.local}, in {age(one.in_ms)}"


def _without_ticks(ended: Sequence[Ended]) -> Iterator[str]:
    """A line for each schedule that has no further tick."""
    for one in ended[:_SAID]:
        yield f"no further tick: {one.schedule}, {one.expression}"
    if len(ended) > _SAID:
        yield f"no further tick: {len(ended) - _SAID:,} more"


def _paused(paused: Sequence[str]) -> Iterator[str]:
    """A line for each schedule that sends nothing until somebody resumes it."""
    for name in paused[:_SAID]:
        yield f"paused: {name}; onefold schedule resume {name} resumes it"
    if len(paused) > _SAID:
        yield f"paused: {len(paused) - _SAID:,} more"


def _nothing(paused: Sequence[str]) -> str:
    return f"next: nothing; {'every schedule with a further tick is paused' if paused else 'no schedule has a further tick'}"


def _draw(report: SchedulerReport) -> None:
    line(f"ended: {counted(report.sent, 'tick')} sent")
    for one in report.next:
        line(f"next: {_sentence(one)}", "dim")
    if report.more:
        line(f"and {report.more:,} more: onefold calendar lists all", "dim")
    for text in _without_ticks(report.ended):
        line(text, "yellow")
    for text in _paused(report.paused):
        line(text, "yellow")
    if not report.next:
        line(_nothing(report.paused), "yellow")
