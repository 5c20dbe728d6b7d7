"""The outbox tables in the program's own PostgreSQL database: writing to them in its transaction, reading for a relay.

The tables are where the connection's search_path finds them; only `SQL`, which a person runs, makes them. A write is
one statement, which also checks their version and notifies relays; PostgreSQL delivers the notification at the commit.
Never here: queues. Invariant: only the program ends its transaction. PostgreSQL aborts it if a statement fails, so
whatever can be checked before a statement is checked before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from onefold import errors
from onefold.contracts.outbox import VERSION, Backlog, OutboxRow, RowId
from onefold.engines.postgres.connection import Link, Pool, PostgresAddress, translate
from onefold.interrupts import let_through

SQL: Final = """\
CREATE TABLE IF NOT EXISTS onefold_outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    token text NOT NULL DEFAULT replace(gen_random_uuid()::text, '-', ''),
    app text NOT NULL,
    queue text NOT NULL,
    message text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    refused text
);
CREATE INDEX IF NOT EXISTS onefold_outbox_waiting ON onefold_outbox (app, id) WHERE refused IS NULL;
CREATE TABLE IF NOT EXISTS onefold_outbox_version (
    one integer PRIMARY KEY CHECK (one = 1),
    version integer NOT NULL,
    token text NOT NULL
);
INSERT INTO onefold_outbox_version VALUES (1, 1, replace(gen_random_uuid()::text, '-', '')) ON CONFLICT DO NOTHING;
"""
IS_THERE: Final = """
SELECT to_regclass('onefold_outbox') IS NOT NULL AND to_regclass('onefold_outbox_version') IS NOT NULL, current_database()
"""
IDENTITY: Final = "SELECT token FROM onefold_outbox_version"
PUT: Final = """
WITH put AS (
    INSERT INTO onefold_outbox (app, queue, message)
    SELECT %s, one.queue, one.message FROM onefold_outbox_version v
    CROSS JOIN unnest(%s::text[], %s::text[]) WITH ORDINALITY AS one (queue, message, place)
    WHERE v.version = %s ORDER BY one.place
    RETURNING id
)
SELECT (SELECT count(*) FROM put), pg_notify('onefold_outbox', '')
"""
_known: dict[str, str] = {}  # databases whose tables this process has seen, and the outbox that these were found to be
_KNOWN_MAX: Final = 1_000


# -- writing ---------------------------------------------------------------------------------------------------------


def put(connection: Link, app: str, messages: Sequence[tuple[str, str]], url: str) -> None:
    """Write messages, in order, inside the transaction that is open on the connection or that it begins implicitly.

    Args:
        messages: for each, its queue and the `OutboxMessage` as JSON.
        url: the app's outbox, which its relays read.

    Raises:
        UsageError: the connection is closed, in autocommit mode without a transaction, or to a database with another
            outbox; or its transaction has failed.
        StorageError: the tables do not exist or are another version's.
        TransientError, StorageBusy: the server could not write them now.
    """
    check(connection)
    server = connection.info.dsn
    try:
        with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
            if not is_known(server, url):
                name = see(server, cursor.execute(IS_THERE).fetchone())
                if not is_named(url, name):
                    check_token(url, name, cursor.execute(IDENTITY).fetchone())
                remember(server, url)
            found = cursor.execute(PUT, statement_values(app, messages)).fetchone()
    except (psycopg.Error, OSError) as error:
        let_through(error)
        raise failed(error, server) from error
    see_written(found, len(messages), server)


async def aput(
    connection: psycopg.AsyncConnection[Any], app: str, messages: Sequence[tuple[str, str]], url: str
) -> None:
    """Like `put`, on an AsyncConnection."""
    check(connection)
    server = connection.info.dsn
    try:
        async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
            if not is_known(server, url):
                name = see(server, await (await cursor.execute(IS_THERE)).fetchone())
                if not is_named(url, name):
                    token = await (await cursor.execute(IDENTITY)).fetchone()
                    await asyncio.to_thread(check_token, url, name, token)
                remember(server, url)
            found = await (await cursor.execute(PUT, statement_values(app, messages))).fetchone()
    except (psycopg.Error, OSError) as error:
        let_through(error)
        raise failed(error, server) from error
    see_written(found, len(messages), server)


def check(connection: Link | psycopg.AsyncConnection[Any]) -> None:
    """Refuse a connection whose transaction cannot include a message.

    Raises:
        UsageError: it is closed, in autocommit mode without a transaction, or its transaction has failed.
    """
    status = connection.info.transaction_status
    if connection.closed or status == TransactionStatus.UNKNOWN:
        raise closed()
    if status == TransactionStatus.INERROR:
        raise aborted()
    if status == TransactionStatus.IDLE and connection.autocommit:
        if isinstance(connection, psycopg.AsyncConnection):
            raise in_no_transaction("async with connection.transaction():")
        raise in_no_transaction("with connection.transaction():", "transaction.atomic()")


def closed() -> errors.UsageError:
    """The connection is."""
    return errors.UsageError(
        "The connection is closed.",
        meaning="Nothing was sent.",
        todo="Pass an open connection.",
    )


def aborted() -> errors.UsageError:
    """The error when an earlier statement of the transaction has failed, so that PostgreSQL accepts no others."""
    return errors.UsageError(
        "The transaction on this connection has failed and can only be rolled back.",
        meaning="Nothing was sent: it would have been rolled back too.",
        todo="Roll back, or leave the savepoint that failed, then send again.",
    )


def in_no_transaction(how: str, in_django: str | None = None) -> errors.UsageError:
    """The error when no transaction is open, so that each statement would be committed alone.

    Args:
        how: how to begin a transaction with this driver. in_django: how to do it in Django, whose connections these may be.
    """
    return errors.UsageError(
        "The connection is in autocommit mode, and no transaction is open on it.",
        meaning="The message would be sent alone, before your rows or without them. Nothing was sent.",
        todo=f"Send inside `{how}`" + ("." if in_django is None else f" (in Django: `{in_django}`)."),
    )


def statement_values(app: str, messages: Sequence[tuple[str, str]]) -> tuple[str, list[str], list[str], int]:
    """The parameters of the statement that writes messages."""
    return app, [queue for queue, _ in messages], [message for _, message in messages], VERSION


def is_known(server: str, url: str) -> bool:
    """Whether this process has already seen that the tables in that database are the outbox of that URL."""
    return _known.get(server) == url


def remember(server: str, url: str) -> None:
    """Remember that the tables in that database are the outbox of that URL."""
    if len(_known) >= _KNOWN_MAX:
        _known.clear()
    _known[server] = url


def see(server: str, answer: tuple[Any, ...] | None) -> str:
    """The name of the connection's database, from the answer to `IS_THERE`.

    Raises:
        StorageError: the tables do not exist.
    """
    if answer is None or not answer[0]:
        raise missing(server)
    return str(answer[1])


def is_named(url: str, name: str) -> bool:
    """Whether the app's outbox is in a database of that name."""
    return PostgresAddress(url).database == name


def check_token(url: str, name: str, found: tuple[Any, ...] | None) -> None:
    """Refuse a database of another name than the outbox's if its tables are other tables; poolers rename databases.

    Args:
        url: the app's outbox. name: the name of the connection's database. found: the token of the tables there.

    Raises:
        UsageError: the outbox has other tables. Where it cannot be asked from here, nothing is refused.
    """
    table = PostgresOutbox(url)
    try:
        same = found is None or table.token == found[0]
    except errors.OnefoldError:
        return
    finally:
        table.close()
    if not same:
        raise errors.UsageError(
            f"The connection is to database {name!r}; the outbox of the app is {PostgresAddress(url).shown}.",
            meaning="No worker would look into the connection's database for messages. Nothing was sent.",
            todo="Connect to the outbox's database, or give the app outbox= with this one.",
        )


def see_written(answer: tuple[Any, ...] | None, count: int, server: str) -> None:
    """Refuse tables of another version, to which nothing was written.

    Raises:
        StorageError: the tables are of another version.
    """
    if answer is None or answer[0] != count:
        raise other_version(server)


def other_version(server: str) -> errors.StorageError:
    """The error when the tables are another version's."""
    return errors.StorageError(
        f"The outbox tables in {server} do not have version {VERSION}, which this onefold uses.",
        meaning="Nothing was sent.",
        todo="Use the version of onefold that made them, or run: onefold outbox create URL",
    )


def missing(server: str) -> errors.StorageError:
    """The error when the tables do not exist."""
    return errors.StorageError(
        f"No table onefold_outbox is on the search_path in {server}.",
        meaning="Nothing was sent.",
        todo="Create them once, as the tables' owner: onefold outbox create URL   (--print shows the SQL, for a migration)",
    )


def failed(error: psycopg.Error | OSError, server: str, role: str = "") -> errors.OnefoldError:
    """Our error for an error of a statement on the tables; `role`: the login's role, if it is known."""
    state = getattr(error, "sqlstate", None)
    if state == "42P01":
        _known.pop(server, None)
        return missing(server)
    if state == "25P02":
        return aborted()
    if state == "42501":
        return errors.StorageError(
            f"The role {f'{role!r} ' if role else ''}may not use the outbox tables in {server}: {str(error).strip()}",
            meaning="Nothing was sent; PostgreSQL has aborted the transaction.",
            todo="GRANT SELECT, INSERT ON onefold_outbox, onefold_outbox_version TO it; a relay needs UPDATE, DELETE too.",
        )
    return translate(error, server, "public", role)


# -- for a relay -------------------------------------------------------------------------------------------------------


class PostgresOutbox:
    """The OutboxTable contract on one database. A connection that is lost is opened again by the next call.

    Args:
        url: a URL of the same form as for a record store.
    """

    def __init__(self, url: str) -> None:
        self._address = PostgresAddress(url)
        self._pool: Pool[Link] = Pool(self._address, psycopg.Connection)
        self._link: Link | None = None
        self._token: str | None = None

    def create(self) -> None:
        """Create the tables that do not exist."""
        self._ask(SQL)
        self._token = None

    @property
    def token(self) -> str:
        """See `OutboxTable.token`."""
        if self._token is None:
            if not self._ask(IS_THERE)[0][0]:
                raise missing(self._address.shown)
            found = self._ask("SELECT version, token FROM onefold_outbox_version")
            if not found or found[0][0] != VERSION:
                raise other_version(self._address.shown)
            self._token = found[0][1]
        return self._token

    def waiting(self, app: str, queues: Collection[str], limit: int) -> list[OutboxRow]:
        """See `OutboxTable.waiting`."""
        rows = self._ask(
            "SELECT id, token, queue, message FROM onefold_outbox "
            "WHERE app = %s AND refused IS NULL AND queue = ANY(%s) ORDER BY id LIMIT %s",
            (app, list(queues), limit),
        )
        return [OutboxRow(RowId(number, token), queue, message) for number, token, queue, message in rows]

    def remove(self, ids: Sequence[RowId]) -> None:
        """See `OutboxTable.remove`."""
        self._ask(
            "DELETE FROM onefold_outbox WHERE id = ANY(%s) AND token = ANY(%s)",
            ([one.number for one in ids], [one.token for one in ids]),
        )

    def refuse(self, row: RowId, why: str) -> None:
        """See `OutboxTable.refuse`."""
        statement = "UPDATE onefold_outbox SET refused = %s WHERE id = %s AND token = %s"
        self._ask(statement, (why.replace("\0", " "), row.number, row.token))

    def backlog(self, app: str) -> Backlog:
        """See `OutboxTable.backlog`."""
        ((waiting, oldest, refused),) = self._ask(
            "SELECT count(*) FILTER (WHERE refused IS NULL), "
            "(extract(epoch FROM clock_timestamp() - min(created_at) FILTER (WHERE refused IS NULL)) * 1000)::bigint, "
            "count(refused) FROM onefold_outbox WHERE app = %s",
            (app,),
        )
        return Backlog(waiting=waiting, oldest_age_ms=None if oldest is None else max(oldest, 0), refused=refused)

    def wait(self, rest: Callable[[int], bool], at_most_ms: int) -> None:
        """See `OutboxTable.wait`."""
        if self._link is None:
            rest(at_most_ms)
            return
        try:
            for _ in self._link.notifies(timeout=at_most_ms / 1000, stop_after=1):
                pass
        except (psycopg.Error, OSError) as error:
            let_through(error)
            self.close()

    def close(self) -> None:
        """See `OutboxTable.close`."""
        link, self._link = self._link, None
        if link is not None:
            self._pool.give(link)
            link.close()

    def _ask(self, statement: str, values: tuple[object, ...] | None = None) -> list[tuple[Any, ...]]:
        try:
            if self._link is None:
                self._link = self._pool.take()
                self._link.execute("LISTEN onefold_outbox")
            cursor = self._link.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description is not None else []
        except (psycopg.Error, OSError) as error:
            let_through(error)
            self.close()
            raise failed(error, self._address.shown, self._address.role) from error
