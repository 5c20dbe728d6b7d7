"""Moving messages: single messages that an operator chooses, or a whole dead-letter queue by a move task, as SQS does.

A moved message is a new message: it has a new id, a receive count of 0, and a retention that starts now. Body,
attributes, group, trace and key are kept; reason and source are not. On FIFO queues the deduplication id is the old
message id, so that a redrive within five minutes is not dropped as a duplicate. A task moves the messages that existed
when it began and are not in flight, on FIFO queues in order; messages that come back while it runs are left for the
next task. Dead letters of a stopped FIFO group (marked by a flag in State) are left as well: the group must be redriven
as a whole, or it would lose its order. Invariant: a message is in exactly one of the two queues at any moment.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from onefold import errors, limits
from onefold.contracts.admin import Edit, Moved, MoveTask, Peeked, Transferred
from onefold.contracts.ledger import Row
from onefold.contracts.queue import JOB_ATTRIBUTE, RUN_ATTRIBUTE
from onefold.contracts.state import STOPPED_PREFIX
from onefold.contracts.store import RecordKey, key_range
from onefold.engines.sqlite import browse
from onefold.engines.sqlite.connection import LentConnection
from onefold.engines.sqlite.ledger import append_in
from onefold.engines.sqlite.rows import (
    Catalogue,
    MessageMeta,
    QueueRow,
    draw_ids,
    ensure_groups_in,
    erase,
    insert,
    message_number,
    meta_text,
    packed,
    refresh_groups_in,
    stored_in,
)

_MOVED_AT_ONCE: Final = 1_000  # messages in one step of a task, a transaction of less than 0.1 s
# Whether a message's group is stopped in the target queue. One parameter: that queue, or NULL for the message's source
# queue.
_FLAG: Final = (
    "SELECT 1 FROM onefold_state s WHERE s.value IS NOT NULL AND "
    f"s.name = '{STOPPED_PREFIX}' || coalesce(?, json_extract(m.meta, '$.source')) || '/' || "
    "(SELECT name FROM onefold_group WHERE id = m.grp)"
)
_COLUMNS: Final = "handle, source, target, per_second_max, status, to_move, moved, started_at_ms, failure"


def send_on_in(
    connection: sqlite3.Connection,
    catalogue: Catalogue,
    moves: Sequence[tuple[str, str | None, Edit | None]],
    now_ms: int,
) -> list[Moved | None]:
    """Move each message to the named queue, or back to where it came from; None if it does not exist or is in flight.

    Raises:
        UsageError: no target was named for a message without a source, or the target does not accept the contents or
            type.
        NotFoundError: the target does not exist.
    """
    token = catalogue.token_in(connection)
    answers: list[Moved | None] = []
    for message_id, to, edit in moves:
        number = message_number(token, message_id)
        message = browse.peek_one_in(connection, catalogue, number, now_ms)
        if number is None or message is None or message.state == "in_flight":
            answers.append(None)
            continue
        target = catalogue.row_in(connection, to or _source_of(message))
        if edit is not None:
            browse.check_edit(target, message, edit)
        answers.append(_send_on(connection, catalogue, number, message, target, edit, now_ms))
    return answers


def _source_of(message: Peeked) -> str:
    if message.source is None:
        raise errors.UsageError(
            f"Message {message.message_id} in {message.queue!r} did not come from another queue.",
            meaning="It was sent there directly, so there is nowhere to send it back to. Nothing was moved.",
            todo="Name the queue it should go to.",
        )
    return message.source


def _send_on(
    connection: sqlite3.Connection,
    catalogue: Catalogue,
    number: int,
    message: Peeked,
    target: QueueRow,
    edit: Edit | None,
    now_ms: int,
) -> Moved:
    source = catalogue.row_in(connection, message.queue)
    _check_types(source, target)
    old_group, trace = connection.execute(
        "SELECT grp, json_extract(meta, '$.trace') FROM onefold_message WHERE id = ?", (number,)
    ).fetchone()
    new = draw_ids(connection, 1)
    visible_at_ms = now_ms + target.settings.delay_ms
    meta = MessageMeta(
        attributes=packed(edit.attributes if edit else message.attributes),
        trace=trace,
        foreign=edit is None and not message.trusted,
    )
    grp = dedup_id = None
    if target.settings.fifo:
        grp = ensure_groups_in(connection, target.id, {message.group: new}, visible_at_ms)[message.group]
        dedup_id = message.message_id
    else:
        meta.group = message.group
    erase(connection, [number])
    insert(
        connection,
        [(target.id, new, now_ms, visible_at_ms, grp, None if grp is None else new, dedup_id, message.key,
          meta_text(meta), edit.body if edit else message.body)],
    )  # fmt: skip
    if old_group is not None:  # after the insert, or its group could be empty and be deleted
        refresh_groups_in(connection, source, [old_group], now_ms)
    moved = Moved(message.message_id, f"{target.token}-{new}", target.settings.name)
    if isinstance(connection, LentConnection):
        count = message.receive_count
        connection.note_transferred(
            Transferred(moved.message_id, message.queue, moved.queue, count, moved.new_message_id)
        )
    return moved


def _check_types(source: QueueRow, target: QueueRow) -> None:
    if source.settings.fifo != target.settings.fifo:
        raise errors.UsageError(
            f"Messages of {source.settings.name!r} cannot go to {target.settings.name!r}.",
            meaning="One is a FIFO queue and the other is not. Nothing was moved.",
            todo="Name a queue of the same type.",
        )


# -- move tasks --------------------------------------------------------------------------------------------


def start_in(
    connection: sqlite3.Connection,
    catalogue: Catalogue,
    source: str,
    to: str | None,
    per_second_max: int | None,
    handle: str,
    now_ms: int,
) -> MoveTask:
    """Begin a task; `step_in` does the work.

    Raises:
        UsageError: `source` is not a dead-letter queue, has a running task, is the same queue as `to`, or is of another
            type; or the rate is out of range.
        NotFoundError: one of the queues does not exist.
    """
    row = catalogue.row_in(connection, source)
    if to is not None:
        _check_types(row, catalogue.row_in(connection, to))
    if per_second_max is not None and not 1 <= per_second_max <= limits.MOVE_PER_SECOND_MAX:
        raise errors.UsageError(
            f"A move of {per_second_max} messages a second was asked for.",
            meaning=f"The rate is 1 to {limits.MOVE_PER_SECOND_MAX} a second.",
            todo="Choose a rate in that range, or none.",
        )
    if to == source or all(settings.dead_letter != source for settings in stored_in(connection)):
        raise errors.UsageError(
            "Source queue must be configured as a Dead Letter Queue.",
            meaning=f"No queue dead-letters to {source!r}, or it was to be moved to itself. Nothing was moved.",
            todo="Name a dead-letter queue as the source; single messages of other queues can be moved by id.",
        )
    if any(task.status == "RUNNING" for task in tasks_in(connection, source)):
        raise errors.UsageError(
            "There is already a task running. Only one active task is allowed for a source queue arn at a given time.",
            meaning=f"Messages of {source!r} are being moved. Nothing was changed.",
            todo="Wait for it to finish, or cancel it.",
        )
    last_id = connection.execute("SELECT last_id FROM onefold_file").fetchone()[0]
    to_move = len(_movable(connection, row, to, last_id, -1, now_ms))
    connection.execute(
        "INSERT INTO onefold_move_task (handle, source, target, per_second_max, status, to_move, last_id, "
        "started_at_ms) VALUES (?, ?, ?, ?, 'RUNNING', ?, ?, ?)",
        (handle, source, to, per_second_max, to_move, last_id, now_ms),
    )
    return task_in(connection, handle)


def step_in(connection: sqlite3.Connection, catalogue: Catalogue, handle: str, now_ms: int) -> int:
    """Continue a running task as far as its rate allows now; returns how many messages moved."""
    task = task_in(connection, handle)
    if task.status != "RUNNING":
        return 0
    room = _MOVED_AT_ONCE
    if task.per_second_max is not None:
        allowed = 1 + (now_ms - task.started_at_ms) * task.per_second_max // limits.SECOND_MS
        room = max(0, min(room, allowed - task.moved))
    (last_id,) = connection.execute("SELECT last_id FROM onefold_move_task WHERE handle = ?", (handle,)).fetchone()
    moved, failure, done = 0, None, True
    try:
        row = catalogue.row_in(connection, task.source)
        for number in _movable(connection, row, task.to, last_id, room, now_ms):
            message = browse.peek_one_in(connection, catalogue, number, now_ms)
            (went,) = send_on_in(connection, catalogue, [(f"{row.token}-{number}", task.to, None)], now_ms)
            if message is not None and went is not None:
                _note(connection, message, went, handle, now_ms)
            moved += 1
        done = moved < room
        if done:
            failure = _left_behind(connection, row, task.to, last_id, now_ms)
    except errors.NotFoundError:
        failure = "AWS.SimpleQueueService.NonExistentQueue"
    status = "FAILED" if failure else "COMPLETED" if done else "RUNNING"
    connection.execute(
        "UPDATE onefold_move_task SET moved = moved + ?, status = ?, failure = ? WHERE handle = ?",
        (moved, status, failure, handle),
    )
    return moved


def _note(connection: sqlite3.Connection, message: Peeked, went: Moved, handle: str, now_ms: int) -> None:
    """Write into the operation's history that a task moved its message.

    The tenant of an operation is not stored with its message but in its record; if several tenants use the key, or the
    message does not name an operation, nothing is written.
    """
    job = message.attributes.get(JOB_ATTRIBUTE)
    if message.key is None or job is None:
        return
    scopes = connection.execute(
        "SELECT DISTINCT scope FROM onefold_record WHERE ident >= ? AND ident < ? AND key = ? AND job = ?",
        (*key_range(message.key), message.key, job.value),
    ).fetchall()
    if len(scopes) != 1:
        return
    run = message.attributes.get(RUN_ATTRIBUTE)
    row = Row(
        at_ms=now_ms,
        event="redrive",
        key=RecordKey(scopes[0][0], str(job.value), message.key),
        queue=message.queue,
        message_id=message.message_id,
        run=None if run is None else str(run.value),
        actor=f"move-task:{handle}",
        detail={"to": went.queue, "new_message_id": went.new_message_id},
    )
    append_in(connection, [row])


def _movable(
    connection: sqlite3.Connection, row: QueueRow, to: str | None, last_id: int, limit: int, now_ms: int
) -> list[int]:
    """Messages that a task may move now: visible, older than the task, with a source if needed, in no stopped group."""
    visible = (row.id, now_ms, row.expired_at_ms(now_ms))
    found = connection.execute(
        "SELECT m.id FROM ("
        "SELECT id FROM onefold_waiting WHERE queue = ? AND visible_at_ms <= ? AND sent_at_ms > ? UNION ALL "
        "SELECT id FROM onefold_received WHERE queue = ? AND visible_at_ms <= ? AND sent_at_ms > ?"
        ") AS here CROSS JOIN onefold_message m ON m.id = here.id "
        "WHERE m.id <= ? AND (? OR json_extract(m.meta, '$.source') IS NOT NULL) "
        + (f"AND NOT EXISTS ({_FLAG}) ORDER BY m.position LIMIT ?" if row.settings.fifo else "LIMIT ?"),
        (*visible, *visible, last_id, to is not None, *((to,) if row.settings.fifo else ()), limit),
    ).fetchall()
    return [number for (number,) in found]


def _left_behind(
    connection: sqlite3.Connection, row: QueueRow, to: str | None, last_id: int, now_ms: int
) -> str | None:
    """Which messages the task could not move, and how to move them, as text; None if there are none."""
    if row.settings.fifo:
        count, group, source = connection.execute(
            "SELECT count(*), g.name, coalesce(?, json_extract(m.meta, '$.source')) "
            "FROM onefold_message m JOIN onefold_group g ON g.id = m.grp "
            f"WHERE m.queue = ? AND m.id <= ? AND m.sent_at_ms > ? AND EXISTS ({_FLAG})",
            (to, row.id, last_id, row.expired_at_ms(now_ms), to),
        ).fetchone()
        if count:
            return (
                f"{count} messages of stopped groups ({group!r} of {source!r}) stay in {row.settings.name!r}: "
                "a task would lose their order; send each group back as a whole (onefold dlq redrive --group)"
            )
    left = len(_movable(connection, row, "anywhere", last_id, -1, now_ms)) if to is None else 0
    if not left:
        return None
    return f"{left} messages were sent to {row.settings.name!r} directly and have no source: name a target for them"


def tasks_in(connection: sqlite3.Connection, source: str) -> list[MoveTask]:
    """The tasks of a source queue, newest first."""
    return [
        _task(values)
        for values in connection.execute(
            f"SELECT {_COLUMNS} FROM onefold_move_task WHERE source = ? ORDER BY id DESC", (source,)
        )
    ]


def running_in(connection: sqlite3.Connection) -> list[str]:
    """Handles of the running tasks, oldest first."""
    found = connection.execute("SELECT handle FROM onefold_move_task WHERE status = 'RUNNING' ORDER BY id")
    return [handle for (handle,) in found]


def task_in(connection: sqlite3.Connection, handle: str) -> MoveTask:
    """One task.

    Raises:
        NotFoundError: the task does not exist.
    """
    values = connection.execute(f"SELECT {_COLUMNS} FROM onefold_move_task WHERE handle = ?", (handle,)).fetchone()
    if values is None:
        raise errors.NotFoundError(
            "Task does not exist.",
            meaning=f"No move task has the handle {handle!r}.",
            todo="List the tasks of the dead-letter queue.",
        )
    return _task(values)


def cancel_in(connection: sqlite3.Connection, handle: str) -> MoveTask:
    """Stop a running task; messages that have moved are not moved back.

    Raises:
        NotFoundError: the task does not exist.
        UsageError: it is no longer running.
    """
    task = task_in(connection, handle)
    if task.status != "RUNNING":
        raise errors.UsageError(
            f"Move task {handle!r} is {task.status}.",
            meaning="Only a running task can be cancelled.",
            todo="Nothing needs to be done.",
        )
    connection.execute("UPDATE onefold_move_task SET status = 'CANCELLED' WHERE handle = ?", (handle,))
    return task_in(connection, handle)


def _task(values: tuple[Any, ...]) -> MoveTask:
    handle, source, target, per_second_max, status, to_move, moved, started_at_ms, failure = values
    return MoveTask(
        handle=handle,
        source=source,
        to=target,
        per_second_max=per_second_max,
        status=status,
        to_move=to_move,
        moved=moved,
        started_at_ms=started_at_ms,
        failure=failure,
    )
