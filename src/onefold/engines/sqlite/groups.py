"""The rows of message groups: from when on something of each group can be received, and whose turn it is.

SQS's rule, from what it was seen to do: a group is scanned from its head, and delivery stops at the first message that
cannot be seen. So a group is open when its head is visible; who holds the head holds the group. `ready_at_ms` is kept
up to date by whoever changes a head, so that a receive costs the same with ten groups and with ten thousand. Groups are
served in the order in which they became ready, among equals the one served longest ago first.

Never here: messages; what is sent and received is in `fifo`.
Invariant: `ready_at_ms` is never later than the instant at which something of the group can be received, and a group
without messages has no row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from onefold.engines.sqlite.rows import Found, QueueRow


def ensure_in(
    connection: sqlite3.Connection, queue: int, names: Iterable[str | None], ready_at_ms: int
) -> dict[str | None, int]:
    """The groups of these names, made where they do not exist. Those that do keep their `ready_at_ms`."""
    found: dict[str | None, int] = {}
    for name in names:
        group = connection.execute(
            "SELECT id FROM onefold_group WHERE queue = ? AND name = ?", (queue, name)
        ).fetchone()
        if group is None:
            group = connection.execute(
                "INSERT INTO onefold_group (queue, name, ready_at_ms, rotation) VALUES (?, ?, ?, 0) RETURNING id",
                (queue, name, ready_at_ms),
            ).fetchone()
        found[name] = group[0]
    return found


def members_in(connection: sqlite3.Connection, queue: int, name: str, limit: int | None) -> list[int]:
    """Numbers of the messages of a group, from its head on."""
    found = connection.execute(
        "SELECT id FROM onefold_message WHERE grp = (SELECT id FROM onefold_group WHERE queue = ? AND name = ?) "
        "ORDER BY position LIMIT ?",
        (queue, name, -1 if limit is None else limit),
    )
    return [number for (number,) in found]


def refresh_in(connection: sqlite3.Connection, row: QueueRow, groups: Iterable[int], now_ms: int) -> None:
    """Work out anew when each group is ready, from its head; forget those that are empty.

    A group that is open goes to the end of the rotation.
    """
    retention_ms = row.settings.retention_ms
    changed = [(now_ms, retention_ms, group, group) for group in groups]
    connection.executemany(
        "UPDATE onefold_group SET ready_at_ms = ("
        "SELECT max(?, min(coalesce(r.visible_at_ms, m.visible_at_ms), m.sent_at_ms + ?)) "
        "FROM onefold_message m LEFT JOIN onefold_received r ON r.id = m.id WHERE m.grp = ? ORDER BY m.position LIMIT 1) "
        "WHERE id = ?",
        changed,
    )
    connection.executemany(
        "DELETE FROM onefold_group WHERE id = ? AND ready_at_ms IS NULL", [(group,) for *_, group in changed]
    )


def lock_in(connection: sqlite3.Connection, row: QueueRow, chosen: Sequence[Found], until_ms: int, turn: int) -> None:
    """Close the groups of messages that are being received until their heads are visible again.

    Args:
        chosen: what `choose` gave.
        until_ms: when the messages are visible again.
        turn: 1 or more, grows with every receive; puts these groups at the end of the rotation.
    """
    heads: dict[int | None, int] = {}
    for found in chosen:
        heads.setdefault(found.grp, found.sent_at_ms)
    retention_ms = row.settings.retention_ms
    connection.executemany(
        "UPDATE onefold_group SET ready_at_ms = ?, rotation = ? WHERE id = ?",
        [
            (min(until_ms, sent_at_ms + retention_ms), turn + place, group)
            for place, (group, sent_at_ms) in enumerate(heads.items())
        ],
    )


def look_again_in(connection: sqlite3.Connection, queue: int, now_ms: int) -> None:
    """Have the next receive look into every group: the queue's settings, and with them the heads' instants, changed."""
    connection.execute("UPDATE onefold_group SET ready_at_ms = min(ready_at_ms, ?) WHERE queue = ?", (now_ms, queue))
