"""A worker's background threads: they extend leases and visibilities, enforce deadlines, and free dead owners' work.

There are three, each a `Periodic`. The heartbeat extends the record leases and message visibilities of everything in
flight together, from the moment of receive. The watchdog, which uses no storage, stops handlers at their deadline.
Maintenance does the engine's periodic work. They are separate so that a locked file delays no deadline, and a long
sweep no lease.
Never here: when a lease is due or lost (`record/lease.py`), what is done with a run. Invariants: a lease is extended
for as long as its handler runs, even past the deadline, because otherwise another worker would take the operation over
while the handler is still running, and its effect would happen twice. A mark (`contracts.engine.RenewalMark`) is never
later than the end of a lease that is in flight here and was not let go.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from onefold import errors
from onefold.clock import HOLD_MS, SteadyClock, lease_from_ms, until_ms
from onefold.contracts.store import Hold
from onefold.record import attempt as script
from onefold.record import lease
from onefold.record.delivery import LeaseGone, Outcome
from onefold.runner import calling
from onefold.runner.execution import Execution, InFlight, InFlightDelivery
from onefold.runner.reports import thread_fault
from onefold.runner.settlement import Backend

if TYPE_CHECKING:
    from onefold.contracts.engine import RenewalMark
    from onefold.outside import Clock
    from onefold.runner.executors import Executors
    from onefold.runner.runner import Runner

MAINTAIN_MS = 500  # how often to check for dead owners: their work runs again within about a second
_BUSY_MS = 5_000  # pause after a maintenance call for which the engine was too busy
REST_MS_MAX = 60_000  # a thread with nothing due checks again after this
TOGETHER_SHARE = 12  # leases due within a twelfth of their length are extended together with the one that is due
_STEP_LOOK_MS = HOLD_MS // 4  # how often to check whether the clock was set
_LATER_MS = 1 << 62  # after any instant
_RETRY_MS = 100  # pause after an unexpected error: 100 ms x 2^n
RETRIES_MAX = 5  # retries in a row at most, 3.1 s in all; a lease is extended when a third of it is over

Stop = Callable[[Execution, Outcome], None]
"""Stops a run's handler if it can be stopped (task, process), or notifies it (thread)."""


class ThreadBell:
    """A bell that one thread waits for and others ring, also in signal handlers; missed rings are kept as one."""

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()  # its `put` is reentrant, which a threading.Event's `set` is not

    def ring(self) -> None:
        """Wake the waiting thread, or else let the next wait end at once."""
        self._rings.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Block until rung, at most `timeout_s` seconds; True when rung."""
        try:
            self._rings.get(timeout=timeout_s)
        except Empty:
            return False
        with suppress(Empty):  # rings that came meanwhile count as the same one
            while True:
                self._rings.get_nowait()
        return True


class Periodic:
    """A thread that calls `work` repeatedly: after as many milliseconds as `work` returned, or at once when rung.

    If `work` raises, that is reported, and `work` is called again after a pause, RETRIES_MAX times in a row. After an
    error of onefold that is not transient, continuing is pointless, so the thread ends at once.

    Args:
        name: the thread's name, for people.
        failed: called with the last exception of `work`; then the thread ends.
        reported: called with the thread's name and each exception of `work`. What it raises is ignored.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], int],
        clock: Clock,
        failed: Callable[[BaseException], None],
        reported: Callable[[str, Exception], None],
    ) -> None:
        self._name = name
        self._work = work
        self._clock = clock
        self._failed = failed
        self._reported = reported
        self._ended = False
        self.bell = ThreadBell()
        self._thread = threading.Thread(target=self._run, name=f"onefold-{name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self, *, wait: bool) -> None:
        """End the thread after its present call; `wait`: return only after that."""
        self._ended = True
        self.bell.ring()
        if wait and self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        failures = 0
        while not self._ended:
            try:
                rest_ms = self._work()
                failures = 0
            except BaseException as error:  # noqa: BLE001 - it must be reported, whatever it is
                failures += 1
                if isinstance(error, Exception):
                    with suppress(Exception):  # nobody would notice if the thread ended because its report failed
                        self._reported(self._name, error)
                is_final = isinstance(error, errors.OnefoldError) and not isinstance(error, errors.TransientError)
                if is_final or failures > RETRIES_MAX or not isinstance(error, Exception):
                    self._failed(error)
                    return
                rest_ms = _RETRY_MS << (failures - 1)
            self._clock.wait(self.bell, min(rest_ms, REST_MS_MAX))


class Heartbeat:
    """Extends the leases and visibilities of everything in flight.

    Args:
        lease_ms: how long claims and receives hold.
        also: extends whatever else lasts as long as the lease (concurrency slots).
        put_back: called with a run and a lease in milliseconds: restores the record of a refused lease if it is gone
            from the store; returns False if another process has it. lost: called for a run whose lease is lost. stop:
            stops its handler.
        busy: called when the backend could not extend.
        mark: shows other processes that this one is not stopped; None: they cannot see it.
    """

    def __init__(
        self,
        in_flight: InFlight,
        backend: Backend,
        *,
        clock: Clock,
        lease_ms: int,
        also: Callable[[], None],
        stop: Stop,
        put_back: Callable[[Execution, int], bool],
        lost: Callable[[Execution], None],
        busy: Callable[[errors.TransientError], None],
        mark: RenewalMark | None = None,
    ) -> None:
        self._in_flight = in_flight
        self._backend = backend
        self._clock = clock
        self._lease_ms = lease_ms
        self._also = also
        self._stop = stop
        self._put_back = put_back
        self._lost = lost
        self._busy = busy
        self._mark = mark

    def beat(self) -> int:
        """Extend the leases that are due, stop runs that have lost theirs; returns milliseconds until the next beat."""
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        is_set = self._is_set_forward()
        due: dict[int, list[InFlightDelivery]] = defaultdict(list)
        soon: dict[int, list[InFlightDelivery]] = defaultdict(list)
        for held in self._in_flight.all():
            if held.let_go:
                continue
            match self._step(held, now_ms):
                case lease.Over():
                    self._give_up(held)
                case lease.Extend(lease_ms):
                    due[lease_ms].append(held)
                case lease.Rest(due_ms):
                    before = is_set and now_ms - held.asked_at_ms >= _STEP_LOOK_MS
                    ahead = self._step(held, due_ms if before else now_ms + self._lease_ms // TOGETHER_SHARE)
                    if isinstance(ahead, lease.Extend) and before:
                        due[ahead.lease_ms].append(held)
                    elif isinstance(ahead, lease.Extend):
                        soon[ahead.lease_ms].append(held)
        if due:
            for lease_ms in due.keys() | soon.keys():
                self._extend(due[lease_ms] + soon[lease_ms], lease_ms, now_ms)
        if self._mark is not None and all(self._is_kept(held, now_ms) for held in self._in_flight.all()):
            self._mark.renewed(wall_ms)
        return self._next_in_ms()

    def _is_kept(self, held: InFlightDelivery, now_ms: int) -> bool:
        """Whether a delivery's lease is still trusted, or nothing is done under it here any more."""
        return held.let_go or now_ms < lease.trusted_until_ms(held.asked_at_ms, self._lease_ms)

    def _is_set_forward(self) -> bool:
        """Whether the wall clock was just set forward, so that earlier leases end when other processes follow it."""
        lease_from_ms(self._clock)  # detects a step
        return isinstance(self._clock, SteadyClock) and self._clock.behind_ms > 0

    def _step(self, held: InFlightDelivery, now_ms: int) -> lease.Step:
        return lease.next_step(_lease_of(held, self._lease_ms), now_ms)

    def _next_in_ms(self) -> int:
        """Time until the earliest lease is due, or would be for a message received now: after a third of its length."""
        now_ms = self._clock.monotonic_ms()
        next_ms = now_ms + min(self._lease_ms // 3, _STEP_LOOK_MS)
        for held in self._in_flight.all():
            step = self._step(held, now_ms)
            if not held.let_go:
                next_ms = min(next_ms, step.until_ms if isinstance(step, lease.Rest) else now_ms)
        return next_ms - now_ms

    def _extend(self, held: list[InFlightDelivery], lease_ms: int, now_ms: int) -> None:
        """Extend leases, then visibilities; together, because each write costs an fsync."""
        claimed = [one for one in held if one.run is not None and one.run.claimed is not None]
        try:
            refused = self._renew(claimed, lease_ms)
            # A refused lease belongs to a settled run or to another process: this process must not hide its message any
            # longer.
            held = [one for one in held if one not in refused]
            hidden = self._backend.source.extend([one.delivery for one in held], lease_ms)
            self._also()
        except errors.TransientError as error:
            failed_ms = self._clock.monotonic_ms()
            for one in held:
                one.tried_from_ms = lease.failed_from_ms(_lease_of(one, lease_ms), failed_ms)
                one.tried_at_ms = failed_ms
            self._busy(error)
            return
        for one in claimed:
            if one.run is not None and one not in refused:
                one.run.trusted_until_ms = lease.trusted_until_ms(now_ms, lease_ms)
        for one, ok in zip(held, hidden, strict=True):
            one.extended(now_ms)
            if not ok and one.run is None:
                one.let_go = True  # it was not begun, and another process may have received it by now
        for one in refused:
            one.extended(now_ms)  # otherwise it stays due, and the next beat comes at once
            run = one.run
            if run is not None and _is_performed(
                run
            ):  # otherwise it was just settled, or will be, and its settlement will show that the lease is lost
                one.let_go = True
                self._lost(run)
                self._stop(run, LeaseGone())

    def _renew(self, claimed: Sequence[InFlightDelivery], lease_ms: int) -> list[InFlightDelivery]:
        holds = [_hold(one) for one in claimed]
        answers = (
            self._backend.store.renew(holds, until_ms(self._clock, lease_from_ms(self._clock), lease_ms))
            if holds
            else []
        )
        refused = [one for one, ok in zip(claimed, answers, strict=True) if not ok]
        return [one for one in refused if not self._is_back(one.run, lease_ms)]

    def _is_back(self, run: Execution | None, lease_ms: int) -> bool:
        return run is not None and _is_performed(run) and self._put_back(run, lease_ms)

    def _give_up(self, held: InFlightDelivery) -> None:
        """Let go of a delivery that was not extended in time (or must not be): another process may own it by now."""
        held.let_go = True
        if held.run is not None and _is_performed(held.run):
            self._stop(held.run, LeaseGone())


def heartbeat_of(
    runner: Runner,
    stop: Stop,
    lease_ms: int,
    failed: Callable[[BaseException], None],
    mark: RenewalMark | None = None,
) -> Periodic:
    """The thread that extends what a runner has in flight. `failed`: as for `Periodic`; `mark`: as for `Heartbeat`."""
    heartbeat = Heartbeat(
        runner.in_flight,
        runner.backend,
        clock=runner.clock,
        lease_ms=lease_ms,
        also=runner.admission.renew,
        stop=stop,
        put_back=runner.settler.put_back,
        lost=runner.reports.lease_lost,
        busy=runner.reports.busy,
        mark=mark,
    )
    return Periodic("heartbeat", heartbeat.beat, runner.clock, failed, runner.reports.thread_failed)


class Watchdog:
    """Stops handlers at their deadline. A handler that cannot be stopped keeps its lease, and is reported repeatedly.

    Args:
        stop: stops a handler that has run out of time.
        on_overrun: reports it; called again if it is still running after two timeouts, four, eight and so on.
    """

    def __init__(
        self, in_flight: InFlight, *, clock: Clock, stop: Stop, on_overrun: Callable[[Execution], None]
    ) -> None:
        self._in_flight = in_flight
        self._clock = clock
        self._stop = stop
        self._on_overrun = on_overrun
        self._next_ms = _LATER_MS

    def expects(self, at_ms: int) -> bool:
        """Whether the monotonic instant `at_ms` is before the thread's next check, so that the thread must be rung."""
        return at_ms < self._next_ms

    def look(self) -> int:
        """Stop handlers that have passed their deadline; returns milliseconds until the next check."""
        self._next_ms = _LATER_MS  # a run submitted from now on rings the thread, and the next check comes at once
        now_ms = self._clock.monotonic_ms()
        next_ms = now_ms + REST_MS_MAX
        late: list[Execution] = []
        for held in self._in_flight.all():
            run = held.run
            if run is None or held.let_go or not _is_performed(run):
                continue
            timeout_ms = run.job.policy.timeout_ms
            deadline_ms = run.deadline_ms if run.deadline_ms is not None else now_ms + timeout_ms
            if now_ms < deadline_ms:
                next_ms = min(next_ms, deadline_ms)
                continue
            if run.cut is None:
                late.append(run)
                self._stop(run, calling.overran(timeout_ms))
                held.report_in_ms = timeout_ms
            elif now_ms >= deadline_ms + held.report_in_ms:
                late.append(run)
            while now_ms >= deadline_ms + held.report_in_ms:
                held.report_in_ms = 2 * held.report_in_ms + timeout_ms
            next_ms = min(next_ms, deadline_ms + held.report_in_ms)
        for run in late:
            self._on_overrun(run)
        self._next_ms = next_ms
        return max(next_ms - self._clock.monotonic_ms(), 0)


class Beside:
    """The background threads of a worker.

    Args:
        maintain: the engine's periodic work, called every MAINTAIN_MS.
        drain: ends the worker gracefully, within the milliseconds it is called with; safe from any thread. mark: as for
            `Heartbeat`.

    Attributes:
        heartbeat, maintain: for tests. fault: the error with which the worker ends if a thread could not continue.
    """

    def __init__(
        self,
        runner: Runner,
        executors: Executors,
        lease_ms: int,
        maintain: Callable[[], object] | None,
        drain: Callable[[int], None],
        mark: RenewalMark | None = None,
    ) -> None:
        self._executors, self._drain, self._lease_ms = executors, drain, lease_ms
        self.fault: errors.OnefoldError | None = None
        self._clock, self._reports = runner.clock, runner.reports
        self._watchdog = Watchdog(
            runner.in_flight, clock=self._clock, stop=executors.stop, on_overrun=self._reports.overrun
        )
        reported = self._reports.thread_failed
        self._watching = Periodic("watchdog", self._watchdog.look, self._clock, self._failed, reported)
        self._mark = None if mark is None else _WorkersMark(mark)
        self.heartbeat = heartbeat_of(runner, executors.stop, lease_ms, self._failed, self._mark)
        self._threads = [self._watching, self.heartbeat]
        self.maintain = maintain
        if maintain is not None:
            self._threads.append(Periodic("maintenance", self._maintain_once, self._clock, self._failed, reported))

    def _failed(self, error: BaseException) -> None:
        """Drain after a thread has ended: running work is finished and recorded, if the backend can still be used."""
        if not isinstance(error, Exception):
            self._executors.fail(error)
            return
        self.fault = error if isinstance(error, errors.OnefoldError) else thread_fault(error)
        self._drain(self._lease_ms // 3)  # while leases still hold, because the thread that ended may be the heartbeat

    def start(self) -> None:
        """Start all."""
        for thread in self._threads:
            thread.start()

    def end(self, *, wait: bool) -> None:
        """End all threads after their present calls; `wait` for these, when nothing is in flight any more."""
        for thread in self._threads:
            thread.end(wait=wait)
        if wait:
            self.end_mark()

    def end_mark(self) -> None:
        """Show other processes no longer that leases are needed here: no handler runs any more."""
        if self._mark is not None:
            self._mark.close()

    def watch(self, timeout_ms: int) -> None:
        """Let the watchdog know of runs that were just submitted; the first of their deadlines is in `timeout_ms`."""
        if self._watchdog.expects(self._clock.monotonic_ms() + timeout_ms):
            self._watching.bell.ring()

    def _maintain_once(self) -> int:
        assert self.maintain is not None
        try:
            self.maintain()
        except errors.TransientError as error:
            self._reports.busy(error)
            return _BUSY_MS
        return MAINTAIN_MS


class _WorkersMark:
    """A mark that stays closed, although the heartbeat's last beat may come later."""

    def __init__(self, mark: RenewalMark) -> None:
        self._mark = mark
        self._lock = threading.Lock()
        self._is_closed = False
        self.is_busy = mark.is_busy

    def renewed(self, at_ms: int) -> None:
        """Like `RenewalMark.renewed`; nothing after `close`."""
        with self._lock:
            if not self._is_closed:
                self._mark.renewed(at_ms)

    def close(self) -> None:
        """Like `RenewalMark.close`, for good."""
        with self._lock:
            self._is_closed = True
            self._mark.close()


def _is_performed(run: Execution) -> bool:
    return not isinstance(run.step, script.Commit)


def _hold(held: InFlightDelivery) -> Hold:
    assert held.run is not None
    assert held.run.claimed is not None
    return held.run.claimed.hold


def _lease_of(held: InFlightDelivery, lease_ms: int) -> lease.Lease:
    return lease.Lease(
        asked_at_ms=held.asked_at_ms,
        lease_ms=lease_ms,
        received_at_ms=held.received_at_ms,
        tried_at_ms=held.tried_at_ms,
        tried_from_ms=held.tried_from_ms,
        is_claimed=held.run is not None and held.run.claimed is not None,
    )
