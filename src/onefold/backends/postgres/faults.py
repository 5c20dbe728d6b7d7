"""PostgreSQL's errors in our words: by SQLSTATE, never by the text of a message.

    may pass      connection lost or refused, server starting or stopping, locks, deadlocks, timeouts, full disk
    will not      no such schema or table, no permission, a server that only reads, a schema of another version

Never here: what is done about them. Invariant: no message holds a password or a value of a statement's parameters.
"""

from __future__ import annotations

from typing import Final

import psycopg

from onefold import errors

# https://www.postgresql.org/docs/current/errcodes-appendix.html
REPEATABLE: Final = frozenset({"40001", "40P01"})  # serialization failure, deadlock: nothing was applied, try again
_BUSY: Final = frozenset({"55P03", "57014"})  # lock not available, statement timeout
_FULL: Final = "53"  # insufficient resources: disk full, out of memory, too many connections
# The server shuts down or starts, or ends this session (the last two: idle, or in a transaction, for too long).
_GONE: Final = frozenset(
    {"08000", "08001", "08003", "08004", "08006", "57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25P04"}
)
_ABSENT: Final = frozenset({"3F000", "42P01", "42703", "42883"})  # schema, table, column, function


def is_lost(error: psycopg.Error) -> bool:
    """Whether the connection is gone, so that nobody knows what became of the last statement."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return error.sqlstate in _GONE


def translate(error: psycopg.Error, server: str, schema: str) -> errors.OnefoldError:
    """The same error in our classes.

    Args:
        error: as psycopg raised it.
        server: the database as people may see it, without a password.
        schema: where the tables are.
    """
    state = error.sqlstate
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
            meaning="Nothing of this statement was applied.",
            todo="Look into pg_stat_activity for a transaction that stays open and holds locks.",
        )
    if state is not None and state.startswith(_FULL):
        return errors.StorageBusy(
            f"{server} has run out of something: {said}",
            meaning="Nothing of this statement was applied.",
            todo="Look for a full disk, or for max_connections.",
        )
    if state == "25006":
        return errors.StorageError(
            f"{server} only reads: {said}",
            meaning="It is a standby, or read-only transactions are the default of this role or database.",
            todo="Use the primary: add target_session_attrs=read-write to the URL, or ALTER ROLE ... RESET"
            " default_transaction_read_only.",
        )
    if state == "42501":
        return errors.StorageError(
            f"{server} refuses: {said}",
            meaning="The role lacks a permission. Nothing was changed.",
            todo=f"Run as the owner: GRANT USAGE ON SCHEMA {schema} TO role; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL"
            f" TABLES IN SCHEMA {schema} TO role.",
        )
    if state in _ABSENT:
        return absent(server, schema, f"The server says: {said}")
    return errors.StorageError(
        f"{server} refused a statement ({state}): {said}",
        meaning="Nothing of it was applied.",
        todo="Report it with the server's version and log.",
    )


_LINES_MAX: Final = 6  # one for each address that was tried, and what libpq asks


def unreachable(error: psycopg.Error, server: str) -> errors.TransientError:
    """No connection could be opened. libpq gives no SQLSTATE then: a wrong password looks like a server that is off."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    said = " ".join(" ".join(line.split()) for line in lines[:_LINES_MAX])
    return errors.TransientError(
        f"No connection to {server}: {said}",
        meaning="Nothing was sent.",
        todo="Check that the server is running and accepts this login: host, port, database, role and password in the URL,"
        " pg_hba.conf, max_connections.",
    )


def absent(server: str, schema: str, why: str = "", *, older: bool = False) -> errors.StorageError:
    """The tables are not there, or not those of this version.

    Args:
        server: its URL without a login. schema: where they should be. why: how that is known.
        older: they are there, of an older version.
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
