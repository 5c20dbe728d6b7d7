"""Forks of this process: what the child must not inherit is closed before the fork and opened again when needed.

SQLite's locks belong to a process, and its library keeps a table of them in memory, by file. A child inherits that table but
not the locks: even a connection that it opens itself assumes that the file is already locked, so another process can
delete the log that it uses (https://www.sqlite.org/howtocorrupt.html, section 2.6). So no connection to a file may be
open while a process forks: each owner of connections closes them and keeps its threads from opening others
(`Forked.hold`), and the next use, in the parent or in the child, opens one again. If a connection could not be closed,
because a handler's transaction is open or because it is not onefold's, its file cannot be used in the child:
`refuse_inherited`.

Never here: which connections a process has. Invariant: onefold never opens a connection in the child to a file that the
parent had open at the fork.
Private: may change with any release.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the C functions under `signal`, whose enumerations take 3 ms to import
import gc
import os
import stat
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from importlib import _bootstrap
from itertools import count
from types import FrameType, MethodType
from typing import Any, Final, Protocol

from onefold import errors
from onefold.interrupts import Deferred, ignored, let_through

_SLICE_S: Final = 0.05  # how long a fork waits for one owner while it holds the others
# How many tenths of a slice (5 s in all) a fork waits for modules that other threads are importing.
_IMPORT_LOOKS: Final = 1_000
_LOCKING: Final = ("concurrent.futures.thread", "logging")  # modules that hold a lock during a fork


class Forked(Protocol):
    """An owner of something that a child must not use."""

    wait_s: float
    """How long a fork may wait for this owner, in seconds."""

    def hold(self, wait_s: float) -> bool:
        """Before a fork: close what can be closed, and block other threads until `let_go`. Can be called repeatedly.

        Args:
            wait_s: how long to wait for those threads, in seconds.

        Returns:
            False: another thread still uses something, so that is open.
        """
        ...

    def is_held(self) -> bool:
        """Whether everything is still closed, and no other thread has opened anything since `hold`."""
        ...

    def let_go(self) -> None:
        """After the fork, in the parent: let the other threads continue."""
        ...

    def start_anew(self) -> None:
        """After the fork, in the child with its one thread: drop the parent's state and locks, even if not held."""
        ...


class _Here:
    """This process."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.forks = 0  # how many forks are between the first process and this one
        self.opening = threading.RLock()
        self.forking = threading.RLock()
        self.held: list[Forked] = []
        self.is_gated = False  # whether `opening` is held for a fork
        self.hooked = -1  # how many of `_LOCKING` were loaded when the hooks were last registered
        self.signals = Deferred()  # signals that come while the main thread forks
        self.owners: dict[int, weakref.ref[Forked]] = {}
        self.when_held: list[Callable[[], None]] = []
        self.anew: dict[object, Callable[[], Callable[[], None] | None]] = {}
        self.inherited: frozenset[tuple[int, int]] = frozenset()
        self.kept: list[object] = []
        self.swept = -1  # the process in which the program's connections were last kept open
        self.never = threading.Lock()  # only to wait on
        self.never.acquire()


_here: Final = _Here()


def generation() -> int:
    """How many forks are between the first process and this one."""
    return _here.forks


def check_not_forked(born: int, what: str) -> None:
    """Refuse to use an object in a forked child that its parent process made.

    Args:
        born: the `generation` in which it was made. what: what it is, in a word.

    Raises:
        UsageError: the process was forked since.
    """
    if _here.forks != born:
        raise errors.UsageError(
            f"This {what} was made before its process was forked.",
            meaning="Its owner id, connections and threads are the parent's.",
            todo=f"Make the {what} in the process that runs it.",
        )


def opening() -> threading.RLock:
    """The lock that is held while a connection is opened and registered with its owner."""
    return _here.opening


def register(owner: Forked) -> None:
    """Register an owner for forks, for as long as it exists."""
    go_first()
    owners, number = _here.owners, id(owner)  # copies, as the interpreter's end deletes this module's names first
    # Callbacks in C: an exception that a signal handler raises inside a Python callback would be swallowed.
    owners[number] = weakref.ref(owner, partial(owners.pop, number))


def go_first() -> None:
    """Make a fork wait for open connections before it takes the locks of Python's own modules, not while it holds them.

    A handler whose transaction the fork waits for may need these locks: to submit to an executor, or to fork itself.
    Hooks are called in reverse order of registration and cannot be moved, so they are registered again if such a module
    was loaded after them. This is checked when an engine is opened, and before each transaction in which users' code
    runs.
    """
    if _here.hooked == len(_LOCKING):
        return
    found = sum(name in sys.modules for name in _LOCKING)
    if found > _here.hooked and hasattr(os, "register_at_fork"):
        first, _here.hooked = _here.hooked < 0, found
        if first:
            os.register_at_fork(after_in_parent=_in_parent, after_in_child=_in_child)
        for _ in range(
            2
        ):  # twice: a signal handler may raise in a hook's first instruction; Python prints it and calls the next
            os.register_at_fork(before=_before)


def when_held(free: Callable[[], None]) -> None:
    """Have `free` called before each fork, when all owners are held, to free what belongs to no owner."""
    _here.when_held.append(free)


def in_child(start_anew: Callable[[], None]) -> None:
    """Have `start_anew` called in every child, to drop the parent's threads, locks and connections.

    Args:
        start_anew: a function, or a method, which is called for as long as its object lives.
    """
    mark, anew = object(), _here.anew
    if not isinstance(start_anew, MethodType):
        anew[mark] = lambda: start_anew
        return
    function = start_anew.__func__
    owner = weakref.ref(start_anew.__self__, partial(anew.pop, mark))

    def method() -> Callable[[], None] | None:
        found = owner()
        return None if found is None else MethodType(function, found)

    anew[mark] = method


class OwnSignals:
    """Signal handlers of this process alone: a forked child has those from before, as `Process.terminate` must end it.

    They are installed at once, and the object must live for as long as they are. While a thread forks, the signals are
    blocked in it, because Python would drop one that comes before the child's hooks have run.

    Args:
        numbers: the signals. handler: called for each of them, in this process.
        before: the handlers from before, if others are installed now.
    """

    def __init__(
        self,
        numbers: Iterable[int],
        handler: Callable[[int, FrameType | None], None],
        before: Mapping[Any, Any] | None = None,
    ) -> None:
        self._handler = handler
        self._before: dict[int, Any] = {}
        self._blocked: dict[int, Any] = {}  # by thread: the signals that it blocked before
        in_child(self.end)
        mine = weakref.ref(self)
        os.register_at_fork(
            before=lambda: _call(mine, OwnSignals._block),
            after_in_parent=lambda: _call(mine, OwnSignals._unblock),
            after_in_child=lambda: _call(mine, OwnSignals._unblock),
        )
        for number in numbers:
            self._before[int(number)] = _signal.getsignal(number) if before is None else before[number]
            _signal.signal(number, self._caught)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self._handler(number, frame)

    def _block(self) -> None:
        self._blocked[threading.get_ident()] = _signal.pthread_sigmask(_signal.SIG_BLOCK, self._before)

    def _unblock(self) -> None:
        blocked = self._blocked.pop(threading.get_ident(), None)
        if blocked is not None:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, blocked)

    def end(self) -> None:
        """Restore the handlers from before, except where another has been installed since."""
        for number, before in self._before.items():
            if isinstance(getattr(_signal.getsignal(number), "__self__", None), OwnSignals | Deferred):
                _signal.signal(number, _signal.SIG_DFL if before is None else before)


def _call(owner: weakref.ref[OwnSignals], method: Callable[[OwnSignals], None]) -> None:
    found = owner()
    if found is not None:
        method(found)


class OwnFile:
    """A file that onefold has open, known by more than its number.

    A program that turns into a daemon closes all files by number, and its own files then get these numbers.

    Args:
        number: its file descriptor, just opened.
    """

    __slots__ = ("_file", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self._file = _file_at(number)

    def is_ours(self) -> bool:
        """Whether the number is still that of this file."""
        return self._file is not None and _file_at(self.number) == self._file

    def close(self) -> None:
        """Close it, unless the program has done so."""
        if self.is_ours():
            os.close(self.number)


def _file_at(number: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(number)
    except OSError as error:
        let_through(error)
        return None
    return found.st_dev, found.st_ino


def look() -> None:
    """Detect a fork that bypassed Python's hooks. It is called before anything that belongs to a process is used."""
    if os.getpid() != _here.process:
        _in_child()


def refuse_inherited(path: str, real_path: str) -> None:
    """Refuse a file that the parent process had open when it forked this one.

    Args:
        path: as the user wrote it. real_path: the path of the file itself.

    Raises:
        StorageError: the parent had it open.
    """
    if not _here.inherited:
        return
    with ignored(OSError):
        found = os.stat(real_path)
        if (found.st_dev, found.st_ino) in _here.inherited:
            _keep_connections()
            raise errors.StorageError(
                f"{path} was in use at the moment when this process was forked.",
                meaning="A handler's transaction, or a connection of the program's own, was open. SQLite can no longer "
                "lock the file in this process; messages would be lost. The parent process continues unharmed.",
                todo="Fork before the handler's first statement and close your own connections first, or start the "
                "process with multiprocessing's spawn or forkserver.",
            )


def keep_for_ever(thing: object) -> None:
    """Keep an object of the parent from being finalised, which would close it, even when the interpreter ends."""
    _here.kept.append(thing)
    with suppress(ImportError, AttributeError):  # it may be in the middle of its import
        import ctypes  # needed only in a child

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _keep_connections() -> None:
    """Keep the program's own connections from being closed when this child ends.

    Otherwise SQLite would assume that no other process has the file open, write an old log into it, and delete the log
    that other processes use.
    """
    kind = getattr(sys.modules.get("sqlite3"), "Connection", None)
    if _here.swept != _here.process and kind is not None:
        _here.swept = _here.process
        for one in gc.get_objects():
            if issubclass(type(one), kind):
                keep_for_ever(one)


def _owners() -> list[Forked]:
    return [owner for one in list(_here.owners.values()) if (owner := one()) is not None]


def _before() -> None:
    """Hold all owners, waiting at most for the longest of their `wait_s`; while it waits for one it holds none of them.

    Otherwise a fork could wait for a transaction whose thread waits for something that the fork holds, or wants to fork
    itself. It also waits for imports in other threads, since the first `send` of an app imports its engine.
    """
    while True:
        try:
            if _here.is_gated and _is_forking():
                return  # the hook that was registered later has done it
            _here.signals.begin()
            break
        except BaseException as error:  # noqa: BLE001 - from a signal; Python would print it, and fork with all open
            _here.signals.caught(error)
    waited_s = 0.0
    for looks in count():
        _here.forking.acquire()
        owners = _owners()
        missing = [owner for owner in owners if not _held(owner)]
        if all(waited_s >= owner.wait_s for owner in missing):
            _here.opening.acquire()
            owners = _owners()  # another thread may have registered one while it was opening
            is_late = waited_s >= max((owner.wait_s for owner in owners), default=0.0)
            is_ready = is_late or all(owner in _here.held and owner.is_held() for owner in owners)
            if is_ready and (looks >= _IMPORT_LOOKS or not _is_importing()):
                for free in _here.when_held:
                    with suppress(Exception):  # Python would print it and fork with everything open
                        free()
                _here.is_gated = True
                return
            _here.opening.release()
        _let_go()
        _here.forking.release()
        waited_s += _SLICE_S * max(len(missing), 1)
        _here.never.acquire(timeout=_SLICE_S / 10)


def _is_importing() -> bool:
    """Whether another thread is importing a module; a child would wait for that import forever.

    In a child Python renews its global import lock, but not the locks of individual modules (`importlib._bootstrap`).
    """
    me = threading.get_ident()
    locks = [lock() for lock in list(getattr(_bootstrap, "_module_locks", {}).values())]
    return any(getattr(lock, "owner", None) not in (None, me) for lock in locks)


def _is_forking() -> bool:
    """Whether this thread is the one that forks."""
    owned: bool = _here.forking._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001 - as Condition does
    return owned


def _held(owner: Forked) -> bool:
    """Hold one owner; if it raises, the others are held all the same. The child refuses what could not be closed."""
    if owner not in _here.held:
        _here.held.append(owner)
    try:
        return owner.hold(_SLICE_S)
    except Exception:  # noqa: BLE001 - Python would print it and fork with everything open
        return True


def _let_go() -> None:
    while _here.held:
        owner = _here.held.pop()
        with suppress(RuntimeError):  # this one was not held after all; go on with the others
            owner.let_go()


def _in_parent() -> None:
    if not _is_forking():
        return  # another of the hooks has done it
    _here.is_gated = False
    _here.opening.release()
    _let_go()
    _here.forking.release()
    _here.signals.end(deliver=True)


def _in_child() -> None:
    if _here.process == os.getpid() and not _here.is_gated:
        return  # another of the hooks has done it
    _here.process = os.getpid()
    _here.forks += 1
    _here.opening, _here.forking = threading.RLock(), threading.RLock()
    _here.held, _here.is_gated = [], False
    _here.inherited = _open_files()
    first: Exception | None = None
    for start_anew in [*(owner.start_anew for owner in _owners()), *(one() for one in list(_here.anew.values()))]:
        try:
            if start_anew is not None:
                start_anew()
        except Exception as error:  # noqa: BLE001 - the others must be started anew too
            first = first or error
    _here.signals.end(deliver=False)
    if first is not None:
        raise first  # Python prints it


def _open_files() -> frozenset[tuple[int, int]]:
    """Device and inode of every file that is open in this process."""
    found: set[tuple[int, int]] = set()
    for folder in ("/proc/self/fd", "/dev/fd"):
        with ignored(OSError):
            for name in os.listdir(folder):
                with ignored(OSError):
                    one = os.fstat(int(name))
                    if stat.S_ISREG(one.st_mode):
                        found.add((one.st_dev, one.st_ino))
            break
    return frozenset(found)


go_first()
