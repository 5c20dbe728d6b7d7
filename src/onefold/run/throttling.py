"""The gates of a worker on shared state: token buckets, concurrency slots and circuit breakers in `State`.

Each decision is read, decided by a pure function of `decide/`, and written back by compare-and-set; the beaten ask again.
A job without a limit costs one read of its breaker every CACHE_MS. Never here: the arithmetic, waiting.
Invariant: what a gate took for a run that then did not start is given back when that run is settled or forgotten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from onefold import errors
from onefold.clock import Clock
from onefold.contracts.queue import RetryIn
from onefold.contracts.state import Change, State, Versioned
from onefold.contracts.store import Complete, Fail, Release, Unknown
from onefold.decide.delivery import Decision
from onefold.run.handlers import Job, Limit
from onefold.run.passage import Run

if TYPE_CHECKING:
    from onefold.decide import breaker, rate
    from onefold.decide.breaker import Answer, Breaker, BreakerPolicy
    from onefold.run.gates import Tell

T = TypeVar("T")

CACHE_MS = 250  # how long a breaker that was seen closed is believed closed
_TRIES = 20  # compare-and-set rounds before the delivery is told to come back
_BEATEN_MS = 50
_UNSEEN = (None, 0)


class StateGates:
    """Limits and breakers of an app's jobs, shared by every process on the engine.

    Args:
        jobs: by name. state: where the values are.
        owner: id of this process; names its slots. lease_ms: how long a slot holds until it is renewed.
        cache_ms: how long a breaker that was seen closed is believed closed.
    """

    def __init__(
        self,
        jobs: Mapping[str, Job[Any, Any]],
        state: State,
        *,
        clock: Clock,
        owner: str,
        lease_ms: int,
        cache_ms: int = CACHE_MS,
    ) -> None:
        self._jobs = jobs
        self._state = state
        self._clock = clock
        self._owner = owner
        self._lease_ms = lease_ms
        self._cache_ms = cache_ms
        self._seen: dict[str, tuple[Breaker | None, int]] = {}  # None: closed, as nearly all are
        self._slots: set[tuple[str, str]] = set()  # State name and holder of each run of this process

    @cached_property
    def _policy(self) -> BreakerPolicy:
        from onefold.decide.breaker import BreakerPolicy  # here and below: a closed breaker needs none of it

        return BreakerPolicy()

    def admit(self, runs: Sequence[Run]) -> tuple[list[Run], list[tuple[Run, int, str]]]:
        """The runs that may go on, and the others with how long to wait (ms) and why."""
        admitted: list[Run] = []
        refused: list[tuple[Run, int, str]] = []
        closed: set[str] = set()  # asked once for all runs of a job
        for run in runs:
            job = run.job.name
            standing = None if job in closed else self._current(breaker_name(job))
            if standing is None or not standing.is_open:
                closed.add(job)
            wait_ms, why = (0, "") if job in closed else self._breaker(run)
            if not why and run.job.limit is not None:
                wait_ms, why = self._limits(run, run.job.limit)
            if why:
                refused.append((run, max(wait_ms, 1), why))
            else:
                admitted.append(run)
        return admitted, refused

    def is_to_blame(self, run: Run) -> bool:
        """Whether a dependency-down is this operation's own, because others got through meanwhile."""
        from onefold.decide import breaker

        standing = self._current(breaker_name(run.job.name))
        return standing is not None and breaker.is_to_blame(standing, _operation(run))

    def told(self, run: Run, decision: Decision, tell: Tell) -> None:
        """A run was settled: give its slot back, and let the breaker know what the dependency answered."""
        if run.job.limit is not None:
            self._vacate(run)
        name = breaker_name(run.job.name)
        standing, _ = self._seen.get(name, _UNSEEN)
        answer = _answer(decision)
        if standing is None and answer in ("answered", "none"):
            return  # the ordinary case: nothing to write, nothing to tell
        from onefold.decide import breaker

        heeded = ("down", "failing") if self._policy.in_a_row is not None else ("down",)
        if answer not in heeded and standing is None:
            return  # it would change nothing, and reading the breaker may cost a call for each message
        note = decision.notes[-1] if decision.notes else None
        summary = str(note.detail.get("summary", "")) if note is not None else ""
        now_ms = self._clock.now_ms()
        asked_ms = decision.settle.delay_ms if answer == "down" and isinstance(decision.settle, RetryIn) else None

        def decide(value: Breaker) -> tuple[Breaker, str | None]:
            found = breaker.told(
                value, self._policy, _operation(run), answer, now_ms, retry_in_ms=asked_ms, summary=summary
            )
            return found.breaker, found.event

        changed, event = self._change(name, breaker.Breaker, breaker.CLOSED, decide)
        self._remember(name, changed)
        if event is not None:
            tell(event, run, {"summary": changed.summary, "until_ms": changed.until_ms, "pauses": changed.pauses})

    def forget(self, runs: Sequence[Run]) -> None:
        """Runs were admitted and could not be claimed: give their slots back, or at least renew them no more."""
        for run in runs:
            with suppress(errors.TransientError):  # then it ends with the lease
                self._vacate(run)

    def renew(self) -> None:
        """Extend every slot this process holds by another lease; called with the heartbeat."""
        until_ms = self._clock.now_ms() + self._lease_ms
        held: dict[str, list[str]] = defaultdict(list)
        for name, holder in list(self._slots):
            held[name].append(holder)
        for name, holders in held.items():

            def extend(
                slots: dict[str, int], name: str = name, holders: Sequence[str] = holders
            ) -> tuple[dict[str, int], None]:
                # Looked up at every try: a slot that was given back meanwhile must not be taken again.
                return slots | {one: until_ms for one in holders if (name, one) in self._slots}, None

            self._change(name, dict[str, int], _no_slots(), extend)

    # -- one gate each -----------------------------------------------------------------------------------------------

    def _breaker(self, run: Run) -> tuple[int, str]:
        """Of a job whose breaker was seen open: how long this delivery has to wait, and why; 0 and nothing: it may go."""
        from onefold.decide import breaker

        name = breaker_name(run.job.name)
        now_ms = self._clock.now_ms()

        def decide(value: Breaker) -> tuple[Breaker, breaker.Admission]:
            found = breaker.admit(value, self._policy, _operation(run), now_ms)
            return found.breaker, found

        changed, found = self._change(name, breaker.Breaker, breaker.CLOSED, decide)
        self._remember(name, changed)
        if found is None:
            return _BEATEN_MS, "the circuit breaker is being changed by others"
        return (0, "") if found.admitted else (found.wait_ms, f"the job is paused: {changed.summary}"[:200])

    def _limits(self, run: Run, limit: Limit) -> tuple[int, str]:
        part = limit.key.of(run.payload) if limit.key is not None else ""
        if limit.concurrency is not None:
            wait_ms = self._occupy(run, limit.concurrency, part)
            if wait_ms:
                return wait_ms, f"{limit.concurrency} runs are under way, which is the limit"
        if limit.rate is not None:
            wait_ms = self._take(run, limit.rate, part)
            if wait_ms:
                self._vacate(run)
                return wait_ms, f"the rate of {limit.rate.count} per {limit.rate.per_ms} ms is used up"
        return 0, ""

    def _take(self, run: Run, allowed: rate.Rate, part: str) -> int:
        from onefold.decide import rate  # here and below: only a job with a limit pays for it

        now_ms = self._clock.now_ms()

        def decide(value: rate.Bucket | None) -> tuple[rate.Bucket | None, rate.Taken]:
            found = rate.take(value, allowed, 1, now_ms)
            return found.bucket, found

        _, found = self._change(f"rate/{run.job.name}/{part}", rate.Bucket, None, decide)
        return _BEATEN_MS if found is None else int(found.wait_ms)

    def _occupy(self, run: Run, count_max: int, part: str) -> int:
        from onefold.decide import rate

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

    def _vacate(self, run: Run) -> None:
        if run.job.limit is None or run.job.limit.concurrency is None:
            return
        part = run.job.limit.key.of(run.payload) if run.job.limit.key is not None and run.facts.key is not None else ""
        name, holder = f"slots/{run.job.name}/{part}", f"{self._owner}/{run.delivery.receipt}"
        if (name, holder) not in self._slots:
            return
        self._slots.discard((name, holder))
        from onefold.decide import rate

        now_ms = self._clock.now_ms()
        self._change(name, dict[str, int], _no_slots(), lambda slots: (rate.vacate(slots, holder, now_ms), None))

    # -- values ------------------------------------------------------------------------------------------------------

    def _current(self, name: str) -> Breaker | None:
        """The breaker as it was read a moment ago; None: closed."""
        standing, until_ms = self._seen.get(name, _UNSEEN)
        if self._clock.monotonic_ms() < until_ms:
            return standing
        found = self._state.get([name])[0]
        if found is None:
            return self._remember(name, None)
        from onefold.decide import breaker

        return self._remember(name, msgspec.json.decode(found.value, type=breaker.Breaker))

    def _remember(self, name: str, value: Breaker | None) -> Breaker | None:
        if value is not None:
            from onefold.decide import breaker

            value = None if value == breaker.CLOSED else value
        self._seen[name] = (value, self._clock.monotonic_ms() + self._cache_ms)
        return value

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


@lru_cache(maxsize=1024)
def breaker_name(job: str) -> str:
    """The name in State of a job's circuit breaker."""
    return f"breaker/{job}"


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
