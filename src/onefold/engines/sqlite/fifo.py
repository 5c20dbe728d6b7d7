"""FIFO queues: sending and deduplication, choosing what can be received, and scheduled messages that become due.

A group's messages are received in order from its head (`rows.py` tracks which groups are open). A receive takes at most
10 messages of one group, like SQS's largest receive, and then goes to the next group; a receive of 100 works like ten
of 10. A message with a `run_at_ms` enters its group at that instant: position, sequence number and deduplication are
decided then.

A deduplication id is remembered for 5 minutes from the moment its message was accepted, even if the message was
received and deleted meanwhile; after that a second copy is accepted even while the first still waits. The scope is the
queue or the group. Rows are stored in order of time and found by a 16-byte digest, which is the cheapest layout for
random keys.

Never here: hiding the chosen messages, settling. Invariants: no message is chosen while an earlier one of its group is
hidden; within one scope and window one id delivers one message.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence

from onefold import limits
from onefold.clock import Jumps
from onefold.contracts.admin import Remembered
from onefold.contracts.entries import NOT_SENT, Entry, Refused, Sent, check_entry
from onefold.contracts.queue import JOB_ATTRIBUTE
from onefold.contracts.state import Change
from onefold.engines.sqlite import waits
from onefold.engines.sqlite.rows import (
    Found,
    NewMessage,
    QueueRow,
    draw_ids,
    ensure_groups_in,
    entry_meta,
    erase,
    insert,
    read_meta,
    refresh_groups_in,
    sequence_text,
)
from onefold.engines.sqlite.settle import dead_letter_in, waits_for_stopped_in, worn_out
from onefold.engines.sqlite.state import put_in


class Memory:
    """The deduplication memory of one queue during one transaction.

    Args:
        connection: a connection with an open transaction.
        row: the queue.
    """

    def __init__(self, connection: sqlite3.Connection, row: QueueRow) -> None:
        self._connection = connection
        self._queue = row.id
        self._jumps = row.jumps
        self._by_group = row.settings.dedup_scope == "messageGroup"
        self._new: dict[bytes, tuple[int, int, int]] = {}  # digest -> message, position, accepted_at_ms

    def first_of(
        self, group: str | None, dedup_id: str | None, body: str, message: int, position: int, at_ms: int
    ) -> tuple[int, int] | None:
        """Message and position of the earlier message that this one duplicates; None if it is new: then it is remembered.

        Args:
            dedup_id: None to derive it from the body.
            message, position: id and position of the new message.
            at_ms: when it is accepted.
        """
        scope = group if self._by_group else ""
        text = f"{self._queue}\0{scope}\0{dedup_id or body_digest(body)}"
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        known = (
            self._new.get(digest)
            or self._connection.execute(
                "SELECT message, position, accepted_at_ms FROM onefold_dedup WHERE digest = ?", (digest,)
            ).fetchone()
        )
        if known is not None and at_ms < known[2] + limits.DEDUP_WINDOW_MS + self._jumps.longer_ms(known[2]):
            return known[0], known[1]
        self._new[digest] = (message, position, at_ms)
        return None

    def write(self) -> None:
        """Store the new ids."""
        self._connection.executemany(
            "INSERT OR REPLACE INTO onefold_dedup (position, queue, digest, message, accepted_at_ms) VALUES (?, ?, ?, ?, ?)",
            [
                (position, self._queue, digest, message, at_ms)
                for digest, (message, position, at_ms) in self._new.items()
            ],
        )


def body_digest(body: str) -> str:
    """The deduplication id that SQS derives from a body: its SHA-256 (here hexadecimal; SQS does not document it)."""
    return hashlib.sha256(body.encode()).hexdigest()


def remembered_in(connection: sqlite3.Connection, row: QueueRow, limit: int, now_ms: int) -> list[Remembered]:
    """A queue's deduplication ids whose window is not over, newest first."""
    rows = connection.execute(
        "SELECT d.position, d.message, d.accepted_at_ms, m.dedup_id, m.body, g.name FROM onefold_dedup d "
        "LEFT JOIN onefold_message m ON m.id = d.message LEFT JOIN onefold_group g ON g.id = m.grp "
        "WHERE d.queue = ? AND d.accepted_at_ms > ? ORDER BY d.position DESC LIMIT ?",
        (row.id, row.jumps.expired_at_ms(now_ms, limits.DEDUP_WINDOW_MS), limit),
    )
    return [
        Remembered(
            message_id=f"{row.token}-{message}",
            sequence=sequence_text(position) or "",
            accepted_at_ms=at_ms,
            until_ms=at_ms + limits.DEDUP_WINDOW_MS + row.jumps.longer_ms(at_ms),
            dedup_id=None if body is None else dedup_id or body_digest(body),
            group=group,
        )
        for position, message, at_ms, dedup_id, body, group in rows
    ]


def forget_ids_in(connection: sqlite3.Connection, now_ms: int, jumps: Jumps, count_max: int) -> int:
    """Drop up to `count_max` ids whose window has ended, oldest first; returns how many."""
    return connection.execute(
        "DELETE FROM onefold_dedup WHERE position IN (SELECT position FROM onefold_dedup ORDER BY position LIMIT ?) "
        "AND accepted_at_ms <= ?",
        (count_max, jumps.expired_at_ms(now_ms, limits.DEDUP_WINDOW_MS)),
    ).rowcount


# Due messages that one receive admits; a send admits all of them, because its own messages come after them.
_PROMOTED_AT_ONCE = 1_000


def send_in(
    connection: sqlite3.Connection, row: QueueRow, entries: Sequence[Entry], now_ms: int, *, whole: bool
) -> list[Sent | Refused]:
    """Accept messages in the order given; a deduplication id seen within 5 minutes returns the first message."""
    settings = row.settings
    answers: list[Sent | Refused | None] = [check_entry(entry, settings) for entry in entries]
    good = [index for index, answer in enumerate(answers) if answer is None]
    if not good or (whole and len(good) < len(entries)):
        return [answer or NOT_SENT for answer in answers]
    promote_in(connection, row, now_ms, None)
    first = draw_ids(connection, len(good))
    later: list[NewMessage] = []
    accepted: list[tuple[int, Entry]] = []
    memory = Memory(connection, row)
    for number, index in enumerate(good, start=first):
        entry = entries[index]
        if waits.entry_due_ms(row, entry, now_ms) > now_ms:
            later.append(waits.timed(row, number, entry, now_ms))
            answers[index] = Sent(f"{row.token}-{number}")
            continue
        known = memory.first_of(entry.group, entry.dedup_id, entry.body, number, number, now_ms)
        if known is None:
            accepted.append((number, entry))
            answers[index] = Sent(f"{row.token}-{number}", sequence_text(number))
        else:
            answers[index] = Sent(f"{row.token}-{known[0]}", sequence_text(known[1]), duplicate=True)
    visible_at_ms = now_ms + settings.delay_ms
    made_for: dict[str | None, int] = {}
    for number, entry in accepted:
        made_for.setdefault(entry.group, number)
    grp = ensure_groups_in(connection, row.id, made_for, visible_at_ms)
    messages: list[NewMessage] = [
        (row.id, number, now_ms, visible_at_ms, grp[entry.group], number, entry.dedup_id, entry.key,
         entry_meta(entry, None), entry.body)
        for number, entry in accepted
    ]  # fmt: skip
    insert(connection, messages + later)
    memory.write()
    connection.executemany(
        "INSERT INTO onefold_scheduled (queue, id, due_at_ms) VALUES (?, ?, ?)",
        [message[:3] for message in later],
    )
    return answers  # type: ignore[return-value]  # the good ones were filled in above


def choose(connection: sqlite3.Connection, row: QueueRow, count_max: int, now_ms: int) -> list[Found]:
    """Up to `count_max` messages that can be received now, in order within each group; marks nothing as received."""
    promote_in(connection, row, now_ms, _PROMOTED_AT_ONCE)
    chosen: list[Found] = []
    seen: set[int] = set()
    while len(chosen) < count_max:
        ready = connection.execute(
            "SELECT id, name FROM onefold_group WHERE queue = ? AND ready_at_ms <= ? "
            "ORDER BY ready_at_ms, rotation, id LIMIT ?",
            (row.id, now_ms, count_max - len(chosen) + len(seen)),
        ).fetchall()
        ready = [group for group in ready if group[0] not in seen]
        if not ready:
            break
        for group, name in ready:
            room = min(limits.BATCH_ENTRIES_MAX, count_max - len(chosen))
            if not room:
                break
            seen.add(group)
            from_head = _from_head(connection, row, group, name, room, now_ms)
            if not from_head:
                refresh_groups_in(connection, row, [group], now_ms)
            chosen += from_head
    return chosen


def _from_head(
    connection: sqlite3.Connection, row: QueueRow, group: int, name: str, room: int, now_ms: int
) -> list[Found]:
    """The visible messages at a group's head. Deletes expired ones, and dead-letters used-up ones."""
    chosen: list[Found] = []
    after = -1
    while True:
        rows = connection.execute(
            "SELECT m.id, m.sent_at_ms, m.key, m.meta, m.body, coalesce(r.visible_at_ms, m.visible_at_ms), "
            "r.receives, r.delivery, r.first_received_at_ms, r.received_at_ms, m.grp, ?, m.position, m.dedup_id "
            "FROM onefold_message m LEFT JOIN onefold_received r ON r.id = m.id "
            "WHERE m.grp = ? AND m.queue = ? AND m.position > ? ORDER BY m.position LIMIT ?",
            (name, group, row.id, after, room),
        ).fetchall()
        for found in (Found(*values) for values in rows):
            if found.sent_at_ms <= row.expired_at_ms(now_ms):
                erase(connection, [found.id])
            elif found.visible_at_ms > now_ms or waits.put_off_in(connection, row, [found], now_ms):
                return chosen
            elif worn_out(row, found):
                if waits_for_stopped_in(connection, row, found, now_ms):
                    return chosen
                _stop_group(connection, row, found, name, now_ms)
                dead_letter_in(connection, row, [found], now_ms)
            else:
                chosen.append(found)
                if len(chosen) == room:
                    return chosen
        if len(rows) < room:
            return chosen
        after = rows[-1][12]


def _stop_group(connection: sqlite3.Connection, row: QueueRow, found: Found, group: str, now_ms: int) -> None:
    """Stop the group, as a worker does when it dead-letters a message, before the next messages can be received."""
    job = read_meta(found.meta).attributes.get(JOB_ATTRIBUTE)
    flag = row.flag_of(row.settings.name, group, None if job is None else job[1])
    if flag is not None:
        put_in(connection, [Change(flag, f"{row.token}-{found.id}".encode(), 0)], now_ms)  # no effect if it is stopped


def any_due(connection: sqlite3.Connection, row: QueueRow, now_ms: int) -> bool:
    """Whether a scheduled message has not entered its group although it is due."""
    return (
        connection.execute(
            "SELECT 1 FROM onefold_scheduled WHERE queue = ? AND due_at_ms <= ?", (row.id, now_ms)
        ).fetchone()
        is not None
    )


def promote_in(connection: sqlite3.Connection, row: QueueRow, now_ms: int, count_max: int | None) -> int:
    """Let due scheduled messages enter their groups as if they had been sent when due; returns how many were due.

    Position and deduplication are decided here. A duplicate of a message accepted in the 5 minutes before is dropped.
    """
    due = connection.execute(
        "SELECT id, due_at_ms FROM onefold_scheduled WHERE queue = ? AND due_at_ms <= ? ORDER BY due_at_ms, id LIMIT ?",
        (row.id, now_ms, -1 if count_max is None else count_max),
    ).fetchall()
    if not due:
        return 0
    due = [one for one in due if not waits.put_off_scheduled_in(connection, row, one[0], one[1], now_ms)]
    if not due:
        return 0
    first = draw_ids(connection, len(due))
    memory = Memory(connection, row)
    for position, (number, due_at_ms) in enumerate(due, start=first):
        text, dedup_id, body, visible_at_ms = connection.execute(
            "SELECT meta, dedup_id, body, visible_at_ms FROM onefold_message WHERE id = ?", (number,)
        ).fetchone()
        group = read_meta(text).group
        if memory.first_of(group, dedup_id, body, number, position, due_at_ms) is not None:
            erase(connection, [number])
            continue
        grp = ensure_groups_in(connection, row.id, {group: position}, visible_at_ms)[group]
        connection.execute("UPDATE onefold_message SET grp = ?, position = ? WHERE id = ?", (grp, position, number))
    connection.executemany(
        "DELETE FROM onefold_scheduled WHERE queue = ? AND due_at_ms = ? AND id = ?",
        [(row.id, due_at_ms, number) for number, due_at_ms in due],
    )
    memory.write()
    return len(due)
