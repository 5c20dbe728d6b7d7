"""The leases of guarded calls: what `extend` is of the source that a call of a guarded function is.

A job's lease is extended with its message's visibility by `heartbeat.py`; a call has no message, and most calls are over
long before a third of their lease: the one thread here starts with the first call and looks now and then.
Never here: what a lost lease comes to. Invariant: the answer to each renewal is read; a lease that another call has got is
renewed no more. Whatever a store raises, the others are renewed again a third of a lease later.
"""

from __future__ import annotations

import _thread
import logging
import threading
from typing import TYPE_CHECKING

from msgspec import Struct

from onefold import errors, forks
from onefold.clock import SteadyClock, lease_from_ms, until_ms
from onefold.contracts.store import Ask, Claimed
from onefold.record import lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from onefold.contracts.store import Hold
    from onefold.contracts.verbs import Store
    from onefold.outside import Clock

_LOOK_MS = 30_000  # how often the keeper of leases looks whether the clock was set
_log = logging.getLogger("onefold")


class KeptCall(Struct, gc=False):
    """A call under way.

    Args:
        found, ask: its claim. ask is None once another call has its key.
        renewed_until_ms: when its lease ends that was renewed last; 0: none was.
        is_renewed: False from when its record is about to be written, or its lease was lost.
    """

    found: Claimed
    ask: Ask | None
    renewed_until_ms: int = 0
    is_renewed: bool = True


class LeaseKeeper:
    """Renews the leases of calls that run longer than a third of their lease. One daemon thread, started when needed.

    A lease that is lost, or over, while its call runs is logged. When the machine's clock is set forward, all are renewed
    before the time without steps follows it, however long they last (`clock.HOLD_MS`).

    Args:
        put_back: puts the record of a call back where it is gone from the store; False: another call has the key.
        lost: is called with what was lost.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        lease_ms: int,
        put_back: Callable[[KeptCall], bool],
        lost: Callable[[Hold], None],
    ) -> None:
        self._store = store
        self._put_back = put_back
        self._lost = lost
        self._clock = clock
        self._lease_ms = lease_ms
        self._margin_ms = lease.margin_ms(lease_ms)
        self._calls: dict[Hold, KeptCall] = {}  # that are not recorded yet
        self._ends: dict[Hold, int] = {}  # of the thread: when each lease is over unless renewed
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        forks.in_child(self._start_anew)

    def _start_anew(self) -> None:
        """In a forked child: the calls that run are the parent's, and its thread is not here."""
        self._calls, self._stop, self._lock, self._thread = {}, threading.Event(), threading.Lock(), None

    def add(self, found: Claimed, ask: Ask) -> bool:
        """Renew from now on; False: a call that still runs has this very claim, and goes on with it."""
        call = KeptCall(found, ask)
        if self._calls.setdefault(found.hold, call) is not call:
            return False
        if self._thread is None:
            # By a thread: what a signal's handler raises inside Thread.start comes out of it as an error of Python's own.
            started = _thread.allocate_lock()
            started.acquire()
            _thread.start_new_thread(self._start, (started,))
            started.acquire()
        return True

    def _start(self, started: _thread.LockType) -> None:
        try:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._renew_all, name="onefold-once", daemon=True)
                    self._thread = thread  # before its start: it may end at once
                    try:
                        thread.start()
                    except BaseException:
                        self._thread = None
                        raise
        except RuntimeError as error:
            _log.warning(
                "No thread could be started to renew the leases of calls; the next call tries again: %s", error
            )
        finally:
            started.release()

    def ask_of(self, hold: Hold) -> Ask | None:
        """What a call has claimed; None: it is over, or another call has its key."""
        call = self._calls.get(hold)
        return call.ask if call is not None else None

    def trusts(self, hold: Hold) -> bool:
        """Whether nobody else can have a call's lease yet; to be asked right before its function is called."""
        call = self._calls.get(hold)
        if call is None or call.ask is None:
            return call is None  # it was lost
        ends_ms = max(call.ask.lease_until_ms, call.renewed_until_ms)
        return until_ms(self._clock, self._clock.now_ms(), self._margin_ms) < ends_ms

    def __contains__(self, hold: Hold) -> bool:
        """Whether a call of this process has it, up to the end of its record's write."""
        return hold in self._calls

    def end(self, hold: Hold) -> None:
        """The call's record is about to be written: renew no more."""
        call = self._calls.get(hold)
        if call is not None:
            call.is_renewed = False

    def remove(self, hold: Hold) -> None:
        """The call is over."""
        self._calls.pop(hold, None)

    def _renew_all(self) -> None:
        try:
            self._renew_until_stopped()
        finally:
            self._thread = None  # the next call starts another

    def _renew_until_stopped(self) -> None:
        renewed_ms, third_ms = self._clock.monotonic_ms(), self._lease_ms // 3
        while not self._clock.wait(self._stop, min(third_ms, _LOOK_MS)):
            now_ms = lease_from_ms(self._clock)
            is_set = isinstance(self._clock, SteadyClock) and self._clock.behind_ms > 0
            if not is_set and self._clock.monotonic_ms() - renewed_ms < third_ms:
                continue
            renewed_ms = self._clock.monotonic_ms()
            holds = [hold for hold, call in list(self._calls.items()) if call.is_renewed]
            if holds:
                try:
                    self._renew(holds, now_ms, until_ms(self._clock, now_ms, self._lease_ms))
                except BaseException as error:  # noqa: BLE001 - no signal comes in this thread, and it must go on
                    self._log_failure(holds, now_ms, error)

    def _renew(self, holds: list[Hold], now_ms: int, ends_ms: int) -> None:
        self._ends = {hold: self._ends.get(hold, ends_ms) for hold in holds}
        kept = self._store.renew(holds, ends_ms)
        for hold, is_renewed in zip(holds, kept, strict=True):
            self._ends[hold] = ends_ms
            call = self._calls.get(hold)
            if is_renewed and call is not None:
                call.renewed_until_ms = ends_ms
            if is_renewed or call is None or not call.is_renewed:  # the last two: it has ended meanwhile
                continue
            try:
                is_lost = not self._put_back(call)
            except BaseException as error:  # noqa: BLE001 - as above
                self._log_failure([hold], now_ms, error)
                continue
            if is_lost and call.is_renewed:
                call.is_renewed, call.ask = False, None
                text = "%s %r: its lease was lost while it runs: another call has taken it over. It will end with LeaseLost."
                _log.warning(text, hold.key.job, hold.key.key)
                self._lost(hold)

    def _log_failure(self, holds: list[Hold], now_ms: int, error: BaseException) -> None:
        if not isinstance(error, errors.OnefoldError):
            _log.warning("The leases of calls could not be renewed; they are tried again.", exc_info=error)
        for hold in holds:
            if self._ends[hold] <= now_ms:
                text = "%s %r: its lease is over while it runs, and could not be renewed: %s"
                _log.warning(text, hold.key.job, hold.key.key, error)
