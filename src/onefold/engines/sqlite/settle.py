"""Settling received messages: deleting them, hiding them again, moving them to another queue, or releasing them.

Everything happens inside the caller's transaction, for many messages at a time; the common case, deleting all of them,
is two statements for the whole batch. A receipt is valid for as long as on SQS: on a standard queue any receipt of a
message can delete it, dead-letter it, or change its visibility while it is in flight; on a FIFO queue only the receipt
of the receive that hides it now.

A message that moves to another queue stays the same message, whether the queue dead-letters it by its receive count or
onefold moves it with a reason: id, body, attributes, key and counts stay; the queue, the source's name, the
reason and, on FIFO, position and deduplication id change. A message that is dead-lettered by count on a standard queue keeps
its send time (SQS's rule). On FIFO, and whenever onefold moves it, its retention starts again (on SQS such a move is a send
and a delete, with the same effect).

Never here: which of these should happen. Invariants: a message is changed only through a receipt that SQS would accept;
a message that was moved is in the target's `received` rows, visible at once, without a holder.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from onefold import errors, limits
from onefold.contracts.admin import Transferred
from onefold.contracts.ledger import Row
from onefold.contracts.queue import JOB_ATTRIBUTE, RUN_ATTRIBUTE, Ack, MoveTo, Reason, RetryIn, Settle
from onefold.contracts.store import RecordKey, key_range
from onefold.engines.sqlite.connection import LentConnection
from onefold.engines.sqlite.ledger import append_in
from onefold.engines.sqlite.rows import (
    Found,
    QueueRow,
    Receipt,
    draw_ids,
    ensure_groups_in,
    meta_text,
    read_meta,
    read_receipts,
    refresh_groups_in,
)

if TYPE_CHECKING:
    from onefold.contracts.verbs import ReceiptState


def worn_out(row: QueueRow, found: Found) -> bool:
    """Whether one more receive would exceed the queue's maximum, and there is another queue to move the message to.

    SQS allows a queue to be its own dead-letter queue: then a message is delivered again and again, whatever its maximum.
    """
    receives_max = row.settings.receives_max
    if row.dead_letter is None or receives_max is None or found.receives is None or row.dead_letter.id == row.id:
        return False
    return found.receives >= receives_max


STOPPED_RECEIVER_MS: Final = 5_000  # a message whose receiver is stopped is checked again after this long


def waits_for_stopped_in(connection: sqlite3.Connection, row: QueueRow, found: Found, now_ms: int) -> bool:
    """Whether the process that last received a used-up message is stopped; if so, hides the message for some seconds.

    It hides the message for no longer than any message can be hidden: for 12 hours from its receive.
    """
    (owner,) = connection.execute("SELECT owner FROM onefold_received WHERE id = ?", (found.id,)).fetchone()
    is_fresh = found.received_at_ms is not None and now_ms < found.received_at_ms + limits.VISIBILITY_MS_MAX
    if owner is None or not is_fresh or not row.is_stopped(owner, found.visible_at_ms):
        return False
    hidden = (now_ms + STOPPED_RECEIVER_MS, found.id)
    connection.execute("UPDATE onefold_received SET visible_at_ms = ? WHERE id = ?", hidden)
    return True


def dead_letter_in(connection: sqlite3.Connection, row: QueueRow, worn: Sequence[Found], now_ms: int) -> None:
    """Move messages that have used up their receives to the dead-letter queue."""
    assert row.dead_letter is not None, "a queue with receives_max has a dead-letter queue"
    grouped = [
        (
            found.id,
            Reason(
                kind="receives",
                summary=f"Received {found.receives} times without being deleted; "
                f"the queue's maximum is {row.settings.receives_max}.",
                key=found.key,
                first_at_ms=found.first_received_at_ms,
                last_at_ms=now_ms,
            ),
        )
        for found in worn
    ]
    transfer_in(connection, grouped, row, row.dead_letter, now_ms, restarts=row.settings.fifo)
    for found in worn:
        _note_in_run(connection, row, found, now_ms)
    if isinstance(connection, LentConnection):
        target = row.dead_letter.settings.name
        for found in worn:
            connection.note_transferred(
                Transferred(f"{row.token}-{found.id}", row.settings.name, target, found.receives or 0)
            )


def _note_in_run(connection: sqlite3.Connection, row: QueueRow, found: Found, now_ms: int) -> None:
    """Note in the history of the message's run, from which progress is counted, that this operation has ended.

    The tenant of an operation is not stored with its message but in the rows of the run. If two tenants of one run use
    the key, nothing is noted, and the operation has no outcome until the run is reconciled.
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
        noted = Row(
            at_ms=now_ms,
            event="dead-letter",
            key=RecordKey(scopes[0][0], job, found.key),
            queue=row.settings.name,
            message_id=f"{row.token}-{found.id}",
            run=run,
            detail={"reason": "receives", "receives": found.receives, "of": row.settings.receives_max},
        )
        append_in(connection, [noted])


def transfer_in(
    connection: sqlite3.Connection,
    grouped: Sequence[tuple[int, Reason]],
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
    first = draw_ids(connection, len(grouped)) if fifo else 0
    for position, (message, reason) in enumerate(grouped, start=first):
        sent_at_ms, group, text = connection.execute(
            "SELECT m.sent_at_ms, g.name, m.meta FROM onefold_message m LEFT JOIN onefold_group g ON g.id = m.grp "
            "WHERE m.id = ?",
            (message,),
        ).fetchone()
        meta = read_meta(text)
        meta.source, meta.reason = source.settings.name, reason
        at_ms = now_ms if restarts else sent_at_ms
        grp = ensure_groups_in(connection, target.id, {group: position}, at_ms)[group] if fifo else None
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


def settle_in(
    connection: sqlite3.Connection, row: QueueRow, settlements: Sequence[tuple[str, Settle]], now_ms: int
) -> list[bool]:
    """Settle each receipt; False where it had expired and nothing was done. For `Leave` it is always True.

    Raises:
        UsageError: a receipt is malformed, a delay is out of its range, or the queue has no such target queue. The
            caller must roll back its transaction (or savepoint).
    """
    if all(type(settle) is Ack for _, settle in settlements):
        return delete_in(connection, row, [receipt for receipt, _ in settlements], now_ms)
    answers = [True] * len(settlements)
    acks: list[tuple[int, str]] = []
    changes: list[tuple[int, str, RetryIn]] = []
    moves: list[tuple[int, str, MoveTo]] = []
    for index, (receipt, settle) in enumerate(settlements):
        if isinstance(settle, Ack):
            acks.append((index, receipt))
        elif isinstance(settle, RetryIn):
            changes.append((index, receipt, settle))
        elif isinstance(settle, MoveTo):
            moves.append((index, receipt, settle))
    done = delete_in(connection, row, [receipt for _, receipt in acks], now_ms)
    done += set_visible_in(connection, row, [change[1:] for change in changes], now_ms, ends=True)
    done += move_aside_in(connection, row, [move[1:] for move in moves], now_ms)
    indexes = [item[0] for item in acks] + [item[0] for item in changes] + [item[0] for item in moves]
    for index, answer in zip(indexes, done, strict=True):
        answers[index] = answer
    return answers


def delete_in(connection: sqlite3.Connection, row: QueueRow, receipts: Sequence[str], now_ms: int) -> list[bool]:
    """Delete each receipt's message; False only where a FIFO receipt has expired and its message is still there."""
    if not receipts:
        return []
    parts = read_receipts(receipts, row.settings.fifo)
    if row.settings.fifo:
        deleted = connection.executemany(
            "DELETE FROM onefold_received WHERE id = ? AND delivery = ? AND queue = ? AND visible_at_ms > ?",
            [(message, delivery, row.id, now_ms) for message, delivery, _ in parts],
        ).rowcount
    else:
        deleted = connection.executemany(
            "DELETE FROM onefold_received WHERE id = ? AND delivery >= ? AND queue = ?",
            [(message, delivery, row.id) for message, delivery, _ in parts],
        ).rowcount
    if deleted == len(parts):
        connection.executemany("DELETE FROM onefold_message WHERE id = ?", [(message,) for message, *_ in parts])
        answers = [True] * len(parts)
    else:
        answers = _delete_the_rest(connection, row, parts, now_ms)
    if row.settings.fifo:
        refresh_groups_in(connection, row, {group for *_, group in parts if group is not None}, now_ms)
    return answers


def _delete_the_rest(
    connection: sqlite3.Connection, row: QueueRow, parts: Sequence[Receipt], now_ms: int
) -> list[bool]:
    """Delete messages that are in neither `received` nor `waiting`; returns whether each receipt's message is gone.

    Called when some receipts deleted nothing. A received message never goes back to `waiting`, so a message of this
    queue that is in neither table has just lost its row, and one that still has a row was refused.
    """
    connection.executemany(
        "DELETE FROM onefold_message AS m WHERE id = ? AND queue = ? "
        "AND NOT EXISTS (SELECT 1 FROM onefold_received r WHERE r.id = m.id) "
        "AND NOT EXISTS (SELECT 1 FROM onefold_waiting w "
        "WHERE (w.queue, w.visible_at_ms, w.id) = (m.queue, m.visible_at_ms, m.id))",
        [(message, row.id) for message, *_ in parts],
    )
    if not row.settings.fifo:
        return [True] * len(parts)
    return [_held(connection, row, message, now_ms) is None for message, *_ in parts]


class _Held(NamedTuple):
    """A received message that still exists and has not expired."""

    queue: int
    delivery: int
    visible_at_ms: int
    received_at_ms: int
    receives: int


def _held(connection: sqlite3.Connection, row: QueueRow, message: int, now_ms: int) -> _Held | None:
    found = connection.execute(
        "SELECT queue, delivery, visible_at_ms, received_at_ms, receives FROM onefold_received "
        "WHERE id = ? AND NOT (queue = ? AND sent_at_ms <= ?)",
        (message, row.id, row.expired_at_ms(now_ms)),
    ).fetchone()
    return None if found is None else _Held(*found)


def set_visible_in(
    connection: sqlite3.Connection,
    row: QueueRow,
    changes: Sequence[tuple[str, RetryIn]],
    now_ms: int,
    *,
    ends: bool = False,
    behind_ms: int = 0,
) -> list[bool]:
    """Hide each receipt's message for a new time from now; False where that is not possible.

    It is not possible when the message is gone, when it would be hidden for more than 12 hours from its receive, and on
    FIFO once the receipt has expired. On a standard queue a message whose visibility has ended is not changed and the
    result is True, as on SQS.

    Args:
        ends: the receive has ended (a later retry), so its owner's death must not end the wait early.
        behind_ms: by how much the clock will jump when it follows the wall clock (`clock.py`). A process that works on a
            message hides it for that much longer; a process that releases it (0 s, or uncounted) does not.
    """
    for _, change in changes:
        check_visibility(change.delay_ms)
    parts = read_receipts([receipt for receipt, _ in changes], row.settings.fifo)
    answers: list[bool] = []
    touched: set[int] = set()
    for (message, delivery, group), (_, change) in zip(parts, changes, strict=True):
        held = _held(connection, row, message, now_ms)
        can = held is not None and _can_change(row, held, delivery, change, now_ms)
        answers.append(can)
        if held is None or not can:
            continue
        own = held.delivery == delivery
        uncounted = int(change.uncounted and own and held.receives > 0)
        shift_ms = behind_ms if change.delay_ms and not change.uncounted else 0
        if held.visible_at_ms > now_ms:
            connection.execute(
                "UPDATE onefold_received SET visible_at_ms = ?, receives = receives - ?, "
                "owner = CASE WHEN ? THEN NULL ELSE owner END WHERE id = ?",
                (now_ms + change.delay_ms + shift_ms, uncounted, ends and own, message),
            )
            if group is not None:
                touched.add(group)
        elif uncounted:
            connection.execute("UPDATE onefold_received SET receives = receives - 1 WHERE id = ?", (message,))
    refresh_groups_in(connection, row, touched, now_ms)
    return answers


def _can_change(row: QueueRow, held: _Held, delivery: int, change: RetryIn, now_ms: int) -> bool:
    if held.queue != row.id or held.delivery < delivery:
        return False
    if held.visible_at_ms <= now_ms:
        return not row.settings.fifo
    if row.settings.fifo and held.delivery != delivery:
        return False
    return now_ms + change.delay_ms <= held.received_at_ms + limits.VISIBILITY_MS_MAX


def receipt_states_in(
    connection: sqlite3.Connection, row: QueueRow, receipts: Sequence[str], now_ms: int
) -> list[ReceiptState]:
    """What each receipt can still do with its message."""
    parts = read_receipts(receipts, row.settings.fifo)
    found = connection.execute(  # a worker asks for each message that it begins: one statement for all of them
        "SELECT id, queue, delivery, visible_at_ms FROM onefold_received "
        "WHERE id IN (SELECT value FROM json_each(?)) AND NOT (queue = ? AND sent_at_ms <= ?)",
        (f"[{','.join([str(message) for message, *_ in parts])}]", row.id, row.expired_at_ms(now_ms)),
    )
    held = {message: (queue, delivery, visible_at_ms) for message, queue, delivery, visible_at_ms in found}
    answers: list[ReceiptState] = []
    for message, delivery, _ in parts:
        queue, last, visible_at_ms = held.get(message, (None, 0, 0))
        if queue != row.id or last < delivery:
            answers.append("gone")
        elif last > delivery:
            answers.append("superseded")
        elif visible_at_ms <= now_ms:
            answers.append("expired" if row.settings.fifo else "visible")
        else:
            answers.append("in-flight")
    return answers


def check_visibility(visible_ms: int) -> None:
    """Refuse a visibility that SQS does not allow.

    Raises:
        UsageError: it is not 0 to 43,200,000 ms.
    """
    if not 0 <= visible_ms <= limits.VISIBILITY_MS_MAX:
        raise errors.UsageError(
            f"A message cannot be hidden for {visible_ms} ms.",
            meaning=f"Visibility is 0 to {limits.VISIBILITY_MS_MAX:,} ms (12 hours).",
            todo="Hide it for less; to run later than that, send it with run_at.",
        )


def move_aside_in(
    connection: sqlite3.Connection, row: QueueRow, moves: Sequence[tuple[str, MoveTo]], now_ms: int
) -> list[bool]:
    """Move each receipt's message to the dead-letter or held queue; False as for `delete_in`."""
    targets = {"dead-letter": row.dead_letter, "held": row.held}
    for _, move in moves:
        if targets[move.to] is None:
            setting = "dead_letter" if move.to == "dead-letter" else "held"
            raise errors.UsageError(
                f"Queue {row.settings.name!r} has no {move.to} queue.",
                meaning="The message was not moved.",
                todo=f"Declare the queue with {setting}.",
            )
    fifo = row.settings.fifo
    grouped: dict[str, list[tuple[int, Reason]]] = {to: [] for to in targets}
    answers: list[bool] = []
    taken: set[int] = set()
    touched: set[int] = set()
    for (message, delivery, group), (_, move) in zip(
        read_receipts([receipt for receipt, _ in moves], fifo), moves, strict=True
    ):
        held = None if message in taken else _held(connection, row, message, now_ms)
        if held is not None and _can_move(row, held, delivery, now_ms):
            grouped[move.to].append((message, move.reason))
            taken.add(message)
            answers.append(True)
        else:
            answers.append(held is None or not fifo)
        if group is not None:
            touched.add(group)
    for to, target in targets.items():
        if target is not None and grouped[to]:
            transfer_in(connection, grouped[to], row, target, now_ms, restarts=True)
    refresh_groups_in(connection, row, touched, now_ms)
    return answers


def _can_move(row: QueueRow, held: _Held, delivery: int, now_ms: int) -> bool:
    if held.queue != row.id:
        return False
    if row.settings.fifo:
        return held.delivery == delivery and held.visible_at_ms > now_ms
    return held.delivery >= delivery


def end_visibilities_in(connection: sqlite3.Connection, owner: str, now_ms: int) -> int:
    """Make everything that `owner` holds visible at once, in all queues; returns the number of messages.

    Messages that it has settled, including those hidden for a later retry, no longer belong to it and are not changed.
    """
    held = connection.execute(
        "SELECT r.id, m.grp FROM onefold_received r CROSS JOIN onefold_message m ON m.id = r.id "
        "WHERE r.owner = ? AND r.visible_at_ms > ?",
        (owner, now_ms),
    ).fetchall()
    connection.executemany(
        "UPDATE onefold_received SET visible_at_ms = ?, owner = NULL WHERE id = ?",
        [(now_ms, message) for message, _ in held],
    )
    connection.executemany(
        "UPDATE onefold_group SET ready_at_ms = min(ready_at_ms, ?) WHERE id = ?",
        [(now_ms, group) for group in {group for _, group in held if group is not None}],
    )
    return len(held)
