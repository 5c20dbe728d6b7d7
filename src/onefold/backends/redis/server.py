"""One connection pool to one Redis or Valkey server or cluster: scripts, replies, and errors in our words.

Every call is one round trip. redis-py's own retries are off: it cannot know what is safe to ask twice, we do. A call marked
`repeatable` is asked once more when its answer was lost; any other lost answer is a TransientError, and what became of it
is for the caller to find out. Passwords never come into a message.

Never here: names, records. Invariant: nothing of redis-py's errors leaves this package.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from onefold import errors, forks
from onefold.backends.redis.refusals import told

CONNECT_TIMEOUT_S: Final = (
    3.0  # a server that is there answers within milliseconds; one SYN may be lost (1 s) and again
)
ANSWER_TIMEOUT_S: Final = 5.0  # longer than a slow fsync; shorter than the shortest sensible lease
CONNECTIONS_MAX: Final = 10_000  # one per thread that is in a call; the server's own maxclients is the real limit
SERVER_VERSION_MIN: Final = (6, 2)

_OPTIONS: Final = {"prefix", "cluster"}
_ANSWER_LOST: Final = (redis.ConnectionError, redis.TimeoutError)


class Address:
    """What a URL says, checked without touching the network.

    Args:
        url: `redis://[user:password@]host[:port][/db]`, `rediss://` for TLS; options `prefix` and `cluster=yes`.

    Attributes:
        server: the URL without its options, for redis-py. shown: the same without user and password, for messages.

    Raises:
        UsageError: anything else.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True)) if parts.query else {}
            port = parts.port or 6379
        except ValueError:  # its text may hold a part of the password
            raise _bad_url("The Redis URL cannot be read: its host, port or options are malformed.") from None
        if parts.scheme not in ("redis", "rediss") or not parts.hostname or parts.fragment:
            raise _bad_url(f"A Redis URL of scheme {parts.scheme!r} names no server.")
        if not (parts.path in ("", "/") or parts.path[1:].isdecimal()):
            path = "..." if "@" in parts.path else parts.path  # behind a password with a slash in it
            raise _bad_url(f"The path {path!r} of the Redis URL is not the number of a database.")
        if options.keys() - _OPTIONS or options.get("cluster", "yes") != "yes":
            raise _bad_url(f"The Redis URL has the options {options}; known are prefix=TEXT and cluster=yes.")
        self.prefix = options.get("prefix")
        self.cluster = "cluster" in options
        if self.cluster and parts.path not in ("", "/", "/0"):
            raise _bad_url("A Redis cluster has the database 0 only.")
        self.server = urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
        self.shown = urlunsplit((parts.scheme, f"{parts.hostname}:{port}", parts.path, "", ""))


def _bad_url(what: str) -> errors.UsageError:
    return errors.UsageError(
        what,
        todo=(
            "Write for example redis://localhost:6379/0?prefix=shop: and special characters of a password as %XX (@ is %40)."
        ),
    )


class Server:
    """A client that any thread may use. Nothing is connected before the first call.

    Args:
        address: which server.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._scripts: dict[str, Any] = {}
        self._client: Any = None  # redis-py types every reply as "a value, or something to await"
        self._lock = threading.Lock()
        forks.in_child(self._start_anew)

    def _start_anew(self) -> None:
        """In a forked child: a client of its own; the parent's connections are not closed."""
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
        """Run a script by its digest, loading it first where the server does not have it (any more).

        Raises:
            TransientError: may pass; what became of the call is not known when its answer was lost.
            StorageError: will not pass by itself.
        """

        def call(client: Any) -> Any:
            known = self._scripts.get(script)
            if known is None:
                known = self._scripts[script] = client.register_script(script)
            return known(keys, arguments, client)

        return self.ask(call, repeatable=repeatable)

    def values(self, keys: Sequence[str]) -> list[bytes | None]:
        """The strings under these names; None where there is none."""
        if not keys:
            return []
        found: list[bytes | None] = self.ask(lambda client: client.mget(keys), repeatable=True)
        return found

    def each(self, command: str, keys: Sequence[str]) -> list[Any]:
        """The replies to one reading command for each of these names, in one round trip."""

        def call(client: Any) -> list[Any]:
            pipeline = client.pipeline(transaction=False)
            for key in keys:
                pipeline.execute_command(command, key)
            replies: list[Any] = pipeline.execute()
            return replies

        return self.ask(call, repeatable=True) if keys else []

    def members(self, name: str, page: int) -> Iterator[list[bytes]]:
        """What a set holds, about `page` at a time, so that a large one keeps nobody else waiting.

        One may come twice; one that is added meanwhile may come or not.
        """
        cursor = 0
        while True:
            at = cursor
            cursor, found = self.ask(lambda client: client.sscan(name, at, count=page), repeatable=True)  # noqa: B023
            yield found
            if cursor == 0:
                return

    def ask(self, call: Callable[[Any], Any], *, repeatable: bool) -> Any:
        """Make one call on the client; errors in our words."""
        try:
            if repeatable:
                with suppress(*_ANSWER_LOST):  # the second try is not the first one's consequence in a traceback
                    return call(self._connected())
            return call(self._connected())
        except (redis.RedisError, redis.exceptions.RedisClusterException) as error:
            raise told(error, self._address.shown) from error
        except BaseException:
            # Out of a signal's handler: the answer to this call may come yet, on a connection that is free again, and the
            # next call would take it for its own. Calls of other threads end on the old client's connections.
            self._client, self._scripts = None, {}
            raise

    def node(self, tag: str) -> Any:
        """The client of the one server that keeps the names with this hash tag."""
        client = self._connected()
        return client.get_node_from_key(tag).redis_connection if self._address.cluster else client

    def close(self) -> None:
        """Close every connection; a later call opens new ones."""
        with self._lock:
            client, self._client = self._client, None
            self._scripts.clear()
        if client is not None:
            client.close()
