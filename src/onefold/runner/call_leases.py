"""The leases of guarded calls: the `extend` operation of the source that guarded calls come from.

A job's lease is extended with its message's visibility by `heartbeat.py`; a call has no message, and most calls end
long before a third of their lease is over. So one thread, which starts with the first call, checks all leases from time
to time.
Never here: what happens when a lease is lost. Invariant: the answer to each renewal is read; a lease that another call
holds is not renewed again. Whatever a store raises, the other leases are renewed a third of a lease later. A mark
exists only while that thread updates it, because other processes judge all leases of this process by the earliest of
its marks.
"""

from __future__ import annotations

import _thread
import logging
import threading
from typing import TYPE_CHECKING

from msgspec import Struct

from onefold import errors, forks, owner_process
from onefold.clock import SteadyClock, lease_from_ms, until_ms
from onefold.contracts.store import Ask, Claimed
from onefold.interrupts import ignored
from onefold.record import error_text, lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from onefold.contracts.engine import RenewalMark
    from onefold.contracts.store import Hold
    from onefold.contracts.verbs import Store
    from onefold.outside import Clock, Entropy

_LOOK_MS = 30_000  # how often the thread checks whether the clock was set
_log = logging.getLogger("onefold")


class KeptCall(Struct, gc=False):
    """A call that is running.

    Args:
        found, ask: its claim. `ask` is None once another call has its key.
        renewed_until_ms: when its lease ends, as last renewed; 0: not renewed yet.
        is_renewed: False as soon as its record is about to be written, or its lease was lost.
    """

    found: Claimed
    ask: Ask | None
    renewed_until_ms: int = 0
    is_renewed: bool = True


class LeaseKeeper:
    """Renews the leases of calls that run longer than a third of their lease. One daemon thread, started when needed.

    If a lease is lost, or ends, while its call is running, that is logged. When the machine's clock is set forward, all
    leases are renewed before the steady clock follows it, however long they last (`clock.HOLD_MS`).

    Args:
        put_back: restores a call's record that has disappeared from the store; False: another call has the key.
        lost: called with a call whose lease was lost.
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
        self._calls: dict[Hold, KeptCall] = {}  # the calls whose outcome is not recorded yet
        self._ends: dict[Hold, int] = {}  # used by the thread alone: when each lease ends unless renewed
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._mark: RenewalMark | None = None  # shows other processes that this one is not stopped
        forks.in_child(self._start_anew)

    def _start_anew(self) -> None:
        """In a forked child: the running calls are the parent's, and the thread does not exist here."""
        self._calls, self._stop, self._lock, self._thread = {}, threading.Event(), threading.Lock(), None
        self._mark = None

    def appear(self) -> None:
        """Called before the first claim: let other processes see if this one is stopped; without that, leases decide.

        The thread starts with the mark, because calls that are only answered from records need it too.
        """
        appear: Callable[[], RenewalMark | None] | None = getattr(self._store, "appear", None)
        if appear is not None and self._mark is None:
            with ignored(errors.OnefoldError):  # a folder that cannot be made, a full disk
                self._mark = appear()
        if self._mark is not None:
            self._mark.is_busy = lambda: bool(self._calls)
            self._ensure_thread()

    def add(self, found: Claimed, ask: Ask) -> bool:
        """Renew this lease from now on; False: a call that is still running holds this same claim, and keeps it."""
        call = KeptCall(found, ask)
        if self._calls.setdefault(found.hold, call) is not call:
            return False
        self._ensure_thread()
        return True

    def _ensure_thread(self) -> None:
        if self._thread is None:
            # In a thread, because what a signal handler raises inside Thread.start appears as an error of Python
            # itself.
            started = _thread.allocate_lock()
            started.acquire()
            _thread.start_new_thread(self._start, (started,))
            started.acquire()

    def _start(self, started: _thread.LockType) -> None:
        try:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._renew_all, name="onefold-once", daemon=True)
                    self._thread = thread  # set before its start, because it may end at once
                    if self._mark is not None:
                        self._mark.renewed(self._clock.now_ms())  # it is new, or an earlier thread closed it at its end
                    try:
                        thread.start()
                    except BaseException:
                        self._thread = None
                        self._close_mark()
                        raise
        except RuntimeError as error:
            _log.warning(
                "No thread could be started to renew the leases of calls; the next call tries again: %s", error
            )
        finally:
            started.release()

    def ask_of(self, hold: Hold) -> Ask | None:
        """The claim of a call; None: the call is over, or another call has its key."""
        call = self._calls.get(hold)
        return call.ask if call is not None else None

    def trusts(self, hold: Hold) -> bool:
        """Whether no other call can hold this lease yet; to be checked right before the function is called."""
        call = self._calls.get(hold)
        if call is None or call.ask is None:
            return call is None  # it was lost
        ends_ms = max(call.ask.lease_until_ms, call.renewed_until_ms)
        return until_ms(self._clock, self._clock.now_ms(), self._margin_ms) < ends_ms

    def __contains__(self, hold: Hold) -> bool:
        """Whether a call of this process has this hold, until its record has been written."""
        return hold in self._calls

    def end(self, hold: Hold) -> None:
        """Stop renewing the lease of a call whose record is about to be written."""
        call = self._calls.get(hold)
        if call is not None:
            call.is_renewed = False

    def remove(self, hold: Hold) -> None:
        """Forget a call that has ended."""
        self._calls.pop(hold, None)

    def _renew_all(self) -> None:
        try:
            self._renew_until_stopped()
        finally:
            self._thread = None  # the next call starts another
            self._close_mark()

    def _close_mark(self) -> None:
        if self._mark is not None:
            self._mark.close()

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
                except BaseException as error:  # noqa: BLE001 - no signal arrives in this thread, and it must go on
                    self._log_failure(holds, now_ms, error)
            if self._mark is not None and all(_is_kept(call, now_ms) for call in list(self._calls.values())):
                self._mark.renewed(now_ms)

    def _renew(self, holds: list[Hold], now_ms: int, ends_ms: int) -> None:
        self._ends = {hold: self._ends.get(hold, ends_ms) for hold in holds}
        kept = self._store.renew(holds, ends_ms)
        for hold, is_renewed in zip(holds, kept, strict=True):
            self._ends[hold] = ends_ms
            call = self._calls.get(hold)
            if is_renewed and call is not None:
                call.renewed_until_ms = ends_ms
            if is_renewed or call is None or not call.is_renewed:  # in the last two cases it has ended meanwhile
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
            text = "The leases of calls could not be renewed; this will be tried again.\n%s"
            _log.warning(text, error_text.trace_of(error, error_text.text_of).text)
        for hold in holds:
            if self._ends[hold] <= now_ms:
                text = "%s %r: its lease ended while it runs and could not be renewed: %s"
                _log.warning(text, hold.key.job, hold.key.key, error)


def _is_kept(call: KeptCall, now_ms: int) -> bool:
    """Whether a call's lease has not ended, or another call has taken its key."""
    return call.ask is None or now_ms < max(call.ask.lease_until_ms, call.renewed_until_ms)


def owner_of_calls(store: Store, entropy: Entropy) -> str:
    """The owner id of guarded calls in this process; its end names the process's file, if the store has one."""
    own, process = entropy.token(), getattr(store, "process", None)
    return f"{own}.{process}" if process else owner_process.owner_of(own)
