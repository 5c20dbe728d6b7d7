"""Receiving: takes messages from a worker's queues in turn, keeps a buffer for each, and has the control loop's only wait.

Each queue is a `Feed` with its own buffer, so that none starves: a queue whose jobs are slow fills only its own buffer. How
much is buffered, and how many deliveries form a group, depends on the measured duration of the queue's runs: enough to
keep the threads busy while the next receive is in progress, and no more, because another worker could begin what is
buffered here.
Never here: beginning a delivery, settling, threads. Invariant: a delivery that was received is in flight
(`execution.py`) before it is in a buffer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onefold import errors
from onefold.clock import Never
from onefold.contracts.queue import Delivery
from onefold.interrupts import let_through
from onefold.runner.execution import InFlight
from onefold.runner.executors import GROUP_MS
from onefold.runner.longpoll import LongPoll

if TYPE_CHECKING:
    from onefold.contracts.verbs import QueueReceiver
    from onefold.options import WorkerSettings
    from onefold.outside import Clock, Waiter
    from onefold.runner.execution import Execution, Lane, Unit
    from onefold.runner.executors import Executors
    from onefold.runner.handlers import Job
    from onefold.runner.runner import Runner

IDLE_POLL_MS = 200  # see `Poller`
AHEAD_MS = 20  # how long buffered work should last; a receive takes 0.3 to 3 ms locally, 10 to 30 ms over a network
OVER_LIMIT_MS = 1_000  # a queue at its in-flight cap is polled again after this
_PACE_RUNS = 8  # after this many runs, older measurements hardly count
_BLOCKED_MS = 1_000  # if visible messages of a FIFO queue cannot be received for this long, they wait behind others
_RECEIVES_MS = 500  # longest wait at the end for receives in progress; those that find messages take milliseconds
GATHER_MS = 5  # pause between two receives from a steady stream
GATHER_MS_MAX = 20  # longest pause of a worker that shares a steady stream with others
_STEADY_MS = 20  # how far back a stream is watched, to see whether it is steady
_STEADY = 6  # at least this many messages or wake-ups in that time, a few at a time, are a steady stream


class Feed:
    """One queue as a worker sees it.

    Attributes:
        queue: the queue to receive from. weight: its share of the turns, 1 or more.
        buffer: deliveries received and not begun, oldest first.
        credit: decides whose turn it is, see `Poller.turn_of`.
        due_at_ms: monotonic instant of the next receive. dry: the last receive found fewer messages than were asked
            for.
        gathers_until_ms: monotonic instant before which nothing is received, see `gather`.
    """

    def __init__(self, queue: QueueReceiver, weight: int) -> None:
        self.queue = queue
        self.weight = weight
        self.buffer: deque[Delivery] = deque()
        self.credit = 0
        self.due_at_ms = 0
        self.dry = False
        self.gathers_until_ms = 0
        self._gather_ms = GATHER_MS
        self._found: deque[tuple[int, int]] = deque()
        self._pace_ms = float(GROUP_MS)

    def took(self, count: int, ms: int) -> None:
        """Record that `count` runs took `ms` milliseconds together, one after the other."""
        share = min(count / _PACE_RUNS, 1.0)
        self._pace_ms += (ms / count - self._pace_ms) * share

    def gather(self, deliveries: Sequence[Delivery], now_ms: int) -> None:
        """Decide when to receive next, after a receive that found fewer messages (`deliveries`) than were asked for.

        If a steady stream of single messages were received as they came, every two or three of them would cost a receive, a
        claim and a settlement, each of which blocks the sender on the file. So such a queue is polled every GATHER_MS; an
        occasional message is received at once. Several workers share that pause without knowing of each other: where even
        the oldest message found has just been sent, another worker received a moment ago, and this one pauses for longer.
        """
        self._found.append((now_ms, len(deliveries)))
        while self._found[0][0] < now_ms - _STEADY_MS - (self._gather_ms - GATHER_MS):
            self._found.popleft()
        lasts = now_ms - self._found[0][0] >= _STEADY_MS // 2  # not all in one burst
        if not lasts or sum(max(found, 1) for _, found in self._found) < _STEADY:  # another worker had the rest
            self._gather_ms = GATHER_MS
            return
        waited_ms = max((one.received_at_ms - one.sent_at_ms for one in deliveries), default=0)
        if waited_ms < GATHER_MS // 2:
            self._gather_ms = min(self._gather_ms + GATHER_MS, GATHER_MS_MAX)
        elif waited_ms >= GATHER_MS:
            self._gather_ms = max(self._gather_ms - GATHER_MS, GATHER_MS)
        self.gathers_until_ms = now_ms + self._gather_ms

    def group_size(self, most: int) -> int:
        """How many runs one thread should be given at once: as many as take GROUP_MS together, 1 to `most`."""
        return most if self._pace_ms * most <= GROUP_MS else max(int(GROUP_MS / self._pace_ms), 1)

    def ahead(self, parallel: int, most: int) -> int:
        """How many deliveries `parallel` threads finish in AHEAD_MS, 0 to `most`."""
        return most if self._pace_ms * most <= parallel * AHEAD_MS else int(parallel * AHEAD_MS / self._pace_ms)


class Poller:
    """Receives from several queues in turn, and keeps the deliveries until they are begun.

    A receive is made when a sender or a finished run woke the worker; when the last one found as much as was asked for; and
    otherwise every IDLE_POLL_MS, because messages also become visible without a send (a delay, a retry, a visibility
    timeout that ended elsewhere). 200 ms is less than a person notices and less than the shortest default retry pause;
    polling an empty queue is one read of about 0.05 ms, so an idle worker uses 0.03 % of a core per queue.

    Args:
        queues: the queues to receive from, in the order of the first turns.
        weights: by queue name; 1 where absent.
        visible_ms: how long a receive hides a message: the lease, so that a dead host's messages come back within it.

    Attributes:
        not_taken: by queue, how many messages `is_empty` ignored.
    """

    def __init__(
        self,
        queues: Sequence[QueueReceiver],
        weights: Mapping[str, int],
        *,
        visible_ms: int,
        in_flight: InFlight,
        clock: Clock,
    ) -> None:
        self.feeds = {queue.name: Feed(queue, weights.get(queue.name, 1)) for queue in queues}
        self._turns = deque(self.feeds.values())
        self._visible_ms = visible_ms
        self._in_flight = in_flight
        self._clock = clock
        self._never = Never()
        self._polls = [queue for queue in queues if isinstance(queue, LongPoll)]
        self._blocked: tuple[int, int] | None = None  # the number received, and since when it has not changed
        self.not_taken: dict[str, int] = {}

    @property
    def is_failing(self) -> bool:
        """Whether, for at least one queue that is polled in the background, the last receive failed."""
        return any(poll.is_failing for poll in self._polls)

    def turn_of(self, feeds: Sequence[Feed]) -> Feed:
        """The feed whose turn it is (`feeds`: at least one); over many turns, each gets its weight's share."""
        for feed in feeds:
            feed.credit += feed.weight
        chosen = max(feeds, key=lambda feed: feed.credit)
        chosen.credit -= sum(feed.weight for feed in feeds)
        return chosen

    def refill(self, wanted: Callable[[Feed], int]) -> int:
        """Receive for every feed that is due and whose buffer is less than half full; returns how many were received.

        Args:
            wanted: how many deliveries a feed may have in its buffer now.

        Raises:
            TransientError: a receive failed; what other feeds received is in their buffers.
        """
        received = 0
        self._turns.rotate(-1)
        for feed in self._turns:
            now_ms, room = self._clock.monotonic_ms(), wanted(feed)
            if max(feed.due_at_ms, feed.gathers_until_ms) <= now_ms and 2 * len(feed.buffer) < room:
                received += self._receive(feed, room - len(feed.buffer), now_ms)
        return received

    def _receive(self, feed: Feed, count_max: int, now_ms: int) -> int:
        try:
            deliveries = feed.queue.receive(count_max, self._visible_ms)
        except errors.OverLimitError as error:
            let_through(error)
            feed.due_at_ms = now_ms + OVER_LIMIT_MS
            return 0
        self._in_flight.take(deliveries, now_ms)
        feed.buffer.extend(deliveries)
        feed.dry = len(deliveries) < count_max
        feed.due_at_ms = now_ms + IDLE_POLL_MS if feed.dry else now_ms
        if feed.dry and not feed.queue.name.endswith(".fifo"):  # its groups go on once these are settled
            feed.gather(deliveries, now_ms)
        return len(deliveries)

    def first(self, feed: Feed) -> Delivery | None:
        """The oldest buffered delivery that this worker still holds; None when there is none."""
        while feed.buffer:
            delivery = feed.buffer[0]
            if self._in_flight.keeps(delivery):
                return delivery
            self._in_flight.over([feed.buffer.popleft()])
        return None

    def put_back(self, deliveries: Iterable[Delivery]) -> None:
        """Put back deliveries that could not be begun, in order, at the front."""
        for one in reversed(list(deliveries)):
            self.feeds[one.queue].buffer.appendleft(one)

    def withdraw(self) -> list[Delivery]:
        """Empty all buffers; returns the deliveries, those of each queue in order."""
        buffered = [one for feed in self.feeds.values() for one in feed.buffer]
        for feed in self.feeds.values():
            feed.buffer.clear()
        return buffered

    def pause(self, waiter: Waiter, at_most_ms: int, wanted: Callable[[Feed], int] | None = None) -> None:
        """Wait until woken, until a feed with room is due, or for `at_most_ms`; when woken, all feeds are due.

        Args:
            wanted: as for `refill`; None: nothing is to be received.
        """
        now_ms = self._clock.monotonic_ms()
        gathers_ms = min(feed.gathers_until_ms for feed in self.feeds.values()) - now_ms
        if gathers_ms > 0 and not len(self._in_flight):  # no run can end meanwhile, and no sender needs to wake us
            self._clock.wait(self._never, min(gathers_ms, at_most_ms))
            return
        for feed in self.feeds.values():
            if wanted is not None and 2 * len(feed.buffer) < wanted(feed):
                due_at_ms = max(feed.due_at_ms, feed.gathers_until_ms)
                at_most_ms = min(at_most_ms, max(due_at_ms - now_ms, 0))
        if self._clock.wait(waiter, at_most_ms):
            for feed in self.feeds.values():
                feed.due_at_ms = 0

    def is_empty(self, runner: Runner, *, wait_for_delayed: bool) -> bool:
        """Whether no message for the runner's jobs is left to receive or in flight, here or elsewhere."""
        if len(self._in_flight) or not all(feed.dry for feed in self.feeds.values()):
            return False
        not_taken: dict[str, int] = {}
        blocked = False
        for name in self.feeds:
            depth = runner.backend.open_queue(name).depth()
            hidden = runner.orphans(name)  # read after the depth: what is hidden now was hidden then too
            if hidden:
                not_taken[name] = hidden
            if depth.in_flight > hidden or (depth.delayed and wait_for_delayed):
                return False
            if depth.visible and not (hidden and name.endswith(".fifo")):
                return False
            blocked = blocked or depth.visible > 0
        self.not_taken = not_taken
        return not blocked or self._stays_blocked()

    def _stays_blocked(self) -> bool:
        """Whether nothing could be received for a while: visible messages wait behind ones that no job here takes."""
        now_ms, received = self._clock.monotonic_ms(), self._in_flight.counts().get("received", 0)
        if self._blocked is None or self._blocked[0] != received:
            self._blocked = received, now_ms
        return now_ms - self._blocked[1] >= _BLOCKED_MS

    def performed(self, units: Iterable[Unit]) -> None:
        """Note which units have been performed, and how long they took."""
        for unit in units:
            feed = self.feeds[unit.runs[0].delivery.queue]
            feed.took(len(unit.runs), sum(run.took_ms for run in unit.runs))
            feed.due_at_ms = 0  # on a FIFO queue the next message of the group can be received now

    def stop(self, *, give_back: bool = True) -> None:
        """Stop the polls that wait on a server. `give_back`: also return what has arrived to its queue."""
        for poll in self._polls:
            poll.stop(give_back=give_back)

    def end(self, *, give_back: bool) -> None:
        """Like `stop`; with `give_back`, wait briefly until receives in progress have returned their messages too."""
        self.stop(give_back=give_back)
        if not give_back:
            return
        until_ms = self._clock.monotonic_ms() + _RECEIVES_MS
        for poll in self._polls:
            poll.end(until_ms)


class Allotment:
    """Decides how much to begin, and to buffer ahead, for the free slots of a worker's executors.

    Args:
        jobs: all jobs whose messages may come.
    """

    def __init__(
        self, poller: Poller, executors: Executors, jobs: Sequence[Job[Any, Any]], settings: WorkerSettings
    ) -> None:
        self._poller = poller
        self._executors = executors
        self._group_max = settings.group_max
        self._prefetch = settings.prefetch
        self._feed_ways = {job.policy.queue: executors.way_of(job) for job in jobs}
        queues = [job.policy.queue for job in jobs]
        self._mixed = {name for name in queues if queues.count(name) > 1}

    def group_size(self, run: Execution) -> int:
        """How many runs of this run's queue one slot should get at once."""
        return self._poller.feeds[run.delivery.queue].group_size(self._group_max)

    def wanted(self, feed: Feed) -> int:
        """How many deliveries of a feed should be buffered now: for the free slots, and ahead for the busy ones."""
        lane, grouped = self._feed_ways.get(feed.queue.name, (self._executors.plain, False))
        unit = feed.group_size(self._group_max) if grouped else 1
        ahead = self._prefetch
        if ahead is None:
            ahead = feed.ahead(lane.slots, lane.slots * max(unit, 2))
        return max(self._executors.free[lane], 0) * unit + ahead

    def choose(self) -> list[Delivery]:
        """Buffered deliveries for the free slots, from the queues in turn."""
        poller, free = self._poller, dict(self._executors.free)
        batch: list[Delivery] = []
        ways: dict[Feed, tuple[Lane, bool]] = {}
        while True:
            for feed in poller.feeds.values():
                first = poller.first(feed)
                if first is not None:
                    ways[feed] = self._executors.way(first)
            able = [feed for feed, (lane, _) in ways.items() if feed.buffer and free[lane] > 0]
            if not able:
                return batch
            feed = poller.turn_of(able)
            lane, grouped = ways[feed]
            free[lane] -= 1
            size = feed.group_size(self._group_max) if grouped else 1
            chosen = 0
            while chosen < size and (delivery := poller.first(feed)) is not None:
                if chosen and feed.queue.name in self._mixed and self._executors.way(delivery) != ways[feed]:
                    break
                batch.append(feed.buffer.popleft())
                chosen += 1
