"""Whether a server can keep the promises of a record store: asked once, before work begins.

Refused: what would fail or lose the meaning of keys later. Warned of: settings by which a crash of the machine may take
back what was answered; who chose them may know why. Never here: changes of settings. Invariant: one round trip, no lock.
"""

from __future__ import annotations

from typing import Any, Final

from onefold import errors
from onefold.backends.postgres import migrations
from onefold.backends.postgres.connection import Link, Server
from onefold.backends.postgres.faults import absent

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


def inspect(server: Server) -> list[str]:
    """Refuse what cannot work, and tell what weakens the promise. See `PostgresBooks.check`."""
    return server.run(lambda link: _inspect(link, server))


def _inspect(link: Link, server: Server) -> list[str]:
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
        version = migrations.version_of(link, server)
        migrations.refuse_newer(version, server)
        migrations.refuse_absent(version, server)
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
