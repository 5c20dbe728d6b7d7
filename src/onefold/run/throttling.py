"""The gates of a worker on shared state, as most deliveries pass them: their job's breaker is closed and nothing limits it.

A job without a limit costs one read of its breaker every CACHE_MS. What an open breaker, a rate or a limit of concurrency
does is in `limiting.py`, loaded with the first delivery that one of them concerns.
Never here: the arithmetic, waiting, changes of State.
Invariant: what a gate took for a run that then did not start is given back when that run is settled or forgotten.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from onefold import errors
from onefold.contracts.store import Complete

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onefold.contracts.verbs import State
    from onefold.decide.breaker import Breaker
    from onefold.decide.delivery import Decision
    from onefold.outside import Clock
    from onefold.run.gates import Tell
    from onefold.run.handlers import Job
    from onefold.run.limiting import Limiting
    from onefold.run.passage import Run

CACHE_MS = 250  # how long a breaker that was seen closed is believed closed
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
    def _limiting(self) -> Limiting:
        from onefold.run.limiting import Limiting  # a healthy job without a limit needs none of it

        return Limiting(self._state, self._slots, clock=self._clock, owner=self._owner, lease_ms=self._lease_ms)

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
            wait_ms, why = (0, "") if job in closed else self._paused(run)
            if not why and run.job.limit is not None:
                wait_ms, why = self._limiting.take(run, run.job.limit)
            if why:
                refused.append((run, max(wait_ms, 1), why))
            else:
                admitted.append(run)
        return admitted, refused

    def is_to_blame(self, run: Run) -> bool:
        """Whether a dependency-down is this operation's own, because others got through meanwhile."""
        standing = self._current(breaker_name(run.job.name))
        return standing is not None and self._limiting.is_to_blame(standing, run)

    def told(self, run: Run, decision: Decision, tell: Tell) -> None:
        """A run was settled: give its slot back, and let the breaker know what the dependency answered."""
        if run.job.limit is not None:
            self._limiting.give_back(run)
        name = breaker_name(run.job.name)
        standing, _ = self._seen.get(name, _UNSEEN)
        if standing is None and (decision.write is None or isinstance(decision.write, Complete)):
            return  # the ordinary case: nothing to write, nothing to tell
        changed = self._limiting.told(name, standing, run, decision, tell)
        if changed is not None:
            self._remember(name, changed)

    def forget(self, runs: Sequence[Run]) -> None:
        """Runs were admitted and could not be claimed: give their slots back, or at least renew them no more."""
        for run in runs:
            if run.job.limit is not None:
                with suppress(errors.TransientError):  # then it ends with the lease
                    self._limiting.give_back(run)

    def renew(self) -> None:
        """Extend every slot this process holds by another lease; called with the heartbeat."""
        if self._slots:
            self._limiting.renew()

    # -- breakers ----------------------------------------------------------------------------------------------------

    def _paused(self, run: Run) -> tuple[int, str]:
        """Of a job whose breaker was seen open: how long this delivery has to wait, and why; 0 and nothing: it may go."""
        name = breaker_name(run.job.name)
        changed, wait_ms, why = self._limiting.ask(name, run)
        self._remember(name, changed)
        return wait_ms, why

    def _current(self, name: str) -> Breaker | None:
        """The breaker as it was read a moment ago; None: closed."""
        standing, until_ms = self._seen.get(name, _UNSEEN)
        if self._clock.monotonic_ms() < until_ms:
            return standing
        found = self._state.get([name])[0]
        return self._remember(name, None if found is None else self._limiting.read(found))

    def _remember(self, name: str, value: Breaker | None) -> Breaker | None:
        if value is not None and self._limiting.is_closed(value):
            value = None
        self._seen[name] = (value, self._clock.monotonic_ms() + self._cache_ms)
        return value


def breaker_name(job: str) -> str:
    """The name in State of a job's circuit breaker."""
    return f"breaker/{job}"
