"""Moving a message to another queue as the same message: dead-lettered by its receive count, or buried with a reason.

Id, body, attributes, key and counts stay; the queue, the source's name, the reason and, on FIFO, position and
deduplication id change. Dead-lettered by count on a standard queue a message keeps its send time (SQS's rule); on FIFO,
and whenever it is buried, its retention starts anew (on SQS burying is send and delete, so it does the same there).
Invariant: a message that was transferred is in `received` of the target, visible at once, held by nobody.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from onefold.contracts.admin import Transferred
from onefold.contracts.ledger import Row
from onefold.contracts.queue import JOB_ATTRIBUTE, RUN_ATTRIBUTE, Reason
from onefold.contracts.store import RecordKey, key_range
from onefold.engines.sqlite import groups
from onefold.engines.sqlite.ledger import append_in
from onefold.engines.sqlite.lending import LentConnection
from onefold.engines.sqlite.rows import Found, QueueRow, draw_ids, meta_text, read_meta


def worn_out(row: QueueRow, found: Found) -> bool:
    """Whether one more receive would exceed the queue's maximum, and the message can go elsewhere.

    SQS lets a queue be its own dead-letter queue: then a message is given again and again, whatever its maximum.
    """
    receives_max = row.settings.receives_max
    if row.dead_letter is None or receives_max is None or found.receives is None or row.dead_letter.id == row.id:
        return False
    return found.receives >= receives_max


def dead_letter_in(connection: sqlite3.Connection, row: QueueRow, worn: Sequence[Found], now_ms: int) -> None:
    """Move messages that were received as often as they may be to the dead-letter queue."""
    assert row.dead_letter is not None, "a queue with receives_max has a dead-letter queue"
    moves = [
        (
            found.id,
            Reason(
                kind="receives",
                summary=f"Received {found.receives} times without being deleted; "
                f"the queue's maximum is {row.settings.receives_max}.",
                key=found.key,
                first_at_ms=found.first_received_at_ms,
                last_at_ms=found.received_at_ms,
            ),
        )
        for found in worn
    ]
    transfer_in(connection, moves, row, row.dead_letter, now_ms, restarts=row.settings.fifo)
    for found in worn:
        _note_in_run(connection, row, found, now_ms)
    if isinstance(connection, LentConnection):
        target = row.dead_letter.settings.name
        for found in worn:
            connection.tell(Transferred(f"{row.token}-{found.id}", row.settings.name, target, found.receives or 0))


def _note_in_run(connection: sqlite3.Connection, row: QueueRow, found: Found, now_ms: int) -> None:
    """Note in the history of the message's run, which is counted by its rows, that nothing works on this operation any more.

    The tenant of an operation does not travel with its message; the rows of the run know it. Where two tenants of one run
    have the key, nothing is noted, and the operation stays without outcome until somebody reconciles.
    """
    meta = read_meta(found.meta)
    attributes = meta.attributes
    if meta.foreign or found.key is None or RUN_ATTRIBUTE not in attributes or JOB_ATTRIBUTE not in attributes:
        return
    run, job = attributes[RUN_ATTRIBUTE][1], attributes[JOB_ATTRIBUTE][1]
    scopes = connection.execute(
        "SELECT DISTINCT scope FROM onefold_ledger WHERE ident >= ? AND ident < ? AND key = ? AND job = ? AND run = ?",
        (*key_range(found.key), found.key, job, run),
    ).fetchall()
    if len(scopes) == 1:
        told = Row(
            at_ms=now_ms,
            event="dead-letter",
            key=RecordKey(scopes[0][0], job, found.key),
            queue=row.settings.name,
            message_id=f"{row.token}-{found.id}",
            run=run,
            detail={"reason": "receives", "receives": found.receives, "of": row.settings.receives_max},
        )
        append_in(connection, [told])


def transfer_in(
    connection: sqlite3.Connection,
    moves: Sequence[tuple[int, Reason]],
    source: QueueRow,
    target: QueueRow,
    now_ms: int,
    *,
    restarts: bool,
) -> None:
    """Move received messages of `source` to `target`, each with its reason, in the order given.

    Args:
        restarts: retention counts from now instead of from when the message was sent.
    """
    fifo = target.settings.fifo
    first = draw_ids(connection, len(moves)) if fifo else 0
    for position, (message, reason) in enumerate(moves, start=first):
        sent_at_ms, group, text = connection.execute(
            "SELECT m.sent_at_ms, g.name, m.meta FROM onefold_message m LEFT JOIN onefold_group g ON g.id = m.grp "
            "WHERE m.id = ?",
            (message,),
        ).fetchone()
        meta = read_meta(text)
        meta.source, meta.reason = source.settings.name, reason
        at_ms = now_ms if restarts else sent_at_ms
        grp = groups.ensure_in(connection, target.id, [group], at_ms)[group] if fifo else None
        connection.execute(
            "UPDATE onefold_message SET queue = ?, sent_at_ms = ?, visible_at_ms = ?, grp = ?, position = ?, dedup_id = ?, "
            "meta = ? WHERE id = ?",
            (target.id, at_ms, at_ms, grp, position if fifo else None,
             f"{target.token}-{message}" if fifo else None, meta_text(meta), message),
        )  # fmt: skip
        connection.execute(
            "UPDATE onefold_received SET queue = ?, sent_at_ms = ?, visible_at_ms = ?, owner = NULL WHERE id = ?",
            (target.id, at_ms, at_ms, message),
        )
