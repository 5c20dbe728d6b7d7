"""`App`: what a program declares, and the engine that it is sent to and run on.

A thin face of two objects: what is declared goes into a `Registry`, what is opened is a `Runtime`. Every option is checked
here, at the door; what a declaration makes is built by the room that it is of, and imported where one is declared.
Importing a module that declares an app opens nothing and costs little. Never here: how messages travel, storage, threads.
Invariants: a declaration that is refused has declared nothing. Two processes that import the same declarations agree on
every queue, key and lifetime.
Private: may change with any release.
"""

from __future__ import annotations

import os
import string
import typing
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, tzinfo
from typing import Any, Generic, Literal, TypeVar, overload

from onefold import aws, duration, errors, events, limits, maps, schedules
from onefold import reconcile as reconciliations
from onefold.clock import SystemClock
from onefold.contracts.ledger import History
from onefold.duration import Duration
from onefold.entropy import SystemEntropy
from onefold.options import (
    FUNCTION,
    DeadLetter,
    Function,
    ItemCatch,
    ItemRetry,
    LambdaSettings,
    Queue,
    Retry,
    Throttle,
    checked_options,
)
from onefold.outside import Clock, Entropy
from onefold.record.delivery import AfterFailure, Effect
from onefold.record.keys import KeyFunction
from onefold.registry import Registry
from onefold.runner.declaring import KEEP_DEFAULT, Decorator, declare_job, queue_of
from onefold.runner.handlers import Found, Job
from onefold.runtime.events import Sink, checked_sinks
from onefold.runtime.runtime import Runtime

T = TypeVar("T")

_NAME_CHARS_MAX = 40
_NAME_SIGNS = frozenset(string.ascii_letters + string.digits + "_-")


class _OfRuntime(Generic[T]):
    """An attribute of an app that its runtime has."""

    def __init__(self, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, app: None, owner: type[App]) -> _OfRuntime[T]: ...
    @overload
    def __get__(self, app: App, owner: type[App]) -> T: ...
    def __get__(self, app: App | None, owner: type[App]) -> T | _OfRuntime[T]:
        if app is None:
            return self
        found: T = getattr(app._runtime, self._name)  # noqa: SLF001 - the app's own
        return found

    def __set__(self, app: App, value: T) -> None:
        setattr(app._runtime, self._name, value)  # noqa: SLF001 - the app's own


class App:
    """A set of jobs on one engine.

    Args:
        name: 1-40 of a-z 0-9 - _; names the default file.
        url: the engine; unless given, the environment's ONEFOLD_URL, else `sqlite:///.onefold/<name>.db`.
        history: what the ledger keeps beside the records: `off`, `brief` (what was not a clean first run), `full`.
        sinks: receive events (`onefold.observe.Event`); a structured log is `onefold.LogSink()`.
        clock, entropy: where time and chance come from; tests pass their own.

    Raises:
        UsageError: a name out of range, an unknown history level.
    """

    url: _OfRuntime[str] = _OfRuntime("url")
    history: _OfRuntime[History] = _OfRuntime("history")
    sinks: _OfRuntime[tuple[Sink, ...]] = _OfRuntime("app_sinks")

    @checked_options
    def __init__(
        self,
        name: str,
        *,
        url: str | None = None,
        history: History = "brief",
        sinks: Iterable[Sink] = (),
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        if not 1 <= len(str(name)) <= _NAME_CHARS_MAX or not _NAME_SIGNS.issuperset(str(name)):
            raise errors.UsageError(f"{name!r} is not a name for an app.", todo="Use 1 to 40 of a-z, 0-9, - and _.")
        if history not in typing.get_args(History):
            raise errors.UsageError(f"history={history!r} is not known.", todo="It is off, brief or full.")
        self.name = name
        self.registry: Registry = Registry(name)
        self.queues: dict[str, Queue] = self.registry.queues
        self.jobs: dict[str, Job[Any, Any]] = self.registry.jobs
        self.schedules: dict[str, schedules.Schedule] = self.registry.schedules
        self.maps: dict[str, maps.MapJob] = self.registry.maps
        self.reconcilers: dict[str, reconciliations.Reconciler] = self.registry.reconcilers
        self.buses: dict[str, events.Bus] = self.registry.buses
        self.pipes: dict[str, events.Pipe] = self.registry.pipes
        self._runtime = Runtime(
            self.registry,
            url or os.environ.get("ONEFOLD_URL") or f"sqlite:///.onefold/{name}.db",
            clock=clock or SystemClock(),
            entropy=entropy or SystemEntropy(),
            history=history,
            app_sinks=checked_sinks(sinks),
        )

    # -- doing -------------------------------------------------------------------------------------------------------

    def runtime(self, url: str | None = None) -> Runtime:
        """What this app runs on, opened, with all declared queues created; opened once, whatever thread that is in.

        For tools beside an app: its `engine` looks at queues and records, its `send` takes what `Job.message` made. Sending
        to jobs and running them need none of it.

        Args:
            url: another engine than the app's own, for a Lambda handler; what is open already stays.

        Raises:
            StorageError: the file cannot be used. ConflictError: a queue exists with another type, deduplication,
                dead-letter or held queue; where it has other times or limits, they stay, and a warning is logged.
        """
        self._runtime.open(url)
        return self._runtime

    @checked_options
    def lambda_handler(
        self,
        *,
        concurrency: int = 10,
        margin: Duration = "1s",
        on_failure: Literal["group", "batch"] = "group",
        heartbeat: bool = False,
        raise_for_batch: bool = False,
    ) -> aws.LambdaHandler:
        """The handler of a Lambda function that SQS event source mappings of this app's queues invoke.

            handler = app.lambda_handler()      # below the jobs

        The mapping must have ReportBatchItemFailures; `onefold synth` writes it so. Messages are on SQS; records are where
        the app's engine says, for any engine.

        Args:
            concurrency: plain functions at one time, in threads; 1: in the invoking thread, one after the other. Coroutines
                run together, up to 100.
            margin: kept back of an invocation's time for settling; at most half of that time is. What cannot end before
                is given back unstarted.
            on_failure: what a message that comes back holds up: on a FIFO queue the rest of its `group` (a standard one has
                none), or on either the rest of the `batch`, which then runs one by one. Whether a dead letter does is the
                job's `after_failure`.
            heartbeat: extend leases and visibilities while handlers run: after a crash messages come back within 30 seconds,
                instead of when their visibility ends.
            raise_for_batch: raise when not one message of a batch is done, for the function's error metric.

        Raises:
            UsageError: an option out of its range. In Lambda: the engine cannot be opened.
        """
        settings = LambdaSettings(
            concurrency=concurrency,
            margin_ms=duration.to_ms(margin, "margin"),
            on_failure=on_failure,
            heartbeat=heartbeat,
            raise_for_batch=raise_for_batch,
        )
        return aws.LambdaHandler(self._runtime, settings)

    @contextmanager
    def _reopened(self, url: str, clock: Clock, entropy: Entropy) -> Iterator[Runtime]:
        """Use another engine, clock and chance for a while; for tests and simulations. Not safe from several threads."""
        with self._runtime.reopened(url, clock, entropy):
            yield self.runtime()

    def close(self, *, unfinished: bool = False) -> None:
        """Close the engine, if it was opened. The app may be used again.

        Args:
            unfinished: handlers still run in this process; what they hold is freed when it ends.
        """
        self._runtime.close(unfinished=unfinished)

    # -- declaring ---------------------------------------------------------------------------------------------------

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
            dead_letter=dead_letter, max_bytes=max_bytes,
            content_dedup=content_dedup, dedup_scope=dedup_scope, function=function, internal=internal,
        )  # fmt: skip
        return self.registry.add_queue(declared)

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
        when_complete: schedules.Schedule | Job[Any, Any] | str | None = None,
        source: str = "json",
        transient: Sequence[type[BaseException] | str] = (),
        permanent: Sequence[type[BaseException] | str] = (),
        unknown: Sequence[type[BaseException] | str] = (),
    ) -> Decorator:
        """Declare a job: the function below handles messages of `queue`, once per key.

        Start with these five; what the others default to is safe:

        Args:
            key: which operation a payload is: a template over its fields ("{order_id}"), a JMESPath expression
                ("jmespath:detail.id"), or a function of the payload. Never null, never empty.
            timeout: of one run. Enforced with processes and asyncio; with threads only reported (`overrun`): the run
                keeps its key and its message until the handler ends.
            retry: attempts and pauses.
            on_unknown: when an earlier run may or may not have had its effect: `rerun` it, `hold` it for a person, or ask a
                function of (payload) or (payload, ctx) that answers Done, NotDone or StillUnknown.
            owner: the team that owns a fix; shown with every failure.

        Which operation and which messages:

        Args:
            name: the function's name unless given. Stored in records: renaming makes every key new.
            tenant: scope of the key, by a rule as `key`. group: the FIFO message group, by a rule; required on FIFO.
            unique: sending a key that is known already (waiting, running or done) adds nothing, and the receipt says what it
                found; with another payload it is a ConflictError. In a file, a key whose message was purged or expired is
                free. On SQS nobody can look whether a message is still there: the key is known while its record is.
            keep: how long a finished record answers duplicates; at least retention + dead-letter retention + 1 day.
            source: the envelope of messages that onefold did not send: json, s3, sns, eventbridge, scheduler.
            when_complete: a schedule or map run, each complete run of which starts it once; it takes a `CompleteRun`.

        What a run does and how it may fail:

        Args:
            effect: `external` (calls something outside), `repeatable` (running twice is harmless: faster), or
                `transactional` (all effects are rows written through ctx.connection: level 4).
            throttle: rate and concurrency over all processes.
            after_failure: FIFO: whether a dead letter stops its group (`stop`) or is passed over (`skip`).
            transient, permanent, unknown: exception classes, or their dotted names, that mean just that.

        Raises:
            UsageError: an option that cannot be right; says which, and what to do.
        """
        declared: Decorator = declare_job(
            self._runtime, queue, key=key, name=name, tenant=tenant, group=group, effect=effect, on_unknown=on_unknown,
            timeout=timeout, retry=retry, throttle=throttle,
            after_failure=after_failure, keep=keep, owner=owner,
            unique=unique, when_complete=when_complete, source=source, transient=transient, permanent=permanent,
            unknown=unknown,
        )  # fmt: skip
        return declared

    @checked_options
    def schedule(
        self,
        expression: str,
        *,
        tz: str | tzinfo = "UTC",
        name: str | None = None,
        queue: Queue | None = None,
        missed: Literal["skip", "last", "all"] = "last",
        missed_max: int = 100,
        dst: Literal["eventbridge", "next-valid"] = "eventbridge",
        window: Duration = "0s",
        start: datetime | None = None,
        end: datetime | None = None,
        delete_after: bool = False,
        retry: schedules.ScheduleRetry | None = None,
        dead_letter: bool = True,
        timeout: Duration = "5m",
        job_retry: Retry | None = None,
        owner: str | None = None,
    ) -> Callable[[Callable[..., Any]], schedules.Schedule]:
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
            self._runtime, expression, tz=tz, name=name, queue=queue, missed=missed, missed_max=missed_max, dst=dst,
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
        items: Literal["csv", "json", "jsonl", "listing"] | maps.ItemReader = "csv",
        source: str | None = None,
        batch: int | maps.ItemBatch | None = None,
        concurrency: int = 1_000,
        tolerated_count: int | None = None,
        tolerated_percent: float | None = None,
        retry: Sequence[ItemRetry] = (ItemRetry(jitter="full"),),
        catch: Queue | Sequence[ItemCatch] | None = None,
        effect: Effect = "external",
        timeout: Duration = "5m",
        results: str | None = None,
        owner: str | None = None,
    ) -> Callable[[Callable[..., Any]], maps.MapJob]:
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
        return maps.declare(
            self._runtime,
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
        of: schedules.Schedule | Job[Any, Any] | str,
        *,
        after: Duration = "30m",
        name: str | None = None,
        queue: Queue | None = None,
        owner: str | None = None,
    ) -> reconciliations.Reconciler:
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
        return reconciliations.declare(self._runtime, of, after=after, name=name, queue=queue, owner=owner)

    def bus(self, name: str = "default", *, account: str | None = None, region: str | None = None) -> events.Bus:
        """The event bus of that name; declare rules and archives on it, put events on it (`events/bus.py`).

        Args:
            name: 1-60 of A-Z a-z 0-9 . - _. account, region: what its events say of where they are from.

        Raises:
            UsageError: a value out of range. ConflictError: the bus was declared with another account or region.
        """
        return events.declare_bus(self._runtime, name, account=account, region=region)

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
    ) -> events.Pipe:
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
            self._runtime, source, target, name=name, filter=filter, enrich=enrich, transform=transform, group=group,
            timeout=timeout, retry=retry, after_failure=after_failure, keep=keep, owner=owner,
        )  # fmt: skip
