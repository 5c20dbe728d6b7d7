"""The lane of child processes: for CPU work, and for handlers that must be stoppable at any time.

Each slot is a thread in this process with a fresh `python -m onefold.runner.child`; the child runs handlers and probes,
and this process does all queue and store work. A child that must be stopped is killed with everything it started, and
replaced. It is not known what a killed handler had done, so its outcome is unknown, says how the process ended, and
counts as a crash. A child that ended before it had read an order has called nothing: another one gets the order.
Never here: deadlines (the watchdog calls `stop`), decisions. Invariant: a child is killed only for the run it is
performing.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from onefold import errors
from onefold.record.decisions import ProbeAnswer
from onefold.record.delivery import Failed, Outcome
from onefold.runner import calling, wire
from onefold.runner.context import Context
from onefold.runner.execution import Execution, LaneReport, Unit
from onefold.runner.runner import Runner

if TYPE_CHECKING:
    from onefold.outside import Clock
    from onefold.runner.execution import Report
    from onefold.runner.handlers import Job

CHILDREN_OF_JOBS: Final = 2  # if jobs ask for child processes and the worker was started without any
_START_TRIES = 4  # a child that ends before it is ready is started again after 1, 2 and 4 s; then the worker ends
_START_PAUSE_MS = 1_000
_ASK_TRIES = 3  # this many children may end, one after the other, before they read an order
_LEAVE_MS = 2_000  # how long an idle child may take to call what was registered with `atexit`


class Spawn(Struct, frozen=True, kw_only=True):
    """How children are started.

    Args:
        target: the app, as `module:attribute`; its `jobs` are looked up by name.
        join: `module:function`, called in the child with `lock_file` before it is ready, so that the owner does not
            count as dead while a child is still running; None if the backend has no presence lock.
    """

    target: str
    join: str | None = None
    lock_file: str | None = None


class NotTakenError(EOFError):
    """A child ended before it had read an order: what the order names was not called."""


class Child:
    """One child process. Used by one thread; `kill` from any."""

    def __init__(self, spawn: Spawn) -> None:
        self._end, theirs = socket.socketpair()
        # The system closes it when this process ends, and the child's guard sees that, even if a handler blocks all
        # threads.
        self._alive, guarded = socket.socketpair()
        try:
            with theirs, guarded:
                descriptors = [theirs.fileno(), guarded.fileno()]
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    [sys.executable, "-m", "onefold.runner.child", *map(str, descriptors)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=descriptors,
                    process_group=0,  # Ctrl-C is for the parent only, and what a handler started is killed with it
                )
        except OSError:
            self._end.close()
            self._alive.close()
            raise
        hello = wire.Hello(target=spawn.target, path=sys.path, join=spawn.join, lock_file=spawn.lock_file)
        with suppress(OSError):  # the child has ended already: `until_ready` reports that
            wire.send(self._end, hello)

    def until_ready(self) -> None:
        """Wait until the child can take orders.

        Raises:
            UsageError: the child cannot run this app. EOFError: it ended before it reported anything.
        """
        said = wire.receive(self._end, wire.Ready | wire.Broken)
        if isinstance(said, wire.Broken):
            self.reap()
            if said.hook:
                raise errors.UsageError(
                    f"A child process of the worker did not start: {said.why}",
                    meaning="Handlers run in processes of their own, and each calls the start hooks of the app.",
                    todo="Fix what it reports, and start the worker again.",
                )
            raise errors.UsageError(
                f"A child process of the worker could not load the app: {said.why}",
                meaning="Handlers run in processes of their own, which import the app afresh.",
                todo="Check that the app can be imported by its name in a new Python process.",
            )

    def ask(self, order: wire.Order) -> wire.Reply:
        """Send an order and wait for its reply.

        Raises:
            NotTakenError: the child ended before it had read the order.
            EOFError: it ended before it replied.
        """
        try:
            wire.send(self._end, order)
            wire.receive(self._end, wire.OrderTaken)
        except (OSError, EOFError) as error:
            raise NotTakenError(str(error)) from error
        reply: wire.Reply = wire.receive(self._end, wire.Reply)
        return reply

    def wait(self, timeout_s: float) -> bool:
        """Wait until the child has closed its end, at most `timeout_s` seconds; returns whether it has. A `Waiter`."""
        self._end.settimeout(max(timeout_s, 0.001))
        try:
            return self._end.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    def dismiss(self, clock: Clock) -> None:
        """Let an idle child end, then clean up after it."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_WR)
        clock.wait(self, _LEAVE_MS)
        self.reap()

    def kill(self) -> None:
        """Kill the child and everything in its process group. Its process id is not reused before `reap`."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def reap(self) -> str:
        """Clean up after the child's end, and return how it ended."""
        self._end.close()
        self.kill()
        self._alive.close()
        code = self._process.wait()
        if code >= 0:
            return f"exit code {code}"
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"


class Slot:
    """A thread that always has a child, and starts another when one ends; the `Caller` of the runs that it performs."""

    def __init__(self, number: int, lane: Children, inbox: SimpleQueue[Unit | None]) -> None:
        self._lane = lane
        self._inbox = inbox
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._current: Execution | None = None
        self.thread = threading.Thread(target=self._serve, name=f"onefold-child-{number}", daemon=True)

    def call(self, run: Execution, ctx: Context) -> Outcome:
        """Call the handler in the child."""
        try:
            reply = self._ask("call", run, ctx)
        except NotTakenError as error:
            return Failed(kind="transient", error="ProcessDied", summary=f"{error} The handler was not called.")
        except EOFError:
            return self._died(run)
        if reply.outcome is None:
            raise errors.InvariantBroken("A child process answered a call without an outcome.")
        return reply.outcome

    def probe(self, run: Execution, ctx: Context) -> ProbeAnswer:
        """Ask the probe in the child."""
        try:
            reply = self._ask("probe", run, ctx)
        except EOFError:
            return calling.unanswered(errors.OutcomeUnknown(f"Its process ended: {self._reap()}."), 0)
        if reply.answer is None:
            return calling.unanswered(errors.OutcomeUnknown(f"Its process said: {reply.outcome}"), 0)
        return reply.answer

    def stop(self, run: Execution) -> None:
        """Kill the child if it is performing this run."""
        with self._lock:
            if self._current is run and self._child is not None:
                self._child.kill()

    def abandon(self) -> None:
        """Kill the child, whatever it does."""
        with self._lock:
            if self._child is not None:
                self._child.kill()

    def _ask(self, what: str, run: Execution, ctx: Context) -> wire.Reply:
        """Give an order to the child, or to another one if it has ended meanwhile, and wait for the reply.

        Raises:
            NotTakenError: no child could read it. EOFError: one did, and ended before it replied, or the run was stopped.
        """
        ended = ""
        for _ in range(_ASK_TRIES):
            try:
                return self._ask_once(what, run, ctx)
            except NotTakenError:
                if run.cut is not None:
                    raise EOFError from None
                ended = self._reap()
                try:
                    if not self._start():
                        break
                except errors.UsageError as error:  # the next start ends the worker
                    raise NotTakenError(error.what) from error
        raise NotTakenError(f"Its process ended before it could be asked: {ended}.")

    def _ask_once(self, what: str, run: Execution, ctx: Context) -> wire.Reply:
        with self._lock:
            if run.cut is not None:  # it was stopped before it began
                raise EOFError
            if self._child is None:
                raise NotTakenError
            child, self._current = self._child, run
        tracing = self._lane.runner.tracing
        try:
            return child.ask(
                wire.Order(
                    what="probe" if what == "probe" else "call",
                    job=run.job.name,
                    message=wire.fields_of(run.delivery),
                    hold=ctx.hold,
                    attempt=ctx.attempt,
                    attempts_max=ctx.attempts_max,
                    remaining_ms=ctx.remaining_ms or 0,
                    trace=tracing.carried() if tracing is not None else None,
                )
            )
        finally:
            with self._lock:
                self._current = None

    def _died(self, run: Execution) -> Outcome:
        ended = self._reap()
        match run.cut:
            case Failed() as overran:
                return replace(overran, crashed=True, summary=f"{overran.summary} Its process was killed ({ended}).")
            case None:
                summary = f"Its process ended in the middle of the handler: {ended}."
                if ended == "signal SIGKILL":
                    summary += " Not sent by onefold; perhaps the system was out of memory."
                return Failed(kind="unknown", error="ProcessDied", summary=summary, crashed=True)
            case outcome:
                return outcome

    def _reap(self) -> str:
        with self._lock:
            child, self._child = self._child, None
        return child.reap() if child is not None else "it was never asked"

    def _serve(self) -> None:
        try:
            while self._child is not None or self._renew():
                unit = self._inbox.get()
                if unit is None:
                    break
                for run in unit.runs:
                    self._lane.runner.perform(run, self)
                self._lane.report(LaneReport(lane=self._lane, unit=unit, slots=0 if self._child is None else 1))
            if self._child is not None:
                self._lane.dismiss(self._child)
        except BaseException as error:  # noqa: BLE001 - the control loop decides
            self.abandon()
            self._reap()
            self._lane.report(LaneReport(lane=self._lane, slots=0, error=error))

    def _renew(self) -> bool:
        """Start a child and report its slot; otherwise as `_start`."""
        is_there = self._start()
        if is_there:
            self._lane.report(LaneReport(lane=self._lane))
        return is_there

    def _start(self) -> bool:
        """Start a child; returns False when the lane has ended in the meantime.

        Raises:
            UsageError: the child cannot be started, or cannot load the app.
        """
        ended = ""
        for number in range(_START_TRIES):
            if self._lane.ended:
                return False
            try:
                child = Child(self._lane.spawn)
                with self._lock:
                    self._child = child
                child.until_ready()
            except (EOFError, OSError) as error:
                ended = self._reap() if self._child is not None else str(error)
                if number + 1 < _START_TRIES:
                    self._lane.pause(_START_PAUSE_MS << number)
            else:
                return True
        raise errors.UsageError(
            f"A child process of the worker ended {_START_TRIES} times before it was ready ({ended}).",
            meaning="Its own output above shows why.",
            todo="Check that the app can be imported in a new Python process, and that the system has memory left.",
        )


def children_for(
    jobs: Iterable[Job[Any, Any]], count: int, spawn: Spawn | None, runner: Runner
) -> Callable[[Report], Children] | None:
    """What makes the lane of a worker that was started with `count` child processes; None if it needs no lane."""
    if count == 0 and any(job.executor == "process" for job in jobs):
        count = CHILDREN_OF_JOBS
    return partial(Children, count, spawn, runner, runner.clock) if count else None


class Children:
    """The lane.

    Args:
        count: child processes, 1 or more.

    Raises:
        UsageError: `spawn` is None.
    """

    def __init__(self, count: int, spawn: Spawn | None, runner: Runner, clock: Clock, report: Report) -> None:
        if spawn is None:
            raise errors.UsageError(
                f"processes={count}, but the app's name for child processes is not known.",
                todo='Start the worker with the app as "module:attribute".',
            )
        self.slots = count
        self.spawn = spawn
        self.runner = runner
        self.report = report
        self.ended = False
        self.killing = False
        self._clock = clock
        self._over = threading.Event()
        self._inbox: SimpleQueue[Unit | None] = SimpleQueue()
        self._slots = [Slot(number, self, self._inbox) for number in range(count)]

    def start(self) -> None:
        """Start all children at once; each is a free slot as soon as it is ready."""
        for slot in self._slots:
            slot.thread.start()

    def submit(self, unit: Unit) -> None:
        """Pass a unit to the next free child."""
        self._inbox.put(unit)

    def stop(self, run: Execution) -> None:
        """Kill the child that performs this run."""
        for slot in self._slots:
            slot.stop(run)

    def dismiss(self, child: Child) -> None:
        """Let an idle child end."""
        if self.killing:
            child.reap()
        else:
            child.dismiss(self._clock)

    def pause(self, pause_ms: int) -> None:
        """Wait before a child is started again; the end of the lane ends the wait."""
        self._clock.wait(self._over, pause_ms)

    def end(self, *, wait: bool) -> None:
        """End all children: idle ones gracefully; if `wait` is False, all are killed."""
        self.ended = True
        self.killing = not wait
        self._over.set()  # every slot that is pausing waits for this
        for _ in self._slots:
            self._inbox.put(None)
        for slot in self._slots:
            if not wait:
                slot.abandon()
            slot.thread.join()
