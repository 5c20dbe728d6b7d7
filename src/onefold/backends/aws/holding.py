"""The messages that this process holds, so that they can be copied when they are buried: SQS never gives a body twice.

A message is remembered by its receipt until it is deleted or buried, or until its visibility has been over for
`REMEMBERED_MS`. A visibility counts for at most as long as the receive's own: a heartbeat comes within that, and what is
hidden for longer waits for a later receive, not for us. Receipts that were buried are remembered for `REMEMBERED_MS`:
burying twice makes one copy.

Never here: calls. Invariant: what is remembered is bounded by what this process received within a receive's visibility and
`REMEMBERED_MS`, however long messages wait for their next try.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from onefold import limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from onefold.backends.aws.messages import Received
    from onefold.outside import Clock

REMEMBERED_MS: Final = 15 * limits.MINUTE_MS
_SWEPT_EVERY_MS: Final = 30 * limits.SECOND_MS


class Held:
    """A message this process holds; `copied` once its burial's first half is done."""

    __slots__ = ("copied", "forgotten_at_ms", "message", "visible_ms")

    def __init__(self, message: Received, visible_ms: int, now_ms: int) -> None:
        self.message = message
        self.visible_ms = visible_ms
        self.copied = False
        self.extend(visible_ms, now_ms)

    def extend(self, visible_ms: int, now_ms: int) -> None:
        """It is hidden for so long from now."""
        self.forgotten_at_ms = now_ms + min(visible_ms, self.visible_ms) + REMEMBERED_MS


class Holding:
    """Held messages by receipt. Safe to call from any thread.

    Args:
        clock: monotonic time, for what is forgotten.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[str, Held] = {}
        self._buried: dict[str, int] = {}
        self._swept_at_ms = clock.monotonic_ms()
        self._lock = threading.Lock()

    def remember(self, receipt: str, message: Received, visible_ms: int) -> None:
        """A message was received and is hidden for `visible_ms`."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            if now_ms - self._swept_at_ms >= _SWEPT_EVERY_MS:
                self._swept_at_ms = now_ms
                self._held = {one: held for one, held in self._held.items() if held.forgotten_at_ms > now_ms}
                self._buried = {one: until_ms for one, until_ms in self._buried.items() if until_ms > now_ms}
            self._held[receipt] = Held(message, visible_ms, now_ms)

    def extend(self, receipt: str, visible_ms: int) -> None:
        """Its visibility now lasts so long from now."""
        with self._lock:
            held = self._held.get(receipt)
            if held is not None:
                held.extend(visible_ms, self._clock.monotonic_ms())

    def get(self, receipts: Sequence[str]) -> list[Held | None]:
        """What is held by each receipt."""
        with self._lock:
            return [self._held.get(receipt) for receipt in receipts]

    def were_buried(self, receipts: Sequence[str]) -> list[bool]:
        """Whether each receipt's message was buried by it."""
        with self._lock:
            return [receipt in self._buried for receipt in receipts]

    def drop(self, receipts: Iterable[str], *, buried: bool = False) -> None:
        """Messages that are deleted, or buried."""
        until_ms = self._clock.monotonic_ms() + REMEMBERED_MS
        with self._lock:
            for receipt in receipts:
                self._held.pop(receipt, None)
                if buried:
                    self._buried[receipt] = until_ms
