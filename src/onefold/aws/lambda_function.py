"""Wires a Lambda handler: engine, executor pool, and queues by ARN. `App.lambda_handler` is the only caller.

The engine is opened once per container: in Lambda's init phase, which has a whole processor, or, outside Lambda (a
test, or `onefold synth`, which imports the app too), at the first event. Queues are not looked up: events name them.
Messages are on SQS whatever the app's own engine is; an app on another engine keeps its records on that engine.
Never here: processing an event. Invariant: making a handler outside Lambda opens nothing.
Private: may change with any release.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast
from urllib.parse import quote

from msgspec.structs import replace

from onefold import errors, limits, maps, observe, redact
from onefold.engines import urls
from onefold.options import LambdaSettings
from onefold.runner.lambda_handler import LambdaAdapter
from onefold.runner.lambda_invocation import ExecutorPool
from onefold.runner.lambda_mapping import remaining_ms_of
from onefold.runner.late_closer import LateCloser
from onefold.runner.runner import Runner
from onefold.runner.settlement import backend_of
from onefold.runner.setup import runner_on
from onefold.runner.sink_queues import QueuedSinks
from onefold.runtime.events import EVENTS
from onefold.runtime.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from onefold.contracts.queue import Delivery
    from onefold.contracts.verbs import Queue, QueueReceiver
    from onefold.maps.lambda_children import StepFunctionsChildren
    from onefold.runner.handlers import Job
    from onefold.runner.lambda_mapping import Record
    from onefold.runner.settlement import Backend
    from onefold.runtime.events import Event, Sink


class Adopting(Protocol):
    """A queue that takes over messages that an event source mapping has received."""

    def adopt(self, records: Sequence[Mapping[str, Any]], visible_ms: int) -> list[Delivery]:
        """The deliveries for the records of an event, in order; `visible_ms`: how long the receive hides them."""
        ...

    def disown(self, receipts: Sequence[str]) -> None:
        """Forget these messages, which Lambda deletes itself, and remove whatever else is stored for them."""
        ...


BREAKER_CACHE_MS: Final = 5_000  # reading the store is a call here, so another container's pause is noticed this late
FLUSH_MS_MAX: Final = 1_000  # our choice: an answer waits this long for slow sinks, at most half the time left
_EMF: Final = "ONEFOLD_EMF"
_IN_LAMBDA: Final = "AWS_LAMBDA_INITIALIZATION_TYPE"  # Lambda developer guide, "Defined runtime environment variables"
_SNAPSHOT: Final = "snap-start"  # connections and ids made before a snapshot would be in many containers
_ON_AWS: Final = "AWS_LAMBDA_RUNTIME_API"  # same source; set if Lambda itself runs the function


class LambdaHandler:
    """The function that Lambda calls. Made by `App.lambda_handler`.

    Args:
        runtime: the app's, with its queues and jobs declared.
        environment: the process's, unless given.
    """

    def __init__(
        self, runtime: Runtime, settings: LambdaSettings, environment: Mapping[str, str] | None = None
    ) -> None:
        settings.check()
        self._runtime = runtime
        self._settings = settings
        self._environment = environment = os.environ if environment is None else environment
        self._adapter: LambdaAdapter | None = None
        self._wired: _Wired | None = None
        self._is_named = False
        if environment.get(_IN_LAMBDA, _SNAPSHOT) != _SNAPSHOT:
            self.adapter()

    def __call__(self, event: object, context: object = None) -> Any:
        """Process a batch, or a child of a map run, and return the partial batch response, or the child's result.

        Raises the errors of `LambdaAdapter.handle` and `StepFunctionsChildren.handle`.
        """
        try:
            self.take_names()
            if self._runtime.registry.maps:
                child = maps.child_of(event)
                if child is not None:
                    return self._children().handle(child, context)
            return self.adapter().handle(event, context)
        finally:
            if self._wired is not None:
                self._wired.flush(remaining_ms_of(context))

    def take_names(self) -> None:
        """Make sure, once, that no other app in the same store has a job with one of this app's names.

        Raises:
            ConflictError: another app has one. TransientError: the store cannot be used now.
        """
        if not self._is_named:
            self.adapter()
            self._runtime.take_names_of(self._runtime.registry.jobs)
            self._is_named = True

    def _children(self) -> StepFunctionsChildren:
        self.adapter()
        assert self._wired is not None
        return self._wired.children

    def adapter(self) -> LambdaAdapter:
        """The adapter from events to the engine, which is opened at the first call.

        Raises:
            UsageError, StorageError: the engine cannot be used. UsageError: a start hook raised.
        """
        if self._adapter is None:
            runtime = self._runtime
            runtime.open(engine_url(runtime.url, self._environment))
            runtime.engine.appear()
            if runtime.hooks is not None:
                runtime.hooks.start("lambda")
            wired = self._wired = _Wired(runtime, self._settings)
            self._adapter = LambdaAdapter(
                wired.make_pool,
                adopt=wired.adopt,
                disown=wired.disown,
                queue_of=wired.queue_of,
                settings=self._settings,
                clock=runtime.steady,
            )
        return self._adapter


class _Wired:
    """One app on one opened engine."""

    def __init__(self, runtime: Runtime, settings: LambdaSettings) -> None:
        self._registry = runtime.registry
        self._runtime = runtime
        self._settings = settings
        self._location = urls.read_aws(runtime.url) if runtime.url.startswith("aws://") else None
        self._sinks = QueuedSinks([*(runtime.app_sinks or (_Log(runtime.registry.name),)), *_metrics(runtime)])
        self._backend = backend_of(runtime.engine)
        if runtime.engine.known_queue is not None:  # the event names its queue
            self._backend = replace(self._backend, open_queue=runtime.engine.known_queue)
        self._closer = LateCloser(runtime.engine, runtime.registry.jobs, runtime.steady)
        runtime.attach(self._sinks, self._closer.touch)

    def flush(self, remaining_ms: int) -> None:
        """Flush the sinks before Lambda freezes the process between two invocations; wait for a moment at most."""
        self._sinks.flush(min(FLUSH_MS_MAX, remaining_ms // 2) / limits.SECOND_MS)

    @functools.cached_property
    def children(self) -> StepFunctionsChildren:
        """Runs the children of map runs."""
        runtime = self._runtime
        return maps.StepFunctionsChildren(
            self._registry.maps,
            self._make_children_pool,
            store=runtime.engine.store,
            settings=self._settings,
            clock=runtime.steady,
            entropy=runtime.entropy,
        )

    def make_pool(self, lease_ms: int) -> ExecutorPool:
        """The pool that runs the handlers of messages."""
        return self._pool(lease_ms, self._backend, self._registry.job_of)

    def _make_children_pool(
        self, lease_ms: int, job_of: Callable[[Delivery], Job[Any, Any]], wrap: Callable[[Queue], QueueReceiver]
    ) -> ExecutorPool:
        opened = self._backend.open_queue
        backend = replace(self._backend, open_receiver=lambda name: wrap(opened(name)))
        return self._pool(lease_ms, backend, job_of)

    def _pool(self, lease_ms: int, backend: Backend, job_of: Callable[[Delivery], Job[Any, Any]]) -> ExecutorPool:
        runtime = self._runtime
        return ExecutorPool(
            backend,
            functools.partial(self._make_runner, job_of),
            runtime.engine.effects,
            {name: queue.settings.receives_max for name, queue in self._registry.queues.items()},
            list(self._registry.jobs.values()),
            self._settings,
            clock=runtime.steady,
            lease_ms=lease_ms,
        )

    def _make_runner(self, job_of: Callable[[Delivery], Job[Any, Any]], backend: Backend, lease_ms: int) -> Runner:
        runtime = self._runtime
        return runner_on(
            runtime, backend, job_of, self._closer, lease_ms=lease_ms, sinks=self._sinks, history=runtime.history,
            cache_ms=BREAKER_CACHE_MS,
        )  # fmt: skip

    def adopt(self, queue: str, records: Sequence[Record]) -> list[Delivery]:
        return self._adopting(queue).adopt(records, self._registry.queues[queue].settings.visibility_ms)

    def disown(self, queue: str, receipts: Sequence[str]) -> None:
        self._adopting(queue).disown(receipts)

    def _adopting(self, queue: str) -> Adopting:
        real = self._backend.open_queue(queue)
        if not hasattr(real, "adopt"):
            raise errors.UsageError(
                f"The engine {self._runtime.engine.url} cannot take over messages that Lambda received.",
                todo="Use an aws:// engine.",
            )
        return cast("Adopting", real)

    def queue_of(self, arn: str, region: str) -> str:
        """The app's name for a queue that has jobs."""
        on_aws = arn.rpartition(":")[2]
        ours = self._location.prefix if self._location is not None else ""
        name = on_aws.removeprefix(ours)
        known = {job.policy.queue for job in self._registry.jobs.values()}
        if name not in known or not on_aws.startswith(ours):
            raise errors.UsageError(
                f"The event comes from queue {on_aws}, on which this app has no job.",
                meaning=f"Its queues with jobs are on AWS: {', '.join(sorted(ours + one for one in known)) or 'none'}.",
                todo="Map the function to one of these queues, or declare a job on that queue.",
            )
        if self._location is not None and region and region != self._location.region:
            raise errors.UsageError(
                f"The event comes from queue {on_aws} in {region}, but the app's engine is in {self._location.region}.",
                todo=f"Deploy the function in {self._location.region}, or open the app on aws://{region}.",
            )
        return name


def _metrics(runtime: Runtime) -> list[Sink]:
    """The sink that writes metrics, if the environment asks for it and the app has none."""
    if os.environ.get(_EMF) != "on" or any(isinstance(one, observe.EmfSink) for one in runtime.app_sinks):
        return []
    made = observe.EmfSink()
    made.for_app(runtime.registry.name)
    return [made]


class _Log:
    """The log, for an app that names no sink: the alarms that `onefold synth` writes count its lines."""

    is_quick: Final = True  # it has nothing to write for most batches, and needs no thread

    def __init__(self, app: str) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._sink: observe.LogSink | None = None

    def takes(self, name: str) -> bool:
        """Whether events of this name are worth an alarm."""
        return EVENTS[name].severity not in ("debug", "info")

    def emit(self, event: Event) -> None:
        """Write events that are worth an alarm; most batches have none, so that a cold start need not load the log."""
        if not self.takes(event.name):
            return
        with self._lock:
            if self._sink is None:
                self._sink = observe.LogSink(level="warning")
                self._sink.for_app(self._app)
        self._sink.emit(event)


def engine_url(url: str, environment: Mapping[str, str]) -> str:
    """The URL of a handler's engine: messages are on SQS, records on the app's own engine.

    Raises:
        UsageError: the app's engine is not an aws:// URL, and the environment does not name the region; or the records
            are in a file, on AWS.
    """
    if url.startswith("aws://"):
        return url
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if not region:
        raise errors.UsageError(
            f"A Lambda handler takes its messages from SQS, and the app's engine is {redact.shown_url(url)}.",
            meaning="Where its queues are is not known: AWS_REGION is not set.",
            todo="Open the app on aws://REGION?table=NAME, or set AWS_REGION; then records stay where they are.",
        )
    if url.startswith("sqlite:") and _ON_AWS in environment:
        raise errors.UsageError(
            f"The records of this app are in {url}, which on Lambda is a file of one container.",
            meaning="The others would not know what was done, and repeat it.",
            todo="Keep them where all containers see them: aws://REGION?table=NAME, or records=redis://... or postgresql://...",
        )
    return f"aws://{region}?records={quote(url, safe=':/')}"
