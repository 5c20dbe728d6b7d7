"""Completion: noticing that a run has nothing left to do, closing it, and starting, once, the jobs that wait for it.

The process that settles the last message of a run cannot know that it was the last. So a process notes the runs of which it
has settled messages, and checks their tallies a moment later. Processes take turns by a compare-and-set, so that the
loser knows that another process will check after the loser has settled. The cost of a tally grows with the run, so
after a slow tally a value in State says when the run may be tallied again: after ten times the time it took. A process
may die between settling and checking, so every worker also checks all open runs every ten seconds: a run may be closed
late, but is never missed. The same check removes expired runs once an hour.

Closing is one compare-and-set; the waiting jobs are sent before it, in the same transaction where the engine has one, keyed
by the run. When two processes close a run at once, its jobs start once: on an embedded engine one of the two is rolled back,
elsewhere its message is a duplicate of the other's.

Never here: what a run's operations do; waiting. Invariant: when a run is marked as ended, its waiting jobs have been
sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from onefold import errors, limits
from onefold.clock import expired_at_ms
from onefold.contracts.documents import reader
from onefold.contracts.state import Change
from onefold.interrupts import let_through
from onefold.runner import runs
from onefold.runner.handlers import Job
from onefold.runner.runs import RunState
from onefold.runtime.outgoing import transaction

if TYPE_CHECKING:
    from onefold.contracts.engine import Engine
    from onefold.outside import Clock

ALL_MS: Final = 10_000  # how often all open runs are checked
SWEEP_MS: Final = limits.HOUR_MS
_PAUSE_FACTOR: Final = 10
_LONG_MS: Final = 50  # a run whose tally takes less may be tallied again at once
_PAUSE_MS_MAX: Final = 10 * limits.MINUTE_MS


class _Turn(Struct, frozen=True, omit_defaults=True):
    """The value of `open-run/<name>`: when the run may be tallied again, and how long its last tally took."""

    not_before_ms: int = 0
    took_ms: int = 0


_turn_of = reader(_Turn, _Turn())


def title_of(waits_for: object, annotation: object, job: str) -> str:
    """The title of the runs that start a job.

    Args:
        waits_for: a schedule or a map job, or its name.
        annotation: the annotation of the job's payload.
        job: its name, for the error.

    Raises:
        UsageError: `waits_for` is none of these; or the payload is not a `CompleteRun`.
    """
    title = waits_for if isinstance(waits_for, str) else getattr(waits_for, "name", None)
    if not isinstance(title, str) or not title:
        raise errors.UsageError(
            f"when_complete={waits_for!r:.100} of {job} is neither a schedule nor a map run, nor the name of one.",
            todo="Pass what @app.schedule or @app.map returned, or its name.",
        )
    if annotation not in (CompleteRun, Any):
        raise errors.UsageError(
            f"{job} starts when a run is complete, but takes {getattr(annotation, '__name__', annotation)!s:.100}.",
            todo='Let it take onefold.schedules.CompleteRun, with the key "{run}".',
        )
    return title


class CompleteRun(Struct, frozen=True, kw_only=True):
    """The payload of a job that starts when a run is complete. For one run it is the same, whichever process sends it.

    Args:
        run: its name, which is the job's key. schedule: the schedule, or the map job, that it is a run of.
        nominal_at_ms: the instant of its tick; None if no schedule began it.
        started_at_ms: when it was begun.
        expected: how many operations it had. `onefold runs show` has their outcomes.
    """

    run: str
    schedule: str
    nominal_at_ms: int | None
    started_at_ms: int
    expected: int


class OtherRunError(Exception):
    """Another process has closed the run."""


class Closer:
    """Closes runs on one engine.

    Args:
        jobs: the app's. Only runs that have the name of one of them as their title are closed, because only the app of
            a run knows which jobs wait for it. Jobs with `starts_after` are sent when a run of that title is complete.
        since_ms: monotonic instant from which its intervals count; by default now.
    """

    def __init__(
        self, engine: Engine, jobs: Mapping[str, Job[Any, Any]], clock: Clock, since_ms: int | None = None
    ) -> None:
        self._engine = engine
        self._jobs = jobs
        self._clock = clock
        self._checking = Lock()
        self._lock = Lock()
        self._touched: set[str] = set()
        self._took_ms: dict[str, int] = {}  # how long the last tally of each run took
        self._swept_ms = clock.monotonic_ms() if since_ms is None else since_ms
        self._all_at_ms = self._swept_ms + ALL_MS

    def touch(self, name: str) -> None:
        """Note that a message of this run was settled; from any thread."""
        with self._lock:
            self._touched.add(name)

    def check(self, *, turns: bool = True) -> int:
        """Close the touched runs that are complete and, from time to time, any open one; returns how many were closed.

        Args:
            turns: skip a run whose tally takes long until its pause is over. False for a process that is about to end: it
                tallies every run, however long that takes.

        Raises:
            TransientError: the engine could not be read; the touched runs are checked the next time.
        """
        with self._checking:
            now_ms = self._clock.monotonic_ms()
            if now_ms >= self._all_at_ms or not turns:
                self._all_at_ms = now_ms + ALL_MS
                self._find_open(now_ms)
            with self._lock:
                touched = sorted(self._touched)
            return sum(self._check(name, turns) for name in touched)

    def _find_open(self, now_ms: int) -> None:
        for name in runs.open_names(self._engine.state):
            self.touch(name)
        if now_ms - self._swept_ms >= SWEEP_MS:
            self._swept_ms = now_ms
            runs.sweep(self._engine.state, expired_at_ms(self._clock, runs.KEPT_MS))

    def _check(self, name: str, turns: bool) -> bool:
        state_name = runs.OPEN_PREFIX + name
        stored = self._engine.state.get([state_name])[0]
        try:
            found = runs.read(self._engine.state, name)
        except errors.StorageError:  # commands that show this run report why; the other runs are not affected
            self._forget(name)
            return False
        if stored is None or (found is not None and found.run.title not in self._jobs):
            self._forget(name)
            return False
        if found is not None and found.run.expected is None:
            if found.run.failure is not None:  # its dispatch continues later, and will then touch it again
                self._forget(name)
            return False
        turn, now_ms = _turn_of(stored.value), self._clock.now_ms()
        if turns and now_ms < turn.not_before_ms <= now_ms + _PAUSE_MS_MAX:
            return False
        took_ms = max(self._took_ms.get(name, 0), turn.took_ms)
        pause_ms = min(took_ms * _PAUSE_FACTOR, _PAUSE_MS_MAX) if took_ms >= _LONG_MS else 0
        mine = _Turn(not_before_ms=now_ms + pause_ms, took_ms=took_ms)
        if not self._engine.state.put([Change(state_name, msgspec.json.encode(mine), stored.version)])[0]:
            return False  # another process checks it
        with self._lock:
            self._touched.discard(name)  # an operation that is settled from now on causes another check
        since_ms = self._clock.monotonic_ms()
        try:
            closed = self.close(name)
        except errors.TransientError:
            self.touch(name)
            raise
        except errors.UsageError as error:
            let_through(error)
            return self._cannot(name, error)
        self._took_ms[name] = self._clock.monotonic_ms() - since_ms
        if closed:
            self._forget(name)
        return closed

    def _cannot(self, name: str, error: errors.UsageError) -> bool:
        """Keep a run open, with the reason, if the jobs that wait for it cannot be sent; others are not affected."""
        why = f"What waits for it cannot be sent: {error}"[:500]
        stored = runs.read(self._engine.state, name)
        if stored is not None and stored.run.failure != why:
            runs.note(self._engine.state, name, failure=why)
        self._forget(name)
        return False

    def _forget(self, name: str) -> None:
        with self._lock:
            self._touched.discard(name)
        self._took_ms.pop(name, None)

    def close(self, name: str) -> bool:
        """Close one run if it is complete and still open; returns whether this call closed it.

        Raises:
            TransientError: the engine could not be read or written. PayloadError: a queue does not accept the message.
        """
        stored = runs.read(self._engine.state, name)
        opened = self._engine.state.get([runs.OPEN_PREFIX + name])[0]
        if stored is None or stored.run.ended_at_ms is not None:
            if opened is not None:  # another process took a turn while the run was closed
                self._engine.state.put([Change(runs.OPEN_PREFIX + name, None, opened.version)])
            return False
        if stored.run.expected is None:
            return False
        if not runs.is_over(stored.run, runs.count(self._engine.ledger, stored.run)):
            return False
        after = replace(stored.run, ended_at_ms=self._clock.now_ms(), joined=True, failure=None)

        def write() -> None:
            if not stored.run.joined:  # otherwise the run was resumed after its end
                self._start(stored.run)
            changes = [Change(runs.state_name(name), runs.encode(after), stored.version)]
            if opened is not None:
                changes.append(Change(runs.OPEN_PREFIX + name, None, opened.version))
            if not self._engine.state.put(changes)[0]:
                raise OtherRunError

        try:
            transaction(self._engine, write)
        except OtherRunError:
            return False
        return True

    def _start(self, run: RunState) -> None:
        """Send the jobs that wait for this run."""
        for job in self._jobs.values():
            if job.starts_after == run.title:
                payload = CompleteRun(
                    run=run.name, schedule=run.title, nominal_at_ms=run.nominal_at_ms, started_at_ms=run.started_at_ms,
                    expected=run.expected or 0,
                )  # fmt: skip
                job.deliver([job.outgoing(payload)])
