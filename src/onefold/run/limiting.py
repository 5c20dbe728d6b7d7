"""What holds deliveries back: circuit breakers that are not closed, token buckets, and slots, all of them values in `State`.

Each decision is read, decided by a pure function of `decide/`, and written back by compare-and-set; the beaten ask again.
The gates (`throttling.py`) come here with jobs that have a limit, and with breakers that were seen open or may open.
Never here: the arithmetic, waiting, what was seen of a breaker a moment ago.
Invariant: a slot is renewed only while this process has it, and given back at most once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from onefold.contracts.queue import RetryIn
from onefold.contracts.state import Change, Versioned
from onefold.contracts.store import Complete, Fail, Release, Unknown
from onefold.decide import breaker, rate
from onefold.decide.breaker import Answer, Breaker, BreakerPolicy
from onefold.decide.delivery import Decision
from onefold.run.gates import Tell
from onefold.run.passage import Run
from onefold.steady_clock import until_ms

if TYPE_CHECKING:
    from onefold.contracts.verbs import State
    from onefold.outside import Clock


T = TypeVar("T")

_TRIES = 20  # compare-and-set rounds before the delivery is told to come back
_BEATEN_MS = 50


class Limiting:
    """Breakers and limits in State, for one process.

    Args:
        slots: State name and holder of each run of this process; kept here, looked at by the gates.
        owner: id of this process; names its slots. lease_ms: how long a slot holds until it is renewed.
    """

    def __init__(self, state: State, slots: set[tuple[str, str]], *, clock: Clock, owner: str, lease_ms: int) -> None:
        self._state = state
        self._slots = slots
        self._clock = clock
        self._owner = owner
        self._lease_ms = lease_ms
        self._policy = BreakerPolicy()

    # -- breakers ----------------------------------------------------------------------------------------------------

    def read(self, found: Versioned) -> Breaker:
        """The breaker that a value in State is."""
        return msgspec.json.decode(found.value, type=Breaker)

    def is_closed(self, value: Breaker) -> bool:
        """Whether it holds nothing back and remembers nothing."""
        return value == breaker.CLOSED

    def is_to_blame(self, standing: Breaker, run: Run) -> bool:
        """Whether a dependency-down is this operation's own, because others got through meanwhile."""
        return breaker.is_to_blame(standing, _operation(run))

    def ask(self, name: str, run: Run) -> tuple[Breaker, int, str]:
        """The breaker now; how long this delivery has to wait, and why; 0 and nothing: it may go."""
        now_ms = self._clock.now_ms()

        def decide(value: Breaker) -> tuple[Breaker, breaker.Admission]:
            found = breaker.admit(value, self._policy, _operation(run), now_ms)
            return found.breaker, found

        changed, found = self._change(name, Breaker, breaker.CLOSED, decide)
        if found is None:
            return changed, _BEATEN_MS, "the circuit breaker is being changed by others"
        if found.admitted:
            return changed, 0, ""
        return changed, found.wait_ms, f"the job is paused: {changed.summary}"[:200]

    def told(self, name: str, standing: Breaker | None, run: Run, decision: Decision, tell: Tell) -> Breaker | None:
        """Let the breaker know what the dependency answered: the breaker now; None: it was left as it stands."""
        answer = _answer(decision)
        heeded = ("down", "failing") if self._policy.in_a_row is not None else ("down",)
        if answer not in heeded and standing is None:
            return None  # it would change nothing, and reading the breaker may cost a call for each message
        note = decision.notes[-1] if decision.notes else None
        summary = str(note.detail.get("summary", "")) if note is not None else ""
        now_ms = self._clock.now_ms()
        asked_ms = decision.settle.delay_ms if answer == "down" and isinstance(decision.settle, RetryIn) else None

        def decide(value: Breaker) -> tuple[Breaker, str | None]:
            found = breaker.told(
                value, self._policy, _operation(run), answer, now_ms, retry_in_ms=asked_ms, summary=summary
            )
            return found.breaker, found.event

        changed, event = self._change(name, Breaker, breaker.CLOSED, decide)
        if event is not None:
            tell(event, run, {"summary": changed.summary, "until_ms": changed.until_ms, "pauses": changed.pauses})
        return changed

    # -- limits ------------------------------------------------------------------------------------------------------

    def take(self, run: Run, limit: rate.Limit) -> tuple[int, str]:
        """Take a slot and a token: how long this delivery has to wait, and why; 0 and nothing: it has both."""
        part = limit.key.of(run.payload) if limit.key is not None else ""
        if limit.concurrency is not None:
            wait_ms = self._occupy(run, limit.concurrency, part)
            if wait_ms:
                return wait_ms, f"{limit.concurrency} runs are under way, which is the limit"
        if limit.rate is not None:
            wait_ms = self._draw(run, limit.rate, part)
            if wait_ms:
                self.give_back(run)
                return wait_ms, f"the rate of {limit.rate.count} per {limit.rate.per_ms} ms is used up"
        return 0, ""

    def give_back(self, run: Run) -> None:
        """Give the slot of a run back, if it has one."""
        if run.job.limit is None or run.job.limit.concurrency is None:
            return
        part = run.job.limit.key.of(run.payload) if run.job.limit.key is not None and run.facts.key is not None else ""
        name, holder = f"slots/{run.job.name}/{part}", f"{self._owner}/{run.delivery.receipt}"
        if (name, holder) not in self._slots:
            return
        self._slots.discard((name, holder))
        now_ms = self._clock.now_ms()
        self._change(name, dict[str, int], _no_slots(), lambda slots: (rate.vacate(slots, holder, now_ms), None))

    def renew(self) -> None:
        """Extend every slot this process holds by another lease."""
        until = until_ms(self._clock, self._clock.now_ms(), self._lease_ms)
        held: dict[str, list[str]] = defaultdict(list)
        for name, holder in list(self._slots):
            held[name].append(holder)
        for name, holders in held.items():

            def extend(
                slots: dict[str, int], name: str = name, holders: Sequence[str] = holders
            ) -> tuple[dict[str, int], None]:
                # Looked up at every try: a slot that was given back meanwhile must not be taken again.
                return slots | {one: until for one in holders if (name, one) in self._slots}, None

            self._change(name, dict[str, int], _no_slots(), extend)

    def _draw(self, run: Run, allowed: rate.Rate, part: str) -> int:
        now_ms = self._clock.now_ms()

        def decide(value: rate.Bucket | None) -> tuple[rate.Bucket | None, rate.Taken]:
            found = rate.take(value, allowed, 1, now_ms)
            return found.bucket, found

        _, found = self._change(f"rate/{run.job.name}/{part}", rate.Bucket, None, decide)
        return _BEATEN_MS if found is None else int(found.wait_ms)

    def _occupy(self, run: Run, count_max: int, part: str) -> int:
        now_ms, holder = self._clock.now_ms(), f"{self._owner}/{run.delivery.receipt}"
        name = f"slots/{run.job.name}/{part}"

        def decide(value: dict[str, int]) -> tuple[dict[str, int], rate.Occupied]:
            found = rate.occupy(value, holder, count_max, now_ms + self._lease_ms, now_ms)
            return found.slots, found

        _, found = self._change(name, dict[str, int], _no_slots(), decide)
        if found is None:
            return _BEATEN_MS
        if found.granted:
            self._slots.add((name, holder))
            return 0
        return int(min(found.wait_ms, 1_000))  # one is usually given back long before it ends by itself

    def _change(self, name: str, kind: Any, empty: T, decide: Callable[[T], tuple[T, Any]]) -> tuple[T, Any]:
        """Read, decide, compare-and-set until nobody was faster; (value, None) when beaten every time."""
        value = empty
        for _ in range(_TRIES):
            found: Versioned | None = self._state.get([name])[0]
            value = empty if found is None else msgspec.json.decode(found.value, type=kind)
            changed, answer = decide(value)
            if changed is value or changed == value:
                return changed, answer
            expected = 0 if found is None else found.version
            if self._state.put([Change(name, msgspec.json.encode(changed), expected)])[0]:
                return changed, answer
        return value, None


def _no_slots() -> dict[str, int]:
    return {}


def _operation(run: Run) -> str:
    key = run.facts.key
    return f"{key.scope}/{key.key}" if key is not None else run.delivery.message_id


def _answer(decision: Decision) -> Answer:
    """What the end of a run says about the dependency."""
    if isinstance(decision.write, Complete):
        return "answered"
    if any(note.event == "dependency-down" for note in decision.notes):
        return "down"
    match decision.write:
        case Fail() if decision.write.failure.kind == "permanent":
            return "answered"
        case Fail() | Unknown():
            return "failing"
        case Release() | None:
            return "none"
