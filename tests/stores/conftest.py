"""One PostgreSQL and one Redis server for all tests of a process that do nothing to the server itself.

Each test has a database of its own, or begins with an empty Redis. Does not contain: what only one module needs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from onefold.engines.postgres.backend import PostgresBackend
from onefold.engines.redis.backend import RedisBackend
from tests.emulators import servers
from tests.stores import postgres_books, redis_books


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The server's URL."""
    with postgres_books.shared_server() as url:
        yield url


@pytest.fixture
def url(postgres: str) -> Iterator[str]:
    """The URL of an empty database, without tables."""
    with postgres_books.database(postgres) as url:
        yield url


@pytest.fixture
def opened(url: str) -> Iterator[PostgresBackend]:
    """A record store on that database."""
    with postgres_books.books(url) as opened:
        yield opened


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The URL of a Redis server."""
    with servers.redis() as url:
        yield url


@pytest.fixture
def books(server: str) -> Iterator[RedisBackend]:
    """A record store on that server, which is emptied first."""
    with redis_books.opened(server) as books:
        yield books


@pytest.fixture
def direct(server: str) -> Iterator[redis.Redis]:
    """A client of the test's own."""
    with redis_books.client(server) as direct:
        yield direct
