"""A record backend on PostgreSQL: records, history, shared values and handlers' transactions in one database.

    postgresql://user:password@host:port/database?schema=onefold

`PostgresBackend` is the only class that the rest of onefold uses. Unless it has to create the schema, it opens no
connection before it is used. Its sweep removes expired records, old history, and old rows of a few small tables.

`sql/NNNN_*.sql` are the steps of the schema, written for the name `onefold`, applied in order, once, in one
transaction, by one process at a time; the table `version` records how many were applied. A step that has been released
never changes. `inspect` refuses settings that would later make calls fail or change the meaning of keys. It only warns
about settings with which a crash of the machine can undo acknowledged writes, because somebody may have chosen them on
purpose. Never here: statements on records. Invariants: a schema is at a version completely or not at all; without
`create` nothing is created or changed in it; a sweep does not wait for locks, holds none for long, and never removes a
parked record, which does not expire.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import psycopg

from onefold import errors, limits
from onefold.clock import SystemClock
from onefold.engines.postgres.connection import Link, Pool, PostgresAddress, PostgresServer, absent
from onefold.engines.postgres.effects import PostgresEffects, PostgresLentConnection
from onefold.engines.postgres.ledger import PostgresLedger
from onefold.engines.postgres.records import PostgresRecords, PostgresStore
from onefold.engines.postgres.state import PostgresState

if TYPE_CHECKING:
    from onefold.outside import Clock


LEDGER_KEPT_MS: Final = 90 * limits.DAY_MS  # the default for records of completed work too
COUNTS_KEPT_MS: Final = limits.DAY_MS  # contracts/admin.py
DELETED_NAMES_KEPT_MS: Final = limits.DAY_MS  # no one holds a version that long between reading and writing
SWEEP_ROWS_MAX: Final = 1_000  # takes about 10 ms
SWEEP_MS: Final = 5_000  # between two sweeps of one process: a hundred workers make 20 sweeps a second, not 200

_RECORDS: Final = """
DELETE FROM onefold.record WHERE ident = ANY(ARRAY(
    SELECT ident FROM onefold.record
    WHERE expires_at_ms <= %s AND (status <> 'in_progress' OR lease_until_ms <= %s)
    ORDER BY expires_at_ms LIMIT %s FOR UPDATE SKIP LOCKED))
"""
_LEDGER: Final = """
DELETE FROM onefold.ledger WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM onefold.ledger WHERE at_ms < %s ORDER BY at_ms LIMIT %s FOR UPDATE SKIP LOCKED))
"""
_COUNTS: Final = """
DELETE FROM onefold.completed WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM onefold.completed WHERE second < %s ORDER BY second LIMIT %s FOR UPDATE SKIP LOCKED))
"""
_NAMES: Final = """
DELETE FROM onefold.state WHERE name = ANY(ARRAY(
    SELECT name FROM onefold.state WHERE deleted_at_ms < %s LIMIT %s FOR UPDATE SKIP LOCKED))
"""


_SERVER_MS: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"


class PostgresBackend:
    """One database with the tables of onefold.

    Args:
        url: `postgresql://user:password@host:port/database`, with `?schema=` (default `onefold`), `?create=yes`, and any
            parameter that libpq knows (`sslmode`, `target_session_attrs`, ...).
        clock: gives the time at which a name of State is deleted, and measures how long a handler has had the
            connection.
        create: create the schema and its tables, or upgrade them to this version.

    Raises:
        UsageError: the URL cannot be read.
        StorageError: with `create`: the role may not create them, or a newer onefold made the tables.
        TransientError: with `create`: the server does not answer.
    """

    def __init__(self, url: str, *, clock: Clock | None = None, create: bool = False) -> None:
        address = PostgresAddress(url)
        self._clock = clock or SystemClock()
        self._server = PostgresServer(address)
        # A separate pool: what a handler sets on a connection (search_path, a role) then affects other handlers only.
        self._lent = Pool(address, PostgresLentConnection)
        self.store = PostgresStore(self._server)
        self.records = PostgresRecords(self._server)
        self.ledger = PostgresLedger(self._server)
        self.store.ledger = self.ledger
        self.state = PostgresState(self._server, self._clock)
        self.store.state = self.state
        self._sweeps_at_ms = self._clock.monotonic_ms()
        if create or address.creates:
            try:
                migrate(self._server)
            except BaseException:
                self.close()
                raise

    def effects(self, limit_ms: int) -> PostgresEffects:
        """A transaction for handlers' own rows, begun when a handler first uses it.

        Args:
            limit_ms: how long one handler may use it, and how long it stays open before finished work is committed. One
                statement of a handler may also take that long; the server ends a connection that is idle for twice as
                long.
        """
        return PostgresEffects(
            self._server,
            self._lent,
            self.store,
            self.ledger,
            self.state,
            clock=self._clock,
            limit_ms=limit_ms,
        )

    def check(self) -> list[str]:
        """Check whether this server can keep onefold's promises; one sentence for each that its settings weaken.

        Raises:
            StorageError: the tables are missing or of another version, a permission is missing, the server is too old,
                is read-only, or cannot store every text.
            TransientError: it does not answer.
        """
        return inspect(self._server)

    def sweep(self, now_ms: int, *, limit: int = SWEEP_ROWS_MAX) -> int:
        """Remove expired rows, at most `limit` of each kind; returns how many were removed.

        Each kind is found by an index, and rows that somebody has locked are skipped. When an expired record is removed
        does not matter: a claim treats it as absent. Any process may sweep, even several at once.
        """
        steps: list[tuple[str, tuple[int, ...]]] = [
            (_RECORDS, (now_ms, now_ms, limit)),
            (_LEDGER, (now_ms - LEDGER_KEPT_MS, limit)),
            (_COUNTS, ((now_ms - COUNTS_KEPT_MS) // 1000, limit)),
            (_NAMES, (now_ms - DELETED_NAMES_KEPT_MS, limit)),
        ]
        sql = self._server.sql
        return self._server.run(lambda link: sum(link.execute(sql(text), values).rowcount for text, values in steps))

    def upkeep(self) -> int:
        """Sweep if a sweep is due; returns how many rows were removed.

        A sweep is due every five seconds, or at once if the last one found more than it could remove. Otherwise a call
        costs nothing.
        """
        at_ms = self._clock.monotonic_ms()
        if at_ms < self._sweeps_at_ms:
            return 0
        removed = self.sweep(self._clock.now_ms())
        self._sweeps_at_ms = at_ms if removed >= SWEEP_ROWS_MAX else at_ms + SWEEP_MS
        return removed

    def server_ms(self) -> int:
        """The server's wall time in milliseconds since the epoch.

        Raises:
            TransientError, StorageError: it cannot be asked.
        """
        (answer,) = self._server.run(lambda link: link.execute(_SERVER_MS).fetchall())[0]
        return int(answer)

    def appear(self) -> None:
        """Nothing to prepare: the first calls open connections."""

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self._lent.close()
        self._server.close()


_STEPS: Final = files("onefold.engines.postgres") / "sql"
_LOCK: Final = 0x6F6E65_666F6C64  # "onefold"; this advisory lock lets one process at a time create tables
# Not to_regclass: it reads a cache that may not yet know what another process has committed during this transaction.
_HAS_VERSION: Final = """
SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = 'version'
"""


def steps() -> list[str]:
    """The scripts, in order."""
    found = [step for step in _STEPS.iterdir() if step.name.endswith(".sql")]
    return [step.read_text(encoding="utf-8") for step in sorted(found, key=lambda step: step.name)]


def migrate(server: PostgresServer) -> None:
    """Create the schema and its tables, or upgrade them to this version; do nothing if they have it already.

    Raises:
        StorageError: the role may not create them, or a newer onefold made them.
        TransientError: the server does not answer.
    """
    server.run(lambda link: _migrate(link, server))


def _migrate(link: Link, server: PostgresServer) -> None:
    schema = server.address.schema
    if version_of(link, server) == len(steps()):
        return
    with link.transaction():
        link.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        done = version_of(link, server)
        refuse_newer(done, server)
        try:
            if done == 0:
                link.execute(server.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}"))
            for step in steps()[done:]:
                link.execute(server.sql(step))
            link.execute(server.sql("DELETE FROM onefold.version"))
            link.execute(server.sql("INSERT INTO onefold.version (version) VALUES (%s)"), (len(steps()),))
        except psycopg.errors.InsufficientPrivilege as error:
            raise errors.StorageError(
                f"The role {link.info.user!r} may not create the tables of onefold: {error.diag.message_primary}.",
                meaning="Nothing was created.",
                todo=f"Run as the database's owner: CREATE SCHEMA {schema} AUTHORIZATION {link.info.user}; or open the"
                " URL once as a role that may create schemas.",
            ) from error
        except psycopg.errors.DuplicateTable as error:
            raise errors.StorageError(
                f"The schema {schema!r} has tables of another program: {error.diag.message_primary}.",
                meaning="Nothing was created.",
                todo="Choose another one with ?schema=...",
            ) from error


def version_of(link: Link, server: PostgresServer) -> int:
    """How many steps were applied to the schema; 0 if it has no tables."""
    if link.execute(_HAS_VERSION, (server.address.schema,)).fetchone() is None:
        return 0
    (version,) = link.execute(server.sql("SELECT max(version) FROM onefold.version")).fetchone() or (0,)
    return version or 0


def refuse_newer(version: int, server: PostgresServer) -> None:
    """Refuse tables of a version that this onefold does not know.

    Raises:
        StorageError: a newer onefold has made them.
    """
    if version > len(steps()):
        raise errors.StorageError(
            f"Schema {server.address.schema!r} of {server.address.shown} has version {version}; this onefold knows"
            f" versions up to {len(steps())}.",
            meaning="A newer onefold has used it. Nothing was changed.",
            todo="Upgrade onefold here, or use the version that the other processes use.",
        )


def refuse_absent(version: int, server: PostgresServer) -> None:
    """Refuse to continue without tables, or with older ones.

    Raises:
        StorageError: the URL must be opened once with `create=yes`.
    """
    if version < len(steps()):
        raise absent(server.address.shown, server.address.schema, older=version > 0)


VERSION_MIN: Final = 130000  # PostgreSQL 13; older versions are no longer maintained
_TABLES: Final = ("record", "completed", "ledger", "state", "lent")
_RIGHTS: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")

_SETTINGS: Final = """
SELECT current_setting('server_version_num')::integer, current_setting('server_version'), pg_is_in_recovery(),
    current_setting('transaction_read_only')::boolean, current_setting('server_encoding'),
    current_setting('fsync')::boolean, current_setting('full_page_writes')::boolean, current_setting('synchronous_commit'),
    has_schema_privilege(to_regnamespace(%s), 'USAGE'), current_user
"""
_ALLOWED: Final = """
SELECT table_name || ': ' || privilege FROM unnest(%s::text[]) AS t (table_name), unnest(%s::text[]) AS p (privilege)
WHERE NOT has_table_privilege(%s || '.' || table_name, privilege) ORDER BY 1
"""
_UNLOGGED: Final = """
SELECT relname::text FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relname = ANY(%s::text[])
AND relpersistence <> 'p' ORDER BY 1
"""


def inspect(server: PostgresServer) -> list[str]:
    """Refuse what cannot work, and report what weakens the promises. See `PostgresBackend.check`."""
    return server.run(lambda link: _inspect(link, server))


def _inspect(link: Link, server: PostgresServer) -> list[str]:
    schema = server.address.schema
    found = link.execute(_SETTINGS, (schema,)).fetchone()
    assert found is not None
    number, version, standby, reads_only, encoding, fsync, pages, synchronous, usable, role = found
    where = server.address.shown
    if number < VERSION_MIN:
        raise errors.StorageError(
            f"{where} is PostgreSQL {version}.",
            meaning="This onefold needs 13 or later.",
            todo="Upgrade the server.",
        )
    if standby or reads_only:
        why = (
            "It is a standby." if standby else f"default_transaction_read_only is on for role {role!r} or the database."
        )
        raise errors.StorageError(
            f"{where} is read-only.",
            meaning=f"{why} No record can be claimed there.",
            todo="Use the primary: add target_session_attrs=read-write to the URL."
            if standby
            else f"Run: ALTER ROLE {role} RESET default_transaction_read_only",
        )
    if encoding != "UTF8":
        raise errors.StorageError(
            f"{where} has the encoding {encoding}.",
            meaning="It cannot store every key that a message may have.",
            todo="Run: createdb --encoding=UTF8 --template=template0 NAME, and use that database.",
        )
    if usable is None:
        raise absent(where, schema)
    missing = ["USAGE of the schema"] if not usable else []
    if usable:
        version = version_of(link, server)
        refuse_newer(version, server)
        refuse_absent(version, server)
        missing = [text for (text,) in link.execute(_ALLOWED, (list(_TABLES), list(_RIGHTS), schema))]
    if missing:
        raise errors.StorageError(
            f"Role {role!r} lacks permissions on {where}, schema {schema!r}: {', '.join(missing)}.",
            meaning="Claims or completions would fail.",
            todo=f"Run as the owner: GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL"
            f" TABLES IN SCHEMA {schema} TO {role}.",
        )
    unlogged = [name for (name,) in link.execute(_UNLOGGED, (schema, ["record", "completed", "ledger", "state"]))]
    return _warnings(fsync, pages, synchronous, unlogged)


def _warnings(fsync: bool, pages: bool, synchronous: str, unlogged: list[Any]) -> list[str]:
    warnings = []
    if not fsync:
        warnings.append(
            "fsync is off: when the machine loses power, records are lost and the database may be corrupt. Set fsync = on."
        )
    if not pages:
        warnings.append(
            "full_page_writes is off: when the machine loses power in the middle of a page, records may be corrupt. Set"
            " full_page_writes = on."
        )
    if synchronous == "off":
        warnings.append(
            "synchronous_commit is off: a crash of the server undoes the claims and completions of its last moments"
            " (three times wal_writer_delay), and work that was done runs again. Run: ALTER ROLE ... SET synchronous_commit"
            " = on."
        )
    if unlogged:
        warnings.append(
            f"Not logged: {', '.join(unlogged)}. A crash of the server empties such tables. Run: ALTER TABLE ... SET LOGGED."
        )
    return warnings
