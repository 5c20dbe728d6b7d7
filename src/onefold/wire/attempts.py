"""Receive attempts of FIFO queues: the same ReceiveRequestAttemptId within 5 minutes gets the same messages again.

A client whose answer was lost asks once more with the same id and has the same messages under the same handles, as long as
their visibility lasts and none of them was deleted or changed. In memory: after a restart an attempt is a new receive.
Never here: receiving. Invariant: an attempt is forgotten as soon as anything happened to one of its messages.

Source: SQS API reference, ReceiveMessage, ReceiveRequestAttemptId.
"""

from __future__ import annotations

from msgspec import Struct

from onefold import limits
from onefold.contracts.queue import Delivery

ATTEMPT_MS = 5 * limits.MINUTE_MS


class _Attempt(Struct):
    deliveries: list[Delivery]
    made_at_ms: int
    until_ms: int


class Attempts:
    """The attempts of one server."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], _Attempt] = {}
        self._of_receipt: dict[tuple[str, str], tuple[str, str]] = {}

    def recall(self, queue: str, attempt_id: str, now_ms: int) -> list[Delivery] | None:
        """What the attempt received; None when it is new, too old, or over."""
        found = self._made.get((queue, attempt_id))
        if found is None:
            return None
        if now_ms >= min(found.made_at_ms + ATTEMPT_MS, found.until_ms):
            self._forget((queue, attempt_id))
            return None
        return found.deliveries

    def keep(self, queue: str, attempt_id: str, deliveries: list[Delivery], visible_ms: int, now_ms: int) -> None:
        """The attempt received these, or was made again and hides them anew."""
        self._forget_old(now_ms)
        key = (queue, attempt_id)
        known = self._made.get(key)
        made_at_ms = now_ms if known is None else known.made_at_ms
        self._made[key] = _Attempt(deliveries, made_at_ms, now_ms + visible_ms)
        for delivery in deliveries:
            self._of_receipt[queue, delivery.receipt] = key

    def touched(self, queue: str, receipt: str) -> None:
        """A message was deleted, or its visibility was changed."""
        if self._of_receipt and (key := self._of_receipt.get((queue, receipt))) is not None:
            self._forget(key)

    def _forget(self, key: tuple[str, str]) -> None:
        found = self._made.pop(key, None)
        for delivery in found.deliveries if found is not None else ():
            self._of_receipt.pop((key[0], delivery.receipt), None)

    def _forget_old(self, now_ms: int) -> None:
        for key in [key for key, one in self._made.items() if now_ms >= one.made_at_ms + ATTEMPT_MS]:
            self._forget(key)
