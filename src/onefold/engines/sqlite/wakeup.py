"""Waking idle receivers of all processes on one database, without polling.

Each waiter binds a datagram socket in a private folder named after the database; `notify` sends one byte to every socket
there. A byte that arrives while nobody waits stays in the socket, so nothing is lost between "the queue was empty" and
"wait": make the waiter first, look second, wait third. In memory a condition does the same. Where the sockets cannot be
had (no AF_UNIX, folder not ours, path too long) waiters look again every 50 ms instead; `Wakeup.polls` says so.

Processes find each other through the system's temporary folder, so they must share it and run as one user; those that do
not are not woken, and find new work when their own wait times out.
Never here: what there is to do after waking. Invariant: a wake-up may come for nothing, but never too few of them.
"""

from __future__ import annotations

import math
import os
import select
import socket
import stat
import tempfile
import threading
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onefold import forks, private_files
from onefold.interrupts import ignored, let_through

if TYPE_CHECKING:
    from onefold.outside import Entropy

POLL_S: Final = 0.05  # how often a waiter looks again where it cannot be woken by other processes
_DRAIN_BYTES: Final = 16
_UNREADY: Final = "."  # files that begin so are being made


class LocalWaiter:
    """Woken by threads of this process only.

    Args:
        bell: shared by all waiters of one `Wakeup`.
        wait_s_max: look again after so long at the latest (then `wait` answers True); None: no need to.
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
        """Wake this waiter only, now or when it waits next."""
        with self._bell.lock:
            self._woken = True
            self._bell.condition.notify_all()

    def close(self) -> None:
        """Nothing to give back."""


class Bell:
    """What waiters of one process share: a count that only grows, and the condition that guards it.

    Attributes:
        lock: the condition's, for `with`: its own `__enter__` is Python, and an exception out of a signal's handler may
            leave it with the lock taken.
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


class SocketWaiter:
    """Woken by any process, through a socket file of its own, and by threads of this one. For one waiting thread.

    Args:
        path: where to bind; nothing may be there.

    Raises:
        OSError: the socket cannot be bound there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._inner, self._waker = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for one in (self._socket, self._inner, self._waker):
            one.setblocking(False)
        unready = path.with_name(f"{_UNREADY}{path.name}")
        try:
            # Senders remove files that nobody listens on; this one must not be seen before somebody does.
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
        """Wake this waiter only, now or when it waits next."""
        with ignored(BlockingIOError):  # full: there is enough to wake up for
            self._waker.send(b"!")

    def close(self) -> None:
        """Stop listening and remove the socket file. By the waiting thread, or when nobody waits."""
        self._path.unlink(missing_ok=True)
        self._close_sockets()

    def abandon(self) -> None:
        """In a child of the process that listens: close this end alone."""
        self._close_sockets()

    def _close_sockets(self) -> None:
        for one in (self._socket, self._inner, self._waker):
            one.close()


def _drain(listening: socket.socket) -> None:
    with ignored(BlockingIOError):
        while True:
            listening.recv(_DRAIN_BYTES)


class Wakeup:
    """The bell of one database.

    Args:
        path: the database file, or `:memory:`.
        entropy: names the socket files.

    Attributes:
        polls: why waiters look again every 50 ms; None when they are woken.
    """

    def __init__(self, path: str, entropy: Entropy) -> None:
        self._path = path
        self._entropy = entropy
        self._bell = Bell()
        self._directory: Path | None = None
        self._sender: socket.socket | None = None
        self._listed: list[str] = []  # the sockets that were there last
        self._foreign: set[str] = set()  # sockets that only other processes wake; names are never used twice
        self.polls: str | None = None
        if path == ":memory:":
            return
        try:
            self._directory = _private_directory(path)
            self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sender.setblocking(False)
            self.waiter().close()  # a path that is too long shows here
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
            except FileNotFoundError as error:  # the last one to leave has just removed the folder
                let_through(error)
                self._directory = _private_directory(self._path)
            else:
                if foreign:
                    self._foreign.add(name)
                return waiter

    def notify(self) -> None:
        """Wake all waiters of all processes. Never blocks, never fails."""
        self._bell.ring()
        if self._directory is None or self._sender is None:
            return
        try:
            # Each time: a list kept for later would miss who has just come.
            self._listed = os.listdir(self._directory)
        except (
            OSError
        ) as error:  # no file descriptor is left, or the folder is gone: what was sent is on disk all the same
            let_through(error)
        for name in self._listed:
            if not name.startswith(_UNREADY) and name not in self._foreign:
                _wake(self._sender, f"{self._directory}/{name}")

    def abandon(self) -> None:
        """In a child of the process: no lock, thread or socket of the parent's is used any more."""
        self._bell = Bell()
        if self._sender is not None:
            self._sender.close()
            self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sender.setblocking(False)

    def close(self) -> None:
        """Give back the sending socket; waiters are closed by who made them."""
        if self._sender is not None:
            self._sender.close()
            self._sender = None
        if self._directory is not None:
            with ignored(OSError):  # someone else still waits there; the last one to go removes it
                self._directory.rmdir()


def _wake(sender: socket.socket, path: str) -> None:
    try:
        sender.sendto(b"!", path)
    except OSError as error:  # full, with enough to wake up for; or closed since it was listed
        let_through(error)
        if isinstance(error, ConnectionRefusedError):
            with ignored(OSError):
                Path(path).unlink()  # its process died; names are never used twice


def _private_directory(path: str) -> Path:
    """The folder for this database's sockets; made now, for this user only.

    Raises:
        OSError: it cannot be made, or another user has put something in its place.
    """
    user = os.getuid()
    place = blake2b(os.path.realpath(path).encode(), digest_size=8).hexdigest()
    with forks.opening():  # its first call holds a lock of `tempfile`, which a child forked meanwhile would wait for
        outer = Path(tempfile.gettempdir()) / f"onefold-{user}"
    outer.mkdir(mode=0o700, exist_ok=True)
    found = outer.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o077:
        raise PermissionError(f"{outer} is not a private folder of this user")
    inner = outer / place
    inner.mkdir(mode=0o700, exist_ok=True)
    return inner
