"""The queues of one file: create, change, peek, move, purge, sweep. The QueueAdmin contract on SQLite.

Each method is one transaction, except sweeping and move tasks, which do a bounded amount of work per transaction so that no
other writer waits long. A late sweep is harmless: receives, depth and peek ignore what has expired. Individual operations
are implemented in the modules beside this one (`browse`, `moving`).
Never here: anything a worker does per message. Invariants: an operation changes only what its caller named; a sweep deletes
only messages older than their queue's retention.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from onefold import errors, limits
from onefold.contracts.admin import Edit, Moved, MoveTask, Peeked, Remembered, Transferred
from onefold.contracts.queue import Depth
from onefold.contracts.settings import (
    QueueSettings,
    check_settings,
    check_target,
    check_targets,
    refuse_differences,
    refuse_targets,
)
from onefold.engines.sqlite import browse, fifo, moving
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.fifo import forget_ids_in, remembered_in
from onefold.engines.sqlite.migrations import migrate
from onefold.engines.sqlite.processes import stopped_process
from onefold.engines.sqlite.queue import SqliteQueue, depth_in, depths_in, next_ready_ms
from onefold.engines.sqlite.rows import (
    Catalogue,
    QueueRow,
    check_groups_in,
    erase,
    group_members_in,
    is_there,
    message_number,
    names_in,
    receipt_numbers,
    refresh_groups_in,
    stored_in,
)
from onefold.entropy import SystemEntropy

if TYPE_CHECKING:
    from onefold.outside import Entropy


PURGE_GAP_MS: Final = 60 * limits.SECOND_MS  # SQS PurgeQueue: once in 60 s
_SWEPT_AT_ONCE: Final = 1_000  # rows per transaction: about ten milliseconds
_SWEEPS_MAX: Final = 20  # transactions per call and queue, so that a sweep ends
_DEPTHS_APART: Final = 24  # queues
_QUEUES_SWEPT: Final = 500  # queues per call: a few milliseconds when there is nothing to do


class SqliteQueues:
    """All queues of one file. Safe to call from any thread.

    Args:
        engine: the open file; the constructor brings its schema up to date.
        owner: id of the receiving process; stored with the messages it holds, so that they can be freed when it dies.
        entropy: source of tokens and handles.

    Attributes:
        owner: as given, until the engine of a forked child sets another one.

    Raises:
        StorageError: the file belongs to another program or to a newer onefold.
        StorageBusy: another process holds it.
    """

    def __init__(self, engine: Database, owner: str | None = None, entropy: Entropy | None = None) -> None:
        self.owner = owner
        self._engine = engine
        self._clock = engine.clock
        self._entropy = entropy or SystemEntropy()
        migrate(engine)
        self._catalogue = Catalogue(engine, self._entropy, partial(_is_stopped, engine))
        self._token: str | None = None  # stays the same for the life of a file
        self._swept = ""  # the queue where the last sweep stopped

    def open(self, queue: str) -> SqliteQueue:
        """The object for sending to and receiving from one queue.

        Raises:
            NotFoundError: the queue does not exist. If another process drops it later, the object's methods raise.
        """
        row = self._catalogue.known(queue)
        if row is None:
            row = self._engine.read(lambda connection: self._catalogue.row_in(connection, queue))
        return SqliteQueue(self._engine, self._catalogue, queue, lambda: self.owner, fifo=row.settings.fifo)

    def row_in(self, connection: sqlite3.Connection, queue: str) -> QueueRow:
        """The queue as the transaction open on `connection` sees it; for the functions that end in `_in`.

        Raises:
            NotFoundError: the queue does not exist.
        """
        return self._catalogue.row_in(connection, queue)

    # -- queues ----------------------------------------------------------------------------------------------

    def create(self, settings: QueueSettings, *, advised: bool = True) -> None:
        """Create a queue; if it exists with equal settings, do nothing.

        Args:
            advised: also refuse what SQS only advises against (a dead-letter queue with short retention).

        Raises:
            ConflictError: it exists with other settings; names each difference.
            UsageError: a setting is out of its range; the dead-letter queue is of another type or has a shorter
                retention.
            NotFoundError: its dead-letter or held queue does not exist.
        """
        check_settings(settings, advised=advised)

        def run(connection: sqlite3.Connection) -> None:
            if is_there(connection, settings.name):
                refuse_differences(self._catalogue.row_in(connection, settings.name).settings, settings)
                return
            self._check_targets(connection, settings, advised)
            connection.execute(
                "INSERT INTO onefold_queue (name, settings) VALUES (?, ?)", (settings.name, _text(settings))
            )
            self._catalogue.changed_in(connection)

        if not self._engine.read(lambda connection: self._is_so(connection, settings)):  # the usual case at every start
            self._engine.write(run)

    def _is_so(self, connection: sqlite3.Connection, settings: QueueSettings) -> bool:
        return (
            is_there(connection, settings.name)
            and self._catalogue.row_in(connection, settings.name).settings == settings
        )

    def change(self, settings: QueueSettings, *, advised: bool = True) -> None:
        """Replace an existing queue's settings; `advised` as for `create`.

        A new retention also applies to messages already waiting; a new delay does so only in FIFO queues, as on SQS.

        Raises:
            UsageError: as for `create`; or the type would change, or another queue's dead letters would no longer fit.
            NotFoundError: the queue does not exist.
        """
        check_settings(settings, advised=advised)

        def run(connection: sqlite3.Connection) -> None:
            row = self._catalogue.row_in(connection, settings.name)
            if (settings.dead_letter, settings.held) != (row.settings.dead_letter, row.settings.held) or advised:
                self._check_targets(connection, settings, advised)
            for source in stored_in(connection) if advised else ():
                if source.dead_letter == settings.name:
                    check_target(source, settings)
            if settings.retention_ms > row.settings.retention_ms:  # expired messages must not become visible again
                expire_in(connection, row, self._clock.now_ms(), -1)
            connection.execute("UPDATE onefold_queue SET settings = ? WHERE id = ?", (_text(settings), row.id))
            if settings.fifo:
                if settings.delay_ms != row.settings.delay_ms:
                    _apply_delay(connection, row.id, settings.delay_ms)
                check_groups_in(connection, row.id, self._clock.now_ms())
            self._catalogue.changed_in(connection)

        self._engine.write(run)

    def settings(self) -> list[QueueSettings]:
        """All queues, by name."""
        return self._engine.read(stored_in)

    def setting(self, queue: str) -> QueueSettings:
        """One queue's settings.

        Raises:
            NotFoundError: the queue does not exist.
        """
        return self._engine.read(lambda connection: self._catalogue.row_in(connection, queue).settings)

    def drop(self, queue: str, *, referenced: bool = False) -> None:
        """Delete a queue with all its messages.

        Args:
            referenced: drop it even if other queues refer to it, as SQS does; they keep the messages they would move
                there.

        Raises:
            UsageError: another queue dead-letters or holds its messages there.
            NotFoundError: the queue does not exist.
        """

        def run(connection: sqlite3.Connection) -> None:
            row = self._catalogue.row_in(connection, queue)
            if not referenced:
                refuse_targets(queue, stored_in(connection))
            _empty(connection, row.id)
            connection.execute("DELETE FROM onefold_queue WHERE id = ?", (row.id,))
            self._catalogue.changed_in(connection)

        self._engine.write(run)

    def stop_groups(self, flag_of: Callable[[str, str, str | None], str | None]) -> None:
        """See `Engine.stop_groups`."""
        self._catalogue.stop_groups(flag_of)

    def depth(self, queue: str) -> Depth:
        """See `Queue.depth`."""
        return self.open(queue).depth()

    def depths(self, queues: Sequence[str]) -> list[Depth | None]:
        """The depth of each queue, in order, at one moment; None if the queue does not exist."""
        found, late = self._engine.read(lambda connection: self._depths_in(connection, queues))
        found.update({name: self.depth(name) for name in queues if name in late})
        return [found.get(name) for name in queues]

    def _depths_in(self, connection: sqlite3.Connection, queues: Sequence[str]) -> tuple[dict[str, Depth], set[str]]:
        """Like `depths_in`; a few queues are counted one by one, because that reads a large queue in half the time."""
        now_ms = self._clock.now_ms()
        if len(queues) > _DEPTHS_APART:
            return depths_in(connection, now_ms, self._clock.jumps)
        there = [name for name in queues if is_there(connection, name)]
        rows = {name: self._catalogue.row_in(connection, name) for name in there}
        late = {name for name, row in rows.items() if fifo.any_due(connection, row, now_ms)}
        return {name: depth_in(connection, row, now_ms) for name, row in rows.items()}, late

    def purge(self, queue: str, *, only_ask: bool = False) -> int:
        """Delete every message, including those in flight, delayed or scheduled; returns how many there were.

        A FIFO queue also forgets its deduplication ids, as on SQS.

        Args:
            only_ask: change nothing; return 0, or raise what a purge would raise.

        Raises:
            UsageError: purged less than 60 s ago (SQS: PurgeQueueInProgress).
        """

        def run(connection: sqlite3.Connection) -> int:
            row, now_ms = self._catalogue.row_in(connection, queue), self._clock.now_ms()
            purged_at_ms = connection.execute(
                "SELECT purged_at_ms FROM onefold_queue WHERE id = ?", (row.id,)
            ).fetchone()[0]
            if purged_at_ms is not None and 0 <= now_ms - purged_at_ms < PURGE_GAP_MS:
                raise errors.UsageError(
                    f"Only one PurgeQueue operation on {queue} is allowed every 60 seconds.",
                    meaning=f"It was purged {(now_ms - purged_at_ms) // limits.SECOND_MS} s ago. Nothing was deleted.",
                    todo="Wait, then purge again.",
                )
            if only_ask:
                return 0
            connection.execute("UPDATE onefold_queue SET purged_at_ms = ? WHERE id = ?", (now_ms, row.id))
            return _empty(connection, row.id)

        return self._engine.write(run)

    def next_ready_ms(self, queue: str) -> int | None:
        """The next instant after now at which a receive may find more messages; None if none is known."""
        return self._engine.read(
            lambda connection: next_ready_ms(
                connection, self._catalogue.row_in(connection, queue), self._clock.now_ms()
            )
        )

    def take_transfers(self) -> list[Transferred]:
        """The messages that this process's receives dead-lettered, and those it moved, since the last call, in order."""
        return self._engine.take_transfers()

    def message_ids(self, receipts: Sequence[str]) -> list[str]:
        """The message of each receipt.

        Raises:
            UsageError: a malformed receipt.
        """
        if self._token is None:
            self._token = self._engine.read(self._catalogue.token_in)
        return [f"{self._token}-{number}" for number in receipt_numbers(receipts)]

    def dedup_memory(self, queue: str, *, limit: int = 100) -> list[Remembered]:
        """The deduplication ids that a FIFO queue remembers, newest first; none for a standard queue."""
        return self._engine.read(
            lambda connection: remembered_in(
                connection, self._catalogue.row_in(connection, queue), limit, self._clock.now_ms()
            )
        )

    # -- messages --------------------------------------------------------------------------------------------

    def peek(self, queue: str, *, limit: int = 100, after: str | None = None) -> list[Peeked]:
        """Messages, oldest first, that come after the id `after`; does not count as a receive.

        Raises:
            UsageError: `after` is not a message id of this file.
        """

        def run(connection: sqlite3.Connection) -> list[Peeked]:
            row = self._catalogue.row_in(connection, queue)
            number = 0 if after is None else message_number(row.token, after)
            if number is None:
                raise errors.UsageError(
                    f"{after!r} is not a message id of this file.",
                    todo="Pass the id of the last message of the previous page.",
                )
            return browse.peek_in(connection, self._catalogue, row, limit, number, self._clock.now_ms())

        return self._engine.read(run)

    def of_group(self, queue: str, group: str, *, limit: int | None = None) -> list[Peeked]:
        """The messages of one FIFO group in a queue, in order, without messages that are not due yet."""

        def run(connection: sqlite3.Connection) -> list[Peeked]:
            row = self._catalogue.row_in(connection, queue)
            numbers = group_members_in(connection, row.id, group, limit)
            now_ms = self._clock.now_ms()
            found = [browse.peek_one_in(connection, self._catalogue, number, now_ms) for number in numbers]
            return [peeked for peeked in found if peeked is not None]

        return self._engine.read(run)

    def find(self, message_ids: Sequence[str]) -> list[Peeked | None]:
        """Each message, in whichever queue it is now."""

        def run(connection: sqlite3.Connection) -> list[Peeked | None]:
            token, now_ms = self._catalogue.token_in(connection), self._clock.now_ms()
            return [
                browse.peek_one_in(connection, self._catalogue, message_number(token, message_id), now_ms)
                for message_id in message_ids
            ]

        return self._engine.read(run)

    def find_key(self, key: str, limit: int = 20) -> list[Peeked]:
        """Messages sent with this business key, in any queue. Reads the whole file: an index would slow down every send."""

        def run(connection: sqlite3.Connection) -> list[Peeked]:
            now_ms = self._clock.now_ms()
            numbers = browse.numbers_of_key_in(connection, key, limit)
            found = [browse.peek_one_in(connection, self._catalogue, number, now_ms) for number in numbers]
            return [peeked for peeked in found if peeked is not None]

        return self._engine.read(run)

    def move(self, moves: Sequence[tuple[str, str | None, Edit | None]]) -> list[Moved | None]:
        """Move messages, each given as id, target (None: the queue it came from) and edit.

        Returns:
            For each message where it went; None if it is gone or in flight.

        Raises:
            UsageError: a message has no source to return to, or the target does not accept its contents or type.
                Nothing was moved.
            NotFoundError: the target does not exist.
        """
        return self._engine.write(
            lambda connection: moving.send_on_in(connection, self._catalogue, moves, self._clock.now_ms())
        )

    def edit(self, message_id: str, edit: Edit) -> bool:
        """Replace a waiting message's body and attributes in place; False when it is gone or in flight.

        Raises:
            UsageError: the queue would not accept them.
        """

        def run(connection: sqlite3.Connection) -> bool:
            number = message_number(self._catalogue.token_in(connection), message_id)
            return browse.edit_in(connection, self._catalogue, number, edit, self._clock.now_ms())

        return self._engine.write(run)

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        """Delete messages by id, whatever their state."""

        def run(connection: sqlite3.Connection) -> list[bool]:
            now_ms = self._clock.now_ms()
            return browse.remove_in(connection, self._catalogue, message_ids, now_ms)

        return self._engine.write(run)

    def wake(self, message_ids: Sequence[str]) -> list[bool]:
        """Make messages that were received and then hidden visible again now; False for all others."""

        def run(connection: sqlite3.Connection) -> list[bool]:
            now_ms = self._clock.now_ms()
            return [browse.wake_in(connection, self._catalogue, message_id, now_ms) for message_id in message_ids]

        return self._engine.write(run)

    # -- move tasks ------------------------------------------------------------------------------------------

    def start_move(self, source: str, to: str | None = None, per_second_max: int | None = None) -> MoveTask:
        """Begin a move task; `step_moves` does the work.

        Raises:
            UsageError: as on SQS: the source is not a dead-letter queue, or already has a task running.
            NotFoundError: the queue does not exist.
        """
        handle = self._entropy.token()
        return self._engine.write(
            lambda connection: moving.start_in(
                connection, self._catalogue, source, to, per_second_max, handle, self._clock.now_ms()
            )
        )

    def step_moves(self) -> int:
        """Continue running move tasks as far as their rate allows now; returns how many messages moved."""

        def step(connection: sqlite3.Connection, handle: str) -> int:
            return moving.step_in(connection, self._catalogue, handle, self._clock.now_ms())

        running = self._engine.read(moving.running_in)
        return sum(self._engine.write(partial(step, handle=handle)) for handle in running)

    def moving(self) -> bool:
        """Whether a move task is running."""
        return bool(self._engine.read(moving.running_in))

    def moves(self, source: str) -> list[MoveTask]:
        """The tasks of a source queue, newest first."""
        return self._engine.read(lambda connection: moving.tasks_in(connection, source))

    def cancel_move(self, handle: str) -> MoveTask:
        """Stop a running task; messages that have moved are not moved back.

        Raises:
            NotFoundError: the task does not exist.
            UsageError: it is not running.
        """
        return self._engine.write(lambda connection: moving.cancel_in(connection, handle))

    # -- maintenance -----------------------------------------------------------------------------------------

    def sweep(self) -> int:
        """Remove expired messages and deduplication ids past their window; admit scheduled messages that are due.

        Nothing depends on when, or whether, it is called. Returns how many rows it handled; it ends after a bounded number
        of rows and queues, and the next call continues with the queues after these.
        """
        now_ms = self._clock.now_ms()

        def sweep_queue(connection: sqlite3.Connection, name: str) -> int:
            if not is_there(connection, name):
                return 0  # dropped in the meantime
            return sweep_in(connection, self._catalogue.row_in(connection, name), now_ms, _SWEPT_AT_ONCE)

        def to_sweep(connection: sqlite3.Connection) -> list[str]:
            names = names_in(connection, after=self._swept, limit=_QUEUES_SWEPT)
            self._swept = names[-1] if len(names) == _QUEUES_SWEPT else ""
            rows = [self._catalogue.row_in(connection, name) for name in names]
            return [row.settings.name for row in rows if anything_to_sweep(connection, row, now_ms)]

        done = sum(self._in_pieces(partial(sweep_queue, name=name)) for name in self._engine.read(to_sweep))
        return done + self._in_pieces(
            lambda connection: forget_ids_in(connection, now_ms, self._clock.jumps, _SWEPT_AT_ONCE)
        )

    def _in_pieces(self, piece: Callable[[sqlite3.Connection], int]) -> int:
        done = 0
        for _ in range(_SWEEPS_MAX):
            found = self._engine.write(piece)
            done += found
            if found < _SWEPT_AT_ONCE:
                break
        return done

    def _check_targets(self, connection: sqlite3.Connection, settings: QueueSettings, advised: bool) -> None:
        check_targets(settings, lambda name: self._catalogue.row_in(connection, name).settings, advised=advised)


def _text(settings: QueueSettings) -> str:
    return msgspec.json.encode(settings).decode()


def _apply_delay(connection: sqlite3.Connection, queue: int, delay_ms: int) -> None:
    connection.execute(
        "UPDATE onefold_message SET visible_at_ms = sent_at_ms + ? "
        "WHERE id IN (SELECT id FROM onefold_waiting WHERE queue = ?)",
        (delay_ms, queue),
    )
    connection.execute("UPDATE onefold_waiting SET visible_at_ms = sent_at_ms + ? WHERE queue = ?", (delay_ms, queue))


def _empty(connection: sqlite3.Connection, queue: int) -> int:
    deleted = connection.execute(
        "DELETE FROM onefold_message WHERE id IN (SELECT id FROM onefold_waiting WHERE queue = ? "
        "UNION ALL SELECT id FROM onefold_received WHERE queue = ?)",
        (queue, queue),
    ).rowcount
    for table in ("waiting", "received", "scheduled", "group", "dedup"):
        connection.execute(f"DELETE FROM onefold_{table} WHERE queue = ?", (queue,))
    return deleted


def anything_to_sweep(connection: sqlite3.Connection, row: QueueRow, now_ms: int) -> bool:
    """Whether `sweep_in` would have something to do."""
    expired_at_ms = row.expired_at_ms(now_ms)
    found = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM onefold_waiting WHERE queue = ? AND visible_at_ms <= ? AND sent_at_ms <= ?) "
        "OR EXISTS (SELECT 1 FROM onefold_received WHERE queue = ? AND sent_at_ms <= ?) "
        "OR EXISTS (SELECT 1 FROM onefold_scheduled WHERE queue = ? AND due_at_ms <= ?)",
        (row.id, expired_at_ms + limits.DELAY_MS_MAX, expired_at_ms, row.id, expired_at_ms, row.id, now_ms),
    ).fetchone()[0]
    return bool(found)


def sweep_in(connection: sqlite3.Connection, row: QueueRow, now_ms: int, count_max: int) -> int:
    """Delete up to `count_max` expired messages of a queue and admit as many due ones; returns how many were found."""
    found = expire_in(connection, row, now_ms, count_max)
    if row.settings.fifo:
        found += fifo.promote_in(connection, row, now_ms, count_max)
    return found


def expire_in(connection: sqlite3.Connection, row: QueueRow, now_ms: int, count_max: int) -> int:
    """Delete up to `count_max` (-1: all) messages whose retention has ended, in flight or not; returns how many."""
    expired_at_ms = row.expired_at_ms(now_ms)
    found = connection.execute(
        "SELECT id FROM onefold_waiting WHERE queue = ? AND visible_at_ms <= ? AND sent_at_ms <= ? "
        "UNION ALL SELECT id FROM onefold_received WHERE queue = ? AND sent_at_ms <= ? LIMIT ?",
        (row.id, expired_at_ms + limits.DELAY_MS_MAX, expired_at_ms, row.id, expired_at_ms, count_max),
    ).fetchall()
    if not found:
        return 0
    touched = set()
    if row.settings.fifo:
        for message in found:
            grp = connection.execute("SELECT grp FROM onefold_message WHERE id = ?", message).fetchone()[0]
            touched.add(grp)
    erase(connection, [message for (message,) in found])
    refresh_groups_in(connection, row, touched - {None}, now_ms)
    return len(found)


def _is_stopped(engine: Database, owner: str, visible_at_ms: int) -> bool:
    return not engine.in_memory and stopped_process(engine.real_path, owner, visible_at_ms) is not None
