"""A scheduler's transactions and its word: one call of the engine for what belongs together, told once it stands.

Rows of the ledger are written inside the transaction that they are about; sinks hear of it afterwards.
Never here: what is written. Invariant: nothing is told of a transaction that was not made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from onefold import errors
from onefold.contracts.engine import Engine
from onefold.contracts.ledger import History
from onefold.contracts.state import Change
from onefold.run.events import Event, Sinks, kept
from onefold.run.outgoing import Outgoing, Receipt

if TYPE_CHECKING:
    from onefold.outside import Clock, Entropy

PREFIX: Final = "schedule/"  # of the name in State of how a schedule stands
Detail = Mapping[str, str | int | None]


class Opened(Protocol):
    """An opened engine, as the app has it."""

    engine: Engine
    clock: Clock
    entropy: Entropy
    owner: str


class House(Protocol):
    """What a scheduler needs of an app."""

    name: str
    history: History

    @property
    def reconcilers(self) -> Mapping[str, Any]:
        """What looks at runs after a while, by name."""
        ...

    def runtime(self) -> Opened:
        """The opened engine."""
        ...

    def deliver(self, outgoing: Sequence[Outgoing]) -> list[Receipt]:
        """Accept messages durably, all or none."""
        ...


class OtherSchedulerError(Exception):
    """Another scheduler has dealt with it in the meantime."""


class Written:
    """What a transaction did, to be acted on once it stands.

    Attributes:
        told: events. sent: how many ticks were sent. superseded: schedules for which other times count.
        due: when places in State are to be looked at; None: not at all.
    """

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.due: list[tuple[str, int | None]] = []
        self.superseded: list[str] = []
        self.sent = 0


class Writer:
    """Makes a scheduler's transactions.

    Args:
        house: the app. sinks: hear what happened.
    """

    def __init__(self, house: House, sinks: Sinks) -> None:
        opened = house.runtime()
        self.house = house
        self.engine, self.clock, self.entropy = opened.engine, opened.clock, opened.entropy
        self._owner = opened.owner
        self._sinks = sinks

    def together(self, write: Callable[[], Written]) -> Written | Exception:
        """Make changes in one transaction, where the engine has any; what they did, or what kept them from being made.

        Raises:
            TransientError: an embedded engine cannot be written, or not now: nothing was done.
        """

        def call() -> Written:
            wrote = write()
            self._append(wrote.told)
            return wrote

        (answer,) = self.engine.together([call])
        if isinstance(answer, errors.TransientError) and self.engine.commit is not None:
            raise answer
        if isinstance(answer, Written):
            if answer.sent:
                self.engine.notify()  # what was told inside the transaction was told too early
            self._emit(answer.told)
            return answer
        assert isinstance(answer, Exception)
        return answer

    def put(self, changes: Sequence[Change]) -> bool:
        """Change State; whether every expected version still stood."""
        return all(self.engine.state.put(changes)) if changes else True

    def event(self, name: str, schedule: str, detail: Detail = {}, *, run: str | None = None) -> Event:  # noqa: B006 - read only
        """Something that happened to a schedule, to be told with a transaction."""
        at_ms = self.clock.now_ms()
        return Event(at_ms=at_ms, name=name, run=run, actor=self._owner, detail={"schedule": schedule, **detail})

    def tell(self, *told: Event) -> None:
        """Tell of what happened outside of a transaction."""
        with suppress(errors.TransientError):  # the engine may be what it is about
            self._append(told)
        self._emit(told)

    def announce(self, name: str, detail: Detail = {}) -> None:  # noqa: B006 - read only
        """Tell of something that happened to the scheduler itself."""
        self.tell(Event(at_ms=self.clock.now_ms(), name=name, actor=self._owner, detail=detail))

    def _append(self, told: Iterable[Event]) -> None:
        rows = [event.row() for event in told if kept(event.name, self.house.history, run=event.run)]
        if rows:
            self.engine.ledger.append(rows)

    def _emit(self, told: Iterable[Event]) -> None:
        for event in told:
            self._sinks.emit(event)
