"""The tables in one schema: made and migrated, and checked before work begins.

`sql/NNNN_*.sql` are the steps, written for the schema `onefold`, applied in order, once, in one transaction, by one process
at a time; the table `version` says how many were applied. A step that has been released never changes.

`inspect` checks whether the server can keep the promises of a record store. It refuses what would fail, or lose the meaning
of keys, later; it warns of settings by which a crash of the machine may undo what was acknowledged, because whoever chose
them may know why.

Never here: records, changes of settings. Invariant: a schema is at a version as a whole or not at all; an inspection takes
no lock.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

import psycopg

from onefold import errors
from onefold.engines.postgres.connection import Link, PostgresServer, absent

_STEPS: Final = files("onefold.engines.postgres") / "sql"
_LOCK: Final = 0x6F6E65_666F6C64  # "onefold"; with it, one process at a time makes tables
# Not to_regclass: it asks a cache that may not yet know what another process has committed in the middle of a transaction.
_HAS_VERSION: Final = """
SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = 'version'
"""


def steps() -> list[str]:
    """The scripts, in order."""
    found = [step for step in _STEPS.iterdir() if step.name.endswith(".sql")]
    return [step.read_text(encoding="utf-8") for step in sorted(found, key=lambda step: step.name)]


def migrate(server: PostgresServer) -> None:
    """Make the schema and its tables, or bring them to this version; does nothing when they are there.

    Raises:
        StorageError: the role may not create them, or they are those of a newer onefold.
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
                todo="Choose another one by ?schema=...",
            ) from error


def version_of(link: Link, server: PostgresServer) -> int:
    """How many steps were applied; 0 when there are no tables."""
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
    """Refuse to go on without tables, or with older ones.

    Raises:
        StorageError: `create=yes` has to be used once.
    """
    if version < len(steps()):
        raise absent(server.address.shown, server.address.schema, older=version > 0)


VERSION_MIN: Final = 130000  # PostgreSQL 13; nothing older is maintained
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
            f"{where} only reads.",
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
            meaning="Some verbs would fail.",
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
            "synchronous_commit is off: a crash of the server takes back the claims and completions of its last moments"
            " (three times wal_writer_delay), and work that was done runs again. Run: ALTER ROLE ... SET synchronous_commit"
            " = on."
        )
    if unlogged:
        warnings.append(
            f"Not logged: {', '.join(unlogged)}. A crash of the server empties such tables. Run: ALTER TABLE ... SET LOGGED."
        )
    return warnings
