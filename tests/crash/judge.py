"""The judge of the crash tests: a second, simpler account of what may happen to one operation.

It gets plain facts (who claimed which fence until when, who wrote, whose effect happened, what was reported) and keeps
no more than it needs to decide that a promise was broken. It imports nothing from onefold, so no mistake there is
repeated here.

    fence     grows with every claim and is never used again
    lease     no claim succeeds while another lease runs whose holder is not known to be dead
    write     only the newest fence writes; an owner whose write was refused reports it (`lease-lost`)
    result    what a completed record answers never changes, and names an effect that happened
    effects   one; one more for each doubt about an earlier run, and only under a policy that runs again
    message   is deleted only when the record is completed
Invariant: every rule is checked at the step that breaks it, so that the history ends there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

Doubles = Literal["never", "after doubt"]


class Violation(AssertionError):
    """A promise was broken.

    Attributes:
        rule: which one, by its name in the table above.
    """

    def __init__(self, rule: str, text: str) -> None:
        self.rule = rule
        super().__init__(f"{rule}: {text}")


class Judge:
    """What is known about one operation.

    Args:
        doubles: whether the policy runs again when an earlier run is in doubt, so that the effect may happen again.
        deaf_to: rules whose breach is ignored, to see what else would have noticed it.
    """

    def __init__(self, doubles: Doubles, deaf_to: Collection[str] = ()) -> None:
        self._doubles = doubles
        self._deaf_to = deaf_to
        self.effects: list[int] = []  # fences, in the order in which the effects happened
        self._fence = 0  # the newest one
        self._lease_end_ms = 0
        self._holder: str | None = None  # who has the newest fence and has not written its outcome
        self._dead: set[str] = set()
        self._started = False  # whether the holder's run was marked as started
        self._doubts = 0  # runs that had started, ended without reporting anything, and were taken over
        self._told_crashes = 0  # according to the takeovers: how many runs of this operation ended without a report
        self._told_unknown = 0  # runs that reported themselves that their outcome is unknown
        self.result: int | None = None  # what the completed record answers: the fence of an effect
        self._refused: set[str] = set()  # owners that were refused and have not reported it
        self.over: str | None = None  # how the message ended

    def state(self, now_ms: int) -> tuple[object, ...]:
        """All that later judgements depend on; of the lease only whether it runs."""
        return (
            tuple(self.effects),
            self._fence,
            self._holder,
            self._holder in self._dead,
            now_ms < self._lease_end_ms,
            self._started,
            self._doubts,
            self._told_crashes,
            self._told_unknown,
            self.result,
            tuple(sorted(self._refused)),
            self.over,
        )

    def _object(self, rule: str, text: str) -> None:
        if rule not in self._deaf_to:
            raise Violation(rule, text)

    # -- facts -----------------------------------------------------------------------------------------------

    def claimed(self, owner: str, fence: int, *, started: bool, now_ms: int, lease_end_ms: int) -> None:
        """A claim was granted."""
        if fence <= self._fence:
            self._object("fence", f"{owner} was given fence {fence} after fence {self._fence}")
        if self.result is not None:
            self._object("result", f"{owner} was let in although the work was completed with result {self.result}")
        if self._holder is not None and now_ms < self._lease_end_ms and self._holder not in self._dead:
            self._object(
                "lease",
                f"{owner} was let in while {self._holder} holds the lease and is not known to be dead",
            )
        if self._holder is not None and self._started:
            self._doubts += 1
        self._fence, self._holder, self._started = fence, owner, started
        self._lease_end_ms = lease_end_ms

    def started(self, owner: str, fence: int, *, took: bool) -> None:
        """A run asked to be marked as started."""
        self._check_write(owner, fence, took=took, what="start")
        self._started = self._started or took

    def renewed(self, owner: str, fence: int, lease_end_ms: int, *, took: bool) -> None:
        """A run asked to extend its lease."""
        self._check_write(owner, fence, took=took, what="renew", told=False)
        if took:
            self._lease_end_ms = lease_end_ms

    def wrote(self, owner: str, fence: int, *, result: int | None, in_doubt: bool, took: bool) -> None:
        """A run wrote its outcome: completed with a result, or another; `in_doubt`: its outcome is unknown."""
        self._check_write(owner, fence, took=took, what="outcome")
        if not took:
            return
        self._holder = None
        if in_doubt:
            self._doubts += 1
        if result is not None:
            if self.result is not None:
                self._object(
                    "result",
                    f"{owner} completed under fence {fence} what was completed with result {self.result}",
                )
            if result not in self.effects:
                self._object("result", f"{owner} completed with result {result}; the effects were {self.effects}")
            self.result = result

    def _check_write(self, owner: str, fence: int, *, took: bool, what: str, told: bool = True) -> None:
        if took and fence != self._fence:
            self._object(
                "write",
                f"the {what} of {owner} under fence {fence} was taken; fence {self._fence} has the work",
            )
        if not took and told:
            self._refused.add(owner)

    def effect(self, owner: str, fence: int) -> None:
        """The effect happened."""
        self.effects.append(fence)
        allowed = 1 + (self._doubts if self._doubles == "after doubt" else 0)
        if len(self.effects) > allowed:
            self._object(
                "effects",
                f"{owner} caused effect number {len(self.effects)} under fence {fence} with {self._doubts} runs in doubt"
                f" ({self._doubles})",
            )

    def died(self, owner: str) -> None:
        """An owner is known to be dead."""
        self._dead.add(owner)

    def told(self, owner: str, event: str, detail: Mapping[str, object]) -> None:
        """An event was reported."""
        crashes = detail.get("crashes")
        if event == "takeover" and isinstance(crashes, int):
            self._told_crashes = max(self._told_crashes, crashes)
        if event == "unknown" and crashes is None:
            self._told_unknown += 1
        if event == "lease-lost":
            self._refused.discard(owner)

    def settled(self, fate: str) -> None:
        """The message was deleted, or moved to another queue."""
        if fate == "deleted" and self.result is None:
            self._object("message", "the message was deleted, and its work is not completed")
        self.over = fate

    def record(self, answers: int | None) -> None:
        """The record after a step: what it answers, or None when it is not completed."""
        if answers != self.result:
            self._object("result", f"the record answers {answers}; what was written and taken is {self.result}")

    def rested(self, owner: str) -> None:
        """A worker has finished with a delivery: any refusal must have been reported by now."""
        if owner in self._refused:
            self._object("write", f"a write of {owner} was refused, and it told nobody")

    # -- the end ---------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Faults are off and everything has drained."""
        if self.over is None:
            self._object("message", "the message never came to an end")
        if self.over == "deleted" and not self.effects:
            self._object("message", "the effect never happened, and the message is gone")
        extra, told = len(self.effects) - 1, self._told_crashes + self._told_unknown
        if extra > told:
            self._object("effects", f"{extra} extra effects, but only {told} doubts were told")
