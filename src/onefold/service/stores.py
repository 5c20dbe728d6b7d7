"""Stores for the guard alone, by URL.

Never here: records themselves. Invariant: two calls with one file share its records.
"""

from __future__ import annotations

from onefold.clock import Clock, SystemClock
from onefold.contracts.store import Store
from onefold.entropy import SystemEntropy


def store(url: str, *, clock: Clock | None = None) -> Store:
    """A record store for `onefold.once`.

    Args:
        url: an engine URL, for example `sqlite:///records.db`; created when it is not there.
        clock: where time comes from; the machine's own unless given.

    Raises:
        UsageError: unknown scheme. StorageError: the file cannot be used.
    """
    from onefold.backends import registry

    entropy = SystemEntropy()
    engine = registry.open_engine(url, clock=clock or SystemClock(), entropy=entropy, owner=entropy.token())
    return engine.store


def memory_store() -> Store:
    """A store in this process's memory: for tests and for deduplication that need not survive a restart."""
    from onefold.backends.memory import MemoryStore

    return MemoryStore()
