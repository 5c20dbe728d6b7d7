"""Who does what: the lane of each job, how many slots are free, and which buffered deliveries go to them next.

Transactional jobs, and repeatable ones that are plain functions, go to the threads in groups. Coroutines go to the event
loop, everything else to the threads one by one; with child processes all but transactional jobs go there.
Used by the control loop alone. Never here: claiming, settling, waiting. Invariant: no more is chosen than there are slots
for, because what is chosen is marked as started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onefold import errors
from onefold.contracts.queue import Delivery
from onefold.decide import attempt as script
from onefold.run.executors import Unit
from onefold.run.handlers import Job
from onefold.run.passage import Run
from onefold.run.poll import Feed, Poller
from onefold.run.settings import WorkerSettings

if TYPE_CHECKING:
    from onefold.run.executors import Lane

    Way = tuple[Lane, bool]
    """A lane, and whether its runs are grouped."""


class Allotment:
    """Lanes and their free slots.

    Args:
        jobs: all that may come. job_of: the job a delivery is for.
        threads: always there. tasks, children: None where there are none.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        jobs: Sequence[Job[Any, Any]],
        job_of: Callable[[Delivery], Job[Any, Any]],
        *,
        threads: Lane,
        tasks: Lane | None,
        children: Lane | None,
    ) -> None:
        self._settings = settings
        self._job_of = job_of
        self._threads = threads
        self._tasks = tasks
        self._children = children
        self.lanes = [lane for lane in (threads, tasks, children) if lane is not None]
        self._free: dict[Lane, int] = dict.fromkeys(self.lanes, 0)
        self._feed_ways = {job.policy.queue: self.way_of(job) for job in jobs}
        queues = [job.policy.queue for job in jobs]
        self._mixed = {name for name in queues if queues.count(name) > 1}

    def way_of(self, job: Job[Any, Any]) -> Way:
        """Where a job's runs go.

        Transactional jobs stay in this process whatever the settings say: their rows go through the engine's one
        connection, and the engine bounds their time itself.
        """
        if job.policy.effect == "transactional":
            return self._threads, True
        if self._children is not None:
            return self._children, False
        if job.is_async and self._tasks is not None:
            return self._tasks, False
        return self._threads, job.policy.effect == "repeatable"

    def _way(self, delivery: Delivery) -> Way:
        try:
            return self.way_of(self._job_of(delivery))
        except errors.NotFoundError:
            return self._threads, False  # the driver gives it back

    def freed(self, lane: Lane, slots: int) -> None:
        """So many slots of a lane are free again, or for the first time."""
        self._free[lane] += slots

    def wanted(self, feed: Feed) -> int:
        """How many deliveries of a feed should lie in its buffer now: for the free slots, and ahead of the busy ones."""
        lane, grouped = self._feed_ways.get(feed.queue.name, (self._threads, False))
        unit = feed.group_size(self._settings.group_max) if grouped else 1
        ahead = self._settings.prefetch
        if ahead is None:
            ahead = feed.ahead(lane.slots, lane.slots * max(unit, 2))
        return max(self._free[lane], 0) * unit + ahead

    def choose(self, poller: Poller) -> list[Delivery]:
        """Buffered deliveries for the free slots, from the queues in turn."""
        free = dict(self._free)
        batch: list[Delivery] = []
        ways: dict[Feed, Way] = {}
        while True:
            for feed in poller.feeds.values():
                first = poller.first(feed)
                if first is not None:
                    ways[feed] = self._way(first)
            able = [feed for feed, (lane, _) in ways.items() if feed.buffer and free[lane] > 0]
            if not able:
                return batch
            feed = poller.turn_of(able)
            free[ways[feed][0]] -= 1
            batch.extend(self._choose_unit(poller, feed, ways[feed]))

    def _choose_unit(self, poller: Poller, feed: Feed, way: Way) -> list[Delivery]:
        """What one slot should do next for this feed."""
        size = feed.group_size(self._settings.group_max) if way[1] else 1
        chosen: list[Delivery] = []
        while len(chosen) < size and (delivery := poller.first(feed)) is not None:
            if chosen and feed.queue.name in self._mixed and self._way(delivery) != way:
                break
            chosen.append(feed.buffer.popleft())
        return chosen

    def submit(self, ready: Sequence[Run], feeds: Mapping[str, Feed]) -> None:
        """Hand runs to their lanes."""
        groups: dict[str, list[Run]] = {}
        for run in ready:
            lane, grouped = self.way_of(run.job)
            if not grouped:
                self._hand_over(lane, Unit([run]))
            elif isinstance(run.step, script.Call):
                groups.setdefault(run.delivery.queue, []).append(run)
            else:  # an earlier run of it ended with its process: alone, so that it can take no innocent one with it
                self._hand_over(lane, Unit([run], grouped=True))
        for name, runs in groups.items():
            for part in _parts(runs, feeds[name].group_size(self._settings.group_max)):
                self._hand_over(self._threads, Unit(part, grouped=True))

    def _hand_over(self, lane: Lane, unit: Unit) -> None:
        self._free[lane] -= 1
        lane.submit(unit)


def _parts(runs: Sequence[Run], size: int) -> Iterator[Sequence[Run]]:
    for start in range(0, len(runs), size):
        yield runs[start : start + size]
