"""Stores for the guard alone, by URL.

Never here: records themselves. Invariant: two calls with one file share its records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onefold.backends import urls
from onefold.backends.memory import MemoryStore
from onefold.clock import SystemClock
from onefold.entropy import SystemEntropy
from onefold.errors import UsageError

if TYPE_CHECKING:
    from onefold.contracts.verbs import Store
    from onefold.outside import Clock


def store(url: str, *, clock: Clock | None = None) -> Store:
    """A record store for `onefold.once`.

    Args:
        url: `sqlite:///records.db` (created when it is not there), `redis://host/0`, `postgresql://host/shop`,
            `dynamodb://eu-west-1/onefold`, or an app's `aws://` URL.
        clock: where time comes from; the machine's own unless given.

    Raises:
        UsageError: unknown scheme, or an extra that is not installed.
        StorageError: the file, table or server cannot be used.
    """
    if not isinstance(url, str):
        raise UsageError(
            f"onefold.store({url!r:.80}): a store is named by a URL, as text.",
            meaning="None comes from a variable of the environment that is not set." if url is None else "",
            todo="Write for example onefold.store('sqlite:///records.db').",
        )
    return urls.open_store(url, clock=clock or SystemClock(), entropy=SystemEntropy())


def memory_store() -> Store:
    """A store in this process's memory: for tests and for deduplication that need not survive a restart."""
    return MemoryStore()
