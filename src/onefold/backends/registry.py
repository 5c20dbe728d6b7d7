"""URL scheme to backend: imports that one backend now, and names the extra that is missing.

Schemes: `sqlite:///relative/path.db`, `sqlite:////absolute/path.db`, `sqlite://:memory:`.
Never here: settings of an app, declared queues. Invariant: importing this module imports no backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from onefold import errors
from onefold.clock import Clock, Waiter
from onefold.contracts.admin import QueueAdmin, RecordAdmin
from onefold.contracts.commit import Commit
from onefold.contracts.ledger import Ledger
from onefold.contracts.state import State
from onefold.contracts.store import Store
from onefold.entropy import Entropy


class WakeableWaiter(Waiter, Protocol):
    """A waiter that threads of this process can wake too."""

    def wake(self) -> None:
        """Wake whoever waits, or the next one to wait."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class Engine(Protocol):
    """One opened backend: its contracts, and what a worker process needs of it."""

    url: str
    shared: bool
    queues: QueueAdmin
    store: Store
    records: RecordAdmin
    ledger: Ledger
    state: State
    commit: Commit | None

    def appear(self) -> str | None:
        """Take the presence lock of this process; the lock file's path for child processes, None where there is none."""
        ...

    def waiter(self) -> WakeableWaiter:
        """What an idle worker waits on: woken by senders in any process."""
        ...

    def notify(self) -> None:
        """Wake idle workers of all processes; called after messages were sent."""
        ...

    def maintain(self, told: Callable[[str], None]) -> int:
        """Free dead owners' work (told by owner id), sweep what expired, carry moves forward; how much was done."""
        ...

    def close(self) -> None:
        """Close everything; harmless twice."""
        ...


def open_engine(url: str, *, clock: Clock, entropy: Entropy, owner: str) -> Engine:
    """Open the backend a URL names, creating its file when it is not there.

    Raises:
        UsageError: unknown scheme or malformed URL.
        StorageError: the file cannot be used.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise errors.UsageError(
            f"{url!r} is not an engine URL.",
            todo="Write for example sqlite:///.onefold/shop.db or sqlite://:memory:.",
        )
    if scheme == "sqlite":
        from onefold.backends.sqlite.engine import SqliteEngine

        return SqliteEngine(_sqlite_path(url, rest), clock=clock, entropy=entropy, owner=owner, url=url)
    raise errors.UsageError(
        f"{url!r}: there is no engine {scheme!r}.",
        meaning="Known schemes: sqlite.",
        todo="Use a sqlite:/// URL.",
    )


def _sqlite_path(url: str, rest: str) -> str:
    if rest == ":memory:":
        return rest
    if not rest.startswith("/") or rest == "/":
        raise errors.UsageError(
            f"{url!r} names no file.",
            todo="A relative file has three slashes (sqlite:///shop.db), an absolute one four (sqlite:////var/shop.db).",
        )
    return rest[1:]
