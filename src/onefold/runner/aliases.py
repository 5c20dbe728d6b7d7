"""Finds the records of a batch of runs, some of whose jobs have had other names (`record/aliases.py` has the rules).

Never here: claims. Invariant: a batch without renamed jobs costs no call of the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onefold import errors
from onefold.interrupts import let_through
from onefold.record.aliases import chosen, other_names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from onefold.contracts.store import Record, RecordKey
    from onefold.contracts.verbs import Store
    from onefold.runner.execution import Execution


class NamedRecord:
    """The record of one call of a function that has had other names.

    Args:
        key: under its present name. names: all of them.

    Attributes:
        key: the key of the record to claim.
    """

    def __init__(self, store: Store, key: RecordKey, names: Collection[str], now_ms: int) -> None:
        self._store = store
        keys = [key, *other_names(key, names)]
        found = dict(zip(keys, store.read(keys, now_ms), strict=True))
        self.key = chosen(key, found.values())
        self._others = {one: record for one, record in found.items() if one != self.key}

    def has_changed(self, now_ms: int) -> bool:
        """Whether another process has now recorded the call under another name."""
        return self._store.read(list(self._others), now_ms) != list(self._others.values())


class NamedRecords:
    """The job names under which the runs of a batch are claimed.

    Args:
        runs: the batch; each run has a key.

    Attributes:
        keys: the keys of the records to claim, in the order of the runs.
    """

    def __init__(self, store: Store, runs: Sequence[Execution], now_ms: int) -> None:
        self._store = store
        self._unreadable: set[int] = set()
        self._seen: dict[int, dict[RecordKey, Record | None]] = {}
        self.keys: list[RecordKey] = []
        wanted: dict[int, list[RecordKey]] = {}
        for place, run in enumerate(runs):
            key = run.facts.key
            assert key is not None
            self.keys.append(key)
            if run.job.aliases:
                wanted[place] = [key, *other_names(key, run.job.names)]
        for place, keys, found in self._read(wanted, now_ms):
            self._seen[place] = dict(zip(keys, found, strict=True))
            self.keys[place] = chosen(self.keys[place], found)

    def _read(
        self, wanted: dict[int, list[RecordKey]], now_ms: int
    ) -> Iterator[tuple[int, list[RecordKey], list[Record | None]]]:
        if not wanted:
            return
        try:
            records = iter(self._store.read([key for keys in wanted.values() for key in keys], now_ms))
        except errors.StorageError as error:  # one of them cannot be read, which must not stop the others
            let_through(error)
            records = iter([self._read_one(place, key, now_ms) for place, keys in wanted.items() for key in keys])
        for place, keys in wanted.items():
            found = [next(records) for _ in keys]
            if place not in self._unreadable:
                yield place, keys, found

    def _read_one(self, place: int, key: RecordKey, now_ms: int) -> Record | None:
        """One record; if it cannot be read, the run is claimed under this name, and the claim says so."""
        try:
            return self._store.read([key], now_ms)[0]
        except errors.StorageError as error:
            let_through(error)
            self.keys[place] = key
            self._unreadable.add(place)
            return None

    def changed(self, places: Sequence[int], now_ms: int) -> set[int]:
        """The runs, of these indexes, whose operation another process has now recorded under another name."""
        others = {
            place: [key for key in self._seen[place] if key != self.keys[place]]
            for place in places
            if place in self._seen
        }
        return {
            place
            for place, keys, found in self._read(others, now_ms)
            if any(record != self._seen[place][key] for key, record in zip(keys, found, strict=True))
        }
