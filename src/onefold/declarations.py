"""What an app declares: queues, jobs, schedules, map runs, reconciliations, event buses, pipes.

`App` (app.py) is these declarations on an engine. Every option is checked here, at the door, and a misspelt one is answered
with the name that was meant; what a declaration makes is built in `runner/`, and imported where one is declared.
Never here: engines, how messages travel, threads.
Invariant: a declaration that is refused has declared nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Literal

from onefold import errors, events, limits, maps, reconcile, schedules
from onefold.options import (
    FUNCTION,
    DeadLetter,
    Function,
    ItemCatch,
    ItemRetry,
    Queue,
    Retry,
    Throttle,
    checked_options,
)
from onefold.runner.declaring import declare_job, lists_of, queue_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import datetime, tzinfo

    from onefold.contracts.ledger import History
    from onefold.duration import Duration
    from onefold.events.bus import Bus
    from onefold.events.pipes import Pipe
    from onefold.maps.jobs import MapJob
    from onefold.maps.rules import Format, ItemBatch, ItemReader
    from onefold.reconcile.reconciler import Reconciler
    from onefold.record.delivery import AfterFailure, Effect
    from onefold.record.keys import KeyFunction
    from onefold.runner.declaring import Decorator
    from onefold.runner.events import Sink
    from onefold.runner.handlers import Found, Job
    from onefold.runner.outgoing import Outgoing, Receipt
    from onefold.runtime.wiring import Runtime
    from onefold.schedules.fire_times import Dst
    from onefold.schedules.schedule import Schedule, ScheduleRetry
    from onefold.schedules.ticks import Missed

KEEP_DEFAULT = "90d"  # mission I1: records of completed work answer duplicates for 90 days


class Declarations:
    """The declarations of an app, and what they need of it: `App` has it, which is checked where types are."""

    url: str
    history: History
    sinks: tuple[Sink, ...]

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: dict[str, Queue] = {}
        self.jobs: dict[str, Job[Any, Any]] = {}
        self.schedules: dict[str, Schedule] = {}
        self.maps: dict[str, MapJob] = {}
        self.reconcilers: dict[str, Reconciler] = {}
        self.buses: dict[str, Bus] = {}
        self.pipes: dict[str, Pipe] = {}

    @abstractmethod
    def runtime(self, url: str | None = None) -> Runtime:
        """The opened engine."""

    @abstractmethod
    def deliver(self, outgoing: Sequence[Outgoing]) -> list[Receipt]:
        """Accept messages durably; all or none."""

    @abstractmethod
    def now_ms(self) -> int:
        """Wall time of the app's clock."""

    @checked_options
    def queue(
        self,
        name: str,
        *,
        fifo: bool = False,
        visibility: Duration = "30s",
        retention: Duration = "4d",
        delay: Duration = "0s",
        dead_letter: DeadLetter | None = None,
        max_bytes: int = limits.MESSAGE_BYTES_MAX,
        content_dedup: bool = False,
        dedup_scope: Literal["queue", "messageGroup"] = "queue",
        function: Function | None = FUNCTION,
        internal: bool = False,
    ) -> Queue:
        """Declare a queue, with its dead-letter queue and the queue for unknown outcomes beside it.

        Args:
            name: 1-75 of A-Z a-z 0-9 - _ (companions are named after it); FIFO queues get the suffix `.fifo` when it
                is missing, and only they may have it.
            fifo: strict order per message group.
            visibility: hidden after a receive by consumers without a heartbeat, 0 s to 12 h.
            retention: how long a message stays, 60 s to 14 d.
            delay: of every message, 0 s to 15 min.
            dead_letter: after how many receives, and how long dead letters stay.
            max_bytes: 1,024 to 1,048,576 per message.
            content_dedup, dedup_scope: FIFO deduplication, as SQS has it.
            function: the Lambda function that runs its jobs on AWS, as `onefold synth` writes it; None for none: workers do.
            internal: nobody but onefold of this app can send to it (its policy must see to that): then the keys, runs and
                amendments that its messages name count without a signature (docs/security.md).

        Raises:
            UsageError: a value out of range (the same ranges as SQS); a dead-letter queue that does not fit. Nothing is
                declared then.
            ConflictError: declared before with other settings.
        """
        declared = queue_of(
            name, fifo=fifo, visibility=visibility, retention=retention, delay=delay,
            dead_letter=DeadLetter() if dead_letter is None else dead_letter, max_bytes=max_bytes,
            content_dedup=content_dedup, dedup_scope=dedup_scope, function=function, internal=internal,
        )  # fmt: skip
        known = self.queues.setdefault(declared.name, declared)
        if known != declared:
            raise errors.ConflictError(
                f"Queue {declared.name} was declared twice with different settings.",
                todo="Declare it once and pass the object that app.queue returned.",
            )
        return known

    @checked_options
    def job(
        self,
        queue: Queue,
        *,
        key: str | KeyFunction,
        name: str | None = None,
        tenant: str | KeyFunction | None = None,
        group: str | KeyFunction | None = None,
        effect: Effect = "external",
        on_unknown: Literal["rerun", "hold"] | Callable[..., Found | Awaitable[Found]] = "rerun",
        timeout: Duration = "5m",
        retry: Retry | None = None,
        throttle: Throttle | None = None,
        after_failure: AfterFailure = "stop",
        keep: Duration = KEEP_DEFAULT,
        owner: str | None = None,
        unique: bool = False,
        when_complete: Schedule | Job[Any, Any] | str | None = None,
        source: str = "json",
        transient: Sequence[type[BaseException] | str] = (),
        permanent: Sequence[type[BaseException] | str] = (),
        unknown: Sequence[type[BaseException] | str] = (),
    ) -> Decorator:
        """Declare a job: the function below handles messages of `queue`, once per key.

        Args:
            key: which operation a payload is: a template over its fields ("{order_id}"), a JMESPath expression
                ("jmespath:detail.id"), or a function of the payload. Never null, never empty.
            name: the function's name unless given. Stored in records: renaming makes every key new.
            tenant: scope of the key, by a rule as `key`. group: the FIFO message group, by a rule; required on FIFO.
            effect: `external` (calls something outside), `repeatable` (running twice is harmless: faster), or
                `transactional` (all effects are rows written through ctx.connection: level 4).
            on_unknown: when an earlier run may or may not have had its effect: `rerun` it, `hold` it for a person, or ask a
                function of (payload) or (payload, ctx) that answers Done, NotDone or StillUnknown.
            timeout: of one run. Enforced with processes and asyncio; with threads only reported (`overrun`).
            retry: attempts and pauses. throttle: rate and concurrency over all processes.
            after_failure: FIFO: whether a dead letter stops its group (`stop`) or is passed over (`skip`).
            keep: how long a finished record answers duplicates; at least retention + dead-letter retention + 1 day.
            owner: the team that owns a fix; shown with every failure.
            unique: sending a key that is known already (waiting, running or done) adds nothing, and the receipt says what it
                found; with another payload it is a ConflictError.
            when_complete: a schedule or map run, each complete run of which starts it once; it takes a `CompleteRun`.
            source: the envelope of messages that onefold did not send: json, s3, sns, eventbridge, scheduler.
            transient, permanent, unknown: exception classes, or their dotted names, that mean just that.

        Raises:
            UsageError: an option that cannot be right; says which, and what to do.
        """
        self._own(queue)
        declared: Decorator = declare_job(
            self, queue, key=key, name=name, tenant=tenant, group=group, effect=effect, on_unknown=on_unknown,
            timeout=timeout, retry=Retry() if retry is None else retry, throttle=throttle,
            after_failure=after_failure, keep=keep, owner=owner,
            unique=unique, when_complete=when_complete, source=source, classes=lists_of(transient, permanent, unknown),
        )  # fmt: skip
        return declared

    def _own(self, queue: Queue) -> None:
        if not isinstance(queue, Queue):
            raise errors.UsageError(f"{queue!r} is not a queue.", todo="Pass what app.queue(...) returned.")
        if self.queues.get(queue.name) is not queue:
            raise errors.UsageError(
                f"Queue {queue.name} was not declared on app {self.name}.", todo="Pass what app.queue(...) returned."
            )

    @checked_options
    def schedule(
        self,
        expression: str,
        *,
        tz: str | tzinfo = "UTC",
        name: str | None = None,
        queue: Queue | None = None,
        missed: Missed = "last",
        missed_max: int = 100,
        dst: Dst = "eventbridge",
        window: Duration = "0s",
        start: datetime | None = None,
        end: datetime | None = None,
        delete_after: bool = False,
        retry: ScheduleRetry | None = None,
        dead_letter: bool = True,
        timeout: Duration = "5m",
        job_retry: Retry | None = None,
        owner: str | None = None,
    ) -> Callable[[Callable[..., Any]], Schedule]:
        """Declare a schedule: the function below is called with each `Tick`, once, or with (tick, ctx).

        A generator dispatches: it yields `job.message(payload)` for each message of the tick's run. Ticks are sent by
        `onefold scheduler`, by `onefold worker --schedules`, or by EventBridge Scheduler after a deployment.

        Args:
            expression: `cron(minute hour day month weekday year)`, `rate(5 minutes)` or `at(2026-06-01T03:00:00)`.
            tz: IANA zone in which cron and at are read: its name, a ZoneInfo, or datetime.UTC.
            name: 1-64 of 0-9 A-Z a-z - _ . ; the function's name unless given. It is part of every tick's key.
            queue: where its ticks wait; unless given, the queue `<app>-schedules`, declared with the first schedule.
            missed: for ticks whose time passed while no scheduler ran: `skip` them, send the `last`, or send `all`, of
                which at most the `missed_max` (1 to 1,000) latest; with `all` and a start in the past a new one owes the
                ticks since then, otherwise it begins now. A new one-time schedule that lies in the past owes its tick.
            dst: clock changes: `eventbridge` skips what the change skips, `next-valid` fires at the first valid instant.
            window: flexible window after the planned time, 1 m to 24 h, in which a tick is sent; 0 s: at its time.
            start, end: no tick before and after; aware datetimes. A rate begins at its start.
            delete_after: forget the schedule after its last tick.
            retry, dead_letter: of a tick that its queue does not take; it goes to `<app>-schedules-dead` then.
            timeout: of one call of the function.
            job_retry: of the function, when it fails or its worker dies; as a job's.
            owner: the team that owns a fix.

        Raises:
            UsageError: an option that cannot be right; says which field, and what is allowed.
        """
        return schedules.declare(
            self, expression, tz=tz, name=name, queue=queue, missed=missed, missed_max=missed_max, dst=dst,
            window=window, start=start, end=end, delete_after=delete_after,
            retry=schedules.ScheduleRetry() if retry is None else retry,
            dead_letter=dead_letter, timeout=timeout, job_retry=job_retry, owner=owner,
        )  # fmt: skip

    @checked_options
    def map(
        self,
        queue: Queue,
        *,
        key: str | KeyFunction,
        name: str | None = None,
        items: Format | ItemReader = "csv",
        source: str | None = None,
        batch: int | ItemBatch | None = None,
        concurrency: int = 1_000,
        tolerated_count: int | None = None,
        tolerated_percent: float | None = None,
        retry: Sequence[ItemRetry] = (ItemRetry(jitter="full"),),
        catch: Queue | Sequence[ItemCatch] | None = None,
        effect: Effect = "external",
        timeout: Duration = "5m",
        results: str | None = None,
        owner: str | None = None,
    ) -> Callable[[Callable[..., Any]], MapJob]:
        """Declare a map: the function below is called for each item of a file or listing, once per run and key.

        Runs are started by `onefold map start`; on AWS they are a Distributed Map of Step Functions, whose rules these are.

        Args:
            queue: of the items' messages; a standard queue.
            key: which item it is, within a run; as a job's key.
            name: the function's name unless given.
            items: `csv`, `json`, `jsonl`, `listing`, or an `ItemReader` with its options (header, delimiter, quote ...).
            source: path or s3:// URL, unless it is said at the start of each run.
            batch: items given to one call, as a list; None for one.
            concurrency: children that are sent and not finished, 1 to 10,000.
            tolerated_count, tolerated_percent: how many items may fail, malformed rows among them; more end the run.
                Neither: none.
            retry: what is tried again, by the names of errors; by default all errors but PermanentError, 3 times.
            catch: an operations queue for items that failed for good, which then do not count as failed; or `ItemCatch`es.
            effect: as a job's. timeout: of one call. owner: the team that owns a fix.
            results: folder or s3:// URL of the result files; beside the engine's file unless given.

        Raises:
            UsageError: an option that cannot be right; says which, and what is allowed.
        """
        self._own(queue)
        return maps.declare(
            self,
            queue,
            maps.Options(
                key=key, name=name, items=items, source=source, batch=batch, concurrency=concurrency,
                tolerated_count=tolerated_count, tolerated_percent=tolerated_percent, retry=retry, catch=catch,
                effect=effect, timeout=timeout, results=results, owner=owner,
            ),
            maps.Turns().take,
        )  # fmt: skip

    @checked_options
    def reconcile(
        self,
        of: Schedule | Job[Any, Any] | str,
        *,
        after: Duration = "30m",
        name: str | None = None,
        queue: Queue | None = None,
        owner: str | None = None,
    ) -> Reconciler:
        """Look `after` the start of each run whether what should exist, exists once; use it as it is, or as a decorator.

        What was dispatched is held against its records. The function below adds what only the app can count: it takes a
        `Reconciliation` and returns found per key, `Totals`, or yields `Counted`. See `reconcile/reconciler.py`.

        Args:
            of: a schedule, a map run, or its name.
            after: 1 s to 14 d, counted from the run's start.
            name: of the job that looks; `reconcile-<of>` unless given. queue: of its messages; one of its own unless given.
            owner: the team that owns a fix.

        Raises:
            UsageError: a value out of range. ConflictError: the name is taken.
        """
        return reconcile.declare(self, of, after=after, name=name, queue=queue, owner=owner)

    def bus(self, name: str = "default", *, account: str | None = None, region: str | None = None) -> Bus:
        """The event bus of that name; declare rules and archives on it, put events on it (`events/bus.py`).

        Args:
            name: 1-60 of A-Z a-z 0-9 . - _. account, region: what its events say of where they are from.

        Raises:
            UsageError: a value out of range. ConflictError: the bus was declared with another account or region.
        """
        return events.declare_bus(self, name, account=account, region=region)

    @checked_options
    def pipe(
        self,
        source: Queue,
        target: Queue,
        *,
        name: str | None = None,
        filter: Mapping[str, Any] | str | Sequence[Mapping[str, Any] | str] = (),  # noqa: A002 - as EventBridge Pipes
        enrich: Callable[..., Any] | None = None,
        transform: str | None = None,
        group: str | None = None,
        timeout: Duration = "5m",
        retry: Retry | None = None,
        after_failure: AfterFailure = "stop",
        keep: Duration = KEEP_DEFAULT,
        owner: str | None = None,
    ) -> Pipe:
        """Forward messages from one queue to another, each once; workers of the app do it (`events/pipes.py`).

        Args:
            name: 1-64 of A-Z a-z 0-9 . - _; `<source>-to-<target>` unless given. Stored in records.
            filter: up to five patterns such as {"body": {"kind": ["order"]}}; what none of them matches is deleted.
            enrich: takes the body [, the context] and returns what is forwarded instead; None: nothing is. It may run twice.
            transform: template of what the target gets, for example '{"id": "<$.body.id>"}'.
            group: message group for a FIFO target (required there): a text, or a path such as "$.body.customer".
            timeout, retry, after_failure, keep, owner: as of a job.

        Raises:
            UsageError: a value that cannot be. ConflictError: the source queue has a job or pipe already.
        """
        return events.declare_pipe(
            self, source, target, name=name, filter=filter, enrich=enrich, transform=transform, group=group,
            timeout=timeout, retry=retry, after_failure=after_failure, keep=keep, owner=owner,
        )  # fmt: skip
