"""Deliveries on their way: `Run`, one in the script of `decide/attempt.py`, and `Chains`, their order in this process.

A `Run` is what the rooms of `run/` hand to each other: the delivery, what was read from it, the script and where it stands,
and what was found and decided on the way. Deliveries of one key, and of one FIFO group, go one after the other: the second
of a chain begins when the first has been settled, so that nobody waits out a lease that ends a moment later, and no group is
run out of order.
Never here: performing anything; order between processes (the record's lease and the queue's group lock keep that).
Invariant: the script is advanced only by the one who performed its step; a delivery that was put behind another comes back
exactly once, from `free`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from onefold.decide import attempt as script
from onefold.decide import delivery as fate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from onefold.contracts.commit import Verdict
    from onefold.contracts.queue import Delivery
    from onefold.contracts.store import Claimed
    from onefold.contracts.verbs import EffectTransaction
    from onefold.decide.outcomes import Outcome
    from onefold.run.context import Context
    from onefold.run.handlers import Job


class Chain:
    """What waits behind one run, in order, and the keys and groups that it holds up."""

    __slots__ = ("names", "waiting")

    def __init__(self) -> None:
        self.names: list[object] = []
        self.waiting: list[Delivery] = []


class Run:
    """One delivery on its way through the script."""

    __slots__ = (
        "caught", "chain", "claimed", "ctx", "cut", "deadline_ms", "decision", "delivery", "effects", "facts", "job", "lost",
        "payload", "script", "started", "step", "stopping", "took_ms", "verdict",
    )  # fmt: skip

    def __init__(self, job: Job[Any, Any], delivery: Delivery, facts: script.Facts, payload: Any) -> None:
        self.job = job
        self.delivery = delivery
        self.facts = facts
        self.payload = payload
        self.script: Iterator[script.Step] = script.attempt(facts, job.policy)
        self.step: script.Step = next(self.script)
        self.claimed: Claimed | None = None
        self.ctx: Context | None = None
        self.effects: EffectTransaction | None = None
        self.deadline_ms: int | None = None  # monotonic; of the handler or probe that runs now
        self.started = False  # by a step of its own, after the claim
        self.stopping: int | None = None  # version of the flag that says that this message stops its group
        self.took_ms = 0  # how long it was performed
        self.cut: Outcome | None = None  # what it comes to when its handler is stopped from outside
        self.caught = False  # its handler raised, and that counts as done (a map's catch): own rows are taken back
        self.lost = False  # its lease was lost, and that was told
        self.decision: fate.Decision | None = None
        self.chain: Chain | None = None  # what waits behind it, while it is under way
        self.verdict: Verdict | None = None

    def advance(self, now_ms: int) -> script.Step:
        """Tell the script that its step was performed at `now_ms`; the next step."""
        self.step.now_ms = now_ms
        self.step = next(self.script)
        return self.step

    @property
    def attempt(self) -> int:
        """Which run of the budget this is; 0 when it was never claimed."""
        if self.claimed is None:
            return 0
        return self.claimed.attempts + (self.started and not self.claimed.started)

    def decided(self) -> fate.Decision:
        """What becomes of the delivery; only after its last step was reached."""
        if self.decision is None:
            assert isinstance(self.step, script.Commit)
            assert self.step.decision is not None
            self.decision = self.step.decision
        return self.decision


class Chains:
    """Which keys and groups are under way here, and what waits behind them. Safe from any thread.

    Attributes:
        order: to be held from the end of a run until what waited behind it has entered, and by whoever lets others enter:
            between the two its group is free, and what came later must not slip in.
    """

    def __init__(self) -> None:
        self.order = threading.RLock()
        self._lock = threading.Lock()
        self._busy: dict[object, Chain] = {}

    def enter(self, runs: Sequence[Run]) -> list[Run]:
        """The runs that may go on now; the others' deliveries are kept behind the run that has their group or key."""
        first = []
        with self._lock:
            for run in runs:
                names = [name for name in (_group(run.delivery, run), run.facts.key) if name is not None]
                chain = next((self._busy[name] for name in names if name in self._busy), None)
                if chain is None:
                    run.chain = chain = Chain()
                    first.append(run)
                else:
                    chain.waiting.append(run.delivery)
                # Who waits holds up its own group too: nothing that came later may pass it there.
                for name in names:
                    if name not in self._busy:
                        self._busy[name] = chain
                        chain.names.append(name)
        return first

    def free(self, run: Run) -> tuple[list[Delivery], list[Delivery]]:
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

    def forget(self, runs: Iterable[Run]) -> list[Delivery]:
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


def _group(delivery: Delivery, run: Run) -> tuple[str, str] | None:
    """The FIFO group of a delivery from the same queue as the run's."""
    return (delivery.queue, delivery.group) if run.job.policy.fifo and delivery.group is not None else None
