"""Messages sent through an outbox table in the program's own database: writing them as rows, and reading the rows back.

What can be checked without the engine is checked when the row is written, by the queues' own rules, so that the program
gets the error. What only the engine knows (`unique` keys, deduplication) is checked by the relay.
Never here: SQL, passing on (`relay.py`). Invariant: a row reads back as the message that was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from onefold import errors, redact
from onefold.contracts.entries import Entry, check_entry, left_ms
from onefold.contracts.outbox import OutboxMessage, OutboxRow
from onefold.contracts.queue import Attribute
from onefold.contracts.store import RecordKey
from onefold.engines import urls
from onefold.runtime.outgoing import Outgoing, Receipt, refused

if TYPE_CHECKING:
    from onefold.registry import Registry


_KINDS: Final = {"psycopg": "postgres", "psycopg-async": "postgres", "asyncpg": "postgres", "sqlite3": "sqlite"}


def takes(connection: object, engine_url: str) -> bool:
    """Whether a message that is sent with this connection goes to an outbox table: its database is not the engine's."""
    kind = urls.driver_of(connection)
    return kind == "psycopg" or (kind == "sqlite3" and bool(urls.part("sqlite.outbox").takes(connection, engine_url)))


def put(
    registry: Registry, outbox_url: str | None, outgoing: Sequence[Outgoing], connection: object, now_ms: int
) -> list[Receipt]:
    """Write messages into the outbox table of the connection's database, in the transaction that is open on it.

    Args:
        now_ms: the wall time.

    Raises:
        PayloadError: a queue would not take one of them. UsageError: the app names no outbox, or the connection cannot be
            used. StorageError: the table does not exist. In each case nothing was written.
    """
    messages = parcels(registry, outbox_url, outgoing, now_ms)
    _check_place(registry, outbox_url or "", connection)
    if urls.driver_of(connection) == "psycopg":
        urls.part("postgres.outbox").put(connection, registry.name, messages, outbox_url)
    else:
        urls.part("sqlite.outbox").put(connection, registry.name, messages)
    return receipts(outgoing)


async def aput(
    registry: Registry, outbox_url: str | None, outgoing: Sequence[Outgoing], connection: object, now_ms: int
) -> list[Receipt]:
    """Like `put`, on an asynchronous connection."""
    messages = parcels(registry, outbox_url, outgoing, now_ms)
    _check_place(registry, outbox_url or "", connection)
    table = "postgres.asyncpg_outbox" if urls.driver_of(connection) == "asyncpg" else "postgres.outbox"
    await urls.part(table).aput(connection, registry.name, messages, outbox_url)
    return receipts(outgoing)


def _check_place(registry: Registry, outbox_url: str, connection: object) -> None:
    """Refuse a connection to another kind of database, or to another SQLite file, than the outbox that relays read."""
    place = kind = _KINDS[urls.driver_of(connection) or ""]
    is_there = outbox_url.startswith(kind)
    if is_there and kind == "sqlite":
        is_there, place = urls.part("sqlite.outbox").is_in(connection, outbox_url)
    if not is_there:
        raise errors.UsageError(
            f"The connection is to {place}; the outbox of app {registry.name} is {redact.shown_url(outbox_url)}.",
            meaning="No worker would look into the connection's database for messages. Nothing was sent.",
            todo="Connect to the outbox's database, or give the app outbox= with this one. For an outbox in DynamoDB,"
            " put job.outbox_item(payload) into the transaction.",
        )


def action(
    registry: Registry, outbox_url: str | None, one: Outgoing, now_ms: int, token: str
) -> dict[str, dict[str, Any]]:
    """The action of DynamoDB's TransactWriteItems that sends a message. Errors as for `put`."""
    ((queue, text),) = parcels(registry, outbox_url, [one], now_ms)
    together = one.entry.group or one.record.key
    found: dict[str, dict[str, Any]] = urls.outbox_action(
        outbox_url or "", registry.name, queue, text, f"{queue}/{together}", now_ms, token
    )
    return found


def parcels(
    registry: Registry, outbox_url: str | None, outgoing: Sequence[Outgoing], now_ms: int
) -> list[tuple[str, str]]:
    """The rows of messages: queue and text of each. Errors as for `put`."""
    if outbox_url is None:
        raise errors.UsageError(
            f"App {registry.name} names no outbox: no worker would look into this database for messages.",
            meaning="Nothing was sent.",
            todo="Say where it is: onefold.App(..., outbox='postgresql://host/shop'), or ONEFOLD_OUTBOX.",
        )
    settings = {one.name: one for one in registry.queue_settings()}
    for one in outgoing:
        wrong = check_entry(one.entry, settings[one.queue])
        if wrong is not None:
            raise refused(one, wrong)
    return [(one.queue, msgspec.json.encode(_parcel(one, now_ms)).decode()) for one in outgoing]


def receipts(outgoing: Sequence[Outgoing]) -> list[Receipt]:
    """The receipts for messages that wait in a table, with what the sender knows of them."""
    return [Receipt(job=one.record.job, key=one.record.key, message_id=None) for one in outgoing]


def _parcel(one: Outgoing, now_ms: int) -> OutboxMessage:
    entry = one.entry
    return OutboxMessage(
        scope=one.record.scope,
        job=one.record.job,
        key=one.record.key,
        fingerprint=one.fingerprint,
        body=entry.body,
        attributes={name: str(attribute.value) for name, attribute in entry.attributes.items()},
        group=entry.group,
        dedup_id=entry.dedup_id,
        run_at_ms=entry.run_at_ms if entry.wait_ms is None else now_ms + entry.wait_ms,
        wait_ms=entry.wait_ms,
        unique=one.unique,
    )


def read(row: OutboxRow, now_ms: int) -> Outgoing:
    """The message of a row; `now_ms`: the wall time.

    Raises:
        PayloadError: it cannot be read; another program, or a newer onefold, has written it.
    """
    try:
        parcel = msgspec.json.decode(row.message, type=OutboxMessage)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise errors.PayloadError(
            f"Row {row.id.number} of onefold_outbox cannot be read: {error}",
            meaning="Another program, or a newer onefold, has written it.",
            todo="Delete it, or pass it on with the version that wrote it.",
        ) from error
    return Outgoing(
        record=RecordKey(parcel.scope, parcel.job, parcel.key),
        fingerprint=parcel.fingerprint,
        entry=Entry(
            body=parcel.body,
            attributes={name: Attribute(value) for name, value in parcel.attributes.items()},
            group=parcel.group,
            dedup_id=parcel.dedup_id,
            run_at_ms=parcel.run_at_ms if parcel.wait_ms is None else None,
            wait_ms=left_ms(parcel.run_at_ms, parcel.wait_ms, now_ms),
            wait_until_ms=None if parcel.wait_ms is None else parcel.run_at_ms,
            key=parcel.key,
        ),
        queue=row.queue,
        unique=parcel.unique,
    )
