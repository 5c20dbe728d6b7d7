"""Reading messages without receiving them, and an operator's changes to single messages.

Reading changes no count and hides nothing. An edit is checked by the rules of the message's queue.
Never here: anything a worker does per message. Invariant: a message that is in flight is not changed.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from onefold import errors
from onefold.contracts.admin import Edit, Peeked
from onefold.contracts.entries import Entry, check_entry
from onefold.engines.sqlite.fifo import body_digest
from onefold.engines.sqlite.rows import (
    Catalogue,
    QueueRow,
    erase,
    message_number,
    meta_text,
    packed,
    read_meta,
    refresh_groups_in,
    sequence_text,
    unpacked,
)


def peek_in(
    connection: sqlite3.Connection, catalogue: Catalogue, row: QueueRow, limit: int, after: int, now_ms: int
) -> list[Peeked]:
    """Up to `limit` messages of a queue in the order in which they were made, after the message with number `after`."""
    since_ms = row.expired_at_ms(now_ms)
    waiting = _waiting_in(connection, row, limit, after, since_ms)
    numbers = sorted([*waiting, *_received_in(connection, row, limit, after, since_ms)])[:limit]
    found = [peek_one_in(connection, catalogue, number, now_ms) for number in numbers]
    return [peeked for peeked in found if peeked is not None]


_FEW = 1_000  # messages: a queue with fewer is sorted for every page
_RUN = 5_000  # messages of all queues: a page reads this many in the order of their numbers before it sorts its queue


def _waiting_in(connection: sqlite3.Connection, row: QueueRow, limit: int, after: int, since_ms: int) -> list[int]:
    """Numbers of the messages that were never received, in order.

    The table has them in the order in which they become visible. Usually all or many of the next numbers belong to this
    queue, so messages are read in the order of their numbers; a walk through a large queue sorts it only where there
    are many messages of other queues in between.
    """
    if not row.settings.fifo and not _are_few(connection, "onefold_waiting", row):
        found = connection.execute(
            "SELECT m.id FROM (SELECT id, queue, visible_at_ms, sent_at_ms FROM onefold_message WHERE id > ? "
            "ORDER BY id LIMIT ?) m "
            "JOIN onefold_waiting w ON w.queue = m.queue AND w.visible_at_ms = m.visible_at_ms AND w.id = m.id "
            "WHERE m.queue = ? AND m.sent_at_ms > ? ORDER BY m.id LIMIT ?",
            (after, max(_RUN, limit), row.id, since_ms, limit),
        ).fetchall()
        if len(found) == limit:
            return [number for (number,) in found]
    return _sorted_in(connection, "queue", "onefold_waiting", (row.id, after, since_ms, limit))


def _received_in(connection: sqlite3.Connection, row: QueueRow, limit: int, after: int, since_ms: int) -> list[int]:
    """Numbers of the messages that were received, in order, dead letters included."""
    queue = "queue" if _are_few(connection, "onefold_received", row) else "+queue"  # by queue, or in number order
    return _sorted_in(connection, queue, "onefold_received", (row.id, after, since_ms, limit))


def _sorted_in(connection: sqlite3.Connection, queue: str, table: str, values: tuple[int, ...]) -> list[int]:
    found = connection.execute(
        f"SELECT id FROM {table} WHERE {queue} = ? AND id > ? AND sent_at_ms > ? ORDER BY id LIMIT ?", values
    )
    return [number for (number,) in found]


def _are_few(connection: sqlite3.Connection, table: str, row: QueueRow) -> bool:
    (count,) = connection.execute(
        f"SELECT count(*) FROM (SELECT 1 FROM {table} WHERE queue = ? LIMIT ?)", (row.id, _FEW)
    ).fetchone()
    return int(count) < _FEW


def numbers_of_key_in(connection: sqlite3.Connection, key: str, limit: int) -> list[int]:
    """Messages sent with this business key, oldest first. Reads all messages: no index covers it."""
    found = connection.execute("SELECT id FROM onefold_message WHERE key = ? ORDER BY id LIMIT ?", (key, limit))
    return [number for (number,) in found]


def peek_one_in(connection: sqlite3.Connection, catalogue: Catalogue, number: int | None, now_ms: int) -> Peeked | None:
    """One message, whichever queue it is in; None when it is gone or has expired.

    Outside groups, a message that is neither waiting nor received counts as gone: it cannot be received, because
    somebody has removed its row by hand.
    """
    found = connection.execute(
        "SELECT m.queue, m.sent_at_ms, coalesce(r.visible_at_ms, m.visible_at_ms), m.body, m.key, m.meta, "
        "m.position, m.dedup_id, g.name, r.receives, r.first_received_at_ms, r.owner FROM onefold_message m "
        "LEFT JOIN onefold_received r ON r.id = m.id LEFT JOIN onefold_group g ON g.id = m.grp WHERE m.id = ? AND ("
        "m.grp IS NOT NULL OR r.id IS NOT NULL OR EXISTS (SELECT 1 FROM onefold_waiting w "
        "WHERE w.queue = m.queue AND w.visible_at_ms = m.visible_at_ms AND w.id = m.id))",
        (number,),
    ).fetchone()
    if found is None:
        return None
    queue, sent_at_ms, visible_at_ms, body, key, text, position, dedup_id, group, receives, first, owner = found
    row = catalogue.row_of(connection, queue)
    expires_at_ms = sent_at_ms + row.settings.retention_ms + row.jumps.longer_ms(sent_at_ms)
    if expires_at_ms <= now_ms:
        return None
    meta = read_meta(text)
    state: Literal["visible", "in_flight", "delayed"] = "visible"
    if visible_at_ms > now_ms:
        state = "delayed" if receives is None else "in_flight"
    return Peeked(
        queue=row.settings.name,
        message_id=f"{row.token}-{number}",
        state=state,
        body=body,
        attributes=unpacked(meta.attributes),
        receive_count=receives or 0,
        sent_at_ms=meta.accepted_at_ms or sent_at_ms,
        visible_at_ms=visible_at_ms,
        expires_at_ms=expires_at_ms,
        first_received_at_ms=first,
        group=group or meta.group,
        dedup_id=(dedup_id or body_digest(body)) if row.settings.fifo else None,
        sequence=sequence_text(position),
        key=key,
        source=meta.source,
        reason=meta.reason,
        owner=owner if state == "in_flight" else None,
        trusted=not meta.foreign,
    )


def edit_in(connection: sqlite3.Connection, catalogue: Catalogue, number: int | None, edit: Edit, now_ms: int) -> bool:
    """Replace body and attributes of a message; False when it is gone or in flight.

    Raises:
        UsageError: the queue would not accept the new contents.
    """
    message = peek_one_in(connection, catalogue, number, now_ms)
    if message is None or message.state == "in_flight":
        return False
    check_edit(catalogue.row_in(connection, message.queue), message, edit)
    text = connection.execute("SELECT meta FROM onefold_message WHERE id = ?", (number,)).fetchone()[0]
    meta = read_meta(text)
    meta.attributes, meta.foreign = packed(edit.attributes), False
    if edit.key is not None and meta.reason is not None:
        meta.reason = replace(meta.reason, key=edit.key)
    connection.execute(
        "UPDATE onefold_message SET body = ?, meta = ?, dedup_id = ?, key = coalesce(?, key) WHERE id = ?",
        (edit.body, meta_text(meta), message.dedup_id, edit.key, number),
    )
    return True


def check_edit(row: QueueRow, message: Peeked, edit: Edit) -> None:
    """Refuse contents that the queue would not accept from a sender.

    Raises:
        UsageError: names the rule that they break.
    """
    is_fifo = row.settings.fifo
    refused = check_entry(
        Entry(
            body=edit.body,
            attributes=edit.attributes,
            group=message.group,
            dedup_id=message.message_id if is_fifo else None,
        ),
        row.settings,
    )
    if refused is not None:
        raise errors.UsageError(
            f"Message {message.message_id} cannot be changed like that: {refused.message}",
            meaning=f"Queue {row.settings.name!r} would not accept it ({refused.code}). Nothing was changed.",
            todo="Correct the body or the attributes.",
        )


def wake_in(connection: sqlite3.Connection, catalogue: Catalogue, message_id: str, now_ms: int) -> bool:
    """Make a message visible now if it was received, then hidden until later, and no process is working on it."""
    number = message_number(catalogue.token_in(connection), message_id)
    query = "UPDATE onefold_received SET visible_at_ms = ? WHERE id = ? AND owner IS NULL AND visible_at_ms > ?"
    if number is None or connection.execute(query, (now_ms, number, now_ms)).rowcount == 0:
        return False
    ((queue, group),) = connection.execute("SELECT queue, grp FROM onefold_message WHERE id = ?", (number,))
    if group is not None:
        refresh_groups_in(connection, catalogue.row_of(connection, queue), [group], now_ms)
    return True


def remove_in(
    connection: sqlite3.Connection, catalogue: Catalogue, message_ids: Sequence[str], now_ms: int
) -> list[bool]:
    """Delete messages, whatever their state; False for each that does not exist.

    A FIFO queue forgets their deduplication ids too, so that the same can be sent again at once: nobody has processed
    them, or has given them up.
    """
    token = catalogue.token_in(connection)
    removed, moved = [], []
    for message_id in message_ids:
        found = connection.execute(
            "SELECT id, queue, grp, position FROM onefold_message WHERE id = ?", (message_number(token, message_id),)
        ).fetchone()
        removed.append(found is not None)
        if found is None:
            continue
        number, queue, group, position = found
        forgot = connection.execute("DELETE FROM onefold_dedup WHERE position = ? AND message = ?", (position, number))
        erase(connection, [number])
        if group is not None:
            refresh_groups_in(connection, catalogue.row_of(connection, queue), [group], now_ms)
            if forgot.rowcount == 0:  # a queue that it came from knows it by another position
                moved.append(number)
    if moved:  # in one statement, because it reads the ids of all FIFO queues
        query = "DELETE FROM onefold_dedup WHERE message IN (SELECT value FROM json_each(?))"
        connection.execute(query, (json.dumps(moved),))
    return removed
