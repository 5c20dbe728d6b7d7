"""The state of deliveries inside one process.

    Execution  one delivery in the script of `record/attempt.py`: what was read, found and decided so far
    KeyOrder   the keys and FIFO groups in progress here, and what waits behind each: the second delivery of a key
               begins when the first has been settled, without waiting for the end of its lease; groups keep their order
    InFlight   every delivery from before its receive until it is settled or released; the heartbeat extends these
    Unit       runs that a lane (a pool of threads, tasks or processes) is given together; LaneReport is its answer

Never here: performing anything, storage, waiting; order between processes (which the record's lease and the queue's
group lock keep). Invariant: a script is advanced only by the code that performed its step; a delivery that waits behind
another is returned exactly once, by `free`; a delivery is in flight until its settlement is durable.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast

from msgspec import Struct

from onefold import errors
from onefold.contracts.store import Claimed, RecordKey
from onefold.interrupts import ignored
from onefold.record import attempt as script
from onefold.record import delivery as outcomes
from onefold.record.decisions import ProbeAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from onefold.contracts.commit import Verdict
    from onefold.contracts.queue import Delivery
    from onefold.contracts.store import Answer, Ask, Hold
    from onefold.contracts.verbs import EffectTransaction
    from onefold.record.delivery import Outcome
    from onefold.runner.context import Context
    from onefold.runner.handlers import Job

BEHIND_SLOT_MAX = 4  # deliveries that wait in this process for one run to free its slot
_LATER_MS = 1 << 62  # later than any instant: guarded calls are checked by `call_leases.py` instead


class WaitingBehind:
    """The deliveries that wait behind one run, in order, and the keys and groups that they block."""

    __slots__ = ("names", "waiting")

    def __init__(self) -> None:
        self.names: list[object] = []
        self.waiting: list[Delivery] = []


class Execution:
    """One delivery in the script: its state while it is processed."""

    __slots__ = (
        "ask", "caught", "chain", "claimed", "ctx", "cut", "deadline_ms", "delivery", "effects", "error", "facts",
        "is_limited", "job", "lost", "payload", "script", "slot", "span", "started", "step", "stopping",
        "took_ms", "trusted_until_ms", "verdict",
    )  # fmt: skip

    def __init__(self, job: Job[Any, Any], delivery: Delivery, facts: script.Facts, payload: Any) -> None:
        self.job: Job[Any, Any] = job
        self.delivery: Delivery = delivery
        self.facts: script.Facts = facts
        self.payload: Any = payload
        self.begin_again()
        self.claimed: Claimed | None = None
        # The claim, for as long as its record may be restored; None: another process has the operation.
        self.ask: Ask | None = None
        self.ctx: Context | None = None
        self.effects: EffectTransaction | None = None
        self.deadline_ms: int | None = None  # monotonic; deadline of the handler or probe that runs now
        self.started: bool = False  # started by a separate step, after the claim
        self.stopping: int | None = None  # version of the flag by which this message stops its group
        self.took_ms: int = 0  # how long its handler ran
        self.trusted_until_ms: int = _LATER_MS  # monotonic; after it, another may have its lease (`record/lease.py`)
        self.cut: Outcome | None = None  # its outcome when its handler is stopped from outside
        # Its handler raised, but counts as done (a map's catch): its own rows are rolled back.
        self.caught: bool = False
        self.is_limited: bool = False  # delayed by a limit or a breaker of its job
        self.slot: object = None  # the only slot for which it competes
        self.lost: bool = False  # whether its lease was lost, and that was reported
        self.chain: WaitingBehind | None = None  # deliveries that wait behind it, while it runs
        self.verdict: Verdict | None = None
        self.span: Any = None  # its process span, while tracing is on
        self.error: BaseException | None = None  # the error for which it could not be read or written

    def begin_again(self) -> None:
        """Start at the script's first step."""
        self.script: Iterator[script.Step] = script.attempt(self.facts, self.job.policy)
        self.step: script.Step = next(self.script)

    def read_again(self) -> None:
        """Read the payload anew: a probe has had it, and may have changed it."""
        if not self.job.policy.is_call:
            with ignored(Exception):  # code of the user's types, which has read it before
                self.payload = self.job.read(self.delivery)[1]

    @property
    def operation(self) -> RecordKey | None:
        """The operation, with the same key under all names of the job."""
        key = self.facts.key
        return key if key is None or not self.job.aliases else RecordKey(key.scope, self.job.name, key.key)

    @property
    def hold(self) -> Hold:
        """The hold that the answer to its claim contains."""
        assert self.claimed is not None
        return self.claimed.hold

    def found(self, found: Answer) -> None:
        """Pass the answer to its claim to the script; `advance` continues from there."""
        assert isinstance(self.step, script.Claim)
        self.step.found = found
        if isinstance(found, Claimed):
            self.claimed = found

    def called(self, now_ms: int) -> script.Call:
        """The script's step for a handler that has been called.

        If an exception from a signal handler has ended the script, it is started again.
        """
        if isinstance(self.step, script.Call) and cast("Any", self.script).gi_frame is not None:
            return self.step
        assert self.claimed is not None
        self.begin_again()
        while not isinstance(self.step, script.Call):
            match self.step:
                case script.Claim() as claim:
                    claim.found = self.claimed
                case script.Probe() as probe:
                    probe.answer = ProbeAnswer(verdict="not-done")
                case script.Start() as start:
                    start.held = True
                case _:
                    raise errors.InvariantBroken(f"A call was made, and its script ended with {self.step!r:.80}.")
            self.advance(now_ms)
        return self.step

    def advance(self, now_ms: int) -> script.Step:
        """Report to the script that its step was performed at `now_ms`; returns the next step."""
        self.step.now_ms = now_ms
        self.step = next(self.script)
        return self.step

    @property
    def raised(self) -> BaseException | None:
        """The latest error: its handler's, the reader's, or the backend's."""
        return self.error or (self.ctx.raised if self.ctx is not None else None)

    def forget_errors(self) -> None:
        """Drop reported exceptions: their frames keep a handler's values alive."""
        self.error = None
        if self.ctx is not None:
            self.ctx.raised = None

    @property
    def attempt(self) -> int:
        """The number of this run within its attempts; 0 when it was never claimed."""
        if self.claimed is None:
            return 0
        return self.claimed.attempts + (self.started and not self.claimed.started)

    def refuse(self, why: str, delay_ms: int, now_ms: int) -> None:
        """Report to the script that the handler cannot be started now; the message comes back after `delay_ms`."""
        self.step.refused = outcomes.NotStarted(why[:500], delay_ms)
        self.advance(now_ms)

    def decide_again(self, outcome: Outcome, now_ms: int, fraction: float) -> None:
        """Report to the script that its Commit can never be carried out, and the outcome to use instead."""
        assert isinstance(self.step, script.Commit)
        self.step.instead, self.step.fraction = outcome, fraction
        self.advance(now_ms)

    def decided(self) -> outcomes.Decision:
        """The decision about the delivery; only after the script's last step."""
        assert isinstance(self.step, script.Commit)
        assert self.step.decision is not None
        return self.step.decision


class KeyOrder:
    """The keys and groups in progress here, and what waits behind them. Safe from any thread.

    Attributes:
        order: a lock, to be held from the end of a run until the deliveries that waited behind it have entered, and whenever
            others enter; the group is free in between, and later deliveries must not overtake.
    """

    def __init__(self) -> None:
        self.order: AbstractContextManager[bool] = threading.RLock()
        self._lock = threading.Lock()
        self._busy: dict[object, WaitingBehind] = {}

    def enter(
        self, runs: Sequence[Execution], settled: Iterable[tuple[Execution, Verdict | None]] = ()
    ) -> list[Execution]:
        """The runs that may start now; the deliveries of the others wait behind the run with their group, key or slot.

        Args:
            settled: the runs whose end lets these enter. If one of those was refused a slot, nothing waits here for that
                slot, because another process may have it.
        """
        first = []
        taken = {run.slot for run, _ in settled if run.is_limited}
        with self._lock:
            for run in runs:
                names: list[object] = [one for one in (_group(run.delivery, run), run.operation) if one is not None]
                chain = next((self._busy[name] for name in names if name in self._busy), None)
                run.slot = _only_slot(run) if chain is None else None  # what waits for another reason blocks no slot
                if run.slot is not None and run.slot not in taken:
                    names.append(run.slot)
                    chain = self._busy.get(run.slot)
                    if chain is not None and len(chain.waiting) >= BEHIND_SLOT_MAX:
                        chain = None  # it is put back into its queue, so that it does not hold up others here
                if chain is None:
                    run.chain = chain = WaitingBehind()
                    first.append(run)
                else:
                    chain.waiting.append(run.delivery)
                # A waiting delivery also blocks its own group, where nothing later may overtake it.
                for name in names:
                    if name not in self._busy:
                        self._busy[name] = chain
                        chain.names.append(name)
        return first

    def free(self, run: Execution) -> tuple[list[Delivery], list[Delivery]]:
        """End a run. Returns the deliveries that waited behind its key, and those that waited behind its group."""
        with self._lock:
            chain, run.chain = run.chain, None
            if chain is None:
                return [], []
            for name in chain.names:
                self._busy.pop(name, None)
        behind_key: list[Delivery] = []
        behind_group: list[Delivery] = []
        group = _group(run.delivery, run)
        for one in chain.waiting:
            (behind_group if group is not None and _group(one, run) == group else behind_key).append(one)
        return behind_key, behind_group

    def forget(self, runs: Iterable[Execution]) -> list[Delivery]:
        """Drop runs that were never claimed. Returns their deliveries and those waiting behind them, in order."""
        dropped: list[Delivery] = []
        for run in runs:
            behind_key, behind_group = self.free(run)
            dropped += [run.delivery, *behind_key, *behind_group]
        return dropped

    def withdraw(self) -> list[Delivery]:
        """Remove and return everything that waits behind others, in order of arrival."""
        waiting: list[Delivery] = []
        with self._lock:
            for chain in self._busy.values():
                waiting += chain.waiting
                chain.waiting = []
        return waiting


def _group(delivery: Delivery, run: Execution) -> tuple[str, str] | None:
    """The FIFO group of a delivery from the same queue as the run's delivery."""
    return (delivery.queue, delivery.group) if run.job.policy.fifo and delivery.group is not None else None


def _only_slot(run: Execution) -> tuple[str, str, str] | None:
    """The slot for which a run competes, if its job's limit has one slot for each value of `per`, or a single slot."""
    limit = run.job.limit
    if limit is None or limit.concurrency != 1 or not isinstance(run.step, script.Claim):
        return None
    return "slot", run.job.name, limit.key.of(run.payload) if limit.key is not None else ""


class InFlightDelivery:
    """One delivery in flight.

    Attributes:
        delivery: as received. run: its run, once the operation was claimed.
        received_at_ms: monotonic instant before the receive was requested.
        asked_at_ms: monotonic instant before its lease and visibility were last extended. tried_at_ms: the instant of
            the last failed try; tried_from_ms: the instant of the first in that series of failures.
        let_go: no longer extended, because the lease was lost.
        report_in_ms: how long after its deadline a handler that is still running is reported again.
    """

    __slots__ = (
        "asked_at_ms",
        "delivery",
        "let_go",
        "received_at_ms",
        "report_in_ms",
        "run",
        "tried_at_ms",
        "tried_from_ms",
    )

    def __init__(self, delivery: Delivery, asked_at_ms: int) -> None:
        self.delivery: Delivery = delivery
        self.run: Execution | None = None
        self.received_at_ms: int = asked_at_ms
        self.asked_at_ms: int = asked_at_ms
        self.tried_at_ms: int | None = None
        self.tried_from_ms: int | None = None
        self.let_go: bool = False
        self.report_in_ms: int = 0

    def extended(self, asked_at_ms: int) -> None:
        """Note that its lease and visibility were extended, by a request made at `asked_at_ms` (monotonic)."""
        self.asked_at_ms, self.tried_at_ms, self.tried_from_ms = asked_at_ms, None, None


class InFlight:
    """The deliveries in flight in this process; safe from any thread.

    Deliveries that were never added (inline runs, tests of the runner alone) are ignored.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, InFlightDelivery] = {}
        self._dropped: list[Delivery] = []
        self._returned: set[str] = set()  # receipts that may still be in the worker's buffer
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._held)

    def take(self, deliveries: Sequence[Delivery], asked_at_ms: int) -> None:
        """Add received deliveries; the receive was requested at `asked_at_ms` (monotonic)."""
        held = {one.receipt: InFlightDelivery(one, asked_at_ms) for one in deliveries}
        with self._lock:
            self._held.update(held)
            self._counts["received"] += len(held)

    def claimed(self, runs: Iterable[Execution]) -> None:
        """Note runs whose operations were claimed, so that their leases are extended too."""
        with self._lock:
            for run in runs:
                held = self._held.get(run.delivery.receipt)
                if held is not None:
                    held.run = run

    def over(self, deliveries: Iterable[Delivery], reported: Iterable[str] = ()) -> None:
        """Remove deliveries that were settled or returned; `reported`: names of the events with their outcomes."""
        with self._lock:
            for one in deliveries:
                self._held.pop(one.receipt, None)
                self._returned.discard(one.receipt)
            self._counts.update(reported)

    def drop(self, deliveries: Iterable[Delivery]) -> None:
        """Note deliveries that could not be begun because the backend failed; the worker buffers them again."""
        with self._lock:
            self._dropped.extend(one for one in deliveries if one.receipt in self._held)

    def dropped(self) -> list[Delivery]:
        """The deliveries dropped since the last call, in order."""
        if not self._dropped:
            return []
        with self._lock:
            dropped, self._dropped = self._dropped, []
        return dropped

    def unbegun(self) -> list[Delivery]:
        """The deliveries that were received and have not been claimed, in order."""
        with self._lock:
            return [held.delivery for held in self._held.values() if held.run is None]

    def mark_returned(self, deliveries: Iterable[Delivery]) -> None:
        """Note deliveries that were returned to their queue while another thread may be about to begin them."""
        with self._lock:
            self._returned.update(one.receipt for one in deliveries)

    def was_returned(self, delivery: Delivery) -> bool:
        """Whether this delivery was returned, so that it must not be begun. True only once for each."""
        with self._lock:
            if delivery.receipt not in self._returned:
                return False
            self._returned.discard(delivery.receipt)
            return True

    def keeps(self, delivery: Delivery) -> bool:
        """Whether this process still holds this delivery; False if another may have received its message by now."""
        held = self._held.get(delivery.receipt)
        return held is not None and not held.let_go

    def all(self) -> list[InFlightDelivery]:
        """Everything in flight at this moment."""
        with self._lock:
            return list(self._held.values())

    def counts(self) -> dict[str, int]:
        """How many were received, and how often each event was reported for a settled delivery."""
        with self._lock:
            return dict(self._counts)


class Unit(Struct, frozen=True):
    """The work of one slot at a time.

    Args:
        runs: to be performed, in order.
        grouped: runs of repeatable or transactional jobs; the lane that performs them also finishes them.
    """

    runs: Sequence[Execution]
    grouped: bool = False


class LaneReport(Struct, frozen=True, kw_only=True):
    """What a lane reports.

    Args:
        lane: the lane whose slots changed. slots: how many have become free.
        unit: what was performed; None when only slots changed.
        ready: runs that waited behind a group and are ready to be performed.
        error: a defect, or a backend that cannot be used: the worker must end.
    """

    lane: Lane
    slots: int = 1
    unit: Unit | None = None
    ready: Sequence[Execution] = ()
    error: BaseException | None = None


if TYPE_CHECKING:  # for annotations only
    Report = Callable[[LaneReport], None]

    class Lane(Protocol):
        """A group of slots that run handlers. `submit`, `stop` and `end` may be called from any thread."""

        slots: int

        def start(self) -> None:
            """Begin; slots are reported as they become free."""
            ...

        def submit(self, unit: Unit) -> None:
            """Perform a unit as soon as a slot is free; never blocks."""
            ...

        def stop(self, run: Execution) -> None:
            """Stop this run's handler if it is running and can be stopped; its outcome is then `run.cut`."""
            ...

        def end(self, *, wait: bool) -> None:
            """End the lane. `wait`: nothing is running, so end gracefully; otherwise abandon what is running."""
            ...
