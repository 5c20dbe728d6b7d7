"""Keeping the leases of guarded calls that run for long.

Never here: claims, outcomes. Invariant: a lease that is lost, or over, while its call runs is logged.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from onefold import errors, forks
from onefold.steady_clock import lease_from_ms, until_ms

if TYPE_CHECKING:
    from onefold.contracts import store as records
    from onefold.contracts.verbs import Store
    from onefold.outside import Clock

_log = logging.getLogger("onefold")


class Keeper:
    """Renews the leases of calls that run longer than a third of their lease. One daemon thread, started when needed."""

    def __init__(self, store: Store, clock: Clock, lease_ms: int) -> None:
        self._store = store
        self._clock = clock
        self._lease_ms = lease_ms
        self._holds: dict[records.Hold, None] = {}
        self._ends: dict[records.Hold, int] = {}  # of the thread: when each lease is over unless renewed
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        forks.in_child(self._start_anew)

    def _start_anew(self) -> None:
        """In a forked child: the calls that run are the parent's, and its thread is not here."""
        self._holds, self._stop, self._lock, self._thread = {}, threading.Event(), threading.Lock(), None

    def add(self, hold: records.Hold) -> None:
        """Renew from now on."""
        self._holds[hold] = None
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._renew_all, name="onefold-once", daemon=True)
                    thread.start()
                    self._thread = thread  # after its start: an exception out of a signal's handler may come between

    def __contains__(self, hold: records.Hold) -> bool:
        """Whether it is being renewed."""
        return hold in self._holds

    def remove(self, hold: records.Hold) -> None:
        """The call is over."""
        self._holds.pop(hold, None)

    def _renew_all(self) -> None:
        while not self._clock.wait(self._stop, self._lease_ms // 3):
            if self._holds:
                now_ms = lease_from_ms(self._clock)
                self._renew(list(self._holds), now_ms, until_ms(self._clock, now_ms, self._lease_ms))

    def _renew(self, holds: list[records.Hold], now_ms: int, ends_ms: int) -> None:
        self._ends = {hold: self._ends.get(hold, ends_ms) for hold in holds}
        try:
            kept = self._store.renew(holds, ends_ms)
        except errors.OnefoldError as error:  # tried again a third of a lease later
            for hold in holds:
                if self._ends[hold] <= now_ms:
                    text = "%s %r: its lease is over while it runs, and could not be renewed: %s"
                    _log.warning(text, hold.key.job, hold.key.key, error)
            return
        for hold, is_kept in zip(holds, kept, strict=True):
            self._ends[hold] = ends_ms
            if not is_kept and hold in self._holds:  # else the call has ended meanwhile
                self.remove(hold)
                text = "%s %r: its lease was lost while it runs: another call has taken it over. It will end with LeaseLost."
                _log.warning(text, hold.key.job, hold.key.key)
