"""`App`: the declarations of a program, and the engine on which its messages are stored and its jobs run.

A thin interface to two objects: declarations go into a `Registry`, and a `Runtime` holds what is opened. Every option
is checked here, when it is declared. What a declaration makes (a schedule, a map, a bus) is built in its own package,
which is imported when one is declared. Importing a module that declares an app opens nothing and takes little time.
Never here: how messages travel, storage, threads.
Invariants: a declaration that is refused leaves nothing behind. Two processes that import the same declarations agree on
every queue, key and lifetime.
Private: may change with any release.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from onefold import aws, duration, errors, events, limits, maps, observe, schedules
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
    check_app,
    checked_options,
)
from onefold.outside import Clock, Entropy
from onefold.record.delivery import AfterFailure, Effect, Executor
from onefold.record.keys import KeyFunction
from onefold.registry import Registry
from onefold.runner.declaring import KEEP_DEFAULT, Decorator, declare_job, queue_of
from onefold.runner.handlers import Found, Job
from onefold.runner.hooks import Hooks, HookSet, checked_hooks
from onefold.runtime.events import Sink, checked_sinks
from onefold.runtime.runtime import Runtime

if TYPE_CHECKING:
    from onefold.admin.api import Admin

T = TypeVar("T")


class _OfRuntime(Generic[T]):
    """An attribute of an app that is stored in its runtime."""

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


class _OfOperators:
    """`app.admin`, made when it is first used: functions on Lambda are packaged without it."""

    @overload
    def __get__(self, app: None, owner: type[App]) -> _OfOperators: ...
    @overload
    def __get__(self, app: App, owner: type[App]) -> Admin: ...
    def __get__(self, app: App | None, owner: type[App]) -> Admin | _OfOperators:
        if app is None:
            return self
        try:
            from onefold.admin.api import admin_of  # the only import from a higher layer: the app just returns it
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("onefold.admin"):
                raise
            raise errors.UsageError(
                "app.admin is not in a function's package.",
                meaning="`onefold package` leaves out what handlers do not need.",
                todo="Call it from a program with the whole onefold installed.",
            ) from None
        return admin_of(app)


class App:
    """A set of jobs on one engine.

    Args:
        name: 1-40 of a-z 0-9 - _; names the default file.
        url: the engine; by default ONEFOLD_URL from the environment, or else `sqlite:///.onefold/<name>.db`.
        history: what the ledger keeps besides records: `off`, `brief` (only what was not a clean first run), `full`.
        sinks: objects that receive events (`onefold.observe.Event`), such as the structured log `onefold.LogSink()`.
        hooks: objects of classes derived from `onefold.Hooks`: code that runs when a worker starts and stops, around each
            handler, and when one raises.
        clock, entropy: the sources of time and random numbers; tests pass their own.
        outbox: URL of your own database, in which `send(..., connection=...)` leaves messages for workers to pass on:
            `postgresql://...`, `sqlite:///...` with a file other than the engine's, or `dynamodb://REGION/TABLE`
            (`job.outbox_item`); by default ONEFOLD_OUTBOX from the environment.

    Attributes:
        admin: what an operator can do with its engine: inspect, redrive, settle (`onefold.admin.Admin`).

    Raises:
        UsageError: the name is invalid, the URL an empty text, or the history level unknown.
    """

    url: _OfRuntime[str] = _OfRuntime("url")
    history: _OfRuntime[History] = _OfRuntime("history")
    sinks: _OfRuntime[tuple[Sink, ...]] = _OfRuntime("app_sinks")
    hooks: _OfRuntime[HookSet] = _OfRuntime("hooks")
    outbox: _OfRuntime[str | None] = _OfRuntime("outbox_url")
    admin: _OfOperators = _OfOperators()

    @checked_options
    def __init__(
        self,
        name: str,
        *,
        url: str | None = None,
        history: History = "brief",
        sinks: Iterable[Sink] = (),
        hooks: Iterable[Hooks] = (),
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        outbox: str | None = None,
    ) -> None:
        check_app(name, url)
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
            app_sinks=checked_sinks(sinks, name),
            hooks=checked_hooks(hooks),
            outbox_url=outbox or os.environ.get("ONEFOLD_OUTBOX"),
        )

    # -- opening and running -----------------------------------------------------------------------------------------

    def runtime(self, url: str | None = None) -> Runtime:
        """The app's runtime, opened, with all declared queues created. The first call opens it, in any thread.

        For tools: its `engine` gives access to queues and records, its `send` takes messages made by `Job.message`. Sending
        to jobs and running them do not need it.

        Args:
            url: an engine other than the app's own, for a Lambda handler; an engine that is already open is kept.

        Raises:
            StorageError: the file cannot be used. ConflictError: a queue exists with another type, deduplication,
                dead-letter or held queue; if only its times or limits differ, it keeps them and a warning is logged.
        """
        self._runtime.open(url)
        return self._runtime

    async def aruntime(self, url: str | None = None) -> Runtime:
        """Like `runtime`, from a coroutine, without blocking the loop. Await it when the program starts."""
        return await self._runtime.in_thread(lambda: self.runtime(url))

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

        The mapping must have ReportBatchItemFailures; `onefold synth` sets it. Messages are in SQS; records are on the
        app's engine, whichever it is.

        Args:
            concurrency: plain functions at one time, in threads; 1: in the invoking thread, one after the other. Coroutines
                run concurrently, up to 100.
            margin: time at the end of an invocation that is reserved for settling, at most half of the invocation. Messages
                that cannot be done before it are released unstarted.
            on_failure: what a message that will be retried blocks: on a FIFO queue the rest of its `group` (a standard queue
                has no groups), or on either kind of queue the rest of the `batch`, whose messages then run one by one.
                The job's `after_failure` decides whether a dead letter blocks its group.
            heartbeat: extend leases and visibilities while handlers run: after a crash, messages come back within
                30 seconds, not only when their visibility ends.
            raise_for_batch: raise if no message of a batch is done, for the function's error metric.

        Raises:
            UsageError: an option is out of range. In Lambda: the engine cannot be opened.
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
        """Use another engine, clock and entropy for a while; for tests and simulations. Not thread-safe."""
        with self._runtime.reopened(url, clock, entropy):
            yield self.runtime()

    def close(self, *, unfinished: bool = False) -> None:
        """Close the engine, if it was opened. The app can be used again.

        Args:
            unfinished: handlers still run in this process; the process's end frees what they hold.
        """
        self._runtime.close(unfinished=unfinished)

    async def aclose(self, *, unfinished: bool = False) -> None:
        """Like `close`, from a coroutine, without blocking the loop."""
        await self._runtime.in_thread(lambda: self.close(unfinished=unfinished))

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
        """Declare a queue, together with its dead-letter queue and its queue for unknown outcomes.

        Args:
            name: 1-75 of A-Z a-z 0-9 - _ (its companions are named after it); FIFO queues get the suffix `.fifo` if it
                is missing, and only they can have it.
            fifo: strict order per message group.
            visibility: how long a receive hides a message from other consumers without a heartbeat, 0 s to 12 h.
            retention: how long a message stays, 60 s to 14 d.
            delay: the delay of every message, 0 s to 15 min.
            dead_letter: after how many receives, and how long dead letters stay.
            max_bytes: 1,024 to 1,048,576 per message.
            content_dedup, dedup_scope: FIFO deduplication, as on SQS.
            function: the Lambda function that runs its jobs on AWS, as `onefold synth` writes it; None: workers do.
            internal: only onefold in this app can send to it (its policy must ensure that), so the keys, runs and amendments
                in its messages are trusted without a signature (docs/security.md).

        Raises:
            UsageError: a value is out of range (as on SQS), or an unsuitable dead-letter queue; nothing is declared.
            ConflictError: the queue was declared before with other settings.
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
        aliases: Sequence[str] = (),
        version: int = 1,
        upgrade: Mapping[int, Callable[[Any], Any]] | None = None,
        tenant: str | KeyFunction | None = None,
        group: str | KeyFunction | None = None,
        effect: Effect = "external",
        executor: Executor | None = None,
        on_unknown: Literal["rerun", "hold"] | Callable[..., Found | Awaitable[Found]] = "rerun",
        timeout: Duration = "5m",
        retry: Retry | None = None,
        throttle: Throttle | None = None,
        after_failure: AfterFailure = "stop",
        keep: Duration = KEEP_DEFAULT,
        owner: str | None = None,
        unique: bool = False,
        fingerprint: Collection[str] | None = None,
        ignore: Collection[str] = (),
        when_complete: schedules.Schedule | Job[Any, Any] | str | None = None,
        source: str = "json",
        transient: Sequence[type[BaseException] | str] = (),
        permanent: Sequence[type[BaseException] | str] = (),
        unknown: Sequence[type[BaseException] | str] = (),
    ) -> Decorator:
        """Declare a job: the function below handles messages of `queue`, once per key.

        Start with these five; the defaults of the others are safe:

        Args:
            key: identifies the operation: a template over the payload's fields ("{order_id}"), a JMESPath expression
                ("jmespath:detail.id"), or a function of the payload. Never null, never empty.
            timeout: the timeout of one run. Enforced with processes and asyncio; with threads only reported
                (`overrun`), and the run keeps its key and its message until the handler ends.
            retry: attempts and pauses.
            on_unknown: if an earlier run may or may not have had its effect: `rerun` it, `hold` it for a person, or ask
                a function of (payload) or (payload, ctx) that returns Done, NotDone or StillUnknown.
            owner: the team that is responsible for fixes; shown with every failure.

        About operations and messages:

        Args:
            name: by default the function's name. It is stored in records: after a renaming every key is new, unless the
                old name is among the aliases.
            aliases: earlier names of the job, at most 10. Messages with these names run, and records under them count.
                Keep an alias until its last records have expired (`keep`).
            version: the version of the payload's form, 1 to 1,000; raise it when the type changes so that older
                messages do not fit. Messages carry it; one that a later release has sent waits for a worker of that
                release.
            upgrade: functions by the version that they upgrade from, such as {1: with_currency}: each takes the payload as
                plain JSON values and returns that of the next version. Or use `@job.upgrade(from_version=1)` below.
            tenant: scope of the key; a rule like `key`.
            group: the message group, by a rule; required on a FIFO queue, which keeps the messages of a group in order.
                A standard queue keeps no order, and warns of that; on SQS its groups are the tenants of a fair queue.
            unique: sending a known key (waiting, running or done) adds nothing, and the receipt says what was found;
                with another payload it raises ConflictError. In a file, a key whose message was cancelled, purged or has
                expired is free again, for any payload if nothing has run under it. SQS cannot tell whether a message still
                exists, so there a key is known as long as its record exists.
            fingerprint, ignore: the payload's fields that decide whether a second message with the key is the same
                operation: only these, or all but these; by default all. With either, a conflict names the fields that
                differ. After a change of this option, an older message that is sent again is a conflict.
            keep: how long a finished record answers duplicates; at least retention + dead-letter retention + 1 day.
            source: the envelope of messages that onefold did not send: json, s3, sns, eventbridge, scheduler, celery.
            when_complete: a schedule or map; each of its runs starts this job once, when the run is complete. The job
                takes a `CompleteRun`.

        About runs and failures:

        Args:
            effect: `external` (calls another system), `repeatable` (running twice is harmless, which is faster), or
                `transactional` (all effects are rows written through ctx.connection: level 4).
            executor: where a worker runs the handler: in a child `process` (without `--processes` it starts two, for these
                jobs only), or in one of its `thread`s (a coroutine: in its loop) even with `--processes`. None: as the
                worker was started. Lambda ignores it.
            throttle: rate and concurrency over all processes.
            after_failure: FIFO: a dead letter stops its group (`stop`), or the group continues after it (`skip`).
            transient, permanent, unknown: exception classes, or their dotted names, that mean this kind of failure.

        Raises:
            UsageError: an option is invalid; the error names it and says what to do.
        """
        declared: Decorator = declare_job(
            self._runtime, queue, key=key, name=name, aliases=aliases, version=version,
            upgrade=upgrade, tenant=tenant, group=group, effect=effect, on_unknown=on_unknown,
            timeout=timeout, retry=retry, throttle=throttle,
            after_failure=after_failure, keep=keep, owner=owner,
            unique=unique, fingerprint=fingerprint, ignore=ignore, when_complete=when_complete, source=source,
            transient=transient, permanent=permanent, executor=executor,
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
            tz: IANA zone of cron and at expressions: its name, a ZoneInfo, or datetime.UTC.
            name: 1-64 of 0-9 A-Z a-z - _ . ; by default the function's name. It is part of every tick's key.
            queue: for its ticks; by default the queue `<app>-schedules`, which is declared with the first schedule.
            missed: for ticks whose time passed while no scheduler ran: `skip` them, send the `last`, or send `all`, at
                most the latest `missed_max` (1 to 1,000). With `all` and a start in the past a new schedule sends the
                ticks since then, otherwise it begins now. A new one-time schedule in the past sends its tick.
            dst: clock changes: `eventbridge` skips the times that the change skips, `next-valid` fires right after it.
            window: flexible window after the planned time, 1 m to 24 h, in which a tick is sent; 0 s: at its time.
            start, end: no ticks before `start` or after `end`; aware datetimes. A rate begins at its start.
            delete_after: delete the schedule after its last tick.
            retry, dead_letter: for a tick that its queue refuses; in the end it goes to `<app>-schedules-dead`.
            timeout: the timeout of one call of the function.
            job_retry: for the function, if it fails or its worker dies; like a job's `retry`.
            owner: the team that is responsible for fixes.

        Raises:
            UsageError: an option is invalid; the error names the field and what is allowed.
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

        `onefold map start` starts runs; on AWS they run as a Distributed Map of Step Functions, by the same rules.

        Args:
            queue: the queue of the items' messages; a standard queue.
            key: identifies an item within a run; a rule like a job's key.
            name: the function's name unless given.
            items: `csv`, `json`, `jsonl`, `listing`, or an `ItemReader` with its options (header, delimiter, ...).
            source: path or s3:// URL, unless it is given at the start of each run.
            batch: how many items one call gets, as a list; by default one item, not in a list.
            concurrency: how many children can be in progress, 1 to 10,000.
            tolerated_count, tolerated_percent: how many items may fail, malformed rows included; by default none.
            retry: which errors are retried, by their names; by default all except PermanentError, 3 times.
            catch: an operations queue for items that failed for good and then count as succeeded; or `ItemCatch`es.
            effect: like a job's. timeout: the timeout of one call. owner: the team that is responsible for fixes.
            results: folder or s3:// URL of the result files; by default next to the engine's file.

        Raises:
            UsageError: an option is invalid; the error names it and what is allowed.
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
        """Check, `after` the start of each run, that what should exist exists once. Call it, or use it as a decorator.

        Dispatched operations are compared with their records. A decorated function adds what only the app can count:
        it takes a `Reconciliation` and returns counts by key or `Totals`, or yields `Counted` (`reconcile/counts.py`).

        Args:
            of: a schedule, a map run, or its name.
            after: 1 s to 14 d, counted from the run's start.
            name: the name of the job that checks; by default `reconcile-<of>`. queue: the queue of that job; by default
                `onefold-reconcile`.
            owner: the team that is responsible for fixes.

        Raises:
            UsageError: a value is out of range. ConflictError: the name is taken.
        """
        return reconciliations.declare(self._runtime, of, after=after, name=name, queue=queue, owner=owner)

    @checked_options
    def alarms(
        self,
        *,
        slack: str | None = None,
        slack_channel: str | None = None,
        webhook: str | None = None,
        email: str | Sequence[str] | None = None,
        command: str | Sequence[str] | None = None,
        command_env: str | Sequence[str] | None = None,
        owner: str | None = None,
    ) -> None:
        """Declare where the app's alarms are sent; its workers, or `onefold watch`, evaluate them (docs/alarms.md).

        Args:
            slack, webhook: a URL, or where it is stored: `env:SLACK_WEBHOOK_URL`, `file:/run/secrets/slack`. Slack's is an
                incoming webhook or, with slack_channel, an app's token. Requests to a webhook are signed.
            slack_channel: id of a Slack channel, C0123ABCD: Slack can then be asked what it has, so nothing comes twice.
            email: addresses, separated by commas or as a list; sent through the server in ONEFOLD_SMTP_URL.
            command: a program and its arguments, run without a shell; it gets the report on standard input.
            command_env: variables of the worker's environment to pass to the command, separated by commas or as a list.
                It always gets PATH, HOME, the language and what it needs to reach a server (docs/alarms.md).
            owner: the responsible team for alarms about things without an owner.

        Raises:
            UsageError: a target is invalid. ConflictError: alarms were declared before.
        """
        observe.declare_alarms(
            self._runtime, observe.checked_targets(slack, webhook, email, command, owner, command_env, slack_channel)
        )

    def bus(self, name: str = "default", *, account: str | None = None, region: str | None = None) -> events.Bus:
        """The event bus of that name: declare rules and archives on it, and put events on it (`events/bus.py`).

        Args:
            name: 1-60 of A-Z a-z 0-9 . - _. account, region: the origin written into its events.

        Raises:
            UsageError: a value is out of range. ConflictError: the bus was declared with another account or region.
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
        """Forward messages from one queue to another, each once, in workers of the app (`events/pipes.py`).

        Args:
            name: 1-64 of A-Z a-z 0-9 . - _; `<source>-to-<target>` unless given. Stored in records.
            filter: up to five patterns such as {"body": {"kind": ["order"]}}; messages that match none are deleted.
            enrich: takes the body [, the context] and returns what to forward, None for nothing. It can run twice.
            transform: template of the message to the target, for example '{"id": "<$.body.id>"}'.
            group: message group for a FIFO target (required there): a text, or a path such as "$.body.customer".
            timeout, retry, after_failure, keep, owner: as for a job.

        Raises:
            UsageError: a value is invalid. ConflictError: the source queue already has a job or pipe.
        """
        return events.declare_pipe(
            self._runtime, source, target, name=name, filter=filter, enrich=enrich, transform=transform, group=group,
            timeout=timeout, retry=retry, after_failure=after_failure, keep=keep, owner=owner,
        )  # fmt: skip
