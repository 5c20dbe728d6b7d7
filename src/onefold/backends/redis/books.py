"""One Redis or Valkey server as a keeper of records, history and state: opened by URL, checked, closed.

What Redis acknowledges is as durable as its settings and its failover make it, and a record that is lost is an effect
that may happen twice. `check` looks at the settings and says so in plain sentences; `docs/how-to/store-on-redis.md` tells
what each of them costs and what a failover can lose.

Never here: rules, scripts. Invariant: opening connects to nothing; every call says what it could not do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import redis

from onefold import errors
from onefold.backends.redis.admin import RedisRecords
from onefold.backends.redis.changing import Changing
from onefold.backends.redis.ledger import RedisLedger
from onefold.backends.redis.names import PREFIX_DEFAULT, Names
from onefold.backends.redis.server import SERVER_VERSION_MIN, Address, Server
from onefold.backends.redis.state import RedisState
from onefold.backends.redis.store import RedisStore
from onefold.contracts.store import StoreCapabilities

if TYPE_CHECKING:
    from onefold.contracts.verbs import EffectTransaction
    from onefold.outside import Entropy

_SETTINGS: Final = ("appendonly", "appendfsync", "maxmemory-policy")
_UNTOLD: Final = (
    "Redis does not let its settings be read (CONFIG GET is refused), so its durability could not be checked: appendonly"
    " should be yes, appendfsync always, maxmemory-policy noeviction."
)


class RedisBooks:
    """Records, history and state on one server.

    Args:
        server: the connection pool. names: under which prefix. entropy: draws the stamps of records.

    Attributes:
        store, records, ledger, state: as their contracts say.
    """

    def __init__(self, server: Server, names: Names, entropy: Entropy) -> None:
        self._server = server
        self._names = names
        changing = Changing(server, names, entropy)
        self.store = RedisStore(changing)
        self.records = RedisRecords(server, names, changing)
        self.ledger = RedisLedger(server, names)
        self.store.ledger = self.ledger
        self.state = RedisState(server, names)
        self.store.state = self.state

    @classmethod
    def open(cls, url: str, *, entropy: Entropy) -> RedisBooks:
        """Prepare for a server without connecting to it yet.

        Args:
            url: `redis://[user:password@]host[:port][/db]`, or `rediss://` for TLS. Options: `prefix=TEXT` (default `of:`)
                begins every name; `cluster=yes` for a Redis cluster.
            entropy: draws the stamps of records.

        Raises:
            UsageError: anything else.
        """
        address = Address(url)
        return cls(Server(address), Names(PREFIX_DEFAULT if address.prefix is None else address.prefix), entropy)

    def effects(self, limit_ms: int) -> EffectTransaction | None:  # noqa: ARG002 - other stores can
        """None: a handler's own writes cannot join a record's on Redis."""
        return None

    def check(self) -> list[str]:
        """What about this server's settings may lose records, one plain sentence each.

        Raises:
            TransientError: the server cannot be reached or still loads.
            StorageError: user or password are refused, it is a replica, it is too old, or part of a cluster.
        """
        info = self._server.ask(lambda _: self._server.node(self._names.tag).info(), repeatable=True)
        self._check_server(info)
        settings = self._server.ask(lambda _: _settings(self._server.node(self._names.tag)), repeatable=True)
        self.store.capabilities = StoreCapabilities(
            durable=settings.get("appendonly") == "yes" and settings.get("appendfsync") == "always", proves_death=False
        )
        return _warnings(settings, replicas=int(info.get("connected_slaves", 0)))

    def _check_server(self, info: dict[str, Any]) -> None:
        version = str(info.get("redis_version", "0"))
        if tuple(int(part) for part in version.split(".")[:2]) < SERVER_VERSION_MIN:
            raise errors.StorageError(
                f"The Redis server has version {version}.",
                meaning="Records need 6.2 or later, or Valkey.",
                todo="Upgrade the server.",
            )
        if info.get("role") == "slave":
            raise errors.StorageError(
                f"This Redis server is a replica of {info.get('master_host')}:{info.get('master_port')}.",
                meaning="A replica takes no writes.",
                todo="Connect to the primary: use an address that follows it.",
            )

    def appear(self) -> None:
        """Nothing to make: connections are opened by the first calls."""

    def close(self) -> None:
        """Close every connection; harmless twice."""
        self._server.close()


def _settings(node: Any) -> dict[str, str]:
    """The settings that decide what is kept; empty where the server does not tell."""
    try:
        return {name: str(node.config_get(name).get(name, "")) for name in _SETTINGS}
    except (redis.ResponseError, redis.exceptions.NoPermissionError) as error:
        if isinstance(error, redis.exceptions.NoPermissionError) or "unknown command" in str(error):
            return {}
        raise


def _warnings(settings: dict[str, str], *, replicas: int) -> list[str]:
    """What may lose records."""
    if not settings:
        return [_UNTOLD]
    found = []
    if settings["appendonly"] != "yes":
        found.append(
            "Redis has appendonly off: a restart forgets every record since the last snapshot, and what was done since"
            " then may be done again. Set appendonly yes and appendfsync always."
        )
    elif settings["appendfsync"] != "always":
        window = (
            "about one second" if settings["appendfsync"] == "everysec" else "as long as the kernel likes (about 30 s)"
        )
        found.append(
            f"Redis has appendfsync {settings['appendfsync']}: a crash of its machine loses the writes of {window}, and"
            " what was done then may be done again. Set appendfsync always."
        )
    if settings["maxmemory-policy"] != "noeviction":
        found.append(
            f"Redis has maxmemory-policy {settings['maxmemory-policy']}: when its memory is full it throws records away"
            " that are still needed. Set noeviction, or give onefold a server of its own."
        )
    if replicas:
        found.append(
            f"Redis has {replicas} replica(s): a failover to one that lags behind loses acknowledged writes, whatever the"
            " settings above; min-replicas-to-write and min-replicas-max-lag narrow that and do not close it."
        )
    return found
