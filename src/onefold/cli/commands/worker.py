"""`onefold worker`: run an app's jobs until stopped, and show how it goes.

SIGTERM or SIGINT drains: nothing more is received, and what runs is finished. A second one stops at once; other workers
take over what ran then. Progress is drawn on a terminal, and written as a plain line every few seconds elsewhere.
Never here: the loop (`runner/worker.py`), how a worker is built (`runner/worker_setup.py`).
Invariant: a signal handler only sets the worker's flags and writes one line.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import FrameType
from typing import TYPE_CHECKING

import click

from onefold import errors, forks, limits
from onefold.admin import payloads
from onefold.admin.jobs import unmatched
from onefold.admin.payloads import PayloadSurvey
from onefold.admin.session import AdminSession
from onefold.admin.status_warnings import left_behind
from onefold.app import App
from onefold.cli import options, render, target
from onefold.cli.commands.jobs import draw_survey
from onefold.cli.commands.outbox import relaying
from onefold.cli.measuring import Measures
from onefold.cli.program import Answer, declared
from onefold.cli.render import line, number
from onefold.observe.alarm_targets import QUEUE as ALARMS_QUEUE
from onefold.observe.alarm_targets import unreadable
from onefold.observe.sinks import LogSink, of_app
from onefold.observe.watch import Watch, beside
from onefold.observe.wording import age, counted, instant
from onefold.options import WorkerSettings
from onefold.runner import worker_setup as workers
from onefold.runner.worker import Worker
from onefold.runner.worker_numbers import ExitReport, WorkerSnapshot
from onefold.runtime.events import EVENTS, Event
from onefold.threads import thread_beside

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    from onefold.runtime.events import Sink

_PLAIN_MS = 5_000  # between two progress lines without a terminal
_DEPTH_MS = 1_000  # between two checks of how much waits
_QUIET_MS = limits.MINUTE_MS  # trouble that was not reported for this long counts as over
_TROUBLE = (
    "engine-busy", "ticks-orphaned", "waits-for-job", "dead-letters-expire", "relay-failed", "outbox-refused",
)  # fmt: skip
_DEFAULTS = WorkerSettings()


@declared(
    "worker",
    example="onefold worker shop:app --threads 16\nonefold worker shop:app --processes 4 --queues orders --log json",
)
@click.argument("words", metavar="[APP]", nargs=-1)
@click.option(
    "--threads",
    type=options.WholeType(1),
    default=_DEFAULTS.threads,
    show_default=True,
    help="Threads for handlers that are plain functions.",
)
@click.option(
    "--asyncio",
    "tasks",
    type=options.WholeType(1),
    default=_DEFAULTS.tasks,
    show_default=True,
    help="How many coroutine handlers run at a time.",
)
@click.option(
    "--processes",
    type=options.WholeType(0),
    default=0,
    show_default=True,
    help="Child processes: for CPU work, and for timeouts that end a handler.",
)
@click.option(
    "--queues",
    metavar="NAMES",
    help="Only these queues, separated by commas. By default, all that have a job.",
)
@click.option("--schedules", is_flag=True, help="Also act as a scheduler: send the ticks of the app's schedules.")
@click.option(
    "--until-empty",
    is_flag=True,
    help="End when no message is waiting, in flight or delayed. Delayed messages, such as those of app.reconcile, are "
    "waited for until they are due; standard error names them and the wait. Messages that no job of the app takes are "
    "left, and counted at the end.",
)
@click.option(
    "--lease",
    type=options.DURATION,
    default="30s",
    show_default=True,
    help="How long a claim lasts; it is renewed while a handler runs.",
)
@click.option(
    "--prefetch",
    type=options.WholeType(0),
    help="Messages fetched ahead per queue. By default, adapted to how fast they are done.",
)
@click.option(
    "--group",
    type=options.WholeType(1),
    default=_DEFAULTS.group_max,
    show_default=True,
    help="How many quick runs are committed together, at most.",
)
@click.option(
    "--grace",
    type=options.DURATION,
    help="How long a stopping worker waits for running handlers. By default, the longest timeout.",
)
@click.option(
    "--metrics",
    metavar="[HOST]:PORT",
    help="Serve /metrics for Prometheus, /healthz (the process) and /readyz (it makes progress) there; "
    "127.0.0.1 unless HOST is given.",
)
@click.option(
    "--emf",
    is_flag=True,
    envvar="ONEFOLD_EMF",
    help="Write metrics for CloudWatch to standard output, once a minute, in the embedded metric format.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Run nothing: show which messages this release would run, upgrade, or leave behind. Exit code 1: some are left.",
)
@click.option("--no-progress", is_flag=True, help="No progress display and no failure lines.")
@click.option(
    "--log",
    type=click.Choice(["json", "plain"]),
    help="Events as log lines on standard error, instead of progress; without a terminal they are plain lines anyway.",
)
def command(
    words: tuple[str, ...],
    threads: int,
    tasks: int,
    processes: int,
    queues: str | None,
    schedules: bool,
    until_empty: bool,
    lease: int,
    prefetch: int | None,
    group: int,
    grace: int | None,
    metrics: str | None,
    emf: bool,
    no_progress: bool,
    log: str | None,
    dry_run: bool,
) -> Answer:
    """Run an app's jobs until stopped.

    SIGTERM or Ctrl-C lets running handlers finish and releases what has not started. A second one stops at once; other
    workers take over the runs in progress. Exit code 0: every run was finished or released; 3: some were not.
    """
    name, _ = target.split(words, 0, names="")
    found = target.find_app(name)
    assert found.app is not None
    if dry_run:
        return _dry_run(found)
    settings = WorkerSettings(
        threads=threads,
        tasks=tasks,
        processes=processes,
        prefetch=prefetch,
        group_max=group,
        lease_ms=lease,
        grace_ms=grace,
        until_empty=until_empty,
    )
    sinks: list[Sink] = list(found.app.sinks)
    quiet = no_progress or log is not None or render.is_quiet()
    in_lines = not quiet and not render.console(stderr=True).is_terminal
    sinks += _log(found.app, log, in_lines=in_lines)
    received = [one.strip() for one in queues.split(",")] if queues is not None else _declared_queues(found.app)
    measures = Measures(found.app, received, address=metrics, emf=emf)
    sinks += measures.sinks
    if not quiet and not in_lines:
        sinks.append(Failures(_work(found.app, received, settings)))
    for warning in _at_start(found, received):
        render.note(f"warning: {warning}")
    watching: AbstractContextManager[None] = nullcontext()
    if ALARMS_QUEUE in received and not until_empty:
        watch = Watch(found.app.runtime(), found.app.registry.alarms)
        sinks.append(watch.notes)
        watching = beside(watch)
    worker = workers.make_worker(
        found.app.runtime(),
        found.app.jobs,
        found.app.registry.job_of,
        settings=settings,
        history=found.app.history,
        sinks=sinks,
        queues=received if queues is not None else None,
        target=name or os.environ.get("ONEFOLD_APP"),
    )
    progress = nullcontext() if quiet else _progress(worker, found.session, received)
    found.unfinished = True  # until the outcome is known: an exception leaves handlers running
    ticking = nullcontext() if not schedules else _schedules(found.app, sinks, worker)
    waiting = _delayed(worker, found.session, sorted(set(received)), says=until_empty and log != "json")
    relayed = relaying(found.app, sinks, until_empty=until_empty)
    with _signals(worker), measures.of(worker), watching, progress, ticking, waiting, relayed:
        report = worker.run()
    found.unfinished = bool(report.left)
    found.app.close(unfinished=report.code != 0)
    return Answer(report, draw=lambda: _draw(report), code=report.code)


def _dry_run(found: target.Target) -> Answer:
    survey = payloads.survey(found.session)
    return Answer(survey, draw=lambda: _draw_dry_run(survey, found), code=int(not survey.fits))


def _draw_dry_run(survey: PayloadSurvey, found: target.Target) -> None:
    """What a worker of this release would find, and what it would leave behind."""
    assert found.app is not None
    draw_survey(survey, found)
    for warning in _warnings(found):
        render.note(f"warning: {warning}")
    render.line("Nothing was run.", "dim")


def _warnings(found: target.Target) -> list[str]:
    """Names in declarations that match nothing, and messages that no worker of the app takes."""
    assert found.app is not None
    return [*unmatched(found.app), *(f"{one.text} {one.todo}" for one in left_behind(found.session))]


def _at_start(found: target.Target, received: Sequence[str]) -> Iterator[str]:
    """What a worker that receives from these queues warns of."""
    assert found.app is not None
    yield from found.app.runtime().engine.check()
    yield from _warnings(found)
    if ALARMS_QUEUE in received and found.app.registry.alarms is not None:
        yield from unreadable(found.app.registry.alarms)
    yield from payloads.renamed(found.session)


def _log(app: App, form: str | None, *, in_lines: bool) -> list[Sink]:
    """How events are written: as lines if requested or without a terminal; otherwise only problems."""
    if form is not None or (in_lines and not any(isinstance(one, LogSink) for one in app.sinks)):
        return [of_app(app.name, form)]
    return [] if in_lines else [Trouble()]


def _declared_queues(app: App) -> list[str]:
    return sorted({job.policy.queue for job in app.jobs.values()})


def _work(app: App, queues: list[str], settings: WorkerSettings) -> str:
    """What a worker works on: `app shop, queue orders, file /srv/shop.db, 8 threads`."""
    path = app.url.removeprefix("sqlite:///")
    where = f"file {os.path.abspath(path.partition('?')[0])}" if path != app.url else app.url
    lanes = counted(settings.threads, "thread")
    lanes += f", {counted(settings.processes, 'child process')}" if settings.processes == 1 else ""
    lanes += f", {settings.processes} child processes" if settings.processes > 1 else ""
    return f"app {app.name}, {'queue' if len(queues) == 1 else 'queues'} {', '.join(queues)}, {where}, {lanes}"


def _schedules(app: App, sinks: list[Sink], worker: Worker) -> AbstractContextManager[None]:
    """A scheduler beside the worker; if the scheduler fails, the worker drains."""
    from onefold.schedules import (
        scheduler as schedulers,  # and with it zones and expressions: 40 ms that only schedulers pay
    )

    return schedulers.beside(schedulers.make_scheduler(app.runtime(), sinks=sinks), worker.drain)


@contextmanager
def _signals(worker: Worker) -> Iterator[None]:
    """SIGTERM and SIGINT drain, a second one stops at once, a third ends the process as if no handler were installed."""
    caught = (signal.SIGTERM, signal.SIGINT)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if not worker.draining:
            worker.drain()
            text = b"Draining: finishing the runs in progress. Press Ctrl-C or send SIGTERM again to stop now.\n"
        else:
            worker.stop_now()
            for one in caught:
                signal.signal(one, signal.SIG_DFL)
            text = b"Stopping now. on_unknown of their jobs decides how the runs in progress go on.\n"
        os.write(2, text)

    own = forks.OwnSignals(caught, on_signal)
    try:
        yield
    finally:
        own.end()


class Trouble:
    """A sink that reports on standard error what keeps this worker from its work, or may lose work: once for each kind.

    It is reported again after a minute without any; while an engine fails, its event is emitted every five seconds.
    """

    def __init__(self) -> None:
        self._last_ms: dict[tuple[str, object], int] = {}
        self._lock = threading.Lock()

    def emit(self, event: Event) -> None:
        """Print an event if it is a trouble that is new."""
        if event.name not in _TROUBLE and event.severity != "critical":
            return
        kind = event.name, event.detail.get("schedule") or event.detail.get("job") or event.detail.get("in")
        with self._lock:
            last_ms, self._last_ms[kind] = self._last_ms.get(kind), event.at_ms
        if last_ms is None or event.at_ms - last_ms > _QUIET_MS:
            about = [f"{event.key.job} {event.key.key}"] if event.key is not None else []
            about += [
                str(event.detail[name]) for name in ("schedule", "summary", "why", "in") if event.detail.get(name)
            ]
            render.note(
                render.joined("warning: ", EVENTS[event.name].text, *(part for one in about for part in (": ", one)))
            )


class Failures:
    """A sink that reports on standard error what a worker works on, and each failure of a message, with the time.

    Args:
        work: the app, its queues and where they are.
    """

    def __init__(self, work: str) -> None:
        self._work = work

    def emit(self, event: Event) -> None:
        """Print an event if it is one of these."""
        if event.name == "worker-started":
            self._say(event, f"worker started: {self._work}, process {os.getpid()}, owner {event.actor}")
        elif event.message_id is not None and event.severity in ("warning", "error") and event.name not in _TROUBLE:
            what = f"{event.key.job} {event.key.key}" if event.key is not None else f"message {event.message_id}"
            detail = event.detail
            why = [str(detail[name]) for name in ("error", "summary") if detail.get(name)]
            why = [why[0], ": ", why[1]] if len(why) > 1 else why or [EVENTS[event.name].text]
            delay_ms = detail.get("delay_ms")
            again = f"; again in {age(int(delay_ms))}" if isinstance(delay_ms, int) and event.name == "retry" else ""
            policy = f" (on_unknown={detail['policy']})" if detail.get("policy") else ""
            self._say(event, f"{event.name}: {what}: ", *why, f"{policy}{again}")

    def _say(self, event: Event, *parts: str) -> None:
        render.note(render.joined(f"{render.clock_time(event.at_ms)[:8]} ", *parts))


# -- progress --------------------------------------------------------------------------------------------------------


def _progress(worker: Worker, session: AdminSession, queues: list[str]) -> AbstractContextManager[None]:
    """A live picture on a terminal, else a plain line every few seconds; `queues`: those it receives from."""
    return (_live if render.console(stderr=True).is_terminal else _plain)(worker, session, queues)


@contextmanager
def _live(worker: Worker, session: AdminSession, queues: list[str]) -> Iterator[None]:
    from rich.live import Live

    waits = Waits(session, queues)
    live = Live(
        get_renderable=lambda: _Wrapped(_picture(worker.snapshot(), waits.now(), draining=worker.draining)),
        console=render.console(stderr=True, folds=False),  # lines above the picture can be copied whole
        refresh_per_second=4,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
        redirect_stderr=True,
    )
    with live:
        live.refresh()  # a line that is written while the first picture is drawn would not clear it
        yield


class _Wrapped:
    """A text wrapped at the terminal's width."""

    def __init__(self, text: RenderableType) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        yield from console.render(self._text, options.update(no_wrap=False, overflow="fold"))


class Waits:
    """How many messages wait in these queues, looked up at most once a second."""

    def __init__(self, session: AdminSession, queues: Iterable[str]) -> None:
        self._session = session
        self._names = sorted(set(queues))
        self._at_ms = -_DEPTH_MS
        self._count = 0

    def now(self) -> int:
        """Visible and delayed messages of all of them."""
        now_ms = self._session.clock.monotonic_ms()
        if now_ms - self._at_ms >= _DEPTH_MS:
            self._at_ms = now_ms
            with suppress(errors.OnefoldError):  # the last number stays; the worker reports the same trouble
                depths = [self._session.engine.queues.depth(name) for name in self._names]
                self._count = sum(depth.visible + depth.delayed for depth in depths)
        return self._count


def _picture(counts: WorkerSnapshot, waiting: int, *, draining: bool) -> RenderableType:
    from rich.text import Text

    parts = [
        (f" {number(counts.completed)} done", "bold green"),
        (f"  {number(counts.per_second)}/s", "green"),
        (f"  in progress {number(counts.in_hand)}", ""),
        (f"  waiting {number(waiting)}", ""),
    ]
    more = [
        (counts.duplicates, "duplicates", ""),
        (counts.retried, "retries", "yellow"),
        (counts.dead_lettered, "dead", "red"),
        (counts.held, "held", "red"),
        (counts.lost, "leases lost", "red"),
        (counts.sink_failures, "sink errors", "red"),
    ]
    parts += [(f"  {name} {number(count)}", style) for count, name, style in more if count]
    if draining:
        parts.append(("  draining", "yellow"))
    return Text.assemble(*parts)


@contextmanager
def _plain(worker: Worker, session: AdminSession, queues: list[str]) -> Iterator[None]:
    ended = threading.Event()
    waits = Waits(session, queues)

    def write() -> None:
        before = ""
        while not session.clock.wait(ended, _PLAIN_MS):
            said = _sentence(worker.snapshot(), waits.now())
            if said != before:  # an idle worker does not fill the log
                render.note(f"{instant(session.now_ms())} {said}")
            before = said

    with thread_beside("onefold-progress", write, ended.set, join_s=1):
        yield


@contextmanager
def _delayed(worker: Worker, session: AdminSession, queues: list[str], *, says: bool) -> Iterator[None]:
    """Report what is waited for when only delayed messages are left, and again when that changes; only if `says`."""
    if not says:
        yield
        return
    ended = threading.Event()

    def look() -> None:
        said: tuple[object, ...] = ()
        while not session.clock.wait(ended, _DEPTH_MS):
            with suppress(errors.TransientError):  # the worker has the same trouble, and reports it
                counts = {} if worker.snapshot().in_hand else _only_delayed(session, queues)
                instants = [
                    at_ms for name in counts if (at_ms := session.engine.queues.next_ready_ms(name)) is not None
                ]
                due_ms = min(instants, default=None)  # SQS does not say
                if counts and said != (*counts, due_ms):
                    said = (*counts, due_ms)
                    render.note(_waited_for(counts, due_ms, session.now_ms()))

    with thread_beside("onefold-delayed", look, ended.set, join_s=1):
        yield


def _only_delayed(session: AdminSession, queues: list[str]) -> dict[str, int]:
    """How many delayed messages each queue has; empty while there are messages that are not delayed."""
    found: dict[str, int] = {}
    for name in queues:
        depth = session.engine.queues.depth(name)
        if depth.visible or depth.in_flight:
            return {}
        if depth.delayed:
            found[name] = depth.delayed
    return found


def _waited_for(counts: Mapping[str, int], due_ms: int | None, now_ms: int) -> str:
    """What is waited for, as text: `waiting for 1 delayed message in reconcile-x, due 10:46 (in 29m58s)`."""
    count = sum(counts.values())
    said = f"waiting for {counted(count, 'delayed message')} in {', '.join(counts)}"
    if due_ms is None:
        return said
    at = render.local(due_ms) if due_ms - now_ms >= limits.DAY_MS else render.clock_time(due_ms)[:5]
    return f"{said}, {'due' if count == 1 else 'the first due'} {at} (in {render.ago(due_ms - now_ms)})"


def _sentence(counts: WorkerSnapshot, waiting: int | None) -> str:
    parts = [f"done {counts.completed}", f"{counts.per_second:.0f}/s", f"in progress {counts.in_hand}"]
    if waiting is not None:
        parts.append(f"waiting {waiting}")
    for count, name in (
        (counts.duplicates, "duplicates"),
        (counts.retried, "retries"),
        (counts.dead_lettered, "dead"),
        (counts.held, "held"),
        (counts.lost, "leases lost"),
        (counts.sink_failures, "sink errors"),
    ):
        if count:
            parts.append(f"{name} {count}")
    return ", ".join(parts)


def _draw(report: ExitReport) -> None:
    line(f"ended: {_sentence(report.counts, None)}")
    for queue, count in report.not_taken.items():
        line(
            f"{counted(count, 'message')} left in {queue}: no job of this app takes {'it' if count == 1 else 'them'}; "
            "`onefold stuck` shows why, and when the wait ends.",
            "yellow",
        )
    if report.left:
        line(
            f"{counted(len(report.left), 'run')} abandoned; other workers follow on_unknown (rerun, hold or its probe): "
            f"{', '.join(report.left[:5])}",
            "yellow",
        )
