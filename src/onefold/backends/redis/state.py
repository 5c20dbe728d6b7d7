"""Named values with versions on Redis: the State contract, in one hash and one script.

A name that was deleted leaves nothing behind but the floor, one number for all names: a name that comes back begins
above it, so that a writer who read the old value cannot overwrite the new one.

Never here: what the values mean. Invariant: a version that was replaced never fits again.
"""

from __future__ import annotations

from collections.abc import Sequence

from onefold.backends.redis.names import Names
from onefold.backends.redis.scripts import PUT
from onefold.backends.redis.server import Server
from onefold.contracts.state import Change, Versioned, check


class RedisState:
    """The State contract on one server.

    Args:
        server, names: where.
    """

    def __init__(self, server: Server, names: Names) -> None:
        self._server = server
        self._names = names

    def get(self, names: Sequence[str]) -> list[Versioned | None]:
        """The values as they stand, in order; None where absent."""
        if not names:
            return []
        found = self._server.ask(lambda client: client.hmget(self._names.state, names), repeatable=True)
        return [None if stored is None else _versioned(stored) for stored in found]

    def put(self, changes: Sequence[Change]) -> list[bool]:
        """Apply each change whose expected version still stands, all in one call.

        Raises:
            UsageError: a name or value is too long; nothing was changed.
            TransientError: not answered; the changes may have been made. Read before trying again.
        """
        for change in changes:
            check(change)
        if not changes:
            return []
        arguments: list[object] = []
        for change in changes:
            arguments += [change.name, change.expected, b"" if change.value is None else b":" + change.value]
        took = self._server.run(PUT, [self._names.state, self._names.state_floor], arguments)
        return [one == 1 for one in took]

    def names(self, prefix: str) -> list[str]:
        """All names that begin with `prefix`, sorted; reads every name."""
        stored = self._server.ask(lambda client: client.hkeys(self._names.state), repeatable=True)
        return sorted(name for name in (one.decode() for one in stored) if name.startswith(prefix))


def _versioned(stored: bytes) -> Versioned:
    version, _, value = stored.partition(b":")
    return Versioned(int(version), value)
