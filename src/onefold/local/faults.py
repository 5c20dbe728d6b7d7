"""The faults of a running server, which can be changed at any time, are drawn from a seeded generator, and are counted.

`LocalQueues` asks the injector around every operation, the request handler before every request, a function before
every invocation. If no fault is set, the answer is empty and nothing is drawn; `active` is a cheap check for any fault
at all. Each fault has its own random stream, so the draws of a poll do not affect those of a delete.

Only the copies of `deliver` are kept: a standard queue honours any receipt of a message, so a copy is the same delivery
with the same receipt and a receive count that is one higher. At most `copies_max` wait; they end with the process.

Never here: the draws (`fault_rules.py`), the history, engine calls. Used on the server's loop only: no lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from msgspec import Struct, structs

from onefold import limits
from onefold.contracts.entries import Entry
from onefold.contracts.queue import Delivery
from onefold.entropy import SeededEntropy
from onefold.local import fault_rules
from onefold.local.fault_rules import (
    NO_FAULTS,
    At,
    Chance,
    Fault,
    Faults,
    OnDeadLetter,
    OnDelete,
    OnInvoke,
    OnReceive,
    OnRequest,
    OnSend,
)

if TYPE_CHECKING:
    from onefold.outside import Entropy

_COPIES_MAX = 10_000
_SEED_BITS = 32  # of a generated seed, so that it is short enough to type


class _Armed(Struct):
    """A live fault: its setting, its random stream, and how often it was injected."""

    fault: Fault
    chance: Chance
    count: int = 0


class FaultInjector:
    """The live faults.

    Args:
        settings: the faults that are set from the start.
        entropy: draws a seed if the settings name none; `report()` has the seed in use.
        copies_max: how many copies may wait at one time in all queues; above it, deliveries are not copied.
    """

    def __init__(self, settings: Faults, entropy: Entropy, *, copies_max: int = _COPIES_MAX) -> None:
        self._entropy = entropy
        self._copies_max = copies_max
        self._copies: dict[str, deque[Delivery]] = {}
        self._copies_count = 0
        self.set(settings)

    def set(self, settings: Faults) -> None:
        """Replace all faults: counters and random streams start anew, waiting copies are dropped."""
        seed = settings.seed
        if seed is None:
            seed = int(self._entropy.fraction() * 2**_SEED_BITS) if settings.faults else 0
        self.settings: Faults = structs.replace(settings, seed=seed) if settings.faults else settings
        self._all = [
            _Armed(fault, SeededEntropy(seed << 32 | crc32(f"{index} {fault.text}".encode())).fraction)
            for index, fault in enumerate(settings.faults)
        ]
        self._copies.clear()
        self._copies_count = 0
        self._arm()

    def clear(self) -> None:
        """Remove all faults."""
        self.set(NO_FAULTS)

    def _arm(self) -> None:
        """Sort the live faults by the moment at which they are drawn, without those that have reached their `times`."""
        live = [one for one in self._all if one.fault.times is None or one.count < one.fault.times]
        self.active: bool = bool(live) or bool(self._copies)

        def at(moment: At) -> list[tuple[Fault, Chance]]:
            return [(one.fault, one.chance) for one in live if fault_rules.KINDS[one.fault.kind].at == moment]

        self._send, self._receive, self._delete = at("send"), at("receive"), at("delete")
        self._request, self._invoke, self._dead_letter = at("request"), at("invoke"), at("dead-letter")

    def _injected(self, by: Sequence[Fault]) -> None:
        for fault in by:
            one = next(one for one in self._all if one.fault is fault)
            one.count += 1
            if one.count == fault.times:
                self._arm()

    # ------------------------------------------------------------------------------------------------- around the verbs

    def sending(
        self, queue: str, entries: Sequence[Entry], delay_ms: int = 0
    ) -> tuple[Sequence[Entry], list[OnSend | None]]:
        """The entries to send, and the plan for each; no plans while no such fault is set.

        Args:
            delay_ms: the queue's own delay, which applies to entries without one.
        """
        if not self._send:
            return entries, []
        changed, plans = list(entries), list[OnSend | None]()
        for index, entry in enumerate(entries):
            plan = fault_rules.on_send(self._send, queue) if entry.run_at_ms is None else None
            plans.append(plan)
            if plan is not None:
                asked_ms = delay_ms if entry.delay_ms is None else entry.delay_ms
                late_ms = min(asked_ms + plan.delay_ms, limits.DELAY_MS_MAX)
                changed[index] = structs.replace(entry, delay_ms=late_ms)
                self._injected(plan.by)
        return changed, plans

    def received(self, queue: str, deliveries: Sequence[Delivery]) -> list[OnReceive | None]:
        """What happens to each delivery from the engine; empty while no such fault is set.

        Copies are kept here and given out by `copies`; for `expires_in_ms` the caller changes the visibility.
        """
        if not self._receive:
            return []
        plans = []
        for delivery in deliveries:
            plan = fault_rules.on_receive(self._receive, queue, delivery.visible_ms)
            plans.append(plan)
            if plan is not None:
                self._injected(plan.by)
                self._keep(delivery, plan.copies)
        return plans

    def deleting(self, queue: str, receipts: Sequence[str]) -> list[OnDelete | None]:
        """What happens to each delete; empty if all are done normally."""
        if not self._delete:
            return []
        plans = []
        for _ in receipts:
            plan = fault_rules.on_delete(self._delete, queue)
            plans.append(plan)
            if plan is not None:
                self._injected(plan.by)
        return plans

    def dead_lettered(self, queue: str) -> OnDeadLetter | None:
        """What happens to a message that was just moved to the dead-letter queue `queue`."""
        plan = fault_rules.on_dead_letter(self._dead_letter, queue) if self._dead_letter else None
        if plan is not None:
            self._injected(plan.by)
        return plan

    def requested(self, operation: str, queue: str = "") -> OnRequest | None:
        """What happens to a request; `queue` is empty if the operation names none."""
        plan = fault_rules.on_request(self._request, operation, queue) if self._request else None
        if plan is not None:
            self._injected(plan.by)
        return plan

    def invoking(self, queue: str = "") -> OnInvoke | None:
        """What happens to an invocation for messages of `queue`; empty for one that was requested directly."""
        plan = fault_rules.on_invoke(self._invoke, queue) if self._invoke else None
        if plan is not None:
            self._injected(plan.by)
        return plan

    # ------------------------------------------------------------------------------------------------------------ copies

    def _keep(self, delivery: Delivery, copies: int) -> None:
        if not copies or self._copies_count + copies > self._copies_max:
            return
        waiting = self._copies.setdefault(delivery.queue, deque())
        waiting.extend(
            structs.replace(delivery, receive_count=delivery.receive_count + more) for more in range(1, copies + 1)
        )
        self._copies_count += copies
        self.active = True

    def has_copies(self, queue: str) -> bool:
        """Whether a receive of this queue would find a copy now."""
        return queue in self._copies

    def copies(self, queue: str, count_max: int, now_ms: int) -> list[Delivery]:
        """Up to `count_max` waiting copies, oldest first, each as received now; each is given out once."""
        waiting = self._copies.get(queue)
        if waiting is None:
            return []
        given = [structs.replace(waiting.popleft(), received_at_ms=now_ms) for _ in range(min(count_max, len(waiting)))]
        self._copies_count -= len(given)
        if not waiting:
            del self._copies[queue]
            self._arm()
        return given

    def forget(self, queue: str) -> None:
        """Drop the copies of a queue that was purged or deleted."""
        self._copies_count -= len(self._copies.pop(queue, ()))
        self._arm()

    # ------------------------------------------------------------------------------------------------------------ report

    def report(self) -> dict[str, object]:
        """The settings as in `Faults.to_json`, and how often each fault has been injected, in the same order."""
        return {**self.settings.to_json(), "injected": [one.count for one in self._all], "copies": self._copies_count}
