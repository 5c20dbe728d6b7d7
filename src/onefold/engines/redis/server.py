"""The connections to one Redis or Valkey server or cluster: calls, scripts, and the translation of redis-py's errors.

Every call is one round trip. redis-py's own retries are off, because it cannot know what is safe to repeat. A call
marked `repeatable` is made once more if its answer was lost; any other lost answer is a TransientError, and the caller
has to find out whether the call took effect. An error that may pass by itself is a TransientError (full or blocked:
StorageBusy); an error that needs a person is a StorageError.

Never here: names, records. Invariant: no error of redis-py leaves this package, all are translated by one table, and no
password gets into a message.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import redis
from msgspec import Struct
from redis.backoff import NoBackoff
from redis.retry import Retry

from onefold import errors, forks, settings
from onefold.engines.redis.layout import PREFIX_ADVICE
from onefold.interrupts import is_of_a_signal, let_through


class _Cause(Struct, frozen=True, kw_only=True, gc=False):
    """A cause of errors: of those of these classes, and of those whose text has one of these words (older redis-py)."""

    kinds: tuple[type[Exception], ...] = ()
    words: tuple[str, ...] = ()
    make: type[errors.OnefoldError] = errors.StorageError
    meaning: str
    todo: str

    def fits(self, error: Exception) -> bool:
        return isinstance(error, self.kinds) or any(word in str(error) for word in self.words)


_URL_AND_USER: Final = (
    "Write redis://USER:PASSWORD@host:port/db, or redis://:PASSWORD@host:port/db for the default user;"
    " special characters as in any URL (@ is %40)."
)
# The first cause that matches counts, so special causes come before general ones.
_CAUSES: Final = (
    _Cause(
        kinds=(redis.AuthenticationError,),
        meaning="The user or password is wrong or missing.",
        todo=_URL_AND_USER,
    ),
    _Cause(
        words=("unauthenticated multibulk length", "unauthenticated bulk length"),
        meaning="The server wants a password before it reads a call as long as this one.",
        todo=_URL_AND_USER,
    ),
    _Cause(
        kinds=(redis.exceptions.NoPermissionError, redis.exceptions.AuthorizationError),
        words=("executing the script can't run this command", "executing the script can't access"),
        meaning="The user {user} may not do this.",
        todo="Give it, with ACL SETUSER, on the names of the prefix ('~{of:}*' unless the URL says another): to look, as"
        " status and why do, +@read +@connection; for workers, calls and what changes something, +@read +@write +@scripting"
        " +@connection +time +info +config|get.",
    ),
    _Cause(
        words=("WRONGTYPE",),
        meaning="Another program writes under the same prefix: a key there is of a type that onefold does not write.",
        todo=PREFIX_ADVICE,
    ),
    _Cause(
        words=("CERTIFICATE_VERIFY_FAILED",),
        meaning="The server's certificate is not signed by an authority that this machine trusts.",
        todo="Set SSL_CERT_FILE to a file with the certificate of the authority.",
    ),
    _Cause(
        words=("DB index is out of range", "invalid DB index"),
        meaning="The URL ends with the number of a database that the server does not have.",
        todo="Write a smaller number: servers have 0 to 15 unless `databases` in redis.conf says more, clusters only 0.",
    ),
    _Cause(
        kinds=(redis.exceptions.BusyLoadingError,),
        make=errors.TransientError,
        meaning="The server has started and is still loading its data.",
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
        meaning="The cluster is incomplete at the moment, or is moving this part of its data.",
        todo="Wait; if it lasts, look at CLUSTER INFO.",
    ),
    _Cause(
        kinds=(redis.exceptions.AskError, redis.exceptions.ClusterCrossSlotError),
        words=("MOVED ", "ASK ", "CROSSSLOT"),
        meaning="This server is part of a cluster, and another one keeps this part of the data.",
        todo="Add cluster=yes to the URL: redis://host:port?cluster=yes",
    ),
    _Cause(
        kinds=(redis.exceptions.RedisClusterException, redis.exceptions.ClusterError),
        make=errors.TransientError,
        meaning="No server of the cluster can be reached.",
        todo="Check the address; leave cluster=yes out if the server is not part of a cluster.",
    ),
    _Cause(
        words=("MISCONF", "NOREPLICAS", "BUSY "),
        make=errors.StorageBusy,
        meaning="The server accepts no writes at the moment; nothing was written.",
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
        meaning="The server refuses what records need.",
        todo="Check the URL, the server's version (6.2 or later, or Valkey) and its log.",
    ),
)


def translate(error: Exception, at: str, user: str) -> errors.OnefoldError:
    """Our error for an error of redis-py.

    Args:
        error: what was raised. at: the server's URL without user and password. user: the login's user.
    """
    cause = next(cause for cause in _CAUSES if cause.fits(error))
    text = str(error).rstrip(".") or type(error).__name__
    return cause.make(f"Redis at {at}: {text}.", meaning=cause.meaning.replace("{user}", repr(user)), todo=cause.todo)


CONNECT_TIMEOUT_S: Final = 3.0  # a running server answers within milliseconds; a SYN may be lost (1 s), and once more
ANSWER_TIMEOUT_S: Final = 5.0  # longer than a slow fsync; shorter than the shortest sensible lease
CONNECTIONS_MAX: Final = 10_000  # one per thread that makes a call; the server's maxclients is the real limit
SERVER_VERSION_MIN: Final = (6, 2)

_OPTIONS: Final = {one.name for one in settings.REDIS_URL}
_ANSWER_LOST: Final = (redis.ConnectionError, redis.TimeoutError)


class RedisAddress:
    """A parsed URL, checked without using the network.

    Args:
        url: `redis://[user:password@]host[:port][/db]`, `rediss://` for TLS; options `prefix` and `cluster=yes`.

    Attributes:
        server: the URL without its options, for redis-py. shown: the same without user and password, for messages.
        user: the login's user.

    Raises:
        UsageError: the URL has another form.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True)) if parts.query else {}
            port = parts.port or 6379
        except ValueError:  # the error's text may contain a part of the password
            raise _bad_url("The Redis URL cannot be read: its host, port or options are malformed.") from None
        if parts.scheme not in ("redis", "rediss") or not parts.hostname or parts.fragment:
            raise _bad_url(f"A Redis URL of scheme {parts.scheme!r} names no server.")
        if not (parts.path in ("", "/") or parts.path[1:].isdecimal()):
            path = "..." if "@" in parts.path else parts.path  # it may be the rest of a password with a slash in it
            raise _bad_url(f"The path {path!r} of the Redis URL is not the number of a database.")
        if options.keys() - _OPTIONS or options.get("cluster", "yes") != "yes":
            names = ", ".join(map(repr, options))  # a value may be a password
            raise _bad_url(f"The Redis URL has the options {names}; known are prefix=TEXT and cluster=yes.")
        self.prefix = options.get("prefix")
        self.cluster = "cluster" in options
        if self.cluster and parts.path not in ("", "/", "/0"):
            raise _bad_url("A Redis cluster has database 0 only.")
        self.server = urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
        self.user = unquote(parts.username or "") or "default"  # Redis's name for a login without a user
        self.shown = urlunsplit((parts.scheme, f"{parts.hostname}:{port}", parts.path, "", ""))


def _bad_url(what: str) -> errors.UsageError:
    return errors.UsageError(
        what,
        todo=(
            "Write for example redis://localhost:6379/0?prefix=shop: and special characters of a password as %XX (@ is %40)."
        ),
    )


class RedisServer:
    """A client that any thread may use. It connects at the first call.

    Args:
        address: the server.
    """

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._scripts: dict[str, Any] = {}
        self._client: Any = None  # redis-py types every reply as "a value, or something to await"
        self._lock = threading.Lock()
        forks.in_child(self._start_anew)

    def _start_anew(self) -> None:
        """In a forked child: use a new client, and do not close the parent's connections."""
        forks.keep_for_ever(self._client)
        self._client, self._scripts, self._lock = None, {}, threading.Lock()

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                open_client = redis.RedisCluster.from_url if self._address.cluster else redis.Redis.from_url
                self._client = open_client(
                    self._address.server,
                    protocol=2,  # every server and proxy speaks it, and a new connection needs no handshake
                    retry=Retry(NoBackoff(), 0),
                    socket_connect_timeout=CONNECT_TIMEOUT_S,
                    socket_timeout=ANSWER_TIMEOUT_S,
                    max_connections=CONNECTIONS_MAX,
                )
            return self._client

    def run(self, script: str, keys: Sequence[str], arguments: Sequence[Any], *, repeatable: bool = False) -> Any:
        """Run a script by its digest, loading it first if the server does not have it (any more).

        Raises:
            TransientError: it may pass; if the answer was lost, it is not known whether the call took effect.
            StorageError: it will not pass by itself.
        """

        def call(client: Any) -> Any:
            known = self._scripts.get(script)
            if known is None:
                known = self._scripts[script] = client.register_script(script)
            return known(keys, arguments, client)

        return self.ask(call, repeatable=repeatable)

    def values(self, keys: Sequence[str]) -> list[bytes | None]:
        """The strings stored under these names; None if there is none."""
        if not keys:
            return []
        found: list[bytes | None] = self.ask(lambda client: client.mget(keys), repeatable=True)
        return found

    def each(self, command: str, keys: Sequence[str]) -> list[Any]:
        """The replies to one read command for each of these names, in one round trip."""

        def call(client: Any) -> list[Any]:
            pipeline = client.pipeline(transaction=False)
            for key in keys:
                pipeline.execute_command(command, key)
            replies: list[Any] = pipeline.execute()
            return replies

        return self.ask(call, repeatable=True) if keys else []

    def members(self, name: str, page: int) -> Iterator[list[bytes]]:
        """The members of a set, about `page` at a time, so that a large set does not block others.

        A member may come twice; a member that is added meanwhile may or may not come.
        """
        cursor = 0
        while True:
            at = cursor
            cursor, found = self.ask(lambda client: client.sscan(name, at, count=page), repeatable=True)  # noqa: B023
            yield found
            if cursor == 0:
                return

    def ask(self, call: Callable[[Any], Any], *, repeatable: bool) -> Any:
        """Make one call on the client, raising redis-py's errors as ours."""
        try:
            return self._made(call, 2 if repeatable else 1)
        except BaseException as error:
            # Raised by a signal handler: the answer to this call may still come, on a connection that is free again,
            # and the next call would take it for its own. So use a new client; other threads' calls end on the old
            # connections.
            if not isinstance(error, errors.OnefoldError) or is_of_a_signal(error):
                self._client, self._scripts = None, {}
            raise

    def _made(self, call: Callable[[Any], Any], tries: int) -> Any:
        while True:
            try:
                return call(self._connected())
            except (redis.RedisError, redis.exceptions.RedisClusterException) as error:
                let_through(error)  # redis-py takes any OSError for the server's
                tries -= 1
                if tries == 0 or not isinstance(error, _ANSWER_LOST):
                    raise translate(error, self._address.shown, self._address.user) from error

    def node(self, tag: str) -> Any:
        """The client of the server that has the names with this hash tag."""
        client = self._connected()
        return client.get_node_from_key(tag).redis_connection if self._address.cluster else client

    def close(self) -> None:
        """Close every connection; a later call opens new ones."""
        with self._lock:
            client, self._client = self._client, None
            self._scripts.clear()
        if client is not None:
            client.close()
