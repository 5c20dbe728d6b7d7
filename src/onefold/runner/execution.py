"""Deliveries on their way through one process.

    Execution  one delivery in the script of `record/attempt.py`: what was read from it, found, and decided on the way
    KeyOrder   which keys and FIFO groups are under way here, and what waits behind each: the second of a key begins when the
               first has been settled, so nobody waits out a lease that ends a moment later, and groups keep their order
    InFlight   every delivery from before its receive until it is settled or released; what the heartbeat extends
    Unit       runs that a lane (a pool of threads, tasks or processes) is given together; LaneReport is its answer

Never here: performing anything, storage, waiting; order between processes (the record's lease and the queue's group lock
keep that). Invariant: a script is advanced only by the one who performed its step; a delivery that was put behind another
comes back exactly once, from `free`; a delivery is in flight until its settlement is durable.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast

from msgspec import Struct

from onefold import errors
from onefold.contracts.store import Claimed
from onefold.record import attempt as script
from onefold.record import delivery as fate
from onefold.record.fates import ProbeAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from onefold.contracts.commit import Verdict
    from onefold.contracts.queue import Delivery
    from onefold.contracts.store import Answer, Ask, Hold
    from onefold.contracts.verbs import EffectTransaction
    from onefold.record.delivery import Outcome
    from onefold.runner.context import Context
    from onefold.runner.handlers import Job

_LATER_MS = 1 << 62  # after any instant: a call of a guarded function asks `call_leases.py`


class WaitingBehind:
    """What waits behind one run, in order, and the keys and groups that it holds up."""

    __slots__ = ("names", "waiting")

    def __init__(self) -> None:
        self.names: list[object] = []
        self.waiting: list[Delivery] = []


class Execution:
    """One delivery on its way through the script."""

    __slots__ = (
        "ask", "caught", "chain", "claimed", "ctx", "cut", "deadline_ms", "delivery", "effects", "facts", "job", "lost",
        "payload", "script", "started", "step", "stopping", "took_ms", "trusted_until_ms", "verdict",
    )  # fmt: skip

    def __init__(self, job: Job[Any, Any], delivery: Delivery, facts: script.Facts, payload: Any) -> None:
        self.job: Job[Any, Any] = job
        self.delivery: Delivery = delivery
        self.facts: script.Facts = facts
        self.payload: Any = payload
        self.begin_again()
        self.claimed: Claimed | None = None
        self.ask: Ask | None = (
            None  # what was claimed, while its record may be put back; None: another has the operation
        )
        self.ctx: Context | None = None
        self.effects: EffectTransaction | None = None
        self.deadline_ms: int | None = None  # monotonic; of the handler or probe that runs now
        self.started: bool = False  # by a step of its own, after the claim
        self.stopping: int | None = None  # version of the flag that says that this message stops its group
        self.took_ms: int = 0  # how long it was performed
        self.trusted_until_ms: int = _LATER_MS  # monotonic; after it another may have its lease (`record/lease.py`)
        self.cut: Outcome | None = None  # what it comes to when its handler is stopped from outside
        self.caught: bool = (
            False  # its handler raised, and that counts as done (a map's catch): own rows are taken back
        )
        self.lost: bool = False  # its lease was lost, and that was reported
        self.chain: WaitingBehind | None = None  # what waits behind it, while it is under way
        self.verdict: Verdict | None = None

    def begin_again(self) -> None:
        """From the script's first step."""
        self.script: Iterator[script.Step] = script.attempt(self.facts, self.job.policy)
        self.step: script.Step = next(self.script)

    @property
    def hold(self) -> Hold:
        """What its claim gave it."""
        assert self.claimed is not None
        return self.claimed.hold

    def found(self, found: Answer) -> None:
        """Tell the script what its claim has found; `advance` goes on from there."""
        assert isinstance(self.step, script.Claim)
        self.step.found = found
        if isinstance(found, Claimed):
            self.claimed = found

    def called(self, now_ms: int) -> script.Call:
        """The script's step of a handler that was called all the same.

        It begins anew where an exception of a signal's handler has ended it.
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
        """Report to the script that its step was performed at `now_ms`; the next step."""
        self.step.now_ms = now_ms
        self.step = next(self.script)
        return self.step

    @property
    def attempt(self) -> int:
        """Which run of the budget this is; 0 when it was never claimed."""
        if self.claimed is None:
            return 0
        return self.claimed.attempts + (self.started and not self.claimed.started)

    def refuse(self, why: str, delay_ms: int, now_ms: int) -> None:
        """Report to the script that the handler is not to be started now: its message comes back after `delay_ms`."""
        self.step.refused = fate.NotStarted(why[:500], delay_ms)
        self.advance(now_ms)

    def decide_again(self, outcome: Outcome, now_ms: int, fraction: float) -> None:
        """Report to the script that its Commit can never be carried out, and what the run comes to instead."""
        assert isinstance(self.step, script.Commit)
        self.step.instead, self.step.fraction = outcome, fraction
        self.advance(now_ms)

    def decided(self) -> fate.Decision:
        """What was decided of the delivery; only after its last step was reached."""
        assert isinstance(self.step, script.Commit)
        assert self.step.decision is not None
        return self.step.decision


class KeyOrder:
    """Which keys and groups are under way here, and what waits behind them. Safe from any thread.

    Attributes:
        order: to be held from the end of a run until what waited behind it has entered, and by whoever lets others enter:
            between the two its group is free, and what came later must not slip in.
    """

    def __init__(self) -> None:
        self.order: AbstractContextManager[bool] = threading.RLock()
        self._lock = threading.Lock()
        self._busy: dict[object, WaitingBehind] = {}

    def enter(self, runs: Sequence[Execution]) -> list[Execution]:
        """The runs that may go on now; the others' deliveries are kept behind the run that has their group or key."""
        first = []
        with self._lock:
            for run in runs:
                names = [name for name in (_group(run.delivery, run), run.facts.key) if name is not None]
                chain = next((self._busy[name] for name in names if name in self._busy), None)
                if chain is None:
                    run.chain = chain = WaitingBehind()
                    first.append(run)
                else:
                    chain.waiting.append(run.delivery)
                # Who waits holds up its own group too: nothing that came later may pass it there.
                for name in names:
                    if name not in self._busy:
                        self._busy[name] = chain
                        chain.names.append(name)
        return first

    def free(self, run: Execution) -> tuple[list[Delivery], list[Delivery]]:
        """End a run: the deliveries that waited behind its key, and those behind its group."""
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
        """Drop runs that were never claimed; their deliveries and those that waited behind them, in order."""
        dropped: list[Delivery] = []
        for run in runs:
            behind_key, behind_group = self.free(run)
            dropped += [run.delivery, *behind_key, *behind_group]
        return dropped

    def withdraw(self) -> list[Delivery]:
        """Take out everything that waits behind others, in the order in which it came."""
        waiting: list[Delivery] = []
        with self._lock:
            for chain in self._busy.values():
                waiting += chain.waiting
                chain.waiting = []
        return waiting


def _group(delivery: Delivery, run: Execution) -> tuple[str, str] | None:
    """The FIFO group of a delivery from the same queue as the run's."""
    return (delivery.queue, delivery.group) if run.job.policy.fifo and delivery.group is not None else None


class InFlightDelivery:
    """One delivery in flight.

    Attributes:
        delivery: as received. run: its run, once the operation was claimed.
        received_at_ms: monotonic instant before the receive was asked for.
        asked_at_ms: before its lease and visibility were last asked for. tried_at_ms: of the last try that failed.
        let_go: not extended any more: the lease was lost.
        report_in_ms: how long after its deadline a handler that still runs is reported again.
    """

    __slots__ = ("asked_at_ms", "delivery", "let_go", "received_at_ms", "report_in_ms", "run", "tried_at_ms")

    def __init__(self, delivery: Delivery, asked_at_ms: int) -> None:
        self.delivery: Delivery = delivery
        self.run: Execution | None = None
        self.received_at_ms: int = asked_at_ms
        self.asked_at_ms: int = asked_at_ms
        self.tried_at_ms: int | None = None
        self.let_go: bool = False
        self.report_in_ms: int = 0


class InFlight:
    """Safe from any thread. What was never taken (inline runs, tests of the runner alone) is ignored."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, InFlightDelivery] = {}
        self._dropped: list[Delivery] = []
        self._returned: set[str] = set()  # receipts that may still lie in the worker's buffer
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._held)

    def take(self, deliveries: Sequence[Delivery], asked_at_ms: int) -> None:
        """Deliveries were received; the receive was asked for at `asked_at_ms` (monotonic)."""
        held = {one.receipt: InFlightDelivery(one, asked_at_ms) for one in deliveries}
        with self._lock:
            self._held.update(held)
            self._counts["received"] += len(held)

    def claimed(self, runs: Iterable[Execution]) -> None:
        """The operations of these runs were claimed: their leases are to be extended too."""
        with self._lock:
            for run in runs:
                held = self._held.get(run.delivery.receipt)
                if held is not None:
                    held.run = run

    def over(self, deliveries: Iterable[Delivery], told: Iterable[str] = ()) -> None:
        """Deliveries were settled or given back; `told`: the names of the events that give their outcomes."""
        with self._lock:
            for one in deliveries:
                self._held.pop(one.receipt, None)
                self._returned.discard(one.receipt)
            self._counts.update(told)

    def drop(self, deliveries: Iterable[Delivery]) -> None:
        """Deliveries could not be begun because the backend failed; the worker takes them back into its buffer."""
        with self._lock:
            self._dropped.extend(one for one in deliveries if one.receipt in self._held)

    def dropped(self) -> list[Delivery]:
        """What was dropped since the last call, in order."""
        if not self._dropped:
            return []
        with self._lock:
            dropped, self._dropped = self._dropped, []
        return dropped

    def unbegun(self) -> list[Delivery]:
        """What was received and has not been claimed, in order."""
        with self._lock:
            return [held.delivery for held in self._held.values() if held.run is None]

    def mark_returned(self, deliveries: Iterable[Delivery]) -> None:
        """Deliveries were given back that somebody may be about to begin."""
        with self._lock:
            self._returned.update(one.receipt for one in deliveries)

    def was_returned(self, delivery: Delivery) -> bool:
        """Whether this delivery was given back, so that it must not be begun. Answers it once."""
        with self._lock:
            if delivery.receipt not in self._returned:
                return False
            self._returned.discard(delivery.receipt)
            return True

    def keeps(self, delivery: Delivery) -> bool:
        """Whether this delivery is still to be worked on here; False when its message may belong to another by now."""
        held = self._held.get(delivery.receipt)
        return held is not None and not held.let_go

    def all(self) -> list[InFlightDelivery]:
        """Everything in flight at this moment."""
        with self._lock:
            return list(self._held.values())

    def counts(self) -> dict[str, int]:
        """How many were received, and how often each event was reported of a settled delivery."""
        with self._lock:
            return dict(self._counts)


class Unit(Struct, frozen=True):
    """What a slot does at one time.

    Args:
        runs: to be performed, in order.
        grouped: the runs are of repeatable or transactional jobs: they are also finished by whoever performs them.
    """

    runs: Sequence[Execution]
    grouped: bool = False


class LaneReport(Struct, frozen=True, kw_only=True):
    """What a lane reports.

    Args:
        lane: whose slots changed. slots: how many are free again (or for the first time).
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
        """A place where handlers run. `submit`, `stop` and `end` may be called from any thread."""

        slots: int

        def start(self) -> None:
            """Begin; free slots are reported as they come."""
            ...

        def submit(self, unit: Unit) -> None:
            """Perform a unit as soon as a slot is free; never blocks."""
            ...

        def stop(self, run: Execution) -> None:
            """Stop this run's handler if it is running and can be stopped; `run.cut` says what it comes to."""
            ...

        def end(self, *, wait: bool) -> None:
            """End. `wait`: nothing is under way, so end in good order; otherwise leave what runs."""
            ...
