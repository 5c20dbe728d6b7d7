"""One SQLite file as an engine: a single writer per process with group commit, and readers that never block it.

Here: the write lock, group commit, level 4, and the choice of a read's connection. Never here: opening a connection
(`connection.py`), SQL of queues or records.

Writing: every thread submits a piece of work. The first thread to get the turn runs all waiting pieces in one transaction
and syncs once, so eight threads share one fsync. Each piece has its own savepoint. A caller gets its result only when its
work is on disk: when COMMIT has returned, in WAL mode with synchronous=FULL; or, for work that other processes may see
earlier (`early`), when COMMIT has returned and then the log was synced (`log.Log`). Among processes, SQLite's file lock
decides who writes (`turn.FileTurn`). Invariant: if a piece of work raises, at any point, no part of it is stored.

An exception can come between any two calls, because a signal handler can raise in the main thread (Ctrl-C, a notebook's
interrupt, a time limit set with `signal.alarm`). So the turn and the transaction are ended by the `__exit__` of the
lock and of `sqlite3.Connection`, which are written in C and cannot be interrupted, and never by an `except` or
`finally` that first calls something else.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from onefold import errors, forks
from onefold.clock import steady
from onefold.contracts.admin import Transferred
from onefold.engines.sqlite.connection import LentConnection, connect_reader, connect_writer, data_version, writers_of
from onefold.engines.sqlite.file import FOR_WORKERS, FileSettings, OpenFile, Space
from onefold.engines.sqlite.filetime import FileTime
from onefold.engines.sqlite.log import Log
from onefold.engines.sqlite.readers import Readers
from onefold.engines.sqlite.refusals import DiskFull, kept_turn
from onefold.engines.sqlite.turn import Batch, FileTurn, Patience, Run, Turn, Work, taken
from onefold.interrupts import ignored, is_of_a_signal

if TYPE_CHECKING:
    from onefold.outside import Clock

T = TypeVar("T")

# The comment in each makes its text differ from a handler's statement, which the statement cache could return
# otherwise.
_COMMIT = "COMMIT /*onefold*/"
_ROLLBACK = "ROLLBACK /*onefold*/"


class Database:
    """A database file, or a private database in memory.

    Args:
        path: file name, or `:memory:`.
        clock: source of time for queues and records.
        settings: options of the file.

    Raises:
        StorageError: the file is not a database, is corrupt, or cannot be opened or written.
    """

    def __init__(self, path: str, clock: Clock, *, settings: FileSettings = FOR_WORKERS) -> None:
        self.path = path
        self.clock = steady(clock)
        self.in_memory = path == ":memory:"
        self._file = OpenFile(path)
        self.real_path = path if self.in_memory else self._file.real_path
        self._settings = settings
        self.patience = Patience(settings.busy_ms)
        self._turn, self._file_turn = Turn(), FileTurn(self.patience, path, lambda: writers_of(self.real_path))
        self._held_by: int | None = None  # thread inside `begin_exclusive`
        self._waiting: deque[Work[Any]] = deque()
        self._readers = Readers(lambda: connect_reader(path, self.real_path, settings), self._check_open)
        self._closed = False
        self._syncs: bool | None = True  # whether COMMIT syncs; None: not known after an exception
        self._depth = 0  # how many of our savepoints are open
        self._is_copy = False  # a forked child's copy of a database in memory
        self.time: FileTime | None = None  # until the migration has made the table for notes about the clock
        self._transferred: list[Transferred] = []  # committed, and not fetched yet
        self.wait_s = 2 * settings.busy_ms / 1000  # see `forks.Forked`
        self._fork_takes: str | None = None  # `turn`: held for a fork; `nothing`: this thread was inside a transaction
        with forks.opening():
            self._log = Log(None)
            self._opened: LentConnection | None = None  # None while it is closed for a fork
            self._seen_version: int | None = self._open()  # None: the file was opened again since
            forks.register(self)

    # -- the writer --------------------------------------------------------------------------------------------------

    def write(self, run: Run[T], *, synced: bool = True, early: bool = False, adds: bool = False) -> T:
        """Run `run(connection)` in a transaction and return its result once it is durable.

        Args:
            synced: False for work that a power cut may undo without harm (a receive, a heartbeat): it is committed, so every
                process sees it and a killed process loses nothing, but it does not wait for the disk. The next synced commit
                makes it durable too, since the write-ahead log is synced as a whole.
            adds: True for work that only takes space (a send, a guarded call): it is refused early, while there is still
                room to finish accepted messages, which frees space.
            early: other processes may see the work before it is on disk. This call waits for the disk, but the turn is
                free. Only for work that other processes never report without a synced write (docs/decisions/0017).

        On a full disk the log is written into the file and `run` is called once more. The work of several callers
        shares one transaction; each has a savepoint, so an exception affects only its caller. `run` must not commit,
        roll back, wait, or call `write` of another engine.

        Raises:
            StorageBusy: another process, or an open transaction of this one (`begin_exclusive`), held the file for longer
                than `busy_ms`, or the disk is full; nothing was written.
            StorageError: the file is corrupt, read-only or gone. UsageError: a handler's transaction, open in this thread
                through another `Database` on the same file, has it.
            Exception: whatever `run` raised; no part of it was written.
        """
        forks.look()
        if self._held_by == threading.get_ident():
            with self._writer.engine_time():
                return self._in_savepoint(run)
        self.clock.now_ms()  # detects that the wall clock was set
        if adds and self._space.is_tight:
            run = self._space.leaving_room(run)
        try:
            return self._write(run, synced, early)
        except DiskFull:
            if self.in_memory:
                raise
        self._with_writer(lambda _: self._space.make_room())
        return self._write(run, synced, early)

    def _write(self, run: Run[T], synced: bool, early: bool) -> T:
        if self._turn.is_mine():
            self._turn.refuse_within(self.path, self, _TAKES_TURN)
        answer: tuple[T, bool] | None = None  # the result, and whether it still has to be synced
        work: Work[T] | None = None
        try:
            if self._turn.lock.acquire(blocking=False):
                with self._turn.lock:
                    self._turn.lock.release()  # undoes `acquire`; the end of the block undoes `with`
                    if not self._waiting:
                        answer = self._run_alone(run, synced, early)
            if answer is None:
                work = Work(run, synced, early)
                with work.wanted:
                    self._waiting.append(work)
                    if self._take_turn(work):
                        with self._turn.lock:
                            self._turn.lock.release()
                            if not work.done:
                                self._run_waiting(work)
                answer = work.answer()
        except BaseException:
            self._turn.leave()
            if work is not None:
                work.leave(self._settings.busy_ms / 1000)
            raise
        value, unsynced = answer
        if unsynced:
            self._log.flush()
        return value

    def _take_turn(self, work: Work[Any] | None = None) -> bool:
        """Wait for the writer's turn, no longer than for another process: a handler may never end its transaction.

        The next statement must be `with self._turn.lock`, and the first one in that block releases what was taken here.

        Args:
            work: the work that needs the turn; if another thread has begun it, wait for that thread's transaction.

        Returns:
            True: the turn was taken. False: it was not, because the other thread has done the work.
        """
        if self._turn.is_mine():
            self._turn.refuse_within(self.path, self, _TAKES_TURN)
        try:
            if self.patience.take(self._turn.lock, self._file_turn.refuse_own):
                return True
            if work is not None and not work.take() and work.batch is not None:
                with work.batch.running:
                    is_done = work.done
                if is_done:
                    return False
                if self.patience.take(self._turn.lock):
                    return True
        except BaseException:
            self._turn.leave()
            raise
        raise kept_turn(self.path, self.patience.waited_ms)

    def _run_alone(self, run: Run[T], synced: bool, early: bool) -> tuple[T, bool]:
        """Like `_run_waiting`, for a single caller; returns its result, and whether it still has to be synced."""
        try:
            with (writer := self._ready()):  # after an exception the end of the block rolls back
                self._sync(synced and not early)
                self._begin()
                changes = writer.total_changes
                value = run(writer)
                writer.execute(_COMMIT)
                writer.note_transfers()
                return value, early and writer.total_changes != changes
        except BaseException as error:
            self._forget_undone()
            if isinstance(error, sqlite3.Error):
                raise self._file.as_ours(error) from None
            raise

    def _run_waiting(self, own: Work[Any]) -> None:
        """Run all waiting work in one transaction.

        After an exception from outside (a signal), the others' work is not lost: each runs its own when it has the turn.
        """
        batch = Batch()
        with batch.running:
            self._run_batch(taken(self._waiting, own, batch), batch)

    def _run_batch(self, works: Sequence[Work[Any]], batch: Batch) -> None:
        commits = False
        try:
            with self._ready() as writer:
                execute = writer.execute
                self._sync(any(work.synced and not work.unsynced for work in works))
                self._begin()
                changes = writer.total_changes
                if len(works) == 1:
                    works[0].value = works[0].run(writer)
                else:
                    for work in works:
                        work.value, work.error = self._answer_of(work.run)
                commits = True  # no Python code runs until the next call ends, so no signal handler does either
                execute(_COMMIT)
                self._writer.note_transfers()
                if self._syncs or writer.total_changes == changes:
                    for work in works:
                        work.unsynced = False  # it is on disk, or there was nothing to write
            batch.over = True
        except BaseException as error:
            is_own = isinstance(error, sqlite3.Error | errors.OnefoldError) and not is_of_a_signal(error)
            if not is_own and commits:  # raised after the commit
                batch.over = True
                raise
            self._forget_undone()
            if not is_own or self._file_turn.is_mine():  # after this thread's handler the others can have the file
                raise
            translated = self._file.as_ours(error)  # the result of every piece, or of the only one
            for work in works:
                work.error = work.error or translated
            batch.over = True

    def _answer_of(self, run: Run[T]) -> tuple[T | None, Exception | None]:
        """The result of a piece of work; or its exception, after everything that it wrote was undone.

        Raises:
            Exception: SQLite rolled everything back (full disk): no work of any caller is stored.
            BaseException: raised by a signal handler, not by the work.
        """
        try:
            return self._in_savepoint(run), None
        except Exception as error:
            if not self._writer.in_transaction or is_of_a_signal(error):
                raise
            return None, error

    def _in_savepoint(self, run: Run[T]) -> T:
        before = len(self._writer.transferred)
        self._depth = depth = self._depth + 1
        name = f"onefold_work_{depth}"  # numbered: if it does not exist yet, a rollback must not hit an outer one
        try:
            self._writer.execute(f"SAVEPOINT {name}")
            value = run(self._writer)
            self._writer.execute(f"RELEASE {name}")
        except BaseException as error:
            del self._writer.transferred[before:]  # undone
            if self._writer.in_transaction:
                with ignored(sqlite3.OperationalError):  # not made yet, or released already
                    self._writer.execute(f"ROLLBACK TO {name}")
                    self._writer.execute(f"RELEASE {name}")
            if isinstance(error, sqlite3.Error):
                raise self._file.as_ours(error) from error.__cause__
            raise
        finally:
            self._depth = depth - 1
        return value

    def _sync(self, full: bool) -> None:
        if full is not self._syncs and not self.in_memory:
            self._syncs = None
            self._writer.execute(f"PRAGMA synchronous={'FULL' if full else 'NORMAL'}")
            self._syncs = full

    def _check_open(self) -> None:
        if self._closed:
            raise errors.UsageError(f"{self.path} was closed.", todo="Open the app again before you use it.")

    def _ready(self) -> LentConnection:
        """The writer's connection; only for the thread that has the turn."""
        self._check_open()
        if self._opened is None:
            self._open_again()
        return self._writer

    @property
    def _writer(self) -> LentConnection:
        assert self._opened is not None, "asked for before `_ready`"
        return self._opened

    def _begin(self, *, reserved: bool = False) -> None:
        if not self.in_memory:
            self._space.watch(reserved=reserved)
        self._file_turn.begin(self._writer)
        if self.in_memory:
            return
        self._check_there()
        self._log.begin(grows=not self._space.is_tight)
        if self.time is not None:
            self.time.begin_in(self._writer)

    def _check_there(self) -> None:
        """Roll back and refuse to continue if the file or its log is not the one that was opened."""
        if not self.in_memory and not self._file.is_there():
            self._roll_back()
            self._file.give_up(self._writer)

    def tend(self) -> None:
        """Shorten a log that could not be overwritten because of a long read, and return some pages to the disk."""
        if self.in_memory:
            return
        self._check_open()
        self._with_writer(lambda _: self._space.shorten_log())
        if self.read(Space.has_many_free_pages):
            self.write(Space.give_back_in, synced=False)

    def check_file(self) -> bool:
        """Check whether the file is still the one that was opened, without writing. False: it is not open for writes here.

        Raises:
            StorageError: the file, its log or the log's index was removed, replaced or damaged; or a sync failed.
        """
        self._log.check()
        if self.in_memory or self._opened is None or self._file.is_there():
            return self._opened is not None
        return self._with_writer(lambda _: self._check_there()) is None

    def _forget_undone(self) -> None:
        """Forget what a transaction that was rolled back has dead-lettered, moved, or noted about the clock."""
        if self.time is not None:
            self.time.roll_back()
        if self._opened is not None:
            self._opened.transferred = []

    def _roll_back(self) -> None:
        self._forget_undone()
        if self._opened is not None and self._opened.in_transaction:  # SQLite may have done it (full disk)
            self._opened.execute(_ROLLBACK)

    # -- a transaction that stays open across calls (level 4) ----------------------------------------------------------

    def begin_exclusive(self, *, synced: bool = True) -> LentConnection:
        """Take the writer's turn and begin; other writers wait until `end_exclusive`, which the same thread must call.

        Args:
            synced: as for `write`, for everything that is written until then.
        """
        me = threading.get_ident()
        forks.go_first()
        try:
            self._take_turn()
            self._ready()
            self._sync(synced)
            self._begin(reserved=True)
            self._held_by = me  # last, so that nothing is called before the caller has noted it
        except BaseException as error:
            if self._turn.is_mine():
                with self._turn.lock:
                    self._turn.lock.release()
                    self._roll_back()
            if isinstance(error, sqlite3.Error):
                raise self._file.as_ours(error) from error
            raise
        return self._writer

    def end_exclusive(self, *, commit: bool) -> None:
        """Commit or roll back what `begin_exclusive` began, and release the turn. Does nothing when nothing is open.

        Raises:
            StorageBusy, StorageError: the commit failed; everything was rolled back.
        """
        if self._held_by != threading.get_ident():
            return
        with self._turn.lock:
            self._turn.lock.release()
            self._held_by = None
            try:
                with self._writer:
                    if commit:
                        self._check_there()  # it may have been open for a long time
                        self._writer.execute(_COMMIT)
                        self._writer.note_transfers()
                    else:
                        self._roll_back()
            except sqlite3.Error as error:
                self._forget_undone()
                raise self._file.as_ours(error) from error

    def together(self, calls: Sequence[Callable[[], object]], *, synced: bool = True) -> list[object]:
        """Make calls one after another in one transaction, each in a savepoint; nested calls join that transaction.

        Returns:
            What each call returned, or the exception it raised; an exception undoes only what its own call wrote.

        Raises:
            StorageBusy, StorageError: no part of any call was written.
            Exception: raised by a signal handler; no part of any call was written, unless it came after the commit.
        """
        me = threading.get_ident()
        if self._held_by == me:
            with self._writer.engine_time():
                return [self._written(call) for call in calls]
        forks.go_first()
        self._take_turn()
        with self._turn.lock:
            self._turn.lock.release()
            try:
                with self._ready():
                    self._sync(synced)
                    self._begin(reserved=True)
                    self._held_by = me
                    changes = self._writer.total_changes
                    answers = [self._written(call) for call in calls]
                    self._check_there()
                    self._writer.execute(_COMMIT)
                    self._writer.note_transfers()
                    # SQLite syncs nothing if nothing was written, but the data read may come from an early write.
                    unsynced = synced and self._writer.total_changes == changes
            except sqlite3.Error as error:
                self._forget_undone()
                raise self._file.as_ours(error) from error
            finally:
                self._held_by = None
        if unsynced:
            self._log.flush()
        return answers

    def take_back(self, run: Run[object]) -> None:
        """Undo what other processes can see of a call that raised `log.NotOnDisk`; errors while undoing are ignored.

        It is not synced: after one failed sync, later syncs prove nothing, so a power cut may keep what this undoes.
        """

        def undo(writer: sqlite3.Connection) -> None:
            self._sync(False)
            with writer:
                self._file_turn.begin(writer)
                run(writer)
                writer.execute(_COMMIT)

        with ignored(sqlite3.Error, errors.OnefoldError):
            self._with_writer(undo)

    def _written(self, call: Callable[[], object]) -> object:
        value, error = self._answer_of(lambda _: call())
        return value if error is None else error

    def take_transfers(self) -> list[Transferred]:
        """The messages dead-lettered or moved since the last call, in order."""
        taken = list(self._transferred)
        del self._transferred[: len(taken)]
        return taken

    def changed_elsewhere(self) -> bool:
        """Whether another process has committed since the last call; SQLite counts other connections' commits."""
        self._check_open()
        seen, self._seen_version = self._seen_version, self._with_writer(data_version)
        return seen != self._seen_version

    # -- readers -----------------------------------------------------------------------------------------------------

    def read(self, run: Run[T]) -> T:
        """Run `run(connection)` on a snapshot; never waits for writers and never blocks them.

        Raises:
            StorageError, StorageBusy: as for `write`.
        """
        if self.in_memory or self._held_by == threading.get_ident():
            self._check_open()
            return self._with_writer(run)
        forks.look()
        self._check_open()
        return self._translated(lambda: self._readers.read(run))

    def _with_writer(self, run: Run[T]) -> T:
        """Read with the writer's connection, inside this thread's transaction if there is one."""
        if self._held_by == threading.get_ident():
            with self._writer.engine_time():
                return self._translated(lambda: run(self._writer))
        self._take_turn()
        with self._turn.lock:
            self._turn.lock.release()
            writer = self._ready()
            return self._translated(lambda: run(writer))

    def _translated(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except sqlite3.Error as error:
            raise self._file.as_ours(error) from error

    # -- forks (see `forks.Forked`) ------------------------------------------------------------------------------------

    def hold(self, wait_s: float) -> bool:
        """See `forks.Forked`. A transaction of this thread, or of a handler that does not end, stays open."""
        if self._fork_takes is None:
            if self._turn.is_mine():
                self._fork_takes = "nothing"
            elif self._turn.lock.acquire(timeout=wait_s):
                self._fork_takes = "turn"
                if self._opened is not None and not self.in_memory:
                    with ignored(sqlite3.Error):  # a full disk: it closes, but the log is not written into the file
                        self._opened.close()
                    self._opened = None
        return self._readers.hold(wait_s) and self._fork_takes is not None

    def is_held(self) -> bool:
        """See `forks.Forked`."""
        return self._readers.is_held()

    def let_go(self) -> None:
        """See `forks.Forked`."""
        self._readers.let_go()
        if self._fork_takes == "turn":
            self._turn.lock.release()
        self._fork_takes = None

    def start_anew(self) -> None:
        """See `forks.Forked`."""
        if self._opened is not None:
            if self._fork_takes == "nothing":  # only this thread uses it; a handler's connection now refuses calls
                self._opened.set_authorizer(lambda *_: sqlite3.SQLITE_DENY)
            forks.keep_for_ever(self._opened)
        self._opened, self._is_copy = None, self.in_memory
        self._log = Log(None, self._log.failure)  # another thread of the parent may be using it; `_open_again` opens it
        self._turn, self._held_by, self._waiting, self._depth = Turn(), None, deque(), 0
        self._fork_takes, self._transferred = None, []  # the parent reports what happened there
        self._readers.start_anew()

    def _open_again(self) -> None:
        """Open the file after a fork, in the thread that has the turn.

        Raises:
            StorageError: it is no longer the same file, or cannot be opened. UsageError: it was in the parent's memory.
        """
        if self._is_copy:
            raise errors.UsageError(
                f"{self.path} is in the memory of the process that opened it; this one was forked from it.",
                meaning="That process would never see what is sent or claimed here.",
                todo="Use a file, or open another database in memory in this process.",
            )
        if not self._file.is_itself():
            raise self._file.refusal(is_saved=True, log=None)
        with forks.opening():
            self._syncs = self._seen_version = None
            self._open()

    # -- opening and closing -------------------------------------------------------------------------------------------

    def _open(self) -> int:
        """Open the file completely or not at all: a connection kept by a traceback makes it unusable in forked children."""
        writer = connect_writer(self.path, None if self.in_memory else self.real_path, self._settings)
        try:
            writer.committed, writer.is_mine = self._transferred, self._turn.is_mine
            version = data_version(writer)
            self._file.note()
            # If an older log is gone, its content is on disk.
            self._log = Log(None if self.in_memory else self._file.log, self._log.failure)
            self._space = Space(writer, self.path, self.real_path, self._settings.log_bytes, self._file.is_there)
            self._opened = writer
        except BaseException:
            self._opened = None
            writer.close()
            raise
        return version

    def close(self, *, unfinished: bool = False) -> None:
        """Close every connection after the call that uses it; later calls raise UsageError. Idempotent.

        A transaction that a handler keeps open for longer than `busy_ms` (with `unfinished`: any that is open now) is
        rolled back when the process ends.
        """
        forks.look()
        is_free = self._turn.lock.acquire(blocking=False) or (not unfinished and self.patience.take(self._turn.lock))
        self._closed = True
        self._readers.close()
        if is_free:
            with self._turn.lock:
                self._turn.lock.release()
                if self._opened is not None:
                    self._opened.close()
        self._log.close()


# Functions during which a thread has the turn; at level 4 it keeps the turn longer.
_TAKES_TURN = frozenset(
    vars(Database)[name].__code__ for name in ("_write", "together", "begin_exclusive", "check_file", "_with_writer")
)
