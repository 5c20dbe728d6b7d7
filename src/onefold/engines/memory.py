"""Idempotency records in a dict of this process: for tests, and for the guard where records need not outlive the process.

Implements the Store contract and nothing else, by the rules in `contracts/transitions.py`. Never here: durability,
operators' verbs, other processes. Invariant: records change under one lock.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from onefold import forks
from onefold.contracts import transitions
from onefold.contracts.store import Answer, Ask, Hold, Outcome, Record, RecordKey, StoreCapabilities

if TYPE_CHECKING:
    from onefold.contracts.verbs import RowsOf

_SWEEP_RECORDS_MIN: Final = 1024  # with fewer records than this there is no sweep


class MemoryStore:
    """The Store contract in memory. Expired records are removed whenever the number of records has doubled."""

    def __init__(self) -> None:
        self.capabilities = StoreCapabilities(durable=False, proves_death=False)
        self._records: dict[RecordKey, Record] = {}
        self._lock = threading.Lock()
        self._sweep_at_records = _SWEEP_RECORDS_MIN
        forks.in_child(self._start_anew)

    def _start_anew(self) -> None:
        """In a forked child, which has a copy of the records: a thread of the parent may have held the old lock."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many records there are, including expired ones that were not yet removed."""
        return len(self._records)

    def claim(self, asks: Sequence[Ask], now_ms: int, rows_of: RowsOf | None = None) -> list[Answer]:  # noqa: ARG002 - has no history in its transaction
        """See `Store.claim`."""
        answers: list[Answer] = []
        with self._lock:
            for ask in asks:
                answer, after = transitions.claim(self._records.get(ask.key), ask, now_ms)
                if after is not None:
                    self._records[ask.key] = after
                answers.append(answer)
            if len(self._records) >= self._sweep_at_records:
                self._sweep(now_ms)
        return answers

    def _sweep(self, now_ms: int) -> None:
        for key in [key for key, record in self._records.items() if transitions.is_expired(record, now_ms)]:
            del self._records[key]
        self._sweep_at_records = max(_SWEEP_RECORDS_MIN, 2 * len(self._records))

    def start(self, holds: Sequence[Hold], now_ms: int) -> list[bool]:
        """See `Store.start`."""
        with self._lock:
            return [self._put(hold.key, transitions.start(self._records.get(hold.key), hold, now_ms)) for hold in holds]

    def renew(self, holds: Sequence[Hold], lease_until_ms: int) -> list[bool]:
        """See `Store.renew`."""
        with self._lock:
            return [
                self._put(hold.key, transitions.renew(self._records.get(hold.key), hold, lease_until_ms))
                for hold in holds
            ]

    def write(self, writes: Sequence[tuple[Hold, Outcome]], now_ms: int) -> list[bool]:
        """See `Store.write`."""
        with self._lock:
            return [
                self._put(hold.key, transitions.write(self._records.get(hold.key), hold, outcome, now_ms))
                for hold, outcome in writes
            ]

    def restore(self, records: Sequence[Record]) -> list[bool]:
        """See `Store.restore`."""
        with self._lock:
            return [self._put(one.key, transitions.restore(self._records.get(one.key), one)) for one in records]

    def clear_outbox(self, holds: Sequence[Hold]) -> list[bool]:
        """See `Store.clear_outbox`."""
        with self._lock:
            return [self._put(hold.key, transitions.clear_outbox(self._records.get(hold.key), hold)) for hold in holds]

    def _put(self, key: RecordKey, after: Record | None) -> bool:
        if after is None:
            return False
        self._records[key] = after
        return True

    def read(self, keys: Sequence[RecordKey], now_ms: int) -> list[Record | None]:
        """See `Store.read`."""
        with self._lock:
            found = [self._records.get(key) for key in keys]
        return [None if record is None or transitions.is_expired(record, now_ms) else record for record in found]
