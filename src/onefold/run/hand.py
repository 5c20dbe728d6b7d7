"""What a worker has in hand: every delivery from its receive until it is settled or given back, and what became of them.

The worker adds what it receives; the driver notes claims and takes out what is over, in whatever thread that happens; the
heartbeat extends all that is in it. So there is no moment between two rooms at which a message belongs to nobody.
Never here: storage, waiting, decisions. Invariant: a delivery is in hand from before its receive is answered to the control
loop until after its settlement is durable.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from onefold.contracts.queue import Delivery
    from onefold.run.passage import Run


class Held:
    """One delivery in hand.

    Attributes:
        delivery: as received. run: its run, once the operation was claimed.
        received_at_ms: monotonic instant before the receive was asked for.
        asked_at_ms: before its lease and visibility were last asked for. tried_at_ms: of the last try that failed.
        let_go: not extended any more: the lease was lost, or the handler overran for too long.
    """

    __slots__ = ("asked_at_ms", "delivery", "let_go", "received_at_ms", "run", "tried_at_ms")

    def __init__(self, delivery: Delivery, asked_at_ms: int) -> None:
        self.delivery = delivery
        self.run: Run | None = None
        self.received_at_ms = asked_at_ms
        self.asked_at_ms = asked_at_ms
        self.tried_at_ms: int | None = None
        self.let_go = False


class Hand:
    """Safe from any thread. What was never taken (inline runs, tests of the driver alone) is ignored."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}
        self._dropped: list[Delivery] = []
        self._returned: set[str] = set()  # receipts that may still lie in the worker's buffer
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._held)

    def take(self, deliveries: Sequence[Delivery], asked_at_ms: int) -> None:
        """Deliveries were received; the receive was asked for at `asked_at_ms` (monotonic)."""
        held = {one.receipt: Held(one, asked_at_ms) for one in deliveries}
        with self._lock:
            self._held.update(held)
            self._counts["received"] += len(held)

    def claimed(self, runs: Iterable[Run]) -> None:
        """The operations of these runs were claimed: their leases are to be extended too."""
        with self._lock:
            for run in runs:
                held = self._held.get(run.delivery.receipt)
                if held is not None:
                    held.run = run

    def over(self, deliveries: Iterable[Delivery], told: Iterable[str] = ()) -> None:
        """Deliveries were settled or given back; `told`: the names of the events that say what became of them."""
        with self._lock:
            for one in deliveries:
                self._held.pop(one.receipt, None)
                self._returned.discard(one.receipt)
            self._counts.update(told)

    def drop(self, deliveries: Iterable[Delivery]) -> None:
        """Deliveries could not be begun because the backend failed; the worker takes them back into its buffer."""
        with self._lock:
            self._dropped.extend(one for one in deliveries if one.receipt in self._held)

    def dropped(self) -> list[Delivery]:
        """What was dropped since the last call, in order."""
        if not self._dropped:
            return []
        with self._lock:
            dropped, self._dropped = self._dropped, []
        return dropped

    def unbegun(self) -> list[Delivery]:
        """What was received and has not been claimed, in order."""
        with self._lock:
            return [held.delivery for held in self._held.values() if held.run is None]

    def mark_returned(self, deliveries: Iterable[Delivery]) -> None:
        """Deliveries were given back that somebody may be about to begin."""
        with self._lock:
            self._returned.update(one.receipt for one in deliveries)

    def was_returned(self, delivery: Delivery) -> bool:
        """Whether this delivery was given back, so that it must not be begun. Answers it once."""
        with self._lock:
            if delivery.receipt not in self._returned:
                return False
            self._returned.discard(delivery.receipt)
            return True

    def keeps(self, delivery: Delivery) -> bool:
        """Whether this delivery is still to be worked on here; False when its message may belong to another by now."""
        held = self._held.get(delivery.receipt)
        return held is not None and not held.let_go

    def all(self) -> list[Held]:
        """Everything in hand at this moment."""
        with self._lock:
            return list(self._held.values())

    def counts(self) -> dict[str, int]:
        """How many were received, and how often each event was told of a settled delivery."""
        with self._lock:
            return dict(self._counts)
