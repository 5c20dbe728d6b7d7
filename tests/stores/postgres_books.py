"""One PostgreSQL server for all tests of a process, and for each test a database of its own on it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from onefold.engines.postgres.backend import PostgresBackend
from onefold.manual_clock import ManualClock
from onefold.testing.records import NOW
from tests.emulators.servers import postgres

_NUMBERS = itertools.count()


@contextmanager
def shared_server() -> Iterator[str]:
    """The URL of a server whose commits are not synced: for tests that are not about crashes."""
    with postgres(fsync="off", max_connections="200") as url:
        yield url


@contextmanager
def database(url: str, **options: str) -> Iterator[str]:
    """The URL of a new database on a server."""
    name = f"test_{next(_NUMBERS)}"
    words = " ".join(f"{word} {value}" for word, value in options.items())
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} {words}".encode())
    yield url.rsplit("/", 1)[0] + f"/{name}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@contextmanager
def books(url: str, clock: ManualClock | None = None) -> Iterator[PostgresBackend]:
    """A record store, whose tables are made if they do not exist."""
    opened = PostgresBackend(url, clock=clock or ManualClock(NOW), create=True)
    try:
        yield opened
    finally:
        opened.close()


def sql(url: str, statement: str, *values: object) -> list[tuple]:
    """Run a statement on a connection of its own; the rows that it returns."""
    with psycopg.connect(url, autocommit=True) as link:
        cursor = link.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []
