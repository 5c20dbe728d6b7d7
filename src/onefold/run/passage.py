"""`Run`: one delivery on its way through the script of `decide/attempt.py`.

Only what the rooms of `run/` hand to each other: the delivery, what was read from it, the script and where it stands, and
what was found and decided on the way. Never here: performing anything.
Invariant: the script is advanced only by the one who performed its step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onefold.decide import attempt as script
from onefold.decide import delivery as fate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onefold.contracts.commit import Verdict
    from onefold.contracts.queue import Delivery
    from onefold.contracts.store import Claimed
    from onefold.contracts.verbs import EffectTransaction
    from onefold.decide.outcomes import Outcome
    from onefold.run.context import Context
    from onefold.run.handlers import Job


class Chain:
    """What waits behind one run, in order, and the keys and groups that it holds up. Kept by `chains.py`."""

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
