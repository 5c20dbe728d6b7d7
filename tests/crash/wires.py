"""Wires around every operation of a backend: a process on them dies at a chosen call, before or after it took effect.

A `Wire` counts the calls of all operations of all contracts, and the two sides of each effect in a handler; the trace
of a run without a death says which points there are. Does not contain: what must be true afterwards.
Invariant: a wire without a breaking point changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from onefold.runner.settlement import Backend

Side = Literal["before", "after"]


class Death(KeyboardInterrupt):
    """The process ends here. Unlike a handler's exceptions, this is not caught."""


class Wire:
    """Counts calls and breaks at one of them.

    Args:
        at: number of the call, from 0; with None it never breaks.
        side: before the call took effect, or after it, so that its answer is lost.

    Attributes:
        trace: the calls so far.
    """

    def __init__(self, at: int | None = None, side: Side = "before") -> None:
        self._at = at
        self._side = side
        self.trace: list[str] = []
        self._open: list[Any] = []

    def call(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Make the call, unless the process dies here.

        Raises:
            Death: the process dies here.
        """
        dies = len(self.trace) == self._at
        self.trace.append(name)
        if dies and self._side == "before":
            raise Death(name)
        answer = function(*args)
        if name == "commit.effects":
            self._open.append(answer)
            answer = Wired(answer, "effects", self)
        if dies:
            raise Death(name)
        return answer

    def clean_up(self) -> None:
        """Do what the operating system does for a dead process: roll back its open transactions."""
        for effects in self._open:
            effects.rollback()

    def backend(self, real: Backend, *, one_transaction: bool) -> Backend:
        """A backend on this wire; without `one_transaction`, its settlements are done part by part."""
        return Backend(
            store=Wired(real.store, "store", self),
            ledger=Wired(real.ledger, "ledger", self),
            state=Wired(real.state, "state", self),
            commit=(commit := Wired(real.commit, "commit", self) if one_transaction else None),
            open_queue=lambda name: Wired(real.open_queue(name), "queue", self),  # type: ignore[return-value, arg-type]
            effects=commit.effects if commit is not None else None,
        )


class Wired:
    """A contract of which every operation goes through a wire."""

    def __init__(self, real: Any, name: str, wire: Wire) -> None:
        self._real = real
        self._name = name
        self._wire = wire

    def __getattr__(self, verb: str) -> Any:
        attribute = getattr(self._real, verb)
        if not callable(attribute):
            return attribute
        return lambda *args: self._wire.call(f"{self._name}.{verb}", attribute, *args)
