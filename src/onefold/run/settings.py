"""What a user may choose about a worker, and the check of it.

Numbers only, with their units and bounds; each default says why. What a job may choose is its policy's.
Never here: objects, environment, files. Invariant: settings that passed the check can be worked with.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

from onefold import errors


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """What a user may choose.

    Args:
        threads: for plain functions and groups, 1 or more.
        tasks: coroutines at one time, 1 or more.
        processes: child processes for all jobs but transactional ones; 0 for none.
        prefetch: how many deliveries of one queue may lie in the buffer; None: what is done in 20 ms, learned as it goes.
        group_max: runs in one group, 1 or more.
        lease_ms: how long claims and receives hold without a heartbeat, 1,000 or more.
        grace_ms: how long a drain waits for what runs; None: the longest timeout of any job.
        weights: how often a queue's turn comes, 1 or more; 1 where absent.
        until_empty: drain as soon as the queues are empty, nothing is in flight, and nothing is in hand.
        wait_for_delayed: with until_empty: delayed messages count as not empty.
    """

    threads: int = 8
    tasks: int = 100
    processes: int = 0
    prefetch: int | None = None
    group_max: int = 100
    lease_ms: int = 30_000
    grace_ms: int | None = None
    weights: Mapping[str, int] = {}
    until_empty: bool = False
    wait_for_delayed: bool = True

    def check(self, queues: Collection[str]) -> None:
        """Refuse what cannot be worked with.

        Args:
            queues: names of the queues to work on.

        Raises:
            UsageError: a value out of its range, no queue, a weight for another queue.
        """
        least = {"threads": 1, "tasks": 1, "processes": 0, "group_max": 1, "lease_ms": 1_000}
        for name, low in least.items():
            value = getattr(self, name)
            if value < low:
                raise errors.UsageError(f"{name}={value} is out of range.", todo=f"It is {low} or more.")
        for name, value in (("prefetch", self.prefetch), ("grace_ms", self.grace_ms)):
            if value is not None and value < 0:
                raise errors.UsageError(f"{name}={value} is out of range.", todo="It is 0 or more.")
        if not queues:
            raise errors.UsageError("The worker has no queue.", todo="Declare a queue, or name one that is declared.")
        for name, weight in self.weights.items():
            if weight < 1 or name not in queues:
                raise errors.UsageError(
                    f"weights has {name}={weight}.",
                    todo=f"Name queues of this worker ({', '.join(queues)}), each with 1 or more.",
                )
