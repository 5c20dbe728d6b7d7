"""The embedded scheduler: sends each tick once, however many schedulers run on the engine.

A turn takes what is due, and in one transaction of the engine reads the states of those schedules, begins the runs of their
ticks, sends the ticks and writes the new states by compare-and-set. Where the engine has no transaction over queues and
State the same steps are done in that order: a crash in between may send a tick twice, under the same key, but never loses
it.

Between turns it waits for the next instant at which something is due. Sends do not wake it, because there are many: what
other schedulers have done is read in the transaction that would otherwise repeat it. Every ten seconds it checks whether
the clock was set, which a wait does not notice, and whether other processes left something to be sent again.

When two schedulers declare different times for one schedule, those of the scheduler that started later count, because it
registered them later; the earlier scheduler notices when the schedule is due, reports it and leaves the schedule alone.
Never here: when a tick is due (schedules/ticks.py), the loop's thread, signals, output.
Invariant: a tick is sent and its schedule advanced beyond it in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from onefold import errors, limits
from onefold.contracts.documents import decode
from onefold.contracts.state import Change
from onefold.runner import runs
from onefold.runner.heartbeat import ThreadBell
from onefold.runner.runs import send_reconciliations
from onefold.runner.sink_queues import QueuedSinks
from onefold.runtime.events import Sinks
from onefold.runtime.names import take
from onefold.runtime.outage import Outage
from onefold.runtime.outgoing import Outgoing
from onefold.runtime.runtime import Runtime
from onefold.schedules import ticks, undelivered
from onefold.schedules.fire_times import run_name, zone_of
from onefold.schedules.schedule import Schedule
from onefold.schedules.ticks import ScheduleState
from onefold.schedules.transactions import PREFIX, Agenda, Due, OtherSchedulerError, Writer, Written
from onefold.schedules.undelivered import UndeliveredTicks, Unsent
from onefold.threads import thread_beside

if TYPE_CHECKING:
    from onefold.runtime.events import Sink


LOOK_MS: Final = 10_000  # how often the clock is compared with elapsed time, so that a clock that was set is noticed
SET_MS: Final = 2_000  # a clock that differs from elapsed time by less was only adjusted gradually
TURN: Final = 500  # schedules per transaction; such a transaction locks the file of an embedded engine for some 50 ms
_READ: Final = 1_000  # values read or registered together at the start
_SWEEP_MS: Final = limits.HOUR_MS  # how often old runs are removed
_TRIES: Final = 20

_state_of = msgspec.json.Decoder(ScheduleState).decode


class Scheduler:
    """One scheduler of an app. For one thread; `stop` can be called from any thread.

    Args:
        runtime: the runtime of the app whose schedules they are. sinks: receive its events.

    Attributes:
        sent: how many ticks it has sent.
    """

    def __init__(self, runtime: Runtime, sinks: Sinks) -> None:
        self._name = runtime.registry.name
        self._runtime = runtime
        self._schedules: Mapping[str, Schedule] = runtime.registry.schedules
        self._sinks = sinks
        self._writer = Writer(runtime, sinks)
        self._engine, self._clock = self._writer.engine, self._writer.clock
        self._agenda = Agenda()
        self._undelivered = UndeliveredTicks(self._writer, self._schedules, self._agenda)
        self._superseded: set[str] = set()
        self._paused: set[str] = set()
        self._sent_ahead: dict[str, int | None] = {}  # schedules whose next tick was sent by hand, and what follows it
        self._unreadable: set[str] = set()
        self._bell = ThreadBell()
        self._stopping = False
        self._started = False
        self.sent: int = 0
        self._offset_ms = 0  # of the clock, against elapsed time
        self._checked_ms = self._swept_ms = self._clock.monotonic_ms()

    # -- from outside ------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Make `run` return after the current turn. Can be called from any thread or signal handler."""
        self._stopping = True
        self._bell.ring()

    def next_due(self, count: int) -> list[Due]:
        """What is due next, in order, including ticks that are to be sent again; at most `count`."""
        return self._agenda.next(count)

    def next_ticks(self, count: int) -> list[tuple[str, int]]:
        """Which schedules send a tick next and when, in order; at most `count`. Ticks that were sent by hand are over."""
        due = self._agenda.next(count + len(self._sent_ahead), PREFIX)
        found = [(one.state_name.removeprefix(PREFIX), one.at_ms) for one in due]
        ahead = [(name, self._sent_ahead.get(name, at_ms)) for name, at_ms in found]
        return sorted(((name, at_ms) for name, at_ms in ahead if at_ms is not None), key=itemgetter(1))[:count]

    def ended(self) -> list[str]:
        """Which schedules have no further tick, sorted; for a scheduler that was started."""
        idle = (name for name in sorted(self._schedules) if not self._agenda.has(PREFIX + name))
        return [name for name in idle if name not in self._paused]

    def paused(self) -> list[str]:
        """Which schedules a person has paused, sorted; for a scheduler that was started."""
        return sorted(self._paused)

    def run(self, resting: Callable[[], None] | None = None) -> None:
        """Send ticks as they become due, until `stop` is called.

        Args:
            resting: called before each wait, when nothing is due.

        Raises:
            ConflictError: a schedule of that name belongs to another app on this engine.
            StorageError: the engine cannot be used.
        """
        outage = Outage(self._clock, lambda name, detail, _: self._writer.report_own(name, detail))
        while not self._stopping:
            try:
                self.start()
                busy = self.turn()
            except errors.TransientError as error:
                self._clock.wait(self._bell, outage.failed(error))
                continue
            outage.answered()
            if not busy:
                if resting is not None:
                    resting()
                self._pause()
        with suppress(errors.OnefoldError):  # the stop succeeds even if the engine does not answer
            self._writer.report_own("scheduler-stopped")
        self._sinks.flush()

    def _pause(self) -> None:
        """Wait until something is due, ten seconds at most, so that a clock that was set is noticed."""
        next_ms, wait_ms = self._agenda.first_ms(), LOOK_MS
        if next_ms is not None:
            wait_ms = min(wait_ms, next_ms - self._clock.now_ms())
        if wait_ms > 0 and not self._stopping:
            self._clock.wait(self._bell, wait_ms)

    # -- the start ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Register the schedules and read their states; a second call does nothing.

        A schedule that is seen for the first time begins now; one whose times were changed has the new ones from now on.

        Raises:
            ConflictError: a schedule of that name belongs to another app; nothing was changed.
            StorageBusy: try again.
        """
        if self._started:
            return
        self._offset_ms = self._clock.now_ms() - self._clock.monotonic_ms()
        names = sorted(self._schedules)
        for name, state, _ in self._states(names):
            self._check_ours(name, state)
        rewound = sum(self._register(chunk) for chunk in _chunks(names, _READ))
        self._undelivered.look()
        self._started = True
        self._writer.report_own("scheduler-started", {"schedules": len(names)})
        if rewound:
            self._writer.report_own("clock-set", {"schedules_ahead": rewound})

    def _check_ours(self, name: str, state: ScheduleState | None) -> None:
        if state is not None and state.app != self._name:
            raise errors.ConflictError(
                f"Schedule {name} belongs to app {state.app} on {self._engine.url}.",
                meaning="The keys of their ticks would be the same. Neither was changed.",
                todo=f"Give the schedule of app {self._name} another name=.",
            )

    def _states(self, names: Sequence[str]) -> Iterator[tuple[str, ScheduleState | None, int]]:
        """States of schedules: name, value, version. One that cannot be read is reported, and left out."""
        for chunk in _chunks(names, _READ):
            found = self._engine.state.get([PREFIX + name for name in chunk])
            for name, value in zip(chunk, found, strict=True):
                if value is None:
                    yield name, None, 0
                    continue
                try:
                    state = decode(PREFIX + name, value.value, _state_of)
                except errors.StorageError as error:  # its ticks wait for a person to act; other schedules' do not
                    if name not in self._unreadable:
                        self._unreadable.add(name)
                        self._writer.report(self._writer.event("schedule-unreadable", name, {"why": str(error)[:500]}))
                else:
                    self._unreadable.discard(name)
                    yield name, state, value.version

    def _register(self, names: Sequence[str], *, ours: bool = True) -> int:
        """Put schedules on the agenda, and write the ones that are new, changed, or ahead of the clock.

        Args:
            ours: our times replace others that are registered; otherwise such schedules are left alone.

        Returns:
            How many were ahead of the clock.
        """
        left, rewound = list(names), 0
        for _ in range(_TRIES):
            now_ms = self._clock.now_ms()
            changes: list[Change] = []
            changed: set[str] = set()
            for name, state, version in self._states(left):
                self._check_ours(name, state)
                schedule, after = self._schedules[name], state
                if state is None:
                    after = ticks.first(self._name, schedule.digest, schedule.timing, now_ms, schedule.missed)
                elif state.digest != schedule.digest:
                    if not ours:
                        continue
                    after = ticks.changed(state, self._name, schedule.digest, schedule.timing, now_ms)
                    changed.add(name)
                elif ticks.is_ahead(state, now_ms):
                    after = ticks.rewound(state, schedule.timing, now_ms)
                    rewound += 1
                if after is not None and after is not state:
                    changes.append(Change(PREFIX + name, msgspec.json.encode(after), version))
                self._superseded.discard(name)
                self._aim(name, after)
            written = self._engine.state.put(changes) if changes else []
            left = [change.name.removeprefix(PREFIX) for change, done in zip(changes, written, strict=True) if not done]
            for name in sorted(changed.difference(left)):
                expression = self._schedules[name].expression
                self._writer.report(self._writer.event("schedule-changed", name, {"expression": expression}))
            if not left:
                return rewound
        raise errors.StorageBusy("Other schedulers keep changing the schedules.", todo="Try again.")

    def _aim(self, name: str, state: ScheduleState | None) -> None:
        """Note when a schedule is due for its next check."""
        if state is not None:
            (self._paused.discard if state.paused_ms is None else self._paused.add)(name)
            timing = self._schedules[name].timing
            self._agenda.note(PREFIX + name, ticks.wakes_at(name, state, timing))
            self._sent_ahead.pop(name, None)
            if state.next_ms is not None and ticks.was_sent(state, state.next_ms):
                self._sent_ahead[name] = ticks.next_fire(name, state, timing)

    # -- a turn ------------------------------------------------------------------------------------------------------

    def catch_up(self) -> int:
        """Send all that is due now; returns how many ticks were sent. For tests, and hosts that call it now and then.

        Raises:
            As `start` and `turn`.
        """
        before = self.sent
        self.start()
        while self.turn():
            pass
        return self.sent - before

    def turn(self) -> int:
        """Send what is due now; returns how many due entries were dealt with, at most 500.

        Raises:
            StorageBusy: nothing was done, and all of it is still due.
        """
        self._check_plans()
        now_ms = self._clock.now_ms()
        due = self._agenda.take(now_ms, TURN)
        try:
            names = [state_name.removeprefix(PREFIX) for state_name in due if state_name.startswith(PREFIX)]
            if names:
                self._deal(names, now_ms)
            for state_name in due:
                if state_name.startswith(undelivered.PREFIX):
                    self._act(self._undelivered.send(state_name, now_ms))
        except BaseException:
            self._agenda.put_back(due, now_ms)  # what was already done is noticed at the next try
            raise
        return len(due)

    def _deal(self, names: Sequence[str], now_ms: int) -> None:
        """Send the ticks of these schedules together, or one by one if some of them cannot be sent."""
        answer = self._writer.together(lambda: self._advance(names, now_ms))
        if isinstance(answer, Written):
            self._act(answer)
        elif isinstance(answer, OtherSchedulerError):
            self._agenda.put_back([PREFIX + name for name in names], now_ms)
        elif len(names) > 1:
            for name in names:
                self._deal([name], now_ms)
        else:
            error = undelivered.refusal(answer)
            answer = self._writer.together(lambda: self._advance(names, now_ms, error))
            if not isinstance(answer, Written):
                raise answer
            self._act(answer)

    def _act(self, wrote: Written | None) -> None:
        """Act on what a transaction did."""
        if wrote is None:
            return
        self.sent += wrote.sent
        for state_name, at_ms in wrote.due:
            self._agenda.note(state_name, at_ms)
            self._sent_ahead.pop(state_name.removeprefix(PREFIX), None)
        self._paused.update(wrote.paused)
        for name in wrote.superseded:
            if name not in self._superseded:
                self._superseded.add(name)
                self._writer.report(self._writer.event("schedule-superseded", name))

    def _advance(self, names: Sequence[str], now_ms: int, refused: errors.OnefoldError | None = None) -> Written:
        """Send what these schedules owe, and advance them.

        Args:
            refused: why their queue refused it, if it did: the ticks are then kept, to be sent again later.
        """
        wrote = Written()
        begun: list[Change] = []
        outgoing: list[Outgoing] = []
        following: list[tuple[str, str]] = []
        advanced: list[Change] = []
        unsent: list[Unsent] = []
        for name, state, version in self._states(names):
            after, nominal = self._plan(name, state, now_ms, wrote)
            if after is not state:
                advanced.append(Change(PREFIX + name, msgspec.json.encode(after), version))
            for at_ms in nominal:
                one = self._schedules[name].outgoing(at_ms)
                begun.extend(_begun(self._schedules[name], at_ms, now_ms))
                following.append((one.record.key, name))
                if refused is None:
                    outgoing.append(one)
                    ticked = self._writer.event("ticked", name, {"late_ms": now_ms - at_ms}, run=one.record.key)
                    wrote.events.append(replace(ticked, queue=one.queue))
                else:
                    unsent.append(undelivered.first_failure(one, refused, now_ms))
        self._writer.put(begun)
        if outgoing:
            self._runtime.send(outgoing)
            wrote.sent = len(outgoing)
        for run, name in following:  # the run's later reconciliation: a refusal is only reported; the tick matters more
            for why in send_reconciliations(self._runtime, run, name, now_ms):
                wrote.events.append(self._writer.event("look-refused", name, {"summary": why}, run=run))
        for late in unsent:
            self._undelivered.keep(late, 0, now_ms, wrote)
        if not self._writer.put(advanced):
            raise OtherSchedulerError
        return wrote

    def _plan(
        self, name: str, state: ScheduleState | None, now_ms: int, wrote: Written
    ) -> tuple[ScheduleState | None, Sequence[int]]:
        """A schedule's state afterwards, and the nominal instants of the ticks that are to be sent."""
        schedule = self._schedules[name]
        if state is None or state.app != self._name or state.digest != schedule.digest:
            wrote.superseded.append(name)
            return state, ()
        if state.deleted:
            return state, ()
        if state.paused_ms is not None:
            wrote.paused.append(name)
            return state, ()
        missed, missed_max = schedule.missed, schedule.missed_max
        plan = ticks.advance(name, state, schedule.timing, now_ms, missed=missed, missed_max=missed_max)
        after = plan.state
        if after.next_ms is None and schedule.delete_after and after.last_ms != state.last_ms:
            after = replace(after, deleted=True)
            wrote.events.append(self._writer.event("schedule-ended", name))
        if plan.passed:
            wrote.events.append(self._writer.event("ticks-missed", name, _span(plan)))
        wrote.due.append((PREFIX + name, ticks.wakes_at(name, after, schedule.timing)))
        return (state if after == state else after), plan.ticks

    # -- now and then ------------------------------------------------------------------------------------------------

    def _check_plans(self) -> None:
        """Check whether the clock was set and what other processes left or changed; remove old runs now and then."""
        elapsed_ms = self._clock.monotonic_ms()
        offset_ms = self._clock.now_ms() - elapsed_ms
        by_ms = offset_ms - self._offset_ms
        if by_ms <= -SET_MS:
            mine = sorted(self._schedules.keys() - self._superseded)
            rewound = sum(self._register(chunk, ours=False) for chunk in _chunks(mine, _READ))
            self._writer.report_own("clock-set", {"by_ms": by_ms, "schedules_ahead": rewound})
        elif by_ms >= SET_MS:
            self._writer.report_own("clock-set", {"by_ms": by_ms})
        self._offset_ms = offset_ms
        if elapsed_ms - self._checked_ms >= LOOK_MS:
            self._checked_ms = elapsed_ms
            self._undelivered.look()
            if waiting := self._superseded | self._paused:
                self._register(sorted(waiting), ours=False)
        if elapsed_ms - self._swept_ms >= _SWEEP_MS:
            self._swept_ms = elapsed_ms
            runs.sweep(self._engine.state, self._runtime.steady.expired_at_ms(runs.KEPT_MS))


def _begun(schedule: Schedule, nominal_ms: int, now_ms: int) -> list[Change]:
    """The changes that begin the run of a tick."""
    name = run_name(schedule.name, nominal_ms)
    return runs.began(
        runs.of_tick(name, schedule.name, nominal_ms, now_ms, dispatches=schedule.dispatches, owner=schedule.owner)
    )


def _span(plan: ticks.TickPlan) -> dict[str, str | int | None]:
    """Which ticks were passed over."""
    return {"count": plan.passed, "from_ms": plan.passed_from_ms, "to_ms": plan.passed_to_ms}


def _chunks(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for first in range(0, len(names), size):
        yield names[first : first + size]


class Upcoming(Struct, frozen=True, kw_only=True):
    """The next tick of a schedule.

    Args:
        schedule: its name. at: when the tick is sent, UTC; with a flexible window that is after its planned time.
        local: the same in the schedule's zone. in_ms: from now; 0 or less if it is due.
    """

    schedule: str
    at: str
    local: str
    in_ms: int


class Ended(Struct, frozen=True, kw_only=True):
    """A schedule that has no further tick: its name, and its expression as written."""

    schedule: str
    expression: str


def make_scheduler(runtime: Runtime, *, sinks: Iterable[Sink] = ()) -> Scheduler:
    """A scheduler for the schedules of an app, ready to `run()`.

    Raises:
        UsageError: the app declares no schedules. ConflictError: another app on this engine has one of that name.
    """
    schedules, name = runtime.registry.schedules, runtime.registry.name
    if not schedules:
        raise errors.UsageError(
            f"App {name} declares no schedules.",
            todo="Declare one with @app.schedule(...), in a module that is imported where the app is made.",
        )
    take(runtime.engine.state, [one.job.name for one in schedules.values()], name, runtime.now_ms())
    return Scheduler(runtime, QueuedSinks(sinks))


def upcoming(scheduler: Scheduler, schedules: Mapping[str, Schedule], now_ms: int, count: int = 5) -> list[Upcoming]:
    """The next ticks of a started scheduler, one for each schedule, in order.

    Args:
        count: how many at most.
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
    """Run a scheduler in its own thread while the block runs; what is due already is sent before the block begins.

    Args:
        failed: called when the scheduler ended with an error; the error is raised when the block ends.

    Raises:
        As `Scheduler.run`.
    """
    with suppress(errors.TransientError):  # the thread tries again
        scheduler.catch_up()
    with thread_beside("onefold-scheduler", scheduler.run, scheduler.stop, failed=failed):
        yield
