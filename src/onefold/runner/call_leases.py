"""The leases of guarded calls: what `extend` is of the source that a call of a guarded function is.

A job's lease is extended with its message's visibility by `heartbeat.py`; a call has no message, and most calls are over
long before a third of their lease: the one thread here starts with the first call and looks now and then.
Never here: what a lost lease comes to. Invariant: the answer to each renewal is read; a lease that was refused is renewed no
more.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from onefold import errors, forks
from onefold.clock import SteadyClock, lease_from_ms, until_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from onefold.contracts.store import Hold
    from onefold.contracts.verbs import Store
    from onefold.outside import Clock

_LOOK_MS = 30_000  # how often the keeper of leases looks whether the clock was set
_log = logging.getLogger("onefold")


class LeaseKeeper:
    """Renews the leases of calls that run longer than a third of their lease. One daemon thread, started when needed.

    A lease that is lost, or over, while its call runs is logged. When the machine's clock is set forward, all are renewed
    before the time without steps follows it, however long they last (`clock.HOLD_MS`).

    Args:
        lost: is called with what was lost.
    """

    def __init__(self, store: Store, clock: Clock, lease_ms: int, lost: Callable[[Hold], None] | None = None) -> None:
        self._store = store
        self._lost = lost
        self._clock = clock
        self._lease_ms = lease_ms
        self._holds: dict[Hold, bool] = {}  # of calls that are not recorded yet; False: not renewed any more
        self._ends: dict[Hold, int] = {}  # of the thread: when each lease is over unless renewed
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        forks.in_child(self._start_anew)

    def _start_anew(self) -> None:
        """In a forked child: the calls that run are the parent's, and its thread is not here."""
        self._holds, self._stop, self._lock, self._thread = {}, threading.Event(), threading.Lock(), None

    def add(self, hold: Hold) -> None:
        """Renew from now on."""
        self._holds[hold] = True
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._renew_all, name="onefold-once", daemon=True)
                    thread.start()
                    self._thread = thread  # after its start: an exception out of a signal's handler may come between

    def __contains__(self, hold: Hold) -> bool:
        """Whether a call of this process has it, up to the end of its record's write."""
        return hold in self._holds

    def end(self, hold: Hold) -> None:
        """The call's record is about to be written: renew no more."""
        self._holds[hold] = False

    def remove(self, hold: Hold) -> None:
        """The call is over."""
        self._holds.pop(hold, None)

    def _renew_all(self) -> None:
        renewed_ms, third_ms = self._clock.monotonic_ms(), self._lease_ms // 3
        while not self._clock.wait(self._stop, min(third_ms, _LOOK_MS)):
            now_ms = lease_from_ms(self._clock)
            is_set = isinstance(self._clock, SteadyClock) and self._clock.behind_ms > 0
            if not is_set and self._clock.monotonic_ms() - renewed_ms < third_ms:
                continue
            renewed_ms = self._clock.monotonic_ms()
            holds = [hold for hold, is_renewed in list(self._holds.items()) if is_renewed]
            if holds:
                self._renew(holds, now_ms, until_ms(self._clock, now_ms, self._lease_ms))

    def _renew(self, holds: list[Hold], now_ms: int, ends_ms: int) -> None:
        self._ends = {hold: self._ends.get(hold, ends_ms) for hold in holds}
        try:
            kept = self._store.renew(holds, ends_ms)
        except errors.OnefoldError as error:  # tried again a third of a lease later; no signal comes in this thread
            for hold in holds:
                if self._ends[hold] <= now_ms:
                    text = "%s %r: its lease is over while it runs, and could not be renewed: %s"
                    _log.warning(text, hold.key.job, hold.key.key, error)
            return
        for hold, is_renewed in zip(holds, kept, strict=True):
            self._ends[hold] = ends_ms
            if not is_renewed and self._holds.get(hold):  # else the call has ended meanwhile
                self.end(hold)
                text = "%s %r: its lease was lost while it runs: another call has taken it over. It will end with LeaseLost."
                if self._is_gone(hold, now_ms):
                    text = (
                        "%s %r: its record is gone from the store while it runs (flushed, evicted, deleted or restored). It"
                        " will end with LeaseLost, and another call with its key would run now."
                    )
                _log.warning(text, hold.key.job, hold.key.key)
                if self._lost is not None:
                    self._lost(hold)

    def _is_gone(self, hold: Hold, now_ms: int) -> bool:
        try:
            return self._store.read((hold.key,), now_ms)[0] is None
        except errors.OnefoldError:  # only the words of a warning depend on it
            return False
