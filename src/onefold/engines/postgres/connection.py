"""Connections to one database: which thread uses which, statement timeouts, retries, and the translation of errors.

A thread takes the idle connection that was used last, or opens another; no thread ever waits for a connection, so a
thread that keeps a connection open for a handler cannot block its own next call. There are as many connections as
threads were ever busy at the same time. This is why psycopg_pool is not used: its limit would have to be twice the
number of threads, and its worker threads would need a lifecycle; here a list and a lock suffice. A connection that the
server has closed meanwhile is detected before it is used: unlike an idle connection, it has something to read.

Each verb is one statement with its own commit, so no transaction of ours stays open over a round trip, and a process
that vanishes holds no lock. Only deadlocks and serialization failures are tried again: after a lost reply it is not known
here whether the statement was carried out.

Errors are classified by SQLSTATE, never by the text of a message:

    temporary     connection lost or refused, server starting or stopping, locks, deadlocks, timeouts, full disk
    permanent     a missing schema or table, no permission, a read-only server, a schema of another version

Never here: SQL of records. Invariant: a connection is used by one thread at a time; no error contains a password or the
value of a statement's parameter.
"""

from __future__ import annotations

import difflib
import re
import select
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit
from weakref import WeakSet

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from onefold import errors, forks
from onefold.interrupts import let_through

# https://www.postgresql.org/docs/current/errcodes-appendix.html
REPEATABLE: Final = frozenset({"40001", "40P01"})  # serialization failure, deadlock: nothing was applied, try again
_BUSY: Final = frozenset({"55P03", "57014"})  # lock not available, statement timeout
_FULL: Final = "53"  # insufficient resources: disk full, out of memory, too many connections
# The server shuts down, starts, or ends this session (the last two: idle for too long, or in a transaction for too
# long).
_GONE: Final = frozenset(
    {"08000", "08001", "08003", "08004", "08006", "57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25P04"}
)
_ABSENT: Final = frozenset({"3F000", "42P01", "42703", "42883"})  # schema, table, column, function


def is_lost(error: psycopg.Error | OSError) -> bool:
    """Whether the connection is lost, so that it is not known whether the last statement was applied."""
    if isinstance(error, OSError):
        return True
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return error.sqlstate in _GONE


def translate(error: psycopg.Error | OSError, server: str, schema: str, role: str = "") -> errors.OnefoldError:
    """Our error for an error of psycopg.

    Args:
        error: as psycopg raised it; system errors that it passes on count as a lost connection.
        server: the database as errors may show it, without a password.
        schema: where the tables are. role: the login's role, if it is known.
    """
    state = None if isinstance(error, OSError) else error.sqlstate
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if is_lost(error):
        return errors.TransientError(
            f"The connection to {server} failed: {said}",
            meaning="It is not known whether the last statement was applied; every write names owner and fence, so it"
            " may be repeated.",
            todo="Check that the server is running and accepts connections. The next call reconnects.",
        )
    if state in REPEATABLE or state in _BUSY:
        return errors.StorageBusy(
            f"{server} did not finish in time: {said}",
            meaning="No part of this statement was applied.",
            todo="Look into pg_stat_activity for a transaction that stays open and holds locks.",
        )
    if state is not None and state.startswith(_FULL):
        return errors.StorageBusy(
            f"{server} has run out of something: {said}",
            meaning="No part of this statement was applied.",
            todo="Look for a full disk, or for max_connections.",
        )
    if state == "25006":
        return errors.StorageError(
            f"{server} is read-only: {said}",
            meaning="It is a standby, or read-only transactions are the default of this role or database.",
            todo="Use the primary: add target_session_attrs=read-write to the URL, or ALTER ROLE ... RESET"
            " default_transaction_read_only.",
        )
    if state == "42501":
        to = role or "ROLE"
        return errors.StorageError(
            f"{server} refuses: {said}",
            meaning=f"{f'The role {role!r}' if role else 'The role of this login'} lacks a permission. Nothing was changed.",
            todo=f"Run as the owner: GRANT USAGE ON SCHEMA {schema} TO {to}; and, to read, as status and why do,"
            f" GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {to}; for workers, calls and what changes something,"
            f" GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {to}.",
        )
    if state in _ABSENT:
        return absent(server, schema, f"The server says: {said}")
    return errors.StorageError(
        f"{server} refused a statement ({state}): {said}",
        meaning="No part of it was applied.",
        todo="Report it with the server's version and log.",
    )


_LINES_MAX: Final = 6  # one for each address that was tried, and libpq's hints


def unreachable(error: psycopg.Error | OSError, server: str) -> errors.TransientError:
    """The error when no connection could be opened: it has no SQLSTATE, so a wrong password looks like no server."""
    if isinstance(error, OSError):  # from the selector with which psycopg waits for the server
        return errors.TransientError(
            f"No connection to {server}: {error.strerror or error}.",
            meaning="This process, or the machine, has no file descriptor or no memory left. Nothing was sent.",
            todo="Close what handlers open, run fewer at once, or raise the limit (`ulimit -n`).",
        )
    lines = str(error).strip().splitlines() or [type(error).__name__]
    said = " ".join(" ".join(line.split()) for line in lines[:_LINES_MAX])
    return errors.TransientError(
        f"No connection to {server}: {said}",
        meaning="Nothing was sent.",
        todo="Check that the server is running and accepts this login: host, port, database, role and password in the URL,"
        " pg_hba.conf, max_connections.",
    )


def absent(server: str, schema: str, why: str = "", *, older: bool = False) -> errors.StorageError:
    """The error when the tables do not exist or are another version's.

    Args:
        server: its URL without a login. schema: where they should be. why: how that is known.
        older: the tables exist, in an older version.
    """
    what = f"has {'tables of an older' if older else 'no tables of'} onefold in schema {schema!r}"
    url = server.replace("://", "://USER:PASSWORD@", 1)
    url += "?create=yes" if schema == "onefold" else f"?schema={schema}&create=yes"
    return errors.StorageError(
        f"{server} {what}.",
        meaning=why
        or ("This version needs its own." if older else "They were never made there, or are in another schema."),
        todo=f"{'Bring them to this version' if older else 'Make them'} once, as a role that may create there:"
        f" python -c \"import onefold; onefold.store('{url}')\"",
    )


Link = psycopg.Connection[Any]
T = TypeVar("T")
C = TypeVar("C", bound=Link)

SCHEMA_DEFAULT: Final = "onefold"
TRIES: Final = 5  # for a statement that was rolled back by a deadlock or a serialization failure
# Milliseconds. A verb touches few rows by their primary key; a statement that takes longer is waiting for somebody.
_SETTINGS: Final = {
    "lock_timeout": "3000",
    "statement_timeout": "15000",
    "idle_in_transaction_session_timeout": "15000",
    # Read committed: after waiting for a lock, the server checks the conditions of our updates again on the changed
    # row.
    "default_transaction_isolation": "read committed",
}
# For connections that run only our statements. The right plan is known: row by row through the primary key, for empty
# tables and for large ones. It is made once, not at every call (measured: 2 to 6 times as many claims per second).
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


class PostgresAddress:
    """A parsed URL.

    Args:
        url: `postgresql://user:password@host:port/database?schema=onefold`, and any parameter that libpq knows. The
            caller carries out `create=yes`.

    Raises:
        UsageError: it is not such a URL, or the schema's name needs quotes.
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
                _refuse_unknown(name, own)
                others.append(option)  # not decoded: libpq has its own rules for "+"
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
            # The text that libpq quotes may be a part of the password.
            raise _unreadable(re.sub('"[^"]*"', '"..."', str(error).strip().partition("\n")[0])) from None
        if "@" in str(given.get("host") or ""):
            raise _unreadable("its host has an @ in it")
        if not str(given.get("port") or "").replace(",", "").isdigit() and given.get("port"):
            raise _unreadable("its port is not a number")
        self.conninfo = make_conninfo("", **{**_DEFAULTS, **given})
        # libpq knows what the URL leaves out: PGHOST, PGPORT, PGDATABASE, PGUSER, a service.
        known = {one.keyword.decode(): one.val.decode() for one in Conninfo.get_defaults() if one.val} | given
        host, port, database = (known.get(one) for one in ("host", "port", "dbname"))
        self.role = str(known.get("user") or "")
        self.database = str(database or known.get("user") or "")
        self.shown = f"postgresql://{host or 'localhost'}:{port or 5432}/{self.database}"


def _refuse_unknown(name: str, own: Iterable[str]) -> None:
    """Refuse an option that neither onefold nor libpq knows. Only a plain word is shown: others may be of a password."""
    known = [*own, *(one.keyword.decode() for one in Conninfo.get_defaults())]
    if name in known or not re.fullmatch(r"[a-z_]{1,40}", name):
        return
    near = difflib.get_close_matches(name, known, 1)
    meant = f" Did you mean {near[0]}?" if near else ""
    raise errors.UsageError(
        f"The PostgreSQL URL has the option {name!r}, which is not known.",
        meaning=f"Options of onefold are schema=NAME and create=yes; others are libpq's.{meant}",
        todo="Correct the option, or leave it out.",
    )


def _unreadable(why: str) -> errors.UsageError:
    return errors.UsageError(
        f"The PostgreSQL URL cannot be read: {why}",
        todo="Write postgresql://USER:PASSWORD@host:port/database, with % codes for characters like @ and /.",
    )


class Pool(Generic[C]):
    """Connections of one class to one database.

    Args:
        address: the database.
        kind: their class.
        settings: settings of their sessions.
    """

    def __init__(self, address: PostgresAddress, kind: type[C], settings: Mapping[str, str] | None = None) -> None:
        self._address = address
        self._kind = kind
        # Set once connected: proxies refuse such settings among the start parameters (RDS Proxy, PgBouncer).
        self._settings = [word for pair in {**_SETTINGS, **(settings or {})}.items() for word in pair]
        self._lock = threading.Lock()
        self._idle: list[C] = []
        self._taken: WeakSet[C] = WeakSet()  # weak: a connection that a signal handler's exception lost is closed
        self._closed = False
        forks.in_child(self._start_anew)

    def _start_anew(self) -> None:
        """In a forked child: keep the parent's connections open, because closing one would end the parent's session."""
        forks.keep_for_ever(self._idle)
        self._idle, self._taken, self._lock = [], WeakSet(), threading.Lock()

    def take(self) -> C:
        """A connection that seems to be alive, outside any transaction.

        Raises:
            TransientError: the server does not answer.
            UsageError: the pool was closed.
        """
        forks.look()
        while True:
            with self._lock:
                if self._closed:
                    raise errors.UsageError("The record store was closed.", todo="Open it again.")
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
        except (psycopg.Error, OSError) as error:
            let_through(error)
            raise unreachable(error, self._address.shown) from error
        return connection

    def give(self, connection: C) -> None:
        """Return a connection to the pool; one that is broken or in the middle of something is closed."""
        try:
            self._taken.remove(connection)
        except KeyError:  # forked while it was in use: it is the parent's
            forks.keep_for_ever(connection)
            return
        idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        with self._lock:
            if idle and not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close the idle connections; those in use are closed when they are returned."""
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
    return not watch.poll(0)  # all that a server sends to an idle connection is that it ends it


class PostgresServer:
    """One database and the connections with which the contracts' verbs are carried out.

    Args:
        address: the server and the schema.
    """

    def __init__(self, address: PostgresAddress) -> None:
        self.address = address
        self._pool: Pool[Link] = Pool(address, psycopg.Connection, PLANNED)

    def sql(self, text: str) -> bytes:
        """A statement written for the schema `onefold`, for this schema."""
        return re.sub(r"\bonefold\.", f"{self.address.schema}.", text).encode()

    def run(self, work: Callable[[Link], T]) -> T:
        """Do work on a connection that nobody else uses, outside any transaction.

        Raises:
            TransientError, StorageBusy, StorageError: see `translate`.
        """
        with self.translated():
            connection = self._pool.take()
            try:
                return work(connection)
            finally:
                self._pool.give(connection)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise psycopg's errors as ours."""
        try:
            yield
        except (psycopg.Error, OSError) as error:
            let_through(error)
            raise translate(error, self.address.shown, self.address.schema, self.address.role) from error

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self._pool.close()


def ask(connection: Link, statement: bytes, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    """The rows of one statement; outside a transaction it is tried again if the server has rolled it back."""
    for tries_left in reversed(range(TRIES)):
        try:
            return connection.cursor(binary=True).execute(statement, values).fetchall()
        except psycopg.Error as error:
            let_through(error)
            if error.sqlstate not in REPEATABLE or tries_left == 0 or not connection.autocommit:
                raise
    raise AssertionError("unreachable")
