"""The processes that use one database file: detecting which are alive, and waking those that are idle.

Alive: each process locks a file, and the operating system releases the lock when the process dies. A process that runs
handlers holds a shared lock on `<database>.owners/<owner id>`; its child processes that run handlers share it (`join`). A
process that gets the exclusive lock knows that all of them are gone, and ends the owner's work: in one transaction its
leases count as over (`onefold_dead_owner`, read by every claim) and its messages become visible. Owners without a file
(on other hosts, or calls of older versions) are never declared dead: only the end of their leases counts.

Stopped: a process writes into its file the instant up to which it has extended all leases that it still needs
(`RenewalMark`). If a lease has ended although its process is alive, the process gave it up if the lease ended before
that instant. If it ended later, the process has not had the chance to extend it: it was stopped, and its handler will
continue (docs/decisions/0033).

Waking, without polling: each waiter binds a datagram socket in a private folder named after the database; `notify`
sends one byte to every socket there. A byte that arrives while no thread waits stays in the socket, so nothing is lost
between "the queue was empty" and "wait": create the waiter first, then check, then wait. In memory a condition does the
same. Where the sockets cannot be used (no AF_UNIX, a folder that is not ours, a path that is too long), waiters poll
every 50 ms instead; `Wakeup.polls` has the reason. Processes find each other through the system's temporary folder, so
they must share it and run as one user; processes that do not are not woken, and find new work when their own wait times
out.

Never here: guesses about time, and what to do after waking. Invariants: an owner's file is locked before its id can be
seen in a claim; an owner declared dead never comes back, because ids are not reused; the instant in an owner's file is
never later than the end of a lease that it still needs; a wake-up may be spurious, but none is lost.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import select
import socket
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onefold import errors, forks, private_files
from onefold.contracts.ledger import Row
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.ledger import append_in
from onefold.engines.sqlite.queue import end_visibilities_in
from onefold.engines.sqlite.refusals import translate
from onefold.interrupts import ignored, let_through

if TYPE_CHECKING:
    from onefold.outside import Entropy


_OWNER: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")  # valid as the name of a file; a record may contain anything
_UNNAMED: Final = ".new-"  # prefix of a file that its process has not locked yet; it belongs to no owner
# Written instead of an instant when no thread of the owner extends leases: only the end of each lease counts.
_ANY_MS: Final = 10**19
_SAID_BYTES: Final = 80


class Presence:
    """This process's presence lock for one database file.

    Args:
        path: the database file.
        owner: id of this process, never used before; letters, digits, `-` and `_`.

    Raises:
        StorageError: the folder cannot be made or written.
    """

    def __init__(self, path: str, owner: str) -> None:
        assert owner.replace("-", "").replace("_", "").isalnum(), owner
        self.owner = owner
        self.directory = Path(f"{path}.owners")
        self.lock_file = self.directory / owner
        self._marks: list[FileRenewalMark] = []
        self._lock = threading.Lock()
        try:
            mode = private_files.mode_beside(path)
            private_files.make_folder(self.directory, private_files.as_folder(mode))
            self._file: forks.OwnFile | None = self._appear(mode)
        except OSError as error:
            let_through(error)
            raise translate(error, str(self.directory)) from error

    def _appear(self, mode: int) -> forks.OwnFile:
        """Create the file under another name, lock it, and only then give it the owner's name."""
        unnamed = self.directory / f"{_UNNAMED}{self.owner}"
        file = forks.OwnFile(os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode))
        fcntl.flock(file.number, fcntl.LOCK_SH)
        self._say(file)
        unnamed.rename(self.lock_file)
        return file

    def mark(self, now_ms: int) -> FileRenewalMark:
        """The mark of one thread that extends leases of this owner; written before the first of them is taken."""
        mark = FileRenewalMark(self, now_ms)
        self.change(mark, now_ms)
        return mark

    def has_work(self) -> bool:
        """Whether any thread that extends leases still has one to extend, or ended without closing its mark."""
        return any(one.is_busy() for one in self._marks)

    def change(self, mark: FileRenewalMark, at_ms: int | None) -> None:
        """Write the earliest instant of all marks after `mark` has changed to `at_ms`, or (None) was closed."""
        with self._lock:
            self._marks = [one for one in self._marks if one is not mark]
            if at_ms is not None:
                mark.at_ms = at_ms
                self._marks.append(mark)
            if self._file is not None:
                self._say(self._file)

    def _say(self, file: forks.OwnFile) -> None:
        at_ms = min((one.at_ms for one in self._marks), default=_ANY_MS)
        with ignored(OSError):  # the disk is full: then only the end of each lease counts, and the lock takes no space
            # The instant is written twice, so that a reader notices if it reads during a write.
            if file.is_ours():
                os.pwrite(file.number, b"%d %020d %020d\n" % (os.getpid(), at_ms, at_ms), 0)

    def find_dead(self) -> list[str]:
        """Ids of the owners whose processes are all gone. Cheap: one open and one lock for each other process."""
        return [name for name in self._others() if self._is_dead(name)]

    def _others(self) -> list[str]:
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError as error:
            let_through(error)
            return []  # all presence locks are gone with the folder; only leases count
        except OSError as error:
            let_through(error)
            raise translate(error, str(self.directory)) from error
        return sorted(name for name in names if name != self.owner and not name.startswith(_UNNAMED))

    def _is_dead(self, owner: str) -> bool:
        with _locked_if_dead(self.directory / owner) as is_dead:
            return is_dead

    def free_dead_owner(self, engine: Database, owner: str, now_ms: int) -> bool:
        """Free everything that a dead owner held; False if it is alive, or another process has freed it already.

        One transaction ends its leases, makes its messages visible, and writes the row `owner-dead` into the ledger.

        Raises:
            StorageBusy: nothing was done; the next call tries again.
        """
        with _locked_if_dead(self.directory / owner) as is_dead:
            if not is_dead:
                return False
            freed = engine.write(lambda connection: free_in(connection, owner, self.owner, now_ms))
            (self.directory / owner).unlink(missing_ok=True)
            return freed

    def close(self) -> None:
        """Release the lock; call it only when this owner has no lease and nothing in flight. Idempotent.

        A process that ends without this call, on purpose or not, is found dead, and what it held is freed at once.
        """
        with self._lock:  # a thread that is writing its mark must not write into a file that reuses the descriptor
            file, self._file = self._file, None
        if file is not None:
            self.lock_file.unlink(missing_ok=True)
            file.close()

    def abandon(self) -> None:
        """In a child process: close this end of the lock, which remains the parent's."""
        if self._file is not None:
            self._file.close()
            self._file = None


class FileRenewalMark:
    """The instant up to which one thread of a process has extended the leases it still needs.

    Args:
        presence: the process's. at_ms: an instant before its first lease was taken.

    Attributes:
        is_busy: whether it has leases to extend.
    """

    def __init__(self, presence: Presence, at_ms: int) -> None:
        self._presence = presence
        self.at_ms = at_ms
        self.is_busy: Callable[[], bool] = lambda: True

    def renewed(self, at_ms: int) -> None:
        """Note that leases which end at `at_ms` or before are not needed, and all others were extended beyond it."""
        self._presence.change(self, at_ms)

    def close(self) -> None:
        """Note that the thread needs no lease any more."""
        self._presence.change(self, None)


def file_of(owner: str) -> str:
    """The name of an owner's file; each guarded function of a process has its own id, but they share one file."""
    return owner.rpartition(".")[2]


def stopped_process(path: str, owner: str, ended_ms: int) -> int | None:
    """The process id of a lease's owner, if the lease has ended but the process is alive and has not extended it.

    Such a process is stopped, paused, or about to continue. None if it is gone, has given up the lease, or keeps no mark.

    Args:
        path: the database file. ended_ms: when the lease ended.

    Raises:
        StorageBusy: the caller has no file descriptor or memory left to find out; the lease remains its owner's.
    """
    if not _OWNER.fullmatch(file_of(owner)):
        return None
    owner_file = Path(f"{path}.owners") / file_of(owner)
    with _locked_if_dead(owner_file) as is_dead:
        if is_dead:
            return None
    try:
        if private_files.strangers([str(owner_file), str(owner_file.parent)], path):
            return None
        file = os.open(owner_file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        let_through(error)
        if isinstance(found := translate(error, str(owner_file)), errors.StorageBusy):
            raise found from error
        return None
    try:
        process, *said = map(int, os.read(file, _SAID_BYTES).split())
    except ValueError:  # nothing could be written, or another version wrote it
        return None
    finally:
        os.close(file)
    if len(said) != 2 or (said[0] == said[1] and said[0] >= ended_ms):
        return None
    return process


def are_dead(path: str, owners: Iterable[str]) -> frozenset[str]:
    """Those of the owners whose lock files exist and are no longer locked.

    Args:
        path: the database file.
    """
    found = set()
    for owner in owners:
        if _OWNER.fullmatch(owner):
            with _locked_if_dead(Path(f"{path}.owners") / owner) as is_dead:
                if is_dead:
                    found.add(owner)
    return frozenset(found)


def free_in(connection: sqlite3.Connection, owner: str, actor: str, now_ms: int) -> bool:
    """Free what a dead owner held, inside the caller's transaction; False when that was done before."""
    query = "INSERT OR IGNORE INTO onefold_dead_owner (owner, at_ms) VALUES (?, ?)"
    if connection.execute(query, (owner, now_ms)).rowcount == 0:
        return False
    ended = end_visibilities_in(connection, owner, now_ms)
    detail: dict[str, str | int | bool | None] = {"owner": owner, "messages": ended}
    append_in(connection, [Row(at_ms=now_ms, event="owner-dead", actor=actor, detail=detail)])
    return True


def join(lock_file: str) -> int:
    """Share the presence lock of the owner that the file belongs to; for child processes, before they run a handler.

    Args:
        lock_file: `Presence.lock_file` of the parent.

    Returns:
        The open file; the lock lasts until it is closed or this process ends.

    Raises:
        LeaseLost: the owner was already declared dead; this process must not run anything for it.
    """
    try:
        file = os.open(lock_file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        let_through(error)
        raise _owner_freed(lock_file) from None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(file)
        let_through(error)
        raise _owner_freed(lock_file) from None
    if os.fstat(file).st_nlink == 0:  # declared dead between the two lines above
        os.close(file)
        raise _owner_freed(lock_file)
    return file


def _owner_freed(lock_file: str) -> errors.LeaseLost:
    return errors.LeaseLost(
        f"The process {Path(lock_file).name} ended before its child could start.",
        meaning="Others have taken over what it held.",
        todo="End this process.",
    )


@contextmanager
def _locked_if_dead(path: Path) -> Iterator[bool]:
    """Lock an owner's file exclusively if all its processes are gone; yields whether they are."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:  # freed already, or on another host: only the end of its lease counts
        let_through(error)
        yield False
        return
    try:
        if private_files.strangers([str(path), str(path.parent)], str(path.parent).removesuffix(".owners")):
            yield False  # a user who may not write the database must not declare owners dead
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            let_through(error)
            yield False
        else:
            yield True
    finally:
        os.close(file)


POLL_S: Final = 0.05  # how often a waiter polls if other processes cannot wake it
_DRAIN_BYTES: Final = 16
_UNREADY: Final = "."  # prefix of sockets that are still being set up


class LocalWaiter:
    """Woken by threads of this process only.

    Args:
        bell: shared by all waiters of one `Wakeup`.
        wait_s_max: wake up after this time at the latest, and return True from `wait`; None for no limit.
    """

    def __init__(self, bell: Bell, wait_s_max: float | None = None) -> None:
        self._bell = bell
        self._heard = bell.rings
        self._woken = False
        self._wait_s_max = wait_s_max

    def wait(self, timeout_s: float) -> bool:
        """Block until woken, or for `timeout_s` seconds; True when there may be something to do."""
        cut = self._wait_s_max is not None and self._wait_s_max < timeout_s
        with self._bell.lock:
            self._bell.condition.wait_for(self._is_woken, self._wait_s_max if cut else timeout_s)
            woken = self._is_woken()
            self._heard, self._woken = self._bell.rings, False
        return woken or cut

    def _is_woken(self) -> bool:
        return self._woken or self._bell.rings != self._heard

    def wake(self) -> None:
        """Wake only this waiter, now or when it waits next."""
        with self._bell.lock:
            self._woken = True
            self._bell.condition.notify_all()

    def close(self) -> None:
        """Nothing to release."""


class Bell:
    """Shared by the waiters of one process: a count that only grows, and the condition that guards it.

    Attributes:
        lock: the condition's lock. Use it in `with` instead of the condition, whose `__enter__` is written in Python:
            if a signal handler raises in that, the lock may stay taken.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.condition = threading.Condition(self.lock)
        self.rings = 0

    def ring(self) -> None:
        """Wake all waiters."""
        with self.lock:
            self.rings += 1
            self.condition.notify_all()


class _OwnSocket(socket.socket):
    """A datagram socket that does not block, and does not close another file that has taken over its number.

    Args:
        fileno: the descriptor of an open socket; None to make one.
    """

    def __init__(self, fileno: int | None = None) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_DGRAM, fileno=fileno)
        self.setblocking(False)
        self._own = forks.OwnFile(self.fileno())

    def close(self) -> None:
        """Close it, unless the program has done so."""
        if not self._own.is_ours():
            self.detach()
        super().close()


class SocketWaiter:
    """Woken by any process through its socket file, and by threads of this process. For one waiting thread.

    Args:
        path: where to bind; it must not exist.

    Raises:
        OSError: the socket cannot be bound there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = _OwnSocket()
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._inner, self._waker = (_OwnSocket(one.detach()) for one in pair)
        unready = path.with_name(f"{_UNREADY}{path.name}")
        try:
            # Senders remove sockets that nobody listens to; this one must not have its name before somebody does.
            self._socket.bind(str(unready))
            unready.chmod(private_files.FILE_MODE)
            unready.rename(path)
        except OSError:
            self._close_sockets()
            raise
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._inner, select.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """Block until woken, or for `timeout_s` seconds; True when woken."""
        ready = self._poll.poll(math.ceil(timeout_s * 1000))
        for descriptor, _ in ready:
            _drain(self._socket if descriptor == self._socket.fileno() else self._inner)
        return bool(ready)

    def wake(self) -> None:
        """Wake only this waiter, now or when it waits next."""
        with ignored(BlockingIOError):  # full: it already contains enough bytes to wake the waiter
            self._waker.send(b"!")

    def close(self) -> None:
        """Stop listening and remove the socket file. Call it in the waiting thread, or when no thread waits."""
        self._path.unlink(missing_ok=True)
        self._close_sockets()

    def abandon(self) -> None:
        """In a child of the process that listens: close only this process's end."""
        self._close_sockets()

    def _close_sockets(self) -> None:
        for one in (self._socket, self._inner, self._waker):
            one.close()


def _drain(listening: socket.socket) -> None:
    with ignored(BlockingIOError):
        while True:
            listening.recv(_DRAIN_BYTES)


class Wakeup:
    """The wake-ups of one database.

    Args:
        path: the database file, or `:memory:`.
        entropy: names the socket files.

    Attributes:
        polls: why waiters poll every 50 ms; None if they are woken.
    """

    def __init__(self, path: str, entropy: Entropy) -> None:
        self._path = path
        self._entropy = entropy
        self._bell = Bell()
        self._directory: Path | None = None
        self._sender: _OwnSocket | None = None  # in a child process, made when it is first used
        self._is_closed = False
        self._listed: list[str] = []  # the sockets that the last listing found
        self._foreign: set[str] = set()  # sockets that only other processes wake; names are never reused
        self.polls: str | None = None
        if path == ":memory:":
            return
        try:
            self._directory = _private_directory(path)
            self._sender = _OwnSocket()
            self.waiter().close()  # fails here if the path is too long
        except (OSError, AttributeError) as error:  # AttributeError: a system without AF_UNIX or user ids
            let_through(error)
            self._directory = None
            self.polls = f"{type(error).__name__}: {error}"

    def waiter(self, *, foreign: bool = False) -> LocalWaiter | SocketWaiter:
        """A new waiter for one thread; close it after use.

        Args:
            foreign: `notify` of this process does not wake it.
        """
        if self._directory is None:
            bell = Bell() if foreign else self._bell
            return LocalWaiter(bell, None if self.polls is None else POLL_S)
        while True:
            name = self._entropy.token()
            try:
                waiter = SocketWaiter(self._directory / name)
            except FileNotFoundError as error:  # the last process to leave has just removed the folder
                let_through(error)
                self._directory = _private_directory(self._path)
            else:
                if foreign:
                    self._foreign.add(name)
                return waiter

    def notify(self) -> None:
        """Wake all waiters of all processes. Never blocks, never fails."""
        self._bell.ring()
        if self._directory is None or self._is_closed:
            return
        try:
            # Listed each time, because a cached list would miss a new waiter.
            self._listed = os.listdir(self._directory)
        except OSError as error:  # no file descriptor is left, or the folder is gone; the messages are on disk
            let_through(error)
        heard = [one for one in self._listed if not one.startswith(_UNREADY) and one not in self._foreign]
        sender = self._sender or (self._make_sender() if heard else None)
        if sender is not None:
            for name in heard:
                _wake(sender, f"{self._directory}/{name}")

    def _make_sender(self) -> _OwnSocket | None:
        with self._bell.lock:
            if self._sender is None and not self._is_closed:
                with ignored(OSError):  # no file descriptor is left; the messages are on disk
                    self._sender = _OwnSocket()
            return self._sender

    def abandon(self) -> None:
        """In a child process: stop using the parent's locks, threads and sockets."""
        self._bell = Bell()
        self._close_sender()

    def close(self) -> None:
        """Close the sending socket; waiters are closed by their owners."""
        self._is_closed = True
        self._close_sender()
        if self._directory is not None:
            with ignored(OSError):  # another process still waits there; the last one to leave removes it
                self._directory.rmdir()

    def _close_sender(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()


def _wake(sender: socket.socket, path: str) -> None:
    try:
        sender.sendto(b"!", path)
    except OSError as error:  # full, so it will wake up anyway; or closed meanwhile
        let_through(error)
        if isinstance(error, ConnectionRefusedError):
            with ignored(OSError):
                Path(path).unlink()  # its process died; names are never reused


def _private_directory(path: str) -> Path:
    """The folder for this database's sockets; created if it does not exist, for this user only.

    Raises:
        OSError: it cannot be made, or another user has put something in its place.
    """
    user = os.getuid()
    digest = blake2b(os.path.realpath(path).encode(), digest_size=8).hexdigest()
    with forks.opening():  # the first `gettempdir` takes a lock that a child forked meanwhile would wait for
        outer = Path(tempfile.gettempdir()) / f"onefold-{user}"
    outer.mkdir(mode=0o700, exist_ok=True)
    found = outer.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o077:
        raise PermissionError(f"{outer} is not a private folder of this user")
    inner = outer / digest
    inner.mkdir(mode=0o700, exist_ok=True)
    return inner
