"""Declarations: an `App` with its queues and jobs. Wiring happens when something is first sent, run or asked.

Importing a module that declares an app opens nothing and costs little. Every option is checked here, at the door, and a
misspelt one is answered with the name that was meant. Never here: how messages travel, storage, threads.
Invariant: two processes that import the same declarations agree on every queue, key and lifetime.
"""

from __future__ import annotations

import functools
import os
import re
import typing
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

from onefold import duration, errors, limits
from onefold.clock import Clock, SystemClock
from onefold.codec import payload_type
from onefold.contracts.admin import QueueSettings
from onefold.contracts.ledger import History
from onefold.contracts.queue import Delivery
from onefold.contracts.rules import check_settings, check_target
from onefold.decide.backoff import Backoff
from onefold.decide.batch import OnFailure
from onefold.decide.delivery import AfterFailure, Effect, Policy
from onefold.decide.failures import Lists, check_lists
from onefold.decide.keys import KeyFunction, key_rule
from onefold.duration import Duration
from onefold.entropy import Entropy, SystemEntropy
from onefold.options import FUNCTION, DeadLetter, Function, Queue, Retry, Throttle, checked_options
from onefold.run.context import Context
from onefold.run.declaring import group_rule, keep_ms_of, limit_of, make_policy, types_of, warn_of_volatile_key
from onefold.run.handlers import JOB_ATTRIBUTE, Found, Job, Outgoing, Receipt, Rules
from onefold.run.sources import check_source

if TYPE_CHECKING:
    from onefold.run.events import Sink
    from onefold.service.lambda_runtime import LambdaHandler
    from onefold.service.wiring import Runtime

T = TypeVar("T")
R = TypeVar("R")

JOB_NAME_CHARS_MAX = 128  # it is part of every key for partners and of metrics; SQS ids end there too
KEEP_DEFAULT = "90d"  # mission I1: records of completed work answer duplicates for 90 days
_APP_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")


class Decorator(Protocol):
    """Turns a handler into a job; the payload and result types are the handler's own."""

    @overload
    def __call__(self, handler: Callable[[T, Context], Awaitable[R]]) -> Job[T, R]: ...
    @overload
    def __call__(self, handler: Callable[[T, Context], R]) -> Job[T, R]: ...
    @overload
    def __call__(self, handler: Callable[[T], Awaitable[R]]) -> Job[T, R]: ...
    @overload
    def __call__(self, handler: Callable[[T], R]) -> Job[T, R]: ...


class App:
    """A set of jobs on one engine.

    Args:
        name: 1-40 of a-z 0-9 - _; names the default file.
        url: the engine; unless given, the environment's ONEFOLD_URL, else `sqlite:///.onefold/<name>.db`.
        history: what the ledger keeps beside the records: `off`, `brief` (what was not a clean first run), `full`.
        sinks: receive events (see `onefold.run.events`); a structured log is `onefold.LogSink()`.
        clock, entropy: where time and chance come from; tests pass their own.

    Raises:
        UsageError: a name out of range, an unknown history level.
    """

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
        if not _APP_NAME.fullmatch(str(name)):
            raise errors.UsageError(f"{name!r} is not a name for an app.", todo="Use 1 to 40 of a-z, 0-9, - and _.")
        if history not in typing.get_args(History):
            raise errors.UsageError(f"history={history!r} is not known.", todo="It is off, brief or full.")
        self.name = name
        self.url = url or os.environ.get("ONEFOLD_URL") or f"sqlite:///.onefold/{name}.db"
        self.history: History = history
        self.sinks = tuple(sinks)
        self.queues: dict[str, Queue] = {}
        self.jobs: dict[str, Job[Any, Any]] = {}
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()
        self._runtime: Runtime | None = None

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

        Raises:
            UsageError: a value out of range (the same ranges as SQS); a dead-letter queue that does not fit. Nothing is
                declared then.
            ConflictError: declared before with other settings.
        """
        dead = dead_letter or DeadLetter()
        if not isinstance(name, str):
            raise errors.UsageError(f"{name!r} is not a name for a queue.", todo="Use a text of A-Z a-z 0-9 - _.")
        suffix = ".fifo" if fifo else ""  # a name that ends in it declares nothing by itself; check_settings refuses it
        stem = name.removesuffix(suffix)
        dead_name = f"{(dead.name or stem + '-dead').removesuffix(suffix)}{suffix}"
        companion = functools.partial(
            QueueSettings, fifo=fifo, message_bytes_max=max_bytes, content_dedup=content_dedup
        )
        keep_ms = duration.to_ms(
            dead.retention, "dead_letter.retention", least_ms=limits.RETENTION_MS_MIN, most_ms=limits.RETENTION_MS_MAX
        )
        if type(dead.after) is not int or not 1 <= dead.after <= limits.RECEIVES_MAX:
            raise errors.UsageError(f"dead_letter.after={dead.after!r} is out of range.", todo="It may be 1 to 1000.")
        declared = Queue(
            settings=QueueSettings(
                name=stem + suffix,
                fifo=fifo,
                visibility_ms=duration.to_ms(visibility, "visibility", most_ms=limits.VISIBILITY_MS_MAX),
                retention_ms=duration.to_ms(
                    retention, "retention", least_ms=limits.RETENTION_MS_MIN, most_ms=limits.RETENTION_MS_MAX
                ),
                delay_ms=duration.to_ms(delay, "delay", most_ms=limits.DELAY_MS_MAX),
                message_bytes_max=max_bytes,
                dead_letter=dead_name,
                receives_max=dead.after,
                held=f"{stem}-held{suffix}",
                content_dedup=content_dedup,
                dedup_scope=dedup_scope,
            ),
            dead_letter=companion(name=dead_name, retention_ms=keep_ms),
            held=companion(name=f"{stem}-held{suffix}", retention_ms=limits.RETENTION_MS_MAX),
            function=function,
        )
        for settings in (declared.settings, declared.dead_letter, declared.held):
            check_settings(settings)
        check_target(declared.settings, declared.dead_letter)
        known = self.queues.setdefault(declared.name, declared)
        if known != declared:
            raise errors.ConflictError(
                f"Queue {declared.name} was declared twice with different settings.",
                todo="Declare it once and pass the object that app.queue returned.",
            )
        return declared

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
            timeout: of one run. Enforced with processes and asyncio; told with threads.
            retry: attempts and pauses. throttle: rate and concurrency over all processes.
            after_failure: FIFO: whether a dead letter stops its group (`stop`) or is passed over (`skip`).
            keep: how long a finished record answers duplicates; at least retention + dead-letter retention + 1 day.
            owner: the team that owns a fix; shown with every failure.
            unique: sending a key that is known already (waiting, running or done) adds nothing.
            source: the envelope of messages that onefold did not send: json, s3, sns, eventbridge, scheduler.
            transient, permanent, unknown: exception classes, or their dotted names, that mean just that.

        Raises:
            UsageError: an option that cannot be right; says which, and what to do.
        """
        self._own(queue)
        check_source(source, "this job")
        lists = {
            kind: (classes,) if isinstance(classes, str) else tuple(classes)
            for kind, classes in (("transient", transient), ("permanent", permanent), ("unknown", unknown))
        }
        check_lists(Lists(**lists), "this job")
        pauses = retry or Retry()
        policy = self._policy(queue, effect, on_unknown, timeout, pauses, after_failure, keep, owner)

        def declare(handler: Callable[..., Any]) -> Job[Any, Any]:
            annotation, returned = types_of(handler)
            job_name = name or handler.__name__
            if not str(job_name).isprintable() or len(str(job_name)) > JOB_NAME_CHARS_MAX:
                raise errors.UsageError(
                    f"{job_name!r:.80} is not a name for a job.",
                    todo=f"Use at most {JOB_NAME_CHARS_MAX} printable characters.",
                )
            if job_name in self.jobs:
                raise errors.ConflictError(f"Job {job_name} is declared twice.", todo="Give one of them another name=.")
            job: Job[Any, Any] = Job(
                handler,
                name=job_name,
                policy=policy(job_name),
                rules=Rules(
                    payload=payload_type(annotation, result=returned),
                    key=key_rule(key, annotation, what=f"key of {job_name}"),
                    tenant=key_rule(tenant, annotation, what=f"tenant of {job_name}") if tenant else None,
                    group=group_rule(queue, group, annotation, job_name),
                    source=source,
                ),
                sender=self,
                probe=on_unknown if callable(on_unknown) else None,
                classes=lists,
                limit=limit_of(throttle, annotation, job_name),
                unique=unique,
            )
            warn_of_volatile_key(job)
            functools.update_wrapper(job, handler)
            self.jobs[job_name] = job
            return job

        return declare

    def _own(self, queue: Queue) -> None:
        if not isinstance(queue, Queue):
            raise errors.UsageError(f"{queue!r} is not a queue.", todo="Pass what app.queue(...) returned.")
        if self.queues.get(queue.name) is not queue:
            raise errors.UsageError(
                f"Queue {queue.name} was not declared on app {self.name}.", todo="Pass what app.queue(...) returned."
            )

    def _policy(
        self,
        queue: Queue,
        effect: Effect,
        on_unknown: object,
        timeout: Duration,
        retry: Retry,
        after_failure: AfterFailure,
        keep: Duration,
        owner: str | None,
    ) -> Callable[[str], Policy]:
        for value, allowed, what in (
            (effect, typing.get_args(Effect), "effect"),
            (after_failure, typing.get_args(AfterFailure), "after_failure"),
            (on_unknown if isinstance(on_unknown, str) else "rerun", ("rerun", "hold"), "on_unknown"),
        ):
            if value not in allowed:
                from difflib import get_close_matches  # only a typing error pays for it

                near = get_close_matches(str(value), allowed, n=1)
                raise errors.UsageError(
                    f"{what}={value!r} is not known.",
                    todo=f"Did you mean {near[0]!r}?" if near else f"It is one of {', '.join(allowed)}.",
                )
        after = queue.settings.receives_max or 1
        for what, count in (("attempts", retry.attempts), ("crashes", retry.crashes)):
            if type(count) is not int or count < 1:
                raise errors.UsageError(
                    f"retry.{what}={count!r} is out of range.", todo="It is a whole number, 1 or more."
                )
        if retry.attempts > after:
            raise errors.UsageError(
                f"retry.attempts={retry.attempts} with dead_letter.after={after} on queue {queue.name}.",
                meaning="The queue itself would dead-letter the message before onefold could say why.",
                todo=f"Let attempts be 1 to {after}, or raise DeadLetter(after=...).",
            )
        return functools.partial(
            make_policy,
            queue=queue.name,
            effect=effect,
            attempts_max=retry.attempts,
            crashes_max=retry.crashes,
            backoff=Backoff(
                base_ms=duration.to_ms(retry.base, "retry.base"),
                factor=retry.factor,
                cap_ms=duration.to_ms(retry.cap, "retry.cap", most_ms=limits.VISIBILITY_MS_MAX),
                jitter=retry.jitter,
            ),
            on_unknown=on_unknown if isinstance(on_unknown, str) else "probe",
            after_failure=after_failure,
            timeout_ms=duration.to_ms(timeout, "timeout", least_ms=1, most_ms=limits.VISIBILITY_MS_MAX),
            keep_ms=keep_ms_of(queue, keep),
            fifo=queue.settings.fifo,
            owner=owner,
        )

    # -- doing -------------------------------------------------------------------------------------------------------

    def runtime(self, url: str | None = None) -> Runtime:
        """The opened engine, with all declared queues created; opened at the first call.

        Args:
            url: another engine than the app's own, for a Lambda handler; what is open already stays.

        Raises:
            StorageError: the file cannot be used. ConflictError: a queue exists with other settings.
        """
        if self._runtime is None:
            from onefold.service.wiring import Runtime

            declared = [
                settings
                for queue in self.queues.values()
                for settings in (queue.dead_letter, queue.held, queue.settings)
            ]
            self._runtime = Runtime(url or self.url, declared, clock=self._clock, entropy=self._entropy)
        return self._runtime

    def deliver(self, outgoing: Sequence[Outgoing]) -> list[Receipt]:
        """Accept messages durably; all or none. Used by `Job.send`.

        Raises:
            UsageError: a queue refused a message; none was sent.
        """
        from onefold.service.sending import send_all

        return send_all(self.runtime(), outgoing, self.history)

    def now_ms(self) -> int:
        """Wall time of this app's clock."""
        return self._clock.now_ms()

    def job_of(self, delivery: Delivery) -> Job[Any, Any]:
        """The job a message is for: the one it names, else the only one on its queue.

        Raises:
            NotFoundError: it names a job that is not declared, or names none and the queue has several or none.
        """
        named = delivery.attributes.get(JOB_ATTRIBUTE)
        if named is not None:
            job = self.jobs.get(str(named.value))
            if job is not None:
                return job
            raise errors.NotFoundError(
                f"Message {delivery.message_id} on {delivery.queue} is for job {named.value!r}, which is not declared.",
                todo="Start the worker with the app that declares it, or redrive the message after you have deployed it.",
            )
        on_queue = [job for job in self.jobs.values() if job.policy.queue == delivery.queue]
        if len(on_queue) == 1:
            return on_queue[0]
        raise errors.NotFoundError(
            f"Message {delivery.message_id} on {delivery.queue} names no job, and the queue has {len(on_queue)}.",
            todo="Give a queue that others send to exactly one job.",
        )

    @checked_options
    def lambda_handler(
        self,
        *,
        concurrency: int = 10,
        margin: Duration = "1s",
        on_failure: OnFailure = "group",
        heartbeat: bool = False,
        raise_for_batch: bool = False,
    ) -> LambdaHandler:
        """The handler of a Lambda function that SQS event source mappings of this app's queues invoke.

            handler = app.lambda_handler()      # below the jobs

        The mapping must have ReportBatchItemFailures; `onefold synth` writes it so. Messages are on SQS; records are where
        the app's engine says, for any engine.

        Args:
            concurrency: plain functions at one time, in threads; 1: in the invoking thread, one after the other. Coroutines
                run together, up to 100.
            margin: kept back of an invocation's time for settling; at most half of that time is. What cannot end before
                is given back unstarted.
            on_failure: FIFO: a message that comes back holds up the rest of its `group`, or of the `batch`. Whether a dead
                letter does is the job's `after_failure`.
            heartbeat: extend leases and visibilities while handlers run: after a crash messages come back within 30 seconds,
                instead of when their visibility ends.
            raise_for_batch: raise when not one message of a batch is done, for the function's error metric.

        Raises:
            UsageError: an option out of its range. In Lambda: the engine cannot be opened.
        """
        from onefold.run.lambda_crew import LambdaSettings
        from onefold.service.lambda_runtime import LambdaHandler

        settings = LambdaSettings(
            concurrency=concurrency,
            margin_ms=duration.to_ms(margin, "margin"),
            on_failure=on_failure,
            heartbeat=heartbeat,
            raise_for_batch=raise_for_batch,
        )
        return LambdaHandler(self, settings)

    @contextmanager
    def reopened(self, url: str, clock: Clock, entropy: Entropy) -> Iterator[Runtime]:
        """Use another engine, clock and chance for a while; for tests and simulations. Not safe from several threads."""
        before = (self._runtime, self.url, self._clock, self._entropy)
        self._runtime, self.url, self._clock, self._entropy = None, url, clock, entropy
        try:
            yield self.runtime()
        finally:
            self.close()
            self._runtime, self.url, self._clock, self._entropy = before

    def close(self, *, unfinished: bool = False) -> None:
        """Close the engine, if it was opened. The app may be used again.

        Args:
            unfinished: handlers still run in this process; what they hold is freed when it ends.
        """
        if self._runtime is not None:
            self._runtime.close(unfinished=unfinished)
            self._runtime = None
