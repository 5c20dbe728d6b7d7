"""Record stores on a Redis server for the tests of this folder: opened on an empty server, closed with the test.

Does not contain: assertions. Invariant: each test begins with an empty server.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from onefold.engines.redis.backend import RedisBackend
from onefold.entropy import SystemEntropy


@contextmanager
def opened(url: str, *, empty: bool = True) -> Iterator[RedisBackend]:
    """A record store on this server, which is emptied first unless `empty` is False."""
    if empty:
        with client(url) as direct:
            direct.flushall()
    books = RedisBackend.open(url, entropy=SystemEntropy())
    try:
        yield books
    finally:
        books.close()


@contextmanager
def client(url: str) -> Iterator[redis.Redis]:
    """A client of the test's own."""
    kind = redis.RedisCluster if "cluster=yes" in url else redis.Redis
    direct = kind.from_url(url.partition("?")[0], protocol=2)
    try:
        yield direct
    finally:
        direct.close()
