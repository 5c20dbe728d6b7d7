"""Connections to one database: who has which, how long a statement may take, and when it is tried again.

A thread that wants one takes the connection that was used last, or opens another; nobody ever waits for a connection, so a
thread that has one open for a handler cannot starve its own next verb. There are as many as threads that were busy at one
moment. This is why psycopg_pool is not used: its bound would need a size that is right for threads times two, and its
worker threads a lifecycle, for what is a list and a lock here. A connection that the server has closed meanwhile is
noticed before it is used: an idle one has nothing to read.

Each verb is one statement that commits by itself, so no transaction of ours stays open over a round trip and a process
that vanishes holds no lock. Deadlocks and serialization failures are tried again, nothing else is: whether a lost reply
was a lost statement is not known here. Never here: SQL of records. Invariant: a connection is used by one thread at a time.
"""

from __future__ import annotations

import re
import select
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit
from weakref import WeakSet

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from onefold import errors, forks
from onefold.backends.postgres.faults import REPEATABLE, translate, unreachable

Link = psycopg.Connection[Any]
T = TypeVar("T")
C = TypeVar("C", bound=Link)

SCHEMA_DEFAULT: Final = "onefold"
TRIES: Final = 5  # of a statement that was rolled back by a deadlock or a serialization failure
# Milliseconds. A verb touches few rows by their primary key; what takes longer is waiting for somebody.
_SETTINGS: Final = {
    "lock_timeout": "3000",
    "statement_timeout": "15000",
    "idle_in_transaction_session_timeout": "15000",
    # The conditions of our updates are asked again of the row that the lock was waited for: so is read committed.
    "default_transaction_isolation": "read committed",
}
# For connections that run our statements only. The right plan is known, row by row through the primary key, for an empty
# table and for a large one; made once, not at every call (measured: 2 to 6 times as many claims per second).
PLANNED: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
# https://www.postgresql.org/docs/current/libpq-connect.html; a host that vanished is noticed after 10 to 20 s.
_DEFAULTS: Final = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "2",
    "tcp_user_timeout": "10000",
    "application_name": "onefold",
    "client_encoding": "UTF8",
}


class Address:
    """A URL taken apart.

    Args:
        url: `postgresql://user:password@host:port/database?schema=onefold`, and any parameter libpq knows. `create=yes` is
            left to the caller.

    Raises:
        UsageError: it is none, or the schema's name needs quotes.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:
            raise _unreadable("its host is malformed") from None
        own, others = {"schema": SCHEMA_DEFAULT, "create": "no"}, []
        for option in filter(None, parts.query.split("&")):
            name, _, value = option.partition("=")
            if name in own:
                own[name] = unquote(value)
            else:
                others.append(option)  # as it is: libpq has rules of its own for "+"
        self.schema = own["schema"]
        self.creates = own["create"] == "yes"
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", self.schema) or self.schema.startswith("pg_"):
            raise errors.UsageError(
                f"schema={self.schema!r} is not the name of a schema.",
                meaning="It is written into statements without quotes: a-z 0-9 _, at most 63, not pg_...",
                todo=f"Leave it out for {SCHEMA_DEFAULT!r}, or choose a plain name.",
            )
        try:
            given = conninfo_to_dict(urlunsplit(parts._replace(query="&".join(others))))
        except psycopg.ProgrammingError as error:
            # What libpq quotes may be a part of the password.
            raise _unreadable(re.sub('"[^"]*"', '"..."', str(error).strip().partition("\n")[0])) from None
        if "@" in str(given.get("host") or ""):
            raise _unreadable("its host has an @ in it")
        if not str(given.get("port") or "").replace(",", "").isdigit() and given.get("port"):
            raise _unreadable("its port is not a number")
        self.conninfo = make_conninfo("", **{**_DEFAULTS, **given})
        host, port = given.get("host") or "localhost", given.get("port") or 5432
        self.shown = f"postgresql://{host}:{port}/{given.get('dbname') or given.get('user') or ''}"


def _unreadable(why: str) -> errors.UsageError:
    return errors.UsageError(
        f"The PostgreSQL URL cannot be read: {why}",
        todo="Write postgresql://USER:PASSWORD@host:port/database, with % codes for characters like @ and /.",
    )


class Pool(Generic[C]):
    """Connections of one kind.

    Args:
        address: where to.
        kind: their class.
        settings: of their sessions.
    """

    def __init__(self, address: Address, kind: type[C], settings: Mapping[str, str] | None = None) -> None:
        self._address = address
        self._kind = kind
        # Set once connected: proxies refuse such settings among the start parameters (RDS Proxy, PgBouncer).
        self._settings = [word for pair in {**_SETTINGS, **(settings or {})}.items() for word in pair]
        self._lock = threading.Lock()
        self._idle: list[C] = []
        self._taken: WeakSet[C] = WeakSet()  # one that an exception out of a signal's handler tore away is closed
        self._closed = False
        forks.in_child(self._start_anew)

    def _start_anew(self) -> None:
        """In a forked child: closing a connection of the parent's would say good-bye to the server in its name."""
        forks.keep_for_ever(self._idle)
        self._idle, self._taken, self._lock = [], WeakSet(), threading.Lock()

    def take(self) -> C:
        """A connection that seems to live, outside any transaction.

        Raises:
            TransientError: the server does not answer.
            UsageError: the pool was closed.
        """
        forks.look()
        while True:
            with self._lock:
                if self._closed:
                    raise errors.UsageError("The record store was closed.", todo="Open it anew.")
                found = self._idle.pop() if self._idle else None
            if found is not None and not _seems_alive(found):
                found.close()
                continue
            connection = self._connect() if found is None else found
            self._taken.add(connection)
            return connection

    def _connect(self) -> C:
        calls = ", ".join(["set_config(%s, %s, false)"] * (len(self._settings) // 2))
        try:
            connection = self._kind.connect(self._address.conninfo, autocommit=True)
            try:
                connection.execute(f"SELECT {calls}".encode(), self._settings)
            except BaseException:
                connection.close()
                raise
        except psycopg.Error as error:
            raise unreachable(error, self._address.shown) from error
        return connection

    def give(self, connection: C) -> None:
        """Take back a connection; one that is broken or in the middle of something is closed."""
        try:
            self._taken.remove(connection)
        except KeyError:  # forked while it was in use: the parent's
            forks.keep_for_ever(connection)
            return
        idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        with self._lock:
            if idle and not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it comes back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _seems_alive(connection: Link) -> bool:
    if connection.closed:
        return False
    watch = select.poll()
    watch.register(connection.fileno(), select.POLLIN)
    return not watch.poll(0)  # a server that has something to say to an idle connection says good-bye


class Server:
    """One database, for verbs.

    Args:
        address: where it is, and the schema.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._pool: Pool[Link] = Pool(address, psycopg.Connection, PLANNED)

    def sql(self, text: str) -> bytes:
        """A statement written for the schema `onefold`, for this schema."""
        return re.sub(r"\bonefold\.", f"{self.address.schema}.", text).encode()

    def run(self, work: Callable[[Link], T]) -> T:
        """Do work on a connection of its own, outside any transaction.

        Raises:
            TransientError, StorageBusy, StorageError: as `faults.translate` says.
        """
        with self.translated():
            connection = self._pool.take()
            try:
                return work(connection)
            finally:
                self._pool.give(connection)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Errors of psycopg in our words."""
        try:
            yield
        except psycopg.Error as error:
            raise translate(error, self.address.shown, self.address.schema) from error

    def close(self) -> None:
        """Close all connections; harmless twice."""
        self._pool.close()


def ask(connection: Link, statement: bytes, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    """The rows of one statement; outside a transaction it is tried again where the server undid it."""
    for tries_left in reversed(range(TRIES)):
        try:
            return connection.cursor(binary=True).execute(statement, values).fetchall()
        except psycopg.Error as error:
            if error.sqlstate not in REPEATABLE or tries_left == 0 or not connection.autocommit:
                raise
    raise AssertionError("unreachable")
