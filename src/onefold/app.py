"""`App`: declarations on an engine, which is opened when something is first sent, run or asked.

Importing a module that declares an app opens nothing and costs little. What can be declared: declarations.py.
Never here: how messages travel, storage, threads.
Invariant: two processes that import the same declarations agree on every queue, key and lifetime.
"""

from __future__ import annotations

import os
import string
import threading
import typing
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from onefold import duration, errors, forks
from onefold.clock import SystemClock
from onefold.contracts.ledger import History
from onefold.contracts.queue import APP_ATTRIBUTE, JOB_ATTRIBUTE
from onefold.declarations import Declarations
from onefold.entropy import SystemEntropy
from onefold.options import checked_options
from onefold.runner.events import checked_sinks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from onefold.contracts.queue import Attribute, Delivery
    from onefold.duration import Duration
    from onefold.outside import Clock, Entropy
    from onefold.runner.events import Sink
    from onefold.runner.handlers import Job
    from onefold.runner.lambda_container import OnFailure
    from onefold.runner.outgoing import Outgoing, Receipt
    from onefold.runtime.lambda_handler import LambdaHandler
    from onefold.runtime.wiring import Runtime

_NAME_CHARS_MAX = 40
_NAME_SIGNS = frozenset(string.ascii_letters + string.digits + "_-")


class App(Declarations):
    """A set of jobs on one engine.

    Args:
        name: 1-40 of a-z 0-9 - _; names the default file.
        url: the engine; unless given, the environment's ONEFOLD_URL, else `sqlite:///.onefold/<name>.db`.
        history: what the ledger keeps beside the records: `off`, `brief` (what was not a clean first run), `full`.
        sinks: receive events (see `onefold.runner.events`); a structured log is `onefold.LogSink()`.
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
        if not 1 <= len(str(name)) <= _NAME_CHARS_MAX or not _NAME_SIGNS.issuperset(str(name)):
            raise errors.UsageError(f"{name!r} is not a name for an app.", todo="Use 1 to 40 of a-z, 0-9, - and _.")
        if history not in typing.get_args(History):
            raise errors.UsageError(f"history={history!r} is not known.", todo="It is off, brief or full.")
        super().__init__(name)
        self.url: str = url or os.environ.get("ONEFOLD_URL") or f"sqlite:///.onefold/{name}.db"
        self.history: History = history
        self.sinks: tuple[Sink, ...] = checked_sinks(sinks)
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()
        self._runtime: Runtime | None = None
        self._opening = threading.Lock()
        forks.in_child(self._start_anew)

    def _start_anew(self) -> None:
        """In a forked child: it has no part in the engine that its parent opened, and opens its own when it needs one."""
        self._opening = threading.Lock()
        if self._runtime is not None and self._runtime.engine.shared:  # one in memory refuses by itself
            forks.keep_for_ever(self._runtime)
            self._runtime = None

    # -- doing -------------------------------------------------------------------------------------------------------

    def runtime(self, url: str | None = None) -> Runtime:
        """The opened engine, with all declared queues created; opened at the first call, once, whatever thread that is in.

        Args:
            url: another engine than the app's own, for a Lambda handler; what is open already stays.

        Raises:
            StorageError: the file cannot be used. ConflictError: a queue exists with another type, deduplication,
                dead-letter or held queue; where it has other times or limits, they stay, and a warning is logged.
        """
        opened = self._runtime
        if opened is not None:
            return opened
        with self._opening:
            if self._runtime is None:
                from onefold.runtime.wiring import Runtime

                declared = [
                    settings
                    for queue in self.queues.values()
                    for settings in (queue.dead_letter, queue.held, queue.settings)
                ]
                self._runtime = Runtime(url or self.url, declared, clock=self._clock, entropy=self._entropy)
                if self._runtime.warnings:
                    self._say(self._runtime.warnings)
            return self._runtime

    def _say(self, warnings: Iterable[str]) -> None:
        import logging  # importing the package must not, and this is rare

        for warning in warnings:
            logging.getLogger("onefold").warning("%s To change them: onefold queue apply MODULE:APP", warning)

    def deliver(self, outgoing: Sequence[Outgoing]) -> list[Receipt]:
        """Accept messages durably; all or none. Used by `Job.send`.

        Raises:
            UsageError: a queue refused a message; none was sent.
        """
        from onefold.runtime.sending import send_all

        return send_all(self.runtime(), outgoing, self.history)

    def now_ms(self) -> int:
        """Wall time of this app's clock."""
        return self._clock.now_ms()

    def job_of(self, delivery: Delivery) -> Job[Any, Any]:
        """The job a message is for: the one it names, else the only one on its queue.

        Whoever may send to a queue may run the jobs that are declared on it, and no others.

        Raises:
            NotFoundError: it names a job that is not declared on its queue, or is another app's, or names none and the queue
                has several or none.
        """
        attributes = delivery.attributes
        named = attributes.get(JOB_ATTRIBUTE)
        if named is not None:
            job = self.jobs.get(str(named.value))
            app = attributes.get(APP_ATTRIBUTE)
            if job is not None and job.policy.queue == delivery.queue and (app is None or app.value == self.name):
                return job
            raise self._not_mine(delivery, job, str(named.value), app)
        on_queue = [job for job in self.jobs.values() if job.policy.queue == delivery.queue]
        if len(on_queue) == 1:
            return on_queue[0]
        raise errors.NotFoundError(
            f"Message {delivery.message_id} on {delivery.queue} names no job, and the queue has {len(on_queue)}.",
            todo="Give a queue that others send to exactly one job.",
        )

    def _not_mine(
        self, delivery: Delivery, job: Job[Any, Any] | None, named: str, app: Attribute | None
    ) -> errors.NotFoundError:
        what = f"Message {delivery.message_id:.100} on {delivery.queue} is for job {named!r:.140}"
        if app is not None and app.value != self.name:
            return errors.NotFoundError(
                f"{what} of the app {str(app.value)!r:.60}, and this is {self.name!r}.",
                meaning="Two apps work on one queue. Its message is left to the other one.",
                todo="Declare the queue in one of them only, and give both files of their own, or names of their own.",
            )
        if job is not None:
            return errors.NotFoundError(
                f"{what}, which is declared on queue {job.policy.queue}.",
                meaning="A job runs only from its own queue; else whoever may send to one could run them all.",
                todo=f"Send it to {job.policy.queue}, or redrive it there: onefold dlq redrive --to {job.policy.queue}",
            )
        return errors.NotFoundError(
            f"{what}, which is not declared.",
            todo="Start a worker with the app that declares it. In a dead-letter queue it can be redriven after that.",
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
            on_failure: what a message that comes back holds up: on a FIFO queue the rest of its `group` (a standard one has
                none), or on either the rest of the `batch`, which then runs one by one. Whether a dead letter does is the
                job's `after_failure`.
            heartbeat: extend leases and visibilities while handlers run: after a crash messages come back within 30 seconds,
                instead of when their visibility ends.
            raise_for_batch: raise when not one message of a batch is done, for the function's error metric.

        Raises:
            UsageError: an option out of its range. In Lambda: the engine cannot be opened.
        """
        from onefold.runner.lambda_container import LambdaSettings
        from onefold.runtime.lambda_handler import LambdaHandler

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
        with self._opening:  # by another thread, perhaps: what it opens is closed
            if self._runtime is not None:
                self._runtime.close(unfinished=unfinished)
                self._runtime = None
