"""One SQLite file as an engine: queues, records, ledger, state, commit, presence and wake-up, wired together.

Composition only; each part is a room of its own. Never here: SQL. Invariant: a file is migrated before any part touches it,
and the presence lock is taken before the owner's id can appear in a claim.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from onefold import errors, forks, owner_process, private_files
from onefold.contracts.engine import WakeableWaiter
from onefold.engines.sqlite import filetime
from onefold.engines.sqlite.admin import SqliteQueues
from onefold.engines.sqlite.archive import SqliteArchive, sweep_archive_in
from onefold.engines.sqlite.commit import SqliteCommit
from onefold.engines.sqlite.connection import Engine
from onefold.engines.sqlite.file import FOR_WORKERS, FileSettings
from onefold.engines.sqlite.ledger import SqliteLedger
from onefold.engines.sqlite.looking import LookingEngine, is_only_readable
from onefold.engines.sqlite.migrations import migrate
from onefold.engines.sqlite.presence import Presence, are_dead
from onefold.engines.sqlite.state import SqliteState
from onefold.engines.sqlite.store import SqliteStore, dead_owners
from onefold.engines.sqlite.sweep import sweep_in
from onefold.engines.sqlite.wakeup import SocketWaiter, Wakeup
from onefold.interrupts import ignored

if TYPE_CHECKING:
    from onefold.outside import Clock, Entropy

_SWEEP_MS = 5_000  # how often expired messages and records are looked for
_SWEEP_ROWS = 2_000  # records looked at in one step; some milliseconds of the file's writer
# A worker maintains every 500 ms: a fifth of its time while there is much to remove, else a two-hundredth.
_SWEEP_SHARE_MS = 100
_LOOK_SHARE_MS = 25
_NOTE_MS = 600_000  # how old a note of the time may be: clocks drift by less than `steady_clock.STEP_MS` meanwhile


class SqliteEngine:
    """An opened database.

    Args:
        path: file name or `:memory:`.
        clock, entropy: where time and chance come from.
        owner: id of this process; names its leases.
        url: as the user wrote it.
        settings: what may be chosen about the file.
        looks: nothing is to be written: where this user may only read the file, it is opened for that.

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
        looks: bool = False,
    ) -> None:
        self.url = url
        self.shared = path != ":memory:"
        self.provisioned = False
        self._owner, self._entropy = owner, entropy
        written_ms = 0 if path == ":memory:" else filetime.written_at_ms(path)
        reads = looks and is_only_readable(path)
        self.database = LookingEngine(path, clock) if reads else Engine(path, clock, settings=settings)
        self._clock = self.database.clock
        try:
            migrate(self.database)
            if self.shared:
                self.database.read(lambda connection: filetime.adopt(connection, self._clock, written_ms))
                if not reads:
                    self.database.notes_time = True
                    self._note_time()
        except BaseException:
            self.database.close()
            raise
        self.queues = SqliteQueues(self.database, owner=owner, entropy=entropy)
        self.store = self.records = SqliteStore(self.database)
        self.ledger = SqliteLedger(self.database)
        self.store.ledger = self.ledger
        self.state = SqliteState(self.database)
        self.store.state = self.state
        self.archive = SqliteArchive(self.database)
        self._wakeup = Wakeup(":memory:" if reads else self.database.place, entropy)
        self.commit = SqliteCommit(self.database, self.queues, self.notify)
        self.effects = None  # everything is in `commit`
        self.known_queue = None  # opening costs no call
        self._presence: Presence | None = None
        self._swept_ms = clock.monotonic_ms()
        self._sweep_goes_on = False
        self._waiters: list[WakeableWaiter] = []
        self._lock = threading.Lock()
        forks.in_child(self._start_anew)

    def _note_time(self) -> None:
        """See to it that who opens the file later can see whether the machine's clock was set meanwhile."""
        self._noted_ms = self._clock.monotonic_ms()
        if not self.database.read(lambda connection: filetime.is_noted(connection, self._clock)):
            with ignored(errors.TransientError):  # busy, or full: another process does it, or this one later
                self.database.write(lambda connection: filetime.note_in(connection, self._clock), synced=False)

    def _start_anew(self) -> None:
        """As `forks.Forked` says: sign of life and sockets are the parent's; only this process's ends of them are closed.

        So is the owner's id: what a child held under it would count as its dead parent's.
        """
        self._lock = threading.Lock()
        self._owner = self.queues.owner = self._entropy.token()
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
        """What a child process calls with the lock file."""
        return "onefold.engines.sqlite.presence:join" if self.shared else None

    def appear(self) -> str | None:
        """Take this process's presence lock; where its file is, for child processes. None in memory."""
        if not self.shared:
            return None
        with self._lock:
            if self._presence is None:
                self._presence = Presence(self.database.place, self._owner)  # one for all names
            return str(self._presence.lock_file)

    def waiter(self, *, foreign: bool = False) -> WakeableWaiter:
        """What an idle worker waits on; closed with the engine. `foreign`: `notify` of this process does not wake it."""
        waiter = self._wakeup.waiter(foreign=foreign)
        self._waiters.append(waiter)
        return waiter

    def notify(self) -> None:
        """Wake idle workers of all processes."""
        self._wakeup.notify()

    def together(self, calls: Sequence[Callable[[], object]], *, synced: bool = True) -> list[object]:
        """Make calls in one transaction with one sync; see `connection.Engine.together`."""
        return self.database.together(calls, synced=synced)

    def hurry(self, left_ms: int | None) -> None:
        """No call waits for others for longer than this, as the process is to end; see the contract."""
        self.database.patience.hurry(left_ms)

    def stop_groups(self, flag_of: Callable[[str, str, str | None], str | None]) -> None:
        """Have receives stop the group of what the queue itself dead-letters, in their transaction."""
        self.queues.stop_groups(flag_of)

    def changed_elsewhere(self) -> bool:
        """Whether another process has written since this was last asked."""
        return self.database.changed_elsewhere()

    def check(self) -> list[str]:
        """What makes the file less private than it should be. A file that opens is durable."""
        found = private_files.warning_of(self.database.path) if self.shared else None
        return [found] if found is not None else []

    def dead(self, owners: Iterable[str]) -> frozenset[str]:
        """Those of these owners that have been found dead, or whose presence locks nobody holds."""
        asked = frozenset(owners)
        known = asked & self.database.read(dead_owners) if asked else frozenset()
        known |= owner_process.ended(asked - known)
        return known | are_dead(self.database.place, asked - known) if self.shared else known

    def maintain(self, told: Callable[[str], None]) -> int:
        """Free what dead processes held, carry move tasks forward, and now and then remove what expired."""
        self.database.check_file()
        self.database.tend()
        if self.shared and self._clock.monotonic_ms() - self._noted_ms >= _NOTE_MS:
            self._note_time()
        done = self.queues.step_moves()
        if self._presence is not None:
            for owner in self._presence.find_dead():
                if self._presence.bury_dead(self.database, owner, self._clock.now_ms()):
                    told(owner)
                    done += 1
        if self._sweep_goes_on or self._clock.monotonic_ms() - self._swept_ms >= _SWEEP_MS:
            self._swept_ms = self._clock.monotonic_ms()
            done += self._sweep(self._clock.now_ms())
        if done:
            self.notify()
        return done

    def _sweep(self, now_ms: int) -> int:
        """Remove what expired, step by step, for a share of the time; what is left over, the next call goes on with."""
        done = self.queues.sweep()
        begun_ms = self._clock.monotonic_ms()
        while True:
            step = self.database.write(lambda connection: sweep_in(connection, now_ms, limit=_SWEEP_ROWS), synced=False)
            archived = self.database.write(
                lambda connection: sweep_archive_in(connection, now_ms, _SWEEP_ROWS), synced=False
            )
            done += step.removed + archived
            self._sweep_goes_on = step.removed + archived >= _SWEEP_ROWS // 2
            used_ms = self._clock.monotonic_ms() - begun_ms
            if used_ms >= (_SWEEP_SHARE_MS if self._sweep_goes_on else _LOOK_SHARE_MS):
                return done
            if step.is_round and not self._sweep_goes_on:
                return done

    def close(self, *, unfinished: bool = False) -> None:
        """Close everything; harmless twice. `unfinished`: presence and a handler's transaction end with the process."""
        for waiter in self._waiters:
            waiter.close()
        self._waiters.clear()
        self._wakeup.close()
        if self._presence is not None and not unfinished:
            self._presence.close()
            self._presence = None
        self.database.close(unfinished=unfinished)
