"""The records of an embedded engine alone, beside somebody else's queues: workers of one machine on SQS.

Never here: queues; those of the file stay unused. Invariant: closing the books closes the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onefold.contracts.admin import RecordAdmin
    from onefold.contracts.engine import Engine
    from onefold.contracts.verbs import EffectTransaction, Ledger, State, Store


class FileBooks:
    """The Books contract on an opened file.

    Args:
        engine: the opened file.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.store: Store = engine.store
        self.records: RecordAdmin = engine.records
        self.ledger: Ledger = engine.ledger
        self.state: State = engine.state

    def effects(self, limit_ms: int) -> EffectTransaction | None:  # noqa: ARG002 - the contract's
        """None: the file's transactions settle its own queues' messages."""
        return None

    def check(self) -> list[str]:
        """As the engine: what makes the file less private than it should be."""
        return self._engine.check()

    def appear(self) -> None:
        """Nothing to make: the file is open, and the lease alone decides who is dead."""

    def close(self) -> None:
        """Close the file."""
        self._engine.close()
