"""What `onefold worker` measures: served for Prometheus (`--metrics`), written for CloudWatch (`--emf`), or both.

Never here: which metrics there are, their formats (`observe/`). Invariant: a failed read of the engine costs its gauges
and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from onefold import errors, limits
from onefold.app import App
from onefold.cli import render
from onefold.interrupts import let_through
from onefold.observe import prometheus
from onefold.observe.emf import EVERY_MS, EmfSink
from onefold.observe.metrics import METRICS, Meter, Sample, gauges
from onefold.observe.readings import Reader
from onefold.observe.wording import age
from onefold.runner.worker import Worker
from onefold.runtime.events import Sink
from onefold.threads import thread_beside

_READY_MS: Final = (
    limits.MINUTE_MS
)  # added to the longest timeout: a worker with work that makes no progress for that long is not ready


class Measures:
    """What one worker measures.

    Args:
        queues: the queues that it works on. address: where to serve Prometheus, in the form of `--metrics`; None: nowhere.
        emf: whether lines for CloudWatch are written.

    Attributes:
        sinks: they do the counting; pass them to the worker.

    Raises:
        UsageError: `address` is not an address.
    """

    def __init__(self, app: App, queues: list[str], *, address: str | None, emf: bool) -> None:
        self._app = app
        self._queues = queues
        self._jobs = [job for job in app.jobs.values() if job.policy.queue in queues]
        self._address = None if address is None else prometheus.address_of(address)
        self._meter = Meter()
        own = [one for one in app.sinks if isinstance(one, EmfSink)]
        self._emf = own[0] if own else EmfSink() if emf else None
        self.sinks: list[Sink] = [] if address is None else [self._meter]
        if self._emf is not None and not own:
            self._emf.for_app(app.name)
            self.sinks.append(self._emf)

    @contextmanager
    def of(self, worker: Worker) -> Iterator[None]:
        """Serve and write while the block runs."""
        watches: list[Any] = [sink for sink in self._app.sinks if hasattr(sink, "watch")]  # OpenTelemetry
        if self._address is None and self._emf is None and not watches:
            yield
            return
        runtime = self._app.runtime()
        self._reader = Reader(
            runtime.engine, runtime.steady, queues=self._queues, jobs=[job.name for job in self._jobs],
            reconciled=sorted({one.of for one in self._app.reconcilers.values()}),
        )  # fmt: skip
        self._reading = threading.Lock()
        with ExitStack() as stack:
            for sink in watches:
                stack.enter_context(sink.watch(lambda: self._gauges(worker)))
            stack.enter_context(self._served(worker))
            stack.enter_context(self._written(worker))
            yield

    @contextmanager
    def _served(self, worker: Worker) -> Iterator[None]:
        if self._address is None:
            yield
            return
        late_ms = max((job.policy.timeout_ms for job in self._jobs), default=0) + _READY_MS

        def trouble() -> str | None:
            now = worker.snapshot()
            if now.engine_failing_ms > _READY_MS:
                since = age(now.engine_failing_ms)
                return f"the engine has not answered for {since} ({now.engine_failure}); the log says more"
            age_ms = now.progress_age_ms
            return f"no progress for {age(age_ms)}, and there is work" if age_ms > late_ms else None

        def samples() -> list[Sample]:
            return [*self._meter.samples(), *self._gauges(worker)]

        server = prometheus.MetricsServer(self._address, samples, trouble)
        render.note(f"metrics: {server.url}/metrics")
        try:
            yield
        finally:
            server.close()

    @contextmanager
    def _written(self, worker: Worker) -> Iterator[None]:
        if self._emf is None:
            yield
            return
        sink, clock, ended = self._emf, self._app.runtime().steady, threading.Event()

        def write() -> None:
            found = self._gauges(worker)
            sink.flush((one for one in found if one.metric.instrument == "gauge"), clock.now_ms())

        def run() -> None:
            while not clock.wait(ended, EVERY_MS):
                write()

        try:
            with thread_beside("onefold-emf", run, ended.set, join_s=1):
                yield
        finally:
            write()

    def _gauges(self, worker: Worker) -> list[Sample]:
        """The current gauges of the worker, and of its engine if the engine answers."""
        snapshot = worker.snapshot()
        own = [
            Sample(METRICS["onefold.worker.progress.age"], (), snapshot.progress_age_ms / limits.SECOND_MS),
            Sample(METRICS["onefold.engine.failing.age"], (), snapshot.engine_failing_ms / limits.SECOND_MS),
            Sample(METRICS["onefold.events.lost"], (), snapshot.sink_failures),
        ]
        try:
            with self._reading:
                return [*own, *gauges(self._reader.read())]
        except errors.OnefoldError as error:  # the worker has the same trouble, and reports it
            let_through(error)
            return own
