"""Messages that wait for their time while the machine's clock is set: a delay, a retry, a `run_at`.

A wait is stored as the instant of the steady clock at which it ends. If the wall clock is set forward, the steady clock
follows after two minutes, by a jump (`clock.py`): an instant that it jumps over was meant by the earlier time, and is
put off by as much. A `run_at` means the wall clock; while that is behind the steady clock, because it was set back, its
message is put off until the wall clock shows the instant.
Only messages that would be received now are looked at, and only after the clock was set, so that no other receive pays
for it.
Never here: time that nobody waits for, such as a lease or a retention. Invariant: no wait ends early by a step of the
clock.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from onefold import limits
from onefold.contracts.entries import Entry
from onefold.engines.sqlite.rows import Found, MessageMeta, NewMessage, QueueRow, entry_meta, meta_text, read_meta

_ACCEPTED: Final = '"accepted_at_ms":'  # in the meta of a message that waits for its time
_LOOK_MS: Final = limits.MINUTE_MS


def due_at_ms(row: QueueRow, run_at_ms: int, now_ms: int) -> int | None:
    """The steady instant from which a `run_at` is worth another look; None: it is due by the wall clock.

    While the wall clock is behind, the steady clock runs slower, but advances by at least half of the time that is left.
    If that is over too soon, because the wall clock has caught up, the next look puts the message off once more; it is
    looked at each minute or two, because the wall clock may be set right.
    """
    ahead_ms = row.ahead_ms()
    left_ms = run_at_ms - (now_ms - ahead_ms)
    if left_ms <= 0:
        return None
    return run_at_ms if ahead_ms <= 0 else max(run_at_ms, now_ms + min((left_ms + 1) // 2, _LOOK_MS))


def entry_due_ms(row: QueueRow, entry: Entry, now_ms: int) -> int:
    """When a message of this entry enters its queue; `now_ms`: at once."""
    if entry.wait_ms is not None:
        return now_ms + entry.wait_ms
    at_ms = None if entry.run_at_ms is None else due_at_ms(row, entry.run_at_ms, now_ms)
    return now_ms if at_ms is None else at_ms


def timed(row: QueueRow, number: int, entry: Entry, now_ms: int) -> NewMessage:
    """A message whose entry may have a delay or a due time; on a FIFO queue it has no place in its group yet."""
    sent_at_ms = entry_due_ms(row, entry, now_ms)
    visible_at_ms = sent_at_ms + (row.settings.delay_ms if entry.delay_ms is None else entry.delay_ms)
    meta = (
        entry_meta(entry, entry.group)
        if sent_at_ms <= now_ms
        else entry_meta(entry, entry.group, now_ms, entry.run_at_ms)
    )
    return (row.id, number, sent_at_ms, visible_at_ms, None, None, entry.dedup_id, entry.key, meta, entry.body)


def put_off_in(connection: sqlite3.Connection, row: QueueRow, found: Sequence[Found], now_ms: int) -> set[int]:
    """Put off those of the messages whose time has not come, though they are visible; returns their numbers."""
    if not row.jumps.noted and row.ahead_ms() <= 0:
        return set()
    return {one.id for one in found if _has_waited(one) and _put_off(connection, row, one, now_ms)}


def _has_waited(found: Found) -> bool:
    if found.received_at_ms is not None or found.visible_at_ms != found.sent_at_ms:
        return True
    return found.meta is not None and _ACCEPTED in found.meta


def _put_off(connection: sqlite3.Connection, row: QueueRow, found: Found, now_ms: int) -> bool:
    if found.received_at_ms is not None:
        over_ms = row.jumps.over_ms(found.received_at_ms, found.visible_at_ms, now_ms)
        return over_ms > 0 and _put_off_retry(connection, found, over_ms, now_ms)
    meta = read_meta(found.meta)
    # If not, it only waits for a delay of the queue or entry.
    has_due = bool(meta.accepted_at_ms) and found.grp is None
    later_ms = _later_ms(row, meta, found.sent_at_ms, found.visible_at_ms, now_ms, has_due=has_due)
    if later_ms:
        _move_in(connection, found.id, meta, now_ms, later_ms, later_ms if has_due else 0)
    return later_ms > 0


def _put_off_retry(connection: sqlite3.Connection, found: Found, by_ms: int, now_ms: int) -> bool:
    """Put off a message that waits for its next attempt; a message that a process works on is not waiting."""
    return (
        connection.execute(
            "UPDATE onefold_received SET visible_at_ms = visible_at_ms + ?, received_at_ms = ? "
            "WHERE id = ? AND owner IS NULL",
            (by_ms, now_ms, found.id),
        ).rowcount
        == 1
    )


def put_off_scheduled_in(connection: sqlite3.Connection, row: QueueRow, number: int, due_ms: int, now_ms: int) -> bool:
    """Put off a scheduled message of a FIFO queue if its time has not come; returns whether it has not."""
    if not row.jumps.noted and row.ahead_ms() <= 0:
        return False
    (text,) = connection.execute("SELECT meta FROM onefold_message WHERE id = ?", (number,)).fetchone()
    meta = read_meta(text)
    later_ms = _later_ms(row, meta, due_ms, due_ms, now_ms, has_due=True)
    if later_ms:
        connection.execute(
            "UPDATE onefold_scheduled SET due_at_ms = due_at_ms + ? WHERE queue = ? AND due_at_ms = ? AND id = ?",
            (later_ms, row.id, due_ms, number),
        )
        _move_in(connection, number, meta, now_ms, later_ms, later_ms)
    return later_ms > 0


def _later_ms(
    row: QueueRow, meta: MessageMeta, sent_at_ms: int, visible_at_ms: int, now_ms: int, *, has_due: bool
) -> int:
    """How much later to deliver a message that would be received now; 0: its time has come.

    Args:
        has_due: it was accepted before it is due, counts as sent when it is due, and has no place in a group yet.
    """
    if meta.run_at_ms and has_due:
        at_ms = due_at_ms(row, meta.run_at_ms, now_ms)
        return 0 if at_ms is None else max(at_ms - sent_at_ms, 0)
    since_ms = meta.accepted_at_ms if meta.accepted_at_ms and has_due else sent_at_ms
    return row.jumps.over_ms(meta.put_off_at_ms or since_ms, visible_at_ms, now_ms)


def _move_in(
    connection: sqlite3.Connection, number: int, meta: MessageMeta, now_ms: int, visible_ms: int, sent_ms: int
) -> None:
    """Make a message that was never received visible, and count as sent, that much later."""
    connection.execute(
        "UPDATE onefold_waiting SET visible_at_ms = visible_at_ms + ?, sent_at_ms = sent_at_ms + ? "
        "WHERE (queue, visible_at_ms, id) = (SELECT queue, visible_at_ms, id FROM onefold_message WHERE id = ?)",
        (visible_ms, sent_ms, number),
    )
    meta.put_off_at_ms = now_ms
    connection.execute(
        "UPDATE onefold_message SET visible_at_ms = visible_at_ms + ?, sent_at_ms = sent_at_ms + ?, meta = ? WHERE id = ?",
        (visible_ms, sent_ms, meta_text(meta), number),
    )
