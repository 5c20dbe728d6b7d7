"""Faults built in on purpose: stores that break one rule each, so that the walk can show that it would notice.

Each is a wrapper around a real store that does one thing wrong. Does not contain: anything that runs outside these
tests.
Invariant: whatever a plant does not define, the real store does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from onefold.contracts.commit import Settlement
from onefold.contracts.store import Answer, Ask, Claimed, Complete, Hold, Outcome, Record, RecordKey
from onefold.contracts.verbs import RowsOf, Store

NEVER_MS = 1 << 60


class Plant:
    """A store without a fault; settlements that go another way pass through `settlement`."""

    def __init__(self, store: Store) -> None:
        self._store: Any = store
        self.capabilities = replace(store.capabilities, notes_claims=False)  # its answers are not those of the store

    def claim(self, asks: Sequence[Ask], now_ms: int, rows_of: RowsOf | None = None) -> list[Answer]:
        answers: list[Answer] = self._store.claim(asks, now_ms)
        return answers

    def start(self, holds: Sequence[Hold], now_ms: int) -> list[bool]:
        answers: list[bool] = self._store.start(holds, now_ms)
        return answers

    def renew(self, holds: Sequence[Hold], lease_until_ms: int) -> list[bool]:
        answers: list[bool] = self._store.renew(holds, lease_until_ms)
        return answers

    def write(self, writes: Sequence[tuple[Hold, Outcome]], now_ms: int) -> list[bool]:
        answers: list[bool] = self._store.write(writes, now_ms)
        return answers

    def restore(self, records: Sequence[Record]) -> list[bool]:
        answers: list[bool] = self._store.restore(records)
        return answers

    def clear_outbox(self, holds: Sequence[Hold]) -> list[bool]:
        answers: list[bool] = self._store.clear_outbox(holds)
        return answers

    def read(self, keys: Sequence[RecordKey], now_ms: int) -> list[Record | None]:
        found: list[Record | None] = self._store.read(keys, now_ms)
        return found

    def settlement(self, settlement: Settlement) -> Settlement:
        return settlement


class NoFence(Plant):
    """Writes for everybody: the owner and fence in the record replace those of the caller."""

    def _standing(self, hold: Hold) -> Hold:
        record = self.read([hold.key], 0)[0]
        return hold if record is None else Hold(hold.key, record.owner, record.fence)

    def start(self, holds: Sequence[Hold], now_ms: int) -> list[bool]:
        return super().start([self._standing(hold) for hold in holds], now_ms)

    def renew(self, holds: Sequence[Hold], lease_until_ms: int) -> list[bool]:
        return super().renew([self._standing(hold) for hold in holds], lease_until_ms)

    def write(self, writes: Sequence[tuple[Hold, Outcome]], now_ms: int) -> list[bool]:
        return super().write([(self._standing(hold), outcome) for hold, outcome in writes], now_ms)

    def settlement(self, settlement: Settlement) -> Settlement:
        if settlement.write is None:
            return settlement
        hold, outcome = settlement.write
        return replace(settlement, write=(self._standing(hold), outcome))


class FenceRestarts(Plant):
    """Deletes the row of a run that failed or was released, and with it the fence."""

    def write(self, writes: Sequence[tuple[Hold, Outcome]], now_ms: int) -> list[bool]:
        answers = super().write(writes, now_ms)
        if any(answers) and not any(isinstance(outcome, Complete) for _, outcome in writes):
            self._store._engine.write(lambda connection: connection.execute("DELETE FROM onefold_record"))
        return answers


class LeaseIgnored(Plant):
    """Grants the next claim although the lease still runs."""

    def claim(self, asks: Sequence[Ask], now_ms: int, rows_of: RowsOf | None = None) -> list[Answer]:
        def end_leases(connection: Any) -> None:
            connection.execute("UPDATE onefold_record SET lease_until_ms = ?", (now_ms,))

        self._store._engine.write(end_leases)
        return super().claim(asks, now_ms)


class DoubtForgotten(Plant):
    """Takes over a run that had started as if it were new work."""

    def claim(self, asks: Sequence[Ask], now_ms: int, rows_of: RowsOf | None = None) -> list[Answer]:
        return [self._fresh(answer, now_ms) for answer in super().claim(asks, now_ms)]

    def _fresh(self, answer: Answer, now_ms: int) -> Answer:
        if not isinstance(answer, Claimed) or not answer.doubt:
            return answer
        self.start([answer.hold], now_ms)
        return replace(answer, doubt=False, crashed=False, started=True, attempts=answer.attempts + 1)


class DuplicateForgotten(Plant):
    """Forgets a completed record when its key is claimed again."""

    def claim(self, asks: Sequence[Ask], now_ms: int, rows_of: RowsOf | None = None) -> list[Answer]:
        self._store._engine.write(
            lambda connection: connection.execute("UPDATE onefold_record SET expires_at_ms = 0 WHERE status = 1")
        )
        return super().claim(asks, now_ms)


class WriteLost(Plant):
    """Reports a write that it did not make."""

    def write(self, writes: Sequence[tuple[Hold, Outcome]], now_ms: int) -> list[bool]:
        return [True] * len(writes)


class LeaseForEver(Plant):
    """Gives leases that never end, so that the work of a dead worker is never done."""

    def claim(self, asks: Sequence[Ask], now_ms: int, rows_of: RowsOf | None = None) -> list[Answer]:
        return super().claim([replace(ask, lease_until_ms=NEVER_MS) for ask in asks], now_ms)
