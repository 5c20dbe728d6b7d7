"""Writing to the outbox tables in a transaction of an asyncpg connection; relays read them through psycopg (`outbox.py`).

Never here: SQL of its own, ending the transaction. Invariant: a connection without an open transaction writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import asyncpg
import psycopg

from onefold import errors
from onefold.engines.postgres import outbox
from onefold.interrupts import let_through

_VALUES: Final = ("$1", "$2", "$3", "$4")
_PUT: Final = outbox.PUT.replace("%s", "{}").format(*_VALUES)


async def aput(connection: Any, app: str, messages: Sequence[tuple[str, str]], url: str) -> None:
    """Like `outbox.aput`, on a connection of asyncpg or of its pool."""
    place = _check(connection)
    try:
        if not outbox.is_known(place, url):
            name = outbox.see(place, await connection.fetchrow(outbox.IS_THERE))
            if not outbox.is_named(url, name):
                await asyncio.to_thread(outbox.check_token, url, name, await connection.fetchrow(outbox.IDENTITY))
            outbox.remember(place, url)
        found = await connection.fetchrow(_PUT, *outbox.statement_values(app, messages))
    except asyncpg.InterfaceError as error:
        raise _unusable(error) from error
    except asyncpg.PostgresError as error:
        raise outbox.failed(_of_psycopg(error), place) from error
    except OSError as error:
        let_through(error)
        raise outbox.failed(error, place) from error
    outbox.see_written(found, len(messages), place)


def _check(connection: Any) -> str:
    """The name under which errors mention the connection's database.

    Raises:
        UsageError: the connection is closed, or no transaction is open on it.
    """
    try:
        if connection.is_closed():
            raise outbox.closed()
        if not connection.is_in_transaction():
            raise outbox.in_no_transaction("async with connection.transaction():")
        return f"the database of the connection (server process {connection.get_server_pid()})"
    except asyncpg.InterfaceError as error:  # it is back in its pool
        raise _unusable(error) from error


def _unusable(error: asyncpg.InterfaceError) -> errors.UsageError:
    return errors.UsageError(
        f"The connection cannot be used now: {error}",
        meaning="Nothing was sent.",
        todo="Pass an open connection that no other task is using.",
    )


def _of_psycopg(error: asyncpg.PostgresError) -> psycopg.Error:
    """The same server error as a psycopg error."""
    try:
        kind = psycopg.errors.lookup(error.sqlstate or "")
    except KeyError:
        kind = psycopg.DatabaseError
    return kind(str(error))
