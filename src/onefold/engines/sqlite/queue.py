"""The embedded queue: SQS's semantics on a SQLite file.

`SqliteQueue` implements the Queue contract; each method is one transaction. The functions whose names end in `_in` do the
same inside a transaction that the caller opened, so that a settlement can commit with its record. Standard queues are
implemented here and FIFO queues in `fifo`; `settle` has what happens after a receive.

A standard queue is ordered by the instant at which its messages became visible. A message that is visible again comes
before those that were never received, unless it was already received three times: then it goes to the back, as on SQS,
so that it does not block others.
Never here: policy, waiting, operations for operators. Invariant: a message has only one receiver until its visibility ends.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from onefold import errors
from onefold.clock import Jumps
from onefold.contracts.entries import NOT_SENT, Entry, Refused, Sent, check_entry
from onefold.contracts.queue import Delivery, Depth, MoveTo, QueueCapabilities, RetryIn
from onefold.engines.sqlite import fifo, waits
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.fifo import body_digest
from onefold.engines.sqlite.filetime import longer_sql
from onefold.engines.sqlite.rows import (
    Catalogue,
    Found,
    QueueRow,
    draw_ids,
    entry_meta,
    insert,
    insert_alike,
    lock_groups_in,
    read_meta,
    receipt_text,
    sequence_text,
    unpacked,
)
from onefold.engines.sqlite.settle import (
    check_visibility,
    dead_letter_in,
    delete_in,
    end_visibilities_in,
    move_aside_in,
    receipt_states_in,
    set_visible_in,
    settle_in,
    waits_for_stopped_in,
    worn_out,
)

if TYPE_CHECKING:
    from onefold.contracts.verbs import ReceiptState

__all__ = [
    "SqliteQueue",
    "delete_in",
    "depth_in",
    "end_visibilities_in",
    "receive_in",
    "send_in",
    "set_visible_in",
    "settle_in",
]

CAPABILITIES: Final = QueueCapabilities(fifo=True, uncounted=True, run_at=True, atomic_move=True)
_PUT_OFF_MAX: Final = 100  # how often one receive chooses again after it had to put off messages, ten at a time
_AT_ONCE: Final = (None, None, None)
_TURNS_MAX: Final = 10  # how often one receive chooses again after it had to dead-letter messages
# SQS developer guide, dead-letter queues: after this many receives, a message goes to the back.
_RECEIVES_BEFORE_BACK: Final = 3


class SqliteQueue:
    """One queue of a file. Safe to call from any thread.

    Args:
        engine: the file.
        catalogue: the file's queues.
        name: the queue's name.
        owner: returns the id of the receiving process; None when its death cannot be detected.
        fifo: whether it is a FIFO queue.
    """

    capabilities = CAPABILITIES

    def __init__(
        self, engine: Database, catalogue: Catalogue, name: str, owner: Callable[[], str | None], *, fifo: bool
    ) -> None:
        self.name = name
        self._is_fifo = fifo
        self._catalogue = catalogue
        self._owner = owner
        self._engine = engine
        self._clock = engine.clock
        self._was_empty = False

    def send(self, entries: Sequence[Entry], *, whole: bool = False) -> list[Sent | Refused]:
        """Accept messages (with `whole`: all or none); on return the accepted ones are on disk, in the order given.

        Raises:
            StorageBusy: nothing was accepted.
            NotFoundError: the queue was dropped.
        """
        return self._engine.write(
            lambda connection: send_in(connection, self._row(connection), entries, self._clock.now_ms(), whole=whole),
            early=not self._is_fifo,  # FIFO: a duplicate gets the first message's id, which must be on disk
            adds=True,
        )

    def receive(self, count_max: int, visible_ms: int | None = None) -> list[Delivery]:
        """Receive up to `count_max` messages and hide each for `visible_ms` (None: the queue's setting).

        After an empty result, the next call first reads whether there is anything, so that idle pollers do not block
        writers. A receive does not wait for the disk: a power cut ends the receiver too, and the message counts as not
        received.

        Raises:
            OverLimitError: a standard queue has reached its limit of messages in flight.
            UsageError: `count_max` is below 1, or `visible_ms` out of its range.
        """
        if self._was_empty and not self._engine.read(
            lambda connection: anything_ready(connection, self._row(connection), self._clock.now_ms())
        ):
            return []
        deliveries = self._engine.write(
            lambda connection: receive_in(
                connection,
                self._row(connection),
                count_max,
                visible_ms,
                self._owner(),
                self._clock.now_ms(),
                behind_ms=self._clock.behind_ms,
            ),
            synced=False,
        )
        self._was_empty = not deliveries
        return deliveries

    def set_visible_in(self, changes: Sequence[tuple[str, RetryIn]]) -> list[bool]:
        """Hide each receipt's message for a new time from now: `settle.set_visible_in`, without a sync."""
        return self._engine.write(
            lambda connection: set_visible_in(
                connection, self._row(connection), changes, self._clock.now_ms(), behind_ms=self._clock.behind_ms
            ),
            synced=False,
        )

    def delete(self, receipts: Sequence[str]) -> list[bool]:
        """Delete each receipt's message; False where a FIFO receipt has expired."""
        return self._engine.write(
            lambda connection: delete_in(connection, self._row(connection), receipts, self._clock.now_ms())
        )

    def move_aside(self, moves: Sequence[tuple[str, MoveTo]]) -> list[bool]:
        """Move each receipt's message to its dead-letter or held queue with the reason.

        Raises:
            UsageError: the queue has no dead-letter or held queue.
        """
        return self._engine.write(
            lambda connection: move_aside_in(connection, self._row(connection), moves, self._clock.now_ms())
        )

    def receipt_states(self, receipts: Sequence[str]) -> list[ReceiptState]:
        """The state of each receipt; for callers that got False for one.

        Raises:
            UsageError: a receipt is malformed.
        """
        return self._engine.read(
            lambda connection: receipt_states_in(connection, self._row(connection), receipts, self._clock.now_ms())
        )

    def depth(self) -> Depth:
        """How many messages there are, exactly."""

        def count(connection: sqlite3.Connection) -> Depth | None:
            row, now_ms = self._row(connection), self._clock.now_ms()
            return None if fifo.any_due(connection, row, now_ms) else depth_in(connection, row, now_ms)

        def let_in_and_count(connection: sqlite3.Connection) -> Depth:
            row, now_ms = self._row(connection), self._clock.now_ms()
            fifo.promote_in(connection, row, now_ms, None)
            return depth_in(connection, row, now_ms)

        return self._engine.read(count) or self._engine.write(let_in_and_count)

    def _row(self, connection: sqlite3.Connection) -> QueueRow:
        return self._catalogue.row_in(connection, self.name)


# -- sending -----------------------------------------------------------------------------------------------


def send_in(
    connection: sqlite3.Connection, row: QueueRow, entries: Sequence[Entry], now_ms: int, *, whole: bool = False
) -> list[Sent | Refused]:
    """`Queue.send` inside the transaction open on `connection`."""
    settings = row.settings
    if settings.fifo:
        return fifo.send_in(connection, row, entries, now_ms, whole=whole)
    answers: list[Sent | Refused | None] = [check_entry(entry, settings) for entry in entries]
    good = answers.count(None)
    if not good or (whole and good < len(entries)):
        return [answer or NOT_SENT for answer in answers]
    first = number = draw_ids(connection, good)
    token, accepted, is_timed = row.token, [], False
    for index, entry in enumerate(entries):
        if answers[index] is None:
            accepted.append(entry)
            is_timed = is_timed or (entry.delay_ms, entry.run_at_ms, entry.wait_ms) != _AT_ONCE
            answers[index] = Sent(f"{token}-{number}")
            number += 1
    if is_timed:
        insert(connection, [waits.timed(row, number, entry, now_ms) for number, entry in enumerate(accepted, first)])
    else:
        at = (row.id, first, now_ms, now_ms + settings.delay_ms)
        insert_alike(connection, at, [(entry.key, entry_meta(entry, entry.group), entry.body) for entry in accepted])
    return answers  # type: ignore[return-value]  # the good ones were filled in above


# -- receiving ---------------------------------------------------------------------------------------------


class _Tally(NamedTuple):
    """The queue's count of receives: `total - base` is never below the number in flight."""

    total: int
    base: int


def receive_in(
    connection: sqlite3.Connection,
    row: QueueRow,
    count_max: int,
    visible_ms: int | None,
    owner: str | None,
    now_ms: int,
    *,
    behind_ms: int = 0,
) -> list[Delivery]:
    """`Queue.receive` inside the transaction open on `connection`.

    Args:
        owner: stored as the holder. behind_ms: as for `settle.set_visible_in`.
    """
    if visible_ms is None:
        visible_ms = row.settings.visibility_ms
    check_visibility(visible_ms)
    if count_max < 1:
        raise errors.UsageError(f"receive({count_max}) asks for no message.", todo="Ask for 1 or more.")
    room, tally = _room(connection, row, count_max, now_ms)
    if not room:
        return []
    choose = fifo.choose if row.settings.fifo else _choose
    chosen = choose(connection, row, room, now_ms)
    if not chosen:
        return []
    visible_at_ms = now_ms + visible_ms + (behind_ms if visible_ms else 0)
    _hide(connection, row, chosen, visible_at_ms, owner, now_ms)
    if row.settings.fifo:
        lock_groups_in(connection, row, chosen, visible_at_ms, tally.total + 1)
    connection.execute(
        "UPDATE onefold_queue SET receives_total = ?, receives_base = ? WHERE id = ?",
        (tally.total + len(chosen), tally.base, row.id),
    )
    return [_delivery(row, found, visible_ms, now_ms) for found in chosen]


def _room(connection: sqlite3.Connection, row: QueueRow, count_max: int, now_ms: int) -> tuple[int, _Tally]:
    """How many messages the limit on messages in flight allows. They are counted only when the limit may be near."""
    total, base = connection.execute(
        "SELECT receives_total, receives_base FROM onefold_queue WHERE id = ?", (row.id,)
    ).fetchone()
    cap = row.settings.in_flight_max
    if total - base + count_max <= cap:
        return count_max, _Tally(total, base)
    in_flight = connection.execute(
        "SELECT count(*) FROM onefold_received WHERE queue = ? AND visible_at_ms > ? AND sent_at_ms > ?",
        (row.id, now_ms, row.expired_at_ms(now_ms)),
    ).fetchone()[0]
    if in_flight >= cap and not row.settings.fifo:
        raise errors.OverLimitError(
            f"Queue {row.settings.name!r} has {in_flight} messages in flight (SQS: OverLimit).",
            meaning=f"No more than {cap} may be received and not yet settled; nothing was received.",
            todo="Settle messages, or receive fewer at a time.",
        )
    return max(0, min(count_max, cap - in_flight)), _Tally(total, total - in_flight)


def _choose(connection: sqlite3.Connection, row: QueueRow, count_max: int, now_ms: int) -> list[Found]:
    """Up to `count_max` messages of a standard queue that can be received now, in order; marks none as received."""
    returned = _returned(connection, row, count_max, now_ms)
    back = [found for found in returned if (found.receives or 0) >= _RECEIVES_BEFORE_BACK]
    front = [found for found in returned if (found.receives or 0) < _RECEIVES_BEFORE_BACK] if back else returned
    room = count_max - len(front)
    if not room:
        return front
    fresh = _fresh(connection, row, room, now_ms)
    if back:
        fresh = sorted(fresh + back, key=lambda found: (found.visible_at_ms, found.id))[:room]
    return front + fresh if front else fresh


def _fresh(connection: sqlite3.Connection, row: QueueRow, count_max: int, now_ms: int) -> list[Found]:
    """Messages that were never received and are visible. Those that must wait for longer are put off."""
    fresh: list[Found] = []
    early: set[int] = set()
    for _ in range(_PUT_OFF_MAX):
        rows = connection.execute(
            "SELECT m.id, m.sent_at_ms, m.key, m.meta, m.body, w.visible_at_ms, NULL, NULL, NULL, NULL "
            "FROM onefold_waiting w CROSS JOIN onefold_message m ON m.id = w.id "
            "WHERE w.queue = ? AND w.visible_at_ms > ? AND w.visible_at_ms <= ? AND w.sent_at_ms > ? "
            "ORDER BY w.visible_at_ms, w.id LIMIT ?",
            (*_span(row, now_ms), count_max),
        ).fetchall()
        fresh = [Found(*values) for values in rows]
        early = waits.put_off_in(connection, row, fresh, now_ms)
        if not early:
            return fresh
    return [found for found in fresh if found.id not in early]


def _returned(connection: sqlite3.Connection, row: QueueRow, count_max: int, now_ms: int) -> list[Found]:
    """Messages that were received before and are visible again. Those without receives left are dead-lettered."""
    returned: list[Found] = []
    early: set[int] = set()
    for _ in range(_TURNS_MAX):
        rows = connection.execute(
            "SELECT m.id, m.sent_at_ms, m.key, m.meta, m.body, r.visible_at_ms, r.receives, r.delivery, "
            "r.first_received_at_ms, r.received_at_ms FROM onefold_received r CROSS JOIN onefold_message m ON m.id = r.id "
            "WHERE r.queue = ? AND r.visible_at_ms > ? AND r.visible_at_ms <= ? AND r.sent_at_ms > ? "
            "ORDER BY r.visible_at_ms, r.id LIMIT ?",
            (*_span(row, now_ms), count_max),
        ).fetchall()
        returned = [Found(*values) for values in rows]
        early = waits.put_off_in(connection, row, returned, now_ms)
        worn = [found for found in returned if worn_out(row, found) and found.id not in early]
        if not worn and not early:
            return returned
        left = [found for found in worn if not waits_for_stopped_in(connection, row, found, now_ms)]
        if left:
            dead_letter_in(connection, row, left, now_ms)
    return [found for found in returned if not worn_out(row, found) and found.id not in early]


def _span(row: QueueRow, now_ms: int) -> tuple[int, int, int, int]:
    """The queue, and the instants between which a visible, unexpired message must have become visible and been sent.

    A message is never visible before it is sent, so the first instant skips expired messages without reading them.
    """
    expired_at_ms = row.expired_at_ms(now_ms)
    return row.id, expired_at_ms, now_ms, expired_at_ms


def _hide(
    connection: sqlite3.Connection,
    row: QueueRow,
    chosen: Sequence[Found],
    until_ms: int,
    owner: str | None,
    now_ms: int,
) -> None:
    fresh = [found for found in chosen if found.delivery is None]
    connection.executemany(
        "DELETE FROM onefold_waiting WHERE queue = ? AND visible_at_ms = ? AND id = ?",
        [(row.id, found.visible_at_ms, found.id) for found in fresh],
    )
    connection.executemany(
        "INSERT INTO onefold_received (id, queue, visible_at_ms, sent_at_ms, receives, delivery, first_received_at_ms, "
        "received_at_ms, owner) VALUES (?, ?, ?, ?, 1, 1, ?, ?, ?)",
        [(found.id, row.id, until_ms, found.sent_at_ms, now_ms, now_ms, owner) for found in fresh],
    )
    if len(fresh) < len(chosen):
        connection.executemany(
            "UPDATE onefold_received SET visible_at_ms = ?, receives = receives + 1, delivery = delivery + 1, "
            "received_at_ms = ?, owner = ? WHERE id = ?",
            [(until_ms, now_ms, owner, found.id) for found in chosen if found.delivery is not None],
        )


def _delivery(row: QueueRow, found: Found, visible_ms: int, now_ms: int) -> Delivery:
    number, delivery = found.id, (found.delivery or 0) + 1
    if found.meta is None and found.grp is None:
        return Delivery(
            queue=row.settings.name,
            message_id=f"{row.token}-{number}",
            receipt=f"{number}:{delivery}",
            body=found.body,
            attributes={},
            receive_count=(found.receives or 0) + 1,
            sent_at_ms=found.sent_at_ms,
            first_received_at_ms=found.first_received_at_ms or now_ms,
            received_at_ms=now_ms,
            visible_ms=visible_ms,
            key=found.key,
        )
    meta = read_meta(found.meta)
    is_fifo = found.grp is not None
    return Delivery(
        queue=row.settings.name,
        message_id=f"{row.token}-{number}",
        receipt=receipt_text(number, delivery, found.grp),
        body=found.body,
        attributes=unpacked(meta.attributes),
        receive_count=(found.receives or 0) + 1,
        sent_at_ms=found.sent_at_ms,
        first_received_at_ms=found.first_received_at_ms or now_ms,
        received_at_ms=now_ms,
        visible_ms=visible_ms,
        group=found.group if is_fifo else meta.group,
        dedup_id=(found.dedup_id or body_digest(found.body)) if is_fifo else None,
        sequence=sequence_text(found.position),
        key=found.key,
        trace=meta.trace,
        source=meta.source,
        reason=meta.reason,
        accepted_at_ms=meta.accepted_at_ms,
        trusted=not meta.foreign,
    )


# -- looking -----------------------------------------------------------------------------------------------


def anything_ready(connection: sqlite3.Connection, row: QueueRow, now_ms: int) -> bool:
    """Whether a receive might find something: it can be wrong with True, never with False."""
    if row.settings.fifo:
        found = connection.execute(
            "SELECT EXISTS (SELECT 1 FROM onefold_group WHERE queue = ? AND ready_at_ms <= ?) "
            "OR EXISTS (SELECT 1 FROM onefold_scheduled WHERE queue = ? AND due_at_ms <= ?)",
            (row.id, now_ms) * 2,
        ).fetchone()[0]
    else:
        found = connection.execute(
            "SELECT EXISTS (SELECT 1 FROM onefold_waiting WHERE queue = ? AND visible_at_ms > ? AND visible_at_ms <= ?) "
            "OR EXISTS (SELECT 1 FROM onefold_received WHERE queue = ? AND visible_at_ms > ? AND visible_at_ms <= ?)",
            _span(row, now_ms)[:3] * 2,
        ).fetchone()[0]
    return bool(found)


def next_ready_ms(connection: sqlite3.Connection, row: QueueRow, now_ms: int) -> int | None:
    """The next instant after `now_ms` at which a message becomes visible; None if there is none."""
    tables = (
        (("group", "ready_at_ms"), ("scheduled", "due_at_ms"))
        if row.settings.fifo
        else (("waiting", "visible_at_ms"), ("received", "visible_at_ms"))
    )
    found = [
        connection.execute(
            f"SELECT min({column}) FROM onefold_{table} WHERE queue = ? AND {column} > ?", (row.id, now_ms)
        ).fetchone()[0]
        for table, column in tables
    ]
    return min((at_ms for at_ms in found if at_ms is not None), default=None)


def depth_in(connection: sqlite3.Connection, row: QueueRow, now_ms: int) -> Depth:
    """`Queue.depth` in the snapshot or transaction of `connection`; expired messages are not counted."""
    since_ms = row.expired_at_ms(now_ms)
    begun, later = (row.id, since_ms, now_ms, since_ms), (row.id, now_ms, since_ms)

    def counted(table: str) -> tuple[int, int | None, int, int | None]:
        """How many messages are visible and how many are not, and the oldest of each; one index range for each."""
        found = f"SELECT count(*), min(sent_at_ms) FROM {table} WHERE queue = ? AND visible_at_ms > ?"
        visible = connection.execute(f"{found} AND visible_at_ms <= ? AND sent_at_ms > ?", begun).fetchone()
        hidden = connection.execute(f"{found} AND sent_at_ms > ?", later).fetchone()
        return (*visible, *hidden)

    visible, oldest_waiting, delayed, _ = counted("onefold_waiting")
    again, oldest_visible, in_flight, oldest_hidden = counted("onefold_received")
    (to_retry,) = connection.execute(
        "SELECT count(*) FROM onefold_received WHERE queue = ? AND visible_at_ms > ? AND sent_at_ms > ? AND owner IS NULL",
        later,
    ).fetchone()
    oldest = [sent_at_ms for sent_at_ms in (oldest_waiting, oldest_visible, oldest_hidden) if sent_at_ms is not None]
    return Depth(
        visible=visible + again,
        in_flight=in_flight,
        delayed=delayed,
        oldest_age_ms=max(0, now_ms - min(oldest)) if oldest else None,
        to_retry=to_retry,
    )


def depths_in(connection: sqlite3.Connection, now_ms: int, jumps: Jumps) -> tuple[dict[str, Depth], set[str]]:
    """The depth of every queue, as from `depth_in`, in three statements however many queues there are.

    Returns:
        Depths by name; and the names of FIFO queues in which a due scheduled message has not entered its group yet, so
        that their depth is not final.
    """
    visible, delayed, in_flight, to_retry = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    oldest: dict[str, int] = {}
    longer = longer_sql(jumps, "m.sent_at_ms")
    for table, hidden in (("onefold_waiting", delayed), ("onefold_received", in_flight)):
        counted = "" if hidden is in_flight else " FILTER (WHERE m.visible_at_ms <= :now)"
        given_back = (
            "count(*) FILTER (WHERE m.visible_at_ms > :now AND m.owner IS NULL)" if hidden is in_flight else "0"
        )
        for name, ready, later, back, first_ms in connection.execute(
            "SELECT q.name, count(*) FILTER (WHERE m.visible_at_ms <= :now), "
            f"count(*) FILTER (WHERE m.visible_at_ms > :now), {given_back}, "
            f"min(m.sent_at_ms){counted} FROM onefold_queue q JOIN {table} m ON m.queue = q.id "
            "AND m.visible_at_ms > :now - :longest - json_extract(q.settings, '$.retention_ms') "
            f"AND m.sent_at_ms{longer} > :now - json_extract(q.settings, '$.retention_ms') GROUP BY q.id",
            {"now": now_ms, "longest": sum(jump.by_ms for jump in jumps.noted)},
        ):
            visible[name] += ready
            hidden[name] += later
            to_retry[name] += back
            if first_ms is not None:
                oldest[name] = min(first_ms, oldest.get(name, first_ms))
    late = connection.execute(
        "SELECT DISTINCT q.name FROM onefold_scheduled s JOIN onefold_queue q ON q.id = s.queue WHERE s.due_at_ms <= ?",
        (now_ms,),
    )
    names = connection.execute("SELECT name FROM onefold_queue").fetchall()
    return {
        name: Depth(
            visible=visible[name],
            in_flight=in_flight[name],
            delayed=delayed[name],
            oldest_age_ms=max(0, now_ms - oldest[name]) if name in oldest else None,
            to_retry=to_retry[name],
        )
        for (name,) in names
    }, {name for (name,) in late}
