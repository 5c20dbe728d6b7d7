"""The tables and their versions: SQL files, applied in order, once, in one transaction, by one process at a time.

`sql/NNNN_*.sql` are the steps, written for the schema `onefold`; the table `version` says how many were applied. A step
that has been released never changes. Invariant: a schema is at a version as a whole or not at all.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

import psycopg

from onefold import errors
from onefold.backends.postgres.connection import Link, Server
from onefold.backends.postgres.faults import absent

_STEPS: Final = files("onefold.backends.postgres") / "sql"
_LOCK: Final = 0x6F6E65_666F6C64  # "onefold"; with it, one process at a time makes tables
# Not to_regclass: it asks a cache that may not yet know what another process has committed in the middle of a transaction.
_HAS_VERSION: Final = """
SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = 'version'
"""


def steps() -> list[str]:
    """The scripts, in order."""
    found = [step for step in _STEPS.iterdir() if step.name.endswith(".sql")]
    return [step.read_text(encoding="utf-8") for step in sorted(found, key=lambda step: step.name)]


def migrate(server: Server) -> None:
    """Make the schema and its tables, or bring them to this version; does nothing when they are there.

    Raises:
        StorageError: the role may not create them, or they are those of a newer onefold.
        TransientError: the server does not answer.
    """
    server.run(lambda link: _migrate(link, server))


def _migrate(link: Link, server: Server) -> None:
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


def version_of(link: Link, server: Server) -> int:
    """How many steps were applied; 0 when there are no tables."""
    if link.execute(_HAS_VERSION, (server.address.schema,)).fetchone() is None:
        return 0
    (version,) = link.execute(server.sql("SELECT max(version) FROM onefold.version")).fetchone() or (0,)
    return version or 0


def refuse_newer(version: int, server: Server) -> None:
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


def refuse_absent(version: int, server: Server) -> None:
    """Refuse to go on without tables, or with older ones.

    Raises:
        StorageError: `create=yes` has to be used once.
    """
    if version < len(steps()):
        raise absent(server.address.shown, server.address.schema, older=version > 0)
