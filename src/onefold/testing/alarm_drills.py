"""Tests of alarms: each condition is created and ended again on a separate engine, with a manual clock.

`onefold alarms test` and onefold's own tests do the same: an app with a queue, a job, a schedule and a reconciliation
runs inline; a drill creates the condition and ends it; meanwhile a `Watch` evaluates the alarms each minute and sends
its reports to the given targets. If the condition is only an event (a record that could not be written, a tick that was
given up), that event is emitted, because the failure itself would need a broken disk.
Never here: how an alarm is evaluated. Invariant: a drill touches no engine but its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from onefold import errors, limits, reconcile, schedules
from onefold.admin.reconcile import Repair
from onefold.admin.session import AdminSession, SessionJobs
from onefold.app import App
from onefold.contracts.store import RecordKey
from onefold.observe import alarms
from onefold.observe.alarm_targets import JOB, QUEUE
from onefold.observe.incidents import Report
from onefold.observe.watch import EventNotes, Watch
from onefold.options import AlarmTargets
from onefold.reconcile.reconciler import ReconcileMessage
from onefold.runner import runs
from onefold.runtime.events import Event
from onefold.runtime.outgoing import Outgoing
from onefold.testing.inline import World, inline

STEP_MS: Final = limits.MINUTE_MS
_WAIT_MS_MAX: Final = 2 * limits.DAY_MS  # longer than any alarm takes to begin after its condition
_START_MS: Final = 1_767_225_600_000  # 2026-01-01T00:00:00Z
WORK: Final = "drill"
HOURLY: Final = "drill-hourly"


class DrillResult(Struct, frozen=True, kw_only=True):
    """The result of a drill.

    Args:
        alarm, subject: the alarm that was tested. began_after_ms, ended_after_ms: time from the condition to the report
            that it began, and from the condition's end to the report that it ended.
        reports: all reports of this alarm. sent: how many messages targets have taken.
        unsent: why a target did not take a message, by target; the last reason.
    """

    alarm: str
    subject: str
    began_after_ms: int
    ended_after_ms: int
    reports: tuple[Report, ...]
    sent: int
    unsent: Mapping[str, str]


class Drill:
    """An app that runs inline, and a watch that evaluates its alarms.

    Args:
        targets: where reports are sent; None: nowhere.

    Attributes:
        does: what the job's handler does. dispatches: the keys that the schedule's runs send. breaks: what its
            dispatcher raises. counted: how often the reconciliation's own check finds each key; None: each once.
        world, watch: the running app, and the evaluation of its alarms. reports: all reports so far.
    """

    world: World
    watch: Watch

    def __init__(self, targets: AlarmTargets | None = None) -> None:
        self.does: Callable[[], object] = _nothing
        self.dispatches = ["a", "b"]
        self.breaks: Exception | None = None
        self.counted: Mapping[str, int] | None = None
        self.notes = EventNotes()
        self.reports: list[Report] = []
        self.app = app = App("drill", sinks=[self.notes])
        queue = app.queue(WORK, retention="1h")

        @app.job(queue, key="{name}", name="drill-work", on_unknown="hold")
        def work(payload: dict[str, str]) -> None:  # noqa: ARG001 - only its key matters
            self.does()

        self.work: Any = work

        @app.schedule("rate(1 hour)", name=HOURLY)
        def hourly(tick: schedules.Tick) -> Iterator[Outgoing]:
            if self.breaks is not None:
                raise self.breaks
            for name in self.dispatches:
                yield work.message({"name": f"{tick.run}-{name}"})

        @app.reconcile(hourly, after="30m")
        def check(found: reconcile.Reconciliation) -> dict[str, int]:
            return {key: (self.counted or {}).get(key[-1], 1) for page in found.pages() for key in page}

        if targets is not None:
            app.alarms(
                slack=targets.slack, slack_channel=targets.slack_channel, webhook=targets.webhook,
                email=targets.email or None, command=targets.command or None, command_env=targets.command_env or None,
                owner=targets.owner,
            )  # fmt: skip

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the app inline while the block runs."""
        with inline(self.app, start_ms=_START_MS) as self.world:
            self.watch = Watch(self.app.runtime(), self.app.registry.alarms, notes=self.notes, drill=True)
            yield

    def send(self, *names: str) -> None:
        """Send a message for each name."""
        self.work.send_many([{"name": name} for name in names])

    def run(self, *queues: str) -> None:
        """Deliver what is visible in these queues."""
        self.world.run(queues=queues)

    def hour(self, *queues: str) -> None:
        """Send the due tick, deliver, and reconcile half an hour later; deliver from all queues if none are given."""
        self.world.tick()
        self.world.run(queues=queues or None)
        self.world.clock.advance(31 * limits.MINUTE_MS)
        self.world.run(queues=queues or None)
        self.world.clock.advance(30 * limits.MINUTE_MS)

    def emit(self, name: str, **detail: str) -> None:
        """Emit an event as a runner or scheduler does."""
        sinks = self.app.runtime().sinks
        assert sinks is not None
        key = RecordKey("", "drill-work", "a") if not detail else None
        sinks.emit(Event(at_ms=self.world.clock.now_ms(), name=name, key=key, queue=WORK, detail=detail))

    def until(self, alarm: str, kind: str) -> tuple[Report, int]:
        """Evaluate the alarms each minute until a report of this kind; returns it and how long it took, in ms.

        Raises:
            InvariantBroken: there is no such report within two days.
        """
        start_ms = self.world.clock.now_ms()
        while (took_ms := self.world.clock.now_ms() - start_ms) <= _WAIT_MS_MAX:
            found = self.watch.look()
            self.reports += found
            if self.watch.targets is not None:
                self.world.run(queues=[QUEUE])
            for one in found:
                if (one.alarm, one.kind) == (alarm, kind):
                    return one, took_ms
            self.world.clock.advance(STEP_MS)
        raise errors.InvariantBroken(f"The alarm {alarm} should have been reported ({kind}) within two days.")

    def sent(self) -> tuple[int, dict[str, str]]:
        """How many messages targets have taken, and why a target did not take one."""
        took: set[str] = set()
        unsent = {}
        for event in self.world.events:
            if event.key is None or event.key.job != JOB:
                continue
            if event.name == "completed":
                took.add(event.key.key)
            error = event.exception
            said = error.what if isinstance(error, errors.OnefoldError) else event.detail.get("error", event.name)
            unsent[event.key.key] = str(said)
        return len(took), {key.rpartition(" to ")[2]: why for key, why in unsent.items() if key not in took}


def _nothing() -> None:
    """A handler that does nothing."""


def _raising(error: Exception) -> Callable[[], object]:
    def handle() -> None:
        raise error

    return handle


# -- conditions: each function creates one, and returns a function that ends it ----------------------------------------

_End = Callable[[], object]


def _dead(drill: Drill) -> _End:
    drill.does = _raising(errors.PermanentError("This order is invalid."))
    drill.send("a")
    drill.run(WORK)
    return lambda: drill.app.runtime().engine.queues.purge(f"{WORK}-dead")


def _expiring(drill: Drill) -> _End:
    end = _dead(drill)
    drill.world.clock.advance(12 * limits.DAY_MS - limits.HOUR_MS)
    return end


def _held(drill: Drill) -> _End:
    drill.does = _raising(errors.OutcomeUnknown("The answer was lost."))
    drill.send("a")
    drill.run(WORK)
    return lambda: drill.app.runtime().engine.queues.purge(f"{WORK}-held")


def _held_long(drill: Drill) -> _End:
    end = _held(drill)
    drill.world.clock.advance(23 * limits.HOUR_MS)
    return end


def _old(drill: Drill) -> _End:
    drill.send("a")
    return lambda: drill.run(WORK)


def _slow(drill: Drill) -> _End:
    drill.send("a", "b")
    drill.run(WORK)
    drill.send(*(f"more-{number}" for number in range(8)))
    return lambda: drill.run(WORK)


def _in_flight(drill: Drill) -> _End:
    queues = drill.app.runtime().engine.queues
    queues.change(replace(queues.setting(WORK), in_flight_max=10))
    drill.send(*(f"n-{number}" for number in range(8)))
    queue = queues.open(WORK)
    received = queue.receive(8, limits.HOUR_MS)
    return lambda: queue.delete([one.receipt for one in received])


def _paused(drill: Drill) -> _End:
    drill.does = _raising(errors.DependencyDown("The key was rotated.", retry_in_ms=20 * limits.MINUTE_MS))
    drill.send("a")
    drill.run(WORK)

    def end() -> None:
        drill.does = _nothing
        drill.world.run_for(30 * limits.MINUTE_MS, limits.MINUTE_MS)

    return end


def _lease(drill: Drill) -> _End:
    """A handler that is suspended for longer than its lease, while another process takes the operation over."""

    def handle() -> None:
        drill.does = _nothing
        drill.world.clock.advance(2 * limits.MINUTE_MS)
        drill.world.another().run(queues=[WORK])

    drill.does = handle
    drill.send(f"slow-{drill.world.clock.now_ms()}")
    drill.run(WORK)
    return _nothing


def _leases(drill: Drill) -> _End:
    for _ in range(alarms.LEASES_LOST_MAX + 1):
        _lease(drill)
    return _nothing


def _no_record(drill: Drill) -> _End:
    drill.emit("completion-failed")
    return _nothing


def _dropped(drill: Drill) -> _End:
    drill.emit("tick-dropped", schedule=HOURLY)
    return _nothing


def _refused(drill: Drill) -> _End:
    for _ in range(alarms.REFUSED_MIN):
        drill.emit("tick-refused", schedule=HOURLY)
    return _nothing


def _no_tick(drill: Drill) -> _End:
    drill.world.tick()
    drill.world.clock.advance(limits.HOUR_MS)
    return drill.world.tick


def _missing(drill: Drill) -> _End:
    drill.hour(f"{drill.app.name}-schedules")
    drill.app.runtime().engine.queues.purge(WORK)
    drill.run("onefold-reconcile")
    (run,) = runs.names(drill.app.runtime().engine.state)

    def end() -> None:
        app = drill.app
        jobs = SessionJobs(named=app.jobs, of=app.registry.job_of, history=app.history, queues=())
        Repair(AdminSession(app.runtime(), actor="person:drill", jobs=jobs), app, run).send()
        drill.world.run()
        app.reconcilers[f"reconcile-{HOURLY}"].reconcile(ReconcileMessage(run=run, look=0))

    return end


def _twice(drill: Drill) -> _End:
    drill.counted = {"a": 2}
    drill.hour()

    def end() -> None:
        drill.counted = None
        drill.hour()

    return end


def _late_look(drill: Drill) -> _End:
    drill.hour(f"{drill.app.name}-schedules", WORK)
    return drill.world.run


def _stopped(drill: Drill) -> _End:
    drill.breaks = errors.PermanentError("There is no list of customers.")
    drill.hour()

    def end() -> None:
        drill.breaks = None
        queues = drill.app.runtime().engine.queues
        queues.move([(one.message_id, None, None) for one in queues.peek(f"{drill.app.name}-schedules-dead")])
        drill.world.run()

    return end


DRILLS: Final[Mapping[str, Callable[[Drill], _End]]] = {
    "completion-failed": _no_record,
    "dlq-not-empty": _dead,
    "dlq-expiring": _expiring,
    "held-not-empty": _held,
    "held-old": _held_long,
    "oldest": _old,
    "stalled": _old,
    "drain": _slow,
    "in-flight-cap": _in_flight,
    "tick-dropped": _dropped,
    "tick-refused": _refused,
    "no-tick": _no_tick,
    "lease-lost": _lease,
    "lease-lost-often": _leases,
    "breaker-open": _paused,
    "missing": _missing,
    "duplicate-effects": _twice,
    "reconcile-failed": _twice,
    "reconcile-late": _late_look,
    "map-failed": _stopped,
}
"""A drill for each alarm that is evaluated on an embedded engine."""


def drill(alarm: str, targets: AlarmTargets | None = None) -> DrillResult:
    """Create an alarm's condition, wait for the report, end the condition, and wait for the report of that.

    Args:
        targets: where the reports are sent, marked as a test; None: nowhere.

    Raises:
        NotFoundError: the alarm is unknown, or only AWS evaluates it. InvariantBroken: it did not begin, or did not
            end.
    """
    make = DRILLS.get(alarm)
    if make is None:
        known = alarm in alarms.ALARMS
        raise errors.NotFoundError(
            f"{alarm!r:.80} is evaluated only by {' and '.join(alarms.ALARMS[alarm].sides)}."
            if known
            else f"There is no alarm {alarm!r:.80}.",
            todo=f"These can be tested here: {', '.join(DRILLS)}.",
        )
    drill = Drill(targets)
    with drill.running():
        end = make(drill)
        began, began_after_ms = drill.until(alarm, "began")
        end()
        _, ended_after_ms = drill.until(alarm, "ended")
        sent, unsent = drill.sent()
        return DrillResult(
            alarm=alarm,
            subject=began.subject,
            began_after_ms=began_after_ms,
            ended_after_ms=ended_after_ms,
            reports=tuple(one for one in drill.reports if one.alarm == alarm),
            sent=sent,
            unsent=unsent,
        )
