"""Order within one process: deliveries of one key, and of one FIFO group, go one after the other.

The second of a chain begins when the first has been settled, so that nobody waits out a lease that ends a moment later, and
no group is run out of order. Never here: order between processes (the record's lease and the queue's group lock keep that).
Invariant: a delivery that was put behind another comes back exactly once, from `free`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from onefold.contracts.queue import Delivery
from onefold.run.passage import Run


class Chains:
    """Which keys and groups are under way here, and what waits behind them. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: dict[object, list[Delivery]] = {}

    def enter(self, runs: Sequence[Run]) -> list[Run]:
        """The runs that may go on now; the others' deliveries are kept behind the run that has their key or group."""
        first = []
        with self._lock:
            for run in runs:
                names: list[object] = [run.facts.key] if run.facts.key is not None else []
                if run.job.policy.fifo and run.delivery.group is not None:
                    names.append((run.delivery.queue, run.delivery.group))
                taken = next((name for name in names if name in self._busy), None)
                if taken is not None:
                    self._busy[taken].append(run.delivery)
                    continue
                for name in names:
                    self._busy[name] = []
                run.busy = names
                first.append(run)
        return first

    def free(self, run: Run) -> tuple[list[Delivery], list[Delivery]]:
        """End a run: the deliveries that waited behind its key, and those behind its group."""
        behind_key: list[Delivery] = []
        behind_group: list[Delivery] = []
        with self._lock:
            for name in run.busy:
                (behind_group if isinstance(name, tuple) else behind_key).extend(self._busy.pop(name, ()))
        return behind_key, behind_group

    def forget(self, runs: Iterable[Run]) -> list[Delivery]:
        """Drop runs that were never claimed; their deliveries and those that waited behind them, in order."""
        dropped: list[Delivery] = []
        for run in runs:
            behind_key, behind_group = self.free(run)
            dropped += [run.delivery, *behind_key, *behind_group]
        return dropped

    def withdraw(self) -> list[Delivery]:
        """Take out everything that waits behind others, in the order in which it came."""
        with self._lock:
            waiting = [delivery for some in self._busy.values() for delivery in some]
            for some in self._busy.values():
                some.clear()
        return waiting
