"""One child of a map run driven by Step Functions; takes the task's event, returns its result or raises its error.

    {"onefold": {"map": "enrich", "run": "enrich/nightly-7"}, "item": {...}}        or "items": [...] for a batch

The child goes through the same runner as a message of the map's job, under the same key, so a child that is started
again (a retry, a redrive, a lost answer) is answered from its record. It is in Step Functions, not in a queue, so no
message is hidden, moved or deleted. Retry and Catch are rules of the state machine, which matches errors by class name,
so the error raised here has the class name of the job's failure. `PermanentError` is raised for a failure that no rule
names and no retry can cure.
Never here: when a child is tried again, SQS. Invariant: an answer is given only after the child's record was written.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from onefold import errors
from onefold.contracts.queue import JOB_ATTRIBUTE, Delivery, MoveTo
from onefold.maps.jobs import MapJob
from onefold.maps.rules import BUSY, ItemFailures, MapSpec
from onefold.maps.sources import Item, Position
from onefold.options import LambdaSettings
from onefold.record.delivery import Failed, Outcome
from onefold.runner.handlers import Job
from onefold.runner.lambda_invocation import ExecutorPool, ExecutorPools, Invocation
from onefold.runner.lambda_mapping import HeldQueue, remaining_ms_of
from onefold.runtime.outgoing import Outgoing

if TYPE_CHECKING:
    from onefold.contracts.ledger import Row
    from onefold.contracts.verbs import Queue, QueueReceiver, Store
    from onefold.outside import Clock, Entropy

_PERMANENT: Final = "PermanentError"
_RUNS_MAX: Final = 1_000_000_000  # the state machine counts the runs of a child


class ChildEvent(Struct, frozen=True):
    """A task's event.

    Args:
        map: name of the declared map. run: the run's name. items: those of this child.
    """

    map: str
    run: str
    items: tuple[Any, ...]


def child_of(event: object) -> ChildEvent | None:
    """The child that an event describes; None for an event of another kind.

    Raises:
        UsageError: the event names a map but is incomplete.
    """
    named = event.get("onefold") if isinstance(event, Mapping) else None
    if not isinstance(event, Mapping) or not isinstance(named, Mapping):
        return None
    items = event.get("items") if "items" in event else [event["item"]] if "item" in event else None
    name, run = named.get("map"), named.get("run")
    if not isinstance(name, str) or not isinstance(run, str) or not isinstance(items, Sequence) or not items:
        raise errors.UsageError(
            "The event of a map run lacks the name of a map, the name of a run, or an item.",
            meaning="Nothing was begun.",
            todo="Let the state machine that onefold synth writes call this function.",
        )
    return ChildEvent(name, run, tuple(items))


def message_of(mapping: MapJob, event: ChildEvent) -> Outgoing:
    """The message that the embedded run would send for this child.

    Raises:
        PayloadError: an item does not fit the payload's type, or gives no key.
    """
    payloads = [mapping.payload_of(_item(mapping.spec, value)) for value in event.items]
    return mapping.message(event.run, payloads, [mapping.key.of(payload) for payload in payloads])


def _item(spec: MapSpec, value: Any) -> Item:
    if spec.reader.format in ("csv", "listing"):
        return Item(value=value, text=None, line=1, end=Position())
    return Item(value=None, text=msgspec.json.encode(value).decode(), line=1, end=Position())


class NotedFailures(ItemFailures, frozen=True):
    """Leaves the outcome of a failure to the state machine, and keeps the failure for the answer."""

    noted: list[Failed]

    def judge(
        self,
        failed: Failed,
        delivery: Delivery,  # noqa: ARG002 - only the rules need it
        earlier: Callable[[], Sequence[Row]],  # noqa: ARG002 - same
        fraction: float,  # noqa: ARG002 - same
    ) -> Outcome:
        """The failure as a transient one, so that Step Functions can start the child again at once."""
        self.noted.append(failed)
        if failed.kind in ("dependency-down", "unknown"):
            return failed
        return msgspec.structs.replace(failed, kind="transient", retry_in_ms=0)


def error_name(spec: MapSpec, failed: Failed) -> str:
    """The name of a failure for the state machine, which is the one that `ItemFailures` matches with its rules."""
    short = failed.error.rpartition(".")[2]
    rules = [one.errors for one in spec.retry] + [one.errors for one in spec.catch]
    named = any(short == name.rpartition(".")[2] for names in rules for name in names)
    return _PERMANENT if failed.kind == "permanent" and not named else short


class StepFunctionsQueue(HeldQueue):
    """The queue of a map's job, for a child that is not in a queue: settling changes nothing."""

    def __init__(self, queue: QueueReceiver, moved: list[MoveTo]) -> None:
        super().__init__(queue)
        self._moved = moved

    def move_aside(self, moves: Sequence[tuple[str, MoveTo]]) -> list[bool]:
        """Note the reasons; the items are in the state machine's results."""
        self._moved.extend(move for _, move in moves)
        return [True] * len(moves)


class StepFunctionsChildren:
    """Performs children, one at a time, for as long as its container lives.

    Args:
        maps: the declared maps, by name.
        make_pool: makes the pool that runs handlers. Its arguments: how long an invocation may last (ms), a function
            that returns the job of a delivery, and one that wraps a queue.
        store: holds the records.
    """

    def __init__(
        self,
        maps: Mapping[str, MapJob],
        make_pool: Callable[[int, Callable[[Delivery], Job[Any, Any]], Callable[[Queue], QueueReceiver]], ExecutorPool],
        *,
        store: Store,
        settings: LambdaSettings,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._maps = maps
        self._pools = ExecutorPools(
            lambda lease_ms: make_pool(lease_ms, self._job_of, self._child_queue), settings.margin_ms
        )
        self._store = store
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._one_at_a_time = threading.Lock()
        self._noted: list[Failed] = []
        self._moved: list[MoveTo] = []
        self._jobs: dict[str, Job[Any, Any]] = {}

    def handle(self, event: ChildEvent, context: object = None) -> Any:
        """Perform a child, and return the job's result.

        Raises:
            NotFoundError: the app has no map of that name. PayloadError: an item is malformed.
            UsageError: the backend cannot be used.
            Exception: the job's failure, under the name of its class. `ChildBusy`: the child runs elsewhere, no time
                was left, or the backend failed for now; every state machine retries it, whatever the map's own rules
                are.
        """
        mapping = self._maps.get(event.map)
        if mapping is None:
            raise errors.NotFoundError(
                f"The app declares no map {event.map}.", todo="Deploy the app and its state machines together."
            )
        outgoing = message_of(mapping, event)
        try:
            return self._answer(mapping, outgoing, remaining_ms_of(context))
        except errors.TransientError as error:  # onefold's own; one that a handler raised keeps its name
            raise _named(BUSY, str(error)) from error

    def _answer(self, mapping: MapJob, outgoing: Outgoing, remaining_ms: int) -> Any:
        with self._one_at_a_time:
            is_done = self._perform(mapping, outgoing, remaining_ms)
            noted, moved = list(self._noted), list(self._moved)
        if noted:
            raise _named(error_name(mapping.spec, noted[-1]), noted[-1].summary)
        if moved:
            reason = moved[-1].reason
            raise _named((reason.error or _PERMANENT).rpartition(".")[2], reason.summary)
        if not is_done:
            raise _named(BUSY, f"{outgoing.record.key} runs elsewhere, or no time was left for it.")
        record = self._store.read([outgoing.record], self._clock.now_ms())[0]
        return None if record is None or record.result is None else msgspec.json.decode(record.result)

    def _perform(self, mapping: MapJob, outgoing: Outgoing, remaining_ms: int) -> bool:
        """Run the child; returns whether it is done."""
        self._noted.clear()
        self._moved.clear()
        killed_at_ms = self._clock.monotonic_ms() + remaining_ms
        delivery = self._delivery(outgoing, remaining_ms)
        if mapping.job.name not in self._jobs:
            self._jobs[mapping.job.name] = self._counting_no_runs(mapping)
        with self._pools.take(remaining_ms) as pool:
            invocation = Invocation(pool, [delivery], killed_at_ms=killed_at_ms)
            invocation.run()
        if invocation.trouble is not None:
            raise invocation.trouble
        return pool.answered.is_done(delivery.receipt)

    def _delivery(self, outgoing: Outgoing, remaining_ms: int) -> Delivery:
        now_ms = self._clock.now_ms()
        token = self._entropy.token()
        return Delivery(
            queue=outgoing.queue,
            message_id=token,
            receipt=token,
            body=outgoing.entry.body,
            attributes=outgoing.entry.attributes,
            receive_count=1,
            sent_at_ms=now_ms,
            first_received_at_ms=now_ms,
            received_at_ms=now_ms,
            visible_ms=remaining_ms,
            key=outgoing.entry.key,
        )

    def _job_of(self, delivery: Delivery) -> Job[Any, Any]:
        return self._jobs[str(delivery.attributes[JOB_ATTRIBUTE].value)]

    def _child_queue(self, queue: Queue) -> QueueReceiver:
        return StepFunctionsQueue(queue, self._moved)

    def _counting_no_runs(self, mapping: MapJob) -> Job[Any, Any]:
        """The map's job, without a limit of runs and with failures left to the state machine."""
        job = copy.copy(mapping.job)
        job.policy = msgspec.structs.replace(job.policy, attempts_max=_RUNS_MAX)
        job.judge_failure = NotedFailures(spec=mapping.spec, noted=self._noted).judge
        return job


def _named(name: str, summary: str) -> Exception:
    """An error whose class has this name, which Lambda passes on and Step Functions compares."""
    made: Exception = type(name, (Exception,), {})(summary)
    return made
