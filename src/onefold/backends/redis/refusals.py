"""What a Redis server or its client says when it refuses, in our words: what happened, what it means, what to do.

One table, special causes before general ones. What may pass by itself is a TransientError (full or blocked: StorageBusy),
what a person must change is a StorageError. Never here: what is tried again. Invariant: every error of redis-py finds a
cause, and no password comes into a message.
"""

from __future__ import annotations

from typing import Final

import redis
from msgspec import Struct

from onefold import errors


class _Cause(Struct, frozen=True, kw_only=True, gc=False):
    """What stands behind some errors: those of these kinds, and those with one of these words, as older redis-py has it."""

    kinds: tuple[type[Exception], ...] = ()
    words: tuple[str, ...] = ()
    make: type[errors.OnefoldError]
    meaning: str
    todo: str

    def fits(self, error: Exception) -> bool:
        return isinstance(error, self.kinds) or any(word in str(error) for word in self.words)


_URL_AND_USER: Final = (
    "Write redis://USER:PASSWORD@host:port/db, or redis://:PASSWORD@host:port/db for the default user;"
    " special characters as in any URL (@ is %40)."
)
# The first that fits counts: special ones before general ones.
_CAUSES: Final = (
    _Cause(
        kinds=(redis.AuthenticationError,),
        make=errors.StorageError,
        meaning="User or password are wrong or missing.",
        todo=_URL_AND_USER,
    ),
    _Cause(
        words=("unauthenticated multibulk length", "unauthenticated bulk length"),
        make=errors.StorageError,
        meaning="The server wants a password before it reads a call as long as this one.",
        todo=_URL_AND_USER,
    ),
    _Cause(
        kinds=(redis.exceptions.NoPermissionError, redis.exceptions.AuthorizationError),
        make=errors.StorageError,
        meaning="The user may not do this.",
        todo="Allow it +@read +@write +@scripting +@connection +info +config|get on the prefix's names (ACL SETUSER).",
    ),
    _Cause(
        words=("CERTIFICATE_VERIFY_FAILED",),
        make=errors.StorageError,
        meaning="The server's certificate is not signed by an authority that this machine trusts.",
        todo="Set SSL_CERT_FILE to a file with the certificate of the authority.",
    ),
    _Cause(
        words=("DB index is out of range", "invalid DB index"),
        make=errors.StorageError,
        meaning="The URL ends with the number of a database that the server does not have.",
        todo="Write a smaller number: servers have 0 to 15 unless `databases` in redis.conf says more, clusters only 0.",
    ),
    _Cause(
        kinds=(redis.exceptions.BusyLoadingError,),
        make=errors.TransientError,
        meaning="The server has started and still reads its file.",
        todo="Wait until it is ready.",
    ),
    _Cause(
        kinds=(redis.ReadOnlyError,),
        make=errors.TransientError,
        meaning="This server is a replica, or became one in a failover; nothing was written.",
        todo="Connect to the primary: use an address that follows it.",
    ),
    _Cause(
        kinds=(redis.exceptions.OutOfMemoryError,),
        make=errors.StorageBusy,
        meaning="The server's memory is full; nothing was written.",
        todo="Raise maxmemory, or keep records for a shorter time.",
    ),
    _Cause(
        kinds=(redis.exceptions.ClusterDownError, redis.exceptions.TryAgainError),
        words=("CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN"),
        make=errors.TransientError,
        meaning="The cluster is not whole at the moment, or is moving this part of its data.",
        todo="Wait; look at CLUSTER INFO when it lasts.",
    ),
    _Cause(
        kinds=(redis.exceptions.AskError, redis.exceptions.ClusterCrossSlotError),
        words=("MOVED ", "ASK ", "CROSSSLOT"),
        make=errors.StorageError,
        meaning="This server is part of a cluster, and another one keeps this part of the data.",
        todo="Add cluster=yes to the URL: redis://host:port?cluster=yes",
    ),
    _Cause(
        kinds=(redis.exceptions.RedisClusterException, redis.exceptions.ClusterError),
        make=errors.TransientError,
        meaning="No server of the cluster can be reached.",
        todo="Check the address; leave cluster=yes away when the server is not part of a cluster.",
    ),
    _Cause(
        words=("MISCONF", "NOREPLICAS", "BUSY "),
        make=errors.StorageBusy,
        meaning="The server takes no writes at the moment; nothing was written.",
        todo="Read its log: a full disk, missing replicas, or somebody else's script that runs for long.",
    ),
    _Cause(
        kinds=(redis.TimeoutError,),
        make=errors.TransientError,
        meaning="No answer came in time; whether the call took effect is not known.",
        todo="Check the network, the load of the server, and TLS (redis:// or rediss://).",
    ),
    _Cause(
        kinds=(redis.ConnectionError,),
        make=errors.TransientError,
        meaning="The server cannot be reached, or closed the connection.",
        todo="Check that it runs and that address, port and TLS (redis:// or rediss://) are right.",
    ),
    _Cause(
        kinds=(Exception,),
        make=errors.StorageError,
        meaning="The server refuses what records need.",
        todo="Check the URL, the server's version (6.2 or later, or Valkey) and its log.",
    ),
)


def told(error: Exception, at: str) -> errors.OnefoldError:
    """An error of redis-py as one of ours.

    Args:
        error: what was raised. at: the server's URL without user and password.
    """
    cause = next(cause for cause in _CAUSES if cause.fits(error))
    text = str(error).rstrip(".") or type(error).__name__
    return cause.make(f"Redis at {at}: {text}.", meaning=cause.meaning, todo=cause.todo)
