"""Circuit breakers, rate limits and concurrency limits, which can delay a delivery before it is claimed.

All of them are values in `State`, so all processes on the engine share them: to change one, it is read, a pure function
of `record/` decides, and the result is written by compare-and-set; the loser of a race tries again. A delivery that is
delayed is hidden for as long as the limit says and uses up neither an attempt nor (where the queue supports that) a
receive. A job without a limit whose breaker is closed costs one read of that breaker every CACHE_MS.
Never here: the arithmetic (`record/rate.py`, `record/breaker.py`), waiting. Invariant: a slot is renewed only while this
process has it, and is released at most once: when its run is settled or could not be claimed; otherwise it ends with its
lease, or when its process is found dead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from onefold import errors
from onefold.clock import until_ms
from onefold.contracts.documents import change, reader
from onefold.contracts.queue import RetryIn
from onefold.contracts.state import Change, bounded_name
from onefold.contracts.store import Complete, Fail, Release, Unknown
from onefold.interrupts import ignored
from onefold.record import breaker, rate
from onefold.record.breaker import Answer, Breaker, BreakerPolicy
from onefold.record.delivery import Decision, Detail
from onefold.runner.execution import BEHIND_SLOT_MAX, Execution

if TYPE_CHECKING:
    from onefold.contracts.verbs import State
    from onefold.outside import Clock
    from onefold.runner.handlers import Job

Report = Callable[[str, Execution, Detail], None]

SLOTS: Final = "slots/"
BUCKETS: Final = "rate/"
CACHE_MS = 250  # how long a breaker that was closed at its last read is taken to be closed
_UNSEEN = (None, 0)
_SWEPT_MAX = 10_000  # values of a job in one pass; the next pass continues after them
_SWEPT_PAGE = 100
_HOLDER_CHARS = 24
_MARK_CHARS = 10  # of these, the first ones are the owner's
_BUSY_MS = (50, 1_000)  # shortest and longest delay of a delivery that finds no slot
_BEATEN_MS = 50  # when the delivery comes back if other processes changed the value at every try

# A document that cannot be read counts as absent: a limit is not enforced for a moment, but the worker and its other jobs
# keep running.
breaker_of = reader(Breaker, breaker.CLOSED)
_slots_of = reader(dict[str, int], None)
_bucket_of = reader(rate.Bucket, None)


class Admission:
    """Limits and breakers of an app's jobs, shared by every process on the engine.

    Args:
        state: where the values are.
        owner: id of this process; names its slots. lease_ms: how long a slot holds until it is renewed.
        cache_ms: how long a breaker that was closed at its last read is taken to be closed.
    """

    def __init__(
        self,
        state: State,
        *,
        clock: Clock,
        owner: str,
        lease_ms: int,
        cache_ms: int = CACHE_MS,
    ) -> None:
        self._state = state
        self._clock = clock
        self._owner = owner
        self._lease_ms = lease_ms
        self._cache_ms = cache_ms
        self._policy = BreakerPolicy()
        self._seen: dict[str, tuple[Breaker | None, int]] = {}  # None: closed, as nearly all are
        self._took_ms: dict[str, int] = {}  # how long recent runs of a job with slots took, a moving average
        self._slots: dict[str, str] = {}  # holder -> State name, for each run of this process with a slot

    def admit(self, runs: Sequence[Execution]) -> tuple[list[Execution], list[tuple[Execution, int, str]]]:
        """The runs that are admitted; and the others, with how long to wait (ms) and why."""
        admitted: list[Execution] = []
        refused: list[tuple[Execution, int, str]] = []
        closed: set[str] = set()  # the breaker is read once for all runs of a job
        for run in runs:
            job = run.job.name
            seen = None if job in closed else self._current(breaker_name(job))
            if seen is None or not seen.is_open:
                closed.add(job)
            wait_ms, why = (0, "") if job in closed else self._paused(run)
            if not why and run.job.limit is not None:
                wait_ms, why = self._take(run, run.job.limit)
            if why:
                refused.append((run, max(wait_ms, 1), why))
            else:
                admitted.append(run)
        return admitted, refused

    def forget(self, runs: Sequence[Execution]) -> None:
        """Release the slots of runs that were admitted but could not be claimed, or at least stop renewing them."""
        for run in runs:
            with ignored(errors.TransientError):  # if this fails, the slot ends with its lease
                self._release(run)

    def is_to_blame(self, run: Execution) -> bool:
        """Whether the dependency is down for this operation alone (others got through): then it is a plain failure."""
        seen = self._current(breaker_name(run.job.name))
        return seen is not None and breaker.is_to_blame(seen, _operation(run))

    def settled(self, run: Execution, decision: Decision, report: Report) -> None:
        """Release the slot of a run that was settled, and update the breaker with how the dependency responded."""
        self._release(run)
        if isinstance(decision.write, Complete) and run.job.limit is not None and run.job.limit.concurrency is not None:
            took_ms = run.took_ms
            self._took_ms[run.job.name] = (3 * self._took_ms.get(run.job.name, took_ms) + took_ms) // 4
        name = breaker_name(run.job.name)
        seen, _ = self._seen.get(name, _UNSEEN)
        if seen is None and (decision.write is None or isinstance(decision.write, Complete)):
            return  # the normal case: nothing to write, nothing to report
        answer = _answer(decision)
        heeded = ("down", "failing") if self._policy.in_a_row is not None else ("down",)
        if answer not in heeded and seen is None:
            return  # it would change nothing, and reading the breaker could cost a call for each message
        note = decision.notes[-1] if decision.notes else None
        summary = str(note.detail.get("summary", "")) if note is not None else ""
        now_ms = self._clock.now_ms()
        asked_ms = decision.settle.delay_ms if answer == "down" and isinstance(decision.settle, RetryIn) else None

        def decide(value: Breaker) -> tuple[Breaker, str | None]:
            found = breaker.after_run(
                value, self._policy, _operation(run), answer, now_ms, retry_in_ms=asked_ms, summary=summary
            )
            return found.breaker, found.event

        changed, event = change(self._state, name, breaker_of, breaker.CLOSED, decide)
        if event is not None:
            report(event, run, {"summary": changed.summary, "until_ms": changed.until_ms, "pauses": changed.pauses})
        self._remember(name, changed)

    def renew(self) -> None:
        """Extend every slot this process holds by another lease; called with the heartbeat."""
        until = until_ms(self._clock, self._clock.now_ms(), self._lease_ms)
        held: dict[str, list[str]] = defaultdict(list)
        for holder, name in list(self._slots.items()):
            held[name].append(holder)
        for name, holders in held.items():

            def extend(
                slots: dict[str, int] | None, name: str = name, holders: Sequence[str] = holders
            ) -> tuple[dict[str, int] | None, None]:
                # The slots are looked up at every try, because a slot that was released meanwhile must not be taken
                # again.
                return (slots or {}) | {one: until for one in holders if self._slots.get(one) == name} or None, None

            change(self._state, name, _slots_of, None, extend)

    def sweep(self, jobs: Iterable[Job[Any, Any]]) -> None:
        """Remove what limits with a key have left in State: buckets that are full again, slots that no run holds."""
        now_ms = self._clock.now_ms()
        for job in jobs:
            if job.limit is None or job.limit.key is None:
                continue
            allowed = job.limit.rate
            for prefix in (f"{BUCKETS}{job.name}/", f"{SLOTS}{job.name}/"):
                names = self._state.names(prefix)[:_SWEPT_MAX]
                for first in range(0, len(names), _SWEPT_PAGE):
                    page = names[first : first + _SWEPT_PAGE]
                    idle = []
                    for name, found in zip(page, self._state.get(page), strict=True):
                        if found is None:
                            continue
                        if name.startswith(SLOTS):
                            is_idle = all(until <= now_ms for until in (_slots_of(found.value) or {}).values())
                        else:
                            bucket = _bucket_of(found.value)
                            is_idle = bucket is None or allowed is None or rate.is_full(bucket, allowed, now_ms)
                        if is_idle:
                            idle.append(Change(name, None, found.version))
                    self._state.put(idle)

    def free(self, owner: str, jobs: Iterable[Job[Any, Any]]) -> None:
        """Free the slots of a process that has died."""
        mark = _mark(owner)

        def vacate(slots: dict[str, int] | None) -> tuple[dict[str, int] | None, None]:
            return {one: until for one, until in (slots or {}).items() if not one.startswith(mark)} or None, None

        for job in jobs:
            if job.limit is not None and job.limit.concurrency is not None:
                for name in self._state.names(f"{SLOTS}{job.name}/")[:_SWEPT_MAX]:
                    change(self._state, name, _slots_of, None, vacate)

    # -- breakers ----------------------------------------------------------------------------------------------------

    def _paused(self, run: Execution) -> tuple[int, str]:
        """For a job whose breaker was open: how long this delivery must wait, and why; 0 and "": it need not wait."""
        name = breaker_name(run.job.name)
        now_ms = self._clock.now_ms()

        def decide(value: Breaker) -> tuple[Breaker, breaker.BreakerRuling]:
            found = breaker.admit(value, self._policy, _operation(run), now_ms)
            return found.breaker, found

        changed, found = change(self._state, name, breaker_of, breaker.CLOSED, decide)
        self._remember(name, changed)
        if found is None:
            return _BEATEN_MS, "the circuit breaker is being changed by others"
        return (0, "") if found.admitted else (found.wait_ms, f"the job is paused: {changed.summary}"[:200])

    def _current(self, name: str) -> Breaker | None:
        """The breaker as it was last read, at most `cache_ms` ago; None: closed."""
        seen, believed_until_ms = self._seen.get(name, _UNSEEN)
        if self._clock.monotonic_ms() < believed_until_ms:
            return seen
        found = self._state.get([name])[0]
        return self._remember(name, None if found is None else breaker_of(found.value))

    def _remember(self, name: str, value: Breaker | None) -> Breaker | None:
        if value == breaker.CLOSED:  # it delays nothing and has no state worth keeping
            value = None
        self._seen[name] = (value, self._clock.monotonic_ms() + self._cache_ms)
        return value

    # -- limits ------------------------------------------------------------------------------------------------------

    def _take(self, run: Execution, limit: rate.Limit) -> tuple[int, str]:
        """Take a slot and a token; returns how long this delivery must wait, and why; 0 and "": it has got both."""
        part = limit.key.of(run.payload) if limit.key is not None else ""
        if limit.concurrency is not None:
            wait_ms = self._occupy(run, limit.concurrency, part)
            if wait_ms:
                runs = "1 run is" if limit.concurrency == 1 else f"{limit.concurrency} runs are"
                return wait_ms, f"{runs} under way, which is the limit"
        if limit.rate is not None:
            wait_ms = self._draw(run, limit.rate, part)
            if wait_ms:
                self._release(run)
                return wait_ms, f"the rate of {limit.rate} is used up"
        return 0, ""

    def _release(self, run: Execution) -> None:
        """Release the slot of a run, if it has one. Its payload is not asked: the handler may have changed it."""
        if run.job.limit is None or run.job.limit.concurrency is None:
            return
        holder = self._holder(run)
        name = self._slots.pop(holder, None)
        if name is None:
            return
        now_ms = self._clock.now_ms()

        def vacate(slots: dict[str, int] | None) -> tuple[dict[str, int] | None, None]:
            return rate.vacate(slots or {}, holder, now_ms) or None, None  # the document is removed with its last slot

        change(self._state, name, _slots_of, None, vacate)

    def _holder(self, run: Execution) -> str:
        """The id under which a run holds a slot: digests, so that the largest limit's slots fit into one document."""
        return _mark(self._owner) + _digest(f"{self._owner}/{run.delivery.receipt}", _HOLDER_CHARS - _MARK_CHARS)

    def _draw(self, run: Execution, allowed: rate.Rate, part: str) -> int:
        now_ms = self._clock.now_ms()

        def decide(value: rate.Bucket | None) -> tuple[rate.Bucket | None, rate.TakenTokens]:
            found = rate.take(value, allowed, 1, now_ms)
            return found.bucket, found

        _, found = change(self._state, bounded_name(BUCKETS, f"{run.job.name}/{part}"), _bucket_of, None, decide)
        return _BEATEN_MS if found is None else int(found.wait_ms)

    def _occupy(self, run: Execution, count_max: int, part: str) -> int:
        now_ms, holder = self._clock.now_ms(), self._holder(run)
        name = bounded_name(SLOTS, f"{run.job.name}/{part}")

        def decide(value: dict[str, int] | None) -> tuple[dict[str, int], rate.Occupied]:
            found = rate.occupy(value or {}, holder, count_max, until_ms(self._clock, now_ms, self._lease_ms), now_ms)
            return found.slots, found

        _, found = change(self._state, name, _slots_of, None, decide)
        if found is None:
            return _BEATEN_MS
        if found.granted:
            self._slots[holder] = name
            return 0
        return int(min(found.wait_ms, self._until_free_ms(run, count_max)))

    def _until_free_ms(self, run: Execution, count_max: int) -> int:
        """When a delivery tries again that has found no slot; usually long before a slot expires.

        A job with one slot has other deliveries that wait for it in the process that has it.
        """
        shortest_ms, longest_ms = _BUSY_MS
        took_ms = self._took_ms.get(run.job.name)
        if took_ms is None:
            return longest_ms
        return min(max(took_ms * (1 if count_max > 1 else 1 + BEHIND_SLOT_MAX), shortest_ms), longest_ms)


def _mark(owner: str) -> str:
    """How the ids of an owner's slots begin."""
    return _digest(owner, _MARK_CHARS)


def _digest(text: str, chars: int) -> str:
    return blake2b(text.encode(), digest_size=chars // 2).hexdigest()


def _operation(run: Execution) -> str:
    key = run.facts.key
    return f"{key.scope}/{key.key}" if key is not None else run.delivery.message_id


def _answer(decision: Decision) -> Answer:
    """What the outcome of a run shows about the dependency."""
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


def breaker_name(job: str) -> str:
    """The name in State of a job's circuit breaker."""
    return f"breaker/{job}"
