"""One SQLite file as an engine: queues, records, ledger, state, commit, presence and wake-up, wired together.

Also here: the sweep of a file, a file as a record backend for workers on SQS (`FileBooks`), and a file that this user
is only allowed to read (`ReadOnlyDatabase`). Never here: single operations. Invariants: a file is migrated before any
part uses it, and the presence lock is taken before the owner's id can appear in a claim. One step of the sweep locks
the file for a few milliseconds.
"""

from __future__ import annotations

import atexit
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, TypeVar
from urllib.parse import quote

from onefold import errors, forks, limits, owner_process, private_files
from onefold.clock import NO_JUMPS, Jumps, steady
from onefold.contracts.engine import WakeableWaiter
from onefold.engines.sqlite import filetime
from onefold.engines.sqlite.admin import SqliteQueues
from onefold.engines.sqlite.callers import CallersDatabase
from onefold.engines.sqlite.commit import SqliteCommit
from onefold.engines.sqlite.connection import writers_of
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.file import FOR_WORKERS, FileSettings, OpenFile
from onefold.engines.sqlite.ledger import SqliteLedger
from onefold.engines.sqlite.migrations import migrate
from onefold.engines.sqlite.processes import FileRenewalMark, Presence, SocketWaiter, Wakeup, are_dead
from onefold.engines.sqlite.readers import Readers
from onefold.engines.sqlite.refusals import DiskFull, primary
from onefold.engines.sqlite.state import SqliteArchive, SqliteState, sweep_archive_in
from onefold.engines.sqlite.store import SqliteStore, dead_owners
from onefold.engines.sqlite.turn import Patience, Run
from onefold.interrupts import ignored

if TYPE_CHECKING:
    from onefold.contracts.admin import RecordAdmin
    from onefold.contracts.engine import Engine
    from onefold.contracts.store import Record
    from onefold.contracts.verbs import EffectTransaction, Ledger, State, Store
    from onefold.outside import Clock, Entropy

T = TypeVar("T")

_SWEEP_MS = 5_000  # how often the sweep looks for expired messages and records
_SWEEP_ROWS = 2_000  # records checked in one step, which holds the write lock for some milliseconds
# A worker does maintenance every 500 ms. The sweep takes up to a fifth of that time while there is much to remove,
# otherwise a 200th.
_SWEEP_SHARE_MS = 100
_LOOK_SHARE_MS = 25
_NOTE_MS = 600_000  # how old a note of the time may be: clocks drift by less than `clock.STEP_MS` in that time


class SqliteEngine:
    """An opened database.

    Args:
        path: file name or `:memory:`.
        clock, entropy: sources of time and randomness.
        owner: id of this process; stored in its leases.
        url: as the user wrote it.
        settings: options of the file.
        read_only: nothing will be written, so a file that this user is only allowed to read, or that a full disk keeps from
            being opened for writing, is opened read-only.

    Raises:
        StorageError: the file cannot be used. StorageBusy: another process holds it.
    """

    def __init__(
        self,
        path: str,
        *,
        clock: Clock,
        entropy: Entropy,
        owner: str,
        url: str,
        settings: FileSettings = FOR_WORKERS,
        read_only: bool = False,
    ) -> None:
        self.url = url
        self.shared = path != ":memory:"
        self.provisioned = False
        self._owner, self._entropy = owner, entropy
        written_ms = 0 if path == ":memory:" else filetime.written_at_ms(path)
        opened = opened_to_read if read_only else CallersDatabase
        self.database: Database = opened(path, clock, settings=settings)
        reads = isinstance(self.database, ReadOnlyDatabase)
        self._clock = self.database.clock
        self._clock.heals_in = filetime.HEALS_IN
        try:
            migrate(self.database, adopts=settings.adopts)
            if self.shared:
                self.time = filetime.FileTime(self._clock)
                self.database.read(lambda connection: self.time.adopt(connection, written_ms))
                if not reads:
                    self.database.time = self.time
                    self.hurry(0)  # do not wait: the transaction in which the engine is opened may hold the file
                    self._note_time()
                    self.hurry(None)
        except BaseException:
            self.database.close()
            raise
        self.queues = SqliteQueues(self.database, owner=owner, entropy=entropy)
        self.joined = self.database.joined if isinstance(self.database, CallersDatabase) else None
        self.store = self.records = SqliteStore(self.database)
        self.ledger = SqliteLedger(self.database)
        self.store.ledger = self.ledger
        self.state = SqliteState(self.database)
        self.store.state = self.state
        self.archive = SqliteArchive(self.database)
        self._wakeup = Wakeup(":memory:" if reads else self.database.real_path, entropy)
        self.commit = SqliteCommit(self.database, self.queues, self.notify)
        self.effects = None  # everything is in `commit`
        self.known_queue = None  # opening needs no call
        self._presence: Presence | None = None
        if self.shared and owner_process.is_here(owner):
            self.store.process, self.store.appear = owner, self._appear_for_calls
        self._swept_ms = clock.monotonic_ms()
        self._sweep_goes_on = False
        self._waiters: list[WakeableWaiter] = []
        self._lock = threading.Lock()
        forks.in_child(self._start_anew)

    def _note_time(self) -> None:
        """Note the time, so that a process that opens the file later can detect whether the machine's clock was set."""
        self._noted_ms = self._clock.monotonic_ms()
        if any(one.is_mine() for one in writers_of(self.database.real_path)):
            return  # opened in a handler, whose transaction has the file
        if not self.database.read(self.time.is_noted):
            with ignored(errors.TransientError):  # busy or full: another process does it, or this one does later
                self.database.write(self.time.share_in, synced=False)

    def _start_anew(self) -> None:
        """See `forks.Forked`. The presence lock and the sockets remain the parent's; the child closes its ends of them.

        The child gets an owner id of its own: what it held under the parent's id would be freed when the parent dies.
        """
        self._lock = threading.Lock()
        self._owner = self._entropy.token()
        if self.store.process is not None:
            self._owner = self.store.process = owner_process.owner_of(self._owner)
        self.queues.owner = self._owner
        if self._presence is not None:
            self._presence.abandon()
            self._presence = None
        for waiter in self._waiters:
            if isinstance(waiter, SocketWaiter):
                waiter.abandon()
        self._waiters.clear()
        self._wakeup.abandon()

    @property
    def join(self) -> str | None:
        """The function that a child process calls with the path of the lock file; None in memory."""
        return "onefold.engines.sqlite.processes:join" if self.shared else None

    def appear(self) -> str | None:
        """Take this process's presence lock; returns the path of its file, for child processes. None in memory."""
        if not self.shared:
            return None
        with self._lock:
            if self._presence is None:
                self._presence = Presence(self.database.real_path, self._owner)  # one object for all owner ids
            return str(self._presence.lock_file)

    def renewal_mark(self) -> FileRenewalMark | None:
        """Where a thread that extends this process's leases records its progress; None in memory."""
        self.appear()
        return None if self._presence is None else self._presence.mark(self._clock.now_ms())

    def _appear_for_calls(self) -> FileRenewalMark | None:
        """Like `renewal_mark`, but nothing is written before its first `renewed`: a signal may interrupt the caller.

        A program that calls guarded functions may have no worker, so this also frees what dead processes held.
        """
        is_first = self._presence is None
        self.appear()
        if self._presence is None:
            return None
        if is_first:
            atexit.register(_leave, weakref.ref(self._presence))
            for owner in self._presence.find_dead():
                self._presence.free_dead_owner(self.database, owner, self._clock.now_ms())
        return FileRenewalMark(self._presence, self._clock.now_ms())

    def stopped_process(self, record: Record) -> int | None:
        """See `Engine.stopped_process`."""
        return self.store.stopped_process(record, self._clock.now_ms())

    def waiter(self, *, foreign: bool = False) -> WakeableWaiter:
        """A waiter for an idle worker, closed with the engine. `foreign`: `notify` of this process does not wake it."""
        waiter = self._wakeup.waiter(foreign=foreign)
        self._waiters.append(waiter)
        return waiter

    def notify(self) -> None:
        """Wake idle workers of all processes."""
        self._wakeup.notify()

    def together(self, calls: Sequence[Callable[[], object]], *, synced: bool = True) -> list[object]:
        """Make calls in one transaction with one fsync; see `database.Database.together`."""
        return self.database.together(calls, synced=synced)

    def hurry(self, left_ms: int | None) -> None:
        """Limit how long calls wait for others, because the process is about to end; see `Engine.hurry`."""
        self.database.patience.hurry(left_ms)

    def stop_groups(self, flag_of: Callable[[str, str, str | None], str | None]) -> None:
        """Make a receive stop, in its transaction, the group of a message that the queue itself dead-letters."""
        self.queues.stop_groups(flag_of)

    def changed_elsewhere(self) -> bool:
        """Whether another process has written since the last call."""
        return self.database.changed_elsewhere()

    def check(self) -> list[str]:
        """Warnings about a file that is less private than it should be. Durability is not checked: files have it."""
        found = private_files.warning_of(self.database.path) if self.shared else None
        return [found] if found is not None else []

    def dead(self, owners: Iterable[str]) -> frozenset[str]:
        """The owners that have been found dead, or whose presence locks are free."""
        asked = frozenset(owners)
        known = asked & self.database.read(dead_owners) if asked else frozenset()
        known |= owner_process.ended(asked - known)
        return known | are_dead(self.database.real_path, asked - known) if self.shared else known

    def maintain(self, on_dead_owner: Callable[[str], None]) -> int:
        """Free what dead processes held, continue move tasks, and from time to time remove what has expired."""
        self.database.check_file()
        self.database.tend()
        if self.shared and self._clock.monotonic_ms() - self._noted_ms >= _NOTE_MS:
            self._note_time()
        done = self.queues.step_moves()
        if self._presence is not None:
            for owner in self._presence.find_dead():
                if self._presence.free_dead_owner(self.database, owner, self._clock.now_ms()):
                    on_dead_owner(owner)
                    done += 1
        if self._sweep_goes_on or self._clock.monotonic_ms() - self._swept_ms >= _SWEEP_MS:
            self._swept_ms = self._clock.monotonic_ms()
            done += self._sweep(self._clock.now_ms())
        if done:
            self.notify()
        return done

    def _sweep(self, now_ms: int) -> int:
        """Remove what has expired, step by step, for a share of the time; the next call continues with the rest."""
        done, jumps = self.queues.sweep(), self._clock.jumps
        begun_ms, history_until_ms = self._clock.monotonic_ms(), self._clock.expired_at_ms(LEDGER_KEPT_MS)
        while True:
            step = self.database.write(
                lambda connection: sweep_in(
                    connection, now_ms, jumps, limit=_SWEEP_ROWS, history_until_ms=history_until_ms
                ),
                synced=False,
            )
            archived = self.database.write(
                lambda connection: sweep_archive_in(connection, now_ms, _SWEEP_ROWS, jumps), synced=False
            )
            done += step.removed + archived
            self._sweep_goes_on = step.removed + archived >= _SWEEP_ROWS // 2
            used_ms = self._clock.monotonic_ms() - begun_ms
            if used_ms >= (_SWEEP_SHARE_MS if self._sweep_goes_on else _LOOK_SHARE_MS):
                return done
            if step.is_round and not self._sweep_goes_on:
                return done

    def close(self, *, unfinished: bool = False) -> None:
        """Close everything. Idempotent. `unfinished`: a handler's transaction and the lock end with the process."""
        for waiter in self._waiters:
            waiter.close()
        self._waiters.clear()
        self._wakeup.close()
        if self._presence is not None and not unfinished:
            self._presence.close()
            self._presence = None
        self.database.close(unfinished=unfinished)


def _leave(presence: weakref.ref[Presence]) -> None:
    """Release the lock when a program with guarded functions ends; not during a call, so that its end is noticed."""
    found = presence()
    if found is not None and not found.has_work():
        found.close()


LEDGER_KEPT_MS: Final = 90 * limits.DAY_MS  # the default for records of completed work too
# Longer than any lease: only a living process renews a lease, and never for more than 12 hours.
DEAD_OWNERS_KEPT_MS: Final = 7 * limits.DAY_MS
COUNTS_KEPT_MS: Final = limits.DAY_MS  # contracts/admin.py
DELETED_NAMES_KEPT_MS: Final = limits.DAY_MS  # no process takes that long between reading a version and writing
_ID_MAX: Final = 2**63 - 1  # SQLite's largest row id


# -- sweeping -------------------------------------------------------------------------------------------------------

# Removes expired records, old history and expired rows of a few small tables. Records are read by id, a few at a time,
# from where the last step ended, and after the last id from the start again; so jobs need not maintain an index on
# expiry. The oldest are checked in every step, because they usually expire first and a pass through a large table takes
# days. When an expired record is removed does not matter: a claim treats it as absent. Held records do not expire.


class SweepStep(NamedTuple):
    """The result of one step of the sweep.

    Args:
        removed: number of rows removed.
        is_round: the pass has reached the newest record; the next step begins with the oldest.
    """

    removed: int
    is_round: bool


def sweep_in(
    connection: sqlite3.Connection,
    now_ms: int,
    jumps: Jumps = NO_JUMPS,
    *,
    limit: int,
    history_until_ms: int | None = None,
) -> SweepStep:
    """Carry out one step of the sweep, inside the caller's transaction.

    Args:
        jumps: how the clock was set forward.
        limit: how many of the oldest records are checked, how many more from the position of the pass, and how many
            rows of history are removed at most.
        history_until_ms: rows of history that are older are removed; None: those older than `LEDGER_KEPT_MS`.
    """
    (after,) = connection.execute("SELECT record_id FROM onefold_sweep").fetchone()
    removed, last = _sweep_records(connection, 0, now_ms, jumps, limit)
    if last <= after:
        more, last = _sweep_records(connection, after, now_ms, jumps, limit)
        removed += more
    reached = 0 if last == _ID_MAX else last
    connection.execute("UPDATE onefold_sweep SET record_id = ? WHERE record_id <> ?", (reached, reached))
    removed += connection.execute(
        "DELETE FROM onefold_ledger WHERE id IN (SELECT id FROM onefold_ledger WHERE at_ms < ? ORDER BY at_ms LIMIT ?)",
        (jumps.expired_at_ms(now_ms, LEDGER_KEPT_MS) if history_until_ms is None else history_until_ms, limit),
    ).rowcount
    for statement, before in (
        ("DELETE FROM onefold_dead_owner WHERE at_ms < ?", jumps.expired_at_ms(now_ms, DEAD_OWNERS_KEPT_MS)),
        ("DELETE FROM onefold_completed WHERE second < ?", jumps.expired_at_ms(now_ms, COUNTS_KEPT_MS) // 1000),
        ("DELETE FROM onefold_state WHERE deleted_at_ms < ?", jumps.expired_at_ms(now_ms, DELETED_NAMES_KEPT_MS)),
    ):
        removed += connection.execute(statement, (before,)).rowcount
    return SweepStep(removed, reached == 0)


def _sweep_records(
    connection: sqlite3.Connection, after: int, now_ms: int, jumps: Jumps, limit: int
) -> tuple[int, int]:
    """Check `limit` records that come after the id `after`; returns how many were removed, and the last id checked."""
    found = connection.execute(
        "SELECT id FROM onefold_record WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?", (after, limit - 1)
    ).fetchone()
    last = _ID_MAX if found is None else found[0]
    longer = filetime.longer_sql(jumps, "updated_at_ms")
    removed = connection.execute(
        f"DELETE FROM onefold_record WHERE id > ? AND id <= ? AND expires_at_ms{longer} <= ?"
        " AND (status <> 0 OR (lease_until_ms <= ? AND updated_at_ms <= ?))",  # its process may be stopped: transitions.py
        (after, last, now_ms, now_ms, now_ms - limits.VISIBILITY_MS_MAX),
    ).rowcount
    return removed, last


class FileBooks:
    """The RecordBackend contract on an opened file.

    Args:
        engine: the opened file.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.store: Store = engine.store
        self.records: RecordAdmin = engine.records
        self.ledger: Ledger = engine.ledger
        self.state: State = engine.state

    def effects(self, limit_ms: int) -> EffectTransaction | None:  # noqa: ARG002 - the contract's
        """None: the file's transactions can only settle messages of its own queues."""
        return None

    def check(self) -> list[str]:
        """See `SqliteEngine.check`: warnings about a file that is less private than it should be."""
        return self._engine.check()

    def appear(self) -> None:
        """Nothing: the file is open, and only the end of a lease shows that an owner is dead."""

    def close(self) -> None:
        """Close the file."""
        self._engine.close()


_BUSY_S = 10.0


# -- reading somebody else's file -----------------------------------------------------------------------------------

# To read a file SQLite needs its log and the log's index (`-wal`, `-shm`). If it can neither find nor create them (the
# last process has closed the file, and we may not write to the folder, or its disk is full), the file is complete
# without a log and is opened as immutable: that is right unless a process begins to write at that moment. SQLite never
# looks again whether an immutable file has changed, so each read opens it anew (`status --watch`, `web --read-only`).


def opened_to_read(path: str, clock: Clock, *, settings: FileSettings) -> Database:
    """The file as writers open it, or read-only if that cannot be. Arguments and errors as for `Database`."""
    if not is_only_readable(path):
        with ignored(DiskFull):
            return CallersDatabase(path, clock, settings=settings)
    return ReadOnlyDatabase(path, clock)


def is_only_readable(path: str) -> bool:
    """Whether the file exists and this user is not allowed to write it, or to create files next to it."""
    real_path = os.path.realpath(path)
    return os.path.exists(real_path) and not (
        os.access(real_path, os.W_OK) and os.access(os.path.dirname(real_path), os.W_OK)
    )


_WITHOUT_INDEX: Final = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


class _NoIndex(Exception):
    """The file has no log, and SQLite cannot make the index of one."""


class ReadOnlyDatabase(Database):
    """A database file, opened read-only.

    Args:
        path: file name. clock: as for `Database`.

    Raises:
        StorageError: it cannot be read.
    """

    def __init__(
        self, path: str, clock: Clock
    ) -> None:  # opens no connection that writes: the base class's constructor is not called
        self.path, self.real_path = path, os.path.realpath(path)
        self._uri = f"file:{quote(self.real_path)}?mode=ro"
        self.clock = steady(clock)
        self.in_memory = False
        self._closed, self._held_by, self._opened = False, None, None
        self.patience = Patience(0)  # readers never wait
        self._file = OpenFile(path)
        self._readers = Readers(self._connect_reader, self._check_open)
        if not os.access(self.real_path, os.R_OK):
            raise errors.StorageError(
                f"{path} cannot be read: permission denied.",
                todo="Read it as its owner, or let this user read it and its -wal and -shm.",
            )

    def read(self, run: Run[T]) -> T:
        """See `Database.read`."""
        try:
            return super().read(run)
        except _NoIndex:
            with closing(self._translated(lambda: _connected(f"{self._uri}&immutable=1"))) as connection:
                return self._translated(lambda: run(connection))

    def _connect_reader(self) -> sqlite3.Connection:
        """Open it with its log.

        Raises:
            StorageError: it cannot be read. _NoIndex: there is no log, and its index cannot be made.
        """
        try:
            return _connected(self._uri)
        except sqlite3.Error as error:
            if primary(error) not in _WITHOUT_INDEX:
                raise
            log = f"{self.real_path}-wal"
            if os.path.exists(log) and os.path.getsize(log):
                raise errors.StorageError(
                    f"{self.path} cannot be read: the last of what was written is in {log}, and SQLite answered: {error}.",
                    meaning="This user may not read the log, or its index (-shm), or cannot make one in the folder; or the "
                    "disk is full.",
                    todo="Read it as its owner, or copy the file and its -wal to a folder of your own and read it there.",
                ) from error
            raise _NoIndex from error

    def _refuse(self) -> NoReturn:
        raise errors.StorageError(
            f"{self.path} cannot be written: this user may only read it.",
            meaning="Nothing was changed.",
            todo="Run the command as the file's owner. A file of an earlier version is brought up to date by the first "
            "worker or send of this one.",
        )

    def write(self, *_: object, **__: object) -> NoReturn:
        """Refuse."""
        self._refuse()

    def together(self, calls: Sequence[Callable[[], object]], *, synced: bool = True) -> NoReturn:  # noqa: ARG002
        """Refuse."""
        self._refuse()

    def begin_exclusive(self, *, synced: bool = True) -> NoReturn:  # noqa: ARG002
        """Refuse."""
        self._refuse()

    def tend(self) -> None:
        """Nothing to do: only writers need this."""

    def check_file(self) -> bool:
        """Always False: only writers need this."""
        return False

    def changed_elsewhere(self) -> bool:
        """Always True: it is not known."""
        return True

    def close(self, *, unfinished: bool = False) -> None:  # noqa: ARG002 - nothing is ever unfinished
        """Close every connection after its current query. Idempotent."""
        self._closed = True
        self._readers.close()


def _connected(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA query_only=ON")
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute("PRAGMA temp_store=MEMORY")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
