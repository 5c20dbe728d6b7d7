"""Order within one process: deliveries of one key, and of one FIFO group, go one after the other.

The second of a chain begins when the first has been settled, so that nobody waits out a lease that ends a moment later, and
no group is run out of order. Never here: order between processes (the record's lease and the queue's group lock keep that).
Invariant: a delivery that was put behind another comes back exactly once, from `free`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from onefold.run.passage import Chain, Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from onefold.contracts.queue import Delivery


class Chains:
    """Which keys and groups are under way here, and what waits behind them. Safe from any thread.

    Attributes:
        order: to be held from the end of a run until what waited behind it has entered, and by whoever lets others enter:
            between the two its group is free, and what came later must not slip in.
    """

    def __init__(self) -> None:
        self.order = threading.RLock()
        self._lock = threading.Lock()
        self._busy: dict[object, Chain] = {}

    def enter(self, runs: Sequence[Run]) -> list[Run]:
        """The runs that may go on now; the others' deliveries are kept behind the run that has their group or key."""
        first = []
        with self._lock:
            for run in runs:
                names = [name for name in (_group(run.delivery, run), run.facts.key) if name is not None]
                chain = next((self._busy[name] for name in names if name in self._busy), None)
                if chain is None:
                    run.chain = chain = Chain()
                    first.append(run)
                else:
                    chain.waiting.append(run.delivery)
                # Who waits holds up its own group too: nothing that came later may pass it there.
                for name in names:
                    if name not in self._busy:
                        self._busy[name] = chain
                        chain.names.append(name)
        return first

    def free(self, run: Run) -> tuple[list[Delivery], list[Delivery]]:
        """End a run: the deliveries that waited behind its key, and those behind its group."""
        with self._lock:
            chain, run.chain = run.chain, None
            if chain is None:
                return [], []
            for name in chain.names:
                self._busy.pop(name, None)
        behind_key: list[Delivery] = []
        behind_group: list[Delivery] = []
        group = _group(run.delivery, run)
        for one in chain.waiting:
            (behind_group if group is not None and _group(one, run) == group else behind_key).append(one)
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
        waiting: list[Delivery] = []
        with self._lock:
            for chain in self._busy.values():
                waiting += chain.waiting
                chain.waiting = []
        return waiting


def _group(delivery: Delivery, run: Run) -> tuple[str, str] | None:
    """The FIFO group of a delivery from the same queue as the run's."""
    return (delivery.queue, delivery.group) if run.job.policy.fifo and delivery.group is not None else None
