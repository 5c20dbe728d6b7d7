"""What the scheduler and its undelivered ticks share: the list of what is due when, and transactions with their events.

A transaction is one call of the engine for changes that belong together. Its ledger rows are written inside it; sinks get
the events once it has been committed.
Never here: what is written, when a tick is due, clocks. Invariants: no events are emitted for a transaction that was not
committed. A name has at most one instant in the agenda; an older one that is still in the heap is ignored.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from onefold import errors
from onefold.contracts.state import Change
from onefold.runtime.events import Event, Sinks, kept
from onefold.runtime.outgoing import transaction
from onefold.runtime.runtime import Runtime


class Due(NamedTuple):
    """When a value in State is due.

    Args:
        at_ms: the instant. state_name: the value's name in State.
    """

    at_ms: int
    state_name: str


class Agenda:
    """Names in State by the instant at which they are due. For one thread."""

    def __init__(self) -> None:
        self._heap: list[Due] = []
        self._instants: dict[str, int] = {}

    def note(self, state_name: str, at_ms: int | None) -> None:
        """Note that a name is due at that instant, instead of the one noted before; with None it is never due."""
        if at_ms is None:
            self._instants.pop(state_name, None)
        elif self._instants.get(state_name) != at_ms:
            self._instants[state_name] = at_ms
            heapq.heappush(self._heap, Due(at_ms, state_name))

    def take(self, now_ms: int, count_max: int) -> list[str]:
        """Remove and return what is due, the earliest first; at most `count_max`."""
        due: list[str] = []
        while self._heap and self._heap[0].at_ms <= now_ms and len(due) < count_max:
            at_ms, state_name = heapq.heappop(self._heap)
            if self._instants.get(state_name) == at_ms:
                del self._instants[state_name]
                due.append(state_name)
        return due

    def put_back(self, state_names: list[str], at_ms: int) -> None:
        """Put back names that were taken, unless they have been noted again since."""
        for state_name in state_names:
            if state_name not in self._instants:
                self.note(state_name, at_ms)

    def first_ms(self) -> int | None:
        """An instant that is not later than the next one at which a name is due; None if the agenda is empty."""
        return self._heap[0].at_ms if self._heap else None

    def has(self, state_name: str) -> bool:
        """Whether a name is in the agenda."""
        return state_name in self._instants

    def next(self, count: int, prefix: str = "") -> list[Due]:
        """What is due next, in order, at most `count`; only names that begin with `prefix`."""
        state_names = (
            Due(at_ms, state_name) for state_name, at_ms in self._instants.items() if state_name.startswith(prefix)
        )
        return heapq.nsmallest(count, state_names)


PREFIX: Final = "schedule/"  # of the names of schedules' states in State
Detail = Mapping[str, str | int | None]


class OtherSchedulerError(Exception):
    """Another scheduler has dealt with it in the meantime."""


class Written:
    """What a transaction did, to be acted on once it is committed.

    Attributes:
        events: what happened. sent: how many ticks were sent.
        superseded: schedules whose times another scheduler has replaced. paused: schedules that a person has paused.
        due: when names in State are due; None: never.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.due: list[tuple[str, int | None]] = []
        self.superseded: list[str] = []
        self.paused: list[str] = []
        self.sent = 0


class Writer:
    """Makes a scheduler's transactions.

    Args:
        runtime: the runtime of the app. sinks: receive the events.
    """

    def __init__(self, runtime: Runtime, sinks: Sinks) -> None:
        self.runtime = runtime
        self.engine, self.clock, self.entropy = runtime.engine, runtime.clock, runtime.entropy
        self._owner = runtime.owner
        self._sinks = sinks

    def together(self, write: Callable[[], Written]) -> Written | Exception:
        """Make changes, in one transaction if the engine has them; returns what was done, or the error if it failed.

        Raises:
            TransientError: an embedded engine cannot be written now; nothing was done.
        """
        own: list[Exception] = []

        def call() -> Written:
            try:
                wrote = write()
                self._append(wrote.events)
            except Exception as error:
                own.append(error)
                raise
            return wrote

        try:
            wrote = transaction(self.engine, call)
        except Exception as error:
            if error not in own or (isinstance(error, errors.TransientError) and self.engine.commit is not None):
                raise
            return error
        self._emit(wrote.events)
        return wrote

    def put(self, changes: Sequence[Change]) -> bool:
        """Change State; returns whether every value still had the expected version."""
        return all(self.engine.state.put(changes)) if changes else True

    def event(self, name: str, schedule: str, detail: Detail = {}, *, run: str | None = None) -> Event:  # noqa: B006 - read only
        """An event about a schedule, to be reported with a transaction."""
        at_ms = self.clock.now_ms()
        return Event(at_ms=at_ms, name=name, run=run, actor=self._owner, detail={"schedule": schedule, **detail})

    def report(self, *events: Event) -> None:
        """Report what happened outside a transaction."""
        with suppress(errors.TransientError):  # the events may be about an engine that has failed
            self._append(events)
        self._emit(events)

    def report_own(self, name: str, detail: Detail = {}) -> None:  # noqa: B006 - read only
        """Report something that happened to the scheduler itself."""
        self.report(Event(at_ms=self.clock.now_ms(), name=name, actor=self._owner, detail=detail))

    def _append(self, events: Iterable[Event]) -> None:
        rows = [event.row() for event in events if kept(event.name, self.runtime.history, run=event.run)]
        if rows:
            self.engine.ledger.append(rows)

    def _emit(self, events: Iterable[Event]) -> None:
        for event in events:
            self._sinks.emit(event)
