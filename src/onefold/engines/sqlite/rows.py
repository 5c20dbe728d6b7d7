"""How a message is stored in the file: ids, receipts, the rare parts, and the few statements that every verb shares.

All functions take a connection and run inside the transaction that is open on it. An id is drawn from one counter of
the file and never used again; a message id is that number behind the file's token, a receipt is id, delivery number and,
on FIFO queues, the group. Never here: what a verb means, order, time.
Invariant: a message has its row in `message` and exactly one in `waiting` or `received`.
"""

from __future__ import annotations

import sqlite3
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from onefold import errors
from onefold.contracts.entries import Entry
from onefold.contracts.queue import Attribute, Reason, reason_of
from onefold.contracts.settings import QueueSettings


class QueueRow(Struct, frozen=True, kw_only=True):
    """One queue as it is in the file; valid inside the transaction that looked it up.

    Args:
        id: its number in the file.
        settings: as they were created or last changed.
        token: how message ids of this file start.
        dead_letter, held: the queues it names, without their own.
        flag_of: as `Engine.stop_groups` has it.
    """

    id: int
    settings: QueueSettings
    token: str
    dead_letter: QueueRow | None = None
    held: QueueRow | None = None
    flag_of: Callable[[str, str, str | None], str | None] = lambda *_: None

    def expired_at_ms(self, now_ms: int) -> int:
        """Messages sent at this instant or before have expired."""
        return now_ms - self.settings.retention_ms


class Meta(Struct, omit_defaults=True, gc=False):
    """What few messages have.

    Args:
        attributes: name -> (type, text), the bytes of a Binary in base64.
        group: the tenant on a standard queue; on FIFO the group of a scheduled message.
        trace: the trace header.
        source: the queue a dead letter came from.
        reason: why it was buried.
        foreign: a stranger sent it, so that what its attributes claim does not count.
        accepted_at_ms: when a scheduled message was accepted, whose `sent_at_ms` is its own time; 0 for all others.
    """

    attributes: dict[str, tuple[str, str]] = {}
    group: str | None = None
    trace: str | None = None
    source: str | None = None
    reason: Reason | None = None
    foreign: bool = False
    accepted_at_ms: int = 0


# A message on its way in: queue, id, sent_at_ms, visible_at_ms, grp, position, dedup_id, key, meta, body.
NewMessage = tuple[int, int, int, int, int | None, int | None, str | None, str | None, str | None, str]
Receipt = tuple[int, int, int | None]  # message, delivery, group


class Found(NamedTuple):
    """A message that can be received now.

    Args:
        id, sent_at_ms, key, meta, body, dedup_id, position: as in `message`.
        visible_at_ms: since when it can be received.
        receives, delivery, first_received_at_ms, received_at_ms: as in `received`; None when it never was.
        grp, group: FIFO: number and name of its group.
    """

    id: int
    sent_at_ms: int
    key: str | None
    meta: str | None
    body: str
    visible_at_ms: int
    receives: int | None
    delivery: int | None
    first_received_at_ms: int | None
    received_at_ms: int | None
    grp: int | None = None
    group: str | None = None
    position: int | None = None
    dedup_id: str | None = None


_META_DECODER: Final = msgspec.json.Decoder(Meta)
_META_ENCODER: Final = msgspec.json.Encoder()


def read_meta(text: str | None) -> Meta:
    """The rare parts of a message."""
    if text is None:
        return Meta()
    try:
        return _META_DECODER.decode(text)
    except msgspec.ValidationError:  # of a reason; whatever else cannot be read is an error
        parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        reason = reason_of(bytes(parts.pop("reason", b"null")))
        meta = _META_DECODER.decode(_META_ENCODER.encode(parts))
        meta.reason = reason
        return meta


def meta_text(meta: Meta) -> str | None:
    """The rare parts as they are stored; None when there are none."""
    text = _META_ENCODER.encode(meta).decode()
    return None if text == "{}" else text


def entry_meta(entry: Entry, group: str | None, accepted_at_ms: int = 0) -> str | None:
    """What is stored of an entry beside its columns."""
    if not entry.attributes and group is None and entry.trace is None and not accepted_at_ms:
        return None
    meta = Meta(
        attributes=packed(entry.attributes),
        group=group,
        trace=entry.trace,
        foreign=not entry.trusted and bool(entry.attributes),
        accepted_at_ms=accepted_at_ms,
    )
    return meta_text(meta)


def timed(row: QueueRow, number: int, entry: Entry, now_ms: int) -> NewMessage:
    """A message of a standard queue whose entry may have times of its own."""
    sent_at_ms = now_ms
    if entry.run_at_ms is not None and entry.run_at_ms > now_ms:
        sent_at_ms = entry.run_at_ms
    visible_at_ms = sent_at_ms + (row.settings.delay_ms if entry.delay_ms is None else entry.delay_ms)
    return (
        row.id, number, sent_at_ms, visible_at_ms, None, None, None, entry.key,
        entry_meta(entry, entry.group, now_ms if sent_at_ms > now_ms else 0), entry.body,
    )  # fmt: skip


def packed(attributes: Mapping[str, Attribute]) -> dict[str, tuple[str, str]]:
    """User attributes in the form JSON can hold."""
    return {
        name: (
            attribute.type,
            attribute.value if isinstance(attribute.value, str) else b64encode(attribute.value).decode(),
        )
        for name, attribute in attributes.items()
    }


def unpacked(attributes: Mapping[str, tuple[str, str]]) -> dict[str, Attribute]:
    """User attributes as they were sent."""
    if not attributes:
        return {}
    return {
        name: Attribute(b64decode(text) if kind.startswith("Binary") else text, kind)
        for name, (kind, text) in attributes.items()
    }


# -- ids and receipts --------------------------------------------------------------------------------------


def draw_ids(connection: sqlite3.Connection, count: int) -> int:
    """Reserve `count` consecutive ids of the file; the first of them. Two statements take a third of one with RETURNING."""
    last: int = connection.execute("SELECT last_id FROM onefold_file WHERE one = 1").fetchone()[0]
    connection.execute("UPDATE onefold_file SET last_id = ? WHERE one = 1", (last + count,))
    return last + 1


def message_number(token: str, message_id: str) -> int | None:
    """The row of a message id; None for an id that this file never gave out."""
    start, _, number = message_id.rpartition("-")
    return int(number) if start == token and number.isascii() and number.isdigit() and len(number) < 19 else None


def receipt_text(message: int, delivery: int, group: int | None) -> str:
    """The receipt of one receive."""
    return f"{message}:{delivery}" if group is None else f"{message}:{delivery}:{group}"


def read_receipts(receipts: Iterable[str], fifo: bool) -> list[Receipt]:
    """Take receipts apart.

    Raises:
        UsageError: one of them was not made by a queue of this type (SQS: ReceiptHandleIsInvalid).
    """
    parts: list[Receipt] = []
    for receipt in receipts:
        try:
            if fifo:
                message, delivery, group = receipt.split(":")
                parts.append((int(message), int(delivery), int(group)))
            else:
                message, delivery = receipt.split(":")
                parts.append((int(message), int(delivery), None))
        except (ValueError, AttributeError) as error:
            raise errors.UsageError(
                f'The input receipt handle "{receipt}" is not a valid receipt handle.',
                meaning="Nothing was changed.",
                todo="Pass the receipt of a delivery as it came, to the queue that it came from.",
            ) from error
    return parts


def receipt_numbers(receipts: Iterable[str]) -> list[int]:
    """The messages' rows that receipts of queues of either type name.

    Raises:
        UsageError: one of them was not made by a queue.
    """
    return [read_receipts([receipt], receipt.count(":") == 2)[0][0] for receipt in receipts]


def sequence_text(position: int | None) -> str | None:
    """A FIFO position as a sequence number: 20 digits, so that order as text is order as number."""
    return None if position is None else f"{position:020d}"


_INSERT_MESSAGE: Final = (
    "INSERT INTO onefold_message (queue, id, sent_at_ms, visible_at_ms, grp, position, dedup_id, key, meta, body) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)

_ROWS_MAX: Final = 50  # of one INSERT; each number of rows is a statement of its own, which stays prepared

# -- rows --------------------------------------------------------------------------------------------------


def insert_alike(
    connection: sqlite3.Connection, at: tuple[int, int, int, int], rest: Sequence[tuple[str | None, str | None, str]]
) -> None:
    """As `insert`, for messages of a standard queue that differ in little: a third of the time for ten of them.

    Args:
        at: queue, id of the first (the others have the next ones), sent_at_ms, visible_at_ms.
        rest: key, meta and body of each.
    """
    queue, first, sent_at_ms, visible_at_ms = at
    is_plain = all(key is None and meta is None for key, meta, _ in rest)
    for start in range(0, len(rest), _ROWS_MAX):
        messages: list[int | str | None] = []
        waiting: list[int] = []
        for place in range(start, min(start + _ROWS_MAX, len(rest))):
            shared = (queue, first + place, sent_at_ms, visible_at_ms)
            waiting += shared
            messages += shared
            messages += rest[place][2:] if is_plain else rest[place]
        message, wait = _alike(len(waiting) // 4, is_plain)
        connection.execute(message, messages)
        connection.execute(wait, waiting)


@lru_cache(2 * _ROWS_MAX)
def _alike(count: int, is_plain: bool) -> tuple[str, str]:
    """Statements for so many rows: one statement is one call of SQLite, which costs more than binding its values."""
    own = "body" if is_plain else "key, meta, body"
    values = "?, ?, ?, ?, ?" if is_plain else "?, ?, ?, ?, ?, ?, ?"
    messages, waiting = ", ".join([f"({values})"] * count), ", ".join(["(?, ?, ?, ?)"] * count)
    return (
        f"INSERT INTO onefold_message (queue, id, sent_at_ms, visible_at_ms, {own}) VALUES {messages}",
        f"INSERT INTO onefold_waiting (queue, id, sent_at_ms, visible_at_ms) VALUES {waiting}",
    )


def insert(connection: sqlite3.Connection, messages: Sequence[NewMessage]) -> None:
    """Put messages into their queues, to be received when they become visible."""
    connection.executemany(_INSERT_MESSAGE, messages)
    connection.executemany(
        "INSERT INTO onefold_waiting (queue, id, sent_at_ms, visible_at_ms) VALUES (?, ?, ?, ?)",
        [message[:4] for message in messages],
    )


def erase(connection: sqlite3.Connection, messages: Iterable[int]) -> None:
    """Delete messages wherever they are. Their groups are the caller's to bring up to date."""
    ids = [(message,) for message in messages]
    connection.executemany("DELETE FROM onefold_received WHERE id = ?", ids)
    connection.executemany(
        "DELETE FROM onefold_waiting WHERE (queue, visible_at_ms, id) = "
        "(SELECT queue, visible_at_ms, id FROM onefold_message WHERE id = ?)",
        ids,
    )
    connection.executemany(
        "DELETE FROM onefold_scheduled WHERE (queue, due_at_ms, id) = "
        "(SELECT queue, sent_at_ms, id FROM onefold_message WHERE id = ?)",
        ids,
    )
    connection.executemany("DELETE FROM onefold_message WHERE id = ?", ids)
