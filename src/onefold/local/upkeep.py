"""What has to happen to an engine without anybody asking, and its tie to other processes on the same file.

Upkeep is the engine's own (`maintain`): a move task is carried forward every 50 ms, what expired is looked for every second,
by the server's clock. Other processes: one thread waits for their wake-ups and passes them to the loop; what they change
without one (a release, a delete) is seen once a second by the file itself. Our own wake-ups go out in bundles.
Never here: queues, receivers. Invariant: a change made elsewhere is seen within a second.
Used on the loop's thread only, but for the one thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from onefold import errors
from onefold.contracts.engine import Engine
from onefold.local.pace import Pace, Timer

UPKEEP_MS = 1_000  # how often what expired, and what others did, is looked for
UPKEEP_MANUAL_MS = 60_000  # the same on a manual clock: weeks pass in one go, and whoever moves it ends with `hurry`
MOVING_MS = 50  # the same while a move task runs
NOTIFY_S = 0.002  # other processes are woken once for all that was sent within this
_FOREIGN_WAIT_S = 3_600.0
_JOIN_S = 5.0


class Upkeep:
    """The upkeep of one engine on one loop.

    Args:
        engine: what is kept up.
        pace: time, and the loop.
        changed: called after anything changed that no verb of this process changed.
    """

    def __init__(self, engine: Engine, pace: Pace, changed: Callable[[], None]) -> None:
        self._engine = engine
        self._pace = pace
        self._changed = changed
        self._next: Timer | None = None
        self._bridge: _Bridge | None = None
        self._bundle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin; the first piece is done now."""
        if self._engine.shared:
            self._bridge = _Bridge(self._engine, self._pace.loop, self._changed)
        self._keep_up()

    def stop(self) -> None:
        """End; harmless when it never began, and twice."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._bundle is not None:
            self._bundle.cancel()
            self._notify()
        if self._bridge is not None:
            self._bridge.stop()
            self._bridge = None

    def hurry(self) -> None:
        """A move task was started: do the next piece now."""
        if self._next is not None:
            self._next.cancel()
            self._keep_up()

    def notify(self) -> None:
        """Messages were sent: wake workers of other processes, once for everything sent in a moment."""
        if self._bridge is not None and self._bundle is None:
            self._bundle = self._pace.loop.call_later(NOTIFY_S, self._notify)

    def _notify(self) -> None:
        self._bundle = None
        self._engine.notify()

    def _keep_up(self) -> None:
        pause_ms = UPKEEP_MANUAL_MS if self._pace.is_manual else UPKEEP_MS
        try:
            done = self._engine.maintain(lambda _: None)
            if self._engine.queues.moving():
                pause_ms = MOVING_MS
            if done or (self._engine.shared and self._engine.changed_elsewhere()):
                self._changed()
        except (errors.StorageBusy, errors.StorageError):
            pass  # another process holds the file, or the disk is full: next time; a request will say so
        self._next = self._pace.call_at(self._pace.now_ms() + pause_ms, self._keep_up)


class _Bridge:
    """A thread that waits for a wake-up of another process and passes it to the loop."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, woken: Callable[[], None]) -> None:
        self._waiter = engine.waiter(foreign=True)
        self._loop = loop
        self._woken = woken
        self._stopped = False
        self._thread = threading.Thread(target=self._listen, name="onefold-wake-up", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._stopped:
            if self._waiter.wait(_FOREIGN_WAIT_S) and not self._stopped:
                try:
                    self._loop.call_soon_threadsafe(self._woken)
                except RuntimeError:
                    return  # the loop was closed without a stop

    def stop(self) -> None:
        self._stopped = True
        self._waiter.wake()
        self._thread.join(timeout=_JOIN_S)
