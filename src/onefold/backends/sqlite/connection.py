"""One SQLite file as an engine: a single writer per process with group commit, and readers that never block it.

What lives here: opening a file, pragmas, the writer's turn, read connections. Never here: SQL of queues or records.

Writing: every thread hands in a piece of work; the first to get the turn runs all that waits in one transaction and
syncs once, so eight threads pay for one fsync, not for eight. Each piece has a savepoint of its own. A caller gets its
answer only after COMMIT returned, which in WAL mode with synchronous=FULL means: on disk.
Between processes SQLite's own file lock decides; we ask for it again every millisecond, because SQLite's own waiting
backs off up to 100 ms, which is what makes other tools stall under load.
Invariant: an exception leaves nothing of its piece of work behind.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from onefold import errors, private_files
from onefold.backends.sqlite.file import FOR_WORKERS, FileSettings, OpenFile
from onefold.backends.sqlite.lending import LentConnection
from onefold.backends.sqlite.readers import Readers
from onefold.backends.sqlite.refusals import primary, translate
from onefold.clock import SystemClock
from onefold.contracts.admin import Transferred

if TYPE_CHECKING:
    from onefold.outside import Clock

C = TypeVar("C", bound=sqlite3.Connection)
T = TypeVar("T")

APPLICATION_ID = 0x6F6E6566  # the letters "onef", in SQLite's header field for the file type
_CACHE_KIB = 64 * 1024  # of the one writer
_READER_CACHE_KIB = 2 * 1024  # of each reader, of which a busy process has many; what one sorts beyond it is in a file
# Own spelling, so that no statement a handler prepared can be found in the statement cache under the engine's words.
_BEGIN = "BEGIN IMMEDIATE /*onefold*/"
_COMMIT = "COMMIT /*onefold*/"
_ROLLBACK = "ROLLBACK /*onefold*/"


class _Never:
    """A waiter that nobody wakes."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        return self._event.wait(timeout_s)


class _Work(Generic[T]):
    """A piece of work that waits for its turn, and its answer."""

    __slots__ = ("_ticket", "done", "error", "run", "synced", "value")

    def __init__(self, run: Callable[[sqlite3.Connection], T], synced: bool) -> None:
        self.run = run
        self.synced = synced
        self.value: T | None = None
        self.error: BaseException | None = None
        self.done = False
        self._ticket = [self]

    def take(self) -> bool:
        """Whether it is the caller's to perform, or to give up: once only, whichever thread asks first."""
        try:
            self._ticket.pop()
        except IndexError:
            return False
        return True


class Engine:
    """A database file, or a private database in memory.

    Args:
        path: file name, or `:memory:`.
        clock: where the queue's and the records' time comes from.
        settings: what may be chosen about the file.

    Raises:
        StorageError: the file is not a database, is corrupt, cannot be opened or written.
    """

    def __init__(self, path: str, clock: Clock, *, settings: FileSettings = FOR_WORKERS) -> None:
        self.path = path
        self.clock = clock
        self.in_memory = path == ":memory:"
        self._file = OpenFile(path)
        self.place = path if self.in_memory else self._file.place
        self._settings = settings
        self._real_clock = SystemClock()  # other processes hold the file in real time, whatever `clock` says
        self._never = _Never()
        self._turn = threading.RLock()
        self._held_by: int | None = None  # thread inside `begin_exclusive`
        self._waiting: deque[_Work[Any]] = deque()
        self._readers = Readers(lambda: self._connect(sqlite3.Connection), self._check_open)
        self._closed = False
        self._syncs = True
        self._writer = self._connect(LentConnection)
        self._seen_version = _data_version(self._writer)
        self._file.note()

    # -- the writer --------------------------------------------------------------------------------------------------

    def write(self, run: Callable[[sqlite3.Connection], T], *, synced: bool = True) -> T:
        """Run `run(connection)` in a transaction and return its answer once it is durable.

        Args:
            synced: False for what a power cut may take back without harm (a receive, a heartbeat): it is committed, so
                every process sees it and a killed one loses nothing, but it waits for no disk. The next synced commit
                makes it durable too, since the write-ahead log is synced as a whole.

        Several callers' work shares one transaction; each has a savepoint, so one's exception does not touch another's.
        `run` must not commit, roll back, wait, or call `write` of another engine.

        Raises:
            StorageBusy: another process, or a transaction of this one that stays open (`begin_exclusive`), held the file for
                longer than `busy_ms`, or the disk is full; nothing was written.
            StorageError: the file is corrupt, read-only or gone.
            Exception: whatever `run` raised; nothing of it was written.
        """
        if self._held_by == threading.get_ident():
            with self._writer.engine_time():
                return self._in_savepoint(run)
        if self._turn.acquire(blocking=False):
            try:
                if not self._waiting:
                    return self._run_alone(run, synced)
            finally:
                self._turn.release()
        work = _Work(run, synced)
        self._waiting.append(work)
        with self._my_turn(lambda: not work.take()):
            if not work.done:
                self._run_waiting()
        if work.error is not None:
            raise work.error
        return work.value  # type: ignore[return-value]  # done without error: run's own answer

    @contextmanager
    def _my_turn(self, is_being_done: Callable[[], bool] = lambda: False) -> Iterator[None]:
        self._take_turn(is_being_done)
        try:
            yield
        finally:
            self._turn.release()

    def _take_turn(self, is_being_done: Callable[[], bool] = lambda: False) -> None:
        """Wait for the writer's turn, as long as for another process: a handler's open transaction may hold it for ever.

        Args:
            is_being_done: asked when that was in vain: whether another thread has begun what the turn is wanted for.
        """
        if self._turn.acquire(timeout=self._settings.busy_ms / 1000):
            return
        if is_being_done():
            self._turn.acquire()
            return
        raise errors.StorageBusy(
            f"A transaction of this process has kept {self.path} from being written for {self._settings.busy_ms:,} ms.",
            meaning="Nothing was written. It is that of a transactional job's handler, which has not come back.",
            todo="Give the handler's own calls timeouts; what takes long, it should do before its first statement.",
        )

    def _run_alone(self, run: Callable[[sqlite3.Connection], T], synced: bool) -> T:
        """As `_run_waiting`, for one caller that has met no other."""
        try:
            self._sync(synced)
            self._begin()
            try:
                value = run(self._writer)
                self._writer.execute(_COMMIT)
            except BaseException:
                self._roll_back()
                raise
        except (sqlite3.Error, OSError) as error:
            raise translate(error, self.path) from None
        return value

    def _waiting_now(self) -> list[_Work[Any]]:
        """All that waits and was not given up, taken out."""
        found: list[_Work[Any]] = []
        while self._waiting:
            work = self._waiting.popleft()
            if work.take():
                found.append(work)
        return found

    def _run_waiting(self) -> None:
        batch = self._waiting_now()
        try:
            self._sync(any(work.synced for work in batch))
            self._begin()
            try:
                if len(batch) == 1:
                    batch[0].value = batch[0].run(self._writer)
                else:
                    for work in batch:
                        try:
                            work.value = self._in_savepoint(work.run)
                        except Exception as error:
                            if not self._writer.in_transaction:
                                raise  # SQLite rolled everything back (full disk): nobody's work is stored
                            work.error = error
                self._writer.execute(_COMMIT)
            except BaseException:
                self._roll_back()
                raise
        except BaseException as error:
            translated = translate(error, self.path)
            for work in batch:
                if work.error is None:
                    work.error = translated
            if not isinstance(error, Exception):
                raise
        finally:
            for work in batch:
                work.done = True

    def _in_savepoint(self, run: Callable[[sqlite3.Connection], T]) -> T:
        told = len(self._writer.transferred)
        self._writer.execute("SAVEPOINT onefold_work")
        try:
            value = run(self._writer)
        except BaseException as error:  # noqa: BLE001 - raised again below, as onefold's own
            del self._writer.transferred[told:]  # that did not happen
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK TO onefold_work")
                self._writer.execute("RELEASE onefold_work")
            raise translate(error, self.path) from error.__cause__
        self._writer.execute("RELEASE onefold_work")
        return value

    def _sync(self, full: bool) -> None:
        if full is not self._syncs and not self.in_memory:
            self._writer.execute(f"PRAGMA synchronous={'FULL' if full else 'NORMAL'}")
            self._syncs = full

    def _check_open(self) -> None:
        if self._closed:
            raise errors.UsageError(f"{self.path} was closed.", todo="Open the app again before you use it.")

    def _begin(self) -> None:
        self._check_open()
        end_ms: int | None = None
        while True:
            try:
                self._writer.execute(_BEGIN)
            except sqlite3.OperationalError as error:
                now_ms = self._real_clock.monotonic_ms()
                end_ms = now_ms + self._settings.busy_ms if end_ms is None else end_ms
                if primary(error) != sqlite3.SQLITE_BUSY or now_ms >= end_ms:
                    raise
                self._real_clock.wait(self._never, 1)
            else:
                if not self.in_memory and not self._file.is_there():
                    self._refuse_lost_file()
                return

    def _refuse_lost_file(self) -> NoReturn:
        """End a transaction that would go where nobody looks for it; what can be saved is written into the file.

        Raises:
            StorageError: always.
        """
        self._roll_back()
        is_saved = False
        if self._file.is_log_gone():  # nobody has begun another: what this process still has of it is all there is
            _, held, written = self._writer.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
            is_saved = held == written
        raise self._file.refusal(is_saved=is_saved, log=self._file.move_old_log())

    def check_file(self) -> None:
        """Look whether the file is still the one that was opened; for processes that write seldom.

        Raises:
            StorageError: it was removed or replaced, or its log or the log's index was.
        """
        if self.in_memory or (self._file.is_there() and self._file.is_index_there()):
            return
        with self._my_turn():
            self._refuse_lost_file()

    def _roll_back(self) -> None:
        self._writer.transferred = []  # that did not happen
        if self._writer.in_transaction:  # SQLite may have rolled back by itself (full disk, I/O error)
            self._writer.execute(_ROLLBACK)

    # -- a transaction that stays open across calls (level 4) ----------------------------------------------------------

    def begin_exclusive(self, *, synced: bool = True) -> LentConnection:
        """Take the writer's turn and begin; other writers wait until `end_exclusive`. Same thread must end it.

        Args:
            synced: as for `write`, for everything that is written until then.
        """
        self._take_turn()
        try:
            self._sync(synced)
            self._begin()
        except BaseException as error:
            self._turn.release()
            raise translate(error, self.path) from error
        self._held_by = threading.get_ident()
        return self._writer

    def end_exclusive(self, *, commit: bool) -> None:
        """Commit or roll back what `begin_exclusive` began, and give the turn back.

        Raises:
            StorageBusy, StorageError: the commit failed; everything was rolled back.
        """
        try:
            if commit:
                self._writer.execute(_COMMIT)
            else:
                self._roll_back()
        except BaseException as error:
            self._roll_back()
            raise translate(error, self.path) from error
        finally:
            self._held_by = None
            self._turn.release()

    def together(self, calls: Sequence[Callable[[], object]], *, synced: bool = True) -> list[object]:
        """Make calls one after another in one transaction, each in a savepoint; inside a call, part of that call.

        Returns:
            What each call returned, or the exception it raised; one call's exception undoes only what that call wrote.

        Raises:
            StorageBusy, StorageError: nothing of any call was written.
        """
        if self._held_by == threading.get_ident():
            return self._one_by_one(calls)
        self.begin_exclusive(synced=synced)
        done = False
        try:
            answers = self._one_by_one(calls)
            done = True
        finally:
            self.end_exclusive(commit=done)
        return answers

    def _one_by_one(self, calls: Sequence[Callable[[], object]]) -> list[object]:
        answers: list[object] = []
        for call in calls:
            try:
                answers.append(self._in_savepoint(lambda _, call=call: call()))  # type: ignore[misc]
            except Exception as error:
                if not self._writer.in_transaction:
                    raise  # SQLite rolled everything back (full disk): nobody's work is stored
                answers.append(error)
        return answers

    def take_transfers(self) -> list[Transferred]:
        """What was dead-lettered or moved since the last call, in order."""
        taken = self._writer.transferred
        if taken:
            self._writer.transferred = []
        return taken

    def changed_elsewhere(self) -> bool:
        """Whether another process has committed since this was last asked; SQLite counts the commits of others."""
        self._check_open()
        with self._my_turn(), self._writer.engine_time():
            version = self._translated(lambda: _data_version(self._writer))
        changed = version != self._seen_version
        self._seen_version = version
        return changed

    # -- readers -----------------------------------------------------------------------------------------------------

    def read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run `run(connection)` on a snapshot; never waits for writers and never blocks them.

        Raises:
            StorageError, StorageBusy: as for `write`.
        """
        if self.in_memory or self._held_by == threading.get_ident():
            self._check_open()
            self._take_turn()
            try:
                with self._writer.engine_time():
                    return self._translated(lambda: run(self._writer))
            finally:
                self._turn.release()
        self._check_open()
        return self._translated(lambda: self._readers.read(run))

    def _translated(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except sqlite3.Error as error:
            raise translate(error, self.path) from error

    # -- opening and closing -------------------------------------------------------------------------------------------

    def _connect(self, kind: type[C]) -> C:
        reads_only = kind is not LentConnection
        try:
            if not self.in_memory and not reads_only:
                private_files.make_file(self.place)  # SQLite gives its log the same mode
            connection = sqlite3.connect(
                self.place,
                timeout=self._settings.busy_ms / 1000,  # from the first statement on: another may recover the file
                isolation_level=None,
                check_same_thread=False,
                cached_statements=512,
                factory=kind,
            )
            if reads_only:
                connection.execute(f"PRAGMA cache_size=-{_READER_CACHE_KIB}")
                connection.execute("PRAGMA temp_store=FILE")
                connection.execute("PRAGMA query_only=ON")
            else:
                connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
                connection.execute("PRAGMA temp_store=MEMORY")
                self._prepare_writer(connection)
        except (sqlite3.Error, OSError) as error:
            raise translate(error, self.path) from error
        return connection

    def _prepare_writer(self, connection: sqlite3.Connection) -> None:
        if not self.in_memory:
            refuse_foreign(self.path, *identity(connection))  # before the switch, which writes to the file
            connection.execute(f"PRAGMA page_size={self._settings.page_bytes}")
            mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            if mode != "wal":
                raise errors.StorageError(
                    f"{self.path} could not be switched to write-ahead logging (SQLite answered {mode!r}).",
                    meaning="Several processes could not use it at once.",
                    todo="Put the file on a local disk; network file systems cannot hold it.",
                )
        connection.execute("PRAGMA synchronous=FULL")
        page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]  # an older file's own
        connection.execute(f"PRAGMA wal_autocheckpoint={self._settings.log_bytes // page_bytes}")
        connection.execute("PRAGMA busy_timeout=0")

    def close(self, *, unfinished: bool = False) -> None:
        """Close every connection after the call that uses it; later calls raise UsageError. Closing twice is harmless.

        A transaction that a handler keeps open for longer than `busy_ms`, or with `unfinished` one that is open now, is left
        to the end of the process, which takes it back.
        """
        is_free = self._turn.acquire(timeout=0 if unfinished else self._settings.busy_ms / 1000)
        self._closed = True
        self._readers.close()
        if is_free:
            try:
                self._writer.close()
            finally:
                self._turn.release()


def identity(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Whose file it is: application id, schema version, how many tables and indexes."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return application, version, tables


def refuse_foreign(path: str, application: int, version: int, tables: int) -> None:
    """Refuse a file that another program made.

    Raises:
        StorageError: it is neither empty nor ours.
    """
    if application != APPLICATION_ID and (application or version or tables):
        raise errors.StorageError(
            f"{path} is a database of another program (application id {application:#x}, {tables} tables).",
            meaning="Nothing was changed.",
            todo="Give onefold a file of its own.",
        )


def _data_version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    return version
