"""Idempotency records on Redis: the Store contract, as steps of `contracts/transitions.py` taken by `changing.py`.

Each verb makes one step per record and is done, as a rule, with one call of one script for the whole list. Two asks of
one key in one list are taken one after the other.

Never here: rules, Lua, connections. Invariant: every write names owner and fence, and says whether it took.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onefold.backends.redis.changing import Changing, Step
from onefold.backends.redis.rows import ABSENT
from onefold.contracts import transitions
from onefold.contracts.store import Answer, Ask, Hold, Outcome, Record, RecordKey, StoreCapabilities

if TYPE_CHECKING:
    from onefold.contracts.verbs import Ledger, RowsOf, State


class RedisStore:
    """The Store contract on one server.

    Args:
        changing: its records.

    Attributes:
        capabilities: `durable` is False until `RedisBooks.check` has seen that the server syncs every write.
    """

    ledger: Ledger | None = None  # of the same place: where `once` notes what became of calls
    state: State | None = None  # of the same place: whose the names of operations are

    def __init__(self, changing: Changing) -> None:
        self._changing = changing
        self.capabilities = StoreCapabilities(durable=False, proves_death=False)

    def claim(self, asks: Sequence[Ask], now_ms: int, rows_of: RowsOf | None = None) -> list[Answer]:  # noqa: ARG002 - has no history in its transaction
        """As the contract says: one call where the operations are new or done, two where some are taken over.

        Raises:
            TransientError: the server cannot be reached or takes no writes now. StorageError: it never will as it is.
                Both of every verb here; a verb that was not answered may have taken effect and may be asked again.
        """

        def step(ask: Ask) -> Step[Answer]:
            return lambda record: transitions.claim(record, ask, now_ms)

        return self._changing.apply([(ask.key, step(ask)) for ask in asks], now_ms, ABSENT)

    def start(self, holds: Sequence[Hold], now_ms: int) -> list[bool]:
        """As the contract says, in one call."""

        def step(hold: Hold) -> Step[bool]:
            return lambda record: _took(record, transitions.start(record, hold, now_ms))

        return self._changing.apply([(hold.key, step(hold)) for hold in holds], now_ms, None)

    def renew(self, holds: Sequence[Hold], lease_until_ms: int) -> list[bool]:
        """As the contract says, in one call."""

        def step(hold: Hold) -> Step[bool]:
            return lambda record: _took(record, transitions.renew(record, hold, lease_until_ms))

        return self._changing.apply([(hold.key, step(hold)) for hold in holds], None, None)

    def write(self, writes: Sequence[tuple[Hold, Outcome]], now_ms: int) -> list[bool]:
        """As the contract says, in one call."""

        def step(hold: Hold, outcome: Outcome) -> Step[bool]:
            return lambda record: _took(record, transitions.write(record, hold, outcome, now_ms))

        steps = [(hold.key, step(hold, outcome)) for hold, outcome in writes]
        return self._changing.apply(steps, now_ms, None)

    def clear_outbox(self, holds: Sequence[Hold]) -> list[bool]:
        """As the contract says, in one call."""

        def step(hold: Hold) -> Step[bool]:
            return lambda record: _took(record, transitions.clear_outbox(record, hold))

        return self._changing.apply([(hold.key, step(hold)) for hold in holds], None, None)

    def read(self, keys: Sequence[RecordKey], now_ms: int) -> list[Record | None]:
        """As the contract says, in one call."""
        records = [standing.record for standing in self._changing.standing(keys)]
        return [None if record is None or transitions.is_expired(record, now_ms) else record for record in records]


def _took(before: Record | None, after: Record | None) -> tuple[bool, Record | None]:
    """A verb's answer, and the record it leaves behind where that is another one."""
    return after is not None, None if after is before else after
